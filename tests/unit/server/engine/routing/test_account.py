"""Routing within an account: who gets which bytes, and what the caller learns."""

from collections import Counter
from random import Random

import pytest

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber


class Peer(Subscriber):
    def __init__(self, *, headers=True, echo=True, no_responders=False):
        self.headers = headers
        self.echo = echo
        self.no_responders = no_responders
        self.congested = False
        self.closed = False
        self.sent = []

    def send(self, data):
        self.sent.append(data)

    def take(self):
        data = b"".join(self.sent)
        self.sent.clear()
        return data


class Stream:
    def __init__(self):
        self.received = []

    def receive(self, subject, reply, header, payload, origin):
        self.received.append((subject, reply, header, payload, origin))


@pytest.fixture
def account():
    return Account("$G", random=Random(7))


def test_a_message_reaches_literal_and_wildcard_subscriptions(account):
    peer = Peer()
    for sid, subject in enumerate((b"a.b", b"a.*", b">", b"b.>")):
        account.subscribe(subject, b"%d" % sid, peer)
    assert account.publish(b"a.b", b"r", b"", b"hi") == 3
    assert sorted(peer.sent) == [b"MSG a.b %d r 2\r\nhi\r\n" % sid for sid in (0, 1, 2)]
    assert account.publish(b"c", b"", b"", b"") == 1


def test_headers_are_stripped_for_whom_they_would_confuse(account):
    modern, plain = Peer(), Peer(headers=False)
    account.subscribe(b"x", b"1", modern)
    account.subscribe(b"x", b"2", plain)
    account.publish(b"x", b"", b"NATS/1.0\r\nA: b\r\n\r\n", b"body")
    assert modern.take() == b"HMSG x 1 18 22\r\nNATS/1.0\r\nA: b\r\n\r\nbody\r\n"
    assert plain.take() == b"MSG x 2 4\r\nbody\r\n"


def test_a_bad_subject_is_refused(account):
    for subject in (b"", b"a..b", b".a", b"a.", b"a.>.b"):
        assert account.subscribe(subject, b"1", Peer()) is None
    assert account.interest_count == 0


def test_routes_follow_every_change(account):
    peer = Peer()
    assert account.publish(b"a.b", b"", b"", b"") == 0
    literal = account.subscribe(b"a.b", b"1", peer)
    assert account.publish(b"a.b", b"", b"", b"") == 1
    wild = account.subscribe(b"a.*", b"2", peer)
    assert account.publish(b"a.b", b"", b"", b"") == 2
    assert account.publish(b"a.c", b"", b"", b"") == 1
    account.unsubscribe(literal)
    assert account.publish(b"a.b", b"", b"", b"") == 1
    account.unsubscribe(wild)
    account.unsubscribe(wild)
    assert account.publish(b"a.b", b"", b"", b"") == 0
    assert account.publish(b"a.c", b"", b"", b"") == 0
    assert account.interest_count == 0


def test_unique_replies_do_not_fill_the_table(account):
    peer = Peer()
    account.subscribe(b"_INBOX.abc.*", b"1", peer)
    for number in range(20_000):
        assert account.publish(b"_INBOX.abc.%d" % number, b"", b"", b"") == 1
    assert account.cached_routes == 1
    for number in range(20_000):
        account.publish(b"ids.%d.created" % number, b"", b"", b"")
        account.publish(b"id%d" % number, b"", b"", b"")
    assert account.cached_routes <= 2 * 8192


def test_a_literal_beside_a_wildcard_keeps_its_own_route(account):
    peer = Peer()
    account.subscribe(b"orders.*", b"1", peer)
    account.subscribe(b"orders.new", b"2", peer)
    assert account.publish(b"orders.1", b"", b"", b"") == 1
    assert account.publish(b"orders.new", b"", b"", b"") == 2
    assert account.publish(b"orders.", b"", b"", b"") == 0
    account.subscribe(b"orders.1", b"3", peer)
    assert account.publish(b"orders.1", b"", b"", b"") == 2


def test_one_member_of_each_group_gets_the_message(account):
    peers = [Peer() for _ in range(3)]
    for peer in peers:
        account.subscribe(b"work", b"1", peer, queue=b"workers")
    audit = Peer()
    account.subscribe(b"work", b"9", audit)
    for _ in range(300):
        assert account.publish(b"work", b"", b"", b"") == 2
    counts = [len(peer.sent) for peer in peers]
    assert sum(counts) == 300
    assert min(counts) > 60
    assert len(audit.sent) == 300


def test_a_group_prefers_members_that_keep_up(account):
    slow, quick, gone = Peer(), Peer(), Peer()
    slow.congested, gone.closed = True, True
    for peer in (slow, quick, gone):
        account.subscribe(b"work", b"1", peer, queue=b"q")
    for _ in range(50):
        account.publish(b"work", b"", b"", b"")
    assert (len(slow.sent), len(quick.sent), len(gone.sent)) == (0, 50, 0)
    quick.congested = True
    account.publish(b"work", b"", b"", b"")
    assert len(slow.sent) + len(quick.sent) == 51


def test_without_echo_nothing_comes_back(account):
    peer = Peer(echo=False)
    account.subscribe(b"x", b"1", peer)
    account.subscribe(b"x", b"2", peer, queue=b"q")
    assert account.publish(b"x", b"", b"", b"", peer) == 0
    assert account.publish(b"x", b"", b"", b"", Peer()) == 2


def test_a_subscription_ends_with_its_maximum(account):
    peer, ended = Peer(), []
    subscription = account.subscribe(b"x", b"1", peer)
    subscription.on_end = ended.append
    account.publish(b"x", b"", b"", b"")
    account.unsubscribe(subscription, 3)
    recipients = [account.publish(b"x", b"", b"", b"") for _ in range(4)]
    assert recipients == [1, 1, 0, 0]
    assert ended == [subscription]
    late = account.subscribe(b"x", b"2", peer)
    account.publish(b"x", b"", b"", b"")
    account.unsubscribe(late, 1)
    assert account.interest_count == 0


def test_denied_subjects_are_not_delivered(account):
    peer = Peer()
    subscription = account.subscribe(b"a.*", b"1", peer)
    subscription.admits = lambda subject, reply: subject != b"a.secret"
    assert account.publish(b"a.secret", b"", b"", b"") == 0
    assert account.publish(b"a.open", b"", b"", b"") == 1
    assert account.send_to(b"a.x", [(b"a.secret", b"", b"", b""), (b"a.ok", b"", b"", b"")]) == 1
    assert b"secret" not in peer.take()


def test_the_503_goes_to_the_requester_alone(account):
    requester = Peer(no_responders=True)
    account.subscribe(b"_INBOX.1.*", b"5", requester)
    assert account.publish(b"nobody", b"_INBOX.1.x", b"", b"", requester) == 0
    header = b"NATS/1.0 503\r\nNats-Subject: nobody\r\n\r\n"
    assert requester.take() == b"HMSG _INBOX.1.x 5 %d %d\r\n%b\r\n" % (len(header), len(header), header)
    account.publish(b"nobody", b"elsewhere.x", b"", b"", requester)
    account.publish(b"nobody", b"", b"", b"", requester)
    account.publish(b"nobody", b"_INBOX.1.x", b"", b"", Peer(no_responders=True))
    account.publish(b"nobody", b"_INBOX.1.x", b"", b"", Peer())
    assert requester.take() == b""


def test_listeners_are_takers_unless_they_decline(account):
    calls = []

    def handler(subject, reply, header, payload, origin):
        calls.append((subject, payload))
        return False if payload == b"no" else None

    listener = account.listen(b"svc.>", handler)
    grouped = account.listen(b"svc.>", handler, queue=b"q")
    assert account.publish(b"svc.a", b"", b"", b"yes") == 2
    assert account.publish(b"svc.a", b"", b"", b"no") == 0
    account.unlisten(listener)
    account.unlisten(grouped)
    assert account.publish(b"svc.a", b"", b"", b"yes") == 0
    assert Counter(calls) == {(b"svc.a", b"yes"): 2, (b"svc.a", b"no"): 2}


def test_a_stream_with_overlapping_captures_takes_a_message_once(account):
    stream, origin = Stream(), Peer()
    first = account.capture(b"s.>", stream)
    account.capture(b"*.x", stream)
    assert account.publish(b"s.x", b"r", b"", b"1", origin) == 1
    assert stream.received == [(b"s.x", b"r", b"", b"1", origin)]
    account.release(first)
    assert account.publish(b"s.y", b"", b"", b"") == 0
    assert account.publish(b"t.x", b"", b"", b"") == 1


class Gate:
    def __init__(self, answer=True):
        self.answer = answer
        self.received = []

    def receive(self, subject, reply, header, payload, origin):
        self.received.append(subject)
        return self.answer


def test_jetstream_subjects_go_to_jetstream_and_are_never_cached(account):
    account.js = gate = Gate()
    for subject in (b"$JS.ACK.S.C.1.1.1.1.0", b"$JS.API.INFO", b"$JS.hub.API.INFO", b"$JS.FC.S.C.x"):
        assert account.publish(subject, b"", b"", b"") == 1
    assert len(gate.received) == 4
    assert account.cached_routes == 0
    assert account.publish(b"$JS.EVENT.ADVISORY.API", b"", b"", b"") == 0
    assert len(gate.received) == 4


def test_who_listens_to_everything_hears_jetstream_too(account):
    account.js = Gate()
    peer = Peer()
    wild = account.subscribe(b">", b"1", peer)
    assert account.publish(b"$JS.ACK.x", b"", b"", b"") == 2
    account.unsubscribe(wild)
    assert account.publish(b"$JS.ACK.x", b"", b"", b"") == 1
    account.subscribe(b"$JS.ACK.>", b"2", peer)
    assert account.publish(b"$JS.ACK.y", b"", b"", b"") == 2


def test_what_jetstream_does_not_know_has_no_responders(account):
    account.js = Gate(answer=False)
    requester = Peer(no_responders=True)
    account.subscribe(b"_INBOX.1.*", b"5", requester)
    assert account.publish(b"$JS.ACK.x", b"_INBOX.1.x", b"", b"", requester) == 0
    assert b"NATS/1.0 503" in requester.take()


def test_send_to_keeps_the_messages_own_subjects(account):
    peer = Peer()
    account.subscribe(b"_INBOX.1", b"7", peer)
    run = [
        (b"orders.1", b"ack.1", b"", b"one"),
        (b"orders.2", b"", b"NATS/1.0\r\n\r\n", b"two"),
        (b"orders.3", b"ack.3", b"NATS/1.0\r\n\r\n", b""),
        (b"orders.4", b"", b"", b""),
    ]
    assert account.send_to(b"_INBOX.1", run) == 4
    assert peer.sent == [
        b"MSG orders.1 7 ack.1 3\r\none\r\n"
        b"HMSG orders.2 7 12 15\r\nNATS/1.0\r\n\r\ntwo\r\n"
        b"HMSG orders.3 7 ack.3 12 12\r\nNATS/1.0\r\n\r\n\r\n"
        b"MSG orders.4 7 0\r\n\r\n"
    ]
    assert account.send_to(b"_INBOX.2", run) == 0


class Run:
    """Two messages, as a run that notes for whom it was encoded."""

    encoded: list[tuple[bytes, bool]] = []

    def messages(self):
        return [(b"s.1", b"", b"", b"one"), (b"s.2", b"", b"", b"two")]

    def encode(self, sid, *, headers):
        self.encoded = [*self.encoded, (sid, headers)]
        return b"firstsecond", 2, 6


def test_a_run_is_encoded_for_a_lone_subscription_and_counted(account):
    peer, run = Peer(), Run()
    subscription = account.subscribe(b"in", b"7", peer)
    account.send_run_to(b"in", run)
    assert (peer.take(), run.encoded) == (b"firstsecond", [(b"7", True)])
    assert (subscription.delivered, peer.out_msgs, peer.out_bytes) == (2, 2, 6)


def test_a_run_goes_message_by_message_where_one_may_be_left_out_or_several_listen(account):
    run, ending, permitted = Run(), Peer(), Peer()
    account.unsubscribe(account.subscribe(b"ending", b"1", ending), 1)
    account.send_run_to(b"ending", run)
    assert ending.take() == b"MSG s.1 1 3\r\none\r\n"
    account.subscribe(b"permitted", b"2", permitted).admits = lambda subject, _reply: subject == b"s.2"
    account.send_run_to(b"permitted", run)
    assert permitted.take() == b"MSG s.2 2 3\r\ntwo\r\n"
    account.subscribe(b"permitted", b"3", ending)
    account.send_run_to(b"permitted", run)
    assert ending.take().count(b"MSG") == 2
    account.send_run_to(b"nowhere", run)
    assert not run.encoded


def test_send_to_says_how_many_a_subscription_near_its_end_took(account):
    peer = Peer()
    subscription = account.subscribe(b"in", b"1", peer)
    account.unsubscribe(subscription, 2)
    run = [(b"s", b"", b"", b"%d" % number) for number in range(5)]
    assert account.send_to(b"in", run) == 2
    assert account.send_to(b"in", run) == 0
    assert peer.take().count(b"MSG") == 2


def test_send_to_serves_groups_copies_listeners_and_streams(account):
    members, copy, stream, heard = [Peer(), Peer()], Peer(headers=False), Stream(), []
    for peer in members:
        account.subscribe(b"push", b"1", peer, queue=b"g")
    account.subscribe(b"push", b"2", copy)
    account.capture(b"push", stream)
    account.listen(b"push", lambda *arguments: heard.append(arguments[0]))
    run = [(b"s.%d" % number, b"", b"NATS/1.0\r\n\r\n", b"x") for number in range(40)]
    assert account.send_to(b"push", run) == 40
    assert [len(peer.sent) for peer in members] != [40, 0]
    assert sum(len(peer.sent) for peer in members) == 40
    assert copy.take().startswith(b"MSG s.0 2 1\r\nx\r\n")
    assert len(stream.received) == len(heard) == 40


def test_answers_to_one_inbox_leave_in_one_piece(account):
    first, second = Peer(), Peer()
    account.subscribe(b"_INBOX.1.*", b"1", first)
    account.subscribe(b"_INBOX.2.*", b"2", second)
    account.subscribe(b"lone", b"3", second)
    account.answer(
        [(b"_INBOX.1.a", b"A"), (b"_INBOX.1.b", b"B"), (b"_INBOX.2.c", b"C"), (b"lone", b"D"), (b"x.y", b"")]
    )
    assert first.sent == [b"MSG _INBOX.1.a 1 1\r\nA\r\nMSG _INBOX.1.b 1 1\r\nB\r\n"]
    assert second.sent == [b"MSG _INBOX.2.c 2 1\r\nC\r\n", b"MSG lone 3 1\r\nD\r\n"]


def test_an_answer_ends_a_subscription_that_waits_for_one(account):
    peer = Peer()
    account.unsubscribe(account.subscribe(b"_INBOX.1.*", b"1", peer), 1)
    account.answer([(b"_INBOX.1.a", b"A"), (b"_INBOX.1.b", b"B")])
    assert peer.sent == [b"MSG _INBOX.1.a 1 1\r\nA\r\n"]


def test_watches_hear_of_changes_that_concern_them(account):
    calls = []
    watch = account.watch_interest(b"push.1", lambda: calls.append(account.has_interest(b"push.1")))
    literal = account.subscribe(b"push.1", b"1", Peer())
    account.subscribe(b"push.2", b"1", Peer())
    wild = account.subscribe(b"push.*", b"2", Peer())
    account.subscribe(b"other.*", b"3", Peer())
    account.unsubscribe(literal)
    account.unsubscribe(wild)
    assert calls == [True, True, True, False]
    account.unwatch(watch)
    account.unwatch(watch)
    account.subscribe(b"push.1", b"1", Peer())
    assert len(calls) == 4


def test_interest_and_congestion_are_seen_in_the_route(account):
    peer, other = Peer(), Peer()
    assert not account.has_interest(b"x")
    account.subscribe(b"x", b"1", peer, queue=b"q")
    account.subscribe(b"x", b"1", other, queue=b"q")
    assert account.has_interest(b"x")
    assert account.has_literal_interest(b"x", b"q")
    assert not account.has_literal_interest(b"x", b"r")
    peer.congested = True
    assert not account.route(b"x").congested
    other.congested = True
    assert account.route(b"x").congested
    account.subscribe(b"y", b"2", peer)
    assert account.route(b"y").congested


def test_a_run_listener_gets_whole_runs_with_their_own_subjects(account):
    runs, changes = [], []
    account.watch_interest(b"deliver", lambda: changes.append(account.has_literal_interest(b"deliver")))
    listener = account.listen_to_runs(b"deliver", runs.append)
    run = [(b"a", b"r1", b"", b"1"), (b"b", b"r2", b"", b"2")]
    assert account.send_to(b"deliver", run) == 2
    assert account.publish(b"deliver", b"", b"", b"alone") == 1
    assert runs == [run, [(b"deliver", b"", b"", b"alone")]]
    account.unlisten(listener)
    assert account.send_to(b"deliver", run) == 0
    assert changes == [True, False]
