"""Cron lines with seconds: `second minute hour day-of-month month day-of-week`, in a time zone.

The search for the next time goes field by field as in nats-server, so that both fire at the same moments when clocks
are changed: what falls into the skipped hour does not fire, what falls into the repeated hour fires twice.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta

DESCRIPTORS = {
    "@yearly": "0 0 0 1 1 *",
    "@annually": "0 0 0 1 1 *",
    "@monthly": "0 0 0 1 * *",
    "@weekly": "0 0 0 * * 0",
    "@daily": "0 0 0 * * *",
    "@midnight": "0 0 0 * * *",
    "@hourly": "0 0 * * * *",
}

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_DAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}

# Lowest and highest value of each field, and the names that it knows.
_FIELDS: tuple[tuple[int, int, dict[str, int]], ...] = (
    (0, 59, {}),
    (0, 59, {}),
    (0, 23, {}),
    (1, 31, {}),
    (1, 12, _MONTHS),
    (0, 6, _DAYS),
)

_YEARS_MAX = 5

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_EPOCH_DAY = date(1970, 1, 1).toordinal()


class Cron:
    """A cron line.

    Args:
        fields: the values that each field allows.
        any_day: days of the month, or of the week, are not restricted, so that the other one decides alone.
        offset_at: returns the time zone's offset from UTC at a moment, both in seconds.
    """

    def __init__(self, fields: list[frozenset[int]], *, any_day: bool, offset_at: Callable[[int], int]) -> None:
        self._seconds, self._minutes, self._hours, self._days, self._months, self._weekdays = fields
        self._any_day = any_day
        self.offset_at = offset_at

    def next_after(self, second: int) -> int | None:
        """Return the first time after a second since 1970; None when there is none within five years."""
        time = _LocalTime(second + 1, self.offset_at)
        year_max = time.year + _YEARS_MAX
        while time.year <= year_max:
            if self._advance(time):
                return time.moment
        return None

    def _advance(self, time: _LocalTime) -> bool:
        """Go to the next time that all fields allow; False when a field wrapped around, and all must be looked at."""
        while time.month not in self._months:
            time.next_month()
            if time.month == 1:
                return False
        while not self._is_day(time):
            time.next_day()
            if time.day == 1:
                return False
        while time.hour not in self._hours:
            time.next_hour()
            if time.hour == 0:
                return False
        while time.minute not in self._minutes:
            time.next_minute()
            if time.minute == 0:
                return False
        while time.second not in self._seconds:
            time.next_second()
            if time.second == 0:
                return False
        return True

    def _is_day(self, time: _LocalTime) -> bool:
        by_month = time.day in self._days
        by_week = time.weekday in self._weekdays
        return by_month and by_week if self._any_day else by_month or by_week


class _LocalTime:
    """A moment, and how the clocks of a time zone show it.

    The first step clears the smaller fields; later steps find them cleared.
    """

    def __init__(self, moment: int, offset_at: Callable[[int], int]) -> None:
        self._offset_at = offset_at
        self._is_cleared = False
        self._go_to(moment)

    def _go_to(self, moment: int) -> None:
        self.moment = moment
        shown = _EPOCH + timedelta(seconds=moment + self._offset_at(moment))
        self.year, self.month, self.day = shown.year, shown.month, shown.day
        self.hour, self.minute, self.second = shown.hour, shown.minute, shown.second
        self.weekday = shown.isoweekday() % 7

    def _show(self, year: int, month: int, day: int, hour: int = 0) -> None:
        """Go to the moment at which clocks show a time; one that they skip is taken by the offset before or after."""
        days = date(year, month, 1).toordinal() - _EPOCH_DAY + day - 1
        shown = days * 86_400 + hour * 3_600
        self._go_to(shown - self._offset_at(shown - self._offset_at(shown)))

    def next_month(self) -> None:
        """Go to the beginning of the next month."""
        self._is_cleared = True
        self._show(self.year + self.month // 12, self.month % 12 + 1, 1)

    def next_day(self) -> None:
        """Go to the beginning of the next day."""
        self._is_cleared = True
        following = date(self.year, self.month, self.day) + timedelta(days=1)
        self._show(following.year, following.month, following.day)
        if self.hour:
            # Midnight was skipped, or stands in the hour before.
            self._go_to(self.moment + (24 - self.hour if self.hour > 12 else -self.hour) * 3_600)

    def next_hour(self) -> None:
        """Go to the beginning of the next hour."""
        if not self._is_cleared:
            self._is_cleared = True
            self._show(self.year, self.month, self.day, self.hour)
        self._go_to(self.moment + 3_600)

    def next_minute(self) -> None:
        """Go to the beginning of the next minute."""
        self._is_cleared = True
        self._go_to(self.moment - self.moment % 60 + 60)

    def next_second(self) -> None:
        """Go to the next second."""
        self._is_cleared = True
        self._go_to(self.moment + 1)


def parse_cron(text: str, offset_at: Callable[[int], int]) -> Cron | None:
    """Parse a cron line or a descriptor such as `@daily`; None when it is malformed."""
    words = DESCRIPTORS.get(text, text).split()
    if len(words) != len(_FIELDS):
        return None
    fields = []
    stars = []
    for word, (lowest, highest, names) in zip(words, _FIELDS, strict=True):
        values: set[int] = set()
        is_star = False
        for part in filter(None, word.split(",")):
            allowed = _parse_part(part, lowest, highest, names)
            if allowed is None:
                return None
            values.update(allowed)
            is_star = is_star or (part[:1] in ("*", "?") and allowed.step == 1)
        if not values:  # Only commas: no time would ever be found, second by second.
            return None
        fields.append(frozenset(values))
        stars.append(is_star)
    return Cron(fields, any_day=stars[3] or stars[5], offset_at=offset_at)


def _parse_part(text: str, lowest: int, highest: int, names: dict[str, int]) -> range | None:
    """Parse `*`, `5`, `1-5`, each with `/step` or without; `5/step` runs to the highest value."""
    span, slash, step_text = text.partition("/")
    first_text, dash, last_text = span.partition("-")
    if first_text in ("*", "?"):
        first, last = lowest, highest
    else:
        first = _parse_value(first_text, names)
        last = _parse_value(last_text, names) if dash else highest if slash else first
    step = _parse_value(step_text, {}) if slash else 1
    if step < 1 or first < lowest or last > highest or first > last:
        return None
    return range(first, last + 1, step)


def _parse_value(text: str, names: dict[str, int]) -> int:
    """Return the value of a number or a name; -1 for anything else."""
    if text.isascii() and text.isdigit() and len(text) <= 9:
        return int(text)
    return names.get(text.lower(), -1)
