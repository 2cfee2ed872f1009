"""The pull subscription (NATS ADR-13): `fetch` pulls with `no_wait` first, and lingers if nothing is there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from functools import partial

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.messages.mailbox import Mailbox
from jetlake.client.messages.message import Message, give_back
from jetlake.client.messages.message_batch import MessageBatch
from jetlake.client.messages.receiver import Receiver
from jetlake.client.pull.options import NO_GROUP, GroupOptions, group_options
from jetlake.client.pull.pull_status import PullOutcome, PullStatus, classify, read_status
from jetlake.client.settings.options import timeout_s
from jetlake.client.subscribe.bound_consumer import BoundConsumer
from jetlake.errors import (
    ConnectionClosedError,
    ConsumerDeletedError,
    DisconnectedError,
    InvalidOptionError,
    JetlakeError,
    NoRespondersError,
    NotFoundError,
    PermissionsError,
    PullStatusError,
    SubscriptionClosedError,
)
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.durations import Seconds, nanoseconds
from jetlake.model.enums import AckPolicy, PriorityPolicy
from jetlake.model.requests import PullRequest
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

_TIMEOUT_S = 5.0
# The server ends a lingering pull this long before the client stops waiting for it.
_EXPIRES_BEFORE_S = 0.1
_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0


class PullPhase(Enum):
    """How far a fetch is."""

    NO_WAIT = "no_wait"
    """Asked for what is there."""
    LINGER = "linger"
    """Nothing was there; waiting for the first."""
    OVER = "over"


class TwoStepPull:
    """One fetch of a pull subscription, as a pure state machine.

    Attributes:
        phase: how far it is.
        error: the status that ended it, if that was an error.
    """

    __slots__ = ("_batch", "_group", "_received", "error", "phase")

    def __init__(self, batch: int, group: GroupOptions = NO_GROUP) -> None:
        self._batch = batch
        self._group = group
        self._received = 0
        self.phase = PullPhase.NO_WAIT
        self.error: PullStatus | None = None

    def first_request(self) -> PullRequest:
        """Ask for what is there."""
        return self._request(no_wait=True)

    def second_request(self, timeout_s: float) -> PullRequest:
        """Wait for messages; the server gives up a little before the client does."""
        expires_s = max(timeout_s - _EXPIRES_BEFORE_S, timeout_s / 2)
        return self._request(expires=nanoseconds(expires_s))

    def _request(self, *, no_wait: bool = False, expires: int = 0) -> PullRequest:
        group = self._group
        return PullRequest(
            batch=self._batch,
            no_wait=no_wait,
            expires=expires,
            group=group.group,
            min_pending=group.min_pending,
            min_ack_pending=group.min_ack_pending,
            priority=group.priority,
        )

    def received(self, messages: int) -> None:
        """Count received messages."""
        self._received += messages
        if self._received >= self._batch:
            self.phase = PullPhase.OVER

    def heard(self, status: PullStatus) -> None:
        """Read a status: 404 and 408 mean that nothing (more) is there; heartbeats are ignored."""
        outcome = classify(status)
        if outcome is PullOutcome.HEARTBEAT:
            return
        if status.status in (404, 408):
            is_empty = self.phase is PullPhase.NO_WAIT and not self._received
            self.phase = PullPhase.LINGER if is_empty else PullPhase.OVER
            return
        self.phase = PullPhase.OVER
        if outcome is not PullOutcome.ENDED:
            self.error = status


class _Inbox(Receiver):
    """Where the answers of one fetch come to."""

    __slots__ = ("_pull_subject", "mailbox")

    def __init__(self, subject: bytes, pull_subject: bytes, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__(subject)
        self._pull_subject = pull_subject
        self.mailbox = Mailbox(loop)

    def receive(self, messages: list[Message]) -> None:
        self.mailbox.put(messages)

    def ended(self, error: Exception | None) -> None:
        if error is not None or not self.delivered_max:
            self.mailbox.end(error or ConnectionClosedError("the connection was closed during the fetch"))

    def forbidden(self, subject: bytes, error: PermissionsError) -> None:
        if subject == self._pull_subject:
            self.mailbox.end(error)

    def disconnected(self) -> None:
        self.mailbox.end(DisconnectedError("the connection was lost during the fetch"))


class PullSubscription:
    """A pull consumer for explicit fetches; created by `JetStream.pull_subscribe`.

    Attributes:
        stream_name: the stream's name.
        consumer_name: the consumer's name.
    """

    def __init__(
        self,
        api: ApiCaller,
        stream_name: str,
        consumer_name: str,
        *,
        created: bool,
        info: ConsumerInfo | None,
        is_named: bool = False,
    ) -> None:
        self._connection = api.connection
        self._bound = BoundConsumer(api, stream_name, consumer_name, is_owned=created, is_named=is_named)
        self._needs_no_ack = info is not None and info.config.ack_policy is AckPolicy.NONE
        self._is_closed = False
        self._pull_subject = api.subject("CONSUMER.MSG.NEXT", stream_name, consumer_name)
        self._single: _Inbox | None = None
        self._keep_single: Callable[[], object] = bool
        self._single_busy = False
        self._single_next = 0
        self.stream_name = stream_name
        self.consumer_name = consumer_name
        self.cached_info = info

    def __repr__(self) -> str:
        ended = " ended" if self._is_closed else ""
        return f"<PullSubscription of {self.consumer_name!r} of {self.stream_name!r}{ended}>"

    @property
    def owns_consumer(self) -> bool:
        """Whether this subscription created the consumer, and deletes it at its end."""
        return self._bound.is_owned

    async def consumer_info(self) -> ConsumerInfo:
        """Ask the server about the consumer."""
        return await self._bound.info()

    async def fetch(
        self,
        batch: int = 1,
        timeout: Seconds = _TIMEOUT_S,
        *,
        group: str | None = None,
        min_pending: int | None = None,
        min_ack_pending: int | None = None,
        priority: int | None = None,
    ) -> MessageBatch[Message]:
        """Fetch up to `batch` available messages, or, if there are none, the next ones within `timeout` seconds.

        Args:
            batch: most messages.
            timeout: seconds to wait for the first one.
            group: the priority group, needed if the consumer has groups.
            min_pending: overflow policy: only when at least this number of messages is yet to be delivered.
            min_ack_pending: overflow policy: only when at least this number of messages waits for acknowledgement.
            priority: prioritized policy: 0 (first) to 9.

        Returns:
            The messages; an empty list when none came. When a status ends the fetch behind some messages, as after the
            deletion of the consumer, they are returned, and their `error` has it.

        Raises:
            InvalidOptionError: an option that cannot work, or a pinned consumer, which needs `Consumer.consume`.
            PullStatusError: the server refused the pull.
            ConsumerDeletedError: the consumer is gone.
            NoRespondersError: no server answers for the consumer.
            DisconnectedError: there was no server for the whole time.
            PermissionsError: the user may not pull.
        """
        if isinstance(batch, bool) or not isinstance(batch, int) or batch < 1:
            raise InvalidOptionError(f"batch must be 1 or more, not {batch!r}")
        groups = self._groups(group, min_pending, min_ack_pending, priority)
        loop = self._connection.loop
        give_up_at = loop.time() + (timeout_s(timeout) or _TIMEOUT_S)
        retry_s = _RETRY_FIRST_S
        while True:
            if self._is_closed:
                raise SubscriptionClosedError("the pull subscription was unsubscribed")
            await self._connection.wait_connected(give_up_at - loop.time())
            try:
                if batch == 1 and not self._single_busy:
                    return await self._fetch_one(TwoStepPull(1, groups), give_up_at - loop.time())
                return await self._fetch_many(TwoStepPull(batch, groups), batch, give_up_at - loop.time())
            except (DisconnectedError, NoRespondersError, PullStatusError) as error:
                if not _is_passing(error) or loop.time() + retry_s >= give_up_at:
                    raise
                if isinstance(error, NoRespondersError) and await self._is_gone(give_up_at - loop.time()):
                    raise
            await asyncio.sleep(retry_s)
            retry_s = min(_RETRY_MAX_S, 2 * retry_s)

    def _groups(
        self, group: str | None, min_pending: int | None, min_ack_pending: int | None, priority: int | None
    ) -> GroupOptions:
        config = self.cached_info.config if self.cached_info is not None else None
        if config is not None and config.priority_policy is PriorityPolicy.PINNED_CLIENT:
            raise InvalidOptionError(
                "fetch does not work on a pinned_client consumer: use js.consumer(…).consume, which keeps the pin"
            )
        return group_options(
            config, group=group, min_pending=min_pending, min_ack_pending=min_ack_pending, priority=priority
        )

    async def _is_gone(self, timeout_s: float) -> bool:
        """Tell a consumer that is gone from one whose cluster elects a leader."""
        try:
            await self._bound.info(timeout_s)
        except NotFoundError:
            return True
        except JetlakeError:
            pass  # A client that may not ask may pull all the same, and the time of the fetch is limited.
        return False

    async def _fetch_one(self, pull: TwoStepPull, timeout_s: float) -> MessageBatch[Message]:
        """Pull(1): the first try goes through one wildcard inbox for all such fetches, without SUB and UNSUB."""
        started = self._connection.loop.time()
        if self._single is not None and self._single.mailbox.is_ended:
            self._close_single()  # The connection was lost between two fetches.
        if self._single is None:
            self._single = self._open_inbox(b".*")
            # A handle that was garbage collected cannot unsubscribe.
            self._keep_single = self._connection.when_gone(self, partial(self._connection.unsubscribe, self._single))
        inbox = self._single
        self._single_next += 1
        reply = b"%b%d" % (inbox.subject[:-1], self._single_next)
        self._single_busy = True
        answered = False
        try:
            self._ask(pull.first_request(), reply)
            messages = await self._collect(pull, inbox, timeout_s, until=PullPhase.NO_WAIT, reply=reply)
            answered = pull.phase is not PullPhase.NO_WAIT
        finally:
            self._single_busy = False
            if not answered:
                # Its late answer would be taken for the answer of the next fetch.
                self._close_single()
        if pull.phase is not PullPhase.LINGER:
            return self._outcome(pull, messages)
        left_s = timeout_s - (self._connection.loop.time() - started)
        return await self._linger(pull, left_s) if left_s > 0 else MessageBatch()

    def _close_single(self) -> None:
        if self._single is not None:
            self._connection.unsubscribe(self._single)
            self._keep_single()
            self._single = None

    def _open_inbox(self, suffix: bytes = b"") -> _Inbox:
        connection = self._connection
        inbox = _Inbox(
            new_inbox(connection.options.inbox_prefix).encode() + suffix, self._pull_subject, connection.loop
        )
        connection.subscribe(inbox)
        return inbox

    async def _linger(self, pull: TwoStepPull, timeout_s: float) -> MessageBatch[Message]:
        inbox = self._open_inbox()
        try:
            self._ask(pull.second_request(timeout_s), inbox.subject)
            messages = await self._collect(pull, inbox, timeout_s, until=PullPhase.LINGER)
        finally:
            self._connection.unsubscribe(inbox)
        return self._outcome(pull, messages)

    async def _fetch_many(self, pull: TwoStepPull, batch: int, timeout_s: float) -> MessageBatch[Message]:
        """Pull(n): an inbox for this fetch, with an automatic end behind the last message."""
        started = self._connection.loop.time()
        inbox = self._open_inbox()
        try:
            self._ask(pull.first_request(), inbox.subject)
            messages = await self._collect(pull, inbox, timeout_s, until=PullPhase.NO_WAIT)
            left_s = timeout_s - (self._connection.loop.time() - started)
            if pull.phase is PullPhase.LINGER and left_s > 0:
                # One more than the batch, for the status that was the first answer.
                self._connection.unsubscribe(inbox, batch + 1)
                self._ask(pull.second_request(left_s), inbox.subject)
                messages += await self._collect(pull, inbox, left_s, until=PullPhase.LINGER)
        finally:
            self._connection.unsubscribe(inbox)
        return self._outcome(pull, messages)

    def _ask(self, request: PullRequest, reply: bytes) -> None:
        self._connection.send(encoder.pub(self._pull_subject, reply, encode(request)))
        self._connection.end_turn()

    async def _collect(
        self, pull: TwoStepPull, inbox: _Inbox, timeout_s: float, *, until: PullPhase, reply: bytes = b""
    ) -> list[Message]:
        """Return the messages that come while the fetch is in this phase, or until its time is over."""
        mailbox = inbox.mailbox
        collected: list[Message] = []
        try:
            async with asyncio.timeout(timeout_s):
                while pull.phase is until:
                    while mailbox.messages and pull.phase is until:
                        self._take(pull, mailbox.messages.popleft(), collected, reply)
                    if pull.phase is not until:
                        break
                    if mailbox.is_ended:
                        if not collected and mailbox.error is not None:
                            raise mailbox.error
                        break
                    await mailbox.wait()
        except TimeoutError:
            self._connection.suspect()  # The server ends every pull with a status before this.
            # Messages that came in the same moment.
            while mailbox.messages and pull.phase is until:
                self._take(pull, mailbox.messages.popleft(), collected, reply)
        except asyncio.CancelledError:
            give_back([*collected, *(message for message in mailbox.messages if message.raw_reply)])
            raise
        return collected

    def _take(self, pull: TwoStepPull, message: Message, collected: list[Message], reply: bytes) -> None:
        if message.raw_reply:
            message._settled = self._needs_no_ack
            collected.append(message)
            pull.received(1)
        elif not reply or message.raw_subject == reply:
            pull.heard(read_status(message))

    def _outcome(self, pull: TwoStepPull, messages: list[Message]) -> MessageBatch[Message]:
        """Return the messages; the status that ended them is raised, or goes with them."""
        error = None if pull.error is None else self._error_of(pull.error)
        if error is not None and not messages:
            raise error
        return MessageBatch(messages, error)

    def _error_of(self, status: PullStatus) -> JetlakeError:
        outcome = classify(status)
        if outcome is PullOutcome.DELETED:
            return ConsumerDeletedError(self.stream_name, self.consumer_name)
        if outcome is PullOutcome.UNAVAILABLE:
            return NoRespondersError(self._pull_subject.decode())
        return PullStatusError(status.status, status.description)

    async def unsubscribe(self) -> None:
        """End it; a consumer that it created is deleted, unless another client pulls from it.

        Raises:
            ApiError: the consumer could not be deleted; `ConsumerNotFoundError` if somebody else has deleted it.
        """
        self._is_closed = True
        self._close_single()
        await self._bound.delete_if_owned(self._bound.has_waiting_pulls if self._bound.is_named else None)

    async def drain(self) -> None:
        """End it as `unsubscribe` does: nothing is in flight between two fetches; a failure goes to `on_error`."""
        try:
            await self.unsubscribe()
        except JetlakeError as error:
            self._connection.signal(error)

    async def __aenter__(self) -> PullSubscription:
        return self

    async def __aexit__(self, *_: object) -> None:
        with suppress(NotFoundError):  # Deleted in the block.
            await self.unsubscribe()


def _is_passing(error: JetlakeError) -> bool:
    """Return whether the pull was lost with its connection or its leader, and may be sent again."""
    if isinstance(error, PullStatusError):
        return classify(PullStatus(error.status, error.description)) is PullOutcome.LOST
    return True
