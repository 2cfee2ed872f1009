"""What the tests of the blocking client share: a client in a thread beside the loop, and a stream with messages."""

import asyncio
import time

import jetlake.blocking


async def in_thread(work, *arguments):
    """Run blocking code beside the loop, which may hold the server."""
    return await asyncio.to_thread(work, *arguments)


def connected(test):
    """Run the test in a thread, with a blocking client of the server."""

    async def run(server):
        def work():
            with jetlake.blocking.connect(server.url, connect_timeout=10) as client:
                test(client)

        await in_thread(work)

    run.__name__ = test.__name__
    run.__doc__ = test.__doc__
    return run


def wait_until(condition, timeout_s=60):
    """Wait until the condition holds."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, "the condition does not come true"
        time.sleep(0.005)


def fill(js, count):
    stream = js.create_stream("S", subjects=["s.>"])
    for number in range(count):
        js.publish_async("s.1", b"%d" % number)
    js.publish_async_complete()
    return stream
