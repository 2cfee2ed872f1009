"""When replayed messages are due: at once, at a rate, or as far apart as they were."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TypeVar

from jetlake.errors import ConfigError

__all__ = ["Pace", "Schedule", "Slot", "slots"]

T = TypeVar("T")

_SLOT_S = 0.02
_SLOT_ROWS_MAX = 4096


@dataclass(frozen=True)
class Pace:
    """How fast to replay; neither field set means as fast as the server takes it.

    Attributes:
        rate: messages a second.
        speed: how many times faster than it was; 1 is the original timing.
    """

    rate: float = 0.0
    speed: float = 0.0

    def __post_init__(self) -> None:
        if self.rate < 0 or self.speed < 0:
            raise ConfigError("a rate and a speed are above zero")
        if self.rate and self.speed:
            raise ConfigError("a rate and the original timing exclude each other: give one of them")

    @property
    def is_instant(self) -> bool:
        """Whether nothing waits."""
        return not (self.rate or self.speed)

    def due_s(self, row: int, time_s: float, first_time_s: float) -> float:
        """Seconds after the beginning at which a message is due.

        Args:
            row: its number, from 0.
            time_s: when it was stored.
            first_time_s: when the first message was stored.
        """
        if self.rate:
            return row / self.rate
        if self.speed:
            return max(time_s - first_time_s, 0.0) / self.speed
        return 0.0


class Schedule:
    """When messages go out: the first at once, every other one no earlier behind it than the pace says.

    A message that was held up moves what is behind it back by as much. Sending it after the others as planned would
    be a burst, which is what a pace is there to prevent.

    Attributes:
        began_s: wall time that the messages' own times count from; None before the first message.
    """

    def __init__(self, began_s: float | None = None) -> None:
        self.began_s = began_s

    def send_at_s(self, due_s: float, now_s: float) -> float:
        """Wall time at which a message goes out that is due so many seconds after the beginning."""
        if self.began_s is None:
            self.began_s = now_s - due_s
        self.began_s = max(self.began_s, now_s - due_s)
        return self.began_s + due_s


@dataclass(frozen=True)
class Slot:
    """Some messages that go out together, and when."""

    due_s: float
    rows: tuple[int, ...]


def slots(due_s: Iterable[float]) -> Iterator[Slot]:
    """Cut messages, given by the times at which they are due, into slots of a fiftieth of a second.

    A message never goes out before it is due, and no more than a slot later.
    """
    rows: list[int] = []
    ends_s = 0.0
    latest_s = 0.0
    for row, due in enumerate(due_s):
        if rows and (due > ends_s or len(rows) >= _SLOT_ROWS_MAX):
            yield Slot(latest_s, tuple(rows))
            rows = []
        if not rows:
            ends_s = due + _SLOT_S
            latest_s = due
        latest_s = max(latest_s, due)
        rows.append(row)
    if rows:
        yield Slot(latest_s, tuple(rows))
