"""Messages under way and their acknowledgements: `PendingAck`, and the two forms in which a publish window keeps them.

A `SingleMessage` has a reply subject, a deadline and retries of its own. A `PublishRun` is a shorter way to write up to
a thousand plain messages: encoded, sent and acknowledged in columns. Whatever is not an acknowledgement in the order of
publishing (a refusal, a lost connection, a deadline) splits a run into single messages. A `PendingAck` refers to either
by a number, so that a message of a run needs no object of its own unless its publisher keeps one.
"""

from __future__ import annotations

import asyncio
from collections.abc import Generator, Sequence
from typing import Any

from msgspec import Struct

from jetlake.client.messages.message import Message
from jetlake.client.publish.stream_search import BLIND_RETRIES, ELECTION_S, RETRY_WAIT_S, is_in_process
from jetlake.completion import hides
from jetlake.errors import ApiError, JetlakeError, NoRespondersError
from jetlake.model.publish import PubAck, decode_pub_ack
from jetlake.protocol import encoder

RUN_MAX = 1000
"""Most messages of a run: the number of each has three digits."""

# A message without a timeout of its own is sent again for as long as an election takes.
_ELECTION_ATTEMPTS = int(ELECTION_S / RETRY_WAIT_S)
_NUMBERS = [b"%03d" % number for number in range(RUN_MAX)]


@hides("error", "is_duplicate", "is_observed", "known", "observe")
class PendingAck(Struct, eq=False):
    """The acknowledgement of a message in flight: await it, or leave it to `publish_async_complete`.

    It is a reference: the outcomes of all messages of one write are kept together, as long as a `PendingAck` of one of
    them is held.
    """

    _messages: SingleMessage | PublishRun
    _number: int

    @property
    def subject(self) -> str:
        """The subject that the message was published to."""
        return self._messages.subject_of(self._number).decode("utf-8", "replace")

    @property
    def is_done(self) -> bool:
        """Whether the answer is known."""
        return self._messages.answer_of(self._number) is not None or self.error is not None

    @property
    def error(self) -> Exception | None:
        """Why the message failed; None if it was stored, or is still under way."""
        return self._messages.error_of(self._number)

    @property
    def is_duplicate(self) -> bool:
        """Whether the answer is known and says that the stream had the message already."""
        answer = self._messages.answer_of(self._number)
        return answer is not None and b'"duplicate"' in answer and self.known().duplicate

    @property
    def is_observed(self) -> bool:
        """Whether a failure is raised only where this object is awaited."""
        return self._messages.is_observed(self._number)

    def __repr__(self) -> str:
        if self.error is not None:
            return f"<PendingAck on {self.subject!r} failed: {self.error}>"
        return f"<PendingAck on {self.subject!r} {'acknowledged' if self.is_done else 'under way'}>"

    def __await__(self) -> Generator[Any, None, PubAck]:
        return self._result().__await__()

    def observe(self, *, is_observed: bool = True) -> None:
        """Leave a failure to the holder of this object, so that it is reported nowhere else; False reverts that."""
        self._messages.observe(self._number, is_observed=is_observed)

    async def _result(self) -> PubAck:
        if not self.is_done:
            self.observe()
            await asyncio.shield(self._messages.outcome(self._number))
        return self.known()

    def known(self) -> PubAck:
        """Return the answer that is there already; raises what `await` would."""
        answer = self._messages.answer_of(self._number)
        if answer is not None:
            return decode_pub_ack(answer)
        self.observe()
        error = self.error
        assert error is not None
        raise error


class SingleMessage(Struct, eq=False):
    """A message under way that is found by its reply subject, and its outcome.

    The methods for `PendingAck` take a number as `PublishRun` does, and ignore it.
    """

    raw_subject: bytes
    """Where the message goes."""
    payload: bytes
    """Kept, as the header, while the message is under way."""
    header: bytes = b""
    has_id: bool = False
    timeout_s: float | None = None
    """How long its acknowledgement may take; None for the window's timeout."""
    retries: int | None = None
    """How often it is sent again when no stream listens; None for the window's rule."""
    deadline: float = 0.0
    """When the current half of its time is over."""
    halves: int = 0
    """How many halves are over."""
    attempts: int = 0
    """How often it was sent again because no stream listened."""
    answers_due: int = 1
    """How many times it was sent on this connection and not answered."""
    refusal: Exception | None = None
    """Why an attempt was refused while the answer to another one was due."""
    answer: bytes | None = None
    error: Exception | None = None
    observed: bool = False
    waiter: asyncio.Future[None] | None = None

    def frame(self, reply: bytes) -> bytes:
        """Encode the message, which is under way, with this reply subject."""
        if self.header:
            return encoder.hpub(self.raw_subject, reply, self.header, self.payload)
        return encoder.pub(self.raw_subject, reply, self.payload)

    @property
    def size(self) -> int:
        """The bytes of subject, headers and payload while the message is under way."""
        return len(self.raw_subject) + len(self.header) + len(self.payload)

    def release(self) -> None:
        """Drop the payload and wake the tasks that await the message: the outcome is known."""
        self.payload = self.header = b""
        waiter = self.waiter
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    def half_s(self, window_timeout_s: float) -> float:
        """Return half of the timeout."""
        return (window_timeout_s if self.timeout_s is None else self.timeout_s) / 2

    def time_s(self, window_timeout_s: float, *, is_clustered: bool) -> float:
        """Return how long the message may wait for its acknowledgement, all repetitions included."""
        if self.timeout_s is not None:
            return self.timeout_s
        if self.has_id and self.retries is None and is_clustered:
            return max(window_timeout_s, ELECTION_S)
        return window_timeout_s

    def may_be_retried(self, error: Exception) -> bool:
        """Return whether the message, which was refused for this reason, may be accepted later."""
        if isinstance(error, NoRespondersError):
            return self.attempts < (_ELECTION_ATTEMPTS if self.retries is None else self.retries)
        return self.has_id and is_in_process(error)

    @property
    def needs_search(self) -> bool:
        """Whether the message was sent often enough that its stream is searched for."""
        return self.retries is None and self.attempts > BLIND_RETRIES

    # For `PendingAck`

    def subject_of(self, number: int) -> bytes:
        return self.raw_subject

    def answer_of(self, number: int) -> bytes | None:
        return self.answer

    def error_of(self, number: int) -> Exception | None:
        return self.error

    def is_observed(self, number: int) -> bool:
        return self.observed

    def observe(self, number: int, *, is_observed: bool) -> None:
        self.observed = is_observed

    def outcome(self, number: int) -> asyncio.Future[None]:
        if self.waiter is None:
            self.waiter = asyncio.get_running_loop().create_future()
        return self.waiter


class PublishRun:
    """Messages without headers and ids that are sent with one write, and their outcomes.

    Args:
        subjects: the subject of each; both lists may grow until `end`.
        payloads: the payload of each.
        position: the position of the first message in a `publish_many`.
        is_observed: the publisher collects failures itself and asks for no acknowledgement: none is kept.

    Attributes:
        size: bytes of subjects and payloads that are not acknowledged.
        deadline: when half of the time for the acknowledgements is over.
        is_all_observed: the publisher collects failures itself; they are reported nowhere else.
        pendings: the messages that were not acknowledged when the run was split, with their positions.
        stored: how many are acknowledged, from the first on.
    """

    __slots__ = (
        "_answers",
        "_head",
        "_is_encoded",
        "_keeps_answers",
        "_observed",
        "_payloads",
        "_position",
        "_singles",
        "_split_from",
        "_subjects",
        "_waiters",
        "deadline",
        "is_all_observed",
        "pendings",
        "size",
        "stored",
    )

    def __init__(
        self, subjects: Sequence[bytes], payloads: Sequence[bytes], position: int = 0, *, is_observed: bool = False
    ) -> None:
        self._subjects = subjects
        self._payloads = payloads
        self._position = position
        self._keeps_answers = not is_observed
        self._answers: list[bytes] = []
        self._waiters: dict[int, asyncio.Future[None]] = {}
        self._observed: set[int] = set()
        self._singles: list[SingleMessage] = []
        self._split_from = 0
        self._head = b""
        self._is_encoded = False
        self.size = 0
        self.deadline = 0.0
        self.is_all_observed = is_observed
        self.pendings: list[tuple[int, PendingAck]] = []
        self.stored = 0

    def __len__(self) -> int:
        return len(self._subjects)

    @property
    def is_over(self) -> bool:
        """Whether all messages are acknowledged, or the run is split."""
        return self.stored == len(self._subjects)

    def end(self, head: bytes, deadline: float) -> None:
        """Add no more messages to the run.

        Args:
            head: what their reply subjects begin with; three digits follow, from 000 on.
            deadline: when half of the time for the acknowledgements is over.
        """
        self._head = head
        self.size = sum(map(len, self._payloads)) + sum(map(len, self._subjects))
        self.deadline = deadline

    def frames(self) -> bytes:
        """Encode all messages, after `end`."""
        frames = encoder.pub_run(self._subjects, self._head, _NUMBERS[: len(self)], self._payloads)
        self._is_encoded = True
        self._release_payloads()
        return frames

    def _release_payloads(self) -> None:
        """Drop the payloads, which every `PendingAck` would keep alive, once nothing can send them again."""
        if self._is_encoded and self.is_over:
            self._payloads = ()

    def acknowledge(self, replies: list[bytes], answers: list[bytes], start: int) -> int:
        """Acknowledge the next messages of the run, whose answers begin at `start`.

        Returns:
            How many; 0 if the answer at `start` is not for the next message.
        """
        stored = self.stored
        if replies[start] != self._head + _NUMBERS[stored]:
            return 0
        count = min(len(self) - stored, len(replies) - start)
        # One comparison for all: a reply subject has no blank.
        head = b" " + self._head
        if b" " + b" ".join(replies[start : start + count]) != head + head.join(_NUMBERS[stored : stored + count]):
            return 0
        self.size -= self.size * count // (len(self) - stored)
        self.stored = stored + count
        if self._keeps_answers:
            self._answers += answers[start : start + count]
            if self._waiters:
                self._wake()
        self._release_payloads()
        return count

    def _wake(self) -> None:
        """Wake the tasks that await a message that is acknowledged."""
        for number in [number for number in self._waiters if number < self.stored]:
            waiter = self._waiters.pop(number)
            if not waiter.done():
                waiter.set_result(None)

    def split(self, singles: dict[bytes, SingleMessage], deadline: float, *, is_late: bool) -> int:
        """Add the messages that are not acknowledged to the single ones; returns their bytes."""
        numbers = range(self.stored, len(self))
        split = [SingleMessage(self._subjects[number], self._payloads[number]) for number in numbers]
        for number, one in zip(numbers, split, strict=True):
            one.deadline = deadline
            one.halves = int(is_late)
            one.observed = self.is_all_observed or number in self._observed
            one.waiter = self._waiters.pop(number, None)
            singles[self._head + _NUMBERS[number]] = one
        # Threads of a blocking client read meanwhile: the list is complete when they see it.
        self._split_from = self.stored
        self._singles = split
        self.pendings = [(self._position + number, PendingAck(self, number)) for number in numbers]
        self.stored = len(self)
        self.size = 0
        self._release_payloads()
        return sum(one.size for one in split)

    # For `PendingAck`

    def _single(self, number: int) -> SingleMessage | None:
        """Return the message if it became a single one when the run was split."""
        return self._singles[number - self._split_from] if self._singles and number >= self._split_from else None

    def subject_of(self, number: int) -> bytes:
        return self._subjects[number]

    def answer_of(self, number: int) -> bytes | None:
        if number < len(self._answers):
            return self._answers[number]
        single = self._single(number)
        return None if single is None else single.answer

    def error_of(self, number: int) -> Exception | None:
        single = self._single(number)
        return None if single is None else single.error

    def is_observed(self, number: int) -> bool:
        single = self._single(number)
        return self.is_all_observed or number in self._observed if single is None else single.observed

    def observe(self, number: int, *, is_observed: bool) -> None:
        single = self._single(number)
        if single is not None:
            single.observed = is_observed
        elif number >= len(self._answers):
            (self._observed.add if is_observed else self._observed.discard)(number)

    def outcome(self, number: int) -> asyncio.Future[None]:
        single = self._single(number)
        if single is not None:
            return single.outcome(number)
        waiter = self._waiters.get(number)
        if waiter is None:
            waiter = self._waiters[number] = asyncio.get_running_loop().create_future()
        return waiter


def are_acks(answers: bytes, count: int = 1) -> bool:
    """Return whether `count` concatenated answers are acknowledgements; `refusal` reads the others.

    Any subscriber of the subject may answer, with anything.
    """
    return answers.count(b'"seq":') == count and b'"error"' not in answers


def refusal(subject: str, message: Message) -> Exception | None:
    """Return why the message on this subject was not stored, from the answer to it; None if it was."""
    if not message.payload and message.status == 503:
        return NoRespondersError(subject)
    try:
        decode_pub_ack(message.payload)
    except JetlakeError as error:
        if isinstance(error, ApiError):
            error.request = subject
        return error
    return None


def describe_failures(pendings: list[PendingAck]) -> list[tuple[str, Exception]]:
    """Return the subject and the error of each failed message."""
    return [(pending.subject, pending.error) for pending in pendings if pending.error is not None]
