"""SQL from streams to streams, files or the console."""
