"""The two clients that put load on a server, with one face: ours, and nats-py as an independent one."""

import asyncio

import nats
import nats.errors
import nats.js.errors

import jetlake
from jetlake.errors import JetlakeError

GONE = (JetlakeError, nats.errors.Error, nats.js.errors.Error, OSError, TimeoutError, asyncio.CancelledError)
"""What a client may raise when its server is killed under it."""

STREAM = "FAULTS"
WORKER = "worker"


class OurClient:
    """jetlake's own client."""

    name = "jetlake"

    async def connect(self, url):
        self._client = await jetlake.connect(url, reconnect=False, request_timeout=10)
        self._jetstream = self._client.jetstream()
        return self

    async def publish(self, subject, payload):
        """Publish and return the sequence of the acknowledgement."""
        return (await self._jetstream.publish(subject, payload)).seq

    async def bind(self):
        self._consumer = await self._jetstream.consumer(STREAM, WORKER)

    async def fetch(self, count, expires_s):
        """Some messages, each as (stream sequence, payload, coroutine function that acknowledges and waits)."""
        messages = await self._consumer.fetch(count, expires=expires_s)
        return [(message.metadata.stream_seq, message.data, message.ack_sync) for message in messages]

    async def close(self):
        await self._client.close()


class NatsPy:
    """nats-py, which knows nothing of us."""

    name = "nats-py"

    async def connect(self, url):
        async def ignore(_):
            """The server is killed on purpose."""

        self._client = await nats.connect(url, allow_reconnect=False, error_cb=ignore, connect_timeout=10)
        self._jetstream = self._client.jetstream(timeout=10)
        return self

    async def publish(self, subject, payload):
        return (await self._jetstream.publish(subject, payload)).seq

    async def bind(self):
        self._subscription = await self._jetstream.pull_subscribe_bind(WORKER, stream=STREAM)

    async def fetch(self, count, expires_s):
        try:
            messages = await self._subscription.fetch(count, timeout=expires_s)
        except TimeoutError:  # nats-py raises its own or asyncio's, by how far it came
            return []
        return [(message.metadata.sequence.stream, message.data, message.ack_sync) for message in messages]

    async def close(self):
        transport = self._client._transport
        try:
            await self._client.close()
        finally:
            # When its server is killed, nats-py may give up before it comes to this.
            if transport is not None and transport._io_writer is not None:
                transport._io_writer.transport.abort()


CLIENTS = {client.name: client for client in (OurClient, NatsPy)}


async def create(url, ack_wait_s):
    """The stream and the consumer of the load, made with plain API requests."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    await jetstream.add_stream(name=STREAM, subjects=["faults.>"], allow_direct=True)
    await jetstream.add_consumer(STREAM, durable_name=WORKER, ack_policy="explicit", ack_wait=ack_wait_s)
    await client.close()


async def stored_messages(url):
    """All messages of the stream, by sequence, with the stream's state."""
    client = await nats.connect(url)
    jetstream = client.jetstream()
    state = (await jetstream.stream_info(STREAM)).state
    found = {}
    inbox = client.new_inbox()
    answers = await client.subscribe(inbox)
    following = state.first_seq
    while state.messages and following <= state.last_seq:
        await client.publish(
            f"$JS.API.DIRECT.GET.{STREAM}", b'{"seq":%d,"batch":1000,"max_bytes":8000000}' % following, reply=inbox
        )
        before = following
        while True:
            message = await answers.next_msg(timeout=20)
            headers = message.headers or {}
            if "Status" in headers:
                break
            sequence = int(headers["Nats-Sequence"])
            found[sequence] = message.data
            following = sequence + 1
        if following == before:
            break  # 404: no more
    await client.close()
    return found, state


async def waiting_for_worker(url):
    """The consumer's counts: not yet delivered, delivered and not acknowledged."""
    client = await nats.connect(url)
    info = await client.jetstream().consumer_info(STREAM, WORKER)
    await client.close()
    return info.num_pending, info.num_ack_pending
