"""`tools/setup.sh` names at once all that only root can install."""

import os
import shutil
import subprocess

import pytest

from tests.docs.blocks import ROOT

NEEDED = ("bash", "dirname", "sed", "head", "cksum", "cat")
MISSING = "missing: Python 3.11 or newer with venv, Java 17, Chromium, Node; "
PACKAGES = "python3 python3-venv openjdk-17-jre-headless chromium nodejs npm"


@pytest.fixture
def setup(tmp_path):
    """Run the script of a clone where no program is installed but a few of POSIX and those that are given."""

    def setup(**programs):
        (tmp_path / "clone" / "tools").mkdir(parents=True)
        script = shutil.copy(ROOT / "tools" / "setup.sh", tmp_path / "clone" / "tools")
        programs = {name: f'exec {shutil.which(name)} "$@"' for name in NEEDED} | programs
        (tmp_path / "bin").mkdir()
        for name, text in programs.items():
            program = tmp_path / "bin" / name.replace("_", "-")
            program.write_text(f"#!/bin/sh\n{text}\n")
            program.chmod(0o755)
        environment = {name: value for name, value in os.environ.items() if name not in ("JAVA_HOME", "PYTHON")}
        environment["PATH"] = str(tmp_path / "bin")
        done = subprocess.run(
            [shutil.which("bash"), script, "--browser"], env=environment, capture_output=True, text=True
        )
        assert done.returncode == 1 and not (tmp_path / "clone" / ".venv").exists()
        return done.stderr

    return setup


def test_a_system_without_apt(setup):
    assert f"{MISSING}there is no apt-get here" in setup()


def test_a_user_who_is_not_root(setup):
    # The interpreter of Debian without python3-venv.
    said = setup(apt_get="exit 9", id="echo 1000", python3="exit 1", java="echo 'openjdk version \"11.0.2\"' >&2")
    assert said.endswith(f"{MISSING}run as root: apt-get install {PACKAGES}\n")


def test_a_system_that_has_only_a_newer_java(setup, tmp_path):
    # Its lists of packages are empty until they are fetched.
    said = setup(
        apt_get=f'[ "$1" = update ] && : >{tmp_path}/updated',
        apt_cache=f'[ -f {tmp_path}/updated ] && [ "$2" = openjdk-21-jre-headless ] && echo Package: "$2"',
        id="echo 0",
    )
    assert said.endswith(f"try by hand: apt-get install {PACKAGES.replace('openjdk-17', 'openjdk-21')}\n")
