"""The rules of docs/explanation/engine.md and those who cite them: sources and tests name a rule by its number."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "engine.md"
FOLDERS = ("journal", "projections", "cli", "tests", "benchmarks", "docs")
FILES = [
    path
    for folder in FOLDERS
    for pattern in ("*.py", "*.md", "*.sql")
    for path in sorted((ROOT / folder).rglob(pattern))
]
BESIDE = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile", "pyproject.toml")]
TEXTS = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in [*FILES, *BESIDE]}
HERE = Path(__file__).relative_to(ROOT).as_posix()

RULE = re.compile(r"^\*\*([A-Z]\d+)\.\*\* (.*?)(?=^\*\*[A-Z]\d+\.\*\* |^## |\Z)", re.MULTILINE | re.DOTALL)
RULES = dict(RULE.findall(PAGE.read_text(encoding="utf-8")))
CITATION = re.compile(r"engine\.md:? ((?:[A-Z]\d+)(?:(?:,| and| to) [A-Z]\d+)*)")
NUMBER = re.compile(r"[A-Z]\d+")
TEST = re.compile(r"`(tests/[\w/]+\.py)::(\w+)`")
NO_TEST = "*No test of its own.*"
UNHELD = set[str]()
"""Rules that no test holds by itself. Whoever writes one takes the rule out here."""
PRIVATE = re.compile(r"\N{SECTION SIGN}|\bdesign\.md|\bground\.md|\bshared/(?!data\b)|\bthe sketch\b")
"""What points at texts that aren't in this repository."""


def numbers(text: str) -> list[str]:
    """The numbers of the rules that a text cites."""
    return [number for cited in CITATION.findall(text) for number in NUMBER.findall(cited)]


def test_rules_are_numbered_by_topic():
    """Each topic has a letter of its own, its rules stand in the order of their numbers, and none is there twice."""
    text = PAGE.read_text(encoding="utf-8")
    topics = re.findall(r"^## ([A-Z])\. ", text, re.MULTILINE)
    found = [(number[0], int(number[1:])) for number in re.findall(r"^\*\*([A-Z]\d+)\.\*\* ", text, re.MULTILINE)]
    assert len(set(topics)) == len(topics) > 8
    assert sorted(found, key=lambda each: (topics.index(each[0]), each[1])) == found
    assert len(RULES) == len(set(found)) == len(found)
    assert set("BPR") & set(topics) == set(), "these letters are taken: bad input, promises, requirements"


@pytest.mark.parametrize("number", RULES)
def test_a_rule_says_why_and_what_holds_it(number):
    """A rule has a reason, and either tests that are there or the word that it has none."""
    rule = RULES[number]
    assert 1 == rule.count("*Because* ")
    assert (number in UNHELD) == (NO_TEST in rule)
    assert ("*Held by* " in rule) == (NO_TEST not in rule)
    held = TEST.findall(rule.partition("*Held by* ")[2])
    assert bool(held) == (number not in UNHELD)
    assert rule.count("::") == len(TEST.findall(rule)), "a test that is named in another form"
    assert [] == [
        (file, test)
        for file, test in held
        if not re.search(rf"^(async )?def {test}\(", TEXTS.get(file, ""), re.MULTILINE)
    ]


def test_every_citation_is_of_a_rule():
    """Whatever number a source, a test or a page cites, the page has that rule."""
    cited = {(name, number) for name, text in TEXTS.items() if name != HERE for number in numbers(text)}
    assert len(cited) > 40
    assert [] == sorted(each for each in cited if each[1] not in RULES)


EXPLANATIONS = [name for name in TEXTS if name.startswith("docs/explanation/")]


@pytest.mark.parametrize("name", [*EXPLANATIONS, "docs/architecture.md"])
def test_pages_name_rules_by_number(name):
    """On the pages that explain, a number of a topic's letter is that of a rule, also without the page's name."""
    topics = "".join(sorted({number[0] for number in RULES}))
    assert set() == set(re.findall(rf"\b[{topics}]\d+\b", TEXTS[name])) - set(RULES)


def test_every_rule_of_the_model_is_cited():
    """Each test that the model and the product both pass cites its rule, and that rule names the test."""
    name = "tests/model/rules.py"
    marked = re.findall(r"^@rule(.*)\ndef (test_\w+)\(", TEXTS[name], re.MULTILINE)
    assert len(marked) > 80
    missing = [
        (test, number)
        for comment, test in marked
        for number in numbers(comment) or ["none"]
        if (name, test) not in TEST.findall(RULES.get(number, ""))
    ]
    assert [] == missing


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("engine.md H2", ["H2"]),
        ("(docs/explanation/engine.md: C1, S10).", ["C1", "S10"]),
        ("engine.md D1 to D6 and T13", ["D1", "D6", "T13"]),
        ("engine.md, H2", []),
        ("the page engine.md", []),
    ],
)
def test_what_a_citation_is(text, expected):
    """A citation is the name of the page and one number or more."""
    assert expected == numbers(text)


def test_nothing_points_at_texts_that_are_not_here():
    """What is known of this project is in this repository: nothing cites a text that lies elsewhere."""
    found = [(name, match[0]) for name, text in TEXTS.items() if name != HERE for match in PRIVATE.finditer(text)]
    assert [] == found
