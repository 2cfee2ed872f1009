"""JWT credentials against a nats-server in operator mode, which our server does not have."""

import base64
import hashlib
import json
import time

import nkeys
import pytest
from client_support import key
from servers import make_server

from jetlake.errors import AuthorizationError


def encoded(data):
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def token(issuer, subject, name, claims):
    """A JWT as the server reads them: the claims, signed by the issuer's key."""
    head = encoded(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = {
        "iat": int(time.time()),
        "iss": issuer.public_key.decode(),
        "name": name,
        "sub": subject,
        "nats": {**claims, "version": 2},
    }
    body["jti"] = base64.b32encode(hashlib.sha256(json.dumps(body).encode()).digest()).rstrip(b"=").decode()
    text = f"{head}.{encoded(json.dumps(body).encode())}"
    return f"{text}.{encoded(issuer.sign(text.encode()))}"


def creds_text(jwt, seed):
    return (
        f"-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )


@pytest.fixture
async def operator_server():
    """A server, and the text of a creds file that it takes."""
    operator, _ = key(nkeys.PREFIX_BYTE_OPERATOR, 1)
    account, _ = key(nkeys.PREFIX_BYTE_ACCOUNT, 2)
    system, _ = key(nkeys.PREFIX_BYTE_ACCOUNT, 3)
    user, user_seed = key(nkeys.PREFIX_BYTE_USER, 4)
    limits = {
        "limits": {"subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": True, "conn": -1},
        "type": "account",
    }
    account_jwt = token(operator, account.public_key.decode(), "team", limits)
    system_jwt = token(operator, system.public_key.decode(), "system", limits)
    operator_jwt = token(operator, operator.public_key.decode(), "operator", {"type": "operator"})
    user_jwt = token(
        account, user.public_key.decode(), "worker", {"type": "user", "subs": -1, "data": -1, "payload": -1}
    )
    config = f"""
        operator: {operator_jwt}
        system_account: {system.public_key.decode()}
        resolver: MEMORY
        resolver_preload: {{
            {account.public_key.decode()}: {account_jwt}
            {system.public_key.decode()}: {system_jwt}
        }}
    """
    server = make_server("nats-server", config, ["no_jetstream"])
    try:
        await server.start()
        yield server, creds_text(user_jwt, user_seed)
    finally:
        await server.discard()


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
