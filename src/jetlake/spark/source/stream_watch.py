"""What the server says of a query's streams, asked at most once in every poll interval."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from jetlake.client.tables.plan.reader_choice import Version, check_server, parse_version
from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.errors import JetStreamNotEnabledError, NoRespondersError, StreamNotFoundError, UnsupportedStreamError
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.clock import Clock

__all__ = ["StreamWatch"]

T = TypeVar("T")


class StreamWatch:
    """Streams as the server describes them; also the way to ask it anything else."""

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

    def ask(self, question: Callable[[StreamApi], T]) -> T:
        """Run the question on a connection, again when it breaks, as long as the options allow."""
        connection_options = self._options.connection
        return retrying(
            connection_options,
            lambda connection: question(StreamApi.through(connection, connection_options)),
        )

    def info(self, stream: str, *, fresh: bool = False) -> StreamInfo:
        """Return the stream, as old as the poll interval at most.

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

    def wait_for_poll(self, streams: Iterable[str]) -> None:
        """Let the time pass until the oldest answer about these streams may be asked for again."""
        asked_s = [self._infos[stream][0] for stream in streams if stream in self._infos]
        if asked_s:
            due_s = min(asked_s) + self._options.poll_interval_s
            self._clock.sleep(max(due_s - self._clock.monotonic_s(), 0.0))
