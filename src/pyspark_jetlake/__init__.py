"""Where Spark looks for data sources by itself: a top-level package whose name begins with `pyspark_`."""

from jetlake.spark import JetStream as DefaultSource

__all__ = ["DefaultSource"]
