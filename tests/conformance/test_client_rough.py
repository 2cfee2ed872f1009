"""The client off the beaten path on both servers: drained at once, denied, cut off, given up."""

import asyncio

import pytest
from client_support import until

import jetlake
from jetlake.errors import PermissionsError, PublishTimeoutError

NO_INBOX = (
    "authorization { users: [ { user: u, password: p, permissions: "
    '{ publish: { deny: ["secret.>", "$JS.API.CONSUMER.MSG.NEXT.>"] }, subscribe: { deny: "hidden.>" } } } ] }'
)


@pytest.fixture
async def restrictive(start):
    """A server with a user who may neither pull, nor publish to `secret`, nor have inboxes under `hidden`."""
    return await start(NO_INBOX)


# Publishing


async def test_leaving_waits_for_the_acknowledgements(server, clients):
    errors = []
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    async with await jetlake.connect(server.url, on_error=errors.append) as client:
        publisher = client.jetstream()
        pending = [await publisher.publish_async("s.1", b"%d" % number) for number in range(3000)]
    assert errors == []
    assert {(await one).seq for one in pending} == set(range(1, 3001))
    assert (await stream.info()).state.messages == 3000


async def test_an_outage_neither_doubles_nor_sends_what_failed(start, clients):
    server = await start(process=True)
    client = await clients(server, reconnect_wait=0.05, reconnect_wait_max=0.1)
    js = client.jetstream()
    stream = await js.create_stream("S", subjects=["s.>"])
    await server.kill()
    await until(lambda: not client.is_connected)
    pending = [await js.publish_async("s.1", b"%d" % number) for number in range(100)]
    for _ in range(3):
        with pytest.raises(PublishTimeoutError):
            await js.publish("s.2", timeout=0.01)
    await client.publish("s.3", b"kept")
    await server.start()
    await until(lambda: client.is_connected)
    assert len({(await one).seq for one in pending}) == 100
    await client.flush()
    assert (await stream.info()).state.messages == 101


# Denied


async def test_a_denied_publish_is_told_at_once(restrictive, clients):
    client = await clients(restrictive, user="u", password="p", on_error=lambda error: None)
    js = client.jetstream(timeout=60)
    pending = await js.publish_async("secret.x")
    with pytest.raises(PermissionsError, match=r"secret\.x"):
        async with asyncio.timeout(10):
            await pending


async def test_a_denied_inbox_is_told_every_time(restrictive, clients):
    client = await clients(restrictive, user="u", password="p", inbox_prefix="hidden", on_error=lambda error: None)
    for _ in range(3):
        with pytest.raises(PermissionsError):
            async with asyncio.timeout(10):
                await client.request("anything", timeout=60)
    js = client.jetstream(timeout=60)
    with pytest.raises(PermissionsError):
        async with asyncio.timeout(10):
            await (await js.publish_async("s.1"))
    with pytest.raises(PermissionsError):
        await js.publish_async("s.1")
