"""The configuration of a supervised warm start."""

from typing import Annotated

from pydantic import Field, NonNegativeInt, PositiveInt

from rlanything.config.schema import DatasetConfig, EngineConfig, LearnerConfig, ModelConfig
from rlanything.config.section import Expected, PathText, Role, Section, Share


class SftConfig(Section):
    """A warm start of one role's model, measured on tasks that it does not train on."""

    role: Role
    """Role whose demonstrations are learned and measured."""
    model: ModelConfig = ModelConfig()
    """Model to start from."""
    output: Annotated[PathText, Field(min_length=1), Expected("a folder")]
    """Folder of the trained model, in Hugging Face format."""
    seed: NonNegativeInt = 0
    """Seed of every random draw."""
    data: PathText = ""
    """File of conversations, JSON, JSON lines or Parquet, whose rows have `messages` and may have `tools`. The
    assistant's messages are learned. Empty learns the domain's demonstrations."""
    max_tokens: NonNegativeInt = 0
    """Longest conversation of `data` that is learned [tokens]. Longer ones are left out and counted, because a cut one
    would teach to stop in the middle. 0 takes all."""
    num_held_out: NonNegativeInt = 0
    """Conversations of `data` that are not learned, drawn with the seed. Their loss is told with each measure. If it
    rises while the loss of the others falls, the model learns those by heart."""
    policy: ModelConfig = ModelConfig()
    """Policy whose own episodes a reward model learns to judge, by the labels that the environment gives their steps,
    along with the domain's demonstrations if it has any. Empty if it learns from demonstrations alone."""
    num_episode: PositiveInt = 2000
    """Episodes that the policy plays to be learned from."""
    dataset: DatasetConfig = DatasetConfig()
    measure_split: str = "eval_in_distribution"
    """Split that the measure is taken on."""
    num_measure: PositiveInt = 64
    """Tasks that the measure is taken on."""
    max_interaction_step: PositiveInt = 20
    """Longest episode [turns]."""
    max_response_tokens: PositiveInt = 32
    """Longest response [tokens]."""
    batch: PositiveInt = 32
    """Demonstrations of one update."""
    max_update: PositiveInt = 1000
    """Most updates (optimizer steps). The learning-rate schedule spans them."""
    measure_every: PositiveInt = 100
    """Updates between measurements."""
    measure_from: NonNegativeInt = 0
    """First update that is measured. A policy that solves nothing yet makes measurements slow."""
    target: Share = 1.0
    """Training stops when the measure reaches this share."""
    engine: EngineConfig = EngineConfig()
    """Engine of the measurements."""
    training: LearnerConfig = LearnerConfig()
    """The training of the model. Updates, epochs and KL are the warm start's own."""
    num_thread: NonNegativeInt = 0
    """CPU threads. 0 takes all cores."""
