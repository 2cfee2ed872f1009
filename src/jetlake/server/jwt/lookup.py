"""Accounts by URL: an account's token is at the resolver's URL with the account's public key behind it.

What always holds: an answer counts for nothing until its signature leads back to a trusted operator; a look-up ends
within its time, whatever the other side does, and keeps nobody waiting but the clients of that account; clients that
ask for the same account share one look-up.
"""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from typing import TYPE_CHECKING
from urllib.parse import unquote, urljoin, urlsplit

from jetlake.auth.claims import AccountClaims
from jetlake.auth.keys import ACCOUNT, kind_of
from jetlake.errors import ConfigError, TokenError

if TYPE_CHECKING:
    from jetlake.server.jwt.operators import Operators

__all__ = ["AccountLookup"]

# A little less than a client has for its login.
_TIMEOUT_S = 1.9
_TOKEN_BYTES_MAX = 1024 * 1024
_HEAD_BYTES_MAX = 16 * 1024
_REDIRECTS_MAX = 3
# Accounts that are looked up at a time. Strangers can have accounts looked up that do not exist: beyond this they are
# turned away at once, and so is the client of an account that does.
_LOOKUPS_MAX = 64
_MOVED = (301, 302, 303, 307, 308)


class AccountLookup:
    """Looks accounts up, and hands them to the operators.

    Args:
        url: of all accounts; it ends with a slash.
    """

    def __init__(self, url: str, operators: Operators) -> None:
        self._url = url
        self._operators = operators
        self._tls = ssl.create_default_context() if url.startswith("https:") else None
        self._running: dict[str, asyncio.Task[None]] = {}

    async def check(self) -> None:
        """Check that there is a server at the URL.

        Raises:
            ConfigError: it does not answer with status 200.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                await self._get(self._url)
        except (TokenError, TimeoutError) as error:
            raise ConfigError(f"resolver: {error or _timed_out(self._url)}") from None

    async def resolve(self, name: str) -> None:
        """Look an account up, and the accounts that it imports from; the operators have it when this returns.

        Raises:
            TokenError: there is no answer in time, or not the token of an account that an operator signed.
        """
        task = self._running.get(name)
        if task is None:
            if kind_of(name) != ACCOUNT:
                raise TokenError(f"{name!r:.60} is not the public key of an account")
            if len(self._running) >= _LOOKUPS_MAX:
                raise TokenError(f"account {name} is not looked up: {_LOOKUPS_MAX} others are")
            task = self._running[name] = asyncio.create_task(self._resolve(name))
            task.add_done_callback(lambda _task: self._running.pop(name, None))
        # Others may wait for it, and the next attempt of this client may find it done.
        await asyncio.shield(task)

    async def _resolve(self, name: str) -> None:
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                token = (await self._get(self._url + name)).decode("ascii", "replace").strip()
                claims = self._operators.verify(token, name)
                await self._resolve_imports(claims)
        except TimeoutError:
            raise TokenError(_timed_out(self._url + name)) from None
        self._operators.update(token, name)

    async def _resolve_imports(self, claims: AccountClaims) -> None:
        """Look up the accounts that an account imports from; where one is not found, the import is left out."""
        known = self._operators.accounts.keys() | self._running.keys()
        missing = {entry.account for entry in claims.nats.imports or ()} - known
        await asyncio.gather(*map(self.resolve, missing), return_exceptions=True)

    async def close(self) -> None:
        """Give up all look-ups."""
        running = list(self._running.values())
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)

    async def _get(self, url: str, redirects: int = _REDIRECTS_MAX) -> bytes:
        """Return what is at a URL.

        Raises:
            TokenError: there is nothing, or too much.
        """
        try:
            status, location, body = await self._request(url)
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise TokenError(f"could not fetch {_shown(url)!r}: {error or type(error).__name__}") from None
        if status in _MOVED and location and redirects:
            return await self._get(location, redirects - 1)
        if status != 200:
            raise TokenError(f"could not fetch {_shown(url)!r}: status {status}")
        return body

    async def _request(self, url: str) -> tuple[int, str, bytes]:
        """Return the status of an answer, where it says to look instead, and its body."""
        if not url.isascii() or not url.isprintable() or " " in url:
            raise ValueError("it is no URL")
        parts = urlsplit(url)
        is_secure = parts.scheme == "https"
        if not parts.hostname or parts.scheme not in (("https",) if self._tls else ("http", "https")):
            raise ValueError("it is not a URL with http or https, or leads from https to http")
        tls = (self._tls or ssl.create_default_context()) if is_secure else None
        port = parts.port or (443 if is_secure else 80)
        reader, writer = await asyncio.open_connection(parts.hostname, port, ssl=tls, limit=_HEAD_BYTES_MAX)
        try:
            # Of HTTP/1.0, so that the answer comes in one piece and ends with the connection.
            target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
            lines = [f"GET {target} HTTP/1.0", f"Host: {parts.netloc.rpartition('@')[2]}", "User-Agent: jetlake"]
            if parts.username is not None:
                secret = f"{unquote(parts.username)}:{unquote(parts.password or '')}"
                lines.append(f"Authorization: Basic {b64encode(secret.encode()).decode()}")
            writer.write("\r\n".join([*lines, "\r\n"]).encode())
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
            version, _, rest = head[0].partition(" ")
            if not version.startswith("HTTP/1.") or not rest[:3].isdecimal():
                raise ValueError("it does not answer with HTTP")
            fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in head)}
            location = urljoin(url, fields["location"]) if "location" in fields else ""
            body = b""
            while data := await reader.read(64 * 1024):
                body += data
                if len(body) > _TOKEN_BYTES_MAX:
                    raise ValueError("the answer is too long")
            if len(body) < int(fields.get("content-length", "0")):
                raise ValueError("the answer is incomplete")
            return int(rest[:3]), location, body
        finally:
            writer.transport.abort()


def _shown(url: str) -> str:
    """Return a URL without its password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "the URL"
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()[:300]


def _timed_out(url: str) -> str:
    return f"could not fetch {_shown(url)!r}: no answer within {_TIMEOUT_S} s"
