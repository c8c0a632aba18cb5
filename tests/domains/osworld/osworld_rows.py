"""Rows of every form that tasks for real desktops have, and folders of them."""

from __future__ import annotations

import json

OWN = {
    "id": "mine",
    "application": "files",
    "config": [{"type": "write", "parameters": {"path": "~/a", "text": "x"}}],
    "verifiers": {
        "short": {
            "instruction": "Delete a.",
            "evaluator": {"checks": [{"kind": "exists", "path": "~/a", "not": True}]},
            "solution": [{"action": "type", "text": "rm ~/a\n"}, {"action": "terminate", "status": "success"}],
        },
        "long": {"instruction": "Never.", "evaluator": {"func": "infeasible"}},
    },
}
TASK = {"id": "t", "domain": "os", "instruction": "Do it.", "config": [], "evaluator": {"func": "exact_match"}}
PUBLISHED = {
    "id": "t",
    "domain": "os",
    "config": [],
    "task_template": {"evaluator1": "Do it.", "evaluator2": "Do more."},
    "evaluator_list": {"evaluator1": {"func": "exact_match"}, "evaluator2": {"func": "exact_match"}},
    "current_task": {"evaluator2": "Do even more."},
}


def checked(**check):
    return {"instruction": "x", "evaluator": {"checks": [check]}}


def folder_of(tmp_path, **files):
    """A folder with these files; lists of rows are JSON lines."""
    tmp_path.mkdir(exist_ok=True)
    for name, value in files.items():
        lines = isinstance(value, list)
        path = tmp_path / f"{name}.{'jsonl' if lines else 'json'}"
        path.write_text("\n".join(json.dumps(row) for row in value) if lines else json.dumps(value))
    return tmp_path
