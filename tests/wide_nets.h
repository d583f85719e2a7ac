// wide_nets.h: networks from the language of the golden kernels, (serial (dense 16 W=1.5 b=0.1) (relu) ...), as layers with every number
// explicit. C99, for golden_kernels and programs that hold finite networks against infinite ones.
//
// A net maps a value to a value, and a value may be a list, as after (fan_out n). Layers have one input and one output, so a net is walked
// with what was recorded since the list's fan_out: a list becomes branches when a fan_in_* puts it together.
#ifndef WIDE_NETS_H
#define WIDE_NETS_H
#include "golden.h"

typedef struct wide_nets {
    gd_case *c;
    nt_tape *t;
    nt_dtype dtype;
    nt_layer *(*own)(struct wide_nets *w, const gd_node *n, void *user); // words of the program, asked first; NULL for others. NULL: none
    void *user;
} wide_nets;

typedef struct wide_value {
    nt_layer **layers;            // one after the other, since the fan_out around this value
    int count;
    struct wide_value **parts;    // a list
    int part_count;
} wide_value;

static inline void *wide_failure(wide_nets *w, const gd_node *n) {
    return gd_fail(w->c, "(%s ...): %s", n->word, nt_error(w->t) ? nt_error(w->t) : "no message");
}

// ---------------------------------------------------------------------------------------------------------------------
// Arguments
// ---------------------------------------------------------------------------------------------------------------------
static inline const char *wide_atom(wide_nets *w, const gd_node *n, int k) {
    if (k < n->arg_count && !n->args[k]->is_list) return n->args[k]->word;
    gd_fail(w->c, "(%s ...): argument %d is missing or a list", n->word, k);
    return "0";
}

static inline int wide_int(wide_nets *w, const gd_node *n, int k) {
    int64_t v = gd_to_int(w->c, wide_atom(w, n, k));
    if (v < -1000000 || v > 1000000) gd_fail(w->c, "(%s ...): %lld", n->word, (long long)v);
    return gd_stopped(w->c) ? 1 : (int)v;
}

static inline double wide_number(wide_nets *w, const gd_node *n, int k) { return gd_to_number(w->c, wide_atom(w, n, k)); }

// (3 3): the first number is the list's word.
static inline gd_ints wide_ints(wide_nets *w, const gd_node *n, int k) {
    gd_ints list = { 0, NULL };
    if (k >= n->arg_count || !n->args[k]->is_list || n->args[k]->key_count) {
        gd_fail(w->c, "(%s ...): argument %d is not a list of numbers", n->word, k);
        return list;
    }
    const gd_node *l = n->args[k];
    list.at = (int64_t *)gd_alloc(w->c, sizeof(int64_t) * (size_t)(l->arg_count + 1));
    if (l->word) list.at[list.count++] = gd_to_int(w->c, l->word);
    for (int j = 0; j < l->arg_count; j++) {
        if (l->args[j]->is_list) gd_fail(w->c, "(%s ...): a list in a list of numbers", n->word);
        else list.at[list.count++] = gd_to_int(w->c, l->args[j]->word);
    }
    return list;
}

// The value of a key that is one of the words, as its place among them; the first is the default.
static inline int wide_word(wide_nets *w, const gd_node *n, const char *key, const char *const *words, int count) {
    const char *text = gd_text(n, key);
    for (int k = 0; text && k < count; k++) {
        if (strcmp(text, words[k]) == 0) return k;
    }
    if (text) gd_fail(w->c, "(%s ...): %s=%s", n->word, key, text);
    return 0;
}

static inline double wide_key(wide_nets *w, const gd_node *n, const char *key, double missing) { return gd_number(w->c, n, key, missing); }

static inline double wide_std(wide_nets *w, const gd_node *n, const char *key, double missing) { // zero as descriptors have it
    double v = wide_key(w, n, key, missing);
    return v == 0 ? NT_ZERO : v;
}

static inline nt_bias wide_bias(const gd_node *n) { // b=none is the default
    const char *b = gd_text(n, "b");
    return b && strcmp(b, "none") != 0 ? NT_BIAS_ON : NT_BIAS_OFF;
}

// 3 words for the padding; conv: NT_CIRCULAR is another thing there.
static inline nt_padding wide_padding(wide_nets *w, const gd_node *n, int k) {
    const char *text = wide_atom(w, n, k);
    if (strcmp(text, "SAME") == 0) return NT_SAME;
    if (strcmp(text, "VALID") == 0) return NT_VALID;
    if (strcmp(text, "CIRCULAR") == 0) return NT_CIRCULAR_SAME;
    gd_fail(w->c, "(%s ...): padding %s", n->word, text);
    return NT_SAME;
}

// ---------------------------------------------------------------------------------------------------------------------
// Layers with numbers
// ---------------------------------------------------------------------------------------------------------------------
static inline nt_parameterization wide_parameters(wide_nets *w, const gd_node *n, nt_bias *bias, double *W, double *b, double *s) {
    static const char *const words[] = { "ntk", "standard" };
    nt_parameterization p = wide_word(w, n, "par", words, 2) ? NT_PARAM_STANDARD : NT_PARAM_NTK;
    *bias = wide_bias(n), *W = wide_std(w, n, "W", 1), *b = *bias == NT_BIAS_ON ? wide_std(w, n, "b", 0) : 0;
    s[0] = wide_key(w, n, "s0", 1), s[1] = wide_key(w, n, "s1", 1);
    return p;
}

static inline nt_layer *wide_dense(wide_nets *w, const gd_node *n) {
    nt_dense_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = w->dtype, d.parameterization = wide_parameters(w, n, &d.bias, &d.W_std, &d.b_std, d.s);
    return nt_dense_layer(w->t, wide_int(w, n, 0), &d);
}

// The window of arguments `at` and at + 1; 0 after an error.
static inline int wide_window(wide_nets *w, const gd_node *n, int at, nt_shape *window, int *stride) {
    gd_ints sizes = wide_ints(w, n, at), strides = wide_ints(w, n, at + 1);
    if (sizes.count < 1 || sizes.count > 3 || strides.count != sizes.count) gd_fail(w->c, "(%s ...): a window and strides have 1 to 3 axes", n->word);
    if (gd_stopped(w->c)) return 0;
    *window = nt_shape_make(sizes.count, sizes.at);
    for (int k = 0; k < sizes.count; k++) stride[k] = (int)strides.at[k];
    return 1;
}

static inline nt_layer *wide_conv(wide_nets *w, const gd_node *n) {
    nt_conv_layer_desc d;
    nt_shape window;
    memset(&d, 0, sizeof d);
    d.dtype = w->dtype, d.parameterization = wide_parameters(w, n, &d.bias, &d.W_std, &d.b_std, d.s), d.conv.padding = wide_padding(w, n, 3);
    if (!wide_window(w, n, 1, &window, d.conv.stride)) return NULL;
    for (int k = 0; k < window.rank; k++) d.conv.dilation[k] = (int)wide_key(w, n, "dilation", 1);
    if (gd_is(n, "conv_local")) return nt_conv_local_layer(w->t, wide_int(w, n, 0), window, &d);
    return gd_is(n, "conv") ? nt_conv_layer(w->t, wide_int(w, n, 0), window, &d) : nt_conv_transpose_layer(w->t, wide_int(w, n, 0), window, &d);
}

static inline nt_layer *wide_pool(wide_nets *w, const gd_node *n) {
    nt_pool_desc d;
    nt_shape window;
    memset(&d, 0, sizeof d);
    d.padding = wide_padding(w, n, 2);
    if (gd_is(n, "avg_pool")) d.exclude_pad = wide_key(w, n, "normalize_edges", 0) != 0 && d.padding == NT_SAME;
    if (!wide_window(w, n, 0, &window, d.stride)) return NULL;
    return gd_is(n, "avg_pool") ? nt_avg_pool_layer_with(w->t, window, &d) : nt_sum_pool_layer_with(w->t, window, &d);
}

static inline nt_layer *wide_plain(wide_nets *w, const gd_node *n) { // without arguments
    wide_key(w, n, "stabilize", 0);                                  // no kernel here needs it
    if (gd_is(n, "global_avg_pool")) return nt_global_avg_pool_layer(w->t);
    if (gd_is(n, "global_sum_pool")) return nt_global_sum_pool_layer(w->t);
    if (gd_is(n, "flatten")) return nt_flatten_layer(w->t);
    if (gd_is(n, "relu")) return nt_relu_layer(w->t);
    if (gd_is(n, "abs")) return nt_abs_layer(w->t);
    if (gd_is(n, "sigmoid_like")) return nt_sigmoid_like_layer(w->t);
    if (gd_is(n, "gelu")) return nt_gelu_layer(w->t);
    if (gd_is(n, "gabor")) return nt_gabor_layer(w->t);
    if (gd_is(n, "relu6")) return nt_activation_layer(w->t, nt_relu6);
    if (gd_is(n, "hard_tanh")) return nt_activation_layer(w->t, nt_hard_tanh);
    if (gd_is(n, "hard_sigmoid")) return nt_activation_layer(w->t, nt_hard_sigmoid);
    return gd_is(n, "sign") ? nt_sign_layer(w->t) : nt_identity_layer(w->t);
}

static inline nt_layer *wide_layer_norm(wide_nets *w, const gd_node *n) {
    nt_layer_norm_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = w->dtype, d.no_scale = d.no_bias = 1, d.eps = wide_std(w, n, "eps", 1e-12);
    if (n->arg_count) d.axes = gd_to_axes(w->c, wide_ints(w, n, 0));
    return nt_layer_norm_layer(w->t, &d);
}

static inline nt_layer *wide_dropout(wide_nets *w, const gd_node *n) {
    static const char *const modes[] = { "train", "test" };
    double keep = wide_number(w, n, 0);
    return wide_word(w, n, "mode", modes, 2) ? nt_identity_layer(w->t) : nt_dropout_layer(w->t, 1 - keep);
}

static inline nt_layer *wide_attention(wide_nets *w, const gd_node *n) {
    static const char *const scalings[] = { "linear", "sqrt" }, *const mechanisms[] = { "softmax", "identity", "abs", "relu" };
    static const char *const positions[] = { "none", "sum", "concat" }, *const decays[] = { "none", "exp", "inv" };
    nt_global_attention_desc d;
    memset(&d, 0, sizeof d);
    d.features = wide_int(w, n, 0), d.key = wide_int(w, n, 1), d.value = wide_int(w, n, 2), d.heads = wide_int(w, n, 3);
    d.sqrt_scaling = wide_word(w, n, "scaling", scalings, 2), d.mechanism = (nt_attention_mechanism)wide_word(w, n, "mechanism", mechanisms, 4);
    d.key_std = wide_std(w, n, "W_key", 1), d.value_std = wide_std(w, n, "W_value", 1), d.query_std = wide_std(w, n, "W_query", 1);
    d.out_std = wide_std(w, n, "W_out", 1), d.bias = wide_bias(n), d.b_std = d.bias == NT_BIAS_ON ? wide_std(w, n, "b", 0) : 0;
    d.position = (nt_position)wide_word(w, n, "pos", positions, 3), d.decay = (nt_position_decay)wide_word(w, n, "decay", decays, 3);
    d.alpha = wide_std(w, n, "alpha", 1), d.p = wide_std(w, n, "p", 2), d.position_std = wide_std(w, n, "W_pos", 1), d.dtype = w->dtype;
    d.position_channels = (int)gd_int(w->c, n, "n_pos", 0), d.position_values = wide_key(w, n, "val_pos", 0) != 0;
    return nt_global_self_attention_layer(w->t, &d);
}

static inline nt_layer *wide_image_resize(wide_nets *w, const gd_node *n) {
    static const char *const methods[] = { "linear", "nearest" };
    nt_resize_desc d;
    d.method = wide_word(w, n, "method", methods, 2) ? NT_NEAREST : NT_BILINEAR, d.no_antialias = wide_key(w, n, "antialias", 1) == 0;
    return nt_image_resize_layer(w->t, gd_to_shape(w->c, wide_ints(w, n, 0)), &d);
}

static inline nt_layer *wide_dot_general(wide_nets *w, const gd_node *n) {
    if (n->arg_count == 1) return nt_scale_layer(w->t, wide_number(w, n, 0));
    gd_tensor m = gd_as(w->c, gd_need(w->c, wide_atom(w, n, 0)), NT_F64);
    if (m.shape.rank != 2) gd_fail(w->c, "(dot_general ...): %s is no matrix", wide_atom(w, n, 0));
    return gd_stopped(w->c) ? NULL : nt_linear_map_layer(w->t, wide_int(w, n, 1), m.shape.size[0], m.shape.size[1], (const double *)m.data);
}

static inline nt_layer *wide_aggregate(wide_nets *w, const gd_node *n) {
    static const char *const words[] = { "dense", "sparse" };
    nt_aggregate_desc d;
    d.sparse = wide_word(w, n, "implementation", words, 2);
    return nt_aggregate_layer(w->t, &d);
}

// "2", "1:3", "::-1", ":"
static inline nt_range wide_range(wide_nets *w, const char *text) {
    nt_range r = { NT_RANGE_SLICE, NT_OPEN, NT_OPEN, 0 };
    int64_t *part[3] = { &r.start, &r.stop, &r.step };
    for (int k = 0;; k++) {
        size_t length = strcspn(text, ":");
        if (length) *part[k] = gd_to_int(w->c, gd_copy(w->c, text, length));
        text += length;
        if (!*text || k == 2) {
            if (*text) gd_fail(w->c, "(index ...): more than two colons");
            if (k == 0) r.kind = NT_RANGE_AT;
            return r;
        }
        text++;
    }
}

static inline nt_layer *wide_index(wide_nets *w, const gd_node *n) {
    nt_range *ranges = (nt_range *)gd_alloc(w->c, sizeof *ranges * (size_t)(n->arg_count + 1));
    for (int k = 0; k < n->arg_count && !gd_stopped(w->c); k++) ranges[k] = wide_range(w, wide_atom(w, n, k));
    const nt_range *last = &ranges[n->arg_count - 1];
    if (n->arg_count < 2 || last->kind != NT_RANGE_SLICE || last->start != NT_OPEN || last->stop != NT_OPEN || last->step > 1)
        gd_fail(w->c, "(index ...): one for each dimension, the channels as :");
    return gd_stopped(w->c) ? NULL : nt_index_layer(w->t, n->arg_count - 1, ranges);
}

static inline nt_layer *wide_activation(wide_nets *w, const gd_node *n) { // with numbers
    double a = 0, b = 0, c = 0;
    if (gd_is(n, "leaky_relu")) return nt_leaky_relu_layer(w->t, wide_number(w, n, 0));
    if (gd_is(n, "abrelu")) return nt_abrelu_layer(w->t, wide_number(w, n, 0), wide_number(w, n, 1));
    if (gd_is(n, "monomial")) return nt_monomial_layer(w->t, wide_int(w, n, 0));
    if (gd_is(n, "rectified_monomial")) return nt_rectified_monomial_layer(w->t, wide_int(w, n, 0));
    if (gd_is(n, "hermite")) return nt_hermite_layer(w->t, wide_int(w, n, 0));
    if (gd_is(n, "rbf")) return nt_rbf_layer(w->t, wide_key(w, n, "gamma", 1));
    if (gd_is(n, "exp_normalized")) {
        a = wide_key(w, n, "gamma", 1), b = wide_key(w, n, "shift", -1);
        return nt_exp_normalized_layer(w->t, a, b, wide_key(w, n, "clip", 0) != 0);
    }
    a = wide_key(w, n, "a", 1), b = wide_key(w, n, "b", gd_is(n, "gaussian") ? -1 : 1);
    if (gd_is(n, "gaussian")) return nt_gaussian_layer(w->t, a, b);
    if (gd_is(n, "exp")) return nt_exp_layer(w->t, a, b);
    c = wide_key(w, n, "c", 0);
    if (gd_is(n, "erf")) return nt_erf_layer(w->t, a, b, c);
    return gd_is(n, "sin") ? nt_sin_layer(w->t, a, b, c) : nt_cos_layer(w->t, a, b, c);
}

static inline nt_layer *wide_polynomial(wide_nets *w, const gd_node *n) {
    double *c = (double *)gd_alloc(w->c, sizeof(double) * (size_t)(n->arg_count + 1));
    for (int k = 0; k < n->arg_count; k++) c[k] = wide_number(w, n, k);
    return nt_polynomial_layer(w->t, n->arg_count, c);
}

static inline nt_layer *wide_pieces(wide_nets *w, const gd_node *n) { // points, then slopes; zero= the value at 0
    double *c = (double *)gd_alloc(w->c, sizeof(double) * (size_t)(n->arg_count + 1));
    for (int k = 0; k < n->arg_count; k++) c[k] = wide_number(w, n, k);
    return nt_piecewise_linear_layer(w->t, n->arg_count / 2, c, c + n->arg_count / 2, wide_key(w, n, "zero", 0));
}

// The exact expectations are compared, so the number of points in the specification does not count.
static inline nt_layer *wide_numerical(wide_nets *w, const gd_node *n) {
    static const char *const words[] = { "tanh",     "sigmoid",   "softplus", "silu", "arctan",
                                         "softsign", "gelu_tanh", "selu",     "mish", "log_sigmoid" };
    static nt_tensor *(*const functions[])(nt_tensor *) = { nt_tanh,      nt_sigmoid,   nt_softplus, nt_silu, nt_atan,
                                                            nt_soft_sign, nt_gelu_tanh, nt_selu,     nt_mish, nt_log_sigmoid };
    const char *f = wide_atom(w, n, 0);
    if (wide_int(w, n, 1) < 1) gd_fail(w->c, "(elementwise_numerical ...): no points");
    for (size_t k = 0; k < sizeof words / sizeof words[0]; k++) {
        if (strcmp(f, words[k]) == 0) return nt_activation_layer(w->t, functions[k]);
    }
    if (strcmp(f, "elu") == 0) return nt_elu_layer(w->t, wide_key(w, n, "alpha", 1));
    return (nt_layer *)gd_fail(w->c, "(elementwise_numerical ...): the function %s is not known", f);
}

typedef struct wide_word_row { const char *word; int least, most; nt_layer *(*make)(wide_nets *w, const gd_node *n); int activation; } wide_word_row;
static const wide_word_row wide_words[] = {
    { "dense", 1, 1, wide_dense, 0 }, { "conv", 4, 4, wide_conv, 0 }, { "conv_local", 4, 4, wide_conv, 0 }, { "conv_transpose", 4, 4, wide_conv, 0 },
    { "avg_pool", 3, 3, wide_pool, 0 }, { "sum_pool", 3, 3, wide_pool, 0 }, { "global_avg_pool", 0, 0, wide_plain, 0 }, { "global_sum_pool", 0, 0, wide_plain, 0 },
    { "flatten", 0, 0, wide_plain, 0 }, { "identity", 0, 0, wide_plain, 0 }, { "layer_norm", 0, 1, wide_layer_norm, 0 }, { "dropout", 1, 1, wide_dropout, 0 },
    { "attention", 4, 4, wide_attention, 0 }, { "image_resize", 1, 1, wide_image_resize, 0 }, { "dot_general", 1, 2, wide_dot_general, 0 },
    { "aggregate", 0, 0, wide_aggregate, 0 }, { "index", 2, 8, wide_index, 0 }, { "relu", 0, 0, wide_plain, 1 }, { "abs", 0, 0, wide_plain, 1 },
    { "sigmoid_like", 0, 0, wide_plain, 1 }, { "gelu", 0, 0, wide_plain, 1 }, { "gabor", 0, 0, wide_plain, 1 }, { "sign", 0, 0, wide_plain, 1 },
    { "leaky_relu", 1, 1, wide_activation, 1 }, { "abrelu", 2, 2, wide_activation, 1 }, { "erf", 0, 0, wide_activation, 1 }, { "sin", 0, 0, wide_activation, 1 },
    { "cos", 0, 0, wide_activation, 1 }, { "rbf", 0, 0, wide_activation, 1 }, { "exp", 0, 0, wide_activation, 1 }, { "gaussian", 0, 0, wide_activation, 1 },
    { "monomial", 1, 1, wide_activation, 1 }, { "rectified_monomial", 1, 1, wide_activation, 1 }, { "polynomial", 0, 1000, wide_polynomial, 1 },
    { "relu6", 0, 0, wide_plain, 1 }, { "hard_tanh", 0, 0, wide_plain, 1 }, { "hard_sigmoid", 0, 0, wide_plain, 1 }, { "piecewise_linear", 1, 33, wide_pieces, 1 },
    { "hermite", 1, 1, wide_activation, 1 }, { "exp_normalized", 0, 0, wide_activation, 1 }, { "elementwise_numerical", 2, 2, wide_numerical, 1 },
};

static inline const wide_word_row *wide_find(const gd_node *n) {
    for (size_t k = 0; k < sizeof wide_words / sizeof wide_words[0]; k++) {
        if (gd_is(n, wide_words[k].word)) return &wide_words[k];
    }
    return NULL;
}

static inline nt_layer *wide_layer(wide_nets *w, const gd_node *n) {
    const wide_word_row *row = wide_find(n);
    nt_layer *own = w->own ? w->own(w, n, w->user) : NULL;
    if (own) return own;
    if (!row) return (nt_layer *)gd_fail(w->c, "the word %s is not known", n->word ? n->word : "");
    if (n->arg_count < row->least || n->arg_count > row->most) return (nt_layer *)gd_fail(w->c, "(%s ...) with %d arguments", n->word, n->arg_count);
    nt_layer *l = row->make(w, n);
    return l || gd_stopped(w->c) ? l : (nt_layer *)wide_failure(w, n);
}

// ---------------------------------------------------------------------------------------------------------------------
// Networks
// ---------------------------------------------------------------------------------------------------------------------
static inline void wide_add(wide_nets *w, wide_value *v, nt_layer *l) {
    if (l) gd_push(w->c, (void ***)(void *)&v->layers, &v->count, l);
}

static inline void wide_fan_out(wide_nets *w, const gd_node *n, wide_value *v) {
    int count = wide_int(w, n, 0);
    if (v->part_count || count < 1 || count > 1000) gd_fail(w->c, "(fan_out %d) of a value, not of a list", count);
    for (int k = 0; k < count && !gd_stopped(w->c); k++) gd_push(w->c, (void ***)(void *)&v->parts, &v->part_count, gd_alloc(w->c, sizeof(wide_value)));
}

static inline void wide_fan_in(wide_nets *w, const gd_node *n, wide_value *v) {
    nt_layer **branch = (nt_layer **)gd_alloc(w->c, sizeof *branch * (size_t)(v->part_count + 1)), *l = NULL;
    if (!v->part_count) gd_fail(w->c, "(%s) takes a list", n->word);
    for (int k = 0; k < v->part_count && !gd_stopped(w->c); k++) {
        if (v->parts[k]->part_count) gd_fail(w->c, "(%s): part %d is a list itself", n->word, k);
        branch[k] = nt_serial_layer(w->t, v->parts[k]->count, v->parts[k]->layers);
    }
    if (gd_stopped(w->c)) return;
    if (gd_is(n, "fan_in_concat")) l = nt_concat_layer(w->t, n->arg_count ? wide_int(w, n, 0) : -1, v->part_count, branch);
    else l = gd_is(n, "fan_in_sum") ? nt_sum_layer(w->t, v->part_count, branch) : nt_product_layer(w->t, v->part_count, branch);
    if (!l) wide_failure(w, n);
    v->part_count = 0, v->parts = NULL;
    wide_add(w, v, l);
}

static inline void wide_walk(wide_nets *w, const gd_node *n, wide_value *v) {
    if (gd_stopped(w->c)) return;
    if (!n->is_list) gd_fail(w->c, "%s is no layer", n->word);
    else if (gd_is(n, "serial")) {
        for (int k = 0; k < n->arg_count; k++) wide_walk(w, n->args[k], v);
    } else if (gd_is(n, "repeat")) {
        int times = wide_int(w, n, 0);
        if (n->arg_count != 2 || times < 0) gd_fail(w->c, "(repeat n NET)");
        else if (times == 0) wide_walk(w, n->args[1], (wide_value *)gd_alloc(w->c, sizeof *v)); // it must be a net all the same
        for (int k = 0; k < times; k++) wide_walk(w, n->args[1], v);
    } else if (gd_is(n, "parallel")) {
        if (n->arg_count != v->part_count) gd_fail(w->c, "(parallel ...) of %d nets for a list of %d", n->arg_count, v->part_count);
        for (int k = 0; k < v->part_count && k < n->arg_count; k++) wide_walk(w, n->args[k], v->parts[k]);
    } else if (gd_is(n, "fan_out")) wide_fan_out(w, n, v);
    else if (gd_is(n, "fan_in_sum") || gd_is(n, "fan_in_prod") || gd_is(n, "fan_in_concat")) wide_fan_in(w, n, v);
    else if (v->part_count) gd_fail(w->c, "(%s ...) of a list", n->word);
    else wide_add(w, v, wide_layer(w, n));
}

static inline nt_layer *wide_net(wide_nets *w, const gd_node *n) { // NULL after an error of the case
    wide_value *v = (wide_value *)gd_alloc(w->c, sizeof *v);
    wide_walk(w, n, v);
    if (v->part_count) gd_fail(w->c, "the net ends with a list");
    if (gd_stopped(w->c)) return NULL;
    nt_layer *net = nt_serial_layer(w->t, v->count, v->layers);
    return net ? net : (nt_layer *)wide_failure(w, n);
}
#endif
