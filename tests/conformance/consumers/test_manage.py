"""Consumers made, changed, listed and deleted: our answers are nats-server's, but where an ADR wants more."""

import pytest

from tests.support.pair import Pair

SECOND = 1_000_000_000


@pytest.fixture
async def pair():
    async with Pair() as pair:
        await pair.api("STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
        for number in range(6):
            await pair.store(f"s.{number % 3}", b"hello")
        yield pair


async def create(pair, name, config, form="CONSUMER.CREATE.S.{}", **more):
    return await pair.api(form.format(name), {"stream_name": "S", "config": config, **more})


async def test_what_a_configuration_becomes(pair):
    for number, config in enumerate(
        [
            {},
            {"ack_policy": "explicit"},
            {"ack_policy": "all", "ack_wait": SECOND, "max_deliver": 5},
            {"ack_policy": "explicit", "backoff": [SECOND, 2 * SECOND], "max_deliver": 2},
            {"ack_policy": "explicit", "max_ack_pending": -1, "max_waiting": -1, "max_deliver": -7},
            {"filter_subject": "s.1", "headers_only": True, "description": "text", "metadata": {"a": "b"}},
            {"filter_subjects": ["s.0", "s.1"], "replay_policy": "original"},
            {"filter_subjects": ["other.subject"]},
            {"deliver_policy": "last"},
            {"deliver_policy": "new"},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
            {"deliver_policy": "by_start_sequence", "opt_start_seq": 400},
            {"deliver_policy": "by_start_time", "opt_start_time": "2001-01-01T00:00:00Z"},
            {"deliver_policy": "by_start_time", "opt_start_time": "2099-01-01T00:00:00Z"},
            {"deliver_policy": "last_per_subject", "filter_subject": "s.>"},
            {"deliver_policy": "last_per_subject", "filter_subjects": ["s.0", "s.2"]},
            {"deliver_policy": "last", "filter_subject": "s.none"},
            {"deliver_policy": "last_per_subject", "filter_subject": "s.none"},
            {"max_batch": 5, "max_expires": SECOND, "max_bytes": 100, "max_waiting": 3},
            {"inactive_threshold": 60 * SECOND, "sample_freq": "50%"},
            {"deliver_subject": "d", "idle_heartbeat": SECOND, "flow_control": True, "rate_limit_bps": 10_000},
            {"deliver_subject": "d", "deliver_group": "g", "ack_policy": "explicit"},
            {"mem_storage": True, "num_replicas": 1},
            {"ack_policy": "explicit", "priority_policy": "overflow", "priority_groups": ["g"]},
            {"ack_policy": "explicit", "priority_policy": "pinned_client", "priority_groups": ["g"]},
            {"ack_policy": "explicit", "priority_policy": "prioritized", "priority_groups": ["g"]},
            {"pause_until": "2001-01-01T00:00:00Z"},
            {"pause_until": "0001-01-01T00:00:00Z"},
        ]
    ):
        await create(pair, f"c{number}", config)
        await create(pair, f"d{number}", {**config, "durable_name": f"d{number}"})
        await pair.api(f"CONSUMER.INFO.S.d{number}")


async def test_what_is_refused(pair):
    for config in [
        {"durable_name": "other"},
        {"description": "x" * 4097},
        {"deliver_policy": "by_start_sequence"},
        {"deliver_policy": "by_start_time"},
        {"deliver_policy": "all", "opt_start_seq": 3},
        {"deliver_policy": "new", "opt_start_time": "2001-01-01T00:00:00Z"},
        {"deliver_policy": "last_per_subject"},
        {"deliver_policy": "sometimes"},
        {"ack_policy": "maybe"},
        {"ack_wait": -1, "ack_policy": "explicit"},
        {"backoff": [-1], "ack_policy": "explicit"},
        {"backoff": [1, 2, 3], "max_deliver": 2, "ack_policy": "explicit"},
        {"filter_subject": "a", "filter_subjects": ["b"]},
        {"filter_subjects": ["a", ""]},
        {"filter_subjects": ["a.*", "a.b"]},
        {"filter_subject": "a..b"},
        {"filter_subject": ">.a"},
        {"rate_limit_bps": 5},
        {"deliver_subject": "d", "max_waiting": 1},
        {"deliver_subject": "d", "max_ack_pending": 5},
        {"deliver_subject": "d.*"},
        {"deliver_subject": "d..d"},
        {"deliver_subject": "s.loop"},
        {"deliver_subject": "d", "idle_heartbeat": 5},
        {"deliver_subject": "d", "flow_control": True},
        {"flow_control": True},
        {"idle_heartbeat": SECOND},
        {"max_expires": 5},
        {"num_replicas": 3},
        {"num_replicas": -1},
        {"metadata": {"k": "v" * 131072}},
        {"priority_policy": "overflow"},
        {"priority_groups": ["g"]},
        {"priority_policy": "overflow", "priority_groups": [""]},
        {"priority_policy": "overflow", "priority_groups": ["no blanks"]},
        {"priority_policy": "overflow", "priority_groups": ["g" * 17]},
        {"priority_policy": "overflow", "priority_groups": ["g"], "deliver_subject": "d"},
        {"priority_timeout": SECOND},
        {"priority_policy": "first_come"},
        {"bogus": 1},
        {"ack_policy": "flow_control"},
        {"direct": True},
    ]:
        answer = await create(pair, "c", config)
        assert "error" in answer, config
    await create(pair, "a/b", {})
    await create(pair, "a\\b", {})
    await create(pair, "x" * 256, {"durable_name": "x" * 256})
    assert (await pair.api("CONSUMER.NAMES.S"))["consumers"] == []


async def test_the_older_forms_of_create(pair):
    await create(pair, "d", {"durable_name": "d", "ack_policy": "explicit"}, "CONSUMER.DURABLE.CREATE.S.{}")
    await create(pair, "d", {"ack_policy": "explicit"}, "CONSUMER.DURABLE.CREATE.S.{}")
    await create(pair, "d", {"durable_name": "e"}, "CONSUMER.DURABLE.CREATE.S.{}")
    await create(pair, "", {"durable_name": "e"}, "CONSUMER.CREATE.S")
    await create(pair, "f", {"filter_subject": "s.1.*"}, "CONSUMER.CREATE.S.{}.s.1.*")
    await create(pair, "g", {"filter_subject": "s.2"}, "CONSUMER.CREATE.S.{}.s.1")
    await create(pair, "g", {"filter_subjects": ["s.2"]}, "CONSUMER.CREATE.S.{}.s.2")
    await create(pair, "g", {}, "CONSUMER.CREATE.S.{}.s.2")
    await pair.api("CONSUMER.CREATE.S.x", {"stream_name": "T", "config": {}})
    await pair.api("CONSUMER.CREATE.T.x", {"stream_name": "T", "config": {}})
    for payload in (b"", b"{}", b"{", b"[]", b'"text"', b'{"config":3}'):
        await pair.api("CONSUMER.CREATE.S.x", payload)


async def test_actions(pair):
    config = {"durable_name": "c", "ack_policy": "explicit", "metadata": {"a": "b"}}
    await create(pair, "c", config, action="update")
    await create(pair, "c", config, action="create")
    await create(pair, "c", config, action="create")
    await create(pair, "c", {**config, "description": "x"}, action="create")
    await create(pair, "c", {**config, "description": "x"}, action="update")
    await create(pair, "c", {**config, "metadata": {}}, action="create")
    await create(pair, "c", {**config, "metadata": {}}, action="")
    await create(pair, "c", config, action="replace")
    await pair.api("CONSUMER.INFO.S.c")


async def test_a_name_alone_is_created_once(pair):
    """Without a durable name and a lifetime of its own, a second create is one too many, though all is the same."""
    for config in ({"name": "c"}, {"name": "c", "deliver_subject": "d"}):
        codes = []
        for action in ("create", "create", "", "update", "create"):
            answer = await create(pair, "c", config, action=action)
            codes.append(answer.get("error", {}).get("err_code"))
        assert codes == [None, 10148, None, None, 10148]
        await pair.api("CONSUMER.DELETE.S.c")
    for config in ({"name": "c", "inactive_threshold": 5 * SECOND}, {"durable_name": "c"}):
        for _ in range(2):
            assert "error" not in await create(pair, "c", config, action="create")
        await pair.api("CONSUMER.DELETE.S.c")
    limits = {"inactive_threshold": 9 * SECOND, "max_ack_pending": 5}
    await pair.api("STREAM.UPDATE.S", {"name": "S", "subjects": ["s.>"], "consumer_limits": limits})
    for _ in range(2):
        assert "error" not in await create(pair, "c", {"name": "c"}, action="create")


async def test_what_may_change(pair):
    base = {"durable_name": "c", "ack_policy": "explicit", "max_deliver": 5}
    await create(pair, "c", base)
    for change in [
        {"description": "new"},
        {"ack_wait": 5 * SECOND},
        {"max_deliver": 9},
        {"backoff": [SECOND]},
        {"filter_subject": "s.1"},
        {"filter_subjects": ["s.1", "s.2"]},
        {"sample_freq": "30"},
        {"max_ack_pending": 7},
        {"headers_only": True},
        {"max_batch": 3, "max_expires": SECOND, "max_bytes": 10},
        {"inactive_threshold": 60 * SECOND},
        {"metadata": {"x": "y"}},
        {"pause_until": "2099-01-01T00:00:00Z"},
        {"deliver_policy": "new"},
        {"ack_policy": "all"},
        {"replay_policy": "original"},
        {"max_waiting": 5},
        {"mem_storage": True},
        {"deliver_subject": "d"},
        {"rate_limit_bps": 5},
        {},
    ]:
        await create(pair, "c", {**base, **change})
        await pair.api("CONSUMER.INFO.S.c")


async def test_what_may_change_on_a_push_consumer(pair):
    base = {"durable_name": "p", "deliver_subject": "d", "idle_heartbeat": SECOND}
    await create(pair, "p", base)
    for change in [
        {"deliver_subject": "e"},
        {"deliver_group": "g"},
        {"rate_limit_bps": 5000},
        {"idle_heartbeat": 2 * SECOND},
        {"flow_control": True},
        {"deliver_subject": ""},
        {"headers_only": True},
    ]:
        await create(pair, "p", {**base, **change})
        await pair.api("CONSUMER.INFO.S.p")


async def test_pedantic(pair):
    for number, config in enumerate(
        [
            {"max_deliver": 0, "ack_policy": "explicit"},
            {"max_deliver": -5, "ack_policy": "explicit"},
            {"max_waiting": -1},
            {"max_batch": -1},
            {"max_ack_pending": -5, "ack_policy": "explicit"},
            {"ack_policy": "explicit", "backoff": [SECOND], "ack_wait": 2 * SECOND},
        ]
    ):
        await create(pair, f"c{number}", config, pedantic=True)


async def test_questions_and_orders(pair):
    await pair.api("CONSUMER.NAMES.S")
    await pair.api("CONSUMER.LIST.S")
    for name in ("b", "a", "c"):
        await create(pair, name, {"durable_name": name, "ack_policy": "explicit"})
    await pair.api("CONSUMER.NAMES.S")
    await pair.api("CONSUMER.NAMES.S", {"offset": 2})
    await pair.api("CONSUMER.NAMES.S", {"offset": 20})
    await pair.api("CONSUMER.LIST.S")
    await pair.api("CONSUMER.LIST.S", {"offset": 1})
    await pair.api("CONSUMER.LIST.S", {"bogus": 1})
    await pair.api("CONSUMER.NAMES.T")
    await pair.api("CONSUMER.LIST.T")
    await pair.api("CONSUMER.INFO.S.a")
    await pair.api("CONSUMER.INFO.S.a", {"x": 1})
    await pair.api("CONSUMER.INFO.S.nobody")
    await pair.api("CONSUMER.INFO.T.nobody")
    await pair.api("CONSUMER.DELETE.S.a", b"x")
    await pair.api("CONSUMER.DELETE.S.a")
    await pair.api("CONSUMER.DELETE.S.a")
    await pair.api("CONSUMER.DELETE.T.a")
    await pair.api("STREAM.INFO.S")


async def test_pause(pair):
    await create(pair, "c", {"durable_name": "c", "ack_policy": "explicit"})
    for body in (
        {"pause_until": "2001-01-01T00:00:00Z"},
        {"pause_until": "2001-01-01T02:00:00.500+02:00"},
        {"pause_until": "0001-01-01T00:00:00Z"},
        b"",
        {},
        {"bogus": 1},
        {"pause_until": "tomorrow"},
    ):
        await pair.api("CONSUMER.PAUSE.S.c", body)
        await pair.api("CONSUMER.INFO.S.c")
    await pair.api("CONSUMER.PAUSE.S.nobody", {"pause_until": "2099-01-01T00:00:00Z"})
    await pair.api("CONSUMER.PAUSE.T.nobody", {"pause_until": "2099-01-01T00:00:00Z"})


async def test_reset(pair):
    for policy in (
        {},
        {"deliver_policy": "new"},
        {"deliver_policy": "last"},
        {"deliver_policy": "by_start_sequence", "opt_start_seq": 4},
        {"deliver_policy": "by_start_time", "opt_start_time": "2099-01-01T00:00:00Z"},
    ):
        name = policy.get("deliver_policy", "all")
        await create(pair, name, {"ack_policy": "explicit", **policy})
        for body in (b"", {}, {"seq": 0}, {"seq": 2}, {"seq": 5}, {"seq": 100}, {"bogus": 1}, {"seq": -1}, b"{"):
            await pair.api(f"CONSUMER.RESET.S.{name}", body)
        await pair.api(f"CONSUMER.INFO.S.{name}")


async def test_consumers_of_a_work_queue(pair):
    await pair.api("STREAM.CREATE.W", {"name": "W", "subjects": ["w.>"], "retention": "workqueue"})

    async def add(name, **config):
        config = {"durable_name": name, "ack_policy": "explicit", **config}
        await pair.api(f"CONSUMER.CREATE.W.{name}", {"stream_name": "W", "config": config})

    await add("none", ack_policy="none")
    await add("push", ack_policy="none", deliver_subject="d")
    await add("all", ack_policy="all")
    await add("new", deliver_policy="new")
    await add("a", filter_subject="w.a")
    await add("b", filter_subject="w.*")
    await add("b")
    await add("b", filter_subject="w.b")
    await add("b", filter_subject="w.a")
    await add("b", filter_subject="w.c")


async def test_limits_of_the_stream(pair):
    limits = {"max_ack_pending": 10, "inactive_threshold": 60 * SECOND}
    await pair.api("STREAM.CREATE.L", {"name": "L", "max_consumers": 2, "consumer_limits": limits})

    async def add(name, **config):
        await pair.api(
            f"CONSUMER.CREATE.L.{name}", {"stream_name": "L", "config": {"ack_policy": "explicit", **config}}
        )

    await add("big", max_ack_pending=11)
    await add("long", inactive_threshold=61 * SECOND)
    await add("a")
    await add("b")
    await add("c")


async def test_purge_and_delete_move_consumers(pair):
    await create(pair, "c", {"durable_name": "c", "ack_policy": "explicit"})
    await create(pair, "f", {"durable_name": "f", "ack_policy": "explicit", "filter_subject": "s.1"})
    for verb, body in (
        ("MSG.DELETE", {"seq": 2}),
        ("PURGE", {"filter": "s.2"}),
        ("PURGE", {"seq": 4}),
        ("PURGE", b""),
    ):
        await pair.api(f"STREAM.{verb}.S", body)
        await pair.api("CONSUMER.INFO.S.c")
        await pair.api("CONSUMER.INFO.S.f")
    await pair.store("s.1", b"x")
    await pair.api("CONSUMER.INFO.S.c")


async def test_consumers_survive_a_restart(pair):
    await create(pair, "c", {"durable_name": "c", "ack_policy": "explicit", "metadata": {"a": "b"}})
    await create(pair, "n", {"durable_name": "n", "deliver_policy": "new"})
    await create(pair, "e", {"name": "e", "ack_policy": "all", "inactive_threshold": 60 * SECOND})
    await create(pair, "m", {"durable_name": "m", "mem_storage": True})
    await pair.restart()
    await pair.api("CONSUMER.LIST.S")


# Where the answers differ on purpose


async def test_adr_42_wants_more_of_priority_groups_than_nats_server(server, wire):
    """One group only, acks always explicit, policy and groups fixed (NATS ADR-42); nats-server 2.15.1 accepts all."""

    async def add(name, *, is_pedantic=False, **config):
        body = {"stream_name": "S", "config": {"ack_policy": "explicit", **config}, "pedantic": is_pedantic}
        return (await wire.request(f"$JS.API.CONSUMER.CREATE.S.{name}", body)).json

    def grouped(policy, *groups):
        return {"priority_policy": policy, "priority_groups": groups}

    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    several = await add("several", **grouped("overflow", "g", "h"))
    if server.is_embedded:
        assert "one priority group" in several["error"]["description"]
    else:
        assert "error" not in several
    overflow, pinned = grouped("overflow", "g"), grouped("pinned_client", "g")
    for policy in (overflow, pinned):
        forced = await add(policy["priority_policy"], **policy, ack_policy="none")
        assert forced["config"]["ack_policy"] == ("explicit" if server.is_embedded else "none")
        refused = await add("strict", is_pedantic=True, **policy, ack_policy="none")
        assert refused.get("error", {}).get("err_code") == (10157 if server.is_embedded else None)
    changes = {
        "groups": (overflow, grouped("overflow", "h")),
        "policy": (overflow, pinned),
        "without": (overflow, {}),
        "with": ({}, overflow),
    }
    for name, (before, after) in changes.items():
        await add(name, **before)
        changed = await add(name, **after)
        assert changed.get("error", {}).get("err_code") == (10012 if server.is_embedded else None), name
    # This alone may change.
    await add("timed", **pinned, priority_timeout=SECOND)
    assert (await add("timed", **pinned, priority_timeout=9 * SECOND))["config"]["priority_timeout"] == 9 * SECOND


async def test_a_reset_of_nobody_is_answered(server, wire):
    """nats-server says nothing at all, and the client waits in vain; a clear answer harms nobody."""
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    if server.is_embedded:
        answer = (await wire.request("$JS.API.CONSUMER.RESET.S.nobody")).json
        assert answer["error"]["err_code"] == 10014
    else:
        await wire.publish("$JS.API.CONSUMER.RESET.S.nobody", reply="_INBOX.never")
        await wire.subscribe("_INBOX.never", "1")
        assert (await wire.request("$JS.API.INFO")).json["streams"] == 1


async def test_an_odd_sample_rate_is_refused(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    for sample_freq in ("many", "5%%", "x%"):
        body = {"stream_name": "S", "config": {"sample_freq": sample_freq}}
        answer = (await wire.request("$JS.API.CONSUMER.CREATE.S.c", body)).json
        assert answer["error"]["err_code"] == 10095
        assert answer["error"]["description"].startswith("failed to parse consumer sampling configuration: ")


async def test_an_old_ephemeral_gets_a_name(wire):
    await wire.request("$JS.API.STREAM.CREATE.S", {"name": "S", "subjects": ["s.>"]})
    answer = (await wire.request("$JS.API.CONSUMER.CREATE.S", {"stream_name": "S", "config": {}})).json
    assert len(answer["name"]) == 8
    assert "name" not in answer["config"]
    assert answer["config"]["inactive_threshold"] == 5 * SECOND
