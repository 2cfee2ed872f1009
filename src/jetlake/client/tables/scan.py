"""Lazy tables: what a query of polars or DuckDB keeps is read, and the rest is not transferred.

Both hand over the columns that they need and the condition on the rows. Of the condition, the parts on sequence,
timestamp and subject narrow what is read from the server; then the whole condition is applied to the rows that came. A
part in a form that is not known here narrows nothing, so a newer release of either is slower at worst.
"""

from __future__ import annotations

import datetime
import io
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import dataset

from jetlake.client.tables.bounds import Bounds, Condition, bounds_of

ReadPart = Callable[[pa.Schema, Sequence[str] | None, Bounds], pa.RecordBatchReader]
"""Reads some columns (None: all) of a table with that schema, of the messages within bounds."""


def polars_scan(schema: pa.Schema, read: ReadPart, polars: Any) -> Any:
    """Return a polars LazyFrame over a table."""
    from polars.io.plugins import register_io_source

    empty = polars.from_arrow(schema.empty_table())

    def source(
        with_columns: list[str] | None, predicate: Any, n_rows: int | None, batch_size: int | None
    ) -> Iterator[Any]:
        conditions = polars_conditions(predicate) if predicate is not None else []
        needed = None
        if with_columns is not None:
            asked = set(with_columns) | (set(predicate.meta.root_names()) if predicate is not None else set())
            needed = [name for name in schema.names if name in asked]
        left = n_rows
        for batch in read(schema, needed, bounds_of(conditions)):
            frame = polars.from_arrow(batch)
            if predicate is not None:
                frame = frame.filter(predicate)
            if with_columns is not None:
                frame = frame.select(with_columns)
            if left is not None:
                frame = frame.head(left)
                left -= frame.height
            yield frame
            if left == 0:
                return

    return register_io_source(source, schema=empty.schema, is_pure=False)


_POLARS_OPERATORS = {"Eq": "=", "Lt": "<", "LtEq": "<=", "Gt": ">", "GtEq": ">="}
_MIRRORED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def polars_conditions(predicate: Any) -> list[Condition]:
    """Return the conditions that a polars expression makes, as far as its parts are known."""
    try:
        node = json.loads(predicate.meta.serialize(format="json"))
    except ValueError:
        return []
    found: list[Condition] = []
    _walk(node, found)
    return found


def _walk(node: Any, found: list[Condition]) -> None:
    """Add the conditions of an expression; parts that are joined by `and` are conditions of their own."""
    try:
        _add(node, found)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError):
        # A part of another form: it narrows nothing.
        return


def _add(node: Any, found: list[Condition]) -> None:
    if not isinstance(node, dict):
        return
    if "BinaryExpr" in node:
        parts = node["BinaryExpr"]
        if parts["op"] == "And":
            _walk(parts["left"], found)
            _walk(parts["right"], found)
        elif parts["op"] in _POLARS_OPERATORS:
            operator = _POLARS_OPERATORS[parts["op"]]
            column, value = parts["left"], parts["right"]
            if "Column" not in column:
                column, value, operator = value, column, _MIRRORED[operator]
            _keep(found, column, operator, _literal(value))
    elif "Function" in node:
        column, *arguments = node["Function"]["input"]
        function = node["Function"]["function"]
        if function == {"StringExpr": "StartsWith"}:
            _keep(found, column, "prefix", _literal(arguments[0]))
        elif "IsBetween" in function.get("Boolean", ()):
            closed = function["Boolean"]["IsBetween"]["closed"]
            _keep(found, column, ">=" if closed in ("Both", "Left") else ">", _literal(arguments[0]))
            _keep(found, column, "<=" if closed in ("Both", "Right") else "<", _literal(arguments[1]))
        elif "IsIn" in function.get("Boolean", ()):
            _keep(found, column, "in", _literal(arguments[0]))


def _keep(found: list[Condition], column: Any, operator: Any, value: Any) -> None:
    if "Column" in column and value is not None:
        found.append(_coarse(Condition(column["Column"], operator, value)))


def _coarse(condition: Condition) -> Condition:
    """Return a condition on times that holds for the whole microsecond of its bound: messages have nanoseconds."""
    if condition.column != "timestamp" or condition.operator not in ("<", ">"):
        return condition
    return condition._replace(operator="<=" if condition.operator == "<" else ">=")


_PER_MICROSECOND = {"Nanoseconds": (1, 1000), "Microseconds": (1, 1), "Milliseconds": (1000, 1)}
_EPOCH = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


def _literal(node: Any) -> Any:
    """Return the value of a literal; None for one of a type that no bound is made of."""
    scalar = node["Literal"].get("Scalar") or node["Literal"].get("Dyn")
    if not isinstance(scalar, dict):
        return None
    ((kind, value),) = scalar.items()
    if kind.startswith(("Int", "UInt")) and isinstance(value, int):
        return value
    if kind == "String":
        return value
    if kind == "Datetime":
        factor, divisor = _PER_MICROSECOND[value[1]]
        # Times of messages are rounded down to microseconds in bounds; the condition itself is applied exactly.
        return _EPOCH + datetime.timedelta(microseconds=value[0] * factor // divisor)
    if kind == "List":
        with pa.ipc.open_stream(io.BytesIO(bytes(value))) as stream:
            (column,) = stream.read_all().columns
        values = column.to_pylist()
        return tuple(values[0] if len(values) == 1 and isinstance(values[0], list) else values)
    return None


class ScanDataset(dataset.Dataset):  # type: ignore[misc]
    """A table as a dataset of pyarrow, which DuckDB asks for columns and rows."""

    def __init__(self, schema: pa.Schema, read: ReadPart) -> None:
        self._schema = schema
        self._read = read

    @property
    def schema(self) -> pa.Schema:
        """The schema of all columns."""
        return self._schema

    def scanner(
        self,
        columns: Sequence[str] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> dataset.Scanner:
        """Return a scanner of some columns of the rows that pass the filter."""
        conditions = arrow_conditions(str(filter)) if filter is not None else []
        asked = None if columns is None else set(columns)
        if asked is not None and filter is not None:
            asked |= {name for name in self._schema.names if re.search(rf"\b{name}\b", str(filter))}
        needed = None if asked is None else [name for name in self._schema.names if name in asked]
        reader = self._read(self._schema, needed, bounds_of(conditions))
        return dataset.Scanner.from_batches(reader, columns=columns, filter=filter, use_threads=False)


_TOKEN = re.compile(
    r"\s*(?:(?P<open>\()|(?P<close>\))|(?P<and>and\b)|(?P<operator>==|<=|>=|<|>)"
    r"|(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?Z)|(?P<number>-?\d+\b)"
    r"|\"(?P<text>[^\"\\]*)\"|(?P<name>[a-z_]+))"
)


def arrow_conditions(text: str) -> list[Condition]:
    """Return the conditions that a filter of pyarrow makes, by the text that it has.

    Only a text that is made of comparisons and `and` from end to end is understood; of a longer one, whatever
    else it holds, nothing is: a part of it could stand under `or` or `not`.
    """
    tokens: list[tuple[str, Any]] = []
    position = 0
    while position < len(text.rstrip()):
        match = _TOKEN.match(text, position)
        if match is None or match.lastgroup is None:
            return []
        tokens.append((match.lastgroup, match[match.lastgroup]))
        position = match.end()
    found: list[Condition] = []
    plain = [token for token in tokens if token[0] not in ("open", "close")]
    while plain:
        if len(plain) < 3 or plain[0][0] != "name" or plain[1][0] != "operator":
            return []
        (_, name), (_, operator), (kind, value) = plain[:3]
        found.append(_coarse(Condition(name, "=" if operator == "==" else operator, _value(kind, value))))
        if len(plain) > 3 and plain[3][0] != "and":
            return []
        plain = plain[4:]
    return [*found, *_prefixes(found)]


def _value(kind: str, value: str) -> Any:
    if kind == "number":
        return int(value)
    if kind == "time":
        return datetime.datetime.fromisoformat(re.sub(r"(\.\d{6})\d+", r"\1", value))
    return value if kind == "text" else None


def _prefixes(conditions: list[Condition]) -> Iterator[Condition]:
    """Yield what two bounds of a text say together: from `a.` and below `a/` is everything that begins with `a.`."""
    low = [one.value for one in conditions if one.column == "subject" and one.operator == ">="]
    high = {one.value for one in conditions if one.column == "subject" and one.operator == "<"}
    for start in low:
        if isinstance(start, str) and start and f"{start[:-1]}{chr(ord(start[-1]) + 1)}" in high:
            yield Condition("subject", "prefix", start)
