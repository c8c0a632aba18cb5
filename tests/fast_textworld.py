"""Makes TextWorld some 15 times faster, with the same output, so that the differential tests fit into a test run.

TextWorld parses its grammar's rules anew at every use, copies contexts deeply, and translates each problem twice for
a planner that no test asks. The patches memoise the parsers, copy shallowly, translate a problem once per game and
leave that planner out. They live in the tests alone: the package always runs TextWorld as it is.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from typing import Any
from unittest.mock import patch


class _LibraryWithoutPlanner:
    """Fast Downward's library, to which no second problem is given for re-planning."""

    def __init__(self, library: Any) -> None:
        self._library = library

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def load_sas_replan(self, sas: bytes) -> None:
        """Left out."""


@contextmanager
def fast_textworld() -> Iterator[None]:
    """Patch TextWorld while the context lasts. Raises ImportError where textworld[pddl] is not installed."""
    import fast_downward
    import textworld.envs.pddl.logic as logic
    import textworld.envs.pddl.textgen as textgen
    from textworld.logic import Rule

    def copied(symbol: Any) -> Any:
        new = copy.copy(symbol)
        new.context = {}
        if isinstance(new, textgen.ListSymbol):
            new.symbol = copied(new.symbol)
        if isinstance(new, textgen.ConditionalSymbol):
            new.expression = copied(new.expression)
        return new

    def copied_context(context: dict[str, Any]) -> dict[str, Any]:
        return {**context, "variables": dict(context["variables"]), "mapping": dict(context["mapping"])}

    def copied_into(symbol: Any, context: dict[str, Any]) -> Any:
        new = copied(symbol)
        new.context = copied_context(context)
        return new

    parse_symbols = cache(lambda parse, text, rule_name: parse(text, rule_name=rule_name))
    original_parse = textgen._parse_and_convert
    original_query = Rule.parse_conjunctive_query

    def parse(text: str, rule_name: str | None = None, **_: Any) -> list[Any]:
        return [copied(symbol) for symbol in parse_symbols(original_parse, text, rule_name)]

    query = cache(original_query)

    def replace(self: Any, start: Any) -> list[Any]:
        rules = self._rules.get(str(start))
        if not rules:
            raise textgen.CSGUnknownSymbolError(start)
        for rule in rules:
            if not rule.condition:
                break
            found = start.context["state"].all_assignments(query(rule.condition), start.context["mapping"])
            if next(iter(found), None) is not None:
                break
        else:
            raise IndexError(f"no rule of {start} applies")
        return [copied_into(symbol, start.context) for symbol in rule.rhs]

    original_logic = logic._parse_and_convert
    parse_logic = cache(lambda text, rule_name: original_logic(text, rule_name=rule_name))
    original_translate, original_library = fast_downward.pddl2sas, fast_downward.load_lib
    last: dict[tuple[str, str], Any] = {}

    def translate(domain: str, problem: str, verbose: bool = False, optimize: bool = False) -> Any:
        if optimize:
            return None, ""
        if (domain, problem) not in last:
            last.clear()
            last[domain, problem] = original_translate(domain, problem, verbose, optimize)
        return last[domain, problem]

    with ExitStack() as stack:
        for target, name, value in (
            (textgen.Symbol, "copy", copied_into),
            (textgen, "_parse_and_convert", parse),
            (textgen, "copy_context", copied_context),
            (textgen.ContextSensitiveGrammar, "replace", replace),
            (Rule, "parse_conjunctive_query", staticmethod(query)),
            (logic, "_parse_and_convert", lambda text, rule_name=None, **_: parse_logic(text, rule_name)),
            (fast_downward, "pddl2sas", translate),
            (fast_downward, "load_lib", lambda: _LibraryWithoutPlanner(original_library())),
        ):
            stack.enter_context(patch.object(target, name, value))
        yield
