"""A batch answers for all its messages at once, and leaves those alone that are settled."""

import pytest

from jetlake.client.messages.message import Message
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.errors import ConnectionClosedError, InvalidOptionError, JetlakeError, NotJetStreamMessageError
from jetlake.protocol.parser import ServerParser


class Outlet:
    """Keeps what is sent."""

    def __init__(self):
        self.runs = []
        self.error = None

    def check_size(self, size):
        if size > 100:
            raise InvalidOptionError(f"{size} bytes")

    def send_run(self, frames, count):
        if self.error is not None:
            raise self.error
        self.runs.append((frames, count))

    def sent(self):
        """What was sent, as a server reads it."""
        parser = ServerParser()
        pairs = []
        for frames, count in self.runs:
            publishes = parser.feed(frames)
            assert len(publishes) == count
            pairs += [(frame.subject, frame.payload) for frame in publishes]
        assert parser.error is None
        return pairs


@pytest.fixture
def outlet():
    return Outlet()


def reply(number):
    return b"$JS.ACK.S.C.1.%d.%d.1790000000000000000.0" % (number, number)


def batch_of(outlet, count):
    return MessageBatch(Message(b"a", b"1", reply(number), b"", b"", outlet) for number in range(count))


CALLS = [
    (lambda batch: batch.ack(), b"+ACK", True),
    (lambda batch: batch.nak(), b"-NAK", True),
    (lambda batch: batch.nak(1.5), b'-NAK {"delay":1500000000}', True),
    (lambda batch: batch.term(), b"+TERM", True),
    (lambda batch: batch.term("no good"), b"+TERM no good", True),
    (lambda batch: batch.in_progress(), b"+WPI", False),
]


@pytest.mark.parametrize(("call", "body", "settles"), CALLS, ids=[body.decode() for _, body, _ in CALLS])
async def test_every_message_is_answered_in_one_piece(outlet, call, body, settles):
    batch = batch_of(outlet, 5)
    assert await call(batch) is None
    assert len(outlet.runs) == 1
    assert outlet.sent() == [(reply(number), body) for number in range(5)]
    assert [message.is_settled for message in batch] == [settles] * 5


@pytest.mark.parametrize("call", [call for call, _, _ in CALLS], ids=[body.decode() for _, body, _ in CALLS])
def test_settled_messages_are_left_out(outlet, call):
    batch = batch_of(outlet, 5)
    batch[0]._settled = batch[3]._settled = True
    call(batch)
    assert [subject for subject, _ in outlet.sent()] == [reply(1), reply(2), reply(4)]


@pytest.mark.parametrize("call", [call for call, _, _ in CALLS], ids=[body.decode() for _, body, _ in CALLS])
def test_nothing_is_sent_for_nothing(outlet, call):
    call(MessageBatch())
    settled = batch_of(outlet, 3)
    settled.ack()
    outlet.runs.clear()
    call(settled)
    assert outlet.runs == []


def test_what_could_not_be_sent_may_be_tried_again(outlet):
    batch = batch_of(outlet, 3)
    outlet.error = ConnectionClosedError("closed")
    with pytest.raises(ConnectionClosedError):
        batch.ack()
    assert not any(message.is_settled for message in batch)
    outlet.error = None
    batch.ack()
    assert len(outlet.sent()) == 3


@pytest.mark.parametrize("other", [b"", b"_INBOX.x", b"$JS.ACK", b"$JS.ACL.x", b"zzz"])
def test_nothing_is_sent_when_one_is_no_message_of_a_consumer(outlet, other):
    batch = batch_of(outlet, 3)
    batch.insert(1, Message(b"a", b"1", other, b"", b"", outlet))
    with pytest.raises(NotJetStreamMessageError):
        batch.ack()
    assert outlet.runs == []
    assert not any(message.is_settled for message in batch)


def test_a_batch_is_of_one_connection(outlet):
    other = Outlet()
    mixed = MessageBatch([*batch_of(outlet, 2), *batch_of(other, 2)])
    with pytest.raises(JetlakeError, match="one connection"):
        mixed.ack()
    with pytest.raises(JetlakeError, match="one connection"):
        batch_of(None, 2).ack()
    assert outlet.runs == other.runs == []
    MessageBatch(mixed[2:]).ack()
    mixed.ack()
    assert (len(outlet.sent()), len(other.sent())) == (2, 2)


def test_bad_arguments_are_refused(outlet):
    batch = batch_of(outlet, 2)
    for call in (lambda: batch.nak(-1), lambda: batch.term("two\nlines"), lambda: batch.term("x" * 100)):
        with pytest.raises(InvalidOptionError):
            call()
    assert outlet.runs == []
    assert not any(message.is_settled for message in batch)
