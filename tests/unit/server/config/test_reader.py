"""Configuration files to options."""

import sys

import pytest
from hypothesis import given
from hypothesis import settings as example_settings
from hypothesis import strategies as st

from jetlake.errors import ConfigError
from jetlake.server.config.assemble import options_from_settings
from jetlake.server.config.conf import parse_text
from jetlake.server.config.options import (
    AccountOptions,
    JetStreamLimits,
    JetStreamOptions,
    Options,
    Permissions,
    ResponsePermission,
    Secret,
    SubjectPermissions,
    TlsOptions,
    User,
)
from jetlake.server.config.reader import read_config, read_file
from jetlake.server.config.sharing import ExportOptions, ImportOptions, LatencyOptions, TraceOptions, check_sharing


def read(text):
    settings, findings = read_config(parse_text(text, "conf", {}))
    return options_from_settings(settings), findings


def test_all_plain_keys():
    options, findings = read(
        """
        host: 127.0.0.1, port: 4333, server_name: n, client_advertise: "a:1"
        http: "127.0.0.1:8222", http_base_path: /nats
        max_payload: 1KB, max_pending: 2MB, max_control_line: 1K, max_connections: 5, max_subs: 6
        ping_interval: "30s", ping_max: 3, write_deadline: "5s"
        lame_duck_duration: "1m", lame_duck_grace_period: "3s"
        debug: true, trace: true, logtime: false, logtime_utc: true, log_file: /l, log_size_limit: 1MB
        pid_file: /p, ports_file_dir: /d, max_traced_msg_len: 7
        feature_flags { js_ack_fc_v2: true }
        jetstream: true
        store_dir: /s
        """
    )
    assert options == Options(
        host="127.0.0.1",
        port=4333,
        server_name="n",
        client_advertise="a:1",
        http_host="127.0.0.1",
        http_port=8222,
        http_base_path="/nats",
        max_payload=1024,
        max_pending=2 * 2**20,
        max_control_line=1000,
        max_connections=5,
        max_subscriptions=6,
        ping_interval_s=30.0,
        ping_max=3,
        write_deadline_s=5.0,
        lame_duck_duration_s=60.0,
        lame_duck_grace_period_s=3.0,
        debug=True,
        trace=True,
        log_time=False,
        log_time_utc=True,
        log_file="/l",
        log_size_limit=2**20,
        pid_file="/p",
        ports_file_dir="/d",
        max_traced_msg_len=7,
        ack_subject_v2=True,
        jetstream=JetStreamOptions(store_dir="/s"),
    )
    assert (findings.notices, findings.doubts) == ([], [])


@pytest.mark.parametrize(
    ("text", "host", "port"),
    [
        ("listen: 4333", "127.0.0.1", 4333),
        ('listen: "0.0.0.0:-1"', "0.0.0.0", -1),
        ('listen: "[::1]:5"', "::1", 5),
        ("net: 10.0.0.1", "10.0.0.1", 0),
        ("LISTEN: 1.2.3.4:6", "1.2.3.4", 6),
    ],
)
def test_addresses(text, host, port):
    options, _ = read(text)
    assert (options.host, options.port) == (host, port)


def test_jetstream():
    options, _ = read(
        """jetstream { store_dir: /x, max_mem: 1G, max_file: 10GB, domain: hub, sync_interval: "2m", strict: false
        index_cache: 16MB
        limits { max_ack_pending: 10, max_request_batch: 5, duplicate_window: "1m" } }"""
    )
    assert options.jetstream == JetStreamOptions(
        store_dir="/x",
        max_memory=10**9,
        max_storage=10 * 2**30,
        domain="hub",
        sync_interval_s=120.0,
        index_cache=16 * 1024 * 1024,
        strict=False,
        max_ack_pending=10,
        max_request_batch=5,
        duplicate_window_s=60.0,
    )
    for text in ("jetstream: false", "jetstream: disabled", "jetstream { enabled: false }", "port: 1"):
        assert read(text)[0].jetstream is None
    for text in ("jetstream: enabled", "jetstream {}", "jetstream { sync_interval: always }"):
        assert read(text)[0].jetstream == JetStreamOptions(store_dir="jetlake-data")


def test_a_negative_index_cache_is_refused():
    with pytest.raises(ConfigError, match="index_cache must not be negative"):
        read("jetstream { store_dir: /x, index_cache: -1 }")


def test_users_and_permissions():
    options, _ = read(
        """authorization {
          timeout: 1.5
          default_permissions { publish: none.> }
          users: [
            { user: a, password: p }
            { user: b, pass: "$2a$11$x", permissions { publish: "x", subscribe: ["y", "z q"] } }
            { user: c, permission { pub { allow: x, deny: [y] }, allow_responses: true } }
            { user: d, permissions { allow_responses { max: 5, expires: "1m" } } }
          ] }
        no_auth_user: a"""
    )
    assert options.auth_timeout_s == 1.5
    assert options.no_auth_user == "a"
    assert options.users == (
        User(name="a", password=Secret("p"), permissions=Permissions(publish=SubjectPermissions(allow=("none.>",)))),
        User(
            name="b",
            password=Secret("$2a$11$x"),
            permissions=Permissions(
                publish=SubjectPermissions(allow=("x",)), subscribe=SubjectPermissions(allow=("y", "z q"))
            ),
        ),
        User(
            name="c",
            password=Secret(""),
            permissions=Permissions(
                publish=SubjectPermissions(allow=("x",), deny=("y",)), responses=ResponsePermission()
            ),
        ),
        User(
            name="d",
            password=Secret(""),
            permissions=Permissions(
                publish=SubjectPermissions(allow=()), responses=ResponsePermission(max=5, expires_s=60.0)
            ),
        ),
    )


def test_accounts():
    options, findings = read(
        """accounts {
          A { users: [{user: a, password: p}], jetstream { max_mem: 1K, max_file: 2K, max_streams: 3, max_consumers: 4,
              max_ack_pending: 5, mem_max_stream_bytes: 6, store_max_stream_bytes: 7, max_stream_bytes: true } }
          B { users: [{user: b, password: p}], jetstream: enabled, exports: [{stream: x}] }
          SYS { users: [{user: s, password: p}] }
        }
        system_account: SYS"""
    )
    assert options.accounts == (
        AccountOptions(
            name="A",
            jetstream=JetStreamLimits(
                max_memory=1000,
                max_storage=2000,
                max_streams=3,
                max_consumers=4,
                max_ack_pending=5,
                memory_max_stream_bytes=6,
                storage_max_stream_bytes=7,
                max_bytes_required=True,
            ),
        ),
        AccountOptions(name="B", jetstream=JetStreamLimits(), exports=(ExportOptions(kind="stream", subject="x"),)),
        AccountOptions(name="SYS"),
    )
    assert [(user.name, user.account) for user in options.users] == [("a", "A"), ("b", "B"), ("s", "SYS")]
    assert options.system_account == "SYS"
    assert findings.notices == []


def test_tls():
    options, _ = read(
        'tls { cert_file: c, key_file: k, ca_file: a, verify: true, timeout: 0.5, handshake_first: "100ms" }\n'
        "allow_non_tls: true"
    )
    assert options.tls == TlsOptions(
        cert_file="c",
        key_file="k",
        ca_file="a",
        verify=True,
        timeout_s=0.5,
        handshake_first=True,
        handshake_first_fallback_s=0.1,
    )
    assert options.allow_non_tls
    assert read("tls { cert_file: c, key_file: k, handshake_first: auto }")[0].tls.handshake_first_fallback_s == 0.05


@pytest.mark.parametrize("key", ["cluster", "gateway", "mqtt", "proxy_protocol"])
def test_what_stays_out_is_a_clear_error(key):
    with pytest.raises(ConfigError, match=f"conf:2:0: {key} is not supported: "):
        read(f"port: 1\n{key} {{ port: 1234, whatever: [1, 2] }}")


def test_what_only_tunes_nats_server_is_accepted_with_one_line():
    options, findings = read("port: 1\nwrite_timeout: 5s")
    assert options.port == 1
    assert findings.notices == ["conf:2:0: write_timeout is ignored: a connection whose write takes too long is closed"]


@pytest.mark.parametrize(
    ("mapping", "why"),
    [
        ("{a: [{destination: b, weight: 60}, {destination: c, weight: 60}]}", "total weight"),
        ("{a: [{destination: b, weight: 101}]}", "Invalid weight"),
        ("{a: [{destination: b, weight: x}]}", "Invalid weight"),
        ("{a: [{destination: b}]}", "Missing weight"),
        ("{a: [{destination: b, weight: 1}, {destination: b, weight: 1}]}", "duplicate entry"),
        ('{"a.*": "b.$2"}', "out of range"),
        ('{"a.>": b}', "invalid subject"),
        ('{"a..b": c}', "not a valid subject"),
        ("{a: 5}", "mapping destination"),
        ("{a: [{weight: 5}]}", "destination"),
        ("{a: [{destination: b, weight: 5, x: 1}]}", "unknown field"),
        ("[a]", "map"),
    ],
)
def test_mappings_that_make_no_sense(mapping, why):
    with pytest.raises(ConfigError, match=why):
        read(f"mappings: {mapping}")


@pytest.mark.parametrize(
    ("trace", "percent"),
    [
        ("msg_trace: t.x", 100),
        ("trace_dest: t.x", 100),
        ("msg_trace: {dest: t.x, sampling: 7}", 7),
        ('msg_trace: {dest: t.x, sampling: "7%"}', 7),
    ],
)
def test_traces_of_an_account(trace, percent):
    options, _ = read(f"accounts {{ A {{ {trace} }} }}")
    assert options.accounts[0].trace == TraceOptions(destination="t.x", percent=percent)


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("msg_trace: 5", "msg_trace must be a subject or a map"),
        ("msg_trace: 't.*'", 'Trace destination "t.[*]" is not valid'),
        ("msg_trace: {sampling: 5}", "Trace destination is missing"),
        ("msg_trace: {dest: t, sampling: 0}", "1% to 100%"),
        ("msg_trace: {dest: t, sample: 5}", "unknown field"),
        ("exports: [{stream: a, allow_trace: true}]", "allow_trace directive on non-service"),
        ("imports: [{service: {account: B, subject: a}, allow_trace: true}]", "allow_trace directive on a non-stream"),
    ],
)
def test_traces_that_make_no_sense(line, why):
    with pytest.raises(ConfigError, match=why):
        read(f"accounts {{ A {{ {line} }}, B {{}} }}")


@pytest.mark.parametrize(
    ("latency", "percent"),
    [
        ("l.x", 100),
        ("{subject: l.x}", 100),
        ("{subject: l.x, sampling: 7}", 7),
        ('{subject: l.x, sampling: "7%"}', 7),
        ("{subject: l.x, sampling: Headers}", 0),
    ],
)
def test_latency_of_a_service(latency, percent):
    options, _ = read(f"accounts {{ A {{ exports: [{{service: a, latency: {latency}}}] }} }}")
    assert options.accounts[0].exports[0].latency == LatencyOptions(subject="l.x", percent=percent)


@pytest.mark.parametrize(
    ("export", "why"),
    [
        ("service: a, latency: 5", "latency must be a subject or a map"),
        ("service: a, latency: {sampling: 5}", "Latency subject required"),
        ("service: a, latency: {subject: b, sampling: 0}", "1% to 100%"),
        ("service: a, latency: {subject: b, sampling: 101}", "1% to 100%"),
        ("service: a, latency: {subject: b, sampling: true}", "1% to 100%"),
        ("service: a, latency: {subject: b, sampling: some}", "1% to 100%"),
        ("service: a, latency: {subject: b, sample: 5}", "unknown field"),
        ("service: a, latency: 'b.*'", "invalid publish subject"),
        ("service: a, response: stream, latency: b", "bad service response type"),
        ("stream: a, latency: b", "non-service"),
    ],
)
def test_latency_that_makes_no_sense(export, why):
    with pytest.raises(ConfigError, match=why):
        read(f"accounts {{ A {{ exports: [{{{export}}}] }} }}")


def test_a_number_for_a_duration_is_doubtful():
    options, findings = read("ping_interval: 30")
    assert options.ping_interval_s == 30.0
    assert findings.doubts == [
        'conf:1:0: invalid use of field "ping_interval": ping_interval should be converted to a duration'
    ]


REFUSED = {
    "jetstream { max_file_stor: 1 }": 'unknown field "max_file_stor"; did you mean "max_file_store"?',
    "\nbogus: 1": 'conf:2:0: unknown field "bogus"',
    "jetstream { bogus: 1 }": 'conf:1:12: unknown field "bogus"',
    "authorization { bogus: 2 }": 'conf:1:16: unknown field "bogus"',
    "tls { bogus: 1, cert_file: c, key_file: k }": 'conf:1:6: unknown field "bogus"',
    "port: abc": "conf:1:0: port must be an integer, not a string",
    "debug: 1": "conf:1:0: debug must be true or false, not an integer",
    "host: 5": "conf:1:0: host must be a string, not an integer",
    "ping_interval: abc": "conf:1:0: error parsing ping_interval",
    "ping_interval: true": "conf:1:0: ping_interval must be a duration",
    "listen: abc": 'conf:1:0: could not parse address string "abc"',
    "authorization: 5": "conf:1:0: expected a map, got an integer",
    "authorization { user: a, token: t }": "Cannot have a user/pass and token",
    "authorization { token: t, users: [] }": "token and a users array",
    "authorization { users: [{user: a}, {user: a}] }": 'Duplicate user "a" detected',
    "authorization { users: [{password: a}] }": "requires a user",
    "authorization { users: [{nkey: UABC}] }": "Not a valid public nkey for a user",
    "authorization { users: [5] }": "expected a map",
    "authorization { users: [{user: a, permissions { publish: [5] }}] }": "expected a string in allow",
    "authorization { users: [{user: a, permissions { publish: 'a..b' }}] }": '"a..b" is not a valid subject',
    # A rule that can never match is none: what it denies would be allowed.
    "authorization { users: [{user: a, permissions { publish { deny: 'a b' } }}] }": '"a b" is not a valid subject',
    "authorization { users: [{user: a, permissions { sub { deny: 'a b c' } }}] }": '"a b c" is not a valid subject',
    "authorization { users: [{user: a, permissions { subscribe: 'a ' }}] }": '"a " is not a valid subject',
    "authorization { users: [{user: a, connection_types: [STANDARD, TCP]}] }": "invalid connection types ['TCP']",
    "authorization { auth_callout { } }": "auth_callout requires an issuer",
    "accounts { $G { } }": '"$G" is a Reserved Account',
    "accounts { A { users: [{user: a}] }, B { users: [{user: a}] } }": 'Duplicate user "a" detected',
    "accounts { A { jetstream: maybe } }": "Expected 'enabled' or 'disabled'",
    "jetstream: maybe": "Expected 'enabled' or 'disabled' for string value, got 'maybe'",
    "jetstream { max_mem: 1XB }": "must be a size",
    "jetstream { tpm: {} }": "tpm is not supported: the key is given by `key`",
    'jetstream { domain: "a.b" }': "invalid domain name",
    "jetstream { domain: _ }": "invalid domain name",
    "lame_duck_duration: 5s": "minimum is 30 seconds",
    "lame_duck_duration: 30s\nlame_duck_grace_period: 40s": "strictly lower",
    "tls { cert_file: a }": "missing 'key_file'",
    "tls { cert_file: a, key_file: b, pinned_certs: [x] }": "pinned_certs is not supported",
    "tls { cert_file: a, key_file: b, handshake_first: sometimes }": "handshake_first",
    "operator: x.jwt": "neither a token nor a file",
    "operator: {}": "operator must be",
    "authorization { auth_callout { issuer: x, auth_users: [a] } }": "public account nkey",
    "authorization { auth_callout { issuer: ABJHLOVMPA4CI6R5KLNGOB4GSLNIY7IOUPAJC4YFNDLQVIOBYQGUWVLA } }": "auth_users",
    "trusted_keys: [X]": "require an account resolver",
    "trusted_keys: [X], resolver: MEMORY": "public operator nkey",
    "trusted_keys: [X], resolver: URL(ftp://x)": "must begin with http",
    "trusted_keys: [X], resolver: URL(x)": "must begin with http",
    "trusted_keys: [X], resolver: URL(http://x:y/)": "must begin with http",
    "trusted_keys: [X], resolver: URL(http://x/?a=)": "must begin with http",
    "trusted_keys: [X], resolver: URL(http://x/), resolver_preload: {A: b}": "only available",
    "trusted_keys: [X], resolver: other": "expected MEMORY",
    "trusted_keys: [X], resolver: {type: cache, dir: d}": "cache is not supported",
    "trusted_keys: [X], resolver: {type: full}": "dir has no value",
    "trusted_keys: [X], resolver: {type: full, dir: d, ttl: 1h}": "ttl",
    "trusted_keys: [X], resolver: {type: full, dir: d, hard_delete: true}": "allow_delete",
    "trusted_keys: [X], resolver: {type: full, dir: d, unknown: true}": "unknown field",
    "trusted_keys: [X], resolver: {type: half, dir: d}": "unknown resolver type",
    "trusted_keys: [X], resolver: MEMORY, resolver_preload: {A: 5}": "should be a string JWT",
    "no_auth_user: x": "users/nkeys are not defined",
    "no_auth_user: x\nauthorization { users: [{user: a}] }": "not present",
    "system_account: X": "account missing",
    'server_name: "a b"': "server name cannot contain spaces",
    "max_payload: 100MB": "cannot be higher than max_pending",
    "max_payload: 0": "max_payload must be above zero",
    "max_payload: 65MB, max_pending: 100MB, jetstream: enabled": "cannot be higher than 67108864 with JetStream",
    "max_control_line: 65537, jetstream: enabled": "cannot be higher than 65536 with JetStream",
    "port: 70000": "port must be between",
}


@pytest.mark.parametrize("text", REFUSED)
def test_refused(text):
    with pytest.raises(ConfigError) as raised:
        read(text)
    assert REFUSED[text] in str(raised.value)


def test_secrets_never_show():
    options, _ = read("authorization { users: [{user: a, password: hunter2}] }")
    assert "hunter2" not in repr(options)
    assert "hunter2" not in str(options.users)
    token, _ = read("authorization { token: hunter2 }")
    assert "hunter2" not in repr(token)


KEYS = st.sampled_from(
    ["port", "host", "listen", "jetstream", "authorization", "accounts", "tls", "users", "user", "password", "http",
     "ping_interval", "max_payload", "permissions", "publish", "allow", "limits", "store_dir", "A", "bogus"]
)  # fmt: skip
VALUES = st.recursive(
    st.sampled_from(["true", "1", "-1", "x", '"a b"', "2m", "1.5", "[]", "{}", "$x", "enabled"]),
    lambda inner: (
        st.lists(inner, max_size=3).map(lambda entries: "[" + ", ".join(entries) + "]")
        | st.lists(st.tuples(KEYS, inner), max_size=4).map(
            lambda entries: "{ " + ", ".join(f"{key}: {value}" for key, value in entries) + " }"
        )
    ),
    max_leaves=12,
)


@example_settings(deadline=None)
@given(st.lists(st.tuples(KEYS, VALUES), max_size=6))
def test_any_configuration_is_taken_or_refused(entries):
    try:
        read("\n".join(f"{key}: {value}" for key, value in entries))
    except ConfigError as error:
        assert str(error)


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "{}"])
def test_a_file_without_a_value_is_refused(tmp_path, text):
    file = tmp_path / "server.conf"
    file.write_text(text)
    with pytest.raises(ConfigError, match=r"server\.conf: config has no values or is empty"):
        read_file(file)


def count_calls(function, *arguments):
    """Count the Python functions and steps of generators that run."""
    calls = 0

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        function(*arguments)
    finally:
        sys.setprofile(None)
    return calls


@pytest.mark.parametrize(
    "text",
    [
        "authorization {{ users: [{}] }}".format,
        "accounts {{ A {{ users: [{}] }} }}".format,
        "authorization {{ users: [{{user: first}}] }}, accounts {{ A {{ users: [{}] }} }}".format,
    ],
)
def test_each_user_of_many_takes_the_same_time(text):
    few, many = (",".join(f"{{user: u{number}}}" for number in range(count)) for count in (100, 400))
    assert count_calls(read, text(many)) < 5 * count_calls(read, text(few))


@pytest.mark.parametrize("kind", ["stream", "service"])
def test_a_cycle_of_many_imports(kind):
    count = 1200  # more than Python lets functions call one another
    accounts = [
        AccountOptions(
            name=f"A{number}",
            exports=(ExportOptions(kind=kind, subject="s.>"),),
            imports=(ImportOptions(kind=kind, account=f"A{(number + 1) % count}", subject="s.>"),),
        )
        for number in range(count)
    ]
    with pytest.raises(ConfigError, match="import forms a cycle"):
        check_sharing(accounts)


def test_encryption():
    options, _ = read('jetstream { key: "s3cret", cipher: ChachaPoly, prev_key: "before" }')
    jetstream = options.jetstream
    assert (jetstream.key.reveal(), jetstream.previous_key.reveal(), jetstream.cipher) == ("s3cret", "before", "chacha")
    assert "s3cret" not in repr(options) and "before" not in repr(options)


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ('key: ""', "key is empty"),
        ('prev_key: "a"', "prev_key needs key"),
        ('key: "a", cipher: des', "unknown cipher type: 'des'"),
    ],
)
def test_encryption_that_would_be_none(section, why):
    with pytest.raises(ConfigError, match=why):
        read(f"jetstream {{ {section} }}")
