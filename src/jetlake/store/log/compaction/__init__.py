"""Upkeep of segments that are full: dropping, rewriting and compressing them, in steps."""
