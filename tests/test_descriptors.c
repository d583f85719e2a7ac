// Every field of every descriptor: what NULL means, what zero means, and that another value is seen.
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <string.h>

#define CLEAR(d) memset(&(d), 0, sizeof(d))
static nt_tape *t;

// Values of two small results are the same bits.
static int same(nt_tensor *a, nt_tensor *b) {
    static float p[4096], q[4096];
    if (!a || !b || nt_bytes(a) != nt_bytes(b) || nt_bytes(a) > sizeof p) return 0;
    return nt_eval(a, p) == NT_OK && nt_eval(b, q) == NT_OK && memcmp(p, q, nt_bytes(a)) == 0;
}

static nt_tensor *waves(nt_shape shape, double speed) {
    static float data[4096];
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) n *= shape.size[k];
    for (int64_t i = 0; i < n; i++) data[i] = (float)sin(speed * (double)i);
    return nt_constant(t, NT_F32, shape, data);
}

static void triangles(void) {
    nt_tensor *a = waves(NT_SHAPE(4, 4), 1.3), *b = waves(NT_SHAPE(4, 4), 0.9), *plain = nt_triangular_solve(a, b, NULL);
    nt_triangular_desc d;
    int *fields[4] = { &d.right, &d.upper, &d.transpose, &d.unit };
    CLEAR(d);
    tap_ok(same(plain, nt_triangular_solve(a, b, &d)), "triangular solve: NULL is all zeros: left, lower, as it is");
    for (int k = 0; k < 4; k++) {
        CLEAR(d);
        *fields[k] = 1;
        tap_ok(!same(plain, nt_triangular_solve(a, b, &d)), "triangular solve: field %d is seen", k);
    }
}

static void convolutions(void) {
    nt_tensor *x = waves(NT_SHAPE(1, 7, 6, 4), 1.1), *w = waves(NT_SHAPE(3, 2, 4, 6), 0.7), *half = waves(NT_SHAPE(3, 2, 2, 6), 0.7), *plain = nt_conv(x, w, NULL);
    nt_conv_desc d;
    CLEAR(d);
    tap_ok(same(plain, nt_conv(x, w, &d)), "conv: NULL is all zeros");
    d.stride[0] = d.stride[1] = d.dilation[0] = d.dilation[1] = d.groups = 1, d.padding = NT_SAME;
    tap_ok(same(plain, nt_conv(x, w, &d)), "conv: zeros are stride 1, dilation 1, one group, SAME");
    CLEAR(d), d.stride[1] = 2;
    tap_ok(nt_shape_of(nt_conv(x, w, &d)).size[2] == 3, "conv: .stride is for each axis");
    CLEAR(d), d.dilation[0] = 2, d.padding = NT_VALID;
    tap_ok(nt_shape_of(nt_conv(x, w, &d)).size[1] == 3, "conv: .dilation and VALID");
    CLEAR(d), d.groups = 2;
    tap_ok(nt_conv(x, half, &d) != NULL, "conv: .groups");
    CLEAR(d), d.padding = NT_EXPLICIT, d.pad[0][0] = 2, d.pad[1][1] = -1;
    nt_shape s = nt_shape_of(nt_conv(x, w, &d));
    tap_ok(s.size[1] == 7 && s.size[2] == 4, "conv: .pad, negative too");
    CLEAR(d), d.lhs_dilation[0] = 1, d.lhs_dilation[1] = 3, d.padding = NT_VALID;
    tap_ok(nt_shape_of(nt_conv(x, w, &d)).size[1] == 5 && nt_shape_of(nt_conv(x, w, &d)).size[2] == 15, "conv: .lhs_dilation, 1 as 0");
    CLEAR(d), d.padding = NT_CIRCULAR;
    tap_ok(nt_shape_of(nt_conv(x, w, &d)).size[1] == 7 && !same(plain, nt_conv(x, w, &d)), "conv: CIRCULAR");
    nt_tensor *up = nt_conv_transpose(x, w, NULL);
    CLEAR(d), d.padding = NT_SAME;
    tap_ok(same(up, nt_conv_transpose(x, w, &d)) && nt_shape_of(up).size[1] == 7, "conv_transpose: NULL is SAME, stride 1");
    CLEAR(d), d.stride[1] = 2;
    tap_ok(nt_shape_of(nt_conv_transpose(x, w, &d)).size[2] == 12, "conv_transpose: .stride makes larger");
    CLEAR(d), d.padding = NT_VALID, d.dilation[0] = 2;
    tap_ok(nt_shape_of(nt_conv_transpose(x, w, &d)).size[1] == 11, "conv_transpose: .dilation and VALID");
    CLEAR(d), d.padding = NT_EXPLICIT, d.pad[0][0] = 2, d.pad[0][1] = 1;
    tap_ok(nt_shape_of(nt_conv_transpose(x, w, &d)).size[1] == 8, "conv_transpose: .pad");
    CLEAR(d), d.groups = 2;
    tap_ok(nt_conv_transpose(x, half, &d) != NULL, "conv_transpose: .groups");
    CLEAR(d), d.lhs_dilation[0] = -2;
    tap_ok(nt_conv(x, w, &d) == NULL && nt_error_status(t) == NT_ERROR_ARGUMENT, "conv: a negative .lhs_dilation is an error");
    nt_error_clear(t);
    CLEAR(d), d.groups = -1;
    tap_ok(nt_conv(x, w, &d) == NULL && nt_error_status(t) == NT_ERROR_ARGUMENT, "conv: negative groups are an error");
    nt_error_clear(t);
}

static void pools(void) {
    nt_tensor *x = waves(NT_SHAPE(1, 6, 7, 2), 0.9);
    nt_pool_desc d;
    CLEAR(d);
    tap_ok(same(nt_avg_pool(x, NT_WINDOW(2, 3), NULL), nt_avg_pool(x, NT_WINDOW(2, 3), &d)), "pool: NULL is all zeros");
    d.stride[0] = 2, d.stride[1] = 3, d.padding = NT_VALID;
    tap_ok(same(nt_avg_pool(x, NT_WINDOW(2, 3), NULL), nt_avg_pool(x, NT_WINDOW(2, 3), &d)), "pool: zeros are the window's strides and VALID");
    CLEAR(d), d.padding = NT_SAME, d.stride[0] = d.stride[1] = 1;
    nt_pool_desc inside = d;
    inside.exclude_pad = 1;
    tap_ok(!same(nt_avg_pool(x, NT_WINDOW(3, 3), &d), nt_avg_pool(x, NT_WINDOW(3, 3), &inside)), "pool: .exclude_pad changes the borders");
    CLEAR(d), d.padding = NT_EXPLICIT, d.pad[1][0] = 2;
    tap_ok(nt_shape_of(nt_max_pool(x, NT_WINDOW(2, 3), &d)).size[2] == 3, "pool: .pad");
}

static void losses(void) {
    nt_tensor *x = waves(NT_SHAPE(3, 4), 1.3);
    const int32_t numbers[3] = { 1, 0, 3 };
    nt_tensor *y = nt_constant(t, NT_I32, NT_SHAPE(3), numbers), *plain = nt_cross_entropy(x, y);
    nt_cross_entropy_desc d;
    CLEAR(d);
    tap_ok(same(plain, nt_cross_entropy_with(x, y, &d)) && same(plain, nt_cross_entropy_with(x, y, NULL)), "cross-entropy: NULL is all zeros; label 0 is not ignored");
    d.has_ignored = 1;
    float v[3] = { 1, 1, 1 };
    nt_eval(nt_cross_entropy_with(x, y, &d), v);
    tap_ok(v[0] > 0 && v[1] == 0 && v[2] > 0, "cross-entropy: .ignored may be label 0");
    CLEAR(d), d.smoothing = 0.1;
    tap_ok(!same(plain, nt_cross_entropy_with(x, y, &d)), "cross-entropy: .smoothing");
}

static nt_layer *with(nt_layer *l, nt_tensor *x) {
    nt_layer *net = NT_SERIAL(t, l);
    return nt_init(net, nt_key(5), x) == NT_OK ? net : NULL;
}

static void layers(void) {
    nt_tensor *x = waves(NT_SHAPE(2, 4), 0.8), *image = waves(NT_SHAPE(1, 4, 4, 2), 0.8);
    nt_dense_desc d;
    CLEAR(d);
    tap_ok(same(nt_parameters(with(nt_dense_layer(t, 3, NULL), x)).items[0], nt_parameters(with(nt_dense_layer(t, 3, &d), x)).items[0]), "dense: NULL is all zeros");
    d.kernel_init.kind = NT_LECUN_NORMAL, d.bias_init.kind = NT_INIT_ZEROS;
    tap_ok(same(nt_parameters(with(nt_dense_layer(t, 3, NULL), x)).items[0], nt_parameters(with(nt_dense_layer(t, 3, &d), x)).items[0]), "dense: the default kernel is lecun normal");
    d.bias = NT_BIAS_OFF;
    tap_ok(nt_parameters(with(nt_dense_layer(t, 3, &d), x)).count == 1, "dense: bias off");
    CLEAR(d), d.bias_init.kind = NT_INIT_ONES;
    tap_ok(same(nt_parameters(with(nt_dense_layer(t, 3, &d), x)).items[1], nt_full(t, NT_F32, NT_SHAPE(3), 1)), "dense: .bias_init");
    nt_conv_layer_desc c;
    CLEAR(c), c.conv.stride[0] = c.conv.stride[1] = 2, c.bias = NT_BIAS_OFF;
    nt_layer *conv = with(nt_conv_layer(t, 5, NT_WINDOW(3, 3), &c), image);
    tap_ok(nt_parameters(conv).count == 1 && nt_shape_of(nt_apply(conv, image, NULL)).size[1] == 2, "conv layer: .conv and bias off");
    nt_layer_norm_desc n, zero;
    CLEAR(n), CLEAR(zero);
    n.eps = 1e-6;
    tap_ok(same(nt_apply(with(nt_layer_norm_layer(t, NULL), x), x, NULL), nt_apply(with(nt_layer_norm_layer(t, &n), x), x, NULL)), "layer norm: eps 0 is 1e-6");
    zero.eps = NT_ZERO, n.eps = 1e-30;
    tap_ok(same(nt_apply(with(nt_layer_norm_layer(t, &zero), x), x, NULL), nt_apply(with(nt_layer_norm_layer(t, &n), x), x, NULL)), "layer norm: NT_ZERO is no eps");
    n.no_scale = n.no_bias = 1;
    tap_ok(nt_parameters(with(nt_layer_norm_layer(t, &n), x)).count == 0, "layer norm: .no_scale, .no_bias");
    const int32_t numbers[2] = { 1, 0 };
    nt_tensor *token = nt_constant(t, NT_I32, NT_SHAPE(2), numbers);
    nt_embed_desc e;
    CLEAR(e);
    nt_tensor *table = nt_parameters(with(nt_embed_layer(t, 6, 3, NULL), token)).items[0];
    tap_ok(same(table, nt_parameters(with(nt_embed_layer(t, 6, 3, &e), token)).items[0]), "embedding: NULL is all zeros");
    e.embedding_init.kind = NT_INIT_ONES;
    tap_ok(same(nt_parameters(with(nt_embed_layer(t, 6, 3, &e), token)).items[0], nt_full(t, NT_F32, NT_SHAPE(6, 3), 1)), "embedding: .embedding_init");
    e.dtype = NT_F64;
    tap_ok(nt_parameters(with(nt_embed_layer(t, 6, 3, &e), token)).items[0]->dtype == NT_F64, "embedding: .dtype");
}

static nt_layer *init(nt_layer *net, nt_tensor *x) { return nt_init(net, nt_key(5), x) == NT_OK ? net : NULL; }
static nt_tensor *applied(nt_layer *net, nt_tensor *x) { return nt_apply(init(net, x), x, NULL); }

static void attentions(void) {
    nt_tensor *q = waves(NT_SHAPE(1, 4, 2, 3), 1.1), *k = waves(NT_SHAPE(1, 4, 2, 3), 0.7), *plain = nt_attention(q, k, k, NULL, NULL);
    nt_attention_desc d;
    CLEAR(d);
    tap_ok(same(plain, nt_attention(q, k, k, NULL, &d)), "attention: NULL is all zeros");
    d.scale = 1 / sqrt(3.0);
    tap_ok(same(plain, nt_attention(q, k, k, NULL, &d)), "attention: scale 0 is 1 / sqrt(d)");
    d.scale = NT_ZERO;
    nt_tensor *even = nt_attention(q, nt_scale(k, 0), k, NULL, NULL);
    tap_ok(same(even, nt_attention(q, k, k, NULL, &d)) && !same(plain, even), "attention: NT_ZERO makes all scores equal");
    CLEAR(d), d.causal = 1;
    tap_ok(!same(plain, nt_attention(q, k, k, NULL, &d)), "attention: .causal");

    nt_tensor *x = waves(NT_SHAPE(2, 3, 8), 0.8), *image = waves(NT_SHAPE(1, 32, 32, 3), 0.8), *small = waves(NT_SHAPE(1, 8, 8, 3), 0.8);
    nt_attention_layer_desc a, b;
    CLEAR(a), CLEAR(b);
    nt_tensor *self = applied(nt_attention_layer(t, 2, NULL), x);
    tap_ok(same(self, applied(nt_attention_layer(t, 2, &a), x)), "attention layer: NULL is all zeros");
    a.features = a.out_features = 8, a.kernel_init.kind = NT_LECUN_NORMAL, a.bias_init.kind = NT_INIT_ZEROS;
    tap_ok(same(self, applied(nt_attention_layer(t, 2, &a), x)), "attention layer: zeros are the input's width, lecun normal and zeros");
    a.features = 4, a.out_features = 5, a.bias = NT_BIAS_OFF;
    nt_layer *narrow = init(nt_attention_layer(t, 2, &a), x);
    tap_ok(nt_parameters(narrow).count == 4 && nt_shape_of(nt_parameters(narrow).items[0]).size[2] == 2 && nt_shape_of(nt_apply(narrow, x, NULL)).size[2] == 5,
           "attention layer: .features, .out_features and bias off");
    b.causal = 1;
    tap_ok(!same(self, applied(nt_attention_layer(t, 2, &b), x)), "attention layer: .causal");
    CLEAR(b), b.bias_init.kind = NT_INIT_ONES;
    tap_ok(!same(self, applied(nt_attention_layer(t, 2, &b), x)), "attention layer: .bias_init");
    CLEAR(b), b.dtype = NT_F64;
    tap_ok(nt_parameters(init(nt_attention_layer(t, 2, &b), nt_cast(x, NT_F64))).items[7]->dtype == NT_F64, "attention layer: .dtype");

    nt_encoder_desc e, f;
    nt_apply_desc train;
    CLEAR(e), CLEAR(train), e.dim = 8, e.heads = 2, f = e, f.mlp = 32, train.train = 1;
    nt_tensor *block = applied(nt_encoder_layer(t, &e), x);
    tap_ok(same(block, applied(nt_encoder_layer(t, &f), x)), "encoder: mlp 0 is four times the width");
    f.mlp = 5;
    tap_ok(nt_size(nt_parameters(init(nt_encoder_layer(t, &f), x)).items[12]) == 40, "encoder: .mlp");
    f = e, f.causal = 1;
    tap_ok(!same(block, applied(nt_encoder_layer(t, &f), x)), "encoder: .causal");
    f = e, f.dropout = 0.5;
    tap_ok(!same(block, nt_apply(init(nt_encoder_layer(t, &f), x), x, &train)) && same(block, applied(nt_encoder_layer(t, &f), x)), "encoder: .dropout");
    f = e, f.dtype = NT_F64;
    tap_ok(nt_parameters(init(nt_encoder_layer(t, &f), nt_cast(x, NT_F64))).items[12]->dtype == NT_F64, "encoder: .dtype");

    nt_vit_desc v, w;
    CLEAR(v), v.outputs = 3, w = v, w.patch = 16, w.dim = 192, w.depth = 12, w.heads = 3, w.mlp = 768, w.head_init.kind = NT_INIT_ZEROS;
    nt_layer *usual = init(nt_vit_layer(t, &v), image), *said = init(nt_vit_layer(t, &w), image);
    int equal = nt_parameters(usual).count == nt_parameters(said).count;
    for (int i = 0; equal && i < nt_parameters(usual).count; i++) equal = nt_size(nt_parameters(usual).items[i]) == nt_size(nt_parameters(said).items[i]);
    tap_ok(equal && same(nt_apply(usual, image, NULL), nt_apply(said, image, NULL)), "vision transformer: zeros are 16, 192, 12, 3, 768 and a head of zeros");
    v.patch = 4, v.dim = 8, v.depth = 1, v.heads = 2, v.mlp = 6, v.head_init.kind = NT_LECUN_NORMAL;
    nt_layer *tiny = init(nt_vit_layer(t, &v), small);
    tap_ok(nt_parameters(tiny).count == 24 && nt_shape_of(nt_parameters(tiny).items[0]).size[0] == 4 && nt_shape_of(nt_apply(tiny, small, NULL)).size[1] == 3,
           "vision transformer: .patch, .dim, .depth, .heads, .mlp, .outputs");
    w = v, w.mean_pool = 1;
    tap_ok(nt_parameters(init(nt_vit_layer(t, &w), small)).count == 23, "vision transformer: .mean_pool has no class token");
    w = v, w.dropout = 0.5;
    tap_ok(!same(nt_apply(tiny, small, NULL), nt_apply(init(nt_vit_layer(t, &w), small), small, &train)), "vision transformer: .dropout");
    w = v, w.dtype = NT_F64;
    tap_ok(nt_parameters(init(nt_vit_layer(t, &w), nt_cast(small, NT_F64))).items[2]->dtype == NT_F64, "vision transformer: .dtype");
}

static void batch_norms(void) {
    nt_tensor *x = waves(NT_SHAPE(5, 3), 0.8);
    nt_apply_desc train;
    nt_batch_norm_desc d, e;
    CLEAR(train), CLEAR(d), train.train = 1;
    nt_tensor *plain = nt_apply(init(nt_batch_norm_layer(t, NULL), x), x, &train);
    tap_ok(same(plain, nt_apply(init(nt_batch_norm_layer(t, &d), x), x, &train)), "batch norm: NULL is all zeros");
    d.eps = 1e-5;
    tap_ok(same(plain, nt_apply(init(nt_batch_norm_layer(t, &d), x), x, &train)), "batch norm: eps 0 is 1e-5");
    d.eps = NT_ZERO, e = d, e.eps = 1e-30;
    tap_ok(same(nt_apply(init(nt_batch_norm_layer(t, &d), x), x, &train), nt_apply(init(nt_batch_norm_layer(t, &e), x), x, &train)), "batch norm: NT_ZERO is no eps");
    CLEAR(d), d.no_scale = 1;
    tap_ok(nt_parameters(init(nt_batch_norm_layer(t, &d), x)).count == 1, "batch norm: .no_scale");
    d.no_bias = 1;
    tap_ok(nt_parameters(init(nt_batch_norm_layer(t, &d), x)).count == 0 && nt_layer_state(init(nt_batch_norm_layer(t, &d), x)).count == 2, "batch norm: .no_bias");
    d.dtype = NT_F64;
    tap_ok(nt_layer_state(init(nt_batch_norm_layer(t, &d), nt_cast(x, NT_F64))).items[0]->dtype == NT_F64, "batch norm: .dtype");
    const double momentum[3] = { 0, 0.99, NT_ZERO };
    float mean[3];
    for (int k = 0; k < 3; k++) { // the first mean after one run; a momentum of 0 has the batch's own
        CLEAR(d), d.momentum = momentum[k];
        nt_layer *net = NT_SERIAL(t, nt_batch_norm_layer(t, &d), nt_dense_layer(t, 1, NULL));
        nt_program *p = nt_compile_step(nt_mean(nt_square(nt_apply(init(net, x), x, &train))), nt_sgd(t, NULL), NULL);
        mean[k] = p && nt_run(p) == NT_OK ? ((float *)nt_data(nt_layer_state(net).items[0]))[0] : -1;
    }
    tap_ok(mean[0] == mean[1] && fabs(mean[0] / mean[2] - 0.01) < 1e-6, "batch norm: momentum 0 is 0.99, NT_ZERO is none");
}

static void cells(void) {
    nt_tensor *x = waves(NT_SHAPE(2, 3, 4), 0.8);
    nt_cell_desc c;
    CLEAR(c);
    nt_params plain = nt_parameters(with(nt_gru_layer(t, 4, NULL), x)), zeros = nt_parameters(with(nt_gru_layer(t, 4, &c), x)); // hz: 7, hn's bias: 9
    tap_ok(same(plain.items[0], zeros.items[0]) && same(plain.items[7], zeros.items[7]) && same(plain.items[9], zeros.items[9]), "cells: NULL is all zeros");
    c.kernel_init.kind = NT_LECUN_NORMAL, c.recurrent_init.kind = NT_ORTHOGONAL, c.bias_init.kind = NT_INIT_ZEROS;
    nt_params named = nt_parameters(with(nt_gru_layer(t, 4, &c), x));
    tap_ok(same(plain.items[0], named.items[0]) && same(plain.items[7], named.items[7]) && same(plain.items[9], named.items[9]), "cells: the defaults by name");
    c.kernel_init.kind = NT_INIT_ONES, c.recurrent_init.kind = NT_INIT_ZEROS, c.bias_init.kind = NT_INIT_ONES;
    nt_params other = nt_parameters(with(nt_lstm_layer(t, 4, &c), x)); // hi: 4 and 5
    nt_tensor *ones = nt_full(t, NT_F32, NT_SHAPE(4, 4), 1);
    tap_ok(same(other.items[0], ones) && same(other.items[4], nt_scale(ones, 0)) && same(other.items[5], nt_full(t, NT_F32, NT_SHAPE(4), 1)), "cells: .kernel_init, .recurrent_init, .bias_init");
    c.dtype = NT_F64;
    tap_ok(nt_parameters(with(nt_lstm_layer(t, 4, &c), nt_cast(x, NT_F64))).items[0]->dtype == NT_F64, "cells: .dtype");
}

// The parameter after three updates by gradients that change.
static nt_tensor *trained(nt_optimizer *o) {
    const float first[3] = { 1, -2, 0.5f };
    nt_tensor *w = nt_variable(t, NT_F32, NT_SHAPE(3), first), *g = nt_input(t, NT_F32, NT_SHAPE(3));
    nt_program *p = nt_compile_update(o, NT_LIST(w), NT_LIST(g), NULL);
    for (int k = 0; k < 3; k++) {
        float gradient[3] = { 0.3f + (float)k, -1, 0.01f };
        nt_write(g, gradient);
        if (nt_run(p) != NT_OK) return NULL;
    }
    return w;
}

static void optimizers(void) {
    nt_sgd_desc s;
    CLEAR(s);
    const float start[3] = { 1, -2, 0.5f };
    tap_ok(same(trained(nt_sgd(t, &s)), nt_constant(t, NT_F32, NT_SHAPE(3), start)), "sgd: rate 0 is rate 0");
    s.learning_rate = 0.01;
    nt_tensor *plain = trained(nt_sgd(t, &s));
    tap_ok(same(trained(nt_sgd(t, NULL)), plain), "sgd: NULL is rate 0.01 without momentum");
    s.momentum = 0.9;
    nt_tensor *heavy = trained(nt_sgd(t, &s));
    s.nesterov = 1;
    tap_ok(!same(heavy, plain) && !same(trained(nt_sgd(t, &s)), heavy), "sgd: .momentum, .nesterov");
    nt_adam_desc a, b;
    CLEAR(a), a.learning_rate = 0.001;
    nt_tensor *adam = trained(nt_adam(t, NULL));
    tap_ok(same(trained(nt_adam(t, &a)), adam), "adam: NULL is rate 0.001");
    b = a, b.b1 = 0.9, b.b2 = 0.999, b.eps = 1e-8;
    tap_ok(same(trained(nt_adam(t, &b)), adam), "adam: zeros are b1 0.9, b2 0.999, eps 1e-8");
    int seen = 1;
    b = a, b.b1 = NT_ZERO, seen &= !same(trained(nt_adam(t, &b)), adam);
    b = a, b.b2 = NT_ZERO, seen &= !same(trained(nt_adam(t, &b)), adam);
    b = a, b.eps = 0.1, seen &= !same(trained(nt_adam(t, &b)), adam);
    b = a, b.eps_root = 0.1, seen &= !same(trained(nt_adam(t, &b)), adam);
    b = a, b.nesterov = 1, seen &= !same(trained(nt_adam(t, &b)), adam);
    tap_ok(seen, "adam: every other field is seen, b1 and b2 of exactly zero too");
    nt_adamw_desc w;
    CLEAR(w), w.learning_rate = 0.001;
    tap_ok(same(trained(nt_adamw(t, &w)), adam), "adamw: decay 0 is no decay");
    w.weight_decay = 1e-4;
    tap_ok(same(trained(nt_adamw(t, NULL)), trained(nt_adamw(t, &w))), "adamw: NULL decays by 1e-4");
    w.weight_decay = 0.5, w.mask = NT_DECAY_MATRICES;
    tap_ok(same(trained(nt_adamw(t, &w)), adam), "adamw: .mask leaves a vector alone");
    nt_multi_steps_desc m;
    CLEAR(m);
    tap_ok(nt_multi_steps_with(nt_sgd(t, NULL), &m) == NULL, "multi steps: k is not optional");
    nt_error_clear(t);
    m.k = 3, m.sum = 1;
    s.momentum = 0, s.nesterov = 0;
    nt_tensor *sum = trained(nt_multi_steps_with(nt_sgd(t, &s), &m));
    m.sum = 0;
    tap_ok(sum && !same(sum, trained(nt_multi_steps_with(nt_sgd(t, &s), &m))), "multi steps: .sum does not divide");
}

static void initializers(void) {
    float a[12], b[12];
    nt_init_desc d, e;
    CLEAR(d);
    nt_initialize(nt_key(1), NULL, NT_F32, NT_SHAPE(3, 4), a), nt_initialize(nt_key(1), &d, NT_F32, NT_SHAPE(3, 4), b);
    tap_ok(memcmp(a, b, sizeof a) == 0, "initialize: NULL is all zeros");
    d.kind = NT_VARIANCE_SCALING, e = d, e.scale = 1, e.mode = NT_FAN_IN, e.distribution = NT_DIST_TRUNCATED_NORMAL, e.in_axes = NT_AXES(-2), e.out_axes = NT_AXES(-1);
    nt_initialize(nt_key(1), &d, NT_F32, NT_SHAPE(3, 4), a), nt_initialize(nt_key(1), &e, NT_F32, NT_SHAPE(3, 4), b);
    tap_ok(memcmp(a, b, sizeof a) == 0, "initialize: variance scaling's zeros are scale 1, fan in, truncated normal, axes -2 and -1");
    CLEAR(d), d.kind = NT_INIT_NORMAL, e = d, e.scale = 0.01;
    nt_initialize(nt_key(1), &d, NT_F32, NT_SHAPE(3, 4), a), nt_initialize(nt_key(1), &e, NT_F32, NT_SHAPE(3, 4), b);
    tap_ok(memcmp(a, b, sizeof a) == 0, "initialize: normal's scale 0 is 0.01");
    d.kind = NT_INIT_TRUNCATED_NORMAL, e = d, e.low = -2, e.high = 2;
    nt_initialize(nt_key(1), &d, NT_F32, NT_SHAPE(3, 4), a), nt_initialize(nt_key(1), &e, NT_F32, NT_SHAPE(3, 4), b);
    tap_ok(memcmp(a, b, sizeof a) == 0, "initialize: the truncated normal is cut at -2 and 2");
}

static int always(void *user) { return ++*(int *)user; }

static void programs(void) {
    nt_tensor *y = nt_exp(waves(NT_SHAPE(16), 0.3));
    nt_compile_desc d;
    CLEAR(d), d.scratch_min = 4096;
    nt_program *wide = nt_compile(y, &d);
    CLEAR(d), d.share_scratch = wide;
    tap_ok(wide && nt_compile(nt_sum(nt_exp(waves(NT_SHAPE(500), 0.3))), &d) != NULL, "compile: .scratch_min makes room for a larger sharer");
    CLEAR(d), d.budget = nt_report(wide).peak;
    tap_ok(nt_compile(y, &d) != NULL, "compile: .budget of the peak");
    d.budget--;
    tap_ok(nt_compile(y, &d) == NULL && nt_error_status(t) == NT_ERROR_BUDGET, "compile: and of one byte less");
    nt_error_clear(t);
    int asked = 0;
    CLEAR(d), d.cancel.asked = always, d.cancel.user = &asked;
    tap_ok(nt_run(nt_compile(y, &d)) == NT_CANCELLED && asked == 1, "compile: .cancel is asked, with its user");
}

static void jacobians(void) {
    nt_tensor *x = waves(NT_SHAPE(3), 1.1), *y = nt_tanh(nt_matmul(waves(NT_SHAPE(5, 3), 0.7), x)), *plain = nt_jacobian(y, x, NULL);
    nt_jacobian_desc d;
    CLEAR(d);
    tap_ok(same(plain, nt_jacobian(y, x, &d)), "jacobian: NULL is all zeros");
    d.by = NT_BY_COLUMNS;
    tap_ok(same(plain, nt_jacobian(y, x, &d)), "jacobian: .by zero takes the three columns, not the five rows");
    d.by = NT_BY_ROWS;
    nt_program *rows = nt_compile(nt_jacobian(y, x, &d), NULL), *columns = nt_compile(plain, NULL);
    tap_ok(nt_report(rows).flops != nt_report(columns).flops, "jacobian: .by rows is another program");
    d.chunk = 1;
    nt_program *single = nt_compile(nt_jacobian(y, x, &d), NULL);
    tap_ok(nt_report(single).instructions > nt_report(rows).instructions, "jacobian: .chunk 1 takes one row after the other, zero all at once");
    d.chunk = 99;
    tap_is_int(nt_report(nt_compile(nt_jacobian(y, x, &d), NULL)).instructions, nt_report(rows).instructions, "jacobian: a .chunk of more than there is takes all");
    d.chunk = -1;
    tap_ok(nt_jacobian(y, x, &d) == NULL && nt_error_status(t) == NT_ERROR_ARGUMENT, "jacobian: a negative .chunk is an error");
    nt_error_clear(t);
}

// The output of a dense layer or a convolution with these numbers.
static nt_tensor *last_kernel;
static nt_tensor *numbered(nt_parameterization p, double W, double b, double s0, double s1, int convolution) {
    nt_tensor *x = convolution ? waves(NT_SHAPE(2, 5, 4), 0.7) : waves(NT_SHAPE(3, 5), 0.7);
    nt_dense_desc d;
    nt_conv_layer_desc c;
    CLEAR(d), CLEAR(c);
    d.parameterization = c.parameterization = p, d.W_std = c.W_std = W, d.b_std = c.b_std = b, d.s[0] = c.s[0] = s0, d.s[1] = c.s[1] = s1;
    nt_layer *l = with(convolution ? nt_conv_layer(t, 5, NT_WINDOW(3), &c) : nt_dense_layer(t, 5, &d), x);
    last_kernel = l ? nt_parameters(l).items[0] : NULL;
    return l ? nt_apply(l, x, NULL) : NULL;
}

static void wide_numbers(void) {
    for (int c = 0; c < 2; c++) {
        const char *what = c ? "conv layer" : "dense layer";
        nt_tensor *plain = numbered(NT_PARAM_STANDARD, 0, 0, 0, 0, c), *one = numbered(NT_PARAM_STANDARD, 1, 0, 0, 0, c), *ntk = numbered(NT_PARAM_NTK, 0, 0, 0, 0, c);
        tap_ok(same(plain, numbered(NT_PARAM_STANDARD, 0, 0, 1, 1, c)), "%s: .s are 1", what);
        tap_ok(!same(plain, one) && same(one, numbered(NT_PARAM_STANDARD, 1, NT_ZERO, 1, 1, c)), "%s: .W_std takes a normal kernel in place of flax's, .b_std is 0", what);
        tap_ok(same(numbered(NT_PARAM_STANDARD, 0, 0.5, 0, 0, c), numbered(NT_PARAM_STANDARD, 1, 0.5, 0, 0, c)), "%s: .W_std is 1 where .b_std is given", what);
        tap_ok(!same(one, numbered(NT_PARAM_STANDARD, 1, 0.5, 0, 0, c)), "%s: .b_std", what);
        tap_ok(same(ntk, numbered(NT_PARAM_NTK, 1, NT_ZERO, 0, 0, c)) && !same(ntk, one), "%s: .parameterization, 1 and 0 are its defaults", what);
        tap_ok(!same(ntk, numbered(NT_PARAM_NTK, 2, 0, 0, 0, c)) && !same(ntk, numbered(NT_PARAM_NTK, 0, 1, 0, 0, c)), "%s: .W_std and .b_std of it", what);
        nt_tensor *wide = numbered(NT_PARAM_STANDARD, 0, 0, 0, 3, c);
        tap_ok(wide && wide->shape[wide->rank - 1] == 15, "%s: .s[1] makes wider", what);
        nt_tensor *doubled = numbered(NT_PARAM_STANDARD, 1, 0, 4, 0, c), *kernel = last_kernel; // twice the kernel, half the product
        numbered(NT_PARAM_STANDARD, 1, 0, 0, 0, c);
        tap_ok(same(one, doubled) && same(kernel, nt_scale(last_kernel, 2)), "%s: .s[0]", what);
    }
    nt_tensor *x = waves(NT_SHAPE(2, 4, 3), 1.1);
    nt_layer_norm_desc n;
    CLEAR(n), n.axes.count = 1, n.axes.axis[0] = -1;
    nt_tensor *last = nt_apply(with(nt_layer_norm_layer(t, NULL), x), x, NULL);
    tap_ok(same(last, nt_apply(with(nt_layer_norm_layer(t, &n), x), x, NULL)), "layer norm: .axes are the last one");
    n.axes.count = 2, n.axes.axis[1] = 1;
    tap_ok(!same(last, nt_apply(with(nt_layer_norm_layer(t, &n), x), x, NULL)), "layer norm: .axes");
    nt_resize_desc r;
    CLEAR(r);
    nt_shape small = NT_SHAPE(2, 2, 3);
    tap_ok(same(nt_resize_with(x, small, NULL), nt_resize_with(x, small, &r)) && same(nt_resize_with(x, small, NULL), nt_resize(x, small, NT_NEAREST)), "resize: NULL is nearest");
    r.method = NT_BILINEAR;
    nt_tensor *smooth = nt_resize_with(x, small, &r);
    tap_ok(same(smooth, nt_resize(x, small, NT_BILINEAR)), "resize: .method, smoothed");
    r.no_antialias = 1;
    tap_ok(!same(smooth, nt_resize_with(x, small, &r)), "resize: .no_antialias");
}

static nt_tensor *attended(const nt_global_attention_desc *d) {
    nt_tensor *x = waves(NT_SHAPE(2, 4, 3), 0.7);
    nt_layer *l = with(nt_global_self_attention_layer(t, d), x);
    return l ? nt_apply(l, x, NULL) : NULL;
}

static void wide_attention(void) {
    nt_global_attention_desc base, d;
    CLEAR(base);
    base.features = 3, base.key = base.value = base.heads = 2, base.b_std = 1;
    nt_tensor *plain = attended(&base);
    d = base, d.key_std = d.value_std = d.query_std = d.out_std = 1, d.alpha = d.p = d.position_std = 5, d.position_channels = 7, d.decay = NT_POSITION_INV;
    tap_ok(same(plain, attended(&d)), "global attention: standard deviations are 1; without positions their numbers do not count");
    double *stds[4] = { &d.key_std, &d.value_std, &d.query_std, &d.out_std };
    for (int k = 0; k < 4; k++) {
        d = base, *stds[k] = 3;
        tap_ok(!same(plain, attended(&d)), "global attention: standard deviation %d is seen", k);
        d = base, *stds[k] = NT_ZERO;
        tap_ok(!same(plain, attended(&d)), "global attention: standard deviation %d may be 0", k);
    }
    d = base, d.b_std = 0;
    nt_global_attention_desc zero = base, off = base;
    zero.b_std = NT_ZERO, off.bias = NT_BIAS_OFF;
    tap_ok(!same(plain, attended(&d)) && same(attended(&d), attended(&zero)) && same(attended(&d), attended(&off)), "global attention: .b_std is 0; .bias");
    d = base, d.sqrt_scaling = 1;
    tap_ok(!same(plain, attended(&d)), "global attention: .sqrt_scaling");
    d = base, d.mechanism = NT_ATTEND_ABS;
    tap_ok(!same(plain, attended(&d)), "global attention: .mechanism");
    d = base, d.position = NT_POSITION_CONCAT, d.decay = NT_POSITION_EXP;
    nt_tensor *placed = attended(&d);
    zero = d, zero.alpha = 1, zero.p = 2, zero.position_std = 1, zero.position_channels = 3;
    tap_ok(!same(plain, placed) && same(placed, attended(&zero)), "global attention: .position; .alpha 1, .p 2, .position_std 1, as many .position_channels as x has");
    for (int k = 0; k < 6; k++) {
        d = zero;
        if (k == 0) d.alpha = 0.2;
        if (k == 1) d.p = 1;
        if (k == 2) d.position_std = 2;
        if (k == 3) d.position_channels = 4;
        if (k == 4) d.position_values = 1;
        if (k == 5) d.decay = NT_POSITION_INV;
        tap_ok(!same(placed, attended(&d)), "global attention: field %d of positions is seen", k);
    }
}

int main(void) {
    t = nt_tape_open(NULL);
    jacobians();
    convolutions();
    triangles();
    pools();
    losses();
    layers();
    attentions();
    batch_norms();
    cells();
    optimizers();
    initializers();
    programs();
    wide_numbers();
    wide_attention();
    tap_ok(nt_error(t) == NULL, "no error was left behind (%s)", nt_error(t) ? nt_error(t) : "none");
    nt_tape_close(t);
    return tap_end();
}
