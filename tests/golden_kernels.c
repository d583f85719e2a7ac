// golden_kernels DIR: infinite-width kernels, activations, predictions and finite networks against values from arithmetic in 200 bits and
// from neural_tangents. Every case runs in f64 and in f32.
#include "nttrain.h"
#include "golden.h"
#include "wide_nets.h"

typedef struct run { // one case in one dtype
    gd_case *c;
    nt_tape *t;
    nt_dtype dtype;
    wide_nets nets;
} run;

static void *tape_failure(run *r, const char *call) {
    return gd_fail(r->c, "%s (%s): %s", call, nt_dtype_name(r->dtype), nt_error(r->t) ? nt_error(r->t) : "no message");
}

static gd_tensor need(run *r, const char *name) { return gd_as(r->c, gd_need(r->c, name), r->dtype); }

static int has(run *r, const char *name) {
    gd_tensor t;
    return gd_find(r->c, name, &t);
}

// Room for a result, shaped like the expected one.
static gd_tensor room(run *r, const char *name) {
    gd_tensor want = gd_need(r->c, name);
    return gd_new(r->c, r->dtype, want.shape);
}

static int is_shape(const gd_tensor *t, int rank, const int64_t *size) {
    int same = t->shape.rank == rank;
    for (int k = 0; same && k < rank; k++) same = t->shape.size[k] == size[k];
    return same;
}

static void want_shape(run *r, const char *name, const gd_tensor *t, int rank, int64_t a, int64_t b, int64_t c) {
    int64_t size[3] = { a, b, c };
    if (!gd_stopped(r->c) && !is_shape(t, rank, size)) gd_fail(r->c, "the tensor %s has another shape than the specification says", name);
}

static gd_rule tolerance(run *r) {
    gd_rule rule;
    memset(&rule, 0, sizeof rule);
    rule.tolerance = gd_number(r->c, r->c->attributes, r->dtype == NT_F64 ? "tol64" : "tol32", r->dtype == NT_F64 ? 1e-10 : 2e-5);
    return rule;
}

static void check(run *r, const char *name, const gd_tensor *got) {
    gd_rule rule = tolerance(r);
    gd_tensor want = gd_need(r->c, name);
    if (!gd_stopped(r->c)) gd_compare(r->c, name, got, &want, &rule);
}

// The only list among the arguments that is no (trace ...) or (diag ...).
static nt_layer *net_of(run *r) {
    const gd_node *n = NULL;
    for (int k = 0; k < r->c->spec->arg_count; k++) {
        const gd_node *a = r->c->spec->args[k];
        if (!a->is_list || gd_is(a, "trace") || gd_is(a, "diag")) continue;
        if (n) gd_fail(r->c, "more than one net");
        n = a;
    }
    if (!n) gd_fail(r->c, "there is no net");
    return gd_stopped(r->c) ? NULL : wide_net(&r->nets, n);
}

// ---------------------------------------------------------------------------------------------------------------------
// Finite networks
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *input_of(run *r, const char *name) {
    gd_tensor v = need(r, name);
    if (gd_stopped(r->c)) return NULL;
    nt_tensor *x = nt_input(r->t, v.dtype, v.shape);
    if (!x || nt_write(x, v.data) != NT_OK) tape_failure(r, name);
    return x;
}

// Number k of the list under the letter, in the order of the words, shaped as the parameter is but for axes of size 1 in front.
static gd_tensor parameter(run *r, const char *letter, int k, const nt_tensor *p) {
    char name[32];
    snprintf(name, sizeof name, "%s%d", letter, k);
    gd_tensor v = need(r, name);
    int extra = v.shape.rank - p->rank;
    for (int j = 0; j < extra && !gd_stopped(r->c); j++)
        if (v.shape.size[j] != 1) gd_fail(r->c, "%s has another shape than %s", name, p->name);
    if (extra < 0 || !is_shape(&(gd_tensor){ v.dtype, nt_shape_make(p->rank, v.shape.size + (extra > 0 ? extra : 0)), 0, NULL }, p->rank, p->shape))
        gd_fail(r->c, "%s has another shape than %s", name, p->name);
    return v;
}

static void load_parameters(run *r, nt_layer *net) {
    nt_params p = nt_parameters(net);
    char more[32];
    for (int k = 0; k < p.count && !gd_stopped(r->c); k++) {
        gd_tensor v = parameter(r, "p", k, p.items[k]);
        if (!gd_stopped(r->c) && nt_write(p.items[k], v.data) != NT_OK) tape_failure(r, p.items[k]->name);
    }
    snprintf(more, sizeof more, "p%d", p.count);
    if (has(r, more)) gd_fail(r->c, "the network has %d parameters, the file more", p.count);
}

static nt_layer *finite_net(run *r, nt_tensor *x) {
    nt_layer *net = x ? net_of(r) : NULL;
    if (!net) return NULL;
    if (nt_init(net, nt_key(1), x) != NT_OK) return (nt_layer *)tape_failure(r, "nt_init");
    load_parameters(r, net);
    return gd_stopped(r->c) ? NULL : net;
}

// The network at x with the edges of the file, if it has some.
static nt_tensor *apply(run *r, nt_layer *net, nt_tensor *x, const char *edges) {
    nt_apply_desc d;
    gd_tensor v;
    memset(&d, 0, sizeof d);
    if (gd_find(r->c, edges, &v)) v = gd_as(r->c, v, r->dtype), d.pattern = nt_constant(r->t, v.dtype, v.shape, v.data);
    return nt_apply(net, x, &d);
}

static void check_values(run *r, int count, nt_tensor *const *values, const char *const *names) {
    nt_params outputs = { count, (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)count) };
    for (int k = 0; k < count; k++) outputs.items[k] = values[k];
    nt_program *program = nt_error(r->t) ? NULL : nt_compile_many(r->t, outputs, NULL);
    if (!program || nt_run(program) != NT_OK) {
        tape_failure(r, "compiling and running");
        return;
    }
    for (int k = 0; k < count && !gd_stopped(r->c); k++) {
        gd_tensor got = gd_new(r->c, r->dtype, nt_shape_of(values[k]));
        nt_read(program, k, got.data);
        check(r, names[k], &got);
    }
}

// f0 at p, f1 at q, out: the expansion around p, at q.
static void run_expansion(run *r) {
    static const char *const names[] = { "f0", "f1", "out" };
    int taylor = gd_is(r->c->spec, "taylor"), degree = taylor ? (int)gd_need_int(r->c, r->c->spec, "degree") : 1;
    nt_tensor *x = input_of(r, "x1"), *y[3];
    nt_layer *net = finite_net(r, x);
    if (!net) return;
    nt_params p = nt_parameters(net), q = { p.count, (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(p.count + 1)) };
    for (int k = 0; k < p.count && !gd_stopped(r->c); k++) {
        gd_tensor v = parameter(r, "q", k, p.items[k]);
        if (!gd_stopped(r->c)) q.items[k] = nt_variable(r->t, v.dtype, nt_shape_of(p.items[k]), v.data);
    }
    if (gd_stopped(r->c)) return;
    y[0] = apply(r, net, x, "pattern1"), y[1] = nt_substitute(y[0], p, q);
    y[2] = taylor ? nt_taylor(y[1], q, p, degree) : nt_linearize(y[1], q, p);
    check_values(r, 3, y, names);
}

static nt_axes axes_of(run *r, const char *word) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    for (int k = 0; k < r->c->spec->arg_count; k++) {
        const gd_node *a = r->c->spec->args[k];
        for (int j = 0; gd_is(a, word) && j < a->arg_count; j++) {
            if (axes.count == NT_MAX_RANK) gd_fail(r->c, "(%s ...) has too many axes", word);
            else axes.axis[axes.count++] = wide_int(&r->nets, a, j);
        }
    }
    return axes;
}

static void run_empirical(run *r) {
    static const nt_ntk_implementation all[] = { NT_NTK_AUTO, NT_NTK_JACOBIAN, NT_NTK_VECTOR_PRODUCTS, NT_NTK_STRUCTURED };
    static const char *const names[] = { "nngp", "ntk", "ntk", "ntk", "ntk" };
    nt_empirical_desc d;
    memset(&d, 0, sizeof d);
    nt_tensor *x1 = input_of(r, "x1"), *x2 = has(r, "x2") ? input_of(r, "x2") : NULL, *k[5];
    nt_layer *net = finite_net(r, x1);
    d.trace = axes_of(r, "trace"), d.diagonal = axes_of(r, "diag");
    if (!net || gd_stopped(r->c)) return;
    nt_tensor *f1 = apply(r, net, x1, "pattern1"), *f2 = x2 ? apply(r, net, x2, "pattern2") : NULL;
    k[0] = nt_empirical_nngp(f1, f2, &d);
    for (int j = 0; j < 4; j++) d.implementation = all[j], k[1 + j] = nt_empirical_ntk(f1, f2, nt_parameters(net), &d);
    check_values(r, 5, k, names);
}

static void run_vp(run *r) {
    static const char *const names[] = { "out" };
    nt_tensor *x1 = input_of(r, "x1"), *x2 = input_of(r, "x2"), *v = input_of(r, "v"), *y;
    nt_layer *net = finite_net(r, x1);
    if (!net || gd_stopped(r->c)) return;
    y = nt_ntk_vp(apply(r, net, x1, "pattern1"), apply(r, net, x2, "pattern2"), nt_parameters(net), v);
    check_values(r, 1, &y, names);
}

// ---------------------------------------------------------------------------------------------------------------------
// Predictions
// ---------------------------------------------------------------------------------------------------------------------
// diag_reg relative to trace / n, or as it is.
static nt_factor *factor_of(run *r, const gd_tensor *kernel, nt_solver solver) {
    nt_factor_desc d;
    const gd_node *n = r->c->spec;
    double ridge = gd_number(r->c, n, "diag_reg", 0);
    memset(&d, 0, sizeof d);
    d.dtype = r->dtype, d.n = kernel->shape.size[0], d.kernel = kernel->data, d.solver = solver;
    *(gd_int(r->c, n, "abs", 0) ? &d.ridge_absolute : &d.ridge) = ridge;
    if (gd_stopped(r->c)) return NULL;
    nt_factor *f = nt_factor_make(r->t, &d);
    return f ? f : (nt_factor *)tape_failure(r, "nt_factor_make");
}

typedef struct descent { gd_tensor dd, td, y, f0, g0, t, train, test; } descent;

static int descent_of(run *r, descent *d) { // 0 after an error
    d->dd = need(r, "k_train_train"), d->td = need(r, "k_test_train"), d->y = need(r, "y"), d->f0 = need(r, "f0"), d->g0 = need(r, "g0");
    d->t = gd_as(r->c, gd_need(r->c, "t"), NT_F64), d->train = room(r, "f_train"), d->test = room(r, "f_test");
    if (gd_stopped(r->c)) return 0;
    int64_t n = d->dd.shape.size[0], k = d->td.shape.size[0], o = d->y.shape.size[1], times = d->t.size;
    want_shape(r, "k_train_train", &d->dd, 2, n, n, 0), want_shape(r, "k_test_train", &d->td, 2, k, n, 0), want_shape(r, "y", &d->y, 2, n, o, 0);
    want_shape(r, "f0", &d->f0, 2, n, o, 0), want_shape(r, "g0", &d->g0, 2, k, o, 0), want_shape(r, "t", &d->t, 1, times, 0, 0);
    want_shape(r, "f_train", &d->train, 3, times, n, o), want_shape(r, "f_test", &d->test, 3, times, k, o);
    return !gd_stopped(r->c);
}

static void check_descent(run *r, descent *d, nt_status status, const char *call) {
    if (status != NT_OK && !gd_stopped(r->c)) gd_fail(r->c, "%s (%s): %s: %s", call, nt_dtype_name(r->dtype), nt_status_name(status), nt_error(r->t) ? nt_error(r->t) : "");
    if (gd_stopped(r->c)) return;
    check(r, "f_train", &d->train), check(r, "f_test", &d->test);
}

static double momentum_of(run *r) { // 0: a word without
    if (!gd_is(r->c->spec, "gd_momentum")) return 0;
    double m = gd_need_number(r->c, r->c->spec, "momentum");
    return m == 0 ? NT_ZERO : m;
}

static void run_mse(run *r) { // gd_mse, gd_momentum
    descent d;
    nt_predict_mse_desc p;
    memset(&p, 0, sizeof p);
    p.learning_rate = gd_number(r->c, r->c->spec, "lr", 1);
    p.momentum = momentum_of(r);
    if (!descent_of(r, &d)) return;
    nt_factor *f = factor_of(r, &d.dd, NT_EIGEN);
    if (!f) return;
    p.outputs = d.y.shape.size[1], p.y = d.y.data, p.f0_train = d.f0.data, p.test = d.td.shape.size[0], p.f0_test = d.g0.data, p.kernel_td = d.td.data;
    p.times = (int)d.t.size, p.time = (const double *)d.t.data, p.f_train = d.train.data, p.f_test = d.test.data;
    check_descent(r, &d, nt_predict_mse(f, &p), "nt_predict_mse");
    nt_factor_free(f);
}

static void run_flow(run *r) { // gd_momentum again, gd_xent, gd_logistic
    descent d;
    nt_predict_flow_desc p;
    memset(&p, 0, sizeof p);
    p.learning_rate = gd_number(r->c, r->c->spec, "lr", 1);
    p.momentum = momentum_of(r);
    if (!descent_of(r, &d)) return;
    p.dtype = r->dtype, p.n = d.dd.shape.size[0], p.outputs = d.y.shape.size[1], p.ntk_dd = d.dd.data, p.y = d.y.data, p.f0_train = d.f0.data;
    p.test = d.td.shape.size[0], p.ntk_td = d.td.data, p.f0_test = d.g0.data, p.times = (int)d.t.size, p.time = (const double *)d.t.data;
    p.loss = gd_is(r->c->spec, "gd_xent") ? NT_FLOW_CROSS_ENTROPY : gd_is(r->c->spec, "gd_logistic") ? NT_FLOW_LOGISTIC : NT_FLOW_MSE;
    p.f_train = d.train.data, p.f_test = d.test.data;
    check_descent(r, &d, nt_predict_flow(r->t, &p), "nt_predict_flow");
}

static void run_momentum(run *r) { // in closed form, and integrated
    run_mse(r);
    if (!gd_stopped(r->c)) run_flow(r);
}

// Rows from `row` and columns from `column` on of a square matrix.
static gd_tensor block(run *r, const gd_tensor *m, int64_t row, int64_t rows, int64_t column, int64_t columns) {
    int64_t size[2] = { rows, columns }, n = m->shape.size[1];
    size_t unit = nt_dtype_size(m->dtype);
    gd_tensor b = gd_new(r->c, m->dtype, nt_shape_make(2, size));
    for (int64_t i = 0; i < rows; i++)
        memcpy((char *)b.data + (size_t)(i * columns) * unit, (char *)m->data + (size_t)((row + i) * n + column) * unit, (size_t)columns * unit);
    return b;
}

// Kernels of all examples, training ones first, to a prediction's arguments; the factor of what `gp` asks for.
static nt_factor *gp_of(run *r, nt_gp gp, const gd_tensor *nngp, const gd_tensor *ntk, const gd_tensor *y, int64_t n, nt_predict_gp_desc *p) {
    int64_t k = nngp->shape.size[0] - n;
    gd_tensor kd = block(r, nngp, 0, n, 0, n), td = block(r, ntk, 0, n, 0, n);
    memset(p, 0, sizeof *p);
    p->gp = gp, p->outputs = y->shape.size[1], p->y = y->data, p->test = k;
    p->nngp_dd = kd.data, p->nngp_td = block(r, nngp, n, k, 0, n).data, p->nngp_tt = block(r, nngp, n, k, n, k).data;
    p->ntk_td = block(r, ntk, n, k, 0, n).data, p->ntk_tt = block(r, ntk, n, k, n, k).data;
    return factor_of(r, gp == NT_GP_NNGP ? &kd : &td, NT_EIGEN);
}

static nt_gp get_of(run *r) {
    static const char *const words[] = { "ntk", "nngp", "ntkgp" };
    static const nt_gp gps[] = { NT_GP_NTK, NT_GP_NNGP, NT_GP_NTKGP };
    return gps[wide_word(&r->nets, r->c->spec, "get", words, 3)];
}

static void run_inference(run *r) {
    gd_tensor nngp = need(r, "nngp"), ntk = need(r, "ntk"), y = need(r, "y"), mean = room(r, "mean"), cov = room(r, "cov");
    nt_predict_gp_desc p;
    nt_gp gp = get_of(r);
    if (gd_stopped(r->c)) return;
    int64_t n = y.shape.size[0], all = nngp.shape.size[0], o = y.shape.size[1];
    want_shape(r, "nngp", &nngp, 2, all, all, 0), want_shape(r, "ntk", &ntk, 2, all, all, 0), want_shape(r, "y", &y, 2, n, o, 0);
    want_shape(r, "mean", &mean, 2, all - n, o, 0), want_shape(r, "cov", &cov, 2, all - n, all - n, 0);
    nt_factor *f = gd_stopped(r->c) ? NULL : gp_of(r, gp, &nngp, &ntk, &y, n, &p);
    if (!f) return;
    p.mean = mean.data, p.covariance = cov.data;
    if (nt_predict_gp(f, &p) != NT_OK) tape_failure(r, "nt_predict_gp");
    nt_factor_free(f);
    if (!gd_stopped(r->c)) check(r, "mean", &mean), check(r, "cov", &cov);
}

static void run_max_learning_rate(run *r) {
    gd_tensor ntk = need(r, "ntk"), got = room(r, "lr");
    if (gd_stopped(r->c)) return;
    int64_t n = ntk.shape.size[0], entries = gd_int(r->c, r->c->spec, "y_size", n);
    want_shape(r, "ntk", &ntk, 2, n, n, 0), want_shape(r, "lr", &got, 1, 1, 0, 0);
    if (gd_stopped(r->c)) return;
    double lr = nt_max_learning_rate(r->t, r->dtype, n, ntk.data, entries, gd_number(r->c, r->c->spec, "momentum", 0));
    if (r->dtype == NT_F64) *(double *)got.data = lr;
    else *(float *)got.data = (float)lr;
    check(r, "lr", &got);
}

// ---------------------------------------------------------------------------------------------------------------------
// Kernels of infinite width
// ---------------------------------------------------------------------------------------------------------------------
// What all kernels of images like these are asked for.
static nt_kernel_desc kernel_desc(run *r, const gd_tensor *x) {
    nt_kernel_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = r->dtype, d.shape = nt_shape_make(x->shape.rank - 1, x->shape.size + 1), d.train = 1; // (dropout mode=test) is no layer
    return d;
}

// NNGP and NTK of whole pairs of positions or of each with itself, where the file has them.
static void run_pairs(run *r, nt_layer *net, const gd_tensor *x1, const gd_tensor *x2, nt_kernel_desc d, nt_kernel_spatial spatial, const char *nngp, const char *ntk) {
    gd_tensor got[2];
    memset(got, 0, sizeof got);
    if (has(r, nngp)) got[0] = room(r, nngp), d.nngp = got[0].data;
    if (has(r, ntk)) got[1] = room(r, ntk), d.ntk = got[1].data;
    if (gd_stopped(r->c) || (!d.nngp && !d.ntk)) return;
    d.spatial = spatial;
    if (nt_kernel(net, x1->data, x1->shape.size[0], x2 ? x2->data : NULL, x2 ? x2->shape.size[0] : 0, &d) != NT_OK) {
        tape_failure(r, "nt_kernel");
        return;
    }
    if (d.nngp) check(r, nngp, &got[0]);
    if (d.ntk) check(r, ntk, &got[1]);
}

// Each image with itself.
static void run_own(run *r, nt_layer *net, const gd_tensor *x1, nt_kernel_desc d, nt_kernel_spatial spatial, const char *name) {
    if (!has(r, name)) return;
    gd_tensor got = room(r, name);
    int64_t n = gd_stopped(r->c) ? 0 : got.shape.size[0], each = n ? got.size / n : 0;
    d.what = NT_NNGP, d.spatial = spatial, d.rows = d.columns = 1, d.pattern2 = NULL; // .pattern1 serves both
    for (int64_t k = 0; k < n && !gd_stopped(r->c); k++) {
        d.row = d.column = k, d.nngp = (char *)got.data + (size_t)(k * each) * nt_dtype_size(r->dtype);
        if (nt_kernel(net, x1->data, x1->shape.size[0], NULL, 0, &d) != NT_OK) tape_failure(r, "nt_kernel of one image");
    }
    check(r, name, &got);
}

// Edges of graphs: a matrix for each example in the case's dtype, or pairs of positions as they are.
static const void *pattern_of(run *r, const char *name, int64_t *edges) {
    gd_tensor p = gd_need(r->c, name);
    if (gd_stopped(r->c)) return NULL;
    if (p.dtype == NT_I32) *edges = p.shape.rank > 1 ? p.shape.size[1] : 0;
    return p.dtype == NT_I32 ? p.data : gd_as(r->c, p, r->dtype).data;
}

static nt_tensor *edges_of(run *r, const char *name) {
    gd_tensor p;
    if (!gd_find(r->c, name, &p)) return NULL;
    if (p.dtype != NT_I32) p = gd_as(r->c, p, r->dtype);
    return nt_constant(r->t, p.dtype, p.shape, p.data);
}

// The same by the recorded recursion.
static void run_record(run *r, nt_layer *net, nt_tensor *x1, nt_tensor *x2, const nt_kernel_desc *like, nt_kernel_spatial spatial,
                       const char *const *names) {
    nt_kernel_record_desc d;
    if (!has(r, names[0]) && !has(r, names[1])) return;
    memset(&d, 0, sizeof d);
    d.spatial = spatial, d.train = 1, d.masked = like->masked, d.mask = like->mask, d.pattern1 = edges_of(r, "pattern1"), d.pattern2 = edges_of(r, "pattern2");
    nt_kernels k = nt_kernel_record(net, x1, x2, &d);
    nt_tensor *both[2] = { k.nngp, k.ntk };
    for (int j = 0; j < 2; j++)
        if (has(r, names[j])) check_values(r, 1, &both[j], &names[j]);
}

static void run_kernel(run *r) {
    gd_tensor x1 = need(r, "x1"), x2;
    int both = has(r, "x2");
    if (both) x2 = need(r, "x2");
    nt_layer *net = gd_stopped(r->c) ? NULL : net_of(r);
    const char *mask = gd_text(r->c->spec, "mask");
    if (!net || gd_stopped(r->c)) return;
    nt_kernel_desc d = kernel_desc(r, &x1);
    if (mask && strcmp(mask, "none") != 0) d.masked = 1, d.mask = strcmp(mask, "nan") ? strtod(mask, NULL) : (double)NAN;
    if (has(r, "pattern1")) d.pattern1 = pattern_of(r, "pattern1", &d.edges);
    if (has(r, "pattern2")) d.pattern2 = pattern_of(r, "pattern2", &d.edges);
    if (gd_stopped(r->c)) return;
    run_pairs(r, net, &x1, both ? &x2 : NULL, d, NT_FULL, "nngp", "ntk");
    run_pairs(r, net, &x1, both ? &x2 : NULL, d, NT_DIAGONAL, "nngp_diag", "ntk_diag");
    run_own(r, net, &x1, d, NT_FULL, "cov1");
    run_own(r, net, &x1, d, NT_DIAGONAL, "var1");
    if (gd_stopped(r->c)) return;
    static const char *const full[] = { "nngp", "ntk" }, *const diagonal[] = { "nngp_diag", "ntk_diag" };
    nt_tensor *t1 = input_of(r, "x1"), *t2 = both ? input_of(r, "x2") : NULL;
    run_record(r, net, t1, t2, &d, NT_FULL, full), run_record(r, net, t1, t2, &d, NT_DIAGONAL, diagonal);
}

// Both kernels of all examples, training ones first.
static void run_ensemble(run *r) {
    gd_tensor train = need(r, "x_train"), test = need(r, "x_test"), y = need(r, "y"), times = gd_as(r->c, gd_need(r->c, "t"), NT_F64), out[4], nngp, ntk;
    static const char *const names[4] = { "mean", "cov", "mean_train", "cov_train" };
    nt_layer *net = gd_stopped(r->c) ? NULL : net_of(r);
    nt_predict_gp_desc p;
    nt_gp gp = get_of(r);
    double lr = gd_number(r->c, r->c->spec, "lr", 1);
    if (!net || gd_stopped(r->c)) return;
    int64_t n = train.shape.size[0], k = test.shape.size[0], o = y.shape.size[1], T = times.size, square[2];
    square[0] = square[1] = n + k;
    nt_shape both = train.shape, whole = nt_shape_make(2, square);
    both.size[0] = n + k, nngp = gd_new(r->c, r->dtype, whole), ntk = gd_new(r->c, r->dtype, whole);
    gd_tensor x = gd_new(r->c, r->dtype, both);
    size_t first = (size_t)train.size * nt_dtype_size(r->dtype);
    memcpy(x.data, train.data, first), memcpy((char *)x.data + first, test.data, (size_t)test.size * nt_dtype_size(r->dtype));
    nt_kernel_desc d = kernel_desc(r, &x);
    d.nngp = nngp.data, d.ntk = ntk.data;
    if (nt_kernel(net, x.data, n + k, NULL, 0, &d) != NT_OK) { tape_failure(r, "nt_kernel"); return; }
    nt_factor *f = gp_of(r, gp, &nngp, &ntk, &y, n, &p);
    if (!f) return;
    for (int j = 0; j < 4; j++) {
        int64_t examples = j < 2 ? k : n, size[3] = { T, examples, j % 2 ? examples : o };
        out[j] = gd_new(r->c, r->dtype, nt_shape_make(3, size));
    }
    p.learning_rate = lr, p.times = (int)T, p.time = (const double *)times.data;
    p.mean = out[0].data, p.covariance = out[1].data, p.mean_train = out[2].data, p.covariance_train = out[3].data;
    if (nt_predict_gp(f, &p) != NT_OK) tape_failure(r, "nt_predict_gp");
    nt_factor_free(f);
    for (int j = 0; j < 4 && !gd_stopped(r->c); j++) {
        if (j > 1) { // expected at finite times only
            int64_t kept = 0, row = out[j].size / T;
            size_t bytes = (size_t)row * nt_dtype_size(r->dtype);
            for (int64_t i = 0; i < T; i++)
                if (!isinf(p.time[i])) memmove((char *)out[j].data + (size_t)kept++ * bytes, (char *)out[j].data + (size_t)i * bytes, bytes);
            out[j].shape.size[0] = kept, out[j].size = kept * row;
        }
        if (has(r, names[j])) check(r, names[j], &out[j]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Activations; each row of pairs of positions is judged alone. Expansions are held against the exact expectation.
// ---------------------------------------------------------------------------------------------------------------------
static void put(gd_tensor *t, int64_t i, double x) {
    if (t->dtype == NT_F64) ((double *)t->data)[i] = x;
    else ((float *)t->data)[i] = (float)x;
}

static void run_dual(run *r) {
    gd_tensor q11 = need(r, "q11"), q22 = need(r, "q22"), q12 = need(r, "q12"), got[2] = { room(r, "k"), room(r, "kdot") };
    static const char *const names[] = { "k", "kdot" };
    const gd_node *spec = r->c->spec;
    if (spec->arg_count != 1 || !spec->args[0]->is_list) gd_fail(r->c, "(dual ACTIVATION)");
    nt_layer *l = gd_stopped(r->c) ? NULL : wide_layer(&r->nets, spec->args[0]);
    if (!l) return;
    want_shape(r, "q22", &q22, 2, q11.shape.size[0], q11.shape.size[1], 0), want_shape(r, "q12", &q12, 2, q11.shape.size[0], q11.shape.size[1], 0);
    if (gd_stopped(r->c)) return;
    for (int64_t i = 0; i < q11.size; i++) {
        nt_dual d = nt_layer_dual(l, gd_value(&q11, i), gd_value(&q22, i), gd_value(&q12, i));
        put(&got[0], i, d.k), put(&got[1], i, d.kdot);
    }
    for (int k = 0; k < 2; k++) {
        gd_tensor want = gd_need(r->c, names[k]);
        for (int64_t row = 0; !gd_stopped(r->c) && row < want.shape.size[0]; row++) {
            gd_tensor a = block(r, &got[k], row, 1, 0, want.shape.size[1]), b = block(r, &want, row, 1, 0, want.shape.size[1]);
            gd_rule rule = tolerance(r);
            gd_compare(r->c, names[k], &a, &b, &rule);
        }
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Cases
// ---------------------------------------------------------------------------------------------------------------------
typedef struct kind_row { const char *word; void (*run)(run *r); } kind_row;
static const kind_row kinds[] = {
    { "kernel", run_kernel }, { "dual", run_dual }, { "gd_mse", run_mse }, { "gd_momentum", run_momentum }, { "gd_xent", run_flow }, { "gd_logistic", run_flow },
    { "gp_inference", run_inference }, { "gd_mse_ensemble", run_ensemble }, { "max_learning_rate", run_max_learning_rate }, { "empirical", run_empirical },
    { "ntk_vp", run_vp }, { "linearize", run_expansion }, { "taylor", run_expansion },
};

static void run_in(gd_case *c, nt_dtype dtype) {
    run *r = (run *)gd_alloc(c, sizeof *r);
    const kind_row *row = NULL;
    for (size_t k = 0; k < sizeof kinds / sizeof kinds[0]; k++) {
        if (gd_is(c->spec, kinds[k].word)) row = &kinds[k];
    }
    if (!row) gd_fail(c, "the word %s is not known", c->spec->word);
    if (gd_stopped(c)) return;
    r->c = c, r->t = nt_tape_open(NULL), r->dtype = dtype;
    r->nets.c = c, r->nets.t = r->t, r->nets.dtype = dtype;
    if (!r->t) gd_fail(c, "no tape");
    else row->run(r);
    if (!gd_stopped(c) && nt_error(r->t)) tape_failure(r, "afterwards");
    nt_tape_close(r->t);
}

static void run_case(gd_case *c) {
    static const char *const known[] = { "file", "source", "nt", "tol32", "tol64" };
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) gd_text(c->attributes, known[k]);
    gd_check_keys(c, c->attributes);
    run_in(c, NT_F64);
    run_in(c, NT_F32);
}

int main(int argc, char **argv) { return gd_run(argc > 1 ? argv[1] : "data/kernels", run_case); }
