"""Every field of every Struct says what it is, in the place where it is declared."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import jetlake.model

FILES = sorted(Path(jetlake.model.__file__).parent.glob("*.py"))


def undocumented(tree: ast.Module) -> list[str]:
    """Annotated fields of classes that no string follows, and public classes without a docstring."""
    missing = []
    for node in tree.body:
        if not isinstance(node, ast.ClassDef) or node.name.startswith("_"):
            continue
        if ast.get_docstring(node) is None:
            missing.append(node.name)
        for statement, following in zip(node.body, [*node.body[1:], None], strict=True):
            if isinstance(statement, ast.AnnAssign) and not (
                isinstance(following, ast.Expr) and isinstance(following.value, ast.Constant)
            ):
                missing.append(f"{node.name}.{ast.unparse(statement.target)}")
    return missing


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_every_field_is_documented(path: Path) -> None:
    assert undocumented(ast.parse(path.read_text())) == []
