"""Announcements: whoever follows them knows the interest of the account, whatever comes and goes."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.leaf.announcements import Announcements


class Client(Subscriber):
    def send(self, data):
        pass


STEPS = st.lists(st.tuples(st.booleans(), st.sampled_from([b"a", b"a.*", b">"]), st.sampled_from([b"", b"q", b"p"])))


@given(STEPS, STEPS)
def test_a_follower_knows_what_is_there(before, after):
    account, client, open_ones = Account("$G", random=Random(1)), Client(), []

    def apply(steps):
        for is_new, subject, queue in steps:
            if is_new:
                open_ones.append(account.subscribe(subject, b"1", client, queue))
            elif open_ones:
                account.unsubscribe(open_ones.pop(0))

    apply(before)
    announcements = Announcements(account, b"")
    known = {(subject, queue): count for subject, queue, count in announcements}
    announcements.follow(lambda subject, queue, count: known.__setitem__((subject, queue), count))
    apply(after)
    expected = {(announcements.loop_subject, b""): 1}
    for subscription in open_ones:
        key = (subscription.subject, subscription.queue)
        expected[key] = expected.get(key, 0) + 1
    # Of plain subscriptions only the first and the last are told.
    told = {key: count if key[1] else 1 for key, count in known.items() if count}
    assert told == {key: count if key[1] else 1 for key, count in expected.items()}
    assert {(subject, queue): count for subject, queue, count in announcements} == expected
