"""The dashboard's samples, changes and pages on either server: it asks nothing that only ours can answer."""

from base64 import b64encode

import httpx2 as httpx
import pytest

import jetlake
from jetlake.cli.commands.dashboard import open_watching
from jetlake.cli.session import Session
from jetlake.dashboard.app import build_app, prepare
from jetlake.dashboard.buckets import keys_page
from jetlake.dashboard.messages import MessagePages, Search, search
from jetlake.dashboard.watching.collector import Collector
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.server_api import ServerApi


async def test_what_is_changed_is_seen(server):
    async with await jetlake.connect(server.url) as client:
        api = ServerApi(client)

        async def run(kind, **arguments):
            return (await (await prepare(api, kind, arguments)).run()).text

        await run("stream.create", stream="ORDERS", options={"subjects": ["orders.>"], "max_age": 60})
        await run("stream.edit", stream="ORDERS", options={"max_msgs": 50})
        for number in range(5):
            payload = b64encode(b"order %d" % number).decode()
            said = await run("message.publish", subject=f"orders.{number % 2}", payload=payload, headers=[("A", "b")])
        assert said == "Stored in ORDERS at sequence 5."
        assert await run("message.again", stream="ORDERS", sequence=2) == "Stored in ORDERS at sequence 6."
        await run("message.delete", stream="ORDERS", sequence=1)
        where = {"stream": "ORDERS", "consumer": "worker"}
        await run("consumer.create", **where, options={"ack_wait": 5})
        await run("consumer.edit", **where, options={"max_ack_pending": 7})
        await run("consumer.pause", **where, seconds=60)
        await run("consumer.resume", **where)
        assert await run("consumer.reset", **where, sequence=3) == "Consumer worker resumes at sequence 3."
        await api.jetstream.create_key_value("SETTINGS")
        await run("key.put", bucket="SETTINGS", key="colour", value=b64encode(b"red").decode())

        collector = Collector(api)
        await collector.sample()
        orders = await collector.stream("ORDERS", Listing())
        worker = await collector.consumer("ORDERS", "worker", Listing())
        assert (orders["messages"], dict(orders["subjects_held"])) == (5, {"orders.0": 2, "orders.1": 3})
        assert (worker["config"]["max_ack_pending"], worker["paused"]) == (7, False)
        stream = await api.jetstream.stream("ORDERS")
        assert [one.sequence for one in await MessagePages(stream, "orders.1").before(7, 2, 2)] == [4, 6]
        reports = [report async for report in search(stream, Search("ORDER 1", "", 1, 100))]
        assert [hit["seq"] for report in reports for hit in report["hits"]] == [2, 6]
        assert [row["key"] for row in (await keys_page(api, "SETTINGS", Listing()))["rows"]] == ["colour"]

        assert await run("stream.purge", stream="ORDERS", keep=2) == "Purged 3 messages from ORDERS."
        await run("consumer.delete", **where)
        await run("stream.seal", stream="ORDERS")
        await run("stream.delete", stream="ORDERS")
        await collector.sample()
        assert collector.summary()["totals"]["streams"] == 1


USERS = """
jetstream: enabled
accounts {
  SHOP { jetstream: enabled, users [
    { user: boss, password: secret }
    { user: guest, password: x, permissions { publish: ["$SYS.REQ.USER.INFO"] } }
  ] }
  OPEN { jetstream: enabled, users [ { user: anybody, password: x } ] }
}
"""


@pytest.mark.parametrize("lets_in", ["", "no_auth_user: anybody"], ids=["closed", "open"])
async def test_the_credentials_of_the_dashboard_serve_its_own_user_only(start, lets_in):
    server = await start(USERS + lets_in)
    async with await jetlake.connect(server.url, user="boss", password="secret") as client:
        await client.jetstream().create_stream("ORDERS", subjects=["orders.>"])
        await client.jetstream().publish("orders.new", b"for the boss only")
    session = Session({"server": server.url.replace("://", "://boss:secret@")}, context=None)
    watching, is_public = await open_watching(session, login=True)
    assert is_public == bool(lets_in)
    async with watching:
        collector = Collector(ServerApi(watching))
        await collector.start()
        app = build_app(collector, connect=session.connect_as, is_public=is_public)
        base = "http://127.0.0.1"

        async def seen(user="", password=""):
            """The streams that somebody sees, the status of a request for a message, and whether it shows one."""
            async with httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url=base) as page:
                if user:
                    said = {"user": user, "password": password}
                    assert (await page.post("/api/login", json=said, headers={"origin": base})).status_code == 200
                view = await page.get("/api/view")
                message = await page.get("/api/streams/ORDERS/messages/1")
                rows = view.json()["page"]["rows"] if view.status_code == 200 else view.status_code
                return rows if isinstance(rows, int) else [row["name"] for row in rows], message.status_code

        assert await seen() == (([], 404) if lets_in else (401, 401))
        assert await seen("guest", "x") == ([], 403)
        assert await seen("boss", "secret") == (["ORDERS"], 200)
        await collector.stop()
