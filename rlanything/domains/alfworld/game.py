"""Parses a game into the `Game` that all its episodes share.

The grammar is not interpreted: `simulator` has the text of ALFWorld's own grammar, and a game with another grammar is
refused here.
"""

import json
import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from itertools import chain
from sys import intern
from typing import Any

from rlanything.domains.alfworld.model import TASK_PREFIX, Game, Goal, GoalKind, Object, Receptacle, State
from rlanything.errors import TaskError

TASK_RULE = re.compile(r'("rhs":\s*)("Your task is to: (?:[^"\\]|\\.)*")')
"""The grammar's rule for the task line; group 2 is the line as a JSON string."""
_FACT = re.compile(r"\(([^()]+)\)")
_HELP = re.compile(r'Available commands:[^"]*')
_GOAL_TYPE = re.compile(r"\((objecttype|receptacletype) (\?\w+) (\w+)\)")
_CONDITIONS = {"ishot": "hot", "iscool": "cool", "isclean": "clean", "issliced": "sliced", "istoggled": "toggled"}
_ABILITIES = ("pickupable", "cleanable", "heatable", "coolable", "toggleable", "sliceable")
_GOAL_MARKS = {
    GoalKind.TWO: "(not (=",
    GoalKind.CLEAN: "(isclean ",
    GoalKind.HEAT: "(ishot ",
    GoalKind.COOL: "(iscool ",
}
# The wording of ALFWorld 0.4 (json_2.1.1 and later). Older releases say "put X in/on Y" and differ in more places.
_GRAMMAR_MARK = 'template :: "move {o} to {r}"'
_REMEDY = "download the games again (alfworld-download) or generate new ones"

# The games of a data set repeat a handful of these relations, each of some 225 pairs, so one copy of each is kept.
_accepts_pool: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}


def task_sentence(grammar: str) -> str | None:
    """Return the task sentence that a game's grammar holds, without "Your task is to: "."""
    rule = TASK_RULE.search(grammar)
    return None if rule is None else json.loads(rule[2], strict=False)[len(TASK_PREFIX) :]


def parse_game(data: Mapping[str, Any], source: str) -> Game:
    """Make a game from what a game.tw-pddl holds (`pddl_domain`, `grammar`, `pddl_problem`, perhaps `walkthrough`).

    `source` names the game in errors. Raises TaskError if a key is missing, the grammar is not ALFWorld's, the
    problem is cut or contradicts itself, or the goal is none of the six task types.
    """
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise TaskError(f"{source}: {key}: found {type(data.get(key)).__name__}, expected text; {_REMEDY}")
    domain, grammar, problem = data["pddl_domain"], data["grammar"], data["pddl_problem"]
    sentence, help_match = task_sentence(grammar), _HELP.search(grammar)
    if sentence is None or help_match is None or _GRAMMAR_MARK not in grammar:
        raise TaskError(f"{source}: grammar: expected the grammar of ALFWorld 0.4 (json_2.1.1); {_REMEDY}")
    start, end = problem.find("(:init"), problem.find("(:goal")
    if not 0 <= start < end:
        raise TaskError(f"{source}: pddl_problem: expected an (:init ...) and a (:goal ...) section; {_REMEDY}")
    facts = [fact.split() for fact in _FACT.findall(problem[start:end])]
    try:
        receptacles, objects, accepts, initial = _parse_facts(facts)
    except KeyError as error:
        raise TaskError(f"{source}: pddl_problem: no fact defines {error}, which is needed; {_REMEDY}") from error
    except IndexError as error:
        raise TaskError(f"{source}: pddl_problem: a fact lacks an argument; {_REMEDY}") from error
    spelling = {t.lower(): t for pair in accepts for t in pair} | {o.type.lower(): o.type for o in objects}
    sink = {"SinkBasin"} | ({"Sink"} if re.search(r"\n\s*\(receptacleType \?r SinkType\)", domain) else set())
    at_location: dict[str, tuple[Receptacle, ...]] = {}
    for r in receptacles:
        at_location[r.location] = (*at_location.get(r.location, ()), r)
    return Game(
        source=source,
        sentence=sentence,
        goal=_parse_goal(problem[end:], spelling, source),
        receptacles=receptacles,
        objects=objects,
        accepts=_accepts_pool.setdefault(accepts, accepts),
        sink_types=frozenset(sink),
        walkthrough=tuple(map(intern, data.get("walkthrough") or ())),
        help_text=intern(help_match.group().replace("\\n", "\n")),
        initial=initial,
        receptacle_named={r.name: r for r in receptacles},
        object_named={o.name: o for o in objects},
        at_location=at_location,
    )


def _parse_facts(
    facts: list[list[str]],
) -> tuple[tuple[Receptacle, ...], tuple[Object, ...], frozenset[tuple[str, str]], State]:
    """Return receptacles, objects, the accepts relation and the initial state of an (:init ...) section."""
    accepts = []
    types: dict[str, dict[str, str]] = {"objecttype": {}, "receptacletype": {}}
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    having: dict[str, set[str]] = defaultdict(set)
    for predicate, *args in facts:
        key = predicate.lower()
        if key == "cancontain":
            accepts.append((_type_name(args[0]), _type_name(args[1])))
            continue
        subject = intern(args[0].lower())
        if key in types:
            types[key][subject] = _type_name(args[1])
        elif len(args) == 2:
            pairs[key].append((subject, intern(args[1].lower())))
        else:
            having[key].add(subject)
    if not pairs["atlocation"]:
        raise KeyError("the agent's location (atLocation)")
    names = _names({*types["objecttype"], *types["receptacletype"]}.union(*having.values(), *chain(*pairs.values())))
    r_index = {id_: i for i, id_ in enumerate(sorted(types["receptacletype"]))}
    o_index = {id_: i for i, id_ in enumerate(sorted(types["objecttype"]))}
    locations = dict(pairs["receptacleatlocation"])
    inside: dict[str, list[int]] = defaultdict(list)
    for inner, outer in sorted(pairs["inreceptacleobject"]):
        inside[outer].append(o_index[inner])
    receptacles = tuple(
        Receptacle(
            index=i,
            id=id_,
            name=names[id_],
            type=types["receptacletype"][id_],
            location=locations[id_],
            openable=id_ in having["openable"],
        )
        for id_, i in r_index.items()
    )
    objects = tuple(
        Object(
            index=i,
            id=id_,
            name=names[id_],
            type=types["objecttype"][id_],
            is_container=id_ in having["isreceptacleobject"],
            inside=tuple(inside[id_]),
            **{ability: id_ in having[ability] for ability in _ABILITIES},
        )
        for id_, i in o_index.items()
    )
    contents: list[list[int]] = [[] for _ in receptacles]
    places: list[list[int]] = [[] for _ in objects]
    for o, r in sorted((o_index[o], r_index[r]) for o, r in set(pairs["inreceptacle"])):
        contents[r].append(o)
        places[o].append(r)
    near: list[list[str]] = [[] for _ in objects]
    for id_, location in sorted(set(pairs["objectatlocation"])):
        near[o_index[id_]].append(location)
    state = State(
        location=pairs["atlocation"][-1][1],
        held=None,
        contents=list(map(tuple, contents)),
        places=list(map(tuple, places)),
        locations=list(map(tuple, near)),
        removed=frozenset(),
        opened=sum(1 << r_index[id_] for id_ in having["opened"]),
        **{name: sum(1 << o_index[id_] for id_ in having[fact]) for fact, name in _CONDITIONS.items()},
    )
    return receptacles, objects, frozenset(accepts), state


def _type_name(symbol: str) -> str:
    return intern(symbol.removesuffix("Type"))


def _names(ids: set[str]) -> dict[str, str]:
    """Name objects and receptacles: within a kind, numbers fall as ids rise. Source: alfworld's Demangler."""
    kinds = {id_: id_.split("_bar_", 1)[0] + ("basin" if "basin" in id_ else "") for id_ in ids if "_bar_" in id_}
    count = Counter(kinds.values())
    names = {id_: id_ for id_ in ids}
    for id_, kind in sorted(kinds.items()):
        names[id_] = intern(f"{kind} {count[kind]}")
        count[kind] -= 1
    return names


def _parse_goal(text: str, spelling: Mapping[str, str], source: str) -> Goal:
    """Read the goal section. `spelling` maps lower-case type names to the spelling of the facts."""
    text = " ".join(text.lower().split())
    objects: dict[str, str] = {}
    receptacle_types = set()
    for predicate, variable, symbol in _GOAL_TYPE.findall(text):
        name = symbol.removesuffix("type")
        name = spelling.get(name, name)
        if predicate == "objecttype":
            objects[variable] = name
        else:
            receptacle_types.add(name)
    toggled = re.search(r"\(istoggled (\?\w+)\)", text)
    if toggled and "(holds " in text and len(objects) == 2 and not receptacle_types and toggled.group(1) in objects:
        lamp_type = objects.pop(toggled.group(1))
        return Goal(GoalKind.LOOK, objects.popitem()[1], lamp_type=lamp_type)
    kinds = [kind for kind, mark in _GOAL_MARKS.items() if mark in text]
    object_types = set(objects.values())
    unknown = toggled or "(issliced " in text or "(inreceptacleobject " in text or "(inreceptacle " not in text
    if unknown or len(kinds) > 1 or len(object_types) != 1 or len(receptacle_types) != 1:
        raise TaskError(
            f"{source}: the goal is none of the six ALFWorld task types (object types {sorted(object_types)}, "
            f"receptacle types {sorted(receptacle_types)}, conditions {sorted(kinds)}); remove this game: ALFWorld has "
            "no tasks about sliced or nested objects"
        )
    return Goal(kinds[0] if kinds else GoalKind.SIMPLE, object_types.pop(), receptacle_types.pop())
