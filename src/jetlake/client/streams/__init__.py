"""Handles of streams and of the messages they store."""
