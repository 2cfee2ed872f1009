"""Why a pull consumer delivers nothing right now, from what the server tells about it."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby
from typing import Literal

from msgspec import Struct

from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.durations import format_duration
from jetlake.model.replies import PendingMessage
from jetlake.model.stream import StreamInfo
from jetlake.protocol.subjects import overlaps

ReasonKind = Literal[
    "paused",
    "no_pulls",
    "max_ack_pending",
    "delayed",
    "unacknowledged",
    "filter_matches_nothing",
    "pinned",
    "caught_up",
]

_SHOWN = 5


class Reason(Struct, frozen=True):
    """One thing that keeps a consumer from delivering, or that it waits for."""

    kind: ReasonKind
    """What it is, for programs."""
    text: str
    """The same for people, with what to do."""


class Explanation(Struct, frozen=True):
    """Why a consumer delivers nothing; `str()` gives one line for each reason.

    Attributes:
        is_stalled: messages wait that are not delivered.
        reasons: what keeps them, the most important first; empty when the consumer delivers.
        info: the consumer as the server describes it.
        pending: the oldest messages that wait for acknowledgement; None when the server does not list them.
    """

    is_stalled: bool
    reasons: tuple[Reason, ...]
    info: ConsumerInfo
    pending: tuple[PendingMessage, ...] | None

    def __str__(self) -> str:
        return "\n".join(reason.text for reason in self.reasons) or "messages are being delivered"


def explain(info: ConsumerInfo, stream: StreamInfo | None, pending: tuple[PendingMessage, ...] | None) -> Explanation:
    """Say why a pull consumer delivers nothing.

    Args:
        info: the consumer.
        stream: its stream, with the messages of the subjects that pass the filters; None when that is not known.
        pending: the oldest messages that wait for acknowledgement; None when that is not known.
    """
    config = info.config
    reasons: list[Reason] = []
    waits = info.num_pending > 0
    if info.paused:
        left = format_duration(info.pause_remaining)
        reasons.append(Reason("paused", f"the consumer is paused for another {left}: resume() ends that"))
    is_full = 0 < config.max_ack_pending <= info.num_ack_pending
    if is_full:
        text = f"max_ack_pending of {config.max_ack_pending:,} is reached; acknowledge the oldest messages"
        reasons.append(Reason("max_ack_pending", text + _named(info, pending, "in_flight", "queued", "delayed")))
    delayed = [message for message in pending or () if message.state == "delayed"]
    if delayed:
        text = f"{_messages(len(delayed))} refused by nak with a delay; until the delay is over, each counts as pending"
        reasons.append(Reason("delayed", text + _named(info, delayed, "delayed")))
    # A reached limit is not the cause while messages are due for redelivery and no client fetches them.
    is_due = any(message.state == "queued" for message in pending or ())
    if waits and not info.num_waiting and (is_due or not is_full):
        text = f"no fetch or consume is waiting, so no client requests the pending messages ({info.num_pending:,})"
        reasons.append(Reason("no_pulls", text))
    pins = [group for group in info.priority_groups if group.pinned_client_id]
    if pins and waits:
        names = ", ".join(group.group for group in pins)
        reasons.append(Reason("pinned", f"only the pinned client of {names} gets messages; unpin() lets another one"))
    if not waits:
        reasons += _nothing_new(info, stream, pending, is_full)
    is_stalled = any(reason.kind != "caught_up" for reason in reasons if reason.kind != "pinned")
    return Explanation(is_stalled, tuple(reasons), info, pending)


def _nothing_new(
    info: ConsumerInfo, stream: StreamInfo | None, pending: tuple[PendingMessage, ...] | None, is_full: bool
) -> list[Reason]:
    """Say why there is no message that was never delivered."""
    if info.num_ack_pending:
        if is_full:
            return []
        text = f"everything was delivered; {_messages(info.num_ack_pending)} awaiting acknowledgement or redelivery"
        return [Reason("unacknowledged", text + _named(info, pending, "in_flight", "queued"))]
    if info.config.filters and stream is not None and not stream.state.subjects:
        filters = ", ".join(info.config.filters)
        captured = [subject.encode() for subject in stream.config.subjects]
        never = captured and not any(overlaps(one.encode(), own) for one in info.config.filters for own in captured)
        text = f"no message of the stream passes the filter {filters}"
        if never:
            text += f", and none ever will: the stream captures {', '.join(stream.config.subjects)}"
        return [Reason("filter_matches_nothing", text)]
    return [Reason("caught_up", "everything was delivered and acknowledged")]


def _named(info: ConsumerInfo, pending: Iterable[PendingMessage] | None, *states: str) -> str:
    if pending is None:
        first, last = info.ack_floor.stream_seq + 1, info.delivered.stream_seq
        return f" (this server does not say which; they are between sequences {first} and {last})"
    found = [message for message in pending if message.state in states]
    if not found:
        return ""
    # Messages of one fetch share their deliveries and deadline, which are said once.
    shown = (
        f"{', '.join(str(one.sequence) for one in same)} ({note})" for note, same in groupby(found[:_SHOWN], key=_note)
    )
    return f": sequence{'' if len(found) == 1 else 's'} {', '.join(shown)}{' …' if len(found) > _SHOWN else ''}"


def _note(message: PendingMessage) -> str:
    due = f"{message.due[:10]} {message.due[11:19]} UTC"
    state = "queued for redelivery since" if message.state == "queued" else f"{message.state.replace('_', ' ')} until"
    return f"delivery {message.deliveries}, {state} {due}"


def _messages(number: int) -> str:
    return f"{number:,} message{'' if number == 1 else 's'}"
