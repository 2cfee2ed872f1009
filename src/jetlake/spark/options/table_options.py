"""The options of catalog tables: `CREATE TABLE … USING jetstream OPTIONS (…)`.

Spark passes a table's options to a Python source once, among properties of its own, when it asks for the columns of the
new table; later reads and writes get none of them, only the schema. So the options are stored in the comment of the
table's first column, which everybody can read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructType

from jetlake.errors import ConfigError
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.options.option_table import is_secret, known_options, refuse_unknown
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions

__all__ = ["annotate", "declared_options", "for_side", "with_table_options"]

_PREFIX = "option."
_COMMENT = "jetstream options: "
# A read or write that names one of these does not use the table's options.
_LOCATIONS = {"stream", "subject", "servers", "path"}


def declared_options(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options in a CREATE TABLE statement without the properties that Spark adds; None for any other use.

    Raises:
        ConfigError: an option is unknown, or must not be written into a catalog.
    """
    given = {key.lower(): value for key, value in options.items()}
    if given.get("provider", "").lower() != "jetstream":
        return None
    declared = {key.removeprefix(_PREFIX): value for key, value in given.items() if key.startswith(_PREFIX)}
    refuse_unknown(declared, known_options(ConnectionOptions, SinkOptions, SourceOptions), "a table of")
    for key in declared:
        if is_secret(key):
            raise ConfigError(
                f"option {key} is not allowed in a table, whose options anyone can read: pass it with each "
                f"query, SELECT … FROM table WITH (`{key}` = '…')"
            )
    return declared


def annotate(ddl: str, declared: Mapping[str, str]) -> str:
    """Return the columns of a new table with its options in the first one's comment."""
    first, separator, others = ddl.partition(", ")
    comment = f"{_COMMENT}{json.dumps(declared, sort_keys=True)}".replace("\\", "\\\\").replace("'", "\\'")
    return f"{first} COMMENT '{comment}'{separator}{others}"


def with_table_options(
    options: Mapping[str, str], schema: StructType, cls: type[SourceOptions | SinkOptions]
) -> dict[str, str]:
    """Return the options of a read or write, with the options of its table if the schema holds any.

    Raises:
        ConfigError: a write names no location. A table whose columns were listed or selected loses its options without
            a sign, and its rows would go to the default server instead of the table's.
    """
    given = {key.lower(): value for key, value in options.items()}
    comment = schema.fields[0].metadata.get("comment", "") if schema.fields else ""
    if _LOCATIONS & given.keys():
        return given
    if not comment.startswith(_COMMENT):
        if cls is SinkOptions:
            raise ConfigError(
                "options servers, stream and subject are all missing: set one of them to say where to write; a table "
                "keeps its options when CREATE TABLE lists no columns and has no AS SELECT"
            )
        return given
    try:
        declared = json.loads(comment.removeprefix(_COMMENT))
    except ValueError:
        raise ConfigError(
            f"the comment of column {schema.fields[0].name} no longer contains the options: {comment}"
        ) from None
    return {**for_side(cls, declared), **given}


def for_side(cls: type[SourceOptions | SinkOptions], declared: Mapping[str, str]) -> dict[str, str]:
    """Return the table's options that this side knows."""
    return {key: value for key, value in declared.items() if key in known_options(ConnectionOptions, cls)}
