"""Names of OSWorld's evaluators, read from its source: a task that asks for another one is found before a run."""

import ast
from collections.abc import Iterable, Iterator, Mapping, Set
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from rlanything.domains.osworld.desktops.tasks import Family
from rlanything.errors import TaskError

PACKAGE = "lib/python3*/site-packages/desktop_env/evaluators"


def check_evaluators(families: Iterable[Family], oracle: Path) -> None:
    """Raises TaskError if a verifier names a metric or a getter that the environment in `oracle` does not have."""
    metrics, getters = _offered(oracle, "metrics"), _offered(oracle, "getters")
    for family in families:
        for name, verifier in family.verifiers.items():
            if verifier.checks is not None:
                continue
            for field, wanted, known in _named(verifier.evaluator, metrics, getters):
                if wanted not in known:
                    near = get_close_matches(str(wanted), known, 1)
                    raise TaskError(
                        f"{family.id}: verifier {name}: {field}: OSWorld's evaluators have no {wanted!r:.60}"
                        + (f"; did you mean {near[0]}?" if near else "")
                    )


def _named(evaluator: Mapping[str, Any], metrics: Set[str], getters: Set[str]) -> Iterator[tuple[str, Any, Set[str]]]:
    """(field, name, the names that it may be) of all that an evaluator names."""
    for function in _listed(evaluator["func"]):
        yield "func", function, metrics
    for field in ("result", "expected"):
        for source in _listed(evaluator.get(field)):
            if isinstance(source, Mapping) and source:
                yield f"{field}.type", f"get_{source.get('type')}", getters


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _offered(oracle: Path, package: str) -> Set[str]:
    """The names that desktop_env.evaluators.<package> has. Raises TaskError if it is not there."""
    found = list(oracle.glob(f"{PACKAGE}/{package}/__init__.py"))
    if not found:
        raise TaskError(f"{oracle}: desktop-env is not installed in it; run scripts/osworld_oracle.sh again")
    tree = ast.parse(found[0].read_bytes())
    imported = [each for node in tree.body if isinstance(node, ast.ImportFrom) for each in node.names]
    made = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
    return made | {each.asname or each.name for each in imported}
