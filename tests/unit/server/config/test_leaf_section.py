"""The section `leafnodes`: the hubs that a server joins, and what it refuses by name."""

import pytest

from jetlake.errors import ConfigError
from jetlake.server.config.assemble import assemble, options_from_settings
from jetlake.server.config.conf import parse_text
from jetlake.server.config.flags import parse_flags
from jetlake.server.config.leaf_options import LeafRemote, LeafTls, LeafUrl, parse_leaf_url
from jetlake.server.config.options import Options
from jetlake.server.config.reader import read_config
from jetlake.server.config.secret import Secret


def read(text):
    settings, findings = read_config(parse_text(text))
    return options_from_settings(settings).leafnodes, findings


def test_everything_that_a_remote_may_say():
    options, findings = read("""
        accounts { APP { users [ { user: a, password: a } ] } }
        leafnodes {
            reconnect: "3s"
            remotes [
                { urls: ["nats://u:p%40ss@hub:7000", "tls://[::1]"], account: APP, deny_imports: a.>,
                  deny_export: ["b", "c.*"], no_randomize: true, ignore_discovered_servers: true,
                  dial_timeout: "2s", first_info_timeout: 5,
                  tls { ca_file: ca, cert_file: c, key_file: k, handshake_first: true, timeout: 4 } }
                { url: hub2, nkey: SUAX, compression: s2_auto }
                { url: hub3, creds: "/x.creds" }
                { url: hub4, disabled: true }
            ]
        }""")
    first, second, third = options.remotes
    assert first == LeafRemote(
        urls=(
            LeafUrl(host="hub", port=7000, user="u", password=Secret("p@ss")),
            LeafUrl(host="::1", is_tls=True),
        ),
        account="APP",
        deny_imports=("a.>",),
        deny_exports=("b", "c.*"),
        no_randomize=True,
        ignore_discovered_servers=True,
        dial_timeout_s=2.0,
        first_info_timeout_s=5.0,
        tls=LeafTls(ca_file="ca", cert_file="c", key_file="k", handshake_first=True, timeout_s=4.0),
    )
    assert [str(url) for url in first.urls] == ["hub:7000", "[::1]:7422"]
    assert second.nkey == Secret("SUAX")
    assert third.credentials == "/x.creds"
    assert options.reconnect_s == 3.0
    assert findings.notices == ["config:10:41: compression is ignored: leaf connections are not compressed here"]


@pytest.mark.parametrize(
    ("section", "why"),
    [
        ('listen: "nowhere"', 'could not parse address string "nowhere"'),
        ("port: many", "port must be an integer"),
        ("remotes [ { url: hub, hub: true } ]", "hub is not supported"),
        ("remotes [ { url: hub, proxy { url: x } } ]", "proxy is not supported"),
        ("remotes [ { url: hub, isolate: true } ]", "isolate is not supported"),
        ("remotes [ { url: hub, tls { pinned_certs: [x] } } ]", "pinned_certs is not supported"),
        ("remotes [ { url: hub, tls { cert_file: x } } ]", "belong together"),
        ("remotes [ { url: hub, wat: 1 } ]", 'unknown field "wat"'),
        ("remotes [ { account: APP } ]", "needs a url"),
        ("remotes [ { url: hub, creds: a, nkey: b } ]", "both credentials and an nkey"),
        ("remotes [ { url: hub, account: NONE } ]", 'cannot find local account "NONE"'),
        ("remotes [ { url: 'ws://hub' } ]", "ws://… is not supported"),
        ("remotes [ { url: 'http://hub' } ]", 'unknown scheme "http"'),
        ("remotes [ { url: 'nats://hub:99999' } ]", "port is not a number"),
        ("remotes [ { url: 'nats://' } ]", "names no host"),
        ("remotes [ { url: hub, dial_timeout: 0 } ]", "timeouts must be above zero"),
        ("reconnect: 0", "reconnect must be above zero"),
        ("remotes [ 7 ]", "expected a map"),
        ("wat: 1", 'unknown field "wat"'),
        ("port: 70000", "must be between -1 and 65535"),
        ("port: 1, min_version: x", "is not like 2.8.0"),
        ("port: 1, authorization { timeout: -1 }", "must be above zero"),
        ("port: 1, authorization { proxy_required: true }", "would admit"),
        ("port: 1, authorization { user: a, users [] }", "single user/pass and a users array"),
        ("port: 1, authorization { users [ { pass: a } ] }", "requires a user"),
        ("port: 1, authorization { users [ { user: a, pass: a }, { user: a, pass: b } ] }", "Duplicate user"),
        ("port: 1, authorization { nkey: NONE }", "Not a valid public nkey"),
    ],
)
def test_what_makes_no_sense_or_is_not_there_is_named(section, why):
    with pytest.raises(ConfigError, match=why) as caught:
        read(f"leafnodes {{ {section} }}")
    assert str(caught.value).count("config:") == ("NONE" not in section or "nkey" in section)


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        ('listen: "127.0.0.1:-1"', {"host": "127.0.0.1", "port": -1}),
        ("listen: 7422", {"host": "0.0.0.0", "port": 7422}),
        ('port: 7422, host: "::1", advertise: "hub:1"', {"host": "::1", "port": 7422, "advertise": "hub:1"}),
        ("port: -1, isolate: true, min_version: 2.8.0", {"port": -1, "isolate": True, "min_version": "2.8.0"}),
        (
            "port: 1, authorization { account: '$SYS', timeout: 3 }",
            {"port": 1, "account": "$SYS", "auth_timeout_s": 3.0},
        ),
    ],
)
def test_the_listener_for_leaf_nodes(section, expected):
    options, findings = read(f"leafnodes {{ {section} }}")
    assert {name: getattr(options.listen, name) for name in expected} == expected
    assert findings.notices == []


def test_users_of_the_listener():
    single, _ = read("leafnodes { port: 1, authorization { user: a, password: b, account: '$SYS' } }")
    assert [(user.name, user.password.reveal(), user.account) for user in single.listen.users] == [("a", "b", "$SYS")]
    listed, _ = read(
        "leafnodes { port: 1, authorization { users [ { user: a, pass: b }, { user: c, pass: d, account: '$SYS' } ] } }"
    )
    assert [(user.name, user.account) for user in listed.listen.users] == [("a", "$G"), ("c", "$SYS")]


@pytest.mark.parametrize("section", ["", "authorization { user: a, password: b }", "port: 0"])
def test_nobody_listens_without_a_port(section):
    assert read(f"leafnodes {{ {section} }}")[0].listen is None


def test_secrets_do_not_show():
    url = parse_leaf_url("nats://me:s3cret@hub")
    assert "s3cret" not in repr(Options().with_leaf("nats://me:s3cret@hub"))
    assert "s3cret" not in str(url)
    assert "t0ken" not in repr(Options().with_leaf("nats://t0ken@hub"))
    with pytest.raises(ConfigError) as caught:
        parse_leaf_url("nats://me:s3cret@hub:x")
    assert "s3cret" not in str(caught.value)


def test_flags_name_a_hub_and_a_domain(tmp_path):
    flags = parse_flags(["--leaf", "nats://a:1,nats://b:2", "--domain", "edge-7", "-sd", str(tmp_path)])
    options = assemble(flags).options
    assert [str(url) for url in options.leafnodes.remotes[0].urls] == ["a:1", "b:2"]
    assert options.jetstream.domain == "edge-7"
    with pytest.raises(ConfigError, match="--domain needs JetStream"):
        assemble(parse_flags(["--domain", "x", "--no_jetstream"]))
