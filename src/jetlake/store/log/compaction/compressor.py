"""The compression of full segments: in steps, written by the thread that syncs, then put in place."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from jetlake.errors import StoreError
from jetlake.store.index.index import Index
from jetlake.store.log.log import Log
from jetlake.store.log.overwriting import matches_digest
from jetlake.store.log.segment import SECOND_ASIDE_SUFFIX, Segment
from jetlake.store.log.segment_header import HEADER_SIZE

__all__ = ["Compressor"]

_BLOCK_BYTES = 64 * 1024
_WORTH_IT = 0.9


class _Compression:
    """One segment that is being compressed.

    Attributes:
        content: the compressed file; None until all steps are taken.
        is_written: the compressed file is on the disk, or `error` tells why not.
    """

    def __init__(self, segment: Segment, steps: Iterator[bytes | None]) -> None:
        self.segment = segment
        self.steps = steps
        self.content: bytes | None = None
        self.is_written = False
        self.error: OSError | None = None
        self._began = self._version()

    def _version(self) -> tuple[object, ...]:
        segment = self.segment
        return segment.size, segment.generation, segment.write_generation, segment.digest

    def is_outdated(self) -> bool:
        """Return whether the segment's file was changed since."""
        return self._began != self._version()

    @property
    def aside(self) -> Path:
        path = self.segment.file.path
        return path.with_name(path.name + SECOND_ASIDE_SUFFIX)


class Compressor:
    """Replaces the files of full segments by smaller ones that hold the same bytes.

    The new file is synced before it gets the name, so that a crash leaves the one or the other.

    Attributes:
        block_bytes: how much of a segment one compressed block holds.
        worth_it: a compressed file that is not smaller than this part of the segment only costs time.
    """

    def __init__(self, index: Index[Segment], log: Log) -> None:
        self.block_bytes = _BLOCK_BYTES
        self.worth_it = _WORTH_IT
        self._index = index
        self._log = log
        self._work: _Compression | None = None
        self._write_lock = threading.Lock()

    def step(self) -> bool:
        """Take the next step; False when no segment is left to compress.

        Once a file is built, `write` has to follow before the next step can be taken.

        Raises:
            StoreError: the disk refused; the segment is as it was.
        """
        try:
            if self._work is not None:
                self._advance(self._work)
                return True
            for segment in self._index.blocks:
                is_full = segment is not self._index.active and segment.size > HEADER_SIZE
                if is_full and not segment.is_compression_done and self._log.durability.is_safe(segment):
                    self._begin(segment)
                    return True
        except OSError as error:
            self.cancel()
            raise StoreError.of("compress a segment", error) from error
        return False

    def _begin(self, segment: Segment) -> None:
        segment.is_compression_done = True
        self._log.use((segment,))
        data = segment.file.read_all(segment.size)
        # What is damaged, or has erased records, stays as it is.
        if segment.file.blocks is None and matches_digest(segment, data):
            # Loaded here: most servers have no compressed stream.
            from jetlake.store.log.compressed_blocks import compress_in_steps

            self._work = _Compression(segment, compress_in_steps(data, self.block_bytes, segment.file.disk.hashing))

    def _advance(self, work: _Compression) -> None:
        segment = work.segment
        if segment not in self._index.blocks or work.is_outdated():
            segment.is_compression_done = False
            self.cancel()
        elif work.content is None:
            work.content = next(work.steps)
            if work.content is not None and len(work.content) > segment.size * self.worth_it:
                self.cancel()
        elif work.is_written:
            if work.error is not None:
                raise work.error
            self._work = None
            segment.file.is_plain = False
            self._log.disk.replace(work.aside, segment.file.path)
            segment.file.close()
            self._log.durability.renamed()

    def waits_for_write(self) -> bool:
        """Return whether a compressed file waits to be written."""
        work = self._work
        return work is not None and work.content is not None and not work.is_written

    def write(self) -> None:
        """Write a compressed file aside and sync it; may run in another thread."""
        with self._write_lock:
            work = self._work
            if work is None or work.content is None or work.is_written:
                return
            try:
                handle = self._log.disk.open(work.aside, create=True)
                try:
                    self._log.disk.truncate(handle, 0)
                    self._log.disk.write(handle, work.content, 0)
                    self._log.disk.sync(handle)
                finally:
                    self._log.disk.close(handle)
            except OSError as error:
                work.error = error
            work.is_written = True

    def cancel(self) -> None:
        """Give up the work in progress; if its file cannot be removed, the next start does that."""
        work, self._work = self._work, None
        if work is not None and work.content is not None:
            with suppress(OSError):
                self._log.disk.remove(work.aside)
