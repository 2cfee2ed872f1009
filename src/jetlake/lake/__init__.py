"""Tables of a lake without Spark: Iceberg through pyiceberg, and what other programs read of it."""
