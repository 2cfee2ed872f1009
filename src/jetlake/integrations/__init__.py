"""Jetlake inside other frameworks: one package each, with an extra of its own, imported by who uses it."""
