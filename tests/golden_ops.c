// golden_ops DIR: operations and their derivatives against values from JAX. Every case runs in f64 and in f32: the outputs, the
// pullback of the cotangents, the pushforward of the tangents, and the derivative of the latter, all in one program.
// Words that are no operation of the library yet are recorded out of public operations where that is exact; the rest is `later`.
#include "nttrain.h"
#include "golden.h"

typedef struct op_run {          // one case in one dtype
    gd_case *c;
    nt_tape *tape;
    nt_dtype dtype;
    gd_tensor *source;           // the inputs, in the dtypes of the run
    nt_tensor **input;
    int inputs, rounded;         // rounded: inputs go through f32 first
    nt_tensor *second;           // out1, of a word that gives two values
    gd_tensor *at_rounded;       // the values at rounded inputs, for f32
} op_run;

typedef struct op_args { gd_node *node; nt_tensor **x; int count; } op_args;
typedef nt_tensor *(*op_fn)(op_run *r, const op_args *a);

// ---------------------------------------------------------------------------------------------------------------------
// Small pieces
// ---------------------------------------------------------------------------------------------------------------------
static int is_number(const nt_tensor *x) { return x && (x->dtype == NT_F32 || x->dtype == NT_F64); }
static nt_tensor *to_float(op_run *r, nt_tensor *x) { return !x || is_number(x) ? x : nt_cast(x, r->dtype); }
static nt_tensor *to_bool(nt_tensor *x) { return !x || x->dtype == NT_BOOL ? x : nt_cast(x, NT_BOOL); }

// Bool below i32 below float, as JAX promotes.
static void promote(op_run *r, nt_tensor **x, nt_tensor **y) {
    if (!*x || !*y || (*x)->dtype == (*y)->dtype) return;
    nt_dtype to = is_number(*x) || is_number(*y) ? r->dtype : NT_I32;
    if ((*x)->dtype != to) *x = nt_cast(*x, to);
    if ((*y)->dtype != to) *y = nt_cast(*y, to);
}

static nt_axes all_axes(const nt_tensor *x) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    for (int k = 0; x && k < x->rank; k++) axes.axis[axes.count++] = k;
    return axes;
}

// axes=, by default all.
static nt_axes axes_key(op_run *r, const op_args *a) {
    gd_ints list = gd_get_ints(r->c, a->node, "axes");
    return list.count < 0 ? all_axes(a->x[0]) : gd_to_axes(r->c, list);
}

static nt_axes one_axis(int axis) { return NT_AXES(axis); }
static double number_key(op_run *r, const op_args *a, const char *key, double missing) { return gd_number(r->c, a->node, key, missing); }
static int int_key(op_run *r, const op_args *a, const char *key, int missing) { return (int)gd_int(r->c, a->node, key, missing); }
static int keepdims(op_run *r, const op_args *a) { return int_key(r, a, "keepdims", 0); }

// ---------------------------------------------------------------------------------------------------------------------
// Words with keys: elementwise and reductions
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *op_leaky_relu(op_run *r, const op_args *a) { return nt_leaky_relu(a->x[0], number_key(r, a, "slope", 0.01)); }
static nt_tensor *op_elu(op_run *r, const op_args *a) { return nt_elu(a->x[0], number_key(r, a, "alpha", 1)); }
static nt_tensor *op_pow_const(op_run *r, const op_args *a) { return nt_pow_scalar(to_float(r, a->x[0]), gd_need_number(r->c, a->node, "p")); }
static nt_tensor *op_add_const(op_run *r, const op_args *a) { return nt_add_scalar(a->x[0], gd_need_number(r->c, a->node, "c")); }
static nt_tensor *op_mul_const(op_run *r, const op_args *a) { return nt_scale(a->x[0], gd_need_number(r->c, a->node, "c")); }
static nt_tensor *op_clamp(op_run *r, const op_args *a) {
    return nt_clamp(a->x[0], number_key(r, a, "lo", -INFINITY), number_key(r, a, "hi", INFINITY));
}

static nt_tensor *op_gelu(op_run *r, const op_args *a) {
    const char *how = gd_text(a->node, "approx");
    if (!how || strcmp(how, "tanh") == 0) return nt_gelu_tanh(a->x[0]);
    if (strcmp(how, "exact") == 0) return nt_gelu(a->x[0]);
    return (nt_tensor *)gd_fail(r->c, "gelu approx=%s", how);
}

static nt_tensor *op_cast(op_run *r, const op_args *a) {
    const char *to = gd_text(a->node, "to");
    if (to && (strcmp(to, "f64") == 0 || strcmp(to, "f32") == 0)) return nt_cast(a->x[0], r->dtype);
    for (int d = 0; to && d < NT_DTYPE_COUNT; d++) {
        if (strcmp(to, nt_dtype_name((nt_dtype)d)) == 0) return nt_cast(a->x[0], (nt_dtype)d);
    }
    return (nt_tensor *)gd_fail(r->c, "cast to=%s", to ? to : "?");
}

static nt_tensor *op_select(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[1], *y = a->x[2];
    promote(r, &x, &y);
    return nt_select(to_bool(a->x[0]), x, y);
}

static nt_tensor *op_sum(op_run *r, const op_args *a) { return nt_sum_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_mean(op_run *r, const op_args *a) { return nt_mean_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_prod(op_run *r, const op_args *a) { return nt_prod_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_max(op_run *r, const op_args *a) { return nt_max_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_min(op_run *r, const op_args *a) { return nt_min_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_logsumexp(op_run *r, const op_args *a) { return nt_logsumexp_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_norm(op_run *r, const op_args *a) { return nt_norm_axes(a->x[0], axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_any(op_run *r, const op_args *a) { return nt_any_axes(to_bool(a->x[0]), axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_all(op_run *r, const op_args *a) { return nt_all_axes(to_bool(a->x[0]), axes_key(r, a), keepdims(r, a)); }
static nt_tensor *op_argmax(op_run *r, const op_args *a) { return nt_argmax(a->x[0], int_key(r, a, "axis", -1)); }
static nt_tensor *op_argmin(op_run *r, const op_args *a) { return nt_argmin(a->x[0], int_key(r, a, "axis", -1)); }

static nt_tensor *op_var(op_run *r, const op_args *a) { return nt_var_axes(a->x[0], axes_key(r, a), number_key(r, a, "ddof", 0), keepdims(r, a)); }
static nt_tensor *op_std(op_run *r, const op_args *a) { return nt_std_axes(a->x[0], axes_key(r, a), number_key(r, a, "ddof", 0), keepdims(r, a)); }
static nt_tensor *op_cumsum(op_run *r, const op_args *a) { return nt_cumsum(a->x[0], int_key(r, a, "axis", 0), int_key(r, a, "reverse", 0)); }
static nt_tensor *op_cumprod(op_run *r, const op_args *a) { return nt_cumprod(a->x[0], int_key(r, a, "axis", 0), int_key(r, a, "reverse", 0)); }
static nt_tensor *op_cummax(op_run *r, const op_args *a) { return nt_cummax(a->x[0], int_key(r, a, "axis", 0), int_key(r, a, "reverse", 0)); }
static nt_tensor *op_cumlogsumexp(op_run *r, const op_args *a) {
    return nt_cumlogsumexp(a->x[0], int_key(r, a, "axis", 0), int_key(r, a, "reverse", 0));
}
static nt_tensor *op_sort(op_run *r, const op_args *a) { return nt_sort(a->x[0], int_key(r, a, "axis", -1)); }
static nt_tensor *op_argsort(op_run *r, const op_args *a) { return nt_argsort(a->x[0], int_key(r, a, "axis", -1)); }
static nt_tensor *op_top_k(op_run *r, const op_args *a) {
    nt_top top = nt_top_k(a->x[0], gd_need_int(r->c, a->node, "k"));
    r->second = top.indices;
    return top.values;
}

// ---------------------------------------------------------------------------------------------------------------------
// Products, convolutions, pooling
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *swap_last(nt_tensor *x, int yes) { return yes ? nt_swap_axes(x, -2, -1) : x; }

static nt_tensor *op_matmul(op_run *r, const op_args *a) {
    return nt_matmul(swap_last(a->x[0], int_key(r, a, "ta", 0)), swap_last(a->x[1], int_key(r, a, "tb", 0)));
}

static nt_tensor *op_triangular_solve(op_run *r, const op_args *a) {
    nt_triangular_desc d;
    memset(&d, 0, sizeof d);
    d.right = !int_key(r, a, "left", 1), d.upper = !int_key(r, a, "lower", 1), d.transpose = int_key(r, a, "ta", 0), d.unit = int_key(r, a, "unit", 0);
    return nt_triangular_solve(a->x[0], a->x[1], &d);
}

static nt_tensor *op_dense(op_run *r, const op_args *a) {
    (void)r;
    return nt_dense(a->x[0], a->x[1], a->x[2]);
}

static nt_params list_of(const op_args *a) {
    nt_params p = { a->count, a->x };
    return p;
}

static nt_tensor *op_einsum(op_run *r, const op_args *a) {
    const char *eq = gd_text(a->node, "eq");
    return eq ? nt_einsum(eq, list_of(a)) : (nt_tensor *)gd_fail(r->c, "einsum needs eq=");
}

// A key with one number for all spatial axes or one for each.
static void spatial_key(op_run *r, const op_args *a, const char *key, int axes, int missing, int *out) {
    gd_ints list = gd_get_ints(r->c, a->node, key);
    if (list.count > 1 && list.count != axes) gd_fail(r->c, "%s= has %d numbers for %d axes", key, list.count, axes);
    for (int k = 0; k < axes; k++) out[k] = list.count < 0 ? missing : (int)list.at[list.count > 1 ? k : 0];
}

static void explicit_pad(op_run *r, const char *text, int axes, int pad[3][2]) {
    gd_groups g = gd_to_groups(r->c, text, 2);
    if (g.count != 1 && g.count != axes) gd_fail(r->c, "pad= has %d pairs for %d axes", g.count, axes);
    for (int k = 0; k < axes && !r->c->error[0]; k++) {
        pad[k][0] = (int)g.at[2 * (g.count > 1 ? k : 0)];
        pad[k][1] = (int)g.at[2 * (g.count > 1 ? k : 0) + 1];
    }
}

// The pad= of a convolution or a pooling. VALID, SAME, CIRCULAR or explicit numbers.
static nt_padding padding_key(op_run *r, const op_args *a, int axes, nt_padding missing, int pad[3][2]) {
    static const struct { const char *word; nt_padding padding; } names[] = { { "VALID", NT_VALID }, { "SAME", NT_SAME }, { "CIRCULAR", NT_CIRCULAR } };
    const char *text = gd_text(a->node, "pad");
    for (size_t k = 0; text && k < sizeof names / sizeof names[0]; k++) {
        if (strcmp(text, names[k].word) == 0) return names[k].padding;
    }
    if (!text) return missing;
    explicit_pad(r, text, axes, pad);
    return NT_EXPLICIT;
}

// What both convolutions share; 0 where the ranks are wrong.
static int conv_desc(op_run *r, const op_args *a, nt_conv_desc *d, nt_padding missing) {
    nt_tensor *x = a->x[0];
    int axes = x ? x->rank - 2 : 0;
    memset(d, 0, sizeof *d);
    if (axes < 1 || axes > 3) {
        gd_fail(r->c, "a convolution of rank %d", axes + 2);
        return 0;
    }
    spatial_key(r, a, "stride", axes, 1, d->stride);
    spatial_key(r, a, "dilation", axes, 1, d->dilation);
    d->padding = padding_key(r, a, axes, missing, d->pad);
    return axes;
}

static nt_tensor *op_conv(op_run *r, const op_args *a) {
    nt_conv_desc d;
    int axes = conv_desc(r, a, &d, NT_VALID);
    if (!axes) return NULL;
    spatial_key(r, a, "lhs_dilation", axes, 1, d.lhs_dilation);
    d.groups = int_key(r, a, "groups", 1);
    return nt_conv(a->x[0], a->x[1], &d);
}

static nt_tensor *op_conv_transpose(op_run *r, const op_args *a) {
    nt_conv_desc d;
    return conv_desc(r, a, &d, NT_SAME) ? nt_conv_transpose(a->x[0], a->x[1], &d) : NULL;
}

static nt_tensor *pool(op_run *r, const op_args *a, nt_tensor *(*f)(nt_tensor *, nt_shape, const nt_pool_desc *)) {
    nt_tensor *x = a->x[0];
    int axes = x ? x->rank - 2 : 0, window[3];
    nt_shape shape;
    nt_pool_desc d;
    memset(&d, 0, sizeof d);
    if (axes < 1 || axes > 3) return (nt_tensor *)gd_fail(r->c, "pooling of rank %d", axes + 2);
    spatial_key(r, a, "window", axes, 2, window);
    if (gd_text(a->node, "stride")) spatial_key(r, a, "stride", axes, 1, d.stride);
    shape.rank = axes;
    for (int k = 0; k < axes; k++) shape.size[k] = window[k];
    d.padding = padding_key(r, a, axes, NT_VALID, d.pad);
    if (f == nt_avg_pool) d.exclude_pad = !int_key(r, a, "count_include_pad", 1);
    return f(x, shape, &d);
}

static nt_tensor *op_max_pool(op_run *r, const op_args *a) { return pool(r, a, nt_max_pool); }
static nt_tensor *op_avg_pool(op_run *r, const op_args *a) { return pool(r, a, nt_avg_pool); }
static nt_tensor *op_sum_pool(op_run *r, const op_args *a) { return pool(r, a, nt_sum_pool); }

// ---------------------------------------------------------------------------------------------------------------------
// Losses and normalisation
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *op_softmax(op_run *r, const op_args *a) { return nt_softmax(a->x[0], int_key(r, a, "axis", -1)); }
static nt_tensor *op_log_softmax(op_run *r, const op_args *a) { return nt_log_softmax(a->x[0], int_key(r, a, "axis", -1)); }

static nt_tensor *op_cross_entropy(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *y = a->x[1];
    double smoothing = number_key(r, a, "smoothing", 0);
    if (!x || !y || x->rank < 1) return NULL;
    if (is_number(y)) { // target probabilities
        y = smoothing != 0 ? nt_add_scalar(nt_scale(y, 1 - smoothing), smoothing / (double)x->shape[x->rank - 1]) : y;
        return nt_neg(nt_sum_axes(nt_mul(y, nt_log_softmax(x, -1)), one_axis(-1), 0));
    }
    nt_cross_entropy_desc d = { smoothing, 0, 0 };
    return smoothing != 0 ? nt_cross_entropy_with(x, y, &d) : nt_cross_entropy(x, y);
}

static nt_tensor *op_sigmoid_cross_entropy(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *y = a->x[1];
    promote(r, &x, &y);
    return nt_sigmoid_cross_entropy(x, y);
}

static nt_tensor *op_huber(op_run *r, const op_args *a) { return nt_huber(a->x[0], a->x[1], number_key(r, a, "delta", 1)); }

static nt_tensor *op_layer_norm(op_run *r, const op_args *a) {
    double eps = number_key(r, a, "eps", 1e-6);
    gd_ints list = gd_get_ints(r->c, a->node, "axes");
    if (list.count < 0) return nt_layer_norm(a->x[0], a->x[1], a->x[2], eps);
    return nt_layer_norm_axes(a->x[0], a->x[1], a->x[2], gd_to_axes(r->c, list), eps);
}

static nt_tensor *op_group_norm(op_run *r, const op_args *a) {
    return nt_group_norm(a->x[0], a->x[1], a->x[2], int_key(r, a, "groups", 1), number_key(r, a, "eps", 1e-6));
}
static nt_tensor *op_instance_norm(op_run *r, const op_args *a) {
    return nt_instance_norm(a->x[0], a->x[1], a->x[2], number_key(r, a, "eps", 1e-6));
}
static nt_tensor *op_batch_norm(op_run *r, const op_args *a) {
    return nt_batch_norm(a->x[0], a->x[1], a->x[2], number_key(r, a, "eps", 1e-5));
}
static nt_tensor *op_rms_norm(op_run *r, const op_args *a) { return nt_rms_norm(a->x[0], a->x[1], number_key(r, a, "eps", 1e-6)); }

static nt_tensor *op_attention(op_run *r, const op_args *a) {
    nt_attention_desc d = { number_key(r, a, "scale", 0), int_key(r, a, "causal", 0) };
    return nt_attention(a->x[0], a->x[1], a->x[2], a->count > 3 ? a->x[3] : NULL, &d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Shapes and indices
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *op_gather(op_run *r, const op_args *a) { return nt_gather_clip(a->x[0], a->x[1], int_key(r, a, "axis", 0)); }
static nt_tensor *op_scatter_add(op_run *r, const op_args *a) { return nt_scatter_add(a->x[0], a->x[1], a->x[2], int_key(r, a, "axis", 0)); }

static nt_tensor *op_segment_sum(op_run *r, const op_args *a) { return nt_segment_sum(a->x[0], a->x[1], gd_need_int(r->c, a->node, "n")); }
static nt_tensor *op_take_along(op_run *r, const op_args *a) { return nt_take_along_axis(a->x[0], a->x[1], int_key(r, a, "axis", -1)); }
static nt_tensor *op_one_hot(op_run *r, const op_args *a) { return nt_one_hot(a->x[0], gd_need_int(r->c, a->node, "n"), r->dtype); }

static nt_tensor *op_slice(op_run *r, const op_args *a) {
    gd_ints start = gd_need_ints(r->c, a->node, "start"), limit = gd_need_ints(r->c, a->node, "limit"), stride = gd_get_ints(r->c, a->node, "stride");
    int rank = a->x[0] ? a->x[0]->rank : 0;
    if (start.count != rank || limit.count != rank || (stride.count >= 0 && stride.count != rank)) return (nt_tensor *)gd_fail(r->c, "slice of rank %d", rank);
    return nt_slice(a->x[0], start.at, limit.at, stride.at);
}

static nt_tensor *op_pad(op_run *r, const op_args *a) {
    const char *config = gd_text(a->node, "config");
    int rank = a->x[0] ? a->x[0]->rank : 0;
    int64_t amount[3][NT_MAX_RANK];
    gd_groups g = gd_to_groups(r->c, config ? config : "", 3);
    double value = number_key(r, a, "value", 0);
    if (r->c->error[0] || g.count != rank) return (nt_tensor *)gd_fail(r->c, "pad of rank %d with %d groups", rank, g.count);
    for (int k = 0; k < rank; k++) {
        for (int j = 0; j < 3; j++) amount[j][k] = (int64_t)g.at[3 * k + j];
    }
    return nt_pad(a->x[0], amount[0], amount[1], amount[2], value);
}

static nt_tensor *op_concat(op_run *r, const op_args *a) { return nt_concat(list_of(a), int_key(r, a, "axis", 0)); }
static nt_tensor *op_stack(op_run *r, const op_args *a) { return nt_stack(list_of(a), int_key(r, a, "axis", 0)); }
static nt_tensor *op_reshape(op_run *r, const op_args *a) { return nt_reshape(a->x[0], gd_need_shape(r->c, a->node, "shape")); }
static nt_tensor *op_broadcast(op_run *r, const op_args *a) { return nt_broadcast(a->x[0], gd_need_shape(r->c, a->node, "shape")); }

static nt_tensor *op_transpose(op_run *r, const op_args *a) {
    gd_ints perm = gd_get_ints(r->c, a->node, "perm");
    nt_axes axes = all_axes(a->x[0]), back = axes;
    for (int k = 0; k < axes.count; k++) back.axis[k] = axes.count - 1 - k;
    return nt_transpose(a->x[0], perm.count < 0 ? back : gd_to_axes(r->c, perm));
}

static nt_tensor *op_flip(op_run *r, const op_args *a) { return nt_flip(a->x[0], axes_key(r, a)); }

static nt_tensor *op_roll(op_run *r, const op_args *a) {
    gd_ints shift = gd_need_ints(r->c, a->node, "shift"), list = gd_get_ints(r->c, a->node, "axes");
    nt_tensor *x = a->x[0];
    if (!x || r->c->error[0] || shift.count < 1) return NULL;
    if (list.count < 0) return nt_reshape(nt_roll(nt_flatten(x, 0), shift.at, one_axis(0)), nt_shape_of(x)); // of the flattened array
    nt_axes axes = gd_to_axes(r->c, list);
    int64_t each[NT_MAX_RANK];
    for (int k = 0; k < axes.count; k++) each[k] = shift.at[shift.count > 1 ? k : 0];
    return nt_roll(x, each, axes);
}

static nt_tensor *op_repeat(op_run *r, const op_args *a) { return nt_repeat(a->x[0], gd_need_int(r->c, a->node, "n"), int_key(r, a, "axis", 0)); }
static nt_tensor *op_upsample(op_run *r, const op_args *a) { return nt_upsample(a->x[0], gd_int(r->c, a->node, "factor", 2)); }
static nt_tensor *op_tile(op_run *r, const op_args *a) { return nt_tile(a->x[0], gd_need_shape(r->c, a->node, "reps")); }
static nt_tensor *op_tril(op_run *r, const op_args *a) { return nt_tril(a->x[0], int_key(r, a, "k", 0)); }
static nt_tensor *op_triu(op_run *r, const op_args *a) { return nt_triu(a->x[0], int_key(r, a, "k", 0)); }

static nt_tensor *op_diag(op_run *r, const op_args *a) {
    (void)r;
    return nt_diag(a->x[0], 0);
}

static nt_tensor *op_trace(op_run *r, const op_args *a) {
    (void)r;
    return nt_trace(a->x[0]);
}

static nt_tensor *op_dynamic_slice(op_run *r, const op_args *a) {
    if (a->x[0] && a->count != a->x[0]->rank + 1) return (nt_tensor *)gd_fail(r->c, "dynamic_slice of rank %d with %d starts", a->x[0]->rank, a->count - 1);
    return nt_dynamic_slice(a->x[0], a->x + 1, gd_need_shape(r->c, a->node, "size"));
}

static nt_tensor *op_dynamic_update_slice(op_run *r, const op_args *a) {
    if (a->x[0] && a->count != a->x[0]->rank + 2) return (nt_tensor *)gd_fail(r->c, "dynamic_update_slice of rank %d with %d starts", a->x[0]->rank, a->count - 2);
    return nt_dynamic_update_slice(a->x[0], a->x[1], a->x + 2);
}

// ---------------------------------------------------------------------------------------------------------------------
// The words
// ---------------------------------------------------------------------------------------------------------------------
typedef enum op_prepare { AS_GIVEN, FLOATS, BOOLS, PROMOTED, PROMOTED_FLOATS } op_prepare;
typedef struct op_word {
    const char *word;
    int least, most;                           // how many arguments
    op_prepare prepare;
    nt_tensor *(*unary)(nt_tensor *);
    nt_tensor *(*binary)(nt_tensor *, nt_tensor *);
    op_fn general;
} op_word;

#define UNARY(word, prepare) { #word, 1, 1, prepare, nt_##word, NULL, NULL }
#define BINARY(word, name, prepare) { #word, 2, 2, prepare, NULL, nt_##name, NULL }
#define GENERAL(word, least, most) { #word, least, most, AS_GIVEN, NULL, NULL, op_##word }
#define ANY 1000000
static const op_word words[] = {
    UNARY(exp, FLOATS), UNARY(exp2, FLOATS), UNARY(log, FLOATS), UNARY(log2, FLOATS), UNARY(log1p, FLOATS), UNARY(expm1, FLOATS), UNARY(sqrt, FLOATS),
    UNARY(rsqrt, FLOATS), UNARY(cbrt, FLOATS), UNARY(sin, FLOATS), UNARY(cos, FLOATS), UNARY(tan, FLOATS), UNARY(asin, FLOATS), UNARY(acos, FLOATS),
    UNARY(atan, FLOATS), UNARY(sinh, FLOATS), UNARY(cosh, FLOATS), UNARY(tanh, FLOATS), UNARY(asinh, FLOATS), UNARY(acosh, FLOATS), UNARY(atanh, FLOATS),
    UNARY(erf, FLOATS), UNARY(erfc, FLOATS), UNARY(erf_inv, FLOATS), UNARY(lgamma, FLOATS), UNARY(digamma, FLOATS), UNARY(sigmoid, FLOATS),
    UNARY(log_sigmoid, FLOATS), UNARY(softplus, FLOATS), UNARY(relu, AS_GIVEN), UNARY(relu6, FLOATS), UNARY(silu, FLOATS), UNARY(mish, FLOATS),
    UNARY(selu, FLOATS), UNARY(hard_sigmoid, FLOATS), UNARY(hard_silu, FLOATS), UNARY(hard_tanh, FLOATS), UNARY(soft_sign, FLOATS), UNARY(abs, AS_GIVEN),
    UNARY(sign, AS_GIVEN), UNARY(neg, AS_GIVEN), UNARY(floor, FLOATS), UNARY(ceil, FLOATS), UNARY(round, FLOATS), UNARY(trunc, FLOATS),
    UNARY(square, AS_GIVEN), UNARY(reciprocal, FLOATS), UNARY(is_finite, FLOATS), UNARY(is_nan, FLOATS), UNARY(logical_not, BOOLS),
    UNARY(stop_gradient, AS_GIVEN),
    UNARY(cholesky, FLOATS), UNARY(eigvalsh, FLOATS), UNARY(logdet_spd, FLOATS), UNARY(sym_sqrt, FLOATS), UNARY(inv, FLOATS), UNARY(det, FLOATS),
    BINARY(solve, solve, PROMOTED_FLOATS), BINARY(solve_spd, solve_spd, PROMOTED_FLOATS), GENERAL(triangular_solve, 2, 2),
    BINARY(add, add, PROMOTED), BINARY(sub, sub, PROMOTED), BINARY(mul, mul, PROMOTED), BINARY(div, div, PROMOTED_FLOATS),
    BINARY(pow, pow, PROMOTED_FLOATS), BINARY(max2, maximum, PROMOTED), BINARY(min2, minimum, PROMOTED), BINARY(atan2, atan2, PROMOTED_FLOATS),
    BINARY(rem, rem, PROMOTED), BINARY(mod, mod, PROMOTED), BINARY(hypot, hypot, PROMOTED_FLOATS), BINARY(logaddexp, logaddexp, PROMOTED_FLOATS),
    BINARY(copysign, copysign, PROMOTED_FLOATS), BINARY(eq, equal, PROMOTED), BINARY(ne, not_equal, PROMOTED), BINARY(lt, less, PROMOTED),
    BINARY(le, less_equal, PROMOTED), BINARY(gt, greater, PROMOTED), BINARY(ge, greater_equal, PROMOTED),
    GENERAL(leaky_relu, 1, 1), GENERAL(elu, 1, 1), GENERAL(gelu, 1, 1), GENERAL(pow_const, 1, 1), GENERAL(add_const, 1, 1), GENERAL(mul_const, 1, 1),
    GENERAL(clamp, 1, 1), GENERAL(cast, 1, 1), GENERAL(select, 3, 3), GENERAL(sum, 1, 1), GENERAL(mean, 1, 1), GENERAL(prod, 1, 1), GENERAL(max, 1, 1),
    GENERAL(min, 1, 1), GENERAL(logsumexp, 1, 1), GENERAL(norm, 1, 1), GENERAL(any, 1, 1), GENERAL(all, 1, 1), GENERAL(var, 1, 1), GENERAL(std, 1, 1),
    GENERAL(argmax, 1, 1), GENERAL(argmin, 1, 1), GENERAL(matmul, 2, 2), GENERAL(dense, 3, 3), GENERAL(einsum, 1, ANY), GENERAL(conv, 2, 2),
    GENERAL(conv_transpose, 2, 2), GENERAL(max_pool, 1, 1), GENERAL(avg_pool, 1, 1), GENERAL(sum_pool, 1, 1), GENERAL(softmax, 1, 1),
    GENERAL(log_softmax, 1, 1), GENERAL(cross_entropy, 2, 2), GENERAL(sigmoid_cross_entropy, 2, 2), GENERAL(huber, 2, 2), GENERAL(layer_norm, 3, 3),
    GENERAL(group_norm, 3, 3), GENERAL(instance_norm, 3, 3), GENERAL(batch_norm, 3, 3), GENERAL(rms_norm, 2, 2), GENERAL(attention, 3, 4),
    GENERAL(gather, 2, 2), GENERAL(scatter_add, 3, 3), GENERAL(segment_sum, 2, 2), GENERAL(take_along, 2, 2), GENERAL(one_hot, 1, 1), GENERAL(slice, 1, 1),
    GENERAL(pad, 1, 1), GENERAL(concat, 1, ANY), GENERAL(stack, 1, ANY), GENERAL(reshape, 1, 1), GENERAL(broadcast, 1, 1), GENERAL(transpose, 1, 1),
    GENERAL(flip, 1, 1), GENERAL(roll, 1, 1), GENERAL(repeat, 1, 1), GENERAL(upsample, 1, 1), GENERAL(tile, 1, 1), GENERAL(tril, 1, 1), GENERAL(triu, 1, 1),
    GENERAL(diag, 1, 1), GENERAL(trace, 1, 1), GENERAL(dynamic_slice, 1, ANY), GENERAL(dynamic_update_slice, 2, ANY), GENERAL(cumsum, 1, 1),
    GENERAL(cumprod, 1, 1), GENERAL(cummax, 1, 1), GENERAL(cumlogsumexp, 1, 1), GENERAL(sort, 1, 1), GENERAL(argsort, 1, 1), GENERAL(top_k, 1, 1)
};

static const op_word *find_word(gd_case *c, const char *word) {
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        if (strcmp(words[k].word, word) == 0) return &words[k];
    }
    return (const op_word *)gd_fail(c, "the word %s is not known", word);
}

static nt_tensor *find_input(op_run *r, const char *name) {
    char *end = NULL;
    long k = strncmp(name, "in", 2) == 0 ? strtol(name + 2, &end, 10) : -1;
    if (!end || end == name + 2 || *end || k < 0 || k >= r->inputs) return (nt_tensor *)gd_fail(r->c, "%s is no input of this case", name);
    return r->input[k];
}

static nt_tensor *record(op_run *r, gd_node *n);

static nt_tensor *record_word(op_run *r, const op_word *w, op_args *a) {
    if (w->prepare == PROMOTED || w->prepare == PROMOTED_FLOATS) promote(r, &a->x[0], &a->x[1]);
    for (int k = 0; k < a->count; k++) {
        if (w->prepare == FLOATS || w->prepare == PROMOTED_FLOATS) a->x[k] = to_float(r, a->x[k]);
        if (w->prepare == BOOLS) a->x[k] = to_bool(a->x[k]);
    }
    if (w->unary) return w->unary(a->x[0]);
    if (w->binary) return w->binary(a->x[0], a->x[1]);
    return w->general(r, a);
}

static nt_tensor *record(op_run *r, gd_node *n) {
    if (!n->is_list) return find_input(r, n->word);
    const op_word *w = n->word ? find_word(r->c, n->word) : NULL;
    if (!w) return (nt_tensor *)(gd_stopped(r->c) ? NULL : gd_fail(r->c, "a list without a word"));
    if (n->arg_count < w->least || n->arg_count > w->most) return (nt_tensor *)gd_fail(r->c, "(%s ...) with %d arguments", n->word, n->arg_count);
    op_args a = { n, (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)n->arg_count), n->arg_count };
    for (int k = 0; k < a.count; k++) a.x[k] = record(r, n->args[k]);
    if (gd_stopped(r->c) || nt_error(r->tape)) return NULL;
    return record_word(r, w, &a);
}

// ---------------------------------------------------------------------------------------------------------------------
// One case
// ---------------------------------------------------------------------------------------------------------------------
// Inputs are inputs of the tape in f64 and constants in f32: both kinds of leaves are seen.
static void make_inputs(op_run *r) {
    char name[32];
    gd_tensor t;
    for (;; r->inputs++) {
        snprintf(name, sizeof name, "in%d", r->inputs);
        if (!gd_find(r->c, name, &t)) break;
    }
    r->source = (gd_tensor *)gd_alloc(r->c, sizeof(gd_tensor) * (size_t)(r->inputs + 1));
    r->input = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->inputs + 1));
    for (int k = 0; k < r->inputs; k++) {
        snprintf(name, sizeof name, "in%d", k);
        r->source[k] = gd_need(r->c, name);
        if (r->rounded) r->source[k] = gd_as(r->c, r->source[k], NT_F32);
        r->source[k] = gd_as(r->c, r->source[k], r->dtype);
        const gd_tensor *s = &r->source[k];
        if (r->dtype == NT_F32) {
            r->input[k] = nt_constant(r->tape, s->dtype, s->shape, s->data);
            continue;
        }
        r->input[k] = nt_input(r->tape, s->dtype, s->shape);
        if (nt_write(r->input[k], s->data) != NT_OK) gd_fail(r->c, "nt_write: %s", nt_error(r->tape) ? nt_error(r->tape) : "?");
    }
}

// The tensor of this name as a constant of the tape, NULL if the case has none.
static nt_tensor *constant(op_run *r, const char *name) {
    gd_tensor t;
    if (!gd_find(r->c, name, &t)) return NULL;
    t = gd_as(r->c, t, r->dtype);
    return nt_constant(r->tape, t.dtype, t.shape, t.data);
}

typedef struct op_want { char name[32]; nt_tensor *value; } op_want;
typedef struct op_wants { op_want *items; int count; } op_wants;

// `value` is to be compared if the case has a tensor of this name.
static void want(op_run *r, op_wants *list, const char *kind, int index, nt_tensor *value) {
    op_want *w = &list->items[list->count];
    gd_tensor t;
    snprintf(w->name, sizeof w->name, "%s%d", kind, index);
    w->value = value;
    if (!gd_find(r->c, w->name, &t)) return;
    if (!value && !nt_error(r->tape)) gd_fail(r->c, "%s was not recorded", w->name);
    list->count++;
}

// The derivatives with respect to the floating inputs, under their numbers in the case.
static void want_pullback(op_run *r, op_wants *list, const char *kind, nt_tensor *y, nt_tensor *cotangent, nt_params inputs, const int *number) {
    nt_params g = nt_vjp(NT_LIST(y), NT_LIST(cotangent), inputs);
    for (int k = 0; k < inputs.count; k++) want(r, list, kind, number[k], k < g.count ? g.items[k] : NULL);
}

static void record_derivatives(op_run *r, op_wants *list, nt_tensor *y) {
    nt_tensor **inputs = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->inputs + 1));
    nt_tensor **tangents = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->inputs + 1));
    int *number = (int *)gd_alloc(r->c, sizeof(int) * (size_t)(r->inputs + 1)), n = 0, given = 0;
    nt_tensor *cotangent = constant(r, "ct0");
    for (int k = 0; k < r->inputs; k++) {
        char name[32];
        if (!is_number(r->input[k])) continue;
        snprintf(name, sizeof name, "t_in%d", k);
        number[n] = k;
        inputs[n] = r->input[k];
        tangents[n] = constant(r, name);
        given += tangents[n] != NULL;
        n++;
    }
    nt_params in = { n, inputs }, t = { n, tangents };
    if (cotangent) want_pullback(r, list, "vjp_in", y, cotangent, in, number);
    if (!given) return;
    nt_params pushed = nt_jvp(NT_LIST(y), in, t);
    nt_tensor *along = pushed.count ? pushed.items[0] : NULL;
    want(r, list, "jvp_out", 0, along);
    gd_tensor second;
    int has_second = 0;
    for (int k = 0; k < n; k++) {
        char name[32];
        snprintf(name, sizeof name, "hvp_in%d", number[k]);
        has_second |= gd_find(r->c, name, &second);
    }
    if (has_second) want_pullback(r, list, "hvp_in", along, cotangent, in, number);
}

static void compare_all(op_run *r, const op_wants *list) {
    gd_node *at = r->c->attributes;
    gd_rule rule = { gd_int(r->c, at, "exact", 0) != 0, 0, 0, 0, 0 };
    rule.tolerance = r->dtype == NT_F32 ? gd_number(r->c, at, "tol32", 2e-6) : gd_number(r->c, at, "tol64", 1e-13);
    nt_tensor **outputs = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(list->count + 1));
    for (int k = 0; k < list->count; k++) outputs[k] = list->items[k].value;
    nt_params all = { list->count, outputs };
    nt_program *p = nt_compile_many(r->tape, all, NULL);
    nt_status status = p ? nt_run(p) : NT_ERROR_ARGUMENT;
    if (!p || status != NT_OK) {
        gd_fail(r->c, "%s: %s", p ? nt_status_name(status) : "nt_compile_many", nt_error(r->tape) ? nt_error(r->tape) : "(no message)");
        return;
    }
    for (int k = 0; k < list->count; k++) {
        gd_tensor expected = r->at_rounded && r->dtype == NT_F32 ? r->at_rounded[k] : gd_need(r->c, list->items[k].name);
        gd_tensor got = gd_new(r->c, outputs[k]->dtype, nt_shape_of(outputs[k]));
        if (nt_read(p, k, got.data) != NT_OK) gd_fail(r->c, "nt_read of %s", list->items[k].name);
        if (r->rounded) r->at_rounded[k] = got;
        else gd_compare(r->c, list->items[k].name, &got, &expected, &rule);
    }
}

// rounded: evaluates at the inputs as float32 holds them and keeps the values in at_rounded; else compares with the case's values, or
// in f32 with at_rounded where there is one.
static void run_in(gd_case *c, nt_dtype dtype, int rounded, gd_tensor **at_rounded) {
    op_run r = { c, nt_tape_open(NULL), dtype, NULL, NULL, 0, rounded, NULL, *at_rounded };
    op_wants list = { NULL, 0 };
    make_inputs(&r);
    nt_tensor *y = gd_stopped(c) ? NULL : record(&r, c->spec);
    if (!gd_stopped(c) && y) {
        list.items = (op_want *)gd_alloc(c, sizeof(op_want) * (size_t)(2 * r.inputs + 4));
        if (rounded) r.at_rounded = *at_rounded = (gd_tensor *)gd_alloc(c, sizeof(gd_tensor) * (size_t)(2 * r.inputs + 4));
        want(&r, &list, "out", 0, y);
        if (r.second) want(&r, &list, "out", 1, r.second);
        if (is_number(y)) record_derivatives(&r, &list, y);
        if (list.count == 0) gd_fail(c, "there is no tensor out0");
    }
    if (nt_error(r.tape)) gd_fail(c, "%s: %s", nt_dtype_name(dtype), nt_error(r.tape));
    else if (!y && !gd_stopped(c)) gd_fail(c, "nothing was recorded, and there is no message");
    if (!gd_stopped(c)) compare_all(&r, &list);
    nt_tape_close(r.tape);
}

// 1 if every floating input is a number that float32 holds exactly, as the cases promise.
static int inputs_fit_f32(gd_case *c) {
    char name[32];
    gd_tensor t;
    for (int k = 0; snprintf(name, sizeof name, "in%d", k), gd_find(c, name, &t); k++) {
        if (t.dtype != NT_F64) continue;
        const double *x = (const double *)t.data;
        for (int64_t i = 0, n = t.size; i < n; i++)
            if (x[i] == x[i] && (double)(float)x[i] != x[i]) return 0;
    }
    return 1;
}

// The case in f64, then in f32. An input that float32 cannot hold moves the right answer: 0.99999994 is 0.9999999404 in f32, where erf_inv
// is 2e-4 higher. f32 is then held, with the case's tolerance, against our f64 at the rounded inputs, which the case itself has just checked.
static void run_case(gd_case *c) {
    gd_tensor *at_rounded = NULL;
    run_in(c, NT_F64, 0, &at_rounded);
    if (!gd_stopped(c) && !inputs_fit_f32(c)) run_in(c, NT_F64, 1, &at_rounded);
    if (!gd_stopped(c)) run_in(c, NT_F32, 0, &at_rounded);
}

int main(int argc, char **argv) { return gd_run(argc > 1 ? argv[1] : "data/ops", run_case); }
