"""A hub that is not to be trusted: what it sends before TLS is not heard."""

import asyncio
import json
import socket
import ssl

from tests.support.tls import CERTIFICATES

INFO = {"server_id": "N", "server_name": "hub", "client_id": 7, "leafnode_urls": ["h:1"], "info_on_connect": True}


def info(**fields):
    return b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n"


def read_until(sock, end):
    data = b""
    while not data.endswith(end):
        part = sock.recv(1)
        assert part, data
        data += part
    return data


def serve_once(listener):
    """Greet a leaf in the clear with more behind the greeting, and go on by TLS; returns what the leaf said there."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server-key.pem")
    plain, _ = listener.accept()
    plain.settimeout(60)
    # Somebody on the way appends frames to the greeting, the last of them to swallow what the hub says.
    plain.sendall(info(tls_required=True) + b"PING\r\n" + info(max_payload=1) + b"LMSG a 1000\r\n")
    secured = context.wrap_socket(plain, server_side=True)
    first = read_until(secured, b"\r\n")
    secured.sendall(info(connect_info=True) + b"PING\r\n")
    return secured, first, read_until(secured, b"PONG\r\n")


def wait_for_end(sock):
    with sock:
        while sock.recv(1000):
            pass


async def test_what_comes_in_the_clear_is_not_continued_over_tls(start):
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(60)
        serving = asyncio.create_task(asyncio.to_thread(serve_once, listener))
        url = f"tls://localhost:{listener.getsockname()[1]}"
        server = await start(
            f'leafnodes {{ remotes [ {{ url: "{url}", tls {{ ca_file: "{CERTIFICATES / "ca.pem"}" }} }} ] }}'
        )
        secured, first, answer = await serving
        assert first.startswith(b"CONNECT ")
        assert answer.count(b"PONG") == 1
        await server.stop()
        await asyncio.to_thread(wait_for_end, secured)
