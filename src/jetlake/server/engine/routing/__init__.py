"""Who receives a subject: accounts, subscriptions, the sublist and the cached routes."""
