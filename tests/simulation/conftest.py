"""What histories share."""

import pytest

from jetlake.store.stream_folder import StreamFolder


@pytest.fixture
def small_segments(monkeypatch):
    """Segments so short that batches lie in several of them, and that the log forgets what was removed."""
    open_store = StreamFolder.open_store
    monkeypatch.setattr(
        StreamFolder, "open_store", lambda self, **options: open_store(self, **options, segment_bytes=2000)
    )
