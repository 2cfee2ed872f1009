"""JetStream as a Spark data source: batch and streaming, source and sink, in pure Python."""

from jetlake.spark.progress import lag, lost
from jetlake.spark.session import session
from jetlake.spark.source import JetStream

__all__ = ["JetStream", "lag", "lost", "session"]
