"""What somebody types who only knows `nats`: each line is taken, on both servers."""

from __future__ import annotations

from tests.support.command_shell import Shell

_CONFIG = """
accounts {
  $SYS { users: [ { user: sys, password: sys } ] }
  A { jetstream: enabled, users: [ { user: a, password: a } ] }
}
no_auth_user: a
jetstream { store_dir: "STORE_DIR" }
"""

_TYPED = r"""
str add ORD --subjects ord.> --storage file --replicas 1 --retention limits --discard old --max-msgs -1 \
   --max-msgs-per-subject -1 --max-bytes -1 --max-age 1y --max-msg-size -1 --dupe-window 2m --no-allow-rollup \
   --no-deny-delete --no-deny-purge
stream ls -a
stream ls -n
str info ORD -j
stream report
pub ord.new 'hello {{Count}} {{ Random 3 5 }}' --count=5
publish ord.new x -H Nats-Msg-Id:1
sub ord.> --last --count=1
subscribe 'ord.>' --stream ORD --start-sequence=2 --count 1
sub ord.> --all --count=1 -r
sub ord.> --new --wait=100ms
con add ORD C1 --pull --deliver=all --ack=explicit --max-deliver=-1 --filter='' --replay=instant \
   --max-pending=0 --no-headers-only --defaults
consumer add ORD C2 --pull --defaults
con ls ORD
con info ORD C1
con next ORD C1 --count=2 --ack
c next ORD C1 --no-ack --wait 1s
con report ORD
con pause ORD C1 1h -f
con resume ORD C1 -f
con edit ORD C1 --max-deliver=5 -f
con rm ORD C2 -f
stream view ORD 2
stream get ORD 1
str get ORD -S ord.new
stream subjects ORD
stream state ORD
stream find --empty
stream purge ORD --subject=ord.x -f
stream rmm ORD 1 -f
stream gaps ORD -f
stream edit ORD --max-age=2h --dry-run
stream edit ORD --description=x -f
stream cp ORD ORD2 --subjects=ord2.>
stream backup ORD b1
stream rm ORD2 --force
kv add CFG --history=5 --ttl=1h
kv put CFG a 1
kv get CFG a --raw
kv create CFG b 2
kv update CFG b 3 2
kv del CFG b --force
kv ls
kv ls CFG -v
kv history CFG a
kv status CFG
kv watch CFG a --count 1
kv compact CFG -f
kv rm CFG -f
obj add FILES
obj put FILES f.txt
obj ls FILES
obj get FILES f.txt --output=o.txt
obj info FILES f.txt
obj rm FILES f.txt -f
obj del FILES -f
server info
server ls --user sys --password sys
server ping --user sys --password sys
server report conns --user sys --password sys
server report jsz --user sys --password sys
server req varz --user sys --password sys
srv check conn --connect-warn=5s --connect-critical=6s
server check js
server check stream --stream=ORD
server passwd -g
account info
a report conns
rtt
bench pub x --msgs=100 --size=16B --no-progress
bench js pub sync ord.b --stream ORD --msgs 10
ctx ls
ctx save x --description y
ctx info x
ctx rm x -f
micro ls
ctx add z --description y
ctx copy z y
ctx edit y --help
a tls --help
audit checks
auth operator add own
auth operator ls
auth account add shop
auth account ls
auth user add ann shop
auth nkey gen user
bench kv put --msgs 10 --no-progress
bench kv get --msgs 10 --no-progress
bench js consume --stream ORD --msgs 5 --no-progress
bench js get sync --stream ORD --msgs 5 --no-progress
con add ORD C3 --pull --backoff linear --backoff-steps 3 --backoff-min 1s --backoff-max 1m --max-deliver 5 --defaults
con cp ORD C1 C4 --filter ord.x
con find ORD --pull
con state ORD C1
con graph ORD C1 --count 1 --json
con reset ORD C1 -f
stream find --expression 'info.state.messages > 1'
stream graph ORD --count 1 --json
stream seal ORD -f
help
help stream add
rtt 3
server passwd --pass secret
server watch api --count 1 --interval 100ms
errors lookup 10059
err ls stream
cheat stream
sub -q grp ord.new --wait 50ms
sub ord2.> --stream ORD --direct -T --raw
sub --stream ORD --since 1h --headers-only -T
sub 'ord.>' --report-subjects --report-top 20 --wait 50ms
stream add NEWER --subjects ord2.> --defaults
pub -q ord2.x body
pub ord2.x 'hello {{.Count}} @ {{.TimeStamp}}' --count=2 -J
pub ord2.x -J -H Nats-Msg-Id:{{ID}} body
events --all --short --help
top --help
schema search stream
schema info io.nats.jetstream.api.v1.stream_configuration
stream info ORD --trace
stream find --created 0s
stream report --consumers
stream view ORD --id 2
stream view ORD --since 1h --raw
stream get ORD --last-for ord.new
stream ls --json
con find ORD --offline
con ls ORD -n
con report ORD --raw
server report connz --sort in-msgs --top 10 --user sys --password sys
server report accounts --user sys --password sys
server report health --user sys --password sys
server report jetstream --sort=cluster --no-compact --user sys --password sys
server check msg --stream ORD --subject ord.b --age-warn 1m
server mappings a.* b.{{wildcard(1)}} a.x
bench js ordered --stream ORD --msgs 5 --batch 10 --no-progress
trace ord3.new hello
"""


async def test_lines_of_somebody_who_only_knows_nats(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.txt").write_text("hello")
    shell = Shell((await start(_CONFIG)).url)
    lines = _TYPED.strip().replace("\\\n", "").splitlines()
    assert len(lines) > 90
    for line in lines:
        await shell.run(line)
    await shell.run("obj add UP")
    await shell.run("obj put UP --name stdin", stdin="content")
    assert await shell.run("obj get UP stdin --output -") == "content"


async def test_what_can_not_work_is_answered_with_what_to_do(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    shell = Shell((await start(_CONFIG)).url)
    for line, status, said in (
        ("auth user info ann", 2, "'auth user info' is not here. List: jetlake auth ls"),
        ("auth operator rm x", 2, "'auth operator rm' is not here"),
        ("bench service request nobody --msgs 3 --no-progress", 1, "no responders on 'nobody'"),
        ("obj put F", 2, "name a file; standard input needs --name"),
        ("help strem", 2, "Did you mean 'stream'?"),
        ("kv get NOPE k", 1, "bucket NOPE not found"),
        ("str info NOPE", 1, "List them: jetlake stream ls"),
        ("str view", 2, "stream name is missing. List streams: jetlake stream ls"),
        ("con next", 2, "stream name is missing. List streams: jetlake stream ls"),
        ("con sub", 2, "stream name is missing. List streams: jetlake stream ls"),
        ("con next NOPE C", 1, "stream NOPE not found"),
        ("server ls", 1, "needs a user of the system account"),
        ("ctx select nope", 2, "context 'nope' not found"),
    ):
        process = await shell.start(line, b"")
        out, err = await process.communicate()
        text = (out + err).decode()
        assert process.returncode == status, (line, text)
        assert said in " ".join(text.split()) and "Traceback" not in text, (line, text)
