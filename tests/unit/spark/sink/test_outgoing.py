"""Messages as columns: their frames, and what is open of them."""

import numpy as np
import pytest

from jetlake.protocol.frames import Pub
from jetlake.protocol.parser import ServerParser
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.sink.outgoing import OutgoingBatch, OutgoingMessage
from jetlake.spark.sink.publisher import Chunk, Publisher

HEADER = b"NATS/1.0\r\nK: v\r\n\r\n"


def batch_of(*pairs):
    return OutgoingBatch.of([OutgoingMessage(b"s.%d" % n, header, data, b"") for n, (header, data) in enumerate(pairs)])


@pytest.mark.parametrize(
    "pairs",
    [
        [(b"", b"one"), (b"", b"")],
        [(HEADER, b"one"), (HEADER, b"")],
        [(b"", b"one"), (b"", b"two")],
        [(HEADER, b"one"), (HEADER, b"two")],
        [(HEADER, b"one"), (HEADER.replace(b"v", b"vv"), b"tw"), (HEADER.replace(b"v", b"vvv"), b"three")],
        [(HEADER, b"PUB x 1\r\n"), (b"", b"two"), (HEADER, b"\0\xff")],
    ],
)
def test_frames_are_what_a_server_reads(pairs):
    batch = batch_of(*pairs)
    data, edges, sizes = batch.frames(b"_INBOX.x.", 9)
    frames = ServerParser().feed(bytes(data))
    assert frames == [Pub(b"s.%d" % n, b"_INBOX.x.%d" % (9 + n), *pair) for n, pair in enumerate(pairs)]
    for number, frame in enumerate(frames):
        assert ServerParser().feed(bytes(data[edges[number] : edges[number + 1]])) == [frame]
    assert sizes.tolist() == [len(header) + len(payload) for header, payload in pairs]
    lines = [bytes(data[edge:]).split(b"\r\n")[0].split(b" ", 1)[1] for edge in edges[:-1]]
    assert batch.frames(b"_INBOX.x.", 9).line_sizes().tolist() == [len(line) for line in lines]


def test_slices_have_their_own_frames():
    batch = batch_of((b"", b"zero"), (HEADER, b"one"), (b"", b"two"))
    (frame,) = ServerParser().feed(bytes(batch.slice(1, 1).frames(b"i.", 4).data))
    assert frame == Pub(b"s.1", b"i.4", HEADER, b"one")


def test_content_does_not_depend_on_where_it_is_cut():
    batch = batch_of(*[(HEADER if n % 2 else b"", b"%d" % n) for n in range(10)])
    whole = batch.sum_of_hashes(in_ids=False)
    for rows in (1, 3, 10):
        assert sum(chunk.sum_of_hashes(in_ids=False) for chunk in batch.chunks(rows)) == whole
    assert batch.with_subjects([b"x"] * 10).sum_of_hashes(in_ids=False) != whole


@pytest.fixture
def publisher():
    publisher = Publisher(SinkOptions.of({}))
    for _ in range(2):
        publisher.add(Chunk(batch_of(*[(b"", b"%d" % n) for n in range(4)]), b"i.", publisher.count))
    return publisher


def open_rows(publisher):
    frames = [frame for chunk in publisher.open for frame in ServerParser().feed(bytes(chunk.open_frames()))]
    return [int(frame.reply.removeprefix(b"i.")) for frame in frames]


def test_what_is_open_is_what_is_sent_again(publisher):
    assert (publisher.count, publisher.open_rows, open_rows(publisher)) == (8, 8, list(range(8)))
    publisher.acknowledge(np.array([1, 6, 6, 99]))
    assert (publisher.open_rows, open_rows(publisher)) == (6, [0, 2, 3, 4, 5, 7])
    assert publisher.find_open(6) is None
    assert publisher.find_open(7).payload == b"3"
    publisher.acknowledge(np.array([0, 2, 3]))
    assert [chunk.first_row for chunk in publisher.open] == [4]
    publisher.acknowledge(np.array([7, 5, 4]))
    assert (publisher.open, publisher.open_rows, publisher.open_bytes) == ([], 0, 0)


def test_a_duplicate_counts_once_and_only_while_it_is_open(publisher):
    publisher.acknowledge(np.array([0, 0, 1, 5]), np.array([True, True, False, True]))
    assert publisher.duplicates == 2
    publisher.acknowledge(np.array([0, 1]), np.array([True, True]))
    assert publisher.duplicates == 2
