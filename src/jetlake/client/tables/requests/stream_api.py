"""The few JetStream requests that source and sink need, over one blocking connection."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.client.connection.socket_connection import SocketConnection
from jetlake.client.tables.options.read_options import Link
from jetlake.errors import MessageNotFoundError, UnsupportedStreamError
from jetlake.model.api import API_PREFIX, ROUTES, decode_reply
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.fields import Value
from jetlake.model.encoding.times import format_time
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

__all__ = ["StreamApi"]

ReplyT = TypeVar("ReplyT", bound=Value)

# How often a list of subjects is begun anew because subjects came or went between two of its pages.
_LISTINGS_MAX = 10


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
            UnsupportedStreamError: so many subjects come and go that the pages never fit together.
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
        raise UnsupportedStreamError(f"the subjects of stream {stream} come and go too fast to be listed: try later")

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
        request = MessageGetRequest(seq=sequence, next_by_subj=subject)
        try:
            return self._request(MessageGetReply, "STREAM.MSG.GET", stream, body=request).message
        except MessageNotFoundError:
            return None

    def message(self, stream: str, sequence: int) -> StoredMessage | None:
        """Return the message of that sequence, asked of the stream's leader."""
        try:
            return self._request(
                MessageGetReply, "STREAM.MSG.GET", stream, body=MessageGetRequest(seq=sequence)
            ).message
        except MessageNotFoundError:
            return None

    def last_message(self, stream: str, subject: str) -> StoredMessage | None:
        """Return the newest message of that subject."""
        request = MessageGetRequest(last_by_subj=subject)
        try:
            return self._request(MessageGetReply, "STREAM.MSG.GET", stream, body=request).message
        except MessageNotFoundError:
            return None

    def message_at(self, stream: str, time_ns: int) -> StoredMessage | None:
        """Return the first message that was stored at that time or later."""
        request = MessageGetRequest(start_time=format_time(time_ns))
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
        """Remove the messages below that sequence, of those that match; returns how many."""
        request = StreamPurgeRequest(seq=below, filter=subject)
        return self._request(StreamPurgeReply, "STREAM.PURGE", stream, body=request).purged

    def reset_consumer(self, stream: str, consumer: str, sequence: int) -> ConsumerInfo:
        """Let the consumer go on with that sequence; what is below counts as acknowledged."""
        return self._request(
            ConsumerResetReply, "CONSUMER.RESET", stream, consumer, body=ConsumerResetRequest(seq=sequence)
        )

    def forget_consumer(self, stream: str, consumer: str) -> None:
        """Delete a consumer without waiting for the answer."""
        self.connection.publish(self.subject("CONSUMER.DELETE", stream, consumer))
