"""A received message: the raw bytes, decoded on access, and the ways to answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Protocol, TypeVar, overload

from msgspec import Struct

from jetlake.client.messages.json_payload import json_payload
from jetlake.client.messages.ready import READY, Ready
from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.wire_values import payload_bytes
from jetlake.completion import hides
from jetlake.errors import (
    AlreadyAcknowledgedError,
    ClientConnectionError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    RequestTimeoutError,
)
from jetlake.model.ack_subject import DIGITS, WELL_FORMED, AckSubject, check_ack_subject, parse_ack_subject
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.protocol import encoder
from jetlake.protocol.encoder import ACK_FRAME
from jetlake.protocol.headers import Headers, encode_headers, inline_status

T = TypeVar("T")

_SHOWN_MAX = 40
_DOT = 46
_CALLS = {b"+ACK": "ack", b"-NAK": "nak", b"+TER": "term", b"+WPI": "in_progress"}
"""The calls by the first four bytes of what they send."""


class Outlet(Protocol):
    """Where a message's answers go."""

    @property
    def check_size(self) -> Callable[[int], None]:
        """Refuses headers and payloads of more bytes than the server takes."""

    def send(self, frame: bytes) -> None:
        """Write the frame, soon and in order."""

    def send_run(self, frames: bytes, count: int) -> None:
        """Write `count` encoded frames as `send` writes one."""

    def confirm(self, subject: bytes, payload: bytes, timeout_s: float | None) -> Awaitable[Message]:
        """Send an acknowledgement and wait for the answer."""


@hides("settle_by_pull", "term_body")
class Message(Struct, gc=False, eq=False):
    """A message that a subscription or a consumer received.

    The parser builds it with its first five fields. Answers of every kind are written in the order of the calls, with
    one write for all calls of one turn of the event loop; awaiting them is allowed and not needed, except those whose
    names end in `_sync`, which wait for the server.
    """

    raw_subject: bytes
    """The subject's bytes."""
    sid: bytes
    """The number of the subscription that received the message."""
    raw_reply: bytes
    """The reply subject's bytes; empty when there is none."""
    raw_header: bytes
    """The header block's bytes; empty when there is none."""
    payload: bytes
    """The content."""
    _outlet: Outlet | None = None
    _settled: bool | bytes = False
    """The acknowledgement that was sent, as its first four bytes; True where none is needed."""
    _confirmation: bool | asyncio.Future[None] = False
    """Whether the server has said that it has the acknowledgement; a future while that is asked."""

    @property
    def subject(self) -> str:
        """The subject that it was published to."""
        return self.raw_subject.decode("utf-8", "surrogateescape")

    @property
    def reply(self) -> str:
        """The subject for answers; empty if the sender expects none."""
        return self.raw_reply.decode("utf-8", "surrogateescape")

    @property
    def headers(self) -> Headers:
        """The headers; falsy when there are none."""
        return Headers(self.raw_header)

    @property
    def data(self) -> bytes:
        """The content; another name for `payload`."""
        return self.payload

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = None) -> Any:
        """Read the payload as JSON, as a value of the type if one is given (a dataclass or Struct, for instance).

        Raises:
            DecodeError: not JSON, or JSON of another shape.
        """
        return json_payload(self.payload, kind, f"on {self.subject!r}")

    @property
    def status(self) -> int | None:
        """The number of a status message, such as 503; None for an ordinary one."""
        return inline_status(self.raw_header) if self.raw_header else None

    @property
    def size(self) -> int:
        """The bytes that JetStream counts for it: subject, reply, headers and payload."""
        return len(self.raw_subject) + len(self.raw_reply) + len(self.raw_header) + len(self.payload)

    @property
    def metadata(self) -> AckSubject:
        """Its sequence in the stream and its number of deliveries.

        Raises:
            NotJetStreamMessageError: it did not come from JetStream.
        """
        return parse_ack_subject(self.raw_reply)

    @property
    def is_settled(self) -> bool:
        """Whether it was acknowledged for good (or needs no acknowledgement), so that later calls do nothing."""
        return bool(self._settled)

    def ack(self) -> Ready:
        """Acknowledge: the message is done, and the consumer need not deliver it again.

        Raises:
            NotJetStreamMessageError: it did not come from JetStream.
            ConnectionClosedError: the connection is closed.
        """
        if not self._settled:
            reply = self.raw_reply
            # The quick part of `check_ack_subject`, without a call: that takes a third of the time of the whole.
            if reply.translate(None, DIGITS) not in WELL_FORMED or b".." in reply or reply[-1] == _DOT:
                check_ack_subject(reply)
            self._outlet.send(ACK_FRAME % reply)  # type: ignore[union-attr]
            self._settled = b"+ACK"
        return READY

    async def ack_sync(self, timeout: Seconds | None = None) -> None:
        """Acknowledge, and wait for the server's confirmation: the message is never delivered again.

        Behind an `ack`, it waits for the confirmation that `ack` did not ask for. While it waits, other calls send
        nothing: a second `ack_sync` waits for the same answer.

        Args:
            timeout: seconds to wait for the server; the connection's `request_timeout` when None.

        Raises:
            RequestTimeoutError: no answer came; call it again, or expect the message again.
            NoRespondersError: the consumer is gone or takes no acknowledgements. In a cluster it may be electing a
                leader, and is waited for.
            StaleAckError: the message has been redelivered since, and the consumer has strict acks.
            AckRefusedError: the server could not store it; says why.
            AlreadyAcknowledgedError: `nak` or `term` was called before, and is what counts.
        """
        await self._confirm(b"+ACK", timeout)

    def nak(self, delay: Seconds | None = None) -> Ready:
        """Ask for another delivery because the message is not done, at once or after `delay` seconds."""
        return self._settle(nak_body(delay))

    async def nak_sync(self, delay: Seconds | None = None, *, timeout: Seconds | None = None) -> None:
        """Do as `nak`, and wait for the server's confirmation; `timeout` and errors as in `ack_sync`."""
        await self._confirm(nak_body(delay), timeout)

    def term(self, reason: str = "") -> Ready:
        """Terminate the message: it is never delivered again. The reason is part of the server's advisory."""
        return self._settle(self.term_body(reason))

    async def term_sync(self, reason: str = "", *, timeout: Seconds | None = None) -> None:
        """Do as `term`, and wait for the server's confirmation; `timeout` and errors as in `ack_sync`."""
        await self._confirm(self.term_body(reason), timeout)

    def in_progress(self) -> Ready:
        """Restart the ack wait: the server waits for its full length again."""
        if not self._settled:
            outlet, reply = self._answerable()
            outlet.send(encoder.pub(reply, b"", b"+WPI"))
        return READY

    async def in_progress_sync(self, *, timeout: Seconds | None = None) -> None:
        """Do as `in_progress`, and wait for the server's confirmation; `timeout` and errors as in `ack_sync`."""
        await self._confirm(b"+WPI", timeout)

    def settle_by_pull(self, inbox: bytes, request: bytes) -> None:
        """Acknowledge and pull in one: the pulled messages go to the inbox. `Consumer.ack_next` calls this."""
        outlet, reply = self._answerable()
        outlet.send(encoder.pub(reply, inbox, b"+NXT " + request))
        self._settled = b"+ACK"

    def respond(self, payload: bytes = b"", *, headers: Mapping[str, str | list[str]] | None = None) -> Ready:
        """Answer a request.

        Raises:
            JetlakeError: the sender waits for no answer.
            InvalidOptionError: headers and payload are larger than the server takes.
        """
        if not self.raw_reply or self._outlet is None:
            raise JetlakeError(f"the message on {self.subject!r} has no reply subject, so it cannot be answered")
        if type(payload) is not bytes:
            payload = payload_bytes(payload)
        header = encode_headers(headers) if headers else b""
        self._outlet.check_size(len(header) + len(payload))
        if header:
            self._outlet.send(encoder.hpub(self.raw_reply, b"", header, payload))
        else:
            self._outlet.send(encoder.pub(self.raw_reply, b"", payload))
        return READY

    async def _confirm(self, body: bytes, timeout: Seconds | None) -> None:
        while self._needs_confirmation(body):
            asked = self._confirmation
            if isinstance(asked, bool) or body == b"+WPI":
                await self._ask_confirmation(body, timeout)
                return
            await asyncio.wait([asked], timeout=timeout_s(timeout))
            if not asked.done():
                raise RequestTimeoutError(f"no confirmation for the message on {self.subject!r} within {timeout} s")
            if not asked.cancelled():
                asked.result()

    async def _ask_confirmation(self, body: bytes, timeout: Seconds | None) -> None:
        outlet, reply = self._answerable()
        if body == b"+WPI":
            await outlet.confirm(reply, body, timeout_s(timeout))
            return
        before, asked = self._settled, asyncio.get_running_loop().create_future()
        # Settled as soon as it is sent, so that nothing else is sent while the answer is awaited (NATS ADR-15).
        self._settled, self._confirmation = body[:4], asked
        try:
            await outlet.confirm(reply, body, timeout_s(timeout))
        except BaseException as error:
            self._confirmation = False
            if isinstance(error, (ClientConnectionError, NoRespondersError)):
                self._settled = before  # It did not arrive, or was refused: the message still waits for an answer.
            if isinstance(error, Exception):
                asked.set_exception(error)
                asked.exception()  # It has been retrieved, though nobody else may wait.
            else:
                asked.cancel()
            raise
        self._confirmation = True
        asked.set_result(None)

    def _needs_confirmation(self, body: bytes) -> bool:
        """Return whether the server has yet to say that it has this acknowledgement.

        Raises:
            AlreadyAcknowledgedError: another one was sent before.
        """
        sent, kind = self._settled, body[:4]
        if isinstance(sent, bool):
            return not sent
        if sent == kind and self._confirmation is True:
            return False
        if sent != kind or (kind == b"-NAK" and self._confirmation is False):
            # A nak is not repeated to have it confirmed: the server would take it for one of the next delivery.
            told = f"{_CALLS[kind]} after {_CALLS[sent]}, which was sent first and counts"
            raise AlreadyAcknowledgedError(f"{told}: the message on {self.subject!r} is already acknowledged")
        return True

    def term_body(self, reason: str) -> bytes:
        """Return the body of an acknowledgement that gives the message up."""
        if not reason:
            return b"+TERM"
        if "\r" in reason or "\n" in reason:
            raise InvalidOptionError("reason must be a single line")
        body = b"+TERM " + reason.encode()
        self._answerable()[0].check_size(len(body))
        return body

    def _settle(self, body: bytes) -> Ready:
        if not self._settled:
            outlet, reply = self._answerable()
            outlet.send(encoder.pub(reply, b"", body))
            self._settled = body[:4]
        return READY

    def _answerable(self) -> tuple[Outlet, bytes]:
        check_ack_subject(self.raw_reply)
        if self._outlet is None:
            raise JetlakeError("the message belongs to no connection")
        return self._outlet, self.raw_reply

    def __repr__(self) -> str:
        size = len(self.payload)
        content = f"{self.payload!r}" if size <= _SHOWN_MAX else f"{self.payload[:_SHOWN_MAX]!r}… {size} bytes"
        return f"<Message {self.subject!r} {content}{' reply ' + self.reply if self.raw_reply else ''}>"


def nak_body(delay: Seconds | None) -> bytes:
    """Return the body of an acknowledgement that asks for another delivery, after `delay` seconds if not at once."""
    if delay is None:
        return b"-NAK"
    delay_ns = nanoseconds(delay)
    if delay_ns < 0:
        raise InvalidOptionError(f"delay must be 0 or more seconds, not {delay!r}")
    return b'-NAK {"delay":%d}' % delay_ns


def give_back(messages: Iterable[Message]) -> None:
    """Nak messages that were fetched and not handed out, so that another client gets them at once."""
    for message in messages:
        try:
            message.nak()
        except ClientConnectionError:
            return  # Without a connection they are redelivered after their ack wait.
