/* Activations number by number, and their gradients. */
#include <math.h>

#include "numbers.h"
#include "pool.h"

enum { AT_ONCE = 8192, PIECE = 256 }; /* numbers of a thread's share; and of what stays in the first cache */

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

/* What an activation reads of its tensors at one place, and what it gives there. */
struct at {
    floats gate, up, dout, out, out_up;
};

INLINE void step_at(const struct activation *of, int64_t i, int64_t some, enum form form, void step(struct at *)) {
    int gated = form == GATED || form == GATED_GRADIENT, backward = form == ALONE_GRADIENT || form == GATED_GRADIENT;
    struct at at = {.gate = load_some(of->gate + i, some)};
    if (gated) at.up = load_some(of->up + i, some);
    if (backward) at.dout = load_some(of->dout + i, some);
    step(&at);
    store_some(of->out + i, at.out, some);
    if (gated && backward) store_some(of->out_up + i, at.out_up, some);
}

/* A kernel that takes a step with a vector of numbers at a time, and with the rest filled up with zeros. */
#define ACTIVATION(name, form, step)                                                                        \
    INLINE void name##_step(struct at *at) step                                                             \
    static void name##_part(const struct activation *of, int64_t count) {                                   \
        int64_t i = 0;                                                                                      \
        for (; i + LANES <= count; i += LANES) step_at(of, i, LANES, form, name##_step);                    \
        if (i < count) step_at(of, i, count - i, form, name##_step);                                        \
    }                                                                                                       \
    PET_KERNEL(name) { return activate(name##_part, form, params, ndims, shapes, dtypes); }

static inline floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

/* gate, up → silu(gate)·up */
ACTIVATION(swiglu, GATED, { at->out = at->gate * sigmoid(at->gate) * at->up; })

/* gate, up, dy → dgate, which may lie where dy does, dup: silu' = σ + x·σ·(1 − σ) */
ACTIVATION(swiglu_gradient, GATED_GRADIENT, {
    floats s = sigmoid(at->gate);
    floats silu = at->gate * s;
    at->out = at->dout * at->up * (s + silu - silu * s);
    at->out_up = at->dout * silu;
})

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

/* x → gelu(x) */
ACTIVATION(gelu_tanh, ALONE, { at->out = gelu_tanh_at(at->gate).value; })

/* x, dy → dx, which may lie where dy does */
ACTIVATION(gelu_tanh_gradient, ALONE_GRADIENT, { at->out = at->dout * gelu_tanh_at(at->gate).slope; })

/* gate, up → gelu(gate)·up */
ACTIVATION(geglu, GATED, { at->out = gelu_tanh_at(at->gate).value * at->up; })

/* gate, up, dy → dgate, which may lie where dy does, dup */
ACTIVATION(geglu_gradient, GATED_GRADIENT, {
    struct bent gate = gelu_tanh_at(at->gate);
    at->out = at->dout * at->up * gate.slope;
    at->out_up = at->dout * gate.value;
})

/* x·Φ(x) by the error function, and its slope Φ(x) + x·φ(x), where Φ(−|x|) = t·P(t)·e^(−x²/2) with t = 1/(1 + 0.33·|x|/√2):
 * P is fitted to what is asked of it where e^(−x²/2) is above 0 in 32 bits, with a relative error of 8e-8. */
static inline struct bent gelu_at(floats x) {
    static const float P[] = {-0.0679643974f, 0.231344119f, -0.177719474f, 0.206270799f, 0.0225053243f, 0.100961909f, 0.0914186239f,
                              0.0931830556f};
    floats t = 1.0f / (1.0f + greater(x, -x) * 0.233345238f), tail = fill(P[0]);
    floats bell = exponential(x * x * -0.5f);
    for (int i = 1; i < 8; i++) tail = tail * t + P[i];
    tail *= t * bell;
    floats share = choose(x < 0.0f, tail, 1.0f - tail);
    return (struct bent){x * share, share + x * bell * 0.398942280f};
}

/* x → gelu(x) */
ACTIVATION(gelu, ALONE, { at->out = gelu_at(at->gate).value; })

/* x, dy → dx, which may lie where dy does */
ACTIVATION(gelu_gradient, ALONE_GRADIENT, { at->out = at->dout * gelu_at(at->gate).slope; })

/* x → x·sigmoid(x) */
ACTIVATION(silu, ALONE, { at->out = at->gate * sigmoid(at->gate); })

/* x, dy → dx, which may lie where dy does */
ACTIVATION(silu_gradient, ALONE_GRADIENT, {
    floats s = sigmoid(at->gate);
    at->out = at->dout * (s + at->gate * (s - s * s));
})

static void relu_part(const struct activation *of, int64_t count) {
    for (int64_t i = 0; i < count; i++) of->out[i] = of->gate[i] < 0.0f ? 0.0f : of->gate[i];
}

/* x → x where it is above 0, and 0; what is not a number stays so */
PET_KERNEL(relu) { return activate(relu_part, ALONE, params, ndims, shapes, dtypes); }

/* x, dy → dx, which may lie where dy does */
ACTIVATION(relu_gradient, ALONE_GRADIENT, { at->out = choose(at->gate > 0.0f, at->dout, fill(0.0f)); })

/* Number by number: nothing but an adapter's few columns goes through it. */
static inline floats tanh_of(floats x) {
    for (int i = 0; i < LANES; i++) x[i] = tanhf(x[i]);
    return x;
}

/* x → tanh(x) */
ACTIVATION(hyperbolic_tangent, ALONE, { at->out = tanh_of(at->gate); })

/* x, dy → dx, which may lie where dy does */
ACTIVATION(hyperbolic_tangent_gradient, ALONE_GRADIENT, {
    floats y = tanh_of(at->gate);
    at->out = at->dout * (1.0f - y * y);
})
