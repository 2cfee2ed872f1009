"""How the server is configured: options as values, the NATS configuration syntax, and the command's flags."""
