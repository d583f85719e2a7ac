// The first three programs of the taste, as a user would write them in C++11: descriptors are filled field by field.
// tests/test_taste.c is the same in C99.
#define NTTRAIN_ISA_BASELINE
#define NTTRAIN_NO_KERNELS
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "tap.h"
#include <math.h>

// A lesson: gradients by hand are over.
static void program_1(void) {
    nt_tape *t = nt_tape_open(nullptr); /* nullptr: malloc, all defaults */
    float numbers[] = { 1, 2, 3 };
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(3), numbers);
    nt_tensor *y = nt_sum(nt_mul(nt_sin(x), x));
    nt_tensor *g = nt_grad(y, x);
    nt_print(y); nt_print(g); /* evaluates, prints shape and values */

    float value = 0, slope[3] = { 0, 0, 0 };
    double sum = 0;
    TAP_CHECK(nt_eval(y, &value) == NT_OK);
    TAP_CHECK(nt_eval(g, slope) == NT_OK);
    for (int i = 1; i <= 3; i++) sum += i * sin(i);
    tap_ok(fabs((double)value - sum) < 1e-6, "sum of x sin x is %g", (double)value);
    for (int i = 1; i <= 3; i++) tap_ok(fabs((double)slope[i - 1] - (sin(i) + i * cos(i))) < 1e-6, "its derivative at %d is %g", i, (double)slope[i - 1]);
    TAP_CHECK(nt_error(t) == nullptr);
    nt_tape_close(t);
}

// The host of the second program: its threads (one after the other will do, in an odd order) and its data.
typedef struct engine_jobs { int64_t jobs; } engine_jobs;

static void my_jobs(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    engine_jobs *engine = (engine_jobs *)user;
    for (int64_t i = n - 1; i >= 0; i--) fn(arg, i, (int)(i % 4));
    engine->jobs += n;
}

// Ten patterns of bars, one for each label.
static nt_status next_batch(nt_tensor *image, nt_tensor *label) {
    float pixels[32 * 64];
    int32_t digit[32];
    for (int n = 0; n < 32; n++) {
        digit[n] = n % 10;
        for (int k = 0; k < 64; k++) pixels[n * 64 + k] = (k / 8 + k % 8 * (n % 10)) % 11 == 0 ? 1.0f : 0.0f;
    }
    nt_status status = nt_write(image, pixels);
    return status == NT_OK ? nt_write(label, digit) : status;
}

// Training in a frame loop, in the host's memory.
static unsigned char arena[1 << 20];

static void program_2(void) {
    engine_jobs engine = { 0 };
    nt_tape_desc desc = nt_tape_desc();
    desc.memory = arena;
    desc.memory_size = sizeof arena;
    desc.parallel.user = &engine;
    desc.parallel.max_workers = 4;
    desc.parallel.for_each = my_jobs;
    nt_tape *t = nt_tape_open(&desc);
    nt_tensor *image = nt_input(t, NT_F32, NT_SHAPE(32, 8, 8, 1)), *label = nt_input(t, NT_I32, NT_SHAPE(32));
    nt_layer *net = NT_SERIAL(t, nt_conv_layer(t, 16, NT_WINDOW(3, 3), nullptr), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)),
                              nt_dropout_layer(t, 0.3), nt_flatten_layer(t), nt_dense_layer(t, 10, nullptr));
    nt_init(net, nt_key(42), image);
    nt_apply_desc training = nt_apply_desc();
    training.train = 1;
    training.key = nt_key(7);
    nt_tensor *loss = nt_mean(nt_cross_entropy(nt_apply(net, image, &training), label));
    nt_adamw_desc adamw = nt_adamw_desc();
    adamw.learning_rate = 1e-2;
    nt_program *step = nt_compile_step(loss, nt_adamw(t, &adamw), nullptr);
    if (!tap_ok(step != nullptr, "the step compiles")) { tap_note("%s", nt_error(t)); nt_tape_close(t); return; }
    nt_compile_desc share = nt_compile_desc();
    share.share_scratch = step;
    nt_program *answer = nt_compile(nt_apply(net, image, nullptr), &share);
    nt_forget_nodes(t); /* the recording is not needed any more; inputs, variables and programs stay */
    if (!tap_ok(answer != nullptr, "the answer compiles")) { tap_note("%s", nt_error(t)); nt_tape_close(t); return; }

    double first = 0, last = 0;
    for (int frame = 0; frame < 60; frame++) {
        if (next_batch(image, label) != NT_OK || nt_run(step) != NT_OK) break;
        last = nt_window_loss(step);
        if (frame == 0) first = last;
    }
    tap_ok(nt_update_step(step) == 60 && nt_event(step) == NT_UPDATED, "sixty updates");
    tap_ok(last < first / 4, "the loss falls from %g to %g", first, last);
    float logits[32 * 10];
    int right = 0;
    TAP_CHECK(nt_run(answer) == NT_OK);
    TAP_CHECK(nt_read(answer, 0, logits) == NT_OK);
    for (int n = 0; n < 32; n++) {
        int best = 0;
        for (int k = 1; k < 10; k++) best = logits[n * 10 + k] > logits[n * 10 + best] ? k : best;
        right += best == n % 10;
    }
    tap_ok(right == 32, "%d of 32 answers are right", right);
    tap_ok(nt_memory(t).total <= sizeof arena, "in %zu bytes of the array", nt_memory(t).total);
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_tape_close(t);
}

// A large batch on a small device (MultiSteps).
static void program_3(void) {
    nt_tape *t = nt_tape_open(nullptr);
    nt_adamw_desc adamw = nt_adamw_desc();
    adamw.learning_rate = 1e-2;
    nt_tensor *image = nt_input(t, NT_F32, NT_SHAPE(32, 8, 8, 1)), *label = nt_input(t, NT_I32, NT_SHAPE(32));
    nt_layer *net = NT_SERIAL(t, nt_flatten_layer(t), nt_dense_layer(t, 10, nullptr));
    nt_init(net, nt_key(42), image);
    nt_tensor *loss = nt_mean(nt_cross_entropy(nt_apply(net, image, nullptr), label));

    nt_optimizer *opt = nt_multi_steps(nt_adamw(t, &adamw), 8); /* 8 micro-batches of the size of `image`: an update every 8th run */
    nt_program *micro_step = nt_compile_step(loss, opt, nullptr);  /* one gradient buffer in all, for any k */
    if (!tap_ok(micro_step != nullptr, "the micro-step compiles")) { tap_note("%s", nt_error(t)); nt_tape_close(t); return; }
    int updates = 0;
    for (int i = 0; i < 20; i++) {
        if (next_batch(image, label) != NT_OK || nt_run(micro_step) != NT_OK) break;
        if (nt_event(micro_step) == NT_UPDATED) {
            printf("update %lld  loss %g  rate %g\n", (long long)nt_update_step(micro_step), nt_window_loss(micro_step), nt_learning_rate(micro_step));
            updates++;
        }
    }
    tap_ok(updates == 2 && nt_update_step(micro_step) == 2 && nt_micro_step(micro_step) == 4, "20 runs are two updates and four micro-batches");
    TAP_CHECK(nt_flush(micro_step) == NT_OK); /* a short last window divides by the weight that it holds */
    tap_ok(nt_update_step(micro_step) == 3 && nt_micro_step(micro_step) == 0, "the flush is the third update");
    TAP_CHECK(nt_error(t) == nullptr);
    nt_tape_close(t);
}

// What differs in C++: lists and shapes are braced temporaries.
static void lists_and_shapes(void) {
    nt_tape *t = nt_tape_open(nullptr);
    const int64_t sizes[] = { 2, 3 };
    nt_tensor *x = nt_full(t, NT_F32, nt_shape_make(2, sizes), 2.0), *y = nt_full(t, NT_F32, NT_SHAPE(2, 3), 3.0), *s = nt_full(t, NT_F32, NT_SCALAR, 1.0);
    nt_tensor *joined = nt_concat(NT_LIST(x, y, x), 1), *sum = nt_sum_axes(joined, NT_AXES(1), 0);
    nt_params gradients = nt_grads(nt_sum(nt_mul(sum, s)), NT_LIST(x, y));
    float rows[2] = { 0, 0 }, slope[6] = { 0, 0, 0, 0, 0, 0 };
    TAP_CHECK(joined && nt_shape_of(joined).size[1] == 9);
    TAP_CHECK(nt_eval(sum, rows) == NT_OK && rows[0] == 21.0f && rows[1] == 21.0f);
    TAP_CHECK(gradients.count == 2 && nt_eval(gradients.items[0], slope) == NT_OK && slope[0] == 2.0f && slope[5] == 2.0f);
    TAP_CHECK(nt_error(t) == nullptr);
    nt_tape_close(t);
}

int main() {
    lists_and_shapes();
    program_1();
    program_2();
    program_3();
    return tap_end();
}
