/* What codes of 4 bits stand for: some at a time, in the order that the processor's look-ups give them. Exact. */
#ifndef PET_CODES_H
#define PET_CODES_H

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vectors.h"

/* What LANES codes from an even one on stand for. */
INLINE floats from_codes(const uint8_t *codes, const float *map) {
#ifdef __AVX512F__
    __m512i bytes = _mm512_cvtepu8_epi64(_mm_loadl_epi64((const __m128i *)codes)); /* the lower half of each: the even code */
    __m512i places = _mm512_or_si512(_mm512_srli_epi64(bytes, 4), _mm512_slli_epi64(bytes, 32));
    return (floats)_mm512_permutexvar_ps(places, _mm512_loadu_ps(map)); /* by the lowest four bits */
#elif defined(__AVX2__)
    int32_t pairs;
    memcpy(&pairs, codes, sizeof pairs);
    __m256i places = _mm256_srlv_epi32(_mm256_set1_epi32(pairs), _mm256_setr_epi32(4, 0, 12, 8, 20, 16, 28, 24));
    __m256 first = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map), places); /* by the lowest three bits */
    __m256 second = _mm256_permutevar8x32_ps(_mm256_loadu_ps(map + 8), places);
    return (floats)_mm256_blendv_ps(first, second, _mm256_castsi256_ps(_mm256_slli_epi32(places, 28)));
#else
    floats value;
    for (int i = 0; i < LANES / 2; i++) {
        value[2 * i] = map[codes[i] >> 4];
        value[2 * i + 1] = map[codes[i] & 15];
    }
    return value;
#endif
}

/* Numbers of codes are had faster some vectors at a time, and in another order: those of even places before those of odd
 * ones, in each pair of vectors (AVX-512) or in each vector. */
enum { APART = 32 / LANES };

/* What codes stand for, as `codes_apart` looks it up. */
struct table {
#if defined(__AVX512F__)
    __m512 values;
#elif defined(__AVX2__)
    __m256i bytes[4]; /* the lowest bytes of all sixteen numbers, twice, and so on */
#else
    const float *map;
#endif
};

INLINE struct table table_of(const float *map) {
#if defined(__AVX512F__)
    return (struct table){_mm512_loadu_ps(map)};
#elif defined(__AVX2__)
    struct table of;
    __m128i sorted[4]; /* four numbers' lowest bytes, their second ones, … */
    for (int i = 0; i < 4; i++)
        sorted[i] = _mm_shuffle_epi8(_mm_loadu_si128((const __m128i *)(map + 4 * i)),
                                     _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    __m128i low = _mm_unpacklo_epi32(sorted[0], sorted[1]), high = _mm_unpackhi_epi32(sorted[0], sorted[1]);
    __m128i low_too = _mm_unpacklo_epi32(sorted[2], sorted[3]), high_too = _mm_unpackhi_epi32(sorted[2], sorted[3]);
    of.bytes[0] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(low, low_too));
    of.bytes[1] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(low, low_too));
    of.bytes[2] = _mm256_broadcastsi128_si256(_mm_unpacklo_epi64(high, high_too));
    of.bytes[3] = _mm256_broadcastsi128_si256(_mm_unpackhi_epi64(high, high_too));
    return of;
#else
    return (struct table){map};
#endif
}

#if defined(__AVX2__) && !defined(__AVX512F__)
/* What 32 codes stand for, each of which has a byte: of the lower and the upper half four after four. */
INLINE void look_up(__m256i codes, struct table table, floats *to) {
    __m256i bytes[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++) bytes[i] = _mm256_shuffle_epi8(table.bytes[i], codes);
    __m256i low = _mm256_unpacklo_epi8(bytes[0], bytes[1]), low_too = _mm256_unpacklo_epi8(bytes[2], bytes[3]);
    __m256i high = _mm256_unpackhi_epi8(bytes[0], bytes[1]), high_too = _mm256_unpackhi_epi8(bytes[2], bytes[3]);
    to[0] = (floats)_mm256_unpacklo_epi16(low, low_too);
    to[1] = (floats)_mm256_unpackhi_epi16(low, low_too);
    to[2] = (floats)_mm256_unpacklo_epi16(high, high_too);
    to[3] = (floats)_mm256_unpackhi_epi16(high, high_too);
}
#endif

/* The numbers of APART vectors, whose places `place_apart` says. */
INLINE void codes_apart(const uint8_t *codes, struct table table, floats *to) {
#if defined(__AVX512F__)
    __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)codes));
    to[0] = (floats)_mm512_permutexvar_ps(_mm512_srli_epi32(bytes, 4), table.values); /* by the lowest four bits */
    to[1] = (floats)_mm512_permutexvar_ps(bytes, table.values);
#elif defined(__AVX2__)
    __m256i twice = _mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)codes));
    __m256i places = _mm256_srlv_epi32(twice, _mm256_setr_epi32(4, 4, 4, 4, 0, 0, 0, 0)); /* even ones in the lower half */
    look_up(_mm256_and_si256(places, _mm256_set1_epi8(15)), table, to);
#else
    for (int j = 0; j < APART; j++)
        for (int i = 0; i < LANES / 2; i++) {
            to[j][i] = table.map[codes[j * LANES / 2 + i] >> 4];
            to[j][LANES / 2 + i] = table.map[codes[j * LANES / 2 + i] & 15];
        }
#endif
}

/* The place of a number of one of these vectors among all. */
INLINE int place_apart(int vector, int i) {
    if (LANES > 8) return 2 * i + vector;
    return vector * LANES + (i < LANES / 2 ? 2 * i : 2 * (i - LANES / 2) + 1);
}

/* Rows that are multiplied as they lie are read by runs of codes, again in another order: with 16 lanes a run is a whole
 * line, and every vector takes one code of each of its words. With 8 it is half a line, whose codes of even places come
 * before those of odd ones, and every vector takes four codes of each half. */
enum { RUN = LANES * 8, RUNS = 8 };

/* A run of codes, looked up when its vectors are asked for or, with fewer registers, before. */
struct run {
#if defined(__AVX512F__)
    __m512i words;
#else
    floats values[RUNS];
#endif
};

/* Zeros stand behind the last of `count` codes. */
INLINE struct run run_of(const uint8_t *codes, int64_t count, struct table table) {
    struct run run;
#if defined(__AVX512F__)
    run.words = _mm512_maskz_loadu_epi32((__mmask16)(0xFFFF >> (RUN - count) / 8), codes);
#elif defined(__AVX2__)
    __m256i pairs, lowest = _mm256_set1_epi8(15);
    if (count == RUN)
        pairs = _mm256_loadu_si256((const __m256i *)codes);
    else
        pairs = _mm256_zextsi128_si256(_mm_loadu_si128((const __m128i *)codes));
    look_up(_mm256_and_si256(_mm256_srli_epi16(pairs, 4), lowest), table, run.values);
    look_up(_mm256_and_si256(pairs, lowest), table, run.values + RUNS / 2);
#else
    uint8_t pairs[RUN / 2] = {0};
    memcpy(pairs, codes, (size_t)count / 2);
    for (int v = 0; v < RUNS / 2; v++)
        for (int i = 0; i < LANES; i++) {
            uint8_t pair = pairs[v * LANES / 2 + (i < LANES / 2 ? i : i + RUN / 4 - LANES / 2)];
            run.values[v][i] = table.map[pair >> 4];
            run.values[v + RUNS / 2][i] = table.map[pair & 15];
        }
#endif
    return run;
}

/* What a vector of the run stands for, in the order of `put_run`. */
INLINE floats values_of(struct run run, int vector, struct table table) {
#if defined(__AVX512F__)
    /* the even code of a byte lies in its upper half; only the lowest four bits count */
    return (floats)_mm512_permutexvar_ps(_mm512_srli_epi32(run.words, 4 * (vector ^ 1)), table.values);
#else
    return run.values[vector];
#endif
}

/* What each lane of a run has of the numbers that belong to its blocks. */
INLINE floats blocks_of_run(const float *of_blocks, int shift, int64_t count) {
#if defined(__AVX512F__)
    __mmask16 blocks = (__mmask16)((1u << (count >> shift)) - 1) | 1; /* lanes beyond them meet zeros */
    __m512i places = _mm512_srli_epi32(_mm512_setr_epi32(0, 8, 16, 24, 32, 40, 48, 56, 64, 72, 80, 88, 96, 104, 112, 120), (unsigned)shift);
    return (floats)_mm512_permutexvar_ps(places, _mm512_maskz_loadu_ps(blocks, of_blocks));
#else
    float low = of_blocks[0], high = of_blocks[count >> shift > 1]; /* no block is shorter than half a run */
    return (floats){low, low, low, low, high, high, high, high};
#endif
}

/* A run of numbers, zeros behind the last of `count`, in the order of `values_of`. */
INLINE void put_run(const float *from, int64_t count, float *to) {
    float whole[RUN] = {0};
    memcpy(whole, from, (size_t)count * sizeof(float));
#if defined(__AVX512F__)
    for (int times = 0; times < 3; times++) { /* those of even places before those of odd ones */
        for (int v = 0; v < RUNS / 2; v++) {
            floats left = load(whole + 2 * v * LANES), right = load(whole + (2 * v + 1) * LANES);
            store(to + v * LANES, PICK(left, right, 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30));
            store(to + (v + RUNS / 2) * LANES, PICK(left, right, 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31));
        }
        memcpy(whole, to, sizeof whole);
    }
#else
    for (int v = 0; v < RUNS / 2; v++) {
        floats left = load(whole + v * LANES), right = load(whole + (v + RUNS / 2) * LANES);
        store(to + v * LANES, PICK(left, right, 0, 2, 4, 6, 8, 10, 12, 14));
        store(to + (v + RUNS / 2) * LANES, PICK(left, right, 1, 3, 5, 7, 9, 11, 13, 15));
    }
#endif
}

#endif
