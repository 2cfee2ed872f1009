"""The collector samples a real server: without viewers too, with its history kept, and says when the server is lost."""

from __future__ import annotations

import asyncio
import sys

import jetlake
from jetlake.cli import served_dashboard
from jetlake.dashboard.watching import collector as collector_module
from jetlake.dashboard.watching import server_api as server_api_module
from jetlake.dashboard.watching.collector import Collector, HistoryFile
from jetlake.dashboard.watching.listing import Listing
from jetlake.dashboard.watching.server_api import ServerApi
from jetlake.server import Server
from jetlake.server.config.options import Options


async def until(condition):
    async with asyncio.timeout(60):
        while not condition():
            await asyncio.sleep(0.01)


def messages(collector, name="ORDERS"):
    window = collector.board.stream(name, Listing(range="1h"), collector.summary()["time"])
    return [] if window is None else [value for value in window["charts"]["messages"]["mean"] if value is not None]


async def test_sampling_goes_on_without_viewers_and_its_history_is_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(collector_module, "UNWATCHED_S", 0.01)
    file = HistoryFile(tmp_path / "history")
    async with jetlake.Server() as server, await jetlake.connect(server.url) as client:
        js = client.jetstream()
        await js.create_stream("ORDERS", subjects=["orders.>"])
        collector = Collector(ServerApi(client), interval_s=0.01, history=file)
        await collector.start()
        await js.publish("orders.new", b"1")
        await until(lambda: collector.board.stream("ORDERS", Listing(), 0.0)["messages"] == 1)
        await collector.stop()
        before = messages(collector)
        again = Collector(ServerApi(client), interval_s=0.01, history=file)
        await again.sample()
        assert messages(again)[: len(before) - 1] == before[:-1]
        assert len(messages(again)) >= len(before)


async def test_a_lost_server_is_told(monkeypatch):
    monkeypatch.setattr(server_api_module, "_TIMEOUT_S", 0.2)
    monkeypatch.setattr(collector_module, "UNWATCHED_S", 0.01)
    server = jetlake.Server()
    await server.start()
    client = await jetlake.connect(server.url)
    collector = Collector(ServerApi(client), interval_s=0.01)
    assert collector.board.server == {"connected": False}
    await collector.start()
    try:
        assert collector.summary()["server"]["connected"]
        await server.stop()
        await until(lambda: not collector.summary()["server"]["connected"])
        assert collector.summary()["server"]["seen"] > 0
    finally:
        await collector.stop()
        await client.close()


async def test_pages_of_the_list_are_all_seen_and_what_is_gone_is_dropped():
    async with jetlake.Server() as server, await jetlake.connect(server.url) as client:
        js = client.jetstream()
        for number in range(260):
            await js.create_stream(f"S{number}", storage="memory")
        collector = Collector(ServerApi(client))
        await collector.sample()
        assert collector.summary()["totals"]["streams"] == 260
        await js.delete_stream("S7")
        await collector.sample()
        assert collector.board.stream("S7", Listing(), 0.0) is None
        assert collector.summary()["totals"]["streams"] == 259


async def test_a_served_dashboard_samples_from_the_start_and_keeps_its_history_beside_the_store(tmp_path, monkeypatch):
    monkeypatch.setattr(served_dashboard, "BEGIN_S", 0.0)
    monkeypatch.setattr(collector_module, "SAVE_S", 0.0)
    server = Server(tmp_path, host="127.0.0.1", port=0, jetstream=True, options=Options(http_port=-1))
    async with server, await jetlake.connect(server.url) as client:
        await client.jetstream().create_stream("ORDERS")
        server.pages = served_dashboard.pages(server)  # nobody opens a page
        history = HistoryFile(tmp_path / "dashboard.history")
        await until(lambda: "ORDERS" in history.load())


LOADED_ON_THE_LOOP = """
import asyncio, sys, threading
from jetlake.cli import served_dashboard
from jetlake.server import Server
from jetlake.server.config.options import Options
from jetlake.server.run import _steps_to_prepare

async def main():
    for _ in _steps_to_prepare():
        pass  # what `jetlake serve` loads for itself, before the dashboard begins
    server = Server(sys.argv[1], host="127.0.0.1", port=0, jetstream=True, options=Options(http_port=-1))
    async with server:
        loaded = []
        loop_thread = threading.get_ident()

        def hook(event, arguments):
            if event == "import" and threading.get_ident() == loop_thread and arguments[0].startswith("jetlake."):
                loaded.append(arguments[0])

        served_dashboard.BEGIN_S = 0.0
        served = served_dashboard.pages(server)
        sys.addaudithook(hook)
        while served._collector is None:
            await asyncio.sleep(0.01)
        await served._collector.sample()
        print(loaded, "jetlake.client.jetstream" in sys.modules)

asyncio.run(main())
"""


async def test_what_sampling_needs_is_loaded_beside_the_servers_loop(tmp_path):
    command = (sys.executable, "-c", LOADED_ON_THE_LOOP, str(tmp_path))
    process = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    printed, _ = await process.communicate()
    assert printed.decode().strip() == "[] False"
