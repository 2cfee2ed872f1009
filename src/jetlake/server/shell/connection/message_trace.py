"""Message tracing: a message with `Nats-Trace-Dest` is followed, and a report on its way goes to that subject.

The report has an event for each hop: in from the client, stored by a stream, into another account, out to each
subscription. With `Nats-Trace-Only` there is only the report: no subscriber gets the message, and no stream stores it.
"""

from __future__ import annotations

import re
from functools import partial
from typing import TYPE_CHECKING, Any

from msgspec.json import decode, encode

from jetlake.model.encoding.times import format_time
from jetlake.model.enums import RetentionPolicy
from jetlake.model.trace_sampling import TRACE_DESTINATION, TRACE_DISABLED
from jetlake.model.transforms import compile_transform
from jetlake.protocol.headers import find_value
from jetlake.protocol.nuid import next_nuid
from jetlake.protocol.subjects import has_wildcards, matches
from jetlake.server.engine.batch.fast_batches import SUFFIX
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Crossing, Subscriber, Subscription
from jetlake.server.shell.connection.services import ConnectionServices

if TYPE_CHECKING:
    from jetlake.server.engine.stream.stream import Stream

__all__ = ["MessageTrace", "trace_destination"]

_TRACE_ONLY = b"Nats-Trace-Only"
_YES = (b"1", b"true", b"on")
_LINE = re.compile(rb"(\r\nNats-Trace-Dest: ?)[^\r\n]*")

_KIND_CLIENT = 0
_NO_ECHO = "Not delivered because of no echo"
_DENIED = "Not delivered because subscription denies this subject"
_DUPLICATE = "msgid is duplicate"

_API = b"$JS.API."


def trace_destination(header: bytes) -> bytes:
    """Find the subject for the report on a message with this header; empty when the message is not to be traced."""
    destination = find_value(header, TRACE_DESTINATION) or b""
    return b"" if b" " in destination or b"*" in destination or has_wildcards(destination) else destination


class MessageTrace:
    """The trace of one message of a client, from its publish to the report.

    Args:
        origin: the publisher, which may publish to the destination too.
        account: the publisher's account.
        message: subject, reply, header and payload.
        destination: the subject of the report, from `trace_destination`.
    """

    def __init__(
        self,
        origin: Subscriber,
        account: Account,
        message: tuple[bytes, bytes, bytes, bytes],
        destination: bytes,
        services: ConnectionServices,
    ) -> None:
        self._origin = origin
        self._account = account
        self._message = message
        self._destination = destination
        self._clock = services.clock
        self._engine = services.engine_loop.engine
        self._info = services.info
        self._is_only = (find_value(message[2], _TRACE_ONLY) or b"").lower() in _YES
        self._events: list[dict[str, Any]] = []

    def publish(self) -> None:
        """Publish the message, unless only the trace is wanted, and send the report when all hops are known."""
        subject, reply, header, payload = self._message
        account, origin = self._account, self._origin
        self._note("in", **_describe(origin), acc=account.name, subj=_text(subject))
        if subject.startswith(b"$JS."):
            if subject.startswith(_API):
                self._note("si", acc="$SYS", **{"from": _text(subject), "to": _text(subject)})
            if not self._is_only:
                account.publish(subject, reply, header, payload, origin)
            self._report()
            return
        route = account.route(subject)
        stream = self._stream_of(subject) if route.sinks else None
        plain = [(subscription, self._obstacle(subscription)) for subscription in route.plain]
        groups = [("", members) for members in route.subscriptions() if members[0].queue]
        for crossing in (relay.crossing for relay in route.relays):
            if crossing is not None:
                groups += self._cross(crossing, subject)
        waits = False
        if self._is_only:
            served = [(beyond, members[0]) for beyond, members in groups]
        else:
            counts = [(beyond, member, member.delivered) for beyond, members in groups for member in members]
            waits = self._publish_message(stream)
            served = [(beyond, member) for beyond, member, count in counts if member.delivered > count]
        for subscription, obstacle in plain:
            self._note_delivery(subscription, error=obstacle)
        for beyond, member in served:
            self._note_delivery(member, acc=beyond)
        if not waits:
            if stream is not None:
                self._note_stored(stream, "")
            self._report()

    def _publish_message(self, stream: Stream | None) -> bool:
        """Publish the message; whether the report has to wait for a stream's answer."""
        subject, reply, header, payload = self._message
        account = self._account
        if stream is None:
            account.publish(subject, reply, header, payload, self._origin)
            return False
        # Not to be traced again when a consumer delivers it.
        stored_header = _LINE.sub(b"\\1" + TRACE_DISABLED, header, count=1)
        # The reply of a message in a fast batch is its place in the batch, and few of them are answered.
        if stream.config.no_ack or reply.endswith(SUFFIX):
            account.publish_apart(self._message, reply, stored_header, self._origin)
            return False
        inbox = b"_TRACE_." + next_nuid().encode()
        listener = account.listen(inbox, partial(self._on_answer, stream))
        self._stop = partial(account.unlisten, listener)
        account.publish_apart(self._message, inbox, stored_header, self._origin)
        return True

    def _on_answer(
        self,
        stream: Stream,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> None:
        """Pass the stream's PubAck or error on to the publisher, and send the report."""
        self._stop()
        if self._message[1]:
            self._account.publish(self._message[1], b"", header, payload)
        if not payload:
            return  # Staged for a batch, and no more is known of it; as in nats-server there is no report.
        answer: dict[str, Any] = decode(payload)
        error = answer.get("error", {}).get("description", "")
        self._note_stored(stream, error or (_DUPLICATE if answer.get("duplicate") else ""))
        self._report()

    # Events

    def _note(self, hop: str, /, **fields: Any) -> None:
        self._events.append({"type": hop, "ts": format_time(self._clock.now_ns()), **fields})

    def _cross(self, crossing: Crossing, subject: bytes) -> list[tuple[str, tuple[Subscription, ...]]]:
        """Note that the message crosses into another account; return the recipients there that the trace may show."""
        beyond = crossing.rename(subject)
        if beyond is None:
            return []
        if crossing.is_service:
            self._note("si", acc=crossing.account, **{"from": _text(subject), "to": _text(beyond)})
        else:
            self._note("se", acc=crossing.account, to=_text(beyond))
        recipients = crossing.find_recipients(beyond) if crossing.allows_trace else []
        return [(crossing.account, members) for members in recipients]

    def _note_delivery(self, subscription: Subscription, **more: str) -> None:
        fields = {**more, "sub": _text(subscription.subject), "queue": _text(subscription.queue)}
        recipient = _describe(subscription.subscriber)
        self._note("eg", **recipient, **{key: value for key, value in fields.items() if value})

    def _note_stored(self, stream: Stream, error: str) -> None:
        subject = self._message[0]
        transform = stream.config.subject_transform
        if transform is not None:
            subject = compile_transform(transform.src, transform.dest).apply(subject) or subject
        fields: dict[str, Any] = {"stream": stream.name}
        if error:
            fields["error"] = error
        else:
            fields["subject"] = _text(subject)
            if stream.config.retention is RetentionPolicy.INTEREST and not stream.retention.is_wanted(subject):
                fields["nointerest"] = True
        self._note("js", **fields)

    def _obstacle(self, subscription: Subscription) -> str:
        """Say why the subscription does not get the message; empty when it does."""
        origin = self._origin
        if subscription.subscriber is origin and not origin.echo:
            return _NO_ECHO
        if subscription.admits is not None and not subscription.admits(self._message[0], b""):
            return _DENIED
        return ""

    def _stream_of(self, subject: bytes) -> Stream | None:
        engine = self._engine
        jetstream = engine.jetstreams.get(self._account.name) if engine is not None else None
        for stream in jetstream.streams.values() if jetstream is not None else ():
            if any(matches(pattern.encode(), subject) for pattern in stream.config.subjects):
                return stream
        return None

    def _report(self) -> None:
        _, _, header, payload = self._message
        pairs: dict[str, list[str]] = {}
        # Line by line: a malformed header is reported as far as it can be read.
        for line in header.split(b"\r\n")[1:]:
            key, colon, value = line.partition(b":")
            if colon:
                pairs.setdefault(_text(key), []).append(_text(value.strip()))
        report = {
            "server": self._info.describe_sender(),
            "request": {"header": pairs, "msgsize": len(header) + len(payload)},
            "events": self._events,
        }
        self._account.publish(self._destination, b"", b"", encode(report))


def _describe(subscriber: Subscriber) -> dict[str, Any]:
    """Describe a client as a hop: its connection's number, and the name in its CONNECT."""
    info = subscriber.client_info()
    described = {"kind": _KIND_CLIENT, "cid": info.get("id", 0), "name": info.get("name", "")}
    return {key: value for key, value in described.items() if value != ""}


def _text(value: bytes) -> str:
    return value.decode("utf-8", "replace")
