"""Where streams and consumers are kept: in memory, or in folders under the store directory."""
