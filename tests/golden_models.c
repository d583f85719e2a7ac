// golden_models DIR: whole networks against values from flax and JAX. Each is rebuilt from its specification (models.h), gets its
// parameters by name, and is compared in f64 and in f32: outputs, loss and gradients, the linearized network, the Taylor polynomial of
// degree 2 and the Hessian along a vector, all in one program; then three training steps in another.
#include "nttrain.h"
#include "golden.h"
#include "models.h"

typedef struct run { // one case in one dtype
    gd_case *c;
    nt_tape *t;
    nt_dtype dtype;
    int looped;         // samples one after the other, in nt_map
    nt_tensor *x, *labels, *noise, *out, *loss;
    nt_layer *net;      // NULL: recorded by itself
    model_params params;
    nt_tensor **params1;
} run;

static void *tape_failure(run *r, const char *call) {
    return gd_fail(r->c, "%s (%s): %s", call, nt_dtype_name(r->dtype), nt_error(r->t) ? nt_error(r->t) : "no message");
}

static int need_int(run *r, const char *key) {
    int64_t v = gd_need_int(r->c, r->c->spec, key);
    if (v < 1 || v > 1000000) gd_fail(r->c, "%s=%lld is not a size", key, (long long)v);
    return gd_stopped(r->c) ? 1 : (int)v;
}

static gd_ints need_sizes(run *r, const char *key) {
    gd_ints list = gd_need_ints(r->c, r->c->spec, key);
    for (int k = 0; k < list.count; k++) {
        if (list.at[k] < 1 || list.at[k] > 1000000) gd_fail(r->c, "%s has %lld in it", key, (long long)list.at[k]);
    }
    return list;
}

// The value of a key that is one of the words, as its place among them; the first is the default unless `needed`.
static int word(run *r, const char *key, int needed, const char *const *words, int count) {
    const char *text = gd_text(r->c->spec, key);
    for (int k = 0; text && k < count; k++) {
        if (strcmp(text, words[k]) == 0) return k;
    }
    if (text || needed) gd_fail(r->c, "(%s ...): %s=%s", r->c->spec->word, key, text ? text : "?");
    return 0;
}

static nt_tensor *(*activation(run *r))(nt_tensor *) {
    static const char *const words[] = { "tanh", "relu", "gelu", "gelu_exact", "silu", "sigmoid" };
    static nt_tensor *(*const functions[])(nt_tensor *) = { nt_tanh, nt_relu, nt_gelu_tanh, nt_gelu, nt_silu, nt_sigmoid };
    return functions[word(r, "act", 1, words, 6)];
}

// ---------------------------------------------------------------------------------------------------------------------
// Models
// ---------------------------------------------------------------------------------------------------------------------
static void build_mlp(run *r) {
    gd_ints hidden = need_sizes(r, "hidden");
    r->net = model_mlp(r->t, r->dtype, hidden.count, hidden.at, need_int(r, "out"), activation(r));
}

static void build_lenet(run *r) {
    gd_ints c = need_sizes(r, "channels");
    if (c.count != 2) gd_fail(r->c, "lenet has two channels=");
    else r->net = model_lenet(r->t, r->dtype, (int)c.at[0], (int)c.at[1], need_int(r, "hidden"), need_int(r, "out"));
}

static void build_resnet(run *r) {
    gd_ints widths = need_sizes(r, "widths");
    int groups = need_int(r, "groups"), out = need_int(r, "out");
    if (widths.count < 1 || r->x->rank != 4) gd_fail(r->c, "resnet takes images and widths=");
    else r->net = model_resnet(r->t, r->dtype, r->x->shape[1], r->x->shape[2], widths.count, widths.at, groups, out);
}

static void build_vit(run *r) {
    static const char *const pools[] = { "cls", "gap" };
    nt_vit_desc d;
    memset(&d, 0, sizeof d);
    d.dtype = r->dtype, d.patch = need_int(r, "patch"), d.dim = need_int(r, "dim"), d.depth = need_int(r, "depth"), d.heads = need_int(r, "heads");
    d.mlp = need_int(r, "mlp"), d.outputs = need_int(r, "out"), d.mean_pool = word(r, "pool", 0, pools, 2);
    r->net = nt_vit_layer(r->t, &d);
}

static void build_unet(run *r) {
    gd_ints widths = need_sizes(r, "widths");
    if (widths.count < 1) gd_fail(r->c, "unet without widths=");
    else r->net = model_unet(r->t, r->dtype, widths.count, widths.at, need_int(r, "out"));
}

static void build_rnn(run *r) {
    static const char *const cells[] = { "gru", "lstm" };
    r->net = model_rnn(r->t, r->dtype, word(r, "cell", 1, cells, 2), need_int(r, "hidden"), need_int(r, "out"));
}

static void build_encdec(run *r) {
    static const char *const losses[] = { "elbo", "iwae" };
    int64_t samples = need_int(r, "samples");
    model_encdec d = { need_int(r, "hidden"), need_int(r, "latent"), word(r, "loss", 1, losses, 2), r->looped, activation(r) };
    if (!r->noise || r->noise->rank != 3 || r->noise->shape[0] != samples) {
        gd_fail(r->c, "noise is not (samples, batch, latent)");
        return;
    }
    r->out = model_encdec_record(r->t, r->dtype, &r->params, nt_key(0), r->x, r->noise, &d);
    if (!d.iwae) r->loss = nt_neg(nt_mean(r->out));
    else r->loss = nt_neg(nt_mean(nt_add_scalar(nt_logsumexp_axes(r->out, NT_AXES(0), 0), -log((double)samples))));
}

static void build_gpt(run *r) {
    model_gpt_heads *heads = (model_gpt_heads *)gd_alloc(r->c, sizeof *heads);
    heads->heads = need_int(r, "heads");
    int64_t vocab = need_int(r, "vocab"), length = need_int(r, "length");
    r->out = model_gpt(r->t, r->dtype, &r->params, nt_key(0), r->x, vocab, length, need_int(r, "dim"), need_int(r, "depth"), heads);
}

typedef struct model_row { const char *word; void (*build)(run *r); } model_row;
static const model_row rows[] = {
    { "mlp", build_mlp }, { "lenet", build_lenet }, { "resnet", build_resnet }, { "vit", build_vit }, { "unet", build_unet }, { "rnn", build_rnn }, { "encdec", build_encdec }, { "gpt", build_gpt },
};

// Cross-entropy, or half the sum of squares, as a mean over examples (pixels, tokens).
static nt_tensor *loss_of(run *r) {
    static const char *const losses[] = { "ce", "mse" };
    if (!word(r, "loss", 0, losses, 2)) return nt_mean(nt_cross_entropy(r->out, r->labels));
    return nt_mean(nt_scale(nt_sum_axes(nt_square(nt_sub(r->out, r->labels)), NT_AXES(NT_LAST), 0), 0.5));
}

// ---------------------------------------------------------------------------------------------------------------------
// Data
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *input_of(run *r, const char *name, int needed) {
    gd_tensor v;
    if (!gd_find(r->c, name, &v)) return needed ? (nt_tensor *)gd_fail(r->c, "there is no tensor %s", name) : NULL;
    v = gd_as(r->c, v, r->dtype);
    nt_tensor *x = nt_input(r->t, v.dtype, v.shape);
    if (nt_write(x, v.data) != NT_OK) tape_failure(r, name);
    return x;
}

// The sizes that the specification gives of x.
static void check_input(run *r) {
    gd_case *c = r->c;
    nt_shape shape = nt_shape_of(r->x);
    int64_t want[5] = { gd_need_int(c, c->spec, "batch"), 0, 0, 0, 0 };
    int rank = 1, gpt = gd_is(c->spec, "gpt"), rnn = gd_is(c->spec, "rnn");
    gd_ints image = gd_get_ints(c, c->spec, "image");
    for (int k = 0; k < image.count && rank < 5; k++) want[rank++] = image.at[k];
    if (rnn) want[rank++] = gd_need_int(c, c->spec, "steps");
    if (gpt) want[rank++] = gd_need_int(c, c->spec, "length");
    else if (image.count < 0) want[rank++] = gd_need_int(c, c->spec, "in");
    int same = shape.rank == rank;
    for (int k = 0; same && k < rank; k++) same = shape.size[k] == want[k];
    if (!same) gd_fail(c, "x does not have the sizes of the specification");
}

// The parameters that the file has under these names, into the variables; another list than the model's is an error.
static void load_params(run *r) {
    gd_case *c = r->c;
    int count = 0;
    int64_t numbers = 0, want = gd_int(c, c->attributes, "params", -1);
    const char **names = gd_list(c, "params/", &count);
    for (int k = 0; k < r->params.count && !gd_stopped(c); k++) {
        nt_tensor *p = r->params.items[k];
        gd_tensor v = gd_as(c, gd_need(c, gd_join(c, "params/", p->name, "")), r->dtype);
        if (gd_stopped(c)) return;
        if (v.dtype != p->dtype || !gd_same_shape(nt_shape_of(p), v.shape)) gd_fail(c, "the parameter %s has another shape or dtype", p->name);
        else memcpy(nt_data(p), v.data, nt_bytes(p));
        numbers += v.size;
    }
    if (count != r->params.count) {
        for (int k = 0; k < count && !gd_stopped(c); k++) {
            int found = 0;
            for (int j = 0; j < r->params.count; j++) found |= strcmp(names[k], r->params.items[j]->name) == 0;
            if (!found) gd_fail(c, "the model has no parameter %s", names[k]);
        }
        gd_fail(c, "the model has %d parameters, the file %d", r->params.count, count);
    }
    if (want >= 0 && numbers != want) gd_fail(c, "the model has %lld numbers, params=%lld", (long long)numbers, (long long)want);
}

static int build(run *r) {
    gd_case *c = r->c;
    const model_row *row = NULL;
    for (size_t k = 0; k < sizeof rows / sizeof rows[0]; k++) {
        if (gd_is(c->spec, rows[k].word)) row = &rows[k];
    }
    if (!row) return gd_fail(c, "the word %s is not known", c->spec->word) != NULL;
    r->x = input_of(r, "x", 1), r->labels = input_of(r, "labels", !gd_is(c->spec, "encdec")), r->noise = input_of(r, "noise", gd_is(c->spec, "encdec"));
    if (!gd_stopped(c)) check_input(r);
    if (!gd_stopped(c)) row->build(r);
    if (gd_stopped(c)) return 0;
    if (r->net) r->out = model_apply(&r->params, r->net, nt_key(0), r->x);
    if (r->out && !r->loss) r->loss = loss_of(r);
    if (!r->loss || nt_error(r->t)) tape_failure(r, "recording");
    if (!gd_stopped(c)) load_params(r);
    return !gd_stopped(c);
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparing groups: the error of all tensors of a group relative to its largest number
// ---------------------------------------------------------------------------------------------------------------------
typedef struct group { const char *what, *worst; double largest, error; int64_t at; } group;

static void group_add(run *r, group *g, const char *name, const void *data, const nt_tensor *like) {
    gd_case *c = r->c;
    gd_tensor want = gd_need(c, name), got = { like->dtype, nt_shape_of(like), nt_size(like), NULL };
    got.data = (void *)(uintptr_t)data;
    if (gd_stopped(c)) return;
    if (!gd_same_shape(got.shape, want.shape)) {
        gd_fail(c, "%s has another shape than expected", name);
        return;
    }
    for (int64_t i = 0; i < want.size; i++) {
        double a = gd_value(&got, i), b = gd_value(&want, i), error = a == b ? 0 : fabs(a - b);
        if (!(error <= g->error)) g->error = isnan(error) ? INFINITY : error, g->worst = name, g->at = i;
        if (fabs(b) > g->largest) g->largest = fabs(b);
    }
}

static void group_end(run *r, const group *g, const char *key) {
    gd_case *c = r->c;
    double tolerance = gd_number(c, c->attributes, r->dtype == NT_F64 ? "tol64" : key, r->dtype == NT_F64 ? 1e-11 : 1e-5);
    double error = g->largest > 0 ? g->error / g->largest : g->error;
    if (error <= tolerance || gd_stopped(c)) return;
    gd_fail(c, "%s (%s): off by %.3g of the largest, allowed %.3g; worst is %s, element %lld", g->what, nt_dtype_name(r->dtype), error, tolerance, g->worst,
            (long long)g->at);
}

// ---------------------------------------------------------------------------------------------------------------------
// Values and derivatives
// ---------------------------------------------------------------------------------------------------------------------
typedef struct plan { // the outputs of a program and what they are
    int count;
    nt_tensor **items;
    const char **names;
    int room;
} plan;

static void plan_add(run *r, plan *p, const char *name, nt_tensor *x) {
    if (!x) tape_failure(r, name);
    if (p->count == p->room) gd_fail(r->c, "more values than there is room for");
    if (gd_stopped(r->c)) return;
    p->items[p->count] = x;
    p->names[p->count++] = name;
}

static void plan_add_list(run *r, plan *p, const char *prefix, nt_params list) {
    if (list.count != r->params.count) tape_failure(r, prefix);
    for (int k = 0; k < list.count && !gd_stopped(r->c); k++) plan_add(r, p, gd_join(r->c, prefix, r->params.items[k]->name, ""), list.items[k]);
}

static int has(run *r, const char *name) {
    gd_tensor t;
    int there = gd_find(r->c, name, &t);
    return there && !gd_stopped(r->c);
}

static int has_group(run *r, const char *prefix) {
    int count = 0;
    gd_list(r->c, prefix, &count);
    return count > 0;
}

static nt_tensor *loss_at(run *r, nt_tensor *out) { return nt_substitute(r->loss, NT_LIST(r->out), NT_LIST(out)); }

// params1 as variables.
static nt_params other_params(run *r) {
    nt_params p = { r->params.count, NULL };
    p.items = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(p.count + 1));
    for (int k = 0; k < p.count && !gd_stopped(r->c); k++) {
        gd_tensor v = gd_as(r->c, gd_need(r->c, gd_join(r->c, "params1/", r->params.items[k]->name, "")), r->dtype);
        if (!gd_stopped(r->c)) p.items[k] = nt_variable(r->t, v.dtype, v.shape, v.data);
    }
    return p;
}

static void plan_expansions(run *r, plan *p) {
    nt_params before = { r->params.count, r->params.items }, now = other_params(r), step = { now.count, NULL };
    if (gd_stopped(r->c)) return;
    nt_tensor *out = nt_substitute(r->out, before, now);
    if (has(r, "lin_out")) {
        nt_tensor *y = nt_linearize(out, now, before), *loss = loss_at(r, y);
        plan_add(r, p, "lin_out", y);
        plan_add(r, p, "lin_loss", loss);
        plan_add_list(r, p, "lin_grads/", nt_grads(loss, now));
        y = nt_taylor(out, now, before, 2);
        plan_add(r, p, "taylor2_out", y);
        plan_add(r, p, "taylor2_loss", loss_at(r, y));
    }
    if (!has_group(r, "hvp/")) return;
    step.items = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(now.count + 1));
    for (int k = 0; k < now.count; k++) step.items[k] = nt_sub(now.items[k], before.items[k]);
    plan_add_list(r, p, "hvp/", nt_hvp(r->loss, before, step));
}

// A name is one tensor, or one of a group: "grads/Dense_0/kernel".
static int same_group(const char *a, const char *b) {
    size_t n = strcspn(a, "/");
    return a[n] == '/' && strncmp(a, b, n + 1) == 0;
}

static void check_values(run *r) {
    gd_case *c = r->c;
    nt_params params = { r->params.count, r->params.items };
    plan p = { 0, NULL, NULL, 3 * r->params.count + 8 };
    p.items = (nt_tensor **)gd_alloc(c, sizeof(nt_tensor *) * (size_t)p.room);
    p.names = (const char **)gd_alloc(c, sizeof(char *) * (size_t)p.room);
    plan_add(r, &p, "out", r->out);
    plan_add(r, &p, "loss", r->loss);
    plan_add_list(r, &p, "grads/", nt_grads(r->loss, params));
    if (has_group(r, "params1/")) plan_expansions(r, &p);
    nt_params outputs = { p.count, p.items };
    nt_program *program = gd_stopped(c) ? NULL : nt_compile_many(r->t, outputs, NULL);
    if (!gd_stopped(c) && (!program || nt_run(program) != NT_OK)) tape_failure(r, "compiling and running");
    for (int k = 0; k < p.count && !gd_stopped(c);) {
        group g = { p.names[k], p.names[k], 0, 0, 0 };
        int first = k;
        do group_add(r, &g, p.names[k], nt_output(program, k), p.items[k]);
        while (++k < p.count && same_group(p.names[first], p.names[k]));
        group_end(r, &g, "tol32");
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Training
// ---------------------------------------------------------------------------------------------------------------------
static nt_optimizer *optimizer(run *r) {
    const char *name = gd_text(r->c->attributes, "opt");
    nt_sgd_desc sgd;
    nt_adamw_desc adamw;
    memset(&sgd, 0, sizeof sgd), memset(&adamw, 0, sizeof adamw);
    sgd.learning_rate = 0.1, sgd.momentum = 0.9;
    adamw.learning_rate = 0.01, adamw.weight_decay = 0.01, adamw.eps = gd_number(r->c, r->c->attributes, "opt_eps", 1e-8);
    if (strcmp(name, "sgd") == 0) return nt_sgd(r->t, &sgd);
    if (strcmp(name, "adamw") == 0) return nt_adamw(r->t, &adamw);
    return (nt_optimizer *)gd_fail(r->c, "opt=%s", name);
}

static void check_training(run *r) {
    gd_case *c = r->c;
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.params.count = r->params.count, desc.params.items = r->params.items;
    nt_optimizer *o = optimizer(r);
    nt_program *step = gd_stopped(c) ? NULL : nt_compile_step(r->loss, o, &desc);
    nt_tensor *losses = nt_full(r->t, r->dtype, NT_SHAPE(3), 0); // for its shape
    char data[3 * sizeof(double)];
    if (!gd_stopped(c) && !step) tape_failure(r, "nt_compile_step");
    for (int k = 0; k < 3 && !gd_stopped(c); k++) {
        if (nt_run(step) != NT_OK) tape_failure(r, "nt_run");
        else nt_read(step, 0, data + (size_t)k * nt_dtype_size(r->dtype));
    }
    if (gd_stopped(c)) return;
    group before = { "opt_losses", "opt_losses", 0, 0, 0 }, after = { "opt/", "opt/", 0, 0, 0 };
    group_add(r, &before, "opt_losses", data, losses);
    group_end(r, &before, "tol32");
    for (int k = 0; k < r->params.count && !gd_stopped(c); k++)
        group_add(r, &after, gd_join(c, "opt/", r->params.items[k]->name, ""), nt_data(r->params.items[k]), r->params.items[k]);
    group_end(r, &after, "tol32_opt");
}

static void run_in(gd_case *c, nt_dtype dtype, int looped) {
    run *r = (run *)gd_alloc(c, sizeof *r);
    if (gd_stopped(c)) return;
    r->c = c, r->t = nt_tape_open(NULL), r->dtype = dtype, r->looped = looped;
    if (!r->t) gd_fail(c, "no tape");
    if (r->t && build(r)) {
        check_values(r);
        if (gd_text(c->attributes, "opt") && !gd_stopped(c)) check_training(r);
    }
    if (!gd_stopped(c) && nt_error(r->t)) tape_failure(r, "afterwards");
    nt_tape_close(r->t);
}

static void run_case(gd_case *c) {
    static const char *const known[] = { "file", "opt", "opt_eps", "with_f32", "params", "tol32", "tol32_opt", "tol64" };
    for (size_t k = 0; k < sizeof known / sizeof known[0]; k++) gd_text(c->attributes, known[k]);
    gd_check_keys(c, c->attributes);
    for (int looped = 0; looped <= gd_is(c->spec, "encdec"); looped++) {
        run_in(c, NT_F64, looped);
        run_in(c, NT_F32, looped);
    }
}

int main(int argc, char **argv) { return gd_run(argc > 1 ? argv[1] : "data/models", run_case); }
