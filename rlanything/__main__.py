"""The command line: `rlanything train | eval | sft | plan | play`, or `python -m rlanything` with the same words.

Modules that take seconds to import (torch, vLLM, Ray, transformers) are imported once the configuration is valid.
"""

import sys
from difflib import get_close_matches
from pathlib import Path

USAGE = """\
usage: rlanything COMMAND config=FILE.yaml [key=value ...]

  train   train policy, reward model and tasks together
  eval    measure a policy on benchmark splits; with policy=script, play the
          scripted solutions instead, which tells whether an environment works;
          `eval --compare RUN_A RUN_B` compares two runs' folders, paired by task
  sft     warm-start one model by supervised fine-tuning
  plan    print the resolved configuration and the plan of a training, or with
          `plan eval` of an evaluation, and start nothing
  sweep   train variants of a configuration with several seeds, and compare them
  play    play a task in the terminal: [split=NAME] [task=ID, number or random]

`rlanything COMMAND --help` prints every key with what it takes, its default and
its meaning; `rlanything COMMAND --help rollout` prints one section."""
COMMANDS = ("train", "eval", "sft", "sweep", "plan", "play")
HELP = {"-h", "--help"}
SCRIPTED = "policy=script"
COMPARE = "--compare"
NEXT_TIME = {  # what the same command does after an interruption
    "train": "goes on from the last checkpoint",
    "eval": "goes on where it stopped",
    "sft": "starts this training anew",
    "sweep": "goes on where it stopped",
}


def main(words: list[str] | None = None, domain: str = "") -> None:
    """Run the words of a command line, by default this process's; exits as `run_guarded` does.

    With a `domain`, a configuration of a domain that is neither that one nor derived from it is refused.
    """
    name, *rest = (sys.argv[1:] if words is None else words) or ["--help"]
    if name in HELP:
        print(USAGE)
        return
    next_time = NEXT_TIME.get(name, "starts anew")
    if name == "plan":
        name = rest.pop(0) if rest[:1] in (["train"], ["eval"]) else "train"
        rest.append("dry_run=true")
    from rlanything.processes.guard import run_guarded  # imported here: the usage need not wait for it

    if HELP & set(rest):
        section = next((word for word in rest if word not in HELP and "=" not in word), "")
        run_guarded(lambda: _print_help(name, section), next_time, versions=False)
    else:
        run_guarded(lambda: _run(name, rest, domain), next_time, versions=name != "play")


def _run(name: str, words: list[str], domain: str) -> None:
    from rlanything.config.load import load_config, load_sft
    from rlanything.domains.registry import check_entry, resolve_options

    match name:  # options are resolved here too, so that bad ones are refused before torch is imported
        case "train":
            config = load_config(words)
            check_entry(config.dataset.domain, domain, name)
            resolve_options(config.dataset)
            from rlanything.train import train

            train(config)
        case "eval" if words[:1] == [COMPARE]:
            _compare(words[1:])
        case "eval":
            given = [word for word in words if word != SCRIPTED]
            config = load_config(given, learns=False)
            check_entry(config.dataset.domain, domain, name)
            resolve_options(config.dataset)
            if SCRIPTED in words:
                from rlanything.evaluation.script import play_scripts
                from rlanything.runs.progress import Progress

                play_scripts(config, Progress())
                return
            from rlanything.evaluation.benchmark import benchmark

            benchmark(config)
        case "sft":
            warm = load_sft(words)
            resolve_options(warm.dataset)
            from rlanything.runs.progress import Progress
            from rlanything.sft import warm_start

            warm_start(warm, Progress())
        case "sweep":
            from rlanything.config.load import load_as
            from rlanything.config.sweep import SweepConfig
            from rlanything.runs.progress import Progress
            from rlanything.sweep.runner import sweep

            sweep(load_as(SweepConfig, words), Progress())
        case "play":
            _play(words)
        case _:
            _refuse(name)


def _compare(runs: list[str]) -> None:
    from rlanything.errors import ConfigError

    if len(runs) != 2:
        raise ConfigError(f"{COMPARE}: found {len(runs)} words after it, expected the folders of two runs")
    from rlanything.evaluation.compare import compare
    from rlanything.runs.progress import Progress

    compare(Path(runs[0]), Path(runs[1]), Progress())


def _play(words: list[str]) -> None:
    from rlanything.config.load import load_as
    from rlanything.config.schema import Config
    from rlanything.play import play

    own = dict(word.split("=", 1) for word in words if word.startswith(("split=", "task=")))
    config = load_as(Config, [word for word in words if word.split("=", 1)[0] not in own])
    play(config, own.get("split", ""), own.get("task", ""))


def _print_help(name: str, section: str) -> None:
    from rlanything.config.reference import help_text, sections
    from rlanything.config.schema import Config
    from rlanything.config.section import Section
    from rlanything.config.sft import SftConfig
    from rlanything.config.sweep import SweepConfig
    from rlanything.domains.registry import OPTIONS

    if name not in COMMANDS:
        _refuse(name)
    schemas: dict[str, type[Section]] = {"sft": SftConfig, "sweep": SweepConfig}
    schema = schemas.get(name, Config)
    reference = help_text(sections(schema, OPTIONS), section)
    print(f"usage: rlanything {name} config=FILE.yaml [key=value ...]\n{reference}")


def _refuse(name: str) -> None:
    from rlanything.errors import ConfigError

    alike = get_close_matches(name, COMMANDS, 1)
    hint = f" (did you mean {alike[0]}?)" if alike else ""
    raise ConfigError(f"command: found {name!r}{hint}, expected one of {', '.join(COMMANDS)}")


if __name__ == "__main__":
    main()
