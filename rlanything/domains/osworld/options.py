"""The options of OSWorld (`dataset.options`)."""

from typing import Annotated, Literal

from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from rlanything.config.section import Expected, PathText, Section, Share

BOOT_S = 60.0  # time that a local desktop has to boot
Size = Annotated[
    list[PositiveInt], Field(min_length=2, max_length=2), Expected("[width, height], two whole numbers above 0")
]


class OsworldOptions(Section):
    """OSWorld's own keys."""

    backend: Literal["canvas", "local", "endpoint", "docker"] = "canvas"
    """Desktops: drawn ones, real ones on this machine, any guests of OSWorld at the addresses of `endpoints`, or
    containers of `docker_image`."""
    max_screens: PositiveInt = 3
    """Screens that a prompt of `rollout.history: paper` shows."""
    max_instruction: PositiveInt = 300
    """Longest instruction that the rewriter may write [characters]."""
    infeasible: Share = 0.1
    """Share of drawn and generated desktops with a task that cannot be done, and the largest share of such tasks in a
    split that is trained on. Only `terminate` with failure solves them."""
    size: PositiveInt = 2000
    """Drawn or generated desktops of the training split."""
    eval_size: PositiveInt = 256
    """Drawn or generated desktops of each evaluation split."""
    level: Literal["easy", "middle", "hard"] = "middle"
    """Difficulty of drawn desktops: the way to the goal from the start, and the notices in between."""
    families: str = ""
    """Families of real desktops that a function makes, in the place of a folder's or generated ones: `module:function`.
    It is called with a split's name and yields rows as families.jsonl has them, the same ones each time: every process
    that plays episodes calls it, and a resumed run does again."""
    home: PathText = "data/osworld/desktop"
    """Folder that `scripts/osworld_desktop.sh` filled: what local desktops need."""
    screen: Size = [1920, 1080]
    """Screen of local desktops, and what a plan expects of others [pixels]."""
    desktops: NonNegativeInt = 0
    """Desktops at once in each process that plays episodes. 0 takes two for each core, or all `endpoints`."""
    spares: NonNegativeInt = 1
    """Local desktops that boot while others act."""
    settle_s: NonNegativeFloat = 2.0
    """Longest wait for a screen that stands still, after an action [s]."""
    setup_s: PositiveFloat = 120.0
    """Longest set-up of a task [s]."""
    evaluate_s: PositiveFloat = 180.0
    """Longest evaluation of a task by OSWorld's evaluators [s]."""
    limit_mib: PositiveInt = 512
    """Largest size of each folder that a local desktop writes to, and of its segments of shared memory (shmget) [MiB].
    Folders live in memory, too."""
    memory_mib: PositiveInt = 2048
    """Memory of a local desktop's programs [MiB]. One that takes more is ended, and its episode fails."""
    processes: PositiveInt = 400
    """Processes of a local desktop, likewise."""
    network: bool = False
    """Evaluators may fetch the files that tasks name. Local desktops never reach a network."""
    oracle: PathText = "data/osworld/oracle"
    """Folder that `scripts/osworld_oracle.sh` filled: OSWorld's own evaluators."""
    files: PathText = "data/osworld/files"
    """Folder of the files that OSWorld's tasks name, under the names that its cache gives them."""
    endpoints: list[str] = []
    """Addresses of guests: `host:server port:developer tools' port:VLC's port`."""
    reset_command: list[str] = []
    """Command that resets a guest of `endpoints` before an episode. `{endpoint}` and `{index}` in it are replaced."""
    reset_s: PositiveFloat = 300.0
    """Longest reset of a guest, and longest wait for its first answer [s]."""
    docker_image: str = "happysixd/osworld-docker"
    """Image of the containers."""
    docker_disk: PathText = ""
    """Disk image (qcow2) that the containers mount read-only."""
