"""Computes a GGUF model's exact float32 logits over given tokens and records them, compactly, beside llama.cpp's.

    record.py MODEL.gguf TOKENS LLAMA_AVX2_LOGITS LLAMA_AVX512_LOGITS OUT

The forward pass dequantises every weight exactly and computes in float32 with numpy. See README.md for the format.
"""

import hashlib
import json
import sys

import numpy as np

TOP, TAIL = 64, 64
SEED = 20261130


class GGUF:
    """Metadata and tensors of a GGUF file. Trusts its input."""

    SCALARS = {0: "u1", 1: "i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "u1", 10: "<u8", 11: "<i8", 12: "<f8"}

    def __init__(self, path):
        self.bytes = np.memmap(path, np.uint8, "r")
        self.at = 8
        tensors, pairs = self.scalar("<u8"), self.scalar("<u8")
        self.metadata = {}
        for _ in range(pairs):
            key = self.string()
            self.metadata[key] = self.value(self.scalar("<u4"))
        self.tensors = {}
        for _ in range(tensors):
            name = self.string()
            dims = [int(self.scalar("<u8")) for _ in range(self.scalar("<u4"))]
            self.tensors[name] = (dims, int(self.scalar("<u4")), int(self.scalar("<u8")))
        align = self.metadata.get("general.alignment", 32)
        self.data = (self.at + align - 1) // align * align

    def scalar(self, kind):
        size = np.dtype(kind).itemsize
        value = self.bytes[self.at : self.at + size].view(kind)[0]
        self.at += size
        return value.item()

    def string(self):
        n = self.scalar("<u8")
        s = self.bytes[self.at : self.at + n].tobytes().decode("utf8", "replace")
        self.at += n
        return s

    def value(self, kind):
        if kind == 8:
            return self.string()
        if kind == 9:
            element, n = self.scalar("<u4"), self.scalar("<u8")
            return [self.value(element) for _ in range(n)]
        return self.scalar(self.SCALARS[kind])

    def tensor(self, name):
        dims, kind, offset = self.tensors[name]
        n, start = int(np.prod(dims)), self.data + offset
        if kind == 0:
            x = self.bytes[start : start + n * 4].view("<f4")
        elif kind == 8:  # Q8_0: a half-float scale and 32 int8
            block = self.bytes[start : start + n // 32 * 34].reshape(-1, 34)
            x = half(block, 0) * block[:, 2:].view(np.int8)
        elif kind == 3:  # Q4_1: scale, minimum, 16 bytes of low and high nibbles
            block = self.bytes[start : start + n // 32 * 20].reshape(-1, 20)
            q = block[:, 4:]
            x = np.concatenate([q & 15, q >> 4], 1) * half(block, 0) + half(block, 2)
        else:
            raise SystemExit(f"tensor {name} has type {kind}, which this script does not know")
        return x.astype(np.float32).reshape(dims[::-1])


def half(block, at):
    return block[:, at : at + 2].copy().view("<f2").astype(np.float32)


def forward(g, tokens):
    """Logits after every token."""
    md = lambda key: g.metadata["llama." + key]
    heads, kv_heads = md("attention.head_count"), md("attention.head_count_kv")
    epsilon, base = md("attention.layer_norm_rms_epsilon"), md("rope.freq_base")
    embedding = g.tensor("token_embd.weight")
    x = embedding[tokens]
    n, dim = x.shape
    size = dim // heads
    angle = np.arange(n)[:, None] * float(base) ** (-2 * np.arange(size // 2) / size)
    cos, sin = np.cos(angle).astype(np.float32)[:, None], np.sin(angle).astype(np.float32)[:, None]

    def rotate(v):
        a, b, out = v[..., 0::2], v[..., 1::2], np.empty_like(v)
        out[..., 0::2], out[..., 1::2] = a * cos - b * sin, a * sin + b * cos
        return out

    def norm(v, weight):
        return v / np.sqrt((v * v).mean(-1, keepdims=True) + np.float32(epsilon)) * weight

    future = np.triu(np.full((n, n), -1e30, np.float32), 1)
    for layer in range(md("block_count")):
        w = lambda part: g.tensor(f"blk.{layer}.{part}.weight")
        h = norm(x, w("attn_norm"))
        q = rotate((h @ w("attn_q").T).reshape(n, heads, size))
        k = rotate((h @ w("attn_k").T).reshape(n, kv_heads, size))
        v = (h @ w("attn_v").T).reshape(n, kv_heads, size)
        mixed = np.empty((n, heads, size), np.float32)
        for head in range(heads):
            kv = head * kv_heads // heads
            p = np.exp((s := q[:, head] @ k[:, kv].T / np.sqrt(np.float32(size)) + future) - s.max(1, keepdims=True))
            mixed[:, head] = (p / p.sum(1, keepdims=True)) @ v[:, kv]
        x = x + mixed.reshape(n, dim) @ w("attn_output").T
        h = norm(x, w("ffn_norm"))
        gate = h @ w("ffn_gate").T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w("ffn_up").T)) @ w("ffn_down").T
    output = g.tensor("output.weight") if "output.weight" in g.tensors else embedding
    return norm(x, g.tensor("output_norm.weight")) @ output.T


def log_sum_exp(logits):
    m = logits.max(1, keepdims=True).astype(np.float64)
    return (m + np.log(np.exp(logits - m).sum(1, keepdims=True)))[:, 0]


def compare(name, exact, logits, targets):
    lse, other = log_sum_exp(exact), log_sum_exp(logits)
    p = exact - lse[:, None]
    kl = (np.exp(p) * (p - (logits - other[:, None]))).sum(1).mean()
    at = np.arange(len(targets))
    perplexity = np.exp((other[:-1] - logits[at, targets]).mean())
    same = (exact.argmax(1) == logits.argmax(1)).sum()
    print(f"{name}: KL {kl:.5f}, perplexity {perplexity:.3f}, top-1 as exact {same} of {len(exact)}")


def main(model, tokens_path, avx2_path, avx512_path, out):
    tokens = np.fromfile(tokens_path, "<u4")
    exact = forward(GGUF(model), tokens).astype(np.float32)
    n, vocabulary = exact.shape
    targets = tokens[1:]
    avx2 = np.fromfile(avx2_path, "<f4").reshape(n, vocabulary)
    avx512 = np.fromfile(avx512_path, "<f4").reshape(n, vocabulary)
    compare("exact", exact, exact, targets)
    compare("llama.cpp AVX2", exact, avx2, targets)
    compare("llama.cpp AVX-512", exact, avx512, targets)
    print(f"the two builds of llama.cpp agree on {(avx2.argmax(1) == avx512.argmax(1)).sum()} of {n}")

    lse = log_sum_exp(exact)
    order = np.argsort(-exact, axis=1, kind="stable")
    top = order[:, :TOP]
    rng = np.random.default_rng(SEED)
    tail = np.empty((n, TAIL), np.int64)
    for i in range(n):
        rest = order[i, TOP:]
        p = np.exp(exact[i, rest] - lse[i])
        tail[i] = rng.choice(rest, TAIL, p=p / p.sum())
    at = np.arange(n)[:, None]
    header = {
        "model_sha256": hashlib.sha256(open(model, "rb").read()).hexdigest(),
        "positions": n, "vocabulary": vocabulary, "top": TOP, "tail": TAIL,
    }
    with open(out, "wb") as f:
        f.write(json.dumps(header).encode() + b"\n")
        for array, kind in (
            (tokens, "<u4"), (lse, "<f4"), (exact[at[:-1, 0], targets], "<f4"),
            (avx2.argmax(1), "<u4"), (avx512.argmax(1), "<u4"), (avx2[at[:-1, 0], targets] - log_sum_exp(avx2)[:-1], "<f4"),
            (top, "<u4"), (exact[at, top], "<f4"), (tail, "<u4"), (exact[at, tail], "<f4"),
        ):
            f.write(np.ascontiguousarray(array, dtype=kind).tobytes())


if __name__ == "__main__":
    main(*sys.argv[1:])
