"""Backup and restore of streams: archives in nats-server's format, sent and received in chunks."""
