"""`jetlake pub`, `sub`, `req`, `reply` and `ack-watch`."""
