"""Push delivery, flow control and rate limit."""
