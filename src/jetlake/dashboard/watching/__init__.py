"""Samples a server over time, and gives what the pages show of it."""
