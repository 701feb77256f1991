/* The pool, whose threads are late: between two of its steps any of them may wait, as on a busy machine. */
#include <sched.h>
#include <stdatomic.h>
#include <string.h>

static _Thread_local unsigned numbers;

static void wait_perhaps(void) {
    numbers = numbers * 1664525u + 1013904223u;
    if (numbers >> 28 == 0) sched_yield();
}

#undef atomic_load
#undef atomic_store
#define atomic_load(from) \
    ({ __typeof__(atomic_load_explicit(from, memory_order_seq_cst)) seen = atomic_load_explicit(from, memory_order_seq_cst); wait_perhaps(); seen; })
#define atomic_store(to, value) (wait_perhaps(), atomic_store_explicit(to, value, memory_order_seq_cst))

#include "pool.c"

enum { MOST = 2048 };
static atomic_int times[MOST];

static void count(void *arguments, int64_t first, int64_t last) {
    (void)arguments;
    for (; first < last; first++) atomic_fetch_add(times + first, 1);
}

/* Works of unlike sizes, one at once behind the other → of how many a piece was not computed just once. */
int wrong_works(int works) {
    int wrong = 0;
    for (int work = 0; work < works; work++) {
        unsigned size = (unsigned)work * 2654435769u >> 8, pieces = work % 2 ? 2 + size % 40 : 2 + size % 2000;
        memset(times, 0, sizeof times);
        pet_parallel(count, NULL, pieces, work % 2 ? 1 : 1 + size % 300);
        for (unsigned i = 0, right = 1; i < MOST && right; i++) wrong += !(right = times[i] == (i < pieces));
    }
    return wrong;
}
