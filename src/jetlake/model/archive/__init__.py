"""Archives of streams in nats-server's formats: the current one is written, the current and the older one are read."""
