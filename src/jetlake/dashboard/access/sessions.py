"""Sessions of people who logged in: each has a connection as that user, so that the server's permissions decide."""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from jetlake.client import Client
from jetlake.dashboard.access.login_limit import LoginLimit
from jetlake.dashboard.changes.prepared import Prepared
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import AuthorizationError, ClientConnectionError, JetlakeError

__all__ = ["IDLE_S", "LIFE_S", "SESSIONS_MAX", "Connect", "Credentials", "LoginError", "Session", "Sessions"]

SESSIONS_MAX = 32
"""How many sessions there are at most; the one that was not used for longest is ended."""
IDLE_S = 30 * 60.0
"""A session that is not used for this long ends."""
LIFE_S = 12 * 3600.0
"""The longest life of a session."""
SWEEP_S = 15.0
"""Time between two looks for sessions that are over."""
FILES_MAX = 2
"""How many files of one session wait to be downloaded."""
PREPARED_MAX = 16
"""How many changes of one session wait to be confirmed."""
_USER_INFO = "$SYS.REQ.USER.INFO"


class Credentials(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a person logs in with: a name and a password, or a token."""

    user: str = ""
    password: str = ""
    token: str = ""

    def given(self) -> dict[str, Any]:
        """Return the options of `jetlake.connect` that log in so."""
        return {name: value for name, value in msgspec.structs.asdict(self).items() if value}

    def __repr__(self) -> str:
        return "<Credentials>"  # never in a log or a traceback


Connect = Callable[[Credentials], Awaitable[Client]]
"""Opens a connection to the server as the user of these credentials."""


class LoginError(JetlakeError):
    """A login that was refused, with the status that says why."""

    def __init__(self, text: str, status: int, wait_s: float = 0.0) -> None:
        super().__init__(text)
        self.status = status
        self.wait_s = wait_s


class Session:
    """One login.

    Args:
        user: the name that is shown.
        may_change: asked for at the login; without it nothing is changed, whatever the user's permissions are.
        collector: whose samples the session sees.
    """

    def __init__(self, user: str, api: ServerApi, collector: Collector, *, may_change: bool, now_s: float) -> None:
        self.token = secrets.token_urlsafe(32)
        self.csrf_token = secrets.token_urlsafe(32)
        self.user = user
        self.api = api
        self.collector = collector
        self.may_change = may_change
        self.began_s = self.used_s = now_s
        self.prepared: OrderedDict[str, Prepared] = OrderedDict()
        self.files: OrderedDict[str, Path] = OrderedDict()
        """Files that came of changes, each in a folder of its own, until they are downloaded."""

    def keep(self, prepared: Prepared) -> str:
        """Keep a change until it is confirmed, and give the id to confirm it by. The oldest of too many is dropped."""
        change_id = secrets.token_urlsafe(16)
        self.prepared[change_id] = prepared
        while len(self.prepared) > PREPARED_MAX:
            self.prepared.popitem(last=False)
        return change_id

    async def keep_file(self, file: Path) -> str:
        """Keep a file until it is downloaded, and give its id. The oldest of too many is removed."""
        file_id = secrets.token_urlsafe(16)
        self.files[file_id] = file
        await self.remove_files(FILES_MAX)
        return file_id

    async def remove_files(self, most: int = 0) -> None:
        """Remove files, the oldest first, until there are so many."""
        while len(self.files) > most:
            _, file = self.files.popitem(last=False)
            await asyncio.to_thread(shutil.rmtree, file.parent, ignore_errors=True)

    def is_over(self, now_s: float) -> bool:
        """Return whether the session is too old or idle for too long, or its user was removed from the server."""
        client = self.api.client
        is_refused = not client.is_connected and isinstance(client.last_error, AuthorizationError)
        return is_refused or client.is_closed or now_s - self.used_s > IDLE_S or now_s - self.began_s > LIFE_S


class Sessions:
    """All sessions of one dashboard.

    Args:
        connect: opens a connection as a user.
        shared: the collector that everybody sees; None when nothing is shown without a login.
        domain: the JetStream domain, if not the server's own.
        now_s: the time, monotonic.
    """

    def __init__(
        self, connect: Connect, shared: Collector | None, *, domain: str = "", now_s: Callable[[], float]
    ) -> None:
        self._connect = connect
        self._shared = shared
        self._domain = domain
        self._now_s = now_s
        self._limit = LoginLimit(now_s)
        self._sessions: OrderedDict[str, Session] = OrderedDict()
        self._sweeping: asyncio.Task[None] | None = None

    async def login(self, credentials: Credentials, *, may_change: bool, peer: str) -> Session:
        """Begin a session.

        Args:
            peer: the address that asks; one that failed too often has to wait.

        Raises:
            LoginError: the server knows no such user, or the address has to wait.
        """
        wait_s = self._limit.wait_s(peer)
        if wait_s > 0:
            raise LoginError(f"too many logins failed: try again in {wait_s:.0f} s", 429, wait_s)
        # Counted before it is known, so that many at once are no way around the limit.
        settle = self._limit.attempt(peer)
        try:
            client = await self._connect(credentials)
        except (AuthorizationError, ClientConnectionError) as error:
            if isinstance(error, AuthorizationError):
                raise LoginError("the server knows no such user, or the password is wrong", 401) from None
            settle()
            raise LoginError(f"the server does not answer: {error}", 502) from None
        settle()
        api = ServerApi(client, self._domain)
        session = Session(
            credentials.user or ("token" if credentials.token else "anybody"),
            api,
            await self._collector(api),
            may_change=may_change,
            now_s=self._now_s(),
        )
        self._sessions[session.token] = session
        await self._end_some()
        if self._sweeping is None or self._sweeping.done():
            self._sweeping = asyncio.get_running_loop().create_task(self._sweep())
        return session

    async def _sweep(self) -> None:
        """End expired sessions also without requests, as long as there are sessions."""
        while self._sessions:
            await asyncio.sleep(SWEEP_S)
            await self._end_some()

    async def _collector(self, api: ServerApi) -> Collector:
        """Return the shared collector for users of its account: its history is longer; else one of the session."""
        if self._shared is not None:
            account = await _account(api)
            if account is not None and account == await _account(self._shared.api):
                return self._shared
        collector = Collector(api)
        await collector.start()
        return collector

    async def find(self, token: str | None) -> Session | None:
        """Return the session of a cookie; None when there is none, or it is over. Looking counts as using."""
        session = self._sessions.get(token) if token else None
        if session is None:
            return None
        if session.is_over(self._now_s()):
            await self.end(session)
            return None
        session.used_s = self._now_s()
        self._sessions.move_to_end(session.token)
        return session

    async def end(self, session: Session) -> None:
        """Close the session's connection, and forget it."""
        if self._sessions.pop(session.token, None) is not None:
            if session.collector is not self._shared:
                await session.collector.stop()
            await session.api.client.close()
            await session.remove_files()

    async def _end_some(self) -> None:
        """End expired sessions, and those above the limit."""
        now_s = self._now_s()
        for session in [one for one in self._sessions.values() if one.is_over(now_s)]:
            await self.end(session)
        while len(self._sessions) > SESSIONS_MAX:
            await self.end(next(iter(self._sessions.values())))


async def _account(api: ServerApi) -> str | None:
    """Return the account of a connection's user; None when the server does not say."""
    try:
        answer = await api.client.request(_USER_INFO, b"", timeout=2)
        said = msgspec.json.decode(answer.data)
        return str(said["data"]["account"])
    except (JetlakeError, msgspec.DecodeError, KeyError, TypeError):
        return None
