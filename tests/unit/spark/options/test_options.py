from __future__ import annotations

import re

import pytest

from jetlake.client.tables.option_values import names_text
from jetlake.client.tables.positions import Position
from jetlake.errors import ConfigError
from jetlake.spark.options.connection_options import ConnectionOptions
from jetlake.spark.options.option_table import describe
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions

SECRET = re.compile("(?i)secret|password|token|access[.]?key")


def source(**options: str) -> SourceOptions:
    return SourceOptions.of({"stream": "S", **options})


def test_defaults():
    options = SourceOptions.of({"path": "ORDERS"})
    assert options.streams == ("ORDERS",)
    assert options.connection.servers == ("nats://127.0.0.1:4222",)
    assert options.fail_on_data_loss
    assert str(options.starting.of("ORDERS")) == "earliest"


def test_names_are_read_in_any_case():
    options = SourceOptions.of({"STREAM": "S", "maxmessagespertrigger": "1e6", "FailOnDataLoss": "FALSE"})
    assert options.max_messages == 1_000_000
    assert not options.fail_on_data_loss


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"stream": "A, B"}, "streams", ("A", "B")),
        ({"subjects": "a.>, b.*"}, "subjects", ("a.>", "b.*")),
        ({"subjects": '["a,b", "c"]'}, "subjects", ("a,b", "c")),
        ({"subjects": "a.>,a.b,a.b"}, "subjects", ("a.>",)),
        ({"maxBytesPerTrigger": "16m"}, "max_bytes", 16 << 20),
        ({"pollInterval": "250ms"}, "poll_interval_s", 0.25),
        ({"maxTriggerDelay": "5 minutes"}, "max_trigger_delay_s", 300.0),
        ({"reader": "DIRECT"}, "reader", "direct"),
        ({"guarantee": "atleastonce"}, "guarantee", "atLeastOnce"),
    ],
)
def test_values(given, field, value):
    assert getattr(source(**given), field) == value


@pytest.mark.parametrize("subjects", [("a.>", "b"), ("a,b", "c"), ("[a", "b"), ("[a]",), ('"a",b',)])
def test_subjects_are_written_as_they_are_read(subjects):
    assert source(subjects=names_text(subjects)).subjects == subjects


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"stream": "a.b"}, "is not a valid stream name"),
        ({"stream": ""}, "it is empty, or has"),
        ({"subjects": "a..b"}, "not a valid subject"),
        ({"subjects": "[1]"}, "strings only"),
        ({"maxMessagesPerTrigger": "0"}, "at least 1"),
        ({"requestTimeout": "0s"}, "it must be more than 0"),
        ({"connectTimeout": "0"}, "it must be more than 0"),
        ({"maxMessagesPerTrigger": "many"}, "not a whole number"),
        ({"maxMessagesPerTrigger": "-3"}, "negative"),
        ({"maxBytesPerTrigger": "16 apples"}, "not a size"),
        ({"pollInterval": "soon"}, "not a duration"),
        ({"failOnDataLoss": "maybe"}, "neither true nor false"),
        ({"reader": "fast"}, "must be one of auto, consumer, direct, leader"),
        ({"startingPosition": "yesterday"}, "not a position"),
        ({"startingPosition": "seq:0"}, "count from 1"),
        ({"startingPosition": "time:noon"}, "RFC 3339"),
        ({"startingPosition": '{"T": "latest"}'}, "names stream 'T'"),
        ({"minPartitions": "9", "maxPartitions": "8"}, "more than maxPartitions"),
        ({"minMessagesPerTrigger": "9", "maxMessagesPerTrigger": "8"}, "never be reached"),
        ({"payloadFormat": "avro"}, "avroSchema is missing"),
        ({"stream": "A,B", "guarantee": "atLeastOnce"}, "reads one stream"),
        ({"servers": "http://localhost"}, "not a scheme"),
        ({"servers": "nats://a,ws://b"}, "ws:// is not supported in Spark: use nats:// or tls://"),
        ({"auth.user": "me"}, "go together"),
        ({"auth.token": "x", "auth.nkeySecret": "y"}, "different ways to log in"),
        ({"tls.cert": "x"}, "go together"),
        ({"path": "T"}, "contradict each other"),
        ({"startingPosition": "earliest", "maxMesagesPerTrigger": "3"}, "did you mean maxMessagesPerTrigger"),
        ({"subject": "x"}, "did you mean subjects"),
        (
            {"startingOffsets": "earliest"},
            "startingOffsets is an option of Spark's Kafka source; for reading jetstream: use startingPosition",
        ),
        ({"maxOffsetsPerTrigger": "5"}, "use maxMessagesPerTrigger"),
        ({"subscribe": "orders"}, "use stream"),
        ({"includeHeaders": "true"}, "column headers is always there"),
        ({"kafka.bootstrap.servers": "a:9092"}, "use servers"),
        ({"kafka.isolation.level": "x"}, "no such option here"),
    ],
)
def test_refusals_say_why(given, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        source(**given)


@pytest.mark.parametrize(
    "servers",
    ["nats://me:hunter2@localhost", "h,me:hunter2@h", '["nats://hunter2@h", "tls://h"]', "nats://me:hunter2,x@h"],
)
def test_credentials_in_an_address_are_refused_and_not_repeated(servers):
    with pytest.raises(ConfigError, match="credentials") as caught:
        source(servers=servers)
    assert "hunter2" not in str(caught.value)


def test_secrets_are_not_part_of_what_options_print():
    options = source(**{"auth.user": "me", "auth.password": "hunter2"})
    assert options.connection.password == "hunter2"
    assert "hunter2" not in repr(options)


def test_a_bad_secret_is_not_shown():
    with pytest.raises(ConfigError) as caught:
        source(**{"auth.password": " ", "auth.user": "me"})
    assert "***" in str(caught.value)


def test_a_stream_is_required():
    with pytest.raises(ConfigError, match="option stream is missing"):
        SourceOptions.of({})


def test_sparks_own_options_pass():
    SinkOptions.of({"checkpointLocation": "/x", "spark.sql.foo": "1", "__internal": "2", "path": "a.b"})


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        ({"subject": "a.*"}, "not a subject to publish to"),
        ({"messageId": "uuid"}, "must be one of"),
        ({"startingPosition": "latest"}, "unknown for writing"),
        ({"publishWindow": "0"}, "at least 1"),
        ({"ackTimeout": "0s"}, "it must be more than 0"),
    ],
)
def test_sink_refusals(given, reason):
    with pytest.raises(ConfigError, match=re.escape(reason)):
        SinkOptions.of(given)


def test_ledger_can_be_switched_off():
    assert SinkOptions.of({"ledger": "none"}).ledger == ""
    assert SinkOptions.of({}).ledger == "jetlake_spark"


@pytest.mark.parametrize(
    "name", ["auth.password", "auth.token", "auth.credsSecret", "auth.nkeySecret", "tls.keySecret"]
)
def test_secrets_have_names_that_spark_redacts(name):
    assert SECRET.search(name)
    assert name in {field.name for field in describe(ConnectionOptions)}


def test_every_option_is_documented():
    for cls in (ConnectionOptions, SourceOptions, SinkOptions):
        for field in describe(cls):
            assert field.doc.endswith("."), field.name
            assert field.default, field.name


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("earliest", Position("earliest")),
        ("Latest", Position("latest")),
        ("seq:17", Position("sequence", 17)),
        ("last:100", Position("last", 100)),
        ("time:1970-01-01T00:00:01Z", Position("time", 1_000_000_000)),
        ("-10 minutes", Position("ago", 600_000_000_000)),
    ],
)
def test_positions(text, position):
    options = source(startingPosition=text)
    assert options.starting.of("S") == position


def test_a_position_for_each_stream():
    options = source(stream="A,B,C", startingPosition='{"A": "seq:5", "B": "latest"}')
    assert [str(options.starting.of(name)) for name in "ABC"] == ["sequence:5", "latest", "earliest"]
