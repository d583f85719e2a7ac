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

static int axis_of(op_run *r, const nt_tensor *x, int64_t axis) {
    int rank = x ? x->rank : 0;
    if (x && (axis < -rank || axis >= rank)) gd_fail(r->c, "axis %lld of rank %d", (long long)axis, rank);
    return (int)(axis < 0 ? axis + rank : axis);
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

static nt_tensor *int_constant(op_run *r, const int64_t *values, int64_t count) {
    int32_t *v = (int32_t *)gd_alloc(r->c, sizeof(int32_t) * (size_t)(count + 1));
    for (int64_t i = 0; i < count; i++) v[i] = (int32_t)values[i];
    return nt_constant(r->tape, NT_I32, NT_SHAPE(count), v);
}

static nt_tensor *iota(op_run *r, int64_t count) { return nt_iota(r->tape, NT_I32, NT_SHAPE(count), 0); }

// x at a permutation, or any other choice, of the places along one axis.
static nt_tensor *pick(op_run *r, nt_tensor *x, int axis, int64_t first, int64_t step, int64_t count) {
    int64_t size = x ? x->shape[axis] : 0;
    int64_t *at = (int64_t *)gd_alloc(r->c, sizeof(int64_t) * (size_t)(count + 1));
    for (int64_t i = 0; i < count && size > 0; i++) at[i] = (((first + i * step) % size) + size) % size;
    return nt_gather(x, int_constant(r, at, count), axis);
}

static nt_tensor *zeros_like(nt_tensor *x) { return nt_full_like(x, 0); }
static nt_tensor *mean_keep(nt_tensor *x, nt_axes axes) { return nt_mean_axes(x, axes, 1); }

// (x - mean) / sqrt(var + eps)
static nt_tensor *normalize(nt_tensor *x, nt_axes axes, double eps) {
    nt_tensor *d = nt_sub(x, mean_keep(x, axes));
    return nt_mul(d, nt_rsqrt(nt_add_scalar(mean_keep(nt_square(d), axes), eps)));
}

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

static nt_tensor *op_var(op_run *r, const op_args *a) {
    nt_axes axes = axes_key(r, a);
    double n = 1, ddof = number_key(r, a, "ddof", 0);
    for (int k = 0; a->x[0] && k < axes.count; k++) n *= (double)a->x[0]->shape[axis_of(r, a->x[0], axes.axis[k])];
    nt_tensor *d = nt_square(nt_sub(a->x[0], mean_keep(a->x[0], axes)));
    return nt_scale(nt_sum_axes(d, axes, keepdims(r, a)), n > ddof ? 1 / (n - ddof) : NAN);
}

static nt_tensor *op_std(op_run *r, const op_args *a) { return nt_sqrt(op_var(r, a)); }

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

// The letters of one operand of an einsum; a letter that occurs twice keeps the diagonal. Result: axes in the order of `all`, size 1 where absent.
static nt_tensor *einsum_operand(op_run *r, nt_tensor *x, const char *letters, const char *all) {
    char seen[NT_MAX_RANK + 1] = "";
    int rank = 0;
    if (!x) return NULL;
    if ((int)strlen(letters) != x->rank) return (nt_tensor *)gd_fail(r->c, "einsum: %s for rank %d", letters, x->rank);
    for (; *letters; letters++) {
        const char *before = strchr(seen, *letters);
        if (before) { // axes `before` and `rank` become one: those places where their indices are equal
            int64_t n = x ? x->shape[rank] : 0;
            nt_tensor *row = nt_reshape(iota(r, n), NT_SHAPE(n, 1)), *eye = nt_equal(row, iota(r, n));
            nt_shape s = { x ? x->rank : 0, { 1, 1, 1, 1, 1, 1, 1, 1 } };
            int first = (int)(before - seen);
            s.size[first] = s.size[rank] = n;
            x = nt_sum_axes(nt_select(nt_reshape(eye, s), x, zeros_like(x)), one_axis(rank), 0);
            continue;
        }
        seen[rank++] = *letters;
        seen[rank] = 0;
    }
    nt_axes order;
    nt_shape shape;
    memset(&order, 0, sizeof order);
    shape.rank = (int)strlen(all);
    for (int k = 0; all[k]; k++) {
        const char *at = strchr(seen, all[k]);
        shape.size[k] = at && x ? x->shape[at - seen] : 1;
        if (at) order.axis[order.count++] = (int)(at - seen);
    }
    return nt_reshape(nt_transpose(x, order), shape);
}

// eq=ab,bc->ac: every operand broadcast to all letters, multiplied, summed over those that the result lacks.
static nt_tensor *op_einsum(op_run *r, const op_args *a) {
    const char *eq = gd_text(a->node, "eq"), *arrow = eq ? strstr(eq, "->") : NULL;
    char all[NT_MAX_RANK + 1] = "";
    if (!arrow) return (nt_tensor *)gd_fail(r->c, "einsum needs eq=...->...");
    const char *result = arrow + 2;
    size_t letters = strlen(result);
    if (letters > NT_MAX_RANK) return (nt_tensor *)gd_fail(r->c, "einsum of more than %d letters", NT_MAX_RANK);
    memcpy(all, result, letters + 1);
    for (const char *s = eq; s < arrow; s++) {
        if (*s == ',' || strchr(all, *s)) continue;
        if (letters == NT_MAX_RANK) return (nt_tensor *)gd_fail(r->c, "einsum of more than %d letters", NT_MAX_RANK);
        all[letters++] = *s;
        all[letters] = 0;
    }
    nt_tensor *product = NULL;
    for (int k = 0; k < a->count; k++) {
        size_t n = strcspn(eq, ",-");
        nt_tensor *x = einsum_operand(r, a->x[k], gd_copy(r->c, eq, n), all);
        product = k == 0 ? x : nt_mul(product, x);
        eq += n + (eq[n] == ',');
    }
    nt_axes rest;
    memset(&rest, 0, sizeof rest);
    for (size_t k = strlen(result); k < letters; k++) rest.axis[rest.count++] = (int)k;
    return rest.count ? nt_sum_axes(product, rest, 0) : product;
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

// Wraps the image around: `before` elements of the end in front, `after` of the beginning behind.
static nt_tensor *wrap_pad(op_run *r, nt_tensor *x, int axis, int before, int after) {
    return x ? pick(r, x, axis, -before, 1, x->shape[axis] + before + after) : NULL;
}

// The pad= of a convolution, into the descriptor or onto x. SAME is of the image as it is given, before lhs_dilation.
static nt_tensor *conv_pad(op_run *r, const op_args *a, nt_tensor *x, int axes, int spread, nt_conv_desc *d) {
    const char *pad = gd_text(a->node, "pad");
    const nt_tensor *w = a->x[1];
    d->padding = NT_VALID;
    if (!pad || strcmp(pad, "VALID") == 0) return x;
    if (strchr(pad, ':')) {
        d->padding = NT_EXPLICIT;
        explicit_pad(r, pad, axes, d->pad);
        return x;
    }
    int same = strcmp(pad, "SAME") == 0;
    if (!same && strcmp(pad, "CIRCULAR") != 0) return (nt_tensor *)gd_fail(r->c, "conv pad=%s", pad);
    if (same) d->padding = spread ? NT_EXPLICIT : NT_SAME;
    for (int k = 0; k < axes; k++) {
        int extent = (int)(w->shape[k] - 1) * d->dilation[k];
        if (!same) {
            x = wrap_pad(r, x, k + 1, extent / 2, extent - extent / 2);
            continue;
        }
        int n = (int)a->x[0]->shape[k + 1], s = d->stride[k], total = ((n + s - 1) / s - 1) * s + extent + 1 - n;
        d->pad[k][0] = total > 0 ? total / 2 : 0;
        d->pad[k][1] = total > 0 ? total - total / 2 : 0;
    }
    return x;
}

static nt_tensor *op_conv(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *w = a->x[1];
    int axes = x ? x->rank - 2 : 0, dilation[3] = { 1, 1, 1 }, spread = 0;
    int64_t none[NT_MAX_RANK] = { 0 }, inner[NT_MAX_RANK] = { 0 };
    nt_conv_desc d;
    memset(&d, 0, sizeof d);
    if (!x || !w || axes < 1 || axes > 3 || w->rank != x->rank) return (nt_tensor *)gd_fail(r->c, "conv of ranks %d, %d", x ? x->rank : 0, w ? w->rank : 0);
    spatial_key(r, a, "stride", axes, 1, d.stride);
    spatial_key(r, a, "dilation", axes, 1, d.dilation);
    spatial_key(r, a, "lhs_dilation", axes, 1, dilation);
    d.groups = int_key(r, a, "groups", 1);
    for (int k = 0; k < axes; k++) {
        inner[k + 1] = dilation[k] - 1;
        spread |= dilation[k] > 1;
    }
    x = conv_pad(r, a, x, axes, spread, &d);
    return nt_conv(spread ? nt_pad(x, none, none, inner, 0) : x, w, &d);
}

// A convolution with stride 1 of x with stride - 1 zeros between its elements.
static nt_tensor *op_conv_transpose(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *w = a->x[1];
    int axes = x ? x->rank - 2 : 0, stride[3];
    const char *pad = gd_text(a->node, "pad");
    int64_t none[NT_MAX_RANK] = { 0 }, inner[NT_MAX_RANK] = { 0 };
    nt_conv_desc d;
    memset(&d, 0, sizeof d);
    if (!x || !w || axes < 1 || axes > 3) return (nt_tensor *)gd_fail(r->c, "conv_transpose of rank %d", x ? x->rank : 0);
    spatial_key(r, a, "stride", axes, 1, stride);
    spatial_key(r, a, "dilation", axes, 1, d.dilation);
    d.padding = NT_EXPLICIT;
    if (pad && strchr(pad, ':')) explicit_pad(r, pad, axes, d.pad);
    for (int k = 0; k < axes; k++) {
        int kernel = (int)(w->shape[k] - 1) * d.dilation[k] + 1, s = stride[k], total = kernel + s - 2, before = kernel - 1;
        inner[k + 1] = s - 1;
        if (pad && strchr(pad, ':')) continue;
        if (pad && strcmp(pad, "VALID") == 0) total += kernel > s ? kernel - s : 0;
        else if (pad && strcmp(pad, "SAME") != 0) return (nt_tensor *)gd_fail(r->c, "conv_transpose pad=%s", pad);
        else if (s <= kernel - 1) before = (total + 1) / 2;
        d.pad[k][0] = before;
        d.pad[k][1] = total - before;
    }
    return nt_conv(nt_pad(x, none, none, inner, 0), w, &d);
}

static nt_tensor *pool(op_run *r, const op_args *a, nt_tensor *(*f)(nt_tensor *, nt_shape, const nt_pool_desc *)) {
    nt_tensor *x = a->x[0];
    int axes = x ? x->rank - 2 : 0, window[3];
    const char *pad = gd_text(a->node, "pad");
    nt_shape shape;
    nt_pool_desc d;
    memset(&d, 0, sizeof d);
    if (axes < 1 || axes > 3) return (nt_tensor *)gd_fail(r->c, "pooling of rank %d", axes + 2);
    spatial_key(r, a, "window", axes, 2, window);
    if (gd_text(a->node, "stride")) spatial_key(r, a, "stride", axes, 1, d.stride);
    shape.rank = axes;
    for (int k = 0; k < axes; k++) shape.size[k] = window[k];
    d.padding = NT_VALID;
    if (pad && strchr(pad, ':')) {
        d.padding = NT_EXPLICIT;
        explicit_pad(r, pad, axes, d.pad);
    } else if (pad && strcmp(pad, "SAME") == 0) {
        d.padding = NT_SAME;
    } else if (pad && strcmp(pad, "VALID") != 0) {
        return (nt_tensor *)gd_fail(r->c, "pooling pad=%s", pad);
    }
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
    nt_tensor *x = a->x[0], *y = a->x[1], *rest;
    promote(r, &x, &y);
    rest = nt_add_scalar(nt_neg(y), 1);
    return nt_neg(nt_add(nt_mul(y, nt_log_sigmoid(x)), nt_mul(rest, nt_log_sigmoid(nt_neg(x)))));
}

static nt_tensor *op_huber(op_run *r, const op_args *a) {
    double delta = number_key(r, a, "delta", 1);
    nt_tensor *d = nt_sub(a->x[0], a->x[1]), *size = nt_abs(d);
    nt_tensor *inside = nt_scale(nt_square(d), 0.5), *outside = nt_scale(nt_add_scalar(size, -0.5 * delta), delta);
    return nt_select(nt_less_equal(size, nt_full_like(size, delta)), inside, outside);
}

static nt_tensor *affine(nt_tensor *x, nt_tensor *scale, nt_tensor *bias) { return nt_add(nt_mul(x, scale), bias); }

static nt_tensor *op_layer_norm(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0];
    double eps = number_key(r, a, "eps", 1e-6);
    gd_ints list = gd_get_ints(r->c, a->node, "axes");
    if (!x || !a->x[1] || !a->x[2]) return NULL;
    int last = list.count < 0 || (list.count == 1 && axis_of(r, x, list.at[0]) == x->rank - 1);
    if (last && a->x[1]->rank == 1 && a->x[2]->rank == 1) return nt_layer_norm(x, a->x[1], a->x[2], eps);
    return affine(normalize(x, last ? one_axis(-1) : gd_to_axes(r->c, list), eps), a->x[1], a->x[2]);
}

// The spatial axes: all but the first and the last.
static nt_axes spatial_axes(const nt_tensor *x) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    for (int k = 1; x && k < x->rank - 1; k++) axes.axis[axes.count++] = k;
    return axes;
}

static nt_tensor *op_group_norm(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0];
    int groups = int_key(r, a, "groups", 1);
    if (!x || x->rank + 1 > NT_MAX_RANK || x->rank < 2 || groups < 1) return (nt_tensor *)gd_fail(r->c, "group_norm");
    nt_shape whole = nt_shape_of(x), split = whole;
    split.rank++;
    split.size[x->rank - 1] = groups;
    split.size[x->rank] = whole.size[x->rank - 1] / groups;
    nt_axes axes = spatial_axes(x);
    axes.axis[axes.count++] = x->rank;
    return affine(nt_reshape(normalize(nt_reshape(x, split), axes, number_key(r, a, "eps", 1e-6)), whole), a->x[1], a->x[2]);
}

static nt_tensor *op_instance_norm(op_run *r, const op_args *a) {
    return affine(normalize(a->x[0], spatial_axes(a->x[0]), number_key(r, a, "eps", 1e-6)), a->x[1], a->x[2]);
}

static nt_tensor *op_batch_norm(op_run *r, const op_args *a) {
    nt_axes axes = all_axes(a->x[0]);
    if (axes.count) axes.count--;
    return affine(normalize(a->x[0], axes, number_key(r, a, "eps", 1e-5)), a->x[1], a->x[2]);
}

static nt_tensor *op_rms_norm(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *m = mean_keep(nt_square(x), one_axis(-1));
    return nt_mul(nt_mul(x, nt_rsqrt(nt_add_scalar(m, number_key(r, a, "eps", 1e-6)))), a->x[1]);
}

static nt_tensor *op_attention(op_run *r, const op_args *a) {
    nt_attention_desc d = { number_key(r, a, "scale", 0), int_key(r, a, "causal", 0) };
    return nt_attention(a->x[0], a->x[1], a->x[2], a->count > 3 ? a->x[3] : NULL, &d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Shapes and indices
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *op_gather(op_run *r, const op_args *a) { return nt_gather_clip(a->x[0], a->x[1], int_key(r, a, "axis", 0)); }
static nt_tensor *op_scatter_add(op_run *r, const op_args *a) { return nt_scatter_add(a->x[0], a->x[1], a->x[2], int_key(r, a, "axis", 0)); }

// Rows of x summed by their segment; indices outside of 0 .. n - 1 go to a row that is cut off.
static nt_tensor *op_segment_sum(op_run *r, const op_args *a) {
    int64_t n = gd_need_int(r->c, a->node, "n");
    nt_tensor *x = a->x[0], *i = a->x[1];
    if (!x || !i || x->rank < 1) return NULL;
    nt_shape shape = nt_shape_of(x);
    shape.size[0] = n + 1;
    nt_tensor *inside = nt_logical_and(nt_greater_equal(i, zeros_like(i)), nt_less(i, nt_full_like(i, (double)n)));
    nt_tensor *at = nt_select(inside, i, nt_full_like(i, (double)n));
    return nt_slice_axis(nt_scatter_add(nt_full(r->tape, x->dtype, shape, 0), at, x, 0), 0, 0, n);
}

// Element i[p] of the line through p: one gather from the flattened x.
static nt_tensor *op_take_along(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *i = a->x[1];
    int axis = axis_of(r, x, gd_int(r->c, a->node, "axis", -1));
    if (!x || !i || r->c->error[0]) return NULL;
    if (i->rank != x->rank) return (nt_tensor *)gd_fail(r->c, "take_along of ranks %d, %d", x->rank, i->rank);
    nt_shape lines = nt_shape_of(i);
    for (int k = 0; k < x->rank; k++) {
        if (k != axis && lines.size[k] == 1) lines.size[k] = x->shape[k];
    }
    nt_tensor *n = nt_full_like(i, (double)x->shape[axis]);
    nt_tensor *at = nt_select(nt_less(i, zeros_like(i)), nt_add(i, n), i);
    int64_t stride = 1;
    nt_tensor *flat = NULL;
    for (int k = x->rank - 1; k >= 0; k--) {
        nt_tensor *place = k == axis ? at : nt_iota(r->tape, NT_I32, lines, k);
        place = nt_scale(place, k != axis && x->shape[k] == 1 ? 0 : (double)stride);
        flat = flat ? nt_add(flat, place) : place;
        stride *= x->shape[k];
    }
    return nt_gather(nt_reshape(x, NT_SHAPE(nt_size(x))), flat, 0);
}

static nt_tensor *op_one_hot(op_run *r, const op_args *a) {
    int64_t n = gd_need_int(r->c, a->node, "n");
    return nt_cast(nt_equal(nt_expand_dims(a->x[0], -1), iota(r, n)), r->dtype);
}

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

static nt_params list_of(const op_args *a) {
    nt_params p = { a->count, a->x };
    return p;
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

static nt_tensor *op_flip(op_run *r, const op_args *a) {
    nt_axes axes = axes_key(r, a);
    nt_tensor *x = a->x[0];
    for (int k = 0; x && k < axes.count; k++) {
        int axis = axis_of(r, x, axes.axis[k]);
        if (r->c->error[0]) return NULL;
        x = pick(r, x, axis, x->shape[axis] - 1, -1, x->shape[axis]);
    }
    return x;
}

static nt_tensor *op_roll(op_run *r, const op_args *a) {
    gd_ints shift = gd_need_ints(r->c, a->node, "shift"), axes = gd_get_ints(r->c, a->node, "axes");
    nt_tensor *x = a->x[0];
    if (!x || r->c->error[0]) return NULL;
    if (axes.count < 0) { // of the flattened array
        x = pick(r, nt_reshape(x, NT_SHAPE(nt_size(x))), 0, -shift.at[0], 1, nt_size(x));
        return nt_reshape(x, nt_shape_of(a->x[0]));
    }
    for (int k = 0; x && k < axes.count; k++) {
        int axis = axis_of(r, x, axes.at[k]);
        if (r->c->error[0]) return NULL;
        x = pick(r, x, axis, -shift.at[shift.count > 1 ? k : 0], 1, x->shape[axis]);
    }
    return x;
}

// Every element of an axis n times in a row.
static nt_tensor *repeat(op_run *r, nt_tensor *x, int64_t at, int64_t n) {
    int axis = axis_of(r, x, at);
    if (!x || r->c->error[0]) return NULL;
    int64_t size = x->shape[axis], *places = (int64_t *)gd_alloc(r->c, sizeof(int64_t) * (size_t)(size * n + 1));
    for (int64_t i = 0; i < size * n; i++) places[i] = i / n;
    return nt_gather(x, int_constant(r, places, size * n), axis);
}

static nt_tensor *op_repeat(op_run *r, const op_args *a) { return repeat(r, a->x[0], gd_int(r->c, a->node, "axis", 0), gd_need_int(r->c, a->node, "n")); }

static nt_tensor *op_upsample(op_run *r, const op_args *a) {
    int64_t factor = gd_int(r->c, a->node, "factor", 2);
    return repeat(r, repeat(r, a->x[0], 1, factor), 2, factor);
}

static nt_tensor *op_tile(op_run *r, const op_args *a) {
    gd_ints reps = gd_need_ints(r->c, a->node, "reps");
    nt_tensor *x = a->x[0];
    while (x && x->rank < reps.count) x = nt_expand_dims(x, 0);
    for (int k = 0; x && k < reps.count; k++) {
        int axis = x->rank - reps.count + k;
        x = pick(r, x, axis, 0, 1, x->shape[axis] * reps.at[k]);
    }
    return x;
}

// Where column - row compares as wanted with k, in the last two axes.
static nt_tensor *triangle(op_run *r, const op_args *a, nt_tensor *(*compare)(nt_tensor *, nt_tensor *)) {
    nt_tensor *x = a->x[0];
    if (!x || x->rank < 2) return NULL;
    nt_tensor *row = nt_reshape(iota(r, x->shape[x->rank - 2]), NT_SHAPE(x->shape[x->rank - 2], 1));
    nt_tensor *limit = nt_add_scalar(row, number_key(r, a, "k", 0));
    return nt_select(compare(iota(r, x->shape[x->rank - 1]), limit), x, zeros_like(x));
}

static nt_tensor *op_tril(op_run *r, const op_args *a) { return triangle(r, a, nt_less_equal); }
static nt_tensor *op_triu(op_run *r, const op_args *a) { return triangle(r, a, nt_greater_equal); }

static nt_tensor *op_diag(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0];
    if (!x || x->rank < 2) return NULL;
    int64_t rows = x->shape[x->rank - 2], columns = x->shape[x->rank - 1], n = rows < columns ? rows : columns;
    int64_t *at = (int64_t *)gd_alloc(r->c, sizeof(int64_t) * (size_t)(n + 1));
    for (int64_t i = 0; i < n; i++) at[i] = i * (columns + 1);
    return nt_gather(nt_flatten(x, x->rank - 2), int_constant(r, at, n), -1);
}

static nt_tensor *op_trace(op_run *r, const op_args *a) { return nt_sum_axes(op_diag(r, a), one_axis(-1), 0); }

// start + 0 .. count - 1 as indices, with the start moved so that the piece fits.
static nt_tensor *piece(op_run *r, nt_tensor *start, int64_t size, int64_t count) {
    return nt_add(nt_clamp(start, 0, (double)(size - count)), iota(r, count));
}

static nt_tensor *op_dynamic_slice(op_run *r, const op_args *a) {
    gd_ints size = gd_need_ints(r->c, a->node, "size");
    nt_tensor *x = a->x[0];
    if (!x || size.count != x->rank || a->count != x->rank + 1) return (nt_tensor *)gd_fail(r->c, "dynamic_slice");
    for (int k = 0; x && k < size.count; k++) x = nt_gather(x, piece(r, a->x[k + 1], x->shape[k], size.at[k]), k);
    return x;
}

// u spread over x's shape and chosen where the place lies in the piece.
static nt_tensor *op_dynamic_update_slice(op_run *r, const op_args *a) {
    nt_tensor *x = a->x[0], *u = a->x[1], *inside = NULL, *spread = u;
    if (!x || !u || a->count != x->rank + 2) return (nt_tensor *)gd_fail(r->c, "dynamic_update_slice");
    for (int k = 0; k < x->rank; k++) {
        int64_t size = x->shape[k], count = u->shape[k];
        nt_shape shape = { x->rank, { 1, 1, 1, 1, 1, 1, 1, 1 } };
        shape.size[k] = size;
        nt_tensor *place = nt_sub(iota(r, size), nt_clamp(a->x[k + 2], 0, (double)(size - count)));
        nt_tensor *in = nt_logical_and(nt_greater_equal(place, zeros_like(place)), nt_less(place, nt_full_like(place, (double)count)));
        in = nt_reshape(in, shape);
        inside = inside ? nt_logical_and(inside, in) : in;
        spread = nt_gather_clip(spread, place, k);
    }
    return nt_select(inside, spread, x);
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
    GENERAL(diag, 1, 1), GENERAL(trace, 1, 1), GENERAL(dynamic_slice, 1, ANY), GENERAL(dynamic_update_slice, 2, ANY)
};

// Words of the step "all operations and transforms".
static const char *const later[] = {
    "cumsum", "cumprod", "cummax", "cumlogsumexp", "sort", "argsort", "top_k"
};

static const op_word *find_word(gd_case *c, const char *word) {
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        if (strcmp(words[k].word, word) == 0) return &words[k];
    }
    for (size_t k = 0; k < sizeof later / sizeof later[0]; k++) {
        if (strcmp(later[k], word) == 0) return (const op_word *)gd_later(c, word);
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
    op_run r = { c, nt_tape_open(NULL), dtype, NULL, NULL, 0, rounded, *at_rounded };
    op_wants list = { NULL, 0 };
    make_inputs(&r);
    nt_tensor *y = gd_stopped(c) ? NULL : record(&r, c->spec);
    if (!gd_stopped(c) && y) {
        list.items = (op_want *)gd_alloc(c, sizeof(op_want) * (size_t)(2 * r.inputs + 3));
        if (rounded) r.at_rounded = *at_rounded = (gd_tensor *)gd_alloc(c, sizeof(gd_tensor) * (size_t)(2 * r.inputs + 3));
        want(&r, &list, "out", 0, y);
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
