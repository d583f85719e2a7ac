// Kernels of infinitely wide networks: the same bits however they are computed, bytes as planned, what a sink gets, numbers that stay
// numbers, and messages. (test_finite_width holds the rules of the layers against finite networks.)
#define _POSIX_C_SOURCE 200809L
#include <limits.h>
#include "nttrain.h"
#include "crew.h"
#include "heap.h"
#include "pool.h"
#include "refused.h"
#include "wide_nets.h"

#define CLEAR(d) memset(&(d), 0, sizeof(d))
#define CONV "(conv 8 (3 3) (1 1) SAME W=1.4 b=0.1)"
#define HEAD "(dense 16 W=1.1 b=0.1)"

typedef struct net_row {
    const char *name, *net;
    int rank, masked, pattern; // pattern: 1 dense, 2 sparse
    int64_t size[4], n1, n2;
    nt_kernel_spatial spatial;
} net_row;

#define FC "(serial (dense 16 W=1.5 b=0.1) (relu) (dense 16 W=1.2) (erf) (dense 16 W=1.0 b=0.05))"
#define UNET                                                                                                                               \
    "(serial " CONV " (relu) (fan_out 2) (parallel (identity) (serial (conv 8 (2 2) (2 2) SAME W=1.5 b=0.1) (relu) " CONV                  \
    " (relu) (conv_transpose 8 (2 2) (2 2) SAME W=1.5 b=0.1) (relu))) (fan_in_concat -1) " CONV " (relu) (conv 8 (1 1) (1 1) SAME W=1.0))"
#define ATTENTION "(attention 4 8 8 2 W_key=0.9 W_query=0.7 W_out=0.8 W_value=1.2 b=0.5)"

// clang-format off
static const net_row nets[] = {
    { "one image", FC, 1, 0, 0, { 7 }, 1, 1, NT_FULL },
    { "31 images", FC, 1, 0, 0, { 7 }, 31, 33, NT_FULL },
    { "33 images", FC, 1, 0, 0, { 40 }, 33, 32, NT_FULL },
    { "70 images", FC, 1, 0, 0, { 3 }, 70, 45, NT_FULL },
    { "dropout", "(serial (dense 16 W=1.5 b=0.1) (relu) (dropout 0.8) (dense 16 W=1.2 b=0.1) (gelu) (dense 16))", 1, 0, 0, { 5 }, 35, 34, NT_FULL },
    { "branches", "(serial (fan_out 2) (parallel (serial (dense 16 W=1.5 b=0.1) (relu) (dense 8)) (serial (dense 8 W=0.9) (sin) (dense 8 b=0.3)))"
      " (fan_in_prod) (dense 16 W=1.1 b=0.1))", 1, 0, 0, { 5 }, 34, 3, NT_FULL },
    { "conv, flatten", "(serial " CONV " (relu) " CONV " (relu) (flatten) " HEAD ")", 3, 0, 0, { 5, 4, 2 }, 19, 18, NT_FULL },
    { "conv, many channels", "(serial " CONV " (relu) " CONV " (erf) (flatten) " HEAD ")", 3, 0, 0, { 4, 3, 20 }, 7, 5, NT_FULL },
    { "conv, average", "(serial " CONV " (relu) " CONV " (relu) (global_avg_pool) " HEAD ")", 3, 0, 0, { 5, 4, 2 }, 8, 5, NT_FULL },
    { "pools", "(serial " CONV " (relu) " CONV " (relu) (avg_pool (2 2) (2 2) VALID) " CONV " (relu) (avg_pool (2 2) (2 2) SAME) " CONV
      " (relu) (flatten) " HEAD ")", 3, 0, 0, { 8, 7, 2 }, 6, 3, NT_FULL },
    { "U-Net", UNET, 3, 0, 0, { 6, 4, 2 }, 6, 3, NT_FULL },
    { "U-Net, diagonal", UNET, 3, 0, 0, { 8, 6, 3 }, 6, 3, NT_DIAGONAL },
    { "circular", "(serial (conv 8 (4 3) (2 1) CIRCULAR W=1.4 b=0.1) (relu) (avg_pool (3 2) (1 2) CIRCULAR) (conv 8 (3 3) (1 1) CIRCULAR) (relu))", 3, 0, 0, { 6, 5, 2 }, 6, 3, NT_FULL },
    { "circular, transposed, average", "(serial (conv 8 (3) (1) CIRCULAR W=1.4) (relu) (conv_transpose 8 (3) (2) CIRCULAR b=0.2) (relu)"
      " (global_avg_pool) (dense 8))", 2, 0, 0, { 7, 2 }, 7, 4, NT_FULL },
    { "circular in three axes, diagonal", "(serial (conv 8 (2 3 2) (1 1 2) CIRCULAR W=1.4) (relu) (conv_local 8 (2 2 2) (1 1 1) SAME))", 4, 0, 0, { 3, 3, 4, 2 }, 6, 3, NT_DIAGONAL },
    { "residual", "(serial " CONV " (fan_out 2) (parallel (serial (relu) (conv 8 (3 3) (2 2) SAME W=1.1) (relu) " CONV
      ") (serial (relu) (conv 8 (1 1) (2 2) SAME))) (fan_in_sum) (layer_norm (1 -1)) (relu))", 3, 0, 0, { 5, 4, 2 }, 6, 3, NT_FULL },
    { "attention", "(serial (dense 16 W=1.1 b=0.2) " ATTENTION " (relu) (global_avg_pool) (dense 16))", 2, 0, 0, { 5, 3 }, 6, 4, NT_FULL },
    { "attention with positions", "(serial (conv 8 (3 3) (1 1) SAME W=1.2 b=0.1) (relu) (attention 4 8 8 2 scaling=sqrt mechanism=identity pos=concat"
      " n_pos=2 decay=exp alpha=0.5 val_pos=1) (relu) " CONV ")", 3, 0, 0, { 3, 2, 2 }, 6, 3, NT_FULL },
    { "graphs", "(serial (dense 16 W=1.3 b=0.1) (relu) (aggregate) (dense 16 W=1.1 b=0.1) (relu) (aggregate) (global_avg_pool) (dense 16))", 2, 0, 1, { 5, 3 }, 6, 4, NT_FULL },
    { "sparse graphs", "(serial (dense 16 W=1.3 b=0.1) (relu) (aggregate implementation=sparse) (dense 16 W=1.1 b=0.1) (relu))", 2, 0, 2, { 5, 3 }, 6, 4, NT_FULL },
    { "masks", "(serial (conv 8 (3) (1) SAME W=1.3 b=0.1) (relu) (conv 8 (3) (1) SAME W=1.1 b=0.1) (erf) (global_avg_pool) (dense 16))", 2, 1, 0, { 6, 2 }, 7, 4, NT_FULL },
    { "masks, full", "(serial (conv 8 (2 3) (1 2) SAME W=1.3 b=0.1) (relu) (avg_pool (2 2) (1 1) SAME) (dense 16 W=1.1) (relu))", 3, 1, 0, { 4, 3, 2 }, 6, 3, NT_FULL },
    { "masked attention", "(serial (dense 16 W=1.1 b=0.2) " ATTENTION " (relu) (flatten) (dense 16))", 2, 1, 0, { 5, 3 }, 6, 3, NT_FULL },
    { "index", "(serial " CONV " (relu) (index 1:6 0:3 ::-1 :) " CONV " (relu))", 3, 0, 0, { 4, 4, 2 }, 8, 7, NT_FULL },
    { "resized", "(serial " CONV " (relu) (image_resize (3 5)) " CONV " (relu) (global_sum_pool) (dense 16))", 3, 0, 0, { 4, 3, 2 }, 7, 3, NT_FULL },
};
// clang-format on
enum { NETS = sizeof nets / sizeof nets[0] };

// ---------------------------------------------------------------------------------------------------------------------
// A net on a tape of its own, with images
// ---------------------------------------------------------------------------------------------------------------------
static uint64_t random_state;
static double uniform(void) { // in (-1, 1); a multiple of 2^-20, so that it is the same in f32
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int64_t)(random_state >> 43) - 1048576 + 1) / 1048576.0;
}

static void put(void *data, nt_dtype dtype, int64_t k, double v) {
    if (dtype == NT_F64)
        ((double *)data)[k] = v;
    else
        ((float *)data)[k] = (float)v;
}
static double value(const void *data, nt_dtype dtype, int64_t k) {
    return dtype == NT_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

static int64_t product(int rank, const int64_t *size) {
    int64_t n = 1;
    for (int k = 0; k < rank; k++) n *= size[k];
    return n;
}

// Image 3 is image 0, image 4 its opposite, image 5 zero; where there are masks, position k % positions of image k is hidden.
static void *images(int64_t n, int rank, const int64_t *size, nt_dtype dtype, int masked) {
    int64_t each = product(rank, size), channels = size[rank - 1];
    void *x = pool_new((size_t)(n * each) + 1, sizeof(double));
    for (int64_t i = 0; i < n; i++)
        for (int64_t k = 0; k < each; k++) {
            double v = uniform();
            if (i == 3 || i == 4) v = (i == 4 ? -1 : 1) * value(x, dtype, k);
            if (masked && k / channels == i % (each / channels)) v = -9.1;
            put(x, dtype, i * each + k, i == 5 ? 0 : v);
        }
    return x;
}

static void *pattern(const net_row *r, int64_t n, nt_dtype dtype, int64_t edges) {
    int64_t v = r->size[0];
    if (r->pattern == 2) {
        int32_t *e = (int32_t *)pool_new((size_t)(n * edges * 2), sizeof *e);
        for (int64_t k = 0; k < n * edges * 2; k++) e[k] = (int32_t)((uniform() + 1) / 2 * (double)v);
        for (int64_t k = 0; k < n; k++) e[k * edges * 2] = -1; // no edge
        return e;
    }
    void *a = pool_new((size_t)(n * v * v), sizeof(double));
    for (int64_t k = 0; k < n * v * v; k++) put(a, dtype, k, uniform());
    return a;
}

typedef struct problem {
    const net_row *row;
    gd_case c;
    nt_tape *t;
    nt_layer *net;
    nt_kernel_desc d;
    nt_dtype dtype;
    void *x[2], *patterns[2];
    int64_t n1, n2, rows, columns, each; // of the whole matrix, and numbers of a pair
    size_t total;                        // of the tape with the net alone
} problem;

static nt_layer *net_of(gd_case *c, nt_tape *t, nt_dtype dtype, const char *text) {
    wide_nets w = { c, t, dtype, NULL, NULL };
    gd_node *spec = gd_parse(c, text);
    return spec ? wide_net(&w, spec) : NULL;
}

static void problem_close(problem *p) {
    nt_tape_close(p->t);
    gd_free_all(&p->c);
    for (int k = 0; k < 2; k++) {
        if (p->x[k]) pool_free(p->x[k]);
        if (p->patterns[k]) pool_free(p->patterns[k]);
    }
}

// x1 against x2 (two), or against itself. 0: no such tape, or a failure that is told.
static int problem_open(problem *p, const net_row *r, nt_dtype dtype, int two, const nt_tape_desc *desc) {
    CLEAR(*p);
    p->row = r, p->dtype = dtype, p->n1 = r->n1, p->n2 = two ? r->n2 : 0;
    p->t = nt_tape_open(desc);
    if (!p->t) return 0;
    p->net = net_of(&p->c, p->t, dtype, r->net);
    random_state = 7, p->total = nt_memory(p->t).total;
    for (int k = 0; k < 1 + two; k++) {
        p->x[k] = images(k ? r->n2 : r->n1, r->rank, r->size, dtype, r->masked);
        if (r->pattern) p->patterns[k] = pattern(r, k ? r->n2 : r->n1, dtype, 6);
    }
    nt_kernel_desc *d = &p->d;
    d->dtype = dtype, d->shape = nt_shape_make(r->rank, r->size), d->train = 1, d->spatial = r->spatial;
    d->masked = r->masked, d->mask = -9.1, d->pattern1 = p->patterns[0], d->pattern2 = p->patterns[1], d->edges = r->pattern == 2 ? 6 : 0;
    nt_kernel_info info;
    if (!p->net || nt_kernel_plan(p->net, p->n1, p->n2, d, &info) != NT_OK) {
        tap_ok(0, "%s: %s", r->name, p->net ? nt_error(p->t) : p->c.error);
        problem_close(p);
        return 0;
    }
    p->rows = p->n1, p->columns = two ? p->n2 : p->n1;
    if (strstr(r->net, "(index 1:6")) p->rows = 5, p->columns = p->columns < 6 ? p->columns - 1 : 5;
    int64_t positions = product(info.output.rank, info.output.size);
    p->each = r->spatial == NT_FULL ? positions * positions : positions;
    return 1;
}

static size_t bytes_of(const problem *p, int64_t pairs) { return (size_t)(pairs * p->each) * nt_dtype_size(p->dtype); }

typedef struct result {
    char *nngp, *ntk;
} result;
static result result_new(const problem *p) {
    result r;
    size_t bytes = bytes_of(p, p->rows * p->columns);
    r.nngp = (char *)pool_new(bytes + 1, 1), r.ntk = (char *)pool_new(bytes + 1, 1);
    memset(r.nngp, 0xab, bytes), memset(r.ntk, 0xab, bytes); // no number of these nets
    return r;
}
static void result_free(result r) { pool_free(r.nngp), pool_free(r.ntk); }

static nt_status compute(problem *p, result r) {
    p->d.nngp = r.nngp, p->d.ntk = r.ntk;
    return nt_kernel(p->net, p->x[0], p->n1, p->x[1], p->n2, &p->d);
}

static int same_block(const problem *p, const char *block, const char *whole) {
    for (int64_t i = 0; i < p->d.rows; i++)
        if (memcmp(block + bytes_of(p, i * p->d.columns), whole + bytes_of(p, (p->d.row + i) * p->columns + p->d.column),
                   bytes_of(p, p->d.columns)))
            return 0;
    return 1;
}
static int same(const problem *p, result a, result b) {
    size_t bytes = bytes_of(p, p->rows * p->columns);
    return !memcmp(a.nngp, b.nngp, bytes) && !memcmp(a.ntk, b.ntk, bytes);
}

// ---------------------------------------------------------------------------------------------------------------------
// The sink: writes the dense result, counts what comes twice
// ---------------------------------------------------------------------------------------------------------------------
typedef struct taker {
    const problem *p;
    result out;
    uint8_t *count; // of each number of the block that is asked for
    int64_t row, column, rows, columns, wrong;
} taker;

// Where position a of image i beside position b of image j stands; -1: nowhere.
static int64_t place_of(const taker *k, int64_t i, int64_t j, int64_t a, int64_t b, int64_t positions) {
    i -= k->row, j -= k->column;
    if (i < 0 || i >= k->rows || j < 0 || j >= k->columns) return -1;
    if (k->p->row->spatial == NT_DIAGONAL) return (i * k->columns + j) * positions + a;
    return ((i * k->columns + j) * positions + a) * positions + b;
}

static void take_value(taker *k, const nt_kernel_unit *u, int64_t from, int64_t i, int64_t j, int64_t a, int64_t b, int64_t positions) {
    size_t unit = nt_dtype_size(k->p->dtype);
    int found = 0, own = !k->p->x[1] && i == j && k->p->row->spatial == NT_FULL;
    if (own && a > b) { // an image with itself: the other half may differ in the last bits, and arrays have one of them
        int64_t to = place_of(k, i, i, b, a, positions);
        double mine = value(u->nngp, k->p->dtype, from), other = value(k->out.nngp, k->p->dtype, to);
        k->wrong += to < 0 || (k->count[to] && fabs(mine - other) > 1e-5 * fabs(other));
        return;
    }
    for (int mirror = 0; mirror < 1 + (!k->p->x[1] && (i != j || (own && a != b))); mirror++) {
        int64_t to = mirror ? place_of(k, j, i, b, a, positions) : place_of(k, i, j, a, b, positions);
        if (to < 0) continue;
        found = 1;
        k->wrong += k->count[to]++ != 0;
        memcpy(k->out.nngp + (size_t)to * unit, (const char *)u->nngp + (size_t)from * unit, unit);
        memcpy(k->out.ntk + (size_t)to * unit, (const char *)u->ntk + (size_t)from * unit, unit);
    }
    k->wrong += !found; // not asked for
}

static int take(void *user, const nt_kernel_unit *u) {
    taker *k = (taker *)user;
    int64_t positions = k->p->row->spatial == NT_FULL ? (int64_t)(sqrt((double)k->p->each) + 0.5) : k->p->each, n = 1,
            full[3] = { 1, 1, 1 };
    nt_kernel_info info;
    if (nt_kernel_plan(k->p->net, k->p->n1, k->p->n2, &k->p->d, &info) != NT_OK) k->wrong++; // planning from inside is allowed
    for (int a = 0; a < info.output.rank; a++) full[a] = info.output.size[a];
    k->wrong +=
        u->offset.rank != info.output.rank || u->start.rank != info.output.rank || u->size.rank != info.output.rank || u->pairs > u->lanes;
    for (int a = 0; a < u->size.rank; a++) n *= u->size.size[a];
    for (int64_t p = 0; p < n; p++) {
        int64_t at[3] = { 0, 0, 0 }, rest = p, one = 0, two = 0;
        for (int a = u->size.rank - 1; a >= 0; a--) at[a] = u->start.size[a] + rest % u->size.size[a], rest /= u->size.size[a];
        for (int a = 0; a < u->size.rank; a++) {
            int64_t q = at[a] + u->offset.size[a];
            if (at[a] < 0 || q < 0 || at[a] >= full[a] || q >= full[a]) {
                k->wrong++;
                return 0;
            }
            one = one * full[a] + at[a], two = two * full[a] + q;
        }
        for (int64_t l = 0; l < u->pairs; l++) {
            k->wrong += !k->p->x[1] && u->i[l] > u->j[l];
            take_value(k, u, p * u->lanes + l, u->i[l], u->j[l], one, two, positions);
        }
    }
    return 0;
}

static void taker_begin(taker *k, problem *p, result out) {
    CLEAR(*k);
    k->p = p, k->out = out, k->row = p->d.row, k->column = p->d.column;
    k->rows = p->d.rows ? p->d.rows : p->rows, k->columns = p->d.columns ? p->d.columns : p->columns;
    k->count = (uint8_t *)pool_new((size_t)(k->rows * k->columns * p->each) + 1, 1);
    p->d.sink.take = take, p->d.sink.user = k;
}
static int taker_end(taker *k, problem *p) { // 1: all came once
    int64_t n = k->rows * k->columns * p->each, missing = 0;
    for (int64_t e = 0; e < n; e++) missing += k->count[e] != 1;
    pool_free(k->count), CLEAR(p->d.sink);
    if (missing || k->wrong) tap_note("%s: %lld values missing, %lld wrong", p->row->name, (long long)missing, (long long)k->wrong);
    return !missing && !k->wrong;
}

// ---------------------------------------------------------------------------------------------------------------------
// The same bits
// ---------------------------------------------------------------------------------------------------------------------
static int symmetric(const problem *p, const char *k) {
    int64_t positions = p->row->spatial == NT_FULL ? (int64_t)(sqrt((double)p->each) + 0.5) : p->each, other = p->each / positions;
    size_t unit = nt_dtype_size(p->dtype);
    for (int64_t i = 0; i < p->rows; i++)
        for (int64_t j = 0; j < p->columns; j++)
            for (int64_t a = 0; a < positions; a++)
                for (int64_t b = 0; b < other; b++) {
                    int64_t one = (i * p->columns + j) * p->each + a * other + b,
                            two = (j * p->columns + i) * p->each + (other > 1 ? b * other + a : a);
                    if (memcmp(k + (size_t)one * unit, k + (size_t)two * unit, unit)) return 0;
                }
    return 1;
}

static int blocks(problem *p, result whole, result part) {
    int64_t n = p->rows, m = p->columns;
    int64_t cut[8][4] = { { 0, 1, 0, m },
                          { 0, n, m - 1, 1 },
                          { n / 2, n - n / 2, 0, m },
                          { n - 1, 1, 0, 1 },
                          { 0, 1, m - 1, 1 },
                          { n / 3, (n + 1) / 2, m / 3, (m + 1) / 2 },
                          { n / 2, (n + 1) / 2, 0, (m + 1) / 2 },
                          { 0, (n + 1) / 2, m / 4, m - m / 4 } };
    int good = 1;
    for (int k = 0; k < 8; k++) {
        taker s;
        p->d.row = cut[k][0], p->d.rows = cut[k][1], p->d.column = cut[k][2], p->d.columns = cut[k][3];
        if (p->d.row + p->d.rows > n || p->d.column + p->d.columns > m) continue;
        int one = compute(p, part) == NT_OK && same_block(p, part.nngp, whole.nngp) && same_block(p, part.ntk, whole.ntk);
        taker_begin(&s, p, part);
        result none = { NULL, NULL };
        int two = compute(p, none) == NT_OK && same_block(p, part.nngp, whole.nngp) && same_block(p, part.ntk, whole.ntk);
        two &= taker_end(&s, p);
        if (!one || !two)
            tap_note("rows %d + %d, columns %d + %d: arrays %d, sink %d", (int)cut[k][0], (int)cut[k][1], (int)cut[k][2], (int)cut[k][3],
                     one, two);
        good &= one && two;
    }
    p->d.row = p->d.rows = p->d.column = p->d.columns = 0;
    return good;
}

// The number behind these words in the last message.
static size_t bytes_told(const nt_tape *t, const char *words) {
    const char *at = nt_error(t) ? strstr(nt_error(t), words) : NULL;
    size_t n = 0;
    for (at = at ? at + strlen(words) : ""; *at == ',' || (*at >= '0' && *at <= '9'); at++)
        if (*at != ',') n = n * 10 + (size_t)(*at - '0');
    return n;
}

static int budgets(problem *p, result whole, result part) {
    nt_kernel_info info;
    int good = 1;
    p->d.budget = 1;
    if (compute(p, part) != NT_ERROR_BUDGET || !nt_error(p->t)) return 0;
    size_t least = bytes_told(p->t, "; ");
    nt_error_clear(p->t), p->d.budget = 0;
    nt_kernel_plan(p->net, p->n1, p->n2, &p->d, &info);
    for (int k = 0; k < 4; k++) {
        p->d.budget = least + (info.bytes - least) * (size_t)k / 3;
        good &= compute(p, part) == NT_OK && same(p, part, whole);
    }
    p->d.budget = least - 1;
    good &= compute(p, part) == NT_ERROR_BUDGET && nt_error(p->t) && strstr(nt_error(p->t), "would do");
    nt_error_clear(p->t), p->d.budget = 0;
    return good && least <= info.bytes;
}

static void same_bits(const net_row *r, nt_dtype dtype, int two) {
    problem p;
    if (!problem_open(&p, r, dtype, two, NULL)) return;
    result whole = result_new(&p), part = result_new(&p), none = { NULL, NULL };
    taker s;
    int good[6] = { 1, 1, 1, 1, 1, 1 };
    if (compute(&p, whole) != NT_OK) {
        tap_ok(0, "%s: %s", r->name, nt_error(p.t)), problem_close(&p);
        return;
    }
    if (!two) good[0] = symmetric(&p, whole.nngp) && symmetric(&p, whole.ntk);
    good[1] = blocks(&p, whole, part);
    taker_begin(&s, &p, part);
    good[2] = compute(&p, none) == NT_OK && same(&p, part, whole), good[2] &= taker_end(&s, &p);
    for (int what = 1; what < 3; what++) { // one kernel alone
        result one = { what == NT_NNGP ? part.nngp : NULL, what == NT_NTK ? part.ntk : NULL };
        memset(part.nngp, 1, bytes_of(&p, p.rows * p.columns)), memset(part.ntk, 1, bytes_of(&p, p.rows * p.columns));
        p.d.what = what;
        good[3] &= compute(&p, one) == NT_OK;
        good[3] &=
            !memcmp(what == NT_NNGP ? part.nngp : part.ntk, what == NT_NNGP ? whole.nngp : whole.ntk, bytes_of(&p, p.rows * p.columns));
    }
    p.d.what = 0, good[3] &= budgets(&p, whole, part);
    for (int workers = 2; workers < 4; workers++) {
        crew c;
        nt_tape_desc desc;
        problem q;
        CLEAR(desc), crew_hire(&c, workers), desc.parallel = crew_parallel(&c);
        if (!problem_open(&q, r, dtype, two, &desc))
            good[4] = 0;
        else {
            result other = result_new(&q);
            good[4] &= compute(&q, other) == NT_OK && same(&q, other, whole);
            taker_begin(&s, &q, other);
            good[4] &= compute(&q, none) == NT_OK && same(&q, other, whole), good[4] &= taker_end(&s, &q);
            if (workers == 3) good[4] &= blocks(&q, whole, other) && budgets(&q, whole, other);
            result_free(other), problem_close(&q);
        }
    }
    tap_ok(good[0] && good[1] && good[2] && good[3] && good[4],
           "%s, %s, %s: symmetric %d, blocks %d, sink %d, one kernel and budgets %d, workers %d", r->name, nt_dtype_name(dtype),
           two ? "two arrays" : "one array", good[0], good[1], good[2], good[3], good[4]);
    result_free(whole), result_free(part), problem_close(&p);
}

static void instruction_sets(void) {
    int checked = 0, wrong = 0, missing = 0;
    for (int k = 0; k < NETS; k++)
        for (int v = 0; v < 2; v++) {
            static const nt_isa isas[] = { NT_ISA_AVX2, NT_ISA_AVX512 };
            nt_dtype dtype = v ? NT_F64 : NT_F32;
            nt_tape_desc desc;
            problem p[2];
            int have[2];
            CLEAR(desc);
            for (int j = 0; j < 2; j++) desc.isa = isas[j], have[j] = problem_open(&p[j], &nets[k], dtype, k % 2, &desc);
            if (have[0] && have[1]) {
                result a = result_new(&p[0]), b = result_new(&p[1]);
                int good = compute(&p[0], a) == NT_OK && compute(&p[1], b) == NT_OK && same(&p[0], a, b);
                if (!good) tap_note("%s in %s differs", nets[k].name, nt_dtype_name(dtype));
                wrong += !good, checked++, result_free(a), result_free(b);
            } else
                missing = 1;
            for (int j = 0; j < 2; j++)
                if (have[j]) problem_close(&p[j]);
        }
    if (missing)
        tap_skip("this machine or build lacks an instruction set", "AVX2 and AVX-512: equal bits");
    else
        tap_ok(!wrong, "AVX2 and AVX-512: equal bits of %d kernels", checked);
}

// ---------------------------------------------------------------------------------------------------------------------
// Order of units, stops, progress
// ---------------------------------------------------------------------------------------------------------------------
typedef struct watch {
    int64_t units, stop_at, offsets, count, wrong, blocks, pair[2], calls, asked, cancel_at;
    int64_t order[4096][3]; // offsets of the first block: every block has the same ones
    double done;
} watch;

static int watch_take(void *user, const nt_kernel_unit *u) {
    watch *w = (watch *)user;
    w->wrong += w->stop_at && w->units >= w->stop_at; // after a stop
    if (!w->units || u->i[0] != w->pair[0] || u->j[0] != w->pair[1]) {
        w->wrong += w->blocks && (u->i[0] < w->pair[0] || (w->blocks > 1 && w->count != w->offsets));
        if (w->blocks == 1) w->offsets = w->count;
        w->blocks++, w->count = 0;
    }
    w->pair[0] = u->i[0], w->pair[1] = u->j[0], w->units++;
    if (w->blocks == 1 && w->count < 4096)
        for (int a = 0; a < u->offset.rank; a++) w->order[w->count][a] = u->offset.size[a];
    for (int a = 0; a < u->offset.rank && w->count < 4096; a++) w->wrong += w->order[w->count][a] != u->offset.size[a];
    w->count++;
    return w->units == w->stop_at ? 7 : 0;
}
static void watch_done(void *user, double done) {
    watch *w = (watch *)user;
    w->wrong += done < w->done || done < 0 || done > 1;
    w->done = done, w->calls++;
}
static int watch_asked(void *user) {
    watch *w = (watch *)user;
    return ++w->asked == w->cancel_at;
}

static void stops(const net_row *r, int workers) {
    static watch w;
    crew c;
    nt_tape_desc desc;
    problem p;
    CLEAR(desc), crew_hire(&c, workers);
    if (workers > 1) desc.parallel = crew_parallel(&c);
    if (!problem_open(&p, r, NT_F32, 0, &desc)) return;
    result whole = result_new(&p), part = result_new(&p), none = { NULL, NULL };
    nt_status plain = compute(&p, whole);
    CLEAR(w), p.d.progress.update = watch_done, p.d.progress.user = &w, p.d.sink.take = watch_take, p.d.sink.user = &w;
    nt_status status = compute(&p, none);
    tap_ok(plain == NT_OK && status == NT_OK && !w.wrong && w.done == 1 && w.calls > 0,
           "%s, %d workers: %lld units of %lld blocks in order, progress to 1", r->name, workers, (long long)w.units, (long long)w.blocks);
    int64_t units = w.units;
    int good = 1;
    for (int64_t k = 1; k <= units; k = k < 5 || k == units ? k + 1 : k + k / 3 < units ? k + k / 3 : units) {
        CLEAR(w), w.stop_at = k;
        good &= compute(&p, none) == NT_CANCELLED && !w.wrong && w.units == k && (w.done < 1 || k == units) && !nt_error(p.t);
    }
    tap_ok(good, "%s, %d workers: stopped by the sink at once, wherever", r->name, workers);
    CLEAR(p.d.sink), CLEAR(w), p.d.cancel.asked = watch_asked, p.d.cancel.user = &w;
    good = compute(&p, part) == NT_OK && same(&p, part, whole) && w.asked > 0 && !w.wrong;
    int64_t asked = w.asked;
    for (int64_t k = 1; k <= asked; k = k < 5 || k == asked ? k + 1 : k + k / 3 < asked ? k + k / 3 : asked) {
        CLEAR(w), w.cancel_at = k;
        good &= compute(&p, part) == NT_CANCELLED && w.asked == k && !nt_error(p.t);
    }
    CLEAR(w);
    good &= compute(&p, part) == NT_OK && same(&p, part, whole);
    tap_ok(good, "%s, %d workers: cancelled at each of %lld questions, then computed", r->name, workers, (long long)asked);
    result_free(whole), result_free(part), problem_close(&p);
}

// Wishes to stop from unit `at` on.
typedef struct wish {
    watch w;
    int64_t at, row;
} wish;
static int wish_take(void *user, const nt_kernel_unit *u) {
    wish *x = (wish *)user;
    x->row = u->i[0];
    return watch_take(&x->w, u);
}
static int wish_asked(void *user) { return ((wish *)user)->w.units >= ((wish *)user)->at; }

// A wish to stop that comes up in the midst of a block is met there: after one more batch of units at most (of one worker: one unit). Rows
// before that block's first stand; the others computed later complete the same bits.
static void stops_within(const net_row *r, int workers) {
    static wish x;
    crew c;
    nt_tape_desc desc;
    problem p;
    CLEAR(desc), crew_hire(&c, workers);
    if (workers > 1) desc.parallel = crew_parallel(&c);
    if (!problem_open(&p, r, NT_F32, 1, &desc)) return;
    result whole = result_new(&p), part = result_new(&p);
    int good = compute(&p, whole) == NT_OK, most = workers > 1 ? 33 : 2; // 33: the NTI_COV_SLOTS units of a batch, and one
    CLEAR(x), x.at = INT64_MAX, p.d.sink.take = wish_take, p.d.sink.user = &x, p.d.cancel.asked = wish_asked, p.d.cancel.user = &x;
    good &= compute(&p, part) == NT_OK;
    int64_t units = x.w.units, each = units / x.w.blocks, cut = 0;
    for (int64_t at = 1; at < units; at += units / 9 + 1) {
        CLEAR(x), x.at = at, memset(part.nngp, 0xab, bytes_of(&p, p.rows * p.columns)), memset(part.ntk, 0xab, bytes_of(&p, p.rows * p.columns));
        good &= compute(&p, part) == NT_CANCELLED && x.w.units >= at && x.w.units < at + most && !nt_error(p.t);
        cut += x.w.units % each != 0;
        result rest = { part.nngp + bytes_of(&p, x.row * p.columns), part.ntk + bytes_of(&p, x.row * p.columns) };
        x.at = INT64_MAX, p.d.row = x.row;
        good &= compute(&p, rest) == NT_OK && same(&p, part, whole), p.d.row = 0;
    }
    tap_ok(good && cut > 4, "%s, %d workers: cancelled within blocks of %lld units %lld times, the rest later: the same bits", r->name, workers, (long long)each,
           (long long)cut);
    result_free(whole), result_free(part), problem_close(&p);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory
// ---------------------------------------------------------------------------------------------------------------------
typedef struct watched {
    heap heap;
    long first, last; // calls when the first unit or progress came, and the last
} watched;
static int watched_take(void *user, const nt_kernel_unit *u) {
    watched *w = (watched *)user;
    (void)u;
    if (!w->first) w->first = w->heap.calls;
    w->last = w->heap.calls;
    return 0;
}
static void watched_done(void *user, double done) { (void)done, watched_take(user, NULL); }

static int unchanged(nt_memory_use a, nt_memory_use b) {
    return a.nodes == b.nodes && a.temporaries == b.temporaries && a.objects == b.objects && a.scratch == b.scratch;
}

static void refusals(const net_row *r) {
    long count = 0, failed = 0, wrong = 0;
    problem p;
    result whole = { NULL, NULL };
    for (long k = 0; k <= count + 1; k++) {
        watched w = { { 0, 0, 0, 0, 0, 0, 0 }, 0, 0 };
        heap *h = &w.heap;
        nt_tape_desc desc = heap_desc(h);
        if (!problem_open(&p, r, NT_F64, 0, &desc)) {
            wrong++;
            break;
        }
        result part = result_new(&p);
        nt_memory_use before = nt_memory(p.t);
        long calls = h->calls;
        h->fail_at = k ? calls + k : 0, p.d.progress.update = watched_done, p.d.progress.user = &w, p.d.sink.take = watched_take,
        p.d.sink.user = &w;
        nt_status status = compute(&p, part);
        if (!k) {
            count = h->calls - calls, whole = part, part = result_new(&p);
            wrong += w.first != w.last || !w.first, compute(&p, part);
        }
        if (k && k <= count && status != NT_ERROR_MEMORY) tap_note("request %ld: %s %s", k, nt_status_name(status), nt_error(p.t));
        if (k && k <= count)
            wrong += status != NT_ERROR_MEMORY || !nt_error(p.t) || !strstr(nt_error(p.t), "bytes"), failed++, nt_error_clear(p.t);
        else
            wrong += status != NT_OK || !same(&p, part, whole);
        wrong += !unchanged(before, nt_memory(p.t));
        h->fail_at = 0;
        if (k) wrong += compute(&p, part) != NT_OK || !same(&p, part, whole); // and again
        result_free(part), problem_close(&p), wrong += h->live != 0 || h->bytes != 0 || h->wrong != 0;
    }
    if (whole.nngp) result_free(whole);
    tap_ok(!wrong, "%s: each of %ld requests refused: clean, and the next call works; none while it runs (%ld wrong)", r->name, failed,
           wrong);
}

static void arrays(const net_row *r, int workers) {
    crew c;
    nt_tape_desc desc;
    problem p;
    nt_kernel_info info;
    size_t total = 0, told = 0, planned = 0, used = 0;
    int good = 1;
    CLEAR(desc), CLEAR(info), crew_hire(&c, workers);
    if (workers > 1) desc.parallel = crew_parallel(&c);
    for (int k = 0; k < 3; k++) { // a large one; exactly so many bytes; one less
        desc.memory_size = k ? total - (size_t)(k == 2) : (size_t)1 << 24, desc.memory = pool_new(desc.memory_size, 1);
        if (!problem_open(&p, r, NT_F32, 1, &desc)) return;
        if (k == 0) nt_kernel_plan(p.net, p.n1, p.n2, &p.d, &info), planned = info.bytes;
        result out = result_new(&p);
        nt_memory_use before = nt_memory(p.t);
        nt_status status = compute(&p, out);
        good &= unchanged(before, nt_memory(p.t));
        if (k == 0) total = nt_memory(p.t).total, used = total - p.total, good &= status == NT_OK;
        if (k == 1) good &= status == NT_OK && nt_memory(p.t).total == total;
        if (k == 2 && workers == 1)
            good &= status == NT_ERROR_MEMORY, told = bytes_told(p.t, "at least "), good &= nt_error(p.t) && strstr(nt_error(p.t), "bytes");
        if (k == 2 && workers > 1) good &= status == NT_OK; // of fewer workers
        result_free(out), problem_close(&p), pool_free(desc.memory);
    }
    if (workers == 1) good &= told == total;
    good &= planned < used + 64 && used < planned + 64; // arrays are counted in lines of 64
    tap_ok(good, "%s, %d workers: planned %zu bytes, used %zu; an array of %zu does, one byte less does not", r->name, workers, planned,
           used, total);
}

static void numbers_of_images(const net_row *r) {
    nt_kernel_info info[2];
    problem p;
    if (!problem_open(&p, r, NT_F32, 0, NULL)) return;
    int good = 1;
    for (int two = 0; two < 2; two++) {
        for (int k = 0; k < 2; k++) good &= nt_kernel_plan(p.net, k ? 1000 : 10, two ? (k ? 1000 : 10) : 0, &p.d, &info[k]) == NT_OK;
        tap_ok(good && info[0].bytes == info[1].bytes, "%s: %zu bytes for 10 images, %zu for 1,000", r->name, info[0].bytes, info[1].bytes);
        good &= info[1].pairs == (two ? 1000000 : 500500) && info[1].bytes >= info[1].worker_bytes && info[1].workers == 1;
    }
    tap_ok(good, "%s: pairs and workers of the plan", r->name);
    problem_close(&p);
}

static const net_row *net_named(const char *name) {
    for (int k = 0; k < NETS; k++)
        if (!strcmp(nets[k].name, name)) return &nets[k];
    tap_ok(0, "no net %s", name);
    return &nets[0];
}

static void memory(void) {
    static const char *const some[] = { "33 images", "conv, flatten", "conv, average", "pools", "U-Net", "circular, transposed, average",
                                        "attention", "graphs",        "masks, full" };
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        const net_row *r = net_named(some[k]);
        refusals(r), arrays(r, 1), arrays(r, 3), numbers_of_images(r);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers stay numbers
// ---------------------------------------------------------------------------------------------------------------------
enum { EDGES = 9, EDGE_INPUTS = 7 };
// Equal, opposite, zero, nearly equal, collinear and nearly opposite images, all times `scale`.
static void *edge_images(nt_dtype dtype, double scale) {
    static const double kin[EDGES] = { 0, 0, 0, 1, -1, 0, 1, 3, -1 }, near[EDGES] = { 0, 0, 0, 0, 0, 0, 1.0 / 8192, 0, 1.0 / 8192 };
    void *x = pool_new(EDGES * EDGE_INPUTS, sizeof(double));
    random_state = 11;
    for (int64_t i = 0; i < EDGES; i++)
        for (int64_t k = 0; k < EDGE_INPUTS; k++) {
            double own = uniform(), first = value(x, dtype, k) / scale;
            put(x, dtype, i * EDGE_INPUTS + k, scale * (i < 3 ? own : i == 5 ? 0 : kin[i] * first + near[i] * own));
        }
    return x;
}

typedef struct safety {
    int bad;
    double nngp[EDGES * EDGES], ntk[EDGES * EDGES];
} safety;

// NNGP and NTK of the images above, of one array or of two that are equal; counts what is no kernel.
static int safe_kernel(safety *s, const char *net, nt_dtype dtype, double scale, int two) {
    gd_case c;
    nt_kernel_desc d;
    int64_t size = EDGE_INPUTS;
    CLEAR(c), CLEAR(d), CLEAR(*s);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *l = net_of(&c, t, dtype, net);
    void *x1 = edge_images(dtype, scale), *x2 = edge_images(dtype, scale), *k = pool_new(EDGES * EDGES, 8), *q = pool_new(EDGES * EDGES, 8);
    d.dtype = dtype, d.shape = nt_shape_make(1, &size), d.nngp = k, d.ntk = q;
    if (strstr(net, "conv"))
        size = 1, d.shape = nt_shape_make(1, &size), d.shape.rank = 2, d.shape.size[0] = EDGE_INPUTS, d.shape.size[1] = 1;
    int ok = l && nt_kernel(l, x1, EDGES, two ? x2 : NULL, two ? EDGES : 0, &d) == NT_OK;
    if (!ok) tap_note("%s: %s", net, l ? nt_error(t) : c.error);
    for (int64_t j = 0; j < EDGES * EDGES; j++) {
        s->nngp[j] = value(k, dtype, j), s->ntk[j] = value(q, dtype, j);
        if (!(fabs(s->nngp[j]) < INFINITY) || !(fabs(s->ntk[j]) < INFINITY)) s->bad++;
    }
    pool_free(x1), pool_free(x2), pool_free(k), pool_free(q), nt_tape_close(t), gd_free_all(&c);
    return ok;
}

// Both kernels are products of vectors: k_ij^2 <= k_ii k_jj, up to the rounding `slack`.
static int not_products(const double *k, double slack) {
    int bad = 0;
    for (int i = 0; i < EDGES; i++)
        for (int j = 0; j < EDGES; j++) bad += fabs(k[i * EDGES + j]) > sqrt(k[i * EDGES + i] * k[j * EDGES + j]) * (1 + slack) + 1e-300;
    return bad;
}

static double apart(const double *a, const double *b) { // by the size that they can have
    double worst = 0;
    for (int i = 0; i < EDGES; i++)
        for (int j = 0; j < EDGES; j++) {
            double size = sqrt(fabs(b[i * EDGES + i] * b[j * EDGES + j])), e = fabs(a[i * EDGES + j] - b[i * EDGES + j]);
            if (e > worst * size) worst = e / size;
        }
    return worst;
}

typedef struct scaled {
    double worst[2], between;
    int ok, bad;
} scaled;
static scaled safe_at(const char *net, double scale, double nngp, double ntk) {
    static safety one, two, half, half2;
    scaled s;
    s.ok = safe_kernel(&one, net, NT_F64, scale, 0) && safe_kernel(&two, net, NT_F64, scale, 1);
    s.ok &= safe_kernel(&half, net, NT_F32, scale, 0) && safe_kernel(&half2, net, NT_F32, scale, 1);
    s.bad = one.bad + two.bad + half.bad + half2.bad;
    s.bad += not_products(one.nngp, 1e-10) + not_products(one.ntk, 1e-10) + not_products(half.nngp, nngp) + not_products(half.ntk, ntk);
    s.between = fmax(apart(two.nngp, one.nngp), apart(two.ntk, one.ntk));
    s.worst[0] = fmax(apart(half.nngp, one.nngp), apart(half2.nngp, one.nngp));
    s.worst[1] = fmax(apart(half.ntk, one.ntk), apart(half2.ntk, one.ntk));
    return s;
}

// f32 against f64: NNGP within `nngp`, NTK within `ntk`; two equal arrays in f64 within `between`. At the largest of the scales (variances
// of 1e12) a function that saturates or turns sees rounded correlations as others: there f32 has to be a kernel, and no more.
typedef struct limits {
    double nngp, ntk, between;
    int scales;
} limits;
static void safe(const char *name, const char *net, limits l) {
    static const double scales[] = { 1.0 / 1048576, 1, 1048576 };
    int ok = 1, all = l.scales < 0 ? 3 : l.scales;
    char text[256];
    size_t at = 0;
    for (int k = 0; k < all; k++) {
        int loose = l.scales < 0 && k == 2;
        scaled s = safe_at(net, scales[k], loose ? 1e-3 : l.nngp, loose ? 1e-3 : l.ntk);
        ok &= s.ok && !s.bad && s.between < l.between && (loose || (s.worst[0] <= l.nngp && s.worst[1] <= l.ntk));
        at +=
            (size_t)snprintf(text + at, sizeof text - at, "%s%d, %.1e %.1e %.1e", k ? "; " : "", s.bad, s.worst[0], s.worst[1], s.between);
    }
    tap_ok(ok, "%s: %s", name, text);
}

static void numbers(void) {
    // A correlation of 1 that is rounded to 1 - e is an angle of sqrt(2 e): 3.5e-4 for e = 2^-24, and some roundings before. Where the
    // derivative has a jump, the NTK has an error in proportion to the angle, and so has the NNGP of a function with a jump.
    static const limits plain = { 2e-6, 2e-6, 1e-12, 3 }, kink = { 2e-6, 5e-4, 1e-7, 3 }, jump = { 1e-3, 1e-3, 1e-7, 3 },
                        bounded = { 2e-6, 3e-6, 1e-7, -1 }, hinged = { 2e-6, 5e-4, 1e-7, -1 };
    static const limits integrated = { 2e-6, 3e-6, 1e-8, 2 }; // by a rule of so many points: not for variances of 1e12
    static const struct {
        const char *f;
        const limits *l;
    } some[] = { { "(relu)", &kink },
                 { "(leaky_relu 0.1)", &kink },
                 { "(abs)", &kink },
                 { "(abrelu -0.5 1.2)", &kink },
                 { "(rectified_monomial 1)", &kink },
                 { "(gelu)", &kink },
                 { "(rectified_monomial 2)", &plain },
                 { "(monomial 2)", &plain },
                 { "(polynomial 0.2 1 -0.4)", &plain },
                 { "(exp_normalized gamma=0.8)", &plain },
                 { "(sign)", &jump },
                 { "(rectified_monomial 0)", &jump },
                 { "(erf)", &bounded },
                 { "(erf a=1.4 b=0.6 c=0.3)", &bounded },
                 { "(sigmoid_like)", &bounded },
                 { "(sin)", &bounded },
                 { "(sin a=1.2 b=0.9 c=0.4)", &bounded },
                 { "(cos)", &bounded },
                 { "(rbf gamma=0.7)", &bounded },
                 { "(gaussian)", &bounded },
                 { "(gabor)", &bounded },
                 { "(hard_tanh)", &hinged },
                 { "(hard_sigmoid)", &hinged },
                 { "(relu6)", &hinged },
                 { "(piecewise_linear zero=0.2 -2 -0.5 0.25 1.5 0.1 0.9 -0.3 0.7 1.3)", &kink },
                 { "(elementwise_numerical tanh 25)", &integrated },
                 { "(elementwise_numerical softplus 25)", &integrated } };
    // the same for each layer, and they add up
    static const limits deep = { 1e-4, 0.3, 3e-5, 3 }, smooth = { 1e-5, 1e-5, 1e-10, 3 }, hundred = { 1e-4, 0.03, 3e-6, 3 },
                        normed = { 1e-5, 9e-3, 1e-6, 3 };
    char net[512];
    tap_note("bad numbers, errors of f32 in NNGP and NTK, two equal arrays against one: of images times 2^-20, 1, 2^20");
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++)
        for (int bias = 0; bias < 2; bias++) {
            snprintf(net, sizeof net, "(serial (dense 16 W=1.5%s) %s (dense 16 W=1.2%s))", bias ? " b=0.1" : "", some[k].f,
                     bias ? " b=0.1" : "");
            safe(some[k].f, net, *some[k].l);
        }
    safe("1,000 layers of relu", "(serial (repeat 1000 (serial (dense 16 W=1.4142135623730951) (relu))) (dense 16))", deep);
    safe("1,000 layers of relu with biases", "(serial (repeat 1000 (serial (dense 16 W=1.4 b=0.1) (relu))) (dense 16))", deep);
    safe("1,000 layers of erf", "(serial (repeat 1000 (serial (dense 16 W=0.88 b=0.1) (erf))) (dense 16))", smooth);
    safe("100 convolutions and pooling",
         "(serial (repeat 100 (serial (conv 8 (3) (1) SAME W=1.4 b=0.1) (relu))) (global_avg_pool) (dense 16))", hundred);
    safe("30 convolutions, layer norm",
         "(serial (repeat 30 (serial (conv 8 (3) (1) SAME W=1.4) (layer_norm (1 2) eps=0.01) (relu))) (flatten) (dense 16))", normed);
}

// Images that differ by 2^-6 to 2^-18, where a correlation in f32 knows the angle between two of them to 3e-4 at best: half of
// E (u - v)^2 goes along, and the kernels of f32 are those of f64.
enum { CLOSE = 6 };
static void *close_images(nt_dtype dtype, int64_t each) {
    void *x = pool_new((size_t)(CLOSE * each), sizeof(double));
    random_state = 5;
    for (int64_t i = 0; i < CLOSE; i++)
        for (int64_t k = 0; k < each; k++) {
            double own = uniform(), step = i ? ldexp(1, 3 - 3 * (int)i) / 8 : 0; // multiples of 2^-23 below 1
            put(x, dtype, i * each + k, i ? value(x, dtype, k) + step * floor(own * 4) / 4 : floor(own * 512) / 1024);
        }
    return x;
}

// Images of one colour but for a corner: the covariance of two positions of the same colour is that of one with itself.
static void *even_images(nt_dtype dtype, int64_t each) {
    void *x = pool_new((size_t)(CLOSE * each), sizeof(double));
    random_state = 6;
    for (int64_t k = 0; k < CLOSE * each; k++) put(x, dtype, k, k % each < each / 4 ? uniform() : 0.3125);
    return x;
}

typedef void *close_maker(nt_dtype dtype, int64_t each);
static void close_kernel(const char *net, int rank, const int64_t *size, close_maker *make, nt_dtype dtype, int two, double *nngp,
                         double *ntk) {
    gd_case c;
    nt_kernel_desc d;
    CLEAR(c), CLEAR(d);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *l = net_of(&c, t, dtype, net);
    int64_t each = product(rank, size);
    void *x1 = make(dtype, each), *x2 = make(dtype, each), *k = pool_new(CLOSE * CLOSE, 8), *q = pool_new(CLOSE * CLOSE, 8);
    d.dtype = dtype, d.shape = nt_shape_make(rank, size), d.nngp = k, d.ntk = q;
    int ok = l && nt_kernel(l, x1, CLOSE, two ? x2 : NULL, two ? CLOSE : 0, &d) == NT_OK;
    if (!ok) tap_note("%s: %s", net, l ? nt_error(t) : c.error);
    for (int j = 0; j < CLOSE * CLOSE; j++) nngp[j] = ok ? value(k, dtype, j) : (double)NAN, ntk[j] = ok ? value(q, dtype, j) : (double)NAN;
    pool_free(x1), pool_free(x2), pool_free(k), pool_free(q), nt_tape_close(t), gd_free_all(&c);
}

static void close_net(const char *net, int rank, const int64_t *size, close_maker *make, double limit) {
    static double right[2][CLOSE * CLOSE], k[2][CLOSE * CLOSE];
    double worst[2] = { 0, 0 }; // NNGP, NTK
    close_kernel(net, rank, size, make, NT_F64, 0, right[0], right[1]);
    for (int two = 0; two < 2; two++) {
        close_kernel(net, rank, size, make, NT_F32, two, k[0], k[1]);
        for (int a = 0; a < 2; a++)
            for (int j = 0; j < CLOSE * CLOSE; j++) {
                double e = fabs(k[a][j] / right[a][j] - 1);
                if (!(e <= worst[a])) worst[a] = e;
            }
    }
    tap_ok(worst[0] <= limit && worst[1] <= limit, "%s: %.1e %.1e", net, worst[0], worst[1]);
}

static void close_numbers(void) {
#define LAYER "(dense 16 W=1.5 b=0.1) "
#define BLOCK CONV " (relu) "
    static const char *const vectors[] = {
        "(serial " LAYER "(relu) " LAYER "(relu) " LAYER "(relu) " LAYER ")",
        "(serial " LAYER "(leaky_relu 0.1) " LAYER "(abs) " LAYER "(abrelu -0.5 1.2) " LAYER ")",
        "(serial " LAYER "(sign) " LAYER "(relu) " LAYER "(sign) " LAYER ")",
        "(serial " LAYER "(relu) " LAYER "(rectified_monomial 0) " LAYER ")",
        "(serial " LAYER "(layer_norm (-1) eps=0.01) (relu) " LAYER "(layer_norm (-1)) (relu) " LAYER ")",
        "(serial " LAYER "(fan_out 2) (parallel (identity) (serial (relu) " LAYER ")) (fan_in_sum) (relu) " LAYER ")",
        "(serial " LAYER "(fan_out 2) (parallel (serial " LAYER "(relu)) (serial " LAYER "(abs))) (fan_in_concat -1) " LAYER "(relu) " LAYER
        ")",
    };
    static const char *const pictures[] = {
        "(serial " BLOCK BLOCK BLOCK "(flatten) " LAYER "(relu) " LAYER ")",
        "(serial " BLOCK BLOCK BLOCK "(global_avg_pool) (dense 16))",
        "(serial (flatten) " LAYER "(relu) " LAYER "(relu) " LAYER ")",
        "(serial " BLOCK
        "(conv 8 (2 2) (2 2) SAME W=1.5 b=0.1) (relu) (conv_transpose 8 (3 2) (2 2) SAME W=1.5) (relu) (flatten) (dense 16))",
        "(serial (conv 8 (3 3) (1 1) CIRCULAR W=1.4 b=0.1) (relu) (conv_local 8 (2 2) (1 1) VALID W=1.4 b=0.1) (relu) (flatten) (dense "
        "16))",
        "(serial " BLOCK "(index : 1:4 ::-1) (conv 8 (3 3) (1 1) SAME W=1.4) (abs) " BLOCK "(flatten) (dense 16))",
        "(serial " CONV " (fan_out 2) (parallel (identity) (serial (relu) " CONV ")) (fan_in_sum) (relu) (flatten) (dense 16))",
        "(serial " CONV " (fan_out 2) (parallel (relu) (abs)) (fan_in_concat 1) " BLOCK "(flatten) (dense 16))",
    };
    // Some roundings of 2^-24, each once: 1e-6. Every layer adds its own.
    // Variances of 1e6, images that differ by a part of a thousandth and less: a sine sees variances of some tenths.
    static const char *const waves[] = { "(serial (dense 16 W=1000) (rbf gamma=0.7) " LAYER ")",
                                         "(serial (dense 16 W=1000 b=10) (sin a=1.2 b=0.9 c=0.4) " LAYER ")" };
    static const int64_t vector = 40, picture[3] = { 5, 4, 2 }, channels[3] = { 4, 3, 20 }, even[3] = { 8, 8, 1 };
    for (size_t k = 0; k < sizeof vectors / sizeof vectors[0]; k++) close_net(vectors[k], 1, &vector, close_images, 1e-6);
    for (size_t k = 0; k < sizeof pictures / sizeof pictures[0]; k++) close_net(pictures[k], 3, picture, close_images, 1e-6);
    close_net("(serial " BLOCK BLOCK "(flatten) (dense 16))", 3, even, even_images, 1e-6);
    close_net("(serial " BLOCK BLOCK "(global_avg_pool) (dense 16))", 3, even, even_images, 1e-6);
    for (size_t k = 0; k < sizeof waves / sizeof waves[0]; k++) close_net(waves[k], 1, &vector, close_images, 1e-6);
    close_net(pictures[0], 3, channels, close_images, 1e-6);
    close_net("(serial (repeat 30 (serial (dense 16 W=1.4142135623730951) (relu))) (dense 16))", 1, &vector, close_images, 1e-5);
    close_net("(serial (repeat 1000 (serial (dense 16 W=1.4 b=0.1) (relu))) (dense 16))", 1, &vector, close_images, 1e-4);
}

// Images of very different sizes: half of E (u - v)^2 is that of the larger one, and nothing of the smaller one is left in it.
static void *far_images(nt_dtype dtype, int64_t each) {
    static const double scale[CLOSE] = { 0, 1e-3, 1, 1, 1e3, 1e6 };
    void *x = pool_new((size_t)(CLOSE * each), sizeof(double));
    random_state = 7;
    for (int64_t k = 0; k < CLOSE * each; k++) put(x, dtype, k, (float)(scale[k / each] * uniform()));
    return x;
}

static void far_numbers(void) {
    static const char *const vectors[] = {
        "(serial " LAYER "(relu) " LAYER "(abs) " LAYER "(relu) " LAYER ")",
        "(serial " LAYER "(relu) (dense 16 W=1.5) (sign) " LAYER ")",
        "(serial " LAYER "(layer_norm (-1) eps=0.01) (relu) " LAYER "(layer_norm (-1)) (relu) " LAYER ")",
        "(serial " LAYER "(relu) " LAYER "(layer_norm (-1) eps=0.00001) (abrelu -0.5 1.2) " LAYER ")",
    };
    static const int64_t vector = 40, picture[3] = { 5, 4, 2 };
    for (size_t k = 0; k < sizeof vectors / sizeof vectors[0]; k++) close_net(vectors[k], 1, &vector, far_images, 3e-6);
    close_net("(serial " BLOCK BLOCK "(flatten) " LAYER "(relu) " LAYER ")", 3, picture, far_images, 3e-6);
}

// A layer's bias of NT_PARAM_STANDARD has a derivative where its input is zero. Zero is at right angles to all: the mean of f'(u) is that
// of both slopes, m, and the NTK 1 + m^2.
static void zero_pixels(void) {
    static const double slopes[4][2] = { { 0, 1 }, { 1, -1 }, { 0.5, 1 }, { -0.25, 0.75 } }; // for x > 0 and below
    static const float x[2][2] = { { 0, 0.75f }, { 0, -0.5f } };
    for (int k = 0; k < 4; k++)
        for (int axes = 0; axes < 2; axes++) {
            float ntk[2 * 2 * 2 * 2];
            nt_tape *t = nt_tape_open(NULL);
            nt_dense_desc dense;
            nt_kernel_desc d;
            CLEAR(dense), CLEAR(d);
            dense.W_std = 1, dense.b_std = 0;
            nt_layer *l[3] = { nt_dense_layer(t, 8, &dense), nt_abrelu_layer(t, slopes[k][1], slopes[k][0]), nt_dense_layer(t, 8, &dense) };
            d.shape.rank = 1 + axes, d.shape.size[0] = d.shape.size[1] = axes ? 2 : 1, d.ntk = ntk;
            if (axes) d.shape.size[1] = 1;
            int64_t n = axes ? 2 : 4, columns = axes ? 8 : 4; // two images of two pixels, or four of one
            double m = (slopes[k][0] + slopes[k][1]) / 2, worst = 0;
            int ok = nt_kernel(nt_serial_layer(t, 3, l), x, n, x, n, &d) == NT_OK;
            for (int64_t j = 0; j < 16; j++) {
                int64_t p = axes ? j / 2 % 2 : j / columns % 2, q = j % 2; // pixels
                if (p == 0 || q == 0) worst = fmax(worst, fabs((double)ntk[j] - (1 + m * m)));
            }
            tap_ok(ok && worst < 1e-6, "slopes %g, %g, %d axes: zero pixels in f32 off by %.1e", slopes[k][0], slopes[k][1], axes, worst);
            nt_tape_close(t);
        }
}

// Variances below the least normal number, whose roots have no finite product of inverses.
static void faint_images(void) {
    static const float image[2][4] = { { 1, 0.5f, 0.25f, -1 }, { 0.5f, 0.375f, -0.5f, 2 } };
    int64_t bad = 0;
    for (int e = -45; e <= -15; e++)
        for (int axes = 0; axes < 2; axes++) {
            float x[8], k[2][2 * 2 * 4 * 4];
            nt_kernel_desc d;
            nt_tape *t = nt_tape_open(NULL);
            CLEAR(d);
            for (int j = 0; j < 8; j++) x[j] = (float)(image[j / 4][j % 4] * pow(10, e));
            d.shape.rank = 1 + axes, d.shape.size[0] = 4, d.shape.size[1] = 1, d.nngp = k[0], d.ntk = k[1];
            nt_layer *l[4] = { nt_dense_layer(t, 8, NULL), nt_relu_layer(t), nt_dense_layer(t, 8, NULL), nt_abs_layer(t) };
            bad += nt_kernel(nt_serial_layer(t, 4, l), x, 2, NULL, 0, &d) != NT_OK;
            for (int a = 0; a < 2; a++)
                for (int j = 0; j < (axes ? 64 : 4); j++) bad += !(fabs((double)k[a][j]) <= (a ? 2 : 1e-29));
            nt_tape_close(t);
        }
    tap_ok(!bad, "images of 1e-45 to 1e-15 in f32 have finite kernels (%ld not)", (long)bad);
}

// E tanh'(u)^2 by the trapezoidal rule with steps of 1e-3, which is exact to rounding here; numbers that the header promises.
static void integrated_functions(void) {
    static const double variance[] = { 0.01, 1, 30, 100, 1000 };
    double worst[5];
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *l = nt_tanh_layer(t);
    for (int k = 0; k < 5; k++) {
        double sum = 0, q = variance[k];
        for (int j = -40000; j <= 40000; j++) {
            double u = j * 1e-3, s = 1 / cosh(u);
            sum += s * s * s * s * exp(-u * u / (2 * q)) * 1e-3 / sqrt(2 * 3.14159265358979323846 * q);
        }
        worst[k] = fabs(nt_layer_dual(l, q, q, q).kdot / sum - 1);
    }
    tap_ok(worst[0] < 1e-8 && worst[1] < 1e-8 && worst[2] < 1e-8 && worst[3] < 1e-8 && worst[4] < 2e-4,
           "tanh of variances to 1,000 as stated: %.1e %.1e %.1e %.1e %.1e", worst[0], worst[1], worst[2], worst[3], worst[4]);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad input
// ---------------------------------------------------------------------------------------------------------------------
typedef struct bad {
    nt_tape *t;
    gd_case c;
    nt_layer *net;
    nt_kernel_desc d;
    float x[512], out[4096];
    int32_t edges[64];
} bad;

static void bad_begin(bad *b, const char *net, int rank, int64_t h, int64_t w, int64_t channels) {
    int64_t size[3] = { h, w, channels };
    CLEAR(*b), b->t = nt_tape_open(NULL);
    if (net) b->net = net_of(&b->c, b->t, NT_F32, net);
    b->d.dtype = NT_F32, b->d.shape = nt_shape_make(rank, size + 3 - rank), b->d.nngp = b->out;
    for (int k = 0; k < 512; k++) b->x[k] = (float)uniform();
}

// Two images against one another, or against themselves (n2 < 0): refused, by the plan too unless only the data is wrong.
static void bad_end(bad *b, int64_t n1, int64_t n2, nt_status status, const char *words, const char *what) {
    nt_kernel_info info;
    nt_memory_use before = nt_memory(b->t);
    nt_status plan = nt_kernel_plan(b->net, n1, n2 < 0 ? 0 : n2, &b->d, &info);
    nt_error_clear(b->t);
    nt_status s = nt_kernel(b->net, b->x, n1, n2 < 0 ? NULL : b->x, n2 < 0 ? 0 : n2, &b->d);
    if (!b->net && b->c.error[0]) tap_note("%s", b->c.error);
    if (!strstr(words, "edge") && plan != s) tap_note("the plan says %s, the call %s", nt_status_name(plan), nt_status_name(s)), s = plan;
    int clean = unchanged(before, nt_memory(b->t));
    refused(b->t, s == NT_OK || !clean ? b : NULL, status, words, what);
    nt_tape_close(b->t), gd_free_all(&b->c);
}

#define BAD(net, rank, h, w, c, status, words, what)                                                                                       \
    do {                                                                                                                                   \
        bad_begin(&b, net, rank, h, w, c);                                                                                                 \
        bad_end(&b, 2, -1, status, "nt_kernel|" words, what);                                                                              \
    } while (0)

static void bad_layers(void) {
    static bad b;
    BAD("(serial (dense 8) (relu) (relu) (dense 8))", 1, 1, 1, 3, NT_ERROR_ARGUMENT, "Gaussian|dense", "an activation after an activation");
    BAD("(serial (relu) (dense 8))", 1, 1, 1, 3, NT_ERROR_ARGUMENT, "Gaussian|input|dense", "an activation of the input");
    BAD("(serial (dense 8) (fan_out 2) (parallel (relu) (erf)) (fan_in_sum) (dense 8))", 1, 1, 1, 3, NT_ERROR_ARGUMENT, "independent|dense",
        "a sum of two activations");
    BAD("(serial (dense 8) (relu) (layer_norm))", 1, 1, 1, 3, NT_ERROR_ARGUMENT, "Gaussian", "layer norm of an activation");
    BAD("(serial (fan_out 2) (parallel (dense 8) (dense 8)) (fan_in_prod) (relu) (dense 8))", 1, 1, 1, 3, NT_ERROR_ARGUMENT,
        "Gaussian|product", "an activation of a product");
    BAD("(serial (conv 8 (3 3) (1 1) SAME))", 1, 1, 1, 3, NT_ERROR_SHAPE, "axes", "a convolution of vectors");
    BAD("(serial (conv 8 (3) (1) SAME))", 3, 4, 4, 3, NT_ERROR_SHAPE, "axes", "a convolution of another rank");
    BAD("(serial (conv 8 (5 5) (1 1) VALID))", 3, 4, 6, 3, NT_ERROR_SHAPE, "larger than the image", "a window larger than the image");
    BAD("(serial (conv 8 (3 3) (1 1) SAME) (relu) (avg_pool (5 2) (1 1) VALID))", 3, 4, 4, 3, NT_ERROR_SHAPE, "larger than the image",
        "a pool larger than the image");
    BAD("(serial (fan_out 2) (parallel (conv 8 (3 3) (2 2) SAME) (conv 8 (1 1) (1 1) SAME)) (fan_in_sum))", 3, 4, 4, 3, NT_ERROR_SHAPE,
        "differ in shape", "a sum of branches of two shapes");
    BAD("(serial (fan_out 2) (parallel (conv 8 (3 3) (2 2) SAME) (conv 8 (1 1) (1 1) SAME)) (fan_in_concat -1))", 3, 4, 4, 3,
        NT_ERROR_SHAPE, "differ in shape", "channels of branches of two shapes");
    BAD("(serial (fan_out 2) (parallel (dense 8) (dense 8)) (fan_in_concat 0))", 1, 1, 1, 3, NT_ERROR_ARGUMENT, "channels",
        "examples concatenated");
    BAD("(serial (conv 8 (3 3) (1 1) SAME) (index : 2:2 : :))", 3, 4, 4, 3, NT_ERROR_SHAPE, "no elements", "an index of nothing");
    BAD("(serial (conv 8 (3 3) (1 1) SAME) (image_resize (3)))", 3, 4, 4, 3, NT_ERROR_SHAPE, "axes", "another number of axes to resize");
    BAD("(serial (conv 8 (3 3) (1 1) SAME) (layer_norm (0 -1)))", 3, 4, 4, 3, NT_ERROR_ARGUMENT, "examples",
        "layer norm over the examples");
    BAD("(serial (dense 8) (attention 4 8 8 2 scaling=sqrt mechanism=softmax))", 2, 1, 4, 3, NT_ERROR_ARGUMENT, "identity",
        "square root attention with softmax");
    bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_max_pool_layer(b.t, NT_WINDOW(2, 2));
    bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|MaxPool|no infinite-width rule|nt_kernel_monte_carlo", "a layer without a rule");
    bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_batch_norm_layer(b.t, NULL);
    bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|BatchNorm|no infinite-width rule", "another");
    for (int k = 0; k < 2; k++) {
        bad_begin(&b, NULL, 1, 1, 1, 3);
        nt_layer *a = nt_dense_layer(b.t, 8, NULL), *relu = nt_relu_layer(b.t);
        b.net = k ? NT_SERIAL(b.t, a, relu, nt_dense_layer(b.t, 8, NULL), relu, a) : nt_sum_layer(b.t, NT_LAYERS(a, a));
        bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|Dense|twice|a layer for each place", "a layer that shares its numbers");
    }
}

// Numbers of layers that finite networks refuse or that have no limit.
static void bad_windows(void) {
    static const struct { int stride, dilation, spread, padding; nt_status status; const char *words; } some[] = {
        { -1, 0, 0, 0, NT_ERROR_ARGUMENT, "nt_kernel|Conv|positive strides" }, { 0, -2, 0, 0, NT_ERROR_ARGUMENT, "nt_kernel|Conv|dilations" },
        { 0, 0, 2, 0, NT_ERROR_ARGUMENT, "nt_kernel|.lhs_dilation|nt_conv_transpose_layer" },
        { 0, 0, 0, 99, NT_ERROR_ARGUMENT, "nt_kernel|Conv|nt_padding" }
    };
    static bad b;
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) {
        nt_conv_layer_desc d;
        CLEAR(d), d.conv.stride[0] = some[k].stride, d.conv.dilation[1] = some[k].dilation, d.conv.lhs_dilation[0] = some[k].spread;
        d.conv.padding = (nt_padding)some[k].padding;
        bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_conv_layer(b.t, 8, NT_WINDOW(3, 3), &d);
        bad_end(&b, 2, -1, some[k].status, some[k].words, "a convolution's numbers");
    }
    bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_avg_pool_layer(b.t, NT_WINDOW(2, 0));
    bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|AvgPool|window", "a window of nothing");
    bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_conv_layer(b.t, 8, NT_WINDOW((int64_t)1 << 62, 1), NULL);
    bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|Conv|window", "a window larger than everything");
    bad_begin(&b, NULL, 3, 4, 4, 3), b.net = nt_upsample_layer(b.t, NT_WINDOW(INT64_MAX, INT64_MAX));
    bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|Upsample", "an image larger than everything");
    nt_dense_desc dense;
    CLEAR(dense), dense.kernel_init.kind = NT_INIT_UNIFORM;
    bad_begin(&b, NULL, 1, 1, 1, 3), b.net = nt_dense_layer(b.t, 8, &dense);
    bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|Dense|initializer|.W_std", "an initializer that knows no fan in");
    nt_layer *some_layers[70];
    nt_conv_layer_desc strided;
    CLEAR(strided), strided.conv.stride[0] = INT_MAX; // sizes and strides of all layers together leave every integer
    for (int kind = 0; kind < 3; kind++) {
        bad_begin(&b, NULL, 2, 1, 3, 1);
        nt_layer *id = nt_identity_layer(b.t), *twice = nt_concat_layer(b.t, kind ? 1 : NT_LAST, NT_LAYERS(id, id));
        for (int k = 0; k < 70; k++) some_layers[k] = kind < 2 ? twice : nt_conv_transpose_layer(b.t, 8, NT_WINDOW(3), &strided);
        b.net = nt_serial_layer(b.t, 70, some_layers);
        bad_end(&b, 2, -1, NT_ERROR_SHAPE, kind ? "nt_kernel|positions" : "nt_kernel|nt_concat_layer|channels", "layers that multiply");
    }
    bad_begin(&b, NULL, 2, 1, 1, 1);
    for (int k = 0; k < 70; k++) some_layers[k] = nt_conv_layer(b.t, 8, NT_WINDOW(3), &strided);
    tap_ok(nt_kernel(nt_serial_layer(b.t, 70, some_layers), b.x, 2, NULL, 0, &b.d) == NT_OK, "70 large strides of one position");
    nt_tape_close(b.t), gd_free_all(&b.c);
}

// More pairs than there are, and plans that take no time.
static void large_plans(void) {
    static bad b;
    nt_kernel_info info;
    bad_begin(&b, "(serial (dense 8))", 1, 1, 1, 3);
    tap_ok(nt_kernel_plan(b.net, 1000000000, 0, &b.d, &info) == NT_OK && info.pairs == 500000000500000000, "a plan of 10^18 pairs");
    b.d.row = 3, b.d.rows = 1000, b.d.column = 900, b.d.columns = 500;
    tap_ok(nt_kernel_plan(b.net, 1000000000, 0, &b.d, &info) == NT_OK && info.pairs == 500000 - 103 * 102 / 2, "pairs of a block");
    b.d.row = b.d.rows = b.d.column = b.d.columns = 0;
    bad_end(&b, (int64_t)1 << 40, -1, NT_ERROR_SHAPE, "nt_kernel|pairs|.rows", "pairs that are not to be counted");
    bad_begin(&b, NULL, 2, 1, 4000, 1);
    nt_pool_desc d;
    CLEAR(d), d.stride[0] = 1, b.d.spatial = NT_DIAGONAL;
    b.net = NT_SERIAL(b.t, nt_avg_pool_layer_with(b.t, NT_WINDOW(400), &d), nt_image_resize_layer(b.t, NT_WINDOW(2000), NULL));
    tap_ok(nt_kernel_plan(b.net, 2, 0, &b.d, &info) == NT_OK && info.offsets == 1, "a wide pool, resized: planned in %zu bytes", info.bytes);
    nt_tape_close(b.t), gd_free_all(&b.c);
}

// Shares of the upper triangle: all of it, each pair once, evenly.
static void shares(void) {
    double uneven = 0;
    int good = 1;
    for (int64_t n = 0; n < 70; n++)
        for (int64_t machines = 1; machines < 9; machines++) {
            int64_t all = 0;
            for (int64_t k = 0; k < machines; k++) {
                int64_t row = nt_kernel_share(n, machines, k), end = nt_kernel_share(n, machines, k + 1), pairs = 0;
                for (int64_t i = row; i < end; i++) pairs += n - i;
                good &= row <= end, all += pairs;
                if (n) uneven = fmax(uneven, fabs((double)pairs - (double)(n * (n + 1)) / 2 / (double)machines) / (double)n);
            }
            good &= nt_kernel_share(n, machines, 0) == 0 && nt_kernel_share(n, machines, machines) == n && all == n * (n + 1) / 2;
        }
    tap_ok(good && uneven <= 1, "shares of a symmetric kernel are even up to %.2f of the first row", uneven);
    int64_t large = nt_kernel_share((int64_t)1 << 40, 2, 1);
    tap_ok(fabs((double)large / ldexp(1, 40) - (1 - sqrt(0.5))) < 1e-9 && nt_kernel_share(-3, 2, 1) == 0 && nt_kernel_share(5, 0, 0) == 5 &&
               nt_kernel_share(5, 3, -1) == 0 && nt_kernel_share(5, 3, 99) == 5,
           "of many images, of none, of no machines");
    problem p;
    if (!problem_open(&p, net_named("conv, average"), NT_F64, 0, NULL)) return;
    result whole = result_new(&p), part = result_new(&p);
    good = compute(&p, whole) == NT_OK;
    int64_t n = p.n1, pairs = 0, seen = 0;
    for (int64_t k = 0; k < 3; k++) {
        nt_kernel_info info;
        p.d.row = p.d.column = nt_kernel_share(n, 3, k), p.d.rows = nt_kernel_share(n, 3, k + 1) - p.d.row, p.d.columns = n - p.d.column;
        good &= nt_kernel_plan(p.net, n, 0, &p.d, &info) == NT_OK && compute(&p, part) == NT_OK && same_block(&p, part.nngp, whole.nngp);
        good &= same_block(&p, part.ntk, whole.ntk), pairs += info.pairs, seen += p.d.rows;
    }
    tap_ok(good && seen == n && pairs == n * (n + 1) / 2, "three shares: %lld pairs, the bits of the whole", (long long)pairs);
    result_free(whole), result_free(part), problem_close(&p);
}

static void bad_descriptors(void) {
    static bad b;
    static const char *const net = "(serial (conv 8 (3 3) (1 1) SAME) (relu) (flatten) (dense 8))";
#define BEGIN bad_begin(&b, net, 3, 4, 4, 3)
    static const int64_t shapes[][3] = {
        { 0, 4, 3 }, { -1, 4, 3 }, { 4, 4, 0 }, { INT64_MAX, 2, 2 }, { 500000000, 500000000, 500000000 }, { 1000000000, 4, 3 }
    };
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        bad_begin(&b, net, 3, shapes[k][0], shapes[k][1], shapes[k][2]), bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel", "a bad shape");
    BEGIN, b.d.shape.rank = 0, bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|.shape", "no shape");
    BEGIN, b.d.shape.rank = 5, bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|.shape|3 spatial", "too many axes");
    BEGIN, b.d.shape.rank = -1, bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|.shape", "a negative rank");
    BEGIN, b.d.dtype = NT_F16, bad_end(&b, 2, -1, NT_ERROR_DTYPE, "nt_kernel|.dtype|f32", "f16");
    BEGIN, b.d.dtype = NT_I32, bad_end(&b, 2, -1, NT_ERROR_DTYPE, "nt_kernel|.dtype|f32", "i32");
    BEGIN, b.d.what = 4, bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|.what|NT_NTK", "a kernel that is not known");
    BEGIN, b.d.spatial = (nt_kernel_spatial)2, bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|.spatial|NT_DIAGONAL", "no such positions");
    BEGIN, bad_end(&b, -1, -1, NT_ERROR_SHAPE, "nt_kernel|images", "minus one image");
    BEGIN, bad_end(&b, INT64_MAX / 8, -1, NT_ERROR_SHAPE, "nt_kernel|images", "more images than there can be");
    static const int64_t cuts[][4] = { { 2, 1, 0, 0 },         { 0, 3, 0, 0 },         { -1, 1, 0, 0 },        { 0, -1, 0, 0 },
                                       { 0, 0, 2, 1 },         { 0, 0, 0, 3 },         { 0, 0, -1, 1 },        { 0, 0, 0, -1 },
                                       { INT64_MAX, 1, 0, 0 }, { 1, INT64_MAX, 0, 0 }, { 0, 0, INT64_MIN, 1 }, { 3, 0, 0, 0 },
                                       { 0, 0, 0, INT64_MIN } };
    for (size_t k = 0; k < sizeof cuts / sizeof cuts[0]; k++) {
        BEGIN, b.d.row = cuts[k][0], b.d.rows = cuts[k][1], b.d.column = cuts[k][2], b.d.columns = cuts[k][3];
        bad_end(&b, 2, -1, NT_ERROR_SHAPE, "nt_kernel|.rows|.columns", "a block that leaves the matrix");
    }
    BEGIN, b.d.budget = 5, bad_end(&b, 2, -1, NT_ERROR_BUDGET, "nt_kernel|bytes|would do", "a small budget");
    // NULL
    BEGIN;
    tap_ok(nt_kernel(NULL, b.x, 2, NULL, 0, &b.d) == NT_ERROR_ARGUMENT && nt_kernel_plan(NULL, 2, 0, &b.d, NULL) == NT_ERROR_ARGUMENT,
           "no net");
    refused(b.t, nt_kernel(b.net, b.x, 2, NULL, 0, NULL) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|descriptor",
            "no descriptor");
    refused(b.t, nt_kernel(b.net, NULL, 2, NULL, 0, &b.d) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|x1 is NULL",
            "x1 NULL");
    refused(b.t, nt_kernel(b.net, b.x, 2, NULL, 2, &b.d) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|x2 is NULL",
            "x2 NULL, but of two images");
    refused(b.t, nt_kernel_plan(b.net, 2, 0, &b.d, NULL) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|room", "no info");
    b.out[0] = 3;
    tap_ok(nt_kernel(b.net, NULL, 0, NULL, 0, &b.d) == NT_OK && nt_kernel(b.net, b.x, 2, b.x, 0, &b.d) == NT_OK && b.out[0] == 3,
           "no images: nothing is written");
    b.d.what = NT_NTK;
    refused(b.t, nt_kernel(b.net, b.x, 2, NULL, 0, &b.d) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|.what",
            "an array for the other kernel");
    b.d.what = 0, b.d.nngp = NULL;
    refused(b.t, nt_kernel(b.net, b.x, 2, NULL, 0, &b.d) == NT_ERROR_ARGUMENT ? NULL : b.t, NT_ERROR_ARGUMENT, "nt_kernel|nothing",
            "nothing asked for");
    nt_tape_close(b.t), gd_free_all(&b.c);
}

static void bad_graphs(void) {
    static bad b;
    static const char *const net = "(serial (dense 8) (relu) (aggregate implementation=sparse) (dense 8))";
    static const int32_t wrong[] = { 4, 1000000, INT32_MAX };
    for (int k = 0; k < 3; k++) {
        bad_begin(&b, net, 2, 1, 4, 3), b.d.pattern1 = b.edges, b.d.edges = 5, b.edges[13] = wrong[k];
        bad_end(&b, 2, -1, NT_ERROR_DATA, "nt_kernel|edge|position", "an edge to nowhere");
    }
    bad_begin(&b, net, 2, 1, 4, 3), b.d.pattern1 = b.d.pattern2 = b.edges, b.d.edges = -1;
    bad_end(&b, 2, 2, NT_ERROR_ARGUMENT, "nt_kernel|.edges", "a negative number of edges");
    bad_begin(&b, net, 2, 1, 4, 3), b.d.pattern1 = b.edges;
    bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|.edges", "edges, but no number of them");
    bad_begin(&b, "(serial (dense 8) (relu) (dense 8))", 2, 1, 4, 3), b.d.pattern1 = b.d.pattern2 = b.x;
    refused(b.t, nt_kernel(b.net, b.x, 2, b.x, 2, &b.d) == NT_OK ? &b : NULL, NT_ERROR_ARGUMENT, "nt_kernel|.pattern1|nt_aggregate_layer",
            "edges that no layer takes"); // the plan sees no patterns
    nt_tape_close(b.t), gd_free_all(&b.c);
    bad_begin(&b, "(serial (dense 8) (relu) (aggregate) (dense 8))", 2, 1, 4, 3), b.d.pattern1 = b.x, b.d.edges = 5;
    bad_end(&b, 2, -1, NT_ERROR_ARGUMENT, "nt_kernel|.edges", "a number of edges for matrices");
    bad_begin(&b, net, 2, 1, 4, 3), b.d.pattern1 = b.edges, b.d.edges = 5, b.edges[13] = -7;
    tap_ok(nt_kernel(b.net, b.x, 2, NULL, 0, &b.d) == NT_OK, "negative numbers are no edges");
    nt_tape_close(b.t), gd_free_all(&b.c);
    for (int k = 0; k < 3; k++) {
        bad_begin(&b, "(serial (dense 8) (relu) (aggregate) (dense 8))", 2, 1, 4, 3);
        if (k == 0) b.d.pattern1 = b.x;
        if (k > 0) b.d.pattern2 = b.x;
        nt_status s = nt_kernel(b.net, b.x, 2, k < 2 ? b.x : NULL, k < 2 ? 2 : 0, &b.d);
        refused(b.t, s == NT_OK ? &b : NULL, NT_ERROR_ARGUMENT, k == 0 ? "nt_kernel|.pattern2 is NULL|x2 need" : k == 1 ? "nt_kernel|.pattern1 is NULL|x1 need" : "nt_kernel|.pattern2|serves both",
                "edges of one side alone");
        if (k < 2) nt_tape_close(b.t), gd_free_all(&b.c);
    }
    b.d.pattern1 = b.d.pattern2 = b.x;
    tap_ok(nt_kernel(b.net, b.x, 2, NULL, 0, &b.d) == NT_OK, "the edges of x1 for both sides of x1 against itself");
    nt_tape_close(b.t), gd_free_all(&b.c);
}

// What is not a number stays so in its row and column, and nowhere else.
static void not_a_number(void) {
    static bad b;
    static const char *const rules[] = { "(relu)", "(erf)", "(gelu)", "(abs)", "(elementwise_numerical tanh 25)",
                                         "(elementwise_numerical softplus 25)" };
    for (size_t k = 0; k < sizeof rules / sizeof rules[0]; k++) {
        char net[96];
        snprintf(net, sizeof net, "(serial (dense 8) %s (dense 8))", rules[k]);
        bad_begin(&b, net, 1, 0, 0, 5), b.x[7] = NAN;
        nt_status s = nt_kernel(b.net, b.x, 3, NULL, 0, &b.d);
        int right = s == NT_OK;
        for (int i = 0; i < 9; i++) right &= isnan(b.out[i]) == (i / 3 == 1 || i % 3 == 1);
        tap_ok(right, "a NaN in an image, %s", rules[k]);
        nt_tape_close(b.t), gd_free_all(&b.c);
    }
}

// Images so large that no machine has the memory: an error at once, or a plan of many bytes.
static void huge_images(void) {
    static bad b;
    static const char *const some[] = { "(serial (conv 8 (3 3) (1 1) SAME) (relu) (flatten) (dense 8))",
                                        "(serial (conv 8 (3 3) (1 1) SAME) (relu) (global_avg_pool))",
                                        "(serial (conv 8 (3 3) (1 1) SAME) (relu) (avg_pool (2 2) (2 2) VALID) (conv 8 (3 3) (1 1) SAME))",
                                        "(serial (conv 8 (3 3) (1 1) SAME) (relu) (conv 8 (3 3) (1 1) SAME))",
                                        "(serial (dense 8) (attention 4 8 8 2))",
                                        "(serial (conv 8 (3 3) (1 1) CIRCULAR) (relu) (flatten))" };
    static const int64_t sizes[] = { 1000, 4097, 500000, 500000000 };
    int ok = 1;
    for (size_t k = 0; k < sizeof some / sizeof some[0]; k++)
        for (int j = 0; j < 4; j++) {
            nt_kernel_info info;
            bad_begin(&b, some[k], 3, sizes[j], sizes[j], 3), b.d.budget = 1000000;
            nt_status s = nt_kernel_plan(b.net, 2, 0, &b.d, &info);
            if (s == NT_OK || s == NT_ERROR_MEMORY || !nt_error(b.t))
                ok = 0, tap_note("%s at %lld: %s", some[k], (long long)sizes[j], nt_status_name(s));
            nt_tape_close(b.t), gd_free_all(&b.c);
        }
    tap_ok(ok, "images that are too large are refused");
}

// ---------------------------------------------------------------------------------------------------------------------
// Where neural_tangents is known to be wrong: a plain recursion on dense matrices of positions, of one axis or of rows and columns
// ---------------------------------------------------------------------------------------------------------------------
enum { DENSE = 64 };
typedef struct dense {
    int n;
    double k[3][DENSE][DENSE];
} dense; // (x1, x1), (x1, x2), (x2, x2)

static void dense_linear(dense *d, int out, double m[DENSE][DENSE], double scale, double shift) { // m k m'
    static double half[DENSE][DENSE];
    for (int c = 0; c < 3; c++) {
        for (int p = 0; p < out; p++)
            for (int q = 0; q < d->n; q++) {
                half[p][q] = 0;
                for (int r = 0; r < d->n; r++) half[p][q] += m[p][r] * d->k[c][r][q];
            }
        for (int p = 0; p < out; p++)
            for (int q = 0; q < out; q++) {
                double sum = 0;
                for (int r = 0; r < d->n; r++) sum += half[p][r] * m[q][r];
                d->k[c][p][q] = scale * sum + shift;
            }
    }
    d->n = out;
}

// 3 by 3 (or 3) windows, zeros around: the sum over taps of shifts, each with weights of its own.
static void dense_conv(dense *d, int height, int width, double W, double b) {
    static double sum[DENSE][DENSE];
    double taps = height > 1 ? 9 : 3;
    for (int c = 0; c < 3; c++) {
        memset(sum, 0, sizeof sum);
        for (int p = 0; p < d->n; p++)
            for (int q = 0; q < d->n; q++)
                for (int u = height > 1 ? -1 : 0; u <= (height > 1); u++)
                    for (int v = -1; v <= 1; v++) {
                        int py = p / width + u, px = p % width + v, qy = q / width + u, qx = q % width + v;
                        if (py < 0 || px < 0 || qy < 0 || qx < 0 || py >= height || qy >= height || px >= width || qx >= width) continue;
                        sum[p][q] += d->k[c][py * width + px][qy * width + qx];
                    }
        for (int p = 0; p < d->n; p++)
            for (int q = 0; q < d->n; q++) d->k[c][p][q] = W * W * sum[p][q] / taps + b * b;
    }
}

static double of_relu(double q1, double q2, double k) {
    double angle = acos(fmax(-1, fmin(1, k / sqrt(q1 * q2))));
    return sqrt(q1 * q2) * (sin(angle) + (3.14159265358979323846 - angle) * cos(angle)) / 6.28318530717958647693;
}
static double of_sign(double q1, double q2, double k) { return 2 / 3.14159265358979323846 * asin(fmax(-1, fmin(1, k / sqrt(q1 * q2)))); }
static void dense_map(dense *d, double (*f)(double, double, double)) {
    static dense old;
    old = *d;
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < d->n; p++)
            for (int q = 0; q < d->n; q++) d->k[c][p][q] = f(old.k[c == 2 ? 2 : 0][p][p], old.k[c == 0 ? 0 : 2][q][q], old.k[c][p][q]);
}

static void dense_images(dense *d, const double *x1, const double *x2, int positions, int channels) {
    const double *x[2] = { x1, x2 };
    CLEAR(*d), d->n = positions;
    for (int c = 0; c < 3; c++)
        for (int p = 0; p < positions; p++)
            for (int q = 0; q < positions; q++)
                for (int k = 0; k < channels; k++) d->k[c][p][q] += x[c == 2][p * channels + k] * x[c > 0][q * channels + k] / channels;
}

// The bilinear map of one axis (pixels at half-integers, none beyond the edge), or for fewer pixels the triangle that covers them.
static double bilinear(int in, int out, int p, int q) {
    double width = in > out ? (double)in / out : 1, at = (p + 0.5) * in / out - 0.5, all = 0, mine = 0;
    for (int r = 0; r < in; r++) {
        double w = 1 - fabs(at - r) / width;
        if (w > 0) all += w, mine = r == q ? w : mine;
    }
    return mine / all;
}

static void against_dense(const char *name, const char *net, int height, int width, const dense *want, nt_kernel_spatial spatial,
                          const double *x, int rank) {
    static double got[DENSE * DENSE];
    gd_case c;
    nt_kernel_desc d;
    int64_t size[3] = { height, width, 2 };
    double worst = 0, big = 0;
    CLEAR(c), CLEAR(d);
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *l = net_of(&c, t, NT_F64, net);
    d.dtype = NT_F64, d.shape = nt_shape_make(rank, size + 3 - rank), d.nngp = got, d.spatial = spatial;
    int ok = l && nt_kernel(l, x, 1, x + height * width * 2, 1, &d) == NT_OK;
    for (int p = 0; p < want->n; p++)
        for (int q = 0; q < want->n; q++) {
            worst = fmax(worst, fabs(got[p * want->n + q] - want->k[1][p][q])), big = fmax(big, fabs(want->k[1][p][q]));
        }
    tap_ok(ok && worst <= 1e-12 * big, "%s: off by %.1e of the largest %s", name, worst / big, ok ? "" : l ? nt_error(t) : c.error);
    nt_tape_close(t), gd_free_all(&c);
}

static void known_mistakes(void) {
    static dense d;
    static double m[DENSE][DENSE], x[2 * DENSE];
    random_state = 5;
    for (int k = 0; k < 2 * DENSE; k++) x[k] = uniform();
    dense_images(&d, x, x + 16, 8, 2), dense_conv(&d, 1, 8, 1.3, 0.1), dense_map(&d, of_sign); // signs, pooled, then another nonlinearity
    memset(m, 0, sizeof m);
    for (int p = 0; p < 4; p++) m[p][2 * p] = m[p][2 * p + 1] = 0.5;
    dense_linear(&d, 4, m, 1, 0), dense_conv(&d, 1, 4, 1.2, 0), dense_map(&d, of_relu);
    against_dense("sign, pooled, relu",
                  "(serial (conv 8 (3) (1) SAME W=1.3 b=0.1) (sign) (avg_pool (2) (2) VALID) (conv 8 (3) (1) SAME W=1.2) (relu))", 1, 8, &d,
                  NT_FULL, x, 2);
    static const int sizes[2][2] = { { 5, 6 }, { 3, 2 } };
    for (int k = 0; k < 2; k++) { // height and width differ after one convolution
        int height = sizes[k][0], width = sizes[k][1];
        char net[256];
        dense_images(&d, x, x + 24, 12, 2), dense_conv(&d, 4, 3, 1.3, 0.1), dense_map(&d, of_relu), memset(m, 0, sizeof m);
        for (int p = 0; p < height * width; p++)
            for (int q = 0; q < 12; q++) m[p][q] = bilinear(4, height, p / width, q / 3) * bilinear(3, width, p % width, q % 3);
        dense_linear(&d, height * width, m, 1.21, 0);
        snprintf(net, sizeof net, "(serial (conv 8 (3 3) (1 1) SAME W=1.3 b=0.1) (relu) (image_resize (%d %d)) (dense 16 W=1.1))", height,
                 width);
        against_dense("resized after one convolution", net, 4, 3, &d, NT_FULL, x, 3);
    }
    // E (max(u, 0)^n)^2 = q^n (2n - 1)!! / 2, and of its derivative n^2 q^(n-1) (2n - 3)!! / 2
    static const double odd[] = { 1, 1, 3, 15, 105, 945 }; // (2n - 1)!!
    nt_tape *t = nt_tape_open(NULL);
    double worst = 0;
    for (int n = 1; n <= 5; n++)
        for (int k = 0; k < 5; k++) {
            double q = ldexp(0.7, 4 * k - 8), want = pow(q, n) * odd[n] / 2, slope = n * n * pow(q, n - 1) * (n > 1 ? odd[n - 1] : 1) / 2;
            nt_dual got = nt_layer_dual(nt_rectified_monomial_layer(t, n), q, q, q);
            worst = fmax(worst, fmax(fabs(got.k / want - 1), fabs(got.kdot / slope - 1)));
        }
    tap_ok(worst < 1e-13, "rectified monomials at correlation 1: off by %.1e", worst);
    // At zero variance a polynomial is its constant, and its slope the linear coefficient.
    static const double c[] = { 1.5, -0.75, 2, 0.5 };
    nt_layer *l = nt_polynomial_layer(t, 4, c);
    nt_dual none = nt_layer_dual(l, 0, 0, 0), one = nt_layer_dual(l, 0, 2, 0); // of v ~ N(0, 2): E f = c0 + 2 c2, E f' = c1 + 6 c3
    tap_ok(fabs(none.k - 2.25) < 1e-14 && fabs(none.kdot - 0.5625) < 1e-14 && fabs(one.k - 1.5 * 5.5) < 1e-13 &&
               fabs(one.kdot + 0.75 * 2.25) < 1e-13,
           "polynomials at zero variance: %g %g, %g %g", none.k, none.kdot, one.k, one.kdot);
    nt_tape_close(t);
}

// A sink that records on the tape, computes a kernel of its own, forgets nodes; then the tape goes on.
typedef struct recorder { bad *b; double inner[2]; } recorder;
static int record_in_sink(void *user, const nt_kernel_unit *u) {
    recorder *r = (recorder *)user;
    nt_kernel_desc d = r->b->d;
    nt_tensor *x = nt_full(r->b->t, NT_F32, NT_SHAPE(30000), 1);
    (void)u, d.sink.take = NULL, d.nngp = r->inner, d.dtype = NT_F64;
    static const double images[96] = { 1, 2, 3 };
    nt_kernel(r->b->net, images, 1, NULL, 0, &d), nt_forget_nodes(r->b->t);
    for (int k = 0; k < 20; k++) x = nt_full(r->b->t, NT_F32, NT_SHAPE(30000), k);
    return !x;
}
static void recording_sinks(void) {
    static bad b;
    recorder r;
    float whole[9];
    bad_begin(&b, "(serial (conv 8 (3 3) (1 1) SAME) (relu) (flatten) (dense 8))", 3, 4, 4, 3), r.b = &b;
    int ok = nt_kernel(b.net, b.x, 3, NULL, 0, &b.d) == NT_OK;
    memcpy(whole, b.out, sizeof whole), memset(b.out, 0, sizeof b.out), b.d.sink.take = record_in_sink, b.d.sink.user = &r;
    ok &= nt_kernel(b.net, b.x, 3, NULL, 0, &b.d) == NT_OK && !memcmp(whole, b.out, sizeof whole) && r.inner[0] > 0;
    ok &= nt_size(nt_add(nt_full(b.t, NT_F32, NT_SHAPE(7), 1), nt_scalar(b.t, NT_F32, 1))) == 7 && !nt_error(b.t);
    tap_ok(ok, "a sink that records, computes and forgets: %s", nt_error(b.t) ? nt_error(b.t) : "");
    nt_tape_close(b.t), gd_free_all(&b.c);
}

// What a layer does is nothing of the layers before it.
static void layers_forget(void) {
    static bad b;
    static const double x[] = { 0, 0, 0.7, -0.2 };
    double k[8], t[4];
    bad_begin(&b, "(serial (conv 8 (3) (1) SAME) (layer_norm (1 2)) (relu) (conv 8 (3) (1) SAME) (layer_norm (2)))", 2, 1, 4, 1);
    b.d.dtype = NT_F64, b.d.spatial = NT_DIAGONAL, b.d.nngp = k;
    int ok = nt_kernel(b.net, x, 1, NULL, 0, &b.d) == NT_OK;
    for (int p = 0; p < 4; p++) ok &= fabs(k[p] - 1) < 1e-4; // but for eps
    tap_ok(ok, "layer norm of channels after one of positions: variances %g %g %g %g", k[0], k[1], k[2], k[3]);
    nt_tape_close(b.t), gd_free_all(&b.c), bad_begin(&b, NULL, 2, 1, 4, 1);
    nt_dense_desc bias;
    CLEAR(bias), bias.W_std = 1, bias.b_std = 1; // hidden positions stay 0
    b.net = NT_SERIAL(b.t, nt_avg_pool_layer(b.t, NT_WINDOW(2)), nt_upsample_layer(b.t, NT_WINDOW(2)), nt_dense_layer(b.t, 8, &bias));
    b.d.dtype = NT_F64, b.d.spatial = NT_DIAGONAL, b.d.nngp = k, b.d.masked = 1;
    tap_ok(nt_kernel(b.net, x, 1, NULL, 0, &b.d) == NT_OK && k[0] == 0 && k[1] == 0 && fabs(k[2] - 1.0625) < 1e-15 && k[2] == k[3],
           "upsampled after a pool, masked: %g %g %g %g", k[0], k[1], k[2], k[3]);
    b.d.masked = 0, b.d.train = 1, b.d.ntk = t;
    b.net = NT_SERIAL(b.t, nt_dense_layer(b.t, 8, &bias), nt_dropout_layer(b.t, 1), nt_flatten_layer(b.t), nt_dense_layer(b.t, 8, &bias));
    tap_ok(nt_kernel(b.net, x, 1, NULL, 0, &b.d) == NT_OK && k[0] == 1 && t[0] == 1, "all dropped: %g %g, the last bias alone", k[0], t[0]);
    nt_tape_close(b.t), gd_free_all(&b.c);
}

int main(void) {
    int workers_only = getenv("ONLY_THREADS") != NULL; // under the thread sanitizer
    for (int k = 0; k < NETS; k++)
        for (int v = 0; v < (workers_only ? 1 : 4); v++) same_bits(&nets[k], v % 2 ? NT_F64 : NT_F32, v / 2);
    if (workers_only) { pool_end(); return tap_end(); }
    instruction_sets();
    for (int workers = 1; workers < 4; workers += 2) {
        stops(net_named("70 images"), workers), stops(net_named("U-Net"), workers), stops(net_named("circular"), workers);
        stops(net_named("conv, average"), workers), stops(net_named("attention with positions"), workers);
        stops_within(net_named("U-Net"), workers);
    }
    memory();
    numbers();
    close_numbers();
    far_numbers();
    zero_pixels();
    faint_images();
    integrated_functions();
    shares();
    bad_layers(), bad_windows(), large_plans(), bad_descriptors(), bad_graphs(), not_a_number(), huge_images();
    known_mistakes(), recording_sinks(), layers_forget();
    pool_end();
    return tap_end();
}
