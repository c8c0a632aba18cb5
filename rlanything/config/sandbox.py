"""The configuration of the sandbox."""

from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.section import Section


class SandboxConfig(Section):
    """The sandbox, in which the programs that a model writes are executed."""

    allow_unisolated: bool = False
    """Execute programs even if this machine cannot isolate them."""
    num_runner: NonNegativeInt = 0
    """Programs executed at once in each process that plays episodes. 0 takes two for each core."""
    wall_factor: PositiveFloat = 5.0
    """A program may take this many times its problem's limit of processor time, plus one second, of wall time."""
    memory_mb: PositiveInt = 512
    """Memory of a program [MiB]."""
    output_mb: PositiveInt = 16
    """Largest output of a program [MiB]."""
    num_thread: PositiveInt = 32
    """Threads of a program."""
    packages: list[str] = []
    """Packages that programs may import besides the standard library, as pip names them. They are installed once."""
