"""What a tool answers: JSON of bounded size, payloads as text where they are text."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Iterable
from itertools import islice
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
# How many items and characters are kept, the first that fits.
_CUTS = ((LIST_MAX, 1024), (20, 256), (5, 64))
_ROW_ITEMS_MAX, _ROW_TEXT_MAX = 20, 256
# Of an answer with rows, what is not rows.
_FRAME_BYTES = 8 << 10
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
    """Return plain data that fits, with long texts and lists shortened and marked as shortened."""
    for items_max, text_max in _CUTS:
        cut = _cut(value, items_max, text_max)
        if len(msgspec.json.encode(cut)) <= ANSWER_BYTES_MAX:
            break
    return cut


def _cut(value: Any, items_max: int, text_max: int) -> Any:
    if isinstance(value, str) and len(value) > text_max:
        return f"{value[:text_max]}… ({len(value)} characters)"
    if isinstance(value, dict):
        kept = {_cut(key, items_max, text_max): _cut(one, items_max, text_max) for key, one in _first(value, items_max)}
        return {**kept, "…": f"{len(value) - items_max} more"} if len(value) > items_max else kept
    if isinstance(value, (list, tuple)):
        items = [_cut(one, items_max, text_max) for one in value[:items_max]]
        return [*items, f"… {len(value) - items_max} more"] if len(value) > items_max else items
    return value


def _first(value: dict[str, Any], count: int) -> list[tuple[str, Any]]:
    return list(islice(value.items(), count))


def fitting(rows: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows that fit into one answer, `LIST_MAX` at most; a row by itself is cut."""
    left = ANSWER_BYTES_MAX - _FRAME_BYTES
    kept: list[dict[str, Any]] = []
    for row in islice(rows, LIST_MAX):
        row = _cut(row, _ROW_ITEMS_MAX, _ROW_TEXT_MAX)
        left -= len(msgspec.json.encode(row)) + 1
        if left < 0 and kept:
            break
        kept.append(row)
    return kept


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
