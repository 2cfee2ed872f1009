"""JetStream's nouns as values: configurations, infos, API requests and replies, events, ack subjects, and their rules.

Pure: no sockets, no clock, no randomness. `codec` turns all of them to JSON and back; the rules give the server's own
errors, so that a client can reject early what a server would refuse.
"""
