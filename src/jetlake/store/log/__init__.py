"""The log of a stream on disk: records in segments, recovery, compaction, durability."""
