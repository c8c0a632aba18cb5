/* A sample of episodes, turn by turn: response, action, observation, judgements and feedback. */
const ADVANTAGE_SPAN = 3; /* z-scores beyond it fill the bar */
const FEEDBACK_SPAN = 2; /* R with w_o = λ = 1 */
const ENDINGS = { turns: ": out of turns", length: ": a response was cut at its limit", context: ": out of context" };

function mark(score, title) {
  if (!exists(score)) return el("span", { class: "mark none", title: title || "no score" }, "?");
  if (score === 0) return el("span", { class: "mark none", title: title || "" }, "0");
  return el("span", { class: `mark ${score > 0 ? "good" : "bad"}`, title: title || "" }, score > 0 ? "+" : "−");
}

/* A bar to the right of the middle for a positive value, to the left for a negative one; `full` fills it. */
function diverging(value, full) {
  const size = Math.min(1, Math.abs(value) / full) * 59;
  return svg(
    "svg",
    { class: `diverging ${value < 0 ? "bad" : "good"}`, viewBox: "0 0 120 14", preserveAspectRatio: "none", "aria-hidden": "true" },
    svg("line", { class: "grid", x1: 0, x2: 120, y1: 7, y2: 7 }),
    svg("rect", { x: value < 0 ? 60 - size : 60, y: 3, width: size, height: 8, fill: "currentColor" }),
    svg("line", { class: "cursor", x1: 60, x2: 60, y1: 0, y2: 14 }),
  );
}

function pair(name, value, middle) {
  return div("pair", span("muted", name), middle, span("", value));
}

function vote([score, text, error, advantage]) {
  const title = `${exists(score) ? `score ${signed(score, Number.isInteger(score) ? 0 : 2)}` : `no score: ${error}`}; advantage ${signed(advantage, 2)}`;
  return div("vote", mark(score, title), foldable(text || "(empty)", "text", 110));
}

const PROGRAM = "program"; /* the kind of an action that tests try */

/* Programs against tests: the problem's own, then those that the reward model wrote. A row is an episode. */
function matrix(task, shown, go) {
  const programs = task.episodes.map((e) => e.turns[0] || {});
  const own = Math.max(...programs.map((p) => (p.kind === PROGRAM && p.results ? p.results.length : 0)));
  if (!task.tests.length && !own) return null;
  const columns = (n, letter) => Array.from({ length: n }, (_, i) => el("th", { scope: "col" }, `${letter}${i + 1}`));
  const row = (program, i) => {
    const results = Array.from({ length: own }, (_, j) => (program.results || [])[j]);
    return el(
      "tr",
      { class: i === shown ? "shown" : "" },
      el("th", { scope: "row" }, el("button", { onclick: () => go(i) }, String(task.episodes[i].index))),
      results.map((r) => el("td", {}, mark(r && (r === "ok" ? 1 : -1), (r || "not tried").replaceAll("_", " ")))),
      task.tests.map(([, , error], j) => {
        const score = (program.test_scores || [])[j];
        return el("td", {}, mark(score, exists(score) ? (score > 0 ? "passed" : "failed") : error || "not tried"));
      }),
    );
  };
  const head = el("tr", {}, el("th", { scope: "col" }, "episode"), columns(own, "P"), columns(task.tests.length, "T"));
  const test = (t, j) => div("unit-test", el("b", {}, `T${j + 1}`), vote(t));
  return div(
    "",
    el(
      "p",
      { class: "small muted" },
      `Which program passed which test: P are the problem's own${task.tests.length ? ", T the reward model's" : ""}.`,
    ),
    div("matrix", el("table", {}, el("thead", {}, head), el("tbody", {}, programs.map(row)))),
    task.tests.length
      ? el("p", { class: "small muted" }, "The reward model's tests; the circle says whether every correct program passes.")
      : null,
    div("unit-tests", task.tests.map(test)),
  );
}

function numbers(turn, trains) {
  const row = (name, value, full) => pair(name, signed(value, 2), diverging(value, full));
  const label = exists(turn.label) ? pair("step label", turn.label > 0 ? "progress" : "no progress", null) : null;
  label?.lastChild.classList.add(turn.label > 0 ? "good" : "bad");
  return div(
    "side numbers",
    label,
    exists(turn.reward) ? row("feedback R", turn.reward, FEEDBACK_SPAN) : null,
    exists(turn.advantage) ? row("advantage", turn.advantage, ADVANTAGE_SPAN) : trains ? div("muted", "takes no part in the update") : null,
  );
}

/* A screenshot; a ring shows where the action points. */
function shot(path, point) {
  const [x, y] = (point || []).map((share) => `${100 * share}%`);
  const ring = point ? span("ring") : null;
  if (ring) Object.assign(ring.style, { left: x, top: y });
  return div("shot", el("img", { src: path, loading: "lazy", alt: "what the policy saw" }), ring);
}

/* What the policy saw before each turn, and at the end. */
function screens(episode) {
  const after = episode.turns.map((turn) => turn.images || []);
  return [episode.first_images || [], ...after].map((images) => images[images.length - 1]);
}

function filmstrip(episode) {
  const seen = screens(episode);
  if (!seen.some(exists)) return null;
  const frame = (path, i) => {
    const turn = episode.turns[i];
    const caption = i < episode.turns.length ? String(i + 1) : "end";
    const label = turn && exists(turn.label) ? (turn.label > 0 ? " good" : " bad") : "";
    return div(`frame${label}`, exists(path) ? shot(path, turn && turn.point) : null, div("small muted", caption));
  };
  return div("filmstrip", seen.map(frame));
}

function turnRow(turn, i, trains, before) {
  const { nodes, called } = conversation(turn.text || "", turn.calls);
  const action = exists(turn.action)
    ? div("act mono", actionText(turn.action))
    : div("bad small", `no action: ${turn.parse_error || "none found"}`);
  const told = turn.results && turn.kind !== PROGRAM ? turn.results.join(", ").replaceAll("_", " ") : "";
  const ended = told ? div("small muted", `${called ? "the call ended" : "verdict"}: ${told}`) : null;
  const stops = turn.stop_reason ? div("small muted", `stopped: ${turn.stop_reason}`) : null;
  return div(
    "turn",
    div("n", String(i + 1)),
    div(
      "",
      exists(before) ? shot(before, turn.point) : null,
      nodes,
      turn.calls ? null : action,
      turn.observation
        ? foldable(turn.observation, `seen${turn.invalid ? " muted" : ""}${called ? " output mono" : ""}`, 600)
        : null,
      ended,
      turn.invalid ? div("small bad", "invalid action") : null,
      stops,
    ),
    div("side", turn.judgements.map(vote)),
    numbers(turn, trains),
  );
}

function tone(episode) {
  if (!["completed", "truncated"].includes(episode.status))
    return ["!", "broken", `broken by the infrastructure (${episode.status}): ${episode.error}`];
  if (episode.outcome > 0) return ["✓", "good", "solved"];
  return ["✗", "bad", `not solved${ENDINGS[episode.ending] || ""}`];
}

function taskName(task) {
  const origin = task.direction === "original" ? "" : `${ARROWS[task.direction]} · `;
  return `${task.num_success}/${task.num_episode} ✓ · ${origin}${task.description}`;
}

function coverage(files) {
  const kept = files.reduce((n, f) => n + f.tasks.reduce((m, t) => m + t.episodes.length, 0), 0);
  const total = files.reduce((n, f) => n + f.num_episode, 0);
  const { num_file, max_text } = DATA.excerpts;
  const shown = `${number(kept)} of the ${number(total)} episodes in ${files.length} of ${count(num_file, "file")} are embedded`;
  return (
    `${shown}: some steps, and a few tasks of each, mixed outcomes first; texts are cut at ${number(max_text)} characters. ` +
    "Everything, token ids included, is in the parquet files in rollouts/ and evaluations/ next to this page."
  );
}

function drawEpisodes() {
  const section = byId("episodes");
  const { files } = DATA.excerpts;
  if (!files.length) {
    section.append(note("No episode was recorded yet."));
    return;
  }
  const at = { file: 0, task: 0, episode: 0 };
  const labels = files.map((f) => f.label);
  const fileSelect = el("select", { "aria-label": "Step" }, options(labels));
  const taskSelect = el("select", { "aria-label": "Task" });
  const chips = el("div", { class: "chips", role: "group", "aria-label": "Episodes" });
  const body = div("");

  function go(file, task, episode) {
    Object.assign(at, { file, task, episode });
    const { tasks, path } = files[file];
    const { episodes } = tasks[task];
    fileSelect.value = file;
    taskSelect.replaceChildren(...options(tasks.map(taskName)));
    taskSelect.value = task;
    chips.replaceChildren(
      el("button", { "aria-label": "Previous episode", onclick: () => move(-1) }, "←"),
      ...episodes.map((e, i) => {
        const [sign, className, words] = tone(e);
        return el(
          "button",
          { class: `chip ${className}`, "aria-pressed": String(i === episode), title: words, onclick: () => go(file, task, i) },
          `${sign} ${e.index}`,
        );
      }),
      el("button", { "aria-label": "Next episode", onclick: () => move(1) }, "→"),
    );
    show(tasks[task], episodes[episode], path);
  }

  function repeats(episode) {
    return episode.begun ? `; it went on from episode ${episode.origin} after ${count(episode.begun, "turn")}, judged there` : "";
  }

  /* Says if no episode of the task trains the policy, because of its accuracy. */
  function untrained(task, path) {
    const [low, high] = DATA.policy_band;
    const accuracy = task.num_success / task.num_valid;
    const inside = accuracy >= low && accuracy <= high;
    return inside || !path.startsWith("rollouts") ? "" : "; outside the band of accuracies that the policy trains on";
  }

  function show(task, episode, path) {
    const [, className, words] = tone(episode);
    const origin =
      task.direction === "original" ? "an original task" : `${task.direction} than ${task.parent_id}, born at step ${task.born_step}`;
    body.replaceChildren(
      div(`outcome ${className}`, el("b", {}, words), span("", ` after ${count(episode.turns.length, "turn")}${shapedBy(episode)}`)),
      el(
        "p",
        { class: "small muted" },
        `${task.task_id}, ${task.kind}, ${origin}; episode ${episode.index} in ${path}${repeats(episode)}${untrained(task, path)}`,
      ),
      episode.first_observation ? foldable(episode.first_observation, "first said", 1500) : "",
      filmstrip(episode) || "",
      matrix(task, task.episodes.indexOf(episode), (i) => go(at.file, at.task, i)) || "",
      div(
        "turns",
        episode.turns.map((t, i) => turnRow(t, i, path.startsWith("rollouts"), screens(episode)[i])),
      ),
    );
  }

  /* Go to the next or previous episode, across tasks and steps. */
  function move(by) {
    let { file, task, episode } = at;
    episode += by;
    if (episode < 0 || episode >= files[file].tasks[task].episodes.length) {
      task += by;
      if (task < 0 || task >= files[file].tasks.length) {
        file += by;
        if (file < 0 || file >= files.length) return;
        task = by > 0 ? 0 : files[file].tasks.length - 1;
      }
      episode = by > 0 ? 0 : files[file].tasks[task].episodes.length - 1;
    }
    go(file, task, episode);
  }

  fileSelect.addEventListener("change", () => go(+fileSelect.value, 0, 0));
  taskSelect.addEventListener("change", () => go(at.file, +taskSelect.value, 0));
  document.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    const box = section.getBoundingClientRect();
    const seen = box.top < window.innerHeight * 0.8 && box.bottom > 0;
    if (!by || !seen || event.altKey || event.ctrlKey || event.metaKey || ["INPUT", "SELECT", "TEXTAREA"].includes(event.target.tagName))
      return;
    event.preventDefault();
    move(by);
  });
  section.append(
    note(coverage(files)),
    note(
      "Circles are the reward model’s votes S; the step label is the domain’s own and trains nothing. " +
        "Bars: the turn’s integrated feedback R, and its advantage. Arrow keys step through episodes.",
    ),
    div("picker", fileSelect, taskSelect),
    chips,
    body,
  );
  go(0, 0, 0);
}

drawTop();
drawSummary();
drawCurves();
drawTasks();
drawEpisodes();
drawConfiguration();
