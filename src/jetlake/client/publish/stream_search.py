"""The search for the stream behind a subject: whether a publish that found no listener is worth another attempt.

While a cluster elects a stream's leader, the stream's subjects have no listener, but the cluster knows the stream.
"""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.client.publish.outgoing_message import OutgoingMessage
from jetlake.errors import ApiError, JetlakeError, JetStreamNotEnabledError
from jetlake.model.replies import StreamNamesReply
from jetlake.model.requests import StreamListRequest

ELECTION_S = 30.0
"""How long a message without a timeout of its own waits for a leader; nats-server elects one within 4 to 9 seconds."""
RETRY_WAIT_S = 0.25
"""The time between two attempts."""
BLIND_RETRIES = 2
"""How often a message that no stream listens to is sent again before its stream is searched for."""

_TIMEOUT_S = 1.0
_FOUND_S = 10.0
_FOUND_MAX = 10_000
_IN_PROCESS = 10158


def is_in_process(error: Exception) -> bool:
    """Return whether a message was refused because the cluster is still processing an earlier copy with its id."""
    return isinstance(error, ApiError) and error.err_code == _IN_PROCESS


class StreamSearch:
    """Asks the API whether a stream captures a subject that has no listener right now.

    Args:
        api: the API to ask.
    """

    def __init__(self, api: ApiCaller) -> None:
        self.api = api
        # Until when a subject is known to have a stream, so that an election causes no storm of requests.
        self._found: dict[bytes, float] = {}

    async def finds(self, subject: bytes) -> bool | None:
        """Return whether a stream captures the subject.

        None if unknown: the API has no leader either, or the user has no permission to ask.
        """
        now = self.api.connection.loop.time()
        if self._found.get(subject, 0.0) > now:
            return True
        body = StreamListRequest(subject=subject.decode("utf-8", "replace"))
        try:
            reply = await self.api.call(StreamNamesReply, "STREAM.NAMES", body=body, timeout_s=_TIMEOUT_S)
        except JetStreamNotEnabledError:
            # A server of a cluster that has just started takes connections before JetStream is up.
            return None if self.api.connection.info.cluster else False
        except JetlakeError:
            return None
        if reply.streams:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[subject] = now + _FOUND_S
        return bool(reply.streams)

    async def is_retried(self, message: OutgoingMessage, attempts: int, give_up_at: float) -> bool:
        """Return whether a message that no stream listens to is sent again.

        `retries` of the message decides; without it, the first attempts are blind, and later ones need a stream.
        """
        if message.retries is not None:
            return attempts < message.retries
        if attempts < BLIND_RETRIES:
            return True
        return self.api.connection.loop.time() < give_up_at and await self.finds(message.subject) is not False
