"""What every command shares: the target, a connection for the time of the command, and errors in one line."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click

from jetlake.cli.contexts import Target, from_environment, load_context, selected
from jetlake.errors import (
    ApiError,
    AuthorizationError,
    ConfigError,
    JetlakeError,
    NoRespondersError,
    NoServersError,
    RequestTimeoutError,
)

if TYPE_CHECKING:
    from jetlake.client import Client, JetStream

__all__ = [
    "EXIT_FAILED",
    "EXIT_INTERRUPTED",
    "EXIT_UNREACHABLE",
    "EXIT_USAGE",
    "Session",
    "command",
    "confirm",
    "fail",
    "force_option",
    "guarded",
    "json_option",
]

EXIT_FAILED, EXIT_USAGE, EXIT_UNREACHABLE, EXIT_INTERRUPTED = 1, 2, 3, 130
"""Exit codes: the server said no, the command was written wrong, the server can't be reached, Ctrl-C."""

T = TypeVar("T")


class Session:
    """The settings of one run of the command."""

    def __init__(self, settings: dict[str, Any], *, context: str | None, timeout_s: float) -> None:
        self.timeout_s = timeout_s
        name = context or selected()
        saved = load_context(name) if name else Target()
        # What is typed wins over the environment, unless a context was named on the command line.
        ambient = {} if context else from_environment(dict(os.environ))
        self.target = saved.with_settings(ambient).with_settings(settings)

    @asynccontextmanager
    async def jetstream(self) -> AsyncIterator[JetStream]:
        """JetStream over a connection for this command."""
        async with await self.connect() as client:
            yield client.jetstream(domain=self.target.domain, timeout=self.timeout_s)

    async def connect(self, *, stay: bool = False) -> Client:
        """A connection for this command; one that stays connects again when the server was away."""
        import jetlake

        target = self.target
        options: dict[str, Any] = {
            "user": target.user or None,
            "password": target.password or None,
            "token": target.token or None,
            "credentials": target.creds or None,
            "nkey_seed": Path(target.nkey) if target.nkey else None,
        }
        if target.tls_ca or target.tls_cert:
            options["tls"] = _tls_context(target)
        return await jetlake.connect(
            target.server.split(","),
            name="jetlake command",
            connect_timeout=self.timeout_s,
            reconnect=stay,
            **{key: value for key, value in options.items() if value is not None},
        )


def _tls_context(target: Target) -> Any:
    import ssl

    try:
        context = ssl.create_default_context(cafile=target.tls_ca or None)
        if target.tls_cert:
            context.load_cert_chain(target.tls_cert, target.tls_key or None)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"TLS files: {error}") from None
    return context


json_option = click.option("-j", "--json", "as_json", is_flag=True, help="Print JSON.")
force_option = click.option("-f", "--force", is_flag=True, help="Do not ask.")


def confirm(question: str, force: bool) -> None:
    """Ask on a terminal; elsewhere --force is needed, since nobody can answer."""
    if force:
        return
    if not sys.stdin.isatty():
        fail(f"{question} Nobody can answer here: add --force", EXIT_USAGE)
    if not click.confirm(question, err=True):
        raise SystemExit(EXIT_FAILED)


def fail(text: str, code: int = EXIT_FAILED) -> NoReturn:
    """End the command with one line on stderr."""
    sys.stderr.write(f"jetlake: {text}\n")
    raise SystemExit(code)


def command(function: Callable[..., Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Run an async command with its session, and turn what goes wrong into one line and an exit code."""

    @click.pass_obj
    @wraps(function)
    def run(session: Session, /, *arguments: Any, **options: Any) -> None:
        guarded(lambda: asyncio.run(function(session, *arguments, **options)), session)

    return run


def guarded(action: Callable[[], T], session: Session) -> T:
    """Run it; every error that a user can cause becomes a sentence."""
    try:
        return action()
    except NoServersError as error:
        fail(f"no server answers at {session.target.server}: {error}. Start one with: jetlake serve", EXIT_UNREACHABLE)
    except AuthorizationError as error:
        fail(f"{session.target.server} does not let us in: {error}. Give --user and --password, --token or --creds")
    except NoRespondersError as error:
        fail(f"{error}. Is JetStream on at {session.target.server}, and does a stream take this subject?")
    except ApiError as error:
        fail(f"{error.description} ({error.err_code})")
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    except RequestTimeoutError as error:
        fail(f"{error}. Give the server more time with --timeout")
    except (JetlakeError, OSError) as error:
        fail(str(error) or type(error).__name__)
    except KeyboardInterrupt:
        sys.stderr.write("\n")
        raise SystemExit(EXIT_INTERRUPTED) from None
    except BrokenPipeError:
        raise SystemExit(0) from None
