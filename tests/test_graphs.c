// Random graphs against an evaluator that takes one node after the other (graphs.h): every operation, views, shared and repeated
// subexpressions, outputs of every kind, assignments, gradients, programs that share scratch. A failure prints its seed:
// build/test_graphs SEED runs that one.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "graphs.h"

static uint8_t seen[NTI_OP_COUNT]; // operations that some graph had

typedef struct tally { int graphs, failures, inexact, skipped; double worst; long nodes, instructions; } tally;

static nt_program *compile(graph *g, nt_program *share) {
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.assigns = nti_list(g->assign, g->assigns), desc.share_scratch = share;
    return nt_compile_many(g->t, nti_list(g->output, g->outputs), &desc);
}

// The host's threads as an enemy would write them: one thread, the last tile first, another worker each time.
static void backwards(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    int workers = *(int *)user;
    for (int64_t k = n - 1; k >= 0; k--) fn(arg, k, (int)(k % workers));
}

static int differs(tally *s, const char *what, int k, double difference, double limit) {
    if (difference > 0) s->inexact++;
    if (difference > s->worst) s->worst = difference;
    if (difference <= limit) return 0;
    tap_note("%s %d differs by %g", what, k, difference);
    return 1;
}

// The sine of a large number keeps nothing of a difference in the last bit: such graphs are not compared within a limit.
static int too_large(const naive *e) {
    for (size_t k = 0; k < e->size; k++) {
        const nti_node *n = e->slot[k].node;
        for (int64_t i = 0; n && n->pub.dtype == NT_F64 && i < nt_size(&n->pub); i++)
            if (!(fabs(((const double *)e->slot[k].data)[i]) < 1e4)) return 1;
    }
    return 0;
}

// Runs p and compares outputs, and variables afterwards.
static int check_run(graph *g, tally *s, nt_program *p, double limit) {
    naive e;
    int bad = 0;
    nt_tensor *leaf[2 * GRAPH_VARIABLES];
    for (int k = 0; k < g->variables; k++) leaf[k] = g->variable[k];
    for (int k = 0; k < g->inputs; k++) leaf[g->variables + k] = g->input[k];
    naive_run(&e, g->t, nti_list(leaf, g->variables + g->inputs), limit > 0);
    if (nt_run(p) != NT_OK) {
        tap_note("nt_run: %s", nt_error(g->t) ? nt_error(g->t) : "?");
        bad = 1;
    }
    int skip = limit > 0 && too_large(&e);
    s->skipped += skip;
    for (int k = 0; k < g->outputs && !bad && !skip; k++) {
        const nt_tensor *y = g->output[k];
        bad = differs(s, "output", k, naive_difference(y->dtype, nt_output(p, k), naive_data(&e, y), nt_size(y)), limit);
    }
    for (int k = 0; k < g->variables && !bad && !skip; k++) {
        const nt_tensor *v = g->variable[k], *want = v;
        for (int j = 0; j < g->assigns; j++)
            if (nti_n(g->assign[j])->in[0] == nti_n(v)) want = g->assign[j];
        bad = differs(s, "variable", k, naive_difference(v->dtype, nt_data(v), naive_data(&e, want), nt_size(v)), limit);
    }
    naive_free(&e);
    return bad;
}

static int check_graph(uint64_t seed, tally *s, int gradients) {
    nt_tape_desc desc;
    int workers = 1 + (int)(seed / 3 % 4);
    memset(&desc, 0, sizeof desc);
    desc.parallel.user = &workers, desc.parallel.max_workers = workers, desc.parallel.for_each = backwards;
    nt_tape *t = nt_tape_open(&desc);
    graph *g = (graph *)malloc(sizeof *g);
    int smooth = gradients ? 0 : (int)(seed % 2), bad = 0, steps = 3 + (int)(seed % 40);
    if (!g || !t) abort();
    int large = seed % 8 == 0;
    graph_make(g, t, seed, steps, large ? 60 : 5, large ? 6000 : 400, smooth);
    if (gradients) { // of the sum of everything smooth enough, to a few leaves
        nt_tensor *loss = nt_sum(graph_any(g)), *wanted[GRAPH_OUTPUTS];
        int n = 0;
        loss = nt_add(loss, nt_sum(graph_any(g)));
        for (int k = 0; k < g->variables && n < 3; k++) wanted[n++] = g->variable[k];
        for (int k = 0; k < g->inputs && n < GRAPH_OUTPUTS - 1; k++) wanted[n++] = g->input[k];
        nt_params grads = nt_grads(loss, nti_list(wanted, n));
        if (grads.count && seed % 3 == 0) grads = nt_grads(nt_sum(nt_square(grads.items[0])), nti_list(wanted, n)); // and again
        g->outputs = 0;
        for (int k = 0; k < grads.count; k++) g->output[g->outputs++] = grads.items[k];
        g->output[g->outputs++] = loss;
    }
    if (nt_error(t)) {
        tap_note("recording: %s", nt_error(t));
        bad = 1;
    }
    nt_program *p = bad ? NULL : compile(g, NULL), *q = NULL;
    if (!p && !bad) {
        tap_note("nt_compile: %s", nt_error(t) ? nt_error(t) : "?");
        bad = 1;
    }
    double limit = smooth ? 1e-8 : 0;
    if (!bad) bad = check_run(g, s, p, limit);
    graph_refill(g);
    if (!bad) bad = check_run(g, s, p, limit); // variables have changed
    if (!bad && seed % 2) {                    // a second program on the same scratch, half the outputs; then the first again
        int outputs = g->outputs, assigns = g->assigns;
        g->outputs = (outputs + 1) / 2, g->assigns = assigns / 2;
        q = compile(g, p);
        if (!q && nt_error_status(t) != NT_ERROR_BUDGET) tap_note("sharing: %s", nt_error(t)), bad = 1;
        if (q) bad = check_run(g, s, q, limit);
        g->outputs = outputs, g->assigns = assigns;
        nt_error_clear(t);
        if (!bad) bad = check_run(g, s, p, limit);
    }
    if (!bad && nt_report(p).peak > 0 && nt_report(p).peak < nt_report(p).lower_bound) tap_note("the peak is below its bound"), bad = 1;
    for (const nti_node *n = t->first; n; n = n->next) seen[n->op] = 1;
    s->graphs++, s->failures += bad, s->nodes += (long)t->serial, s->instructions += p ? nt_report(p).instructions : 0;
    if (bad) tap_note("seed %llu%s", (unsigned long long)seed, gradients ? " (gradients)" : "");
    free(g);
    nt_tape_close(t);
    return bad;
}

// A training step that accumulates two micro-batches against the gradients themselves: gradients are computed into their accumulators
// where that is possible.
static int check_step(uint64_t seed, tally *s, int unused) {
    enum { K = 2 };
    nt_tape *t = nt_tape_open(NULL);
    graph *g = (graph *)malloc(sizeof *g);
    double *want[GRAPH_VARIABLES] = { NULL };
    int bad = 0, finite = 1;
    (void)unused;
    graph_make(g, t, seed, 3 + (int)(seed % 40), 6, 600, 0);
    nt_tensor *loss = nt_add(nt_sum(graph_any(g)), nt_mean(graph_any(g)));
    nt_params variables = nti_list(g->variable, g->variables), none = nti_list(NULL, 0);
    nt_params grads = g->variables ? nt_grads(loss, variables) : none;
    nt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.params = variables;
    nt_sgd_desc sgd = { 0.5, 0, 0 };
    nt_program *step = grads.count ? nt_compile_step(loss, nt_multi_steps(nt_sgd(t, &sgd), K), &d) : NULL;
    for (int k = 0; k < g->variables && step; k++) {
        want[k] = (double *)naive_bytes(nt_bytes(g->variable[k]));
        if (nt_bytes(g->variable[k])) memcpy(want[k], nt_data(g->variable[k]), nt_bytes(g->variable[k]));
    }
    for (int round = 0; round < K && step && !bad; round++) {
        naive e;
        graph_refill(g);
        naive_run(&e, t, variables, 0);
        for (int k = 0; k < g->variables; k++)
            for (int64_t i = 0; i < nt_size(g->variable[k]); i++) {
                double x = ((double *)naive_data(&e, grads.items[k]))[i];
                want[k][i] -= 0.5 * x / K, finite &= x - x == 0;
            }
        naive_free(&e);
        nt_status status = nt_run(step);
        finite &= status == NT_OK;
        bad = status != NT_OK && status != NT_NONFINITE;
    }
    for (int k = 0; k < g->variables && step && finite && !bad; k++)
        bad = differs(s, "trained variable", k, naive_difference(NT_F64, nt_data(g->variable[k]), want[k], nt_size(g->variable[k])), 1e-10);
    if (!step && nt_error(t)) tap_note("%s", nt_error(t)), bad = 1;
    for (const nti_node *n = t->first; n; n = n->next) seen[n->op] = 1;
    s->graphs++, s->failures += bad, s->nodes += (long)t->serial, s->instructions += step ? nt_report(step).instructions : 0;
    if (bad) tap_note("seed %llu (step)", (unsigned long long)seed);
    for (int k = 0; k < g->variables; k++) free(want[k]);
    free(g);
    nt_tape_close(t);
    return bad;
}

static void check_many(const char *what, uint64_t from, uint64_t to, int (*check)(uint64_t seed, tally *s, int gradients), int gradients) {
    tally s = { 0, 0, 0, 0, 0, 0, 0 };
    for (uint64_t seed = from; seed < to && s.failures < 8; seed++) check(seed, &s, gradients);
    tap_ok(!s.failures && s.graphs == (int)(to - from), "%d %s give what single nodes give", s.graphs, what);
    tap_note("%ld nodes, %ld instructions, %d of the compared values not bit for bit, the worst by %g; %d runs with large numbers not compared", s.nodes, s.instructions, s.inexact, s.worst, s.skipped);
}

// What random graphs do not have.
static void test_corners(void) {
    nt_tape *t = nt_tape_open(NULL);
    double three[3] = { 1, 2, 3 }, got[8] = { 0 };
    int32_t index[2] = { 0, 7 };
    nt_compile_desc d;
    memset(&d, 0, sizeof d);
    nt_program *p = nt_compile_many(t, nti_list(NULL, 0), NULL);
    tap_ok(p && nt_run(p) == NT_OK && nt_report(p).peak == 0, "a program without outputs does nothing");
    nt_tensor *v = nt_variable(t, NT_F64, NT_SHAPE(3), three), *c = nt_constant(t, NT_F64, NT_SHAPE(3), three), *f = nt_full(t, NT_F64, NT_SHAPE(3), 5), *none = nt_variable(t, NT_F64, NT_SHAPE(0, 3), NULL);
    nt_tensor *row = nt_slice_axis(nt_broadcast(nt_sin(v), NT_SHAPE(2, 3)), 0, 1, 2);
    p = nt_compile_many(t, NT_LIST(v, v, c, f, none, row, nt_sum_axes(none, NT_AXES(0), 0), nt_reshape(v, NT_SHAPE(3, 1))), NULL);
    int ok = p && nt_run(p) == NT_OK;
    for (int k = 0; k < 3 && ok; k++)
        ok = ((const double *)nt_output(p, 0))[k] == three[k] && ((const double *)nt_output(p, 1))[k] == three[k] && ((const double *)nt_output(p, 2))[k] == three[k] && ((const double *)nt_output(p, 3))[k] == 5 &&
             fabs(((const double *)nt_output(p, 5))[k] - sin(three[k])) < 1e-15 && ((const double *)nt_output(p, 6))[k] == 0 && ((const double *)nt_output(p, 7))[k] == three[k];
    tap_ok(ok && nt_output_bytes(p, 4) == 0 && nt_read(p, 4, got) == NT_OK, "outputs that are leaves, twice the same, constants, empty, views");
    nt_write(v, (double[]){ 9, 9, 9 });
    tap_ok(((const double *)nt_output(p, 0))[0] == 1 && nt_run(p) == NT_OK && ((const double *)nt_output(p, 0))[0] == 9, "an output is the value of the run, not the variable");
    nt_write(v, three);
    // an assignment that does not depend on the bad index must not happen either
    nt_tensor *i = nt_input(t, NT_I32, NT_SHAPE(2)), *w = nt_variable(t, NT_F64, NT_SHAPE(2), NULL), *assigns[2];
    assigns[0] = nt_assign(v, nt_scale(v, 2)), assigns[1] = nt_assign(w, nt_gather(v, i, 0));
    d.assigns = nti_list(assigns, 2);
    p = nt_compile_many(t, nti_list(NULL, 0), &d);
    ok = nt_run(p) == NT_ERROR_STATE;
    tap_ok(ok, "an input without data: %s", nt_error(t));
    nt_error_clear(t);
    nt_write(i, index);
    ok = nt_run(p) == NT_ERROR_DATA && ((double *)nt_data(v))[1] == 2 && ((double *)nt_data(w))[0] == 0;
    tap_ok(ok, "nothing was assigned: %s", nt_error(t));
    nt_error_clear(t);
    index[1] = 2;
    nt_write(i, index);
    ok = nt_run(p) == NT_OK && ((double *)nt_data(v))[1] == 4 && ((double *)nt_data(w))[0] == 1 && ((double *)nt_data(w))[1] == 3;
    tap_ok(ok, "with good data all assignments happen, from the values at the start");
    // equal constants and equal operations are one
    nt_tensor *a = nt_mul(nt_sin(v), nt_constant(t, NT_F64, NT_SHAPE(3), three)), *b = nt_mul(nt_sin(v), nt_constant(t, NT_F64, NT_SHAPE(3), three));
    p = nt_compile(nt_add(a, b), NULL);
    tap_is_int(nt_report(p).instructions, 3, "sin, mul and add remain of two equal products and their sum");
    nt_tensor *deep = v; // no recursion anywhere
    for (int k = 0; k < 50000; k++) deep = nt_add(nt_scale(deep, 0.5), v);
    nt_tensor *slope = nt_grad(nt_sum(deep), v);
    tap_ok(nt_eval(slope, got) == NT_OK && fabs(got[0] - 2) < 1e-12, "the gradient of a chain of 100,000 operations");
    nt_tape_close(t);
}

int main(int argc, char **argv) {
    uint64_t seed = argc > 1 ? (uint64_t)strtoull(argv[1], NULL, 10) : 0;
    if (argc > 1) {
        check_many("graph", seed, seed + 1, check_graph, 0);
        check_many("gradient", seed, seed + 1, check_graph, 1);
        check_many("step", seed, seed + 1, check_step, 0);
        return tap_end();
    }
    test_corners();
    check_many("random graphs", 1, 4001, check_graph, 0);
    check_many("graphs of gradients", 1, 1501, check_graph, 1);
    check_many("training steps", 1, 1501, check_step, 0);
    int count = 0;
    for (int op = 0; op < NTI_OP_COUNT; op++) count += seen[op];
    tap_note("%d of %d operations occurred", count, (int)NTI_OP_COUNT);
    return tap_end();
}
