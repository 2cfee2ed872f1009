"""The routing of subjects: accounts, subscriptions, the sublist, cached routes, advisories."""
