"""The help and docs/configuration.md tell every key, from the schema alone."""

import re

import pytest
import write_reference

from rlanything.config.reference import help_text, keys, sections
from rlanything.config.schema import Config
from rlanything.config.sft import SftConfig
from rlanything.domains.registry import OPTIONS
from rlanything.errors import ConfigError


def test_the_committed_reference_is_up_to_date():
    assert write_reference.FILE.read_text(encoding="utf-8") == write_reference.page(), (
        "run scripts/write_reference.py and commit docs/configuration.md"
    )


def test_the_table_of_the_published_code_s_keys_is_up_to_date():
    assert write_reference.THEIRS.read_text(encoding="utf-8") == write_reference.page_of_theirs(), (
        "run scripts/write_reference.py and commit docs/from-open-agentrl.md"
    )


def test_the_reference_is_markdown_that_shows_every_sign():
    for line in write_reference.page().splitlines():
        plain = re.sub(r"`[^`]*`", "", line)
        assert "<" not in plain, line  # outside of code it would be taken for HTML
        assert not line.startswith("|") or len(re.findall(r"(?<!\\)\|", line)) == 5, line


@pytest.mark.parametrize("schema", [Config, SftConfig])
def test_the_help_tells_every_key_within_80_columns(schema):
    found = sections(schema, OPTIONS)
    shown = help_text(found)
    assert max(map(len, shown.splitlines())) <= 80
    for section in found.values():
        for name, takes, _, meaning in keys(section):
            assert f"\n  {name}: " in shown and meaning and takes
    for words in ("num_trial: a whole number above 0 (default 16)", "Longest context, prompt and response together ["):
        assert schema is SftConfig and "num_trial" in words or words in shown
    assert "show_actions: one of all, here, none (default all)" in shown


def test_a_key_without_a_default_is_called_required():
    assert "\n  role: one of policy, reward, rewriter (required)\n" in help_text(sections(SftConfig, {}))


def test_sections_that_every_role_has_are_told_once():
    titles = list(sections(Config, OPTIONS))
    assert "engine.policy, engine.reward, engine.rewriter" in titles and "training.policy, training.reward" in titles
    assert "dataset.options (domain=coding)" in titles


def test_the_help_of_one_section_tells_that_alone():
    shown = help_text(sections(Config, OPTIONS), "rollout")
    assert "num_trial:" in shown and "num_learner:" not in shown
    with pytest.raises(ConfigError, match="--help rolout: there is no such section, expected one of experiment, model"):
        help_text(sections(Config, OPTIONS), "rolout")
