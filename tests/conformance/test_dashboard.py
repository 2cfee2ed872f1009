"""The dashboard's samples, changes and pages on either server: it asks nothing that only ours can answer."""

from base64 import b64encode

import jetlake
from jetlake.dashboard.browsing.buckets import keys_page
from jetlake.dashboard.browsing.messages import MessagePages
from jetlake.dashboard.browsing.search import Search, search
from jetlake.dashboard.changes.kinds import prepare
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
        assert await run("consumer.reset", **where, sequence=3) == "Consumer worker goes on at sequence 3."
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

        assert await run("stream.purge", stream="ORDERS", keep=2) == "3 messages of ORDERS were removed."
        await run("consumer.delete", **where)
        await run("stream.seal", stream="ORDERS")
        await run("stream.delete", stream="ORDERS")
        await collector.sample()
        assert collector.summary()["totals"]["streams"] == 1
