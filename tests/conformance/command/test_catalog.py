"""`jetlake catalog serve`: who may read, and what is said when there is nothing to read."""

from __future__ import annotations

import asyncio
import os
import re

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import OAuthError

from jetlake.cli.session import EXIT_USAGE
from jetlake.lake.catalogs import TableAddress
from tests.support.command_shell import Shell


@pytest.fixture
def lake(tmp_path):
    catalog = TableAddress(str(tmp_path / "lake" / "orders")).open_catalog()
    catalog.create_namespace("lake")
    rows = pa.table({"sequence": [1, 2]})
    catalog.create_table("lake.orders", rows.schema, location=f"file://{tmp_path}/lake/orders").append(rows)
    catalog.close()
    return tmp_path / "lake"


async def serving(shell, line):
    """The process of the command, and the address that it tells."""
    process = await asyncio.create_subprocess_exec(*shell.words(line), stderr=asyncio.subprocess.PIPE)
    said = (await process.stderr.readline()).decode()
    found = re.search(r"Iceberg catalog of .*: (http://\S+);", said)
    assert found, said
    return process, found[1]


async def test_only_users_of_the_server_read_after_a_login(start, lake):
    server = await start("authorization { user: ada, password: secret }", ["no_jetstream"])
    process, url = await serving(Shell(server.url), f"catalog serve {lake} --listen 127.0.0.1:0 --login")
    try:
        options = {"uri": url, "oauth2-server-uri": f"{url}/v1/oauth/tokens"}
        for wrong in ("ada:wrong", "nobody:secret"):
            with pytest.raises(OAuthError):
                await asyncio.to_thread(RestCatalog, "lake", credential=wrong, **options)
        catalog = await asyncio.to_thread(RestCatalog, "lake", credential="ada:secret", **options)
        assert (await asyncio.to_thread(catalog.load_table, "lake.orders")).scan().to_arrow().num_rows == 2
    finally:
        process.terminate()
        await process.wait()


async def test_what_cannot_be_served_is_told_in_one_line(shell, lake):
    refused = await shell.run(f"catalog serve {lake} --listen 127.0.0.1:0 --login", status=EXIT_USAGE)
    assert "lets in every name: it has no users that could log in" in refused
    missing = await shell.run(f"catalog serve {lake / 'none'} --listen 127.0.0.1:0", status=EXIT_USAGE)
    assert f"there is no catalog {lake / 'none' / 'catalog.db'}" in missing
    assert "is not HOST:PORT" in await shell.run(f"catalog serve {lake} --listen here", status=EXIT_USAGE)
    (lake / "catalog.db").write_bytes(os.urandom(100))
    broken = await shell.run(f"catalog serve {lake} --listen 127.0.0.1:0", status=EXIT_USAGE)
    assert "can't be opened" in broken
