"""Message ids live as long as their window, whatever became of their messages, across every kind of crash."""

import errno
import json

import pytest

from jetlake.protocol.headers import encode_headers
from tests.faults.engine_world import Client, World

COUNT = 60
SECOND_NS = 1_000_000_000


def publish(world, subject, count=COUNT, first=0):
    """Publish messages with ids in batches; the sequences of those that were new."""
    answers = []
    for number in range(first, first + count):
        header = encode_headers([("Nats-Msg-Id", f"id-{number}")])
        world.send(subject, b"x" * 50, answers.append, header)
        if number % 10 == 9:
            world.settle()
    world.settle()
    assert len(answers) == count
    return [json.loads(answer.payload) for answer in answers]


def tidy_up(world):
    """Let the house-keeping run until nothing is left to do."""
    for _ in range(600):
        if not world.engine.timers.next_ns:
            return
        # Steps follow each other closely, so that many fit into the window of the ids.
        world.clock.advance(0.1)
        world.engine.run_timers()
        world.settle()


def create(world, retention, **config):
    world.ask("STREAM.CREATE.J", {"name": "J", "subjects": ["j.>"], "retention": retention, **config})


def consume(world):
    config = {"durable_name": "worker", "ack_policy": "explicit", "max_ack_pending": 10_000}
    world.ask("CONSUMER.CREATE.J.worker", {"stream_name": "J", "config": config})


def acknowledge(world):
    """Fetch and acknowledge everything."""
    worker = Client()
    world.account.subscribe(b"got", b"2", worker)
    world.account.publish(b"$JS.API.CONSUMER.MSG.NEXT.J.worker", b"got", b"", b'{"batch":1000,"no_wait":true}')
    world.settle()
    for message in worker.messages:
        world.account.publish(message.reply, b"", b"", b"+ACK")
    world.settle()


def work_queue(world):
    create(world, "workqueue")
    consume(world)
    publish(world, b"j.1")
    acknowledge(world)


def interest(world):
    create(world, "interest")
    consume(world)
    publish(world, b"j.1")
    acknowledge(world)


def nobody(world):
    create(world, "interest")
    publish(world, b"j.1")


def limit(world):
    create(world, "limits", max_msgs=1)
    publish(world, b"j.1")


def purge(world):
    create(world, "limits")
    publish(world, b"j.1")
    world.ask("STREAM.PURGE.J")


def most_of_a_segment(world):
    """Only some messages are left of each segment, so that segments are rewritten."""
    create(world, "limits")
    publish(world, b"j.1")
    for sequence in range(1, COUNT + 1):
        if sequence % 7:
            world.ask("STREAM.MSG.DELETE.J", {"seq": sequence, "no_erase": True})


def erase(world):
    create(world, "limits")
    publish(world, b"j.1")
    for sequence in range(1, COUNT + 1):
        world.ask("STREAM.MSG.DELETE.J", {"seq": sequence})


REMOVALS = [work_queue, interest, nobody, limit, purge, most_of_a_segment, erase]


@pytest.mark.parametrize("end", ["power", "kill", "clean", "power before the clean-up"])
@pytest.mark.parametrize("removal", REMOVALS)
def test_ids_of_removed_messages_are_known_after(removal, end):
    for seed in range(3):
        world = World(seed)
        removal(world)
        if "before" not in end:
            tidy_up(world)
            if removal is not nobody:
                left = sum(len(world.disk.content(path)) for path in segments(world))
                assert left < COUNT * 70, "the records themselves are gone"
        for _ in range(2):
            if end == "clean":
                world.restart()
            else:
                world.crash(power=end != "kill")
            answers = publish(world, b"j.1")
            assert [answer["seq"] for answer in answers if answer.get("duplicate")] == list(range(1, COUNT + 1))


def segments(world):
    return [path for path in world.disk.files() if "/J/msgs/" in str(path) and path.suffix == ".seg"]


def id_files(world):
    return [path for path in world.disk.files() if "/J/ids" in str(path)]


@pytest.mark.parametrize("removal", REMOVALS)
def test_ids_take_no_room_when_their_window_has_passed(removal):
    world = World(1)
    removal(world)
    tidy_up(world)
    world.clock.advance(200)
    world.engine.run_timers()
    tidy_up(world)
    assert sum(len(world.disk.content(path)) for path in id_files(world)) < 100
    assert len(world.jetstream.streams["J"].ids.window) == 0


def test_the_id_log_does_not_grow_with_the_stream():
    world = World(1)
    create(world, "limits", max_msgs=1, duplicate_window=10 * SECOND_NS)
    for turn in range(40):
        publish(world, b"j.1", first=turn * COUNT)
        tidy_up(world)
    one_window = COUNT * 40
    assert sum(len(world.disk.content(path)) for path in id_files(world)) < 3 * one_window
    world.crash(power=True)
    assert publish(world, b"j.1", first=39 * COUNT + 30, count=1)[0].get("duplicate") is None, "long expired"


@pytest.mark.parametrize("operation", ["write", "sync", "create"])
def test_no_record_goes_while_the_disk_does_not_take_its_id(operation):
    world = World(1)
    create(world, "limits", max_msgs=1)

    def fault(asked, path):
        if asked in (operation, "open") and "/J/ids.0" in str(path):
            raise OSError(errno.EIO, "as asked", str(path))

    world.disk.fault = fault
    publish(world, b"j.1")
    tidy_up(world)
    world.crash(power=True)
    answers = publish(world, b"j.1")
    assert all(answer.get("duplicate") for answer in answers)


def test_the_id_of_a_message_that_was_never_stored_suppresses_nothing():
    """The disk refuses the log and takes the ids; the sequences go to other messages."""
    world = World(1)
    create(world, "interest")
    publish(world, b"j.1", count=1)

    def fault(asked, path):
        if asked == "write" and "/J/msgs/" in str(path):
            raise OSError(errno.ENOSPC, "as asked", str(path))

    world.disk.fault = fault
    assert ["error" in answer for answer in publish(world, b"j.1", first=1, count=3)] == [True] * 3
    assert world.engine.disk_failures(), "told until the disk takes something"
    world.heal()
    for _ in range(3):
        world.send(b"j.1", b"without an id", lambda _: None)
    world.settle()
    world.crash(power=False)
    answers = publish(world, b"j.1", count=4)
    assert [answer.get("duplicate") for answer in answers] == [True, None, None, None]


def test_ids_of_another_stream_are_left_alone():
    world = World(1)
    nobody(world)
    files = {path: world.disk.content(path) for path in id_files(world)}
    assert len(files) == 2, "ids, and the log of ids"
    world.ask("STREAM.DELETE.J")
    create(world, "interest")
    publish(world, b"j.1", first=1000)
    world.crash(power=False)
    world.disk.kill()
    (log,) = (path for path in files if path.suffix)
    foreign = log.with_name("ids.0000000077")
    world.disk.put(foreign, files[log])
    world.disk.put(log.with_name("ids"), files[log.with_name("ids")])
    notes = []
    world.start()
    stream = world.jetstream.streams["J"]
    stream.storage.id_log._note = notes.append
    stream.storage.id_log.load()
    assert notes == [f"{foreign} is not of this stream, or damaged: it is left alone"]
    assert not any(answer.get("duplicate") for answer in publish(world, b"j.1"))
    assert all(answer.get("duplicate") for answer in publish(world, b"j.1", first=1000))
    world.restart()
    assert world.disk.content(foreign) == files[log]


def test_ids_that_a_start_adopted_after_a_failed_sync_are_safe():
    for seed in range(10):
        world = World(seed)
        world.disk.drops_failed_syncs = True
        create(world, "interest")

        def fault(asked, path):
            if asked == "sync" and "/J/ids.0" in str(path):
                raise OSError(errno.EIO, "as asked", str(path))

        world.disk.fault = fault
        publish(world, b"j.1", count=5)
        world.crash(power=False)
        assert all(answer.get("duplicate") for answer in publish(world, b"j.1", count=5)), "they were found"
        world.crash(power=True)
        assert all(answer.get("duplicate") for answer in publish(world, b"j.1", count=5)), seed


@pytest.mark.parametrize("crashes", [1, 2])
def test_the_id_of_a_message_that_a_power_cut_left_before_its_sync_is_known(crashes):
    known = 0
    for seed in range(12):
        world = World(seed)
        create(world, "limits")
        world.send(b"j.1", b"x", lambda _: None, encode_headers([("Nats-Msg-Id", "id-0")]))
        world.engine.flush()  # The message is written, and neither it nor the id file is synced.
        for _ in range(crashes):
            world.crash(power=True)
        stored = world.ask("STREAM.INFO.J")["state"]["messages"]
        (answer,) = publish(world, b"j.1", count=1)
        assert answer.get("duplicate", False) == bool(stored), seed
        known += stored
    assert 0 < known < 12
