"""Replies and events of a real server, decoded and encoded again: the same JSON comes out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from jetlake.errors import ApiError
from jetlake.model import api, replies
from jetlake.model.encoding import codec
from jetlake.model.encoding.fields import Value
from jetlake.model.events import EVENT_TYPES

GOLDEN = Path(__file__).parent / "golden"
REPLIES = {
    str(kind.__struct_config__.tag): kind
    for kind in (getattr(replies, name) for name in replies.__all__)
    if isinstance(kind, type) and kind.__struct_config__.tag
}


def load(name: str) -> list[Any]:
    samples = json.loads((GOLDEN / name).read_text())
    return [pytest.param(sample, id=f"{index}-{sample.get('type', '')[26:]}") for index, sample in enumerate(samples)]


def again(sample: dict[str, Any]) -> bytes:
    """The sample after a way through the model."""
    data = json.dumps(sample).encode()
    if sample["type"] in EVENT_TYPES:
        return codec.encode(codec.decode(EVENT_TYPES[sample["type"]], data))
    kind: type[Value] = REPLIES[sample["type"]]
    try:
        return codec.encode(api.decode_reply(kind, data))
    except ApiError as error:
        return api.encode_error(kind, error)


@pytest.mark.parametrize("sample", load("reference_samples.json") + load("replies.json"))
def test_a_reply_comes_out_as_it_went_in(sample: dict[str, Any]) -> None:
    ours = json.loads(again(sample))
    assert ours == sample
    if sample["type"] != replies.StreamInfoReply.__struct_config__.tag or "error" in sample:
        assert list(ours) == list(sample)
    for part in ("config", "state", "limits", "delivered"):
        if part in sample:
            assert list(ours[part]) == list(sample[part])


def test_all_kinds_of_replies_are_among_the_samples() -> None:
    seen = {sample["type"] for sample in json.loads((GOLDEN / "replies.json").read_text())}
    assert seen == set(REPLIES)


@pytest.mark.parametrize("sample", load("events.json"))
def test_an_event_comes_out_as_it_went_in(sample: dict[str, Any]) -> None:
    event = sample["event"]
    ours = json.loads(again(event))
    assert ours == event
    assert list(ours) == list(event)
