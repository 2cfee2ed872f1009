"""The architecture page lists the modules that a message crosses, in the order in which it meets them."""

import asyncio
import re
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest

import jetlake

PACKAGE = Path(jetlake.__file__).parent
PAGE = (Path(__file__).parents[2] / "docs" / "ARCHITECTURE.md").read_text()

MODULES_MAX = {"published": 18, "delivered": 16}
CONNECT = b'CONNECT {"verbose":false,"pedantic":false,"headers":true,"no_responders":true}\r\n'


def modules_of(flow: str) -> list[str]:
    """The modules that the page lists for a flow."""
    found = re.search(
        rf"^A message that is {flow} crosses (\d+) modules[^:]*:\n(.*?)\n\n", PAGE, re.MULTILINE | re.DOTALL
    )
    assert found is not None
    modules = re.findall(r"`([\w/.]+)`", found[2])
    assert len(modules) == int(found[1])
    return modules


@contextmanager
def modules_called(start: str, *, inside: bool = False):
    """Collect the package's modules that this thread calls from the call of `start` on, or only while that runs."""
    modules: dict[str, None] = {}
    is_on = False

    def note(frame, event, _argument):
        nonlocal is_on
        code = frame.f_code
        if code.co_qualname == start and event in ("call", "return"):
            is_on = event == "call" or not inside
        if is_on and event == "call" and code.co_filename.startswith(str(PACKAGE)):
            modules.setdefault(str(Path(code.co_filename).relative_to(PACKAGE)))

    sys.setprofile(note)
    try:
        yield modules
    finally:
        sys.setprofile(None)


def fits(modules, flow: str) -> bool:
    """Whether what a message crossed is what the page lists, which may lag behind by two modules."""
    listed = modules_of(flow)
    in_order = [module for module in modules if module in listed] == listed
    return in_order and len(modules) <= len(listed) + 2 <= MODULES_MAX[flow] + 2


@pytest.fixture
async def connection(jetlake_server):
    """A socket to a server that has a stream S of `s.>`, subscribed to `_INBOX.n.*`."""
    host, port = jetlake_server.url.removeprefix("nats://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    await reader.readline()
    writer.write(CONNECT + b"SUB _INBOX.n.* 1\r\n")
    await request(reader, writer, b"$JS.API.STREAM.CREATE.S", b'{"name":"S","subjects":["s.>"],"storage":"file"}')
    for _ in range(2):  # From then on route and files are there.
        await request(reader, writer, b"s.a", b"first")
    yield reader, writer
    writer.close()
    await writer.wait_closed()


async def request(reader, writer, subject: bytes, payload: bytes) -> bytes:
    """Publish with a reply subject and read the answer's payload."""
    writer.write(b"PUB %b _INBOX.n.1 %d\r\n%b\r\n" % (subject, len(payload), payload))
    while not (await reader.readline()).startswith(b"MSG"):
        pass  # The server's first PING comes after some seconds.
    return await reader.readline()


async def test_a_published_message(connection):
    crossed = []
    for number in range(3, 33):
        with modules_called("ConnectionReader.receive") as modules:
            answer = await request(*connection, b"s.a", b"hello")
        assert answer == b'{"stream":"S","seq":%d}\r\n' % number
        crossed.append(list(modules))
        # A timer of the server may run beside one message, and a disk that is slow at the moment has a way of its own.
        if fits(modules, "published"):
            return
    assert min(crossed, key=len) == modules_of("published")


async def test_a_delivered_message(connection):
    reader, writer = connection
    name = b"$JS.API.CONSUMER.CREATE.S.c"
    config = b'{"stream_name":"S","config":{"name":"c","ack_policy":"explicit","deliver_policy":"new"}}'
    await request(reader, writer, name, config)
    writer.write(b"PUB $JS.API.CONSUMER.MSG.NEXT.S.c _INBOX.n.2 2\r\n10\r\n")
    await request(reader, writer, b"s.a", b"warm")
    await reader.readline(), await reader.readline()
    with modules_called("DeliveryQueue.run", inside=True) as modules:
        writer.write(b"PUB s.a 5\r\nhello\r\n")
        await reader.readline()
        assert await reader.readline() == b"hello\r\n"
    assert fits(modules, "delivered"), list(modules)
