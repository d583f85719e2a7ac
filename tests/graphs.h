// graphs.h: random graphs for the tests of compiler and planner, and an evaluator that knows nothing of either: one node after the
// other, every value row-major in memory of its own. Include after the implementation; it looks at nodes and rows.
#ifndef GRAPHS_H
#define GRAPHS_H
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

// ---------------------------------------------------------------------------------------------------------------------
// Random numbers (splitmix64)
// ---------------------------------------------------------------------------------------------------------------------
typedef struct dice { uint64_t state; } dice;

TAP_UNUSED static uint64_t roll(dice *d) {
    uint64_t z = (d->state += 0x9e3779b97f4a7c15u);
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}
TAP_UNUSED static int pick(dice *d, int n) { return n < 1 ? 0 : (int)(roll(d) % (uint64_t)n); }
TAP_UNUSED static double real(dice *d) { return (double)(roll(d) >> 11) / 4503599627370496.0 - 1; } // [-1, 1)

// ---------------------------------------------------------------------------------------------------------------------
// The evaluator: values of recorded nodes by pointer
// ---------------------------------------------------------------------------------------------------------------------
typedef struct naive_value { const nti_node *node; void *data; } naive_value;
typedef struct naive {
    naive_value *slot; // open addressing
    size_t size, used;
    int plain;         // plain loops and libm where there are some; else the library's kernel, one node at a time
} naive;

TAP_UNUSED static void *naive_bytes(size_t bytes) { // a fresh array: what the sanitizer sees is what was asked for
    void *p = NULL;
    if (posix_memalign(&p, 64, bytes ? bytes : 1)) abort();
    memset(p, 0x5a, bytes);
    return p;
}

TAP_UNUSED static naive_value *naive_slot(naive *e, const nti_node *n) {
    size_t at = ((size_t)(uintptr_t)n >> 4) * 0x9e3779b97f4a7c15u % e->size;
    while (e->slot[at].node && e->slot[at].node != n) at = (at + 1) % e->size;
    return &e->slot[at];
}

TAP_UNUSED static void *naive_data(naive *e, const nt_tensor *x) {
    naive_value *v = naive_slot(e, nti_n(x));
    return v->node ? v->data : NULL;
}

static void naive_set(naive *e, const nti_node *n, void *data) {
    naive_value *v = naive_slot(e, n);
    if (!v->node) v->node = n, e->used++;
    v->data = data;
    if (e->used * 2 > e->size) abort();
}

TAP_UNUSED static void naive_free(naive *e) {
    for (size_t k = 0; k < e->size; k++)
        if (e->slot[k].node) free(e->slot[k].data);
    free(e->slot);
}

// Coordinates of element k of a shape.
static void naive_at(int rank, const int64_t *shape, int64_t k, int64_t *at) {
    for (int a = rank - 1; a >= 0; a--) at[a] = k % shape[a], k /= shape[a];
}
static int64_t naive_index(int rank, const int64_t *shape, const int64_t *at) {
    int64_t k = 0;
    for (int a = 0; a < rank; a++) k = k * shape[a] + at[a];
    return k;
}

// Views by coordinates; 0 if n is none.
static int naive_view(const nti_node *n, const char *x, char *y) {
    const nt_tensor *in = n->inputs ? &n->in[0]->pub : NULL;
    size_t size = nt_dtype_size(n->pub.dtype);
    int64_t total = nt_size(&n->pub), at[NT_MAX_RANK], from[NT_MAX_RANK];
    int r = n->pub.rank;
    if (n->op == NTI_OP_RESHAPE || n->op == NTI_OP_STOP_GRADIENT || n->op == NTI_OP_CHECK_INDEX || n->op == NTI_OP_CHECK_FINITE) {
        memcpy(y, x, (size_t)total * size);
        return 1;
    }
    if (n->op != NTI_OP_TRANSPOSE && n->op != NTI_OP_BROADCAST && n->op != NTI_OP_SLICE) return 0;
    for (int64_t k = 0; k < total; k++) {
        naive_at(r, n->pub.shape, k, at);
        for (int a = 0; a < r; a++) {
            if (n->op == NTI_OP_TRANSPOSE) from[n->i[a]] = at[a];
            else if (n->op == NTI_OP_SLICE) from[a] = n->i[a] + at[a] * n->i[r + a];
            else if (a >= r - in->rank) from[a - (r - in->rank)] = in->shape[a - (r - in->rank)] == 1 ? 0 : at[a];
        }
        memcpy(y + (size_t)k * size, x + (size_t)naive_index(in->rank, in->shape, from) * size, size);
    }
    return 1;
}

static double naive_number(int op, double a, double b, const double *d, int *known) {
    switch (op) {
    case NTI_OP_NEG: return -a;
    case NTI_OP_ABS: return fabs(a);
    case NTI_OP_SQUARE: return a * a;
    case NTI_OP_SIN: return sin(a);
    case NTI_OP_COS: return cos(a);
    case NTI_OP_TANH: return tanh(a);
    case NTI_OP_EXP: return exp(a);
    case NTI_OP_ATAN: return atan(a);
    case NTI_OP_ERF: return erf(a);
    case NTI_OP_SIGMOID: return 1 / (1 + exp(-a));
    case NTI_OP_RELU: return a > 0 ? a : 0;
    case NTI_OP_SCALE: return a * d[0];
    case NTI_OP_ADD_SCALAR: return a + d[0];
    case NTI_OP_ADD: return a + b;
    case NTI_OP_SUB: return a - b;
    case NTI_OP_MUL: return a * b;
    case NTI_OP_DIV: return a / b;
    case NTI_OP_MAXIMUM: return a > b ? a : b;
    case NTI_OP_MINIMUM: return a < b ? a : b;
    case NTI_OP_ATAN2: return atan2(a, b);
    default: *known = 0; return 0;
    }
}

static void naive_matmul(const nti_node *n, const double *x, const double *y, double *z) {
    int r = n->pub.rank;
    int64_t rows = n->pub.shape[r - 2], columns = n->pub.shape[r - 1], depth = n->in[0]->pub.shape[r - 1], total = nt_size(&n->pub);
    for (int64_t k = 0; k < total; k++) {
        int64_t batch = k / (rows * columns), i = k / columns % rows, j = k % columns;
        z[k] = 0;
        for (int64_t s = 0; s < depth; s++) z[k] += x[(batch * rows + i) * depth + s] * y[(batch * depth + s) * columns + j];
    }
}

static void naive_sum(const nti_node *n, const double *x, double *y) {
    const nt_tensor *in = &n->in[0]->pub;
    int64_t at[NT_MAX_RANK], to[NT_MAX_RANK];
    for (int64_t k = 0; k < nt_size(&n->pub); k++) y[k] = 0;
    for (int64_t k = 0; k < nt_size(in); k++) {
        int r = 0;
        naive_at(in->rank, in->shape, k, at);
        for (int a = 0; a < in->rank; a++)
            if (!(n->i[1] >> a & 1)) to[r++] = at[a];
        y[naive_index(r, n->pub.shape, to)] += x[k];
    }
}

static void naive_softmax(const nti_node *n, const double *x, double *y) {
    int64_t size = n->pub.shape[n->pub.rank - 1], rows = size ? nt_size(&n->pub) / size : 0;
    for (int64_t r = 0; r < rows; r++) {
        double top = -HUGE_VAL, sum = 0;
        for (int64_t k = 0; k < size; k++) top = x[r * size + k] > top ? x[r * size + k] : top;
        for (int64_t k = 0; k < size; k++) sum += exp(x[r * size + k] - top);
        for (int64_t k = 0; k < size; k++) y[r * size + k] = n->op == NTI_OP_SOFTMAX ? exp(x[r * size + k] - top) / sum : x[r * size + k] - top - log(sum);
    }
}

// 1 if there is a plain loop for this node.
static int naive_plain(naive *e, const nti_node *n, void *out) {
    if (n->pub.dtype != NT_F64 || !n->inputs || n->inputs > 2) return 0;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k]->pub.dtype != NT_F64) return 0;
    const double *x = (const double *)naive_data(e, &n->in[0]->pub), *y = n->inputs > 1 ? (const double *)naive_data(e, &n->in[1]->pub) : x;
    double *z = (double *)out;
    if (n->op == NTI_OP_MATMUL) naive_matmul(n, x, y, z);
    else if (n->op == NTI_OP_SUM) naive_sum(n, x, z);
    else if (n->op == NTI_OP_SOFTMAX || n->op == NTI_OP_LOG_SOFTMAX) naive_softmax(n, x, z);
    else {
        int known = 1;
        naive_number(n->op, 1, 1, n->nd ? n->d : NULL, &known);
        for (int64_t k = 0; known && k < nt_size(&n->pub); k++) z[k] = naive_number(n->op, x[k], y[k], n->d, &known);
        return known;
    }
    return 1;
}

// The library's kernel for this node, on row-major operands, into fresh memory, every tile in order.
static void naive_kernel(naive *e, const nti_node *n, void *out) {
    nti_call c;
    nti_view in[64];
    int64_t stride[65][NT_MAX_RANK];
    const nti_row *row = nti_row_of(n->op);
    memset(&c, 0, sizeof c);
    if (n->inputs > 64) abort();
    c.isa = n->pub.tape->isa, c.in = in, c.inputs = n->inputs, c.i = n->i, c.d = n->d, c.op = n->op;
    for (int k = 0; k <= n->inputs; k++) {
        const nt_tensor *x = k < n->inputs ? &n->in[k]->pub : &n->pub;
        nti_view *v = k < n->inputs ? &in[k] : &c.out;
        nti_row_major(x->rank, x->shape, stride[k]);
        v->data = NULL, v->shape = x->shape, v->stride = stride[k], v->dtype = (uint8_t)x->dtype, v->rank = (uint8_t)x->rank;
    }
    row->plan(&c, &c.plan);
    for (int k = 0; k < n->inputs; k++) in[k].data = naive_data(e, &n->in[k]->pub);
    c.out.data = out;
    c.shared = naive_bytes(c.plan.shared);
    void *worker = naive_bytes(c.plan.worker);
    for (int phase = 0; phase < nti_plan_steps(&c.plan); phase++)
        for (int64_t tile = 0; tile < c.plan.tiles[phase % c.plan.phases]; tile++) row->eval(&c, phase, tile, worker);
    free(worker), free(c.shared);
}

static void naive_leaf(naive *e, const nti_node *n) {
    if (n->op > NTI_OP_VARIABLE || naive_slot(e, n)->node) return;
    void *data = naive_bytes(nt_bytes(&n->pub));
    if (nt_bytes(&n->pub)) memcpy(data, n->bound ? n->bound : n->storage, nt_bytes(&n->pub));
    naive_set(e, n, data);
}

// All nodes of the tape, in recording order. Assignments stand for their value.
TAP_UNUSED static void naive_run(naive *e, nt_tape *t, nt_params leaves, int plain) {
    size_t count = 64;
    for (const nti_node *n = t->first; n; n = n->next) count += 1 + n->inputs;
    e->size = 4 * (count + (size_t)leaves.count), e->used = 0, e->plain = plain;
    e->slot = (naive_value *)calloc(e->size, sizeof *e->slot);
    if (!e->slot) abort();
    for (int k = 0; k < leaves.count; k++) naive_leaf(e, nti_n(leaves.items[k]));
    for (const nti_node *n = t->first; n; n = n->next) {
        for (int k = 0; k < n->inputs; k++) naive_leaf(e, n->in[k]);
        void *out = naive_bytes(nt_bytes(&n->pub));
        if (n->op == NTI_OP_CONSTANT) memcpy(out, n->storage, nt_bytes(&n->pub));
        else if (n->op == NTI_OP_FULL) {
            for (int64_t k = 0; k < nt_size(&n->pub); k++) nti_cast(n->pub.dtype, (char *)out + (size_t)k * nt_dtype_size(n->pub.dtype), NT_F64, n->d, 1);
        } else if (n->op == NTI_OP_ASSIGN) memcpy(out, naive_data(e, &n->in[1]->pub), nt_bytes(&n->pub));
        else if (naive_view(n, n->inputs ? (const char *)naive_data(e, &n->in[0]->pub) : NULL, (char *)out)) (void)0;
        else if (!plain || !naive_plain(e, n, out)) naive_kernel(e, n, out);
        naive_set(e, n, out);
    }
}

// The largest relative difference of two arrays of one dtype; 0 for equal bits, NaN equals NaN.
TAP_UNUSED static double naive_difference(nt_dtype dtype, const void *a, const void *b, int64_t n) {
    double worst = 0, scale = 1;
    size_t size = nt_dtype_size(dtype);
    if (!n || !memcmp(a, b, (size_t)n * size)) return 0;
    if (!nti_is_float(dtype)) return HUGE_VAL;
    for (int pass = 0; pass < 2; pass++)
        for (int64_t k = 0; k < n; k++) {
            double x = dtype == NT_F64 ? ((const double *)a)[k] : (double)((const float *)a)[k], y = dtype == NT_F64 ? ((const double *)b)[k] : (double)((const float *)b)[k];
            if (x == y || (x != x && y != y)) continue;
            if (!pass) scale = fabs(y) > scale && fabs(y) < HUGE_VAL ? fabs(y) : scale;
            else if (!(fabs(x - y) / scale <= worst)) worst = fabs(x - y) < HUGE_VAL ? fabs(x - y) / scale : HUGE_VAL;
        }
    return dtype == NT_F64 ? worst : worst * 1e-8; // float32 is compared with the same limits
}

// ---------------------------------------------------------------------------------------------------------------------
// The generator
// ---------------------------------------------------------------------------------------------------------------------
enum { GRAPH_POOL = 600, GRAPH_VARIABLES = 24, GRAPH_OUTPUTS = 6, GRAPH_ASSIGNS = 6 };
typedef struct graph {
    nt_tape *t;
    dice d;
    int smooth;          // nothing that jumps: a difference in the last bit stays one
    int widest;          // largest size of an axis
    int64_t most;        // largest number of elements
    nt_tensor *pool[GRAPH_POOL];
    int count;
    nt_tensor *variable[GRAPH_VARIABLES];
    int variables;
    nt_tensor *input[GRAPH_VARIABLES];
    int inputs;
    nt_tensor *output[GRAPH_OUTPUTS], *assign[GRAPH_ASSIGNS];
    int outputs, assigns;
} graph;

static nt_tensor *graph_keep(graph *g, nt_tensor *x) {
    if (!x || x->dtype != NT_F64 || nt_size(x) > g->most || g->count == GRAPH_POOL) return NULL;
    return g->pool[g->count++] = x;
}
static nt_tensor *graph_any(graph *g) { // newer ones more often
    int back = pick(&g->d, g->count);
    if (pick(&g->d, 2)) back = pick(&g->d, back + 1);
    return g->pool[g->count - 1 - back];
}
static nt_shape graph_shape(graph *g, int rank) {
    nt_shape s;
    memset(&s, 0, sizeof s);
    s.rank = rank;
    for (int k = 0; k < rank; k++) s.size[k] = pick(&g->d, 5) ? 1 + pick(&g->d, g->widest) : 1;
    if (rank && !pick(&g->d, 60)) s.size[pick(&g->d, rank)] = 0;
    int64_t n = nti_count(rank, s.size);
    for (int k = 0; k < rank && n > g->most; k++) n /= s.size[k] ? s.size[k] : 1, s.size[k] = 1;
    return s;
}
static double *graph_numbers(graph *g, int64_t n) {
    double *x = (double *)naive_bytes((size_t)n * sizeof *x);
    for (int64_t k = 0; k < n; k++) x[k] = real(&g->d);
    return x;
}
TAP_UNUSED static void graph_refill(graph *g) { // new numbers in the inputs
    for (int k = 0; k < g->inputs; k++) {
        double *x = graph_numbers(g, nt_size(g->input[k]));
        nt_write(g->input[k], x);
        free(x);
    }
}

static nt_tensor *graph_leaf(graph *g, nt_shape shape) {
    double *x = graph_numbers(g, nti_count(shape.rank, shape.size));
    nt_tensor *y = NULL;
    int kind = pick(&g->d, 8);
    if (kind < 3 && g->inputs < GRAPH_VARIABLES) {
        y = g->input[g->inputs++] = nt_input(g->t, NT_F64, shape);
        nt_write(y, x);
    } else if (kind < 6 && g->variables < GRAPH_VARIABLES) y = g->variable[g->variables++] = nt_variable(g->t, NT_F64, shape, x);
    else if (kind == 6 && shape.rank) y = nt_scale(nt_iota(g->t, NT_F64, shape, pick(&g->d, shape.rank)), 0.25);
    else if (kind == 7) y = nt_full(g->t, NT_F64, shape, real(&g->d));
    else y = nt_constant(g->t, NT_F64, shape, x);
    free(x);
    return graph_keep(g, y);
}

// A value that broadcasts against x.
static nt_tensor *graph_partner(graph *g, nt_tensor *x) {
    for (int k = 0; k < 12; k++) {
        nt_tensor *pair[2];
        nt_shape s;
        pair[0] = x, pair[1] = graph_any(g);
        if (nti_broadcast_shape(pair, 2, &s) && nti_count(s.rank, s.size) <= g->most) return pair[1];
    }
    if (pick(&g->d, 3)) return nt_sin(x);
    nt_shape s = nt_shape_of(x); // a row or a column of it
    for (int k = 0; k < s.rank; k++)
        if (pick(&g->d, 2)) s.size[k] = 1;
    return graph_leaf(g, s);
}

static nt_axes graph_no_axes(void) {
    nt_axes a;
    memset(&a, 0, sizeof a);
    return a;
}

static nt_tensor *graph_unary(graph *g, nt_tensor *x) {
    switch (pick(&g->d, g->smooth ? 20 : 28)) {
    case 0: return nt_neg(x);
    case 1: return nt_abs(x);
    case 2: return nt_square(nt_tanh(x));
    case 3: return nt_sin(x);
    case 4: return nt_cos(x);
    case 5: return nt_tanh(x);
    case 6: return nt_exp(nt_tanh(x));
    case 7: return nt_sigmoid(x);
    case 8: return nt_softplus(x);
    case 9: return nt_relu(x);
    case 10: return nt_gelu(x);
    case 11: return nt_silu(x);
    case 12: return nt_erf(x);
    case 13: return nt_atan(x);
    case 14: return nt_clamp(x, -0.75, 0.5);
    case 15: return nt_scale(x, real(&g->d));
    case 16: return nt_add_scalar(x, real(&g->d));
    case 17: return nt_stop_gradient(x);
    case 18: return nt_cast(nt_tanh(nt_cast(x, NT_F32)), NT_F64);
    case 19: return nt_rsqrt(nt_add_scalar(nt_square(x), 1));
    case 20: return nt_floor(x);
    case 21: return nt_sign(x);
    case 22: return nt_pow_scalar(nt_add_scalar(nt_abs(x), 1), 0.3);
    case 23: return nt_logaddexp(x, nt_atan2(x, nt_add_scalar(nt_square(x), 0.5)));
    case 24: return nt_gelu_tanh(nt_elu(x, 0.5));
    case 25: return nt_dropout(x, nt_key_tensor(g->t, nt_key((uint64_t)pick(&g->d, 1000))), 0.25, graph_no_axes());
    case 26: return nt_add(x, nt_normal(nt_fold_in(nt_key_tensor(g->t, nt_key(1)), nt_full(g->t, NT_I32, nt_shape_make(0, NULL), pick(&g->d, 3))), NT_F64, nt_shape_of(x)));
    default: return nt_cast(nt_cast(nt_scale(x, 3), NT_I32), NT_F64);
    }
}

static nt_tensor *graph_binary(graph *g, nt_tensor *x) {
    nt_tensor *y = graph_partner(g, x);
    if (pick(&g->d, 2)) { nt_tensor *z = x; x = y, y = z; }
    switch (pick(&g->d, g->smooth ? 8 : 11)) {
    case 0: case 1: return nt_add(x, y);
    case 2: return nt_sub(x, y);
    case 3: case 4: return nt_mul(x, y);
    case 5: return nt_maximum(x, y);
    case 6: return nt_minimum(x, y);
    case 7: return nt_div(x, nt_add_scalar(nt_square(y), 1));
    case 8: return nt_select(nt_less(x, y), x, nt_scale(y, 0.5));
    case 9: return nt_cast(nt_logical_and(nt_greater(x, y), nt_logical_not(nt_equal(x, y))), NT_F64);
    default: return nt_select(nt_greater_equal(x, y), nt_cast(nt_less(x, y), NT_F64), x);
    }
}

static nt_axes graph_axes(graph *g, int rank) {
    nt_axes a;
    memset(&a, 0, sizeof a);
    for (int k = 0; k < rank; k++)
        if (pick(&g->d, 2)) a.axis[a.count++] = k;
    return a;
}

static nt_tensor *graph_reduction(graph *g, nt_tensor *x) {
    nt_axes a = graph_axes(g, x->rank);
    int keep = pick(&g->d, 2);
    for (int k = 0; k < x->rank; k++)
        if (!x->shape[k]) return nt_sum_axes(x, a, keep);
    switch (pick(&g->d, g->smooth || !x->rank ? 6 : 10)) {
    case 0: case 1: return nt_sum_axes(x, a, keep);
    case 2: return nt_mean_axes(x, a, keep);
    case 3: return nt_max_axes(x, a, keep);
    case 4: return nt_min_axes(x, a, keep);
    case 5: return nt_logsumexp_axes(x, a, keep);
    case 6: return nt_prod_axes(nt_tanh(x), a, keep);
    case 7: return nt_cast(nt_any_axes(nt_greater(x, nt_full_like(x, 0.9)), a, keep), NT_F64);
    case 8: return nt_cast(nt_argmin(x, pick(&g->d, x->rank)), NT_F64);
    default: return nt_cast(nt_argmax(x, pick(&g->d, x->rank)), NT_F64);
    }
}

static nt_tensor *graph_matmul(graph *g, nt_tensor *x) {
    if (x->rank < 2 || x->rank > 4) return NULL;
    int64_t inner = x->shape[x->rank - 1];
    nt_tensor *y = NULL;
    for (int k = 0; k < 8 && !y; k++) {
        nt_tensor *c = graph_any(g);
        if (c->rank != 2) continue;
        if (c->shape[0] == inner) y = c;
        else if (c->shape[1] == inner) y = nt_swap_axes(c, 0, 1);
    }
    if (!y && pick(&g->d, 2)) y = nt_swap_axes(x, -1, -2);
    if (!y) y = graph_leaf(g, NT_SHAPE(inner, 1 + pick(&g->d, g->widest)));
    if (y && pick(&g->d, 4) == 0) y = nt_scale(y, 0.5);
    nt_tensor *z = nt_matmul(x, y);
    return z ? nt_scale(z, 1 / sqrt((double)(inner + 1))) : NULL;
}

static nt_tensor *graph_reshape(graph *g, nt_tensor *x) {
    nt_shape s;
    int64_t n = nt_size(x);
    memset(&s, 0, sizeof s);
    if (!n) return nt_flatten(x, 0);
    while (s.rank < 5) {
        int64_t f = 1 + pick(&g->d, g->widest);
        if (n == 1 && pick(&g->d, 2)) break;
        if (s.rank == 4) f = n;
        if (n % f) continue;
        s.size[s.rank++] = f, n /= f;
    }
    if (n > 1) s.size[s.rank ? s.rank - 1 : 0] *= n;
    return nt_reshape(x, s);
}

static nt_tensor *graph_slice(graph *g, nt_tensor *x) {
    int64_t start[NT_MAX_RANK], limit[NT_MAX_RANK], step[NT_MAX_RANK];
    for (int k = 0; k < x->rank; k++) {
        start[k] = pick(&g->d, 2) ? 0 : pick(&g->d, (int)x->shape[k] + 1);
        limit[k] = pick(&g->d, 2) ? x->shape[k] : start[k] + pick(&g->d, (int)(x->shape[k] - start[k]) + 1);
        if (limit[k] == start[k] && pick(&g->d, 20)) start[k] = 0, limit[k] = x->shape[k];
        step[k] = 1 + (pick(&g->d, 4) == 0) * pick(&g->d, 3);
    }
    return nt_slice(x, start, limit, step);
}

static nt_tensor *graph_transpose(graph *g, nt_tensor *x) {
    nt_axes a = nti_all_axes(x);
    for (int k = a.count - 1; k > 0; k--) {
        int j = pick(&g->d, k + 1), swap = a.axis[k];
        a.axis[k] = a.axis[j], a.axis[j] = swap;
    }
    return nt_transpose(x, a);
}

static nt_tensor *graph_broadcast(graph *g, nt_tensor *x) {
    nt_shape s = nt_shape_of(x);
    for (int k = 0; k < s.rank; k++)
        if (s.size[k] == 1) s.size[k] = 1 + pick(&g->d, g->widest);
    if (s.rank < 5 && pick(&g->d, 2)) {
        for (int k = s.rank; k > 0; k--) s.size[k] = s.size[k - 1];
        s.size[0] = 1 + pick(&g->d, 3), s.rank++;
    }
    return nti_count(s.rank, s.size) <= g->most ? nt_broadcast(x, s) : NULL;
}

static nt_tensor *graph_pad(graph *g, nt_tensor *x) {
    int64_t before[NT_MAX_RANK], after[NT_MAX_RANK], interior[NT_MAX_RANK];
    for (int k = 0; k < x->rank; k++) {
        before[k] = pick(&g->d, 4) - 1, after[k] = pick(&g->d, 4) - 1, interior[k] = pick(&g->d, 3) ? 0 : 1;
        if (x->shape[k] < 3) before[k] = before[k] < 0 ? 0 : before[k], after[k] = after[k] < 0 ? 0 : after[k];
    }
    return nt_pad(x, before, after, interior, real(&g->d));
}

static nt_tensor *graph_concat(graph *g, nt_tensor *x) {
    nt_tensor *part[3];
    int axis = pick(&g->d, x->rank), n = 1 + pick(&g->d, 3);
    if (!x->rank) return nt_stack(NT_LIST(x, nt_neg(x)), 0);
    for (int k = 0; k < n; k++) {
        int64_t size = x->shape[axis], from = pick(&g->d, (int)size + 1);
        part[k] = pick(&g->d, 2) ? nt_slice_axis(x, axis, from, size) : pick(&g->d, 2) ? x : nt_cos(x);
        for (int tries = 0; tries < 6; tries++) {
            nt_tensor *c = graph_any(g);
            int same = c->rank == x->rank;
            for (int a = 0; a < x->rank && same; a++) same = a == axis || c->shape[a] == x->shape[a];
            if (same) part[k] = c;
        }
    }
    return nt_concat(nti_list(part, n), axis);
}

static nt_tensor *graph_gather(graph *g, nt_tensor *x) {
    int32_t index[12];
    if (!x->rank) return NULL;
    int axis = pick(&g->d, x->rank), n = 1 + pick(&g->d, 6), size = (int)x->shape[axis], clip = pick(&g->d, 2);
    if (!size) return NULL;
    for (int k = 0; k < n; k++) index[k] = clip ? pick(&g->d, 3 * size) - size : pick(&g->d, size);
    nt_tensor *i = nt_constant(g->t, NT_I32, NT_SHAPE(n), index);
    if (clip) return nt_gather_clip(x, i, axis);
    nt_tensor *y = nt_gather(x, i, axis);
    return pick(&g->d, 3) ? y : nt_scatter_add(pick(&g->d, 2) ? x : nt_sin(x), i, nt_tanh(y), axis);
}

static nt_tensor *graph_rows(graph *g, nt_tensor *x) {
    int32_t label[4096];
    if (!x->rank || !nt_size(x)) return NULL;
    int axis = pick(&g->d, x->rank);
    int64_t rows = nt_size(x) / x->shape[x->rank - 1];
    nt_shape s = nt_shape_of(x);
    switch (pick(&g->d, 5)) {
    case 0: return nt_softmax(x, axis);
    case 1: return nt_log_softmax(x, axis);
    case 2: return nt_layer_norm(x, NULL, NULL, 1e-3);
    case 3: return nt_layer_norm(x, graph_leaf(g, NT_SHAPE(x->shape[x->rank - 1])), NULL, 1e-3);
    default:
        if (rows > 4096) return NULL;
        for (int64_t k = 0; k < rows; k++) label[k] = pick(&g->d, (int)x->shape[x->rank - 1]);
        s.rank--;
        return nt_cross_entropy(x, nt_constant(g->t, NT_I32, s, label));
    }
}

// x as an image: (N, H, W, C) out of whatever it is.
static nt_tensor *graph_image(graph *g, nt_tensor *x) {
    if (!nt_size(x)) return NULL;
    if (x->rank == 2) x = nt_reshape(x, NT_SHAPE(1, x->shape[0], x->shape[1], 1));
    else if (x->rank == 3) x = pick(&g->d, 2) ? nt_expand_dims(x, 0) : nt_expand_dims(x, 3);
    if (!x || x->rank != 4 || x->shape[3] > 16) return NULL;
    nt_pool_desc pool;
    nt_conv_desc conv;
    memset(&pool, 0, sizeof pool), memset(&conv, 0, sizeof conv);
    int h = (int)(x->shape[1] < 3 ? x->shape[1] : 3), w = (int)(x->shape[2] < 3 ? x->shape[2] : 3), k = 1 + pick(&g->d, h), l = 1 + pick(&g->d, w), stride = 1 + pick(&g->d, 2);
    pool.stride[0] = pool.stride[1] = conv.stride[0] = conv.stride[1] = stride;
    pool.padding = conv.padding = pick(&g->d, 2) ? NT_SAME : NT_VALID;
    switch (pick(&g->d, 5)) {
    case 0: return nt_max_pool(x, NT_WINDOW(k, l), &pool);
    case 1: return nt_avg_pool(x, NT_WINDOW(k, l), &pool);
    default: {
        nt_tensor *kernel = graph_leaf(g, NT_SHAPE(k, l, x->shape[3], 1 + pick(&g->d, 6)));
        return kernel ? nt_scale(nt_conv(x, kernel, &conv), 1 / (double)(k * l)) : NULL;
    }
    }
}

// A fresh value against another view of itself: in place would read what is written already.
static nt_tensor *graph_against_itself(graph *g, nt_tensor *x) {
    if (!x->rank || !nt_size(x)) return NULL;
    x = nt_tanh(x);
    if (!x) return NULL;
    if (x->rank == 2 && x->shape[0] == x->shape[1] && pick(&g->d, 2)) return nt_sub(x, nt_swap_axes(x, 0, 1));
    if (x->rank == 2 && pick(&g->d, 3) == 0) return nt_sin(nt_swap_axes(x, 0, 1));
    int64_t at = pick(&g->d, (int)x->shape[0]);
    return nt_sub(x, nt_slice_axis(x, 0, at, at + 1));
}

TAP_UNUSED static void graph_step(graph *g) { // appends a few nodes
    nt_tensor *x = graph_any(g), *y = NULL;
    switch (pick(&g->d, 23)) {
    case 0: case 1: case 2: y = graph_unary(g, x); break;
    case 3: case 4: case 5: case 6: y = graph_binary(g, x); break;
    case 7: case 8: y = graph_reduction(g, x); break;
    case 9: case 10: y = graph_matmul(g, x); break;
    case 11: y = graph_reshape(g, x); break;
    case 12: y = graph_transpose(g, x); break;
    case 13: y = graph_slice(g, x); break;
    case 14: y = graph_broadcast(g, x); break;
    case 15: y = graph_pad(g, x); break;
    case 16: y = graph_concat(g, x); break;
    case 17: y = graph_gather(g, x); break;
    case 18: y = graph_rows(g, x); break;
    case 19: y = graph_image(g, x); break;
    case 20: y = graph_leaf(g, graph_shape(g, pick(&g->d, 5))); return;
    case 21: y = graph_against_itself(g, x); break;
    default: y = nt_mul(nt_sin(x), nt_sin(x)); break; // recorded twice
    }
    if (y && y->rank > 6) y = NULL;
    graph_keep(g, y);
}

// A value shaped like v: the last one that is, or made to be.
static nt_tensor *graph_like(graph *g, nt_tensor *v) {
    for (int k = 0; k < 30; k++) {
        nt_tensor *x = graph_any(g);
        if (nti_same_shape(x, v)) return x;
        if (nt_size(x) == nt_size(v)) return nt_reshape(x, nt_shape_of(v));
    }
    return nt_add(v, nt_sum(graph_any(g)));
}

TAP_UNUSED static void graph_targets(graph *g) {
    g->outputs = 1 + pick(&g->d, GRAPH_OUTPUTS), g->assigns = 0;
    for (int k = 0; k < g->outputs; k++) g->output[k] = pick(&g->d, 6) || !k ? graph_any(g) : g->output[pick(&g->d, k)];
    if (g->variables && pick(&g->d, 3) == 0) g->output[0] = g->variable[pick(&g->d, g->variables)];
    if (g->variables < 2 || pick(&g->d, 3) == 0) return;
    nt_tensor *a = g->variable[pick(&g->d, g->variables)];
    for (int k = 0; k < g->variables && !g->assigns; k++) { // a swap
        nt_tensor *b = g->variable[k];
        if (b != a && nti_same_shape(a, b)) g->assign[g->assigns++] = nt_assign(a, b), g->assign[g->assigns++] = nt_assign(b, a);
        if (nt_error(g->t)) return; // no memory
    }
    for (int k = 0; k < g->variables && g->assigns < GRAPH_ASSIGNS; k++) {
        nt_tensor *v = g->variable[k];
        int taken = pick(&g->d, 2);
        for (int j = 0; j < g->assigns; j++) taken |= nti_n(g->assign[j])->in[0] == nti_n(v);
        if (!taken) g->assign[g->assigns++] = nt_assign(v, pick(&g->d, 6) ? graph_like(g, v) : v->rank == 2 && v->shape[0] == v->shape[1] ? nt_swap_axes(v, 0, 1) : nt_sin(v));
        if (nt_error(g->t)) return;
    }
    if (g->assigns && pick(&g->d, 4) == 0) g->output[0] = g->assign[0]; // stands for the value
}

// A graph on a fresh tape. `steps` operations or so.
TAP_UNUSED static void graph_make(graph *g, nt_tape *t, uint64_t seed, int steps, int widest, int64_t most, int smooth) {
    memset(g, 0, sizeof *g);
    g->t = t, g->d.state = seed * 0x2545f4914f6cdd1du + 1, g->widest = widest, g->most = most, g->smooth = smooth;
    for (int k = 0; (k < 3 || !g->count) && !nt_error(t); k++) graph_leaf(g, graph_shape(g, 1 + pick(&g->d, 4)));
    for (int k = 0; k < steps && !nt_error(t); k++) graph_step(g);
    if (!nt_error(t)) graph_targets(g);
}

// ---------------------------------------------------------------------------------------------------------------------
// What can be said against a schedule
// ---------------------------------------------------------------------------------------------------------------------
// Two buffers alive at once that share bytes, or one beyond the peak, or a wrong address: a text, else NULL.
TAP_UNUSED static const char *schedule_wrong(const nti_graph *g, const nti_schedule *s) {
    for (int32_t a = 0; a < s->buffers; a++) {
        const nti_buffer *x = &s->buffer[a];
        if (x->offset % NTI_ALIGN || x->bytes % NTI_ALIGN) return "an offset is not aligned";
        if (x->offset + x->bytes > s->peak) return "a buffer lies beyond the peak";
        for (int32_t b = 0; b < a; b++) {
            const nti_buffer *y = &s->buffer[b];
            if (x->bytes && y->bytes && x->birth <= y->death && y->birth <= x->death && x->offset < y->offset + y->bytes && y->offset < x->offset + x->bytes) return "two buffers alive at once overlap";
        }
    }
    // from the instructions alone: an operand's buffer holds that operand from its making to its last use
    int32_t *holds = (int32_t *)malloc((size_t)(s->buffers + 1) * sizeof *holds);
    const char *wrong = NULL;
    for (int32_t b = 0; b < s->buffers; b++) holds[b] = -1;
    for (int32_t at = 0; at < g->works && !wrong; at++) {
        if (g->work[s->order[at]] < 0) continue;
        const nti_value *v = &g->value[g->work[s->order[at]]];
        for (int j = 0; j < v->inputs; j++) {
            const nti_value *x = &g->value[g->operand[v->first + j]];
            if (x->place != NTI_IN_SCRATCH) continue;
            if (holds[s->buffer_of[x->root]] != x->root) wrong = "an operand's buffer holds something else";
            if (s->buffer[s->buffer_of[x->root]].birth > at || s->buffer[s->buffer_of[x->root]].death < at) wrong = "an operand is read outside its buffer's life";
        }
        if (v->place == NTI_IN_SCRATCH && s->buffer_of[g->work[s->order[at]]] >= 0) holds[s->buffer_of[g->work[s->order[at]]]] = g->work[s->order[at]];
    }
    for (int k = 0; k < g->outputs && !wrong; k++) {
        const nti_value *v = &g->value[g->target[k]];
        if (v->place == NTI_IN_SCRATCH && holds[s->buffer_of[v->root]] != v->root) wrong = "an output is overwritten";
    }
    free(holds);
    return wrong;
}
#endif
