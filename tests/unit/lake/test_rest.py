from __future__ import annotations

import asyncio
import importlib.util
import json
import threading
import urllib.error
import urllib.request
from contextlib import ExitStack, contextmanager
from pathlib import Path

import duckdb
import polars
import pyarrow as pa
import pytest
import uvicorn
from pyiceberg.catalog.rest import CreateTableRequest, RestCatalog, TableResponse
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError, OAuthError, UnauthorizedError
from pyiceberg.table import CommitTableRequest
from pyiceberg.utils.config import Config
from starlette.applications import Starlette
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from jetlake.cli.main import _pages
from jetlake.cli.served_catalog import ServedCatalog
from jetlake.errors import ConfigError
from jetlake.lake.catalogs import TableAddress
from jetlake.lake.columns import file_system, write_rows
from jetlake.lake.iceberg import IcebergTable
from jetlake.lake.rest import build_catalog_app
from jetlake.server import Server
from jetlake.server.config.assemble import assemble
from jetlake.testing import ports

ROWS = pa.table({"sequence": [1, 2, 3], "subject": ["a", "b", "a"]})


@contextmanager
def served_from_thread(app):
    """The address at which a thread serves an application."""
    port = ports.free_port()
    server = uvicorn.Server(uvicorn.Config(app, host="127.0.0.1", port=port, log_level="critical", lifespan="off"))
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        while not server.started:
            thread.join(0.01)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()


class Served:
    """The catalog of a lake, served from a thread."""

    def __init__(self, lake, check=None):
        self.now_s = 0.0
        self._serving = ExitStack()
        catalog = TableAddress(str(lake / "orders")).open_catalog()
        if not catalog.namespace_exists("lake"):
            catalog.create_namespace("lake")
            table = catalog.create_table("lake.orders", ROWS.schema, location=f"file://{lake}/orders")
            table.append(ROWS)
        app = build_catalog_app(lambda: catalog, check, lambda: self.now_s)
        self.url = self._serving.enter_context(served_from_thread(app))

    def stop(self):
        self._serving.close()


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
    async def check(user, password, peer):
        return "" if (user, password, peer) == ("ada", "secret", "127.0.0.1") else "no such user"

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


def writable(catalog, faults):
    """A REST catalog that takes commits, as others are; each fault happens to one commit."""

    def refusal(code, kind):
        return JSONResponse({"error": {"message": kind, "type": kind, "code": code}}, code)

    async def config(request):
        return JSONResponse({"defaults": {}, "overrides": {}})

    async def create_namespace(request):
        try:
            catalog.create_namespace(tuple((await request.json())["namespace"]))
        except NamespaceAlreadyExistsError:
            return refusal(409, "AlreadyExistsException")
        return JSONResponse({})

    async def create_table(request):
        given = CreateTableRequest.model_validate_json(await request.body())
        table = catalog.create_table(
            (request.path_params["namespace"], given.name),
            schema=given.table_schema,
            location=given.location,
            partition_spec=given.partition_spec,
            sort_order=given.write_order,
            properties=given.properties,
        )
        return Response(TableResponse(metadata=table.metadata).model_dump_json(by_alias=True))

    async def commit(request):
        fault = faults.pop(0) if faults else ""
        if fault == "conflict":
            return refusal(409, "CommitFailedException")
        given = CommitTableRequest.model_validate_json(await request.body())
        table = catalog.load_table((request.path_params["namespace"], request.path_params["table"]))
        answer = catalog.commit_table(table, given.requirements, given.updates)
        if fault:
            # The commit is done, and its writer is not told so.
            return refusal(500 if fault == "unknown" else 503, "ServiceFailureException")
        return Response(answer.model_dump_json(by_alias=True))

    tables = "/v1/namespaces/{namespace}/tables"
    return Starlette(
        routes=[
            Route("/v1/config", config),
            Route("/v1/namespaces", create_namespace, methods=["POST"]),
            Route(tables, create_table, methods=["POST"]),
            Route(f"{tables}/{{table}}", commit, methods=["POST"]),
            Mount("/", build_catalog_app(lambda: catalog)),
        ]
    )


def test_a_rest_catalog_takes_every_batch_once(tmp_path, monkeypatch):
    """Also when it refuses a commit because of another one, and when it does not say that a commit is done."""
    faults = []
    own = TableAddress(str(tmp_path / "lake" / "orders")).open_catalog()
    with served_from_thread(writable(own, faults)) as url:
        monkeypatch.setenv("PYICEBERG_CATALOG__DEPOT__TYPE", "rest")
        monkeypatch.setenv("PYICEBERG_CATALOG__DEPOT__URI", url)
        monkeypatch.setattr("pyiceberg.catalog._ENV_CONFIG", Config())
        address = TableAddress(str(tmp_path / "lake" / "orders"), "depot", "lake.orders")
        archived = IcebergTable(address, "ARCHIVE1", sleep=lambda _: None)
        columns = pa.schema([("stream", pa.string()), ("sequence", pa.int32())])
        for batch, fault in enumerate(["", "conflict", "unknown", "away", ""]):
            if batch == 4:
                columns = pa.schema([*columns.remove(1), ("sequence", pa.int64()), ("note", pa.string())])
            table = archived.create(columns, [], "ORDERS")
            path = f"data/ARCHIVE1/{batch}.parquet"
            rows = pa.table({"stream": ["ORDERS"] * 3, "sequence": [3 * batch + step for step in range(3)]})
            write_rows(table, rows, f"{file_system(table)[1]}/{path}")
            faults += [fault] if fault else []
            archived.append(batch, [f"{table.location()}/{path}"], 3 * batch, 3 * batch + 2)
        assert not faults
        archived.compact(1 << 20)
        archived.expire(1)
        found = archived.require().scan().to_arrow()
        assert sorted(found["sequence"].to_pylist()) == list(range(15))
        assert found["note"].null_count == 15
        assert archived.last_batch(archived.require()) == 4


MONITORED = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
"""
USERS = "authorization { user: ada, password: secret }"


async def test_the_monitoring_port_has_the_catalog_when_asked_for(tmp_path):
    """Beside the reports and the dashboard; with the first archive, and for users once the server has some."""
    file = tmp_path / "server.conf"
    file.write_text(MONITORED)
    flags = {"config": str(file), "lake": str(tmp_path / "lake")}
    server = Server(options=assemble(flags).options)
    server.load_options = lambda: assemble(flags).options
    server.pages = _pages(server)
    async with server:
        url = f"http://127.0.0.1:{server.monitoring.port}"

        def get(path, code):
            try:
                with urllib.request.urlopen(url + path) as answer:
                    found = answer.status, answer.read()
            except urllib.error.HTTPError as error:
                found = error.code, error.read()
            assert found[0] == code, found
            return found[1]

        missing = await asyncio.to_thread(get, "/iceberg/v1/config", 503)
        assert b"there is no catalog yet" in missing
        assert not (tmp_path / "lake").exists()
        catalog = TableAddress(str(tmp_path / "lake" / "orders")).open_catalog()
        catalog.create_namespace("lake")
        catalog.create_table("lake.orders", ROWS.schema, location=f"file://{tmp_path}/lake/orders").append(ROWS)
        read = await asyncio.to_thread(RestCatalog, "lake", uri=f"{url}/iceberg")
        assert (await asyncio.to_thread(read.load_table, "lake.orders")).scan().to_arrow().num_rows == 3
        assert b"server_id" in await asyncio.to_thread(get, "/varz", 200)
        await asyncio.to_thread(get, "/iceberg/v1/views", 404)

        file.write_text(MONITORED + USERS)
        server.reload_configuration()
        await asyncio.to_thread(get, "/iceberg/v1/config", 401)
        options = {"uri": f"{url}/iceberg", "oauth2-server-uri": f"{url}/iceberg/v1/oauth/tokens"}
        read = await asyncio.to_thread(RestCatalog, "lake", credential="ada:secret", **options)
        assert await asyncio.to_thread(read.list_tables, "lake") == [("lake", "orders")]
        for reason in ["no such user"] * 5 + ["too many failed logins"]:
            with pytest.raises(OAuthError, match=reason):
                await asyncio.to_thread(RestCatalog, "lake", credential="ada:wrong", **options)


def test_where_the_monitoring_port_cannot_have_it(tmp_path, monkeypatch):
    with pytest.raises(ConfigError, match="name one with --http_port"):
        assemble({"lake": str(tmp_path)})
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ConfigError, match=r"pip install 'jetlake\[iceberg\]'"):
        ServedCatalog(None, tmp_path, None)
