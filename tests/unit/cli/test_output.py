"""How tables look: whole on a wide terminal, as blocks on a narrow one, line by line in a pipe."""

from __future__ import annotations

import io

import pytest

from jetlake.cli import output
from jetlake.cli.output import plural, print_facts, print_table
from jetlake.model.stream import ClusterInfo, PeerInfo

COLUMNS = ["Name", "Subjects", "Messages", "Last message"]
ROWS = [["ORDERS", "orders.new, orders.processed, orders.completed", "12,345", "2026-11-15 13:56:13"]]


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def shown(monkeypatch):
    def show(columns, rows=ROWS, term="xterm", **options):
        out = Terminal() if columns else io.StringIO()
        monkeypatch.setattr("sys.stdout", out)
        monkeypatch.delenv("NO_COLOR", raising=False)
        monkeypatch.setenv("TERM", term)
        monkeypatch.setenv("COLUMNS", str(columns or 80))
        print_table("Streams", COLUMNS, rows, numbers=[2], **options)
        return out.getvalue()

    return show


def test_a_terminal_folds_long_texts_and_nothing_else(shown):
    out = shown(80)
    assert "12,345" in out and "2026-11-15 13:56:13" in out
    assert "orders.new, orders.processed, orders.completed" not in out


def test_a_narrow_terminal_does_without_what_can_be_spared_and_says_so(shown):
    out = shown(40, spare=[1, 3])
    assert "ORDERS" in out and "12,345" in out and "2026-11-15" in out
    assert "orders.new" not in out
    assert "Hidden columns: Subjects\x1b" in out


def test_a_dumb_terminal_has_its_own_width(shown):
    out = shown(60, spare=[1], term="dumb")
    assert max(map(len, out.splitlines())) <= 60
    assert "No room" not in out


def test_a_very_narrow_terminal_gets_blocks(shown):
    assert shown(40).splitlines() == [
        "Streams",
        "",
        "ORDERS",
        "  Subjects      orders.new, orders.processed, orders.completed",
        "  Messages      12,345",
        "  Last message  2026-11-15 13:56:13",
    ]


def test_a_pipe_gets_one_line_a_row_without_blanks_at_its_end(shown):
    lines = shown(0).splitlines()
    assert [line for line in lines if ", ".join(["orders.new", "orders.processed", "orders.completed"]) in line]
    assert all(line == line.rstrip() for line in lines)


@pytest.mark.parametrize("columns", [0, 30, 200])
def test_texts_of_others_stay_on_their_line_and_write_nothing_to_the_terminal(shown, columns):
    out = shown(columns, [["a\nb", "\x1b]0;title\x07", "1", "\x9b31mred"]])
    assert "a\\nb" in out
    assert not {"\x07", "\x9b", "\x1b]"} & {*out, *(out[place : place + 2] for place in range(len(out)))}


def test_titles_and_keys_of_others_stay_on_their_line(capsys):
    print_facts("Service a\x1b[2J", {"Service": [("Metadata k\nv\x07", "1")]})
    assert capsys.readouterr().out == "Service a\\x1b[2J\n\nService:\n\n  Metadata k\\nv\\x07: 1\n"


def test_facts_of_others_stay_on_their_line(capsys):
    print_facts("Bucket", {"Configuration": [("Description", "a\nb\x1b[2J"), ("Replicas", 1)]})
    assert capsys.readouterr().out == ("Bucket\n\nConfiguration:\n\n  Description: a\\nb\\x1b[2J\n     Replicas: 1\n")


def test_one_is_not_many():
    assert (plural(1, "subject"), plural(0, "subject"), plural(2000, "subject")) == (
        "1 subject",
        "0 subjects",
        "2,000 subjects",
    )


def test_where_a_stream_is_in_its_cluster():
    replicas = (
        PeerInfo(name="n2", current=True, active=0),
        PeerInfo(name="n3", offline=True, active=2_000_000_000, lag=12),
    )
    assert output.cluster_facts(ClusterInfo(name="C", leader="n1", replicas=replicas)) == [
        ("Name", "C"),
        ("Leader", "n1"),
        ("Replica n2", "current, last contact 0.0s ago"),
        ("Replica n3", "offline, 12 operations behind, last contact 2.0s ago"),
    ]
    assert ("Leader", "none (election in progress)") in output.cluster_facts(ClusterInfo(name="C"))
    # A single server leads itself.
    assert output.cluster_facts(ClusterInfo(leader="alone")) == output.cluster_facts(None) == []
