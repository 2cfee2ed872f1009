"""The table of configuration keys: nats-server knows each of them, and `jetlake serve -t` does what the table says."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent
BIN = Path(sys.executable).parent
sys.path.insert(0, str(ROOT / "tools"))

from configuration_keys import SECTIONS, configuration_of, outcome_of  # noqa: E402

from jetlake.errors import JetlakeError  # noqa: E402
from jetlake.server.config.assemble import assemble  # noqa: E402

KEYS = [(section, key) for section in SECTIONS for key in section.keys]
# Without these somebody would get in who is to be kept out, or data would lie open.
SECURITY = {
    "ocsp_peer",
    "pinned_certs",
    "verify_cert_and_check_known_urls",
    "verify",
    "verify_and_map",
    "cipher_suites",
    "min_version",
    "proxies",
    "proxy_required",
    "auth_callout",
    "operator",
    "trusted",
    "resolver",
    "permissions",
    "default_permissions",
    "allowed_connection_types",
    "key",
    "cipher",
    "tpm",
    "authorization",
    "no_auth_user",
    "limits",
    "allowed_origins",
    "same_origin",
    "deny_imports",
    "deny_exports",
    "accounts",
}


def check(command, text, folder):
    path = folder / "server.conf"
    path.write_text(text)
    done = subprocess.run([*command, "-t", "-c", str(path)], capture_output=True, text=True, timeout=60, check=False)
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_nats_server_knows_every_key_under_every_name(section, tmp_path):
    for key in section.keys:
        for name in key.names.split(", "):
            status, said = check([BIN / "nats-server"], configuration_of(section, key, name, tmp_path), tmp_path)
            assert f'unknown field "{name}"' not in said, (section.title, name, said)
            assert status == 0 or not key.checked, (section.title, name, said)


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.title)
def test_every_name_of_a_key_has_its_outcome(section, tmp_path):
    for key in section.keys:
        expected = outcome_of(section, key)
        for name in key.names.split(", "):
            path = tmp_path / "server.conf"
            path.write_text(configuration_of(section, key, name, tmp_path))
            try:
                found = assemble({"config": str(path)})
            except JetlakeError as error:
                assert (expected.kind, "unknown field" in str(error)) == ("refused", False), (
                    section.title,
                    name,
                    error,
                )
            else:
                is_ignored = any(f"{name} is ignored" in warning for warning in found.warnings)
                assert expected.kind == ("ignored" if is_ignored else "works"), (section.title, name)


def test_the_command_says_what_the_table_says(tmp_path):
    """One process for all that works or is ignored at the top of a file, and one for each kind of refusal there."""
    top = SECTIONS[0]
    by_kind = {"works": [], "ignored": [], "refused": []}
    for key in top.keys:
        by_kind[outcome_of(top, key).kind].append(key)
    serve = [BIN / "jetlake", "serve"]
    ignored = "\n".join(configuration_of(top, key, key.names.split(",")[0], tmp_path) for key in by_kind["ignored"])
    status, said = check(serve, "port: 4222\n" + ignored, tmp_path)
    assert status == 0, said
    for key in by_kind["ignored"]:
        name = key.names.split(",")[0]
        assert f"{name} is ignored: {outcome_of(top, key).reason}" in said
    for name in ("cluster", "proxies"):
        key = next(key for key in by_kind["refused"] if key.names.split(",")[0] == name)
        status, said = check(serve, configuration_of(top, key, name, tmp_path), tmp_path)
        assert status != 0
        assert f"{name} is not supported: {outcome_of(top, key).reason}" in said
        assert "Traceback" not in said


def test_no_key_that_keeps_somebody_out_is_ignored():
    ignored = {key.names.split(",")[0] for section, key in KEYS if outcome_of(section, key).kind == "ignored"}
    assert ignored & SECURITY == set()
    assert {key.names.split(",")[0] for _, key in KEYS} >= SECURITY


def test_reasons_say_more_than_that_it_is_not_there():
    for section, key in KEYS:
        outcome = outcome_of(section, key)
        assert outcome.kind == "works" or "does not have it" not in outcome.reason, (section.title, key.names)
