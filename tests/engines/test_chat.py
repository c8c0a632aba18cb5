"""Conversations as tokens, over the chat templates of nine families: what was grown reads as if rendered anew."""

from dataclasses import replace
from functools import cache

import pytest
from chat_families import CHATML, FAMILIES, QWEN3, Family, write_tokenizer
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from rlanything.config.schema import ModelConfig
from rlanything.domains.answers import parse_score
from rlanything.engines.chat import Chat
from rlanything.engines.template import ChatError
from rlanything.types import RAW, assistant, system, tool, user

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "look",
            "description": "Look at a thing.",
            "parameters": {"type": "object", "properties": {"at": {"type": "string"}}, "required": ["at"]},
        },
    }
]
OPENING = [system("You act in a room."), user("Your task is to find a mug.")]


def call(at: str, number: int = 0) -> dict:
    return {"type": "function", "id": f"call{number:05}", "function": {"name": "look", "arguments": {"at": at}}}


@pytest.fixture(scope="module")
def chat_of(tmp_path_factory):
    """The chat of a family, by its name, or of a changed family."""

    @cache
    def make(family: str | Family) -> Chat:
        known = FAMILIES[family] if isinstance(family, str) else family
        return Chat(ModelConfig(path=str(write_tokenizer(known, tmp_path_factory.mktemp("tokenizer")))))

    return make


def grow(chat: Chat, opening, turns, tools=()) -> tuple[list[int], list[int]]:
    """(a conversation grown turn by turn, the same rendered at once); a turn is an assistant's message and what
    follows it."""
    ids, messages = list(chat.prompt(opening, tools).ids), list(opening)
    for answer, following in turns:
        ids += [*chat.assistant(answer, tools), *chat.follow_up(following, tools).ids]
        messages += [answer, *following]
    return ids, chat.prompt(messages, tools).ids


@pytest.mark.parametrize("name", FAMILIES)
def test_a_grown_conversation_reads_as_the_template_renders_it(chat_of, name):
    turns = [
        (assistant("go to the drawer 1"), [user("You open the drawer 1.\n\nIt is empty.")]),
        (assistant("look"), [user('{"seen": ["mug 1"]}')]),
        (assistant("take mug 1"), [user("You pick up the mug 1.")]),
    ]
    grown, rendered = grow(chat_of(name), OPENING, turns)
    assert grown == rendered
    grown, rendered = grow(chat_of(name), OPENING[1:], turns)
    assert grown == rendered


@pytest.mark.parametrize("name", FAMILIES)
def test_the_template_names_the_end_of_a_turn_whatever_eos_the_tokenizer_names(chat_of, name):
    chat, family = chat_of(name), FAMILIES[name]
    end, eos = (chat.tokenizer.convert_tokens_to_ids(token) for token in (family.end, family.eos))
    assert chat.end_of_turn == end
    assert chat.stop_ids == ((end, eos) if eos != end else (end,))
    assert chat.response_ids("take mug 1")[-1] == end
    assert chat.decode(chat.response_ids("take mug 1")).strip() == "take mug 1"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen2.5", "\n<|im_start|>user\nroom<|im_end|>\n<|im_start|>assistant\n"),
        (
            "llama3",
            "<|start_header_id|>user<|end_header_id|>\n\nroom<|eot_id|><|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        ("gemma", "\n<start_of_turn>user\nroom<end_of_turn>\n<start_of_turn>model\n"),
        ("mistral", "[INST] room[/INST]"),
    ],
)
def test_what_stands_after_the_end_of_a_turn_belongs_to_the_follow_up(chat_of, name, text):
    chat = chat_of(name)
    assert chat.tokenizer.decode(chat.follow_up([user("room")]).ids) == text


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3", "mistral"])
def test_tool_calls_and_several_tool_messages_grow_as_rendered(chat_of, name):
    calls = [call("mug 1"), call("drawer 2", 1)] if name != "llama3" else [call("mug 1")]
    results = [tool("a mug", "look", "call00000"), tool("It is closed.", "look", "call00001")]
    turns = [(assistant("", calls), results), (assistant("", calls[:1]), results[:1])]
    chat = chat_of(name)
    grown, rendered = grow(chat, OPENING, turns, TOOLS)
    assert grown == rendered
    assert "look" in chat.decode(chat.assistant(turns[0][0], TOOLS)) and rendered != chat.prompt(OPENING).ids


@pytest.mark.parametrize("name", ["qwen2.5", "qwen3", "llama3"])
def test_a_user_message_may_follow_tool_messages(chat_of, name):
    said = assistant("I look.", [call("mug 1")]) if name != "llama3" else assistant("", [call("mug 1")])
    turns = [(said, [tool("a mug"), tool("a cup"), user("Which one?")]), (assistant("the mug"), [user("Take it.")])]
    grown, rendered = grow(chat_of(name), OPENING, turns, TOOLS)
    assert grown == rendered


def test_qwen_puts_several_tool_messages_into_one_block(chat_of):
    chat = chat_of("qwen2.5")
    text = chat.tokenizer.decode(chat.follow_up([tool("a mug"), tool("a cup")], TOOLS).ids)
    assert text.count("<|im_start|>user") == 1 and text.count("<tool_response>") == 2


def test_qwen3_drops_earlier_reasoning_where_a_grown_conversation_keeps_it(chat_of):
    chat = chat_of("qwen3")
    thought = "<think>\nIt may be in the drawer.\n</think>\n\n"
    acting = [(assistant(f"{thought}", [call("drawer 2")]), [tool("a mug")])]
    grown, rendered = grow(chat, OPENING, acting, TOOLS)
    assert grown == rendered  # no user message came after the reasoning
    grown, rendered = grow(chat, OPENING, [(assistant(f"{thought}open drawer 2"), [user("It is open.")])])
    plain, _ = grow(chat, OPENING, [(assistant("open drawer 2"), [user("It is open.")])])
    assert rendered == plain != grown
    assert thought in chat.tokenizer.decode(grown)


def test_a_thought_that_the_template_opened_is_marked_in_the_response(chat_of):
    thinking = replace(FAMILIES["qwen3"], template=QWEN3.replace("assistant\\n' }}", "assistant\\n<think>\\n' }}"))
    chat = chat_of(thinking)
    cut = chat.response_text(chat.encode("perhaps \\boxed{-1}, or"))
    assert cut.startswith("<think>perhaps") and parse_score(cut)[0] is None
    whole = chat.response_text(chat.encode("perhaps \\boxed{-1}\n</think>\n\\boxed{1}"))
    assert parse_score(whole) == (1, "")
    plain = chat_of("qwen3")
    assert plain.response_text(plain.encode("\\boxed{1}")) == "\\boxed{1}"


def test_mistral_lists_the_tools_again_before_a_new_user_message(chat_of):
    """Its template lists them before the last user message only, so a grown conversation holds them twice."""
    chat = chat_of("mistral")
    grown, rendered = grow(chat, OPENING, [(assistant("look"), [user("room")])], TOOLS)
    assert [chat.tokenizer.decode(ids).count("[AVAILABLE_TOOLS]") for ids in (grown, rendered)] == [2, 1]


@pytest.mark.parametrize("name", FAMILIES)
def test_a_special_token_in_an_observation_is_text(chat_of, name):
    chat, family = chat_of(name), FAMILIES[name]
    special = [i for i, token in chat.tokenizer.added_tokens_decoder.items() if token.special]

    def count(ids):
        return sum(i in special for i in ids)

    spelled = f"It says {family.end}\n{family.special[1]} there."
    for make in (chat.follow_up, chat.prompt):
        ids = make([user(spelled)]).ids
        assert count(ids) == count(make([user("It says nothing.")]).ids)
        text = chat.tokenizer.decode(ids)
        if family.splits in ("llama", "phi"):  # SentencePiece puts spaces around it
            text, spelled = text.replace(" ", ""), spelled.replace(" ", "")
        assert spelled in text
    grown, rendered = grow(chat, OPENING, [(assistant("read"), [user(spelled)])])
    assert grown == rendered


@pytest.mark.parametrize("name", FAMILIES)
def test_the_end_of_a_turn_that_a_response_spells_is_text(chat_of, name):
    chat, family = chat_of(name), FAMILIES[name]
    spelled = f"It says {family.end} there."
    assert chat.response_ids(spelled).count(chat.end_of_turn) == 1
    grown, rendered = grow(chat, OPENING, [(assistant(spelled), [user("and?")])])
    plain, _ = grow(chat, OPENING, [(assistant("It says."), [user("and?")])])
    assert grown == rendered and grown.count(chat.end_of_turn) == plain.count(chat.end_of_turn)


def test_a_special_token_in_a_tool_message_is_text(chat_of):
    for name in ("qwen3", "llama3"):
        chat = chat_of(name)
        bad = chat.follow_up([tool(f"x{FAMILIES[name].end}y")]).ids
        assert bad.count(chat.end_of_turn) == chat.follow_up([tool("xy")]).ids.count(chat.end_of_turn)


def test_a_special_token_that_is_a_piece_of_the_vocabulary_is_spelled_by_letters(tmp_path):
    pieces = {"<unk>": 0, "</s>": 1, **{letter: i for i, letter in enumerate("abcdefghijklmnopqrstuvwxyz</>.", 2)}}
    unigram = Tokenizer(models.Unigram([(piece, 0.0 if len(piece) > 1 else -5.0) for piece in pieces], 0))
    unigram.add_special_tokens([AddedToken("</s>", special=True, normalized=False)])
    fast = PreTrainedTokenizerFast(tokenizer_object=unigram, eos_token="</s>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] }}{{ eos_token }}{% endfor %}"
    fast.save_pretrained(tmp_path)
    chat = Chat(ModelConfig(path=str(tmp_path)))
    assert 1 in chat.tokenizer.encode("a</s>b", split_special_tokens=True)
    assert chat.prompt([user("a</s>b")]).ids == [*(pieces[letter] for letter in "a</s>b"), 1]


def test_special_tokens_in_an_assistant_message_are_tokens(chat_of):
    chat = chat_of("llama3")
    assert chat.response_ids("<|eom_id|>")[0] == chat.tokenizer.convert_tokens_to_ids("<|eom_id|>")


@pytest.mark.parametrize("name", FAMILIES)
def test_a_response_that_merges_with_the_head_of_its_turn_still_ends_it(chat_of, name):
    chat = chat_of(name)
    ids = chat.response_ids("\n\n  go")
    assert ids[-1] == chat.end_of_turn and chat.decode(ids).strip() == "go"
    if name != "phi3":  # whose special tokens take in the white space that follows them
        assert chat.decode(ids).endswith("\n\n  go")


def test_what_a_caller_does_to_a_prompt_does_not_reach_the_next(chat_of):
    chat = chat_of("qwen2.5")
    first = chat.follow_up([user("room")])
    kept = list(first.ids)
    first.ids.clear()
    assert chat.follow_up([user("room")]).ids == kept and not first.images


@pytest.mark.parametrize("name", ["gemma", "mistral"])
def test_without_a_system_role_the_system_text_opens_the_first_user_message(chat_of, name):
    chat = chat_of(name)
    merged = user("You act in a room.\n\nYour task is to find a mug.")
    assert chat.prompt(OPENING).ids == chat.prompt([merged]).ids
    with pytest.raises(ChatError, match="has no system role, and no user message follows"):
        chat.prompt([system("You act in a room.")])
    with pytest.raises(ChatError, match="has no system role, and a system message stands within"):
        chat.follow_up([system("Think."), user("room")])


def test_parts_of_text_are_one_text(chat_of):
    chat = chat_of("phi3")
    parts = [{"type": "text", "text": "Your task is "}, {"type": "text", "text": "to find a mug."}]
    assert chat.prompt([OPENING[0], {"role": "user", "content": parts}]).ids == chat.prompt(OPENING).ids
    with pytest.raises(ChatError, match="has a part .*video.*, expected type text or image"):
        chat.prompt([{"role": "user", "content": [{"type": "video"}]}])


def test_a_model_that_reads_no_images_is_named(chat_of):
    chat = chat_of("qwen2.5")
    with pytest.raises(ChatError, match="model .*tokenizer.* reads no images, and a user message has an image part"):
        chat.prompt([user("What is this?", ["screen.png"])])


@pytest.mark.parametrize(
    ("name", "messages", "tools", "complaint"),
    [
        ("gemma", [tool("a mug")], [], "renders no tool messages .*roles must alternate.*trained with tools"),
        ("phi3", [tool("a mug")], [], "renders no tool messages .it leaves them out.*trained with tools"),
        ("gemma", [user("room")], TOOLS, "renders no tools .it leaves them out"),
        ("smollm2", [user("room")], TOOLS, "renders no tools .it leaves them out"),
        ("mistral", [tool("a mug")], [], "ends with user, assistant, tool: Tool call IDs should be"),
        ("gemma", [user("room"), user("Hurry.")], [], "ends with user, assistant, user, user: Conversation roles must"),
        ("qwen3", [{"role": "robot", "content": "beep"}], [], "'robot', expected one of system, user, assistant, tool"),
    ],
)
def test_what_a_template_cannot_render_is_named(chat_of, name, messages, tools, complaint):
    with pytest.raises(ChatError, match=complaint):
        chat_of(name).follow_up(messages, tools)


@pytest.mark.parametrize(
    ("name", "message", "complaint"),
    [
        ("smollm2", assistant("", [call("mug")]), "renders no tool calls .it leaves them out"),
        ("llama3", assistant("I look.", [call("mug")]), "renders no text beside tool calls .*leave the text out"),
        ("mistral", assistant("I look.", [call("mug")]), "renders no text beside tool calls"),
        ("llama3", assistant("", [call("mug"), call("cup")]), "only supports single tool-calls at once"),
    ],
)
def test_a_demonstration_that_a_template_cannot_render_is_named(chat_of, name, message, complaint):
    with pytest.raises(ChatError, match=complaint):
        chat_of(name).assistant(message)


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}", r"'\\nuser: \.\\n' .* and '\\n'"),
        ("{% for m in messages %}{{ m.content }}{% endfor %}", r"'\.' .* and ''"),
        # A token that opens the next turn, as in GLM's templates.
        ("{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}{% endfor %}", r"'<\|im_start\|>user\.' .* ''"),
        ("{% for m in messages %}{{ m.role }}{% endfor %}", "'' .* and ''"),
    ],
)
def test_a_template_without_an_end_of_turn_is_refused(chat_of, template, found):
    with pytest.raises(ChatError, match=f"model .*: its chat template puts {found}.*expected the same special token"):
        chat_of(Family(template, CHATML, "", "<|endoftext|>"))


def test_an_end_of_turn_that_is_not_special_is_refused(chat_of):
    template = FAMILIES["smollm2"].template
    with pytest.raises(ChatError, match=r"puts '<\|im_end\|>.*mark the token as special in tokenizer_config.json"):
        chat_of(Family(template, CHATML[:2], "", "<|endoftext|>", added=("<|im_end|>",)))


def test_white_space_around_a_response_belongs_to_the_response(chat_of):
    """Llama 2's template: one space before the text, and one between the text and the end of the turn."""
    template = (
        "{% for m in messages %}{% if m.role == 'user' %}{{ bos_token + '[INST] ' + m.content + ' [/INST]' }}"
        "{% else %}{{ ' ' + m.content + ' ' + eos_token }}{% endif %}{% endfor %}"
    )
    chat = chat_of(Family(template, ("<s>", "</s>"), "</s>", "</s>", "llama"))
    grown, rendered = grow(chat, OPENING[1:], [(assistant("take mug 1"), [user("room")])])
    assert grown == rendered and chat.decode(chat.response_ids("take mug 1")) == " take mug 1 "


def test_a_word_that_is_no_special_token_is_split_alike_inside_a_conversation(tmp_path):
    """Words of a whole vocabulary, each special token a word too."""
    words = Tokenizer(models.WordLevel({"<end>": 0, "w": 1, "<unk>": 2}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    fast = PreTrainedTokenizerFast(tokenizer_object=words, eos_token="<end>", unk_token="<unk>")
    fast.chat_template = "{% for m in messages %}{{ m['content'] + ' ' + eos_token + ' ' }}{% endfor %}"
    fast.save_pretrained(tmp_path)
    chat = Chat(ModelConfig(path=str(tmp_path)))
    assert chat.prompt([user("w w")]).ids == [1, 1, 0]
    assert chat.prompt([user("w <end> w")]).ids.count(0) == 1


def test_a_model_without_tokenizer_or_chat_template_is_named(world, tmp_path):
    with pytest.raises(ChatError, match="no tokenizer could be loaded"):
        Chat(ModelConfig(path=str(tmp_path)))
    chat = Chat(ModelConfig(path=str(world.model)))
    chat.tokenizer.chat_template = None
    chat.tokenizer.save_pretrained(tmp_path / "bare")
    bare = Chat(ModelConfig(path=str(tmp_path / "bare")))
    assert bare.prompt([{"role": RAW, "content": "go"}]).ids == bare.encode("go") and bare.stop_ids == (
        bare.end_of_turn,
    )
    for use in (
        lambda: bare.prompt([user("go")]),
        lambda: bare.follow_up([user("go")]),
        lambda: bare.assistant(user("go")),
    ):
        with pytest.raises(ChatError, match="no chat template"):
            use()
    bare.tokenizer.eos_token = None
    bare.tokenizer.save_pretrained(tmp_path / "endless")
    with pytest.raises(ChatError, match="neither a chat template nor an eos token"):
        Chat(ModelConfig(path=str(tmp_path / "endless")))
