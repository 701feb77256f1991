/* Sums of products of factors that are rounded to bfloat16 where they are copied. */
#include "rounded.h"

#include "pool.h"

enum {
    STRETCH = 2 * BF16_DEPTH, /* rows of the right factor that are copied together, for all panels of a block */
    DEEP = 512,               /* of the depth, so that BF16_ROWS rows stay in the first cache while they meet a block */
    MEETING = 2048,           /* numbers from one to the next that is kept in the same place of a first cache */
    FLAT = 64,                /* of the depth, which are multiplied with what comes before, lest they cost a pass over the sums */
    MOST_FACTORS = MOST_TERMS + MOST_DEPTH / DEEP, /* each term of a sum, and what is cut */
};

int64_t rounded_depth(const struct sum *of) {
    int64_t depth = 0;
    for (const struct part *part = of->parts; part < of->parts + of->count; part++) depth += up_to_pairs(part->depth);
    return depth;
}

/* Of some rows BF16_DEPTH numbers each in bfloat16, of which `count` are there, zeros behind them. Rows `ahead` are fetched. */
INLINE void round_stored(enum storage storage, struct matrix of, int64_t row, int64_t column, int64_t rows, int64_t count,
                         int64_t ahead, uint16_t *to) {
    for (int64_t last = row + rows; row < last; row++) {
        fetch_stored(storage, of, row + ahead, column);
        for (int64_t i = 0; i < BF16_DEPTH; i += LANES, to += LANES) {
            halves bits = to_bfloat16(i + LANES <= count ? load_stored(storage, of, row, column + i)
                                      : i < count        ? load_stored_some(storage, of, row, column + i, count - i)
                                                         : (floats){0});
            memcpy(to, &bits, sizeof bits);
        }
    }
}

/* Some of a part's depth, for the columns of a panel: of numbers that are read where they lie, or that are rounded first, a square
 * at a time. */
static void copy_some_pairs(const struct part *part, int64_t k, int64_t deep, int64_t column, int64_t columns, int64_t panel,
                            uint16_t *to) {
    struct matrix b = part->b;
    int turned = part->b_turned, as_it_is = b.storage <= BFLOAT16, by_tables = aligned(b) && part->b_first % BF16_DEPTH == 0;
    int64_t padded = up_to_pairs(part->depth), wide = turned ? BF16_COLUMNS : 2 * BF16_COLUMNS;
    int64_t ahead = turned ? BF16_COLUMNS : STRETCH;
    for (int64_t j = 0; j < panel; j += wide)
        for (int64_t i = k; i < k + deep; i += BF16_DEPTH) {
            uint16_t rounded[BF16_DEPTH * BF16_DEPTH], *there = to + j * padded + i * BF16_COLUMNS;
            int64_t some = least(columns - j, wide), left = least(part->depth - i, BF16_DEPTH), of_row = turned ? left : some;
            int64_t row = turned ? column + j : part->b_first + i, rows = of_row > 0 ? turned ? some : left : 0;
            int64_t first = turned ? part->b_first + i : column + j;
            if (by_tables)
                bf16_codes(&b, row * b.columns + first, rows, rounded);
            else if (!as_it_is)
                BY_STORAGE(b.storage, round_stored, b, row, first, rows, of_row, ahead, rounded)
            struct numbers from = as_it_is ? (struct numbers){(void *)b.data, b.storage == BFLOAT16} : (struct numbers){rounded, 1};
            int64_t at = as_it_is ? row * b.columns + first : 0, apart = as_it_is ? b.columns : BF16_DEPTH;
            if (turned)
                bf16_turned_pairs(from, at, apart, left, some, as_it_is ? ahead : 0, there);
            else
                bf16_pairs(from, at, apart, left, some, as_it_is ? ahead : 0, there, padded * BF16_COLUMNS);
        }
}

void copy_pairs(const struct sum *of, int64_t column, int64_t columns, uint16_t *to) {
    int64_t whole = rounded_depth(of);
    for (const struct part *part = of->parts; part < of->parts + of->count; to += of->panel * up_to_pairs(part++->depth)) {
        int64_t padded = up_to_pairs(part->depth), stretch = part->b_turned ? padded : STRETCH;
        for (int64_t k = 0; k < padded; k += stretch)
            for (int64_t j = 0; j < columns; j += of->panel)
                copy_some_pairs(part, k, least(padded - k, stretch), column + j, least(columns - j, of->panel), of->panel,
                                to + j * whole);
    }
}

/* Whether a left factor is read where it lies: vectors take rows as they are, unless these meet in the first cache. (Tiles
 * read strips: see BF16_STRIP.) */
static int in_place(const struct part *part) {
    return part->a.low && part->depth % BF16_DEPTH == 0 && part->a_row % MEETING != 0 && pet_bf16() == BF16_VECTORS;
}

const uint16_t *turned_strip(const struct part *part, int64_t row, int64_t rows, uint16_t *to) {
    for (int64_t k = 0; k < part->depth; k += BF16_DEPTH)
        bf16_columns(part->a, k * part->a_row + row, part->a_row, least(part->depth - k, BF16_DEPTH), rows, to + k * BF16_ROWS);
    return to;
}

void some_rounded_rows(const struct sum *of, int64_t first, int64_t last, int64_t row, int64_t rows, const uint16_t *copied,
                       float *room) {
    int64_t whole = rounded_depth(of), above = 0, at = row * of->columns + first, c_row = of->c.low ? last - first : of->columns;
    int add = of->add;
    float *c = room_for(of->c, at, room);
    if (add && (of->c.low || of->before.at != of->c.at))
        for (int64_t i = 0; i < rows; i++)
            copy_numbers(of->before, at + i * of->columns, (struct numbers){c}, i * c_row, last - first);
    struct bf16_factors factors[MOST_FACTORS];
    int count = 0;
    for (const struct part *from = of->parts; from < of->parts + of->count; from++) {
        int64_t padded = up_to_pairs(from->depth), along = BF16_ROWS; /* from one of the depth to the next */
        const uint16_t *a;
        struct bf16_steps steps = bf16_by_rows;
        if (from->a_turned)
            a = turned_strip(from, row, rows, (uint16_t *)(room + BF16_ROWS * (last - first))), steps = bf16_turned();
        else if (in_place(from))
            a = place_of(from->a, row * from->a_row), steps.row = from->a_row, along = 1;
        else
            a = from->rounded + row * padded;
        for (int64_t k = 0; k < padded; k += DEEP)
            factors[count++] = (struct bf16_factors){a + k * along, steps.row, steps.pair, BF16_DEPTH * along,
                                                     copied + above * of->panel + k * BF16_COLUMNS, padded * BF16_COLUMNS,
                                                     least(from->depth - k, DEEP)};
        above += padded;
    }
    for (int first_of = 0, end; first_of < count; first_of = end, add = 1) {
        for (end = first_of + 1; end < count && factors[end].depth <= FLAT; end++);
        for (int64_t column = first; column < last; column += of->panel) {
            struct bf16_part part = {.factors = factors + first_of, .count = end - first_of, .b_first = (column - first) * whole,
                                     .c = c + column - first, .c_row = c_row, .add = add,
                                     .low = of->c.low && end == count ? place_of(of->c, at + column - first) : NULL,
                                     .low_row = of->columns};
            bf16_product(rows, least(last - column, of->panel), &part);
        }
    }
}

/* Left factors that are rounded to bfloat16, each once whatever number of sums reads it. */
struct lefts {
    struct part *parts[MOST_PRODUCTS * MOST_TERMS];
    int count;
    int64_t rows;
};

static void round_strips(void *arguments, int64_t first, int64_t last) {
    struct lefts *of = arguments;
    for (int i = 0; i < of->count; i++) {
        const struct part *part = of->parts[i];
        for (int64_t row = first * BF16_ROWS; row < least(last * BF16_ROWS, of->rows); row += BF16_ROWS) {
            uint16_t *to = (uint16_t *)part->rounded + row * up_to_pairs(part->depth);
            bf16_rows(part->a, row * part->a_row, part->a_row, least(of->rows - row, BF16_ROWS), part->depth, to);
        }
    }
}

int round_lefts(struct sum *sums, int count, int64_t rows) {
    struct lefts of = {.rows = rows};
    int64_t width = 0, strips = (rows + BF16_ROWS - 1) / BF16_ROWS;
    for (int i = 0; i < count; i++)
        for (struct part *part = sums[i].parts; part < sums[i].parts + sums[i].count; part++) {
            int known = 0;
            if (part->rounded || part->a_turned || in_place(part)) continue;
            while (known < of.count && (of.parts[known]->a.at != part->a.at || of.parts[known]->depth != part->depth)) known++;
            if (known == of.count) of.parts[of.count++] = part, width += up_to_pairs(part->depth);
        }
    if (of.count == 0) return 0;
    uint16_t *rounded = pet_scratch(4, strips * BF16_ROWS * width * 2);
    if (!rounded) return 1;
    for (int known = 0; known < of.count; known++) {
        of.parts[known]->rounded = rounded;
        rounded += strips * BF16_ROWS * up_to_pairs(of.parts[known]->depth);
    }
    for (int i = 0; i < count; i++)
        for (struct part *part = sums[i].parts; part < sums[i].parts + sums[i].count; part++)
            for (int known = 0; known < of.count; known++)
                if (of.parts[known]->a.at == part->a.at && of.parts[known]->depth == part->depth)
                    part->rounded = of.parts[known]->rounded;
    pet_parallel(round_strips, &of, strips, rows_at_once(BF16_ROWS * width));
    return 0;
}

PET_KERNEL(product_of_rows_bf16) { return product_kernel(params, shapes, dtypes, 2, 1, IN_BF16); }

PET_KERNEL(plain_product_bf16) { return product_kernel(params, shapes, dtypes, 2, 0, IN_BF16); }

PET_KERNEL(product_of_rows_bf16_added) { return product_kernel(params, shapes, dtypes, 2, 1, IN_BF16 | ADDS); }

PET_KERNEL(plain_product_bf16_added) { return product_kernel(params, shapes, dtypes, 2, 0, IN_BF16 | ADDS); }

PET_KERNEL(product_of_columns_bf16) { return columns_kernel(params, shapes, dtypes, IN_BF16); }
