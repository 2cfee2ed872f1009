"""Credentials: creds files, nkey seeds and their signatures, and logins that a function gives at each connect."""

from __future__ import annotations

import base64
from collections.abc import Awaitable, Callable
from inspect import isawaitable
from pathlib import Path
from typing import Any, TypeVar

from jetlake import platform
from jetlake.errors import ClientConnectionError, ConnectTimeoutError, InvalidOptionError, JetlakeError
from jetlake.model.credentials import split_credentials

R = TypeVar("R")

Secret = str | Callable[[], str | Awaitable[str]]
"""A text, or a plain or coroutine function that gives it at each connect."""

KeySource = str | Path | Callable[[], str | Path | Awaitable[str | Path]]
"""A text or the path of its file, or a plain or coroutine function that gives one of them at each connect."""


class Credentials:
    """A seed that signs the server's nonce, and the JWT that it belongs to, if there is one.

    Raises:
        InvalidOptionError: the seed is none, or the package that signs is not installed.
    """

    __slots__ = ("_seed", "jwt", "public_key")

    def __init__(self, seed: bytes, jwt: str = "") -> None:
        self._seed = seed
        self.jwt = jwt
        pair = _key_pair(seed)
        self.public_key: str = pair.public_key.decode()
        pair.wipe()

    def sign(self, nonce: str) -> str:
        """Return the signature of the nonce as CONNECT carries it."""
        pair = _key_pair(self._seed)
        try:
            signature: bytes = pair.sign(nonce.encode())
        finally:
            pair.wipe()
        return base64.urlsafe_b64encode(signature).rstrip(b"=").decode()

    def __repr__(self) -> str:
        return f"Credentials({self.public_key})"


def _key_pair(seed: bytes):  # type: ignore[no-untyped-def]  # the nkeys package has no types
    try:
        import nkeys
    except ImportError:
        raise InvalidOptionError(
            "nkey seeds and creds files need the package nkeys: pip install 'jetlake[client]'"
        ) from None
    try:
        return nkeys.from_seed(bytearray(seed))
    except Exception as error:  # the package raises whatever its parts raise
        raise InvalidOptionError(f"not an nkey seed ({type(error).__name__})") from None


def read_seed(seed: str | Path) -> Credentials:
    """Return an nkey seed (`SU…`), or the path of a file that holds one.

    Raises:
        InvalidOptionError: the file cannot be read or holds no seed.
    """
    text = seed if isinstance(seed, str) and _looks_like_seed(seed) else _read_file("nkey_seed", seed)
    for line in text.splitlines():
        if _looks_like_seed(line.strip()):
            return Credentials(line.strip().encode())
    raise InvalidOptionError("nkey_seed: the file holds no seed (a line that begins with S)")


def read_credentials(credentials: str | Path) -> Credentials:
    """Return a creds file with a user JWT and its seed: its path, or its text.

    Raises:
        InvalidOptionError: the file cannot be read or misses one of the two.
    """
    is_text = isinstance(credentials, str) and "-----BEGIN" in credentials
    text = str(credentials) if is_text else _read_file("credentials", credentials)
    jwt, seed = split_credentials(text)
    if not jwt or not seed:
        raise InvalidOptionError("credentials: needs both sections, NATS USER JWT and USER NKEY SEED")
    return Credentials(seed.encode(), jwt)


def _looks_like_seed(text: str) -> bool:
    return len(text) > 50 and text.startswith("S") and text.isalnum()


# One that never ends, as `/dev/zero`, is refused.
_FILE_LENGTH_MAX = 1_000_000


def _read_file(option: str, path: str | Path) -> str:
    try:
        with platform.expand_user(path).open(encoding="utf-8") as file:
            text = file.read(_FILE_LENGTH_MAX + 1)
    except (OSError, ValueError) as error:  # Of another encoding, or a path with a zero byte.
        raise InvalidOptionError(f"{option}: cannot read {str(path)!r} ({error.__class__.__name__})") from None
    if len(text) > _FILE_LENGTH_MAX:
        raise InvalidOptionError(f"{option}: {str(path)!r} is too long for a credentials file")
    return text


def asking(ask: Callable[[], Any], read: Callable[[str | Path], Credentials]) -> Callable[[], Awaitable[Credentials]]:
    """Return a function that asks for a text or path and reads the credentials there."""

    async def credentials() -> Credentials:
        given = ask()
        return read(await given if isawaitable(given) else given)

    return credentials


async def answered(option: str, value: R | Callable[[], R | Awaitable[R]], timeout_s: float) -> R:
    """Return the value, asked for if it is a function.

    Raises:
        ClientConnectionError: the function failed; another attempt asks again.
        ConnectTimeoutError: the function took longer than the timeout.
    """
    if not callable(value):
        return value
    from asyncio import timeout  # Loaded where a function is called: a Spark process has no event loop.

    try:
        async with timeout(timeout_s):
            given = value()
            return await given if isawaitable(given) else given
    except JetlakeError:
        raise
    except TimeoutError:
        raise ConnectTimeoutError(f"the function for {option} took longer than {timeout_s:g} s") from None
    except Exception as error:
        raise ClientConnectionError(f"the function for {option} failed: {error or type(error).__name__}") from error
