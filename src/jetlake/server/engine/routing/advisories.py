"""Advisories: events of streams, consumers and the API, published where a subscriber listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlake.model.enums import ActionKind
from jetlake.server.engine.core.services import Services
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber

if TYPE_CHECKING:  # Loaded with the first event.
    from jetlake.model.events import Event

__all__ = ["Advisories"]

_AUDIT = b"$JS.EVENT.ADVISORY.API"
_STREAM_KINDS = {
    ActionKind.CREATE: "ADVISORY.STREAM.CREATED",
    ActionKind.MODIFY: "ADVISORY.STREAM.UPDATED",
    ActionKind.DELETE: "ADVISORY.STREAM.DELETED",
}


class Advisories:
    """The events of one account.

    Args:
        account: where events are published.
        services: the engine's clock, ids and options.
    """

    def __init__(self, account: Account, services: Services) -> None:
        self._account = account
        self._services = services

    def publish(self, subject: bytes, kind: type[Event], fields: Callable[[], dict[str, Any]] | dict[str, Any]) -> None:
        """Publish an event, unless its subject has no subscriber.

        Args:
            subject: as `event_subject` makes it.
            fields: the event's fields besides id, time and domain, or a function that returns them.
        """
        if not self._account.has_interest(subject):
            return
        from jetlake.model.encoding.codec import encode
        from jetlake.model.encoding.times import format_time

        options = self._services.options
        now = format_time(self._services.clock.now_ns())
        values = fields() if callable(fields) else fields
        event = kind(id=self._services.next_nuid(), timestamp=now, domain=options.domain, **values)  # type: ignore[call-arg]
        self._account.publish(subject, b"", b"", encode(event))

    def stream_action(self, stream: str, action: ActionKind) -> None:
        """Publish that a stream was created, updated or deleted."""
        from jetlake.model.events import StreamActionAdvisory, event_subject

        subject = event_subject(_STREAM_KINDS[action], stream)
        self.publish(subject, StreamActionAdvisory, {"stream": stream, "action": action})

    def batch_abandoned(self, stream: str, batch: str, reason: str) -> None:
        """Publish that an open batch was dropped."""
        from jetlake.model.events import BatchAbandoned, event_subject

        subject = event_subject("ADVISORY.STREAM.BATCH_ABANDONED", stream)
        self.publish(subject, BatchAbandoned, {"stream": stream, "batch": batch, "reason": reason})

    def api_audit(self, subject: bytes, request: bytes, response: bytes, origin: Subscriber | None) -> None:
        """Publish an API request with its answer."""
        if not self._account.has_interest(_AUDIT):
            return  # As with almost every request.
        from jetlake.model.events import ApiAudit, ClientInfo

        def fields() -> dict[str, Any]:
            client = origin.client_info() if origin is not None else {}
            return {
                "server": self._services.options.server_name,
                "client": ClientInfo(**client) if client else None,
                "subject": subject.decode("utf-8", "replace"),
                "request": request.decode("utf-8", "replace"),
                "response": response.decode("utf-8", "replace"),
            }

        self.publish(_AUDIT, ApiAudit, fields)
