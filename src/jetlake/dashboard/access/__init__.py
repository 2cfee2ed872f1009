"""Who uses the dashboard: logins, sessions, and the limit on failed logins."""
