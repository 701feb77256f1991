/* Activations number by number, and their gradients. */
#include <math.h>

#include "numbers.h"
#include "pool.h"

enum { AT_ONCE = 8192, PIECE = 256 }; /* numbers of a thread's share; and of what stays in the first cache */

static int64_t size_of(int dimensions, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < dimensions; i++) size *= shape[i];
    return size;
}

struct activation {
    const float *gate, *up, *dout;
    float *out, *out_up;
};

/* An activation's tensors, in the order of the above; of those that it has not, nothing. */
enum { GATE, UP, DOUT, OUT, OUT_UP, TENSORS };

struct activating {
    void (*part)(const struct activation *of, int64_t count);
    struct numbers tensors[TENSORS];
};

static void pieces(void *arguments, int64_t first, int64_t last) {
    struct activating *of = arguments;
    struct numbers *its = of->tensors;
    float rooms[TENSORS][PIECE];
    for (int64_t i = first; i < last; i += PIECE) {
        int64_t some = last - i < PIECE ? last - i : PIECE;
        struct activation piece = {
            widened(its[GATE], i, some, rooms[GATE]), its[UP].at ? widened(its[UP], i, some, rooms[UP]) : NULL,
            its[DOUT].at ? widened(its[DOUT], i, some, rooms[DOUT]) : NULL, room_for(its[OUT], i, rooms[OUT]),
            its[OUT_UP].at ? room_for(its[OUT_UP], i, rooms[OUT_UP]) : NULL};
        of->part(&piece, some);
        put_back(its[OUT], i, some, rooms[OUT]);
        if (its[OUT_UP].at) put_back(its[OUT_UP], i, some, rooms[OUT_UP]);
    }
}

/* Which operands of a kernel its tensors are: f(x), its gradient of x and dy, f(gate, up), its gradients of these and dy. */
enum form { ALONE, ALONE_GRADIENT, GATED, GATED_GRADIENT };
static const int PLACES[][TENSORS] = {{0, -1, -1, 1, -1}, {0, -1, 1, 2, -1}, {0, 1, -1, 2, -1}, {0, 1, 2, 3, 4}};

static int activate(void (*part)(const struct activation *, int64_t), enum form form, void **params, int *ndims, int64_t **shapes,
                    const char **types) {
    struct activating of = {part};
    for (int i = 0; i < TENSORS; i++)
        if (PLACES[form][i] >= 0) of.tensors[i] = numbers_of(params, types, PLACES[form][i]);
    pet_parallel(pieces, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

static inline floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

/* Calls `step` on a vector of numbers at a time, and on the rest filled up with zeros. */
#define EACH(step)                                                    \
    do {                                                              \
        int64_t i = 0;                                                \
        for (; i + LANES <= count; i += LANES) step(load, store);     \
        if (i < count) step(load_rest, store_rest);                   \
    } while (0)
#define load_rest(from) load_some(from, count - i)
#define store_rest(to, value) store_some(to, value, count - i)

static void swiglu_part(const struct activation *of, int64_t count) {
#define STEP(get, put)                                                         \
    {                                                                          \
        floats gate = get(of->gate + i);                                       \
        put(of->out + i, gate * sigmoid(gate) * get(of->up + i));              \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up → silu(gate)·up */
PET_KERNEL(swiglu) { return activate(swiglu_part, GATED, params, ndims, shapes, dtypes); }

/* silu' = σ + x·σ·(1 − σ) */
static void swiglu_gradient_part(const struct activation *of, int64_t count) {
#define STEP(get, put)                                                         \
    {                                                                          \
        floats gate = get(of->gate + i), dout = get(of->dout + i);             \
        floats s = sigmoid(gate), silu = gate * s;                             \
        put(of->out + i, dout * get(of->up + i) * (s + silu - silu * s));      \
        put(of->out_up + i, dout * silu);                                      \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up, dy → dgate, which may lie where dy does, dup */
PET_KERNEL(swiglu_gradient) { return activate(swiglu_gradient_part, GATED_GRADIENT, params, ndims, shapes, dtypes); }

/* x·sigmoid(u) with u = 2·√(2/π)·(x + 0.044715·x³), which is GELU by tanh */
static const float LINEAR = 1.5957691216057308f, CUBIC = 0.07135481282731592f;

/* gelu(x), and its slope */
struct bent {
    floats value, slope;
};

static inline struct bent gelu_tanh_at(floats x) {
    floats square = x * x, s = sigmoid(x * (square * CUBIC + LINEAR));
    return (struct bent){x * s, s + x * (square * (3.0f * CUBIC) + LINEAR) * (s - s * s)};
}

static void gelu_tanh_part(const struct activation *of, int64_t count) {
#define STEP(get, put) put(of->out + i, gelu_tanh_at(get(of->gate + i)).value)
    EACH(STEP);
#undef STEP
}

/* x → gelu(x) */
PET_KERNEL(gelu_tanh) { return activate(gelu_tanh_part, ALONE, params, ndims, shapes, dtypes); }

static void gelu_tanh_gradient_part(const struct activation *of, int64_t count) {
#define STEP(get, put) put(of->out + i, get(of->dout + i) * gelu_tanh_at(get(of->gate + i)).slope)
    EACH(STEP);
#undef STEP
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(gelu_tanh_gradient) { return activate(gelu_tanh_gradient_part, ALONE_GRADIENT, params, ndims, shapes, dtypes); }

static void geglu_part(const struct activation *of, int64_t count) {
#define STEP(get, put) put(of->out + i, gelu_tanh_at(get(of->gate + i)).value * get(of->up + i))
    EACH(STEP);
#undef STEP
}

/* gate, up → gelu(gate)·up */
PET_KERNEL(geglu) { return activate(geglu_part, GATED, params, ndims, shapes, dtypes); }

static void geglu_gradient_part(const struct activation *of, int64_t count) {
#define STEP(get, put)                                            \
    {                                                             \
        struct bent gate = gelu_tanh_at(get(of->gate + i));       \
        floats dout = get(of->dout + i);                          \
        put(of->out + i, dout * get(of->up + i) * gate.slope);    \
        put(of->out_up + i, dout * gate.value);                   \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up, dy → dgate, which may lie where dy does, dup */
PET_KERNEL(geglu_gradient) { return activate(geglu_gradient_part, GATED_GRADIENT, params, ndims, shapes, dtypes); }

static void relu_part(const struct activation *of, int64_t count) {
    for (int64_t i = 0; i < count; i++) of->out[i] = of->gate[i] < 0.0f ? 0.0f : of->gate[i];
}

/* x → x where it is above 0, and 0; what is not a number stays so */
PET_KERNEL(relu) { return activate(relu_part, ALONE, params, ndims, shapes, dtypes); }

static void relu_gradient_part(const struct activation *of, int64_t count) {
    for (int64_t i = 0; i < count; i++) of->out[i] = of->gate[i] > 0.0f ? of->dout[i] : 0.0f;
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(relu_gradient) { return activate(relu_gradient_part, ALONE_GRADIENT, params, ndims, shapes, dtypes); }

static void silu_part(const struct activation *of, int64_t count) {
#define STEP(get, put)                            \
    {                                             \
        floats x = get(of->gate + i);             \
        put(of->out + i, x * sigmoid(x));         \
    }
    EACH(STEP);
#undef STEP
}

/* x → x·sigmoid(x) */
PET_KERNEL(silu) { return activate(silu_part, ALONE, params, ndims, shapes, dtypes); }

static void silu_gradient_part(const struct activation *of, int64_t count) {
#define STEP(get, put)                                                        \
    {                                                                         \
        floats x = get(of->gate + i), s = sigmoid(x);                         \
        put(of->out + i, get(of->dout + i) * (s + x * (s - s * s)));          \
    }
    EACH(STEP);
#undef STEP
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(silu_gradient) { return activate(silu_gradient_part, ALONE_GRADIENT, params, ndims, shapes, dtypes); }

static void tanh_part(const struct activation *of, int64_t count) {
    for (int64_t i = 0; i < count; i++) of->out[i] = tanhf(of->gate[i]);
}

/* x → tanh(x), number by number: nothing but an adapter's few columns goes through it */
PET_KERNEL(hyperbolic_tangent) { return activate(tanh_part, ALONE, params, ndims, shapes, dtypes); }

static void tanh_gradient_part(const struct activation *of, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        float y = tanhf(of->gate[i]);
        of->out[i] = of->dout[i] * (1.0f - y * y);
    }
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(hyperbolic_tangent_gradient) { return activate(tanh_gradient_part, ALONE_GRADIENT, params, ndims, shapes, dtypes); }
