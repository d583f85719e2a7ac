// The walk of the operation table: every row is recorded on the random operands that its `sample` column makes, and checked
// for everything that a row promises. No row is tested by name here; a new row is tested as soon as it stands in the table.
#define NTTRAIN_TESTS
#define NTTRAIN_NO_KERNELS
#define NTTRAIN_IMPLEMENTATION
#ifndef EVERY_INSTRUCTION_SET // check_all.sh: compiling them all takes a minute
#define NTTRAIN_ISA_BASELINE
#endif
#include "nttrain.h"
#include "halves.h"
#include "tap.h"
#include <stdlib.h>

enum { MOST_LEAVES = 40, MOST_OUTPUTS = 4 * MOST_LEAVES + 8, WORKERS = 4 };

// What is checked of each row; one line of TAP for each that applies.
#define PROPERTIES(X) \
    X(SAMPLES, "has samples, also empty and strided ones") \
    X(RULES, "has derivatives, or says that it has none") \
    X(VALUE, "runs on every sample") \
    X(STRIDED, "strided operands give the bits of contiguous ones, and so do operands that may be overwritten") \
    X(DECOMPOSE, "the decomposition gives the value") \
    X(PRECISION, "f32 agrees with f64") \
    X(INTEGERS, "integers agree with f64") \
    X(HALVES, "f16 and bf16: the f32 operation, rounded once") \
    X(FIRST, "jvp against differences, <v, J w> = <J' v, w>") \
    X(SECOND, "second derivatives") \
    X(VMAP, "vmap against a loop") \
    X(ACCUMULATE, "adds into a variable with the bits of two steps") \
    X(CHECKED, "stops the run before anything is assigned") \
    X(TILES, "1 to 4 workers, tiles in any order: equal bits") \
    X(ISAS, "AVX2 and AVX-512: equal bits; baseline: equal numbers") \
    X(BAD, "bad operands are refused by name, never a crash")
#define PROPERTY_ENUM(id, text) id,
#define PROPERTY_TEXT(id, text) text,
enum { PROPERTIES(PROPERTY_ENUM) PROPERTY_COUNT };
static const char *const property_text[] = { PROPERTIES(PROPERTY_TEXT) };

static int done[PROPERTY_COUNT], failed[PROPERTY_COUNT];

// ---------------------------------------------------------------------------------------------------------------------
// One sample: an operation on a tape of its own
// ---------------------------------------------------------------------------------------------------------------------
typedef struct sample {
    nt_tape *t;
    nt_tensor *y;
    const nti_row *row;
    int op, variant, leaves, floats;
    nt_dtype dtype;
    nt_tensor *leaf[MOST_LEAVES], *real[MOST_LEAVES]; // all leaves; those of a floating dtype
} sample;

static int report(const sample *s, int property, int ok, const char *format, ...) {
    char text[512];
    va_list args;
    done[property]++;
    if (ok) return 1;
    if (failed[property]++ >= 6) return 0;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    tap_note("%s, %s, variant %d: %s", s->row->name, nt_dtype_name(s->dtype), s->variant, text);
    return 0;
}

static void add_leaf(sample *s, nti_node *n) {
    if (n->op > NTI_OP_VARIABLE || s->leaves == MOST_LEAVES) return;
    for (int k = 0; k < s->leaves; k++)
        if (s->leaf[k] == &n->pub) return;
    s->leaf[s->leaves++] = &n->pub;
    if (nti_is_float(n->pub.dtype)) s->real[s->floats++] = &n->pub;
}

// 0: the row has no such variant.
static int open_sample(sample *s, int op, nt_dtype dtype, int variant, const nt_tape_desc *desc) {
    memset(s, 0, sizeof *s);
    s->row = &nti_rows[op], s->op = op, s->variant = variant, s->dtype = dtype;
    s->t = nt_tape_open(desc);
    if (!s->t || !s->row->sample) return 0;
    s->y = s->row->sample(s->t, op, dtype, variant, 1);
    report(s, SAMPLES, !nt_error(s->t), "the sample is refused: %s", nt_error(s->t) ? nt_error(s->t) : "");
    if (!s->y) return 0;
    report(s, SAMPLES, nti_n(s->y)->op == op, "the sample is another operation, %s", nti_rows[nti_n(s->y)->op].name);
    for (nti_node *n = s->t->first; n; n = n->next)
        for (int k = 0; k < n->inputs; k++) add_leaf(s, n->in[k]);
    return 1;
}

static void close_sample(sample *s) { nt_tape_close(s->t); }

static int same_variants(int variant) { return variant >= NTI_SAMPLE_TIES; } // where differences would cross a kink

// ---------------------------------------------------------------------------------------------------------------------
// Arrays
// ---------------------------------------------------------------------------------------------------------------------
typedef struct array { int64_t n; double *v; } array;

static array array_new(int64_t n) {
    array a;
    a.n = n, a.v = (double *)calloc((size_t)n + 1, sizeof(double));
    return a;
}

static array array_of(nt_dtype dtype, int64_t n, const void *data) {
    array a = array_new(n);
    if (n) nti_cast(NT_F64, a.v, dtype, data, (size_t)n);
    return a;
}

static double dot(array a, array b) {
    double sum = 0;
    for (int64_t k = 0; k < a.n; k++) sum += a.v[k] * b.v[k];
    return sum;
}

static double largest(array a) {
    double most = 0;
    for (int64_t k = 0; k < a.n; k++)
        if (fabs(a.v[k]) > most && fabs(a.v[k]) < HUGE_VAL) most = fabs(a.v[k]);
    return most;
}

static int near(double a, double b, double tolerance) { return a == b || (a != a && b != b) || fabs(a - b) <= tolerance; }

// The first element where they differ by more; -1: none. Differences are measured against the largest element, at least 1.
static int64_t differ(array a, array b, double tolerance) {
    double scale = 1 + largest(a) + largest(b);
    if (a.n != b.n) return a.n < b.n ? a.n : b.n;
    for (int64_t k = 0; k < a.n; k++)
        if (!near(a.v[k], b.v[k], tolerance * scale)) return k;
    return -1;
}

static void expect_near(const sample *s, int property, array got, array wanted, double tolerance, const char *what) {
    int64_t k = differ(got, wanted, tolerance);
    report(s, property, k < 0, "%s: element %lld is %.15g, not %.15g", what, (long long)k, k < 0 || k >= got.n ? 0 : got.v[k], k < 0 || k >= wanted.n ? 0 : wanted.v[k]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Programs: compiled values, run on scratch full of NaN (or of something else)
// ---------------------------------------------------------------------------------------------------------------------
static nti_step step; // what the rows of training read
static int64_t counters[NTI_COUNTERS] = { 3, 1, 2, 0 };
static double numbers[NTI_NUMBERS] = { 0.1, 1, 0, 0 };

static int garbage = 0xff;

static void set_step(const nt_tensor *y) {
    const nti_node *n = nti_n(y);
    memset(&step, 0, sizeof step);
    step.counter = counters, step.number = numbers;
    step.now.kind = n->op == NTI_OP_UPDATE && n->i[0] == 3 ? NTI_UPDATE_ADAM : NTI_UPDATE_SGD;
    step.now.momentum = n->op == NTI_OP_UPDATE && n->i[0] == 1, step.now.nesterov = 1;
    step.now.rate = 0.1, step.now.scale = 0.5, step.now.decay = 0.01, step.now.mu = 0.9, step.now.b1 = 0.9, step.now.b2 = 0.99;
    step.now.eps = 1e-8, step.now.m_now = 2, step.now.m_next = 1.5, step.now.g_now = 0.25, step.now.v_now = 3;
}

static nt_status run(nt_program *p) {
    if (p->scratch) memset(p->scratch, garbage, p->scratch_bytes);
    nt_status status = nti_run_ready(p);
    nti_slice whole;
    memset(&whole, 0, sizeof whole), whole.run = p;
    if (status == NT_OK) status = nti_run_part(p, &whole), nti_run_end(p);
    return status;
}

static nt_program *compile(const sample *s, nt_tensor **outputs, int count, nt_tensor *effect) {
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    if (effect) desc.assigns = nti_list(&effect, 1);
    nt_program *p = nt_compile_many(s->t, nti_list(outputs, count), &desc);
    if (p) set_step(s->y), p->step = &step;
    return p;
}

// Compiles and runs; NULL after a failure, which is reported unless `property` is negative.
static nt_program *compute(const sample *s, int property, nt_tensor **outputs, int count, nt_tensor *effect) {
    nt_program *p = compile(s, outputs, count, effect);
    nt_status status = p ? run(p) : NT_ERROR_STATE;
    if (property >= 0) report(s, property, status == NT_OK, "does not run: %s, %s", nt_status_name(status), nt_error(s->t) ? nt_error(s->t) : "no message");
    return status == NT_OK ? p : NULL;
}

static array output(const nt_program *p, int k) { return array_of(p->output[k].dtype, nti_count(p->output[k].shape.rank, p->output[k].shape.size), nt_output(p, k)); }

typedef struct blob { size_t n; char *data; } blob;

static void blob_add(blob *b, const void *data, size_t n) {
    b->data = (char *)realloc(b->data, b->n + n + 1);
    if (n) memcpy(b->data + b->n, data, n);
    b->n += n;
}

static int blob_equal(blob a, blob b) { return a.n == b.n && (!a.n || !memcmp(a.data, b.data, a.n)); }

static int writes(const sample *s, int k) { return (s->row->flags & NTI_EFFECT) && k != 1; } // operand k

// What the operation z gives: its value, or the variables that it changes (which get their old values back).
static blob value_of(const sample *s, int property, nt_tensor *z) {
    blob b = { 0, NULL }, old = { 0, NULL };
    nti_node *n = nti_n(z);
    int effect = (s->row->flags & NTI_EFFECT) != 0;
    for (int k = 0; k < n->inputs; k++)
        if (writes(s, k)) blob_add(&old, nt_data(&n->in[k]->pub), nt_bytes(&n->in[k]->pub));
    nt_program *p = compute(s, property, &z, effect ? 0 : 1, effect ? z : NULL);
    if (!effect && p) blob_add(&b, nt_output(p, 0), nt_output_bytes(p, 0));
    size_t at = 0;
    for (int k = 0; p && k < n->inputs; k++) {
        if (!writes(s, k)) continue;
        blob_add(&b, nt_data(&n->in[k]->pub), nt_bytes(&n->in[k]->pub));
        memcpy(nt_data(&n->in[k]->pub), old.data + at, nt_bytes(&n->in[k]->pub));
        at += nt_bytes(&n->in[k]->pub);
    }
    free(old.data);
    return b;
}

// ---------------------------------------------------------------------------------------------------------------------
// Values
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *plain_copy(nt_tape *t, const nt_program *p, int k) { return nt_variable(t, p->output[k].dtype, p->output[k].shape, nt_output(p, k)); }

// A value that lies in scratch and that nobody else needs.
static nt_tensor *fresh_copy(nt_tensor *x) {
    int64_t none[NT_MAX_RANK] = { 0 };
    return nt_pad(x, none, none, NULL, 0);
}

static void expect_bits(const sample *s, int property, nt_tensor *z, blob wanted, const char *what) {
    if (!report(s, property, z != NULL, "%s: not recorded: %s", what, nt_error(s->t) ? nt_error(s->t) : "")) return;
    blob got = value_of(s, property, z);
    report(s, property, blob_equal(got, wanted), "%s: other bits", what);
    free(got.data);
}

static void check_strided(sample *s) {
    nti_node *n = nti_n(s->y);
    nt_tensor *in[MOST_LEAVES], *plain[MOST_LEAVES], *fresh[MOST_LEAVES];
    if (!n->inputs || n->inputs > MOST_LEAVES || (s->row->flags & NTI_LEAVES)) return; // the operand of a result is in a body
    blob wanted = value_of(s, VALUE, s->y);
    for (int k = 0; k < n->inputs; k++) in[k] = &n->in[k]->pub;
    nt_program *p = compute(s, STRIDED, in, n->inputs, NULL);
    for (int k = 0; p && k < n->inputs; k++) plain[k] = plain_copy(s->t, p, k), fresh[k] = writes(s, k) ? plain[k] : fresh_copy(in[k]);
    if (p) {
        expect_bits(s, STRIDED, nti_again(s->y, plain), wanted, "contiguous operands");
        expect_bits(s, STRIDED, nti_again(s->y, fresh), wanted, "operands that may be overwritten");
        int last = n->inputs - 1;
        if (last && !writes(s, last) && !writes(s, last - 1) && in[last]->dtype == in[last - 1]->dtype && nti_same_shape(in[last], in[last - 1])) { // one operand twice
            plain[last] = plain[last - 1], fresh[last] = fresh[last - 1];
            blob twice = value_of(s, STRIDED, nti_again(s->y, plain));
            expect_bits(s, STRIDED, nti_again(s->y, fresh), twice, "one operand twice");
            free(twice.data);
        }
    }
    free(wanted.data);
}

static void check_decompose(sample *s) {
    nt_tensor *few[NTI_FEW], *both[2];
    if (!s->row->decompose || !nti_is_float(s->dtype) || nti_is_half(s->dtype)) return; // every step would be rounded
    both[0] = s->y, both[1] = s->row->decompose(s->y, nti_operands(nti_n(s->y), few));
    if (!report(s, DECOMPOSE, both[1] && nti_same_shape(both[0], both[1]), "not recorded, or another shape: %s", nt_error(s->t) ? nt_error(s->t) : "")) return;
    nt_program *p = compute(s, DECOMPOSE, both, 2, NULL);
    if (!p) return;
    array a = output(p, 0), b = output(p, 1);
    expect_near(s, DECOMPOSE, b, a, s->dtype == NT_F64 ? 1e-12 : 1e-5, "decomposed");
    free(a.v), free(b.v);
}

static int has_float_operand(const sample *s) {
    const nti_node *n = nti_n(s->y);
    for (int k = 0; k < n->inputs; k++)
        if (nti_is_float(n->in[k]->pub.dtype)) return 1;
    return !n->inputs;
}

static array value_array(const sample *s) {
    blob b = value_of(s, VALUE, s->y);
    array a = array_of(s->y->dtype, b.n ? nt_size(s->y) : 0, b.data);
    free(b.data);
    return a;
}

static void check_precision(sample *s) { // s in f32
    sample d;
    if (s->dtype != NT_F32 || !has_float_operand(s) || !open_sample(&d, s->op, NT_F64, s->variant, NULL)) return;
    array a = value_array(s), b = value_array(&d);
    const nti_node *n = nti_n(s->y);
    double terms = n->inputs && nt_size(s->y) ? (double)nt_size(&n->in[0]->pub) / (double)nt_size(s->y) : 1;
    for (int64_t k = 0; k < a.n; k++)
        if (fabs(a.v[k]) == HUGE_VAL && fabs(b.v[k]) > 3e38) b.v[k] = a.v[k];
    expect_near(s, PRECISION, a, b, 4e-6 + 6e-8 * terms, "f32 against f64");
    free(a.v), free(b.v);
    close_sample(&d);
}

static double wrapped(double x, nt_dtype dtype) { // modulo the size of the dtype
    double size = ldexp(1, 8 * (int)nt_dtype_size(dtype));
    double rest = x - floor(x / size) * size;
    return rest < size ? rest : 0; // rounded up
}

// The operation on the operands as f64 gives the numbers that the operation on integers gives, cut and wrapped as those are.
static void check_integers(sample *s) {
    nti_node *n = nti_n(s->y);
    nt_tensor *in[MOST_LEAVES], *both[2];
    if (nti_dtypes[s->dtype].floating || !n->inputs || (s->row->flags & (NTI_EFFECT | NTI_CHECKS)) || s->row->infer == nti_infer_logical) return;
    for (int k = 0; k < n->inputs; k++) in[k] = n->in[k]->pub.dtype == s->dtype && !(s->op == NTI_OP_SELECT && !k) ? nt_cast(&n->in[k]->pub, NT_F64) : &n->in[k]->pub;
    both[0] = s->y, both[1] = s->op == NTI_OP_CAST ? in[0] : nti_again(s->y, in); // casts of integers wrap, those of floats saturate
    nt_error_clear(s->t); // a row of integers only
    if (!both[1]) return;
    nt_program *p = compute(s, INTEGERS, both, 2, NULL);
    if (!p) return;
    array a = output(p, 0), b = output(p, 1);
    for (int64_t k = 0; k < a.n && k < b.n; k++) {
        if (!(fabs(b.v[k]) < 4503599627370496.0)) b.v[k] = a.v[k]; // a division by zero, or a number that f64 rounds
        b.v[k] = s->y->dtype == NT_BOOL ? b.v[k] != 0 : nti_is_float(s->y->dtype) ? b.v[k] : trunc(b.v[k]);
        if (nti_is_float(s->y->dtype) || s->y->dtype == NT_BOOL) continue;
        a.v[k] = wrapped(a.v[k], s->y->dtype), b.v[k] = wrapped(b.v[k], s->y->dtype);
    }
    expect_near(s, INTEGERS, a, b, 0, "against f64");
    free(a.v), free(b.v);
}

// The operation on the same numbers as f32 gives numbers that round to the results in f16 or bf16.
static void check_halves(sample *s) {
    nti_node *n = nti_n(s->y);
    nt_tensor *in[MOST_LEAVES];
    if (!nti_is_half(s->dtype) || !n->inputs || (s->row->flags & NTI_CHECKS)) return;
    int any = 0;
    for (int k = 0; k < n->inputs; k++) {
        nt_tensor *x = &n->in[k]->pub;
        any |= nti_is_half(x->dtype);
        in[k] = nti_is_half(x->dtype) ? nt_cast(x, NT_F32) : x;
        if (!writes(s, k) || !nti_is_half(x->dtype)) continue;
        in[k] = nt_variable(s->t, NT_F32, nt_shape_of(x), NULL);
        for (int64_t j = 0; in[k] && j < nt_size(x); j++) ((float *)nt_data(in[k]))[j] = (float)half_value(x->dtype, ((uint16_t *)nt_data(x))[j]);
    }
    nt_tensor *z = nti_again(s->y, in);
    if (!any || !report(s, HALVES, z != NULL, "not recorded in f32: %s", nt_error(s->t))) return;
    blob got = value_of(s, HALVES, s->y), wide = value_of(s, HALVES, z);
    int effect = (s->row->flags & NTI_EFFECT) != 0, rounded = effect || s->y->dtype != z->dtype;
    int64_t bad = -1;
    if (!rounded) bad = blob_equal(got, wide) ? -1 : 0;
    for (size_t k = 0; rounded && k < got.n / 2 && bad < 0; k++)
        if (wide.n != 2 * got.n || !half_same(s->dtype, ((uint16_t *)(void *)got.data)[k], half_bits(s->dtype, (double)((float *)(void *)wide.data)[k]))) bad = (int64_t)k;
    report(s, HALVES, bad < 0, "element %lld is not the f32 result rounded", (long long)bad);
    free(got.data), free(wide.data);
}

// ---------------------------------------------------------------------------------------------------------------------
// Derivatives
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *along(nt_tape *t, const nt_tensor *like, uint64_t seed, int variable) { // random numbers of few bits
    int64_t n = nt_size(like);
    char *data = (char *)malloc((size_t)n * 8 + 8);
    for (int64_t k = 0; k < n; k++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        double x = (double)((seed >> 40) % 129) / 64 - 1;
        nti_cast(like->dtype, data + (size_t)k * nt_dtype_size(like->dtype), NT_F64, &x, 1);
    }
    nt_tensor *w = variable ? nt_variable(t, like->dtype, nt_shape_of(like), data) : nt_constant(t, like->dtype, nt_shape_of(like), data);
    free(data);
    return w;
}

typedef struct directions { // of all floating leaves, and a cotangent of the result
    nt_tensor *w[MOST_LEAVES], *u[MOST_LEAVES], *v;
    array wa[MOST_LEAVES], ua[MOST_LEAVES], va;
} directions;

static nt_tensor *z_of(const sample *s) { return nti_is_float(s->y->dtype) ? s->y : nt_cast(s->y, NT_F64); } // integers have derivative zero

static array data_array(nt_tensor *x) { return array_of(x->dtype, nt_size(x), nti_n(x)->storage); }

static void directions_make(sample *s, directions *d, const nt_tensor *z) {
    for (int k = 0; k < s->floats; k++) {
        d->w[k] = along(s->t, s->real[k], 17 + (uint64_t)k, 0), d->u[k] = along(s->t, s->real[k], 99 + (uint64_t)k, 0);
        d->wa[k] = data_array(d->w[k]), d->ua[k] = data_array(d->u[k]);
    }
    d->v = along(s->t, z, 5, 1), d->va = data_array(d->v);
}

static void directions_free(const sample *s, directions *d) {
    for (int k = 0; k < s->floats; k++) free(d->wa[k].v), free(d->ua[k].v);
    free(d->va.v);
}

static void move_leaves(sample *s, const array *by, double h, double *const *origin) {
    for (int k = 0; k < s->floats; k++) {
        double *x = (double *)nt_data(s->real[k]);
        for (int64_t j = 0; j < by[k].n; j++) x[j] = origin[k][j] + h * by[k].v[j];
    }
}

// Central differences of `count` values along a direction of the leaves (all of them f64), element by element.
// (f(x + h d) - f(x - h d)) / 2h of each value.
static void differences(sample *s, nt_program *p, int count, const array *direction, double *const *origin, double h, array *slope) {
    array down;
    move_leaves(s, direction, h, origin), run(p);
    for (int k = 0; k < count; k++) slope[k] = output(p, k);
    move_leaves(s, direction, -h, origin), run(p);
    for (int k = 0; k < count; k++) {
        down = output(p, k);
        for (int64_t j = 0; j < down.n; j++) slope[k].v[j] = (slope[k].v[j] - down.v[j]) / (2 * h);
        free(down.v);
    }
}

// Two steps and their extrapolation, whose error is of the fourth order: a product of 131 factors has large third derivatives.
static void check_differences(sample *s, int property, nt_tensor **values, int count, const array *direction, const array *wanted, const char *what) {
    const double h = 1e-5;
    double *origin[MOST_LEAVES];
    array near[MOST_LEAVES], far[MOST_LEAVES];
    nt_program *p = compute(s, property, values, count, NULL);
    if (!p) return;
    for (int k = 0; k < s->floats; k++) origin[k] = array_of(NT_F64, nt_size(s->real[k]), nt_data(s->real[k])).v;
    differences(s, p, count, direction, origin, h, near), differences(s, p, count, direction, origin, 2 * h, far);
    for (int k = 0; k < count; k++) {
        for (int64_t j = 0; j < near[k].n; j++) {
            double better = (4 * near[k].v[j] - far[k].v[j]) / 3;
            near[k].v[j] = better == better ? better : wanted[k].v[j]; // infinite values, as the maximum of nothing
        }
        expect_near(s, property, wanted[k], near[k], 1e-7, what);
        free(near[k].v), free(far[k].v);
    }
    move_leaves(s, direction, 0, origin);
    for (int k = 0; k < s->floats; k++) free(origin[k]);
}

static double sum_dots(const sample *s, const array *a, const array *b) {
    double sum = 0;
    for (int k = 0; k < s->floats; k++) sum += dot(a[k], b[k]);
    return sum;
}

static double sum_sizes(const sample *s, const array *a, const array *b) { // what rounding of sum_dots is measured against
    double sum = 1;
    for (int k = 0; k < s->floats; k++)
        for (int64_t j = 0; j < a[k].n; j++) sum += fabs(a[k].v[j] * b[k].v[j]);
    return sum;
}

static void expect_equal(const sample *s, int property, double a, double b, double tolerance, const char *what) {
    report(s, property, near(a, b, tolerance), "%s: %.15g, not %.15g", what, a, b);
}

static int all_f64(const sample *s, const nt_tensor *z) {
    int all = z->dtype == NT_F64;
    for (int k = 0; k < s->floats; k++) all &= s->real[k]->dtype == NT_F64;
    for (const nti_node *n = s->t->first; n; n = n->next)
        if (nti_is_float(n->pub.dtype) && n->pub.dtype != NT_F64) all = 0;
    return all && s->y->dtype != NT_F16 && s->y->dtype != NT_BF16;
}

// What sums of rounded products may differ by: in f64; with f32, f16 or bf16 on the way.
static double accuracy(const sample *s, const nt_tensor *z) {
    double worst = all_f64(s, z) ? 1e-11 : 2e-5;
    for (const nti_node *n = s->t->first; n; n = n->next) {
        if (n->pub.dtype == NT_F16 && worst < 4e-3) worst = 4e-3;
        if (n->pub.dtype == NT_BF16) worst = 3e-2;
    }
    return worst;
}

static nt_params take(const sample *s, int property, nt_params p, int count, const char *what) {
    report(s, property, p.count == count, "%s: not recorded: %s", what, nt_error(s->t) ? nt_error(s->t) : "");
    return p;
}

// An operation without a derivative says so by its name, in both directions.
static int refused(sample *s, directions *d, nt_tensor *z) {
    int refusals = 0;
    for (int k = 0; k < 2; k++) {
        nt_params p = k ? nt_vjp(nti_list(&z, 1), nti_list(&d->v, 1), nti_list(s->real, s->floats)) : nt_jvp(nti_list(&z, 1), nti_list(s->real, s->floats), nti_list(d->w, s->floats));
        refusals += !p.count && nt_error_status(s->t) == NT_ERROR_DERIVATIVE && strstr(nt_error(s->t), s->row->name);
        nt_error_clear(s->t);
    }
    report(s, RULES, refusals != 1, "only one of jvp and vjp is refused");
    return refusals == 2;
}

static void check_first(sample *s, directions *d, nt_tensor *z, array *jw, array *jv) {
    nt_tensor *outputs[MOST_OUTPUTS], *one[MOST_LEAVES];
    int count = 0, exact = all_f64(s, z), zero = (s->row->flags & NTI_NO_GRADIENT) != 0 || z != s->y;
    nt_params jvp = take(s, FIRST, nt_jvp(nti_list(&z, 1), nti_list(s->real, s->floats), nti_list(d->w, s->floats)), 1, "jvp");
    nt_params vjp = take(s, FIRST, nt_vjp(nti_list(&z, 1), nti_list(&d->v, 1), nti_list(s->real, s->floats)), s->floats, "vjp");
    if (!jvp.count || !vjp.count) return;
    outputs[count++] = jvp.items[0];
    for (int k = 0; k < s->floats; k++) outputs[count++] = vjp.items[k];
    for (int k = 0; s->floats > 1 && k < s->floats; k++) { // along one leaf at a time
        for (int j = 0; j < s->floats; j++) one[j] = j == k ? d->w[j] : NULL;
        nt_params p = take(s, FIRST, nt_jvp(nti_list(&z, 1), nti_list(s->real, s->floats), nti_list(one, s->floats)), 1, "jvp along one");
        if (!p.count) return;
        outputs[count++] = p.items[0];
    }
    nt_program *p = compute(s, FIRST, outputs, count, NULL);
    if (!p) return;
    double tolerance = accuracy(s, z);
    *jw = output(p, 0);
    for (int k = 0; k < s->floats; k++) jv[k] = output(p, 1 + k);
    expect_equal(s, FIRST, sum_dots(s, jv, d->wa), dot(d->va, *jw), tolerance * (sum_sizes(s, jv, d->wa) + fabs(dot(d->va, *jw))), "<J' v, w> against <v, J w>");
    if (zero) report(s, FIRST, largest(*jw) == 0, "flagged as having no gradient, but its jvp is not zero");
    if (s->floats > 1) {
        array sum = array_new(jw->n);
        for (int k = 1 + s->floats; k < count; k++) {
            array part = output(p, k);
            for (int64_t j = 0; j < part.n; j++) sum.v[j] += part.v[j];
            free(part.v);
        }
        expect_near(s, FIRST, sum, *jw, exact ? 1e-12 : tolerance, "the sum of jvps along one operand each");
        free(sum.v);
    }
    int step_map = s->row->map >= 0 || !zero;
    if (exact && step_map && !same_variants(s->variant)) check_differences(s, FIRST, &z, 1, d->wa, jw, "jvp against differences");
}

// H is the second derivative of <v, y>: along w by jvp of vjp, vjp of vjp, vjp of jvp; all of it symmetric.
static void check_second(sample *s, directions *d, nt_tensor *z, array jw) {
    nt_tensor *outputs[MOST_OUTPUTS];
    int n = s->floats, count = 0;
    nt_params leaves = nti_list(s->real, n), w = nti_list(d->w, n), u = nti_list(d->u, n), got[6];
    nt_params j = nt_jvp(nti_list(&z, 1), leaves, w), g = nt_vjp(nti_list(&z, 1), nti_list(&d->v, 1), leaves);
    got[0] = take(s, SECOND, nt_jvp(g, leaves, w), n, "jvp of vjp");
    got[1] = take(s, SECOND, nt_jvp(g, leaves, u), n, "jvp of vjp");
    got[2] = take(s, SECOND, nt_vjp(g, w, leaves), n, "vjp of vjp");
    got[3] = take(s, SECOND, nt_vjp(j, nti_list(&d->v, 1), leaves), n, "vjp of jvp");
    got[4] = take(s, SECOND, nt_jvp(j, leaves, u), 1, "jvp of jvp");
    got[5] = take(s, SECOND, nt_vjp(g, w, nti_list(&d->v, 1)), 1, "vjp of vjp with respect to the cotangent");
    for (int k = 0; k < 6; k++)
        for (int i = 0; i < got[k].count; i++) outputs[count++] = got[k].items[i];
    if (nt_error(s->t) || count != 4 * n + 2) return;
    nt_program *p = compute(s, SECOND, outputs, count, NULL);
    if (!p) return;
    array out[MOST_OUTPUTS];
    for (int k = 0; k < count; k++) out[k] = output(p, k);
    array *hw = out, *hu = out + n, *vv = out + 2 * n, *vj = out + 3 * n;
    int exact = all_f64(s, z);
    double tolerance = 10 * accuracy(s, z), whw = sum_dots(s, d->ua, hw), size = sum_sizes(s, d->ua, hw) + sum_sizes(s, d->wa, hu);
    for (int k = 0; k < n; k++) {
        expect_near(s, SECOND, vv[k], hw[k], tolerance, "vjp of vjp against jvp of vjp");
        expect_near(s, SECOND, vj[k], hw[k], tolerance, "vjp of jvp against jvp of vjp");
    }
    expect_equal(s, SECOND, sum_dots(s, d->wa, hu), whw, tolerance * size, "<w, H u> against <u, H w>");
    expect_equal(s, SECOND, dot(d->va, out[4 * n]), whw, tolerance * size, "<v, jvp of jvp> against <u, H w>");
    expect_near(s, SECOND, out[4 * n + 1], jw, tolerance, "the transpose of the vjp against the jvp");
    if (exact && !same_variants(s->variant)) check_differences(s, SECOND, g.items, n, d->ua, hu, "jvp of vjp against differences of vjp");
    for (int k = 0; k < count; k++) free(out[k].v);
}

static int has_derivatives(const sample *s) { return !(s->row->flags & NTI_EFFECT) && s->floats && has_float_operand(s) && nti_n(s->y)->inputs; }

static void check_derivatives(sample *s) {
    directions d;
    array jw = { 0, NULL }, jv[MOST_LEAVES];
    if (s->dtype != NT_F64 || !has_derivatives(s)) return;
    memset(jv, 0, sizeof jv);
    if (nti_is_float(s->y->dtype) && !(s->row->flags & NTI_NO_GRADIENT)) {
        report(s, RULES, s->row->jvp || s->row->decompose, "no jvp and no decomposition; flag it NTI_NO_GRADIENT if there is none");
        report(s, RULES, s->row->vjp || s->row->decompose, "no vjp and no decomposition; flag it NTI_NO_GRADIENT if there is none");
    }
    nt_tensor *z = z_of(s);
    directions_make(s, &d, z);
    if (!refused(s, &d, z)) check_first(s, &d, z, &jw, jv);
    if (jw.v && s->variant < NTI_SAMPLE_LARGE) check_second(s, &d, z, jw);
    for (int k = 0; k < s->floats; k++) free(jv[k].v);
    free(jw.v);
    directions_free(s, &d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Batches
// ---------------------------------------------------------------------------------------------------------------------
enum { BATCH = 3 };

typedef struct batch { // of the operands of a sample, which are variables here
    int n;
    nt_tensor *plain[MOST_LEAVES], *part[MOST_LEAVES][BATCH], *whole[MOST_LEAVES]; // alone, each element, all of them
} batch;

// Element e is what a sample of another seed has. Every second batch lies in memory with the batch axis last.
static int batch_make(sample *s, batch *b) {
    nti_node *n = nti_n(s->y);
    b->n = n->inputs;
    nt_tensor *in[BATCH * MOST_LEAVES];
    for (int e = 0; e < BATCH; e++) {
        nt_tensor *y = s->row->sample(s->t, s->op, s->dtype, s->variant, 1 + (uint32_t)e);
        for (int k = 0; k < b->n; k++) in[e * b->n + k] = y ? &nti_n(y)->in[k]->pub : NULL;
    }
    nt_program *p = compute(s, VMAP, in, BATCH * b->n, NULL);
    for (int k = 0; p && k < b->n; k++) {
        size_t size = nt_dtype_size(in[k]->dtype);
        int64_t count = nt_size(in[k]), last = (s->variant + k) % 2;
        char *all = (char *)malloc((size_t)count * BATCH * size + 1);
        nt_shape wide = nt_shape_of(in[k]);
        nt_axes order = nti_all_axes(in[k]);
        for (int e = 0; e < BATCH; e++) {
            const char *one = (const char *)nt_output(p, e * b->n + k);
            for (int64_t i = 0; i < count; i++) memcpy(all + (size_t)(last ? i * BATCH + e : e * count + i) * size, one + (size_t)i * size, size);
            b->part[k][e] = plain_copy(s->t, p, e * b->n + k);
        }
        b->plain[k] = plain_copy(s->t, p, k);
        for (int a = wide.rank++; a > 0 && !last; a--) wide.size[a] = wide.size[a - 1];
        wide.size[last ? wide.rank - 1 : 0] = BATCH;
        for (int a = order.count++; a > 0; a--) order.axis[a] = a - 1;
        order.axis[0] = wide.rank - 1;
        b->whole[k] = nt_variable(s->t, in[k]->dtype, wide, all);
        if (last) b->whole[k] = nt_transpose(b->whole[k], order);
        free(all);
    }
    return p != NULL;
}

static nt_tensor *from_batch(nt_tensor *y, int64_t at) { // one element
    nt_tensor *part = nt_slice_axis(y, 0, at, at + 1);
    return part ? nt_squeeze(part, 0) : NULL;
}

// The first element in which two results differ, each computed in f32 (or f64) in an order of its own and rounded once to the dtype; -1:
// in none. Numbers of 16 bits are the same, but where the border between two of them lies between the two that were rounded: there they are
// neighbours. That is rare, since the orders differ by some 2^-24 of a number and neighbours by 2^-11 (f16) or 2^-8 of it: one in a hundred,
// at most. A rule that rounds a part of the way to 16 bits has neighbours, and worse, everywhere.
static int64_t differ_rounded(nt_dtype dtype, array a, array b) {
    double tolerance = dtype == NT_F64 ? 1e-13 : 3e-6;
    int64_t first = differ(a, b, tolerance), neighbours = 0;
    if (first < 0 || first >= a.n || a.n != b.n || !nti_is_half(dtype)) return first;
    for (int64_t k = first; k < a.n; k++) {
        if (near(a.v[k], b.v[k], tolerance * (1 + largest(a) + largest(b)))) continue;
        if (half_steps(dtype, a.v[k], b.v[k]) > 1 || ++neighbours > 1 + a.n / 100) return k;
    }
    return -1;
}

// The operands that `mask` names are batched; `through`: by the decomposition, whatever the row has.
static void check_batch(sample *s, batch *b, uint64_t mask, int through) {
    nt_tensor *outputs[2 * BATCH], *from[MOST_LEAVES], *to[MOST_LEAVES], *in[MOST_LEAVES], *y = nti_again(s->y, b->plain), *z = NULL;
    uint8_t batched[MOST_LEAVES];
    int count = 0;
    for (int k = 0; k < b->n; k++) {
        batched[k] = mask >> k & 1, in[k] = batched[k] ? b->whole[k] : b->plain[k];
        if (batched[k]) from[count] = b->plain[k], to[count++] = b->whole[k];
    }
    if (through) z = nti_vmap_through(y, in, batched, BATCH);
    else {
        nt_params got = nt_vmap(nti_list(&y, 1), nti_list(from, count), nti_list(to, count));
        z = got.count ? got.items[0] : NULL;
    }
    if (!report(s, VMAP, z && z->rank == y->rank + 1 && z->shape[0] == BATCH && z->dtype == y->dtype, "operands %llx batched: not recorded: %s", (unsigned long long)mask, nt_error(s->t) ? nt_error(s->t) : "another shape")) {
        nt_error_clear(s->t);
        return;
    }
    for (int e = 0; e < BATCH; e++) {
        for (int k = 0; k < b->n; k++) in[k] = batched[k] ? b->part[k][e] : b->plain[k];
        outputs[e] = nti_again(s->y, in), outputs[BATCH + e] = from_batch(z, e);
        if (through && outputs[e]) outputs[e] = s->row->decompose(outputs[e], in);
    }
    nt_program *p = compute(s, VMAP, outputs, 2 * BATCH, NULL);
    int exact = !through && (!nti_is_float(y->dtype) || s->row->map >= 0 || (s->row->flags & NTI_CHEAP));
    for (int e = 0; p && e < BATCH; e++) {
        array one = output(p, e), all = output(p, BATCH + e);
        int64_t k = exact ? differ(all, one, 0) : differ_rounded(y->dtype, all, one);
        report(s, VMAP, k < 0, "operands %llx batched%s: element %lld of part %d is %.15g, not %.15g", (unsigned long long)mask, through ? " through the decomposition" : "", (long long)k, e, k < 0 ? 0 : all.v[k], k < 0 ? 0 : one.v[k]);
        free(one.v), free(all.v);
    }
}

// Each set of operands of a few; of many: the first, the last, every second, all.
static uint64_t batch_mask(int n, int k) {
    uint64_t all = ((uint64_t)1 << n) - 1, many[4];
    if (n <= 3) return (uint64_t)k + 1 <= all ? (uint64_t)k + 1 : 0;
    many[0] = 1, many[1] = (uint64_t)1 << (n - 1), many[2] = all & 0x5555555555555555u, many[3] = all;
    return k < 4 ? many[k] : 0;
}

static void check_vmap(sample *s) {
    const nti_node *n = nti_n(s->y);
    batch b;
    if (!n->inputs || s->variant >= NTI_SAMPLE_LARGE) return;
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k]->loop) return; // the operand of a loop's result cannot be computed by itself
    if (s->row->flags & NTI_EFFECT) {
        nt_tensor *x = &n->in[1]->pub, *wide = nt_broadcast(x, nti_batch_shape(nt_shape_of(x), 2));
        nt_params got = nt_vmap(nti_list(&s->y, 1), nti_list(&x, 1), nti_list(&wide, 1));
        report(s, VMAP, !got.count && strstr(nt_error(s->t), s->row->name) && strstr(nt_error(s->t), "cannot be batched"), "an effect is batched");
        nt_error_clear(s->t);
        return;
    }
    if (!report(s, VMAP, s->row->vmap || s->row->decompose, "no vmap and no decomposition") || !batch_make(s, &b)) return;
    int narrow = s->dtype != NT_F64 && s->dtype != NT_F32; // all sets of operands in these, otherwise all operands at once
    for (int k = 0; batch_mask(b.n, k); k++)
        if (!narrow || !batch_mask(b.n, k + 1)) {
            check_batch(s, &b, batch_mask(b.n, k), 0);
            if (s->row->decompose && !narrow) check_batch(s, &b, batch_mask(b.n, k), 1);
        }
    nt_tensor *none = nt_full(s->t, b.plain[0]->dtype, nti_batch_shape(nt_shape_of(b.plain[0]), 0), 0), *y = nti_again(s->y, b.plain);
    nt_params got = nt_vmap(nti_list(&y, 1), nti_list(b.plain, 1), nti_list(&none, 1));
    report(s, VMAP, got.count && !got.items[0]->shape[0] && got.items[0]->rank == y->rank + 1, "an empty batch");
}

// ---------------------------------------------------------------------------------------------------------------------
// Flags
// ---------------------------------------------------------------------------------------------------------------------
// variable += y in one instruction, and in two because y is an output as well.
static void check_accumulate(sample *s) {
    nt_tensor *y = s->y;
    if (!(s->row->flags & NTI_ACCUMULATES) || !nti_is_float(y->dtype) || nti_is_half(y->dtype)) return;
    nt_tensor *in[2];
    int64_t mode = 0;
    blob got[2] = { { 0, NULL }, { 0, NULL } };
    for (int twice = 0; twice < 2; twice++) {
        in[0] = along(s->t, y, 7, 1), in[1] = y;
        nt_tensor *effect = nti_record(s->t, NTI_OP_ACCUMULATE, in, 2, &mode, 1, NULL, 0);
        nt_program *p = effect ? compute(s, ACCUMULATE, &y, twice, effect) : NULL;
        if (p && !twice) report(s, ACCUMULATE, p->instruction[p->instructions - 1].op == s->op, "flagged NTI_ACCUMULATES, but not folded");
        if (p) blob_add(&got[twice], nt_data(in[0]), nt_bytes(in[0]));
    }
    report(s, ACCUMULATE, blob_equal(got[0], got[1]), "folded, other bits");
    free(got[0].data), free(got[1].data);
}

// One element of a leaf after the other is made bad (all bits set: NaN, and the index -1): the run stops if and only if the
// operand shows that element.
static void check_each(sample *s, nt_program *p, nt_program *shown, nt_tensor *leaf) {
    size_t size = nt_dtype_size(leaf->dtype), bytes = nt_output_bytes(shown, 0);
    char kept[8], *data = (char *)nt_data(leaf), *before = (char *)malloc(bytes + 1);
    run(shown), memcpy(before, nt_output(shown, 0), bytes);
    for (int64_t k = 0; k < nt_size(leaf) && k < 100; k++) {
        memcpy(kept, data + (size_t)k * size, size), memset(data + (size_t)k * size, 0xff, size);
        run(shown);
        int bad = memcmp(before, nt_output(shown, 0), bytes) != 0;
        nt_status status = run(p);
        report(s, CHECKED, (status != NT_OK) == bad, "element %lld of the leaf, %s by the operand, is bad: %s", (long long)k, bad ? "shown" : "not shown", nt_status_name(status));
        nt_error_clear(s->t);
        memcpy(data + (size_t)k * size, kept, size);
    }
    free(before);
}

static void check_checked(sample *s) {
    double one = 1;
    if (!(s->row->flags & NTI_CHECKS) || !nt_size(s->y)) return;
    nt_tensor *kept = nt_variable(s->t, NT_F64, nt_shape_make(0, NULL), NULL), *effect = nt_assign(kept, nt_full(s->t, NT_F64, nt_shape_make(0, NULL), one));
    nt_program *p = compile(s, &s->y, 1, effect);
    nt_tensor *operand = &nti_n(s->y)->in[0]->pub;
    nt_program *shown = compile(s, &operand, 1, NULL);
    if (!report(s, CHECKED, p && shown, "does not compile")) return;
    nt_status status = run(p);
    report(s, CHECKED, status == NT_OK && *(double *)nt_data(kept) == 1, "good data gives %s", nt_status_name(status));
    for (int k = 0; k < s->leaves && s->variant < NTI_SAMPLE_LARGE; k++)
        if (s->leaf[k] != kept) check_each(s, p, shown, s->leaf[k]);
    *(double *)nt_data(kept) = 0;
    for (int k = 0; k < s->leaves; k++) memset(nt_data(s->leaf[k]), 0xff, nt_bytes(s->leaf[k]));
    status = run(p);
    report(s, CHECKED, status == NT_ERROR_DATA || status == NT_NONFINITE, "bad data gives %s", nt_status_name(status));
    report(s, CHECKED, *(double *)nt_data(kept) == 0, "a variable was assigned although the data is bad");
}

// ---------------------------------------------------------------------------------------------------------------------
// Workers and instruction sets
// ---------------------------------------------------------------------------------------------------------------------
// Any tile on any worker, in an order of its own, on worker scratch full of NaN.
static void shuffled(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    uint64_t *state = (uint64_t *)user;
    const nti_tiles *tiles = (const nti_tiles *)arg;
    const nti_instruction *i = tiles->instruction;
    int64_t stride = n;
    while (stride % n == 0 || nti_gcd(stride, n) != 1) *state = *state * 6364136223846793005u + 1442695040888963407u, stride = (int64_t)((*state >> 33) % (uint64_t)n) + 1;
    for (int64_t k = 0; k < n; k++) {
        *state = *state * 6364136223846793005u + 1442695040888963407u;
        int worker = (int)((*state >> 33) % state[1]);
        size_t room = nti_round_up(i->call.plan.worker, NTI_ALIGN);
        memset(tiles->scratch + i->workers + (size_t)worker * room, 0xff, i->call.plan.worker);
        fn(arg, (k * stride + n / 2) % n, worker);
    }
}

// The value and what derives from it, in one program: bits to compare. `tiled` is set where an instruction has several tiles.
static blob bundle(sample *s, int property, int *tiled, int *own) {
    nt_tensor *outputs[MOST_OUTPUTS];
    blob b = { 0, NULL };
    int count = 0, derived = has_derivatives(s) && nti_is_float(s->y->dtype) && s->floats <= 4;
    if (s->row->flags & NTI_EFFECT) return value_of(s, property, s->y);
    outputs[count++] = s->y;
    if (derived) {
        directions d;
        directions_make(s, &d, s->y);
        nt_params j = nt_jvp(nti_list(&s->y, 1), nti_list(s->real, s->floats), nti_list(d.w, s->floats));
        nt_params g = nt_vjp(nti_list(&s->y, 1), nti_list(&d.v, 1), nti_list(s->real, s->floats));
        for (int k = 0; k < j.count; k++) outputs[count++] = j.items[k];
        for (int k = 0; k < g.count; k++) outputs[count++] = g.items[k];
        directions_free(s, &d);
    }
    nt_program *p = compute(s, property, outputs, count, NULL);
    for (int k = 0; p && k < count; k++) blob_add(&b, nt_output(p, k), nt_output_bytes(p, k));
    for (int k = 0; p && k < p->instructions; k++)
        for (int phase = 0; phase < p->instruction[k].call.plan.phases; phase++)
            if (p->instruction[k].call.plan.tiles[phase] > 1) *tiled = 1, *own |= p->instruction[k].op == s->op;
    return b;
}

static int check_tiles(const sample *one) { // 1 if the row's own instruction had several tiles
    uint64_t state[2] = { 1, 1 };
    nt_tape_desc desc;
    sample s;
    int tiled = (one->row->flags & NTI_EFFECT) != 0 && one->variant >= NTI_SAMPLE_LARGE, own = tiled;
    if (!open_sample(&s, one->op, one->dtype, one->variant, NULL)) return 0;
    blob wanted = bundle(&s, TILES, &tiled, &own);
    close_sample(&s);
    memset(&desc, 0, sizeof desc);
    desc.parallel.user = state, desc.parallel.for_each = shuffled;
    for (int workers = 2; tiled && workers <= WORKERS; workers++) {
        state[1] = (uint64_t)workers, desc.parallel.max_workers = workers;
        if (!open_sample(&s, one->op, one->dtype, one->variant, &desc)) continue;
        blob got = bundle(&s, TILES, &tiled, &own);
        report(&s, TILES, blob_equal(got, wanted), "%d workers: other bits", workers);
        free(got.data);
        close_sample(&s);
    }
    free(wanted.data);
    return own;
}

static int isa_missing;

static void check_isas(const sample *one) {
    static const nt_isa isas[] = { NT_ISA_AVX2, NT_ISA_AVX512, NT_ISA_BASELINE };
    blob got[3] = { { 0, NULL }, { 0, NULL }, { 0, NULL } };
    array value[3] = { { 0, NULL }, { 0, NULL }, { 0, NULL } };
    nt_tape_desc desc;
    sample s;
    int unused = 0;
    memset(&desc, 0, sizeof desc);
    for (int k = 0; k < 3; k++) {
        desc.isa = isas[k];
        if (!open_sample(&s, one->op, one->dtype, one->variant, &desc)) { isa_missing |= !s.t; nt_tape_close(s.t); continue; }
        got[k] = bundle(&s, ISAS, &unused, &unused);
        value[k] = value_array(&s);
        close_sample(&s);
    }
    if (got[0].data && got[1].data) report(one, ISAS, blob_equal(got[0], got[1]), "AVX2 and AVX-512 give other bits");
    if (value[0].v && value[2].v) expect_near(one, ISAS, value[2], value[0], one->dtype == NT_F64 ? 1e-12 : one->dtype == NT_F16 ? 1e-3 : one->dtype == NT_BF16 ? 8e-3 : 2e-5, "baseline against AVX2");
    for (int k = 0; k < 3; k++) free(got[k].data), free(value[k].v);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad operands
// ---------------------------------------------------------------------------------------------------------------------
// Refused with the operation's name, or it computes something.
static void try_operands(sample *s, nt_tensor **in, nt_status only, const char *what) {
    nti_node *n = nti_n(s->y);
    nt_tensor *z = nti_record(s->t, s->op, in, n->inputs, n->i, n->ni, n->d, n->nd);
    const char *message = nt_error(s->t);
    if (z) {
        report(s, BAD, only == NT_OK, "%s: accepted", what);
        compute(s, -1, &z, s->row->flags & NTI_EFFECT ? 0 : 1, s->row->flags & NTI_EFFECT ? z : NULL);
    } else if (message) {
        report(s, BAD, strstr(message, s->row->name) != NULL, "%s: the message does not name the operation: %s", what, message);
        report(s, BAD, only == NT_OK || nt_error_status(s->t) == only, "%s: is a %s error: %s", what, nt_status_name(nt_error_status(s->t)), message);
    } else report(s, BAD, 0, "%s: refused without a message", what);
    nt_error_clear(s->t);
}

static void try_shape(sample *s, nt_tensor **in, int k, nt_shape shape, const char *what) {
    nt_tensor *kept = in[k];
    in[k] = nt_variable(s->t, kept->dtype, shape, NULL);
    if (in[k]) try_operands(s, in, NT_OK, what);
    else nt_error_clear(s->t);
    in[k] = kept;
}

static void check_bad_operand(sample *s, nt_tensor **in, int k, nt_tape *other) {
    nti_node *n = nti_n(s->y);
    nt_tensor *kept = in[k];
    nt_shape shape = nt_shape_of(kept), changed;
    in[k] = NULL;
    report(s, BAD, !nti_record(s->t, s->op, in, n->inputs, n->i, n->ni, n->d, n->nd) && !nt_error(s->t), "NULL as operand %d: not quietly NULL", k);
    in[k] = nt_variable(other, kept->dtype, shape, NULL);
    try_operands(s, in, NT_ERROR_ARGUMENT, "an operand of another tape");
    for (int dtype = 0; dtype < NT_DTYPE_COUNT; dtype++) {
        in[k] = nt_variable(s->t, (nt_dtype)dtype, shape, NULL);
        if ((nt_dtype)dtype != kept->dtype) try_operands(s, in, NT_OK, nt_dtype_name((nt_dtype)dtype));
    }
    in[k] = kept;
    for (int axis = 0; axis < shape.rank; axis++) {
        changed = shape, changed.size[axis]++;
        try_shape(s, in, k, changed, "a size more");
        changed = shape, changed.size[axis] = 0;
        try_shape(s, in, k, changed, "a size of zero");
    }
    changed = shape, changed.size[changed.rank++] = 2;
    try_shape(s, in, k, changed, "an axis more");
    changed = shape, changed.rank--;
    if (shape.rank) try_shape(s, in, k, changed, "an axis less");
    memset(&changed, 0, sizeof changed);
    try_shape(s, in, k, changed, "a scalar");
    changed.rank = NT_MAX_RANK;
    for (int axis = 0; axis < NT_MAX_RANK; axis++) changed.size[axis] = 1;
    try_shape(s, in, k, changed, "rank 8");
}

static void check_bad(sample *s) {
    nti_node *n = nti_n(s->y);
    nt_tensor *in[MOST_LEAVES];
    if (!n->inputs || n->inputs > 8 || s->variant >= NTI_SAMPLE_LARGE) return;
    nt_tape *other = nt_tape_open(NULL);
    for (int k = 0; k < n->inputs; k++) in[k] = &n->in[k]->pub;
    for (int k = 0; k < n->inputs; k++) check_bad_operand(s, in, k, other);
    nt_tape_close(other);
}

// ---------------------------------------------------------------------------------------------------------------------
// The walk
// ---------------------------------------------------------------------------------------------------------------------
typedef struct found { int samples, empty, strided, tiled; } found; // of one row

static void look_at(const sample *s, found *f) {
    const nti_node *n = nti_n(s->y);
    f->samples++;
    f->empty |= !nt_size(s->y);
    for (int k = 0; k < n->inputs; k++) f->empty |= !nt_size(&n->in[k]->pub), f->strided |= n->in[k]->op > NTI_OP_VARIABLE;
}

static void check_value(sample *s) {
    double cost = s->row->cost ? s->row->cost(nti_n(s->y)) : 0;
    report(s, VALUE, cost >= 0 && cost < 1e15, "costs %g", cost);
    blob wanted = value_of(s, VALUE, s->y);
    garbage = 0x5a;
    expect_bits(s, VALUE, s->y, wanted, "on scratch with other contents");
    garbage = 0xff;
    free(wanted.data);
}

static int walk_variant(int op, nt_dtype dtype, int variant, found *f) {
    static void (*const checks[])(sample *s) = { check_value, check_strided, check_decompose, check_precision, check_integers, check_halves, check_derivatives, check_vmap, check_accumulate, check_bad, check_checked };
    sample s;
    int found_one = open_sample(&s, op, dtype, variant, NULL), first = !f->samples || dtype == NT_F64;
    nt_marker mark = nt_mark(s.t);
    if (found_one) look_at(&s, f);
    for (size_t k = 0; found_one && k < sizeof checks / sizeof checks[0]; k++) {
        if (checks[k] == check_bad && !first) continue;
        checks[k](&s);
        nt_rewind(s.t, mark);
    }
    close_sample(&s);
    if (!found_one) return 0;
    f->tiled |= check_tiles(&s);
    if (NTI_DISPATCH) check_isas(&s);
    return 1;
}

static void walk_row(int op) {
    static const nt_dtype dtypes[] = { NT_F64, NT_F32, NT_I32, NT_U32, NT_BOOL, NT_F16, NT_BF16, NT_I8, NT_U8, NT_I16, NT_U16, NT_I64, NT_U64 };
    static const int starts[] = { 0, NTI_SAMPLE_TIES, NTI_SAMPLE_LARGE };
    const nti_row *row = &nti_rows[op];
    found f;
    if (row->sample == nti_sample_none) return; // lives in the body of a map only: test_maps
    memset(&f, 0, sizeof f);
    memset(done, 0, sizeof done), memset(failed, 0, sizeof failed);
    for (int k = 0; k < NT_DTYPE_COUNT; k++)
        for (int j = 0; j < 3; j++)
            for (int variant = starts[j]; walk_variant(op, dtypes[k], variant, &f);) variant++;
    sample s;
    memset(&s, 0, sizeof s), s.row = row;
    report(&s, SAMPLES, f.samples > 0, "no samples");
    if (row->inputs && f.samples && row->infer != nti_infer_fold_in) { // two words and a number in any case
        report(&s, SAMPLES, f.empty, "no empty sample");
        if (!(row->flags & NTI_LEAVES)) report(&s, SAMPLES, f.strided, "no sample with a strided operand"); // of a body: test_maps
    }
    for (int k = 0; k < PROPERTY_COUNT; k++)
        if (done[k]) tap_ok(!failed[k], "%s: %s (%d)", row->name, property_text[k], done[k]);
    if (!f.tiled && !(row->flags & NTI_LEAF_ROW)) tap_note("%s is always one tile", row->name);
}

int main(int argc, char **argv) {
    for (int op = 0; op < NTI_OP_COUNT; op++)
        if (argc < 2 || !strcmp(argv[1], nti_rows[op].name)) walk_row(op);
    if (isa_missing) tap_skip("this machine lacks an instruction set", "equal bits on AVX2 and AVX-512");
    return tap_end();
}
