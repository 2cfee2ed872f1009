"""Small versions of the shapes of load that `benchmarks/load.py` measures: everybody is served, memory is bounded."""

import resource

from tests.faults import load_shapes

GROWTH_MIB = 150
"""More than any of these may add to the server's memory; without bounds each would add several times that."""


def check(figures, took_part):
    assert figures["took part"] == took_part
    assert figures["peak MiB"] - figures["start MiB"] < GROWTH_MIB, figures
    assert figures["answers"] > 0


async def test_many_connections():
    check(await load_shapes.many_connections(200), 200)


async def test_many_streams():
    figures = await load_shapes.many_streams(40)
    check(figures, 40)


async def test_many_consumers_of_one_stream():
    figures = await load_shapes.many_consumers(60)
    check(figures, 60)
    assert figures["open files"] < 60


async def test_a_subscriber_that_never_reads_is_cut_off_alone():
    figures = await load_shapes.never_reading_subscriber(2000)
    check(figures, 2000)
    assert figures["cut off"] == 1


async def test_clients_that_send_byte_by_byte():
    check(await load_shapes.byte_by_byte(3, 5), 15)


async def test_a_publisher_that_is_faster_than_the_disk():
    figures = await load_shapes.faster_than_the_disk(1.0)
    assert figures["sent"] > 0
    check(figures, figures["sent"])


async def test_the_server_takes_all_the_open_files_that_the_system_grants():
    """Shells often grant a thousand, which a few hundred streams use up."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (128, limits[1]))
    try:
        figures = await load_shapes.many_streams(80)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert figures["took part"] == 80
    assert figures["open files"] > 128
