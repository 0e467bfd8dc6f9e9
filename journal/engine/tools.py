"""Tools: functions with effects, and what may be done when the outcome of one was lost.

    @tool(policy="keyed", timeout_s=30)
    def send_email(to: str, body: str, *, idempotency_key: str = KEY) -> dict: ...

Inside a step a tool journals itself when it is called; outside any run it raises `NotInRun`, and `tool.fn` is the
plain function. The policy says what the world promises:

* `transactional`: its effect is in the store's own transaction, through its first parameter `tx`;
* `idempotent`: it may simply be made again (read-only tools are);
* `keyed`: whoever receives it does it once for a key, for `key_ttl_s`;
* `unsafe`: never sent again while it may have happened.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import inspect
import json
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Concatenate, Final, Generic, Literal, ParamSpec, Protocol, TypeVar, overload

from runjournal.log.base import Json
from runjournal.log.codec import plain
from runjournal.log.errors import InvalidArgument
from runjournal.log.store import Transaction

from .failures import NotInRun, SameName

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Policy = Literal["transactional", "idempotent", "keyed", "unsafe"]
Word = tuple[str, Json]
"""What a hook says: ("happened", result), ("did_not_happen", None) or ("unknown", None)."""

KEY: Final = ""
"""The default of a parameter `idempotency_key`: the journal fills it in."""
KEY_PARAMETER: Final = "idempotency_key"


class ToolContext(Protocol):
    """A run whose step is open in this context: what a tool that is called goes to."""

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call, journalled."""
        ...


TOOL_CONTEXT: contextvars.ContextVar[ToolContext | None] = contextvars.ContextVar("runjournal_step", default=None)
"""The step of this context. asyncio tasks, `asyncio.to_thread` and `run.thread` carry it; bare threads don't."""


IN_TOOL: contextvars.ContextVar[object] = contextvars.ContextVar("runjournal_in_tool", default=None)
"""The core of the run whose tool runs in this context: it may read that run, nothing else."""


def as_tool(core: object, body: Callable[[], Any]) -> Any:
    """Run the body of a tool, or begin its coroutine, as one that may only read."""
    token = IN_TOOL.set(core)
    try:
        result = body()
    finally:
        IN_TOOL.reset(token)
    return _marked(core, result) if inspect.isawaitable(result) else result


async def _marked(core: object, body: Awaitable[Any]) -> Any:
    IN_TOOL.set(core)  # of its task alone
    return await body


class Tx:
    """The first parameter of a transactional tool: its effect in this transaction commits with its outcome."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def execute(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """One statement on your own tables in the store's file; gives its rows.

        Raises InvalidArgument for control of the transaction, PRAGMA, ATTACH, DDL and our tables; TimeoutError when the
        transaction has lasted too long.
        """
        return self._transaction.execute(query, params)


@dataclass(eq=False)
class Tool(Generic[P, R_co]):
    """A tool. `fn` is the plain function; called inside a step, the tool journals itself.

    `key` is a template of the args (`"order-{order_id}"`): the call's own key, one for the whole scope.
    `reconcile(args, key)` asks the world what became of a call: ("happened", result), ("did_not_happen", None),
    ("unknown", None) or
    None. `into` parses a result that comes back from the log.
    """

    fn: Callable[P, R_co]
    name: str
    policy: str = "unsafe"
    read_only: bool = False
    timeout_s: float | None = None
    key: str = ""
    key_ttl_s: float = 24 * 3600.0
    reconcile: Callable[[dict[str, Json], str], Word | None] | None = None
    on_unknown: str = "fail"
    into: Callable[[Json], Any] | None = None
    instance: Any = field(default=None, repr=False)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co:
        """Make the call in the step of this context. Raises NotInRun outside any."""
        caller = TOOL_CONTEXT.get()
        if caller is None:
            raise NotInRun(
                f"{self.name} was called outside any step, or in a thread that doesn't carry its context: call it "
                f"inside a step (`with run.step(name):`), start the thread with run.thread(fn), or call {self.name}.fn "
                "for the plain function"
            )
        result: R_co = caller.call_tool(self, args, kwargs)
        return result

    @overload
    def __get__(self, instance: None, owner: type | None = None) -> Tool[P, R_co]: ...

    @overload
    def __get__(self: Tool[Concatenate[Any, Q], R], instance: object, owner: type | None = None) -> Tool[Q, R]: ...

    def __get__(self, instance: Any, owner: type | None = None) -> Tool[..., Any]:
        """A method: the instance is its first argument, and no argument of the call."""
        return self if instance is None else replace(self, instance=instance)

    @property
    def is_async(self) -> bool:
        """Whether the body is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        """The args by the names of the signature, defaults applied, as JSON: what the call is identified by.

        Raises TypeError as the function itself would, Unstorable for what can't be stored.
        """
        bound = _signature(self.fn).bind(*self._before(), *args, **kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name in self._own_parameters():
            given.pop(name, None)
        for parameter in _signature(self.fn).parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                given[parameter.name] = list(given.get(parameter.name, ()))
        stored: dict[str, Json] = plain(given)
        return stored

    def invoke(self, args: dict[str, Json], key: str, tx: Any = None) -> Any:
        """Run the body with recorded args; gives its result, or its coroutine."""
        signature = _signature(self.fn)
        positional: list[Any] = [*self._before(tx)]
        named = dict(args)
        for parameter in list(signature.parameters.values())[len(positional) :]:
            if parameter.name == KEY_PARAMETER:
                named[KEY_PARAMETER] = key
            elif parameter.kind is parameter.POSITIONAL_ONLY:
                positional.append(named.pop(parameter.name))
            elif parameter.kind is parameter.VAR_POSITIONAL:
                before = [p.name for p in signature.parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
                positional += [named.pop(name) for name in before[len(self._before(tx)) :] if name in named]
                positional += named.pop(parameter.name, [])
            elif parameter.kind is parameter.VAR_KEYWORD:
                named.update(named.pop(parameter.name, {}))
        body: Callable[..., Any] = self.fn
        return body(*positional, **named)

    def _before(self, tx: Any = None) -> tuple[Any, ...]:
        """What comes before the call's own arguments: the instance of a method, a transactional tool's transaction."""
        own = () if self.instance is None else (self.instance,)
        return (*own, tx) if self.policy == "transactional" else own

    def _own_parameters(self) -> list[str]:
        names = list(_signature(self.fn).parameters)[: len(self._before())]
        return [*names, KEY_PARAMETER]

    def own_key(self, args: Mapping[str, Json]) -> str:
        """The call's own key, "" if the tool has none. Raises InvalidArgument if the template names no argument."""
        if not self.key:
            return ""
        try:
            return self.key.format(**args)
        except (KeyError, IndexError, AttributeError) as error:
            raise InvalidArgument(f"{self.name}: the key {self.key!r} names no argument: {error}") from None


_known: dict[str, dict[tuple[str, str], Tool[..., Any]]] = {}
"""The tools of this process by name, and by the place of their functions: one made anew there takes the old one's."""


def known() -> dict[str, Tool[..., Any]]:
    """The tools of this process by name, for a recovery to ask their hooks; but for names that two functions claim."""
    return {name: next(iter(claims.values())) for name, claims in _known.items() if len(claims) == 1}


def claims(name: str) -> list[Tool[..., Any]]:
    """The tools of this process that are named so, those of one function as one, in the order of their making."""
    return list(_known.get(name, {}).values())


class Names:
    """The tools that a run has called, by name: one name is one function (engine.md C8)."""

    def __init__(self) -> None:
        self._called: dict[str, Tool[..., Any]] = {}

    def claim(self, made: Tool[..., Any]) -> SameName | None:
        """Note that this tool is called; return what is wrong if the run has called another one by its name."""
        first = self._called.setdefault(made.name, made)
        return same_name(first, made) if first is not made and _place(first) != _place(made) else None


def _place(made: Tool[..., Any]) -> tuple[str, str]:
    """Where its function is written: the same for a module that was loaded again, and for what a factory makes."""
    fn = made.fn
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", type(fn).__qualname__)


def same_name(first: Tool[..., Any], second: Tool[..., Any]) -> SameName:
    """What is raised of two tools of one name: it says where both are written."""
    both = " and ".join(_described(each) for each in (first, second))
    return SameName(f"two tools are named {first.name}: {both}; give one another name (name=)")


def _described(made: Tool[..., Any]) -> str:
    code = getattr(inspect.unwrap(made.fn), "__code__", None)
    where = f" ({code.co_filename}:{code.co_firstlineno})" if code is not None else ""
    return f"{'.'.join(_place(made))}{where}"


def _register(made: Tool[..., Any]) -> None:
    _known.setdefault(made.name, {})[_place(made)] = made


@functools.lru_cache(maxsize=1024)
def _signature(fn: Callable[..., Any]) -> inspect.Signature:
    return inspect.signature(fn)


def _check(made: Tool[..., Any]) -> None:
    parameters = _signature(made.fn).parameters
    policies = ("transactional", "idempotent", "keyed", "unsafe")
    if made.policy not in policies:
        raise InvalidArgument(f"{made.name}: policy: expected one of {', '.join(policies)}, got {made.policy!r}")
    if made.read_only and made.policy != "idempotent":
        raise InvalidArgument(f"{made.name}: a read-only tool is idempotent; leave the policy out or say so")
    if made.on_unknown not in ("fail", "ask"):
        raise InvalidArgument(f"{made.name}: on_unknown: expected 'fail' or 'ask', got {made.on_unknown!r}")
    if made.policy == "keyed" and KEY_PARAMETER not in parameters:
        raise InvalidArgument(f"{made.name}: a keyed tool takes a parameter `{KEY_PARAMETER}`, and passes it on")
    if made.policy == "transactional" and (made.is_async or "tx" not in parameters):
        raise InvalidArgument(f"{made.name}: a transactional tool is a plain function whose first parameter is `tx`")
    for given, function in {"reconcile": made.reconcile, "into": made.into}.items():
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{made.name}: {given}= is a coroutine function: make it a plain one")
    if made.timeout_s is not None and not made.timeout_s > 0:
        raise InvalidArgument(f"{made.name}: timeout_s: expected more than 0, got {made.timeout_s!r}")
    fields = {name for _, name, _, _ in string.Formatter().parse(made.key) if name is not None}
    if unknown := {name.split(".")[0].split("[")[0] for name in fields} - set(parameters):
        raise InvalidArgument(f"{made.name}: the key {made.key!r} names no parameter: {', '.join(sorted(unknown))}")


@overload
def tool(fn: Callable[P, R], /) -> Tool[P, R]: ...


@overload
def tool(
    *,
    policy: Literal["transactional"],
    key: str = "",
    into: Callable[[Json], Any] | None = None,
    name: str = "",
) -> Callable[[Callable[Concatenate[Tx, P], R]], Tool[P, R]]: ...


@overload
def tool(
    *,
    policy: Literal["idempotent", "keyed", "unsafe"] | None = None,
    read_only: bool = False,
    timeout_s: float | None = None,
    key: str = "",
    key_ttl_s: float = 24 * 3600.0,
    reconcile: Callable[[dict[str, Json], str], Word | None] | None = None,
    on_unknown: Literal["fail", "ask"] = "fail",
    into: Callable[[Json], Any] | None = None,
    name: str = "",
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    policy: Policy | None = None,
    read_only: bool = False,
    name: str = "",
    **how: Any,
) -> Any:
    """Make a function, async function or method a tool; with or without arguments. Raises InvalidArgument.

    Without a policy a tool is `unsafe`; with `read_only=True`, `idempotent`. A `keyed` one takes a parameter
    `idempotency_key`, which the journal fills in, and whose receiver remembers it for `key_ttl_s` seconds; a
    `transactional` one takes `tx` first.

    `timeout_s` bounds a call in seconds: it fails then as a TimeoutError, and may have happened; the body of a plain
    function goes on in its thread, and says later what became of it. `key="order-{order_id}"` names the call by its
    arguments, once in the whole scope of a run. `reconcile(args, key)` asks the world what became of a call:
    ("happened", result), ("did_not_happen", None) or ("unknown", None). `on_unknown`, where nobody knows: "fail" raises
    CallOutcomeUnknown, "ask" lets the run wait for a person. `into` makes what the recorded JSON is to be, a class of
    yours. `name` is what the log calls it: a run that calls two
    functions by one name is stopped with SameName.
    """

    def make(function: Callable[..., Any]) -> Tool[..., Any]:
        chosen = policy or ("idempotent" if read_only else "unsafe")
        made = Tool(function, name or function.__name__, chosen, read_only, **how)
        _check(made)
        _register(made)
        return functools.update_wrapper(made, function)  # type: ignore[return-value]  # it is the tool, with the function's docs

    return make if fn is None else make(fn)


def call_key(scope: str, step: str, what: str, args: Json, n: int = 1) -> str:
    """Which call is it: the id of a call, and the idempotency key that its tool is given.

    The first 24 hex digits of SHA-256 over the JSON (the standard library's, keys sorted, not escaped) of
    {task, step, tool, args}, and n if it is more than 1: the n-th equal call of its step.
    """
    about: dict[str, Json] = {"task": scope, "step": step, "tool": what, "args": args}
    if n > 1:
        about["n"] = n
    return hashlib.sha256(json.dumps(about, sort_keys=True, ensure_ascii=False).encode()).hexdigest()[:24]
