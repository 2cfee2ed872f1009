"""The HTTP request that opens a WebSocket: which requests are refused, and the client's cookies and address."""

from __future__ import annotations

from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from ipaddress import ip_address
from urllib.parse import urlsplit

from websockets.datastructures import Headers, MultipleValuesError
from websockets.http11 import Request

from jetlake.server.config.options import WebSocketOptions

__all__ = ["forwarded_address", "is_browser", "is_of_leaf_node", "read_cookies", "refusal"]

_DEFAULT_PORTS = {"http": 80, "https": 443}


def is_of_leaf_node(request: Request) -> bool:
    """Return whether the request comes from a leaf node, and not from a client."""
    return request.path.partition("?")[0].endswith("/leafnode")


def refusal(
    request: Request, options: WebSocketOptions, *, is_encrypted: bool, takes_leaf_nodes: bool = False
) -> HTTPStatus | None:
    """Return the status that refuses a request; None when the request may be upgraded."""
    path = request.path.partition("?")[0]
    if path.endswith("/mqtt") or (is_of_leaf_node(request) and not takes_leaf_nodes):
        return HTTPStatus.NOT_FOUND
    origin = _header(request.headers, "Origin")
    if origin and not _is_allowed(origin, _header(request.headers, "Host"), options, is_encrypted=is_encrypted):
        return HTTPStatus.FORBIDDEN
    return None


def _is_allowed(origin: str, host: str, options: WebSocketOptions, *, is_encrypted: bool) -> bool:
    if not options.same_origin and not options.allowed_origins:
        return True
    parsed = _parse_origin(origin)
    if parsed is None:
        return False
    if options.same_origin and parsed != _parse_origin(f"{'https' if is_encrypted else 'http'}://{host}"):
        return False
    return not options.allowed_origins or parsed in map(_parse_origin, options.allowed_origins)


def _parse_origin(url: str) -> tuple[str, str, int] | None:
    """Split an origin into scheme, host and port; None for one that has no host, such as `null`."""
    try:
        parts = urlsplit(url)
        port = parts.port or _DEFAULT_PORTS.get(parts.scheme, 0)
    except ValueError:
        return None
    return (parts.scheme, parts.hostname, port) if parts.hostname else None


def read_cookies(headers: Headers, options: WebSocketOptions) -> dict[str, str]:
    """Read the credentials in the cookies that the options name, by the names of their CONNECT options."""
    cookies: SimpleCookie = SimpleCookie()
    for line in headers.get_all("Cookie"):
        try:
            cookies.load(line)
        except CookieError:
            continue  # as if the browser had not sent it
    named = {
        "user": options.user_cookie,
        "password": options.password_cookie,
        "auth_token": options.token_cookie,
        "jwt": options.jwt_cookie,
    }
    return {option: cookies[name].value for option, name in named.items() if name in cookies}


def forwarded_address(headers: Headers) -> str:
    """Return the client's address as a proxy reports it; empty without a valid one."""
    try:
        address = str(ip_address(_header(headers, "X-Forwarded-For").strip()))
    except ValueError:
        return ""
    return "" if "%" in address else address  # a zone may be any text, and means nothing here


def is_browser(headers: Headers) -> bool:
    """Return whether the client is a page, for which messages are cut into small frames."""
    return _header(headers, "User-Agent").startswith("Mozilla/")


def _header(headers: Headers, name: str) -> str:
    try:
        return headers.get(name) or ""
    except MultipleValuesError:
        return headers.get_all(name)[0]
