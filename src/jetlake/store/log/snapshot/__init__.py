"""The snapshot of a log's index, from which a start takes it instead of reading the log."""
