"""The operators that a server trusts: their accounts, verified, and who of the connected may stay when one changes.

What always holds:
- `accounts` has only claims whose token a trusted operator signed, about the account they are filed under.
- A token with an earlier time of issue never replaces a later one: an old token that is sent again cannot bring back a
  user or an import that the new one revokes.
- A change is on disk before it is in force, and in force before it is confirmed.
- Tokens expire without a request: a timer fires at the next expiry.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from msgspec import to_builtins
from msgspec.structs import replace

from jetlake.auth.claims import AccountClaims, OperatorClaims, SigningScope, UserClaims
from jetlake.auth.keys import ACCOUNT, kind_of
from jetlake.auth.tokens import check_times, decode_token
from jetlake.errors import ConfigError, TokenError
from jetlake.server.config.leaf_options import LeafOptions
from jetlake.server.config.operator_options import OperatorOptions
from jetlake.server.config.options import SYSTEM_ACCOUNT, Options
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.core.timers import Timer, Timers
from jetlake.server.jwt.account_options import Outcome, is_revoked, make_options
from jetlake.server.jwt.folder import AccountFolder
from jetlake.server.shell.access.auth import Identity
from jetlake.server.shell.log import Log
from jetlake.server.version import COMPATIBLE_VERSION

if TYPE_CHECKING:
    from jetlake.server.jwt.lookup import AccountLookup

__all__ = ["ACCOUNT_EXPIRED", "Operators"]

ACCOUNT_EXPIRED = ("Account Authentication Expired", "Authentication Expired")
_REVOKED = ("User Authentication Revoked", "Credentials Revoked")
_VIOLATION = ("Authorization Violation", "Authentication Failure")

_SECOND_NS = 1_000_000_000
# A token is valid through its last second; timers run a little after that.
_AFTER_NS = 1_000_000
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)(?:-.*)?", re.ASCII)


class Operators:
    """Trusted operators with their accounts.

    Args:
        options: the options of the server.
        log: gets each refused token, with the reason.

    Attributes:
        accounts: the claims of each account, by public key.
        tokens: the tokens that they came in.
        system_account: its public key; empty = the configuration names none.

    Raises:
        ConfigError: a token of the configuration cannot be used, or leaf nodes are for an account that is not there.
    """

    def __init__(self, options: Options, clock: Clock, log: Log) -> None:
        assert options.operators is not None
        self.accounts: dict[str, AccountClaims] = {}
        self.tokens: dict[str, str] = {}
        self._options = options.operators
        self._clock = clock
        self._log = log
        self._timers: Timers | None = None
        self._timer: Timer | None = None
        self._on_change: Callable[[], None] = lambda: None
        self._reported: dict[str, None] = {}
        self._trust(options.operators)
        self.folder = AccountFolder(options.operators.folder) if options.operators.folder is not None else None
        if self.folder is not None:
            for name, token in self.folder.read():
                self._load(name, token)
        self._preload(options.operators)
        self.lookup: AccountLookup | None = None
        if options.operators.url:
            from jetlake.server.jwt.lookup import AccountLookup

            self.lookup = AccountLookup(options.operators.url, self)
        self.system_account = self._find_system_account(options.system_account)
        if self.lookup is None:
            options.leafnodes.check_accounts({*self.accounts, self.system_account})
        self._outcome = self._make_options()

    # Trust

    def _trust(self, options: OperatorOptions) -> None:
        """Read the operators' tokens.

        Raises:
            ConfigError: one of them cannot be used.
        """
        self._trusted = set(options.trusted_keys)
        self._strict_accounts: set[str] = set()
        self._named_system_account = ""
        self._claims: list[OperatorClaims] = []
        self.operator_keys: set[str] = set(options.trusted_keys)
        """The keys that may ask for accounts to be deleted."""
        for token in options.tokens:
            try:
                claims = decode_token(token, OperatorClaims)
                check_times(claims, self._now_s())
                if claims.iss != claims.sub:
                    raise TokenError("it must be signed by the operator itself")
                _check_version(claims.nats.assert_server_version)
            except TokenError as error:
                raise ConfigError(f"operator: {error}") from None
            self._claims.append(claims)
            keys = set(claims.nats.signing_keys or ())
            if not claims.nats.strict_signing_key_usage:
                keys.add(claims.sub)
            else:
                self._strict_accounts |= keys
            self._trusted |= keys
            self.operator_keys |= keys
            self._named_system_account = self._named_system_account or claims.nats.system_account

    def _find_system_account(self, configured: str) -> str:
        """Return the public key of the system account.

        Raises:
            ConfigError: configuration and operator name different ones, or it has no token.
        """
        named = self._named_system_account
        if configured == SYSTEM_ACCOUNT:
            configured = named
        elif named and configured != named:
            raise ConfigError("system_account in config and operator JWT must be identical")
        if configured and kind_of(configured) != ACCOUNT:
            raise ConfigError(f"system_account: {configured!r} is not the public key of an account")
        if self.lookup is None:
            self._check_system_account(configured)
        return configured

    def _check_system_account(self, configured: str) -> None:
        if configured and configured not in self.accounts:
            raise ConfigError(
                f"error resolving system account: account missing: {configured} is not in the resolver; "
                "give its token in resolver_preload"
            )

    async def look_up_first(self, leafnodes: LeafOptions) -> None:
        """Look up, at the resolver's URL, the accounts without which the server does not start.

        Raises:
            ConfigError: the resolver does not answer, or does not have one of them.
        """
        if self.lookup is None:
            return
        await self.lookup.check()
        named = {remote.account for remote in leafnodes.remotes}
        if leafnodes.listen is not None:
            named |= {leafnodes.listen.account, *(user.account for user in leafnodes.listen.users)}
        for name in sorted(named | {self.system_account}):
            if name:
                try:
                    await self.lookup.resolve(name)
                except TokenError as error:
                    self._log.error(f"resolver: {error}")
        self._check_system_account(self.system_account)
        leafnodes.check_accounts({*self.accounts, self.system_account})

    async def look_up_stored(self, folder: str) -> None:
        """Look up the accounts that have streams on disk; the streams of those that are not found do nothing."""
        # On some systems a hash follows names with capital letters.
        names = {path.name.partition("~")[0] for path in os.scandir(folder)}
        for name in sorted(names - self.accounts.keys()):
            if self.lookup is not None and kind_of(name) == ACCOUNT:
                try:
                    await self.lookup.resolve(name)
                except TokenError as error:
                    self._log.error(f"resolver: the streams of account {name} are not available: {error}")

    def to_look_up(self, claims: UserClaims) -> str:
        """Return the account of a user, if it is to be looked up before the user can be let in; else nothing."""
        name = claims.account
        if self.lookup is None or (name in self.accounts and not self.is_expired(name)):
            return ""
        return name if kind_of(name) == ACCOUNT and self.may_connect(name) else ""

    def verify(self, token: str, name: str = "") -> AccountClaims:
        """Return the claims of an account's token.

        Args:
            name: the account that it must be about; empty = any.

        Raises:
            TokenError: it is malformed, or a trusted operator did not sign it, or it is about another account.
        """
        claims = decode_token(token, AccountClaims)
        if name and claims.sub != name:
            raise TokenError("subject does not match jwt content")
        if claims.iss not in self._trusted:
            raise TokenError("the account was not signed by a trusted operator")
        return claims

    def may_connect(self, account: str) -> bool:
        """Return whether users of an account may connect to this server at all."""
        pinned = self._options.pinned_accounts
        return not pinned or account in pinned or account == self.system_account

    @property
    def sentinel(self) -> str:
        """The token of clients that show none; empty = they are refused."""
        return self._options.default_sentinel

    # Accounts

    def _load(self, name: str, token: str | None) -> None:
        """Take over a file; one that cannot be used is reported, and the account is not there."""
        try:
            if token is None:
                raise TokenError("it cannot be read")
            claims = self.verify(token, name)
        except TokenError as error:
            self._log.error(f"resolver: the file of account {name} is not used: {error}")
            return
        self.accounts[name], self.tokens[name] = claims, token

    def _preload(self, options: OperatorOptions) -> None:
        """Take over the accounts of the configuration; of a folder they are stored there, where they are newer.

        Raises:
            ConfigError: a token cannot be used.
        """
        for name, token in options.preload:
            try:
                claims = self.verify(token, name)
                present = self.accounts.get(name)
                if present is not None and present.iat > claims.iat:
                    continue
                if self.folder is not None and self.tokens.get(name) != token:
                    self.folder.write(name, token, len(self.accounts))
            except TokenError as error:
                raise ConfigError(f"resolver_preload: account {name}: {error}") from None
            self.accounts[name], self.tokens[name] = claims, token

    def _make_options(self) -> Outcome:
        outcome = make_options(self.accounts, self._now_s())
        for line in outcome.refused:
            if line not in self._reported:
                self._log.error(line)
        self._reported = dict.fromkeys(outcome.refused)
        return outcome

    def complete(self, options: Options) -> Options:
        """Return the server's options with the accounts of the tokens, which has none of its own."""
        system_account = self.system_account or SYSTEM_ACCOUNT
        return options.replace(accounts=self._outcome.accounts, system_account=system_account)

    def is_expired(self, name: str) -> bool:
        """Return whether the account is not valid now."""
        try:
            check_times(self.accounts[name], self._now_s())
        except TokenError:
            return True
        return False

    # Monitoring; the tokens of operators and accounts are no secrets

    def describe(self) -> dict[str, Any]:
        """Describe the operators."""
        if not self._claims:
            return {}
        return {
            "trusted_operators_jwt": self._options.tokens,
            "trusted_operators_claim": [to_builtins(claims) for claims in self._claims],
        }

    def describe_account(self, name: str) -> dict[str, Any]:
        """Describe the token of an account."""
        claims = self.accounts.get(name)
        if claims is None:
            return {}
        return {
            "expired": self.is_expired(name),
            "issuer_key": claims.iss,
            "jwt": self.tokens[name],
            "decoded_jwt": to_builtins(claims),
        }

    # Changes

    def start(self, timers: Timers, on_change: Callable[[], None]) -> None:
        """Have `on_change` called when the options of accounts have changed."""
        self._timers, self._on_change = timers, on_change
        self._schedule()

    def update(self, token: str, name: str = "") -> str:
        """Take over a token that came over the network; return its account.

        Raises:
            TokenError: it is not trusted, older than what is there, or cannot be stored.
        """
        claims = self.verify(token, name)
        check_times(claims, self._now_s())
        present = self.accounts.get(claims.sub)
        if present is not None and present.iat > claims.iat:
            raise TokenError("it was issued before the one that is in force")
        if self.folder is not None:
            self.folder.write(claims.sub, token, len(self.accounts))
        self.accounts[claims.sub], self.tokens[claims.sub] = claims, token
        self._refresh()
        return claims.sub

    def delete(self, name: str) -> None:
        """Remove an account; its clients are disconnected.

        Raises:
            TokenError: the disk refused.
        """
        assert self.folder is not None
        self.folder.delete(name)
        self.accounts.pop(name, None)
        self.tokens.pop(name, None)
        self._refresh()

    def reload(self, options: OperatorOptions) -> None:
        """Take over the accounts of a configuration that was read again.

        Raises:
            ConfigError: it trusts others, has another folder, or a token that cannot be used.
        """
        if replace(options, preload=(), pinned_accounts=(), default_sentinel="") != replace(
            self._options, preload=(), pinned_accounts=(), default_sentinel=""
        ):
            raise ConfigError("config reload not supported for operators and the resolver; restart the server")
        before = self.accounts.copy(), self.tokens.copy()
        try:
            self._preload(options)
        except ConfigError:
            self.accounts, self.tokens = before
            raise
        if self.folder is None and self.lookup is None:
            listed = dict(options.preload)
            if self.system_account not in listed:
                self.accounts, self.tokens = before
                raise ConfigError("resolver_preload: the system account is missing")
            self.accounts = {name: claims for name, claims in self.accounts.items() if name in listed}
            self.tokens = {name: token for name, token in self.tokens.items() if name in listed}
        self._options = options
        self._outcome = self._make_options()
        self._schedule()

    def _refresh(self, _now_ns: int = 0) -> None:
        self._outcome = self._make_options()
        self._schedule()
        self._on_change()

    def _schedule(self) -> None:
        """Set the timer for the next expiry."""
        if self._timers is None:
            return
        self._timers.cancel(self._timer)
        now_s = self._now_s()
        moments = [moment for claims in self.accounts.values() for moment in (claims.exp, claims.nbf)]
        moments.append(self._outcome.until_s)
        following = min((moment for moment in moments if moment >= now_s), default=0)
        self._timer = self._timers.schedule(following * _SECOND_NS + _AFTER_NS, self._refresh) if following else None

    # Users

    def scope_of(self, claims: UserClaims) -> SigningScope | None:
        """Return the scope of the key that signed a user; None = it has none.

        Raises:
            TokenError: the key is none of the account's, or the account allows its own key no more.
        """
        account = self.accounts.get(claims.account)
        if account is None:
            raise TokenError("there is no such account")
        for key in account.nats.signing_keys or ():
            if isinstance(key, SigningScope):
                if key.key == claims.iss:
                    return key
            elif key == claims.iss:
                return None
        if claims.iss != account.sub or account.iss in self._strict_accounts:
            raise TokenError("User JWT issuer is not known")
        return None

    def refusal(self, identity: Identity) -> tuple[str, str] | None:
        """Return the error and the reason with which a connected client is ended; None = it may stay."""
        account = self.accounts.get(identity.account)
        if account is None or self.is_expired(identity.account):
            return ACCOUNT_EXPIRED
        if not self.may_connect(identity.account):
            return _VIOLATION
        claims = identity.claims
        if claims is None or identity.kind != "jwt":
            return None
        if is_revoked(account.nats.revocations, claims.sub, claims.iat):
            return _REVOKED
        try:
            scope = self.scope_of(claims)
        except TokenError:
            return _VIOLATION
        if scope != identity.scope or (claims.nats.bearer_token and account.nats.limits.disallow_bearer):
            return _VIOLATION
        return None

    def _now_s(self) -> float:
        return self._clock.now_ns() / _SECOND_NS


def _check_version(asserted: str) -> None:
    """Check the least version that an operator asks for.

    Raises:
        TokenError: this server is older, or the version is none.
    """
    if not asserted:
        return
    found, own = _VERSION.fullmatch(asserted), _VERSION.fullmatch(COMPATIBLE_VERSION)
    assert own is not None
    if found is None:
        raise TokenError(f"assert_server_version: {asserted!r} is not a version")
    if [int(part) for part in found.groups()] > [int(part) for part in own.groups()]:
        raise TokenError(f"it asks for version {asserted}, and this server is compatible with {COMPATIBLE_VERSION}")
