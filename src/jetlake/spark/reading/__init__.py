"""The executor's half of reading: a range of sequences as record batches, every sequence accounted for."""
