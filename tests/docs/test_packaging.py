"""Container, manifests, board, alerts and workflows name what exists: flags, ports, files, metrics, targets of make."""

import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from jetlake.server.config.assemble import assemble
from jetlake.server.config.flags import parse_flags
from tests.docs.blocks import ROOT
from tools import release, render_monitoring

PACKAGING = ROOT / "packaging"
DOCKERFILE = (PACKAGING / "container" / "Dockerfile").read_text()
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def load(path):
    return list(yaml.safe_load_all(path.read_text()))


def test_the_image_starts_the_server_with_its_ports_and_volume():
    entry, flags = (
        json.loads(re.search(rf"^{word} (\[.*\])$", DOCKERFILE, re.MULTILINE)[1]) for word in ("ENTRYPOINT", "CMD")
    )
    assert entry == ["jetlake", "serve"]
    options = assemble(parse_flags(flags)).options
    assert DOCKERFILE.count(f"EXPOSE {options.port} {options.http_port}\n") == 1
    assert f"VOLUME {options.jetstream.store_dir}\n" in DOCKERFILE
    assert f"127.0.0.1:{options.http_port}/healthz" in DOCKERFILE
    for source in re.findall(r"^COPY (?!--)(.+) \S+$", DOCKERFILE, re.MULTILINE):
        assert all((ROOT / name).exists() for name in source.split())


def test_the_dockerfile_has_no_fault():
    linter = Path(sys.executable).with_name("hadolint")
    done = subprocess.run([linter, PACKAGING / "container" / "Dockerfile"], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_files_of_compose_exist():
    (compose,) = load(PACKAGING / "container" / "compose.yaml")
    folder = PACKAGING / "container"
    services = compose["services"]
    assert (folder / services["jetlake"]["build"]["context"] / services["jetlake"]["build"]["dockerfile"]).is_file()
    for service in services.values():
        for volume in service["volumes"]:
            source = volume.partition(":")[0]
            assert source in compose["volumes"] or (folder / source).is_file()
    (prometheus,) = load(PACKAGING / "monitoring" / "prometheus.yml")
    assert prometheus["scrape_configs"][0]["static_configs"][0]["targets"] == ["jetlake:8222"]
    assert all((PACKAGING / "monitoring" / name).is_file() for name in prometheus["rule_files"])


def test_the_manifest_probes_the_ports_of_the_image():
    service, stateful = load(PACKAGING / "kubernetes" / "jetlake.yaml")
    (container,) = stateful["spec"]["template"]["spec"]["containers"]
    ports = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert (
        ports
        == {port["name"]: port["port"] for port in service["spec"]["ports"]}
        == {"client": 4222, "monitoring": 8222}
    )
    assert container["readinessProbe"]["httpGet"] == {"path": "/healthz", "port": "monitoring"}
    assert container["volumeMounts"][0]["mountPath"] == "/data"
    assert f"--uid {stateful['spec']['template']['spec']['securityContext']['runAsUser']} " in DOCKERFILE
    assert service["spec"]["selector"] == stateful["spec"]["template"]["metadata"]["labels"]


@pytest.mark.parametrize("name", render_monitoring.FILES)
def test_board_and_alerts_are_drawn_from_their_table(name):
    assert (PACKAGING / "monitoring" / name).read_text() == render_monitoring.FILES[name](), (
        "run python tools/render_monitoring.py"
    )
    load(PACKAGING / "monitoring" / name)


def test_every_metric_of_board_and_alerts_exists():
    known = set(re.findall(r"^\| `(\w+)` \|", (ROOT / "docs/reference/metrics.md").read_text(), re.MULTILINE))
    queries = [query for _, query, *_ in (*render_monitoring.PANELS, *render_monitoring.ALERTS)]
    used = {name.removesuffix("_bucket") for query in queries for name in re.findall(r"jetlake_\w+", query)}
    assert used <= known


def test_no_workflow_has_a_fault():
    done = subprocess.run(
        ["node", "lint_workflows.mjs", *WORKFLOWS], cwd=ROOT / "tests" / "js", capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("", "")


@pytest.mark.parametrize("workflow", WORKFLOWS, ids=lambda path: path.stem)
def test_a_workflow_runs_what_exists(workflow):
    (jobs,) = load(workflow)
    targets = set(re.findall(r"^([a-z-]+):.*##", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for job in jobs["jobs"].values():
        assert job["runs-on"]
        for step in job["steps"]:
            assert ("uses" in step) != ("run" in step)
            words = step.get("run", "").split()
            if words[:1] == ["make"]:
                assert set(words[1:]) <= targets
            for word in words:
                if word.endswith(".py"):
                    assert Path(ROOT, word).is_file()


def test_the_release_installs_every_extra():
    extras = set(tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"])
    assert set(release.USES) == {"", *extras} - {"dev", "docs"}


def test_the_version_is_in_one_place():
    assert not re.search(r"^version = \"", (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
