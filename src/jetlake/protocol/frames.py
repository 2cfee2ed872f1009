"""What the parser yields: one small value for each frame of the wire.

Everything stays bytes as it came; an empty reply, queue or header means that there was none.
The message frames hold no references that could form a cycle, so the garbage collector need not look at them.
"""

from __future__ import annotations

from msgspec import Struct

__all__ = ["Connect", "Err", "Frame", "Info", "Msg", "Ok", "Ping", "Pong", "Pub", "Sub", "Unsub"]


class Msg(Struct, gc=False):
    """`MSG` or `HMSG`: a message delivered to a subscription."""

    subject: bytes
    sid: bytes
    reply: bytes
    header: bytes
    payload: bytes


class Pub(Struct, gc=False):
    """`PUB` or `HPUB`: a message from a client."""

    subject: bytes
    reply: bytes
    header: bytes
    payload: bytes


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


Frame = Msg | Pub | Sub | Unsub | Connect | Info | Ping | Pong | Ok | Err
