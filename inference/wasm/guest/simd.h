// Small vector helpers shared by the kernels. Nothing here depends on the model.
//
// All arithmetic is IEEE and in the order written (no -ffast-math): the same row gives the same bits alone, in a batch
// and in any chunking of a prompt, on every machine.
#ifndef HOLDFAST_SIMD_H
#define HOLDFAST_SIMD_H

#include <stddef.h>
#include <stdint.h>
#include <wasm_simd128.h>

// The host's compiler checks bounds once a base pointer, for the largest offset that it has seen so far. A loop body
// therefore hides its pointers from LLVM (which would rewrite the offsets), touches the highest offset first, and keeps
// the other loads behind that one.
#define OPAQUE(pointer) __asm__ volatile("" : "+r"(pointer))
#define KEEP_ORDER __asm__ volatile("" ::: "memory")

static inline v128_t load_at(const char *p, int offset) { return wasm_v128_load(p + offset); }
static inline v128_t load_8_weights_at(const char *p, int offset) { return wasm_i16x8_load8x8(p + offset); }

// sum += pairwise products of eight int16.
static inline v128_t add_dot(v128_t sum, v128_t a, v128_t b) { return wasm_i32x4_add(sum, wasm_i32x4_dot_i16x8(a, b)); }

static inline v128_t to_f32(v128_t i32) { return wasm_f32x4_convert_i32x4(i32); }

static inline v128_t zero_i32(void) { return wasm_i32x4_splat(0); }
static inline v128_t zero_f32(void) { return wasm_f32x4_splat(0); }

static inline float sum_f32(v128_t v) {
  return (wasm_f32x4_extract_lane(v, 0) + wasm_f32x4_extract_lane(v, 1)) +
         (wasm_f32x4_extract_lane(v, 2) + wasm_f32x4_extract_lane(v, 3));
}

static inline int32_t sum_i32(v128_t v) {
  return wasm_i32x4_extract_lane(v, 0) + wasm_i32x4_extract_lane(v, 1) + wasm_i32x4_extract_lane(v, 2) +
         wasm_i32x4_extract_lane(v, 3);
}

static inline float max_f32(v128_t v) {
  float a = wasm_f32x4_extract_lane(v, 0), b = wasm_f32x4_extract_lane(v, 1);
  float c = wasm_f32x4_extract_lane(v, 2), d = wasm_f32x4_extract_lane(v, 3);
  a = a > b ? a : b;
  c = c > d ? c : d;
  return a > c ? a : c;
}

// e^x to about 2e-6 relative: x is split into a power of two and a remainder in [-0.5, 0.5] for a polynomial of 2^f.
static inline v128_t exp_f32(v128_t x) {
  x = wasm_f32x4_max(wasm_f32x4_min(x, wasm_f32x4_splat(88.f)), wasm_f32x4_splat(-87.f));
  v128_t t = wasm_f32x4_mul(x, wasm_f32x4_splat(1.44269504f));
  v128_t whole = wasm_f32x4_nearest(t), f = wasm_f32x4_sub(t, whole);
  v128_t p = wasm_f32x4_splat(0.0013333558f);
  p = wasm_f32x4_add(wasm_f32x4_mul(p, f), wasm_f32x4_splat(0.0096181291f));
  p = wasm_f32x4_add(wasm_f32x4_mul(p, f), wasm_f32x4_splat(0.0555041087f));
  p = wasm_f32x4_add(wasm_f32x4_mul(p, f), wasm_f32x4_splat(0.2402265069f));
  p = wasm_f32x4_add(wasm_f32x4_mul(p, f), wasm_f32x4_splat(0.6931471806f));
  p = wasm_f32x4_add(wasm_f32x4_mul(p, f), wasm_f32x4_splat(1.f));
  v128_t exponent = wasm_i32x4_add(wasm_i32x4_trunc_sat_f32x4(whole), wasm_i32x4_splat(127));
  return wasm_f32x4_mul(p, wasm_i32x4_shl(exponent, 23));
}

static inline float abs_max(const float *x, uint32_t n) {
  v128_t m = zero_f32();
  for (uint32_t i = 0; i < n; i += 4) m = wasm_f32x4_pmax(m, wasm_f32x4_abs(wasm_v128_load(x + i)));
  return max_f32(m);
}

// Four floats, scaled and rounded to int32.
static inline v128_t round_scaled(const float *x, v128_t scale) {
  return wasm_i32x4_trunc_sat_f32x4(wasm_f32x4_nearest(wasm_f32x4_mul(wasm_v128_load(x), scale)));
}

// Quantises n floats to int16 in [-limit, limit] and returns the scale that undoes it.
static inline float quantise(const float *x, int16_t *out, uint32_t n, float limit) {
  float m = abs_max(x, n);
  v128_t scale = wasm_f32x4_splat(m > 0 ? limit / m : 0);
  for (uint32_t i = 0; i < n; i += 8)
    wasm_v128_store(out + i, wasm_i16x8_narrow_i32x4(round_scaled(x + i, scale), round_scaled(x + i + 4, scale)));
  return m / limit;
}

#endif
