"""Batches: atomic ones are staged until their commit, fast ones are stored as they arrive, with flow control."""
