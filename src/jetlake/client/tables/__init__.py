"""Streams as tables: ranges of messages read in bulk into Arrow, without an object per message."""
