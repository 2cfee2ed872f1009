"""Values typed on the command line: durations, sizes, start positions, headers, percentages, configuration files."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec
from msgspec import Struct, ValidationError, convert, structs, to_builtins

from jetlake.cli import beginning
from jetlake.cli.keyboard import read_standard_input
from jetlake.errors import ConfigError, DecodeError
from jetlake.model.encoding.codec import decode_strict
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND, parse_duration
from jetlake.model.encoding.times import parse_time, wire_time

_SIZE = re.compile(r"(?i)^\s*([0-9]{1,19})(?:\.([0-9]{1,19}))?\s*([kmgt]?)(i?b?)\s*$")
_DAYS = re.compile(r"^([0-9]{1,19})([dwy])(.*)$")
_DAYS_PER = {"d": 1, "w": 7, "y": 365}
_INT64_MAX = 2**63 - 1


class Duration(click.ParamType[int]):
    """A length of time, in nanoseconds: `30s`, `2m`, `1h30m`, `7d`; -1 and 0 mean none."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value in ("0", "-1"):
            return 0
        days_ns, rest = 0, value
        while match := _DAYS.match(rest):
            days_ns += int(match[1]) * _DAYS_PER[match[2]] * 86_400_000_000_000
            rest = match[3]
        try:
            duration_ns = days_ns + (parse_duration(rest) if rest or not value else 0)
        except (ConfigError, ValueError):
            self.fail(f"{value!r} is not a duration; use a value such as 30s, 2m, 1h30m or 7d", param, ctx)
        if duration_ns > _INT64_MAX:
            self.fail(f"{value!r} is too long; the maximum is 292 years", param, ctx)
        return duration_ns


class Wait(click.ParamType[float]):
    """A length of time to wait, in seconds: `1s`, `500ms`; a number without a unit is seconds."""

    name = "duration"

    def __init__(self, *, zero: bool = False) -> None:
        self._zero = zero

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        if isinstance(value, float):
            return value
        text = str(value)
        try:
            waited_s = float(text)
        except ValueError:
            waited_s = DURATION.convert(text, param, ctx) / NANOSECONDS_PER_SECOND
        if not (waited_s > 0 or (self._zero and waited_s == 0)) or waited_s == float("inf"):
            self.fail(f"{value!r} is not a duration above zero; use a value such as 500ms or 5s", param, ctx)
        return waited_s


class Size(click.ParamType[int]):
    """A number of bytes: `1048576`, `1MB` or `1MiB` (of 1024), `512K` (of 1000, as the server reads it); -1 none."""

    name = "size"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        if value == "-1":
            return -1
        match = _SIZE.match(value)
        if match is None:
            self.fail(f"{value!r} is not a size; use a value such as 1048576, 512KB or 1GB", param, ctx)
        whole, fraction = match[1], match[2] or "0"
        unit = (1024 if match[4] else 1000) ** " kmgt".index(match[3].lower() or " ")
        number: int = int(whole) * unit + int(fraction) * unit // 10 ** len(fraction)
        if number > _INT64_MAX:
            self.fail(f"{value!r} is too large; the maximum is 2^63 - 1 bytes", param, ctx)
        return number


class Start:
    """Where a consumer begins: the fields of its configuration."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields


class Deliver(click.ParamType[Start]):
    """A starting point: `all`, `last`, `new`, `subject` (last of each), a sequence, a time, or how long ago."""

    name = "all|new|last|subject|SEQUENCE|TIME|DURATION"
    _WORDS = {
        "all": "all",
        "new": "new",
        "last": "last",
        "subject": "last_per_subject",
        "last_per_subject": "last_per_subject",
    }

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Start:
        if isinstance(value, Start):
            return value
        if value in self._WORDS:
            return Start(deliver_policy=self._WORDS[value])
        if value.isascii() and value.isdigit():
            return Start(deliver_policy="by_start_sequence", opt_start_seq=int(value))
        try:
            return Start(deliver_policy="by_start_time", opt_start_time=wire_time(parse_time(value)))
        except ConfigError:
            pass
        try:
            ago_ns = Duration().convert(value, None, None)
        except click.ClickException:
            self.fail(
                f"{value!r} is not a start position; use all, new, last, subject, a sequence such as 10, "
                "a time such as 2026-01-31T12:00:00Z, or a duration ago such as 2m",
                param,
                ctx,
            )
        return Start(deliver_policy="by_start_time", opt_start_time=wire_time(beginning.typed_at_ns() - ago_ns))


class Time(click.ParamType[int]):
    """A point in time, in nanoseconds since 1970: `2026-01-31T12:00:00Z`, `2026-01-31`, or how long ago: `2h`."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        if isinstance(value, int):
            return value
        for text in (value, f"{value}T00:00:00Z"):
            try:
                return parse_time(text)
            except ConfigError:
                pass
        try:
            ago_ns = Duration().convert(value, None, None)
        except click.ClickException:
            examples = "2026-01-31T12:00:00Z, 2026-01-31 or 2h (ago)"
            self.fail(f"{value!r} is not a time; use a value such as {examples}", param, ctx)
        return beginning.typed_at_ns() - ago_ns


class Pair(click.ParamType[tuple[str, str]]):
    """`KEY=VALUE`."""

    name = "KEY=VALUE"
    separator = "="

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        key, found, text = value.partition(self.separator)
        if not found or not key.strip():
            self.fail(f"{value!r} is not of the form {self.name}", param, ctx)
        return key.strip(), text.strip()


class Header(Pair):
    """`KEY:VALUE`."""

    name = "KEY:VALUE"
    separator = ":"


class Sample(click.ParamType[str]):
    """A percentage of acks: `80` or `80%`."""

    name = "percent"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        digits = str(value).removesuffix("%")
        if not (digits.isascii() and digits.isdigit() and int(digits) <= 100):
            self.fail(f"{value!r} is not a percentage from 0 to 100", param, ctx)
        return digits


DURATION, SIZE, DELIVER, PAIR, HEADER, SAMPLE = Duration(), Size(), Deliver(), Pair(), Header(), Sample()
TIME, WAIT = Time(), Wait()


ConfigT = TypeVar("ConfigT", bound=Struct)


def edited_config(config: ConfigT) -> ConfigT:
    """Let the user edit a configuration as JSON in the editor of EDITOR or VISUAL.

    Raises:
        ConfigError: no editor, no change, or no such configuration.
    """
    if not (os.environ.get("EDITOR") or os.environ.get("VISUAL")):
        raise ConfigError("set EDITOR to the editor to use; for example: EDITOR=vi")
    typed = click.edit(msgspec.json.format(msgspec.json.encode(config), indent=2).decode(), extension=".json")
    if typed is None:
        raise ConfigError("the configuration was not changed")
    try:
        return decode_strict(type(config), typed.encode())
    except DecodeError as error:
        raise ConfigError(f"{error}{_suggestion(str(error), type(config))}") from None


def save_config(config: Struct, file: str) -> None:
    """Write a configuration as JSON to a file; - prints it."""
    text = msgspec.json.format(msgspec.json.encode(config), indent=2)
    click.echo(text) if file == "-" else Path(file).write_bytes(text + b"\n")


_UNKNOWN = re.compile(r'unknown field "(.*)"')


def read_config(file: str, kind: type[ConfigT]) -> ConfigT:
    """Read a configuration from a JSON file, or from standard input for `-`.

    Raises:
        ConfigError: the file can't be read, or is not such a configuration.
    """
    try:
        return decode_strict(kind, read_standard_input() if file == "-" else Path(file).read_bytes())
    except OSError as error:
        raise ConfigError(f"{file}: {error.strerror}") from None
    except DecodeError as error:
        raise ConfigError(f"{file}: {error}{_suggestion(str(error), kind)}") from None


def _suggestion(reason: str, kind: type[Struct]) -> str:
    unknown = _UNKNOWN.search(reason)
    names = [field.encode_name for field in structs.fields(kind)]
    near = difflib.get_close_matches(unknown[1], names, 1) if unknown else []
    return f"; did you mean {near[0]!r}?" if near else ""


def with_fields(config: ConfigT, fields: dict[str, Any]) -> ConfigT:
    """Return the configuration with these fields in the place of its own.

    Raises:
        ConfigError: a field can't hold its value.
    """
    try:
        return convert({**to_builtins(config), **fields}, type(config))
    except ValidationError as error:
        raise ConfigError(f"{type(config).__name__}: {error}") from None
