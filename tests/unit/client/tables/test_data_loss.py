from __future__ import annotations

import pytest
from msgspec import structs

from jetlake.client.tables.data_loss import check_not_restored, limits_explain, seen_of
from jetlake.client.tables.planning import StreamOffset
from jetlake.errors import StreamRecreatedError
from jetlake.model.encoding.times import format_time
from jetlake.model.enums import DiscardPolicy
from jetlake.model.replies import StoredMessage, StreamInfoReply
from jetlake.model.stream import StreamConfig, StreamState

NOW_S = 1_800_000_000
SEEN = (1000, format_time(NOW_S * 10**9))
# Up to message 20 may expire within ten seconds, up to 200 within a minute.
EXPIRING = ((10, 21), (60, 201))


def info(*, bytes=0, waited_s=0, **config):
    state = StreamState(messages=500, bytes=bytes, first_seq=501, last_seq=1000)
    ts = format_time((NOW_S + waited_s) * 10**9)
    return StreamInfoReply(config=StreamConfig(name="S", **config), created="", state=state, ts=ts)


@pytest.mark.parametrize(
    ("stream", "gone", "explained"),
    [
        (info(), 500, False),
        (info(max_msgs=500), 500, True),
        (info(max_msgs=501), 500, False),
        (info(max_msgs=500, discard=DiscardPolicy.NEW), 500, False),
        (info(max_bytes=1 << 30, bytes=(1 << 30) - 100), 500, True),
        (info(max_bytes=1 << 30, bytes=900 << 20), 500, False),
        (info(max_bytes=1 << 30, bytes=(1 << 30) - 5000, max_msg_size=1000), 500, False),
        (info(max_age=3600 * 10**9, waited_s=5), 20, True),
        (info(max_age=3600 * 10**9, waited_s=5), 21, False),
        (info(max_age=3600 * 10**9, waited_s=30), 200, True),
        (info(max_age=3600 * 10**9, waited_s=30), 500, False),
        (info(max_age=3600 * 10**9, waited_s=3000), 500, True),
    ],
)
def test_what_limits_explain(stream, gone, explained):
    assert limits_explain(stream, gone, SEEN, EXPIRING) is explained


def test_a_range_that_knows_no_times_may_have_expired():
    assert limits_explain(info(max_age=3600 * 10**9), 500, SEEN, ())
    assert limits_explain(info(max_age=3600 * 10**9), 500, None, EXPIRING)


def at(seconds):
    return format_time((NOW_S + seconds) * 10**9)


@pytest.mark.parametrize(("stored_s", "is_restored"), [(60, False), (-10, True), (-200, False)])
def test_a_clock_that_was_set_back_is_no_restore(stored_s, is_restored):
    class Api:
        def message_at(self, stream, time_ns):
            newer = (NOW_S + stored_s) * 10**9 >= time_ns
            return StoredMessage(subject="s", seq=900, time=at(stored_s)) if newer else None

        def stream_info(self, stream):
            return info()

    offset = StreamOffset("", 1001, seen=(1000, at(-100)))
    if is_restored:
        with pytest.raises(StreamRecreatedError):
            check_not_restored(Api(), "S", offset)
    else:
        check_not_restored(Api(), "S", offset)


def test_the_time_of_a_look_does_not_go_back():
    assert seen_of(info(), (900, at(-5))) == (1000, at(0))
    assert seen_of(info(), (900, at(5))) == (1000, at(5))


def test_a_look_is_not_older_than_the_newest_message():
    # Stored before the server's clock was set back.
    newest = structs.replace(info(), state=structs.replace(info().state, last_ts=at(7)))
    assert seen_of(newest) == (1000, at(7))
    assert seen_of(newest, (900, at(5))) == (1000, at(7))
