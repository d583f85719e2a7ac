// Attention against plain loops, what it stores and what it does not, and the layers of transformers under flax's names.
#include "nttrain.h"
#include "refused.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 20000 };

static double wave(int64_t i, int which) { return sin(0.37 * (double)i + 1.3 * which) + 0.2 * cos(2.1 * (double)i * (which + 1)); }

static nt_tensor *waves(nt_tape *t, nt_dtype dtype, nt_shape shape, int which) {
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) n *= shape.size[k];
    double *data = (double *)calloc((size_t)n + 1, sizeof *data);
    for (int64_t i = 0; i < n; i++) data[i] = wave(i, which);
    nt_tensor *wide = nt_variable(t, NT_F64, shape, data), *x = wide;
    if (dtype != NT_F64) {
        float *narrow = (float *)calloc((size_t)n + 1, sizeof *narrow);
        for (int64_t i = 0; i < n; i++) narrow[i] = (float)data[i];
        x = nt_variable(t, NT_F32, shape, narrow);
        free(narrow);
    }
    free(data);
    return x;
}

// ---------------------------------------------------------------------------------------------------------------------
// Values
// ---------------------------------------------------------------------------------------------------------------------
typedef struct sizes { int b, t, s, h, d, dv; } sizes;

// One query at a time, in double; seen is (batch, heads, time, keys) or NULL.
static void naive(const sizes *z, const double *q, const double *k, const double *v, const uint8_t *seen, double scale, int causal, double *out) {
    double score[256];
    for (int b = 0; b < z->b; b++)
        for (int h = 0; h < z->h; h++)
            for (int i = 0; i < z->t; i++) {
                double most = -HUGE_VAL, sum = 0;
                for (int j = 0; j < z->s; j++) {
                    score[j] = 0;
                    for (int e = 0; e < z->d; e++)
                        score[j] += q[((b * z->t + i) * z->h + h) * z->d + e] * k[((b * z->s + j) * z->h + h) * z->d + e];
                    score[j] *= scale;
                    if ((causal && j > i) || (seen && !seen[((b * z->h + h) * z->t + i) * z->s + j])) score[j] = -HUGE_VAL;
                    if (score[j] > most) most = score[j];
                }
                for (int j = 0; j < z->s; j++) score[j] = exp(score[j] - most), sum += score[j];
                for (int e = 0; e < z->dv; e++) {
                    double o = 0;
                    for (int j = 0; j < z->s; j++) o += score[j] / sum * v[((b * z->s + j) * z->h + h) * z->dv + e];
                    out[((b * z->t + i) * z->h + h) * z->dv + e] = o;
                }
            }
}

// The largest difference; a NaN must stand against a NaN.
static double difference(const double *a, const double *b, int64_t n) {
    double most = 0;
    for (int64_t i = 0; i < n; i++) {
        if (a[i] != a[i] && b[i] != b[i]) continue;
        double d = fabs(a[i] - b[i]);
        if (!(d <= most)) most = d;
    }
    return most;
}

static void check_value(sizes z, int causal, double scale, nt_dtype mask_dtype, const char *what) {
    static double got[MOST], want[MOST];
    static uint8_t seen[MOST];
    static char numbers[8 * MOST];
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *q = waves(t, NT_F64, NT_SHAPE(z.b, z.t, z.h, z.d), 0), *k = waves(t, NT_F64, NT_SHAPE(z.b, z.s, z.h, z.d), 1);
    nt_tensor *v = waves(t, NT_F64, NT_SHAPE(z.b, z.s, z.h, z.dv), 2), *mask = NULL;
    int n = z.b * z.h * z.t * z.s;
    for (int i = 0; i < n; i++) seen[i] = i % z.s == 0 || i % 3 != 1;
    if (mask_dtype != NT_DTYPE_COUNT) { // 0 and numbers that are not 1
        memset(numbers, 0, sizeof numbers);
        for (int i = 0; i < n; i++) {
            if (mask_dtype == NT_I32) ((int32_t *)(void *)numbers)[i] = seen[i] ? -5 : 0;
            else if (mask_dtype == NT_F32) ((float *)(void *)numbers)[i] = seen[i] ? 0.25f : 0;
            else numbers[i] = seen[i] ? (mask_dtype == NT_BOOL ? 1 : 3) : 0;
        }
        mask = nt_constant(t, mask_dtype, NT_SHAPE(z.b, z.h, z.t, z.s), numbers);
    }
    nt_attention_desc d = { scale, causal };
    nt_tensor *y = nt_attention(q, k, v, mask, &d);
    if (nt_eval(y, got) != NT_OK) tap_note("%s", nt_error(t));
    naive(&z, (double *)nt_data(q), (double *)nt_data(k), (double *)nt_data(v), mask ? seen : NULL, scale == 0 ? 1 / sqrt((double)z.d) : scale, causal, want);
    double error = difference(got, want, nt_size(y)); // sums of at most 150 products of numbers below 1.5: a few hundred roundings
    tap_ok(error < 1e-13 * (1 + z.s), "%s: the plain loops' numbers (%g)", what, error);
    nt_tape_close(t);
}

static void values(void) {
    sizes small = { 2, 5, 7, 3, 4, 6 }, wide = { 1, 67, 67, 2, 33, 20 }, deep = { 1, 3, 150, 1, 40, 17 }, more = { 1, 9, 4, 2, 3, 3 };
    check_value(small, 0, 0, NT_DTYPE_COUNT, "no mask");
    check_value(wide, 1, 0, NT_DTYPE_COUNT, "causal");
    check_value(more, 1, 0.3, NT_DTYPE_COUNT, "causal, more queries than keys");
    check_value(deep, 0, -0.4, NT_DTYPE_COUNT, "a negative scale");
    check_value(small, 0, 0, NT_BOOL, "a mask");
    check_value(small, 1, 0.9, NT_I32, "a mask of i32, causal");
    check_value(wide, 0, 0, NT_U8, "a mask of u8");
    check_value(small, 0, 0, NT_F32, "a mask of f32");
}

// Masks of fewer axes broadcast; a query that sees nothing is NaN and does not touch the others.
static void masks(void) {
    static float a[64], b[64];
    const uint8_t keys[4] = { 1, 0, 1, 0 }, rows[8] = { 1, 1, 1, 1, 0, 0, 0, 0 };
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *q = waves(t, NT_F32, NT_SHAPE(1, 2, 2, 3), 0), *k = waves(t, NT_F32, NT_SHAPE(1, 4, 2, 3), 1), *v = waves(t, NT_F32, NT_SHAPE(1, 4, 2, 3), 2);
    nt_tensor *few = nt_constant(t, NT_BOOL, NT_SHAPE(4), keys), *none = nt_constant(t, NT_BOOL, NT_SHAPE(2, 4), rows);
    nt_eval(nt_attention(q, k, v, few, NULL), a), nt_eval(nt_attention(q, k, v, nt_broadcast(few, NT_SHAPE(1, 2, 2, 4)), NULL), b);
    tap_ok(!memcmp(a, b, sizeof(float) * 12), "a mask of the keys alone is broadcast");
    nt_eval(nt_attention(q, k, v, none, NULL), a), nt_eval(nt_attention(q, k, v, NULL, NULL), b);
    int nan = 1, same = 1;
    for (int i = 0; i < 12; i++) {
        if (i >= 6) nan &= a[i] != a[i];
        else same &= a[i] == b[i];
    }
    tap_ok(nan, "a query that sees no key gives NaN");
    tap_ok(same, "and no other query does");
    nt_tensor *empty = waves(t, NT_F32, NT_SHAPE(1, 0, 2, 3), 1), *y = nt_attention(q, empty, empty, NULL, NULL), *g = nt_grad(nt_sum(y), q);
    int zero = nt_eval(y, a) == NT_OK && nt_eval(g, b) == NT_OK;
    for (int i = 0; i < 12; i++) zero &= a[i] == 0 && b[i] == 0;
    tap_ok(zero, "without any keys the sum over them is 0, and so is its derivative");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------------------------------
static size_t peak_of(nt_program *p) { return p ? nt_report(p).peak : (size_t)-1; }

static void memory(void) {
    enum { T = 512, H = 2, D = 16 };
    size_t scores = sizeof(float) * T * T * H, one = sizeof(float) * T * H * D;
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x[3], *old[3];
    for (int k = 0; k < 3; k++) x[k] = waves(t, NT_F32, NT_SHAPE(1, T, H, D), k), old[k] = waves(t, NT_F32, NT_SHAPE(1, T, H, D), k + 3);
    nt_params now = { 3, x }, before = { 3, old };
    nt_tensor *y = nt_attention(x[0], x[1], x[2], NULL, NULL), *loss = nt_sum(nt_square(y));
    size_t value = peak_of(nt_compile(y, NULL)), gradient = peak_of(nt_compile_many(t, nt_grads(loss, now), NULL));
    tap_ok(value < one + scores / 4, "value: no score matrix (%zu of %zu bytes)", value, scores);
    tap_ok(gradient < 9 * one + scores / 4, "gradients: no score matrix (%zu of %zu bytes)", gradient, scores);
    nt_tensor *linear = nt_sum(nt_square(nt_linearize(y, now, before)));
    size_t linearized = peak_of(nt_compile_many(t, nt_grads(linear, now), NULL));
    tap_ok(linearized < 12 * one + scores / 4, "linearized, and its gradients: no score matrix (%zu of %zu bytes)", linearized, scores);
    nt_tensor *packed = waves(t, NT_F32, NT_SHAPE(1, T, 3 * H * D), 7), *part[3];
    for (int k = 0; k < 3; k++) part[k] = nt_reshape(nt_slice_axis(packed, 2, k * H * D, (k + 1) * H * D), NT_SHAPE(1, T, H, D));
    nt_program *p = nt_compile(nt_attention(part[0], part[1], part[2], NULL, NULL), NULL);
    tap_ok(p && nt_report(p).instructions == 1, "parts of one projection are read where they lie");
    tap_ok(!nt_error(t), "no error: %s", nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------------------------
static void errors(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *q = waves(t, NT_F32, NT_SHAPE(2, 5, 3, 4), 0), *k = waves(t, NT_F32, NT_SHAPE(2, 6, 3, 4), 1), *v = waves(t, NT_F32, NT_SHAPE(2, 6, 3, 8), 2);
    nt_tensor *wide = waves(t, NT_F64, NT_SHAPE(2, 6, 3, 4), 1), *flat = waves(t, NT_F32, NT_SHAPE(2, 5, 12), 0), *heads = waves(t, NT_F32, NT_SHAPE(2, 6, 2, 4), 0);
    nt_tensor *bad = nt_full(t, NT_BOOL, NT_SHAPE(2, 1, 6, 6), 1);
    refused(t, nt_attention(q, wide, v, NULL, NULL), NT_ERROR_DTYPE, "nt_attention|f32|f64", "two dtypes");
    refused(t, nt_attention(flat, k, v, NULL, NULL), NT_ERROR_SHAPE, "nt_attention|[2,5,12]|heads", "heads that are not split");
    refused(t, nt_attention(q, heads, v, NULL, NULL), NT_ERROR_SHAPE, "nt_attention|[2,6,2,4]", "other heads");
    refused(t, nt_attention(q, k, q, NULL, NULL), NT_ERROR_SHAPE, "nt_attention|[2,5,3,4]", "values of other keys");
    refused(t, nt_attention(q, k, v, bad, NULL), NT_ERROR_SHAPE, "nt_attention|mask|[2,3,5,6]", "a mask that does not broadcast");
    nt_tensor *many = nt_full(t, NT_F32, NT_SHAPE(2, (int64_t)1 << (sizeof(size_t) == 8 ? 52 : 20), 3, 1), 1); // repeats: takes no memory
    nt_tensor *few = nt_full(t, NT_F32, NT_SHAPE(2, 128, 3, 1), 1);
    if (sizeof(size_t) == 8) refused(t, nt_attention(few, many, many, NULL, NULL), NT_ERROR_SHAPE, "nt_attention|4503599627370496 keys", "too many keys");
    tap_ok(!nt_attention(NULL, k, v, NULL, NULL) && !nt_error(t), "NULL is quiet");
    nt_vit_desc d;
    memset(&d, 0, sizeof d);
    refused(t, nt_vit_layer(t, &d), NT_ERROR_ARGUMENT, "nt_vit_layer|outputs", "a vision transformer without outputs");
    d.outputs = 3, d.heads = 5;
    refused(t, nt_vit_layer(t, &d), NT_ERROR_ARGUMENT, "nt_vit_layer|heads", "heads that do not divide the width");
    refused(t, nt_encoder_layer(t, NULL), NT_ERROR_ARGUMENT, "nt_encoder_layer|.dim", "an encoder of no width");
    refused(t, nt_attention_layer(t, 0, NULL), NT_ERROR_ARGUMENT, "nt_attention_layer|heads", "no heads");
    nt_layer *five = nt_attention_layer(t, 5, NULL);
    refused(t, nt_init(five, nt_key(1), flat) == NT_OK ? five : NULL, NT_ERROR_SHAPE, "nt_attention_layer|12|5", "12 features for 5 heads");
    refused(t, nt_init(nt_attention_layer(t, 2, NULL), nt_key(1), q) == NT_OK ? q : NULL, NT_ERROR_SHAPE, "nt_attention_layer|[2,5,3,4]", "an input of rank 4");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Layers
// ---------------------------------------------------------------------------------------------------------------------
static const nt_tensor *named(nt_layer *net, const char *name) {
    nt_params p = nt_parameters(net);
    for (int k = 0; k < p.count; k++)
        if (!strcmp(p.items[k]->name, name)) return p.items[k];
    return NULL;
}

static int has(nt_layer *net, const char *name, nt_shape shape) {
    const nt_tensor *p = named(net, name);
    int same = p && p->rank == shape.rank;
    for (int k = 0; same && k < shape.rank; k++) same = p->shape[k] == shape.size[k];
    if (!same) tap_note("%s is missing or has another shape", name);
    return same;
}

static void transformer(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F32, NT_SHAPE(2, 8, 12, 3), 0);
    const int32_t numbers[2] = { 1, 4 };
    nt_tensor *label = nt_constant(t, NT_I32, NT_SHAPE(2), numbers);
    nt_vit_desc d;
    memset(&d, 0, sizeof d);
    d.patch = 4, d.dim = 12, d.depth = 2, d.heads = 3, d.outputs = 5;
    nt_layer *net = nt_vit_layer(t, &d);
    tap_ok(nt_init(net, nt_key(3), x) == NT_OK, "the vision transformer is initialised");
    int all = has(net, "embedding/kernel", NT_SHAPE(4, 4, 3, 12)) && has(net, "embedding/bias", NT_SHAPE(12)) && has(net, "cls", NT_SHAPE(1, 1, 12));
    all = all && has(net, "Transformer/posembed_input/pos_embedding", NT_SHAPE(1, 7, 12)) && has(net, "Transformer/encoder_norm/scale", NT_SHAPE(12));
    all = all && has(net, "Transformer/encoderblock_1/LayerNorm_0/bias", NT_SHAPE(12)) && has(net, "Transformer/encoderblock_0/LayerNorm_2/scale", NT_SHAPE(12));
    all = all && has(net, "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/query/kernel", NT_SHAPE(12, 3, 4));
    all = all && has(net, "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/value/bias", NT_SHAPE(3, 4));
    all = all && has(net, "Transformer/encoderblock_1/MultiHeadDotProductAttention_1/out/kernel", NT_SHAPE(3, 4, 12));
    all = all && has(net, "Transformer/encoderblock_0/MlpBlock_3/Dense_0/kernel", NT_SHAPE(12, 48)) && has(net, "head/kernel", NT_SHAPE(12, 5));
    tap_ok(all, "parameters have flax's names and shapes");
    // p^2 3 d + d + d + (N + 1) d + L (4 d^2 + 4 d + 2 d m + m + d + 4 d) + 2 d + C (d + 1)
    int64_t count = 0;
    for (int k = 0; k < nt_parameters(net).count; k++) count += nt_size(nt_parameters(net).items[k]);
    tap_is_int(count, 576 + 12 + 12 + 84 + 2 * (576 + 48 + 1152 + 48 + 12 + 48) + 24 + 65, "numbers in all");
    float loss = 0;
    nt_eval(nt_mean(nt_cross_entropy(nt_apply(net, x, NULL), label)), &loss);
    tap_ok(fabs(loss - log(5)) < 1e-6, "the head is zero at first: the loss is log 5 (%g)", loss);
    // glorot uniform on (dim, heads * d): no number above sqrt(6 / 24), some above nine tenths of it
    const nt_tensor *q = named(net, "Transformer/encoderblock_0/MultiHeadDotProductAttention_1/query/kernel");
    double most = 0;
    for (int64_t k = 0; q && k < nt_size(q); k++) most = fmax(most, fabs((double)((float *)nt_data((nt_tensor *)(uintptr_t)q))[k]));
    tap_ok(most <= sqrt(6.0 / 24) && most > 0.9 * sqrt(6.0 / 24), "the fan of an attention kernel is that of the flattened matrix (%g)", most);
    d.mean_pool = 1, d.head_init.kind = NT_LECUN_NORMAL;
    nt_layer *mean = nt_vit_layer(t, &d);
    tap_ok(nt_init(mean, nt_key(3), x) == NT_OK && !named(mean, "cls") && has(mean, "Transformer/posembed_input/pos_embedding", NT_SHAPE(1, 6, 12)), "with the mean over tokens there is no class token");
    d.dropout = 0.5;
    nt_layer *drop = nt_vit_layer(t, &d);
    nt_apply_desc train;
    memset(&train, 0, sizeof train);
    train.train = 1, train.key = nt_key(9);
    float a[10], b[10], c[10];
    nt_init(drop, nt_key(3), x);
    nt_eval(nt_apply(mean, x, NULL), a), nt_eval(nt_apply(drop, x, NULL), b), nt_eval(nt_apply(drop, x, &train), c);
    tap_ok(!memcmp(a, b, sizeof a) && memcmp(a, c, sizeof a), "dropout is on in training only");
    tap_ok(!nt_error(t), "no error: %s", nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
}

// A causal layer does not look ahead: changing a later token leaves the earlier ones alone.
static void causal(void) {
    enum { T = 6, D = 8 };
    static float a[T * D], b[T * D];
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F32, NT_SHAPE(1, T, D), 0);
    nt_encoder_desc d;
    memset(&d, 0, sizeof d);
    d.dim = D, d.heads = 2, d.causal = 1;
    nt_layer *net = nt_encoder_layer(t, &d);
    tap_ok(nt_init(net, nt_key(2), x) == NT_OK, "an encoder block is initialised");
    nt_tensor *y = nt_apply(net, x, NULL);
    nt_eval(y, a);
    ((float *)nt_data(x))[4 * D] += 1;
    nt_eval(y, b);
    tap_ok(!memcmp(a, b, sizeof(float) * 4 * D) && memcmp(a + 4 * D, b + 4 * D, sizeof(float) * D), "a causal block looks at no later token");
    nt_tape_close(t);
}

int main(void) {
    values();
    masks();
    memory();
    errors();
    transformer();
    causal();
    return tap_end();
}
