"""The README's Spark example does what it shows."""

from __future__ import annotations

from pathlib import Path

import pytest

pytestmark = pytest.mark.spark

README = Path(__file__).parents[2] / "README.md"


def test_its_spark_example_counts_the_messages_of_the_stream(spark, server, admin, stream):
    (example,) = [
        block.partition("```")[0] for block in README.read_text().split("```python\n")[1:] if "jetlake.spark" in block
    ]
    admin.create_stream(stream)
    admin.fill(stream, 7)
    for shown, ours in (("nats://127.0.0.1:4222", server.url), ('"ORDERS"', f'"{stream}"')):
        assert example.count(shown) == 1
        example = example.replace(shown, ours)
    names: dict = {}
    exec(compile(example, str(README), "exec"), names)
    assert names["orders"].sparkSession is spark
    progress = names["query"].lastProgress
    assert (progress["numInputRows"], progress["sink"]["description"][:12]) == (7, "org.apache.s")
    assert names["query"].exception() is None
