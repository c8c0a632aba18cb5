"""Tokenizers in the manner of nine families of models, with a small vocabulary and chat templates written by hand.

Each template keeps what decides about tokens: where turns begin and end, what is trimmed, what the template moves,
drops or refuses. Default texts and instructions are cut short.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

TOOLS = r"""
{%- macro listed(tools) %}
    {{- '\n\n# Tools\n\n<tools>' }}
    {%- for tool in tools %}{{- '\n' }}{{- tool | tojson }}{%- endfor %}
    {{- '\n</tools>\n\nReturn a json object within <tool_call></tool_call> XML tags.' }}
{%- endmacro %}
"""
TOOL_MESSAGE = r"""
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user' }}{%- endif %}
        {{- '\n<tool_response>\n' + message.content + '\n</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\n' }}{%- endif %}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}
"""
QWEN25 = (
    TOOLS
    + r"""
{%- set default = 'You are Qwen, created by Alibaba Cloud.' %}
{{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else default) }}
{%- if tools %}{{- listed(tools) }}{%- endif %}
{{- '<|im_end|>\n' }}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first)
           or (message.role == 'assistant' and not message.tool_calls) %}
        {{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role }}
        {%- if message.content %}{{- '\n' + message.content }}{%- endif %}
        {%- for call in message.tool_calls %}
            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
"""
    + TOOL_MESSAGE
)
QWEN_CODER = QWEN25.replace(
    r"""            {{- '\n<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
""",
    r"""            {{- '\n<tool_call>\n<function=' + call.function.name + '>\n' }}
            {%- for name, value in call.function.arguments | items %}
                {%- set text = value if value is string else value | tojson %}
                {{- '<parameter=' + name + '>\n' + text + '\n</parameter>\n' }}
            {%- endfor %}
            {{- '</function>\n</tool_call>' }}
""",
)
SHOWN = r"""
{%- macro shown(content) %}
    {%- if content is string %}{{- content }}
    {%- else %}{%- for part in content or [] %}
        {%- if part.type == 'image' %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}
        {%- elif 'text' in part %}{{- part.text }}{%- endif %}
    {%- endfor %}{%- endif %}
{%- endmacro %}
"""
QWEN3VL = (
    TOOLS
    + SHOWN
    + r"""
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + (shown(messages[0].content) if messages[0].role == 'system' else '') }}
    {%- if tools %}{{- listed(tools) }}{%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + shown(message.content) + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {{- '<|im_start|>' + message.role + '\n' + shown(message.content) }}
        {%- for call in message.tool_calls or [] %}
            {%- if message.content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
"""
    + TOOL_MESSAGE.replace("message.content", "shown(message.content)")
)
QWEN3 = (
    TOOLS
    + r"""
{%- if tools or messages[0].role == 'system' %}
    {{- '<|im_start|>system\n' + (messages[0].content if messages[0].role == 'system' else '') }}
    {%- if tools %}{{- listed(tools) }}{%- endif %}
    {{- '<|im_end|>\n' }}
{%- endif %}
{%- set ns = namespace(looking=true, last_query=messages|length - 1) %}
{%- for message in messages[::-1] %}
    {%- if ns.looking and message.role == 'user' and message.content is string
           and not (message.content.startswith('<tool_response>') and message.content.endswith('</tool_response>')) %}
        {%- set ns.looking = false %}
        {%- set ns.last_query = messages|length - 1 - loop.index0 %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- set content = message.content if message.content is string else '' %}
    {%- if message.role == 'user' or (message.role == 'system' and not loop.first) %}
        {{- '<|im_start|>' + message.role + '\n' + content + '<|im_end|>\n' }}
    {%- elif message.role == 'assistant' %}
        {%- set reasoning = '' %}
        {%- if '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].rstrip('\n').split('<think>')[-1].lstrip('\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\n') %}
        {%- endif %}
        {{- '<|im_start|>' + message.role + '\n' }}
        {%- if loop.index0 > ns.last_query and (loop.last or reasoning) %}
            {{- '<think>\n' + reasoning.strip('\n') + '\n</think>\n\n' + content.lstrip('\n') }}
        {%- else %}
            {{- content }}
        {%- endif %}
        {%- for call in message.tool_calls or [] %}
            {%- if content or not loop.first %}{{- '\n' }}{%- endif %}
            {{- '<tool_call>\n{"name": "' + call.function.name + '", "arguments": ' }}
            {{- call.function.arguments | tojson }}{{- '}\n</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\n' }}
"""
    + TOOL_MESSAGE
)
LLAMA3 = r"""
{{- bos_token }}
{%- set system_message = '' %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content | trim %}
    {%- set messages = messages[1:] %}
{%- endif %}
{{- '<|start_header_id|>system<|end_header_id|>\n\n' }}
{%- if tools %}{{- 'Environment: ipython\n' }}{%- endif %}
{{- 'Cutting Knowledge Date: December 2023\n\n' + system_message + '<|eot_id|>' }}
{%- if tools %}
    {{- '<|start_header_id|>user<|end_header_id|>\n\nGiven the following functions, answer with a JSON.\n\n' }}
    {%- for t in tools %}{{- t | tojson(indent=4) }}{{- '\n\n' }}{%- endfor %}
    {{- messages[0].content | trim + '<|eot_id|>' }}
    {%- set messages = messages[1:] %}
{%- endif %}
{%- for message in messages %}
    {%- if not (message.role == 'ipython' or message.role == 'tool' or 'tool_calls' in message) %}
        {{- '<|start_header_id|>' + message.role + '<|end_header_id|>\n\n' + message.content | trim + '<|eot_id|>' }}
    {%- elif 'tool_calls' in message %}
        {%- if message.tool_calls|length != 1 %}
            {{- raise_exception('This model only supports single tool-calls at once!') }}
        {%- endif %}
        {%- set call = message.tool_calls[0].function %}
        {{- '<|start_header_id|>assistant<|end_header_id|>\n\n{"name": "' + call.name + '", "parameters": ' }}
        {{- call.arguments | tojson }}{{- '}<|eot_id|>' }}
    {%- else %}
        {{- '<|start_header_id|>ipython<|end_header_id|>\n\n' }}
        {%- if message.content is mapping or message.content is iterable %}
            {{- message.content | tojson }}
        {%- else %}{{- message.content }}{%- endif %}
        {{- '<|eot_id|>' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{%- endif %}
"""
GEMMA = r"""
{{- bos_token }}
{%- if messages[0].role == 'system' %}{{- raise_exception('System role not supported') }}{%- endif %}
{%- for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Conversation roles must alternate user/assistant/user/assistant/...') }}
    {%- endif %}
    {%- set role = 'model' if message.role == 'assistant' else message.role %}
    {{- '<start_of_turn>' + role + '\n' + message.content | trim + '<end_of_turn>\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<start_of_turn>model\n' }}{%- endif %}
"""
PHI3 = (
    r"{% for message in messages %}{% if message['role'] == 'system' and message['content'] %}"
    r"{{'<|system|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'user' %}"
    r"{{'<|user|>\n' + message['content'] + '<|end|>\n'}}{% elif message['role'] == 'assistant' %}"
    r"{{'<|assistant|>\n' + message['content'] + '<|end|>\n'}}{% endif %}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|assistant|>\n' }}{% else %}{{ eos_token }}{% endif %}"
)
MISTRAL = r"""
{%- set loop_messages = messages %}
{%- if messages[0].role == 'system' %}
    {%- set system_message = messages[0].content %}
    {%- set loop_messages = messages[1:] %}
{%- endif %}
{%- set user_messages = loop_messages | selectattr('role', 'equalto', 'user') | list %}
{%- set ns = namespace(index=0) %}
{%- for message in loop_messages %}
    {%- if not (message.role == 'tool' or (message.tool_calls is defined and message.tool_calls is not none)) %}
        {%- if (message.role == 'user') != (ns.index % 2 == 0) %}
            {{- raise_exception('After the optional system message, conversation roles must alternate') }}
        {%- endif %}
        {%- set ns.index = ns.index + 1 %}
    {%- endif %}
{%- endfor %}
{{- bos_token }}
{%- for message in loop_messages %}
    {%- if message.role == 'user' %}
        {%- if tools and message == user_messages[-1] %}
            {{- '[AVAILABLE_TOOLS] ' }}{{- tools | tojson }}{{- '[/AVAILABLE_TOOLS]' }}
        {%- endif %}
        {%- if loop.last and system_message is defined %}
            {{- '[INST] ' + system_message + '\n\n' + message.content + '[/INST]' }}
        {%- else %}
            {{- '[INST] ' + message.content + '[/INST]' }}
        {%- endif %}
    {%- elif message.tool_calls is defined and message.tool_calls is not none %}
        {{- '[TOOL_CALLS] [' }}
        {%- for call in message.tool_calls %}
            {%- if not call.id is defined or call.id|length != 9 %}
                {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
            {%- endif %}
            {{- (call.function | tojson)[:-1] + ', "id": "' + call.id + '"}' }}
            {{- ']' + eos_token if loop.last else ', ' }}
        {%- endfor %}
    {%- elif message.role == 'assistant' %}
        {{- ' ' + message.content | trim + eos_token }}
    {%- elif message.role == 'tool' %}
        {%- if not message.tool_call_id is defined or message.tool_call_id|length != 9 %}
            {{- raise_exception('Tool call IDs should be alphanumeric strings with length 9!') }}
        {%- endif %}
        {{- '[TOOL_RESULTS] {"content": ' + message.content + ', "call_id": "' + message.tool_call_id }}
        {{- '"}[/TOOL_RESULTS]' }}
    {%- endif %}
{%- endfor %}
"""
SMOLLM2 = (
    r"{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    r"{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM.<|im_end|>\n' }}{% endif %}"
    r"{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
    r"{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# GPT-4's pattern as Qwen's and Llama 3's tokenizers have it: newlines and the spaces before them are one piece.
WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEXT = [
    "You are in a room. You see a mug 1, and a drawer 2.\n\nYour task is to put a mug in the drawer.\n",
    'go to the drawer 1\nYou open the drawer.\n\n\n{"name": "look", "arguments": {"at": "the mug"}}\n user model',
]


@dataclass(frozen=True)
class Family:
    """A template, its special tokens, and how the family splits texts (`bytes`, `gemma`, `llama` or `phi`)."""

    template: str
    special: tuple[str, ...]
    end: str
    eos: str
    splits: str = "bytes"
    added: tuple[str, ...] = ()  # tokens that are not special


CHATML = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
VISION = ("<|vision_start|>", "<|vision_end|>", "<|image_pad|>", "<|video_pad|>")
CALLS = ("<tool_call>", "</tool_call>")
LLAMA = ("begin_of_text", "end_of_text", "start_header_id", "end_header_id", "eot_id", "eom_id")
HEADERS = tuple(f"<|{name}|>" for name in LLAMA)
TURNS = ("<eos>", "<bos>", "<start_of_turn>", "<end_of_turn>")
PHI = ("<|endoftext|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
BRACKETS = ("INST", "AVAILABLE_TOOLS", "TOOL_RESULTS")
MISTRALS = ("<s>", "</s>", "[TOOL_CALLS]", *(f"[{slash}{name}]" for name in BRACKETS for slash in ("", "/")))
FAMILIES = {  # eos is the base model's: most instruct models name another one than ends their turns
    "qwen2.5": Family(QWEN25, CHATML, "<|im_end|>", "<|endoftext|>", added=CALLS),
    "qwen3-coder": Family(QWEN_CODER, CHATML, "<|im_end|>", "<|endoftext|>", added=CALLS),
    "qwen3": Family(QWEN3, CHATML, "<|im_end|>", "<|endoftext|>", added=(*CALLS, "<think>", "</think>")),
    "qwen3vl": Family(QWEN3VL, (*CHATML, *VISION), "<|im_end|>", "<|im_end|>", added=CALLS),
    "llama3": Family(LLAMA3, HEADERS, "<|eot_id|>", "<|end_of_text|>"),
    "gemma": Family(GEMMA, TURNS, "<end_of_turn>", "<eos>", "gemma"),
    "phi3": Family(PHI3, PHI, "<|end|>", "<|endoftext|>", "phi"),
    "mistral": Family(MISTRAL, MISTRALS, "</s>", "</s>", "llama"),
    "smollm2": Family(SMOLLM2, CHATML, "<|im_end|>", "<|endoftext|>"),
}


def write_tokenizer(family: Family, folder: Path) -> Path:
    """Train and save a tokenizer of the family; returns its folder."""
    tokenizer = Tokenizer(models.BPE())
    if family.splits == "bytes":
        split = pre_tokenizers.Split(Regex(WORDS), "isolated")
        tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(False, use_regex=False)])
        tokenizer.decoder = decoders.ByteLevel()
    else:  # as SentencePiece's models are converted
        spaces = normalizers.Replace(" ", "▁")
        if family.splits == "gemma":
            tokenizer.normalizer = spaces
        elif family.splits == "phi":
            tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), spaces])
        else:
            tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        tokenizer.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    alphabet = pre_tokenizers.ByteLevel.alphabet() if family.splits == "bytes" else []
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, max_token_length=12, show_progress=False)
    tokenizer.train_from_iterator(TEXT, trainer)
    if family.splits != "bytes":  # a character that is not in the vocabulary becomes its bytes
        trained = json.loads(tokenizer.to_str())["model"]
        size, merges = len(trained["vocab"]), [tuple(pair) for pair in trained["merges"]]
        fallback = {f"<0x{i:02X}>": size + i for i in range(256)}
        tokenizer.model = models.BPE({**trained["vocab"], **fallback}, merges, byte_fallback=True)
    strips = family.splits == "phi"  # Phi-3's special tokens take in the white space that follows them
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False, rstrip=strips) for t in family.special])
    tokenizer.add_tokens([AddedToken(t, special=False, normalized=False) for t in family.added])
    bos = next((t for t in family.special if t in ("<s>", "<bos>", "<|begin_of_text|>")), None)
    fast = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=family.eos, bos_token=bos)
    fast.chat_template = family.template
    fast.save_pretrained(folder)
    return folder
