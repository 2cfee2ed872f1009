"""The report on what an account exports, imports and maps, as the configuration says."""

from __future__ import annotations

from typing import Any

from jetlake.model.subject_mapping import SubjectMapping
from jetlake.server.config.options import GLOBAL_ACCOUNT, Options
from jetlake.server.config.sharing import ExportOptions, ImportOptions

__all__ = ["sharing_report"]

_RESPONSES = {"singleton": "Singleton", "stream": "Streamed", "chunked": "Chunked"}


def sharing_report(options: Options, name: str) -> dict[str, Any]:
    """Report exports, imports and mappings of an account; what it has none of is left out."""
    account = next((account for account in options.accounts if account.name == name), None)
    mappings = options.mappings if name == GLOBAL_ACCOUNT else account.mappings if account is not None else ()
    report: dict[str, Any] = {
        "mappings": {
            mapping.source: [
                {"subject": destination.subject, "weight": destination.weight} for destination in mapping.destinations
            ]
            for mapping in mappings
        },
        "exports": [_export(entry) for entry in account.exports] if account is not None else [],
        "imports": [_import(entry) for entry in account.imports] if account is not None else [],
    }
    return {key: value for key, value in report.items() if value}


def _export(entry: ExportOptions) -> dict[str, Any]:
    report: dict[str, Any] = {"subject": entry.subject, "type": entry.kind}
    if entry.kind == "service":
        report["response_type"] = _RESPONSES[entry.response]
    if entry.accounts is not None:
        report["approved_accounts"] = list(entry.accounts)
    return report


def _import(entry: ImportOptions) -> dict[str, Any]:
    local = SubjectMapping(entry.subject, entry.to).local.decode()
    report: dict[str, Any] = {"subject": entry.subject, "account": entry.account}
    if entry.kind == "service":
        report["to"] = local
    return report | {
        "local_subject": local,
        "type": entry.kind,
        "invalid": False,
        "share": entry.share,
        "tracking": False,
    }
