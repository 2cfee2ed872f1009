"""Requests of source and sink over one blocking connection."""
