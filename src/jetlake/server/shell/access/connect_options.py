"""The options of CONNECT."""

from __future__ import annotations

from typing import Any

from msgspec import Struct, ValidationError, convert, field
from msgspec.json import Decoder
from msgspec.structs import replace

__all__ = ["BadConnectError", "ConnectOptions"]

_decode = Decoder(dict[str, Any]).decode


class BadConnectError(ValueError):
    """The argument of CONNECT is no JSON object, or a value has the wrong type."""


class ConnectOptions(Struct, frozen=True, kw_only=True):
    """The options of a client, with the defaults of a client that sends no CONNECT."""

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
        """Return whether the client offers any credentials."""
        return bool(self.user or self.password or self.auth_token or self.nkey or self.sig or self.jwt)

    def completed_by(self, credentials: dict[str, str]) -> ConnectOptions:
        """Fill in credentials that the CONNECT does not have."""
        missing = {name: value for name, value in credentials.items() if not getattr(self, name)}
        return replace(self, **missing) if missing else self

    def without_secrets(self) -> ConnectOptions:
        """Copy the options that may be kept after authentication."""
        return convert({name: getattr(self, name) for name in _KEPT}, ConnectOptions)

    def changed_by(self, json: bytes) -> ConnectOptions:
        """Apply the options of a CONNECT on top of these; keys in any case, unknown ones ignored.

        Raises:
            BadConnectError: the argument is no JSON object, or a value has the wrong type.
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
