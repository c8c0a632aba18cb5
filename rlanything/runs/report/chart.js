/* One kind of chart: curves over training steps, or stacked bars, with a cursor for mouse, touch and arrow keys. */
const HEIGHT = 190;
const EDGE = { top: 10, right: 10, bottom: 22, left: 44 };
const FORMATS = { percent, number, seconds: (v) => (exists(v) ? `${v < 10 ? +v.toFixed(1) : Math.round(v)}\u00a0s` : DASH) };

/* Ticks at round numbers: [low, ..., high] with at most n gaps. */
function ticks(low, high, n, whole) {
  const raw = (high - low) / n || 1;
  const power = 10 ** Math.floor(Math.log10(raw));
  let gap = [1, 2, 2.5, 5, 10].map((m) => m * power).find((g) => g >= raw * 0.999);
  if (whole) gap = Math.max(1, Math.ceil(gap));
  const found = [];
  for (let i = Math.floor(low / gap + 1e-9); i * gap < high + gap * (whole ? 1e-9 : 0.999); i++) found.push(+(i * gap).toPrecision(10));
  return found;
}

/* Gaussian-weighted mean of the neighbours: no lag, unlike a running average. */
function smooth(steps, values, width) {
  return steps.map((at, i) => {
    if (!exists(values[i])) return null;
    let sum = 0,
      total = 0;
    steps.forEach((step, j) => {
      const d = (step - at) / width;
      if (!exists(values[j]) || Math.abs(d) > 3) return;
      const weight = Math.exp(-0.5 * d * d);
      sum += weight * values[j];
      total += weight;
    });
    return sum / total;
  });
}

/* spec: {title, note, unit, series: [{name, steps, values, low, high, smooth}], stacked, top, bottom, rules: [value]} */
function chart(spec) {
  const series = spec.series.filter((s) => s.values && s.values.some(exists));
  if (!series.length) return null;
  const format = FORMATS[spec.unit || "number"];
  const steps = [...new Set(series.flatMap((s) => s.steps))].sort((a, b) => a - b);
  series.forEach((s, k) => {
    s.color = `k${k % 6}`;
    s.at = new Map(s.steps.map((step, i) => [step, i]));
    const last = s.values.findLastIndex(exists);
    s.last = s.values[last];
    s.line = s.smooth && s.values.filter(exists).length > 7 ? smooth(s.steps, s.values, Math.max(1.2, steps.length / 30)) : s.values;
  });
  const legend = div("legend");
  if (series.length > 1) {
    for (const s of series) legend.append(span("", el("i", { class: s.color }), s.name, " ", el("b", {}, format(s.last))));
  } else legend.append(span("", "last ", el("b", {}, format(series[0].last))));
  const box = svg("svg", {
    height: HEIGHT,
    tabindex: "0",
    role: "img",
    "aria-label": `${spec.title}: ${series.map((s) => `${s.name} ${format(s.last)}`).join(", ")}`,
  });
  const tip = el("div", { class: "tip", hidden: true });
  const figure = el(
    "figure",
    {},
    el("figcaption", {}, el("h3", {}, spec.title)),
    legend,
    box,
    tip,
    spec.note ? el("p", {}, spec.note) : null,
  );
  let place = null;
  let cursor = null;
  let current = -1;

  function draw() {
    const width = box.clientWidth;
    if (!width) return;
    place = layout(spec, series, steps, width);
    cursor = svg("g", {});
    box.setAttribute("viewBox", `0 0 ${width} ${HEIGHT}`);
    box.replaceChildren(...axes(spec, place, format), ...(spec.stacked ? bars(series, place) : curves(series, place)), cursor);
    current = -1;
    tip.hidden = true;
  }

  function show(index) {
    current = Math.max(0, Math.min(steps.length - 1, index));
    const step = steps[current];
    const x = place.x(step);
    const rows = series.filter((s) => s.at.has(step)).map((s) => [s, s.at.get(step)]);
    cursor.replaceChildren(svg("line", { class: "cursor", x1: x, x2: x, y1: EDGE.top, y2: HEIGHT - EDGE.bottom }));
    if (!spec.stacked)
      for (const [s, i] of rows) {
        if (exists(s.values[i])) cursor.append(svg("circle", { class: `point ${s.color}`, cx: x, cy: place.y(s.values[i]), r: 3.2 }));
      }
    const lines = rows.map(([s, i]) => {
      const band = s.low && exists(s.low[i]) ? ` (${interval(s.low[i], s.high[i])})` : "";
      return div("", span(s.color, s.name), span("", format(s.values[i]) + band));
    });
    if (spec.stacked) lines.push(div("", span("", "together"), span("", format(rows.reduce((t, [s, i]) => t + (s.values[i] || 0), 0)))));
    tip.replaceChildren(div("muted", `step ${step}`), ...lines);
    tip.hidden = false;
    tip.style.top = `${box.getBoundingClientRect().top - figure.getBoundingClientRect().top - tip.offsetHeight + EDGE.top / 2}px`;
    const room = figure.clientWidth - tip.offsetWidth;
    tip.style.left = `${Math.max(0, Math.min(room, x < figure.clientWidth / 2 ? x + 12 : x - tip.offsetWidth - 12))}px`;
  }

  function hide() {
    cursor?.replaceChildren();
    tip.hidden = true;
  }

  function point(event) {
    const step = place.step(event.clientX - box.getBoundingClientRect().left);
    let best = 0;
    steps.forEach((s, i) => {
      if (Math.abs(s - step) < Math.abs(steps[best] - step)) best = i;
    });
    show(best);
  }
  box.addEventListener("pointermove", point);
  box.addEventListener("pointerdown", point);
  box.addEventListener("pointerleave", hide);
  box.addEventListener("blur", hide);
  box.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!move) return;
    event.preventDefault();
    event.stopPropagation();
    show(current < 0 ? steps.length - 1 : current + move);
  });
  new ResizeObserver(draw).observe(box);
  return figure;
}

function layout(spec, series, steps, width) {
  const all = spec.stacked
    ? steps.map((step) => series.reduce((t, s) => t + (s.values[s.at.get(step)] || 0), 0))
    : series.flatMap((s) => [...s.values, ...(s.low || []), ...(s.high || [])]).filter(exists);
  const [most, least] = all.reduce(([a, b], v) => [Math.max(a, v), Math.min(b, v)], [-Infinity, Infinity]);
  const high = Math.max(most, ...(spec.rules || []));
  const low = Math.min(spec.bottom ?? 0, least);
  const marks = ticks(low, high > low ? high : low + 1, 4, false).filter((t) => !exists(spec.top) || t <= spec.top + 1e-9);
  const [y0, y1] = [marks[0], marks[marks.length - 1]];
  const gap = steps.length > 1 ? Math.min(...steps.slice(1).map((s, i) => s - steps[i])) : 1;
  const pad = spec.stacked ? gap / 2 : 0;
  const [x0, x1] = [steps[0] - pad, Math.max(steps[steps.length - 1] + pad, steps[0] + 1 - pad)];
  const inner = width - EDGE.left - EDGE.right;
  const tall = HEIGHT - EDGE.top - EDGE.bottom;
  return {
    width,
    marks,
    gap: (gap / (x1 - x0)) * inner,
    x: (s) => EDGE.left + ((s - x0) / (x1 - x0)) * inner,
    y: (v) => EDGE.top + (1 - (v - y0) / (y1 - y0)) * tall,
    step: (px) => x0 + ((px - EDGE.left) / inner) * (x1 - x0),
    stepMarks: ticks(x0, x1, Math.max(2, Math.floor(inner / 60)), true).filter((t) => t >= x0 && t <= x1),
  };
}

function axes(spec, place, format) {
  const short =
    spec.unit === "percent"
      ? (v) => `${+(100 * v).toPrecision(3)} %`
      : spec.unit
        ? format
        : (v) => {
            if (v && Math.abs(v) < 1e-3) return v.toExponential(1).replace(".0e", "e");
            return Math.abs(v) < 1e4 ? String(+v.toPrecision(3)) : format(v);
          };
  const bottom = HEIGHT - EDGE.bottom;
  return [
    ...place.marks.flatMap((v) => [
      svg("line", { class: "grid", x1: EDGE.left, x2: place.width - EDGE.right, y1: place.y(v), y2: place.y(v) }),
      svg("text", { x: EDGE.left - 6, y: place.y(v) + 4, "text-anchor": "end" }, short(v)),
    ]),
    ...(spec.rules || []).map((v) =>
      svg("line", { class: "rule", x1: EDGE.left, x2: place.width - EDGE.right, y1: place.y(v), y2: place.y(v) }),
    ),
    ...place.stepMarks.map((s) => svg("text", { x: place.x(s), y: bottom + 16, "text-anchor": "middle" }, String(s))),
  ];
}

function px(value) {
  return value.toFixed(1);
}

function path(points) {
  let text = "";
  let open = false;
  for (const p of points) {
    if (p) text += `${open ? "L" : "M"}${px(p[0])} ${px(p[1])}`;
    open = Boolean(p);
  }
  return text;
}

function curves(series, place) {
  const shapes = [];
  for (const s of series) {
    const at = (values) => s.steps.map((step, i) => (exists(values[i]) ? [place.x(step), place.y(values[i])] : null));
    if (s.low) {
      const edge = [...at(s.high), ...at(s.low).reverse()].filter(Boolean);
      if (edge.length > 2) shapes.push(svg("path", { class: `band ${s.color}`, d: `${path(edge)}Z` }));
      else if (edge.length)
        shapes.push(
          svg("line", { class: `curve ${s.color}`, x1: edge[0][0], x2: edge[0][0], y1: edge[0][1], y2: edge[1][1], opacity: 0.4 }),
        );
    }
    const raw = at(s.values).filter(Boolean);
    const few = raw.length <= 40;
    if (s.line !== s.values)
      shapes.push(...raw.map(([x, y]) => svg("circle", { class: `raw ${s.color}`, cx: x, cy: y, r: few ? 2 : 1.3 })));
    shapes.push(svg("path", { class: `curve ${s.color}`, d: path(at(s.line)) }));
    if (s.line === s.values && few) shapes.push(...raw.map(([x, y]) => svg("circle", { class: `point ${s.color}`, cx: x, cy: y, r: 2.2 })));
  }
  return shapes;
}

function bars(series, place) {
  const base = new Map();
  const dense = place.gap < 6; /* no gaps between bars: they would outweigh the bars */
  const width = dense ? place.gap + 0.2 : Math.min(48, place.gap * 0.86);
  return series.map((s) => {
    let d = "";
    s.steps.forEach((step, i) => {
      const from = base.get(step) || 0;
      const to = from + (s.values[i] || 0);
      base.set(step, to);
      if (to > from) d += `M${px(place.x(step) - width / 2)} ${px(place.y(from))}h${px(width)}V${px(place.y(to))}h${px(-width)}Z`;
    });
    return svg("path", { class: `stack ${dense ? "" : "apart"} ${s.color}`, d });
  });
}
