from __future__ import annotations

import pytest
from click.testing import CliRunner

from jetlake.cli.app import app
from jetlake.cli.commands.pipeline import PipelineRun, connection_options
from jetlake.cli.contexts import Target
from jetlake.errors import ConfigError
from jetlake.spark.options.connection_options import ConnectionOptions


def test_a_target_becomes_options_that_executors_can_use(tmp_path):
    seed = tmp_path / "seed"
    seed.write_text("SUSEED\n")
    authority = tmp_path / "ca.pem"
    authority.write_text("-----BEGIN CERTIFICATE-----")
    target = Target(server="nats://a:4222,tls://b", nkey=str(seed), tls_ca=str(authority), domain="hub")
    options = connection_options(target)
    assert options == {
        "servers": "nats://a:4222,tls://b:4222",
        "auth.nkeySecret": "SUSEED",
        "tls.ca": "-----BEGIN CERTIFICATE-----",
        "domain": "hub",
    }
    assert ConnectionOptions.of(options).nkey_seed == "SUSEED"


def test_subjects_are_read_as_the_source_reads_them(tmp_path):
    given = ["--subjects", "a.>, b", "--subjects", '["c,d"]', "--by", "none", "--spec-out", str(tmp_path / "project")]
    result = CliRunner().invoke(app, ["pipeline", "archive", "S", str(tmp_path / "lake"), *given])
    assert result.exit_code == 0, result.output
    written = (tmp_path / "project" / "transformations" / "pipeline.py").read_text()
    assert """'subjects': '["a.>", "b", "c,d"]'""" in written
    result = CliRunner().invoke(app, ["pipeline", "archive", "S", str(tmp_path / "lake"), "--subjects", "a,,b"])
    assert result.exit_code == 2
    assert "it is empty, or has an empty name" in result.output


def test_a_login_in_the_address_is_taken_out_of_it():
    options = connection_options(Target(server="nats://me:hush@a:4222"))
    assert options == {"servers": "nats://a:4222", "auth.user": "me", "auth.password": "hush"}


@pytest.mark.parametrize(
    ("words", "retry_for_s"),
    [((), 60.0), (("--follow",), 86_400.0), (("--follow", "--source", "retryFor=5m"), 300.0)],
)
def test_who_follows_waits_for_the_server(monkeypatch, tmp_path, words, retry_for_s):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    found = []
    monkeypatch.setattr(PipelineRun, "start", lambda self, build: found.append(self.settings))
    assert run("pipeline", "archive", "A", "/lake", *words)[0] == 0
    assert found[0].connection_options.retry_for_s == retry_for_s


def test_a_file_that_cannot_be_read_is_named():
    with pytest.raises(ConfigError, match="can't read /nowhere/creds"):
        connection_options(Target(creds="/nowhere/creds"))


def run(*words: str, **environment: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(words), env={"JETLAKE_URL": "nats://127.0.0.1:1", **environment})
    return result.exit_code, result.output


@pytest.mark.parametrize(
    ("words", "code", "complaint"),
    [
        ("archive A /lake --by week", 2, "is not a partitioning"),
        ("archive A /lake --format avro", 2, "avro"),
        ("archive A /lake --every soon", 2, "is not a duration"),
        ("replay /lake A --rate 5 --original", 2, "mutually exclusive"),
        ("replay /lake A --subject-map a", 2, "is not a subject map"),
        ("replay /lake A --from yesterday", 2, "is not a time"),
        ("health --to kafka:x", 2, "is not a target"),
        ("health --window soon", 2, "window 'soon' can't be used"),
        ("dead-letters A --to A", 2, "can't store its own dead letters"),
        ("dead-letters --to A", 2, "Missing argument"),
        ("sql /nowhere.yml", 2, "No such file"),
        ("archive A /lake", 3, "can't connect"),
    ],
)
def test_mistakes_are_told_before_spark_starts(words, code, complaint, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    exit_code, output = run("pipeline", *words.split())
    assert complaint in output
    assert exit_code == code
    assert "Traceback" not in output


def test_a_project_is_written_without_a_server(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "project"
    code, output = run("pipeline", "archive", "A", "/lake/a", "--by", "none", "--spec-out", str(folder))
    assert (code, output.count("Wrote")) == (0, 2)
    assert (folder / "spark-pipeline.yml").exists()
