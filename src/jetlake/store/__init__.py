"""Where messages live: the contract of a stream's store, one in memory, one on disk, and the consumers' journals."""
