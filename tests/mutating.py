"""How a mutant finds its place: by the name of a definition, and by the tokens of a piece of Python in it.

So an anchor survives what doesn't change the code: a module that moves, a line that is broken elsewhere, a comment.
Layout, parentheses that only group, and commas before a closing bracket are not compared. A piece is any run of whole
tokens with balanced brackets, over as many statements as it needs, with its first line at the margin. It can't begin
with the parenthesis of a call, nor a later statement of it with any.
"""

from __future__ import annotations

import ast
import io
import keyword
import tokenize
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path, PurePosixPath
from typing import NamedTuple

FOLDERS = ("journal", "projections", "cli")
LAYOUT = {tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT, tokenize.ENDMARKER}
OPENING, CLOSING = ("(", "[", "{"), (")", "]", "}")
Named = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Sources = Mapping[str, str]  # path of a module in the checkout -> its text


class Mutant(NamedTuple):
    """In the definition `where`, `old` is to be found once, and `new` takes its place."""

    name: str  # says what the code then does wrong
    where: str  # "Core.begin", "judge", "TERMINALS"; "steps:Steps.load" names the module, too, without its folder
    old: str
    new: str
    dies: str = "engine_rules"  # the test file where it falls first


class NoPlaceError(Exception):
    """A mutant fits nowhere, or in several places; the text says what was found."""


class Token(NamedTuple):
    """A token that isn't layout."""

    text: str
    start: int  # offset in the source
    end: int
    line: int  # from 1
    idle: bool = False  # not compared: a parenthesis that only groups, or a comma before a closing bracket
    pair: int | None = None  # of such a parenthesis: the index of its other half


class Place(NamedTuple):
    """Where a piece stands: these characters of this module."""

    path: str
    start: int
    end: int
    line: int


def checkout(root: Path) -> dict[str, str]:
    """Return the package's sources."""
    files = [file for folder in FOLDERS for file in sorted((root / folder).rglob("*.py"))]
    return {file.relative_to(root).as_posix(): file.read_text("utf-8") for file in files}


@cache
def tokens(source: str) -> list[Token]:
    """Return the tokens of a text, with those marked that a formatter may add or take away."""
    starts = [0]
    for line in source.split("\n"):
        starts.append(starts[-1] + len(line) + 1)
    found, before = list[Token](), [""]  # the token before each one in its statement
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.NEWLINE:
            before[-1] = ""
        elif token.type not in LAYOUT:
            (row, column), (end_row, end_column) = token.start, token.end
            found.append(Token(token.string, starts[row - 1] + column, starts[end_row - 1] + end_column, row))
            before.append(token.string)
    opened: list[tuple[int, bool]] = []
    for at, (text, previous) in enumerate(zip([token.text for token in found], before[:-1], strict=True)):
        after = found[at + 1].text if at + 1 < len(found) else ""
        if text in OPENING:
            named = previous.isidentifier() and not keyword.iskeyword(previous)
            calls = named or previous[-1:] in (*CLOSING, '"', "'")
            opened.append((at, text == "(" and after != ")" and not calls))
        elif text in CLOSING and opened:
            other, groups = opened.pop()
            if groups:
                found[other] = found[other]._replace(idle=True, pair=at)
                found[at] = found[at]._replace(idle=True, pair=other)
        elif text == "," and after in CLOSING:
            found[at] = found[at]._replace(idle=True)
    return found


def piece(text: str) -> list[str]:
    """Return what is compared of a piece; in brackets it has no layout, and the dots keep a comma at its end."""
    return [token.text for token in tokens(f"(\n{text}\n...)")[1:-2] if not token.idle]


@cache
def definitions(source: str) -> dict[str, list[tuple[int, int]]]:
    """Return the first and the last line of each function, class, and variable outside functions, by qualified name."""
    found: dict[str, list[tuple[int, int]]] = {}

    def visit(node: ast.AST, prefix: str, *, assigned: bool) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, Named):
                first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
                found.setdefault(prefix + child.name, []).append((first, child.end_lineno or first))
                visit(child, f"{prefix}{child.name}.", assigned=isinstance(child, ast.ClassDef))
            elif isinstance(child, ast.Assign | ast.AnnAssign) and assigned:
                targets = child.targets if isinstance(child, ast.Assign) else [child.target]
                for name in [target.id for target in targets if isinstance(target, ast.Name)]:
                    found.setdefault(prefix + name, []).append((child.lineno, child.end_lineno or child.lineno))
            elif isinstance(child, ast.stmt | ast.ExceptHandler | ast.match_case):
                visit(child, prefix, assigned=assigned)

    visit(ast.parse(source), "", assigned=True)
    return found


def fits(path: str, source: str, wanted: list[str], first_line: int, last_line: int) -> Iterator[Place]:
    """Yield each place between two lines where these tokens stand, with the halves of parentheses that belong there."""
    every = tokens(source)
    kept = [at for at, token in enumerate(every) if not token.idle and first_line <= token.line <= last_line]
    for nth in range(len(kept) - len(wanted) + 1):
        if wanted == [every[at].text for at in kept[nth : nth + len(wanted)]]:
            first, last = kept[nth], kept[nth + len(wanted) - 1]
            for pair in [token.pair for token in every[first : last + 1] if token.pair is not None]:
                low, high = min(first, pair), max(last, pair)
                if all(token.idle for token in every[low:first] + every[last + 1 : high + 1]):
                    first, last = low, high
            yield Place(path, every[first].start, every[last].end, every[first].line)


def place(sources: Sources, mutant: Mutant) -> Place:
    """Return the one place of a mutant.

    Raises:
        NoPlaceError: There is none, or there are several.
    """
    try:
        wanted = piece(mutant.old)
    except (tokenize.TokenError, SyntaxError) as error:
        raise NoPlaceError(f"mutant {mutant.name!r}: its text isn't a piece of Python: {mutant.old}") from error
    stem, _, name = mutant.where.rpartition(":")
    modules = {path: text for path, text in sources.items() if stem in ("", PurePosixPath(path).stem)}
    spans = [(path, text, *span) for path, text in modules.items() for span in definitions(text).get(name, ())]
    found = [each for path, text, *span in spans for each in fits(path, text, wanted, *span)]
    if len(found) == 1:
        return found[0]
    if spans:
        said = (
            f"{mutant.where} ({', '.join(f'{path}:{line}' for path, _, line, _ in spans)}) holds it {len(found)} times"
        )
    else:
        said = f"there is no {mutant.where}; names like it: {', '.join(_like(name, sources)) or 'none'}"
    there = found or [each for path, text in sources.items() for each in fits(path, text, wanted, 0, 10**9)]
    shown = ", ".join([_described(sources, each) for each in there[:8]]) or "nowhere"
    more = f" and in {len(there) - 8} places more" if len(there) > 8 else ""
    raise NoPlaceError(
        f"mutant {mutant.name!r}: {said}\n  what is looked for: {mutant.old}\n"
        f"  where the package has it: {shown}{more}\n"
        '  How to mend it: CONTRIBUTING.md, "Re-anchoring a mutant"'
    )


def _like(name: str, sources: Sources) -> list[str]:
    known = sorted({name for text in sources.values() for name in definitions(text)})
    same_end = [each for each in known if each.split(".")[-1] == name.rsplit(".", maxsplit=1)[-1]]
    return list(dict.fromkeys([*get_close_matches(name, known, 3), *same_end]))[:8]


def _described(sources: Sources, found: Place) -> str:
    around = [
        (last - first, name)
        for name, spans in definitions(sources[found.path]).items()
        for first, last in spans
        if first <= found.line <= last
    ]
    return f"{min(around, default=(0, 'outside definitions'))[1]} ({found.path}:{found.line})"


def mutated(sources: Sources, mutant: Mutant) -> tuple[str, str]:
    """Return the path of the module that a mutant changes, and the text that it then has."""
    path, start, end, _ = place(sources, mutant)
    text = sources[path]
    line = text[text.rfind("\n", 0, start) + 1 : start]
    margin = line[: len(line) - len(line.lstrip())]
    return path, text[:start] + mutant.new.replace("\n", "\n" + margin) + text[end:]
