/* Which figures are drawn together, and what to know when reading them. */
const TRAIN = DATA.train;
const LEARNERS = ["policy", "reward"];

function trained(name, key, smoothed = true) {
  return { name, key, steps: TRAIN.step || [], values: TRAIN[key], smooth: smoothed };
}

function evaluated(key, band) {
  return Object.entries(DATA.evaluations).map(([split, c]) => ({
    name: split,
    steps: c.step,
    values: c[key],
    low: band ? c.success_low : null,
    high: band ? c.success_high : null,
  }));
}

function evaluatedByKind(key) {
  const splits = Object.entries(DATA.evaluations);
  return splits.flatMap(([split, c]) =>
    Object.keys(c)
      .filter((name) => name.startsWith(`${key}/`))
      .map((name) => {
        const kind = name.slice(key.length + 1);
        return { name: splits.length > 1 ? `${split}, ${kind}` : kind, steps: c.step, values: c[name] };
      }),
  );
}

function ofLearners(key) {
  return LEARNERS.map((role) => trained(role, `${role}/${key}`));
}

function withPrefix(prefix, suffix, smoothed) {
  const keys = Object.keys(TRAIN).filter((k) => k.startsWith(prefix) && k.endsWith(suffix));
  return keys.map((k) => trained(k.slice(prefix.length, k.length - suffix.length), k, smoothed));
}

const CHARTS = [
  {
    title: "Success on evaluations",
    unit: "percent",
    top: 1,
    series: evaluated("success_rate", true),
    note: "The same tasks at every evaluation; bands are 95 % intervals over tasks.",
  },
  {
    title: "Success in training",
    unit: "percent",
    top: 1,
    series: [trained("success", "success_rate")],
    note: "Other tasks every step, and adapted ones among them: evaluations say whether the policy improves.",
  },
  {
    title: "Unit tests on evaluations: right",
    unit: "percent",
    top: 1,
    series: evaluated("test_accuracy", false),
    note: "Of tasks with a correct program: the reward model’s tests that every correct program passes.",
  },
  {
    title: "Unit tests on evaluations: telling",
    unit: "percent",
    top: 1,
    series: evaluated("test_detect_rate", false),
    note: "Of tasks with correct and wrong programs: tests that all correct ones pass and all wrong ones fail.",
  },
  {
    title: "Unit tests in training",
    unit: "percent",
    top: 1,
    series: [trained("right", "test_accuracy"), trained("telling", "test_detect_rate"), trained("no test", "test_unparsable_rate")],
  },
  {
    title: "Verdicts of checks",
    unit: "percent",
    top: 1,
    series: withPrefix("verdict/", "", true),
    note: "Of the actions in training: tests of a program, how a call of a tool ended, or whether a click hit.",
  },
  {
    title: "RM accuracy on evaluations",
    unit: "percent",
    top: 1,
    rules: [0.5],
    series: evaluated("rm_process_accuracy", false),
    note: "Votes against the domain’s step labels, which no update sees, on the steps of the policy of that step. Dashed: 50 %.",
  },
  {
    title: "RM accuracy in training",
    unit: "percent",
    top: 1,
    rules: [0.5],
    note: "Process: against step labels. Outcome: against O. p+ = P(S = +1 | O = +1), p− = P(S = −1 | O = −1).",
    series: [
      trained("process", "rm_process_accuracy"),
      trained("outcome", "rm_outcome_agreement"),
      trained("p+", "rm_p_plus"),
      trained("p−", "rm_p_minus"),
    ],
  },
  {
    title: "μ = p+ + p− and its bound",
    top: 2,
    rules: [1],
    series: [trained("μ", "rm_mu"), trained("bound", "rm_bound")],
    note: "Above 1 (dashed) the votes separate good from bad; the bound is 1 − exp(−m(μ − 1)²/4).",
  },
  {
    title: "Adapted tasks",
    note: "Totals since the start; pending: candidates that wait for a verdict.",
    series: [
      ["accepted", "accepted"],
      ["dropped", "dropped"],
      ["rejected", "rejected"],
      ["pending", "pending"],
    ].map(([n, k]) => trained(n, `tasks/${k}`, false)),
  },
  {
    title: "Output without effect",
    unit: "percent",
    top: 1,
    note: "Invalid: actions that did nothing, those that could not be parsed among them. Votes: judgements without a score.",
    series: [
      trained("invalid", "invalid_action_rate"),
      trained("unparsable", "unparsable_action_rate"),
      trained("unparsable votes", "rm_unparsable_rate"),
    ],
  },
  { title: "Turns an episode", series: [trained("turns", "mean_turns")] },
  {
    title: "Response tokens an episode",
    series: [trained("tokens", "response_tokens")],
    note: "Generated in training, all turns of an episode together.",
  },
  {
    title: "Tool calls an episode",
    series: [trained("calls", "calls")],
    note: "In training, with those that could not be read or were refused.",
  },
  {
    title: "Episodes with a tool call",
    unit: "percent",
    top: 1,
    series: evaluatedByKind("call_share"),
    note: "On evaluations, by kind of task: what is left is answered without the tool.",
  },
  {
    title: "Tool calls that ended well",
    unit: "percent",
    top: 1,
    series: [trained("calls", "call_success_rate")],
    note: "Of the calls in training. Calls that could not be read or were refused did not.",
  },
  {
    title: "Progress and truncation",
    unit: "percent",
    top: 1,
    series: [trained("steps with progress", "step_progress_rate"), trained("truncated episodes", "truncated_rate")],
  },
  { title: "Time of a step", unit: "seconds", stacked: true, series: withPrefix("seconds/", "", false) },
  { title: "Tokens a second", series: withPrefix("engine/", "_tokens_per_s", true), note: "Generated, while the engine was busy." },
  { title: "Entropy", series: ofLearners("entropy"), note: "Nats a token." },
  { title: "KL to the pre-update policy", series: ofLearners("approx_kl") },
  { title: "KL to the reference", series: ofLearners("kl_reference") },
  {
    title: "Engine–learner mismatch",
    series: ofLearners("mismatch_kl"),
    note: "KL between the sampler’s and the learner’s probabilities of the same tokens.",
  },
  { title: "Gradient norm", series: ofLearners("grad_norm") },
];

/* A figure of one's choice among all that the charts above leave out. */
function anyFigure() {
  const shown = new Set(CHARTS.flatMap((c) => c.series.map((s) => s.key)));
  const keys = Object.keys(TRAIN)
    .filter((k) => k !== "step" && !shown.has(k))
    .sort();
  if (!keys.length) return null;
  const slot = div("");
  const select = el(
    "select",
    { "aria-label": "Figure", onchange: () => slot.replaceChildren(draw()) },
    keys.map((k) => el("option", { value: k }, k)),
  );
  const draw = () => chart({ title: "Any other figure", series: [trained(select.value, select.value)] });
  slot.append(draw());
  return div("", slot, select);
}

function drawCurves() {
  const section = byId("curves");
  const figures = [...CHARTS.map(chart), (TRAIN.step || []).length ? anyFigure() : null].filter(Boolean);
  section.append(
    figures.length
      ? note(
          "Over training steps. Dots are what was measured, lines a light Gaussian mean of it; " +
            "point at a chart, or focus it and use the arrow keys, for values.",
        )
      : note("Nothing was recorded yet."),
    div("charts", figures),
  );
}
