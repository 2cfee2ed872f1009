"""The acknowledgement of a published message: the Struct that a client reads and the bytes that a server writes."""

from __future__ import annotations

import msgspec

from jetlake.errors import ApiError, DecodeError, api_error_of
from jetlake.model.encoding.codec import decode, encode
from jetlake.model.encoding.fields import Sequence, always
from jetlake.model.stream import ErrorBody

__all__ = ["DUPLICATE_MEMBER", "DUPLICATE_SUFFIX", "PubAck", "decode_pub_ack", "encode_pub_ack_error", "pub_ack_prefix"]


class PubAck(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """The stream has the message."""

    stream: str = always("")
    """Name of the stream."""
    domain: str = ""
    """The JetStream domain of the stream."""
    seq: Sequence = always(0)
    """The message's sequence; of a duplicate, the first one's; of a batch, its last message's."""
    duplicate: bool = False
    """The stream had a message with this id already and stored nothing."""
    val: str = ""
    """The counter's new value, a whole number of any size."""
    batch: str = ""
    """Id of the batch that this message completed."""
    count: int = 0
    """Number of messages in that batch."""


class _Refusal(msgspec.Struct, frozen=True, gc=False):
    error: ErrorBody | None = None
    stream: str = ""
    seq: int = 0


DUPLICATE_MEMBER = b',"duplicate": true'
"""What follows the sequence in the acknowledgement of a duplicate."""
DUPLICATE_SUFFIX = DUPLICATE_MEMBER + b"}"
"""What ends the acknowledgement of a duplicate, after prefix and sequence; `}` ends any other."""


def pub_ack_prefix(stream: str, domain: str = "") -> bytes:
    """Return what starts every acknowledgement of a stream: the whole is `prefix + b"%d" % seq + b"}"`."""
    start = b'{"stream":' + encode(stream)
    if domain:
        start += b',"domain":' + encode(domain)
    return start + b',"seq":'


def encode_pub_ack_error(stream: str, error: ApiError) -> bytes:
    """Return the answer to a publisher whose message was refused."""
    body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
    return encode(_Refusal(error=body, stream=stream))


def decode_pub_ack(data: bytes) -> PubAck:
    """Read the answer to a published message.

    Raises:
        ApiError: the stream refused it.
        DecodeError: the answer is no acknowledgement, so another responder sent it.
    """
    ack = decode(PubAck, data)
    if ack.seq:
        return ack
    error = decode(_Refusal, data).error
    if error is None:
        raise DecodeError("neither a sequence nor an error in the answer to a publish")
    raise api_error_of(error.code, error.err_code, error.description)
