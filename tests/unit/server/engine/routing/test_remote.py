"""Interest of other servers: one copy for each server, near members of groups first, nothing back to where it came."""

from collections import Counter
from random import Random

import pytest

from jetlake.model.subject_mapping import SubjectMapping
from jetlake.protocol.frames import AckRun
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.imports import AccountImports, StreamImport
from jetlake.server.engine.routing.remote import RemoteLink
from jetlake.server.engine.routing.subscription import Subscriber


class Link(RemoteLink):
    """A server that remembers what is forwarded to it."""

    def __init__(self):
        self.forwarded = []
        self.refuses = False
        self.congested = False

    def send(self, data):
        raise AssertionError("a link has no subscriptions")

    def forward(self, address, messages, queues):
        if self.refuses:
            return 0
        self.forwarded += [(address, *message, tuple(queues)) for message in messages]
        return len(messages)

    def take(self):
        taken, self.forwarded = self.forwarded, []
        return taken


class Client(Subscriber):
    def __init__(self, *, echo=True, no_responders=False):
        self.echo = echo
        self.no_responders = no_responders
        self.sent = []

    def send(self, data):
        self.sent.append(data)


class Gate:
    """JetStream that takes all acknowledgements."""

    def __init__(self):
        self.runs = 0

    def receive(self, *_):
        return True

    def receive_acks(self, *_):
        self.runs += 1
        return True

    def subjects(self):
        return []


@pytest.fixture
def account():
    return Account("$G", random=Random(7))


def test_overlapping_interest_of_one_server_is_one_copy(account):
    link = Link()
    for subject in (b"a.*", b"a.b", b">"):
        account.add_remote(subject, link, b"", 1)
    assert account.publish(b"a.b", b"r", b"", b"x") == 1
    assert link.take() == [(b"a.b", b"a.b", b"r", b"", b"x", ())]


def test_plain_interest_and_groups_share_the_copy(account):
    link = Link()
    account.add_remote(b"a", link, b"", 1)
    account.add_remote(b"a", link, b"q1", 2)
    account.add_remote(b"a", link, b"q2", 1)
    account.publish(b"a", b"", b"", b"x")
    assert [sorted(frame[5]) for frame in link.take()] == [[b"q1", b"q2"]]


def test_nothing_goes_back_to_where_it_came_from(account):
    here, there = Link(), Link()
    for link in (here, there):
        account.add_remote(b"a", link, b"", 1)
        account.add_remote(b"a", link, b"q", 1)
    here.groups = (b"q",)
    account.publish(b"a", b"", b"", b"x", here)
    assert here.take() == []
    assert [frame[5] for frame in there.take()] == [(b"q",)]


def test_near_members_go_first_and_far_ones_only_without_them(account):
    link, client = Link(), Client()
    account.add_remote(b"a", link, b"q", 5)
    near = account.subscribe(b"a", b"1", client, b"q")
    for _ in range(50):
        account.publish(b"a", b"", b"", b"x")
    assert len(client.sent) == 50
    assert link.take() == []
    account.unsubscribe(near)
    account.publish(b"a", b"", b"", b"x")
    assert [frame[5] for frame in link.take()] == [(b"q",)]


def test_a_group_whose_near_members_refuse_is_served_far(account):
    link, publisher = Link(), Client(echo=False)
    account.add_remote(b"a", link, b"q", 1)
    account.subscribe(b"a", b"1", publisher, b"q")
    assert account.publish(b"a", b"", b"", b"x", publisher) == 1
    assert [frame[5] for frame in link.take()] == [(b"q",)]


def test_a_message_from_a_server_reaches_only_the_groups_that_it_names(account):
    link, named, other, plain = Link(), Client(), Client(), Client()
    account.subscribe(b"a", b"1", named, b"q")
    account.subscribe(b"a", b"1", other, b"other")
    account.subscribe(b"a", b"1", plain)
    link.groups = (b"q", b"unknown")
    account.publish(b"a", b"", b"", b"x", link)
    assert (len(named.sent), len(other.sent), len(plain.sent)) == (1, 0, 1)
    link.groups = ()
    account.publish(b"a", b"", b"", b"x", link)
    assert (len(named.sent), len(other.sent), len(plain.sent)) == (1, 0, 2)


def test_servers_are_drawn_by_the_number_of_their_members(account):
    small, large = Link(), Link()
    account.add_remote(b"a", small, b"q", 1)
    account.add_remote(b"a", large, b"q", 9)
    for _ in range(500):
        account.publish(b"a", b"", b"", b"x")
    counts = Counter(small=len(small.take()), large=len(large.take()))
    assert counts.total() == 500
    assert 20 < counts["small"] < 100
    large.congested = True
    account.publish(b"a", b"", b"", b"x")
    assert len(small.take()) == 1


def test_runs_are_forwarded_whole_and_keep_their_subjects(account):
    link = Link()
    account.add_remote(b"_INBOX.x", link, b"", 1)
    run = [(b"s.%d" % n, b"$JS.ACK.%d" % n, b"", b"x") for n in range(3)]
    assert account.send_to(b"_INBOX.x", run) == 3
    assert [frame[:2] for frame in link.take()] == [(b"_INBOX.x", b"s.%d" % n) for n in range(3)]
    assert account.send_to(b"_INBOX.x", run, link) == 0


def test_interest_of_a_server_counts_as_interest(account):
    link = Link()
    changes = []
    account.watch_interest(b"d", lambda: changes.append(account.has_literal_interest(b"d")))
    remote = account.add_remote(b"d", link, b"", 1)
    group = account.add_remote(b"d", link, b"g", 1)
    assert account.has_literal_interest(b"d", b"g")
    link.congested = True
    assert account.route(b"d").congested
    account.remove_remote(remote)
    account.remove_remote(group)
    account.remove_remote(group)
    assert changes == [True, True, False, False]


def test_what_a_server_refuses_has_no_responders(account):
    link, client = Link(), Client(no_responders=True)
    link.refuses = True
    account.add_remote(b"a", link, b"", 1)
    account.subscribe(b"r", b"1", client)
    assert account.publish(b"a", b"r", b"", b"", client) == 0
    assert b"503" in client.sent[0]


def test_acks_stay_runs_while_servers_listen_elsewhere(account):
    account.js = gate = Gate()
    link = Link()
    run = AckRun(b"$JS.ACK.S.c.", [1], [1], b"PUB $JS.ACK.S.c.1.1.1.1.0 4\r\n+ACK\r\n")
    account.add_remote(b"$JS.hub.API.STREAM.>", link, b"", 1)
    account.add_remote(b"$JS.ACK.S.other.*.*.*.*.*", link, b"", 1)
    account.publish_acks(run, None)
    assert gate.runs == 1
    heard = account.add_remote(b"$JS.ACK.S.c.>", link, b"", 1)
    account.publish_acks(run, None)
    assert gate.runs == 1
    assert [frame[0] for frame in link.take()] == [b"$JS.ACK.S.c.1.1.1.1.0"]
    account.remove_remote(heard)
    account.publish_acks(run, None)
    assert gate.runs == 2


def test_a_stream_of_another_account_reaches_a_server_once(account):
    exporter, link, client = Account("B", random=Random(7)), Link(), Client()
    account.add_remote(b"b.*", link, b"", 1)
    account.add_remote(b"b.x", link, b"", 1)
    account.add_remote(b"b.>", link, b"q", 1)
    account.subscribe(b"b.x", b"1", client)
    AccountImports(account, [StreamImport(exporter, SubjectMapping("x", "b.x"))], [], lambda: 0, lambda *_: None)
    late = account.add_remote(b"*.x", link, b"", 1)
    exporter.publish(b"x", b"", b"", b"1")
    assert link.take() == [(b"b.x", b"b.x", b"", b"", b"1", (b"q",))]
    assert len(client.sent) == 1
    account.remove_remote(late)
    exporter.publish(b"x", b"", b"", b"2")
    assert len(link.take()) == 1


class Observer:
    def __init__(self):
        self.seen = []

    def added(self, subject, queue):
        self.seen.append((b"+", subject, queue))

    def removed(self, subject, queue):
        self.seen.append((b"-", subject, queue))


def test_an_observer_hears_of_all_interest_but_that_of_servers(account):
    account.observer = observer = Observer()
    account.add_remote(b"far", Link(), b"", 1)
    near = account.subscribe(b"near", b"1", Client(), b"q")
    capture = account.capture(b"stream.>", None)
    account.announce(b"$JS.ACK.S.c.>")
    account.unsubscribe(near)
    account.release(capture)
    account.retract(b"$JS.ACK.S.c.>")
    subjects = [(b"near", b"q"), (b"stream.>", b""), (b"$JS.ACK.S.c.>", b"")]
    assert observer.seen == [(sign, *subject) for sign in (b"+", b"-") for subject in subjects]
