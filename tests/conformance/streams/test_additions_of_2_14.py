"""What nats-server 2.14 and 2.15 added: required API levels, flow-control acks, resets, persist modes, markers."""

import pytest

from tests.support.pair import Pair

SECOND = 1_000_000_000


@pytest.fixture
async def pair():
    async with Pair() as pair:
        yield pair


LEVELS = {
    "nothing": ({}, "0"),
    "message ttl": ({"allow_msg_ttl": True}, "1"),
    "delete markers": ({"allow_msg_ttl": True, "subject_delete_marker_ttl": SECOND}, "1"),
    "counters": ({"allow_msg_counter": True}, "2"),
    "atomic batches": ({"allow_atomic": True}, "2"),
    "schedules": ({"allow_msg_schedules": True}, "2"),
    "async": ({"persist_mode": "async"}, "2"),
    "fast batches": ({"allow_batched": True}, "4"),
    "several": ({"allow_msg_ttl": True, "allow_batched": True, "allow_atomic": True}, "4"),
    "sources": ({"sources": [{"name": "O"}]}, "0"),
    "compression": ({"compression": "s2", "allow_direct": True}, "0"),
}


async def test_the_level_that_a_stream_requires(pair):
    for config, level in LEVELS.values():
        answer = await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **config})
        assert answer["config"]["metadata"]["_nats.req.level"] == level
        changed = {"name": "S", "subjects": ["s"], **config, "metadata": {"_nats.req.level": "9"}}
        await pair.api("STREAM.UPDATE.S", changed)
        await pair.api("STREAM.DELETE.S")


CONSUMER_LEVELS = {
    "nothing": ({}, "0"),
    "pause": ({"pause_until": "2037-01-01T00:00:00Z"}, "1"),
    "group": ({"priority_groups": ["g"], "priority_policy": "overflow", "ack_policy": "explicit"}, "1"),
    "flow control": ({"ack_policy": "flow_control", "deliver_subject": "d"}, "4"),
}


async def test_the_level_that_a_consumer_requires(pair):
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    for config, level in CONSUMER_LEVELS.values():
        body = {"stream_name": "S", "config": {"durable_name": "c", **config}}
        answer = await pair.api("CONSUMER.CREATE.S.c", body)
        assert answer["config"]["metadata"]["_nats.req.level"] == level
        await pair.api("CONSUMER.DELETE.S.c")


PUSH = {"ack_policy": "flow_control", "deliver_subject": "d", "durable_name": "c"}
FLOW = {
    "as little as possible": {},
    "pull": {"deliver_subject": ""},
    "no flow control": {"flow_control": False, "idle_heartbeat": SECOND},
    "heartbeat": {"idle_heartbeat": 2 * SECOND, "flow_control": True},
    "short heartbeat": {"idle_heartbeat": SECOND // 2, "flow_control": True},
    "right heartbeat": {"idle_heartbeat": SECOND, "flow_control": True},
    "no limit": {"max_ack_pending": -1},
    "limit": {"max_ack_pending": 10},
    "ack wait": {"ack_wait": SECOND},
    "backoff": {"backoff": [SECOND, 2 * SECOND]},
    "deliver once": {"max_deliver": 1},
    "deliver unlimited": {"max_deliver": -1},
    "queue": {"deliver_group": "q"},
}


@pytest.mark.parametrize("pedantic", [False, True])
async def test_acknowledging_by_flow_control(pair, pedantic):
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    for config in FLOW.values():
        body = {"stream_name": "S", "config": {**PUSH, **config}, "pedantic": pedantic}
        await pair.api("CONSUMER.CREATE.S.c", body)
        await pair.api("CONSUMER.DELETE.S.c")


RESETS = {
    "all": ({"deliver_policy": "all"}, (b"", {"seq": 0}, {"seq": 3}, {"seq": 1}, {"seq": 100}, {"seq": 5, "x": 1})),
    "new": ({"deliver_policy": "new"}, (b"", {"seq": 3})),
    "last": ({"deliver_policy": "last"}, (b"", {"seq": 3})),
    "last per subject": ({"deliver_policy": "last_per_subject", "filter_subject": "s.*"}, (b"", {"seq": 3})),
    "by sequence": (
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
        (b"", {"seq": 3}, {"seq": 4}, {"seq": 5}, {"seq": 50}),
    ),
    "by time": (
        {"deliver_policy": "by_start_time", "opt_start_time": "2020-01-01T00:00:00Z"},
        (b"", {"seq": 1}, {"seq": 5}),
    ),
    "by a time to come": (
        {"deliver_policy": "by_start_time", "opt_start_time": "2037-01-01T00:00:00Z"},
        (b"", {"seq": 1}, {"seq": 9}),
    ),
}


@pytest.mark.parametrize("policy", ["explicit", "none", "all"])
async def test_reset(pair, policy):
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"]})
    for number in range(8):
        await pair.store(f"s.{number}", b"x")
    for config, bodies in RESETS.values():
        config = {"durable_name": "c", "ack_policy": policy, **config}
        for body in bodies:
            # Anew each time: nats-server may go on behind what was pending before a reset.
            await pair.api("CONSUMER.CREATE.S.c", {"stream_name": "S", "config": config})
            await pair.api("CONSUMER.RESET.S.c", body)
            pull = {"batch": 2, "no_wait": True}
            await pair.exchange("$JS.API.CONSUMER.MSG.NEXT.S.c", pull, until=is_last_of_two)
            await pair.api("CONSUMER.DELETE.S.c")


def is_last_of_two(message):
    return message.status is not None or message.reply.split(".")[6] == "2"


async def test_a_reset_with_an_identity(pair):
    """The header comes back, as mirrors and sources want it."""
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"]})
    body = {"stream_name": "S", "config": {"durable_name": "c", "ack_policy": "explicit"}}
    await pair.api("CONSUMER.CREATE.S.c", body)
    await pair.request("$JS.API.CONSUMER.RESET.S.c", b"", {"Nats-Required-Api-Level": "4"})
    await pair.request("$JS.API.CONSUMER.RESET.S.c", b"", {"Nats-Required-Api-Level": "99"})


PERSIST = {
    "async": {"persist_mode": "async"},
    "default": {"persist_mode": "default"},
    "empty": {"persist_mode": ""},
    "unknown": {"persist_mode": "sometimes"},
    "in memory": {"persist_mode": "async", "storage": "memory"},
    "with atomic batches": {"persist_mode": "async", "allow_atomic": True},
    "with fast batches": {"persist_mode": "async", "allow_batched": True},
}


async def test_persist_mode(pair):
    for config in PERSIST.values():
        await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **config})
        await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "persist_mode": "async"})
        await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s"], "persist_mode": "default"})
        await pair.api("STREAM.DELETE.S")


MARKERS = {
    "without ttl": {"subject_delete_marker_ttl": SECOND},
    "short": {"subject_delete_marker_ttl": SECOND // 2, "allow_msg_ttl": True},
    "negative": {"subject_delete_marker_ttl": -1, "allow_msg_ttl": True},
    "rollups denied": {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True, "deny_purge": True},
    "good": {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True},
    "in a mirror": {
        "subject_delete_marker_ttl": SECOND,
        "allow_msg_ttl": True,
        "mirror": {"name": "O"},
        "subjects": None,
    },
}


@pytest.mark.parametrize("pedantic", [False, True])
async def test_delete_markers(pair, pedantic):
    for config in MARKERS.values():
        await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s"], **config, "pedantic": pedantic})
        await pair.api("STREAM.DELETE.S")


async def test_removals_on_request_leave_no_marker(pair):
    config = {"subject_delete_marker_ttl": SECOND, "allow_msg_ttl": True}
    await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.*"], **config})
    for number in range(4):
        await pair.store(f"s.{number}", b"x", {"Nats-TTL": "1h"})
    await pair.api("STREAM.MSG.DELETE.S", {"seq": 1})
    await pair.api("STREAM.PURGE.S", {"filter": "s.1"})
    await pair.api("STREAM.PURGE.S")
    state = (await pair.api("STREAM.INFO.S"))["state"]
    assert (state["messages"], state["last_seq"]) == (0, 4)


async def test_requests_about_clusters_are_not_answered(pair):
    for verb in ("META.LEADER.STEPDOWN", "META.RESCUE", "SERVER.REMOVE"):
        await pair.silent(f"$JS.API.{verb}", b"{}")
