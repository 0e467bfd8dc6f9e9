"""The architecture, by AST: which way imports point, where third parties live, how long a module may be.

Each rule is a function that takes sources (path in the checkout -> text) and returns violations. Imports count wherever
they stand: at the top, in a function, under TYPE_CHECKING.
"""

import ast
import fnmatch
import functools
import graphlib
import importlib
import importlib.util
import io
import itertools
import re
import sys
import tokenize
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
LINES_MAX = 400

# Each of the three folders, with the import name that it has and must insist on.
FOLDERS = {"journal": "runjournal", "projections": "runjournal.projections", "cli": "runjournal.cli"}

# The rooms, from the bottom up. A module may import from its own room and from those on floors below; rooms of a floor
# know nothing of each other. The first pattern that fits counts.
ROOMS = [
    ("journal/log/*", "journal/log", 0),
    ("projections/*", "projections", 1),
    ("journal/engine/*", "journal/engine", 2),
    ("journal/writing/*", "journal/writing", 2),
    ("journal/looking/*", "journal/looking", 4),
    ("journal/importers/*", "journal/importers", 4),
    ("journal/testing/*", "journal/testing", 4),
    ("journal/*", "journal", 3),
    ("cli/*", "cli", 5),
]

# Third parties by import name, with the modules that may import them; what is not here is no declared dependency.
HOMES = {
    "apsw": ["journal/log/sqlite*.py", "journal/log/recorder.py"],
    "click": ["cli/*"],
    "cryptography": ["journal/log/cipher.py"],
    "eventsourcing": ["journal/log/recorder.py", "journal/log/memory*.py"],
    "genai_prices": ["journal/engine/price_list.py"],
    "hypothesis": ["journal/testing/*"],
    "orjson": ["*"],
    "rich": ["cli/*"],
}

Sources = Mapping[str, str]


class Import(NamedTuple):
    """One imported module or name.

    ``from .base import Event`` in line 13 of events.py is
    Import("journal/log/events.py", 13, 1, "runjournal.log.base", "Event").
    """

    path: str  # of the importing module
    line: int
    level: int | None  # how many dots; None for a call of import_module, which has no spelling to choose
    target: str  # the module, absolute
    name: str | None = None  # what is taken from it, if that is no module


@functools.cache
def checkout() -> Mapping[str, str]:
    """The sources of the three folders."""
    files = [
        file for folder in FOLDERS for file in sorted((ROOT / folder).rglob("*.py*")) if file.suffix in {".py", ".pyi"}
    ]
    return {file.relative_to(ROOT).as_posix(): file.read_text(encoding="utf-8") for file in files}


def module_name(path: str) -> str:
    """``journal/log/events.py`` -> ``runjournal.log.events``."""
    folder, *rest = PurePosixPath(path).with_suffix("").parts
    return ".".join([FOLDERS[folder], *(part for part in rest if part != "__init__")])


def package_name(path: str) -> str:
    """The package that the dots of a relative import in this module start from."""
    return module_name((PurePosixPath(path).parent / "__init__.py").as_posix())


def imports(sources: Sources) -> Iterator[Import]:
    """Every import of every module, with names resolved to modules where they are one."""
    modules = {module_name(path) for path in sources}
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.Import):
                yield from (Import(path, node.lineno, 0, alias.name) for alias in node.names)
            elif isinstance(node, ast.ImportFrom):
                base = node.module or ""
                if node.level:
                    above = package_name(path).split(".")
                    base = ".".join([*above[: len(above) - node.level + 1], *filter(None, [node.module])])
                for alias in node.names:
                    inner = f"{base}.{alias.name}"
                    found = (inner, None) if inner in modules else (base, alias.name)
                    yield Import(path, node.lineno, node.level, *found)
            elif isinstance(node, ast.Call) and _called(node) in {"import_module", "__import__"}:
                match node.args:
                    case [ast.Constant(value=str(target)), *_]:
                        yield Import(path, node.lineno, None, importlib.util.resolve_name(target, package_name(path)))


def _called(node: ast.Call) -> str | None:
    match node.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def _ours(target: str) -> bool:
    return target == "runjournal" or target.startswith("runjournal.")


def room_of(path: str) -> tuple[str, int]:
    return next((room, floor) for pattern, room, floor in ROOMS if fnmatch.fnmatch(path, pattern))


# --- the rules -------------------------------------------------------------------------------------------------------


def upward_imports(sources: Sources) -> list[str]:
    """Imports that point to a room above, to another room of the same floor, or to a module that isn't there."""
    rooms = {module_name(path): room_of(path) for path in sources}
    found = []
    for each in imports(sources):
        if not _ours(each.target):
            continue
        if each.target not in rooms:
            found.append(f"{each.path}:{each.line} imports {each.target}, which doesn't exist")
            continue
        (room, floor), (mine, my_floor) = rooms[each.target], room_of(each.path)
        if floor > my_floor or (floor == my_floor and room != mine):
            found.append(f"{each.path}:{each.line} imports {each.target}, of {room}, which isn't below {mine}")
    return found


def circles(sources: Sources) -> list[str]:
    """A circle of imports, if there is one; the façade is left out, as nothing may import from it."""
    graph: dict[str, set[str]] = {module_name(path): set() for path in sources}
    for each in imports(sources):
        source = module_name(each.path)
        if each.target in graph and each.target != source and "runjournal" not in {source, each.target}:
            graph[source].add(each.target)
    try:
        graphlib.TopologicalSorter(graph).prepare()
    except graphlib.CycleError as error:
        return [" <- ".join(error.args[1])]
    return []


def misspelt_imports(sources: Sources) -> list[str]:
    """Absolute imports inside a folder, relative ones across folders, and any from the façade."""
    found = []
    for each in imports(sources):
        if not _ours(each.target):
            continue
        package = package_name(each.path)
        siblings = {package, *(module_name(path) for path in sources if package_name(path) == package)}
        if each.target == "runjournal":
            found.append(f"{each.path}:{each.line} imports from the façade")
        elif each.level is not None and each.level > 0 and each.target not in siblings:
            found.append(f"{each.path}:{each.line} imports {each.target} of another folder by a relative name")
        elif each.level == 0 and each.target in siblings:
            found.append(f"{each.path}:{each.line} imports {each.target} of its own folder by an absolute name")
    return found


def strayed_third_parties(sources: Sources) -> list[str]:
    """Imports of third parties outside their homes, and of those that are no dependency of ours."""
    found = []
    for each in imports(sources):
        top = each.target.partition(".")[0]
        if top == "runjournal" or top in sys.stdlib_module_names:
            continue
        if not any(fnmatch.fnmatch(each.path, home) for home in HOMES.get(top, [])):
            found.append(f"{each.path}:{each.line} imports {top}; its home: {HOMES.get(top, 'none')}")
    return found


def code_lines(text: str) -> int:
    """The lines that hold code: neither blank, nor comment, nor docstring."""
    layout = {tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER}
    lines: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in layout:
            lines.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Expr(value=ast.Constant(value=str()), end_lineno=int(end)):
                lines.difference_update(range(node.lineno, end + 1))
    return len(lines)


def long_modules(sources: Sources) -> list[str]:
    """Modules with more lines of code than LINES_MAX."""
    counts = {path: code_lines(text) for path, text in sources.items()}
    return [f"{path} has {count} lines of code" for path, count in counts.items() if count > LINES_MAX]


EVENTS, FAILURES = "journal/log/events.py", "journal/engine/failures.py"
NAMESAKES = {"RunCancelled", "RunFailed", "RunWaiting", "StepFailed"}
"""Each is an event, and the exception by which whoever runs the agent, or the agent, is told of it."""


def namesakes(sources: Sources) -> list[str]:
    """Classes of one name, nested and private ones too, but for an event and the exception that tells of it."""
    places: dict[str, list[str]] = {}
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(f"{path}:{node.lineno}")
    return [
        f"{name} is the name of several classes: {', '.join(found)}"
        for name, found in places.items()
        if len(found) > 1
        and not (name in NAMESAKES and sorted([FAILURES, EVENTS]) == sorted(each.partition(":")[0] for each in found))
    ]


def unclear_facade(sources: Sources) -> list[str]:
    """A stub of the façade that isn't `from <module> import <name> as <name>`, a name a line, or says a name twice."""
    path, names, found = "journal/__init__.pyi", list[str](), list[str]()
    for node in ast.parse(sources.get(path, "pass")).body:
        match node:
            case ast.ImportFrom(names=[ast.alias(name=name, asname=known)], end_lineno=node.lineno) if name == known:
                names.append(name)
            case ast.AnnAssign(target=ast.Name(id="__all__"), value=None):
                pass
            case _:
                found.append(f"{path}:{node.lineno} isn't an import of one name, as itself")
    return found + [f"{path} says {name} twice" for name in sorted(set(names)) if names.count(name) > 1]


def open_doors(sources: Sources) -> list[str]:
    """Folders whose `__init__` doesn't open with ``if __name__ != "<its import name>": raise ImportError(...)``."""
    return [
        f"{folder}/__init__.py accepts another name than {name}"
        for folder, name in FOLDERS.items()
        if not any(_refuses(node, name) for node in ast.parse(sources.get(f"{folder}/__init__.py", "")).body)
    ]


def undescribed_tests(sources: Sources) -> list[str]:
    """Tests whose docstring isn't one sentence, which may take several lines."""
    found = []
    for path, text in sources.items():
        for node in ast.walk(ast.parse(text, path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name.startswith("test_"):
                docstring = ast.get_docstring(node) or ""
                if not docstring.endswith(".") or "\n\n" in docstring:
                    found.append(f"{path}:{node.lineno} {node.name} doesn't say in one sentence what it shows")
    return found


def silent_methods(sources: Sources) -> list[str]:
    """Public methods without a docstring that implement neither a base class nor a protocol that describes them."""
    classes = [
        node
        for path, text in sources.items()
        for node in ast.walk(ast.parse(text, path))
        if isinstance(node, ast.ClassDef)
    ]
    named: dict[str, list[ast.ClassDef]] = {}
    for each in classes:
        named.setdefault(each.name, []).append(each)
    protocols = [each for each in classes if "Protocol" in _bases(each)]

    def family(node: ast.ClassDef) -> list[ast.ClassDef]:
        above = [each for base in _bases(node) for each in named.get(base, []) if base != node.name]
        return [node, *(each for base in above for each in family(base))]

    found = []
    for each in classes:
        own = family(each)
        has = {name for above in own for name in _members(above)}
        described = {
            name
            for above in [*own, *(protocol for protocol in protocols if set(_methods(protocol)) <= has)]
            for name, method in _methods(above).items()
            if ast.get_docstring(method)
        }
        if not each.name.startswith("_"):
            found += [f"{each.name}.{name} says nothing" for name in _methods(each) if name not in described]
    return found


def _bases(node: ast.ClassDef) -> set[str]:
    bases = (each.value if isinstance(each, ast.Subscript) else each for each in node.bases)
    return {
        each.id if isinstance(each, ast.Name) else each.attr  # type: ignore[attr-defined]  # as a test may
        for each in bases
        if hasattr(each, "id") or hasattr(each, "attr")
    }


def _methods(node: ast.ClassDef) -> dict[str, ast.FunctionDef | ast.AsyncFunctionDef]:
    """The public methods that a class defines itself, by name; of overloads, the one that is no stub."""
    functions = (each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef))
    return {each.name: each for each in functions if not each.name.startswith("_")}


def _members(node: ast.ClassDef) -> set[str]:
    """All that a class defines or sets by name: a protocol's property may be an attribute of who implements it."""
    names = {each.id for each in ast.walk(node) if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    names |= {
        each.attr for each in ast.walk(node) if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store)
    }
    return names | set(_methods(node))


UNPLAIN = re.compile(r"\b(gives|gave|given\s+back)\b", re.IGNORECASE)


def unplain_docstrings(sources: Sources) -> list[str]:
    """Docstrings that say "gives" where a function returns something."""
    return [
        f"{path}:{node.lineno} says {said[0]!r}: say what is returned"
        for path, text in sources.items()
        for node in ast.walk(ast.parse(text, path))
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
        if (said := UNPLAIN.search(node.value.value))
    ]


NO_BOUNDS: dict[str, tuple[set[str] | None, str]] = {
    "cli/demo/command.py": ({"_width"}, "the width of a text"),
    "cli/demo/stage.py": ({"_first_commit", "_last_commit"}, "which commits the demo's agent makes"),
    "cli/exits.py": (None, "exit codes"),
    "cli/formats.py": ({"_MINUTE_S", "_HOUR_S", "_DAY_S"}, "units"),
    "cli/output.py": ({"_narrow_min", "_width_elsewhere"}, "layout"),
    "cli/refs.py": ({"_short_min", "_short_step"}, "the lengths that shortened ids are tried in"),
    "cli/tree.py": ({"_width_elsewhere", "_label_min", "_bar_min", "_took_width", "_name_min"}, "layout"),
    "journal/importers/jsonl.py": ({"VERSION", "_DIGEST_CHARS"}, "a format's version, the length of a SHA-256"),
    "journal/testing/generate.py": ({"NUMBERS"}, "values that tests draw"),
    "journal/testing/store_contract.py": ({"_RACERS"}, "threads that a test starts"),
    "journal/writing/checkpoints.py": ({"SEAL"}, "a format's version"),
}
"""Numbers that stand at the top of a module and bound nothing: all of the module (None) or these, and what they are."""


def strayed_bounds(sources: Sources) -> list[str]:
    """Numbers, and tuples of them, that are named at the top of a module elsewhere than in limits.py."""
    found = []
    for path, text in sources.items():
        names, _ = NO_BOUNDS.get(path, (set(), ""))
        if path == "journal/log/limits.py" or names is None:
            continue
        for node in ast.parse(text, path).body:
            if not isinstance(node, ast.Assign | ast.AnnAssign) or node.value is None or not _is_number(node.value):
                continue
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}
            found += [f"{path}:{node.lineno} {name} belongs into limits.py" for name in sorted(named - names)]
    return found


def _is_number(node: ast.expr) -> bool:
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=inner):
            return _is_number(inner)
        case ast.BinOp(left=left, right=right):
            return _is_number(left) or _is_number(right)
        case ast.Tuple(elts=[_, *_] as parts):
            return all(not isinstance(each, ast.Tuple) and _is_number(each) for each in parts)
    return False


def _refuses(node: ast.stmt, name: str) -> bool:
    match node:
        case ast.If(
            test=ast.Compare(left=ast.Name(id="__name__"), ops=[ast.NotEq()], comparators=[ast.Constant(value=value)]),
            body=[*_, ast.Raise(exc=ast.Call(func=ast.Name(id="ImportError")))],
        ):
            return value == name
    return False


# --- the checkout obeys them -----------------------------------------------------------------------------------------


RULES = [
    upward_imports,
    circles,
    misspelt_imports,
    strayed_third_parties,
    long_modules,
    strayed_bounds,
    namesakes,
    unclear_facade,
    open_doors,
    silent_methods,
    unplain_docstrings,
]


@pytest.mark.parametrize("rule", RULES)
def test_checkout(rule):
    """The sources of the checkout break no rule of the architecture."""
    assert [] == rule(checkout())


def test_tests():
    """Every test says in one sentence what it shows."""
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    assert [] == undescribed_tests({file.relative_to(ROOT).as_posix(): file.read_text("utf-8") for file in files})


def test_the_picture_is_that_of_the_imports():
    """The picture in architecture.md shows the rooms and the arrows that the imports make, and no others."""
    spec = importlib.util.spec_from_file_location("rooms", ROOT / "docs/rooms.py")
    assert spec is not None
    assert spec.loader is not None
    rooms = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(rooms)
    page = (ROOT / "docs/architecture.md").read_text("utf-8")
    (drawn,) = re.findall(r"```mermaid\n(.*?)\n```", page, re.DOTALL)
    assert rooms.picture(checkout()) == drawn
    more = {**checkout(), "journal/looking/planted.py": "from runjournal.testing.world import World\n"}
    assert drawn != rooms.picture(more)


@pytest.mark.parametrize("folder", FOLDERS)
def test_other_import_names(folder):
    """A folder that is found on the path by its own name refuses to be imported."""
    spec = importlib.util.spec_from_file_location(folder, ROOT / folder / "__init__.py")
    assert spec is not None
    assert spec.loader is not None
    with pytest.raises(ImportError, match="runjournal"):
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


def test_declared_third_parties_have_homes():
    """Each third party that users install, by itself or with an extra, has a home and is imported there."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    extras = {name: each for name, each in project["optional-dependencies"].items() if name not in {"all", "dev"}}
    lists = [project["dependencies"], *extras.values()]
    declared = {re.split(r"[^\w.-]", each)[0].replace("-", "_") for each in itertools.chain(*lists)}
    assert set(HOMES) == declared
    assert declared <= {each.target.partition(".")[0] for each in imports(checkout())}
    assert [f"runjournal[{','.join(sorted(extras))}]"] == project["optional-dependencies"]["all"]


def test_facade_resolves():
    """The façade's names are sorted, each can be had, and an unknown one is an AttributeError."""
    facade = importlib.import_module("runjournal")
    assert "Journal" in facade.__all__
    assert sorted(facade.__all__) == facade.__all__ == dir(facade)
    assert [] == [name for name in facade.__all__ if getattr(facade, name, None) is None]
    with pytest.raises(AttributeError):
        _ = facade.no_such_name


# --- the rules bite: planted violations ------------------------------------------------------------------------------

CLEAN = {
    "journal/__init__.py": 'if __name__ != "runjournal":\n    raise ImportError("no")\n',
    "journal/__init__.pyi": "from .journal import Journal as Journal\n",
    "journal/journal.py": "from runjournal.log.events import Event\nfrom runjournal.projections import state\n",
    "journal/log/__init__.py": "",
    "journal/log/events.py": "import json\nfrom . import codec\n",
    "journal/log/codec.py": "import orjson\n",
    "journal/log/sqlite_reads.py": "import apsw.ext\n",
    "journal/testing/__init__.py": "from runjournal.journal import Journal\n",
    "journal/engine/core.py": "from runjournal.projections import state\n",
    "journal/writing/appender.py": "from runjournal.projections import state\n",
    "journal/looking/audit.py": "from runjournal.journal import Journal\n",
    "journal/importers/transfer.py": "from runjournal.journal import Journal\n",
    "projections/__init__.py": 'if __name__ != "runjournal.projections":\n    raise ImportError("no")\n',
    "projections/state.py": "from runjournal.log.events import Event\nfrom .costs import Costs\n",
    "projections/costs.py": "import decimal\n",
    "cli/__init__.py": 'if __name__ != "runjournal.cli":\n    raise ImportError("no")\n',
    "cli/show.py": "import click\nfrom runjournal.journal import Journal\n",
}


@pytest.mark.parametrize("rule", RULES)
def test_clean_tree(rule):
    """A tree that obeys the rules has no violation."""
    assert [] == rule(CLEAN)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("journal/log/codec.py", "from runjournal.projections.costs import Costs"),
        ("journal/log/codec.py", "def f():\n    import runjournal.projections.costs"),
        ("journal/log/codec.py", "import importlib\nimportlib.import_module('runjournal.journal')"),
        ("projections/costs.py", "from runjournal.journal import Journal"),
        ("projections/costs.py", "from runjournal.testing import fakes"),
        (
            "journal/journal.py",
            "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from runjournal.cli import show",
        ),
        ("journal/testing/__init__.py", "from runjournal.cli.show import show"),
        ("projections/costs.py", "from runjournal.log.no_such_module import x"),
        ("journal/engine/core.py", "from runjournal.writing.appender import Appender"),
        ("journal/writing/appender.py", "from runjournal.engine.core import Core"),
        ("journal/engine/core.py", "from runjournal.journal import Journal"),
        ("journal/journal.py", "from runjournal.looking.audit import audit_run"),
        ("journal/looking/audit.py", "from runjournal.importers import transfer"),
    ],
)
def test_upward_import(path, text):
    """An import that points up is found, wherever it stands."""
    assert 1 == len(upward_imports({**CLEAN, path: text}))


@pytest.mark.parametrize(
    "text",
    [
        "from .events import Event",
        "def f():\n    from . import events",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from .events import Event",
    ],
)
def test_circle(text):
    """A circle is found, also when one of its imports is lazy or for types only."""
    (circle,) = circles({**CLEAN, "journal/log/codec.py": text})
    assert "runjournal.log.codec" in circle
    assert "runjournal.log.events" in circle


def test_circle_through_a_package():
    """A package's `__init__` is a module like any other in a circle."""
    planted = {"projections/__init__.py": "from .state import State", "projections/costs.py": "from . import VERSION"}
    assert 1 == len(circles({**CLEAN, **planted}))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("journal/log/events.py", "from runjournal.log.codec import dumps"),
        ("journal/log/events.py", "from runjournal.log import codec"),
        ("journal/journal.py", "from .log.events import Event"),
        ("journal/testing/__init__.py", "from ..journal import Journal"),
        ("journal/testing/__init__.py", "from .. import journal"),
        ("cli/show.py", "from runjournal import Journal"),
        ("cli/show.py", "import runjournal"),
        ("journal/journal.py", "from . import Journal"),
        ("journal/testing/__init__.py", "def f():\n    from runjournal import Journal"),
    ],
)
def test_misspelt_import(path, text):
    """An import in the wrong spelling, or from the façade, is found."""
    assert 1 == len(misspelt_imports({**CLEAN, path: text}))


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("journal/journal.py", "import click"),
        ("projections/costs.py", "from rich.table import Table"),
        ("journal/log/codec.py", "import apsw"),
        ("journal/journal.py", "def f():\n    import apsw"),
        ("journal/log/sqlite_reads.py", "import psycopg"),
        ("journal/log/sqlite_reads.py", "from eventsourcing.persistence import StoredEvent"),
        ("journal/journal.py", "import hypothesis"),
        ("cli/show.py", "import requests"),
    ],
)
def test_strayed_third_party(path, text):
    """A third party outside its home, or one that we don't depend on, is found."""
    assert 1 == len(strayed_third_parties({**CLEAN, path: text}))


def test_long_module():
    """A module of 401 lines of code is found; blanks, comments and docstrings don't count."""
    prose = '"""Doc.\n\nMore.\n"""\n\n# why\n' + "\n" * 500
    assert [] == long_modules({**CLEAN, "cli/show.py": prose + "x = 1\n" * 400})
    assert 1 == len(long_modules({**CLEAN, "cli/show.py": prose + "x = 1\n" * 401}))


@pytest.mark.parametrize(
    "line",
    [
        "tries_max = 3",
        "tries_max: Final = 3",
        "least = -(2**63)",
        "waits_s = (0.1, 2.0)",
        "a, b = 1, 31",
        "n = 2 * other",
    ],
)
def test_strayed_bound(line):
    """A number that is named at the top of a module outside of limits.py is found; a text or a class's is not."""
    assert [] == strayed_bounds({**CLEAN, "journal/journal.py": 'NAME = "a"\nON = True\nclass A:\n    seq: int = 0\n'})
    assert [] == strayed_bounds({**CLEAN, "journal/log/limits.py": line})
    assert [] != strayed_bounds({**CLEAN, "journal/journal.py": line})


def test_no_bounds_are_there():
    """Every number that is said to bound nothing is still there."""
    gone = [
        f"{path}: {name}"
        for path, (names, _) in NO_BOUNDS.items()
        for name in names or ()
        if not re.search(rf"^.*\b{name}\b.*=", checkout()[path], re.MULTILINE)
    ]
    assert [] == gone


@pytest.mark.parametrize(
    "planted",
    [
        {"cli/show.py": "class Costs:\n    pass"},
        {"cli/show.py": "class A:\n    class Costs:\n        pass"},
        {"cli/show.py": "def f():\n    class Costs:\n        pass"},
        {"cli/show.py": "class _Costs:\n    pass\nclass B:\n    class _Costs:\n        pass"},
        {EVENTS: "class RunFailed:\n    pass", "cli/show.py": "class RunFailed:\n    pass"},
        {EVENTS: "class RunQueued:\n    pass", FAILURES: "class RunQueued:\n    pass"},
        {EVENTS: "class RunFailed:\n    pass\nclass RunFailed:\n    pass"},
    ],
)
def test_namesakes(planted):
    """Two classes of one name are found, wherever they stand; an event and its exception may share theirs."""
    ours = {**CLEAN, "projections/costs.py": "class Costs:\n    pass"}
    told = {EVENTS: "class RunFailed:\n    pass", FAILURES: "class RunFailed:\n    pass"}
    assert [] == namesakes({**ours, **told})
    assert 1 == len(namesakes({**ours, **planted}))


def test_namesakes_are_there():
    """Every name that an event and an exception may share is that of both."""
    events, failures = checkout()[EVENTS], checkout()[FAILURES]
    assert [] == [
        name for name in sorted(NAMESAKES) if f"\nclass {name}(" not in events or f"\nclass {name}(" not in failures
    ]


def test_limits_are_used():
    """Every bound of limits.py is read by a module of the package."""
    own = dict(checkout())
    lines = own.pop("journal/log/limits.py").splitlines()
    names = [found[1] for each in lines if (found := re.match(r"(\w+): ", each))]
    assert 50 < len(names)
    assert [] == [name for name in names if not any(re.search(rf"\b{name}\b", text) for text in own.values())]


def test_code_lines():
    """A text in several lines counts all its lines if it is code, and none if it is a docstring."""
    assert 3 == code_lines('x = """a\n\nb"""\n')
    assert 2 == code_lines('def f():\n    """Doc.\n\n    More.\n    """\n    return 1  # why\n')


@pytest.mark.parametrize(
    "text",
    [
        "",
        "import runjournal.journal",
        "from .journal import Journal",
        "from .journal import Journal as Diary",
        "from .journal import Journal as Journal, open as open",
        "from .journal import Journal as Journal\nfrom .run import Journal as Journal",
        "x: int",
    ],
)
def test_unclear_facade(text):
    """A façade without a stub, or with one that `__init__.py` couldn't take its names from, is found."""
    sources = {path: each for path, each in CLEAN.items() if path != "journal/__init__.pyi"}
    assert 1 == len(unclear_facade({**sources, "journal/__init__.pyi": text} if text else sources))


@pytest.mark.parametrize("folder", FOLDERS)
@pytest.mark.parametrize(
    "text",
    ["", 'if __name__ != "journal":\n    raise ImportError("no")\n', 'if __name__ != "runjournal":\n    pass\n'],
)
def test_open_door(folder, text):
    """An `__init__` that accepts any name, or insists on a wrong one, is found."""
    assert 1 == len(open_doors({**CLEAN, f"{folder}/__init__.py": text}))


@pytest.mark.parametrize("body", ["pass", '"""no end"""', '"""A.\n\n    B.\n    """', "x = 1"])
def test_undescribed_test(body):
    """A test without a docstring, or with one of several paragraphs, is found."""
    assert [] == undescribed_tests({"tests/test_x.py": 'def test_x():\n    """It works."""\ndef helper(): pass\n'})
    assert 1 == len(undescribed_tests({"tests/test_x.py": f"def test_x():\n    {body}\n"}))


DESCRIBED = """
class Shape(Protocol):
    def check(self):
        \"\"\"Raise if it doesn't fit.\"\"\"
    def schema(self):
        \"\"\"Return the schema.\"\"\"
class Base:
    def name(self):
        \"\"\"Return the name.\"\"\"
class Child(Base):
    def name(self): ...
class Text:
    def check(self): ...
    def schema(self): ...
    def _own(self): ...
"""


def test_silent_method():
    """A method without a docstring is found, unless its base class or the whole of a protocol describes it."""
    assert [] == silent_methods({"cli/x.py": DESCRIBED})
    half = DESCRIBED.replace("    def schema(self): ...\n", "")
    assert ["Text.check says nothing"] == silent_methods({"cli/x.py": half})
    alone = DESCRIBED + "    def more(self): ...\n"
    assert ["Text.more says nothing"] == silent_methods({"cli/x.py": alone})


@pytest.mark.parametrize("text", ["Ask; gives its answer.", "What it gave.", "The value, given\n    back."])
def test_unplain_docstring(text):
    """A docstring of a module, a function or a constant that says "gives" is found."""
    clean = {"cli/x.py": '"""Return what was given."""\ndef f():\n    """Give it a name."""\n'}
    assert [] == unplain_docstrings(clean)
    places = [f'"""{text}"""\n', f'def f():\n    """{text}"""\n', f'X = 1\n"""{text}"""\n']
    assert [1, 1, 1] == [len(unplain_docstrings({"cli/x.py": place})) for place in places]
