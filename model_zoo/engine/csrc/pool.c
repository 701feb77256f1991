#define _GNU_SOURCE
#include "pool.h"

#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <unistd.h>

#ifdef __x86_64__
#define PAUSE() __builtin_ia32_pause()
#else
#define PAUSE() sched_yield()
#endif

/* How a thread rounds, and whether it takes the smallest numbers for zeros, which MindSpore's threads do and Python's do
 * not. All threads compute a piece of work as the one that gave it does, whichever thread started them. */
#if defined(__x86_64__)
enum { FLAGS = 0x3f }; /* what has happened, no mode */
static uint64_t float_mode(void) { return __builtin_ia32_stmxcsr() & ~FLAGS; }
static void set_float_mode(uint64_t mode) { __builtin_ia32_ldmxcsr((unsigned)mode); }
#elif defined(__aarch64__)
static uint64_t float_mode(void) {
    uint64_t mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void set_float_mode(uint64_t mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#else
static uint64_t float_mode(void) { return 0; }
static void set_float_mode(uint64_t mode) { (void)mode; }
#endif

enum { SPINS = 4000 };

/* The one piece of work that is going on. Each thread begins with pieces of its own, the same share of every work, since what
 * it has just written is near to it, and then takes those of others. `next` holds the work's number in the upper half and the
 * share's next piece in the lower, so that a thread which comes late finds another number there and takes nothing. */
static struct {
    _Atomic uint64_t next;
    char apart[120]; /* in lines of the caches of their own */
} shares[MOST_THREADS];
static _Atomic int64_t finished, total, grain_size;
static _Atomic(pet_work) current_work;
static _Atomic(void *) current_arguments;
static _Atomic uint64_t current_mode;
static _Atomic int sleeping;

static pthread_mutex_t owner = PTHREAD_MUTEX_INITIALIZER, sleep_lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t wake = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int threads = 1;

/* Where a thread's share of some pieces begins, by so many threads and in whole grains. */
static int64_t share_begin(int64_t all, int64_t grain, int which) {
    return least(all, ((all + grain - 1) / grain * which + threads - 1) / threads * grain);
}

/* Takes pieces of a share of the work of this number until there are none. Gives whether there is this work still. */
static int take_share(uint32_t number, int which) {
    for (;;) {
        uint64_t seen = atomic_load(&shares[which].next);
        int64_t grain = atomic_load(&grain_size), first = (int64_t)(uint32_t)seen;
        pet_work work = atomic_load(&current_work);
        void *arguments = atomic_load(&current_arguments);
        uint64_t mode = atomic_load(&current_mode);
        int64_t all = atomic_load(&total); /* the last: it is 0 while the others are those of the next work */
        if ((uint32_t)(seen >> 32) != number) return 0;
        if (all == 0) { /* about to begin */
            PAUSE();
            continue;
        }
        int64_t end = share_begin(all, grain, which + 1), last = first + grain < end ? first + grain : end;
        if (first >= end) return 1;
        /* what was read above belongs to this number if the exchange succeeds: it changes only when all is finished */
        if (!atomic_compare_exchange_weak(&shares[which].next, &seen, ((uint64_t)number << 32) | (uint64_t)last)) continue;
        set_float_mode(mode);
        work(arguments, first, last);
        atomic_fetch_add(&finished, last - first);
    }
}

/* Takes pieces of the work of this number until there are none, those of its own share first. */
static void take_part(uint32_t number, int own) {
    for (int i = 0; i < threads && take_share(number, (own + i) % threads); i++);
}

static uint32_t number_now(int own) { return (uint32_t)(atomic_load(&shares[own].next) >> 32); }

static void *worker(void *index) {
    int own = (int)(intptr_t)index;
    uint32_t done = 0;
    for (;;) {
        uint32_t number = number_now(own);
        for (int i = 0; i < SPINS && number == done; i++) {
            PAUSE();
            number = number_now(own);
        }
        if (number == done) {
            pthread_mutex_lock(&sleep_lock);
            atomic_fetch_add(&sleeping, 1);
            while ((number = number_now(own)) == done) pthread_cond_wait(&wake, &sleep_lock);
            atomic_fetch_sub(&sleeping, 1);
            pthread_mutex_unlock(&sleep_lock);
        }
        done = number;
        take_part(number, own);
    }
    return NULL;
}

static int asked_threads;

void pet_use_threads(int count) { asked_threads = count; }

static int wanted_threads(void) {
    /* not OMP_NUM_THREADS: MindSpore sets that to 1 for itself */
    const char *text = getenv("PET_NATIVE_THREADS");
    int wanted = asked_threads > 0 ? asked_threads : text ? atoi(text) : 1;
    return wanted < 1 ? 1 : wanted > MOST_THREADS ? MOST_THREADS : wanted;
}

/* A child process has none of the threads, but what they held and waited for: it begins anew. */
static void begin_anew(void) {
    owner = sleep_lock = (pthread_mutex_t)PTHREAD_MUTEX_INITIALIZER;
    wake = (pthread_cond_t)PTHREAD_COND_INITIALIZER;
    once = (pthread_once_t)PTHREAD_ONCE_INIT;
    for (int i = 0; i < MOST_THREADS; i++) atomic_store(&shares[i].next, 0);
    atomic_store(&sleeping, 0);
    threads = 1;
}

static void start_threads(void) {
    int wanted = wanted_threads();
    static int child_known;
    if (!child_known) child_known = pthread_atfork(NULL, NULL, begin_anew) == 0;
#ifdef __linux__
    /* of the process: the calling thread is one of MindSpore's, which may be bound to a core */
    cpu_set_t allowed;
    int known = sched_getaffinity(getpid(), sizeof allowed, &allowed) == 0;
#endif
    for (int i = 1; i < wanted; i++) {
        pthread_t thread;
        if (pthread_create(&thread, NULL, worker, (void *)(intptr_t)i)) break;
#ifdef __linux__
        if (known) pthread_setaffinity_np(thread, sizeof allowed, &allowed);
#endif
        pthread_detach(thread);
        threads++;
    }
}

int pet_threads(void) {
    pthread_once(&once, start_threads);
    return threads;
}

void pet_parallel(pet_work work, void *arguments, int64_t count, int64_t grain) {
    if (grain < 1) grain = 1;
    /* pieces are counted with 32 bits */
    if (count <= grain || count > UINT32_MAX - grain || pet_threads() == 1 || pthread_mutex_trylock(&owner)) {
        work(arguments, 0, count);
        return;
    }
    uint32_t number = number_now(0) + 1;
    atomic_store(&finished, 0);
    atomic_store(&total, 0); /* nobody takes a piece before everything is in place */
    atomic_store(&grain_size, grain);
    atomic_store(&current_work, work);
    atomic_store(&current_arguments, arguments);
    atomic_store(&current_mode, float_mode());
    for (int i = 0; i < threads; i++)
        atomic_store(&shares[i].next, (uint64_t)number << 32 | (uint64_t)share_begin(count, grain, i));
    atomic_store(&total, count);
    if (atomic_load(&sleeping)) {
        pthread_mutex_lock(&sleep_lock);
        pthread_cond_broadcast(&wake);
        pthread_mutex_unlock(&sleep_lock);
    }
    take_part(number, 0);
    for (int spins = 0; atomic_load(&finished) < count; spins++) {
        if (spins < SPINS)
            PAUSE();
        else
            sched_yield();
    }
    pthread_mutex_unlock(&owner);
}

struct slot {
    void *memory;
    int64_t bytes;
};
static _Thread_local struct slot slots[PET_SLOTS];
static _Thread_local int known_here;
static pthread_key_t ending;
static pthread_once_t ending_once = PTHREAD_ONCE_INIT;
static int ending_known;

/* When a thread ends, so does its memory. */
static void free_slots(void *mine) {
    struct slot *all = mine;
    for (int slot = 0; slot < PET_SLOTS; slot++) {
        free(all[slot].memory);
        all[slot] = (struct slot){0};
    }
}

static void make_key(void) { ending_known = pthread_key_create(&ending, free_slots) == 0; }

void *pet_scratch(int slot, int64_t bytes) {
    if (slots[slot].bytes < bytes) {
        pthread_once(&ending_once, make_key);
        if (ending_known && !known_here) known_here = pthread_setspecific(ending, slots) == 0;
        free(slots[slot].memory);
        slots[slot].memory = aligned_alloc(64, (size_t)((bytes + 63) / 64 * 64));
        slots[slot].bytes = slots[slot].memory ? bytes : 0;
    }
    return slots[slot].memory;
}
