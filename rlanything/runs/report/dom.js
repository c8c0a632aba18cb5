/* Elements and number formats. Text always becomes text nodes: nothing here parses markup. */
const DATA = JSON.parse(document.getElementById("data").textContent);
const SVG = document.getElementById("svg").namespaceURI;
const DASH = "–";
const MAX_LINES = 12; /* of a text before it is folded */

function fill(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes || {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else node.setAttribute(name, value === true ? "" : value);
  }
  node.append(...children.flat().filter((c) => c !== null && c !== undefined && c !== false));
  return node;
}

function el(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

function div(className, ...children) {
  return el("div", { class: className || null }, ...children);
}

function span(className, ...children) {
  return el("span", { class: className || null }, ...children);
}

function note(text) {
  return el("p", { class: "note" }, text);
}

function options(texts) {
  return texts.map((text, value) => el("option", { value }, text));
}

function svg(name, attributes, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

function byId(id) {
  return document.getElementById(id);
}

function exists(value) {
  return value !== null && value !== undefined;
}

function number(value) {
  if (!exists(value)) return DASH;
  const size = Math.abs(value);
  if (size !== 0 && (size < 0.001 || size >= 1e7)) return value.toExponential(1).replace("e+", "e");
  const digits = size >= 100 || Number.isInteger(value) ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3;
  return value.toLocaleString("en", { minimumFractionDigits: digits, maximumFractionDigits: digits }).replaceAll(",", "\u202f");
}

/* Ties go to the even digit, as in the figures that the run prints. */
function fixed(value, digits) {
  const scaled = +(Math.abs(value) * 10 ** digits).toFixed(6);
  const rounded = scaled % 1 === 0.5 ? 2 * Math.round(scaled / 2) : Math.round(scaled);
  return (value < 0 && rounded ? "−" : "") + (rounded / 10 ** digits).toFixed(digits);
}

function percent(value) {
  return exists(value) ? `${fixed(100 * value, 1)}\u00a0%` : DASH;
}

function signed(value, digits) {
  return exists(value) ? (value < 0 ? "" : "+") + fixed(value, digits) : DASH;
}

function interval(low, high) {
  return `${fixed(100 * low, 1)} to ${fixed(100 * high, 1)}`;
}

function duration(seconds) {
  if (seconds < 90) return `${Math.round(seconds)} s`;
  if (seconds < 5400) return `${Math.round(seconds / 60)} min`;
  return `${(seconds / 3600).toFixed(1)} h`;
}

function count(n, noun) {
  return `${number(n)} ${noun}${n === 1 ? "" : "s"}`;
}

/* Long text, folded behind its beginning. */
function foldable(text, className, limit) {
  const beginning = text.split("\n", MAX_LINES).join("\n").slice(0, limit).trimEnd();
  if (beginning === text.trimEnd()) return div(className, text);
  const summary = el("summary", {}, `${beginning} …`);
  const details = el("details", { class: className }, summary, text);
  details.addEventListener("toggle", () => {
    summary.textContent = details.open ? "less" : `${beginning} …`;
  });
  return details;
}
