"""The CONNECT of a leaf node: who the server is, and the proof that it may join the hub."""

from __future__ import annotations

from typing import Any

from msgspec.json import encode

from jetlake import platform
from jetlake.errors import ConfigError
from jetlake.model.credentials import split_credentials
from jetlake.server.config.conf import read_file
from jetlake.server.config.leaf_options import LeafRemote, LeafUrl
from jetlake.server.nkey import public_nkey, sign
from jetlake.server.shell.leaf.hub_info import HubInfo
from jetlake.server.version import COMPATIBLE_VERSION

__all__ = ["check_secrets", "encode_connect"]

_PROTOCOL = 3


def encode_connect(
    remote: LeafRemote,
    url: LeafUrl,
    info: HubInfo,
    *,
    server_id: str,
    name: str,
    domain: str,
    has_jetstream: bool,
    headers: bool,
) -> bytes:
    """Encode the JSON of CONNECT.

    Args:
        info: the hub's first INFO, whose nonce is signed.
        name: the server's name, also the name of its cluster of one: leaf nodes of one cluster do not hear each other.
        headers: messages may have headers.

    Raises:
        ConfigError: the file with the credentials cannot be read.
    """
    fields: dict[str, Any] = {
        "version": COMPATIBLE_VERSION,
        "server_id": server_id,
        "name": name,
        "cluster": name,
        "headers": headers,
        "jetstream": has_jetstream,
        "compress_mode": "off",
        "remote_account": remote.account,
        "protocol": _PROTOCOL,
    }
    if domain:
        fields["domain"] = domain
    if remote.deny_imports:
        fields["deny_pub"] = remote.deny_imports
    return encode(fields | _secrets(remote, url, info.nonce))


def _secrets(remote: LeafRemote, url: LeafUrl, nonce: str) -> dict[str, str]:
    if remote.credentials:
        jwt, seed = split_credentials(_read_text(remote.credentials, "credentials"))
        return {"jwt": jwt, "sig": sign(seed, nonce)}
    if remote.nkey is not None:
        seed = remote.nkey.reveal()
        return {"nkey": public_nkey(seed), "sig": sign(seed, nonce)}
    if url.user and url.password is None:
        return {"user": url.user, "auth_token": url.user}
    return {"user": url.user, "pass": url.password.reveal()} if url.password is not None else {}


def check_secrets(remote: LeafRemote) -> None:
    """Check, before anything is dialled, that the credentials can be read and sign.

    Raises:
        ConfigError: they cannot.
    """
    _secrets(remote, remote.urls[0], "nonce")


def _read_text(path: str, what: str) -> str:
    """Read a file whole.

    Raises:
        ConfigError: it cannot be read, or is no text.
    """
    try:
        return read_file(platform.expand_user(path))
    except (OSError, ValueError) as error:  # Of another encoding, or a path with a zero byte.
        raise ConfigError(f"{what}: cannot read {path!r} ({error.__class__.__name__})") from None
