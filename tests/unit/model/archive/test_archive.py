"""Archives of both formats, as nats-server wrote them: all of them is read, and nothing damaged is taken for good."""

import io
import tarfile
from pathlib import Path

import pytest

from jetlake.errors import DecodeError
from jetlake.model.archive.archive import END, MAGIC, ArchiveReader, ArchiveWriter, EntryReader, encode_entry
from jetlake.model.archive.items import (
    ArchivedConsumer,
    ArchivedMessage,
    ArchivedState,
    ConsumerEntry,
    ConsumerPosition,
    PendingMessage,
    SequencePair,
    SkippedSequence,
)
from jetlake.model.archive.s2 import IDENTIFIER, S2Reader, compress
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import StreamState

RESOURCES = Path(__file__).parent / "resources"
CURRENT = (RESOURCES / "stream-2.15.s2").read_bytes()
OLDER = (RESOURCES / "stream-2.14.tar.s2").read_bytes()


def items_of(data, stream="S", piece=700, bytes_max=1024 * 1024):
    reader = ArchiveReader(stream, bytes_max)
    items = []
    for start in range(0, len(data), piece):
        items += reader.feed(data[start : start + piece])
    return [*items, *reader.finish()]


def framed(data):
    return IDENTIFIER + b"".join(compress(data[at : at + 1000]) for at in range(0, len(data), 1000))


def unframed(data):
    return b"".join(S2Reader().feed(data))


def of(kind, items):
    return [item for item in items if isinstance(item, kind)]


def test_the_current_format():
    items = items_of(CURRENT)
    assert items[0] == ArchivedState(1, 306, messages=305)
    (consumer,) = of(ArchivedConsumer, items)
    assert (consumer.name, consumer.config.max_deliver) == ("c1", 3)
    assert consumer.position.delivered == SequencePair(consumer_seq=12, stream_seq=10)
    assert consumer.position.ack_floor == SequencePair(consumer_seq=1, stream_seq=1)
    assert sorted(consumer.position.pending) == [2, 4, 5, 6, 7, 8, 9, 10]
    assert consumer.position.redelivered == {4: 2}
    messages = of(ArchivedMessage, items)
    assert [message.sequence for message in messages] == [*range(1, 20), *range(21, 307)], "the 20th was deleted"
    assert messages[1].header == b"NATS/1.0\r\nA: b0\r\n\r\n"
    assert messages[0].payload.startswith(b'{"order": 0')


def test_the_older_format():
    items = items_of(OLDER)
    assert items[0].created_ns == 1794787101550961743
    messages = of(ArchivedMessage, items)
    assert [message.sequence for message in messages] == [*range(1, 20), *range(21, 47)]
    assert messages[-1].header == b"NATS/1.0\r\nA: b\r\n\r\n"
    assert [item.sequence for item in of(SkippedSequence, items)] == [20, 20, 22]
    (consumer,) = of(ArchivedConsumer, items)
    assert consumer.position.delivered == SequencePair(consumer_seq=10, stream_seq=10)
    assert sorted(consumer.position.pending) == [2, 4, 5, 6, 7, 8, 9, 10]
    assert consumer.config.durable_name == "c1"


@pytest.mark.parametrize("data", [CURRENT, OLDER], ids=["current", "older"])
def test_a_cut_archive_is_refused_wherever_it_was_cut(data):
    plain = unframed(data).rstrip(b"\0") + bytes(5)
    for size in (0, 4, 8, 100, 600, len(plain) // 2, len(plain) - 20, len(plain) - 1):
        with pytest.raises(DecodeError):
            items_of(framed(plain[:size]))
    with pytest.raises(DecodeError, match="s2: corrupt input"):
        items_of(data[:-3])


def test_a_flipped_bit_of_an_older_record_is_noticed_whatever_the_compression_says():
    plain = bytearray(unframed(OLDER))
    payload = bytes(plain).index(b"x" * 30)
    for at in (payload, payload + 29, payload - 4, payload - 10, payload - 20):
        plain[at] ^= 4
        with pytest.raises(DecodeError):
            items_of(framed(bytes(plain)))
        plain[at] ^= 4


def test_an_older_archive_of_another_stream_is_refused():
    with pytest.raises(DecodeError, match="stream names do not match"):
        items_of(OLDER, "T")


def tar_of(files, kind=tarfile.REGTYPE):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, content in files:
            info = tarfile.TarInfo(name)
            info.size, info.type = len(content), kind
            tar.addfile(info, io.BytesIO(content))
    return framed(out.getvalue())


def tar_header(name, size):
    info = tarfile.TarInfo(name)
    info.size = size
    return info.tobuf()


META = b'{"name":"S"}'


@pytest.mark.parametrize(
    ("reason", "data"),
    [
        ("meta.inf must be", tar_of([("msgs/1.blk", b"")])),
        ("unexpected content", tar_of([("meta.inf", META), ("../x", b"")])),
        ("unexpected content", tar_of([("meta.inf", META), ("/etc/x", b"")])),
        ("unexpected content", tar_of([("meta.inf", META), ("else", b"")])),
        ("unexpected content", tar_of([("meta.inf", META)], tarfile.SYMTYPE)),
        ("checksum", tar_of([("meta.inf", META), ("meta.sum", b"0123456789abcdef")])),
        ("out of order", tar_of([("meta.inf", META), ("msgs/2.blk", b""), ("msgs/1.blk", b"")])),
        ("cut at byte 0", tar_of([("meta.inf", META), ("msgs/1.blk", b"short")])),
        ('error restoring consumer \\["c"\\]: meta.sum', tar_of([("meta.inf", META), ("obs/c/meta.inf", b"{}")])),
        (
            'consumer \\["c"\\]: corrupt state',
            tar_of(
                [
                    ("meta.inf", META),
                    ("obs/c/meta.inf", b"{}"),
                    ("obs/c/meta.sum", b""),
                    ("obs/c/o.dat", b"\x16\x02\x01"),
                ]
            ),
        ),
        ("EOF", framed(tar_header("meta.inf", 10))),
    ],
)
def test_older_archives_that_are_refused(reason, data):
    with pytest.raises(DecodeError, match=reason):
        items_of(data)


STATE = encode_entry(b"state.json", 1, 0, b"", b'{"first_seq":1,"last_seq":1}')
MESSAGE = encode_entry(b"a", -5, 1, b"", b"x")


@pytest.mark.parametrize(
    ("reason", "entries"),
    [
        ("state.json", MESSAGE + END),
        ("invalid|Expected|malformed", encode_entry(b"state.json", 1, 0, b"", b"nonsense") + END),
        ("EOF", STATE + MESSAGE),
        ("after the end", STATE + END + MESSAGE),
        ("after the end", STATE + b"\x00\x00\x01\x00\x00"),
        ("exceeds maximum", STATE + encode_entry(b"a", 1, 1, b"", b"x" * 200) + END),
        ("too large", STATE + b"\x01\x00\x01\x00\xff\xff\xff\xff\x7f"),
        ("too large", STATE + b"\xff\xff\xff\x7f\x00\x01\x00\x00"),
        ("malformed", STATE + b"\x80" * 12),
        ("consumers must", encode_entry(b"state.json", 1, 0, b"", b'{"consumer_count":1}') + MESSAGE),
        ("EOF", encode_entry(b"state.json", 1, 0, b"", b'{"consumer_count":1}') + END),
    ],
)
def test_entries_that_are_refused(reason, entries):
    with pytest.raises(DecodeError, match=reason):
        items_of(framed(MAGIC + entries), bytes_max=100)


def test_times_before_1970_keep_their_sign():
    (entry,) = EntryReader(100).feed(MESSAGE)
    assert (entry.time_ns, entry.sequence, entry.payload) == (-5, 1, b"x")


def test_what_is_written_is_read_back():
    position = ConsumerPosition(
        delivered=SequencePair(consumer_seq=5, stream_seq=4),
        pending={4: PendingMessage(sequence=5, timestamp=17)},
        redelivered={4: 2},
    )
    consumer = ConsumerEntry(config=ConsumerConfig(name="c"), state=position)
    messages = [(b"a.%d" % number, number, number, b"", b"payload" * number) for number in range(1, 400)]
    writer = ArchiveWriter()
    writer.add_state(StreamState(first_seq=1, last_seq=400, consumer_count=1), 9)
    writer.add_consumer("c", consumer, 9)
    pieces = []
    for message in messages:
        writer.add_messages([message])
        pieces += writer.take()
    pieces += writer.finish()
    items = items_of(b"".join(pieces))
    assert items == [
        ArchivedState(1, 400),
        ArchivedConsumer("c", ConsumerConfig(name="c"), position),
        *(ArchivedMessage(*message) for message in messages),
    ]
    assert len(pieces) > 3, "blocks leave as soon as they are full"
