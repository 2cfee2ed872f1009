"""Runs the Dockerfile and the image that it builds without a container engine: `make try-image`, as root on Linux.

A stage's root is an overlay of this machine's root directory, so its commands run as they stand and change nothing
here. `FROM python:X.Y-slim` is played by the Python X.Y of this machine, copied to /usr/local of the overlay. The image
then runs as its user, in a network of its own: it must become healthy by its own HEALTHCHECK, keep a message over
SIGTERM and SIGKILL, and end with 0 when it is told to stop. The files of the real base image are not seen by this.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "packaging" / "container" / "Dockerfile"
STARTS_S = 60
STORES = "import jetlake.blocking as b; c = b.connect(); js = c.jetstream(); "
WRITES = STORES + "js.create_stream('S', subjects=['s']); js.publish('s', b'kept'); print(js.stream('S').get(1).data)"
READS = STORES + "print(js.stream('S').get(1).data)"


@dataclass
class Stage:
    """A root directory and what the instructions said so far."""

    root: Path
    directory: str = "/"
    user: str = "0"
    variables: dict[str, str] = field(default_factory=dict)
    health: list[str] = field(default_factory=list)
    entry: list[str] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)

    def command(self, words: list[str]) -> list[str]:
        """Return the command that runs words inside, as the stage's user."""
        inside = f"cd {shlex.quote(self.directory)} && exec {shlex.join(words)}"
        drop = ["setpriv", f"--reuid={self.user}", f"--regid={self.user}", "--clear-groups"] if self.user != "0" else []
        return ["chroot", str(self.root), *drop, "/bin/sh", "-ec", inside]

    @property
    def environment(self) -> dict[str, str]:
        path = "/usr/local/bin:/usr/bin:/bin:/usr/sbin"
        passed = {name: value for name, value in os.environ.items() if name.startswith(("PIP_", "SSL_", "HTTP"))}
        return {**passed, "PATH": path, "LD_LIBRARY_PATH": "/usr/local/lib", "HOME": "/tmp", **self.variables}

    def run(self, words: list[str]) -> str:
        """Run a command inside; end this program when it fails."""
        done = subprocess.run(self.command(words), env=self.environment, capture_output=True, text=True)
        if done.returncode:
            sys.exit(f"try_image: {shlex.join(words)}\n{done.stdout}{done.stderr}")
        return done.stdout


def prefix_of(python: str) -> Path | None:
    """Return where a Python of this machine is installed, or None when it is not here."""
    try:
        done = subprocess.run([python, "-c", "import sys; print(sys.base_prefix)"], capture_output=True, text=True)
    except FileNotFoundError:
        return None
    return Path(done.stdout.strip()) if done.returncode == 0 else None


def overlay(folder: Path, base: str) -> Path:
    """Mount a root directory that begins as this machine's, with the base image's Python as `python`."""
    version = re.fullmatch(r"python:(\d\.\d+)-slim", base)
    prefix = prefix_of(f"python{version[1]}") if version else None
    if not version or not prefix:
        sys.exit(f"try_image: nothing in PATH can play {base}")
    for name in ("upper", "work", "root"):
        (folder / name).mkdir(parents=True)
    layers = f"lowerdir=/,upperdir={folder / 'upper'},workdir={folder / 'work'}"
    subprocess.run(["mount", "-t", "overlay", "overlay", "-o", layers, folder / "root"], check=True)
    root = folder / "root"
    for name in ("dev", "proc"):
        subprocess.run(["mount", "--rbind", f"/{name}", root / name], check=True)
    shutil.copytree(prefix, root / "usr/local", symlinks=True, dirs_exist_ok=True)
    link = root / "usr/local/bin/python"
    link.unlink(missing_ok=True)
    link.symlink_to(f"python{version[1]}")
    return root


def copy(stage: Stage, words: list[str], stages: dict[str, Stage]) -> None:
    """COPY, from the clone's tracked files or from another stage."""
    options = [word for word in words if word.startswith("--")]
    *sources, target = [word for word in words if not word.startswith("--")]
    origin = stages[options[0].removeprefix("--from=")].root if options else ROOT
    directory = stage.root / str(Path(stage.directory, target)).lstrip("/")
    for source in sources:
        path = origin / source.lstrip("/")
        if path.is_dir():
            shutil.copytree(path, directory, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copy2(path, directory)


def instructions() -> list[tuple[str, str]]:
    lines = [line for line in DOCKERFILE.read_text().splitlines() if not line.startswith("#")]
    joined = re.sub(r"\\\n\s*", "", "\n".join(lines))
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in joined.splitlines() if line)]


def build(folder: Path) -> Stage:
    """Follow the Dockerfile and return its last stage."""
    stages: dict[str, Stage] = {}
    stage = Stage(folder)
    for word, rest in instructions():
        print(f"try_image: {word} {rest}", flush=True)
        match word:
            case "FROM":
                base, _, name = rest.partition(" AS ")
                stage = stages[name] = Stage(overlay(folder / f"stage{len(stages)}", base))
            case "WORKDIR":
                stage.directory = rest
                (stage.root / rest.lstrip("/")).mkdir(parents=True, exist_ok=True)
            case "COPY":
                copy(stage, rest.split(), stages)
            case "RUN":
                stage.run(["/bin/sh", "-ec", rest])
            case "ENV":
                name, _, value = rest.partition("=")
                stage.variables[name] = value.replace("$PATH", stage.environment["PATH"])
            case "USER":
                stage.user = rest
            case "HEALTHCHECK":
                stage.health = json.loads(rest.partition("CMD ")[2])
            case "ENTRYPOINT":
                stage.entry = json.loads(rest)
            case "CMD":
                stage.arguments = json.loads(rest)
            case "VOLUME" | "EXPOSE":
                pass  # Nothing to run: the directory belongs to the user, and the network is the server's own.
            case _:
                sys.exit(f"try_image: {word} is not understood here")
    return stage


def start(stage: Stage) -> subprocess.Popen[bytes]:
    """Start the image as the Dockerfile says, and return when its own health check passes."""
    server = subprocess.Popen(stage.command([*stage.entry, *stage.arguments]), env=stage.environment)
    deadline = time.monotonic() + STARTS_S
    while subprocess.run(stage.command(stage.health), env=stage.environment, capture_output=True).returncode:
        if server.poll() is not None or time.monotonic() > deadline:
            sys.exit("try_image: the image did not become healthy")
        time.sleep(0.2)
    return server


def use(stage: Stage) -> None:
    """Store a message and find it after a stop and after a kill."""
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for program, ending in ((WRITES, signal.SIGTERM), (READS, signal.SIGKILL), (READS, signal.SIGTERM)):
        server = start(stage)
        if (read := stage.run(["python", "-c", program])) != "b'kept'\n":
            sys.exit(f"try_image: read {read!r} instead of the message")
        server.send_signal(ending)
        if server.wait() != (0 if ending is signal.SIGTERM else -signal.SIGKILL):
            sys.exit(f"try_image: ended with {server.returncode}")
        print(f"try_image: message is there, ended by {ending.name}", flush=True)


def main() -> None:
    if sys.argv[1:2] == ["--use"]:
        root, settings = Path(sys.argv[2]), json.loads(sys.argv[3])
        use(Stage(root, **settings))
        return
    if sys.platform != "linux" or os.geteuid() != 0:
        sys.exit("try_image: mounts need root on Linux")
    if sys.argv[1:] != ["--mounted"]:  # Again, where mounts are nobody else's.
        os.execvp("unshare", ["unshare", "--mount", sys.executable, __file__, "--mounted"])
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        try:
            settings = asdict(build(folder))
            root = settings.pop("root")
            again = [sys.executable, __file__, "--use", root, json.dumps(settings)]
            if subprocess.run(["unshare", "--net", *again]).returncode:
                sys.exit(1)
        finally:
            for mounted in sorted(folder.glob("*/root"), reverse=True):
                subprocess.run(["umount", "--recursive", "--lazy", mounted], check=True)
    print("try_image: ok")


if __name__ == "__main__":
    main()
