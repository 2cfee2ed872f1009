"""What a Python process of Spark's loads for the source: it starts with every query, and much of its start is this."""

import subprocess
import sys

PROGRAM = """
import sys
import pyspark.sql.streaming.python_streaming_source_runner
before = set(sys.modules)
import jetlake.spark.data_source, jetlake.spark.source.stream_reader
large = {"asyncio", "ssl", "pandas", "pyarrow.compute", "pyarrow.fs", "pyarrow.parquet"}
large |= {"jetlake.spark.sink.writer", "jetlake.spark.source.batch_reader"}
print(*sorted(large & set(sys.modules) - before))
"""


def test_the_source_loads_nothing_that_most_queries_do_without():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
