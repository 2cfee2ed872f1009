"""Accounts as the configuration knows them, made of their tokens: limits, exports, imports, mappings.

An import that its exporter does not allow, or not any more, is left out; the account works without it, as in a
configuration it could not.
"""

from __future__ import annotations

from collections.abc import Mapping as Map

from msgspec import Struct
from msgspec.structs import replace

from jetlake.auth.claims import AccountClaims, ActivationClaims, Export, Import, JetStreamTier
from jetlake.auth.claims import Mapping as MappingClaim
from jetlake.auth.tokens import check_times, decode_token
from jetlake.errors import ConfigError, TokenError
from jetlake.model.encoding.durations import seconds
from jetlake.model.weighted_mappings import MappingDestination, MappingOptions, WeightedMappings
from jetlake.protocol.subjects import is_subset
from jetlake.server.config.options import AccountOptions, ConnectionLimits, JetStreamLimits
from jetlake.server.config.sharing import ExportOptions, ImportOptions, LatencyOptions, TraceOptions, check_import

__all__ = ["Outcome", "is_revoked", "make_options"]


class Outcome(Struct, frozen=True, kw_only=True):
    """The options of all accounts, the tokens that were left out, and until when the options hold."""

    accounts: tuple[AccountOptions, ...]
    refused: tuple[str, ...] = ()
    """Why imports and mappings were left out, a line each."""
    until_s: int = 0
    """The first expiry of an activation; 0 = there is none to come."""


def make_options(tokens: Map[str, AccountClaims], now_s: float) -> Outcome:
    """Return the options of accounts by the claims of each."""
    refused: list[str] = []
    activations = _Activations(tokens, now_s)
    wanted_by: dict[str, list[ImportOptions]] = {}
    for name, claims in tokens.items():
        wanted_by[name] = []
        for entry in claims.nats.imports or ():
            wanted = _import(entry)
            try:
                activations.check(name, entry, wanted)
            except TokenError as error:
                refused.append(_not_imported(name, wanted, error))
            else:
                wanted_by[name].append(wanted)
    accounts = {name: _account(name, claims, activations, refused) for name, claims in tokens.items()}
    # One after the other, each seeing the imports before it: so no cycle can come about.
    for name, imports in wanted_by.items():
        for wanted in dict.fromkeys(imports):
            account = accounts[name]
            try:
                check_import(account, wanted, accounts)
            except ConfigError as error:
                refused.append(_not_imported(name, wanted, error))
            else:
                accounts[name] = replace(account, imports=(*account.imports, wanted))
    return Outcome(accounts=tuple(accounts.values()), refused=tuple(refused), until_s=activations.until_s)


def _not_imported(name: str, wanted: ImportOptions, error: Exception) -> str:
    return f"account {name} does not import {wanted.subject!r} of {wanted.account}: {error}"


def _account(name: str, claims: AccountClaims, activations: _Activations, refused: list[str]) -> AccountOptions:
    limits = claims.nats.limits
    return AccountOptions(
        name=name,
        label=claims.name,
        jetstream=_jetstream(claims),
        limits=ConnectionLimits(
            max_connections=limits.conn,
            max_subscriptions=limits.subs,
            max_payload=limits.payload,
            max_leafnodes=limits.leaf,
        ),
        exports=tuple(_export(entry, activations.approved(name, entry)) for entry in claims.nats.exports or ()),
        mappings=_mappings(name, claims.nats.mappings or {}, refused),
        trace=_trace(claims),
    )


class _Activations:
    """Which imports the exports' activations allow.

    Attributes:
        until_s: the first expiry of an activation that counts; 0 = there is none to come.
    """

    def __init__(self, tokens: Map[str, AccountClaims], now_s: float) -> None:
        self.until_s = 0
        self._tokens = tokens
        self._now_s = now_s
        self._approved: dict[tuple[str, str, str], set[str]] = {}

    def approved(self, exporter: str, export: Export) -> tuple[str, ...] | None:
        """Return the accounts that may import; None = all."""
        if not export.token_req:
            return None
        return tuple(sorted(self._approved.get((exporter, export.type, export.subject), ())))

    def check(self, importer: str, entry: Import, wanted: ImportOptions) -> None:
        """Check that an import has an export that covers it, with an activation where the export asks for one.

        Raises:
            TokenError: there is none; or the activation is missing, forged, expired, revoked, or for something else.
        """
        exporter = self._tokens.get(wanted.account)
        if exporter is None:
            raise TokenError("there is no such account")
        subject = wanted.subject.encode()
        error = TokenError("no export covers it")
        for export in exporter.nats.exports or ():
            if export.type != wanted.kind or not is_subset(subject, export.subject.encode()):
                continue
            position = export.account_token_position
            if position and wanted.subject.split(".")[position - 1 : position] != [importer]:
                continue
            if not export.token_req:
                return
            try:
                self._check_token(exporter, export, importer, entry.token, wanted)
            except TokenError as refusal:
                error = refusal
            else:
                self._approved.setdefault((wanted.account, export.type, export.subject), set()).add(importer)
                return
        raise error

    def _check_token(
        self, exporter: AccountClaims, export: Export, importer: str, token: str, wanted: ImportOptions
    ) -> None:
        if not token:
            raise TokenError("the export needs an activation token")
        if "://" in token:
            raise TokenError("an activation token by URL is not supported: put the token itself in its place")
        activation = decode_token(token, ActivationClaims)
        granted = activation.nats
        if (granted.issuer_account or activation.iss) != exporter.sub or not _may_sign(exporter, activation.iss):
            raise TokenError("the activation token was not signed by the exporting account")
        if activation.sub != importer:
            raise TokenError("the activation token is for another account")
        if granted.kind != wanted.kind or not is_subset(wanted.subject.encode(), granted.subject.encode()):
            raise TokenError("the activation token is for another subject")
        if is_revoked(export.revocations, activation.sub, activation.iat):
            raise TokenError("the activation token was revoked")
        for moment in (activation.nbf, activation.exp):
            if moment >= self._now_s and (not self.until_s or moment < self.until_s):
                self.until_s = moment
        check_times(activation, self._now_s)


def _export(entry: Export, accounts: tuple[str, ...] | None) -> ExportOptions:
    latency = None
    if entry.service_latency is not None:
        sampling = entry.service_latency.sampling
        latency = LatencyOptions(
            subject=entry.service_latency.results, percent=sampling if isinstance(sampling, int) else 0
        )
    return ExportOptions(
        kind=entry.type,
        subject=entry.subject,
        accounts=accounts,
        account_token_position=entry.account_token_position,
        response=entry.response_type.lower() or "singleton",
        threshold_s=seconds(entry.response_threshold) if entry.response_threshold else 120.0,
        latency=latency,
        allow_trace=entry.allow_trace,
    )


def _import(entry: Import) -> ImportOptions:
    """Return an import whose subject is the exporter's, whichever way round the token has it."""
    subject, local = entry.subject, entry.local_subject
    if not local and entry.to:
        if entry.type == "service":
            subject, local = entry.to, entry.subject
        else:
            local = f"{entry.to}.{subject}"
    return ImportOptions(
        kind=entry.type,
        account=entry.account,
        subject=subject,
        to=local,
        share=entry.share,
        allow_trace=entry.allow_trace,
    )


def _may_sign(account: AccountClaims, key: str) -> bool:
    """Return whether a key is the account's own, or one of its signing keys without a scope."""
    return key == account.sub or key in (account.nats.signing_keys or ())


def is_revoked(revocations: Map[str, int] | None, subject: str, issued_s: int) -> bool:
    """Return whether a token about a key, issued at that time, is revoked."""
    return bool(revocations) and any(
        issued_s <= revocations[key] for key in ("*", subject) if revocations is not None and key in revocations
    )


def _mappings(
    name: str, mappings: Map[str, tuple[MappingClaim, ...]], refused: list[str]
) -> tuple[MappingOptions, ...]:
    found: list[MappingOptions] = []
    for source, destinations in mappings.items():
        mapping = MappingOptions(
            source=source,
            destinations=tuple(
                MappingDestination(subject=entry.subject, weight=entry.weight or 100)
                for entry in destinations
                if not entry.cluster
            ),
        )
        try:
            WeightedMappings([mapping])
        except ConfigError as error:
            refused.append(f"account {name}: {error}")
        else:
            found.append(mapping)
    return tuple(found)


def _trace(claims: AccountClaims) -> TraceOptions | None:
    trace = claims.nats.trace
    return None if trace is None else TraceOptions(destination=trace.dest, percent=trace.sampling or 100)


def _jetstream(claims: AccountClaims) -> JetStreamLimits | None:
    """Return the JetStream limits; None = the account has no JetStream."""
    limits = claims.nats.limits
    if limits.tiered_limits:
        if not any(tier.mem_storage or tier.disk_storage for tier in limits.tiered_limits.values()):
            return None
        return JetStreamLimits(
            tiers=tuple((name, _jetstream_limits(tier)) for name, tier in limits.tiered_limits.items())
        )
    if not limits.mem_storage and not limits.disk_storage:
        return None
    return _jetstream_limits(limits)


def _jetstream_limits(limits: JetStreamTier) -> JetStreamLimits:
    return JetStreamLimits(
        max_memory=limits.mem_storage,
        max_storage=limits.disk_storage,
        max_streams=limits.streams,
        max_consumers=limits.consumer,
        max_ack_pending=_or_unlimited(limits.max_ack_pending),
        memory_max_stream_bytes=_or_unlimited(limits.mem_max_stream_bytes),
        storage_max_stream_bytes=_or_unlimited(limits.disk_max_stream_bytes),
        max_bytes_required=limits.max_bytes_required,
    )


def _or_unlimited(limit: int) -> int:
    return limit if limit > 0 else -1
