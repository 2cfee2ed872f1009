"""`jetlake consumer …`."""
