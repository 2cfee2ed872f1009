"""Advisories: what happens to streams, consumers and the API is published, if someone listens."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import format_time
from jetlake.model.enums import ActionKind
from jetlake.model.events import ApiAudit, ClientInfo, Event, StreamActionAdvisory, event_subject

if TYPE_CHECKING:
    from jetlake.server.engine.api.jetstream import JetStream
    from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["Advisories"]

_AUDIT = event_subject("ADVISORY.API")
_STREAM_KINDS = {
    ActionKind.CREATE: "ADVISORY.STREAM.CREATED",
    ActionKind.MODIFY: "ADVISORY.STREAM.UPDATED",
    ActionKind.DELETE: "ADVISORY.STREAM.DELETED",
}


class Advisories:
    """The events of one account."""

    def __init__(self, jetstream: JetStream) -> None:
        self._account = jetstream.account
        self._services = jetstream.services

    def publish(self, subject: bytes, kind: type[Event], fields: Callable[[], dict[str, Any]] | dict[str, Any]) -> None:
        """Publish an event of that kind; nothing is built when nobody listens.

        Args:
            subject: as `event_subject` makes it.
            fields: what the event has besides id, time and domain, or what makes them.
        """
        if not self._account.has_interest(subject):
            return
        options = self._services.options
        now = format_time(self._services.clock.now_ns())
        values = fields() if callable(fields) else fields
        event = kind(id=self._services.next_nuid(), timestamp=now, domain=options.domain, **values)  # type: ignore[call-arg]
        self._account.publish(subject, b"", b"", encode(event))

    def stream_action(self, stream: str, action: ActionKind) -> None:
        """A stream was made, changed or deleted."""
        subject = event_subject(_STREAM_KINDS[action], stream)
        self.publish(subject, StreamActionAdvisory, {"stream": stream, "action": action})

    def api_audit(self, subject: bytes, request: bytes, response: bytes, origin: Subscriber | None) -> None:
        """An API request was answered."""

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
