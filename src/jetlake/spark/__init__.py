"""JetStream as a Spark data source: batch and streaming, source and sink, in pure Python."""

from importlib.util import find_spec

if find_spec("pyspark") is None:
    raise ModuleNotFoundError(
        "Spark needs packages that are not installed: pip install 'jetlake[spark]'", name="pyspark"
    )

from jetlake.spark.data_source import JetStream
from jetlake.spark.progress import StreamMetrics, lag, lost, metrics
from jetlake.spark.session import session

__all__ = ["JetStream", "StreamMetrics", "lag", "lost", "metrics", "session"]


def __dir__() -> list[str]:
    return sorted(__all__)
