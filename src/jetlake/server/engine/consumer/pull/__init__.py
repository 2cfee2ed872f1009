"""Pull delivery: requests, the queue of waiting ones, statuses, priority groups."""
