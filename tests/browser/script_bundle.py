"""One script of npm packages for a page: their CommonJS modules, linked without a build step."""

import json
import re
from pathlib import Path

PACKAGES = Path(__file__).parents[1] / "js" / "node_modules"

_REQUIRE = re.compile(r"""\brequire\(["']([^"']+)["']\)""")
_LINKER = """
const loaded = {};
function load(name) {
  if (!loaded[name]) {
    const module = loaded[name] = { exports: {} };
    modules[name](module, module.exports, (wanted) => load(links[name][wanted]));
  }
  return loaded[name].exports;
}
window.requirePackage = (name) => load(entries[name]);
"""


def bundle(*packages):
    """A script after which `requirePackage(name)` gives each of the packages."""
    entries = {package: _resolve(package, None) for package in packages}
    found = {}
    waiting = list(entries.values())
    while waiting:
        path = waiting.pop()
        if path in found:
            continue
        wanted = {name: _resolve(name, path) for name in _REQUIRE.findall(path.read_text())}
        # Modules of Node itself are asked for only where a page's own are missing.
        found[path] = {name: target for name, target in wanted.items() if target is not None}
        waiting += found[path].values()
    names = {path: str(path.relative_to(PACKAGES)) for path in found}
    modules = ",\n".join(
        f"{json.dumps(names[path])}: function (module, exports, require) {{\n{path.read_text()}\n}}" for path in found
    )
    links = {names[path]: {name: names[target] for name, target in found[path].items()} for path in found}
    starts = {package: names[path] for package, path in entries.items()}
    head = f"const links = {json.dumps(links)};\nconst entries = {json.dumps(starts)};\n"
    return f"(() => {{\n{head}const modules = {{\n{modules}\n}};\n{_LINKER}}})();"


def _resolve(name, importer):
    if name.startswith("."):
        base = importer.parent / name
        return next(path.resolve() for path in (base, base.with_name(base.name + ".js")) if path.is_file())
    parts = name.split("/")
    depth = 2 if name.startswith("@") else 1
    folder = PACKAGES.joinpath(*parts[:depth])
    if not folder.is_dir():
        return None
    description = json.loads((folder / "package.json").read_text())
    exports = description.get("exports")
    entry = "./" + "/".join(parts[depth:]) if parts[depth:] else "."
    target = exports[entry] if isinstance(exports, dict) else description.get("main", "index.js")
    return (folder / target).resolve()
