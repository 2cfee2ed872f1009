"""What a hub says of itself in INFO."""

from __future__ import annotations

import msgspec

from jetlake.errors import DecodeError
from jetlake.protocol.parser import CLIENT_MAX_PAYLOAD
from jetlake.server.config.options import SubjectPermissions
from jetlake.server.shell.leaf.peer_info import PeerInfo

__all__ = ["HubInfo", "SubjectLists", "read_hub_info"]


class SubjectLists(msgspec.Struct, frozen=True):
    """The subjects that a user of the hub may use in one direction."""

    allow: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None

    def permissions(self) -> SubjectPermissions:
        """Return the lists as a configuration has them."""
        return SubjectPermissions(allow=self.allow, deny=self.deny or ())


class HubInfo(msgspec.Struct, frozen=True, rename={"imports": "import", "exports": "export"}):
    """The INFO of a hub, as far as a leaf node reads it."""

    server_id: str = ""
    server_name: str = ""
    domain: str = ""
    client_id: int = 0
    nonce: str = ""
    headers: bool = False
    max_payload: int = CLIENT_MAX_PAYLOAD
    tls_required: bool = False
    info_on_connect: bool = False
    """Another INFO answers CONNECT."""
    leafnode_urls: tuple[str, ...] = ()
    """Where the hub, and the cluster that it belongs to, accept leaf nodes."""
    imports: SubjectLists | None = None
    """What the hub's user may subscribe; None = everything."""
    exports: SubjectLists | None = None
    """What the hub's user may publish; None = everything."""

    @property
    def accepts_leaves(self) -> bool:
        """Whether this is the port of a server for leaf nodes, and not for clients or routes."""
        return self.client_id != 0 and bool(self.leafnode_urls)

    def peer(self) -> PeerInfo:
        """Return what the link has to know."""
        return PeerInfo(
            name=self.server_name,
            domain=self.domain,
            headers=self.headers,
            max_payload=self.max_payload,
            imports=(self.imports or SubjectLists()).permissions(),
            exports=(self.exports or SubjectLists()).permissions(),
        )


_decoder = msgspec.json.Decoder(HubInfo)


def read_hub_info(json: bytes) -> HubInfo:
    """Decode an INFO.

    Raises:
        DecodeError: the text is not the INFO of a server.
    """
    try:
        return _decoder.decode(json)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise DecodeError(f"malformed INFO: {error}") from None
