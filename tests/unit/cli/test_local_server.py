"""A server for development: its users and contexts, and what a second run keeps."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner

from jetlake.cli import main
from jetlake.cli.app import app
from jetlake.server.config.assemble import assemble


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Runs the command up to the start of the server; returns its flags and the directory of contexts."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    served = []
    monkeypatch.setattr(main, "main", lambda flags: served.append(flags) or 0)

    def run(line, status=0):
        result = CliRunner().invoke(app, ["server", "run", *line.split()])
        assert result.exit_code == status, result.output
        return served[-1] if served else None, result.output

    return run


def test_contexts_reach_the_users_of_the_configuration(run, tmp_path):
    (verb, *flags), said = run("dev --port 14999 --monitor 18999 --select")
    assert verb == "serve" and "dev, dev_service, dev_system" in said
    options = assemble({"config": flags[1]}).options
    assert (options.host, options.port, options.system_account) == ("127.0.0.1", 14999, "SYSTEM")
    contexts = tmp_path / "config" / "jetlake"
    saved = {path.stem: json.loads(path.read_text()) for path in (contexts / "contexts").glob("*.json")}
    assert saved.keys() == {"dev", "dev_service", "dev_system"}
    text = (tmp_path / "data" / "jetlake" / "dev" / "server.conf").read_text()
    for context in saved.values():
        assert context["server"] == "nats://127.0.0.1:14999"
        assert f'user: {context["user"]}, password: "{context["password"]}"' in text
    assert (contexts / "context").read_text() == "dev"


def test_a_second_run_keeps_passwords_and_streams_unless_it_is_clean(run, tmp_path):
    run("dev")
    file = tmp_path / "data" / "jetlake" / "dev" / "server.conf"
    before = file.read_text()
    (file.parent / "kept").write_text("")
    run("dev")
    assert file.read_text() == before and (file.parent / "kept").exists()
    _, said = run("dev --clean", status=2)
    assert "use --force" in said and (file.parent / "kept").exists()
    run("dev --clean --force")
    assert not (file.parent / "kept").exists()


def test_without_jetstream(run, tmp_path):
    run("plain --no-jetstream")
    assert "jetstream" not in (tmp_path / "data" / "jetlake" / "plain" / "server.conf").read_text()
