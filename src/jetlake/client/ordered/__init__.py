"""Ordered reads: every message once and in order, through consumers that are recreated after a gap."""
