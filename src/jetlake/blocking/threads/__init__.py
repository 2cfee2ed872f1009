"""The event loop in a thread of its own, and calls across threads."""
