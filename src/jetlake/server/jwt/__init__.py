"""Operators: tokens of accounts and users, verified, as accounts and logins of the server; loaded where configured."""
