"""Exports and imports of accounts: which subjects cross from one account to another, and the checks of both ends."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from msgspec import Struct

from jetlake.errors import ConfigError
from jetlake.model.subject_mapping import SubjectMapping
from jetlake.protocol.subjects import is_subset, overlaps

__all__ = [
    "ExportOptions",
    "ImportOptions",
    "LatencyOptions",
    "SharingAccount",
    "TraceOptions",
    "check_import",
    "check_sharing",
    "find_export",
]


class LatencyOptions(Struct, frozen=True, kw_only=True):
    """How the time that a service takes is measured."""

    subject: str
    """Where measurements are published, in the account of the service."""
    percent: int = 100
    """How many of a hundred requests are measured; 0 = those whose headers say that their trace is sampled."""


class ExportOptions(Struct, frozen=True, kw_only=True):
    """Subjects of an account that others may import."""

    kind: str
    """`stream`: others receive what is published here; `service`: others send requests here."""
    subject: str
    accounts: tuple[str, ...] | None = None
    """Only these accounts may import it; None = all."""
    account_token_position: int = 0
    """The token, counted from 1, that must be the importing account's name; 0 = none."""
    response: str = "singleton"
    """Answers to one request: `singleton`, `stream` (any number) or `chunked` (an empty one is the last)."""
    threshold_s: float = 120.0
    """How long a request waits for its answer, and a stream of answers for the next one."""
    latency: LatencyOptions | None = None
    """The service's latency is measured."""
    allow_trace: bool = False
    """A client that traces a request learns which clients of this account it reached."""


class ImportOptions(Struct, frozen=True, kw_only=True):
    """Subjects of another account, under a name in this one."""

    kind: str
    """`stream` or `service`, as exported."""
    account: str
    """The account that exports."""
    subject: str
    """The exporter's subject."""
    to: str = ""
    """The name here, with `$1` for the first wildcard of the subject; empty = the same."""
    share: bool = False
    """Requests tell the service who asks: address, user and client; otherwise only the account."""
    allow_trace: bool = False
    """A client that traces a message of the stream learns which clients of this account it reached."""


class TraceOptions(Struct, frozen=True, kw_only=True):
    """Which messages of an account are traced without asking for it, besides messages that name a destination."""

    destination: str
    """Where the reports go."""
    percent: int = 100
    """How many of a hundred messages are traced whose `traceparent` says that they are sampled."""


class SharingAccount(Protocol):
    """An account with exports and imports."""

    @property
    def name(self) -> str: ...
    @property
    def exports(self) -> tuple[ExportOptions, ...]: ...
    @property
    def imports(self) -> tuple[ImportOptions, ...]: ...


def check_sharing(accounts: Iterable[SharingAccount]) -> None:
    """Check that each import has its export, and that no imports form a cycle.

    Raises:
        ConfigError: an account is not defined, an import is not authorized, its mapping makes no sense, or a cycle.
    """
    by_name = {account.name: account for account in accounts}
    for account in by_name.values():
        for export in account.exports:
            for name in export.accounts or ():
                if name not in by_name:
                    raise ConfigError(f'"{name}" account not defined for {export.kind} export')
        seen: set[tuple[str, str, str, str]] = set()
        for wanted in account.imports:
            check_import(account, wanted, by_name)
            key = (wanted.kind, wanted.account, wanted.subject, wanted.to if wanted.kind == "service" else "")
            if key in seen:
                raise _refused(wanted, f"{wanted.kind} import already exists")
            seen.add(key)


def check_import(account: SharingAccount, wanted: ImportOptions, by_name: Mapping[str, SharingAccount]) -> None:
    """Check one import: its export, its mapping, and that it forms no cycle.

    Raises:
        ConfigError: it is not authorized, or makes no sense.
    """
    exporter = by_name.get(wanted.account)
    if exporter is None:
        raise ConfigError(f'"{wanted.account}" account not defined for {wanted.kind} import')
    if find_export(exporter, wanted, account.name) is None:
        raise _refused(wanted, f"{wanted.kind} import not authorized")
    try:
        SubjectMapping(wanted.subject, wanted.to)
    except ConfigError as error:
        raise _refused(wanted, f"failed to create mapping transform: {error}") from None
    if _leads_back(account, exporter, wanted, by_name):
        raise _refused(wanted, "import forms a cycle")


def find_export(exporter: SharingAccount, wanted: ImportOptions, importer: str) -> ExportOptions | None:
    """Return the export that covers an import; None when the account may not have it."""
    subject = wanted.subject.encode()
    for export in exporter.exports:
        if export.kind != wanted.kind or not is_subset(subject, export.subject.encode()):
            continue
        position = export.account_token_position
        if position and wanted.subject.split(".")[position - 1 : position] != [importer]:
            continue
        if export.accounts is None or importer in export.accounts:
            return export
    return None


def _leads_back(
    start: SharingAccount, exporter: SharingAccount, wanted: ImportOptions, by_name: Mapping[str, SharingAccount]
) -> bool:
    """Return whether what is imported comes, over imports of its exporter, from the importing account itself.

    The import in question may not be among the account's yet, and its exporter may be the account itself.
    """
    seen: set[tuple[str, str]] = set()
    ways = [(exporter, wanted)]
    while ways:
        account, earlier = ways.pop()
        subject = earlier.subject.encode()
        for further in (*account.imports, wanted) if account.name == start.name else account.imports:
            if further.kind != earlier.kind or further.account not in by_name:
                continue
            if not overlaps(subject, SubjectMapping(further.subject, further.to).local):
                continue
            if further.account == start.name:
                return True
            if (further.account, further.subject) not in seen:
                seen.add((further.account, further.subject))
                ways.append((by_name[further.account], further))
    return False


def _refused(wanted: ImportOptions, why: str) -> ConfigError:
    return ConfigError(f'Error adding {wanted.kind} import "{wanted.subject}": {why}')
