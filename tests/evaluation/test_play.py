"""How evaluations are played."""

from rlanything.config.schema import Config
from rlanything.evaluation.play import evaluation_rollout


def test_an_evaluation_has_limits_and_sampling_of_its_own():
    config = Config()
    config.rollout.max_interaction_step, config.rollout.max_response_tokens, config.rollout.top_p = 40, 512, 0.5
    config.evaluation.max_interaction_step, config.evaluation.temperature = 50, 0.0
    played = evaluation_rollout(config)
    assert (played.max_interaction_step, played.max_response_tokens) == (50, 512)
    assert (played.temperature, played.top_p) == (0.0, 1.0) and config.rollout.max_interaction_step == 40
