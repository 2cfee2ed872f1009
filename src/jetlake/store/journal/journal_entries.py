"""The entries of a consumer's journal: a letter and its numbers each, packed into a record and applied to a state.

`docs/formats.md` draws them.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from jetlake.store.columns import column_bytes, read_column
from jetlake.store.journal.consumer_state import ConsumerState

__all__ = ["ENTRY_KINDS", "SAFE", "JournalEntries", "encode_state", "replay"]

_RUN, _RUN_LIST, _AGAIN, _EXHAUSTED, _POSITION, _ACK_RANGE, _ACK_LIST, _FLOOR, _STATE = _KINDS = b"DdRXPAaFS"
_RUN_BODY = struct.Struct("<BQQIq")
_AGAIN_BODY = struct.Struct("<BQQqI")
_ONE_BODY = struct.Struct("<BQ")
_PAIR_BODY = struct.Struct("<BQQ")
_COUNT_BODY = struct.Struct("<BI")
_STATE_BODY = struct.Struct("<BQQQQIII")

# Far more messages than are delivered at a time.
_RUN_MAX = 1 << 20

SAFE = b"C"
"""The entry of a record that tells nothing of the consumer: all before it was synced when it was written."""
ENTRY_KINDS = _KINDS + SAFE
"""The letters with which an entry, and so what a record holds, may begin."""


class JournalEntries:
    """The entries recorded since the last flush; see `ConsumerJournal` for the calls."""

    __slots__ = ("_acks", "_deliveries", "_floor", "_position")

    def __init__(self) -> None:
        self._deliveries: list[bytes] = []
        self._acks: list[int] = []
        self._floor: tuple[int, int] | None = None
        self._position: tuple[int, int] | None = None

    def __bool__(self) -> bool:
        return bool(self._deliveries or self._acks or self._floor is not None or self._position is not None)

    def delivered_run(self, first_consumer_seq: int, stream_seqs: list[int], time_ns: int) -> None:
        first, count = stream_seqs[0], len(stream_seqs)
        if stream_seqs[-1] - first + 1 == count:
            entry = _RUN_BODY.pack(_RUN, first_consumer_seq, first, count, time_ns)
        else:
            entry = _RUN_BODY.pack(_RUN_LIST, first_consumer_seq, first, count, time_ns)
            entry += column_bytes(array("Q", stream_seqs))
        self._deliveries.append(entry)

    def delivered(self, consumer_seq: int, stream_seq: int, time_ns: int, delivery_count: int) -> None:
        self._deliveries.append(_AGAIN_BODY.pack(_AGAIN, consumer_seq, stream_seq, time_ns, delivery_count))

    def exhausted(self, stream_seq: int) -> None:
        self._deliveries.append(_ONE_BODY.pack(_EXHAUSTED, stream_seq))

    def acked(self, stream_seqs: Iterable[int]) -> None:
        self._acks.extend(stream_seqs)

    def ack_floor(self, consumer_seq: int, stream_seq: int) -> None:
        self._floor = (consumer_seq, stream_seq)

    def position(self, consumer_seq: int, stream_seq: int) -> None:
        self._position = (consumer_seq, stream_seq)

    def pack(self) -> bytes:
        """Pack the recorded entries. Deliveries come first: nothing is acknowledged before it is delivered."""
        entries = self._deliveries[:]
        if self._position is not None:
            entries.append(_PAIR_BODY.pack(_POSITION, *self._position))
        if self._acks:
            entries.append(_ack_entry(self._acks))
        if self._floor is not None:
            entries.append(_PAIR_BODY.pack(_FLOOR, *self._floor))
        return b"".join(entries)

    def clear(self) -> None:
        """Forget the recorded entries."""
        self._deliveries.clear()
        self._acks.clear()
        self._floor = self._position = None


def _ack_entry(sequences: list[int]) -> bytes:
    done = sorted(sequences)
    if done[-1] - done[0] + 1 == len(done):
        return _PAIR_BODY.pack(_ACK_RANGE, done[0], done[-1])
    return _COUNT_BODY.pack(_ACK_LIST, len(done)) + column_bytes(array("Q", done))


def _apply_entries(state: ConsumerState, data: bytes) -> None:
    """Bring a state up to date with the entries of a record."""
    at = 0
    while at < len(data):
        kind = data[at]
        if kind in (_RUN, _RUN_LIST):
            _, consumer, first, count, time_ns = _RUN_BODY.unpack_from(data, at)
            at += _RUN_BODY.size
            if count > _RUN_MAX:
                raise ValueError(f"a run of {count} messages")
            sequences: Iterable[int] = range(first, first + count)
            if kind == _RUN_LIST:
                sequences = _numbers(data, at, count)
                at += 8 * count
            state.deliver_run(consumer, sequences, time_ns)
        elif kind == _AGAIN:
            state.deliver_again(*_AGAIN_BODY.unpack_from(data, at)[1:])
            at += _AGAIN_BODY.size
        elif kind == _EXHAUSTED:
            state.exhaust(_ONE_BODY.unpack_from(data, at)[1])
            at += _ONE_BODY.size
        elif kind == _ACK_LIST:
            count = _COUNT_BODY.unpack_from(data, at)[1]
            at += _COUNT_BODY.size
            for sequence in _numbers(data, at, count):
                state.acknowledge(sequence, sequence)
            at += 8 * count
        elif kind in (_ACK_RANGE, _POSITION, _FLOOR):
            _, one, other = _PAIR_BODY.unpack_from(data, at)
            at += _PAIR_BODY.size
            if kind == _ACK_RANGE:
                state.acknowledge(one, other)
            elif kind == _POSITION:
                state.move(one, other)
            else:
                state.raise_floor(one, other)
        else:
            # The record is whole, so this comes from a later version of the software: it tells no more to this one.
            return


def encode_state(state: ConsumerState) -> bytes:
    """Return the whole state as an entry."""
    pending = state.pending
    uncertain = [sequence for pair in state.uncertain for sequence in pair]
    return b"".join(
        (
            _STATE_BODY.pack(
                _STATE,
                state.delivered_consumer,
                state.delivered_stream,
                state.floor_consumer,
                state.floor_stream,
                len(pending),
                len(state.deliveries),
                len(state.uncertain),
            ),
            column_bytes(array("Q", pending)),
            column_bytes(array("Q", [consumer for consumer, _, _ in pending.values()])),
            column_bytes(array("Q", [time_ns for _, time_ns, _ in pending.values()])),
            column_bytes(array("Q", [count for _, _, count in pending.values()])),
            column_bytes(array("Q", state.deliveries)),
            column_bytes(array("Q", state.deliveries.values())),
            column_bytes(array("Q", uncertain)),
        )
    )


def _decode_state(data: bytes) -> ConsumerState | None:
    """Return the state that an entry describes; None when it is another kind of entry."""
    if data[:1] != bytes((_STATE,)):
        return None
    _, delivered_consumer, delivered_stream, floor_consumer, floor_stream, pending, deliveries, uncertain = (
        _STATE_BODY.unpack_from(data)
    )
    numbers = _numbers(data, _STATE_BODY.size, 4 * pending + 2 * deliveries + 2 * uncertain)
    columns = [numbers[index * pending : (index + 1) * pending] for index in range(4)]
    rest = numbers[4 * pending :]
    ends = rest[2 * deliveries :]
    return ConsumerState(
        delivered_consumer=delivered_consumer,
        delivered_stream=delivered_stream,
        floor_consumer=floor_consumer,
        floor_stream=floor_stream,
        pending=dict(zip(columns[0], zip(*columns[1:], strict=True), strict=True)),
        deliveries=dict(zip(rest[:deliveries], rest[deliveries : 2 * deliveries], strict=True)),
        uncertain=list(zip(ends[::2], ends[1::2], strict=True)),
    )


def replay(records: list[bytes]) -> ConsumerState | None:
    """Return the state that records add up to; None when they do not begin with one, or no journal writes such.

    A hash that is right over entries that are too short, or over a run longer than any that is written, comes from no
    crash: such a file is not believed.
    """
    try:
        state = _decode_state(records[0]) if records else None
        if state is None:
            return None
        for entries in records[1:]:
            if _decode_state(entries) is None:
                _apply_entries(state, entries)
    except (struct.error, ValueError):
        return None
    return state


def _numbers(data: bytes, at: int, count: int) -> array[int]:
    if at + 8 * count > len(data):
        raise ValueError(f"{count} numbers in {len(data) - at} bytes")
    return read_column("Q", data[at : at + 8 * count])
