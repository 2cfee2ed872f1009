"""Schemas of payloads in a key-value bucket: added, found, and used to validate what is published."""
