"""What somebody meets who installed the client alone: it works, and the rest says what to install."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {
            "click", "rich", "xxhash", "uvloop", "starlette", "uvicorn", "pyspark", "nkeys", "nacl"
        }:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(program, folder=None):
    command = [sys.executable, "-c", WITHOUT + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=folder)


def test_the_client_is_imported():
    done = run("import jetlake, jetlake.blocking; jetlake.connect, jetlake.blocking.connect; print('ok')")
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


def test_keys_and_tokens_name_the_smallest_extra():
    done = run(
        "from jetlake.auth.keys import KeyPair\n"
        "from jetlake.client.settings.credentials import read_seed\n"
        "from jetlake.errors import InvalidOptionError\n"
        "for act in (lambda: KeyPair.create('user'), lambda: read_seed('SU' + 56 * 'A')):\n"
        "    try:\n"
        "        act()\n"
        "    except InvalidOptionError as error:\n"
        "        print(error)\n"
    )
    assert done.stdout.count("need the package nkeys: pip install 'jetlake[client]'\n") == 2


@pytest.mark.parametrize(
    ("arguments", "extra"), [(["stream", "ls"], "cli"), (["--nonsense"], "cli"), (["serve", "-p", "-1"], "server")]
)
def test_the_command_names_the_smallest_extra(arguments, extra, tmp_path):
    done = run(f"from jetlake.cli.main import main; sys.exit(main({arguments!r}))", tmp_path)
    assert f"pip install 'jetlake[{extra}]'" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


@pytest.mark.parametrize(
    ("arguments", "text"),
    [(["--version"], "jetlake, version"), (["--help"], "jetlake[cli]"), ([], "stream"), (["-h"], "Usage: jetlake")],
)
def test_version_and_help_need_no_more(arguments, text):
    done = run(f"from jetlake.cli.main import main; sys.exit(main({arguments!r}))")
    assert text in done.stdout
    assert (done.stderr, done.returncode) == ("", 0)


def test_so_does_the_server():
    done = run("import importlib.util as u; u.find_spec = lambda name: None\nimport jetlake\njetlake.Server")
    assert done.stderr.endswith("pip install 'jetlake[server]'\n")


def test_so_do_tables_tracing_and_spark():
    done = run(
        """
HIDDEN = {"pyarrow", "opentelemetry", "pyspark"}
class More:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, More())
from jetlake.client.streams.tables import stream_table
from jetlake.errors import ConfigError
try:
    stream_table(None, "S", {})
except ConfigError as error:
    print(error)
import importlib.util
importlib.util.find_spec = lambda name: None
try:
    import jetlake.otel
except ImportError as error:
    print(error)
try:
    import jetlake.spark
except ImportError as error:
    print(error)
"""
    )
    assert done.stdout.splitlines() == [
        "tables need pyarrow: pip install 'jetlake[arrow]'",
        "tracing needs packages that are not installed: pip install 'jetlake[otel]'",
        "Spark needs packages that are not installed: pip install 'jetlake[spark]'",
    ]
