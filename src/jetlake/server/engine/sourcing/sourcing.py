"""The copying of one stream: the receivers of its mirror or sources, through changes of its configuration."""

from __future__ import annotations

from collections import Counter

from jetlake.model.source_names import index_name
from jetlake.model.stream import StreamConfig, StreamSource, StreamSourceInfo
from jetlake.server.engine.sourcing.copies import CopyPath, Mirror, Source
from jetlake.server.engine.sourcing.positions import Positions
from jetlake.server.engine.sourcing.receiver import OriginReceiver
from jetlake.server.engine.stream.stream import Copying, Stream
from jetlake.store.steps import Steps, finish, in_groups

# Sources that are begun or ended, and whose names are looked at, in one step.
_OPENED_AT_ONCE = 64
_NAMED_AT_ONCE = 512


class Sourcing(Copying):
    """The copying of one stream with a mirror or sources, or one that may get them."""

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._path = CopyPath(stream)
        self._positions: Positions | None = None
        self._mirror: OriginReceiver | None = None
        self._sources: dict[str, OriginReceiver] = {}
        self._changes = 0  # How often copying was configured or ended: work under way for an earlier time stops.

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
        """Begin, change or end copying as the stream's configuration says; many sources begin in later turns."""
        self._stream.services.long_work.begin(self.configure_in_steps(config))

    def configure_in_steps(self, config: StreamConfig) -> Steps[None]:
        """Do as `configure` does; ends without having done all when another configuration comes, or the stream ends."""
        self._changes += 1
        change = self._changes
        finish(self.prepare(config))
        if config.mirror is not None and self._mirror is None:
            mirror = Mirror(config.mirror, self._path)
            yield from mirror.renaming.prepare()
            if self._changes != change:
                return
            self._mirror = self._open(mirror)
        elif config.mirror is None and self._mirror is not None:
            self._mirror.close(deleted=True)
            self._mirror = None
        if not config.sources and not self._sources:
            return
        wanted: dict[str, StreamSource] = {}
        times: Counter[str] = Counter()
        for group in in_groups(config.sources, _NAMED_AT_ONCE):
            wanted.update((index_name(source), source) for source in group)
            times.update(source.name for source in group)
            if len(config.sources) > _NAMED_AT_ONCE:
                yield
        yield from self._close_others(wanted, change)
        for names in in_groups(wanted, _OPENED_AT_ONCE):
            if self._changes != change:
                return
            for name in names:
                if name in self._sources:
                    continue
                source = self._source(wanted[name], is_repeated=times[wanted[name].name] > 1)
                yield from source.renaming.prepare()
                if self._changes != change:
                    return
                self._sources[name] = self._open(source)
            if len(names) == _OPENED_AT_ONCE:
                yield

    def _close_others(self, wanted: dict[str, StreamSource], change: int) -> Steps[None]:
        """Close the receivers of sources that the configuration does not have, or has with another start."""
        for group in in_groups(list(self._sources), _OPENED_AT_ONCE):
            if self._changes != change:
                return
            for name in group:
                source = wanted.get(name)
                if source is None:
                    self._sources.pop(name).close(deleted=True)
                elif self._sources[name].target.source != source:
                    # A source without a position follows its new start.
                    self._sources.pop(name).close()
            if len(group) == _OPENED_AT_ONCE:
                yield

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

    def end_in_steps(self) -> Steps[None]:
        """Stop copying and delete the consumers at the origins, because the stream is about to be deleted."""
        self._changes += 1
        for group in in_groups(list(self._sources), _OPENED_AT_ONCE):
            for name in group:
                if (receiver := self._sources.pop(name, None)) is not None:
                    receiver.close(deleted=True)
            if len(group) == _OPENED_AT_ONCE:
                yield
        self.close(deleted=True)

    def close(self, *, deleted: bool) -> None:
        """Stop copying, and with `deleted` delete the consumers at the origins."""
        self._changes += 1
        for receiver in (self._mirror, *self._sources.values()):
            if receiver is not None:
                receiver.close(deleted=deleted)
        self._mirror = None
        self._sources.clear()

    def save(self) -> None:
        """Save the positions of all durable copies, whose headers may be overwritten then."""
        if self._positions is not None:
            self._positions.save()
