"""Where a command connects: what is typed wins over variables, variables over the saved context."""

from __future__ import annotations

import json
import stat

import pytest

from jetlake.cli import contexts
from jetlake.cli.contexts import DEFAULT_URL, Target, from_environment
from jetlake.cli.session import Session
from jetlake.errors import ConfigError


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    for variables in contexts.ENVIRONMENT.values():
        for variable in variables:
            monkeypatch.delenv(variable, raising=False)
    return tmp_path


def session(settings=None, context=None):
    return Session(settings or {}, context=context, timeout_s=1.0).target


def test_the_local_server_when_nothing_is_said():
    assert session().server == DEFAULT_URL


def test_our_variable_wins_over_the_one_of_nats():
    assert from_environment({"NATS_URL": "a", "JETLAKE_URL": "b"}) == {"server": "b"}
    assert from_environment({"NATS_URL": "a", "JETLAKE_URL": ""}) == {"server": "a"}


def test_what_is_typed_wins_over_variables_and_those_over_the_selected_context(monkeypatch):
    contexts.save_context("prod", Target(server="nats://saved:1", user="saved", password="secret"))
    contexts.select_context("prod")
    assert session().server == "nats://saved:1"
    monkeypatch.setenv("NATS_URL", "nats://variable:1")
    assert session().server == "nats://variable:1"
    assert session().user == "saved"
    assert session({"server": "nats://typed:1"}).server == "nats://typed:1"


def test_a_context_named_on_the_command_line_wins_over_variables(monkeypatch):
    contexts.save_context("prod", Target(server="nats://saved:1"))
    monkeypatch.setenv("NATS_URL", "nats://variable:1")
    assert session(context="prod").server == "nats://saved:1"


def test_saved_secrets_are_for_their_owner_only():
    file = contexts.save_context("prod", Target(password="secret"))
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_context_that_is_not_there_names_those_that_are():
    contexts.save_context("prod", Target())
    with pytest.raises(ConfigError, match="saved: prod"):
        session(context="test")


def test_names_cannot_leave_the_folder():
    for name in ("../x", "a/b", "", ".hidden", "a" * 80):
        with pytest.raises(ConfigError):
            contexts.save_context(name, Target())


def test_a_broken_file_is_named():
    file = contexts.save_context("prod", Target())
    file.write_text('{"sever": "typo"}')
    with pytest.raises(ConfigError, match=r"prod\.json"):
        contexts.load_context("prod")


def test_removing_the_selected_context_deselects_it():
    contexts.save_context("prod", Target())
    contexts.select_context("prod")
    contexts.remove_context("prod")
    assert contexts.selected() is None
    assert contexts.names() == []


def test_an_address_is_shown_without_its_login():
    assert Target(server="nats://me:se@cret@a:4222,tls://token@b,c:1,me:pw@d").shown == "nats://a:4222,tls://b,c:1,d"


@pytest.fixture
def of_nats(home, monkeypatch):
    """Saves a context of the `nats` command."""

    def save(name, **keys):
        file = home / "nats" / "context" / f"{name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(json.dumps(keys))

    monkeypatch.delenv("NATS_CONTEXT", raising=False)
    return save


def test_contexts_of_the_nats_command_are_found_after_our_own(of_nats, monkeypatch):
    of_nats("prod", url="nats://of-nats:1", user="me", password="secret")
    assert (session(context="prod").nats, session(context="prod").shown) == ("prod", "context prod")
    assert session({"server": "nats://typed:1"}, "prod").shown == "nats://typed:1"
    monkeypatch.setenv("NATS_CONTEXT", "prod")
    assert session().nats == "prod"
    contexts.save_context("prod", Target(server="nats://ours:1"))
    assert session().server == "nats://ours:1"
    assert contexts.nats_names() == []


def test_the_selection_of_the_nats_command_is_not_ours(of_nats, home):
    of_nats("prod", url="nats://of-nats:1")
    (home / "nats" / "context.txt").write_text("prod")
    assert session().server == DEFAULT_URL
    contexts.select_context("prod")
    assert session().nats == "prod"


def test_a_context_of_the_nats_command_for_pipelines(of_nats, monkeypatch):
    monkeypatch.setenv("SECRET", "word")
    of_nats("prod", url="nats://a:1,nats://b:1", user="me", password="env://SECRET", jetstream_domain="hub", ca="~/ca")
    found = contexts.plain(session(context="prod"))
    assert (found.server, found.user, found.password, found.domain) == ("nats://a:1,nats://b:1", "me", "word", "hub")
    assert found.tls_ca.endswith("/ca")
    typed = contexts.plain(session({"token": "t"}, "prod"))
    assert (typed.user, typed.password, typed.token) == ("", "", "t")
    of_nats("odd", nsc="nsc://operator/account/user")
    with pytest.raises(ConfigError, match="nsc can't be used here"):
        contexts.plain(session(context="odd"))


def test_a_context_that_nobody_has_names_those_of_both(of_nats):
    contexts.save_context("ours", Target())
    of_nats("theirs", url="nats://a:1")
    with pytest.raises(ConfigError, match="saved: ours, theirs"):
        session(context="nobodys")
