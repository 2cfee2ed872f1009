"""PubAcks of messages that share a reply subject: clear as long as each has a sequence of its own.

The reasons are in decision 18 (docs/decisions).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from jetlake.client.tables.arrow_values import numpy_of
from jetlake.client.tables.frames import DIGITS_MAX, Split, read_decimals
from jetlake.client.tables.message_columns import gather
from jetlake.errors import ApiError, DecodeError
from jetlake.model.publish import decode_pub_ack

__all__ = ["AckRun", "StoredAcks"]

_SEQUENCE = b'"seq":'


class AckRun(NamedTuple):
    """Answers one behind the other in a read buffer, to the same reply subject.

    Attributes:
        subject: the reply subject.
        answers: how many they are.
        end: where the last of them ends.
    """

    subject: bytes
    answers: int
    end: int


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
        return self._follow(sequences)

    def read_run(self, buffer: bytearray, start: int, fill: int) -> AckRun | None:
        """Read clear answers to one reply subject that differ in the digits of their sequences alone.

        Such answers have one length, so that neither lines nor payloads have to be looked for.

        Args:
            start: where the first of them begins.
            fill: how many bytes of the buffer are valid.

        Returns:
            The run; None where the answers have to be taken apart one by one.
        """
        line_end = buffer.find(b"\r\n", start, fill)
        words = bytes(buffer[start : max(line_end, start)]).split(b" ")
        if not self.stream or len(words) != 4 or words[0] != b"MSG" or not words[3].isdigit():
            return None
        width = line_end + 2 + int(words[3]) + 2 - start
        head_bytes = line_end + 2 + len(self._before) - start
        tail = self._behind + b"\r\n"
        digits = width - head_bytes - len(tail)
        count = (fill - start) // width
        if not 0 < digits < DIGITS_MAX or not count:
            return None
        head = bytes(buffer[start : start + head_bytes])
        if not head.endswith(self._before):
            return None
        frames = np.frombuffer(buffer, np.uint8, count * width, start).reshape(count, width)
        count = _count_same(frames[:, :head_bytes], head)
        count = _count_same(frames[:count, head_bytes + digits :], tail)
        if not count:
            return None
        sequences = read_decimals(buffer, start + head_bytes + digits, width, count, digits)
        if sequences is None or not self._follow(sequences):
            return None
        return AckRun(words[1], count, start + count * width)

    def _follow(self, sequences: NDArray[np.int64]) -> bool:
        """Return whether sequences ascend from the last one on."""
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


def _count_same(texts: NDArray[np.uint8], text: bytes) -> int:
    """Return how many of the texts, from the first on, are that one."""
    differs = (texts != np.frombuffer(text, np.uint8)).ravel()
    first = int(differs.argmax())
    return first // len(text) if differs[first] else len(texts)
