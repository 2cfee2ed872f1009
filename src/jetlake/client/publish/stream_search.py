"""The search for the stream behind a subject: tells a cluster that elects a leader from a stream that is not there."""

from __future__ import annotations

from jetlake.client.api.api_caller import ApiCaller
from jetlake.errors import ApiError, JetlakeError, JetStreamNotEnabledError
from jetlake.model.replies import StreamNamesReply
from jetlake.model.requests import StreamListRequest

__all__ = ["ELECTION_S", "StreamSearch", "is_in_process"]

ELECTION_S = 30.0
"""How long a message without a timeout of its own waits for a leader; nats-server elects one within 4 to 9 seconds."""

_TIMEOUT_S = 1.0
_FOUND_S = 10.0
_FOUND_MAX = 10_000
_IN_PROCESS = 10158


def is_in_process(error: Exception) -> bool:
    """Return whether a message was refused because an earlier copy, by its id, is on its way through the cluster."""
    return isinstance(error, ApiError) and error.err_code == _IN_PROCESS


class StreamSearch:
    """Asks whether a stream captures a subject that nobody listens on right now.

    While a cluster elects a stream's leader, the stream's subjects have no listener, but the cluster knows the stream.

    Args:
        api: the API to ask.
    """

    def __init__(self, api: ApiCaller) -> None:
        self._api = api
        # Until when a subject is known to have a stream, so that an election is not a storm of questions.
        self._found: dict[bytes, float] = {}

    async def finds(self, subject: bytes) -> bool | None:
        """Return whether a stream captures the subject; None when nobody says, since that has no leader either.

        A user who may not ask is told nothing, too.
        """
        now = self._api.connection.loop.time()
        if self._found.get(subject, 0.0) > now:
            return True
        body = StreamListRequest(subject=subject.decode("utf-8", "replace"))
        try:
            reply = await self._api.call(StreamNamesReply, "STREAM.NAMES", body=body, timeout_s=_TIMEOUT_S)
        except JetStreamNotEnabledError:
            # A server of a cluster that has just started takes connections before JetStream is up.
            return None if self._api.connection.info.cluster else False
        except JetlakeError:
            return None
        if reply.streams:
            if len(self._found) >= _FOUND_MAX:
                self._found.clear()
            self._found[subject] = now + _FOUND_S
        return bool(reply.streams)
