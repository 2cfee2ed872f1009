"""The servers that a client knows and the order in which it tries them, as a pure state machine.

One round tries every server once without waiting. Between rounds the client waits, longer after each round that found
nobody, with jitter so that many clients do not come back at the same moment. A handshake alone does not reset the
back-off: a server that takes clients and drops them again would be stormed. A connection that has lasted does.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from msgspec import Struct

from jetlake.client.settings.server_address import ServerAddress, parse_address
from jetlake.errors import InvalidOptionError

__all__ = ["Attempt", "Backoff", "ServerPool"]

_AUTHORIZATION_FAILURES_MAX = 2
_DISCOVERED_MAX = 1024


class Backoff(Struct, frozen=True):
    """How long to wait between rounds, in seconds."""

    first_s: float = 0.1
    """After the first round."""
    factor: float = 2.0
    """Each wait is so many times the one before."""
    max_s: float = 5.0
    """The longest wait."""
    jitter: float = 0.25
    """The share of a wait that is random."""

    def wait_s(self, rounds: int, random: Random) -> float:
        """Return the wait after so many rounds in a row that found nobody (at least one)."""
        wait_s = min(self.max_s, self.first_s * self.factor ** min(rounds - 1, 64))
        return wait_s * (1 - self.jitter * random.random())


class Attempt(Struct, frozen=True):
    """What to do next: wait, then try the server."""

    address: ServerAddress
    wait_s: float


class _Entry:
    __slots__ = ("address", "authorization_failures", "discovered", "failure", "failures")

    def __init__(self, address: ServerAddress, discovered: bool) -> None:
        self.address = address
        self.discovered = discovered
        self.failures = 0
        self.authorization_failures = 0
        self.failure = ""


class ServerPool:
    """Chooses the next server to try.

    Args:
        addresses: the servers that the user named; they stay known for ever unless they run out of attempts.
        attempts_max: failures in a row after which a server is given up; None means never.
        backoff: how long to wait between rounds.
        random: for the order and the jitter.
        shuffle: start with a random server, so that clients spread over a cluster.
    """

    def __init__(
        self,
        addresses: Iterable[ServerAddress],
        *,
        attempts_max: int | None,
        backoff: Backoff,
        random: Random,
        shuffle: bool = True,
    ) -> None:
        self._entries = [_Entry(address, discovered=False) for address in addresses]
        self._random = random
        self._backoff = backoff
        self._attempts_max = attempts_max
        self._shuffle = shuffle
        self._rounds = 0
        self._tried_in_round = 0
        self._given_up: dict[str, str] = {}
        if shuffle:
            random.shuffle(self._entries)

    @property
    def addresses(self) -> list[ServerAddress]:
        """All known servers, in the order in which they will be tried."""
        return [entry.address for entry in self._entries]

    @property
    def failures(self) -> dict[str, str]:
        """What each server said last, by its address; those given up included."""
        told = dict(self._given_up)
        told.update({str(entry.address): entry.failure for entry in self._entries if entry.failure})
        return told

    def replace(self, addresses: Iterable[ServerAddress]) -> None:
        """Know these servers from now on; those that were known before keep their count of failures."""
        known = {entry.address: entry for entry in self._entries}
        entries = [known.get(address) or _Entry(address, discovered=False) for address in addresses]
        for entry in entries:
            entry.discovered = False
        if self._shuffle:
            self._random.shuffle(entries)
        self._entries = entries
        self._tried_in_round = 0
        self._given_up.clear()

    def next_attempt(self) -> Attempt | None:
        """Return the server to try next and how long to wait before; None when all were given up."""
        if not self._entries:
            return None
        wait_s = 0.0
        if self._tried_in_round >= len(self._entries):
            self._tried_in_round = 0
            self._rounds += 1
            wait_s = self._backoff.wait_s(self._rounds, self._random)
        self._tried_in_round += 1
        entry = self._entries.pop(0)
        self._entries.append(entry)
        return Attempt(entry.address, wait_s)

    def failed(self, address: ServerAddress, reason: str, *, authorization: bool = False) -> None:
        """Take note that the server could not be reached, or refused the client."""
        entry = self._entry(address)
        if entry is None:
            return
        entry.failure = reason
        entry.failures += 1
        entry.authorization_failures += authorization
        used_up = self._attempts_max is not None and entry.failures >= self._attempts_max
        if used_up or entry.authorization_failures >= _AUTHORIZATION_FAILURES_MAX:
            self._given_up[str(address)] = reason
            self._entries.remove(entry)
            self._tried_in_round = max(0, self._tried_in_round - 1)

    def connected(self, address: ServerAddress, *, first: bool = False) -> None:
        """Take note that the server accepted the client, for the first time or again."""
        if first:
            self._rounds = self._tried_in_round = 0
        self._given_up.clear()
        for entry in self._entries:
            entry.failure = ""
            if entry.address == address:
                entry.authorization_failures = 0
                entry.failures = 0 if first else entry.failures

    def lost(self, address: ServerAddress, *, lasted: bool) -> None:
        """Take note that the connection to this server broke: the others are tried before it.

        Args:
            address: the server.
            lasted: the connection was up long enough to prove the server sound, so that waits start small again.
        """
        entry = self._entry(address)
        if lasted:
            self._rounds = self._tried_in_round = 0
            if entry is not None:
                entry.failures = 0
        if entry is not None:
            self._entries.remove(entry)
            self._entries.append(entry)

    def discovered(self, urls: Iterable[str], *, tls: bool, websocket: bool = False) -> list[ServerAddress]:
        """Take in what a server says about its cluster; returns the servers that are new.

        A server names the others as its client reaches it: over TLS, over WebSocket, or neither.

        Servers that were learned so and are no longer named are forgotten; those that the user named stay.
        """
        named = []
        for url in urls:
            try:
                address = parse_address(url)
            except InvalidOptionError:
                continue  # A cluster's mistake must not take this client down.
            named.append(ServerAddress(address.host, address.port, tls or address.tls, websocket=websocket))
        places = {(address.host, address.port) for address in named[:_DISCOVERED_MAX]}
        self._entries = [
            entry
            for entry in self._entries
            if not entry.discovered or (entry.address.host, entry.address.port) in places
        ]
        known = {(entry.address.host, entry.address.port) for entry in self._entries}
        fresh = [address for address in named[:_DISCOVERED_MAX] if (address.host, address.port) not in known]
        if self._shuffle:
            self._random.shuffle(fresh)
        # In front of the server in use, which stands at the end.
        self._entries[-1:-1] = [_Entry(address, discovered=True) for address in fresh]
        return fresh

    def _entry(self, address: ServerAddress) -> _Entry | None:
        for entry in self._entries:
            if entry.address == address:
                return entry
        return None
