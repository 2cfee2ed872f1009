"""The session: INFO, CONNECT, verbs, and what the server says to each kind of nonsense."""

import asyncio
import json

HELLO = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"protocol":1}\r\n'

# What is sent, what comes back (INFO left out), and whether the connection ends with it.
TRANSCRIPTS = {
    "open without connect": (b"PING\r\n", b"PONG\r\n", False),
    "defaults are verbose": (b"CONNECT {}\r\nSUB a 1\r\nUNSUB 1\r\nPING\r\n", b"+OK\r\n+OK\r\n+OK\r\nPONG\r\n", False),
    "verbs in any case": (b"ping\r\npub a 2\r\nhi\r\nsUb b 1\r\n", b"PONG\r\n+OK\r\n+OK\r\n", False),
    "blanks and tabs": (HELLO + b"SUB \t a \t 1 \r\nPUB  a\t 2 \r\nhi\r\n", b"MSG a 1 2\r\nhi\r\n", False),
    "line feed alone ends a line": (b"SUB a 1\nPING\n", b"+OK\r\nPONG\r\n", False),
    "line feed before the payload": (b"PUB a 2\nhi\r\nPING\r\n", b"+OK\r\nPONG\r\n", False),
    "second connect replaces options": (
        b'CONNECT {}\r\nCONNECT {"verbose":false}\r\nSUB a 1\r\nPING\r\n',
        b"+OK\r\nPONG\r\n",
        False,
    ),
    "null is no value": (b'CONNECT {"verbose":null}\r\nPING\r\n', b"+OK\r\nPONG\r\n", False),
    "keys in any case": (b'CONNECT {"Verbose":false}\r\nPING\r\n', b"PONG\r\n", False),
    "pedantic default": (
        b'CONNECT {"verbose":false}\r\nPUB a..b 0\r\n\r\nPING\r\n',
        b"-ERR 'Invalid Publish Subject'\r\nPONG\r\n",
        False,
    ),
    "pedantic message is routed all the same": (
        b"SUB a.* 1\r\nPUB a.> 0\r\n\r\nPING\r\n",
        b"+OK\r\n-ERR 'Invalid Publish Subject'\r\n+OK\r\nMSG a.> 1 0\r\n\r\nPONG\r\n",
        False,
    ),
    "bad subject keeps the connection": (b"SUB a..b 1\r\nPING\r\n", b"-ERR 'Invalid Subject'\r\nPONG\r\n", False),
    "first subscription of a sid wins": (
        HELLO + b"SUB a 1\r\nSUB b 1\r\nPUB b 0\r\n\r\nPUB a 0\r\n\r\n",
        b"MSG a 1 0\r\n\r\n",
        False,
    ),
    "unknown sid": (b"UNSUB 9\r\nPING\r\n", b"+OK\r\nPONG\r\n", False),
    "wrong protocol": (b'CONNECT {"protocol":2}\r\nPING\r\n', b"-ERR 'invalid client protocol'\r\n", True),
    "no responders without headers": (
        b'CONNECT {"no_responders":true}\r\nPING\r\n',
        b"-ERR 'no responders requires headers support'\r\n",
        True,
    ),
    "account in connect": (b'CONNECT {"account":"x"}\r\nPING\r\n', b"-ERR 'Authorization Violation'\r\n", True),
    "connect without JSON": (b"CONNECT x\r\nPING\r\n", b"", True),
    "connect with the wrong type": (b'CONNECT {"verbose":1}\r\nPING\r\n', b"", True),
    "unknown verb": (b"GET / HTTP/1.1\r\n\r\n", b"-ERR 'Unknown Protocol Operation'\r\n", True),
    "empty line": (b"\r\nPING\r\n", b"-ERR 'Unknown Protocol Operation'\r\n", True),
    "verb of a server": (b"MSG a 1 0\r\n\r\n", b"-ERR 'Unknown Protocol Operation'\r\n", True),
    "payload without an end": (
        HELLO + b"PUB a 2\r\nhixx\r\nPING\r\n",
        b"-ERR 'Unknown Protocol Operation'\r\n",
        True,
    ),
    "size missing": (b"PUB a\r\n\r\n", b"", True),
    "size negative": (b"PUB a -1\r\n\r\n", b"", True),
    "size garbled": (b"PUB a 1x\r\n\r\n", b"", True),
    "too many words": (b"PUB a b c 0\r\n\r\n", b"", True),
    "header longer than the message": (HELLO + b"HPUB a 5 2\r\nhixxx\r\n", b"", True),
    "header without leave": (b"HPUB a 12 12\r\nNATS/1.0\r\n\r\n\r\nPING\r\n", b"", True),
    "subscription without a sid": (b"SUB a\r\nPING\r\n", b"", True),
    "control line too long": (
        HELLO + b"PUB " + b"a" * 5000 + b" 0\r\n\r\n",
        b"-ERR 'maximum control line exceeded'\r\n",
        True,
    ),
    "control line too long without an end": (
        HELLO + b"PUB " + b"a" * 5000,
        b"-ERR 'maximum control line exceeded'\r\n",
        True,
    ),
    "payload too large": (HELLO + b"PUB a 1048577\r\n", b"-ERR 'Maximum Payload Violation'\r\n", True),
    "reserved queue": (
        HELLO + b"SUB a _sys_ 1\r\nPING\r\n",
        b'-ERR \'Permissions Violation for Subscription to "a" using queue "_sys_"\'\r\nPONG\r\n',
        False,
    ),
    "reserved replies": (
        HELLO + b"PUB a $JS.ACK.x 0\r\n\r\nPUB a _R_.x 0\r\n\r\nPUB a _GR_.x 0\r\n\r\nPING\r\n",
        b"-ERR 'Permissions Violation for Publish with Reply of \"$JS.ACK.x\"'\r\n"
        b"-ERR 'Permissions Violation for Publish with Reply of \"_R_.x\"'\r\n"
        b"-ERR 'Permissions Violation for Publish with Reply of \"_GR_.x\"'\r\nPONG\r\n",
        False,
    ),
    "reserved subjects": (
        HELLO + b"PUB $NRG.x 0\r\n\r\nPUB $GR.x 0\r\n\r\nPING\r\n",
        b"-ERR 'Permissions Violation for Publish to \"$NRG.x\"'\r\n"
        b"-ERR 'Permissions Violation for Publish to \"$GR.x\"'\r\nPONG\r\n",
        False,
    ),
}


async def play(wire, sent, ends):
    """What comes back until the connection ends, or until a last PING is answered."""
    await wire.send(sent)
    if ends:
        return await wire.rest()
    await wire.send(b"PING\r\n")
    pongs = sent.upper().count(b"PING")
    received = b"".join([await wire.until(b"PONG\r\n") + b"PONG\r\n" for _ in range(pongs)])
    return received + await wire.until(b"PONG\r\n")


async def test_transcripts(core, connect):
    received = {}
    for name, (sent, _, ends) in TRANSCRIPTS.items():
        received[name] = await play(await connect(core), sent, ends)
    assert received == {name: expected for name, (_, expected, _) in TRANSCRIPTS.items()}


async def test_transcripts_byte_by_byte(core, connect):
    sent = (
        b'CONNECT {"verbose":false,"pedantic":false,"headers":true}\r\nSUB a.* q 1\r\nPUB a.b r 5\r\nhello\r\n'
        b"HPUB a.c 12 14\r\nNATS/1.0\r\n\r\nhi\r\nPUB a.d 0\r\n\r\nUNSUB 1\r\nPUB a.e 0\r\n\r\n"
    )
    wire = await connect(core)
    for position in range(len(sent)):
        await wire.send(sent[position : position + 1])
    assert await wire.ping() == (
        b"MSG a.b 1 r 5\r\nhello\r\nHMSG a.c 1 12 14\r\nNATS/1.0\r\n\r\nhi\r\nMSG a.d 1 0\r\n\r\n"
    )


async def test_info(server, connect):
    wire = await connect(server)
    info = wire.info
    assert info["server_id"][0] == "N"
    assert len(info["server_id"]) == 56
    assert info["server_name"] == info["server_id"]
    assert tuple(int(part) for part in info["version"].split(".")[:2]) >= (2, 11)
    assert (info["proto"], info["host"], info["port"]) == (1, "127.0.0.1", server.port)
    assert info["headers"] is info["jetstream"] is True
    assert info["max_payload"] == 1048576
    assert info["client_ip"] == "127.0.0.1"
    assert info["client_id"] > 0
    assert info["api_lvl"] == 5
    assert not {"auth_required", "tls_required", "nonce", "connect_info", "ldm", "connect_urls"} & info.keys()


async def test_info_line_ends_with_a_blank(core):
    reader, writer = await asyncio.open_connection(core.host, core.port)
    assert (await reader.readline()).endswith(b"} \r\n")
    writer.close()


async def test_second_info_after_the_first_ping(core, connect):
    wire = await connect(core)
    await wire.send(b'CONNECT {"verbose":false,"protocol":1}\r\nPING\r\nPING\r\n')
    assert await wire.line() == b"PONG"
    second = json.loads((await wire.line()).removeprefix(b"INFO "))
    assert second["connect_info"] is True
    assert second["remote_account"] == "$G"
    assert await wire.line() == b"PONG"
    assert await wire.ping() == b""


async def test_no_second_info_for_old_clients(core, connect):
    wire = await connect(core)
    await wire.send(b'CONNECT {"verbose":false,"protocol":0}\r\nPING\r\nSUB a 1\r\nPUB a 0\r\n\r\n')
    assert await wire.line() == b"PONG"
    assert await wire.line() == b"MSG a 1 0"


async def test_without_jetstream_info_says_so(start, connect):
    server = await start(flags=["no_jetstream"])
    wire = await (await connect(server)).hello()
    assert "jetstream" not in wire.info
    assert (await wire.request("$JS.API.INFO")).status == 503
