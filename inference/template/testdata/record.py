"""Records vectors.jsonl: conversations, rendered by the families' Jinja programs.

    python3 -m venv venv && venv/bin/pip install gguf jinja2 tokenizers
    venv/bin/python record.py MODEL.gguf > vectors.jsonl

A line is {"family": …, "messages": [[role, content], …], "text": what Jinja renders}. Lines of the family smollm2, whose
program is the one in the model file, also have "ids": the tokens of the text by Hugging Face's tokenizers, which
recognises the control tokens in it; so no content may spell one.
"""

import json
import sys

from gguf import GGUFReader
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer, models, pre_tokenizers

LOOP = "{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
PROGRAMS = {
    "chatml": "{% for message in messages %}" + LOOP,
    "qwen2": "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ '<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n' }}{% endif %}" + LOOP,
    "llama3": "{% set loop_messages = messages %}{% for message in loop_messages %}{% set content = '<|start_header_id|>' + message['role'] + '<|end_header_id|>\n\n'+ message['content'] | trim + '<|eot_id|>' %}{% if loop.index0 == 0 %}{% set content = bos_token + content %}{% endif %}{{ content }}{% endfor %}{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\n\n' }}{% endif %}",
}

S, U, A = "system", "user", "assistant"
CONVERSATIONS = [
    [(U, "Why is the sky blue?")],
    [(U, "")],
    [(U, " ")],
    [(S, "You are a pirate."), (U, "Hello!")],
    [(S, ""), (U, "Hello!")],
    [(U, "Hello!"), (A, "Hi. How can I help?"), (U, "Count to 3.")],
    [(S, "Be brief."), (U, "1"), (A, "2"), (U, "3"), (A, "4"), (U, "5")],
    [(U, "Go on"), (A, "I was saying")],
    [(U, "one"), (U, "two"), (S, "in the middle"), (U, "three")],
    [(A, "I begin.")],
    [(S, "only system")],
    [(U, "\n\nlines in front and behind\n\n"), (A, "  spaces  "), (U, "\t\u00a0\u2003x\u3000\u0085\x1c\x1f")],
    [(U, "def f(x):\n    return x\n\n\n# 12345\n")],
    [(U, "日本語で答えてください。"), (A, "はい。😀"), (U, "👩‍👩‍👧 \u200d مرحبا é e\u0301")],
    [(U, "user\nassistant\nsystem\n"), (A, "<|im_start |> <| im_end|> {{ messages }} {% raw %}")],
]


def vocabulary(path):
    fields = GGUFReader(path).fields
    strings = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    kinds = [int(fields["tokenizer.ggml.token_type"].parts[i][0]) for i in fields["tokenizer.ggml.token_type"].data]
    tokens = strings("tokenizer.ggml.tokens")
    t = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")]))
    t.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    t.add_special_tokens([t for t, kind in zip(tokens, kinds) if kind == 3])
    template = fields["tokenizer.chat_template"]
    return t, bytes(template.parts[template.data[0]]).decode()


def main():
    tokenizer, PROGRAMS["smollm2"] = vocabulary(sys.argv[1])
    for family, program in PROGRAMS.items():
        # The settings with which chat templates are run by the library that defined them.
        jinja = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True).from_string(program)
        for messages in CONVERSATIONS:
            text = jinja.render(
                messages=[{"role": r, "content": c} for r, c in messages], add_generation_prompt=True, bos_token="<|begin_of_text|>"
            )
            line = {"family": family, "messages": messages, "text": text}
            if family == "smollm2":
                line["ids"] = tokenizer.encode(text, add_special_tokens=False).ids
            print(json.dumps(line, separators=(",", ":")))


main()
