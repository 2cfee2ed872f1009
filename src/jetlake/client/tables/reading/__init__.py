"""Ranges of messages, read to their end as columns and rows."""
