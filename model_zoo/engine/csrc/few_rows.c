/* Matrix products with so few rows that reading the right factor is what takes the time: those of single tokens.
 *
 * The factor is read once for all rows, as nearly as possible in the order in which it lies in memory, and fetched ahead
 * of its use; the columns of the result are shared among the threads. Each number is summed in an order that depends
 * neither on the number of rows nor on that of the threads. All float32 but that factor, which may be stored otherwise. */
#include "few_rows.h"

#include "pool.h"
#include "vectors.h"

enum {
    SOME = 4,      /* rows, or columns, of the result that are in registers together */
    SUMS = SOME * SOME,
    CODES_TOGETHER = LANES > 8 ? SOME : 1, /* columns, of codes, where there are half as many registers */
    CHAINS = LANES > 8 ? 1 : 2, /* sums of one number that do not wait for each other */
    COLUMNS = 32,  /* the least columns of a piece of work */
    BROAD = 16,    /* the least vectors of it where the factor's rows run across: enough to be read as a stream */
    PIECES = 2,    /* for each thread */
    DEEP = 4,      /* rows of that factor that are added together */
    FAR = 16384,   /* bytes ahead that are fetched into the second cache, whose own fetching ends with a page */
    NEAR = 2048,   /* and into the first one */
    LONG = 3072,   /* numbers of a row beside which the first cache has no room */
    FACTORS = 2048, /* of blocks of the rows that are read together */
};

struct few {
    const float *a;
    struct matrix b;
    float *c, *apart; /* a, where b is read by runs of codes */
    int64_t rows, columns, depth;
    int turned;
};

/* A row of the right factor, as it is stored. */
struct line {
    const char *from;
    float factor;
    const float *factors; /* of its blocks */
    const uint8_t *zeros;
};

enum { ALIGNED = CODES + 1 }; /* codes whose factors are there, in rows that are read by runs: see `aligned` */

INLINE struct line line_of(int storage, struct matrix of, int64_t row) {
    int64_t first = row * of.columns;
    struct line line = {.from = of.data};
    line.from += storage == FLOAT32 ? first * 4 : storage == INT8 ? first : storage < INT8 ? first * 2 : first / 2;
    if (storage == INT8) line.factor = of.factors[row] * INT8_STEP;
    if (storage == ALIGNED) line.factors = of.factors + (first >> of.shift);
    if (storage == ALIGNED && of.zeros) line.zeros = of.zeros + (first >> of.shift);
    return line;
}

/* Bytes of eight numbers. */
INLINE int64_t eighths(int storage) { return storage == FLOAT32 ? 32 : storage < INT8 ? 16 : storage == INT8 ? 8 : 4; }

/* LANES numbers of a row. */
INLINE floats load_line(int storage, struct matrix of, struct line line, int64_t row, int64_t k) {
    if (storage == FLOAT32) return load((const float *)line.from + k);
    if (storage == BFLOAT16) return load_bfloat16((const uint16_t *)line.from + k);
    if (storage == FLOAT16) return load_float16((const uint16_t *)line.from + k);
    if (storage == INT8) return from_int8((const int8_t *)line.from + k); /* times the row's factor in the end */
    return load_stored(CODES, of, row, k);
}

/* Fetches this, which lies FAR ahead of what is read, and what lies NEAR. */
INLINE void fetch(const char *from) {
    __builtin_prefetch(from, 0, 2);
    __builtin_prefetch(from - FAR + NEAR);
}

/* Fetches what a run will be, whose codes are `bytes` and lie with those of `group` bytes that are read together, in
 * their order in memory: into the first cache from rows that follow, or, where it has no room beside rows of so many
 * numbers, into the second one. Once only: few bytes are as many numbers, so that they are there in time, and fetched
 * twice a row takes a third longer on Zen 4. */
INLINE void fetch_codes(const char *from, int64_t bytes, int64_t group, int64_t numbers) {
    const char *far = from + (group < 4 * NEAR ? 4 * NEAR : group), *near = from + (group < NEAR ? NEAR : group);
#pragma GCC unroll 4
    for (int64_t i = 0; i < bytes; i += 64)
        if (numbers > LONG)
            __builtin_prefetch(far + i, 0, 2);
        else
            __builtin_prefetch(near + i);
}

/* The numbers from one row of a to the next. */
INLINE int64_t stride_of(int storage, int64_t depth) { return storage == ALIGNED ? (depth + RUN - 1) / RUN * RUN : depth; }

/* Adds to sums what `count` numbers from k on, no more than a run, of `tall` rows of a and `wide` of b have together: the
 * codes' own numbers first, and once times the factors. The numbers of a are in the order of `put_run`. */
INLINE void add_run(int zeros, int tall, int wide, const float *a, int64_t stride, struct matrix b, struct line line,
                    struct table table, int64_t k, int64_t count, floats *sums) {
    int64_t row_bytes = b.columns >> 1, row_blocks = b.columns >> b.shift;
    const uint8_t *codes = (const uint8_t *)line.from + (k >> 1), *of_zeros = zeros ? line.zeros + (k >> b.shift) : NULL;
    const float *factors = line.factors + (k >> b.shift);
    floats zero[SOME];
    fetch_codes(line.from + wide * (k >> 1), wide * RUN / 2, wide * row_bytes, b.columns);
#pragma GCC unroll 8
    for (int j = 0; zeros && j < wide; j++) {
        float of_blocks[LANES] = {0};
        for (int64_t i = 0; i == 0 || i < count >> b.shift; i++) of_blocks[i] = 8.0f - of_zeros[j * row_blocks + i];
        zero[j] = blocks_of_run(of_blocks, b.shift, count);
    }
#pragma GCC unroll 8
    for (int first = 0; first < wide; first += CODES_TOGETHER) {
        struct run runs[CODES_TOGETHER];
        floats of_run[SUMS * CHAINS] = {0};
#pragma GCC unroll 8
        for (int j = 0; j < CODES_TOGETHER && first + j < wide; j++)
            runs[j] = run_of(codes + (first + j) * row_bytes, count, table);
#pragma GCC unroll 8
        for (int v = 0; v < RUNS; v++) {
            floats left[SOME];
#pragma GCC unroll 8
            for (int i = 0; i < tall; i++) {
                left[i] = load(a + i * stride + k + v * LANES);
                if (LANES > 8) HOLD(left[i]);
            }
#pragma GCC unroll 8
            for (int j = 0; j < CODES_TOGETHER && first + j < wide; j++) {
                floats right = values_of(runs[j], v, table);
                if (zeros) right += zero[first + j];
#pragma GCC unroll 8
                for (int i = 0; i < tall; i++) of_run[(i * CODES_TOGETHER + j) * CHAINS + v % CHAINS] += left[i] * right;
            }
        }
#pragma GCC unroll 8
        for (int j = 0; j < CODES_TOGETHER && first + j < wide; j++) {
            floats of_blocks = blocks_of_run(factors + (first + j) * row_blocks, b.shift, count);
#pragma GCC unroll 8
            for (int i = 0; i < tall; i++) {
                floats *chains = of_run + (i * CODES_TOGETHER + j) * CHAINS;
                sums[i * wide + first + j] += (CHAINS > 1 ? chains[0] + chains[1] : chains[0]) * of_blocks;
            }
        }
    }
}

/* Adds to sums what `tall` rows of a and `wide` of b, with or without zeros, have together. */
INLINE void add_codes(int zeros, int tall, int wide, const float *a, int64_t depth, struct matrix b, struct line line,
                      floats *sums) {
    struct table table = table_of(b.map);
    int64_t stride = stride_of(ALIGNED, depth), k = 0;
    for (; k + RUN <= depth; k += RUN) add_run(zeros, tall, wide, a, stride, b, line, table, k, RUN, sums);
    if (k < depth) add_run(zeros, tall, wide, a, stride, b, line, table, k, depth - k, sums);
}

/* `tall` rows of a times `wide` rows of b from its `first` on, each `depth` long; from row `next` on will be read then. */
INLINE void dots(int storage, int tall, int wide, const float *a, struct matrix b, int64_t first, int64_t next,
                 int64_t depth, float *c, int64_t c_row) {
    floats sums[SUMS] = {0};
    struct line rights[SOME];
    int64_t whole = storage == ALIGNED ? depth : depth / LANES * LANES;
    const char *ahead = (const char *)b.data + eighths(storage) * (next * depth) / 8;
#pragma GCC unroll 8
    for (int j = 0; j < wide; j++) rights[j] = line_of(storage, b, first + j);
    if (storage == ALIGNED && b.zeros)
        add_codes(1, tall, wide, a, depth, b, rights[0], sums);
    else if (storage == ALIGNED)
        add_codes(0, tall, wide, a, depth, b, rights[0], sums);
    for (int64_t k = 0; storage != ALIGNED && k < whole; k += LANES) {
        floats right[SOME];
#pragma GCC unroll 8
        for (int j = 0; j < wide; j++) right[j] = load_line(storage, b, rights[j], first + j, k);
#pragma GCC unroll 8
        for (int i = 0; i < wide * LANES * eighths(storage); i += 512)
            fetch(ahead + (eighths(storage) * wide * k + i) / 8);
#pragma GCC unroll 8
        for (int i = 0; i < tall; i++) {
            floats left = load(a + i * depth + k);
            HOLD(left);
#pragma GCC unroll 8
            for (int j = 0; j < wide; j++) sums[i * wide + j] += left * right[j];
        }
    }
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide && storage == INT8; j++) sums[i * wide + j] *= rights[j].factor;
    floats last[SOME];
#pragma GCC unroll 8
    for (int j = 0; j < wide && whole < depth; j++)
        last[j] = load_stored_some(storage, b, first + j, whole, depth - whole);
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++)
#pragma GCC unroll 8
        for (int j = 0; j < wide && whole < depth; j++)
            sums[i * wide + j] += load_some(a + i * depth + whole, depth - whole) * last[j];
    int count = tall * wide > 8 ? SUMS : tall * wide, together = count < LANES ? count : LANES; /* 12 and four times nothing */
    float out[SUMS + LANES];
    floats taken[SUMS]; /* a copy: what is passed on by its address does not stay in registers before */
#pragma GCC unroll 16
    for (int i = 0; i < SUMS; i++) taken[i] = i < tall * wide ? sums[i] : (floats){0};
#pragma GCC unroll 2
    for (int at = 0; at < count; at += together) store(out + at, sums_of(taken + at, together));
#pragma GCC unroll 8
    for (int i = 0; i < tall; i++) memcpy(c + i * c_row, out + i * wide, (size_t)wide * sizeof(float));
}

/* The same matrix, the factors of some rows out of their bytes where there is room for them. */
INLINE struct matrix with_factors(int storage, struct matrix of, int64_t row, int64_t rows, float *room) {
    if (storage < CODES || of.factors) return of;
    int64_t first = block_of(of, row * of.columns), count = block_of(of, (row + rows) * of.columns - 1) - first + 1;
    if (count > FACTORS || of.columns == 0) return of;
    some_factors(&of, first, count, room);
    of.factors = room - first;
    return of;
}

INLINE void lines(int storage, const float *a, struct matrix b, int64_t first, float *c, int64_t c_row, int64_t rows,
                  int64_t columns, int64_t depth) {
    int64_t ahead = SOME; /* rows, but of short ones as many as take so long that they are there in time */
    while (ahead < columns && ahead * depth * eighths(storage) < 8 * FAR) ahead += SOME;
    for (int64_t column = 0; column < columns;) {
        int64_t wide = column + SOME <= columns ? SOME : 1;
        int64_t from = first + column, next = column + wide + ahead <= columns ? from + ahead : from;
        float factors[FACTORS];
        struct matrix read = with_factors(storage, b, from, wide, factors);
        for (int64_t row = 0, tall; row < rows; row += tall) {
            const float *left = a + row * stride_of(storage, depth);
            float *to = c + row * c_row + column;
            int64_t most = wide == 1 ? 1 : SOME;
            tall = rows - row < most ? rows - row : most;
#define DOTS(tall, wide)                              \
    for (int64_t at = 0; at < (wide > 1 ? SOME : 1); at += wide) \
    dots(storage, tall, wide, left, read, from + at, next + at, depth, to + at, c_row)
            if (wide == 1)
                DOTS(1, 1);
            else if (tall == 1)
                DOTS(1, SOME);
            else if (tall == 2)
                DOTS(2, SOME);
            else if (tall == 3)
                DOTS(3, SOME);
            else if (storage == ALIGNED || (storage == INT8 && LANES == 8))
                DOTS(SOME, 2);
            else
                DOTS(SOME, SOME);
#undef DOTS
        }
        column += wide;
    }
}

void lines_by_lines(const float *a, struct matrix b, int64_t first, float *c, int64_t c_row, int64_t rows, int64_t columns) {
    if (b.storage == BFLOAT16)
        lines(BFLOAT16, a, b, first, c, c_row, rows, columns, b.columns);
    else
        lines(FLOAT32, a, b, first, c, c_row, rows, columns, b.columns);
}

static void by_rows(const struct few *of, int64_t first, int64_t last) {
    if (of->apart)
        lines(ALIGNED, of->apart, of->b, first, of->c + first, of->columns, of->rows, last - first, of->depth);
    else
        BY_STORAGE(of->b.storage, lines, of->a, of->b, first, of->c + first, of->columns, of->rows, last - first, of->depth)
}

/* Rows in the order of `put_run`. */
static void take_apart(void *arguments, int64_t first, int64_t last) {
    struct few *of = arguments;
    int64_t stride = stride_of(ALIGNED, of->depth), runs = stride / RUN;
    for (int64_t i = first; i < last; i++) {
        int64_t row = i / runs, k = i % runs * RUN;
        put_run(of->a + row * of->depth + k, of->depth - k < RUN ? of->depth - k : RUN, of->apart + row * stride + k);
    }
}

/* Adds to rows of c, `wide` numbers each, `deep` rows of b from (row, column) on, times the numbers of a that belong to
 * them. */
INLINE void add_rows(enum storage storage, int deep, const float *a, int64_t a_row, struct matrix b, int64_t row,
                     int64_t column, int64_t rows, float *c, int64_t c_row, int64_t wide) {
    for (int64_t j = 0; j < wide; j += LANES) {
        floats right[DEEP];
#pragma GCC unroll 8
        for (int k = 0; k < deep; k++) {
            right[k] = load_stored(storage, b, row + k, column + j);
            fetch_stored(storage, b, row + 2 * DEEP + k, column + j);
        }
        for (int64_t i = 0; i < rows; i++) {
            floats sum = load(c + i * c_row + j);
#pragma GCC unroll 8
            for (int k = 0; k < deep; k++) sum += a[i * a_row + k] * right[k];
            store(c + i * c_row + j, sum);
        }
    }
}

INLINE void columns_of(enum storage storage, struct few of, int64_t first, int64_t last) {
    int64_t columns = of.columns, depth = of.depth, wide = (last - first) / LANES * LANES, rest = last - first - wide;
    float *c = of.c + first;
    for (int64_t i = 0; i < of.rows; i++) memset(c + i * columns, 0, (size_t)(last - first) * sizeof(float));
    int64_t k = 0;
    for (; k + DEEP <= depth; k += DEEP)
        add_rows(storage, DEEP, of.a + k, depth, of.b, k, first, of.rows, c, columns, wide);
    for (; k < depth; k++)
        add_rows(storage, 1, of.a + k, depth, of.b, k, first, of.rows, c, columns, wide);
    for (k = 0; k < depth && rest; k++)
        for (int64_t j = wide; j < wide + rest; j++) {
            float right = load_one(storage, of.b, k, first + j);
            for (int64_t i = 0; i < of.rows; i++) c[i * columns + j] += of.a[i * depth + k] * right;
        }
}

static void by_columns(const struct few *of, int64_t first, int64_t last) {
    BY_STORAGE(of->b.storage, columns_of, *of, first, last)
}

/* Columns of a piece of work, a multiple of `least`: long stretches of the factor, for some pieces for each thread, and
 * fewer pieces where one is not worth a thread's waking. */
static int64_t piece(int64_t columns, int64_t depth, int64_t least) {
    int64_t small = 8192 / (depth + 1) + 1, share = columns / (PIECES * pet_threads());
    int64_t most = small > share ? small : share;
    return most > least ? (most + least - 1) / least * least : least;
}

struct several {
    const struct few *first;
    int count;
};

/* Columns of the results, counted from one to the next. */
static void by_any(void *arguments, int64_t first, int64_t last) {
    struct several *all = arguments;
    for (const struct few *of = all->first; of < all->first + all->count; of++) {
        int64_t from = first > 0 ? first : 0, to = last < of->columns ? last : of->columns;
        if (from < to) (of->turned ? by_rows : by_columns)(of, from, to);
        first -= of->columns, last -= of->columns;
    }
}

void few_rows(const struct few_rows *given, int count, int64_t rows) {
    struct few of[MOST_TOGETHER];
    struct several all = {of, count};
    int64_t columns = 0, grain = 0, room = 0;
    for (int i = 0; i < count; i++) {
        const struct few_rows *one = given + i;
        of[i] = (struct few){.a = one->a, .b = one->b, .c = one->c, .turned = one->turned, .rows = rows,
                             .columns = one->columns, .depth = one->depth};
        columns += one->columns;
        room += rows * stride_of(ALIGNED, one->depth);
    }
    for (int i = 0; i < count; i++) {
        int64_t own = piece(columns, of[i].depth, of[i].turned ? COLUMNS : BROAD * LANES);
        if (own > grain) grain = own;
    }
    float *apart = NULL, *next;
    for (int i = 0; i < count; i++) {
        /* without memory they are read one by one, which takes longer */
        if (!of[i].turned || !aligned(of[i].b) || (!of[i].b.factors && SOME * of[i].depth / of[i].b.block > FACTORS)) continue;
        if (!apart && !(next = apart = pet_scratch(5, room * 4))) break;
        for (int j = 0; j < i; j++)
            if (of[j].a == of[i].a) of[i].apart = of[j].apart;
        if (of[i].apart) continue;
        int64_t stride = stride_of(ALIGNED, of[i].depth);
        of[i].apart = next, next += rows * stride;
        pet_parallel(take_apart, of + i, rows * stride / RUN, 16384 / RUN);
    }
    pet_parallel(by_any, &all, columns, grain);
}
