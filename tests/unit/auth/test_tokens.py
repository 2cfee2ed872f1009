"""Tokens from strangers: whatever the bytes are, they are claims that somebody signed, or an error that says why."""

import base64
import json
import string

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from jetlake.auth.claims import (
    Account,
    AccountClaims,
    ActivationClaims,
    AuthorizationRequest,
    AuthorizationResponse,
    Export,
    GenericClaims,
    Import,
    Operator,
    OperatorClaims,
    OperatorLimits,
    SigningScope,
    Template,
    UnlimitedUser,
    User,
    UserClaims,
)
from jetlake.auth.keys import CurveKey, KeyPair, kind_of, verify
from jetlake.auth.tokens import check_times, decode_token, encode_token
from jetlake.errors import InvalidOptionError, TokenError

OPERATOR, ACCOUNT, USER, SERVER = (
    KeyPair(kind, bytes([number] * 32)) for number, kind in enumerate(("operator", "account", "user", "server"), 1)
)
KINDS = (
    OperatorClaims,
    AccountClaims,
    UserClaims,
    ActivationClaims,
    AuthorizationRequest,
    AuthorizationResponse,
    GenericClaims,
)
TOKEN = encode_token(UserClaims(sub=USER.public, name="ann", nats=UnlimitedUser(tags=("a:b",))), ACCOUNT, 1000)


def signed(body, key=ACCOUNT, head=None):
    """A token with any body, signed well."""
    parts = [
        json.dumps(head or {"typ": "JWT", "alg": "ed25519-nkey"}),
        body if isinstance(body, str) else json.dumps(body),
    ]
    text = ".".join(base64.urlsafe_b64encode(part.encode()).decode().rstrip("=") for part in parts)
    return f"{text}.{base64.urlsafe_b64encode(key.sign(text.encode())).decode().rstrip('=')}"


def user(**nats):
    return {"iss": ACCOUNT.public, "sub": USER.public, "iat": 1, "nats": {"type": "user", "version": 2, **nats}}


def test_there_and_back():
    claims = decode_token(TOKEN, UserClaims)
    assert (claims.name, claims.iat, claims.account) == ("ann", 1000, ACCOUNT.public)
    assert claims.nats.tags == ("a:b",) and claims.nats.subs == -1
    assert decode_token(encode_token(claims, ACCOUNT), UserClaims).nats == claims.nats


def test_a_token_is_of_one_kind_alone():
    tokens = {
        OperatorClaims: encode_token(OperatorClaims(sub=OPERATOR.public), OPERATOR),
        AccountClaims: encode_token(AccountClaims(sub=ACCOUNT.public), OPERATOR),
        UserClaims: TOKEN,
    }
    for made, token in tokens.items():
        for kind in KINDS:
            if kind is not made:
                with pytest.raises(TokenError, match="type"):
                    decode_token(token, kind)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("key", [OPERATOR, ACCOUNT, USER, SERVER])
def test_only_the_right_keys_sign_and_are_signed(kind, key):
    """Whoever may not sign cannot, and what it signs all the same is refused."""
    for about in (OPERATOR, ACCOUNT, USER, SERVER):
        body = {"iss": key.public, "sub": about.public, "nats": {"type": kind.TYPE, "version": 2}}
        try:
            claims = decode_token(signed(body, key), kind)
        except TokenError:
            continue
        assert (key.kind, about.kind) in {
            ("operator", "operator"),
            ("operator", "account"),
            ("account", "user"),
            ("server", "account"),
        }, claims


@pytest.mark.parametrize(
    "body",
    [
        user(unknown=1),
        user(data=5),
        user(proxy_required=True),
        user(pub={"allow": ["a..b"]}),
        user(pub={"allow": ["a b"]}),
        user(sub={"allow": ["a b c"]}),
        user(pub={"allow": "a"}),
        user(pub={"permit": ["a"]}),
        user(times=[{"start": "25:00:00", "end": "1:00"}]),
        user(times={}),
        user(issuer_account="x"),
        user(issuer_account=USER.public),
        user(subs="many"),
        user(subs=1.5),
        user(subs=10**30),
        user(version=1),
        user(version=3),
        {**user(), "exp": -1},
        {**user(), "exp": 10**30},
        {**user(), "exp": 1.5e9 + 0.5},
        {**user(), "nbf": "soon"},
        {**user(), "sub": [USER.public]},
        {**user(), "sub": ""},
        {**user(), "type": "user", "nats": {}},
        {**user(), "scope": "read"},
        {**user(), "EXP": 1},
        json.dumps(user())[:-1] + ', "exp": 5, "exp": 0}',
        json.dumps(user())[:-1] + ', "nats": {"type": "user", "version": 2, "pub": {"deny": [">"]}}}',
        json.dumps(user(pub={"allow": [], "deny": [">"]})).replace('"deny"', '"deny": [], "deny"'),
        [],
        "null",
        '{"iss":' + "[" * 100_000,
        '{"nats":' * 5000,
        "\ud800".encode("utf-8", "surrogatepass").decode("latin-1"),
    ],
)
def test_what_is_not_understood_is_refused(body):
    with pytest.raises(TokenError):
        decode_token(signed(body), UserClaims)


@pytest.mark.parametrize(
    "head",
    [
        {"typ": "JWT", "alg": "none"},
        {"typ": "JWT", "alg": "ed25519"},
        {"typ": "JWT", "alg": ""},
        {"typ": "JWS", "alg": "ed25519-nkey"},
        {"alg": "ed25519-nkey"},
        {"typ": "JWT", "alg": ["ed25519-nkey"]},
        {"typ": "JWT", "alg": "ed25519-nkey", "crit": ["exp"]},
    ],
)
def test_another_algorithm_is_none(head):
    with pytest.raises(TokenError):
        decode_token(signed(user(), head=head), UserClaims)


def test_accounts_that_contradict_themselves():
    export = Export(subject="a", type="stream", info_url="https://example.com/a")
    whole = Account(
        cluster_traffic="owner", info_url="https://example.com", exports=(export,), limits=OperatorLimits(exports=-1)
    )
    encode_token(AccountClaims(sub=ACCOUNT.public, nats=whole), OPERATOR)
    for account in (
        Account(imports=(Import(subject="a", type="stream"),)),
        Account(signing_keys=(USER.public,)),
        Account(signing_keys=(SigningScope(kind="other", key=ACCOUNT.public),)),
        Account(signing_keys=(SigningScope(kind="user_scope", key=USER.public, template=Template()),)),
        Account(cluster_traffic="other"),
        Account(info_url="example.com"),
        Account(info_url="http://[x"),
        Account(
            exports=(Export(subject="a", type="stream", info_url="/only/a/path"),), limits=OperatorLimits(exports=-1)
        ),
    ):
        with pytest.raises(TokenError):
            encode_token(AccountClaims(sub=ACCOUNT.public, nats=account), OPERATOR)
    with pytest.raises(TokenError):
        encode_token(OperatorClaims(sub=OPERATOR.public, nats=Operator(signing_keys=(ACCOUNT.public,))), OPERATOR)
    with pytest.raises(TokenError, match="cannot be signed by"):
        encode_token(AccountClaims(sub=ACCOUNT.public), ACCOUNT)


def test_times():
    claims = structs.replace(decode_token(TOKEN, UserClaims), exp=2000, nbf=1500)
    check_times(claims, 1500)
    check_times(claims, 2000)
    for moment in (1499, 2000.1, 10**12, 0, -1):
        with pytest.raises(TokenError):
            check_times(claims, moment)


@given(st.text(max_size=300) | st.text(alphabet=string.ascii_letters + string.digits + "-_.", max_size=300))
def test_any_text_is_an_error(text):
    for kind in KINDS:
        with pytest.raises(TokenError):
            decode_token(text, kind)


@pytest.mark.parametrize("part", [0, 1, 2])
def test_a_padded_token_is_another_text(part):
    parts = TOKEN.split(".")
    for padding in ("=", "=="):
        with pytest.raises(TokenError, match="not a token"):
            decode_token(".".join([*parts[:part], parts[part] + padding, *parts[part + 1 :]]), UserClaims)


@given(st.integers(0, len(TOKEN) - 1), st.sampled_from(string.ascii_letters + string.digits + "-_.=+/ \n\x00é"))
def test_any_other_letter_is_an_error_or_the_same_claims(place, letter):
    changed = TOKEN[:place] + letter + TOKEN[place + 1 :]
    try:
        claims = decode_token(changed, UserClaims)
    except TokenError:
        return
    # The last letter of the signature has bits that say nothing.
    assert claims == decode_token(TOKEN, UserClaims)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from([*User.__struct_fields__, "x"]), inner, max_size=4)
        ),
        max_leaves=9,
    )
)
def test_any_claims_are_understood_or_an_error(nats):
    body = {**user(), "nats": {**(nats if isinstance(nats, dict) else {"pub": nats}), "type": "user", "version": 2}}
    try:
        decode_token(signed(body), UserClaims)
    except TokenError:
        pass


def test_a_token_that_is_too_long():
    with pytest.raises(TokenError, match="too long"):
        decode_token("a" * 2_000_000, UserClaims)


@given(st.text(max_size=80))
def test_any_text_is_no_key(text):
    assert kind_of(text) is None
    assert not verify(text, b"", b"")
    with pytest.raises(InvalidOptionError):
        KeyPair.from_seed(text)


def test_seeds_and_seals():
    for pair in (OPERATOR, ACCOUNT, USER, SERVER):
        assert KeyPair.from_seed(pair.seed).public == pair.public
        assert pair.seed not in repr(pair)
    one, two, three = (CurveKey(bytes([number] * 32)) for number in (1, 2, 3))
    assert CurveKey.from_seed(one.seed).public == one.public
    sealed = one.seal(b"secret", two.public)
    assert two.open(sealed, one.public) == b"secret"
    for wrong in (sealed[:-1], sealed[1:], b"", b"xkv1", sealed + b"x"):
        assert two.open(wrong, one.public) is None
    assert two.open(sealed, three.public) is None and three.open(sealed, one.public) is None
    assert two.open(sealed, USER.public) is None
    with pytest.raises(InvalidOptionError):
        one.seal(b"", USER.public)
    for wrong in (one.seed, "x"):
        with pytest.raises(InvalidOptionError):
            KeyPair.from_seed(wrong)
    with pytest.raises(InvalidOptionError):
        CurveKey.from_seed(USER.seed)
