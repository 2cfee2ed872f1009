"""Calls of the JetStream API, and the configurations that they carry."""
