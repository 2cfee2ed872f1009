"""Counters, errors, traces, accounts, buckets, objects and services with the commands of `nats`, on both servers."""

from __future__ import annotations

import asyncio
import json
import re
import zipfile

from jetlake.cli.session import EXIT_FAILED, EXIT_USAGE
from tests.support.command_shell import Shell, output_of
from tests.support.tls import CERTIFICATES, TLS

_SYSTEM = """
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  A { jetstream: enabled, users: [ { user: a, password: a } ] }
}
no_auth_user: a
server_name: here
jetstream { store_dir: "STORE_DIR" }
"""
_AS_SYSTEM = "--user sys --password sys"


async def test_counters(shell):
    await shell.run("stream add HITS --subjects hits.> --allow-counter --defaults")
    assert await shell.run("counter incr hits.home") == "1\n"
    assert await shell.run("ctr increment hits.home 41") == "42\n"
    assert await shell.run("counter increment hits.home -- -2") == "40\n"
    assert await shell.run("counter get hits.home") == "40\n"
    assert "Increment: -2" in await shell.run("counter view hits.home --stream HITS")
    assert await shell.run("counter ls hits.>") == "hits.home\n"
    assert "no stream captures" in await shell.run("counter get other", status=EXIT_FAILED)
    assert "not a whole number" in await shell.run("counter incr hits.home x", status=EXIT_USAGE)
    assert "use a subject" in await shell.run("counter ls", status=EXIT_USAGE)


async def test_errors(shell):
    assert re.search(r"10059 +404 +stream not found", await shell.run("errors ls 'stream not'"))
    assert "Description: stream not found" in await shell.run("err lookup 10059")
    assert (await shell.json("errors get 10059"))["code"] == 404
    assert "no error has code 1" in await shell.run("errors lookup 1", status=EXIT_FAILED)
    assert "no errors match" in await shell.run("errors ls nothing.like.this", status=EXIT_FAILED)


async def test_trace(shell):
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    out = await shell.run("trace orders.new hello")
    assert out.startswith('Tracing message route to subject orders.new\n\nClient "jetlake command" cid:')
    assert '--J JetStream action:"stored" stream:"ORDERS" subject:"orders.new"\n' in out
    assert "\n\nEgress Count:\n\n  JetStream: 1\n" in out
    assert (await shell.json("stream state ORDERS"))["messages"] == 0
    await shell.run("trace orders.new hello --deliver -T -H K:V")
    assert (await shell.json("stream state ORDERS"))["messages"] == 1
    assert "--X No active interest" in await shell.run("trace nobody.here x")
    assert (await shell.json("trace orders.new x"))[0]["events"][0]["type"] == "in"


async def test_latency_and_traffic(shell, tmp_path):
    line = f"latency --server-b {shell.url} --duration 100ms --rate 200"
    assert "Median Latency:" in await shell.run(f"{line} --histogram {tmp_path / 'out'}")
    assert len((tmp_path / "out.raw").read_text().splitlines()) == 20
    assert (await shell.json(line))["messages"] == 20
    counted = json.loads(await shell.run("traffic 'a.>' --interval 50ms --count 1 --json"))
    assert counted["messages"] == 0
    assert "Requests" in await shell.run("traffic --interval 50ms --count 1")


async def test_top_audit_and_cheat(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = Shell((await start(_SYSTEM)).url)
    assert "jetlake command" in await shell.run(f"top here --max-refresh 2 --interval 50ms {_AS_SYSTEM}")
    assert "does not answer" in await shell.run(f"top nope {_AS_SYSTEM}", status=EXIT_FAILED)
    out = await shell.run(f"top here -r 1 --subs --lookup --output {tmp_path / 'top.txt'} --delimiter ; {_AS_SYSTEM}")
    assert out.startswith("Wrote 1 connection to")
    head, row = (tmp_path / "top.txt").read_text().splitlines()
    assert head.startswith("Host;Cid;Name;") and row.split(";")[2] == "jetlake command"
    assert "jetlake kv put PRICES tea 42\n" in await shell.run("cheat kv")
    assert "kv\n" in await shell.run("cheat --sections")
    assert "..." not in await shell.run("cheat stream")
    assert "no examples of 'nothing'" in await shell.run("cheat nothing", status=EXIT_USAGE)
    await shell.run(f"cheat kv --save {tmp_path / 'cheats'}")
    assert "jetlake kv put PRICES tea 42\n" in (tmp_path / "cheats" / "kv").read_text()


async def test_audits_are_gathered_checked_and_kept(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = Shell((await start(_SYSTEM)).url)
    archive, saved = tmp_path / "audit.zip", tmp_path / "audit.json"
    await shell.run(f"audit gather --output {archive} {_AS_SYSTEM}")
    assert (await shell.json("audit checks"))[0] == {
        "code": "SERVER_001",
        "report": "healthz",
        "name": "Server Health",
        "holds": "/healthz of every server says ok",
    }
    assert "9 reports checked, 0 faults found" in await shell.run(f"audit analyze {archive}")
    gather = f"audit gather --force --output {archive} {_AS_SYSTEM} --no-server-endpoints --no-streams --no-consumers"
    assert "Wrote 1 report " in await shell.run(gather)
    assert "nothing to gather" in await shell.run(f"{gather} --no-account-endpoints", status=EXIT_USAGE)
    (tmp_path / "bad.zip").write_text("x")
    assert "is not an archive" in await shell.run(f"audit analyze {tmp_path / 'bad.zip'}", status=EXIT_FAILED)
    with zipfile.ZipFile(archive, "w") as packed:
        slow = {"server": {"name": "here"}, "data": {"slow_consumers": 2}}
        sick = {"server": {"name": "here"}, "data": {"status": "error", "error": "disk"}}
        packed.writestr("here/varz.json", json.dumps(slow))
        packed.writestr("here/healthz.json", json.dumps(sick))
    out = await shell.run(f"audit analyze {archive} --save {saved}", status=EXIT_FAILED)
    assert "FAIL SERVER_003 here: 2 slow consumers\n" in out and "2 reports checked, 2 faults found" in out
    assert "slow" not in await shell.run(f"audit analyze {archive} --skip SERVER_003", status=EXIT_FAILED)
    out = await shell.run(f"audit analyze --load {saved} --markdown", status=EXIT_FAILED)
    assert "## SERVER_001: Server Health\n\n- here: not healthy: disk\n" in out
    for line, text in (
        ("audit analyze", "name an archive"),
        (f"audit analyze {archive} --skip NOPE", "no check has the code NOPE"),
    ):
        assert text in await shell.run(line, status=EXIT_USAGE)
    saved.write_text("[]")
    assert "is not an analysis" in await shell.run(f"audit analyze --load {saved}", status=EXIT_FAILED)


async def test_schemas_of_the_api(shell, tmp_path):
    assert "io.nats.jetstream.api.v1.stream_configuration\n" in await shell.run("schema search stream_conf")
    assert "no schemas match" in await shell.run("schema search ^nope", status=EXIT_FAILED)
    schema = json.loads(await shell.run("schema info io.nats.jetstream.api.v1.consumer_configuration"))
    assert "ack_policy" in schema["$defs"]["ConsumerConfig"]["properties"]
    assert "no schema 'nope'" in await shell.run("schema info nope", status=EXIT_USAGE)
    file = tmp_path / "orders.json"
    await shell.run(f"stream add ORDERS --subjects orders.> --defaults --output {file}")
    name = "io.nats.jetstream.api.v1.stream_configuration"
    assert await shell.run(f"schema validate {name} {file}") == f"{file} fits {name}\n"
    file.write_text('{"name": "ORDERS", "subjets": ["orders.>"]}')
    assert 'unknown field "subjets"' in await shell.run(f"schema validate {name} {file}", status=EXIT_FAILED)
    await shell.run("stream add ORDERS --subjects orders.> --defaults")
    for subject in ("STREAM.INFO.ORDERS", "STREAM.LIST", "INFO"):
        assert "The reply fits io.nats.jetstream.api.v1." in await shell.run(f"schema req '$JS.API.{subject}'")
    assert "stream not found (10059)" in await shell.run("schema req '$JS.API.STREAM.INFO.NO'", status=EXIT_FAILED)


async def test_events_in_short(shell):
    listening = await shell.start("events --all --short --count 1", b"Listening")
    await shell.run("stream add ORDERS --subjects orders")
    assert re.fullmatch(r"[\d: -]+ stream_action: stream ORDERS, action create\n", await output_of(listening))


async def test_requests_of_the_api_are_traced(shell):
    await shell.run("stream add ORDERS --subjects orders --defaults")
    out = await shell.run("stream info ORDERS --trace")
    assert ">>> $JS.API.STREAM.INFO.ORDERS\n" in out
    assert '<<< $JS.API.STREAM.INFO.ORDERS\n{"type":"io.nats.jetstream.api.v1.stream_info_response"' in out


async def test_a_context_with_what_nsc_knows(shell, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    program = tmp_path / "nsc"
    profile = {"user_creds": "/keys/me.creds", "operator": {"service": ["nats://hub:4222"]}}
    program.write_text(f"#!/bin/sh\necho '{json.dumps(profile)}'\n")
    program.chmod(0o755)
    await shell.run("context save mine --nsc nsc://op/team/me")
    shown = await shell.json("context info mine")
    assert (shown["server"], shown["creds"]) == ("nats://hub:4222", "/keys/me.creds")
    program.unlink()
    assert "not installed" in await shell.run("context save other --nsc nsc://op/team/me", status=EXIT_USAGE)


async def test_account_reports_backup_and_restore(shell, tmp_path):
    for name in ("A", "B"):
        await shell.run(f"stream add {name} --subjects {name} --defaults")
        await shell.run(f"pub {name} x -J")
    await shell.run("stream add M --subjects m --storage memory --defaults")
    assert "jetlake command" in await shell.run("account report connections --sort uptime")
    assert (await shell.json("account report conn --subject nobody.here")) == []
    assert (await shell.json("account report statistics"))[0]["conns"] >= 1
    assert "Server Statistics" in await shell.run("a report stats")
    out = await shell.run(f"account backup {tmp_path / 'all'} --force")
    assert out == f"Backed up 2 streams to {tmp_path / 'all'}\n  M: streams in memory have no backup\n"
    assert "exist already: A, B" in await shell.run(f"account restore {tmp_path / 'all'}", status=EXIT_FAILED)
    for name in ("A", "B"):
        await shell.run(f"stream rm {name} --force")
    assert await shell.run(f"account restore {tmp_path / 'all'}") == "Restored 2 streams: A, B\n"
    assert (await shell.json("stream state B"))["messages"] == 1
    await shell.run(f"account backup {tmp_path / 'more'} --force --critical-warnings", status=EXIT_FAILED)
    assert "has no backups" in await shell.run(f"account restore {tmp_path / 'all' / 'A'}", status=EXIT_FAILED)


async def test_the_certificate_of_a_server_is_shown(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    shell = Shell((await start(f"{TLS} }}", ["no_jetstream"])).url)
    trusted = await shell.json(f"account tls --tlsca {CERTIFICATES / 'ca.pem'}")
    assert trusted["version"] == "TLSv1.3" and trusted["error"] == ""
    assert "127.0.0.1" in trusted["names"] or "localhost" in trusted["names"]
    assert trusted["pem"].startswith("-----BEGIN CERTIFICATE-----\n")
    said = await shell.run(f"account tls --no-pem --tlsca {CERTIFICATES / 'ca.pem'}")
    assert "Certificate: trusted" in said and "Valid Until: " in said and "BEGIN" not in said
    said = await shell.run(
        f"account tls --no-pem --expire-warn 99999d --tlsca {CERTIFICATES / 'ca.pem'}", status=EXIT_FAILED
    )
    assert "the certificate expires in" in said
    # Without the authority nobody trusts it, and it is shown all the same.
    assert "BEGIN CERTIFICATE" in await shell.run("account tls", status=EXIT_FAILED)


async def test_a_server_without_tls_says_so(shell):
    assert "does not use TLS" in await shell.run("account tls", status=EXIT_FAILED)


async def test_keys_sign_and_check(shell, tmp_path):
    seed, public = (await shell.run("auth nkey gen user")).split()
    assert (seed[:2], public[0]) == ("SU", "U")
    file, data = tmp_path / "account.nk", tmp_path / "data"
    data.write_bytes(b"content")
    public = (await shell.run(f"auth nkey gen account --output {file}")).strip()
    assert await shell.run(f"auth nkey show {file}") == f"{public}\n"
    assert file.stat().st_mode & 0o777 == 0o600
    assert "never overwritten" in await shell.run(f"auth nkey gen account --output {file}", status=EXIT_USAGE)
    signature = (await shell.run(f"auth nkey sign {data} {file}")).strip()
    for key in (public, file):
        assert await shell.run(f"auth nkey check {data} {signature} {key}") == "The signature is valid\n"
    data.write_bytes(b"other")
    assert "was not signed" in await shell.run(f"auth nkey check {data} {signature} {public}", status=EXIT_FAILED)
    assert "neither a file nor" in await shell.run(f"auth nkey check {data} x! {public}", status=EXIT_USAGE)
    sealing = tmp_path / "curve.nk"
    assert (await shell.run(f"auth nkey gen curve --output {sealing}"))[0] == "X"
    assert "does not sign" in await shell.run(f"auth nkey sign {data} {sealing}", status=EXIT_USAGE)


async def test_requests_of_the_api_are_watched(shell):
    watching = asyncio.create_task(
        output_of(await shell.start("server watch api --interval 300ms --count 10 --json", b"Watching"))
    )
    while not watching.done():
        await shell.run("stream info NOPE", status=EXIT_FAILED)
        await shell.run("stream add X --subjects x --defaults")
    last = json.loads(watching.result().splitlines()[-1])
    assert {("STREAM INFO", True), ("STREAM CREATE", False)} <= {(one["request"], one["errors"] > 0) for one in last}
    assert {one["user"] for one in last} == {"jetlake command"}


async def test_buckets_copy_from_others(shell):
    for name in ("ONE", "ALL"):
        await shell.run(f"kv add {name}")
    await shell.run("kv put ONE k v")
    await shell.run("kv edit ALL --source ONE")
    while await shell.run("kv ls ALL -n") != "k\n":
        await asyncio.sleep(0.01)
    assert await shell.run("kv get ALL k --raw") == "v"
    assert "--mirror-domain needs --mirror" in await shell.run("kv add X --mirror-domain hub", status=EXIT_USAGE)
    # The mirror is made; its origin is on a server that is not there.
    await shell.run("kv add FAR --mirror ONE --mirror-domain hub")
    config = (await shell.json("stream info KV_FAR"))["config"]
    assert config["mirror"]["external"]["api"] == "$JS.hub.API"


async def test_buckets(shell):
    await shell.run("kv add B --storage m --republish-source '$KV.B.>' --republish-destination 'copy.>' --history 5")
    config = (await shell.json("stream info KV_B"))["config"]
    assert (config["storage"], config["republish"]["dest"]) == ("memory", "copy.>")
    await shell.run("kv put B tea 1")
    await shell.run("kv put B milk 2")
    await shell.run("kv del B milk -f")
    out = await shell.run("kv ls B -v")
    assert "tea" in out
    assert "Value" not in out
    assert "Value" in await shell.run("kv ls B -v --display-value")
    assert "tea" in await shell.run("kv watch B --no-deletes --count 1")
    assert "DELETE B > milk" in await shell.run("kv watch B --revision 3 --count 1")
    assert "bucket name is missing" in await shell.run("kv info", status=EXIT_USAGE)
    said = await shell.run("kv add C --republish-source a", status=EXIT_USAGE)
    assert "need --republish-destination" in said


async def test_object_stores_are_edited_and_objects_replaced(shell, tmp_path):
    await shell.run("object add FILES --storage m")
    await shell.run("object edit FILES --ttl 1h --description mine --compress")
    config = (await shell.json("stream info OBJ_FILES"))["config"]
    assert (config["max_age"], config["description"], config["compression"]) == (3600 * 10**9, "mine", "s2")
    assert "nothing to change" in await shell.run("object edit FILES", status=EXIT_USAGE)
    file = tmp_path / "one.txt"
    file.write_text("content")
    await shell.run(f"object put FILES {file} --no-progress")
    _, asked = await shell.answer(f"object put FILES {file}", "n", status=EXIT_FAILED)
    assert "Replace FILES > one.txt?" in asked
    await shell.run(f"object put FILES {file} -f")
    assert "object store name is missing" in await shell.run("obj info", status=EXIT_USAGE)


async def test_a_service_is_served_and_asked(shell):
    serving = await shell.start("micro serve demo --count 2 -H Kind:test", b"Listening")
    assert await shell.run("micro req demo.echo hello") == "Kind: test\n\nhello\n"
    assert "demo" in await shell.run("micro ls")
    assert await shell.run("micro req demo.echo hello --raw") == "hello\n"
    assert await output_of(serving) == "Handling request on subject demo.echo\n" * 2
