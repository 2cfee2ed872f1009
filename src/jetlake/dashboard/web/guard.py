"""Refuses requests of other sites, and adds the headers that keep a browser strict."""

from __future__ import annotations

from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

__all__ = ["Guard"]

_SECURITY_HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'self'; object-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
]


class Guard:
    """Wraps the application: what comes under a foreign name or from a page of another site does not reach it.

    Args:
        hosts: names under which the pages may be asked for besides addresses of this machine.
    """

    def __init__(self, app: ASGIApp, hosts: frozenset[str]) -> None:
        self._app = app
        self._hosts = hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], *_SECURITY_HEADERS]
            await send(message)

        app = self._app if self._is_welcome(scope) else JSONResponse({"error": "this host is not served"}, 403)
        await app(scope, receive, send_guarded)

    def _is_welcome(self, scope: Scope) -> bool:
        headers = dict(scope["headers"])
        authority = headers.get(b"host", b"").decode("latin-1")
        host = _host_name(authority)
        if not (_is_address_or_local(host) or host in self._hosts):
            return False
        origin = headers.get(b"origin")
        if scope["method"] in ("GET", "HEAD"):
            return origin is None or _host_name(origin.decode("latin-1").rpartition("//")[2]) == host
        # A change comes from our own page or not at all. The port counts: on one machine, cookies are shared by all.
        return origin is not None and origin.decode("latin-1").rpartition("//")[2] == authority


def _host_name(authority: str) -> str:
    """Return the name in `name:port` or `[address]:port`."""
    if authority.startswith("["):
        return authority[1:].partition("]")[0]
    return authority.partition(":")[0]


def _is_address_or_local(host: str) -> bool:
    """Tell whether a host is an address or local: only other names can be made to point elsewhere."""
    return host == "localhost" or ":" in host or host.replace(".", "").isdigit()
