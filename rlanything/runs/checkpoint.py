"""Checkpoints. They appear by rename, so that a half-written one is never loaded."""

import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from safetensors import SafetensorError

from rlanything.config.section import Learner
from rlanything.errors import RunError
from rlanything.weights.checksum import sealed, unsealed

_META = "meta.json"


class Saveable(Protocol):
    """What a checkpoint needs of a learner: its whole state, and its weights in Hugging Face format."""

    def save(self, folder: Path) -> None: ...
    def load(self, folder: Path) -> None: ...
    def export(self, folder: Path) -> None: ...


def save(root: Path, step: int, learners: Mapping[Learner, Saveable], state: dict[str, Any], keep: int) -> Path:
    """Write `step_NNNNNN/`: each learner's state and export, and `meta.json`. Keep the `keep` newest checkpoints.

    Raises RunError if the disk refuses. The half-written folder is removed, and older checkpoints stay whole.
    """
    final, temporary = root / f"step_{step:06d}", root / f".step_{step:06d}.tmp"
    with writing(final, temporary):
        for left in root.glob(".step_*.tmp"):  # by a process that was killed
            shutil.rmtree(left, ignore_errors=True)
        temporary.mkdir(parents=True)
        for name, learner in learners.items():
            learner.save(temporary / name)
            learner.export(temporary / name / "hf")
        (temporary / _META).write_text(sealed({"step": step, **state}))
        shutil.rmtree(final, ignore_errors=True)
        temporary.rename(final)
    for old in _complete(root)[:-keep]:
        shutil.rmtree(old, ignore_errors=True)
    return final


@contextmanager
def writing(final: Path, temporary: Path) -> Iterator[None]:
    """Remove the half-written folder if the block raises anything. Raises RunError if the disk refuses."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(temporary, ignore_errors=True)
        # torch and safetensors have errors of their own; a RunError, as of a lost rank, is not the disk's fault.
        if isinstance(error, RunError) or not isinstance(error, OSError | RuntimeError | SafetensorError):
            raise
        raise RunError(
            f"{final}: could not be written ({type(error).__name__}: {error}); free space if the "
            "disk is full, then run the same command again"
        ) from error


def latest(root: Path) -> Path | None:
    """The newest whole checkpoint."""
    return max(_complete(root), default=None)


def load(folder: Path, learners: Mapping[Learner, Saveable]) -> dict[str, Any]:
    """Restore the learners. Returns the state that `save` was given, with "step". Raises RunError naming the folder."""
    try:
        state = _state(folder)
        for name, learner in learners.items():
            learner.load(folder / name)
    except RunError:  # such as a lost rank, which is not the checkpoint's fault
        raise
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise RunError(
            f"{folder}: the checkpoint cannot be read ({type(error).__name__}: {error}); "
            "remove that folder to go on from the one before it"
        ) from error
    return state


def _state(folder: Path) -> dict[str, Any]:
    try:
        return unsealed((folder / _META).read_text())
    except KeyError as error:
        raise RunError(
            f"{folder}: the checkpoint has no checksums, as those of older versions; start a new run (another "
            "experiment.name), or go on with the version that made it"
        ) from error


def _complete(root: Path) -> list[Path]:
    return sorted(p for p in root.glob("step_*") if (p / _META).is_file())
