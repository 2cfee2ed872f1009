"""PubAcks of messages that share a reply subject: clear as long as each has a sequence of its own.

The reasons are in decision 18 (docs/decisions).
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from jetlake.client.tables.columns.frame_split import Split
from jetlake.client.tables.columns.message_columns import gather, numpy_of
from jetlake.errors import ApiError, DecodeError
from jetlake.model.publish import decode_pub_ack

__all__ = ["StoredAcks"]

_SEQUENCE = b'"seq":'


class StoredAcks:
    """Checks that acknowledgements say nothing but that one stream stored message after message.

    A stream answers a message once, and gives every message that it stores a sequence of its own. So as many ascending
    sequences of one stream as messages were sent mean that each of them is stored. A refusal, a duplicate, another
    stream or a sequence out of order leave open which message they are about.

    Attributes:
        stream: the stream that answered; empty before the first answer.
    """

    def __init__(self) -> None:
        self.stream = ""
        self._before = b""
        self._behind = b""
        self._last_sequence = 0

    def are_clear(self, buffer: bytearray, split: Split) -> bool:
        """Return whether each of these answers acknowledges another message, stored just now in the same stream."""
        import pyarrow.compute as pc  # here, as in message_columns

        if (split.header != split.payload).any():
            return False
        if not self.stream and not self._learn(bytes(buffer[int(split.payload[0]) : int(split.end[0])])):
            return False
        answers = gather(buffer, split.payload, split.end)
        start, end = split.payload + len(self._before), split.end - len(self._behind)
        if (
            (start >= end).any()
            or not pc.all(pc.starts_with(answers, self._before)).as_py()
            or not pc.all(pc.ends_with(answers, self._behind)).as_py()
        ):
            return False
        try:
            sequences = numpy_of(gather(buffer, start, end).cast(pa.string()).cast(pa.int64()))
        except pa.ArrowInvalid:
            return False
        if sequences[0] <= self._last_sequence or (np.diff(sequences) <= 0).any():
            return False
        self._last_sequence = int(sequences[-1])
        return True

    def _learn(self, answer: bytes) -> bool:
        """Take what all answers have around their sequences from the first one."""
        try:
            ack = decode_pub_ack(answer)
        except (ApiError, DecodeError):
            return False
        self._before, key, rest = answer.partition(_SEQUENCE)
        digits = b"%d" % ack.seq
        if ack.duplicate or not key or not rest.startswith(digits):
            return False
        self._before += key
        self._behind = rest[len(digits) :]
        self.stream = ack.stream
        return True
