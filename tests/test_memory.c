// Memory: an array, an allocator and malloc need the same bytes at any address; the bytes that are reported do, one less fails and
// says so; every allocation may fail; everything is given back; running allocates nothing; marks, rewinds, budgets, shared scratch.
#include "heap.h"
#include "nttrain.h"
#include "tap.h"
#include <stdlib.h>

// ---------------------------------------------------------------------------------------------------------------------
// Scenarios: each does its work on t and gives a number that says whether it did it; 0 after an error
// ---------------------------------------------------------------------------------------------------------------------
static float floats[4096];
static int32_t labels[64];

static double record_and_evaluate(nt_tape *t) { // recording alone needs most
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(16, 16), floats), *y = x;
    float out[1] = { 0 };
    for (int k = 0; k < 300; k++) y = nt_tanh(nt_add(y, x));
    y = nt_sum(y);
    return nt_eval(y, out) == NT_OK ? 1 + out[0] * out[0] : 0;
}

static double train_mlp(nt_tape *t) {
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(16, 20)), *y = nt_input(t, NT_I32, NT_SHAPE(16));
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 32, NULL), nt_relu_layer(t), nt_dense_layer(t, 5, NULL));
    if (nt_init(net, nt_key(1), x) != NT_OK) return 0;
    nt_program *step = nt_compile_step(nt_mean(nt_cross_entropy(nt_apply(net, x, NULL), y)), nt_sgd(t, NULL), NULL);
    if (nt_write(x, floats) != NT_OK || nt_write(y, labels) != NT_OK) return 0;
    for (int k = 0; k < 3; k++)
        if (nt_run(step) != NT_OK) return 0;
    return nt_window_loss(step);
}

static double train_conv(nt_tape *t) { // with evaluation on the same scratch
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(8, 10, 10, 2)), *y = nt_input(t, NT_I32, NT_SHAPE(8));
    nt_layer *net = NT_SERIAL(t, nt_conv_layer(t, 8, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_dropout_layer(t, 0.25), nt_flatten_layer(t),
                              nt_dense_layer(t, 24, NULL), nt_layer_norm_layer(t, NULL), nt_gelu_layer(t), nt_dense_layer(t, 5, NULL));
    nt_apply_desc training;
    nt_compile_desc share;
    memset(&training, 0, sizeof training), memset(&share, 0, sizeof share);
    training.train = 1, training.key = nt_key(3);
    if (nt_init(net, nt_key(1), x) != NT_OK) return 0;
    nt_program *step = nt_compile_step(nt_mean(nt_cross_entropy(nt_apply(net, x, &training), y)), nt_multi_steps(nt_adamw(t, NULL), 2), NULL);
    nt_tensor *logits = nt_name(nt_apply(net, x, NULL), "logits");
    share.share_scratch = step;
    nt_program *evaluation = step ? nt_compile(logits, &share) : NULL;
    nt_forget_nodes(t);
    if (nt_write(x, floats) != NT_OK || nt_write(y, labels) != NT_OK) return 0;
    for (int k = 0; k < 5; k++)
        if (nt_run(step) != NT_OK) return 0;
    float out[40];
    if (nt_run(evaluation) != NT_OK || nt_read(evaluation, 0, out) != NT_OK) return 0;
    return nt_flush(step) == NT_OK ? 1 + out[7] * out[7] + nt_window_loss(step) : 0;
}

static double assign_and_freeze(nt_tape *t) {
    nt_tensor *a = nt_name(nt_variable(t, NT_F32, NT_SHAPE(40, 40), floats), "a"), *b = nt_variable(t, NT_F32, NT_SHAPE(40, 40), NULL);
    nt_params frozen = nt_freeze(t, NT_LIST(a), NULL);
    nt_compile_desc d;
    float out[1600];
    memset(&d, 0, sizeof d);
    nt_tensor *assigns[2];
    assigns[0] = nt_assign(a, nt_add(b, nt_full_like(b, 1))), assigns[1] = nt_assign(b, frozen.count ? nt_mul(a, frozen.items[0]) : NULL);
    d.assigns.count = 2, d.assigns.items = assigns, d.scratch_min = 30000;
    if (!assigns[0] || !assigns[1]) return 0;
    nt_program *p = nt_compile_many(t, NT_LIST(nt_swap_axes(a, 0, 1), b), &d);
    if (!p) return 0;
    nt_marker mark = nt_mark(t);
    nt_tensor *extra = nt_exp(nt_concat(NT_LIST(a, b), 0));
    if (nt_eval(nt_sum(extra), out) != NT_OK) return 0;
    nt_rewind(t, mark);
    for (int k = 0; k < 3; k++)
        if (nt_run(p) != NT_OK) return 0;
    return nt_read(p, 0, out) == NT_OK ? 1 + (double)out[41] * out[41] : 0;
}

static void cube_eval(void *user, const nt_array *in, int inputs, const nt_array *out, int64_t tile, int64_t tiles) {
    (void)user, (void)inputs, (void)tile, (void)tiles;
    int64_t n = 1;
    for (int k = 0; k < out->rank; k++) n *= out->shape[k];
    for (int64_t k = 0; k < n; k++) ((float *)out->data)[k] = ((const float *)in[0].data)[k] * ((const float *)in[0].data)[k] * ((const float *)in[0].data)[k];
}
static nt_tensor *cube_vjp(void *user, nt_tensor *y, nt_params in, nt_tensor *g, int k) { return (void)user, (void)y, (void)k, nt_scale(nt_mul(g, nt_square(in.items[0])), 3); }

static double custom_in_slices(nt_tape *t) { // an operation and a rule of the host; runs in slices; pictures; a look for NaNs
    nt_custom_desc d;
    nt_clock none = { NULL, NULL };
    memset(&d, 0, sizeof d);
    d.name = "cube", d.eval = cube_eval, d.vjp = cube_vjp;
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(12, 10)), *w = nt_variable(t, NT_F32, NT_SHAPE(10, 6), floats), *h = nt_matmul(x, w);
    nt_tensor *y = nt_custom_vjp(nt_round(nt_custom(t, &d, NT_LIST(h))), NT_LIST(h), &d);
    nt_params tangent = nt_jvp(NT_LIST(y), NT_LIST(w), NT_LIST(w));
    if (!tangent.count) return 0;
    nt_program *step = nt_compile_step(nt_mean(nt_square(nt_add(y, tangent.items[0]))), nt_multi_steps(nt_adam(t, NULL), 2), NULL);
    if (nt_write(x, floats) != NT_OK) return 0;
    for (int k = 0; k < 4; k++) {
        nt_status status;
        do status = nt_run_for(step, 0, none);
        while (status == NT_AGAIN);
        if (status != NT_DONE) return 0;
    }
    if (nt_trace_nonfinite(step, NULL) != NT_OK) return 0;
    return nt_report_svg(step, NULL, 0) && nt_report_json(step, NULL, 0) ? 1 + nt_window_loss(step) : 0;
}

typedef struct scenario { const char *name; double (*work)(nt_tape *t); } scenario;
static const scenario scenarios[] = {
    { "recording and nt_eval", record_and_evaluate },
    { "a training step of an MLP", train_mlp },
    { "training and evaluation of a convolutional net", train_conv },
    { "assignments, frozen values, a rewind", assign_and_freeze },
    { "an operation of the host, runs in slices", custom_in_slices },
};
enum { SCENARIOS = sizeof scenarios / sizeof scenarios[0] };

typedef struct outcome { double value; nt_memory_use memory; char message[600]; } outcome;

static outcome play(const scenario *s, const nt_tape_desc *desc) {
    outcome o;
    memset(&o, 0, sizeof o);
    nt_tape *t = nt_tape_open(desc);
    if (!t) {
        snprintf(o.message, sizeof o.message, "no tape");
        return o;
    }
    o.value = s->work(t);
    o.memory = nt_memory(t);
    if (nt_error(t)) snprintf(o.message, sizeof o.message, "%s", nt_error(t));
    nt_tape_close(t);
    return o;
}

static void with_separators(size_t n, char *text) { // as messages write bytes
    char digits[40];
    int length = snprintf(digits, sizeof digits, "%llu", (unsigned long long)n), at = 0;
    for (int k = 0; k < length; k++) {
        if (k && (length - k) % 3 == 0) text[at++] = ',';
        text[at++] = digits[k];
    }
    text[at] = 0;
}

// ---------------------------------------------------------------------------------------------------------------------
static void test_totals(const scenario *s) {
    heap h;
    nt_tape_desc d = heap_desc(&h);
    outcome plain = play(s, NULL), counted = play(s, &d);
    tap_ok(plain.value != 0 && !plain.message[0], "%s, with malloc", s->name);
    if (plain.message[0]) tap_note("%s", plain.message);
    tap_ok(counted.value == plain.value && counted.memory.total == plain.memory.total && counted.memory.total_least == plain.memory.total_least, "the same with an allocator: %zu bytes, at least %zu",
           plain.memory.total, plain.memory.total_least);
    tap_ok(h.live == 0 && h.bytes == 0 && h.wrong == 0, "one close gives everything back");
    size_t least = plain.memory.total_least;
    char *memory = (char *)malloc(least + 128), number[40];
    int good = 0, refused = 0, named = 0;
    outcome last;
    memset(&last, 0, sizeof last);
    for (int align = 0; align < 64; align++) {
        memset(&d, 0, sizeof d);
        d.memory = memory + align, d.memory_size = least;
        memory[align + (long)least] = 77;
        outcome o = play(s, &d);
        good += o.value == plain.value && o.memory.total == plain.memory.total && memory[align + (long)least] == 77;
        if (o.message[0] && align == 0) tap_note("%s", o.message);
        d.memory_size = least - 1;
        last = play(s, &d);
        refused += last.value == 0;
        with_separators(least, number);
        named += strstr(last.message, number) != NULL;
    }
    tap_ok(good == 64, "and in an array of %zu bytes at every address (%d of 64)", least, good);
    tap_ok(least == plain.memory.total, "which is that of its only plan");
    tap_ok(refused == 64 && named == 64, "one byte less fails with that number in the message (%d, %d of 64)", refused, named);
    if (named < 64) tap_note("%s", last.message);
    int clean = 0, tried = 0;
    char *small = NULL;
    for (size_t size = 1; size < least; size += 1 + least / 701, tried++) { // exact arrays: the sanitizer sees a byte beyond
        small = (char *)malloc(size);
        memset(&d, 0, sizeof d);
        d.memory = small, d.memory_size = size;
        outcome o = play(s, &d);
        clean += o.value == 0 && o.message[0];
        free(small);
    }
    tap_ok(clean == tried, "%d smaller arrays fail with a message", tried);
    free(memory);
}

static void test_failures(const scenario *s) { // each allocation fails once, and from there on
    heap h;
    nt_tape_desc d = heap_desc(&h);
    outcome o = play(s, &d);
    long calls = h.calls;
    double value = o.value;
    int ok = 1, usable = 1, finished = 0;
    for (int from_then_on = 0; from_then_on < 2; from_then_on++)
        for (long k = 1; k <= calls; k++) {
            memset(&h, 0, sizeof h);
            if (from_then_on) h.fail_from = k;
            else h.fail_at = k;
            nt_tape *t = nt_tape_open(&d);
            double got = t ? s->work(t) : 0;
            ok &= got == 0 || got == value;
            ok &= got != 0 || !t || nt_error(t) != NULL;
            finished += got == value;
            if (t && got == 0) { // usable again, once there is memory
                h.fail_at = h.fail_from = 0;
                nt_error_clear(t);
                nt_forget_nodes(t);
                double again = s->work(t);
                usable &= again == value;
                if (again != value) tap_note("call %ld: %g for %g: %s", k, again, value, nt_error(t) ? nt_error(t) : "no error");
            }
            nt_tape_close(t);
            ok &= h.live == 0 && h.bytes == 0 && h.wrong == 0;
        }
    tap_ok(ok, "%s: each of %ld allocations fails: an error or success, and everything is given back", s->name, calls);
    tap_ok(usable, "and the tape does the work afterwards");
}

static void test_running(void) { // runs with an allocator that must not be called
    heap h;
    nt_tape_desc d = heap_desc(&h);
    nt_tape *t = nt_tape_open(&d);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(16, 20)), *y = nt_input(t, NT_I32, NT_SHAPE(16));
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 32, NULL), nt_tanh_layer(t), nt_dense_layer(t, 5, NULL));
    nt_init(net, nt_key(1), x);
    nt_tensor *logits = nt_apply(net, x, NULL);
    nt_program *step = nt_compile_step(nt_mean(nt_cross_entropy(logits, y)), nt_multi_steps(nt_adamw(t, NULL), 2), NULL), *p = nt_compile(nt_softmax(logits, NT_LAST), NULL);
    float out[80];
    int ok = 1, bad = 0;
    h.closed = 1;
    for (int k = 0; k < 6; k++) {
        ok &= nt_write(x, floats) == NT_OK && nt_write(y, labels) == NT_OK && nt_run(step) == NT_OK && nt_run(p) == NT_OK && nt_read(p, 0, out) == NT_OK && nt_flush(step) == NT_OK;
        ok &= nt_bind(x, floats) == NT_OK && nt_run(p) == NT_OK && nt_bind(x, NULL) == NT_OK;
    }
    int32_t wrong_labels[16] = { 9 };
    nt_write(y, wrong_labels);
    bad = nt_run(step) == NT_ERROR_DATA;
    nt_error_clear(t);
    ok &= nt_report(step).peak > 0 && nt_report_text(step, NULL, 0) > 0;
    tap_ok(ok && bad && !h.wrong, "writing, binding, running, reading, flushing, failing: nothing is allocated");
    h.closed = 0;
    nt_tape_close(t);
    tap_ok(!h.live && !h.wrong, "and everything is given back");
}

// ---------------------------------------------------------------------------------------------------------------------
// Budgets and shared scratch
// ---------------------------------------------------------------------------------------------------------------------
static size_t first_number(const char *message) { // of bytes, with separators
    const char *c = message ? strstr(message, "needs ") : NULL;
    size_t n = 0;
    for (c = c ? c + 6 : ""; (*c >= '0' && *c <= '9') || *c == ','; c++)
        if (*c != ',') n = 10 * n + (size_t)(*c - '0');
    return n;
}

static void test_budget(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(32, 40));
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 64, NULL), nt_tanh_layer(t), nt_dense_layer(t, 30, NULL), nt_tanh_layer(t), nt_dense_layer(t, 1, NULL));
    nt_compile_desc d;
    nt_init(net, nt_key(0), x);
    nt_tensor *loss = nt_name(nt_mean(nt_square(nt_apply(net, x, NULL))), "loss");
    nt_optimizer *o = nt_sgd(t, NULL);
    for (int training = 0; training < 2; training++) {
        memset(&d, 0, sizeof d);
        d.budget = 1;
        nt_memory_use before = nt_memory(t);
        nt_program *p = training ? nt_compile_step(loss, o, &d) : nt_compile(loss, &d);
        size_t least = first_number(nt_error(t));
        tap_ok(!p && nt_error_status(t) == NT_ERROR_BUDGET && least > 1, "a budget of one byte: %s", nt_error(t) ? nt_error(t) : "no error");
        nt_memory_use after = nt_memory(t);
        tap_ok(before.programs == after.programs && before.scratch == after.scratch && before.nodes == after.nodes && after.temporaries == 0, "nothing is left behind");
        nt_error_clear(t);
        d.budget = least - 1;
        p = training ? nt_compile_step(loss, o, &d) : nt_compile(loss, &d);
        tap_ok(!p && first_number(nt_error(t)) == least, "one byte below the number fails with the number");
        nt_error_clear(t);
        d.budget = least;
        p = training ? nt_compile_step(loss, o, &d) : nt_compile(loss, &d);
        tap_ok(p && nt_report(p).peak == least && nt_write(x, floats) == NT_OK && nt_run(p) == NT_OK, "the number itself does");
    }
    nt_tape_close(t);
}

static void test_sharing(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_compile_desc d;
    nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(64), floats), *small = nt_sum(nt_sin(x)), *large = nt_sum_axes(nt_mul(nt_broadcast(x, NT_SHAPE(64, 64)), nt_expand_dims(x, 1)), NT_AXES(0), 0);
    memset(&d, 0, sizeof d);
    nt_program *a = nt_compile(small, &d);
    d.share_scratch = a;
    nt_program *b = nt_compile(large, &d);
    size_t need = first_number(nt_error(t));
    tap_ok(!b && nt_error_status(t) == NT_ERROR_BUDGET && need > nt_report(a).peak, "a larger program does not fit: %s", nt_error(t) ? nt_error(t) : "no error");
    nt_error_clear(t);
    memset(&d, 0, sizeof d);
    d.scratch_min = need;
    nt_program *c = nt_compile(small, &d);
    nt_memory_use before = nt_memory(t);
    memset(&d, 0, sizeof d);
    d.share_scratch = c;
    b = nt_compile(large, &d);
    nt_memory_use after = nt_memory(t);
    tap_ok(c && b && before.scratch == after.scratch, "with .scratch_min it does, and has no scratch of its own");
    float sum[3], row[64], again[64];
    int ok = nt_run(b) == NT_OK && nt_read(b, 0, row) == NT_OK && nt_run(c) == NT_OK && nt_read(c, 0, sum) == NT_OK && nt_run(b) == NT_OK && nt_read(b, 0, again) == NT_OK && nt_eval(small, sum + 1) == NT_OK;
    tap_ok(ok && sum[0] == sum[1] && !memcmp(row, again, sizeof row), "both run in turn");
    nt_program *third;
    d.share_scratch = b; // a sharer's scratch is its owner's
    third = nt_compile(small, &d);
    tap_ok(third && nt_run(third) == NT_OK && nt_read(third, 0, sum + 2) == NT_OK && sum[2] == sum[0], "a third shares through the second");
    memset(&d, 0, sizeof d);
    d.budget = need, d.scratch_min = need;
    tap_ok(nt_compile(small, &d) != NULL, "a budget holds what .scratch_min reserves");
    d.scratch_min = need + 1;
    tap_ok(!nt_compile(small, &d) && nt_error_status(t) == NT_ERROR_ARGUMENT && strstr(nt_error(t), ".scratch_min reserves"), "or it is an error: %s", nt_error(t) ? nt_error(t) : "none");
    nt_error_clear(t);
    nt_tape *other = nt_tape_open(NULL);
    nt_budget_point point;
    memset(&d, 0, sizeof d);
    d.share_scratch = a;
    tap_ok(!nt_budget_curve(other, nt_freeze(other, NT_LIST(nt_variable(other, NT_F32, NT_SHAPE(4), floats)), NULL), &d, &point, 1) && nt_error(other) && strstr(nt_error(other), ".share_scratch"), "a curve does not share the scratch of another tape");
    nt_params negative = { -1, NULL };
    nt_error_clear(other);
    tap_ok(!nt_compile_many(other, negative, NULL) && nt_error(other) && strstr(nt_error(other), "a list of -1 outputs"), "a list of -1 outputs is an error");
    nt_tape_close(other);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Marks, in any order
// ---------------------------------------------------------------------------------------------------------------------
static uint32_t state = 7;
static int below(int n) { return (int)((state = state * 1664525u + 1013904223u) >> 8) % n; }

typedef struct saved { nt_marker mark; nt_memory_use memory; int programs, variables; } saved;

static int check_program(nt_program *p, float want) {
    float got = 0;
    return nt_run(p) == NT_OK && nt_read(p, 0, &got) == NT_OK && got == want;
}

static void test_marks(const char *name, const nt_tape_desc *desc) {
    enum { MOST = 400 };
    static nt_program *program[MOST];
    static nt_tensor *variable[MOST];
    static float want[MOST];
    static saved stack[64];
    int programs = 0, variables = 0, depth = 0, ok = 1, rewinds = 0;
    nt_tape *t = nt_tape_open(desc);
    variable[variables++] = nt_variable(t, NT_F32, NT_SHAPE(8), floats);
    for (int round = 0; round < 1500; round++) {
        int what = below(10);
        if (what < 2 && depth < 64) {
            saved s = { nt_mark(t), nt_memory(t), programs, variables };
            stack[depth++] = s;
        } else if (what == 2 && depth) { // back to any of the marks
            int to = below(depth);
            saved *s = &stack[to];
            nt_rewind(t, s->mark);
            nt_memory_use m = nt_memory(t);
            ok &= m.programs == s->memory.programs && m.scratch == s->memory.scratch && m.variables == s->memory.variables && m.objects == s->memory.objects && m.inputs == s->memory.inputs;
            programs = s->programs, variables = s->variables, depth = to, rewinds++;
        } else if (what == 3) {
            nt_forget_nodes(t);
            for (int k = 0; k < depth; k++) stack[k].mark = nt_mark(t), depth = 0; // older marks lie beyond what is left
        } else if (what == 4 && variables < MOST) {
            variable[variables] = nt_variable(t, NT_F32, NT_SHAPE(8), floats + variables);
            variables++;
        } else if (what < 7 && programs < MOST && programs < 60) {
            nt_tensor *y = nt_sum(nt_mul(nt_sin(variable[below(variables)]), variable[below(variables)]));
            ok &= nt_eval(y, &want[programs]) == NT_OK;
            nt_compile_desc d;
            memset(&d, 0, sizeof d);
            if (programs && below(3) == 0) d.share_scratch = program[below(programs)];
            program[programs] = nt_compile(y, &d);
            ok &= program[programs] != NULL;
            programs++;
        } else if (programs) {
            int k = below(programs);
            ok &= check_program(program[k], want[k]);
        }
        if (!ok) {
            tap_note("round %d, %d: %s", round, what, nt_error(t) ? nt_error(t) : "wrong");
            break;
        }
    }
    for (int k = 0; k < programs && ok; k++) ok &= check_program(program[k], want[k]);
    tap_ok(ok, "marks, rewinds (%d of them) and nt_forget_nodes in any order, %s", rewinds, name);
    nt_tape_close(t);
}

int main(void) {
    for (int k = 0; k < 4096; k++) floats[k] = (float)((k * 37) % 101) / 101.0f - 0.4f;
    for (int k = 0; k < 64; k++) labels[k] = k % 5;
    for (int k = 0; k < SCENARIOS; k++) {
        test_totals(&scenarios[k]);
        test_failures(&scenarios[k]);
    }
    test_running();
    test_budget();
    test_sharing();
    heap h;
    nt_tape_desc d = heap_desc(&h);
    test_marks("with malloc", NULL);
    test_marks("with an allocator", &d);
    tap_ok(!h.live && !h.wrong, "which gets everything back");
    memset(&d, 0, sizeof d);
    d.memory_size = 4 << 20, d.memory = malloc(d.memory_size);
    test_marks("in an array", &d);
    free(d.memory);
    return tap_end();
}
