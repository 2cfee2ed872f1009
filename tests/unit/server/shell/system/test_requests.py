"""Reports over the system account take as many turns as those of monitoring."""

import asyncio
import json

import pytest

from jetlake.server import Server
from jetlake.server.config.options import Options
from jetlake.server.shell.monitoring import connection_reports


@pytest.mark.parametrize(
    ("subject", "body", "least"),
    [
        (b"$SYS.REQ.SERVER.PING.JSZ", b'{"streams":true}', 40),
        (b"$SYS.REQ.SERVER.PING.HEALTHZ", b"", 40),
        (b"$SYS.REQ.SERVER.PING.SUBSZ", b'{"subscriptions":true}', 20),
        (b"$SYS.REQ.ACCOUNT.$G.CONNZ", b'{"subscriptions":true}', 20),
        (b"$SYS.REQ.ACCOUNT.$G.JSZ", b'{"streams":true}', 40),
    ],
)
async def test_a_long_report_takes_many_turns(subject, body, least, tmp_path, monkeypatch):
    monkeypatch.setattr(connection_reports, "_ITEMS_PER_STEP", 1)
    async with Server(tmp_path) as server:
        for number in range(40):
            config = b'{"name":"S%d","subjects":["s%d"],"storage":"memory"}' % (number, number)
            server.accounts["$G"].js.receive(b"$JS.API.STREAM.CREATE.S%d" % number, b"", b"", config, None)
            server.engine.long_work.finish()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"CONNECT {}\r\n" + b"".join(b"SUB a.%d %d\r\n" % (n, n) for n in range(20)) + b"PING\r\n")
        while await reader.readline() != b"PONG\r\n":
            pass
        system = server.accounts[Options().system_account]
        answers = []
        system.listen(b"_INBOX.x", lambda subject, reply, header, payload, origin: answers.append(payload))
        server.engine_loop.work.slice_ns = 0
        system.publish(subject, b"_INBOX.x", b"", body)
        turns = 0
        async with asyncio.timeout(60):
            while not answers:
                await asyncio.sleep(0)
                turns += 1
        assert turns >= least
        assert json.loads(answers[0])["data"]
        writer.close()
