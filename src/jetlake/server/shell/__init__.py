"""The asyncio shell around the engine: sockets, TLS, authentication, timers, monitoring, signals."""
