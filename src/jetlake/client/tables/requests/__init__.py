"""Requests over one blocking connection."""
