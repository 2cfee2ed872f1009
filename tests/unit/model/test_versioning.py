"""The server's own metadata."""

from __future__ import annotations

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import StreamConfig
from jetlake.model.versioning import same_config, with_required_level, with_version, without_server_metadata


def test_what_is_stored_and_what_is_shown() -> None:
    config = StreamConfig(name="S", allow_msg_ttl=True, metadata={"a": "b", "_nats.ver": "forged", "_nats.level": "9"})
    stored = with_required_level(config)
    assert stored.metadata == {"_nats.req.level": "1", "a": "b"}
    shown = with_version(stored, "2.15.1")
    assert shown.metadata == {"_nats.level": "5", "_nats.req.level": "1", "_nats.ver": "2.15.1", "a": "b"}
    assert without_server_metadata(shown).metadata == {"a": "b"}


def test_the_servers_keys_make_no_difference() -> None:
    config = ConsumerConfig(name="c", metadata={"a": "b"})
    assert same_config(with_version(with_required_level(config), "2.15.1"), config)
    assert not same_config(config, ConsumerConfig(name="c", metadata={"a": "c"}))
    assert not same_config(config, ConsumerConfig(name="d", metadata={"a": "b"}))
