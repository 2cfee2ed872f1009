"""Records of a segment that are written over: again after a failed sync, or erased."""

from __future__ import annotations

import errno

from xxhash import xxh3_64_intdigest

from jetlake.store.log.record import HASH_SIZE, HEAD_SIZE, links_in, pack_erased
from jetlake.store.log.scan import scan
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["erasable", "erase", "is_grouped", "matches_digest", "write_again", "write_from"]


def matches_digest(segment: Segment, data: bytes) -> bool:
    """Return whether the bytes have the file's digest."""
    if segment.digest is None:
        return False
    return len(data) == segment.size and int(xxh3_64_intdigest(data)) == segment.digest


def write_again(segment: Segment) -> None:
    """Write the whole file over itself, for a sync that can be trusted after one that failed.

    Raises:
        OSError: the disk refused, or does not return the written bytes: only a restart can find the content.
    """
    if segment.size:
        data = segment.file.read_all(segment.size)
        content = scan(data, HEADER_SIZE, segment.checksum, None)
        # Earlier damage is already reported as lost, and does not prevent a sync of the rest.
        is_as_known = content.end == segment.size and content.damaged_bytes <= segment.damaged_bytes
        if len(data) < segment.size or not is_as_known:
            raise OSError(errno.EIO, "it does not hold the written bytes", str(segment.file.path))
        segment.file.write(data, 0)
    segment.file.truncate(segment.size)


def write_from(segment: Segment, start: int) -> None:
    """Write what the file holds from `start` on over itself, good records and bad; not what cannot be read.

    Raises:
        OSError: the disk refused to write.
    """
    if start < segment.size:
        file = segment.file
        try:
            data = file.read(segment.size - start, start)
        except OSError:
            return
        if file.blocks is None:  # A compressed one was synced before it got its name.
            file.write(data, start)


def is_grouped(segment: Segment, row: int) -> bool:
    """Return whether a row's record is one of a group.

    Raises:
        OSError: the disk refused.
    """
    head = segment.file.read(HEAD_SIZE, segment.offsets[row])
    return len(head) == HEAD_SIZE and links_in(head) != 0


def erase(segment: Segment, row: int, noise: bytes) -> None:
    """Overwrite the record of a dead row, which must be written already.

    Args:
        noise: random bytes, as many as `erasable` says.

    Raises:
        OSError: the disk refused.
    """
    subject_length = len(noise) // 2
    head = segment.file.read(HEAD_SIZE, segment.offsets[row])
    marked = segment.sequence_of(row) | (links_in(head) if len(head) == HEAD_SIZE else 0)
    data = pack_erased(marked, segment.times[row], subject_length, noise, segment.checksum)
    segment.file.write(data, segment.offsets[row])
    segment.file.tail.clear()
    segment.digest = None
    segment.hasher = None


def erasable(segment: Segment, row: int) -> int:
    """Return how many bytes of a row's record are overwritten: all but lengths, sequence, time and hash."""
    return segment.sizes[row] - HEAD_SIZE - HASH_SIZE
