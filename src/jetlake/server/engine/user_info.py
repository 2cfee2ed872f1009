"""`$SYS.REQ.USER.INFO`: a client asks who it is to this server."""

from __future__ import annotations

from typing import TYPE_CHECKING

from jetlake.model.codec import encode
from jetlake.model.times import format_time

if TYPE_CHECKING:
    from jetlake.server.engine.account import Account
    from jetlake.server.engine.engine import Engine
    from jetlake.server.engine.subscription import Subscriber

__all__ = ["answer_user_info"]

_SUBJECT = b"$SYS.REQ.USER.INFO"


def answer_user_info(engine: Engine, account: Account) -> None:
    """Answer such requests in the account from now on."""

    def answer(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        if not reply:
            return
        options = engine.options
        user = origin.client_info().get("user", "") if origin is not None else ""
        response = {
            "server": {
                "name": options.server_name,
                "host": options.host,
                "id": options.server_id,
                "ver": options.version,
                "jetstream": True,
                "time": format_time(engine.clock.now_ns()),
            },
            "data": {"user": user, "account": account.name, "account_name": account.name},
        }
        account.publish(reply, b"", b"", encode(response))

    account.listen(_SUBJECT, answer)
