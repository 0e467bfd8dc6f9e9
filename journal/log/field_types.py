"""What the fields of events hold, by the names that several of them use."""

from __future__ import annotations

from typing import Annotated, Any, TypeAlias

from . import shapes as s

Obj: TypeAlias = dict[str, Any]
Name: TypeAlias = Annotated[str, s.Name()]
Time: TypeAlias = Annotated[str, s.TIME]
Digest: TypeAlias = Annotated[str, s.DIGEST]
Error: TypeAlias = Annotated[Obj, s.ERROR]
Usage: TypeAlias = Annotated[Obj, s.USAGE]
Cost: TypeAlias = Annotated[Obj, s.COST]
Price: TypeAlias = Annotated[Obj, s.PRICE]
Left: TypeAlias = Annotated[list[list[Any]], s.ListOf(s.Pair())]
One: TypeAlias = Annotated[int, s.Whole(1)]
