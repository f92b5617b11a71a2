"""Records dequantize.txt: blocks of every type that rows can be read of, and their floats by the Python package gguf.

    python3 -m venv venv && venv/bin/pip install gguf numpy
    venv/bin/python record.py MODEL.gguf > dequantize.txt

Lines: `block TYPE HEX-OF-BLOCKS HEX-OF-FLOATS` (little-endian, four bytes a float); `halves SHA256` of all 65,536 halves
as floats in order, NaN left out; `tensor NAME TYPE SHA256` of the floats of a whole tensor of the model.
"""

import hashlib
import sys

import numpy as np
from gguf import GGUFReader
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

random = np.random.default_rng(20)
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
# Where a block of the type holds halves: random bytes there would mostly be huge or NaN.
HALVES = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]}


def blocks(name, size, n):
    if name in ("F32", "F16", "BF16"):
        x = random.standard_normal(16).astype(np.float32)
        if name == "F32":
            return x.view(np.uint8)
        if name == "F16":
            return x.astype(np.float16).view(np.uint8)
        return (x.view(np.uint32) >> 16).astype(np.uint16).view(np.uint8)
    b = random.integers(0, 256, (n, size), dtype=np.uint8)
    for at in HALVES[name]:
        b[:, at:at + 2] = (random.standard_normal((n, 1)) / 16).astype(np.float16).view(np.uint8)
    return b.reshape(-1)


for name in TYPES:
    kind = GGMLQuantizationType[name]
    elements, size = GGML_QUANT_SIZES[kind]
    stored = blocks(name, size, 2 if elements == 256 else 4)
    floats = dequantize(stored, kind).astype("<f4").reshape(-1)
    print("block", name, stored.tobytes().hex(), floats.tobytes().hex())

halves = np.arange(65536, dtype=np.uint16).view(np.float16).astype("<f4")
print("halves", hashlib.sha256(halves[~np.isnan(halves)].tobytes()).hexdigest())

wanted = ["token_embd.weight", "blk.0.attn_norm.weight", "blk.0.ffn_down.weight", "blk.29.attn_q.weight"]
for tensor in GGUFReader(sys.argv[1]).tensors:
    if tensor.name in wanted:
        floats = dequantize(tensor.data, tensor.tensor_type).astype("<f4").reshape(-1)
        print("tensor", tensor.name, tensor.tensor_type.name, hashlib.sha256(floats.tobytes()).hexdigest())
