"""Which server a client tries next, and the reconnect back-off: a pure state machine without clock and sockets.

One round tries every server once without waiting. Between rounds the client waits, longer after each failed round,
with jitter so that many clients do not return at the same moment. A handshake alone does not reset the back-off: a
server that accepts clients and drops them again would be stormed. A connection that has lasted does.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from random import Random

from msgspec import Struct

from jetlake.client.settings.options import Backoff, ChooseServer
from jetlake.client.settings.server_address import ServerAddress, parse_address
from jetlake.errors import InvalidOptionError

logger = logging.getLogger("jetlake.client")

_AUTHORIZATION_FAILURES_MAX = 2
_DISCOVERED_MAX = 1024


class Attempt(Struct, frozen=True):
    """The next attempt: wait, then try the server."""

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
        addresses: the servers that the user named; they stay unless they run out of attempts.
        attempts_max: failures in a row after which a server is given up; None means never.
        backoff: how long to wait between rounds.
        random: for the order and the jitter.
        shuffle: start with a random server, so that clients spread over a cluster.
        choose: gets the addresses in the order in which they would be tried, and returns the one to try next; None
            leaves the order. What it raises, and an address that is not among them, is logged and leaves the order too.
    """

    def __init__(
        self,
        addresses: Iterable[ServerAddress],
        *,
        attempts_max: int | None,
        backoff: Backoff,
        random: Random,
        shuffle: bool = True,
        choose: ChooseServer | None = None,
    ) -> None:
        self._entries = [_Entry(address, discovered=False) for address in addresses]
        self._random = random
        self._backoff = backoff
        self._attempts_max = attempts_max
        self._shuffle = shuffle
        self._choose = choose
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
        """The last failure of each server, by its address, including servers that were given up."""
        failures = dict(self._given_up)
        failures.update({str(entry.address): entry.failure for entry in self._entries if entry.failure})
        return failures

    def replace(self, addresses: Iterable[ServerAddress]) -> None:
        """Replace the servers; a server that was known before keeps its count of failures."""
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
            wait_s = backoff_s(self._backoff, self._rounds, self._random)
        self._tried_in_round += 1
        entry = self._chosen() or self._entries[0]
        self._entries.remove(entry)
        self._entries.append(entry)
        return Attempt(entry.address, wait_s)

    def _chosen(self) -> _Entry | None:
        if self._choose is None:
            return None
        by_name = {str(entry.address): entry for entry in self._entries}
        try:
            name = self._choose(list(by_name))
        except Exception:
            logger.exception("choose_server failed")
            return None
        if name is not None and name not in by_name:
            logger.warning("choose_server returned %r, which is none of %s", name, ", ".join(by_name))
        return by_name.get(name) if name is not None else None

    def failed(self, address: ServerAddress, reason: str, *, authorization: bool = False) -> None:
        """Record that the server could not be reached, or refused the client."""
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
        """Record that the server accepted the client, for the first time or again."""
        if first:
            self._rounds = self._tried_in_round = 0
        self._given_up.clear()
        for entry in self._entries:
            entry.failure = ""
            if entry.address == address:
                entry.authorization_failures = 0
                entry.failures = 0 if first else entry.failures

    def lost(self, address: ServerAddress, *, lasted: bool) -> None:
        """Record that the connection to this server broke: the others are tried before it.

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
        """Adopt the servers that an INFO lists for the cluster; returns the new ones.

        A server lists the others as its client reaches it: over TLS, over WebSocket, or neither. Discovered servers
        that are no longer listed are forgotten; servers that the user named stay.
        """
        named = []
        for url in urls:
            try:
                address = parse_address(url)
            except InvalidOptionError:
                continue  # A mistake of the cluster must not take this client down.
            named.append(ServerAddress(address.host, address.port, tls or address.tls, websocket=websocket))
        listed = {(address.host, address.port) for address in named[:_DISCOVERED_MAX]}
        self._entries = [
            entry
            for entry in self._entries
            if not entry.discovered or (entry.address.host, entry.address.port) in listed
        ]
        known = {(entry.address.host, entry.address.port) for entry in self._entries}
        fresh = [address for address in named[:_DISCOVERED_MAX] if (address.host, address.port) not in known]
        if self._shuffle:
            self._random.shuffle(fresh)
        # Before the server in use, which is the last one.
        self._entries[-1:-1] = [_Entry(address, discovered=True) for address in fresh]
        return fresh

    def _entry(self, address: ServerAddress) -> _Entry | None:
        for entry in self._entries:
            if entry.address == address:
                return entry
        return None


def backoff_s(backoff: Backoff, rounds: int, random: Random) -> float:
    """Return the wait after this many failed rounds in a row, at least one."""
    wait_s = min(backoff.max_s, backoff.first_s * backoff.factor ** min(rounds - 1, 64))
    return wait_s * (1 - backoff.jitter * random.random())
