"""Fetch a published data set from the Hugging Face hub, check it, and write `<out>/<dataset>.json`.

`python data/download.py --dataset CodeContests_train`; data/README.md describes the files. The sets are those of the
published recipes (Gen-Verse on the hub). For dataset.domain=coding: CodeContests_train to train on, and
LiveBench-ReasonFlux, LiveCodeBench and CodeContests to evaluate on. For dataset.domain=reasoning: Open-AgentRL-30K to
train on, AIME (aime2024 and aime2025), GPQA-Diamond (gpqa_diamond) and LiveCodeBench-v6 (lcb_v6) to evaluate on, and
Open-AgentRL-SFT-3K, conversations for `rlanything sft data=FILE`. A set that the hub shows only to some users needs
their HF_TOKEN.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

from rlanything.conversations import conversation_of
from rlanything.domains.coding.problems import check_row as check_program
from rlanything.domains.reasoning.problems import check_row as check_problem
from rlanything.domains.rows import read_checked, read_rows
from rlanything.errors import ClearError, ConfigError, TaskError
from rlanything.processes.guard import run_guarded

REACH_S = 10.0  # for the hub to answer

Checked = tuple[list[Any], list[str]]
"""The rows of a file that are good, as they are written, and what is wrong with the others."""


def coding(path: Path, skip_bad: bool) -> Checked:
    """Programming problems. Raises TaskError."""
    return _problems(path, check_program, skip_bad)


def reasoning(path: Path, skip_bad: bool) -> Checked:
    """Problems with an answer. Raises TaskError."""
    return _problems(path, check_problem, skip_bad)


def _problems(path: Path, check: Callable[[object], dict[str, Any]], skip_bad: bool) -> Checked:
    found, bad = read_checked(path, "question", check, skip_bad)
    rows = read_rows(path, "question")
    return [rows[index][1] for index, _ in found], bad


def conversations(path: Path, skip_bad: bool) -> Checked:
    """Conversations: their messages and tools, without what Parquet fills in. Raises TaskError."""
    kept, bad = [], []
    for where, row in read_rows(path, "messages"):
        try:
            conversation = conversation_of(row, filled=path.suffix == ".parquet")
            kept.append({"messages": conversation.messages, "tools": conversation.tools})
        except ConfigError as error:
            if not skip_bad:
                raise TaskError(f"{path}, {where}: {error}; mend it, or pass --skip-bad") from error
            bad.append(f"{where}: {error}")
    if not kept:
        first = f"; {bad[0]}" if bad else ""
        raise TaskError(f"{path}: holds no conversation ({len(bad)} bad rows{first})")
    return kept, bad


@dataclass(frozen=True)
class Source:
    """The place of a set on the hub, and the function that checks it."""

    repository: str  # of Gen-Verse
    file: str  # a pattern that one of its files matches
    check: Callable[[Path, bool], Checked]


EVAL = "Open-AgentRL-Eval"
NAMES = {"AIME": ("aime2024", "aime2025"), "GPQA-Diamond": ("gpqa_diamond",), "LiveCodeBench-v6": ("lcb_v6",)}
"""Names of benchmarks, and the sets that they stand for."""
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
    from huggingface_hub import HfApi, constants, errors, get_session, hf_hub_download

    source = SOURCES[dataset]
    repository = f"Gen-Verse/{source.repository}"
    page = f"{constants.ENDPOINT}/datasets/{repository}"
    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)  # the download itself would try again and again
        names = HfApi().list_repo_files(repository, repo_type="dataset")
        matching = [name for name in names if fnmatch(name, source.file)]
        if len(matching) != 1:
            raise FileNotFoundError(f"it has {', '.join(matching or names)}")
        return Path(hf_hub_download(repository, matching[0], repo_type="dataset"))
    except errors.GatedRepoError as error:
        raise DownloadError(
            f"{dataset}: {repository} is a gated data set; accept its terms at {page} with your account, and set "
            "HF_TOKEN to a token of that account"
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise DownloadError(
            f"{dataset}: the Hugging Face hub has no data set {repository}, or hides it from this account; look at "
            f"{page}. If your account sees it, set HF_TOKEN to a token of that account"
        ) from error
    except Exception as error:  # the library raises its own errors and those of the library below it
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DownloadError(
            f"{dataset}: the Hugging Face hub did not give {source.file} of {repository} ({reason}). With no network "
            "here, run this where there is one and copy the file; HF_ENDPOINT names a mirror, HF_TOKEN an account. Any "
            "file of the form that data/README.md describes will do instead."
        ) from error


def download(dataset: str, out: Path, skip_bad: bool) -> None:
    """Fetch, check, write. Raises DownloadError, TaskError."""
    rows, skipped = SOURCES[dataset].check(fetch(dataset), skip_bad)
    out.mkdir(parents=True, exist_ok=True)
    target, part = out / f"{dataset}.json", out / f"{dataset}.json.part"
    # Parquet has dates and bytes, which no field that is read may hold. A null means that a row lacks the field.
    part.write_text(json.dumps(rows, default=lambda value: None), encoding="utf-8")
    part.replace(target)
    left_out = f"; {len(skipped)} rows left out, the first: {skipped[0]}" if skipped else ""
    print(f"{target}: {len(rows)} rows{left_out}")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, choices=[*SOURCES, *NAMES])
    parser.add_argument("--out", type=Path, default=Path("data"), help="folder to write to (default: data)")
    parser.add_argument("--skip-bad", action="store_true", help="leave out rows that are no problems; else refuse them")
    args = parser.parse_args()
    try:
        for dataset in NAMES.get(args.dataset, (args.dataset,)):
            download(dataset, args.out, args.skip_bad)
    except TaskError as error:
        if args.skip_bad or "skip_bad" not in str(error):
            raise
        raise DownloadError(str(error).replace("set dataset.options.skip_bad=true", "pass --skip-bad")) from error


if __name__ == "__main__":
    run_guarded(main, "fetches it anew")
