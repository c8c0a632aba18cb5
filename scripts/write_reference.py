"""Write docs/configuration.md, the reference of all keys, from the schema, and the published code's keys into their
page."""

from __future__ import annotations

from pathlib import Path

from rlanything.config.published import PAGE, PUBLISHED
from rlanything.config.reference import TOP, markdown, sections
from rlanything.config.schema import Config
from rlanything.config.sft import SftConfig
from rlanything.config.sweep import SweepConfig
from rlanything.domains.registry import OPTIONS

ROOT = Path(__file__).parents[1]
FILE, THEIRS = ROOT / "docs/configuration.md", ROOT / PAGE
MARK = "<!-- keys -->\n"  # the table follows it
HEAD = """\
# Configuration

Every key of a configuration, with what it takes, its default and its meaning (the unit in brackets). A run reads one
YAML file, then dotted overrides: `rlanything train config=configs/alfworld_rl.yaml training.policy.lr=2e-6`.
`rlanything train --help` prints the same, and `rlanything train --help rollout` one section.

- Text is taken as it is written: `experiment.name=001` is `001`, and `null` or `yes` are words. A `~` at the beginning
  of a path is expanded.
- `${rollout.temperature}` stands for the value of that key, and `${oc.env:HOME}` for a variable of the environment.
- `dataset.options.num_test=4` sets one option, `dataset.options={num_test: 4}` replaces them all.

This file is written by `scripts/write_reference.py`.
"""
SFT = """\
# Warm starts

`rlanything sft config=FILE.yaml` has these keys, and the sections `model`, `dataset` (with its options), `engine` and
`training`, each with the keys above for one model.
"""
SWEEP = """\
# Sweeps

`rlanything sweep config=FILE.yaml` has these keys. `experiments/reasoning.yaml` is an example.
"""


def page() -> str:
    """The text of docs/configuration.md."""
    return f"{HEAD}\n{markdown(sections(Config, OPTIONS))}\n{SFT}\n{markdown({TOP: SftConfig})}" + (
        f"\n{SWEEP}\n{markdown({TOP: SweepConfig})}"
    )


def page_of_theirs() -> str:
    """The text of docs/from-open-agentrl.md, its table of keys written anew."""
    rows = "".join(f"| `{key}` | {ours} |\n" for key, ours in PUBLISHED.items())
    head = "| their key | here |\n| --- | --- |\n"
    return f"{THEIRS.read_text(encoding='utf-8').partition(MARK)[0]}{MARK}\n{head}{rows}"


if __name__ == "__main__":
    FILE.write_text(page(), encoding="utf-8")
    THEIRS.write_text(page_of_theirs(), encoding="utf-8")
