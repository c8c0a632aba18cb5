"""Lessons that a tiny model has before it sees a task: to read the screen, and to find there what a text names.

Imitation would have to find out both by itself. **Eye**: each visual token is to hold, summed, the embeddings of
the name, of the coordinates and of the state of the widget that it shows. **Pointing**: while it writes the coordinates
of a click, one group of attention heads is to look at the tokens that show the widget named before.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from drawn_desktop.model import DIGITS, MERGE, PATCH, XS, YS, names
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.conversations import encode
from rlanything.domains.base import Observation
from rlanything.domains.images import ImageStore
from rlanything.domains.osworld.canvas import words
from rlanything.domains.osworld.canvas.demonstrations import midway, response
from rlanything.domains.osworld.canvas.desk import HEIGHT, WIDTH, Desk, Kind
from rlanything.domains.osworld.canvas.drawing import LETTER, draw, png
from rlanything.domains.osworld.canvas.layout import label_x, on_top
from rlanything.domains.osworld.canvas.solver import at, click
from rlanything.domains.osworld.canvas.tasks import make_family
from rlanything.domains.osworld.prompts import opening
from rlanything.domains.parts import Conversation
from rlanything.engines.chat import Chat
from rlanything.learner.attention import tree_attention
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import MicroBatch, build_trees, pack
from rlanything.types import Sample, assistant

TOKEN = PATCH * MERGE  # [pixels] of a visual token's side
ROWS, COLUMNS = HEIGHT // TOKEN, WIDTH // TOKEN
LAYER, HEADS = 2, 2  # whose first heads learn to point
NONE = -100  # a label that is not learned
BLANK = 0.15  # share of visual tokens without a widget that are learned: most tokens have none
LABELLED = (Kind.SWITCH, Kind.CHECK, Kind.SLIDER, Kind.LESS, Kind.LIST, Kind.FIELD)  # have their name beside them


@dataclass(frozen=True)
class Screen:
    """A desktop on its way, its picture, and where each name is shown."""

    desk: Desk
    path: str
    cells: Mapping[str, set[int]]
    """Visual tokens that show a name."""


def random_screen(rng: random.Random, images: ImageStore, level: str) -> Screen:
    """A desktop somewhere on the way to a task, some of whose moves were wrong."""
    desk = midway(rng, make_family(f"lesson/{rng.getrandbits(60)}", level, 0.1, unseen=rng.random() < 0.1))
    cells: dict[str, set[int]] = {}
    for name, x, y, *_ in shown(desk):
        cells.setdefault(name, set()).add(_cell(x, y))
    return Screen(desk, images.put(png(draw(desk))), cells)


def shown(desk: Desk) -> Iterable[tuple[str, int, int, tuple[int, int], str | None]]:
    """Everything on the screen: (name, pixel column and row of its text or picture, the coordinate to click, a digit of
    its state)."""
    for widget in on_top(desk):
        kind, name, x, y = widget.kind, widget.name, widget.x, widget.y
        places = [(x, y)]
        if kind is Kind.FILE:
            places = [(label_x(widget) + LETTER // 2 * len(name), y)]
        elif kind in (Kind.ICON, Kind.DOCUMENT):
            places = [(x, y + 8), (x, y - 8)]
        elif kind in LABELLED and name != words.NEW_NAME:
            places.append((label_x(widget) + LETTER // 2 * len(name), y))
        for column, row in places:
            yield name, column, row, at(widget), _state(desk, kind, name)


def _state(desk: Desk, kind: Kind, name: str) -> str | None:
    match kind:
        case Kind.SWITCH | Kind.CHECK:
            return str(int(desk.switched[name]))
        case Kind.SLIDER | Kind.LESS:
            return str(desk.number[name.removesuffix(" -")])
        case Kind.OPTION:
            return str(int(desk.choice[words.THEME] == name))
        case Kind.TAB:
            return str(int(desk.tab == name))
        case Kind.FILE:
            return str(int(desk.selected == name))
        case Kind.FIELD if desk.dialog:
            return str(2 * desk.dialog.focused + bool(desk.dialog.text))
        case Kind.FIELD:
            return str(2 * (desk.focus == name) + bool(desk.typed[name]))
    return None


def _cell(x: int, y: int) -> int:
    return min(ROWS - 1, max(0, y // TOKEN)) * COLUMNS + min(COLUMNS - 1, max(0, x // TOKEN))


class Eye:
    """Reads names, coordinates and states off visual tokens by the (tied) token embeddings, each among its own kind."""

    def __init__(self, tokenizer: Any, embedding: nn.Embedding) -> None:
        kinds = (["<|endoftext|>", *names()], list(XS), list(YS), list(DIGITS))
        self.numbers = [{piece: i for i, piece in enumerate(kind)} for kind in kinds]
        self.ids = [torch.tensor(tokenizer.convert_tokens_to_ids(list(kind))) for kind in kinds]
        self.embedding = embedding
        self.right = torch.zeros(len(kinds), 2)

    def labels(self, desk: Desk) -> Tensor:
        """The labels of the visual tokens: [4, ROWS * COLUMNS], NONE where nothing is to be learned."""
        labels = torch.full((4, ROWS * COLUMNS), NONE)
        labels[0] = 0
        for name, x, y, (column, row), state in shown(desk):
            pieces = (name, f"{column}, ", next(piece for piece in YS if piece.startswith(f"{row}]")), state)
            found = [NONE if piece is None else self.numbers[i][piece] for i, piece in enumerate(pieces)]
            labels[:, _cell(x, y)] = torch.tensor(found)
        return labels

    def loss(self, tokens: Tensor, labels: Tensor) -> Tensor:
        """tokens [B * ROWS * COLUMNS, D] of the vision tower, labels [B, 4, ROWS * COLUMNS]."""
        tokens = F.rms_norm(tokens, tokens.shape[-1:], None, 1e-6)
        total = tokens.new_zeros(())
        for i, ids in enumerate(self.ids):
            wanted = labels[:, i].flatten()
            learned = wanted >= 0
            if i == 0:
                learned &= (wanted > 0) | (torch.rand(wanted.shape) < BLANK)
            logits = tokens[learned] @ self.embedding.weight[ids].T
            total = total + F.cross_entropy(logits, wanted[learned])
            counted = wanted[learned] > 0 if i == 0 else torch.ones_like(wanted[learned], dtype=torch.bool)
            self.right[i] += torch.tensor([float((logits.argmax(-1) == wanted[learned])[counted].sum()), counted.sum()])
        return total

    def report(self) -> str:
        """The shares of names, columns, rows and states that were read right since the last report."""
        shares = (self.right[:, 0] / self.right[:, 1].clamp(min=1)).tolist()
        self.right.zero_()
        return ", ".join(f"{what} {share:.2f}" for what, share in zip(("name", "x", "y", "state"), shares, strict=True))


class Pointing:
    """Records, in one layer, how little some heads look at the visual tokens that they should look at."""

    def __init__(self, lm: Any, tokenizer: Any) -> None:
        ids = tokenizer.convert_tokens_to_ids
        self.image = ids("<|image_pad|>")
        self.columns = set(ids(list(XS)))
        self.heads = {i for piece, i in tokenizer.get_added_vocab().items() if piece.endswith('"coordinate": [')}
        self.named = {ids(name): name for name in names()}
        self.wanted: tuple[Tensor, Tensor, Tensor] | None = None  # row, query and mask of keys of each pointing token
        self.loss, self.looks = torch.zeros(()), 0.0
        ALL_ATTENTION_FUNCTIONS.register("drawn_desktop_pointing", self._attend)
        lm.set_attn_implementation({"text_config": "drawn_desktop_pointing", "vision_config": "sdpa"})

    def _attend(
        self, module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scaling: float, **more: Any
    ):
        if module.layer_idx == LAYER and self.wanted is not None:
            rows, queries, wanted = self.wanted
            scores = torch.einsum("nhd,nkd->nhk", query[rows, :HEADS, queries], key[rows, 0]) * scaling
            seen = mask[rows, 0, queries] == 0
            image = self.is_image[rows] & seen
            logs = scores.masked_fill(~image[:, None], -1e9).log_softmax(-1)
            held = logs.masked_fill(~wanted[:, None], -1e9).logsumexp(-1)
            self.loss, self.looks = -held.mean(), float(held.detach().exp().mean())
        return tree_attention(module, query, key, value, mask, scaling, **more)

    def aim(self, batch: MicroBatch, screens: Mapping[str, Screen]) -> None:
        """Say which tokens of a batch are to look where."""
        images = iter(batch.images)
        rows, queries, wanted = [], [], []
        self.is_image = torch.from_numpy(batch.ids == self.image)
        for r, ids in enumerate(batch.ids):
            starts = np.flatnonzero((ids == self.image) & (np.roll(ids, 1) != self.image))
            screen_of = {int(start): screens[next(images).path] for start in starts}
            for n in range(2, len(ids)):
                name = self.named.get(int(ids[n - 1])) if ids[n] in self.heads else None
                if ids[n] in self.columns and ids[n - 1] in self.heads:
                    name = self.named.get(int(ids[n - 2]))
                start = max((s for s in screen_of if s < n < batch.ends[r, s]), default=None)
                if name is None or start is None or name not in screen_of[start].cells:
                    continue
                mask = torch.zeros(len(ids), dtype=torch.bool)
                mask[[start + cell for cell in screen_of[start].cells[name]]] = True
                rows.append(r)
                queries.append(n)
                wanted.append(mask)
        self.wanted = (torch.tensor(rows), torch.tensor(queries), torch.stack(wanted)) if rows else None


def click_samples(chat: Chat, screen: Screen, rng: random.Random, num: int) -> list[Sample]:
    """Lessons of the form "Task: click Wi-Fi" about one screen."""
    shown_there = on_top(screen.desk)
    samples = []
    for widget in rng.sample(shown_there, min(num, len(shown_there))):
        asked = opening(f"click {widget.name}", Observation("", images=(screen.path,)), "compact")
        messages = [*asked, assistant(response(click(widget)))]
        samples.append(encode(chat, Conversation(messages=messages, trained=[False, True], key=screen.path)))
    return samples


class Lessons:
    """Teaches a model in its folder; `images` keeps the screens."""

    def __init__(self, folder: Path, images: ImageStore, level: str, seed: int) -> None:
        torch.manual_seed(seed)
        self.rng, self.images, self.level = random.Random(f"lessons/{seed}"), images, level
        model = ModelConfig(path=str(folder))
        self.chat = Chat(model)
        self.model = TreeModel(model, LearnerConfig(dtype="float32"), torch.device("cpu"))
        self.lm = self.model.lm
        self.eye = Eye(self.chat.tokenizer, self.lm.model.language_model.embed_tokens)
        self.seen: Tensor | None = None
        self.lm.model.visual.merger.register_forward_hook(lambda module, given, output: setattr(self, "seen", output))

    def teach_eye(self, num_update: int, num_screen: int, lr: float) -> Iterable[str]:
        """Train the vision tower to read the screen; yields what to report."""
        visual = self.lm.model.visual
        parameters = [*visual.parameters(), self.lm.model.language_model.embed_tokens.weight]
        for update, _ in enumerate(self._updates(parameters, num_update, lr), 1):
            screens = [random_screen(self.rng, self.images, self.level) for _ in range(num_screen)]
            pixels, grids = zip(*(self.model.vision.processed(s.path) for s in screens), strict=True)  # type: ignore
            visual(torch.cat(pixels), grid_thw=torch.cat(grids))
            loss = self.eye.loss(self.seen, torch.stack([self.eye.labels(s.desk) for s in screens]))
            loss.backward()
            if update % 100 == 0 or update == num_update:
                yield f"eye: update {update}, loss {loss.item():.2f}, {self.eye.report()}"

    def teach_clicks(self, num_update: int, num_screen: int, num_click: int, lr: float) -> Iterable[str]:
        """Train the whole model to click what it is told to; yields what to report."""
        pointing, right = Pointing(self.lm, self.chat.tokenizer), np.zeros(2)
        for update, _ in enumerate(self._updates(list(self.lm.parameters()), num_update, lr), 1):
            screens = [random_screen(self.rng, self.images, self.level) for _ in range(num_screen)]
            samples = [s for screen in screens for s in click_samples(self.chat, screen, self.rng, num_click)]
            [batch] = pack(build_trees(samples, 4096, positions=self.model.positions), 1 << 20)
            by_path = {screen.path: screen for screen in screens}
            pointing.aim(batch, by_path)
            logprobs, _ = self.model(batch, 1.0)
            desks = [by_path[image.path].desk for image in batch.images]
            eye = self.eye.loss(self.seen, torch.stack([self.eye.labels(desk) for desk in desks]))
            loss = -logprobs.mean()
            (loss + 0.5 * eye + 0.5 * pointing.loss).backward()
            coordinate = np.isin(batch.entries.targets, list(pointing.columns))
            right += [float((logprobs.detach().exp().numpy() > 0.5)[coordinate].sum()), coordinate.sum()]
            if update % 50 == 0 or update == num_update:
                share = right[0] / max(1.0, right[1])
                yield (
                    f"clicks: update {update}, loss {loss.item():.2f}, x right {share:.2f}, "
                    f"looks {pointing.looks:.2f}, {self.eye.report()}"
                )
                right[:] = 0

    def _updates(self, parameters: Sequence[nn.Parameter], num: int, lr: float) -> Iterable[int]:
        """Yields once an update; the caller leaves gradients behind. The learning rate warms up and decays."""
        optimizer = torch.optim.AdamW(parameters, lr=lr, betas=(0.9, 0.98), weight_decay=0.01)
        for update in range(num):
            for group in optimizer.param_groups:
                group["lr"] = lr * min(1.0, (update + 1) / 40) * min(1.0, (1 - update / num) / 0.4 + 0.05)
            yield update
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            optimizer.step()
            optimizer.zero_grad()
