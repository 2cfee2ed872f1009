"""Tokens: JWTs as NATS signs them, from text to verified claims and back.

What always holds: claims are only returned whose signature was verified with the key that the token itself names as its
issuer, and whose fields are all known and each there once. Whether that issuer may be trusted is the caller's question,
as is the time.
"""

from __future__ import annotations

import hashlib
import json
import time
from base64 import b32encode, b64decode, urlsafe_b64encode
from binascii import Error as EncodingError
from collections import Counter
from typing import Any, TypeVar

from msgspec import DecodeError, Struct, structs
from msgspec.json import Decoder, decode, encode

from jetlake.auth.claims import (
    AccountClaims,
    ActivationClaims,
    AuthorizationRequest,
    AuthorizationResponse,
    Claims,
    GenericClaims,
    OperatorClaims,
    UserClaims,
)
from jetlake.auth.keys import ACCOUNT, OPERATOR, SERVER, USER, KeyPair, kind_of, verify
from jetlake.errors import TokenError

__all__ = ["check_times", "decode_token", "encode_token"]

T = TypeVar("T", bound=Claims)

# A token is held in memory and parsed whole; the largest that a server may be sent is a message.
_LENGTH_MAX = 1024 * 1024
_ALGORITHM = "ed25519-nkey"
_VERSION = 2

# Who may be the subject of each kind of token, and who may sign it.
_SUBJECTS: dict[type[Claims], tuple[str, ...]] = {
    OperatorClaims: (OPERATOR,),
    AccountClaims: (ACCOUNT,),
    UserClaims: (USER,),
    ActivationClaims: (ACCOUNT,),
    AuthorizationRequest: (ACCOUNT,),
    AuthorizationResponse: (USER,),
    GenericClaims: (OPERATOR,),
}
_ISSUERS: dict[type[Claims], tuple[str, ...]] = {
    OperatorClaims: (OPERATOR,),
    AccountClaims: (OPERATOR,),
    UserClaims: (ACCOUNT,),
    ActivationClaims: (ACCOUNT, OPERATOR),
    AuthorizationRequest: (SERVER,),
    AuthorizationResponse: (ACCOUNT,),
    GenericClaims: (OPERATOR,),
}
_decoders = {kind: Decoder(kind) for kind in _SUBJECTS}


class _Header(Struct, frozen=True, omit_defaults=True):
    typ: str
    alg: str
    crit: Any = None
    """Extensions without which the token must not be used; there are none here."""


class _Kind(Struct, frozen=True):
    type: str = ""
    version: int = 0


class _Outline(Struct, frozen=True):
    """What has to be known of a token before its signature can be verified."""

    iss: str
    nats: _Kind = _Kind()


def decode_token(text: str, kind: type[T]) -> T:
    """Return the claims of a token of this kind, whose signature is good.

    Raises:
        TokenError: it is malformed, of another kind, has an unknown field, or was not signed by the issuer it names.
    """
    if len(text) > _LENGTH_MAX:
        raise TokenError(f"a token of {len(text):,} letters is too long")
    parts = text.split(".")
    if len(parts) != 3:
        raise TokenError("not a token: it must have three parts between dots")
    try:
        header = decode(_bytes_of(parts[0]), type=_Header)
        payload = _bytes_of(parts[1])
        outline = decode(payload, type=_Outline)
        signature = _bytes_of(parts[2])
    except (DecodeError, EncodingError, ValueError, RecursionError) as error:
        raise TokenError(f"not a token: {error}") from None
    if header.typ.upper() != "JWT" or header.alg != _ALGORITHM:
        raise TokenError(f"a token must be signed with {_ALGORITHM}, not {header.alg!r:.40}")
    if header.crit is not None:
        raise TokenError("the header of the token asks for an extension that is not supported")
    if outline.nats.version != _VERSION:
        raise TokenError(f"a token of version {outline.nats.version} is not understood: sign it again with version 2")
    if outline.nats.type != kind.TYPE:
        raise TokenError(f"expected a token of type {kind.TYPE!r}, not {outline.nats.type!r:.40}")
    if kind_of(outline.iss) not in _ISSUERS[kind]:
        raise TokenError(f"a token of type {kind.TYPE!r} cannot be signed by {outline.iss!r:.60}")
    if not verify(outline.iss, text[: -len(parts[2]) - 1].encode(), signature):
        raise TokenError("the signature of the token is wrong")
    try:
        _check_names(payload)
        claims: T = _decoders[kind].decode(payload)  # type: ignore[assignment]  # each decoder returns its own kind
    except (DecodeError, ValueError, RecursionError) as error:
        raise TokenError(f"the token cannot be decoded: {error}") from None
    if kind_of(claims.sub) not in _SUBJECTS[kind]:
        raise TokenError(f"a token of type {kind.TYPE!r} cannot be about {claims.sub!r:.60}")
    claims.check()
    return claims


def _check_names(payload: bytes) -> None:
    """Check that no field is there twice: which of the two counts depends on the reader.

    Raises:
        TokenError: one is.
    """

    def check(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) != len(pairs):
            twice, _ = Counter(name for name, _ in pairs).most_common(1)[0]
            raise TokenError(f"the field {twice!r:.40} appears twice")

    json.loads(payload, object_pairs_hook=check)


def _bytes_of(part: str) -> bytes:
    # Strictly: with a decoder that skips unknown letters, or takes padding, one token would have many texts.
    if part.endswith("="):
        raise ValueError("a part of it is padded")
    return b64decode(part.encode("ascii") + b"=" * (-len(part) % 4), altchars=b"-_", validate=True)


def check_times(claims: Claims, now_s: float) -> None:
    """Check that a token is valid at this time.

    Raises:
        TokenError: it has expired, or is not valid yet.
    """
    if claims.exp and now_s > claims.exp:
        raise TokenError("the token has expired")
    if claims.nbf and now_s < claims.nbf:
        raise TokenError("the token is not valid yet")


def encode_token(claims: Claims, key: KeyPair, now_s: float | None = None) -> str:
    """Sign claims, with the time and an id filled in.

    Raises:
        TokenError: a key of this kind cannot sign them, or they are about the wrong kind of key.
    """
    if key.kind not in _ISSUERS[type(claims)]:
        raise TokenError(f"a token of type {claims.TYPE!r} cannot be signed by the key of an {key.kind}")
    if kind_of(claims.sub) not in _SUBJECTS[type(claims)]:
        raise TokenError(f"a token of type {claims.TYPE!r} cannot be about {claims.sub!r}")
    claims.check()
    issued = claims.iat or int(time.time() if now_s is None else now_s)
    signed = structs.replace(claims, iss=key.public, iat=issued, jti="")
    digest = hashlib.sha256(encode(signed)).digest()
    signed = structs.replace(signed, jti=b32encode(digest).decode().rstrip("="))
    body: dict[str, Any] = decode(encode(signed))
    body["nats"] = {**body.get("nats", {}), "type": claims.TYPE, "version": _VERSION}
    text = f"{_text_of(encode(_Header(typ='JWT', alg=_ALGORITHM)))}.{_text_of(encode(body))}"
    return f"{text}.{_text_of(key.sign(text.encode()))}"


def _text_of(data: bytes) -> str:
    return urlsafe_b64encode(data).decode().rstrip("=")
