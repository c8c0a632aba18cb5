"""Reads games: a game.tw-pddl, or a packed file of many, into the `Game` that all episodes of it share.

Only what TextWorld's text, commands and win flag depend on is kept. The grammar is not interpreted: `simulator`
speaks the text of ALFWorld's own grammar, and a game that brings another one is refused here.
"""

from __future__ import annotations

import json
import lzma
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from sys import intern
from typing import Any

from rlanything.domains.alfworld.model import TASK_PREFIX, Game, Goal, GoalKind, Object, Receptacle, State
from rlanything.errors import TaskError

_FACT = re.compile(r"\(([^()]+)\)")
_SENTENCE = re.compile(r'"rhs":\s*("Your task is to: (?:[^"\\]|\\.)*")')
_HELP = re.compile(r'Available commands:[^"]*')
_GOAL_TYPE = re.compile(r"\((objecttype|receptacletype) (\?\w+) (\w+)\)")
_CONDITIONS = {"ishot": "hot", "iscool": "cool", "isclean": "clean", "issliced": "sliced", "istoggled": "toggled"}
_GOAL_MARKS = {
    GoalKind.TWO: "(not (=",
    GoalKind.CLEAN: "(isclean ",
    GoalKind.HEAT: "(ishot ",
    GoalKind.COOL: "(iscool ",
}
# The wording of ALFWorld 0.4 (json_2.1.1 and later); older releases say "put X in/on Y" and differ in more places.
_GRAMMAR_MARK = 'template :: "move {o} to {r}"'
_REMEDY = "download the games again (alfworld-download) or generate them anew"

# Games of one data set repeat a handful of these relations, each of some 225 pairs: one copy serves all.
_accepts_pool: dict[frozenset[tuple[str, str]], frozenset[tuple[str, str]]] = {}


@dataclass(frozen=True, slots=True)
class PackedGame:
    """One game of a packed file: its game.tw-pddl (`data`) and what its traj_data.json says of the task (`traj`)."""

    path: str
    data: dict[str, Any]
    traj: dict[str, Any]
    annotations: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Template:
    """What all games of a packed file share: domain and grammar, with {task} in the sentence's place."""

    domain: str
    grammar: str

    @classmethod
    def beside(cls, packed: Path) -> Template:
        """The template.json of a packed file's folder. Raises TaskError naming what is missing or corrupt."""
        path = packed.parent / "template.json"
        for wanted in (packed, path):
            if not wanted.is_file():
                raise TaskError(
                    f"{wanted}: no such file; a packed data set is a .jsonl.xz with template.json beside it"
                )
        try:
            template = json.loads(path.read_text())
            return cls(template["pddl_domain"], template["grammar"])
        except (ValueError, KeyError, TypeError) as error:
            raise TaskError(f"{path}: not the template of packed games ({error!r}); copy the file anew") from error

    def unpack(self, line: str) -> PackedGame:
        """The game of a line. Raises ValueError, KeyError or TypeError where it is none."""
        entry = json.loads(line)
        sentence = json.dumps(entry["task"], ensure_ascii=False)[1:-1]  # the grammar keeps it inside a JSON string
        data = {
            "pddl_domain": self.domain,
            "grammar": self.grammar.replace("{task}", sentence),
            "pddl_problem": entry["problem"],
            "walkthrough": entry["walkthrough"],
            "solvable": True,
        }
        return PackedGame(entry["path"], data, entry["traj"], tuple(entry["anns"]))


def packed_lines(path: Path, template: Template) -> Iterator[tuple[str, PackedGame]]:
    """(line, game) of a packed .jsonl.xz, in its order, one at a time (a game's PDDL is 40 kB).

    Raises TaskError where the file is cut or a line is not a game.
    """
    with lzma.open(path, "rt", encoding="utf-8") as lines:
        for number, line in enumerate(_whole(lines, path), 1):
            try:
                yield line, template.unpack(line)
            except (ValueError, KeyError, TypeError) as error:
                raise TaskError(f"{path}, line {number}: not a packed game ({error!r}); copy the file anew") from error


def load_packed(path: Path) -> Iterator[PackedGame]:
    """The games of a packed .jsonl.xz, whose folder must hold template.json too. Raises TaskError."""
    return (game for _, game in packed_lines(path, Template.beside(path)))


def _whole(lines: Iterable[str], path: Path) -> Iterator[str]:
    try:
        yield from lines
    except (EOFError, lzma.LZMAError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: the file is cut or corrupt ({error}); copy or generate it anew") from error


def read_game(path: Path) -> Game:
    """The game of a game.tw-pddl on disk. Raises TaskError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise TaskError(f"{path}: no such game file; {_REMEDY}") from error
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise TaskError(f"{path}: not JSON ({error}); the file is cut or corrupt: {_REMEDY}") from error
    return parse_game(data, str(path))


def parse_game(data: Mapping[str, Any], source: str) -> Game:
    """A game from what a game.tw-pddl holds (`pddl_domain`, `grammar`, `pddl_problem`, optionally `walkthrough`).

    `source` names the game in errors. Raises TaskError where a key is missing, the grammar is not ALFWorld's, the
    problem is cut or contradicts itself, or the goal is none of the six task types.
    """
    for key in ("pddl_domain", "grammar", "pddl_problem"):
        if not isinstance(data.get(key), str):
            raise TaskError(f"{source}: key {key!r} must hold text, found {type(data.get(key)).__name__}; {_REMEDY}")
    domain, grammar, problem = data["pddl_domain"], data["grammar"], data["pddl_problem"]
    sentence, help_match = _SENTENCE.search(grammar), _HELP.search(grammar)
    if sentence is None or help_match is None or _GRAMMAR_MARK not in grammar:
        raise TaskError(f"{source}: key 'grammar' is not the grammar of ALFWorld 0.4 (json_2.1.1); {_REMEDY}")
    start, end = problem.find("(:init"), problem.find("(:goal")
    if not 0 <= start < end:
        raise TaskError(f"{source}: key 'pddl_problem' lacks its (:init ...) or (:goal ...) section; {_REMEDY}")
    facts = [fact.split() for fact in _FACT.findall(problem[start:end])]
    try:
        receptacles, objects, accepts, initial = _parse_facts(facts)
    except (KeyError, IndexError) as error:
        raise TaskError(f"{source}: 'pddl_problem' uses {error} without saying what it is; {_REMEDY}") from error
    spelling = {t.lower(): t for pair in accepts for t in pair} | {o.type.lower(): o.type for o in objects}
    sink = {"SinkBasin"} | ({"Sink"} if re.search(r"\n\s*\(receptacleType \?r SinkType\)", domain) else set())
    at_location: dict[str, tuple[Receptacle, ...]] = {}
    for r in receptacles:
        at_location[r.location] = (*at_location.get(r.location, ()), r)
    return Game(
        source=source,
        sentence=json.loads(sentence.group(1), strict=False)[len(TASK_PREFIX) :],
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
    """Receptacles, objects, the accepts relation and the initial state of an (:init ...) section."""
    object_types: dict[str, str] = {}
    receptacle_types: dict[str, str] = {}
    locations: dict[str, str] = {}
    accepts = []
    pairs: dict[str, list[tuple[str, str]]] = defaultdict(list)
    having: dict[str, set[str]] = defaultdict(set)
    entities = set()
    start = ""
    for predicate, *args in facts:
        key = predicate.lower()
        if key == "cancontain":
            accepts.append((_type_name(args[0]), _type_name(args[1])))
            continue
        subject = intern(args[0].lower())
        entities.add(subject)
        if key == "objecttype":
            object_types[subject] = _type_name(args[1])
        elif key == "receptacletype":
            receptacle_types[subject] = _type_name(args[1])
        elif key == "receptacleatlocation":
            locations[subject] = intern(args[1].lower())
        elif key == "atlocation":
            start = intern(args[1].lower())
        elif len(args) == 2:
            other = intern(args[1].lower())
            entities.add(other)
            pairs[key].append((subject, other))
        else:
            having[key].add(subject)
    if not start:
        raise KeyError("the agent's place (atLocation)")
    names = _names(entities)
    receptacle_ids, object_ids = sorted(receptacle_types), sorted(object_types)
    r_index = {id_: i for i, id_ in enumerate(receptacle_ids)}
    o_index = {id_: i for i, id_ in enumerate(object_ids)}
    inside: dict[str, list[int]] = defaultdict(list)
    for inner, outer in sorted(pairs["inreceptacleobject"]):
        inside[outer].append(o_index[inner])
    receptacles = tuple(
        Receptacle(i, id_, names[id_], receptacle_types[id_], locations[id_], id_ in having["openable"])
        for i, id_ in enumerate(receptacle_ids)
    )
    objects = tuple(
        Object(
            index=i,
            id=id_,
            name=names[id_],
            type=object_types[id_],
            pickupable=id_ in having["pickupable"],
            cleanable=id_ in having["cleanable"],
            heatable=id_ in having["heatable"],
            coolable=id_ in having["coolable"],
            toggleable=id_ in having["toggleable"],
            sliceable=id_ in having["sliceable"],
            is_container=id_ in having["isreceptacleobject"],
            inside=tuple(inside[id_]),
        )
        for i, id_ in enumerate(object_ids)
    )
    state = State()
    state.location, state.held, state.removed = start, None, frozenset()
    contents: list[list[int]] = [[] for _ in receptacles]
    places: list[list[int]] = [[] for _ in objects]
    for o, r in sorted((o_index[o], r_index[r]) for o, r in set(pairs["inreceptacle"])):
        contents[r].append(o)
        places[o].append(r)
    near: list[list[str]] = [[] for _ in objects]
    for o_id, where in sorted(set(pairs["objectatlocation"])):
        near[o_index[o_id]].append(where)
    state.contents, state.places = list(map(tuple, contents)), list(map(tuple, places))
    state.locations = list(map(tuple, near))
    state.opened = sum(1 << r_index[id_] for id_ in having["opened"])
    for predicate, name in _CONDITIONS.items():
        setattr(state, name, sum(1 << o_index[id_] for id_ in having[predicate]))
    return receptacles, objects, frozenset(accepts), state


def _type_name(symbol: str) -> str:
    return intern(symbol.removesuffix("Type"))


def _names(ids: set[str]) -> dict[str, str]:
    """Visible names: per kind, numbers fall as ids rise (alfworld's Demangler)."""
    kinds = {id_: id_.split("_bar_", 1)[0] + ("basin" if "basin" in id_ else "") for id_ in ids if "_bar_" in id_}
    count = Counter(kinds.values())
    names = {}
    for id_ in sorted(ids):
        kind = kinds.get(id_)
        if kind is None:
            names[id_] = id_
            continue
        names[id_] = intern(f"{kind} {count[kind]}")
        count[kind] -= 1
    return names


def _parse_goal(text: str, spelling: Mapping[str, str], source: str) -> Goal:
    """The goal section as a `Goal`; `spelling` maps lower-case type names to the ones that the facts use."""
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
            f"receptacle types {sorted(receptacle_types)}, conditions {sorted(kinds)}); leave this game out: goals "
            "about sliced or nested objects are no ALFWorld tasks"
        )
    return Goal(kinds[0] if kinds else GoalKind.SIMPLE, object_types.pop(), receptacle_types.pop())
