"""A message as the store hands it out."""

from __future__ import annotations

import msgspec

__all__ = ["StoredMessage"]


class StoredMessage(msgspec.Struct, gc=False, frozen=True):
    """One stored message; `header` is the whole header block, or b"" when there is none."""

    sequence: int
    time_ns: int
    subject: bytes
    header: bytes
    payload: bytes
