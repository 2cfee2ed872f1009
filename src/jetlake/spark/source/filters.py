"""Which messages a batch read's filters allow to skip: Spark's filters as conditions."""

from __future__ import annotations

from collections.abc import Iterable

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from jetlake.client.tables import bounds
from jetlake.client.tables.bounds import Bounds, Condition, Operator, narrow_subjects

__all__ = ["Bounds", "bounds_of", "narrow_subjects"]

_OPERATORS: dict[type[Filter], Operator] = {
    EqualTo: "=",
    EqualNullSafe: "=",
    In: "in",
    GreaterThan: ">",
    GreaterThanOrEqual: ">=",
    LessThan: "<",
    LessThanOrEqual: "<=",
    StringStartsWith: "prefix",
}


def bounds_of(filters: Iterable[Filter]) -> Bounds:
    """Return the bounds of filters that must all hold; those of other kinds do not count."""
    conditions = []
    for single in filters:
        operator = _OPERATORS.get(type(single))
        match getattr(single, "attribute", None):
            case (str(column),) if operator is not None:
                conditions.append(Condition(column, operator, getattr(single, "value", None)))
    return bounds.bounds_of(conditions)
