"""The JetStream API: requests to handlers, direct gets, advisories."""
