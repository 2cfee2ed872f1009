"""One file a group of commands."""
