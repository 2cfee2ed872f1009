"""JWT credentials against servers in operator mode."""

import asyncio

import nkeys
import pytest

from jetlake.client.connection.socket_connection import connect_socket
from jetlake.errors import AuthorizationError, InvalidOptionError
from tests.support.clients import key
from tests.support.operators import creds_text, operator_mode


@pytest.fixture
async def operator_server(start, request):
    """A server, and the text of a creds file that it takes."""
    config, credentials = operator_mode(getattr(request, "param", -1))
    return await start(config, ["no_jetstream"]), credentials


async def test_a_creds_file_logs_in(operator_server, clients, tmp_path):
    server, text = operator_server
    path = tmp_path / "worker.creds"
    path.write_text(text)
    client = await clients(server, credentials=path)
    subscription = await client.subscribe("a")
    await client.publish("a", b"x")
    assert (await subscription.next(5)).payload == b"x"
    assert (await clients(server, credentials=text)).is_connected


async def test_others_are_refused(operator_server, clients):
    server, text = operator_server
    _, other_seed = key(nkeys.PREFIX_BYTE_USER, 9)
    jwt = text.split("\n")[1]
    for wrong in ({}, {"token": "x"}, {"credentials": creds_text(jwt, other_seed)}):
        with pytest.raises(AuthorizationError):
            await clients(server, **wrong)


async def test_functions_give_jwts(operator_server, clients):
    server, text = operator_server
    asked = []
    client = await clients(server, credentials=lambda: asked.append(1) or text, reconnect_wait=0.01)
    await client.force_reconnect()
    assert len(asked) == 2


@pytest.mark.parametrize("operator_server", [1024], indirect=True)
async def test_a_users_own_payload_limit_is_known(operator_server, clients, tmp_path):
    server, text = operator_server
    client = await clients(server, credentials=text)
    # A server that speaks in two writes tells the limit a moment after its welcome.
    await client.flush()
    assert client.max_payload == 1024
    with pytest.raises(InvalidOptionError, match="1024"):
        client.publish("a", bytes(1025))
    path = tmp_path / "worker.creds"
    path.write_text(text)
    with await asyncio.to_thread(connect_socket, server.url, credentials=path) as connection:
        assert connection.max_payload == 1024
