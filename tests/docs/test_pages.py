"""The pages cannot lie: their runnable blocks run, their links lead somewhere."""

from __future__ import annotations

import ast
import re

import pytest

from tests.docs.blocks import ROOT, blocks, name, pages, save_and_run

# Pages about Spark on a cluster, whose lines go into a session that the reader has, and the classes of the client:
# their examples run in `examples/reference.py`.
FRAGMENTS = {"spark.md", "spark-sizing.md", "python.md"}
_LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")


def python_blocks(path):
    return [block for block in blocks(path) if block.language == "python"]


def needs_spark(path):
    return any("jetlake.spark" in block.code for block in python_blocks(path))


PROGRAMS = [path for path in pages() if any(block.file for block in blocks(path)) and not needs_spark(path)]


@pytest.mark.parametrize("path", PROGRAMS, ids=name)
def test_programs_run_as_they_stand_and_print_what_is_shown(path, tmp_path):
    save_and_run(path, tmp_path)


def test_every_program_has_a_name_and_is_run():
    for path in pages():
        commands = "".join(block.code for block in blocks(path) if block.language == "console")
        for block in python_blocks(path):
            where = f"{name(path)}:{block.line}"
            assert block.file or path.name in FRAGMENTS, f"{where}: name the program: <!-- file: NAME.py -->"
            is_started_by_another = any(f'"{block.file}"' in other.code for other in python_blocks(path))
            is_run = re.search(rf"^\$ (python|pytest -q) {block.file}", commands, re.MULTILINE)
            assert not block.file or is_run or is_started_by_another, block.file


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
