/* A few threads that share the pieces of one kernel's work. */
#ifndef PET_POOL_H
#define PET_POOL_H

#include <stdint.h>

/* Computes pieces first … last-1 of a kernel's work. */
typedef void (*pet_work)(void *arguments, int64_t first, int64_t last);

/* Calls `work` on all of `count` pieces, `grain` at a time, on all threads. Called from within a running kernel of
 * another thread it computes everything on the calling thread. */
void pet_parallel(pet_work work, void *arguments, int64_t count, int64_t grain);

/* Says how many threads there are to be, before the first kernel runs; otherwise PET_NATIVE_THREADS does, or it is one. */
void pet_use_threads(int count);

/* How many threads there are, the caller included. */
enum { MOST_THREADS = 64 };
int pet_threads(void);

/* Memory of the calling thread that lasts until its next call with the same slot; NULL when there is none. */
enum { PET_SLOTS = 6 };
void *pet_scratch(int slot, int64_t bytes);

static inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* So many rows of this width that a piece is some 32 KB. */
static inline int64_t rows_at_once(int64_t width) { return 8192 / (width + 1) + 1; }

/* What MindSpore calls: the inputs, then the outputs; 0 when all went well. Protected, so that program.c calls those of
 * this library whatever other libraries of the process have under the same names. */
#define PET_KERNEL(name)                                                                                        \
    __attribute__((visibility("protected")))                                                                    \
    int name(int count, void **params, int *ndims, int64_t **shapes, const char **dtypes, void *stream, void *extra)

#endif
