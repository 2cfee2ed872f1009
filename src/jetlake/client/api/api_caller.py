"""Calls of the JetStream API: the subject from the table, the body encoded, the reply decoded or raised."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TypeVar

from jetlake.client.connection.connection import Connection
from jetlake.client.settings.wire_values import check_request
from jetlake.errors import (
    ApiError,
    BadSubjectError,
    ClientConnectionError,
    ConnectionClosedError,
    InvalidOptionError,
    JetlakeError,
    JetStreamNotEnabledError,
    NoRespondersError,
)
from jetlake.model.api import API_PREFIX, ROUTES, api_prefix, decode_reply
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.fields import Value
from jetlake.model.replies import Page
from jetlake.protocol.subjects import is_valid_publish

__all__ = ["NO_LEADER", "ApiCaller", "check_name", "is_passing", "until_ready"]

T = TypeVar("T")
ReplyT = TypeVar("ReplyT", bound=Value)
ItemT = TypeVar("ItemT")

_BAD_IN_NAME = frozenset(" \t\r\n\f.*>/\\")
_NAME_LENGTH_MAX = 255

# Calls that change nothing, so that one without an answer may be sent again.
_READS = frozenset(
    {
        "INFO",
        "STREAM.NAMES",
        "STREAM.LIST",
        "STREAM.INFO",
        "STREAM.MSG.GET",
        "CONSUMER.NAMES",
        "CONSUMER.LIST",
        "CONSUMER.INFO",
    }
)
# Calls that do nothing the second time. A cluster may lose one, or its answer, with a leader.
_IDEMPOTENT = frozenset({"STREAM.CREATE", "STREAM.UPDATE", "CONSUMER.CREATE"})
NO_LEADER = 10008
"""The error code of a cluster that elects a leader: nothing was done, and soon something will be."""

_RETRY_FIRST_S = 0.05
_RETRY_MAX_S = 1.0
_TOO_MANY_REQUESTS = 429
_SERVER_FAILED = 500

# An election takes less than this, and is nothing to report.
_REPORT_FIRST_S = 10.0
_REPORT_MAX_S = 600.0
_READY_WAIT_MAX_S = 2.0


def is_passing(error: JetlakeError) -> bool:
    """Return whether the same call may succeed later: no answer, no connection, no leader, JetStream not there yet."""
    if isinstance(error, ApiError):
        return error.code >= _SERVER_FAILED or error.code == _TOO_MANY_REQUESTS
    return isinstance(error, (ClientConnectionError, TimeoutError)) and not isinstance(error, ConnectionClosedError)


async def until_ready(
    connection: Connection,
    call: Callable[[], Awaitable[T]],
    report: Callable[[Exception], None],
    give_up_s: float | None = None,
) -> T:
    """Return the result of the call, made again with back-off while the server is not ready.

    Args:
        connection: its event loop has the time.
        call: makes one attempt.
        report: called with the reason of a lasting failure, after ten seconds and then at growing intervals.
        give_up_s: after how long the failure is raised. Default: never.

    Raises:
        JetlakeError: trying again cannot help, or did not for too long.
    """
    now = connection.loop.time
    began = now()
    wait_s = _RETRY_FIRST_S
    report_s = _REPORT_FIRST_S
    report_at = began + report_s
    while True:
        try:
            return await call()
        except JetlakeError as error:
            if not is_passing(error) or (give_up_s is not None and now() - began >= give_up_s):
                raise
            if now() >= report_at:
                report(error)
                report_s = min(_REPORT_MAX_S, 2 * report_s)
                report_at = now() + report_s
        await asyncio.sleep(wait_s)
        wait_s = min(_READY_WAIT_MAX_S, 2 * wait_s)


def check_name(what: str, name: str) -> str:
    """Check the name of a stream or consumer, and return it.

    Raises:
        InvalidOptionError: a server would refuse it, or the subject that it becomes part of would mean something else.
    """
    if not isinstance(name, str) or not name:
        raise InvalidOptionError(f"{what} needs a name, not {name!r}")
    if not _BAD_IN_NAME.isdisjoint(name) or not name.isprintable():
        raise InvalidOptionError(f"{what} name {name!r} may not contain blanks, dots, wildcards or slashes")
    if len(name) > _NAME_LENGTH_MAX:
        raise InvalidOptionError(f"{what} name is longer than {_NAME_LENGTH_MAX} characters")
    return name


PageT = TypeVar("PageT", bound=Page)


class ApiCaller:
    """The API of one account, by prefix or domain.

    Args:
        connection: where requests go.
        domain: the JetStream domain; empty for the one of the server.
        prefix: the whole prefix instead of a domain, for an API that is imported under another name.
        timeout_s: how long a call waits.

    Raises:
        InvalidOptionError: both are given, or one of them cannot be in a subject.
    """

    def __init__(
        self, connection: Connection, *, domain: str = "", prefix: str = "", timeout_s: float | None = None
    ) -> None:
        if domain and prefix:
            raise InvalidOptionError("domain and prefix are mutually exclusive: pass one of them")
        if domain:
            check_name("domain", domain)
        if prefix and not is_valid_publish(prefix.rstrip(".").encode()):
            raise InvalidOptionError(f"prefix {prefix!r} is not a subject without wildcards")
        self.connection = connection
        self.prefix = prefix.rstrip(".") or (api_prefix(domain) if domain else API_PREFIX)
        self.timeout_s = timeout_s or connection.options.request_timeout_s
        self.trace: Callable[[bytes, bytes, bytes], None] | None = None
        """Called with the subject, the request and the answer of every call."""

    def subject(self, verb: str, *names: str) -> bytes:
        """Return the subject of a call."""
        return ROUTES[verb].subject(*names, prefix=self.prefix).encode()

    async def call(
        self, kind: type[ReplyT], verb: str, *names: str, body: Any = None, timeout_s: float | None = None
    ) -> ReplyT:
        """Send a request and read its reply; within the timeout, wait for a cluster that is electing a leader.

        Raises:
            ApiError: the server refused; the subclass and `err_code` say why.
            BadSubjectError: a name or filter in the request's subject is too long, or has a blank.
            JetStreamNotEnabledError: no server answers.
            RequestTimeoutError: no answer in time.
        """
        subject = self.subject(verb, *names)
        if b" " in subject:
            raise BadSubjectError(subject, "a name in it has a blank")
        check_request(subject)
        payload = b"" if body is None else encode(body)
        wait_s = timeout_s or self.timeout_s
        give_up_at = self.connection.loop.time() + wait_s
        retry_s = _RETRY_FIRST_S
        while True:
            is_repeatable = verb in _READS or (verb in _IDEMPOTENT and bool(self.connection.info.cluster))
            try:
                answer = await self.connection.request_raw(subject, b"", payload, wait_s, is_repeatable)
            except NoRespondersError:
                raise JetStreamNotEnabledError(
                    503, 10039, f"no JetStream answers on {self.prefix!r}: is it enabled for this server and account?"
                ) from None
            if self.trace is not None:
                self.trace(subject, payload, answer.payload)
            try:
                return decode_reply(kind, answer.payload)
            except ApiError as error:
                wait_s = give_up_at - self.connection.loop.time() - retry_s
                if error.err_code != NO_LEADER or wait_s <= 0:
                    # The server's words do not say which stream or consumer they are about.
                    error.request = ".".join((verb, *names))
                    raise
            await asyncio.sleep(retry_s)
            retry_s = min(_RETRY_MAX_S, 2 * retry_s)

    async def list_all(
        self,
        kind: type[PageT],
        verb: str,
        *names: str,
        request: Callable[[int], Value],
        items: Callable[[PageT], Sequence[ItemT] | None],
    ) -> list[ItemT]:
        """Ask for a list page by page.

        Args:
            kind: the type of the replies.
            verb: the call.
            names: the tokens of its subject.
            request: makes the request for the page at an offset.
            items: takes the items out of a page.

        Raises:
            ApiError: as `call`.
        """
        found: list[ItemT] = []
        while True:
            page = await self.call(kind, verb, *names, body=request(len(found)))
            fresh = items(page)
            found += fresh or ()
            if not fresh or len(found) >= page.total:
                return found
