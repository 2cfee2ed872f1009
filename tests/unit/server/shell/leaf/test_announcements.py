"""Announcements: whoever follows them knows the interest of the account, whatever comes and goes."""

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.remote import RemoteLink
from jetlake.server.engine.routing.subscription import Subscriber
from jetlake.server.shell.leaf.announcements import HUBS, Announcements


class Client(Subscriber):
    def send(self, data):
        pass


class Link(RemoteLink):
    """A link that is told of interest; those of one cluster are peers."""

    def __init__(self, peers):
        self.known = {}
        self._peers = peers

    @property
    def peers(self):
        return self._peers

    def send(self, data):
        pass

    def forward(self, address, messages, queues):
        return 0

    def hear(self, subject, queue, count):
        self.known[subject, queue] = count


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
    link = Link("A")
    known = {(subject, queue): count for subject, queue, count in announcements.all_for(link)}
    announcements.follow(link, lambda subject, queue, count: known.__setitem__((subject, queue), count))
    apply(after)
    expected = {(announcements.loop_subject, b""): 1}
    for subscription in open_ones:
        key = (subscription.subject, subscription.queue)
        expected[key] = expected.get(key, 0) + 1
    # Of plain subscriptions only the first and the last are told.
    told = {key: count if key[1] else 1 for key, count in known.items() if count}
    assert told == {key: count if key[1] else 1 for key, count in expected.items()}
    assert {(subject, queue): count for subject, queue, count in announcements.all_for(link)} == expected


def test_of_reply_subjects_between_accounts_the_prefix_alone_is_announced():
    account, client, link = Account("$G", random=Random(1)), Client(), Link("A")
    announcements = Announcements(account, b"")
    announcements.follow(link, link.hear)
    open_ones = [account.subscribe(b"_R_.p.%d" % number, b"1", client, b"") for number in range(2)]
    assert link.known == {(b"_R_.p.>", b""): 1}
    for subscription in open_ones:
        account.unsubscribe(subscription)
    account.subscribe(b"_R_.x", b"1", client, b"")
    account.subscribe(b"_R_.p.1", b"1", client, b"q")
    assert link.known == {(b"_R_.p.>", b""): 0, (b"_R_.x", b""): 1, (b"_R_.p.1", b"q"): 1}


CHANGES = st.lists(
    st.tuples(st.integers(0, 5), st.sampled_from([b"a", b"$LDS.x"]), st.sampled_from([b"", b"q"]), st.integers(0, 3)),
    max_size=30,
)


@given(CHANGES, st.integers(0, 5))
def test_each_link_is_told_what_others_want_and_never_what_its_peers_want(changes, isolated):
    announcements = Announcements(Account("$G", random=Random(1)), b"")
    links = [Link(HUBS), Link(HUBS), Link("C"), Link("C"), Link("D"), Link("E")]
    weights = {}
    for number, link in enumerate(links):
        announcements.follow(link, link.hear, is_isolated=number == isolated > 1)
    for number, subject, queue, weight in changes:
        key = subject, queue
        weight = weight if queue else min(weight, 1)
        announcements.weigh(subject, queue, links[number], weight - weights.get((number, key), 0))
        weights[number, key] = weight
    for number, link in enumerate(links):
        for key in {key for _, key in weights}:
            expected = 0
            for (other, other_key), weight in weights.items():
                if other_key == key and other != number:
                    is_loop = key[0].startswith(b"$LDS.")
                    is_told = links[other].peers != link.peers and (number != isolated or isolated < 2 or other < 2)
                    expected += weight if is_loop or is_told else 0
            known = link.known.get(key, 0)
            assert (known if key[1] else min(known, 1)) == (expected if key[1] else min(expected, 1))
