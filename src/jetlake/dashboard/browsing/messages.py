"""Pages of a stream's messages, forwards and backwards, without a consumer: nothing is taken, nothing is made."""

from __future__ import annotations

from base64 import b64encode
from typing import Any

from jetlake.client.streams.stored_message import StoredMessage
from jetlake.client.streams.stream import Stream
from jetlake.errors import ConfigError, InvalidOptionError, MessageNotFoundError
from jetlake.model.encoding.times import format_time, parse_time

__all__ = ["MESSAGES_MAX", "PREVIEW_BYTES", "MessagePages", "shown_message"]

MESSAGES_MAX = 200
"""How many messages one page has at most."""
PREVIEW_BYTES = 64 * 1024
"""How much of a payload a page shows; the whole can be downloaded."""


class MessagePages:
    """Reads one stream's messages by sequence.

    Args:
        subject: only messages whose subject matches; empty = all.
    """

    def __init__(self, stream: Stream, subject: str = "") -> None:
        self._stream = stream
        self._subject = subject or ">"

    async def onwards(self, sequence: int, limit: int, end: int | None = None) -> list[StoredMessage]:
        """Return messages from a sequence on, oldest first, up to a limit and below an end."""
        found: list[StoredMessage] = []
        try:
            while len(found) < limit and (end is None or sequence < end):
                message = await self._stream.get(sequence, next_by_subject=self._subject, direct=False)
                if end is not None and message.sequence >= end:
                    break
                found.append(message)
                sequence = message.sequence + 1
        except MessageNotFoundError:
            pass
        return found

    async def since(self, time: str, limit: int) -> list[StoredMessage]:
        """Return messages that were stored at that time or later, oldest first.

        Raises:
            InvalidOptionError: not a time.
        """
        try:
            start = format_time(parse_time(time))
        except ConfigError as error:
            raise InvalidOptionError(str(error)) from None
        try:
            first = await self._stream.get(next_by_subject=self._subject, start_time=start, direct=False)
        except MessageNotFoundError:
            return []
        return [first, *await self.onwards(first.sequence + 1, limit - 1)]

    async def before(self, end: int, limit: int, first: int) -> list[StoredMessage]:
        """Return the last messages below a sequence, oldest first.

        The server only reads forwards. So windows before the end are read, wider ones while they hold little, and
        narrower ones when a window holds more than is wanted: a few times as many requests as messages at most.

        Args:
            first: the first sequence that the stream holds.
        """
        found: list[StoredMessage] = []
        width = limit
        while end > first and len(found) < limit:
            start = max(first, end - width)
            part = await self.onwards(start, limit + 1, end)
            if len(part) > limit:  # only a window wider than the limit can hold so many
                width = max(limit, width // 4)
                continue
            found, end = part + found, start
            width *= 4
        return found[-limit:]


def shown_message(message: StoredMessage) -> dict[str, Any]:
    """Return a message as pages get it: the payload in base64, cut to what is shown."""
    payload = message.payload
    return {
        "seq": message.sequence,
        "subject": message.subject,
        "time": message.time,
        "size": len(payload),
        "headers": list(message.headers.items()),
        "data": b64encode(payload[:PREVIEW_BYTES]).decode(),
        "cut": len(payload) > PREVIEW_BYTES,
    }
