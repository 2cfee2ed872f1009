"""Commands whose standard streams are closed, full, or in an encoding that lacks characters."""

from __future__ import annotations

import fcntl
import io
import json
import os
import subprocess
import sys
import termios
import time
from pathlib import Path

import pytest

from jetlake.cli import output
from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.message_content import bodies, value_of
from jetlake.cli.session import EXIT_USAGE, Session, guarded

COMMAND = f"{sys.executable} -c 'from jetlake.cli.main import main; raise SystemExit(main())'"


def shell(line):
    return subprocess.run(["sh", "-c", line], capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("line", "status", "error"),
    [
        ("--help >&-", 0, ""),
        ("stream rm A --server nats://127.0.0.1:1 <&-", 3, "jetlake: can't connect"),
        ("stream add A --server nats://127.0.0.1:1 <&- >&- 2>&-", 3, ""),
        ("--help >/dev/full", 1, "jetlake: [Errno 28] No space left on device\n"),
    ],
)
def test_closed_and_full_streams_cause_no_traceback(line, status, error):
    done = shell(f"{COMMAND} {line}")
    assert (done.returncode, done.stdout) == (status, "")
    assert done.stderr.startswith(error) and len(done.stderr.splitlines()) <= 1


def test_a_server_starts_with_all_three_closed(tmp_path):
    log = tmp_path / "log"
    stop = f"until grep -q ready {log}; do kill -0 $! || exit 9; sleep 0.1; done; kill $!; wait $!"
    done = shell(f"{COMMAND} serve -p -1 -sd {tmp_path / 'data'} -l {log} <&- >&- 2>&- & {stop}")
    assert done.returncode == 0, log.read_text()


def in_ascii(monkeypatch, show):
    written = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(written, encoding="ascii", write_through=True))
    show()
    return written.getvalue()


def test_a_table_has_its_rule_in_every_encoding(monkeypatch):
    shown = in_ascii(monkeypatch, lambda: output.print_table("Streams", ["Name"], [["A"]]))
    assert shown == b"Streams\n\n Name\n ----\n A\n\n"


def test_json_is_utf_8_in_every_locale(monkeypatch):
    shown = in_ascii(monkeypatch, lambda: output.print_json({"subject": "ü"}))
    assert json.loads(shown) == {"subject": "ü"}


async def test_bytes_that_are_no_text_are_published_as_they_are():
    typed = b"\xff{{Count}}".decode(errors="surrogateescape")
    assert [value_of(typed), *[body async for _, body in bodies(typed, 1, templates=True)]] == [
        b"\xff{{Count}}",
        b"\xff1",
    ]


def test_a_name_that_is_no_text_is_refused(capsys):
    with pytest.raises(SystemExit) as ended:
        guarded(lambda: "A\udcff".encode(), Session({}, context=None))
    assert ended.value.code == EXIT_USAGE
    assert capsys.readouterr().err == "jetlake: an argument is not valid UTF-8: 'A\\udcff'\n"


def test_ctrl_c_ends_a_question():
    leader, follower = os.openpty()
    process = subprocess.Popen(
        [sys.executable, "-c", "from jetlake.cli.main import main; raise SystemExit(main())", "stream", "add"],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    os.close(follower)
    try:
        shown = b""
        while b"Stream name:" not in shown:
            shown += os.read(leader, 1024)
        while Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[0] != "S":
            time.sleep(0.01)  # An interrupt just before `input` sleeps would wait for the next key.
        os.write(leader, b"\x03")
        assert process.wait(20) == EXIT_INTERRUPTED
    finally:
        process.kill()
        process.wait()
        os.close(leader)
