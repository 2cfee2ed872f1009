"""Leaf connections: the hubs that a server joins, and what crosses to them and back."""
