"""What somebody meets who installed the client alone: it works, and the rest says what to install."""

import subprocess
import sys

import pytest

WITHOUT = """
import sys
class Hidden:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"click", "rich", "xxhash", "uvloop", "starlette", "uvicorn", "pyspark", "nkeys"}:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hidden())
"""


def run(program, folder=None):
    command = [sys.executable, "-c", WITHOUT + program]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, cwd=folder)


def test_the_client_is_imported():
    done = run("import jetlake, jetlake.blocking; jetlake.connect, jetlake.blocking.connect; print('ok')")
    assert (done.stdout, done.stderr, done.returncode) == ("ok\n", "", 0)


@pytest.mark.parametrize("arguments", [["stream", "ls"], ["--help"], ["serve", "-p", "-1"]])
def test_the_command_says_what_to_install(arguments, tmp_path):
    done = run(f"from jetlake.cli.main import main; sys.exit(main({arguments!r}))", tmp_path)
    assert "pip install 'jetlake[" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode == 1


def test_so_does_the_server():
    done = run("import importlib.util as u; u.find_spec = lambda name: None\nimport jetlake\njetlake.Server")
    assert done.stderr.endswith("pip install 'jetlake[server]'\n")
