"""The helpers of these tests are plain modules beside this file; `benchmarks/durability.py` uses the same ones."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
