"""One client's connection: handshake, reader, writer, permissions, TLS."""
