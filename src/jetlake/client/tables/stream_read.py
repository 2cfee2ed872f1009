"""One read of a stream: planned when it begins, then message by message to its end."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TypeVar

import pyarrow as pa

from jetlake.client.tables.columns.message_columns import MessageColumns
from jetlake.client.tables.options.positions import Position
from jetlake.client.tables.options.read_options import Link
from jetlake.client.tables.options.table_options import TableOptions
from jetlake.client.tables.plan.data_loss import seen_of
from jetlake.client.tables.plan.offsets import BatchRange, StreamOffset
from jetlake.client.tables.plan.partition import ReadPartition
from jetlake.client.tables.plan.planning import SequenceRange
from jetlake.client.tables.plan.reader_choice import check_server, choose_reader, parse_version
from jetlake.client.tables.reading.leader_reader import last_by_leader
from jetlake.client.tables.reading.range_reader import read_range
from jetlake.client.tables.reading.ranges import check_head, position_range
from jetlake.client.tables.reading.tasks import plan_pieces
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi

__all__ = ["read_bucket", "read_stream"]

T = TypeVar("T")

# How often the read of a bucket follows what is written meanwhile, before the keys that it misses are asked for.
_ROUNDS_MAX = 8


@dataclass(frozen=True)
class _LinkedOptions:
    """A table's options and the way to its servers, as readers want them."""

    connection: Link
    subjects: tuple[str, ...]
    fail_on_data_loss: bool
    reader: str
    direct_below: int


def read_stream(link: Link, stream: str, options: TableOptions) -> Iterator[MessageColumns]:
    """Return the messages between the options' start and end, as the stream is now; planned before this returns.

    Raises:
        StreamNotFoundError: there is no such stream.
        DataLossError: the options name a first sequence that is gone, and that is an error.
        UnsupportedStreamError: the stream cannot be read with these options.
    """
    linked = _linked(link, options)
    return _messages(_plan(linked, stream, options), linked)


def read_bucket(link: Link, stream: str, options: TableOptions) -> Iterator[MessageColumns]:
    """Yield all messages of a bucket's stream, then those that came meanwhile, until every key has a value.

    A value that is superseded before it is read is missed, and the one that superseded it is behind the end that was
    planned; so only a read that has caught up has a value of every key. A read that cannot catch up with the writers
    asks for the newest values of the keys that it may have missed.

    Raises:
        UnsupportedStreamError: the read cannot catch up, and the keys cannot be listed.
    """
    linked = _linked(link, options)
    partitions = _plan(linked, stream, options)

    def rounds() -> Iterator[MessageColumns]:
        planned = partitions
        end = 0
        found: list[pa.Array] = []
        for _ in range(_ROUNDS_MAX):
            if not planned:
                return
            for part in _messages(planned, linked):
                found.append(part.subject)
                yield part
            end = planned[-1].end
            planned = _plan(linked, stream, replace(options, start=Position("sequence", end)))
        if planned:
            missed = _ask(link, lambda api: _missed(api, stream, options.subjects or (">",), found, end))
            if len(missed):
                yield missed

    return rounds()


def _missed(api: StreamApi, stream: str, patterns: tuple[str, ...], found: list[pa.Array], end: int) -> MessageColumns:
    """Return the newest messages of a bucket's keys that a read up to sequence `end` may have missed.

    A message that was superseded before it was read has a successor behind the end. With one message a key, a key that
    was read at all was read as it was since the read began; with more, an older message may have been read instead.
    """
    subjects = {subject for pattern in patterns for subject in api.subjects_of(stream, pattern)}
    if api.stream_info(stream).config.max_msgs_per_subject == 1:
        for part in found:
            subjects.difference_update(subject.decode("utf-8", "replace") for subject in part.to_pylist())
    return last_by_leader(api, stream, sorted(subjects), end)


def _linked(link: Link, options: TableOptions) -> _LinkedOptions:
    return _LinkedOptions(link, options.subjects, options.fail_on_data_loss, options.reader, options.direct_below)


def _messages(partitions: list[ReadPartition], options: _LinkedOptions) -> Iterator[MessageColumns]:
    for partition in partitions:
        yield from read_range(partition, options)


def _plan(linked: _LinkedOptions, stream: str, options: TableOptions) -> list[ReadPartition]:
    return _ask(linked.connection, lambda api: _plan_range(api, stream, linked, options))


def _ask(link: Link, question: Callable[[StreamApi], T]) -> T:
    return retrying(link, lambda connection: question(StreamApi.through(connection, link)))


def _plan_range(api: StreamApi, stream: str, linked: _LinkedOptions, options: TableOptions) -> list[ReadPartition]:
    version = parse_version(api.connection.server_version)
    check_server(version)
    info = api.stream_info(stream)
    whole, soft = position_range(api, version, info, options.start, options.end, time.time_ns(), options.subjects)
    if not soft and len(whole):
        check_head(info, whole.first, options.subjects, fail=options.fail_on_data_loss)
    whole = SequenceRange(max(whole.first, info.state.first_seq, 1), whole.end)
    if not len(whole):
        return []
    reader = choose_reader(info.config, version, linked, len(whole))
    planned = StreamOffset(info.created, whole.end, seen=seen_of(info), batch=BatchRange(whole.first, soft=soft))
    return plan_pieces(api, info, [whole], linked, reader, planned=planned)
