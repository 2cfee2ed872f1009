"""Pure rules of a read: offsets, admission, ranges, losses, tasks' partitions."""
