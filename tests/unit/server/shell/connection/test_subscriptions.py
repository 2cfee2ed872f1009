"""A client's subscriptions, and what goes on when they end with their connection."""

from types import SimpleNamespace

import pytest

from jetlake.server.engine.routing.account import Account
from jetlake.server.engine.routing.subscription import Subscriber, Subscription
from jetlake.server.shell.connection.subscriptions import ClientSubscriptions
from jetlake.store.steps import finish


class Client(Subscriber):
    def send(self, data):
        """Take nothing: its buffer is full."""


@pytest.mark.parametrize("congested", [True, False])
def test_deliveries_that_waited_for_a_client_go_on_when_it_is_gone(congested):
    account, subscriber, drained = Account(), Client(), []
    loop = SimpleNamespace(
        work=SimpleNamespace(begin=finish), drained=lambda: drained.append(account.has_interest(b"inbox"))
    )
    services = SimpleNamespace(settings=None, engine_loop=loop)
    subscriptions = ClientSubscriptions(SimpleNamespace(account=account), subscriber, None, services)
    subscription = Subscription(b"inbox", b"1", subscriber, b"")
    account.add(subscription)
    subscriptions._by_sid[b"1"] = subscription
    subscriber.congested = congested
    subscriptions.close()
    # Its interest ends first, or deliveries would wait for it again.
    assert drained == ([False] if congested else [])
