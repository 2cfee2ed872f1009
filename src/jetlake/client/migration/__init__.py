"""Moving a stream with its consumers to another server or cluster."""
