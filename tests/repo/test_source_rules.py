"""What every source file of the product keeps to, so that no reviewer has to count lines."""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[2]
SOURCE_ROOTS = (REPOSITORY / "operator", REPOSITORY / "worker_lib")
PRODUCT = sorted(path for root in (*SOURCE_ROOTS, REPOSITORY / "examples") for path in root.rglob("*.py"))
CORE = REPOSITORY / "worker_lib" / "fencepost" / "protocol"

FUNCTION_LINES_MAX = 70
MODULE_LINES_MAX = 400
NOT_OURS = {"build", "dist", "node_modules", "__pycache__"}
KEPT_FOLDERS_WITH_A_DOT = {".ci", ".github"}
UNFINISHED = re.compile(
    r"\b(" + "|".join(["TO" + "DO", "FIX" + "ME", "X" * 3, "NotImplemented" + "Error"]) + r")\b"
)


def source(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def committed_files() -> Iterator[Path]:
    """Every file of the repository that is neither made by a tool nor hidden."""
    for folder, folders, files in os.walk(REPOSITORY):
        folders[:] = [
            name
            for name in folders
            if name not in NOT_OURS and (not name.startswith(".") or name in KEPT_FOLDERS_WITH_A_DOT)
        ]
        yield from (Path(folder) / name for name in files if not name.startswith("."))


def words_of_one_machine() -> list[str]:
    """Where this checkout and its user's home are: a file that names them holds on one machine only."""
    places = [REPOSITORY, Path.home()]
    return [f"{place}/" for place in places if len(place.parts) > 2] + [".." + "/shared"]


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_module_is_short_finished_and_says_what_it_is_for(path: Path) -> None:
    text = source(path)
    assert len(text.splitlines()) <= MODULE_LINES_MAX
    assert not UNFINISHED.findall(text)
    if path.name != "__init__.py":
        assert ast.get_docstring(ast.parse(text)), "a module says in its first lines what it guarantees"


@pytest.mark.parametrize("path", PRODUCT, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_a_function_can_be_read_at_once(path: Path) -> None:
    lengths = {
        node.name: (node.end_lineno or node.lineno) - node.lineno + 1
        for node in ast.walk(ast.parse(source(path)))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    }
    assert {name: lines for name, lines in lengths.items() if lines > FUNCTION_LINES_MAX} == {}


def test_the_source_roots_are_no_packages() -> None:
    """A package called `operator` would stand before the standard library's."""
    for root in (*SOURCE_ROOTS, REPOSITORY / "tests"):
        assert not (root / "__init__.py").exists()
    assert not list((REPOSITORY / "tests").rglob("__init__.py"))


def test_every_rule_of_the_core_has_its_twin_test() -> None:
    modules = {path.stem for path in CORE.glob("*.py")} - {"__init__"}
    tests = {path.stem.removeprefix("test_") for path in (REPOSITORY / "tests/protocol").glob("test_*.py")}
    assert tests == modules


def test_no_file_names_the_machine_it_was_written_on() -> None:
    words = words_of_one_machine()
    named = {}
    for path in committed_files():
        text = path.read_bytes().decode("utf-8", "ignore")
        found = [word for word in words if word in text]
        if found:
            named[str(path.relative_to(REPOSITORY))] = found
    assert named == {}
