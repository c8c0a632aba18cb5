"""The report's scripts in a real browser: every section is drawn, nothing raises, and its controls work."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest
from builders import summaries
from PIL import Image
from report_runs import group, write_evaluation, write_step

from rlanything.algorithm.tasks import TaskPool
from rlanything.domains.parts import variant_of
from rlanything.runs.metrics import append_jsonl
from rlanything.runs.report import write_report
from rlanything.types import Direction, Task

BROWSER = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), ""
)
pytestmark = pytest.mark.skipif(not BROWSER, reason="no chromium (Debian: apt-get install chromium)")
NARROW = 500  # pixels: Chromium makes no narrower window
QUIET = ("--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking")
# The page's own policy forbids foreign scripts: it is taken out of the copy that this one drives.
DRIVER = """
window.faults = [];
window.addEventListener("error", (event) => window.faults.push(event.message));
window.addEventListener("load", () => {
  const said = [];
  const outcome = () => document.querySelector("#episodes .outcome").textContent;
  said.push(outcome());
  document.querySelector("#episodes .chips [aria-label='Next episode']").click();
  said.push(outcome());
  document.dispatchEvent(new KeyboardEvent("keydown", { key: "ArrowLeft" }));
  const select = document.querySelector("#episodes select");
  select.value = select.options.length - 1;
  select.dispatchEvent(new Event("change"));
  said.push(document.querySelector("#episodes .small.muted").textContent);
  document.querySelectorAll("details").forEach((d) => (d.open = true));
  document.body.dataset.widths = `${innerWidth} ${document.documentElement.scrollWidth}`;
  document.body.dataset.said = JSON.stringify(said);
  document.body.dataset.faults = JSON.stringify(window.faults);
});
"""


def dom(page: Path, profile: Path, width: int = 1200) -> str:
    """The document as the browser has it once all scripts have run."""
    command = [
        BROWSER,
        "--headless",
        "--no-sandbox",
        *QUIET,
        f"--user-data-dir={profile}",
        f"--window-size={width},2000",
        "--virtual-time-budget=5000",
    ]
    done = subprocess.run(
        [*command, "--dump-dom", page.as_uri()], capture_output=True, text=True, timeout=120, check=True
    )
    return done.stdout


@pytest.fixture
def drawn(folder, tmp_path):
    root = Task(id="root", payload={"sentence": "find a mug"})
    harder = variant_of(root, {}, Direction.HARDER, "root~1")
    pool = TaskPool.of([root], 0.2, 0.8, 0)
    pool.settle(summaries([group(root, [1] * 8)]), 1, 2)
    pool.propose(harder, 1.0, 1, "find a hot mug")
    pool.settle(summaries([group(harder, [1, -1, -1, -1])]), 2, 2)
    append_jsonl(folder.ledger, pool.drain_events())
    write_evaluation(folder, 0, "seen", 25, rm_process_accuracy=0.5)
    for step in (1, 2):
        write_step(folder, step, [group(root, [1, -1]), group(harder, [-1, -1])], **{"step_s": 30.0})
    write_evaluation(folder, 2, "seen", 60, rm_process_accuracy=0.75)
    write_report(folder)
    text = folder.report.read_text()
    driven = re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', f"<script>{DRIVER}</script>", text)
    assert driven != text
    (tmp_path / "driven.html").write_text(driven)
    pages = ((tmp_path / "driven.html", 1200), (folder.report, 1200), (tmp_path / "driven.html", NARROW))
    return [dom(page, tmp_path / "profile", width) for page, width in pages]


def test_scripts_draw_every_section_and_controls_work(drawn):
    driven, shown, narrow = drawn
    said = html.unescape(re.search(r'data-said="([^"]*)"', driven)[1])
    assert re.search(r'data-faults="\[\]"', driven), "no script raised"
    assert "solved after 1 turn" in said and "not solved after 1 turn" in said and "rollouts/step_000001" in said
    for section in ("summary", "curves", "tasks", "episodes", "configuration"):
        body = re.search(rf'<section id="{section}".*?</section>', shown, re.DOTALL)[0]
        assert len(body) > 300, f"{section} is empty, with the page's own security policy"
    for page, wanted in ((driven, 1200), (narrow, NARROW)):
        window, needed = map(int, re.search(r'data-widths="(\d+) (\d+)"', page).groups())
        assert needed <= window <= wanted, "a reader would have to scroll sideways"
    assert shown.count("<svg") > 5 and "find a hot mug" in shown and "25.0" in shown and "60.0" in shown


def test_calls_and_tokens_are_drawn_if_the_run_has_them(folder, tmp_path):
    quiet = group(Task(id="q", payload={}), [1, -1])
    write_step(folder, 1, [quiet])
    write_report(folder)
    without = dom(folder.report, tmp_path / "profile")
    for step, turn in enumerate((quiet.trajectories[0].turns[0], quiet.trajectories[1].turns[0]), 2):
        turn.kind, turn.results = "call", ("ok", "exception")
        write_step(folder, step, [quiet], **{"policy/entropy": 0.5})
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    titles = ("Response tokens an episode", "Tool calls an episode", "Tool calls that ended well", "Entropy")
    assert [f'aria-label="{title}: ' in without for title in titles] == [True, False, False, False]
    figures = ("tokens 1", "calls 2", "calls 50.0&nbsp;%", "policy 0.5")
    assert [title for title, at in zip(titles, figures, strict=True) if f'aria-label="{title}: {at}' not in shown] == []


def test_an_episode_that_went_on_from_another_says_so(folder, tmp_path):
    made = group(Task(id="q", payload={}), [1, -1])
    made.trajectories[0].origin, made.trajectories[0].begun = 1, 1
    write_step(folder, 1, [made])
    write_report(folder)
    assert "it went on from episode 1 after 1 turn, judged there" in dom(folder.report, tmp_path / "profile")


def test_kinds_of_tasks_that_are_answered_without_the_tool_can_be_told(folder, tmp_path):
    for step, easy in ((0, 1.0), (2, 0.25)):
        write_evaluation(folder, step, "seen", 25, **{"call_share/easy": easy, "call_share/hard": 1.0})
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    assert 'aria-label="Episodes with a tool call: easy 25.0&nbsp;%, hard 100.0&nbsp;%"' in shown
    table = shown.partition("Episodes with a tool call by task type")[2].partition("</details>")[0]
    assert re.findall(r"<td>([^<]*)</td>", table)[:4] == ["easy", "100.0&nbsp;%", "25.0&nbsp;%", "−75.0"]


def test_screenshots_are_shown_with_where_the_action_points(folder, tmp_path):
    pictures = []
    for name, colour in (("before", (255, 0, 255)), ("after", (0, 255, 255))):
        file = folder.path / "images" / f"{name}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (192, 160), colour).save(file)
        pictures.append(str(file))
    seen = group(Task(id="screen", payload={"sentence": "click"}), [1, -1])
    for episode in seen.trajectories:
        episode.first_images = tuple(pictures[:1])
        episode.turns[0].images, episode.turns[0].point = tuple(pictures[1:]), (0.25, 0.5)
    write_step(folder, 1, [seen])
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    assert shown.count('src="images/before.png"') == 2 and shown.count('src="images/after.png"') == 1
    assert re.search(r'class="ring" style="left: 25%; top: 50%;"', shown)
    picture = tmp_path / "page.png"
    window = ["--window-size=1200,6000", f"--screenshot={picture}", f"--user-data-dir={tmp_path / 'profile'}"]
    command = [BROWSER, "--headless", "--no-sandbox", *QUIET, *window, folder.report.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    colours = dict((colour, n) for n, colour in Image.open(picture).convert("RGB").getcolors(1 << 24))
    assert colours.get((255, 0, 255), 0) > 5000 and colours.get((0, 255, 255), 0) > 1000, (
        "the page's policy lets them in"
    )


def test_a_response_with_calls_is_shown_as_people_read_it(folder, tmp_path):
    hermes = '<tool_call>{"name": "run", "arguments": {"code": "x = 1\\nprint(x <b> 2)"}}</tool_call>'
    xml = "<tool_call><function=run>\n<parameter=code>\ny = 2\n</parameter>\n</function></tool_call>"
    talks = group(Task(id="calls", payload={"sentence": "6 * 7?"}), [1, -1])
    for episode in talks.trajectories:
        turn = episode.turns[0]
        turn.text = f"opened before.</think>I call. {hermes} and {xml} then <tool_call>nothing</tool_call>"
        taken = [{"code": "x = 1\nprint(x <b> 2)"}, {"code": "y = 2"}, {"error": "no JSON"}]
        turn.observation, turn.results = "1", ("ok", "time_limit", "unreadable")
        turn.action = json.dumps({"calls": taken})
        turn.reward = turn.advantage = 0.0
        episode.reward, episode.shaping = -0.8, {"calls": 0.2, "length": 0.0}
    write_step(folder, 1, [talks])
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    assert '<div class="thought">opened before.</div><div class="said">I call.</div>' in shown
    assert (
        '<div class="code mono">x = 1\nprint(x &lt;b&gt; 2)</div>' in shown
        and '<div class="code mono">y = 2</div>' in shown
    )
    assert "a call that cannot be read" in shown and "the call ended: ok, time limit, unreadable" in shown
    assert "reward −0.80, of it calls +0.20" in shown and "length" not in shown.partition("of it calls")[2][:20]
    assert ">takes no part in the update<" not in shown and "+0.00" in shown


def test_calls_are_shown_as_they_were_executed_even_if_code_holds_their_marks_or_the_text_is_cut(folder, tmp_path):
    codes = ["print('</tool_call>')", "a = 1", "b = 2"]
    marked = '<tool_call>{"name": "run", "arguments": {"code": "print(\'</tool_call>\')"}}</tool_call>'
    pair = '<tool_call>{"name": "run", "arguments": {"code": "a = 1"}} {"name": "run", "arguments": {"code": "b = 2"}}'
    for text in (f"First. {marked}{pair}</tool_call> Last.", f"First. {'w' * 4000}{marked}"):
        talks = group(Task(id="calls", payload={"sentence": "6 * 7?"}), [1, -1])
        for episode in talks.trajectories:
            turn = episode.turns[0]
            turn.text, turn.action = text, json.dumps({"calls": [{"code": code} for code in codes]})
        write_step(folder, 1, [talks])
        write_report(folder)
        shown = dom(folder.report, tmp_path / "profile")
        assert re.findall(r'<div class="code mono">([^<]*)</div>', shown) == [html.escape(c, False) for c in codes]
        assert ">a call that cannot be read<" not in shown
        assert ('<div class="said">First.</div>' in shown) is text.endswith("Last.")


def test_verdicts_of_an_answer_are_told_and_only_programs_have_a_table_of_tests(folder, tmp_path):
    answers = group(Task(id="answers", payload={"sentence": "6 * 7?"}), [1, -1])
    for episode, verdict in zip(answers.trajectories, ("ok (number)", "wrong (text)"), strict=True):
        episode.turns[0].kind, episode.turns[0].results = "answer", (verdict,)
    write_step(folder, 1, [answers])
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    assert "verdict: ok (number)" in shown and "P are the problem's own." not in shown
    for episode in answers.trajectories:
        episode.turns[0].kind, episode.turns[0].results = "program", ("ok", "wrong_answer")
    write_step(folder, 1, [answers])
    write_report(folder)
    shown = dom(folder.report, tmp_path / "profile")
    assert "verdict:" not in shown and "P are the problem's own." in shown
