"""WebSocket: the listener, the upgrade, and the frames below a client's connection."""
