"""Who is to blame where a checkpoint cannot be written or read."""

import pytest

from rlanything.errors import RunError
from rlanything.runs import checkpoint
from rlanything.weights.checksum import sealed, unsealed


class LostRank:
    """A learner one of whose ranks died, or hangs."""

    def save(self, folder):
        folder.mkdir()
        raise RunError("a learner rank died")

    load = save


def test_a_rank_that_is_lost_is_told_as_that_and_not_as_a_broken_checkpoint(tmp_path):
    with pytest.raises(RunError, match="^a learner rank died$"):
        checkpoint.save(tmp_path, 1, {"policy": LostRank()}, {}, keep=2)
    assert not list(tmp_path.iterdir())
    whole = tmp_path / "step_000001"
    whole.mkdir()
    (whole / "meta.json").write_text(sealed({"step": 1}))
    with pytest.raises(RunError, match="^a learner rank died$"):
        checkpoint.load(whole, {"policy": LostRank()})


def test_a_state_is_read_as_it_was_written_or_not_at_all():
    state = {"step": 3, "best": 0.1, "by_step": {1: [1.5, None], 10: "x"}}
    text = sealed(state)
    assert unsealed(text) == {**state, "by_step": {"1": [1.5, None], "10": "x"}}
    with pytest.raises(ValueError, match="checksum that it was written with"):
        unsealed(text.replace("1.5", "2.5"))


def test_a_checkpoint_of_an_older_version_is_told_as_that_and_not_as_a_broken_one(tmp_path):
    (tmp_path / "meta.json").write_text('{"step": 1}')
    with pytest.raises(RunError, match="has no checksums, as those of older versions; start a new run"):
        checkpoint.load(tmp_path, {})
