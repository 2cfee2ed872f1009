"""`jetlake serve` with segments that are soon full, so that a short run has many of them."""

import sys

from jetlake.server.command import serve
from jetlake.store.stream_folder import StreamFolder

SEGMENT_BYTES = 64 * 1024


def use_small_segments():
    """Let the stores of this process have small segments."""
    StreamFolder.open_store.__kwdefaults__["segment_bytes"] = SEGMENT_BYTES


if __name__ == "__main__":
    use_small_segments()
    sys.exit(serve(sys.argv[1:]))
