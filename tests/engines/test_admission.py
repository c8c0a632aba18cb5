"""Who waits for a KV cache that cannot hold all sessions, and who must not."""

import asyncio
import random

import pytest

from rlanything.engines.admission import PATIENCE, Admission
from rlanything.engines.base import Completion, EngineError

CAPACITY = 1000


class Requests:
    """An engine under test control: what is served stays under way until `finish`."""

    def __init__(self) -> None:
        self.admission = Admission(CAPACITY)
        self.under_way: dict[str, asyncio.Future[list[Completion]]] = {}
        self.tasks: dict[str, asyncio.Task[list[Completion]]] = {}

    async def ask(self, name: str, prompt: int) -> None:
        def generate() -> asyncio.Future[list[Completion]]:
            self.under_way[name] = asyncio.get_running_loop().create_future()
            return self.under_way[name]

        self.tasks[name] = asyncio.ensure_future(self.admission.serve(name, prompt, 1, generate))
        await self.settle()

    async def finish(self, name: str) -> None:
        self.under_way.pop(name).set_result([])
        await self.settle()

    async def steps(self, num: int) -> None:
        for _ in range(num):
            self.admission.step()
        await self.settle()

    async def settle(self) -> None:
        for _ in range(10):
            await asyncio.sleep(0)


def test_sessions_that_fit_never_wait():
    async def main():
        requests = Requests()
        for i in range(9):
            await requests.ask(f"s{i}", 100)
        assert len(requests.under_way) == 9

    asyncio.run(main())


def test_the_youngest_waits_until_an_older_one_has_ended():
    async def main():
        requests = Requests()
        await requests.ask("old", 500)
        await requests.ask("middle", 300)
        await requests.ask("young", 300)
        assert set(requests.under_way) == {"old", "middle"}
        await requests.finish("middle")
        assert set(requests.under_way) == {"old"}, "it may have another turn: its keys are still wanted"
        await requests.steps(int(PATIENCE) + 1)
        assert set(requests.under_way) == {"old", "young"}

    asyncio.run(main())


def test_an_older_session_that_comes_back_passes_one_that_waits():
    async def main():
        requests = Requests()
        await requests.ask("old", 400)
        await requests.ask("middle", 400)
        await requests.ask("young", 400)
        await requests.steps(1)
        await requests.finish("old")
        await requests.ask("old", 450)
        assert set(requests.under_way) == {"old", "middle"}

    asyncio.run(main())


def test_sessions_that_outgrow_the_cache_take_turns_by_age():
    async def main():
        requests = Requests()
        await requests.ask("old", 400)
        await requests.ask("young", 400)
        await requests.finish("young")
        await requests.ask("young", 600)
        assert set(requests.under_way) == {"old"}

    asyncio.run(main())


def test_a_session_larger_than_the_cache_is_served_alone():
    async def main():
        requests = Requests()
        await requests.ask("huge", 2 * CAPACITY)
        await requests.ask("small", 10)
        assert set(requests.under_way) == {"huge"}
        await requests.finish("huge")
        assert set(requests.under_way) == {"small"}, "nothing is under way: a session that pauses must block nobody"

    asyncio.run(main())


def test_a_request_without_a_session_never_waits():
    async def main():
        requests = Requests()
        await requests.ask("full", CAPACITY)
        await requests.ask("", CAPACITY)
        assert set(requests.under_way) == {"full", ""}

    asyncio.run(main())


def test_a_caller_that_gives_up_leaves_its_place():
    async def main():
        requests = Requests()
        await requests.ask("old", 500)
        await requests.ask("given up", 500)
        await requests.ask("young", 300)
        assert set(requests.under_way) == {"old"}
        requests.tasks["given up"].cancel()
        await requests.settle()
        await requests.steps(int(PATIENCE) + 1)
        assert set(requests.under_way) == {"old", "young"}

    asyncio.run(main())


def test_a_dead_engine_fails_those_who_wait():
    async def main():
        requests = Requests()
        await requests.ask("old", 800)
        await requests.ask("young", 800)
        requests.admission.fail(EngineError("dead"))
        with pytest.raises(EngineError, match="dead"):
            await requests.tasks["young"]

    asyncio.run(main())


def test_no_mix_of_sessions_ever_waits_for_nothing():
    async def main():
        rng = random.Random(0)
        admission = Admission(CAPACITY)
        under_way: dict[str, int] = {}
        ended: list[str] = []

        async def episode(name: str) -> None:
            prompt = rng.randint(10, 100)
            for _ in range(rng.randint(1, 8)):
                await admission.serve(name, prompt, 1, lambda size=prompt: generate(name, size))
                prompt += rng.randint(5, 50)
                for _ in range(rng.randint(0, 3)):
                    await asyncio.sleep(0)
            ended.append(name)

        async def generate(name: str, prompt: int) -> list[Completion]:
            under_way[name] = prompt
            for _ in range(rng.randint(1, 20)):
                await asyncio.sleep(0)
            del under_way[name]
            return []

        async def engine() -> None:
            while True:
                await asyncio.sleep(0)
                if under_way:
                    admission.step()

        stepping = asyncio.ensure_future(engine())
        await asyncio.wait_for(asyncio.gather(*(episode(f"e{i}") for i in range(60))), 30)
        stepping.cancel()
        assert len(ended) == 60

    asyncio.run(main())
