// Matrices in layout R8: int8 weights, one float scale a row, in tiles of 4 rows x 32 columns (128 bytes); the tiles of
// four rows follow each other. Activations are int16 with one scale a vector, bounded by the matrix's activation limit,
// which the host chose so that no int32 sum can overflow, whatever the activations are.
#ifndef HOLDFAST_MATRIX_H
#define HOLDFAST_MATRIX_H

#include "simd.h"

__attribute__((import_module("holdfast"), import_name("yield"))) int host_yield(void);

typedef struct {
  uint32_t columns, rows;
  const char *weights;    // rows/4 x columns/32 tiles
  const float *row_scale; // [rows]
  float activation_limit;
} Matrix;

enum { TILE_ROWS = 4, TILE_COLUMNS = 32, TILE_BYTES = 128 };

// The host cannot interrupt the guest: its garbage collector stops the world only while the guest is inside yield, and
// only there does the guest hear that the step has been cancelled.
static uint32_t units_per_yield = 4u << 20, units_since_yield;
static int cancelled;

static inline void account(uint32_t units) {
  units_since_yield += units;
  if (units_since_yield >= units_per_yield) {
    units_since_yield = 0;
    if (host_yield()) cancelled = 1;
  }
}

// A quantised activation vector: int16[columns], then its scale, padded to keep vectors on cache lines.
static inline uint32_t activation_bytes(const Matrix *m) { return m->columns * 2 + 64; }
static inline float *activation_scale(const Matrix *m, char *x) { return (float *)(x + m->columns * 2); }

static inline void put_activation(const Matrix *m, const float *x, char *activations, uint32_t index) {
  char *out = activations + index * activation_bytes(m);
  *activation_scale(m, out) = quantise(x, (int16_t *)out, m->columns, m->activation_limit);
}

typedef struct { v128_t row[TILE_ROWS]; } Sums; // partial sums of the four rows of a tile

static inline v128_t totals(const Sums *s) {
  return wasm_f32x4_make((float)sum_i32(s->row[0]), (float)sum_i32(s->row[1]), (float)sum_i32(s->row[2]),
                         (float)sum_i32(s->row[3]));
}

// Eight columns of a tile with one activation vector.
static inline void eight_columns(Sums *s, const char *tile, const char *x, int column) {
  v128_t activation = load_at(x, column * 2);
  for (int r = TILE_ROWS - 1; r >= 0; r--)
    s->row[r] = add_dot(s->row[r], load_8_weights_at(tile, r * TILE_COLUMNS + column), activation);
}

static inline v128_t four_rows(const char *tile, const char *x, uint32_t columns) {
  Sums s = {{zero_i32(), zero_i32(), zero_i32(), zero_i32()}};
  for (uint32_t left = columns; left > 0; left -= TILE_COLUMNS, tile += TILE_BYTES, x += TILE_COLUMNS * 2) {
    OPAQUE(tile);
    OPAQUE(x);
    eight_columns(&s, tile, x, 24);
    KEEP_ORDER;
    eight_columns(&s, tile, x, 16);
    KEEP_ORDER;
    eight_columns(&s, tile, x, 8);
    KEEP_ORDER;
    eight_columns(&s, tile, x, 0);
  }
  return totals(&s);
}

// Eight columns of a tile with two activation vectors: each weight is widened once. The sums are made opaque so that
// LLVM does not regroup the additions by row: that would keep all activations of a tile alive and spill a dozen
// registers, onto a stack whose slots may straddle cache lines.
static inline void eight_columns_twice(Sums *s, Sums *t, const char *tile, const char *x, const char *y, int column) {
  v128_t activation = load_at(x, column * 2), second = load_at(y, column * 2);
  for (int r = TILE_ROWS - 1; r >= 0; r--) {
    v128_t weights = load_8_weights_at(tile, r * TILE_COLUMNS + column);
    s->row[r] = add_dot(s->row[r], weights, activation);
    t->row[r] = add_dot(t->row[r], weights, second);
    OPAQUE(s->row[r]);
    OPAQUE(t->row[r]);
  }
}

static inline void four_rows_twice(const char *tile, const char *x, const char *y, uint32_t columns, v128_t *out_x,
                                   v128_t *out_y) {
  Sums s = {{zero_i32(), zero_i32(), zero_i32(), zero_i32()}}, t = s;
  for (uint32_t left = columns; left > 0; left -= TILE_COLUMNS) {
    OPAQUE(tile);
    OPAQUE(x);
    OPAQUE(y);
    eight_columns_twice(&s, &t, tile, x, y, 24);
    KEEP_ORDER;
    eight_columns_twice(&s, &t, tile, x, y, 16);
    KEEP_ORDER;
    eight_columns_twice(&s, &t, tile, x, y, 8);
    KEEP_ORDER;
    eight_columns_twice(&s, &t, tile, x, y, 0);
    tile += TILE_BYTES;
    x += TILE_COLUMNS * 2;
    y += TILE_COLUMNS * 2;
  }
  *out_x = totals(&s);
  *out_y = totals(&t);
}

typedef enum { STORE, ADD } Output;

static inline void put_four(float *out, v128_t totals, v128_t row_scale, float activation_scale, Output how) {
  v128_t v = wasm_f32x4_mul(totals, wasm_f32x4_mul(row_scale, wasm_f32x4_splat(activation_scale)));
  if (how == ADD) v = wasm_f32x4_add(v, wasm_v128_load(out));
  wasm_v128_store(out, v);
}

// Four rows of each of two tiles with one activation vector.
static inline void four_rows_of_two(const char *tile, const char *other, const char *x, uint32_t columns, v128_t *out,
                                    v128_t *other_out) {
  Sums s = {{zero_i32(), zero_i32(), zero_i32(), zero_i32()}}, t = s;
  for (uint32_t left = columns; left > 0; left -= TILE_COLUMNS) {
    OPAQUE(tile);
    OPAQUE(other);
    OPAQUE(x);
    for (int column = 24; column >= 0; column -= 8) {
      eight_columns(&s, tile, x, column);
      eight_columns(&t, other, x, column);
      KEEP_ORDER;
    }
    tile += TILE_BYTES;
    other += TILE_BYTES;
    x += TILE_COLUMNS * 2;
  }
  *out = totals(&s);
  *other_out = totals(&t);
}

// multiply for one vector. A single vector waits for memory more than it computes: two streams of weights, from the
// middle of the matrix and from its beginning, keep more of it on its way.
static void multiply_one(const Matrix *m, char *x, float *out, Output how) {
  uint32_t tile_row_bytes = m->columns * TILE_ROWS, half = m->rows / TILE_ROWS / 2 * TILE_ROWS;
  float scale = *activation_scale(m, x);
  const char *tiles = m->weights, *middle = tiles + half * m->columns;
  v128_t a, b;
  for (uint32_t row = 0; row < half && !cancelled; row += TILE_ROWS, tiles += tile_row_bytes, middle += tile_row_bytes) {
    four_rows_of_two(middle, tiles, x, m->columns, &b, &a);
    put_four(out + row, a, wasm_v128_load(m->row_scale + row), scale, how);
    put_four(out + half + row, b, wasm_v128_load(m->row_scale + half + row), scale, how);
    account(tile_row_bytes * 8);
  }
  if (half * 2 < m->rows && !cancelled) {
    a = four_rows(middle, x, m->columns);
    put_four(out + half * 2, a, wasm_v128_load(m->row_scale + half * 2), scale, how);
    account(tile_row_bytes * 4);
  }
}

// out[v][row] = (or +=) m * activations[v] for `count` vectors, out_stride floats apart. The weights are streamed once
// for all vectors. Stops early when cancelled.
static void multiply(const Matrix *m, char *activations, uint32_t count, float *out, uint32_t out_stride, Output how) {
  if (count == 1) {
    multiply_one(m, activations, out, how);
    return;
  }
  uint32_t step = activation_bytes(m), tile_row_bytes = m->columns * TILE_ROWS;
  const char *tiles = m->weights;
  for (uint32_t row = 0; row < m->rows && !cancelled; row += TILE_ROWS, tiles += tile_row_bytes) {
    v128_t row_scale = wasm_v128_load(m->row_scale + row), a, b;
    uint32_t v = 0;
    for (; v + 2 <= count; v += 2) {
      char *x = activations + v * step, *y = x + step;
      four_rows_twice(tiles, x, y, m->columns, &a, &b);
      put_four(out + v * out_stride + row, a, row_scale, *activation_scale(m, x), how);
      put_four(out + (v + 1) * out_stride + row, b, row_scale, *activation_scale(m, y), how);
    }
    if (v < count) {
      char *x = activations + v * step;
      a = four_rows(tiles, x, m->columns);
      put_four(out + v * out_stride + row, a, row_scale, *activation_scale(m, x), how);
    }
    account(tile_row_bytes * (count + 3)); // streaming the weights costs about as much as three vectors of arithmetic
  }
}

#endif
