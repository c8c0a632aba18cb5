/* A response as people read it: its thoughts, its text, and its calls of tools, each with its code. */
const PARTS = /<think>([\s\S]*?)(?:<\/think>|$)|<tool_call>([\s\S]*?)(?:<\/tool_call>|$)/g;
const FUNCTION = /^\s*<function=([^>\s]+)\s*>/;
const PARAMETER = /<parameter=([^>\s]+)\s*>\n?([\s\S]*?)\n?(?:<\/parameter>|$)/g;

/* {name, given: [[argument, text]]} of a call in JSON (hermes) or in XML (newer Qwen models); null if it is neither. */
function readCall(text) {
  const xml = text.match(FUNCTION);
  if (xml) return { name: xml[1], given: [...text.matchAll(PARAMETER)].map(([, key, value]) => [key, value]) };
  try {
    const { name, arguments: found } = JSON.parse(text);
    const given = typeof found === "string" ? JSON.parse(found) : found;
    return { name: String(name), given: Object.entries(given).map(([k, v]) => [k, typeof v === "string" ? v : JSON.stringify(v)]) };
  } catch {
    return null;
  }
}

function callBlock(text) {
  const call = readCall(text);
  if (!call) return unreadable(text.trim());
  const told = call.given.map(([name, value]) => (call.given.length > 1 ? `${name}: ${value}` : value)).join("\n");
  return div("call", div("small muted", call.name), foldable(told, "code mono", 1500));
}

function unreadable(text) {
  return div("call", div("small bad", "a call that cannot be read"), foldable(text, "code mono", 1500));
}

/* A call as the environment took it: an object of texts. */
function executed(call) {
  if (exists(call.error)) return unreadable(call.error);
  return div("call", div("small muted", Object.keys(call).join(", ")), foldable(Object.values(call).join("\n"), "code mono", 1500));
}

/* {nodes, called}: the parts of a response in order, and whether a tool was called. `calls` are those that the
   environment took, if it says so: code may hold the marks of a call, and a long text is cut. */
function conversation(text, calls) {
  const found = [...text.matchAll(PARTS)].filter((part) => part[2] !== undefined);
  if (calls && calls.length !== found.length) {
    const before = conversation(text.slice(0, found.length ? found[0].index : text.length));
    const after = found.length && text.includes("</tool_call>") ? text.slice(text.lastIndexOf("</tool_call>") + 12).trim() : "";
    return { nodes: [...before.nodes, ...calls.map(executed), after ? foldable(after, "said", 400) : null], called: true };
  }
  const taken = (calls || []).map(executed);
  const nodes = [];
  const say = (piece) => piece.trim() && nodes.push(foldable(piece.trim(), "said", 400));
  const think = (piece) => piece.trim() && nodes.push(foldable(piece.trim(), "thought", 200));
  let [at, called] = [0, false];
  const end = text.indexOf("</think>");
  if (end >= 0 && !text.slice(0, end).includes("<think>")) {
    think(text.slice(0, end)); /* the prompt had opened the thought */
    at = end + "</think>".length;
  }
  for (const part of text.matchAll(PARTS)) {
    if (part.index < at) continue;
    say(text.slice(at, part.index));
    if (part[2] === undefined) think(part[1]);
    else nodes.push(taken.shift() || callBlock(part[2]));
    called ||= part[2] !== undefined;
    at = part.index + part[0].length;
  }
  say(text.slice(at));
  return { nodes: nodes.length ? nodes : [div("said", "(nothing)")], called };
}

/* An action that is an object of texts, line by line; any other as it is. */
function actionText(action) {
  try {
    const entries = Object.entries(JSON.parse(action));
    if (entries.length && entries.every(([, value]) => typeof value === "string"))
      return entries.map(([key, value]) => `${key}: ${value}`).join("\n");
  } catch {
    /* no JSON */
  }
  return action;
}

/* The terms that an episode's reward gained or lost besides its outcome, in words; empty if there are none. */
function shapedBy(episode) {
  const terms = Object.entries(episode.shaping || {}).filter(([, value]) => value);
  const told = terms.map(([name, value]) => `${name} ${signed(value, 2)}`);
  return told.length ? `; reward ${signed(episode.reward, 2)}, of it ${told.join(", ")}` : "";
}
