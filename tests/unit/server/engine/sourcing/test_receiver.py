"""The receiver of a mirror or source, with an origin played by hand and a clock moved by hand."""

import json

import pytest

from jetlake.errors import StoreError
from jetlake.model.source_names import stream_identity
from jetlake.protocol.headers import find_value

HEARTBEAT = b"NATS/1.0 100 Idle Heartbeat\r\nNats-Last-Consumer: %d\r\nNats-Last-Stream: %d\r\n\r\n"
FLOW_CONTROL = b"NATS/1.0 100 FlowControl Request\r\n\r\n"


class Origin:
    """An origin behind the API prefix `FAR.API`: keeps the requests, and sends what the test says."""

    def __init__(self, harness):
        self.harness = harness
        self.requests = []
        self.flow_control = []
        self.name = "far"
        harness.account.listen(b"FAR.API.>", self._ask)
        harness.account.listen(b"FAR.FC.>", self._answer)

    def _ask(self, subject, reply, header, payload, origin):
        if subject.startswith(b"FAR.API.CONSUMER.CREATE"):
            self.requests.append((json.loads(payload)["config"], header, reply))

    def _answer(self, subject, reply, header, payload, origin):
        self.flow_control.append((find_value(header, b"Nats-Last-Consumer"), find_value(header, b"Nats-Last-Stream")))

    @property
    def start(self):
        """The start sequence of the last request; 0 for all."""
        return self.requests[-1][0].get("opt_start_seq", 0)

    def accept(self, delivered=0, identity=b"first123", number=-1):
        """Answer a request."""
        _, _, reply = self.requests[number]
        body = {"name": self.name, "delivered": {"stream_seq": delivered}, "num_pending": 0}
        header = b"NATS/1.0\r\nNats-Stream-Identity: %b\r\n\r\n" % identity
        self.harness.account.publish(reply, b"", header, json.dumps(body).encode())

    def refuse(self, err_code, code=404):
        error = {"code": code, "err_code": err_code, "description": "no"}
        self.harness.account.publish(self.requests[-1][2], b"", b"", json.dumps({"error": error}).encode())

    def send(self, *messages):
        self.harness.account.send_to(self.requests[-1][0]["deliver_subject"].encode(), list(messages))
        self.harness.turn()

    def message(self, sequence, delivered, *, count=1, consumer=None, pending=0):
        reply = f"$JS.ACK.O.{consumer or self.name}.{count}.{sequence}.{delivered}.{sequence}000.{pending}".encode()
        return b"o.1", reply, b"", b"m%d" % sequence


FAR = {"name": "O", "external": {"api": "FAR.API", "deliver": ""}}


@pytest.fixture
def origin(harness):
    return Origin(harness)


@pytest.fixture(params=["mirror", "source"])
def copy(request, harness, origin):
    """A stream that copies from the origin, and has asked it."""
    config = {"mirror": FAR} if request.param == "mirror" else {"sources": [FAR]}
    stream = harness.create("C", subjects=[], **config)
    harness.advance(0.2)
    assert len(origin.requests) == 1
    return stream


def info(harness):
    answer = harness.api("STREAM.INFO.C")
    return answer.get("mirror") or answer["sources"][0]


def payloads(stream):
    store = stream.store
    found = [store.get(sequence) for sequence in range(max(store.first_sequence, 1), store.last_sequence + 1)]
    return [message.payload for message in found if message is not None]


def test_it_copies_runs_and_tells_how_far_it_is(harness, origin, copy):
    assert info(harness)["active"] == -1
    origin.accept()
    origin.send(origin.message(1, 1, pending=5), origin.message(2, 2, pending=4))
    assert payloads(copy) == [b"m1", b"m2"]
    harness.advance(0.5)
    assert (info(harness)["lag"], info(harness)["active"]) == (3, 500_000_000)
    origin.send((b"x", b"", HEARTBEAT % (2, 2), b""))
    assert info(harness)["active"] == 0


def test_foreign_repeated_and_redelivered_messages_are_ignored(harness, origin, copy):
    origin.accept()
    origin.send(
        origin.message(1, 1),
        origin.message(9, 2, consumer="other"),
        origin.message(9, 2, count=2),
        origin.message(1, 2),  # a sequence that is copied counts as delivered
        origin.message(2, 3),
        origin.message(2, 3),
    )
    assert payloads(copy) == [b"m1", b"m2"]
    assert len(origin.requests) == 1


@pytest.mark.parametrize("how", ["message", "heartbeat"])
def test_a_missing_delivery_is_asked_for_again(harness, origin, copy, how):
    origin.accept()
    origin.send(origin.message(1, 1))
    gap = origin.message(3, 3) if how == "message" else (b"x", b"", HEARTBEAT % (2, 2), b"")
    origin.send(gap)
    origin.send(origin.message(4, 4))  # to a subject that nobody listens to any more
    assert payloads(copy) == [b"m1"]
    harness.advance(1.7)
    assert len(origin.requests) == 1  # two requests are two seconds apart
    harness.advance(0.5)
    assert (len(origin.requests), origin.start) == (2, 2)
    origin.accept(1)
    origin.send(origin.message(2, 1), origin.message(3, 2))
    assert payloads(copy) == [b"m1", b"m2", b"m3"]


def test_failures_are_told_and_tried_again_ever_later(harness, origin, copy):
    waits = []
    for _ in range(14):
        origin.refuse(10059)
        assert info(harness)["error"] == {"code": 404, "err_code": 10059, "description": "no"}
        count, waited = len(origin.requests), 0
        while len(origin.requests) == count:
            harness.advance(1)
            waited += 1
        waits.append(waited)
    assert waits == [13, 23, 33, 43, 53, 63, 73, 83, 93, 103, 113, 123, 123, 123]
    origin.accept()
    assert "error" not in info(harness)


def test_no_answer_counts_as_a_failure_and_late_answers_not_at_all(harness, origin, copy):
    harness.advance(29)
    assert len(origin.requests) == 1
    harness.advance(1)
    harness.advance(12.3)
    assert len(origin.requests) == 2
    origin.accept(number=0)
    assert info(harness)["active"] == -1
    origin.accept()
    origin.send(origin.message(1, 1))
    assert payloads(copy) == [b"m1"]


def test_silence_is_noticed(harness, origin, copy):
    origin.accept()
    origin.send(origin.message(1, 1))
    harness.advance(5)
    origin.send((b"x", b"", HEARTBEAT % (1, 1), b""))
    harness.advance(5)
    assert len(origin.requests) == 1
    harness.advance(10)
    harness.advance(0.3)
    assert (len(origin.requests), origin.start) == (2, 2)


def test_an_older_origin_is_asked_in_older_forms(harness, origin, copy):
    levels = []
    for _ in range(2 if copy.config.mirror else 3):
        config, header, _ = origin.requests[-1]
        levels.append((find_value(header, b"Nats-Required-Api-Level"), config.get("sourcing", False)))
        origin.refuse(10185, 412)
        harness.advance(2.3)
    expected = [(b"5", True), (b"4", True), (None, False)]
    assert levels == ([(b"4", True), (None, False)] if copy.config.mirror else expected)
    assert "_" in origin.requests[-1][0]["name"][10:]


def test_flow_control_is_answered_when_all_before_it_is_on_disk(durable):
    origin = Origin(durable)
    durable.create("C", subjects=[], sources=[FAR])
    durable.advance(0.2)
    origin.accept()
    run = [origin.message(4, 1), origin.message(5, 2), (b"x", b"FAR.FC.1", FLOW_CONTROL, b"")]
    durable.account.send_to(origin.requests[-1][0]["deliver_subject"].encode(), run)
    durable.engine.flush()
    assert origin.flow_control == []
    durable.turn()
    assert origin.flow_control == [(b"2", b"5")]


@pytest.mark.parametrize("config", [{"mirror": FAR}, {"sources": [FAR]}])
def test_what_the_disk_refused_is_asked_for_again(durable, config):
    origin = Origin(durable)
    stream = durable.create("C", subjects=[], **config)
    durable.advance(0.2)
    origin.accept()
    append_run = stream.store.append_run

    def refuse(messages, time_ns):
        raise StoreError("write", "the disk is full")

    stream.store.append_run = refuse
    origin.send(origin.message(1, 1), (b"x", b"FAR.FC.1", FLOW_CONTROL, b""))
    assert origin.flow_control == []
    stream.store.append_run = append_run
    durable.advance(2.3)
    assert (len(origin.requests), origin.start) == (2, 0)
    origin.accept()
    origin.send(origin.message(1, 1), (b"x", b"FAR.FC.2", FLOW_CONTROL, b""))
    assert (payloads(stream), origin.flow_control) == ([b"m1"], [(b"1", b"1")])


def test_a_recreated_origin_is_copied_by_a_source_from_its_start(harness):
    harness.create("O", subjects=["o"])
    for number in range(3):
        harness.store("o", b"old%d" % number)
    source = harness.create("S", subjects=[], sources=[{"name": "O"}])
    mirror = harness.create("M", subjects=[], mirror={"name": "O"})
    harness.advance(0.3)
    assert payloads(source) == payloads(mirror) == [b"old0", b"old1", b"old2"]
    old = stream_identity(harness.jetstream.streams["O"].created_ns)
    harness.api("STREAM.DELETE.O")
    harness.advance(1)
    harness.create("O", subjects=["o"])
    assert stream_identity(harness.jetstream.streams["O"].created_ns) != old
    for number in range(5):
        harness.store("o", b"new%d" % number)
    for _ in range(20):
        harness.advance(2)
    assert payloads(source) == [b"old0", b"old1", b"old2", b"new0", b"new1", b"new2", b"new3", b"new4"]
    # A mirror does not tell it from the old one: it takes what is behind its own end.
    assert payloads(mirror) == [b"old0", b"old1", b"old2", b"new3", b"new4"]


def test_a_deleted_or_promoted_stream_asks_no_more(harness, origin, copy):
    origin.accept()
    origin.send(origin.message(1, 1))
    deliver_subject = origin.requests[-1][0]["deliver_subject"].encode()
    assert harness.account.has_literal_interest(deliver_subject)
    harness.api("STREAM.DELETE.C")
    assert not harness.account.has_literal_interest(deliver_subject)
    harness.advance(100)
    assert len(origin.requests) == 1


def test_ack_subjects_of_version_2_are_read(harness, origin, copy):
    origin.accept()
    reply = b"$JS.ACK.hub.hash1234.O.far.1.%d.%d.7000.0.token"
    origin.send((b"o.1", reply % (1, 1), b"", b"m1"), (b"o.1", reply % (2, 2), b"", b"m2"))
    assert payloads(copy) == [b"m1", b"m2"]


@pytest.mark.parametrize(
    "reply",
    [
        b"$JS.ACK.O.far.1.x.1.1.1",
        b"$JS.ACK.O.far.1.1.x.1.1",
        b"$JS.ACK.O.far.1.1.1..0",
        b"$JS.ACK.O.far.1.-1.1.1.0",
        b"$JS.ACK.O.far.1.0.1.1.0",
        b"$JS.ACK.O.far.1.%d.1.1.0" % 2**62,
        b"$JS.ACK.O.far.1.1.1.%d.0" % 2**64,
        b"$JS.ACK.O.far.1.%b.1.1.0" % (b"9" * 5000),
        b"",
        b"no.reply.of.a.consumer",
        "$JS.ACK.O.far.1.\u0661.1.1.0".encode(),
    ],
)
def test_garbage_on_the_deliver_subject_is_ignored(harness, origin, copy, reply):
    origin.accept()
    origin.send((b"o.1", reply, b"", b"garbage"))
    origin.send((b"o.1", b"", HEARTBEAT.replace(b"%d", b"9" * 30), b"not a status"))
    origin.send(origin.message(1, 1))
    assert payloads(copy) == [b"m1"]


def test_garbage_in_an_answer_is_told(harness, origin, copy):
    harness.account.publish(origin.requests[-1][2], b"", b"", b"[1]")
    assert info(harness)["error"]["description"].startswith("malformed answer")
    harness.account.publish(b"$JS.FC.O.far.abcd", b"", b"NATS/1.0\r\nNats-Last-Stream: x\r\n\r\n", b"")
