"""Publishing to streams: one message with its acknowledgement, or many through a bounded window."""
