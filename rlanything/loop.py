"""The closed loop: play and judge episodes, adapt tasks, update both models, load their weights into the engines."""

import asyncio
import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from rlanything.algorithm.advantages import within
from rlanything.algorithm.diagnostics import figures as figures_of
from rlanything.algorithm.summary import GroupSummary, Tally
from rlanything.algorithm.tasks import TaskPool
from rlanything.evaluation.figures import summarise
from rlanything.evaluation.play import check_failures, evaluation_batch, evaluation_tasks, play
from rlanything.processes.coroutines import run_coroutine
from rlanything.rollout.collect import Batch
from rlanything.rollout.digest import LEVEL, Digest, band
from rlanything.rollout.rewriting import rewrite
from rlanything.run import Run
from rlanything.runs import checkpoint
from rlanything.runs.folder import RunFolder, remove
from rlanything.runs.metrics import Metrics, append_jsonl, drop_after
from rlanything.runs.progress import Progress
from rlanything.runs.report import write_report

MISMATCH = ("mismatch_kl", "logprob_abs_diff")  # differences between learner and engine under the same weights
RATES = [  # (name in a step's line, metric)
    ("success", "success_rate"),
    ("invalid", "invalid_action_rate"),
    ("RM process", "rm_process_accuracy"),
    ("RM outcome", "rm_outcome_agreement"),
    ("tests right", "test_accuracy"),
    ("telling", "test_detect_rate"),
]


class Loop:
    """One training run. `train` runs all of it; the other methods are its phases.

    The event loop runs only while engines generate. Ctrl-C cancels its tasks then, and interrupts at once otherwise.
    """

    def __init__(self, run: Run, folder: RunFolder, metrics: Metrics, progress: Progress) -> None:
        self.run, self.config, self.folder, self.metrics, self.progress = run, run.config, folder, metrics, progress
        band = run.config.adaptation
        self.pool = TaskPool.of(run.originals, band.alpha_low, band.alpha_high, run.config.experiment.seed)
        self.step = 0
        self.ahead: list[Digest] | None = None  # the next step's rollouts, with `rollout.max_staleness`
        self.pool_state: dict[str, Any] = {}  # the pool before `ahead` was drawn: a resumed run draws it again

    def train(self) -> None:
        """Train up to `total_step`, from the newest checkpoint if there is one."""
        with asyncio.Runner() as self.runner, self.no_update_left():
            self.restore()
            if self.step == 0:
                self.evaluate()
            total, every = self.config.experiment.total_step, self.config.experiment.eval_every
            if self.step >= total:
                self.progress.line(
                    f"{self.step} steps are done, experiment.total_step={total}: nothing is left to train"
                )
            while self.step < total:
                self.train_step()
                if self.step == total or (every and self.step % every == 0):
                    self.evaluate()
                if self.step == total or self.step % self.config.experiment.save_every == 0:
                    self.save()

    def train_step(self) -> None:
        """One step of the closed loop."""
        step, config, run = self.step + 1, self.config, self.run
        self.progress.start_step(f"step {step}/{config.experiment.total_step}")
        digests = self.ahead or run_coroutine(self.collect(step), self.runner)
        groups = [digest.summary for digest in digests]
        dropped = self.settle(groups, step)
        if not config.adaptation.train_dropped:
            digests = [digest for digest in digests if digest.summary.task.id not in dropped]
        proposals = run_coroutine(self.adapt(groups, step), self.runner)
        if config.rollout.max_staleness and step < config.experiment.total_step:
            self.pool_state = self.pool.state_dict()
            updates, self.ahead = run_coroutine(self.update_and_collect(digests, step + 1), self.runner)
        else:
            self.ahead = None
            run.sleep()  # engines that share accelerators with learners free their memory
            updates = self.update(digests)
        run.sync_weights(step)

        self.step = step
        self.record(groups, proposals | updates)

    async def collect(self, step: int) -> list[Digest]:
        """Play k episodes of each task of the step. The judge scores finished turns while other episodes go on.

        Where a group was played, its feedback and samples are made and its episodes are written.
        """
        rollout = self.config.rollout
        adaptation = self.config.adaptation
        tasks = self.pool.draw(rollout.num_trial, adaptation.max_candidate, adaptation.revisit)
        seed, path = f"{self.config.experiment.seed}/{step}", self.folder.rollouts(step)
        remove(path)  # of a step that was cut off
        batch = Batch(tasks=tasks, num=rollout.num_rollout_per_trial, seed=seed, rollout=rollout, path=path)
        with self.progress.phase("rollout", len(tasks) * batch.num) as bar:
            digests = await self.run.collect(batch, bar.advance)
        check_failures([digest.summary for digest in digests], rollout.max_failure_rate)
        return digests

    async def update_and_collect(self, digests: Sequence[Digest], step: int) -> tuple[dict[str, float], list[Digest]]:
        """Update in a thread while collecting the rollouts of `step`."""
        return await asyncio.gather(asyncio.to_thread(self.update, digests), self.collect(step))

    @contextmanager
    def no_update_left(self) -> Iterator[None]:
        """If the run fails, end the learners: the event loop closes only when the thread of an update has returned."""
        try:
            yield
        except BaseException:
            self.run.end_learners()
            raise

    def settle(self, groups: Sequence[GroupSummary], step: int) -> set[str]:
        """Accept or drop candidate tasks by their measured accuracy. Returns the ids of the dropped ones."""
        dropped = set()
        for candidate, accepted in self.pool.settle(groups, step, self.config.rollout.min_group):
            if self.run.domain.rewriting:
                self.run.domain.rewriting.settle(candidate, accepted)
            if not accepted:
                dropped.add(candidate.id)
        return dropped

    async def adapt(self, groups: Sequence[GroupSummary], step: int) -> dict[str, float]:
        """Let the rewriter propose variants of the tasks outside the accuracy band."""
        config, run = self.config.adaptation, self.run
        if not config.enabled:
            return {}
        room = config.max_candidate - len(self.pool.candidates)
        requests = self.pool.rewrite_requests(groups, room, self.config.rollout.min_group)
        with self.progress.phase("rewrite"):
            seed = str(self.config.experiment.seed)
            counts = await rewrite(requests, self.pool, run.models["rewriter"], run.domain, config, seed, step)
        return {f"tasks/{k}": float(v) for k, v in counts.items()}

    def update(self, digests: Sequence[Digest]) -> dict[str, float]:
        """Update every model that learns, each on the groups whose accuracy lies within its band."""
        trained = [d.summary for d in digests if d.summary.num_valid >= self.config.rollout.min_group]
        metrics = {"groups_too_small": float(len(digests) - len(trained))}
        for role, learner in self.run.learners.items():
            sets = [one for digest in digests for one in digest.sets[role]]
            with self.progress.phase(f"update {role}"):
                figures = learner.update(sets) if sets else {}
            if self.config.rollout.max_staleness:  # older weights sampled: these would measure the update too
                figures = {k: v for k, v in figures.items() if k not in MISMATCH}
            figures["samples"] = sum(one.num for one in sets)
            figures["groups_dropped"] = sum(not within(g.solved_share, band(self.config, role)) for g in trained)
            if role == "policy":
                figures[LEVEL] = sum(g.tally.sums[LEVEL] for g in trained)
            metrics |= {f"{role}/{k}": float(v) for k, v in figures.items()}
        return metrics

    def record(self, groups: Sequence[GroupSummary], figures: dict[str, float]) -> None:
        """Write the step's task events and metrics, and print its line."""
        pool = self.pool
        append_jsonl(self.folder.ledger, pool.drain_events())
        measured = figures_of(Tally.of_all(group.tally for group in groups))
        figures = measured | figures | {f"tasks/{k}": float(v) for k, v in pool.counts.items()}
        figures |= {"tasks/active": len(pool.active), "tasks/pending": len(pool.candidates)}
        figures |= {f"seconds/{k}": v for k, v in self.progress.seconds.items()} | {"step_s": self.progress.elapsed}
        figures |= self.run.figures()
        self.metrics.write(self.step, "train", figures)
        self.progress.line(step_line(self.step, self.config.experiment.total_step, figures))

    def evaluate(self) -> None:
        """Measure the policy, and the judge on its episodes, on every evaluation split."""
        config, domain = self.config, self.run.domain
        for split in config.evaluation.splits:
            self.progress.start_step(f"step {self.step}")
            tasks = evaluation_tasks(domain, split, config.evaluation.num_task)
            path, done = self.folder.unfinished(self.step, split), self.folder.evaluation(self.step, split)
            remove(path)  # of an evaluation that was cut off
            batch = evaluation_batch(tasks, config, judged=config.evaluation.judge, path=path)
            with self.progress.phase("evaluate", len(tasks) * batch.num) as bar:
                groups = run_coroutine(play(batch, self.run.collect, bar.advance), self.runner)
            remove(done)
            path.rename(done)
            figures = summarise(groups, domain.kind)
            figures |= self.run.figures() | {"seconds/evaluate": self.progress.seconds["evaluate"]}
            self.metrics.write(self.step, "eval", {"split": split, **figures})
            low, high = figures["success_low"], figures["success_high"]
            self.progress.line(
                f"evaluation at step {self.step}, {split}: success {figures['success_rate']:.1%} "
                f"({low:.1%} to {high:.1%}, {figures['episodes']:.0f} episodes)"
            )
        write_report(self.folder)

    def save(self) -> None:
        """Write a checkpoint: models, optimizers, schedules, random generators and task pool."""
        with self.progress.phase("checkpoint"):
            state = {"pool": self.pool_state if self.ahead else self.pool.state_dict()}
            self.run.sleep()
            keep = self.config.experiment.keep_checkpoint
            checkpoint.save(self.folder.checkpoints, self.step, self.run.learners, state, keep)
            self.run.wake()
            self.run.clear_caches()  # a resumed run starts without caches, which decide how requests are batched
        write_report(self.folder)

    def restore(self) -> None:
        """Load the newest checkpoint, if any, and delete what was recorded after it."""
        newest = checkpoint.latest(self.folder.checkpoints)
        if newest is not None:
            state = checkpoint.load(newest, self.run.learners)
            self.step = state["step"]
            self.pool.load_state_dict(state["pool"])
            self.pool.leave_out(self.run.domain.refusal)
            self.progress.line(f"resumed from {newest}")
        for path in (self.folder.metrics, self.folder.ledger):
            drop_after(path, self.step if newest else -1)
        self.run.sync_weights(self.step)


def step_line(step: int, total: int, figures: dict[str, float]) -> str:
    """A step's figures in one line, without rates that could not be measured."""
    shown = [f"{name} {figures[key]:.0%}" for name, key in RATES if not math.isnan(figures.get(key, math.nan))]
    return (
        f"step {step}/{total}  {'  '.join(shown)}  turns {figures['mean_turns']:.1f}  "
        f"tasks +{figures['tasks/accepted']:.0f} ?{figures['tasks/pending']:.0f}  {figures['step_s']:.0f} s"
    )
