"""Recovery: a start reads a store's files and compares them with the list of segments."""
