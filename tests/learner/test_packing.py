"""Packing must not change what is learned: every token, target and gradient survives the merge into trees."""

from collections import defaultdict
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.autograd.graph import saved_tensors_hooks
from torch.nn.attention.flex_attention import create_block_mask, flex_attention
from transformers import AutoModelForCausalLM

from rlanything.algorithm.samples import sample_sets
from rlanything.config.schema import LearnerConfig, ModelConfig
from rlanything.learner.attention import (
    FLEX_BLOCK,
    dense_mask,
    flex_mask,
    tree_attention,
    tree_flex_attention,
    tree_mask,
)
from rlanything.learner.model import TreeModel
from rlanything.learner.packing import build_trees, pack, packing_ratio, rank_shares, split_minibatches
from rlanything.types import Image, Sample

CPU = torch.device("cpu")


def path_of(tree, node):
    """The tokens from the root to a node, which are those that the node attends to."""
    return tuple(int(tree.ids[j]) for j in range(node + 1) if node < tree.ends[j])


def entries_of(sample):
    """What training must keep of a sample: (tokens up to the target, weight, advantage, logprob)."""
    values = np.float32([sample.weights, sample.advantages, sample.logprobs])
    return [(tuple(sample.ids[: t + 1].tolist()), *values[:, t]) for t in np.flatnonzero(sample.weights)]


@st.composite
def sample_lists(draw):
    ids = st.lists(st.integers(0, 2), min_size=2, max_size=7)  # few symbols: prefixes and duplicates are common
    samples = []
    for i, tokens in enumerate(draw(st.lists(ids, min_size=1, max_size=8))):
        mask = np.array([False] + [draw(st.booleans()) for _ in tokens[1:]])
        values = np.random.default_rng(i).uniform(0.5, 1, (3, len(tokens))) * mask
        samples.append(Sample(np.array(tokens), *values, key=draw(st.sampled_from("ab"))))
    return samples


@given(sample_lists(), st.sampled_from([np.inf, 3.0]), st.sampled_from([8, 1000]))
@settings(max_examples=150, deadline=None)
def test_every_entry_is_recovered_from_the_trees(samples, pairs_per_token, max_tokens):
    trees = build_trees(samples, max_tokens, pairs_per_token)
    found = []
    for tree in trees:
        e = tree.entries
        for k, node in enumerate(e.nodes):
            found.append((*[(*path_of(tree, node), int(e.targets[k]))], e.weights[k], e.advantages[k], e.logprobs[k]))
        for node in range(tree.size):
            assert tree.positions[0, node] == len(path_of(tree, node)) - 1
        assert tree.size <= max(max_tokens, max(len(s.ids) for s in samples))
    assert sorted(found) == sorted(e for s in samples for e in entries_of(s))


@given(sample_lists(), st.sampled_from([8, 1000]))
@settings(max_examples=50, deadline=None)
def test_entries_of_one_sample_share_a_number_and_others_have_another(samples, max_tokens):
    trees = build_trees(samples, max_tokens)
    for batch in pack(trees, max(tree.size for tree in trees), multiple=4) if trees else []:
        found = defaultdict(list)
        for number, weight in zip(batch.entries.samples, batch.entries.weights, strict=True):
            found[int(number)].append(weight)  # the random weights name the sample's tokens
        of_samples = [sorted(s.weights[s.weights > 0].astype(np.float32)) for s in samples]
        assert sorted(found) == list(range(len(found)))
        assert all(sorted(weights) in of_samples for weights in found.values())


@given(sample_lists())
@settings(max_examples=50, deadline=None)
def test_a_tree_holds_each_distinct_prefix_once(samples):
    trained = [s for s in samples if s.weights.any()]
    prefixes = {(s.key, tuple(s.ids[: t + 1].tolist())) for s in trained for t in range(len(s.ids))}
    assert sum(tree.size for tree in build_trees(samples, 1000)) == len(prefixes)


@given(st.lists(st.integers(2, 40), min_size=1, max_size=30), st.sampled_from([0, 64]), st.sampled_from([1, 16]))
@settings(max_examples=100, deadline=None)
def test_rows_keep_trees_apart_and_micro_batches_small(lengths, row_tokens, multiple):
    samples = [
        Sample(np.full(n, i + 1), np.r_[0, np.ones(n - 1)], np.zeros(n), np.zeros(n), key=str(i))
        for i, n in enumerate(lengths)
    ]
    batches = pack(build_trees(samples, 64), 64, row_tokens, multiple)
    seen = []
    for batch in batches:
        assert batch.ids.size <= 64 and batch.ids.shape[1] % multiple == 0
        i = np.arange(batch.ids.shape[1])
        mask_BTT = (i[:, None] >= i) & (i[:, None] < batch.ends[:, None, :])
        assert mask_BTT.any(-1).all(), "a row of the mask without any key turns into NaN"
        b, q, k = mask_BTT.nonzero()
        assert (batch.ids[b, q] == batch.ids[b, k]).all(), "a token sees another tree"
        seen += batch.ids.flatten()[batch.entries.nodes].tolist()
        assert (batch.ids.flatten()[batch.entries.nodes] == batch.entries.targets).all()
    assert sorted(seen) == sorted(i + 1 for i, n in enumerate(lengths) for _ in range(n - 1))


def test_small_trees_fill_what_any_micro_batch_has_left(make_sample):
    samples = [make_sample([i] * n, [n - 1], str(i)) for i, n in enumerate((70, 60, 40, 30), 3)]
    one, other = pack(build_trees(samples, 100), 100, 100)
    assert one.tree_tokens == other.tree_tokens and one.sample_tokens == other.sample_tokens == 100


def shown(num: int, first: int, length: int = 12) -> Sample:
    """A sample of `num` images, numbered from `first` on, of 2 x 2 tokens each, behind a token that no other has."""
    images = [Image(path="", digest=str(first + i), start=1 + 4 * i, rows=2, columns=2) for i in range(num)]
    ids, trained = np.full(1 + 4 * num + length, 9), np.zeros(1 + 4 * num + length)
    ids[0], trained[-1] = 100 * first + num, 1
    return Sample(ids, trained, trained, trained, key=f"{first}/{num}", images=tuple(images))


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 5)), min_size=1, max_size=20), st.sampled_from([0, 64]))
@settings(max_examples=100, deadline=None)
def test_a_micro_batch_has_no_more_patches_than_tokens_may_be(chosen, row_tokens):
    samples = [shown(num, first) for num, first in chosen]
    batches = pack(build_trees(samples, 64, patches_per_token=4), 64, row_tokens, 1, 4)
    for batch in batches:
        patches = 16 * len({image.digest for image in batch.images})
        assert batch.ids.size <= 64 and patches <= 64
    assert sum(batch.sample_tokens for batch in batches) == sum(len(s.ids) for s in samples)


def test_patches_of_an_image_that_trees_share_count_once_and_a_tower_that_is_not_trained_counts_none():
    same, others = [shown(2, 1), shown(2, 1, 9)], [shown(2, 1), shown(3, 3)]
    same[1] = replace(same[1], key="another", ids=np.r_[7, same[1].ids[1:]])
    for samples, patches_per_token, num in ((same, 4, 1), (others, 4, 2), (others, 0, 1)):
        trees = build_trees(samples, 64, patches_per_token=patches_per_token)
        assert len(trees) == 2 and len(pack(trees, 64, 0, 1, patches_per_token)) == num


def test_a_tree_has_no_more_patches_than_tokens_may_be():
    whole = shown(3, 1)
    grown = [replace(whole, key="q"), replace(shown(5, 1), key="q", ids=np.r_[whole.ids[0], shown(5, 1).ids[1:]])]
    assert len(build_trees(grown, 64)) == 1
    assert (
        len(build_trees(grown, 80, patches_per_token=4)) == 1 and len(build_trees(grown, 79, patches_per_token=4)) == 2
    )


def tricky_samples(make_sample):
    rng = np.random.default_rng(1)
    common = rng.integers(3, 64, 20).tolist()
    return [
        make_sample(common, range(10, 20), "a", 1),
        make_sample(common, range(12, 20), "a", 2),  # the same tokens, other weights and advantages
        make_sample([*common[:-1], 5], range(15, 20), "a", 3),  # differs in the last token
        make_sample([*common, 7, 8, 9], [20, 21, 22], "a", 4),  # goes on from a whole other sample
        make_sample(common[:8], [1, 7], "a", 5),  # a prefix of the others
        make_sample(rng.integers(3, 64, 40), range(30, 40), "a", 6),  # nothing in common
        make_sample(rng.integers(3, 64, 300), range(200, 300), "b", 7),  # longer than a chunk of queries
        make_sample(rng.integers(3, 64, 5), [4], "", 8),
    ]


@pytest.mark.parametrize("architecture", ["qwen3", "qwen2", "llama"])
def test_packed_gradients_equal_one_forward_pass_per_sample(architecture, model_folder, make_sample):
    samples = tricky_samples(make_sample)
    plain = AutoModelForCausalLM.from_pretrained(model_folder[architecture], dtype=torch.float32)
    expected_logprobs = {}
    for sample in samples:
        ids = torch.from_numpy(sample.ids)
        logp = (plain(ids[None]).logits[0, :-1] / 0.7).log_softmax(-1).gather(1, ids[1:, None])[:, 0]
        (logp * torch.from_numpy(sample.weights * sample.advantages)[1:]).sum().backward()
        for t in np.flatnonzero(sample.weights):
            expected_logprobs[np.float32(sample.weights[t])] = float(logp[t - 1].detach())
    packed = TreeModel(ModelConfig(path=str(model_folder[architecture])), LearnerConfig(dtype="float32"), CPU)
    batches = pack(build_trees(samples, 400, packed.pairs_per_token), 400)
    assert len(batches) > 1 and packing_ratio(batches) > 1.1
    for batch in batches:
        logprobs, _ = packed(batch, 0.7)
        e = batch.entries
        expected = [expected_logprobs[w] for w in e.weights]  # the random weights name the entries
        np.testing.assert_allclose(logprobs.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
        (logprobs * torch.from_numpy(e.weights * e.advantages)).sum().backward()
    for (name, p), q in zip(plain.named_parameters(), packed.lm.parameters(), strict=True):
        torch.testing.assert_close(q.grad, p.grad, rtol=1e-4, atol=1e-5 * float(p.grad.abs().max()), msg=name)


@pytest.mark.parametrize("query_heads", [4, 6, 2])
def test_a_gpus_attention_equals_a_cpus_under_the_tree_mask(make_sample, monkeypatch, query_heads):
    # What is compiled is for a GPU alone.
    monkeypatch.setattr("rlanything.learner.attention._compiled_flex_attention", lambda: flex_attention)
    batch = pack(build_trees(tricky_samples(make_sample), 1000), 1000)[0]
    ends = torch.from_numpy(batch.ends)
    B, T = ends.shape
    torch.manual_seed(0)
    query, key, value = (torch.randn(B, heads, T, 8) for heads in (query_heads, 2, 2))
    dense, _ = tree_attention(torch.nn.Module(), query, key, value, dense_mask(ends, torch.float32), 8**-0.5)
    block_mask = create_block_mask(tree_mask(ends), B, None, T, T, device="cpu")
    # A norm with float32 weights leaves queries and keys in a wider type than the values.
    flex, _ = tree_flex_attention(torch.nn.Module(), query.double(), key.double(), value, block_mask, 8**-0.5)
    torch.testing.assert_close(dense, flex)


def test_scores_that_are_computed_anew_give_the_same_gradients(make_sample, monkeypatch):
    batch = pack(build_trees(tricky_samples(make_sample), 1000), 1000)[0]
    mask = dense_mask(torch.from_numpy(batch.ends), torch.float32)
    B, T = batch.ends.shape
    monkeypatch.setattr("rlanything.learner.attention.QUERY_CHUNK", 5)
    found, held = [], []
    for most in (1 << 26, 0):
        monkeypatch.setattr("rlanything.learner.attention.KEPT_SCORES", most)
        torch.manual_seed(0)
        inputs = [torch.randn(B, heads, T, 8, requires_grad=True) for heads in (4, 2, 2)]
        kept: dict[int, int] = {}

        def keep(tensor, kept=kept):
            kept[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with saved_tensors_hooks(keep, lambda tensor: tensor):
            out, _ = tree_attention(torch.nn.Module(), *inputs, mask, 8**-0.5)
        out.square().sum().backward()
        found.append([out, *(tensor.grad for tensor in inputs)])
        held.append(sum(kept.values()))
    assert all(torch.equal(a, b) for a, b in zip(*found, strict=True))
    assert held[0] - held[1] > 4 * T * T // 2 * 4, "the scores of four heads are not kept"


def test_flex_attentions_blocks_are_those_of_the_whole_mask(make_sample):
    batch = pack(build_trees(tricky_samples(make_sample), 1000), 1024, 1024, FLEX_BLOCK)[0]
    ends = torch.from_numpy(batch.ends)
    B, T = ends.shape
    found, expected = flex_mask(ends), create_block_mask(tree_mask(ends), B, None, T, T, device="cpu")
    for name in ("kv_num_blocks", "full_kv_num_blocks"):
        torch.testing.assert_close(getattr(found, name), getattr(expected, name))
    assert torch.equal(found.to_dense(), expected.to_dense()) and 0 < expected.full_kv_num_blocks.sum()


def test_chunks_of_the_head_change_neither_logprobs_nor_gradients(model_folder, make_sample, monkeypatch):
    batch = pack(build_trees(tricky_samples(make_sample), 1000), 1000)[0]
    results = []
    for elements in (1 << 23, 64 * 7):
        monkeypatch.setattr("rlanything.learner.model.HEAD_CHUNK_ELEMENTS", elements)
        config = LearnerConfig(dtype="float32", entropy_bonus=0.1)
        model = TreeModel(ModelConfig(path=str(model_folder["llama"])), config, CPU)
        logprobs, entropy = model(batch, 1.0)
        (logprobs.sum() + entropy.square().sum()).backward()
        results.append((logprobs, entropy, model.lm.lm_head.weight.grad))
    for whole, chunked in zip(*results, strict=True):
        torch.testing.assert_close(whole, chunked)


def test_minibatches_keep_keys_together_and_balance_tokens(make_sample):
    samples = [make_sample(np.arange(4 + k % 5), [1], f"k{k}", i) for k in range(40) for i in range(3)]
    sets = sample_sets(samples)
    parts = split_minibatches(sets, 4, np.random.default_rng(0))
    assert sorted(i for part in parts for i in part) == list(range(40))
    tokens = [sum(sets[i].tokens for i in part) for part in parts]
    assert sum(tokens) == sum(len(s.ids) for s in samples) and max(tokens) < 1.05 * min(tokens)
    assert set(split_minibatches(sets, 4, np.random.default_rng(1))[0]) != set(parts[0]), "they must be drawn anew"


def test_minibatches_do_not_depend_on_the_order_in_which_episodes_arrive(make_sample):
    sets = sample_sets([make_sample(np.arange(4 + k % 5), [1], f"k{k}") for k in range(40)])
    moved = [sets[i] for i in np.random.default_rng(5).permutation(40)]

    def keys(given):
        return [[given[i].key for i in part] for part in split_minibatches(given, 4, np.random.default_rng(0))]

    assert keys(sets) == keys(moved)


def test_every_set_of_a_minibatch_is_on_one_rank_and_the_ranks_have_about_equal_trees(make_sample):
    episodes = [[make_sample(np.arange(5 * (turn + 1)), [1], f"k{k}") for turn in range(k % 7 + 1)] for k in range(60)]
    sets = sample_sets([sample for episode in episodes for sample in episode])
    shares = rank_shares(range(10, 60), sets, 8)
    assert sorted(i for share in shares for i in share) == list(range(10, 60))
    loads = [sum(sets[i].tree_tokens for i in share) for share in shares]
    assert max(loads) - min(loads) <= 5, "they may differ by the smallest tree"
    for one, episode in zip(sets, episodes, strict=True):
        assert one.tree_tokens == sum(tree.size for tree in build_trees(episode, 1000))


def test_a_loss_on_the_first_token_is_refused(make_sample):
    with pytest.raises(ValueError, match="'q'.*nothing predicts it"):
        build_trees([make_sample([1, 2], [0], "q")], 10)
