"""Message schedules: rules, publication, cancellation and restarts, on both servers with the same answers."""

import asyncio
import re
from base64 import b64decode

import pytest

from tests.support.pair import Pair


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


async def create(pair, name="S", **config):
    subjects = [f"{name.lower()}.>"]
    config = {"name": name, "subjects": subjects, "allow_msg_schedules": True, **config}
    return await pair.api(f"STREAM.CREATE.{name}", config)


def schedule(pattern, target="s.target", **more):
    headers = {"Nats-Schedule": pattern}
    if target is not None:
        headers["Nats-Schedule-Target"] = target
    return headers | {f"Nats-{key.replace('_', '-')}": value for key, value in more.items()}


LATER = "@at 2199-01-01T00:00:00Z"

RULES = {
    "at": schedule(LATER),
    "at with an offset": schedule("@at 2199-01-01T00:00:00+02:00"),
    "at with a fraction": schedule("@at 2199-01-01T00:00:00.123456789Z"),
    "at without a zone": schedule("@at 2199-01-01T00:00:00"),
    "at with a blank": schedule("@at 2199-01-01 00:00:00Z"),
    "at nothing": schedule("@at"),
    "at two blanks": schedule("@at  2199-01-01T00:00:00Z"),
    "at no such day": schedule("@at 2199-02-30T00:00:00Z"),
    "every": schedule("@every 1h"),
    "every second": schedule("@every 1s"),
    "every half second": schedule("@every 500ms"),
    "every minus": schedule("@every -1h"),
    "every junk": schedule("@every day"),
    "every number": schedule("@every 60"),
    "every two blanks": schedule("@every  1h"),
    "every fraction": schedule("@every 1.5h"),
    "at in capitals": schedule("@AT 2199-01-01T00:00:00Z"),
    "hourly": schedule("@hourly"),
    "daily": schedule("@daily"),
    "midnight": schedule("@midnight"),
    "weekly": schedule("@weekly"),
    "monthly": schedule("@monthly"),
    "yearly": schedule("@yearly"),
    "annually": schedule("@annually"),
    "reboot": schedule("@reboot"),
    "Daily": schedule("@Daily"),
    "cron": schedule("0 0 5 1 1 *"),
    "cron of five": schedule("0 5 1 1 *"),
    "cron of seven": schedule("0 0 5 1 1 * *"),
    "cron with names": schedule("0 0 5 * JAN,feb Mon-Fri"),
    "cron sunday is seven": schedule("0 0 5 * * 7"),
    "cron with steps": schedule("*/10 5/15 1-10/3 ? * *"),
    "cron step zero": schedule("*/0 * 5 1 1 *"),
    "cron backwards": schedule("0 0 10-5 * * *"),
    "cron out of range": schedule("60 0 5 1 1 *"),
    "cron day zero": schedule("0 0 5 0 1 *"),
    "cron never": schedule("0 0 5 31 2 *"),
    "cron leap day": schedule("0 0 5 29 2 *"),
    "cron empty part": schedule("0 0 5,, 1 1 *"),
    "cron star range": schedule("0 0 *-5 1 1 *"),
    "cron two steps": schedule("0 0 */2/2 1 1 *"),
    "cron two ranges": schedule("0 0 1-2-3 1 1 *"),
    "cron blanks": schedule("0  0   5 1 1 *"),
    "cron with zone": schedule("0 0 5 1 1 *", Schedule_Time_Zone="Europe/Berlin"),
    "cron with TZ": schedule("TZ=Europe/Berlin 0 0 5 1 1 *"),
    "cron with CRON_TZ": schedule("CRON_TZ=Europe/Berlin 0 0 5 1 1 *"),
    "junk": schedule("now and then"),
    "empty": schedule(""),
    "zone UTC": schedule("@daily", Schedule_Time_Zone="UTC"),
    "zone Local": schedule("@daily", Schedule_Time_Zone="Local"),
    "zone empty": schedule("@daily", Schedule_Time_Zone=""),
    "zone unknown": schedule("@daily", Schedule_Time_Zone="Mars/Olympus"),
    "zone path": schedule("@daily", Schedule_Time_Zone="../../etc/passwd"),
    "zone of at": schedule(LATER, Schedule_Time_Zone="UTC"),
    "zone of every": schedule("@every 1h", Schedule_Time_Zone="UTC"),
    "unknown zone of at": schedule(LATER, Schedule_Time_Zone="Mars/Olympus"),
    "zone without schedule": {"Nats-Schedule-Time-Zone": "Mars/Olympus"},
    "known zone without schedule": {"Nats-Schedule-Time-Zone": "UTC"},
    "target without schedule": {"Nats-Schedule-Target": "s.x"},
    "ttl": schedule(LATER, Schedule_TTL="5m"),
    "junk ttl": schedule(LATER, Schedule_TTL="junk"),
    "empty ttl": schedule(LATER, Schedule_TTL=""),
    "never ttl": schedule(LATER, Schedule_TTL="never"),
    "rollup": schedule(LATER, Schedule_Rollup="sub"),
    "rollup all": schedule(LATER, Schedule_Rollup="all"),
    "rollup in capitals": schedule(LATER, Schedule_Rollup="SUB"),
    "empty rollup": schedule(LATER, Schedule_Rollup=""),
    "ttl before rollup": schedule(LATER, Schedule_TTL="junk", Schedule_Rollup="all"),
    "disabled ttl and rollup": schedule(LATER, Schedule_TTL="5m", Schedule_Rollup="all"),
    "no target": schedule(LATER, None),
    "empty target": schedule(LATER, ""),
    "own target": schedule(LATER, "s.schedule"),
    "target wildcard": schedule(LATER, "s.*"),
    "target elsewhere": schedule(LATER, "t.x"),
    "target with blank": schedule(LATER, "s. x"),
    "source": schedule(LATER, Schedule_Source="s.source"),
    "source is target": schedule(LATER, Schedule_Source="s.target"),
    "source is schedule": schedule(LATER, Schedule_Source="s.schedule"),
    "source wildcard": schedule(LATER, Schedule_Source="s.*"),
    "source elsewhere": schedule(LATER, Schedule_Source="t.x"),
    "empty source": schedule(LATER, Schedule_Source=""),
    "target before source": schedule(LATER, "t.x", Schedule_Source="t.x"),
    "message rollup": schedule(LATER, Rollup="sub"),
    "message rollup all": schedule(LATER, Rollup="all"),
    "message rollup junk": schedule(LATER, Rollup="junk"),
    "message rollup in capitals": schedule(LATER, Rollup="SUB"),
    "message ttl": schedule(LATER, TTL="1h"),
    "next": schedule(LATER, Schedule_Next="purge"),
    "next alone": {"Nats-Schedule-Next": "purge"},
    "next of a time": {"Nats-Schedule-Next": "2199-01-01T00:00:00Z", "Nats-Scheduler": "s.one"},
    "scheduler alone": {"Nats-Scheduler": "s.one"},
    "scheduler itself": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.schedule"},
    "scheduler wildcard": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.*"},
    "scheduler plain": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.plain"},
    "scheduler nothing": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.nothing"},
    "scheduler elsewhere": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "t.nothing"},
    "scheduler": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.one"},
    "scheduler again": {"Nats-Schedule-Next": "purge", "Nats-Scheduler": "s.one"},
}


@pytest.mark.parametrize("config", [{}, {"allow_msg_ttl": True}, {"allow_msg_schedules": False}])
async def test_the_rules(pair, config):
    await create(pair, **config)
    await pair.store("s.plain")
    await pair.store("s.one", b"", schedule(LATER))
    differences = []
    for name, headers in RULES.items():
        try:
            answer = await pair.store("s.schedule", b"x", headers)
            if "error" not in answer:
                await pair.api("STREAM.MSG.GET.S", {"seq": answer["seq"]})
        except AssertionError as error:
            differences.append(f"{name}: {error}")
    assert not differences, "\n".join(differences)


CONFIGS = {
    "discard new": {"discard": "new"},
    "deny purge": {"deny_purge": True},
    "rollups": {"allow_rollup_hdrs": False},
    "counters": {"allow_msg_counter": True},
    "mirror": {"mirror": {"name": "O"}, "subjects": None},
    "all": {"allow_atomic": True, "allow_batched": True},
}


@pytest.mark.parametrize("kind", [kind for kind in CONFIGS if kind != "mirror"])
async def test_configurations(pair, kind):
    await create(pair, **CONFIGS[kind])
    await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"]})


# Publication

PAST = "@at 2020-01-01T00:00:00Z"


async def published(pair, last_sequence, name="S"):
    """Every message once the stream has come that far, with headers in the clear and times hidden, as both have it."""
    found = []
    for wire in pair._wires:
        messages = []
        while (info := await ask(wire, f"STREAM.INFO.{name}"))["state"]["last_seq"] < last_sequence:
            await asyncio.sleep(0.02)
        for sequence in range(info["state"]["first_seq"], last_sequence + 1):
            answer = await ask(wire, f"STREAM.MSG.GET.{name}", {"seq": sequence})
            if "error" in answer:
                messages.append(answer["error"]["err_code"])
                continue
            message = answer["message"]
            header = b64decode(message.get("hdrs", "")).decode()
            header = re.sub(r"20\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+09:00)", r"TIME\2", header)
            messages.append((message["seq"], message["subject"], header, b64decode(message.get("data", ""))))
        found.append(messages)
    ours, theirs = found
    assert ours == theirs, "\n".join(["ours:", *map(str, ours), "theirs:", *map(str, theirs)])
    return ours


async def ask(wire, verb, body=b""):
    return (await wire.request(f"$JS.API.{verb}", body)).json


PUBLICATIONS = {
    "plain": schedule(PAST),
    "headers": schedule(PAST, Custom="kept", Msg_Id="id", Expected_Stream="S", TTL="1h") | {"Other": "kept"},
    "lifetime and rollup": schedule(PAST, Schedule_TTL="5m", Schedule_Rollup="sub"),
    "source": schedule(PAST, Schedule_Source="s.source"),
    "source that is missing": schedule(PAST, Schedule_Source="s.missing"),
    "to another schedule": schedule(PAST, "s.waiting"),
    # Long enough apart that a busy machine has looked, and purged, before they publish again.
    "every": schedule("@every 2s"),
    "cron": schedule("*/2 * * * * *", Schedule_Time_Zone="Asia/Tokyo"),
}


@pytest.mark.parametrize("config", [{}, {"subject_transform": {"src": "s.>", "dest": "s.>"}, "storage": "memory"}])
async def test_what_is_published(pair, config):
    await create(pair, allow_msg_ttl=True, **config)
    await pair.store("s.source", b"source", {"Nats-Msg-Id": "source", "Nats-TTL": "1h", "Mine": "too"})
    await pair.store("s.waiting", b"", schedule(LATER))
    last = 2
    for name, headers in PUBLICATIONS.items():
        answer = await pair.store(f"s.schedule.{name.replace(' ', '-')}", b"own", headers)
        last += 2
        assert answer == {"stream": "S", "seq": last - 1}
        await published(pair, last)
        if not headers["Nats-Schedule"].startswith("@at"):
            await pair.api("STREAM.PURGE.S", {"filter": "s.schedule.>"})
    await pair.api("STREAM.PURGE.S", {"filter": "s.waiting"})


CANCELS = {
    "PURGE": lambda pair, subject: pair.api("STREAM.PURGE.PURGE", {"filter": subject}),
    "DELETE": lambda pair, subject: pair.api("STREAM.MSG.DELETE.DELETE", {"seq": 1}),
    "PLAIN": lambda pair, subject: pair.store(subject, b"plain"),
    "ANOTHER": lambda pair, subject: pair.store(subject, b"", schedule(LATER, "another.target")),
    "END": lambda pair, subject: pair.store("end.x", b"", {"Nats-Schedule-Next": "purge", "Nats-Scheduler": subject}),
}


async def test_cancelled_schedules_publish_nothing(pair):
    last = {}
    for name, cancel in CANCELS.items():
        target = f"{name.lower()}.target"
        await create(pair, name)
        await pair.store(f"{name.lower()}.schedule", b"first", schedule("@every 2s", target))
        await cancel(pair, f"{name.lower()}.schedule")
        # A schedule that is due a little later has published, so the one that was cancelled would have too.
        last[name] = (await pair.api(f"STREAM.INFO.{name}"))["state"]["last_seq"]
        await pair.store(f"{name.lower()}.witness", b"witness", schedule("@every 3s", target))
    for name, sequence in last.items():
        await published(pair, sequence + 2, name)


async def test_an_overdue_schedule_publishes_once_after_a_restart(pair):
    await create(pair)
    await pair.store("s.schedule", b"x", schedule("@every 1s"))
    await pair.restart()
    for wire in pair._wires:
        # How much each has published by now is a question of time.
        config = {"name": "S", "subjects": ["s.>"], "allow_msg_schedules": True}
        assert "error" not in await ask(wire, "STREAM.UPDATE.S", config)
    await published(pair, 2)
