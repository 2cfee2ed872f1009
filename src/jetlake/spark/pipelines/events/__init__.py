"""What servers announce about consumers: the event stream, health, dead letters."""
