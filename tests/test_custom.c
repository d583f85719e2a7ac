// Operations of the host and derivatives of the host: against naive loops, differences and compositions of the library's own operations;
// rules that are missing; every transform; what is wrong is named.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

// ---------------------------------------------------------------------------------------------------------------------
// y_i = sum_j x_ij^2 w_j: operands of two shapes, a result of a third; with both rules, one, or none
// ---------------------------------------------------------------------------------------------------------------------
typedef struct calls { long infer, eval, vjp, jvp, vmap, tiles; } calls;

static int rows_infer(void *user, const nt_array *in, int inputs, nt_dtype *dtype, nt_shape *shape) {
    ((calls *)user)->infer++;
    if (inputs != 2 || in[0].rank != 2 || in[1].rank != 1 || in[0].shape[1] != in[1].shape[0] || in[0].dtype != NT_F64 || in[1].dtype != NT_F64 || in[0].data) return 0;
    *dtype = NT_F64, *shape = nt_shape_make(1, in[0].shape);
    return 1;
}

static void rows_eval(void *user, const nt_array *in, int inputs, const nt_array *out, int64_t tile, int64_t tiles) {
    const double *x = (const double *)in[0].data, *w = (const double *)in[1].data;
    int64_t n = in[0].shape[0], m = in[0].shape[1];
    (void)inputs;
    if (tiles == 1) ((calls *)user)->eval++; // else on any thread
    for (int64_t i = n * tile / tiles; i < n * (tile + 1) / tiles; i++) {
        double sum = 0;
        for (int64_t j = 0; j < m; j++) sum += x[i * m + j] * x[i * m + j] * w[j];
        ((double *)out->data)[i] = sum;
    }
}

static nt_tensor *column(nt_tensor *g) { return nt_expand_dims(g, 1); }

static nt_tensor *rows_vjp(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) {
    ((calls *)user)->vjp++, (void)y;
    if (k == 0) return nt_mul(column(g), nt_scale(nt_mul(in.items[0], in.items[1]), 2));
    return nt_sum_axes(nt_mul(column(g), nt_square(in.items[0])), NT_AXES(0), 0);
}

static nt_tensor *rows_jvp(void *user, nt_tensor *y, nt_params in, nt_params t) {
    nt_tensor *a = t.items[0] ? nt_scale(nt_mul(nt_mul(t.items[0], in.items[0]), in.items[1]), 2) : NULL;
    nt_tensor *b = t.items[1] ? nt_mul(nt_square(in.items[0]), t.items[1]) : NULL;
    ((calls *)user)->jvp++, (void)y;
    return nt_sum_axes(!a ? b : !b ? a : nt_add(a, b), NT_AXES(1), 0);
}

static nt_tensor *rows_composed(nt_tensor *x, nt_tensor *w) { return nt_sum_axes(nt_mul(nt_square(x), w), NT_AXES(1), 0); }

static nt_custom_desc rows_desc(calls *c, int vjp, int jvp) {
    nt_custom_desc d;
    memset(&d, 0, sizeof d), memset(c, 0, sizeof *c);
    d.name = "weighted squares", d.user = c, d.infer = rows_infer, d.eval = rows_eval;
    if (vjp) d.vjp = rows_vjp;
    if (jvp) d.jvp = rows_jvp;
    return d;
}

enum { N = 3, M = 4 };
static double x0[N * M], w0[M], v0[N * M];
static void fill(void) {
    for (int k = 0; k < N * M; k++) x0[k] = 0.3 + 0.17 * ((k * 5) % 7), v0[k] = 0.5 - 0.21 * ((k * 3) % 5);
    for (int k = 0; k < M; k++) w0[k] = 0.7 - 0.3 * k;
}

static int near(const double *a, const double *b, int n, double tolerance, const char *what) {
    double worst = 0;
    for (int k = 0; k < n; k++) {
        double e = fabs(a[k] - b[k]) / (1 + fabs(b[k]));
        if (!(e <= worst)) worst = e;
    }
    int ok = tap_ok(worst <= tolerance, "%s", what);
    if (!ok) tap_note("worst error %g: %g, not %g", worst, a[0], b[0]);
    return ok;
}

static int read_all(nt_tape *t, nt_params p, double *out) { // several values, one after the other
    nt_program *q = nt_compile_many(t, p, NULL);
    int ok = q && nt_run(q) == NT_OK;
    for (int k = 0; ok && k < p.count; out += nt_size(p.items[k]), k++) ok = nt_read(q, k, out) == NT_OK;
    if (!ok) tap_note("%s", nt_error(t) ? nt_error(t) : "no error");
    return ok;
}

static void test_rules(int vjp, int jvp) {
    calls c;
    nt_custom_desc d = rows_desc(&c, vjp, jvp);
    nt_tape *t = nt_tape_open(NULL);
    double got[256], wanted[256];
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(N, M), x0), *w = nt_variable(t, NT_F64, NT_SHAPE(M), w0), *v = nt_constant(t, NT_F64, NT_SHAPE(N, M), v0), *f[2];
    const char *which = vjp && jvp ? "both rules" : vjp ? "vjp alone" : "jvp alone";
    nt_tensor *y = nt_custom(t, &d, NT_LIST(x, w));
    nt_eval(y, got);
    for (int i = 0; i < N; i++) {
        wanted[i] = 0;
        for (int j = 0; j < M; j++) wanted[i] += x0[i * M + j] * x0[i * M + j] * w0[j];
    }
    near(got, wanted, N, 1e-15, "the value is that of a naive loop");
    nt_params all[2]; // everything at once: gradients, tangents, HVPs both ways, a gradient of a gradient, an expansion
    for (int k = 0; k < 2; k++) {
        nt_tensor *z = k ? rows_composed(x, w) : nt_custom(t, &d, NT_LIST(nt_sin(x), w));
        if (k) z = rows_composed(nt_sin(x), w);
        f[k] = nt_sum(nt_exp(nt_scale(z, 0.3)));
        nt_params g = nt_grads(f[k], NT_LIST(x, w)), h = nt_hvp(f[k], NT_LIST(x), NT_LIST(v)), j = nt_jvp(NT_LIST(z), NT_LIST(x, w), NT_LIST(v, nt_full_like(w, 1)));
        nt_tensor *u = nt_sum(nt_mul(g.count ? g.items[0] : NULL, v)), *uu = nt_grad(u, x), *uw = nt_grad(u, w);
        nt_tensor *series = nt_taylor(f[k], NT_LIST(x, w), NT_LIST(nt_add_scalar(x, 0.1), nt_scale(w, 0.9)), 4);
        nt_tensor **list = (nt_tensor **)malloc(16 * sizeof *list);
        all[k].count = 0, all[k].items = list;
        list[all[k].count++] = f[k];
        for (int i = 0; i < g.count; i++) list[all[k].count++] = g.items[i];
        list[all[k].count++] = h.count ? h.items[0] : NULL, list[all[k].count++] = j.count ? j.items[0] : NULL;
        list[all[k].count++] = uu, list[all[k].count++] = uw, list[all[k].count++] = series;
    }
    int n = 1 + N * M + M + N * M + N + N * M + M + 1;
    if (read_all(t, all[0], got) && read_all(t, all[1], wanted)) near(got, wanted, n, 1e-12, which);
    else tap_ok(0, "%s", which);
    tap_ok((c.vjp > 0) == vjp && (c.jvp > 0) == jvp, "the rules that there are were asked");
    // and by themselves: differences of the value
    double *data = (double *)nt_data(x), numbers[N * M], h = 1e-5;
    nt_program *value = nt_compile(f[0], NULL);
    for (int k = 0; k < N * M; k++) {
        double up, down;
        data[k] = x0[k] + h, nt_run(value), nt_read(value, 0, &up);
        data[k] = x0[k] - h, nt_run(value), nt_read(value, 0, &down);
        data[k] = x0[k], numbers[k] = (up - down) / (2 * h);
    }
    near(got + 1, numbers, N * M, 1e-8, "the gradient is that of differences"); // h^2 and rounding / h
    free(all[0].items), free(all[1].items);
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_tape_close(t);
}

static int refused(nt_tape *t, nt_status status, const char *text, const char *text2, const char *what) {
    int ok = nt_error_status(t) == status && nt_error(t) && strstr(nt_error(t), text) && strstr(nt_error(t), text2);
    tap_ok(ok, "%s: %s", what, nt_error(t) ? nt_error(t) : "no message");
    nt_error_clear(t);
    return ok;
}

static nt_tensor *bad_shape(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)user, (void)y, (void)in, (void)k, nt_sum(g); }
static int bad_infer(void *user, const nt_array *in, int inputs, nt_dtype *dtype, nt_shape *shape) {
    (void)user, (void)in, (void)inputs;
    *dtype = NT_F32, shape->rank = 2, shape->size[0] = 4, shape->size[1] = -3;
    return 1;
}

static void test_errors(void) {
    calls c;
    nt_custom_desc d = rows_desc(&c, 0, 0), e;
    nt_tape *t = nt_tape_open(NULL), *other = nt_tape_open(NULL);
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(N, M), x0), *w = nt_variable(t, NT_F64, NT_SHAPE(M), w0), *many[17];
    nt_tensor *y = nt_sum(nt_custom(t, &d, NT_LIST(x, w)));
    tap_ok(y && !nt_grad(y, x), "no rule, no derivative");
    refused(t, NT_ERROR_DERIVATIVE, "weighted squares", "vjp", "which is said");
    tap_ok(!nt_jvp(NT_LIST(y), NT_LIST(x), NT_LIST(x)).count, "forwards, too");
    refused(t, NT_ERROR_DERIVATIVE, "weighted squares", "jvp", "which is said");
    tap_ok(!nt_custom(t, &d, NT_LIST(w, x)), "operands that infer refuses");
    refused(t, NT_ERROR_SHAPE, "weighted squares(f64[4], f64[3,4])", "refuses", "are named");
    tap_ok(!nt_custom(t, NULL, NT_LIST(x)), "no descriptor");
    refused(t, NT_ERROR_ARGUMENT, "nt_custom", "descriptor", "is an error");
    e = d, e.eval = NULL;
    tap_ok(!nt_custom(t, &e, NT_LIST(x, w)), "no eval");
    refused(t, NT_ERROR_ARGUMENT, "nt_custom", "eval", "is an error");
    e = d, e.tiles = -1;
    tap_ok(!nt_custom(t, &e, NT_LIST(x, w)), "fewer tiles than none");
    refused(t, NT_ERROR_ARGUMENT, "weighted squares", ".tiles", "is an error");
    static const double flops[] = { -1, (double)NAN, HUGE_VAL };
    for (int k = 0; k < 3; k++) {
        e = d, e.flops = flops[k];
        tap_ok(!nt_custom(t, &e, NT_LIST(x, w)), "%g flops", flops[k]);
        refused(t, NT_ERROR_ARGUMENT, "weighted squares", ".flops", "is an error");
    }
    for (int k = 0; k < 17; k++) many[k] = x;
    nt_params list;
    list.count = 17, list.items = many;
    tap_ok(!nt_custom(t, &d, list), "too many operands");
    refused(t, NT_ERROR_ARGUMENT, "17 operands", "16", "is an error");
    tap_ok(!nt_custom(t, &d, NT_LIST(x, NULL)) && !nt_custom(NULL, &d, NT_LIST(x, w)) && !nt_error(t), "a NULL passes quietly");
    tap_ok(!nt_custom(t, &d, NT_LIST(x, nt_variable(other, NT_F64, NT_SHAPE(M), w0))), "an operand of another tape");
    refused(t, NT_ERROR_ARGUMENT, "weighted squares", "another tape", "is an error");
    e = d, e.infer = bad_infer;
    tap_ok(!nt_custom(t, &e, NT_LIST(x, w)), "an infer that gives no shape");
    refused(t, NT_ERROR_SHAPE, "weighted squares", "no valid shape", "is an error");
    e = d, e.infer = NULL;
    list.count = 0;
    tap_ok(!nt_custom(t, &e, list), "no operands and no infer");
    refused(t, NT_ERROR_ARGUMENT, "weighted squares", "infer", "is an error");
    e = d, e.vjp = bad_shape;
    tap_ok(!nt_grad(nt_sum(nt_custom(t, &e, NT_LIST(x, w))), x), "a rule that gives another shape");
    refused(t, NT_ERROR_SHAPE, "weighted squares: its vjp gave f64[]", "f64[3,4]", "is an error");
    tap_ok(!nt_custom_vjp(x, NT_LIST(x), NULL), "no rule");
    refused(t, NT_ERROR_ARGUMENT, "nt_custom_vjp", "rule", "is an error");
    tap_ok(!nt_custom_vjp(NULL, NT_LIST(x), &e) && !nt_custom_vjp(x, NT_LIST(x, NULL), &e) && !nt_error(t), "a NULL passes quietly");
    e = d, e.linear = 3; // linear in each, it says, and has no vjp: nothing to transpose
    tap_ok(!nt_grad(nt_sum(nt_custom(t, &e, NT_LIST(x, w))), x), "linear without a vjp");
    refused(t, NT_ERROR_DERIVATIVE, "weighted squares", "vjp", "has no gradient");
    nt_tape_close(t), nt_tape_close(other);
}

// ---------------------------------------------------------------------------------------------------------------------
// A linear one, which is its own transpose and says so by itself; sources; integers
// ---------------------------------------------------------------------------------------------------------------------
static void reverse_eval(void *user, const nt_array *in, int inputs, const nt_array *out, int64_t tile, int64_t tiles) {
    (void)user, (void)inputs, (void)tile, (void)tiles;
    for (int64_t k = 0, n = out->shape[0]; k < n; k++) ((double *)out->data)[k] = ((const double *)in[0].data)[n - 1 - k];
}

static nt_tensor *reverse(nt_tensor *x);
static nt_tensor *reverse_vjp(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)user, (void)y, (void)in, (void)k, reverse(g); }
static nt_tensor *reverse(nt_tensor *x) {
    nt_custom_desc d;
    memset(&d, 0, sizeof d);
    d.name = "reverse", d.eval = reverse_eval, d.vjp = reverse_vjp, d.linear = 1;
    return x ? nt_custom(x->tape, &d, NT_LIST(x)) : NULL;
}
static nt_tensor *self_jvp(void *user, nt_tensor *y, nt_params in, nt_params t); // a jvp through the operation itself, and no vjp
static nt_tensor *reverse_forwards(nt_tensor *x) {
    nt_custom_desc d;
    memset(&d, 0, sizeof d);
    d.name = "reverse forwards", d.eval = reverse_eval, d.jvp = self_jvp;
    return x ? nt_custom(x->tape, &d, NT_LIST(x)) : NULL;
}
static nt_tensor *self_jvp(void *user, nt_tensor *y, nt_params in, nt_params t) { return (void)user, (void)y, (void)in, reverse_forwards(t.items[0]); }

static int dice_infer(void *user, const nt_array *in, int inputs, nt_dtype *dtype, nt_shape *shape) {
    (void)user, (void)in, (void)inputs;
    *dtype = NT_I32, *shape = NT_SHAPE(4);
    return 1;
}
static void dice_eval(void *user, const nt_array *in, int inputs, const nt_array *out, int64_t tile, int64_t tiles) {
    (void)in, (void)inputs, (void)tile, (void)tiles;
    for (int k = 0; k < 4; k++) ((int32_t *)out->data)[k] = *(int32_t *)user + k;
}

static void test_linear(void) {
    nt_tape *t = nt_tape_open(NULL);
    double x1[4] = { 1, 2, 3, 4 }, v1[4] = { 5, 6, 7, 9 }, got[12], square[4] = { 16, 9, 4, 1 }, wanted[12];
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(4), x1), *v = nt_constant(t, NT_F64, NT_SHAPE(4), v1), *y = reverse(nt_square(x));
    nt_params j = nt_jvp(NT_LIST(y), NT_LIST(x), NT_LIST(v)), g = nt_vjp(NT_LIST(y), NT_LIST(v), NT_LIST(x));
    int ok = read_all(t, NT_LIST(y, j.count ? j.items[0] : NULL, g.count ? g.items[0] : NULL), got);
    for (int k = 0; k < 4; k++) wanted[k] = square[k], wanted[4 + k] = 2 * x1[3 - k] * v1[3 - k], wanted[8 + k] = 2 * x1[k] * v1[3 - k];
    tap_ok(ok && !memcmp(got, wanted, sizeof got), "a linear operation has a jvp by itself");
    nt_program *p = nt_compile(nt_add(reverse(nt_square(x)), reverse(nt_square(x))), NULL);
    int made = 0;
    for (int k = 0; k < p->instructions; k++) made += p->instruction[k].op == NTI_OP_CUSTOM;
    tap_ok(made == 1, "the same operation on the same operands is computed once");
    nt_tensor *series = nt_taylor(reverse(nt_exp(x)), NT_LIST(x), NT_LIST(v), 3), *composed = nt_taylor(nt_flip(nt_exp(x), NT_AXES(0)), NT_LIST(x), NT_LIST(v), 3);
    if (read_all(t, NT_LIST(series), got) && read_all(t, NT_LIST(composed), wanted)) near(got, wanted, 4, 1e-14, "and has its Taylor series");
    else tap_ok(0, "and has its Taylor series");
    tap_ok(!nt_grad(nt_sum(reverse_forwards(x)), x), "a jvp that is the operation itself cannot be transposed");
    refused(t, NT_ERROR_DERIVATIVE, "reverse forwards", "vjp", "which is said");
    int32_t base = 7, numbers[4] = { 0 };
    nt_custom_desc d;
    memset(&d, 0, sizeof d);
    d.user = &base, d.infer = dice_infer, d.eval = dice_eval;
    nt_params none;
    none.count = 0, none.items = NULL;
    nt_tensor *z = nt_custom(t, &d, none);
    tap_ok(nt_eval(nt_scale(z, 2), numbers) == NT_OK && numbers[0] == 14 && numbers[3] == 20, "a source of integers");
    double flops = nt_report(nt_compile(z, NULL)).flops;
    d.flops = 1000;
    tap_ok(flops == 4 && nt_report(nt_compile(nt_custom(t, &d, none), NULL)).flops == 1000, "its arithmetic is one an element, or what the descriptor says");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Derivatives of the host
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *through(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)user, (void)y, (void)in, (void)k, g; }
static nt_tensor *clipped(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)y, (void)in, (void)k, nt_clamp(g, -*(double *)user, *(double *)user); }
static nt_tensor *exp_rule(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)user, (void)in, (void)k, nt_mul(g, y); }
static nt_tensor *product_rule(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { // three times the right one
    (void)user, (void)y;
    return k == 2 ? NULL : nt_scale(nt_mul(g, in.items[1 - k]), 3);
}
static nt_tensor *exp_forwards(void *user, nt_tensor *y, nt_params in, nt_params t) { return (void)user, (void)in, nt_mul(t.items[0], y); }

static nt_tensor *with_vjp(nt_tensor *y, nt_tensor *x, nt_tensor *(*vjp)(void *, nt_tensor *, nt_params, nt_tensor *, int), void *user) {
    nt_custom_desc d;
    memset(&d, 0, sizeof d);
    d.name = "my rule", d.vjp = vjp, d.user = user;
    return nt_custom_vjp(y, NT_LIST(x), &d);
}

static void test_custom_vjp(void) {
    nt_tape *t = nt_tape_open(NULL);
    double x1[4] = { 0.3, 1.6, -2.7, 4.4 }, one[4] = { 1, 1, 1, 1 }, rounded[4] = { 0, 2, -3, 4 }, got[40], wanted[40], limit = 0.5;
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(4), x1), *v = nt_constant(t, NT_F64, NT_SHAPE(4), x1), *y = with_vjp(nt_round(x), x, through, NULL);
    nt_params j = nt_jvp(NT_LIST(y), NT_LIST(x), NT_LIST(v));
    int ok = read_all(t, NT_LIST(y, nt_grad(nt_sum(y), x), j.items[0], nt_grad(nt_sum(nt_square(y)), x)), got);
    tap_ok(ok && !memcmp(got, rounded, sizeof rounded), "straight through: the value is rounded");
    tap_ok(ok && !memcmp(got + 4, one, sizeof one) && !memcmp(got + 8, x1, sizeof x1), "the gradient is not, nor the tangent");
    for (int k = 0; k < 4; k++) wanted[k] = 2 * rounded[k];
    tap_ok(ok && !memcmp(got + 12, wanted, 4 * sizeof *got), "nor the gradient of its square");
    nt_tensor *c = with_vjp(x, x, clipped, &limit), *f = nt_sum(nt_square(c)), *g = nt_grad(f, x); // clip(2 x)
    for (int k = 0; k < 4; k++) wanted[k] = x1[k] * 2 > 0.5 ? 0.5 : x1[k] * 2 < -0.5 ? -0.5 : x1[k] * 2;
    ok = read_all(t, NT_LIST(c, g), got);
    tap_ok(ok && !memcmp(got, x1, sizeof x1) && !memcmp(got + 4, wanted, 4 * sizeof *got), "a gradient that is clipped on the way");
    // a right rule is as good as none: derivatives of derivatives, forwards and backwards, expansions
    for (int k = 0; k < 2; k++) {
        nt_tensor *e = nt_exp(nt_sin(x)), *s = nt_sin(x);
        nt_custom_desc d;
        memset(&d, 0, sizeof d);
        d.jvp = exp_forwards;
        if (k == 0) e = with_vjp(nt_exp(s), s, exp_rule, NULL);
        else e = nt_custom_vjp(nt_exp(s), NT_LIST(s), &d);
        nt_tensor *right = nt_sum(nt_mul(nt_exp(nt_sin(x)), x)), *mine = nt_sum(nt_mul(e, x));
        nt_tensor *q[2][6];
        for (int i = 0; i < 2; i++) {
            nt_tensor *h = i ? right : mine;
            q[i][0] = h, q[i][1] = nt_grad(h, x), q[i][2] = nt_hvp(h, NT_LIST(x), NT_LIST(v)).items[0];
            q[i][3] = nt_grad(nt_sum(nt_mul(q[i][1], v)), x), q[i][4] = nt_grad(nt_sum(nt_square(q[i][3])), x), q[i][5] = nt_taylor(h, NT_LIST(x), NT_LIST(nt_scale(x, 0.9)), 4);
        }
        nt_params a, b;
        a.count = b.count = 6, a.items = q[0], b.items = q[1];
        if (read_all(t, a, got) && read_all(t, b, wanted)) near(got, wanted, 18, 1e-12, k ? "exp with a jvp of its own, to the third order" : "exp with a vjp of its own, to the third order");
        else tap_ok(0, "exp with a rule of its own");
    }
    nt_tensor *a = nt_add_scalar(x, 1), *b = nt_add_scalar(x, 2), *w = nt_variable(t, NT_F64, NT_SHAPE(4), one), *z;
    nt_custom_desc d;
    memset(&d, 0, sizeof d);
    d.vjp = product_rule;
    z = nt_custom_vjp(nt_mul(nt_mul(a, b), nt_square(w)), NT_LIST(a, b, w), &d);
    nt_params grads = nt_grads(nt_sum(z), NT_LIST(x, w));
    ok = grads.count && read_all(t, grads, got);
    for (int k = 0; k < 4; k++) wanted[k] = 3 * (x1[k] + 2) + 3 * (x1[k] + 1), wanted[4 + k] = 0;
    tap_ok(ok && near(got, wanted, 8, 1e-15, "several operands: what the rule says, and nothing else"), "a NULL is zero");
    nt_program *p = nt_compile(z, NULL);
    tap_ok(p->instructions == nt_report(nt_compile(nt_mul(nt_mul(a, b), nt_square(w)), NULL)).instructions, "a rule costs nothing where no derivative is asked for");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Batches, by the rows themselves; maps; steps; rewinds
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *rows_vmap(void *user, nt_params in, const uint8_t *batched, int64_t size) {
    ((calls *)user)->vmap++, (void)size;
    return nt_sum_axes(nt_mul(nt_square(in.items[0]), batched[1] ? nt_expand_dims(in.items[1], 1) : in.items[1]), NT_AXES(2), 0);
}

static void test_batches(int host) {
    calls c;
    nt_custom_desc d = rows_desc(&c, 1, 0);
    if (host) d.vmap = rows_vmap;
    nt_tape *t = nt_tape_open(NULL);
    double many[2 * 5 * N * M], got[512], wanted[512];
    for (int k = 0; k < 2 * 5 * N * M; k++) many[k] = x0[k % (N * M)] + 0.01 * k;
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(N, M), x0), *w = nt_variable(t, NT_F64, NT_SHAPE(M), w0), *y = nt_custom(t, &d, NT_LIST(x, w)), *in[2], *z = y;
    nt_tensor *xs = nt_variable(t, NT_F64, NT_SHAPE(2, 5, N, M), many), *x5 = nt_variable(t, NT_F64, NT_SHAPE(5, N, M), many);
    uint8_t batched[2] = { 1, 0 };
    in[0] = x5, in[1] = w;
    z = nti_row_of(NTI_OP_CUSTOM)->vmap(y, in, batched, 5);
    nt_params g = nt_grads(nt_sum(nt_square(z)), NT_LIST(x5, w)), h = nt_grads(nt_sum(nt_square(nt_sum_axes(nt_mul(nt_square(x5), w), NT_AXES(2), 0))), NT_LIST(x5, w));
    int ok = g.count && h.count && read_all(t, g, got) && read_all(t, h, wanted);
    tap_ok(ok && near(got, wanted, 5 * N * M + M, 1e-12, "a batch and its gradients"), "%s", host ? "by the host's rule" : "one after the other");
    tap_ok((c.vmap > 0) == host, "as the descriptor says");
    if (!host) { // two axes in front, and second derivatives
        in[0] = xs, in[1] = nt_broadcast(w, NT_SHAPE(5, M));
        z = nti_row_of(NTI_OP_CUSTOM)->vmap(z, in, batched, 2);
        nt_tensor *r = nt_sum_axes(nt_mul(nt_square(xs), w), NT_AXES(3), 0);
        nt_tensor *a = nt_grad(nt_sum(nt_square(nt_grad(nt_sum(nt_square(z)), xs))), xs), *b = nt_grad(nt_sum(nt_square(nt_grad(nt_sum(nt_square(r)), xs))), xs);
        ok = read_all(t, NT_LIST(z, a), got) && read_all(t, NT_LIST(r, b), wanted);
        tap_ok(ok && near(got, wanted, 10 * N + 10 * N * M, 1e-12, "two batch axes"), "to the second order");
        nt_tensor *s = nt_sin(x), *e = with_vjp(nt_exp(s), s, exp_rule, NULL), *pair[2]; // and of a rule
        pair[0] = nt_exp(nt_sin(x5)), pair[1] = nt_sin(x5), batched[1] = 1;
        nt_tensor *ee = nti_row_of(NTI_OP_CUSTOM_VJP)->vmap(e, pair, batched, 5);
        ok = ee && read_all(t, NT_LIST(nt_grad(nt_sum(nt_square(ee)), x5)), got) && read_all(t, NT_LIST(nt_grad(nt_sum(nt_exp(nt_scale(nt_sin(x5), 2))), x5)), wanted);
        tap_ok(ok && near(got, wanted, 5 * N * M, 1e-12, "a rule under a batch"), "with its own derivative");
    }
    nt_map *m = nt_map_begin(t, 5, NULL); // in a map, against the sum by hand
    nt_tensor *total = nt_map_sum(m, nt_sum(nt_exp(nt_scale(nt_custom(t, &d, NT_LIST(nt_map_slice(m, x5), w)), 0.2))));
    nt_map_end(m);
    nt_tensor *plain = nt_sum(nt_exp(nt_scale(nt_sum_axes(nt_mul(nt_square(x5), w), NT_AXES(2), 0), 0.2)));
    ok = read_all(t, NT_LIST(total, nt_grad(total, w), nt_grad(total, x5)), got) && read_all(t, NT_LIST(plain, nt_grad(plain, w), nt_grad(plain, x5)), wanted);
    tap_ok(ok && near(got, wanted, 1 + M + 5 * N * M, 1e-12, "in a map"), "with its gradients");
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_tape_close(t);
}

static void shuffled(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    (void)user;
    for (int64_t k = n - 1; k >= 0; k--) fn(arg, k, (int)(k % 3));
}

static void test_steps(void) { // training through one, whole, in slices, in tiles on workers: the same bits
    double after[3][M];
    nt_nonfinite f;
    for (int way = 0; way < 3; way++) {
        nt_tape_desc desc;
        calls c;
        nt_custom_desc d = rows_desc(&c, 1, 1);
        memset(&desc, 0, sizeof desc);
        if (way == 2) d.tiles = 3, desc.parallel.max_workers = 3, desc.parallel.for_each = shuffled;
        nt_tape *t = nt_tape_open(&desc);
        nt_tensor *x = nt_input(t, NT_F64, NT_SHAPE(N, M)), *w = nt_variable(t, NT_F64, NT_SHAPE(M), w0);
        nt_program *step = nt_compile_step(nt_mean(nt_square(nt_name(nt_custom(t, &d, NT_LIST(x, w)), "score"))), nt_adam(t, NULL), NULL);
        nt_forget_nodes(t);
        nt_write(x, x0);
        nt_clock none = { NULL, NULL };
        int ok = step != NULL;
        for (int k = 0; k < 5 && ok; k++) {
            nt_status status = way == 1 ? NT_AGAIN : nt_run(step);
            while (status == NT_AGAIN) status = nt_run_for(step, 0, none);
            ok = status == NT_OK;
        }
        memcpy(after[way], nt_data(w), sizeof after[way]);
        tap_ok(ok && (way == 2 || c.eval == 5) && after[way][0] != w0[0], "five updates through it");
        static char text[1 << 16];
        nt_report_json(step, text, sizeof text);
        tap_ok(strstr(text, "weighted squares") != NULL, "the report calls it by its name");
        ((double *)nt_data(w))[1] = 1.7e308;
        tap_ok(nt_trace_nonfinite(step, &f) == NT_NONFINITE && !strcmp(f.operation, "weighted squares") && !strcmp(f.name, "score"), "and so does the search for infinities: %s", nt_error(t));
        nt_tape_close(t);
    }
    tap_ok(!memcmp(after[0], after[1], sizeof after[0]) && !memcmp(after[0], after[2], sizeof after[0]), "in one go, in slices and in tiles: the same bits");
}

static void test_rewind(void) {
    calls c, c2;
    nt_custom_desc d = rows_desc(&c, 1, 1), e = rows_desc(&c2, 1, 1);
    nt_tape *t = nt_tape_open(NULL);
    double out[N];
    char name[] = "name in my array";
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(N, M), x0), *w = nt_variable(t, NT_F64, NT_SHAPE(M), w0);
    e.name = name;
    nt_program *p = nt_compile(nt_custom(t, &d, NT_LIST(x, w)), NULL);
    size_t objects = nt_memory(t).objects;
    nt_custom(t, &d, NT_LIST(x, w));
    tap_ok(nt_memory(t).objects == objects, "equal descriptors are kept once");
    nt_marker mark = nt_mark(t);
    nt_program *q = nt_compile(nt_custom(t, &e, NT_LIST(x, w)), NULL);
    memset(name, '?', sizeof name - 1);
    memset(&e, 0, sizeof e);
    tap_ok(nt_memory(t).objects > objects && nt_run(q) == NT_OK && c2.eval == 1, "the descriptor is copied");
    tap_ok(!strcmp(nti_op_name(q->instruction[0].op, q->instruction[0].call.i), "name in my array"), "with its name");
    nt_rewind(t, mark);
    tap_ok(nt_memory(t).objects == objects && nt_run(p) == NT_OK && nt_read(p, 0, out) == NT_OK, "a rewind ends it and leaves what is older");
    nt_tape_close(t);
}

int main(void) {
    fill();
    test_rules(1, 1);
    test_rules(1, 0);
    test_rules(0, 1);
    test_errors();
    test_linear();
    test_custom_vjp();
    test_batches(0);
    test_batches(1);
    test_steps();
    test_rewind();
    return tap_end();
}
