"""The viewer of a request: a user with a session, or anyone."""

from __future__ import annotations

import time

from starlette.requests import Request

from jetlake.dashboard.access.sessions import LoginError, Session, Sessions
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.server_api import ServerApi

__all__ = ["Viewer", "Viewers", "cookie_name"]


class Viewer:
    """What a request sees, and through whose connection it asks.

    Args:
        session: None for somebody who did not log in.
    """

    def __init__(self, collector: Collector, api: ServerApi, session: Session | None) -> None:
        self.collector = collector
        self.api = api
        self.session = session

    def is_over(self) -> bool:
        """Return whether the session ended while an answer still runs."""
        return self.session is not None and self.session.is_over(time.monotonic())


class Viewers:
    """Finds the viewer of a request by its cookie.

    Args:
        shared: what everybody sees; None when nothing is shown without a login.
        sessions: None when nobody can log in.
    """

    def __init__(self, shared: Collector | None, sessions: Sessions | None) -> None:
        self.shared = shared
        self.sessions = sessions

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


def cookie_name(request: Request) -> str:
    """Return a name for each port: browsers send cookies to all ports of a machine."""
    return f"jetlake_session_{request.url.port or 80}"
