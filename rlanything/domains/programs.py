"""The sandbox of a domain, and the limits that a configuration sets for its programs."""

from rlanything.config.schema import SandboxConfig
from rlanything.sandbox.pool import Sandbox
from rlanything.sandbox.protocol import Execution, Limits

START_S = 1.0  # elapsed time of each program besides what its processor time allows [s]


class Programs:
    """Executes programs. The sandbox starts with the first one, unless `start` was called before."""

    def __init__(self, config: SandboxConfig) -> None:
        self.config = config
        self._sandbox: Sandbox | None = None

    def start(self) -> Sandbox:
        """Return the sandbox, started if need be. Raises SandboxUnavailable and PackagesUnavailable, which end the run:
        no retry helps."""
        if self._sandbox is None:
            self._sandbox = Sandbox(self.config.num_runner, self.config.allow_unisolated, self.config.packages)
        return self._sandbox

    async def run(self, source: str, given: str, time_s: float) -> Execution:
        """Execute a program on its standard input, within `time_s` of processor time [s]."""
        limits = Limits(
            time_s=time_s,
            wall_s=self.longest(time_s),
            memory_mb=self.config.memory_mb,
            output_mb=self.config.output_mb,
            num_thread=self.config.num_thread,
        )
        program, stdin = (text.encode("utf-8", "surrogatepass") for text in (source, given))
        return await self.start().run(program, stdin, limits)

    def longest(self, time_s: float) -> float:
        """The elapsed time that a program with `time_s` of processor time may take [s]."""
        return time_s * self.config.wall_factor + START_S

    def waited_as(self, wall_s: float) -> float:
        """The processor time that allows an elapsed time of `wall_s` [s]."""
        return max(0.0, wall_s - START_S) / self.config.wall_factor

    def close(self) -> None:
        """End the sandbox."""
        if self._sandbox is not None:
            self._sandbox.close()
            self._sandbox = None
