"""Fetch a set of coding problems from the Hugging Face hub, check it, and write `<out>/<dataset>.json`.

`python data/download.py --dataset CodeContests_train`; data/README.md describes the file. The sets are those of the
published recipe (Gen-Verse on the hub): CodeContests_train to train on; LiveBench-ReasonFlux, LiveCodeBench and
CodeContests to evaluate on.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rlanything.domains.coding.problems import read_problems
from rlanything.domains.rows import read_rows
from rlanything.errors import ClearError, TaskError
from rlanything.processes.guard import run_guarded

FILES = {  # of the repositories Gen-Verse/<dataset>
    "CodeContests_train": "train/CodeContests_train.json",
    "LiveBench-ReasonFlux": "test/LiveBench-ReasonFlux.json",
    "LiveCodeBench": "test/LiveCodeBench.json",
    "CodeContests": "test/CodeContests.json",
}

REACH_S = 10.0  # for the hub to answer


class DownloadError(ClearError, RuntimeError):
    """The hub did not give the file: the message says why and what to do."""


def fetch(dataset: str) -> Path:
    """The set's file in the hub's cache. Raises DownloadError."""
    from huggingface_hub import constants, get_session, hf_hub_download

    try:
        get_session().head(constants.ENDPOINT, timeout=REACH_S)  # the download itself would try again and again
        return Path(hf_hub_download(f"Gen-Verse/{dataset}", FILES[dataset], repo_type="dataset"))
    except Exception as error:  # the library raises its own errors and those of the library below it
        reason = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise DownloadError(
            f"{dataset}: the Hugging Face hub did not give {FILES[dataset]} ({reason}). With no network here, run this "
            "where there is one and copy the file; HF_ENDPOINT names a mirror, HF_TOKEN an account. Any file of the "
            "form that data/README.md describes will do instead."
        ) from error


def download(dataset: str, out: Path, skip_bad: bool) -> None:
    """Fetch, check, write. Raises DownloadError, TaskError."""
    fetched = fetch(dataset)
    found, skipped = read_problems(fetched, skip_bad)
    rows = [row for _, row in read_rows(fetched, "question")]
    out.mkdir(parents=True, exist_ok=True)
    target, part = out / f"{dataset}.json", out / f"{dataset}.json.part"
    part.write_text(json.dumps([rows[index] for index, _ in found]), encoding="utf-8")
    part.replace(target)
    tests = sorted(len(payload["tests"]) for _, payload in found)
    print(
        f"{target}: {len(found)} problems with {tests[0]} to {tests[-1]} tests each"
        + (f"; {len(skipped)} rows left out, the first: {skipped[0]}" if skipped else "")
    )


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", required=True, choices=list(FILES))
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
