"""The routes of logging in and out."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from jetlake.dashboard.access.sessions import LIFE_S, Credentials, LoginError, Session
from jetlake.dashboard.access.viewers import Viewers, cookie_name
from jetlake.dashboard.web.answers import json_answer
from jetlake.dashboard.web.body import json_body

__all__ = ["access_routes", "check_csrf", "explain_login"]

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
            raise LoginError("nobody can log in here: this page only reads", 403)
        wanted = await json_body(request, _Login)
        before = await viewers.session(request)
        peer = request.client.host if request.client else ""
        session = await viewers.sessions.login(
            Credentials(wanted.user, wanted.password, wanted.token), may_change=wanted.change, peer=peer
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


def check_csrf(request: Request, session: Session) -> None:
    """Refuse a request that does not come from the session's own page.

    Raises:
        LoginError: the token that only this page knows is not there, or is another one.
    """
    # Compared as the random text that it is: equal or not, its length is no secret.
    if not secrets.compare_digest(request.headers.get(CSRF_HEADER, "").encode(), session.csrf_token.encode()):
        raise LoginError("this request does not come from the page of the session", 403)


async def explain_login(_request: Request, error: Exception) -> Response:
    """Return a refused login as one sentence, with the time to wait."""
    assert isinstance(error, LoginError)
    answer = json_answer({"error": str(error)}, error.status)
    if error.wait_s:
        answer.headers["retry-after"] = str(int(error.wait_s) + 1)
    return answer
