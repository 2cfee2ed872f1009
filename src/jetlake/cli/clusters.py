"""Requests about the leaders and replicas of a cluster's streams and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.cli.session import fail
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import Client

__all__ = ["ask_cluster", "require_cluster"]


def require_cluster(client: Client) -> None:
    """End the command where the server is not part of a cluster, which has neither leaders nor peers to choose."""
    info = client.server_info
    if not info.cluster:
        own = "jetlake" if info.jetlake else "nats-server"
        fail(f"server {info.server_name} ({own}) is not part of a cluster: it leads everything itself")


async def ask_cluster(client: Client, subject: str, body: dict[str, Any], timeout_s: float) -> dict[str, Any]:
    """Send a request of the JetStream API that only clusters answer; returns its reply.

    Raises:
        JetlakeError: the cluster refuses.
    """
    require_cluster(client)
    answer = await client.request(subject, msgspec.json.encode(body) if body else b"", timeout=timeout_s)
    reply: dict[str, Any] = msgspec.json.decode(answer.data)
    if "error" in reply:
        error = reply["error"]
        raise JetlakeError(f"{error.get('description')} ({error.get('err_code')})")
    return reply
