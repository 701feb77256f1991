/* Activations number by number, and their gradients. All float32. */
#include <math.h>

#include "pool.h"
#include "vectors.h"

enum { AT_ONCE = 8192 };

static int64_t size_of(int dimensions, const int64_t *shape) {
    int64_t size = 1;
    for (int i = 0; i < dimensions; i++) size *= shape[i];
    return size;
}

struct activation {
    const float *gate, *up, *dout;
    float *out, *out_up;
};

static inline floats sigmoid(floats x) { return 1.0f / (1.0f + exponential(-x)); }

/* Calls `step` on a vector of numbers at a time, and on the rest filled up with zeros. */
#define EACH(step)                                                    \
    do {                                                              \
        int64_t i = first;                                            \
        for (; i + LANES <= last; i += LANES) step(load, store);      \
        if (i < last) step(load_rest, store_rest);                    \
    } while (0)
#define load_rest(from) load_some(from, last - i)
#define store_rest(to, value) store_some(to, value, last - i)

static void swiglu_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                         \
    {                                                                          \
        floats gate = get(of->gate + i);                                       \
        put(of->out + i, gate * sigmoid(gate) * get(of->up + i));              \
    }
    EACH(STEP);
#undef STEP
}

/* gate, up → silu(gate)·up */
PET_KERNEL(swiglu) {
    struct activation of = {.gate = params[0], .up = params[1], .out = params[2]};
    pet_parallel(swiglu_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* silu' = σ + x·σ·(1 − σ) */
static void swiglu_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
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
PET_KERNEL(swiglu_gradient) {
    struct activation of = {.gate = params[0], .up = params[1], .dout = params[2], .out = params[3],
                            .out_up = params[4]};
    pet_parallel(swiglu_gradient_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* x → f(x) */
static int forward(pet_work part, void **params, int *ndims, int64_t **shapes) {
    struct activation of = {.gate = params[0], .out = params[1]};
    pet_parallel(part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

/* x, dy → dx, which may lie where dy does */
static int backward(pet_work part, void **params, int *ndims, int64_t **shapes) {
    struct activation of = {.gate = params[0], .dout = params[1], .out = params[2]};
    pet_parallel(part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

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

static void gelu_tanh_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put) put(of->out + i, gelu_tanh_at(get(of->gate + i)).value)
    EACH(STEP);
#undef STEP
}

/* x → gelu(x) */
PET_KERNEL(gelu_tanh) { return forward(gelu_tanh_part, params, ndims, shapes); }

static void gelu_tanh_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put) put(of->out + i, get(of->dout + i) * gelu_tanh_at(get(of->gate + i)).slope)
    EACH(STEP);
#undef STEP
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(gelu_tanh_gradient) { return backward(gelu_tanh_gradient_part, params, ndims, shapes); }

static void geglu_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put) put(of->out + i, gelu_tanh_at(get(of->gate + i)).value * get(of->up + i))
    EACH(STEP);
#undef STEP
}

/* gate, up → gelu(gate)·up */
PET_KERNEL(geglu) {
    struct activation of = {.gate = params[0], .up = params[1], .out = params[2]};
    pet_parallel(geglu_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

static void geglu_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
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
PET_KERNEL(geglu_gradient) {
    struct activation of = {.gate = params[0], .up = params[1], .dout = params[2], .out = params[3],
                            .out_up = params[4]};
    pet_parallel(geglu_gradient_part, &of, size_of(ndims[0], shapes[0]), AT_ONCE);
    return 0;
}

static void relu_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
    for (int64_t i = first; i < last; i++) of->out[i] = of->gate[i] < 0.0f ? 0.0f : of->gate[i];
}

/* x → x where it is above 0, and 0; what is not a number stays so */
PET_KERNEL(relu) { return forward(relu_part, params, ndims, shapes); }

static void relu_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
    for (int64_t i = first; i < last; i++) of->out[i] = of->gate[i] > 0.0f ? of->dout[i] : 0.0f;
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(relu_gradient) { return backward(relu_gradient_part, params, ndims, shapes); }

static void silu_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                            \
    {                                             \
        floats x = get(of->gate + i);             \
        put(of->out + i, x * sigmoid(x));         \
    }
    EACH(STEP);
#undef STEP
}

/* x → x·sigmoid(x) */
PET_KERNEL(silu) { return forward(silu_part, params, ndims, shapes); }

static void silu_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
#define STEP(get, put)                                                        \
    {                                                                         \
        floats x = get(of->gate + i), s = sigmoid(x);                         \
        put(of->out + i, get(of->dout + i) * (s + x * (s - s * s)));          \
    }
    EACH(STEP);
#undef STEP
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(silu_gradient) { return backward(silu_gradient_part, params, ndims, shapes); }

static void tanh_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
    for (int64_t i = first; i < last; i++) of->out[i] = tanhf(of->gate[i]);
}

/* x → tanh(x), number by number: nothing but an adapter's few columns goes through it */
PET_KERNEL(hyperbolic_tangent) { return forward(tanh_part, params, ndims, shapes); }

static void tanh_gradient_part(void *arguments, int64_t first, int64_t last) {
    struct activation *of = arguments;
    for (int64_t i = first; i < last; i++) {
        float y = tanhf(of->gate[i]);
        of->out[i] = of->dout[i] * (1.0f - y * y);
    }
}

/* x, dy → dx, which may lie where dy does */
PET_KERNEL(hyperbolic_tangent_gradient) { return backward(tanh_gradient_part, params, ndims, shapes); }
