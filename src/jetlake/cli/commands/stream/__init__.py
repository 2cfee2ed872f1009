"""`jetlake stream …`."""
