"""What the dashboard lets nobody do: act without a token, or from another site."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from starlette.testclient import TestClient

from jetlake.dashboard.app import build_app


class QuietCollector:
    """Stands where a collector would: what was asked of it is all that matters here."""

    def __init__(self):
        self.done = []

    def overview(self):
        return {}

    async def purge(self, stream):
        self.done.append(("purge", stream))

    async def pause(self, stream, consumer):
        self.done.append(("pause", stream, consumer))

    resume = unpin = pause


@pytest.fixture
def collector():
    return QuietCollector()


def page(collector, **options):
    return TestClient(build_app(collector, **options), base_url="http://127.0.0.1")


def test_without_a_token_it_only_reads(collector):
    assert page(collector).post("/api/actions/purge/ORDERS").status_code == 403
    assert collector.done == []


def test_the_token_must_be_right_and_in_our_header(collector):
    client = page(collector, token="secret")
    assert client.post("/api/actions/purge/ORDERS").status_code == 403
    assert client.post("/api/actions/purge/ORDERS", headers={"X-Jetlake-Token": "wrong"}).status_code == 403
    assert client.post("/api/actions/purge/ORDERS?token=secret").status_code == 403
    assert client.post("/api/actions/purge/ORDERS", headers={"X-Jetlake-Token": "secret"}).status_code == 200
    assert client.post("/api/actions/pause/S/C", headers={"X-Jetlake-Token": "secret"}).status_code == 200
    assert client.post("/api/actions/burn/S/C", headers={"X-Jetlake-Token": "secret"}).status_code == 404
    assert collector.done == [("purge", "ORDERS"), ("pause", "S", "C")]


def test_actions_cannot_be_links(collector):
    client = page(collector, token="secret")
    assert client.get("/api/actions/purge/ORDERS", headers={"X-Jetlake-Token": "secret"}).status_code == 405


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]:8222", "10.1.2.3:8222"])
def test_addresses_of_the_machine_are_served(collector, host):
    assert page(collector).get("/api/overview", headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8222", "127.0.0.1.evil.example", ""])
def test_a_name_that_was_made_to_point_here_is_refused(collector, host):
    assert page(collector).get("/api/overview", headers={"Host": host}).status_code == 403


def test_a_name_that_was_allowed_is_served(collector):
    client = page(collector, hosts=frozenset({"board.example"}))
    assert client.get("/api/overview", headers={"Host": "board.example"}).status_code == 200


def test_another_site_is_refused(collector):
    client = page(collector, token="secret")
    headers = {"X-Jetlake-Token": "secret", "Origin": "http://evil.example"}
    assert client.post("/api/actions/purge/ORDERS", headers=headers).status_code == 403
    assert collector.done == []


def test_a_browser_is_told_to_be_strict(collector):
    answer = page(collector).get("/")
    assert "default-src 'self'" in answer.headers["content-security-policy"]
    assert answer.headers["x-content-type-options"] == "nosniff"


def _get(url):
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


async def test_bad_questions_get_a_sentence(server, js):
    await js.create_stream("ORDERS")
    base = f"http://127.0.0.1:{server.monitoring.port}"
    for path in ("messages?seq=x", "messages?seq=-1", "messages?time=yesterday", "messages?limit=99999999999999999999"):
        status, body = await asyncio.to_thread(_get, f"{base}/api/streams/ORDERS/{path}")
        assert status == 400
        assert json.loads(body)["error"]
    for path in ("NOPE", "a.b", "%3E"):
        status, body = await asyncio.to_thread(_get, f"{base}/api/streams/{path}")
        assert status in (400, 404)
    assert (await asyncio.to_thread(_get, f"{base}/varz"))[0] == 200
    assert (await asyncio.to_thread(_get, f"{base}/static/../app.py"))[0] == 404
