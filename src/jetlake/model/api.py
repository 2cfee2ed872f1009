"""The API's subjects in one table: which request each takes, which reply it gives, and how its body is read."""

from __future__ import annotations

from collections.abc import Generator
from enum import Enum
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

import msgspec

from jetlake.errors import ApiError, api_error_of
from jetlake.model import replies, requests
from jetlake.model.encoding.codec import decode, encode, prepare_strict
from jetlake.model.encoding.fields import Value
from jetlake.model.encoding.times import ZERO_TIME
from jetlake.model.stream import ErrorBody

__all__ = [
    "API_PREFIX",
    "API_ROWS",
    "ROUTES",
    "Body",
    "Match",
    "Route",
    "api_prefix",
    "decode_reply",
    "encode_error",
    "match",
]

API_PREFIX = "$JS.API"
"""What every API subject starts with, without a domain."""

ReplyT = TypeVar("ReplyT", bound=Value)


class Body(Enum):
    """How a server reads a request's body."""

    EMPTY = "empty"
    """It must be empty or an empty object (else 10038)."""
    IGNORED = "ignored"
    """It is not looked at."""
    STRICT = "strict"
    """JSON in which an unknown field is an error (10025)."""
    LENIENT = "lenient"
    """JSON in which unknown fields are skipped."""


class Route(NamedTuple):
    """One row of the table: a kind of request."""

    verb: str
    """The words after the prefix, such as `STREAM.MSG.GET`."""
    names: tuple[str, ...]
    """What the tokens after the verb are: `stream`, `consumer`; a last `rest` takes all that remain, one at least."""
    body: Body
    """How the body is read."""
    request: type[Any] | None
    """The Struct of the body; None when there is none."""
    reply: type[Value] | None
    """The Struct of the reply; None when the answer is messages instead of JSON."""

    def subject(self, *names: str, prefix: str = API_PREFIX) -> str:
        """Return the subject for these names: `ROUTES["STREAM.INFO"].subject("ORDERS")`."""
        return ".".join((prefix, self.verb, *names))


class Match(NamedTuple):
    """A subject, taken apart."""

    route: Route
    """The row it belongs to."""
    stream: str
    """Name of the stream, or empty."""
    consumer: str
    """Name of the consumer, or empty."""
    rest: str
    """The tokens that remain: a filter, a subject or a group; or empty."""
    domain: str
    """The domain of the prefix, or empty."""


_STREAM = ("stream",)
_CONSUMER = ("stream", "consumer")
_STREAM_REST = ("stream", "rest")
_CONSUMER_REST = ("stream", "consumer", "rest")

API_ROWS = (
    Route("INFO", (), Body.IGNORED, None, replies.AccountInfoReply),
    Route("STREAM.CREATE", _STREAM, Body.STRICT, requests.StreamCreateRequest, replies.StreamCreateReply),
    Route("STREAM.UPDATE", _STREAM, Body.STRICT, requests.StreamCreateRequest, replies.StreamUpdateReply),
    Route("STREAM.NAMES", (), Body.STRICT, requests.StreamListRequest, replies.StreamNamesReply),
    Route("STREAM.LIST", (), Body.STRICT, requests.StreamListRequest, replies.StreamListReply),
    Route("STREAM.INFO", _STREAM, Body.STRICT, requests.StreamInfoRequest, replies.StreamInfoReply),
    Route("STREAM.DELETE", _STREAM, Body.EMPTY, None, replies.StreamDeleteReply),
    Route("STREAM.PURGE", _STREAM, Body.STRICT, requests.StreamPurgeRequest, replies.StreamPurgeReply),
    Route("STREAM.MSG.GET", _STREAM, Body.STRICT, requests.MessageGetRequest, replies.MessageGetReply),
    Route("STREAM.MSG.DELETE", _STREAM, Body.STRICT, requests.MessageDeleteRequest, replies.MessageDeleteReply),
    Route("STREAM.SNAPSHOT", _STREAM, Body.STRICT, requests.StreamSnapshotRequest, replies.StreamSnapshotReply),
    Route("STREAM.RESTORE", _STREAM, Body.STRICT, requests.StreamRestoreRequest, replies.StreamRestoreReply),
    Route("STREAM.LEADER.STEPDOWN", _STREAM, Body.IGNORED, None, replies.StreamLeaderStepdownReply),
    Route("STREAM.PEER.REMOVE", _STREAM, Body.IGNORED, None, replies.StreamRemovePeerReply),
    Route("STREAM.PEER.EVACUATE", _STREAM, Body.IGNORED, None, replies.StreamEvacuatePeerReply),
    Route("STREAM.CANCEL_MOVE", _STREAM, Body.IGNORED, None, replies.StreamCancelMoveReply),
    Route("CONSUMER.CREATE", _STREAM, Body.STRICT, requests.ConsumerCreateRequest, replies.ConsumerCreateReply),
    Route("CONSUMER.CREATE", _CONSUMER, Body.STRICT, requests.ConsumerCreateRequest, replies.ConsumerCreateReply),
    Route("CONSUMER.CREATE", _CONSUMER_REST, Body.STRICT, requests.ConsumerCreateRequest, replies.ConsumerCreateReply),
    Route(
        "CONSUMER.DURABLE.CREATE", _CONSUMER, Body.STRICT, requests.ConsumerCreateRequest, replies.ConsumerCreateReply
    ),
    Route("CONSUMER.NAMES", _STREAM, Body.STRICT, requests.ConsumerListRequest, replies.ConsumerNamesReply),
    Route("CONSUMER.LIST", _STREAM, Body.STRICT, requests.ConsumerListRequest, replies.ConsumerListReply),
    Route("CONSUMER.INFO", _CONSUMER, Body.EMPTY, None, replies.ConsumerInfoReply),
    Route("CONSUMER.PENDING", _CONSUMER, Body.EMPTY, None, replies.ConsumerPendingReply),
    Route("CONSUMER.DELETE", _CONSUMER, Body.EMPTY, None, replies.ConsumerDeleteReply),
    Route("CONSUMER.PAUSE", _CONSUMER, Body.STRICT, requests.ConsumerPauseRequest, replies.ConsumerPauseReply),
    Route("CONSUMER.RESET", _CONSUMER, Body.LENIENT, requests.ConsumerResetRequest, replies.ConsumerResetReply),
    Route("CONSUMER.UNPIN", _CONSUMER, Body.LENIENT, requests.ConsumerUnpinRequest, replies.ConsumerUnpinReply),
    # NATS ADR-42 writes the group as the last token; released servers want it in the body. Both are read.
    Route("CONSUMER.UNPIN", _CONSUMER_REST, Body.LENIENT, requests.ConsumerUnpinRequest, replies.ConsumerUnpinReply),
    Route("CONSUMER.LEADER.STEPDOWN", _CONSUMER, Body.IGNORED, None, replies.ConsumerLeaderStepdownReply),
    Route("CONSUMER.PEER.REMOVE", _CONSUMER, Body.IGNORED, None, replies.ConsumerRemovePeerReply),
    Route("CONSUMER.PEER.EVACUATE", _CONSUMER, Body.IGNORED, None, replies.ConsumerEvacuatePeerReply),
    Route("CONSUMER.MSG.NEXT", _CONSUMER, Body.LENIENT, requests.PullRequest, None),
    Route("DIRECT.GET", _STREAM, Body.LENIENT, requests.DirectGetRequest, None),
    Route("DIRECT.GET", _STREAM_REST, Body.LENIENT, requests.DirectGetRequest, None),
)
"""The table itself; a verb has a row for each of its shapes, those with fewer names first."""

# By the verb's tokens.
_BY_VERB: dict[tuple[str, ...], list[Route]] = {}
for _row in API_ROWS:
    _BY_VERB.setdefault(tuple(_row.verb.split(".")), []).append(_row)

ROUTES: dict[str, Route] = {verb[0].verb: verb[0] for verb in _BY_VERB.values()}
"""The table by verb; of a verb that has several shapes, the one with the fewest names."""


def prepare_requests() -> Generator[None, None, None]:
    """Build what reading each kind of request needs, in steps; the first requests would take milliseconds otherwise."""
    for kind in dict.fromkeys(row.request for row in API_ROWS if row.request is not None):
        yield from prepare_strict(kind)


_VERB_TOKENS_MAX = max(len(verb) for verb in _BY_VERB)

# What the refusal of a request has besides type and error.
_PAGE: dict[str, object] = {"total": 0, "offset": 0, "limit": 0}
_ERROR_FIELDS: dict[type[Value], dict[str, object]] = {
    replies.StreamInfoReply: _PAGE,
    replies.StreamNamesReply: {**_PAGE, "streams": None},
    replies.StreamListReply: {**_PAGE, "streams": []},
    replies.ConsumerNamesReply: {**_PAGE, "consumers": []},
    replies.ConsumerListReply: {**_PAGE, "consumers": []},
    replies.StreamPurgeReply: {"purged": 0},
    replies.StreamRestoreReply: {"deliver_subject": ""},
    replies.ConsumerPauseReply: {"paused": False, "pause_until": ZERO_TIME},
    replies.ConsumerResetReply: {"reset_seq": 0},
}


# The same requests come again and again: for info, for a message, for the next messages.
_MATCHES_KEPT = 1024


def api_prefix(domain: str = "") -> str:
    """Return the prefix of the API in that domain: `$JS.API`, `$JS.hub.API`."""
    return f"$JS.{domain}.API" if domain else API_PREFIX


@lru_cache(maxsize=_MATCHES_KEPT)
def match(subject: bytes | str) -> Match | None:
    """Take an API subject apart, with or without a domain; None for every subject that is not in the table.

    The names are as they stand there; whether they can be names is for the rules to say.
    """
    text = subject if isinstance(subject, str) else subject.decode("utf-8", "replace")
    tokens = text.split(".")
    if tokens[0] != "$JS" or "" in tokens:
        return None
    if tokens[1:2] == ["API"]:
        domain, rest = "", tokens[2:]
    elif tokens[2:3] == ["API"]:
        domain, rest = tokens[1], tokens[3:]
    else:
        return None
    for length in range(min(_VERB_TOKENS_MAX, len(rest)), 0, -1):
        rows = _BY_VERB.get(tuple(rest[:length]))
        if rows is not None:
            return _match_names(rows, rest[length:], domain)
    return None


def _match_names(rows: list[Route], tokens: list[str], domain: str) -> Match | None:
    for row in rows:
        names = row.names
        open_ended = names[-1:] == ("rest",)
        if len(tokens) == len(names) or (open_ended and len(tokens) > len(names)):
            found = dict(zip(names, tokens, strict=False))
            rest = ".".join(tokens[len(names) - 1 :]) if open_ended else ""
            return Match(row, found.get("stream", ""), found.get("consumer", ""), rest, domain)
    return None


def encode_error(kind: type[Value], error: ApiError) -> bytes:
    """Return the refusal of a request whose reply would have been of that type."""
    body = ErrorBody(code=error.code, err_code=error.err_code, description=error.description)
    fields = {"type": kind.__struct_config__.tag, "error": body, **_ERROR_FIELDS.get(kind, {})}
    return encode(fields)


class _Outcome(msgspec.Struct):
    error: ErrorBody | None = None


def decode_reply(kind: type[ReplyT], data: bytes) -> ReplyT:
    """Read the reply to a request.

    Raises:
        ApiError: the server refused; the subclass says why.
        DecodeError: the answer is not such a reply.
    """
    if b'"error"' in data:
        error = decode(_Outcome, data).error
        if error is not None:
            raise api_error_of(error.code, error.err_code, error.description)
    return decode(kind, data)
