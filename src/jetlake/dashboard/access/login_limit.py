"""How often logins may fail before others have to wait."""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Callable

__all__ = ["ALL_FAILURES_MAX", "PEER_FAILURES_MAX", "PERIOD_S", "LoginLimit"]

PEER_FAILURES_MAX = 5
"""Failed logins from one address within the period; after them it has to wait."""
ALL_FAILURES_MAX = 50
"""The same from all addresses together."""
PERIOD_S = 60.0
PEERS_MAX = 1024
"""How many addresses are remembered; the one that failed longest ago is forgotten."""


class LoginLimit:
    """Counts failed logins by address.

    Args:
        now_s: the time, monotonic.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._peers: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=ALL_FAILURES_MAX)

    def wait_s(self, peer: str) -> float:
        """Return how long an address has to wait until it may try; 0 = not at all."""
        failures = self._peers.get(peer, deque())
        return max(self._left_s(failures, PEER_FAILURES_MAX), self._left_s(self._all, ALL_FAILURES_MAX))

    def _left_s(self, failures: deque[float], most: int) -> float:
        """Return the time until one of so many failures is old enough."""
        return max(0.0, failures[-most] + PERIOD_S - self._now_s()) if len(failures) >= most else 0.0

    def attempt(self, peer: str) -> Callable[[], None]:
        """Count a login as failed, and give what takes that back when it did not."""
        now_s = self._now_s()
        failures = self._peers.setdefault(peer, deque(maxlen=PEER_FAILURES_MAX))
        failures.append(now_s)
        self._peers.move_to_end(peer)
        self._all.append(now_s)
        while len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)

        def take_back() -> None:
            for counted in (failures, self._all):
                if now_s in counted:
                    counted.remove(now_s)

        return take_back
