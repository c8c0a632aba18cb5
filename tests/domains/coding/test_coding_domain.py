"""Programs and tests in the real sandbox; what the models write stands in for them, token for token."""

import asyncio
import json
from types import SimpleNamespace

import pytest
from builders import config_of, summaries
from coding_world import PROBLEMS, rows

from rlanything.algorithm.advantages import assign_advantages
from rlanything.algorithm.consistency import assign_consistency, passes_correct
from rlanything.algorithm.tasks import TaskPool
from rlanything.config.schema import (
    AdaptationConfig,
    AlgorithmConfig,
    Config,
    RewardConfig,
    RolloutConfig,
    SandboxConfig,
)
from rlanything.domains.coding import prompts
from rlanything.domains.coding.domain import CodingDomain
from rlanything.domains.coding.problems import Check
from rlanything.domains.parts import RejectedTask
from rlanything.engines.base import Completion
from rlanything.engines.chat_model import ChatModel
from rlanything.rollout.collect import Batch, Collector
from rlanything.rollout.rewriting import rewrite
from rlanything.sandbox.kernel import SUPPORTED
from rlanything.sandbox.protocol import Execution, Verdict
from rlanything.types import Direction, Prompt, Status

pytestmark = pytest.mark.skipif(not SUPPORTED, reason="the sandbox needs Linux")
RIGHT = prompts.program_response("I add.", PROBLEMS[0][1])
ALSO_RIGHT = prompts.program_response("", "print(sum(map(int, input().split())))")
WRONG = prompts.program_response("", "a, b = map(int, input().split())\nprint(a - b)")
CRASHES = prompts.program_response("", "print(1 / 0)")
NONE = "I cannot."
TELLS, TOO_EASY = (prompts.test_response(Check(*test)) for test in (("2 3", "5"), ("4 0", "4")))
UNTRUE = prompts.test_response(Check("2 3", "-1"))


class Script:
    """An engine that says what it is told, one text after the other."""

    version = 0

    def __init__(self, texts: list[str]) -> None:
        self.texts = texts

    async def generate(self, prompt_ids, sampling, n=1, images=()):
        said, self.texts = self.texts[:n], self.texts[n:]
        return [Completion([*text.encode()], [-0.5] * len(text.encode()), "stop") for text in said]


def model(texts: list[str]) -> ChatModel:
    chat = SimpleNamespace(
        stop_ids=(0,),
        prompt=lambda messages, tools=(): Prompt(ids=[*str(messages).encode()]),
        response_text=lambda ids: bytes(ids).decode(),
    )
    return ChatModel(Script(texts), chat)


@pytest.fixture
def domain(tmp_path):
    (tmp_path / "train.json").write_text(json.dumps(rows()))
    domain = CodingDomain(config_of("coding", tmp_path, sandbox=SandboxConfig(num_runner=2)))
    yield domain
    domain.close()


def play(domain, programs, tests, reward=None):
    config = Config(reward=reward or RewardConfig(num_evaluation=len(tests), consistency="tests"))
    collector = Collector(domain, model(programs), model(tests) if tests else None, config)
    rollout = RolloutConfig(max_interaction_step=1, num_retry=0)
    batch = Batch(tasks=domain.tasks("train")[:1], num=len(programs), seed="seed", rollout=rollout)
    [group] = asyncio.run(collector.groups(batch, lambda: None))
    assign_advantages([group], AlgorithmConfig())
    assign_consistency([group], config.reward)
    return group


def test_programs_meet_the_problem_s_tests_and_those_that_the_reward_model_wrote(domain):
    group = play(domain, [RIGHT, WRONG, ALSO_RIGHT, CRASHES, NONE], [TELLS, TOO_EASY, UNTRUE, "no test"])
    assert [t.outcome for t in group.trajectories] == [1, -1, 1, -1, -1] and group.accuracy == 0.4
    turns = [t.turns[0] for t in group.trajectories]
    assert turns[0].results == ("ok",) * 4 and turns[1].results == ("wrong_answer",) * 4
    assert turns[3].results == ("runtime_error",) * 4 and turns[4].results == () and turns[4].invalid
    assert [[t.scores[e, 0] for t in group.judgements] for e in range(5)] == [
        [1, 1, -1, None],
        [-1, 1, 1, None],
        [1, 1, -1, None],
        [-1, -1, -1, None],
        [-1, -1, -1, None],
    ]
    assert [passes_correct(group, t) for t in group.judgements] == [True, True, False, None]
    assert [t.counts for t in group.judgements] == [True, True, False, False] and group.judgements[3].parse_error
    assert [t.score.reward for t in group.trajectories] == [1.0, 0.0, 1.0, 0.0, 0.0]
    assert [t.reward for t in group.judgements] == [3.0, 2.0, -1.0, -3.0]
    assert [turn.reward for turn in turns] == [2.0, -1.0, 2.0, -2.0, -2.0]
    assert turns[0].advantage > 0 > turns[1].advantage > turns[3].advantage
    assert "ZeroDivisionError" in turns[3].observation


def test_what_a_program_prints_is_no_way_to_pass(domain):
    greedy = prompts.program_response("", "import os\nprint(3, 12, 0, 30)\nos._exit(0)")
    group = play(domain, [greedy, RIGHT], [])
    assert [t.outcome for t in group.trajectories] == [-1, 1]


def test_a_broken_sandbox_is_a_failure_and_never_a_reward(domain, monkeypatch):
    async def broken(source, stdin, limits):
        return Execution(verdict=Verdict.SANDBOX_ERROR, error="out of memory")

    monkeypatch.setattr(domain.programs.start(), "run", broken)
    group = play(domain, [RIGHT, RIGHT], [TELLS])
    assert [t.status for t in group.trajectories] == [Status.SANDBOX_ERROR] * 2 and group.valid == []
    assert group.judgements[0].scores == {} and group.judgements[0].advantage == 0.0


def test_the_same_program_on_the_same_test_is_executed_once(domain, monkeypatch):
    executed, run, broken = [], domain.programs.start().run, True

    async def counted(source, stdin, limits):
        executed.append((source, stdin))
        if broken and stdin == b"5 7\n":
            return Execution(verdict=Verdict.SANDBOX_ERROR)
        return await run(source, stdin, limits)

    monkeypatch.setattr(domain.programs.start(), "run", counted)
    first = play(domain, [RIGHT, RIGHT, WRONG, RIGHT], [TELLS])
    assert len(executed) == len(set(executed)) and first.valid == []
    broken = False
    second = play(domain, [RIGHT, RIGHT], [TELLS])
    assert [t.outcome for t in second.trajectories] == [1, 1], "a retry executes again what the sandbox failed at"


def test_programs_and_tests_are_the_last_fenced_blocks():
    assert prompts.parse_program("```python\na\n``` or\n```py\nb\n```").action == "b\n"
    assert prompts.parse_program("```\nc\n```").action == "c\n"
    shown = "So:\n```python\na\n```\nExample:\n```\n1 2\n```\nOutput:\n```text\n3\n```"
    assert prompts.parse_program(shown).action == "a\n"
    assert prompts.parse_program("```text\n1 2\n```\nI add them.\n```Python\nb\n```\n").action == "b\n"
    assert prompts.parse_program("```text\n1 2\n```\nI add them.").action is None
    session = "```python\n>>> print(b)\n3\n```"
    assert prompts.parse_program(f"```python\nprint(a)\n```\nTry it:\n{session}").action == "print(a)\n"
    assert prompts.parse_program(session).action == "print(b)\n"
    assert prompts.parse_program("Here it is: ```python\nc\n```").action == "c\n"
    assert (
        prompts.parse_program("```python\n \n```").action is None and prompts.parse_program("print(1)").action is None
    )
    assert prompts.parse_test(f"{UNTRUE} better: {TELLS}")[0] == Check("2 3\n", "5\n")
    assert prompts.parse_test(f"```input\n9 9\n``` no, better: {TELLS}")[0] == Check("2 3\n", "5\n")
    for text in ("", "```input\n1\n```", "```output\n1\n```", "```input\n1\n```\n```output\n\n```"):
        assert prompts.parse_test(text)[0] is None
    assert "characters" in prompts.parse_test(prompts.test_response(Check("1" * 200_000, "1")))[1]


def test_the_policy_is_told_what_it_may_import_and_which_function_is_called():
    assert "reads from standard input" in prompts.policy_system({}, []) and "import" not in prompts.policy_system(
        {}, []
    )
    assert prompts.policy_system({}, ["numpy", "sympy"]).endswith("it may import numpy, sympy.")
    assert "defines Solution.f," in prompts.policy_system({"function": "Solution.f"}, [])
    assert "def f(x):" in prompts.statement({"question": "Double x.", "starter_code": "def f(x):\n"})


def test_tests_of_functions_hold_json_and_blocks_may_be_named_by_the_line_before():
    text = "**Input:**\n```\n[1, 2]\n3\n```\nThe output is\n```text\n true\n```"
    assert prompts.parse_test(text)[0] == Check("[1, 2]\n3\n", " true\n")
    assert prompts.parse_test(text, is_call=True)[0] == Check("[1, 2]\n3", "true")
    assert "expected values in JSON" in prompts.parse_test(text.replace(" true", "yes"), is_call=True)[1]
    listed = "1. A test:\n   ```input\n   5\n   ```\n   ```output\n   6\n   ```"
    assert prompts.parse_test(listed)[0] == Check("5\n", "6\n")


TESTS = [{"input": f"{i} 1 1", "output": str(i + 2)} for i in range(4)]
PROPOSAL = {"question": "Print the sum of a, b and c.", "tests": TESTS}


def test_a_proposal_becomes_a_task_whatever_text_is_around_it(domain):
    task = domain.tasks("train")[0]
    text = f'Think {{so}}: {{"a": 1}}\n```json\n{json.dumps(PROPOSAL)}\n``` and that is all }}.'
    variant = domain.rewriting.parse(text, task, Direction.HARDER, "q#1")
    assert variant.payload["question"] == PROPOSAL["question"] and variant.payload["tests"][0] == ["0 1 1", "2"]
    assert variant.payload["root"] == task.payload["question"] and variant.parent_id == task.id
    assert variant.payload["time_limit_s"] == 2.0 and "solution" not in variant.payload
    deeper = domain.rewriting.messages(
        variant, Direction.EASIER, 0.1, domain.rewriting.critic(play(domain, [RIGHT], [TELLS]))
    )
    assert "Original problem:\nPrint the sum of a and b." in deeper[0]["content"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("no JSON", "no_proposal"),
        ('{"question": "Print 1.", "tests": ' + "[" * 50_000, "no_proposal"),
        (json.dumps(PROPOSAL | {"question": "Print \ud83d."}), "schema"),
        (json.dumps({"question": "Print 1."}), "schema"),
        (json.dumps(PROPOSAL | {"tests": [*TESTS, {"input": "1 2 3"}]}), "schema"),
        (json.dumps(PROPOSAL | {"tests": [*TESTS, "1 2 3"]}), "schema"),
        (json.dumps(PROPOSAL | {"tests": [*TESTS, {"input": "1 1 1", "output": "4"}]}), "contradiction"),
        (json.dumps(PROPOSAL | {"tests": TESTS[:3]}), "too_few_tests"),
        (json.dumps(PROPOSAL | {"question": "x" * 200_000}), "too_large"),
        (json.dumps(PROPOSAL | {"question": " Print the sum  of a and b. "}), "unchanged"),
    ],
)
def test_a_bad_proposal_is_rejected_with_its_reason(domain, text, reason):
    with pytest.raises(RejectedTask) as caught:
        domain.rewriting.parse(text, domain.tasks("train")[0], Direction.HARDER, "q#1")
    assert caught.value.reason == reason


def test_a_problem_that_the_pool_has_is_not_proposed_again(domain):
    tasks = domain.tasks("train")
    pool = TaskPool.of(tasks, 0.2, 0.8, seed=0)
    groups = summaries([play(domain, [RIGHT, RIGHT], [TELLS])])
    requests = pool.rewrite_requests(groups, 4, 2)
    known = json.dumps(PROPOSAL | {"question": tasks[1].payload["question"]})
    config = AdaptationConfig(num_try=3)
    told = [known, known, json.dumps(PROPOSAL)]
    counts = asyncio.run(rewrite(requests, pool, model(told), domain, config, "0", 1))
    assert counts == {"proposed": 1, "rejected_duplicate": 2}
    told = [json.dumps(PROPOSAL)] * 3
    pool.candidates.clear()
    assert asyncio.run(rewrite(requests, pool, model(told), domain, config, "0", 2))["proposed"] == 1


def test_demonstrations_solve_the_problems(domain):
    stream = domain.demonstrations("policy", "train", 0)
    for _ in range(3):
        conversation = next(stream)
        task = next(t for t in domain.tasks("train") if t.id == conversation.key)
        program = prompts.parse_program(conversation.messages[-1]["content"]).action
        assert asyncio.run(domain.judging.passes(task, program, Check(*task.payload["tests"][0]))) == 1


def test_a_plan_counts_every_program_on_the_problems_and_the_judges_tests(domain):
    domain.config.rollout.num_trial, domain.config.rollout.num_rollout_per_trial = 3, 5
    domain.config.reward.num_evaluation = 4
    tasks = domain.tasks("train")
    most = max(len(domain.own_tests(task)) for task in tasks)
    domain.config.adaptation.max_candidate, domain.config.adaptation.enabled = 2, True
    assert domain.executions(tasks) == (3 + 2) * 5 * (most + 4)
