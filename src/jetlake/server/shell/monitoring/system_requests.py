"""Monitoring over NATS: the requests under `$SYS.REQ.` of each account; the first one loads the reports."""

from __future__ import annotations

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.monitoring.server_view import ServerView

__all__ = ["answer_system_requests"]

# Requests of the system account: about the whole server, to any server or to this one by its id.
_SYSTEM = ("VARZ", "CONNZ", "JSZ", "SUBSZ", "ACCOUNTZ", "HEALTHZ", "STATSZ", "IDZ")

# Requests of every other account: about the account itself.
_ACCOUNT = {
    "$SYS.REQ.ACCOUNT.PING.CONNZ": "OWN CONNZ",
    "$SYS.REQ.SERVER.PING.CONNZ": "OWN CONNZ",
    "$SYS.REQ.ACCOUNT.PING.STATZ": "OWN STATZ",
}


def answer_system_requests(server: ServerView) -> None:
    """Answer the requests of all accounts."""
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
