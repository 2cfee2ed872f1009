from __future__ import annotations

import pytest

from jetlake.client.tables.data_loss import check_same_stream, lost_at_head
from jetlake.client.tables.planning import StreamOffset, check_server, choose_reader, parse_version
from jetlake.errors import DataLossError, StreamRecreatedError, UnsupportedStreamError
from jetlake.model.stream import StreamConfig, StreamInfo, StreamState
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.source.durable_consumer import choose_release

NEW = (2, 15, 1)
OLD = (2, 10, 0)


def stream(retention="limits", **config):
    return StreamConfig.of("S", retention=retention, **{"allow_direct": True, **config})


def options(**given):
    return SourceOptions.of({"stream": "S", **given})


@pytest.mark.parametrize(
    ("text", "version"), [("2.15.1", (2, 15, 1)), ("2.12.0-RC.1", (2, 12, 0)), ("2.9", (2, 9, 0)), ("dev", (0, 0, 0))]
)
def test_versions(text, version):
    assert parse_version(text) == version


def test_old_servers_are_refused():
    check_server((2, 9, 0))
    with pytest.raises(UnsupportedStreamError, match=r"2\.8\.4.*need 2\.9\.0"):
        check_server((2, 8, 4))


@pytest.mark.parametrize(
    ("config", "version", "given", "sequences", "reader"),
    [
        (stream(), NEW, {}, 100, "direct"),
        (stream(), NEW, {}, 20_000, "consumer"),
        (stream(), NEW, {"subjects": "a,b"}, 100, "consumer"),
        (stream(), OLD, {}, 100, "consumer"),
        (stream(allow_direct=False), NEW, {}, 100, "consumer"),
        (stream(), NEW, {"reader": "leader"}, 100, "leader"),
        (stream("workqueue"), NEW, {}, 10**6, "direct"),
        (stream("interest"), NEW, {"subjects": "a,b"}, 10**6, "direct"),
        (stream("workqueue"), OLD, {"reader": "leader"}, 10**6, "leader"),
    ],
)
def test_readers(config, version, given, sequences, reader):
    assert choose_reader(config, version, options(**given), sequences) == reader


@pytest.mark.parametrize(
    ("config", "version", "given", "reason"),
    [
        (stream("workqueue"), NEW, {"reader": "consumer"}, "takes messages away"),
        (stream("workqueue", allow_direct=False), NEW, {}, "set allow_direct"),
        (stream("interest"), OLD, {}, r"2\.11\.0 or newer"),
        (stream(allow_direct=False), NEW, {"reader": "direct"}, "set allow_direct"),
    ],
)
def test_reader_refusals(config, version, given, reason):
    with pytest.raises(UnsupportedStreamError, match=reason):
        choose_reader(config, version, options(**given), 10)


def test_releases():
    assert choose_release(stream(), OLD, options()) == "none"
    assert choose_release(stream("workqueue"), OLD, options()) == "purge"
    assert choose_release(stream("interest"), NEW, options()) == "reset"
    assert choose_release(stream("interest"), OLD, options(guarantee="atLeastOnce")) == "ack"
    with pytest.raises(UnsupportedStreamError, match=r"2\.14\.0 or newer.*atLeastOnce"):
        choose_release(stream("interest"), (2, 13, 9), options())
    with pytest.raises(UnsupportedStreamError, match="does not allow purging"):
        choose_release(stream("workqueue", deny_purge=True), NEW, options())
    with pytest.raises(UnsupportedStreamError, match="always read exactly once"):
        choose_release(stream(), NEW, options(guarantee="atLeastOnce"))


def info(created="2026-01-01T00:00:00Z", last=100):
    return StreamInfo(config=stream(), created=created, state=StreamState(last_seq=last, first_seq=1))


def test_a_stream_that_was_created_anew_is_noticed():
    offset = StreamOffset("2026-01-01T00:00:00Z", 101)
    check_same_stream(info(), offset)
    with pytest.raises(StreamRecreatedError, match="recreated"):
        check_same_stream(info(created="2026-02-02T00:00:00Z"), offset)


def test_a_stream_that_went_back_is_noticed():
    with pytest.raises(DataLossError, match="ends at sequence 100, and the checkpoint knows 149"):
        check_same_stream(info(), StreamOffset("2026-01-01T00:00:00Z", 150))
    with pytest.raises(DataLossError, match="ends at sequence 100, and the checkpoint knows 101"):
        check_same_stream(info(), StreamOffset("2026-01-01T00:00:00Z", 50, seen=(101, "2026-01-01T00:00:00Z")))


SEEN = (9, "2026-01-01T00:00:00Z")
BUCKET = {"max_msgs_per_subject": 1, "discard": "new"}


@pytest.mark.parametrize(
    ("config", "filtered", "held", "lost"),
    [
        (stream(), False, False, 40),
        (stream("workqueue"), False, False, 40),
        # What a filter does not want may go, unless it is known that something wanted was there.
        (stream(), True, False, 0),
        (stream(), True, True, 40),
        (stream("workqueue"), True, False, 0),
        # Limits remove messages in order; to push one out takes as many newer ones as there may be.
        (stream(max_msgs=91), True, False, 0),
        (stream(max_msgs=90), True, False, 40),
        (stream(max_bytes=1000), True, False, 40),
        (stream(max_bytes=10_000), True, False, 0),
        (stream(max_age=3600), True, False, 40),
        (stream(max_age=3601), True, False, 0),
        (stream("interest", max_msgs=10), True, False, 40),
        # A bucket's older values are superseded, not lost.
        (stream(**BUCKET), False, False, 0),
        (stream(**BUCKET), True, True, 0),
        (stream(max_age=60, **BUCKET), False, False, 40),
        (stream(max_bytes=1000, **BUCKET), False, False, 0),
    ],
)
def test_what_counts_as_lost(config, filtered, held, lost):
    state = StreamState(messages=51, bytes=500, first_seq=50, last_seq=100)
    found = StreamInfo(config=config, created=SEEN[1], state=state, ts="2026-01-01T01:00:00Z")
    assert lost_at_head(found, StreamOffset(SEEN[1], 10, held=held, seen=SEEN), filtered) == lost
    assert lost_at_head(found, StreamOffset(SEEN[1], 50, held=held, seen=SEEN), filtered) == 0


def test_an_empty_bucket_was_purged_for_its_newest_message_is_never_superseded():
    state = StreamState(first_seq=101, last_seq=100)
    found = StreamInfo(config=stream(**BUCKET), created=SEEN[1], state=state)
    assert lost_at_head(found, StreamOffset(SEEN[1], 10), False) == 91
