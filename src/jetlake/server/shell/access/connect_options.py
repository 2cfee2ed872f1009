"""What a client says in CONNECT."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.json import Decoder

__all__ = ["BadConnectError", "ConnectOptions"]

_decode = Decoder(dict[str, Any]).decode


class BadConnectError(ValueError):
    """The text behind CONNECT is no JSON object, or a value has the wrong type."""


class ConnectOptions(Struct, frozen=True, kw_only=True):
    """The options of a connection, with the defaults of a client that says nothing."""

    verbose: bool = True
    pedantic: bool = True
    echo: bool = True
    headers: bool = False
    no_responders: bool = False
    protocol: int = 0
    tls_required: bool = False
    name: str = ""
    lang: str = ""
    version: str = ""
    user: str = ""
    password: str = field(default="", name="pass")
    auth_token: str = ""
    nkey: str = ""
    sig: str = ""
    jwt: str = ""
    account: str = ""
    new_account: bool = False

    def has_credentials(self) -> bool:
        """Whether the client tries to be somebody."""
        return bool(self.user or self.password or self.auth_token or self.nkey or self.sig or self.jwt)

    def without_secrets(self) -> ConnectOptions:
        """What may be kept after the client was let in."""
        return convert({name: getattr(self, name) for name in _KEPT}, ConnectOptions)

    def changed_by(self, json: bytes) -> ConnectOptions:
        """These options with those of another CONNECT on top; keys in any case, unknown ones ignored.

        Raises:
            BadConnectError: when it is no JSON object or a value has the wrong type.
        """
        try:
            given = {key.lower(): value for key, value in _decode(json).items() if value is not None}
            present = {_WIRE_NAMES.get(name, name): getattr(self, name) for name in self.__struct_fields__}
            return convert({**present, **given}, ConnectOptions)
        except (ValidationError, ValueError, RecursionError) as error:
            raise BadConnectError(str(error)) from None


_WIRE_NAMES = {"password": "pass"}
_KEPT = (
    "verbose",
    "pedantic",
    "echo",
    "headers",
    "no_responders",
    "protocol",
    "tls_required",
    "name",
    "lang",
    "version",
    "user",
    "nkey",
)
