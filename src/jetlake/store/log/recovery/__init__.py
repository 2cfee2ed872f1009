"""What a start finds in a store's files: read, compared with what should be there, and told apart."""
