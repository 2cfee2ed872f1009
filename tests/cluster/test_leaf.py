"""An edge whose line is cut and whose ends are killed under load: nothing is lost, nothing comes twice.

More of it, and with three servers at the hub, in `full_leaf.py`.
"""

import pytest

from tests.support.edge_shop import EdgeShop
from tests.support.leaf import Edge


@pytest.mark.timeout(400)
async def test_a_hub_sources_from_an_edge_through_cuts_and_kills():
    edge = Edge("embedded", process=True)
    shop = None
    try:
        await edge.start()
        await edge.joined()
        shop = EdgeShop(edge.leaf.url, [edge.hub.url])
        await shop.open()
        for _ in range(3):
            await shop.progress()
            edge.line.cut()
            await edge.parted()
            edge.line.restore()
            await edge.joined()
        await edge.hub.kill()
        await edge.hub.start()
        await shop.progress()
        await edge.leaf.kill()
        await edge.leaf.start()
        await shop.count()
    finally:
        if shop is not None:
            await shop.close()
        await edge.discard()
