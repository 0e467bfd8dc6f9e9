"""`--agent [KIND=]module:function`: an agent, imported from the folder where the command is typed."""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import click

from .safe import line

if TYPE_CHECKING:
    from runjournal.log.head import Head

F = TypeVar("F", bound=Callable[..., Any])


class NamedAgent(NamedTuple):
    """An agent, the kind of its runs, and how it was named."""

    kind: str
    function: Callable[..., Any]
    path: str

    @property
    def is_async(self) -> bool:
        """Return whether it is an asyncio agent."""
        call = getattr(self.function, "__call__", None)  # noqa: B004 - an object may be one
        return inspect.iscoroutinefunction(self.function) or inspect.iscoroutinefunction(call)


def agent_option(*, required: bool, multiple: bool = False) -> Callable[[F], F]:
    """Add the option that names an agent; the text is imported by `agent_named`."""
    return click.option(
        "--agent",
        "agents" if multiple else "agent",
        required=required,
        multiple=multiple,
        envvar="RUNJOURNAL_AGENT",
        metavar="[KIND=]MODULE:FUNCTION",
        help="The agent, from this folder or Python's path. KIND, if it isn't the function's name."
        + " Several are taken." * multiple,
    )


def agent_named(text: str) -> NamedAgent:
    """Import an agent. Raises BadParameter for what names none, ClickException where its module can't be imported."""
    kind, _, path = text.rpartition("=")
    module, _, names = path.partition(":")
    if not module or not names:
        raise _bad(f"expected MODULE:FUNCTION, as in agents:report, got {line(text, 80)}")
    found: Any = _imported(module)
    for name in names.split("."):
        if not hasattr(found, name):
            raise _bad(f"{line(module)} has no {line(name, 60)}{_close(name, found)}")
        found = getattr(found, name)
    if not callable(found):
        raise _bad(f"expected a function of a run, {line(path, 80)} is a {type(found).__name__}")
    if inspect.isclass(found):
        raise _bad(f"expected a function of a run, {line(path, 80)} is a class: name an object of it")
    return NamedAgent(kind or getattr(found, "__name__", "agent"), found, path)


def agent_of(agents: dict[str, NamedAgent], head: Head) -> NamedAgent:
    """Return the agent of a run's kind. Raises UsageError."""
    found = agents.get(head.kind)
    if found is None:
        known = ", ".join(line(kind, 60) for kind in agents)
        how = f"name its agent, or say --agent {line(head.kind, 60)}=MODULE:FUNCTION if this is it"
        raise click.UsageError(f"run {head.run_id} is of kind {line(head.kind, 60)}, the agent's is {known}; {how}")
    return found


def by_kind(texts: tuple[str, ...]) -> dict[str, NamedAgent]:
    """Import some agents; return them by kind. Raises UsageError if two have the same."""
    found = dict[str, NamedAgent]()
    for agent in map(agent_named, texts):
        if agent.kind in found:
            both = f"{found[agent.kind].path} and {agent.path}"
            raise click.UsageError(f"two agents of kind {line(agent.kind, 60)}, {both}: say KIND= before one of them")
        found[agent.kind] = agent
    return found


def _imported(module: str) -> Any:
    folder = str(Path.cwd())
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{module}.".startswith(f"{error.name}."):
            raise _broken(module, error) from error
        raise _bad(f"no module {line(module, 80)} in {line(folder)}, nor on Python's path") from None
    except SystemExit:
        raise click.ClickException(
            f"{line(module, 80)} ends its process when it is imported: put that under `if __name__ == '__main__':`"
        ) from None
    except Exception as error:
        raise _broken(module, error) from error


def _broken(module: str, error: BaseException) -> click.ClickException:
    why = line(f"{type(error).__name__}: {error}", 300)
    return click.ClickException(f"{line(module, 80)} can't be imported: {why}")


def _bad(text: str) -> click.BadParameter:
    return click.BadParameter(text, param_hint="--agent")


def _close(name: str, found: Any) -> str:
    import difflib

    near = difflib.get_close_matches(name, [each for each in dir(found) if callable(getattr(found, each, None))], 1)
    return f"; did you mean {near[0]}?" if near else ""
