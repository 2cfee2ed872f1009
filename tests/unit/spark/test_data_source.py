"""What Spark's Python processes load for source and sink, and what the driver refuses before there are tasks."""

import subprocess
import sys

import pytest
from pyspark.sql.types import StructType

from jetlake.errors import ConfigError
from jetlake.spark.data_source import JetStream

FOLLOWER = """
import sys
import pyspark.sql.streaming.python_streaming_source_runner
before = set(sys.modules)
import jetlake.spark.data_source, jetlake.spark.source.stream_reader
large = {"asyncio", "ssl", "pandas", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet"}
large |= {"jetlake.spark.sink.writer", "jetlake.spark.source.batch_reader"}
print(*sorted(large & set(sys.modules) - before))
"""

WORKER = """
import sys
import pyspark.worker
from pyspark.sql import types as t
from jetlake.client.tables.frames import split_frames
from jetlake.client.tables.message_columns import columns_of_deliveries, columns_of_direct_gets
from jetlake.spark.options.sink_options import SinkOptions
from jetlake.spark.options.source_options import SourceOptions
from jetlake.spark.schema import make_row_builder
from jetlake.spark.sink.row_encoder import RowEncoder, RowIds

headers = t.MapType(t.StringType(), t.ArrayType(t.StringType()))
kinds = {"stream": t.StringType(), "sequence": t.LongType(), "subject": t.StringType()}
kinds |= {"timestamp": t.TimestampType(), "headers": headers, "data": t.BinaryType()}
schema = t.StructType([t.StructField(name, kind) for name, kind in kinds.items()])
builder = make_row_builder(schema, SourceOptions.of({"stream": "S"}), "S")

def framed(subject, reply, header, payload):
    sizes = b"%d %d" % (len(header), len(header + payload)) if header else b"%d" % len(payload)
    words = [b"HMSG" if header else b"MSG", subject, b"2", *([reply] if reply else []), sizes]
    return b" ".join(words) + b"\\r\\n" + header + payload + b"\\r\\n"

def delivered(header):
    data = bytearray(framed(b"S.a", b"$JS.ACK.S.C.1.1.1.1700000000000000000.0", header, b"x"))
    return columns_of_deliveries(data, split_frames(data, len(data)), "S", "C")[0]

def answered(own):
    added = [b"Nats-Stream: S", b"Nats-Subject: S.a", b"Nats-Sequence: 1", b"Nats-Time-Stamp: 2026-01-01T00:00:00Z"]
    block = b"NATS/1.0\\r\\n" + own + b"\\r\\n".join([*added, b"", b""])
    data = bytearray(framed(b"_INBOX.a", b"", block, b"x"))
    return columns_of_direct_gets(data, split_frames(data, len(data)), "S")[0]

found = [delivered(b""), delivered(b"NATS/1.0\\r\\nK: v\\r\\n\\r\\n"), answered(b""), answered(b"K: v\\r\\n")]
batches = [builder.build(messages) for messages in found]
assert [batch["headers"].to_pylist() for batch in batches] == [[[]], [[("K", ["v"])]]] * 2
assert [batch["stream"].to_pylist() for batch in batches] == [["S"]] * 4
written = ["subject", "headers", "data"]
encoder = RowEncoder(t.StructType([schema[name] for name in written]), SinkOptions.of({}))
for batch in batches:
    (portion,) = encoder.encode(batch.select(written), RowIds("run", 0), 0)
    assert portion.frames(b"_INBOX.b").data
print(*sorted({"pandas"} & set(sys.modules)))
"""


@pytest.mark.parametrize("program", [FOLLOWER, WORKER])
def test_a_process_loads_nothing_that_it_can_do_without(program):
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout.split()) == (0, []), done.stderr


@pytest.mark.parametrize(
    ("schema", "options", "reason"),
    [
        (StructType().add("subject", "string").add("id", "long"), {}, "column id does not exist: messages have stream"),
        (StructType().add("sequence", "string"), {}, "column sequence is bigint, not string"),
        (StructType().add("value", "string"), {}, "column value needs option payloadFormat"),
    ],
)
@pytest.mark.parametrize("method", ["reader", "streamReader"])
def test_columns_that_messages_do_not_have_are_refused_by_the_driver(schema, options, reason, method):
    with pytest.raises(ConfigError, match=reason):
        getattr(JetStream({"stream": "S", **options}), method)(schema)
