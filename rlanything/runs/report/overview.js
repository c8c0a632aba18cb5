/* The top of the page: what the run is, and its results at a glance. */
function drawTop() {
  const total = DATA.total_step;
  const state = !exists(total)
    ? `step ${DATA.step}`
    : DATA.step >= total
      ? `finished: ${count(total, "step")}`
      : `step ${DATA.step} of ${total}`;
  const fact = (name, value) => (exists(value) && value !== "" ? span("", `${name} `, el("b", {}, String(value))) : null);
  byId("top").append(
    el("h1", {}, DATA.name),
    div("facts", el("b", {}, state), fact("seed", DATA.seed), fact("written", DATA.written)),
    div("facts", fact("judged by", DATA.judge)),
    div("facts", ...Object.entries(DATA.models).map(([role, path]) => fact(role, path))),
  );
  if (total) {
    const done = div("");
    done.style.width = `${Math.min(100, (100 * DATA.step) / total)}%`;
    const now = { "aria-valuenow": DATA.step, "aria-valuemax": total };
    byId("top").append(el("div", { class: "bar", role: "progressbar", "aria-label": "Steps done", ...now }, done));
  }
  const headings = [...document.querySelectorAll("main > section > h2")];
  const links = headings.map((h) => el("a", { href: `#${h.parentElement.id}` }, h.textContent));
  byId("top").append(el("nav", { "aria-label": "Sections" }, links));
}

function tile(name, from, to, details) {
  const value = div("value", exists(from) ? span("from", `${from} → `) : null, to);
  const lines = details.filter(Boolean).map((d) => div("detail", d));
  return div("tile", div("name", name), value, lines);
}

/* An accuracy of the few votes that could be parsed says little: say how many could not. */
function lostVotes(columns) {
  const lost = (columns.rm_unparsable_rate || []).at(-1);
  return lost > 0 ? `${percent(lost)} of the last evaluation’s votes held no score` : null;
}

function rateTile(name, columns, key, band) {
  const values = columns[key] || [];
  const last = values.length - 1;
  if (last < 0 || !exists(values[0])) return null;
  const range = (i) => interval(columns.success_low[i], columns.success_high[i]);
  const change =
    last && exists(values[last])
      ? `${signed(100 * (values[last] - values[0]), 1)} points, step ${columns.step[0]} to ${columns.step[last]}`
      : `at step ${columns.step[0]}`;
  const more = band ? `95\u00a0% interval ${last ? `${range(0)} → ` : ""}${range(last)}` : lostVotes(columns);
  return tile(name, last ? percent(values[0]) : null, percent(values[last]), [change, more]);
}

function tiles() {
  const splits = Object.entries(DATA.evaluations);
  const found = splits.map(([split, c]) => rateTile(`Success, ${split}`, c, "success_rate", true));
  found.push(...splits.map(([split, c]) => rateTile(`RM process accuracy, ${split}`, c, "rm_process_accuracy", false)));
  found.push(...splits.map(([split, c]) => rateTile(`Unit tests right, ${split}`, c, "test_accuracy", false)));
  const last = (key) => (DATA.train[key] || []).findLast(exists);
  if (exists(last("tasks/accepted"))) {
    const detail = `${last("tasks/dropped")} dropped, ${last("tasks/rejected")} rejected, ${last("tasks/pending") ?? 0} pending`;
    found.push(tile("Adapted tasks accepted", null, number(last("tasks/accepted")), [detail]));
  }
  if (DATA.seconds) {
    const detail = `${duration(DATA.seconds / DATA.step)} a step; evaluations and checkpoints not counted`;
    found.push(tile("Time in training steps", null, duration(DATA.seconds), [detail]));
  }
  return found.filter(Boolean);
}

/* A table for each group of rows; the first column names the group where it begins. */
function tables([, ...header], rows) {
  const cell = (text) => {
    const [main, small] = text.replace(/^-/, "−").split(" (");
    return el("td", {}, main, small ? el("small", {}, small.replace(")", "")) : null);
  };
  const bodies = [];
  for (const [group, name, ...values] of rows) {
    if (group) bodies.push([group, el("tbody", {})]);
    bodies.at(-1)[1].append(el("tr", {}, el("td", {}, name.replace(" %", "\u00a0%")), values.map(cell)));
  }
  const made = bodies.map(([group, body]) => {
    const cells = header.map((h) => el("th", { scope: "col" }, h));
    const table = el("table", {}, el("thead", {}, el("tr", {}, cells)), body);
    return div("", el("h3", {}, group), el("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": group }, table));
  });
  return div("tables", made);
}

/* A share by task type at the first and last evaluation of every split. */
function byKind(figure, title) {
  const rows = [];
  for (const [split, columns] of Object.entries(DATA.evaluations)) {
    const kinds = Object.keys(columns)
      .filter((k) => k.startsWith(`${figure}/`))
      .sort();
    kinds.forEach((key, i) => {
      const values = columns[key];
      const last = values.length > 1 ? values[values.length - 1] : null;
      const change = exists(last) && exists(values[0]) ? signed(100 * (last - values[0]), 1) : DASH;
      rows.push([i ? "" : split, key.slice(figure.length + 1), percent(values[0]), percent(last), change]);
    });
  }
  if (!rows.length) return null;
  const [, , before, after] = DATA.before_after.header;
  return el(
    "details",
    { class: "kinds" },
    el("summary", {}, title),
    tables(["split", "type", before, after, "points"], rows),
  );
}

function drawSummary() {
  const section = byId("summary");
  const found = tiles();
  if (!found.length) {
    section.append(note("No step and no evaluation was recorded yet. This page is written anew at every evaluation and checkpoint."));
    return;
  }
  section.append(div("tiles", found));
  if (DATA.before_after.rows.length) {
    const called = byKind("call_share", "Episodes with a tool call by task type");
    fill(section, {}, [tables(DATA.before_after.header, DATA.before_after.rows), byKind("success_rate", "Success by task type"), called]);
  }
}

function drawConfiguration() {
  const text = DATA.config;
  byId("configuration").append(
    text
      ? el("details", {}, el("summary", {}, "config.yaml, resolved"), el("pre", { class: "config" }, text))
      : note("The run’s folder holds no config.yaml."),
  );
}
