"""Options as fields of dataclasses: read by their names, checked, and described for the documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.client.settings.server_address import without_login
from jetlake.errors import ConfigError

__all__ = [
    "NO_AVRO_SCHEMA",
    "OptionField",
    "build",
    "describe",
    "is_secret",
    "known_options",
    "option",
    "refuse_unknown",
    "without_path",
]

T = TypeVar("T")

NO_AVRO_SCHEMA = "option avroSchema is missing: payloadFormat=avro needs the writer's schema as JSON"
"""What source and sink say of Avro without a schema."""

# What Spark itself puts among a source's or sink's options, and which is none of our business.
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "mergeschema", "overwriteschema", "recursivefilelookup"}
_SPARKS_PREFIXES = ("spark.", "__")


@dataclass(frozen=True)
class OptionField:
    """What the documentation says of one option."""

    name: str
    default: str
    doc: str


def option(name: str, parse: Callable[[str], Any], default: Any, shown: str, doc: str) -> Any:
    """Return a field that is read from the option `name`; `shown` is its default as the documentation writes it."""
    metadata = {"option": name, "parse": parse, "shown": shown, "doc": doc}
    return dataclasses.field(default=default, metadata=metadata, repr=not is_secret(name))


def build(cls: type[T], options: Mapping[str, str], **parts: Any) -> T:
    """Build a value of that class from options and ready parts; the first bad option is named with the reason."""
    values: dict[str, Any] = dict(parts)
    given = {key.lower(): value for key, value in options.items()}
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        name = field.metadata.get("option")
        if name is None or name.lower() not in given:
            continue
        value = given[name.lower()]
        try:
            values[field.name] = field.metadata["parse"](value)
        except ValueError as error:
            shown = "***" if is_secret(name) else repr(without_login(value) if name == "servers" else value)
            raise ConfigError(f"option {name}={shown} is not usable: {error}") from None
    return cls(**values)


def is_secret(name: str) -> bool:
    """Return whether the option of that name holds what nobody may see; Spark goes by the same words."""
    return any(word in name.lower() for word in ("secret", "password", "token"))


def describe(cls: type[Any]) -> list[OptionField]:
    """Return the options of one class, in their order, for the documentation."""
    return [
        OptionField(field.metadata["option"], field.metadata["shown"], field.metadata["doc"])
        for field in dataclasses.fields(cls)
        if "option" in field.metadata
    ]


def without_path(options: Mapping[str, str], name: str) -> dict[str, str]:
    """Return the options with Spark's `path`, which load(...), save(...) and start(...) set, under its own name."""
    given = {key.lower(): value for key, value in options.items()}
    path = given.pop("path", None)
    if path is not None and given.setdefault(name, path) != path:
        raise ConfigError(f"the path {path!r} and option {name}={given[name]!r} contradict each other")
    return given


def refuse_unknown(options: Mapping[str, str], known: Mapping[str, str], doing: str) -> None:
    """Refuse an option that is neither known nor Spark's own, with the name that it resembles.

    Raises:
        ConfigError: there is one.
    """
    for key in options:
        lower = key.lower()
        if lower in known or lower in _SPARKS_OWN or lower.startswith(_SPARKS_PREFIXES):
            continue
        # Imported where it is used: every query starts a process that imports this module.
        import difflib

        near = difflib.get_close_matches(lower, known, 1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise ConfigError(f"option {key} is unknown for {doing} jetstream{hint}")


def known_options(*classes: type[Any]) -> dict[str, str]:
    """Return the names of the options of these classes as they are documented, by their lower-case form."""
    fields = [field for cls in classes for field in describe(cls)]
    return {field.name.lower(): field.name for field in fields}
