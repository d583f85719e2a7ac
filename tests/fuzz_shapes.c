// Fuzzes the operations: calls with any shapes, axes, dtypes and descriptors give a value or an error with a message, in a small
// array; what was recorded can be differentiated and run, or says why not.
//
//     clang -I.. -fsanitize=fuzzer,address,undefined fuzz_shapes.c nttrain.c -lm       libFuzzer
//     cc -I.. -DFUZZ_STANDALONE -fsanitize=address,undefined fuzz_shapes.c nttrain.c -lm
//     fuzz_shapes [COUNT [SEED]]                                    COUNT random programs, always the same ones
#include "nttrain.h"
#include "tap.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>

enum { MEMORY = 1 << 20, MOST_VALUES = 24, LARGEST = 4096 };

typedef struct stream { const uint8_t *bytes; size_t left; } stream;

static int byte(stream *s) {
    if (s->left == 0) return 0;
    s->left--;
    return *s->bytes++;
}

// Mostly small, sometimes absurd.
static int64_t number(stream *s) {
    static const int64_t odd[] = { -1, -2, 0, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN, (int64_t)1 << 32, (int64_t)1 << 62, 1000003 };
    int b = byte(s);
    if (b < 230) return b % 5;
    return odd[b % 10];
}

static int small(stream *s) {
    int64_t v = number(s);
    return v > INT_MAX ? INT_MAX : v < INT_MIN ? INT_MIN : (int)v;
}

static double real(stream *s) {
    static const double odd[] = { 0, 1, -1, 0.5, 1e300, -1e-300, 3, -2.5 };
    int b = byte(s);
    return b > 250 ? (double)NAN : b > 245 ? (double)INFINITY : odd[b % 8];
}

static nt_shape shape(stream *s) {
    nt_shape x;
    memset(&x, 0, sizeof x);
    x.rank = byte(s) % 6;
    if (x.rank == 5) x.rank = small(s);
    for (int k = 0; k < x.rank && k < NT_MAX_RANK; k++) x.size[k] = number(s);
    return x;
}

static nt_axes axes(stream *s) {
    nt_axes x;
    memset(&x, 0, sizeof x);
    x.count = byte(s) % 4;
    if (byte(s) > 240) x.count = small(s);
    for (int k = 0; k < x.count && k < NT_MAX_RANK; k++) x.axis[k] = small(s);
    return x;
}

static nt_dtype dtype(stream *s) {
    int b = byte(s);
    return b < 140 ? NT_F32 : b < 180 ? NT_F64 : b < 210 ? NT_I32 : (nt_dtype)(b % (NT_DTYPE_COUNT + 1));
}

typedef struct values { nt_tensor *x[MOST_VALUES]; int count; } values;
static nt_tensor *any(stream *s, values *v) { return v->count ? v->x[byte(s) % v->count] : NULL; }

static nt_tensor *leaf(nt_tape *t, stream *s) {
    static const double zeros[8 * LARGEST];
    nt_dtype d = dtype(s);
    nt_shape x = shape(s);
    switch (byte(s) % 5) {
    case 0: return nt_full(t, d, x, real(s));
    case 1: return nt_variable(t, d, x, NULL);
    case 2: return nt_iota(t, d, x, small(s));
    case 3: return nt_normal(nt_key_tensor(t, nt_key((uint64_t)number(s))), d, x);
    default: break;
    }
    nt_tensor *input = nt_input(t, d, x);
    if (input && nt_size(input) <= LARGEST) nt_write(input, zeros);
    return input;
}

static nt_tensor *unary(stream *s, nt_tensor *x) {
    static nt_tensor *(*const all[])(nt_tensor *) = {
        nt_neg, nt_abs, nt_sign, nt_square, nt_reciprocal, nt_sqrt, nt_rsqrt, nt_cbrt, nt_exp, nt_expm1, nt_log, nt_log1p, nt_sin, nt_cos, nt_tan, nt_asin,
        nt_atan, nt_tanh, nt_atanh, nt_erf, nt_erf_inv, nt_lgamma, nt_digamma, nt_sigmoid, nt_softplus, nt_relu, nt_gelu, nt_silu, nt_floor, nt_round,
        nt_is_nan, nt_logical_not, nt_stop_gradient, nt_sum, nt_mean
    };
    return all[(size_t)byte(s) % (sizeof all / sizeof all[0])](x);
}

static nt_tensor *binary(stream *s, nt_tensor *x, nt_tensor *y) {
    static nt_tensor *(*const all[])(nt_tensor *, nt_tensor *) = {
        nt_add, nt_sub, nt_mul, nt_div, nt_pow, nt_maximum, nt_minimum, nt_atan2, nt_hypot, nt_rem, nt_mod, nt_equal, nt_less, nt_logical_and, nt_matmul,
        nt_matmul, nt_matmul, nt_cross_entropy, nt_copysign
    };
    return all[(size_t)byte(s) % (sizeof all / sizeof all[0])](x, y);
}

static nt_tensor *reduction(stream *s, nt_tensor *x) {
    static nt_tensor *(*const all[])(nt_tensor *, nt_axes, int) = {
        nt_sum_axes, nt_mean_axes, nt_prod_axes, nt_max_axes, nt_min_axes, nt_logsumexp_axes, nt_norm_axes, nt_any_axes, nt_all_axes
    };
    nt_axes a = axes(s);
    return all[(size_t)byte(s) % (sizeof all / sizeof all[0])](x, a, byte(s) % 2);
}

static nt_tensor *convolution(stream *s, nt_tensor *x, nt_tensor *y) {
    nt_conv_desc d;
    memset(&d, 0, sizeof d);
    for (int k = 0; k < 3; k++) {
        d.stride[k] = small(s);
        d.dilation[k] = small(s);
        d.pad[k][0] = small(s);
        d.pad[k][1] = small(s);
        d.lhs_dilation[k] = byte(s) % 2 ? small(s) : 0;
    }
    d.groups = small(s);
    d.padding = (nt_padding)(byte(s) % 6);
    switch (byte(s) % 6) {
    case 0: return nt_conv(x, y, NULL);
    case 1: return nt_conv(x, y, &d);
    case 4: return nt_conv_transpose(x, y, NULL);
    case 5: return nt_conv_transpose(x, y, &d);
    case 2: return nt_conv_transpose_input(x, y, shape(s), &d);
    default: return nt_conv_transpose_kernel(x, y, shape(s), &d);
    }
}

static nt_tensor *pooling(stream *s, nt_tensor *x) {
    static nt_tensor *(*const all[])(nt_tensor *, nt_shape, const nt_pool_desc *) = { nt_max_pool, nt_avg_pool, nt_sum_pool };
    nt_pool_desc d;
    memset(&d, 0, sizeof d);
    for (int k = 0; k < 3; k++) {
        d.stride[k] = small(s);
        d.pad[k][0] = small(s);
        d.pad[k][1] = small(s);
    }
    d.padding = (nt_padding)(byte(s) % 6);
    d.exclude_pad = byte(s) % 2;
    return all[byte(s) % 3](x, shape(s), byte(s) % 2 ? &d : NULL);
}

static nt_tensor *moved(stream *s, nt_tensor *x) {
    int64_t a[NT_MAX_RANK], b[NT_MAX_RANK], c[NT_MAX_RANK];
    for (int k = 0; k < NT_MAX_RANK; k++) {
        a[k] = number(s);
        b[k] = number(s);
        c[k] = number(s);
    }
    switch (byte(s) % 9) {
    case 0: return nt_reshape(x, shape(s));
    case 1: return nt_transpose(x, axes(s));
    case 2: return nt_broadcast(x, shape(s));
    case 3: return nt_slice(x, a, b, byte(s) % 2 ? c : NULL);
    case 4: return nt_pad(x, a, b, byte(s) % 2 ? c : NULL, real(s));
    case 5: return nt_expand_dims(x, small(s));
    case 6: return nt_squeeze(x, small(s));
    case 7: return nt_swap_axes(x, small(s), small(s));
    default: return nt_flatten(x, small(s));
    }
}

static nt_tensor *linear(stream *s, nt_tensor *x, nt_tensor *y) {
    nt_triangular_desc d = { byte(s) % 2, byte(s) % 2, byte(s) % 2, byte(s) % 2 };
    switch (byte(s) % 10) {
    case 0: return nt_triangular_solve(x, y, &d);
    case 1: return nt_solve(x, y);
    case 2: return nt_solve_spd(x, y);
    case 3: return nt_cholesky(x);
    case 4: return nt_inv(x);
    case 5: return nt_slogdet(x).log;
    case 6: return nt_eigh(x).vectors;
    case 7: return nt_eigvalsh(x);
    case 8: return nt_sym_sqrt(x);
    default: return nt_qr(x).r;
    }
}

static nt_tensor *einsum(stream *s, nt_params operands) { // an equation of few letters, mostly of the right form
    static const char letters[] = "iijjkB.,->?";
    char text[32];
    int n = 0;
    for (int k = 0; k < operands.count && n < 16; k++) {
        if (k) text[n++] = ',';
        for (int a = 0; operands.items[k] && a < operands.items[k]->rank && n < 16; a++) text[n++] = letters[byte(s) % (byte(s) > 250 ? 11 : 6)];
    }
    if (byte(s) % 2) text[n++] = '-', text[n++] = '>';
    for (int k = byte(s) % 4; k > 0; k--) text[n++] = letters[byte(s) % 6];
    text[n] = 0;
    return nt_einsum(text, operands);
}

static nt_tensor *along(nt_tape *t, stream *s, nt_tensor *x, nt_tensor *y) {
    static nt_tensor *(*const scans[])(nt_tensor *, int, int) = { nt_cumsum, nt_cumprod, nt_cummax, nt_cumlogsumexp };
    nt_tensor *key = nt_key_tensor(t, nt_key(1)), *starts[NT_MAX_RANK];
    int64_t shift[NT_MAX_RANK];
    for (int k = 0; k < NT_MAX_RANK; k++) shift[k] = number(s), starts[k] = byte(s) > 250 ? x : nt_full(t, NT_I32, NT_SCALAR, (double)small(s));
    switch (byte(s) % 24) {
    case 0: return scans[byte(s) % 4](x, small(s), byte(s) % 2);
    case 1: return nt_linear_scan(x, y, small(s), byte(s) % 2);
    case 2: return nt_sort(x, small(s));
    case 3: return nt_argsort(x, small(s));
    case 4: return nt_top_k(x, number(s)).values;
    case 5: return nt_take_along_axis(x, y, small(s));
    case 6: return nt_segment_sum(x, y, number(s));
    case 7: return nt_one_hot(x, number(s), dtype(s));
    case 8: return nt_dynamic_slice(x, starts, shape(s));
    case 9: return nt_dynamic_update_slice(x, y, starts);
    case 10: return nt_flip(x, axes(s));
    case 11: return nt_roll(x, shift, axes(s));
    case 12: return nt_repeat(x, number(s), small(s));
    case 13: return nt_tile(x, shape(s));
    case 14: return nt_tril(x, number(s));
    case 15: return nt_diag(x, number(s));
    case 16: return nt_trace(x);
    case 17: return nt_std_axes(x, axes(s), real(s), byte(s) % 2);
    case 18: return nt_resize(x, shape(s), (nt_resize_method)(byte(s) % 3));
    case 19: return nt_upsample(x, number(s));
    case 20: return nt_huber(x, y, real(s));
    case 21: return nt_permutation_of(key, x, small(s), byte(s) % 2);
    case 22: return nt_choice(key, number(s), shape(s), byte(s) % 2);
    default: return nt_categorical(key, x, small(s));
    }
}

static nt_tensor *rest(nt_tape *t, stream *s, values *v) {
    nt_tensor *x = any(s, v), *y = any(s, v), *z = any(s, v), *key = nt_key_tensor(t, nt_key(1));
    nt_tensor *three[3] = { x, y, z };
    nt_params list = { 1 + byte(s) % 3, three }; // no parts: no tape that could take a message
    switch (byte(s) % 18) {
    case 17: return einsum(s, list);
    case 0: return nt_concat(list, small(s));
    case 1: return nt_stack(list, small(s));
    case 2: return nt_gather_clip(x, y, small(s));
    case 3: return nt_gather(x, y, small(s));
    case 4: return nt_scatter_add(x, y, z, small(s));
    case 5: return nt_softmax(x, small(s));
    case 6: return nt_log_softmax(x, small(s));
    case 7: return nt_layer_norm(x, y, z, real(s));
    case 8: return nt_select(x, y, z);
    case 9: return nt_cast(x, dtype(s));
    case 10: return nt_dense(x, y, z);
    case 11: return nt_dropout(x, key, real(s), axes(s));
    case 12: return nt_argmax(x, small(s));
    case 13: case 14: case 15: return linear(s, x, y);
    default: return nt_randint(key, dtype(s), shape(s), number(s), number(s));
    }
}

static nt_tensor *step(nt_tape *t, stream *s, values *v) {
    nt_tensor *x = any(s, v), *y = any(s, v);
    switch (v->count < 2 ? 0 : byte(s) % 11) {
    case 0: return leaf(t, s);
    case 1: return unary(s, x);
    case 2: return binary(s, x, y);
    case 3: return reduction(s, x);
    case 4: return convolution(s, x, y);
    case 5: return pooling(s, x);
    case 6: return moved(s, x);
    case 8:
    case 9: return along(t, s, x, y);
    case 7: return nt_grad(byte(s) % 2 ? nt_sum(x) : x, y);
    default: return rest(t, s, v);
    }
}

static void fuzz_fail(const char *what, const char *message) {
    fprintf(stderr, "fuzz_shapes: %s (%s)\n", what, message ? message : "no message");
    abort();
}

// Compiles and runs what is small enough; a sum over a broadcast scalar may be any number of additions.
static void run(nt_tape *t, nt_tensor *x) {
    static double buffer[LARGEST];
    if (nt_size(x) > LARGEST) return;
    nt_marker mark = nt_mark(t);
    nt_program *p = nt_compile(x, NULL);
    int done = p && (nt_report(p).flops > 1e7 || (nt_run(p) == NT_OK && nt_read(p, 0, buffer) == NT_OK));
    if (!done && !nt_error(t)) fuzz_fail("compiling or running failed without a message", NULL);
    nt_error_clear(t);
    nt_rewind(t, mark);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static unsigned char memory[MEMORY];
    stream s = { data, size };
    values v;
    nt_tape_desc desc;
    memset(&v, 0, sizeof v);
    memset(&desc, 0, sizeof desc);
    desc.memory = memory;
    desc.memory_size = sizeof memory;
    nt_tape *t = nt_tape_open(&desc);
    while (s.left > 0 && v.count < MOST_VALUES) {
        nt_tensor *x = step(t, &s, &v);
        if (!x && !nt_error(t)) fuzz_fail("a call gave neither a value nor a message", NULL);
        if (x && nt_error(t) && nt_error_status(t) != NT_ERROR_ARGUMENT) fuzz_fail("a call gave a value and a message", nt_error(t));
        if (!x && !nt_error(t)[0]) fuzz_fail("an empty message", nt_error(t));
        nt_error_clear(t);
        if (!x) continue;
        if (x->rank < 0 || x->rank > NT_MAX_RANK || nt_size(x) < 0) fuzz_fail("a shape that is none", NULL);
        v.x[v.count++] = x;
    }
    for (int k = 0; k < v.count; k++) run(t, v.x[k]);
    nt_tape_close(t);
    return 0;
}

#ifdef FUZZ_STANDALONE
int main(int argc, char **argv) {
    uint8_t bytes[512];
    long count = argc > 1 ? atol(argv[1]) : 3000;
    uint64_t state = 88172645463325252u + (argc > 2 ? strtoull(argv[2], NULL, 0) : 0);
    for (long k = 0; k < count; k++) {
        size_t size = 0;
        for (size_t i = 0; i < sizeof bytes; i++) {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            bytes[i] = (uint8_t)(state >> 32);
        }
        size = 64 + (size_t)(state % (sizeof bytes - 64));
        LLVMFuzzerTestOneInput(bytes, size);
    }
    tap_ok(1, "%ld random programs", count);
    return tap_end();
}
#endif
