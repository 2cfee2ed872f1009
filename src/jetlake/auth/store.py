"""A folder with operators, accounts, users and their keys, in the layout of nsc: it reads what nsc wrote, and nsc it.

::

    stores/OP/OP.jwt                               the operator's token
    stores/OP/accounts/ACC/ACC.jwt                 an account's
    stores/OP/accounts/ACC/users/USER.jwt          a user's
    keys/keys/A/BC/ABC….nk                         the seed of a key, by its public half
    keys/creds/OP/ACC/USER.creds                   what a client logs in with

Files with seeds are readable by their owner alone. A token is replaced whole.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from msgspec import structs

from jetlake import platform
from jetlake.auth.claims import (
    UNLIMITED,
    Account,
    AccountClaims,
    Claims,
    Operator,
    OperatorClaims,
    OperatorLimits,
    Permission,
    SigningScope,
    Template,
    UnlimitedUser,
    User,
    UserClaims,
)
from jetlake.auth.keys import ACCOUNT, OPERATOR, USER, KeyPair
from jetlake.auth.tokens import decode_token, encode_token
from jetlake.errors import ConfigError, TokenError
from jetlake.model.credentials import split_credentials

__all__ = ["SYSTEM_NAME", "AuthStore", "account_limits", "credentials_text", "token_of", "user_limits"]

SYSTEM_NAME = "SYS"
"""The account of the server's own requests, made with each operator."""

_NAME = re.compile(r"[A-Za-z0-9_@+-][A-Za-z0-9_.@+-]*", re.ASCII)
_LENGTH_MAX = 1024 * 1024

T = TypeVar("T", bound=Claims)


class AuthStore:
    """The operators in a folder.

    Every method that writes signs with the keys that are in the folder.

    Raises:
        ConfigError: something is not there, is there already, cannot be read or written, or its key is missing.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self._folder = platform.expand_user(folder)

    # Reading

    def operators(self) -> list[str]:
        """List the names of the operators."""
        return _names(self._folder / "stores")

    def only_operator(self, name: str = "") -> str:
        """Return the name of the operator that is meant: the given one, or the only one that there is."""
        names = self.operators()
        if name:
            if name not in names:
                raise ConfigError(f"operator {name} not found in {self._folder}")
            return name
        if len(names) != 1:
            what = "there is no operator" if not names else f"there are several operators ({', '.join(names)})"
            raise ConfigError(
                f"{what} in {self._folder}: "
                + ("create one: jetlake auth operator NAME" if not names else "choose one with --operator")
            )
        return names[0]

    def operator(self, name: str) -> OperatorClaims:
        """Return the claims of an operator."""
        return self._read(self._operator_file(name), OperatorClaims, f"operator {name}")

    def operator_token(self, name: str) -> str:
        """Return the token of an operator."""
        return _read_text(self._operator_file(name), f"operator {name}")

    def accounts(self, operator: str) -> list[str]:
        """List the names of an operator's accounts."""
        return _names(self._folder / "stores" / operator / "accounts")

    def account(self, operator: str, name: str) -> AccountClaims:
        """Return the claims of an account."""
        return self._read(self._account_file(operator, name), AccountClaims, f"account {name}")

    def account_token(self, operator: str, name: str) -> str:
        """Return the token of an account."""
        return _read_text(self._account_file(operator, name), f"account {name}")

    def users(self, operator: str, account: str) -> list[str]:
        """List the names of an account's users."""
        folder = self._account_file(operator, account).parent / "users"
        return sorted(path.stem for path in folder.glob("*.jwt"))

    def user(self, operator: str, account: str, name: str) -> UserClaims:
        """Return the claims of a user."""
        return self._read(self._user_file(operator, account, name), UserClaims, f"user {name} of account {account}")

    def credentials_file(self, operator: str, account: str, user: str) -> Path:
        """Return the path of a user's credentials file."""
        return self._folder / "keys" / "creds" / operator / account / f"{_checked(user)}.creds"

    def configuration(self, operator: str, folder: str = "") -> str:
        """Return the part of a server's configuration that trusts an operator.

        Args:
            folder: where the server keeps accounts that are pushed; empty = it has these in memory.
        """
        claims = self.operator(operator)
        names = [SYSTEM_NAME] if folder and SYSTEM_NAME in self.accounts(operator) else self.accounts(operator)
        preload = [
            f"  # {name}\n  {self.account(operator, name).sub}: {self.account_token(operator, name)}" for name in names
        ]
        resolver = f'{{\n  type: full\n  dir: "{folder}"\n  allow_delete: true\n}}' if folder else "MEMORY"
        lines = [f"# operator {claims.name}", f"operator: {self.operator_token(operator)}"]
        if claims.nats.system_account:
            lines.append(f"system_account: {claims.nats.system_account}")
        lines += [f"resolver: {resolver}", "resolver_preload: {", *preload, "}"]
        return "\n".join(lines) + "\n"

    # Writing

    def create_operator(self, name: str) -> None:
        """Create an operator with a signing key, its system account, and that account's user `sys`."""
        file = self._operator_file(name)
        if file.exists():
            raise ConfigError(f"operator {name} exists already in {self._folder}")
        key, signing_key, system = KeyPair.create(OPERATOR), KeyPair.create(OPERATOR), KeyPair.create(ACCOUNT)
        for pair in (key, signing_key, system):
            self._keep(pair)
        claims = OperatorClaims(
            sub=key.public,
            name=name,
            nats=Operator(signing_keys=(signing_key.public,), system_account=system.public),
        )
        self._write(file, encode_token(claims, key))
        self._sign_account(name, SYSTEM_NAME, AccountClaims(sub=system.public, nats=_system_account()))
        self.create_user(name, SYSTEM_NAME, "sys", UnlimitedUser())

    def create_account(self, operator: str, name: str, limits: OperatorLimits) -> None:
        """Create an account with these limits."""
        if self._account_file(operator, name).exists():
            raise ConfigError(f"account {name} exists already: change it with --edit")
        key = KeyPair.create(ACCOUNT)
        self._keep(key)
        self._sign_account(operator, name, AccountClaims(sub=key.public, nats=Account(limits=limits)))

    def change_account(self, operator: str, name: str, account: Account) -> None:
        """Sign an account again, with other claims."""
        claims = self.account(operator, name)
        self._sign_account(operator, name, structs.replace(claims, nats=account))

    def add_signing_key(self, operator: str, account: str, role: str, template: Template) -> str:
        """Give an account a signing key whose users may do what the template says; return the key."""
        claims = self.account(operator, account)
        if self._scope_of(claims, role) is not None:
            raise ConfigError(f"account {account} has a signing key of role {role} already")
        key = KeyPair.create(ACCOUNT)
        self._keep(key)
        scope = SigningScope(kind="user_scope", key=key.public, role=role, template=template)
        keys = (*(claims.nats.signing_keys or ()), scope)
        self.change_account(operator, account, structs.replace(claims.nats, signing_keys=keys))
        return key.public

    def create_user(
        self, operator: str, account: str, name: str, limits: User, *, role: str = "", expires_s: float | None = None
    ) -> Path:
        """Sign a user's token, and write its credentials file; one that exists gets a new token for the same key.

        Args:
            limits: what the user may do; with a role nothing, for its template says that.
            role: the signing key of the account to sign with; empty = the account's own.
            expires_s: seconds from now; None = never.
        """
        claims = self.account(operator, account)
        signer, issuer_account = claims.sub, ""
        if role:
            scope = self._scope_of(claims, role)
            if scope is None:
                raise ConfigError(f"account {account} has no signing key of role {role}: jetlake auth key")
            signer, issuer_account = scope.key, claims.sub
            limits = User(tags=limits.tags)
        file = self._user_file(operator, account, name)
        key = self._key(self.user(operator, account, name).sub) if file.exists() else KeyPair.create(USER)
        self._keep(key)
        # Behind a revocation of the same second.
        revoked_s = (claims.nats.revocations or {}).get(key.public, 0)
        user = UserClaims(
            sub=key.public,
            name=name,
            iat=max(int(time.time()), revoked_s + 1),
            exp=int(time.time() + expires_s) if expires_s is not None else 0,
            nats=structs.replace(limits, issuer_account=issuer_account),
        )
        token = encode_token(user, self._key(signer))
        self._write(file, token)
        credentials = self.credentials_file(operator, account, name)
        self._write(credentials, credentials_text(token, key.seed), is_secret=True)
        return credentials

    def revoke(self, operator: str, account: str, user: str) -> None:
        """Make all tokens void that a user has by now."""
        claims, revoked = self.account(operator, account), self.user(operator, account, user)
        revocations = {**(claims.nats.revocations or {}), revoked.sub: int(time.time())}
        self.change_account(operator, account, structs.replace(claims.nats, revocations=revocations))

    def _scope_of(self, claims: AccountClaims, role: str) -> SigningScope | None:
        for key in claims.nats.signing_keys or ():
            if isinstance(key, SigningScope) and key.role == role:
                return key
        return None

    def _sign_account(self, operator: str, name: str, claims: AccountClaims) -> None:
        trusted = self.operator(operator)
        candidates = [*(trusted.nats.signing_keys or ())]
        if not trusted.nats.strict_signing_key_usage:
            candidates.append(trusted.sub)
        key = next((pair for public in candidates if (pair := self._find_key(public)) is not None), None)
        if key is None:
            raise ConfigError(f"the keys of operator {operator} are not in {self._folder / 'keys'}")
        # Later than the token before it, however fast one follows the other.
        issued = max(int(time.time()), claims.iat)
        self._write(
            self._account_file(operator, name), encode_token(structs.replace(claims, name=name, iat=issued), key)
        )

    # Files

    def _operator_file(self, name: str) -> Path:
        return self._folder / "stores" / _checked(name) / f"{name}.jwt"

    def _account_file(self, operator: str, name: str) -> Path:
        return self._folder / "stores" / _checked(operator) / "accounts" / _checked(name) / f"{name}.jwt"

    def _user_file(self, operator: str, account: str, name: str) -> Path:
        return self._account_file(operator, account).parent / "users" / f"{_checked(name)}.jwt"

    def _key_file(self, public: str) -> Path:
        return self._folder / "keys" / "keys" / public[0] / public[1:3] / f"{public}.nk"

    def _keep(self, key: KeyPair) -> None:
        self._write(self._key_file(key.public), key.seed, is_secret=True)

    def _find_key(self, public: str) -> KeyPair | None:
        file = self._key_file(public)
        return KeyPair.from_seed(_read_text(file, f"key {public}")) if file.exists() else None

    def _key(self, public: str) -> KeyPair:
        key = self._find_key(public)
        if key is None:
            raise ConfigError(f"the seed of key {public} is not in {self._folder / 'keys'}")
        return key

    def _read(self, file: Path, kind: type[T], what: str) -> T:
        try:
            return decode_token(_read_text(file, what), kind)
        except TokenError as error:
            raise ConfigError(f"{what}: {file}: {error}") from None

    def _write(self, file: Path, text: str, *, is_secret: bool = False) -> None:
        aside = file.with_name(file.name + ".new")
        try:
            file.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            handle = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600 if is_secret else 0o644)
            with os.fdopen(handle, "w", encoding="ascii") as opened:
                opened.write(text)
            aside.replace(file)
        except OSError as error:
            raise ConfigError(f"cannot write {file}: {error.strerror}") from None


def _system_account() -> Account:
    return Account(limits=account_limits())


def account_limits(**changes: int | bool) -> OperatorLimits:
    """Return the limits of an account that is limited in nothing but these, and has no JetStream."""
    free: dict[str, int | bool] = dict.fromkeys(
        ("subs", "data", "payload", "imports", "exports", "conn", "leaf"), UNLIMITED
    )
    return OperatorLimits(**{**free, "wildcards": True, **changes})  # type: ignore[arg-type]  # by the fields' names


def user_limits(
    publish: Sequence[str], subscribe: Sequence[str], tags: Sequence[str] = (), *, is_bearer: bool = False
) -> User:
    """Return what a user may do: publish and subscribe these subjects; without any, everything."""
    return UnlimitedUser(
        pub=Permission(allow=tuple(publish)),
        sub=Permission(allow=tuple(subscribe)),
        tags=tuple(tags),
        bearer_token=is_bearer,
    )


def credentials_text(token: str, seed: str) -> str:
    """Return the text of a credentials file."""
    return (
        f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
        "************************* IMPORTANT *************************\n"
        "NKEY Seed printed below can be used to sign and prove identity.\n"
        "NKEYs are sensitive and should be treated as secrets.\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n"
        "*************************************************************\n"
    )


def token_of(text: str) -> str:
    """Return the token in a text: itself, or the token in a credentials file."""
    token, _ = split_credentials(text)
    return token or text.strip()


def _checked(name: str) -> str:
    """Return a name that is no path."""
    if not _NAME.fullmatch(name):
        raise ConfigError(f"{name!r} is not a name: use letters, digits, and any of . _ @ + -")
    return name


def _names(folder: Path) -> list[str]:
    """List the folders that hold a token of their own name."""
    return sorted(path.name for path in folder.glob("*") if (path / f"{path.name}.jwt").is_file())


def _read_text(file: Path, what: str) -> str:
    try:
        with file.open(encoding="ascii") as opened:
            text = opened.read(_LENGTH_MAX + 1)
    except FileNotFoundError:
        raise ConfigError(f"{what} not found: there is no {file}") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{what}: cannot read {file} ({type(error).__name__})") from None
    if len(text) > _LENGTH_MAX:
        raise ConfigError(f"{what}: {file} is too long")
    return text.strip()
