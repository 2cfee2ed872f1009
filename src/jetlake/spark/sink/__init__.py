"""The sink: rows as messages, published idempotently, and the ledger of written batches."""
