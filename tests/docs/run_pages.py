"""Runs each page's programs where only the page's own install lines have installed anything.

    python -m tests.docs.run_pages [PAGE ...]

Pages with the same requirements share an environment, made by pip from a wheel of this clone; those with Spark come
last. The search path ends with the system's folders, so that a command that no install line installs isn't found.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path

from tests.docs.blocks import ROOT, blocks, name, pages, requirements, save_and_run

SYSTEM = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
UNSET = {"PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV"}


def pip(python: Path | str, *words: str) -> None:
    subprocess.run([str(python), "-m", "pip", *words, "--quiet", "--disable-pip-version-check"], check=True)


def make_environment(folder: Path, wheel: Path, names: frozenset[str]) -> dict[str, str]:
    """Install the requirements into a new environment, and return the variables of its commands."""
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    local = [f"{wheel}{word.removeprefix('jetlake')}" if word.startswith("jetlake") else word for word in names]
    pip(folder / "bin" / "python", "install", *local)
    kept = {key: value for key, value in os.environ.items() if key not in UNSET}
    return {**kept, "PATH": os.pathsep.join([str(folder / "bin"), *SYSTEM])}


def run_page(path: Path, environment: dict[str, str]) -> bool:
    """Run one page in a folder of its own, and report it."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        try:
            save_and_run(path, Path(folder), environment)
        except (AssertionError, subprocess.TimeoutExpired) as error:
            print(f"pages: {name(path)} FAILED\n{error}", flush=True)
            return False
    print(f"pages: {name(path)} ok ({time.monotonic() - began:.0f} s)", flush=True)
    return True


def main() -> None:
    chosen = [Path(word).resolve() for word in sys.argv[1:]] or pages()
    groups: dict[frozenset[str], list[Path]] = defaultdict(list)
    for path in chosen:
        if any(block.file for block in blocks(path)):
            groups[frozenset(requirements(path))].append(path)
    heaviest_last = sorted(groups, key=lambda names: ("spark" in str(names) or "jetlake[all]" in names, len(names)))
    results = []
    with tempfile.TemporaryDirectory() as built:
        pip(sys.executable, "wheel", "--no-deps", "--wheel-dir", built, str(ROOT))
        (wheel,) = Path(built).glob("*.whl")
        for names in heaviest_last:
            print(f"pages: pip install {' '.join(sorted(names))}", flush=True)
            with tempfile.TemporaryDirectory() as folder:
                try:
                    environment = make_environment(Path(folder), wheel, names)
                except subprocess.CalledProcessError as error:
                    print(f"pages: FAILED: {', '.join(map(name, groups[names]))}\n{error}", flush=True)
                    results += [False] * len(groups[names])
                else:
                    results += [run_page(path, environment) for path in groups[names]]
    print(f"pages: {results.count(True)} of {len(results)} pages ran in {len(groups)} environments")
    sys.exit(0 if all(results) else 1)


if __name__ == "__main__":
    main()
