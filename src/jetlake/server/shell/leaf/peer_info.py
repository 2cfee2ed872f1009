"""What a link knows of the server at its other end, from INFO or from CONNECT."""

from __future__ import annotations

from msgspec import Struct

from jetlake.protocol.parser import CLIENT_MAX_PAYLOAD
from jetlake.server.config.options import SubjectPermissions

__all__ = ["PeerInfo"]


class PeerInfo(Struct, frozen=True, kw_only=True):
    """The server at the other end of a leaf connection, and what may cross."""

    name: str = ""
    domain: str = ""
    """Its JetStream domain; empty = none."""
    cluster: str = ""
    """The cluster that a leaf node belongs to; empty for a hub."""
    headers: bool = False
    max_payload: int = CLIENT_MAX_PAYLOAD
    imports: SubjectPermissions = SubjectPermissions()
    """What may be taken from it."""
    exports: SubjectPermissions = SubjectPermissions()
    """What may be sent to it."""
    is_isolated: bool = False
    """It asks not to hear of other leaf nodes' interest."""
    is_hub: bool = False
    """It dialled this server, and is the hub of the connection all the same."""
