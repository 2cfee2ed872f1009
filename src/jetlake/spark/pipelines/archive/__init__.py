"""The archive of a stream, its comparison with the stream, and its replay."""
