"""What a person should look at, and what to do: consumers that are stuck or fall behind, streams that are full."""

from __future__ import annotations

import shlex
from typing import Any, Literal

import msgspec

from jetlake.model.config_text import duration_text, size_text
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.durations import NANOSECONDS_PER_SECOND
from jetlake.model.enums import AckPolicy, DiscardPolicy
from jetlake.model.stream import StreamInfo, StreamSourceInfo

__all__ = [
    "BEHIND_GROWTH_MIN",
    "BEHIND_SAMPLES_MIN",
    "STUCK_S",
    "Finding",
    "Remedy",
    "Standstill",
    "command_line",
    "consumer_finding",
    "health_finding",
    "messages",
    "stream_finding",
]

STUCK_S = 10.0
"""A consumer that has work and does not move for this long is stuck."""
BEHIND_SAMPLES_MIN = 30
"""How many slots of two seconds are needed before the growth of pending messages means anything."""
BEHIND_GROWTH_MIN = 1000
"""How much pending must have grown over the samples to be reported."""
COPY_SILENT_S = 30
"""A mirror or source that has not heard of its origin for this long, and has something to copy, is reported."""
FULL_SHARE = 0.9
"""A stream that refuses new messages when it is full is reported from this share of a limit on."""


class Remedy(msgspec.Struct, frozen=True):
    """A change that a button offers; the dashboard shows what it does before it runs."""

    title: str
    kind: str
    arguments: dict[str, Any]


class Finding(msgspec.Struct, frozen=True):
    """One thing to look at: `bad` needs attention now, `warn` soon."""

    level: Literal["bad", "warn"]
    state: str
    """In a word, for a table."""
    text: str
    stream: str = ""
    consumer: str = ""
    weight: int = 0
    """How many messages it is about; of two findings of one level the heavier comes first."""
    advice: str = ""
    """What to do, in a sentence."""
    command: str = ""
    """A command that says more about it."""
    remedy: Remedy | None = None


class Standstill:
    """Since when a consumer with work to do has neither delivered anything nor had anything acknowledged."""

    __slots__ = ("_place", "_since_s", "is_known", "seconds")

    def __init__(self) -> None:
        self._place: Any = None
        self._since_s = 0.0
        self.seconds = 0.0
        """How long the standstill had lasted at the last observation."""
        self.is_known = False
        """Whether it is known if the consumer is stuck: one that has work has to be watched for a while."""

    def take_over(self, other: Standstill) -> None:
        """Continue where another watch of the same consumer is."""
        self._place, self._since_s = other._place, other._since_s
        self.seconds, self.is_known = other.seconds, other.is_known

    def observe(self, info: ConsumerInfo, time_s: float) -> None:
        """Compare the consumer's progress with the last observation."""
        place = (info.delivered.consumer_seq, info.ack_floor.consumer_seq, info.num_ack_pending)
        has_work = bool(info.num_pending or info.num_ack_pending)
        has_moved = self._place is not None and place != self._place
        if place != self._place or not has_work:
            self._place, self._since_s = place, time_s
        self.seconds = time_s - self._since_s
        self.is_known = self.is_known or has_moved or not has_work or self.seconds >= STUCK_S


def consumer_finding(info: ConsumerInfo, standstill_s: float, pending: list[float]) -> Finding | None:
    """Return what is wrong with a consumer, the worst first.

    Args:
        standstill_s: how long it has had work and not moved.
        pending: its pending messages over time, oldest first.
    """
    if _is_left_behind(info):
        return None
    if standstill_s >= STUCK_S and info.num_pending:
        return _stuck(info, standstill_s)
    if standstill_s >= STUCK_S and info.num_ack_pending:
        return _unacked(info, standstill_s)
    if len(pending) >= BEHIND_SAMPLES_MIN and pending[-1] - pending[0] >= BEHIND_GROWTH_MIN and _rises(pending):
        grown = f"from {pending[0]:,.0f} to {pending[-1]:,.0f}"
        return _found(
            info,
            "warn",
            "behind",
            f"falling behind: pending grew {grown} in the last five minutes",
            "Start more clients of this consumer, or let each fetch larger batches.",
        )
    if info.num_redelivered:
        return _found(
            info,
            "warn",
            "redelivering",
            f"{messages(info.num_redelivered)} redelivered and not yet acknowledged",
            f"A client fails on them, or acknowledges too late. {_redelivery(info)}",
        )
    return None


def _is_left_behind(info: ConsumerInfo) -> bool:
    """Return whether a reader without acknowledgements has gone, as after a watch: the server removes its consumer."""
    config = info.config
    is_read = info.push_bound if config.deliver_subject else info.num_waiting > 0
    return not config.durable_name and config.ack_policy is AckPolicy.NONE and not is_read


def _unacked(info: ConsumerInfo, standstill_s: float) -> Finding:
    """Return that a client holds messages."""
    silence = duration_text(int(standstill_s) * NANOSECONDS_PER_SECOND)
    more = f"; {messages(info.num_pending)} pending and not requested" if info.num_pending else ""
    return _found(
        info,
        "warn",
        "unacked",
        f"{messages(info.num_ack_pending)} awaiting an ack, none received for {silence}{more}",
        f"The client holds them: it acknowledges none, or works longer. {_redelivery(info)}",
    )


def _stuck(info: ConsumerInfo, standstill_s: float) -> Finding:
    """Return why pending messages are not delivered, and the way out."""
    waits = f"{messages(info.num_pending)} pending"
    limit = info.config.max_ack_pending
    where = {"stream": info.stream_name, "consumer": info.name}
    delete = Remedy("Delete the consumer", "consumer.delete", where)
    if info.paused:
        remedy = Remedy("Resume", "consumer.resume", where)
        return _found(
            info, "warn", "paused", f"paused, {waits}", "Resume it, or wait for the end of the pause.", remedy
        )
    if info.config.deliver_subject and not info.push_bound:
        advice = f"Start the client that subscribes to {info.config.deliver_subject}, or delete an unused consumer."
        return _found(info, "bad", "stuck", f"no active subscriber, {waits}", advice, delete)
    is_pulled = bool(info.config.deliver_subject or info.num_waiting)
    is_due = standstill_s * NANOSECONDS_PER_SECOND >= _due_ns(info)
    # What is due again takes no room of the limit away from a client that fetches: none does.
    if 0 < limit <= info.num_ack_pending and (is_pulled or not is_due):
        options = {"max_ack_pending": 2 * limit}
        return _found(
            info,
            "bad",
            "stuck",
            f"max_ack_pending of {limit:,} reached, {waits}: a client does not acknowledge",
            f"Acknowledge what was delivered. {_redelivery(info)} Raise the limit only for work that takes long.",
            Remedy(f"Raise the limit to {2 * limit:,}", "consumer.edit", {**where, "options": options}),
        )
    if not is_pulled:
        # Until its messages are due again, a client may be at work on what it fetched, and ask for more afterwards.
        if info.num_ack_pending and not is_due:
            return _unacked(info, standstill_s)
        advice = "Start a client that fetches from it, or delete an unused consumer."
        return _found(info, "bad", "stuck", f"no pull requests, {waits}", advice, delete)
    if any(group.pinned_client_id for group in info.priority_groups):
        advice = (
            "Only the pinned client gets messages, and it takes none. Unpin it, and the server pins another client."
        )
        return _found(
            info, "bad", "stuck", f"not delivering, {waits}", advice, Remedy("Unpin", "consumer.unpin", where)
        )
    return _found(info, "bad", "stuck", f"not delivering, {waits}", "Clients wait for messages and get none.")


def _redelivery(info: ConsumerInfo) -> str:
    """Say when messages without an ack come again."""
    if info.config.ack_policy is AckPolicy.NONE or info.config.ack_wait <= 0:
        return ""
    return f"Without an ack within {duration_text(_due_ns(info))} they are delivered again."


def _due_ns(info: ConsumerInfo) -> int:
    """Return after which time a message without an ack is delivered again for the first time."""
    return info.config.backoff[0] if info.config.backoff else info.config.ack_wait


def _rises(pending: list[float]) -> bool:
    """Return whether pending keeps growing: a burst that is being worked off is highest in the middle."""
    return pending[-1] >= max(pending) * 0.95


def health_finding(health: dict[str, Any] | None) -> Finding | None:
    """Return what the server's `/healthz` complains of: a failing disk, lost messages, streams that can't be opened."""
    error = (health or {}).get("error")
    if not error:
        return None
    advice = "See the server's log, and check disk and store."
    return Finding("bad", "unhealthy", str(error), advice=advice, command=command_line("doctor"))


def stream_finding(info: StreamInfo) -> Finding | None:
    """Return what is wrong with a stream, the worst first."""
    config, state = info.config, info.state
    if state.lost is not None and state.lost.msgs:
        text = f"{messages(len(state.lost.msgs))} could not be read from disk and are lost"
        advice = "Restore the stream from a backup, or publish them again."
        return Finding(
            "bad", "lost", text, config.name, advice=advice, command=command_line("stream", "info", config.name)
        )
    copies = (info.mirror, *info.sources) if info.mirror is not None else info.sources
    for copy in copies:
        finding = _copy_finding(config.name, copy)
        if finding is not None:
            return finding
    if config.discard is DiscardPolicy.NEW:
        for option, limit, held, text_of in (
            ("max_msgs", config.max_msgs, state.messages, messages),
            ("max_bytes", config.max_bytes, state.bytes, size_text),
        ):
            if limit > 0 and held >= limit * FULL_SHARE:
                full = held >= limit
                text = f"{text_of(held)} of at most {text_of(limit)}: " + (
                    "new messages are rejected" if full else "new messages will be rejected soon"
                )
                doubled = {"stream": config.name, "options": {option: 2 * limit}}
                return Finding(
                    "bad" if full else "warn",
                    "full" if full else "nearly full",
                    text,
                    config.name,
                    advice="Raise the limit, or purge what nobody needs.",
                    command=command_line("stream", "report"),
                    remedy=Remedy(f"Raise the limit to {text_of(2 * limit)}", "stream.edit", doubled),
                )
    return None


def _copy_finding(stream: str, copy: StreamSourceInfo) -> Finding | None:
    """Return what is wrong with a mirror or source."""
    if copy.error is not None:
        text = f"copying from {copy.name} fails: {copy.error.description}"
        advice = f"Check that {copy.name} exists and that this server may read it."
        return Finding(
            "bad", "not copying", text, stream, advice=advice, command=command_line("stream", "info", stream)
        )
    if copy.lag and not 0 <= copy.active < COPY_SILENT_S * NANOSECONDS_PER_SECOND:
        text = f"{messages(copy.lag)} of {copy.name} are not copied yet, and the origin does not respond"
        advice = "Check that the server of the origin runs and is connected."
        command = command_line("stream", "info", stream)
        return Finding("bad", "not copying", text, stream, weight=copy.lag, advice=advice, command=command)
    return None


def _found(
    info: ConsumerInfo, level: Literal["bad", "warn"], state: str, text: str, advice: str, remedy: Remedy | None = None
) -> Finding:
    # What is only known of pull consumers is asked for pull consumers.
    command = "info" if info.config.deliver_subject else "why"
    return Finding(
        level,
        state,
        text,
        info.stream_name,
        info.name,
        info.num_pending + info.num_ack_pending,
        advice,
        command_line("consumer", command, info.stream_name, info.name),
        remedy,
    )


def messages(number: int) -> str:
    """Return a number of messages in words."""
    return f"{number:,} message" + ("" if number == 1 else "s")


def command_line(*words: str) -> str:
    """Return a `jetlake` command as it is typed."""
    return shlex.join(["jetlake", *words])
