"""The history of every rewritten task, read from the ledger: a family for each original, the most interesting first."""

from collections.abc import Sequence
from typing import Any

import pyarrow.parquet as pq

from rlanything.config.schema import AdaptationConfig
from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Record, read_jsonl

MAX_FAMILIES = 200  # in the report; the ledger has all
MAX_MEASUREMENTS = 20  # newest accuracies kept of a task
MAX_REJECTED = 10  # newest rejected rewrites kept of a task
MAX_SENTENCE = 240  # characters

Node = dict[str, Any]


def lineages(folder: RunFolder, band: AdaptationConfig) -> dict[str, Any]:
    """{"families": [{"nodes": [...]}], "total": n}: the originals that have variants, each original first in its nodes.

    A node has id, parent, direction, sentence, born (step), verdict (original, accepted, dropped, pending), decided
    (step), accuracy, parent_accuracy, reason, replaced, measured [[step, accuracy]] and rejected
    [[step, toward, reasons]].
    """
    events = read_jsonl(folder.ledger)
    roots = {e["root"] for e in events if e["event"] == "proposed"}
    families: dict[str, dict[str, Node]] = {root: {} for root in roots}
    for event in events:
        if event["root"] in roots:
            _apply(event, families[event["root"]], band)
    ranked = sorted(families.values(), key=_interest, reverse=True)[:MAX_FAMILIES]
    sentences = _descriptions(folder, [next(iter(f.values())) for f in ranked])
    for family in ranked:
        root = next(iter(family.values()))
        root["sentence"] = sentences.get(root["id"], root["id"])
        replaced = {node["parent"] for node in family.values() if node["verdict"] == "accepted"}
        for node in family.values():
            node["replaced"] = node["verdict"] == "accepted" and node["id"] in replaced
            node["measured"] = node["measured"][-MAX_MEASUREMENTS:]
            node["rejected"] = node["rejected"][-MAX_REJECTED:]
            if len(node["sentence"]) > MAX_SENTENCE:
                node["sentence"] = f"{node['sentence'][:MAX_SENTENCE]} …"
    return {"families": [{"nodes": list(f.values())} for f in ranked], "total": len(families)}


def _apply(event: Record, family: dict[str, Node], band: AdaptationConfig) -> None:
    """Record one ledger event in its family, whose first node is the original."""
    if not family:
        family[event["root"]] = _node(event["root"], "", "original", "original")
    kind, step = event["event"], event["step"]
    if event["task"] not in family:
        family[event["task"]] = _node(event["task"], event["parent"], event["direction"], "pending")
    node = family[event["task"]]
    if kind == "proposed":
        node |= {"sentence": event["description"], "born": step, "parent_accuracy": event["parent_accuracy"]}
    elif kind == "measured" and event["accuracy"] is not None:
        node["measured"].append([step, round(event["accuracy"], 4)])
    elif kind == "rejected":
        node["rejected"].append([step, event["toward"], event["reasons"]])
    elif kind in ("accepted", "dropped"):
        node |= {"verdict": kind, "decided": step, "accuracy": event["accuracy"], "reason": _reason(event, band)}


def _node(task_id: str, parent: str, direction: str, verdict: str) -> Node:
    head = {"id": task_id, "parent": parent, "direction": direction, "sentence": task_id, "born": 0}
    decision = {"verdict": verdict, "decided": None, "accuracy": None, "parent_accuracy": None, "reason": ""}
    return head | decision | {"measured": [], "rejected": []}


def _reason(event: Record, band: AdaptationConfig) -> str:
    """The verdict of the gate (`algorithm.tasks.TaskPool.settle`) in words."""
    if event.get("reason") == "unmeasured":
        return "its episodes broke too often to measure it"
    parent = event["parent_accuracy"]
    low, high = (band.alpha_low, parent) if event["direction"] == "harder" else (parent, band.alpha_high)
    word = "lies" if event["event"] == "accepted" else "does not lie"
    return f"solved {_percent(event['accuracy'])}, which {word} between {_percent(low)} and {_percent(high)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g}\u00a0%"


def _interest(family: dict[str, Node]) -> tuple[int, int, int, int]:
    """Accepted variants first, then long chains, many variants, late events."""
    nodes = family.values()
    accepted = sum(n["verdict"] == "accepted" for n in nodes)
    return accepted, max(_depth(n, family) for n in nodes), len(family), max(n["born"] for n in nodes)


def _depth(node: Node, family: dict[str, Node]) -> int:
    depth = 0
    while node["parent"] in family:
        node, depth = family[node["parent"]], depth + 1
    return depth


def _descriptions(folder: RunFolder, roots: Sequence[Node]) -> dict[str, str]:
    """Sentences by task id, read from the newest episodes of every root: the ledger has those of variants alone."""
    found: dict[str, str] = {}
    for step in {root["measured"][-1][0] for root in roots if root["measured"]}:
        if folder.rollouts(step).exists():
            table = pq.read_table(folder.rollouts(step), columns=["task_id", "description"])
            found |= zip(table["task_id"].to_pylist(), table["description"].to_pylist(), strict=True)
    return found
