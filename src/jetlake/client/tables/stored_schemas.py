"""Schemas of the bucket `schemas` for readers without an event loop, and JSON Schemas as types of columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from jetlake.client.payloads.json_schema import json_types, parse_json_schema, resolved
from jetlake.client.payloads.schema import BUCKET, PREFIX, PayloadSchema, SchemaSet, decode_schema
from jetlake.client.tables.stream_api import Link, StreamApi, ask
from jetlake.errors import ConfigError, StreamNotFoundError

_PLAIN = {"integer": pa.int64(), "number": pa.float64(), "boolean": pa.bool_(), "string": pa.string()}
_TEXTS = {"date-time": pa.timestamp("us", tz="UTC"), "date": pa.date32()}


def is_stored(option: str) -> bool:
    """Return whether an option names a subject whose schema is in the bucket, `bucket:orders.>`."""
    return option.startswith(PREFIX)


def read_schemas(link: Link) -> SchemaSet:
    """Return the newest schemas of the account; none where there is no bucket."""

    def look(api: StreamApi) -> SchemaSet:
        try:
            subjects = api.subjects_of(f"KV_{BUCKET}", ">")
            messages = [api.last_message(f"KV_{BUCKET}", subject) for subject in subjects]
        except StreamNotFoundError:
            return SchemaSet()
        # A marker of a deleted key has no payload.
        return SchemaSet(decode_schema(message.data) for message in messages if message is not None and message.data)

    return ask(link, look)


def stored_schema(link: Link, option: str, format_name: str, stream: str = "") -> PayloadSchema:
    """Return the schema that an option names.

    Raises:
        ConfigError: there is none, or it has another format.
    """
    subject = option.removeprefix(PREFIX)
    known = read_schemas(link)
    found = known.find(subject, stream) or known.find(subject)  # a mirror has the subjects of its origin
    if found is None:
        raise ConfigError(f"the key-value bucket {BUCKET} has no schema of {subject}: see jetlake schema ls {stream}")
    if found.format != format_name:
        raise ConfigError(f"{found} is {found.format}, not {format_name}")
    return found


def json_schema_type(text: str) -> pa.StructType:
    """Return the struct type of the documents that a JSON Schema describes.

    Raises:
        ConfigError: it is no JSON Schema of an object with properties, or a property has no type of its own.
    """
    schema = parse_json_schema(text)
    kind = _type(schema, "value", schema, ())
    if not pa.types.is_struct(kind):
        raise ConfigError("the JSON Schema must describe an object with properties")
    return kind


def _type(schema: Any, path: str, root: Any, above: tuple[int, ...]) -> pa.DataType:
    schema = resolved(schema, root)
    if not isinstance(schema, dict):
        raise ConfigError(f"the JSON Schema: {path} may be anything, which a column cannot represent")
    if id(schema) in above:
        raise ConfigError(f"the JSON Schema: {path} holds itself, which a column cannot represent")
    inside = (*above, id(schema))
    for name in ("anyOf", "oneOf"):
        branches = [branch for branch in schema.get(name, ()) if branch != {"type": "null"}]
        if len(branches) == 1:
            return _type(branches[0], path, root, inside)
    listed = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if "type" not in schema and listed and all(isinstance(value, str) for value in listed):
        return pa.string()
    kinds = json_types(schema) - {"null"}
    if kinds == {"integer", "number"}:
        kinds = frozenset(("number",))
    if len(kinds) != 1:
        raise ConfigError(f"the JSON Schema: {path} has no type, which a column needs")
    (kind,) = kinds
    if kind == "array":
        return pa.list_(_type(schema.get("items", True), f"{path}[]", root, inside))
    if kind == "object":
        return _object_type(schema, path, root, inside)
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return pa.binary()
    return _TEXTS.get(schema.get("format", ""), pa.string()) if kind == "string" else _PLAIN[kind]


def _object_type(schema: Any, path: str, root: Any, inside: tuple[int, ...]) -> pa.DataType:
    properties = schema.get("properties", {})
    if properties:
        return pa.struct([(name, _type(one, f"{path}.{name}", root, inside)) for name, one in properties.items()])
    others = schema.get("additionalProperties", True)
    if isinstance(others, dict):
        return pa.map_(pa.string(), _type(others, f"{path}{{}}", root, inside))
    raise ConfigError(f"the JSON Schema: {path} has no properties, which a column cannot represent")
