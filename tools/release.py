"""Builds the release into `build/release` and checks it: the same bytes twice, metadata, contents, installations.

    python tools/release.py [--no-install]

Each extra is installed into an environment of its own and used there: with the server, a message is stored and read
after a restart. Where everything is installed, the README's programs run. `--no-install` leaves that out.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = ROOT / "build" / "release"
SMOKE = str(ROOT / "tools" / "smoke.py")
USES = {
    "": ("-c", "import jetlake, jetlake.blocking"),
    "client": ("-c", "import nkeys, websockets, jetlake.auth.keys"),
    "cli": ("-m", "jetlake", "doctor"),
    "server": (SMOKE,),
    "arrow": ("-c", "import numpy, pyarrow, jetlake.client.streams.tables"),
    "spark": ("-c", "import jetlake.spark, pyspark.sql, jetlake.spark.pipelines.archive"),
    "avro": ("-c", "import fastavro, jetlake.client.payloads.avro"),
    "protobuf": ("-c", "import google.protobuf, jetlake.client.payloads.protobuf"),
    "schemas": ("-c", "import jsonschema, jetlake.client.payloads.json_schema"),
    "delta": ("-c", "import deltalake, jetlake"),
    "iceberg": ("-c", "import pyiceberg.catalog, jetlake.lake.catalogs"),
    "otel": ("-c", "import jetlake.otel"),
    "encryption": ("-c", "import cryptography, jetlake.store.files.keyring"),
    "celery": ("-c", "import jetlake.integrations.celery.backend, jetlake.integrations.celery.transport"),
    "fastapi": ("-c", "import fastapi, jetlake.integrations.fastapi"),
    "django": ("-c", "import jetlake.integrations.django.management.commands.jetlake_worker"),
    "mcp": ("-c", "import jetlake.cli.commands.mcp, jetlake.integrations.mcp.tools"),
    "all": (SMOKE,),
}
"""What is run where one extra is installed, and nothing else."""


def run(*command: str | Path, cwd: Path = ROOT, **variables: str) -> str:
    """Run a program, and end this one when it fails."""
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, env={**os.environ, **variables}, capture_output=True, text=True
    )
    if done.returncode:
        sys.exit(f"release: {' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
    return done.stdout


def builder(folder: Path) -> Path:
    """Make an environment with what the build needs, and return its Python."""
    requires = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    run(sys.executable, "-m", "venv", folder)
    python = folder / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requires)
    return python


def build(python: Path, folder: Path) -> list[Path]:
    """Build wheel and sdist from the tracked files alone, and return them."""
    source, target = folder / "source", folder / "dist"
    target.mkdir(parents=True)
    for name in run("git", "ls-files", "-z").rstrip("\0").split("\0"):
        copy = source / name
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, copy, follow_symlinks=False)
        copy.chmod(0o755 if os.access(ROOT / name, os.X_OK) else 0o644)
    epoch = run("git", "log", "-1", "--format=%ct").strip()
    for kind in ("wheel", "sdist"):
        call = f"import sys; from setuptools import build_meta; build_meta.build_{kind}(sys.argv[1])"
        run(python, "-c", call, target, cwd=source, SOURCE_DATE_EPOCH=epoch)
    for sdist in target.glob("*.tar.gz"):
        _without_times(sdist, int(epoch))
    return sorted(target.iterdir())


def _without_times(sdist: Path, epoch: int) -> None:
    """Pack an sdist again, so that it tells nothing of when and by whom it was built."""
    packed = io.BytesIO()
    with tarfile.open(sdist) as source, tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as target:
        for member in sorted(source.getmembers(), key=lambda member: member.name):
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.pax_headers = {}
            target.addfile(member, source.extractfile(member) if member.isfile() else None)
    with sdist.open("wb") as file, gzip.GzipFile("", "wb", fileobj=file, mtime=epoch) as compressed:
        compressed.write(packed.getvalue())


def check_contents(wheel: Path, sdist: Path) -> None:
    """Check what is in the files, and what the metadata says."""
    with zipfile.ZipFile(wheel) as packed:
        names = packed.namelist()
        (about,) = [name for name in names if name.endswith(".dist-info/METADATA")]
        metadata = Parser().parsestr(packed.read(about).decode())
    folders = {name.split("/")[0] for name in names}
    # Spark finds data sources in packages whose names begin with `pyspark_`.
    others = {name for name in folders if not name.endswith(".dist-info")} - {"jetlake", "pyspark_jetlake"}
    assert not others, f"wheel holds {others}"
    assert "jetlake/py.typed" in names, "the marker of typed packages is missing"
    assert any(name.endswith("licenses/LICENSE") for name in names), "the licence is missing"
    unwanted = [name for name in names if re.search(r"(^|/)(tests?|examples|demo)/", name)]
    assert not unwanted, f"wheel holds {unwanted}"
    version = re.search(r'__version__ = "(.+)"', (ROOT / "src/jetlake/version.py").read_text())
    assert version is not None
    assert metadata["Version"] == version[1]
    assert metadata["License-Expression"] == "Apache-2.0"
    assert metadata["Requires-Python"] == ">=3.11"
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert str(metadata.get_payload()).startswith("# jetlake")
    assert f"## {version[1]}" in (ROOT / "CHANGELOG.md").read_text(), "the changelog has no section for this version"
    with tarfile.open(sdist) as packed:
        inside = {name.split("/", 1)[1] for name in packed.getnames() if "/" in name}
    assert {"pyproject.toml", "LICENSE", "README.md", "src/jetlake/__init__.py"} <= inside
    assert not [name for name in inside if name.startswith("tests")], "the sdist holds tests"


def check_installed(wheel: Path) -> None:
    """Install each extra into an environment of its own, and use it."""
    pip = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    for extra, use in USES.items():
        with tempfile.TemporaryDirectory() as folder:
            run(sys.executable, "-m", "venv", folder)
            python = Path(folder, "bin", "python")
            run(python, *pip, f"{wheel}[{extra}]" if extra else wheel)
            run(python, *use, cwd=Path(folder))
            if extra == "all":
                run(python, *pip, "pytest", "pytest-asyncio")
                run_readme(python, Path(folder))
        print(f"release: jetlake[{extra}] ok", flush=True)


def run_readme(python: Path, folder: Path) -> None:
    """Run the programs of the README as they stand there."""
    text = (ROOT / "README.md").read_text()
    for name, program in re.findall(r"<!-- file: (\S+) -->\n```python\n(.*?)```", text, re.DOTALL):
        (folder / name).write_text(program)
        runner = ("-m", "pytest", "-q") if name.startswith("test_") else ()
        run(python, *runner, name, cwd=folder)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--no-install", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        python = builder(Path(folder, "builder"))
        built, again = build(python, Path(folder, "first")), build(python, Path(folder, "second"))
        for one, other in zip(built, again, strict=True):
            assert one.read_bytes() == other.read_bytes(), f"{one.name} differs when it is built again"
        shutil.rmtree(TARGET, ignore_errors=True)
        shutil.copytree(Path(folder, "first", "dist"), TARGET)
    (wheel,), (sdist,) = TARGET.glob("*.whl"), TARGET.glob("*.tar.gz")
    check_contents(wheel, sdist)
    for file in (wheel, sdist):
        print(f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.relative_to(ROOT)}")
    if not options.no_install:
        check_installed(wheel)


if __name__ == "__main__":
    main()
