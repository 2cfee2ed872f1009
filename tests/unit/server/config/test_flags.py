"""The command line: flags, their spellings, and how they meet the file."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jetlake.errors import ConfigError
from jetlake.server.config.assemble import assemble
from jetlake.server.config.flags import FLAGS, parse_flags, usage
from jetlake.server.config.options import JetStreamOptions, Secret, TlsOptions, User


def options(*arguments):
    return assemble(parse_flags(list(arguments)), {}).options


@pytest.mark.parametrize(
    "arguments", [["-p", "4333"], ["--port", "4333"], ["-port=4333"], ["--p=4333"], ["-p=1", "-p", "4333"]]
)
def test_spellings(arguments):
    assert options(*arguments).port == 4333


def test_defaults_are_those_of_nats_server_with_jetstream():
    made = options()
    assert (made.host, made.port) == ("0.0.0.0", 4222)
    assert made.jetstream == JetStreamOptions(store_dir="jetlake-data")
    assert made.http_port is None


def test_every_flag_of_the_list():
    line = (
        "-a 127.0.0.1 -p -1 -n me -m 8222 -sd=/data -l /log -P /pid --ports_file_dir /ports --user u --pass=p -DV "
        "--client_advertise h:1 --max_traced_msg_len 9 --log_size_limit=100 --logtime_utc -T=false"
    )
    made = options(*line.split())
    assert (made.host, made.port, made.server_name, made.http_port) == ("127.0.0.1", -1, "me", 8222)
    assert made.jetstream == JetStreamOptions(store_dir="/data")
    assert (made.log_file, made.pid_file, made.ports_file_dir) == ("/log", "/pid", "/ports")
    assert made.users == (User(name="u", password=Secret("p")),)
    assert (made.debug, made.trace, made.log_time, made.log_time_utc) == (True, True, False, True)
    assert (made.client_advertise, made.max_traced_msg_len, made.log_size_limit) == ("h:1", 9, 100)
    assert options("--auth", "t").token == Secret("t")
    assert options("--addr", "::1").host == options("--net", "::1").host == "::1"
    assert options("-ms", "1").https
    assert options("-m", "0").http_port is None
    assert (options("-D").debug, options("-V").trace, options("-VV").trace, options("-DVV").debug) == (True,) * 4


def test_monitoring_stays_at_home_unless_a_host_is_named(tmp_path):
    assert options("-m", "8222").http_host == ""
    assert options("-m", "8222", "-a", "0.0.0.0").http_host == "0.0.0.0"
    path = tmp_path / "server.conf"
    path.write_text('host: 10.0.0.1\nhttp: "10.0.0.2:8222"')
    assert options("-c", str(path)).http_host == "10.0.0.2"
    path.write_text("port: 1\nhttp: 8222")
    assert options("-c", str(path)).http_host == ""


def test_tls_flags():
    made = options("--tls", "--tlscert", "c", "--tlskey", "k", "--tlsverify", "--tlscacert", "a")
    assert made.tls == TlsOptions(cert_file="c", key_file="k", ca_file="a", verify=True)
    with pytest.raises(ConfigError, match="certificate must be present"):
        options("--tls")


def test_jetstream_flags():
    assert options("--no_jetstream").jetstream is None
    assert options("-js=false").jetstream is None
    assert options("-js").jetstream == JetStreamOptions(store_dir="jetlake-data")


def test_the_file_decides_about_jetstream_and_flags_win(tmp_path):
    path = tmp_path / "server.conf"
    path.write_text("port: 1\nhost: 1.1.1.1\nauthorization { token: t }\n")
    assert options("-c", str(path)).jetstream is None
    assert options("-c", str(path)).config_file == str(path)
    made = options("-c", str(path), "-p", "2", "-js", "--user", "u", "--pass", "p")
    assert (made.port, made.host) == (2, "1.1.1.1")
    assert made.jetstream == JetStreamOptions(store_dir="jetlake-data")
    assert (made.token, made.users[0].name) == (None, "u")
    path.write_text("jetstream { store_dir: /a, domain: hub }\nstore_dir: /b\n")
    assert options("-c", str(path)).jetstream == JetStreamOptions(store_dir="/a", domain="hub")
    assert options("-c", str(path), "-sd", "/c").jetstream == JetStreamOptions(store_dir="/c", domain="hub")
    path.write_text("store_dir: /b\n")
    assert options("-c", str(path), "-js").jetstream == JetStreamOptions(store_dir="/b")


@pytest.mark.parametrize("flag", ["--cluster_listen=nats://x:1", "--routes=a,b", "--cluster_name=c", "--no_advertise"])
def test_cluster_flags_are_refused(flag):
    with pytest.raises(ConfigError, match="is not supported: this server is a single node"):
        assemble(parse_flags([flag]), {})


REFUSED = {
    ("-zz",): "flag provided but not defined: -zz",
    ("--prot", "4222"): "flag provided but not defined: -prot; did you mean --port?",
    ("-p",): "flag needs an argument: -p",
    ("-p", "x"): 'invalid value "x" for flag -p',
    ("-D=maybe",): 'invalid boolean value "maybe" for -D',
    ("start",): 'unrecognized command: "start"',
    ("-",): "unrecognized command",
    ("--auth", "t", "--user", "u"): "Cannot have a user/pass and token",
    ("-c", "/nowhere/at/all.conf"): "no such file",
    ("-p", "70000"): "port must be between",
}


@pytest.mark.parametrize("arguments", REFUSED)
def test_refused(arguments):
    with pytest.raises(ConfigError) as raised:
        options(*arguments)
    assert REFUSED[arguments] in str(raised.value)


def test_usage_names_every_flag():
    text = usage()
    for flag in FLAGS:
        for name in flag.names:
            assert f"-{name}" in text


def test_no_name_means_two_flags():
    names = [name for flag in FLAGS for name in flag.names]
    assert len(names) == len(set(names))


@settings(deadline=None)
@given(
    st.lists(st.sampled_from(["-p", "--port=1", "-js", "x", "-", "--", "-D=", "=", "-sd", "--user", ""]) | st.text())
)
def test_any_command_line_is_taken_or_refused(arguments):
    try:
        parse_flags(arguments)
    except ConfigError as error:
        assert str(error)
