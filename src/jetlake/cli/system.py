"""Requests of the system account: what every server answers about itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from jetlake.cli.session import Session
from jetlake.errors import JetlakeError, NoRespondersError

if TYPE_CHECKING:
    from jetlake.client import Client

__all__ = ["NEEDS_SYSTEM_ACCOUNT", "ask_servers", "collect"]

_STALL_S = 0.3
"""How long to wait for another server after the last answer."""
NEEDS_SYSTEM_ACCOUNT = "no response: this needs a user of the system account; use --user and --password"


async def ask_servers(
    session: Session, report: str, request: dict[str, Any] | None = None, *, expect: int = 0
) -> list[dict[str, Any]]:
    """Collect what every server answers to a request of the system account.

    Args:
        report: such as `VARZ`; empty for a server's statistics.
        expect: how many answers there are at most; 0 for not known.
    """
    async with await session.connect() as client:
        return await collect(client, session.timeout_s, report, request or {}, expect=expect)


async def collect(
    client: Client, timeout_s: float, report: str, request: dict[str, Any], *, expect: int = 0
) -> list[dict[str, Any]]:
    """Collect what every server answers, over a connection that is open.

    Raises:
        JetlakeError: no server answers, or one refuses.
    """
    subject = "$SYS.REQ.SERVER.PING" + (f".{report}" if report else "")
    asked = client.request_many(
        subject, msgspec.json.encode(request), timeout=timeout_s, stall=_STALL_S, max_messages=expect or None
    )
    try:
        answers = [msgspec.json.decode(answer.data) async for answer in asked]
    except NoRespondersError:
        answers = []
    if not answers:
        raise JetlakeError(NEEDS_SYSTEM_ACCOUNT)
    for answer in answers:
        if "statsz" not in answer and answer.get("data") is None:  # Left out, or null, beside an error.
            reason = answer.get("error", {}).get("description")
            raise JetlakeError(f"{answer.get('server', {}).get('name')}: {reason}")
    return answers
