"""Status messages of push consumers (NATS ADR-15) as a pure state machine: gaps, heartbeats, flow control."""

from __future__ import annotations

from msgspec import Struct

from jetlake.client.messages.message import Message
from jetlake.errors import (
    HeartbeatMissedError,
    NotJetStreamMessageError,
    PullStatusError,
    SequenceGapError,
)
from jetlake.model.ack_subject import consumer_sequence, parse_ack_subject
from jetlake.protocol.headers import Headers

_ALARM_INTERVALS = 3


class PushNews(Struct):
    """The messages and statuses of one run.

    Attributes:
        messages: the messages for the user.
        flow_replies: flow control subjects to answer, each after that number of the messages was handed out.
        notices: errors to report that do not end the subscription.
        error: a status that ends the subscription.
    """

    messages: list[Message] = []
    flow_replies: list[tuple[int, bytes]] = []
    notices: list[Exception] = []
    error: PullStatusError | None = None


class PushStatus:
    """The state of one push subscription's deliveries: the expected sequence, and when the server was last heard.

    Args:
        idle_heartbeat_s: the interval that the consumer promised; 0 for none.
        checks_gaps: False for queue subscriptions, whose members see only some deliveries.
        alarm_s: silence after which an alarm is due; three intervals when None.
        delivered: the number of the consumer's last delivery before this subscription, so that a lost first delivery is
            noticed; None if that is not known.
    """

    __slots__ = ("_alarm_s", "_checks_gaps", "_expected", "_is_connected", "_last_flow_reply", "_last_heard")

    def __init__(
        self,
        idle_heartbeat_s: float,
        *,
        checks_gaps: bool,
        now: float,
        alarm_s: float | None = None,
        delivered: int | None = None,
    ) -> None:
        self._alarm_s = (alarm_s or _ALARM_INTERVALS * idle_heartbeat_s) if idle_heartbeat_s else 0.0
        self._checks_gaps = checks_gaps
        self._expected = 0 if delivered is None else delivered + 1
        self._last_flow_reply = b""
        self._last_heard = now
        self._is_connected = True

    def received(self, messages: list[Message], now: float) -> PushNews:
        """Separate messages from statuses, and look for gaps."""
        self._last_heard = now
        news = PushNews()
        taken = news.messages
        for message in messages:
            header = message.raw_header
            # Only statuses have a number right behind the version, and they have no payload.
            if header and not message.payload and header[8:9] == b" ":
                self._heard(message, news)
            else:
                taken.append(message)
                if self._checks_gaps:
                    self._check(message, news)
        return news

    def _check(self, message: Message, news: PushNews) -> None:
        try:
            received = consumer_sequence(message.raw_reply)
        except NotJetStreamMessageError:
            return  # Another client published to the deliver subject itself.
        if self._expected and received > self._expected:
            stream_seq = parse_ack_subject(message.raw_reply).stream_seq
            news.notices.append(SequenceGapError(self._expected, received, stream_seq))
        self._expected = received + 1

    def _heard(self, message: Message, news: PushNews) -> None:
        headers = Headers(message.raw_header)
        status = headers.status
        if status == 100:
            if message.raw_reply:
                self._answer(message.raw_reply, news)
            else:
                self._heartbeat(headers, news)
        elif status not in (404, 408):
            news.error = PullStatusError(status or 0, headers.description)

    def _heartbeat(self, headers: Headers, news: PushNews) -> None:
        stalled = headers.get("Nats-Consumer-Stalled")
        if stalled:
            self._answer(stalled.encode(), news)
        last = headers.get("Nats-Last-Consumer")
        if self._checks_gaps and self._expected and last is not None and last.isdigit() and int(last) >= self._expected:
            last_stream = headers.get("Nats-Last-Stream") or "0"
            news.notices.append(SequenceGapError(self._expected, int(last) + 1, int(last_stream)))
            self._expected = int(last) + 1

    def _answer(self, subject: bytes, news: PushNews) -> None:
        """Answer each flow control subject once, though heartbeats may repeat it."""
        if subject != self._last_flow_reply:
            self._last_flow_reply = subject
            news.flow_replies.append((len(news.messages), subject))

    # Time and connection

    def deadline(self) -> float | None:
        """Return when a heartbeat counts as missed; None without heartbeats or without a connection."""
        return self._last_heard + self._alarm_s if self._alarm_s and self._is_connected else None

    def alarm(self, now: float) -> HeartbeatMissedError | None:
        """Return the alarm, if it is due; the next one is due after as much silence again."""
        deadline = self.deadline()
        if deadline is None or now < deadline:
            return None
        self._last_heard = now
        return HeartbeatMissedError(self._alarm_s)

    def disconnected(self) -> None:
        """Stop measuring silence until there is a connection again."""
        self._is_connected = False

    def reconnected(self, now: float) -> None:
        """Measure silence from now on."""
        self._is_connected = True
        self._last_heard = now
