"""Unique names: 22 letters and digits, and the inbox subjects made of them.

A name is twelve random characters that stay, and ten that count up in steps of random width; so names are cheap, cannot
be guessed, and never repeat within a process. A forked process gets a new prefix for `next_nuid`.
"""

from __future__ import annotations

import os
from random import Random, SystemRandom
from threading import Lock

__all__ = ["Nuid", "new_inbox", "next_nuid"]

_DIGITS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
_BASE = len(_DIGITS)
_PAIRS = [high + low for high in _DIGITS for low in _DIGITS]
_PAIR_COUNT = len(_PAIRS)
_PREFIX_LENGTH = 12
_HIGH_LENGTH = 8
_SEQUENCE_LIMIT = _BASE ** (_HIGH_LENGTH + 2)
_STEP_MIN = 33
_STEP_MAX = 333


class Nuid:
    """A source of unique names; `next` may be called from any thread, and `renew` must be in a forked process.

    Args:
        random: where randomness comes from; the operating system's when None, a seeded one in tests.
    """

    def __init__(self, random: Random | None = None) -> None:
        self._random = random if random is not None else SystemRandom()
        self._lock = Lock()
        self.renew()

    def renew(self) -> None:
        """Choose a new random prefix and restart the count."""
        choice, randrange = self._random.choice, self._random.randrange
        self._prefix = "".join([choice(_DIGITS) for _ in range(_PREFIX_LENGTH)])
        self._sequence = randrange(_SEQUENCE_LIMIT)
        self._step = randrange(_STEP_MIN, _STEP_MAX)
        self._high = -1
        self._lead = ""

    def next(self) -> str:
        """Return the next name."""
        with self._lock:
            self._sequence += self._step
            if self._sequence >= _SEQUENCE_LIMIT:
                self.renew()
            high, low = divmod(self._sequence, _PAIR_COUNT)
            if high != self._high:
                self._high = high
                self._lead = self._prefix + _spell(high)
            return self._lead + _PAIRS[low]

    def _after_fork(self) -> None:
        # The parent may have held the lock at the moment of the fork, and no thread here would ever release it.
        self._lock = Lock()
        self.renew()


def _spell(number: int) -> str:
    digits = []
    for _ in range(_HIGH_LENGTH):
        number, digit = divmod(number, _BASE)
        digits.append(_DIGITS[digit])
    return "".join(reversed(digits))


_shared = Nuid()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_shared._after_fork)

next_nuid = _shared.next
"""The next name of this process."""


def new_inbox(prefix: str = "_INBOX") -> str:
    """Return a unique subject to receive replies on."""
    return f"{prefix}.{next_nuid()}"
