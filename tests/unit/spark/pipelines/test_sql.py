from __future__ import annotations

from jetlake.spark.pipelines.runner import explain
from jetlake.spark.pipelines.sql import explain_failure
from jetlake.spark.pipelines.sql_file import parse_sql_file

FILE = """\
sources:
  orders: {stream: ORDERS, schema: "id bigint"}
steps:
  - {name: good, sql: SELECT id FROM orders}
  - name: bad
    sql: |
      SELECT id,
        100 / (id - 17) AS q
      FROM good
sinks:
  - {from: bad, to: 'parquet:/lake/bad'}
"""

OFFSETS = """\
=== Streaming Query ===
Identifier: x/bad-parquet [id = 351d475a, runId = c1e33a6e]
Current Committed Offsets: {org.apache.spark.Python@7dea: {"v": 2, "streams": {"ORDERS": {"created": "", "next": 11}}}}
Current Available Offsets: {org.apache.spark.Python@7dea: {"v": 2, "streams": {"ORDERS": {"created": "", "next": 21, \
"batch": {"from": 11, "bytes": 557}}}}}

Current State: ACTIVE
"""

DIVIDED = f"""\
An exception was raised by the Python Proxy. Return Message: Traceback (most recent call last):
  File "x.py", line 262, in deco
pyspark.errors.exceptions.captured.ArithmeticException: [DIVIDE_BY_ZERO] Division by zero. SQLSTATE: 22012
== SQL (line 2, position 3) ==
  100 / (id - 17) AS q
  ^^^^^^^^^^^^^^^

{OFFSETS}"""

CHANGED = f"""\
[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.
Please check number and type of fields.
{OFFSETS}"""


def told(text: str) -> str:
    spec = parse_sql_file("f.yml", FILE)
    return explain_failure(spec, spec.sinks[0], "/lake/bad/_jetlake/checkpoint", explain(Exception(text)), text)


def test_a_failure_names_the_step_with_its_line_and_the_messages():
    assert told(DIVIDED) == (
        "f.yml:8: sink bad-parquet in step bad: ArithmeticException: [DIVIDE_BY_ZERO] Division by zero "
        "(among messages 11 to 20 of ORDERS)"
    )


def test_a_changed_aggregate_names_sink_checkpoint_and_remedy():
    text = told(CHANGED)
    assert text.startswith("f.yml:11: sink bad-parquet cannot continue")
    assert "/lake/bad/_jetlake/checkpoint" in text
    assert text.endswith("jetlake pipeline sql f.yml --reset bad-parquet")


def test_what_spark_does_not_say_is_left_out():
    assert told("no space left") == "f.yml:11: sink bad-parquet: no space left"
