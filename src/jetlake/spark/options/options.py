"""The options of `format("jetstream")`: each one a documented field of a frozen value, checked when it is built."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.settings.server_address import without_login
from jetlake.client.tables.options.filters import subject_filters
from jetlake.client.tables.options.option_values import (
    boolean,
    byte_size,
    choice,
    count,
    duration_s,
    names,
    positive,
    text,
)
from jetlake.client.tables.options.positions import EARLIEST, LATEST, Positions, parse_positions
from jetlake.errors import ConfigError
from jetlake.model.api import api_prefix
from jetlake.protocol.subjects import is_valid_publish

__all__ = [
    "ConnectionOptions",
    "OptionField",
    "SinkOptions",
    "SourceOptions",
    "describe",
    "is_secret",
    "known_options",
    "refuse_unknown",
]

T = TypeVar("T", "ConnectionOptions", "SourceOptions", "SinkOptions")

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
    """A field that is read from the option `name`; `shown` is its default as the documentation writes it."""
    metadata = {"option": name, "parse": parse, "shown": shown, "doc": doc}
    return dataclasses.field(default=default, metadata=metadata, repr=not is_secret(name))


def _build(cls: type[T], options: Mapping[str, str]) -> T:
    """A value of that class from its fields' options; the first bad one is named with the reason."""
    values: dict[str, Any] = {}
    given = {key.lower(): value for key, value in options.items()}
    for field in dataclasses.fields(cls):
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
    """Whether the option of that name holds what nobody may see; Spark goes by the same words."""
    return any(word in name.lower() for word in ("secret", "password", "token"))


def describe(cls: type[Any]) -> list[OptionField]:
    """The options of one class, in their order, for the documentation."""
    return [
        OptionField(field.metadata["option"], field.metadata["shown"], field.metadata["doc"])
        for field in dataclasses.fields(cls)
        if "option" in field.metadata
    ]


def _servers(value: str) -> tuple[str, ...]:
    servers = names(value)
    for server in servers:
        if "@" in server:
            raise ValueError(
                "it holds credentials, which Spark would show in plans and in its UI; "
                "use auth.user with auth.password, auth.token or auth.credsSecret"
            )
        scheme, separator, _ = server.partition("://")
        if separator and scheme in ("ws", "wss"):
            raise ValueError(f"{scheme}:// is not for Spark, which reads by nats:// and tls://")
        if separator and scheme not in ("nats", "tls"):
            raise ValueError(f"{scheme}:// is no scheme of a NATS server (nats:// and tls:// are)")
    return servers


def _stream_names(value: str) -> tuple[str, ...]:
    streams = names(value)
    for stream in streams:
        if any(character in stream for character in " .*>/\\\t\r\n"):
            raise ValueError(f"{stream!r} cannot be a stream's name: it holds a blank, a dot, a wildcard or a slash")
    return streams


def _stream_patterns(value: str) -> tuple[str, ...]:
    _stream_names(value.replace("*", "x"))
    return names(value)


def _consumer_name(value: str) -> str:
    if any(character in value for character in " .*>/\\\t\r\n") or not value:
        raise ValueError("a consumer's name has no blank, dot, wildcard or slash")
    return value


def _filters(value: str) -> tuple[str, ...]:
    """Subject filters; one that another one covers is left out, for the server refuses such pairs."""
    return subject_filters(names(value))


def _bucket(value: str) -> str:
    return "" if value.strip().lower() == "none" else _consumer_name(value)


def _subject(value: str) -> str:
    if not is_valid_publish(value.encode()):
        raise ValueError("it is no subject to publish to (no wildcards, no blanks, no empty tokens)")
    return value


@dataclass(frozen=True)
class ConnectionOptions:
    """How to reach the server, for source and sink alike."""

    servers: tuple[str, ...] = option(
        "servers",
        _servers,
        ("nats://127.0.0.1:4222",),
        "nats://127.0.0.1:4222",
        "Addresses of the servers, separated by commas; `tls://` asks for TLS. Every executor must reach them. "
        "Credentials in an address are refused, because Spark shows addresses.",
    )
    user: str = option("auth.user", text, "", "none", "User name; goes with `auth.password`.")
    password: str = option("auth.password", text, "", "none", "Password of `auth.user`.")
    token: str = option("auth.token", text, "", "none", "Token, for servers that take one.")
    credentials: str = option(
        "auth.credsSecret",
        text,
        "",
        "none",
        "The *content* of a credentials file (user JWT and seed), not its path: executors do not have your files.",
    )
    nkey_seed: str = option(
        "auth.nkeySecret", text, "", "none", "The nkey seed (`SU…`) to sign the server's nonce with."
    )
    tls: bool = option("tls", boolean, False, "false", "Use TLS even where the server does not ask for it.")
    tls_ca: str = option(
        "tls.ca", text, "", "the system's", "Certificates to trust, as PEM text or as a path that every machine has."
    )
    tls_cert: str = option("tls.cert", text, "", "none", "The client's certificate, as PEM text or path.")
    tls_key: str = option("tls.keySecret", text, "", "none", "The client's private key, as PEM text or path.")
    tls_hostname: str = option(
        "tls.hostname", text, "", "the address's", "Name that the server's certificate must carry."
    )
    domain: str = option("domain", _consumer_name, "", "none", "JetStream domain of the streams.")
    connect_timeout_s: float = option(
        "connectTimeout", duration_s, 5.0, "5s", "How long one attempt to connect may take."
    )
    request_timeout_s: float = option(
        "requestTimeout", duration_s, 5.0, "5s", "How long to wait for one answer of the server."
    )
    retry_for_s: float = option(
        "retryFor",
        duration_s,
        60.0,
        "60s",
        "How long to go on trying when the server is away, before the task or the query fails.",
    )

    def __post_init__(self) -> None:
        if bool(self.user) != bool(self.password):
            raise ConfigError("options auth.user and auth.password go together: one of them is missing")
        given = [
            name
            for name, value in (
                ("auth.user", self.user),
                ("auth.token", self.token),
                ("auth.credsSecret", self.credentials),
                ("auth.nkeySecret", self.nkey_seed),
            )
            if value
        ]
        if len(given) > 1:
            raise ConfigError(f"options {' and '.join(given)} are different ways to log in: give one of them")
        if bool(self.tls_cert) != bool(self.tls_key):
            raise ConfigError("options tls.cert and tls.keySecret go together: one of them is missing")

    @property
    def api_prefix(self) -> str:
        """What the subjects of the JetStream API begin with."""
        return api_prefix(self.domain)

    def lease(self) -> AbstractContextManager[SocketConnection]:
        """Give a connection for as long as the block runs; it is kept for the next one unless the block failed."""
        from jetlake.spark.options.connections import leased

        return leased(self)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> ConnectionOptions:
        """The connection's part of the options."""
        return _build(cls, options)


_connection = dataclasses.field(default_factory=ConnectionOptions)

_NO_AVRO_SCHEMA = "option avroSchema is missing: payloadFormat=avro needs the writer's schema as JSON"
_FROM_EARLIEST = Positions(EARLIEST)
_TO_LATEST = Positions(LATEST)
_parse_starting = parse_positions(EARLIEST)
_parse_ending = parse_positions(LATEST)


@dataclass(frozen=True)
class SourceOptions:
    """What to read, from where to where, in which pieces, and what to make of it."""

    connection: ConnectionOptions = _connection
    streams: tuple[str, ...] = option(
        "stream",
        _stream_patterns,
        (),
        "required",
        'Name of the stream, or of several separated by commas. `.load("ORDERS")` says the same. `*` stands for any '
        "characters: `ORDERS_*` reads all streams with such names, and a streaming query finds new ones as they come.",
    )
    discovery_interval_s: float = option(
        "discoveryInterval", duration_s, 10.0, "10s", "How often a streaming query looks for new streams of a pattern."
    )
    subjects: tuple[str, ...] = option(
        "subjects",
        _filters,
        (),
        "all",
        "Read only messages whose subject matches one of these, separated by commas (or a JSON array); wildcards "
        "`*` and `>` as usual. The server filters.",
    )
    starting: Positions = option(  # noqa: RUF009 - a frozen value
        "startingPosition",
        _parse_starting,
        _FROM_EARLIEST,
        "earliest",
        "Where a batch read, or a new streaming query, starts: `earliest`, `latest`, `seq:N`, "
        "`time:2026-01-31T12:00:00Z`, `-10 minutes`, `last:N`; or a JSON object with one for each stream. A query "
        "that has a checkpoint goes on from there.",
    )
    ending: Positions = option(  # noqa: RUF009
        "endingPosition",
        _parse_ending,
        _TO_LATEST,
        "latest",
        "Where a batch read ends, exclusive for times and inclusive for `seq:N`; not for streaming.",
    )
    archive: str = option(
        "archive",
        text,
        "",
        "none",
        "Folder of an archive of the stream (`jetlake pipeline archive`, Parquet or Delta): a batch read takes what is "
        "archived from there and the rest from the stream. Every executor must reach it.",
    )
    fail_on_data_loss: bool = option(
        "failOnDataLoss",
        boolean,
        True,
        "true",
        "Fail when messages were removed before they were read, or the stream was created anew. With `false` the query "
        "goes on and counts them as `lost` in its offsets.",
    )
    ledger: str = option(
        "ledger",
        _bucket,
        "jetlake_spark",
        "jetlake_spark",
        "Key-value bucket in which tasks note what they found lost, with `failOnDataLoss=false`, so that the query's "
        "`lost` counts it; made when the first message is lost. `none` does without: such losses are then only logged.",
    )
    reader: str = option(
        "reader",
        choice("auto", "consumer", "direct", "leader"),
        "auto",
        "auto",
        "How tasks read: `consumer` (an ephemeral pull consumer; limits streams only), `direct` (batches of direct "
        "gets; the stream needs `allow_direct`, the server 2.11), `leader` (one request a message: slow, and works "
        "everywhere), `auto` (a consumer for large ranges of limits streams, else direct gets).",
    )
    direct_below: int = option(
        "directGetBelow",
        count,
        20_000,
        "20000",
        "With `reader=auto`: ranges of fewer messages than this are read by direct gets where the stream allows it.",
    )
    guarantee: str = option(
        "guarantee",
        choice("exactlyOnce", "atLeastOnce"),
        "exactlyOnce",
        "exactlyOnce",
        "`atLeastOnce` takes messages of a work queue or interest stream from a shared durable consumer and "
        "acknowledges them one by one: for queues that others read too, and for servers or permissions that allow no "
        "purge or reset. Streaming only.",
    )
    consumer: str = option(
        "consumer",
        _consumer_name,
        "",
        "from stream and subjects",
        "Name of the durable consumer by which a streaming query holds its place in a work queue or interest stream.",
    )
    take_over: bool = option(
        "consumerTakeover",
        boolean,
        False,
        "false",
        "Take the durable consumer over from another query (one whose checkpoint is gone). Never while that one runs.",
    )
    lag_consumer: str = option(
        "lagConsumer",
        _consumer_name,
        "",
        "none",
        "Name of a durable consumer that a streaming query keeps behind its last finished batch, in every limits "
        "stream that it reads: what NATS tools show as pending is the query's lag. Each query needs a name of its own; "
        "work queues and interest streams have option `consumer` for it.",
    )
    max_messages: int = option(
        "maxMessagesPerTrigger",
        positive,
        0,
        "all",
        "Most messages in one micro-batch, shared by the streams in proportion. With `subjects` exactly so many that "
        "match, else counted in sequences.",
    )
    max_bytes: int = option(
        "maxBytesPerTrigger",
        byte_size,
        0,
        "all",
        "Most bytes in one micro-batch, by the sizes of its messages (subject, headers and payload), but one message "
        "at least.",
    )
    min_messages: int = option(
        "minMessagesPerTrigger",
        positive,
        0,
        "1",
        "Wait until so many messages are there, but no longer than `maxTriggerDelay`. Not for AvailableNow.",
    )
    max_trigger_delay_s: float = option(
        "maxTriggerDelay", duration_s, 900.0, "15m", "Longest wait for `minMessagesPerTrigger`."
    )
    messages_per_partition: int = option(
        "messagesPerPartition", positive, 100_000, "100000", "Cut a range so that a task reads about so many messages."
    )
    bytes_per_partition: int = option(
        "bytesPerPartition", byte_size, 128 << 20, "128m", "Cut a range so that a task reads about so many bytes."
    )
    min_partitions: int = option(
        "minPartitions", positive, 1, "1", "Cut every stream's range into at least so many tasks."
    )
    max_partitions: int = option(
        "maxPartitions",
        positive,
        0,
        "the cluster's cores, or 8",
        "Cut every stream's range into at most so many tasks. The cluster's cores are known in a session of "
        "`jetlake.spark.session()`.",
    )
    poll_interval_s: float = option(
        "pollInterval", duration_s, 0.1, "100ms", "How often a streaming query asks the server for news."
    )
    rows_per_batch: int = option(
        "arrowBatchRows", positive, 8192, "8192", "Most rows that go to Spark in one Arrow batch."
    )
    payload_format: str = option(
        "payloadFormat",
        choice("raw", "json", "avro", "variant"),
        "raw",
        "raw",
        "`raw` gives column `data` as bytes; `json` and `avro` decode it into the struct column `value`, `variant` any "
        "JSON into a VARIANT.",
    )
    payload_schema: str = option(
        "payloadSchema",
        text,
        "",
        "from the schema",
        "Fields of `value` for `payloadFormat=json`, as DDL: `id bigint, amount double`. Not needed when "
        "`.schema(...)` has a `value` column.",
    )
    avro_schema: str = option(
        "avroSchema", text, "", "none", "The writer's schema as JSON text, for `payloadFormat=avro`."
    )
    avro_reader_schema: str = option(
        "avroReaderSchema",
        text,
        "",
        "`avroSchema`",
        "The schema to read Avro records by, where it is not the writer's: Avro's rules for renamed, added and removed "
        "fields hold.",
    )
    bad_rows: str = option(
        "badRows",
        choice("fail", "column"),
        "fail",
        "fail",
        "A payload that cannot be decoded: `fail` names stream and sequence in an error, `column` leaves `value` null "
        "and fills the columns `bad_data` and `bad_reason`.",
    )

    def __post_init__(self) -> None:
        if not self.streams:
            raise ConfigError(
                "option stream is missing: name the stream to read, or give it to load(...); a table keeps its options "
                "when CREATE TABLE lists no columns"
            )
        if self.max_partitions and self.min_partitions > self.max_partitions:
            raise ConfigError(
                f"option minPartitions={self.min_partitions} is more than maxPartitions={self.max_partitions}"
            )
        if self.max_messages and self.min_messages > self.max_messages:
            raise ConfigError(
                f"option minMessagesPerTrigger={self.min_messages} can never be reached with "
                f"maxMessagesPerTrigger={self.max_messages}"
            )
        if self.payload_format == "avro" and not self.avro_schema:
            raise ConfigError(_NO_AVRO_SCHEMA)
        for name, positions in (("startingPosition", self.starting), ("endingPosition", self.ending)):
            for stream, _ in positions.by_stream:
                if stream not in self.streams and not self.has_patterns:
                    raise ConfigError(f"option {name} names stream {stream!r}, which option stream does not")
        if (len(self.streams) > 1 or self.has_patterns) and self.archive:
            raise ConfigError("option archive holds one stream: read each stream by itself, and union the DataFrames")
        if (len(self.streams) > 1 or self.has_patterns) and self.guarantee == "atLeastOnce":
            raise ConfigError("guarantee=atLeastOnce reads one stream: give each stream a query of its own")

    @property
    def has_patterns(self) -> bool:
        """Whether the streams' names hold patterns."""
        return any("*" in name for name in self.streams)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SourceOptions:
        """The options of a read.

        Raises:
            ConfigError: the first option that is unknown or unusable, with the reason.
        """
        given = _without_path(options, "stream")
        refuse_unknown(given, known_options(cls), "reading")
        source = _build(cls, given)
        return dataclasses.replace(source, connection=ConnectionOptions.of(given))


@dataclass(frozen=True)
class SinkOptions:
    """Where to write, what of each row, under which message id, and how hard to try."""

    connection: ConnectionOptions = _connection
    subject: str = option(
        "subject", _subject, "", "column `subject`", "Subject of every message; without it, column `subject` says it."
    )
    stream: str = option(
        "stream",
        lambda value: _stream_names(value)[0],
        "",
        "any",
        "The stream that must take the messages (`Nats-Expected-Stream`): a subject of another one is then an error.",
    )
    payload_format: str = option(
        "payloadFormat",
        choice("raw", "json", "avro"),
        "raw",
        "raw",
        "`raw` publishes column `data` (binary or string); `json` publishes all other columns as a JSON object, in "
        "which a VARIANT is the JSON that it stands for; `avro` publishes them as a record of `avroSchema`.",
    )
    avro_schema: str = option(
        "avroSchema", text, "", "none", "The schema to write by as JSON text, for `payloadFormat=avro`."
    )
    message_id: str = option(
        "messageId",
        choice("auto", "column", "source", "row", "none"),
        "auto",
        "auto",
        "Where `Nats-Msg-Id` comes from: `column` (`msg_id`), `source` (columns `stream` and `sequence`), `row` "
        "(query, batch, partition, row and content), `none`; `auto` is `column` if there is one, else `row`.",
    )
    run_id: str = option(
        "runId",
        text,
        "",
        "random",
        "Name of a batch write inside its row ids: a repeated job with the same name is deduplicated by the stream. In "
        "a streaming query a new name means a new run: when its checkpoint was rolled back, batches are written again.",
    )
    window: int = option(
        "publishWindow", positive, 4096, "4096", "Most messages of a task that may wait for their acknowledgement."
    )
    ack_timeout_s: float = option(
        "ackTimeout",
        duration_s,
        10.0,
        "10s",
        "How long to wait for an acknowledgement before publishing again under the same id.",
    )
    ledger: str = option(
        "ledger",
        _bucket,
        "jetlake_spark",
        "jetlake_spark",
        "Key-value bucket that notes the finished batches of streaming queries, so that one that is replayed after the "
        "stream's duplicate window is not written again; made when missing. `none` does without.",
    )

    def __post_init__(self) -> None:
        if self.payload_format == "avro" and not self.avro_schema:
            raise ConfigError(_NO_AVRO_SCHEMA)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> SinkOptions:
        """The options of a write.

        Raises:
            ConfigError: the first option that is unknown or unusable, with the reason.
        """
        given = _without_path(options, "subject")
        refuse_unknown(given, known_options(cls), "writing")
        sink = _build(cls, given)
        return dataclasses.replace(sink, connection=ConnectionOptions.of(given))


def _without_path(options: Mapping[str, str], name: str) -> dict[str, str]:
    """The options with Spark's `path`, which load(...), save(...) and start(...) set, under its own name."""
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
        near = difflib.get_close_matches(lower, known, 1)
        hint = f"; did you mean {known[near[0]]}?" if near else ""
        raise ConfigError(f"option {key} is unknown for {doing} jetstream{hint}")


def known_options(cls: type[Any]) -> dict[str, str]:
    """The names of a side's options as they are documented, by their lower-case form."""
    fields = describe(ConnectionOptions) + describe(cls)
    return {field.name.lower(): field.name for field in fields}
