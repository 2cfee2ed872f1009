"""What an import of an integration loads: neither a server nor a client of the other kind before they are used."""

import subprocess
import sys

PROGRAM = """
import sys
import jetlake.integrations.celery
print([name for name in ("jetlake.client", "jetlake.blocking", "jetlake.server") if name in sys.modules])
import jetlake.integrations.fastapi
print([name for name in ("fastapi", "starlette", "jetlake.blocking", "jetlake.server") if name in sys.modules])
import jetlake.integrations.django
print("jetlake.server" in sys.modules)
import jetlake.cli.main
print([name for name in ("mcp", "pydantic", "jetlake.server") if name in sys.modules])
"""


def test_nothing_heavy_is_loaded_before_it_is_used():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.stdout == "[]\n[]\nFalse\n[]\n", done.stderr
