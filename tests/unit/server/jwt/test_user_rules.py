"""What a user's token allows, and what nobody can make of it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jetlake.auth.claims import Permission, SigningScope, Template, TimeRange, User, UserClaims, UserLimits
from jetlake.auth.keys import KeyPair
from jetlake.errors import TokenError
from jetlake.protocol.subjects import is_subset
from jetlake.server.jwt.user_rules import check_source, fill_template, permits_type, valid_until

ACCOUNT, USER = KeyPair("account", bytes([1] * 32)), KeyPair("user", bytes([2] * 32))
DAY_NS = 86_400 * 10**9
HOUR_NS = 3600 * 10**9


def filled(allow, name="ann", tags=(), deny=()):
    scope = SigningScope(
        kind="user_scope", key=ACCOUNT.public, template=Template(pub=Permission(allow=allow, deny=deny))
    )
    claims = UserClaims(sub=USER.public, iss=ACCOUNT.public, name=name, nats=User(tags=tags))
    return fill_template(scope, claims, "shop", ["team:red", "team:blue"]).pub


def test_every_combination_of_tags():
    assert filled(("{{tag(a)}}.{{account-tag(team)}}",), tags=("a:1", "a:2", "b:3")).allow == (
        "1.red",
        "1.blue",
        "2.red",
        "2.blue",
    )


@given(st.text(max_size=12))
def test_no_name_widens_a_template(name):
    """Whatever the name is, what it makes is one literal branch below its place."""
    try:
        permission = filled(("a.{{name()}}.b", "c"), name=name, tags=(f"t:{name}",))
    except TokenError:
        return
    for subject in permission.allow:
        assert subject == "c" or (
            is_subset(subject.encode(), b"a.>") and subject.endswith(".b") and "*" not in subject and ">" not in subject
        )
        assert " " not in subject and "\t" not in subject


def test_what_is_left_of_nothing_is_nothing():
    assert filled(("{{tag(missing)}}.x",)) == Permission(allow=(), deny=(">",))
    with pytest.raises(TokenError, match="no valid subject"):
        filled(("a",), deny=("{{tag(missing)}}.x",))
    with pytest.raises(TokenError, match="unknown placeholder"):
        filled(("{{nobody()}}",))


def test_tags_cannot_make_any_number_of_subjects():
    tags = tuple(f"t:{number}" for number in range(200))
    with pytest.raises(TokenError, match="more than 1000"):
        filled(("{{tag(t)}}.{{tag(t)}}",), tags=tags)


@pytest.mark.parametrize(
    ("src", "host", "is_welcome"),
    [
        ((), "", True),
        (("10.0.0.0/8",), "10.1.2.3", True),
        (("10.0.0.0/8",), "11.1.2.3", False),
        (("10.0.0.0/8",), "", False),
        (("10.0.0.0/8",), "::1", False),
        (("2001:db8::/32", "10.0.0.0/8"), "2001:db8::1", True),
        ("10.0.0.0/8,192.168.0.0/16", "192.168.7.7", True),
        (("10.0.0.0/8", "nonsense"), "10.1.2.3", False),
        (("10.0.0.0/99",), "10.1.2.3", False),
        (("10.1.2.3",), "10.1.2.3", False),
    ],
)
def test_networks(src, host, is_welcome):
    assert check_source(UserLimits(src=src), host) is is_welcome


def hours(*ranges, location="UTC"):
    return UserLimits(times=tuple(TimeRange(start=a, end=b) for a, b in ranges), times_location=location)


def test_hours_of_the_day():
    noon = 20_000 * DAY_NS + 12 * HOUR_NS
    assert valid_until(UserLimits(), noon) == 0
    assert valid_until(hours(("08:00:00", "13:00:00")), noon) == noon + HOUR_NS
    assert valid_until(hours(("08:00:00", "11:00:00")), noon) is None
    assert valid_until(hours(("08:00:00", "11:00:00"), ("11:30:00", "14:00:00")), noon) == noon + 2 * HOUR_NS
    assert valid_until(hours(("08:00:00", "12:00:00")), noon) is None  # to the second
    assert valid_until(hours(("12:00:00", "12:00:01")), noon) is not None
    assert valid_until(hours(("08:00:00", "13:00:00"), location="No/Where"), noon) is None
    assert valid_until(hours(location="No/Where"), noon) is None
    assert valid_until(hours(location="Europe/Berlin"), noon) == 0
    # Berlin is an hour or two ahead.
    assert valid_until(hours(("13:00:00", "15:00:00"), location="Europe/Berlin"), noon) is not None
    assert valid_until(hours(("11:00:00", "12:30:00"), location="Europe/Berlin"), noon) is None


def test_hours_over_midnight():
    night = hours(("22:00:00", "06:00:00"))
    midnight = 20_000 * DAY_NS
    assert valid_until(night, midnight - HOUR_NS) == midnight + 6 * HOUR_NS
    assert valid_until(night, midnight + HOUR_NS) == midnight + 6 * HOUR_NS
    assert valid_until(night, midnight + 7 * HOUR_NS) is None


def test_ways_to_connect():
    assert permits_type(UserLimits(), "WEBSOCKET")
    assert permits_type(UserLimits(allowed_connection_types=("standard",)), "STANDARD")
    for allowed in (("STANDARD",), ("CARRIER_PIGEON",), ("MQTT", "LEAFNODE")):
        assert not permits_type(UserLimits(allowed_connection_types=allowed), "WEBSOCKET")
