// models.h: networks out of public layers and operations, with flax's parameter names, for tests and benchmarks. A function returns a
// layer that nt_init and nt_apply take; two models that are more than a chain (encoder-decoder, GPT) are structs with a function that
// records them. The vision transformer is in the library: nt_vit_layer.
#ifndef MODELS_H
#define MODELS_H
#include "nttrain.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static inline nt_layer *model_dense(nt_tape *t, nt_dtype dtype, int features) {
    nt_dense_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = dtype;
    return nt_dense_layer(t, features, &d);
}

static inline nt_layer *model_conv(nt_tape *t, nt_dtype dtype, int features, int window, int stride, nt_padding padding, nt_bias bias) {
    nt_conv_layer_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = dtype, d.bias = bias, d.conv.padding = padding, d.conv.stride[0] = d.conv.stride[1] = stride;
    return nt_conv_layer(t, features, NT_WINDOW(window, window), &d);
}

static inline nt_layer *model_layer_norm(nt_tape *t, nt_dtype dtype, double eps) {
    nt_layer_norm_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = dtype, d.eps = eps;
    return nt_layer_norm_layer(t, &d);
}

// The layer under the name "text" with the number i in it, as printf.
static inline nt_layer *model_numbered(nt_layer *layer, const char *format, int i) {
    char name[64];
    snprintf(name, sizeof name, format, i);
    return nt_layer_named(layer, name);
}

// ---------------------------------------------------------------------------------------------------------------------
// Chains
// ---------------------------------------------------------------------------------------------------------------------
static inline nt_layer *model_mlp(nt_tape *t, nt_dtype dtype, int count, const int64_t *hidden, int out, nt_tensor *(*act)(nt_tensor *x)) {
    nt_layer *net = NT_SERIAL(t, nt_identity_layer(t));
    for (int k = 0; k < count; k++) net = NT_SERIAL(t, net, model_dense(t, dtype, (int)hidden[k]), nt_activation_layer(t, act));
    return NT_SERIAL(t, net, model_dense(t, dtype, out));
}

static inline nt_layer *model_lenet(nt_tape *t, nt_dtype dtype, int a, int b, int hidden, int out) {
    return NT_SERIAL(t, model_conv(t, dtype, a, 5, 1, NT_SAME, NT_BIAS_ON), nt_relu_layer(t), nt_avg_pool_layer(t, NT_WINDOW(2, 2)),
                     model_conv(t, dtype, b, 3, 1, NT_VALID, NT_BIAS_ON), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_flatten_layer(t),
                     model_dense(t, dtype, hidden), nt_tanh_layer(t), model_dense(t, dtype, out));
}

static inline nt_layer *model_group_norm(nt_tape *t, nt_dtype dtype, int groups) {
    nt_layer_norm_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = dtype;
    return nt_group_norm_layer(t, groups, &d);
}

// Two convolutions beside a skip, which is a 1x1 convolution where the shape changes.
static inline nt_layer *model_resnet_block(nt_tape *t, nt_dtype dtype, int width, int stride, int groups, int changes) {
    nt_layer *skip = changes ? nt_layer_named(model_conv(t, dtype, width, 1, stride, NT_SAME, NT_BIAS_OFF), "proj") : nt_identity_layer(t);
    nt_layer *main = NT_SERIAL(t, model_conv(t, dtype, width, 3, stride, NT_SAME, NT_BIAS_OFF), model_group_norm(t, dtype, groups), nt_relu_layer(t),
                               model_conv(t, dtype, width, 3, 1, NT_SAME, NT_BIAS_OFF), model_group_norm(t, dtype, groups));
    return NT_SERIAL(t, nt_sum_layer(t, NT_LAYERS(skip, main)), nt_relu_layer(t));
}

// For images of this height and width.
static inline nt_layer *model_resnet(nt_tape *t, nt_dtype dtype, int64_t height, int64_t width, int count, const int64_t *widths, int groups, int out) {
    nt_layer *stem = nt_layer_named(model_conv(t, dtype, (int)widths[0], 3, 1, NT_SAME, NT_BIAS_OFF), "stem");
    nt_layer *net = NT_SERIAL(t, stem, nt_layer_named(model_group_norm(t, dtype, groups), "stem_norm"), nt_relu_layer(t));
    for (int k = 0; k < count; k++) {
        int stride = k ? 2 : 1, changes = k && (widths[k] != widths[k - 1] || height > 1 || width > 1);
        net = NT_SERIAL(t, net, model_numbered(model_resnet_block(t, dtype, (int)widths[k], stride, groups, changes), "Block_%d", k));
        height = (height + stride - 1) / stride, width = (width + stride - 1) / stride;
    }
    return NT_SERIAL(t, net, nt_global_avg_pool_layer(t), nt_layer_named(model_dense(t, dtype, out), "head"));
}

// From the smallest image outwards: each level keeps its image beside what the next smaller level makes of it.
static inline nt_layer *model_unet(nt_tape *t, nt_dtype dtype, int levels, const int64_t *widths, int out) {
    nt_layer *net = NULL;
    for (int i = levels - 1; i >= 0; i--) {
        nt_layer *down = model_numbered(model_conv(t, dtype, (int)widths[i], 3, 1, NT_SAME, NT_BIAS_ON), "down_%d", i);
        if (!net) {
            net = NT_SERIAL(t, down, nt_relu_layer(t));
            continue;
        }
        nt_layer *smaller = NT_SERIAL(t, nt_max_pool_layer(t, NT_WINDOW(2, 2)), net, nt_upsample_layer(t, NT_WINDOW(2, 2)));
        nt_layer *up = model_numbered(model_conv(t, dtype, (int)widths[i], 3, 1, NT_SAME, NT_BIAS_ON), "up_%d", i);
        net = NT_SERIAL(t, down, nt_relu_layer(t), nt_concat_layer(t, NT_LAST, NT_LAYERS(nt_identity_layer(t), smaller)), up, nt_relu_layer(t));
    }
    return NT_SERIAL(t, net, nt_layer_named(model_conv(t, dtype, out, 1, 1, NT_SAME, NT_BIAS_ON), "head"));
}

static inline nt_layer *model_rnn(nt_tape *t, nt_dtype dtype, int lstm, int hidden, int out) {
    nt_cell_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = dtype;
    nt_layer *cell = nt_layer_named(lstm ? nt_lstm_layer(t, hidden, &d) : nt_gru_layer(t, hidden, &d), "cell");
    return NT_SERIAL(t, cell, nt_token_layer(t, -1), nt_layer_named(model_dense(t, dtype, out), "head"));
}

// ---------------------------------------------------------------------------------------------------------------------
// A list of parameters out of several layers and variables
// ---------------------------------------------------------------------------------------------------------------------
enum { MODEL_PARAMS = 4096 };
typedef struct model_params { int count; nt_tensor *items[MODEL_PARAMS]; } model_params;

static inline void model_add(model_params *p, nt_tensor *x) {
    if (x && p->count < MODEL_PARAMS) p->items[p->count++] = x;
}

// Initialises the layer for x, adds its parameters to the list and records it.
static inline nt_tensor *model_apply(model_params *p, nt_layer *layer, nt_key_value key, nt_tensor *x) {
    if (nt_init(layer, key, x) != NT_OK) return NULL;
    nt_params own = nt_parameters(layer);
    for (int k = 0; k < own.count; k++) model_add(p, own.items[k]);
    return nt_apply(layer, x, NULL);
}

// ---------------------------------------------------------------------------------------------------------------------
// Encoder and decoder: x to (mu, log variance), a latent for each noise (samples, batch, latent), each decoded; one number for each
// sample and example: minus the loss (elbo) or the log weight (iwae). `looped`: one sample after the other.
// ---------------------------------------------------------------------------------------------------------------------
static inline nt_tensor *model_sum_last(nt_tensor *x) { return nt_sum_axes(x, NT_AXES(NT_LAST), 0); }

typedef struct model_encdec { int hidden, latent, iwae, looped; nt_tensor *(*act)(nt_tensor *x); } model_encdec;

// Of one sample (batch, latent) or of all (samples, batch, latent).
static inline nt_tensor *model_encdec_sample(const model_encdec *d, nt_layer *decoder, nt_tensor *x, nt_tensor *mu, nt_tensor *lv, nt_tensor *noise) {
    nt_tensor *z = nt_add(mu, nt_mul(nt_exp(nt_scale(lv, 0.5)), noise));
    nt_tensor *r = nt_scale(model_sum_last(nt_square(nt_sub(nt_apply(decoder, z, NULL), x))), -0.5);
    if (!d->iwae) return nt_sub(r, nt_scale(model_sum_last(nt_add_scalar(nt_sub(nt_add(nt_exp(lv), nt_square(mu)), lv), -1)), 0.5));
    return nt_add(nt_sub(r, nt_scale(model_sum_last(nt_square(z)), 0.5)), nt_scale(model_sum_last(nt_add(nt_square(noise), lv)), 0.5));
}

static inline nt_tensor *model_encdec_record(nt_tape *t, nt_dtype dtype, model_params *p, nt_key_value key, nt_tensor *x, nt_tensor *noise, const model_encdec *d) {
    nt_layer *encoder = NT_SERIAL(t, nt_layer_named(model_dense(t, dtype, d->hidden), "enc_0"), nt_activation_layer(t, d->act));
    nt_tensor *h = model_apply(p, encoder, key, x);
    nt_tensor *mu = model_apply(p, nt_layer_named(model_dense(t, dtype, d->latent), "enc_mean"), key, h);
    nt_tensor *lv = model_apply(p, nt_layer_named(model_dense(t, dtype, d->latent), "enc_logvar"), key, h);
    nt_layer *decoder = NT_SERIAL(t, nt_layer_named(model_dense(t, dtype, d->hidden), "dec_0"), nt_activation_layer(t, d->act),
                                  nt_layer_named(model_dense(t, dtype, x ? (int)x->shape[x->rank - 1] : 1), "dec_1"));
    if (!model_apply(p, decoder, key, mu)) return NULL; // its parameters
    if (!d->looped) return model_encdec_sample(d, decoder, x, mu, lv, noise);
    nt_map *m = nt_map_begin(t, noise ? noise->shape[0] : 1, NULL);
    nt_tensor *each = nt_map_stack(m, model_encdec_sample(d, decoder, x, mu, lv, nt_map_slice(m, noise)));
    nt_map_end(m);
    return each;
}

// ---------------------------------------------------------------------------------------------------------------------
// A tiny GPT: the embedding is the output's matrix as well
// ---------------------------------------------------------------------------------------------------------------------
typedef struct model_gpt_heads { int heads; } model_gpt_heads; // outlives the layer

// q, k and v side by side (batch, time, 3 dim) to the attended values (batch, time, dim).
static inline nt_tensor *model_split_attention(void *user, nt_tensor *x) {
    int heads = ((model_gpt_heads *)user)->heads;
    nt_attention_desc d;
    nt_tensor *part[3] = { NULL, NULL, NULL };
    memset(&d, 0, sizeof d);
    d.causal = 1;
    if (!x) return NULL;
    int64_t batch = x->shape[0], time = x->shape[1], dim = x->shape[2] / 3;
    for (int k = 0; k < 3; k++) part[k] = nt_reshape(nt_slice_axis(x, 2, k * dim, (k + 1) * dim), NT_SHAPE(batch, time, heads, dim / heads));
    return nt_reshape(nt_attention(part[0], part[1], part[2], NULL, &d), NT_SHAPE(batch, time, dim));
}

static inline nt_layer *model_gpt_block(nt_tape *t, nt_dtype dtype, int dim, model_gpt_heads *heads) {
    nt_function attend = { model_split_attention, NULL };
    attend.user = heads;
    nt_layer *attention = NT_SERIAL(t, nt_layer_named(model_layer_norm(t, dtype, 1e-5), "ln_1"), nt_layer_named(model_dense(t, dtype, 3 * dim), "attn_qkv"),
                                    nt_function_layer(t, attend), nt_layer_named(model_dense(t, dtype, dim), "attn_out"));
    nt_layer *mlp = NT_SERIAL(t, nt_layer_named(model_layer_norm(t, dtype, 1e-5), "ln_2"), nt_layer_named(model_dense(t, dtype, 4 * dim), "mlp_in"),
                              nt_gelu_tanh_layer(t), nt_layer_named(model_dense(t, dtype, dim), "mlp_out"));
    return NT_SERIAL(t, nt_sum_layer(t, NT_LAYERS(nt_identity_layer(t), attention)), nt_sum_layer(t, NT_LAYERS(nt_identity_layer(t), mlp)));
}

static inline nt_tensor *model_table(nt_tape *t, nt_dtype dtype, nt_key_value key, const char *name, int64_t rows, int64_t dim) {
    nt_init_desc init;
    memset(&init, 0, sizeof init);
    init.kind = NT_INIT_NORMAL, init.scale = 0.02;
    nt_tensor *x = nt_name(nt_variable(t, dtype, NT_SHAPE(rows, dim), NULL), name);
    if (x) nt_initialize(nt_key_flax(key, name, 1), &init, dtype, NT_SHAPE(rows, dim), nt_data(x));
    return x;
}

// tokens i32 (batch, time) to logits (batch, time, vocab).
static inline nt_tensor *model_gpt(nt_tape *t, nt_dtype dtype, model_params *p, nt_key_value key, nt_tensor *tokens, int64_t vocab, int64_t length, int dim, int depth,
                                   model_gpt_heads *heads) {
    nt_tensor *wte = model_table(t, dtype, key, "wte", vocab, dim), *wpe = model_table(t, dtype, key, "wpe", length, dim);
    nt_layer *net = NT_SERIAL(t, nt_identity_layer(t));
    if (!tokens || !wpe) return NULL;
    model_add(p, wte);
    model_add(p, wpe);
    for (int k = 0; k < depth; k++) net = NT_SERIAL(t, net, model_numbered(model_gpt_block(t, dtype, dim, heads), "h_%d", k));
    net = NT_SERIAL(t, net, nt_layer_named(model_layer_norm(t, dtype, 1e-5), "ln_f"));
    nt_tensor *x = nt_add(nt_gather(wte, tokens, 0), nt_slice_axis(wpe, 0, 0, tokens->shape[1]));
    return nt_matmul(model_apply(p, net, key, x), nt_swap_axes(wte, 0, 1));
}
#endif
