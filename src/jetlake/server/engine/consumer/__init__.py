"""A consumer: its cursor, its deliveries and their events."""
