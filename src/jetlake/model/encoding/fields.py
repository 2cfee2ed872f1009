"""What all Structs of the model share: their base, the types of their fields, and zeros that are never left out."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec

from jetlake.model.encoding.times import TIME_PATTERN

__all__ = [
    "SEQUENCE_MAX",
    "Count",
    "Int32",
    "Int64",
    "Nanoseconds",
    "Sequence",
    "StartTime",
    "Timestamp",
    "Value",
    "always",
]

Int64 = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]
"""A whole number of 64 bits."""

Int32 = Annotated[int, msgspec.Meta(ge=-(2**31), le=2**31 - 1)]
"""A whole number of 32 bits."""

Count = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A number that is never negative."""

Sequence = Annotated[int, msgspec.Meta(ge=0, le=2**63 - 1)]
"""A position in a stream or consumer; the first is 1 and 0 means none."""

SEQUENCE_MAX = 2**59
"""The highest sequence at which a stream may be made to begin or continue: records mark the four bits above those of a
sequence, and no stream comes from here to there message by message."""

Nanoseconds = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1, extra={"holds": "duration"})]
"""A duration as the wire has it; `jetlake.model.encoding.durations` converts to and from seconds."""

StartTime = Annotated[str, msgspec.Meta(pattern=TIME_PATTERN, extra={"holds": "start"})]
"""A time by which messages are looked for, as text; in years that servers can count when it is built from options."""

Timestamp = Annotated[str, msgspec.Meta(pattern=TIME_PATTERN, extra={"holds": "time"})]
"""An RFC 3339 time, kept as it was written; `jetlake.model.encoding.times` converts to and from nanoseconds."""


class Value(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An immutable object of the API: built by keyword, encoded without the fields that hold their default."""


def always(default: Any) -> Any:
    """Return a default that is written out even so, for the fields that the server never omits."""
    # The encoder omits a value that is the default itself; what a factory made is never that.
    return msgspec.field(default_factory=lambda: default)
