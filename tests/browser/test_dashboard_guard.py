"""What the dashboard lets nobody do: ask from another site, or ask nonsense."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request

import pytest
from starlette.testclient import TestClient

from jetlake.dashboard.app import build_app

ASKED = "/api/session"


def page(**options):
    return TestClient(build_app(None, **options), base_url="http://127.0.0.1")


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "[::1]:8222", "10.1.2.3:8222"])
def test_addresses_of_the_machine_are_served(host):
    assert page().get(ASKED, headers={"Host": host}).status_code == 200


@pytest.mark.parametrize("host", ["evil.example", "evil.example:8222", "127.0.0.1.evil.example", ""])
def test_a_name_that_was_made_to_point_here_is_refused(host):
    assert page().get(ASKED, headers={"Host": host}).status_code == 403


def test_a_name_that_was_allowed_is_served():
    client = page(hosts=frozenset({"board.example"}))
    assert client.get(ASKED, headers={"Host": "board.example"}).status_code == 200


def test_a_browser_is_told_to_be_strict():
    answer = page().get("/")
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
    for path in (
        "messages?from=x",
        "messages?before=-1",
        "messages?time=yesterday",
        "messages?limit=99999999999999999999",
        "messages/" + "9" * 5000,
        "messages/x/payload",
    ):
        status, body = await asyncio.to_thread(_get, f"{base}/api/streams/ORDERS/{path}")
        assert status == 400
        assert json.loads(body)["error"]
    for path in ("NOPE", "a.b", "%3E"):
        status, body = await asyncio.to_thread(_get, f"{base}/api/streams/{path}/messages")
        assert status in (400, 404)
        assert json.loads(body)["error"]
    for query in ("page=nope", "range=1y", "offset=x", "page=stream&stream=a.b"):
        assert (await asyncio.to_thread(_get, f"{base}/api/view?{query}"))[0] == 400
    # One header that is no text does not hide the others.
    await js.publish("ORDERS", b"x", headers={"Kind": "\udcff"})
    status, body = await asyncio.to_thread(_get, f"{base}/api/streams/ORDERS/messages")
    assert status == 200 and json.loads(body)["messages"][0]["headers"] == [["Kind", "\\udcff"]]
    assert (await asyncio.to_thread(_get, f"{base}/varz"))[0] == 200
    assert (await asyncio.to_thread(_get, f"{base}/static/../app.py"))[0] == 404


def test_a_body_that_is_not_utf_8_gets_a_sentence():
    client = page(connect=lambda _credentials: None)
    headers = {"Origin": "http://127.0.0.1", "Content-Type": "application/json"}
    answer = client.post("/api/login", content=b'{"user": "\xff"}', headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]


def test_the_answer_to_an_internal_error_is_strict_and_says_nothing():
    async def fail(_credentials):
        raise RuntimeError("a secret")

    client = TestClient(build_app(None, connect=fail), base_url="http://127.0.0.1", raise_server_exceptions=False)
    answer = client.post("/api/login", json={"user": "u"}, headers={"Origin": "http://127.0.0.1"})
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "default-src 'self'" in answer.headers["content-security-policy"]
