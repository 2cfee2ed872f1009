"""nats.js in a page: it publishes, consumes and uses a bucket over WebSocket."""

import asyncio

import pytest

from jetlake.server import Server
from jetlake.server.config.options import Options, WebSocketOptions
from tests.browser.script_bundle import bundle


@pytest.fixture(scope="session")
def nats_js():
    return bundle("@nats-io/nats-core", "@nats-io/jetstream", "@nats-io/kv")


@pytest.fixture
async def site():
    """The origin of a site with an empty page."""
    response = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 13\r\nConnection: close\r\n\r\n<h1>Shop</h1>"
    )

    async def answer(reader, writer):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as listener:
        yield f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"


@pytest.fixture(params=[False, True], ids=["plain", "compressed"])
async def server(tmp_path, request, site):
    websocket = WebSocketOptions(port=-1, no_tls=True, allowed_origins=(site,), compression=request.param)
    async with Server(tmp_path, jetstream=True, options=Options(websocket=websocket)) as server:
        yield server


@pytest.fixture
async def page(browser, nats_js, site):
    """A page of the site, with nats.js in it."""
    page = await browser.new_page()
    page.set_default_timeout(20_000)
    await page.goto(site)
    await page.add_script_tag(content=nats_js)
    return page


SHOP = """async (url) => {
  const { wsconnect } = requirePackage("@nats-io/nats-core");
  const { jetstream, jetstreamManager } = requirePackage("@nats-io/jetstream");
  const { Kvm } = requirePackage("@nats-io/kv");
  const nc = await wsconnect({ servers: url });
  const seen = {};

  const jsm = await jetstreamManager(nc);
  const js = jetstream(nc);
  await jsm.streams.add({ name: "ORDERS", subjects: ["orders.>"] });
  await jsm.consumers.add("ORDERS", { durable_name: "page", ack_policy: "explicit" });
  const acks = [];
  for (let number = 1; number <= 100; number++) acks.push(js.publish(`orders.${number}`, "order ".repeat(number)));
  seen.published = (await Promise.all(acks)).at(-1).seq;

  const consumer = await js.consumers.get("ORDERS", "page");
  seen.consumed = [];
  for await (const message of await consumer.consume({ max_messages: 30 })) {
    seen.consumed.push([message.seq, message.string().length]);
    await message.ackAck();
    if (message.info.pending === 0) break;
  }

  const bucket = await new Kvm(nc).create("prices", { history: 2 });
  await bucket.put("tea", "1.20");
  const watch = await bucket.watch();
  await bucket.put("tea", "1.30");
  seen.prices = [];
  for await (const entry of watch) {
    seen.prices.push(entry.string());
    if (seen.prices.length === 2) break;
  }
  const large = new Uint8Array(500_000).map((_, place) => place % 251);
  await bucket.put("picture", large);
  seen.picture = (await bucket.get("picture")).value.every((byte, place) => byte === large[place]);
  await nc.close();
  return seen;
}"""


async def test_a_page_publishes_consumes_and_uses_a_bucket(server, client, page):
    seen = await page.evaluate(SHOP, server.websocket_url)
    assert seen["published"] == 100
    assert seen["consumed"] == [[number, 6 * number] for number in range(1, 101)]
    assert seen["prices"] == ["1.20", "1.30"]
    assert seen["picture"] is True
    js = client.jetstream()
    assert (await (await js.stream("ORDERS")).info()).state.messages == 100
    entry = await (await js.key_value("prices")).get("tea")
    assert entry.value == b"1.30"


async def test_a_page_of_another_site_is_kept_out(server, page, site):
    await page.goto(site.replace("127.0.0.1", "localhost"))
    await page.add_script_tag(content=bundle("@nats-io/nats-core"))
    connect = """async (url) => {
      const { wsconnect } = requirePackage("@nats-io/nats-core");
      return await wsconnect({ servers: url, reconnect: false }).then(() => "in", (error) => error.constructor.name);
    }"""
    assert await page.evaluate(connect, server.websocket_url) == "ConnectionError"


async def test_a_page_lives_through_a_slow_moment_of_large_messages(server, client, page):
    """More than the socket and the browser buffer, at once, and complete."""
    await page.evaluate(
        """async (url) => {
          const { wsconnect } = requirePackage("@nats-io/nats-core");
          window.nc = await wsconnect({ servers: url });
          window.sizes = [];
          nc.subscribe("large", { callback: (_, message) => sizes.push(message.data.length) });
          await nc.flush();
        }""",
        server.websocket_url,
    )
    for _ in range(10):
        await client.publish("large", bytes(700_000))
    await client.flush()
    await page.wait_for_function("() => sizes.length === 10")
    assert await page.evaluate("sizes.every((size) => size === 700_000)")
    assert server.statistics.slow_consumers == 0
    await page.evaluate("nc.close()")
