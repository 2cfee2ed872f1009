"""Payloads as columns of Spark: the decoder that the options ask for, VARIANT, and Avro's types in Spark's words."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql import types
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.variant_utils import VariantUtils

from jetlake.client.tables.decoding.avro_decoder import AvroDecoder, avro_type
from jetlake.client.tables.decoding.decoder import Decoder, fields_of
from jetlake.client.tables.decoding.json_decoder import JsonDecoder
from jetlake.errors import ConfigError
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.reading.nested_types import types_in

__all__ = ["VariantDecoder", "avro_struct_ddl", "make_decoder"]


def make_decoder(options: SourceOptions, value_type: types.DataType) -> Decoder:
    """Return the decoder that the options ask for.

    Raises:
        ConfigError: the schema cannot be read that way, or the extra that reads it is not installed.
    """
    wanted = types.VariantType if options.payload_format == "variant" else types.StructType
    if not isinstance(value_type, wanted):
        raise ConfigError(
            f"column value is {value_type.simpleString()}: payloadFormat={options.payload_format} makes it a "
            f"{'variant' if options.payload_format == 'variant' else 'struct'}"
        )
    if isinstance(value_type, types.StructType):
        if any(isinstance(kind, types.VariantType) for kind in types_in(value_type)):
            raise ConfigError(
                f"column value is {value_type.simpleString()}: a VARIANT inside of it can't be read, use "
                "payloadFormat=variant for the whole payload"
            )
        arrow_type = to_arrow_type(value_type, timezone="UTC")
        if options.payload_format == "avro":
            return AvroDecoder(options.avro_schema, arrow_type, options.avro_reader_schema)
        return JsonDecoder(arrow_type)
    return VariantDecoder()


class VariantDecoder:
    """JSON of any shape, as Spark's VARIANT."""

    def __init__(self) -> None:
        self._type = to_arrow_type(types.VariantType())

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""
        reasons: dict[int, str] = {}
        values, metadata = [], []
        for index, payload in enumerate(payloads.to_pylist()):
            value, names = b"", b""
            try:
                value, names = VariantUtils.parse_json(payload.decode())
            # Whatever the parser stumbles over, the payload is none that it can read.
            except Exception as error:
                reasons[index] = str(error) or type(error).__name__
            values.append(value)
            metadata.append(names)
        mask = pa.array([index in reasons for index in range(len(values))], pa.bool_()) if reasons else None
        arrays = [pa.array(values, pa.binary()), pa.array(metadata, pa.binary())]
        return pa.StructArray.from_arrays(arrays, fields=list(self._type), mask=mask), reasons


_DDL = {
    pa.bool_(): "boolean",
    pa.int32(): "int",
    pa.int64(): "bigint",
    pa.float32(): "float",
    pa.float64(): "double",
    pa.binary(): "binary",
    pa.string(): "string",
    pa.date32(): "date",
    pa.timestamp("us", tz="UTC"): "timestamp",
    pa.timestamp("us"): "timestamp_ntz",
}


def avro_struct_ddl(schema_json: str) -> str:
    """Return the struct type, as DDL, of the records that are written with an Avro schema.

    Raises:
        ConfigError: it is no Avro schema of a record, or holds something that Spark has no type for.
    """
    return _ddl(avro_type(schema_json))


def _ddl(kind: pa.DataType) -> str:
    if pa.types.is_struct(kind):
        return f"struct<{', '.join(f'`{field.name}`: {_ddl(field.type)}' for field in fields_of(kind))}>"
    if pa.types.is_list(kind):
        return f"array<{_ddl(kind.value_type)}>"
    if pa.types.is_map(kind):
        return f"map<string, {_ddl(kind.item_type)}>"
    if pa.types.is_decimal(kind):
        return f"decimal({kind.precision},{kind.scale})"
    return _DDL[kind]
