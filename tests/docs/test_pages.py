"""The pages cannot lie: their runnable blocks run, their links lead somewhere."""

from __future__ import annotations

import ast
import asyncio
import re

import pytest
from blocks import ROOT, blocks, name, pages

import jetlake

_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def with_mark(mark):
    return [path for path in pages() if any(block.mark == mark for block in blocks(path))]


@pytest.mark.parametrize("path", with_mark("runnable"), ids=name)
async def test_blocks_run_from_top_to_bottom(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "__page__"}
    for block in blocks(path):
        if block.mark != "runnable":
            continue
        code = compile("\n" * block.line + block.code, str(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, names)
        if asyncio.iscoroutine(result):
            await asyncio.wait_for(result, 60)


@pytest.mark.parametrize("path", with_mark("runnable-blocking"), ids=name)
async def test_blocking_blocks_run_beside_a_server(path):
    async with jetlake.Server() as server:
        for block in blocks(path):
            if block.mark == "runnable-blocking":
                code = compile("\n" * block.line + block.code, str(path), "exec")
                await asyncio.to_thread(exec, code, {"__name__": "__page__", "url": server.url})


@pytest.mark.parametrize("path", pages(), ids=name)
def test_links_lead_somewhere(path):
    text = re.sub(r"```.*?```", "", path.read_text(), flags=re.DOTALL)
    for target in _LINK.findall(text):
        if target.startswith(("http://", "https://", "#", "mailto:")):
            continue
        page, _, anchor = target.partition("#")
        reached = (path.parent / page).resolve()
        assert reached.exists(), f"{name(path)} leads to {target}, which is not there"
        if anchor and reached.suffix == ".md":
            titles = re.findall(r"^#+ (.+)$", reached.read_text(), re.MULTILINE)
            slugs = {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}
            assert anchor in slugs, f"{name(path)} leads to {target}: no such heading"


def test_python_blocks_are_python():
    for path in pages():
        for block in blocks(path):
            if block.language == "python":
                compile(block.code, name(path), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT | ast.PyCF_ONLY_AST)


def test_every_page_can_be_reached_from_the_readme():
    reached, waiting = set(), [ROOT / "README.md"]
    while waiting:
        path = waiting.pop()
        if path in reached or not path.exists():
            continue
        reached.add(path)
        for target in _LINK.findall(path.read_text()):
            page = target.partition("#")[0]
            if page.endswith(".md") and "://" not in page:
                waiting.append((path.parent / page).resolve())
            elif page and (path.parent / page).resolve() == ROOT / "docs" / "adr":
                reached.update((ROOT / "docs" / "adr").glob("*.md"))
    missing = {name(path) for path in pages()} - {name(path) for path in reached}
    assert missing == set()
