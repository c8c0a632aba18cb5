"""The sinks of `experiment.sinks` watch a run: TensorBoard, W&B and trackio get the figures of metrics.jsonl, too.

A resumed run makes some steps anew. TensorBoard drops what it held of them. W&B takes no step below its last one, so
its figures are drawn over one named `step`, and both values of such a step stay.
"""

import importlib
import logging
import netrc
import os
import secrets
from collections.abc import Callable, Sequence
from typing import Any, Protocol
from urllib.parse import urlsplit

from rlanything.errors import RunError
from rlanything.runs.folder import RunFolder, write_atomic

PROJECT = "rlanything"  # in the sinks that group runs by project
FINISH_S = 120.0  # W&B sends what is left for so long; what it could not send stays in the run's folder (`wandb sync`)

logger = logging.getLogger(__name__)


class Sink(Protocol):
    """Something that watches a run. The runs of trackio have these methods already."""

    def log(self, values: dict[str, float], step: int) -> None: ...
    def finish(self) -> None: ...


class TensorBoard:
    """TensorBoard event files in `<run>/tensorboard`."""

    def __init__(self, folder: RunFolder) -> None:
        self._make = _require("torch.utils.tensorboard", "tensorboard").SummaryWriter
        self._folder = str(folder.path / "tensorboard")
        self._writer: Any = None

    def log(self, values: dict[str, float], step: int) -> None:
        """Write one scalar for each figure. The first call hides what an earlier process wrote from this step on."""
        if self._writer is None:
            self._writer = self._make(self._folder, purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)

    def finish(self) -> None:
        """Flush and close the file."""
        if self._writer is not None:
            self._writer.close()


class WeightsAndBiases:
    """Weights & Biases, set up by its own environment variables (WANDB_API_KEY, WANDB_PROJECT, WANDB_MODE, ...)."""

    def __init__(self, folder: RunFolder) -> None:
        wandb = _require("wandb", "wandb")
        id_file = folder.path / "wandb_id"  # a resumed run goes on under the same id
        if not id_file.exists():
            write_atomic(id_file, secrets.token_hex(8))
        self._run = wandb.init(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=folder.config.experiment.name,
            id=id_file.read_text(),
            resume="allow",
            dir=str(folder.path),
            config=folder.config.model_dump(),
            settings=wandb.Settings(console="off", silent=True, finish_timeout=FINISH_S),
        )
        self._run.define_metric("*", step_metric="step")

    def log(self, values: dict[str, float], step: int) -> None:
        """Send the figures, and `step` as one of them."""
        self._run.log({**values, "step": step})

    def finish(self) -> None:
        """Send what is left, for `FINISH_S` seconds at most."""
        self._run.finish()


def trackio_run(folder: RunFolder) -> Sink:
    """trackio: figures in a local database, which `trackio show` displays."""
    config = folder.config
    return _require("trackio", "trackio").init(
        project=PROJECT, name=config.experiment.name, resume="allow", config=config.model_dump()
    )


SINKS: dict[str, Callable[[RunFolder], Sink]] = {
    "tensorboard": TensorBoard,
    "wandb": WeightsAndBiases,
    "trackio": trackio_run,
}


class Sinks:
    """A run's sinks. Start them before models are loaded: a sink may refuse its key, or find no network."""

    def __init__(self, folder: RunFolder) -> None:
        """Raises RunError naming a sink that cannot start."""
        self._sinks: dict[str, Sink] = {}
        for name in folder.config.experiment.sinks:
            try:
                self._sinks[name] = SINKS[name](folder)
            except RunError:
                self.close()
                raise
            except Exception as error:  # third-party code
                self.close()
                offline = " (WANDB_MODE=offline needs no network)" if name == "wandb" else ""
                raise RunError(
                    f"experiment.sinks: {name!r} cannot start: {type(error).__name__}: {error}; correct its "
                    f"settings, or leave it out{offline}"
                ) from error

    def log(self, values: dict[str, float], step: int) -> None:
        """Give the figures to all sinks. One that fails is told and gets no more: metrics.jsonl has everything."""
        for name, sink in list(self._sinks.items()):
            try:
                sink.log(values, step)
            except Exception as error:  # third-party code
                logger.warning("the sink %r fails and gets no more figures: %r; metrics.jsonl has them", name, error)
                del self._sinks[name]

    def close(self) -> None:
        """Finish all sinks. A fault is only told, because the figures are in metrics.jsonl."""
        for name, sink in self._sinks.items():
            try:
                sink.finish()
            except Exception as error:  # third-party code
                logger.warning("the sink %r could not be finished: %r", name, error)


def check_sinks(names: Sequence[str]) -> None:
    """Raise RunError if a sink's package is not installed, or if wandb would ask for a key. Starts nothing."""
    for name in names:
        package = _require("torch.utils.tensorboard" if name == "tensorboard" else name, name)
        if name == "wandb" and not _has_key(package):
            raise RunError(
                "experiment.sinks names 'wandb', which finds no key: set WANDB_API_KEY, run wandb login, or set "
                "WANDB_MODE=offline"
            )


def _has_key(wandb: Any) -> bool:
    """Say whether W&B needs no key, or finds one in its settings (variables, files) or where `wandb login` writes it.

    Raises RunError if its settings are wrong.
    """
    settings = wandb.Settings(silent=True)
    try:
        settings.update_from_system_settings()
        settings.update_from_env_vars(dict(os.environ))
    except (ValueError, wandb.errors.UsageError) as error:  # pydantic's, and W&B's own
        raise RunError(
            f"experiment.sinks: 'wandb' has wrong settings: {error}; correct WANDB_* or wandb/settings"
        ) from error
    if settings.mode != "online" or settings.api_key or settings.identity_token_file:
        return True
    try:
        hosts = netrc.netrc(os.environ.get("NETRC")).hosts
    except (OSError, netrc.NetrcParseError):
        return False
    return bool({urlsplit(settings.base_url).hostname, "api.wandb.ai"} & hosts.keys())


def _require(module: str, package: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RunError(f"experiment.sinks names {package!r}, which is not installed: pip install {package}") from error
