"""A source: one of the streams from which a stream copies messages, under its own sequences and times."""

from __future__ import annotations

from collections.abc import Callable

from jetlake.errors import JetlakeError
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.source_names import SOURCE_HEADER, consumer_name, index_name
from jetlake.model.stream import StreamSource
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.sourcing.copied_message import Renaming, without_conditions
from jetlake.server.engine.sourcing.copy_target import Start
from jetlake.server.engine.sourcing.origin import Owner
from jetlake.server.engine.sourcing.positions import Position, Positions
from jetlake.server.engine.stream.copy_path import Copies, CopyPath
from jetlake.store.interface import MessageStore

__all__ = ["Source"]


class Source:
    """The copying side of one source.

    Args:
        source: the source's origin.
        owner: the names of the stream that copies.
        store: that stream's messages.
        copy_path: stores copies.
        positions: the positions of that stream's sources.
        is_repeated: the stream has another source with the origin's name.
    """

    is_mirror = False

    def __init__(
        self,
        source: StreamSource,
        owner: Owner,
        store: MessageStore,
        copy_path: CopyPath,
        positions: Positions,
        *,
        is_repeated: bool,
    ) -> None:
        self.source = source
        self.index_name = index_name(source)
        self.consumer_name = consumer_name(
            owner.stream, owner.account, owner.domain, self.index_name if is_repeated else ""
        )
        self._store = store
        self._copy_path = copy_path
        self._positions = positions
        self._renaming = Renaming(source.subject_transforms)
        self._identity = ""
        self._is_recreated = False
        origin, filters, destinations = (part.encode() for part in self.index_name.split(" "))
        # A subject may hold a percent sign.
        self._line = b"%b: %b %%d %b %b %%b %%b\r\n\r\n" % tuple(
            part.replace(b"%", b"%%") for part in (SOURCE_HEADER, origin, filters, destinations)
        )

    @property
    def last_sequence(self) -> int:
        """The origin's sequence up to which all is copied."""
        return self._positions.get(self.index_name).sequence

    @property
    def identity(self) -> str:
        """The identity of the origin that was copied from; empty when nothing was."""
        return self._positions.get(self.index_name).identity

    def start(self) -> Start:
        """Return what follows the position; without one, the configured start.

        A stream that has lost messages may have lost its position with them. It copies what is newer than its own last
        message, rather than everything once more.
        """
        self._positions.refresh(self.index_name)
        position = self._positions.get(self.index_name)
        if position.sequence:
            return Start(position.sequence + 1)
        source, store = self.source, self._store
        if source.opt_start_seq:
            return Start(source.opt_start_seq)
        time = source.opt_start_time or ""
        if self._is_recreated or not store.last_time_ns:
            return Start(time=time)
        if time:
            return Start(time=format_time(max(parse_time(time), store.last_time_ns)))
        return Start(time=format_time(store.last_time_ns)) if store.first_sequence > 1 else Start()

    def connected(self, delivered_sequence: int, identity: str) -> None:
        """Take the origin's identity for the copies to come."""
        self._identity = identity

    def forget(self) -> None:
        """Forget the position: the origin is another stream of the same name."""
        self._positions.forget(self.index_name)
        self._is_recreated = True

    def recover(self) -> None:
        """Find the position anew after a store error."""
        self._positions.failed(self.index_name)

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies under the stream's next sequences, each with its origin in a header."""
        sequences = copies.sequences or []
        identity, line, rename = self._identity.encode(), self._line, self._renaming
        messages = []
        for sequence, (subject, reply, header, payload) in zip(sequences, copies.messages, strict=True):
            head = without_conditions(header, SOURCE_HEADER + b":")[:-2] if header else b""
            tail = line % (sequence, subject, identity)
            messages.append((rename.apply(subject), reply, (head or b"NATS/1.0\r\n") + tail, payload))
        became_durable: list[Callable[[], None]] = []

        def on_released(error: JetlakeError | None) -> None:
            if error is None:
                for act in became_durable:
                    act()
            on_durable(error)

        stored = self._copy_path.store(Copies(messages), on_released)
        if stored:
            position = Position(sequences[stored - 1], self._identity)
            became_durable.append(self._positions.stored(self.index_name, position))
        return stored
