"""Formats of payloads: their schemas, what fits them, and which schema may follow another; needs no connection."""
