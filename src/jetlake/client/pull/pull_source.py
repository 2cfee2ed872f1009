"""What a continuous pull reads: the contract that consumers which stay and ordered reads fulfil."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from jetlake.client.messages.message import Message
from jetlake.client.pull.pull_status import PullStatus

__all__ = ["NextStep", "PullSource", "Verdict"]


class NextStep(Enum):
    """How a continuous pull goes on."""

    PULL = "pull"
    RECOVER = "recover"
    """All pulls are lost: make sure of the consumer first."""


Verdict = NextStep | Exception
"""How a continuous pull goes on; an exception ends it."""


class PullSource(Protocol):
    """The consumer behind a continuous pull, and what its messages and statuses mean.

    Attributes:
        pull_subject: the subject that pull requests are published to; empty before there is a consumer.
        is_replaced: recovery makes a new consumer, which delivers to an inbox of its own.
        needs_ack: messages wait for their acknowledgement.
    """

    pull_subject: bytes
    is_replaced: bool

    @property
    def needs_ack(self) -> bool: ...

    def accept(self, messages: list[Message]) -> tuple[list[Message], Verdict]:
        """Choose the messages that may be handed out."""

    def heard(self, status: PullStatus, now: float) -> Verdict:
        """Read a status."""

    def missed(self) -> Verdict:
        """Judge a server that was silent for too long."""

    @property
    def can_move(self) -> bool:
        """Whether pulls may be lost unseen, with a server of a cluster."""

    async def has_lost_pulls(self) -> bool | Exception:
        """Ask whether the pulls were lost with a server of the cluster; an exception ends the read."""

    async def recover(self) -> Verdict:
        """Make sure of the consumer after all pulls were lost."""

    def gave_back(self, messages: list[Message]) -> None:
        """Note messages that went back to the server unseen."""

    def release(self) -> None:
        """Delete what was created for this read alone."""
