"""How evaluations are played."""

from builders import config_of

from rlanything.config.schema import Config
from rlanything.domains.alfworld.domain import AlfworldDomain
from rlanything.evaluation.play import drawn_tasks, evaluation_rollout, evaluation_tasks


def test_an_evaluation_has_limits_and_sampling_of_its_own():
    config = Config()
    config.rollout.max_interaction_step, config.rollout.max_response_tokens, config.rollout.top_p = 40, 512, 0.5
    config.evaluation.max_interaction_step, config.evaluation.temperature = 50, 0.0
    played = evaluation_rollout(config)
    assert (played.max_interaction_step, played.max_response_tokens) == (50, 512)
    assert (played.temperature, played.top_p) == (0.0, 1.0) and config.rollout.max_interaction_step == 40


def test_every_run_of_any_seed_is_evaluated_on_the_same_tasks(world):
    domain = AlfworldDomain(config_of("alfworld", world.games))
    every = evaluation_tasks(domain, "train", 0)
    assert evaluation_tasks(domain, "train", 3) == every[:3] and len(every) > 3
    drawn = {tuple(task.id for task in drawn_tasks(domain, "train", 3, seed)) for seed in range(4)}
    assert len(drawn) > 1, "training episodes to label are drawn by the run's seed"
