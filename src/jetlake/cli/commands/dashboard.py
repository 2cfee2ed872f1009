"""`jetlake dashboard`: the page for any JetStream server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from jetlake.cli.listening import listen_on
from jetlake.cli.session import Session, command
from jetlake.cli.shared_options import SharedCommand
from jetlake.errors import JetlakeError

if TYPE_CHECKING:
    from jetlake.client import Client


@click.command(cls=SharedCommand, example="jetlake dashboard --listen 127.0.0.1:8780")
@click.option(
    "--listen", default="127.0.0.1:8780", show_default=True, metavar="HOST:PORT", help="Address to listen on."
)
@click.option("--monitor", metavar="URL", help="The server's monitoring address, to show connections, health and disk.")
@click.option("--login", is_flag=True, help="Let users of the server log in, and change what their permissions allow.")
@click.option("--host-name", "hosts", multiple=True, help="A host name that browsers may use for the page.")
@click.option(
    "--history", type=click.Path(path_type=Path, dir_okay=False), help="Keep the history of the charts in this file."
)
@command
async def dashboard(
    session: Session, listen: str, monitor: str | None, login: bool, hosts: tuple[str, ...], history: Path | None
) -> None:
    """Show streams and consumers of a server on a web page."""
    import uvicorn

    from jetlake.dashboard.app import build_app
    from jetlake.dashboard.watching.collector import Collector, HistoryFile, connections_of, health_of, variables_of
    from jetlake.dashboard.watching.server_api import ServerApi

    # Before the first request to the server: a port that is taken is reported at once.
    listening = listen_on(listen, "127.0.0.1:8780")
    watching, is_public = await open_watching(session, login=login)
    async with watching as client:
        collector = Collector(
            ServerApi(client, session.target.domain),
            connections=connections_of(monitor) if monitor else None,
            health=health_of(monitor) if monitor else None,
            variables=variables_of(monitor) if monitor else None,
            history=HistoryFile(history) if history else None,
        )
        await collector.start()
        connect = session.connect_as if login else None
        app = build_app(
            collector, connect=connect, domain=session.target.domain, hosts=frozenset(hosts), is_public=is_public
        )
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}/" if ":" in host else f"http://{host}:{port}/"
        click.echo(f"Dashboard of {session.target.shown}: {address}; press Ctrl-C to stop", err=True)
        await server.serve(sockets=[listening])
        await collector.stop()


async def open_watching(session: Session, *, login: bool) -> tuple[Client, bool]:
    """Return the connection that is sampled, and whether people who have not logged in see what it reads.

    Where users log in, people who have not see what a client without credentials can read, or nothing: the credentials
    of the dashboard serve its own user only.
    """
    from jetlake.dashboard.sessions import Credentials

    own = await session.connect(stay=True)
    if not login:
        return own, True
    try:
        anonymous = await session.connect_as(Credentials())
    except JetlakeError:
        return own, False
    await own.close()
    return anonymous, True
