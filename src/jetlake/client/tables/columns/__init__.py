"""Read buffers as Arrow columns, without an object per message."""
