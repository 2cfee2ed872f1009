"""What a tool answers: JSON of bounded size, payloads as text where they are text."""

from __future__ import annotations

from base64 import b64encode
from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import StoredMessage

ANSWER_BYTES_MAX = 64 << 10
"""Most bytes of one answer: more would fill the context of a language model."""
LIST_MAX = 100
"""Most streams, consumers, subjects or messages of one answer."""
PAYLOAD_MAX = 4096
"""Most characters of a payload, or bytes of one that is no text, unless a single message is asked for."""
_TEXT_MAX = 1024
_HEADERS_MAX = 2048


class TooLargeError(JetlakeError):
    """An answer is larger than the limit."""


def encode(value: Any) -> str:
    """Return an answer as JSON.

    Raises:
        TooLargeError: it is larger than the limit.
    """
    text = msgspec.json.encode(value)
    if len(text) > ANSWER_BYTES_MAX:
        raise TooLargeError(f"the answer has {len(text)} bytes, more than {ANSWER_BYTES_MAX}: ask for less")
    return text.decode()


def shorten(value: Any) -> Any:
    """Return plain data with long texts and long lists cut; a cut value says so."""
    if isinstance(value, str) and len(value) > _TEXT_MAX:
        return f"{value[:_TEXT_MAX]}… ({len(value)} characters)"
    if isinstance(value, dict):
        kept = {shorten(key): shorten(one) for key, one in list(value.items())[:LIST_MAX]}
        return {**kept, "…": f"{len(value) - LIST_MAX} more"} if len(value) > LIST_MAX else kept
    if isinstance(value, (list, tuple)):
        kept_items = [shorten(one) for one in value[:LIST_MAX]]
        return [*kept_items, f"… {len(value) - LIST_MAX} more"] if len(value) > LIST_MAX else kept_items
    return value


def message_fields(message: StoredMessage, payload_max: int = PAYLOAD_MAX) -> dict[str, Any]:
    """Return a stored message: its payload as text, or in base64 if it is not UTF-8, cut to `payload_max`."""
    data = message.data
    fields: dict[str, Any] = {"sequence": message.sequence, "time": message.time, "subject": message.subject}
    headers = [list(pair) for pair in message.headers.items()]
    if sum(len(key) + len(text) for key, text in headers) > _HEADERS_MAX:
        fields["headers_cut"] = True
        headers = _fitting(headers)
    if headers:
        fields["headers"] = headers
    try:
        text = data.decode()
        fields["payload"] = text[:payload_max]
        is_cut = len(text) > payload_max
    except UnicodeDecodeError:
        fields["payload_base64"] = b64encode(data[:payload_max]).decode()
        is_cut = len(data) > payload_max
    if is_cut:
        fields["payload_cut"] = True
    fields["payload_bytes"] = len(data)
    return fields


def _fitting(headers: list[list[str]]) -> list[list[str]]:
    """Return the first headers that fit, long values cut."""
    left, kept = _HEADERS_MAX, []
    for key, value in headers:
        if left <= 0:
            break
        kept.append([key[:left], value[: max(left - len(key), 0)]])
        left -= len(key) + len(value)
    return kept
