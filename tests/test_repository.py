"""House rules of the repository that a program can check, budgets and the README among them."""

import ast
import configparser
import functools
import itertools
import re
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.cli.registry import COMMANDS
from experiments.scripts.registry import EXPERIMENTS
from tests import size

ROOT = Path(__file__).parents[1]
PACKAGES = ("topologies", "cluster_sim", "workloads", "experiments")
TOP_FILES = {
    ".gitignore", "CHANGELOG.md", "CITATION.cff", "CONTRIBUTING.md", "DATA_LICENCES.md", "LICENSE",
    "MANIFEST.in", "Makefile", "README.md", "SECURITY.md", "constraints.txt", "mkdocs.yml",
    "pyproject.toml", "requirements.txt", "setup.cfg",
}  # fmt: skip
SOURCES = sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))


@functools.cache
def _tree(path):
    return ast.parse(path.read_text())


@functools.cache
def _nodes(tree):
    return tuple(ast.walk(tree))


def _functions(tree):
    for node in _nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def _unexplained(path, tree):
    """Modules, public functions and public classes without a docstring."""
    bare = bool(tree.body) and not ast.get_docstring(tree)
    return bare + sum(not ast.get_docstring(node) for node in _public(tree))


def _asserts_and_globals(path, tree):
    """Assert statements, for which a named error stands, and global statements."""
    return sum(isinstance(node, ast.Assert | ast.Global) for node in _nodes(tree))


def _public(owner):
    """Functions and classes that a reader may use, those inside public classes too."""
    for node in owner.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


FIRST_WORDS = {
    "Of", "In", "As", "Those", "What", "How", "So",
    "Whether", "Where", "When", "Which", "Who", "Whose", "Why",
}  # fmt: skip
"""Words that no docstring begins with: its first line is a phrase with a subject."""


def _room(path):
    return "/".join(path.relative_to(ROOT).parts[:2])


def _long_modules(path, tree):
    return int(path.read_text().count("\n") > 700)


def _long_functions(path, tree):
    lines = [(one.end_lineno or 0) - one.lineno + 1 for one in _functions(tree)]
    return sum(number > 60 for number in lines)


def _wide_functions(path, tree):
    """Functions of more than eight parameters, without that for the object itself."""
    wide = 0
    for one in _functions(tree):
        arguments = one.args
        listed = (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)
        names = [item.arg for item in listed]
        count = len(names) + bool(arguments.vararg) + bool(arguments.kwarg)
        wide += count - (names[:1] in (["self"], ["cls"])) > 8
    return wide


def _strange_docstrings(path, tree):
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Module)
    owners = [node for node in _nodes(tree) if isinstance(node, kinds)]
    texts = [ast.get_docstring(node) or "x" for node in owners]
    return sum(text.split()[0].strip(",:") in FIRST_WORDS for text in texts)


FRAGMENT = re.compile("(Of|What|How|Whose|Those) ")
"""Beginning of a description that leaves out what it describes."""


def _fragments(path, tree):
    """Descriptions of parameters and constants that leave out what they describe."""
    lines = path.read_text().splitlines()
    plain = (node.value for node in tree.body if isinstance(node, ast.Expr))
    values = (getattr(node, "value", None) for node in plain)
    texts = [value for value in values if isinstance(value, str)]
    pairs = itertools.pairwise(lines)
    described = [line.strip() for head, line in pairs if re.match(r" +[\w*, ]+ : \S", head)]
    return sum(FRAGMENT.match(text) is not None for text in (*texts, *described))


VAGUE = {"asked", "found", "given", "known", "made", "own", "said", "told"}
"""Names that say that there is a value, and not what it holds."""


def _vague_locals(path, tree):
    names = (node for node in _nodes(tree) if isinstance(node, ast.Name))
    stored = (node.id for node in names if isinstance(node.ctx, ast.Store))
    parameters = (node.arg for node in _nodes(tree) if isinstance(node, ast.arg))
    return sum(name in VAGUE for name in (*stored, *parameters))


RULES = {
    "modules and public names without a docstring": _unexplained,
    "asserts and global statements": _asserts_and_globals,
    "modules over 700 lines": _long_modules,
    "functions over 60 lines": _long_functions,
    "functions of more than 8 parameters": _wide_functions,
    "docstrings that begin without a subject": _strange_docstrings,
    "descriptions that leave out what they describe": _fragments,
    "locals and parameters named after nothing": _vague_locals,
}

NAMED_ONCE = {
    "topologies/support/arrays.py": re.compile(r"^(Int|Float|Bool)Array\b.*=", re.MULTILINE),
    "topologies/support/units.py": re.compile(r"^PS_PER_\w+ =", re.MULTILINE),
}
"""Names that every room needs, and the module that defines them."""


@pytest.mark.parametrize("home", NAMED_ONCE)
def test_names_that_every_room_needs_are_defined_in_one_place(home):
    defining = [path for path in SOURCES if NAMED_ONCE[home].search(path.read_text())]
    assert defining == [ROOT / home]


@pytest.mark.parametrize("rule", RULES)
def test_no_module_breaks_a_rule(rule):
    counts = {path: RULES[rule](path, _tree(path)) for path in SOURCES}
    broken = {str(path.relative_to(ROOT)): count for path, count in counts.items() if count}
    assert broken == {}, rule


def test_locals_of_tests_are_named_after_what_they_hold():
    counts = {str(path.relative_to(ROOT)): _vague_locals(path, _tree(path)) for path in TESTS}
    assert {path: count for path, count in counts.items() if count} == {}


def test_helpers_of_several_tests_stand_in_support():
    """A test module that another imports cannot be changed by itself."""
    imported = {
        str(path.relative_to(ROOT)): node.module
        for path in TESTS
        for node in _nodes(_tree(path))
        if isinstance(node, ast.ImportFrom)
        and re.fullmatch(r"tests\.([\w.]*\.)?test_\w+", node.module or "")
    }
    assert imported == {}


LATE_ROOMS = ("experiments/cli", "experiments/scripts")
"""Rooms whose functions import what they use: no command waits for the libraries of another."""
SLOW_TO_LOAD = {
    "concurrent", "difflib", "distributed", "html", "IPython", "llvmlite", "logging", "matplotlib",
    "networkx", "numba", "numpy", "pandas", "panel", "param", "rich", "scipy", "tomllib", "yaml",
}  # fmt: skip
"""Libraries that functions import, so that no start waits for them."""
LATE = {
    "cluster_sim/engine/__init__.py": {"cluster_sim.engine.reference"},
    "cluster_sim/engine/compiler/jit.py": {"cluster_sim.engine.compiler.numba_side"},
    "cluster_sim/trace/trace.py": {"cluster_sim.trace.file"},
    "experiments/reports/certainty.py": {"workloads.confidence.split_conformal"},
    "experiments/reports/plan.py": {"experiments.figures.plan"},
    "experiments/reports/run_directory.py": {"cluster_sim.plot"},
    "experiments/reports/training.py": {
        "cluster_sim.plot", "experiments.reports.drawing", "workloads.training.explain",
    },
    "topologies/clusters/cluster.py": {"topologies.views.graph"},
    "topologies/clusters/names.py": {
        "topologies.clusters.graph_file", "topologies.clusters.yaml_file",
    },
    "topologies/support/files/tool_files.py": {"topologies.support.files.yaml_documents"},
    "workloads/remarks.py": {"workloads.search.choice"},
    "workloads/training/frameworks/conditions.py": {"workloads.training.frameworks.framework"},
    "workloads/training/plan/other_tools.py": {"topologies.support.files.yaml_documents"},
}  # fmt: skip
"""Rooms that bring such a library with them, and the modules whose functions import them."""


def _imported_late(tree):
    for function in _functions(tree):
        for node in ast.walk(function):
            if isinstance(node, ast.ImportFrom):
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            elif isinstance(node, ast.Import):
                yield from (alias.name for alias in node.names)


def test_functions_import_only_what_start_up_needs():
    """Other imports move to the top of their module, or are listed above."""
    unlisted = [
        f"{path.relative_to(ROOT)}: {module}"
        for path in SOURCES
        if _room(path) not in LATE_ROOMS
        for module in _imported_late(_tree(path))
        if module.partition(".")[0] not in SLOW_TO_LOAD
        and not f"{module}.".startswith(tuple(f"{name}." for name in _rooms_of(path)))
    ]
    assert unlisted == []


def _rooms_of(path):
    return LATE.get(str(path.relative_to(ROOT)), ())


def _run(*words, cwd=ROOT):
    return subprocess.run(words, cwd=cwd, capture_output=True, text=True, check=False)


def test_top_level_is_the_documented_one():
    tracked = _run("git", "ls-files").stdout.split()
    folders = {name.split("/")[0] for name in tracked if "/" in name}
    assert folders <= {*PACKAGES, "tests", "notebooks", "benchmarks", "docs", "tools", ".ci"}
    assert {name for name in tracked if "/" not in name} <= TOP_FILES


def test_importing_the_packages_writes_and_prints_nothing(tmp_path):
    code = "import topologies, cluster_sim, workloads, experiments"
    done = _run(sys.executable, "-W", "error", "-c", code, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert list(tmp_path.iterdir()) == []


def test_the_layers_hold():
    done = _run(Path(sys.executable).with_name("lint-imports"), "--no-cache")
    assert done.returncode == 0, done.stdout


def test_an_installed_package_carries_all_its_data():
    settings = configparser.ConfigParser()
    settings.read(ROOT / "setup.cfg")
    patterns = [one.strip() for one in settings["options.package_data"]["*"].split(",")]
    packages = [source.parent for source in SOURCES if source.name == "__init__.py"]
    carried = {path for place in packages for pattern in patterns for path in place.glob(pattern)}
    listed = _run("git", "ls-files", *PACKAGES).stdout.split()
    data = {ROOT / name for name in listed if not name.endswith(".py")}
    assert sorted(data - carried) == []


def test_no_room_is_beyond_its_budget(capsys):
    assert size.main() == 0, capsys.readouterr().out
    assert set(size.budgets()) == set(size.lines_by_room())


def test_a_room_beyond_its_budget_fails(monkeypatch, capsys):
    least = dict.fromkeys(size.budgets(), 1)
    monkeypatch.setattr(size, "budgets", lambda: least)
    assert size.main() == 1
    assert "too large" in capsys.readouterr().out


README = (Path(__file__).parents[1] / "README.md").read_text()


def test_commands_and_experiments_of_the_readme_exist():
    commands = {command.name for command in COMMANDS}
    named = set(re.findall(r"^cluster-sim ([a-z-]+)", README, re.MULTILINE))
    assert named
    assert named <= commands
    experiments = set(re.findall(r"python -m experiments ([a-z_]+)", README))
    assert experiments <= {experiment.name for experiment in EXPERIMENTS}
