"""`run.turn`: the loop of an agent as it must be written, killed at every boundary, with another prompt each time."""

import asyncio
import itertools
import json
from collections.abc import Iterator
from typing import Any

import pytest
from crashing import at_random, everywhere, finish, outside

from runjournal import KEY, AsyncJournal, AsyncRun, Journal, Run, RunWaiting, Tool, tool
from runjournal import provider_shapes as shapes
from runjournal.engine import failures as f
from runjournal.histories import UNKNOWN
from runjournal.log import events as e
from runjournal.log.base import Json
from runjournal.log.errors import InvalidArgument

PROCESSES = itertools.count()


@tool
def mail(to: str) -> str:
    return outside.did("mail", to)


@tool(policy="keyed")
def charge(order: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("charge", order, idempotency_key)


@tool(policy="keyed")
def refund(cents: int, *, idempotency_key: str = KEY) -> str:
    return outside.did("refund", cents, idempotency_key)


@tool(read_only=True)
def look_up(order: int) -> str:
    raise KeyError("no such order")


@tool(read_only=True)
def silent() -> None:
    return None


@tool(policy="keyed")
async def charge_async(order: int, *, idempotency_key: str = KEY) -> str:
    return await outside.did_slowly("charge_async", order, idempotency_key)


@tool
async def mail_async(to: str) -> str:
    return await outside.did_slowly("mail_async", to)


# What the model says: the calls of each answer, [tool, args], or its last text. Both providers write it in their way.

SCRIPT: list[Any] = [
    [["look_up", {"order": 7}], ["mail", {"to": "ann"}], ["mail", {"to": "ann"}]],
    [["refund", {"cents": 500}], ["refund", {"cents": 900}], ["no_such_tool", {}], ["mail", {"too": "ann"}],
     ["charge", {"order": 7}], ["silent", {}]],
    "all is done",
]  # fmt: skip
IDS = itertools.count(1)


def anthropic_answer(said: Any) -> Json:
    blocks: list[Json] = [{"type": "text", "text": " "}, {"type": "thinking", "thinking": "…", "signature": "s"}]
    if isinstance(said, str):
        return {"id": "msg", "role": "assistant", "content": [{"type": "text", "text": said}], "stop_reason": "stop"}
    for name, args in said:
        blocks.append({"type": "tool_use", "id": f"toolu_{next(IDS)}", "name": name, "input": args})
    return {"id": "msg", "role": "assistant", "content": blocks, "stop_reason": "tool_use"}


def chat_answer(said: Any) -> Json:
    message: dict[str, Json] = {"role": "assistant", "content": None, "refusal": None, "annotations": []}
    if isinstance(said, str):
        message["content"] = said
        return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
    message["tool_calls"] = [
        {"id": f"call_{next(IDS)}", "type": "function", "function": {"name": name, "arguments": json.dumps(args)}}
        for name, args in said
    ]
    return {"id": "c", "choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}


ANSWERS = {"anthropic": anthropic_answer, "chat": chat_answer}


def check_anthropic(request: Any) -> None:
    """What Anthropic's Messages API refuses."""
    messages = request["messages"]
    assert "user" == messages[0]["role"]
    open_ids: list[str] = []
    for message in messages:
        assert {"role", "content"} == set(message)
        assert message["content"]
        blocks = message["content"] if isinstance(message["content"], list) else []
        assert [] == [each for each in blocks if each["type"] == "text" and not each["text"].strip()]
        results = [each["tool_use_id"] for each in blocks if each["type"] == "tool_result"]
        assert all(each["content"].strip() for each in blocks if each["type"] == "tool_result")
        assert open_ids == results, "each tool_use is answered once, in the next message"
        open_ids = [each["id"] for each in blocks if each["type"] == "tool_use"]
    assert [a != b for a, b in itertools.pairwise(each["role"] for each in messages)] == [True] * (len(messages) - 1)
    assert [] == open_ids


def check_chat(request: Any) -> None:
    """What OpenAI's Chat Completions refuse."""
    open_ids: list[str] = []
    for message in request["messages"]:
        if message["role"] == "tool":
            assert message["content"].strip()
            assert open_ids.pop(0) == message["tool_call_id"]
            continue
        assert [] == open_ids, "each tool call is answered before anything else"
        assert message.get("content") is not None or message["tool_calls"]
        assert {"role", "content", "tool_calls"} >= set(message)
        open_ids = [call["id"] for call in message.get("tool_calls", ())]
    assert [] == open_ids


CHECKS = {"anthropic": check_anthropic, "chat": check_chat}


def request_of(order: int) -> dict[str, Json]:
    """A request whose prompt is another one in each process."""
    return {"max_tokens": 1000, "system": f"It is process {next(PROCESSES)}."} | {
        "messages": [{"role": "user", "content": f"See to order {order}."}]
    }


def decides(action: str, args: Any) -> Any:
    """A person: one refund is cut down, another one is refused."""
    assert "refund" == action
    return {"cents": 400} if args["cents"] == 500 else "too much"


def says(request: Any) -> Any:
    """The model: what it says depends on how often it has spoken in the request."""
    world = outside.world
    world.tick()
    world.asked.append(request)
    world.tick()
    return world.answers[sum(message["role"] == "assistant" for message in request["messages"])]


def agent(run: Run) -> Any:
    request = request_of(7)
    tools: list[Tool[..., Any]] = [mail, charge, refund, look_up, silent]
    while (answer := run.turn("m", request, tools, says, approve=["refund"])) is None:
        pass
    return answer


async def agent_async(run: AsyncRun) -> Any:
    request = request_of(7)
    tools: list[Tool[..., Any]] = [mail_async, charge_async, refund, look_up, silent]

    async def call(asked: Json) -> Any:
        return says(asked)

    while (answer := await run.turn("m", request, tools, call, approve=lambda name, args: name == "refund")) is None:
        pass
    return answer


def script(answer: Any, *, slow: bool = False) -> list[Json]:
    renamed = {"mail": "mail_async", "charge": "charge_async"} if slow else {}
    return [
        answer(said if isinstance(said, str) else [[renamed.get(name, name), args] for name, args in said])
        for said in SCRIPT
    ]


def judged(whole: Any, ends: list[Any], provider: str) -> None:
    """Each ended as if nobody had killed it, and each request was one that the provider takes."""
    for number, end in enumerate(ends, 1):
        assert (None, whole.facts) == (end.stop, end.facts), f"end {number}"
    for end in [whole, *ends]:
        for request in end.world.asked:
            CHECKS[provider](request)


@pytest.mark.parametrize(("one", "provider"), [(agent, "anthropic"), (agent_async, "chat")])
def test_killed_at_every_boundary(one: Any, provider: str) -> None:
    """It ends as if nobody had killed it: no mail is sent twice, and only an open question is asked again."""
    whole, ends = everywhere(one, answers=script(ANSWERS[provider], slow=one is agent_async), decides=decides)
    assert ("completed", "all is done", None) == (whole.status, whole.output, whole.stop)
    sent = {name.removesuffix("_async") + args: n for (name, args), n in whole.effects.items()}
    assert {'mail"ann"': 2, "refund400": 1, "charge7": 1} == sent
    judged(whole, ends, provider)
    assert {3, 4} == {len(end.world.asked) for end in ends}
    assert 3 == len(whole.world.asked)


@pytest.mark.parametrize(("one", "provider"), [(agent, "chat"), (agent_async, "anthropic")])
def test_killed_several_times(one: Any, provider: str, tmp_path: Any) -> None:
    """The same on SQLite, for processes that die one after another."""
    answers = script(ANSWERS[provider], slow=one is agent_async)
    judged(*at_random(one, 12, tmp_path, answers=answers, decides=decides), provider)


def test_a_step_of_ones_own_before_each_turn() -> None:
    """An agent that asks where its loop is ends as if nobody had killed it, and each request is one that is taken."""

    def listens(run: Run) -> Any:
        while True:
            last = run.state.completed[-1:]
            if not last or last[0].startswith("turn tools"):
                with run.step("inbox", repeat=True):
                    run.message("user", f"news {len(run.state.messages)}")
            if (answer := run.turn("m", {"max_tokens": 9}, [mail, charge], says)) is not None:
                return answer

    answers = [anthropic_answer([["charge", {"order": 7}], ["mail", {"to": "ann"}]]), anthropic_answer("all is done")]
    whole, ends = everywhere(listens, answers=answers, decides=decides)
    assert ("completed", "all is done", None) == (whole.status, whole.output, whole.stop)
    judged(whole, ends, "anthropic")


def test_what_the_model_is_told() -> None:
    """Failures, unknown names, wrong args, and a person's no, as results; an edit of the args, in words."""
    end = finish(agent, answers=script(anthropic_answer), decides=decides)
    told = [[each["content"], each.get("is_error", False)] for role, content in end.context["messages"]
            if role == "user" for each in content]  # fmt: skip
    wrong = "TypeError: mail can't be called so: it has no parameter 'too', and 'to' is missing. It takes to."
    assert [
        ["KeyError: 'no such order'", True], ["mail ann", False], ["mail ann", False],
        ['(A person has changed the arguments to {"cents": 400}.)\nrefund 400', False],
        ["A person has refused this call; nothing was sent: too much", True],
        ["there is no tool 'no_such_tool'; there are: mail, charge, refund, look_up, silent. Nothing was sent", True],
        [f"{wrong} Nothing was sent", True], ["charge 7", False], ["(it returned nothing)", False],
    ] == told  # fmt: skip


def test_steps_of_a_turn() -> None:
    """The question is a step, its calls are the next one: no step holds both."""
    with Journal.open("memory:") as journal:
        answers = [chat_answer([["silent", {}]]), chat_answer("done")]
        requests: list[Any] = []

        def call(request: Json) -> Json:
            requests.append(request)
            return answers[len(requests) - 1]

        def small(run: Run) -> Any:
            while (answer := run.turn("m", {}, [silent], call, name="think")) is None:
                pass
            return [answer, run.turn("m", {}, [silent], call, name="think")]

        assert ["done", "done"] == journal.run(small, run_id="r", input="hello")
        assert ["think", "think tools", "think#2"] == journal.state("r").steps.completed
        assert [{"role": "user", "content": "hello"}] == requests[0]["messages"]
        assert ["user", "assistant", "tool", "assistant"] == [each.role for each in journal.messages("r")]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ('{"to": ', "the arguments are no JSON that can be read"),
        ("[1]", "the arguments are no JSON object, but a list of int"),
        ('{"to": NaN}', "expected a finite number"),
        ('{"to": "\\ud800"}', "valid Unicode"),
        ("[" * 100_000, "the arguments are no JSON"),
        ("", "'to' is missing"),
    ],
)
def test_broken_arguments_are_told_to_the_model(arguments: str, words: str) -> None:
    """A model that writes no JSON, or what can't be stored, hears of it, and may try again."""
    message = {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": {"name": "mail"}}]}
    message["tool_calls"][0]["function"]["arguments"] = arguments  # type: ignore[index]
    answers = iter([{"choices": [{"message": message}]}, chat_answer("done")])

    def small(run: Run) -> Any:
        while (answer := run.turn("m", {}, [mail], lambda _: next(answers))) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        assert "done" == journal.run(small, run_id="r", input="hello")
        (result,) = [each.content for each in journal.messages("r") if each.role == "tool"]
        assert words in str(result)
        assert [] == [each for each in journal.events("r") if each.type == "tool.started"]


def test_an_answer_that_was_cut_off_makes_no_half_call() -> None:
    """The last call of it may be half of one: it isn't made, and the model hears why."""
    cut = {**anthropic_answer([["silent", {}], ["silent", {}]]), "stop_reason": "max_tokens"}
    answers = iter([cut, anthropic_answer("done")])

    def small(run: Run) -> Any:
        while (answer := run.turn("m", {}, [silent], lambda _: next(answers))) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        assert "done" == journal.run(small, run_id="r", input="hello")
        assert 1 == len([each for each in journal.events("r") if each.type == "tool.started"])
        (results,) = [each.content for each in journal.messages("r") if each.role == "user"][1:]
        assert shapes.CUT_OFF == results[1]["content"]


def test_a_paused_answer_is_asked_on() -> None:
    """A provider's own tools may take several answers: none of them is the last one."""
    paused = {"content": [{"type": "text", "text": "searching"}], "stop_reason": "pause_turn"}
    answers, requests = [paused, anthropic_answer("found")], list[Any]()

    def call(request: Json) -> Json:
        requests.append(request)
        return answers[len(requests) - 1]

    def small(run: Run) -> Any:
        while (answer := run.turn("m", {}, [], call)) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        assert "found" == journal.run(small, run_id="r", input={"ask": "hello"})
    assert ["user", "assistant"] == [each["role"] for each in requests[1]["messages"]]
    assert '{"ask": "hello"}' == requests[0]["messages"][0]["content"]


@pytest.mark.parametrize(
    ("provider", "news", "more"),
    [("anthropic", ["news"], {}), ("chat", ["news"], {}), ("anthropic", [], {"stop_reason": "pause_turn"})],
)
def test_calls_without_results_are_made_first(provider: str, news: list[str], more: dict[str, str]) -> None:
    """Whatever was written behind the answer, and paused or not: the results go directly behind it, as it was live."""
    answer = ANSWERS[provider]([["silent", {}], ["look_up", {"order": 7}]])
    content, raw = shapes.shape_of_answer(answer).spoken(answer)
    requests: list[Any] = []

    def call(request: Json) -> Json:
        requests.append(request)
        return ANSWERS[provider]("done")

    def small(run: Run) -> Any:
        if not run.done("before"):
            with run.step("before"):
                run.message("user", "hello")
                run.message("assistant", content, raw={**raw, **more})
                for text in news:
                    run.message("user", text)
        while (said := run.turn("m", {}, [silent, look_up], call)) is None:
            pass
        return said

    with Journal.open("memory:") as journal:
        assert "done" == journal.run(small, run_id="r")
        assert ["before", "turn tools", "turn"] == journal.state("r").steps.completed
        assert 2 == len([each for each in journal.events("r") if each.type == "tool.started"])
    (request,) = requests
    CHECKS[provider](request)
    told = json.dumps(request["messages"])
    assert 0 < told.index(shapes.NOTHING) < told.index("no such order") < (told.index("news") if news else len(told))
    assert UNKNOWN not in told


def test_a_conversation_goes_on() -> None:
    """Behind an answer a message of the user's is the next question."""
    answers = iter([chat_answer("one"), chat_answer("two")])

    def small(run: Run) -> Any:
        first = run.turn("m", {}, [], lambda _: next(answers))
        with run.step("hear", repeat=True):
            run.message("user", "and then?")
        return [first, run.turn("m", {}, [], lambda _: next(answers))]

    with Journal.open("memory:") as journal:
        assert ["one", "two"] == journal.run(small, run_id="r", messages=[{"role": "user", "content": "hello"}])


def test_an_answer_of_no_provider_is_asked_again() -> None:
    """What can't be told apart is no answer: it is a failure like any other of a model."""

    def small(run: Run) -> Any:
        return run.turn("m", {}, [], lambda _: {"text": "hello"})

    with Journal.open("memory:") as journal:
        with pytest.raises(f.StepFailed, match=r"expected Anthropic's \{content.*got an object of 'text'"):
            journal.run(small, run_id="r", input="hello")
        assert [True, True, False] == [x.event.again for x in journal.events("r") if isinstance(x.event, e.ModelFailed)]


@tool(key="order-{order}")
def once(order: str) -> str:
    return f"did {order}"


def test_a_key_that_the_model_spoils_is_told_to_it() -> None:
    """An empty key, one that can't be on record, and one that is another call's are the model's to mend."""
    wanted = [["once", {"order": "a"}], ["once", {"order": "a\0"}], ["once", {"order": "x" * 3000}]]
    answers = iter([anthropic_answer(wanted), anthropic_answer("done")])

    def small(run: Run) -> Any:
        while (answer := run.turn("m", {}, [once], lambda _: next(answers))) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        assert "done" == journal.run(small, run_id="r", input="hello")
        (results,) = [each.content for each in journal.messages("r") if each.role == "user"][1:]
        assert [False, True, True] == [each.get("is_error", False) for each in results]
        assert "did a" == results[0]["content"]


class Mailer:
    @tool
    def post(self, to: str) -> str:
        return to


@tool(name="mail")
def other_mail(to: str) -> str:
    return to


@pytest.mark.parametrize(
    ("tools", "how", "words"),
    [
        ([mail], {"approve": ["mial"]}, "approve names mial, and no such tool is there: mail"),
        ([len], {}, "len is no tool: decorate it, @tool"),
        ([mail, other_mail], {}, "two of the tools are named mail"),
        ([Mailer().post], {}, "runjournal_id"),
    ],
)
def test_what_cannot_be_right_is_a_mistake(tools: Any, how: Any, words: str) -> None:
    """The model is asked nothing, and the run goes on when the code was mended."""
    with Journal.open("memory:") as journal:
        with pytest.raises(InvalidArgument if "id" in words else f.Mistake, match=words):
            journal.run(lambda run: run.turn("m", {}, tools, chat_answer, **how), run_id="r", input="hello")
        assert [] == [each for each in journal.events("r") if each.type == "model.started"]


def test_nothing_to_ask_is_a_mistake() -> None:
    """A run without an input, a message, or messages in the request has nothing to ask the model."""
    with Journal.open("memory:") as journal:
        with pytest.raises(f.WrongArgument, match="there is nothing to ask the model"):
            journal.run(lambda run: run.turn("m", {}, [], chat_answer), run_id="r")
        assert "queued" == journal.head("r").status


def test_questions_of_one_answer_are_asked_together_in_asyncio() -> None:
    """A person sees all of them at once, and the calls that need no word are made meanwhile."""
    wanted = [["refund", {"cents": 1}], ["refund", {"cents": 2}], ["silent", {}]]

    async def call(_: Json) -> Json:
        return anthropic_answer(wanted)

    async def small(run: AsyncRun) -> Any:
        return await run.turn("m", {}, [refund, silent], call, approve="refund")

    with AsyncJournal.open("memory:") as journal:
        with pytest.raises(RunWaiting) as waiting:
            asyncio.run(journal.run_async(small, run_id="r", input="hello"))
        assert 2 == len(waiting.value.waits)
        assert ["silent"] == [x.event.tool for x in journal.events("r") if isinstance(x.event, e.ToolStarted)]


def test_an_into_of_a_tool_is_not_what_the_model_is_told() -> None:
    """It is told what is on record."""

    @tool(read_only=True, into=lambda value: object())
    def parsed() -> Json:
        return {"x": [1]}

    answers: Iterator[Json] = iter([chat_answer([["parsed", {}]]), chat_answer("done")])

    def small(run: Run) -> Any:
        while (answer := run.turn("m", {}, [parsed], lambda _: next(answers))) is None:
            pass
        return answer

    with Journal.open("memory:") as journal:
        journal.run(small, run_id="r", input="hello")
        assert ['{"x": [1]}'] == [each.content for each in journal.messages("r") if each.role == "tool"]
