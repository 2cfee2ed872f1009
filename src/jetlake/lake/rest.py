"""The read side of the Iceberg REST catalog over the tables of a catalog: one address for DuckDB, pyiceberg and others.

Nothing is changed through it, and it hands out no credentials of storage: readers reach the tables' files themselves.
With a check of names and passwords it gives tokens that are good for an hour, as the specification's OAuth2 endpoint
does; they live in this process only, and the oldest go when there are too many.
"""

from __future__ import annotations

import base64
import binascii
import json
import secrets
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qs, unquote, unquote_plus

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

_TOKEN_S = 3600
_TOKENS_MAX = 10_000
_BODY_MAX = 64 * 1024
_SEPARATOR = "\x1f"
_ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
Check = Callable[[str, str, str], Awaitable[str]]
"""Returns why a name and a password, sent from an address, are refused; empty when they belong to a user."""


def build_catalog_app(
    open_catalog: Callable[[], Any], check: Check | None = None, now_s: Callable[[], float] = time.monotonic
) -> Any:
    """Return the application.

    Args:
        open_catalog: returns a catalog of pyiceberg, or None as long as there is none; called in a thread.
        check: None lets everybody read.
    """
    return _RestCatalog(open_catalog, check, now_s).app()


class _RestCatalog:
    def __init__(self, open_catalog: Callable[[], Any], check: Check | None, now_s: Callable[[], float]) -> None:
        self._open_catalog = open_catalog
        self._catalog: Any = None
        self._check = check
        self._now_s = now_s
        self._tokens: OrderedDict[str, float] = OrderedDict()

    def app(self) -> Starlette:
        one, tables = "/v1/namespaces/{namespace}", "/v1/namespaces/{namespace}/tables"
        routes = [
            Route("/v1/config", self._guarded(self._config), methods=["GET"]),
            Route("/v1/oauth/tokens", self._token, methods=["POST"]),
            Route("/v1/namespaces", self._guarded(self._namespaces), methods=["GET"]),
            Route(one, self._guarded(self._namespace), methods=["GET"]),
            Route(tables, self._guarded(self._tables), methods=["GET"]),
            Route(f"{tables}/{{table}}", self._guarded(self._table), methods=["GET"]),
            Route(f"{tables}/{{table}}/metrics", self._guarded(self._metrics), methods=["POST"]),
        ]
        return Starlette(routes=routes, exception_handlers={404: _no_endpoint, 405: _read_only})

    def _guarded(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError

        async def guarded(request: Request) -> Response:
            if self._check is not None and not self._knows(request.headers.get("authorization", "")):
                return _error(401, "NotAuthorizedException", "log in: get a token at /v1/oauth/tokens")
            try:
                if self._catalog is None:
                    self._catalog = await run_in_threadpool(self._open_catalog)
                if self._catalog is None:
                    return _error(503, "ServiceUnavailableException", "there is no catalog yet: no archive has begun")
                return await answer(request)
            except NoSuchTableError as error:
                return _error(404, "NoSuchTableException", str(error))
            except NoSuchNamespaceError as error:
                return _error(404, "NoSuchNamespaceException", str(error))
            # The catalog's database or storage may fail in any way; its reader gets the reason.
            except Exception as error:
                return _error(500, "ServiceFailureException", f"{type(error).__name__}: {error}")

        return guarded

    def _knows(self, header: str) -> bool:
        scheme, _, token = header.partition(" ")
        return scheme.lower() == "bearer" and self._tokens.get(token, 0.0) > self._now_s()

    async def _token(self, request: Request) -> Response:
        body = b""
        async for part in request.stream():
            body += part
            if len(body) > _BODY_MAX:
                return _oauth_error("invalid_request", "the request is too large")
        form = {key: values[0] for key, values in parse_qs(body.decode("utf-8", "replace")).items()}
        if form.get("grant_type") != "client_credentials":
            return _oauth_error("unsupported_grant_type", "only client_credentials")
        name, password = form.get("client_id", ""), form.get("client_secret", "")
        scheme, _, coded = request.headers.get("authorization", "").partition(" ")
        if not name and scheme.lower() == "basic":
            name, password = _basic(coded)
        peer = (request.scope.get("client") or ("",))[0]
        refused = await self._check(name, password, peer) if self._check is not None else "this catalog has no users"
        if refused:
            return _oauth_error("invalid_client", refused)
        token = secrets.token_urlsafe(32)
        self._tokens[token] = self._now_s() + _TOKEN_S
        while len(self._tokens) > _TOKENS_MAX:
            self._tokens.popitem(last=False)
        answer = {"access_token": token, "token_type": "bearer", "expires_in": _TOKEN_S}
        return JSONResponse(answer | {"issued_token_type": "urn:ietf:params:oauth:token-type:access_token"})

    async def _config(self, request: Request) -> Response:
        return JSONResponse({"defaults": {}, "overrides": {}, "endpoints": list(_ENDPOINTS)})

    async def _namespaces(self, request: Request) -> Response:
        parent = tuple(part for part in request.query_params.get("parent", "").split(_SEPARATOR) if part)
        found = await run_in_threadpool(self._catalog.list_namespaces, parent)
        return JSONResponse({"namespaces": [list(namespace) for namespace in found]})

    async def _namespace(self, request: Request) -> Response:
        namespace = _namespace_of(request)
        properties = await run_in_threadpool(self._catalog.load_namespace_properties, namespace)
        return JSONResponse({"namespace": list(namespace), "properties": dict(properties)})

    async def _tables(self, request: Request) -> Response:
        namespace = _namespace_of(request)
        await run_in_threadpool(self._catalog.load_namespace_properties, namespace)
        found = await run_in_threadpool(self._catalog.list_tables, namespace)
        identifiers = [{"namespace": list(table[:-1]), "name": table[-1]} for table in found]
        return JSONResponse({"identifiers": identifiers})

    async def _table(self, request: Request) -> Response:
        identifier = (*_namespace_of(request), unquote(request.path_params["table"]))
        return JSONResponse(await run_in_threadpool(self._loaded, identifier))

    def _loaded(self, identifier: tuple[str, ...]) -> dict[str, Any]:
        table = self._catalog.load_table(identifier)
        with table.io.new_input(table.metadata_location).open() as file:
            metadata = json.loads(file.read())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    async def _metrics(self, request: Request) -> Response:
        # Readers report how a scan went; the report is not used here.
        return Response(status_code=204)


def _basic(coded: str) -> tuple[str, str]:
    """Return name and password of an Authorization header, each written as in a URL (RFC 6749, 2.3.1)."""
    try:
        name, _, password = base64.b64decode(coded, validate=True).decode().partition(":")
    except (binascii.Error, UnicodeDecodeError):
        return "", ""
    return unquote_plus(name), unquote_plus(password)


def _namespace_of(request: Request) -> tuple[str, ...]:
    return tuple(unquote(request.path_params["namespace"]).split(_SEPARATOR))


def _error(code: int, kind: str, text: str) -> Response:
    return JSONResponse({"error": {"message": text, "type": kind, "code": code}}, code)


def _oauth_error(kind: str, text: str) -> Response:
    return JSONResponse({"error": kind, "error_description": text}, 401 if kind == "invalid_client" else 400)


async def _no_endpoint(request: Request, error: Exception) -> Response:
    return _error(404, "NotFoundException", f"there is no {request.url.path}; this catalog serves reads only")


async def _read_only(request: Request, error: Exception) -> Response:
    return _error(405, "UnsupportedOperationException", "this catalog serves reads only: write with jetlake pipeline")
