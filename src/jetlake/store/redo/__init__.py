"""The redo log: one file that is synced for many stores at once, and what a start writes to their segments from it."""
