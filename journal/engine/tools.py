"""Tools: functions with effects, and what may be done when the outcome of one was lost.

    @tool(policy="keyed", timeout_s=30)
    def send_email(to: str, body: str, *, idempotency_key: str = KEY) -> dict: ...

Inside a step a tool journals itself when it is called; outside any run it raises `NotInRun`, and `tool.fn` is the
plain function. The policy says what the world promises:

* `transactional`: its effect is in the store's own transaction, through its first parameter `tx`;
* `idempotent`: it may simply be made again (read-only tools are);
* `keyed`: whoever receives it does it once for a key, for `key_ttl_s`;
* `outbox`: the call is written down, and a relay makes it once the step is complete (`Journal.relay`);
* `unsafe`: never sent again while it may have happened.
"""

from __future__ import annotations

import contextvars
import functools
import hashlib
import hmac
import inspect
import json
import string
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import CellType
from typing import (
    Any,
    Concatenate,
    Final,
    Generic,
    Literal,
    NamedTuple,
    ParamSpec,
    Protocol,
    TypeVar,
    cast,
    overload,
)

from runjournal.log.base import Json
from runjournal.log.codec import plain
from runjournal.log.errors import InvalidArgument, Unstorable
from runjournal.log.policies import ON_UNKNOWN, TOOL_POLICIES, ToolPolicy
from runjournal.log.shapes import Name
from runjournal.log.store import Transaction

from .failures import CallFailed, DidNotHappen, NotInRun, SameName, ToolUsesRun
from .retry import Retry, checked

P = ParamSpec("P")
Q = ParamSpec("Q")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)
Word = tuple[str, Json]
"""What a hook says: ("happened", result), ("did_not_happen", None) or ("unknown", None)."""

KEY: Final = ""
"""The default of a parameter `idempotency_key`: the journal fills it in."""
KEY_PARAMETER: Final = "idempotency_key"


class ToolContext(Protocol):
    """The step of a context: it takes the calls of tools that are called there.

    `entry` is the engine's execution of it.
    """

    @property
    def entry(self) -> object:
        """Return which execution of a step it is."""
        ...

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call, journalled."""
        ...


TOOL_CONTEXT: contextvars.ContextVar[ToolContext | None] = contextvars.ContextVar("runjournal_step", default=None)
"""The step of this context. asyncio tasks, `asyncio.to_thread` and `run.thread` carry it; bare threads don't."""


IN_TOOL: contextvars.ContextVar[object] = contextvars.ContextVar("runjournal_in_tool", default=None)
"""The core of the run whose tool runs in this context: it may read that run, nothing else."""


def as_tool(core: object, body: Callable[..., Any], *args: Any) -> Any:
    """Run the body of a tool, or begin its coroutine, as one that may only read."""
    token = IN_TOOL.set(core)
    try:
        result = body(*args)
    finally:
        IN_TOOL.reset(token)
    return _marked(core, result) if inspect.isawaitable(result) else result


async def _marked(core: object, body: Awaitable[Any]) -> Any:
    IN_TOOL.set(core)  # of its task alone
    return await body


USES_RUN: Final = (
    "a tool, and a function that the run calls by itself (reconcile, check, into, usage, cost, key), may read the run "
    "that called it and attach bytes to it, nothing else: give it what it needs as arguments, call other tools and "
    "write what it returns in the step that calls it; the plain function of a tool is its `fn`"
)


class _Looking(NamedTuple):
    """The step of a context in which no tool may be called: `entry` says for the run which one it sees."""

    entry: object

    def call_tool(self, tool: Tool[..., Any], args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Make the call, journalled."""
        raise ToolUsesRun(f"{tool.name} was called: {USES_RUN}")


def looking(core: object, callback: Callable[[], R]) -> R:
    """Call a function of the user's that the engine calls by itself: it may read the run, nothing else.

    What it would call or write stands in no order that the log knows, or isn't asked for when a call is told again.
    """
    here = TOOL_CONTEXT.get()
    tokens = TOOL_CONTEXT.set(_Looking(None if here is None else here.entry)), IN_TOOL.set(core)
    try:
        return callback()
    finally:
        TOOL_CONTEXT.reset(tokens[0])
        IN_TOOL.reset(tokens[1])


class Tx:
    """The first parameter of a transactional tool: an effect in this transaction commits with the call's outcome."""

    def __init__(self, transaction: Transaction) -> None:
        self._transaction = transaction

    def execute(self, query: str, params: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Run one statement on your own tables in the store's file; return its rows.

        Raises InvalidArgument for control of the transaction, PRAGMA, ATTACH, DDL and our tables; TimeoutError when the
        transaction has lasted too long.
        """
        return self._transaction.execute(query, params)


@dataclass(eq=False)
class Tool(Generic[P, R_co]):
    """A tool. `fn` is the plain function; called inside a step, the tool journals itself.

    `key` is a template of the args (`"order-{order_id}"`): the call's own key, one for the whole scope.
    `reconcile(args, key)` asks the world what became of a call: ("happened", result), ("did_not_happen", None),
    ("unknown", None) or None. `into` parses a result that comes back from the log.
    """

    fn: Callable[P, R_co]
    name: str
    policy: str = "unsafe"
    read_only: bool = False
    timeout_s: float | None = None
    key: str = ""
    key_ttl_s: float = 24 * 3600.0
    reconcile: Callable[[dict[str, Json], str], Word | None] | None = None
    on_unknown: str = "ask"
    not_sent: tuple[type[Exception], ...] = ()
    into: Callable[[Json], Any] | None = None
    retry: Retry | None = None
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
        """A method: the instance is its first argument; of the call's args it is what its `runjournal_id` says."""
        return self if instance is None else replace(self, instance=instance)

    @property
    def is_async(self) -> bool:
        """Return whether the body is a coroutine function."""
        return inspect.iscoroutinefunction(self.fn)

    def bind(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Json]:
        """Return the args by the names of the signature, defaults applied, as JSON: the call is identified by them.

        Raises CallFailed for args that the function doesn't take, Unstorable for what can't be stored, InvalidArgument
        for a method of an object of which nothing says which one it is.
        """
        before, signature = self._before(), _signature(self.fn)
        bound = bound_to(self.name, signature, before, args, kwargs)
        bound.apply_defaults()
        given = dict(bound.arguments)
        for name in (*list(signature.parameters)[: len(before)], KEY_PARAMETER):
            given.pop(name, None)
        for parameter in signature.parameters.values():
            if parameter.kind is parameter.VAR_POSITIONAL:
                given[parameter.name] = list(given.get(parameter.name, ()))
        stored: dict[str, Json] = plain(given)
        return stored if self.instance is None else {self._receiver(): receiver_id(self.name, self.instance), **stored}

    def invoke(self, args: dict[str, Json], key: str, tx: Any = None) -> Any:
        """Run the body with recorded args; return its result, or its coroutine."""
        signature = _signature(self.fn)
        positional: list[Any] = [*self._before(tx)]
        named = dict(args)
        if self.instance is not None:
            named.pop(self._receiver(), None)
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
        """Return what comes before the call's own arguments: a method's instance, a transactional tool's `tx`."""
        if self.instance is None and self.policy != "transactional":
            return ()
        own = () if self.instance is None else (self.instance,)
        return (*own, tx) if self.policy == "transactional" else own

    def did_nothing(self, error: BaseException) -> bool:
        """Return whether a failure says that the attempt did nothing: by `DidNotHappen`, or a class in `not_sent`."""
        return isinstance(error, DidNotHappen) or type(error) in self.not_sent

    def is_default(self, name: str, value: Json) -> bool:
        """Return whether an argument is today's default of its parameter."""
        parameter = _signature(self.fn).parameters.get(name)
        if parameter is None or parameter.default is inspect.Parameter.empty:
            return False
        try:
            return _sorted_json(plain(parameter.default)) == _sorted_json(value)
        except Unstorable:
            return False

    def _receiver(self) -> str:
        """The name of a method's first parameter."""
        return next(iter(_signature(self.fn).parameters))

    def own_key(self, args: Mapping[str, Json]) -> str:
        """The call's own key, "" if the tool has none. Raises InvalidArgument if the args make none."""
        if not self.key:
            return ""
        try:
            key = self.key.format(**args)
        except (KeyError, IndexError, AttributeError) as error:
            raise InvalidArgument(f"{self.name}: the key {self.key!r} names no argument: {error}") from None
        if not key:
            raise InvalidArgument(f"{self.name}: the key {self.key!r} is empty for these arguments; nothing was sent")
        return key


def bound_to(
    name: str, signature: inspect.Signature, before: tuple[Any, ...], args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> inspect.BoundArguments:
    """Return the args of a call, bound to the signature of its tool behind what comes `before` them.

    Raises CallFailed, in words that a language model that has made the args can mend them by.
    """
    try:
        return signature.bind(*before, *args, **kwargs)
    except TypeError as error:
        why = error
    parameters = list(signature.parameters.values())
    own = [each for each in parameters[len(before) :] if each.name != KEY_PARAMETER]
    named = [each for each in own if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
    needed = [each.name for each in named[len(args) :] if each.default is each.empty]
    missing = [each for each in needed if each not in kwargs]
    anything = any(each.kind is each.VAR_KEYWORD for each in own)
    unknown = [] if anything else [each for each in kwargs if each not in {one.name for one in named} | {KEY_PARAMETER}]
    said = [f"it has no parameter {_listed(unknown)}"] * bool(unknown) + [f"{_listed(missing)} is missing"] * bool(
        missing
    )
    takes = [each.name if each.default is each.empty else f"{each.name} (may be left out)" for each in named]
    raise CallFailed(
        "TypeError",
        f"{name} can't be called so: {', and '.join(said) or why}. It takes {', '.join(takes) or 'nothing'}. "
        "Nothing was sent",
    ) from None


def _listed(names: Sequence[str]) -> str:
    return ", ".join(ascii(each)[:80] for each in names[:8])


def receiver_id(name: str, instance: object) -> str | int:
    """Which object a method was called on, as its `runjournal_id` says. Raises InvalidArgument if nothing does.

    Two accounts that are paid from are two: without it the second call would be taken for the first one.
    """
    told = getattr(instance, "runjournal_id", None)
    if isinstance(told, bool) or not isinstance(told, str | int) or told == "":
        kind = (instance if isinstance(instance, type) else type(instance)).__name__
        raise InvalidArgument(
            f"{name} is a method of {kind}, and nothing says of which one: give {kind} an attribute or property "
            "`runjournal_id`, a text or number that says which it is, the same in every process (an account, a URL); "
            f'where all are as one, write `runjournal_id = "{kind.lower()}"` into the class. Nothing was sent'
        )
    return told


def same_function(one: Callable[..., Any], other: Callable[..., Any]) -> bool:
    """Whether two functions do the same: one made anew does, if it is the same code over the same variables."""
    if one == other:
        return True
    code = getattr(one, "__code__", None)
    if code is None or code != getattr(other, "__code__", None):
        return False
    mine, theirs = _over(one), _over(other)
    return len(mine) == len(theirs) and all(map(_same_value, mine, theirs))


def _over(function: Callable[..., Any]) -> list[Any]:
    """What a function has beside its code: its object, its defaults, the variables around it."""
    closure = getattr(function, "__closure__", None) or ()
    variables = [cell.cell_contents for cell in closure if cell != _EMPTY]
    keywords: dict[str, Any] = getattr(function, "__kwdefaults__", None) or {}
    defaults = getattr(function, "__defaults__", None) or ()
    return [getattr(function, "__self__", None), *defaults, *keywords.values(), *variables]


def _same_value(one: object, other: object) -> bool:
    plain_values = isinstance(one, str | bytes | int | float) and type(one) is type(other)
    return one is other or (plain_values and one == other)


_EMPTY: Final = CellType()
"""A variable around a function that has no value yet."""


def _sorted_json(value: Json) -> str:
    return json.dumps(value, sort_keys=True)


_known: dict[str, dict[tuple[str, str], Tool[..., Any]]] = {}
"""The tools of this process by name, and by the place of their functions: one made anew there takes the old one's."""


def known() -> dict[str, Tool[..., Any]]:
    """Return the tools of this process by name, whose hooks a recovery asks; but for names that two functions claim."""
    return {name: next(iter(claims.values())) for name, claims in _known.items() if len(claims) == 1}


def claims(name: str) -> list[Tool[..., Any]]:
    """Return the tools of this process that are named so, in the order of their making; of one function, one."""
    return list(_known.get(name, {}).values())


class Names:
    """The tools that a run has called, by name: one name is one function (engine.md C9)."""

    def __init__(self) -> None:
        self._called: dict[str, Tool[..., Any]] = {}

    def claim(self, made: Tool[..., Any], in_step: dict[str, Tool[..., Any]]) -> SameName | None:
        """Note that this tool is called; return what is wrong if the run has called another one by its name.

        `in_step` are those that the open step has called: there, functions made anew over other values are others, too.
        """
        first = self._called.setdefault(made.name, made)
        if first is not made and _place(first) != _place(made):
            return same_name(first, made)
        first = in_step.setdefault(made.name, made)
        return None if first is made or same_function(first.fn, made.fn) else same_name(first, made)


def _place(made: Tool[..., Any]) -> tuple[str, str]:
    """Return where its function is written: the same for a module that was reloaded, and for what a factory makes."""
    fn = made.fn
    return getattr(fn, "__module__", ""), getattr(fn, "__qualname__", type(fn).__qualname__)


def same_name(first: Tool[..., Any], second: Tool[..., Any]) -> SameName:
    """Return what is raised of two tools of one name: it says where both are written."""
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
    Name().check(made.name, "the name of a tool")
    parameters = _signature(made.fn).parameters
    if made.policy not in TOOL_POLICIES:
        raise InvalidArgument(f"{made.name}: policy: expected one of {', '.join(TOOL_POLICIES)}, got {made.policy!r}")
    if made.read_only and made.policy != "idempotent":
        raise InvalidArgument(f"{made.name}: a read-only tool is idempotent; leave the policy out or say so")
    if made.on_unknown not in ON_UNKNOWN:
        expected = ", ".join(map(repr, ON_UNKNOWN))
        raise InvalidArgument(f"{made.name}: on_unknown: expected one of {expected}, got {made.on_unknown!r}")
    failures = cast("object", made.not_sent)  # callers aren't all typed
    for each in cast("tuple[object, ...]", failures if isinstance(failures, tuple) else (failures,)):
        if not (isinstance(each, type) and issubclass(each, Exception)):
            raise InvalidArgument(f"{made.name}: not_sent: expected a tuple of classes of exceptions, got {each!r}")
    if made.policy == "keyed" and KEY_PARAMETER not in parameters:
        raise InvalidArgument(f"{made.name}: a keyed tool takes a parameter `{KEY_PARAMETER}`, and passes it on")
    if made.policy == "outbox" and (made.is_async or KEY_PARAMETER not in parameters or made.into or made.read_only):
        raise InvalidArgument(
            f"{made.name}: a tool of the outbox is a plain function that takes a parameter `{KEY_PARAMETER}` and "
            "passes it on, without into=: the relay calls it, and the agent never sees its result"
        )
    if made.policy == "transactional" and (made.is_async or "tx" not in parameters):
        raise InvalidArgument(f"{made.name}: a transactional tool is a plain function whose first parameter is `tx`")
    for given, function in {"reconcile": made.reconcile, "into": made.into}.items():
        if inspect.iscoroutinefunction(function):
            raise InvalidArgument(f"{made.name}: {given}= is a coroutine function: make it a plain one")
    checked(made.retry, made.name)
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
    key: str | None = None,
    into: Callable[[Json], Any] | None = None,
    retry: Retry | None = None,
    name: str | None = None,
) -> Callable[[Callable[Concatenate[Tx, P], R]], Tool[P, R]]: ...


@overload
def tool(
    *,
    policy: Literal["outbox"],
    key: str | None = None,
    key_ttl_s: float = 24 * 3600.0,
    reconcile: Callable[[dict[str, Json], str], Word | None] | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, Any]], Tool[P, str]]: ...


@overload
def tool(
    *,
    policy: Literal["idempotent", "keyed", "unsafe"] | None = None,
    read_only: bool = False,
    timeout_s: float | None = None,
    key: str | None = None,
    key_ttl_s: float = 24 * 3600.0,
    reconcile: Callable[[dict[str, Json], str], Word | None] | None = None,
    on_unknown: Literal["ask", "fail", "tell"] = "ask",
    not_sent: tuple[type[Exception], ...] = (),
    into: Callable[[Json], Any] | None = None,
    retry: Retry | None = None,
    name: str | None = None,
) -> Callable[[Callable[P, R]], Tool[P, R]]: ...


def tool(
    fn: Callable[..., Any] | None = None,
    /,
    *,
    policy: ToolPolicy | None = None,
    read_only: bool = False,
    name: str | None = None,
    **how: Any,
) -> Any:
    """Make a function, async function or method a tool; with or without arguments. Raises InvalidArgument.

    Without a policy a tool is `unsafe`; with `read_only=True`, `idempotent`. A `keyed` one takes a parameter
    `idempotency_key`, which the journal fills in, and whose receiver remembers it for `key_ttl_s` seconds; a
    `transactional` one takes `tx` first. An `outbox` one takes the key as a keyed one does: a call of it is written
    down and returns its key, and `Journal.relay` makes it once the step is complete.

    `timeout_s` bounds a call in seconds: then it fails as a TimeoutError, and may have happened. The body of a plain
    function goes on in its thread, and says later what became of it. `key="order-{order_id}"` names the call by its
    arguments, once in the whole scope of a run. `reconcile(args, key)` asks the world what became of a call:
    ("happened", result), ("did_not_happen", None) or ("unknown", None). `not_sent` names the failures after which
    nothing was done for sure, as after `DidNotHappen`; exactly these classes count, none derived from them. Whatever
    else leaves an unsafe tool proves nothing. `on_unknown` says what to do where nobody knows, live as after a crash:
    "ask" lets the run wait for a person, and the agent never hears of it; "fail" raises CallOutcomeUnknown, each time
    it asks; "tell" raises it once, and a call that is asked for again is sent again (a shell, whose commands fail all
    day). `into`, a class of yours, is what the recorded JSON is turned into. `name` is what the log calls the tool: a
    run that calls two functions by one name is stopped with SameName. `retry` says how often a call is tried again that
    failed for now and can't happen twice, where the journal's own `retry` doesn't fit.

    A method says on which object it was called by that object's `runjournal_id`, which is then one of its arguments.
    """
    for given, text in {"name": name, "key": how.get("key"), "policy": policy}.items():
        if text == "":  # pyright: ignore[reportUnnecessaryComparison] - callers aren't all typed
            raise InvalidArgument(f"{given}: it is empty; leave it out where there is none")
    how = {given: value for given, value in how.items() if (given, value) != ("key", None)}
    classes: Any = how.get("not_sent")
    if isinstance(classes, type | list):
        how["not_sent"] = tuple(cast("list[object]", classes)) if isinstance(classes, list) else (classes,)

    def make(function: Callable[..., Any]) -> Tool[..., Any]:
        chosen = ("idempotent" if read_only else "unsafe") if policy is None else policy
        made = Tool(function, function.__name__ if name is None else name, chosen, read_only, **how)
        _check(made)
        _register(made)
        return functools.update_wrapper(made, function)  # type: ignore[return-value]  # it is the tool, with the function's docs

    return make if fn is None else make(fn)


_ABOUT: Final = json.JSONEncoder(sort_keys=True, ensure_ascii=False)


def call_key(  # noqa: PLR0917 - what an id is worked out from
    scope: str, step: str, what: str, args: Json, n: int = 1, salt: bytes = b"", store: str = ""
) -> str:
    """Return which call it is: the id of a call, and the idempotency key that its tool is passed.

    That is the first 24 hex digits of SHA-256 over the JSON (the standard library's, keys sorted, not escaped) of
    {task, step, tool, args}, n if it is more than 1, the n-th equal call of its step, and `store`, the id of the store,
    if it is the call of a tool: what a store made anew sends is new to whoever receives it. In a private run it is
    HMAC-SHA-256 under the key of its line, `salt`: who has the id alone can't try which arguments lead to it.
    """
    about: dict[str, Json] = {"task": scope, "step": step, "tool": what, "args": args}
    if n > 1:
        about["n"] = n
    if store:
        about["store"] = store
    text = _ABOUT.encode(about).encode()
    return (hmac.new(salt, text, "sha256") if salt else hashlib.sha256(text)).hexdigest()[:24]
