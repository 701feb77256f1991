/* The inner loops of products of bfloat16 factors: on tiles (AMX) where the processor has them and the system lets a process
 * use them, else on vectors (vdpbf16ps). Sums are float32. Intrinsics: no compiler finds these instructions by itself. */
#include "bf16.h"

#include <string.h>

#ifdef __AVX512BF16__
#include <immintrin.h>
#include <pthread.h>
#include <unistd.h>
#ifdef __linux__
#include <sys/syscall.h>
#endif

enum { TALL = 12, BROAD = 2, TILE = 16 };

static int kind = BF16_VECTORS;

static void choose_kind(void) {
#if defined(__AMX_BF16__) && defined(__linux__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 };
    if (syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0) kind = BF16_TILES;
#endif
}

int pet_bf16(void) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, choose_kind);
    return kind;
}

/* From the first sixteen numbers of two vectors of thirty-two to pairs of one of each. */
static const uint16_t joined[32] = {0, 32, 1, 33, 2,  34, 3,  35, 4,  36, 5,  37, 6,  38, 7,  39,
                                    8, 40, 9, 41, 10, 42, 11, 43, 12, 44, 13, 45, 14, 46, 15, 47};

/* Thirty-two numbers in a row from number `at` on, those of the mask; zeros for the others. */
static inline __m512i some_of(struct numbers from, int64_t at, uint32_t some) {
    const float *wide = (const float *)from.at + at;
    if (from.low) return _mm512_maskz_loadu_epi16(some, (const uint16_t *)from.at + at);
    __m512 low = _mm512_maskz_loadu_ps((__mmask16)some, wide), high = _mm512_maskz_loadu_ps((__mmask16)(some >> 16), wide + 16);
    return (__m512i)_mm512_cvtne2ps_pbh(high, low);
}

/* The mask of the first so many of them. */
static inline uint32_t first_of(int64_t count) { return count >= 32 ? ~0u : count > 0 ? (1u << count) - 1 : 0; }

void bf16_rows(struct numbers from, int64_t first, int64_t row, int64_t rows, int64_t depth, uint16_t *to) {
    for (int64_t k = 0; k < depth; k += BF16_DEPTH, to += BF16_STRIP) {
        for (int64_t i = 0; i < rows; i++)
            _mm512_storeu_si512(to + i * BF16_DEPTH, some_of(from, first + i * row + k, first_of(depth - k)));
        memset(to + rows * BF16_DEPTH, 0, (size_t)((BF16_ROWS - rows) * BF16_DEPTH) * sizeof *to);
    }
}

/* Fetches what is read soon, a little between what is read now: processors do not guess it where it is a piece of each row. */
static inline void fetch(struct numbers from, int64_t at) { __builtin_prefetch(place_of(from, at)); }

/* Pairs of up to thirty-two columns, of which the upper half lies `apart` behind the lower; pairs are `step` apart. */
static inline void lay_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead,
                             uint16_t *to, int64_t apart, int64_t step) {
    uint32_t some = first_of(columns);
    __m512i lower = _mm512_loadu_si512(joined), upper = _mm512_add_epi16(lower, _mm512_set1_epi16(BF16_COLUMNS));
    for (int64_t k = 0; k < BF16_DEPTH; k += 2, first += 2 * row, to += step) {
        fetch(from, first + ahead * row);
        fetch(from, first + (ahead + 1) * row);
        __m512i one = some_of(from, first, k < depth ? some : 0), other = some_of(from, first + row, k + 1 < depth ? some : 0);
        _mm512_storeu_si512(to, _mm512_permutex2var_epi16(one, lower, other));
        if (columns > BF16_COLUMNS) _mm512_storeu_si512(to + apart, _mm512_permutex2var_epi16(one, upper, other));
    }
}

void bf16_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to,
                int64_t apart) {
    lay_pairs(from, first, row, depth, columns, ahead, to, apart, 2 * BF16_COLUMNS);
}

void bf16_codes(const struct matrix *of, int64_t first, int64_t rows, uint16_t *to) {
    floats map = load(of->map);
    for (int64_t i = 0; i < rows; i++, first += of->columns, to += BF16_DEPTH) {
        int64_t block = first >> of->shift;
        floats values = (map + (of->zeros ? 8.0f - of->zeros[block] : 0.0f)) * factor_of(*of, block);
        /* the table twice, since places have five bits */
        __m512i table = _mm512_broadcast_i64x4((__m256i)_mm512_cvtneps_pbh((__m512)values));
        __m512i bytes = _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)((const uint8_t *)of->data + first / 2)));
        __m512i places = _mm512_or_si512(_mm512_srli_epi32(bytes, 4), _mm512_slli_epi32(bytes, 16));
        _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, table));
    }
}

/* Pairs are turned as if each were one number. */
static inline void turn_pairs(floats square[LANES], uint16_t *to) {
    turn_square(square);
    for (int64_t i = 0; i < LANES; i++) store((float *)to + i * LANES, square[i]);
}

struct bf16_steps bf16_turned(void) {
    return pet_bf16() == BF16_TILES ? bf16_by_rows : (struct bf16_steps){2, 2 * BF16_ROWS};
}

void bf16_columns(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, uint16_t *to) {
    uint16_t pairs[2 * BF16_DEPTH * BF16_COLUMNS];
    int tiles = kind == BF16_TILES;
    lay_pairs(from, first, row, depth, columns, BF16_DEPTH, tiles ? pairs : to, 2 * BF16_COLUMNS, 2 * BF16_ROWS);
    for (int64_t half = 0; tiles && half * BF16_COLUMNS < columns; half++) {
        floats square[LANES];
        for (int64_t i = 0; i < LANES; i++) square[i] = load((float *)(pairs + i * 2 * BF16_ROWS + half * 2 * BF16_COLUMNS));
        turn_pairs(square, to + half * BF16_COLUMNS * BF16_DEPTH);
    }
}

void bf16_turned_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to) {
    floats square[LANES];
    for (int64_t i = 0; i < BF16_COLUMNS; i++) fetch(from, first + (i + ahead) * row);
    for (int64_t i = 0; i < BF16_COLUMNS; i++)
        square[i] = (floats)some_of(from, first + i * row, i < columns ? first_of(depth) : 0);
    turn_pairs(square, to);
}

/* `tall` rows by `wide` vectors of columns, from the j-th on, the sums in registers. The last vector may be cut off: `last`
 * says where. */
static inline __attribute__((always_inline)) void vectors(int tall, int wide, __mmask16 last, int64_t i, int64_t j,
                                                          const struct bf16_part *of) {
    __m512 sums[TALL][BROAD];
    float *c = of->c + i * of->c_row + j;
#pragma GCC unroll 16
    for (int row = 0; row < tall; row++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++)
            sums[row][v] = of->add ? _mm512_maskz_loadu_ps(v == wide - 1 ? last : 0xffff, c + row * of->c_row + v * BF16_COLUMNS)
                                   : _mm512_setzero_ps();
    for (const struct bf16_factors *from = of->factors; from < of->factors + of->count; from++) {
        const uint16_t *a = from->a + i * from->a_row, *b = from->b + of->b_first + j / BF16_COLUMNS * from->b_column;
        int64_t a_row = from->a_row, a_pair = from->a_pair, b_column = from->b_column;
        int64_t behind = from->a_block - BF16_DEPTH / 2 * a_pair; /* from the end of a block to the next */
        for (int64_t left = from->depth; left > 0; left -= BF16_DEPTH, a += behind)
#pragma GCC unroll 2
            for (int pair = 0; pair < (left < BF16_DEPTH ? left : BF16_DEPTH); pair += 2, a += a_pair, b += 2 * BF16_COLUMNS) {
                __m512bh right[BROAD];
#pragma GCC unroll 8
                for (int v = 0; v < wide; v++) right[v] = (__m512bh)_mm512_loadu_si512(b + v * b_column);
#pragma GCC unroll 16
                for (int row = 0; row < tall; row++) {
                    int two;
                    memcpy(&two, a + row * a_row, sizeof two);
                    __m512bh copies = (__m512bh)_mm512_set1_epi32(two);
#pragma GCC unroll 8
                    for (int v = 0; v < wide; v++) sums[row][v] = _mm512_dpbf16_ps(sums[row][v], copies, right[v]);
                }
            }
    }
    uint16_t *low = of->low + i * of->low_row + j;
#pragma GCC unroll 16
    for (int row = 0; row < tall; row++)
#pragma GCC unroll 8
        for (int v = 0; v < wide; v++) {
            __mmask16 some = v == wide - 1 ? last : 0xffff;
            if (of->low)
                _mm256_mask_storeu_epi16(low + row * of->low_row + v * BF16_COLUMNS, some, (__m256i)_mm512_cvtneps_pbh(sums[row][v]));
            else
                _mm512_mask_storeu_ps(c + row * of->c_row + v * BF16_COLUMNS, some, sums[row][v]);
        }
}

static void by_vectors(int64_t rows, int64_t columns, const struct bf16_part *of) {
    for (int64_t j = 0; j < columns; j += BROAD * BF16_COLUMNS) {
        int64_t some = columns - j < BROAD * BF16_COLUMNS ? columns - j : BROAD * BF16_COLUMNS;
        int64_t wide = (some + BF16_COLUMNS - 1) / BF16_COLUMNS, rest = some - (wide - 1) * BF16_COLUMNS, i = 0;
        __mmask16 last = (__mmask16)((1u << rest) - 1);
#define SOME(tall, wide) \
    for (; i + tall <= rows; i += tall) vectors(tall, wide, last, i, j, of)
#define ALL(wide)         \
    do {                  \
        SOME(TALL, wide); \
        SOME(8, wide);    \
        SOME(4, wide);    \
        SOME(1, wide);    \
    } while (0)
        if (wide == 1)
            ALL(1);
        else
            ALL(BROAD);
#undef ALL
#undef SOME
    }
}

#ifdef __AMX_BF16__
void bf16_begin(void) {
    struct {
        uint8_t palette, start, reserved[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } layout = {.palette = 1};
    for (int i = 0; i < 8; i++) layout.bytes[i] = 64, layout.rows[i] = TILE;
    if (pet_bf16() == BF16_TILES) _tile_loadconfig(&layout);
}

void bf16_end(void) {
    if (kind == BF16_TILES) _tile_release(); /* or the system saves and restores them whenever the thread is stopped */
}

/* 32 rows by 32 columns, or by the first 16 of them: all of these are there in c. */
static inline __attribute__((always_inline)) void tiles(int wide, float *c, int64_t c_row, int64_t j, const struct bf16_part *of) {
    const int bytes = 4, right = 2 * BF16_COLUMNS * 2; /* of a pair's line */
    if (of->add) {
        _tile_loadd(0, c, c_row * bytes);
        _tile_loadd(2, c + TILE * c_row, c_row * bytes);
        if (wide == 2) _tile_loadd(1, c + TILE, c_row * bytes);
        if (wide == 2) _tile_loadd(3, c + TILE * c_row + TILE, c_row * bytes);
    } else {
        _tile_zero(0);
        _tile_zero(1);
        _tile_zero(2);
        _tile_zero(3);
    }
    for (const struct bf16_factors *from = of->factors; from < of->factors + of->count; from++) {
        const uint16_t *a = from->a, *b = from->b + of->b_first + j / TILE * from->b_column;
        for (int64_t k = 0; k < from->depth; k += BF16_DEPTH, a += from->a_block, b += BF16_DEPTH * BF16_COLUMNS) {
            _tile_stream_loadd(6, b, right); /* lest it drives a out of the first cache */
            _tile_loadd(4, a, from->a_row * 2);
            _tile_dpbf16ps(0, 4, 6);
            _tile_loadd(5, a + TILE * from->a_row, from->a_row * 2);
            _tile_dpbf16ps(2, 5, 6);
            if (wide == 2) {
                _tile_stream_loadd(7, b + from->b_column, right);
                _tile_dpbf16ps(1, 4, 7);
                _tile_dpbf16ps(3, 5, 7);
            }
        }
    }
    _tile_stored(0, c, c_row * bytes);
    _tile_stored(2, c + TILE * c_row, c_row * bytes);
    if (wide == 2) _tile_stored(1, c + TILE, c_row * bytes);
    if (wide == 2) _tile_stored(3, c + TILE * c_row + TILE, c_row * bytes);
}

static void copy_rows(const float *from, int64_t from_row, float *to, int64_t to_row, int64_t rows, int64_t columns) {
    for (int64_t i = 0; i < rows; i++) memcpy(to + i * to_row, from + i * from_row, (size_t)columns * sizeof(float));
}

static void by_tiles(int64_t rows, int64_t columns, const struct bf16_part *of) {
    for (int64_t j = 0; j < columns; j += 2 * TILE) {
        float rest[2 * TILE * 2 * TILE], *c = of->c + j;
        int64_t some = columns - j < 2 * TILE ? columns - j : 2 * TILE, wide = some <= TILE ? 1 : 2;
        int whole = rows == 2 * TILE && some == wide * TILE;
        float *to = whole ? c : rest;
        int64_t to_row = whole ? of->c_row : 2 * TILE;
        if (of->add && !whole) memset(rest, 0, sizeof rest);
        if (of->add && !whole) copy_rows(c, of->c_row, rest, to_row, rows, some);
        if (wide == 2)
            tiles(2, to, to_row, j, of);
        else
            tiles(1, to, to_row, j, of);
        for (int64_t i = 0; i < rows && of->low; i++)
            put_back((struct numbers){of->low, 1}, i * of->low_row + j, some, to + i * to_row);
        if (!whole && !of->low) copy_rows(rest, to_row, c, of->c_row, rows, some);
    }
}
#else
void bf16_begin(void) {}
void bf16_end(void) {}
#define by_tiles by_vectors
#endif

void bf16_product(int64_t rows, int64_t columns, const struct bf16_part *of) {
    (kind == BF16_TILES ? by_tiles : by_vectors)(rows, columns, of);
}

#else
int pet_bf16(void) { return 0; }
void bf16_begin(void) {}
void bf16_end(void) {}
void bf16_rows(struct numbers from, int64_t first, int64_t row, int64_t rows, int64_t depth, uint16_t *to) {}
void bf16_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to, int64_t apart) {}
void bf16_columns(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, uint16_t *to) {}
void bf16_codes(const struct matrix *of, int64_t first, int64_t rows, uint16_t *to) {}
void bf16_turned_pairs(struct numbers from, int64_t first, int64_t row, int64_t depth, int64_t columns, int64_t ahead, uint16_t *to) {}
struct bf16_steps bf16_turned(void) { return (struct bf16_steps){0, 0}; }
void bf16_product(int64_t rows, int64_t columns, const struct bf16_part *of) {}
#endif
