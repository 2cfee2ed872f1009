"""Permissions: allow, deny, queues, and leave to answer."""

from types import SimpleNamespace

import pytest

from jetlake.errors import ConfigError
from jetlake.server.config.options import Permissions, ResponsePermission, SubjectPermissions, User
from jetlake.server.shell.access.permissions import PermissionCheck


def check(publish=None, subscribe=None, responses=None, now_ns=lambda: 0):
    return PermissionCheck(
        Permissions(publish=publish, subscribe=subscribe, responses=responses), SimpleNamespace(now_ns=now_ns)
    )


def test_without_rules_all_is_allowed():
    permissions = check()
    assert permissions.may_publish(b"any.thing")
    assert permissions.may_subscribe(b">", b"")
    assert permissions.filter_for(b">") is None


@pytest.mark.parametrize(
    ("subject", "allowed"),
    [(b"a", True), (b"b.x", True), (b"b.no", False), (b"b", False), (b"c", False), (b"b.>", True)],
)
def test_publish(subject, allowed):
    permissions = check(publish=SubjectPermissions(allow=("a", "b.>"), deny=("b.no",)))
    assert permissions.may_publish(subject) is allowed
    assert permissions.may_publish(subject) is allowed  # from memory


def test_an_empty_allow_list_allows_nothing():
    assert not check(publish=SubjectPermissions(allow=())).may_publish(b"a")
    assert check(publish=SubjectPermissions(deny=("a",))).may_publish(b"b")


def test_the_memory_of_answers_is_bounded():
    permissions = check(publish=SubjectPermissions(allow=("a.>",)))
    for number in range(5000):
        assert permissions.may_publish(b"a.%d" % number)
    assert len(permissions._answers) <= 1024


@pytest.mark.parametrize(
    ("pattern", "queue", "allowed"),
    [
        (b"foo.a", b"", True),
        (b"foo.*", b"", True),
        (b"foo.>", b"", False),  # wider than what is allowed
        (b">", b"", False),
        (b"foo.secret", b"", False),
        (b"q.a", b"", False),
        (b"q.a", b"workers", True),
        (b"q.a", b"others", False),
        (b"v.a", b"v1.x", True),
        (b"v.a", b"v2.x", False),
        (b"foo.a", b"any", True),
    ],
)
def test_subscribe(pattern, queue, allowed):
    rules = SubjectPermissions(allow=("foo.*", "q.> workers", "v.* v1.>"), deny=("foo.secret",))
    assert check(subscribe=rules).may_subscribe(pattern, queue) is allowed


def test_denied_queue():
    permissions = check(subscribe=SubjectPermissions(deny=("work bad",)))
    assert permissions.may_subscribe(b"work", b"")
    assert permissions.may_subscribe(b"work", b"good")
    assert not permissions.may_subscribe(b"work", b"bad")


def test_deliveries_are_filtered_where_a_pattern_takes_denied_subjects():
    permissions = check(subscribe=SubjectPermissions(deny=("a.no", "b.*.no")))
    assert permissions.filter_for(b"a.yes") is None
    assert permissions.filter_for(b"c.*") is None
    admits = permissions.filter_for(b"a.*")
    assert admits(b"a.yes", b"")
    assert not admits(b"a.no", b"")
    assert permissions.filter_for(b"b.>")(b"b.x.no", b"") is False


def test_leave_to_answer_is_counted_and_expires():
    now = [0]
    permissions = check(
        publish=SubjectPermissions(allow=()), responses=ResponsePermission(max=2, expires_s=1.0), now_ns=lambda: now[0]
    )
    admits = permissions.filter_for(b"svc")
    assert admits(b"svc", b"in.1")
    assert admits(b"svc", b"in.2")
    assert [permissions.may_publish(b"in.1") for _ in range(3)] == [True, True, False]
    now[0] = 2_000_000_000
    assert not permissions.may_publish(b"in.2")
    assert not permissions.may_publish(b"in.3")


def test_leave_to_answer_without_limits():
    permissions = check(publish=SubjectPermissions(allow=()), responses=ResponsePermission(max=-1, expires_s=0.0))
    permissions.filter_for(b"svc")(b"svc", b"in.1")
    assert all(permissions.may_publish(b"in.1") for _ in range(100))


def test_replies_to_answer_are_bounded():
    permissions = check(publish=SubjectPermissions(allow=()), responses=ResponsePermission())
    admits = permissions.filter_for(b"svc")
    for number in range(10_000):
        admits(b"svc", b"in.%d" % number)
    assert len(permissions._replies) <= 4096
    assert permissions.may_publish(b"in.9999")
    assert not permissions.may_publish(b"in.0")


@pytest.mark.parametrize("given", ["orders.>", {"orders.>"}, 5])
def test_a_text_is_no_list_of_subjects(given):
    for name in ("allow", "deny"):
        with pytest.raises(ConfigError, match=f"{name} of permissions must be a tuple"):
            SubjectPermissions(**{name: given})
    assert SubjectPermissions(allow=["orders.>"]).allow == ("orders.>",)


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"permissions": Permissions(publish=SubjectPermissions(deny=("a b",)))}, "'a b' is not a valid subject"),
        ({"permissions": Permissions(subscribe=SubjectPermissions(deny=("a..b",)))}, "'a..b' is not a valid subject"),
        ({"connection_types": "LEAFNODE_WS"}, "connection_types of user 'a' must be a tuple"),
    ],
)
def test_a_user_whose_rules_would_keep_nobody_out_is_refused(given, complaint):
    with pytest.raises(ConfigError, match=complaint):
        User(name="a", **given)
