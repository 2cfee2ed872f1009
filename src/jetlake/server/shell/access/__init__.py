"""Access control: how clients authenticate, TLS, and what a user may publish and receive."""
