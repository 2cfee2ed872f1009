"""The subscribe workflow of NATS ADR-13 and ADR-15: push and pull subscriptions."""
