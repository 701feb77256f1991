/* Sums of matrix products, block by block (after Goto & van de Geijn 2008).
 *
 * A thread takes a block of the right factor's columns, copies it for itself into panels as wide as its registers, and
 * multiplies all rows with it. So a block lies in the second cache of the core that uses it, rows pass by in the order in
 * which they lie in memory, and a result is written once, whatever it is a sum of. (Blocks that all threads share, and
 * rows that stay, are a quarter slower: what one core has just written is far away for the others.) Threads that find no
 * block left help with the rows of others, by their panels. Every number is a sum in the order of its terms and of k,
 * whatever the number of threads. All float32 but the right factor, whose numbers are widened where they are copied; or both
 * factors rounded to bfloat16 there. */
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>

#include "pool.h"
#include "product.h"
#include "rounded.h"
#include "sums.h"

enum {
    BLOCK = 64,          /* columns of a block */
    STRETCH = 16,        /* rows of a factor that are copied at once */
    BF16_BLOCK = 256, BF16_MOST = 512, BF16_ROOM = 1 << 18, BF16_CHUNK = BF16_ROWS, /* in bfloat16, see block_columns */
    RANGE = 512, /* rows that each thread must have, if it is to multiply them with all blocks */
    MOSTLY = 8,  /* as many times what is rounded must be copied in all for that */
};

struct block {
    const struct sum *of;
    int64_t column;
    _Atomic int64_t next_row;     /* the first of its range that nobody has taken */
    int64_t last_row;             /* behind the range */
    _Atomic(const char *) copied; /* its panels, once they are there */
};

struct gemm {
    int64_t rows, blocks, ranges, room; /* blocks of each range of rows */
    int64_t wide, chunk; /* of a block, and how many rows are taken at once */
    int bf16;
    struct block *block;
    _Atomic int64_t next[MOST_THREADS]; /* of each range, the first block that nobody has taken */
    _Atomic int failed;
};

/* Bytes of a column of the right factors' copies. */
static int64_t copied_depth(const struct sum *of) { return of->bf16 ? rounded_depth(of) * 2 : of->depth * 4; }

/* The panels of some columns, one behind the other: of each the columns from all parts, one below the other. Where the
 * factor's rows run across, a stretch of them for all panels before the next one: its lines are read as they lie. */
static void copy_panels(const struct sum *of, int64_t column, int64_t wide, float *to) {
    for (const struct part *part = of->parts; part < of->parts + of->count; to += part++->depth * of->panel) {
        int64_t stretch = part->b_turned ? part->depth : STRETCH;
        for (int64_t k = 0; k < part->depth; k += stretch)
            for (int64_t j = 0; j < wide; j += of->panel)
                copy_part(part, k, least(part->depth - k, stretch), column + j, least(wide - j, of->panel), of->panel,
                          to + j * of->depth + k * of->panel);
    }
}

/* Rows of the result by one panel; `rest` has room for a panel that is cut off. */
static void some_rows(const struct sum *of, int64_t column, int64_t row, int64_t rows, const float *panel, float *rest) {
    int64_t columns = least(of->columns - column, of->panel), wide = of->panel;
    float *c = (float *)of->c.at + row * of->columns + column, *to = columns == wide ? c : rest;
    int64_t to_row = columns == wide ? of->columns : wide;
    for (int64_t i = 0; i < rows && to == rest && of->add; i++) memcpy(rest + i * wide, c + i * of->columns, (size_t)columns * 4);
    int add = of->add;
    for (const struct part *part = of->parts; part < of->parts + of->count; panel += part++->depth * wide, add = 1)
        product(rows, wide, to, to_row, (float *)part->a.at + row * part->a_row, part->a_row, panel, wide, part->depth, add);
    for (int64_t i = 0; i < rows && to == rest; i++) memcpy(c + i * of->columns, rest + i * wide, (size_t)columns * 4);
}

/* All rows that nobody has taken, by a block whose panels are there. */
static void remaining_rows(const struct gemm *of, struct block *block, float *rest) {
    const struct sum *sum = block->of;
    const char *copied = atomic_load(&block->copied);
    int64_t first = block->column, last = least(first + of->wide, sum->columns), depth = copied_depth(sum), row;
    while ((row = atomic_fetch_add(&block->next_row, of->chunk)) < block->last_row) {
        int64_t rows = least(block->last_row - row, of->chunk);
        if (of->bf16) some_rounded_rows(sum, first, last, row, rows, (const void *)copied, rest);
        for (int64_t column = first; column < last && !of->bf16; column += sum->panel)
            some_rows(sum, column, row, rows, (const void *)(copied + (column - first) * depth), rest);
    }
}

/* What every thread does, for as long as there is work. Where there is a range of rows for each, it begins with its own, which
 * are its share of other kernels, too: these it has written itself, and those that it writes it will read. */
static void take_blocks(void *arguments, int64_t first, int64_t last) {
    (void)last;
    struct gemm *of = arguments;
    float *rest = pet_scratch(2, of->chunk * (of->bf16 ? of->wide * 4 + MOST_DEPTH * 2 : PANEL * 4));
    char *copied = pet_scratch(3, of->room);
    if (!rest || !copied) {
        of->failed = 1;
        return;
    }
    if (of->bf16) bf16_begin();
    int64_t index, range = first, behind = range + of->ranges;
    while (range < behind) {
        if ((index = atomic_fetch_add(&of->next[range % of->ranges], 1)) >= of->blocks) {
            range++;
            continue;
        }
        struct block *block = of->block + range % of->ranges * of->blocks + index;
        const struct sum *sum = block->of;
        int64_t wide = least(of->wide, sum->columns - block->column);
        if (of->bf16)
            copy_pairs(sum, block->column, wide, (void *)copied);
        else
            copy_panels(sum, block->column, wide, (void *)copied);
        atomic_store(&block->copied, copied);
        remaining_rows(of, block, rest);
    }
    /* No block is left to be copied, so what was copied last stays until all are done. */
    for (int waiting = 1; waiting;) {
        int64_t most = of->chunk;
        struct block *chosen = NULL;
        waiting = 0;
        for (struct block *block = of->block; block < of->block + of->ranges * of->blocks; block++) {
            int64_t left = block->last_row - atomic_load(&block->next_row);
            if (left <= most) continue;
            waiting = 1;
            if (atomic_load(&block->copied)) most = left, chosen = block;
        }
        if (chosen)
            remaining_rows(of, chosen, rest);
        else
            sched_yield();
    }
    if (of->bf16) bf16_end();
}

/* How many ranges: one for each thread where rows are many beside the copies of a block, of which each makes its own; where
 * copying is cheap, since hardly anything is widened or rounded; and where rows are those of other kernels, which a turned left
 * factor's are not. */
static int64_t ranges_of(const struct sum *sums, int count, int64_t rows) {
    int64_t all = 0, rounded = 0; /* numbers that are copied */
    for (int i = 0; i < count; i++)
        for (const struct part *part = sums[i].parts; part < sums[i].parts + sums[i].count; part++) {
            if (part->a_turned) return 1;
            all += sums[i].columns * part->depth;
            rounded += part->b.storage == BFLOAT16 ? 0 : sums[i].columns * part->depth;
        }
    return rounded > all / MOSTLY || rows / pet_threads() < RANGE ? 1 : pet_threads();
}

static int64_t range_begin(const struct gemm *of, int64_t range) {
    return least(of->rows, (of->rows * range / of->ranges + of->chunk - 1) / of->chunk * of->chunk);
}

/* Columns of a block of some sums in bfloat16, of which more fits and which is computed faster: all rows are read once for
 * each block, so the less deep the wider, as long as each of so many threads gets one. */
static int64_t block_columns(const struct sum *sums, int count, int64_t threads) {
    int64_t deepest = 1, columns = 0;
    for (int i = 0; i < count; i++) {
        columns += sums[i].columns;
        if (rounded_depth(sums + i) > deepest) deepest = rounded_depth(sums + i);
    }
    int64_t wide = least(least(BF16_ROOM / deepest, columns / threads), BF16_MOST) / BLOCK * BLOCK;
    return wide < BF16_BLOCK ? BF16_BLOCK : wide;
}

int add_up(struct sum *sums, int count, int64_t rows) {
    struct gemm of = {.rows = rows, .wide = BLOCK, .chunk = CHUNK, .bf16 = sums[0].bf16, .ranges = 1};
    if (of.bf16) {
        of.ranges = ranges_of(sums, count, rows);
        of.wide = block_columns(sums, count, pet_threads() / of.ranges), of.chunk = BF16_CHUNK;
        if (round_lefts(sums, count, rows)) return 1;
    }
    for (int i = 0; i < count; i++) of.blocks += (sums[i].columns + of.wide - 1) / of.wide;
    if (!(of.block = pet_scratch(0, of.ranges * of.blocks * (int64_t)sizeof *of.block))) return 1;
    struct block *block = of.block;
    for (int64_t range = 0; range < of.ranges; range++)
        for (int i = 0; i < count; i++) {
            int64_t room = of.wide * copied_depth(sums + i);
            if (room > of.room) of.room = room;
            for (int64_t column = 0; column < sums[i].columns; column += of.wide)
                *block++ = (struct block){.of = sums + i, .column = column, .next_row = range_begin(&of, range),
                                          .last_row = range_begin(&of, range + 1)};
        }
    pet_parallel(take_blocks, &of, pet_threads(), 1);
    return of.failed;
}
