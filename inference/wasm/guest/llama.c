// A decoder of the Llama family as a WebAssembly guest: grouped-query attention, interleaved rotary positions, RMS
// norms, gated SiLU, tied or separate output matrix.
//
// The host owns the memory plan: it fills the struct behind config(), calls init() once, writes rows, and calls
// step(n). One row is one token of one slot, so that many rows of one slot are a prefill, one row of many slots are a
// batched decode, and both may mix; the weights are streamed once for all rows. The host has checked every row.
#include "matrix.h"

#define EXPORT(name) __attribute__((export_name(name)))

enum { ABI_VERSION = 1, MAX_HEAD_SIZE = 256, KV_BLOCK = 32 };

typedef struct {
  Matrix qkv;           // queries, keys and values of all heads, stacked
  Matrix attention_out; // [dim][heads * head_size]
  Matrix gate_up;       // gate, then up
  Matrix down;
  const float *attention_norm, *ffn_norm; // [dim]
} Layer;

typedef struct { uint32_t token, slot, position, want_logits; } Row;

// Mirrored by guestConfig in abi.go, field by field.
typedef struct {
  uint32_t dim, hidden, layers, heads, kv_heads, head_size, vocabulary, context;
  uint32_t units_per_yield;
  float norm_epsilon;
  float score_limit; // of quantised queries and keys: head_size * score_limit^2 fits an int32
  Matrix embedding, output;
  const Layer *layer;
  const float *final_norm;
  const float *rope_cos, *rope_sin; // [context][head_size / 2]
  char *kv;
  uint32_t kv_slot_bytes, kv_block_bytes; // of one slot; of KV_BLOCK positions of one slot, all layers
  const Row *rows;
  float *residual;     // [rows][dim]
  float *wide;         // [rows][wide_stride]
  uint32_t wide_stride;
  float *qkv;          // [rows][(heads + 2 * kv_heads) * head_size]
  float *gate_up;      // [rows][2 * hidden]
  float *scores;       // [context, rounded up to KV_BLOCK]
  char *activations;   // quantised, room for every matrix
  float *logits;       // [wanted][vocabulary, rounded up to TILE_ROWS]
} Config;

static Config c;

EXPORT("abi_version") uint32_t abi_version(void) { return ABI_VERSION; }
EXPORT("config") Config *config(void) { return &c; }
EXPORT("config_size") uint32_t config_size(void) { return sizeof c; }
EXPORT("init") void init(void) { units_per_yield = c.units_per_yield; }

static void rms_norm(float *out, const float *x, const float *weight, uint32_t n) {
  v128_t squares = zero_f32();
  for (uint32_t i = 0; i < n; i += 4) {
    v128_t v = wasm_v128_load(x + i);
    squares = wasm_f32x4_add(squares, wasm_f32x4_mul(v, v));
  }
  v128_t k = wasm_f32x4_splat(1.f / __builtin_sqrtf(sum_f32(squares) / (float)n + c.norm_epsilon));
  for (uint32_t i = 0; i < n; i += 4)
    wasm_v128_store(out + i, wasm_f32x4_mul(wasm_f32x4_mul(wasm_v128_load(x + i), k), wasm_v128_load(weight + i)));
}

static void embed(uint32_t token, float *out) {
  const Matrix *e = &c.embedding;
  const int8_t *tiles = (const int8_t *)e->weights + (size_t)(token / TILE_ROWS) * e->columns * TILE_ROWS +
                        (token % TILE_ROWS) * TILE_COLUMNS;
  float scale = e->row_scale[token];
  for (uint32_t i = 0; i < e->columns; i++)
    out[i] = scale * (float)tiles[i / TILE_COLUMNS * TILE_BYTES + i % TILE_COLUMNS];
}

static void rotate(float *head, uint32_t position) {
  const float *cosine = c.rope_cos + (size_t)position * c.head_size / 2, *sine = c.rope_sin + (size_t)position * c.head_size / 2;
  for (uint32_t i = 0; i < c.head_size / 2; i++) {
    float a = head[2 * i], b = head[2 * i + 1];
    head[2 * i] = a * cosine[i] - b * sine[i];
    head[2 * i + 1] = a * sine[i] + b * cosine[i];
  }
}

// The key-value cache is int16 with a float scale a (head, position). 32 positions of one head of one layer are a
// block; within it four neighbouring positions of K and two of V are interleaved with pairs of dimensions, so that one
// dot instruction serves four positions (K) or four dimensions of two positions (V):
//
//   K [8][head_size/2][4 positions][2]   V [16][head_size][2 positions]   K scales [32]   V scales [32]
//
// Blocks of a slot are ordered by position first: a slot makes resident only what its positions need.
typedef struct { int16_t *k, *v; float *k_scale, *v_scale; } Block;

static inline Block kv_block(uint32_t slot, uint32_t layer, uint32_t kv_head, uint32_t block) {
  uint32_t values = KV_BLOCK * c.head_size;
  char *p = c.kv + slot * c.kv_slot_bytes + block * c.kv_block_bytes +
            (layer * c.kv_heads + kv_head) * (values * 4 + KV_BLOCK * 8);
  Block b = {(int16_t *)p, (int16_t *)p + values, (float *)(p + values * 4), (float *)(p + values * 4) + KV_BLOCK};
  return b;
}

static void rotate_queries(float *qkv, uint32_t position) {
  for (uint32_t h = 0; h < c.heads; h++) rotate(qkv + h * c.head_size, position);
}

// Rotates the keys of a row and stores its keys and values.
static void store_kv(uint32_t layer, const Row *row, float *qkv) {
  static int16_t q[MAX_HEAD_SIZE];
  uint32_t size = c.head_size, at = row->position % KV_BLOCK;
  for (uint32_t g = 0; g < c.kv_heads; g++) {
    float *key = qkv + (c.heads + g) * size, *value = qkv + (c.heads + c.kv_heads + g) * size;
    Block b = kv_block(row->slot, layer, g, row->position / KV_BLOCK);
    rotate(key, row->position);
    b.k_scale[at] = quantise(key, q, size, c.score_limit);
    int16_t *k = b.k + at / 4 * size * 4 + at % 4 * 2;
    for (uint32_t i = 0; i < size; i += 2) {
      k[i * 4] = q[i];
      k[i * 4 + 1] = q[i + 1];
    }
    b.v_scale[at] = quantise(value, q, size, 32767.f);
    int16_t *v = b.v + at / 2 * size * 2 + at % 2;
    for (uint32_t i = 0; i < size; i++) v[i * 2] = q[i];
  }
}

// Scores of four positions; `query` holds each pair of dimensions four times.
static inline v128_t four_scores(const char *k, const char *query, uint32_t size) {
  v128_t even = zero_i32(), odd = zero_i32();
  for (uint32_t i = 0; i < size; i += 16, k += 128, query += 128) {
    OPAQUE(k);
    OPAQUE(query);
    v128_t k7 = load_at(k, 112), q7 = load_at(query, 112);
    KEEP_ORDER;
    odd = add_dot(odd, k7, q7);
    even = add_dot(even, load_at(k, 96), load_at(query, 96));
    odd = add_dot(odd, load_at(k, 80), load_at(query, 80));
    even = add_dot(even, load_at(k, 64), load_at(query, 64));
    odd = add_dot(odd, load_at(k, 48), load_at(query, 48));
    even = add_dot(even, load_at(k, 32), load_at(query, 32));
    odd = add_dot(odd, load_at(k, 16), load_at(query, 16));
    even = add_dot(even, load_at(k, 0), load_at(query, 0));
  }
  return wasm_i32x4_add(even, odd);
}

static const float MASKED = -1e30f;

// Fills c.scores for the positions up to the row's own and returns their maximum; the rest of the last block is masked.
static float score(uint32_t layer, const Row *row, uint32_t kv_head, const float *query_head) {
  static int16_t q[MAX_HEAD_SIZE];
  static v128_t query[MAX_HEAD_SIZE / 2];
  uint32_t size = c.head_size, positions = row->position + 1;
  float scale = quantise(query_head, q, size, c.score_limit) / __builtin_sqrtf((float)size);
  for (uint32_t i = 0; i < size / 2; i++) query[i] = wasm_i32x4_splat(((const int32_t *)q)[i]);
  v128_t scales = wasm_f32x4_splat(scale);
  for (uint32_t first = 0; first < positions; first += KV_BLOCK) {
    Block b = kv_block(row->slot, layer, kv_head, first / KV_BLOCK);
    uint32_t n = positions - first < KV_BLOCK ? positions - first : KV_BLOCK;
    for (uint32_t t = 0; t < n; t += 4) {
      v128_t s = four_scores((const char *)(b.k + t * size), (const char *)query, size);
      wasm_v128_store(c.scores + first + t, wasm_f32x4_mul(wasm_f32x4_mul(to_f32(s), wasm_v128_load(b.k_scale + t)), scales));
    }
  }
  uint32_t padded = (positions + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK;
  for (uint32_t t = positions; t < padded; t++) c.scores[t] = MASKED;
  v128_t m = wasm_f32x4_splat(MASKED);
  for (uint32_t t = 0; t < padded; t += 4) m = wasm_f32x4_pmax(m, wasm_v128_load(c.scores + t));
  return max_f32(m);
}

// Turns scores into unnormalised probabilities and returns their sum.
static float soften(uint32_t positions, float max) {
  uint32_t padded = (positions + 3) / 4 * 4;
  v128_t sum = zero_f32(), m = wasm_f32x4_splat(max);
  for (uint32_t t = 0; t < padded; t += 4) {
    v128_t e = exp_f32(wasm_f32x4_sub(wasm_v128_load(c.scores + t), m));
    wasm_v128_store(c.scores + t, e);
  }
  for (uint32_t t = positions; t < (positions + KV_BLOCK - 1) / KV_BLOCK * KV_BLOCK; t++) c.scores[t] = 0;
  for (uint32_t t = 0; t < padded; t += 4) sum = wasm_f32x4_add(sum, wasm_v128_load(c.scores + t));
  return sum_f32(sum);
}

// out += 32 dimensions of V, weighted. `weights` holds each pair of positions four times.
static inline void add_values(const char *v, const char *weights, uint32_t pairs, uint32_t size, v128_t scale, float *out) {
  v128_t a0 = zero_i32(), a1 = a0, a2 = a0, a3 = a0, a4 = a0, a5 = a0, a6 = a0, a7 = a0;
  for (uint32_t p = 0; p < pairs; p++, v += size * 4, weights += 16) {
    OPAQUE(v);
    OPAQUE(weights);
    v128_t w = load_at(weights, 0), v7 = load_at(v, 112);
    KEEP_ORDER;
    a7 = add_dot(a7, v7, w);
    a6 = add_dot(a6, load_at(v, 96), w);
    a5 = add_dot(a5, load_at(v, 80), w);
    a4 = add_dot(a4, load_at(v, 64), w);
    a3 = add_dot(a3, load_at(v, 48), w);
    a2 = add_dot(a2, load_at(v, 32), w);
    a1 = add_dot(a1, load_at(v, 16), w);
    a0 = add_dot(a0, load_at(v, 0), w);
  }
  const v128_t sums[8] = {a0, a1, a2, a3, a4, a5, a6, a7};
  for (int i = 0; i < 8; i++)
    wasm_v128_store(out + i * 4, wasm_f32x4_add(wasm_v128_load(out + i * 4), wasm_f32x4_mul(to_f32(sums[i]), scale)));
}

// out = the values weighted with the probabilities. Within a block the weights are int16 that sum to 32767, give or
// take their rounding, so that no int32 can overflow; blocks are added as floats, so that a long context loses nothing.
static void mix_values(uint32_t layer, const Row *row, uint32_t kv_head, float total, float *out) {
  static v128_t weights[KV_BLOCK / 2];
  float scaled[KV_BLOCK];
  uint32_t size = c.head_size, positions = row->position + 1;
  for (uint32_t i = 0; i < size; i += 4) wasm_v128_store(out + i, zero_f32());
  for (uint32_t first = 0; first < positions; first += KV_BLOCK) {
    Block b = kv_block(row->slot, layer, kv_head, first / KV_BLOCK);
    uint32_t n = positions - first < KV_BLOCK ? positions - first : KV_BLOCK;
    v128_t sum = zero_f32();
    for (uint32_t t = 0; t < KV_BLOCK; t += 4) {
      v128_t w = wasm_f32x4_mul(wasm_v128_load(c.scores + first + t), wasm_v128_load(b.v_scale + t));
      wasm_v128_store(scaled + t, w);
      sum = wasm_f32x4_add(sum, w);
    }
    float block_sum = sum_f32(sum);
    if (!(block_sum > 0)) continue;
    v128_t to_int = wasm_f32x4_splat(32767.f / block_sum);
    for (uint32_t t = 0; t < KV_BLOCK; t += 4) {
      v128_t w = round_scaled(scaled + t, to_int), narrow = wasm_i16x8_narrow_i32x4(w, w);
      weights[t / 2] = wasm_i32x4_shuffle(narrow, narrow, 0, 0, 0, 0);
      weights[t / 2 + 1] = wasm_i32x4_shuffle(narrow, narrow, 1, 1, 1, 1);
    }
    v128_t scale = wasm_f32x4_splat(block_sum / 32767.f / total);
    for (uint32_t i = 0; i < size; i += 32)
      add_values((const char *)(b.v + i * 2), (const char *)weights, (n + 1) / 2, size, scale, out + i);
  }
}

static void attend(uint32_t layer, const Row *row, const float *qkv, float *out) {
  uint32_t per_kv_head = c.heads / c.kv_heads, positions = row->position + 1;
  for (uint32_t h = 0; h < c.heads && !cancelled; h++) {
    uint32_t kv_head = h / per_kv_head;
    float max = score(layer, row, kv_head, qkv + h * c.head_size);
    float total = soften(positions, max);
    mix_values(layer, row, kv_head, total, out + h * c.head_size);
    account(positions * c.head_size * 2);
  }
}

// out = silu(gate) * up
static void gated_silu(float *out, const float *gate_up) {
  const float *gate = gate_up, *up = gate_up + c.hidden;
  v128_t one = wasm_f32x4_splat(1);
  for (uint32_t i = 0; i < c.hidden; i += 4) {
    v128_t g = wasm_v128_load(gate + i);
    v128_t silu = wasm_f32x4_div(g, wasm_f32x4_add(one, exp_f32(wasm_f32x4_neg(g))));
    wasm_v128_store(out + i, wasm_f32x4_mul(wasm_v128_load(up + i), silu));
  }
}

static void attention(uint32_t l, uint32_t n) {
  const Layer *layer = &c.layer[l];
  uint32_t qkv_stride = layer->qkv.rows;
  for (uint32_t r = 0; r < n; r++) {
    rms_norm(c.wide + r * c.wide_stride, c.residual + r * c.dim, layer->attention_norm, c.dim);
    put_activation(&layer->qkv, c.wide + r * c.wide_stride, c.activations, r);
  }
  multiply(&layer->qkv, c.activations, n, c.qkv, qkv_stride, STORE);
  if (cancelled) return;
  for (uint32_t r = 0; r < n; r++) { // every row's keys first: rows of one slot see each other
    rotate_queries(c.qkv + r * qkv_stride, c.rows[r].position);
    store_kv(l, &c.rows[r], c.qkv + r * qkv_stride);
  }
  for (uint32_t r = 0; r < n && !cancelled; r++) {
    attend(l, &c.rows[r], c.qkv + r * qkv_stride, c.wide + r * c.wide_stride);
    put_activation(&layer->attention_out, c.wide + r * c.wide_stride, c.activations, r);
  }
  multiply(&layer->attention_out, c.activations, n, c.residual, c.dim, ADD);
}

static void feed_forward(uint32_t l, uint32_t n) {
  const Layer *layer = &c.layer[l];
  for (uint32_t r = 0; r < n; r++) {
    rms_norm(c.wide + r * c.wide_stride, c.residual + r * c.dim, layer->ffn_norm, c.dim);
    put_activation(&layer->gate_up, c.wide + r * c.wide_stride, c.activations, r);
  }
  multiply(&layer->gate_up, c.activations, n, c.gate_up, 2 * c.hidden, STORE);
  if (cancelled) return;
  for (uint32_t r = 0; r < n; r++) {
    gated_silu(c.wide + r * c.wide_stride, c.gate_up + r * 2 * c.hidden);
    put_activation(&layer->down, c.wide + r * c.wide_stride, c.activations, r);
  }
  multiply(&layer->down, c.activations, n, c.residual, c.dim, ADD);
}

// Computes the first n rows; logits of the rows that want them are packed in row order. Returns 1 when cancelled: the
// slots' positions of these rows are then undefined, and everything else is as before.
EXPORT("step") int step(uint32_t n) {
  cancelled = 0;
  for (uint32_t r = 0; r < n; r++) embed(c.rows[r].token, c.residual + r * c.dim);
  for (uint32_t l = 0; l < c.layers; l++) {
    attention(l, n);
    if (cancelled) return 1;
    feed_forward(l, n);
    if (cancelled) return 1;
  }
  uint32_t wanted = 0;
  for (uint32_t r = 0; r < n; r++) {
    if (!c.rows[r].want_logits) continue;
    rms_norm(c.wide, c.residual + r * c.dim, c.final_norm, c.dim);
    put_activation(&c.output, c.wide, c.activations, wanted++);
  }
  multiply(&c.output, c.activations, wanted, c.logits, c.output.rows, STORE);
  return cancelled;
}
