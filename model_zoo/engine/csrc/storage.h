/* How a weight is stored, and its numbers as float32. Widening is exact.
 *
 * A kind of storage is a row here: its name, how LANES of its numbers are loaded, and its line in BY_STORAGE. Products take
 * any kind for their right factor, and compute with what is loaded. */
#ifndef PET_STORAGE_H
#define PET_STORAGE_H

#if defined(__AVX512F__) || defined(__AVX2__) || defined(__F16C__)
#include <immintrin.h>
#endif

#include "codes.h"
#include "vectors.h"

enum storage { FLOAT32, BFLOAT16, FLOAT16, INT8, CODES };

/* Rows of `columns` numbers, one after the other.
 *
 * INT8: a code times the row's factor, times INT8_STEP. CODES: two to a byte, the even one in the high half; a number is
 * (map[code] + 8 − zero)·factor, or map[code]·factor where there are no zeros, for the factor of its block of the numbers
 * in a row. Factors may be stored in bytes themselves: nested_map[byte]·nested[block / NESTED] + offset. */
struct matrix {
    const void *data;
    int64_t columns;
    enum storage storage;
    int shift;            /* a block is 2^shift numbers; −1 where it is no power of two */
    int64_t block, count; /* numbers of a block, and of all */
    const float *factors, *map, *nested, *nested_map, *offset; /* no factors: they are in bytes */
    const uint8_t *small, *zeros;
};

enum { NESTED = 256 };

static inline struct matrix float_matrix(const float *data, int64_t columns) {
    return (struct matrix){.data = data, .columns = columns};
}

/* What a kernel's operand is called that is a struct matrix. */
#define MATRIX "matrix"

/* One of a kernel's operands, whose type says how it is stored; without types all are float32. */
static inline struct matrix matrix_of(void **params, int64_t **shapes, const char **types, int which) {
    const char *type = types ? types[which] : "float32";
    if (strcmp(type, MATRIX) == 0) return *(const struct matrix *)params[which];
    struct matrix of = float_matrix(params[which], shapes[which][1]);
    if (strcmp(type, "bfloat16") == 0) of.storage = BFLOAT16;
    if (strcmp(type, "float16") == 0) of.storage = FLOAT16;
    return of;
}

/* The factors of some blocks, each number rounded as it is everywhere else; see storage.c. */
void some_factors(const struct matrix *of, int64_t first, int64_t count, float *to);

/* How many factors a matrix has in bytes; 0 for all others. */
int64_t nested_factors(const struct matrix *of);

/* Writes them to `to`, from where they are read from then on. */
void expand_factors(struct matrix *of, float *to);

/* Calls `does`, inlined for the kind of storage that it gets first. */
#define BY_STORAGE(storage, does, ...)                        \
    switch (storage) {                                        \
        case BFLOAT16: does(BFLOAT16, __VA_ARGS__); break;    \
        case FLOAT16: does(FLOAT16, __VA_ARGS__); break;      \
        case INT8: does(INT8, __VA_ARGS__); break;            \
        case CODES: does(CODES, __VA_ARGS__); break;          \
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

static const float INT8_STEP = 7.874015718698502e-3f;

INLINE floats from_int8(const int8_t *codes) {
#ifdef __AVX512F__
    return (floats)_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)codes)));
#elif defined(__AVX2__)
    return (floats)_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)codes)));
#else
    floats value;
    for (int i = 0; i < LANES; i++) value[i] = codes[i];
    return value;
#endif
}

static inline floats load_bfloat16(const uint16_t *from) {
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return from_bfloat16(bits);
}

static inline floats load_float16(const uint16_t *from) {
    halves bits;
    memcpy(&bits, from, sizeof bits);
    return from_float16(bits);
}

INLINE int64_t block_of(struct matrix of, int64_t index) { return of.shift >= 0 ? index >> of.shift : index / of.block; }

INLINE float factor_of(struct matrix of, int64_t block) {
    if (of.factors) return of.factors[block];
    float factor;
    some_factors(&of, block, 1, &factor);
    return factor;
}

/* A number by itself. */
INLINE float load_one(enum storage storage, struct matrix of, int64_t row, int64_t column) {
    int64_t index = row * of.columns + column;
    if (storage == FLOAT32) return ((const float *)of.data)[index];
    if (storage == INT8) return ((const int8_t *)of.data)[index] * of.factors[row] * INT8_STEP;
    if (storage == CODES) {
        uint8_t pair = ((const uint8_t *)of.data)[index >> 1];
        int64_t block = block_of(of, index);
        float value = of.map[index & 1 ? pair & 15 : pair >> 4];
        if (of.zeros) value += 8.0f - of.zeros[block];
        return value * factor_of(of, block);
    }
    halves bits = {((const uint16_t *)of.data)[index]};
    return (storage == BFLOAT16 ? from_bfloat16(bits) : from_float16(bits))[0];
}

/* `count` numbers of a row, zeros behind them. */
INLINE floats load_stored_some(enum storage storage, struct matrix of, int64_t row, int64_t column, int64_t count) {
    floats value = {0};
    for (int64_t i = 0; i < count; i++) value[i] = load_one(storage, of, row, column + i);
    return value;
}

/* LANES numbers of a row. */
INLINE floats load_stored(enum storage storage, struct matrix of, int64_t row, int64_t column) {
    int64_t index = row * of.columns + column;
    if (storage == FLOAT32) return load((const float *)of.data + index);
    if (storage == INT8) return from_int8((const int8_t *)of.data + index) * of.factors[row] * INT8_STEP;
    if (storage == CODES) {
        int64_t block = block_of(of, index);
        if (index & 1 || block_of(of, index + LANES - 1) != block) return load_stored_some(storage, of, row, column, LANES);
        floats value = from_codes((const uint8_t *)of.data + (index >> 1), of.map);
        if (of.zeros) value += 8.0f - of.zeros[block];
        return value * factor_of(of, block);
    }
    return storage == BFLOAT16 ? load_bfloat16((const uint16_t *)of.data + index) : load_float16((const uint16_t *)of.data + index);
}

/* Fetches what `load_stored` will read; of codes the processor does so itself. */
INLINE void fetch_stored(enum storage storage, struct matrix of, int64_t row, int64_t column) {
    if (storage == FLOAT32) __builtin_prefetch((const float *)of.data + row * of.columns + column);
    if (storage == BFLOAT16 || storage == FLOAT16) __builtin_prefetch((const uint16_t *)of.data + row * of.columns + column);
}

/* Whether rows can be read by runs of codes: they have whole blocks, none of which is shorter than what is looked up at once. */
INLINE int aligned(struct matrix of) {
    return of.storage == CODES && of.shift >= 0 && of.block >= APART * LANES && of.columns % of.block == 0;
}

/* LANES rows of codes from this one on, of the first of their `depth` numbers as many as `codes_apart` reads at once, turned
 * about; gives how many these are. */
INLINE int64_t turn_codes(struct matrix of, int64_t row, int64_t column, int64_t depth, float *to, int64_t panel) {
    struct table table = table_of(of.map);
    int64_t k = 0;
    for (; k + APART * LANES <= depth; k += APART * LANES) {
        floats squares[APART][LANES];
        for (int i = 0; i < LANES; i++) {
            floats values[APART];
            int64_t index = (row + i) * of.columns + column + k, block = index >> of.shift;
            codes_apart((const uint8_t *)of.data + (index >> 1), table, values);
            float factor = factor_of(of, block), zero = of.zeros ? 8.0f - of.zeros[block] : 0.0f;
#pragma GCC unroll 4
            for (int v = 0; v < APART; v++) squares[v][i] = (values[v] + zero) * factor;
        }
        for (int v = 0; v < APART; v++) {
            turn_square(squares[v]);
            for (int i = 0; i < LANES; i++) store(to + (k + place_apart(v, i)) * panel, squares[v][i]);
        }
    }
    return k;
}

/* `columns` rows of `depth` numbers from this one on → (depth, panel), zeros behind the last column; `panel` is a multiple
 * of LANES. */
INLINE void turn_stored(enum storage storage, struct matrix of, int64_t row, int64_t column, int64_t columns, int64_t depth,
                        float *to, int64_t panel) {
    int apart = storage == CODES && aligned(of) && column % (APART * LANES) == 0;
    for (int64_t j = 0; j < panel; j += LANES) {
        int64_t k = apart && j + LANES <= columns ? turn_codes(of, row + j, column, depth, to + j, panel) : 0;
        for (; j + LANES <= columns && k + LANES <= depth; k += LANES) {
            floats square[LANES];
            for (int i = 0; i < LANES; i++) square[i] = load_stored(storage, of, row + j + i, column + k);
            turn_square(square);
            for (int i = 0; i < LANES; i++) store(to + (k + i) * panel + j, square[i]);
        }
        for (; k < depth; k++)
            for (int64_t i = j; i < j + LANES; i++)
                to[k * panel + i] = i < columns ? load_one(storage, of, row + i, column + k) : 0.0f;
    }
}

/* `depth` rows of `columns` numbers → (depth, panel) likewise. */
INLINE void copy_stored(enum storage storage, struct matrix of, int64_t row, int64_t column, int64_t columns, int64_t depth,
                        float *to, int64_t panel) {
    for (int64_t k = 0; k < depth; k++) {
        fetch_stored(storage, of, row + depth + k, column);
        for (int64_t j = 0; j < panel; j += LANES)
            store(to + k * panel + j, j + LANES <= columns ? load_stored(storage, of, row + k, column + j)
                                      : j < columns        ? load_stored_some(storage, of, row + k, column + j, columns - j)
                                                           : (floats){0});
    }
}

/* The first for a left factor, which is float32. */
static inline void turn(const float *from, int64_t row, int64_t columns, int64_t depth, float *to, int64_t panel) {
    turn_stored(FLOAT32, float_matrix(from, row), 0, 0, columns, depth, to, panel);
}

#endif
