"""Imports between accounts, by hand: what crosses, what waits for an answer, and what is left behind."""

from types import SimpleNamespace

import pytest

from jetlake.model.subject_mapping import SubjectMapping
from jetlake.server.engine.routing import responses
from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.imports import AccountImports, ServiceImport, StreamImport
from jetlake.server.engine.routing.subscription import Subscriber

THRESHOLD_NS = 1000


class Client(Subscriber):
    no_responders = True

    def __init__(self, name):
        self.name = name
        self.sent = []

    def send(self, data):
        self.sent.append(data)

    def client_info(self):
        return {"acc": self.name, "rtt": 5, "user": "u"}

    def take(self):
        sent, self.sent = b"".join(self.sent), []
        return sent


class World:
    """Account B, which imports from account A, with a client in each."""

    def __init__(self):
        self.now_ns = 0
        self.scheduled = []
        self.a, self.b = Account("A"), Account("B")
        self.in_a, self.in_b = Client("A"), Client("B")

    def share(self, *, streams=(), services=(), response="singleton"):
        self.imports = AccountImports(
            self.b,
            [StreamImport(self.a, SubjectMapping(*names)) for names in streams],
            [ServiceImport(self.a, SubjectMapping(*names), False, response, THRESHOLD_NS) for names in services],
            SimpleNamespace(now_ns=lambda: self.now_ns),
            lambda *scheduled: self.scheduled.append(scheduled),
        )

    def run_due(self):
        """Run what is due, and return how much that was."""
        due = [callback for deadline_ns, callback in self.scheduled if deadline_ns <= self.now_ns]
        self.scheduled = [later for later in self.scheduled if later[0] > self.now_ns]
        for callback in due:
            callback(self.now_ns)
        return len(due)

    def ask(self, reply=b"inbox"):
        """Send a request, and return the reply subject that the service sees."""
        self.b.publish(b"service", reply, b"", b"?", self.in_b)
        frame = self.in_a.take().split(b" ")
        return frame[3] if len(frame) > 3 else None


@pytest.fixture
def world():
    return World()


def serve(world, response="singleton"):
    world.share(services=[("service",)], response=response)
    world.a.subscribe(b"service", b"1", world.in_a)
    world.b.subscribe(b"inbox", b"2", world.in_b)


def test_interest_at_the_exporter_follows_the_importer(world):
    before = world.b.subscribe(b"x.1", b"1", world.in_b)
    world.share(streams=[("s.*", "x.$1")])
    assert world.a.has_interest(b"s.1"), "also of subscriptions from before the import"
    assert not world.a.has_interest(b"s.2")
    after = world.b.subscribe(b"x.>", b"2", world.in_b)
    assert world.a.has_interest(b"s.2")
    world.b.unsubscribe(before)
    world.b.unsubscribe(after)
    assert world.a.interest_count == 0


def test_closing_leaves_nothing_behind(world):
    world.share(streams=[("s.>",)], services=[("service",)], response="stream")
    world.b.subscribe(b"s.>", b"1", world.in_b)
    world.b.subscribe(b"inbox", b"2", world.in_b)
    world.a.subscribe(b"service", b"3", world.in_a)
    assert world.ask() is not None
    world.imports.close()
    assert (world.a.interest_count, world.b.interest_count) == (1, 2)
    assert world.b.imported is None
    world.a.publish(b"s.x", b"", b"", b"no more")
    assert world.in_b.take() == b""


def test_one_answer(world):
    serve(world)
    inner = world.ask()
    for answer in (b"first", b"second"):
        world.a.publish(inner, b"", b"", answer)
    assert world.in_b.take() == b"MSG inbox 2 5\r\nfirst\r\n"
    assert world.a.interest_count == 1


def test_a_request_that_nobody_takes_waits_for_nothing(world):
    world.share(services=[("service",)])
    world.b.subscribe(b"inbox", b"2", world.in_b)
    assert world.ask() is None
    assert b"503" in world.in_b.take()
    assert world.a.interest_count == 0


def test_requests_without_an_answer_are_forgotten_in_time(world):
    serve(world)
    inner = world.ask()
    world.now_ns = THRESHOLD_NS
    world.ask()
    assert not world.a.has_interest(inner)
    assert world.a.interest_count == 2


def test_answers_in_a_row_keep_the_request(world):
    serve(world, "stream")
    inner = world.ask()
    for _ in range(3):
        world.now_ns += THRESHOLD_NS - 1
        world.a.publish(inner, b"", b"", b"x")
        world.ask()
    assert world.a.has_interest(inner)
    assert world.in_b.take().count(b"MSG inbox") == 3


def test_a_request_ends_with_the_inbox(world):
    serve(world, "stream")
    subscription = world.b.subscribe(b"other", b"3", world.in_b)
    inner = world.ask(b"other")
    assert world.a.has_interest(inner)
    world.b.unsubscribe(subscription)
    while world.run_due():
        pass
    assert not world.a.has_interest(inner)


@pytest.mark.parametrize("is_shared", [False, True])
def test_many_requests_end_with_their_inbox_in_groups(world, is_shared):
    serve(world, "stream")
    inbox = world.b.subscribe(b"many.*", b"3", world.in_b)
    other = world.b.subscribe(b"few.1", b"4", world.in_b)
    inners = [world.ask(b"many.1" if is_shared else b"many.%d" % number) for number in range(1000)]
    kept = [world.ask(), world.ask(b"few.1")]
    everything = world.b.subscribe(b">", b"5", world.in_b)
    world.b.unsubscribe(everything)
    while world.run_due():
        pass
    assert world.a.interest_count == 1 + 1000 + 2, "all have their inbox still"
    world.b.unsubscribe(inbox)
    left = [world.a.interest_count]
    while world.run_due():
        left.append(world.a.interest_count)
        assert left[-2] - left[-1] <= 100, "a bounded number at a time"
    assert not any(map(world.a.has_interest, inners))
    assert all(map(world.a.has_interest, kept))
    world.b.unsubscribe(other)
    while world.run_due():
        pass
    assert list(map(world.a.has_interest, kept)) == [True, False]
    world.imports.close()
    assert not world.b.removal_listeners


def test_many_requests_that_are_too_old_are_forgotten_in_groups(world):
    serve(world)
    inners = [world.ask() for _ in range(1000)]
    world.now_ns = THRESHOLD_NS
    left = world.a.interest_count
    while any(map(world.a.has_interest, inners)):
        world.ask()
        assert left - 100 <= world.a.interest_count <= left
        left = world.a.interest_count


def test_waiting_requests_are_bounded(world, monkeypatch):
    monkeypatch.setattr(responses, "_WAITING_MAX", 10)
    serve(world)
    inners = [world.ask() for _ in range(15)]
    assert [world.a.has_interest(inner) for inner in inners] == [False] * 5 + [True] * 10


def test_congestion_shows_across_the_border(world):
    world.share(streams=[("s.>",)])
    world.b.subscribe(b"s.x", b"1", world.in_b)
    assert not world.a.route(b"s.x").congested
    world.in_b.congested = True
    assert world.a.route(b"s.x").congested


def test_a_stream_delivery_keeps_its_subject(world):
    world.share(streams=[("deliver.*", "to.$1")])
    world.b.subscribe(b"to.b", b"1", world.in_b)
    assert world.a.send_to(b"deliver.b", [(b"stored", b"ack", b"", b"x"), (b"deliver.b", b"", b"", b"y")]) == 2
    assert world.in_b.take() == b"MSG stored 1 ack 1\r\nx\r\nMSG to.b 1 1\r\ny\r\n"


class Api:
    """A JetStream that answers each request at once."""

    def __init__(self, account):
        self._account = account

    def receive(self, subject, reply, header, payload, origin):
        self._account.publish(reply, b"", b"", b"{}")
        return True


def test_api_requests_are_over_with_one_answer(world):
    world.share(services=[("$JS.API.>",)], response="stream")
    world.b.subscribe(b"inbox", b"2", world.in_b)
    world.a.js = Api(world.a)
    for subject, waiting in ((b"$JS.API.STREAM.NAMES", 0), (b"$JS.API.CONSUMER.MSG.NEXT.S.C", 1)):
        world.b.publish(subject, b"inbox", b"", b"", world.in_b)
        assert world.in_b.take() == b"MSG inbox 2 2\r\n{}\r\n"
        assert world.a.interest_count == waiting
