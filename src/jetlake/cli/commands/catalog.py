"""`jetlake catalog serve`: the archived tables for every reader that knows the Iceberg REST catalog."""

from __future__ import annotations

import secrets
from pathlib import Path

import click

from jetlake.cli.listening import listen_on
from jetlake.cli.served_catalog import login_check
from jetlake.cli.session import Session, command
from jetlake.cli.shared_options import SharedGroup
from jetlake.errors import ConfigError


@click.group(cls=SharedGroup)
def catalog() -> None:
    """Serve the Iceberg tables of a lake to their readers."""


@catalog.command(example="jetlake catalog serve lake --listen 127.0.0.1:8181")
@click.argument("lake", default="lake", type=click.Path(path_type=Path))
@click.option("--catalog", "name", default="", metavar="NAME", help="A catalog of pyiceberg's configuration.")
@click.option(
    "--listen", default="127.0.0.1:8181", show_default=True, metavar="HOST:PORT", help="Address to listen on."
)
@click.option("--login", is_flag=True, help="Only users of the NATS server may read, by their name and password.")
@command
async def serve(session: Session, lake: Path, name: str, listen: str, login: bool) -> None:
    """Serve the tables of the folder LAKE by the read side of the Iceberg REST catalog."""
    import uvicorn

    from jetlake.lake.catalogs import CATALOG_FILE, open_catalog
    from jetlake.lake.rest import build_catalog_app

    file = (lake if lake.name == CATALOG_FILE else lake / CATALOG_FILE).absolute()
    if not name and not file.is_file():
        raise ConfigError(
            f"there is no catalog {file}: name the folder above the archives of jetlake pipeline archive --format "
            "iceberg, or a catalog with --catalog"
        )

    check = login_check(session.connect_as) if login else None
    if check is not None and not await check(secrets.token_hex(8), secrets.token_hex(8), ""):
        raise ConfigError(f"{session.target.shown} lets in every name: it has no users that could log in")
    opened = open_catalog(name or file)
    app = build_catalog_app(lambda: opened, check)
    with listen_on(listen, "127.0.0.1:8181") as listening:
        host, port = listening.getsockname()[:2]
        address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        click.echo(f"Iceberg catalog of {name or file}: {address}; press Ctrl-C to stop", err=True)
        server = uvicorn.Server(uvicorn.Config(app, log_level="warning", lifespan="off"))
        await server.serve(sockets=[listening])
