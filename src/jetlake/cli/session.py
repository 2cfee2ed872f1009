"""The session of a command: its target, its connection, and errors as one line with an exit code."""

from __future__ import annotations

import errno
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import cached_property, wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from jetlake.cli.command_table import EXIT_INTERRUPTED
from jetlake.cli.contexts import Target, from_environment, load_context, plain, selected
from jetlake.cli.keyboard import ask_whether
from jetlake.errors import (
    ApiError,
    AuthorizationError,
    BadHeaderError,
    BadSubjectError,
    ConfigError,
    ConsumerNotFoundError,
    JetlakeError,
    NoServersError,
    PermissionsError,
    RequestTimeoutError,
    StreamNotFoundError,
)

if TYPE_CHECKING:
    from jetlake.client import Client, JetStream
    from jetlake.dashboard.sessions import Credentials


EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE = 1, 2, 3
"""Exit codes: the server refused, wrong usage, the server can't be reached."""

T = TypeVar("T")

_PATIENCE_S = 5.0
_ERRNO = re.compile(r"^\[Errno (-?\d+)\] (.*)")


class Session:
    """The settings of one run of the command."""

    def __init__(
        self,
        settings: dict[str, Any],
        *,
        context: str | None,
        timeout_s: float = _PATIENCE_S,
        uses_context: bool = True,
        connection_name: str = "",
        traces: bool = False,
    ) -> None:
        self.timeout_s = timeout_s
        self.context = context or (os.environ.get("NATS_CONTEXT") or selected() if uses_context else None)
        self._settings = settings
        self._is_named = context is not None
        self._connection_name = connection_name or "jetlake command"
        self._traces = traces

    @classmethod
    def of_target(cls, target: Target, timeout_s: float) -> Session:
        """Return a session with a server that the shared options do not speak of."""
        session = cls({}, context=None, timeout_s=timeout_s)
        session.target = target
        return session

    @cached_property
    def target(self) -> Target:
        """Where to connect and as whom; looked up when it is needed, so that a bad context can be repaired.

        Raises:
            ConfigError: the context that was named or selected can't be read.
        """
        saved = load_context(self.context) if self.context else Target()
        # What is typed wins over the environment, unless a context was named on the command line.
        ambient = {} if self._is_named else from_environment(dict(os.environ))
        return saved.with_settings(ambient).with_settings(self._settings)

    def typed_onto(self, base: Target) -> Target:
        """Return a context with what the line says, without the environment."""
        return base.with_settings(self._settings)

    @asynccontextmanager
    async def jetstream(self, *, stay: bool = False) -> AsyncIterator[JetStream]:
        """JetStream over a connection for this command; `stay` as for `connect`."""
        async with await self.connect(stay=stay) as client:
            yield self.jetstream_of(client)

    def jetstream_of(self, client: Client) -> JetStream:
        """Return JetStream over a connection of this session."""
        target = self.target
        if target.api_prefix:
            js = client.jetstream(prefix=target.api_prefix, timeout=self.timeout_s)
        else:
            js = client.jetstream(domain=target.domain, timeout=self.timeout_s)
        if self._traces:
            js.api.trace = _print_call
        return js

    async def connect(self, *, stay: bool = False) -> Client:
        """Open a connection for this command; one that stays connects again when the server was away."""
        import jetlake

        target = self.target
        # A user without a password is a token, as for `nats`.
        is_token = bool(target.user) and not (target.password or target.token)
        options: dict[str, Any] = {
            "user": None if is_token else target.user or None,
            "password": target.password or None,
            "token": target.user if is_token else target.token or None,
            "inbox_prefix": target.inbox_prefix or None,
            "tls_handshake_first": target.tls_first or None,
            "credentials": target.creds or None,
            "nkey_seed": Path(target.nkey) if target.nkey else None,
        }
        if target.tls_ca or target.tls_cert or target.tls_key:
            from jetlake.client.settings.tls_files import tls_from_files

            options["tls"] = tls_from_files(target.tls_ca, target.tls_cert, target.tls_key)
        try:
            return await jetlake.connect(
                target.server.split(",") if target.server else None,
                context=target.nats or None,
                name=self._connection_name,
                connect_timeout=self.timeout_s,
                reconnect=stay,
                **{key: value for key, value in options.items() if value is not None},
            )
        except AuthorizationError as error:
            raise _LoginRefusedError(str(error), target.shown) from error

    async def connect_as(self, credentials: Credentials) -> Client:
        """Return a connection to the same servers as another user: nothing that logs this session in goes along.

        Neither its password, which may stand in an address, nor its key, nor its certificate.
        """
        import jetlake

        target = plain(self.target)
        options = credentials.given()
        if target.tls_ca:
            from jetlake.client.settings.tls_files import tls_from_files

            options["tls"] = tls_from_files(target.tls_ca, "", "")
        servers = target.shown.split(",")
        return await jetlake.connect(servers, name="jetlake dashboard", connect_timeout=self.timeout_s, **options)


def _print_call(subject: bytes, request: bytes, answer: bytes) -> None:
    """Print a request of the API and its answer on stderr, for `--trace`."""
    name, sent, came = (text.decode("utf-8", "backslashreplace") for text in (subject, request, answer))
    click.echo(f">>> {name}\n{sent}\n\n<<< {name}\n{came}\n", err=True)


def typed_settings(ctx: click.Context) -> dict[str, Any]:
    """Return what the shared options said, whatever place of the command line they stood in."""
    settings: dict[str, Any] = ctx.meta.setdefault(f"{__name__}.settings", {})
    return settings


def session_of(ctx: click.Context) -> Session:
    """Make the session that a command line asks for."""
    settings = dict(typed_settings(ctx))
    timeout_s = settings.pop("timeout", _PATIENCE_S)
    return Session(
        settings,
        context=settings.pop("context", None),
        timeout_s=timeout_s,
        uses_context=not settings.pop("no_context", False),
        connection_name=settings.pop("connection_name", ""),
        traces=settings.pop("traces", False),
    )


def pass_session(function: Callable[..., T]) -> Callable[..., T]:
    """Call the command's function with its session first."""

    @wraps(function)
    def run(*arguments: Any, **options: Any) -> T:
        return function(session_of(click.get_current_context()), *arguments, **options)

    return run


json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
force_option = click.option("-f", "--force", is_flag=True, help="Do not ask.")


def confirm(question: str, force: bool) -> None:
    """Ask on a terminal; elsewhere --force is needed, since there is no one to answer."""
    if force:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Not a terminal; use --force", EXIT_USAGE)
    if not ask_whether(question):
        raise SystemExit(EXIT_FAILED)


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the command with one line on stderr."""
    sys.stderr.write(f"jetlake: {text}\n")
    raise SystemExit(code)


def command(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async command with its session, and turn what goes wrong into one line and an exit code."""

    @pass_session
    @wraps(function)
    def run(session: Session, /, *arguments: Any, **options: Any) -> None:
        guarded(lambda: _run(function(session, *arguments, **options)), session)

    return run


def _run(coroutine: Coroutine[Any, Any, None]) -> None:
    """Run it to its end, or to Ctrl-C, which cancels it: raised in the loop itself, an interrupt loses its events."""
    try:
        import asyncio  # Not for the help.

        try:
            asyncio.run(coroutine)
        except asyncio.CancelledError:
            raise KeyboardInterrupt from None
        except BaseExceptionGroup as group:
            # Of several tasks that failed together, the first says why.
            raise _first_of(group) from None
    finally:
        coroutine.close()  # An interrupt may come before it begins.


def _first_of(error: BaseException) -> BaseException:
    return _first_of(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error


def guarded(action: Callable[[], T], session: Session) -> T:
    """Run it; every error that a user can cause becomes a sentence."""
    try:
        result = action()
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our output has closed it. Buffered output has nowhere to go when the process ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise SystemExit(0) from None
    except (JetlakeError, OSError, UnicodeEncodeError) as error:
        fail(*sentence(error, session))
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise SystemExit(EXIT_INTERRUPTED) from None
    return result


def sentence(error: Exception, session: Session) -> tuple[str, int]:
    """Return what went wrong and what to do, for a person, and the exit code of a command."""
    code = EXIT_FAILED
    match error:
        case NoServersError():
            text, code = unreachable(error), EXIT_UNREACHABLE
        case AuthorizationError():
            server = error.server if isinstance(error, _LoginRefusedError) else session.target.shown
            text = f"login to {server} failed: {error}. Use --user and --password, --token or --creds"
        case ApiError():
            text = refusal(error)
        case ConfigError() | BadSubjectError() | BadHeaderError():
            text, code = str(error), EXIT_USAGE
        case RequestTimeoutError():
            text = f"{error}; increase --timeout"
        case UnicodeEncodeError():
            text, code = f"an argument is not valid UTF-8: {error.object!a}", EXIT_USAGE
        case OSError() if error.filename and not isinstance(error, JetlakeError):
            text = f"{error.filename}: {error.strerror}"
        case _:
            text = str(error) or type(error).__name__
    return text, code


class _LoginRefusedError(AuthorizationError):
    """A refused login, of a command that may have logged in to another server before."""

    def __init__(self, text: str, server: str) -> None:
        super().__init__(text)
        self.server = server


def raise_refused(client: Client) -> None:
    """Raise the refusal of what the client has published or subscribed to, which no call of it could raise.

    Raises:
        PermissionsError: the server refused it.
    """
    if isinstance(client.last_error, PermissionsError):
        raise client.last_error


def unreachable(error: NoServersError) -> str:
    """Say which servers can't be reached, why, and what helps."""
    return f"can't connect to {_attempts(error)}. {_advice(error)}"


def _attempts(error: NoServersError) -> str:
    """List each address with the reason in the system's own words; resolvers count their errors below zero."""

    def worded(found: re.Match[str]) -> str:
        return os.strerror(int(found[1])) if int(found[1]) > 0 else found[2]

    return ", ".join(
        f"{address} ({_ERRNO.sub(worded, reason).removeprefix(f'{address} ')})"
        for address, reason in error.attempts.items()
    )


def _advice(error: NoServersError) -> str:
    """Say what helps: where nothing listens, a server; where something else is wrong, another address."""
    refused = f"[Errno {errno.ECONNREFUSED}]"
    if all(reason.startswith(refused) for reason in error.attempts.values()):
        return "Start one with: jetlake serve"
    return "Check the address: --server, --context or NATS_URL"


_KINDS = {"KV_": ("bucket", "kv"), "OBJ_": ("object store", "object")}
"""What a stream holds, by the prefix of its name, and the group of its commands."""


def refusal(error: ApiError) -> str:
    """Return the server's own words, the name that is meant, the code and what to do."""
    from jetlake.model.api import API_PREFIX, match  # Loaded only where something went wrong.

    call = match(f"{API_PREFIX}.{error.request}")
    stream, consumer = (call.stream, call.consumer) if call else ("", "")
    if stream and isinstance(error, StreamNotFoundError):
        kind, group, name = _thing(stream)
        return f"{kind} {name} not found ({error.err_code}). List them: jetlake {group} ls"
    if consumer and isinstance(error, ConsumerNotFoundError):
        return (
            f"consumer {consumer} not found on stream {stream} ({error.err_code}). "
            f"List them: jetlake consumer ls {stream}"
        )
    about = _about(stream, consumer, "" if call else error.request)
    hint = f". Hint: {error.hint}" if error.hint else ""
    return f"{about}{error.description} ({error.err_code}){hint}"


def _thing(stream: str) -> tuple[str, str, str]:
    for prefix, (kind, group) in _KINDS.items():
        if stream.startswith(prefix):
            return kind, group, stream.removeprefix(prefix)
    return "stream", "stream", stream


def _about(stream: str, consumer: str, subject: str) -> str:
    """Name the refused request, in front of the server's words."""
    if subject.startswith(("$KV.", "$O.")):
        # Objects are stored under generated names.
        bucket, _, key = subject.partition(".")[2].partition(".")
        return f"{bucket} > {key}: " if subject.startswith("$KV.") else f"object store {bucket}: "
    if subject:
        return f"{subject}: "
    if not stream:
        return ""
    kind, _, name = _thing(stream)
    return f"consumer {stream} > {consumer}: " if consumer else f"{kind} {name}: "
