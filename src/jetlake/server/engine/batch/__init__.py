"""Batches: atomic ones are staged until their commit, fast ones are stored as they come, with flow control."""
