"""Prompts of a user's own: what they may use, and that nothing but them reaches the model."""

import asyncio
import json
import shutil
from contextlib import closing
from types import SimpleNamespace

import pytest
from builders import config_of, trajectory

from rlanything.config.checks import check
from rlanything.config.schema import Config, DatasetConfig, ExperimentConfig, ModelConfig, RolloutConfig
from rlanything.domains.registry import make_domain
from rlanything.domains.templates import Template, load_templates
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.errors import ConfigError
from rlanything.plan.prompts import check_templates
from rlanything.rollout.history import History
from rlanything.types import Direction

POLICY = """\
<|user|>{{ first }}
{% for step in steps %}
{{ loop.index }}. of {{ step.actions | length }}: {{ step.action }} -> {{ step.observation }}
{% endfor %}
{% for action in actions %}
{{ loop.index0 }}) {{ action }}
{% endfor %}
<|assistant|>"""


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "prompts"
    made.mkdir()
    return made


def alfworld(world, folder, tmp_path):
    dataset = DatasetConfig(path=str(world.games), prompt=str(folder))
    experiment = ExperimentConfig(name="t", output_dir=str(tmp_path))
    return make_domain(Config(dataset=dataset, experiment=experiment, rollout=RolloutConfig(history="paper")))


def test_a_raw_template_is_the_whole_prompt_and_is_rendered_anew_for_every_turn(world, folder, tmp_path):
    (folder / "policy.raw.jinja").write_text(POLICY)
    domain, chat = alfworld(world, folder, tmp_path), Chat(ModelConfig(path=str(world.model)))
    [task, *_] = domain.tasks("train")

    async def play():
        env = domain.make_env(task)
        first = await env.reset()
        history = History(chat, domain, task, first, "paper")
        before = history.prompt([], [])
        action = first.actions[0]
        after = await env.step(action)
        step = SimpleNamespace(response=f"I say \\boxed{{{action}}}", action=action, observation=after)
        return first, after, before, history.prompt([SimpleNamespace()], [step])

    first, after, before, then = asyncio.run(play())
    shown = "".join(f"{i}) {a}\n" for i, a in enumerate(first.actions))
    (folder / "policy.raw.jinja").write_text("{{ first }}\n")
    ends = alfworld(world, folder, tmp_path).asked(task, first, ())[0]["content"]
    assert ends == f"{first.text}\n", "a raw prompt ends as its file does"
    assert before.ids == chat.encode(f"<|user|>{first.text}\n{shown}<|assistant|>")
    lines = chat.tokenizer.decode(then.ids).splitlines()
    assert f"1. of {len(first.actions)}: {first.actions[0]} -> {after.text}".splitlines()[0] in lines
    assert lines[-1] == "<|assistant|>" and f"0) {after.actions[0]}" in lines


def test_a_judge_s_template_sees_the_response_with_its_reasoning_and_what_was_possible(world, folder, tmp_path):
    (folder / "judge.jinja").write_text(
        "{{ task }} / {{ steps[-1].response }} / {{ steps[-1].actions | join(', ') }} / {{ number }}"
    )
    (folder / "rewrite.jinja").write_text("{{ direction }} {{ accuracy }} {{ critic }} {{ payload.kind }}")
    domain = alfworld(world, folder, tmp_path)
    [task, *_] = domain.tasks("train")
    episode = trajectory(1, [(), ()])
    episode.turns[1].text, episode.turns[1].actions = "I think so \\boxed{look}", ("look", "go")
    [asked] = domain.judging.asked(task, episode, 1)
    sentence = task.payload["sentence"]
    assert asked == {"role": "user", "content": f"{sentence} / I think so \\boxed{{look}} / look, go / 2"}
    [asked] = domain.rewriting.asked(task, Direction.HARDER, 0.5, "none")
    assert asked["content"] == f"harder 0.5 none {task.payload['kind']}"
    assert domain.asked(task, SimpleNamespace(text="room", actions=()), ())[0]["role"] == "system", "the domain's own"


def test_unit_tests_have_a_template_and_steps_have_none_in_coding(folder, tmp_path):
    row = {"question": "Add.", "test_input": ["1"], "test_output": ["1"]}
    (tmp_path / "train.json").write_text(json.dumps([row]))
    (folder / "test.jinja").write_text("Write a test for: {{ payload.question }}")
    config = config_of("coding", tmp_path)
    config.dataset.prompt = str(folder)
    with closing(make_domain(config)) as domain:
        assert domain.judging.asked(domain.tasks("train")[0])[0]["content"] == "Write a test for: Add."
    (folder / "judge.jinja").write_text("x")
    with pytest.raises(ConfigError, match="judge.jinja: dataset.domain=coding asks for no judge"):
        make_domain(config)


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("policy.jinja", "{{ firsst }}", "policy.jinja uses firsst; it may use task, payload, first"),
        ("policy.jinja", "a\n{% for x in %}", "policy.jinja, line 2"),
        ("polcy.jinja", "x", "polcy.jinja: expected one of policy, judge"),
        ("policy.jinja", b"\xff", "policy.jinja cannot be read"),
    ],
)
def test_a_wrong_template_is_named_before_models_are_loaded(folder, name, text, message):
    (folder / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message):
        load_templates(str(folder))


def test_two_templates_of_a_name_and_none_are_faults(folder):
    with pytest.raises(ConfigError, match="expected full, compact, or a folder with templates: policy.jinja"):
        load_templates(str(folder))
    with pytest.raises(ConfigError, match="found 'ful', expected full"):
        load_templates("ful")
    (folder / "policy.jinja").write_text("x")
    (folder / "policy.raw.jinja").write_text("x")
    with pytest.raises(ConfigError, match="there are two of that name"):
        load_templates(str(folder))


def test_a_template_that_fails_on_a_task_says_where(folder):
    (folder / "judge.jinja").write_text("{{ steps[7].action }}")
    template = Template(folder / "judge.jinja", ("steps",))
    with pytest.raises(ConfigError, match="judge.jinja: "):
        template.messages(steps=[])


def test_a_policy_s_template_asks_for_prompts_that_are_rendered_anew(folder):
    (folder / "policy.jinja").write_text("{{ first }}")
    config = Config(dataset=DatasetConfig(prompt=str(folder)))
    with pytest.raises(ConfigError, match="rollout.history=append_only: the policy's template"):
        check(config, learns=False)


def test_evaluations_that_are_longer_than_episodes_in_training_count_too(folder):
    (folder / "policy.jinja").write_text("{{ first }}")
    config = Config(dataset=DatasetConfig(prompt=str(folder)))
    config.rollout.max_interaction_step, config.evaluation.max_interaction_step = 1, 9
    with pytest.raises(ConfigError, match="rollout.history=append_only: the policy's template"):
        check(config, learns=False)


@pytest.mark.parametrize(
    ("name", "text", "fault"),
    [
        ("policy", "{{ first }}{% for step in steps %}{{ step.reponse }}{% endfor %}", "reponse"),
        ("policy", "{{ payload.sentense }}", "sentense"),
        ("judge", "{{ steps[-1].observed }}", "observed"),
        ("rewrite", "{{ task.name }}", "name"),
    ],
)
def test_a_name_that_a_template_cannot_have_is_found_before_models_are_loaded(
    world, folder, tmp_path, name, text, fault
):
    (folder / f"{name}.jinja").write_text(text)
    with closing(alfworld(world, folder, tmp_path)) as domain:
        with pytest.raises(ConfigError, match=f"{name}.jinja: .*has no attribute '{fault}'"):
            check_templates(domain, domain.tasks("train")[0], {})


def test_a_template_that_takes_real_texts_apart_is_left_to_the_first_real_prompt(world, folder, tmp_path):
    (folder / "policy.jinja").write_text("{{ first.split('Your task is to:')[1] }}")
    with closing(alfworld(world, folder, tmp_path)) as domain:
        check_templates(domain, domain.tasks("train")[0], {})


@pytest.mark.parametrize(
    ("files", "role", "fault"),
    [
        ((), "policy", True),
        (("policy.jinja",), "policy", True),
        (("policy.raw.jinja",), "policy", False),
        (("policy.raw.jinja",), "reward", True),
        (("judge.raw.jinja",), "reward", False),
        (("rewrite.raw.jinja",), "rewriter", False),
    ],
)
def test_a_model_without_a_chat_template_reads_raw_prompts_and_no_others(world, folder, tmp_path, files, role, fault):
    for name in files or ("rewrite.jinja",):
        (folder / name).write_text("{{ task }}")
    shutil.copytree(world.model, tmp_path / "model")
    (tmp_path / "model/chat_template.jinja").unlink()
    chat = Chat(ModelConfig(path=str(tmp_path / "model")))
    with closing(alfworld(world, folder, tmp_path)) as domain:
        task = domain.tasks("train")[0]
        if not fault:
            return check_templates(domain, task, {role: chat})
        with pytest.raises(ChatError, match=r"model: its tokenizer has no chat template; .*NAME.raw.jinja"):
            check_templates(domain, task, {role: chat})
