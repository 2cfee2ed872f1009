"""Samples a server for the board: polls infos, listens to events, keeps the history in a file."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec

from jetlake.client import Message, Subscription
from jetlake.dashboard.watching.board import Board
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.server_api import ServerApi, checked_name
from jetlake.errors import InvalidOptionError, JetlakeError, NotFoundError, PermissionsError
from jetlake.model import replies, requests
from jetlake.model.consumer import ConsumerInfo

PIPELINE_SUBJECT = "jetlake.pipeline.progress.>"
"""Where running pipelines say how far they are."""
STREAMS_PER_SAMPLE = 50
"""How many streams' consumers are asked for in one sample; with more, they take turns."""
SUBJECTS_MAX = 1000
"""How many subjects of a stream are shown; of a stream with more than ten times as many, none."""
UNWATCHED_S = 5.0
"""Time between samples while no page is open."""
REST_FACTOR, UNWATCHED_REST_FACTOR = 4, 20
"""A sample is followed by a rest of at least this multiple of its duration: many streams are sampled less often."""
REFUSED_S = 10.0
"""Time until a server is asked again that refused to answer, and has put it into its log."""
DENIED_S = 60.0
"""The same for what the user may not ask for: the account, or the consumers of one stream."""
GAP_FACTOR = 4
"""Samples further apart than this many intervals leave a gap."""
SAVE_S = 60.0
"""Time between two writes of the history."""

Report = Callable[[], Awaitable[dict[str, Any] | None]]
"""Gives what a page of the server's monitoring says; None when it does not answer."""


class Collector:
    """Samples one server, once for all pages that are open, and less often while none is.

    Args:
        interval_s: time between samples while a page is open.
        connections: gives what `/connz` says, when the server's monitoring is known.
        health: gives what `/healthz` says, the same.
        variables: gives what `/varz` says, the same.
        history: where the history is kept from one run to the next; None = nowhere.
        before: a board of the same account that has been fed for longer, which this one continues.
    """

    def __init__(
        self,
        api: ServerApi,
        *,
        interval_s: float = 1.0,
        connections: Report | None = None,
        health: Report | None = None,
        variables: Report | None = None,
        history: HistoryFile | None = None,
        before: Board | None = None,
    ) -> None:
        self.api = api
        self.board = Board(history.load() if history is not None else None, before=before)
        self._interval_s = interval_s
        self._connections = connections
        self._health = health
        self._variables = variables
        self._history = history
        self._turn = 0
        self._seen_s = 0.0
        self._refusal = ""
        """What a server that answers says against being asked: permissions that are missing, no JetStream."""
        self._denied_until_s: dict[str, float] = {}
        self._account_denied_until_s = 0.0
        self._subscriptions: list[Subscription] = []
        self._summary: dict[str, Any] = {}
        self._sampled = asyncio.Event()
        self._wanted = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._watchers = 0
        self._between_s = UNWATCHED_S
        self._saved_s = time.monotonic()

    async def start(self) -> None:
        """Listen to events, take the first sample, and continue sampling."""
        # Not the audit of API calls: the collector's own requests would fill it.
        for subject in ("$JS.EVENT.ADVISORY.STREAM.>", "$JS.EVENT.ADVISORY.CONSUMER.>", "$JS.EVENT.METRIC.>"):
            self._subscriptions.append(await self.api.client.subscribe(subject, callback=self._on_event))
        self._subscriptions.append(await self.api.client.subscribe(PIPELINE_SUBJECT, callback=self._on_pipeline))
        await self.sample()
        self._task = asyncio.create_task(self._run())

    async def stop(self) -> None:
        """Stop sampling, and keep the history."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
            await self._save()

    async def samples(self) -> AsyncGenerator[None, None]:
        """Yield one step a sample, beginning with the latest at once."""
        self._watchers += 1
        self._wanted.set()
        try:
            yield
            while True:
                await self._sampled.wait()
                yield
        finally:
            self._watchers -= 1

    async def _run(self) -> None:
        while True:
            began_s = time.monotonic()
            await self.sample()
            self._sampled.set()
            self._sampled = asyncio.Event()
            if time.monotonic() - self._saved_s >= SAVE_S:
                await self._save()
            await self._rest(time.monotonic() - began_s)
            self._between_s = time.monotonic() - began_s

    async def _rest(self, took_s: float) -> None:
        """Wait for the next sample; a page that is opened ends the longer wait of a time without pages."""
        await asyncio.sleep(max(REFUSED_S if self._refusal else self._interval_s, REST_FACTOR * took_s))
        if not self._watchers:
            self._wanted.clear()
            wait_s = max(UNWATCHED_S, UNWATCHED_REST_FACTOR * took_s) - self._interval_s
            with suppress(TimeoutError):
                await asyncio.wait_for(self._wanted.wait(), max(wait_s, 0.0))

    async def _save(self) -> None:
        self._saved_s = time.monotonic()
        if self._history is not None:
            await asyncio.to_thread(self._history.save, self.board.dump(time.time()))

    async def sample(self) -> None:
        """Take one sample of the server; one that does not answer is shown as such and asked again."""
        client = self.api.client
        self._refusal = ""
        try:
            await self._ask_all()
            connected, self._seen_s = True, time.time()
            # The server ends a subscription only if it refuses it.
            self.board.unheard = [one.subject.decode() for one in self._subscriptions if one.is_closed]
        except (JetlakeError, OSError) as error:
            connected = False
            if client.is_connected and not isinstance(error, TimeoutError):
                self._refusal = str(error)
        info = client.server_info
        self.board.server = {
            "connected": connected,
            "seen": self._seen_s,
            "refusal": self._refusal,
            "name": info.server_name,
            "version": info.version,
            "cluster": info.cluster,
            "url": client.server,
        }
        self._summary = self.board.summary(time.time())

    async def _ask_all(self) -> None:
        await self._ask_account()
        gap_s = GAP_FACTOR * max(self._between_s, UNWATCHED_S)
        await self._ask_streams(gap_s)
        names = self.board.stream_names()
        turns = -(-len(names) // STREAMS_PER_SAMPLE)
        for name in self._next_streams(names):
            if self._denied_until_s.get(name, 0.0) > time.monotonic():
                continue
            try:
                self.board.observe_consumers(name, await self._consumers(name), time.time(), gap_s * turns)
                self._denied_until_s.pop(name, None)
            except PermissionsError as error:
                # One stream that the user may not see does not hide the others.
                self.board.observe_denial(name, str(error))
                self._denied_until_s[name] = time.monotonic() + DENIED_S
        self.board.observe_totals(time.time(), gap_s * turns)
        if self._connections is not None:
            self.board.connections = await self._connections()
        if self._health is not None:
            self.board.health = await self._health()
        if self._variables is not None:
            self.board.observe_server(await self._variables(), time.time())

    async def _ask_account(self) -> None:
        """Ask what the account uses; a user who may not ask can still be allowed to list streams."""
        if self._account_denied_until_s > time.monotonic():
            return
        try:
            account = await self.api.ask("INFO", None, replies.AccountInfoReply)
        except PermissionsError:
            self.board.account = {}
            self._account_denied_until_s = time.monotonic() + DENIED_S
            return
        self.board.account = {
            "consumers": account.consumers,
            "streams": account.streams,
            "storage": account.storage,
            "max_storage": account.limits.max_storage,
        }

    def _next_streams(self, names: list[str]) -> list[str]:
        if len(names) <= STREAMS_PER_SAMPLE:
            return names
        first = self._turn % len(names)
        self._turn = first + STREAMS_PER_SAMPLE
        return (names + names)[first : first + STREAMS_PER_SAMPLE]

    async def _ask_streams(self, gap_s: float) -> None:
        """Feed the board page by page, and yield to other tasks between two pages."""
        names: set[str] = set()
        offset = 0
        while True:
            page = await self.api.ask("STREAM.LIST", requests.StreamListRequest(offset=offset), replies.StreamListReply)
            self.board.observe_streams(page.streams, time.time(), gap_s)
            names.update(info.config.name for info in page.streams)
            offset += len(page.streams)
            if not page.streams or offset >= page.total:
                break
        self.board.drop_unlisted(names)
        self._denied_until_s = {name: until for name, until in self._denied_until_s.items() if name in names}

    async def _consumers(self, stream: str) -> list[ConsumerInfo]:
        found: list[ConsumerInfo] = []
        try:
            while True:
                page = await self.api.ask(
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
        self.board.observe_advisory(message.subject, message.data, time.time())

    def _on_pipeline(self, message: Message) -> None:
        self.board.observe_pipeline(message.data, time.time())

    def summary(self) -> dict[str, Any]:
        """Return what every page shows, of the latest sample."""
        return {**self._summary, "time": time.time()}

    async def stream(self, stream: str, listing: Listing) -> dict[str, Any] | None:
        """Return one stream with its consumers as they are now and the subjects it holds; None when there is none."""
        known = self.board.stream(checked_name(stream), listing, time.time())
        if known is None:
            return None
        pattern = ">" if known["num_subjects"] <= 10 * SUBJECTS_MAX else ""
        try:
            info = await self.api.ask(
                f"STREAM.INFO.{stream}", requests.StreamInfoRequest(subjects_filter=pattern), replies.StreamInfoReply
            )
            self.board.observe_consumers(stream, await self._consumers(stream), time.time())
        except NotFoundError:
            return None
        except JetlakeError:
            return known  # away: the latest that was seen
        held = sorted(info.state.subjects.items(), key=lambda pair: -pair[1])[:SUBJECTS_MAX]
        return {**(self.board.stream(stream, listing, time.time()) or known), "subjects_held": held}

    async def consumer(self, stream: str, consumer: str, listing: Listing) -> dict[str, Any] | None:
        """Return one consumer, with the server's reasons when something is wrong with it; None when there is none."""
        known = self.board.consumer(checked_name(stream), checked_name(consumer), listing, time.time())
        if known is None or known["finding"] is None or known["kind"] == "push":
            return known
        try:
            explained = await (await self.api.jetstream.consumer(stream, consumer)).explain()
        except JetlakeError:
            return known  # deleted meanwhile, or away: the latest that was seen
        return {**known, "reasons": [reason.text for reason in explained.reasons]}


_VERSION = 1
_BYTES_MAX = 256 * 1024 * 1024

_Series = dict[str, dict[str, tuple[int, bytes, bytes]]]


class _Kept(msgspec.Struct, frozen=True):
    created: str
    series: _Series


class _Content(msgspec.Struct, frozen=True):
    version: int
    kept: dict[str, _Kept]


class HistoryFile:
    """One file, replaced as a whole. It is a convenience: what can't be read or written is left out.

    Args:
        path: where it is; its folder is made when it is first written.
    """

    def __init__(self, path: Path) -> None:
        self._path = path

    def load(self) -> dict[str, Any]:
        """Return the last saved state, by stream and consumer; nothing when it can't be read."""
        try:
            if self._path.stat().st_size > _BYTES_MAX:
                return {}
            content = msgspec.msgpack.decode(self._path.read_bytes(), type=_Content)
        except (OSError, msgspec.DecodeError):
            return {}
        if content.version != _VERSION:
            return {}
        return {key: {"created": kept.created, "series": kept.series} for key, kept in content.kept.items()}

    def save(self, histories: dict[str, Any]) -> None:
        """Replace the saved file: readers see the old one or the new one."""
        aside = self._path.with_name(self._path.name + ".tmp")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            aside.write_bytes(msgspec.msgpack.encode({"version": _VERSION, "kept": histories}))
            aside.replace(self._path)
        except OSError:
            with suppress(OSError):
                aside.unlink(missing_ok=True)


ANSWER_BYTES_MAX = 4 * 1024 * 1024


def connections_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Return a function that gives what `/connz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    return _asking(monitor_url, "/connz?limit=1024")


def health_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Return a function that gives what `/healthz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    return _asking(monitor_url, "/healthz")


def variables_of(monitor_url: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    """Return a function that gives what `/varz` says now, None when it does not answer.

    Raises:
        InvalidOptionError: not an http address.
    """
    return _asking(monitor_url, "/varz")


def _asking(monitor_url: str, page: str) -> Callable[[], Awaitable[dict[str, Any] | None]]:
    if not monitor_url.startswith(("http://", "https://")):
        raise InvalidOptionError(f"a monitoring address must begin with http:// or https://, not {monitor_url!r}")
    url = monitor_url.rstrip("/") + page

    def ask() -> dict[str, Any] | None:
        try:
            with _answer(url) as answer:
                found = msgspec.json.decode(answer.read(ANSWER_BYTES_MAX))
        except (OSError, msgspec.DecodeError):
            return None
        return found if isinstance(found, dict) else None

    return lambda: asyncio.to_thread(ask)


def _answer(url: str) -> Any:
    """Return the answer of the server, error statuses included."""
    import urllib.error  # Not on a server that shows its own dashboard.
    import urllib.request

    try:
        return urllib.request.urlopen(url, timeout=2)
    except urllib.error.HTTPError as error:
        return error
