/* Tiles (AMX) in software, to be included before the kernels: what is written for them runs where no processor has them. */
#include <immintrin.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

#define __AMX_BF16__ 1
#define syscall(...) 0 /* the system lets the process use them */
#undef _tile_loadconfig
#undef _tile_release
#undef _tile_zero
#undef _tile_loadd
#undef _tile_stream_loadd
#undef _tile_stored
#undef _tile_dpbf16ps
#define _tile_loadconfig(layout) (tiles_begun = 1, (void)(layout))
#define _tile_release() (tiles_begun = 0)
#define _tile_zero(tile) memset(tiles_of[tile], tiles_begun ? 0 : 0xff, sizeof tiles_of[tile])
#define _tile_loadd(tile, from, row) move_tile(tile, (char *)(from), row, 0)
#define _tile_stream_loadd(tile, from, row) move_tile(tile, (char *)(from), row, 0)
#define _tile_stored(tile, to, row) move_tile(tile, (char *)(to), row, 1)
#define _tile_dpbf16ps(sums, left, right) multiply_tiles(sums, left, right)

enum { ROWS_OF_TILE = 16, PAIRS_OF_ROW = 16 };
static _Thread_local uint32_t tiles_of[8][ROWS_OF_TILE][PAIRS_OF_ROW];
static _Thread_local int tiles_begun; /* else what a tile holds is no number */

static inline void move_tile(int tile, char *memory, int64_t row, int out) {
    for (int i = 0; i < ROWS_OF_TILE; i++) {
        void *there = memory + i * row, *here = tiles_of[tile][i];
        memcpy(out ? there : here, out ? here : there, sizeof tiles_of[tile][i]);
    }
}

static inline float number_of(uint32_t bits) {
    float number;
    memcpy(&number, &bits, sizeof number);
    return number;
}

static inline void multiply_tiles(int sums, int left, int right) {
    for (int i = 0; i < ROWS_OF_TILE; i++)
        for (int j = 0; j < PAIRS_OF_ROW; j++) {
            float sum = number_of(tiles_of[sums][i][j]);
            for (int k = 0; k < PAIRS_OF_ROW; k++) {
                uint32_t a = tiles_of[left][i][k], b = tiles_of[right][k][j];
                sum += number_of(a << 16) * number_of(b << 16);
                sum += number_of(a & 0xffff0000u) * number_of(b & 0xffff0000u);
            }
            memcpy(&tiles_of[sums][i][j], &sum, sizeof sum);
        }
}
