"""The viewer of a request, a user with a session or anyone, and the routes of logging in and out."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.sessions import LIFE_S, Credentials, LoginError, Session, Sessions
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.dashboard.web import events, json_answer, json_body

STREAMS_OF_VIEWER_MAX = 12
"""How many streams of events one user has open, in all sessions, or one address without a login."""


class Viewer:
    """What a request sees, and through whose connection it asks.

    Args:
        session: None without a login.
    """

    def __init__(self, collector: Collector, api: ServerApi, session: Session | None) -> None:
        self.collector = collector
        self.api = api
        self.session = session


class Viewers:
    """Finds the viewer of a request by its cookie.

    Args:
        shared: what everybody sees; None when nothing is shown without a login.
        sessions: None without logins.
    """

    def __init__(self, shared: Collector | None, sessions: Sessions | None) -> None:
        self.shared = shared
        self.sessions = sessions
        # By user, or by address without a login; the event of each stream ends it, the oldest first.
        self._streams: dict[tuple[str, str], dict[asyncio.Event, None]] = {}

    async def session(self, request: Request) -> Session | None:
        return None if self.sessions is None else await self.sessions.find(request.cookies.get(cookie_name(request)))

    async def viewer(self, request: Request) -> Viewer:
        """Find the viewer of a request.

        Raises:
            LoginError: nothing is shown without a login.
        """
        session = await self.session(request)
        if session is not None:
            return Viewer(session.collector, session.api, session)
        if self.shared is None:
            raise LoginError("log in first", 401)
        return Viewer(self.shared, self.shared.api, None)

    def events(self, viewer: Viewer, request: Request, items: AsyncGenerator[Any, None]) -> Response:
        """Answer with an event for each item, until the page is closed or the session ends.

        The oldest of too many streams of one user ends; a page that is still open opens it again by itself.
        """
        session, closing = viewer.session, asyncio.Event()
        owner = ("user", session.user) if session is not None else ("address", peer_of(request))
        streams = self._streams.setdefault(owner, {})
        streams[closing] = None
        while len(streams) > STREAMS_OF_VIEWER_MAX:
            oldest = next(iter(streams))
            del streams[oldest]
            oldest.set()
        if session is not None:
            session.streams.add(closing)
            items = _during(session, items)

        def ended() -> None:
            streams.pop(closing, None)
            if not streams and self._streams.get(owner) is streams:
                del self._streams[owner]
            if session is not None:
                session.streams.discard(closing)

        return events(items, request, closing, ended)


async def _during(session: Session, items: AsyncGenerator[Any, None]) -> AsyncGenerator[Any, None]:
    """Yield the items while the session is valid: its user may be removed from the server meanwhile."""
    async with aclosing(items):
        async for item in items:
            if session.is_over(time.monotonic()):
                return
            yield item


def peer_of(request: Request) -> str:
    """Return the address that a request comes from."""
    return request.client.host if request.client else ""


def cookie_name(request: Request) -> str:
    """Return a name for each port: browsers send cookies to all ports of a machine."""
    return f"jetlake_session_{request.url.port or 80}"


CSRF_HEADER = "x-jetlake-csrf"


class _Login(msgspec.Struct, forbid_unknown_fields=True):
    user: str = ""
    password: str = ""
    token: str = ""
    change: bool = False

    def __repr__(self) -> str:
        return "<login>"


def access_routes(viewers: Viewers) -> list[Route]:
    """Make the routes."""

    def described(session: Session | None) -> dict[str, Any]:
        return {
            "user": None if session is None else session.user,
            "may_change": session is not None and session.may_change,
            "csrf": "" if session is None else session.csrf_token,
            "can_login": viewers.sessions is not None,
            "needs_login": session is None and viewers.shared is None,
        }

    async def who(request: Request) -> Response:
        return json_answer(described(await viewers.session(request)))

    async def login(request: Request) -> Response:
        if viewers.sessions is None:
            raise LoginError("login is disabled: this dashboard is read-only", 403)
        wanted = await json_body(request, _Login)
        before = await viewers.session(request)
        session = await viewers.sessions.login(
            Credentials(wanted.user, wanted.password, wanted.token), may_change=wanted.change, peer=peer_of(request)
        )
        if before is not None:
            await viewers.sessions.end(before)
        answer = json_answer(described(session))
        answer.set_cookie(
            cookie_name(request),
            session.token,
            max_age=int(LIFE_S),
            httponly=True,
            samesite="strict",
            secure=request.url.scheme == "https",
        )
        return answer

    async def logout(request: Request) -> Response:
        session = await viewers.session(request)
        if session is not None and viewers.sessions is not None:
            check_csrf(request, session)
            await viewers.sessions.end(session)
        answer = json_answer(described(None))
        answer.delete_cookie(cookie_name(request), httponly=True, samesite="strict")
        return answer

    return [
        Route("/api/session", who),
        Route("/api/login", login, methods=["POST"]),
        Route("/api/logout", logout, methods=["POST"]),
    ]


async def changing_session(viewers: Viewers, request: Request) -> Session:
    """Return the session of a request that changes something.

    Raises:
        LoginError: it has none that may, or does not come from the session's own page.
    """
    session = await viewers.session(request)
    if session is None:
        raise LoginError("read-only: log in to make changes", 403)
    check_csrf(request, session)
    if not session.may_change:
        raise LoginError("read-only: log in again and allow changes", 403)
    return session


def check_csrf(request: Request, session: Session) -> None:
    """Refuse a request that does not come from the session's own page.

    Raises:
        LoginError: the token that only this page knows is not there, or is another one.
    """
    # Compared as the random text that it is: equal or not, its length is no secret.
    if not secrets.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), session.csrf_token.encode()):
        raise LoginError("the CSRF token is missing or wrong; reload the page", 403)


async def explain_login(_request: Request, error: Exception) -> Response:
    """Return a refused login as one sentence, with the time to wait."""
    assert isinstance(error, LoginError)
    answer = json_answer({"error": str(error)}, error.status)
    if error.wait_s:
        answer.headers["retry-after"] = str(int(error.wait_s) + 1)
    return answer
