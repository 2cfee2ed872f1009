from __future__ import annotations

import importlib.util
import json
import threading
import urllib.error
import urllib.request
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
import uvicorn
from pyiceberg.catalog.rest import RestCatalog
from pyiceberg.exceptions import NoSuchTableError, OAuthError, UnauthorizedError

from jetlake.lake.catalogs import TableAddress
from jetlake.lake.rest import build_catalog_app
from jetlake.testing import ports

ROWS = pa.table({"sequence": [1, 2, 3], "subject": ["a", "b", "a"]})


class Served:
    """The catalog of a lake, served from a thread."""

    def __init__(self, lake, check=None):
        self.now_s = 0.0
        self.port = ports.free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        catalog = TableAddress(str(lake / "orders")).open_catalog()
        if not catalog.namespace_exists("lake"):
            catalog.create_namespace("lake")
            table = catalog.create_table("lake.orders", ROWS.schema, location=f"file://{lake}/orders")
            table.append(ROWS)
        app = build_catalog_app(catalog, check, lambda: self.now_s)
        config = uvicorn.Config(app, host="127.0.0.1", port=self.port, log_level="critical", lifespan="off")
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)
        self._thread.start()
        while not self._server.started:
            self._thread.join(0.01)

    def stop(self):
        self._server.should_exit = True
        self._thread.join()


@pytest.fixture
def serve(tmp_path):
    started = []

    def start(check=None):
        started.append(Served(tmp_path, check))
        return started[-1]

    yield start
    for served in started:
        served.stop()


def extension(name):
    package = Path(importlib.util.find_spec(f"duckdb_extension_{name}").origin).parent
    return next(package.rglob("*.duckdb_extension"))


def attached(secret, options):
    connection = duckdb.connect(config={"allow_unsigned_extensions": "true"})
    for name in ("httpfs", "avro", "iceberg"):
        connection.execute(f"load '{extension(name)}'")
    if secret:
        connection.execute(secret)
    connection.execute(f"attach '' as lake (type iceberg, {options})")
    return connection


def test_pyiceberg_polars_and_duckdb_read_by_one_address(serve, monkeypatch):
    monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
    served = serve()
    catalog = RestCatalog("lake", uri=served.url)
    assert catalog.list_namespaces() == [("lake",)]
    assert catalog.list_tables("lake") == [("lake", "orders")]
    assert catalog.namespace_exists("lake")
    table = catalog.load_table("lake.orders")
    assert table.scan(row_filter="subject = 'a'").to_arrow()["sequence"].to_pylist() == [1, 3]
    assert polars.scan_iceberg(table).select(polars.len()).collect().item() == 3
    with pytest.raises(NoSuchTableError):
        catalog.load_table("lake.nothing")
    with attached("", f"endpoint '{served.url}', authorization_type 'none'") as connection:
        query = "select sum(sequence) from lake.lake.orders where subject = 'a'"
        assert connection.sql(query).fetchall() == [(4,)]


def test_only_users_read_when_there_is_a_login(serve):
    async def check(user, password):
        return (user, password) == ("ada", "secret")

    served = serve(check)
    with pytest.raises(UnauthorizedError):
        RestCatalog("lake", uri=served.url).list_namespaces()
    with pytest.raises(OAuthError):
        RestCatalog(
            "lake", uri=served.url, credential="ada:wrong", **{"oauth2-server-uri": served.url + "/v1/oauth/tokens"}
        )
    catalog = RestCatalog(
        "lake", uri=served.url, credential="ada:secret", **{"oauth2-server-uri": served.url + "/v1/oauth/tokens"}
    )
    assert catalog.list_tables("lake") == [("lake", "orders")]
    secret = (
        "create secret (type iceberg, client_id 'ada', client_secret 'secret', "
        f"oauth2_server_uri '{served.url}/v1/oauth/tokens')"
    )
    with attached(secret, f"endpoint '{served.url}'") as connection:
        assert connection.sql("select count(*) from lake.lake.orders").fetchall() == [(3,)]
    # Tokens end.
    form = b"grant_type=client_credentials&client_id=ada&client_secret=secret"
    with urllib.request.urlopen(f"{served.url}/v1/oauth/tokens", form) as answer:
        token = json.load(answer)["access_token"]
    request = urllib.request.Request(f"{served.url}/v1/config", headers={"Authorization": f"Bearer {token}"})
    assert urllib.request.urlopen(request).status == 200
    served.now_s = 3601.0
    with pytest.raises(urllib.error.HTTPError, match="401"):
        urllib.request.urlopen(request)


def test_nothing_is_changed_through_it(serve):
    served = serve()
    for method, path, code in (("DELETE", "/v1/namespaces/lake/tables/orders", 405), ("GET", "/v1/views", 404)):
        request = urllib.request.Request(served.url + path, method=method)
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request)
        assert error.value.code == code
        assert "serves reads only" in json.load(error.value)["error"]["message"]
