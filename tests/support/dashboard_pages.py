"""The dashboard's page of a stream, waited for until it is as it should be."""

import asyncio

from jetlake.dashboard.watching.listing import Listing


async def shown(collector, condition):
    """The page of stream S, as soon as it is so."""
    async with asyncio.timeout(90):
        while True:
            page = await collector.stream("S", Listing())
            if page and page["cluster"] and condition(page):
                return page
            await asyncio.sleep(0.05)


async def leader_shown(collector):
    """Wait until the page of consumer C names its leader: its group elects one by itself, later than the stream's."""
    async with asyncio.timeout(90):
        while True:
            page = await collector.consumer("S", "C", Listing())
            if page and page["cluster"] and page["cluster"]["leader"]:
                return
            await asyncio.sleep(0.05)


def is_behind(page, name):
    """Whether a server's replica is shown as away or not current."""
    peer = next(peer for peer in page["cluster"]["replicas"] if peer["name"] == name)
    return peer["offline"] or not peer["current"]
