"""Message schedules: messages that a stream publishes at a time, at an interval or by a cron expression."""
