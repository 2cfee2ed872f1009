"""JetStream as a Spark data source: batch and streaming, source and sink, in pure Python."""

from jetlake.spark.data_source import JetStream
from jetlake.spark.progress import lag, lost
from jetlake.spark.session import session

__all__ = ["JetStream", "lag", "lost", "session"]


def __dir__() -> list[str]:
    return sorted(__all__)
