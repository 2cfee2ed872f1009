"""A client that is made to be killed: it works as fast as it can and tells of every promise it got.

    python victim_client.py jetlake|nats-py URL PREFIX

Each line on standard output is one promise: `P sequence payload` for a PubAck, `D sequence payload` for a delivery,
`A sequence` before an acknowledgement is sent, `C sequence` when the server has confirmed it.
"""

import asyncio
import os
import sys

from tests.faults.kill_rounds import Load


class Teller:
    """Stands in for the ledger, on the other side of a pipe; a line is written whole or not at all."""

    has_confirmed = True

    def __init__(self):
        self.attempted = self

    def published(self, sequence, payload):
        self._tell(b"P %d %b" % (sequence, payload))

    def delivered(self, sequence, payload):
        self._tell(b"D %d %b" % (sequence, payload))

    def add(self, sequence):
        self._tell(b"A %d" % sequence)

    def confirm(self, sequence):
        self._tell(b"C %d" % sequence)

    def _tell(self, line):
        os.write(1, line + b"\n")


if __name__ == "__main__":
    client_name, url, prefix = sys.argv[1:]
    asyncio.run(Load(client_name, url, Teller(), prefix.encode()).run(3600, lambda: None))
