"""The connection: one that outlives its TCP connections, with handshake, outbox, pings, requests and subscriptions."""
