"""The requests of the system account about accounts' tokens: update, look up, list, delete, as nsc sends them."""

from __future__ import annotations

from functools import partial
from typing import Any

from msgspec.json import encode

from jetlake.auth.claims import GenericClaims
from jetlake.auth.keys import ACCOUNT, kind_of
from jetlake.auth.tokens import check_times, decode_token
from jetlake.errors import TokenError
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.jwt.operators import Operators
from jetlake.server.shell.connection.server_info import ServerInfo

__all__ = ["AccountRequests"]

_SECOND_NS = 1_000_000_000


class AccountRequests:
    """Answers the requests in the system account."""

    def __init__(self, operators: Operators, account: Account, info: ServerInfo, clock: Clock) -> None:
        self._operators = operators
        self._account = account
        self._info = info
        self._clock = clock
        account.listen(b"$SYS.REQ.ACCOUNT.*.CLAIMS.UPDATE", partial(self._update, 3))
        account.listen(b"$SYS.ACCOUNT.*.CLAIMS.UPDATE", partial(self._update, 2))
        if operators.folder is not None:
            account.listen(b"$SYS.REQ.CLAIMS.UPDATE", partial(self._update, None))
            account.listen(b"$SYS.REQ.ACCOUNT.*.CLAIMS.LOOKUP", self._look_up)
            account.listen(b"$SYS.REQ.CLAIMS.PACK", self._pack)
            account.listen(b"$SYS.REQ.CLAIMS.LIST", self._list)
            account.listen(b"$SYS.REQ.CLAIMS.DELETE", self._delete)

    def _update(
        self,
        index: int | None,
        subject: bytes,
        reply: bytes,
        header: bytes,
        payload: bytes,
        origin: Subscriber | None,
    ) -> None:
        """Take over a token; `index` is the place of the account in the subject, which need not name it."""
        name = subject.split(b".")[index].decode("utf-8", "replace") if index is not None else ""
        try:
            updated = self._operators.update(_text(payload), name)
        except TokenError as error:
            self._refuse(reply, "jwt update resulted in error", error, name or "n/a")
        else:
            self._confirm(reply, "jwt updated", updated)

    def _look_up(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        token = self._operators.tokens.get(subject.split(b".")[3].decode("utf-8", "replace"), "")
        if reply:
            self._account.publish(reply, b"", b"", token.encode())

    def _pack(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        """Send all tokens, a message each, and an empty one at the end."""
        if reply:
            for name, token in sorted(self._operators.tokens.items()):
                self._account.publish(reply, b"", b"", f"{name}|{token}".encode())
            self._account.publish(reply, b"", b"", b"")

    def _list(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        self._answer(reply, {"data": sorted(self._operators.tokens)})

    def _delete(self, subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        signer = ""
        try:
            claims = decode_token(_text(payload), GenericClaims)
            signer = claims.sub
            names = self._names_to_delete(claims)
        except TokenError as error:
            self._refuse(reply, f"delete accounts request by {signer} failed", error)
            return
        errors = []
        for name in names:
            try:
                self._operators.delete(name)
            except TokenError as error:
                errors.append(str(error))
        done = f"deleted {len(names) - len(errors)} accounts"
        if errors:
            self._refuse(reply, f"{done}, failed for {len(errors)}", TokenError("\n".join(errors)))
        else:
            self._confirm(reply, done)

    def _names_to_delete(self, claims: GenericClaims) -> list[str]:
        operators = self._operators
        assert operators.folder is not None
        if not operators.folder.allows_delete:
            raise TokenError("delete must be enabled in server config")
        if claims.sub != claims.iss:
            raise TokenError("not self signed")
        if claims.iss not in operators.operator_keys:
            raise TokenError("not trusted")
        check_times(claims, self._clock.now_ns() / _SECOND_NS)
        names = claims.nats.get("accounts")
        if not isinstance(names, list) or not all(isinstance(name, str) and kind_of(name) == ACCOUNT for name in names):
            raise TokenError("malformed request")
        if operators.system_account in names:
            raise TokenError("not allowed to delete system account")
        return names

    def _confirm(self, reply: bytes, message: str, name: str = "") -> None:
        self._answer(reply, {"data": {**({"account": name} if name else {}), "code": 200, "message": message}})

    def _refuse(self, reply: bytes, message: str, error: TokenError, name: str = "") -> None:
        problem = {**({"account": name} if name else {}), "code": 500, "description": f"{message} - {error}"}
        self._answer(reply, {"error": problem})

    def _answer(self, reply: bytes, answer: dict[str, Any]) -> None:
        if reply:
            self._account.publish(reply, b"", b"", encode({"server": self._info.describe_sender(), **answer}))


def _text(payload: bytes) -> str:
    return payload.decode("ascii", "replace").strip()
