"""Encryption at rest: what both servers keep from whoever has the disk, over restarts, rotations and another cipher."""

import pytest

from tests.support.clients import until
from tests.support.servers import make_server

CONFIG = 'jetstream {{ store_dir: "STORE_DIR", {} }}\n'
KEY, NEXT = "0123456789abcdef0123456789abcdef", "fedcba9876543210fedcba9876543210"
SECRET = b"a message that nobody should read"


def configure(server, settings):
    text = CONFIG.format(settings).replace("STORE_DIR", str(server.folder / "data"))
    (server.folder / "server.conf").write_text(text)


def files_with(server, text):
    return [path for path in server.folder.rglob("*") if path.is_file() and text in path.read_bytes()]


async def is_served(client, count):
    async def is_there():
        stream = await client.jetstream().stream("S")
        return (await stream.info()).state.messages == count

    await until(is_there)
    stream = await client.jetstream().stream("S")
    return {(await stream.get(sequence)).payload for sequence in range(1, count + 1)} == {SECRET}


@pytest.mark.parametrize("cipher", ["aes", "chachapoly"])
async def test_streams_are_read_with_their_key_and_by_nobody_else(kind, clients, cipher):
    server = make_server(kind, CONFIG.format(f'key: "{KEY}", cipher: {cipher}'), process=kind != "embedded")
    try:
        await server.start()
        client = await clients(server)
        stream = await client.jetstream().create_stream("S", subjects=["s"], description="hidden words")
        for _ in range(20):
            await client.jetstream().publish("s", SECRET, headers={"Name": "hidden header"})
        worker = await stream.create_consumer("worker", description="hidden words too")
        await (await worker.next(timeout=10)).ack_sync()
        await server.restart()
        for text in (SECRET, b"hidden header", b"hidden words"):
            assert files_with(server, text) == []
        client = await clients(server)
        assert await is_served(client, 20)
        worker = await (await client.jetstream().stream("S")).consumer("worker")
        assert (await worker.info()).num_pending == 19
    finally:
        await server.discard()


async def test_a_key_is_rotated_and_a_cipher_changed(kind, clients):
    server = make_server(kind, CONFIG.format(f'key: "{KEY}", cipher: aes'), process=kind != "embedded")
    try:
        await server.start()
        client = await clients(server)
        await client.jetstream().create_stream("S", subjects=["s"])
        await client.jetstream().publish("s", SECRET)
        for settings, count in (
            (f'key: "{NEXT}", prev_key: "{KEY}", cipher: aes', 1),
            (f'key: "{NEXT}", cipher: aes', 2),
            (f'key: "{NEXT}", prev_key: "{NEXT}", cipher: chacha', 3),
        ):
            await server.stop()
            configure(server, settings)
            await server.start()
            client = await clients(server)
            assert await is_served(client, count)
            await client.jetstream().publish("s", SECRET)
        await server.stop()
        assert files_with(server, SECRET) == []
    finally:
        await server.discard()


async def test_a_store_in_the_clear_is_encrypted_from_then_on(kind, clients):
    server = make_server(kind, CONFIG.format(""), process=kind != "embedded")
    try:
        await server.start()
        client = await clients(server)
        await client.jetstream().create_stream("S", subjects=["s"])
        await client.jetstream().publish("s", SECRET)
        await server.stop()
        assert files_with(server, SECRET)
        configure(server, f'key: "{KEY}"')
        await server.start()
        client = await clients(server)
        assert await is_served(client, 1)
        await client.jetstream().publish("s", SECRET)
        await server.restart()
        assert await is_served(await clients(server), 2)
    finally:
        await server.discard()
