"""A prompt completes what users call: no names of internals, in modules or in objects."""

import importlib

import pytest

import jetlake
from jetlake.client.streams.stream import stream_handle

MODULES = ["", ".client", ".client.kv", ".client.objects", ".client.counters", ".blocking", ".errors", ".server"]


@pytest.mark.parametrize("name", [*MODULES, ".otel", ".testing", ".spark"])
def test_modules_list_their_public_names(name):
    module = importlib.import_module(f"jetlake{name}")
    assert dir(module) == sorted(module.__all__)


async def test_objects_hide_what_only_the_client_calls(fake):
    fake.serve_consumer()
    client = await fake.connect()
    js = client.jetstream()
    consumer = await js.consumer("S", "C")
    subscription = await client.subscribe("a")
    pending = await js.publish_async("s.1", b"x")
    shown = {
        js: {"api"},
        subscription: {"receive", "ended", "wind_down", "await_answers", "abandon", "reconnected", "sid"},
        consumer.fetch(1): {"receive", "ended", "forbidden", "disconnected"},
        consumer.consume(): {"failed", "report", "will_be_emptied"},
        stream_handle(js.api, "S").ordered(): {"fetch_once"},
        pending: {"known", "observe", "is_observed"},
        jetlake.Server(): {"engine", "clock_moved", "make_connection", "open_socket", "defects"},
    }
    for value, hidden in shown.items():
        assert all(hasattr(value, name) for name in hidden)
        assert hidden.isdisjoint(dir(value)), value
    assert {"subject", "unsubscribe", "drain", "__doc__"} <= set(dir(subscription))
    subscription.receive([])
    pending.observe()
