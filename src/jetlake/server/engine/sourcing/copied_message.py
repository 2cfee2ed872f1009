"""The rewriting of copied messages: subjects by transforms, and no headers that concern the origin alone."""

from __future__ import annotations

from collections.abc import Sequence

from jetlake.model.stream import SubjectTransform
from jetlake.model.transforms import compile_transform

__all__ = ["Renaming", "without_conditions"]

_BARE = b"NATS/1.0\r\n\r\n"
_CONDITIONS = (b"Nats-Expected-", b"Nats-Batch-")


class Renaming:
    """The subject transforms of a mirror or source; the first that matches a subject renames it."""

    def __init__(self, transforms: Sequence[SubjectTransform]) -> None:
        self._transforms = [compile_transform(transform.src, transform.dest) for transform in transforms]

    def __bool__(self) -> bool:
        return bool(self._transforms)

    def apply(self, subject: bytes) -> bytes:
        """Return the new subject, or the subject itself where no transform matches."""
        for transform in self._transforms:
            renamed = transform.apply(subject)
            if renamed is not None:
                return renamed
        return subject


def without_conditions(header: bytes, *others: bytes) -> bytes:
    """Return the header without conditions and batches, which held where the message was published.

    Args:
        others: beginnings of other lines to remove.
    """
    unwanted = (*_CONDITIONS, *others)
    if not any(b"\r\n" + prefix in header for prefix in unwanted):
        return header
    lines = [line for line in header.split(b"\r\n") if not line.startswith(unwanted)]
    kept = b"\r\n".join(lines)
    return b"" if kept == _BARE else kept
