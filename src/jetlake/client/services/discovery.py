"""The callers' side of services: discovery, statistics, and requests whose errors are raised."""

from __future__ import annotations

import re
from typing import TypeVar

from jetlake.client.connection.connection import Connection
from jetlake.client.connection.subscription import PendingLimits, Subscription
from jetlake.client.messages.message import Message
from jetlake.client.settings.options import timeout_s
from jetlake.client.settings.wire_values import HeadersLike, header_bytes, payload_bytes, publish_subject
from jetlake.errors import DecodeError, RequestTimeoutError, ServiceError
from jetlake.model.encoding.codec import decode
from jetlake.model.encoding.durations import Seconds
from jetlake.model.service import (
    ERROR_CODE_HEADER,
    ERROR_HEADER,
    ServiceIdentity,
    ServiceInfo,
    ServiceStats,
    discovery_subject,
)
from jetlake.protocol import encoder
from jetlake.protocol.nuid import new_inbox

AnswerT = TypeVar("AnswerT", bound=ServiceIdentity)

# Other services may write anything into the header.
_CODE = re.compile(r"[0-9]{1,9}")
_SILENCE_S = 0.3
_TIMEOUT_S = 5.0


class Services:
    """The running services; created by `Client.services`."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection

    async def ping(self, name: str = "", instance: str = "", *, timeout: Seconds = _TIMEOUT_S) -> list[ServiceIdentity]:
        """List the running instances of all services, or of one name.

        Args:
            name: the service's name; empty for all.
            instance: the id of one instance.
            timeout: seconds to collect at most; 0.3 s of silence end it sooner.
        """
        return await self._ask(ServiceIdentity, "PING", name, instance, timeout)

    async def info(self, name: str = "", instance: str = "", *, timeout: Seconds = _TIMEOUT_S) -> list[ServiceInfo]:
        """Describe the instances and their endpoints; arguments as in `ping`."""
        return await self._ask(ServiceInfo, "INFO", name, instance, timeout)

    async def stats(self, name: str = "", instance: str = "", *, timeout: Seconds = _TIMEOUT_S) -> list[ServiceStats]:
        """Return the statistics of the instances; arguments as in `ping`."""
        return await self._ask(ServiceStats, "STATS", name, instance, timeout)

    async def request(
        self,
        subject: str,
        payload: bytes = b"",
        *,
        timeout: Seconds | None = None,
        headers: HeadersLike | None = None,
    ) -> Message:
        """Send a request to an endpoint, as `Client.request` does; raises the error that the service returns.

        Raises:
            ServiceError: the service says that the request failed.
            NoRespondersError: no instance runs.
            RequestTimeoutError: no answer in time.
        """
        connection = self._connection
        raw_subject, header, body = publish_subject(subject), header_bytes(headers), payload_bytes(payload)
        connection.check_size(len(header) + len(body))
        answer = await connection.request_raw(raw_subject, header, body, timeout_s(timeout))
        answered = answer.headers
        if answered and ERROR_HEADER in answered:
            code = answered.get(ERROR_CODE_HEADER) or ""
            raise ServiceError(int(code) if _CODE.fullmatch(code) else 0, answered[ERROR_HEADER], answer.payload)
        return answer

    async def _ask(self, kind: type[AnswerT], verb: str, name: str, instance: str, timeout: Seconds) -> list[AnswerT]:
        connection = self._connection
        inbox = new_inbox(connection.options.inbox_prefix).encode()
        subject = discovery_subject(verb, name, instance).encode()
        found: list[AnswerT] = []
        deadline = connection.loop.time() + (timeout_s(timeout) or _TIMEOUT_S)
        wanted = kind().type
        async with Subscription(connection, inbox, b"", callback=None, limits=PendingLimits()) as answers:
            connection.subscribe(answers)
            connection.send(encoder.pub(subject, inbox, b""))
            while (left_s := deadline - connection.loop.time()) > 0:
                try:
                    answer = await answers.next(min(left_s, _SILENCE_S) if found else left_s)
                except RequestTimeoutError:
                    break
                if answer.status == 503:
                    break
                try:
                    read = decode(kind, answer.payload)
                except DecodeError:
                    continue  # The answer of another responder.
                if read.type == wanted:
                    found.append(read)
        return found
