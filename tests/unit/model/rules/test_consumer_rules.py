"""Rules of consumers that a server without limits does not show; the others are held against a real one."""

from __future__ import annotations

import pytest

from jetlake.errors import ApiError, ConsumerNameInUseError
from jetlake.model.account import AccountLimits
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.enums import AckPolicy, PriorityPolicy, RetentionPolicy
from jetlake.model.requests import ConsumerCreateRequest
from jetlake.model.rules.consumer_rules import (
    ConsumerRules,
    check_consumer,
    check_consumer_request,
    check_consumer_update,
    check_workqueue,
)
from jetlake.model.rules.limits import ServerLimits
from jetlake.model.steps import finish
from jetlake.model.stream import StreamConfig

SECOND = 1_000_000_000
EXPLICIT = AckPolicy.EXPLICIT


def refusal(config: ConsumerConfig, rules: ConsumerRules | None = None) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        check_consumer(config, rules or ConsumerRules())
    return caught.value.err_code, caught.value.description


def test_names_and_lengths() -> None:
    rule = "can not contain '.', '*', '>', '\\', '/'"
    assert refusal(ConsumerConfig(name="a.b")) == (10052, f"consumer name {rule}")
    assert refusal(ConsumerConfig(durable_name="a b")) == (10052, f"consumer durable name {rule}")
    assert refusal(ConsumerConfig(name="a", durable_name="b"))[0] == 10132
    assert refusal(ConsumerConfig(durable_name="n" * 256)) == (
        10102,
        "consumer name is too long, maximum allowed is 255",
    )
    heavy = ConsumerConfig(metadata={"key": "v" * 131_072})
    assert refusal(heavy) == (10135, "consumer metadata exceeds maximum size of 128KB")


def test_replicas_against_those_of_the_stream() -> None:
    assert refusal(ConsumerConfig(num_replicas=3))[0] == 10126
    stream = StreamConfig(name="S", num_replicas=3, retention=RetentionPolicy.INTEREST)
    assert refusal(ConsumerConfig(num_replicas=1), ConsumerRules(stream=stream))[0] == 10134


def test_limits_of_server_and_account_are_defaults_and_caps() -> None:
    rules = ConsumerRules(
        server=ServerLimits(max_ack_pending=500, max_request_batch=10), account=AccountLimits(max_ack_pending=300)
    )
    config = check_consumer(ConsumerConfig(ack_policy=EXPLICIT), rules)
    assert (config.max_ack_pending, config.max_batch) == (300, 10)
    assert refusal(ConsumerConfig(ack_policy=EXPLICIT, max_ack_pending=501), rules)[1].endswith("limit of 500")
    assert refusal(ConsumerConfig(ack_policy=EXPLICIT, max_ack_pending=301), rules) == (
        10121,
        "consumer max ack pending exceeds system limit of 300",
    )
    assert refusal(ConsumerConfig(max_batch=11), rules) == (
        10125,
        "consumer max request batch exceeds server limit of 10",
    )
    assert refusal(ConsumerConfig(), rules._replace(pedantic=True)) == (
        10157,
        "pedantic mode: max_request_batch must be set if it's JetStream limits are set",
    )
    push = check_consumer(ConsumerConfig(deliver_subject="d", ack_policy=EXPLICIT), rules)
    assert push.max_batch == 0


def test_what_means_nothing_below_zero_becomes_a_default() -> None:
    config = check_consumer(
        ConsumerConfig(
            ack_policy=EXPLICIT,
            priority_policy=PriorityPolicy.PINNED_CLIENT,
            priority_groups=("g",),
            priority_timeout=-5,
            inactive_threshold=-5,
        )
    )
    assert config.priority_timeout == 120 * SECOND
    assert config.inactive_threshold == 5 * SECOND


@pytest.mark.parametrize("policy", [PriorityPolicy.OVERFLOW, PriorityPolicy.PINNED_CLIENT, PriorityPolicy.PRIORITIZED])
@pytest.mark.parametrize("ack_policy", [AckPolicy.NONE, AckPolicy.ALL])
def test_a_priority_group_acks_explicitly(policy: PriorityPolicy, ack_policy: AckPolicy) -> None:
    config = ConsumerConfig(ack_policy=ack_policy, priority_policy=policy, priority_groups=("g",))
    stored = check_consumer(config)
    assert stored.ack_policy is EXPLICIT
    assert (stored.ack_wait, stored.max_ack_pending) == (30 * SECOND, 1000)
    assert check_consumer_update(stored, config) == stored
    assert refusal(config, ConsumerRules(pedantic=True))[0] == 10157


def test_only_the_timeout_of_a_priority_group_can_change() -> None:
    config = ConsumerConfig(ack_policy=EXPLICIT, priority_policy=PriorityPolicy.PINNED_CLIENT, priority_groups=("g",))
    stored = check_consumer(config)
    changed = check_consumer_update(
        stored,
        ConsumerConfig(
            ack_policy=EXPLICIT,
            priority_policy=PriorityPolicy.PINNED_CLIENT,
            priority_groups=("g",),
            priority_timeout=SECOND,
        ),
    )
    assert changed.priority_timeout == SECOND
    with pytest.raises(ApiError, match="priority policy can not be updated"):
        check_consumer_update(stored, ConsumerConfig(ack_policy=EXPLICIT))


def test_the_deliver_subject_stays_while_it_is_in_use() -> None:
    old = check_consumer(ConsumerConfig(deliver_subject="a"))
    new = ConsumerConfig(deliver_subject="b")
    with pytest.raises(ConsumerNameInUseError):
        check_consumer_update(old, new, is_deliver_subject_in_use=True)
    assert check_consumer_update(old, new).deliver_subject == "b"
    assert check_consumer_update(old, ConsumerConfig(deliver_subject="a"), is_deliver_subject_in_use=True) == old


def test_an_ephemeral_consumer_may_become_durable() -> None:
    old = check_consumer(ConsumerConfig(name="c"))
    new = check_consumer_update(old, ConsumerConfig(name="c", durable_name="c"))
    assert (new.durable_name, new.inactive_threshold) == ("c", 0)


def test_internal_kinds_of_consumers_stay_what_they_are() -> None:
    old = check_consumer(ConsumerConfig(deliver_subject="d"))
    with pytest.raises(ApiError, match="direct can not be updated"):
        check_consumer_update(old, ConsumerConfig(deliver_subject="d", direct=True))
    with pytest.raises(ApiError, match="sourcing can not be updated"):
        check_consumer_update(old, ConsumerConfig(deliver_subject="d", sourcing=True))


def test_updates_on_a_work_queue_look_at_filters_only() -> None:
    other = ConsumerConfig(filter_subject="a")
    finish(check_workqueue(ConsumerConfig(filter_subject="b"), [other], is_update=True))
    for config in (ConsumerConfig(), ConsumerConfig(filter_subject="*")):
        with pytest.raises(ApiError) as caught:
            finish(check_workqueue(config, [other], is_update=True))
        assert caught.value.err_code == 10100


def test_consumers_that_feed_a_mirror_are_free_on_a_work_queue() -> None:
    finish(check_workqueue(ConsumerConfig(deliver_subject="d", direct=True), [ConsumerConfig()]))


def test_rules_give_the_same_answer_twice() -> None:
    config = check_consumer(ConsumerConfig(durable_name="c", ack_policy=EXPLICIT, backoff=(SECOND,)))
    assert check_consumer(config) == config
    assert check_consumer_update(config, config) == config


def test_a_day_that_is_not_in_the_calendar() -> None:
    assert refusal(ConsumerConfig(pause_until="2026-02-30T00:00:00Z"))[0] == 10025


def test_the_name_of_the_subject_wins() -> None:
    request = ConsumerCreateRequest(stream_name="S", config=ConsumerConfig(name="other"))
    assert check_consumer_request(request, stream="S", consumer="c").name == "c"
    assert check_consumer_request(request, stream="S").name == "other"
