"""What clients do to a server whose power is cut, and how each finds out afterwards whether a promise was broken.

A scenario has one client that acts and notes each answer. After a cut it looks at what a new server has, and returns
the broken promises in words.
"""

import contextlib
from itertools import count

from jetlake.errors import MessageNotFoundError

SIZES = (*(0, 20, 200) * 10, *(1000, 5000) * 3, 30_000)


class Scenario:
    """A client with a task of its own.

    Args:
        name: of its stream or bucket.
        random: decides what it does.
        position: returns the position of the disk's log.
    """

    def __init__(self, name, random, position):
        self.name = name
        self.random = random
        self.position = position
        self._numbers = count(1)

    async def create(self, jetstream):
        """Make what the scenario works with, before the first cut."""

    async def act(self, jetstream):
        """Ask for something, and note the answer."""
        raise NotImplementedError

    async def look(self, jetstream):
        """Find out how things are after an act without an answer."""

    async def check(self, jetstream, cut):
        """Return the promises that the cut broke."""
        raise NotImplementedError

    def promises(self):
        """Return all acts."""
        raise NotImplementedError

    def payload(self):
        """A content unlike all others."""
        return b"%s %d " % (self.name.encode(), next(self._numbers)) + b"." * self.random.choice(SIZES)


async def stored(jetstream, name):
    """Return all messages of a stream, sequence: (subject, payload), and its state."""
    stream = await jetstream.stream(name)
    state = (await stream.info()).state
    found = {}
    following = state.first_seq
    if not stream.config.allow_direct:
        # One by one: where mirrors answer direct gets too, these may not be up to date.
        for sequence in range(max(state.first_seq, 1), state.last_seq + 1):
            with contextlib.suppress(MessageNotFoundError):
                message = await stream.get(sequence)
                found[sequence] = (message.subject, message.data)
        return found, state
    while state.messages and following <= state.last_seq:
        before = following
        async for message in stream.get_batch(500, sequence=following, max_bytes=4_000_000):
            found[message.sequence] = (message.subject, message.data)
            following = message.sequence + 1
        if following == before:
            break
    return found, state


def lost_sequences(state):
    """The sequences that the server calls lost."""
    return set(state.lost.msgs or ()) if state.lost is not None else set()
