"""Options as fields of dataclasses: read by their names, checked, and described for the documentation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.client.settings.server_address import without_login
from jetlake.client.tables.option_values import names
from jetlake.errors import ConfigError

T = TypeVar("T")
NO_AVRO_SCHEMA = "option avroSchema is missing: payloadFormat=avro needs the writer's schema as JSON"
"""The error of source and sink for Avro without a schema."""
NO_PROTOBUF_SCHEMA = "option protobufSchema is missing: payloadFormat=protobuf needs a descriptor set in Base64"
"""The error of source and sink for Protobuf without a schema."""

# Options that Spark itself adds to a source's or sink's.
_SPARKS_OWN = {"checkpointlocation", "queryname", "outputmode", "mergeschema", "overwriteschema", "recursivefilelookup"}
_SPARKS_PREFIXES = ("spark.", "__")

# Options of Spark's Kafka source by their lower-case names: Kafka's spelling, and the option to use instead.
_KAFKAS = {
    name.lower(): (name, advice)
    for name, advice in {
        "kafka.bootstrap.servers": "use servers",
        "bootstrap.servers": "use servers",
        "subscribe": "use stream, with names of streams, and subjects to filter",
        "subscribePattern": "use stream, in which * stands for any characters",
        "assign": "use stream; there are no partitions to assign",
        "topic": "use subject, or a column subject",
        "startingOffsets": "use startingPosition: earliest, latest, seq:N, time:2026-01-31T12:00:00Z, '-10 minutes'",
        "startingTimestamp": "use startingPosition=time:2026-01-31T12:00:00Z",
        "startingOffsetsByTimestamp": "use startingPosition, with a JSON object for each stream's time",
        "endingOffsets": "use endingPosition: latest, seq:N, time:2026-01-31T12:00:00Z",
        "endingTimestamp": "use endingPosition=time:2026-01-31T12:00:00Z",
        "endingOffsetsByTimestamp": "use endingPosition, with a JSON object for each stream's time",
        "maxOffsetsPerTrigger": "use maxMessagesPerTrigger",
        "minOffsetsPerTrigger": "use minMessagesPerTrigger",
        "maxRecordsPerPartition": "use messagesPerPartition",
        "includeHeaders": "leave it out, column headers is always there",
        "groupIdPrefix": "leave it out, the checkpoint holds the position; use consumer for a work queue",
        "kafka.group.id": "leave it out, the checkpoint holds the position; use consumer for a work queue",
        "kafkaConsumer.pollTimeoutMs": "use requestTimeout",
        "fetchOffset.numRetries": "use retryFor",
        "fetchOffset.retryIntervalMs": "use retryFor",
    }.items()
}


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
    """Return whether the option of that name holds a secret; Spark redacts by the same words."""
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
        if lower in _KAFKAS or lower.startswith("kafka."):
            name, ours = _KAFKAS.get(lower, (key, ""))
            advice = ours or "there is no such option here"
            raise ConfigError(f"option {name} is an option of Spark's Kafka source; for {doing} jetstream: {advice}")
        # Imported where it is used: every query starts a process that imports this module.
        import difflib

        near = difflib.get_close_matches(lower, known, 1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise ConfigError(f"option {key} is unknown for {doing} jetstream{hint}")


def known_options(*classes: type[Any]) -> dict[str, str]:
    """Return the names of the options of these classes as they are documented, by their lower-case form."""
    fields = [field for cls in classes for field in describe(cls)]
    return {field.name.lower(): field.name for field in fields}


def stream_names(value: str) -> tuple[str, ...]:
    """Names of streams, separated by commas."""
    streams = names(value)
    for stream in streams:
        if any(character in stream for character in " .*>/\\\t\r\n"):
            raise ValueError(f"{stream!r} is not a valid stream name: it contains a blank, dot, wildcard or slash")
    return streams


def stream_patterns(value: str) -> tuple[str, ...]:
    """Names of streams in which `*` stands for anything."""
    stream_names(value.replace("*", "x"))
    return names(value)


def consumer_name(value: str) -> str:
    """Return the name of a consumer, bucket or domain."""
    if any(character in value for character in " .*>/\\\t\r\n") or not value:
        raise ValueError("a consumer's name has no blank, dot, wildcard or slash")
    return value


def bucket_name(value: str) -> str:
    """Return the name of a key-value bucket; empty for `none`."""
    return "" if value.strip().lower() == "none" else consumer_name(value)
