"""The copying of one stream: the receivers of its mirror or sources, through changes of its configuration."""

from __future__ import annotations

from collections import Counter

from jetlake.model.source_names import index_name
from jetlake.model.stream import StreamConfig, StreamSource, StreamSourceInfo
from jetlake.server.engine.sourcing.copies import CopyPath, Mirror, Source
from jetlake.server.engine.sourcing.positions import Positions
from jetlake.server.engine.sourcing.receiver import OriginReceiver
from jetlake.server.engine.stream.stream import Copying, Stream
from jetlake.store.steps import Steps, finish


class Sourcing(Copying):
    """The copying of one stream with a mirror or sources, or one that may get them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._path = CopyPath(stream)
        self._positions: Positions | None = None
        self._mirror: OriginReceiver | None = None
        self._sources: dict[str, OriginReceiver] = {}

    @property
    def is_caught_up(self) -> bool:
        """Whether a mirror has all messages of its origin but a few."""
        return self._mirror is not None and self._mirror.is_caught_up

    def prepare(self, config: StreamConfig) -> Steps[None]:
        """Read the positions of the first sources from the stream's messages, which may be many."""
        if config.sources and self._positions is None:
            positions = Positions(self._stream.storage)
            with self._stream.services.report_store_errors(f"recovering the positions of stream {self._stream.name}"):
                yield from positions.recover()
            self._positions = positions

    def configure(self, config: StreamConfig) -> None:
        """Begin, change or end copying as the stream's configuration says."""
        finish(self.prepare(config))
        if config.mirror is not None and self._mirror is None:
            self._mirror = self._open(Mirror(config.mirror, self._path))
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
        return Source(source, self._path, self._positions, is_repeated=is_repeated)

    def _open(self, target: Mirror | Source) -> OriginReceiver:
        receiver = OriginReceiver(target, self._stream)
        receiver.open()
        return receiver

    def info(self, now_ns: int) -> tuple[StreamSourceInfo | None, tuple[StreamSourceInfo, ...]]:
        """Return the state of the mirror and of the sources."""
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
