"""A message reads its bytes when asked, and acknowledges once."""

import asyncio

import msgspec
import pytest

from jetlake.client.kv.entry import Entry
from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.services.request import ServiceRequest
from jetlake.client.streams.stored_message import StoredMessage
from jetlake.errors import (
    AlreadyAcknowledgedError,
    DecodeError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NotJetStreamMessageError,
    RequestTimeoutError,
)

REPLY = b"$JS.ACK.S.C.2.10.7.1790000000000000000.3"


class Outlet:
    def __init__(self):
        self.frames = []
        self.requests = []
        self.error = None

    def check_size(self, size):
        if size > 100:
            raise InvalidOptionError(f"{size} bytes")

    def send(self, frame):
        if self.error is not None:
            raise self.error
        self.frames.append(frame)

    async def confirm(self, subject, payload, timeout_s):
        self.requests.append((subject, payload, timeout_s))
        if self.error is not None:
            raise self.error


@pytest.fixture
def outlet():
    return Outlet()


def received(outlet, reply=REPLY, header=b"", payload=b"hello"):
    message = Message(b"a.b", b"1", reply, header, payload)
    message._outlet = outlet
    return message


def body(frame):
    head, _, rest = frame.partition(b"\r\n")
    assert head.split()[:2] == [b"PUB", REPLY]
    return rest[:-2]


def test_everything_is_decoded_when_asked(outlet):
    message = received(outlet, header=b"NATS/1.0\r\nA: 1\r\nA: 2\r\n\r\n")
    assert message.subject == "a.b"
    assert message.reply == REPLY.decode()
    assert message.payload == message.data == b"hello"
    assert message.headers.get_all("A") == ["1", "2"]
    assert message.status is None
    assert message.size == 3 + len(REPLY) + 24 + 5
    assert repr(message).startswith("<Message 'a.b' b'hello'")


def test_metadata(outlet):
    metadata = received(outlet).metadata
    assert (metadata.stream, metadata.consumer) == ("S", "C")
    assert (metadata.delivered, metadata.stream_seq, metadata.consumer_seq, metadata.pending) == (2, 10, 7, 3)
    assert metadata.timestamp_ns == 1790000000000000000


def test_metadata_of_the_second_version_and_beyond(outlet):
    metadata = received(outlet, b"$JS.ACK.hub.hash.S.C.1.2.3.4.5.more.tokens").metadata
    assert (metadata.domain, metadata.stream, metadata.stream_seq, metadata.consumer_seq) == ("hub", "S", 2, 3)
    assert received(outlet, b"$JS.ACK._.hash.S.C.1.2.3.4.5").metadata.domain is None


@pytest.mark.parametrize(
    "reply", [b"", b"_INBOX.x", b"$JS.ACK.S.C", b"$JS.ACK.a.S.C.1.2.3.4.5", b"$JS.ACK.S.C.1.x.3.4.5"]
)
def test_no_metadata(outlet, reply):
    with pytest.raises(NotJetStreamMessageError):
        _ = received(outlet, reply).metadata


@pytest.mark.parametrize(
    ("act", "expected"),
    [
        (lambda message: message.ack(), b"+ACK"),
        (lambda message: message.nak(), b"-NAK"),
        (lambda message: message.nak(delay=1.5), b'-NAK {"delay":1500000000}'),
        (lambda message: message.nak(delay=0), b'-NAK {"delay":0}'),
        (lambda message: message.term(), b"+TERM"),
        (lambda message: message.term("no good"), b"+TERM no good"),
        (lambda message: message.in_progress(), b"+WPI"),
    ],
)
async def test_what_is_sent(outlet, act, expected):
    result = act(received(outlet))
    assert await result is None
    assert [body(frame) for frame in outlet.frames] == [expected]


@pytest.mark.parametrize("first", ["ack", "nak", "term"])
async def test_after_a_terminal_acknowledgement_all_others_are_ignored(outlet, first):
    message = received(outlet)
    getattr(message, first)()
    assert message.is_settled
    for later in ("ack", "nak", "term", "in_progress"):
        getattr(message, later)()
    assert len(outlet.frames) == 1
    for later in ("ack", "nak", "term", "in_progress"):
        if later != first:
            with pytest.raises(AlreadyAcknowledgedError):
                await getattr(message, f"{later}_sync")()
    assert outlet.requests == []


async def test_ack_sync_asks_the_server_about_an_ack_that_was_not_confirmed(outlet):
    message = received(outlet)
    message.ack()
    outlet.error = RequestTimeoutError("no answer")
    with pytest.raises(RequestTimeoutError):
        await message.ack_sync()
    outlet.error = None
    await message.ack_sync()
    await message.ack_sync()
    assert len(outlet.requests) == 2


async def test_in_progress_is_not_terminal(outlet):
    message = received(outlet)
    message.in_progress()
    message.in_progress()
    message.ack()
    assert [body(frame) for frame in outlet.frames] == [b"+WPI", b"+WPI", b"+ACK"]


def test_an_acknowledgement_that_could_not_be_written_may_be_tried_again(outlet):
    message = received(outlet)
    outlet.error = ConnectionError()
    with pytest.raises(ConnectionError):
        message.ack()
    assert not message.is_settled
    outlet.error = None
    message.ack()
    assert len(outlet.frames) == 1


def test_nothing_is_sent_for_a_message_that_needs_no_acknowledgement(outlet):
    message = received(outlet)
    message._settled = True
    message.ack()
    message.nak()
    assert outlet.frames == []


async def test_ack_sync_waits_for_the_server(outlet):
    message = received(outlet)
    await message.ack_sync(timeout=2)
    assert outlet.requests == [(REPLY, b"+ACK", 2.0)]
    await message.ack_sync()
    assert len(outlet.requests) == 1


async def test_ack_sync_without_an_answer_may_be_tried_again(outlet):
    message = received(outlet)
    outlet.error = RequestTimeoutError("late")
    with pytest.raises(TimeoutError):
        await message.ack_sync()
    # It was sent, so nothing else is; only its confirmation is asked for again.
    message.nak()
    assert outlet.frames == []
    outlet.error = None
    await message.ack_sync()
    assert [body for _, body, _ in outlet.requests] == [b"+ACK", b"+ACK"]


def test_a_core_message_cannot_be_acknowledged(outlet):
    for act in ("ack", "nak", "term", "in_progress"):
        with pytest.raises(NotJetStreamMessageError, match=r"\$JS.ACK"):
            getattr(received(outlet, b"_INBOX.reply"), act)()
    assert outlet.frames == []


def test_bad_arguments_are_refused(outlet):
    with pytest.raises(InvalidOptionError, match="delay"):
        received(outlet).nak(delay=-1)
    with pytest.raises(InvalidOptionError, match="single line"):
        received(outlet).term("two\nlines")
    assert outlet.frames == []


def test_respond(outlet):
    received(outlet, b"_INBOX.r").respond(b"yes")
    received(outlet, b"_INBOX.r").respond(b"yes", headers={"A": "1"})
    assert outlet.frames == [
        b"PUB _INBOX.r 3\r\nyes\r\n",
        b"HPUB _INBOX.r 18 21\r\nNATS/1.0\r\nA: 1\r\n\r\nyes\r\n",
    ]
    with pytest.raises(JetlakeError, match="no reply subject"):
        received(outlet, b"").respond(b"")
    with pytest.raises(InvalidOptionError, match="encode the text"):
        received(outlet, b"_INBOX.r").respond("yes")


def test_messages_are_equal_only_to_themselves(outlet):
    one, other = received(outlet), received(outlet)
    assert one != other
    assert len({one, other}) == 2


def test_what_the_server_would_not_take_is_refused():
    outlet = Outlet()
    message = received(outlet)
    for call in (
        lambda: message.respond(b"x" * 101),
        lambda: message.respond(b"x" * 90, headers={"A": "b" * 10}),
        lambda: message.term("x" * 100),
    ):
        with pytest.raises(InvalidOptionError, match="bytes"):
            call()
    assert outlet.frames == []
    assert not message.is_settled


@pytest.mark.parametrize(
    ("name", "arguments", "body", "settles"),
    [
        ("ack_sync", {}, b"+ACK", True),
        ("nak_sync", {}, b"-NAK", True),
        ("nak_sync", {"delay": 2}, b'-NAK {"delay":2000000000}', True),
        ("term_sync", {}, b"+TERM", True),
        ("term_sync", {"reason": "broken"}, b"+TERM broken", True),
        ("in_progress_sync", {}, b"+WPI", False),
    ],
)
async def test_confirmed_forms(outlet, name, arguments, body, settles):
    message = received(outlet)
    await getattr(message, name)(timeout=3, **arguments)
    assert outlet.requests == [(REPLY, body, 3)]
    assert message.is_settled is settles
    await getattr(message, name)(**arguments)
    assert len(outlet.requests) == (1 if settles else 2)
    message = received(outlet)
    outlet.error = NoRespondersError("a")
    with pytest.raises(NoRespondersError):
        await getattr(message, name)(**arguments)
    assert not message.is_settled


class Order(msgspec.Struct):
    """What a service may exchange."""

    number: int
    items: list[str] = []


def messages_with(payload):
    message = Message(b"s.1", b"1", b"", b"", payload)
    return [
        message,
        ServiceRequest(message),
        StoredMessage("s.1", 7, "2026-11-16T00:00:00Z", b"", payload),
        Entry("B", "k", payload, 7, 0),
    ]


@pytest.mark.parametrize("kind", range(4))
def test_json(kind):
    message = messages_with(b'{"number": 5, "items": ["a"]}')[kind]
    assert message.json() == {"number": 5, "items": ["a"]}
    assert message.json(Order) == Order(5, ["a"])
    assert messages_with(b"null")[kind].json() is None
    assert messages_with(b"[1, 2]")[kind].json(list[int]) == [1, 2]


@pytest.mark.parametrize("kind", range(4))
@pytest.mark.parametrize("payload", [b"", b"{", b"\xff", b"[" * 100_000])
def test_what_is_no_json(kind, payload):
    message = messages_with(payload)[kind]
    with pytest.raises(DecodeError, match="is not JSON") as caught:
        message.json()
    assert any(place in str(caught.value) for place in ("'s.1'", "sequence 7", "key 'k'"))
    with pytest.raises(DecodeError, match="does not have the expected type"):
        messages_with(b'{"number": "five"}')[kind].json(Order)


class Slow(Outlet):
    """Answers confirmations when it is told to."""

    def __init__(self):
        super().__init__()
        self.answer = asyncio.get_running_loop().create_future()

    async def confirm(self, subject, payload, timeout_s):
        self.requests.append((subject, payload, timeout_s))
        await asyncio.shield(self.answer)


async def test_while_a_confirmation_is_awaited_nothing_else_is_sent():
    outlet = Slow()
    message = received(outlet)
    first, second = (asyncio.ensure_future(message.ack_sync()) for _ in range(2))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    message.nak()
    message.term()
    message.in_progress()
    with pytest.raises(AlreadyAcknowledgedError):
        await message.nak_sync()
    assert not second.done()
    outlet.answer.set_result(None)
    await first
    await second
    assert (outlet.frames, len(outlet.requests)) == ([], 1)


async def test_who_waits_for_the_same_confirmation_gets_its_error_or_asks_again():
    outlet = Slow()
    message = received(outlet)
    first, second = (asyncio.ensure_future(message.ack_sync()) for _ in range(2))
    await asyncio.sleep(0)
    outlet.answer.set_exception(NoRespondersError("a"))
    for waiting in (first, second):
        with pytest.raises(NoRespondersError):
            await waiting
    outlet = Slow()
    message = received(outlet)
    first, second = (asyncio.ensure_future(message.ack_sync()) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    await asyncio.wait([first])
    outlet.answer.set_result(None)
    await second
    assert len(outlet.requests) == 2


MALFORMED = [
    b"",
    b"$JS.ACK",
    b"$JS.ACK-1",
    b"$JS.ACK/",
    b"$JS.ACKS.a",
    b"_INBOX.a",
    b"$JS.ACK.x",
    b"$JS.ACK.S.C.2.10.7.1790000000000000000",
    b"$JS.ACK.S.C.2.10.7.1790000000000000000.",
    b"$JS.ACK.S.C.2..7.1790000000000000000.3",
    b"$JS.ACK.S.C.2.x.7.1790000000000000000.3",
    b"$JS.ACK.d.S.C.2.10.7.1790000000000000000.3",
]


@pytest.mark.parametrize("reply", MALFORMED)
def test_only_replies_of_jetstream_are_acknowledged(outlet, reply):
    with pytest.raises(NotJetStreamMessageError):
        Message(b"s", b"1", reply, b"", b"", outlet).ack()
    # Behind a good one of the same consumer, and among many.
    received(outlet).ack()
    for call in (
        Message(b"s", b"1", reply, b"", b"", outlet).ack,
        Message(b"s", b"1", reply, b"", b"", outlet).nak,
        MessageBatch([received(outlet), Message(b"s", b"1", reply, b"", b"", outlet), received(outlet)]).ack,
        MessageBatch([received(outlet), Message(b"s", b"1", reply, b"", b"", outlet)]).ack,
    ):
        with pytest.raises(NotJetStreamMessageError):
            call()
    assert len(outlet.frames) == 1


async def test_acknowledgements_may_be_awaited_in_every_way(outlet):
    messages = [Message(b"s", b"1", REPLY, b"", b"", outlet) for _ in range(3)]
    first = messages[0].ack()
    assert [await first, await first, *await asyncio.gather(messages[1].ack(), first)] == [None] * 4
    await asyncio.wait_for(messages[2].nak(), 5)
    assert len(outlet.frames) == 3
