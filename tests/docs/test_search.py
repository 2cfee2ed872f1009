"""What people look for is found at the first hit: their likeliest questions, asked as the site's search asks."""

from __future__ import annotations

import importlib.util
import math
import re
from functools import cache
from types import ModuleType

import pytest

from tests.docs.blocks import ROOT

# What somebody types, and the pages that may come first.
QUESTIONS = {
    "install": {"install.md"},
    "docker": {"how-to/container.md"},
    "kubernetes": {"how-to/container.md", "how-to/spark-on-kubernetes.md"},
    "windows macos": {"install.md"},
    "how big can a stream get": {"sizes.md"},
    "upgrade": {"upgrade.md"},
    "iceberg": {"how-to/pipelines/iceberg.md"},
    "replay yesterday's messages": {"how-to/replay-messages.md"},
    "consumer lag": {"how-to/watch.md"},
    "dead letters": {"how-to/dead-letters.md", "how-to/pipelines/dead-letters.md"},
    "exactly once": {"concepts/consumers.md"},
    "test a service": {"how-to/test-a-service.md"},
    "backup restore": {"how-to/backup.md"},
    "migrate from nats-py": {"migrating-from-nats-py.md"},
    "consumer delivers nothing": {"troubleshooting.md", "how-to/workers.md"},
    "tls certificate": {"how-to/tls.md"},
    "encryption at rest": {"how-to/encryption.md"},
    "fastapi": {"how-to/fastapi.md"},
    "celery": {"how-to/celery.md"},
    "mcp language model": {"how-to/agents.md"},
    "django": {"how-to/django.md"},
    "jwt operator": {"how-to/operators.md"},
    "key value bucket": {"how-to/key-value.md"},
    "worker in production": {"how-to/production-worker.md"},
    "leaf node": {"how-to/leaf.md"},
    "when to use": {"when-to-use.md"},
    "schedule cron": {"how-to/schedules.md"},
    "schema of payloads": {"how-to/schemas.md"},
    "bucket as table": {"how-to/pipelines/buckets.md"},
    "authorize in python": {"how-to/authorize.md"},
    "move a stream": {"how-to/migrate.md"},
}
TITLE_WEIGHT = 100


def tool(name: str) -> ModuleType:
    """A script of `tools/` as a module."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "tools" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


reference = tool("render_python_reference")


def words(text: str) -> list[str]:
    """Words in lower case and without their endings, which is about what lunr's stemmer leaves."""
    return [
        re.sub(r"(?<=\w\w\w)(?:'s|s|es|e|ing|ed|ion)$", "", word)
        for word in re.findall(r"[a-z0-9][\w'-]*", text.lower())
    ]


@cache
def sections() -> list[tuple[str, list[str], list[str]]]:
    """The entries of the search index: the page, and the words of each heading and of the text below it."""
    found = []
    for path in sorted((ROOT / "docs").rglob("*.md")):
        page = path.relative_to(ROOT / "docs").as_posix()
        for part in re.split(
            r"^(?=#{1,6} )", re.sub(r"^```.*?^```", "", path.read_text(), flags=re.M | re.S), flags=re.M
        ):
            title, _, text = part.partition("\n")
            if title.startswith("#"):
                found.append((page, words(title), words(text)))
    return found


def first_hit(question: str) -> str:
    """The page of the best section: rare words count more, headings most, long texts less (as in BM25)."""
    asked = [
        word for word in words(question) if word not in {"a", "can", "how", "in", "to", "from", "get", "the", "at"}
    ]
    entries = sections()
    average = sum(len(text) for _, _, text in entries) / len(entries)
    weights = {}
    for word in asked:
        holding = sum(word in title or word in text for _, title, text in entries)
        weights[word] = math.log(1 + (len(entries) - holding + 0.5) / (holding + 0.5))

    def score(entry: tuple[str, list[str], list[str]]) -> float:
        page, title, text = entry
        total = 0.0
        for word in asked:
            times = text.count(word)
            total += weights[word] * times * 2.2 / (times + 1.2 * (0.25 + 0.75 * len(text) / average))
            if word in title:
                total += weights[word] * TITLE_WEIGHT / (1 + 0.1 * len(title))
        return total * reference.search_boost(page)

    return max(entries, key=score)[0]


@pytest.mark.parametrize("question", QUESTIONS)
def test_the_first_hit_answers(question):
    assert first_hit(question) in QUESTIONS[question]


def navigation() -> list[str]:
    """The pages of `nav` in mkdocs.yml, in their order."""
    text = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].partition("\nplugins:")[0]
    return re.findall(r": ([\w./-]+\.md)$", text, re.MULTILINE)


def test_every_page_has_its_place_in_the_navigation():
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    listed = navigation()
    drawn = {page for page in listed if page.startswith("reference/python/")} | {"index.md"}
    assert pages - set(listed) == set(), "list the page in mkdocs.yml"
    assert set(listed) - drawn == pages & set(listed)
    assert len(listed) == len(set(listed))


def test_the_diagrams_are_drawn_from_their_text():
    diagrams = tool("render_diagrams")
    for name in diagrams.DIAGRAMS:
        assert (ROOT / "docs" / "images" / f"{name}.svg").read_text() == diagrams.draw(name), (
            "run python tools/render_diagrams.py"
        )
