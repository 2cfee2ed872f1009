"""Draws the reference of the Python API from signatures, docstrings and `examples/reference.py`, as pages of Markdown.

    python tools/render_python_reference.py [FOLDER]

Without a folder it writes `docs/reference/python.md`, the overview that the repository keeps. `make docs` puts the
whole pages into the site.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

# Each page: its title, the module whose public names it lists.
PAGES = {
    "client.md": ("The asyncio client", "jetlake.client"),
    "blocking.md": ("The blocking client and server", "jetlake.blocking"),
    "server.md": ("The embedded server", "jetlake.server"),
    "testing.md": ("Helpers for tests", "jetlake.testing"),
    "spark.md": ("Spark", "jetlake.spark"),
    "otel.md": ("OpenTelemetry", "jetlake.otel"),
    "errors.md": ("Exceptions", "jetlake.errors"),
}
# By the first part of a page's path; other pages have 1.
SEARCH_BOOSTS = {
    "install.md": 2.0,
    "when-to-use.md": 2.0,
    "migrating-from-nats-py.md": 1.2,
    "how-to/README.md": 0.3,
    "how-to/": 1.5,
    "faq.md": 0.5,
    "conformance.md": 0.1,
    "benchmarks.md": 0.1,
    "decisions/": 0.1,
    "formats.md": 0.1,
    "reference/": 0.5,
}
# The client's names by task, beginning with what a reader meets first.
GROUPS = {
    "Connect, publish and subscribe": ["connect", "Client", "Subscription", "Message"],
    "Publish to streams": ["JetStream", "PendingAck", "AtomicBatch", "FastPublisher", "Schemas"],
    "Streams": ["Stream", "StoredMessage", "Table"],
    "Consumers": ["Consumer", "MessageBatch", "Fetch", "Consume", "OrderedConsumer"],
    "Consumer groups": ["ConsumerGroups", "ConsumerGroup", "GroupMember"],
    "The subscribe workflow": ["PushSubscription", "PullSubscription"],
    "Key-value buckets": ["KeyValue", "KeyWatch"],
    "Object stores": ["ObjectStore", "ObjectReader", "ObjectWatch"],
    "Services": ["Services", "Service", "ServiceRequest"],
    "Counters": ["Counters"],
}
# What comes first on every page; other names follow in the order of the alphabet.
FIRST_NAMES = [*(name for names in GROUPS.values() for name in names), "Server", "session", "JetlakeError"]
ROOT = Path(__file__).parent.parent
OVERVIEW = ROOT / "docs" / "reference" / "python.md"
REPOSITORY = "https://github.com/jetlake/jetlake/tree/main"
_ATTRIBUTE = re.compile(r"^    (\w+): (.+)$", re.MULTILINE)
_SECTION = re.compile(r"^(Args|Raises|Attributes|Returns|Yields):$")


def public_names(module_name: str) -> dict[str, Any]:
    """The classes and functions that a module offers, beginning with what a reader meets first."""
    module = import_module(module_name)
    names = {name: getattr(module, name) for name in sorted(module.__all__, key=_rank)}
    return {name: value for name, value in names.items() if callable(value)}


def _rank(name: str) -> tuple[int, str]:
    return (FIRST_NAMES.index(name) if name in FIRST_NAMES else len(FIRST_NAMES), name)


def public_members(kind: type) -> dict[str, Any]:
    """A class's own public methods and properties; those of Python's classes are left out."""
    members = {}
    for name in dir(kind):
        if name.startswith("_") or name in getattr(kind, "_hidden_names", ()):
            continue
        owner = next(parent for parent in kind.__mro__ if name in vars(parent))
        if owner.__module__.startswith("jetlake"):
            members[name] = inspect.getattr_static(kind, name)
    return members


def signature_text(value: Any) -> str:
    """The arguments as they are written; empty where there are none to call with."""
    value = getattr(value, "__func__", value)
    try:
        signature = inspect.signature(value)
    except (TypeError, ValueError):
        return ""
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    text = re.sub(r" object at 0x[0-9a-f]+", "", str(signature.replace(parameters=parameters)))
    return re.sub(r"(: |-> )'([^']+)'", r"\1\2", text)


def docstring_markdown(value: Any) -> str:
    """A docstring with its sections (Args, Raises …) as lists."""
    lines: list[str] = []
    in_section = False
    for line in (inspect.getdoc(value) or "").splitlines():
        section = _SECTION.match(line)
        item = re.match(r"^    (\*{0,2}[\w.]+): (.+)$", line) if in_section else None
        if section is not None:
            in_section = True
            lines += [f"**{section[1]}**", ""]
        elif item is not None:
            lines.append(f"- `{item[1]}`: {item[2]}")
        elif in_section and line.startswith("     "):
            lines.append("  " + line.strip())
        else:
            in_section = in_section and (not line or line.startswith(" "))
            lines.append(line)
    return "\n".join(lines)


def is_called(value: Any) -> bool:
    """Whether a class's member is a method."""
    return callable(value) or isinstance(value, classmethod | staticmethod)


def describe_class(name: str, kind: type, example: list[str]) -> list[str]:
    """A class with an example, its arguments and everything it offers."""
    parents = [parent.__name__ for parent in kind.__bases__ if parent.__module__.startswith("jetlake")]
    lines = [f"## {name}", ""]
    if issubclass(kind, Exception):
        lines += [f"A `{kind.__bases__[0].__name__}`.", ""]
    elif parents:
        lines += ["Also has what is in " + ", ".join(f"`{parent}`" for parent in parents) + ".", ""]
    if not issubclass(kind, Exception):
        lines += ["```python", f"{name}{signature_text(kind)}", "```", ""]
    lines += [docstring_markdown(kind), "", *example]
    for member, value in public_members(kind).items() if not issubclass(kind, BaseException) else ():
        function = getattr(value, "__wrapped__", value)
        if is_called(value):
            prefix = "await " if inspect.iscoroutinefunction(value) else ""
            lines += [f"### {name}.{member}", "", "```python", f"{prefix}{member}{signature_text(value)}", "```", ""]
        else:
            lines += [f"### {name}.{member}", ""]
        lines += [docstring_markdown(function), ""]
    return lines


def examples() -> dict[str, str]:
    """The body of each function of `examples/reference.py`, by the class that it shows."""
    source = (ROOT / "examples" / "reference.py").read_text()
    found = {}
    for node in ast.parse(source).body:
        if isinstance(node, ast.AsyncFunctionDef) and node.name != "main":
            body = source.splitlines()[node.lineno : node.end_lineno]
            found[node.name.replace("_", "")] = textwrap.dedent("\n".join(body)).strip()
    return found


def example_block(name: str, shown: dict[str, str]) -> list[str]:
    """The example of a class of the client; nothing for what has none."""
    code = shown.get(name.lower())
    return [] if code is None else ["```python", code, "```", ""]


def overview() -> str:
    """All classes of the client by task, each with an example and its members in a line each."""
    shown = examples()
    names = public_names(PAGES["client.md"][1])
    lines = [
        "# The Python API",
        "",
        "The classes of the asyncio client by task, each with an example and its methods and properties.",
        "`jetlake.blocking` has the same names without `await`. In the examples, `client` is a connected client,",
        "`js` is `client.jetstream()`, and the stream ORDERS stores `orders.>` (`examples/reference.py`).",
        "`make docs` builds a site with every argument and exception.",
        "",
    ]
    for title, members in GROUPS.items():
        lines += [f"## {title}", ""]
        for name in members:
            lines += [f"### {name}", "", first_paragraph(names[name]), "", *example_block(name, shown)]
            if inspect.isclass(names[name]):
                lines += member_table(names[name])
    lines += ["## Everything else", "", "| module | what it offers |", "|---|---|"]
    for page, (_, module_name) in PAGES.items():
        if page not in ("client.md", "errors.md"):
            lines.append(f"| `{module_name}` | {', '.join(f'`{name}`' for name in public_names(module_name))} |")
    lines.append("| `jetlake.errors` | the exceptions, drawn as a tree in the module; [by error code](errors.md) |")
    return "\n".join(lines) + "\n"


def member_table(kind: type) -> list[str]:
    """A line for each method and property that a class has."""
    lines = ["| | |", "|---|---|"]
    attributes = dict(_ATTRIBUTE.findall((inspect.getdoc(kind) or "").partition("\nAttributes:\n")[2]))
    for member, value in public_members(kind).items():
        call = f"{member}()" if is_called(value) else member
        text = first_paragraph(getattr(value, "__wrapped__", value)) or attributes.get(member, "")
        if text:
            lines.append(f"| `{call}` | {text} |")
    return [*lines, ""] if len(lines) > 2 else []


def first_paragraph(value: Any) -> str:
    """The first paragraph of a docstring, for a cell of a table."""
    paragraph = (inspect.getdoc(value) or "").partition("\n\n")[0].replace("\n", " ")
    return paragraph.replace("|", "\\|")


def draw(page: str) -> str:
    """One page."""
    shown = examples() if page == "client.md" else {}
    title, module_name = PAGES[page]
    lines = [f"# {title}", "", f"What `{module_name}` offers.", ""]
    for name, value in public_names(module_name).items():
        if inspect.isclass(value):
            lines += describe_class(name, value, example_block(name, shown))
        else:
            prefix = "await " if inspect.iscoroutinefunction(value) else ""
            lines += [f"## {name}", "", "```python", f"{prefix}{name}{signature_text(value)}", "```", ""]
            lines += [docstring_markdown(value), "", *example_block(name, shown)]
    return "\n".join(lines).rstrip() + "\n"


def on_files(files: Any, config: Any) -> Any:
    """Add the pages to the site; called by mkdocs."""
    from mkdocs.structure.files import File

    for page in PAGES:
        files.append(File.generated(config, f"reference/python/{page}", content=draw(page)))
    readme = (ROOT / "README.md").read_text().replace("](docs/", "](")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def search_boost(page: str) -> float:
    """How much the site's search prefers a page: what answers a task before what lists everything."""
    return next((boost for prefix, boost in SEARCH_BOOSTS.items() if page.startswith(prefix)), 1.0)


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Set the page's weight in the search, and lead links that leave the pages to the repository; called by mkdocs."""
    page.meta.setdefault("search", {})["boost"] = search_boost(page.file.src_uri)
    outside = r"\]\((?:\.\./)*((?:examples|packaging|CONTRIBUTING|CHANGELOG)[^)]*)\)"
    return re.sub(outside, rf"]({REPOSITORY}/\1)", markdown)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        for page in PAGES:
            (Path(sys.argv[1]) / page).write_text(draw(page))
    else:
        OVERVIEW.write_text(overview())
