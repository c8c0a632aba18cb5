"""The pages of a sweep: sweep.md, a table for each split, and sweep.html, the same with curves."""

import html
import math
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from rlanything.runs.folder import write_atomic
from rlanything.sweep.figures import Difference, Point, Row, Runs, curve, differences, rows, splits

WIDTH, HEIGHT, LEFT, BELOW = 520, 260, 44, 30  # of a chart [pixels], and of the room for its labels
COLOURS = ("#0b6aa8", "#c4520f", "#2a7d4f", "#8b4a9c", "#a3262a", "#6b6b6b", "#b8860b", "#1f3d7a")
STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 72rem; margin: 2rem auto; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; display: block; overflow-x: auto; }
th, td { padding: .25rem .8rem .25rem 0; white-space: nowrap; }
th { text-align: left; border-bottom: 1px solid #bbb; } td { border-bottom: 1px solid #eee; }
svg { max-width: 100%; height: auto; margin-right: 1rem; } text { font-size: 11px; fill: #555; }
.key { margin-right: 1rem; }
"""


def write_tables(folder: Path, runs: Runs, failures: Mapping[str, str], compare: Sequence[Sequence[str]] = ()) -> None:
    """Write both pages from the runs that have ended well; `failures` tells why others failed.

    `compare` are pairs of variants whose difference is told below the tables.
    """
    found = {split: rows(runs, split) for split in splits(runs)}
    told = [_compared(runs, split, pair) for split in found for pair in compare]
    told += [f"{name}: failed ({why})" for name, why in failures.items()]
    write_atomic(folder / "sweep.md", markdown(found, told))
    charts = {split: {v: curve(by_seed, split) for v, by_seed in runs.items()} for split in found}
    write_atomic(folder / "sweep.html", page(folder.name, found, charts, told))


def markdown(found: Mapping[str, Sequence[Row]], told: Sequence[str]) -> str:
    """The tables in Markdown."""
    blocks = []
    for split, of_split in found.items():
        header, *body = _cells(of_split)
        lines = [header, ["---"] * len(header), *body]
        blocks.append("\n".join([f"## {split}", "", *(f"| {' | '.join(line)} |" for line in lines)]))
    return "\n\n".join([*blocks, *told]) + "\n"


def _compared(runs: Runs, split: str, pair: Sequence[str]) -> str:
    at_end, at_equal = (_difference(found) for found in differences(runs, split, pair))
    return f"{split}, {pair[0]} less {pair[1]}: {at_end}; at equal seconds {at_equal}"


def page(
    name: str,
    found: Mapping[str, Sequence[Row]],
    charts: Mapping[str, Mapping[str, Sequence[Point]]],
    told: Sequence[str],
) -> str:
    """The page. It loads nothing, and all texts in it are escaped."""
    parts = [f"<!doctype html><meta charset=utf-8><title>{html.escape(name)}</title><style>{STYLE}</style>"]
    parts.append(f"<h1>{html.escape(name)}</h1>")
    for split, of_split in found.items():
        header, *body = _cells(of_split)
        head = "".join(f"<th>{html.escape(cell)}</th>" for cell in header)
        lines = "".join(f"<tr>{''.join(f'<td>{html.escape(cell)}</td>' for cell in line)}</tr>" for line in body)
        keys = "".join(
            f'<span class=key style="color:{colour}">&#9644; {html.escape(variant)}</span>'
            for variant, colour in zip(charts[split], _colours(len(charts[split])), strict=True)
        )
        parts += [f"<h2>{html.escape(split)}</h2><table><tr>{head}</tr>{lines}</table><p>{keys}</p>"]
        along = {"step": "step", "seconds": "seconds of training", "tokens": "generated tokens"}
        parts += [_chart(charts[split].values(), field, name) for field, name in along.items()]
    parts += [f"<p>{html.escape(line)}</p>" for line in told]
    return "\n".join(parts) + "\n"


def _cells(of_split: Sequence[Row]) -> list[list[str]]:
    """The header and a line for each variant; kinds of tasks are columns if there are several."""
    kinds = list(dict.fromkeys(kind for row in of_split for kind in row.kinds))
    kinds = kinds if len(kinds) > 1 else []
    header = ["variant", "seeds", "before", "after", "difference (95 %)", "at equal seconds", "difference then (95 %)"]
    header += [*kinds, "votes right", "variants accepted", "M tokens", "seconds"]
    return [header, *(_line(row, kinds) for row in of_split)]


def _line(row: Row, kinds: Sequence[str]) -> list[str]:
    by_kind = [_percent(row.kinds.get(kind, math.nan)) for kind in kinds]
    start = [row.variant, str(row.num_seed), _percent(row.before), _percent(row.after), _difference(row.difference)]
    start += [_percent(row.at_equal_seconds), _difference(row.difference_at_equal_seconds)]
    accepted = "–" if math.isnan(row.accepted) else f"{row.accepted:.0f}"
    return [*start, *by_kind, _percent(row.rm_process), accepted, f"{row.tokens / 1e6:.2f}", f"{row.seconds:.0f}"]


def _difference(found: Difference | None) -> str:
    if found is None or math.isnan(found[0]):
        return "–"
    mean, low, high = (100 * value for value in found)
    return f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"


def _percent(value: float) -> str:
    return "–" if math.isnan(value) else f"{100 * value:.1f} %"


def _colours(num: int) -> list[str]:
    return [COLOURS[i % len(COLOURS)] for i in range(num)]


def _chart(curves: Collection[Sequence[Point]], along: str, name: str) -> str:
    """Success rates against a field of points, a line for each variant."""
    lines = [[(getattr(point, along), point.success) for point in found] for found in curves]
    points = [point for line in lines for point in line]
    if not points:
        return ""
    right, top = max(x for x, _ in points) or 1.0, max(0.05, *(y for _, y in points))

    def place(x: float, y: float) -> str:
        return f"{LEFT + x / right * (WIDTH - LEFT - 10):.1f},{HEIGHT - BELOW - y / top * (HEIGHT - BELOW - 12):.1f}"

    drawn = "".join(
        f'<polyline fill="none" stroke="{colour}" stroke-width="2" points="{" ".join(place(*p) for p in line)}"/>'
        for line, colour in zip(lines, _colours(len(lines)), strict=True)
    )
    base = HEIGHT - BELOW
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" width="{WIDTH}" role="img" aria-label="success against {name}">'
        f'<path d="M{LEFT},8 V{base} H{WIDTH}" fill="none" stroke="#bbb"/>{drawn}'
        f'<text x="2" y="18">{100 * top:.0f} %</text><text x="2" y="{base}">0 %</text>'
        f'<text x="{WIDTH - 6}" y="{HEIGHT - 10}" text-anchor="end">{right:.0f}</text>'
        f'<text x="{LEFT}" y="{HEIGHT - 10}">{name}</text></svg>'
    )
