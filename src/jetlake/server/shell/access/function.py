"""A Python function that decides who may connect: `Server(authenticate=function)`."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import suppress
from inspect import isawaitable, iscoroutinefunction
from threading import Thread
from typing import Any

from msgspec import Struct, convert, to_builtins

from jetlake.errors import ConfigError
from jetlake.server.config.options import GLOBAL_ACCOUNT, ConnectionLimits, Options, Permissions
from jetlake.server.engine.core.clock import Clock
from jetlake.server.nkey import verify_signature
from jetlake.server.shell.access.auth import Applicant, Arbiter, Authentication, Authenticator, Identity
from jetlake.server.shell.access.certificate import Certificate
from jetlake.server.shell.access.connect_options import ConnectOptions

__all__ = ["Access", "Authenticate", "ConnectRequest", "FunctionArbiter", "FunctionAuthenticator"]

_SECOND_NS = 1_000_000_000
# Plain functions that run at the same time; clients beyond wait, for as long as authentication may take.
_THREADS_MAX = 8


class ConnectRequest(Struct, frozen=True, kw_only=True):
    """A client that wants to connect."""

    user: str = ""
    password: str = ""
    token: str = ""
    nkey: str = ""
    """The public key, whose owner has signed the server's nonce; empty when the client has none, or cannot sign."""
    jwt: str = ""
    """A token that was not verified."""
    name: str = ""
    """The name that the client gives itself."""
    lang: str = ""
    version: str = ""
    host: str = ""
    """The client's address; empty for a client in the server's own process."""
    connection_type: str = "STANDARD"
    """`STANDARD`, `WEBSOCKET`, `LEAFNODE` or `LEAFNODE_WS`."""
    client_id: int = 0
    """The connection's number in logs and monitoring."""
    has_tls: bool = False

    def __repr__(self) -> str:
        return f"ConnectRequest(user={self.user!r}, nkey={self.nkey!r}, name={self.name!r}, host={self.host!r})"


class Access(Struct, frozen=True, kw_only=True):
    """What a client may do that is let in."""

    user: str = ""
    """The name in logs and monitoring; empty = the one that the client gave."""
    account: str = GLOBAL_ACCOUNT
    """One of the server's accounts."""
    permissions: Permissions | None = None
    """None = everything is allowed."""
    expires_s: float | None = None
    """Seconds after which the connection ends; None = never."""
    max_payload: int = -1
    """Bytes of a message; -1 = what the account allows."""
    max_subscriptions: int = -1


Authenticate = Callable[[ConnectRequest], Access | bool | Awaitable[Access | bool | None] | None]
"""Returns what the client may do; True = everything in the global account, False or None = it is refused."""


class FunctionArbiter:
    """Calls the function: a coroutine function in the server's loop, any other in a thread.

    Args:
        clock: tells the time that an expiry counts from.
    """

    def __init__(self, function: Authenticate, clock: Clock) -> None:
        self._function = function
        self._clock = clock
        self._free = asyncio.Semaphore(_THREADS_MAX)

    async def decide(self, applicant: Applicant) -> Identity | None:
        """Return who the client is by the function's word; None = it is refused."""
        request = _request(applicant)
        try:
            given = self._function(request) if iscoroutinefunction(self._function) else await self._call(request)
            access: Any = await given if isawaitable(given) else given
        except SystemExit as error:
            # A library that ends the program because of one client would end the server.
            raise RuntimeError(f"authenticate called exit({error.code!r})") from None
        if access is None or access is False:
            return None
        if access is True:
            access = Access()
        if not isinstance(access, Access):
            raise TypeError(f"authenticate returned {type(access).__name__}, not Access, True, False or None")
        # Structs take values of any type: a wrong one must not be found when the client is let in.
        access = convert(to_builtins(access), Access)
        if access.permissions is not None:
            access.permissions.check()
        expires_ns = 0
        if access.expires_s is not None:
            expires_ns = self._clock.now_ns() + max(int(access.expires_s * _SECOND_NS), 1)
        return Identity(
            user=access.user or request.user or request.nkey,
            account=access.account,
            permissions=access.permissions,
            kind="function",
            expires_ns=expires_ns,
            limits=ConnectionLimits(max_subscriptions=access.max_subscriptions, max_payload=access.max_payload),
        )

    async def _call(self, request: ConnectRequest) -> Any:
        """Call a plain function in a thread; while all are taken, calls that have waited too long are dropped here."""
        await self._free.acquire()
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()

        def deliver(result: Any, error: BaseException | None) -> None:
            self._free.release()
            if answer.done():
                return
            if error is None:
                answer.set_result(result)
            else:
                answer.set_exception(error)

        def call() -> None:
            result: Any = None
            error: BaseException | None = None
            try:
                result = self._function(request)
            except BaseException as raised:
                # A future does not take StopIteration, and others would end the server.
                kept = isinstance(raised, Exception | SystemExit) and not isinstance(raised, StopIteration)
                error = raised if kept else RuntimeError(f"authenticate raised {type(raised).__name__}")
            with suppress(RuntimeError):  # The loop is closed: the server has stopped.
                loop.call_soon_threadsafe(deliver, result, error)

        # Not a pool's thread: the interpreter would wait at its end for a function that never returns.
        try:
            Thread(target=call, name="jetlake-authenticate", daemon=True).start()
        except RuntimeError:  # The system gives no further thread.
            self._free.release()
            raise
        return await answer


def _request(applicant: Applicant) -> ConnectRequest:
    connect = applicant.connect
    has_signed = bool(connect.nkey and applicant.nonce) and verify_signature(
        connect.nkey, applicant.nonce.encode(), connect.sig
    )
    return ConnectRequest(
        user=connect.user,
        password=connect.password,
        token=connect.auth_token,
        nkey=connect.nkey if has_signed else "",
        jwt=connect.jwt,
        name=connect.name,
        lang=connect.lang,
        version=connect.version,
        host=applicant.host,
        connection_type=applicant.connection_type,
        client_id=applicant.cid,
        has_tls=bool(applicant.tls),
    )


class FunctionAuthenticator(Authenticator):
    """The check of a server with a function: users of the configuration are checked as ever, all others asked about.

    Raises:
        ConfigError: the configuration names others who decide.
    """

    def __init__(self, options: Options, connection_type: str, arbiter: FunctionArbiter) -> None:
        if options.operators is not None or options.callout is not None:
            raise ConfigError("authenticate= does not go with operators or an auth_callout: they decide")
        if options.token is not None:
            raise ConfigError("authenticate= does not go with a token: let the function compare it")
        super().__init__(options, connection_type)
        self._arbiter = _Checked(arbiter, options)
        self.required = True
        self.uses_nonce = True
        if not options.no_auth_user:
            self.default = None

    def authenticate(
        self, connect: ConnectOptions, nonce: str, certificate: Certificate | None = None, host: str = ""
    ) -> Identity | None:
        return super().authenticate(connect, nonce, certificate, host) if self._users else None

    def arbiter(self, connect: ConnectOptions, identity: Identity | None) -> Arbiter | None:
        is_known = identity is not None or self.knows(connect.nkey or connect.user)
        return None if is_known or connect.account or connect.new_account else self._arbiter

    def recognize(self, identity: Identity, previous: Authentication) -> Identity | None:
        if identity.kind != "function":
            return super().recognize(identity, previous)
        return identity if self._arbiter.has_account(identity.account) else None


class _Checked:
    """The function's word, held against the accounts that there are."""

    def __init__(self, arbiter: FunctionArbiter, options: Options) -> None:
        self._inner = arbiter
        self._accounts = {GLOBAL_ACCOUNT, *(account.name for account in options.accounts)}

    def has_account(self, name: str) -> bool:
        return name in self._accounts

    async def decide(self, applicant: Applicant) -> Identity | None:
        identity = await self._inner.decide(applicant)
        if identity is not None and not self.has_account(identity.account):
            raise ConfigError(f"authenticate named account {identity.account!r}, which is not configured")
        return identity
