"""A stream: the publish path, limits, message ids and lifetimes, retention."""
