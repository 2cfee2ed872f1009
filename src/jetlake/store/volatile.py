"""What stores and journals in memory share: they have nothing to write, and nothing waits for them."""

from __future__ import annotations

from jetlake.errors import StoreError

__all__ = ["Volatile"]


class Volatile:
    """The contract of flush and sync, kept by doing nothing."""

    durable = False
    changes_names = False
    failure: StoreError | None = None

    def needs_flush(self) -> bool:
        return False

    def needs_sync(self) -> bool:
        return False

    def flush(self) -> None:
        pass

    def sync(self) -> None:
        pass

    def retry(self) -> None:
        pass

    def close(self) -> None:
        pass
