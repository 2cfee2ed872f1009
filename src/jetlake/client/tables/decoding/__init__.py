"""Payloads as struct columns."""
