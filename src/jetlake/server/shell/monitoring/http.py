"""Monitoring over HTTP: a small server for GET, with the reports by path."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Callable, Generator
from http import HTTPStatus
from ipaddress import ip_address
from typing import Any, cast

from msgspec import json

from jetlake.errors import ConfigError
from jetlake.server.shell.listener import TcpListener
from jetlake.server.shell.log import Log
from jetlake.server.shell.monitoring.account_reports import account_statistics_report, accounts_report
from jetlake.server.shell.monitoring.connection_reports import connections_report, subscriptions_report
from jetlake.server.shell.monitoring.jetstream_reports import health_report, jetstream_report
from jetlake.server.shell.monitoring.leaf_report import leafs_report
from jetlake.server.shell.monitoring.metrics import METRICS_TYPE, metrics_text
from jetlake.server.shell.monitoring.pages import BODY_BYTES_MAX, Pages, answer_page
from jetlake.server.shell.monitoring.query import BadQueryError, Query
from jetlake.server.shell.monitoring.server_report import gateways_report, routes_report, server_report
from jetlake.server.shell.monitoring.server_view import ServerView
from jetlake.server.shell.sockets import monitoring_host
from jetlake.server.shell.tls_socket import TlsListening
from jetlake.server.version import JETLAKE_VERSION
from jetlake.store.steps import Steps

__all__ = ["Monitoring"]

_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_REQUEST_MAX = 16 * 1024
_CONNECTIONS_MAX = 128
_CONNECTIONS_OF_PEER_MAX = 32
# Connections that answer pages, some of them for hours. The others are left for monitoring.
_PAGES_MAX = 96
_PAGES_OF_PEER_MAX = 24
_HANDSHAKES_MAX = 32
_LARGE_BODIES_MAX = 8
_IDLE_S = 30.0
# A request must be complete within this time.
_REQUEST_S = 5.0
# A longer report is not indented, which would take longer than a turn of the loop should.
_INDENTED_MAX = 256 * 1024
_JSON = "application/json"
_TEXT = "text/plain; charset=utf-8"

_REPORTS: dict[str, Callable[[ServerView, Query], dict[str, Any] | Steps[dict[str, Any]]]] = {
    "/varz": server_report,
    "/connz": connections_report,
    "/jsz": jetstream_report,
    "/subsz": subscriptions_report,
    "/subscriptionsz": subscriptions_report,
    "/accountz": accounts_report,
    "/accstatz": account_statistics_report,
    "/routez": routes_report,
    "/gatewayz": gateways_report,
    "/leafz": leafs_report,
}
_LINKS = (
    "/varz",
    "/jsz",
    "/connz",
    "/accountz",
    "/accstatz",
    "/subsz",
    "/routez",
    "/leafz",
    "/gatewayz",
    "/healthz",
    "/metrics",
)


class Monitoring:
    """The HTTP server of one NATS server.

    Args:
        server: what the reports are made of.
        report_defect: takes an internal error, with the place where it was raised.
        pages: answers the paths that monitoring does not know; None = 404.

    Attributes:
        requests: how often each path was requested.
    """

    def __init__(
        self,
        server: ServerView,
        log: Log,
        report_defect: Callable[[str, Exception], None],
        pages: Pages | None = None,
    ) -> None:
        self.requests: Counter[str] = Counter()
        self.host = monitoring_host(server.settings.options)
        self.port = 0
        self.sockets: dict[_Exchange, None] = {}
        self.pages = pages
        self.report_defect = report_defect
        self._server = server
        self._log = log
        self._listener = TcpListener()

    async def start(self, sockets: list[socket.socket] | None = None) -> None:
        """Listen on the address of the options.

        Args:
            sockets: listen on the address already; None = there are none yet.

        Raises:
            ConfigError: the address is taken, or belongs to another machine.
        """
        settings = self._server.settings
        options = settings.options
        if options.https and settings.tls_context is None:
            raise ConfigError("https_port needs the tls certificate of the server")
        tls = None
        if options.https and settings.tls_context is not None and options.tls is not None:
            tls = TlsListening(settings.tls_context, options.tls.timeout_s, self._has_room_for_handshake)
        await self._listener.start(self.host, max(options.http_port or 0, 0), lambda: _Exchange(self), tls, sockets)
        self.port = self._listener.port
        kind = "https" if options.https else "http"
        self._log.info(f"Starting {kind} monitor on {self.host}:{self.port}")

    def _has_room_for_handshake(self) -> bool:
        return len(self._listener.handshakes) < _HANDSHAKES_MAX

    @property
    def url(self) -> str:
        """The address for browsers on this machine."""
        scheme = "https" if self._server.settings.options.https else "http"
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(self.host, self.host)
        return f"{scheme}://[{host}]:{self.port}/" if ":" in host else f"{scheme}://{host}:{self.port}/"

    def make_room(self, peer: str) -> bool:
        """Return whether a new connection of this peer is accepted; where there are too many, it replaces an idle one.

        A client that opens many connections and sends its requests slowly does not block the others.
        """
        of_peer = [exchange for exchange in self.sockets if exchange.peer == peer]
        for exchanges, limit in ((of_peer, _CONNECTIONS_OF_PEER_MAX), (list(self.sockets), _CONNECTIONS_MAX)):
            if len(exchanges) >= limit:
                waiting = next((exchange for exchange in exchanges if exchange.is_waiting), None)
                if waiting is None:
                    return False
                self.sockets.pop(waiting, None)
                waiting.close()
        return True

    def has_room_for_body(self) -> bool:
        """Return whether another large body is received: the number at a time is bounded."""
        receiving = sum(exchange.unread is not None and exchange.unread[1] > _REQUEST_MAX for exchange in self.sockets)
        return receiving < _LARGE_BODIES_MAX

    def has_room_for_page(self, peer: str) -> bool:
        """Return whether another page is answered: pages that stay open leave connections for monitoring."""
        peers = [exchange.peer for exchange in self.sockets if not exchange.is_waiting]
        return len(peers) < _PAGES_MAX and peers.count(peer) < _PAGES_OF_PEER_MAX

    async def stop(self) -> None:
        """Stop listening, and close the open connections."""
        self._listener.close()
        for exchange in list(self.sockets):
            exchange.close()
        await asyncio.sleep(0)

    def serves(self, host: str) -> bool:
        """Return whether a request for this `Host` is answered.

        On the loopback interface only addresses and `localhost` are, against DNS rebinding: a page of another site
        whose name resolves to this machine must not read the reports.
        """
        if self.host not in _LOOPBACK or not host:
            return True
        name = host[1:].partition("]")[0] if host.startswith("[") else host.partition(":")[0]
        if name == "localhost":
            return True
        try:
            ip_address(name)
        except ValueError:
            return False
        return True

    def knows(self, target: str) -> bool:
        """Return whether the path belongs to monitoring, and not to the further pages."""
        path = target.partition("?")[0].rstrip("/")
        return self.pages is None or path in _REPORTS or path in _LINKS

    def run(self, answer: Steps[None]) -> None:
        """Run an answer as long work: one piece of it in each turn, however many requests wait."""
        engine_loop = self._server.engine_loop
        engine_loop.work.go_on_with(answer)
        engine_loop.schedule()

    def answer(self, target: str) -> Steps[tuple[int, str, bytes]]:
        """Answer a request's path and query with status, content type and body."""
        path, _, query_text = target.partition("?")
        base = self._server.settings.options.http_base_path.rstrip("/")
        path = path.removeprefix(base) if base else path
        path = path.rstrip("/") or "/"
        try:
            query = Query(query_text)
            report = _REPORTS.get(path)
            if report is not None:
                self.requests[path] += 1
                made = report(self._server, query)
                body = json.encode((yield from made) if isinstance(made, Generator) else made)
                return 200, _JSON, json.format(body, indent=2) if len(body) <= _INDENTED_MAX else body
            if path == "/healthz":
                self.requests[path] += 1
                status, health = yield from health_report(self._server, query)
                return status, _JSON, json.encode(health)
            if path == "/metrics":
                self.requests[path] += 1
                text = yield from metrics_text(self._server)
                return 200, METRICS_TYPE, text.encode()
            if path == "/":
                self.requests[path] += 1
                return 200, "text/html; charset=utf-8", _index(base)
        except BadQueryError as error:
            return 400, _TEXT, str(error).encode()
        except Exception as error:
            self.report_defect(f"monitoring {path}", error)
            return 500, _TEXT, b"internal error"
        return 404, _TEXT, b"404 page not found\n"


def _index(base: str) -> bytes:
    links = "".join(f'<li><a href="{base}{path}">{path}</a></li>' for path in _LINKS)
    return (
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>jetlake</title>'
        f"<h1>jetlake {JETLAKE_VERSION}</h1><ul>{links}</ul></html>\n"
    ).encode()


class _Exchange(asyncio.Protocol):
    """One HTTP connection, which answers its requests one after the other."""

    def __init__(self, monitoring: Monitoring) -> None:
        self._monitoring = monitoring
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._idle: asyncio.TimerHandle | None = None
        self._page: asyncio.Task[None] | None = None
        self._gone = asyncio.Event()
        self._writable = asyncio.Event()
        self._writable.set()
        self._is_answering = False
        self._unwritten_bytes = 0  # of the answers, when the connection was last found idle
        self.unread: tuple[list[str], int] | None = None  # the head of a page's request, and the length of its body
        self._has_begun = True  # the first request's deadline runs from the start, others' from their first byte
        self.peer = ""

    @property
    def is_waiting(self) -> bool:
        """Whether the connection waits for a request."""
        return self._page is None

    @property
    def is_receiving_body(self) -> bool:
        """Whether the body of a page's request is not complete yet."""
        return self.unread is not None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        self.peer = str((transport.get_extra_info("peername") or ("",))[0])
        if not self._monitoring.make_room(self.peer):
            self._respond(503, _TEXT, b"too many connections", with_body=True, stays=False)
            return
        self._monitoring.sockets[self] = None
        self._wait(_REQUEST_S)

    def connection_lost(self, exc: Exception | None) -> None:
        self._monitoring.sockets.pop(self, None)
        self._gone.set()
        self._writable.set()  # no caller waits for a connection that is gone
        if self._idle is not None:
            self._idle.cancel()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()
        if self._page is None:
            self._go_on()

    def data_received(self, data: bytes) -> None:
        if self._page is not None:
            return  # the page's answer ends with the connection
        self._buffer += data
        if self.is_receiving_body:
            self._read_body()
        elif not self._is_answering:
            self._go_on()

    def _go_on(self) -> None:
        """Handle the next request, unless the client has to read the answers to earlier ones first."""
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._writable.is_set():
            end = self._buffer.find(b"\r\n\r\n")
            if (end if end >= 0 else len(self._buffer)) > _REQUEST_MAX:
                self._respond(431, _TEXT, b"request too large", with_body=True, stays=False)
                self._buffer.clear()
            elif end >= 0:
                head = bytes(self._buffer[:end])
                del self._buffer[: end + 4]
                self._request(head)
                if not self.is_waiting or self.is_receiving_body:
                    return
        if transport.is_closing():
            return
        if self._is_answering or not self._writable.is_set():
            transport.pause_reading()  # One read of further requests may wait, and no more.
            self._wait(_IDLE_S)
            self._has_begun = False
            return
        transport.resume_reading()
        if not self._buffer:
            self._wait(_IDLE_S)
        elif not self._has_begun:
            self._wait(_REQUEST_S)
        self._has_begun = bool(self._buffer)

    def _request(self, head: bytes) -> None:
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        if len(words) != 3 or not words[2].startswith("HTTP/1."):
            self._respond(400, _TEXT, b"400 Bad Request", with_body=True, stays=False)
            return
        method, target, version = words
        fields = (line.partition(":") for line in lines[1:])
        headers = {name.strip().lower(): value.strip().lower() for name, _, value in fields}
        connection = headers.get("connection", "")
        stays = connection != "close" if version == "HTTP/1.1" else connection == "keep-alive"
        if "transfer-encoding" in headers or headers.get("content-length", "0") != "0":
            stays = False  # a body would be read as the next request
        if not self._monitoring.serves(headers.get("host", "")):
            self._respond(403, _TEXT, b"403 this host is not served", with_body=True, stays=False)
            return
        if not self._monitoring.knows(target):
            self._request_page(lines, headers)
            return
        if method not in ("GET", "HEAD"):
            self._respond(405, _TEXT, b"405 method not allowed", with_body=True, stays=False)
            return
        self._is_answering = True
        self._monitoring.run(self._answer(target, with_body=method == "GET", stays=stays))

    def _answer(self, target: str, *, with_body: bool, stays: bool) -> Steps[None]:
        status, kind, body = yield from self._monitoring.answer(target)
        self._is_answering = False
        self._respond(status, kind, body, with_body=with_body, stays=stays)
        self._go_on()

    def _request_page(self, lines: list[str], headers: dict[str, str]) -> None:
        length = headers.get("content-length", "0")
        if "transfer-encoding" in headers or not (length.isascii() and length.isdigit() and len(length) < 12):
            self._respond(411, _TEXT, b"411 length required", with_body=True, stays=False)
        elif int(length) > BODY_BYTES_MAX:
            self._respond(413, _TEXT, b"413 body too large", with_body=True, stays=False)
        elif int(length) > _REQUEST_MAX and not self._monitoring.has_room_for_body():
            self._respond(503, _TEXT, b"503 too many large requests", with_body=True, stays=False)
        else:
            self.unread = (lines, int(length))
            self._wait(_REQUEST_S)
            self._read_body()

    def _read_body(self) -> None:
        """Open the page when its body is complete; until then the deadline of the request runs on."""
        if self.unread is not None and len(self._buffer) >= self.unread[1]:
            (lines, length), self.unread = self.unread, None
            body = bytes(self._buffer[:length])
            self._buffer.clear()
            self._open_page(lines, body)
            self._wait(_IDLE_S)

    def _open_page(self, lines: list[str], body: bytes) -> None:
        monitoring, transport = self._monitoring, self._transport
        if monitoring.pages is None or transport is None or self._page is not None:
            return
        if not monitoring.has_room_for_page(self.peer):
            self._respond(503, _TEXT, b"503 too many pages are open", with_body=True, stays=False)
            return
        method, target, _ = lines[0].split(" ")
        fields = (line.partition(":") for line in lines[1:])
        headers = [
            (name.strip().lower().encode("latin-1"), value.strip().encode("latin-1")) for name, _, value in fields
        ]
        answering = answer_page(monitoring.pages, transport, self._gone, self._writable, method, target, headers, body)
        self._page = asyncio.get_running_loop().create_task(answering)
        self._page.add_done_callback(self._page_done)

    def _page_done(self, page: asyncio.Task[None]) -> None:
        error = None if page.cancelled() else page.exception()
        if isinstance(error, Exception):
            self._monitoring.report_defect("page", error)

    def _respond(self, status: int, kind: str, body: bytes, *, with_body: bool, stays: bool) -> None:
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        lines = [
            f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
            f"Content-Type: {kind}",
            f"Content-Length: {len(body)}",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
        ]
        if not stays:
            lines.append("Connection: close")
        head = "\r\n".join([*lines, "", ""]).encode("latin-1")
        transport.write(head + body if with_body else head)
        if not stays:
            transport.close()

    def _wait(self, seconds: float) -> None:
        if self._idle is not None:
            self._idle.cancel()
        if self._page is None:
            self._idle = asyncio.get_running_loop().call_later(seconds, self._time_out)

    def _time_out(self) -> None:
        """Close an idle connection, but not while the client reads the answer."""
        transport = self._transport
        unwritten_bytes = transport.get_write_buffer_size() if transport is not None else 0
        if 0 < unwritten_bytes != self._unwritten_bytes:
            self._unwritten_bytes = unwritten_bytes
            self._wait(_IDLE_S)
        else:
            self.close()

    def close(self) -> None:
        """Close the connection, without waiting for a client that leaves its answers unread."""
        if self._page is not None:
            self._page.cancel()
        transport = self._transport
        if transport is None:
            return
        if self._page is None and transport.get_write_buffer_size():
            transport.abort()
        else:
            transport.close()
