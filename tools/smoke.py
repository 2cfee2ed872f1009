"""Stores a message and reads it again after a restart: what an installed package has to do at least."""

import tempfile

from jetlake import blocking

with tempfile.TemporaryDirectory() as folder:
    with blocking.Server(folder) as server, blocking.connect(server.url) as client:
        client.jetstream().create_stream("S", subjects=["s.>"])
        client.jetstream().publish("s.a", b"kept")
    with blocking.Server(folder) as server, blocking.connect(server.url) as client:
        assert client.jetstream().stream("S").get(1).payload == b"kept"
