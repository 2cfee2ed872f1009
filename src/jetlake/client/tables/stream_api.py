"""The JetStream API over blocking connections, for readers without an event loop: tables, Spark's source and its sink.

A `Link` leases connections, `StreamApi` makes one request a method, and `ask` repeats a question on another connection
until it is answered or `retry_for_s` is over. Nothing here keeps state between questions: a question must be one
that may be asked twice, because a connection that broke says nothing about what the server has done.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.errors import (
    AuthorizationError,
    ClientConnectionError,
    MessageNotFoundError,
    RequestTimeoutError,
    UnsupportedStreamError,
)
from jetlake.model.api import API_PREFIX, ROUTES, decode_reply
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.fields import Value
from jetlake.model.encoding.times import wire_time
from jetlake.model.enums import ConsumerAction
from jetlake.model.replies import (
    ConsumerCreateReply,
    ConsumerInfoReply,
    ConsumerResetReply,
    MessageGetReply,
    StoredMessage,
    StreamCreateReply,
    StreamInfoReply,
    StreamNamesReply,
    StreamPurgeReply,
)
from jetlake.model.requests import (
    ConsumerCreateRequest,
    ConsumerResetRequest,
    MessageGetRequest,
    StreamCreateRequest,
    StreamInfoRequest,
    StreamListRequest,
    StreamPurgeRequest,
)
from jetlake.model.stream import StreamConfig, StreamInfo

ReplyT = TypeVar("ReplyT", bound=Value)

# How often a list of subjects is started again because subjects came or went between two of its pages.
_LISTINGS_MAX = 10


T = TypeVar("T")

BROKEN = (ClientConnectionError, RequestTimeoutError, OSError)
"""The errors of a connection that broke; another attempt may succeed."""

_FIRST_PAUSE_S = 0.05
_PAUSE_MAX_S = 2.0


class Link(Protocol):
    """Connections to the servers of a stream, and how long to try: a client's, or the options of Spark."""

    @property
    def api_prefix(self) -> str:
        """What the subjects of the JetStream API begin with."""

    @property
    def request_timeout_s(self) -> float:
        """How long to wait for one answer of the server."""

    @property
    def retry_for_s(self) -> float:
        """How long to retry while the server is away."""

    def lease(self) -> AbstractContextManager[SocketConnection]:
        """Lease a connection for the block; one in which the block fails is closed."""


@dataclass(frozen=True)
class StreamApi:
    """Requests about streams and consumers; every method is one request and its answer.

    Raises (every method):
        ApiError: the server refused.
        ConnectionError, TimeoutError: there was no answer.
    """

    connection: SocketConnection
    prefix: str = API_PREFIX
    timeout_s: float = 5.0

    @classmethod
    def through(cls, connection: SocketConnection, link: Link) -> StreamApi:
        """Return the API over a connection of the link."""
        return cls(connection, link.api_prefix, link.request_timeout_s)

    def subject(self, verb: str, *names: str) -> bytes:
        """Return the API subject of that verb for these names."""
        return ROUTES[verb].subject(*names, prefix=self.prefix).encode()

    def _request(self, kind: type[ReplyT], verb: str, *names: str, body: Any = None) -> ReplyT:
        payload = encode(body) if body is not None else b""
        answer = self.connection.request(self.subject(verb, *names), payload, self.timeout_s)
        return decode_reply(kind, answer.payload)

    def stream_info(self, stream: str, *, deleted: bool = False) -> StreamInfo:
        """Return the stream's configuration and state; if asked, with its deleted sequences."""
        body = StreamInfoRequest(deleted_details=True) if deleted else None
        return self._request(StreamInfoReply, "STREAM.INFO", stream, body=body)

    def subjects_of(self, stream: str, pattern: str) -> list[str]:
        """Return the subjects that have messages and match the pattern, page by page.

        Raises:
            UnsupportedStreamError: subjects change so fast that the pages are never consistent.
        """
        for _ in range(_LISTINGS_MAX):
            names: list[str] = []
            while True:
                # The pages are in the order of names: one that begins with the last name before has skipped none.
                body = StreamInfoRequest(offset=max(len(names) - 1, 0), subjects_filter=pattern)
                page = self._request(StreamInfoReply, "STREAM.INFO", stream, body=body)
                subjects = list(page.state.subjects)
                if names and subjects[:1] != names[-1:]:
                    break
                names += subjects[1:] if names else subjects
                if len(names) >= page.total:
                    return names
        raise UnsupportedStreamError(f"the subjects of stream {stream} change too fast to be listed: try again later")

    def stream_of(self, subject: str) -> str:
        """Return the stream that captures the subject; empty when none does."""
        names = self._request(StreamNamesReply, "STREAM.NAMES", body=StreamListRequest(subject=subject)).streams
        return names[0] if names else ""

    def stream_names(self) -> list[str]:
        """Return the names of all streams, page by page."""
        names: list[str] = []
        while True:
            page = self._request(StreamNamesReply, "STREAM.NAMES", body=StreamListRequest(offset=len(names)))
            names += page.streams or ()
            if not page.streams or len(names) >= page.total:
                return names

    def create_stream(self, config: StreamConfig) -> StreamInfo:
        """Create a stream; the same one again is no error."""
        request = StreamCreateRequest.from_config(config)
        return self._request(StreamCreateReply, "STREAM.CREATE", config.name, body=request)

    def next_message(self, stream: str, sequence: int, subject: str = ">") -> StoredMessage | None:
        """Return the first message from that sequence on whose subject matches, asked of the stream's leader."""
        return self._get(stream, MessageGetRequest(seq=sequence, next_by_subj=subject))

    def message(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, asked of the stream's leader."""
        return self._get(stream, MessageGetRequest(seq=sequence))

    def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of that subject."""
        return self._get(stream, MessageGetRequest(last_by_subj=subject))

    def message_at(self, stream: str, time_ns: int) -> StoredMessage | None:
        """Return the first message that was stored at that time or later."""
        return self._get(stream, MessageGetRequest(start_time=wire_time(time_ns)))

    def _get(self, stream: str, request: MessageGetRequest) -> StoredMessage | None:
        try:
            return self._request(MessageGetReply, "STREAM.MSG.GET", stream, body=request).message
        except MessageNotFoundError:
            return None

    def create_consumer(
        self, stream: str, config: ConsumerConfig, action: ConsumerAction = ConsumerAction.CREATE
    ) -> ConsumerInfo:
        """Create a consumer, or change the one that exists."""
        request = ConsumerCreateRequest(stream_name=stream, config=config, action=action)
        return self._request(ConsumerCreateReply, "CONSUMER.CREATE", stream, config.name, body=request)

    def consumer_info(self, stream: str, consumer: str) -> ConsumerInfo:
        """Return the consumer's configuration and state."""
        return self._request(ConsumerInfoReply, "CONSUMER.INFO", stream, consumer)

    def purge(self, stream: str, below: int, subject: str = "") -> int:
        """Purge the matching messages below that sequence, and return how many there were."""
        request = StreamPurgeRequest(seq=below, filter=subject)
        return self._request(StreamPurgeReply, "STREAM.PURGE", stream, body=request).purged

    def reset_consumer(self, stream: str, consumer: str, sequence: int) -> ConsumerInfo:
        """Move the consumer to that sequence; messages below it count as acknowledged."""
        return self._request(
            ConsumerResetReply, "CONSUMER.RESET", stream, consumer, body=ConsumerResetRequest(seq=sequence)
        )

    def forget_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer without waiting for the answer."""
        self.connection.publish(self.subject("CONSUMER.DELETE", stream, consumer))


class RetryPolicy:
    """Back-off between attempts, until `retry_for_s` of the link has passed since the last success."""

    def __init__(self, link: Link) -> None:
        self._limit_s = link.retry_for_s
        self.succeeded()

    def succeeded(self) -> None:
        """Start the time limit and the back-off again."""
        self._deadline_s = time.monotonic() + self._limit_s
        self._pause_s = _FIRST_PAUSE_S

    def pause(self, error: Exception) -> None:
        """Sleep before the next attempt; raise the error when the time is over or a retry cannot help."""
        if isinstance(error, AuthorizationError) or time.monotonic() + self._pause_s > self._deadline_s:
            raise error
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _PAUSE_MAX_S)


def retrying(link: Link, action: Callable[[SocketConnection], T]) -> T:
    """Run the action on a connection, and on another one when it breaks, for as long as the link allows.

    Raises:
        AuthorizationError: at once, because a retry does not help.
        ClientConnectionError, RequestTimeoutError: the server was away for too long.
    """
    policy = RetryPolicy(link)
    while True:
        try:
            with link.lease() as connection:
                return action(connection)
        except BROKEN as error:
            policy.pause(error)


def ask(link: Link, question: Callable[[StreamApi], T]) -> T:
    """Ask the JetStream API something, with the retries and errors of `retrying`."""
    return retrying(link, lambda connection: question(StreamApi.through(connection, link)))
