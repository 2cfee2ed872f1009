"""Synadia's SDKs for agents, as they are, on both servers: discovery, prompts, queries, heartbeats, signed senders."""

import asyncio
from contextlib import AsyncExitStack, asynccontextmanager

import nats
import nkeys
import pytest
from synadia_ai.agent_service import AgentService, ServiceIdentity
from synadia_ai.agents import (
    Agents,
    Attachment,
    Envelope,
    Identity,
    Query,
    ResponseChunk,
    SenderSignatureRequiredError,
    signer_from_seed,
)

from tests.support.clients import TIMEOUT_S, until
from tests.support.operators import Key


@asynccontextmanager
async def hosted(server, handler, seed=None, **options):
    """An agent and a caller, each with a connection of its own; with `seed` both log in with that nkey."""
    login = {"nkeys_seed_str": seed} if seed else {}
    async with AsyncExitStack() as stack:
        host, caller = [await nats.connect(server.url, **login) for _ in range(2)]
        stack.push_async_callback(host.close)
        stack.push_async_callback(caller.close)
        service = AgentService(agent="demo", owner="alice", session_name="main", nc=host, **options)
        service.on_prompt(handler)
        await service.start()
        stack.push_async_callback(service.stop)
        yield service, caller


async def texts(parts):
    return [part.text async for part in parts if isinstance(part, ResponseChunk)]


async def test_prompts_with_attachments_and_queries(core):
    async def handle(envelope, stream):
        name = await stream.ask("which name?", timeout=TIMEOUT_S)
        files = [(file.filename, file.content) for file in envelope.attachments or ()]
        for part in (envelope.prompt, name.prompt, str(files)):
            await stream.send(part)

    async with hosted(core, handle) as (service, caller):
        agents = Agents(nc=caller)
        (agent,) = await agents.discover()
        assert (agent.agent, agent.owner, agent.session_name) == ("demo", "alice", "main")
        heard = []
        sent = Envelope(prompt="do it", attachments=[Attachment(filename="a.txt", content="YQ==")])
        async for part in agent.prompt(sent):
            if isinstance(part, Query):
                await part.reply("Bob")
            elif isinstance(part, ResponseChunk):
                heard.append(part.text)
        assert heard == ["do it", "Bob", "[('a.txt', 'YQ==')]"]
        assert await agents.ping(service.instance_id)
        assert (await agent.status()).agent == "demo"
        await agents.close()


async def test_many_prompts_at_once_and_large_ones(core):
    async def handle(envelope, stream):
        await stream.send(envelope.prompt[::-1])

    async with hosted(core, handle, max_concurrent_prompts=8) as (_, caller):
        agents = Agents(nc=caller)
        (agent,) = await agents.discover()
        prompts = [f"{number} {'x' * 50_000}" for number in range(40)]
        answers = await asyncio.gather(*(texts(agent.prompt(prompt)) for prompt in prompts))
        assert ["".join(parts) for parts in answers] == [prompt[::-1] for prompt in prompts]
        await agents.close()


async def test_heartbeats_tell_who_lives(core):
    async def handle(envelope, stream):
        await stream.send("")

    async with hosted(core, handle, heartbeat_interval_s=1) as (service, caller):
        agents = Agents(nc=caller)
        await agents.start_tracking()
        await until(lambda: agents.liveness(service.instance_id) is not None)
        await agents.close()


async def test_signed_senders(start):
    key = Key(nkeys.PREFIX_BYTE_USER, 1)
    server = await start(f"authorization {{ users: [{{ nkey: {key.public} }}] }}", flags=["no_jetstream"])
    seen = []

    async def handle(envelope, stream):
        seen.append((stream.sender.trust, str(stream.sender.id)))
        await stream.send("ok")

    signer = signer_from_seed(key.seed)
    identity = ServiceIdentity(signer=signer)
    async with hosted(server, handle, seed=key.seed, identity=identity, min_sender_trust="signed") as (_, caller):
        agents = Agents(nc=caller, identity=Identity(signer=signer))
        (agent,) = await agents.discover()
        assert agent.id_sig_verified
        assert await texts(agent.prompt("hello")) == ["ok"]
        assert seen == [("verified", str(await agents.self_id()))]
        await agents.close()
        anonymous = Agents(nc=caller)
        (agent,) = await anonymous.discover()
        with pytest.raises(SenderSignatureRequiredError):
            await texts(agent.prompt("hello"))
        await anonymous.close()
