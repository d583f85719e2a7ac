// golden_random DIR: random numbers against JAX's. Keys are derived twice, on the host and on the tape, and both must give the
// expected result; drawing is recorded on the tape, initializers are the library's.
#include "nttrain.h"
#include "golden.h"

typedef struct draw {            // one way of deriving the keys
    gd_case *c;
    nt_tape *tape;
    int on_tape;
} draw;

// ---------------------------------------------------------------------------------------------------------------------
// Keys
// ---------------------------------------------------------------------------------------------------------------------
static int is_key(const gd_node *n) { return gd_is(n, "key") || gd_is(n, "fold_in") || gd_is(n, "split_at") || gd_is(n, "flax_key"); }

static const char *atom(draw *d, const gd_node *n, int k) {
    if (k < n->arg_count && !n->args[k]->is_list) return n->args[k]->word;
    gd_fail(d->c, "(%s ...) lacks its argument %d", n->word, k + 1);
    return "0";
}

static gd_node *list(draw *d, const gd_node *n, int k) {
    if (k < n->arg_count && n->args[k]->is_list) return n->args[k];
    return (gd_node *)gd_fail(d->c, "(%s ...) lacks its argument %d", n->word, k + 1);
}

static uint64_t seed_of(draw *d, const gd_node *n) {
    const char *text = atom(d, n, 0);
    char *end = NULL;
    errno = 0;
    uint64_t seed = *text == '-' ? (uint64_t)strtoll(text, &end, 10) : strtoull(text, &end, 10);
    if (*end || errno) gd_fail(d->c, "not a seed: %s", text);
    return gd_int(d->c, d->c->attributes, "x64", 0) ? seed : seed & 0xffffffffu;
}

static uint32_t small(draw *d, const gd_node *n, int k) {
    int64_t v = gd_to_int(d->c, atom(d, n, k));
    if (v < 0 || v > 0xffffffffll) gd_fail(d->c, "(%s ...): %lld is no 32-bit number", n->word, (long long)v);
    return (uint32_t)v;
}

static nt_key_value host_key(draw *d, gd_node *n) {
    nt_key_value zero = { { 0, 0 } };
    if (!n || d->c->error[0]) return zero;
    if (gd_is(n, "key")) return nt_key(seed_of(d, n));
    if (!is_key(n)) {
        gd_fail(d->c, "(%s ...) is no key", n->word ? n->word : "");
        return zero;
    }
    nt_key_value inner = host_key(d, list(d, n, 0));
    if (gd_is(n, "fold_in")) return nt_key_fold_in(inner, small(d, n, 1));
    if (gd_is(n, "split_at")) return nt_key_split(inner, small(d, n, 1), small(d, n, 2));
    const char *path = gd_text(n, "path");
    return nt_key_flax(inner, path ? path : "", (uint32_t)gd_int(d->c, n, "count", 1));
}

static nt_tensor *number_u32(draw *d, uint32_t value) { return nt_constant(d->tape, NT_U32, NT_SCALAR, &value); }

// What has no operation on the tape (key, flax_key) is derived on the host.
static nt_tensor *tape_key(draw *d, gd_node *n) {
    if (!n || d->c->error[0]) return NULL;
    if (d->on_tape && gd_is(n, "fold_in")) return nt_fold_in(tape_key(d, list(d, n, 0)), number_u32(d, small(d, n, 1)));
    if (d->on_tape && gd_is(n, "split_at")) {
        uint32_t count = small(d, n, 1), index = small(d, n, 2);
        nt_tensor *all = nt_split(tape_key(d, list(d, n, 0)), NT_SHAPE(count));
        return nt_reshape(nt_slice_axis(all, 0, index, (int64_t)index + 1), NT_SHAPE(2));
    }
    return nt_key_tensor(d->tape, host_key(d, n));
}

static nt_tensor *split(draw *d, gd_node *n) {
    gd_ints list_of_sizes = gd_get_ints(d->c, n, "shape");
    nt_shape shape = list_of_sizes.count < 0 ? NT_SHAPE(small(d, n, 1)) : gd_to_shape(d->c, list_of_sizes);
    if (d->on_tape) return nt_split(tape_key(d, list(d, n, 0)), shape);
    nt_key_value key = host_key(d, list(d, n, 0));
    int64_t count = gd_size_of(shape);
    uint32_t *words = (uint32_t *)gd_alloc(d->c, sizeof(uint32_t) * (size_t)(2 * count + 1));
    for (int64_t i = 0; i < count; i++) {
        nt_key_value k = nt_key_split(key, (uint32_t)count, (uint32_t)i);
        words[2 * i] = k.word[0];
        words[2 * i + 1] = k.word[1];
    }
    if (shape.rank == NT_MAX_RANK) return (nt_tensor *)gd_fail(d->c, "split of rank %d", NT_MAX_RANK);
    shape.size[shape.rank++] = 2;
    return nt_constant(d->tape, NT_U32, shape, words);
}

// ---------------------------------------------------------------------------------------------------------------------
// Distributions
// ---------------------------------------------------------------------------------------------------------------------
static nt_dtype dtype_key(draw *d, const gd_node *n, nt_dtype missing) {
    const char *text = gd_text(n, "dtype");
    if (!text) return missing;
    for (int k = 0; k < NT_DTYPE_COUNT; k++) {
        if (strcmp(text, nt_dtype_name((nt_dtype)k)) == 0) return (nt_dtype)k;
    }
    gd_fail(d->c, "dtype=%s", text);
    return missing;
}

static nt_tensor *bits(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    int64_t width = gd_int(d->c, n, "width", 32);
    nt_dtype dtype = width == 8 ? NT_U8 : width == 16 ? NT_U16 : width == 32 ? NT_U32 : NT_U64;
    if (nt_dtype_size(dtype) * 8 != (size_t)width) return (nt_tensor *)gd_fail(d->c, "bits width=%lld", (long long)width);
    return nt_random_bits(key, dtype, shape);
}

static nt_tensor *uniform(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    double low = gd_number(d->c, n, "min", 0), high = gd_number(d->c, n, "max", 1);
    return nt_uniform(key, dtype_key(d, n, NT_F32), shape, low, high);
}

static nt_tensor *normal(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) { return nt_normal(key, dtype_key(d, n, NT_F32), shape); }

static nt_tensor *truncated_normal(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    double low = gd_need_number(d->c, n, "lo"), high = gd_need_number(d->c, n, "hi");
    return nt_truncated_normal(key, dtype_key(d, n, NT_F32), shape, low, high);
}

static nt_tensor *bernoulli(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    double p = gd_number(d->c, n, "p", 0.5);
    if (dtype_key(d, n, NT_F32) != NT_F64) return nt_bernoulli(key, p, shape);
    return nt_less(nt_uniform(key, NT_F64, shape, 0, 1), nt_full(d->tape, NT_F64, shape, p));
}

static nt_tensor *rademacher(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    (void)d;
    (void)n;
    return nt_rademacher(key, shape);
}

static nt_tensor *randint(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    int64_t low = gd_need_int(d->c, n, "lo"), high = gd_need_int(d->c, n, "hi");
    return nt_randint(key, dtype_key(d, n, NT_I32), shape, low, high);
}

static nt_tensor *choice(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) {
    return nt_choice(key, gd_need_int(d->c, n, "n"), shape, gd_int(d->c, n, "replace", 1) != 0);
}

#define STANDARD(name) \
    static nt_tensor *name(draw *d, gd_node *n, nt_tensor *key, nt_shape shape) { return nt_##name(key, dtype_key(d, n, NT_F32), shape); }
STANDARD(exponential)
STANDARD(gumbel)
STANDARD(laplace)
STANDARD(logistic)
STANDARD(cauchy)

static nt_tensor *input(draw *d) {
    gd_tensor x = gd_need(d->c, "in0");
    return nt_constant(d->tape, x.dtype, x.shape, x.data);
}

static nt_tensor *categorical(draw *d, gd_node *n, nt_tensor *key) {
    int axis = (int)gd_int(d->c, n, "axis", -1);
    if (!gd_text(n, "shape")) return nt_categorical(key, input(d), axis);
    return nt_categorical_of_shape(key, input(d), axis, gd_need_shape(d->c, n, "shape"));
}

// Of 0 .. n - 1, or of the array in0.
static nt_tensor *permutation(draw *d, gd_node *n, nt_tensor *key) {
    if (gd_text(n, "n")) return nt_permutation(key, gd_need_int(d->c, n, "n"));
    return nt_permutation_of(key, input(d), (int)gd_int(d->c, n, "axis", 0), gd_int(d->c, n, "independent", 0) != 0);
}

static nt_tensor *dropout_mask(draw *d, gd_node *n, nt_shape shape) {
    nt_key_value key = nt_key_flax(host_key(d, list(d, n, 0)), "Dropout_0", 1);
    nt_axes shared = gd_to_axes(d->c, gd_get_ints(d->c, n, "broadcast"));
    return nt_dropout(nt_full(d->tape, NT_F32, shape, 1), nt_key_tensor(d->tape, key), gd_need_number(d->c, n, "rate"), shared);
}

typedef nt_tensor *(*draw_fn)(draw *d, gd_node *n, nt_tensor *key, nt_shape shape);
static const struct { const char *word; draw_fn fn; } distributions[] = {
    { "bits", bits }, { "uniform", uniform }, { "normal", normal }, { "truncated_normal", truncated_normal }, { "bernoulli", bernoulli },
    { "rademacher", rademacher }, { "randint", randint }, { "choice", choice }, { "exponential", exponential }, { "gumbel", gumbel },
    { "laplace", laplace }, { "logistic", logistic }, { "cauchy", cauchy }
};

// ---------------------------------------------------------------------------------------------------------------------
// Initializers
// ---------------------------------------------------------------------------------------------------------------------
static const struct { const char *word; nt_initializer kind; } initializers[] = {
    { "lecun_normal", NT_LECUN_NORMAL }, { "lecun_uniform", NT_LECUN_UNIFORM }, { "he_normal", NT_HE_NORMAL }, { "he_uniform", NT_HE_UNIFORM },
    { "glorot_normal", NT_GLOROT_NORMAL }, { "glorot_uniform", NT_GLOROT_UNIFORM }, { "variance_scaling", NT_VARIANCE_SCALING },
    { "init_normal", NT_INIT_NORMAL }, { "init_uniform", NT_INIT_UNIFORM }, { "init_truncated_normal", NT_INIT_TRUNCATED_NORMAL },
    { "orthogonal", NT_ORTHOGONAL }
};

// The position of a key's value in a list of names.
static int choose(draw *d, const gd_node *n, const char *key, const char *const *names, int count) {
    const char *text = gd_text(n, key);
    if (!text) return 0;
    for (int k = 0; k < count; k++) {
        if (strcmp(text, names[k]) == 0) return k;
    }
    gd_fail(d->c, "%s=%s", key, text);
    return 0;
}

static nt_tensor *initialize(draw *d, gd_node *n, nt_initializer kind) {
    static const char *const modes[] = { "fan_in", "fan_out", "fan_avg", "fan_geo_avg" };
    static const char *const shapes[] = { "truncated_normal", "normal", "uniform" };
    nt_init_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kind = kind;
    desc.scale = gd_number(d->c, n, kind == NT_INIT_NORMAL || kind == NT_INIT_TRUNCATED_NORMAL ? "stddev" : "scale", 0);
    if (kind == NT_VARIANCE_SCALING) {
        desc.mode = (nt_fan)choose(d, n, "mode", modes, 4);
        desc.distribution = (nt_distribution)choose(d, n, "dist", shapes, 3);
        desc.in_axes = gd_to_axes(d->c, gd_get_ints(d->c, n, "in_axis"));
        desc.out_axes = gd_to_axes(d->c, gd_get_ints(d->c, n, "out_axis"));
        desc.batch_axes = gd_to_axes(d->c, gd_get_ints(d->c, n, "batch_axis"));
    }
    if (kind == NT_INIT_TRUNCATED_NORMAL) {
        desc.low = gd_number(d->c, n, "lo", -2);
        desc.high = gd_number(d->c, n, "hi", 2);
    }
    nt_shape shape = gd_need_shape(d->c, n, "shape");
    gd_tensor t = gd_new(d->c, dtype_key(d, n, NT_F32), shape);
    nt_key_value key = host_key(d, list(d, n, 0));
    if (gd_stopped(d->c)) return NULL;
    nt_status status = nt_initialize(key, &desc, t.dtype, shape, t.data);
    if (status != NT_OK) return (nt_tensor *)gd_fail(d->c, "nt_initialize: %s", nt_status_name(status));
    return nt_constant(d->tape, t.dtype, shape, t.data);
}

// ---------------------------------------------------------------------------------------------------------------------
// Results
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *record(draw *d, gd_node *n) {
    if (is_key(n)) return tape_key(d, n);
    if (gd_is(n, "split")) return split(d, n);
    if (gd_is(n, "dropout_mask")) return dropout_mask(d, n, gd_need_shape(d->c, n, "shape"));
    if (gd_is(n, "categorical")) return categorical(d, n, tape_key(d, list(d, n, 0)));
    if (gd_is(n, "permutation")) return permutation(d, n, tape_key(d, list(d, n, 0)));
    for (size_t k = 0; k < sizeof initializers / sizeof initializers[0]; k++) {
        if (gd_is(n, initializers[k].word)) return initialize(d, n, initializers[k].kind);
    }
    for (size_t k = 0; k < sizeof distributions / sizeof distributions[0]; k++) {
        if (!gd_is(n, distributions[k].word)) continue;
        nt_shape shape = gd_need_shape(d->c, n, "shape");
        return distributions[k].fn(d, n, tape_key(d, list(d, n, 0)), shape);
    }
    return (nt_tensor *)gd_fail(d->c, "the word %s is not known", n->word ? n->word : "");
}

static gd_tensor evaluate(draw *d, gd_node *n) {
    gd_tensor r = { NT_F32, { 0, { 0 } }, 0, NULL };
    nt_tensor *x = record(d, n);
    if (gd_stopped(d->c)) return r;
    if (!x) {
        gd_fail(d->c, "%s", nt_error(d->tape) ? nt_error(d->tape) : "nothing was recorded, and there is no message");
        return r;
    }
    r = gd_new(d->c, x->dtype, nt_shape_of(x));
    nt_status status = nt_eval(x, r.data);
    if (status != NT_OK) gd_fail(d->c, "nt_eval: %s: %s", nt_status_name(status), nt_error(d->tape) ? nt_error(d->tape) : "(no message)");
    return r;
}

static uint32_t hash_bits(const gd_tensor *x, int64_t i) {
    uint64_t v = 0;
    switch (nt_dtype_size(x->dtype)) {
    case 1: v = ((const uint8_t *)x->data)[i]; break;
    case 2: v = ((const uint16_t *)x->data)[i]; break;
    case 4: v = ((const uint32_t *)x->data)[i]; break;
    default: v = ((const uint64_t *)x->data)[i]; break;
    }
    return (uint32_t)v ^ (uint32_t)(v >> 32);
}

static gd_tensor hash(draw *d, const gd_tensor *x) {
    gd_tensor r = gd_new(d->c, NT_U32, NT_SHAPE(3));
    uint32_t *h = (uint32_t *)r.data;
    for (int64_t i = 0; i < x->size; i++) {
        uint32_t b = hash_bits(x, i);
        h[0] ^= b;
        h[1] += b;
        h[2] += b * (uint32_t)(2 * (uint64_t)i + 1);
    }
    return r;
}

static gd_tensor stats(draw *d, const gd_tensor *x) {
    gd_tensor r = gd_new(d->c, NT_F64, NT_SHAPE(4));
    double *s = (double *)r.data;
    s[2] = INFINITY;
    s[3] = -INFINITY;
    for (int64_t i = 0; i < x->size; i++) {
        double v = gd_value(x, i);
        s[0] += v / (double)x->size;
        s[1] += v * v / (double)x->size;
        s[2] = fmin(s[2], v);
        s[3] = fmax(s[3], v);
    }
    return r;
}

static gd_tensor elements(draw *d, const gd_tensor *x, gd_ints index) {
    gd_tensor r = gd_new(d->c, x->dtype, NT_SHAPE(index.count < 0 ? 0 : index.count));
    size_t bytes = nt_dtype_size(x->dtype);
    for (int k = 0; k < index.count; k++) {
        if (index.at[k] < 0 || index.at[k] >= x->size) gd_fail(d->c, "index %lld of %lld", (long long)index.at[k], (long long)x->size);
        else memcpy((char *)r.data + (size_t)k * bytes, (const char *)x->data + (size_t)index.at[k] * bytes, bytes);
    }
    return r;
}

static gd_tensor result(draw *d, gd_node *n) {
    if (!gd_is(n, "hash") && !gd_is(n, "stats") && !gd_is(n, "at")) return evaluate(d, n);
    gd_node *inner = list(d, n, 0);
    gd_tensor x = { NT_F32, { 0, { 0 } }, 0, NULL };
    if (inner) x = result(d, inner);
    if (gd_stopped(d->c)) return x;
    return gd_is(n, "hash") ? hash(d, &x) : gd_is(n, "stats") ? stats(d, &x) : elements(d, &x, gd_need_ints(d->c, n, "index"));
}

static gd_rule rule_of(gd_case *c, nt_dtype dtype) {
    gd_node *a = c->attributes;
    gd_rule rule = { gd_int(c, a, "exact", 0) != 0, 0, gd_number(c, a, "ulp", 0), gd_number(c, a, "tail_ulp", 0), gd_number(c, a, "floor", 0) };
    const char *narrow = dtype == NT_F64 && gd_text(a, "tol64") ? "tol64" : gd_text(a, "tol") ? "tol" : "tol32";
    rule.tolerance = gd_number(c, a, narrow, -1);
    if (!rule.exact && !(rule.ulp > 0) && rule.tolerance < 0) gd_fail(c, "the case has no tolerance");
    return rule;
}

static void run_case(gd_case *c) {
    for (int on_tape = 0; on_tape < 2 && !gd_stopped(c); on_tape++) {
        draw d = { c, nt_tape_open(NULL), on_tape };
        gd_tensor got = result(&d, c->spec);
        if (!gd_stopped(c)) {
            gd_tensor expected = gd_need(c, "out");
            gd_rule rule = rule_of(c, expected.dtype);
            if (!c->error[0] && got.dtype != expected.dtype)
                gd_fail(c, "the result is %s, expected %s", nt_dtype_name(got.dtype), nt_dtype_name(expected.dtype));
            if (!c->error[0]) gd_compare(c, on_tape ? "out, keys on the tape" : "out, keys on the host", &got, &expected, &rule);
        }
        nt_tape_close(d.tape);
    }
}

int main(int argc, char **argv) { return gd_run(argc > 1 ? argv[1] : "data/random", run_case); }
