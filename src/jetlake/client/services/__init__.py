"""Services on NATS: endpoints that answer requests and can be found, as NATS ADR-32 describes them."""
