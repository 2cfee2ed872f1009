"""Typed payloads of an archive: their schema, the columns that they become, and how a schema may grow."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pyspark.errors import PySparkException
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from jetlake.client.tables.decoding import JsonDecoder, infer_json_type
from jetlake.client.tables.protobuf import protobuf_type
from jetlake.client.tables.stored_schemas import is_stored, json_schema_type, stored_schema
from jetlake.client.tables.stream_api import Link
from jetlake.client.tables.stream_table import read_stream
from jetlake.client.tables.table_options import table_options
from jetlake.errors import ConfigError
from jetlake.lake.catalogs import first_line
from jetlake.spark.schema import avro_struct_ddl, ddl_of

if TYPE_CHECKING:
    import pyarrow as pa

FORMATS = ("json", "avro", "protobuf")
"""How payloads may be written."""
_INFERRED_FROM = 10_000
# Types, each with the types that hold all of its values.
_WIDER = {
    "tinyint": ("smallint", "int", "bigint"),
    "smallint": ("int", "bigint"),
    "int": ("bigint",),
    "float": ("double",),
}


@dataclass(frozen=True)
class TypedPayload:
    """How payloads are decoded.

    Attributes:
        format: `json`, `avro` or `protobuf`.
        schema: DDL for JSON, empty to find it in the first messages; the text of an Avro schema; the Base64 of a
            Protobuf descriptor set; or `bucket:` and a subject.
        message: the full name of the Protobuf message; empty for the last of the set.
        keep_raw: keep column `data` beside `value`.
    """

    format: str
    schema: str = ""
    message: str = ""
    keep_raw: bool = False

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigError(f"{self.format!r} is not a payload format; the formats are {', '.join(FORMATS)}")
        if not self.schema and self.format != "json":
            raise ConfigError(f"--payload {self.format} needs --schema; only that of JSON can be found in the messages")

    @property
    def is_stored(self) -> bool:
        """Whether the schema is that of a subject in the bucket of schemas, which `from_bucket` reads."""
        return is_stored(self.schema)

    def from_bucket(self, link: Link, stream: str) -> TypedPayload:
        """Return the decoding with the schema that is in the bucket now.

        Raises:
            ConfigError: there is none, or it has another format.
        """
        found = stored_schema(link, self.schema, self.format, stream)
        if self.format == "json":
            return replace(self, schema=_inner(ddl_of(json_schema_type(found.schema))))
        return replace(self, schema=found.schema, message=self.message or found.message)

    @property
    def ddl(self) -> str:
        """The fields of `value`.

        Raises:
            ConfigError: the schema is none.
        """
        if self.format == "json":
            return self.schema
        if self.format == "avro":
            return _inner(avro_struct_ddl(self.schema))
        return _inner(ddl_of(protobuf_type(self.schema, self.message)))

    @property
    def arrow_type(self) -> pa.DataType:
        """The type of `value`. Needs a Spark session, which reads the DDL.

        Raises:
            ConfigError: the DDL is wrong.
        """
        try:
            return to_arrow_type(StructType.fromDDL(self.ddl), timezone="UTC")
        except PySparkException as error:
            raise ConfigError(
                f"the schema {self.ddl!r:.200} is not a list of fields such as 'id bigint, price double': "
                f"{first_line(error)}"
            ) from None

    def check_fields(self, stream: str) -> None:
        """Check that payloads can be read into these fields, and that files take them, before anything is written.

        Raises:
            ConfigError: not so.
        """
        kind = self.arrow_type
        check_names(kind, f"payloads of stream {stream}")
        if self.format == "json":
            JsonDecoder(kind)

    def columns(self) -> str:
        """Return the columns that a read of the source has in place of `data`, as DDL."""
        raw = "data binary, " if self.keep_raw else ""
        return f"{raw}value struct<{self.ddl}>, bad_data binary, bad_reason string"

    def source_options(self) -> dict[str, str]:
        """Return the options of the source that decode these payloads."""
        options = {"payloadFormat": self.format, "badRows": "column"}
        if self.format == "avro":
            return options | {"avroSchema": self.schema}
        if self.format == "protobuf":
            named = {"protobufMessage": self.message} if self.message else {}
            return options | {"protobufSchema": self.schema, **named}
        return options


def _inner(struct: str) -> str:
    return struct.removeprefix("struct<").removesuffix(">")


def typed_payload(format_name: str, schema: str = "", message: str = "", *, keep_raw: bool = False) -> TypedPayload:
    """Return the decoding with a schema as it is typed: DDL or a file's name.

    Raises:
        ConfigError: the file can't be read.
    """
    try:
        is_file = bool(schema) and Path(schema).is_file()
        if not is_file and _names_a_file(format_name, schema):
            raise ConfigError(f"schema file {schema} not found")
        if is_file and format_name == "protobuf":
            schema = base64.b64encode(Path(schema).read_bytes()).decode()
        elif is_file:
            schema = Path(schema).read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"can't read the schema {schema}: {error}") from None
    return TypedPayload(format_name, schema, message, keep_raw)


def _names_a_file(format_name: str, schema: str) -> bool:
    """Return whether a text can be no schema itself: DDL has a blank or colon, JSON a quotation mark, Base64 no dot."""
    if is_stored(schema) or not schema:
        return False
    if format_name == "json":
        return not re.search(r"[\s:]", schema)
    return '"' not in schema if format_name == "avro" else "." in schema


def inferred_ddl(link: Link, stream: str, subjects: tuple[str, ...]) -> str:
    """Return the fields of the JSON payloads that a stream begins with, as DDL.

    Raises:
        ConfigError: they are no JSON objects, or have no type in common.
    """
    import pyarrow as pa

    found = read_stream(link, stream, table_options(subjects=subjects, fail_on_data_loss=False))
    taken: list[Any] = []
    rows = 0
    for part in islice(found, 1000):
        taken.append(part.payload)
        rows += len(part)
        if rows >= _INFERRED_FROM:
            break
    if not rows:
        raise ConfigError(f"stream {stream} has no messages to infer the fields from: pass them with --schema")
    fields = _filled(infer_json_type(pa.concat_arrays(taken)[:_INFERRED_FROM]))
    if fields is None:
        raise ConfigError(f"the payloads of stream {stream} have no fields yet: pass them with --schema")
    return _inner(ddl_of(fields))


def _filled(kind: pa.DataType) -> pa.DataType | None:
    """Return a type without the objects in it that have no fields, which no file can hold; None for such an object."""
    import pyarrow as pa

    if pa.types.is_struct(kind):
        found = [(field.name, _filled(field.type)) for field in (kind.field(index) for index in range(kind.num_fields))]
        fields = [(name, inner) for name, inner in found if inner is not None]
        return pa.struct(fields) if fields else None
    if pa.types.is_list(kind):
        inner = _filled(kind.value_type)
        return pa.list_(inner) if inner is not None else None
    return kind


def check_names(kind: pa.DataType, what: str) -> None:
    """Check that the names of fields can be columns, at any depth; Spark and Delta do not tell `id` from `ID`.

    Raises:
        ConfigError: a name is empty, or differs from another one of its struct at most in case.
    """
    import pyarrow as pa

    if pa.types.is_list(kind) or pa.types.is_map(kind):
        check_names(kind.value_type if pa.types.is_list(kind) else kind.item_type, what)
    if not pa.types.is_struct(kind):
        return
    known: dict[str, str] = {}
    for field in (kind.field(index) for index in range(kind.num_fields)):
        other = known.get(field.name.lower())
        if other is not None or not field.name:
            fields = f"the fields {other} and {field.name}, whose columns would have one name"
            raise ConfigError(
                f"{what} have {fields if field.name else 'a field without a name'}: choose the fields with --schema"
            )
        known[field.name.lower()] = field.name
        check_names(field.type, what)


def check_growth(known_ddl: str, wanted_ddl: str, what: str) -> None:
    """Check that every value of the known fields is one of the wanted ones: fields are added or widened.

    Needs a Spark session, which reads the DDL.

    Raises:
        ConfigError: a field is gone, or has a type that does not hold all of its values; names both schemas.
    """
    known, wanted = StructType.fromDDL(known_ddl), StructType.fromDDL(wanted_ddl)
    reason = breach(known, wanted)
    if reason:
        raise ConfigError(
            f"{what} cannot continue with another schema: {reason}. It has {known.simpleString()}; given is "
            f"{wanted.simpleString()}. Keep the fields and their types, or begin a new archive"
        )


def breach(known: DataType, wanted: DataType, path: str = "value") -> str:
    """Return what is gone or changed in the wanted type; empty when every known value is one of it."""
    if isinstance(known, StructType) and isinstance(wanted, StructType):
        present = {field.name: field.dataType for field in wanted.fields}
        for field in known.fields:
            if field.name not in present:
                return f"{path}.{field.name} is missing"
            reason = breach(field.dataType, present[field.name], f"{path}.{field.name}")
            if reason:
                return reason
        return ""
    if isinstance(known, ArrayType) and isinstance(wanted, ArrayType):
        return breach(known.elementType, wanted.elementType, f"{path}[]")
    if isinstance(known, MapType) and isinstance(wanted, MapType) and known.keyType == wanted.keyType:
        return breach(known.valueType, wanted.valueType, f"{path}{{}}")
    if isinstance(known, DecimalType) and isinstance(wanted, DecimalType):
        is_wider = wanted.scale == known.scale and wanted.precision > known.precision
        return (
            "" if is_wider or wanted == known else f"{path} was {known.simpleString()} and is {wanted.simpleString()}"
        )
    old, new = known.simpleString(), wanted.simpleString()
    is_wider = new in _WIDER.get(old, ())
    return "" if new == old or is_wider else f"{path} was {old} and is {new}"


def payload_facts(payload: TypedPayload | None) -> Mapping[str, Any]:
    """Return what an archive notes of its payloads, apart from their fields, which may grow."""
    if payload is None:
        return {}
    return {"payload": payload.format, "keep_raw": payload.keep_raw}
