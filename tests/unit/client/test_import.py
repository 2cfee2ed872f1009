"""Importing the client loads the client: no server, no Spark, no extras, and JetStream only when it is asked for."""

import subprocess
import sys

LOADED = """
import sys
import jetlake
jetlake.connect
print(*sorted(name for name in sys.modules))
"""

FORBIDDEN = (
    "jetlake.server",
    "jetlake.store",
    "jetlake.spark",
    "jetlake.cli",
    "jetlake.dashboard",
    "jetlake.model.replies",
    "jetlake.client.jetstream",
    "nkeys",
    "nacl",
    "uvloop",
    "click",
    "rich",
    "starlette",
    "pyspark",
    "pyarrow",
    "numpy",
    "pandas",
    "opentelemetry",
    "xxhash",
    "bcrypt",
)


def test_what_is_loaded():
    output = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True).stdout
    loaded = output.split()
    assert [name for name in loaded for home in FORBIDDEN if name == home or name.startswith(f"{home}.")] == []
    assert "jetlake.client.client" in loaded


def test_every_public_name_is_there():
    import jetlake.blocking
    import jetlake.client

    for module in (jetlake.client, jetlake.blocking):
        for name in module.__all__:
            assert getattr(module, name).__doc__, f"{module.__name__}.{name} has no documentation"
