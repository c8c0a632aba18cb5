"""Tries anew which tasks a backend can be used with: the set-up succeeds, and a desktop that nobody touched scores 0.

`python scripts/osworld_admission.py config=FILE.yaml [split=NAME] [key=value ...]` plays every verifier of the split's
families untouched, whatever is known of them, and keeps the verdicts in `admission_<backend>.json` in `dataset.path`,
or in `admission_<function>_<backend>.json` beside the module of `dataset.options.families`. Runs try what has no
verdict. They leave out what cannot be used, and the rewriter is not offered it.
"""

from __future__ import annotations

import sys
from contextlib import closing

from rlanything.config.load import load_as
from rlanything.config.schema import Config
from rlanything.domains.osworld.desktops.world import DesktopWorld
from rlanything.domains.osworld.domain import OsworldDomain
from rlanything.errors import TaskError
from rlanything.processes.guard import run_guarded


def main() -> None:
    """Try the verifiers of a split."""
    own = [word for word in sys.argv[1:] if word.startswith("split=")]
    config = load_as(Config, [word for word in sys.argv[1:] if word not in own])
    split = own[0].partition("=")[2] if own else config.dataset.train_split
    with closing(OsworldDomain(config)) as domain:
        world = domain.world
        if not isinstance(world, DesktopWorld) or world.admission.path is None:
            raise TaskError(
                "admission is for real desktops with tasks of a folder or a function: set dataset.options.backend, and "
                "dataset.path or dataset.options.families"
            )
        domain.prepare([split])
        families = [task.payload["family"] for task in domain.tasks(split)]
        pairs = [(family, name) for family in families for name in world.families[family].verifiers]
        whys = world.try_verifiers(pairs, lambda line: print(line, flush=True), anew=True)
        print(f"{sum(map(bool, whys.values()))} of {len(whys)} verifiers cannot be used: {world.admission.path}")


if __name__ == "__main__":
    run_guarded(main, "starts anew", versions=False)
