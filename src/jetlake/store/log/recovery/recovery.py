"""Recovery of a store from its files: which messages are there, removed or lost. No damage keeps it from ending.

    list of segments ─┐                            ┌─ as in the snapshot ─────────► taken over
    mark ─────────────┼─► one pass, oldest first ──┼─ full, with a segment index ─► taken over, removals applied
    snapshot ─────────┘   (`_Recovery.run`)        ├─ the snapshot's newest one ──► its end is read
                                                   └─ any other ──────────────────► read as a whole

What is always true:

- The log decides. Snapshot and segment indexes save reading: each counts only for a segment that is as it was then, by
  generation and size, and a segment index only for a synced segment (before `safe_end`).
- Every sequence up to `last_sequence` ends in one of four states: a message, removed (a tombstone, or a segment that
  was struck off the list), lost (it was durable and is gone: reported), or dropped (never known to be durable, so that
  no client has an acknowledgement).
- `last_sequence` is at least every sequence that mark, list, headers or records name. If the newest segment and the
  mark are both gone, the store is not opened: its sequences could be used twice.
- A damaged record costs that record. The scan continues behind it; a gap next to damage counts as missing.
- Of a group, all messages are recovered or none.
- The pass writes nothing but removals of unfinished files, empty segments and outdated segment indexes, and damaged
  headers. A crash in recovery leaves the same evidence to the next start.
- When the disk returns nothing of an existing segment, recovery raises, and nothing has changed: its messages may be
  back with the disk.

The reasons are in decision 5 (docs/decisions).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from xxhash import xxh3_64

from jetlake.store.files.atomic_file import ASIDE_SUFFIX
from jetlake.store.files.disk import Disk
from jetlake.store.files.own_files import MESSAGE_FILES, foreign_names, format_names
from jetlake.store.index.subject_index import SubjectIndex
from jetlake.store.log.durability import Mark
from jetlake.store.log.lost_messages import LOST_MAX
from jetlake.store.log.recovery.findings import Evidence, Findings
from jetlake.store.log.recovery.recovered import Recovered
from jetlake.store.log.recovery.segment_files import SegmentFile, data_size, find_segments
from jetlake.store.log.scan import WINDOW_BYTES, Scan, scan, scan_long
from jetlake.store.log.segment import Segment
from jetlake.store.log.segment_header import HEADER_SIZE, segment_number
from jetlake.store.log.segment_index.format import IndexHead, index_path, read_head
from jetlake.store.log.segment_index.recovered_subjects import RecoveredSubjects
from jetlake.store.log.segment_list import Listed
from jetlake.store.log.snapshot.index_snapshot import IndexSnapshot, read_snapshot
from jetlake.store.sequence_ranges import ranges_of, without

__all__ = ["recover"]


def recover(
    disk: Disk,
    folder: Path,
    mark: Mark,
    listed: Listed | None,
    new_key: Callable[[], int],
    snapshot_name: str,
    note: Callable[[str], None],
    *,
    reuses_sequences: bool = False,
) -> Recovered:
    """Recover a store's folder from the index snapshot, and from the log where the snapshot is missing or stale.

    Args:
        listed: the segments that should be there; None without a list.
        note: logs removed files, and files that are not the store's.
        reuses_sequences: sequences that were written and never synced are free again.

    Raises:
        OSError: a segment is there and the disk gives nothing of it back. Nothing was changed; to continue without it
            would be to give up messages that may be back with the disk.
        StoreError: the files are another stream's, or sequences might be used again because too much is missing.
    """
    names = disk.kinds(folder)
    foreign = foreign_names(MESSAGE_FILES, names)
    foreign += [name for name in names if name.endswith(".seg") and segment_number(name) is None]
    if foreign := sorted(set(foreign)):
        note(f"{folder} contains files that the store did not write and leaves untouched: {format_names(foreign)}")
    _clear_aside(disk, folder, [name for name in names if name not in foreign], note)
    files = find_segments(disk, folder, [name for name in names if name not in foreign], mark, listed, note)
    found = Recovered()
    found.key = files.key or new_key()
    found.taken_numbers = {number for name in names if (number := segment_number(name)) is not None}
    snapshot = read_snapshot(disk, folder, snapshot_name, sum(file.size for file in files.own.values()))
    if snapshot is None or snapshot.key != found.key:
        snapshot = IndexSnapshot()
    recovery = _Recovery(disk, folder, Evidence(names, files.own, snapshot, listed), found, note)
    recovery.run(files.mark, reuses_sequences=reuses_sequences)
    if reuses_sequences:
        # Missing messages before the end can not be stored again: they are reported as lost.
        found.safe_sequence = found.last_sequence
    if recovery.passed_over:
        skipped = format_names(recovery.passed_over)
        note(f"{folder} holds segments with no record in them, and leaves them alone: {skipped}")
    used = [segment.number for segment in (*found.segments, *snapshot.segments)]
    found.next_number = max((*used, *(listed.segments if listed is not None else ())), default=0) + 1
    while found.next_number in found.taken_numbers:
        found.next_number += 1
    return found


def _clear_aside(disk: Disk, folder: Path, names: list[str], note: Callable[[str], None]) -> None:
    for name in names:
        if name.endswith(ASIDE_SUFFIX):
            try:
                disk.remove(folder / name)
            except OSError:
                # It does no harm.
                continue
            note(f"Removed {folder / name}, which was left unfinished by a crash")


class _Recovery:
    """One pass over the segments, in the order of the log."""

    def __init__(
        self, disk: Disk, folder: Path, evidence: Evidence, found: Recovered, note: Callable[[str], None]
    ) -> None:
        names, files, snapshot, listed = evidence
        self.passed_over: list[str] = []
        self._note_text = note
        self._disk = disk
        self._folder = folder
        self._names = names
        self._found = found
        self._files = files
        self._listed = listed.segments if listed is not None else None
        self._findings = Findings(folder, evidence, found)
        self._known = {segment.number: segment for segment in snapshot.segments}
        self._known_last = max(self._known, default=0)
        self._known_sequence = snapshot.last_sequence
        # What the snapshot takes for living messages, and was found to be lost since.
        self._lost_since = without(listed.lost if listed is not None else [], ranges_of(snapshot.lost), LOST_MAX)
        counters_hold = all(map(self._is_as_known, (segment for segment in snapshot.segments if segment.spilled)))
        self._subjects = RecoveredSubjects(disk, snapshot, counters_hold=counters_hold)
        self._heads: dict[int, IndexHead] = {}
        self._has_hole = False  # the segment before was passed over

    def run(self, mark: Mark, *, reuses_sequences: bool) -> None:
        """Take in every segment, then find the end."""
        listed = self._listed or {}
        # A segment is listed when it is safe, and those before it are.
        self._found.safe_end = max(mark.safe_end, (max(listed, default=0), 0))
        self._find_heads()
        numbers = sorted(self._known.keys() | self._files.keys() | listed.keys())
        for index, number in enumerate(numbers):
            following = self._files.get(numbers[index + 1]) if index + 1 < len(numbers) else None
            segment = self._take_in(number, following)
            if segment is not None:
                if self._listed is None and segment.is_damaged and segment is self._known.get(number):
                    # The lost list may have recorded torn records in it, which nothing else records.
                    self._found.torn.add(number)
                self._found.segments.append(segment)
                self._subjects.take(segment)
                self._found.last_sequence = max(self._found.last_sequence, segment.high_water)
            elif number in listed:
                self._findings.note_vanished(number, mark)
        for segment in self._found.segments[:-1]:
            segment.seal()
        self._found.subjects = self._subjects.finish(self._found.segments)
        self._found.missing += self._subjects.missing
        self._findings.find_the_end(mark, reuses_sequences=reuses_sequences)

    def _take_in(self, number: int, following: SegmentFile | None) -> Segment | None:
        file = self._files.get(number)
        known = self._known.get(number)
        if file is None:
            if known is not None and self._listed is not None:
                self._findings.note_absent(known, set(), lost=number in self._listed)
            elif known is not None:
                # The log is removed from its front; what is missing in between was taken by another program.
                self._findings.note_absent(known, set(), lost=number > min(self._files, default=0))
            return None
        if known is not None:
            known.file.name, known.file.is_plain = file.name, file.is_plain
        if (known is None or known.spilled is None) and (segment := self._by_index(file, known)) is not None:
            return segment
        as_known = known is not None and self._is_as_known(known)
        if as_known and known is not None and (number != self._known_last or known.spilled is not None):
            return known
        # What is read now may be changed before it has a segment index again: an old one must not be believed then.
        index_parts = index_path(self._folder / file.name)
        if index_parts.name in self._names:
            with suppress(OSError):
                self._disk.remove(index_parts)
        if known is None:
            return self._read(file, following)
        if as_known and (segment := self._read_on(known, following)) is not None:
            return segment
        return self._read_again(file, known, following)

    def _is_as_known(self, known: Segment) -> bool:
        """Return whether a segment is as in the snapshot, perhaps longer, and nothing was lost since."""
        index = bisect_left(self._lost_since, known.first)
        if index < len(self._lost_since) and self._lost_since[index] <= known.last_row_sequence:
            return False
        file = self._files.get(known.number)
        return (
            file is not None
            and file.header is not None
            and file.header.generation == known.generation
            and file.size >= known.size
        )

    # The ways to take in a segment

    def _by_index(self, file: SegmentFile, known: Segment | None) -> Segment | None:
        """Take in a full segment by its segment index; None when there is none that tells all about it."""
        head = self._heads.pop(file.number, None)
        found = self._found
        if head is None or any(first <= head.last and last >= head.segment.first for first, last in found.missing):
            return None
        if known is not None:
            self._findings.note_dead(known)
        self._findings.note_index(head)
        head.segment.file.is_plain = file.is_plain
        found.by_index.append(head.segment)
        return head.segment

    def _find_heads(self) -> None:
        """Read the heads of segment indexes that can be trusted, and give their subjects the numbers they have there.

        A segment index does not show which messages a power cut took: only the index of a synced segment counts. Such
        a segment has no incomplete group either, since a group is synced as a whole.
        """
        for number, file in self._files.items():
            known = self._known.get(number)
            if (
                file.header is None
                or number >= self._found.safe_end[0]
                or (known is not None and known.spilled is not None)
            ):
                continue
            try:
                head = read_head(self._disk, self._folder, file.name)
            except OSError:
                continue
            if head is None or not _fits(head.segment, file, self._found.key):
                continue
            if file.size < head.segment.size:
                self._findings.doubt(number)
            elif file.size == head.segment.size:
                assert head.segment.index_parts is not None
                if self._subjects.claim(head.segment.file.path, head.segment.index_parts):
                    self._heads[number] = head

    def _read(self, file: SegmentFile, following: SegmentFile | None) -> Segment | None:
        """Read a whole segment that is not in the snapshot."""
        segment = self._new(file, self._findings.position + 1)
        if self._has_hole and file.header is not None and segment.first > self._findings.position + 1:
            # sometimes: an emptied segment is passed over
            # The file before has lost all of its records, and these were written behind them.
            self._found.missing.append((self._findings.position + 1, segment.first - 1))
            self._findings.position = segment.first - 1
        self._has_hole = False
        first = segment.first if file.header is not None else (self._listed or {}).get(file.number, 0)
        content = self._scan(segment, first - 1 if first else None)
        if file.header is None and not content.sequences:
            content.position = max(content.position, self._findings.position)
        elif file.header is None:
            segment.first = content.sequences[0]
            if (file.number - 1) in self._files and segment.first > self._findings.position + 1:
                self._found.missing.append((self._findings.position + 1, segment.first - 1))
        if file.header is None and content.end == HEADER_SIZE:
            self._pass_over(segment, file, content)
            return None
        self._findings.note(segment, content, following)
        self._leave_out_undone(segment, content)
        _extend(segment, content, self._subjects.index)
        self._rewrite_header(segment, file, content)
        return segment

    def _leave_out_undone(self, segment: Segment, content: Scan) -> None:
        """Leave out messages whose sequences the segment before has too.

        A full disk had taken a part of them, their file was removed and their sequences went to others; a power cut
        brought the file back. No client was promised the first ones.
        """
        before = self._found.segments[-1] if self._found.segments else None
        last = before.last_row_sequence if before is not None else 0
        if segment.first <= last:
            # The file may have no more than its header of them, which tells the first sequence all the same.
            segment.dead_records = content.drop_until(last) or segment.dead_records
            segment.first = last + 1

    def _read_on(self, known: Segment, following: SegmentFile | None) -> Segment | None:
        """Read what the snapshot's last segment got since; None when the segment was damaged since."""
        size = max(data_size(known.file), known.size)
        if size > WINDOW_BYTES:
            return None
        data = known.file.read_all(size)
        known.hasher = xxh3_64(data[: known.size])
        if known.digest is None or known.hasher.intdigest() != known.digest:
            return None
        known.verified = True
        content = scan(data, known.size, known.checksum, self._findings.position)
        if content.end > known.size:
            self._found.unsynced.append(known)
        known.hasher.update(data[known.size : content.end])
        known.size = known.end = content.end
        self._findings.note(known, content, following)
        _extend(known, content, self._subjects.index)
        return known

    def _read_again(self, file: SegmentFile, known: Segment, following: SegmentFile | None) -> Segment | None:
        """Read a segment that was rewritten or damaged since the snapshot; rows that were dead then stay dead."""
        segment = self._new(file, known.first)
        known.file.close()
        position = self._findings.position
        content = self._scan(segment, segment.first - 1)
        if file.header is None and content.end == HEADER_SIZE:
            self._pass_over(segment, file, content)
            self._findings.note_absent(known, set())
            return None
        self._findings.position = max(position, content.position) if file.number == self._known_last else position
        rewritten = file.header is not None and segment.generation != known.generation
        self._findings.note(segment, content, following)
        self._findings.note_dead(known)
        self._findings.note_absent(known, set(content.sequences), lost=not rewritten)
        keep = [
            index
            for index, sequence in enumerate(content.sequences)
            if sequence > self._known_sequence or ((row := known.row_of(sequence)) >= 0 and known.live[row])
        ]
        segment.dead_records = len(keep) < len(content.sequences)
        _extend(segment, content.only(keep), self._subjects.index)
        self._rewrite_header(segment, file, content)
        return segment

    def _new(self, file: SegmentFile, first: int) -> Segment:
        number = file.header.number if file.header is not None else file.number
        segment = Segment(self._disk, self._folder, self._found.key, number, first)
        segment.file.name = file.name
        if file.header is not None:
            segment.first = file.header.first_sequence
            segment.generation = file.header.generation
            segment.high_water = file.header.high_water
        return segment

    def _pass_over(self, segment: Segment, file: SegmentFile, content: Scan) -> None:
        """Skip a file without content: a power cut left only its name, or it belongs to no segment of the stream."""
        self._found.unsynced.remove(segment)
        self._findings.note_empty(content)
        self._has_hole = True
        if not file.is_unwritten:
            self.passed_over.append(file.name)
            return
        try:
            self._disk.remove(segment.file.path)
        except OSError:
            # It does no harm.
            return
        self._note_text(f"Removed {segment.file.path}, of which a crash left nothing but the name")

    def _rewrite_header(self, segment: Segment, file: SegmentFile, content: Scan) -> None:
        """Rewrite a damaged header: it is one of the few places that know the stream's key."""
        if file.header is not None:
            return
        segment.hasher = None
        try:
            self._disk.write(segment.file.open(), segment.header().pack(self._disk.hashing), 0)
        except OSError:
            # The mark knows the key as well.
            pass

    def _scan(self, segment: Segment, position: int | None) -> Scan:
        try:
            size = data_size(segment.file)
            if size > WINDOW_BYTES:
                content = scan_long(segment.file.read_all, size, HEADER_SIZE, segment.checksum, position)
                segment.hasher = None
            else:
                data = segment.file.read_all(size)
                content = scan(data, HEADER_SIZE, segment.checksum, position)
        finally:
            segment.file.close()
        self._found.unsynced.append(segment)
        segment.size = segment.end = max(content.end, HEADER_SIZE)
        if segment.hasher is not None:
            segment.hasher.update(data[: segment.size])
        return content


def _fits(segment: Segment, file: SegmentFile, key: int) -> bool:
    """Return whether a segment index's segment is the one in a file, which may have lost its end."""
    header = file.header
    return (
        header is not None
        and (header.key, header.number, header.generation) == (key, segment.number, segment.generation)
        and (segment.key, segment.first) == (key, header.first_sequence)
    )


def _extend(segment: Segment, content: Scan, subjects: SubjectIndex) -> None:
    """Give a segment a living row for each message of a scan."""
    sequences = content.sequences
    count = len(sequences)
    if not count:
        return
    if segment.sequences is None:
        expected = segment.first + len(segment.live)
        if sequences[0] != expected or sequences[-1] - sequences[0] + 1 != count:
            segment.sequences = array("Q", range(segment.first, expected))
    if segment.sequences is not None:
        segment.sequences.extend(sequences)
    segment.sizes.extend(content.sizes)
    segment.times.extend(content.times)
    segment.offsets.extend(content.offsets)
    segment.subject_ids.extend(map(subjects.number_of, content.subjects))
    segment.live.extend(b"\x01" * count)
    segment.live_count += count
    segment.live_bytes += sum(content.sizes)
