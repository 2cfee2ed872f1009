"""The numbers of a store's subjects."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from jetlake.store.columns import positions_of
from jetlake.store.index.packed_names import PackedNames
from jetlake.store.index.subject_matches import SubjectMatches
from jetlake.store.steps import Steps

__all__ = ["SubjectNumbers"]

# So few names are not worth the steps.
_UNPACKED_AT_ONCE = 4096


class SubjectNumbers:
    """Subjects by number, and numbers by subject. A subject has a number while it has messages; numbers are used again.

    Names that a start found are unpacked when one is first asked for: until then they take little time and memory.

    Attributes:
        ids: the number of each subject.
        names: the subject of each number; b"" for one that is free.
        matches: which subjects pass a filter.
    """

    __slots__ = ("_free", "_packed", "_unpacking", "ids", "matches", "names")

    def __init__(self) -> None:
        self._packed: PackedNames | None = None
        self._unpacking: Steps[None] | None = None
        self._free: list[int] = []
        self._use([], {})

    def _use(self, names: list[bytes], ids: dict[bytes, int]) -> None:
        self.names, self.ids = names, ids
        self.matches = SubjectMatches(ids, names)

    def __len__(self) -> int:
        return len(self.ids) if self._packed is None else self._packed.used

    # Names that are packed: unset slots, which cost the reads of unpacked names nothing (see `log/segment.py`)

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            """Unpack the names when an unset slot is read."""
            if name not in ("ids", "matches", "names") or self._packed is None:
                raise AttributeError(name)
            self._unpack_all()
            return getattr(self, name)

    def adopt(self, packed: PackedNames) -> None:
        """Take over the names by number that were written down, in the place of all that there are."""
        self._packed, self._unpacking = packed, self._unpack(packed)
        del self.ids, self.names, self.matches
        if len(packed) <= _UNPACKED_AT_ONCE:
            self._unpack_all()

    @property
    def are_packed(self) -> bool:
        """Whether names wait to be unpacked."""
        return self._packed is not None

    def unpack_step(self) -> bool:
        """Unpack some more names; False when all are unpacked."""
        if self._unpacking is None:
            return False
        if next(self._unpacking, True):
            self._unpacking = None
        return True

    def _unpack_all(self) -> None:
        while self.unpack_step():
            pass

    def _unpack(self, packed: PackedNames) -> Steps[None]:
        names, ids = yield from packed.unpack()
        self._packed = None
        self._use(names, ids)

    # Changes

    def add(self, subject: bytes) -> int:
        """Give a new subject its number: one that is free, or the next."""
        if self._free:
            number = self._free.pop()
            self.names[number] = subject
        else:
            number = len(self.names)
            self.names.append(subject)
        self.ids[subject] = number
        self.matches.note(number)
        return number

    def release(self, number: int) -> None:
        """Let the number of a subject that has no message be another's."""
        del self.ids[self.names[number]]
        self.names[number] = b""
        self._free.append(number)
        self.matches.note(~number)

    def clear(self) -> None:
        """Forget all subjects."""
        self._packed = self._unpacking = None
        self._free.clear()
        self._use([], {})

    def claim(self, numbers: Sequence[int], subjects: list[bytes]) -> bool:
        """Give subjects the numbers that they have in a segment index; False when one of them is another's.

        Args:
            numbers: ascending.
        """
        names, ids = self.names, self.ids
        if numbers and (missing := numbers[-1] + 1 - len(names)) > 0:
            names.extend([b""] * missing)
        for number, subject in zip(numbers, subjects, strict=True):
            name = names[number]
            if name != subject:
                if name or subject in ids:
                    return False
                names[number] = subject
                ids[subject] = number
        return True

    def find_free(self) -> None:
        """Find the free numbers, for new subjects, once every segment index has claimed the numbers it has."""
        packed = self._packed
        self._free = list(positions_of(self.names, b"", len(self.names))) if packed is None else packed.free[:]

    # Questions

    def name_of(self, number: int) -> bytes:
        """Return the subject of a number."""
        return self.names[number]

    def is_used(self, number: int) -> bool:
        """Return whether a number is a subject's."""
        if self._packed is not None:
            return self._packed.has(number)
        return number < len(self.names) and bool(self.names[number])
