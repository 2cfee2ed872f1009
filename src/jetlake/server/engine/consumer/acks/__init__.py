"""Acknowledgements: the ack tracker with its parts, and the handler of every kind of ack."""
