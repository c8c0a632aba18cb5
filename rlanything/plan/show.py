"""`dry_run=true`: the resolved configuration, the device plan, the memory estimate and the batch arithmetic."""

from collections.abc import Mapping
from pathlib import Path

from rlanything.config.load import to_yaml
from rlanything.config.roles import most_tasks
from rlanything.config.section import Role
from rlanything.domains.registry import make_domain
from rlanything.engines.chat import Chat
from rlanything.errors import ConfigError, TaskError
from rlanything.plan.activations import model_shape
from rlanything.plan.checks import check_domain
from rlanything.plan.estimate import advice, estimate, told
from rlanything.plan.memory import (
    ACTIVATIONS,
    LEARNER,
    ModelSize,
    Parts,
    check_memory,
    copied_gib,
    device_gib,
    engine_faults,
    engine_gib,
    fits,
    learner_gib,
    model_size,
)
from rlanything.plan.models import check_images, check_local, check_tools
from rlanything.plan.placement import where
from rlanything.plan.plan import Plan
from rlanything.plan.prompts import check_templates
from rlanything.plan.tasks import training_tasks
from rlanything.runs.folder import check_place
from rlanything.runs.progress import Progress


def print_plan(plan: Plan, progress: Progress) -> None:
    """Print everything of a training run, start nothing.

    After all is printed, raises ConfigError if the plan cannot fit, else TaskError if the data is missing.
    """
    config, missing = plan.config, ""
    experiment = config.experiment
    progress.line(to_yaml(config).rstrip())
    check_place(Path(experiment.output_dir) / experiment.name, f"experiment.output_dir={experiment.output_dir}")
    chats, sizes, too_large = print_devices(plan, progress)
    rollout, reward, tried = config.rollout, config.reward, most_tasks(config)
    episodes = tried * rollout.num_rollout_per_trial
    turns = episodes * rollout.max_interaction_step
    tokens = rollout.max_interaction_step * rollout.max_response_tokens
    tokens = episodes * min(tokens, rollout.max_episode_tokens or tokens)
    candidates = tried - rollout.num_trial
    progress.line(
        f"a step at most: {rollout.num_trial} tasks{f' and {candidates} candidates' if candidates else ''} x "
        f"{rollout.num_rollout_per_trial} episodes = {episodes} episodes, {turns} turns, {tokens / 1e6:.2f} M policy "
        "tokens"
    )
    made: dict[Role, float] = {"policy": tokens, "rewriter": 0.0}
    if proposals := candidates * config.adaptation.num_try:
        made["rewriter"] = proposals * config.adaptation.max_response_tokens
        progress.line(f"the rewriter: at most {proposals} proposals a step, {made['rewriter'] / 1e6:.2f} M tokens")
    try:
        domain = make_domain(config)
        check_domain(config, domain)
        check_tools(chats, domain)
        for line in check_images(plan, chats, domain.image_size):
            progress.line(line)
        made["reward"] = 0.0
        if reward.judge == "measured" and reward.num_evaluation:
            continued = turns * reward.num_evaluation * tokens / episodes
            made["policy"] += continued
            progress.line(
                f"{reward.num_evaluation} continuations of each state: at most {turns} states a step, "
                f"{continued / 1e6:.2f} M policy tokens"
            )
        elif domain.judging and reward.num_evaluation and reward.judge == "model":
            covered, num = ("task", tried) if domain.judging.covers == "task" else ("turn", turns)
            num *= reward.num_evaluation
            made["reward"] = num * reward.max_response_tokens
            progress.line(
                f"{reward.num_evaluation} judgements a {covered}: at most {num} a step, "
                f"{made['reward'] / 1e6:.2f} M reward model tokens"
            )
        split = config.dataset.train_split
        for other in config.evaluation.splits:
            domain.tasks(other)
        tasks, drawn = domain.tasks(split), len(training_tasks(config, domain, progress.line))
        for task in tasks[:1]:
            check_templates(domain, task, chats)
        progress.line(f"{split}: {len(tasks)} tasks" + (f", {drawn} of them train" if drawn < len(tasks) else ""))
        if num := domain.executions(tasks):
            progress.line(f"the sandbox: at most {num} programs a step")
    except TaskError as error:  # a plan may be made on a machine without the data
        missing = f"the run would stop here: {error}"
    if config.experiment.num_device and "reward" in made:  # without the domain nobody knows what it judges
        found = estimate(plan, sizes, made)
        for line in (told(found), *advice(plan, found)):
            progress.line(line)
    updates = config.training.policy.num_update * config.training.policy.num_epoch
    progress.line(
        f"the run: {config.experiment.total_step} steps, {config.experiment.total_step * updates} policy updates; "
        "nothing was started"
    )
    if too_large:
        raise ConfigError("\n".join(filter(None, (too_large, missing))))
    if missing:
        raise TaskError(missing)


def print_devices(plan: Plan, progress: Progress) -> tuple[dict[Role, Chat], dict[Role, ModelSize], str]:
    """Print the devices of each model and the memory that they must hold.

    Returns the chats of models in local folders, the sizes of all, and what is too large for the memory, with ways to
    make it smaller; empty if all fits.
    """
    config, placement, experiment = plan.config, plan.placement, plan.config.experiment
    sizes: dict[Role, ModelSize] = {role: model_size(config.model.of(role)) for role in plan.roles}
    chats = check_local(plan)
    total = experiment.num_node * experiment.num_device
    needs = device_gib(plan, sizes) if total else {}
    rows = [_row(plan, role, size, needs) for role, size in sizes.items()]
    on = f"{total} accelerators, {config.cluster.placement}" if total else "the CPU"
    header = [name for name in rows[0] if any(row[name] for row in rows)]
    progress.table(
        f"Plan: {experiment.num_node} node(s), {on}; GiB per device",
        header,
        [[row[name] for name in header] for row in rows],
    )
    for what, slots in (("learner ranks", placement.learners), ("environment hosts", placement.hosts)):
        if slots and plan.needs_cluster:
            on_devices = experiment.num_device if slots[0].devices else 0
            progress.line(f"{what}: {len(slots)}, on {where(slots, on_devices)}")
    if not total:
        return chats, sizes, ""
    for role in plan.learners:
        progress.line(
            f"activations of the {role} learner: {config.training.of(role).micro_batch_tokens:,} tokens at once, "
            f"{model_shape(config.model.of(role), sizes[role].parameters)}"
        )
    faults = list(engine_faults(config, sizes))
    try:
        progress.line(check_memory(config, needs))
    except ConfigError as error:
        faults.append(str(error))
    return chats, sizes, "\n".join(faults)


def _row(plan: Plan, role: Role, size: ModelSize, needs: Mapping[tuple[int, int], Parts]) -> dict[str, str]:
    """A role's cells by their column."""
    config, placement, several = plan.config, plan.placement, plan.needs_cluster
    engine, num_device = config.engine.of(role), config.experiment.num_device
    weights, cache = engine_gib(config, role, size)
    row = {
        "role": role,
        "parameters": f"{size.parameters / 1e9:.3g} B ({size.source})",
        "replicas x tp": f"{engine.num_replica} x {engine.tensor_parallel_size}",
        "engines on": where(placement.engines[role], num_device) if several else "",
        "weights": f"{weights + copied_gib(plan, role, size):.2f}",
        "KV cache": f"{cache:.2f}" if cache else "",
        "learner": "",
        "activations": "",
        "sent by": "",
        "fits": "",
    }
    if role in plan.learners:
        parts = learner_gib(plan, role, size)
        row["learner"], row["activations"] = f"{parts[LEARNER]:.2f}", f"{parts[ACTIVATIONS]:.2f}"
        row["sent by"] = plan.routes[role].how if several else ""
    if num_device:
        served = not list(engine_faults(config, {role: size}))
        row["fits"] = "yes" if served and fits(config, needs, role) else "no"
    return row
