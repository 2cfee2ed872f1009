"""The whole system once, with failures in between, and counts that prove that no message was lost: `make demo`."""
