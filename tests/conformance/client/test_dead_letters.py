"""Retries and dead letters of `consume` on both servers, in asyncio and in the blocking client."""

import asyncio
import json

import pytest
from click.testing import CliRunner

import jetlake.blocking
from jetlake.cli.app import app
from jetlake.client.connection.socket_connection import connect_socket
from jetlake.client.streams.dead_letters import REFUSED, DeadLetterReplay, dead_letters_between
from jetlake.errors import InvalidOptionError, NoRespondersError
from tests.support.clients import filled, until


async def letters_of(js, name="DEAD"):
    stream = await js.stream(name)
    state = (await stream.info()).state
    return [await stream.get(sequence) for sequence in range(1, state.last_seq + 1)]


async def settled(consumer, total):
    async def all_done():
        info = await consumer.info()
        return (info.ack_floor.stream_seq, info.num_ack_pending, info.num_pending) == (total, 0, 0)

    await until(all_done)


async def test_a_message_is_tried_again_and_then_a_dead_letter(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    await js.create_stream("DEAD", subjects=["dead.>"])
    await js.publish("s.bad", b"bad", headers={"Kind": ["a", "b"], "Dead-Letter-Reason": "old"}, msg_id="42")
    await js.publish("s.good", b"good")
    await js.publish("s.second", b"second")
    consumer = await stream.create_consumer("w")
    tries = []
    reported = []

    async def handle(message):
        tries.append((message.payload, message.metadata.delivered))
        if message.payload == b"bad" or tries[-1] == (b"second", 1):
            raise ValueError("no\r\ngood")
        await message.ack()

    reading = consumer.consume(
        handle, retries=2, backoff=[0.01, 0.02], dead_letter="dead.{stream}.{consumer}", on_error=reported.append
    )
    async with reading:
        await settled(consumer, 3)
    assert [number for payload, number in tries if payload == b"bad"] == [1, 2, 3]
    assert [number for payload, number in tries if payload == b"second"] == [1, 2]
    assert len(reported) == 4
    (letter,) = await letters_of(js)
    assert (letter.subject, letter.payload) == ("dead.S.w", b"bad")
    headers = letter.headers
    assert headers.get_all("Kind") == ["a", "b"]
    said = {name: headers.get_all(f"Dead-Letter-{name}") for name in ("Stream", "Consumer", "Sequence", "Subject")}
    assert said == {"Stream": ["S"], "Consumer": ["w"], "Sequence": ["1"], "Subject": ["s.bad"]}
    assert headers.get_all("Dead-Letter-Reason") == ["failed"]
    assert headers["Dead-Letter-Deliveries"] == "3"
    assert headers["Dead-Letter-Description"] == "ValueError: no good"
    traceback = headers.get_all("Dead-Letter-Traceback")
    assert traceback[0].startswith("Traceback") and any("in handle" in line for line in traceback)
    assert headers["Nats-Msg-Id"].startswith("S:w:1:")


class Outcome(BaseException):
    """What is no Exception, as pytest's own outcomes."""


class SpeechlessError(Exception):
    def __str__(self):
        raise ValueError("nothing to say")


@pytest.mark.parametrize("kind", [Outcome, SpeechlessError])
async def test_whatever_a_handler_raises_the_next_message_follows(js, kind):
    stream = await filled(js, 2)
    await js.create_stream("DEAD", subjects=["dead"])
    consumer = await stream.create_consumer("w")
    reported = []

    async def handle(message):
        if message.payload == b"0":
            raise kind
        await message.ack()

    def report(error):
        reported.append(error)
        raise Outcome

    async with consumer.consume(handle, retries=1, backoff=0.01, dead_letter="dead", on_error=report):
        await settled(consumer, 2)
    (letter,) = await letters_of(js)
    assert letter.headers["Dead-Letter-Description"].startswith(
        "JetlakeError: the handler raised Outcome" if kind is Outcome else "SpeechlessError"
    )
    assert kind in {type(reported[0]), type(reported[0].__cause__)}


async def test_a_letter_that_nobody_stores_leaves_the_message_alone(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("w")
    reported = []

    async def handle(message):
        raise ValueError("bad")

    async with consumer.consume(handle, retries=0, backoff=0.01, dead_letter="dead", on_error=reported.append):
        await until(lambda: sum(isinstance(error, NoRespondersError) for error in reported) >= 2)
        assert (await consumer.info()).num_ack_pending == 1
        await js.create_stream("DEAD", subjects=["dead"])
        await settled(consumer, 1)
    assert len(await letters_of(js)) == 1


async def test_without_a_subject_a_message_is_terminated_with_its_reason(server, clients, js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("w")
    events = await (await clients(server)).subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    await events._connection.flush(5)

    def handle(message):
        raise KeyError("order")

    async with consumer.consume(handle, retries=0, on_error=lambda _: None):
        event = json.loads((await events.next(10)).payload)
    assert event["reason"] == "KeyError: 'order'"


async def test_what_the_handler_has_settled_stays_settled(js):
    stream = await filled(js, 1)
    await js.create_stream("DEAD", subjects=["dead"])
    consumer = await stream.create_consumer("w")
    reported = []

    async def handle(message):
        await message.ack_sync()
        raise ValueError("afterwards")

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=reported.append):
        await until(lambda: reported)
    assert await letters_of(js) == []


async def test_a_letter_has_as_much_of_the_error_as_the_server_takes(start, clients):
    server = await start(config="max_payload: 2000")
    js = (await clients(server)).jetstream()
    stream = await js.create_stream("S", subjects=["s"])
    await js.create_stream("DEAD", subjects=["dead"])
    for size in (1200, 1600, 1999):
        await js.publish("s", b"x" * size)
    consumer = await stream.create_consumer("w")
    events = await (await clients(server)).subscribe("$JS.EVENT.ADVISORY.CONSUMER.MSG_TERMINATED.>")
    await events._connection.flush(5)
    reported = []

    def handle(message):
        raise ValueError("large " * 80)

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=reported.append):
        await settled(consumer, 3)
    letters = await letters_of(js)
    assert [len(letter.payload) for letter in letters] == [1200, 1600]
    told = [letter.headers.get("Dead-Letter-Description", "") for letter in letters]
    assert len(told[0]) == len("ValueError: ") + 6 * 80 - 1 and told[1] in told[0] and len(told[1]) < len(told[0])
    assert "Dead-Letter-Traceback" not in letters[1].headers
    assert all(len(letter.headers.raw) + len(letter.payload) <= 2000 for letter in letters)
    reasons = [json.loads((await events.next(10)).payload)["reason"] for _ in range(3)]
    assert [reason.startswith("too large for a dead letter: ValueError: large") for reason in reasons] == [0, 0, 1]
    assert "is terminated without one" in str(reported[-1])


async def test_a_letter_without_the_error_goes_to_a_stream_of_smaller_messages(js):
    stream = await js.create_stream("S", subjects=["s"])
    await js.create_stream("DEAD", subjects=["dead"], max_msg_size=600)
    await js.publish("s", b"x" * 100)
    await js.publish("s", b"x" * 600)
    consumer = await stream.create_consumer("w")
    reported = []

    def handle(message):
        raise ValueError("large " * 80)

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=reported.append):
        await settled(consumer, 2)
    (letter,) = await letters_of(js)
    assert (len(letter.payload), letter.headers["Dead-Letter-Sequence"]) == (100, "1")
    assert "Dead-Letter-Description" not in letter.headers
    assert "is terminated without one" in str(reported[-1])


async def test_a_roll_up_header_does_not_purge_other_letters(js):
    stream = await js.create_stream("S", subjects=["s.*"], allow_rollup_hdrs=True)
    await js.create_stream("DEAD", subjects=["dead"], allow_rollup_hdrs=True)
    for number in range(3):
        await js.publish(f"s.{number}", b"", headers={"Nats-Rollup": "sub"})
    consumer = await stream.create_consumer("w")

    def handle(message):
        raise ValueError("bad")

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=lambda _: None):
        await settled(consumer, 3)
    assert len(await letters_of(js)) == 3


async def test_options_that_cannot_work_are_refused(js):
    stream = await filled(js, 1)
    consumer = await stream.create_consumer("w", max_deliver=4)
    with pytest.raises(InvalidOptionError, match="max_deliver=-1 or 5"):
        consumer.consume(print, dead_letter="dead")
    consumer = await stream.create_consumer("unlimited")
    for options in ({"retries": -1}, {"retries": True}, {"backoff": []}, {"backoff": -1}, {"backoff": "a"}):
        with pytest.raises(InvalidOptionError, match=next(iter(options))):
            consumer.consume(print, **options)
    with pytest.raises(ValueError, match="wildcard"):
        consumer.consume(print, retries=1, dead_letter="dead.>")
    with pytest.raises(InvalidOptionError, match="need a handler"):
        consumer.consume(retries=1).start()
    every = await stream.create_consumer("all", ack_policy="all")
    with pytest.raises(InvalidOptionError, match="explicit"):
        every.consume(print, retries=1)


async def test_the_blocking_client_retries_too(server, js):
    stream = await filled(js, 3)
    await js.create_stream("DEAD", subjects=["dead"])
    await stream.create_consumer("w")

    def work():
        with jetlake.blocking.connect(server.url) as nc:
            consumer = nc.jetstream().stream("S").consumer("w")
            with pytest.raises(InvalidOptionError, match="need a handler"):
                consumer.consume(retries=1).start()
            tries = []

            def handle(message):
                tries.append((message.payload, message.metadata.delivered))
                if message.payload == b"1":
                    raise ValueError("one") if message.metadata.delivered > 1 else SystemExit
                message.ack()

            options = {"retries": 1, "backoff": 0.01, "dead_letter": "dead", "on_error": lambda _: None}
            with consumer.consume(handle, **options) as reading:
                while consumer.info().ack_floor.stream_seq < 3:
                    pass
                assert reading.handled == 2
            return tries

    tries = await asyncio.to_thread(work)
    assert [number for payload, number in tries if payload == b"1"] == [1, 2]
    (letter,) = await letters_of(js)
    assert any("in handle" in line for line in letter.headers.get_all("Dead-Letter-Traceback"))


async def test_the_command_shows_and_replays_letters(server, js):
    stream = await js.create_stream("S", subjects=["s.>"])
    await js.create_stream("DEAD", subjects=["dead"])
    for number in range(2):
        await js.publish(f"s.{number}", b"job %d" % number, headers={"Kind": "x"})
    consumer = await stream.create_consumer("w")

    def handle(message):
        raise ValueError("bad")

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=lambda _: None):
        await settled(consumer, 2)

    async def run(*words):
        result = await asyncio.to_thread(CliRunner().invoke, app, ["dead-letters", *words, "-s", server.url])
        assert result.exit_code == 0, result.output
        return result.output

    listed = json.loads(await run("ls", "DEAD", "--json"))
    assert [(row["letter"], row["sequence"], row["subject"]) for row in listed] == [(1, "1", "s.0"), (2, "2", "s.1")]
    assert "ValueError: bad" in await run("ls", "DEAD")
    shown = await run("show", "DEAD", "2")
    assert "Dead-Letter-Subject: s.1\n" in shown and "Traceback" in shown and shown.endswith("job 1\n")
    assert await run("replay", "DEAD", "--reason", "failed", "--of", "S", "--to-seq", "1") == "1 published\n"
    again = await stream.get(3)
    assert (again.subject, again.payload, again.headers.get_all("Kind")) == ("s.0", b"job 0", ["x"])
    assert "Dead-Letter-Stream" not in again.headers
    assert (await (await js.stream("DEAD")).info()).state.messages == 1


async def test_letters_are_replayed_from_code(js, server):
    stream = await js.create_stream("S", subjects=["s.>"])
    dead = await js.create_stream("DEAD", subjects=["dead"])
    for number in range(4):
        origin = {"Dead-Letter-Stream": "S", "Dead-Letter-Subject": f"s.{number}"}
        await js.publish("dead", b"%d" % number, headers=origin | {"Dead-Letter-Consumer": f"c{number % 2}"})
    gone = {"Dead-Letter-Stream": "S", "Dead-Letter-Subject": "none", "Dead-Letter-Consumer": "c9"}
    await js.publish("dead", b"4", headers=gone)
    assert await js.replay_dead_letters("DEAD", of="OTHER") == (0, 0, ())
    assert await js.replay_dead_letters("DEAD", of="S", consumer="c1", keep=True) == (2, 0, ())
    assert await js.replay_dead_letters("DEAD", consumer="c1") == (0, 2, ())

    def replay_the_rest():
        with jetlake.blocking.connect(server.url) as client:
            return client.jetstream().replay_dead_letters("DEAD")

    rest = await asyncio.to_thread(replay_the_rest)
    assert (rest.published, rest.published_before) == (2, 0)
    assert [text.partition(":")[0] for text in rest.refused] == ["letter 5, none in S"]
    assert [message.payload for message in await stream.ordered().fetch(4)] == [b"1", b"3", b"0", b"2"]
    assert (await dead.info()).state.messages == 1


async def test_a_letter_keeps_the_headers_and_the_subject_of_any_bytes(server, js):
    stream = await js.create_stream("S", subjects=["s.>"])
    dead = await js.create_stream("DEAD", subjects=["dead"])
    broken = b"NATS/1.0\r\nGood: 1\r\nK\xff: \xfe\r\na b: 2\r\n: 3\r\nNoColon\r\nLine: a\nb\r\nGood: 4\r\n\r\n"

    def publish_raw():
        with connect_socket(server.url) as connection:
            connection.request(b"s.\xff", b"odd", header=broken)

    await asyncio.to_thread(publish_raw)
    consumer = await stream.create_consumer("w")

    def handle(message):
        raise ValueError("bad")

    async with consumer.consume(handle, retries=0, dead_letter="dead", on_error=lambda _: None):
        await settled(consumer, 1)
    letter = await dead.get(1)
    assert [pair for pair in letter.headers.items() if not pair[0].startswith(("Dead-", "Nats-"))] == [
        ("Good", "1"),
        ("Good", "4"),
        ("K\udcff", "\udcfe"),
    ]
    assert await DeadLetterReplay(js.publish, js.stream, dead, pytest.fail).replay(letter) == "published"
    again = (await stream.ordered().fetch(2))[1]
    assert (again.raw_subject, again.headers.get_all("Good")) == (b"s.\xff", ["1", "4"])


async def test_a_letter_whose_subject_was_lost_is_not_replayed(js):
    stream = await js.create_stream("S", subjects=["s.>"])
    dead = await js.create_stream("DEAD", subjects=["dead"])
    await js.publish("dead", b"job", headers={"Dead-Letter-Stream": "S", "Dead-Letter-Subject": "s.\ufffd"})
    reported = []
    assert await DeadLetterReplay(js.publish, js.stream, dead, reported.append).replay(await dead.get(1)) == REFUSED
    assert "are no UTF-8 text" in reported[0]
    assert ((await stream.info()).state.messages, (await dead.info()).state.messages) == (0, 1)


@pytest.mark.parametrize("retention", ["limits", "workqueue"])
async def test_a_replay_that_broke_off_is_not_repeated_after_the_duplicate_window(js, clock, retention):
    stream = await js.create_stream("S", subjects=["s.>"], duplicate_window=0.1, retention=retention)
    dead = await js.create_stream("DEAD", subjects=["dead"])
    died = {"Dead-Letter-Stream": "S", "Dead-Letter-Subject": "s.1"}
    for _ in range(2):
        await js.publish("dead", b"job", headers=died)
    first = await dead.get(1)
    # Published, and cut off before the letter was deleted.
    cut_off = DeadLetterReplay(js.publish, js.stream, dead, pytest.fail, keep=True)
    assert await cut_off.replay(first) == "published"
    await js.publish("s.1", b"of somebody else")
    await clock.passes(0.3)
    replaying = DeadLetterReplay(js.publish, js.stream, dead, pytest.fail)
    replayed = [await replaying.replay(letter) async for letter in dead_letters_between(dead, 1, 2)]
    assert replayed == ["published before", "published"]
    assert (await dead.info()).state.messages == 0
    assert (await stream.info()).state.messages == 3
    # Whoever keeps letters replays them as often as they want.
    assert await cut_off.replay(first) == "published"
