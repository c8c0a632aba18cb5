"""What became of every rewritten task, read from the ledger: a family a root, the most interesting first."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import pyarrow.parquet as pq

from rlanything.runs.folder import RunFolder
from rlanything.runs.metrics import Record, read_jsonl

MAX_FAMILIES = 200  # in the report; the ledger has all
MAX_MEASUREMENTS = 20  # newest accuracies kept a task
MAX_REJECTED = 10  # newest fruitless rewrites kept a task
MAX_SENTENCE = 240  # characters

Node = dict[str, Any]


def lineages(folder: RunFolder, alpha_low: float, alpha_high: float) -> dict[str, Any]:
    """{"families": the roots that have variants, each {"nodes": [...]} with the root first, "total": their number}.

    A node has id, parent, direction, sentence, born (step), verdict (original, accepted, dropped, pending), decided
    (step), accuracy, parent_accuracy, reason, replaced, measured [[step, accuracy]] and rejected
    [[step, toward, reasons]].
    """
    events = read_jsonl(folder.ledger)
    roots = {e["root"] for e in events if e["event"] == "proposed"}
    families: dict[str, dict[str, Node]] = {root: {} for root in roots}
    for event in events:
        if event["root"] in roots:
            _apply(event, families[event["root"]], alpha_low, alpha_high)
    ranked = sorted(families.values(), key=_interest, reverse=True)[:MAX_FAMILIES]
    sentences = _root_sentences(folder, [next(iter(f.values())) for f in ranked])
    for family in ranked:
        root = next(iter(family.values()))
        root["sentence"] = sentences.get(root["id"], root["id"])
        for node in family.values():
            children = [n for n in family.values() if n["parent"] == node["id"]]
            node["replaced"] = node["verdict"] == "accepted" and any(n["verdict"] == "accepted" for n in children)
            node["measured"] = node["measured"][-MAX_MEASUREMENTS:]
            node["rejected"] = node["rejected"][-MAX_REJECTED:]
            if len(node["sentence"]) > MAX_SENTENCE:
                node["sentence"] = f"{node['sentence'][:MAX_SENTENCE]} …"
    return {"families": [{"nodes": list(f.values())} for f in ranked], "total": len(families)}


def _apply(event: Record, family: dict[str, Node], alpha_low: float, alpha_high: float) -> None:
    """Take one ledger event into its family."""
    if not family:  # whatever came first: the root leads its family
        family[event["root"]] = _node(event["root"], "", "original", "original")
    kind, step = event["event"], event["step"]
    node = family.get(event["task"])
    if node is None:
        node = family[event["task"]] = _node(event["task"], event["parent"], event["direction"], "pending")
    if kind == "proposed":
        node |= {"sentence": event["description"], "born": step, "parent_accuracy": event["parent_accuracy"]}
    elif kind == "measured" and event["accuracy"] is not None:
        node["measured"].append([step, round(event["accuracy"], 4)])
    elif kind == "rejected":
        node["rejected"].append([step, event["toward"], event["reasons"]])
    elif kind in ("accepted", "dropped"):
        reason = _reason(event, alpha_low, alpha_high)
        node |= {"verdict": kind, "decided": step, "accuracy": event["accuracy"], "reason": reason}


def _node(task_id: str, parent: str, direction: str, verdict: str) -> Node:
    decision = {"verdict": verdict, "decided": None, "accuracy": None, "parent_accuracy": None, "reason": ""}
    head = {"id": task_id, "parent": parent, "direction": direction, "sentence": task_id, "born": 0}
    return head | decision | {"measured": [], "rejected": []}


def _reason(event: Record, alpha_low: float, alpha_high: float) -> str:
    """The gate's verdict in words (DESIGN section 1, Adaptation)."""
    if event.get("reason") == "unmeasured":
        return "its episodes broke too often to measure it"
    harder = event["direction"] == "harder"
    low, high = (alpha_low, event["parent_accuracy"]) if harder else (event["parent_accuracy"], alpha_high)
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


def _root_sentences(folder: RunFolder, roots: Sequence[Node]) -> dict[str, str]:
    """The ledger has the sentences of variants alone; a root's stands with its episodes."""
    wanted: dict[int, set[str]] = defaultdict(set)
    for root in roots:
        if root["measured"]:
            wanted[root["measured"][-1][0]].add(root["id"])
    found: dict[str, str] = {}
    for step, ids in wanted.items():
        if folder.rollouts(step).exists():
            found |= {k: v for k, v in _descriptions(folder, step) if k in ids}
    return found


def _descriptions(folder: RunFolder, step: int) -> Iterable[tuple[str, str]]:
    table = pq.read_table(folder.rollouts(step), columns=["task_id", "description"])
    return zip(table["task_id"].to_pylist(), table["description"].to_pylist(), strict=True)
