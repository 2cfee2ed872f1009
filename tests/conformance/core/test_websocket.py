"""Clients over WebSocket: the upgrade, frames of every shape, credentials, TLS, and how connections end."""

import asyncio
import json
from contextlib import AsyncExitStack
from urllib.parse import urlsplit
from urllib.request import urlopen

import bcrypt
import pytest
from websockets.asyncio.client import connect as connect_websocket
from websockets.exceptions import ConnectionClosed
from websockets.frames import Frame, Opcode

from tests.support.tls import TLS, client_context

TIMEOUT_S = 60
HELLO = {"verbose": False, "pedantic": False, "headers": True, "no_responders": True, "protocol": 1}
UPGRADE = (
    "Host: {host}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
)


@pytest.fixture
async def listen(start):
    """A function that starts a server with these keys in its `websocket` section, and other configuration."""

    async def listen(keys="no_tls: true", more="", flags=("no_jetstream",)):
        return await start(f"{more}\nwebsocket {{ port: -1, {keys} }}", flags=flags)

    return listen


class Page:
    """A client over WebSocket, as bytes of the NATS protocol."""

    def __init__(self, socket):
        self.socket = socket
        self._read = b""

    async def until(self, end):
        """Everything up to these bytes, which may span frames."""
        while end not in self._read:
            self._read += await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)
        found, self._read = (part := self._read.split(end, 1))[0] + end, part[1]
        return found

    async def info(self):
        return json.loads((await self.until(b"\r\n")).removeprefix(b"INFO "))

    async def hello(self, **options):
        await self.info()
        await self.socket.send(b"CONNECT " + json.dumps({**HELLO, **options}).encode() + b"\r\nPING\r\n")
        await self.until(b"PONG\r\n")
        await self.info()
        return self

    async def ending(self):
        """What came last, and the close frame."""
        data = self._read
        try:
            while True:
                data += await asyncio.wait_for(self.socket.recv(), TIMEOUT_S)
        except ConnectionClosed as error:
            return data, (error.rcvd.code, error.rcvd.reason) if error.rcvd is not None else None


@pytest.fixture
async def open_page():
    async with AsyncExitStack() as stack:

        async def open_page(server, **options):
            options = {"compression": None, "max_size": None, "proxy": None, **options}
            return Page(await stack.enter_async_context(connect_websocket(server.websocket_url, **options)))

        yield open_page


async def ask(server, request):
    """The bytes that answer those of a request, up to the end of the head."""
    address = urlsplit(server.websocket_url)
    reader, writer = await asyncio.open_connection(address.hostname, address.port)
    writer.write(request.format(host=address.netloc).encode())
    head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), TIMEOUT_S)
    return reader, writer, head


async def report(server, path):
    """A report of monitoring."""

    def get():
        with urlopen(f"http://127.0.0.1:{server.monitor_port}{path}", timeout=TIMEOUT_S) as response:
            return json.load(response)

    return await asyncio.to_thread(get)


async def status(server, request):
    _, writer, head = await ask(server, request)
    writer.close()
    return int(head.split()[1])


# The upgrade


@pytest.mark.parametrize(
    ("request_text", "expected"),
    [
        ("GET / HTTP/1.1\r\n" + UPGRADE, 101),
        ("GET /any/path?x=1 HTTP/1.1\r\n" + UPGRADE, 101),
        ("GET / HTTP/1.1\r\nSec-WebSocket-Protocol: nats\r\n" + UPGRADE, 101),
        ("GET /mqtt HTTP/1.1\r\n" + UPGRADE, 404),
        ("POST / HTTP/1.1\r\n" + UPGRADE, 405),
        ("GET / HTTP/1.1\r\nHost: {host}\r\n", 400),
        ("GET / HTTP/1.1\r\n" + UPGRADE.replace("Version: 13", "Version: 12"), 400),
        ("GET / HTTP/1.1\r\n" + UPGRADE.replace("dGhlIHNhbXBsZSBub25jZQ==", "short"), 400),
        ("GET / HTTP/1.1\r\n" + UPGRADE.replace("Upgrade: websocket", "Upgrade: h2c"), 400),
        ("garbage\r\n", 400),
    ],
)
async def test_requests(listen, request_text, expected):
    assert await status(await listen(), request_text + "\r\n") == expected


async def test_info_follows_the_upgrade_at_once(listen):
    server = await listen('no_tls: true, headers { "X-Site": "shop" }')
    reader, writer, head = await ask(server, "GET / HTTP/1.1\r\n" + UPGRADE + "\r\n")
    assert b"sec-websocket-accept: s3pplmbitxaq9kygzzhzrbk+xoo=\r\n" in head.lower()
    assert b"\r\nX-Site: shop\r\n" in head
    assert await asyncio.wait_for(reader.readexactly(2), TIMEOUT_S) == b"\x82\x7e"
    size = int.from_bytes(await reader.readexactly(2))
    info = json.loads((await reader.readexactly(size)).removeprefix(b"INFO "))
    assert info["port"] == urlsplit(server.websocket_url).port
    writer.close()


@pytest.mark.parametrize(
    ("keys", "origin", "expected"),
    [
        ("", "http://elsewhere", 101),
        ("same_origin: true", "", 101),
        ("same_origin: true", "http://{host}", 101),
        ("same_origin: true", "https://{host}", 403),
        ("same_origin: true", "http://elsewhere", 403),
        ("same_origin: true", "null", 403),
        ('allowed_origins: ["http://a.example", "https://b.example:8443"]', "http://a.example", 101),
        ('allowed_origins: ["http://a.example", "https://b.example:8443"]', "http://a.example:80", 101),
        ('allowed_origins: ["http://a.example", "https://b.example:8443"]', "https://b.example:8443", 101),
        ('allowed_origins: ["http://a.example", "https://b.example:8443"]', "https://b.example", 403),
        ('allowed_origins: ["http://a.example"]', "https://a.example", 403),
        ('same_origin: true, allowed_origins: ["http://a.example"]', "http://a.example", 403),
    ],
)
async def test_origins(listen, keys, origin, expected):
    server = await listen(f"no_tls: true, {keys}")
    header = f"Origin: {origin}\r\n" if origin else ""
    assert await status(server, "GET / HTTP/1.1\r\n" + UPGRADE + header + "\r\n") == expected


@pytest.mark.parametrize(
    ("keys", "problem"),
    [
        ("", "websocket requires TLS configuration"),
        ('no_tls: true, headers { "Sec-WebSocket-Accept": "x" }', '"Sec-WebSocket-" prefix not allowed'),
        ('no_tls: true, allowed_origins: ["%%"]', "unable to parse allowed origin"),
        ("no_tls: true, no_auth_user: nobody", 'no_auth_user: "nobody" present, but users/nkeys are not defined'),
        ("no_tls: true, bogus: 1", 'unknown field "bogus"'),
    ],
)
async def test_what_is_refused_at_the_start(listen, keys, problem):
    with pytest.raises(Exception, match="(?s)" + problem.replace("*", ".")):
        await listen(keys)


# Frames


async def test_messages_in_both_directions(listen, open_page):
    server = await listen()
    page = await (await open_page(server)).hello()
    other = await (await open_page(server)).hello()
    # Protocol lines need not align with frames, and text frames are as good as binary ones.
    await page.socket.send("SUB a")
    await page.socket.send([b".> ", b"7\r", b"\nPI"])
    await page.socket.send(b"NG\r\n")
    assert await page.until(b"\r\n") == b"PONG\r\n"
    payload = bytes(range(256)) * 3000
    for subject in (b"a.1", b"a.2"):
        await other.socket.send(b"PUB %b %d\r\n%b\r\n" % (subject, len(payload), payload))
    for subject in (b"a.1", b"a.2"):
        head = b"MSG %b 7 %d\r\n" % (subject, len(payload))
        assert await page.until(head) == head
        while len(page._read) < len(payload) + 2:
            page._read += await page.socket.recv()
        assert page._read[: len(payload)] == payload
        page._read = page._read[len(payload) + 2 :]


async def test_pings_of_the_web_socket_are_answered(listen, open_page):
    page = await (await open_page(await listen())).hello()
    waiter = await page.socket.ping(b"are you there")
    await asyncio.wait_for(waiter, TIMEOUT_S)


async def test_pages_get_small_frames(listen, open_page):
    page = await (await open_page(await listen(), user_agent_header="Mozilla/5.0 (X11)")).hello()
    await page.socket.send(b"SUB a 1\r\nPUB a 20000\r\n%b\r\n" % bytes(20_000))
    sizes = []
    while sum(sizes) < 20_000 + len(b"MSG a 1 20000\r\n\r\n"):
        sizes.append(len(await asyncio.wait_for(page.socket.recv(), TIMEOUT_S)))
    assert max(sizes) == 4096


async def test_compression(listen, open_page):
    server = await listen("no_tls: true, compression: true")
    page = await open_page(server, compression="deflate")
    assert page.socket.response.headers["Sec-WebSocket-Extensions"] == (
        "permessage-deflate; server_no_context_takeover; client_no_context_takeover"
    )
    await page.hello()
    payload = b"compress me " * 50_000
    await page.socket.send(b"SUB a 1\r\nPUB a %d\r\n%b\r\n" % (len(payload), payload))
    assert await page.until(b"\r\n") == b"MSG a 1 %d\r\n" % len(payload)
    assert await page.until(b"\r\n") == payload + b"\r\n"
    plain = await open_page(await listen(), compression="deflate")
    assert "Sec-WebSocket-Extensions" not in plain.socket.response.headers


async def test_short_output_stays_plain(listen):
    server = await listen("no_tls: true, compression: true")
    offer = "Sec-WebSocket-Extensions: permessage-deflate\r\n"
    reader, writer, _ = await ask(server, "GET / HTTP/1.1\r\n" + UPGRADE + offer + "\r\n")
    first = await asyncio.wait_for(reader.readexactly(2), TIMEOUT_S)
    assert first[0] == 0xC2
    await reader.readexactly(first[1] if first[1] < 126 else int.from_bytes(await reader.readexactly(2)))
    hello = b'CONNECT {"verbose":false}\r\nPING\r\n'
    writer.write(Frame(Opcode.BINARY, hello).serialize(mask=True))
    assert await asyncio.wait_for(reader.readexactly(8), TIMEOUT_S) == b"\x82\x06PONG\r\n"
    writer.close()


# Credentials

USERS = "authorization { users: [{user: ann, password: secret}, {user: guest}] }"


async def test_credentials(listen, open_page):
    server = await listen(more=USERS)
    await (await open_page(server)).hello(user="ann", **{"pass": "secret"})
    page = await open_page(server)
    await page.socket.send(b'CONNECT {"user":"ann","pass":"wrong","verbose":false}\r\n')
    data, close = await page.ending()
    assert data.endswith(b"-ERR 'Authorization Violation'\r\n")
    assert close == (1008, "Authentication Failure")


async def test_credentials_in_cookies(listen, open_page):
    server = await listen("no_tls: true, user_cookie: who, pass_cookie: word", USERS)
    cookies = {"Cookie": "who=ann; theme=dark; word=secret"}
    await (await open_page(server, additional_headers=cookies)).hello()
    page = await open_page(server, additional_headers={"Cookie": "who=ann; word=wrong"})
    await page.socket.send(b"CONNECT {}\r\n")
    assert (await page.ending())[1] == (1008, "Authentication Failure")


async def test_a_token_in_a_cookie(listen, open_page):
    server = await listen("no_tls: true, token_cookie: t", "authorization { token: open }")
    await (await open_page(server, additional_headers={"Cookie": "t=open"})).hello()


async def test_a_user_for_clients_without_credentials(listen, open_page, connect):
    server = await listen("no_tls: true, no_auth_user: guest", USERS)
    await (await open_page(server)).hello()
    wire = await connect(server)
    await wire.send(b"CONNECT {}\r\n")
    assert (await wire.line()).startswith(b"-ERR 'Authorization Violation'")


async def test_a_user_of_the_listener(listen, open_page, connect):
    server = await listen("no_tls: true, authorization { username: web, password: socket }")
    await (await open_page(server)).hello(user="web", **{"pass": "socket"})
    page = await open_page(server)
    assert (await page.info())["auth_required"] is True
    await page.socket.send(b'CONNECT {"user":"web","pass":"wrong"}\r\n')
    assert (await page.ending())[1] == (1008, "Authentication Failure")
    await (await connect(server)).hello()


async def test_users_who_may_connect_in_one_way_only(listen, open_page, connect):
    server = await listen(
        more="authorization { users: [{user: web, password: p, allowed_connection_types: [WEBSOCKET]}, "
        "{user: tcp, password: p, allowed_connection_types: [STANDARD]}] }"
    )
    await (await open_page(server)).hello(user="web", **{"pass": "p"})
    await (await connect(server)).hello(user="tcp", **{"pass": "p"})
    page = await open_page(server)
    await page.socket.send(b'CONNECT {"user":"tcp","pass":"p"}\r\n')
    assert (await page.ending())[1] == (1008, "Authentication Failure")
    wire = await connect(server)
    await wire.send(b'CONNECT {"user":"web","pass":"p"}\r\n')
    assert (await wire.line()).startswith(b"-ERR 'Authorization Violation'")


# TLS, monitoring, the end


async def test_tls(listen, open_page):
    server = await listen(f"{TLS} }}")
    assert server.websocket_url.startswith("wss://")
    page = await open_page(server, ssl=client_context())
    assert (await page.info())["tls_required"] is True
    (shown,) = (await report(server, "/connz"))["connections"]
    assert (shown["type"], shown["tls_version"]) == ("websocket", "1.3")


async def test_a_certificate_names_the_user(listen, open_page):
    server = await listen(
        f"{TLS}, verify_and_map: true }}", 'authorization { users: [{user: "CN=client"}, {user: "CN=other"}] }'
    )
    page = await (await open_page(server, ssl=client_context("client"))).hello()
    await page.socket.send(b"SUB inbox 1\r\nPUB $SYS.REQ.USER.INFO inbox 0\r\n\r\n")
    await page.until(b"\r\n")
    assert json.loads(await page.until(b"\r\n"))["data"]["user"] == "CN=client"


async def test_monitoring(listen, open_page):
    server = await listen(
        'no_tls: true, same_origin: true, compression: true, handshake_timeout: "3s", '
        'allowed_origins: ["http://a.example:80"], advertise: "web.example:443"'
    )
    shown = (await report(server, "/varz"))["websocket"]
    assert shown.pop("host") in ("127.0.0.1", "0.0.0.0")
    assert shown.pop("port") == urlsplit(server.websocket_url).port
    assert shown == {
        "advertise": "web.example:443",
        "handshake_timeout": 3_000_000_000,
        "no_tls": True,
        "same_origin": True,
        "allowed_origins": ["http://a.example:80"],
        "compression": True,
    }
    await (await open_page(server)).hello()
    (client,) = (await report(server, "/connz"))["connections"]
    assert (client["kind"], client["type"], client["ip"]) == ("Client", "websocket", "127.0.0.1")


async def test_a_proxy_names_the_client_for_the_log(listen, open_page):
    server = await listen(flags=["no_jetstream", "-D"])
    await (await open_page(server, additional_headers={"X-Forwarded-For": "192.0.2.7"})).hello()
    assert "192.0.2.7/127.0.0.1:" in server.log
    await (await open_page(server, additional_headers={"X-Forwarded-For": "made up"})).hello()
    assert "made up" not in server.log


@pytest.mark.parametrize("close", [b"", (1000).to_bytes(2) + b"bye", (3001).to_bytes(2) + b"own code"])
async def test_the_close_frame_of_a_client_is_echoed(listen, close):
    server = await listen()
    reader, writer, _ = await ask(server, "GET / HTTP/1.1\r\n" + UPGRADE + "\r\n")
    writer.write(Frame(Opcode.CLOSE, close).serialize(mask=True))
    rest = await asyncio.wait_for(reader.read(-1), TIMEOUT_S)
    assert rest.endswith(Frame(Opcode.CLOSE, close).serialize(mask=False))
    writer.close()


async def test_messages_in_front_of_a_close_frame_are_handled_while_the_password_is_checked(listen, connect):
    hashed = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
    server = await listen(more=f'authorization {{ user: ann, password: "{hashed}" }}')
    subscriber = await (await connect(server)).hello(user="ann", **{"pass": "secret"})
    await subscriber.subscribe("a", 1)
    await subscriber.ping()
    _, writer, _ = await ask(server, "GET / HTTP/1.1\r\n" + UPGRADE + "\r\n")
    lines = b'CONNECT {"verbose":false,"user":"ann","pass":"secret"}\r\n' + b"PUB a 1\r\nx\r\n" * 100
    frames = Frame(Opcode.BINARY, lines), Frame(Opcode.CLOSE, b"")
    writer.write(b"".join(frame.serialize(mask=True) for frame in frames))
    for _ in range(100):
        assert (await subscriber.message()).payload == b"x"
    writer.close()


async def test_close_codes(listen, open_page):
    server = await listen()
    page = await (await open_page(server)).hello()
    await page.socket.send(b"PUB a 3000000\r\n")
    data, (code, _) = await page.ending()
    assert (data, code) == (b"-ERR 'Maximum Payload Violation'\r\n", 1009)
    page = await (await open_page(server)).hello()
    await server.stop()
    assert (await page.ending())[1][0] == 1001


async def test_frames_without_a_mask_end_the_connection(listen):
    server = await listen()
    reader, writer, _ = await ask(server, "GET / HTTP/1.1\r\n" + UPGRADE + "\r\n")
    writer.write(Frame(Opcode.BINARY, b"PING\r\n").serialize(mask=False))
    assert b"PONG" not in await asyncio.wait_for(reader.read(-1), TIMEOUT_S)
    writer.close()


async def test_lame_duck_is_told(listen, open_page):
    server = await listen(more='lame_duck_duration: "30s", lame_duck_grace_period: "10s"')
    page = await (await open_page(server)).hello()
    server.enter_lame_duck()
    assert (await page.info())["ldm"] is True
