"""`jetlake kv …`."""
