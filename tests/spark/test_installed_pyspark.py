"""Spark's Python processes import pyspark from its installed files, which Python keeps compiled."""

from pathlib import Path

import pyspark
import pytest

pytestmark = pytest.mark.spark


def test_workers_do_not_read_the_archive(spark):
    def where(_):
        import pyspark

        return pyspark.__file__

    assert spark.sparkContext.parallelize([0], 1).map(where).collect() == [str(Path(pyspark.__file__))]
