"""The tiny model of the quickstart on drawn desktops: its tokens, and the lessons that it begins with."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import pytest
from builders import config_of
from drawn_desktop.lessons import COLUMNS, ROWS, Lessons, random_screen, shown
from drawn_desktop.model import make_model, make_tokenizer, write

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.conversations import encode
from rlanything.domains.images import ImageStore
from rlanything.domains.registry import make_domain
from rlanything.engines import check_model
from rlanything.types import user


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The model before its lessons."""
    tokenizer, made = make_tokenizer(), tmp_path_factory.mktemp("tiny") / "model"
    write(made, make_model(tokenizer, 0), tokenizer)
    return made


@pytest.fixture
def domain(tmp_path):
    config = config_of("osworld", size=50)
    config.experiment.output_dir = str(tmp_path)
    return make_domain(config)


def test_demonstrations_are_few_tokens_that_read_as_they_were_written(folder, domain):
    chat = check_model(ModelConfig(path=str(folder)), EngineConfig(max_model_len=4096))
    for role, most in (("policy", 10), ("reward", 2), ("rewriter", 30)):
        for conversation in islice(domain.demonstrations(role, "train", 0), 30):
            sample, last = encode(chat, conversation), conversation.messages[-1]["content"]
            answers = sum(conversation.trained)
            assert (sample.weights > 0).sum() <= most * answers, (role, last)
            assert chat.decode(chat.response_ids(last)) == last


def test_the_picture_of_a_screen_is_a_grid_of_its_tokens(folder, tmp_path):
    chat = check_model(ModelConfig(path=str(folder)), EngineConfig(max_model_len=4096))
    lessons = Lessons(folder, ImageStore(tmp_path), "middle", 0)
    for _ in range(5):
        screen = random_screen(lessons.rng, lessons.images, "middle")
        [image] = chat.prompt([user("x", [screen.path])]).images
        assert (image.rows, image.columns) == (ROWS, COLUMNS)
        assert set(screen.cells) == {name for name, *_ in shown(screen.desk)}
        assert all(cell < ROWS * COLUMNS for cells in screen.cells.values() for cell in cells)


def test_the_lessons_teach_and_leave_a_model_that_can_be_loaded(folder, tmp_path):
    lessons = Lessons(folder, ImageStore(tmp_path / "screens"), "easy", 0)
    first, *_ = lessons.teach_eye(1, 8, 2e-3)
    *_, last = lessons.teach_eye(40, 8, 2e-3)
    assert _loss(last) < _loss(first) - 2.0
    first, *_ = lessons.teach_clicks(1, 4, 4, 2e-3)
    *_, last = lessons.teach_clicks(15, 4, 4, 2e-3)
    assert _loss(last) < _loss(first) - 1.0
    write(tmp_path / "taught", lessons.lm, make_tokenizer())
    check_model(ModelConfig(path=str(tmp_path / "taught")), EngineConfig(max_model_len=4096))
    assert "drawn_desktop" not in Path(tmp_path / "taught" / "config.json").read_text()


def _loss(report: str) -> float:
    return float(report.partition("loss ")[2].partition(",")[0])
