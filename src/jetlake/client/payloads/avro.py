"""Avro schemas: parsed, and whether records of one can be read by another."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from typing import Any

from jetlake.errors import ConfigError

_PROMOTED = {
    "int": ("long", "float", "double"),
    "long": ("float", "double"),
    "float": ("double",),
    "string": ("bytes",),
    "bytes": ("string",),
}
_Seen = frozenset[tuple[str, str]]


def avro_json(schema_json: str) -> Any:
    """Return the JSON of an Avro schema.

    Raises:
        ConfigError: it is none.
    """
    try:
        return json.loads(schema_json)
    except ValueError as error:
        raise ConfigError(f"the Avro schema is not valid JSON: {error}") from None


def parse_avro(schema_json: str, name: str = "the writer's schema") -> Any:
    """Return an Avro schema as fastavro wants it.

    Raises:
        ConfigError: it is none, or fastavro is not installed.
    """
    try:
        import fastavro
    except ImportError:
        raise ConfigError("Avro payloads need fastavro (with Spark on every machine): install jetlake[avro]") from None
    schema = avro_json(schema_json)
    try:
        return fastavro.parse_schema(schema)
    # A broken schema shows itself in whatever the parser stumbles over, a missing key too.
    except Exception as error:
        raise ConfigError(f"{name} is not a valid Avro schema: {error!r:.300}") from None


def avro_reader(schema_json: str, reader_schema_json: str = "") -> Callable[[bytes], Any]:
    """Return a function that reads a payload, an Avro record without a container, whole or not at all.

    Raises:
        ConfigError: as in `parse_avro`.
    """
    schema = parse_avro(schema_json)
    reader_schema = parse_avro(reader_schema_json, "the reader's schema") if reader_schema_json else None
    from fastavro import schemaless_reader as read

    def decode(payload: bytes) -> Any:
        stream = io.BytesIO(payload)
        try:
            value = read(stream, schema, reader_schema)
        except EOFError:
            raise ValueError(f"the payload ends before the record: it has {len(payload)} bytes") from None
        except IndexError:
            raise ValueError("the payload names a symbol of an enum, or a branch of a union, that is none") from None
        left = len(payload) - stream.tell()
        if left:
            raise ValueError(f"{left} bytes follow the record")
        return value

    return decode


def avro_breach(old_json: str, new_json: str) -> str:
    """Return why a record of the old schema cannot be read by the new one; empty when it can.

    Raises:
        ConfigError: one of them is no Avro schema.
    """
    return _Resolution(parse_avro(old_json), parse_avro(new_json)).breach()


class _Resolution:
    """Avro's rules for a writer's and a reader's schema, both parsed, so that names are full ones."""

    def __init__(self, writer: Any, reader: Any) -> None:
        self._writer, self._reader = writer, reader
        self._written = _named(writer)
        self._read = _named(reader)

    def breach(self) -> str:
        return self._breach(self._writer, self._reader, "value", frozenset())

    def _breach(self, writer: Any, reader: Any, path: str, above: _Seen) -> str:
        writer, reader = self._written.get(_text(writer), writer), self._read.get(_text(reader), reader)
        if isinstance(writer, list):
            reasons = (self._breach(branch, reader, path, above) for branch in writer)
            return next(filter(None, reasons), "")
        if isinstance(reader, list):
            reasons_of = [self._breach(writer, branch, path, above) for branch in reader]
            return "" if not all(reasons_of) else f"{path} was {_kind(writer)} and is a union without it"
        old, new = _kind(writer), _kind(reader)
        if old != new:
            return "" if new in _PROMOTED.get(old, ()) else f"{path} was {old} and is {new}"
        if _logical(writer) != _logical(reader):
            return f"{path} was {_logical(writer) or old} and is {_logical(reader) or new}"
        match old:
            case "record" | "error":
                return self._record_breach(writer, reader, path, above)
            case "enum":
                gone = [symbol for symbol in writer["symbols"] if symbol not in reader["symbols"]]
                return f"{path} has no symbol {gone[0]}" if gone and "default" not in reader else ""
            case "array":
                return self._breach(writer["items"], reader["items"], f"{path}[]", above)
            case "map":
                return self._breach(writer["values"], reader["values"], f"{path}{{}}", above)
            case "fixed":
                return "" if writer["size"] == reader["size"] else f"{path} has another size"
        return ""

    def _record_breach(self, writer: Any, reader: Any, path: str, above: _Seen) -> str:
        pair = writer["name"], reader["name"]
        if pair in above:
            return ""
        fields = {field["name"]: field for field in writer["fields"]}
        for field in reader["fields"]:
            names = (field["name"], *field.get("aliases", ()))
            before = next((fields[name] for name in names if name in fields), None)
            where = f"{path}.{field['name']}"
            if before is None:
                if "default" not in field:
                    return f"{where} is new and has no default"
                continue
            reason = self._breach(before["type"], field["type"], where, above | {pair})
            if reason:
                return reason
        return ""


def _text(schema: Any) -> str:
    return schema if isinstance(schema, str) else ""


def _kind(schema: Any) -> str:
    if isinstance(schema, dict):
        inner = schema["type"]
        return _kind(inner) if isinstance(inner, dict) else str(inner)
    return str(schema)


def _logical(schema: Any) -> str:
    if not isinstance(schema, dict) or "logicalType" not in schema:
        return ""
    if schema["logicalType"] == "decimal":
        return f"decimal({schema.get('precision')},{schema.get('scale', 0)})"
    return str(schema["logicalType"])


def _named(schema: Any) -> dict[str, Any]:
    found: dict[str, Any] = {}
    waiting = [schema]
    while waiting:
        one = waiting.pop()
        if isinstance(one, list):
            waiting += one
        elif isinstance(one, dict):
            if "name" in one and one.get("type") in ("record", "error", "enum", "fixed"):
                found[one["name"]] = one
            waiting += [field["type"] for field in one.get("fields", ())]
            waiting += [one[part] for part in ("items", "values", "type") if isinstance(one.get(part), dict | list)]
    return found
