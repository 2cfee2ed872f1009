"""Responses across accounts: each request gets a reply subject of its own at the responder, which leads back.

A leaf node may publish to these subjects whatever its user may do, or it could answer nothing. It knows the prefix,
which is announced; the token of each request is random, so that only who was sent the request can answer it.
"""

from __future__ import annotations

import os
from base64 import urlsafe_b64encode
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

from jetlake.protocol.nuid import next_nuid
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.service_latency import REQUEST_TIMEOUT, SERVICE_TIMEOUT, Measurement
from jetlake.server.engine.routing.subscription import Relay, Subscriber

__all__ = ["Responses", "Schedule"]

Schedule = Callable[[int, Callable[[int], None]], object]
"""Has a function called with the time, once that is reached."""

# Requests of one import that wait for an answer at a time; beyond, the oldest gets none.
_WAITING_MAX = 65_536
# Requests that are looked at in one go when many may have ended: with the inbox of a client, or by their age.
_GROUP = 100
# The replies of a fast batch name the batch, and are the same but for their last tokens.
_FAST_BATCH = b".$FI"
_TOKEN_BYTES = 9


class _Pending:
    """A request that waits for its answer, or for the next one."""

    __slots__ = ("deadline_ns", "measurement", "relay", "reply")

    def __init__(self, relay: Relay, reply: bytes, deadline_ns: int, measurement: Measurement | None) -> None:
        self.relay = relay
        self.reply = reply
        self.deadline_ns = deadline_ns
        self.measurement = measurement


class Responses:
    """The answers to one account's requests from another account.

    Args:
        requester: the account that asks.
        responder: the account that answers.
        kind: `singleton`, `stream` or `chunked`: how many answers a request may get.
        threshold_ns: how long a request waits for its next answer.
        clock: the server's.
        schedule: has a function called with the time, once that is reached.
    """

    def __init__(
        self,
        requester: Account,
        responder: Account,
        kind: str,
        threshold_ns: int,
        clock: Clock,
        schedule: Schedule,
    ) -> None:
        self._requester = requester
        self._responder = responder
        self._kind = kind
        self._threshold_ns = threshold_ns
        self._clock = clock
        self._schedule = schedule
        self._is_scheduled = False
        self._pending: OrderedDict[bytes, _Pending] = OrderedDict()  # the oldest first
        # Requests that end with the interest in their reply, by the reply. When interest ends, replies that may
        # have lost theirs are looked at in groups, and then the requests that have ended.
        self._by_reply: dict[bytes, dict[bytes, None]] = {}
        self._unchecked: dict[bytes, None] = {}
        self._are_all_unchecked = False
        self._ended: dict[bytes, None] = {}
        self._is_checking = False
        self._reverse: Responses | None = None
        self._prefix = b"_R_." + next_nuid().encode() + b"."

    def expect(self, reply: bytes, measurement: Measurement | None = None) -> bytes:
        """Return a reply subject for the responder, that leads to this one of the requester.

        Args:
            measurement: gets the end of the request.
        """
        self._drop_expired()
        if reply.endswith(_FAST_BATCH):
            inner = self._prefix + reply
            self.forget(inner)
        else:
            inner = self._prefix + urlsafe_b64encode(os.urandom(_TOKEN_BYTES))
        congested = partial(self._is_congested, reply)
        relay = Relay(inner, partial(self._pass_back, inner, reply), congested)
        self._pending[inner] = _Pending(relay, reply, self._clock.now_ns() + self._threshold_ns, measurement)
        if self._kind != "singleton" or measurement is not None:
            # A pull, for instance, ends with the subscription of its inbox.
            self._requester.removal_listeners[self] = self._interest_ended
            self._by_reply.setdefault(reply, {})[inner] = None
        if measurement is not None:
            self._schedule_expiry()
        self._responder.link(relay)
        return inner

    def forget(self, inner: bytes, failure: tuple[int, str] | None = None) -> Measurement | None:
        """End the wait for answers to one request, and return its measurement if it has one.

        Args:
            failure: passed to the measurement; without one, the caller does that.
        """
        pending = self._pending.pop(inner, None)
        if pending is None:
            return None
        self._ended.pop(inner, None)
        alike = self._by_reply.get(pending.reply)
        if alike is not None:
            alike.pop(inner, None)
            if not alike:
                del self._by_reply[pending.reply]
        self._responder.unlink(pending.relay)
        if pending.measurement is not None and failure is not None:
            pending.measurement.fail(*failure)
        return pending.measurement

    def close(self) -> None:
        """End all waits."""
        for inner in tuple(self._pending):
            self.forget(inner)
        self._requester.removal_listeners.pop(self, None)
        if self._reverse is not None:
            reverse, self._reverse = self._reverse, None
            reverse.close()

    def _drop_expired(self) -> None:
        now_ns = self._clock.now_ns()
        for _ in range(min(_GROUP, len(self._pending))):
            oldest = next(iter(self._pending))
            if self._pending[oldest].deadline_ns > now_ns and len(self._pending) < _WAITING_MAX:
                break
            self.forget(oldest, SERVICE_TIMEOUT)

    def _schedule_expiry(self) -> None:
        """Have requests end at their deadline; unmeasured ones end with the next request after it."""
        if not self._is_scheduled:
            self._is_scheduled = True
            self._schedule(next(iter(self._pending.values())).deadline_ns, self._expire)

    def _expire(self, _now_ns: int) -> None:
        self._is_scheduled = False
        self._drop_expired()
        if self._pending:
            self._schedule_expiry()

    def _interest_ended(self, pattern: bytes) -> None:
        if not self._by_reply:
            return
        if b"*" in pattern or b">" in pattern:
            self._are_all_unchecked = True
        elif pattern in self._by_reply:
            self._unchecked[pattern] = None
        else:
            return
        if not self._is_checking:
            self._is_checking = True
            self._schedule(self._clock.now_ns(), self._check_interest)

    def _check_interest(self, now_ns: int) -> None:
        """End requests whose reply has no interest any more, a group at a time."""
        for _ in range(_GROUP):
            if self._ended:
                self.forget(self._ended.popitem()[0], REQUEST_TIMEOUT)
            elif self._unchecked:
                reply, _ = self._unchecked.popitem()
                if not self._requester.has_interest(reply):
                    self._ended.update(self._by_reply.get(reply, {}))
            elif self._are_all_unchecked:
                self._are_all_unchecked = False
                self._unchecked = dict.fromkeys(self._by_reply)
            else:
                self._is_checking = False
                return
        self._schedule(now_ns, self._check_interest)

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
            pending = self._pending.get(inner)
            if pending is None:
                return False
            pending.deadline_ns = self._clock.now_ns() + self._threshold_ns
            self._pending.move_to_end(inner)
        if reply and not reply.startswith(b"$JS.ACK."):
            reply = self._expect_reverse(reply)
        return self._requester.send_to(outer, [(outer if subject == address else subject, reply, header, payload)]) > 0

    def _expect_reverse(self, reply: bytes) -> bytes:
        """Return a reply subject for the requester, that leads to this one of the responder."""
        if self._reverse is None:
            self._reverse = Responses(
                self._responder, self._requester, self._kind, self._threshold_ns, self._clock, self._schedule
            )
            self._reverse._reverse = self
        return self._reverse.expect(reply)
