"""The schema of a subject's payloads as it is stored in the bucket, and what it is used for.

The bucket `schemas` has a key for every stream and subject: `ORDERS.orders.=rest` for `orders.>` of ORDERS. Its value
is a `PayloadSchema` as JSON, and each revision of the key is a version of the schema. In keys `=any` stands for `*`,
`=rest` for `>`, and `=2A` and the like for a byte that a key cannot have.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal

import msgspec

from jetlake.client.payloads.avro import avro_breach, avro_reader, parse_avro
from jetlake.client.payloads.json_schema import json_breach, json_check, parse_json_schema
from jetlake.client.payloads.protobuf import message_class, protobuf_breach, protobuf_reader
from jetlake.errors import ConfigError, SchemaError, SchemaMismatchError
from jetlake.protocol.subjects import is_valid_config, matches

BUCKET = "schemas"
"""The key-value bucket that holds the schemas of an account."""
VERSIONS_MAX = 64
"""How many versions of a schema are kept, as many as a bucket can keep of a key."""
PREFIX = "bucket:"
"""What an option begins with that names a subject, whose schema is in the bucket."""
SchemaFormat = Literal["json", "avro", "protobuf"]
Compatibility = Literal["backward", "forward", "full", "none"]
FORMATS = ("json", "avro", "protobuf")
COMPATIBILITIES = ("backward", "forward", "full", "none")
_SAFE = re.compile(rb"[^a-zA-Z0-9_/-]")


class PayloadSchema(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One version of the schema of a subject's payloads."""

    stream: str
    """The stream that stores the payloads."""
    subject: str
    """The subject, or pattern of subjects."""
    version: int
    """1 for the first one."""
    format: SchemaFormat
    """`json` is a JSON Schema."""
    schema: str
    """The text of a JSON Schema or Avro schema, or a Protobuf descriptor set in Base64."""
    message: str = ""
    """Protobuf: the full name of the message; empty for the last one of the last file."""
    compatibility: Compatibility = "backward"
    """What the next version must be: `backward`, it reads the payloads of this one; `forward`, this one reads its
    payloads; `full`, both; `none`, anything."""

    def check_schema(self) -> None:
        """Check that the schema is one.

        Raises:
            ConfigError: it is none, or what reads it is not installed.
        """
        if not is_valid_config(self.subject.encode()):
            raise ConfigError(f"{self.subject!r} is not a valid subject or pattern")
        if self.format not in FORMATS or self.compatibility not in COMPATIBILITIES:
            raise ConfigError(
                f"a schema must be one of {', '.join(FORMATS)}, with compatibility {', '.join(COMPATIBILITIES)}; not "
                f"{self.format} with {self.compatibility}"
            )
        match self.format:
            case "json":
                parse_json_schema(self.schema)
            case "avro":
                parse_avro(self.schema, "the schema")
            case "protobuf":
                message_class(self.schema, self.message)

    def check_successor(self, following: PayloadSchema) -> None:
        """Check that another schema may follow this one.

        Raises:
            SchemaError: the rule of this one forbids it.
        """
        rule = self.compatibility
        if rule == "none":
            return
        if self.format != following.format:
            raise SchemaError(f"{self} is {self.format}, and {rule} compatibility does not allow {following.format}")
        reason = ""
        if rule in ("backward", "full"):
            reason = _breach(self, following)
        if not reason and rule in ("forward", "full"):
            reason = _breach(following, self)
            reason = f"read by the version before, {reason}" if reason else ""
        if reason:
            raise SchemaError(f"this schema cannot follow {self}, whose compatibility is {rule}: {reason}")

    def reader(self) -> Callable[[bytes], Any]:
        """Return a function that reads a payload, and raises a ValueError with the reason for one that does not fit.

        Raises:
            ConfigError: as in `check_schema`.
        """
        match self.format:
            case "json":
                check = json_check(self.schema)

                def read(payload: bytes) -> Any:
                    check(payload)
                    return msgspec.Raw(payload)

                return read
            case "protobuf":
                return protobuf_reader(self.schema, self.message)
        decode = avro_reader(self.schema)

        def read_avro(payload: bytes) -> Any:
            try:
                return decode(payload)
            # A broken record shows itself in whatever the reader stumbles over.
            except Exception as error:
                raise ValueError(f"it is not such a record: {error or type(error).__name__}") from None

        return read_avro

    def __str__(self) -> str:
        return f"version {self.version} of the schema of {self.subject} in stream {self.stream}"


def _breach(old: PayloadSchema, new: PayloadSchema) -> str:
    """Return why the new schema cannot read a payload of the old one, of the same format."""
    match old.format:
        case "json":
            return json_breach(parse_json_schema(old.schema), parse_json_schema(new.schema))
        case "avro":
            return avro_breach(old.schema, new.schema)
    return protobuf_breach(message_class(old.schema, old.message), message_class(new.schema, new.message))


def schema_text(format_name: str, content: str | bytes) -> str:
    """Return a schema as it is stored, from the content of its file.

    Raises:
        ConfigError: the content is no text where it should be one.
    """
    if format_name == "protobuf":
        return content if isinstance(content, str) else base64.b64encode(content).decode()
    try:
        return content if isinstance(content, str) else content.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(f"the schema is not text: {error}") from None


def schema_key(stream: str, subject: str) -> str:
    """Return the key of a schema in the bucket."""
    return ".".join(_key_token(token) for token in (stream, *subject.split(".")))


def _key_token(token: str) -> str:
    if token in ("*", ">"):
        return "=any" if token == "*" else "=rest"
    return _SAFE.sub(lambda match: b"=%02X" % match[0][0], token.encode()).decode()


def decode_schema(value: bytes) -> PayloadSchema:
    """Return the schema that a value of the bucket holds.

    Raises:
        SchemaError: it holds none.
    """
    try:
        return msgspec.json.decode(value, type=PayloadSchema)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise SchemaError(f"a value of the key-value bucket {BUCKET} is not a schema: {error}") from None


def shown_value(value: Any) -> bytes:
    """Return what a `reader` read, as JSON."""
    if hasattr(value, "DESCRIPTOR"):
        from google.protobuf.json_format import MessageToDict

        value = MessageToDict(value, preserving_proto_field_name=True)
    return msgspec.json.encode(value, enc_hook=str)


class SchemaSet:
    """The newest schemas of an account, by subject; built once for each state of the bucket."""

    _SUBJECTS_MAX = 4096

    def __init__(self, schemas: Iterable[PayloadSchema] = ()) -> None:
        # The most specific pattern wins: a literal token before *, and * before >.
        self.schemas = sorted(schemas, key=lambda one: (_rank(one.subject), one.stream))
        self._found: dict[tuple[str, str], PayloadSchema | None] = {}
        self._readers: dict[tuple[str, str], Callable[[bytes], Any]] = {}

    def __iter__(self) -> Iterator[PayloadSchema]:
        return iter(self.schemas)

    def find(self, subject: str, stream: str = "") -> PayloadSchema | None:
        """Return the schema of a subject: the entry of that name, or the most specific pattern that matches."""
        if (subject, stream) in self._found:
            return self._found[subject, stream]
        if len(self._found) >= self._SUBJECTS_MAX:
            self._found.clear()
        raw = subject.encode()
        mine = [one for one in self.schemas if stream in ("", one.stream)]
        exact = next((one for one in mine if one.subject == subject), None)
        found = exact or next((one for one in mine if matches(one.subject.encode(), raw)), None)
        self._found[subject, stream] = found
        return found

    def read(self, schema: PayloadSchema, payload: bytes) -> Any:
        """Return what a payload holds by a schema of this set.

        Raises:
            ValueError: it does not fit.
            ConfigError: what reads such payloads is not installed.
        """
        key = schema.stream, schema.subject
        reader = self._readers.get(key)
        if reader is None:
            reader = self._readers[key] = schema.reader()
        return reader(payload)

    def check(self, subject: str, payload: bytes) -> None:
        """Check a payload against the schema of its subject.

        Raises:
            SchemaError: the subject has no schema.
            SchemaMismatchError: the payload does not fit.
        """
        schema = self.find(subject)
        if schema is None:
            raise SchemaError(
                f"subject {subject} has no schema to validate with: add one, jetlake schema add STREAM {subject} FILE"
            )
        try:
            self.read(schema, payload)
        except ConfigError:
            raise
        except ValueError as error:
            raise SchemaMismatchError(subject, schema.version, str(error)) from None


def _rank(subject: str) -> list[int]:
    return [{"*": 1, ">": 2}.get(token, 0) for token in subject.split(".")]
