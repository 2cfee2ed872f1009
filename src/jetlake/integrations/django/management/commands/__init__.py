"""Management commands: `jetlake_worker`."""
