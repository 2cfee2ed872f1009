"""Published messages that were given up: why, and who is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from jetlake.client.messages.message import Message
from jetlake.client.publish.pending_ack import PendingAck
from jetlake.errors import ApiError, JetlakeError, NoRespondersError, PublishWindowError
from jetlake.model.publish import decode_pub_ack

__all__ = ["Failures", "looks_stored", "refusal"]

_KEPT_MAX = 10_000


def looks_stored(answers: bytes, count: int = 1) -> bool:
    """Return whether so many answers, one behind the other, are acknowledgements; `refusal` reads those that are not.

    Whoever listens on a subject may answer, with anything.
    """
    return answers.count(b'"seq":') == count and b'"error"' not in answers


def refusal(subject: str, message: Message) -> Exception | None:
    """Return why the message on this subject was not stored, from the answer to it; None if it was."""
    if not message.payload and message.status == 503:
        return NoRespondersError(subject)
    try:
        decode_pub_ack(message.payload)
    except JetlakeError as error:
        if isinstance(error, ApiError):
            error.request = subject
        return error
    return None


class Failures:
    """The messages of a publish window that were given up and that nobody awaits.

    Args:
        signal: reports what no call can raise.
    """

    __slots__ = ("_kept", "_signal")

    def __init__(self, signal: Callable[[Exception], None]) -> None:
        self._signal = signal
        self._kept: list[PendingAck] = []

    def report(self, failed: Iterable[PendingAck]) -> None:
        """Report messages that were given up, unless somebody awaits them, and keep them for `check`."""
        unobserved = [pending for pending in failed if not pending.is_observed]
        if unobserved:
            self._kept = (self._kept + unobserved)[-_KEPT_MAX:]
            self._signal(PublishWindowError(_told(unobserved)))

    def check(self) -> None:
        """Raise what was given up since the last call and nobody awaited.

        Raises:
            PublishWindowError: there is some.
        """
        kept, self._kept = self._kept, []
        told = _told([pending for pending in kept if not pending.is_observed])
        if told:
            raise PublishWindowError(told)

    def disown(self, pendings: list[PendingAck]) -> None:
        """Report the failures of messages, past and future, whose publisher no longer waits for them."""
        for pending in pendings:
            pending.observe(is_observed=False)
        self.report([pending for pending in pendings if pending.error is not None])


def _told(pendings: list[PendingAck]) -> list[tuple[str, Exception]]:
    return [(pending.subject, pending.error) for pending in pendings if pending.error is not None]
