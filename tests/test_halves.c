// f16 and bf16: conversions against their definition (halves.h), what operations on them cost in memory, derivatives, training
// with parameters of 16 bits and with activations of 16 bits. Every single operation in f16 and bf16 is in test_ops.
#include "nttrain.h"
#include "halves.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const nt_dtype halves[2] = { NT_F16, NT_BF16 };
static const nt_isa isas[] = { NT_ISA_BASELINE, NT_ISA_AVX2, NT_ISA_AVX512 };
static const char *const isa_names[] = { "baseline", "AVX2", "AVX-512" };
enum { ALL = 65536, MANY = 200000 };

static uint64_t state = 1;
static uint64_t dice(void) {
    uint64_t z = state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

// ---------------------------------------------------------------------------------------------------------------------
// Conversions
// ---------------------------------------------------------------------------------------------------------------------
static int cast(nt_tape *t, nt_dtype from, int64_t n, const void *data, nt_dtype to, void *out) {
    nt_marker mark = nt_mark(t);
    int ok = nt_eval(nt_cast(nt_constant(t, from, NT_SHAPE(n), data), to), out) == NT_OK;
    nt_rewind(t, mark);
    return ok;
}

static int same_double(double a, double b) { return (a != a && b != b) || (a == b && !signbit(a) == !signbit(b)); }

static double saturated(double x, double low, double high) { return x != x ? 0 : x < low ? low : x > high ? high : trunc(x); }

static void every_half(nt_tape *t, nt_dtype half, const char *isa) {
    static uint16_t bits[ALL], back[ALL], other[ALL];
    static float f[ALL];
    static double d[ALL];
    static int32_t i[ALL];
    static uint8_t b[ALL];
    nt_dtype another = half == NT_F16 ? NT_BF16 : NT_F16;
    int ok = 1, wide = 1, again = 1, again64 = 1, swapped = 1, integers = 1;
    for (int k = 0; k < ALL; k++) bits[k] = (uint16_t)k;
    ok &= cast(t, half, ALL, bits, NT_F32, f) && cast(t, half, ALL, bits, NT_F64, d);
    for (int k = 0; k < ALL; k++) wide &= same_double((double)f[k], half_value(half, bits[k])) && same_double(d[k], half_value(half, bits[k]));
    ok &= cast(t, NT_F32, ALL, f, half, back);
    for (int k = 0; k < ALL; k++) again &= half_same(half, back[k], bits[k]);
    ok &= cast(t, NT_F64, ALL, d, half, back);
    for (int k = 0; k < ALL; k++) again64 &= half_same(half, back[k], bits[k]);
    ok &= cast(t, half, ALL, bits, another, other);
    for (int k = 0; k < ALL; k++) swapped &= half_same(another, other[k], half_bits(another, half_value(half, bits[k])));
    ok &= cast(t, half, ALL, bits, NT_I32, i) && cast(t, half, ALL, bits, NT_U8, b);
    for (int k = 0; k < ALL; k++) integers &= i[k] == saturated(d[k], -2147483648.0, 2147483647.0) && b[k] == saturated(d[k], 0, 255);
    ok &= cast(t, half, ALL, bits, NT_BOOL, b);
    for (int k = 0; k < ALL; k++) integers &= b[k] == (d[k] != 0);
    tap_ok(ok && wide, "%s, %s: all 65,536 as f32 and f64", nt_dtype_name(half), isa);
    tap_ok(ok && again && again64, "%s, %s: and back", nt_dtype_name(half), isa);
    tap_ok(ok && swapped, "%s, %s: as %s, rounded once", nt_dtype_name(half), isa, nt_dtype_name(another));
    tap_ok(ok && integers, "%s, %s: as integers, saturated, and as truth", nt_dtype_name(half), isa);
}

// Numbers at, just above and just below what lies between two neighbours, and any bits at all.
static double difficult(nt_dtype half) {
    uint16_t a = (uint16_t)dice();
    double low = half_value(half, a), high = half_value(half, (uint16_t)(a + 1)), middle = (low + high) / 2, far = ldexp(1, half == NT_F16 ? 16 : 128);
    uint64_t any = dice();
    double x;
    switch (dice() % 6) {
    case 0: x = middle; break;
    case 1: x = nextafter(middle, HUGE_VAL); break;
    case 2: x = nextafter(middle, -HUGE_VAL); break;
    case 3: x = middle + ldexp((double)(int64_t)dice(), -100 - (int)(dice() % 60)) * middle; break; // a little off: f32 would be on the tie
    case 4: x = far - ldexp(far, -(int)(dice() % 60)); break;                                       // where infinity begins
    default: memcpy(&x, &any, sizeof x);
    }
    return x;
}

static void rounding(nt_tape *t, nt_dtype half, const char *isa) {
    static double d[MANY];
    static float f[MANY];
    static uint16_t out[MANY];
    int64_t bad = -1;
    for (int k = 0; k < MANY; k++) d[k] = difficult(half);
    int ok = cast(t, NT_F64, MANY, d, half, out);
    for (int k = 0; k < MANY && bad < 0; k++)
        if (!half_same(half, out[k], half_bits(half, d[k]))) bad = k;
    tap_ok(ok && bad < 0, "%s, %s: doubles near ties are rounded once", nt_dtype_name(half), isa);
    if (bad >= 0) tap_note("%a gives %04x, not %04x", d[bad], out[bad], half_bits(half, d[bad]));
    for (int k = 0; k < MANY; k++) {
        uint32_t any = (uint32_t)dice();
        f[k] = (float)difficult(half);
        if (k % 3 == 0) memcpy(&f[k], &any, sizeof any);
        if (k % 3 == 1) f[k] = nextafterf(f[k], k % 2 ? HUGE_VALF : -HUGE_VALF);
    }
    ok = cast(t, NT_F32, MANY, f, half, out), bad = -1;
    for (int k = 0; k < MANY && bad < 0; k++)
        if (!half_same(half, out[k], half_bits(half, (double)f[k]))) bad = k;
    tap_ok(ok && bad < 0, "%s, %s: and floats", nt_dtype_name(half), isa);
    if (bad >= 0) tap_note("%a gives %04x, not %04x", (double)f[bad], out[bad], half_bits(half, (double)f[bad]));
}

// All but the leading 52 bits of an integer can only break a tie: one of them does as well as all.
static double sticky(uint64_t magnitude, int negative) {
    int shift = 0;
    uint64_t lost = 0;
    while (magnitude >> 52) lost |= magnitude & 1, magnitude >>= 1, shift++;
    double x = ldexp((double)(magnitude | lost), shift);
    return negative ? -x : x;
}

static void integers_to_half(nt_tape *t, nt_dtype half) {
    static int64_t s[MANY];
    static uint64_t u[MANY];
    static uint16_t out[MANY];
    int good = 1, bits = half == NT_F16 ? 11 : 8;
    for (int k = 0; k < MANY; k++) {
        uint64_t x = dice() >> (dice() % 64), tie = (dice() >> (64 - bits) << 1 | 1) << (dice() % (63 - (unsigned)bits));
        u[k] = k % 2 ? x : tie + dice() % 3 - 1;
        s[k] = (int64_t)(k % 3 ? u[k] >> 1 : 0 - (u[k] >> 1));
    }
    good &= cast(t, NT_U64, MANY, u, half, out);
    for (int k = 0; k < MANY; k++) good &= out[k] == half_bits(half, sticky(u[k], 0));
    good &= cast(t, NT_I64, MANY, s, half, out);
    for (int k = 0; k < MANY; k++) good &= out[k] == half_bits(half, sticky(s[k] < 0 ? 0 - (uint64_t)s[k] : (uint64_t)s[k], s[k] < 0));
    tap_ok(good, "%s: integers of 64 bits near ties are rounded once", nt_dtype_name(half));
}

// What the first instruction set gives, bit for bit, NaNs with their payloads too.
static void same_bits(nt_tape *t, nt_dtype half, int isa) {
    static uint16_t bits[ALL], narrow[2][ALL];
    static uint32_t any[ALL], wide[2][ALL];
    state = 77;
    for (int k = 0; k < ALL; k++) bits[k] = (uint16_t)k, any[k] = (uint32_t)dice();
    for (int k = 0; k < 4096; k++) any[k] |= 0x7f800000u;
    int at = isa > 0, ok = cast(t, half, ALL, bits, NT_F32, wide[at]) && cast(t, NT_F32, ALL, any, half, narrow[at]);
    if (isa) tap_ok(ok && !memcmp(wide[0], wide[1], sizeof wide[0]) && !memcmp(narrow[0], narrow[1], sizeof narrow[0]), "%s, %s: the bits of the baseline", nt_dtype_name(half), isa_names[isa]);
}

// Any length, any place, any strides.
static void lengths(nt_tape *t, nt_dtype half) {
    static uint16_t bits[40 * 40], out[40 * 40];
    static float f[40 * 40];
    int good = 1;
    for (int k = 0; k < 1600; k++) bits[k] = (uint16_t)dice();
    for (int n = 0; n <= 40; n++)
        for (int first = 0; first < 3; first++) {
            memset(f, 0x5a, sizeof f), memset(out, 0x5a, sizeof out);
            good &= cast(t, half, n, bits + first, NT_F32, f) && cast(t, NT_F32, n, f, half, out);
            for (int k = 0; k < n; k++) good &= half_same(half, out[k], bits[first + k]);
            good &= n == 1600 || out[n] == 0x5a5a;
        }
    nt_tensor *x = nt_constant(t, half, NT_SHAPE(40, 40), bits);
    good &= nt_eval(nt_cast(nt_transpose(x, NT_AXES(1, 0)), NT_F32), f) == NT_OK;
    for (int k = 0; k < 1600; k++) good &= same_double((double)f[k], half_value(half, bits[k % 40 * 40 + k / 40]));
    tap_ok(good, "%s: arrays of any length, and transposed ones", nt_dtype_name(half));
}

static void conversions(void) {
    for (int h = 0; h < 2; h++)
        for (int k = 0; k < 3; k++) {
            nt_tape_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.isa = isas[k];
            nt_tape *t = nt_tape_open(&desc);
            if (t) same_bits(t, halves[h], k);
            nt_tape_close(t);
        }
    for (int k = 0; k < 3; k++) {
        nt_tape_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.isa = isas[k];
        nt_tape *t = nt_tape_open(&desc);
        if (!t) { tap_skip("this machine or build lacks it", "conversions with %s", isa_names[k]); continue; }
        for (int h = 0; h < 2; h++) every_half(t, halves[h], isa_names[k]), rounding(t, halves[h], isa_names[k]), lengths(t, halves[h]);
        for (int h = 0; h < 2 && !k; h++) integers_to_half(t, halves[h]);
        nt_tape_close(t);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *waves(nt_tape *t, nt_dtype dtype, nt_shape shape) {
    nt_tensor *x = nt_variable(t, dtype, shape, NULL);
    for (int64_t k = 0; k < nt_size(x); k++) {
        double v = sin(1.7 * (double)k + 0.3);
        if (dtype == NT_F32) ((float *)nt_data(x))[k] = (float)v;
        else ((uint16_t *)nt_data(x))[k] = half_bits(dtype, v);
    }
    return x;
}

static size_t peak(nt_tensor *y) {
    nt_program *p = nt_compile(y, NULL);
    return p ? nt_report(p).peak : 0;
}

static void memory(nt_dtype half) {
    enum { N = 512 };
    const size_t one = (size_t)N * N * 2;
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, half, NT_SHAPE(N, N)), *y = x, *line = waves(t, half, NT_SHAPE(N));
    for (int k = 0; k < 12; k++) y = nt_tanh(nt_add(nt_mul(y, nt_sigmoid(y)), line));
    tap_ok(y && peak(y) <= 2 * one + 65536, "%s: a chain of elementwise operations takes two values of 16 bits (%zu of %zu)", nt_dtype_name(half), peak(y), one);
    size_t sum = peak(nt_sum(nt_square(x)));
    tap_ok(sum && sum <= one + 131072, "%s: a sum reads 16 bits (%zu)", nt_dtype_name(half), sum);
    nt_tensor *deep = x;
    for (int k = 0; k < 6; k++) deep = nt_relu(nt_matmul(deep, x));
    size_t product = peak(deep);
    tap_ok(product && product <= 4 * one, "%s: a chain of products takes two values of 16 bits and the f32 of one tile (%zu)", nt_dtype_name(half), product);
    // a deep net's gradient keeps activations of 16 bits: half of what f32 keeps, but for the copies of one instruction
    nt_tensor *kept[2], *of[2] = { x, waves(t, NT_F32, NT_SHAPE(N, N)) };
    for (int k = 0; k < 2; k++) {
        nt_tensor *z = of[k];
        for (int j = 0; j < 16; j++) z = nt_tanh(nt_matmul(z, of[k]));
        kept[k] = nt_grad(nt_sum(z), of[k]);
    }
    size_t small = peak(kept[0]), large = peak(kept[1]);
    tap_ok(small && large && small < large / 2 + 8 * one, "%s: a gradient through 16 layers keeps 16 bits: %zu bytes, f32 %zu", nt_dtype_name(half), small, large);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Operations and derivatives
// ---------------------------------------------------------------------------------------------------------------------
static int says(nt_tape *t, nt_status status, const char *a, const char *b) {
    const char *m = nt_error(t);
    int ok = m && nt_error_status(t) == status && strstr(m, a) && strstr(m, b);
    if (!ok) tap_note("%s", m ? m : "no message");
    nt_error_clear(t);
    return ok;
}

static void operations(nt_dtype half) {
    nt_tape *t = nt_tape_open(NULL);
    const char *name = nt_dtype_name(half);
    nt_tensor *x = waves(t, half, NT_SHAPE(3, 4)), *w = waves(t, half, NT_SHAPE(4, 5)), *f = nt_variable(t, NT_F32, NT_SHAPE(3, 4), NULL);
    tap_ok(!nt_add(x, f) && says(t, NT_ERROR_DTYPE, name, "f32"), "%s: with f32 in one operation is an error that names both", name);
    tap_ok(!nt_matmul(f, w) && says(t, NT_ERROR_DTYPE, "nt_matmul", "nt_cast"), "%s: also in a product", name);
    tap_ok(!nt_square(nt_variable(t, NT_I16, NT_SHAPE(2), NULL)) && says(t, NT_ERROR_DTYPE, "i16", "nt_cast"), "integers of 16 bits are storage still");
    nt_tensor *y = nt_softmax(nt_matmul(x, w), 1), *g = nt_grad(nt_sum(nt_square(y)), x);
    tap_ok(y && y->dtype == half && g && g->dtype == half, "%s: values and gradients have the dtype", name);
    nt_tensor *wide = nt_cast(x, NT_F32), *up = nt_grad(nt_sum(nt_square(wide)), x), *down = nt_grad(nt_sum(nt_cast(nt_cast(nt_scale(f, 3), half), NT_F64)), f);
    tap_ok(up && up->dtype == half && down && down->dtype == NT_F32, "%s: a cast's derivative is cast back", name);
    // 3/7 as cotangent of a cast to 16 bits arrives rounded
    float got[12];
    nt_tensor *z = nt_cast(f, half), *c = nt_full(t, half, NT_SHAPE(3, 4), 3.0 / 7);
    nt_params p = nt_vjp(NT_LIST(z), NT_LIST(c), NT_LIST(f));
    tap_ok(p.count && nt_eval(p.items[0], got) == NT_OK && (double)got[5] == half_value(half, half_bits(half, 3.0 / 7)), "%s: cotangents are rounded", name);
    uint16_t mean[4];
    nt_tensor *large = nt_full(t, half, NT_SHAPE(300000), 3);
    tap_ok(nt_eval(nt_mean(large), mean) == NT_OK && half_value(half, mean[0]) == 3, "%s: a mean of more than the largest f16", name);
    tap_ok(nt_eval(nt_norm_axes(nt_full(t, half, NT_SHAPE(2, 100), 1024), NT_AXES(1), 0), mean) == NT_OK && half_value(half, mean[1]) == 10240, "%s: a norm", name);
    double log_of_100 = log(100.0) + 9;
    tap_ok(nt_eval(nt_logsumexp_axes(nt_full(t, half, NT_SHAPE(2, 100), 9), NT_AXES(1), 0), mean) == NT_OK && half_value(half, mean[1]) == half_value(half, half_bits(half, log_of_100)),
           "%s: log sum exp, rounded once", name);
    tap_ok(nt_eval(nt_sum(nt_full(t, half, NT_SHAPE(100000), 0.125)), mean) == NT_OK && mean[0] == half_bits(half, 12500), "%s: sums are f32 sums", name);
    uint16_t counted[2048];
    int good = nt_eval(nt_iota(t, half, NT_SHAPE(2048), 0), counted) == NT_OK;
    for (int k = 0; k < 2048; k++) good &= counted[k] == half_bits(half, k);
    tap_ok(good, "%s: counts, rounded", name);
    nt_tape_close(t);
}

// Second derivatives, loops and batches of bf16 values.
static void transforms(nt_dtype half) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, half, NT_SHAPE(4, 6)), *w = waves(t, half, NT_SHAPE(6));
    nt_map *m = nt_map_begin(t, 4, NULL);
    nt_tensor *row = nt_map_slice(m, x), *part = nt_tanh(nt_mul(row, w));
    nt_tensor *sum = nt_map_sum(m, nt_sum(part)), *all = nt_map_stack(m, part);
    nt_map_end(m);
    nt_tensor *plain = nt_tanh(nt_mul(x, w)), *g = nt_grad(sum, w), *gg = nt_grad(nt_sum(nt_square(g)), w);
    uint16_t a[24], b[24], s[2], total[6];
    tap_ok(nt_eval(all, a) == NT_OK && nt_eval(plain, b) == NT_OK && !memcmp(a, b, sizeof a), "%s: a loop stacks the bits of the whole", nt_dtype_name(half));
    float rounded = 0;
    for (int k = 0; k < 4; k++) {
        float inner = 0;
        for (int j = 0; j < 6; j++) inner += (float)half_value(half, b[6 * k + j]);
        rounded += (float)half_value(half, half_bits(half, (double)inner));
    }
    double exact = half_value(half, half_bits(half, (double)rounded));
    tap_ok(nt_eval(sum, s) == NT_OK && sum->dtype == half && fabs(half_value(half, s[0]) - exact) <= ldexp(fabs(exact), half == NT_F16 ? -10 : -7), "%s: and sums in f32", nt_dtype_name(half));
    tap_ok(g && g->dtype == half && gg && gg->dtype == half && nt_eval(gg, total) == NT_OK, "%s: a second derivative through it", nt_dtype_name(half));
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Training
// ---------------------------------------------------------------------------------------------------------------------
enum { IN = 6, OUT = 4, ROWS = 16 };

// One dense layer without bias, a squared loss, computed one number at a time with a rounding at the border of every operation.
static void sgd_in_half(nt_dtype half, int k) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, half, NT_SHAPE(ROWS, IN)), *w = waves(t, half, NT_SHAPE(IN, OUT));
    nt_tensor *loss = nt_sum(nt_square(nt_matmul(x, w)));
    nt_sgd_desc d;
    memset(&d, 0, sizeof d);
    d.learning_rate = 0.0078125;
    nt_optimizer *o = nt_sgd(t, &d);
    if (k > 1) o = nt_multi_steps(o, k);
    uint16_t before[IN * OUT], gradient[IN * OUT];
    nt_tensor *g = nt_grad(loss, w);
    memcpy(before, nt_data(w), sizeof before);
    int good = g && nt_eval(g, gradient) == NT_OK;
    nt_program *step = nt_compile_step(loss, o, NULL);
    for (int j = 0; j < k; j++) good &= nt_run(step) == NT_OK;
    for (int j = 0; j < IN * OUT; j++) {
        float sum = 0;
        for (int i = 0; i < k; i++) sum += (float)half_value(half, gradient[j]);
        float step_of = sum * (1.0f / (float)k), now = (float)half_value(half, before[j]); // k is a power of two: both ways to divide agree
        good &= ((uint16_t *)nt_data(w))[j] == half_bits(half, (double)(now - 0.0078125f * step_of));
    }
    tap_ok(good, "%s: %d micro-batch%s, an update in f32 that is rounded once", nt_dtype_name(half), k, k > 1 ? "es accumulated in f32" : "");
    nt_tape_close(t);
}

typedef struct outcome { double first, last; size_t scratch, parameters, gradient; } outcome;

// A small net learns a fixed map; parameters of one dtype, activations of another.
static outcome learn(nt_dtype parameters, nt_dtype compute, int steps) {
    outcome r = { 0, 0, 0, 0, 0 };
    nt_tape *t = nt_tape_open(NULL);
    nt_dense_desc d;
    nt_apply_desc a;
    nt_adam_desc adam;
    memset(&d, 0, sizeof d), memset(&a, 0, sizeof a), memset(&adam, 0, sizeof adam);
    d.dtype = parameters, a.compute = compute, adam.learning_rate = 0.01;
    nt_dtype input = compute == NT_F32 ? parameters : NT_F32;
    nt_tensor *x = waves(t, input, NT_SHAPE(256, 8)), *target = waves(t, NT_F32, NT_SHAPE(256, 3));
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 64, &d), nt_gelu_layer(t), nt_dense_layer(t, 64, &d), nt_gelu_layer(t), nt_dense_layer(t, 3, &d));
    nt_init(net, nt_key(3), x);
    nt_tensor *y = nt_apply(net, x, &a);
    nt_tensor *loss = nt_mean(nt_square(nt_sub(nt_cast(y, NT_F32), target)));
    nt_program *step = nt_compile_step(loss, nt_adam(t, &adam), NULL);
    if (!step) tap_note("%s", nt_error(t));
    for (int k = 0; k < steps && nt_run(step) == NT_OK; k++) {
        if (!k) r.first = nt_window_loss(step);
        r.last = nt_window_loss(step);
    }
    if (step) r.scratch = nt_report(step).peak;
    for (int k = 0; k < nt_parameters(net).count; k++) r.parameters += nt_bytes(nt_parameters(net).items[k]);
    nt_tape_close(t);
    return r;
}

static void training(void) {
    outcome full = learn(NT_F32, NT_F32, 300);
    tap_ok(full.first > 0 && full.last < full.first / 10, "f32 learns: %g to %g", full.first, full.last);
    for (int k = 0; k < 2; k++) {
        outcome own = learn(halves[k], NT_F32, 300), mixed = learn(NT_F32, halves[k], 300);
        tap_ok(own.first > 0 && own.last < own.first / 4 && own.parameters * 2 == full.parameters, "parameters in %s learn: %g to %g", nt_dtype_name(halves[k]), own.first, own.last);
        tap_ok(mixed.first > 0 && mixed.last < mixed.first / 8 && fabs(mixed.first - full.first) < 0.02 * full.first, "f32 parameters with activations in %s learn: %g to %g",
               nt_dtype_name(halves[k]), mixed.first, mixed.last);
        tap_ok(mixed.parameters == full.parameters, "and stay f32");
        for (int n = 1; n <= 4; n *= 4) sgd_in_half(halves[k], n);
    }
}

static void computing(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F32, NT_SHAPE(2, 4)), *h = waves(t, NT_BF16, NT_SHAPE(2, 4));
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 3, NULL), nt_layer_norm_layer(t, NULL)), *other = nt_dense_layer(t, 3, NULL);
    nt_apply_desc a;
    memset(&a, 0, sizeof a);
    nt_init(net, nt_key(1), x);
    tap_ok(nt_apply(net, x, &a)->dtype == NT_F32, ".compute zero: as the parameters are");
    a.compute = NT_BF16;
    nt_tensor *y = nt_apply(net, x, &a);
    tap_ok(y && y->dtype == NT_BF16, ".compute: the result has its dtype");
    uint16_t got[6], wanted[6];
    nt_params p = nt_parameters(net);
    nt_tensor *by_hand = nt_dense(nt_cast(x, NT_BF16), nt_cast(p.items[0], NT_BF16), nt_cast(p.items[1], NT_BF16));
    by_hand = nt_layer_norm(by_hand, nt_cast(p.items[2], NT_BF16), nt_cast(p.items[3], NT_BF16), 1e-6);
    tap_ok(nt_eval(y, got) == NT_OK && nt_eval(by_hand, wanted) == NT_OK && !memcmp(got, wanted, sizeof got), ".compute: casts of the input and the parameters");
    nt_params g = nt_grads(nt_sum(y), p);
    tap_ok(g.count == 4 && g.items[0]->dtype == NT_F32, ".compute: gradients are f32, as the parameters");
    tap_ok(nt_init(other, nt_key(1), h) == NT_OK && nt_parameters(other).items[0]->dtype == NT_F32 && nt_apply(other, h, &a), "parameters in f32 for inputs in bf16");
    tap_ok(!nt_apply(other, h, NULL) && says(t, NT_ERROR_DTYPE, "bf16", "f32"), "which need .compute");
    a.compute = NT_I32;
    tap_ok(!nt_apply(net, x, &a) && says(t, NT_ERROR_DTYPE, ".compute", "i32"), "an integer .compute is an error");
    nt_tape_close(t);
}

int main(void) {
    conversions();
    for (int k = 0; k < 2; k++) memory(halves[k]), operations(halves[k]), transforms(halves[k]);
    computing();
    training();
    return tap_end();
}
