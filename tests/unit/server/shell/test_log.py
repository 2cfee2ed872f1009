"""Log lines: their form, their file, and what happens when it is moved or grows."""

import logging
import os
import re

from jetlake.server.shell.log import LineLog, LoggerLog

LINE = re.compile(r"\[(\d+)\] \d{4}/\d\d/\d\d \d\d:\d\d:\d\d\.\d{6} \[(\w{3})\] (.*)")


def test_the_form_of_a_line(tmp_path):
    log = LineLog(str(tmp_path / "log"), debugging=True)
    log.info("hello")
    log.warn("careful")
    log.error("oh")
    log.fatal("no")
    log.debug("detail")
    log.trace("not wanted")
    log.close()
    lines = [LINE.fullmatch(line).groups() for line in (tmp_path / "log").read_text().splitlines()]
    pid = str(os.getpid())
    assert lines == [
        (pid, "INF", "hello"),
        (pid, "WRN", "careful"),
        (pid, "ERR", "oh"),
        (pid, "FTL", "no"),
        (pid, "DBG", "detail"),
    ]


def test_control_characters_do_not_reach_the_terminal(tmp_path):
    log = LineLog(str(tmp_path / "log"), time_stamps=False)
    log.error("a\x1b[31mred\x9b\r\x7f\tb")
    log.close()
    assert (tmp_path / "log").read_text().endswith("[ERR] a\\x1b[31mred\\x9b\\x0d\\x7f\tb\n")


def test_no_text_forges_a_line(tmp_path):
    log = LineLog(str(tmp_path / "log"))
    log.error("a gateway named x\n[1] 2026/01/01 00:00:00.000000 [INF] all is well")
    log.close()
    assert len([line for line in (tmp_path / "log").read_text().splitlines() if LINE.match(line)]) == 1


def test_without_time_and_without_details(tmp_path):
    log = LineLog(str(tmp_path / "log"), time_stamps=False, tracing=True)
    log.debug("not wanted")
    log.trace("frame")
    log.close()
    assert (tmp_path / "log").read_text() == f"[{os.getpid()}] [TRC] frame\n"


def test_standard_error_is_the_default(capsys):
    LineLog().info("there")
    assert "[INF] there" in capsys.readouterr().err


def test_reopening_begins_a_new_file(tmp_path):
    path = tmp_path / "log"
    log = LineLog(str(path), utc=True)
    log.info("first")
    path.rename(tmp_path / "old")
    log.info("still in the old one")
    log.reopen()
    log.info("second")
    log.close()
    assert (tmp_path / "old").read_text().count("\n") == 2
    assert "second" in path.read_text()


def test_a_full_file_is_moved_aside(tmp_path):
    log = LineLog(str(tmp_path / "log"), size_limit=200)
    for number in range(20):
        log.info(f"line {number}")
    log.close()
    files = sorted(tmp_path.iterdir())
    assert len(files) > 2
    text = "".join(path.read_text() for path in files)
    assert all(f"line {number}\n" in text for number in range(20))
    assert all(path.stat().st_size < 300 for path in files)


def test_a_closed_log_is_silent(tmp_path):
    log = LineLog(str(tmp_path / "log"))
    log.close()
    log.info("nobody hears this")


def test_records_for_logging(caplog):
    with caplog.at_level(logging.DEBUG, "jetlake.server"):
        log = LoggerLog(debugging=True)
        log.info("hello %s")
        log.error("bad")
        log.debug("detail")
    assert [(record.levelname, record.getMessage()) for record in caplog.records] == [
        ("INFO", "hello %s"),
        ("ERROR", "bad"),
        ("DEBUG", "detail"),
    ]
