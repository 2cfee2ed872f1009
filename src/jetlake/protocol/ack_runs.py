"""Runs of acknowledgements: consecutive plain acks to one consumer, read out of the buffer as a whole.

The reasons are in decision 9 (docs/decisions).
"""

from __future__ import annotations

import re

from msgspec import DecodeError
from msgspec.json import Decoder

from jetlake.protocol.frames import AckRun

__all__ = ["ACK_RUN_MAX", "ACK_SIZE_MAX", "read_ack_run"]

ACK_RUN_MAX = 512
"""Acknowledgements in one run, at most."""
ACK_SIZE_MAX = 4
"""Bytes of a plain acknowledgement's payload, at most."""

# An ack subject ends with five numbers: deliveries, stream sequence, consumer sequence, time, pending. Before those
# stand stream and consumer, in the longer form after domain and account.
_NUMBERS = rb"[0-9]{1,20}(?:\.[0-9]{1,20}){4}"
_NUMBERS_LENGTH_MAX = 5 * 20 + 4
_RUN = re.compile(
    rb"PUB (\$JS\.ACK\.(?:(?:[^.\s]+\.){2}){1,2})%b( 0\r\n\r\n| 4\r\n\+ACK\r\n)(?:PUB \1%b\2){1,%d}"
    % (_NUMBERS, _NUMBERS, ACK_RUN_MAX - 1)
)
_ENDS = {b"0": b" 0\r\n\r\n", b"4": b" 4\r\n+ACK\r\n"}

_decode_numbers = Decoder(list[int]).decode


def read_ack_run(data: bytes, position: int, subject: bytes, digits: bytes, max_control_line: int) -> AckRun | None:
    """Read the acknowledgements that begin with this one: all that name the same consumer and have the same body.

    Args:
        position: where the line of the first one begins.
        subject: the subject of the first one.
        digits: the size of its payload.

    Returns:
        None when no second one follows, when one is no plain acknowledgement, or when a line might be too long.
    """
    end = _ENDS.get(digits)
    if end is None:
        return None
    begin = b"PUB %b." % subject.rsplit(b".", 5)[0]
    between = end + begin
    if not data.startswith(between, position + 4 + len(subject)):
        return None
    match = _RUN.match(data, position)
    if match is None or len(between) + _NUMBERS_LENGTH_MAX > max_control_line:
        return None
    text = data[position + len(begin) : match.end() - len(end)]
    try:
        # As one list: the decoder of JSON converts numbers faster than anything else at hand.
        numbers = _decode_numbers(b"[%b]" % text.replace(between, b",").replace(b".", b","))
    except DecodeError:
        return None  # A number with leading zeros.
    return AckRun(match[1], numbers[1::5], numbers[2::5], match[0])
