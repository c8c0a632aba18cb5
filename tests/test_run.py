"""A run shares the cores among the engines that play."""

import asyncio

import pytest
import torch

from rlanything.config.schema import Config, EngineConfig
from rlanything.run import Run


@pytest.mark.parametrize(("own_process", "threads"), [((), 3), (("reward",), 2), (("policy", "reward"), 1)])
def test_while_episodes_are_played_each_engine_in_a_process_of_its_own_has_a_core(own_process, threads):
    seen = []

    async def collect(batch, on_end):
        seen.append(torch.get_num_threads())
        raise InterruptedError

    run = Run.__new__(Run)  # without engines
    run.cluster, run.models, run._collect = None, {"policy": None, "reward": None}, collect
    run.config = Config()
    for role in own_process:
        setattr(run.config.engine, role, EngineConfig(own_process=True))
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with pytest.raises(InterruptedError):
            asyncio.run(run.collect(None, None))
        assert seen == [threads] and torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)
