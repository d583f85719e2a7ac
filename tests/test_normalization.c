// Normalizations against plain loops; running statistics; and what fused operations keep for the backward pass.
#include "nttrain.h"
#include "refused.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 40000 };

static double wave(int64_t i, int which) { return sin(0.37 * (double)i + 1.3 * which) + 0.3 * cos(2.1 * (double)i * (which + 1)) + 0.1 * which; }

static nt_tensor *waves(nt_tape *t, nt_dtype dtype, nt_shape shape, int which) {
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) n *= shape.size[k];
    void *data = calloc((size_t)n + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++) {
        if (dtype == NT_F64) ((double *)data)[i] = wave(i, which);
        else ((float *)data)[i] = (float)wave(i, which);
    }
    nt_tensor *x = nt_variable(t, dtype, shape, data);
    free(data);
    return x;
}

// ---------------------------------------------------------------------------------------------------------------------
// Values: every element is told which mean it belongs to
// ---------------------------------------------------------------------------------------------------------------------
static int64_t owner(nt_shape s, uint32_t over, int groups, int64_t i) { // over: axes that are averaged over; groups: of the last one
    int64_t id = 0, step = 1;
    for (int k = s.rank - 1; k >= 0; k--) {
        int64_t at = i % s.size[k], size = s.size[k];
        i /= s.size[k];
        if (k == s.rank - 1 && groups) at = at / (size / groups), size = groups;
        else if (over >> k & 1) continue;
        id += at * step, step *= size;
    }
    return id;
}

static void naive(nt_shape s, const double *x, uint32_t over, int groups, int rms, double eps, double *out) {
    static double mean[MOST], var[MOST], count[MOST];
    int64_t n = 1;
    for (int k = 0; k < s.rank; k++) n *= s.size[k];
    memset(mean, 0, sizeof mean), memset(var, 0, sizeof var), memset(count, 0, sizeof count);
    for (int64_t i = 0; i < n; i++) mean[owner(s, over, groups, i)] += x[i], count[owner(s, over, groups, i)]++;
    for (int64_t i = 0; i < n; i++) {
        int64_t o = owner(s, over, groups, i);
        double d = x[i] - (rms ? 0 : mean[o] / count[o]);
        var[o] += d * d, out[i] = d;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t o = owner(s, over, groups, i);
        out[i] /= sqrt(var[o] / count[o] + eps);
    }
}

static void expect(nt_tensor *y, nt_tensor *x, uint32_t over, int groups, int rms, const char *what) {
    static double got[MOST], want[MOST];
    double worst = 0;
    if (!y || nt_eval(y, got) != NT_OK) {
        tap_ok(0, "%s: %s", what, nt_error(x->tape));
        return;
    }
    naive(nt_shape_of(x), (double *)nt_data(x), over, groups, rms, 0.01, want);
    for (int64_t i = 0; i < nt_size(x); i++)
        if (!(fabs(got[i] - want[i]) <= worst)) worst = fabs(got[i] - want[i]);
    tap_ok(worst < 1e-12, "%s (%g)", what, worst);
}

static void values(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F64, NT_SHAPE(3, 5, 4, 6), 0), *row = waves(t, NT_F64, NT_SHAPE(4, 12), 1), *large = waves(t, NT_F64, NT_SHAPE(2, 1500, 12), 2);
    expect(nt_layer_norm(x, NULL, NULL, 0.01), x, 1 << 3, 0, 0, "layer norm");
    expect(nt_layer_norm_axes(x, NULL, NULL, NT_AXES(-1, -2), 0.01), x, 3 << 2, 0, 0, "layer norm over the last two axes");
    expect(nt_layer_norm_axes(x, NULL, NULL, NT_AXES(1, 2), 0.01), x, 3 << 1, 0, 0, "layer norm over two axes in the middle");
    expect(nt_layer_norm_axes(x, NULL, NULL, NT_AXES(0, 2), 0.01), x, 5, 0, 0, "layer norm over axes apart");
    expect(nt_layer_norm_axes(x, NULL, NULL, NT_AXES(0, 1, 2, 3), 0.01), x, 15, 0, 0, "layer norm over everything");
    expect(nt_rms_norm(x, NULL, 0.01), x, 1 << 3, 0, 1, "rms norm");
    expect(nt_group_norm(x, NULL, NULL, 2, 0.01), x, 3 << 1, 2, 0, "group norm");
    expect(nt_group_norm(x, NULL, NULL, 1, 0.01), x, 3 << 1, 1, 0, "group norm of one group");
    expect(nt_group_norm(row, NULL, NULL, 4, 0.01), row, 0, 4, 0, "group norm without space");
    expect(nt_group_norm(large, NULL, NULL, 3, 0.01), large, 1 << 1, 3, 0, "group norm in several chunks");
    expect(nt_instance_norm(x, NULL, NULL, 0.01), x, 3 << 1, 0, 0, "instance norm");
    expect(nt_batch_norm(x, NULL, NULL, 0.01), x, 7, 0, 0, "batch norm");
    expect(nt_batch_norm(large, NULL, NULL, 0.01), large, 3, 0, 0, "batch norm in several chunks");
    // scale and bias: one for each channel, or one number
    static double a[360], b[360];
    nt_tensor *scale = waves(t, NT_F64, NT_SHAPE(6), 3), *bias = waves(t, NT_F64, NT_SHAPE(6), 4), *one = nt_scalar(t, NT_F64, 2);
    nt_eval(nt_group_norm(x, scale, bias, 3, 0.01), a), nt_eval(nt_add(nt_mul(nt_group_norm(x, NULL, NULL, 3, 0.01), scale), bias), b);
    double worst = 0;
    for (int i = 0; i < 360; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    tap_ok(worst < 1e-14, "scale and bias are those of the channels");
    nt_eval(nt_layer_norm(x, one, NULL, 0.01), a), nt_eval(nt_scale(nt_layer_norm(x, NULL, NULL, 0.01), 2), b);
    tap_ok(!memcmp(a, b, sizeof a), "one number scales all");
    nt_tensor *whole = waves(t, NT_F64, NT_SHAPE(4, 6), 5);
    nt_eval(nt_layer_norm_axes(x, whole, NULL, NT_AXES(2, 3), 0.01), a), nt_eval(nt_mul(nt_layer_norm_axes(x, NULL, NULL, NT_AXES(2, 3), 0.01), whole), b);
    worst = 0;
    for (int i = 0; i < 360; i++) worst = fmax(worst, fabs(a[i] - b[i]));
    tap_ok(worst < 1e-14, "a scale of the shape of the axes");
    tap_ok(!nt_error(t), "no error: %s", nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
}

// A mean of 4096 beside a deviation of 1: E[x^2] - mean^2 in f32 would be off by whole units.
static void large_mean(void) {
    static float data[4000 * 4], got[4000 * 4];
    nt_tape *t = nt_tape_open(NULL);
    for (int i = 0; i < 4000 * 4; i++) data[i] = 4096 + (float)(i / 4 % 2 ? 1 : -1);
    nt_eval(nt_batch_norm(nt_constant(t, NT_F32, NT_SHAPE(4000, 4), data), NULL, NULL, 0), got);
    double worst = 0;
    for (int i = 0; i < 4000 * 4; i++) worst = fmax(worst, fabs(got[i] - (i / 4 % 2 ? 1.0 : -1.0)));
    tap_ok(worst < 2e-3, "a large mean does not spoil the variance (%g)", worst);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Batch norm as a layer
// ---------------------------------------------------------------------------------------------------------------------
static void running(int k_steps) {
    enum { N = 6, C = 3, RUNS = 4 };
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(N, C));
    nt_batch_norm_desc d;
    memset(&d, 0, sizeof d);
    d.momentum = 0.75, d.eps = 0.5;
    nt_layer *norm = nt_batch_norm_layer(t, &d), *net = NT_SERIAL(t, norm, nt_dense_layer(t, 2, NULL));
    tap_ok(nt_init(net, nt_key(1), x) == NT_OK && nt_parameters(net).count == 4 && nt_layer_state(net).count == 2, "statistics are state, not parameters");
    nt_params state = nt_layer_state(net);
    tap_ok(!strcmp(state.items[0]->name, "BatchNorm_0/mean") && !strcmp(state.items[1]->name, "BatchNorm_0/var"), "under flax's names");
    nt_apply_desc train;
    memset(&train, 0, sizeof train);
    train.train = 1;
    nt_tensor *loss = nt_mean(nt_square(nt_apply(net, x, &train)));
    nt_optimizer *opt = nt_sgd(t, NULL);
    if (k_steps) opt = nt_multi_steps(opt, k_steps);
    nt_program *step = nt_compile_step(loss, opt, NULL), *answer = nt_compile(nt_apply(norm, x, NULL), NULL);
    if (!step || !answer) { tap_ok(0, "%s", nt_error(t)); nt_tape_close(t); return; }
    double mean[C] = { 0, 0, 0 }, var[C] = { 1, 1, 1 }, worst = 0;
    float data[N * C], got[N * C];
    for (int run = 0; run < RUNS; run++) {
        for (int i = 0; i < N * C; i++) data[i] = (float)wave(i + 100 * run, 1) * (float)(1 + i % C);
        nt_write(x, data);
        tap_ok(nt_run(step) == NT_OK, "run %d", run);
        for (int c = 0; c < C; c++) {
            double m = 0, v = 0;
            for (int i = 0; i < N; i++) m += data[i * C + c] / N;
            for (int i = 0; i < N; i++) v += (data[i * C + c] - m) * (data[i * C + c] - m) / N;
            mean[c] = 0.75 * mean[c] + 0.25 * m, var[c] = 0.75 * var[c] + 0.25 * v;
        }
    }
    for (int c = 0; c < C; c++) {
        worst = fmax(worst, fabs(((float *)nt_data(state.items[0]))[c] - mean[c]));
        worst = fmax(worst, fabs(((float *)nt_data(state.items[1]))[c] - var[c]));
    }
    tap_ok(worst < 1e-5, "running statistics after %d runs, windows of %d (%g)", RUNS, k_steps, worst);
    const float *scale = (float *)nt_data(nt_parameters(net).items[0]), *bias = (float *)nt_data(nt_parameters(net).items[1]);
    nt_run(answer), nt_read(answer, 0, got);
    worst = 0;
    for (int i = 0; i < N * C; i++) worst = fmax(worst, fabs(got[i] - ((data[i] - mean[i % C]) / sqrt(var[i % C] + 0.5) * scale[i % C] + bias[i % C])));
    tap_ok(worst < 1e-5, "evaluation uses them, and changes nothing (%g)", worst);
    data[0] = NAN;
    nt_write(x, data);
    float before = *(float *)nt_data(state.items[0]);
    tap_ok(nt_run(step) == NT_NONFINITE && *(float *)nt_data(state.items[0]) == before, "a micro-batch that is not finite leaves them alone");
    nt_tape_close(t);
}

static void mistakes(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F32, NT_SHAPE(4, 3), 0), *four = waves(t, NT_F32, NT_SHAPE(4), 1);
    nt_layer *norm = nt_batch_norm_layer(t, NULL);
    nt_apply_desc train;
    memset(&train, 0, sizeof train);
    train.train = 1;
    nt_init(norm, nt_key(1), x);
    nt_tensor *twice = nt_mean(nt_square(nt_apply(norm, nt_apply(norm, x, &train), &train)));
    refused(t, nt_compile_step(twice, nt_sgd(t, NULL), NULL), NT_ERROR_ARGUMENT, "nt_compile_step|BatchNorm_0|twice", "a layer with statistics applied twice");
    nt_tensor *first = nt_mean(nt_square(nt_apply(norm, x, &train)));
    tap_ok(nt_compile_step(first, nt_sgd(t, NULL), NULL) != NULL, "two recordings, each in a step of its own, are no mistake");
    nt_tensor *still = nt_mean(nt_square(nt_apply(norm, x, NULL)));
    nt_program *p = nt_compile_step(still, nt_sgd(t, NULL), NULL);
    float before = *(float *)nt_data(nt_layer_state(norm).items[0]);
    tap_ok(p && nt_run(p) == NT_OK && *(float *)nt_data(nt_layer_state(norm).items[0]) == before, "a step through the evaluating layer trains no statistics");
    nt_compile_desc named;
    memset(&named, 0, sizeof named);
    named.params = nt_layer_state(norm);
    refused(t, nt_compile_step(still, nt_sgd(t, NULL), &named), NT_ERROR_ARGUMENT, "nt_compile_step|BatchNorm_0/mean|state", "statistics named as parameters");
    refused(t, nt_group_norm(x, NULL, NULL, 2, 1e-6), NT_ERROR_SHAPE, "nt_group_norm|[4,3]|2 groups", "three channels in two groups");
    refused(t, nt_group_norm(x, NULL, NULL, 0, 1e-6), NT_ERROR_ARGUMENT, "nt_group_norm", "no groups");
    refused(t, nt_batch_norm(four, NULL, NULL, 1e-6), NT_ERROR_SHAPE, "nt_batch_norm|[4]", "batch norm of a vector");
    refused(t, nt_instance_norm(x, four, NULL, 1e-6), NT_ERROR_SHAPE, "nt_instance_norm|scale|[4]", "a scale of another size");
    refused(t, nt_layer_norm_axes(x, NULL, NULL, NT_AXES(2), 1e-6), NT_ERROR_ARGUMENT, "nt_layer_norm_axes|2", "an axis that is not there");
    nt_axes none;
    memset(&none, 0, sizeof none);
    refused(t, nt_layer_norm_axes(x, NULL, NULL, none, 1e-6), NT_ERROR_ARGUMENT, "nt_layer_norm_axes", "no axis");
    refused(t, nt_group_norm_layer(t, 0, NULL), NT_ERROR_ARGUMENT, "nt_group_norm_layer", "a layer of no groups");
    nt_batch_norm_desc d;
    memset(&d, 0, sizeof d);
    d.momentum = 2;
    refused(t, nt_batch_norm_layer(t, &d), NT_ERROR_ARGUMENT, "nt_batch_norm_layer|momentum", "a momentum of 2");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// What is kept: a chain of blocks, op(1.01 x); the slope of the peak in the number of blocks is what one block keeps
// ---------------------------------------------------------------------------------------------------------------------
typedef nt_tensor *(*block_fn)(nt_tensor *x, int which);
static nt_tensor *block_gelu(nt_tensor *x, int which) { (void)which; return nt_gelu(x); }
static nt_tensor *block_gelu_tanh(nt_tensor *x, int which) { (void)which; return nt_gelu_tanh(x); }
static nt_tensor *block_silu(nt_tensor *x, int which) { (void)which; return nt_silu(x); }
static nt_tensor *block_softplus(nt_tensor *x, int which) { (void)which; return nt_softplus(x); }
static nt_tensor *block_relu(nt_tensor *x, int which) { (void)which; return nt_relu(x); }
static nt_tensor *block_dropout(nt_tensor *x, int which) {
    nt_axes none;
    memset(&none, 0, sizeof none);
    return nt_dropout(x, nt_key_tensor(x->tape, nt_key((uint64_t)which)), 0.1, none);
}
static nt_tensor *channels(nt_tensor *x, double value) { return nt_full(x->tape, x->dtype, NT_SHAPE(x->shape[x->rank - 1]), value); }
static nt_tensor *trained(nt_tensor *x, double value) {
    static float data[64];
    for (int i = 0; i < 64; i++) data[i] = (float)value;
    return nt_variable(x->tape, NT_F32, NT_SHAPE(x->shape[x->rank - 1]), data);
}
static nt_tensor *block_layer_norm(nt_tensor *x, int which) { (void)which; return nt_layer_norm(x, channels(x, 1.5), channels(x, 0.5), 0.1); }
static nt_tensor *block_group_norm(nt_tensor *x, int which) { (void)which; return nt_group_norm(x, channels(x, 1.5), NULL, 4, 0.1); }
static nt_tensor *block_batch_norm(nt_tensor *x, int which) { (void)which; return nt_batch_norm(x, NULL, NULL, 0.1); }
static nt_tensor *block_rms_norm(nt_tensor *x, int which) { (void)which; return nt_rms_norm(x, NULL, 0.1); }
static nt_tensor *block_attention(nt_tensor *x, int which) {
    nt_tensor *h = nt_reshape(x, NT_SHAPE(x->shape[0], x->shape[1], 4, x->shape[2] / 4));
    (void)which;
    return nt_reshape(nt_attention(h, h, h, NULL, NULL), nt_shape_of(x));
}
static nt_tensor *scales[64];
static int scale_count;
static nt_tensor *block_trained_norm(nt_tensor *x, int which) { // the derivative of the scale needs the normalized x: made again
    (void)which;
    scales[scale_count++] = trained(x, 1.25);
    return nt_layer_norm(x, scales[scale_count - 1], NULL, 0.1);
}

static size_t chain(block_fn block, int blocks) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = waves(t, NT_F32, NT_SHAPE(2, 32, 64), 0), *h = x;
    scale_count = 0;
    for (int k = 0; k < blocks; k++) h = block(nt_scale(h, 1.01), k);
    scales[scale_count] = x;
    nt_params wanted = { scale_count + 1, scales };
    nt_params g = nt_grads(nt_sum(nt_square(h)), wanted);
    nt_tensor *sum = nt_sum(g.items[0]);
    for (int k = 1; k < g.count; k++) sum = nt_add(sum, nt_sum(g.items[k]));
    nt_program *p = nt_compile(sum, NULL);
    size_t peak = p ? nt_report(p).peak : 0;
    if (!p) tap_note("%s", nt_error(t));
    nt_tape_close(t);
    return peak;
}

static void kept(void) {
    static const struct { block_fn block; double values; const char *what; } table[] = {
        { block_gelu, 1, "gelu keeps one value" },
        { block_gelu_tanh, 1, "gelu, tanh form, keeps one value" },
        { block_silu, 1, "silu keeps one value" },
        { block_softplus, 1, "softplus keeps one value" },
        { block_relu, 1, "relu keeps one value" },
        { block_dropout, 0, "dropout keeps its key" },
        { block_layer_norm, 1 + 2.0 / 64, "layer norm keeps x and two numbers a row" },
        { block_trained_norm, 1 + 2.0 / 64 + 3.0 / 64, "so does layer norm with a trained scale" },
        { block_group_norm, 1 + 16.0 / 4096, "group norm keeps x and two numbers a group" },
        { block_batch_norm, 1 + 128.0 / 4096, "batch norm keeps x and two numbers a channel" },
        { block_rms_norm, 1 + 2.0 / 64, "rms norm keeps x and two numbers a row" },
        { block_attention, 1, "attention keeps q, k and v" },
    };
    size_t value = sizeof(float) * 2 * 32 * 64;
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        size_t few = chain(table[k].block, 8), many = chain(table[k].block, 24);
        double slope = ((double)many - (double)few) / 16 / (double)value;
        tap_ok(few && slope <= table[k].values + 0.02, "%s (%.3f)", table[k].what, slope); // buffers are rounded up to 64 bytes
    }
}

static void cross_entropy(void) { // the gradient of the logits is the only value beside the logits
    enum { N = 64, CLASSES = 500 };
    static int32_t numbers[N];
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *w = waves(t, NT_F32, NT_SHAPE(N, CLASSES), 1), *label = nt_constant(t, NT_I32, NT_SHAPE(N), numbers);
    nt_tensor *loss = nt_mean(nt_cross_entropy(nt_scale(w, 1.5), label));
    nt_program *p = nt_compile(nt_grad(loss, w), NULL);
    size_t value = sizeof(float) * N * CLASSES, peak = p ? nt_report(p).peak : 0;
    tap_ok(peak && peak < 2 * value + 4096, "cross-entropy: logits and their gradient, nothing else (%.2f)", (double)peak / (double)value);
    nt_tape_close(t);
}

int main(void) {
    values();
    large_mean();
    running(0);
    running(2);
    mistakes();
    kept();
    cross_entropy();
    return tap_end();
}
