"""Responses across accounts: each request gets a reply subject of its own at the responder, which leads back."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.interest import Watch
from jetlake.server.engine.routing.service_latency import REQUEST_TIMEOUT, SERVICE_TIMEOUT, Measurement
from jetlake.server.engine.routing.subscription import Relay, Subscriber

__all__ = ["Responses", "Schedule"]

Schedule = Callable[[int, Callable[[int], None]], object]
"""Has a function called with the time, once that is reached."""

# Requests of one import that wait for an answer at a time; beyond, the oldest gets none.
_WAITING_MAX = 65_536
# The replies of a fast batch name the batch, and are the same but for their last tokens.
_FAST_BATCH = b".$FI"


class _Pending:
    """A request that waits for its answer, or for the next one."""

    __slots__ = ("deadline_ns", "measurement", "relay", "watch")

    def __init__(self, relay: Relay, watch: Watch | None, deadline_ns: int, measurement: Measurement | None) -> None:
        self.relay = relay
        self.watch = watch
        self.deadline_ns = deadline_ns
        self.measurement = measurement


class Responses:
    """The answers to one account's requests from another account.

    Args:
        requester: the account that asks.
        responder: the account that answers.
        kind: `singleton`, `stream` or `chunked`: how many answers a request may get.
        threshold_ns: how long a request waits for its next answer.
        now_ns: the time.
        schedule: has a function called with the time, once that is reached.
    """

    def __init__(
        self,
        requester: Account,
        responder: Account,
        kind: str,
        threshold_ns: int,
        now_ns: Callable[[], int],
        schedule: Schedule,
    ) -> None:
        self._requester = requester
        self._responder = responder
        self._kind = kind
        self._threshold_ns = threshold_ns
        self._now_ns = now_ns
        self._schedule = schedule
        self._is_scheduled = False
        self._pending: dict[bytes, _Pending] = {}  # the oldest first
        self._reverse: Responses | None = None
        self._batch_prefix = b"_R_." + next_nuid().encode() + b"."

    def expect(self, reply: bytes, measurement: Measurement | None = None) -> bytes:
        """Return a reply subject for the responder, that leads to this one of the requester.

        Args:
            measurement: is told how the request ends.
        """
        self._drop_expired()
        if reply.endswith(_FAST_BATCH):
            inner = self._batch_prefix + reply
            self.forget(inner)
        else:
            inner = b"_R_." + next_nuid().encode()
        congested = partial(self._is_congested, reply)
        relay = Relay(inner, partial(self._pass_back, inner, reply), congested)
        watch = None
        if self._kind != "singleton" or measurement is not None:
            # A pull, for instance, ends with the subscription of its inbox.
            watch = self._requester.watch_interest(reply, partial(self._check_interest, inner, reply))
        self._pending[inner] = _Pending(relay, watch, self._now_ns() + self._threshold_ns, measurement)
        if measurement is not None:
            self._schedule_expiry()
        self._responder.link(relay)
        return inner

    def forget(self, inner: bytes, failure: tuple[int, str] | None = None) -> Measurement | None:
        """End the wait for answers to one request, and return its measurement if it has one.

        Args:
            failure: what the measurement is told; without one, it is the caller who tells.
        """
        pending = self._pending.pop(inner, None)
        if pending is None:
            return None
        self._responder.unlink(pending.relay)
        if pending.watch is not None:
            self._requester.unwatch(pending.watch)
        if pending.measurement is not None and failure is not None:
            pending.measurement.fail(*failure)
        return pending.measurement

    def close(self) -> None:
        """End all waits."""
        for inner in tuple(self._pending):
            self.forget(inner)
        if self._reverse is not None:
            reverse, self._reverse = self._reverse, None
            reverse.close()

    def _drop_expired(self) -> None:
        now_ns = self._now_ns()
        while self._pending:
            oldest = next(iter(self._pending))
            if self._pending[oldest].deadline_ns > now_ns and len(self._pending) < _WAITING_MAX:
                break
            self.forget(oldest, SERVICE_TIMEOUT)

    def _schedule_expiry(self) -> None:
        """Have requests end at their deadline; those that nobody measures end with the next request after it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule(next(iter(self._pending.values())).deadline_ns, self._expire)

    def _expire(self, _now_ns: int) -> None:
        self._is_scheduled = False
        self._drop_expired()
        if self._pending:
            self._schedule_expiry()

    def _check_interest(self, inner: bytes, reply: bytes) -> None:
        if not self._requester.has_interest(reply):
            self.forget(inner, REQUEST_TIMEOUT)

    def _is_congested(self, reply: bytes) -> bool:
        return self._requester.route(reply).congested

    def _pass_back(
        self,
        inner: bytes,
        outer: bytes,
        address: bytes,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> bool:
        if self._kind == "singleton" or (self._kind == "chunked" and not payload):
            measurement = self.forget(inner)
            if measurement is not None:
                measurement.answer(origin)
        else:
            pending = self._pending.pop(inner, None)
            if pending is None:
                return False
            pending.deadline_ns = self._now_ns() + self._threshold_ns
            self._pending[inner] = pending
        if reply and not reply.startswith(b"$JS.ACK."):
            reply = self._expect_reverse(reply)
        return self._requester.send_to(outer, [(outer if subject == address else subject, reply, header, payload)]) > 0

    def _expect_reverse(self, reply: bytes) -> bytes:
        """Return a reply subject for the requester, that leads to this one of the responder."""
        if self._reverse is None:
            self._reverse = Responses(
                self._responder, self._requester, self._kind, self._threshold_ns, self._now_ns, self._schedule
            )
            self._reverse._reverse = self
        return self._reverse.expect(reply)
