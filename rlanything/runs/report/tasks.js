/* The families of adapted tasks: each variant with its verdict and the accuracies that its episodes measured. */
const VERDICTS = { accepted: ["✓ accepted", "good"], dropped: ["✗ dropped", "bad"], pending: ["… pending", "muted"] };
const ARROWS = { harder: "▲ harder", easier: "▼ easier" };
const PAGE_SIZE = 25;

function share(value) {
  return exists(value) ? `${+(100 * value).toPrecision(3)}\u00a0%` : DASH;
}

/* Accuracy at every step that measured the task: dots from 0 (bottom) to 100 % (top). */
function spark(measured) {
  const total = Math.max(1, DATA.step);
  const text = measured.map(([step, accuracy]) => `step ${step}: ${share(accuracy)}`).join(", ");
  const box = svg("svg", { viewBox: "0 0 72 16", class: "k0", role: "img", "aria-label": `accuracy ${text}` }, svg("title", {}, text));
  box.append(svg("line", { class: "grid", x1: 0, x2: 72, y1: 15, y2: 15 }));
  for (const [step, accuracy] of measured)
    box.append(svg("circle", { class: "point", cx: 2 + (68 * step) / total, cy: 13.5 - 11 * accuracy, r: 1.8 }));
  return box;
}

function refusals(node) {
  return node.rejected.map(([step, toward, reasons]) => {
    const why =
      Object.entries(reasons)
        .map(([reason, n]) => `${n} ${reason.replaceAll("_", " ")}`)
        .join(", ") || "no answer";
    return div("small muted", `step ${step}: no valid ${toward} variant (${why})`);
  });
}

function verdict(node) {
  const [text, tone] = VERDICTS[node.verdict];
  const when = exists(node.decided) ? ` at step ${node.decided}` : "";
  const why = node.reason ? `: ${node.reason}` : node.verdict === "pending" ? ": waits for its episodes" : "";
  return div("small", span(`tag ${tone}`, text), `${when}${why}${node.replaced ? "; later replaced by a variant of its own" : ""}`);
}

function branches(nodes, children) {
  const items = nodes.map((n) => branch(n, children));
  return el("ul", {}, items);
}

function branch(node, children) {
  const below = children.get(node.id) || [];
  const from = `${ARROWS[node.direction]} than ${share(node.parent_accuracy)}`;
  return el(
    "li",
    {},
    div(
      "line",
      span("", node.sentence),
      span("small muted", `${from}, born at step ${node.born}`),
      node.measured.length ? spark(node.measured) : null,
    ),
    verdict(node),
    refusals(node),
    below.length ? branches(below, children) : null,
  );
}

function family({ nodes }, open) {
  const [root, ...variants] = nodes;
  const children = new Map();
  for (const node of variants) children.set(node.parent, [...(children.get(node.parent) || []), node]);
  const number_of = (v) => variants.filter((n) => n.verdict === v).length;
  const tally = Object.keys(VERDICTS)
    .filter(number_of)
    .map((v) => `${number_of(v)} ${v}`)
    .join(", ");
  return el(
    "details",
    { class: "family", open },
    el("summary", {}, el("b", {}, root.sentence), " ", span("small muted", `${count(variants.length, "variant")}: ${tally} `)),
    div(
      "line small muted",
      span("mono", root.id),
      root.measured.length ? spark(root.measured) : null,
      root.measured.length
        ? `original: ${[root.measured[0], root.measured.at(-1)].map(([step, accuracy]) => `${share(accuracy)} at step ${step}`).join(", ")}`
        : null,
    ),
    refusals(root),
    branches(children.get(root.id) || [], children),
  );
}

function drawTasks() {
  const section = byId("tasks");
  const { families, total } = DATA.lineages;
  const [low, high] = DATA.band;
  if (!families.length) {
    section.append(note("No task has a rewritten variant so far."));
    return;
  }
  const left = total > families.length ? ` ${total - families.length} more families are in tasks.jsonl.` : "";
  section.append(
    note(
      `${count(total, "original task")} with variants, the most fruitful first. A harder variant is accepted if it is solved ` +
        `less often than its parent but more than ${share(low)}, an easier one if it is solved more often than its parent ` +
        `but less than ${share(high)}. Dots: the accuracy at the steps that measured a task.${left}`,
    ),
  );
  const search = el("input", { type: "search", placeholder: "Search sentences and ids", "aria-label": "Search tasks" });
  const choices = [
    ["", "every verdict"],
    ["accepted", "with accepted variants"],
    ["dropped", "with dropped variants"],
    ["pending", "with pending variants"],
    ["harder", "with harder variants"],
    ["easier", "with easier variants"],
  ];
  const filters = choices.map(([value, name]) => el("option", { value }, name));
  const select = el("select", { "aria-label": "Filter tasks" }, filters);
  const list = div("");
  const found = el("p", { class: "small muted", role: "status" });
  let limit = PAGE_SIZE;

  function fits({ nodes }) {
    const [, ...variants] = nodes;
    const words = search.value.toLowerCase().split(" ").filter(Boolean);
    const text = nodes
      .map((n) => `${n.sentence} ${n.id}`)
      .join(" ")
      .toLowerCase();
    return (
      words.every((w) => text.includes(w)) &&
      (!select.value || variants.some((n) => n.verdict === select.value || n.direction === select.value))
    );
  }

  function update() {
    const chosen = families.filter(fits);
    list.replaceChildren(...chosen.slice(0, limit).map((f, i) => family(f, i === 0)));
    found.textContent = chosen.length === families.length ? "" : `${chosen.length} of ${families.length}`;
    if (chosen.length > limit) list.append(el("button", { onclick: showMore }, `Show more (${chosen.length - limit} left)`));
  }

  function showMore() {
    limit += 4 * PAGE_SIZE;
    update();
  }
  search.addEventListener("input", update);
  select.addEventListener("change", update);
  section.append(div("controls", search, select), found, list);
  update();
}
