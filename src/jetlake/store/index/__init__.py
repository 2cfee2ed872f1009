"""The index of a stream's messages: by sequence and by subject, and its snapshot."""
