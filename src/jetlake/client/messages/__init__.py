"""Received messages, and what receives them."""
