"""The page for those who come from nats-py names everything that nats-py offers."""

import inspect
import re

import pytest
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.js.client import JetStreamContext
from nats.js.kv import KeyValue
from nats.js.object_store import ObjectStore
from nats.micro.request import Request
from nats.micro.service import Service

from tests.docs.blocks import ROOT

PAGE = (ROOT / "docs" / "migrating-from-nats-py.md").read_text()
CLASSES = [
    Client,
    Msg,
    Subscription,
    JetStreamContext,
    JetStreamContext.PullSubscription,
    JetStreamContext.PushSubscription,
    KeyValue,
    KeyValue.KeyWatcher,
    ObjectStore,
    Service,
    Request,
]


def missing(names):
    theirs = "\n".join(line.split(" | ")[0] for line in PAGE.splitlines() if line.startswith("| "))
    return [name for name in names if not re.search(rf"\b{name}\b", theirs)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__qualname__)
def test_every_method_has_a_row(kind):
    public = [name for name in dir(kind) if not name.startswith("_") and not inspect.isclass(getattr(kind, name))]
    members = [name for name in public if callable(getattr(kind, name)) or isinstance(getattr(kind, name), property)]
    assert missing(members) == []


def test_every_option_of_connect_has_a_row():
    assert missing([name for name in inspect.signature(Client.connect).parameters if name != "self"]) == []


def test_nothing_is_missing_here():
    assert not re.search(r"\| *(not here|none|no|-|—) *\|", PAGE, re.IGNORECASE)
