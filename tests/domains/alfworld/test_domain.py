"""ALFWorld as the loop sees it: prompts, parsing, step labels, rewriting, demonstrations."""

import asyncio
import json
import random
from itertools import islice

import pytest
from alfworld_games.files import load_packed
from builders import config_of
from shared_games import read_game

from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.domains.alfworld.env import SimulatorEnv
from rlanything.domains.alfworld.explorer import Explorer, make_prior
from rlanything.domains.alfworld.game import parse_game
from rlanything.domains.alfworld.goals import TEMPLATES, goals_of, read_sentence, write_sentence
from rlanything.domains.alfworld.model import GoalKind
from rlanything.domains.alfworld.planner import plan
from rlanything.domains.alfworld.prompts import Prompts, facts_of
from rlanything.domains.alfworld.simulator import Episode
from rlanything.domains.answers import parse_score
from rlanything.domains.base import Observation
from rlanything.domains.parts import RejectedTask
from rlanything.errors import TaskError
from rlanything.types import Direction


@pytest.fixture
def domain(world, tmp_path):
    made = AlfworldDomain(config_of("alfworld", world.games, show_actions="here"))
    made.rewriting.waiting, made.rewriting.accepted = tmp_path / "temp_train", tmp_path / "syn_train"
    return made


@pytest.fixture
def games(domain):
    return [domain.games.by_source(t.id) for t in domain.tasks("train")]


@pytest.mark.slow
def test_sentences_of_all_goals_of_a_room_are_read_back(games):
    for game in games[:6]:
        for goal in goals_of(game):
            for variant in range(2):
                assert read_sentence(write_sentence(goal, variant), game) == goal


def test_every_task_type_has_its_two_templates():
    assert set(TEMPLATES) == set(GoalKind)


@pytest.mark.parametrize(
    ("sentence", "reason"),
    [
        ("dance with a mug.", "unparsable"),
        ("put a unicorn in cabinet.", "unknown_object"),
        ("put a {thing} in helicopter.", "unknown_receptacle"),
    ],
)
def test_a_sentence_that_does_not_fit_the_room_is_rejected_with_the_reason(games, sentence, reason):
    thing = next(o for o in games[0].objects if o.pickupable).type.lower()
    with pytest.raises(RejectedTask) as rejected:
        read_sentence(sentence.format(thing=thing), games[0])
    assert rejected.value.reason == reason


def variant_sentence(game):
    """The sentence of some other winnable goal of the room."""
    for goal in goals_of(game):
        if goal != game.goal and plan(Episode(game.with_goal(goal, ""))):
            return write_sentence(goal)
    raise AssertionError("the room has no other goal")


def test_a_variant_is_exported_with_the_new_sentence_and_a_walkthrough_that_wins(domain):
    task = domain.tasks("train")[0]
    sentence = variant_sentence(domain.games.by_source(task.id))
    variant = domain.rewriting.parse(f"easier: \\boxed{{{sentence}}}", task, Direction.EASIER, "v~1")
    assert (variant.parent_id, variant.root_id, domain.describe(variant)) == (task.id, task.id, sentence)
    domain.rewriting.open(variant)
    file = domain.rewriting.waiting / variant.payload["folder"] / "game.tw-pddl"
    text = file.read_text()
    assert sentence in text and domain.describe(task) not in text
    game = read_game(file)
    episode = Episode(game)
    episode.reset()
    for command in game.walkthrough:
        episode.step(command)
    assert episode.won
    first = asyncio.run(domain.make_env(variant).reset())
    assert f"Your task is to: {sentence}" in first.text


def test_an_accepted_variant_moves_to_syn_train_and_a_dropped_one_goes(domain):
    task = domain.tasks("train")[0]
    text = f"\\boxed{{{variant_sentence(domain.games.by_source(task.id))}}}"
    for name, accepted in (("v~1", True), ("v~2", False)):
        variant = domain.rewriting.parse(text, task, Direction.EASIER, name)
        assert not (domain.rewriting.waiting / name).exists(), "parsing writes nothing"
        domain.rewriting.open(variant)
        domain.rewriting.settle(variant, accepted)
        assert not (domain.rewriting.waiting / name).exists()
        assert (domain.rewriting.accepted / name).exists() == accepted


def test_a_variant_that_a_step_dropped_and_a_crash_undid_may_be_accepted_after_all(domain):
    task = domain.tasks("train")[0]
    variant = domain.rewriting.parse(
        f"\\boxed{{{variant_sentence(domain.games.by_source(task.id))}}}", task, Direction.EASIER, "v~1"
    )
    domain.rewriting.settle(variant, accepted=False)
    domain.rewriting.settle(variant, accepted=True)
    assert (domain.rewriting.accepted / "v~1/game.tw-pddl").is_file()


def test_a_variant_that_holds_at_the_start_or_takes_too_long_is_rejected(domain, games):
    task, game = domain.tasks("train")[0], games[0]
    done = next(g for g in goals_of(game) if plan(Episode(game.with_goal(g, ""))) == [])
    long = max(
        (g for g in goals_of(game) if g != game.goal), key=lambda g: len(plan(Episode(game.with_goal(g, ""))) or [])
    )
    for goal, reason, max_step in ((done, "already_solved", 20), (long, "too_long", 2)):
        domain.rewriting.max_step = max_step
        with pytest.raises(RejectedTask) as rejected:
            domain.rewriting.parse(f"\\boxed{{{write_sentence(goal)}}}", task, Direction.EASIER, "v~1")
        assert rejected.value.reason == reason


def test_a_split_is_found_by_the_name_that_alfworld_download_gives_it(world, tmp_path):
    (tmp_path / "valid_seen.jsonl.xz").write_bytes((world.games / "eval_in_distribution.jsonl.xz").read_bytes())
    (tmp_path / "template.json").write_bytes((world.games / "template.json").read_bytes())
    assert len(AlfworldDomain(config_of("alfworld", tmp_path)).tasks("eval_in_distribution")) == 6


def test_a_corrupt_template_of_packed_games_is_named(world, tmp_path):
    (tmp_path / "train.jsonl.xz").write_bytes((world.games / "train.jsonl.xz").read_bytes())
    (tmp_path / "template.json").write_text('{"pddl_domain": ')
    with pytest.raises(TaskError, match=r"template\.json: not the template"):
        AlfworldDomain(config_of("alfworld", tmp_path)).tasks("train")


def test_a_variant_that_a_crash_left_behind_is_written_anew(domain):
    task = domain.tasks("train")[0]
    text = f"\\boxed{{{variant_sentence(domain.games.by_source(task.id))}}}"
    for _ in range(2):
        variant = domain.rewriting.parse(text, task, Direction.EASIER, "v~1")
        domain.rewriting.open(variant)
    domain.rewriting.settle(variant, accepted=True)
    domain.rewriting.settle(variant, accepted=True)


def test_a_variant_of_a_variant_edits_the_variant(domain):
    task = domain.tasks("train")[0]
    sentence = variant_sentence(domain.games.by_source(task.id))
    variant = domain.rewriting.parse(f"\\boxed{{{sentence}}}", task, Direction.EASIER, "v~1")
    prompt = domain.rewriting.messages(variant, Direction.HARDER, 1.0, "")[-1]["content"]
    assert f"Task: {sentence}" in prompt
    with pytest.raises(RejectedTask, match="unchanged"):
        domain.rewriting.parse(f"\\boxed{{{sentence}}}", variant, Direction.HARDER, "v~2")
    grandchild = domain.rewriting.parse(f"\\boxed{{{domain.describe(task)}}}", variant, Direction.HARDER, "v~3")
    assert (grandchild.parent_id, grandchild.root_id) == ("v~1", task.id)


def test_a_proposal_without_a_boxed_task_is_rejected(domain):
    with pytest.raises(RejectedTask, match="no_proposal"):
        domain.rewriting.parse("put a mug in cabinet.", domain.tasks("train")[0], Direction.EASIER, "v")


def test_the_planners_way_is_progress_at_every_step(games):
    for game in games[:8]:
        env = SimulatorEnv(game)

        async def follow(env=env, game=game):
            await env.reset()
            return [await env.step(command) for command in plan(Episode(game))]

        answers = asyncio.run(follow())
        assert [a.label for a in answers] == [1] * len(answers)
        assert answers[-1].done and answers[-1].success


def test_idling_repeating_and_nonsense_are_no_progress(games):
    async def label(commands):
        env = SimulatorEnv(games[0])
        await env.reset()
        for command in commands:
            answer = await env.step(command)
        return answer.label

    goal = games[0].goal
    useful = {r.location for o in games[0].objects if o.type == goal.object_type for r in games[0].places(o)}
    useful |= {r.location for r in games[0].receptacles if r.type == goal.receptacle_type}
    useless = {r.location: r.name for r in games[0].receptacles if r.location not in useful}
    place, other = list(useless.values())[:2]
    assert asyncio.run(label(["look"])) == -1
    assert asyncio.run(label(["fly to the moon"])) == -1
    assert asyncio.run(label([None])) == -1
    assert asyncio.run(label([f"go to {place}", f"go to {other}", f"go to {place}"])) == -1


def test_the_explorer_wins_by_what_it_sees(games):
    prior = make_prior(games)
    wins = 0
    for game in games:
        episode = Episode(game)
        explorer = Explorer(game.goal, episode.reset(), prior, random.Random(0))
        for _ in range(60):
            _, command = explorer.act()
            feedback, won = episode.step(command)
            explorer.observe(command, feedback)
            if won:
                wins += 1
                break
    assert wins == len(games)


@pytest.mark.parametrize(
    ("text", "score"),
    [
        (r"good \boxed{1}", 1),
        (r"\boxed{-1}", -1),
        (r"\boxed{+1}", 1),
        (r"\boxed{0}", None),
        (r"1", None),
        (r"\boxed{1} or \boxed{-1}", -1),
        (r"\boxed{1.0}", 1),
    ],
)
def test_scores_are_parsed_strictly(text, score):
    got, problem = parse_score(text)
    assert got == score and bool(problem) == (score is None)


def test_actions_are_parsed_from_the_last_box_and_numbers_only_where_commands_are_listed():
    observation = Observation("", actions=("look", "go to bed 1"))
    listed, unlisted = Prompts("compact", "all"), Prompts("compact", "here")
    assert unlisted.parse_action(r"\boxed{look} no, \boxed{go  to bed 1}", observation).action == "go to bed 1"
    assert unlisted.parse_action(r"\boxed{2}", observation).action == "2"
    assert listed.parse_action(r"\boxed{2}", observation).action == "go to bed 1"
    assert listed.parse_action(r"\boxed{3}", observation).action is None
    assert listed.parse_action("go to bed 1", observation).action is None
    assert listed.parse_action(r"\boxed{}", observation).error


def test_demonstrations_of_all_roles_never_mark_wrong_actions_in_the_text(domain):
    for role in ("policy", "reward", "rewriter"):
        for conversation in islice(domain.demonstrations(role, "train", 0), 20):
            assert any(conversation.trained)
            roles = [m["role"] for m in conversation.messages]
            assert all(r == "assistant" for r, t in zip(roles, conversation.trained, strict=True) if t)
    acts = list(islice(domain.demonstrations("policy", "train", 0), 60))
    wrong = [m for c in acts for m, t in zip(c.messages, c.trained, strict=True) if m["role"] == "assistant" and not t]
    assert wrong and all(m["content"].endswith("}") for m in wrong)


def test_facts_list_what_can_be_used_and_where(games):
    facts = facts_of(games[0])
    thing = next(o for o in games[0].objects if o.pickupable and games[0].places(o))
    assert thing.type.lower() in facts and games[0].places(thing)[0].type.lower() in facts


def test_missing_games_and_corrupt_files_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("ALFWORLD_DATA", raising=False)
    with pytest.raises(TaskError, match="dataset.path: empty"):
        AlfworldDomain(config_of("alfworld"))
    with pytest.raises(TaskError, match="no games of split 'train'"):
        AlfworldDomain(config_of("alfworld", tmp_path)).tasks("train")
    folder = tmp_path / "json_2.1.1" / "train" / "a" / "trial"
    folder.mkdir(parents=True)
    (folder / "game.tw-pddl").write_text(json.dumps({"grammar": "x"}))
    with pytest.raises(TaskError, match="game.tw-pddl: not a game"):
        AlfworldDomain(config_of("alfworld", tmp_path)).tasks("train")


def test_games_that_alfworld_itself_leaves_out_are_left_out_and_counted(world, tmp_path, caplog):
    game = next(load_packed(world.games / "train.jsonl.xz"))
    for name, solvable in (
        ("pick-Mug-1", True),
        ("pick-Mug-movable-1", True),
        ("pick-MugSliced-1", True),
        ("b", False),
    ):
        folder = tmp_path / "json_2.1.1" / "train" / name / "trial"
        folder.mkdir(parents=True)
        (folder / "game.tw-pddl").write_text(json.dumps(game.data | {"solvable": solvable}))
        (folder / "traj_data.json").write_text(json.dumps(game.traj))
    tasks = AlfworldDomain(config_of("alfworld", tmp_path)).tasks("train")
    assert [t.id for t in tasks] == ["train/pick-Mug-1/trial"]
    assert "split train: 2 games are left out: text games cannot state their tasks" in caplog.text
    assert "split train: 1 games are left out: they are not marked as solvable, the first: train/b/trial" in caplog.text


def test_accepted_variants_are_a_split_of_their_own(world, tmp_path):
    domain = AlfworldDomain(config_of("alfworld", world.games))
    domain.rewriting.accepted = tmp_path / "json_2.1.1" / "run" / "syn_train"
    task = domain.tasks("train")[0]
    text = f"\\boxed{{{variant_sentence(domain.games.by_source(task.id))}}}"
    variant = domain.rewriting.parse(text, task, Direction.EASIER, "v~1")
    domain.rewriting.settle(variant, accepted=True)
    loaded = AlfworldDomain(config_of("alfworld", tmp_path))
    [again] = loaded.tasks("run/syn_train")
    assert loaded.describe(again) == domain.describe(variant)
    assert loaded.games.of(again).goal == domain.games.of(variant).goal


def test_a_game_whose_sentence_is_of_another_goal_is_restated(world, tmp_path, caplog):
    game = next(load_packed(world.games / "train.jsonl.xz"))
    parsed = parse_game(game.data, game.path)
    folder = tmp_path / "json_2.1.1" / "train" / "a" / "trial"
    folder.mkdir(parents=True)
    stale = write_sentence(next(goal for goal in goals_of(parsed) if goal != parsed.goal))
    data = game.data | {"grammar": game.data["grammar"].replace(parsed.sentence, stale)}
    (folder / "game.tw-pddl").write_text(json.dumps(data))
    (folder / "traj_data.json").write_text(json.dumps(game.traj))
    domain = AlfworldDomain(config_of("alfworld", tmp_path))
    first = asyncio.run(domain.make_env(domain.tasks("train")[0]).reset())
    assert stale not in first.text and write_sentence(parsed.goal) in first.text
    assert "its sentence" in caplog.text and repr(stale) in caplog.text
