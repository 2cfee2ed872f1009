"""A request to an endpoint of a service, and the answers to it."""

from __future__ import annotations

from typing import Any, TypeVar, overload

from jetlake.client.messages.message import Message
from jetlake.client.messages.ready import Ready
from jetlake.client.settings.wire_values import HeadersLike
from jetlake.errors import InvalidOptionError
from jetlake.model.service import ERROR_CODE_HEADER, ERROR_HEADER
from jetlake.protocol.headers import Headers

T = TypeVar("T")


class ServiceRequest:
    """A request that an endpoint received.

    Attributes:
        message: the message behind it.
        error: the last error that was answered, as `code:description`; empty for none.
        is_answered: whether an answer or an error was sent.
    """

    __slots__ = ("error", "is_answered", "message")

    def __init__(self, message: Message) -> None:
        self.message = message
        self.error = ""
        self.is_answered = False

    @property
    def subject(self) -> str:
        """The subject that it was sent to."""
        return self.message.subject

    @property
    def payload(self) -> bytes:
        """The content."""
        return self.message.payload

    @property
    def data(self) -> bytes:
        """The content; another name for `payload`."""
        return self.message.payload

    @overload
    def json(self) -> Any: ...

    @overload
    def json(self, kind: type[T]) -> T: ...

    def json(self, kind: Any = None) -> Any:
        """Read the payload as JSON, as `Message.json`.

        Raises:
            DecodeError: not JSON, or JSON of another shape.
        """
        return self.message.json(kind)

    @property
    def headers(self) -> Headers:
        """The headers; falsy when there are none."""
        return self.message.headers

    def respond(self, payload: bytes = b"", *, headers: HeadersLike | None = None) -> Ready:
        """Answer.

        Raises:
            JetlakeError: the sender waits for no answer.
            InvalidOptionError: headers and payload are larger than the server takes.
        """
        ready = self.message.respond(payload, headers=_as_dict(headers))
        self.is_answered = True
        return ready

    def respond_error(
        self, code: int, description: str, payload: bytes = b"", *, headers: HeadersLike | None = None
    ) -> Ready:
        """Answer with an error, which the statistics count.

        Args:
            code: a number, as HTTP's.
            description: the error in one line; line breaks become blanks.
            payload: further details.
            headers: headers besides the error's.

        Raises:
            InvalidOptionError: no code, no description, or more than the server takes.
        """
        line = " ".join(str(description).encode("utf-8", "backslashreplace").decode().split())
        if isinstance(code, bool) or not isinstance(code, int) or not line:
            raise InvalidOptionError(f"an error needs a number and a description, not {code!r} and {description!r}")
        self.error = f"{code}:{line}"
        error: dict[str, str | list[str]] = {ERROR_HEADER: line, ERROR_CODE_HEADER: str(code)}
        ready = self.message.respond(payload, headers=_as_dict(headers) | error)
        self.is_answered = True
        return ready

    def __repr__(self) -> str:
        return f"<ServiceRequest {self.message!r}>"


def _as_dict(headers: HeadersLike | None) -> dict[str, str | list[str]]:
    if not headers:
        return {}
    if isinstance(headers, Headers):
        return {key: headers.get_all(key) for key in headers}
    return dict(headers)
