"""Rules of streams that a server without limits does not show; the others are held against a real one."""

from __future__ import annotations

import pytest

from jetlake.errors import ApiError
from jetlake.model.account import AccountLimits
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding.fields import SEQUENCE_MAX
from jetlake.model.enums import StorageType
from jetlake.model.rules.limits import ServerLimits, consumers_max, is_valid_name
from jetlake.model.rules.stream_rules import (
    StreamRules,
    check_consumers_within,
    check_stream_config,
    check_stream_create,
    check_stream_update,
)
from jetlake.model.stream import ConsumerLimits, ExternalStream, StreamConfig, StreamSource, SubjectTransform
from jetlake.model.transforms import compile_transform

SECOND = 1_000_000_000


def refusal(config: StreamConfig, rules: StreamRules | None = None) -> tuple[int, str]:
    with pytest.raises(ApiError) as caught:
        check_stream_config(config, rules or StreamRules())
    return caught.value.err_code, caught.value.description


@pytest.mark.parametrize("name", ["", "a b", "a.b", "a*", "a>", "a\tb", "a\nb", "a\0b", "a/b", "a\\b"])
def test_names_that_cannot_be(name: str) -> None:
    assert not is_valid_name(name)
    expected = "stream name is required and can not contain '.', '*', '>', '\\', '/'"
    assert refusal(StreamConfig(name=name)) == (10052, expected)


def test_lengths_are_counted_in_bytes() -> None:
    assert check_stream_config(StreamConfig(name="n" * 255)).name
    assert refusal(StreamConfig(name="é" * 128)) == (10052, "stream name is too long, maximum allowed is 255")
    heavy = StreamConfig(name="S", metadata={"key": "v" * 131_070})
    assert refusal(heavy) == (10052, "stream metadata exceeds maximum size of 131072 bytes")
    assert check_stream_config(StreamConfig(name="S", metadata={"key": "v" * 131_069}))


def test_a_first_sequence_that_no_record_could_hold() -> None:
    assert check_stream_config(StreamConfig(name="S", first_seq=SEQUENCE_MAX))
    too_high = "first sequence is too high, maximum allowed is 576460752303423488"
    assert refusal(StreamConfig(name="S", first_seq=SEQUENCE_MAX + 1)) == (10052, too_high)


def test_the_servers_limit_of_the_duplicate_window() -> None:
    limited = StreamRules(server=ServerLimits(duplicate_window=30 * SECOND))
    assert check_stream_config(StreamConfig(name="S"), limited).duplicate_window == 30 * SECOND
    short = check_stream_config(StreamConfig(name="S", max_age=10 * SECOND), limited)
    assert short.duplicate_window == 10 * SECOND
    too_long = "duplicates window can not be larger then server limit of 30s"
    assert refusal(StreamConfig(name="S", duplicate_window=31 * SECOND), limited) == (10052, too_long)
    code, text = refusal(StreamConfig(name="S"), limited._replace(pedantic=True))
    assert (code, text) == (10157, "pedantic mode: duplicate window limits are higher than current limits")


def test_the_accounts_limits_of_bytes() -> None:
    required = StreamRules(account=AccountLimits(max_bytes_required=True))
    assert refusal(StreamConfig(name="S"), required)[0] == 10113
    assert check_stream_config(StreamConfig(name="S", max_bytes=1), required)
    limited = StreamRules(account=AccountLimits(memory_max_stream_bytes=10, storage_max_stream_bytes=20))
    assert check_stream_config(StreamConfig(name="S", max_bytes=20), limited)
    assert refusal(StreamConfig(name="S", max_bytes=21), limited)[0] == 10122
    assert refusal(StreamConfig(name="S", max_bytes=11, storage=StorageType.MEMORY), limited)[0] == 10122


def test_replicas_of_a_stream_that_persists_later_or_captures_everything() -> None:
    assert refusal(StreamConfig(name="S", subjects=(">",), no_ack=True, num_replicas=3)) == (
        10052,
        "capturing all subjects requires replicas of 1",
    )


def test_a_delivery_prefix_that_leads_back() -> None:
    origin = check_stream_create(StreamConfig(name="O", subjects=(">",), no_ack=True))
    external = StreamSource(name="E", external=ExternalStream(api="$JS.hub.API", deliver="back"))
    config = StreamConfig(name="S", sources=(StreamSource(name="O"), external))
    rules = StreamRules(lookup={"O": origin}.get)
    expected = "stream external delivery prefix back overlaps with stream subject >"
    assert refusal(config, rules) == (10022, expected)


def test_a_day_that_is_not_in_the_calendar() -> None:
    config = StreamConfig(name="S", mirror=StreamSource(name="M", opt_start_time="2026-02-30T00:00:00Z"))
    assert refusal(config)[0] == 10025


def test_rules_give_the_same_answer_twice() -> None:
    config = check_stream_create(StreamConfig(name="S", max_age=SECOND))
    assert check_stream_create(config) == config
    assert check_stream_update(config, config) == config


def test_another_name_is_no_update() -> None:
    old = check_stream_create(StreamConfig(name="S"))
    with pytest.raises(ApiError, match="name must match original"):
        check_stream_update(old, StreamConfig(name="T"))


def test_unsealing() -> None:
    old = check_stream_create(StreamConfig(name="S"))
    sealed = check_stream_update(old, StreamConfig(name="S", sealed=True))
    with pytest.raises(ApiError, match="can not unseal a sealed stream"):
        check_stream_update(sealed, StreamConfig(name="S"))


def test_consumers_that_new_limits_leave_no_room_for() -> None:
    old = check_stream_create(StreamConfig(name="S"))
    consumers = [
        ("a", ConsumerConfig(inactive_threshold=10 * SECOND, max_ack_pending=5)),
        ("b", ConsumerConfig(inactive_threshold=SECOND, max_ack_pending=50)),
        ("c", ConsumerConfig()),
    ]

    def misfits(**limits: int) -> str | None:
        new = StreamConfig(name="S", consumer_limits=ConsumerLimits(**limits))
        try:
            check_consumers_within(old, new, consumers)
        except ApiError as error:
            assert error.err_code == 10069
            return error.description.removeprefix("change to limits violates consumers: ")
        return None

    assert misfits(inactive_threshold=5 * SECOND) == "a"
    assert misfits(max_ack_pending=10) == "b"
    assert misfits(max_ack_pending=1) == "a, b"
    assert misfits(max_ack_pending=50, inactive_threshold=10 * SECOND) is None
    assert misfits() is None


@pytest.mark.parametrize(
    ("stream_max", "account_max", "expected"),
    [(-1, -1, 1000), (5, -1, 5), (5000, -1, 5000), (-1, 7, 7), (5, 3, 3), (3, 5, 3)],
)
def test_how_many_consumers_a_stream_may_have(stream_max: int, account_max: int, expected: int) -> None:
    assert consumers_max(stream_max, AccountLimits(max_consumers=account_max)) == expected


@pytest.mark.parametrize(
    "destination",
    ["t.{{partition(0,1)}}", "t.{{random(0)}}", "t.{{wildcard(0)}}", "t.$0", "t.{{split(1,)}}", "t.{{left(1,-1)}}"],
)
def test_transforms_that_a_server_takes_and_that_mean_nothing(destination: str) -> None:
    config = StreamConfig(name="S", subject_transform=SubjectTransform(src="s.*", dest=destination))
    assert refusal(config)[0] == 10156


def test_a_random_number_is_drawn_by_whom_one_likes() -> None:
    transform = compile_transform("s.*", "t.{{random(9)}}.$1", draw=lambda bound: bound - 1)
    assert transform.apply(b"s.a") == b"t.8.a"


def test_an_empty_destination_and_all_to_all_leave_subjects_alone() -> None:
    assert compile_transform("s.*", "").apply(b"s.a") == b"s.a"
    assert compile_transform("", ">").apply(b"s.a") == b"s.a"
    assert compile_transform("s.*", "t").apply(b"x.a") is None


def test_layers_of_sources_are_visited_a_bounded_number_of_times():
    """Each stream copies from both of the next layer: the number of paths doubles with every layer."""
    layers = 40
    streams = {
        f"{side}{layer}": StreamConfig(
            name=f"{side}{layer}",
            sources=tuple(StreamSource(name=f"{other}{layer + 1}") for other in "AB") if layer < layers else (),
        )
        for layer in range(1, layers + 1)
        for side in "AB"
    }
    looked_up = []

    def lookup(name: str) -> StreamConfig | None:
        looked_up.append(name)
        assert len(looked_up) < 100 * layers
        return streams.get(name)

    sources = (StreamSource(name="A1"), StreamSource(name="B1"))
    check_stream_config(StreamConfig(name="S", sources=sources), StreamRules(lookup=lookup))
    streams[f"B{layers}"] = StreamConfig(name=f"B{layers}", sources=(StreamSource(name="S"),))
    looked_up.clear()
    assert refusal(StreamConfig(name="S", sources=sources), StreamRules(lookup=lookup)) == (10052, "detected cycle")
