"""Images in conversations: as many tokens as the model's own processor says, where the template puts them."""

import shutil
from pathlib import Path

import pytest
from PIL import Image
from tiny_vision import KINDS, write_picture, write_vision_model
from transformers import AutoProcessor

from rlanything.config.schema import ModelConfig
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.types import assistant, system, tool, user


@pytest.fixture(scope="module", params=KINDS)
def folder(tmp_path_factory, request):
    return write_vision_model(tmp_path_factory.mktemp("vision"), kind=request.param)


@pytest.fixture(scope="module")
def chat(folder):
    return Chat(ModelConfig(path=str(folder)))


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Files of three pictures of two sizes, in two formats."""
    folder = tmp_path_factory.mktemp("pictures")
    sizes = ((64, 48), (64, 48), (100, 70))
    return [write_picture(folder / f"{i}.{'jpg' if i == 2 else 'png'}", size, i) for i, size in enumerate(sizes)]


def test_prompts_with_images_are_those_of_the_models_own_processor(folder, chat, pictures):
    messages = [system("Look."), user("Find a mug.", pictures[:1]), assistant("go"), user("Now?", pictures[1:])]
    prompt = chat.prompt(messages)
    processor = AutoProcessor.from_pretrained(folder)
    text = processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    opened = [Image.open(path).convert("RGB") for path in pictures]  # its own reader needs torchvision's C++ part
    told = processor(text=[text], images=opened, return_tensors="pt")
    assert prompt.ids == told["input_ids"][0].tolist()
    assert [image.path for image in prompt.images] == pictures
    assert [[2 * image.rows, 2 * image.columns] for image in prompt.images] == told["image_grid_thw"][:, 1:].tolist()
    pad = chat.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    for image in prompt.images:
        assert prompt.ids[image.start : image.start + image.num_token] == [pad] * image.num_token
        assert prompt.ids[image.start - 1] != pad != prompt.ids[image.start + image.num_token]


def test_a_grown_conversation_with_images_reads_as_rendered_anew(chat, pictures):
    opening = [user("Find a mug.", pictures[:1])]
    turns = [
        (assistant("go"), [user("Here.", pictures[1:])]),
        (assistant("take"), [tool("a mug"), user("", pictures[:1])]),
    ]
    grown, messages = chat.prompt(opening), list(opening)
    for answer, following in turns:
        grown = grown.extended(chat.assistant(answer), chat.follow_up(following))
        messages += [answer, *following]
    assert grown == chat.prompt(messages)
    assert len({image.digest for image in grown.images}) == 3 and len(grown.images) == 4


def test_a_placeholder_that_an_observation_spells_is_text(chat, pictures):
    pad = chat.tokenizer.convert_tokens_to_ids("<|image_pad|>")
    prompt = chat.prompt([user("Read <|image_pad|> and <|vision_start|>.", pictures[:1])])
    assert prompt.ids.count(pad) == prompt.images[0].num_token
    assert "Read <|image_pad|> and <|vision_start|>." in chat.tokenizer.decode(prompt.ids)


def test_a_placeholder_that_a_response_spells_is_text_too(chat, pictures):
    """A policy that types it would else end the run, in the next prompt that is rendered anew."""
    special = [chat.tokenizer.convert_tokens_to_ids(t) for t in ("<|image_pad|>", "<|vision_start|>", "<|im_end|>")]
    spelled = "Type <|vision_start|><|image_pad|> and <|im_end|>."
    call = {"type": "function", "id": "1", "function": {"name": "type", "arguments": {"text": spelled}}}
    for shown in (pictures[:1], []):
        for said in (assistant(spelled), assistant("", [call])):
            plain = chat.prompt([user("x", shown), assistant("Type."), user("y")])
            prompt = chat.prompt([user("x", shown), said, user("y")])
            assert [prompt.ids.count(token) for token in special] == [plain.ids.count(token) for token in special]
            assert spelled in chat.tokenizer.decode(prompt.ids)
            ids = chat.assistant(said)
            assert [ids.count(token) for token in special] == [0, 0, 1] and spelled in chat.tokenizer.decode(ids)


def test_an_image_that_the_model_cannot_read_is_named(chat, tmp_path):
    thin = write_picture(tmp_path / "thin.png", (2000, 4))
    with pytest.raises(ChatError, match=f"{thin}: the model cannot read an image of 2000 x 4"):
        chat.prompt([user("x", [thin])])


def test_files_that_are_no_images_are_named(chat, tmp_path, pictures):
    whole = Path(pictures[0]).read_bytes()
    (tmp_path / "cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "head.png").write_bytes(b"\x89PNG\r\n")
    for name in ("cut.png", "head.png", "none.png"):
        with pytest.raises(ChatError, match=f"{tmp_path / name}: cannot be read as an image"):
            chat.prompt([user("x", [str(tmp_path / name)])])


def test_a_model_without_an_image_processor_is_named(folder, tmp_path):
    shutil.copytree(folder, tmp_path / "model")
    for file in (tmp_path / "model").glob("*preprocessor*"):
        file.unlink()
    with pytest.raises(ChatError, match="no image processor could be loaded .* preprocessor_config.json"):
        Chat(ModelConfig(path=str(tmp_path / "model")))


def test_a_template_that_leaves_images_out_is_named(folder, tmp_path, pictures):
    shutil.copytree(folder, tmp_path / "model")
    turn = "<|im_start|>{{ m.role }}\n{{ m.content if m.content is string else '.' }}<|im_end|>\n"
    (tmp_path / "model" / "chat_template.jinja").write_text(
        f"{{% for m in messages %}}{turn}{{% endfor %}}"
        "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    with pytest.raises(ChatError, match="renders no images"):
        Chat(ModelConfig(path=str(tmp_path / "model"))).prompt([user("x", pictures[:1])])
