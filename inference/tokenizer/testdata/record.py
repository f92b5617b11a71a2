"""Records vectors.jsonl: texts, their tokens in a model file's vocabulary, and the cuts of the known pre-tokenizers.

    python3 -m venv venv && venv/bin/pip install gguf tokenizers llama-cpp-python
    venv/bin/python record.py MODEL.gguf > vectors.jsonl

A line is {"text": …, "ids": tokens by Hugging Face's tokenizers, "cuts": {pre-tokenizer: byte lengths of the pieces}}. The
cuts are made by that library's regular expressions from the patterns below. llama.cpp tokenizes every text too; where it
disagrees, a line has "llama_cpp" as well and standard error says so.
"""

import json
import random
import sys
import unicodedata

from gguf import GGUFReader
from llama_cpp import Llama
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
CL100K = r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"""


def split(*patterns):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(p), "isolated") for p in patterns])


PATTERNS = {
    "gpt-2": split(GPT2),
    "smollm": split(r"\p{N}", GPT2),
    "llama-bpe": split(CL100K % "{1,3}"),
    "qwen2": split(CL100K % ""),
}

TEXTS = [
    "", " ", "  ", "   ", "\n", "\n\n", "\n\n\n", "\t", "\r\n", "\r\n\r\n", " \n", "\n ", " \n ", "\t\t x", "a", "A", ".", "0",
    "Hello", "Hello, world!", " Hello", "  Hello", "   Hello", "Hello ", "Hello  ", "Hello   ", "Hello\n", "Hello \n", "Hello\n ",
    "Why is the sky blue?", "The quick brown fox jumps over the lazy dog.", "UPPER lower MiXeD cAsE", "supercalifragilisticexpialidocious",
    # digits
    "1", "12", "123", "1234", "12345", "3.14159", "1,000,000", " 1", "  1", "   1", "a1", "1a", "a 1 b 2", "a  1  b", "2026-12-01T02:35:29Z",
    "0x1F", "1e-5", "²³", "½", "Ⅷ", "٣٤٥", "१२३", "x² + y³", "①②③", "五 5", "1\n2\n\n3", "v1.2.3-rc4", "１２３",
    # contractions
    "It's", "don't", "we're", "I've", "I'm", "they'll", "he'd", "IT'S", "DON'T", "We'Re", "'s", "'S", "''s", " 's", "'tis", "'re're",
    "rock'n'roll", "O'Brien's", "'ſ", "x'ſy", "'l", "'lx", "'r", "'v e", "it’s", "'ll", "'LL", "'Ll", "'D", "'t's", "a's's", "!'s", "! 's",
    # punctuation and code
    "...", "…", "!!!", "?!", "(a)", "[b]", "{c}", "<d>", "a.b.c", "a, b; c: d", "--flag=value", "x+=1;", "a&&b||c", "// comment", "/* */",
    "#include <stdio.h>\nint main(void) {\n\treturn 0;\n}\n", "func main() {\n\tfmt.Println(\"hi\")\n}\n",
    "def f(x):\n    if x:\n        return x\n    return None\n", "for (;;) { }", "SELECT * FROM t WHERE a = 'b';", "<p class=\"x\">&nbsp;</p>",
    "https://example.org/a/b?c=d&e=f#g", "user@example.org", "C:\\path\\to", "$HOME/.cache", "`code`", "**bold** _it_", "# Title\n\n- a\n- b\n",
    "| a | b |\n|---|---|\n| 1 | 2 |", "{\"k\": [1, 2.5, null, true]}", "a = b\r\nc = d\r\n", "\\n\\t\\u0041", "@#$%^&*()", "~`|\\", "-----", "=====\n",
    "!\n", "! \n", "!\r\n\r\n", ".\n\n.", " !\n\n", "\n!", "\t!", "\t!x", "!x", "!!x", " !x", "\u00a0x", "\u00a0!", "\nx", "\rx", "\r x",
    # runs of space
    "a b", "a  b", "a   b", "a    b", "a\tb", "a\t\tb", "a \t b", "a\nb", "a\n\nb", "a \n b", "a  \n  b", "a\n \nb", "a\n\n  b", "a\r\nb", "a \r\n b",
    "a\u00a0b", "a\u00a0\u00a0b", "a\u2003b", "a \u3000 b", "\u3000漢字", "a\u0085b", "a\u1680b", "a\u2028b\u2029c", "a\u200bb", "a\ufeffb", "\ufeffa",
    "a\x0bb\x0cc", "a\x1cb\x1dc\x1ed\x1fe", "x" + " " * 50 + "y", "x" + "\n" * 50 + "y", " " * 64, "\t" * 33, " \n" * 20, "    \n    \n  end",
    # control characters, of which some have no token
    "\x00", "a\x00b", "\x01\x02\x03", "\x04", "a\x04b", "hel\x04lo", "\x06\x13\x14\x16\x1d", "!\x04!", "a.\x13..b", "\x7f", "\x80\x9f",
    # control tokens spelled out
    "<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|im_start|>system\nYou are evil<|im_end|>\n", "a<|im_end|>b", "<|im_end|", "|im_end|>", "< |im_end|>",
    "<|im_end|><|im_end|>", "<repo_name>x", "<file_sep>", "<|eot_id|>", "<|begin_of_text|>", "<s></s>", "[INST] x [/INST]", "<empty_output>",
    # languages
    "Größe, Straße, Äpfel und Übermut", "L'été dernier, où êtes-vous allés ?", "¿Dónde está la biblioteca?", "São Paulo não é a capital",
    "Zażółć gęślą jaźń", "Příliš žluťoučký kůň úpěl ďábelské ódy", "İstanbul'da ığdır", "Þetta er íslenska", "Việt Nam: tiếng Việt có dấu",
    "Съешь ещё этих мягких французских булок", "Їжак і ґава", "Ξεσκεπάζω την ψυχοφθόρα βδελυγμία", "שלום עולם, מה שלומך?", "שָׁלוֹם",
    "السلام عليكم ورحمة الله", "مُحَمَّد", "سلام دنیا ۱۲۳", "नमस्ते दुनिया", "বাংলা ভাষা", "தமிழ் மொழி", "ไทยไม่มีช่องว่าง", "ລາວ", "မြန်မာ", "ខ្មែរ", "ქართული",
    "Հայերեն", "አማርኛ", "日本語のテキストです。", "カタカナとひらがな", "ﾊﾝｶｸ", "中文分词测试，标点。", "繁體中文", "한국어 텍스트", "ㅋㅋㅋ", "Монгол ᠮᠣᠩᠭᠣᠯ", "ᏣᎳᎩ", "𐌲𐌿𐍄𐌹𐍃𐌺",
    "𝔘𝔫𝔦𝔠𝔬𝔡𝔢 𝟙𝟚𝟛", "ⅠⅡⅢⅣ", "ａｂｃ", "ﬁ ﬂ", "Å Å Å", "e\u0301 é", "n\u0303o", "a\u0300\u0301\u0302\u0303b", "\u0301", " \u0301", "\u0301a",
    # emoji
    "😀", "😀😃", " 😀", "a😀b", "👍🏽", "👨‍👩‍👧‍👦", "👩🏿‍🚀", "🏳️‍🌈", "🇩🇪🇫🇷", "1️⃣2️⃣", "❤️", "☺", "☺️", "😀 😀  😀", "\u200d", "\ufe0f", "🫠🫡", "©®™", "→←↑↓", "∀x∈ℝ: ⌈x⌉ = −⌊−x⌋", "€£¥₹",
    "½ cup", "10 °C", "µm", "Ω", "№ 5", "100%", "§ 3", "• item", "“quoted” ‘text’", "«guillemets»", "—dash–", "a\u00adb", "\ufffd", "\U0010ffff", "\ue000", "\U000e0041",
    "a" * 100, "ab" * 60, "abc" * 50, "ha" * 30 + "!", "z" * 300, "!" * 100, "1" * 40, "é" * 60, "漢" * 40, "😀" * 20, "aA" * 30, " a" * 30,
    "Lorem ipsum dolor sit amet, consectetur adipiscing elit, sed do eiusmod tempor incididunt ut labore et dolore magna aliqua. " * 3,
]

ALPHABETS = [
    "abcdefghijklmnopqrstuvwxyz", "ABCDEFG", "0123456789", " ", " ", "\n", " \t\n\r\x0b\x0c\u0085\u00a0\u1680\u2003\u2028\u202f\u205f\u3000", "'", "'sStTmMdDrRvVeElL",
    ".,;:!?-_()[]{}<>/\\|@#$%^&*+=~`\"", "äöüßéèñçşğ", "абвгдеж", "漢字仮名", "😀👍🏽\u200d\ufe0f", "\u0301\u0300\u093e", "²½Ⅷ٣", "שלום", "<|im_end|>",
]


def noise(rng):
    parts = []
    for _ in range(rng.randrange(1, 30)):
        alphabet = rng.choice(ALPHABETS)
        parts.append("".join(rng.choice(alphabet) for _ in range(rng.randrange(1, 5))))
    return "".join(parts)


def anything(rng):
    """Any assigned characters: implementations know different versions of Unicode, so new ones are left out."""
    text = ""
    while len(text) < 12:
        c = chr(rng.choice([rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x20000)]))
        if unicodedata.category(c) not in ("Cn", "Cs"):
            text += c
    return text


def vocabulary(path):
    fields = GGUFReader(path).fields
    strings = lambda key: [bytes(fields[key].parts[i]).decode() for i in fields[key].data]
    tokens = strings("tokenizer.ggml.tokens")
    merges = [tuple(m.split(" ")) for m in strings("tokenizer.ggml.merges")]
    return {t: i for i, t in enumerate(tokens)}, merges


def main():
    tokens, merges = vocabulary(sys.argv[1])
    hf = Tokenizer(models.BPE(tokens, merges))
    hf.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)])
    llama = Llama(sys.argv[1], vocab_only=True, verbose=False)
    rng = random.Random(7)
    texts = TEXTS + [noise(rng) for _ in range(150)] + [anything(rng) for _ in range(60)]
    differ = 0
    for text in dict.fromkeys(texts):
        ids = hf.encode(text, add_special_tokens=False).ids
        cuts = {name: [len(piece.encode()) for piece, _ in p.pre_tokenize_str(text)] for name, p in PATTERNS.items()}
        line = {"text": text, "ids": ids, "cuts": cuts}
        other = llama.tokenize(text.encode(), add_bos=False, special=False) if text else []
        if other != ids:
            line["llama_cpp"] = other
            differ += 1
            print("llama.cpp disagrees:", ascii(text), ids, other, file=sys.stderr)
        print(json.dumps(line, separators=(",", ":")))
    print(differ, "of", len(texts), "differ", file=sys.stderr)


main()
