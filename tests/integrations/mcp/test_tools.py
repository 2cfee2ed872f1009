"""`jetlake mcp` in a process of its own, asked by the client of the `mcp` package."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import PIPE
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from mcp import Client, MCPError, StdioServerParameters, stdio_client
from mcp.server.mcpserver.exceptions import ToolError

import jetlake
from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.session import EXIT_USAGE
from jetlake.integrations.mcp.answers import ANSWER_BYTES_MAX
from jetlake.integrations.mcp.tools import Tools, build
from tests.support.clients import TIMEOUT_S
from tests.support.servers import make_server

COMMAND = str(Path(sys.executable).with_name("jetlake"))


class Model:
    """What a language model has: the tools, by a client of the protocol."""

    def __init__(self, client):
        self.client = client

    async def ask(self, tool, **arguments):
        """Call a tool that succeeds, and return its answer."""
        result = await self.client.call_tool(tool, arguments)
        (content,) = result.content
        assert not result.is_error, content.text
        assert len(content.text) <= ANSWER_BYTES_MAX
        return json.loads(content.text)

    async def fail(self, tool, **arguments):
        """Call a tool that fails, and return what it says."""
        result = await self.client.call_tool(tool, arguments)
        assert result.is_error
        return result.content[0].text


@asynccontextmanager
async def model_of(url, *flags):
    parameters = StdioServerParameters(command=COMMAND, args=["mcp", "-s", url, "--no-context", *flags])
    async with Client(stdio_client(parameters)) as client:
        yield Model(client)


on_both = pytest.mark.parametrize("server", ["embedded", "nats-server"], indirect=True)


@pytest.fixture
async def server(request):
    server = make_server(getattr(request, "param", "embedded"), process=True)
    await server.start()
    yield server
    await server.discard()


@pytest.fixture
async def js(server):
    async with jetlake.connect(server.url) as client:
        yield client.jetstream()


@on_both
async def test_what_a_model_reads(server, js):
    orders = await js.create_stream("ORDERS", subjects=["orders.>"], description="All orders")
    worker = await orders.create_consumer("worker", max_ack_pending=2)
    for number in range(5):
        await js.publish(f"orders.{number}", b"order %d" % number, headers={"Kind": "new"})
    await worker.fetch(2, expires=TIMEOUT_S)
    async with model_of(server.url) as model:
        tools = (await model.client.list_tools()).tools
        assert all(tool.annotations.read_only_hint for tool in tools)
        assert {tool.name for tool in tools} == {
            *("account", "list_streams", "stream_info", "read_messages", "get_message"),
            *("list_consumers", "consumer_lag", "consumer_info", "explain_consumer", "explain_error"),
        }
        listed = await model.ask("list_streams")
        assert listed["total"] == 1
        assert listed["streams"][0]["messages"] == 5
        assert listed["streams"][0]["description"] == "All orders"
        assert (await model.ask("list_streams", subject="other"))["streams"] == []
        info = await model.ask("stream_info", stream="ORDERS", subjects="orders.*")
        assert info["state"]["subjects"] == {f"orders.{number}": 1 for number in range(5)}
        page = await model.ask("read_messages", stream="ORDERS", count=2)
        assert [each["payload"] for each in page["messages"]] == ["order 0", "order 1"]
        assert page["messages"][0]["headers"] == [["Kind", "new"]]
        rest = await model.ask("read_messages", stream="ORDERS", sequence=page["next_sequence"])
        assert ([each["sequence"] for each in rest["messages"]], rest["is_end"]) == ([3, 4, 5], True)
        found = await model.ask("read_messages", stream="ORDERS", subject="orders.3", since_s=3600)
        assert [each["sequence"] for each in found["messages"]] == [4]
        assert (await model.ask("get_message", stream="ORDERS", last_of_subject="orders.4"))["sequence"] == 5
        (row,) = (await model.ask("consumer_lag"))["consumers"]
        assert (row["stream"], row["name"], row["not_delivered"], row["unacknowledged"]) == ("ORDERS", "worker", 3, 2)
        assert (await model.ask("list_consumers", stream="ORDERS"))["consumers"] == [
            {key: value for key, value in row.items() if key != "stream"}
        ]
        why = await model.ask("explain_consumer", stream="ORDERS", consumer="worker")
        assert why["is_stalled"]
        assert "max_ack_pending" in [reason["kind"] for reason in why["reasons"]]
        assert (await model.ask("consumer_info", stream="ORDERS", consumer="worker"))["config"]["max_ack_pending"] == 2
        assert (await model.ask("account"))["streams"] == 1
        assert "stream not found" in (await model.ask("explain_error", code=10059))["description"]
    # Nothing that was asked left a trace.
    assert [info.name for info in await orders.consumers()] == ["worker"]
    assert (await orders.info()).state.messages == 5


@on_both
async def test_answers_are_bounded_and_payloads_that_are_no_text_arrive(server, js):
    await js.create_stream("BIG", subjects=["big.>"], max_msgs_per_subject=-1)
    await js.publish("big.text", ("ä" * 500_000).encode())
    await js.publish("big.binary", b"\xff\x00" * 100_000)
    await js.publish("big.control", b"\x01" * 60_000)
    await js.publish("big.headers", b"", headers={f"H{number}": "x" * 300 for number in range(100)})
    for _ in range(60):
        await js.publish("big.many", b"y" * 8000)
    async with model_of(server.url) as model:
        text = await model.ask("get_message", stream="BIG", sequence=1)
        assert text["payload"].startswith("ää")
        assert (text["payload_cut"], text["payload_bytes"]) == (True, 1_000_000)
        binary = await model.ask("get_message", stream="BIG", sequence=2)
        assert binary["payload_base64"].startswith("/wD/AP8A")
        assert (binary["payload_cut"], binary["payload_bytes"]) == (True, 200_000)
        assert (await model.ask("get_message", stream="BIG", sequence=3))["payload"].startswith("\x01")
        headers = await model.ask("get_message", stream="BIG", sequence=4)
        assert headers["headers_cut"]
        seen, following = [], 1
        while True:
            page = await model.ask("read_messages", stream="BIG", sequence=following, count=100)
            seen += [each["sequence"] for each in page["messages"]]
            if page["is_end"]:
                break
            following = page["next_sequence"]
        assert seen == list(range(1, 65))
        many = await js.stream("BIG")
        await many.update(subjects=[f"s{number}.{'x' * 200}" for number in range(300)])
        row = (await model.ask("list_streams"))["streams"][0]
        assert (len(row["subjects"]), row["subjects"][-1]) == (21, "… 280 more")
        assert (await model.ask("stream_info", stream="BIG"))["config"]["subjects"][-1] == "… 200 more"
        for number in range(25):
            long = [f"l{number}.{each}.{'y' * 200}" for each in range(25)]
            await js.create_stream(f"LONG{number:02}", subjects=long, metadata={long[0]: "z" * 90_000})
        names, offset = [], 0
        while offset is not None:
            page = await model.ask("list_streams", offset=offset)
            names += [each["name"] for each in page["streams"]]
            offset = page.get("next_offset")
        assert names == ["BIG", *(f"LONG{number:02}" for number in range(25))]
        assert "90000 characters" in str((await model.ask("stream_info", stream="LONG00"))["config"]["metadata"])
        assert "less than or equal to 100" in await model.fail("read_messages", stream="BIG", count=101)


@on_both
async def test_only_a_flag_offers_changes(server, js):
    async with model_of(server.url) as model:
        for name in ("publish", "delete_stream", "purge_stream"):
            assert "Unknown tool" in await model.fail(name)
    async with model_of(server.url, "--allow-changes") as model:
        destructive = {
            tool.name for tool in (await model.client.list_tools()).tools if tool.annotations.destructive_hint
        }
        assert destructive == {"purge_stream", "delete_message", "delete_consumer", "delete_stream"}
        await model.ask("create_stream", name="S", subjects=["s.>"], max_age_s=60)
        assert (await model.ask("create_consumer", stream="S", name="c", filter_subject="s.1"))["filters"] == ["s.1"]
        sent = {"subject": "s.1", "message_id": "1"}
        assert await model.ask("publish", payload="/w==", is_base64=True, **sent) == {
            "stream": "S",
            "sequence": 1,
            "is_duplicate": False,
        }
        assert (await model.ask("publish", **sent))["is_duplicate"]
        assert "not base64" in await model.fail("publish", subject="s.1", payload="ä", is_base64=True)
        for subject in ("$JS.API.STREAM.DELETE.S", "$JS.ACK.S.c.1.1.1.1.1", "$SYS.REQ.SERVER.PING"):
            assert "is a request to the server" in await model.fail("publish", subject=subject)
        await model.ask("publish", subject="s.2")
        await model.ask("pause_consumer", stream="S", consumer="c", seconds=60)
        assert (await model.ask("consumer_info", stream="S", consumer="c"))["paused"]
        await model.ask("resume_consumer", stream="S", consumer="c")
        assert (await (await js.stream("S")).get(1)).payload == b"\xff"
        await model.ask("delete_message", stream="S", sequence=1)
        assert await model.ask("purge_stream", stream="S") == {"deleted": 1}
        await model.ask("delete_consumer", stream="S", consumer="c")
        await model.ask("delete_stream", stream="S")
    assert await js.stream_names() == []


async def test_errors_say_what_to_do(server, js):
    await js.create_stream("S", subjects=["s"])
    async with model_of(server.url) as model:
        text = await model.fail("stream_info", stream="NOPE")
        assert text.endswith("stream NOPE not found (10059). List them: jetlake stream ls")
        assert "consumer c not found on stream S (10014)" in await model.fail(
            "explain_consumer", stream="S", consumer="c"
        )
        assert "either sequence or last_of_subject" in await model.fail("get_message", stream="S")
        assert "no message found" in await model.fail("get_message", stream="S", sequence=9)
        for name in ("", "a b", "a.b", "*", ">", "a\n"):
            for tool in ("stream_info", "list_consumers", "read_messages"):
                text = await model.fail(tool, stream=name)
                assert "stream needs a name" in text or "may not contain blanks, dots, wildcards" in text
        # The process survives all of them.
        assert (await model.ask("list_streams"))["total"] == 1


async def test_half_a_character_is_a_sentence_too(server, js):
    await js.create_stream("S", subjects=["s"])
    tools = Tools(partial(jetlake.connect, server.url), lambda client: client.jetstream())
    asked = build(tools, str, allow_changes=True)
    for tool, arguments in (
        ("list_streams", {"subject": "\ud800"}),
        ("read_messages", {"stream": "S", "subject": "\ud800"}),
        ("publish", {"subject": "s", "payload": "\ud800"}),
    ):
        with pytest.raises(ToolError, match=r"not valid UTF-8: '\\ud800'"):
            await asked.call_tool(tool, arguments)
    await tools.close()


async def test_a_server_that_goes_away_fails_calls_and_is_found_again(server):
    async with model_of(server.url, "--timeout", "1s") as model:
        assert (await model.ask("list_streams"))["total"] == 0
        await server.kill()
        text = await model.fail("list_streams")
        assert "Traceback" not in text
        await server.start()
        while True:
            result = await model.client.call_tool("list_streams", {})
            if not result.is_error:
                break
            await asyncio.sleep(0.1)
    await server.kill()
    async with model_of(server.url) as model:  # Started while the server is away.
        assert "can't connect to" in await model.fail("list_streams")
        await server.start()
        assert (await model.ask("list_streams"))["total"] == 0


async def test_a_killed_process_ends_the_session_and_leaves_nothing(server, js, tmp_path):
    await (await js.create_stream("S", subjects=["s"])).create_consumer("c")
    script = f"echo $$ > {tmp_path}/pid; exec {COMMAND} mcp -s {server.url} --no-context"
    async with Client(stdio_client(StdioServerParameters(command="sh", args=["-c", script]))) as client:
        await Model(client).ask("explain_consumer", stream="S", consumer="c")
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        with pytest.raises(MCPError, match="Connection closed"):
            await client.call_tool("list_streams", {})
    async with model_of(server.url) as model:
        assert (await model.ask("list_consumers", stream="S"))["total"] == 1


@pytest.mark.parametrize("end", ["EOF", "SIGTERM", "SIGINT"])
async def test_the_process_ends_with_its_host(end):
    process = await asyncio.create_subprocess_exec(COMMAND, "mcp", "--no-context", stdin=PIPE, stdout=PIPE, stderr=PIPE)
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    call = {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": hello}
    process.stdin.write(json.dumps(call).encode() + b"\n")
    assert json.loads(await process.stdout.readline())["result"]["serverInfo"]["name"] == "jetlake"
    if end == "EOF":
        process.stdin.close()
    else:
        process.send_signal(getattr(signal, end))
    # The pipe stays open: a signal must not wait for its next line.
    errors = await asyncio.wait_for(process.stderr.read(), TIMEOUT_S)
    status = await asyncio.wait_for(process.wait(), TIMEOUT_S)
    assert status == {"EOF": 0, "SIGTERM": -signal.SIGTERM, "SIGINT": EXIT_INTERRUPTED}[end]
    assert errors.strip() == b""


async def test_a_login_is_the_commands():
    server = make_server("embedded", "authorization { user: a, password: b }")
    await server.start()
    try:
        async with model_of(server.url, "--user", "a", "--password", "b") as model:
            assert (await model.ask("list_streams"))["total"] == 0
        async with model_of(server.url, "--user", "a", "--password", "wrong") as model:
            text = await model.fail("list_streams")
            assert "login to" in text
            assert "wrong" not in text
    finally:
        await server.discard()


def test_a_context_that_is_not_there_ends_the_command():
    done = subprocess.run(
        [COMMAND, "mcp", "--context", "nope"], stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == EXIT_USAGE
    assert "nope" in done.stderr
    assert "Traceback" not in done.stderr
