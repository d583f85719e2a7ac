// Layers and training steps: flax's own parameters and masks, names, other parameters than a layer's own, and what windows of
// micro-batches promise. The expected numbers are flax's documentation, or one large batch by nt_grads.
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <string.h>

static int near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * (1 + fabs(b)); }

static void flax_numbers(void) {
    nt_tape *t = nt_tape_open(NULL);
    const float ones[4] = { 1, 1, 1, 1 };
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(1, 3), ones), *row = nt_constant(t, NT_F32, NT_SHAPE(1, 4), ones);
    nt_layer *dense = NT_SERIAL(t, nt_dense_layer(t, 4, NULL)), *drop = NT_SERIAL(t, nt_dropout_layer(t, 0.5));
    nt_apply_desc training;
    float y[4] = { 0, 0, 0, 0 };
    memset(&training, 0, sizeof training);
    training.train = 1;
    training.key = nt_key(1);
    tap_ok(nt_init(dense, nt_key(0), x) == NT_OK && nt_init(drop, nt_key(0), row) == NT_OK, "parameters are made");
    nt_eval(nt_apply(dense, x, NULL), y);
    tap_ok(near(y[0], -0.1787553, 1e-6) && near(y[1], 1.6255446, 1e-6) && near(y[2], -1.2431065, 1e-6) && near(y[3], -0.0255401, 1e-6),
           "flax's Dense(4) of ones under key 0");
    nt_eval(nt_apply(drop, row, &training), y);
    tap_ok(y[0] == 2 && y[1] == 2 && y[2] == 0 && y[3] == 0, "flax's Dropout(0.5) of ones under key 1");
    nt_eval(nt_apply(drop, row, NULL), y);
    tap_ok(y[0] == 1 && y[3] == 1, "no dropout in evaluation");
    nt_tape_close(t);
}

static void names_and_sharing(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(2, 5));
    nt_layer *shared = nt_dense_layer(t, 5, NULL);
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 5, NULL), nt_residual_layer(t, NT_SERIAL(t, nt_layer_norm_layer(t, NULL), shared, nt_relu_layer(t), shared)),
                              nt_dense_layer(t, 3, NULL));
    static const char *const expected[] = { "Dense_0/kernel", "Dense_0/bias", "Residual_0/LayerNorm_0/scale", "Residual_0/LayerNorm_0/bias", "Residual_0/Dense_0/kernel",
                                            "Residual_0/Dense_0/bias", "Dense_1/kernel", "Dense_1/bias" };
    tap_ok(nt_init(net, nt_key(3), x) == NT_OK, "a net with a residual and a shared layer");
    nt_params p = nt_parameters(net);
    int same = p.count == 8;
    for (int k = 0; k < p.count && same; k++) same = strcmp(p.items[k]->name, expected[k]) == 0;
    tap_ok(same, "parameters are named by their paths, a shared layer once");
    nt_params frozen = nt_freeze(t, p, NULL);
    nt_apply_desc other;
    float numbers[10], a[6], b[6];
    for (int k = 0; k < 10; k++) numbers[k] = (float)sin(k);
    memset(&other, 0, sizeof other);
    other.params = frozen;
    nt_write(x, numbers);
    nt_tensor *own = nt_apply(net, x, NULL), *given = nt_apply(net, x, &other);
    nt_eval(own, a), nt_eval(given, b);
    tap_ok(memcmp(a, b, sizeof a) == 0, "frozen copies give the same bits");
    memset(nt_data(p.items[0]), 0, nt_bytes(p.items[0]));
    nt_eval(own, a), nt_eval(given, b);
    tap_ok(memcmp(a, b, sizeof a) != 0, "and stay when the parameters change");
    tap_ok(nt_assign(frozen.items[0], p.items[0]) == NULL && nt_error_status(t) == NT_ERROR_ARGUMENT, "a frozen variable is not assigned");
    nt_error_clear(t);
    tap_ok(nt_compile_step(nt_mean(given), nt_sgd(t, NULL), NULL) == NULL, "nor trained");
    nt_tape_close(t);
}

enum { ROWS = 24, WIDTH = 3, CLASSES = 4 };
typedef struct regression { nt_tape *t; nt_tensor *x, *y, *weight, *w, *loss; nt_program *step; } regression;

static const float *all_x(void) {
    static float x[ROWS * WIDTH]; // the test's own data, the same every time
    for (int k = 0; k < ROWS * WIDTH; k++) x[k] = (float)cos(1.7 * k);
    return x;
}

static regression start(int rows, int k, int optax) {
    regression r;
    nt_multi_steps_desc multi;
    nt_sgd_desc sgd;
    nt_compile_desc desc;
    memset(&r, 0, sizeof r), memset(&multi, 0, sizeof multi), memset(&sgd, 0, sizeof sgd), memset(&desc, 0, sizeof desc);
    float first[WIDTH * CLASSES];
    for (int i = 0; i < WIDTH * CLASSES; i++) first[i] = (float)sin(2.3 * i);
    r.t = nt_tape_open(NULL);
    r.x = nt_input(r.t, NT_F32, NT_SHAPE(rows, WIDTH)), r.y = nt_input(r.t, NT_I32, NT_SHAPE(rows)), r.weight = nt_input(r.t, NT_F32, NT_SCALAR);
    r.w = nt_variable(r.t, NT_F32, NT_SHAPE(WIDTH, CLASSES), first);
    r.loss = nt_mean(nt_cross_entropy(nt_matmul(r.x, r.w), r.y));
    sgd.learning_rate = 0.5, multi.k = k, multi.optax_exact = optax, desc.weight = r.weight;
    nt_optimizer *o = nt_sgd(r.t, &sgd);
    r.step = nt_compile_step(r.loss, k ? nt_multi_steps_with(o, &multi) : o, &desc);
    return r;
}

static nt_status feed(regression *r, int from, float weight) {
    int32_t labels[ROWS];
    for (int i = 0; i < ROWS; i++) labels[i] = (from + i) * 7 % CLASSES;
    nt_write(r->x, all_x() + from * WIDTH);
    nt_write(r->y, labels);
    nt_write(r->weight, &weight);
    return nt_run(r->step);
}

static double farthest(const regression *a, const regression *b) {
    const float *p = (const float *)nt_data(a->w), *q = (const float *)nt_data(b->w);
    double worst = 0;
    for (int i = 0; i < WIDTH * CLASSES; i++) worst = fmax(worst, fabs((double)p[i] - (double)q[i]));
    return worst;
}

static void windows(void) {
    regression whole = start(ROWS, 0, 0);
    tap_ok(feed(&whole, 0, 1) == NT_OK && nt_event(whole.step) == NT_UPDATED && nt_update_step(whole.step) == 1, "one large batch");
    for (int optax = 0; optax < 2; optax++) {
        regression r = start(ROWS / 4, 4, optax);
        int quiet = 1;
        for (int k = 0; k < 4; k++) {
            feed(&r, k * ROWS / 4, 1);
            if (k < 3) quiet &= nt_event(r.step) == NT_ACCUMULATED && nt_update_step(r.step) == 0 && nt_micro_step(r.step) == k + 1;
        }
        tap_ok(quiet && nt_event(r.step) == NT_UPDATED && nt_micro_step(r.step) == 0, "four micro-batches, then an update%s", optax ? " (optax_exact)" : "");
        tap_ok(farthest(&r, &whole) < 1e-6, "equal to the large batch to rounding");
        tap_ok(near(nt_window_loss(r.step), nt_window_loss(whole.step), 1e-6), "and so is the loss of the window");
        tap_ok(nt_report(r.step).gradient == nt_bytes(r.w), "gradients and accumulator are one copy of the parameters");
        nt_tape_close(r.t);
    }
    regression r = start(ROWS / 4, 4, 0);
    for (int k = 0; k < 3; k++) feed(&r, k * ROWS / 4, 1);
    feed(&r, 3 * ROWS / 4, 0); // a micro-batch of weight 0 counts for nothing
    regression three = start(ROWS / 4, 3, 0);
    for (int k = 0; k < 3; k++) feed(&three, k * ROWS / 4, 1);
    tap_ok(farthest(&r, &three) < 1e-6, "weight 0 leaves a micro-batch out");
    nt_tape_close(r.t);
    r = start(ROWS / 4, 10, 0);
    for (int k = 0; k < 3; k++) feed(&r, k * ROWS / 4, 1);
    tap_ok(nt_flush(r.step) == NT_OK && nt_event(r.step) == NT_UPDATED && farthest(&r, &three) < 1e-6, "a flushed window divides by the weight that it holds");
    tap_ok(nt_flush(r.step) == NT_OK && nt_update_step(r.step) == 1, "an empty one does nothing");
    feed(&r, 0, 5);
    tap_ok(nt_discard(r.step) == NT_OK && nt_micro_step(r.step) == 0 && nt_flush(r.step) == NT_OK && farthest(&r, &three) < 1e-6, "a discarded window leaves no trace");
    nt_tape_close(r.t), nt_tape_close(three.t), nt_tape_close(whole.t);
}

static void bad_numbers(void) {
    regression r = start(ROWS / 4, 2, 0), clean = start(ROWS / 4, 2, 0);
    feed(&r, 0, 1);
    tap_ok(feed(&r, 0, NAN) == NT_NONFINITE && nt_event(r.step) == NT_SKIPPED && nt_skipped(r.step) == 1, "a weight that is not a number is skipped before it touches the window");
    nt_error_clear(r.t);
    feed(&r, ROWS / 4, 1);
    feed(&clean, 0, 1), feed(&clean, ROWS / 4, 1);
    tap_ok(nt_event(r.step) == NT_UPDATED && farthest(&r, &clean) == 0, "the window goes on as if it had never been");
    int32_t wrong[ROWS] = { 0, 9 };
    nt_write(r.y, wrong);
    tap_ok(nt_run(r.step) == NT_ERROR_DATA && farthest(&r, &clean) == 0 && nt_micro_step(r.step) == 0, "a label out of range changes nothing");
    nt_tape_close(r.t), nt_tape_close(clean.t);
}

int main(void) {
    flax_numbers();
    names_and_sharing();
    windows();
    bad_numbers();
    return tap_end();
}
