"""Which server is tried next, and after which wait."""

from random import Random

import pytest

from jetlake.client.connection.server_pool import ServerPool, backoff_s
from jetlake.client.settings.options import Backoff
from jetlake.client.settings.server_address import parse_address, parse_addresses

A, B, C = parse_addresses("a,b,c")
STEADY = Backoff(first_s=1, factor=2, max_s=10, jitter=0)


def pool(*addresses, attempts_max=None, backoff=STEADY, shuffle=False):
    return ServerPool(addresses, attempts_max=attempts_max, backoff=backoff, random=Random(1), shuffle=shuffle)


def attempts(servers, count):
    found = []
    for _ in range(count):
        attempt = servers.next_attempt()
        found.append((attempt.address.host, attempt.wait_s))
        servers.failed(attempt.address, "refused")
    return found


def test_one_round_without_waiting_then_longer_and_longer_waits():
    assert attempts(pool(A, B), 9) == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 0),
        ("a", 2),
        ("b", 0),
        ("a", 4),
        ("b", 0),
        ("a", 8),
    ]


def test_other_servers_take_the_place_of_those_that_were_known():
    servers = pool(A, B, attempts_max=2)
    servers.failed(servers.next_attempt().address, "away")
    servers.replace([B, C])
    assert [one.host for one in servers.addresses] == ["b", "c"]
    assert [servers.next_attempt().address.host for _ in range(2)] == ["b", "c"]
    assert servers.failures == {}


def test_waits_have_a_bound():
    assert [wait for _, wait in attempts(pool(A), 8)] == [0, 1, 2, 4, 8, 10, 10, 10]


def test_jitter_only_shortens_a_wait_by_its_share():
    backoff = Backoff(first_s=1, max_s=10, jitter=0.5)
    random = Random(7)
    waits = {backoff_s(backoff, 3, random) for _ in range(200)}
    assert len(waits) > 100
    assert 2 <= min(waits) < 2.2
    assert 3.8 < max(waits) <= 4


def test_a_thousand_rounds_do_not_overflow():
    assert backoff_s(Backoff(first_s=1, max_s=10, jitter=0), 100_000, Random()) == 10


def test_a_connection_that_lasted_starts_the_waits_anew():
    servers = pool(A, B)
    attempts(servers, 4)
    servers.connected(A)
    servers.lost(A, lasted=True)
    assert attempts(servers, 3) == [("b", 0), ("a", 0), ("b", 1)]


def test_a_handshake_alone_does_not_start_the_waits_anew():
    servers = pool(A)
    waits = []
    for _ in range(6):
        waits.append(servers.next_attempt().wait_s)
        servers.connected(A)
        servers.lost(A, lasted=False)
    assert waits == [0, 1, 2, 4, 8, 10]


def test_the_server_that_was_lost_is_tried_last():
    servers = pool(A, B, C)
    assert servers.next_attempt().address == A
    servers.connected(A)
    servers.lost(A, lasted=True)
    assert [host for host, _ in attempts(servers, 3)] == ["b", "c", "a"]


def test_a_server_is_given_up_after_its_attempts():
    servers = pool(A, B, attempts_max=2)
    assert [host for host, _ in attempts(servers, 4)] == ["a", "b", "a", "b"]
    assert servers.next_attempt() is None
    assert servers.failures == {"nats://a:4222": "refused", "nats://b:4222": "refused"}


def test_a_server_that_refuses_us_twice_is_given_up():
    servers = pool(A, B)
    for _ in range(2):
        servers.failed(A, "who are you", authorization=True)
    assert servers.addresses == [B]
    servers.failed(B, "who are you", authorization=True)
    servers.connected(B)
    servers.failed(B, "who are you", authorization=True)
    assert servers.addresses == [B]


def test_discovery_adds_forgets_and_keeps():
    servers = pool(A)
    servers.next_attempt()
    servers.connected(A)
    assert [str(one) for one in servers.discovered(["b:4222", "a:4222", "not an address:x"], tls=False)] == [
        "nats://b:4222"
    ]
    assert [one.host for one in servers.addresses] == ["b", "a"]
    assert [one.host for one in servers.discovered(["c:4222"], tls=True)] == ["c"]
    assert [str(one) for one in servers.addresses] == ["tls://c:4222", "nats://a:4222"]
    servers.lost(A, lasted=True)
    assert servers.next_attempt().address.host == "c"
    assert [str(one) for one in servers.discovered(["d:80"], tls=False, websocket=True)] == ["ws://d:80"]


def test_the_order_is_shuffled_by_the_given_randomness():
    many = parse_addresses([f"h{number}" for number in range(10)])
    orders = {tuple(ServerPool(many, attempts_max=None, backoff=STEADY, random=Random(n)).addresses) for n in range(20)}
    assert len(orders) > 10


def test_failures_of_an_unknown_server_do_not_matter():
    servers = pool(A)
    servers.failed(parse_address("z"), "refused")
    servers.lost(parse_address("z"), lasted=True)
    assert servers.addresses == [A]


@pytest.mark.parametrize("count", [1, 2, 5])
def test_every_server_has_its_turn_in_every_round(count):
    addresses = parse_addresses([f"h{number}" for number in range(count)])
    servers = pool(*addresses)
    for _ in range(4):
        assert {host for host, _ in attempts(servers, count)} == {f"h{number}" for number in range(count)}


def test_a_callback_chooses_the_next_server(caplog):
    asked = []

    def choose(names):
        asked.append(names)
        return {1: "nats://c:4222", 2: None, 3: "nats://nobody:4222"}[len(asked)]

    servers = ServerPool([A, B, C], attempts_max=None, backoff=STEADY, random=Random(1), shuffle=False, choose=choose)
    assert [servers.next_attempt().address.host for _ in range(3)] == ["c", "a", "b"]
    assert asked[0] == ["nats://a:4222", "nats://b:4222", "nats://c:4222"]
    assert "nobody" in caplog.text
    # One that raises leaves the order too.
    assert servers.next_attempt().address.host == "c"
    assert "choose_server failed" in caplog.text
