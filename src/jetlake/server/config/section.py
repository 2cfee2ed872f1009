"""A section: one map of a configuration, read key by key with the type that each must have."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import TypeVar

from jetlake.errors import ConfigError
from jetlake.model.encoding.durations import parse_duration, seconds
from jetlake.server.config.conf import Value

__all__ = ["Findings", "Section"]

T = TypeVar("T")


class Findings:
    """The warnings from reading a configuration.

    Attributes:
        notices: keys that are understood and do nothing here.
        doubts: values in a form that has to be corrected some day; a test of the configuration fails with them.
    """

    def __init__(self) -> None:
        self.notices: list[str] = []
        self.doubts: list[str] = []


class Section:
    """A map of the configuration; keys are found in any case, each under several names.

    Every getter takes the key's names and gives the default when there is no such key.
    """

    def __init__(self, value: Value, findings: Findings) -> None:
        if not isinstance(value.data, dict):
            raise ConfigError(f"{value.place}: expected a map, got {_kind(value)}")
        self.value = value
        self.findings = findings
        self._values = {key.lower(): (key, entry) for key, entry in value.data.items()}
        self._used: set[str] = set()

    def find(self, *names: str) -> Value | None:
        """Find the value of the first of these keys that is present, and mark all of them as known."""
        self._used.update(names)
        for name in names:
            if name in self._values:
                return self._values[name][1]
        return None

    def has(self, *names: str) -> bool:
        """Return whether one of these keys is present."""
        return any(name in self._values for name in names)

    def items(self) -> Iterator[tuple[str, Value]]:
        """List all keys as written, with their values, and mark them as known."""
        for name, (key, value) in self._values.items():
            self._used.add(name)
            yield key, value

    def string(self, *names: str, default: str = "") -> str:
        value = self.find(*names)
        return default if value is None else self._typed(value, names[0], str, "a string")

    def boolean(self, *names: str, default: bool = False) -> bool:
        value = self.find(*names)
        return default if value is None else self._typed(value, names[0], bool, "true or false")

    def integer(self, *names: str, default: int) -> int:
        value = self.find(*names)
        return default if value is None else self._typed(value, names[0], int, "an integer")

    def _typed(self, value: Value, name: str, kind: type[T], description: str) -> T:
        if type(value.data) is not kind:
            raise self.wrong(value, name, description)
        return value.data

    def size(self, *names: str, default: int) -> int:
        """Bytes: an integer, or text with a suffix of powers of 1024 (`"10G"`)."""
        value = self.find(*names)
        if value is None:
            return default
        if isinstance(value.data, str):
            found = re.fullmatch(r"(-?\d+)([KMGT]?)", value.data.strip())
            if found is None:
                raise self.wrong(value, names[0], 'a size such as 10MB or "10M"')
            return int(found[1]) * int(1024 ** " KMGT".index(found[2] or " "))
        return self._typed(value, names[0], int, "a size in bytes")

    def duration(self, *names: str, default: float) -> float:
        """Seconds: text with units; a bare number counts as seconds, with a doubt."""
        value = self.find(*names)
        if value is None:
            return default
        if isinstance(value.data, str):
            try:
                return seconds(parse_duration(value.data))
            except ConfigError as error:
                raise ConfigError(f"{value.place}: error parsing {names[0]}: {error}") from None
        if isinstance(value.data, int) and not isinstance(value.data, bool):
            self.findings.doubts.append(
                f'{value.place}: invalid use of field "{names[0]}": {names[0]} should be converted to a duration'
            )
            return float(value.data)
        raise self.wrong(value, names[0], 'a duration such as "2m"')

    def seconds(self, *names: str, default: float) -> float:
        """Seconds where a bare number is the rule, as in `timeout: 1.5`; text with units is fine too."""
        value = self.find(*names)
        if value is None:
            return default
        if isinstance(value.data, int | float) and not isinstance(value.data, bool):
            return float(value.data)
        return self.duration(*names, default=default)

    def percent(self, *names: str, default: int) -> int:
        """Return how many of a hundred, 1 to 100: an integer, or text with or without its sign (`"10%"`)."""
        value = self.find(*names)
        if value is None:
            return default
        text = str(value.data) if type(value.data) in (int, str) else ""
        found = re.fullmatch(r"(\d{1,3})%?", text.strip(), re.ASCII)
        if found is None or not 1 <= int(found[1]) <= 100:
            raise self.wrong(value, names[0], "1% to 100%")
        return int(found[1])

    def strings(self, *names: str) -> tuple[str, ...] | None:
        """Return a list of strings; a single one counts as a list."""
        value = self.find(*names)
        if value is None:
            return None
        if isinstance(value.data, str):
            return (value.data,)
        if not isinstance(value.data, list):
            raise self.wrong(value, names[0], "a string or a list of strings")
        texts = []
        for entry in value.data:
            if not isinstance(entry.data, str):
                raise ConfigError(f"{entry.place}: expected a string in {names[0]}, got {_kind(entry)}")
            texts.append(entry.data)
        return tuple(texts)

    def section(self, *names: str) -> Section | None:
        """Return a map within this one."""
        value = self.find(*names)
        return None if value is None else Section(value, self.findings)

    def address(self, *names: str) -> tuple[str, int] | None:
        """Host and port: `4222` or `"host:4222"`; the host is empty when only the port was given."""
        value = self.find(*names)
        if value is None:
            return None
        if isinstance(value.data, int) and not isinstance(value.data, bool):
            return "", value.data
        if not isinstance(value.data, str):
            raise self.wrong(value, names[0], "a port or host:port")
        host, colon, port = value.data.rpartition(":")
        if not colon or not re.fullmatch(r"-?\d+", port):
            raise ConfigError(f'{value.place}: could not parse address string "{value.data}"')
        return host.strip("[]"), int(port)

    def ignore(self, what: str, *names: str) -> None:
        """Mark these keys as known, and warn once that they have no effect."""
        for name in names:
            value = self.find(name)
            if value is not None:
                self.findings.notices.append(f"{value.place}: {name} is ignored: {what}")

    def refuse(self, why: str, *names: str) -> None:
        """Refuse these keys: a server without what they ask for must not start."""
        for name in names:
            value = self.find(name)
            if value is not None:
                raise ConfigError(f"{value.place}: {name} is not supported: {why}")

    def finish(self, on_unknown: Callable[[str, Value], None] | None = None) -> None:
        """Raise for an unknown key, unless it is used as a variable."""
        for name, (key, value) in self._values.items():
            if name not in self._used and not value.is_variable:
                if on_unknown is None:
                    raise ConfigError(f'{value.place}: unknown field "{key}"{self._suggestion(name)}')
                on_unknown(key, value)

    def _suggestion(self, name: str) -> str:
        """Name the known key that an unknown one looks like."""
        import difflib

        near = difflib.get_close_matches(name, self._used, 1)
        return f'; did you mean "{near[0]}"?' if near else ""

    @staticmethod
    def wrong(value: Value, name: str, expected: str) -> ConfigError:
        """Make the error for a value of the wrong type."""
        return ConfigError(f"{value.place}: {name} must be {expected}, not {_kind(value)}")


def _kind(value: Value) -> str:
    data = value.data
    if isinstance(data, bool):
        return "a boolean"
    if isinstance(data, str):
        return "a string"
    if isinstance(data, int):
        return "an integer"
    if isinstance(data, float):
        return "a float"
    return "a list" if isinstance(data, list) else "a map"
