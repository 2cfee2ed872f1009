"""Message ids: which a stream remembers, and how the files of a stream keep them."""
