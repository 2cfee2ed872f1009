"""The archive of a stream as the source reads it."""
