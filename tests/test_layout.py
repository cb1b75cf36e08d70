"""The house rules that a machine can check: imports, layout, help, README."""

import ast
import importlib
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
# Data flows down this list; a package imports itself and what stands before it.
ORDER = ("questions", "models", "calibration", "confidence", "evaluation", "publishing")
MATHEMATICS = (
    "toolkit/calibration/losses.py",
    "toolkit/calibration/objectives.py",
    "toolkit/calibration/bilevel.py",
    "toolkit/evaluation/metrics.py",
)
MODELS_CONFIG_ACCELERATOR = {
    "accelerate", "datasets", "jsonargparse", "peft", "transformers", "yaml",
    "toolkit.models", "toolkit.questions",
}  # fmt: skip
LOGITS_READERS = {
    "toolkit/models/predictive.py",  # of texts as they are
    "toolkit/models/generation.py",  # step by step
    "toolkit/confidence/tokens.py",  # of those steps
}


def files(*folders: str, suffixes: tuple[str, ...] = (".py",)) -> list[str]:
    """Paths under the folders, relative to the repository; generated files left out."""
    return sorted(
        path.relative_to(ROOT).as_posix()
        for folder in folders
        for path in (ROOT / folder).rglob("*")
        if path.suffix in suffixes and "__pycache__" not in path.parts
    )


def tree(file: str) -> ast.Module:
    return ast.parse((ROOT / file).read_text(encoding="utf-8"))


def imports(file: str) -> Iterator[str]:
    """Dotted names that a file imports anywhere; `from a import b` counts as `a.b`."""
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file} has a relative import"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def is_script(file: str) -> bool:
    return any(
        isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"
        for node in tree(file).body
    )


PACKAGED = files("toolkit", "app")
SCRIPTS = [file for file in files("recipes") if is_script(file)]


def test_there_is_something_to_check():
    assert {Path(file).parts[1] for file in PACKAGED} >= set(ORDER)
    assert {Path(file).name for file in SCRIPTS} >= {"calibrate.py", "evaluate.py", "compare.py"}


@pytest.mark.parametrize("file", PACKAGED)
def test_module_imports(file):
    assert (ROOT / file).with_name("__init__.py").exists(), f"{file} is in no package"
    importlib.import_module(file.removesuffix(".py").removesuffix("/__init__").replace("/", "."))


@pytest.mark.parametrize("file", SCRIPTS)
def test_recipe_answers_help(file):
    shown = subprocess.run(
        [sys.executable, file, "--help"],
        cwd=ROOT,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert shown.returncode == 0, shown.stderr
    assert "usage:" in shown.stdout.lower()


@pytest.mark.parametrize("file", PACKAGED)
def test_imports_point_upward(file):
    recipes = {Path(script).stem for script in files("recipes")} | {"recipes"}
    in_toolkit = file.startswith("toolkit/")
    package = Path(file).parts[1]
    for name in imports(file):
        top, *rest = name.split(".")
        assert top not in recipes, f"{file} imports {name}"
        if in_toolkit:
            assert top != "app", f"{file} imports {name}"
        if in_toolkit and top == "toolkit" and rest[0] in ORDER:
            assert package in ORDER, f"{file} imports {name}"
            assert ORDER.index(rest[0]) <= ORDER.index(package), f"{file} imports {name}"


@pytest.mark.parametrize("file", MATHEMATICS)
def test_mathematics_knows_no_model_config_or_accelerator(file):
    for name in imports(file):
        known = {name.split(".")[0], ".".join(name.split(".")[:2])}
        assert not known & MODELS_CONFIG_ACCELERATOR, f"{file} imports {name}"


def test_few_modules_read_logits():
    readers = {
        file
        for file in files("toolkit", "app", "recipes")
        for node in ast.walk(tree(file))
        if (isinstance(node, ast.Attribute) and node.attr == "logits")
        or (isinstance(node, ast.Subscript) and ast.unparse(node.slice) == "'logits'")
    }
    assert readers == LOGITS_READERS


def test_readme_gives_every_file_a_phrase():
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    names = Counter(
        Path(file).name
        for file in files("toolkit", "app", "recipes", suffixes=(".py", ".yaml"))
        if Path(file).name != "__init__.py"
    )
    for name, count in names.items():
        named = re.compile(rf"(?<![\w.-]){re.escape(name)}(?![\w.-])")
        phrases = [line for line in lines if len(re.findall(r"[A-Za-z]{2,}", named.sub("", line))) > 1]
        assert sum(bool(named.search(line)) for line in phrases) >= count, f"README lacks {name}"


def test_no_file_is_too_long():
    for file in files("toolkit", "app", "recipes", "tests", suffixes=(".py", ".yaml")):
        if file.startswith("recipes/results/"):  # written by recipes
            continue
        length = len((ROOT / file).read_text(encoding="utf-8").splitlines())
        assert length <= 400, f"{file} has {length} lines"


def test_no_machine_path_and_no_registry_address():
    text = (".py", ".yaml", ".json", ".jsonl", ".md", ".toml", ".txt")
    top = ["Makefile", ".ci/run", *(path.name for path in ROOT.iterdir() if path.suffix in text)]
    machine = re.compile(r"(?<![\w.~$}-])/(?:root|home|work|tmp|Users|opt|mnt)/\w")
    registry = re.compile(r"https?://[\w.-]*(?:pypi|pythonhosted|pytorch\.org/whl)|index[-_]url")
    for file in top + files("toolkit", "app", "recipes", "tests", "adapters", suffixes=text):
        content = (ROOT / file).read_text(encoding="utf-8")
        for pattern in (machine, registry):
            found = pattern.search(content)
            assert not found, f"{file} has {found and found[0]!r}"
