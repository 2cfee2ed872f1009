"""The copying of one stream: the receivers of its mirror or sources, through changes of its configuration."""

from __future__ import annotations

from collections import Counter

from jetlake.model.source_names import index_name
from jetlake.model.stream import StreamConfig, StreamSource, StreamSourceInfo
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.sourcing.mirror import Mirror
from jetlake.server.engine.sourcing.origin import Owner
from jetlake.server.engine.sourcing.origin_receiver import OriginReceiver
from jetlake.server.engine.sourcing.positions import Positions
from jetlake.server.engine.sourcing.source import Source
from jetlake.server.engine.storage.storage import StreamHome
from jetlake.server.engine.stream.copy_path import CopyPath
from jetlake.store.steps import Steps, finish

__all__ = ["Sourcing"]


class Sourcing:
    """What a stream copies from other streams.

    Args:
        stream: the stream's name.
        services: the engine's clock, timers, randomness and domain.
        account: carries requests and deliveries.
        home: the stream's messages, and the positions of its sources.
        copy_path: stores copies.
    """

    def __init__(
        self, stream: str, services: Services, account: Account, home: StreamHome, copy_path: CopyPath
    ) -> None:
        self._owner = Owner(account.name, stream, services.options.domain)
        self._services = services
        self._account = account
        self._home = home
        self._copy_path = copy_path
        self._positions: Positions | None = None
        self._mirror: OriginReceiver | None = None
        self._sources: dict[str, OriginReceiver] = {}

    @property
    def is_caught_up(self) -> bool:
        """Whether a mirror has, but for a few messages, all of its origin's."""
        return self._mirror is not None and self._mirror.is_caught_up

    def prepare(self, config: StreamConfig) -> Steps[None]:
        """Find the positions of the first sources in the stream's messages, which may be many."""
        if config.sources and self._positions is None:
            positions = Positions(self._home)
            with self._services.report_store_errors(f"recovering the positions of stream {self._owner.stream}"):
                yield from positions.recover()
            self._positions = positions

    def configure(self, config: StreamConfig) -> None:
        """Begin, change or end copying as the stream's configuration says."""
        finish(self.prepare(config))
        if config.mirror is not None and self._mirror is None:
            mirror = Mirror(config.mirror, self._owner, self._home.store, self._copy_path)
            self._mirror = self._open(mirror)
        elif config.mirror is None and self._mirror is not None:
            self._mirror.close(deleted=True)
            self._mirror = None
        if not config.sources and not self._sources:
            return
        wanted = {index_name(source): source for source in config.sources}
        for name in self._sources.keys() - wanted.keys():
            self._sources.pop(name).close(deleted=True)
        for name, receiver in list(self._sources.items()):
            if receiver.target.source != wanted[name]:
                # Another start, which a source without a position follows.
                self._sources.pop(name).close()
        times = Counter(source.name for source in config.sources)
        for name, source in wanted.items():
            if name not in self._sources:
                self._sources[name] = self._open(self._source(source, is_repeated=times[source.name] > 1))

    def _source(self, source: StreamSource, *, is_repeated: bool) -> Source:
        assert self._positions is not None
        return Source(source, self._owner, self._home.store, self._copy_path, self._positions, is_repeated=is_repeated)

    def _open(self, target: Mirror | Source) -> OriginReceiver:
        receiver = OriginReceiver(target, self._owner, self._services, self._account)
        receiver.open()
        return receiver

    def info(self, now_ns: int) -> tuple[StreamSourceInfo | None, tuple[StreamSourceInfo, ...]]:
        """Return how the mirror and the sources are doing."""
        mirror = self._mirror.info(now_ns) if self._mirror is not None else None
        return mirror, tuple(receiver.info(now_ns) for receiver in self._sources.values())

    def close(self, *, deleted: bool) -> None:
        """Stop copying, and with `deleted` delete the consumers at the origins."""
        for receiver in (self._mirror, *self._sources.values()):
            if receiver is not None:
                receiver.close(deleted=deleted)
        self._mirror = None
        self._sources.clear()

    def save(self) -> None:
        """Save the positions of all durable copies, whose headers may be overwritten then."""
        if self._positions is not None:
            self._positions.save()
