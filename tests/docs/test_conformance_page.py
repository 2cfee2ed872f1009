"""Every row of the conformance page names a module and a test that are there, and every sentence has its row."""

from __future__ import annotations

import re

import pytest

from tests.docs.blocks import ROOT

_ROW = re.compile(r"^\| (?P<behaviour>.+) \| `(?P<module>[^`]+)` \| `(?P<test>[^`]+)` \| .+ \|$", re.MULTILINE)
_SENTENCE = re.compile(
    r"^\| (?P<id>[A-Z0-9]+\.\d+) \| (?P<sentence>.+) \| (?P<done>.+) \| (?P<test>[^|]+) \|$", re.MULTILINE
)
_HEADS = ("| behaviour", "| id |")
# Without the table of printed text, whose rows name no test.
PAGE = re.sub(r"(?ms)^## Printed text$.*?(?=^## )", "", (ROOT / "docs" / "conformance.md").read_text())
SENTENCES = [match.groupdict() for match in _SENTENCE.finditer(PAGE)]
ROWS = [match.groupdict() for match in _ROW.finditer(_SENTENCE.sub("", PAGE))]
REASON_MIN = 20


def test_every_row_is_read():
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and not line.startswith(_HEADS)]
    assert len(lines) == len(ROWS) + len(SENTENCES)
    assert len(ROWS) > 70


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["behaviour"][:60])
def test_module_and_test_are_there(row):
    module = row["module"].replace("engine/", "server/engine/")
    assert (ROOT / "src" / "jetlake" / module).exists(), module
    assert_test(row["test"])


def assert_test(test):
    path, _, name = test.partition("::")
    assert (ROOT / path).exists(), path
    if name:
        assert re.search(rf"^(async )?def {name}\(", (ROOT / path).read_text(), re.MULTILINE), test


def known_sentences():
    """The ids of all sentences in order, from the list of the documents' sections."""
    for line in (ROOT / "tests" / "docs" / "sentences.txt").read_text().splitlines():
        document, first, last = re.match(r"([A-Z0-9]+)\.(\d+)-(\d+) ", line).groups()
        yield from (f"{document}.{number}" for number in range(int(first), int(last) + 1))


def test_every_sentence_of_the_documents_has_its_row():
    assert [row["id"] for row in SENTENCES] == list(known_sentences())


def test_the_sections_stand_in_the_documents_order():
    sections = [line.split(" ", 1)[1] for line in (ROOT / "tests" / "docs" / "sentences.txt").read_text().splitlines()]
    text = PAGE.partition("## Sentence by sentence")[2]
    assert re.findall(r"^(.+):\n\n\| id \|", text, re.MULTILINE) == sections


def test_what_we_do_about_each_sentence_is_shown_by_a_test():
    for row in SENTENCES:
        if row["test"] == "—":
            assert row["done"] in ("context", "not offered"), row
        else:
            for test in row["test"].split(", "):
                assert_test("tests/" + test.strip("`"))


def test_a_difference_has_its_reason():
    differing = [row["done"] for row in SENTENCES if "**differs**" in row["done"]]
    assert differing
    for done in differing:
        assert len(done.partition("**differs**")[2]) >= REASON_MIN, done
