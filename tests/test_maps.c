// Loops (nt_map): the same random program is recorded twice, with maps and unrolled, and both are differentiated; memory that does not
// depend on the count; replay for nonlinear reductions; errors. `build/test_maps SEED` runs one random program.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "nttrain.h"
#include "graphs.h"

enum { SIZE = 3, LEAVES = 3, MOST = 24, RUNS = 1500 };

// ---------------------------------------------------------------------------------------------------------------------
// Random programs of vectors of SIZE numbers. Both versions take the same choices: each iteration of an unrolled loop starts
// from the same dice as the body of the map.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct env { nt_tensor *v[MOST]; int n; } env;
typedef struct world { nt_tape *t; nt_tensor *leaf[LEAVES], *matrix, *rows[2], *key; int maps; int64_t chunk; } world; // rows: (5, SIZE), cut to a loop's count

static void env_add(env *e, nt_tensor *x) {
    if (e->n < MOST) e->v[e->n++] = x;
}

static nt_tensor *any(const env *e, dice *d) { return e->v[pick(d, e->n)]; }

static nt_tensor *vector_of(nt_tensor *scalar) { return nt_broadcast(scalar, NT_SHAPE(SIZE)); }

static nt_tensor *operation(world *w, const env *e, dice *d) {
    nt_tensor *x = any(e, d), *y = any(e, d);
    switch (pick(d, 9)) {
    case 0: return nt_add(x, y);
    case 1: return nt_mul(x, y);
    case 2: return nt_tanh(x);
    case 3: return nt_sin(x);
    case 4: return nt_squeeze(nt_matmul(nt_expand_dims(x, 0), w->matrix), 0);
    case 5: return nt_softmax(x, 0);
    case 6: return vector_of(nt_sum(nt_mul(x, y)));
    case 7: return nt_scale(nt_sub(x, y), 0.5);
    default: return nt_relu(nt_add_scalar(x, 0.3));
    }
}

static nt_tensor *program(world *w, env e, dice *d, int depth);

// What one iteration gives: three values, used by a sum, a mean and a stack.
static void body(world *w, env e, dice d, int depth, nt_tensor *index, nt_tensor *row0, nt_tensor *row1, nt_tensor **result) {
    env_add(&e, row0), env_add(&e, row1);
    env_add(&e, vector_of(nt_scale(nt_cast(index, NT_F64), 0.3)));
    env_add(&e, nt_normal(nt_fold_in(w->key, index), NT_F64, NT_SHAPE(SIZE)));
    for (int k = 0; k < 3; k++) result[k] = program(w, e, &d, depth + 1), env_add(&e, result[k]);
    if (pick(&d, 2)) result[1] = nt_mul(any(&e, &d), any(&e, &d)); // perhaps the same in every iteration
}

// log-mean-exp over the first axis, a nonlinear reduction.
static nt_tensor *reduce_stack(nt_tensor *stack, int kind) {
    return kind ? nt_logsumexp_axes(stack, NT_AXES(0), 0) : nt_max_axes(stack, NT_AXES(0), 0);
}

static void loop(world *w, env *e, dice *d, int depth) {
    int count = 1 + pick(d, 4), kind = pick(d, 4) > 0;
    dice inside = { roll(d) };
    nt_tensor *rows[2], *result[3], *sum[2] = { NULL, NULL }, *part[5];
    for (int k = 0; k < 2; k++) rows[k] = nt_slice_axis(w->rows[k], 0, 0, count);
    if (w->maps) {
        nt_map_desc desc = { w->chunk };
        nt_map *m = nt_map_begin(w->t, count, &desc);
        body(w, *e, inside, depth, nt_map_index(m), nt_map_slice(m, rows[0]), nt_map_slice(m, rows[1]), result);
        sum[0] = nt_map_sum(m, result[0]), sum[1] = nt_map_mean(m, result[1]), result[2] = nt_map_stack(m, result[2]);
        nt_map_end(m);
    } else {
        for (int k = 0; k < count; k++) {
            body(w, *e, inside, depth, nt_scalar(w->t, NT_I32, k), nt_squeeze(nt_slice_axis(rows[0], 0, k, k + 1), 0), nt_squeeze(nt_slice_axis(rows[1], 0, k, k + 1), 0), result);
            for (int j = 0; j < 2; j++) sum[j] = sum[j] ? nt_add(sum[j], result[j]) : result[j];
            part[k] = result[2];
        }
        sum[1] = nt_scale(sum[1], 1.0 / count);
        nt_params parts = { count, part };
        result[2] = nt_stack(parts, 0);
    }
    env_add(e, nt_scale(sum[0], 0.2)), env_add(e, sum[1]), env_add(e, reduce_stack(result[2], kind));
}

static nt_tensor *program(world *w, env e, dice *d, int depth) {
    int steps = 1 + pick(d, depth ? 3 : 5);
    for (int k = 0; k < steps; k++) {
        if (depth < 3 && pick(d, 3) == 0) loop(w, &e, d, depth);
        else env_add(&e, operation(w, &e, d));
    }
    return e.v[e.n - 1 - pick(d, e.n < 3 ? e.n : 3)];
}

static nt_tensor *leaf(nt_tape *t, dice *d, nt_shape shape) {
    double data[5 * SIZE];
    for (int k = 0; k < 5 * SIZE; k++) data[k] = 0.8 * real(d);
    return nt_variable(t, NT_F64, shape, data);
}

enum { VALUES = 2 + 3 * LEAVES, NUMBERS = 2 + 3 * LEAVES * SIZE };

// loss, its gradients, the derivative of the loss along w, the gradients' derivative along w, the gradient of their squares.
static int numbers_of(uint64_t seed, int maps, int64_t chunk, double *out, char *why) {
    dice d = { seed };
    world w;
    env e;
    memset(&w, 0, sizeof w), memset(&e, 0, sizeof e);
    w.t = nt_tape_open(NULL), w.maps = maps, w.chunk = chunk;
    nt_tensor *along[LEAVES], *value[VALUES];
    for (int k = 0; k < LEAVES; k++) env_add(&e, w.leaf[k] = leaf(w.t, &d, NT_SHAPE(SIZE)));
    for (int k = 0; k < LEAVES; k++) along[k] = leaf(w.t, &d, NT_SHAPE(SIZE));
    for (int k = 0; k < 2; k++) w.rows[k] = leaf(w.t, &d, NT_SHAPE(5, SIZE));
    w.matrix = leaf(w.t, &d, NT_SHAPE(SIZE, SIZE)), w.key = nt_key_tensor(w.t, nt_key(seed));
    nt_tensor *last = program(&w, e, &d, 0), *loss = nt_sum(nt_square(nt_tanh(last)));
    nt_params leaves = { LEAVES, w.leaf }, tangents = { LEAVES, along };
    nt_params g = nt_grads(loss, leaves), h = nt_jvp(g, leaves, tangents), jvp = nt_jvp(nti_list(&loss, 1), leaves, tangents);
    nt_tensor *squares = NULL;
    for (int k = 0; k < g.count; k++) squares = squares ? nt_add(squares, nt_sum(nt_square(g.items[k]))) : nt_sum(nt_square(g.items[k]));
    nt_params gg = nt_grads(squares, leaves);
    int n = 0, ok = g.count && h.count && jvp.count && gg.count;
    if (ok) {
        value[n++] = loss, value[n++] = jvp.items[0];
        for (int k = 0; k < LEAVES; k++) value[n++] = g.items[k], value[n++] = h.items[k], value[n++] = gg.items[k];
        nt_params outputs = { n, value };
        nt_program *p = nt_compile_many(w.t, outputs, NULL);
        ok = p && nt_run(p) == NT_OK;
        for (int k = 0, at = 0; ok && k < n; at += k < 2 ? 1 : SIZE, k++) nt_read(p, k, out + at);
    }
    snprintf(why, 256, "%s", nt_error(w.t) ? nt_error(w.t) : "");
    nt_tape_close(w.t);
    return ok;
}

static int agree(uint64_t seed, int64_t chunk, int verbose) {
    double unrolled[NUMBERS], mapped[NUMBERS], largest = 1;
    char why[256];
    if (!numbers_of(seed, 0, 1, unrolled, why) || !numbers_of(seed, 1, chunk, mapped, why)) {
        tap_note("seed %llu: %s", (unsigned long long)seed, why);
        return 0;
    }
    int at = 0;
    for (int k = 0; k < NUMBERS; k++) largest = fabs(unrolled[k]) > largest ? fabs(unrolled[k]) : largest;
    for (int k = 0; k < NUMBERS; k++) {
        if (verbose) tap_note("%d: %.17g %.17g", k, unrolled[k], mapped[k]);
        if (fabs(unrolled[k] - mapped[k]) > 1e-12 * largest && !at) at = k + 1; // sums of a few dozen terms in another order
    }
    if (at) tap_note("seed %llu, chunk %lld: number %d is %.17g unrolled and %.17g as maps", (unsigned long long)seed, (long long)chunk, at - 1, unrolled[at - 1], mapped[at - 1]);
    return !at;
}

static void test_random(void) {
    for (int64_t chunk = 1; chunk <= 4; chunk++) {
        int good = 0, runs = chunk == 1 ? RUNS : RUNS / 3;
        for (uint64_t seed = 1; seed <= (uint64_t)runs; seed++) good += agree(seed, chunk, 0);
        tap_ok(good == runs, "chunk %d: %d of %d random programs with maps, their gradients, jvps and second derivatives agree with unrolled ones",
               (int)chunk, good, runs);
    }
}

// A batch of programs with loops, and of their gradients, against one after the other.
static int batch_agrees(uint64_t seed) {
    enum { BATCH = 3 };
    dice d = { seed };
    world w;
    env e;
    memset(&w, 0, sizeof w), memset(&e, 0, sizeof e);
    w.t = nt_tape_open(NULL), w.maps = 1, w.chunk = 1 + (int64_t)(seed % 3);
    for (int k = 0; k < LEAVES; k++) env_add(&e, w.leaf[k] = leaf(w.t, &d, NT_SHAPE(SIZE)));
    for (int k = 0; k < 2; k++) w.rows[k] = leaf(w.t, &d, NT_SHAPE(5, SIZE));
    w.matrix = leaf(w.t, &d, NT_SHAPE(SIZE, SIZE)), w.key = nt_key_tensor(w.t, nt_key(seed));
    nt_tensor *batch = leaf(w.t, &d, NT_SHAPE(BATCH, SIZE)), *loss = nt_sum(nt_tanh(program(&w, e, &d, 0))), *out[2 + 2 * BATCH];
    nt_tensor *both[2] = { loss, nt_grad(loss, w.leaf[0]) };
    nt_params outputs = { 2, both }, all = nt_vmap(outputs, NT_LIST(w.leaf[0]), NT_LIST(batch));
    int n = 0, ok = all.count == 2;
    for (int k = 0; ok && k < 2; k++) out[n++] = all.items[k];
    for (int b = 0; ok && b < BATCH; b++) {
        nt_params one = nt_substitute_many(outputs, NT_LIST(w.leaf[0]), NT_LIST(nt_squeeze(nt_slice_axis(batch, 0, b, b + 1), 0)));
        ok = one.count == 2;
        for (int k = 0; ok && k < 2; k++) out[n++] = one.items[k];
    }
    nt_params list = { n, out };
    nt_program *p = ok ? nt_compile_many(w.t, list, NULL) : NULL;
    ok = p && nt_run(p) == NT_OK;
    double losses[BATCH], gradients[BATCH][SIZE], worst = 0;
    if (ok) nt_read(p, 0, losses), nt_read(p, 1, gradients);
    for (int b = 0; ok && b < BATCH; b++) {
        double y, g[SIZE];
        nt_read(p, 2 + 2 * b, &y), nt_read(p, 3 + 2 * b, g);
        worst = fmax(worst, fabs(y - losses[b]) / (1 + fabs(y)));
        for (int k = 0; k < SIZE; k++) worst = fmax(worst, fabs(g[k] - gradients[b][k]) / (1 + fabs(g[k])));
    }
    if (!ok || worst > 1e-12) tap_note("batch, seed %llu: %s, differs by %g", (unsigned long long)seed, nt_error(w.t) ? nt_error(w.t) : "", worst);
    nt_tape_close(w.t);
    return ok && worst <= 1e-12;
}

static void test_batches(void) {
    int good = 0;
    for (uint64_t seed = 1; seed <= 300; seed++) good += batch_agrees(seed);
    tap_is_int(good, 300, "random programs with maps and their gradients, batched, agree with one after the other");
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory, loops
// ---------------------------------------------------------------------------------------------------------------------
static size_t scratch_of(int count, int *loops, int *told) { // told: values of the body that the report names
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *w = nt_variable(t, NT_F32, NT_SHAPE(20, 20), NULL), *x = nt_variable(t, NT_F32, NT_SHAPE(8, 20), NULL), *key = nt_key_tensor(t, nt_key(1));
    nt_map *m = nt_map_begin(t, count, NULL);
    nt_tensor *noise = nt_normal(nt_fold_in(key, nt_map_index(m)), NT_F32, NT_SHAPE(8, 20));
    nt_tensor *loss = nt_map_mean(m, nt_mean(nt_square(nt_tanh(nt_matmul(nt_add(x, noise), w)))));
    nt_map_end(m);
    nt_program *p = nt_compile_many(t, NT_LIST(loss, nt_grad(loss, w), nt_grad(loss, x)), NULL);
    *loops = 0;
    for (int k = 0; p && k < p->instructions; k++) *loops += p->instruction[k].count > 0;
    nt_report_info r = nt_report(p);
    *told = 0;
    for (int k = 0; k < r.value_count; k++)
        for (int32_t j = 0; j < p->instructions; j++) *told += p->instruction[j].count && r.values[k].born > j && r.values[k].born < p->instruction[j].end;
    nt_tape_close(t);
    return r.peak;
}

static void test_memory(void) {
    int loops, told;
    size_t one = scratch_of(1, &loops, &told);
    tap_ok(told > 2, "the report names what is alive in the body at the peak: %d values", told);
    for (int count = 4; count <= 64; count *= 4) {
        tap_ok(scratch_of(count, &loops, &told) == one, "as many bytes for %d iterations as for 1, %lld", count, (long long)one);
        tap_is_int(loops, 1, "forward and backward are one loop");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Scans: h = a h + x_i, whose values and derivatives are known: h_n = sum of a^(n - 1 - i) x_i
// ---------------------------------------------------------------------------------------------------------------------
enum { STEPS = 9 };

static int linear_step(void *user, nt_params carry, nt_params parts, int64_t index, nt_tensor **next, nt_tensor **output) {
    (void)index;
    next[0] = nt_add(nt_mul(*(nt_tensor **)user, carry.items[0]), parts.items[0]);
    output[0] = next[0], output[1] = nt_scale(carry.items[0], 2);
    return next[0] != NULL;
}

static int bad_step(void *user, nt_params carry, nt_params parts, int64_t index, nt_tensor **next, nt_tensor **output) {
    (void)user, (void)parts, (void)output;
    next[0] = index < 3 ? carry.items[0] : index == 3 ? nt_stack(carry, 0) : NULL;
    return index != 5;
}

static void test_scan(int reverse, int64_t segment) {
    nt_tape *t = nt_tape_open(NULL);
    double data[STEPS], half = 0.5, got[4], wanted[4] = { 0, 0, 0, 0 }, outputs[2][STEPS], largest = 0;
    for (int k = 0; k < STEPS; k++) data[k] = 1 + 0.25 * k;
    nt_tensor *a = nt_variable(t, NT_F64, NT_SCALAR, &half), *h = nt_variable(t, NT_F64, NT_SCALAR, &half), *x = nt_variable(t, NT_F64, NT_SHAPE(STEPS), data);
    nt_scan_step step = { linear_step, &a };
    nt_scan_desc desc = { 2, reverse, segment };
    nt_scan_result r = nt_scan(t, STEPS, NT_LIST(h), NT_LIST(x), step, &desc);
    nt_tensor *y = r.carry.count ? r.carry.items[0] : NULL, *g = nt_grad(y, a);
    nt_program *p = r.outputs.count == 2 ? nt_compile_many(t, NT_LIST(y, g, nt_grad(g, a), nt_grad(y, h), r.outputs.items[0], r.outputs.items[1]), NULL) : NULL;
    int ok = p && nt_run(p) == NT_OK;
    for (int k = 0; ok && k < 4; k++) nt_read(p, k, &got[k]);
    for (int k = 0; ok && k < 2; k++) nt_read(p, 4 + k, outputs[k]);
    wanted[0] = 0.5; // h, and its derivatives with respect to a, by hand
    wanted[3] = pow(0.5, STEPS);
    for (int i = 0; i < STEPS; i++) {
        int at = reverse ? STEPS - 1 - i : i;
        double before = wanted[0];
        wanted[2] = 0.5 * wanted[2] + 2 * wanted[1], wanted[1] = 0.5 * wanted[1] + wanted[0], wanted[0] = 0.5 * wanted[0] + data[at];
        if (ok) largest = fmax(largest, fmax(fabs(outputs[0][at] - wanted[0]), fabs(outputs[1][at] - 2 * before)));
    }
    for (int k = 0; ok && k < 4; k++) largest = fmax(largest, fabs(got[k] - wanted[k]));
    tap_ok(ok && largest < 1e-13, "scan%s, segments of %d: values and derivatives (%g)%s%s", reverse ? " in reverse" : "", (int)segment, largest, ok ? "" : ": ", ok ? "" : nt_error(t));
    nt_tape_close(t);
}

static int tanh_step(void *user, nt_params carry, nt_params parts, int64_t index, nt_tensor **next, nt_tensor **output) {
    (void)parts, (void)index, (void)output;
    next[0] = nt_tanh(nt_matmul(carry.items[0], *(nt_tensor **)user));
    return next[0] != NULL;
}

// What the gradient of a loss of h with respect to w takes, both (16, 16); `loss` records it, all kept (0) or in pieces.
static size_t gradient_bytes(nt_tensor *(*loss)(nt_tensor *h, nt_tensor *w, int64_t pieces), int64_t pieces, double *gradient) {
    nt_tape *t = nt_tape_open(NULL);
    double data[256];
    for (int k = 0; k < 256; k++) data[k] = sin(k);
    nt_tensor *w = nt_variable(t, NT_F64, NT_SHAPE(16, 16), data), *h = nt_variable(t, NT_F64, NT_SHAPE(16, 16), data);
    nt_program *p = nt_compile(nt_grad(loss(h, w, pieces), w), NULL);
    if (p && nt_run(p) == NT_OK) nt_read(p, 0, gradient);
    size_t bytes = nt_report(p).peak;
    nt_tape_close(t);
    return bytes;
}

static nt_tensor *scan_loss(nt_tensor *h, nt_tensor *w, int64_t segment) {
    nt_scan_step step = { tanh_step, &w };
    nt_scan_desc desc = { 0, 0, segment };
    nt_params none = { 0, NULL };
    return nt_sum(nt_scan(h->tape, 64, NT_LIST(h), none, step, &desc).carry.items[0]);
}

// The same with the weight as a carry that stays: an input of every segment, which is older than all of them.
static int carried_step(void *user, nt_params carry, nt_params parts, int64_t index, nt_tensor **next, nt_tensor **output) {
    (void)user, (void)parts, (void)index, (void)output;
    next[0] = nt_tanh(nt_matmul(carry.items[0], carry.items[1])), next[1] = carry.items[1];
    return next[0] != NULL;
}

static nt_tensor *carried_loss(nt_tensor *h, nt_tensor *w, int64_t segment) {
    nt_scan_step step = { carried_step, NULL };
    nt_scan_desc desc = { 0, 0, segment };
    nt_params none = { 0, NULL };
    return nt_sum(nt_scan(h->tape, 64, NT_LIST(h, w), none, step, &desc).carry.items[0]);
}

static void test_segments(void) {
    double kept[256], again[256], carried[256];
    size_t all = gradient_bytes(scan_loss, 0, kept), some = gradient_bytes(scan_loss, 8, again);
    tap_ok(3 * some < all, "64 steps in segments of 8 keep 8 carries and one segment: %lld bytes against %lld", (long long)some, (long long)all);
    tap_ok(!memcmp(kept, again, sizeof kept), "the same bits");
    size_t through = gradient_bytes(carried_loss, 8, carried);
    tap_ok(through == some && !memcmp(kept, carried, sizeof kept), "and the same with the weight as a carry: %lld bytes", (long long)through);
}

// ---------------------------------------------------------------------------------------------------------------------
// Errors
// ---------------------------------------------------------------------------------------------------------------------
static void expect_error(nt_tape *t, nt_status status, const char *part, const char *name) {
    const char *e = nt_error(t);
    tap_ok(e && nt_error_status(t) == status && strstr(e, part), "%s: %s", name, e ? e : "no error");
    nt_error_clear(t);
}

static nt_tensor *body_loss(nt_tensor *h, nt_tensor *w, int64_t checkpoint) {
    nt_map *m = nt_map_begin(h->tape, 3, NULL);
    nt_tensor *y = nt_mul(h, nt_cast(nt_map_index(m), NT_F64));
    for (int block = 0; block < 4; block++) {
        nt_tensor *in = y;
        for (int k = 0; k < 4; k++) y = nt_tanh(nt_matmul(y, w));
        if (checkpoint) y = nt_checkpoint(y, NT_LIST(in));
    }
    nt_tensor *loss = nt_map_sum(m, nt_sum(y));
    nt_map_end(m);
    return loss;
}

static void test_body_checkpoints(void) {
    double kept[256], again[256];
    size_t all = gradient_bytes(body_loss, 0, kept), some = gradient_bytes(body_loss, 1, again);
    tap_ok(10 * some < 7 * all, "checkpoints in a body: %lld bytes against %lld", (long long)some, (long long)all);
    tap_ok(!memcmp(kept, again, sizeof kept), "the same bits");
}

// Derivatives inside of a body are those of each iteration: of l_i = w^2 x_i with respect to w, x and x_i, also through an operation
// that is decomposed.
static void test_inside(void) {
    nt_tape *t = nt_tape_open(NULL);
    double data[4] = { 0.5, -1, 2, 3 }, two = 2, got[4], far[16], worst = 0;
    nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(4), data), *w = nt_variable(t, NT_F64, NT_SCALAR, &two);
    nt_map *m = nt_map_begin(t, 4, NULL);
    nt_tensor *xi = nt_map_slice(m, x), *l = nt_mul(nt_square(w), xi), *p = nt_prod_axes(nt_stack(NT_LIST(w, w, xi), 0), NT_AXES(0), 0);
    nt_tensor *list[5] = { nt_map_stack(m, nt_grad(l, w)), nt_map_stack(m, nt_grad(l, xi)), nt_map_stack(m, nt_grad(l, x)),
                           nt_map_stack(m, nt_grad(p, w)), nt_map_stack(m, nt_grad(nt_grad(nt_mul(nt_tanh(w), xi), xi), w)) };
    nt_map_end(m);
    nt_params outputs = { 5, list };
    nt_program *program = nt_compile_many(t, outputs, NULL);
    int ok = program && nt_run(program) == NT_OK;
    for (int k = 0; ok && k < 5; k++) {
        if (k == 2) nt_read(program, k, far);
        else nt_read(program, k, got);
        for (int i = 0; i < 4; i++) {
            double slope = 1 - tanh(2) * tanh(2), wanted = k == 0 || k == 3 ? 4 * data[i] : k == 1 ? 4 : slope;
            if (k != 2) worst = fmax(worst, fabs(got[i] - wanted));
            else
                for (int j = 0; j < 4; j++) worst = fmax(worst, fabs(far[4 * i + j] - (i == j ? 4 : 0)));
        }
    }
    tap_ok(ok && worst < 1e-13, "derivatives inside of a body: %g%s%s", worst, ok ? "" : ": ", ok ? "" : nt_error(t));
    nt_error_clear(t);
    nt_tensor *i = nt_cast(nt_map_index(m), NT_F64), *s = nt_map_sum(m, nt_square(i)), *outside = nt_substitute(s, NT_LIST(i), NT_LIST(nt_scalar(t, NT_F64, 3)));
    double sum = 0;
    tap_ok(nt_eval(outside, &sum) == NT_OK && sum == 36, "a value of the body replaced by one from outside: %g", sum);
    tap_ok(!nt_compile_step(l, nt_sgd(t, NULL), NULL), "a value of a body is no loss");
    expect_error(t, NT_ERROR_STATE, "belongs to the body of a map", "a value of a body as loss");
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.weight = xi;
    tap_ok(!nt_compile_step(nt_map_sum(m, l), nt_multi_steps(nt_sgd(t, NULL), 2), &desc), "nor a weight");
    expect_error(t, NT_ERROR_STATE, "belongs to the body of a map", "a value of a body as weight");
    nt_tape_close(t);
}

static void test_data(void) { // an index out of range in a body names the iterations that it was found in
    static const int32_t good[12] = { 0, 1, 2, 0, 1, 2, 0, 1, 9, 0, 1, 2 };
    static const float table[3] = { 1, 2, 3 };
    for (int nested = 0; nested < 2; nested++) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(3), table), *w = nt_variable(t, NT_F32, NT_SCALAR, table);
        nt_tensor *rows = nt_input(t, NT_I32, nested ? NT_SHAPE(4, 3, 1) : NT_SHAPE(4, 3));
        nt_write(rows, good);
        nt_map *m = nt_map_begin(t, 4, NULL), *inner = nested ? nt_map_begin(t, 3, NULL) : NULL;
        nt_tensor *at = nt_map_slice(m, rows), *picked = nt_gather(x, nested ? nt_map_slice(inner, at) : at, 0);
        nt_tensor *sum = nt_map_sum(m, nested ? nt_map_sum(inner, nt_sum(picked)) : nt_sum(picked));
        if (nested) nt_map_end(inner);
        nt_map_end(m);
        nt_compile_desc d;
        memset(&d, 0, sizeof d);
        d.assigns = NT_LIST(nt_assign(w, sum));
        nt_program *p = nt_compile(sum, &d);
        tap_ok(p && nt_run(p) == NT_ERROR_DATA && *(float *)nt_data(w) == 1, "an index out of range in a body: nothing is assigned");
        expect_error(t, NT_ERROR_DATA, nested ? "element 0 is 9, outside 0 to 2, in iteration 2 (of 0 to 3), iteration 2 (of 0 to 2)" : "element 2 is 9, outside 0 to 2, in iteration 2 (of 0 to 3)", nested ? "in a body of a body" : "in a body");
        nt_tape_close(t);
    }
}

static void test_errors(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(4), NULL), *scalar = nt_variable(t, NT_F32, NT_SCALAR, NULL);
    tap_ok(!nt_map_begin(t, 0, NULL), "no map of 0 iterations");
    expect_error(t, NT_ERROR_ARGUMENT, "count is 0", "0 iterations");
    nt_map *m = nt_map_begin(t, 3, NULL);
    nt_map_slice(m, x);
    expect_error(t, NT_ERROR_SHAPE, "first axis is not 3", "a slice of another size");
    nt_tensor *y = nt_mul(x, nt_cast(nt_map_index(m), NT_F32)), *sum = nt_map_sum(m, y);
    nt_add(y, sum);
    expect_error(t, NT_ERROR_STATE, "has not ended", "a value of the body with an unfinished result");
    nt_assign(x, y);
    expect_error(t, NT_ERROR_STATE, "assignment in the body", "an assignment in a body");
    nt_map *inner = nt_map_begin(t, 2, NULL);
    nt_tensor *z = nt_mul(y, nt_cast(nt_map_index(inner), NT_F32));
    nt_map_sum(m, z);
    expect_error(t, NT_ERROR_STATE, "inside of this one", "a sum over the outer map of a value of the inner one");
    nt_map_end(m);
    expect_error(t, NT_ERROR_STATE, "has not ended", "the outer map ends first");
    nt_map_end(inner), nt_map_end(m);
    nt_map *failed = nt_map_begin(t, 2, NULL);
    nt_matmul(x, nt_map_index(failed)), nt_map_end(failed);
    nt_error_clear(t);
    tap_ok(!t->open, "a map ends after an error in its body");
    tap_ok(!nt_compile(y, NULL), "a value of a body is no output");
    expect_error(t, NT_ERROR_STATE, "belongs to the body of a map", "a value of a body as output");
    nt_map *other = nt_map_begin(t, 3, NULL);
    nt_add(y, nt_cast(nt_map_index(other), NT_F32));
    expect_error(t, NT_ERROR_STATE, "another map", "values of two maps");
    nt_map_end(other);
    nt_map *deep[16];
    int n = 0;
    while (n < 16 && (deep[n] = nt_map_begin(t, 2, NULL)) != NULL) n++;
    tap_is_int(n, 8, "eight maps deep");
    expect_error(t, NT_ERROR_ARGUMENT, "at most 8", "nine maps deep");
    while (n--) nt_map_end(deep[n]);
    nt_map *again = nt_map_begin(t, 2, NULL);
    tap_ok(again && !nti_n(nt_map_index(again))->loop->parent, "all maps have ended");
    nt_marker mark = nt_mark(t);
    nt_map_begin(t, 2, NULL);
    nt_rewind(t, mark);
    nt_map_end(again);
    tap_ok(!nt_error(t), "a rewind ends the maps that are newer");
    tap_ok(nt_compile(nt_map_mean(again, scalar), NULL) != NULL, "the mean of what does not change");
    nt_scan_step step = { bad_step, NULL };
    nt_params none = { 0, NULL };
    nt_scan(t, 4, NT_LIST(scalar), none, step, NULL);
    expect_error(t, NT_ERROR_SHAPE, "in step 3", "a carry that changes its shape");
    nt_scan(t, 3, NT_LIST(scalar), NT_LIST(x), step, NULL);
    expect_error(t, NT_ERROR_SHAPE, "first axis of operand 0", "a scan over another number of parts");
    nt_scan(t, -1, NT_LIST(scalar), none, step, NULL);
    expect_error(t, NT_ERROR_ARGUMENT, "-1 steps", "a scan of -1 steps");
    nt_scan(t, (int64_t)1 << 40, NT_LIST(scalar), none, step, NULL);
    expect_error(t, NT_ERROR_ARGUMENT, "at most 1073741823 steps", "a scan of too many steps");
    nt_tape_close(t);
}

int main(int argc, char **argv) {
    if (argc > 1) {
        tap_ok(agree(strtoull(argv[1], NULL, 10), argc > 2 ? atoi(argv[2]) : 1, 1), "seed %s", argv[1]);
        return tap_end();
    }
    test_random();
    test_batches();
    test_memory();
    for (int k = 0; k < 6; k++) test_scan(k & 1, k / 2 * 3);
    test_segments();
    test_body_checkpoints();
    test_inside();
    test_errors();
    test_data();
    return tap_end();
}
