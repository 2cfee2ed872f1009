"""What every route shares: checks of requests, answers, events."""
