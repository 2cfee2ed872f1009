"""The server's core without sockets, event loop or clock of its own: routing, streams, consumers; time is passed in."""
