"""In the processes that Spark forks to plan and to run tasks, garbage collections do without what was imported."""

import gc

from pyspark.sql.datasource import DataSource, DataSourceReader

from jetlake.spark.garbage import spare_imports


class Collected(DataSource):
    """Tells, of the process that plans and of the one that reads, whether something is out of its collections."""

    def schema(self):
        return f"{_is_spared('planner')} string"

    def reader(self, schema):
        return CollectedReader()


class CollectedReader(DataSourceReader):
    def read(self, partition):
        yield (_is_spared("task"),)


def _is_spared(process):
    spare_imports()
    return f"{process}_{gc.get_freeze_count() > 0}".lower()


def test_planners_and_tasks_spare_their_imports(spark):
    spark.dataSource.register(Collected)
    frame = spark.read.format("Collected").load()
    assert (frame.columns, frame.first()[0]) == (["planner_true"], "task_true")
