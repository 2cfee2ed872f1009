"""The position of an ordered read as a pure state machine: the expected delivery, and where the next consumer begins.

Always true: `last_stream_seq` is the sequence of the last message that was handed on, and a message with a delivery
number other than the expected one is never handed on. So the next consumer, which begins after `last_stream_seq`,
neither repeats nor skips a message.
"""

from __future__ import annotations

import msgspec

from jetlake.client.messages.message import Message
from jetlake.errors import SequenceGapError, StreamReplacedError
from jetlake.model.ack_subject import consumer_sequence, parse_ack_subject
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.times import parse_time
from jetlake.model.enums import DeliverPolicy
from jetlake.model.stream import StreamInfo


class OrderedState:
    """The position of an ordered read.

    Attributes:
        last_stream_seq: the stream sequence of the last good message; 0 before the first.
        pending_at_start: messages that were there for the first consumer; None before there is one.
        resets: how often the consumer was recreated.
        gap: the last gap, until the consumer is recreated.
    """

    __slots__ = (
        "_began",
        "_begin_at",
        "_config",
        "_expected",
        "_is_past_snapshot",
        "_prefix",
        "gap",
        "last_stream_seq",
        "pending_at_start",
        "resets",
    )

    def __init__(self, config: ConsumerConfig, name_prefix: str) -> None:
        self._config = config
        self._prefix = name_prefix
        self._expected = 1
        self._begin_at = 0
        self._began = ""
        # A read of each subject's last message begins with a snapshot. Until all of it was read, a new consumer has to
        # begin with a snapshot too, of which the messages that were read are skipped.
        self._is_past_snapshot = config.deliver_policy is not DeliverPolicy.LAST_PER_SUBJECT
        self.last_stream_seq = 0
        self.pending_at_start: int | None = None
        self.resets = -1
        self.gap: SequenceGapError | None = None

    @property
    def has_begun(self) -> bool:
        """Whether there was a consumer."""
        return bool(self._began)

    def next_config(self) -> ConsumerConfig:
        """Return the configuration of the next consumer: as requested, then after the last good message."""
        self.resets += 1
        self._expected = 1
        self.gap = None
        changes: dict[str, object] = {"name": f"{self._prefix}_{self.resets + 1}"}
        begin_at = self.last_stream_seq + 1 if self.last_stream_seq else self._begin_at
        if begin_at and self._is_past_snapshot:
            changes.update(deliver_policy=DeliverPolicy.BY_START_SEQUENCE, opt_start_seq=begin_at, opt_start_time=None)
        return msgspec.structs.replace(self._config, **changes)

    def created(self, info: ConsumerInfo) -> None:
        """Note a new consumer; before its first message, its position is where the next one begins."""
        if not self._began:
            self._began = info.created
            self.pending_at_start = info.num_pending
            self._is_past_snapshot = self._is_past_snapshot or not info.num_pending
        if not self.last_stream_seq and self._is_past_snapshot:
            self._begin_at = info.delivered.stream_seq + 1

    def has_all(self, info: ConsumerInfo) -> bool:
        """Return whether all deliveries of the consumer were received."""
        return info.delivered.consumer_seq < self._expected

    def has_more_than(self, info: ConsumerInfo) -> bool:
        """Return whether more deliveries were received than the consumer counts: it has lost its state."""
        return info.delivered.consumer_seq < self._expected - 1

    def check_stream(self, info: StreamInfo) -> None:
        """Make sure that the stream is the one that the read began with.

        Raises:
            StreamReplacedError: it is younger than the read, or ends before the last message that was read.
        """
        is_younger = bool(self._began) and parse_time(info.created) > parse_time(self._began)
        if is_younger or info.state.last_seq < self.last_stream_seq:
            raise StreamReplacedError(info.config.name, self.last_stream_seq)

    def accept(self, messages: list[Message]) -> list[Message]:
        """Return the messages that follow the last good one, in order; `gap` is set when the others do not."""
        if self.gap is not None or not messages:
            return []
        expected = self._expected
        count = len(messages)
        last = consumer_sequence(messages[-1].raw_reply)
        if consumer_sequence(messages[0].raw_reply) == expected and last == expected + count - 1:
            # One consumer's deliveries come in ascending order, so nothing can be missing between the two.
            good = messages
        else:
            good = self._good_ones(messages)
        if not good:
            return good
        self._expected += len(good)
        if not self._is_past_snapshot:
            return self._skip_seen(good)
        self.last_stream_seq = parse_ack_subject(good[-1].raw_reply).stream_seq
        return good

    def _good_ones(self, messages: list[Message]) -> list[Message]:
        for position, message in enumerate(messages):
            received = consumer_sequence(message.raw_reply)
            if received != self._expected + position:
                stream_seq = parse_ack_subject(message.raw_reply).stream_seq
                self.gap = SequenceGapError(self._expected + position, received, stream_seq)
                return messages[:position]
        return messages

    def _skip_seen(self, messages: list[Message]) -> list[Message]:
        fresh = []
        for message in messages:
            metadata = parse_ack_subject(message.raw_reply)
            if metadata.stream_seq > self.last_stream_seq:
                fresh.append(message)
                self.last_stream_seq = metadata.stream_seq
            if metadata.pending == 0:
                self._is_past_snapshot = True
        return fresh

    def heard_heartbeat(self, last_consumer_seq: int) -> bool:
        """Return whether all deliveries that a heartbeat counts were received; if not, `gap` is set."""
        if last_consumer_seq >= self._expected and self.gap is None:
            self.gap = SequenceGapError(self._expected, last_consumer_seq + 1, self.last_stream_seq)
        return self.gap is None
