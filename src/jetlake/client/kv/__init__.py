"""Key-value buckets: a stream whose subjects are keys and whose last message of each is the value."""

from __future__ import annotations

from jetlake.client.kv.bucket import KeyValue
from jetlake.client.kv.entry import Entry, Operation
from jetlake.client.kv.status import BucketStatus
from jetlake.client.kv.watch import KeyWatch

__all__ = ["BucketStatus", "Entry", "KeyValue", "KeyWatch", "Operation"]
