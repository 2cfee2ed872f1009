"""What a connection is told: options, addresses, credentials, checked values."""
