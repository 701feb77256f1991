/* Factors of packed matrices. Each product and sum is rounded, as in `model_zoo/quantization/codec.py`. */
#pragma STDC FP_CONTRACT OFF
#ifndef __clang__
#pragma GCC optimize("fp-contract=off")
#endif
#include "storage.h"

#include "pool.h"

void some_factors(const struct matrix *of, int64_t first, int64_t count, float *to) {
    float offset = *of->offset;
    for (int64_t i = 0; i < count;) {
        float nested = of->nested[(first + i) / NESTED];
        int64_t end = i + NESTED - (first + i) % NESTED;
        for (end = end < count ? end : count; i < end; i++) to[i] = of->nested_map[of->small[first + i]] * nested + offset;
    }
}

enum { AT_ONCE = 8192 };

struct factors {
    const struct matrix *of;
    float *to;
};

static void factors_part(void *arguments, int64_t first, int64_t last) {
    struct factors *of = arguments;
    some_factors(of->of, first, last - first, of->to + first);
}

int64_t nested_factors(const struct matrix *of) {
    return of->storage == CODES && !of->factors ? (of->count + of->block - 1) / of->block : 0;
}

void expand_factors(struct matrix *of, float *to) {
    struct factors factors = {.of = of, .to = to};
    pet_parallel(factors_part, &factors, nested_factors(of), AT_ONCE);
    of->factors = to;
}
