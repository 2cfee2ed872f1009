"""Service latency: how long a service takes for the requests of other accounts, published as a metric."""

from __future__ import annotations

import re
from random import Random
from typing import Any

from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.times import format_time
from jetlake.model.events import ClientInfo, ServiceLatency
from jetlake.protocol.headers import Headers
from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber

__all__ = ["BAD_REQUEST", "REQUEST_TIMEOUT", "SERVICE_TIMEOUT", "SERVICE_UNAVAILABLE", "LatencyMeter", "Measurement"]

BAD_REQUEST = (400, "Bad Request")
REQUEST_TIMEOUT = (408, "Request Timeout")
SERVICE_UNAVAILABLE = (503, "Service Unavailable")
SERVICE_TIMEOUT = (504, "Service Timeout")

_JAEGER, _BAGGAGE = "Uber-Trace-Id", "Uberctx-"
_B3, _B3_SAMPLED, _B3_TRACE = "B3", "X-B3-Sampled", "X-B3-Traceid"
_B3_KEYS = (_B3_SAMPLED, _B3_TRACE, "X-B3-Parentspanid", "X-B3-Spanid")
_W3C, _W3C_STATE = "Traceparent", "Tracestate"
# The last part of a Jaeger id has its flags, in hexadecimal; the lowest bit says "sampled".
_JAEGER_SAMPLED = re.compile(r"[^:]*:[^:]*:[^:]*:[0-9a-fA-F]?[13579bdfBDF]")


class LatencyMeter:
    """Measures requests to one service.

    Args:
        service: the account of the service, where measurements are published.
        subject: their subject.
        percent: how many of a hundred requests are measured; 0 = those whose headers say that their trace is sampled.
        clock: the server's.
        random: draws the share.
    """

    def __init__(self, service: Account, subject: bytes, percent: int, clock: Clock, random: Random) -> None:
        self._service = service
        self._subject = subject
        self._percent = percent
        self._random = random
        self.clock = clock

    def begin(self, header: bytes, requester: dict[str, Any]) -> Measurement | None:
        """Begin to measure a request, if it is one to be measured."""
        if self._percent >= 100 or self._random.random() * 100 < self._percent:
            return Measurement(self, requester, None)
        trace = _sampled_trace(header) if header else None
        return Measurement(self, requester, trace) if trace is not None else None

    def publish(self, **fields: Any) -> None:
        """Publish a measurement."""
        event = ServiceLatency(id=next_nuid(), timestamp=format_time(self.clock.now_ns()), **fields)
        self._service.publish(self._subject, b"", b"", encode(event))


class Measurement:
    """The latency of one request, from its arrival until it was answered or failed.

    Args:
        meter: publishes the result.
        requester: what the service may know of the client.
        trace: the headers for which the request is measured.
    """

    __slots__ = ("_meter", "_requester", "_start_ns", "_trace")

    def __init__(
        self, meter: LatencyMeter, requester: dict[str, Any], trace: dict[str, tuple[str, ...]] | None
    ) -> None:
        self._meter = meter
        self._requester = ClientInfo(**requester)
        self._trace = trace
        self._start_ns = meter.clock.now_ns()

    def answer(self, responder: Subscriber | None) -> None:
        """Publish how long the answer took."""
        now_ns = self._meter.clock.now_ns()
        elapsed_ns = now_ns - self._start_ns
        information = ClientInfo(**responder.client_info()) if responder is not None else None
        service_ns = max(0, elapsed_ns - information.rtt) if information is not None else elapsed_ns
        system_ns = max(0, self._meter.clock.now_ns() - now_ns)
        self._publish(
            responder=information,
            service=service_ns,
            system=system_ns,
            total=max(0, elapsed_ns) + self._requester.rtt + system_ns,
        )

    def fail(self, status: int, description: str) -> None:
        """Publish why the request got no answer."""
        self._publish(status=status, description=description)

    def _publish(self, **fields: Any) -> None:
        start = format_time(self._start_ns - self._requester.rtt)
        self._meter.publish(requestor=self._requester, header=self._trace, start=start, **fields)


def _sampled_trace(header: bytes) -> dict[str, tuple[str, ...]] | None:
    """Return the trace headers of a request whose trace is sampled, in the formats of Jaeger, B3 and the W3C."""
    fields: dict[str, list[str]] = {}
    for key, value in Headers(header).items():
        fields.setdefault("-".join(part.capitalize() for part in key.split("-")), []).append(value)
    if _JAEGER in fields:
        is_sampled = _JAEGER_SAMPLED.fullmatch(fields[_JAEGER][0]) is not None
        keys = [key for key in fields if key == _JAEGER or key.startswith(_BAGGAGE)]
    elif fields.get(_B3_SAMPLED, [""])[0] in ("0", "1") or _B3_TRACE in fields:
        is_sampled = fields.get(_B3_SAMPLED, [""])[0] != "0"
        keys = [key for key in _B3_KEYS if key in fields]
    elif _B3 in fields:
        parts = fields[_B3][0].split("-")
        is_sampled = (parts[2:3] or parts[:1]) != ["0"]
        keys = [_B3]
    elif _W3C in fields:
        parts = fields[_W3C][0].split("-")
        is_sampled = len(parts) == 4 and parts[3] == "01"
        keys = [key for key in (_W3C, _W3C_STATE) if key in fields]
    else:
        return None
    return {key: tuple(fields[key]) for key in keys} if is_sampled else None
