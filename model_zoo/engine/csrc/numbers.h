/* Tensors whose numbers are float32, or rounded to bfloat16: between products of such factors. A kernel computes in float32
 * and takes some numbers at a time: widened into room of its own, or where they lie. */
#ifndef PET_NUMBERS_H
#define PET_NUMBERS_H

#include "storage.h"

struct numbers {
    void *at;
    int low; /* whether in bfloat16 */
};

INLINE int64_t size_of(int dimensions, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < dimensions; i++) size *= shape[i];
    return size;
}

/* Whether one of a kernel's operands is in bfloat16; without types all are float32. */
INLINE int is_low(const char **types, int which) { return types && strcmp(types[which], "bfloat16") == 0; }

INLINE struct numbers numbers_of(void **params, const char **types, int which) {
    return (struct numbers){params[which], is_low(types, which)};
}

INLINE void *place_of(struct numbers of, int64_t index) { return (char *)of.at + index * (of.low ? 2 : 4); }

INLINE halves to_bfloat16(floats value) {
#ifdef __AVX512BF16__
    return (halves)_mm512_cvtneps_pbh((__m512)value);
#else
    ints bits = (ints)value, rounded = bits + 0x7FFF + ((bits >> 16) & 1);
    bits = (ints)choose(value == value, (floats)rounded, (floats)(bits | 1 << 22)); /* what is not a number stays so */
    return __builtin_convertvector(bits >> 16, halves);
#endif
}

/* `count` numbers in float32: those themselves, or a copy in `room`. */
INLINE const float *widened(struct numbers of, int64_t first, int64_t count, float *room) {
    if (!of.low) return (const float *)of.at + first;
    const uint16_t *from = (const uint16_t *)of.at + first;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) store(room + i, load_bfloat16(from + i));
    for (; i < count; i++) room[i] = from_bfloat16((halves){from[i]})[0];
    return room;
}

/* Some numbers, LANES or fewer, as one vector; and what is rounded to go where such are. */
INLINE floats take(struct numbers of, int64_t first, int64_t some) {
    if (!of.low) return some == LANES ? load((const float *)of.at + first) : load_some((const float *)of.at + first, some);
    halves bits = {0};
    memcpy(&bits, (const uint16_t *)of.at + first, some == LANES ? sizeof bits : (size_t)some * 2);
    return from_bfloat16(bits);
}

INLINE void put(struct numbers of, int64_t first, floats value, int64_t some) {
    if (!of.low) {
        if (some == LANES) store((float *)of.at + first, value);
        else store_some((float *)of.at + first, value, some);
        return;
    }
    halves bits = to_bfloat16(value);
    memcpy((uint16_t *)of.at + first, &bits, some == LANES ? sizeof bits : (size_t)some * 2);
}

/* Where such numbers are to be written before `put_back`: their place, or `room`. */
INLINE float *room_for(struct numbers of, int64_t first, float *room) { return of.low ? room : (float *)of.at + first; }

/* Rounds what was written to `room`, to the nearest, ties to even. */
INLINE void put_back(struct numbers of, int64_t first, int64_t count, const float *room) {
    if (!of.low) return;
    uint16_t *to = (uint16_t *)of.at + first;
    int64_t i = 0;
    for (; i + LANES <= count; i += LANES) {
        halves bits = to_bfloat16(load(room + i));
        memcpy(to + i, &bits, sizeof bits);
    }
    for (; i < count; i++) to[i] = to_bfloat16(fill(room[i]))[0];
}

/* `count` numbers from one tensor to another. */
INLINE void copy_numbers(struct numbers from, int64_t first, struct numbers to, int64_t at, int64_t count) {
    if (from.low == to.low) {
        memcpy(place_of(to, at), place_of(from, first), (size_t)(count * (to.low ? 2 : 4)));
    } else if (from.low) {
        widened(from, first, count, (float *)to.at + at);
    } else {
        put_back(to, at, count, (const float *)from.at + first);
    }
}

#endif
