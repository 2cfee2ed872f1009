"""The server's own metadata."""

from jetlake.model.consumer import ConsumerConfig
from jetlake.model.stream import StreamConfig
from jetlake.server.engine.api.metadata import is_same_metadata, with_served_metadata, with_stored_metadata


def test_what_is_stored_and_what_is_served():
    config = StreamConfig(name="S", allow_msg_ttl=True, metadata={"a": "b", "_nats.ver": "forged", "_nats.level": "9"})
    stored = with_stored_metadata(config)
    assert stored.metadata == {"_nats.req.level": "1", "a": "b"}
    served = with_served_metadata(stored)
    assert served.metadata == {"_nats.level": "5", "_nats.req.level": "1", "_nats.ver": "2.15.1", "a": "b"}


def test_the_servers_keys_make_no_difference():
    config = ConsumerConfig(name="c", metadata={"a": "b"})
    assert is_same_metadata(with_served_metadata(with_stored_metadata(config)), config)
    assert not is_same_metadata(config, ConsumerConfig(name="c", metadata={"a": "c"}))
