"""Configuration files: `-t` takes and refuses the same ones on both servers."""

import subprocess

import pytest

from jetlake.server.command import serve
from tests.support.servers import BIN

TAKEN = {
    "colon": "port: 4333",
    "equals": "port = 4333",
    "blank": "port 4333",
    "JSON": '{"port": 4333, "host": "127.0.0.1", "debug": false}',
    "separators": "port: 4333; host: localhost, server_name: n",
    "comments": "# one\n// two\nport: 4333 # three\nhost: 127.0.0.1 // four\n",
    "key in any case": "PORT: 4333\nMax_Payload: 1MB",
    "sizes": "max_payload: 1MB\nmax_pending: 10m\nmax_control_line: 4Ki",
    "durations": 'ping_interval: "2m"\nwrite_deadline: 10s\nlame_duck_duration: "1m30s"',
    "variables": "TOKEN: abc\nauthorization { token: $TOKEN }",
    "environment": "port: $JETLAKE_TEST_PORT",
    "include": "include included.conf\nport: 1",
    "token": "authorization { token: t, timeout: 1.5 }",
    "hashed": "authorization { user: a, password: $2a$11$abcdefghijklmnopqrstuv }",
    "users": """authorization {
        default_permissions: { publish: x }
        users = [ { user: a, password: b, permissions: { publish: "x.>", subscribe: [y, "z q"] } }
                  { nkey: UDXU4RCSJNZOIQHZNWXHXORDPRTGNJAHAHFRGZNEEJCPQTT2M7NLCNF4 } ] }""",
    "responses": """authorization { users: [
        { user: a, permissions: { publish: { allow: x, deny: [y] }, allow_responses: { max: 5, ttl: "1m" } } } ] }""",
    "accounts": """accounts { A { users: [{user: a, password: p}], jetstream: enabled }
        B { users: [{user: b, password: p}], jetstream { max_mem: 1M, max_file: 1G, max_streams: 5 } } }
        no_auth_user: a""",
    "system account": "accounts { SYS { users: [{user: s, password: p}] } }\nsystem_account: SYS",
    "jetstream": """jetstream { store_dir: "/tmp/x", max_mem: 1G, max_file: 10GB, domain: hub, sync_interval: always,
        strict: false, limits { max_ack_pending: 10, duplicate_window: "1m" } }""",
    "jetstream words": "jetstream: enabled",
    "monitoring": 'http: "127.0.0.1:8222"\nhttp_base_path: /x',
    "logging": "debug: on\ntrace: off\nlogtime: yes\nlog_file: /tmp/l\npid_file: /tmp/p\nlog_size_limit: 1MB",
    "feature flags": "feature_flags { js_ack_fc_v2: true }",
    "unmatched brace": "port: 4333\n}",
    "block": "authorization { token: (\n  abc\n)\n}",
}

REFUSED = {
    "unknown key": "bogus: 1",
    "unknown key within": "jetstream { bogus: 1 }",
    "unused variable": "X = 5\nport: 4333",
    "missing variable": "port: $NOPE_NOT_THERE",
    "missing include": "include nowhere.conf",
    "two values on a line": "port: 4333 host: localhost",
    "map without an end": "authorization {",
    "string without an end": 'host: "abc',
    "no key": "= 5",
    "no value": "port",
    "text for a number": "port: abc",
    "quoted number": 'port: "4333"',
    "number for a flag": "debug: 1",
    "number for a name": "server_name: 5",
    "name with a blank": 'server_name: "a b"',
    "number for a duration": "ping_interval: 30",
    "no duration": "ping_interval: soon",
    "fraction of a size": "max_payload: 1.5MB",
    "short lame duck": "lame_duck_duration: 5s",
    "address": "listen: abc",
    "user and token": "authorization { user: a, password: b, token: c }",
    "user twice": "authorization { users: [{user: a}, {user: a}] }",
    "user in two accounts": "accounts { A { users: [{user: a}] }, B { users: [{user: a}] } }",
    "reserved account": "accounts { $G { } }",
    "bad subject": "authorization { users: [{user: a, permissions: { publish: 'a..b' }}] }",
    "bad nkey": "authorization { users: [{nkey: UABC}] }",
    "tags": "server_tags: 5",
    "jetstream word": "jetstream: maybe",
    "missing certificate": "tls { cert_file: /nowhere/c.pem, key_file: /nowhere/k.pem }",
    "missing operator": "operator: /nowhere/x.jwt",
}


def try_configuration(kind, path, capfd):
    """The exit status of `-t` and what it said."""
    arguments = ["-t", "-c", str(path)]
    if kind == "embedded":
        status = serve(arguments)
    else:
        status = subprocess.run([str(BIN / "nats-server"), *arguments], timeout=30, check=False).returncode
    return status, "".join(capfd.readouterr())


@pytest.mark.parametrize("name", [*TAKEN, *REFUSED])
def test_taken_or_refused(kind, tmp_path, monkeypatch, capfd, name):
    monkeypatch.setenv("JETLAKE_TEST_PORT", "4333")
    path = tmp_path / "server.conf"
    path.write_text(TAKEN.get(name) or REFUSED[name])
    (tmp_path / "included.conf").write_text("host: 127.0.0.1\n")
    status, output = try_configuration(kind, path, capfd)
    if name in TAKEN:
        assert status == 0, output
        assert "is valid" in output
    else:
        assert status == 1, output
        assert "Traceback" not in output
        assert output.strip()
