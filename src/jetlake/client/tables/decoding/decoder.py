"""Decoded payloads as Arrow struct columns; a row that cannot be decoded says why."""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Callable, Iterable
from typing import Any, Protocol

import pyarrow as pa

__all__ = ["BadValueError", "Decoder", "StructColumns", "fields_of"]

Convert = Callable[[Any], Any]

# What Arrow raises for values that a type does not hold.
_MISFITS = (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, OverflowError, TypeError, ValueError)


class BadValueError(ValueError):
    """A decoded value that the column's type cannot hold."""


class Decoder(Protocol):
    """Decodes payloads in bulk."""

    def decode(self, payloads: pa.Array) -> tuple[pa.Array, dict[int, str]]:
        """Return the values, null where there is none, and the reason for every such row."""


def fields_of(kind: pa.StructType) -> list[pa.Field]:
    """Return the fields of a struct type."""
    return [kind.field(index) for index in range(kind.num_fields)]


class StructColumns:
    """The fields of the value, each with what makes Arrow's values of the decoded ones.

    Args:
        value_type: the struct type of the column.
        from_struct: whether decoded values are Structs with the fields `f0`, `f1` …, or dicts by the fields' names.
    """

    def __init__(self, value_type: pa.StructType, *, from_struct: bool) -> None:
        self.arrow_type = value_type
        self._fields = [
            (f"f{index}" if from_struct else field.name, _optional(_converter(field.type, from_struct)))
            for index, field in enumerate(fields_of(value_type))
        ]
        self._get: Callable[[Any, str], Any] = getattr if from_struct else dict.get

    def decode(
        self, payloads: pa.Array, decode: Callable[[bytes], Any], failures: tuple[type[Exception], ...]
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the values that `decode` makes of payloads; a row at which it fails is null, with the reason."""
        reasons: dict[int, str] = {}
        rows: list[list[Any]] = []
        nothing = [None] * len(self._fields)
        get, fields = self._get, self._fields
        for index, payload in enumerate(payloads.to_pylist()):
            try:
                value = decode(payload)
                rows.append([convert(get(value, name)) for name, convert in fields])
            except failures as error:
                reasons[index] = str(error) or type(error).__name__
                rows.append(nothing)
        arrays = self._arrays(rows, reasons)
        mask = pa.array([index in reasons for index in range(len(rows))], pa.bool_()) if reasons else None
        return pa.StructArray.from_arrays(arrays, fields=list(self.arrow_type), mask=mask), reasons

    def _arrays(self, rows: list[list[Any]], reasons: dict[int, str]) -> list[pa.Array]:
        """Return the fields' columns; a row with a value that its column cannot hold gets a reason."""
        columns: Iterable[tuple[Any, ...]] = zip(*rows, strict=True) if rows else [()] * len(self._fields)
        return [self._array(column, field, reasons) for column, field in zip(columns, self.arrow_type, strict=True)]

    @staticmethod
    def _array(column: tuple[Any, ...], field: pa.Field, reasons: dict[int, str]) -> pa.Array:
        try:
            array = pa.array(column, field.type)
        except _MISFITS:
            # Rare, for decoders check types and ranges themselves where they know them.
            kept = list(column)
            for index, value in enumerate(column):
                try:
                    pa.array([value], field.type)
                except _MISFITS as error:
                    reasons.setdefault(index, f"{field.name} is no {field.type}: {error}")
                    kept[index] = None
            array = pa.array(kept, field.type)
        if array.null_count and not field.nullable:
            for index, value in enumerate(column):
                if value is None:
                    reasons.setdefault(index, f"{field.name} is null, which its type does not allow")
        return array


def _converter(kind: pa.DataType, from_struct: bool) -> Convert | None:
    """Return what makes Arrow's value of a decoded one, or None where they are the same."""
    if pa.types.is_struct(kind):
        fields = [
            (f"f{index}" if from_struct else field.name, field.name, _optional(_converter(field.type, from_struct)))
            for index, field in enumerate(fields_of(kind))
        ]
        get: Callable[[Any, str], Any] = getattr if from_struct else dict.get
        return lambda value: {name: convert(get(value, key)) for key, name, convert in fields}
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        element = _converter(kind.value_type, from_struct)
        return _each(_optional(element)) if element is not None else None
    if pa.types.is_map(kind):
        item = _optional(_converter(kind.item_type, from_struct))
        return lambda value: [(key, item(entry)) for key, entry in value.items()]
    if pa.types.is_timestamp(kind):
        return _naive if kind.tz is None else _aware
    if pa.types.is_decimal(kind):
        return _decimal(kind.precision, kind.scale)
    if (pa.types.is_string(kind) or pa.types.is_large_string(kind)) and not from_struct:
        return str
    return None


def _each(convert: Convert) -> Convert:
    return lambda values: [convert(value) for value in values]


def _optional(convert: Convert | None) -> Convert:
    if convert is None:
        return lambda value: value
    return lambda value: None if value is None else convert(value)


def _aware(value: datetime.datetime) -> datetime.datetime:
    if value.tzinfo is None:
        return value.replace(tzinfo=datetime.UTC)
    return value if value.tzinfo is datetime.UTC else _in_utc(value)


def _naive(value: datetime.datetime) -> datetime.datetime:
    return value if value.tzinfo is None else _in_utc(value).replace(tzinfo=None)


def _in_utc(value: datetime.datetime) -> datetime.datetime:
    try:
        return value.astimezone(datetime.UTC)
    except OverflowError:
        raise BadValueError(f"{value} is before the year 1 or after the year 9999 in UTC") from None


def _decimal(precision: int, scale: int) -> Convert:
    unit = decimal.Decimal(1).scaleb(-scale)
    context = decimal.Context(prec=precision, traps=[decimal.InvalidOperation, decimal.Inexact])

    def convert(value: decimal.Decimal) -> decimal.Decimal:
        try:
            fitting = value.quantize(unit, context=context)
            if fitting.is_finite():
                return fitting
            raise decimal.InvalidOperation
        except (decimal.InvalidOperation, decimal.Inexact):
            raise BadValueError(f"{value} does not fit decimal({precision},{scale})") from None

    return convert
