"""The closed loop with a model of images: screenshots travel by their content, and every room reads the same pixels."""

import asyncio
import hashlib
import itertools
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from builders import turn as make_turn
from picture_domain import COLUMNS, picture
from runs_helpers import NUM_DEVICE
from tiny_vision import write_vision_model

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import Config, EngineConfig, LearnerConfig, ModelConfig
from rlanything.conversations import encode
from rlanything.domains.parts import Conversation, StepJudging
from rlanything.engines import check_model, start_engine
from rlanything.engines.base import Engine, PromptTooLong, SamplingParams
from rlanything.engines.chat import Chat
from rlanything.learner.deepspeed import Learner
from rlanything.runs.metrics import read_jsonl
from rlanything.runs.store import read_rows
from rlanything.train import train
from rlanything.types import Message, Sample, Task, Trajectory, assistant, user

pytestmark = pytest.mark.integration


LEARNER = LearnerConfig(lr=3e-3, num_update=1, kl_beta=0.0, dtype="float32", betas=[0.9, 0.98])


def taught(chat: Chat, messages: list[Message], answer: str) -> Sample:
    return encode(chat, Conversation(messages=[*messages, assistant(answer)], trained=[False] * len(messages) + [True]))


@pytest.fixture(scope="module")
def shown(tmp_path_factory):
    """A file of the picture of each column."""
    folder = tmp_path_factory.mktemp("shown")
    for column in range(COLUMNS):
        (folder / f"{column}.png").write_bytes(picture(column))
    return [str(folder / f"{column}.png") for column in range(COLUMNS)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory, shown):
    """A model that knows the form of answers, as policy and as judge, and guesses what they should be."""
    root = tmp_path_factory.mktemp("vision")
    model = ModelConfig(path=str(write_vision_model(root / "untaught")))
    chat, judging = Chat(model), StepJudging("compact")
    samples = []
    for column, digit in itertools.product(range(COLUMNS), map(str, range(COLUMNS))):
        asked = [user("Where?", shown[column : column + 1])]
        samples.append(taught(chat, asked, digit))
        samples.append(taught(chat, [*asked, assistant(digit), user("wrong", shown[:1])], digit))
        turn = replace(make_turn(), text=digit, observation="wrong", images=tuple(shown[:1]))
        opened = {"first_observation": "Where?", "first_images": (shown[column],)}
        episode = Trajectory(task_id="q", index=0, turns=[turn], **opened)
        for score in ("\\boxed{1}", "\\boxed{-1}"):
            samples.append(taught(chat, judging.messages(Task(id="q", payload={}), episode, 0), score))
    with closing(Learner(model, LEARNER, 200)) as learner:
        for _ in range(40):
            learner.update_supervised(sample_sets(samples))
        learner.export(root / "taught")
    return root / "taught"


def config_of(folder: Path, output: Path, name: str) -> Config:
    engine = {"dtype": "float32", "max_model_len": 512, "max_num_seqs": 16, "kv_cache_gb": 0.05}
    engine["gpu_memory_utilization"] = 0.1
    learner = {"lr": 1e-3, "num_update": 1, "dtype": "float32", "micro_batch_tokens": 2048, "kl_beta": 0.0}
    learner["zero_stage"] = NUM_DEVICE
    experiment = {"name": name, "output_dir": str(output), "total_step": 2, "save_every": 1, "num_thread": 1}
    return Config.model_validate(
        {
            "experiment": experiment | {"num_device": NUM_DEVICE},
            "model": {role: {"path": str(folder)} for role in ("policy", "reward", "rewriter")},
            "engine": {role: engine for role in ("policy", "reward", "rewriter")},
            "dataset": {"domain": "picture_domain:Pictures", "prompt": "compact"},
            "rollout": {
                "num_trial": 2,
                "num_rollout_per_trial": 4,
                "max_interaction_step": 2,
                "max_response_tokens": 8,
            },
            "algorithm": {"band": [0.0, 1.0]},
            "reward": {"num_evaluation": 2, "max_response_tokens": 24, "band": [0.0, 1.0]},
            "adaptation": {"enabled": False},
            "training": {"policy": learner, "reward": learner},
            "evaluation": {"splits": ["eval"], "num_task": 2},
        }
    )


@pytest.mark.parametrize(
    ("kind", "history"),
    [
        ("vllm", "append_only"),
        pytest.param("transformers", "append_only", marks=pytest.mark.slow),
        pytest.param("vllm", "paper", marks=pytest.mark.slow),
        pytest.param("transformers", "paper", marks=pytest.mark.slow),
    ],
)
def test_a_run_with_screenshots_trains_resumes_and_keeps_each_image_once(folder, tmp_path, kind, history):
    whole, half = (config_of(folder, tmp_path, name) for name in ("whole", "half"))
    for config in (whole, half):
        config.rollout.history = history
        config.engine.policy.kind = config.engine.reward.kind = kind
    train(whole)
    half.experiment.total_step = 1
    train(half)
    half.experiment.total_step = 2
    train(half)
    kept = sorted((tmp_path / "whole/images").rglob("*.png"))
    known = {hashlib.sha256(picture(c)).hexdigest() for c in range(COLUMNS)}
    assert {path.stem for path in kept} == known and not list((tmp_path / "whole/images").rglob(".*"))
    rows = [row for step in (1, 2) for row in read_rows(tmp_path / f"whole/rollouts/step_{step:06d}.parquet")]
    assert rows and all(len(row["first_images"]) == 1 for row in rows)
    for row in rows:
        first, second = row["turns"]
        shown = [*row["first_images"], *first["images"]]
        shown = shown[-1:] if history == "paper" else shown  # the prompt tells what was done, and shows the last screen
        assert [image["path"] for image in second["prompt"]["images"]] == shown
        judged = [image["path"] for j in row["judgements"] for image in j["prompt"]["images"]]
        assert set(judged) <= {*row["first_images"], *first["images"], *second["images"]} and judged
    figures = [r for r in read_jsonl(tmp_path / "whole/metrics.jsonl") if r["phase"] == "train"]
    near = 0.02 if NUM_DEVICE else 1e-4  # a GPU multiplies float32 as TF32
    for figure in figures:  # what the engine sampled from is what the learner trains
        assert figure.get("policy/logprob_abs_diff", 0.0) < near and figure.get("reward/logprob_abs_diff", 0.0) < near
    assert any("policy/logprob_abs_diff" in figure for figure in figures)
    if NUM_DEVICE:  # a GPU's sums differ from run to run
        return
    resumed = [r for r in read_jsonl(tmp_path / "half/metrics.jsonl") if r["phase"] == "train"]
    for ours, theirs in zip(figures, resumed, strict=True):
        same = {k for k in ours if k.startswith(("policy/", "reward/", "rm_", "success")) and "train_s" not in k}
        assert {k: ours[k] for k in same} == {k: theirs[k] for k in same}


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["own process", "replica"])
def test_every_engine_reads_the_same_images(folder, shown, tmp_path, kind):
    model = ModelConfig(path=str(folder))
    settings = EngineConfig(dtype="float32", max_model_len=512, max_num_seqs=8, kv_cache_gb=0.05)
    chat = check_model(model, settings)
    prompts = [chat.prompt([user("Where?", shown[c : c + 2])]) for c in range(COLUMNS - 1)]
    found = []
    other = settings.model_copy(update={"own_process": kind == "own process"})
    for number, (chosen, alone) in enumerate(((settings, False), (other, kind == "replica"))):
        engine = start_engine(model, chosen, 0, tmp_path / f"log{number}", alone=alone)

        async def answers(engine: Engine = engine) -> list[tuple[list[int], list[float]]]:
            sampling = SamplingParams(temperature=1.0, max_tokens=6, stop_token_ids=chat.stop_ids, seed=5)
            asked = (engine.generate(p.ids, sampling, images=p.images) for p in prompts)
            return [(c.token_ids, c.logprobs) for [c] in await asyncio.gather(*asked)]

        with closing(engine), asyncio.Runner() as runner:
            found.append(runner.run(answers()))
    assert [ids for ids, _ in found[0]] == [ids for ids, _ in found[1]]
    for (_, ours), (_, theirs) in zip(*found, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)


@pytest.mark.parametrize("kind", ["vllm", "transformers"])
@pytest.mark.parametrize("lora_rank", [0, pytest.param(16, marks=pytest.mark.slow)])
def test_trained_weights_reach_the_engine_whole_and_it_sees_what_the_learner_sees(
    folder, shown, tmp_path, lora_rank, kind
):
    model = ModelConfig(path=str(folder))
    settings = EngineConfig(kind=kind, dtype="float32", max_model_len=512, max_num_seqs=8, kv_cache_gb=0.05)
    chat = check_model(model, settings)
    prompts = [chat.prompt([user("Where?", shown[c : c + 1])]) for c in range(COLUMNS)]
    lessons = [taught(chat, [user("Where?", shown[c : c + 1])], str(c)) for c in range(COLUMNS)]
    engine = start_engine(model, settings, 0, tmp_path / "log")
    training = LEARNER.model_copy(update={"lora_rank": lora_rank, "lr": 1e-2 if lora_rank else LEARNER.lr})
    with closing(engine), closing(Learner(model, training, 200)) as learner, asyncio.Runner() as runner:

        async def answers() -> list[str]:
            greedy = SamplingParams(temperature=0.0, max_tokens=4, stop_token_ids=chat.stop_ids)
            asked = (engine.generate(p.ids, greedy, images=p.images) for p in prompts)
            return [chat.decode(completion.token_ids) for [completion] in await asyncio.gather(*asked)]

        many = EngineConfig().max_images + 1
        with pytest.raises(PromptTooLong, match=f"a prompt has {many} images, more than max_images={many - 1}"):
            prompt = chat.prompt([user("Where?", shown[:1] * many)])
            runner.run(engine.generate(prompt.ids, SamplingParams(), images=prompt.images))
        before = runner.run(answers())
        for _ in range(400 if lora_rank else 120):
            if learner.update_supervised(sample_sets(lessons))["loss"] < 0.02:
                break
        engine.load_weights(1, learner.weights())
        assert engine.checksum() == learner.checksum(torch.float32)
        assert before != runner.run(answers()) == [str(column) for column in range(COLUMNS)]
