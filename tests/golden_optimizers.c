// golden_optimizers DIR: trajectories of optimizers, with the gradients given by the case, on nt_compile_update; and
// weighted_accumulation on nt_compile_step. Every case runs in f64 and in f32, accumulating ones also with .optax_exact.
// Transformations in front of an optimizer (clip and the like) are recorded on the gradients; schedules are computed here.
#include "nttrain.h"
#include "golden.h"

typedef struct opt_run {         // one case in one dtype
    gd_case *c;
    nt_tape *tape;
    nt_dtype dtype;
    int optax_exact;
    const char **names;
    int count;                   // of parameters
    nt_tensor **params, **gradients; // the gradients as the optimizer gets them
    gd_node *rate;               // (lr SCHEDULE ...), NULL: a constant
} opt_run;

// Words of the step "training". What only chains of later optimizers use is named there, too.
static const char *const later[] = {
    "amsgrad", "adamax", "adamaxw", "radam", "adabelief", "yogi", "novograd", "adan", "lamb", "lion", "sign_sgd", "rmsprop", "adagrad", "adadelta", "lars",
    "adafactor", "muon", "scale_by_lr", "trace", "ema", "scale_by_adam", "scale_by_rms", "scale_by_trust_ratio", "set_to_zero", "masked", "groups", "param_ema",
    "apply_if_finite", "momentum_clip", "schedule", "torch_schedule", "torch_sgd", "torch_adam", "torch_adamw", "torch_rmsprop", "torch_adagrad",
    "torch_adadelta", "torch_nadam", "torch_radam", "torch_adamax", "torch_clip_norm"
};
static const char *const later_schedules[] = {
    "warmup_constant", "warmup_exponential", "piecewise_constant", "piecewise_interpolate", "linear_onecycle", "cosine_onecycle", "sgdr", "join", "vit"
};

static int is_later(gd_case *c, const gd_node *n, const char *const *list, size_t count) {
    for (size_t k = 0; k < count; k++) {
        if (!gd_is(n, list[k])) continue;
        gd_later(c, list[k]);
        return 1;
    }
    return 0;
}

static void *unknown(gd_case *c, const gd_node *n) {
    if (is_later(c, n, later, sizeof later / sizeof later[0])) return NULL;
    return gd_fail(c, "the word %s is not known", n && n->word ? n->word : "");
}

static void *tape_failure(opt_run *r, const char *call) {
    return gd_fail(r->c, "%s (%s): %s", call, nt_dtype_name(r->dtype), nt_error(r->tape) ? nt_error(r->tape) : "no message");
}

// ---------------------------------------------------------------------------------------------------------------------
// Learning rates
// ---------------------------------------------------------------------------------------------------------------------
static double polynomial(double init, double end, double power, double steps, double count) {
    if (steps <= 0) return init;
    count = fmin(fmax(count, 0), steps);
    return (init - end) * pow(1 - count / steps, power) + end;
}

static double cosine(double init, double steps, double alpha, double exponent, double count) {
    double wave = 0.5 * (1 + cos(3.14159265358979323846 * fmin(count, steps) / steps));
    return init * ((1 - alpha) * pow(wave, exponent) + alpha);
}

static double exponential(gd_case *c, const gd_node *n, double count) {
    double init = gd_need_number(c, n, "init"), rate = gd_need_number(c, n, "rate"), end = gd_number(c, n, "end", NAN);
    double p = (count - gd_number(c, n, "begin", 0)) / gd_need_number(c, n, "steps");
    if (gd_int(c, n, "staircase", 0)) p = floor(p);
    double v = p <= 0 ? init : init * pow(rate, p);
    return isnan(end) ? v : rate < 1 ? fmax(v, end) : fmin(v, end);
}

static double warmup_cosine(gd_case *c, const gd_node *n, double count) {
    double init = gd_need_number(c, n, "init"), peak = gd_need_number(c, n, "peak"), warmup = gd_need_number(c, n, "warmup");
    double steps = gd_need_number(c, n, "steps"), end = gd_number(c, n, "end", 0), exponent = gd_number(c, n, "exponent", 1);
    if (count < warmup) return polynomial(init, peak, 1, warmup, count);
    return cosine(peak, steps - warmup, peak == 0 ? 0 : end / peak, exponent, count - warmup);
}

// (lr SCHEDULE key=value...) after `count` updates; the schedule's word is the first argument.
static double schedule(gd_case *c, const gd_node *n, double count) {
    const gd_node *word = n->arg_count == 1 ? n->args[0] : NULL;
    if (is_later(c, word, later_schedules, sizeof later_schedules / sizeof later_schedules[0])) return 0;
    if (gd_is(word, "constant")) return gd_need_number(c, n, "value");
    if (gd_is(word, "exponential")) return exponential(c, n, count);
    if (gd_is(word, "warmup_cosine")) return warmup_cosine(c, n, count);
    if (gd_is(word, "cosine"))
        return cosine(gd_need_number(c, n, "init"), gd_need_number(c, n, "steps"), gd_number(c, n, "alpha", 0), gd_number(c, n, "exponent", 1), count);
    if (gd_is(word, "linear") || gd_is(word, "polynomial")) {
        double power = gd_is(word, "linear") ? 1 : gd_need_number(c, n, "power");
        return polynomial(gd_need_number(c, n, "init"), gd_need_number(c, n, "end"), power, gd_need_number(c, n, "steps"), count - gd_number(c, n, "begin", 0));
    }
    gd_fail(c, "the schedule %s is not known", word && word->word ? word->word : "");
    return 0;
}

static gd_node *inner_list(const gd_node *n, const char *word) {
    for (int k = 0; k < n->arg_count; k++) {
        if (n->args[k]->is_list && gd_is(n->args[k], word)) return n->args[k];
    }
    return NULL;
}

// lr=NUMBER or (lr ...), which is evaluated before each call.
static double rate_of(opt_run *r, gd_node *n) {
    r->rate = inner_list(n, "lr");
    return r->rate ? schedule(r->c, r->rate, 0) : gd_need_number(r->c, n, "lr");
}

// ---------------------------------------------------------------------------------------------------------------------
// Optimizers
// ---------------------------------------------------------------------------------------------------------------------
static double or_zero(double v) { return v == 0 ? NT_ZERO : v; } // a zero that is meant, where a zero field is the default

static nt_optimizer *sgd(opt_run *r, gd_node *n) {
    nt_sgd_desc d;
    memset(&d, 0, sizeof d);
    d.learning_rate = rate_of(r, n);
    d.momentum = gd_number(r->c, n, "momentum", 0);
    d.nesterov = (int)gd_int(r->c, n, "nesterov", 0);
    return gd_stopped(r->c) ? NULL : nt_sgd(r->tape, &d);
}

static nt_optimizer *adam(opt_run *r, gd_node *n) {
    nt_adam_desc d;
    memset(&d, 0, sizeof d);
    d.learning_rate = rate_of(r, n);
    d.b1 = or_zero(gd_number(r->c, n, "b1", 0.9));
    d.b2 = or_zero(gd_number(r->c, n, "b2", 0.999));
    d.eps = or_zero(gd_number(r->c, n, "eps", 1e-8));
    d.eps_root = gd_number(r->c, n, "eps_root", 0);
    d.nesterov = gd_is(n, "nadam") || gd_int(r->c, n, "nesterov", 0);
    return gd_stopped(r->c) ? NULL : nt_adam(r->tape, &d);
}

// mask=kernels, not_bias, ndim2; none decays nothing.
static nt_decay_mask decay_mask(opt_run *r, const gd_node *n) {
    const char *mask = gd_text(n, "mask");
    if (!mask || strcmp(mask, "none") == 0) return NT_DECAY_ALL;
    if (strcmp(mask, "kernels") == 0) return NT_DECAY_KERNELS;
    if (strcmp(mask, "not_bias") == 0) return NT_DECAY_NOT_BIAS;
    if (strcmp(mask, "ndim2") != 0) gd_fail(r->c, "mask=%s", mask);
    return NT_DECAY_MATRICES;
}

static nt_optimizer *adamw(opt_run *r, gd_node *n) {
    const char *mask = gd_text(n, "mask");
    nt_adamw_desc d;
    memset(&d, 0, sizeof d);
    d.learning_rate = rate_of(r, n);
    d.b1 = or_zero(gd_number(r->c, n, "b1", 0.9));
    d.b2 = or_zero(gd_number(r->c, n, "b2", 0.999));
    d.eps = or_zero(gd_number(r->c, n, "eps", 1e-8));
    d.eps_root = gd_number(r->c, n, "eps_root", 0);
    d.weight_decay = mask && strcmp(mask, "none") == 0 ? 0 : gd_number(r->c, n, "wd", 1e-4);
    gd_text(n, "wd");
    d.mask = decay_mask(r, n);
    d.nesterov = gd_is(n, "nadamw") || gd_int(r->c, n, "nesterov", 0);
    return gd_stopped(r->c) ? NULL : nt_adamw(r->tape, &d);
}

static nt_optimizer *simple(opt_run *r, gd_node *n) {
    if (n && gd_text(n, "mu_dtype") && strcmp(gd_text(n, "mu_dtype"), nt_dtype_name(r->dtype)) != 0) return (nt_optimizer *)gd_later(r->c, "mu_dtype");
    if (gd_is(n, "sgd")) return sgd(r, n);
    if (gd_is(n, "adam") || gd_is(n, "nadam")) return adam(r, n);
    if (gd_is(n, "adamw") || gd_is(n, "nadamw")) return adamw(r, n);
    if (gd_is(n, "chain")) { // of what comes after an accumulation
        gd_later(r->c, "chain in multi_steps");
        return NULL;
    }
    return (nt_optimizer *)unknown(r->c, n);
}

static gd_node *last_list(const gd_node *n) { return n->arg_count && n->args[n->arg_count - 1]->is_list ? n->args[n->arg_count - 1] : NULL; }

static nt_optimizer *multi_steps(opt_run *r, gd_node *n) {
    const char *skip = gd_text(n, "skip");
    nt_multi_steps_desc d;
    memset(&d, 0, sizeof d);
    if (inner_list(n, "k")) return (nt_optimizer *)gd_later(r->c, "k schedule");
    d.k = (int)gd_need_int(r->c, n, "k");
    d.sum = !gd_int(r->c, n, "mean", 1);
    d.optax_exact = r->optax_exact && !d.sum;
    d.max_squared_norm = gd_number(r->c, n, "max_sq", 0);
    if (skip && strcmp(skip, "not_finite") == 0) d.skip = NT_SKIP_NOT_FINITE;
    else if (skip && strcmp(skip, "large") == 0) d.skip = NT_SKIP_LARGE;
    else if (skip && strcmp(skip, "none") != 0) gd_fail(r->c, "skip=%s", skip);
    nt_optimizer *inner = simple(r, last_list(n));
    if (gd_stopped(r->c)) return NULL;
    int plain = !d.sum && !d.optax_exact && d.skip == NT_SKIP_LOSS;
    return plain ? nt_multi_steps(inner, d.k) : nt_multi_steps_with(inner, &d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Transformations of the gradients, in front of an optimizer
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *full(opt_run *r, double v) { return nt_scalar(r->tape, r->dtype, v); }

static void clip_by_global_norm(opt_run *r, gd_node *n) {
    nt_tensor *sum = NULL, *limit = full(r, gd_need_number(r->c, n, "max"));
    for (int k = 0; k < r->count; k++) {
        nt_tensor *s = nt_sum(nt_square(r->gradients[k]));
        sum = k ? nt_add(sum, s) : s;
    }
    nt_tensor *norm = nt_sqrt(sum);
    for (int k = 0; k < r->count; k++) {
        nt_tensor *g = r->gradients[k];
        r->gradients[k] = nt_select(nt_less(norm, limit), g, nt_mul(nt_div(g, norm), limit));
    }
}

// Norms of the units of a tensor: of a vector as a whole, of the columns of a matrix, of each output channel of a kernel.
static nt_tensor *unit_norm(nt_tensor *x) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    if (x) axes.count = x->rank <= 1 ? x->rank : x->rank <= 3 ? 1 : x->rank - 1;
    for (int k = 0; k < axes.count; k++) axes.axis[k] = k;
    return nt_norm_axes(x, axes, 1);
}

static nt_tensor *adaptive_clip(opt_run *r, gd_node *n, nt_tensor *p, nt_tensor *g) {
    nt_tensor *norm = unit_norm(g), *least = full(r, gd_number(r->c, n, "eps", 1e-3));
    nt_tensor *limit = nt_scale(nt_maximum(unit_norm(p), least), gd_need_number(r->c, n, "clipping"));
    return nt_select(nt_less(norm, limit), g, nt_mul(g, nt_div(limit, nt_maximum(norm, full(r, 1e-6)))));
}

static int ends_in(const char *name, const char *end) {
    size_t a = strlen(name), b = strlen(end);
    return a >= b && strcmp(name + a - b, end) == 0;
}

static nt_tensor *decayed(opt_run *r, gd_node *n, int k) {
    const char *mask = gd_text(n, "mask");
    double wd = gd_need_number(r->c, n, "wd");
    int in = !mask || (strcmp(mask, "kernels") == 0 && ends_in(r->names[k], "kernel")) || (strcmp(mask, "not_bias") == 0 && !ends_in(r->names[k], "bias")) ||
             (strcmp(mask, "ndim2") == 0 && r->params[k]->rank >= 2);
    return in ? nt_add(r->gradients[k], nt_scale(r->params[k], wd)) : r->gradients[k];
}

// Minus the mean over all axes but the first.
static nt_tensor *centralized(nt_tensor *g) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    if (!g || g->rank < 2) return g;
    for (int k = 1; k < g->rank; k++) axes.axis[axes.count++] = k;
    return nt_sub(g, nt_mean_axes(g, axes, 1));
}

static nt_tensor *clip_rms(opt_run *r, gd_node *n, nt_tensor *g) {
    nt_tensor *over = nt_scale(nt_sqrt(nt_mean(nt_square(g))), 1 / gd_need_number(r->c, n, "max"));
    return nt_div(g, nt_maximum(over, full(r, 1)));
}

static nt_tensor *transformed(opt_run *r, gd_node *n, int k) {
    nt_tensor *g = r->gradients[k];
    if (gd_is(n, "clip")) {
        double max = gd_need_number(r->c, n, "max");
        return nt_clamp(g, -max, max);
    }
    if (gd_is(n, "clip_by_block_rms")) return clip_rms(r, n, g);
    if (gd_is(n, "adaptive_grad_clip")) return adaptive_clip(r, n, r->params[k], g);
    if (gd_is(n, "add_decayed_weights")) return decayed(r, n, k);
    if (gd_is(n, "centralize")) return centralized(g);
    if (gd_is(n, "zero_nans")) return nt_select(nt_is_nan(g), nt_full_like(g, 0), g);
    if (gd_is(n, "scale")) return nt_scale(g, gd_need_number(r->c, n, "by"));
    return (nt_tensor *)unknown(r->c, n);
}

static nt_optimizer *build(opt_run *r, gd_node *n) {
    if (gd_is(n, "multi_steps")) return multi_steps(r, n);
    if (!gd_is(n, "chain")) return simple(r, n);
    for (int k = 0; k + 1 < n->arg_count && !gd_stopped(r->c); k++) {
        if (gd_is(n->args[k], "clip_by_global_norm")) clip_by_global_norm(r, n->args[k]);
        else for (int p = 0; p < r->count && !gd_stopped(r->c); p++) r->gradients[p] = transformed(r, n->args[k], p);
    }
    gd_node *last = last_list(n);
    if (gd_stopped(r->c)) return NULL;
    if (gd_is(last, "scale")) return (nt_optimizer *)gd_later(r->c, "chain without an optimizer");
    return build(r, last);
}

// ---------------------------------------------------------------------------------------------------------------------
// Trajectories
// ---------------------------------------------------------------------------------------------------------------------
static gd_tensor tensor_of(opt_run *r, const char *kind, const char *name) { return gd_as(r->c, gd_need(r->c, gd_join(r->c, kind, "/", name)), r->dtype); }

static gd_rule rule_of(opt_run *r) {
    gd_rule rule = { 0, 0, 0, 0, 0 };
    const char *key = r->dtype == NT_F32 ? "tol32" : "tol64";
    if (!gd_text(r->c->attributes, key)) gd_fail(r->c, "the case has no %s", key);
    rule.tolerance = gd_number(r->c, r->c->attributes, key, 0);
    return rule;
}

// The parameters as named variables.
static void make_params(opt_run *r) {
    r->names = gd_list(r->c, "params/", &r->count);
    r->params = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->count + 1));
    if (!r->count) gd_fail(r->c, "the case has no parameters");
    for (int k = 0; k < r->count; k++) {
        gd_tensor start = tensor_of(r, "params", r->names[k]);
        r->params[k] = nt_name(nt_variable(r->tape, start.dtype, start.shape, start.data), r->names[k]);
    }
}

static gd_tensor room_for(opt_run *r, int64_t steps, const nt_tensor *p) {
    nt_shape shape = { 1, { steps } };
    for (int k = 0; k < p->rank && k + 1 < NT_MAX_RANK; k++) shape.size[shape.rank++] = p->shape[k];
    return gd_new(r->c, r->dtype, shape);
}

// An update that is skipped may say so in its status.
static int ran(opt_run *r, nt_program *p) {
    nt_status status = nt_run(p);
    if (status == NT_OK || (status == NT_NONFINITE && nt_event(p) == NT_SKIPPED)) return 1;
    gd_fail(r->c, "nt_run: %s: %s", nt_status_name(status), nt_error(r->tape) ? nt_error(r->tape) : "(no message)");
    return 0;
}

static void compare_counters(opt_run *r, const gd_tensor *event, const gd_tensor *update, const nt_program *p, int64_t t) {
    static const nt_event_kind kinds[] = { NT_ACCUMULATED, NT_UPDATED, NT_SKIPPED };
    int want = (int)gd_value(event, t);
    if (want < 0 || want > 2 || nt_event(p) != kinds[want]) gd_fail(r->c, "call %d: event %d, expected %d", (int)t, (int)nt_event(p), want);
    if (nt_update_step(p) != (int64_t)gd_value(update, t))
        gd_fail(r->c, "call %d: %lld updates, expected %g", (int)t, (long long)nt_update_step(p), gd_value(update, t));
}

static void run_trajectory(opt_run *r, nt_program *p, nt_tensor **inputs) {
    gd_tensor event, update, *given = (gd_tensor *)gd_alloc(r->c, sizeof(gd_tensor) * (size_t)r->count);
    gd_tensor *got = (gd_tensor *)gd_alloc(r->c, sizeof(gd_tensor) * (size_t)r->count);
    int64_t steps = gd_int(r->c, r->c->attributes, "steps", 12);
    int counted = gd_find(r->c, "event", &event) && gd_find(r->c, "update_step", &update);
    for (int k = 0; k < r->count; k++) {
        given[k] = tensor_of(r, "grads", r->names[k]);
        got[k] = room_for(r, steps, r->params[k]);
        if (given[k].shape.rank < 1 || given[k].shape.size[0] < steps) gd_fail(r->c, "grads/%s has fewer than %d steps", r->names[k], (int)steps);
    }
    for (int64_t t = 0; t < steps && !gd_stopped(r->c); t++) {
        for (int k = 0; k < r->count; k++) {
            if (nt_write(inputs[k], gd_row(&given[k], t).data) != NT_OK) tape_failure(r, "nt_write");
        }
        if (r->rate) nt_set_learning_rate(p, schedule(r->c, r->rate, (double)nt_update_step(p)));
        if (!ran(r, p)) return;
        if (counted) compare_counters(r, &event, &update, p, t);
        for (int k = 0; k < r->count; k++) {
            gd_tensor row = gd_row(&got[k], t);
            memcpy(row.data, nt_data(r->params[k]), nt_bytes(r->params[k]));
        }
    }
    gd_rule rule = rule_of(r);
    for (int k = 0; k < r->count && !gd_stopped(r->c); k++) {
        char *name = gd_join(r->c, "traj/", r->names[k], r->optax_exact ? " (optax_exact)" : "");
        gd_tensor want = gd_need(r->c, gd_join(r->c, "traj/", r->names[k], ""));
        gd_compare(r->c, name, &got[k], &want, &rule);
    }
}

static void trajectory(opt_run *r) {
    make_params(r);
    nt_tensor **inputs = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->count + 1));
    r->gradients = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->count + 1));
    for (int k = 0; k < r->count; k++) r->gradients[k] = inputs[k] = nt_input(r->tape, r->dtype, nt_shape_of(r->params[k]));
    nt_optimizer *optimizer = gd_stopped(r->c) ? NULL : build(r, r->c->spec);
    if (gd_stopped(r->c)) return;
    nt_params params = { r->count, r->params }, gradients = { r->count, r->gradients };
    nt_program *p = nt_compile_update(optimizer, params, gradients, NULL);
    if (p) run_trajectory(r, p, inputs);
    else tape_failure(r, "nt_compile_update");
}

// ---------------------------------------------------------------------------------------------------------------------
// weighted_accumulation: softmax regression over consecutive mini-batches of the given sizes
// ---------------------------------------------------------------------------------------------------------------------
typedef struct batch { int64_t size; nt_tensor *x, *labels, *loss; nt_program *step, *value; } batch;

static nt_tensor *param_named(opt_run *r, const char *name) {
    for (int k = 0; k < r->count; k++) {
        if (strcmp(r->names[k], name) == 0) return r->params[k];
    }
    return (nt_tensor *)gd_fail(r->c, "there is no params/%s", name);
}

// Inputs, loss, the training step and a program of the loss and its gradients, for one batch size.
static void make_batch(opt_run *r, batch *b, nt_optimizer *optimizer, nt_tensor *weight, int64_t features) {
    nt_tensor *kernel = param_named(r, "kernel"), *bias = param_named(r, "bias");
    b->x = nt_input(r->tape, r->dtype, NT_SHAPE(b->size, features));
    b->labels = nt_input(r->tape, NT_I32, NT_SHAPE(b->size));
    b->loss = nt_mean(nt_cross_entropy(nt_dense(b->x, kernel, bias), b->labels));
    nt_params params = { r->count, r->params }, gradients = nt_grads(b->loss, params);
    nt_tensor **outputs = (nt_tensor **)gd_alloc(r->c, sizeof(nt_tensor *) * (size_t)(r->count + 1));
    outputs[0] = b->loss;
    for (int k = 0; k < gradients.count; k++) outputs[k + 1] = gradients.items[k];
    nt_params all = { r->count + 1, outputs };
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    b->value = nt_compile_many(r->tape, all, NULL);
    if (!b->value) tape_failure(r, "nt_compile_many");
    if (!optimizer || gd_stopped(r->c)) return;
    desc.params = params;
    desc.weight = weight;
    b->step = nt_compile_step(b->loss, optimizer, &desc);
    if (!b->step) tape_failure(r, "nt_compile_step");
}

static void write_batch(opt_run *r, batch *b, const gd_tensor *x, const gd_tensor *labels, int64_t first) {
    if (nt_write(b->x, gd_row(x, first).data) != NT_OK || nt_write(b->labels, (int32_t *)labels->data + first) != NT_OK) tape_failure(r, "nt_write");
}

// The loss and gradients of what the batch holds, against `loss` and the tensors KIND/P (row `index`, or the whole for -1).
static void compare_batch(opt_run *r, batch *b, const char *kind, double loss, int64_t index) {
    gd_rule rule = rule_of(r);
    if (!ran(r, b->value)) return;
    for (int k = 0; k < r->count + 1 && !gd_stopped(r->c); k++) {
        const nt_tensor *p = k ? r->params[k - 1] : b->loss;
        gd_tensor got = gd_new(r->c, r->dtype, nt_shape_of(p)), want = gd_new(r->c, NT_F64, nt_shape_of(p));
        nt_read(b->value, k, got.data);
        if (k) {
            gd_tensor all = gd_need(r->c, gd_join(r->c, kind, "/", r->names[k - 1]));
            want = index < 0 ? all : gd_row(&all, index);
        } else {
            *(double *)want.data = loss;
        }
        gd_compare(r->c, k ? r->names[k - 1] : "loss", &got, &want, &rule);
    }
}

static void compare_after(opt_run *r, nt_program *step, int64_t batches, double loss) {
    gd_rule rule = rule_of(r);
    gd_tensor got = gd_new(r->c, NT_F64, NT_SCALAR), want = gd_new(r->c, NT_F64, NT_SCALAR);
    if (nt_event(step) != NT_UPDATED || nt_update_step(step) != 1) gd_fail(r->c, "after %d mini-batches there was no update", (int)batches);
    *(double *)got.data = nt_window_loss(step);
    *(double *)want.data = loss;
    gd_compare(r->c, "nt_window_loss", &got, &want, &rule);
    for (int k = 0; k < r->count && !gd_stopped(r->c); k++) {
        gd_tensor p = { r->dtype, nt_shape_of(r->params[k]), nt_size(r->params[k]), nt_data(r->params[k]) };
        gd_tensor after = gd_need(r->c, gd_join(r->c, "after/", r->names[k], ""));
        gd_compare(r->c, gd_join(r->c, "after/", r->names[k], ""), &p, &after, &rule);
    }
}

// One program for each size; they share the optimizer's state and its gradient buffer.
static batch *batch_of(opt_run *r, batch *list, int *count, int64_t size, nt_optimizer *optimizer, nt_tensor *weight, int64_t features) {
    for (int k = 0; k < *count; k++) {
        if (list[k].size == size && (list[k].step != NULL) == (optimizer != NULL)) return &list[k];
    }
    batch *b = &list[(*count)++];
    b->size = size;
    make_batch(r, b, optimizer, weight, features);
    return b;
}

static void weighted_accumulation(opt_run *r) {
    gd_ints sizes = gd_need_ints(r->c, r->c->spec, "sizes");
    gd_tensor x = gd_as(r->c, gd_need(r->c, "x"), r->dtype), labels = gd_need(r->c, "labels"), losses = gd_need(r->c, "losses");
    gd_tensor large_loss = gd_need(r->c, "large_loss"), weights = gd_as(r->c, gd_need(r->c, "weights"), r->dtype);
    make_params(r);
    nt_multi_steps_desc d;
    memset(&d, 0, sizeof d);
    d.k = sizes.count;
    nt_optimizer *inner = gd_stopped(r->c) ? NULL : simple(r, last_list(r->c->spec));
    if (gd_stopped(r->c) || x.shape.rank != 2 || labels.dtype != NT_I32) return;
    nt_optimizer *optimizer = nt_multi_steps_with(inner, &d);
    nt_tensor *weight = nt_input(r->tape, r->dtype, NT_SCALAR);
    batch *list = (batch *)gd_alloc(r->c, sizeof(batch) * (size_t)(sizes.count + 1)), *b = NULL;
    int count = 0;
    b = batch_of(r, list, &count, x.shape.size[0], NULL, NULL, x.shape.size[1]);
    if (gd_stopped(r->c)) return;
    write_batch(r, b, &x, &labels, 0);
    compare_batch(r, b, "large", gd_value(&large_loss, 0), -1);
    for (int64_t k = 0, first = 0; k < sizes.count && !gd_stopped(r->c); first += sizes.at[k++]) {
        b = batch_of(r, list, &count, sizes.at[k], optimizer, weight, x.shape.size[1]);
        if (gd_stopped(r->c)) return;
        write_batch(r, b, &x, &labels, first);
        nt_write(weight, gd_row(&weights, k).data);
        compare_batch(r, b, "grads", gd_value(&losses, k), k);
        if (!gd_stopped(r->c)) ran(r, b->step);
    }
    if (!gd_stopped(r->c)) compare_after(r, b->step, sizes.count, gd_value(&large_loss, 0));
}

static void run_in(gd_case *c, nt_dtype dtype, int optax_exact) {
    if (gd_stopped(c)) return;
    opt_run r = { c, nt_tape_open(NULL), dtype, optax_exact, NULL, 0, NULL, NULL, NULL };
    if (gd_is(c->spec, "weighted_accumulation")) weighted_accumulation(&r);
    else trajectory(&r);
    if (!gd_stopped(c) && nt_error(r.tape) && nt_error_status(r.tape) != NT_NONFINITE) tape_failure(&r, "afterwards");
    nt_tape_close(r.tape);
}

static int accumulates(const gd_node *n) {
    if (gd_is(n, "multi_steps")) return 1;
    for (int k = 0; k < n->arg_count; k++) {
        if (accumulates(n->args[k])) return 1;
    }
    return 0;
}

static void run_case(gd_case *c) {
    const char *only = gd_text(c->attributes, "dtype");
    if (is_later(c, c->spec, later, sizeof later / sizeof later[0])) return;
    for (int optax_exact = 0; optax_exact <= accumulates(c->spec); optax_exact++) {
        if (!only) run_in(c, NT_F64, optax_exact);
        run_in(c, NT_F32, optax_exact);
    }
}

int main(int argc, char **argv) { return gd_run(argc > 1 ? argv[1] : "data/optimizers", run_case); }
