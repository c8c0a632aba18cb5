"""A small engine of random weights, for tests that play episodes."""

import pytest
from engine_helpers import TINY_ENGINE

from rlanything.config.schema import ModelConfig
from rlanything.engines import start_engine
from rlanything.engines.chat import Chat
from rlanything.engines.chat_model import ChatModel


@pytest.fixture(scope="module")
def model(world, tmp_path_factory):
    config = ModelConfig(path=str(world.model))
    log = tmp_path_factory.mktemp("logs") / "log"
    return ChatModel(start_engine(config, TINY_ENGINE, seed=0, log_path=log), Chat(config))
