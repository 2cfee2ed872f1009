"""The rules against the verdicts of a real server, case by case; where ours differ, the difference is written down."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from jetlake.errors import ApiError, ConfigError
from jetlake.model.api import match
from jetlake.model.consumer import ConsumerConfig
from jetlake.model.encoding import codec
from jetlake.model.encoding.times import format_time, parse_time
from jetlake.model.requests import ConsumerCreateRequest, StreamCreateRequest
from jetlake.model.rules import consumer_rules, stream_rules
from jetlake.model.steps import finish
from jetlake.model.stream import StreamConfig
from jetlake.model.transforms import compile_transform
from jetlake.server.engine.api.metadata import REQUIRED_LEVEL, with_stored_metadata

GOLDEN = Path(__file__).parent / "golden"

# Texts that hold the words of another language's library; ours say the same in their own.
OWN_WORDS = {10095}

ONE_GROUP = {"error": [500, 10052, "consumer can only have one priority group"]}
NOT_EXPLICIT = {"error": [400, 10157, "pedantic mode: ack_policy must be explicit if a priority policy is set"]}
FIXED_POLICY = {"error": [500, 10012, "priority policy can not be updated"]}
FIXED_GROUPS = {"error": [500, 10012, "priority groups can not be updated"]}


def load(name: str) -> list[Any]:
    """The cases of a file, each with a readable id."""
    cases = json.loads((GOLDEN / name).read_text())
    keys = ("stream", "others", "old", "new", "subject", "body", "config", "src", "dest")
    return [
        pytest.param(case, id=" ".join(json.dumps(case[key])[:60] for key in keys if key in case)) for case in cases
    ]


def verdict(check: Callable[[], Any]) -> dict[str, Any]:
    """What a check says, in the form in which the server's verdict was kept."""
    try:
        config = check()
    except ApiError as error:
        return {"error": [error.code, error.err_code, error.description]}
    stored = json.loads(codec.encode(with_stored_metadata(config)))
    level = stored["metadata"].pop(REQUIRED_LEVEL)
    if not stored["metadata"]:
        del stored["metadata"]
    return {"config": stored, "level": level}


def in_utc(value: Any) -> Any:
    """Start times in the one spelling in which ours are kept; the server leaves their offset as it was sent."""
    if isinstance(value, dict):
        return {
            key: format_time(parse_time(item)) if key == "opt_start_time" else in_utc(item)
            for key, item in value.items()
        }
    return [in_utc(item) for item in value] if isinstance(value, list) else value


def assert_same(ours: dict[str, Any], server: dict[str, Any]) -> None:
    server = in_utc(server)
    if "error" in server and server["error"][1] in OWN_WORDS:
        assert ours["error"][:2] == server["error"][:2]
    else:
        assert ours == server


def read_stream(config: dict[str, Any]) -> StreamCreateRequest:
    return codec.decode_strict(StreamCreateRequest, json.dumps(config).encode())


def read_consumer(config: dict[str, Any]) -> tuple[ConsumerConfig, bool]:
    """The configuration as the subject-named request makes it, and whether it was pedantic."""
    body = {"name": "c", **config}
    is_pedantic = body.pop("pedantic", False)
    return codec.decode_strict(ConsumerConfig, json.dumps(body).encode()), is_pedantic


@pytest.mark.parametrize("case", load("stream_rules.json"))
def test_stream_create(case: dict[str, Any]) -> None:
    request = read_stream(case["config"])
    others = {
        other["name"]: stream_rules.check_stream_create(read_stream(other).config) for other in case.get("others", [])
    }
    rules = stream_rules.StreamRules(pedantic=request.pedantic, lookup=others.get)
    name = "S" if " " in request.name or "." in request.name else request.name

    def check() -> StreamConfig:
        stream_rules.check_stream_request(name, request.config)
        return stream_rules.check_stream_config(request.config, rules)

    assert_same(verdict(check), case["verdict"])


@pytest.mark.parametrize("case", load("stream_updates.json"))
def test_stream_update(case: dict[str, Any]) -> None:
    old = stream_rules.check_stream_create(read_stream(case["old"]).config)
    request = read_stream(case["new"])
    rules = stream_rules.StreamRules(pedantic=request.pedantic)
    if request.first_seq != old.first_seq:
        # The server shows a first sequence that the stream never had; ours keeps the one it began with.
        case["verdict"]["config"].pop("first_seq")
    assert_same(verdict(lambda: stream_rules.check_stream_update(old, request.config, rules)), case["verdict"])


@pytest.mark.parametrize("case", load("consumer_rules.json"))
def test_consumer_create(case: dict[str, Any]) -> None:
    stream = stream_rules.check_stream_create(read_stream(case["stream"]).config)
    config, is_pedantic = read_consumer(case["config"])
    rules = consumer_rules.ConsumerRules(stream=stream, pedantic=is_pedantic)
    request = ConsumerCreateRequest(stream_name="S", config=config)

    def check() -> ConsumerConfig:
        named = consumer_rules.check_consumer_request(request, stream="S", consumer=config.name)
        checked = consumer_rules.check_consumer(named, rules)
        if stream.retention == "workqueue":
            finish(consumer_rules.check_workqueue(checked, []))
        return checked

    expected = case["verdict"]
    if case["config"].get("priority_groups") == ["g", "h"]:
        expected = ONE_GROUP
    elif "priority_policy" in case["config"] and "ack_policy" not in case["config"]:
        expected = NOT_EXPLICIT if is_pedantic else {**expected, "config": {**expected["config"], **EXPLICIT_STORED}}
    assert_same(verdict(check), expected)


EXPLICIT_STORED = {"ack_policy": "explicit", "ack_wait": 30_000_000_000, "max_ack_pending": 1000}


@pytest.mark.parametrize("case", load("consumer_updates.json"))
def test_consumer_update(case: dict[str, Any]) -> None:
    old, _ = read_consumer(case["old"])
    new, is_pedantic = read_consumer(case["new"])
    stream = stream_rules.check_stream_create(StreamConfig(name="S", subjects=("s.>",)))
    rules = consumer_rules.ConsumerRules(stream=stream, pedantic=is_pedantic)
    stored = consumer_rules.check_consumer(old, rules)
    expected = case["verdict"]
    if old.priority_policy != new.priority_policy:
        expected = FIXED_POLICY
    elif old.priority_groups != new.priority_groups:
        expected = FIXED_GROUPS
    elif old.durable_name and not new.durable_name:
        expected = {**expected, "config": {**expected["config"], "durable_name": old.durable_name}}
    assert_same(verdict(lambda: consumer_rules.check_consumer_update(stored, new, rules)), expected)


@pytest.mark.parametrize("case", load("consumer_requests.json"))
def test_consumer_request(case: dict[str, Any]) -> None:
    found = match(f"$JS.API.CONSUMER.{case['subject']}")
    assert found is not None
    request = codec.decode_strict(ConsumerCreateRequest, json.dumps(case["body"]).encode())
    is_durable = found.route.verb == "CONSUMER.DURABLE.CREATE"

    def check() -> ConsumerConfig:
        config = consumer_rules.check_consumer_request(
            request, stream=found.stream, consumer=found.consumer, filter_subject=found.rest, durable=is_durable
        )
        return consumer_rules.check_consumer(config)

    assert_same(verdict(check), case["verdict"])


@pytest.mark.parametrize("case", load("workqueues.json"))
def test_workqueue(case: dict[str, Any]) -> None:
    explicit = {"ack_policy": "explicit"}
    others = [msgspec.convert({**explicit, **other}, ConsumerConfig) for other in case["others"]]
    config, _ = read_consumer({**explicit, **case["config"]})

    def check() -> ConsumerConfig:
        checked = consumer_rules.check_consumer(config)
        finish(consumer_rules.check_workqueue(checked, others))
        return checked

    assert_same(verdict(check), case["verdict"])


@pytest.mark.parametrize("case", load("transforms.json"))
def test_transform(case: dict[str, str]) -> None:
    subject = case["subject"].encode()
    renamed = compile_transform(case["src"], case["dest"]).apply(subject)
    assert (subject if renamed is None else renamed) == case["stored"].encode()


def test_a_transform_that_makes_no_sense_raises() -> None:
    with pytest.raises(ConfigError, match="wildcard index out of range"):
        compile_transform("s.*", "t.$2")
