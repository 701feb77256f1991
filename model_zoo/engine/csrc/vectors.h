/* Several floats at a time: the compiler makes of them what the processor has. */
#ifndef PET_VECTORS_H
#define PET_VECTORS_H

#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))

/* In front of a loop whose length is not known, and whose registers are all in use: clang would load four rounds' numbers
 * at once, and put them down in memory. */
#ifdef __clang__
#define UNROLL_WHERE_IT_FITS _Pragma("clang loop unroll(disable)")
#else
#define UNROLL_WHERE_IT_FITS _Pragma("GCC unroll 4")
#endif

/* How many, and how many such vectors of a product's rows are computed together: what the registers hold. */
#ifdef __AVX512F__
enum { LANES = 16, WIDE = 4 };
#else
enum { LANES = 8, WIDE = 2 };
#endif
typedef float floats __attribute__((vector_size(LANES * 4)));
typedef int32_t ints __attribute__((vector_size(LANES * 4)));

/* The next multiple of LANES. */
static inline int64_t up_to_lanes(int64_t count) { return (count + LANES - 1) / LANES * LANES; }

static inline floats load(const float *from) {
    floats value;
    memcpy(&value, from, sizeof value);
    return value;
}

/* A number that several instructions use is read once, into a register: some processors read no more than one vector in the
 * time of a product. */
#if defined(__AVX512F__)
#define HOLD(value) __asm__("" : "+v"(value))
#elif defined(__AVX__)
#define HOLD(value) __asm__("" : "+x"(value))
#else
#define HOLD(value)
#endif

static inline void store(float *to, floats value) { memcpy(to, &value, sizeof value); }

static inline floats load_some(const float *from, int64_t count) {
    floats value = {0};
    memcpy(&value, from, (size_t)count * sizeof(float));
    return value;
}

static inline void store_some(float *to, floats value, int64_t count) {
    memcpy(to, &value, (size_t)count * sizeof(float));
}

static inline floats fill(float value) { return value - (floats){0}; } /* a sum would make a 0 of -0 */

/* Numbers of two vectors, by their places in both together. */
#if !defined(__has_builtin)
#define __has_builtin(name) 0
#endif
#if __has_builtin(__builtin_shufflevector)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (ints){__VA_ARGS__})
#endif

/* Numbers from the n-th on, and those before it behind them. */
#ifdef __AVX512F__
#define AHEAD(a, n) PICK(a, a, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7, n + 8, n + 9, n + 10, n + 11, n + 12, n + 13, n + 14, n + 15)
#else
#define AHEAD(a, n) PICK(a, a, n, n + 1, n + 2, n + 3, n + 4, n + 5, n + 6, n + 7)
#endif

/* The lower and the upper halves of two vectors, each with every other number from either. */
#ifdef __AVX512F__
#define LOWER(a, b) PICK(a, b, 0, 16, 1, 17, 2, 18, 3, 19, 4, 20, 5, 21, 6, 22, 7, 23)
#define UPPER(a, b) PICK(a, b, 8, 24, 9, 25, 10, 26, 11, 27, 12, 28, 13, 29, 14, 30, 15, 31)
#else
#define LOWER(a, b) PICK(a, b, 0, 8, 1, 9, 2, 10, 3, 11)
#define UPPER(a, b) PICK(a, b, 4, 12, 5, 13, 6, 14, 7, 15)
#endif

/* The sums of `count` vectors, 1, 2, 4 … or LANES of them, which are used up: of each the upper half is added to the lower
 * one until one number is left. They are the first `count` numbers of the result. */
static inline floats sums_of(floats *of, int count) {
    for (int half = count / 2; half > 0; half /= 2)
#pragma GCC unroll 8
        for (int i = 0; i < half; i++) of[i] = LOWER(of[i], of[i + half]) + UPPER(of[i], of[i + half]);
    if (LANES > 8 && count < LANES) of[0] += AHEAD(of[0], LANES / 2);
    if (count < 8) of[0] += AHEAD(of[0], 4);
    if (count < 4) of[0] += AHEAD(of[0], 2);
    if (count < 2) of[0] += AHEAD(of[0], 1);
    return of[0];
}

/* The sum of all. */
static inline float sum_of(floats value) { return sums_of(&value, 1)[0]; }

/* The sum of the products of two lines. */
static inline float dot(const float *a, const float *b, int64_t width) {
    floats sums = {0};
    int64_t whole = width / LANES * LANES;
    for (int64_t k = 0; k < whole; k += LANES) sums += load(a + k) * load(b + k);
    float sum = sum_of(sums);
    for (int64_t k = whole; k < width; k++) sum += a[k] * b[k];
    return sum;
}

/* One or the other, lane by lane: `where` is −1 or 0. */
static inline floats choose(ints where, floats a, floats b) { return (floats)(((ints)a & where) | ((ints)b & ~where)); }

/* The greater and the lesser of two, lane by lane; the first where one is not a number. */
static inline floats greater(floats a, floats b) { return choose(b > a, b, a); }

static inline floats lesser(floats a, floats b) { return choose(b < a, b, a); }

/* The greatest of all. */
static inline float greatest_of(floats value) {
    if (LANES > 8) value = greater(value, AHEAD(value, LANES / 2));
    value = greater(value, AHEAD(value, 4));
    value = greater(value, AHEAD(value, 2));
    return greater(value, AHEAD(value, 1))[0];
}

/* e^x to within one unit in the last place: 2^n · e^r with |r| <= ln(2)/2 and a polynomial. Below -87 it is 0, above
 * 88 it is 1.65e38; what is not a number stays so. */
static inline floats exponential(floats x) {
    ints small = x < fill(-87.0f);
    x = lesser(greater(x, fill(-87.0f)), fill(88.0f));
    floats turns = x * 1.44269504088896341f;
    floats shift = fill(12582912.0f); /* 1.5·2^23: adding it rounds to the nearest integer */
    floats rounded = turns + shift;
    ints exponent = (ints)rounded << 23;
    rounded -= shift;
    floats r = x - rounded * 0.693359375f + rounded * 2.12194440e-4f;
    floats p = fill(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    ints number = x == x; /* what is not one has bits in the place of an exponent */
    return (floats)(((((ints)p + exponent) & ~small) & number) | ((ints)x & ~number));
}

/* Each number x of a line becomes outer·tanh(inner·x). */
static inline void bend(float *line, int64_t count, float inner, float outer) {
    for (int64_t j = 0; j < count; j += LANES) {
        int64_t some = count - j < LANES ? count - j : LANES;
        store_some(line + j, outer - 2.0f * outer / (1.0f + exponential(load_some(line + j, some) * (2.0f * inner))), some);
    }
}

/* LANES by LANES numbers, turned about the diagonal: in each of log2(LANES) rounds the upper half is merged with the
 * lower. */
static inline void turn_square(floats *square) {
    for (int round = 1; round < LANES; round *= 2) {
        floats merged[LANES];
#pragma GCC unroll 8
        for (int i = 0; i < LANES / 2; i++) {
            merged[2 * i] = LOWER(square[i], square[i + LANES / 2]);
            merged[2 * i + 1] = UPPER(square[i], square[i + LANES / 2]);
        }
#pragma GCC unroll 16
        for (int i = 0; i < LANES; i++) square[i] = merged[i];
    }
}

#endif
