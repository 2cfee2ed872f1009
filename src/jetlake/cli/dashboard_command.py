"""`jetlake dashboard`: the page for any JetStream server."""

from __future__ import annotations

import asyncio
from typing import Any

import click

from jetlake.cli.session import Session, command
from jetlake.cli.shared_options import SharedCommand

__all__ = ["dashboard"]


@click.command(cls=SharedCommand)
@click.option("--listen", default="127.0.0.1:8780", show_default=True, metavar="HOST:PORT", help="Where the page is.")
@click.option("--monitor", metavar="URL", help="The server's monitoring address, to show connections.")
@click.option("--token", "page_token", metavar="TEXT", help="Allow purge, pause and unpin to whoever knows it.")
@click.option("--host-name", "hosts", multiple=True, help="A name under which the page may be asked for.")
@command
async def dashboard(
    session: Session, listen: str, monitor: str | None, page_token: str | None, hosts: tuple[str, ...]
) -> None:
    """Show streams and consumers of a server on a web page."""
    import uvicorn

    from jetlake.dashboard.app import build_app
    from jetlake.dashboard.collector import Collector
    from jetlake.dashboard.monitor import connections_of

    host, _, port = listen.rpartition(":")
    if not port.isdigit():
        raise click.BadParameter(f"{listen!r} is not HOST:PORT")
    async with await session.connect(stay=True) as client:
        source = connections_of(monitor) if monitor else None
        collector = Collector(client, domain=session.target.domain, connections=source)
        await collector.start()
        app = build_app(collector, token=page_token, hosts=frozenset(hosts))
        config = uvicorn.Config(app, host=host or "127.0.0.1", port=int(port), log_level="warning", lifespan="off")
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve())
        while not server.started and not serving.done():
            await asyncio.sleep(0.01)
        if server.started:
            click.echo(f"The dashboard of {session.target.server} is at {_address(server)}, Ctrl-C ends it", err=True)
        await serving
        await collector.stop()


def _address(server: Any) -> str:
    host, port = server.servers[0].sockets[0].getsockname()[:2]
    return f"http://{host}:{port}/"
