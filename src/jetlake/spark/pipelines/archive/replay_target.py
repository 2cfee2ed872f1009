"""The stream that a replay writes to: which one it is, what it says of itself, and where a replay goes on in it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from jetlake.client.tables.requests.patience import retrying
from jetlake.client.tables.requests.stream_api import StreamApi
from jetlake.model.stream import StreamInfo
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.sink.stored_rows import keeps_all

__all__ = ["HELD_ID", "ReplayTarget", "Resumption", "find_target"]

HELD_ID = "^([0-9]+)(#[0-9]+)?$"
"""What follows the stream's name and a colon in the ids of replayed messages: the sequence, and perhaps a suffix."""

_TARGETS_MAX = 8


class Resumption(NamedTuple):
    """Where a replay goes on: below which sequence nothing is published again, and why it begins anew if it does."""

    next_sequence: int
    reason: str = ""


@dataclass(frozen=True)
class ReplayTarget:
    """A stream as it was when the replay looked.

    Attributes:
        created: when it was made; another stream of the same name, here or on another server, has another time.
        removed: how many of its messages are gone.
        keeps_all: whether messages stay until somebody removes them: then what the stream holds is what was replayed.
    """

    name: str
    created: str
    messages: int
    last_sequence: int
    subjects: tuple[str, ...]
    keeps_all: bool

    @classmethod
    def of(cls, info: StreamInfo) -> ReplayTarget:
        """Return the target that a server describes."""
        return cls(
            name=info.config.name,
            created=info.created,
            messages=info.state.messages,
            last_sequence=info.state.last_seq,
            subjects=info.config.subjects,
            keeps_all=keeps_all(info.config),
        )

    @property
    def removed(self) -> int:
        """How many sequences hold no message any more."""
        return self.last_sequence - self.messages

    def id_suffix(self) -> str:
        """Return what message ids end with, so that the stream does not know again what it no longer holds.

        A stream remembers an id for its duplicate window even when the message was purged, and would drop the message
        that is to replace it. The same suffix as long as nothing is removed, so that a repeated publish is known.
        """
        return f"#{self.removed}" if self.keeps_all and self.removed else ""

    def note(self, kept: Mapping[str, Any], fingerprint: str, next_sequence: int) -> dict[str, Any]:
        """Return what is saved when all messages below a sequence are acknowledged, beside what is known of others."""
        others = {made: place for made, place in _targets(kept).items() if made != self.created}
        newest = dict(list(others.items())[-_TARGETS_MAX + 1 :])
        own = {"next": next_sequence, "last_sequence": self.last_sequence}
        return {"fingerprint": fingerprint, "targets": {**newest, self.created: own}}

    def resume(self, kept: Mapping[str, Any]) -> Resumption:
        """Return where to go on, by what an earlier run has written down about the same replay.

        A stream that keeps its messages is asked itself what it holds. The note counts only for one that removes
        messages on its own, and only when it is about this very stream.
        """
        targets = _targets(kept)
        if self.keeps_all or not targets:
            return Resumption(0)
        noted = targets.get(self.created)
        if noted is None:
            return Resumption(0, f"stream {self.name} is not the one that was replayed to before")
        if self.last_sequence < int(noted["last_sequence"]):
            return Resumption(0, f"stream {self.name} was put back to an earlier state")
        return Resumption(int(noted["next"]))


def _targets(kept: Mapping[str, Any]) -> Mapping[str, Mapping[str, int]]:
    """Return what was written down of streams, by when they were made."""
    targets = kept.get("targets", {})
    return targets if isinstance(targets, Mapping) else {}


def find_target(options: ConnectionOptions, name: str) -> ReplayTarget:
    """Ask the server about the stream."""
    return ReplayTarget.of(retrying(options, lambda link: StreamApi.through(link, options).stream_info(name)))
