// Kernels of finite networks: every implementation against Jacobians from finite differences in f64, multiplied in loops written here;
// golden cases; what is computed apart and what is not.
#include "../nttrain.h"
#include "golden.h"
#include "tap.h"

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

static const struct { const char *name; recorded record; int apart; } networks[] = {
    { "mlp", mlp, 1 }, { "cnn", cnn, 1 }, { "pixels", pixels, 1 }, { "resnet", resnet, 1 }, { "attention", attention, 1 },
    { "recurrent", recurrent, 1 }, { "embedded", embedded, 1 }, { "batch norm", batch_norm, 0 }, { "centred", centred, 0 }, { "looped", looped, 0 },
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
static double *pair_kernel(const nt_tensor *f1, const double *j1, const nt_tensor *f2, const double *j2, int64_t columns, const nt_empirical_desc *d, int64_t *size) {
    int r = f1->rank;
    int64_t total = 1, traced = 1;
    for (int a = 0; a < r; a++) {
        if (listed(d->trace, a, r)) traced *= f1->shape[a];
        else total *= f1->shape[a] * (listed(d->diagonal, a, r) ? 1 : f2->shape[a]);
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

static const char *const implementation_name[] = { "auto", "Jacobian", "vector products", "structured" };

// Every implementation of the kernel of one network in one form.
static void forms_of(network *n, const char *name, nt_tensor *f1, nt_tensor *f2, const double *j1, const double *j2, int64_t columns, nt_empirical_desc d,
                     const char *form) {
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
                if (!(e < 1e-9)) tap_note("%s, %s, samples %d, budget %d: %g %s", form, implementation_name[i], s, b, e, nt_error(n->t) ? nt_error(n->t) : "");
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
    if (!f1 || !f2) { tap_ok(0, "%s: %s", name, nt_error(n.t)); return; }
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
    if (f1->rank == 4) {
        d.trace = NT_AXES(NT_LAST), d.diagonal = NT_AXES(1, 2);
        forms_of(&n, name, f1, f2, j1, j2, columns, d, "the same pixel");
        d.trace = NT_AXES(3, 1), d.diagonal = NT_AXES(2);
        forms_of(&n, name, f1, f2, j1, j2, columns, d, "traced over rows and channels, the same column");
    }
    free(j1), free(j2);
    nt_tape_close(n.t);
}

int main(void) {
    for (int k = 0; k < NETWORKS; k++) network_forms(k);
    return tap_end();
}
