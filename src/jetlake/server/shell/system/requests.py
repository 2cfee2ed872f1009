"""The requests under `$SYS.REQ.`: who may ask what; the first request loads the answers."""

from __future__ import annotations

from functools import partial

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.store.steps import Steps

__all__ = ["SystemRequests"]

# Requests of an account that is not the system's: about the account itself.
_OWN = {
    b"$SYS.REQ.ACCOUNT.PING.CONNZ": "CONNZ",
    b"$SYS.REQ.SERVER.PING.CONNZ": "CONNZ",
    b"$SYS.REQ.ACCOUNT.PING.STATZ": "STATZ",
}


class SystemRequests:
    """Answers the requests of all accounts."""

    def __init__(self, server: ServerView) -> None:
        self._server = server

    def listen(self, account: Account) -> None:
        """Answer the requests of an account: the system account may ask about everything, another about itself."""
        account.listen(b"$SYS.REQ.USER.INFO", partial(self._describe_user, account))
        if account.name != self._server.settings.options.system_account:
            for subject, name in _OWN.items():
                account.listen(subject, partial(self._describe_own, account, name))
            return
        server_id = self._server.info.id.encode()
        account.listen(b"$SYS.REQ.SERVER.PING", partial(self._describe_server, account, False))
        account.listen(b"$SYS.REQ.SERVER.PING.*", partial(self._describe_server, account, False))
        account.listen(b"$SYS.REQ.SERVER.%b.*" % server_id, partial(self._describe_server, account, True))
        account.listen(b"$SYS.REQ.ACCOUNT.*.*", partial(self._describe_account, account))
        account.listen(b"$JS.API.ACCOUNT.PURGE.*", partial(self._purge, account))

    def _describe_user(
        self, account: Account, subject: bytes, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None
    ) -> None:
        from jetlake.server.shell.system.answers import user_answer

        _reply(account, reply, user_answer(self._server, account, origin))

    def _describe_own(
        self,
        account: Account,
        name: str,
        subject: bytes,
        reply: bytes,
        header: bytes,
        body: bytes,
        origin: Subscriber | None,
    ) -> None:
        from jetlake.server.shell.system.answers import account_answer

        self._reply_in_steps(account, reply, account_answer(self._server, account.name, name, body))

    def _describe_account(
        self, account: Account, subject: bytes, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None
    ) -> bool:
        from jetlake.server.shell.system.answers import ACCOUNT_REPORTS, account_answer

        name, report = subject.decode("utf-8", "replace").rsplit(".", 2)[1:]
        if report not in ACCOUNT_REPORTS:
            return False
        self._reply_in_steps(account, reply, account_answer(self._server, name, report, body))
        return True

    def _describe_server(
        self,
        account: Account,
        is_addressed: bool,
        subject: bytes,
        reply: bytes,
        header: bytes,
        body: bytes,
        origin: Subscriber | None,
    ) -> bool:
        from jetlake.server.shell.system.answers import SERVER_REPORTS, server_answer
        from jetlake.server.shell.system.commands import COMMANDS, run_command

        name = subject.decode("utf-8", "replace").rpartition(".")[2]
        if name == "PING":
            name = "STATSZ"
        if is_addressed and name in COMMANDS:
            _reply(account, reply, run_command(self._server, name, body))
        elif name in SERVER_REPORTS:
            self._reply_in_steps(account, reply, server_answer(self._server, name, body))
        else:
            return False
        return True

    def _purge(
        self, account: Account, subject: bytes, reply: bytes, header: bytes, body: bytes, origin: Subscriber | None
    ) -> None:
        from jetlake.server.shell.system.commands import purge_account

        _reply(account, reply, purge_account(self._server, subject.rpartition(b".")[2].decode("utf-8", "replace")))

    def _reply_in_steps(self, account: Account, reply: bytes, answer: Steps[bytes | None]) -> None:
        """Answer at once if that is short, otherwise in later turns."""

        def work() -> Steps[None]:
            _reply(account, reply, (yield from answer))

        self._server.engine_loop.work.begin(work())
        self._server.engine_loop.schedule()


def _reply(account: Account, reply: bytes, answer: bytes | None) -> None:
    if reply and answer is not None:
        account.publish(reply, b"", b"", answer)
