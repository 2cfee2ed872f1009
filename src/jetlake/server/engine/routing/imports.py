"""Imports: the streams and services of other accounts, under names of this one.

An imported service is a relay here: requests that match it are published in the exporting account. An imported stream
is a relay there for each matching subscription here, so that the exporter's interest is exact and unwanted messages
never cross.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec import Struct
from msgspec.json import encode

from jetlake.model.subject_mapping import SubjectMapping
from jetlake.model.trace_sampling import TRACE_DESTINATION, TRACE_DISABLED
from jetlake.protocol.headers import append_pair, find_value, remove_key, replace_value
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.interest import queue_of
from jetlake.server.engine.routing.remote import Remote
from jetlake.server.engine.routing.responses import Responses, Schedule
from jetlake.server.engine.routing.route import Interest, Route
from jetlake.server.engine.routing.service_latency import BAD_REQUEST, SERVICE_UNAVAILABLE, LatencyMeter
from jetlake.server.engine.routing.subscription import (
    Capture,
    Crossing,
    Listener,
    Relay,
    RunListener,
    Subscriber,
    Subscription,
)

__all__ = ["AccountImports", "ServiceImport", "StreamImport"]

_INFO = b"Nats-Request-Info"
# The requests to JetStream that may get many answers; all others are over with one, whatever the export allows.
_MANY_ANSWERS = (b"$JS.API.CONSUMER.MSG.NEXT.", b"$JS.API.DIRECT.GET.")


class StreamImport(Struct, frozen=True):
    """A stream of another account."""

    exporter: Account
    mapping: SubjectMapping
    allows_trace: bool = False
    """Records who got a traced message here."""


class ServiceImport(Struct, frozen=True):
    """A service of another account."""

    exporter: Account
    mapping: SubjectMapping
    shares: bool
    """Requests tell the service everything about the client."""
    response: str
    """How many answers a request may get: `singleton`, `stream` or `chunked`."""
    threshold_ns: int
    meter: LatencyMeter | None = None
    """Measures how long the requests take."""
    allows_trace: bool = False
    """Records who got a traced request there."""


class AccountImports:
    """The imports of one account, in force from the construction to `close`.

    Args:
        account: the importing account.
        clock: the server's.
        schedule: has a function called with the time, once that is reached.
    """

    def __init__(
        self,
        account: Account,
        streams: list[StreamImport],
        services: list[ServiceImport],
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self._account = account
        self._streams = streams
        self._shadows: dict[Interest, list[tuple[Account, Relay]]] = {}
        self._services = [_Service(account, service, clock, schedule) for service in services]
        if streams:
            account.imported = self
            for interest in account.interests():
                if not isinstance(interest, Relay):
                    self.added(interest.subject, interest)

    def close(self) -> None:
        """End all imports."""
        self._account.imported = None
        for interest in tuple(self._shadows):
            self.removed(interest)
        for service in self._services:
            service.close()

    def added(self, pattern: bytes, interest: Interest) -> None:
        """Subscribe, in the exporting accounts, what the interest matches of their streams."""
        assert not isinstance(interest, Relay)
        # Other servers get one copy for all that they want.
        queue = b"" if isinstance(interest, Remote) else queue_of(interest)
        for stream in self._streams:
            remote = stream.mapping.to_remote(pattern)
            if remote is not None:
                take = partial(self._take, interest, stream.mapping)
                crossing = Crossing(
                    self._account.name,
                    is_service=False,
                    rename=stream.mapping.to_local,
                    find_recipients=partial(_recipients_of, interest),
                    allows_trace=stream.allows_trace,
                )
                relay = Relay(remote, take, partial(_is_congested, interest), queue, crossing)
                self._shadows.setdefault(interest, []).append((stream.exporter, relay))
                stream.exporter.link(relay)

    def removed(self, interest: Interest) -> None:
        """End what `added` has subscribed."""
        for exporter, relay in self._shadows.pop(interest, ()):
            exporter.unlink(relay)

    def _take(
        self,
        interest: Subscription | Listener | RunListener | Capture | Remote,
        mapping: SubjectMapping,
        address: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        """Deliver a message of an imported stream, under its name here; streams' deliveries keep their own subject."""
        local = mapping.to_local(address)
        shown = local if subject == address else subject
        if isinstance(interest, Subscription):
            return self._account.deliver(interest, shown, reply, header, payload, origin)
        if isinstance(interest, Remote):
            return self._account.forward_for(interest, local, (shown, reply, header, payload), origin)
        if isinstance(interest, RunListener):
            interest.receive([(shown, reply, header, payload)])
            return True
        if isinstance(interest, Capture):
            interest.sink.receive(local, reply, header, payload, origin)
            return True
        return interest.handler(local, reply, header, payload, origin) is not False


def _recipients_of(interest: Interest, _subject: bytes) -> list[tuple[Subscription, ...]]:
    return Route([interest]).subscriptions()


def _is_congested(interest: Interest) -> bool:
    if isinstance(interest, Remote):
        return interest.link.congested
    return isinstance(interest, Subscription) and (interest.subscriber.congested or interest.subscriber.closed)


class _Requester(Subscriber):
    """The origin of a request that has crossed to another account."""

    def __init__(self, client: dict[str, Any]) -> None:
        self._client = client

    def send(self, data: bytes) -> None:
        """Send nothing: answers come back over the reply subject."""

    def client_info(self) -> dict[str, Any]:
        return self._client


class _Service:
    """One imported service: the relay, and the answers that its requests wait for."""

    def __init__(self, account: Account, service: ServiceImport, clock: Clock, schedule: Schedule) -> None:
        self._account = account
        self._meter = service.meter
        self._exporter = service.exporter
        self._mapping = service.mapping
        self._shares = service.shares
        expect = partial(
            Responses, account, service.exporter, threshold_ns=service.threshold_ns, clock=clock, schedule=schedule
        )
        self._responses = expect(kind=service.response)
        self._single_responses = expect(kind="singleton")
        self._allows_trace = service.allows_trace
        crossing = Crossing(
            service.exporter.name,
            is_service=True,
            rename=service.mapping.to_remote,
            find_recipients=self._find_recipients,
            allows_trace=service.allows_trace,
        )
        self._relay = Relay(service.mapping.local, self._take, lambda: False, crossing=crossing)
        account.link(self._relay)

    def close(self) -> None:
        """End the import; answers that are under way get lost."""
        self._account.unlink(self._relay)
        self._responses.close()
        self._single_responses.close()

    def _take(
        self,
        address: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        target = self._mapping.to_remote(address)
        if target is None:
            return False
        if TRACE_DESTINATION in header:
            header = self._redirect_trace(header)
        requester, shown, measurement = None, header, None
        if origin is not None:
            requester = _Requester(self._describe(origin))
            if self._meter is not None:
                measurement = self._meter.begin(header, requester.client_info())
            shown = append_pair(remove_key(header, _INFO), _INFO, encode(requester.client_info()))
        is_single = target.startswith(b"$JS.API.") and not target.startswith(_MANY_ANSWERS)
        responses = self._single_responses if is_single else self._responses
        inner = responses.expect(reply, measurement) if reply else b""
        if target.startswith(b"$JS."):
            taken = self._exporter.publish(target, inner, shown, payload, requester)
        else:
            # What a stream stores is the message of the client.
            taken = self._exporter.publish_apart((target, inner, shown, payload), inner, header, requester)
        if not taken and inner:
            responses.forget(inner)
        if measurement is not None and not (taken and reply):
            measurement.fail(*(SERVICE_UNAVAILABLE if reply else BAD_REQUEST))
        return taken > 0

    def _find_recipients(self, subject: bytes) -> list[tuple[Subscription, ...]]:
        return self._exporter.route(subject).subscriptions()

    def _redirect_trace(self, header: bytes) -> bytes:
        """Have what the service's account finds out about a traced message come back, or nothing found out."""
        destination = find_value(header, TRACE_DESTINATION) or b""
        inner = self._single_responses.expect(destination) if self._allows_trace and destination else TRACE_DISABLED
        return replace_value(header, TRACE_DESTINATION, inner)

    def _describe(self, origin: Subscriber) -> dict[str, Any]:
        """Describe the client to the service: whole where the import shares it, otherwise by its account alone."""
        client = origin.client_info()
        if isinstance(origin, _Requester):
            return client | {"svc": self._account.name}
        return client if self._shares else {name: client[name] for name in ("acc", "rtt") if name in client}
