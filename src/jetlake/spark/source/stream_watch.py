"""The state of a query's streams, asked at most once in every poll interval, and which streams it reads."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, TypeVar

from jetlake.client.tables.planning import Version, check_server, parse_version
from jetlake.client.tables.stream_api import StreamApi, ask
from jetlake.errors import JetStreamNotEnabledError, NoRespondersError, StreamNotFoundError, UnsupportedStreamError
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions

T = TypeVar("T")

_HELD_S = 0.1
"""How long a plan without messages is held, while the streams are polled: a query that is stopped waits for it."""


class StreamWatch:
    """The streams as the server describes them, and every other question to the server."""

    def __init__(self, options: SourceOptions, clock: Clock) -> None:
        self._options = options
        self._clock = clock
        self._infos: dict[str, tuple[float, StreamInfo]] = {}
        self._version: Version | None = None

    @property
    def version(self) -> Version:
        """The server's version.

        Raises:
            UnsupportedStreamError: it is too old.
        """
        if self._version is None:
            version = self.ask(lambda api: parse_version(api.connection.server_version))
            check_server(version)
            self._version = version
        return self._version

    def figures(self, streams: Iterable[str]) -> dict[str, Any]:
        """Return the figures of a progress report: the server, and how many messages the streams hold."""
        server = self.ask(lambda api: api.connection.info.server_name)
        return {"server": server, "messages": {stream: self.info(stream).state.messages for stream in streams}}

    def ask(self, question: Callable[[StreamApi], T]) -> T:
        """Ask the JetStream API something, with retries for as long as the options allow."""
        return ask(self._options.connection, question)

    def info(self, stream: str, *, fresh: bool = False) -> StreamInfo:
        """Return the stream's state, at most one poll interval old.

        Raises:
            UnsupportedStreamError: there is no such stream, or no JetStream.
        """
        known = self._infos.get(stream)
        now_s = self._clock.monotonic_s()
        if known is not None and not fresh and now_s - known[0] < self._options.poll_interval_s:
            return known[1]
        try:
            info = self.ask(lambda api: api.stream_info(stream))
        except StreamNotFoundError:
            raise UnsupportedStreamError(
                f"stream {stream} does not exist on {', '.join(self._options.connection.servers)}: create it, or check "
                "option stream, the account of the login and option domain"
            ) from None
        except (JetStreamNotEnabledError, NoRespondersError):
            raise UnsupportedStreamError(
                f"{', '.join(self._options.connection.servers)} has no JetStream for this login: enable it on the "
                "server (nats-server -js), or check the account of the login and option domain"
            ) from None
        self._infos[stream] = (now_s, info)
        return info

    @property
    def polls_held(self) -> int:
        """How often the streams are polled before a plan without messages is returned."""
        return max(int(_HELD_S / self._options.poll_interval_s), 1)

    def wait_for_poll(self, streams: Iterable[str]) -> None:
        """Sleep until the oldest state of these streams may be asked for again, and forget their states."""
        asked_s = [self._infos.pop(stream)[0] for stream in streams if stream in self._infos]
        if asked_s:
            due_s = min(asked_s) + self._options.poll_interval_s
            self._clock.sleep(max(due_s - self._clock.monotonic_s(), 0.0))


class StreamNames:
    """The names of a read's streams; patterns are looked up again from time to time."""

    def __init__(self, options: SourceOptions, watch: StreamWatch, clock: Clock) -> None:
        self._options = options
        self._watch = watch
        self._clock = clock
        self._patterns = [
            re.compile(".*".join(map(re.escape, name.split("*")))) for name in options.streams if "*" in name
        ]
        self._found: tuple[str, ...] = ()
        self._due_s = 0.0 if self._patterns else float("inf")

    def current(self) -> tuple[str, ...]:
        """Return all streams, the named ones first.

        Raises:
            UnsupportedStreamError: no stream matches, and none is named.
        """
        if self._clock.monotonic_s() >= self._due_s:
            self._found = tuple(filter(self.matches, self._watch.ask(lambda api: api.stream_names())))
            self._due_s = self._clock.monotonic_s() + self._options.discovery_interval_s
        named = [name for name in self._options.streams if "*" not in name]
        names = tuple(dict.fromkeys([*named, *self._found]))
        if not names:
            raise UnsupportedStreamError(
                f"no stream matches {', '.join(self._options.streams)} on "
                f"{', '.join(self._options.connection.servers)}: create one first, or check option stream"
            )
        return names

    def drop_deleted(self) -> bool:
        """Drop streams of a pattern that are gone, before it is time to look for new ones.

        Returns whether there are any.
        """
        if not self._found:
            return False
        present = self._watch.ask(lambda api: api.stream_names())
        kept = tuple(name for name in self._found if name in present)
        is_changed = kept != self._found
        self._found = kept
        return is_changed

    def freeze(self) -> None:
        """Look for no more streams."""
        self._due_s = float("inf")

    def matches(self, stream: str) -> bool:
        """Return whether that stream matches a pattern."""
        return any(pattern.fullmatch(stream) for pattern in self._patterns)

    def has(self, stream: str) -> bool:
        """Return whether the options name that stream, or a pattern for it."""
        return stream in self._options.streams or self.matches(stream)


@dataclass(frozen=True)
class Clock:
    """Monotonic time, time of day, and sleep; tests replace them."""

    monotonic_s: Callable[[], float] = time.monotonic
    wall_ns: Callable[[], int] = time.time_ns
    sleep: Callable[[float], None] = time.sleep
