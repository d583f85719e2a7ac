// Runs in slices: the same bits as in one go, whatever the clock says and however many workers there are; what is busy in between; what
// cancelling leaves; training windows whose update runs in slices, too.
#include "crew.h"
#include "heap.h"
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

enum { BATCH = 8, SIDE = 10, CLASSES = 5, MOST_WORKERS = 3 };

// ---------------------------------------------------------------------------------------------------------------------
// Clocks, a flag
// ---------------------------------------------------------------------------------------------------------------------
typedef struct ticker { double now, tick; long calls; } ticker; // every look takes `tick` seconds
static double ticker_seconds(void *user) {
    ticker *c = (ticker *)user;
    c->calls++;
    return c->now += c->tick;
}

static nt_clock clock_of(ticker *c) {
    nt_clock clock;
    clock.seconds = ticker_seconds, clock.user = c;
    return clock;
}

typedef struct flag { long asked, from; } flag; // says yes from the from-th question on (0: never)
static int flag_asked(void *user) {
    flag *f = (flag *)user;
    return ++f->asked >= f->from && f->from;
}

// ---------------------------------------------------------------------------------------------------------------------
// A convolutional network that trains on made-up images, and what it holds
// ---------------------------------------------------------------------------------------------------------------------
typedef struct trainer {
    nt_tape *t;
    nt_tensor *x, *y;
    nt_layer *net;
    nt_program *step, *look;   // look: evaluation in the step's scratch
    nt_program *apart;         // evaluation in its own
    flag stop;
    int window;
} trainer;

static float pixels[BATCH * SIDE * SIDE * 2];
static int32_t digits[BATCH];

static void made_up_data(int number) {
    for (int i = 0; i < (int)(sizeof pixels / sizeof pixels[0]); i++) pixels[i] = (float)((i * 37 + number * 11) % 101) / 101.0f;
    for (int i = 0; i < BATCH; i++) digits[i] = (i * 7 + number) % CLASSES;
}

static int trainer_open(trainer *r, int window, crew *c) {
    nt_tape_desc desc;
    nt_apply_desc training;
    nt_compile_desc compile;
    memset(&desc, 0, sizeof desc), memset(&training, 0, sizeof training), memset(&compile, 0, sizeof compile), memset(r, 0, sizeof *r);
    if (c) desc.parallel = crew_parallel(c);
    nt_tape *t = r->t = nt_tape_open(&desc);
    r->window = window;
    r->x = nt_name(nt_input(t, NT_F32, NT_SHAPE(BATCH, SIDE, SIDE, 2)), "image"), r->y = nt_input(t, NT_I32, NT_SHAPE(BATCH));
    r->net = NT_SERIAL(t, nt_conv_layer(t, 8, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_dropout_layer(t, 0.25), nt_flatten_layer(t),
                       nt_dense_layer(t, 300, NULL), nt_layer_norm_layer(t, NULL), nt_gelu_layer(t), nt_dense_layer(t, CLASSES, NULL));
    if (nt_init(r->net, nt_key(5), r->x) != NT_OK) return 0;
    training.train = 1, training.key = nt_key(9);
    compile.cancel.asked = flag_asked, compile.cancel.user = &r->stop;
    nt_optimizer *o = nt_adam(t, NULL);
    if (window) o = nt_multi_steps(o, window);
    r->step = nt_compile_step(nt_mean(nt_cross_entropy(nt_apply(r->net, r->x, &training), r->y)), o, &compile);
    memset(&compile, 0, sizeof compile);
    nt_tensor *logits = nt_apply(r->net, r->x, NULL);
    r->apart = nt_compile(logits, NULL);
    compile.share_scratch = r->step;
    r->look = nt_compile(logits, &compile);
    nt_forget_nodes(t);
    if (nt_error(t)) tap_note("%s", nt_error(t));
    return r->step && r->look && r->apart;
}

static void trainer_data(trainer *r, int number) {
    made_up_data(number);
    if (nt_write(r->x, pixels) != NT_OK || nt_write(r->y, digits) != NT_OK) tap_note("data: %s", nt_error(r->t));
}

static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *b = (const unsigned char *)data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ b[i]) * 1099511628211u;
    return hash;
}

// Parameters, counters, events; 0 if a parameter cannot be seen.
static uint64_t trainer_hash(const trainer *r) {
    uint64_t hash = 14695981039346656037u;
    nt_params p = nt_parameters(r->net);
    for (int k = 0; k < p.count; k++) {
        const void *data = nt_data(p.items[k]);
        if (!data) return 0;
        hash = mix(hash, data, nt_bytes(p.items[k]));
    }
    double numbers[6];
    numbers[0] = (double)nt_event(r->step), numbers[1] = (double)nt_update_step(r->step), numbers[2] = (double)nt_micro_step(r->step);
    numbers[3] = (double)nt_skipped(r->step), numbers[4] = nt_window_loss(r->step), numbers[5] = nt_learning_rate(r->step);
    return mix(hash, numbers, sizeof numbers);
}

typedef nt_status (*runner)(trainer *r, long *slices);
static nt_status run_whole(trainer *r, long *slices) { return ++*slices, nt_run(r->step); }

static nt_status run_tiles(trainer *r, long *slices) { // one group of tiles at a time
    ticker none = { 0, 0, 0 };
    nt_status status;
    do status = nt_run_for(r->step, 0, clock_of(&none)), ++*slices;
    while (status == NT_AGAIN);
    return status;
}

static nt_status run_sevens(trainer *r, long *slices) { // seven looks at the clock
    ticker c = { 1000, 1, 0 };
    nt_status status;
    do status = nt_run_for(r->step, 6.5, clock_of(&c)), ++*slices;
    while (status == NT_AGAIN);
    return status;
}

static nt_status run_mixed(trainer *r, long *slices) { // some tiles, then the rest in one go
    for (int k = 0; k < 9; k++, ++*slices)
        if (nt_run_for(r->step, -1, clock_of(NULL)) != NT_AGAIN) return NT_ERROR_STATE;
    return nt_run(r->step);
}

enum { STEPS = 7 };

static void train(runner run, int window, crew *c, uint64_t *hash, long *slices) { // hash[k] after run k
    trainer r;
    memset(hash, 0, STEPS * sizeof *hash), *slices = 0;
    if (trainer_open(&r, window, c))
        for (int k = 0; k < STEPS; k++) {
            trainer_data(&r, k);
            if (run(&r, slices) == NT_DONE) hash[k] = trainer_hash(&r);
        }
    if (nt_error(r.t)) tap_note("%s", nt_error(r.t));
    nt_tape_close(r.t);
}

static void test_same_bits(void) {
    static const struct { const char *name; runner run; long least; } way[] = {
        { "tile by tile", run_tiles, 40 }, { "seven looks a slice", run_sevens, 6 }, { "some tiles, then the rest", run_mixed, 9 } };
    for (int window = 0; window <= 3; window += 3) {
        uint64_t whole[STEPS], sliced[STEPS];
        long slices;
        train(run_whole, window, NULL, whole, &slices);
        tap_ok(whole[0] && whole[STEPS - 1] && whole[0] != whole[STEPS - 1], "%s: training in one go", window ? "windows of three" : "an update a run");
        for (int k = 0; k < 3; k++) {
            train(way[k].run, window, NULL, sliced, &slices);
            tap_ok(!memcmp(whole, sliced, sizeof whole), "the same bits after every run: %s", way[k].name);
            tap_ok(slices >= way[k].least * STEPS, "in %ld slices", slices);
            for (int workers = 2; workers <= MOST_WORKERS; workers++) {
                crew c;
                crew_hire(&c, workers);
                train(way[k].run, window, &c, sliced, &slices);
                tap_ok(!memcmp(whole, sliced, sizeof whole) && c.groups > 0, "and with %d workers, in %lld groups", workers, (long long)c.groups);
            }
        }
    }
}

static void test_time(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(1 << 20)), *y = nt_sum(nt_exp(nt_sin(x)));
    nt_program *p = nt_compile(y, NULL);
    float *data = (float *)calloc(1 << 20, sizeof *data), out[2] = { 0, 0 };
    ticker c = { 0, 1, 0 };
    nt_status status = nt_write(x, data);
    long slices = 0;
    do status = nt_run_for(p, 0.5, clock_of(&c)), slices++;
    while (status == NT_AGAIN);
    nt_read(p, 0, &out[0]);
    tap_ok(status == NT_DONE && slices > 16, "a million elements in %ld slices of one look each", slices);
    tap_ok(c.calls == 2 * slices - 1, "the clock is read when a slice begins and after each tile but the last (%ld times)", c.calls);
    c.calls = 0;
    tap_ok(nt_run_for(p, 1e9, clock_of(&c)) == NT_DONE, "a slice that is long enough does it all");
    nt_read(p, 0, &out[1]);
    tap_ok(!memcmp(&out[0], &out[1], sizeof out[0]) && out[0] == (float)(1 << 20), "with the same bits: %g", out[0]);
    c.tick = 0;
    tap_ok(nt_run_for(p, 1e-9, clock_of(&c)) == NT_DONE, "a clock that stands still does not end a slice");
    c.now = NAN;
    tap_ok(nt_run_for(p, 1, clock_of(&c)) == NT_AGAIN && nt_run(p) == NT_DONE, "a clock that gives no number ends it");
    nt_error_clear(t);
    nt_clock none = { NULL, NULL };
    tap_ok(nt_run_for(p, 0.1, none) == NT_ERROR_ARGUMENT && nt_error(t) && strstr(nt_error(t), "clock"), "seconds without a clock: %s", nt_error(t) ? nt_error(t) : "");
    tap_ok(nt_run_for(NULL, 0.1, clock_of(&c)) == NT_ERROR_ARGUMENT, "no program");
    free(data);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// In the middle
// ---------------------------------------------------------------------------------------------------------------------
static nt_status one_tile(trainer *r) { return nt_run_for(r->step, 0, clock_of(NULL)); }

static int busy(nt_tape *t, nt_status status, const char *word) { // NT_BUSY with a message that says what
    int ok = status == NT_BUSY && nt_error(t) && strstr(nt_error(t), word) && strstr(nt_error(t), "middle");
    if (!ok) tap_note("status %s, %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "no message");
    nt_error_clear(t);
    return ok;
}

static void test_busy(int window) {
    trainer r, twin;
    float out[BATCH * CLASSES], before[BATCH * CLASSES];
    trainer_open(&r, window, NULL), trainer_open(&twin, window, NULL);
    for (int k = 0; k < 2; k++) // the third fills the window
        trainer_data(&r, k), trainer_data(&twin, k), nt_run(r.step), nt_run(twin.step);
    trainer_data(&r, 2), trainer_data(&twin, 2);
    nt_run(r.apart), nt_read(r.apart, 0, before);
    nt_run(r.look);
    nt_tensor *kernel = nt_parameters(r.net).items[0];
    float *own = (float *)calloc(sizeof pixels, 1);
    uint64_t hash = trainer_hash(&r);
    nt_event_kind event = nt_event(r.step);
    tap_ok(one_tile(&r) == NT_AGAIN, "%s: a tile", window ? "windows" : "an update a run");
    tap_ok(busy(r.t, nt_run(r.look), "scratch"), "a program that shares the scratch is busy");
    tap_ok(busy(r.t, nt_run_for(r.look, 0, clock_of(NULL)), "scratch"), "for a slice, too");
    tap_ok(nt_read(r.look, 0, out) == NT_ERROR_STATE, "and its outputs are gone");
    nt_error_clear(r.t);
    tap_ok(busy(r.t, nt_read(r.step, 0, out), "nt_read") && !nt_output(r.step, 0), "outputs of the run cannot be read");
    nt_error_clear(r.t);
    tap_ok(busy(r.t, nt_write(r.x, pixels), "image") && busy(r.t, nt_bind(r.x, own), "image"), "inputs that it reads cannot be written or bound");
    tap_ok(busy(r.t, nt_write(kernel, own), "kernel"), "nor parameters written");
    tap_ok(busy(r.t, nt_init(r.net, nt_key(1), r.x), "kernel"), "nor the network initialised");
    tap_ok(busy(r.t, nt_flush(r.step), "nt_flush") && busy(r.t, nt_discard(r.step), "nt_discard"), "nor the window flushed or discarded");
    tap_ok(nt_run(r.apart) == NT_OK && nt_read(r.apart, 0, out) == NT_OK && !memcmp(out, before, sizeof out), "evaluation elsewhere sees the parameters as they were");
    tap_ok(trainer_hash(&r) == hash && nt_event(r.step) == event, "and so does the host");
    long tiles = 1;
    nt_status status = NT_AGAIN;
    while (status == NT_AGAIN && nt_data(kernel)) status = one_tile(&r), tiles++;
    nt_error_clear(r.t);
    tap_ok(status == NT_AGAIN, "%ld tiles later the parameter is being assigned", tiles);
    nt_data(kernel);
    tap_ok(busy(r.t, NT_BUSY, "kernel"), "nt_data gives NULL and says so");
    tap_ok(busy(r.t, nt_run(r.apart), "kernel"), "evaluation is busy now");
    tap_ok(busy(r.t, nt_eval(kernel, own), "kernel"), "and so is nt_eval");
    tap_ok(nt_event(r.step) == event && nt_update_step(r.step) == (window ? 0 : 2), "the event and the counters are those before the run");
    nt_set_learning_rate(r.step, 0.5); // for the runs to come
    tap_ok(nt_run(r.step) == NT_OK, "nt_run does the rest");
    nt_set_learning_rate(r.step, nt_learning_rate(twin.step));
    nt_run(twin.step);
    tap_ok(trainer_hash(&r) == trainer_hash(&twin) && nt_event(r.step) == NT_UPDATED, "and everything is as after a run in one go");
    tap_ok(nt_write(r.x, pixels) == NT_OK && nt_data(kernel) && nt_run(r.apart) == NT_OK && nt_run(r.look) == NT_OK, "nothing is busy any more");
    tap_ok(nt_error(r.t) == NULL, "no message is left");
    free(own);
    nt_tape_close(r.t), nt_tape_close(twin.t);
}

// Two runs in the middle at once: one reads what the other is about to assign.
static void test_two_runs(void) {
    float numbers[70000], out[2] = { 0, 0 };
    for (int k = 0; k < 70000; k++) numbers[k] = (float)(k % 7);
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *w = nt_name(nt_variable(t, NT_F32, NT_SHAPE(70000), numbers), "w"), *n = nt_variable(t, NT_F32, NT_SCALAR, NULL);
    nt_compile_desc d;
    memset(&d, 0, sizeof d);
    nt_tensor *assigns[1];
    d.assigns.count = 1, d.assigns.items = assigns;
    assigns[0] = nt_assign(w, nt_exp(nt_scale(w, -1)));
    nt_program *writer = nt_compile_many(t, NT_LIST(nt_sum(w)), &d), *reader = nt_compile(nt_sum(nt_square(nt_sin(w))), NULL);
    assigns[0] = nt_assign(n, nt_sum(w));
    nt_program *counter = nt_compile_many(t, NT_LIST(n), &d);
    assigns[0] = nt_assign(w, nt_scale(w, 2));
    nt_program *other = nt_compile_many(t, NT_LIST(n), &d);
    nt_run(reader), nt_read(reader, 0, &out[0]);
    tap_ok(nt_run_for(writer, 0, clock_of(NULL)) == NT_AGAIN && nt_run_for(reader, 0, clock_of(NULL)) == NT_AGAIN, "two runs in the middle, in scratches of their own");
    tap_ok(busy(t, nt_run_for(writer, 0, clock_of(NULL)), "w"), "the one that will assign waits for the one that reads");
    tap_ok(busy(t, nt_run(other), "w"), "two that assign one variable do not meet");
    tap_ok(nt_run(reader) == NT_OK && nt_read(reader, 0, &out[1]) == NT_OK && out[0] == out[1], "the reader sees one value: %g", out[1]);
    tap_ok(nt_run(counter) == NT_OK, "a program that assigns something else may run");
    nt_status status = NT_AGAIN;
    while (nt_data(w) && status == NT_AGAIN) status = nt_run_for(writer, 0, clock_of(NULL));
    nt_error_clear(t);
    tap_ok(status == NT_AGAIN && busy(t, nt_run(counter), "w"), "not any more when the variable is half assigned");
    tap_ok(nt_run(writer) == NT_OK && nt_run(counter) == NT_OK, "until that run has finished");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Cancelling
// ---------------------------------------------------------------------------------------------------------------------
static void test_cancel(int window) {
    trainer r, twin;
    trainer_open(&r, window, NULL), trainer_open(&twin, window, NULL);
    for (int k = 0; k < 2; k++) trainer_data(&r, k), trainer_data(&twin, k), nt_run(r.step), nt_run(twin.step);
    uint64_t hash = trainer_hash(&r);
    trainer_data(&r, 2), trainer_data(&twin, 2);
    long cancelled = 0, finished = 0, changed = 0, at = 1;
    for (; at < 5000; at++) { // a yes to the question number `at`; beyond the first assignment nobody asks any more
        float out;
        r.stop.asked = 0, r.stop.from = at;
        nt_status status = at % 2 ? nt_run(r.step) : nt_run_for(r.step, 0, clock_of(NULL));
        while (status == NT_AGAIN) status = one_tile(&r);
        if (status == NT_OK) { finished++; break; }
        cancelled += status == NT_CANCELLED;
        changed += trainer_hash(&r) != hash || nt_read(r.step, 0, &out) != NT_ERROR_STATE;
    }
    nt_error_clear(r.t);
    tap_ok(cancelled == at - 1 && cancelled > 10 && finished == 1, "%s: cancelled at each of %ld tiles before the first assignment", window ? "windows" : "an update a run", cancelled);
    tap_ok(changed == 0, "nothing is changed, and there is no output");
    tap_ok(r.stop.asked < r.stop.from, "after the first assignment nobody asks, and the run finishes");
    nt_run(twin.step);
    tap_ok(trainer_hash(&r) == trainer_hash(&twin), "with the bits of one that nobody cancelled");
    trainer_data(&r, 3), trainer_data(&twin, 3); // asked in the middle of a later slice, when it is too late
    r.stop.asked = r.stop.from = 0;
    nt_tensor *kernel = nt_parameters(r.net).items[0];
    nt_status status = NT_AGAIN;
    if (!window)
        while (status == NT_AGAIN && nt_data(kernel)) status = one_tile(&r);
    nt_error_clear(r.t);
    if (!window) r.stop.from = 1;
    tap_ok(nt_run(r.step) == NT_OK, "too late: the run is finished");
    r.stop.from = 0;
    nt_run(twin.step);
    tap_ok(trainer_hash(&r) == trainer_hash(&twin), "the same bits");
    nt_tape_close(r.t), nt_tape_close(twin.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad data in slices; hooks that call back; rewinds; allocations
// ---------------------------------------------------------------------------------------------------------------------
static void test_bad_data(int window) {
    trainer r, twin;
    trainer_open(&r, window, NULL), trainer_open(&twin, window, NULL);
    int same = 1, labels = 0, nonfinite = 0;
    for (int k = 0; k < 8; k++) {
        trainer_data(&r, k), trainer_data(&twin, k);
        if (k % 3 == 1) digits[3] = CLASSES, nt_write(r.y, digits), nt_write(twin.y, digits);
        if (k % 4 == 2) pixels[5] = (float)(1e300 * 1e300), nt_write(r.x, pixels), nt_write(twin.x, pixels);
        long slices = 0;
        nt_status a = run_tiles(&r, &slices), b = nt_run(twin.step);
        same &= a == b && trainer_hash(&r) == trainer_hash(&twin);
        labels += a == NT_ERROR_DATA, nonfinite += a == NT_NONFINITE;
    }
    tap_ok(same && labels > 0 && nonfinite > 0, "%s: %d runs with bad labels and %d with bad numbers end as in one go", window ? "windows" : "an update a run", labels, nonfinite);
    nt_tape_close(r.t), nt_tape_close(twin.t);
}

typedef struct caller { trainer *r; nt_status run, slice, look, write; double now; } caller;
static double calling_clock(void *user) {
    caller *c = (caller *)user;
    nt_clock again;
    again.seconds = calling_clock, again.user = user;
    if (c->now > 0) { // the first look is that of the outer call
        c->run = nt_run(c->r->step), c->slice = nt_run_for(c->r->step, 1, again), c->look = nt_run(c->r->look), c->write = nt_write(c->r->x, pixels);
    }
    return c->now += 1;
}

static void test_hooks_call_back(void) {
    trainer r, twin;
    trainer_open(&r, 0, NULL), trainer_open(&twin, 0, NULL);
    trainer_data(&r, 0), trainer_data(&twin, 0);
    caller c;
    memset(&c, 0, sizeof c);
    c.r = &r;
    nt_clock clock;
    clock.seconds = calling_clock, clock.user = &c;
    tap_ok(nt_run_for(r.step, 1e9, clock) == NT_DONE, "a clock that calls the program it times");
    tap_ok(c.run == NT_BUSY && c.slice == NT_BUSY && c.look == NT_BUSY && c.write == NT_BUSY, "is told that it is busy");
    nt_run(twin.step);
    tap_ok(trainer_hash(&r) == trainer_hash(&twin), "and the run is none the worse");
    nt_tape_close(r.t), nt_tape_close(twin.t);
}

static void test_rewind(void) {
    nt_tape *t = nt_tape_open(NULL);
    float numbers[5000] = { 0 }, out = 0;
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(5000));
    nt_program *first = nt_compile(nt_sum(nt_cos(x)), NULL);
    nt_write(x, numbers);
    nt_marker mark = nt_mark(t);
    nt_program *second = nt_compile(nt_sum(nt_exp(nt_cos(nt_sin(x)))), NULL);
    tap_ok(nt_run_for(second, 0, clock_of(NULL)) == NT_AGAIN && nt_run_for(first, 0, clock_of(NULL)) == NT_AGAIN, "two programs in the middle of a run");
    nt_rewind(t, mark);
    tap_ok(nt_run(first) == NT_OK && nt_read(first, 0, &out) == NT_OK && out == 5000, "a rewind past the second leaves the first: %g", out);
    tap_ok(nt_write(x, numbers) == NT_OK, "and ends the run of the second");
    nt_tape_close(t);
}

static void test_no_allocation(void) {
    heap h;
    nt_tape_desc d = heap_desc(&h);
    nt_tape *t = nt_tape_open(&d);
    float numbers[600] = { 1, 2, 3 };
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(20, 30)), *w = nt_variable(t, NT_F32, NT_SHAPE(30, 20), numbers);
    nt_program *step = nt_compile_step(nt_mean(nt_square(nt_matmul(x, w))), nt_multi_steps(nt_adam(t, NULL), 2), NULL);
    nt_write(x, numbers);
    nt_memory_use before = nt_memory(t), after;
    h.closed = 1;
    int done = 0;
    for (int k = 0; k < 4; k++) {
        nt_status status;
        do status = nt_run_for(step, 0, clock_of(NULL));
        while (status == NT_AGAIN);
        done += status == NT_DONE;
    }
    h.closed = 0;
    after = nt_memory(t);
    tap_ok(done == 4 && h.wrong == 0 && !memcmp(&before, &after, sizeof before), "slices allocate nothing");
    nt_tape_close(t);
}

int main(void) {
    test_same_bits();
    test_time();
    test_busy(0);
    test_busy(3);
    test_two_runs();
    test_cancel(0);
    test_cancel(3);
    test_bad_data(0);
    test_bad_data(3);
    test_hooks_call_back();
    test_rewind();
    test_no_allocation();
    return tap_end();
}
