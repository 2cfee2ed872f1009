"""The journal of a consumer on disk."""
