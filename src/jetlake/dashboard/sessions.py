"""Sessions of users who logged in: each has a connection as that user, so the permissions of the server decide.

A session ends when it is idle or too old, when its user is removed from the server, or when there are too many. Its
connection, its collector (unless shared) and its files end with it. Failed logins are limited by address and in total.
"""

from __future__ import annotations

import asyncio
import secrets
import shutil
from collections import Counter, OrderedDict, deque
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import msgspec

from jetlake.client import Client
from jetlake.dashboard.changes import Prepared
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.errors import AuthorizationError, ClientConnectionError, JetlakeError

SESSIONS_MAX = 32
"""How many sessions there are at most; of the user with the most, the one that was not used for longest is ended."""
IDLE_S = 30 * 60.0
"""A session that is not used for this long ends."""
LIFE_S = 12 * 3600.0
"""The longest life of a session."""
SWEEP_S = 15.0
"""Time between two looks for sessions that are over."""
FILES_MAX = 2
"""How many files of one session wait to be downloaded."""
PREPARED_MAX, PREPARED_BYTES_MAX = 16, 4 * 1024 * 1024
"""How many changes of one session wait to be confirmed, and how large their requests are together."""
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
        self._prepared: OrderedDict[str, tuple[Prepared, int]] = OrderedDict()
        self.files: OrderedDict[str, Path] = OrderedDict()
        """Files that came of changes, each in a folder of its own, until they are downloaded."""
        self.streams: set[asyncio.Event] = set()
        """Answers that last as long as the session: each ends when its event is set."""

    def keep(self, prepared: Prepared, size: int) -> str:
        """Keep a change until it is confirmed, and give the id to confirm it by. The oldest of too many are dropped.

        Args:
            size: the bytes of the request that asked for it.
        """
        change_id = secrets.token_urlsafe(16)
        self._prepared[change_id] = prepared, size
        while (
            len(self._prepared) > PREPARED_MAX or sum(kept for _, kept in self._prepared.values()) > PREPARED_BYTES_MAX
        ):
            self._prepared.popitem(last=False)
        return change_id

    def take_prepared(self, change_id: str) -> Prepared | None:
        """Return a change to run, which is not kept any longer: a second click does not run it a second time."""
        return self._prepared.pop(change_id, (None, 0))[0]

    async def keep_file(self, file: Path) -> str:
        """Keep a file until it is downloaded, and give its id. The oldest of too many is removed."""
        file_id = secrets.token_urlsafe(16)
        self.files[file_id] = file
        await self.remove_files(FILES_MAX)
        return file_id

    async def remove_files(self, most: int = 0) -> None:
        """Remove files, the oldest first, down to the limit."""
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
        shared: a collector that sessions may share; None = each has its own.
        domain: the JetStream domain, if not the server's own.
        now_s: the time, monotonic.
        is_public: whether everybody may see the shared collector; if not, only the user as whom it is connected.
        watch: makes the collector of a session that shares none.
    """

    def __init__(
        self,
        connect: Connect,
        shared: Collector | None,
        *,
        domain: str = "",
        now_s: Callable[[], float],
        is_public: bool = True,
        watch: Callable[[ServerApi], Collector] = Collector,
    ) -> None:
        self._connect = connect
        self._watch = watch
        self._shared = shared
        self._is_public = is_public
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
            raise LoginError(f"too many failed logins; try again in {wait_s:.0f} s", 429, wait_s)
        # Counted before it is known, so that many at once are no way around the limit.
        settle = self._limit.attempt(peer)
        try:
            client = await self._connect(credentials)
        except (AuthorizationError, ClientConnectionError) as error:
            if isinstance(error, AuthorizationError):
                raise LoginError("wrong user name or password", 401) from None
            settle()
            raise LoginError(f"the server does not respond: {error}", 502) from None
        settle()
        api = ServerApi(client, self._domain)
        session = Session(
            credentials.user or ("token" if credentials.token else "anonymous"),
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
        """Return the shared collector, whose history is longer, to users who may see it; else one of the session."""
        if self._shared is not None:
            mine, its = await _identity(api), await _identity(self._shared.api)
            if mine is not None and its is not None and self._may_share(mine, its):
                return self._shared
        collector = self._watch(api)
        await collector.start()
        return collector

    def _may_share(self, mine: _Identity, its: _Identity) -> bool:
        """Return whether a session sees what the shared collector reads: all of an account do, or its own user only."""
        return mine.account == its.account and (self._is_public or (mine.user != "" and mine.user == its.user))

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
            for closing in session.streams:
                closing.set()
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
            # Many logins of one user end sessions of that user, not of others.
            numbers = Counter(one.user for one in self._sessions.values())
            most = max(numbers.values())
            await self.end(next(one for one in self._sessions.values() if numbers[one.user] == most))


class _Identity(msgspec.Struct, frozen=True):
    """The user of a connection, as the server names it."""

    account: str
    user: str = ""


class _UserInfo(msgspec.Struct, frozen=True):
    data: _Identity


async def _identity(api: ServerApi) -> _Identity | None:
    """Return the user of a connection; None when the server does not say."""
    try:
        answer = await api.client.request(_USER_INFO, b"", timeout=2)
        return msgspec.json.decode(answer.data, type=_UserInfo).data
    except (JetlakeError, msgspec.DecodeError):
        return None


PEER_FAILURES_MAX = 5
"""Failed logins from one address within the period; after them it has to wait."""
ALL_FAILURES_MAX = 50
"""The same from all addresses together."""
PERIOD_S = 60.0
PEERS_MAX = 1024
"""How many addresses are remembered; the one that failed longest ago is forgotten."""


class LoginLimit:
    """Counts failed logins by address.

    Args:
        now_s: the time, monotonic.
    """

    def __init__(self, now_s: Callable[[], float]) -> None:
        self._now_s = now_s
        self._peers: OrderedDict[str, deque[float]] = OrderedDict()
        self._all: deque[float] = deque(maxlen=ALL_FAILURES_MAX)

    def wait_s(self, peer: str) -> float:
        """Return how long an address has to wait until it may try; 0 = not at all."""
        failures = self._peers.get(peer, deque())
        return max(self._left_s(failures, PEER_FAILURES_MAX), self._left_s(self._all, ALL_FAILURES_MAX))

    def _left_s(self, failures: deque[float], most: int) -> float:
        """Return the time until one of the failures is old enough."""
        return max(0.0, failures[-most] + PERIOD_S - self._now_s()) if len(failures) >= most else 0.0

    def attempt(self, peer: str) -> Callable[[], None]:
        """Count a login as failed, and give what takes that back when it did not."""
        now_s = self._now_s()
        failures = self._peers.setdefault(peer, deque(maxlen=PEER_FAILURES_MAX))
        failures.append(now_s)
        self._peers.move_to_end(peer)
        self._all.append(now_s)
        while len(self._peers) > PEERS_MAX:
            self._peers.popitem(last=False)

        def take_back() -> None:
            for counted in (failures, self._all):
                if now_s in counted:
                    counted.remove(now_s)

        return take_back
