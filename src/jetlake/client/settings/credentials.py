"""Credentials: creds files, nkey seeds, and the signature that proves to own one."""

from __future__ import annotations

import base64
from pathlib import Path

from jetlake.errors import InvalidOptionError
from jetlake.model.credentials import split_credentials

__all__ = ["Credentials", "read_credentials", "read_seed"]


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


def _read_file(option: str, path: str | Path) -> str:
    try:
        return Path(path).expanduser().read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidOptionError(f"{option}: cannot read {str(path)!r} ({error.__class__.__name__})") from None
