"""The `jetlake` command."""
