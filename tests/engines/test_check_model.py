"""What an engine asks of a model before anything is loaded."""

import json
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import load_file, save_file
from tiny_vision import write_vision_model
from transformers import AutoConfig, AutoTokenizer, LlavaConfig, MistralConfig

from rlanything.config.schema import EngineConfig, ModelConfig
from rlanything.engines import check_cache, check_model, start_engine
from rlanything.engines.base import EngineError
from rlanything.engines.chat_model import start_chat_model
from rlanything.engines.small.engine import _check_supported
from rlanything.engines.template import ChatError
from rlanything.errors import LearnerError, ModelError
from rlanything.plan.models import check_loads, check_role, described_size


def test_tensor_parallelism_must_divide_the_heads(world):
    model = ModelConfig(path=str(world.model))
    heads = AutoConfig.from_pretrained(world.model).num_attention_heads
    check_model(model, EngineConfig(tensor_parallel_size=heads))
    with pytest.raises(EngineError, match=f"tensor_parallel_size={heads + 1} does not divide the {heads} attention"):
        check_model(model, EngineConfig(tensor_parallel_size=heads + 1))


def test_tensor_parallelism_must_fit_the_key_value_heads(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    config = AutoConfig.from_pretrained(model)
    config.num_attention_heads, config.num_key_value_heads = 12, 4
    config.save_pretrained(model)
    for size in (2, 4, 12):
        check_model(ModelConfig(path=str(model)), EngineConfig(tensor_parallel_size=size))
    for size in (3, 6):
        with pytest.raises(EngineError, match=f"tensor_parallel_size={size} neither divides the 4 key-value heads"):
            check_model(ModelConfig(path=str(model)), EngineConfig(tensor_parallel_size=size))


def test_a_model_that_the_hubs_cache_holds_in_part_is_named_where_there_is_no_network(world, tmp_path, monkeypatch):
    cached = tmp_path / "models--some--model"
    shutil.copytree(world.model, cached / "snapshots/1")
    (cached / "refs").mkdir()
    (cached / "refs/main").write_text("1")
    for module in ("constants", "_snapshot_download"):
        monkeypatch.setattr(f"huggingface_hub.{module}.HF_HUB_CACHE", str(tmp_path), raising=False)
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    index = {"weight_map": {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}}
    (cached / "snapshots/1/model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(ModelError, match="lacks 2 of the 2 files that model.safetensors.index.json names"):
        check_model(ModelConfig(path="some/model"), EngineConfig(max_model_len=64))


@pytest.mark.parametrize(
    ("file", "changes", "fault"),
    [
        ("config.json", {"intermediate_size": 96}, r"mlp\.\w+_proj.weight is \[.*but config.json makes it"),
        (
            "config.json",
            {"rope_parameters": {"rope_type": "yarnn", "rope_theta": 1e4}},
            "transformers cannot load it.*yarnn",
        ),
        (
            "generation_config.json",
            {"do_sample": False, "num_return_sequences": 4},
            "cannot load it.*num_return_sequences",
        ),
        ("generation_config.json", [1, 2], "transformers cannot load it"),
    ],
)
def test_files_that_are_not_of_one_model_are_found_before_the_weights_are_loaded(world, tmp_path, file, changes, fault):
    folder = tmp_path / "model"
    shutil.copytree(world.model, folder)
    old = json.loads((folder / file).read_text()) if (folder / file).is_file() else {}
    (folder / file).write_text(json.dumps(old | changes if isinstance(changes, dict) else changes))
    for learns, kind in ((True, "vllm"), (False, "transformers")):
        with pytest.raises(ModelError, match=fault):
            check_role(ModelConfig(path=str(folder)), EngineConfig(kind=kind, max_model_len=64), learns)


@pytest.mark.parametrize(
    ("rename", "changes", "fault"),
    [
        (lambda name: f"module.{name}", {}, r"lack \d+ tensors that config.json describes, such as lm_head|model\."),
        (lambda name: "" if "layers.1.mlp" in name else name, {}, r"lack 3 tensors .* such as model.layers.1.mlp.down"),
        (lambda name: name, {"num_hidden_layers": 3, "layer_types": None}, r"lack \d+ tensors .*model.layers.2"),
        (lambda name: name, {"num_hidden_layers": 1, "layer_types": None}, r"no layer for, such as model.layers.1\."),
        (lambda name: "" if "lm_head" in name else name, {"tie_word_embeddings": False}, r"lack 1 .*lm_head.weight"),
        (None, {}, "holds whole numbers; expected bfloat16"),
    ],
)
def test_weights_that_would_be_made_at_random_are_named_before_they_are_loaded(world, tmp_path, rename, changes, fault):
    folder = shutil.copytree(world.model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    if rename:
        tensors = {rename(name): tensor for name, tensor in tensors.items() if rename(name)}
    else:
        tensors = {name: tensor.to(torch.int8) for name, tensor in tensors.items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | changes))
    with pytest.raises(ModelError, match=fault):
        check_role(ModelConfig(path=str(folder)), EngineConfig(kind="transformers", max_model_len=64), learns=False)


def test_a_hub_model_that_is_in_the_cache_in_part_is_left_to_the_download(world, tmp_path, monkeypatch):
    repository = tmp_path / "models--org--some"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs/main").write_text("0" * 40)
    folder = shutil.copytree(world.model, repository / "snapshots" / ("0" * 40))
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    first = dict(list(tensors.items())[:2])
    save_file(first, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    config = AutoConfig.from_pretrained(folder)
    check_loads(config, "org/some")
    monkeypatch.setattr("rlanything.plan.models.HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError):
        check_loads(config, "org/some")


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_quantised_weights_that_this_machine_cannot_multiply_are_refused_before_they_are_loaded(
    world, tmp_path, method, monkeypatch
):
    folder = tmp_path / "model"
    shutil.copytree(world.model, folder)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {"quant_method": method, "bits": 4, "group_size": 128, "zero_point": True}
    (folder / "config.json").write_text(json.dumps(config))
    model, engine = ModelConfig(path=str(folder)), EngineConfig(kind="vllm", max_model_len=64)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX2")
    with pytest.raises(EngineError, match=rf"quantised \({method}\).*only if it has AVX-512 \(this one: AVX2\); use"):
        check_role(model, engine, learns=False)
    check_role(model, engine, learns=False, on_accelerator=True)
    with pytest.raises(EngineError, match="which the small engine cannot serve; set this role's engine.*kind=vllm"):
        check_role(model, EngineConfig(kind="transformers", max_model_len=64), learns=False)
    with pytest.raises(LearnerError, match="which cannot be trained; use the model that it was made from"):
        check_role(model, engine, learns=True)
    monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: "AVX512")
    check_role(model, engine, learns=False)


def test_the_small_engine_refuses_a_model_of_images_that_it_does_not_know(tmp_path):
    write_vision_model(tmp_path)
    LlavaConfig().save_pretrained(tmp_path)
    with pytest.raises(EngineError, match="LlavaConfig reads images in a way .* set this role's engine.*kind=vllm"):
        check_model(ModelConfig(path=str(tmp_path)), EngineConfig(max_model_len=2048, kind="transformers"))


def test_the_folder_of_a_checkpoint_names_the_model_within_it(world, tmp_path):
    shutil.copytree(world.model, tmp_path / "policy" / "hf")
    with pytest.raises(EngineError, match=f"policy' has no config.json, .*; {tmp_path}/policy/hf is one"):
        check_model(ModelConfig(path=str(tmp_path / "policy")), EngineConfig())


def test_sequences_longer_than_the_model_has_positions_are_refused(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    config = AutoConfig.from_pretrained(model)
    config.max_position_embeddings = 2048
    config.save_pretrained(model)
    check_model(ModelConfig(path=str(model)), EngineConfig(max_model_len=2048))
    with pytest.raises(
        EngineError, match="max_model_len: found 4096, but .* has 2048 positions .*set max_model_len=2048"
    ):
        check_model(ModelConfig(path=str(model)), EngineConfig(max_model_len=4096))
    config.rope_parameters = {
        "rope_type": "yarn",
        "rope_theta": 1e4,
        "factor": 4.0,
        "original_max_position_embeddings": 2048,
    }
    config.save_pretrained(model)
    check_model(ModelConfig(path=str(model)), EngineConfig(max_model_len=8192))


@pytest.mark.parametrize(
    ("file", "text", "said"),
    [
        ("config.json", "{", "config.json cannot be read"),
        ("config.json", "[]", "config.json cannot be read"),
        (
            "config.json",
            '{"model_type": "qwen3", "rope_parameters": {"rope_type": "yarn"}}',
            "config.json cannot be read",
        ),
        ("config.json", '{"model_type": "qwen3", "num_attention_heads": "many"}', "config.json cannot be read"),
        ("config.json", '{"model_type": "nobody"}', "config.json cannot be read"),
        ("tokenizer.json", "{}", "no tokenizer could be loaded"),
        ("tokenizer.json", '{"model": {"type": "Nobody"}}', "no tokenizer could be loaded"),
        ("tokenizer_config.json", "[1]", "no tokenizer could be loaded"),
    ],
)
def test_a_broken_file_is_one_message(world, tmp_path, file, text, said):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    (model / file).write_text(text)
    with pytest.raises((EngineError, ChatError, ModelError), match=f"{model}.*{said}"):
        check_model(ModelConfig(path=str(model)), EngineConfig())


def test_tokens_without_an_embedding_are_named(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    size = AutoConfig.from_pretrained(model).vocab_size
    tokenizer = AutoTokenizer.from_pretrained(model)
    # The template never writes it, as Gemma 3's text models have a token for images beyond their embedding.
    tokenizer.add_special_tokens({"additional_special_tokens": ["<image>"]}, replace_extra_special_tokens=False)
    tokenizer.save_pretrained(model)
    assert len(tokenizer) == size + 1
    check_model(ModelConfig(path=str(model)), EngineConfig())
    tokenizer.add_tokens(["<tool_call>"])
    tokenizer.save_pretrained(model)
    with pytest.raises(EngineError, match=f"ids up to {size + 1} .'<tool_call>'.*vocab_size={size} in config.json"):
        check_model(ModelConfig(path=str(model)), EngineConfig())


def test_a_chat_template_without_an_end_of_turn_is_found_before_anything_is_loaded(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    (model / "chat_template.jinja").write_text("{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}")
    with pytest.raises(
        ChatError, match=f"model {model}: its chat template puts 'user: \\.' after .* and '' at the end"
    ):
        check_model(ModelConfig(path=str(model)), EngineConfig())


def test_a_model_loads_its_tokenizer_once(world, tmp_path, monkeypatch):
    loaded, load = [], AutoTokenizer.from_pretrained

    def counted(path, **options):
        loaded.append(path)
        return load(path, **options)

    monkeypatch.setattr(AutoTokenizer, "from_pretrained", counted)
    config = EngineConfig(kind="transformers", dtype="float32", max_model_len=64, max_num_seqs=2, kv_cache_gb=0.01)
    path = ModelConfig(path=str(world.model))
    model = start_chat_model(path, config, 0, tmp_path / "engine.log", check_model(path, config))
    model.engine.close()
    assert loaded == [str(world.model)]


def test_the_small_engine_refuses_a_window_below_its_context():
    _check_supported(MistralConfig(), 4096)
    with pytest.raises(EngineError, match="sliding_attention.*window 4096.*expected full attention over max_model_len"):
        _check_supported(MistralConfig(), 4097)


def test_vllm_that_is_not_installed_is_named(world, tmp_path, monkeypatch):
    for module in ("", ".asynchronous", ".in_process"):  # each of which another test may have imported
        monkeypatch.setitem(sys.modules, f"rlanything.engines.vllm{module}", None)
    with pytest.raises(EngineError, match="engine.*kind=vllm: .* set kind=transformers"):
        start_engine(ModelConfig(path=str(world.model)), EngineConfig(kind="vllm"), 0, tmp_path / "log")


def test_a_model_that_is_not_whole_is_found_before_anything_is_loaded(world, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(world.model, model)
    weights = model / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1000])
    with pytest.raises(ModelError, match="model.safetensors: found .* bytes, but its header says"):
        check_model(ModelConfig(path=str(model)), EngineConfig())
    weights.unlink()
    with pytest.raises(ModelError, match="has no weights"):
        check_model(ModelConfig(path=str(model)), EngineConfig())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.rename(m.with_name("model-00001-of-00003.safetensors")), "holds 1 of 3 files of weights"),
        (lambda m: m.rename(m.with_name("consolidated.safetensors")), "as consolidated.safetensors alone"),
        (lambda m: m.with_name("adapter_config.json").write_text("{}"), "holds adapters beside whole weights"),
        (lambda m: shutil.copy(m, m.with_name("model_old.safetensors")), "holds model.safetensors and model_old.safet"),
    ],
)
def test_weights_that_engines_would_read_differently_are_refused(world, tmp_path, change, message):
    shutil.copytree(world.model, tmp_path / "model")
    change(tmp_path / "model" / "model.safetensors")
    with pytest.raises(ModelError, match=message):
        check_model(ModelConfig(path=str(tmp_path / "model")), EngineConfig())


def test_a_setting_of_the_tokenizer_of_another_type_is_named(world, tmp_path):
    shutil.copytree(world.model, tmp_path / "model")
    path = tmp_path / "model" / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": "big"}))
    with pytest.raises(ChatError, match="no tokenizer could be loaded"):
        check_model(ModelConfig(path=str(tmp_path / "model")), EngineConfig())


def test_weights_in_older_files_are_matched_by_their_names_too(world, tmp_path):
    folder = shutil.copytree(world.model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    engine = EngineConfig(kind="transformers", max_model_len=64)
    torch.save(tensors, folder / "pytorch_model.bin")
    check_role(ModelConfig(path=str(folder)), engine, learns=True)
    torch.save({n: t for n, t in tensors.items() if "layers.1.mlp" not in n}, folder / "pytorch_model.bin")
    with pytest.raises(ModelError, match=r"lack 3 tensors .* such as model.layers.1.mlp.down"):
        check_role(ModelConfig(path=str(folder)), engine, learns=True)


def test_a_head_of_its_own_that_config_json_ties_is_refused(world, tmp_path):
    folder = shutil.copytree(world.model, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    embedding = tensors["model.embed_tokens.weight"]
    for head, fits in ((embedding.clone(), True), (2 * embedding, False)):
        save_file(tensors | {"lm_head.weight": head}, folder / "model.safetensors", metadata={"format": "pt"})
        if fits:
            check_role(ModelConfig(path=str(folder)), EngineConfig(max_model_len=64), learns=True)
        else:
            with pytest.raises(ModelError, match="tie_word_embeddings=true, but lm_head.weight differs from"):
                check_role(ModelConfig(path=str(folder)), EngineConfig(max_model_len=64), learns=True)


@pytest.mark.parametrize("kind", ["classifier", "embedding"])
def test_a_model_that_writes_no_text_is_refused_by_name(world, tmp_path, kind):
    copy = shutil.copytree(world.model, tmp_path / "model")
    if kind == "embedding":
        (copy / "modules.json").write_text("[]")
    else:
        described = json.loads((copy / "config.json").read_text())
        (copy / "config.json").write_text(json.dumps(described | {"architectures": ["Qwen3ForSequenceClassification"]}))
    with pytest.raises(EngineError, match="must write text; use a model for generation"):
        check_model(ModelConfig(path=str(copy)), EngineConfig(max_model_len=64))


def test_a_cache_too_small_for_one_sequence_names_both_keys():
    shape = SimpleNamespace(num_hidden_layers=2, num_attention_heads=4, hidden_size=64)
    check_cache(shape, EngineConfig(dtype="float32", max_model_len=512, kv_cache_gb=0.001))
    with pytest.raises(EngineError, match="kv_cache_gb: found 0.001, .* max_model_len=4096: raise it to 0.004"):
        check_cache(shape, EngineConfig(dtype="float32", max_model_len=4096, kv_cache_gb=0.001))
    for less in ({"sliding_window": 128}, {"layer_types": ["linear_attention"]}, {"num_attention_heads": 0}):
        changed = SimpleNamespace(**vars(shape) | less)
        check_cache(changed, EngineConfig(dtype="float32", max_model_len=4096, kv_cache_gb=0.001))


def test_a_plan_sizes_a_model_by_its_own_code_only_if_it_may(tmp_path):
    folder = tmp_path / "own_code"
    folder.mkdir()
    (folder / "own.py").write_text(
        "import torch\n"
        "from transformers import PretrainedConfig, PreTrainedModel\n"
        "class OwnConfig(PretrainedConfig):\n"
        "    model_type = 'own_code'\n"
        "class OwnModel(PreTrainedModel):\n"
        "    config_class = OwnConfig\n"
        "    def __init__(self, config):\n"
        "        super().__init__(config)\n"
        "        self.layer = torch.nn.Linear(3, 4)\n"
        "        self.post_init()\n"
    )
    code = {"AutoConfig": "own.OwnConfig", "AutoModelForCausalLM": "own.OwnModel"}
    (folder / "config.json").write_text(json.dumps({"model_type": "own_code", "auto_map": code}))
    assert described_size(ModelConfig(path=str(folder), trust_remote_code=True)) == 16
    with pytest.raises(ModelError, match="transformers cannot load it"):
        described_size(ModelConfig(path=str(folder)))
