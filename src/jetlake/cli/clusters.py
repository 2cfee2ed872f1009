"""Requests about the leaders and replicas of a cluster's streams and consumers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.cli.session import fail
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import Client
    from jetlake.model.stream import ClusterInfo

__all__ = ["ask_cluster", "require_cluster", "spread_leaders"]


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


async def spread_leaders(
    client: Client, subjects: dict[str, str], clusters: dict[str, ClusterInfo], timeout_s: float
) -> dict[str, str]:
    """Ask leaders on servers that lead most to step down in favour of servers that lead least; returns who leads what.

    Args:
        subjects: where a leader is asked to step down, by what it leads.
        clusters: leader and replicas, by the same.
    """
    leading: dict[str, int] = {}
    for cluster in clusters.values():
        for server in (cluster.leader, *(peer.name for peer in cluster.replicas)):
            leading.setdefault(server, 0)
        leading[cluster.leader] += 1
    moved: dict[str, str] = {}
    for name, cluster in clusters.items():
        least = min((peer.name for peer in cluster.replicas if peer.current), key=leading.__getitem__, default="")
        if least and leading[cluster.leader] - leading[least] > 1:
            await ask_cluster(client, subjects[name], {"placement": {"preferred": least}}, timeout_s)
            leading[cluster.leader] -= 1
            leading[least] += 1
            moved[name] = least
    return moved
