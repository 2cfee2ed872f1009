"""What our client does for an exchange with another one: batches, schedules and services, both ways."""

import json
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

from jetlake.errors import ServiceError

TIMEOUT_S = 30
SOON = timedelta(milliseconds=100)


async def write(js):
    """Store a batch on `x.ours`, and a schedule that fires on `due.ours`; in a stream that is made anew."""
    if "X" in await js.stream_names():
        await js.delete_stream("X")
    await js.create_stream("X", subjects=["x.>", "due.>"], allow_atomic=True, allow_msg_schedules=True)
    async with js.batch() as batch:
        for number in range(3):
            batch.publish("x.ours", b"%d" % number)
    await js.schedule("x.plan.ours", b"tea", target="due.ours", at=datetime.now(UTC) + SOON)


async def read(js):
    """What the other client stored on `x.theirs` and let fire on `due.theirs`."""
    stream = await js.stream("X")
    async with stream.ordered(filter_subjects=["x.theirs", "due.theirs"]) as messages:
        seen = [await messages.next(TIMEOUT_S) for _ in range(3)]
    return [[message.subject, message.payload.decode(), message.headers.get("Nats-Scheduler")] for message in seen]


WRITTEN = ["0", "1", "2", ["due.ours", "tea", "x.plan.ours"]]
"""What the other client reads."""

READ = [["x.theirs", "a", None], ["x.theirs", "b", None], ["due.theirs", "coffee", "x.plan.theirs"]]
"""What it writes for us."""


@asynccontextmanager
async def serving(client):
    """A service of ours, `ours`, whose endpoint `ours.check` asks for the service `theirs` by our client."""
    async with client.service("ours", "1.2.3", description="sells", metadata={"k": "v"}) as service:
        group = service.group("ours")

        @group.endpoint()
        async def double(request):
            return b"%d" % (2 * int(request.payload))

        @group.endpoint()
        async def fail(request):
            raise ServiceError(404, "nothing here", b"more")

        @group.endpoint()
        async def check(request):
            return json.dumps(await found(client)).encode()

        await client.flush()
        yield service


async def found(client):
    """What our client finds of the service `theirs`, and gets from its endpoints."""
    services = client.services()
    answer = (await services.request("theirs.up", b"a", timeout=TIMEOUT_S)).payload.decode()
    try:
        await services.request("theirs.broken", b"", timeout=TIMEOUT_S)
        refusal = None
    except ServiceError as error:
        refusal = [error.code, error.description]
    (ping,) = await services.ping("theirs")
    (info,) = await services.info("theirs")
    (stats,) = await services.stats("theirs")
    return {
        "answer": answer,
        "refusal": refusal,
        "ping": [ping.name, ping.version],
        "info": [info.description, sorted(one.subject for one in info.endpoints)],
        "stats": sorted([one.name, one.num_requests] for one in stats.endpoints),
    }


FOUND = {
    "answer": "A",
    "refusal": [402, "pay"],
    "ping": ["theirs", "2.0.0"],
    "info": ["theirs", ["theirs.broken", "theirs.up"]],
    "stats": [["broken", 1], ["up", 1]],
}
"""What our client finds of the service `theirs`."""
