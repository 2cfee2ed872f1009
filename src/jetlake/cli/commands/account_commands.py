"""`jetlake account …` and `jetlake server …`: what the account may use and what the server is."""

from __future__ import annotations

import click

from jetlake.cli import output
from jetlake.cli.session import Session, command, json_option
from jetlake.cli.shared_options import SharedGroup

__all__ = ["account", "server"]


@click.group(cls=SharedGroup)
def account() -> None:
    """Look at the account."""


@account.command("info")
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


@server.command("info")
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


@server.command("report")
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
    output.print_table(
        output.plural(len(streams), "stream"),
        ["Stream", "Messages", "Size", "Subjects", "Consumers", "Deleted", "Last message"],
        [
            [
                info.config.name,
                output.count(info.state.messages),
                output.size(info.state.bytes),
                output.count(info.state.num_subjects),
                output.count(info.state.consumer_count),
                output.count(info.state.num_deleted),
                output.when(info.state.last_ts),
            ]
            for info in streams
        ],
        numbers=[1, 2, 3, 4, 5],
        spare=[5, 3, 6, 4],
    )
    if consumers:
        output.print_table(
            output.plural(len(consumers), "consumer"),
            ["Consumer", "Pending", "Awaiting ack", "Redelivered", "Waiting"],
            [
                [
                    f"{info.stream_name} > {info.name}",
                    output.count(info.num_pending),
                    output.count(info.num_ack_pending),
                    output.count(info.num_redelivered),
                    output.count(info.num_waiting),
                ]
                for info in sorted(consumers, key=lambda info: -info.num_pending)
            ],
            numbers=[1, 2, 3, 4],
            spare=[4],
        )
