"""What the parser yields: one small value for each frame of the wire.

Everything stays bytes as it came; an empty reply, queue or header means that there was none.
The message frames hold no references that could form a cycle, so the garbage collector need not look at them.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = [
    "AckRun",
    "Connect",
    "Err",
    "Frame",
    "Info",
    "LeafMsg",
    "LeafSub",
    "LeafUnsub",
    "MessageRun",
    "Msg",
    "Ok",
    "Ping",
    "Pong",
    "Pub",
    "PubRun",
    "Sub",
    "Unsub",
]


class Msg(Struct, gc=False):
    """`MSG` or `HMSG`: a message delivered to a subscription."""

    subject: bytes
    sid: bytes
    reply: bytes
    header: bytes
    payload: bytes


class MessageRun(Struct, gc=False):
    """Consecutive `MSG`s of one subscription, in columns.

    Attributes:
        sid: the subscription.
        subjects: the subject of each.
        replies: the reply of each; empty where no message has one.
        payloads: the payload of each.
    """

    sid: bytes
    subjects: list[bytes]
    replies: list[bytes]
    payloads: list[bytes]


class Pub(Struct, gc=False):
    """`PUB` or `HPUB`: a message from a client."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


class PubRun(Struct, gc=False):
    """Consecutive `PUB`s, or `HPUB`s whose headers have a message id and nothing else, in columns.

    Attributes:
        subjects, replies, headers, payloads: of each; empty where a message has none.
        ids: the message id of each; no ids for `PUB`s.
        words: all subjects, replies and sizes, one behind the other.
        size: the bytes of all headers and payloads.
        size_max: the bytes of the largest message.
    """

    subjects: list[bytes]
    replies: list[bytes]
    headers: list[bytes]
    payloads: list[bytes]
    ids: list[bytes]
    words: bytes
    size: int
    size_max: int

    def messages(self) -> list[Pub]:
        """Return each publish as a message."""
        return list(map(Pub, self.subjects, self.replies, self.headers, self.payloads))


class AckRun(Struct, gc=False):
    """Consecutive `PUB`s that acknowledge messages of one consumer, without reply, header or anything but `+ACK`.

    Attributes:
        prefix: the part of the ack subjects that names the consumer, with the dot behind it.
        sequences: the stream sequence of each.
        consumer_sequences: the consumer sequence of each.
        data: all of them as they came.
    """

    prefix: bytes
    sequences: list[int]
    consumer_sequences: list[int]
    data: bytes

    @property
    def payload_size(self) -> int:
        """The bytes of all payloads."""
        return 4 * len(self.sequences) if self.data.endswith(b"+ACK\r\n") else 0

    def messages(self) -> list[Pub]:
        """Return each acknowledgement as a message."""
        end, payload = (b" 4\r\n+ACK\r\n", b"+ACK") if self.payload_size else (b" 0\r\n\r\n", b"")
        subjects = self.data[4 : -len(end)].split(end + b"PUB ")
        return [Pub(subject, b"", b"", payload) for subject in subjects]


class Sub(Struct, gc=False):
    """`SUB`: a new subscription, in a queue group or plain."""

    subject: bytes
    queue: bytes
    sid: bytes


class Unsub(Struct, gc=False):
    """`UNSUB`: end a subscription now (`max` 0), or after `max` messages since it began."""

    sid: bytes
    max: int


class Connect(Struct, gc=False):
    """`CONNECT`: the client's options, as the JSON text that it sent."""

    json: bytes


class Info(Struct, gc=False):
    """`INFO`: what the server says of itself, as the JSON text that it sent."""

    json: bytes


class Ping(Struct, gc=False):
    """`PING`: answer with `PONG`."""


class Pong(Struct, gc=False):
    """`PONG`: the answer to a `PING`."""


class Ok(Struct, gc=False):
    """`+OK`: what a verbose connection gets for each operation."""


class Err(Struct, gc=False):
    """`-ERR`: the server's complaint, without its quotes."""

    text: str


class LeafMsg(Struct, gc=False):
    """`LMSG`, or `HMSG` between servers: a message from another server.

    Attributes:
        queues: the queue groups of which a member on this side gets the message.
    """

    subject: bytes
    reply: bytes
    queues: tuple[bytes, ...]
    header: bytes
    payload: bytes


class LeafSub(Struct, gc=False):
    """`LS+`: interest on the other side.

    Attributes:
        queue: the queue group; empty = every message is wanted.
        weight: how many members the group has there.
    """

    subject: bytes
    queue: bytes
    weight: int


class LeafUnsub(Struct, gc=False):
    """`LS-`: the interest is gone."""

    subject: bytes
    queue: bytes


Frame = (
    Msg
    | MessageRun
    | Pub
    | PubRun
    | AckRun
    | Sub
    | Unsub
    | Connect
    | Info
    | Ping
    | Pong
    | Ok
    | Err
    | LeafMsg
    | LeafSub
    | LeafUnsub
)
