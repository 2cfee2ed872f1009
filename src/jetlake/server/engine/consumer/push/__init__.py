"""Push delivery: flow control, rate limit, heartbeats."""
