"""`jetlake account …` and `jetlake server …`: what the account may use and what the server is."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.commands.consumer.listing import print_report as consumer_report
from jetlake.cli.commands.stream.listing import print_report as stream_report
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedGroup

__all__ = ["account", "server"]


@click.group(cls=SharedGroup)
def account() -> None:
    """Look at the account."""


@account.command("info", example="jetlake account info")
@json_option
@command
async def account_info(session: Session, as_json: bool) -> None:
    """Show what the account uses of JetStream and what it may use."""
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
                ("Server", f"{server_info.server_name} ({server_info.version})"),
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


@click.group(cls=SharedGroup)
def server() -> None:
    """Look at the server."""


@server.command("info", example="jetlake server info")
@json_option
@command
async def server_info(session: Session, as_json: bool) -> None:
    """Show what the server says about itself."""
    async with await session.connect() as client:
        info, rtt_s = client.server_info, await client.rtt()
    if as_json:
        output.print_json(info)
        return
    output.print_facts(
        f"Server {info.server_name}",
        {
            "About": [
                ("Version", info.version),
                ("Id", info.server_id),
                ("Address", f"{info.host}:{info.port}"),
                ("JetStream", "on" if info.jetstream else "off"),
                ("Maximum Payload", output.size(info.max_payload)),
                ("Round Trip", f"{rtt_s * 1000:.2f} ms"),
            ]
        },
    )


@server.command("report", example="jetlake server report")
@json_option
@command
async def report(session: Session, as_json: bool) -> None:
    """Show every stream and consumer of the account, the largest and furthest behind first."""
    async with session.jetstream() as js:
        streams = sorted(await js.streams(), key=lambda info: -info.state.bytes)
        consumers = [
            info
            for stream in streams
            if stream.state.consumer_count
            for info in await (await js.stream(stream.config.name)).consumers()
        ]
    if as_json:
        output.print_json({"streams": streams, "consumers": consumers})
        return
    stream_report(streams)
    if consumers:
        consumer_report(consumers)
