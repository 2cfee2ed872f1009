"""Monitoring: reports over HTTP and over NATS, metrics."""
