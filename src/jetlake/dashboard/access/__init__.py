"""Who uses the dashboard: logins, sessions, and how often somebody may try."""
