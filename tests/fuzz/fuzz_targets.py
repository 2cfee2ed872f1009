"""What is fuzzed: one function for each kind of input that comes from outside, which raises when something is wrong.

A target gets bytes and returns when the input was handled as promised: understood, or refused with the error that its
reader documents. Seeds are inputs that are right; fuzzers begin with them. Inputs that once failed lie in `finds/`, and
`test_finds.py` runs them.
"""

import json
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from pathlib import Path
from random import Random
from typing import NamedTuple

from jetlake.client.tables.spark_offsets import read_offset
from jetlake.errors import BadHeaderError, ConfigError, DecodeError, OffsetError, ProtocolError, StoreError
from jetlake.model.archive.archive import ArchiveReader
from jetlake.model.archive.s2 import IDENTIFIER, S2Reader, compress
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.codec import decode, decode_strict
from jetlake.model.stream import StreamConfig
from jetlake.protocol.frames import Msg
from jetlake.protocol.headers import Headers, find_value, strip_status
from jetlake.protocol.leaf import LeafParser
from jetlake.protocol.parser import ClientParser, GeneralParser, ServerParser
from jetlake.server.config.assemble import options_from_settings
from jetlake.server.config.conf import parse_text
from jetlake.server.config.reader import read_config
from jetlake.server.engine.core.options import EngineOptions
from jetlake.server.engine.engine import Engine
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.engine.storage.folder_storage import FolderStorage
from jetlake.server.engine.storage.storage import MemoryStorage
from jetlake.server.shell.access.connect_options import BadConnectError, ConnectOptions
from jetlake.store.file_store import FileStore
from jetlake.store.files.checksum import PLAIN_HASHING
from jetlake.store.journal.file_journal import FileJournal
from jetlake.store.log.compressed_blocks import compress_in_steps
from jetlake.store.log.record import checksum_of
from jetlake.store.log.scan import scan
from jetlake.store.log.segment_header import HEADER_SIZE, SegmentHeader
from jetlake.store.store_folder import StoreFolder
from jetlake.testing.clock import ManualClock
from tests.fuzz.session_target import SESSIONS, run_session
from tests.support.faulty_disk import FaultyDisk

FOLDER = Path("/streams/S/msgs")


class Target(NamedTuple):
    """One kind of input."""

    run: Callable[[bytes], None]
    seeds: list[bytes]
    mutations: int = 1
    """How often a seed is mutated for one input: a long one wants more than one."""


# Protocol


def server_frames(data: bytes) -> None:
    frames_of(ServerParser, data)


def leaf_frames(data: bytes) -> None:
    frames_of(LeafParser, data)


def frames_of(make_parser: Callable[[], GeneralParser], data: bytes) -> None:
    """The same frames and the same error, however the bytes are cut."""
    whole = make_parser()
    frames = whole.feed(data)
    pieces = make_parser()
    found = []
    random = Random(len(data))
    at = 0
    while at < len(data):
        size = random.randint(1, 40)
        found += pieces.feed(data[at : at + size])
        at += size
    assert found == frames
    assert (whole.error is None) == (pieces.error is None)


def client_frames(data: bytes) -> None:
    parser = ClientParser()
    for frame in parser.feed(data):
        if isinstance(frame, Msg):
            headers(frame.header)
    assert parser.error is None or isinstance(parser.error, ProtocolError)


def headers(data: bytes) -> None:
    find_value(data, b"Nats-Msg-Id")
    strip_status(data)
    try:
        block = Headers(data)
        list(block.items())
        block.get("Nats-Msg-Id")
        assert block.status is None or isinstance(block.status, int)
        assert isinstance(block.description, str)
    except BadHeaderError:
        pass


def connect(data: bytes) -> None:
    try:
        ConnectOptions().changed_by(data)
    except BadConnectError:
        pass


# Configuration


def config_file(data: bytes) -> None:
    text = data.decode("utf-8", "replace")
    if "include" in text.lower():
        return  # it would read whatever file the fuzzer names
    try:
        settings, _ = read_config(parse_text(text, environment={"PORT": "4222"}))
        options_from_settings(settings)
    except ConfigError:
        pass


def stream_and_consumer_json(data: bytes) -> None:
    for kind in (StreamConfig, ConsumerConfig):
        for read in (decode, decode_strict):
            try:
                read(kind, data)
            except DecodeError as error:
                assert str(error)


# The API, through an engine


class _Client(Subscriber):
    def __init__(self) -> None:
        self._parser = ClientParser()
        self.messages: list[Msg] = []

    def send(self, data: bytes) -> None:
        self.messages += [frame for frame in self._parser.feed(data) if isinstance(frame, Msg)]


class _Api:
    """An engine with a stream and two consumers, made anew before it grows."""

    LIFE = 500

    def __init__(self) -> None:
        self._age = self.LIFE

    def _renew(self) -> None:
        self._age = 0
        self.clock = ManualClock()
        self.engine = Engine(self.clock, EngineOptions(), MemoryStorage())
        self.account = Account("$G")
        self.engine.enable(self.account)
        self.client = _Client()
        self.account.subscribe(b"_INBOX.>", b"1", self.client)
        self.request(b"STREAM.CREATE.S", b'{"name":"S","subjects":["s.>"],"allow_direct":true,"storage":"memory"}')
        body = b'{"stream_name":"S","config":{"durable_name":"c","ack_policy":"explicit"}}'
        self.request(b"CONSUMER.CREATE.S.c", body)
        for number in range(20):
            self.publish(b"s.%d" % (number % 3), b"", b"payload %d" % number)

    def fresh(self) -> "_Api":
        self._age += 1
        if self._age > self.LIFE:
            self._renew()
        return self

    def publish(self, subject: bytes, reply: bytes, payload: bytes, header: bytes = b"") -> list[Msg]:
        self.account.publish(subject, reply, header, payload, self.client)
        for _ in range(100):
            self.engine.flush()
            if not self.engine.has_ready():
                break
        messages, self.client.messages = self.client.messages, []
        return messages

    def request(self, verb: bytes, body: bytes) -> list[Msg]:
        return self.publish(b"$JS.API." + verb, b"_INBOX.fuzz", body)


_api = _Api()


def api_request(data: bytes) -> None:
    """The verb, a line end, the body; whatever it is, one answer at most, and that is JSON."""
    verb, _, body = data.partition(b"\n")
    if b"\r" in verb or b" " in verb or verb.startswith((b"CONSUMER.MSG.NEXT", b"DIRECT.GET")):
        return
    answers = _api.fresh().request(verb, body)
    assert len(answers) <= 1
    for answer in answers:
        assert json.loads(answer.payload).get("type") or verb == b""


def publish_headers(data: bytes) -> None:
    """A message with these lines as its header: stored, or refused with an answer."""
    header = b"NATS/1.0\r\n" + data + b"\r\n\r\n"
    answers = _api.fresh().publish(b"s.fuzz", b"_INBOX.fuzz", b"x", header)
    assert len(answers) <= 1
    for answer in answers:
        json.loads(answer.payload)


def ack_body(data: bytes) -> None:
    """An acknowledgement with this body, for a message that is pending; then one with these tokens as its subject."""
    api = _api.fresh()
    for message in api.request(b"CONSUMER.MSG.NEXT.S.c", b'{"batch":1,"no_wait":true}'):
        if message.reply:
            api.publish(message.reply, b"_INBOX.fuzz", data)
    if b" " not in data and b"\r" not in data and b"\n" not in data:
        api.publish(b"$JS.ACK." + data, b"_INBOX.fuzz", b"+ACK")
        api.publish(b"$JS.FC." + data, b"_INBOX.fuzz", b"")
    api.clock.advance(1)
    api.engine.run_timers()


def pull_body(data: bytes) -> None:
    api = _api.fresh()
    api.request(b"CONSUMER.MSG.NEXT.S.c", data)
    api.request(b"DIRECT.GET.S", data)
    api.clock.advance(5)
    api.engine.run_timers()
    api.engine.flush()


# Files


def _disk() -> FaultyDisk:
    disk = FaultyDisk(Random(1))
    disk.make_folder(FOLDER)
    return disk


@cache
def _store_files() -> dict[str, bytes]:
    """The files of a store with a few messages, a removal and a purge, stopped cleanly."""
    disk = _disk()
    store = FileStore(disk, FOLDER, segment_bytes=500, random_bytes=lambda size: b"\x07" * size)
    for number in range(20):
        header = b"NATS/1.0\r\na: b\r\n\r\n" if number % 3 == 0 else b""
        store.append(b"s.%d" % (number % 2), header, b"payload %d" % number, number)
    store.flush()
    store.remove(3)
    store.remove(7, erase=True)
    store.purge(below=3)
    store.flush()
    store.sync()
    store.close()
    return {path.name: disk.content(path) for path in disk.files()}


@cache
def _store_content() -> dict[int, bytes]:
    disk = _disk()
    for name, content in _store_files().items():
        disk.put(FOLDER / name, content)
    store = FileStore(disk, FOLDER, segment_bytes=500)
    return {message.sequence: message.payload for message in store.read(1, None, 100, 1 << 20).messages}


def _open_with(name: str, data: bytes) -> None:
    """A store with one file of that content: it opens, tells nothing wrong, and goes on with new sequences."""
    disk = _disk()
    for other, content in _store_files().items():
        disk.put(FOLDER / other, content)
    disk.put(FOLDER / name, data)
    store = FileStore(disk, FOLDER, segment_bytes=500)
    right = _store_content()
    found = store.read(1, None, 1000, 1 << 20).messages
    for message in found:
        # Nobody can make a hash without the stream's key; what does not come from us is not there.
        assert right.get(message.sequence) == message.payload, message
    assert [message.sequence for message in found] == sorted({message.sequence for message in found})
    assert store.messages == len(found)
    last = store.last_sequence
    assert store.append(b"s.new", b"", b"new", 1) == last + 1
    assert last >= 20
    store.flush()
    store.sync()
    assert store.get(last + 1).payload == b"new"
    store.close()
    assert disk.open_handles() == 0


def segment_file(data: bytes) -> None:
    name = min(name for name in _store_files() if name.endswith(".seg"))
    if not _is_forged(name, data):
        _open_with(name, data)


def _first_segment() -> bytes:
    return _store_files()[min(name for name in _store_files() if name.endswith(".seg"))]


def _compressed(content: bytes) -> bytes:
    *_, last = compress_in_steps(content, 200, PLAIN_HASHING)
    assert last is not None
    return last


def _is_forged(name: str, data: bytes) -> bool:
    """Whether a record is good and not ours: a guided fuzzer sees what hashes are compared with, and puts them in."""
    ours = _store_files()[name]
    header = SegmentHeader.unpack(ours[:HEADER_SIZE], PLAIN_HASHING)
    assert header is not None
    content = scan(data, HEADER_SIZE, checksum_of(PLAIN_HASHING, header.key, header.number), None)
    records = zip(content.offsets, content.sizes, strict=True)
    return any(data[offset : offset + size] not in ours for offset, size in records)


def index_file(data: bytes) -> None:
    _open_with("index", data)


def mark_file(data: bytes) -> None:
    _open_with("mark", data)


def segment_list_file(data: bytes) -> None:
    # One that is whole and another stream's keeps the store from being opened; nothing else does.
    with suppress(StoreError):
        _open_with("segments", data)


def _journal_bytes() -> bytes:
    disk = _disk()
    journal = FileJournal(disk, FOLDER, random_bytes=lambda size: b"\x07" * size)
    journal.load()
    journal.delivered_run(1, [1, 2, 5], 10)
    journal.flush()
    journal.acked([2], (1, 1))
    journal.redelivered(4, 1, 20, 2)
    journal.flush()
    journal.close()
    return disk.content(next(path for path in disk.files() if path.suffix == ".journal"))


def journal_file(data: bytes) -> None:
    disk = _disk()
    disk.put(FOLDER / "0000000001.journal", data)
    journal = FileJournal(disk, FOLDER)
    state = journal.load()
    assert state.delivered_stream >= 0
    journal.acked([1])
    journal.flush()
    journal.close()
    assert disk.open_handles() == 0


def meta_file(data: bytes) -> None:
    """A stream whose configuration is this: found, or reported and left alone."""
    disk = FaultyDisk(Random(1))
    folder = StoreFolder(disk, Path("/data"))
    stream = folder.stream("$G", "S")
    disk.make_folder(stream.path / "msgs")
    disk.put(stream.path / "meta.json", data)
    reports: list[str] = []
    engine = Engine(ManualClock(), EngineOptions(), FolderStorage(folder, reports.append))
    engine.enable(Account("$G"))
    engine.close()


# Spark


def offset_json(data: bytes) -> None:
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return
    try:
        read_offset(value)
    except OffsetError:
        pass


_STREAM = json.dumps(
    {
        "name": "ORDERS",
        "subjects": ["orders.>"],
        "retention": "limits",
        "max_age": 3600000000000,
        "sources": [{"name": "A", "subject_transforms": [{"src": "a.>", "dest": "b.>"}]}],
        "republish": {"src": ">", "dest": "repub.>"},
        "metadata": {"a": "b"},
    }
).encode()

_CONFIG = b"""
# a server
port: $PORT
http: "127.0.0.1:8222"
max_payload: 2MB, ping_interval: "30s"
jetstream { store_dir: "/tmp/x", max_file: 1G, sync_interval: always }
authorization { users = [ {user: a, password: b, permissions: { publish: "x.>", subscribe: {deny: ["y"]} } } ] }
accounts: { A: { jetstream: enabled, users: [ {nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4} ] } }
"""

# Archives

_RESOURCES = Path(__file__).parents[1] / "unit" / "model" / "archive" / "resources"


def archive(data: bytes) -> None:
    """The same items and the same error, however the bytes are cut."""
    outcomes = []
    for piece in (len(data) or 1, 97):
        reader = ArchiveReader("S", 1024 * 1024)
        items: list[object] = []
        error = ""
        try:
            for at in range(0, len(data), piece):
                items += reader.feed(data[at : at + piece])
            items += reader.finish()
        except DecodeError as refused:
            error = str(refused)
        outcomes.append((items if not error else None, bool(error)))
    assert outcomes[0] == outcomes[1]


def unpacked_archive(data: bytes) -> None:
    """What is inside, without the checksums around it."""
    archive(IDENTIFIER + b"".join(compress(data[at : at + 4000]) for at in range(0, len(data), 4000)))


def _archives() -> list[bytes]:
    return [(_RESOURCES / name).read_bytes() for name in ("stream-2.15.s2", "stream-2.14.tar.s2")]


TARGETS: dict[str, Target] = {
    "archive": Target(archive, _archives()),
    "unpacked_archive": Target(unpacked_archive, [b"".join(S2Reader().feed(data)) for data in _archives()]),
    "sessions": Target(run_session, SESSIONS, mutations=10),
    "server_frames": Target(
        server_frames,
        [
            b'CONNECT {"verbose":false}\r\nPING\r\nSUB a.b q 1\r\nUNSUB 1 5\r\nPUB a r 5\r\nhello\r\n',
            b"HPUB a r 22 27\r\nNATS/1.0\r\na: b\r\n\r\n\r\n\r\nhello\r\nPONG\r\n",
        ],
    ),
    "leaf_frames": Target(
        leaf_frames,
        [
            b'INFO {"leafnode_urls":["h:1"]}\r\nLS+ a.*\r\nLS+ a q 2\r\nLS- a q\r\nLMSG a | q p 2\r\nhi\r\nPING\r\n',
            b"LMSG a r 2\r\nhi\r\nHMSG a + r q 12 14\r\nNATS/1.0\r\n\r\nhi\r\n-ERR 'x'\r\n",
        ],
    ),
    "client_frames": Target(
        client_frames,
        [
            b"INFO {\"max_payload\":10}\r\n+OK\r\nPING\r\n-ERR 'x'\r\nMSG a 1 5\r\nhello\r\n",
            b"HMSG a 1 r 18 20\r\nNATS/1.0 404 No\r\n\r\n..\r\n",
        ],
    ),
    "headers": Target(headers, [b"NATS/1.0\r\nNats-Msg-Id: 1\r\na:b\r\n\r\n", b"NATS/1.0 503 No Responders\r\n\r\n"]),
    "connect": Target(connect, [b'{"verbose":true,"user":"a","pass":"b","protocol":1,"headers":true,"tags":["a"]}']),
    "config_file": Target(
        config_file, [_CONFIG, b'{"port":4222,"jetstream":true}', b"a: [1, {b: 2}]\n'c' = \"d\\x41\""]
    ),
    "stream_and_consumer_json": Target(stream_and_consumer_json, [_STREAM, b'{"durable_name":"c","backoff":[1,2]}']),
    "api_request": Target(
        api_request,
        [
            b"STREAM.CREATE.T\n" + _STREAM,
            b'STREAM.UPDATE.S\n{"name":"S","subjects":["s.>","t"],"storage":"memory"}',
            b'STREAM.INFO.S\n{"deleted_details":true,"subjects_filter":">"}',
            b'STREAM.PURGE.S\n{"filter":"s.1","keep":2}',
            b'STREAM.MSG.GET.S\n{"next_by_subj":"s.*","seq":3}',
            b'STREAM.MSG.DELETE.S\n{"seq":4,"no_erase":true}',
            b'STREAM.NAMES\n{"offset":1,"subject":"s.>"}',
            b'CONSUMER.CREATE.S.d.s.1\n{"stream_name":"S","config":{"name":"d","filter_subject":"s.1"},"action":"create"}',
            b'CONSUMER.CREATE.S\n{"stream_name":"S","config":{"deliver_subject":"d","ack_policy":"all"}}',
            b'CONSUMER.PAUSE.S.c\n{"pause_until":"2027-01-01T00:00:00Z"}',
            b'CONSUMER.UNPIN.S.c\n{"group":"g"}',
            b"CONSUMER.LIST.S\n",
            b"INFO\n",
        ],
    ),
    "publish_headers": Target(
        publish_headers,
        [
            b"Nats-Msg-Id: 1\r\nNats-Expected-Last-Sequence: 5",
            b"Nats-Rollup: sub\r\nNats-TTL: 1h",
            b"Nats-Expected-Stream: S\r\nNats-Required-Api-Level: 1",
        ],
    ),
    "ack_body": Target(
        ack_body,
        [
            b"+ACK",
            b"-NAK",
            b'-NAK {"delay":1000}',
            b"-NAK 1s",
            b"+WPI",
            b"+TERM why",
            b'+NXT {"batch":2}',
            b"S.c.1.1.1.1.0",
        ],
    ),
    "pull_body": Target(
        pull_body,
        [
            b"",
            b"5",
            b'{"batch":10,"expires":1000000000,"idle_heartbeat":100000000,"max_bytes":1024,"no_wait":true}',
            b'{"batch":1,"group":"g","min_pending":5,"min_ack_pending":2,"id":"x","priority":1}',
            b'{"seq":1,"batch":5,"max_bytes":100,"multi_last":["s.*"],"up_to_seq":9,"start_time":"2026-01-01T00:00:00Z"}',
        ],
    ),
    "segment_file": Target(segment_file, [_first_segment(), _compressed(_first_segment()), b""]),
    "index_file": Target(index_file, [_store_files().get("index", b""), b""]),
    "segment_list_file": Target(segment_list_file, [_store_files().get("segments", b""), b""]),
    "mark_file": Target(mark_file, [_store_files().get("mark", b""), b""]),
    "journal_file": Target(journal_file, [_journal_bytes(), b""]),
    "meta_file": Target(
        meta_file, [b'{"version":1,"checksum":"0000000000000000","meta":{"config":{"name":"S"}}}', b"{}"]
    ),
    "offset_json": Target(
        offset_json,
        [
            b'{"v":1,"streams":{"S":{"created":"2026-01-01T00:00:00Z","next":5,"from":1,"taken":[[1,4]]}}}',
            b'{"v":1,"start":"earliest"}',
        ],
    ),
}
