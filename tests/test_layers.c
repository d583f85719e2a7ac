// Layers: names and scopes, branches, activations, tables of rows, pooling over everything, upsampling, hooks. A network of layers is held
// against the same thing written in operations on its parameters, or against a loop over numbers.
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

static nt_tensor *image_of(nt_tape *t, int64_t n, int64_t h, int64_t w, int64_t c) {
    return nt_normal(nt_key_tensor(t, nt_key(5)), NT_F64, NT_SHAPE(n, h, w, c));
}

// The largest difference of two values; infinite if they cannot be compared.
static double difference(nt_tensor *x, nt_tensor *y) {
    double worst = 0;
    if (!x || !y || x->dtype != NT_F64 || y->dtype != NT_F64 || x->rank != y->rank) return INFINITY;
    for (int k = 0; k < x->rank; k++)
        if (x->shape[k] != y->shape[k]) return INFINITY;
    double *a = (double *)malloc(nt_bytes(x) + 8), *b = (double *)malloc(nt_bytes(y) + 8);
    if (nt_eval(x, a) != NT_OK || nt_eval(y, b) != NT_OK) worst = INFINITY;
    for (int64_t i = 0; i < nt_size(x) && worst < INFINITY; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    free(a);
    free(b);
    return worst;
}

static nt_tensor *param(nt_layer *net, const char *name) {
    nt_params p = nt_parameters(net);
    for (int k = 0; k < p.count; k++)
        if (strcmp(p.items[k]->name, name) == 0) return p.items[k];
    tap_note("there is no %s", name);
    return NULL;
}

// The names of all parameters in order, separated by blanks.
static int named(nt_layer *net, const char *want) {
    char text[2048] = "";
    nt_params p = nt_parameters(net);
    for (int k = 0; k < p.count; k++) {
        size_t n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s%s", k ? " " : "", p.items[k]->name);
    }
    if (strcmp(text, want) != 0) tap_note("%s", text);
    return strcmp(text, want) == 0;
}

static nt_layer *dense(nt_tape *t, int features) {
    nt_dense_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64, d.bias_init.kind = NT_INIT_NORMAL, d.bias_init.scale = 0.5;
    return nt_dense_layer(t, features, &d);
}

static nt_layer *conv(nt_tape *t, int features) {
    nt_conv_layer_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64, d.bias = NT_BIAS_OFF;
    return nt_conv_layer(t, features, NT_WINDOW(3, 3), &d);
}

static void names(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_normal(nt_key_tensor(t, nt_key(1)), NT_F64, NT_SHAPE(2, 4));
    nt_layer *block = nt_layer_named(NT_SERIAL(t, dense(t, 4), nt_layer_named(dense(t, 4), "out")), "body/block_7");
    nt_layer *inner = nt_layer_named(nt_residual_layer(t, NT_SERIAL(t, dense(t, 4), nt_residual_layer(t, dense(t, 4)))), "skip");
    nt_layer *net = NT_SERIAL(t, dense(t, 4), nt_layer_named(dense(t, 4), "stem"), dense(t, 4), block, inner, nt_residual_layer(t, dense(t, 4)), dense(t, 3));
    TAP_CHECK(nt_init(net, nt_key(2), x) == NT_OK);
    TAP_CHECK(named(net, "Dense_0/kernel Dense_0/bias stem/kernel stem/bias Dense_1/kernel Dense_1/bias body/block_7/Dense_0/kernel body/block_7/Dense_0/bias "
                         "body/block_7/out/kernel body/block_7/out/bias skip/Dense_0/kernel skip/Dense_0/bias skip/Residual_0/Dense_0/kernel "
                         "skip/Residual_0/Dense_0/bias Residual_0/Dense_0/kernel Residual_0/Dense_0/bias Dense_2/kernel Dense_2/bias"));
    // The initial numbers are flax's for the name: those of a layer whose whole path is the same.
    nt_layer *alone = nt_layer_named(dense(t, 4), "body/block_7/out");
    TAP_CHECK(nt_init(alone, nt_key(2), x) == NT_OK && difference(param(net, "body/block_7/out/kernel"), param(alone, "body/block_7/out/kernel")) == 0);
    TAP_CHECK(nt_init(net, nt_key(3), x) == NT_OK && difference(param(net, "body/block_7/out/kernel"), param(alone, "body/block_7/out/kernel")) > 0.1);
    TAP_CHECK(nt_layer_named(alone, "late") == NULL && strstr(nt_error(t), "before nt_init") != NULL);
    nt_error_clear(t);
    TAP_CHECK(nt_layer_named(dense(t, 4), "a/") == NULL && nt_error(t));
    nt_error_clear(t);
    nt_layer *twice = NT_SERIAL(t, dense(t, 4), nt_layer_named(dense(t, 4), "Dense_0"));
    TAP_CHECK(nt_init(twice, nt_key(1), x) != NT_OK && strstr(nt_error(t), "two layers have the name Dense_0") != NULL);
    nt_error_clear(t);
    twice = NT_SERIAL(t, nt_layer_named(dense(t, 4), "Dense_0"), dense(t, 4));
    TAP_CHECK(nt_init(twice, nt_key(1), x) != NT_OK && nt_error(t));
    nt_error_clear(t);
    TAP_CHECK(nt_layer_named(NULL, "a") == NULL && !nt_error(t));
    nt_layer *drop = nt_dropout_layer(t, 0.5), *drops = NT_SERIAL(t, drop, nt_concat_layer(t, 0, NT_LAYERS(drop, drop)));
    nt_tensor *ones = nt_full(t, NT_F64, NT_SHAPE(100), 1);
    nt_apply_desc training;
    memset(&training, 0, sizeof training);
    training.train = 1, training.key = nt_key(3);
    TAP_CHECK(nt_init(drops, nt_key(1), ones) == NT_OK);
    nt_tensor *dropped = nt_apply(drops, ones, &training);
    TAP_CHECK(difference(nt_slice_axis(dropped, 0, 0, 100), nt_slice_axis(dropped, 0, 100, 200)) > 1); // each use has a mask of its own
    nt_layer *shared = nt_residual_layer(t, dense(t, 4));
    net = NT_SERIAL(t, shared, nt_residual_layer(t, dense(t, 4)), shared);
    TAP_CHECK(nt_init(net, nt_key(1), x) == NT_OK && named(net, "Residual_0/Dense_0/kernel Residual_0/Dense_0/bias Residual_1/Dense_0/kernel Residual_1/Dense_0/bias"));
    nt_tape_close(t);
}

static void branches(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_normal(nt_key_tensor(t, nt_key(1)), NT_F64, NT_SHAPE(3, 4));
    nt_layer *inner = nt_product_layer(t, NT_LAYERS(nt_identity_layer(t), dense(t, 4), nt_sum_layer(t, NT_LAYERS(nt_tanh_layer(t), nt_identity_layer(t)))));
    nt_layer *net = nt_concat_layer(t, NT_LAST, NT_LAYERS(NT_SERIAL(t, dense(t, 2), nt_sigmoid_layer(t)), nt_identity_layer(t), inner));
    TAP_CHECK(nt_init(net, nt_key(2), x) == NT_OK);
    TAP_CHECK(named(net, "Dense_0/kernel Dense_0/bias Dense_1/kernel Dense_1/bias"));
    nt_tensor *a = nt_sigmoid(nt_dense(x, param(net, "Dense_0/kernel"), param(net, "Dense_0/bias")));
    nt_tensor *b = nt_dense(x, param(net, "Dense_1/kernel"), param(net, "Dense_1/bias"));
    nt_tensor *want = nt_concat(NT_LIST(a, x, nt_mul(nt_mul(x, b), nt_add(nt_tanh(x), x))), NT_LAST);
    TAP_CHECK(difference(nt_apply(net, x, NULL), want) == 0);
    // Other parameters than its own reach the right layers.
    nt_params p = nt_parameters(net);
    nt_apply_desc other;
    memset(&other, 0, sizeof other);
    nt_tensor *half[4];
    for (int k = 0; k < 4; k++) half[k] = nt_scale(p.items[k], 0.5);
    other.params.count = 4, other.params.items = half;
    a = nt_sigmoid(nt_dense(x, half[0], half[1])), b = nt_dense(x, half[2], half[3]);
    want = nt_concat(NT_LIST(a, x, nt_mul(nt_mul(x, b), nt_add(nt_tanh(x), x))), NT_LAST);
    TAP_CHECK(difference(nt_apply(net, x, &other), want) == 0);
    nt_layer *one = nt_sum_layer(t, NT_LAYERS(nt_tanh_layer(t)));
    TAP_CHECK(nt_init(one, nt_key(2), x) == NT_OK && difference(nt_apply(one, x, NULL), nt_tanh(x)) == 0);
    TAP_CHECK(nt_sum_layer(t, 0, NULL) == NULL && strstr(nt_error(t), "nt_sum_layer") != NULL);
    nt_error_clear(t);
    nt_layer *gone = NULL;
    TAP_CHECK(nt_concat_layer(t, 1, NT_LAYERS(nt_relu_layer(t), gone)) == NULL && strstr(nt_error(t), "layer 1 of 2 is NULL") != NULL);
    nt_error_clear(t);
    nt_layer *wrong = nt_sum_layer(t, NT_LAYERS(dense(t, 2), dense(t, 3)));
    TAP_CHECK(nt_init(wrong, nt_key(2), x) != NT_OK && strstr(nt_error(t), "nt_add") != NULL);
    nt_tape_close(t);
}

// A UNet is branches within branches: each level keeps its image beside what the smaller one makes of it.
static void skips(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = image_of(t, 1, 8, 8, 2);
    nt_layer *small = NT_SERIAL(t, nt_max_pool_layer(t, NT_WINDOW(2, 2)), conv(t, 6), nt_relu_layer(t), nt_upsample_layer(t, NT_WINDOW(2, 2)));
    nt_layer *middle = NT_SERIAL(t, conv(t, 4), nt_relu_layer(t), nt_concat_layer(t, NT_LAST, NT_LAYERS(nt_identity_layer(t), small)), conv(t, 4), nt_relu_layer(t));
    nt_layer *down = NT_SERIAL(t, nt_max_pool_layer(t, NT_WINDOW(2, 2)), middle, nt_upsample_layer(t, NT_WINDOW(2, 2)));
    nt_layer *net = NT_SERIAL(t, conv(t, 3), nt_relu_layer(t), nt_concat_layer(t, NT_LAST, NT_LAYERS(nt_identity_layer(t), down)), conv(t, 1));
    TAP_CHECK(nt_init(net, nt_key(2), x) == NT_OK);
    nt_params p = nt_parameters(net);
    TAP_CHECK(p.count == 5 && nt_shape_of(p.items[3]).size[2] == 4 + 6 && nt_shape_of(p.items[4]).size[2] == 3 + 4);
    nt_tensor *y = nt_apply(net, x, NULL);
    TAP_CHECK(y && y->shape[1] == 8 && y->shape[3] == 1 && difference(y, y) == 0);
    nt_tape_close(t);
}

static nt_tensor *cubed(void *user, nt_tensor *x) { return nt_scale(nt_mul(x, nt_square(x)), *(double *)user); }

static void activations(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_normal(nt_key_tensor(t, nt_key(1)), NT_F64, NT_SHAPE(30));
    double factor = 3;
    nt_function f = { cubed, &factor }, none = { NULL, NULL };
    nt_layer *layer[] = { nt_relu_layer(t), nt_tanh_layer(t), nt_sigmoid_layer(t), nt_softplus_layer(t), nt_silu_layer(t), nt_gelu_layer(t), nt_gelu_tanh_layer(t),
                          nt_elu_layer(t, 0.7), nt_leaky_relu_layer(t, 0.2), nt_activation_layer(t, nt_mish), nt_function_layer(t, f), nt_identity_layer(t) };
    nt_tensor *want[] = { nt_relu(x), nt_tanh(x), nt_sigmoid(x), nt_softplus(x), nt_silu(x), nt_gelu(x), nt_gelu_tanh(x),
                          nt_elu(x, 0.7), nt_leaky_relu(x, 0.2), nt_mish(x), nt_scale(nt_mul(x, nt_square(x)), 3), x };
    int right = 1;
    for (int k = 0; k < 12; k++) right = right && nt_init(layer[k], nt_key(1), x) == NT_OK && difference(nt_apply(layer[k], x, NULL), want[k]) == 0;
    tap_ok(right, "layers of activations record their functions");
    TAP_CHECK(nt_activation_layer(t, NULL) == NULL && nt_error(t));
    nt_error_clear(t);
    TAP_CHECK(nt_function_layer(t, none) == NULL && nt_error(t));
    nt_tape_close(t);
}

static void images(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = image_of(t, 2, 2, 3, 4);
    double in[48], up[2 * 4 * 9 * 4], mean[8];
    nt_layer *upsample = nt_upsample_layer(t, NT_WINDOW(2, 3)), *pool = nt_global_avg_pool_layer(t);
    TAP_CHECK(nt_init(upsample, nt_key(1), x) == NT_OK && nt_init(pool, nt_key(1), x) == NT_OK);
    TAP_CHECK(nt_eval(x, in) == NT_OK && nt_eval(nt_apply(upsample, x, NULL), up) == NT_OK && nt_eval(nt_apply(pool, x, NULL), mean) == NT_OK);
    int right = 1;
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 9; j++)
                for (int c = 0; c < 4; c++) right = right && up[((n * 4 + i) * 9 + j) * 4 + c] == in[((n * 2 + i / 2) * 3 + j / 3) * 4 + c];
    tap_ok(right, "upsampling repeats pixels");
    for (int n = 0; n < 2; n++)
        for (int c = 0; c < 4; c++) {
            double sum = 0;
            for (int i = 0; i < 6; i++) sum += in[(n * 6 + i) * 4 + c];
            right = right && fabs(sum / 6 - mean[n * 4 + c]) < 1e-15;
        }
    tap_ok(right, "global average pooling");
    nt_tensor *flat = nt_flatten(x, 1), *three = image_of(t, 1, 2, 3, 1);
    TAP_CHECK(nt_apply(upsample, flat, NULL) == NULL && strstr(nt_error(t), "nt_upsample_layer") != NULL);
    nt_error_clear(t);
    TAP_CHECK(nt_apply(pool, nt_sum(three), NULL) == NULL && strstr(nt_error(t), "nt_global_avg_pool_layer") != NULL);
    nt_error_clear(t);
    TAP_CHECK(nt_upsample_layer(t, NT_WINDOW(2, 0)) == NULL && nt_error(t));
    nt_tape_close(t);
}

static void tables(void) {
    nt_tape *t = nt_tape_open(NULL);
    int32_t at[] = { 3, 0, 3, 6, 1, 2 };
    nt_tensor *x = nt_constant(t, NT_I32, NT_SHAPE(2, 3), at);
    nt_embed_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64;
    nt_layer *table = nt_embed_layer(t, 7, 300, &d);
    TAP_CHECK(nt_init(table, nt_key(1), x) == NT_OK && named(table, "Embed_0/embedding"));
    const double *rows = (const double *)nt_data(nt_parameters(table).items[0]);
    double *got = (double *)malloc(6 * 300 * sizeof *got), square = 0;
    TAP_CHECK(nt_eval(nt_apply(table, x, NULL), got) == NT_OK);
    int right = 1;
    for (int k = 0; k < 6; k++) right = right && memcmp(got + 300 * k, rows + 300 * at[k], 300 * sizeof *rows) == 0;
    tap_ok(right, "an embedding is the rows of its table");
    for (int i = 0; i < 2100; i++) square += rows[i] * rows[i];
    // 2,100 squares of variance 1 / 300: the mean of them stays within 5 standard errors, 5 sqrt(2 / 2100) of it.
    TAP_CHECK(fabs(square / 2100 * 300 - 1) < 0.16);
    TAP_CHECK(nt_embed_layer(t, 0, 4, NULL) == NULL && nt_error(t));
    free(got);
    nt_tape_close(t);
}

// A recurrent layer against its cell, one step after the other.
static void cells(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_normal(nt_key_tensor(t, nt_key(1)), NT_F64, NT_SHAPE(2, 4, 3)), *zero = nt_full(t, NT_F64, NT_SHAPE(2, 5), 0), *h = zero, *seen[4], *states[4];
    nt_lstm_state s = { zero, zero }, none = { NULL, NULL };
    nt_cell_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64, d.bias_init.kind = NT_INIT_NORMAL, d.bias_init.scale = 0.3;
    nt_layer *lstm = nt_lstm_layer(t, 5, &d), *gru = nt_layer_named(nt_gru_layer(t, 5, &d), "cell");
    TAP_CHECK(nt_init(lstm, nt_key(2), x) == NT_OK && nt_init(gru, nt_key(2), x) == NT_OK);
    TAP_CHECK(named(lstm, "LSTMCell_0/ii/kernel LSTMCell_0/if/kernel LSTMCell_0/ig/kernel LSTMCell_0/io/kernel LSTMCell_0/hi/kernel LSTMCell_0/hi/bias "
                          "LSTMCell_0/hf/kernel LSTMCell_0/hf/bias LSTMCell_0/hg/kernel LSTMCell_0/hg/bias LSTMCell_0/ho/kernel LSTMCell_0/ho/bias"));
    TAP_CHECK(named(gru, "cell/ir/kernel cell/ir/bias cell/iz/kernel cell/iz/bias cell/in/kernel cell/in/bias cell/hr/kernel cell/hz/kernel cell/hn/kernel cell/hn/bias"));
    nt_tensor *w = param(gru, "cell/hz/kernel"), *one = nt_matmul(nt_swap_axes(w, 0, 1), w);
    nt_tensor *unit = nt_cast(nt_equal(nt_iota(t, NT_I32, NT_SHAPE(5, 5), 0), nt_iota(t, NT_I32, NT_SHAPE(5, 5), 1)), NT_F64);
    TAP_CHECK(difference(one, unit) < 1e-14); // recurrent kernels begin orthogonal
    for (int k = 0; k < 4; k++) {
        nt_tensor *now = nt_squeeze(nt_slice_axis(x, 1, k, k + 1), 1);
        seen[k] = (s = nt_lstm_cell(s, now, nt_parameters(lstm))).h;
        states[k] = h = nt_gru_cell(h, now, nt_parameters(gru));
    }
    nt_params a = { 4, NULL }, b = { 4, NULL };
    a.items = seen, b.items = states;
    TAP_CHECK(difference(nt_apply(lstm, x, NULL), nt_stack(a, 1)) < 1e-15 && difference(nt_apply(gru, x, NULL), nt_stack(b, 1)) < 1e-15);
    nt_layer *last = NT_SERIAL(t, gru, nt_token_layer(t, -1));
    TAP_CHECK(nt_init(last, nt_key(2), x) == NT_OK && difference(nt_apply(last, x, NULL), h) < 1e-15);
    TAP_CHECK(nt_gru_cell(h, zero, nt_parameters(lstm)) == NULL && strstr(nt_error(t), "nt_gru_cell takes 10 parameters") != NULL);
    nt_error_clear(t);
    TAP_CHECK(nt_lstm_cell(none, NULL, nt_parameters(lstm)).h == NULL && !nt_error(t));
    TAP_CHECK(nt_apply(lstm, zero, NULL) == NULL && strstr(nt_error(t), "(batch, time, features)") != NULL);
    nt_error_clear(t);
    TAP_CHECK(nt_lstm_layer(t, 0, NULL) == NULL && nt_error(t));
    nt_tape_close(t);
}

// Arrays of every size: an error of memory, or all of it.
static nt_tensor *in_memory(nt_tape *t) {
    nt_tensor *x = image_of(t, 1, 4, 4, 2);
    nt_layer *small = NT_SERIAL(t, nt_max_pool_layer(t, NT_WINDOW(2, 2)), conv(t, 3), nt_upsample_layer(t, NT_WINDOW(2, 2)));
    nt_cell_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = NT_F64;
    nt_layer *net = NT_SERIAL(t, nt_layer_named(conv(t, 3), "stem"), nt_sum_layer(t, NT_LAYERS(nt_identity_layer(t), nt_layer_named(small, "small"))), nt_tokens_layer(t),
                              nt_lstm_layer(t, 3, &d), nt_token_layer(t, -1), nt_residual_layer(t, dense(t, 3)));
    return nt_init(net, nt_key(1), x) == NT_OK ? nt_apply(net, x, NULL) : NULL;
}

static void shortage(void) {
    int wrong = 0, enough = 0, failed = 0;
    for (size_t size = nt_tape_size_min(); size < 1000000 && enough < 3; size += 331) {
        nt_tape_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.memory = malloc(size), desc.memory_size = size;
        nt_tape *t = nt_tape_open(&desc);
        if (t && in_memory(t)) enough++;
        else failed++, wrong += t && nt_error_status(t) != NT_ERROR_MEMORY;
        nt_tape_close(t);
        free(desc.memory);
    }
    tap_ok(!wrong && enough == 3 && failed > 50, "%d arrays that are too small, each an error of memory", failed);
}

int main(void) {
    names();
    branches();
    skips();
    activations();
    images();
    tables();
    cells();
    shortage();
    return tap_end();
}
