"""The accounts of a server with users, watched by the server itself from its start, whether anybody logs in or not.

What is read here comes from the engine, past all permissions, and is not shown. The board of a session lists what its
user may list, and takes from here only how those streams and consumers were before.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from jetlake.dashboard.watching.board import Board
from jetlake.dashboard.watching.collector import GAP_FACTOR, SAVE_S, UNWATCHED_REST_FACTOR, UNWATCHED_S, HistoryFile
from jetlake.dashboard.watching.timeline import LONG_MAX, Timelines
from jetlake.server.engine.api.stream_api import stream_info

if TYPE_CHECKING:
    from collections.abc import Generator

    from jetlake.model.consumer import ConsumerInfo
    from jetlake.model.stream import StreamInfo
    from jetlake.server.engine.api.jetstream import JetStream
    from jetlake.server.shell.server import Server

__all__ = ["WatchedAccounts"]


class WatchedAccounts:
    """A board for each account with JetStream. Their histories together have the room of one board's.

    Args:
        history: where they are kept from one run to the next; None = nowhere.
    """

    def __init__(self, server: Server, history: HistoryFile | None = None) -> None:
        self.boards: dict[str, Board] = {}
        self._server = server
        self._history = history
        self._timelines = Timelines()
        # By account, the histories of accounts that are not watched yet.
        self._kept: dict[str, dict[str, Any]] = {}
        self._between_s = UNWATCHED_S
        for key, kept in (history.load() if history is not None else {}).items():
            account, _, inner = key.partition("\n")
            self._kept.setdefault(account, {})[inner] = kept

    async def run(self) -> None:
        """Sample all accounts again and again, and save the history now and then and at the end."""
        saved_s = time.monotonic()
        try:
            while not self._server.has_stopped:
                began_s = time.monotonic()
                await self.sample()
                if began_s - saved_s >= SAVE_S:
                    saved_s = began_s
                    await asyncio.to_thread(self._save, self.dump(time.time()))
                took_s = time.monotonic() - began_s
                await asyncio.sleep(max(UNWATCHED_S, UNWATCHED_REST_FACTOR * took_s))
                self._between_s = time.monotonic() - began_s
        finally:
            self._save(self.dump(time.time()))

    async def sample(self) -> None:
        """Take one sample of every account."""
        engine = self._server.engine
        jetstreams = {} if engine is None else dict(engine.jetstreams)
        gap_s = GAP_FACTOR * max(self._between_s, UNWATCHED_S)
        for account, jetstream in jetstreams.items():
            infos = await self._server.engine_loop.carry_out(_infos(jetstream))
            board = self.boards.get(account)
            if board is None:
                board = self.boards[account] = Board(self._kept.pop(account, None), timelines=self._timelines)
            now_s = time.time()
            board.observe_streams([info for info, _ in infos], now_s, gap_s)
            for info, consumers in infos:
                board.observe_consumers(info.config.name, consumers, now_s, gap_s)
            board.drop_unlisted({info.config.name for info, _ in infos})
            board.observe_totals(now_s, gap_s)
        for account in self.boards.keys() - jetstreams.keys():
            self.boards.pop(account).drop_unlisted(set())

    def dump(self, time_s: float) -> dict[str, Any]:
        """Return the histories of all accounts, by account, stream and consumer."""
        dumped = {
            f"{account}\n{key}": kept
            for account, board in self.boards.items()
            for key, kept in board.dump(time_s).items()
        }
        for account, histories in self._kept.items():
            for key, kept in histories.items():
                if len(dumped) < LONG_MAX:
                    dumped[f"{account}\n{key}"] = kept
        return dumped

    def _save(self, dumped: dict[str, Any]) -> None:
        if self._history is not None:
            self._history.save(dumped)


def _infos(jetstream: JetStream) -> Generator[None, None, list[tuple[StreamInfo, list[ConsumerInfo]]]]:
    """Return all streams of an account with their consumers, in steps."""
    found: list[tuple[StreamInfo, list[ConsumerInfo]]] = []
    for name in list(jetstream.streams):
        stream = jetstream.streams.get(name)
        if stream is None:
            continue  # deleted since
        consumers: list[ConsumerInfo] = []
        # As the API lists them: without the server's own consumers, which feed mirrors.
        for consumer_name in (yield from stream.consumer_names.get()):
            if (consumer := stream.consumers.get(consumer_name)) is not None:
                consumers.append(consumer.info())
            yield
        if jetstream.streams.get(name) is stream:
            found.append((stream_info(stream, stream.services.clock.now_ns()), consumers))
        yield
    return found
