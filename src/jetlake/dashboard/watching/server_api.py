"""Requests of the JetStream API over the connection of one user."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, TypeVar

import msgspec

from jetlake.client import Client
from jetlake.errors import ApiError, InvalidOptionError
from jetlake.model.api import api_prefix, decode_reply
from jetlake.model.encoding.codec import encode
from jetlake.model.encoding.fields import Value

if TYPE_CHECKING:
    from jetlake.client import JetStream

__all__ = ["ServerApi", "checked_name"]

_TIMEOUT_S = 5.0
ReplyT = TypeVar("ReplyT", bound=Value)


class ServerApi:
    """The API of a server, asked over a client's connection.

    Args:
        domain: the JetStream domain, if not the server's own.
    """

    def __init__(self, client: Client, domain: str = "") -> None:
        self.client = client
        self.domain = domain
        self._prefix = api_prefix(domain)

    @cached_property
    def jetstream(self) -> JetStream:
        """JetStream through the connection, loaded when a page needs it: sampling does not."""
        return self.client.jetstream(domain=self.domain, timeout=_TIMEOUT_S)

    async def ask(self, verb: str, request: msgspec.Struct | None, kind: type[ReplyT]) -> ReplyT:
        """Send one request.

        Raises:
            ApiError: the server refuses, or its answer can't be read.
        """
        body = b"" if request is None else encode(request)
        answer = await self.client.request(f"{self._prefix}.{verb}", body, timeout=_TIMEOUT_S)
        try:
            return decode_reply(kind, answer.data)
        except msgspec.DecodeError as error:
            raise ApiError(500, 0, f"can't decode the server's response: {error}") from None


def checked_name(text: str) -> str:
    """Return a name that may stand in a subject.

    Raises:
        InvalidOptionError: it may not.
    """
    if not text or any(letter in ".*> \t\r\n" for letter in text):
        raise InvalidOptionError(f"{text[:64]!r} is not a valid name of a stream or consumer")
    return text
