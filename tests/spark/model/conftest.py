"""The model's modules are plain files beside this one, so that `run.py` can be started by itself."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
