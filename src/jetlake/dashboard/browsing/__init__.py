"""Reads what a server holds, for pages that show it."""
