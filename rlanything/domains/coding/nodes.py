"""LeetCode's linked lists and binary trees: JSON lists become nodes and nodes become lists, as its judge has it.

The text of this module is part of the program that calls a function (`drivers`). Standard library alone, and pure.
"""

import inspect
from collections import deque
from collections.abc import Callable
from typing import Any


class ListNode:
    """A node of a linked list."""

    def __init__(self, val: Any = 0, next: Any = None) -> None:
        self.val, self.next = val, next


class TreeNode:
    """A node of a binary tree."""

    def __init__(self, val: Any = 0, left: Any = None, right: Any = None) -> None:
        self.val, self.left, self.right = val, left, right


def call_with_nodes(function: Callable[..., Any], arguments: list[Any], classes: dict[str, Any]) -> Any:
    """Call a function whose annotations say which arguments and results are nodes, with and for lists.

    `classes` has the nodes' classes by name: the program may define its own.
    """
    signature = inspect.signature(function)
    asked = [str(parameter.annotation) for parameter in signature.parameters.values()]
    asked += [""] * (len(arguments) - len(asked))
    result = function(*(_nodes_of(value, kind, classes) for value, kind in zip(arguments, asked, strict=False)))
    returned = str(signature.return_annotation)
    if result is None and ("ListNode" in returned or "TreeNode" in returned) and "list[" not in returned.lower():
        return []  # no node at all
    return _lists_of(result)


def _nodes_of(value: Any, annotation: str, classes: dict[str, Any]) -> Any:
    build = {"ListNode": _linked, "TreeNode": _tree}
    kind = next((name for name in build if name in annotation), "")
    if not kind or not isinstance(value, list):
        return value
    several = "list[" in annotation.lower()
    return [build[kind](item, classes[kind]) for item in value] if several else build[kind](value, classes[kind])


def _lists_of(value: Any) -> Any:
    """The values of a linked list; those of a tree by levels, with None where a child is missing before the last."""
    if isinstance(value, list | tuple):
        return [_lists_of(item) for item in value]
    if not hasattr(value, "val"):
        return value
    values: list[Any] = []
    node = value
    if hasattr(node, "next"):
        while node is not None:
            values.append(node.val)
            node = node.next
        return values
    level = deque([node])
    while level:
        node = level.popleft()
        values.append(None if node is None else node.val)
        if node is not None:
            level += [node.left, node.right]
    while values and values[-1] is None:
        values.pop()
    return values


def _linked(values: list[Any], node: Any) -> Any:
    first = None
    for value in reversed(values):
        added = node(value)  # a program's own class may take no more
        added.next, first = first, added
    return first


def _tree(values: list[Any], node: Any) -> Any:
    if not values or values[0] is None:
        return None
    root = node(values[0])
    parents, rest = deque([root]), deque(values[1:])
    while rest:
        parent = parents.popleft()
        for side in ("left", "right"):
            value = rest.popleft() if rest else None
            if value is not None:
                setattr(parent, side, node(value))
                parents.append(getattr(parent, side))
    return root
