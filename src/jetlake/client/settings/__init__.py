"""Settings of a connection: options, addresses, credentials, checked values."""
