"""Each page says what its own programs need: its install line provides everything that they import."""

from __future__ import annotations

import ast
import re
import sys

import pytest

from tests.docs.blocks import blocks, name, pages, requirements

# What has to be installed for an import; `jetlake[…]` names an extra. Modules of jetlake that need none are not listed.
PACKAGES = {
    "celery": "jetlake[celery]",
    "deltalake": "jetlake[delta]",
    "django": "jetlake[django]",
    "duckdb": "duckdb",
    "fastapi": "jetlake[fastapi]",
    "faststream": "faststream[nats]",
    "jetlake.auth": "jetlake[server]",
    "jetlake.otel": "jetlake[otel]",
    "jetlake.server": "jetlake[server]",
    "jetlake.spark": "jetlake[spark]",
    "jetlake.testing": "jetlake[server]",
    "mcp": "jetlake[mcp]",
    "nats": "nats-py",
    "opentelemetry": "opentelemetry-sdk",
    "pandas": "pandas",
    "polars": "polars",
    "pyiceberg": "jetlake[iceberg]",
    "pyspark": "jetlake[spark]",
    "pytest": "pytest",
    "synadia_ai.agent_service": "synadia-ai-agent-service",
    "synadia_ai.agents": "synadia-ai-agents",
    "taskiq": "taskiq-nats",
    "taskiq_nats": "taskiq-nats",
}
GUIDES = [path for path in pages() if any(block.file.endswith(".py") for block in blocks(path))]


def imported(code: str) -> set[str]:
    """The modules that a program imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
            found.update(f"{node.module}.{alias.name}" for alias in node.names)
    return found


def needed(path) -> set[str]:
    """What the page's programs need, as an install line names it."""
    own = {block.file.removesuffix(".py") for block in blocks(path)}
    wanted: set[str] = set()
    for block in blocks(path):
        if not block.file.endswith(".py"):
            continue
        if re.search(r"\bServer\(|jetlake_server|jetlake_js|jetlake_client", block.code):
            wanted.add("jetlake[server]")
        if re.search(r'"pipeline",|jetlake pipeline', block.code):
            wanted.add("jetlake[spark]")
        if block.file.startswith("test_"):
            wanted.add("pytest")
        if "pytest.mark.asyncio" in block.code:
            wanted.add("pytest-asyncio")
        for module in imported(block.code):
            top = module.partition(".")[0]
            parts = module.split(".")
            package = next(
                (PACKAGES[start] for n in range(len(parts), 0, -1) if (start := ".".join(parts[:n])) in PACKAGES), None
            )
            assert package or top in {"jetlake", *own} or top in sys.stdlib_module_names, (
                f"{name(path)} imports {module}"
            )
            wanted.update([package] if package else [])
    return wanted


def installed(path) -> set[str]:
    """What the page's install lines provide, one entry for each extra."""
    provided: set[str] = set()
    for requirement in requirements(path):
        base, _, extras = requirement.rstrip("]").partition("[")
        provided.add(base)
        provided.update(f"{base}[{extra}]" for extra in extras.split(",") if extra)
    if "jetlake[all]" in provided:
        provided.update({"jetlake[server]", "jetlake[spark]", "jetlake[iceberg]", "jetlake[otel]"})
    return provided


@pytest.mark.parametrize("path", GUIDES, ids=name)
def test_a_page_installs_what_its_programs_import(path):
    assert needed(path) - installed(path) == set()
