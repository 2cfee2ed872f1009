"""Everything that the subscribe workflow refuses (NATS ADR-15)."""

import pytest

from jetlake.client.subscribe.subscribe_checks import SubscribeRequest, check_existing, check_request
from jetlake.errors import InvalidOptionError, SubscribeMismatchError
from jetlake.model.consumer import ConsumerConfig, ConsumerInfo
from jetlake.model.enums import AckPolicy


def request(subject="s.1", **fields):
    return SubscribeRequest(subject=subject, **fields)


def info(push_bound=False, deliver_subject="d", **config):
    return ConsumerInfo(
        stream_name="S",
        name="C",
        config=ConsumerConfig(name="C", deliver_subject=deliver_subject, **config),
        push_bound=push_bound,
    )


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"subject": ""}, "a subject or a stream"),
        ({"subject": "", "stream": "S"}, "needs a subject to create"),
        ({"queue": "q", "options": {"idle_heartbeat": 1}}, "idle_heartbeat does not work with a queue"),
        ({"queue": "q", "options": {"idle_heartbeat": 1, "flow_control": True}}, "does not work with a queue"),
        ({"queue": "q", "options": {"deliver_group": "other"}}, "deliver_group"),
        ({"options": {"flow_control": True}}, "flow_control needs idle_heartbeat"),
        ({"consumer": "a", "durable": "b"}, "pass one of them"),
        ({"is_pull": True, "options": {"ack_policy": "none"}}, "ack_policy explicit"),
        ({"is_pull": True, "options": {"ack_policy": "all"}}, "ack_policy explicit"),
        ({"is_pull": True, "options": {"deliver_subject": "x"}}, "deliver_subject is for push"),
        ({"is_pull": True, "options": {"idle_heartbeat": 1}}, "idle_heartbeat is for push"),
        ({"is_ordered": True, "durable": "d"}, "creates its own consumers"),
        ({"is_ordered": True, "consumer": "c"}, "creates its own consumers"),
        ({"is_ordered": True, "queue": "q"}, "one reader"),
        ({"is_ordered": True, "options": {"ack_policy": "explicit"}}, "acknowledges nothing"),
        ({"is_ordered": True, "options": {"max_deliver": 5}}, "max_deliver is set by the library"),
        ({"is_ordered": True, "options": {"deliver_subject": "x"}}, "deliver_subject is set by the library"),
        ({"options": {"bogus": 1}}, "bogus"),
        ({"options": {"ack_policy": "sometimes"}}, "ack_policy"),
    ],
)
def test_contradictions_are_refused_before_anything_is_sent(fields, words):
    with pytest.raises(InvalidOptionError, match=words):
        check_request(request(**fields))


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"subject": "", "stream": "S", "consumer": "c"},
        {"queue": "q", "durable": "d"},
        {"queue": "q", "options": {"deliver_group": "q"}},
        {"options": {"idle_heartbeat": 1, "flow_control": True}},
        {"is_pull": True, "durable": "d", "options": {"ack_policy": "explicit"}},
        {"is_ordered": True, "options": {"ack_policy": "none", "idle_heartbeat": 5}},
        {"subject": "", "stream": "S", "options": {"filter_subjects": ["a", "b"]}},
    ],
)
def test_what_works_passes(fields):
    check_request(request(**fields))


@pytest.mark.parametrize(
    ("fields", "existing", "words"),
    [
        ({}, info(push_bound=True), "duplicate subscription"),
        ({}, info(deliver_group="g"), "without a queue .* created for the queue group 'g'"),
        ({}, info(deliver_group="g", push_bound=True), "created for the queue group 'g'"),
        ({"queue": "q"}, info(deliver_group="g"), "queue subscription 'q' .* created for the queue group 'g'"),
        ({"queue": "q"}, info(), "created without a deliver group"),
        ({"queue": "q"}, info(push_bound=True), "created without a deliver group"),
        ({}, info(filter_subject="s.2"), "which is not the subject 's.1'"),
        ({}, info(filter_subjects=("s.2", "s.3")), "which is not the subject 's.1'"),
        ({"is_pull": True}, info(), "pull subscription for the push based"),
        ({}, info(deliver_subject=""), "a pull subscription is required"),
        ({"options": {"ack_wait": 5}}, info(ack_wait=30_000_000_000), "ack_wait .* would not be applied"),
        ({"options": {"ack_policy": "all"}}, info(ack_policy=AckPolicy.EXPLICIT), "ack_policy"),
        ({"options": {"max_deliver": 3}}, info(max_deliver=-1), "max_deliver"),
        ({"options": {"deliver_subject": "elsewhere"}}, info(), "deliver_subject d, and elsewhere"),
        ({"options": {"metadata": {"a": "b"}}}, info(metadata={"a": "c"}), "metadata"),
        ({"options": {"metadata": {"a": "b"}}}, info(metadata={"_nats.level": "5"}), "metadata"),
        ({"options": {"filter_subject": "s.*"}}, info(filter_subject="s.1"), "filter_subject"),
        (
            {"queue": "q"},
            info(deliver_group="q", flow_control=True, idle_heartbeat=1),
            "flow control is not supported over queues",
        ),
        ({"queue": "q"}, info(deliver_group="q", idle_heartbeat=1), "heartbeats are not supported over queues"),
    ],
)
def test_consumers_that_do_not_fit(fields, existing, words):
    with pytest.raises(SubscribeMismatchError, match=words):
        check_existing(request(**fields), existing)


@pytest.mark.parametrize(
    ("fields", "existing"),
    [
        ({}, info()),
        ({}, info(filter_subject="s.1")),
        ({}, info(filter_subjects=("s.1", "s.2"))),
        ({"queue": "q"}, info(deliver_group="q")),
        ({"queue": "q"}, info(deliver_group="q", push_bound=True)),
        ({"is_pull": True}, info(deliver_subject="")),
        ({"options": {"ack_wait": 30}}, info(ack_wait=30_000_000_000)),
        ({"subject": "", "stream": "S", "consumer": "C"}, info(filter_subject="s.2")),
        ({"options": {"deliver_subject": "d"}}, info()),
        ({"options": {"metadata": {"a": "b"}}}, info(metadata={"a": "b", "_nats.req.level": "0"})),
    ],
)
def test_consumers_that_fit(fields, existing):
    check_existing(request(**fields), existing)
