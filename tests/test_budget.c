// Memory by budget: plans that recompute against plans that keep. The same bits at every point of the curve, a curve that only
// falls, errors that name the budget that works, checkpoints, what a ViT costs. Looks at plans inside.
#define NTTRAIN_IMPLEMENTATION
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE
#endif
#include "../nttrain.h"
#include "graphs.h"
#include <time.h>

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// ---------------------------------------------------------------------------------------------------------------------
// Random graphs, most of them with gradients and assignments
// ---------------------------------------------------------------------------------------------------------------------
static void random_one(graph *g, nt_tape *t, uint64_t seed) {
    graph_make(g, t, seed, 10 + (int)(seed % 90), 24, 20000, 0);
    if (seed % 4 == 3 || nt_error(t)) return;
    // a chain of layers with dropout behind it: values that wait for their derivative
    nt_tensor *h = nt_reshape(graph_any(g), NT_SHAPE(-1)), *wanted[5];
    for (int k = 0; k < 3 + (int)(seed % 5); k++) {
        nt_tensor *w = nt_variable(t, NT_F64, NT_SHAPE(1), NULL);
        g->variable[g->variables < GRAPH_VARIABLES ? g->variables++ : GRAPH_VARIABLES - 1] = w;
        h = nt_tanh(nt_add(nt_sin(h), w));
        h = nt_mul(h, nt_uniform(nt_fold_in(nt_key_tensor(t, nt_key(seed)), nt_scalar(t, NT_U32, k)), NT_F64, nt_shape_of(h), 0, 1));
    }
    nt_tensor *loss = nt_add(nt_sum(nt_square(graph_any(g))), nt_sum(h));
    int n = 0;
    for (int k = 0; k < g->variables && n < 5; k++) wanted[n++] = g->variable[k];
    nt_params grads = nt_grads(loss, nti_list(wanted, n));
    g->outputs = 0, g->assigns = 0;
    g->output[g->outputs++] = loss;
    for (int k = 0; k < grads.count; k++)
        if (k % 2 && g->outputs < GRAPH_OUTPUTS) g->output[g->outputs++] = grads.items[k];
        else if (g->assigns < GRAPH_ASSIGNS) g->assign[g->assigns++] = nt_assign(wanted[k], nt_sub(wanted[k], nt_scale(grads.items[k], 0.1)));
}

typedef struct results { unsigned char *data; size_t bytes; } results; // outputs, then variables

static int run_all(graph *g, nt_program *p, unsigned char *const *start, results *r) {
    for (int k = 0; k < g->variables; k++) nt_write(g->variable[k], start[k]);
    if (!p || nt_run(p) != NT_OK) return 0;
    r->bytes = 0;
    for (int k = 0; k < g->outputs; k++) r->bytes += nt_output_bytes(p, k);
    for (int k = 0; k < g->variables; k++) r->bytes += nt_bytes(g->variable[k]);
    r->data = (unsigned char *)naive_bytes(r->bytes);
    size_t at = 0;
    for (int k = 0; k < g->outputs; k++) memcpy(r->data + at, nt_output(p, k), nt_output_bytes(p, k)), at += nt_output_bytes(p, k);
    for (int k = 0; k < g->variables; k++) memcpy(r->data + at, nt_data(g->variable[k]), nt_bytes(g->variable[k])), at += nt_bytes(g->variable[k]);
    return 1;
}

// The number behind "needs" in a message.
static size_t needed(const char *message) {
    const char *at = message ? strstr(message, "needs ") : NULL;
    size_t n = 0;
    for (at = at ? at + 6 : ""; (*at >= '0' && *at <= '9') || *at == ','; at++)
        if (*at != ',') n = 10 * n + (size_t)(*at - '0');
    return n;
}

typedef struct tally { int graphs, plans, curved, bits, curve, exact, refused, literal, wrong; long again; } tally;

static void check_graph(graph *g, uint64_t seed, tally *a) {
    nt_tape *t = g->t;
    nt_budget_point point[NTI_POINTS];
    unsigned char *start[GRAPH_VARIABLES];
    results plain, r;
    nt_compile_desc d;
    memset(&d, 0, sizeof d);
    d.assigns = nti_list(g->assign, g->assigns);
    nt_params outputs = nti_list(g->output, g->outputs);
    for (int k = 0; k < g->variables; k++) start[k] = (unsigned char *)naive_bytes(nt_bytes(g->variable[k])), memcpy(start[k], nt_data(g->variable[k]), nt_bytes(g->variable[k]));
    nt_program *p = nt_compile_many(t, outputs, &d);
    if (!run_all(g, p, start, &plain)) { a->wrong++; tap_note("seed %llu: %s", (unsigned long long)seed, nt_error(t) ? nt_error(t) : "?"); return; }
    int count = nt_budget_curve(t, outputs, &d, point, NTI_POINTS);
    a->graphs++, a->curved += count > 1;
    a->curve += count >= 1 && point[0].bytes == nt_report(p).peak && point[0].time_ratio == 1;
    if (!count || point[0].bytes != nt_report(p).peak || point[0].time_ratio != 1) tap_note("seed %llu: point 0 of %d is %zu bytes and %.17g times; the plan %zu", (unsigned long long)seed, count, count ? point[0].bytes : 0, count ? point[0].time_ratio : 0, nt_report(p).peak);
    for (int k = 1; k < count; k++) a->wrong += point[k].bytes >= point[k - 1].bytes || point[k].time_ratio < point[k - 1].time_ratio;
    for (int k = 0; k < count; k += 1 + count / 6) {
        nt_marker mark = nt_mark(t);
        d.budget = point[k].bytes;
        p = nt_compile_many(t, outputs, &d);
        nt_report_info i = nt_report(p);
        a->plans++, a->again += i.recomputed;
        a->exact += p && i.peak == point[k].bytes && i.recomputed_flops == point[k].recomputed_flops && i.flops == point[k].flops;
        if (run_all(g, p, start, &r)) {
            int same = r.bytes == plain.bytes && !memcmp(r.data, plain.data, r.bytes);
            if (!same) tap_note("seed %llu: other bits at %zu of %zu bytes", (unsigned long long)seed, point[k].bytes, point[0].bytes);
            a->bits += same;
            free(r.data);
        }
        nt_rewind(t, mark);
    }
    size_t least = count ? point[count - 1].bytes : 0;
    if (least > 1) {
        nt_error_clear(t);
        d.budget = least - 1;
        a->refused += !nt_compile_many(t, outputs, &d) && nt_error_status(t) == NT_ERROR_BUDGET;
        d.budget = needed(nt_error(t));
        a->literal += d.budget == least && nt_compile_many(t, outputs, &d) != NULL;
    } else a->refused++, a->literal++;
    for (int k = 0; k < g->variables; k++) free(start[k]);
    free(plain.data);
}

static void test_random(void) {
    enum { GRAPHS = 400 };
    tally a;
    memset(&a, 0, sizeof a);
    graph *g = (graph *)malloc(sizeof *g);
    for (uint64_t seed = 1; seed <= GRAPHS; seed++) {
        nt_tape *t = nt_tape_open(NULL);
        random_one(g, t, seed);
        if (nt_error(t)) tap_note("seed %llu: %s", (unsigned long long)seed, nt_error(t));
        check_graph(g, seed, &a);
        nt_tape_close(t);
    }
    free(g);
    tap_ok(a.graphs == GRAPHS && !a.wrong && a.curve == a.graphs, "the curves of %d random graphs start with the plan without a budget and fall", a.graphs);
    tap_ok(a.bits == a.plans && a.plans > GRAPHS, "%d plans give the bits of the plain ones (%ld instructions come again)", a.plans, a.again);
    tap_ok(a.exact == a.plans, "each compiled with its bytes as the budget takes these bytes and that arithmetic");
    tap_ok(a.refused == a.graphs && a.literal == a.graphs, "a byte less than the least fails with an error that names it, and it works");
    tap_ok(a.curved > GRAPHS / 3, "%d graphs have more than one plan", a.curved);
}

// Plans seen from outside: lives, operands, addresses.
static void test_plans(void) {
    int bad = 0, plans = 0;
    graph *g = (graph *)malloc(sizeof *g);
    for (uint64_t seed = 1; seed <= 300; seed++) {
        nt_tape *t = nt_tape_open(NULL);
        random_one(g, t, seed);
        nt_compile_desc d;
        nti_compile_job job;
        nti_made zero, a;
        nti_curve c;
        memset(&d, 0, sizeof d), memset(&job, 0, sizeof job), memset(&zero, 0, sizeof zero);
        zero.g.tape = t, job.name = "test", job.desc = &d, job.outputs = nti_list(g->output, g->outputs), job.effects = nti_list(g->assign, g->assigns);
        size_t low = t->low.used;
        if (!nti_compile_passes(&zero.g, &zero.s, &job) || !nti_curve_begin(&c, &zero.g, &zero.s)) bad++;
        else do {
                size_t mark = t->low.used;
                const char *wrong = nti_curve_made(&c, &zero, &a, &job, low) ? schedule_wrong(&a.g, &a.s) : "no memory";
                if (!wrong && (size_t)c.m.peak != a.s.bound) wrong = "the search had another bound than the plan";
                if (wrong && bad++ < 5) tap_note("seed %llu: %s", (unsigned long long)seed, wrong);
                plans++;
                nti_end_rewind(t, &t->low, mark);
            } while (nti_curve_next(&c));
        nti_end_rewind(t, &t->low, low);
        nt_tape_close(t);
    }
    free(g);
    tap_ok(!bad, "in %d plans no two buffers alive at once overlap, each holds its value to its last use, and the search counted as the plan does", plans);
}

int main(void) {
    double start = seconds();
    test_random();
    test_plans();
    tap_note("%.2f s", seconds() - start);
    return tap_end();
}
