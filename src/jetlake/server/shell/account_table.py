"""The account table: the accounts of a server by name, and what crosses between them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING

from jetlake.model.encoding.durations import nanoseconds
from jetlake.model.subject_mapping import SubjectMapping
from jetlake.model.trace_sampling import TraceSampling
from jetlake.model.weighted_mappings import MappingOptions, WeightedMappings
from jetlake.server.config.options import GLOBAL_ACCOUNT, SYSTEM_ACCOUNT, AccountOptions, ConnectionLimits, Options
from jetlake.server.config.sharing import ExportOptions, ImportOptions, LatencyOptions, TraceOptions, find_export
from jetlake.server.engine.core.clock import Clock
from jetlake.server.engine.routing.account import Account

if TYPE_CHECKING:  # Loaded with the first account that imports something.
    from jetlake.server.engine.routing.imports import AccountImports, ServiceImport, StreamImport
    from jetlake.server.engine.routing.responses import Schedule
    from jetlake.server.engine.routing.service_latency import LatencyMeter

__all__ = ["AccountTable"]


class AccountTable:
    """The global account, the system account, and the configured ones.

    Args:
        random: picks the members of queue groups.
        now_ns: the time.
        schedule: has a function called with the time, once that is reached.

    Attributes:
        on_created: called with each account that a reload adds.
    """

    def __init__(self, options: Options, random: Random, clock: Clock, schedule: Schedule) -> None:
        self.by_name: dict[str, Account] = {}
        self.on_created: Callable[[Account], None] = lambda _account: None
        self._random = random
        self._clock = clock
        self._schedule = schedule
        self._limits: dict[str, ConnectionLimits] = {}
        self._connections: Counter[str] = Counter()
        self._imports: dict[str, tuple[_Imports, AccountImports]] = {}
        for name in (GLOBAL_ACCOUNT, SYSTEM_ACCOUNT):
            self.get_or_create(name)
        self.global_account = self.by_name[GLOBAL_ACCOUNT]
        self.apply(options)

    def get_or_create(self, name: str) -> Account:
        """Return the account of this name; a reload may name accounts that do not exist yet."""
        account = self.by_name.get(name)
        if account is None:
            account = self.by_name[name] = Account(name, random=self._random)
            self.on_created(account)
        return account

    def limits_of(self, name: str) -> ConnectionLimits:
        """Return what the account allows its connections."""
        return self._limits.get(name, _UNLIMITED)

    def enter(self, name: str) -> bool:
        """Count one more connection of the account; False when it has as many as it may."""
        if 0 <= self.limits_of(name).max_connections <= self._connections[name]:
            return False
        self._connections[name] += 1
        return True

    def leave(self, name: str) -> None:
        """Count one connection of the account less; an empty name stands for none."""
        if name:
            self._connections[name] -= 1

    def apply(self, options: Options) -> None:
        """Put limits, mappings and imports into force; imports that have not changed continue undisturbed."""
        accounts = {account.name: account for account in options.accounts}
        self._limits = {name: account.limits for name, account in accounts.items()}
        for name in accounts:
            self.get_or_create(name)
        mappings = {name: account.mappings for name, account in accounts.items()}
        mappings[GLOBAL_ACCOUNT] = options.mappings
        for name, account in self.by_name.items():
            account.label = (accounts[name].label if name in accounts else "") or name
            account.mappings = self._compile(mappings.get(name, ()))
            account.trace = self._sampling(accounts[name].trace if name in accounts else None)
        for name in {*accounts, *self._imports}:
            wanted = _imports_of(accounts.get(name), accounts)
            present = self._imports.get(name)
            if present is not None and present[0] != wanted:
                present[1].close()
                del self._imports[name]
            if wanted and name not in self._imports:
                self._imports[name] = (wanted, self._connect(name, wanted))

    def _compile(self, mappings: tuple[MappingOptions, ...]) -> WeightedMappings | None:
        return WeightedMappings(mappings, self._random.randrange) if mappings else None

    def _sampling(self, trace: TraceOptions | None) -> TraceSampling | None:
        if trace is None:
            return None
        return TraceSampling(trace.destination.encode(), trace.percent, self._random)

    def _connect(self, name: str, wanted: _Imports) -> AccountImports:
        from jetlake.server.engine.routing.imports import AccountImports, ServiceImport, StreamImport

        streams: list[StreamImport] = []
        services: list[ServiceImport] = []
        for entry, export in wanted:
            exporter, mapping = self.get_or_create(entry.account), SubjectMapping(entry.subject, entry.to)
            if entry.kind == "stream":
                streams.append(StreamImport(exporter, mapping, entry.allow_trace))
            else:
                threshold_ns = nanoseconds(export.threshold_s)
                meter = self._meter(exporter, export.latency) if export.latency is not None else None
                services.append(
                    ServiceImport(
                        exporter,
                        mapping,
                        shares=entry.share,
                        response=export.response,
                        threshold_ns=threshold_ns,
                        meter=meter,
                        allows_trace=export.allow_trace,
                    )
                )
        return AccountImports(self.get_or_create(name), streams, services, self._clock, self._schedule)

    def _meter(self, exporter: Account, latency: LatencyOptions) -> LatencyMeter:
        from jetlake.server.engine.routing.service_latency import LatencyMeter

        subject = latency.subject.encode()
        return LatencyMeter(exporter, subject, latency.percent, self._clock, self._random)


_UNLIMITED = ConnectionLimits()
_Imports = list[tuple[ImportOptions, ExportOptions]]


def _imports_of(account: AccountOptions | None, accounts: dict[str, AccountOptions]) -> _Imports:
    """Pair the imports of an account with the exports that they use; the options have been checked."""
    if account is None:
        return []
    pairs = [(entry, find_export(accounts[entry.account], entry, account.name)) for entry in account.imports]
    return [(entry, export) for entry, export in pairs if export is not None]
