// Kernels recorded on the tape: the values of nt_kernel, and derivatives with respect to images and standard deviations against
// differences of nt_kernel, which knows nothing of tapes; with masks; to second order, in batches, where correlations are +-1 or there is
// no variance; a Gaussian process whose numbers are fitted; what is said about wrong arguments. (Values of all layers: golden_kernels.)
#include "nttrain.h"
#include "golden.h"
#include "refused.h"
#include "tap.h"
#include "wide_nets.h"

#define CLEAR(d) memset(&(d), 0, sizeof(d))
#define MAX_LAYERS 12
#define MAX_ATTENTIONS 2
#define STDS 6 // of an attention layer
#define MAX_INPUTS (2 + 2 * MAX_LAYERS + MAX_ATTENTIONS * STDS)
#define MAX_NUMBERS 4096

static gd_case wide_case; // of the parser
static uint64_t seed = 1;
static double chance(void) { // -1 to 1
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 4503599627370496.0 - 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// Problems
// ---------------------------------------------------------------------------------------------------------------------
// A net in the language of the golden cases, where each W=@ and b=@ is one of the numbers, and so are those of attention layers, W_key=$,
// W_value=$, W_query=$, W_out=$, b=$, W_pos=$; images; and what is differentiated: the sum of
// all numbers of both kernels, each times a random one.
typedef struct problem {
    const char *net;
    nt_shape shape;                  // of one image
    int64_t n1, n2;                  // n2 0: against itself
    nt_kernel_spatial spatial;
    int train;
    nt_dtype dtype;                  // the recorded kernel's; the numbers and derivatives are f64
    int layers, biased[MAX_LAYERS];
    double W[MAX_LAYERS], b[MAX_LAYERS];
    int attentions, attended[MAX_ATTENTIONS][STDS];
    double attention[MAX_ATTENTIONS][STDS];
    double x1[MAX_NUMBERS], x2[MAX_NUMBERS];
    double pattern[MAX_NUMBERS];     // of both; has_pattern
    int has_pattern, masked;
    double mask;
    int64_t size;                    // of a kernel
    double weight[2][MAX_NUMBERS];
    double kernel[2][MAX_NUMBERS];   // by problem_value
} problem;

static int64_t image_size(const problem *p) {
    int64_t n = 1;
    for (int k = 0; k < p->shape.rank; k++) n *= p->shape.size[k];
    return n;
}

// Which number of an attention layer the text in front of `at` names.
static int attention_std(const char *at) {
    static const char *const names[STDS] = { "W_key=", "W_value=", "W_query=", "W_out=", " b=", "W_pos=" };
    for (int k = 0; k < STDS; k++)
        if (strncmp(at - strlen(names[k]), names[k], strlen(names[k])) == 0) return k;
    tap_note("no number of attention: %s", at);
    return 0;
}

static nt_layer *problem_net(const problem *p, nt_tape *t) {
    wide_nets w;
    char *text = (char *)gd_alloc(&wide_case, 8192), *to = text;
    int layer = -1, attention = -1;
    for (const char *c = p->net; *c; c++) {
        attention += strncmp(c, "(attention", 10) == 0;
        if (*c == '$') { to += snprintf(to, 32, "%.17g", p->attention[attention][attention_std(c)]); continue; }
        if (*c != '@') { *to++ = *c; continue; }
        if (c[-2] == 'W') layer++;
        to += snprintf(to, 32, "%.17g", c[-2] == 'W' ? p->W[layer] : p->b[layer]);
    }
    CLEAR(w);
    w.c = &wide_case, w.t = t, w.dtype = NT_F64;
    nt_layer *net = wide_net(&w, gd_parse(&wide_case, text));
    if (wide_case.error[0]) tap_note("%s", wide_case.error);
    return net;
}

static void problem_layers(problem *p) { // numbers to begin with
    p->layers = p->attentions = 0;
    for (const char *c = p->net; *c; c++) {
        p->attentions += strncmp(c, "(attention", 10) == 0;
        if (*c == '$') {
            int at = p->attentions - 1, k = attention_std(c);
            p->attended[at][k] = 1, p->attention[at][k] = 0.8 + 0.2 * chance();
        }
        if (*c != '@') continue;
        if (c[-2] == 'W') p->biased[p->layers] = 0, p->W[p->layers] = 1.1 + 0.2 * chance(), p->layers++;
        else p->biased[p->layers - 1] = 1, p->b[p->layers - 1] = 0.3 + 0.2 * chance();
    }
}

static nt_status problem_kernel(problem *p, nt_tape *t) { // by nt_kernel
    nt_kernel_desc d;
    CLEAR(d);
    d.dtype = NT_F64, d.shape = p->shape, d.spatial = p->spatial, d.train = p->train, d.nngp = p->kernel[0], d.ntk = p->kernel[1];
    if (p->has_pattern) d.pattern1 = d.pattern2 = p->pattern;
    d.masked = p->masked, d.mask = p->mask;
    nt_layer *net = problem_net(p, t);
    return nt_kernel(net, p->x1, p->n1, p->n2 ? p->x2 : NULL, p->n2, &d);
}

static double problem_value(problem *p) {
    nt_tape *t = nt_tape_open(NULL);
    double sum = 0;
    if (problem_kernel(p, t) != NT_OK) tap_note("nt_kernel: %s", nt_error(t)), sum = NAN;
    nt_tape_close(t);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->size; i++) sum += p->weight[k][i] * p->kernel[k][i];
    return sum;
}

typedef struct recorded {
    nt_tape *t;
    nt_layer *net;
    nt_tensor *x1, *x2, *W[MAX_LAYERS], *b[MAX_LAYERS], *attention[MAX_ATTENTIONS * STDS], *y; // y: the sum of the weighted numbers
    nt_kernels k;
} recorded;

static recorded problem_record(problem *p) {
    recorded r;
    nt_kernel_record_desc d;
    nt_shape shape = p->shape;
    CLEAR(r), CLEAR(d);
    r.t = nt_tape_open(NULL);
    r.net = problem_net(p, r.t);
    for (int k = shape.rank++; k > 0; k--) shape.size[k] = shape.size[k - 1];
    shape.size[0] = p->n1, r.x1 = nt_variable(r.t, NT_F64, shape, p->x1);
    shape.size[0] = p->n2, r.x2 = p->n2 ? nt_variable(r.t, NT_F64, shape, p->x2) : NULL;
    for (int k = 0; k < p->layers; k++) {
        r.W[k] = nt_variable(r.t, NT_F64, NT_SCALAR, &p->W[k]);
        if (p->biased[k]) r.b[k] = nt_variable(r.t, NT_F64, NT_SCALAR, &p->b[k]);
    }
    nt_tensor *W[MAX_LAYERS], *b[MAX_LAYERS], *attention[MAX_ATTENTIONS * STDS];
    for (int k = 0; k < STDS * p->attentions; k++) {
        if (p->attended[k / STDS][k % STDS]) r.attention[k] = nt_variable(r.t, NT_F64, NT_SCALAR, &p->attention[k / STDS][k % STDS]);
        attention[k] = nt_cast(r.attention[k], p->dtype);
    }
    for (int k = 0; k < p->layers; k++) W[k] = nt_cast(r.W[k], p->dtype), b[k] = nt_cast(r.b[k], p->dtype);
    d.spatial = p->spatial, d.train = p->train, d.W_std.count = d.b_std.count = p->layers, d.W_std.items = W, d.b_std.items = b;
    d.masked = p->masked, d.mask = p->mask;
    d.attention_std.count = STDS * p->attentions, d.attention_std.items = attention;
    if (p->has_pattern) {
        int64_t positions = image_size(p) / p->shape.size[p->shape.rank - 1];
        d.pattern1 = nt_cast(nt_constant(r.t, NT_F64, NT_SHAPE(p->n1, positions, positions), p->pattern), p->dtype);
        d.pattern2 = p->n2 ? nt_cast(nt_constant(r.t, NT_F64, NT_SHAPE(p->n2, positions, positions), p->pattern), p->dtype) : NULL;
    }
    r.k = nt_kernel_record(r.net, nt_cast(r.x1, p->dtype), nt_cast(r.x2, p->dtype), &d);
    r.k.nngp = nt_cast(r.k.nngp, NT_F64), r.k.ntk = nt_cast(r.k.ntk, NT_F64);
    p->size = nt_size(r.k.nngp);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->size && i < MAX_NUMBERS; i++) p->weight[k][i] = chance();
    if (!r.k.nngp || p->size > MAX_NUMBERS) {
        tap_note("nt_kernel_record: %s", nt_error(r.t) ? nt_error(r.t) : "too many numbers");
        p->size = 0;
        return r;
    }
    nt_tensor *part[2] = { nt_mul(r.k.nngp, nt_constant(r.t, NT_F64, nt_shape_of(r.k.nngp), p->weight[0])),
                           nt_mul(r.k.ntk, nt_constant(r.t, NT_F64, nt_shape_of(r.k.ntk), p->weight[1])) };
    r.y = nt_add(nt_sum(part[0]), nt_sum(part[1]));
    return r;
}

static int is_hidden(const problem *p, double x) { return p->masked && (isnan(p->mask) ? isnan(x) : x == p->mask); }

static problem problem_of(const char *net, nt_shape shape, int64_t n1, int64_t n2) {
    problem p;
    CLEAR(p);
    p.net = net, p.shape = shape, p.n1 = n1, p.n2 = n2, p.dtype = NT_F64;
    problem_layers(&p);
    for (int64_t i = 0; i < n1 * image_size(&p); i++) p.x1[i] = chance();
    for (int64_t i = 0; i < n2 * image_size(&p); i++) p.x2[i] = chance();
    return p;
}

// ---------------------------------------------------------------------------------------------------------------------
// Values and first derivatives
// ---------------------------------------------------------------------------------------------------------------------
// Of the recorded kernel from nt_kernel's, relative to the largest number.
static double value_error(problem *p, recorded *r) {
    static double got[MAX_NUMBERS];
    double worst = 0;
    problem_value(p);
    for (int k = 0; k < 2; k++) {
        double top = 0, off = 0;
        if (nt_eval(k ? r->k.ntk : r->k.nngp, got) != NT_OK) return INFINITY;
        for (int64_t i = 0; i < p->size; i++) {
            top = fmax(top, fabs(p->kernel[k][i]));
            if (!(fabs(got[i] - p->kernel[k][i]) <= off)) off = fabs(got[i] - p->kernel[k][i]);
        }
        off = top > 0 ? off / top : off;
        if (!(off <= worst)) worst = off;
    }
    return worst;
}

// The slope of the problem's value where `numbers` move along `direction`: central differences of sixth order.
static double slope(problem *p, double *numbers, const double *direction, int64_t n, double h) {
    static double kept[MAX_NUMBERS];
    static const double at[6] = { -3, -2, -1, 1, 2, 3 }, weight[6] = { -1, 9, -45, 45, -9, 1 };
    double sum = 0;
    memcpy(kept, numbers, (size_t)n * sizeof *kept);
    for (int k = 0; k < 6; k++) {
        for (int64_t i = 0; i < n; i++) numbers[i] = kept[i] + at[k] * h * direction[i];
        sum += weight[k] * problem_value(p);
    }
    memcpy(numbers, kept, (size_t)n * sizeof *kept);
    return sum / (60 * h);
}

// All of the values, from one program; NULL after an error. They live until the next call.
static const double *const *evaluate(recorded *r, int count, nt_tensor **values) {
    static double room[8 * MAX_NUMBERS];
    static const double *at[2 + 2 * MAX_INPUTS];
    nt_params all = { count, values };
    nt_program *program = nt_error(r->t) ? NULL : nt_compile_many(r->t, all, NULL);
    if (!program || nt_run(program) != NT_OK) {
        tap_note("%s", nt_error(r->t) ? nt_error(r->t) : "nothing to compile");
        return NULL;
    }
    double *to = room;
    for (int k = 0; k < count; k++) {
        if (nt_size(values[k]) > room + 8 * MAX_NUMBERS - to) return NULL;
        nt_read(program, k, to), at[k] = to, to += nt_size(values[k]);
    }
    return at;
}

// What the problem's value depends on: images, then the standard deviations of each layer; where their numbers are.
static int inputs_of(problem *p, recorded *r, nt_tensor **x, double **numbers) {
    int count = 0;
    x[count] = r->x1, numbers[count++] = p->x1;
    if (r->x2) x[count] = r->x2, numbers[count++] = p->x2;
    for (int k = 0; k < p->layers; k++) {
        x[count] = r->W[k], numbers[count++] = &p->W[k];
        if (r->b[k]) x[count] = r->b[k], numbers[count++] = &p->b[k];
    }
    for (int k = 0; k < STDS * p->attentions; k++)
        if (r->attention[k]) x[count] = r->attention[k], numbers[count++] = &p->attention[k / STDS][k % STDS];
    return count;
}

// The worst error of the derivatives along random directions: [1] of those with respect to images, [0] of the others. h: of differences.
static void gradient_error(problem *p, recorded *r, const double *h, double *worst) {
    static double direction[MAX_NUMBERS];
    nt_tensor *x[MAX_INPUTS];
    double *numbers[MAX_INPUTS], size = 0;
    int count = inputs_of(p, r, x, numbers);
    nt_params in = { count, x }, g = nt_grads(r->y, in);
    const double *const *got = g.count ? evaluate(r, count, g.items) : NULL;
    problem_value(p);
    for (int k = 0; k < 2; k++)
        for (int64_t i = 0; i < p->size; i++) size = fmax(size, fabs(p->weight[k][i] * p->kernel[k][i]));
    worst[0] = worst[1] = got ? 0 : INFINITY;
    for (int k = 0; k < count && got; k++) {
        int image = x[k]->rank > 0;
        double along = 0, want;
        for (int64_t i = 0; i < nt_size(x[k]); i++) {
            int hidden = image && is_hidden(p, numbers[k][i]); // stays so, and nothing depends on its number
            if (hidden && got[k][i] != 0) worst[image] = INFINITY;
            direction[i] = hidden ? 0 : chance(), along += direction[i] * got[k][i];
        }
        want = slope(p, numbers[k], direction, nt_size(x[k]), h[image]);
        double e = along == want ? 0 : fabs(along - want) / (fabs(want) + size);
        if (!(e <= worst[image])) worst[image] = e;
    }
}

// Values differ by rounding, e = 2e-16 times tens. Differences with step h add twice that over h, 1e-11 to 3e-11 for h = 5e-4, and h^6 / 140
// of the seventh derivative: of a value that bends within d, up to 36 (h / d)^6 / d, 1e-12 for d = 0.01. Only kinks of nearly equal or
// opposite images are closer than that, and few images are so without biases if they have three channels or more.
static void check(problem *p, double tolerance, double slopes, const char *name) {
    recorded r = problem_record(p);
    static const double h[2] = { 5e-4, 5e-4 };
    double e = p->size ? value_error(p, &r) : INFINITY, g[2] = { INFINITY, INFINITY };
    if (p->size) gradient_error(p, &r, h, g);
    g[0] = fmax(g[0], g[1]);
    tap_ok(e <= tolerance && g[0] <= slopes, "%s: values to %.1e, derivatives to %.1e", name, e, g[0]);
    nt_tape_close(r.t);
}

static void test_activations(void) {
    static const struct { const char *net; double tolerance, slopes; } list[] = {
        { "(leaky_relu 0.1)", 1e-12, 1e-9 },
        { "(relu)", 1e-12, 1e-9 },
        { "(abs)", 1e-12, 1e-9 },
        { "(abrelu -0.5 1.25)", 1e-12, 1e-9 },
        { "(erf a=2 b=0.3 c=0.5)", 1e-12, 1e-9 },
        { "(sigmoid_like)", 1e-12, 1e-9 },
        { "(gelu)", 1e-12, 1e-9 },
        { "(sin a=0.7 b=1.5 c=-0.7)", 1e-12, 1e-9 },
        { "(sin a=0.7 b=1.5 c=1.2)", 1e-12, 1e-9 },
        { "(cos)", 1e-12, 1e-9 },
        { "(rbf gamma=0.5)", 1e-12, 1e-9 },
        { "(exp a=0.5 b=-0.3)", 1e-12, 1e-9 },
        { "(gaussian)", 1e-12, 1e-9 },
        { "(gaussian a=0.7 b=0.1)", 1e-12, 1e-9 },
        { "(gabor)", 1e-12, 1e-9 },
        { "(sign)", 1e-12, 1e-9 },
        { "(monomial 0)", 1e-12, 1e-9 },
        { "(monomial 1)", 1e-12, 1e-9 },
        { "(monomial 2)", 1e-12, 1e-9 },
        { "(monomial 3)", 1e-12, 1e-9 },
        { "(monomial 4)", 1e-12, 1e-9 },
        { "(rectified_monomial 0)", 1e-12, 1e-9 },
        { "(rectified_monomial 1)", 1e-12, 1e-9 },
        { "(rectified_monomial 2)", 1e-12, 1e-9 },
        { "(rectified_monomial 3)", 1e-12, 1e-9 },
        { "(polynomial 0.3 0.5 -0.2 0.1)", 1e-12, 1e-9 },
        { "(polynomial)", 1e-12, 1e-9 },
        { "(layer_norm) (hermite 3)", 1e-12, 1e-9 },
        { "(exp_normalized gamma=0.8 shift=-0.5)", 1e-12, 1e-9 },
        { "(elementwise_numerical tanh 25)", 1e-12, 1e-9 },
        { "(elementwise_numerical softplus 25)", 1e-12, 1e-9 },
        { "(elementwise_numerical elu 25)", 1e-12, 1e-9 },
    };
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++) {
        char net[400];
        snprintf(net, sizeof net, "(serial (dense 8 W=@ b=@) %s (dense 8 W=@ b=@) %s (dense 8 W=@))", list[k].net, list[k].net);
        problem p = problem_of(net, NT_SHAPE(4), 3, 2);
        check(&p, list[k].tolerance, list[k].slopes, list[k].net);
        p = problem_of(net, NT_SHAPE(4), 3, 0);
        check(&p, list[k].tolerance, list[k].slopes, "  against itself");
    }
}

static void test_layers(void) {
    static const struct { const char *net; int rank; int64_t shape[4]; nt_kernel_spatial spatial; } list[] = {
        { "(conv 8 (3) (1) SAME W=@ b=@) (relu) (conv 8 (2) (2) VALID W=@) (relu) (global_avg_pool) (dense 8 W=@ b=@)", 2, { 6, 2 }, NT_FULL },
        { "(conv 8 (3) (1) SAME W=@ b=@) (relu) (conv 8 (2) (2) VALID W=@) (relu) (flatten) (dense 8 W=@ b=@)", 2, { 6, 2 }, NT_FULL },
        { "(conv 4 (3) (1) SAME W=@ b=@ par=standard s0=1 s1=2) (relu) (conv 4 (2) (2) VALID W=@ par=standard s0=2) (relu) (global_sum_pool)",
          2, { 6, 2 }, NT_FULL },
        { "(conv 8 (3 2) (2 1) SAME W=@ b=@) (erf) (avg_pool (2 2) (1 1) SAME) (conv 8 (2 2) (1 1) CIRCULAR W=@ b=@) (gelu)", 3, { 4, 3, 2 }, NT_FULL },
        { "(conv 8 (3 2) (2 1) SAME W=@ b=@) (erf) (sum_pool (2 2) (1 1) SAME) (conv 8 (2 2) (1 1) CIRCULAR W=@ b=@) (gelu)", 3, { 4, 3, 2 },
          NT_DIAGONAL },
        { "(conv 8 (2 1 2) (1 1 1) SAME W=@ b=@) (gelu) (conv 8 (1 2 2) (1 1 2) SAME W=@) (relu) (flatten) (dense 8 W=@)", 4, { 2, 2, 3, 2 }, NT_FULL },
        { "(conv_transpose 8 (3) (2) SAME W=@ b=@) (relu) (dense 8 W=@)", 2, { 3, 2 }, NT_FULL },
        { "(conv_transpose 8 (3) (2) CIRCULAR W=@ b=@) (relu) (dense 8 W=@)", 2, { 3, 2 }, NT_FULL },
        { "(conv 8 (4) (2) CIRCULAR W=@ b=@) (relu) (conv_transpose 8 (3) (2) VALID W=@ b=@) (gelu)", 2, { 5, 2 }, NT_DIAGONAL },
        { "(conv_local 8 (3) (1) SAME W=@ b=@) (relu) (conv 8 (3) (1) SAME W=@ b=@) (relu)", 2, { 4, 2 }, NT_FULL },
        { "(conv 8 (3) (1) SAME W=@ b=@) (fan_out 2) (parallel (identity) (serial (relu) (conv 8 (3) (1) SAME W=@ b=@))) (fan_in_sum) (relu) "
          "(global_avg_pool) (dense 8 W=@)", 2, { 4, 2 }, NT_FULL },
        { "(fan_out 2) (parallel (serial (dense 8 W=@ b=@) (relu) (dense 8 W=@)) (serial (dense 8 W=@ b=@) (erf) (dense 8 W=@ b=@))) (fan_in_prod) "
          "(dense 8 W=@)", 1, { 4 }, NT_FULL },
        { "(fan_out 2) (parallel (serial (dense 8 W=@ b=@) (relu)) (serial (dense 24 W=@ b=@) (erf))) (fan_in_concat) (dense 8 W=@ b=@) (relu)", 1, { 4 },
          NT_FULL },
        { "(dense 8 W=@) (fan_out 2) (parallel (serial (relu) (conv 8 (2) (1) VALID W=@)) (serial (erf) (dense 8 W=@ b=@))) (fan_in_concat 1) (relu) "
          "(avg_pool (2) (1) VALID) (dense 8 W=@)", 2, { 3, 5 }, NT_FULL },
        { "(conv 8 (2) (1) SAME W=@ b=@) (layer_norm (1 -1)) (relu) (image_resize (5)) (dense 8 W=@ b=@) (layer_norm) (gelu)", 2, { 3, 2 }, NT_FULL },
        { "(conv 8 (2) (1) SAME W=@ b=@) (relu) (dropout 0.8) (dense 8 W=@ b=@) (relu) (dropout 0.5) (flatten) (dense 8 W=@)", 2, { 3, 2 }, NT_FULL },
        { "(conv 8 (2) (1) SAME W=@ b=@) (index 1: ::-2 :) (dot_general 1.5) (relu) (global_avg_pool) (dense 8 W=@ b=@)", 2, { 5, 2 }, NT_FULL },
        { "(index ::-1 :) (dense 8 W=@ b=@) (relu)", 1, { 3 }, NT_FULL },
        { "(dense 8 W=@ b=@) (attention 4 8 8 2 W_key=$ W_query=$ W_out=$ W_value=$ b=$) (relu) (global_avg_pool) (dense 8 W=@)", 2, { 3, 2 },
          NT_FULL },
        { "(conv 8 (2) (1) SAME W=@ b=@) (attention 4 8 8 2 W_key=$ W_value=1.2 b=0.5 pos=concat n_pos=3 W_pos=$ decay=exp val_pos=1) (relu) (flatten) (dense 8 W=@)",
          2, { 3, 2 }, NT_FULL },
        { "(dense 8 W=@ b=@) (attention 4 8 8 2 scaling=sqrt mechanism=identity pos=sum val_pos=1) (relu) (dense 8 W=@)", 2, { 3, 2 }, NT_FULL },
        { "(attention 4 8 8 2 W_key=$ W_query=$ b=$ pos=sum W_pos=$ decay=inv) (relu) (dense 8 W=@) "
          "(attention 4 8 8 2 W_key=0.9 W_query=$ W_out=$ W_value=$ b=$ pos=concat W_pos=$ scaling=sqrt mechanism=identity) (erf)", 2, { 3, 3 }, NT_FULL },
        { "(aggregate) (dense 8 W=@ b=@) (relu) (aggregate) (dense 8 W=@ b=@) (relu)", 2, { 3, 2 }, NT_FULL },
    };
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++)
        for (int own = 0; own < 2; own++) {
            char net[600];
            snprintf(net, sizeof net, "(serial %s)", list[k].net);
            problem p = problem_of(net, nt_shape_make(list[k].rank, list[k].shape), 3, own ? 0 : 2);
            p.spatial = list[k].spatial, p.train = 1, p.has_pattern = strstr(net, "aggregate") != NULL;
            for (int i = 0; p.has_pattern && i < 27; i++) p.pattern[i] = chance();
            check(&p, 1e-12, 1e-9, own ? "  against itself" : list[k].net);
        }
}

// Positions that hide: some of each image, the second one of x1 whole, and one number of a position that shows (which counts as 0).
static void hide(problem *p, double *x, int64_t n, int whole) {
    int64_t channels = p->shape.size[p->shape.rank - 1], each = image_size(p);
    for (int64_t i = 0; i < n * each; i++) {
        int64_t image = i / each, at = i % each / channels;
        if (image == whole || at == image || at == image + 2 || i == channels * (each / channels - 1)) x[i] = p->mask;
    }
}

static void test_masks(void) {
    static const struct { const char *net; int rank; int64_t shape[4]; nt_kernel_spatial spatial; double mask; int whole; } list[] = {
        { "(conv 8 (3) (1) SAME W=@ b=@) (relu) (conv 8 (2) (2) VALID W=@ b=@) (erf) (global_avg_pool) (dense 8 W=@ b=@)", 2, { 6, 2 }, NT_FULL, -9, 1 },
        { "(conv 8 (3) (2) CIRCULAR W=@ b=@) (relu) (conv_transpose 8 (3) (2) SAME W=@ b=@) (gelu) (flatten) (dense 8 W=@ b=@)", 2, { 6, 2 }, NT_FULL, NAN, 1 },
        { "(conv 8 (2 3) (1 2) SAME W=@ b=@) (erf) (avg_pool (2 2) (1 1) SAME) (conv_local 8 (2 1) (1 1) VALID W=@ b=@) (relu) (dense 8 W=@)", 3, { 4, 3, 2 },
          NT_FULL, 0.1, 1 },
        { "(conv 8 (2 3) (1 1) SAME W=@ b=@) (layer_norm (1 2 -1)) (gelu) (sum_pool (2 2) (1 2) VALID) (dense 8 W=@ b=@)", 3, { 4, 3, 2 }, NT_DIAGONAL, -9, 1 },
        { "(conv 8 (3) (1) SAME W=@ b=@) (layer_norm (1 -1)) (fan_out 2) (parallel (identity) (serial (relu) (conv 8 (3) (1) SAME W=@ b=@))) (fan_in_sum) (relu) "
          "(image_resize (7)) (global_avg_pool)", 2, { 5, 2 }, NT_FULL, -9, 1 },
        { "(fan_out 2) (parallel (serial (conv 8 (2) (1) VALID W=@ b=@) (relu)) (serial (dense 8 W=@ b=@) (erf))) (fan_in_concat 1) (dense 8 W=@ b=@) "
          "(relu) (index 1: ::-2 :) (global_sum_pool)", 2, { 4, 2 }, NT_FULL, -9, 3 },
        { "(dense 8 W=@ b=@) (attention 4 8 8 2 W_key=$ b=$ pos=sum decay=exp) (erf) (attention 4 8 8 1 mechanism=abs b=0.5) (erf) (global_avg_pool)", 2,
          { 5, 2 }, NT_FULL, NAN, 1 },
        { "(aggregate) (dense 8 W=@ b=@) (relu) (dropout 0.8) (aggregate) (dense 8 W=@ b=@) (relu) (global_avg_pool) (dense 8 W=@)", 2, { 5, 3 }, NT_FULL, -9, 1 },
    };
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++)
        for (int own = 0; own < 2; own++) {
            char net[600];
            snprintf(net, sizeof net, "(serial %s)", list[k].net);
            problem p = problem_of(net, nt_shape_make(list[k].rank, list[k].shape), 3, own ? 0 : 2);
            p.spatial = list[k].spatial, p.train = 1, p.has_pattern = strstr(net, "aggregate") != NULL, p.masked = 1, p.mask = list[k].mask;
            for (int i = 0; p.has_pattern && i < 75; i++) p.pattern[i] = chance();
            hide(&p, p.x1, p.n1, list[k].whole), hide(&p, p.x2, p.n2, -1);
            char name[700];
            snprintf(name, sizeof name, "masks, %s", own ? "against itself" : list[k].net);
            check(&p, 1e-12, 1e-9, name);
            p.dtype = NT_F32;
            recorded r = problem_record(&p);
            double e = p.size ? value_error(&p, &r) : INFINITY;
            tap_ok(e < 1e-5, "  in f32: %.1e", e);
            nt_tape_close(r.t);
        }
}

// ---------------------------------------------------------------------------------------------------------------------
// Where rules have kinks
// ---------------------------------------------------------------------------------------------------------------------
// An image, a zero one, its opposite, another one, the first one times two; x2 the same images.
static problem edge_problem(const char *net, int own) {
    static const double times[5] = { 1, 0, -1, 1, 2 };
    problem p = problem_of(net, NT_SHAPE(3), 5, own ? 0 : 5);
    for (int i = 0; i < 15; i++)
        if (i / 3 != 3) p.x1[i] = times[i / 3] * p.x1[i % 3];
    memcpy(p.x2, p.x1, 15 * sizeof(double));
    return p;
}

// Both kernels, all first derivatives, and the second ones along random directions.
static int derivatives_finite(problem *p) {
    recorded r = problem_record(p);
    nt_tensor *x[MAX_INPUTS], *along[MAX_INPUTS], *out[2 + 2 * MAX_INPUTS];
    double *numbers[MAX_INPUTS], d[15];
    int count = inputs_of(p, &r, x, numbers), outputs = 0, good = 0;
    for (int k = 0; k < count; k++) {
        for (int i = 0; i < 15; i++) d[i] = chance();
        along[k] = nt_constant(r.t, NT_F64, nt_shape_of(x[k]), d);
    }
    nt_params in = { count, x }, tangents = { count, along }, g = nt_grads(r.y, in), h = nt_hvp(r.y, in, tangents);
    out[outputs++] = r.k.nngp, out[outputs++] = r.k.ntk;
    for (int k = 0; k < count && g.count && h.count; k++) out[outputs++] = g.items[k], out[outputs++] = h.items[k];
    const double *const *got = outputs > 2 ? evaluate(&r, outputs, out) : NULL;
    for (int k = 0; k < outputs && got; k++) {
        good = 1;
        for (int64_t i = 0; i < nt_size(out[k]) && good; i++) good = isfinite(got[k][i]);
        if (!good) break;
    }
    nt_tape_close(r.t);
    return good;
}

// Where images are equal or opposite, both sides' derivatives of a kink have a mean, which differences find, to the distance that they
// step. Without variance there is none behind two rectifiers: derivatives are finite there, and no more. Rounding in
// nt_kernel that puts pairs beside +-1 by 1e-16 makes an angle of 1e-8 there, and of 1e-4 behind another one (jumps);
// 1e-8 over h = 1e-2 is what derivatives by standard deviations are off.
static void test_edges(void) {
    static const struct { const char *net; int jumps; } list[] = {
        { "(relu)", 0 }, { "(leaky_relu 0.1)", 0 }, { "(abs)", 0 }, { "(erf)", 0 }, { "(gelu)", 0 }, { "(sin)", 0 }, { "(rbf)", 0 }, { "(exp a=0.5 b=0.3)", 0 },
        { "(gaussian)", 0 }, { "(gabor)", 0 }, { "(sign)", 1 }, { "(monomial 3)", 0 }, { "(rectified_monomial 0)", 1 }, { "(rectified_monomial 2)", 0 },
        { "(polynomial 0.2 0.5 -0.1)", 0 }, { "(hermite 2)", 0 }, { "(exp_normalized)", 0 }, { "(elementwise_numerical tanh 25)", 0 },
        { "(elementwise_numerical elu 25)", 0 },
    };
    static const double h[2] = { 1e-2, 1e-5 };
    for (size_t k = 0; k < sizeof list / sizeof list[0]; k++)
        for (int own = 0; own < 2; own++)
            for (int bias = 0; bias < 2; bias++) {
                char net[400], one[200];
                const char *b = bias ? "@" : "none";
                snprintf(net, sizeof net, "(serial (dense 8 W=@ b=%s) %s (dense 8 W=@ b=%s) %s (dense 8 W=@))", b, list[k].net, b, list[k].net);
                snprintf(one, sizeof one, "(serial (dense 8 W=@ b=%s) %s (dense 8 W=@))", b, list[k].net);
                problem p = edge_problem(net, own), single = edge_problem(one, own);
                recorded r = problem_record(&p);
                double e = value_error(&p, &r), g[2] = { 0, 0 };
                if (!list[k].jumps) gradient_error(&p, &r, h, g);
                nt_tape_close(r.t);
                int good = bias || derivatives_finite(&single);
                single.dtype = NT_F32;
                good &= bias || derivatives_finite(&single);
                tap_ok(good && e < (list[k].jumps ? 1e-3 : 1e-7) && g[0] < 2e-5 && g[1] < (bias ? 2e-4 : INFINITY),
                       "%s at correlations of +-1%s%s: %s, values to %.1e, derivatives to %.1e", list[k].net, bias ? "" : " and without variance",
                       own ? ", against itself" : "", good ? "finite" : "not finite", e, bias ? fmax(g[0], g[1]) : g[0]);
            }
}

// ---------------------------------------------------------------------------------------------------------------------
// Other transforms
// ---------------------------------------------------------------------------------------------------------------------
static void test_second(void) { // along one direction of everything, against second differences
    problem p = problem_of("(serial (conv 8 (2) (1) SAME W=@ b=@) (relu) (conv 8 (2) (1) SAME W=@) (elementwise_numerical tanh 25) (flatten) (dense 8 W=@ b=@))",
                           NT_SHAPE(3, 2), 2, 2);
    recorded r = problem_record(&p);
    double d1[12], one = 1, hv[12], got = 0, value[3], kept[12], W = p.W[0], h = 1e-3;
    memcpy(kept, p.x1, sizeof kept);
    for (int i = 0; i < 12; i++) d1[i] = chance();
    nt_tensor *x[2] = { r.x1, r.W[0] }, *along[2] = { nt_constant(r.t, NT_F64, nt_shape_of(r.x1), d1), nt_constant(r.t, NT_F64, NT_SCALAR, &one) };
    nt_params in = { 2, x }, tangents = { 2, along }, product = nt_hvp(r.y, in, tangents);
    if (product.count && nt_eval(product.items[0], hv) == NT_OK)
        for (int i = 0; i < 12; i++) got += d1[i] * hv[i];
    if (product.count && nt_eval(product.items[1], hv) == NT_OK) got += hv[0];
    for (int k = 0; k < 3; k++) {
        for (int i = 0; i < 12; i++) p.x1[i] = kept[i] + (k - 1) * h * d1[i];
        p.W[0] = W + (k - 1) * h;
        value[k] = problem_value(&p);
    }
    double want = (value[0] - 2 * value[1] + value[2]) / (h * h);
    tap_ok(fabs(got - want) < 1e-4 * (fabs(want) + fabs(value[1])), "a second derivative: %.9g, by differences %.9g", got, want);
    nt_tape_close(r.t);
}

static void test_batch(void) { // several networks at once
    problem p = problem_of("(serial (conv 8 (2) (1) SAME W=@ b=@) (relu) (conv 8 (2) (1) SAME W=@) (gelu) (global_avg_pool) (dense 8 W=@ b=@))", NT_SHAPE(3, 2), 3, 0);
    recorded r = problem_record(&p);
    double W[3] = { 0.7, 1, 1.9 }, got[3], worst = 0;
    nt_tensor *all = nt_variable(r.t, NT_F64, NT_SHAPE(3), W);
    nt_params out = { 1, &r.y }, in = { 1, &r.W[0] }, many = { 1, &all }, y = nt_vmap(out, in, many);
    if (!y.count || nt_eval(y.items[0], got) != NT_OK) tap_note("%s", nt_error(r.t)), worst = INFINITY;
    for (int k = 0; k < 3 && worst < 1; k++) p.W[0] = W[k], worst = fmax(worst, fabs(got[k] - problem_value(&p)));
    tap_ok(worst < 1e-12, "networks in a batch (%.1e)", worst);
    nt_tape_close(r.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// A Gaussian process
// ---------------------------------------------------------------------------------------------------------------------
#define POINTS 14
#define NOISE 1e-2

static double log_likelihood(problem *p, const double *y) { // of nt_kernel's NNGP, by a Cholesky factor made here
    static double l[POINTS * POINTS];
    double z[POINTS], sum = -0.5 * POINTS * log(2 * 3.14159265358979323846);
    problem_value(p);
    for (int i = 0; i < POINTS; i++) {
        z[i] = y[i];
        for (int j = 0; j <= i; j++) {
            double s = p->kernel[0][i * POINTS + j] + (i == j ? NOISE : 0);
            for (int k = 0; k < j; k++) s -= l[i * POINTS + k] * l[j * POINTS + k];
            l[i * POINTS + j] = i == j ? sqrt(s) : s / l[j * POINTS + j];
        }
        for (int k = 0; k < i; k++) z[i] -= l[i * POINTS + k] * z[k];
        z[i] /= l[i * POINTS + i], sum -= 0.5 * z[i] * z[i] + log(l[i * POINTS + i]);
    }
    return sum;
}

// Gradient steps on all W_std and b_std: the program is compiled once, the numbers are written.
static void test_fit(void) {
    problem p = problem_of("(serial (dense 8 W=@ b=@) (erf) (dense 8 W=@ b=@) (erf) (dense 1 W=@ b=@))", NT_SHAPE(2), POINTS, 0);
    double y[POINTS], before, first, worst = 0, h = 1e-5;
    for (int i = 0; i < POINTS; i++) y[i] = sin(4 * p.x1[2 * i]) * p.x1[2 * i + 1] + 0.3;
    recorded r = problem_record(&p);
    nt_tensor *targets = nt_constant(r.t, NT_F64, NT_SHAPE(POINTS, 1), y), *at = nt_iota(r.t, NT_I32, NT_SHAPE(POINTS), 0);
    nt_tensor *k = nt_add(r.k.nngp, nt_scale(nt_one_hot(at, POINTS, NT_F64), NOISE));
    nt_tensor *like = nt_scale(nt_add(nt_sum(nt_mul(targets, nt_solve_spd(k, targets))), nt_logdet_spd(k)), -0.5), *out[7] = { like };
    for (int j = 0; j < 3; j++) out[1 + j] = nt_grad(like, r.W[j]), out[4 + j] = nt_grad(like, r.b[j]);
    nt_params all = { 7, out };
    nt_program *program = nt_compile_many(r.t, all, NULL);
    if (!tap_ok(program != NULL, "a likelihood and its derivatives: %s", nt_error(r.t) ? nt_error(r.t) : "compiled")) return;
    first = before = log_likelihood(&p, y);
    int up = 1;
    for (int step = 0; step < 12; step++) {
        double g[6], rate = 0.02, norm = 0;
        up &= nt_run(program) == NT_OK;
        for (int j = 0; j < 6; j++) nt_read(program, 1 + j, &g[j]), norm += g[j] * g[j];
        for (int j = 0; j < 6 && step == 0; j++) {
            double *number = j < 3 ? &p.W[j] : &p.b[j - 3], kept = *number, value[2];
            for (int side = 0; side < 2; side++) *number = kept + (side ? h : -h), value[side] = log_likelihood(&p, y);
            *number = kept, worst = fmax(worst, fabs((value[1] - value[0]) / (2 * h) - g[j]));
        }
        norm = sqrt(norm);
        for (int j = 0; j < 6; j++) *(j < 3 ? &p.W[j] : &p.b[j - 3]) += rate * g[j] / norm;
        for (int j = 0; j < 3; j++) nt_write(r.W[j], &p.W[j]), nt_write(r.b[j], &p.b[j]);
        double now = log_likelihood(&p, y);
        up &= now > before, before = now;
    }
    tap_ok(worst < 1e-5, "derivatives of a log likelihood by the standard deviations (%.1e)", worst);
    tap_ok(up, "each of 12 steps along them is a better fit: %.3f to %.3f", first, before);
    nt_tape_close(r.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Wrong arguments
// ---------------------------------------------------------------------------------------------------------------------
static double sin_of(void *user, double x) { (void)user; return sin(x); }

static void test_unseen(void) { // windows that lie beside the image: the last bias alone
    nt_tape *t = nt_tape_open(NULL);
    nt_pool_desc pool;
    nt_dense_desc bias;
    double data[4] = { 1, 2, 3, 4 }, k[16] = { 0 };
    memset(&pool, 0, sizeof pool), memset(&bias, 0, sizeof bias);
    pool.padding = NT_EXPLICIT, pool.stride[0] = 2, pool.pad[0][0] = pool.pad[0][1] = 1, bias.W_std = 1, bias.b_std = 2;
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 8, &bias), nt_sum_pool_layer_with(t, NT_WINDOW(1), &pool), nt_dense_layer(t, 8, &bias));
    nt_kernels r = nt_kernel_record(net, nt_constant(t, NT_F64, NT_SHAPE(2, 1, 2), data), NULL, NULL);
    nt_program *p = r.ntk ? nt_compile(nt_add(r.nngp, r.ntk), NULL) : NULL;
    int ok = p && nt_run(p) == NT_OK && nt_read(p, 0, k) == NT_OK && nt_size(r.nngp) == 16;
    for (int j = 0; j < 16; j++) ok = ok && k[j] == 5; // 4, and a bias of derivative 1
    tap_ok(ok, "windows beside the image: %s", nt_error(t) ? nt_error(t) : ""), nt_tape_close(t);
}

static void test_errors(void) {
    nt_tape *t = nt_tape_open(NULL), *other = nt_tape_open(NULL);
    nt_kernel_record_desc d;
    nt_dense_desc plain;
    nt_elementwise_desc silent;
    nt_global_attention_desc attention;
    CLEAR(d), CLEAR(plain), CLEAR(silent), CLEAR(attention);
    attention.features = attention.key = attention.value = attention.heads = 2;
    plain.bias = NT_BIAS_OFF;
    nt_tensor *x = nt_full(t, NT_F32, NT_SHAPE(3, 4), 1), *image = nt_full(t, NT_F32, NT_SHAPE(3, 4, 4, 1), 1), *W = nt_scalar(t, NT_F32, 1), *two[2] = { W, W }, *six[6] = { 0 };
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 8, NULL), nt_relu_layer(t), nt_dense_layer(t, 8, &plain)), *bad;
    nt_kernels k = nt_kernel_record(net, x, NULL, NULL);
    tap_ok(k.nngp && k.ntk && k.nngp->rank == 2 && k.nngp->shape[1] == 3 && k.nngp->dtype == NT_F32, "without a descriptor");
    k = nt_kernel_record(NULL, x, NULL, NULL);
    tap_ok(!k.nngp && !nt_error(t), "no network: quietly nothing");
    k = nt_kernel_record(net, NULL, x, NULL);
    tap_ok(!k.nngp && !nt_error(t), "no images: quietly nothing");
#define REFUSED(net, x1, x2, status, words, what) \
    k = nt_kernel_record(net, x1, x2, &d), refused(t, k.nngp ? k.nngp : k.ntk, status, words, what)
    REFUSED(net, nt_full(t, NT_F32, NT_SHAPE(3), 1), NULL, NT_ERROR_SHAPE, "nt_kernel_record|channels", "images without channels");
    REFUSED(net, nt_full(t, NT_I32, NT_SHAPE(3, 4), 1), NULL, NT_ERROR_DTYPE, "nt_kernel_record|f32", "images of integers");
    REFUSED(net, x, nt_full(t, NT_F32, NT_SHAPE(2, 5), 1), NT_ERROR_SHAPE, "nt_kernel_record|f32[3,4]|f32[2,5]", "images of different sizes");
    REFUSED(net, x, nt_full(t, NT_F64, NT_SHAPE(2, 4), 1), NT_ERROR_SHAPE, "nt_kernel_record|f64[2,4]", "images of two dtypes");
    REFUSED(net, nt_full(t, NT_F32, NT_SHAPE(2, 0), 1), NULL, NT_ERROR_SHAPE, "nt_kernel_record|1 or more", "images without an element");
    d.spatial = (nt_kernel_spatial)7;
    REFUSED(net, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.spatial", "a spatial that is none");
    CLEAR(d), d.W_std.count = 1, d.W_std.items = two;
    REFUSED(net, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.W_std has 1|takes 2", "too few W_std");
    CLEAR(d), d.b_std.count = 2, d.b_std.items = two;
    REFUSED(net, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.b_std[1]|no bias", "a b_std where there is no bias");
    two[1] = x, d.W_std = d.b_std, d.b_std.count = 0;
    REFUSED(net, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.W_std[1]|f32[3,4]|scalar", "a W_std that is no scalar");
    CLEAR(d), d.attention_std.count = 6, d.attention_std.items = six;
    REFUSED(net, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.attention_std has 6|takes 0", "numbers of an attention that is not there");
    bad = nt_global_self_attention_layer(t, &attention), six[5] = W;
    REFUSED(bad, image, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.attention_std[5]|no positions", "a position_std where there are no positions");
    six[5] = NULL, six[4] = W, attention.bias = NT_BIAS_OFF, bad = nt_global_self_attention_layer(t, &attention);
    REFUSED(bad, image, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.attention_std[4]|no bias", "the same of a bias");
    CLEAR(d);
    REFUSED(net, image, NT_LIST(nt_full(other, NT_F32, NT_SHAPE(3, 4, 4, 1), 1)).items[0], NT_ERROR_ARGUMENT, "nt_kernel_record|another tape", "two tapes");
    bad = nt_max_pool_layer(t, NT_WINDOW(2, 2));
    REFUSED(bad, image, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|MaxPool|no infinite-width rule", "a layer without a rule");
    REFUSED(nt_relu_layer(t), x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|not Gaussian", "an activation at first");
    bad = nt_conv_layer(t, 8, NT_WINDOW(3, 3), NULL);
    REFUSED(bad, x, NULL, NT_ERROR_SHAPE, "nt_kernel_record|another number of axes", "a window for other images");
    silent.f = sin_of, bad = NT_SERIAL(t, nt_dense_layer(t, 8, NULL), nt_elementwise_layer(t, &silent));
    REFUSED(bad, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|.function", "an activation that nobody can record");
    bad = NT_SERIAL(t, nt_dense_layer(t, 8, NULL), nt_activation_layer(t, nt_relu6));
    REFUSED(bad, x, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|Relu6", "a rule that is not recorded");
    d.pattern1 = x, bad = nt_aggregate_layer(t, NULL);
    REFUSED(bad, image, NULL, NT_ERROR_SHAPE, "nt_kernel_record|.pattern1|f32[3,4]", "a pattern of another shape");
    REFUSED(bad, image, image, NT_ERROR_ARGUMENT, "nt_kernel_record|.pattern2 is NULL", "a pattern for x1 alone");
    d.pattern2 = x, d.pattern1 = NULL;
    REFUSED(bad, image, image, NT_ERROR_ARGUMENT, "nt_kernel_record|.pattern1 is NULL", "a pattern for x2 alone");
    REFUSED(bad, image, NULL, NT_ERROR_ARGUMENT, "nt_kernel_record|x2 is NULL", "a pattern for no x2");
    CLEAR(d);
    nt_tape_close(other), nt_tape_close(t);
}

// A tape in `bytes` bytes; 1: recorded, 0: no memory, -1: something else.
static int in_array(char *memory, size_t bytes) {
    problem p = problem_of("(serial (conv 8 (3) (1) SAME W=@ b=@) (elementwise_numerical tanh 25) (fan_out 2) (parallel (serial (conv 8 (2) (2) SAME W=@) (gabor)) "
                           "(serial (conv_transpose 4 (2) (2) CIRCULAR W=@) (relu) (avg_pool (2) (1) VALID))) (fan_in_concat 1) (aggregate) "
                           "(conv 4 (2) (1) CIRCULAR W=@) (layer_norm (1 -1)) (rectified_monomial 2) (attention 4 8 8 2 pos=sum decay=exp) (polynomial 1 2) "
                           "(image_resize (3)) (global_avg_pool) (dense 8 W=@ b=@))", NT_SHAPE(4, 2), 2, 2);
    nt_tape_desc t;
    nt_kernel_record_desc d;
    CLEAR(t), CLEAR(d);
    d.masked = 1, d.mask = p.x1[3];
    t.memory = memory, t.memory_size = bytes;
    nt_tape *tape = nt_tape_open(&t);
    wide_case.error[0] = 0;
    if (!tape) return 0;
    nt_layer *net = problem_net(&p, tape);
    nt_tensor *x1 = nt_variable(tape, NT_F64, NT_SHAPE(2, 4, 2), p.x1), *x2 = nt_variable(tape, NT_F64, NT_SHAPE(2, 4, 2), p.x2);
    nt_kernels k = nt_kernel_record(net, x1, x2, &d);
    int result = k.nngp && k.ntk && !nt_error(tape) ? 1 : !k.nngp && !k.ntk && nt_error_status(tape) == NT_ERROR_MEMORY ? 0 : -1;
    if (result < 0) tap_note("in %zu bytes: %s", bytes, nt_error(tape) ? nt_error(tape) : "nothing");
    nt_tape_close(tape);
    return result;
}

static void test_memory(void) { // arrays of many sizes: the call fails cleanly until it does not
    static char memory[4 << 20];
    size_t low = 0, high = sizeof memory;
    int good = in_array(memory, high) == 1;
    while (good && high - low > 1) {
        size_t middle = (low + high) / 2;
        if (in_array(memory, middle) == 1) high = middle;
        else low = middle;
    }
    tap_note("%zu bytes would do", high);
    for (size_t bytes = 4096; good && bytes < high; bytes += high / 400) good = in_array(memory, bytes) == 0;
    tap_ok(good, "arrays that are too small");
}

int main(void) {
    test_activations();
    test_layers();
    test_masks();
    test_edges();
    test_second();
    test_batch();
    test_fit();
    test_unseen();
    test_errors();
    test_memory();
    gd_free_all(&wide_case);
    return tap_end();
}
