"""Families of tasks on real desktops, as files hold them: OSWorld's tasks, the published families, and users' own."""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import Any

from rlanything.domains.osworld.actions import Action, InvalidAction, read_arguments
from rlanything.domains.osworld.desktops.verify import FIELDS, KINDS
from rlanything.errors import TaskError

TASKS, FAMILIES = "tasks.jsonl", "families.jsonl"  # OSWorld's tasks; the published families and users' own
OWN_STEPS: Mapping[str, tuple[str, ...]] = {  # set-up steps that need none of OSWorld's code, and what each needs
    "execute": ("command",),
    "command": ("command",),
    "launch": ("command",),
    "open": ("path",),
    "write": ("path",),
    "activate_window": ("window_name",),
    "close_window": ("window_name",),
    "wait_window": ("title",),
    "sleep": ("seconds",),
}
PARAMETERS: Mapping[str, Any] = {
    "command": (str, list),
    "path": str,
    "window_name": str,
    "title": str,
    "seconds": (int, float),
}
ONLY_OWN = frozenset(("write", "wait_window"))  # OSWorld's controller does not know these
STEPS = frozenset(OWN_STEPS) | frozenset(
    "download chrome_open_tabs chrome_close_tabs login googledrive update_browse_history change_wallpaper "
    "execute_with_verification".split()
)
INFEASIBLE = "infeasible"
ADMISSION = "admission_"  # begins the names of files that keep which verifiers can be used (admission.py)
UNSEEN = ("chrome", "multi_apps")  # applications that the published training tasks leave out


@dataclass(frozen=True, kw_only=True)
class Verifier:
    """One thing that can be asked for on a desktop."""

    instruction: str
    evaluator: Mapping[str, Any]
    """OSWorld's (`func`, ...), or our own checks (`checks`)."""
    solution: tuple[Action, ...] = ()
    """A scripted way to it; empty if there is none."""

    @property
    def feasible(self) -> bool:
        return self.evaluator.get("func") != INFEASIBLE

    @property
    def checks(self) -> list[Mapping[str, Any]] | None:
        """Our own checks; None if OSWorld's evaluators decide."""
        return self.evaluator.get("checks")


@dataclass(frozen=True, kw_only=True)
class Family:
    """A desktop's set-up, and the verifiers of it."""

    id: str
    application: str
    """The program that it is about; tables are broken down by it."""
    config: tuple[Mapping[str, Any], ...]
    """Set-up steps: `{"type": ..., "parameters": {...}}`."""
    verifiers: Mapping[str, Verifier]
    current: str
    """The name of the verifier that the task asks for at first."""

    published: bool = False
    """The task is OSWorld's, or of the published families: its set-up counts on OSWorld's controller."""

    @property
    def oracle_sets_up(self) -> bool:
        """True if OSWorld's own code sets the desktop up."""
        return self.published or any(step["type"] not in OWN_STEPS for step in self.config)

    @property
    def needs_oracle(self) -> bool:
        """True if set-up or a verifier needs OSWorld's own code."""
        return self.oracle_sets_up or any(v.checks is None and v.feasible for v in self.verifiers.values())


def read_splits(folder: Path) -> tuple[Mapping[str, Family], Mapping[str, list[str]]]:
    """(families by id, ids by split) of a folder.

    It holds tasks.jsonl or OSWorld's `examples/<application>/<id>.json`; families.jsonl or the published
    `new_examples/<application>/<id>.json`; or tasks and families; and lists of ids by
    application, `<split>.json`. An id means the task, or the family if there is no task with it; in splits whose name
    begins with "train" it means the family if there is one.
    Without lists the one split is `train`. For each other list there are the splits <split>_in_distribution and
    <split>_out_of_distribution, which are about the applications of UNSEEN. Raises TaskError.
    """
    if not folder.is_dir():
        raise TaskError(f"{folder}: no such folder; dataset.path names the folder of OSWorld's tasks")
    rows = _rows(folder / TASKS) or _examples(folder / "examples")
    made = _rows(folder / FAMILIES) or [row for row in _examples(folder / "new_examples") if "evaluator_list" in row[1]]
    tasks, families = _by_id(rows), _by_id(made)
    if not tasks and not families:
        raise TaskError(f"{folder}: holds neither {TASKS} nor examples/ nor {FAMILIES}; docs/osworld.md describes them")
    known = {**tasks, **{f"family/{name}": family for name, family in families.items()}}
    splits: dict[str, list[str]] = {}
    for path in sorted(folder.glob("*.json")):
        if path.name.startswith(ADMISSION):
            continue
        if (ids := _ids(path)) is None:  # another file
            continue
        prefer = path.stem.startswith("train")
        found = [f"family/{i}" if i in families and (prefer or i not in tasks) else i for i in ids]
        if missing := [i for i in found if i not in known]:
            raise TaskError(f"{path}: names the task {missing[0]}, which {folder} does not have")
        splits[path.stem] = found
        if not prefer:
            for name, out in (("in_distribution", False), ("out_of_distribution", True)):
                splits[f"{path.stem}_{name}"] = [i for i in found if (known[i].application in UNSEEN) is out]
    return known, splits or {"train": [f"family/{i}" for i in families] or list(tasks)}


def _by_id(rows: Iterable[tuple[str, Any]]) -> dict[str, Family]:
    """The families of (place, row) by their ids. Raises TaskError if two have one id."""
    found: dict[str, Family] = {}
    for where, row in rows:
        family = read_family(row, where)
        if family.id in found:
            raise TaskError(f"{where}: another row has the id {family.id}, too")
        found[family.id] = family
    return found


def made_by(function: Callable[[str], Iterable[Any]], name: str, split: str) -> list[Family]:
    """The families of a split that a user's function yields. Raises TaskError, which says what it yields wrong."""
    where = f"dataset.options.families={name}, split {split}"
    try:
        rows = list(function(split))
    except Exception as error:
        line = extract_tb(error.__traceback__)[-1]
        raise TaskError(
            f"{where}: {line.filename}, line {line.lineno}: {type(error).__name__}: {error}; expected a function of a "
            "split's name that yields rows as families.jsonl has them"
        ) from error
    found = [read_family(row, f"{where}, row {number}") for number, row in enumerate(rows, 1)]
    if not found:
        raise TaskError(f"{where}: it yields no family; expected one or more for every split that is used")
    if twice := [name for name, num in Counter(f.id for f in found).items() if num > 1]:
        raise TaskError(f"{where}: two families have the id {twice[0]}")
    return found


def _ids(path: Path) -> list[str] | None:
    """The ids of a split's file, {application: [id, ...]}; None if it is no such file."""
    found = _parsed(path)
    lists: list[Any] = list(found.values()) if isinstance(found, dict) and found else [None]
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in lists):
        return None
    return [name for names in lists for name in names]


def _examples(folder: Path) -> list[tuple[str, Any]]:
    """(place, row) of <application>/<id>.json. OSWorld knows tasks by the names of their files: one is a stray copy."""
    found = [(path, _parsed(path)) for path in sorted(folder.glob("*/*.json"))]
    return [
        (str(path), {"domain": path.parent.name, **row, "id": path.stem})
        for path, row in found
        if isinstance(row, dict) and "id" in row
    ]


def _rows(path: Path) -> list[tuple[str, Any]]:
    if not path.is_file():
        return []
    rows = []
    for number, line in enumerate(path.read_bytes().split(b"\n"), 1):
        if line.strip():
            try:
                rows.append((f"{path}, line {number}", json.loads(line)))
            except ValueError as error:
                raise TaskError(f"{path}, line {number}: no JSON ({error})") from error
    return rows


def _parsed(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except ValueError as error:
        raise TaskError(f"{path}: no JSON ({error})") from error


def read_family(row: Any, where: str) -> Family:
    """A family from any of the three forms. Raises TaskError, which begins with `where`."""

    def need(name: str, kind: type) -> Any:
        if not isinstance(row, dict) or not isinstance(row.get(name), kind) or row[name] in ("", {}, []):
            raise TaskError(f"{where}: {name} is missing, or no {kind.__name__}")
        return row[name]

    family = str(need("id", str))
    if "evaluator_list" in row:  # the published form
        evaluators, words, now = need("evaluator_list", dict), need("task_template", dict), need("current_task", dict)
        if set(evaluators) != set(words) or len(now) != 1 or not set(now) <= set(words):
            raise TaskError(f"{where}: task_template, evaluator_list and current_task do not name the same verifiers")
        found = {name: {"instruction": words[name], "evaluator": evaluators[name]} for name in words}
        [current] = now
        found[current]["instruction"] = now[current]
    elif "verifiers" in row:
        found, current = need("verifiers", dict), row.get("current") or next(iter(need("verifiers", dict)))
        if not isinstance(current, str) or current not in found:
            raise TaskError(f"{where}: current names {current}, which is none of the verifiers {', '.join(found)}")
    else:  # a task of OSWorld
        found = {"evaluator1": {"instruction": need("instruction", str), "evaluator": need("evaluator", dict)}}
        current = "evaluator1"
    return Family(
        id=family,
        application=str(row.get("domain") or row.get("application") or "desktop"),
        config=_config(row.get("config") or [], "verifiers" in row, where),
        verifiers={name: _verifier(value, f"{where}: verifier {name}") for name, value in found.items()},
        current=current,
        published="verifiers" not in row,
    )


def _config(steps: Any, own: bool, where: str) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(steps, list):
        raise TaskError(f"{where}: config: found {steps!r:.60}, expected a list of set-up steps")
    read = tuple(_step(step, f"{where}: set-up step {i}") for i, step in enumerate(steps, 1))
    kinds = {step["type"] for step in read}
    if own and kinds - set(OWN_STEPS) and kinds & ONLY_OWN:
        raise TaskError(
            f"{where}: config mixes {', '.join(sorted(kinds - set(OWN_STEPS)))}, which OSWorld's controller takes, "
            f"with {', '.join(sorted(kinds & ONLY_OWN))}, which it does not know"
        )
    return read


def _step(step: Any, where: str) -> Mapping[str, Any]:
    if not isinstance(step, dict) or not isinstance(step.get("parameters"), dict):
        raise TaskError(f'{where}: expected {{"type": ..., "parameters": {{...}}}}')
    if not isinstance(step.get("type"), str) or step["type"] not in STEPS:
        raise TaskError(f"{where}: found type {step.get('type')!r}, expected one of {', '.join(sorted(STEPS))}")
    for name in OWN_STEPS.get(step["type"], ()):
        if name not in step["parameters"]:
            raise TaskError(f"{where} ({step['type']}): the parameter {name} is missing")
        if not isinstance(step["parameters"][name], PARAMETERS[name]):
            raise TaskError(f"{where} ({step['type']}): {name}: found {step['parameters'][name]!r:.60}")
    return step


def _verifier(value: Any, where: str) -> Verifier:
    if not isinstance(value, dict) or not str(value.get("instruction") or "").strip():
        raise TaskError(f"{where}: instruction is missing")
    evaluator = value.get("evaluator")
    if not isinstance(evaluator, dict) or not ("func" in evaluator or "checks" in evaluator):
        raise TaskError(f"{where}: evaluator needs func (OSWorld's evaluators) or checks (our own)")
    if not isinstance(evaluator.get("checks", []), list) or not isinstance(evaluator.get("func", ""), str | list):
        raise TaskError(f"{where}: evaluator: checks must be a list, func a text or a list")
    for number, check in enumerate(evaluator.get("checks") or (), 1):
        if not isinstance(check, dict) or not isinstance(check.get("kind"), str) or check["kind"] not in KINDS:
            raise TaskError(f"{where}: check {number}: kind is none of {', '.join(KINDS)}")
        if missing := [name for name in KINDS[check["kind"]][0] if name not in check]:
            raise TaskError(f"{where}: check {number} ({check['kind']}): {missing[0]} is missing")
        if wrong := [name for name in KINDS[check["kind"]][0] if not isinstance(check[name], FIELDS.get(name, (str,)))]:
            raise TaskError(f"{where}: check {number} ({check['kind']}): {wrong[0]}: found {check[wrong[0]]!r:.60}")
    if "checks" in evaluator and not evaluator["checks"]:
        raise TaskError(f"{where}: checks is empty")
    steps = value.get("solution") or []
    if not isinstance(steps, list) or not all(isinstance(action, dict) for action in steps):
        raise TaskError(f"{where}: solution: found {steps!r:.60}, expected a list of actions")
    try:
        solution = tuple(read_arguments(action) for action in steps)
    except InvalidAction as error:
        raise TaskError(f"{where}: solution: {error}") from error
    return Verifier(instruction=str(value["instruction"]), evaluator=evaluator, solution=solution)
