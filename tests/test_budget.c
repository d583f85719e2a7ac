// Memory by budget: plans that recompute against plans that keep. The same bits at every point of the curve, a curve that only
// falls, errors that name the budget that works, checkpoints, what a ViT costs. Looks at plans inside.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "graphs.h"
#include "models.h"
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
        if (!nti_plan_graph(&zero.g, &zero.s, &job.outputs, &job.effects) || !nti_curve_begin(&c, &zero.g, &zero.s)) bad++;
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

// ---------------------------------------------------------------------------------------------------------------------
// A vision transformer: what is kept, what it costs to keep less. Planned only: its variables have no memory.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct vit { nt_tape *t; int64_t batch, tokens, dim, heads, depth; int unreal; } vit;

static nt_tensor *vit_param(const vit *v, int rank, int64_t rows, int64_t columns) {
    int64_t size[2] = { rows, columns };
    nt_tensor *x = nt_variable(v->t, NT_F32, v->unreal ? NT_SHAPE(1) : nt_shape_make(rank, size), NULL);
    if (!v->unreal) {
        for (int64_t k = 0; k < nt_size(x); k++) ((float *)nt_data(x))[k] = (float)(sin((double)(k * 37 % 1013)) / sqrt((double)rows + 1));
        return x;
    }
    nt_tensor *shape = nt_constant(v->t, NT_I64, NT_SHAPE(2), size); // its bytes live as long as the nodes
    x->shape = (const int64_t *)nti_n(shape)->storage, x->rank = rank;
    return x;
}
static nt_tensor *vit_dense(const vit *v, nt_tensor *x, int64_t in, int64_t out) { return nt_dense(x, vit_param(v, 2, in, out), vit_param(v, 1, out, 0)); }
static nt_tensor *vit_norm(const vit *v, nt_tensor *x) { return nt_layer_norm(x, vit_param(v, 1, v->dim, 0), vit_param(v, 1, v->dim, 0), 1e-6); }
static nt_tensor *vit_heads(const vit *v, nt_tensor *x) { return nt_reshape(x, NT_SHAPE(v->batch, v->tokens, v->heads, v->dim / v->heads)); }

static nt_tensor *vit_block(const vit *v, nt_tensor *x) {
    nt_tensor *a = vit_norm(v, x), *q = vit_heads(v, vit_dense(v, a, v->dim, v->dim)), *k = vit_heads(v, vit_dense(v, a, v->dim, v->dim));
    nt_tensor *o = nt_attention(q, k, vit_heads(v, vit_dense(v, a, v->dim, v->dim)), NULL, NULL);
    x = nt_add(x, vit_dense(v, nt_reshape(o, NT_SHAPE(v->batch, v->tokens, v->dim)), v->dim, v->dim));
    a = nt_gelu(vit_dense(v, vit_norm(v, x), v->dim, 4 * v->dim));
    return nt_add(x, vit_dense(v, a, 4 * v->dim, v->dim));
}

static nt_tensor *vit_loss(const vit *v, int checkpoints) {
    nt_tensor *image = nt_input(v->t, NT_F32, NT_SHAPE(v->batch, v->tokens, 48)), *label = nt_input(v->t, NT_I32, NT_SHAPE(v->batch));
    nt_tensor *x = vit_dense(v, image, 48, v->dim);
    for (int k = 0; k < v->depth; k++) {
        nt_tensor *in = x;
        x = vit_block(v, x);
        if (checkpoints) x = nt_checkpoint(x, nti_list(&in, 1));
    }
    x = nt_mean_axes(vit_norm(v, x), NT_AXES(1), 0);
    return nt_mean(nt_cross_entropy(vit_dense(v, x, v->dim, 10), label));
}

// The least arithmetic, as a factor of the first point's, with at most this share of its bytes.
static double vit_price(const nt_budget_point *p, int count, double share) {
    for (int k = 0; k < count; k++)
        if ((double)p[k].bytes <= share * (double)p[0].bytes) return p[k].flops / p[0].flops;
    return HUGE_VAL;
}

static void test_vit_large(void) {
    vit v = { nt_tape_open(NULL), 32, 577, 1024, 16, 24, 1 };
    nt_budget_point p[NTI_POINTS];
    nt_tensor *loss = vit_loss(&v, 0);
    double start = seconds(), unit = 4.0 * (double)(v.batch * v.tokens * v.dim);
    int count = nt_budget_curve_step(loss, nt_sgd(v.t, NULL), NULL, p, NTI_POINTS);
    double half = vit_price(p, count, 0.5), quarter = vit_price(p, count, 0.25), eighth = vit_price(p, count, 0.12), first = count ? (double)p[0].bytes / unit : 0;
    tap_note("%d points in %.2f s; the first %.1f dim a token, the last %.1f%s%s", count, seconds() - start, first, count ? (double)p[count - 1].bytes / unit : 0, nt_error(v.t) ? ": " : "",
             nt_error(v.t) ? nt_error(v.t) : "");
    // by count: block input, q k v, attention output, middle, before gelu: 10 dim a token and layer; 14 dim to work in
    tap_ok(first > 0 && first <= 1.02 * (10 * 24 + 14), "ViT-L: the plan without recomputation keeps %.1f dim a token (10 a layer and 14)", first);
    tap_ok(half <= 1.17, "ViT-L: half the scratch for %.1f %% more arithmetic", 100 * (half - 1));
    tap_ok(quarter <= 1.26, "ViT-L: a quarter for %.1f %% more", 100 * (quarter - 1));
    tap_ok(eighth <= 1.45, "ViT-L: 12 %% for %.1f %% more", 100 * (eighth - 1));
    nt_tape_close(v.t);
}

// The curve of a training step, point after point, as nt_budget_curve_step walks it.
typedef struct walk { nt_compile_desc desc; nti_compile_job job; nti_recipe recipe; nti_made zero; nti_curve curve; size_t low; } walk;

static int walk_begin(walk *w, nt_tensor *loss, nt_optimizer *o) {
    nti_recipe *r = &w->recipe;
    memset(w, 0, sizeof *w);
    r->name = "test", r->optimizer = o, r->loss = loss, r->params = nti_trained(loss, w->desc.params);
    int ok = nti_counters_of(o) && nti_record_gradients(r) && (r->gradients = nti_finish_list(loss->tape, r->gradients, r->params)).count && nti_record_effects(r);
    w->job.name = "test", w->job.desc = &w->desc, w->job.outputs = nti_list(&r->loss, 1), w->job.effects = r->effects, w->zero.g.tape = loss->tape;
    w->low = loss->tape->low.used;
    return ok && nti_plan_graph(&w->zero.g, &w->zero.s, &w->job.outputs, &w->job.effects) && nti_pass_repeat(&w->zero.g, &w->zero.s) && nti_curve_begin(&w->curve, &w->zero.g, &w->zero.s);
}

static int comes_again(const nti_graph *g, const nti_remake *m, int32_t p) {
    return g->work[m->sequence[p]] >= 0 && m->first[m->sequence[p]] != p;
}

// The sum of an MLP's second product, its bias and what goes around the MLP: the input of the next block.
static const nti_node *next_input(const nti_graph *g, const nti_node *product) {
    const nti_node *end = product;
    int sums = 0;
    for (int32_t j = 0; j < g->count && sums < 2; j++) { // in the order of recording
        const nti_node *y = g->value[j].node;
        if (!y || y->role != NTI_BOX_VALUE || !y->inputs || (y->in[0] != end && (y->inputs < 2 || y->in[1] != end))) continue;
        end = y, sums += y->op == NTI_OP_ADD;
    }
    return sums == 2 ? end : NULL;
}

static int input_dropped(const nti_graph *g, const nti_remake *m, const nti_node *product) {
    const nti_node *next = next_input(g, product);
    int again = 0;
    for (int32_t p = 0; p < m->length; p++) again |= comes_again(g, m, p) && g->value[g->work[m->sequence[p]]].node == next;
    return next && again;
}

// How often the second product of an MLP comes again at the first point with at most this share of the first one's bytes: at 12 % only
// where it takes part in the input of a block that was dropped, above that never.
static void test_second_product(void) {
    vit v = { nt_tape_open(NULL), 32, 577, 1024, 16, 24, 1 };
    static walk w;
    int ok = walk_begin(&w, vit_loss(&v, 0), nt_sgd(v.t, NULL));
    const nti_graph *g = &w.zero.g;
    const nti_remake *m = &w.curve.m;
    int64_t first = ok ? m->peak : 0;
    static const double share[] = { 0.5, 0.25, 0.12 };
    for (int k = 0; k < 3; k++) {
        int again = 0, kept = 0, at = 0;
        while (ok && (double)m->peak > share[k] * (double)first && nti_curve_next(&w.curve)) at++;
        for (int32_t p = 0; ok && p < m->length; p++) {
            const nti_value *x = comes_again(g, m, p) ? &g->value[g->work[m->sequence[p]]] : NULL;
            if (!x || x->op != NTI_OP_MATMUL || x->node->role != NTI_BOX_VALUE) continue;
            int second = x->node->in[0]->pub.shape[x->node->in[0]->pub.rank - 1] == 4 * v.dim;
            again += second, kept += second && !input_dropped(g, m, x->node);
        }
        if (share[k] < 0.25) tap_ok(at && !kept, "ViT-L at %.0f %%: the MLP's second product comes again %d times, %d of them without a dropped input", 100 * share[k], again, kept);
        else tap_ok(at && !again, "ViT-L at %.0f %%: the MLP's second product never comes again (%d)", 100 * share[k], again);
    }
    nt_tape_close(v.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Addresses come within two per cent of the lower bound at every point of the curves of all models
// ---------------------------------------------------------------------------------------------------------------------
enum { LENET, UNET, RESNET, VIT, VIT_DEEP, GRU, LSTM }; // the other models have a function of their own

static nt_layer *any_model(nt_tape *t, int kind) {
    static const int64_t widths[] = { 16, 32, 64, 64 };
    nt_vit_desc d;
    memset(&d, 0, sizeof d);
    d.patch = 4, d.dim = kind == VIT ? 96 : 192, d.depth = kind == VIT ? 6 : 12, d.heads = 3, d.outputs = 10, d.head_init.kind = NT_LECUN_NORMAL;
    switch (kind) {
    case LENET: return model_lenet(t, NT_F32, 6, 16, 128, 10);
    case UNET: return model_unet(t, NT_F32, 4, widths, 3);
    case RESNET: return model_resnet(t, NT_F32, 32, 32, 4, widths, 4, 10);
    case GRU: case LSTM: return model_rnn(t, NT_F32, kind == LSTM, 64, 10);
    default: return nt_vit_layer(t, &d);
    }
}

static nt_tensor *any_loss(nt_tape *t, int kind, int linearized) {
    int recurrent = kind == GRU || kind == LSTM;
    nt_tensor *x = recurrent ? nt_input(t, NT_F32, NT_SHAPE(16, 24, 16)) : nt_input(t, NT_F32, NT_SHAPE(8, 32, 32, 3));
    nt_layer *net = any_model(t, kind);
    if (nt_init(net, nt_key(1), x) != NT_OK) return NULL;
    nt_tensor *y = nt_apply(net, x, NULL);
    nt_params now = nt_parameters(net);
    if (linearized) y = nt_linearize(y, now, nt_freeze(t, now, NULL));
    return kind == UNET ? nt_mean(nt_square(nt_sub(y, x))) : nt_mean(nt_cross_entropy(y, nt_input(t, NT_I32, NT_SHAPE(recurrent ? 16 : 8))));
}

// A linearized training step needs hardly more scratch than a plain one: of a LeNet of 32 and 64 channels, and of vision transformers of two
// sizes with patches of 4.
static nt_layer *wide_lenet(nt_tape *t) {
    nt_conv_layer_desc c;
    memset(&c, 0, sizeof c), c.conv.padding = NT_SAME;
    nt_layer *first = NT_SERIAL(t, nt_conv_layer(t, 32, NT_WINDOW(3, 3), &c), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)));
    nt_layer *second = NT_SERIAL(t, nt_conv_layer(t, 64, NT_WINDOW(3, 3), &c), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)));
    return NT_SERIAL(t, first, second, nt_flatten_layer(t), nt_dense_layer(t, 128, NULL), nt_relu_layer(t), nt_dense_layer(t, 10, NULL));
}

static size_t step_scratch(int kind, int linearized) {
    nt_tape *t = nt_tape_open(NULL);
    nt_sgd_desc s;
    memset(&s, 0, sizeof s), s.learning_rate = 0.01, s.momentum = 0.9;
    nt_tensor *x = kind == LENET ? nt_input(t, NT_F32, NT_SHAPE(32, 28, 28, 1)) : nt_input(t, NT_F32, NT_SHAPE(8, 32, 32, 3));
    nt_layer *net = kind == LENET ? wide_lenet(t) : any_model(t, kind);
    nt_tensor *label = nt_input(t, NT_I32, nt_shape_make(1, x->shape));
    nt_tensor *y = nt_init(net, nt_key(1), x) == NT_OK ? nt_apply(net, x, NULL) : NULL;
    nt_params now = nt_parameters(net);
    if (linearized) y = nt_linearize(y, now, nt_freeze(t, now, NULL));
    nt_program *p = nt_compile_step(nt_mean(nt_cross_entropy(y, label)), nt_sgd(t, &s), NULL);
    size_t peak = p ? nt_report(p).peak : 0;
    if (!p) tap_note("%s", nt_error(t) ? nt_error(t) : "?");
    nt_tape_close(t);
    return peak;
}

static void test_linearized(void) {
    static const struct { const char *name; int kind; double most; } model[] = {
        { "LeNet, batch 32", LENET, 1.10 }, { "ViT 96 x 6, batch 8", VIT, 1.10 }, { "ViT 192 x 12, batch 8", VIT_DEEP, 1.05 }
    };
    for (size_t k = 0; k < sizeof model / sizeof *model; k++) {
        double plain = (double)step_scratch(model[k].kind, 0), linearized = (double)step_scratch(model[k].kind, 1);
        tap_ok(plain > 0 && linearized > 0 && linearized <= model[k].most * plain,
               "%s: a linearized step has %.3f of the plain step's scratch, %.0f of %.0f bytes", model[k].name, linearized / plain, linearized, plain);
    }
}

static nt_tensor *encdec_loss(nt_tape *t, int looped) {
    static model_params params;
    model_encdec d = { 256, 32, 1, 0, nt_tanh };
    d.looped = looped, params.count = 0;
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(16, 784)), *noise = nt_input(t, NT_F32, NT_SHAPE(16, 16, 32));
    return nt_neg(nt_mean(model_encdec_record(t, NT_F32, &params, nt_key(1), x, noise, &d)));
}

static nt_tensor *gpt_loss(nt_tape *t, int deep) {
    static model_params params;
    static model_gpt_heads heads = { 4 };
    int64_t batch = deep ? 4 : 8, time = deep ? 32 : 64;
    params.count = 0;
    nt_tensor *x = nt_input(t, NT_I32, NT_SHAPE(batch, time)), *y = nt_input(t, NT_I32, NT_SHAPE(batch, time));
    return nt_mean(nt_cross_entropy(model_gpt(t, NT_F32, &params, nt_key(1), x, 256, time, deep ? 64 : 128, deep ? 8 : 4, &heads), y));
}

static void test_addresses(void) {
    static const struct { const char *name; nt_tensor *(*loss)(nt_tape *t, int variant); int kind, variant; } model[] = {
        { "LeNet", NULL, LENET, 0 },       { "LeNet, linearized", NULL, LENET, 1 },  { "UNet", NULL, UNET, 0 },
        { "UNet, linearized", NULL, UNET, 1 }, { "ResNet", NULL, RESNET, 0 },        { "ResNet, linearized", NULL, RESNET, 1 },
        { "GRU", NULL, GRU, 0 },           { "LSTM", NULL, LSTM, 0 },                { "ViT 96 x 6", NULL, VIT, 0 },
        { "ViT 96 x 6, linearized", NULL, VIT, 1 }, { "ViT 192 x 12", NULL, VIT_DEEP, 0 }, { "ViT 192 x 12, linearized", NULL, VIT_DEEP, 1 },
        { "encoder and decoder", encdec_loss, 0, 0 }, { "encoder and decoder, looped", encdec_loss, 0, 1 },
        { "GPT 128 x 4", gpt_loss, 0, 0 }, { "GPT 64 x 8", gpt_loss, 0, 1 },
    };
    static walk w;
    for (size_t k = 0; k < sizeof model / sizeof *model; k++) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *loss = model[k].loss ? model[k].loss(t, model[k].variant) : any_loss(t, model[k].kind, model[k].variant);
        double worst = 1, start = seconds();
        size_t first = 0, last = 0;
        int points = 0, bad = !loss || !walk_begin(&w, loss, nt_adamw(t, NULL));
        while (!bad) {
            size_t mark = t->low.used;
            nti_made a;
            bad = !nti_curve_made(&w.curve, &w.zero, &a, &w.job, w.low) || schedule_wrong(&a.g, &a.s) || (size_t)w.curve.m.peak != a.s.bound;
            if (bad) break;
            double ratio = (double)a.s.peak / (double)a.s.bound;
            worst = ratio > worst ? ratio : worst, last = a.s.peak, first = points++ ? first : last;
            nti_end_rewind(t, &t->low, mark);
            if (!nti_curve_next(&w.curve)) break;
        }
        tap_ok(!bad && points > 1 && worst <= 1.02, "%s: within %.4f of the lower bound at all %d points, from %zu to %zu bytes", model[k].name, worst, points, first, last);
        tap_note("%.2f s%s%s", seconds() - start, nt_error(t) ? ": " : "", nt_error(t) ? nt_error(t) : "");
        nt_tape_close(t);
    }
}

// The same bits with checkpoints, in less memory; with a budget on top in less still.
static double vit_step(int checkpoints, double share, nt_report_info *report) {
    vit v = { nt_tape_open(NULL), 4, 17, 32, 4, 6, 0 };
    nt_compile_desc d;
    memset(&d, 0, sizeof d);
    nt_tensor *loss = vit_loss(&v, checkpoints);
    nt_optimizer *o = nt_sgd(v.t, NULL);
    if (share < 1) d.budget = (size_t)(share * (double)report->peak);
    nt_program *p = nt_compile_step(loss, o, &d);
    if (!p) tap_note("%s", nt_error(v.t) ? nt_error(v.t) : "?");
    for (nti_object *x = v.t->objects; x; x = x->previous) { // inputs
        nti_node *n = x->kind == NTI_LEAF ? (nti_node *)nti_object_body(x) : NULL;
        if (!n || n->op != NTI_OP_INPUT) continue;
        char *data = (char *)naive_bytes(nt_bytes(&n->pub));
        memset(data, 0, nt_bytes(&n->pub));
        for (int64_t k = 0; n->pub.dtype == NT_F32 && k < nt_size(&n->pub); k++) ((float *)(void *)data)[k] = (float)sin((double)k);
        nt_write(&n->pub, data);
        free(data);
    }
    double sum = 0;
    float value = 0;
    for (int k = 0; p && k < 3; k++)
        if (nt_run(p) == NT_OK && nt_read(p, 0, &value) == NT_OK) sum = 3 * sum + value;
    *report = nt_report(p);
    nt_tape_close(v.t);
    return p ? sum : -1;
}

static void test_checkpoint(void) {
    nt_report_info plain, marked, small;
    memset(&plain, 0, sizeof plain), memset(&marked, 0, sizeof marked);
    double want = vit_step(0, 1, &plain), got = vit_step(1, 1, &marked);
    tap_ok(got == want && want != -1, "a ViT with a checkpoint a block: the same bits (%.9g, %.9g)", want, got);
    tap_ok(marked.recomputed > 0 && 3 * marked.peak < 2 * plain.peak, "and %zu bytes instead of %zu for %.1f %% more time", marked.peak, plain.peak, 100 * (marked.time / plain.time - 1));
    small = marked;
    got = vit_step(1, 0.8, &small);
    tap_ok(got == want && small.peak < marked.peak, "with a budget on top: the same bits in %zu", small.peak);
    small = plain;
    got = vit_step(0, 0.5, &small);
    tap_ok(got == want && 2 * small.peak <= plain.peak && small.time_ratio > 1, "half the budget without checkpoints: the same bits in %zu for %.1f %% more time", small.peak, 100 * (small.time_ratio - 1));
}

// Checkpoints that were rewound cost nothing any more: the thousandth recording is planned in the bytes of the first.
static void test_checkpoints_again(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(8), NULL);
    nt_checkpoint(nt_sin(nt_cos(x)), NT_LIST(x)); // stays: its number is not given again
    nt_marker mark = nt_mark(t);
    size_t first = 0, last = 0;
    for (int k = 0; k < 1000; k++) {
        nt_tensor *y = x;
        for (int j = 0; j < 20; j++) {
            nt_tensor *in = y;
            y = nt_checkpoint(nt_sin(nt_cos(y)), NT_LIST(in));
        }
        nt_program *p = nt_compile(nt_grad(nt_sum(y), x), NULL);
        if (p && !k) first = nt_report(p).total;
        last = p ? nt_report(p).total : 0;
        nt_rewind(t, mark);
    }
    tap_ok(first && last == first, "checkpoints recorded and rewound a thousand times: %zu bytes of tape, %zu the first time", last, first);
    nt_tape_close(t);
}

// A hundred values of 2^57 bytes at once: more than bytes can be counted in.
static void test_uncountable(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_iota(t, NT_F64, NT_SHAPE((int64_t)1 << (sizeof(size_t) == 8 ? 54 : 24)), 0), *y[100];
    for (int k = 0; k < 100; k++) y[k] = nt_scale(x, 2 + k);
    for (int k = 0; k < 2; k++) {
        nt_compile_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.budget = k ? 1 << 20 : 0;
        nt_program *p = nt_compile_many(t, nti_list(y, 100), &desc);
        tap_ok(!p && (nt_error_status(t) == NT_ERROR_MEMORY || sizeof(size_t) < 8), "a plan of more bytes than can be counted%s: %s",
               k ? ", with a budget" : "", nt_error(t) ? nt_error(t) : "no error");
        nt_error_clear(t);
    }
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// The time that the curve takes
// ---------------------------------------------------------------------------------------------------------------------
static void test_time(int most) {
    for (int nodes = 1000; nodes <= most; nodes *= 10) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(16), NULL), *y = x;
        nt_budget_point p[NTI_POINTS];
        for (int k = 0; k < nodes / 3; k++) y = nt_sin(y);
        y = nt_grad(nt_sum(y), x);
        double start = seconds();
        nt_program *q = nt_compile(y, NULL);
        double plain = seconds() - start;
        start = seconds();
        int count = nt_budget_curve(t, nti_list(&y, 1), NULL, p, NTI_POINTS);
        tap_ok(q && count > 1, "the curve of %d nodes: from %zu to %zu bytes", nodes, count ? p[0].bytes : 0, count ? p[count - 1].bytes : 0);
        tap_note("compiled in %.3f s, the curve of %d points in %.3f s", plain, count, seconds() - start);
        nt_tape_close(t);
    }
}

int main(int argc, char **argv) {
    (void)argv;
    double start = seconds();
    test_random();
    test_plans();
    test_checkpoint();
    test_checkpoints_again();
    test_uncountable();
    test_vit_large();
    test_second_product();
    test_linearized();
    test_addresses();
    test_time(argc > 1 ? 100000 : 10000); // any argument: the largest, too
    tap_note("%.2f s", seconds() - start);
    return tap_end();
}
