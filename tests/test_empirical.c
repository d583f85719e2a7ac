// Kernels of finite networks: every implementation against Jacobians from finite differences in f64, multiplied in loops written here;
// golden cases; what is computed apart and what is not.
#include "../nttrain.h"
#include "heap.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

// Deterministic numbers in about [-1, 1], not the library's.
static double number(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return (double)(int64_t)(*state >> 33) / 1073741824.0 - 1;
}

static nt_tensor *random_variable(nt_tape *t, nt_shape shape, uint64_t seed, double scale) {
    double data[2048];
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) n *= shape.size[k];
    for (int64_t k = 0; k < n; k++) data[k] = scale * number(&seed);
    return nt_variable(t, NT_F64, shape, data);
}

// ---------------------------------------------------------------------------------------------------------------------
// Networks: they make their parameters once, then record themselves for any number of samples
// ---------------------------------------------------------------------------------------------------------------------
#define MOST 24
typedef struct network {
    nt_tape *t;
    nt_tensor *p[MOST];
    int count, at, apart;
} network;

static nt_tensor *parameter(network *n, nt_shape shape) {
    if (n->at == n->count) {
        n->p[n->count] = random_variable(n->t, shape, 17 + (uint64_t)n->count * 101, 0.7);
        n->count++;
    }
    return n->p[n->at++];
}

typedef nt_tensor *(*recorded)(network *n, nt_tensor *x);

static nt_tensor *dense(network *n, nt_tensor *x, int64_t out) {
    nt_tensor *w = parameter(n, NT_SHAPE(x->shape[x->rank - 1], out)), *b = parameter(n, NT_SHAPE(out));
    return nt_dense(x, w, b);
}

// NTK parameterisation: the numbers stand in front of the weights
static nt_tensor *dense_ntk(network *n, nt_tensor *x, int64_t out) {
    int64_t in = x->shape[x->rank - 1];
    nt_tensor *w = parameter(n, NT_SHAPE(in, out)), *b = parameter(n, NT_SHAPE(1, out));
    return nt_add(nt_matmul(x, nt_scale(w, 1.3 / sqrt((double)in))), nt_scale(nt_reshape(b, NT_SHAPE(out)), 0.1));
}

static nt_tensor *conv(network *n, nt_tensor *x, int64_t out, int stride) {
    nt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.stride[0] = d.stride[1] = stride;
    nt_tensor *w = parameter(n, NT_SHAPE(3, 3, x->shape[3], out)), *b = parameter(n, NT_SHAPE(out));
    return nt_add(nt_conv(x, w, &d), b);
}

static nt_tensor *group_norm(network *n, nt_tensor *x) {
    nt_tensor *s = parameter(n, NT_SHAPE(x->shape[3])), *b = parameter(n, NT_SHAPE(x->shape[3]));
    return nt_group_norm(x, s, b, 2, 1e-6);
}

static nt_tensor *mlp(network *n, nt_tensor *x) {
    x = nt_tanh(dense(n, nt_reshape(x, NT_SHAPE(x->shape[0], 12)), 5));
    x = nt_gelu(dense_ntk(n, x, 4));
    return dense(n, x, 3);
}

static nt_tensor *cnn(network *n, nt_tensor *x) {
    x = nt_avg_pool(nt_tanh(conv(n, x, 4, 1)), NT_WINDOW(1, 2), NULL);
    x = nt_softplus(conv(n, x, 3, 2));
    return dense(n, nt_flatten(x, 1), 2);
}

static nt_tensor *pixels(network *n, nt_tensor *x) { return conv(n, nt_gelu(conv(n, x, 2, 1)), 2, 1); }

static nt_tensor *resnet(network *n, nt_tensor *x) {
    x = conv(n, x, 4, 1);
    nt_tensor *y = conv(n, nt_silu(group_norm(n, x)), 4, 1);
    x = nt_add(x, y);
    return dense(n, nt_mean_axes(nt_tanh(x), NT_AXES(1, 2), 0), 2);
}

static nt_tensor *attention(network *n, nt_tensor *x) {
    int64_t b = x->shape[0], tokens = 6, width = 4;
    nt_tensor *h[3];
    x = nt_add(dense(n, nt_reshape(x, NT_SHAPE(b, tokens, 2)), width), parameter(n, NT_SHAPE(1, tokens, width)));
    nt_tensor *cls = nt_broadcast(parameter(n, NT_SHAPE(1, 1, width)), NT_SHAPE(b, 1, width));
    x = nt_concat(NT_LIST(cls, x), 1);
    nt_tensor *s = parameter(n, NT_SHAPE(width)), *o = parameter(n, NT_SHAPE(width)), *y = nt_layer_norm(x, s, o, 1e-6);
    for (int k = 0; k < 3; k++) h[k] = nt_reshape(dense(n, y, width), NT_SHAPE(b, tokens + 1, 2, width / 2));
    y = nt_reshape(nt_attention(h[0], h[1], h[2], NULL, NULL), NT_SHAPE(b, tokens + 1, width));
    x = nt_add(x, dense(n, y, width));
    return dense(n, nt_reshape(nt_slice_axis(x, 1, 0, 1), NT_SHAPE(b, width)), 2);
}

// The same weights at every step, and tied to the last layer
static nt_tensor *recurrent(network *n, nt_tensor *x) {
    int64_t b = x->shape[0];
    nt_tensor *u = parameter(n, NT_SHAPE(4, 3)), *w = parameter(n, NT_SHAPE(3, 3)), *h = NULL;
    x = nt_reshape(x, NT_SHAPE(b, 3, 4));
    for (int k = 0; k < 3; k++) {
        nt_tensor *in = nt_matmul(nt_reshape(nt_slice_axis(x, 1, k, k + 1), NT_SHAPE(b, 4)), u);
        h = nt_tanh(h ? nt_add(in, nt_matmul(h, w)) : in);
    }
    return nt_matmul(h, nt_transpose(w, NT_AXES(1, 0)));
}

// Products that are worth keeping apart: windows of few positions, padded, strided, dilated; the same weights twice
static nt_tensor *windows(network *n, nt_tensor *x) {
    nt_conv_desc d;
    memset(&d, 0, sizeof d);
    d.stride[0] = d.stride[1] = 2, d.dilation[1] = 2;
    nt_tensor *y = nt_sin(nt_conv(x, nt_scale(parameter(n, NT_SHAPE(2, 3, 2, 12)), 0.7), &d)), *u = parameter(n, NT_SHAPE(12, 9));
    y = nt_matmul(y, u); // (n, 1, 2, 9)
    return nt_sum_axes(nt_tanh(y), NT_AXES(1, 2), 0);
}
static nt_tensor *steps(network *n, nt_tensor *x) {
    nt_tensor *u = parameter(n, NT_SHAPE(6, 16)), *h = NULL;
    x = nt_reshape(x, NT_SHAPE(x->shape[0], 2, 6));
    for (int k = 0; k < 2; k++) {
        nt_tensor *in = nt_matmul(nt_reshape(nt_slice_axis(x, 1, k, k + 1), NT_SHAPE(x->shape[0], 6)), u);
        h = nt_tanh(h ? nt_add(in, nt_scale(h, 0.5)) : in);
    }
    return nt_slice_axis(h, 1, 3, 6);
}

static nt_tensor *batch_norm(network *n, nt_tensor *x) {
    x = conv(n, x, 3, 1);
    nt_tensor *s = parameter(n, NT_SHAPE(3)), *b = parameter(n, NT_SHAPE(3));
    return dense(n, nt_mean_axes(nt_tanh(nt_batch_norm(x, s, b, 1e-5)), NT_AXES(1, 2), 0), 2);
}

static nt_tensor *centred(network *n, nt_tensor *x) { // by hand: less the mean over the batch
    x = dense(n, nt_reshape(x, NT_SHAPE(x->shape[0], 12)), 3);
    return nt_sub(x, nt_mean_axes(x, NT_AXES(0), 1));
}

static nt_tensor *looped(network *n, nt_tensor *x) { // a loop over channels between the parameters and f
    nt_tensor *w = parameter(n, NT_SHAPE(12, 3));
    nt_map *m = nt_map_begin(n->t, 3, NULL);
    nt_tensor *column = nt_map_slice(m, nt_transpose(w, NT_AXES(1, 0)));
    nt_tensor *y = nt_map_stack(m, nt_tanh(nt_matmul(nt_reshape(x, NT_SHAPE(x->shape[0], 12)), column)));
    nt_map_end(m);
    return nt_transpose(y, NT_AXES(1, 0));
}

static nt_tensor *embedded(network *n, nt_tensor *x) { // tokens made of the numbers; a mixture of shared values
    nt_tensor *table = parameter(n, NT_SHAPE(5, 3)), *scale = parameter(n, NT_SHAPE(3));
    nt_tensor *ids = nt_cast(nt_add_scalar(nt_scale(nt_reshape(x, NT_SHAPE(x->shape[0], 12)), 2), 2.5), NT_I32);
    nt_tensor *y = nt_mul(nt_gather_clip(table, ids, 0), nt_exp(scale));
    return nt_add(nt_mean_axes(nt_sin(y), NT_AXES(1), 0), nt_sum_axes(nt_square(table), NT_AXES(0), 1));
}

static const struct {
    const char *name;
    recorded record;
    int apart;
} networks[] = {
    { "mlp", mlp, 1 },
    { "cnn", cnn, 1 },
    { "pixels", pixels, 1 },
    { "resnet", resnet, 1 },
    { "attention", attention, 1 },
    { "recurrent", recurrent, 1 },
    { "embedded", embedded, 1 },
    { "windows", windows, 1 },
    { "steps", steps, 1 },
    { "batch norm", batch_norm, 0 },
    { "centred", centred, 0 },
    { "looped", looped, 0 },
};
#define NETWORKS (int)(sizeof networks / sizeof networks[0])

// ---------------------------------------------------------------------------------------------------------------------
// The truth
// ---------------------------------------------------------------------------------------------------------------------

// (elements of f, parameters), by differences of the fourth order: errors of h^4 and of rounding / h, both about 1e-12
static double *difference_jacobian(nt_tensor *f, const network *n, int64_t *columns) {
    static const double step[] = { -2, -1, 1, 2 }, weight[] = { 1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12 };
    int64_t rows = nt_size(f), total = 0, at = 0;
    double h = 1e-3, *value = (double *)malloc((size_t)rows * sizeof *value);
    for (int k = 0; k < n->count; k++) total += nt_size(n->p[k]);
    double *j = (double *)calloc((size_t)(rows * total), sizeof *j);
    nt_program *p = nt_compile(f, NULL);
    for (int k = 0; k < n->count && p; k++) {
        double *data = (double *)nt_data(n->p[k]);
        for (int64_t e = 0; e < nt_size(n->p[k]); e++, at++) {
            double old = data[e];
            for (int s = 0; s < 4; s++) {
                data[e] = old + h * step[s];
                nt_run(p), nt_read(p, 0, value);
                for (int64_t r = 0; r < rows; r++) j[r * total + at] += weight[s] * value[r] / h;
            }
            data[e] = old;
        }
    }
    free(value);
    *columns = total;
    return j;
}

static int listed(nt_axes a, int axis, int rank) {
    for (int k = 0; k < a.count; k++)
        if ((a.axis[k] + rank) % rank == axis) return 1;
    return 0;
}

// The kernel of rows of j1 and j2, (elements, columns) each, shaped like f1 and f2: all pairs, one after the other.
static double *pair_kernel(const nt_tensor *f1, const double *j1, const nt_tensor *f2, const double *j2, int64_t columns,
                           const nt_empirical_desc *d, int64_t *size) {
    int r = f1->rank;
    int64_t total = 1, traced = 1;
    for (int a = 0; a < r; a++) {
        if (listed(d->trace, a, r))
            traced *= f1->shape[a];
        else
            total *= f1->shape[a] * (listed(d->diagonal, a, r) ? 1 : f2->shape[a]);
    }
    double *k = (double *)calloc((size_t)total, sizeof *k);
    for (int64_t p = 0; p < nt_size(f1); p++)
        for (int64_t q = 0; q < nt_size(f2); q++) {
            int64_t i[8], j[8], at = 0, x = p, y = q;
            int counts = 1;
            for (int a = r - 1; a >= 0; a--) i[a] = x % f1->shape[a], x /= f1->shape[a], j[a] = y % f2->shape[a], y /= f2->shape[a];
            for (int a = 0; a < r; a++) {
                int same = listed(d->trace, a, r) || listed(d->diagonal, a, r);
                if (same && i[a] != j[a]) counts = 0;
                if (listed(d->trace, a, r)) continue;
                at = at * f1->shape[a] + i[a];
                if (!same) at = at * f2->shape[a] + j[a];
            }
            double sum = 0;
            for (int64_t c = 0; c < columns && counts; c++) sum += j1[p * columns + c] * j2[q * columns + c];
            if (counts) k[at] += sum / (double)traced;
        }
    *size = total;
    return k;
}

static double distance(nt_tensor *k, const double *want, int64_t size) { // relative to the largest element
    double most = 0, scale = 0, *got = (double *)malloc((size_t)(size > 0 ? size : 1) * sizeof *got);
    if (!k || nt_size(k) != size || nt_eval(k, got) != NT_OK) most = HUGE_VAL;
    for (int64_t e = 0; e < size && most < HUGE_VAL; e++) {
        if (fabs(want[e]) > scale) scale = fabs(want[e]);
        if (!(fabs(got[e] - want[e]) <= most)) most = fabs(got[e] - want[e]);
    }
    free(got);
    return most / (scale > 0 ? scale : 1);
}

static nt_report_info costs(nt_tensor *k) { return nt_report(k ? nt_compile(k, NULL) : NULL); }

static const char *const implementation_name[] = { "auto", "Jacobian", "vector products", "structured" };

// Every implementation of the kernel of one network in one form.
static void forms_of(network *n, const char *name, nt_tensor *f1, nt_tensor *f2, const double *j1, const double *j2, int64_t columns,
                     nt_empirical_desc d, const char *form) {
    int64_t size;
    double *want = pair_kernel(f1, j1, f2 ? f2 : f1, f2 ? j2 : j1, columns, &d, &size), worst = 0;
    for (int i = 0; i < 4; i++)
        for (int s = 0; s < 3; s++)
            for (int b = 0; b < 2; b++) {
                nt_marker mark = nt_mark(n->t);
                if ((s == 1 && !n->apart) || (i == 0 && s == 2)) continue;
                d.implementation = (nt_ntk_implementation)i, d.samples = (nt_samples)s, d.budget = b ? 1 : 0; // 1: the least
                nt_params p = { n->count, n->p };
                nt_tensor *k = nt_empirical_ntk(f1, f2, p, &d);
                double e = distance(k, want, size);
                if (!(e < 1e-9))
                    tap_note("%s, %s, samples %d, budget %d: %g %s", form, implementation_name[i], s, b, e,
                             nt_error(n->t) ? nt_error(n->t) : "");
                if (!(e <= worst)) worst = e;
                nt_rewind(n->t, mark);
            }
    free(want);
    tap_ok(worst < 1e-9, "%s, %s%s: all implementations, %.1e", name, form, f2 ? "" : ", itself", worst); // 1e-11 is usual: the differences
}

static void network_forms(int which) {
    network n;
    memset(&n, 0, sizeof n);
    n.t = nt_tape_open(NULL), n.apart = networks[which].apart;
    nt_tensor *x1 = random_variable(n.t, NT_SHAPE(2, 2, 3, 2), 1, 1.2), *x2 = random_variable(n.t, NT_SHAPE(3, 2, 3, 2), 2, 1.2);
    nt_tensor *f1 = networks[which].record(&n, x1);
    n.at = 0;
    nt_tensor *f2 = networks[which].record(&n, x2);
    const char *name = networks[which].name;
    int64_t columns = 0;
    if (!f1 || !f2) {
        tap_ok(0, "%s: %s", name, nt_error(n.t));
        return;
    }
    double *j1 = difference_jacobian(f1, &n, &columns), *j2 = difference_jacobian(f2, &n, &columns);
    nt_empirical_desc d;
    memset(&d, 0, sizeof d);
    forms_of(&n, name, f1, f2, j1, j2, columns, d, "all axes");
    forms_of(&n, name, f1, NULL, j1, j2, columns, d, "all axes");
    d.trace = NT_AXES(NT_LAST);
    forms_of(&n, name, f1, f2, j1, j2, columns, d, "traced");
    forms_of(&n, name, f2, NULL, j2, j2, columns, d, "traced");
    d.diagonal = NT_AXES(0);
    forms_of(&n, name, f1, NULL, j1, j1, columns, d, "traced, each sample with itself");
    d.trace.count = 0, d.diagonal = NT_AXES(NT_LAST);
    forms_of(&n, name, f1, f2, j1, j2, columns, d, "diagonal");
    d.trace = NT_AXES(0), d.diagonal.count = 0;
    forms_of(&n, name, f2, NULL, j2, j2, columns, d, "traced over samples");
    if (networks[which].record == windows || networks[which].record == steps) {
        double flops[2];
        nt_params p = { n.count, n.p };
        d.trace = NT_AXES(NT_LAST);
        for (int s = 0; s < 2; s++)
            d.implementation = s ? NT_NTK_STRUCTURED : NT_NTK_JACOBIAN, flops[s] = costs(nt_empirical_ntk(f1, f2, p, &d)).flops;
        tap_ok(flops[1] < flops[0], "%s: structured, and not by Jacobians: %.0f and %.0f flops", name, flops[1], flops[0]);
    }
    if (f1->rank == 4) {
        d.trace = NT_AXES(NT_LAST), d.diagonal = NT_AXES(1, 2);
        forms_of(&n, name, f1, f2, j1, j2, columns, d, "the same pixel");
        d.trace = NT_AXES(3, 1), d.diagonal = NT_AXES(2);
        forms_of(&n, name, f1, f2, j1, j2, columns, d, "traced over rows and channels, the same column");
    }
    free(j1), free(j2);
    nt_tape_close(n.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Golden cases: the networks of data/kernels that are applied with given parameters
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *golden_dense(network *n, nt_tensor *x, double w_std, double b_std, int ntk) { // weights n->p[n->at ..]
    nt_tensor *w = n->p[n->at++], *y = nt_matmul(x, w);
    if (ntk) y = nt_scale(y, w_std / sqrt((double)w->shape[0]));
    if (b_std < 0) return y;
    nt_tensor *b = nt_flatten(n->p[n->at++], 0);
    return nt_add(y, ntk ? nt_scale(b, b_std) : b);
}

static nt_tensor *golden_conv(network *n, nt_tensor *x, int s0, int s1, nt_padding padding, double w_std, double b_std) {
    nt_conv_desc d;
    nt_tensor *w = n->p[n->at++];
    memset(&d, 0, sizeof d);
    d.stride[0] = s0, d.stride[1] = s1, d.padding = padding;
    nt_tensor *y = nt_scale(nt_conv(x, w, &d), w_std / sqrt((double)(w->shape[0] * w->shape[1] * w->shape[2])));
    return b_std < 0 ? y : nt_add(y, nt_scale(nt_flatten(n->p[n->at++], 0), b_std));
}

static nt_tensor *golden_fc(network *n, nt_tensor *x) {
    x = nt_relu(golden_dense(n, x, 1.3, 0.1, 1));
    return golden_dense(n, nt_relu(golden_dense(n, x, 1.1, 0.2, 1)), 1, -1, 1);
}
static nt_tensor *golden_fc_std(network *n, nt_tensor *x) {
    x = nt_erf(golden_dense(n, x, 1.3, 0.1, 0));
    return golden_dense(n, nt_gelu(golden_dense(n, x, 1.1, 0.2, 0)), 1, -1, 0);
}
static nt_tensor *golden_cnn(network *n, nt_tensor *x) {
    x = nt_relu(golden_conv(n, x, 1, 1, NT_SAME, 1.3, 0.1));
    x = nt_erf(golden_conv(n, x, 2, 1, NT_VALID, 1.1, 0.1));
    return golden_dense(n, nt_flatten(x, 1), 1, 0.1, 1);
}
static nt_tensor *golden_pixels(network *n, nt_tensor *x) {
    x = nt_relu(golden_conv(n, x, 1, 1, NT_SAME, 1.3, 0.1));
    return golden_conv(n, x, 1, 1, NT_SAME, 1.1, -1);
}

static nt_tensor *loaded(nt_tape *t, nt_file *file, const char *name, nt_dtype as) { // NULL: not in the file
    const nt_file_entry *e = nt_file_find(file, name);
    if (!e) return NULL;
    nt_tensor *x = nt_variable(t, as, e->shape, NULL);
    return x && nt_file_read(file, e, nt_data(x), as) == NT_OK ? x : NULL;
}

static void golden_case(const char *name, recorded record, nt_axes trace, nt_axes diagonal, nt_dtype dtype) {
    char path[256];
    network n;
    memset(&n, 0, sizeof n);
    n.t = nt_tape_open(NULL);
    snprintf(path, sizeof path, "data/kernels/%s.safetensors", name);
    nt_file *file = nt_file_open(n.t, path);
    for (; n.count < MOST; n.count++) {
        snprintf(path, sizeof path, "p%d", n.count);
        if (!(n.p[n.count] = loaded(n.t, file, path, dtype))) break;
    }
    nt_tensor *x[2], *f[2], *v = loaded(n.t, file, "v", dtype), *want[2], *got[2];
    double tolerance = dtype == NT_F64 ? 1e-10 : 2e-5, worst = 0; // of the cases, relative to the largest element
    for (int j = 0; j < 2; j++) n.at = 0, x[j] = loaded(n.t, file, j ? "x2" : "x1", dtype), f[j] = x[j] ? record(&n, x[j]) : NULL;
    nt_params p = { n.count, n.p };
    want[0] = loaded(n.t, file, v ? "out" : "nngp", NT_F64), want[1] = loaded(n.t, file, "ntk", NT_F64);
    for (int i = v ? NT_NTK_STRUCTURED : NT_NTK_AUTO; i <= NT_NTK_STRUCTURED && f[0] && f[1]; i++) {
        nt_empirical_desc d;
        memset(&d, 0, sizeof d);
        d.trace = trace, d.diagonal = diagonal, d.implementation = (nt_ntk_implementation)i;
        got[0] = v ? nt_ntk_vp(f[0], f[1], p, v) : nt_empirical_nngp(f[0], f[1], &d);
        got[1] = v ? NULL : nt_empirical_ntk(f[0], f[1], p, &d);
        for (int k = 0; k < 2 - (v != NULL); k++) {
            int same = got[k] && want[k] && got[k]->rank == want[k]->rank;
            for (int a = 0; same && a < got[k]->rank; a++) same = got[k]->shape[a] == want[k]->shape[a];
            double e = same ? distance(nt_cast(got[k], NT_F64), (const double *)nt_data(want[k]), nt_size(want[k])) : HUGE_VAL;
            if (!(e <= worst)) worst = e;
        }
    }
    if (!f[0] || !f[1]) worst = HUGE_VAL;
    tap_ok(worst <= tolerance, "golden %s, %s: %.1e%s%s", name, nt_dtype_name(dtype), worst, nt_error(n.t) ? ", " : "",
           nt_error(n.t) ? nt_error(n.t) : "");
    nt_file_close(file);
    nt_tape_close(n.t);
}

static void golden_cases(nt_dtype dtype) {
    nt_axes none = { 0, { 0 } }, last = { 1, { -1 } }, image = { 2, { 1, 2 } };
    golden_case("emp_fc", golden_fc, last, none, dtype);
    golden_case("emp_fc_full", golden_fc, none, none, dtype);
    golden_case("emp_fc_diag", golden_fc, none, last, dtype);
    golden_case("emp_fc_std", golden_fc_std, last, none, dtype);
    golden_case("emp_conv", golden_cnn, last, none, dtype);
    golden_case("emp_conv_full", golden_cnn, none, none, dtype);
    golden_case("emp_pixels_diag", golden_pixels, last, image, dtype);
    golden_case("emp_pixels_full", golden_pixels, last, none, dtype);
    golden_case("emp_vp", golden_cnn, none, none, dtype);
}

// ---------------------------------------------------------------------------------------------------------------------
// What is computed: operations and bytes
// ---------------------------------------------------------------------------------------------------------------------
static nt_layer *wide_mlp(nt_tape *t, int outputs) {
    return NT_SERIAL(t, nt_dense_layer(t, 64, NULL), nt_relu_layer(t), nt_dense_layer(t, 64, NULL), nt_relu_layer(t),
                     nt_dense_layer(t, outputs, NULL));
}

static void what_it_costs(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_empirical_desc d;
    nt_layer *net = wide_mlp(t, 4);
    nt_tensor *x1 = nt_input(t, NT_F32, NT_SHAPE(8, 16)), *x2 = nt_input(t, NT_F32, NT_SHAPE(8, 16)), *f1, *f2, *k;
    nt_report_info r[2][4], least;
    nt_init(net, nt_key(1), x1);
    f1 = nt_apply(net, x1, NULL), f2 = nt_apply(net, x2, NULL);
    memset(&d, 0, sizeof d);
    for (int s = 0; s < 2; s++)
        for (int i = 0; i < 4; i++) {
            d.implementation = (nt_ntk_implementation)i, d.samples = s ? NT_SAMPLES_MIXED : NT_SAMPLES_AUTO;
            k = nt_empirical_ntk(f1, f2, nt_parameters(net), &d);
            r[s][i] = costs(k);
        }
    double parameters = 16 * 64 + 64 + 64 * 64 + 64 + 64 * 4 + 4, pairs = 32 * 32;
    // J1 J2^T alone is 2 P flops a pair of outputs; products of inputs and cotangents need about 2 (16 + 64 + 64 + 64 + 64 + 4)
    tap_ok(r[0][NT_NTK_JACOBIAN].flops >= 2 * parameters * pairs, "Jacobians: %.0f flops for %.0f parameters and %.0f pairs",
           r[0][NT_NTK_JACOBIAN].flops, parameters, pairs);
    tap_ok(r[0][NT_NTK_STRUCTURED].flops < 0.2 * r[0][NT_NTK_JACOBIAN].flops, "structured: %.0f flops", r[0][NT_NTK_STRUCTURED].flops);
    tap_ok(r[0][NT_NTK_VECTOR_PRODUCTS].peak < 0.5 * r[0][NT_NTK_JACOBIAN].peak, "vector products: %zu bytes, Jacobians %zu",
           r[0][NT_NTK_VECTOR_PRODUCTS].peak, r[0][NT_NTK_JACOBIAN].peak);
    tap_ok(r[1][NT_NTK_JACOBIAN].flops > 1.05 * r[0][NT_NTK_JACOBIAN].flops, "mixed samples cost more: %.0f flops",
           r[1][NT_NTK_JACOBIAN].flops);
    tap_ok(r[0][NT_NTK_AUTO].time <= r[0][NT_NTK_STRUCTURED].time * (1 + 1e-9), "automatic: %.3g of %.3g, %.3g and %.3g seconds",
           r[0][0].time, r[0][1].time, r[0][2].time, r[0][3].time);
    d.samples = NT_SAMPLES_AUTO;
    for (int i = NT_NTK_AUTO; i <= NT_NTK_STRUCTURED; i++) {
        size_t budget = i == NT_NTK_VECTOR_PRODUCTS ? r[0][i].peak : i == NT_NTK_JACOBIAN ? r[0][i].peak / 2 : r[0][i].peak * 7 / 8;
        d.implementation = (nt_ntk_implementation)i, d.budget = budget;
        k = nt_empirical_ntk(f1, f2, nt_parameters(net), &d);
        nt_compile_desc c;
        memset(&c, 0, sizeof c);
        c.budget = budget;
        least = nt_report(nt_compile(k, &c));
        tap_ok(least.peak > 0 && least.peak <= budget, "%s within %zu bytes: %zu, %.2f of the flops", implementation_name[i], budget,
               least.peak, least.flops / r[0][i].flops);
        nt_error_clear(t);
    }
    // memory does not grow with the number of traced outputs
    size_t peak[2];
    for (int j = 0; j < 2; j++) {
        nt_layer *more = wide_mlp(t, j ? 256 : 16);
        nt_init(more, nt_key(1), x1);
        memset(&d, 0, sizeof d);
        d.trace = NT_AXES(NT_LAST), d.implementation = NT_NTK_STRUCTURED;
        peak[j] = costs(nt_empirical_ntk(nt_apply(more, x1, NULL), nt_apply(more, x2, NULL), nt_parameters(more), &d)).peak;
    }
    tap_ok(peak[1] < peak[0] + 4 * 8 * 256 * 10, "traced over 16 outputs: %zu bytes, over 256: %zu (a few arrays of outputs more)", peak[0],
           peak[1]);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels are recorded values: their derivatives, and kernels in loops
// ---------------------------------------------------------------------------------------------------------------------
static void transformed(void) {
    for (int i = NT_NTK_JACOBIAN; i <= NT_NTK_STRUCTURED; i++) {
        network n;
        nt_empirical_desc d;
        memset(&n, 0, sizeof n), memset(&d, 0, sizeof d);
        n.t = nt_tape_open(NULL);
        d.trace = NT_AXES(NT_LAST), d.implementation = (nt_ntk_implementation)i;
        nt_tensor *x = random_variable(n.t, NT_SHAPE(3, 12), 4, 1), *f = mlp(&n, x);
        nt_params p = { n.count, n.p };
        nt_tensor *weight = random_variable(n.t, NT_SHAPE(3, 3), 8, 1);
        nt_tensor *y = nt_sum(nt_mul(nt_empirical_ntk(f, NULL, p, &d), weight)), *g = nt_grad(y, n.p[2]);
        double got[20], h = 1e-3, worst = 0, *w = (double *)nt_data(n.p[2]);
        nt_program *run = nt_compile(y, NULL);
        int ok = g && run && nt_eval(g, got) == NT_OK;
        for (int k = 0; k < 20 && ok; k++) {
            static const double step[] = { -2, -1, 1, 2 }, factor[] = { 1.0 / 12, -8.0 / 12, 8.0 / 12, -1.0 / 12 };
            double old = w[k], slope = 0, value;
            for (int s = 0; s < 4; s++) w[k] = old + h * step[s], nt_run(run), nt_read(run, 0, &value), slope += factor[s] * value / h;
            w[k] = old, worst = fmax(worst, fabs(slope - got[k]) / (1 + fabs(slope)));
        }
        tap_ok(ok && worst < 1e-9, "%s: the gradient of a kernel by a parameter, %.1e", implementation_name[i], worst);
        // in the body of a map: for each of three inputs
        nt_tensor *xs = random_variable(n.t, NT_SHAPE(3, 2, 12), 5, 1), *each[3];
        nt_map *m = nt_map_begin(n.t, 3, NULL);
        n.at = 0;
        nt_tensor *inside = nt_map_stack(m, nt_empirical_ntk(mlp(&n, nt_map_slice(m, xs)), f, p, &d));
        nt_map_end(m);
        m = nt_map_begin(n.t, 3, NULL);
        n.at = 0;
        nt_tensor *body = mlp(&n, nt_map_slice(m, xs));
        nt_map_end(m);
        nt_tensor *after = nt_map_stack(m, nt_empirical_ntk(body, f, p, &d)); // of a body that has ended
        for (int k = 0; k < 3; k++)
            n.at = 0, each[k] = nt_empirical_ntk(mlp(&n, nt_reshape(nt_slice_axis(xs, 0, k, k + 1), NT_SHAPE(2, 12))), f, p, &d);
        nt_tensor *apart = nt_stack(NT_LIST(each[0], each[1], each[2]), 0);
        double want[18];
        ok = apart && nt_eval(apart, want) == NT_OK;
        tap_ok(ok && distance(inside, want, 18) < 1e-12 && distance(after, want, 18) < 1e-12, "%s: kernels in a map%s%s",
               implementation_name[i], nt_error(n.t) ? ": " : "", nt_error(n.t) ? nt_error(n.t) : "");
        nt_tape_close(n.t);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels of arrays
// ---------------------------------------------------------------------------------------------------------------------
enum { N1 = 5, N2 = 37, PIXELS = 2 * 3 * 2 };

static nt_layer *image_layer(nt_tape *t, int pixel_outputs, nt_parameterization par) {
    nt_conv_layer_desc c;
    nt_dense_desc d;
    memset(&c, 0, sizeof c), memset(&d, 0, sizeof d);
    c.parameterization = d.parameterization = par, c.W_std = d.W_std = 1.2, c.b_std = d.b_std = 0.2;
    nt_layer *body = NT_SERIAL(t, nt_conv_layer(t, 4, NT_WINDOW(3, 3), &c), nt_gelu_layer(t), nt_conv_layer(t, 2, NT_WINDOW(3, 3), &c));
    return pixel_outputs ? body : NT_SERIAL(t, body, nt_tanh_layer(t), nt_flatten_layer(t), nt_dense_layer(t, 3, &d));
}

typedef struct sunk {
    int blocks, calls, stop_at;
    int64_t pairs;
    double worst;
    const float *want;
    int64_t columns, elements;
} sunk;

static int sink(void *user, const nt_empirical_block *b) {
    sunk *s = (sunk *)user;
    s->blocks++;
    for (int64_t r = 0; r < b->rows; r++)
        for (int64_t c = 0; c < b->columns; c++)
            for (int64_t e = 0; e < b->elements; e++) {
                float got = ((const float *)b->ntk)[(r * b->pitch + c) * b->elements + e],
                      want = s->want[((b->row + r) * s->columns + b->column + c) * s->elements + e];
                double d = fabs((double)(got - want));
                if (!(d <= s->worst)) s->worst = d;
                s->pairs += !e;
            }
    return 0;
}
static int stop(void *user) { // asked for the stop_at-th time
    sunk *s = (sunk *)user;
    return ++s->calls == s->stop_at;
}
static void show(void *user, double done) {
    double *last = (double *)user;
    if (done < *last || done > 1)
        *last = 9;
    else
        *last = done;
}

static double worst_of(const float *a, const float *b, int64_t n) {
    double most = 0, scale = 0;
    for (int64_t k = 0; k < n; k++) {
        if (fabs((double)b[k]) > scale) scale = fabs((double)b[k]);
        if (!(fabs((double)a[k] - (double)b[k]) <= most)) most = fabs((double)a[k] - (double)b[k]);
    }
    return most / scale;
}

static void of_arrays(int pixel_outputs) {
    static float x1[N1 * PIXELS], x2[N2 * PIXELS];
    uint64_t seed = 5;
    const char *what = pixel_outputs ? "pixels" : "vectors";
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = image_layer(t, pixel_outputs, NT_PARAM_NTK);
    for (int k = 0; k < N1 * PIXELS; k++) x1[k] = (float)number(&seed);
    for (int k = 0; k < N2 * PIXELS; k++) x2[k] = (float)number(&seed);
    nt_tensor *in1 = nt_constant(t, NT_F32, NT_SHAPE(N1, 2, 3, 2), x1), *in2 = nt_constant(t, NT_F32, NT_SHAPE(N2, 2, 3, 2), x2);
    nt_init(net, nt_key(4), in1);
    nt_tensor *f1 = nt_apply(net, in1, NULL), *f2 = nt_apply(net, in2, NULL);
    nt_empirical_desc e;
    nt_empirical_kernel_desc d;
    memset(&e, 0, sizeof e), memset(&d, 0, sizeof d);
    if (pixel_outputs) e.trace = NT_AXES(1);
    int64_t elements = pixel_outputs ? 9 * 4 : 9, all = N1 * N2 * elements, self = N2 * N2 * elements;
    float *want[2], *got[2], *other = (float *)malloc((size_t)self * sizeof *other),
                             *square = (float *)malloc((size_t)self * sizeof *square);
    for (int k = 0; k < 2; k++)
        want[k] = (float *)malloc((size_t)all * sizeof **want), got[k] = (float *)malloc((size_t)all * sizeof **got);
    nt_eval(nt_empirical_nngp(f1, f2, &e), want[0]), nt_eval(nt_empirical_ntk(f1, f2, nt_parameters(net), &e), want[1]);
    d.trace = e.trace, d.dtype = NT_F32, d.shape = NT_SHAPE(2, 3, 2), d.nngp = got[0], d.ntk = got[1];
    nt_memory_use before = nt_memory(t), after;
    nt_status s = nt_empirical_kernel(net, x1, N1, x2, N2, &d);
    after = nt_memory(t);
    tap_ok(s == NT_OK && worst_of(got[0], want[0], all) < 1e-6 && worst_of(got[1], want[1], all) < 3e-6,
           "%s: kernels of arrays, %.1e and %.1e%s%s", what, worst_of(got[0], want[0], all), worst_of(got[1], want[1], all),
           nt_error(t) ? ", " : "", nt_error(t) ? nt_error(t) : "");
    tap_ok(before.nodes == after.nodes && before.programs == after.programs && before.inputs == after.inputs &&
               before.scratch == after.scratch,
           "the memory is given back");
    for (int i = NT_NTK_JACOBIAN; i <= NT_NTK_STRUCTURED; i++) { // bits: any budget, any part, the whole and its transposed half
        int same = 1, runs = 0;
        d.implementation = (nt_ntk_implementation)i, d.what = NT_NTK, d.nngp = NULL, d.budget = 0, d.ntk = got[0];
        d.row = d.rows = d.column = d.columns = 0;
        s = nt_empirical_kernel(net, x1, N1, x2, N2, &d);
        tap_ok(s == NT_OK && worst_of(got[0], want[1], all) < 3e-6, "%s: %s", what, implementation_name[i]);
        for (size_t budget = 1 << 20; budget >= 1 << 10; budget /= 2) {
            d.ntk = got[1], d.budget = budget;
            memset(got[1], 0, (size_t)all * sizeof(float));
            s = nt_empirical_kernel(net, x1, N1, x2, N2, &d);
            if (s == NT_ERROR_BUDGET) {
                nt_error_clear(t);
                break;
            }
            runs++, same = same && s == NT_OK && !memcmp(got[0], got[1], (size_t)all * sizeof(float));
        }
        tap_ok(same && runs > 3, "%s, %s: the same bits for %d budgets", what, implementation_name[i], runs);
        d.budget = 0, d.row = 1, d.rows = 3, d.column = 2, d.columns = 33;
        s = nt_empirical_kernel(net, x1, N1, x2, N2, &d);
        for (int r = 0; r < 3; r++)
            same = same &&
                   !memcmp(got[1] + r * 33 * elements, got[0] + ((r + 1) * N2 + 2) * elements, (size_t)(33 * elements) * sizeof(float));
        tap_ok(same && s == NT_OK, "%s, %s: a part has the bits of the whole", what, implementation_name[i]);
        d.row = d.rows = d.column = d.columns = 0, d.ntk = square;
        s = nt_empirical_kernel(net, x2, N2, NULL, 0, &d);
        nt_marker mark = nt_mark(t);
        nt_eval(nt_empirical_ntk(f2, NULL, nt_parameters(net), &e), other);
        nt_rewind(t, mark);
        tap_ok(s == NT_OK && worst_of(square, other, self) < 3e-6, "%s, %s: against itself, %.1e", what, implementation_name[i],
               worst_of(square, other, self));
        same = 1;
        for (int part = 0; part < 3; part++) { // above, below and across the diagonal
            static const int at[3][4] = { { 0, 9, 20, 17 }, { 20, 17, 0, 9 }, { 3, 30, 1, 20 } };
            d.row = at[part][0], d.rows = at[part][1], d.column = at[part][2], d.columns = at[part][3], d.ntk = other,
            d.budget = part == 2 ? 200000 : 0;
            s = nt_empirical_kernel(net, x2, N2, NULL, 0, &d);
            for (int64_t r = 0; r < d.rows; r++)
                same = same && s == NT_OK &&
                       !memcmp(other + r * d.columns * elements, square + ((d.row + r) * N2 + d.column) * elements,
                               (size_t)(d.columns * elements) * sizeof(float));
        }
        tap_ok(same, "%s, %s: parts of the symmetric kernel have its bits", what, implementation_name[i]);
        d.budget = 0, d.row = d.rows = d.column = d.columns = 0;
    }
    sunk k;
    double last = 0;
    memset(&k, 0, sizeof k);
    k.want = want[1], k.columns = N2, k.elements = elements;
    d.ntk = NULL, d.sink.take = sink, d.sink.user = &k, d.progress.update = show, d.progress.user = &last;
    s = nt_empirical_kernel(net, x1, N1, x2, N2, &d);
    tap_ok(s == NT_OK && k.pairs == N1 * N2 && k.blocks > 1 && k.worst < 1e-4, "%s: a sink sees %lld pairs in %d blocks", what,
           (long long)k.pairs, k.blocks);
    tap_ok(last == 1, "progress ends with 1");
    k.stop_at = 2, k.blocks = 0, d.cancel.asked = stop, d.cancel.user = &k;
    tap_ok(nt_empirical_kernel(net, x1, N1, x2, N2, &d) == NT_CANCELLED && k.blocks == 1, "cancelled after one block");
    for (int j = 0; j < 2; j++) free(want[j]), free(got[j]);
    free(other), free(square);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Means over random networks
// ---------------------------------------------------------------------------------------------------------------------

// Kernels of dense(W_std, b_std), activation, dense(1) without bias, of inputs with covariances q over dimensions, infinitely wide: with
// k = W^2 q + b^2, NNGP = E f f, NTK = NNGP + k E f' f' (the second layer's weights, then the first layer's through the activation).
static void closed_form(int relu, double q11, double q22, double q12, double w, double b, double *nngp, double *ntk) {
    double pi = acos(-1.0), k11 = w * w * q11 + b * b, k22 = w * w * q22 + b * b, k = w * w * q12 + b * b, dot;
    if (relu) {
        double c = k / sqrt(k11 * k22), angle = acos(c > 1 ? 1 : c);
        *nngp = sqrt(k11 * k22) * (sin(angle) + (pi - angle) * cos(angle)) / (2 * pi), dot = (pi - angle) / (2 * pi);
    } else {
        double d = (1 + 2 * k11) * (1 + 2 * k22);
        *nngp = 2 / pi * asin(2 * k / sqrt(d)), dot = 4 / pi / sqrt(d - 4 * k * k);
    }
    *ntk = *nngp + k * dot;
}

enum { SAMPLES = 200, WIDTH = 256, DIM = 6, NX = 3, NY = 4 };

static nt_layer *one_hidden(nt_tape *t, int relu) {
    nt_dense_desc first, last;
    memset(&first, 0, sizeof first), memset(&last, 0, sizeof last);
    first.parameterization = last.parameterization = NT_PARAM_NTK, first.W_std = 1.4, first.b_std = 0.3;
    last.W_std = 1, last.bias = NT_BIAS_OFF, first.dtype = last.dtype = NT_F64;
    return NT_SERIAL(t, nt_dense_layer(t, WIDTH, &first), relu ? nt_relu_layer(t) : nt_activation_layer(t, nt_erf),
                     nt_dense_layer(t, 4, &last));
}

static void monte_carlo(int relu, int tangents) {
    double x1[NX * DIM], x2[NY * DIM], mean[2][NX * NY], squares[2][NX * NY], error[2][NX * NY], again[4][NX * NY],
        worst = 0, largest[2] = { 0, 0 }, relative = 0;
    uint64_t seed = 9;
    int64_t count = 0;
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = one_hidden(t, relu);
    for (int k = 0; k < NX * DIM; k++) x1[k] = number(&seed);
    for (int k = 0; k < NY * DIM; k++) x2[k] = k < DIM ? x1[k] : number(&seed); // the first ones are equal
    nt_monte_carlo_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64, d.shape = NT_SHAPE(DIM), d.nngp = mean[0], d.ntk = mean[1], d.nngp_squares = squares[0], d.ntk_squares = squares[1];
    d.count = &count, d.tangents = tangents;
    nt_status s = nt_kernel_monte_carlo(net, nt_key(3), SAMPLES, x1, NX, x2, NY, &d);
    for (int w = 0; w < 2; w++) nt_standard_errors(squares[w], count, NX * NY, error[w]);
    for (int i = 0; i < NX; i++)
        for (int j = 0; j < NY; j++) {
            double q11 = 0, q22 = 0, q12 = 0, want[2];
            for (int c = 0; c < DIM; c++) {
                double a = x1[i * DIM + c], b = x2[j * DIM + c];
                q11 += a * a / DIM, q22 += b * b / DIM, q12 += a * b / DIM;
            }
            closed_form(relu, q11, q22, q12, 1.4, 0.3, &want[0], &want[1]);
            for (int w = 0; w < 2; w++) {
                int at = i * NY + j;
                double z = fabs(mean[w][at] - want[w]) / (5 * error[w][at] + 2.0 / WIDTH * fabs(want[w]));
                if (!(z <= worst)) worst = z;
                largest[w] = fmax(largest[w], fabs(want[w]));
            }
        }
    for (int k = 0; k < NX * NY; k++) relative = fmax(relative, fmax(error[0][k] / largest[0], error[1][k] / largest[1]));
    tap_ok(s == NT_OK && count == SAMPLES && worst < 1 && relative < 0.1,
           "%s, %d tangents: %d networks against the closed form, %.2f of 5 standard errors (the largest is %.3f of the kernel)",
           relu ? "relu" : "erf", tangents, SAMPLES, worst, relative);
    // on from 17, stopped in between, then to the end
    double *into[4];
    sunk k;
    memset(&k, 0, sizeof k);
    for (int w = 0; w < 4; w++) into[w] = again[w];
    d.nngp = into[0], d.ntk = into[1], d.nngp_squares = into[2], d.ntk_squares = into[3], count = 0;
    s = nt_kernel_monte_carlo(net, nt_key(3), 17, x1, NX, x2, NY, &d);
    d.cancel.asked = stop, d.cancel.user = &k, k.stop_at = 6, d.budget = 1 << 20;
    nt_status stopped = nt_kernel_monte_carlo(net, nt_key(3), SAMPLES, x1, NX, x2, NY, &d);
    tap_ok(s == NT_OK && stopped == NT_CANCELLED && count == 22, "stopped after network 22: %d", (int)count);
    d.cancel.asked = NULL;
    s = nt_kernel_monte_carlo(net, nt_key(3), SAMPLES, x1, NX, x2, NY, &d);
    int same = s == NT_OK && count == SAMPLES;
    for (int w = 0; w < 2; w++)
        same = same && !memcmp(again[w], mean[w], sizeof mean[w]) && !memcmp(again[2 + w], squares[w], sizeof squares[w]);
    tap_ok(same, "in three parts: the same bits");
    // against itself, with parameters of its own that stay
    nt_init(net, nt_key(77), nt_input(t, NT_F64, NT_SHAPE(1, DIM)));
    double own[DIM * WIDTH], kept[DIM * WIDTH], itself[NX * NX];
    memcpy(own, nt_data(nt_parameters(net).items[0]), sizeof own);
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64, d.shape = NT_SHAPE(DIM), d.ntk = itself, d.tangents = tangents;
    s = nt_kernel_monte_carlo(net, nt_key(3), SAMPLES, x1, NX, NULL, 0, &d);
    memcpy(kept, nt_data(nt_parameters(net).items[0]), sizeof kept);
    tap_ok(s == NT_OK && !memcmp(own, kept, sizeof own), "the network has its parameters again");
    tap_ok(s == NT_OK && fabs(itself[NX] - itself[1]) == 0 && fabs(itself[0] - mean[1][0]) <= 1e-12 * fabs(itself[0]) &&
               fabs(itself[NX] - mean[1][NY]) <= 1e-12,
           "against itself: symmetric, the same numbers");
    nt_tape_close(t);
}

static void constant_memory(void) {
    size_t total[2];
    float x[4 * 8];
    uint64_t seed = 1;
    for (int k = 0; k < 32; k++) x[k] = (float)number(&seed);
    for (int j = 0; j < 2; j++) {
        double k[16];
        nt_tape *t = nt_tape_open(NULL);
        nt_layer *net = wide_mlp(t, 3);
        nt_monte_carlo_desc d;
        memset(&d, 0, sizeof d);
        d.dtype = NT_F32, d.shape = NT_SHAPE(8), d.ntk = k;
        tap_ok(nt_kernel_monte_carlo(net, nt_key(1), j ? 200 : 2, x, 4, NULL, 0, &d) == NT_OK, "%d networks", j ? 200 : 2);
        total[j] = nt_memory(t).total;
        nt_tape_close(t);
    }
    tap_is_int((long)total[1], (long)total[0], "the bytes do not depend on the number of networks");
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------------------------
static void refused(nt_tape *t, int failed, nt_status status, const char *text) {
    const char *message = nt_error(t);
    tap_ok(failed && message && nt_error_status(t) == status && strstr(message, text), "refused: %s", message ? message : "(no message)");
    nt_error_clear(t);
}

static void errors(void) {
    network n, other;
    memset(&n, 0, sizeof n), memset(&other, 0, sizeof other);
    n.t = nt_tape_open(NULL), other.t = nt_tape_open(NULL);
    nt_tape *t = n.t;
    nt_tensor *f = mlp(&n, random_variable(t, NT_SHAPE(2, 12), 1, 1)), *g = nt_reshape(f, NT_SHAPE(2, 3, 1)),
              *h = nt_slice_axis(f, 1, 0, 2);
    nt_tensor *foreign = mlp(&other, random_variable(other.t, NT_SHAPE(2, 12), 1, 1)), *huge = nt_broadcast(f, NT_SHAPE(1, 1, 1, 2, 3));
    nt_params p = { n.count, n.p }, q = { other.count, other.p };
    nt_empirical_desc d;
    memset(&d, 0, sizeof d);
    refused(t, !nt_empirical_ntk(f, g, p, &d), NT_ERROR_SHAPE, "one rank");
    refused(t, !nt_empirical_nngp(f, nt_cast(f, NT_F32), &d), NT_ERROR_DTYPE, "one floating dtype");
    refused(t, !nt_empirical_ntk(f, foreign, p, &d), NT_ERROR_ARGUMENT, "another tape");
    refused(t, !nt_empirical_ntk(f, NULL, q, &d), NT_ERROR_ARGUMENT, "another tape");
    refused(t, !nt_empirical_ntk(huge, NULL, p, &d), NT_ERROR_SHAPE, "would have 10 axes");
    d.trace = NT_AXES(2);
    refused(t, !nt_empirical_ntk(f, NULL, p, &d), NT_ERROR_ARGUMENT, "axis 2 is out of range");
    d.trace = NT_AXES(1, -1);
    refused(t, !nt_empirical_nngp(f, NULL, &d), NT_ERROR_ARGUMENT, "named twice");
    d.trace = NT_AXES(1);
    refused(t, !nt_empirical_ntk(f, h, p, &d), NT_ERROR_SHAPE, "axis 1 is in .trace or .diagonal");
    d.trace.count = 9;
    refused(t, !nt_empirical_ntk(f, NULL, p, &d), NT_ERROR_ARGUMENT, "a list of 9 axes");
    d.trace.count = 0, d.implementation = (nt_ntk_implementation)4;
    refused(t, !nt_empirical_ntk(f, NULL, p, &d), NT_ERROR_ARGUMENT, "nt_ntk_implementation");
    d.implementation = NT_NTK_AUTO;
    refused(t, !nt_ntk_vp(f, NULL, p, h), NT_ERROR_SHAPE, "cotangent 0");
    tap_ok(!nt_empirical_ntk(NULL, f, p, &d) && !nt_empirical_nngp(NULL, NULL, NULL) && !nt_ntk_vp(f, f, p, NULL) && !nt_error(t),
           "NULL gives NULL");
    // what mixes samples is named
    network b;
    memset(&b, 0, sizeof b);
    b.t = t;
    nt_tensor *mixed = batch_norm(&b, random_variable(t, NT_SHAPE(2, 2, 3, 2), 1, 1));
    d.samples = NT_SAMPLES_APART;
    nt_params bp = { b.count, b.p };
    refused(t, !nt_empirical_ntk(mixed, NULL, bp, &d), NT_ERROR_ARGUMENT, "normalize");
    // parameters that f does not reach, before and after it, count as zero; so does a network of none
    nt_tensor *extra[MOST + 2], *late = random_variable(t, NT_SHAPE(3), 5, 1), *none = random_variable(t, NT_SHAPE(2, 3), 6, 1);
    for (int k = 0; k < n.count; k++) extra[k + 1] = n.p[k];
    extra[0] = late, extra[n.count + 1] = none;
    nt_params more = { n.count + 2, extra }, only = { 1, &late };
    int same = 1;
    for (int i = 0; i < 4; i++) {
        double x[36], y[36];
        memset(&d, 0, sizeof d);
        d.implementation = (nt_ntk_implementation)i;
        same = same && nt_eval(nt_empirical_ntk(f, NULL, p, &d), x) == NT_OK && nt_eval(nt_empirical_ntk(f, NULL, more, &d), y) == NT_OK &&
               !memcmp(x, y, sizeof x);
        same = same && nt_eval(nt_empirical_ntk(f, NULL, only, &d), x) == NT_OK;
        for (int k = 0; k < 36; k++) same = same && x[k] == 0;
        same = same && nt_eval(nt_empirical_ntk(none, NULL, only, &d), x) == NT_OK;
    }
    tap_ok(same, "parameters that f does not reach");
    d.implementation = NT_NTK_AUTO;
    nt_tensor *empty = nt_empirical_ntk(nt_slice_axis(f, 0, 0, 0), f, p, &d);
    tap_ok(empty && nt_size(empty) == 0 && empty->rank == 4, "no samples: an empty kernel");
    // a message that was there stays through trials
    nt_write(f, f);
    nt_empirical_ntk(f, NULL, p, &d);
    tap_ok(nt_error(t) && strstr(nt_error(t), "nt_write"), "a message from before stays: %s", nt_error(t) ? nt_error(t) : "none");
    nt_tape_close(t), nt_tape_close(other.t);
}

static nt_tensor *rows_gone(void *user, nt_tensor *x) { return (void)user, nt_sum_axes(x, NT_AXES(0), 0); }

static void errors_of_arrays(void) {
    float x[64], k[64];
    memset(x, 0, sizeof x);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = wide_mlp(t, 2);
    nt_empirical_kernel_desc d;
    nt_monte_carlo_desc m;
    double mean[64];
    memset(&d, 0, sizeof d), memset(&m, 0, sizeof m);
    d.dtype = m.dtype = NT_F32, d.shape = m.shape = NT_SHAPE(8), d.trace = NT_AXES(1), d.ntk = k, d.what = NT_NTK, m.ntk = mean;
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_STATE, NT_ERROR_STATE, "nt_init");
    nt_init(net, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, 8)));
    d.rows = 5;
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, "rows 0 to 5 of 4");
    d.rows = 0, d.trace = NT_AXES(0);
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, "axis 0 counts samples");
    d.trace = NT_AXES(1), d.shape = NT_SHAPE(7);
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_SHAPE, NT_ERROR_SHAPE, "f32[");
    d.shape = NT_SHAPE(8), d.what = 8;
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, ".what");
    d.what = NT_NTK, d.budget = 100;
    refused(t, nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_BUDGET, NT_ERROR_BUDGET, "has 100");
    nt_tensor *computed = nt_neg(nt_input(t, NT_F32, NT_SHAPE(1)));
    nt_write(computed, x);
    tap_ok(nt_empirical_kernel(net, x, 4, NULL, 0, &d) == NT_ERROR_BUDGET && strstr(nt_error(t), "nt_write"),
           "an older message stays, the status is the call's");
    nt_error_clear(t);
    d.budget = 0;
    nt_function gone = { rows_gone, NULL };
    nt_layer *summed = nt_function_layer(t, gone);
    nt_init(summed, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, 8)));
    refused(t, nt_empirical_kernel(summed, x, 4, NULL, 0, &d) == NT_ERROR_SHAPE, NT_ERROR_SHAPE, "axis 0 of both counts samples");
    tap_ok(nt_empirical_kernel(NULL, x, 4, NULL, 0, &d) == NT_ERROR_ARGUMENT && nt_empirical_kernel(net, x, 0, NULL, 0, &d) == NT_OK,
           "no network, no samples");
    m.tangents = -1;
    refused(t, nt_kernel_monte_carlo(net, nt_key(1), 2, x, 4, NULL, 0, &m) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, "-1 tangents");
    m.tangents = 0, m.nngp = m.ntk = NULL;
    refused(t, nt_kernel_monte_carlo(net, nt_key(1), 2, x, 4, NULL, 0, &m) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, "nothing is to be kept");
    tap_ok(nt_kernel_monte_carlo(net, nt_key(1), 0, x, 4, NULL, 0, NULL) == NT_ERROR_ARGUMENT, "no descriptor");
    nt_tape_close(t);
}

// A network that mixes samples: every image goes through alone, so the kernel of arrays is that of batches of one
static nt_tensor *by_batch(void *user, nt_tensor *x) { return (void)user, nt_add(x, nt_mean_axes(x, NT_AXES(0), 1)); }

static void mixing_arrays(void) {
    float x[5 * 8], got[25], one[25];
    uint64_t seed = 3;
    nt_tape *t = nt_tape_open(NULL);
    nt_function f = { by_batch, NULL };
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 6, NULL), nt_function_layer(t, f), nt_tanh_layer(t), nt_dense_layer(t, 1, NULL));
    nt_empirical_kernel_desc d;
    memset(&d, 0, sizeof d);
    for (int k = 0; k < 40; k++) x[k] = (float)number(&seed);
    nt_init(net, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, 8)));
    d.dtype = NT_F32, d.shape = NT_SHAPE(8), d.trace = NT_AXES(1), d.what = NT_NTK, d.ntk = got;
    int ok = nt_empirical_kernel(net, x, 5, NULL, 0, &d) == NT_OK;
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < 5; j++) {
            nt_tensor *a = nt_apply(net, nt_constant(t, NT_F32, NT_SHAPE(1, 8), x + 8 * i), NULL),
                      *b = nt_apply(net, nt_constant(t, NT_F32, NT_SHAPE(1, 8), x + 8 * j), NULL);
            ok = ok && nt_eval(nt_empirical_ntk(a, b, nt_parameters(net), NULL), one + 5 * i + j) == NT_OK;
        }
    tap_ok(ok && worst_of(got, one, 25) < 1e-6, "a network that mixes samples: each goes through alone, %.1e", worst_of(got, one, 25));
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Graphs: each sample with edges of its own; dropout
// ---------------------------------------------------------------------------------------------------------------------
enum { GN = 5, GM = 3, GV = 4, GC = 2, GE = 6 };
typedef struct graph_data { // GN samples, then GM; edges as pairs and as matrices
    float x[(GN + GM) * GV * GC], a[(GN + GM) * GV * GV];
    int32_t e[(GN + GM) * GE * 2];
} graph_data;
static void graphs_make(graph_data *g) {
    uint64_t seed = 21;
    memset(g, 0, sizeof *g);
    for (int k = 0; k < (GN + GM) * GV * GC; k++) g->x[k] = (float)number(&seed);
    memcpy(g->x + GN * GV * GC, g->x, GV * GC * sizeof *g->x); // the first of both are equal, but for their edges
    for (int k = 0; k < (GN + GM) * GE * 2; k++) g->e[k] = (int32_t)(fabs(number(&seed)) * 997) % GV;
    g->e[3] = -1; // no edge
    for (int k = 0; k < (GN + GM) * GE; k++)
        if (g->e[2 * k] >= 0 && g->e[2 * k + 1] >= 0) g->a[(k / GE * GV + g->e[2 * k]) * GV + g->e[2 * k + 1]] += 1;
}

static nt_layer *graph_net(nt_tape *t, int sparse, int width, double dropped) {
    nt_dense_desc d;
    nt_aggregate_desc e = { sparse };
    memset(&d, 0, sizeof d);
    d.parameterization = NT_PARAM_NTK, d.W_std = 1.3, d.b_std = 0.2;
    nt_layer *some = dropped > 0 ? nt_dropout_layer(t, 1 - dropped) : nt_identity_layer(t);
    return NT_SERIAL(t, nt_dense_layer(t, width, &d), nt_aggregate_layer(t, &e), nt_relu_layer(t), some, nt_flatten_layer(t), nt_dense_layer(t, 3, &d));
}

// Each pair by itself, recorded with its edges, is what the call says.
static void graphs_of_arrays(int sparse) {
    static graph_data g;
    float got[2][GN * GN], one[2], pairs = 0, worst = 0, apart = 0;
    graphs_make(&g);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = graph_net(t, sparse, 7, 0);
    nt_init(net, nt_key(8), nt_input(t, NT_F32, NT_SHAPE(1, GV, GC)));
    nt_empirical_kernel_desc d;
    nt_empirical_desc axes;
    memset(&d, 0, sizeof d), memset(&axes, 0, sizeof axes);
    d.dtype = NT_F32, d.shape = NT_SHAPE(GV, GC), d.trace = axes.trace = NT_AXES(1), d.nngp = got[0], d.ntk = got[1];
    d.edges = sparse ? GE : 0;
    for (int two = 0; two < 2; two++) {
        d.pattern1 = sparse ? (const void *)g.e : g.a, d.pattern2 = NULL;
        if (two) d.pattern2 = sparse ? (const void *)(g.e + GN * GE * 2) : g.a + GN * GV * GV;
        int columns = two ? GM : GN, ok = nt_empirical_kernel(net, g.x, GN, two ? g.x + GN * GV * GC : NULL, two ? GM : 0, &d) == NT_OK;
        if (!ok) tap_note("%s", nt_error(t));
        for (int k = 0; k < GN * columns && ok; k++) {
            int at[2] = { k / columns, k % columns + (two ? GN : 0) };
            nt_tensor *f[2];
            for (int j = 0; j < 2; j++) {
                nt_apply_desc a;
                memset(&a, 0, sizeof a);
                a.pattern = nt_constant(t, NT_F32, NT_SHAPE(1, GV, GV), g.a + at[j] * GV * GV);
                if (sparse) a.pattern = nt_constant(t, NT_I32, NT_SHAPE(1, GE, 2), g.e + at[j] * GE * 2);
                f[j] = nt_apply(net, nt_constant(t, NT_F32, NT_SHAPE(1, GV, GC), g.x + at[j] * GV * GC), &a);
            }
            ok = nt_eval(nt_empirical_nngp(f[0], f[1], &axes), &one[0]) == NT_OK &&
                 nt_eval(nt_empirical_ntk(f[0], f[1], nt_parameters(net), &axes), &one[1]) == NT_OK;
            for (int w = 0; w < 2; w++) worst = fmaxf(worst, fabsf(got[w][k] - one[w])), pairs += 1;
            if (k == 0) apart = two ? fabsf(got[1][0] - apart) : got[1][0];
        }
        tap_ok(ok && worst < 2e-5f, "%s graphs, %s: %d kernels as by hand, %.1e", sparse ? "sparse" : "dense", two ? "two sets" : "one set",
               (int)pairs, (double)worst);
    }
    tap_ok(apart > 0.1f, "the same sample with other edges is another one: %.2f", (double)apart);
    nt_tape_close(t);
}

// The mean over networks is what nt_kernel says of graphs and of dropout, and not what it says of a mistake.
static void means_over_graphs(int sparse, double dropped) {
    enum { W = 128, NETS = 400 };
    static graph_data g;
    double mean[2][GN * GN], squares[2][GN * GN], error[2][GN * GN];
    float limit[2][GN * GN], mistaken[2][GN * GN];
    int64_t count = 0;
    graphs_make(&g);
    memcpy(g.x + 4 * GV * GC, g.x, GV * GC * sizeof *g.x); // a copy, of which other units are dropped
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = graph_net(t, sparse, W, dropped);
    nt_kernel_desc k;
    nt_monte_carlo_desc d;
    for (int two = 0; two < (dropped > 0 ? 1 : 2); two++) { // two sets share no sample: no unit is dropped in both
        int columns = two ? GM : GN;
        memset(&k, 0, sizeof k), memset(&d, 0, sizeof d), count = 0;
        k.dtype = d.dtype = NT_F32, k.shape = d.shape = NT_SHAPE(GV, GC), k.train = d.train = dropped > 0, k.edges = d.edges = sparse ? GE : 0;
        k.pattern1 = d.pattern1 = sparse ? (const void *)g.e : g.a;
        if (two) k.pattern2 = d.pattern2 = sparse ? (const void *)(g.e + GN * GE * 2) : g.a + GN * GV * GV;
        const float *x2 = two ? g.x + GN * GV * GC : NULL;
        k.nngp = limit[0], k.ntk = limit[1], d.count = &count, d.tangents = 1;
        d.nngp = mean[0], d.ntk = mean[1], d.nngp_squares = squares[0], d.ntk_squares = squares[1];
        int ok = nt_kernel(net, g.x, GN, x2, two ? GM : 0, &k) == NT_OK, early = NETS / 3;
        k.nngp = mistaken[0], k.ntk = mistaken[1], k.train = 0;
        if (!dropped) k.pattern1 = k.pattern2 = NULL, k.edges = 0;
        ok = ok && nt_kernel(net, g.x, GN, x2, two ? GM : 0, &k) == NT_OK;
        ok = ok && nt_kernel_monte_carlo(net, nt_key(6), early, g.x, GN, x2, two ? GM : 0, &d) == NT_OK;
        ok = ok && nt_kernel_monte_carlo(net, nt_key(6), NETS, g.x, GN, x2, two ? GM : 0, &d) == NT_OK && count == NETS;
        if (!ok) tap_note("%s", nt_error(t));
        double right = 0, wrong = 0;
        for (int w = 0; w < 2; w++) {
            nt_standard_errors(squares[w], count, GN * columns, error[w]);
            for (int j = 0; j < GN * columns && ok; j++) {
                double allowed = 5 * error[w][j] + 2.0 / W * fabs((double)limit[w][j]);
                right = fmax(right, fabs(mean[w][j] - (double)limit[w][j]) / allowed);
                wrong = fmax(wrong, fabs(mean[w][j] - (double)mistaken[w][j]) / allowed);
            }
        }
        tap_ok(ok && right < 1 && wrong > 1, "%s graphs, %g kept, %s: %.2f of what is allowed, %.1f of the kernel %s", sparse ? "sparse" : "dense",
               dropped > 0 ? dropped : 1, two ? "two sets" : "one set", right, wrong, dropped > 0 ? "without dropout" : "without edges");
    }
    nt_tape_close(t);
}

// Equal samples of two sets lose other units.
static void dropped_apart(void) {
    enum { W = 128, NETS = 400 };
    static graph_data g;
    double mean[2][GM], squares[2][GM], error[GM], worst = 0;
    float limit[2][GM];
    graphs_make(&g);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = graph_net(t, 0, W, 0.6);
    nt_kernel_desc k;
    nt_monte_carlo_desc d;
    memset(&k, 0, sizeof k), memset(&d, 0, sizeof d);
    k.dtype = d.dtype = NT_F32, k.shape = d.shape = NT_SHAPE(GV, GC), k.train = d.train = 1;
    k.pattern1 = d.pattern1 = g.a, k.pattern2 = d.pattern2 = g.a + GN * GV * GV;
    k.nngp = limit[0], k.ntk = limit[1], d.tangents = 1;
    d.nngp = mean[0], d.ntk = mean[1], d.nngp_squares = squares[0], d.ntk_squares = squares[1];
    int ok = nt_kernel(net, g.x, 1, g.x + GN * GV * GC, GM, &k) == NT_OK &&
             nt_kernel_monte_carlo(net, nt_key(6), NETS, g.x, 1, g.x + GN * GV * GC, GM, &d) == NT_OK;
    for (int w = 0; w < 2; w++) {
        nt_standard_errors(squares[w], NETS, GM, error);
        for (int j = 0; j < GM && ok; j++)
            worst = fmax(worst, fabs(mean[w][j] - (double)limit[w][j]) / (5 * error[j] + 2.0 / W * fabs((double)limit[w][j])));
    }
    double shared = (fabs((double)limit[1][0]) / 0.6 - mean[1][0]) / error[0]; // were the same units dropped
    tap_ok(ok && worst < 1 && shared > 3, "dropout of two sets: %.2f of what is allowed; %.1f errors from the same units", worst, shared);
    nt_tape_close(t);
}

static void errors_of_graphs(void) {
    static graph_data g;
    float k[GN * GN];
    double mean[GN * GN];
    graphs_make(&g);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = graph_net(t, 0, 5, 0), *edges = graph_net(t, 1, 5, 0), *plain = nt_dense_layer(t, 3, NULL);
    nt_init(net, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, GV, GC))), nt_init(edges, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, GV, GC)));
    nt_init(plain, nt_key(1), nt_input(t, NT_F32, NT_SHAPE(1, GV, GC)));
    nt_empirical_kernel_desc d;
    nt_monte_carlo_desc m;
    memset(&d, 0, sizeof d), memset(&m, 0, sizeof m);
    d.dtype = m.dtype = NT_F32, d.shape = m.shape = NT_SHAPE(GV, GC), d.trace = NT_AXES(NT_LAST), d.ntk = k, m.ntk = mean;
#define NO(net, x2, n2, status, text) refused(t, nt_empirical_kernel(net, g.x, GN, x2, n2, &d) == status, status, text)
    NO(net, NULL, 0, NT_ERROR_ARGUMENT, ".pattern1");
    d.pattern1 = g.a;
    NO(net, g.x, GM, NT_ERROR_ARGUMENT, "nt_empirical_kernel: .pattern1 is given, .pattern2 is NULL");
    NO(plain, NULL, 0, NT_ERROR_ARGUMENT, "no nt_aggregate_layer");
    NO(edges, NULL, 0, NT_ERROR_ARGUMENT, ".edges is 0");
    d.edges = GE;
    NO(net, NULL, 0, NT_ERROR_ARGUMENT, ".edges is for");
    d.edges = -1;
    NO(net, NULL, 0, NT_ERROR_ARGUMENT, ".edges is a number");
    d.edges = 0, d.pattern2 = g.a + 1;
    NO(net, NULL, 0, NT_ERROR_ARGUMENT, "x2 is NULL");
    d.pattern1 = g.e, d.pattern2 = NULL, d.edges = GE, g.e[2 * GE + 1] = GV;
    NO(edges, NULL, 0, NT_ERROR_DATA, "");
    d.pattern1 = NULL, d.edges = 0, d.apply.pattern = nt_constant(t, NT_F32, NT_SHAPE(1, GV, GV), g.a);
    NO(net, NULL, 0, NT_ERROR_ARGUMENT, ".apply.pattern is of one batch");
    m.pattern2 = g.a;
    refused(t, nt_kernel_monte_carlo(net, nt_key(1), 2, g.x, GN, g.x, GM, &m) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT,
            "nt_kernel_monte_carlo: .pattern2 is given, .pattern1 is NULL");
    m.pattern1 = g.a;
    refused(t, nt_kernel_monte_carlo(plain, nt_key(1), 2, g.x, GN, g.x, GM, &m) == NT_ERROR_ARGUMENT, NT_ERROR_ARGUMENT, "no nt_aggregate_layer");
#undef NO
    nt_tape_close(t);
}

// Recorded, by arrays, over random networks; 0 after an error.
static double all_of_it(nt_tape *t) {
    float x[4 * 8], k[16], h[16];
    double mean[16];
    uint64_t seed = 2;
    nt_empirical_desc e;
    nt_empirical_kernel_desc d;
    nt_monte_carlo_desc m;
    for (int j = 0; j < 32; j++) x[j] = (float)number(&seed);
    memset(&e, 0, sizeof e), memset(&d, 0, sizeof d), memset(&m, 0, sizeof m);
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 9, NULL), nt_tanh_layer(t), nt_dense_layer(t, 3, NULL));
    e.trace = d.trace = NT_AXES(1), e.budget = 1 << 14, d.dtype = m.dtype = NT_F32, d.shape = m.shape = NT_SHAPE(8), d.what = NT_NTK,
    d.ntk = k, m.ntk = mean;
    nt_tensor *in = nt_constant(t, NT_F32, NT_SHAPE(4, 8), x);
    if (!in || nt_init(net, nt_key(1), in) != NT_OK) return 0;
    if (nt_eval(nt_empirical_ntk(nt_apply(net, in, NULL), NULL, nt_parameters(net), &e), h) != NT_OK) return 0;
    if (nt_empirical_kernel(net, x, 4, NULL, 0, &d) != NT_OK || nt_kernel_monte_carlo(net, nt_key(1), 3, x, 4, NULL, 0, &m) != NT_OK)
        return 0;
    return 1 + (double)h[1] + (double)k[2] + mean[3];
}

static void little_memory(void) {
    heap h;
    nt_tape_desc d;
    nt_tape *t = nt_tape_open(NULL);
    double value = all_of_it(t);
    size_t total = nt_memory(t).total;
    int ok = value != 0, failed = 0, tries = 0;
    nt_tape_close(t);
    for (long k = 1;; k++) { // each allocation fails once
        d = heap_desc(&h), h.fail_at = k;
        t = nt_tape_open(&d);
        double got = t ? all_of_it(t) : 0;
        ok = ok && (got == 0 ? !t || nt_error(t) != NULL : fabs(got - value) < 1e-5);
        failed += got == 0;
        nt_tape_close(t);
        ok = ok && !h.live;
        if (h.calls < k) break;
    }
    tap_ok(ok && failed > 2, "each allocation fails: an error, or the same by another way; %d failed", failed);
    char *memory = (char *)malloc(total);
    memset(&d, 0, sizeof d);
    d.memory = memory;
    failed = 0;
    for (size_t size = nt_tape_size_min(); size <= total; size += (total / 150) | 1, tries++) {
        d.memory_size = size;
        t = nt_tape_open(&d);
        double got = t ? all_of_it(t) : 0;
        ok = ok && (got == 0 ? !t || nt_error(t) != NULL : fabs(got - value) < 1e-5);
        failed += got == 0;
        nt_tape_close(t);
    }
    free(memory);
    tap_ok(ok && failed > 50 && failed < tries, "arrays of %d sizes up to %zu bytes: %d are too small and say so", tries, total, failed);
}

static double no_time(void *user) { return ++*(double *)user; }
static void while_training(void) { // a step that is in the middle of a run has the parameters
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 32, NULL), nt_relu_layer(t), nt_dense_layer(t, 32, NULL));
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(16, 8));
    static const float zeros[16 * 8];
    double time = 0, ntk[4] = { 0 };
    int busy = 0, other = 0;
    int64_t count = 0;
    nt_clock clock = { no_time, &time };
    nt_monte_carlo_desc d;
    memset(&d, 0, sizeof d), d.dtype = NT_F32, d.shape = NT_SHAPE(8), d.ntk = ntk, d.count = &count;
    nt_init(net, nt_key(1), x), nt_write(x, zeros);
    nt_program *step = nt_compile_step(nt_mean(nt_square(nt_apply(net, x, NULL))), nt_adam(t, NULL), NULL);
    for (nt_status s = NT_AGAIN; s == NT_AGAIN;) {
        s = nt_run_for(step, 0, clock);
        if (s != NT_AGAIN) break;
        nt_status got = nt_kernel_monte_carlo(net, nt_key(2), 2, zeros, 2, NULL, 0, &d);
        busy += got == NT_BUSY, other += got != NT_BUSY, nt_error_clear(t);
    }
    tap_ok(busy > 0 && !other && nt_kernel_monte_carlo(net, nt_key(2), 2, zeros, 2, NULL, 0, &d) == NT_OK && count == 2,
           "random networks wait for the end of a step (%d times)", busy);
    nt_standard_errors(NULL, 3, 4, NULL), nt_tape_close(t);
}

static void no_parameters(void) { // the NTK is zero, and the NNGP what it is
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *net = nt_scale_layer(t, 2);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(1, 2));
    static const float data[4] = { 1, 2, 3, -1 };
    float nngp[4], ntk[4] = { 7, 7, 7, 7 };
    double mean[4] = { 7, 7, 7, 7 };
    int64_t count = 0;
    nt_empirical_kernel_desc d;
    nt_monte_carlo_desc m;
    memset(&d, 0, sizeof d), d.dtype = NT_F32, d.shape = NT_SHAPE(2), d.trace = NT_AXES(NT_LAST), d.nngp = nngp, d.ntk = ntk;
    memset(&m, 0, sizeof m), m.dtype = NT_F32, m.shape = NT_SHAPE(2), m.ntk = mean, m.count = &count, m.tangents = 2;
    int ok = nt_init(net, nt_key(1), x) == NT_OK && nt_empirical_kernel(net, data, 2, NULL, 0, &d) == NT_OK;
    for (int k = 0; k < 4; k++) ok &= ntk[k] == 0;
    ok &= nngp[0] == 10 && nngp[1] == 2 && nngp[2] == 2 && nngp[3] == 20; // 4 (x1 . x2) / 2
    tap_ok(ok, "no parameters: %g %g %g, %g", nngp[0], nngp[1], nngp[3], ntk[0]);
    for (int way = 0; way < 2; way++, m.tangents = 0, count = 0)
        ok &= nt_kernel_monte_carlo(net, nt_key(1), 3, data, 2, NULL, 0, &m) == NT_OK && count == 3 && mean[0] == 0 && mean[3] == 0;
    nt_params none = { 0, NULL };
    ok &= nt_size(nt_ntk_vp(x, x, none, x)) == 2;
    tap_ok(ok, "random networks of none: %g", mean[0]), nt_tape_close(t);
}

int main(void) {
    while_training(), no_parameters();
    errors(), errors_of_arrays(), mixing_arrays(), little_memory();
    of_arrays(0), of_arrays(1);
    for (int sparse = 0; sparse < 2; sparse++) graphs_of_arrays(sparse), means_over_graphs(sparse, 0);
    means_over_graphs(0, 0.6), dropped_apart(), errors_of_graphs();
    for (int relu = 0; relu < 2; relu++) monte_carlo(relu, 0), monte_carlo(relu, 5);
    constant_memory();
    what_it_costs(), transformed();
    golden_cases(NT_F64), golden_cases(NT_F32);
    for (int k = 0; k < NETWORKS; k++) network_forms(k);
    return tap_end();
}
