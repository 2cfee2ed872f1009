"""Writes the documentation as plain text: `llms.txt` lists every page, `llms-full.txt` holds all of their text.

`make docs` puts both into the site, and every page as Markdown under its path in `docs`.
mkdocs calls `on_nav`, `on_page_markdown` and `on_post_build`.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

_sections: list[tuple[str, str]] = []  # The section and the page's path, in the order of the navigation.
_texts: dict[str, str] = {}


def first_sentence(markdown: str) -> str:
    """The first sentence before a page's second heading, without links and emphasis; empty where there is none."""
    text = re.sub(r"^---\n.*?^---\n|^```.*?^```|^<!--.*?-->", "", markdown, flags=re.MULTILINE | re.DOTALL)
    text = re.split(r"^#{2,} ", text, maxsplit=1, flags=re.MULTILINE)[0]
    for paragraph in re.split(r"\n\s*\n", text):
        line = " ".join(paragraph.split())
        if not line or re.match(r"[#|!<-]|\d+\.", line):
            continue
        line = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", line).replace("**", "")
        return re.split(r"(?<=\.)\s", line, maxsplit=1)[0].rstrip(":")
    return ""


def title_of(markdown: str, path: str) -> str:
    """The page's first heading, or its path."""
    found = re.search(r"^# (.+)$", markdown, re.MULTILINE)
    return found[1] if found else path


def index(site_name: str, description: str, sections: list[tuple[str, str]], texts: dict[str, str]) -> str:
    """`llms.txt`: a heading for each section, a line for each page."""
    lines = [f"# {site_name}", "", f"> {description}"]
    last = ""
    for section, path in sections:
        if section != last:
            lines += ["", f"## {section}", ""]
            last = section
        lines.append(f"- [{title_of(texts[path], path)}]({path}): {first_sentence(texts[path])}".rstrip(": "))
    return "\n".join(lines) + "\n"


def whole(sections: list[tuple[str, str]], texts: dict[str, str]) -> str:
    """`llms-full.txt`: all pages, each below a line with its path."""
    return "\n\n".join(f"<!-- page: {path} -->\n\n{texts[path].strip()}" for _, path in sections) + "\n"


def on_nav(nav: Any, **_: Any) -> Any:
    """Remember the order of the pages."""
    _sections[:] = []
    for item in nav.items:
        section = item.title or "Home"
        pages = [item] if item.is_page else _pages(item)
        _sections.extend((section, page.file.src_uri) for page in pages)
    return nav


def _pages(section: Any) -> list[Any]:
    return [page for child in section.children for page in ([child] if child.is_page else _pages(child))]


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Keep the text of a page."""
    _texts[page.file.src_uri] = markdown
    return markdown


def on_post_build(config: Any, **_: Any) -> None:
    """Write the files into the site."""
    site = Path(config.site_dir)
    listed = [(section, path) for section, path in _sections if path in _texts]
    for path, text in _texts.items():
        plain = site / path
        plain.parent.mkdir(parents=True, exist_ok=True)
        plain.write_text(text)
    (site / "llms.txt").write_text(index(config.site_name, config.site_description, listed, _texts))
    (site / "llms-full.txt").write_text(whole(listed, _texts))
