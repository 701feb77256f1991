/* Matrices in 8 and 4 bits: codes and factors out of float32 or 16 bits, and float32 out of them.
 *
 * Each number is rounded where bitsandbytes' CPU backend rounds it, so that codes, factors and dequantised numbers are
 * its own to the bit. `model_zoo/quantization/codec.py` says the same in NumPy. */
#pragma STDC FP_CONTRACT OFF
#ifndef __clang__
#pragma GCC optimize("fp-contract=off")
#endif
#include <math.h>
#include <string.h>

#include "pool.h"
#include "storage.h"

enum { PIECE = 4096 }; /* numbers that are wide at a time */

static const float SMALLEST = 1e-38f;

static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    return bits;
}

static float of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}

/* `count` numbers from the first on in float32: where they lie, or in `room`. */
static const float *wide(const struct matrix *x, int64_t first, int64_t count, float *room) {
    if (x->storage == FLOAT32) return (const float *)x->data + first;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(room + i, load_stored(x->storage, *x, 0, first + i));
    for (; i < count; i++) room[i] = load_one(x->storage, *x, 0, first + i);
    return room;
}

static int64_t piece(int64_t left) { return left < PIECE ? left : PIECE; }

/* The largest absolute value; NaN where there is one, since its bits are above those of all numbers. */
static float largest(const struct matrix *of, int64_t first, int64_t count) {
    float room[PIECE];
    uint32_t most = 0;
    for (int64_t begin = 0; begin < count; begin += PIECE) {
        int64_t some = piece(count - begin);
        const float *x = wide(of, first + begin, some, room);
#pragma omp simd reduction(max : most)
        for (int64_t i = 0; i < some; i++) {
            uint32_t one = bits_of(x[i]) & 0x7fffffffu;
            most = one > most ? one : most;
        }
    }
    return of_bits(most);
}

/* Rounded to what float16 holds, to nearest even; infinite beyond its range. */
static float to_half(float value) {
    uint32_t bits = bits_of(value), sign = bits & 0x80000000u, size = bits & 0x7fffffffu;
    float small = of_bits(bits_of((of_bits(size) + 0.5f) - 0.5f) | sign); /* half's subnormals: multiples of 2^-24 */
    uint32_t rounded = (size + 0xfffu + ((size >> 13) & 1u)) & ~0x1fffu;
    rounded = rounded >= 0x47800000u && size <= 0x7f800000u ? 0x7f800000u : rounded; /* from 65536 on */
    rounded = size > 0x7f800000u ? size : rounded;
    return size < 0x38800000u ? small : of_bits(rounded | sign);
}

struct blocks {
    struct matrix x;
    const float *bounds;
    const uint8_t *order;
    int64_t size, block;
    float limit;
    int half;
    uint8_t *codes;
    float *factors;
};

/* Codes of so many numbers times `by`, as below: each number's place by halving the bounds. Gives how many it has done. */
static int64_t pack_lanes(const float *x, int64_t count, float by, const struct blocks *of, uint8_t *packed) {
    int64_t i = 0;
#ifdef __AVX512F__
    __m512 bounds = _mm512_maskz_loadu_ps(0x7fff, of->bounds);
    __m512i order = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)of->order));
    for (; i + LANES <= count; i += LANES) {
        __m512 value = (__m512)(load(x + i) * by);
        __m512i place = _mm512_setzero_si512();
        for (int half = 8; half > 0; half /= 2) {
            __m512 bound = _mm512_permutexvar_ps(_mm512_add_epi32(place, _mm512_set1_epi32(half - 1)), bounds);
            __mmask16 above = _mm512_cmp_ps_mask(value, bound, _CMP_GT_OQ);
            place = _mm512_mask_add_epi32(place, above, place, _mm512_set1_epi32(half));
        }
        __m512i pairs = _mm512_permutexvar_epi32(place, order);
        pairs = _mm512_or_si512(_mm512_slli_epi64(pairs, 4), _mm512_srli_epi64(pairs, 32));
        _mm_storel_epi64((__m128i *)(packed + i / 2), _mm512_cvtepi64_epi8(pairs));
    }
#else
    (void)x, (void)count, (void)by, (void)of, (void)packed;
#endif
    return i;
}

static void quantize_some(void *arguments, int64_t first, int64_t last) {
    const struct blocks *of = arguments;
    for (int64_t index = first; index < last; index++) {
        int64_t start = index * of->block, count = of->size - start < of->block ? of->size - start : of->block;
        float most = largest(&of->x, start, count);
        int whole = count == of->block;
        if (!whole && most < SMALLEST) most = SMALLEST;
        float factor = of->half ? to_half(most / of->limit) : most / of->limit;
        of->factors[index] = factor;
        float divisor = factor < SMALLEST ? SMALLEST : factor, inverse = 1.0f / divisor;
        uint8_t codes[PIECE + 1];
        for (int64_t begin = 0; begin < count; begin += PIECE) {
            int64_t some = piece(count - begin);
            float room[PIECE];
            const float *x = wide(&of->x, start + begin, some, room);
            uint8_t *packed = of->codes + (start + begin) / 2;
            int64_t done = whole ? pack_lanes(x, some, inverse, of, packed) : 0;
            int32_t places[PIECE];
#pragma omp simd
            for (int64_t i = done; i < some; i++) {
                float value = whole ? x[i] * inverse : x[i] / divisor;
                int32_t place = 0;
                for (int k = 0; k < 15; k++) place += value > of->bounds[k];
                places[i] = place;
            }
            for (int64_t i = done; i < some; i++) codes[i] = of->order[places[i]];
            if (some & 1) { /* the last of all; what fills up its byte counts as a zero */
                int32_t place = 0;
                for (int k = 0; k < 15; k++) place += 0.0f > of->bounds[k];
                codes[some] = of->order[place];
            }
            for (int64_t i = done / 2; i < (some + 1) / 2; i++) packed[i] = (uint8_t)(codes[2 * i] << 4 | codes[2 * i + 1]);
        }
    }
}

/* x (size), stored as `storage` → two codes to a byte, the first in the high half, and a factor per block. A number's code is that of the
 * interval between `bounds` (15) where number / factor lies, one on a bound in the lower; `half`: factors are rounded to
 * float16. */
void quantize_blocks(const void *x, int64_t storage, int64_t size, int64_t block, float limit, int64_t half,
                     const float *bounds, const uint8_t *order, uint8_t *codes, float *factors) {
    struct matrix from = {.data = x, .storage = (enum storage)storage};
    struct blocks of = {from, bounds, order, size, block, limit, (int)half, codes, factors};
    pet_parallel(quantize_some, &of, (size + block - 1) / block, 16384 / block + 1);
}

struct packed {
    const uint8_t *codes, *zeros;
    const float *map, *factors;
    int64_t size, block;
    float *out;
};

static void dequantize_some(void *arguments, int64_t first, int64_t last) {
    const struct packed *of = arguments;
    float map[16];
    memcpy(map, of->map, sizeof map);
    for (int64_t index = first; index < last; index++) {
        int64_t start = index * of->block, count = of->size - start < of->block ? of->size - start : of->block;
        const uint8_t *codes = of->codes + start / 2;
        float factor = of->factors[index], *out = of->out + start;
        float shift = of->zeros ? 8.0f - (float)of->zeros[index] : 0.0f;
        if (of->zeros)
            for (int k = 0; k < 16; k++) map[k] = of->map[k] + shift;
        for (int64_t i = 0; i < count / 2; i++) {
            out[2 * i] = map[codes[i] >> 4] * factor;
            out[2 * i + 1] = map[codes[i] & 15] * factor;
        }
        if (count & 1) out[count - 1] = map[codes[count / 2] >> 4] * factor;
    }
}

/* The reverse. zeros: what stands for zero in each block in place of 8, or NULL. */
void dequantize_blocks(const uint8_t *codes, int64_t size, int64_t block, const float *map, const float *factors,
                       const uint8_t *zeros, float *out) {
    struct packed of = {codes, zeros, map, factors, size, block, out};
    pet_parallel(dequantize_some, &of, (size + block - 1) / block, 16384 / block + 1);
}

struct rows {
    struct matrix x;
    int64_t width;
    int8_t *codes;
    float *most, *out;
};

static void quantize_rows_some(void *arguments, int64_t first, int64_t last) {
    const struct rows *of = arguments;
    for (int64_t row = first; row < last; row++) {
        int8_t *codes = of->codes + row * of->width;
        float most = to_half(largest(&of->x, row * of->width, of->width)), factor = 1.0f / most * 127.0f;
        of->most[row] = most;
        if (!(most > 0.0f && most < INFINITY)) {
            memset(codes, 0, (size_t)of->width);
            continue;
        }
        for (int64_t begin = 0; begin < of->width; begin += PIECE) {
            int64_t some = piece(of->width - begin);
            float room[PIECE];
            const float *x = wide(&of->x, row * of->width + begin, some, room);
#pragma omp simd
            for (int64_t i = 0; i < some; i++) codes[begin + i] = (int8_t)(int32_t)rintf(to_half(x[i]) * factor);
        }
    }
}

/* x (rows, width), stored as `storage`, rounded to float16 first → int8 codes and the largest absolute value of each row */
void quantize_rows(const void *x, int64_t storage, int64_t count, int64_t width, int8_t *codes, float *most) {
    struct rows of = {.x = {.data = x, .storage = (enum storage)storage}, .width = width, .codes = codes, .most = most};
    pet_parallel(quantize_rows_some, &of, count, 16384 / (width + 1) + 1);
}

static void dequantize_rows_some(void *arguments, int64_t first, int64_t last) {
    const struct rows *of = arguments;
    for (int64_t row = first; row < last; row++) {
        const int8_t *codes = of->codes + row * of->width;
        float *out = of->out + row * of->width, most = of->most[row];
#pragma omp simd
        for (int64_t i = 0; i < of->width; i++) out[i] = (float)codes[i] * most * INT8_STEP;
    }
}

/* The reverse. */
void dequantize_rows(const int8_t *codes, const float *most, int64_t count, int64_t width, float *out) {
    struct rows of = {.width = width, .codes = (int8_t *)codes, .most = (float *)most, .out = out};
    pet_parallel(dequantize_rows_some, &of, count, 16384 / (width + 1) + 1);
}

/* packed codes; block, whether factors are nested, whether there are zeros; factors; map; where nested their factors, map
 * and offset; zeros → the matrix */
PET_KERNEL(unpack_codes) {
    const int32_t *settings = params[1];
    float *out = params[count - 1], *factors = params[2];
    struct packed of = {.codes = params[0], .map = params[3], .block = settings[0], .out = out, .size = 1};
    for (int axis = 0; axis < ndims[count - 1]; axis++) of.size *= shapes[count - 1][axis];
    int64_t blocks = (of.size + of.block - 1) / of.block;
    if (settings[1]) {
        factors = pet_scratch(0, blocks * 4);
        if (!factors) return 1;
        struct matrix nested = {.storage = CODES, .count = of.size, .block = of.block, .small = params[2], .nested = params[4],
                                .nested_map = params[5], .offset = params[6]};
        expand_factors(&nested, factors);
    }
    of.factors = factors;
    of.zeros = settings[2] ? params[count - 2] : NULL;
    pet_parallel(dequantize_some, &of, blocks, 16384 / of.block + 1);
    return 0;
}

/* int8 codes (rows, width); the largest absolute value of each row → the matrix */
PET_KERNEL(unpack_rows) {
    struct rows of = {.codes = params[0], .width = shapes[0][1], .most = params[1], .out = params[2]};
    pet_parallel(dequantize_rows_some, &of, shapes[0][0], 16384 / (of.width + 1) + 1);
    return 0;
}
