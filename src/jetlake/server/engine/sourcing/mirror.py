"""A mirror: a stream with the sequences, times and messages of its origin."""

from __future__ import annotations

from jetlake.model.source_names import consumer_name
from jetlake.model.stream import StreamSource
from jetlake.server.engine.core.commit import Action
from jetlake.server.engine.sourcing.copied_message import Renaming, without_conditions
from jetlake.server.engine.sourcing.copy_target import Start
from jetlake.server.engine.sourcing.origin import Owner
from jetlake.server.engine.stream.copy_path import Copies, CopyPath
from jetlake.store.interface import MessageStore

__all__ = ["Mirror"]


class Mirror:
    """The copying side of a mirror, whose position is its own last sequence.

    Args:
        source: the mirror's origin.
        owner: the mirror's own names.
        store: the mirror's messages.
        copy_path: stores copies.
    """

    is_mirror = True
    identity = ""

    def __init__(self, source: StreamSource, owner: Owner, store: MessageStore, copy_path: CopyPath) -> None:
        self.source = source
        self.consumer_name = consumer_name(owner.stream, owner.account, owner.domain)
        self._store = store
        self._copy_path = copy_path
        self._renaming = Renaming(source.subject_transforms)

    @property
    def last_sequence(self) -> int:
        """The origin's sequence up to which all is copied."""
        return self._store.last_sequence

    def start(self) -> Start:
        """Return the configured start for a mirror that never had a message, else what follows its last sequence."""
        if self._store.last_sequence:
            return Start(self._store.last_sequence + 1)
        return Start(self.source.opt_start_seq, self.source.opt_start_time or "")

    def connected(self, delivered_sequence: int, identity: str) -> None:
        """Skip what the origin will not deliver."""
        if delivered_sequence > self._store.last_sequence:
            self._copy_path.skip_to(delivered_sequence)

    def forget(self) -> None:
        """Keep the position: a recreated origin is not told from the old one."""

    def recover(self) -> None:
        """Do nothing: the store knows its last sequence."""

    def store(self, copies: Copies, on_durable: Action) -> int:
        """Store copies under the origin's sequences."""
        renaming = self._renaming
        if renaming or any(b"\r\nNats-" in message[2] for message in copies.messages):
            copies.messages = [
                (renaming.apply(subject), reply, without_conditions(header), payload)
                for subject, reply, header, payload in copies.messages
            ]
        return self._copy_path.store(copies, on_durable)
