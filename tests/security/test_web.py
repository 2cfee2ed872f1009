"""Monitoring and the dashboard: at home by default, deaf to other sites."""

import asyncio
from contextlib import suppress

import pytest

from jetlake.dashboard.app import build_app
from jetlake.server.config.options import Options
from jetlake.server.shell.monitoring import http as monitoring
from jetlake.server.shell.monitoring import pages as served_pages
from jetlake.server.shell.monitoring.http import Monitoring

ASKED = "/api/session"


async def ask(app, method, path, headers):
    """Status, headers and body of one request to an ASGI application."""
    sent = []

    async def receive():
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message):
        sent.append(message)

    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": b"",
        "headers": [(name.encode(), value.encode()) for name, value in headers.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("127.0.0.1", 80),
        "client": ("127.0.0.1", 1),
    }
    await app(scope, receive, send)
    body = b"".join(message.get("body", b"") for message in sent[1:])
    return sent[0]["status"], dict(sent[0]["headers"]), body


HOME = {"host": "127.0.0.1:8222"}


@pytest.mark.parametrize(
    "headers",
    [
        {"host": "evil.example"},
        {"host": "evil.example:8222"},
        {"host": "127.0.0.1.evil.example"},
        {"host": ""},
        {},
        {**HOME, "origin": "http://evil.example"},
        {**HOME, "origin": "null"},
        {**HOME, "origin": "https://127.0.0.1.evil.example"},
    ],
)
async def test_other_sites_are_refused(headers):
    app = build_app(None)
    assert (await ask(app, "GET", ASKED, headers))[0] == 403


async def test_our_own_page_is_served_strictly():
    app = build_app(None, hosts=frozenset({"lake.example"}))
    for headers in (HOME, {"host": "localhost"}, {"host": "[::1]:8222"}, {"host": "lake.example"}):
        status, sent, _ = await ask(app, "GET", ASKED, {**headers, "origin": f"http://{headers['host']}"})
        assert status == 200
        assert b"default-src 'self'" in sent[b"content-security-policy"]
        assert sent[b"x-content-type-options"] == b"nosniff"
        assert b"access-control-allow-origin" not in sent


async def http(port, request):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(-1), 10)
    writer.close()
    await writer.wait_closed()
    return answer


async def test_monitoring_answers_reading_requests_of_its_own_host_only(start):
    server = await start()
    port = server.monitor_port
    line = b"GET /varz HTTP/1.1\r\nConnection: close\r\n"
    assert b" 200 " in await http(port, line + b"Host: 127.0.0.1:%d\r\n\r\n" % port)
    assert b" 200 " in await http(port, line + b"Host: localhost\r\n\r\n")
    assert b" 200 " in await http(port, line + b"Host: [::1]:1\r\n\r\n")
    answer = await http(port, line + b"Host: evil.example\r\n\r\n")
    assert b" 403 " in answer
    assert b"server_id" not in answer
    for method in (b"POST", b"PUT", b"DELETE", b"PATCH", b"OPTIONS"):
        answer = await http(port, method + b" /varz HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n")
        assert b" 405 " in answer
        assert b"access-control-allow" not in answer.lower()


async def test_monitoring_refuses_endless_headers(start):
    server = await start()
    answer = await http(server.monitor_port, b"GET /varz HTTP/1.1\r\nA: " + b"x" * 40_000)
    assert b" 431 " in answer


async def test_dripping_requests_do_not_keep_others_from_monitoring(start):
    server = await start()
    dripping = [await asyncio.open_connection("127.0.0.1", server.monitor_port) for _ in range(150)]
    for _, writer in dripping:
        writer.write(b"GET /healthz HTTP/1.1\r\nHost: loc")
    request = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
    for _ in range(17):
        assert b" 200 " in await http(server.monitor_port, request)
    assert len(server.server.monitoring.sockets) <= 32, "the limit for one peer"
    for _, writer in dripping:
        writer.close()


async def test_a_request_that_drips_has_a_bounded_time(start, monkeypatch):
    monkeypatch.setattr(monitoring, "_REQUEST_S", 0.2)
    server = await start()
    reader, writer = await asyncio.open_connection("127.0.0.1", server.monitor_port)
    while not reader.at_eof():  # each byte would begin another thirty seconds
        writer.write(b"G")
        with suppress(TimeoutError):
            await asyncio.wait_for(reader.read(1), 0.02)
    writer.close()


async def test_monitoring_is_at_home_unless_told_otherwise(start):
    server = await start()
    assert Options().http_host == ""
    assert isinstance(server.server.monitoring, Monitoring)
    assert server.server.monitoring.host == "127.0.0.1"


MEGABYTE = bytes(1 << 20)


async def open_long_page(start, megabytes):
    """A page of so many megabytes that was asked for, and an event for its end."""
    ended = asyncio.Event()

    async def pages(_scope, _receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        for _ in range(megabytes):
            await send({"type": "http.response.body", "body": MEGABYTE, "more_body": True})
        ended.set()

    server = await start()
    server.server.monitoring.pages = pages
    reader, writer = await asyncio.open_connection("127.0.0.1", server.monitor_port)
    writer.write(b"GET /download HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readuntil(b"\r\n\r\n")
    return reader, writer, ended


async def test_pages_that_stay_open_leave_connections_for_monitoring(start):
    async def pages(_scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await receive()
        await receive()  # until the peer goes away

    server = await start()
    server.server.monitoring.pages = pages
    opened = [await asyncio.open_connection("127.0.0.1", server.monitor_port) for _ in range(40)]
    answers = []
    for reader, writer in opened:
        with suppress(ConnectionError, asyncio.IncompleteReadError):
            writer.write(b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            answers.append(int((await reader.readuntil(b"\r\n\r\n")).split()[1]))
    assert answers.count(200) == 24
    for path in (b"/healthz", b"/metrics", b"/varz"):
        assert b" 200 " in await http(
            server.monitor_port, b"GET %b HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n" % path
        )
    assert b" 503 " in await http(server.monitor_port, b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n")
    for _, writer in opened:
        writer.close()


async def test_a_long_answer_waits_for_its_reader(start):
    reader, writer, ended = await open_long_page(start, 32)
    assert not ended.is_set(), "all of it is in memory"
    assert len(await asyncio.wait_for(reader.read(-1), 60)) == 32 << 20
    assert ended.is_set()
    writer.close()


async def test_who_takes_nothing_of_an_answer_is_disconnected(start, monkeypatch):
    monkeypatch.setattr(served_pages, "_STALL_S", 0.2)
    reader, writer, ended = await open_long_page(start, 64)
    await asyncio.wait_for(ended.wait(), 60)
    with suppress(ConnectionError):
        assert len(await asyncio.wait_for(reader.read(-1), 60)) < 64 << 20
    writer.close()
