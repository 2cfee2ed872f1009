"""Where a user's own files are, also for one without a home."""

import pwd
from pathlib import Path

import pytest

from jetlake import platform
from jetlake.cli.main import main
from jetlake.client.settings.credentials import read_credentials
from jetlake.errors import InvalidOptionError


@pytest.fixture
def homeless(monkeypatch):
    """A user as in a container: a number that no file of users names, and no HOME."""

    def unknown(user):
        raise KeyError(user)

    monkeypatch.setattr(pwd, "getpwuid", unknown)
    for name in ("HOME", "XDG_CONFIG_HOME", "NATS_CONTEXT", "JETLAKE_CONTEXT"):
        monkeypatch.delenv(name, raising=False)


def test_folders_are_named_by_the_environment_or_in_the_home(monkeypatch, tmp_path):
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_DATA_HOME", raising=False)
    assert platform.user_folder("XDG_DATA_HOME", ".local", "share") == tmp_path / ".local" / "share"
    assert platform.expand_user("~/a") == tmp_path / "a"
    monkeypatch.setenv("XDG_DATA_HOME", "/data")
    assert platform.user_folder("XDG_DATA_HOME", ".local", "share") == Path("/data")


@pytest.mark.usefixtures("homeless")
def test_a_user_without_a_home_has_no_contexts(capsys):
    assert platform.user_folder("XDG_CONFIG_HOME", ".config") == Path("/.config")
    assert platform.expand_user("~/a") == Path("~/a")
    with pytest.raises(SystemExit) as ended:
        main(["context", "ls"])
    assert ended.value.code == 0
    assert "No contexts" in capsys.readouterr().out


@pytest.mark.usefixtures("homeless")
@pytest.mark.parametrize("path", ["~/a.creds", "~nobody-has-this-name/a.creds", "a\0b"])
def test_credentials_that_are_nowhere(path):
    with pytest.raises(InvalidOptionError, match="cannot read"):
        read_credentials(path)
