"""A hub that is not to be trusted: what it sends before TLS is not heard."""

import asyncio
import json
import ssl
from contextlib import closing, suppress

from tls_support import CERTIFICATES

INFO = {"server_id": "N", "server_name": "hub", "client_id": 7, "leafnode_urls": ["h:1"], "info_on_connect": True}


def info(**fields):
    return b"INFO " + json.dumps({**INFO, **fields}).encode() + b"\r\n"


async def test_what_comes_in_the_clear_is_not_continued_over_tls(start):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(CERTIFICATES / "server.pem", CERTIFICATES / "server-key.pem")
    answered = asyncio.get_running_loop().create_future()

    async def serve(reader, writer):
        # A connection that times out on a busy machine is followed by another.
        with suppress(OSError, asyncio.IncompleteReadError), closing(writer):
            # Somebody on the way appends frames to the greeting, the last of them to swallow what the hub says.
            writer.write(info(tls_required=True) + b"PING\r\n" + info(max_payload=1) + b"LMSG a 1000\r\n")
            await writer.start_tls(context)
            first = await reader.readline()
            writer.write(info(connect_info=True) + b"PING\r\n")
            answer = await reader.readuntil(b"PONG\r\n")
            if not answered.done():
                answered.set_result((first, answer))

    hub = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = hub.sockets[0].getsockname()[1]
    remote = f'{{ url: "tls://localhost:{port}", tls {{ ca_file: "{CERTIFICATES / "ca.pem"}" }} }}'
    await start(f"leafnodes {{ remotes [ {remote} ] }}")
    first, answer = await asyncio.wait_for(answered, 60)
    assert first.startswith(b"CONNECT ")
    assert answer.count(b"PONG") == 1
    hub.close()
