"""The folder of `jetlake auth`: both servers take what it makes, and it reads what nsc lays out."""

import json
import stat

import pytest

from jetlake.auth.claims import Template, UnlimitedUser
from jetlake.auth.store import AuthStore, account_limits, user_limits
from jetlake.errors import AuthorizationError, ConfigError, PermissionsError
from tests.support.operators import Realm


@pytest.fixture
def store(tmp_path):
    store = AuthStore(tmp_path / "auth")
    store.create_operator("dev")
    store.create_account("dev", "shop", account_limits(disk_storage=-1, mem_storage=-1))
    return store


async def test_a_server_runs_on_what_was_made(start, clients, store):
    ann = store.create_user("dev", "shop", "ann", user_limits(["orders.>", "$JS.>"], []))
    key = store.add_signing_key("dev", "shop", "clerk", Template())
    bob = store.create_user("dev", "shop", "bob", UnlimitedUser(), role="clerk")
    late = store.create_user("dev", "shop", "late", UnlimitedUser(), expires_s=-10)
    assert key.startswith("A")
    config = store.configuration("dev") + '\njetstream { store_dir: "STORE_DIR" }'
    server = await start(config)
    client = await clients(server, credentials=ann)
    js = client.jetstream()
    await js.create_stream("ORDERS", subjects=["orders.>"])
    assert (await js.publish("orders.1", b"x")).seq == 1
    with pytest.raises(PermissionsError):
        await client.request("other", b"")
    assert (await clients(server, credentials=bob)).is_connected
    with pytest.raises(AuthorizationError):
        await clients(server, credentials=late)
    system = await clients(server, credentials=store.credentials_file("dev", "SYS", "sys"))
    assert (await system.request("$SYS.REQ.SERVER.PING.IDZ")).payload


async def test_a_revoked_user_gets_in_again_with_a_new_token(start, clients, store, tmp_path):
    ann = store.create_user("dev", "shop", "ann", UnlimitedUser())
    server = await start(store.configuration("dev", str(tmp_path / "accounts")), ["no_jetstream"])
    system = await clients(server, credentials=store.credentials_file("dev", "SYS", "sys"))

    async def push():
        answer = await system.request("$SYS.REQ.CLAIMS.UPDATE", store.account_token("dev", "shop").encode())
        assert json.loads(answer.payload)["data"]["code"] == 200

    await push()
    assert (await clients(server, credentials=ann)).is_connected
    store.revoke("dev", "shop", "ann")
    await push()
    with pytest.raises(AuthorizationError):
        await clients(server, credentials=ann)
    store.create_user("dev", "shop", "ann", UnlimitedUser())
    assert (await clients(server, credentials=ann)).is_connected


def test_secrets_are_for_their_owner_alone(store, tmp_path):
    store.create_user("dev", "shop", "ann", UnlimitedUser())
    secrets = [*(tmp_path / "auth" / "keys").rglob("*.nk"), *(tmp_path / "auth" / "keys").rglob("*.creds")]
    assert len(secrets) >= 6
    assert {stat.S_IMODE(path.stat().st_mode) for path in secrets} == {0o600}


def test_what_nsc_lays_out_is_read(tmp_path):
    """Tokens as nsc signs and files them, made without the package's own code."""
    realm = Realm()
    account = realm.new_account("shop")
    jwt, user = realm.user(account, "ann")
    files = {
        "stores/OP/OP.jwt": realm.operator_token(system_account=realm.system.public),
        "stores/OP/.nsc": "{}",
        "stores/OP/accounts/shop/shop.jwt": realm.accounts[account.public],
        "stores/OP/accounts/shop/users/ann.jwt": jwt,
        "stores/OP/accounts/SYS/SYS.jwt": realm.accounts[realm.system.public],
    }
    for pair in (realm.operator, account, user):
        files[f"keys/keys/{pair.public[0]}/{pair.public[1:3]}/{pair.public}.nk"] = pair.seed
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    store = AuthStore(tmp_path)
    assert store.only_operator() == "OP"
    assert store.accounts("OP") == ["SYS", "shop"]
    assert store.users("OP", "shop") == ["ann"]
    assert store.user("OP", "shop", "ann").sub == user.public
    store.revoke("OP", "shop", "ann")
    assert list(store.account("OP", "shop").nats.revocations) == [user.public]
    assert f"system_account: {realm.system.public}" in store.configuration("OP")


@pytest.mark.parametrize("name", ["", ".", "..", "../x", "a/b", "a\\b", "-\n", ".hidden", "a b", "ä"])
def test_a_name_is_no_path(store, name):
    with pytest.raises(ConfigError, match="is not a name"):
        store.create_account("dev", name, account_limits())
    with pytest.raises(ConfigError, match="is not a name"):
        store.create_user("dev", "shop", name, UnlimitedUser())


def test_what_is_not_there_is_a_clear_error(store, tmp_path):
    for wrong in (
        lambda: store.create_operator("dev"),
        lambda: store.create_account("dev", "shop", account_limits()),
        lambda: store.create_user("dev", "none", "ann", UnlimitedUser()),
        lambda: store.create_user("dev", "shop", "ann", UnlimitedUser(), role="none"),
        lambda: store.revoke("dev", "shop", "nobody"),
        lambda: store.only_operator("other"),
        lambda: AuthStore(tmp_path / "empty").only_operator(),
    ):
        with pytest.raises(ConfigError):
            wrong()
    (tmp_path / "auth" / "stores" / "dev" / "accounts" / "shop" / "shop.jwt").write_text("x.y.z")
    with pytest.raises(ConfigError, match="account shop"):
        store.account("dev", "shop")
