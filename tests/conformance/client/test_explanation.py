"""Why a consumer delivers nothing, told by both servers as far as they know."""

import asyncio

import pytest
from click.testing import CliRunner

from jetlake.cli.app import app
from tests.support.clients import filled, until


def kinds(explanation):
    return [reason.kind for reason in explanation.reasons]


async def test_nobody_asks_and_all_is_done(js):
    stream = await filled(js, 2)
    consumer = await stream.create_consumer("c")
    explanation = await consumer.explain()
    assert (kinds(explanation), explanation.is_stalled) == (["no_pulls"], True)
    assert "no client requests the pending messages (2)" in str(explanation)
    for message in await consumer.fetch(2):
        await message.ack_sync()
    explanation = await consumer.explain()
    assert (kinds(explanation), explanation.is_stalled) == (["caught_up"], False)


async def test_too_many_messages_wait_for_acknowledgement(js, kind):
    stream = await filled(js, 5)
    consumer = await stream.create_consumer("c", max_ack_pending=3)
    first, *_ = await consumer.fetch(3)
    first.nak(delay=3600)
    waiting = asyncio.ensure_future(consumer.next(30))

    async def is_waiting():
        return (await consumer.info()).num_waiting

    await until(is_waiting)
    explanation = await consumer.explain()
    assert explanation.is_stalled and "max_ack_pending of 3 is reached" in explanation.reasons[0].text
    if kind == "embedded":
        assert kinds(explanation) == ["max_ack_pending", "delayed"]
        seen = [(one.sequence, one.deliveries, one.state) for one in explanation.pending]
        assert seen == [(1, 1, "delayed"), (2, 1, "in_flight"), (3, 1, "in_flight")]
        assert explanation.pending[0].due > explanation.pending[1].due > explanation.info.ts
        assert "sequence 1 (delivery 1, delayed until 20" in explanation.reasons[1].text
    else:
        assert kinds(explanation) == ["max_ack_pending"]
        assert "between sequences 1 and 3" in str(explanation)
    waiting.cancel()


async def test_everything_is_delivered_and_not_acknowledged(js, kind):
    stream = await filled(js, 2)
    consumer = await stream.create_consumer("c")
    await consumer.fetch(2)
    explanation = await consumer.explain()
    assert (kinds(explanation), explanation.is_stalled) == (["unacknowledged"], True)
    assert ("2 messages awaiting acknowledgement or redelivery: sequences 1" in str(explanation)) == (
        kind == "embedded"
    )


async def test_paused(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    await consumer.pause(3600)
    explanation = await consumer.explain()
    assert kinds(explanation) == ["paused", "no_pulls"]
    assert "paused for another 59m" in str(explanation)


@pytest.mark.parametrize("is_hopeless", [False, True])
async def test_a_filter_that_matches_nothing(js, is_hopeless):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c", filter_subject="s.77")
    if is_hopeless:
        await stream.update(subjects=["t.>"])
    explanation = await consumer.explain()
    assert (kinds(explanation), explanation.is_stalled) == (["filter_matches_nothing"], True)
    assert ("none ever will" in str(explanation)) == is_hopeless


async def test_one_of_two_filters_matches(js):
    stream = await filled(js, 3)
    consumer = await stream.create_consumer("c", filter_subjects=["s.77", "s.1"])
    await (await consumer.next()).ack_sync()
    assert kinds(await consumer.explain()) == ["caught_up"]


async def test_the_command_says_why(server, js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("c")
    words = ["consumer", "why", "S", "c", "-s", server.url]
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert (result.exit_code, result.output[:11]) == (1, "no fetch or")
    await (await consumer.next()).ack_sync()
    result = await asyncio.to_thread(CliRunner().invoke, app, words)
    assert (result.exit_code, result.output) == (0, "everything was delivered and acknowledged\n")
