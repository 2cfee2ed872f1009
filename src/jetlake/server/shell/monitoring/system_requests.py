"""Monitoring over NATS: who may ask for what under `$SYS.REQ.`; the answers are loaded with the first question."""

from __future__ import annotations

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["answer_system_requests"]

# What the system account may ask: about the whole server, any server or this one by its id.
_SYSTEM = ("VARZ", "CONNZ", "JSZ", "SUBSZ", "ACCOUNTZ", "HEALTHZ", "STATSZ", "IDZ")

# What the clients of any other account may ask: about their own account.
_ACCOUNT = {
    "$SYS.REQ.ACCOUNT.PING.CONNZ": "OWN CONNZ",
    "$SYS.REQ.SERVER.PING.CONNZ": "OWN CONNZ",
    "$SYS.REQ.ACCOUNT.PING.STATZ": "OWN STATZ",
}


def answer_system_requests(server: ServerView) -> None:
    """Answer such requests in all accounts from now on."""
    for account in server.accounts.values():
        if account.name == server.settings.options.system_account:
            _listen(server, account, "$SYS.REQ.SERVER.PING", "STATSZ")
            for name in _SYSTEM:
                for target in ("PING", server.info.id):
                    _listen(server, account, f"$SYS.REQ.SERVER.{target}.{name}", name)
        else:
            for subject, name in _ACCOUNT.items():
                _listen(server, account, subject, name)
        _listen(server, account, "$SYS.REQ.USER.INFO", "USER")


def _listen(server: ServerView, account: Account, subject: str, name: str) -> None:
    def handle(subject: bytes, reply: bytes, header: bytes, payload: bytes, origin: Subscriber | None) -> None:
        if reply:
            from jetlake.server.shell.monitoring.system_answers import answer

            account.publish(reply, b"", b"", answer(server, account, name, payload, origin))

    account.listen(subject.encode(), handle)
