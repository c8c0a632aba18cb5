"""Fetch a published data set from the Hugging Face hub, check it, and write `<out>/<dataset>.json`.

`python data/download.py --dataset CodeContests_train`; data/README.md describes the files. The sets are those of the
published recipes (Gen-Verse on the hub). For dataset.domain=coding: CodeContests_train to train on, and
LiveBench-ReasonFlux, LiveCodeBench and CodeContests to evaluate on. For dataset.domain=reasoning: Open-AgentRL-30K to
train on, aime2024, aime2025, gpqa_diamond and lcb_v6 to evaluate on, and Open-AgentRL-SFT-3K, conversations for
`rlanything sft data=FILE`. A set that the hub shows only to some users needs their HF_TOKEN.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from rlanything.conversations import conversation_of
from rlanything.domains.coding.problems import check_row as check_program
from rlanything.domains.reasoning.problems import check_row as check_problem
from rlanything.domains.rows import read_checked, read_rows
from rlanything.errors import ClearError, ConfigError, TaskError
from rlanything.processes.guard import run_guarded

REACH_S = 10.0  # for the hub to answer

Counts = tuple[list[int], list[str]]
"""Indices of the good rows of a file, and what is wrong with the others."""


def coding(path: Path, skip_bad: bool) -> Counts:
    """Check programming problems. Raises TaskError."""
    found, bad = read_checked(path, "question", check_program, skip_bad)
    return [index for index, _ in found], bad


def reasoning(path: Path, skip_bad: bool) -> Counts:
    """Check problems with an answer. Raises TaskError."""
    found, bad = read_checked(path, "question", check_problem, skip_bad)
    return [index for index, _ in found], bad


def conversations(path: Path, skip_bad: bool) -> Counts:
    """Check conversations. Raises TaskError."""
    kept, bad = [], []
    for index, (where, row) in enumerate(read_rows(path, "messages")):
        try:
            conversation_of(row)
            kept.append(index)
        except ConfigError as error:
            if not skip_bad:
                raise TaskError(f"{path}, {where}: {error}; mend it, or pass --skip-bad") from error
            bad.append(f"{where}: {error}")
    if not kept:
        raise TaskError(f"{path}: holds no conversation ({len(bad)} bad rows)")
    return kept, bad


@dataclass(frozen=True)
class Source:
    """The place of a set on the hub, and the function that checks it."""

    repository: str  # of Gen-Verse
    file: str  # a pattern that one of its files matches
    check: Callable[[Path, bool], Counts]


EVAL = "Open-AgentRL-Eval"
SOURCES = {
    "CodeContests_train": Source("CodeContests_train", "train/CodeContests_train.json", coding),
    "LiveBench-ReasonFlux": Source("LiveBench-ReasonFlux", "test/LiveBench-ReasonFlux.json", coding),
    "LiveCodeBench": Source("LiveCodeBench", "test/LiveCodeBench.json", coding),
    "CodeContests": Source("CodeContests", "test/CodeContests.json", coding),
    "Open-AgentRL-30K": Source("Open-AgentRL-30K", "Open-AgentRL-30K.parquet", reasoning),
    "aime2024": Source(EVAL, "aime2024/*.parquet", reasoning),
    "aime2025": Source(EVAL, "aime2025/*.parquet", reasoning),
    "gpqa_diamond": Source(EVAL, "gpqa*/*.parquet", reasoning),
    "lcb_v6": Source(EVAL, "livecodebench-v6/*.parquet", reasoning),
    "Open-AgentRL-SFT-3K": Source("Open-AgentRL-SFT-3K", "*.parquet", conversations),
}


class DownloadError(ClearError, RuntimeError):
    """The hub did not give the file: the message says why and what to do."""


def fetch(dataset: str) -> Path:
    """The set's file in the hub's cache. Raises DownloadError."""
    from huggingface_hub import HfApi, constants, get_session, hf_hub_download

    source = SOURCES[dataset]
    repository = f"Gen-Verse/{source.repository}"
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)  # the download itself would try again and again
        names = HfApi().list_repo_files(repository, repo_type="dataset")
        matching = [name for name in names if fnmatch(name, source.file)]
        if len(matching) != 1:
            raise FileNotFoundError(f"it has {', '.join(matching or names)}")
        return Path(hf_hub_download(repository, matching[0], repo_type="dataset"))
    except Exception as error:  # the library raises its own errors and those of the library below it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DownloadError(
            f"{dataset}: the Hugging Face hub did not give {source.file} of {repository} ({reason}). With no network "
            "here, run this where there is one and copy the file; HF_ENDPOINT names a mirror, HF_TOKEN an account. Any "
            "file of the form that data/README.md describes will do instead."
        ) from error


def download(dataset: str, out: Path, skip_bad: bool) -> None:
    """Fetch, check, write. Raises DownloadError, TaskError."""
    fetched, source = fetch(dataset), SOURCES[dataset]
    kept, skipped = source.check(fetched, skip_bad)
    rows = [row for _, row in read_rows(fetched, "messages" if source.check is conversations else "question")]
    out.mkdir(parents=True, exist_ok=True)
    target, part = out / f"{dataset}.json", out / f"{dataset}.json.part"
    part.write_text(json.dumps([rows[index] for index in kept]), encoding="utf-8")
    part.replace(target)
    left_out = f"; {len(skipped)} rows left out, the first: {skipped[0]}" if skipped else ""
    print(f"{target}: {len(kept)} rows{left_out}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, choices=list(SOURCES))
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder to write to (default: data)")
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that are no problems; else refuse them")
    args = parser.parse_args()
    try:
        download(args.dataset, args.out, args.skip_bad)
    except TaskError as error:
        if args.skip_bad or "skip_bad" not in str(error):
            raise
        raise DownloadError(str(error).replace("set dataset.options.skip_bad=true", "pass --skip-bad")) from error


if __name__ == "__main__":
    run_guarded(main, "fetches it anew")
