"""Feeds the board from a server: polls infos, listens to events, reads messages. Needs nothing but a connection."""

from __future__ import annotations

import asyncio
import time
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

import msgspec

from jetlake.client import Client, Message
from jetlake.dashboard.board import Board
from jetlake.errors import ApiError, ConfigError, InvalidOptionError, JetlakeError, MessageNotFoundError, NotFoundError
from jetlake.model import replies, requests
from jetlake.model.api import api_prefix, decode_reply
from jetlake.model.consumer import ConsumerInfo
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.fields import Value
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.stream import StreamInfo
from jetlake.protocol.headers import Headers

__all__ = ["PIPELINE_SUBJECT", "Collector"]

PIPELINE_SUBJECT = "jetlake.pipeline.progress.>"
"""Where running pipelines say how far they are."""
STREAMS_PER_SAMPLE = 50
"""How many streams' consumers are asked for in one sample; with more, they take turns."""
SUBJECTS_MAX = 1000
"""How many subjects of a stream are shown."""
PAYLOAD_BYTES_MAX = 64 * 1024
"""How much of a payload is shown."""
TAIL_MESSAGES_MAX = 50
"""How many messages a tail shows of one sample; of more, the newest."""

ReplyT = TypeVar("ReplyT", bound=Value)
Report = Callable[[], Awaitable[dict[str, Any] | None]]
"""Gives what a page of the server's monitoring says; None when it does not answer."""


class Collector:
    """Samples one server, once for all pages that are open, and only while one is.

    Args:
        client: a connection of its own.
        domain: the JetStream domain, if not the server's own.
        interval_s: time between samples.
        connections: gives what `/connz` says, when the server's monitoring is known.
        health: gives what `/healthz` says, the same.
    """

    def __init__(
        self,
        client: Client,
        *,
        domain: str = "",
        interval_s: float = 1.0,
        connections: Report | None = None,
        health: Report | None = None,
    ) -> None:
        self.board = Board()
        self._client = client
        self._prefix = api_prefix(domain)
        self._interval_s = interval_s
        self._connections = connections
        self._health = health
        self._turn = 0
        self._seen_s = 0.0
        self._sampled = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0

    async def start(self) -> None:
        """Listen to events from now on, and take the first sample."""
        # Not the audit of API calls: our own questions would fill it.
        for subject in ("$JS.EVENT.ADVISORY.STREAM.>", "$JS.EVENT.ADVISORY.CONSUMER.>", "$JS.EVENT.METRIC.>"):
            await self._client.subscribe(subject, callback=self._on_event)
        await self._client.subscribe(PIPELINE_SUBJECT, callback=self._on_pipeline)
        await self._sample()

    async def stop(self) -> None:
        if self._task is not None:
            self._task.cancel()
            self._task = None

    async def samples(self) -> AsyncIterator[None]:
        """One step a sample, beginning with the latest at once. Sampling runs while somebody is in here."""
        self._watchers += 1
        if self._task is None:
            self._task = asyncio.create_task(self._run())
        try:
            yield
            while True:
                await self._sampled.wait()
                yield
        finally:
            self._watchers -= 1

    async def _run(self) -> None:
        while self._watchers:
            await self._sample()
            self._sampled.set()
            self._sampled = asyncio.Event()
            await asyncio.sleep(self._interval_s)
        self._task = None

    async def _sample(self) -> None:
        """Ask the server everything once; a server that does not answer is shown as such and asked again."""
        try:
            account = await self._ask("INFO", None, replies.AccountInfoReply)
            self.board.account = {"consumers": account.consumers, "streams": account.streams}
            self.board.see_streams(await self._streams(), time.time())
            for name in self._next_streams():
                self.board.see_consumers(name, await self._consumers(name), time.time())
            if self._connections is not None:
                self.board.connections = await self._connections()
            if self._health is not None:
                self.board.health = await self._health()
            connected, self._seen_s = True, time.time()
        except (JetlakeError, OSError):
            connected = False
        info = self._client.server_info
        self.board.server = {
            "connected": connected,
            "seen": self._seen_s,
            "name": info.server_name,
            "version": info.version,
            "url": self._client.server,
        }

    def _next_streams(self) -> list[str]:
        names = self.board.stream_names()
        if len(names) <= STREAMS_PER_SAMPLE:
            return names
        first = self._turn % len(names)
        self._turn = first + STREAMS_PER_SAMPLE
        return (names + names)[first : first + STREAMS_PER_SAMPLE]

    async def _streams(self) -> list[StreamInfo]:
        found: list[StreamInfo] = []
        while True:
            page = await self._ask(
                "STREAM.LIST", requests.StreamListRequest(offset=len(found)), replies.StreamListReply
            )
            found += page.streams
            if not page.streams or len(found) >= page.total:
                return found

    async def _consumers(self, stream: str) -> list[ConsumerInfo]:
        found: list[ConsumerInfo] = []
        try:
            while True:
                page = await self._ask(
                    f"CONSUMER.LIST.{stream}",
                    requests.ConsumerListRequest(offset=len(found)),
                    replies.ConsumerListReply,
                )
                found += page.consumers
                if not page.consumers or len(found) >= page.total:
                    return found
        except NotFoundError:
            return []  # deleted since it was listed

    def _on_event(self, message: Message) -> None:
        self.board.see_advisory(message.subject, message.data, time.time())

    def _on_pipeline(self, message: Message) -> None:
        self.board.see_pipeline(message.data, time.time())

    def overview(self) -> dict[str, Any]:
        return self.board.overview(time.time())

    async def stream(self, stream: str) -> dict[str, Any] | None:
        """One stream with its consumers as they are now and the subjects it holds."""
        detail = self.board.stream(_name(stream))
        if detail is None:
            return None
        try:
            info = await self._ask(
                f"STREAM.INFO.{stream}", requests.StreamInfoRequest(subjects_filter=">"), replies.StreamInfoReply
            )
            self.board.see_consumers(stream, await self._consumers(stream), time.time())
        except NotFoundError:
            return None
        held = sorted(info.state.subjects.items(), key=lambda pair: -pair[1])[:SUBJECTS_MAX]
        return {**(self.board.stream(stream) or detail), "subjects_held": held}

    async def consumer(self, stream: str, consumer: str) -> dict[str, Any] | None:
        return self.board.consumer(_name(stream), _name(consumer))

    async def messages(
        self,
        stream: str,
        *,
        sequence: int | None = None,
        subject: str | None = None,
        time: str | None = None,
        last: int | None = None,
        limit: int = 20,
    ) -> list[dict[str, Any]]:
        """Messages in order from a sequence or time, of a subject; or the last ones, newest first."""
        if last is not None:
            state = (await self._ask(f"STREAM.INFO.{_name(stream)}", None, replies.StreamInfoReply)).state
            first = max(state.first_seq, state.last_seq - min(last, limit) + 1, 1)
            return (await self._read(stream, requests.MessageGetRequest(seq=first, next_by_subj=">"), limit))[::-1]
        start = requests.MessageGetRequest(seq=sequence or 1, next_by_subj=subject or ">")
        if time is not None:
            try:
                start_time = format_time(parse_time(time))
            except ConfigError as error:
                raise InvalidOptionError(str(error)) from None
            start = requests.MessageGetRequest(start_time=start_time, next_by_subj=subject or ">")
        return await self._read(stream, start, limit)

    async def _read(self, stream: str, start: requests.MessageGetRequest, limit: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        request = start
        try:
            while len(found) < limit:
                reply = await self._ask(f"STREAM.MSG.GET.{_name(stream)}", request, replies.MessageGetReply)
                found.append(_shown(reply.message))
                request = requests.MessageGetRequest(seq=reply.message.seq + 1, next_by_subj=start.next_by_subj)
        except MessageNotFoundError:
            pass
        return found

    async def tail(self, stream: str) -> AsyncIterator[list[dict[str, Any]]]:
        """What is published from now on, a list a sample. Reads by sequence: no consumer is made, nothing is taken."""
        last = (await self._ask(f"STREAM.INFO.{_name(stream)}", None, replies.StreamInfoReply)).state.last_seq
        async for _ in self.samples():
            detail = self.board.stream(stream)
            if detail is None:
                return
            newest = detail["last_seq"]
            if newest > last:
                first = max(last + 1, newest - TAIL_MESSAGES_MAX + 1)
                start = requests.MessageGetRequest(seq=first, next_by_subj=">")
                found = await self._read(stream, start, newest - first + 1)
                last = newest
                if found:
                    yield found

    async def purge(self, stream: str) -> None:
        await self._ask(f"STREAM.PURGE.{_name(stream)}", requests.StreamPurgeRequest(), replies.StreamPurgeReply)

    async def pause(self, stream: str, consumer: str) -> None:
        until = format_time(time.time_ns() + 3_600_000_000_000)
        request = requests.ConsumerPauseRequest(pause_until=until)
        await self._ask(f"CONSUMER.PAUSE.{_name(stream)}.{_name(consumer)}", request, replies.ConsumerPauseReply)

    async def resume(self, stream: str, consumer: str) -> None:
        await self._ask(
            f"CONSUMER.PAUSE.{_name(stream)}.{_name(consumer)}",
            requests.ConsumerPauseRequest(),
            replies.ConsumerPauseReply,
        )

    async def unpin(self, stream: str, consumer: str) -> None:
        detail = self.board.consumer(stream, consumer)
        groups = detail["priority_groups"] if detail else []
        if not groups:
            raise InvalidOptionError(f"{consumer} has no priority group")
        await self._ask(
            f"CONSUMER.UNPIN.{_name(stream)}.{_name(consumer)}",
            requests.ConsumerUnpinRequest(group=groups[0]["group"]),
            replies.ConsumerUnpinReply,
        )

    async def _ask(self, verb: str, request: msgspec.Struct | None, kind: type[ReplyT]) -> ReplyT:
        body = b"" if request is None else encode(request)
        answer = await self._client.request(f"{self._prefix}.{verb}", body, timeout=5)
        try:
            return decode_reply(kind, answer.data)
        except msgspec.DecodeError as error:
            raise ApiError(500, 0, f"the server's answer can't be read: {error}") from None


def _name(text: str) -> str:
    """A name that may stand in a subject."""
    if not text or any(letter in ".*> \t\r\n" for letter in text):
        raise InvalidOptionError(f"{text[:64]!r} can't be the name of a stream or consumer")
    return text


def _shown(message: replies.StoredMessage) -> dict[str, Any]:
    data, header = message.data, message.hdrs
    return {
        "seq": message.seq,
        "subject": message.subject,
        "time": message.time,
        "size": len(data),
        "headers": list(Headers(header).items()) if header else [],
        "data": b64encode(data[:PAYLOAD_BYTES_MAX]).decode(),
        "cut": len(data) > PAYLOAD_BYTES_MAX,
    }
