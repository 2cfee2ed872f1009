"""`jetlake account …`: what the account may use."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedGroup

__all__ = ["account"]


@click.group(cls=SharedGroup)
def account() -> None:
    """Show the account's JetStream usage and limits."""


@account.command("info", example="jetlake account info")
@json_option
@command
async def account_info(session: Session, as_json: bool) -> None:
    """Show what the account uses of JetStream, and its limits."""
    async with await session.connect() as client:
        js = client.jetstream(domain=session.target.domain, timeout=session.timeout_s)
        info = await js.account_info()
        server_info, rtt_s = client.server_info, await client.rtt()
    if as_json:
        output.print_json(info)
        return
    limits = info.limits
    output.print_facts(
        "Account",
        {
            "Connection": [
                ("Server", f"{server_info.server_name}, {output.version(server_info.version, server_info.jetlake)}"),
                ("Address", session.target.shown),
                ("Round Trip", f"{rtt_s * 1000:.2f} ms"),
                ("Maximum Payload", output.size(server_info.max_payload)),
            ],
            "JetStream": [
                ("Domain", info.domain),
                ("Streams", f"{output.count(info.streams)} of {output.count(limits.max_streams)}"),
                ("Consumers", f"{output.count(info.consumers)} of {output.count(limits.max_consumers)}"),
                ("Memory", f"{output.size(info.memory)} of {output.size(limits.max_memory)}"),
                ("Storage", f"{output.size(info.storage)} of {output.size(limits.max_storage)}"),
                ("API Requests", f"{output.count(info.api.total)}, {output.count(info.api.errors)} refused"),
            ],
        },
    )
