/* Keys and values that are kept, and attention of one token per row over those from the tokens before it. */
#include <math.h>

#include "pool.h"
#include "vectors.h"

static const float HIDDEN = -1e30f;

enum { FETCHED = 8192 }; /* numbers of a head that are fetched before they are read */

/* Where a token's column lies among the kept ones: the first `pinned` columns stay in their rows, and those after them
 * take the other rows in turn. */
static inline int64_t row_of(int64_t column, int64_t pinned, int64_t kept) {
    return column < pinned ? column : pinned + (column - pinned) % (kept - pinned);
}

/* Some keys and values one after the other, and which of them the row sees: those whose column is not 0. */
struct stretch {
    const float *keys, *values;
    const int32_t *columns;
    int64_t count;
};

struct token {
    const float *query, *keys, *values;
    float *kept_keys, *kept_values, *out;
    const int32_t *end, *columns;
    int64_t heads, key_heads, front, length, kept, pinned, width, scratch, window;
    float scale, cap;
    _Atomic int failed;
};

/* Scores of LANES keys. */
static inline floats scores_of(const float *query, const float *keys, int64_t width) {
    floats sums[LANES];
#pragma GCC unroll 16
    for (int j = 0; j < LANES; j++) sums[j] = (floats){0};
    for (int64_t k = 0; k < width; k += LANES) {
        floats part = load(query + k);
#pragma GCC unroll 16
        for (int j = 0; j < LANES; j++) {
            sums[j] += part * load(keys + j * width + k);
            __builtin_prefetch(keys + (LANES + j) * width + k);
        }
    }
    return sums_of(sums, LANES);
}

/* Scores of all keys of a stretch, those that are not seen hidden. */
static void score(const struct token *of, const float *query, struct stretch part, float *scores) {
    int64_t width = of->width, j = 0;
    if (width % LANES == 0)
        for (; j + LANES <= part.count; j += LANES)
            store(scores + j, scores_of(query, part.keys + j * width, width) * of->scale);
    for (; j < part.count; j++) {
        const float *key = part.keys + j * width;
        float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
        for (int64_t k = 0; k < width; k++) sum += query[k] * key[k];
        scores[j] = sum * of->scale;
    }
    if (of->cap > 0.0f) bend(scores, part.count, 1.0f / of->cap, of->cap);
    for (j = 0; j < part.count; j++)
        if (part.columns[j] == 0) scores[j] = HIDDEN;
}

/* Adds the values of a stretch, each times its share. */
static void mix(const struct token *of, struct stretch part, const float *shares, float *out) {
    int64_t width = of->width, k = 0;
    for (; k + 4 * LANES <= width; k += 4 * LANES) {
        floats sums[4];
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) sums[i] = load(out + k + i * LANES);
        for (int64_t j = 0; j < part.count; j++)
#pragma GCC unroll 4
            for (int i = 0; i < 4; i++) {
                sums[i] += shares[j] * load(part.values + j * width + k + i * LANES);
                __builtin_prefetch(part.values + (j + LANES) * width + k + i * LANES);
            }
#pragma GCC unroll 4
        for (int i = 0; i < 4; i++) store(out + k + i * LANES, sums[i]);
    }
    for (int64_t j = 0; j < part.count && k < width; j++)
#pragma omp simd
        for (int64_t i = k; i < width; i++) out[i] += shares[j] * part.values[j * width + i];
}

/* Fetches some of the first of these numbers: behind other weights they lie in memory, and what fetches ahead by itself
 * begins anew with each page. */
static inline void fetch_first(const float *from, int64_t count) {
    for (int64_t i = 0; i < count && i < FETCHED; i += 16) __builtin_prefetch(from + i, 0, 2);
}

static void token_heads(void *arguments, int64_t first, int64_t last) {
    struct token *of = arguments;
    int64_t width = of->width, groups = of->heads / of->key_heads, given = of->front + 1;
    float *scores = pet_scratch(1, of->scratch * (int64_t)sizeof(float));
    if (!scores) {
        of->failed = 1;
        return;
    }
    for (int64_t unit = first; unit < last; unit++) {
        int64_t batch = unit / of->heads, pair = batch * of->key_heads + unit % of->heads / groups;
        int64_t column = of->end[batch] - 1, now = (pair * given + of->front) * width;
        float *kept_keys = of->kept_keys + pair * of->kept * width, *kept_values = of->kept_values + pair * of->kept * width;
        const int32_t *columns = of->columns + batch * (of->front + of->length), *own = columns + of->front;
        if (unit % groups == 0) { /* the other heads of this key take its newest one from where it came, too */
            int64_t row = row_of(column, of->pinned, of->kept) * width;
            memcpy(kept_keys + row, of->keys + now, (size_t)width * sizeof(float));
            memcpy(kept_values + row, of->values + now, (size_t)width * sizeof(float));
        }
        int64_t pinned = column < of->pinned ? column : of->pinned, seen = pinned; /* from this column on, and before */
        if (of->window && column + 1 - of->window > seen) seen = column + 1 - of->window;
        int64_t row = row_of(seen, of->pinned, of->kept), rest = column - seen, turn = of->pinned * width;
        int64_t early = rest < of->kept - row ? rest : of->kept - row;
        struct stretch parts[5] = {
            {of->keys + pair * given * width, of->values + pair * given * width, columns, of->front},
            {kept_keys, kept_values, own, pinned},
            {kept_keys + row * width, kept_values + row * width, own + seen, early},
            {kept_keys + turn, kept_values + turn, own + seen + early, rest - early},
            {of->keys + now, of->values + now, own + column, 1},
        };
        const float *query = of->query + unit * width;
        float *out = of->out + unit * width;
        int64_t count = 0, next = unit + 1 < last && (unit + 1) % groups == 0 ? of->kept * width : 0;
        fetch_first(parts[2].values, early * width);
        for (int i = 0; i < 5; count += parts[i++].count) score(of, query, parts[i], scores + count);
        int64_t padded = up_to_lanes(count);
        for (int64_t j = count; j < padded; j++) scores[j] = -INFINITY;
        floats most = load(scores), sums = {0};
        for (int64_t j = LANES; j < padded; j += LANES) most = greater(most, load(scores + j));
        float highest = greatest_of(most);
        for (int64_t j = 0; j < padded; j += LANES) {
            floats value = exponential(load(scores + j) - highest);
            sums += value;
            store(scores + j, value);
        }
        fetch_first(parts[2].keys + next, next ? early * width : 0);
        float share = 1.0f / sum_of(sums);
        for (int64_t j = 0; j < padded; j += LANES) store(scores + j, load(scores + j) * share);
        memset(out, 0, (size_t)width * sizeof(float));
        count = 0;
        for (int i = 0; i < 5; count += parts[i++].count) mix(of, parts[i], scores + count, out);
    }
}

/* query (B, heads, 1, d), keys and values (B, key heads, T + 1, d): T in front of all tokens, and this token's;
 * kept keys and values (B·key heads·L, d), end (B, 1): the token's column, and 1; columns (B, T + C); scale, window and cap
 * as in `attention`; how many columns are pinned → (B, heads·d)
 *
 * Writes the token's key and value into the row of its column (`row_of`); L is less than C only where there is a window
 * which the rows hold. It sees the T in front, the pinned columns, and its window up to itself, where columns is not 0. */
PET_KERNEL(token_attention) {
    int64_t *query = shapes[0], *keys = shapes[1], *columns = shapes[6];
    struct token of = {.query = params[0], .keys = params[1], .values = params[2], .kept_keys = params[3],
                       .kept_values = params[4], .end = params[5], .columns = params[6], .out = params[11],
                       .heads = query[1], .key_heads = keys[1], .front = keys[2] - 1, .width = query[3],
                       .scratch = columns[1] + 1 + LANES, .scale = *(float *)params[7], .window = *(int32_t *)params[8],
                       .cap = *(float *)params[9], .pinned = *(int32_t *)params[10]};
    of.length = columns[1] - of.front;
    if (query[2] != 1 || query[0] < 1) return 1;
    of.kept = shapes[3][0] / (query[0] * of.key_heads);
    int64_t turn = of.kept - of.pinned;
    if (turn < 1 || (of.length > of.kept && (of.window == 0 || of.window > turn))) return 1;
    for (int64_t row = 0; row < query[0]; row++)
        if (of.end[row] < 1 || of.end[row] > of.length) return 1;
    int64_t units = query[0] * of.heads, some = units / pet_threads();
    pet_parallel(token_heads, &of, units, some > 1 ? some : 1);
    return of.failed;
}

struct keep {
    const float *x;
    float *kept;
    int64_t length, kept_length, pinned, width;
};

static void keep_range(const struct keep *of, int64_t head, int64_t first, int64_t last) {
    for (int64_t count; first < last; first += count) {
        int64_t row = row_of(first, of->pinned, of->kept_length);
        count = last - first < of->kept_length - row ? last - first : of->kept_length - row;
        memcpy(of->kept + (head * of->kept_length + row) * of->width, of->x + (head * of->length + first) * of->width,
               (size_t)(count * of->width) * sizeof(float));
    }
}

static void keep_heads(void *arguments, int64_t first, int64_t last) {
    struct keep *of = arguments;
    int64_t pinned = of->pinned < of->length ? of->pinned : of->length, latest = of->length - of->kept_length + of->pinned;
    for (int64_t head = first; head < last; head++) {
        keep_range(of, head, 0, pinned);
        keep_range(of, head, latest > pinned ? latest : pinned, of->length);
    }
}

/* x (B, heads, S, d), how many columns are pinned → the rows (B·heads·L, d) of each head's columns (`row_of`), where more
 * than L those of the pinned and of the last ones; the others stay as they are */
PET_KERNEL(keep_columns) {
    int64_t heads = shapes[0][0] * shapes[0][1];
    struct keep of = {.x = params[0], .kept = params[2], .length = shapes[0][2], .pinned = *(int32_t *)params[1],
                      .width = shapes[0][3]};
    if (heads == 0) return 0;
    of.kept_length = shapes[2][0] / heads;
    if (of.kept_length <= of.pinned) return 1;
    pet_parallel(keep_heads, &of, heads, 1);
    return 0;
}
