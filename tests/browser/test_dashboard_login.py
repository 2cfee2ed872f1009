"""Logging in: sessions, their cookies and tokens, what is refused, and that the server's own permissions decide."""

from __future__ import annotations

import asyncio
import io
import json
import tarfile
import tempfile
import time
from base64 import b64encode
from http.cookies import SimpleCookie

import httpx2 as httpx
import pytest

import jetlake
from jetlake.cli import watched_accounts
from jetlake.cli.served_dashboard import pages
from jetlake.cli.session import Session
from jetlake.dashboard import sessions as sessions_module
from jetlake.dashboard import viewers as viewers_module
from jetlake.dashboard.sessions import PEER_FAILURES_MAX, Credentials
from jetlake.dashboard.watching.listing import Listing
from jetlake.errors import AuthorizationError
from jetlake.server import Server
from jetlake.server.config.assemble import assemble

CONFIG = """
listen: "127.0.0.1:-1"
http: "127.0.0.1:-1"
jetstream {{ store_dir: "{folder}" }}
accounts {{
  SHOP {{
    jetstream: enabled
    users: [
      {{ user: boss, password: secret }}
      {{ user: mute, password: x, permissions: {{ publish: ["nothing"], subscribe: ["_INBOX.>"] }} }}
      {{ user: deaf, password: y, permissions: {{ publish: ["$JS.API.STREAM.LIST"], subscribe: ["_INBOX.>"] }} }}
      {{ user: clerk, password: pen, permissions: {{
        publish: {{ allow: ["$JS.API.INFO", "$JS.API.STREAM.LIST", "$JS.API.STREAM.INFO.>", "$JS.API.CONSUMER.LIST.>",
                            "$JS.API.STREAM.MSG.GET.>", "$SYS.REQ.USER.INFO"],
                    deny: ["$JS.API.STREAM.MSG.GET.SECRET", "$JS.API.CONSUMER.LIST.SECRET"] }}
        subscribe: {{ allow: ["_INBOX.>", "$JS.EVENT.>", "jetlake.>"] }} }} }}
    ]
  }}
  OTHER {{ jetstream: enabled, users: [ {{ user: else, password: where }} ] }}
}}
"""


@pytest.fixture
async def shop(tmp_path):
    """A server with users, its dashboard, and a stream."""
    file = tmp_path / "server.conf"
    file.write_text(CONFIG.format(folder=tmp_path / "store"))
    flags = {"config": str(file)}
    server = Server(options=assemble(flags).options)
    server.load_options = lambda: assemble(flags).options
    server.file = file
    server.pages = pages(server)
    async with server:
        async with await jetlake.connect(server.url, user="boss", password="secret") as client:
            await client.jetstream().create_stream("ORDERS", subjects=["orders.>"])
        yield server


class Page:
    """A browser's tab, as far as the server can tell."""

    def __init__(self, server):
        self.base = f"http://127.0.0.1:{server.monitoring.port}"
        self.client = httpx.AsyncClient(base_url=self.base, timeout=30)
        self.csrf = ""

    async def get(self, path, **options):
        return await self.client.get(path, **options)

    async def post(self, path, body=None, **headers):
        given = {"origin": self.base, "x-jetlake-csrf": self.csrf, **headers}
        return await self.client.post(path, json=body, headers={name: value for name, value in given.items() if value})

    async def login(self, user, password, change=True):
        answer = await self.post("/api/login", {"user": user, "password": password, "change": change})
        self.csrf = answer.json().get("csrf", "")
        return answer

    async def change(self, kind, **arguments):
        """Prepare a change and confirm it."""
        prepared = await self.post("/api/changes", {"kind": kind, "arguments": arguments})
        if prepared.status_code != 200:
            return prepared
        return await self.post(f"/api/changes/{prepared.json()['id']}")


@pytest.fixture
async def page(shop):
    page = Page(shop)
    async with page.client:
        yield page


async def test_without_a_login_a_server_with_users_shows_nothing(page):
    assert (await page.get("/")).status_code == 200
    said = (await page.get("/api/session")).json()
    assert (said["can_login"], said["needs_login"], said["user"]) == (True, True, None)
    for path in ("/api/view", "/api/live", "/api/streams/ORDERS/messages", "/api/streams/ORDERS/search?text=x"):
        assert (await page.get(path)).status_code == 401
    assert (await page.change("stream.delete", stream="ORDERS")).status_code == 403
    for report in ("/varz", "/connz", "/jsz", "/metrics"):  # which nats-server shows to everybody too
        assert (await page.get(report)).status_code == 200


async def test_a_session_is_a_cookie_that_scripts_and_other_sites_never_see(page):
    answer = await page.login("boss", "secret")
    assert answer.status_code == 200
    (cookie,) = SimpleCookie(answer.headers["set-cookie"]).values()
    assert cookie["httponly"] and cookie["samesite"].lower() == "strict" and cookie["path"] == "/"
    assert len(cookie.value) >= 43
    assert "secret" not in answer.text and cookie.value not in answer.text
    view = (await page.get("/api/view")).json()
    assert [row["name"] for row in view["page"]["rows"]] == ["ORDERS"]
    first = cookie.value
    (cookie,) = SimpleCookie((await page.login("boss", "secret")).headers["set-cookie"]).values()
    assert cookie.value != first  # and the one before is over
    page.client.cookies.clear()
    page.client.cookies.set(cookie.key, first)
    assert (await page.get("/api/session")).json()["user"] is None


async def test_a_login_without_changes_only_reads(page):
    await page.login("boss", "secret", change=False)
    assert (await page.get("/api/session")).json()["may_change"] is False
    assert (await page.get("/api/view")).status_code == 200
    refused = await page.change("stream.delete", stream="ORDERS")
    assert refused.status_code == 403 and "allow changes" in refused.json()["error"]


async def test_wrong_passwords_are_refused_alike_and_not_for_ever(page):
    texts = set()
    for user, password in (("boss", "x"), ("nobody", "x"), ("", ""), ("boss", ""), ("clerk", "secret")):
        answer = await page.login(user, password)
        assert answer.status_code == 401 and "set-cookie" not in answer.headers
        texts.add(answer.json()["error"])
    assert len(texts) == 1
    # Now the right one has to wait too, and is told so.
    answer = await page.login("boss", "secret")
    assert answer.status_code == 429 and int(answer.headers["retry-after"]) > 30


async def test_many_logins_at_once_are_no_way_around_the_limit(page):
    answers = await asyncio.gather(*(page.login("boss", f"guess {number}") for number in range(20)))
    assert sorted(answer.status_code for answer in answers) == [401] * PEER_FAILURES_MAX + [429] * 15


async def test_a_change_needs_the_cookie_the_token_and_the_own_origin(page, shop):
    await page.login("boss", "secret")
    wanted = {"kind": "stream.delete", "arguments": {"stream": "ORDERS"}}
    other_port = f"http://127.0.0.1:{shop.monitoring.port + 1}"
    for headers in (
        {"x-jetlake-csrf": ""},
        {"x-jetlake-csrf": "x" + page.csrf},
        {"origin": ""},
        {"origin": "null"},
        {"origin": "http://evil.example"},
        {"origin": other_port},
    ):
        assert (await page.post("/api/changes", wanted, **headers)).status_code == 403, headers
    prepared = (await page.post("/api/changes", wanted)).json()
    for headers in ({"x-jetlake-csrf": ""}, {"origin": other_port}):
        assert (await page.post(f"/api/changes/{prepared['id']}", **headers)).status_code == 403
        assert (await page.post("/api/logout", **headers)).status_code == 403
    assert (await page.post("/api/login", {"user": "boss"}, origin=other_port)).status_code == 403
    # A form of another site can send text, not JSON; nor is anything changed by a link.
    form = await page.client.post(
        "/api/changes", content=json.dumps(wanted), headers={"origin": page.base, "x-jetlake-csrf": page.csrf}
    )
    assert form.status_code == 400
    assert (await page.get("/api/changes")).status_code == 405
    page.client.cookies.clear()
    assert (await page.post("/api/changes", wanted)).status_code == 403


async def test_what_is_confirmed_is_what_was_shown_once_and_by_the_same_session(page, shop):
    await page.login("boss", "secret")
    shown = (await page.post("/api/changes", {"kind": "stream.purge", "arguments": {"stream": "ORDERS"}})).json()
    assert shown["command"] == "jetlake stream purge ORDERS --force"
    stranger = Page(shop)
    async with stranger.client:
        await stranger.login("boss", "secret")
        assert (await stranger.post(f"/api/changes/{shown['id']}")).status_code == 400
    assert (await page.post(f"/api/changes/{shown['id']}")).json()["done"] == "Purged 0 messages from ORDERS."
    assert (await page.post(f"/api/changes/{shown['id']}")).status_code == 400
    assert (await page.post("/api/changes/nonsense")).status_code == 400


async def test_the_servers_permissions_decide(page):
    await page.login("clerk", "pen")
    assert [row["name"] for row in (await page.get("/api/view")).json()["page"]["rows"]] == ["ORDERS"]
    refused = await page.change("stream.delete", stream="ORDERS")
    assert refused.status_code == 403
    assert "permission" in refused.json()["error"].lower()
    refused = await page.change("message.publish", subject="orders.new", payload=b64encode(b"x").decode())
    assert "permission" in refused.json()["error"].lower()
    await page.login("boss", "secret")
    assert (await page.get("/api/view")).json()["page"]["rows"][0]["messages"] == 0


async def test_a_user_who_may_read_nothing_is_told_why(page):
    assert (await page.login("mute", "x")).status_code == 200
    server = (await page.get("/api/view")).json()["board"]["server"]
    assert server["connected"] is False and "Permissions Violation" in server["refusal"]
    shown = (await page.get("/api/view?page=stream&stream=ORDERS")).json()["page"]
    assert shown == {"error": "Stream ORDERS is not known yet."}


async def test_a_user_who_may_only_list_streams_sees_them_and_what_is_not_shown(page):
    """A refused report of the account hides no stream, and refused events are no empty list."""
    assert (await page.login("deaf", "y")).status_code == 200
    view = (await page.get("/api/view")).json()
    assert view["board"]["server"]["connected"]
    assert [row["name"] for row in view["page"]["rows"]] == ["ORDERS"]
    async with asyncio.timeout(10):
        while len(unheard := (await page.get("/api/view?page=events")).json()["page"]["unheard"]) < 4:
            await asyncio.sleep(0.05)
    assert "$JS.EVENT.METRIC.>" in unheard and "jetlake.pipeline.progress.>" in unheard


async def test_users_see_their_own_account(page):
    await page.login("else", "where")
    assert (await page.get("/api/view")).json()["page"]["rows"] == []
    assert (await page.get("/api/streams/ORDERS/messages")).status_code == 404


async def test_sessions_end_by_logging_out_by_idleness_by_age_and_by_number(page, shop, monkeypatch):
    await page.login("boss", "secret")
    assert (await page.post("/api/logout")).status_code == 200
    assert (await page.get("/api/view")).status_code == 401
    for limit in ("IDLE_S", "LIFE_S"):
        await page.login("boss", "secret")
        with monkeypatch.context() as patched:
            patched.setattr(sessions_module, limit, -1.0)
            assert (await page.get("/api/view")).status_code == 401
        assert (await page.get("/api/view")).status_code == 401
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 1)
    await page.login("boss", "secret")
    other = Page(shop)
    async with other.client:
        await other.login("boss", "secret")
        assert (await page.get("/api/view")).status_code == 401
        assert (await other.get("/api/view")).status_code == 200
    # What is over leaves no connection behind.
    async with asyncio.timeout(30):
        while sum(one["name"] == "jetlake dashboard" for one in (await page.get("/connz")).json()["connections"]) > 1:
            await asyncio.sleep(0.01)


async def test_many_logins_of_one_user_end_no_session_of_another(page, shop, monkeypatch):
    monkeypatch.setattr(sessions_module, "SESSIONS_MAX", 3)
    await page.login("boss", "secret")
    clerks = [Page(shop) for _ in range(4)]
    for clerk in clerks:
        await clerk.login("clerk", "pen")
    assert [(await clerk.get("/api/session")).json()["user"] for clerk in clerks] == [None, None, "clerk", "clerk"]
    assert (await page.get("/api/session")).json()["user"] == "boss"
    for clerk in clerks:
        await clerk.client.aclose()


class Live:
    """A stream of events that a tab has open."""

    def __init__(self, page, path):
        self.response = page.client.stream("GET", path)
        self.lines = None

    async def open(self):
        """Wait for the first event, and return the stream."""
        self.lines = (await self.response.__aenter__()).aiter_lines()
        await anext(self.lines)
        return self

    async def ended(self):
        """Read until the server ends the stream."""
        async with asyncio.timeout(30):
            return [line async for line in self.lines]

    async def close(self):
        await self.response.__aexit__(None, None, None)


async def test_live_pages_of_one_user_end_the_oldest_and_leave_the_others_alone(page, shop, monkeypatch):
    monkeypatch.setattr(viewers_module, "STREAMS_OF_VIEWER_MAX", 3)
    tabs = [Page(shop), Page(shop)]
    for tab in tabs:
        await tab.login("clerk", "pen")
    await page.login("boss", "secret")
    mine = await Live(page, "/api/live").open()
    opened = [await Live(tabs[number % 2], "/api/live").open() for number in range(5)]
    for oldest in opened[:2]:
        await oldest.ended()
    for still_open in (mine, *opened[2:]):
        while not (await anext(still_open.lines)).startswith("data"):
            pass
    for path in ("/healthz", "/metrics", "/api/view"):
        assert (await page.get(path)).status_code == 200
    for one in (mine, *opened):
        await one.close()
    for tab in tabs:
        await tab.client.aclose()


async def test_live_pages_end_with_the_session(page, shop):
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        await page.login("boss", "secret")
        live = await Live(page, "/api/live").open()
        tailing = asyncio.create_task(Live(page, "/api/streams/ORDERS/tail").open())
        while not tailing.done():
            await client.jetstream().publish("orders.new", b"x")
            await asyncio.sleep(0.05)
        assert (await page.post("/api/logout")).status_code == 200
        await live.ended()
        await (await tailing).ended()
        await live.close()
        await tailing.result().close()


async def test_a_stream_that_may_not_be_read_does_not_hide_the_others(page, shop):
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        js = client.jetstream()
        for name in ("SECRET", "DEAD"):
            stream = await js.create_stream(name, subjects=[f"{name}.>"], allow_msg_schedules=True)
            await stream.create_consumer("worker")
            await js.schedule(f"{name}.plan", b"clean", target=f"{name}.run", every=3600)
            await js.publish(f"{name}.a", b"x", headers={"Dead-Letter-Stream": "ORDERS"})
    await page.login("clerk", "pen")
    letters = (await page.get("/api/dead-letters")).json()
    assert [row["stream"] for row in letters["rows"]] == ["DEAD"]
    assert [row["stream"] for row in letters["unread"]] == ["SECRET"]
    schedules = (await page.get("/api/schedules")).json()
    assert {row["stream"] for row in schedules["rows"]} == {"DEAD"}
    assert [row["stream"] for row in schedules["unread"]] == ["SECRET"]
    assert all("Permissions Violation" in row["error"] for row in (*letters["unread"], *schedules["unread"]))
    view = (await page.get("/api/view?page=consumers")).json()
    assert [row["stream"] for row in view["page"]["rows"]] == ["DEAD"]
    assert view["board"]["server"]["connected"]
    assert any("consumers of 1 stream can't be listed" in one["text"] for one in view["board"]["attention"])


async def test_backups_are_downloaded_once_and_never_pile_up(page, shop, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    await page.login("boss", "secret")
    links = [(await page.change("stream.backup", stream="ORDERS")).json()["download"] for _ in range(3)]
    assert len(list(tmp_path.glob("jetlake-backup-*"))) == 2
    stranger = Page(shop)
    async with stranger.client:
        await stranger.login("boss", "secret")
        assert (await stranger.get(f"/{links[2]}")).status_code == 404
    assert (await page.get(f"/{links[0]}")).status_code == 404
    answer = await page.get(f"/{links[2]}")
    assert (answer.status_code, answer.headers["content-disposition"]) == (200, 'attachment; filename="ORDERS.tar"')
    assert (await page.get(f"/{links[2]}")).status_code == 404
    await page.post("/api/logout")
    async with asyncio.timeout(60):
        while list(tmp_path.glob("jetlake-backup-*")):
            await asyncio.sleep(0.01)


async def send(page, content, upload=""):
    """Sends a piece of a file."""
    headers = {"origin": page.base, "x-jetlake-csrf": page.csrf, "content-type": "application/octet-stream"}
    return await page.client.post(f"/api/uploads?upload={upload}", content=content, headers=headers)


async def test_a_backup_is_restored_from_its_tar_file(page, shop, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        js = client.jetstream()
        for _ in range(3):
            await js.publish("orders.new", b"x" * 1000)
        await js.create_consumer("ORDERS", "worker")
        await page.login("boss", "secret")
        link = (await page.change("stream.backup", stream="ORDERS")).json()["download"]
        content = (await page.get(f"/{link}")).content
        upload = (await send(page, content[:1000])).json()["upload"]
        assert (await send(page, content[1000:], upload)).json() == {"upload": upload}
        said = (await page.post("/api/restores", {"upload": upload})).json()["error"]
        assert said == "stream ORDERS exists already; give the restored stream another name and subjects"
        await js.delete_stream("ORDERS")
        shown = (await page.post("/api/restores", {"upload": upload})).json()
        assert shown["command"] == "jetlake stream restore ./ORDERS"
        assert ["messages", "", "3"] in shown["changes"] and ["consumers", "", "1"] in shown["changes"]
        assert await js.stream_names() == []
        done = await page.post(f"/api/changes/{shown['id']}")
        assert done.json()["done"] == "Restored stream ORDERS with 3 messages."
        assert (await (await js.stream("ORDERS")).info()).state.messages == 3
        assert await (await js.stream("ORDERS")).consumer_names() == ["worker"]
    assert list(tmp_path.glob("jetlake-restore-*")) == []


async def test_what_is_uploaded_is_bounded_and_ends_with_the_session(page, shop, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    assert (await send(page, b"x")).status_code == 403
    await page.login("boss", "secret", change=False)
    assert (await send(page, b"x")).status_code == 403
    await page.login("boss", "secret")
    first, second, third = [(await send(page, b"x" * 2000)).json()["upload"] for _ in range(3)]
    assert len(list(tmp_path.glob("jetlake-restore-*"))) == 2
    assert "choose the file again" in (await send(page, b"x", first)).json()["error"]
    assert "not the tar file of a backup" in (await page.post("/api/restores", {"upload": second})).json()["error"]
    monkeypatch.setattr("jetlake.dashboard.restores.UPLOAD_BYTES_MAX", 3000)
    assert "larger than 3,000 bytes" in (await send(page, b"x" * 2000, third)).json()["error"]
    stranger = Page(shop)
    async with stranger.client:
        await stranger.login("boss", "secret")
        assert "choose the file again" in (await stranger.post("/api/restores", {"upload": third})).json()["error"]
    # No path of an archive is used, and nothing but a backup is unpacked.
    evil = io.BytesIO()
    with tarfile.open(fileobj=evil, mode="w") as archive:
        for name in ("../../outside", "/tmp/absolute", "backup.json"):
            member = tarfile.TarInfo(name)
            member.size = 2
            archive.addfile(member, io.BytesIO(b"{}"))
    monkeypatch.undo()
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    upload = (await send(page, evil.getvalue())).json()["upload"]
    assert (await page.post("/api/restores", {"upload": upload})).status_code >= 400
    assert not (tmp_path / "outside").exists() and not (tmp_path.parent / "outside").exists()
    await page.post("/api/logout")
    async with asyncio.timeout(60):
        while list(tmp_path.glob("jetlake-restore-*")):
            await asyncio.sleep(0.01)


async def test_a_person_restores_a_stream_beside_the_old_one(boss, tab, tmp_path):
    await boss.publish("orders.new", b"1")
    await (await boss.stream("ORDERS")).backup(tmp_path / "ORDERS")
    with tarfile.open(tmp_path / "ORDERS.tar", "w") as archive:
        archive.add(tmp_path / "ORDERS", arcname="ORDERS")
    await tab.get_by_label("Restore a stream from the tar file").set_input_files(tmp_path / "ORDERS.tar")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_text("stream ORDERS exists already").wait_for()
    await tab.get_by_label("Name of the stream").fill("AGAIN")
    await tab.get_by_label("Subjects, separated").fill("again.>")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_text("jetlake stream restore ./ORDERS --name AGAIN --subjects 'again.>'").wait_for()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_text("Restored stream AGAIN with 1 message.").wait_for()


async def test_a_user_who_is_removed_from_the_server_is_out(page, shop):
    await page.login("boss", "secret")
    assert (await page.get("/api/view")).status_code == 200
    shop.file.write_text(shop.file.read_text().replace("user: boss, password: secret", "user: boss, password: changed"))
    shop.reload_configuration()
    async with asyncio.timeout(60):
        while (await page.get("/api/view")).status_code != 401:
            await asyncio.sleep(0.05)
    assert (await page.get("/api/session")).json()["user"] is None


async def test_sessions_that_are_over_end_without_being_asked_for(page, shop, monkeypatch):
    monkeypatch.setattr(sessions_module, "SWEEP_S", 0.01)
    await page.login("boss", "secret")
    monkeypatch.setattr(sessions_module, "IDLE_S", -1.0)
    async with asyncio.timeout(60):
        while any(one["name"] == "jetlake dashboard" for one in (await page.get("/connz")).json()["connections"]):
            await asyncio.sleep(0.01)


async def test_bodies_are_bounded_and_must_be_what_is_wanted(page):
    await page.login("boss", "secret")
    for body in (
        {"kind": 7},
        {"kind": "stream.burn"},
        {"kind": "stream.purge"},
        {"kind": "stream.purge", "other": 1},
        [],
    ):
        assert (await page.post("/api/changes", body)).status_code == 400
    big = {"kind": "message.publish", "arguments": {"subject": "orders.new", "payload": "A" * 3_000_000}}
    assert (await page.post("/api/changes", big)).status_code == 413
    payload = b64encode(b"x" * 1_000_000).decode()
    assert (await page.change("message.publish", subject="orders.big", payload=payload)).status_code == 200


async def test_a_server_without_users_is_only_shown(server):
    page = Page(server)
    async with page.client:
        said = (await page.get("/api/session")).json()
        assert (said["can_login"], said["needs_login"]) == (False, False)
        assert (await page.login("anybody", "anything")).status_code == 403
        assert (await page.change("stream.create", stream="X", options={})).status_code == 403


async def test_nothing_that_logs_the_dashboard_in_logs_its_users_in(shop):
    watching = {"server": f"nats://boss:secret@127.0.0.1:{shop.port}"}
    for settings in (watching, {"server": shop.url, "user": "boss", "password": "secret"}):
        session = Session(settings, context=None)
        await (await session.connect()).close()
        for credentials in (Credentials(), Credentials(user="boss"), Credentials(token="secret")):
            with pytest.raises(AuthorizationError):
                await session.connect_as(credentials)
        await (await session.connect_as(Credentials("boss", "secret"))).close()


@pytest.fixture
async def tab(shop, browser):
    """A browser's tab in which a user who may change everything has logged in."""
    tab = await browser.new_page()
    tab.set_default_timeout(20_000)
    errors = []
    tab.on("pageerror", lambda error: errors.append(str(error)))
    await tab.goto(f"http://127.0.0.1:{shop.monitoring.port}/")
    await tab.get_by_label("User").fill("boss")
    await tab.get_by_label("Password").fill("secret")
    await tab.get_by_label("Allow changes").check()
    await tab.get_by_role("button", name="Log in").click()
    await tab.get_by_role("button", name="Create stream").wait_for()
    yield tab
    assert errors == []


@pytest.fixture
async def boss(shop):
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        yield client.jetstream()


async def go(tab, path):
    await tab.evaluate("path => { location.hash = path; }", path)


async def test_a_person_logs_in_creates_a_stream_publishes_and_deletes_it(shop, tab):
    """In a real browser: a change is shown with its command, and confirmed."""
    await tab.get_by_role("button", name="Create stream").click()
    await tab.get_by_label("Name").fill("PAYMENTS")
    await tab.get_by_label("Subjects, separated").fill("payments.>")
    await tab.get_by_label("Max age").fill("soon")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_text("is not a duration").wait_for()
    await tab.get_by_label("Max age").fill("7d")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_text("jetlake stream add PAYMENTS --subjects 'payments.>'").wait_for()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_text("Created stream PAYMENTS.").wait_for()
    await tab.get_by_role("link", name="PAYMENTS").click()
    await tab.get_by_role("link", name="Messages").click()
    await tab.get_by_role("button", name="Publish").click()
    await tab.get_by_role("textbox", name="Subject").last.fill("payments.new")
    await tab.get_by_label("Headers, one a line").fill("Kind: first")
    await tab.get_by_label("Payload", exact=True).fill("Grüße")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_role("button", name="Back", exact=True).click()
    await tab.get_by_role("dialog").get_by_role("button", name="Publish").click()
    await tab.get_by_text("Stored in PAYMENTS at sequence 1.").wait_for()
    await tab.get_by_text("Grüße").wait_for()  # the list that was empty has it
    await tab.get_by_text("#1", exact=True).first.wait_for()
    await tab.go_back()
    await tab.get_by_role("button", name="Delete").click()
    await tab.get_by_role("button", name="Delete stream PAYMENTS").click()
    await tab.get_by_text("Deleted stream PAYMENTS.").wait_for()
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        assert await client.jetstream().stream_names() == ["ORDERS"]
    await tab.get_by_role("button", name="Log out").click()
    await tab.locator("input[name=user]:focus").wait_for()
    assert await tab.evaluate("document.cookie") == ""


async def test_small_changes_take_one_click(boss, tab):
    worker = await boss.create_consumer("ORDERS", "worker")
    await go(tab, "#/streams/ORDERS/consumers/worker")
    await tab.get_by_role("button", name="Pause").click()
    await tab.get_by_role("dialog").get_by_role("button", name="Pause").click()
    await tab.get_by_text("Paused consumer worker.").wait_for()
    assert (await worker.info()).paused
    await tab.get_by_role("button", name="Resume").click()
    await tab.get_by_text("Resumed consumer worker.").wait_for()
    assert not (await worker.info()).paused
    # What the server refuses is told where it was typed.
    await go(tab, "#/streams/ORDERS/messages")
    await tab.get_by_role("button", name="Publish").click()
    await tab.get_by_role("textbox", name="Subject").last.fill("nowhere")
    await tab.get_by_role("dialog").get_by_role("button", name="Publish").click()
    await tab.get_by_role("dialog").get_by_text("nowhere").wait_for()
    assert await tab.get_by_role("textbox", name="Subject").last.input_value() == "nowhere"


async def test_a_message_that_was_deleted_is_no_longer_listed(boss, tab):
    for number in range(3):
        await boss.publish("orders.new", b"%d" % number)
    await go(tab, "#/streams/ORDERS/messages")
    await tab.get_by_text("#2", exact=True).click()
    await tab.get_by_role("button", name="Delete").click()
    await tab.get_by_role("dialog").get_by_role("button", name="Delete").click()
    await tab.get_by_text("#2", exact=True).wait_for(state="detached")
    assert await tab.locator(".message b").all_inner_texts() == ["#3", "#1"]


async def test_the_history_of_a_key_shows_an_edit_and_stays_with_its_bucket(boss, tab):
    await (await boss.create_key_value("SETTINGS", history=5)).put("colour", b"red")
    await (await boss.create_key_value("OTHER")).put("size", b"small")
    await go(tab, "#/kv/SETTINGS")
    await tab.get_by_role("button", name="colour").click()
    for value in ("green", "blue"):
        await tab.locator("#history").get_by_role("button", name="Edit").click()
        await tab.get_by_label("Value").fill(value)
        await tab.get_by_role("button", name="Preview").click()
        await tab.get_by_role("button", name="Confirm").click()
        await tab.locator("#history pre").first.get_by_text(value).wait_for()
    assert await tab.locator("#history summary b").all_inner_texts() == ["revision 3", "revision 2", "revision 1"]
    await go(tab, "#/kv/OTHER")
    await tab.get_by_role("button", name="size").wait_for()
    assert await tab.locator("#history").count() == 0


async def test_a_bucket_and_a_store_are_made_and_a_file_uploaded(boss, tab):
    await go(tab, "#/kv/NOWHERE")
    await tab.get_by_text("Key-value bucket NOWHERE not found").wait_for()
    await go(tab, "#/kv")
    await tab.get_by_role("button", name="Create bucket").click()
    await tab.get_by_label("Name").fill("SETTINGS")
    await tab.get_by_label("Values kept").fill("5")
    await tab.get_by_label("TTL").fill("7d")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_text("jetlake kv add --history 5 --ttl 7d SETTINGS").wait_for()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_text("Created bucket SETTINGS.").wait_for()
    status = await (await boss.key_value("SETTINGS")).status()
    assert (status.history, status.ttl_s) == (5, 7 * 86400)
    await go(tab, "#/objects")
    await tab.get_by_role("button", name="Create object store").click()
    await tab.get_by_label("Name").fill("FILES")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_role("link", name="FILES").click()
    content = bytes(range(256)) * 1000
    await tab.get_by_label("Upload").set_input_files({"name": "a.bin", "mimeType": "x/y", "buffer": content})
    await tab.get_by_role("cell", name="a.bin").wait_for()
    assert await (await boss.object_store("FILES")).get("a.bin") == content
    # What would be replaced is asked for first.
    await tab.get_by_label("Upload").set_input_files({"name": "a.bin", "mimeType": "x/y", "buffer": b"new"})
    await tab.get_by_text("jetlake object put --name a.bin --force FILES a.bin").wait_for()
    await tab.get_by_role("button", name="Upload a.bin to FILES").click()
    await tab.get_by_text("Stored object a.bin: 3 B.").wait_for()
    large = {"name": "b.bin", "mimeType": "x/y", "buffer": bytes(1024 * 1024 + 1)}
    await tab.get_by_label("Upload").set_input_files(large)
    await tab.get_by_text("jetlake object put FILES FILE").wait_for()


async def test_an_alert_has_the_way_out(boss, tab, monkeypatch):
    monkeypatch.setattr("jetlake.dashboard.watching.attention.STUCK_S", 0.0)
    await boss.create_consumer("ORDERS", "worker")
    await boss.publish("orders.new", b"1")
    await tab.get_by_text("jetlake consumer why ORDERS worker").wait_for()
    await tab.get_by_role("button", name="Delete the consumer").click()
    await tab.get_by_text("jetlake consumer rm ORDERS worker --force").wait_for()
    await tab.get_by_role("button", name="Delete consumer worker of ORDERS").click()
    await tab.get_by_text("Deleted consumer worker of ORDERS.").wait_for()
    await tab.get_by_text("No consumer is stuck").wait_for()


async def test_a_slash_goes_to_the_search(boss, tab):
    await tab.get_by_role("link", name="ORDERS").wait_for()
    await tab.keyboard.press("/")
    assert await tab.evaluate("document.activeElement.type") == "search"
    assert await tab.evaluate("document.activeElement.value") == ""


async def test_a_dialog_does_not_follow_to_another_page(boss, tab):
    await go(tab, "#/streams/ORDERS")
    await tab.get_by_role("button", name="Delete").click()
    await tab.get_by_role("dialog").wait_for()
    await tab.evaluate("history.back()")
    await tab.get_by_role("dialog").wait_for(state="detached")


async def test_what_was_typed_is_kept_when_the_server_refuses_it(boss, tab):
    await go(tab, "#/streams/ORDERS")
    await tab.get_by_role("button", name="Edit").click()
    await tab.get_by_label("Description").fill("all orders")
    await tab.get_by_label("Replicas").fill("3")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_text("replicas > 1 not supported").wait_for()
    await tab.get_by_role("button", name="Back", exact=True).click()
    assert await tab.get_by_label("Description").input_value() == "all orders"
    await tab.get_by_label("Replicas").fill("1")
    await tab.get_by_role("button", name="Preview").click()
    await tab.get_by_role("button", name="Confirm").click()
    await tab.get_by_text("Updated stream ORDERS.").wait_for()
    assert (await (await boss.stream("ORDERS")).info()).config.description == "all orders"


async def test_a_server_that_asks_for_a_login_since_its_restart_shows_the_form_alone(server, browser):
    tab = await browser.new_page()
    tab.set_default_timeout(20_000)
    await tab.goto(f"http://127.0.0.1:{server.monitoring.port}/")
    await tab.get_by_text("read-only: why?").click()
    await tab.get_by_text("this page has no login").wait_for()
    await go(tab, "#/kv")
    await tab.get_by_role("dialog").wait_for(state="detached")
    session = {"user": None, "may_change": False, "csrf": "", "can_login": True, "needs_login": True}
    await tab.route("**/api/session*", lambda route: route.fulfill(json=session))
    await tab.route("**/api/live*", lambda route: route.fulfill(status=401, json={"error": "log in first"}))
    await go(tab, "#/consumers")
    await tab.get_by_label("User").wait_for()
    assert await tab.locator("#who").inner_text() == ""


class Earlier:
    """The clock of a while ago."""

    monotonic = staticmethod(time.monotonic)

    @staticmethod
    def time():
        return time.time() - 60.0


async def test_a_consumer_that_was_stuck_before_the_login_is_shown_with_the_first_page(shop, page, monkeypatch):
    async with await jetlake.connect(shop.url, user="boss", password="secret") as client:
        js = client.jetstream()
        await js.create_consumer("ORDERS", "worker")
        # A mirror reads through a consumer of the server's own, which nobody lists.
        await js.create_stream("COPY", mirror="ORDERS")
        await js.publish("orders.new", b"1")
        while not (await (await js.stream("COPY")).info()).state.messages:
            await asyncio.sleep(0.01)
    monkeypatch.setattr(watched_accounts, "time", Earlier)
    await shop.pages._watch_accounts()  # as the server does after its start
    shop.pages._watching.cancel()
    assert (await page.get("/api/view")).status_code == 401  # which shows nobody anything
    await page.login("boss", "secret")
    view = (await page.get("/api/view?page=connections")).json()
    assert [(one["state"], one["consumer"]) for one in view["board"]["attention"]] == [("stuck", "worker")]
    assert view["page"]["rows"]  # connections are known
    assert view["board"]["storage_max"] > 0 and view["board"]["slow_consumers"] == 0
    (reason,) = (await page.get("/api/view?page=consumer&stream=ORDERS&consumer=worker")).json()["page"]["reasons"]
    assert reason == "no fetch or consume is waiting, so no client requests the pending messages (1)"
    charts = (await page.get("/api/view?page=streams")).json()["page"]["charts"]
    assert len([value for value in charts["pending"]["mean"] if value == 1.0]) > 1  # also from before the login
    # Another account's history is not there, and what a user may not list has none.
    await page.login("else", "where")
    view = (await page.get("/api/view")).json()
    assert view["board"]["attention"] == [] and view["page"]["rows"] == []


async def test_the_history_of_accounts_is_there_after_a_restart(shop, tmp_path, monkeypatch):
    monkeypatch.setattr(watched_accounts, "time", Earlier)
    file = watched_accounts.HistoryFile(tmp_path / "accounts.history")
    first = watched_accounts.WatchedAccounts(shop, file)
    running = asyncio.ensure_future(first.run())
    while "SHOP" not in first.boards or first.boards["SHOP"].stream("ORDERS", Listing(), time.time()) is None:
        await asyncio.sleep(0.01)
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    monkeypatch.undo()
    again = watched_accounts.WatchedAccounts(shop, file)
    await again.sample()
    shown = again.boards["SHOP"].stream("ORDERS", Listing(range="1h"), time.time())
    assert [value for value in shown["charts"]["messages"]["mean"] if value is not None] == [0.0, 0.0]
