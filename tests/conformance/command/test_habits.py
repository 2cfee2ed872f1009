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
errors lookup 10059
err ls stream
cheat stream
"""


async def test_lines_of_somebody_who_only_knows_nats(start, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    (tmp_path / "f.txt").write_text("hello")
    shell = Shell((await start(_CONFIG)).url)
    lines = _TYPED.strip().replace("\\\n", "").splitlines()
    assert len(lines) > 60
    for line in lines:
        await shell.run(line)
