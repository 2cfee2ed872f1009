"""A received message whose answers may be sent from any thread, and whose confirmed forms block."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from jetlake.client.messages.message import Message as AsyncMessage
from jetlake.client.messages.message import nak_body
from jetlake.model.encoding.durations import Seconds

if TYPE_CHECKING:
    from jetlake.blocking.send_queue import SendQueue


class Message(AsyncMessage, gc=False, eq=False):
    """A message that a blocking client received; `ack`, `nak`, `term`, `in_progress` and `respond` return at once."""

    def ack_sync(self, timeout: Seconds | None = None) -> None:  # type: ignore[override]
        """Done, and the server has said that it knows: the message is never delivered again.

        Behind an `ack`, it waits for the confirmation that `ack` did not ask for.

        Args:
            timeout: seconds to wait for the server; the connection's `request_timeout` when None.

        Raises:
            RequestTimeoutError: no answer came; call it again, or expect the message again.
            NoRespondersError: the consumer is gone or takes no acknowledgements.
            StaleAckError: the message has been redelivered since, and the consumer has strict acks.
            AckRefusedError: the server could not store it; says why.
            AlreadyAcknowledgedError: `nak` or `term` was called before, and is what counts.
        """
        self._confirm_blocking(b"+ACK", timeout)

    def nak_sync(self, delay: Seconds | None = None, *, timeout: Seconds | None = None) -> None:  # type: ignore[override]
        """As `nak`, and the server has said that it knows; `timeout` and errors as in `ack_sync`."""
        self._confirm_blocking(nak_body(delay), timeout)

    def term_sync(self, reason: str = "", *, timeout: Seconds | None = None) -> None:  # type: ignore[override]
        """As `term`, and the server has said that it knows; `timeout` and errors as in `ack_sync`."""
        self._confirm_blocking(self.term_body(reason), timeout)

    def in_progress_sync(self, *, timeout: Seconds | None = None) -> None:  # type: ignore[override]
        """As `in_progress`, and the server has said that it knows; `timeout` and errors as in `ack_sync`."""
        self._confirm_blocking(b"+WPI", timeout)

    def _confirm_blocking(self, body: bytes, timeout: Seconds | None) -> None:
        if self._needs_confirmation(body):
            outlet, _ = self._answerable()
            cast("SendQueue", outlet).port.call(self._confirm(body, timeout))
