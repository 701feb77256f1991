/* How a weight is stored, and its numbers as float32. Widening is exact.
 *
 * A kind of storage is a row here: its name, how LANES of its numbers are loaded, and its line in BY_STORAGE. Products take
 * any kind for their right factor, and compute with what is loaded. */
#ifndef PET_STORAGE_H
#define PET_STORAGE_H

#if defined(__AVX512F__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include "vectors.h"

enum storage { FLOAT32, BFLOAT16, FLOAT16 };

/* Numbers one after the other. */
struct matrix {
    const void *data;
    enum storage storage;
};

static inline struct matrix float_matrix(const float *data) { return (struct matrix){.data = data}; }

/* One of a kernel's operands, whose type says how it is stored; without types all are float32. */
static inline struct matrix matrix_of(void **params, const char **types, int which) {
    const char *type = types ? types[which] : "float32";
    struct matrix of = {.data = params[which]};
    if (strcmp(type, "bfloat16") == 0) of.storage = BFLOAT16;
    if (strcmp(type, "float16") == 0) of.storage = FLOAT16;
    return of;
}

/* Calls `does`, inlined for the kind of storage that it gets first. */
#define BY_STORAGE(storage, does, ...)                        \
    switch (storage) {                                        \
        case BFLOAT16: does(BFLOAT16, __VA_ARGS__); break;    \
        case FLOAT16: does(FLOAT16, __VA_ARGS__); break;      \
        default: does(FLOAT32, __VA_ARGS__);                  \
    }

typedef uint16_t halves __attribute__((vector_size(LANES * 2)));

static inline floats from_bfloat16(halves bits) {
#ifdef __AVX512F__
    return (floats)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)bits), 16);
#else
    return (floats)(__builtin_convertvector(bits, ints) << 16);
#endif
}

static inline floats from_float16(halves bits) {
#if defined(__AVX512F__)
    return (floats)_mm512_cvtph_ps((__m256i)bits);
#elif defined(__F16C__)
    return (floats)_mm256_cvtph_ps((__m128i)bits);
#else
    ints wide = __builtin_convertvector(bits, ints), sign = (wide & 0x8000) << 16, size = wide & 0x7FFF;
    ints normal = (size << 13) + (112 << 23); /* exponents count from 15 there, from 127 here */
    ints small = (ints)((floats)(normal + (1 << 23)) - 0x1p-14f), beyond = normal + (112 << 23);
    floats found = choose(size < 0x400, (floats)small, choose(size >= 0x7C00, (floats)beyond, (floats)normal));
    return (floats)((ints)found | sign);
#endif
}

#define INLINE static inline __attribute__((always_inline))

/* `count` numbers from the index-th on, zeros behind them. */
INLINE floats load_stored_some(enum storage storage, struct matrix of, int64_t index, int64_t count) {
    if (storage == FLOAT32) return load_some((const float *)of.data + index, count);
    halves bits = {0};
    memcpy(&bits, (const uint16_t *)of.data + index, (size_t)count * sizeof(uint16_t));
    return storage == BFLOAT16 ? from_bfloat16(bits) : from_float16(bits);
}

/* LANES numbers from the index-th on. */
INLINE floats load_stored(enum storage storage, struct matrix of, int64_t index) {
    return load_stored_some(storage, of, index, LANES);
}

INLINE float load_one(enum storage storage, struct matrix of, int64_t index) {
    return load_stored_some(storage, of, index, 1)[0];
}

/* Fetches what `load_stored` will read. */
INLINE void fetch_stored(enum storage storage, struct matrix of, int64_t index) {
    __builtin_prefetch((const char *)of.data + index * (storage == FLOAT32 ? 4 : 2));
}

/* (columns, depth) numbers from the index-th on, of which each line begins `row` after the one before → (depth, panel),
 * zeros behind the last column; `panel` is a multiple of LANES. */
INLINE void turn_stored(enum storage storage, struct matrix of, int64_t index, int64_t row, int64_t columns, int64_t depth,
                        float *to, int64_t panel) {
    for (int64_t j = 0; j < panel; j += LANES) {
        int64_t k = 0;
        for (; j + LANES <= columns && k + LANES <= depth; k += LANES) {
            floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = load_stored(storage, of, index + (j + i) * row + k);
            turn_square(square);
            for (int i = 0; i < LANES; i++) store(to + (k + i) * panel + j, square[i]);
        }
        for (; k < depth; k++)
            for (int64_t i = j; i < j + LANES; i++)
                to[k * panel + i] = i < columns ? load_one(storage, of, index + i * row + k) : 0.0f;
    }
}

/* (depth, columns) numbers, of which each line begins `row` after the one before → (depth, panel) likewise. */
INLINE void copy_stored(enum storage storage, struct matrix of, int64_t index, int64_t row, int64_t columns, int64_t depth,
                        float *to, int64_t panel) {
    for (int64_t k = 0; k < depth; k++)
        for (int64_t j = 0; j < panel; j += LANES) {
            int64_t from = index + k * row + j, left = columns - j;
            store(to + k * panel + j, left >= LANES ? load_stored(storage, of, from)
                                      : left > 0    ? load_stored_some(storage, of, from, left)
                                                    : (floats){0});
        }
}

/* The first for a left factor, which is float32. */
static inline void turn(const float *from, int64_t row, int64_t columns, int64_t depth, float *to, int64_t panel) {
    turn_stored(FLOAT32, float_matrix(from), 0, row, columns, depth, to, panel);
}

#endif
