"""A change that was prepared and not run yet: what changes, and the `jetlake` command that does the same."""

from __future__ import annotations

import shlex
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from jetlake.errors import InvalidOptionError
from jetlake.model.config_text import DURATIONS, config_text, duration_text
from jetlake.model.encoding.durations import nanoseconds


@dataclass(frozen=True)
class Done:
    """The outcome in a sentence, and a resulting file."""

    text: str
    file: Path | None = None
    """To be downloaded once; it is removed afterwards."""


@dataclass(frozen=True)
class Prepared:
    """What a person confirms. What runs is this very value: nothing is asked or computed again in between."""

    title: str
    """What is done, as a heading."""
    command: str
    """The command that does the same."""
    run: Callable[[], Awaitable[Done]]
    """Runs the change."""
    changes: list[tuple[str, str, str]] = field(default_factory=list)
    """What changes: name, before, after."""
    warning: str = ""
    """What can't be undone."""
    file: str = ""
    """What the command reads from a file, when it does."""

    def shown(self, change_id: str) -> dict[str, Any]:
        return {
            "id": change_id,
            "title": self.title,
            "command": self.command,
            "changes": self.changes,
            "warning": self.warning,
            "file": self.file,
        }


ArgumentsT = TypeVar("ArgumentsT")


def arguments(kind: type[ArgumentsT], given: Mapping[str, Any]) -> ArgumentsT:
    """Return the arguments of a change, checked.

    Raises:
        InvalidOptionError: one that is missing, unknown, or of another type.
    """
    try:
        return msgspec.convert(given, kind)
    except msgspec.ValidationError as error:
        raise InvalidOptionError(str(error)) from None


def differences(before: msgspec.Struct | None, after: msgspec.Struct) -> list[tuple[str, str, str]]:
    """Return the fields of a configuration that change."""
    old = {} if before is None else msgspec.to_builtins(before)
    new = msgspec.to_builtins(after)
    return [
        (name, config_text(name, old.get(name)), config_text(name, new.get(name)))
        for name in sorted(old.keys() | new.keys())
        if old.get(name) != new.get(name)
    ]


# Option of a configuration -> flag of the command. What is not here goes into a file.
_STREAM_FLAGS = {
    "subjects": "--subjects",
    "storage": "--storage",
    "retention": "--retention",
    "discard": "--discard",
    "max_msgs": "--max-msgs",
    "max_msgs_per_subject": "--max-msgs-per-subject",
    "max_bytes": "--max-bytes",
    "max_age": "--max-age",
    "max_msg_size": "--max-msg-size",
    "max_consumers": "--max-consumers",
    "duplicate_window": "--dupe-window",
    "num_replicas": "--replicas",
    "compression": "--compression",
    "description": "--description",
}
_STREAM_SWITCHES = {
    "allow_direct": ("--allow-direct", "--no-allow-direct"),
    "allow_rollup_hdrs": ("--allow-rollup", "--no-allow-rollup"),
    "deny_delete": ("--deny-delete", None),
    "deny_purge": ("--deny-purge", None),
}
_CONSUMER_FLAGS = {
    "filter_subjects": "--filter",
    "ack_policy": "--ack",
    "deliver_policy": "--deliver",
    "ack_wait": "--wait",
    "max_deliver": "--max-deliver",
    "max_ack_pending": "--max-pending",
    "max_waiting": "--max-waiting",
    "sample_freq": "--sample",
    "deliver_subject": "--target",
    "inactive_threshold": "--inactive-threshold",
    "description": "--description",
}
_CONSUMER_SWITCHES = {"headers_only": ("--headers-only", None), "mem_storage": ("--memory", None)}
_WORDS = {"last_per_subject": "subject"}


def jetlake(*words: str, arguments: Sequence[str] = ()) -> str:
    """Return the command line, with what a shell would take apart in quotes.

    Args:
        arguments: words that are no options, whatever they begin with.
    """
    separator = ["--"] if any(word.startswith("-") for word in arguments) else []
    return shlex.join(["jetlake", *words, *separator, *arguments])


def typed_text(content: bytes) -> str | None:
    """Return content as it is typed; None when it is no text, or text that means something else to the command."""
    try:
        text = content.decode()
    except UnicodeDecodeError:
        return None
    return None if "\0" in text or "{{" in text or text == "-" else text


def stream_options(options: Mapping[str, Any]) -> list[str] | None:
    """Return the options of `stream add` and `stream edit`; None when something has no option and needs a file."""
    return _options(options, _STREAM_FLAGS, _STREAM_SWITCHES)


def consumer_options(options: Mapping[str, Any]) -> list[str] | None:
    """Return the options of `consumer add` and `consumer edit`; None when something has no option and needs a file."""
    return _options(options, _CONSUMER_FLAGS, _CONSUMER_SWITCHES)


def or_file(words: list[str] | None, file: str, config: msgspec.Struct) -> tuple[list[str], str]:
    """Return the options of a command, or an option that reads a file, and the file's content."""
    if words is not None:
        return words, ""
    return ["--config", file], msgspec.json.format(msgspec.json.encode(config)).decode()


def _options(
    options: Mapping[str, Any], flags: Mapping[str, str], switches: Mapping[str, tuple[str, str | None]]
) -> list[str] | None:
    words: list[str] = []
    for name, value in options.items():
        if value is None:  # the default, for which there is no option
            return None
        if name in switches:
            switch = switches[name][0 if value else 1]
            if switch is None:
                return None
            words.append(switch)
        elif name in flags:
            if isinstance(value, list):
                if not value:
                    return None
                words += [word for one in value for word in (flags[name], str(one))]
            else:
                words += [flags[name], _word(name, value)]
        else:
            return None
    return words


def size_word(number: int) -> str:
    """Return a number of bytes as it is typed: `2GiB`, or all digits where no unit fits."""
    for unit, factor in (("GiB", 1024**3), ("MiB", 1024**2), ("KiB", 1024)):
        if number > 0 and number % factor == 0:
            return f"{number // factor}{unit}"
    return str(number)


def _word(name: str, value: Any) -> str:
    if name in DURATIONS:
        return duration_text(nanoseconds(value)) if value else "0s"
    if name in ("max_bytes", "max_msg_size"):
        return size_word(value)
    return _WORDS.get(str(value), str(value))
