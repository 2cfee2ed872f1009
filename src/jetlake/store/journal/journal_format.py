"""How a consumer's journal lies on disk: a header, then records of entries; `docs/formats.md` draws it.

Little-endian. The header and the state that a file begins with are there twice, since without them nothing that follows
could be read. A record is `length 4 | entries | hash 8`, the hash being xxh3 (64 bits, canonical byte order) over all
before it, seeded for the journal and the file. An entry is a letter and its numbers.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable

from xxhash import xxh3_64_digest, xxh3_64_intdigest

from jetlake.store.columns import column_bytes, read_column
from jetlake.store.journal.consumer_state import ConsumerState

__all__ = [
    "FORMAT_VERSION",
    "HEADER_SIZE",
    "MAGIC",
    "SAFE",
    "ack_entry",
    "again_entry",
    "encode_state",
    "exhausted_entry",
    "floor_entry",
    "header_key",
    "owner_of",
    "owner_tag",
    "pack_header",
    "pack_record",
    "position_entry",
    "read_records",
    "replay",
    "run_entry",
    "seed_of",
]

FORMAT_VERSION = 1

MAGIC = b"JLCJ"
_HEADER = struct.Struct("<4sHHIQ")
_HASH = struct.Struct("<Q")
_HEADER_COPY = _HEADER.size + _HASH.size
HEADER_SIZE = 2 * _HEADER_COPY
_LENGTH = struct.Struct("<I")
_OVERHEAD = 12

_RUN, _RUN_LIST, _AGAIN, _EXHAUSTED, _POSITION, _ACK_RANGE, _ACK_LIST, _FLOOR, _STATE = b"DdRXPAaFS"
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


# Files and records


def seed_of(key: int, number: int) -> int:
    """The seed of a file's hashes."""
    return int(xxh3_64_intdigest(struct.pack("<QI", key, number)))


def owner_tag(name: str) -> int:
    """What a file says of whose it is: a number for a name, 0 for none."""
    return xxh3_64_intdigest(name.encode()) % 0xFFFF + 1 if name else 0


def owner_of(data: bytes) -> int:
    """The owner in a header, which must be good in one of its places; 0 when it has none."""
    return max(int(_HEADER.unpack_from(data, at)[2]) for at in (0, _HEADER_COPY) if _is_good(data, at))


def pack_header(key: int, number: int, owner: int = 0) -> bytes:
    """What a file begins with."""
    body = _HEADER.pack(MAGIC, FORMAT_VERSION, owner, number, key)
    return 2 * (body + _HASH.pack(xxh3_64_intdigest(body)))


def header_key(data: bytes, number: int) -> int | None:
    """The journal's key from the header of file `number`; None when that is not what it is."""
    for at in (0, _HEADER_COPY):
        if not _is_good(data, at):
            continue
        magic, version, _, own_number, key = _HEADER.unpack_from(data, at)
        if (magic, version, own_number) == (MAGIC, FORMAT_VERSION, number):
            return int(key)
    return None


def _is_good(data: bytes, at: int) -> bool:
    body = data[at : at + _HEADER.size]
    return len(data) >= HEADER_SIZE and _HASH.unpack_from(data, at + _HEADER.size)[0] == xxh3_64_intdigest(body)


def pack_record(entries: bytes, seed: int) -> bytes:
    """One record."""
    body = _LENGTH.pack(len(entries) + _OVERHEAD) + entries
    return body + xxh3_64_digest(body, seed)


def read_records(data: bytes, seed: int) -> tuple[list[bytes], int]:
    """The entries of every whole record, and where the last of them ends; damaged ones are passed over."""
    found: list[bytes] = []
    at = end = HEADER_SIZE
    while at + _OVERHEAD <= len(data):
        stop = at + _LENGTH.unpack_from(data, at)[0]
        if at + _OVERHEAD <= stop <= len(data) and data[stop - 8 : stop] == xxh3_64_digest(data[at : stop - 8], seed):
            found.append(data[at + 4 : stop - 8])
            at = end = stop
        else:
            at += 1
    return found, end


# Entries


def run_entry(first_consumer: int, sequences: list[int], time_ns: int) -> bytes:
    """Messages were delivered for the first time."""
    first, count = sequences[0], len(sequences)
    if sequences[-1] - first + 1 == count:
        return _RUN_BODY.pack(_RUN, first_consumer, first, count, time_ns)
    return _RUN_BODY.pack(_RUN_LIST, first_consumer, first, count, time_ns) + column_bytes(array("Q", sequences))


def again_entry(consumer: int, sequence: int, time_ns: int, count: int) -> bytes:
    """A message was delivered once more."""
    return _AGAIN_BODY.pack(_AGAIN, consumer, sequence, time_ns, count)


def exhausted_entry(sequence: int) -> bytes:
    """A message was delivered as often as allowed."""
    return _ONE_BODY.pack(_EXHAUSTED, sequence)


def position_entry(consumer: int, stream: int) -> bytes:
    """Deliveries have come to here without anything pending."""
    return _PAIR_BODY.pack(_POSITION, consumer, stream)


def floor_entry(consumer: int, stream: int) -> bytes:
    """Everything up to here is acknowledged."""
    return _PAIR_BODY.pack(_FLOOR, consumer, stream)


def ack_entry(sequences: list[int]) -> bytes:
    """Messages are done; in any order."""
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
    """The whole state as an entry."""
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
    """The state that an entry tells of; None when it is another kind of entry."""
    if data[:1] != bytes((_STATE,)):
        return None
    _, delivered_consumer, delivered_stream, floor_consumer, floor_stream, pending, deliveries, uncertain = (
        _STATE_BODY.unpack_from(data)
    )
    numbers = _numbers(data, _STATE_BODY.size, 4 * pending + 2 * deliveries + 2 * uncertain)
    columns = [numbers[place * pending : (place + 1) * pending] for place in range(4)]
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
    """The state that the records of a file tell; None when they do not begin with one, or are not as they are written.

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
