"""The tables of servers and of the connections between them."""

from __future__ import annotations

import pytest

from jetlake.cli.commands.server_reports import _SORT_KEYS, _gateways, _is_wanted, _leafs
from jetlake.cli.commands.servers import shown_names


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        (["n1.eu.example.net", "n2.eu.example.net"], ["n1", "n2"]),
        (["n1.eu.example.net", "n1.us.example.net"], ["n1.eu", "n1.us"]),
        (["a.net", "net"], ["a.net", "net"]),
        (["same.net", "same.net"], ["same", "same"]),
        (["alone.example.net"], ["alone.example.net"]),
        ([], []),
    ],
)
def test_names_leave_out_the_domain_that_all_share(names, shown):
    answers = [{"server": {"name": name}} for name in names]
    assert shown_names(answers, True) == shown
    assert shown_names(answers, False) == names


def test_connections_between_servers_are_filtered_and_sorted():
    one, two = {"account": "A", "in_bytes": 1, "name": "x"}, {"account": "B", "in_bytes": 2, "name": "y"}
    links = [("here", *link) for link in _leafs({"leafs": [one, two]})]
    assert sorted(links, key=_SORT_KEYS["in-bytes"]) == [("here", "y", two), ("here", "x", one)]
    assert [link[1] for link in links if _is_wanted("LEAFZ", "B", *link)] == ["y"]
    both = {"outbound_gateways": {"EU": {"connection": {}}}, "inbound_gateways": {"US": [{"connection": {}}]}}
    gateways = [("here", *link) for link in _gateways(both)]
    assert [link[1] for link in gateways if _is_wanted("GATEWAYZ", "US", *link)] == ["US (in)"]
