"""`jetlake auth …`: operators, accounts and users whose tokens a server trusts, in a folder laid out like nsc's."""

from __future__ import annotations

import os
import time
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

import click
from msgspec import structs, to_builtins
from msgspec.json import decode, encode

from jetlake.auth.claims import (
    AccountClaims,
    ActivationClaims,
    Claims,
    OperatorClaims,
    Permission,
    Template,
    UserClaims,
)
from jetlake.auth.keys import ACCOUNT, CURVE, OPERATOR, SERVER, USER, CurveKey, KeyPair, kind_of, verify
from jetlake.auth.store import SYSTEM_NAME, AuthStore, account_limits, token_of, user_limits
from jetlake.auth.tokens import check_times, decode_token
from jetlake.cli import output
from jetlake.cli.session import EXIT_FAILED, Session, command, fail, guarded, json_option, pass_session
from jetlake.cli.shared_options import SharedGroup
from jetlake.cli.values import DURATION, SIZE
from jetlake.errors import ConfigError, TokenError

_KINDS: tuple[type[Claims], ...] = (UserClaims, AccountClaims, OperatorClaims, ActivationClaims)
_TEXT_MAX = 1024 * 1024


class _AuthGroup(SharedGroup):
    """Takes the verbs that `nats` has behind operator, account and user: otherwise they would be names."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        kind, verb, rest = args[0], "".join(args[1:2]), args[2:]
        if kind in ("operator", "account", "user"):
            if verb in ("add", "create", "new"):
                # `nats auth user add NAME ACCOUNT`
                of_account = kind == "user" and len(rest) > 1 and not rest[1].startswith("-")
                args = [kind, rest[0], "--account", *rest[1:]] if of_account else [kind, *rest]
            elif verb in ("ls", "list"):
                args = ["ls", *rest]
            elif kind == "account" and verb == "edit":
                args = [kind, "--edit", *rest]
            elif kind == "account" and verb == "push":
                args = ["push", *rest]
            elif verb in ("info", "show", "view", "edit", "rm", "del", "delete", "import", "select"):
                raise click.UsageError(
                    f"'auth {kind} {verb}' is not here. List: jetlake auth ls; read a file: jetlake auth show FILE; "
                    "revoke a user: jetlake auth revoke NAME --account ACCOUNT",
                    ctx,
                )
        return super().resolve_command(ctx, args)


@click.group(cls=_AuthGroup)
def auth() -> None:
    """Create operators, accounts and users for a server that trusts tokens."""


_folder = click.option(
    "--folder",
    default="auth",
    show_default=True,
    envvar="JETLAKE_AUTH",
    metavar="DIR",
    help="Folder with tokens and keys, such as nsc's own: ~/.local/share/nats/nsc [env: JETLAKE_AUTH].",
)
_operator = click.option("--operator", default="", metavar="NAME", help="Operator; not needed when there is only one.")
_account = click.option("--account", required=True, metavar="NAME", help="Account.")
_publish = click.option("--publish", multiple=True, metavar="SUBJECT", help="Subject to publish to; none = all.")
_subscribe = click.option("--subscribe", multiple=True, metavar="SUBJECT", help="Subject to subscribe; none = all.")


@auth.command("operator", example="jetlake auth operator dev")
@click.argument("name")
@_folder
@json_option
@pass_session
def create_operator(session: Session, name: str, folder: str, as_json: bool) -> None:
    """Create an operator with its system account SYS and that account's user sys."""
    store = AuthStore(folder)
    guarded(lambda: store.create_operator(name), session)
    creds = str(store.credentials_file(name, SYSTEM_NAME, "sys"))
    output.tell(
        f"Created operator {name} with system account {SYSTEM_NAME}; its user: {creds}",
        {"operator": name, "system_account": SYSTEM_NAME, "creds": creds},
        as_json,
    )


@auth.command("account", example="jetlake auth account shop --jetstream")
@click.argument("name")
@click.option("--edit", is_flag=True, help="Change the limits of an existing account.")
@click.option("--jetstream", is_flag=True, help="Streams without a limit.")
@click.option("--storage", type=SIZE, metavar="SIZE", help="Bytes of streams in files.")
@click.option("--memory", type=SIZE, metavar="SIZE", help="Bytes of streams in memory.")
@click.option("--streams", type=int, metavar="N", help="Number of streams.")
@click.option("--connections", type=int, metavar="N", help="Number of connections.")
@click.option("--payload", type=SIZE, metavar="SIZE", help="Bytes of a message.")
@_operator
@_folder
@json_option
@pass_session
def create_account(
    session: Session,
    name: str,
    edit: bool,
    jetstream: bool,
    storage: int | None,
    memory: int | None,
    streams: int | None,
    connections: int | None,
    payload: int | None,
    operator: str,
    folder: str,
    as_json: bool,
) -> None:
    """Create an account, or with --edit change its limits."""
    given = {
        "disk_storage": storage if storage is not None else -1 if jetstream else None,
        "mem_storage": memory if memory is not None else -1 if jetstream else None,
        "streams": streams if streams is not None else -1 if jetstream else None,
        "consumer": -1 if jetstream or storage is not None or memory is not None else None,
        "conn": connections,
        "payload": payload,
    }
    limits: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    store = AuthStore(folder)

    def write() -> None:
        chosen = store.only_operator(operator)
        if not edit:
            store.create_account(chosen, name, account_limits(**limits))
            return
        account = store.account(chosen, name).nats
        changed = structs.replace(account, limits=structs.replace(account.limits, **limits))
        store.change_account(chosen, name, changed)

    guarded(write, session)
    output.tell(f"{'Changed' if edit else 'Created'} account {name}", {"account": name}, as_json)


@auth.command("user", example="jetlake auth user ann --account shop --publish 'orders.>' --expires 1d")
@click.argument("name")
@_account
@_publish
@_subscribe
@click.option("--expires", type=DURATION, metavar="TIME", help="How long the token is valid.")
@click.option("--bearer", is_flag=True, help="The token alone logs in: nothing has to be signed.")
@click.option("--tag", multiple=True, metavar="KEY:VALUE", help="Tag, for the template of a signing key.")
@click.option("--role", default="", metavar="NAME", help="Sign with the signing key of this role.")
@_operator
@_folder
@json_option
@pass_session
def create_user(
    session: Session,
    name: str,
    account: str,
    publish: tuple[str, ...],
    subscribe: tuple[str, ...],
    expires: int | None,
    bearer: bool,
    tag: tuple[str, ...],
    role: str,
    operator: str,
    folder: str,
    as_json: bool,
) -> None:
    """Create a user with a credentials file; one that exists gets a new token for the same key."""
    store = AuthStore(folder)

    def write() -> Path:
        if role and (publish or subscribe or bearer):
            raise ConfigError("the template of a role says what its users may do: leave out permissions and --bearer")
        limits = user_limits(publish, subscribe, tag, is_bearer=bearer)
        expires_s = expires / 1e9 if expires is not None else None
        chosen = store.only_operator(operator)
        return store.create_user(chosen, account, name, limits, role=role, expires_s=expires_s)

    creds = str(guarded(write, session))
    output.tell(f"Created user {name}: {creds}", {"user": name, "account": account, "creds": creds}, as_json)


@auth.command("key", example="jetlake auth key clerk --account shop --publish 'orders.{{name()}}.>'")
@click.argument("role")
@_account
@_publish
@_subscribe
@_operator
@_folder
@json_option
@pass_session
def create_key(
    session: Session,
    role: str,
    account: str,
    publish: tuple[str, ...],
    subscribe: tuple[str, ...],
    operator: str,
    folder: str,
    as_json: bool,
) -> None:
    """Give an account a signing key; its users get the permissions of these options.

    A token {{name()}}, {{tag(KEY)}} or {{subject()}} of a subject is filled in for each user.
    """
    store = AuthStore(folder)
    template = Template(pub=Permission(allow=publish), sub=Permission(allow=subscribe))
    public = guarded(lambda: store.add_signing_key(store.only_operator(operator), account, role, template), session)
    output.tell(f"Created signing key of role {role}: {public}", {"role": role, "key": public}, as_json)


@auth.command("revoke", example="jetlake auth revoke ann --account shop")
@click.argument("name")
@_account
@_operator
@_folder
@json_option
@pass_session
def revoke(session: Session, name: str, account: str, operator: str, folder: str, as_json: bool) -> None:
    """Revoke all existing tokens of user NAME; takes effect with `jetlake auth push`."""
    store = AuthStore(folder)
    guarded(lambda: store.revoke(store.only_operator(operator), account, name), session)
    output.tell(f"Revoked user {name} of account {account}", {"user": name, "account": account}, as_json)


@auth.command("ls", example="jetlake auth ls")
@_folder
@json_option
@pass_session
def list_all(session: Session, folder: str, as_json: bool) -> None:
    """List operators, accounts and users."""
    store = AuthStore(folder)

    def rows() -> list[tuple[str, str, str, list[str]]]:
        return [
            (operator, account, store.account(operator, account).sub, store.users(operator, account))
            for operator in store.operators()
            for account in store.accounts(operator)
        ]

    found = guarded(rows, session)
    if as_json:
        keys = ("operator", "account", "key", "users")
        output.print_json([dict(zip(keys, row, strict=True)) for row in found])
    elif not found:
        click.echo(f"No operators in {folder}. Create one: jetlake auth operator NAME")
    else:
        output.print_table(
            output.plural(len(found), "account"),
            ["Operator", "Account", "Key", "Users"],
            [[*row[:3], ", ".join(row[3])] for row in found],
        )


@auth.command("show", example="jetlake auth show auth/keys/creds/dev/shop/ann.creds")
@click.argument("file")
@json_option
@pass_session
def show(session: Session, file: str, as_json: bool) -> None:
    """Show a token, from its own file or a credentials file, and check its signature."""
    claims = guarded(lambda: _decode(file), session)
    state = "valid"
    try:
        check_times(claims, time.time())
    except TokenError as error:
        state = str(error)
    facts = {"type": claims.TYPE, "state": state, **to_builtins(claims)}
    if as_json:
        output.print_json(facts)
        return
    output.print_facts(
        f"{claims.TYPE} {claims.name or claims.sub}",
        {
            "Token": [
                ("State", state),
                ("Subject", claims.sub),
                ("Issuer", claims.iss),
                ("Issued", _moment(claims.iat)),
                ("Expires", _moment(claims.exp)),
            ],
            "Claims": [(key, _readable(value)) for key, value in facts.get("nats", {}).items()],
        },
    )


def _moment(seconds: int) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds)) if seconds else "never"


def _readable(value: Any) -> str:
    return value if isinstance(value, str) else encode(value).decode()


def _decode(file: str) -> Claims:
    with Path(file).open(encoding="utf-8", errors="replace") as opened:
        text = opened.read(_TEXT_MAX)
    token = token_of(text)
    for kind in _KINDS:
        try:
            return decode_token(token, kind)
        except TokenError as error:
            if "expected a token of type" not in str(error):
                raise ConfigError(f"{file}: {error}") from None
    raise ConfigError(f"{file}: a token of a type that is not known here")


@auth.command("config", example="jetlake auth config --resolver accounts")
@click.option("--resolver", default="", metavar="DIR", help="Folder of the server for pushed accounts; else in memory.")
@_operator
@_folder
@pass_session
def config(session: Session, resolver: str, operator: str, folder: str) -> None:
    """Print the configuration of a server that trusts the operator."""
    store = AuthStore(folder)
    click.echo(guarded(lambda: store.configuration(store.only_operator(operator), resolver), session), nl=False)


@auth.command("push", example="jetlake auth push shop")
@click.argument("names", metavar="[ACCOUNT]...", nargs=-1)
@_operator
@_folder
@json_option
@command
async def push(session: Session, names: tuple[str, ...], operator: str, folder: str, as_json: bool) -> None:
    """Send accounts to a running server, all of them or those named, as the user of the system account."""
    store = AuthStore(folder)
    chosen = store.only_operator(operator)
    session.target = structs.replace(
        session.target, creds=str(store.credentials_file(chosen, SYSTEM_NAME, "sys")), user="", password="", token=""
    )
    wanted = list(names) or [name for name in store.accounts(chosen) if name != SYSTEM_NAME]
    failed = []
    results = {}
    async with await session.connect() as client:
        for name in wanted:
            claims, token = store.account(chosen, name), store.account_token(chosen, name)
            subject = f"$SYS.REQ.ACCOUNT.{claims.sub}.CLAIMS.UPDATE"
            answer = decode((await client.request(subject, token.encode(), timeout=session.timeout_s)).payload)
            problem = answer.get("error")
            results[name] = problem["description"] if problem else answer["data"]["message"]
            if problem:
                failed.append(name)
    if as_json:
        output.print_json(results)
    else:
        for name, result in results.items():
            click.echo(f"{name}: {result}")
    if failed:
        fail(f"{output.plural(len(failed), 'account')} not accepted: {', '.join(failed)}", EXIT_FAILED)


@auth.group("nkey", cls=SharedGroup)
def nkey() -> None:
    """Create keys, sign with them, and check signatures."""


@nkey.command("gen", example="jetlake auth nkey gen user --output user.nk")
@click.argument("kind", type=click.Choice([USER, ACCOUNT, OPERATOR, SERVER, CURVE], case_sensitive=False))
@click.option("--output", "file", metavar="FILE", help="Write the seed to this file, and print the public key.")
@json_option
@pass_session
def generate_key(session: Session, kind: str, file: str | None, as_json: bool) -> None:
    """Create a random key of KIND, and print its seed and its public key."""
    key = guarded(lambda: CurveKey.create() if kind == CURVE else KeyPair.create(kind), session)
    if file:
        guarded(lambda: _write_seed(file, key.seed), session)
        output.tell(key.public, {"public": key.public, "file": file}, as_json)
    else:
        output.tell(f"{key.seed}\n{key.public}", {"seed": key.seed, "public": key.public}, as_json)


def _write_seed(file: str, seed: str) -> None:
    """Write a new file that only its owner can read."""
    try:
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        raise ConfigError(f"{file} exists already; a key is never overwritten") from None
    with os.fdopen(descriptor, "w") as opened:
        opened.write(f"{seed}\n")


def _read_seed(file: str) -> KeyPair | CurveKey:
    seed = Path(file).read_text(errors="replace").strip()[:_TEXT_MAX]
    return CurveKey.from_seed(seed) if seed.startswith("SX") else KeyPair.from_seed(seed)


@nkey.command("show", example="jetlake auth nkey show user.nk")
@click.argument("file")
@json_option
@pass_session
def show_key(session: Session, file: str, as_json: bool) -> None:
    """Print the public key of the seed in FILE."""
    key = guarded(lambda: _read_seed(file), session)
    output.tell(key.public, {"public": key.public}, as_json)


@nkey.command("sign", example="jetlake auth nkey sign release.tar user.nk")
@click.argument("file")
@click.argument("key")
@json_option
@pass_session
def sign_file(session: Session, file: str, key: str, as_json: bool) -> None:
    """Sign FILE with the seed in the file KEY, and print the signature in base64."""

    def sign() -> bytes:
        pair = _read_seed(key)
        if isinstance(pair, CurveKey):
            raise ConfigError(f"{key} holds a key that seals and does not sign")
        return pair.sign(Path(file).read_bytes())

    signature = b64encode(guarded(sign, session)).decode()
    output.tell(signature, {"signature": signature}, as_json)


@nkey.command("check", example="jetlake auth nkey check release.tar release.sig user.nk")
@click.argument("file")
@click.argument("signature")
@click.argument("key")
@json_option
@pass_session
def check_signature(session: Session, file: str, signature: str, key: str, as_json: bool) -> None:
    """Check whether KEY, a public key or a file with a seed, signed FILE; SIGNATURE is base64 or a file with it."""

    def holds() -> bool:
        public = key if kind_of(key) else _read_seed(key).public
        text = Path(signature).read_text() if Path(signature).is_file() else signature
        try:
            signed = b64decode(text.strip().translate(_STANDARD), validate=True)
        except ValueError:
            raise ConfigError(f"{signature[:40]} is neither a file nor a signature in base64") from None
        return verify(public, Path(file).read_bytes(), signed)

    if not guarded(holds, session):
        fail(f"{file} was not signed with this signature by {key}")
    output.tell("The signature is valid", {"valid": True}, as_json)


_STANDARD = str.maketrans("-_", "+/")
"""Signatures come with either alphabet of base64."""
