"""Fast batches against a server that is a script."""

import pytest

from jetlake.errors import DisconnectedError


async def test_a_batch_that_failed_is_not_sent_on_the_next_connection(fake, clock):
    client = await fake.connect()
    fast = client.jetstream().fast_publisher()
    await fast.publish("s.1", b"not sent yet")
    fake.wire.lose()
    with pytest.raises(DisconnectedError):
        await fast.publish("s.1")
    await clock.advance(1)
    assert client.is_connected
    assert not fake.published("s.1")
