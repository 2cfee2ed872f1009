"""The service's half of an authorization callout (NATS ADR-26): the question of a server, and the answer to it."""

from __future__ import annotations

import time
from collections.abc import Iterable

from msgspec import structs

from jetlake.auth.claims import (
    AuthorizationRequest,
    AuthorizationResponse,
    ClientInformation,
    ConnectInformation,
    Permission,
    UnlimitedUser,
    UserClaims,
)
from jetlake.auth.keys import CurveKey, KeyPair
from jetlake.auth.tokens import decode_token, encode_token
from jetlake.errors import TokenError

__all__ = ["SUBJECT", "Question", "read_question"]

SUBJECT = "$SYS.REQ.USER.AUTH"
"""The subject that a service listens on, in its own account."""


class Question:
    """A server asks whether a client may connect.

    Attributes:
        client: the client, as the server knows it.
        connect: what the client's CONNECT said, credentials included.
        request: all of it.
    """

    def __init__(self, request: AuthorizationRequest, xkey: str, curve: CurveKey | None) -> None:
        self.request = request
        self.client: ClientInformation = request.nats.client_info
        self.connect: ConnectInformation = request.nats.connect_opts
        self._xkey = xkey
        self._curve = curve

    def allow(
        self,
        key: KeyPair,
        account: str = "",
        *,
        name: str = "",
        publish: Iterable[str] = (),
        subscribe: Iterable[str] = (),
        expires_s: float | None = None,
        issuer_account: str = "",
        account_key: KeyPair | None = None,
    ) -> bytes:
        """Return the answer that lets the client in.

        Args:
            key: signs the answer: the issuer of the configuration, or the key of the service's account.
            account: the account that the client gets into, where accounts are configured; with operators the account of
                `account_key`.
            name: the client's name in logs and monitoring.
            publish, subscribe: the subjects that it may use; empty = all.
            expires_s: the seconds after which the connection ends.
            issuer_account: the account, where `account_key` is one of its signing keys.
            account_key: signs the user; default the same as `key`.
        """
        now_s = int(time.time())
        user = UserClaims(
            sub=self.request.nats.user_nkey,
            name=name,
            aud=account,
            exp=now_s + max(int(expires_s), 1) if expires_s is not None else 0,
            nats=UnlimitedUser(
                pub=Permission(allow=tuple(publish)),
                sub=Permission(allow=tuple(subscribe)),
                issuer_account=issuer_account,
            ),
        )
        return self._answer(key, jwt=encode_token(user, account_key or key, now_s))

    def refuse(self, key: KeyPair, reason: str) -> bytes:
        """Return the answer that keeps the client out; the reason is for the server's log."""
        return self._answer(key, error=reason or "refused")

    def _answer(self, key: KeyPair, jwt: str = "", error: str = "") -> bytes:
        response = AuthorizationResponse(sub=self.request.nats.user_nkey, aud=self.request.nats.server_id.id)
        body = structs.replace(response.nats, jwt=jwt, error=error)
        text = encode_token(structs.replace(response, nats=body), key).encode()
        return self._curve.seal(text, self._xkey) if self._curve is not None and self._xkey else text


def read_question(payload: bytes, xkey: str = "", curve: CurveKey | None = None) -> Question:
    """Read the request of a server.

    Args:
        payload: the message.
        xkey: the server's curve key, in the header `Nats-Server-Xkey`; empty = the message is not sealed.
        curve: the service's curve key.

    Raises:
        TokenError: it cannot be opened, or no server signed it.
    """
    if xkey:
        opened = curve.open(payload, xkey) if curve is not None else None
        if opened is None:
            raise TokenError("the request is sealed for another key")
        payload = opened
    elif curve is not None:
        raise TokenError("the request is not sealed")
    request = decode_token(payload.decode("ascii", "replace"), AuthorizationRequest)
    if request.iss != request.nats.server_id.id:
        raise TokenError("the request was not signed by the server that it names")
    return Question(request, xkey, curve)
