"""Folders and tables of files: sinks, partitions, compaction, the lock."""
