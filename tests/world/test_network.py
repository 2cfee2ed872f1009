"""The network of a world closes what the system would close."""

import asyncio

from tests.world.world import Process, World


def test_a_dial_that_is_cancelled_as_it_succeeds_leaves_no_socket():
    world = World(1)
    outcomes = []

    async def dial():
        try:
            async with asyncio.timeout(0.5):
                address = world.machines["server"].address
                outcomes.append(await world.network.dial(asyncio.get_running_loop(), address, 1))
        except TimeoutError as error:
            outcomes.append(error)

    def conduct():
        server, client = (Process(world.machine(name), name) for name in ("server", "client"))
        server.start(lambda: world.network.listen("server", 1))
        world.scheduler.sleep(0.01)
        client.start_loop(dial)
        while not world.network.links:
            world.scheduler.sleep(0.00001)
        client.pause()  # until the answer is there and the time is over
        world.scheduler.sleep(1)
        client.resume()
        world.scheduler.sleep(1)
        return list(client.ends)

    assert world.run(conduct) == []
    assert [type(outcome) for outcome in outcomes] == [TimeoutError]
