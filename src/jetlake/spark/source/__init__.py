"""The driver's half of reading: batches, streaming, start positions, release."""
