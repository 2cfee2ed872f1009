"""Messages that no stream took for the moment: sent again together, or given up where no stream will take them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from jetlake.client.publish.single_message import SingleMessage
from jetlake.client.publish.stream_search import ELECTION_S, StreamSearch, is_in_process
from jetlake.errors import NoRespondersError

__all__ = ["MessageRetries", "is_passing"]

_RETRY_WAIT_S = 0.25
# A message without a timeout of its own waits so long for a cluster that elects its stream's leader.
_ELECTION_ATTEMPTS = int(ELECTION_S / _RETRY_WAIT_S)


def is_passing(pending: SingleMessage, error: Exception) -> bool:
    """Return whether a message that was refused may be taken later."""
    if isinstance(error, NoRespondersError):
        return pending.attempts < (_ELECTION_ATTEMPTS if pending.retries is None else pending.retries)
    return pending.has_id and is_in_process(error)


class MessageRetries:
    """Retries the messages of a publish window that found no stream, or were refused for the moment.

    Args:
        loop: the event loop.
        pending: the messages under way by their reply subjects.
        retries: how often a message is sent again before its stream is searched for.
        search: tells a stream without a leader from no stream.
        send_again: sends the messages of these reply subjects, as far as they are still under way.
        give_up: gives the messages of these reply subjects up for this reason.
    """

    __slots__ = (
        "_doubts",
        "_give_up",
        "_loop",
        "_pending",
        "_replies",
        "_retries",
        "_search",
        "_searching",
        "_send_again",
        "_timer",
    )

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        pending: Mapping[bytes, SingleMessage],
        *,
        retries: int,
        search: StreamSearch,
        send_again: Callable[[list[bytes]], None],
        give_up: Callable[[list[bytes], Exception], None],
    ) -> None:
        self._loop = loop
        self._pending = pending
        self._retries = retries
        self._search = search
        self._send_again = send_again
        self._give_up = give_up
        self._replies: dict[bytes, None] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._doubts: dict[bytes, None] = {}
        self._searching: asyncio.Task[None] | None = None

    def __contains__(self, reply: bytes) -> bool:
        return reply in self._replies

    def add(self, reply: bytes, pending: SingleMessage) -> None:
        """Send the message again soon; one that was sent often enough has its stream searched for."""
        self._replies[reply] = None
        if self._timer is None:
            self._timer = self._loop.call_later(_RETRY_WAIT_S, self._send)
        if self._is_doubtful(pending, pending.raw_subject):
            self._doubts[pending.raw_subject] = None
            if self._searching is None:
                self._searching = self._loop.create_task(self._find_streams())

    def clear(self) -> None:
        """Forget all messages: a new connection gets everything that is under way."""
        self._replies.clear()

    def stop_search(self) -> None:
        """Stop searching for streams."""
        if self._searching is not None:
            self._searching.cancel()

    def _send(self) -> None:
        self._timer = None
        replies, self._replies = self._replies, {}
        self._send_again(list(replies))

    async def _find_streams(self) -> None:
        """Give up what no stream will ever take; what only waits for a leader goes on being sent."""
        try:
            while self._doubts:
                subject, _ = self._doubts.popitem()
                if await self._search.finds(subject) is False:
                    lost = [reply for reply, pending in self._pending.items() if self._is_doubtful(pending, subject)]
                    self._give_up(lost, NoRespondersError(subject.decode("utf-8", "replace")))
        finally:
            self._searching = None

    def _is_doubtful(self, pending: SingleMessage, subject: bytes) -> bool:
        return pending.raw_subject == subject and pending.retries is None and pending.attempts > self._retries
