// Kernels of infinitely wide networks: the same bits however they are computed, bytes as planned, what a sink gets, numbers that stay
// numbers, messages, and every layer's rule against its own finite network. `build/test_kernels all` holds wide ones against it, too.
#define _POSIX_C_SOURCE 200809L
#include "nttrain.h"
#include "crew.h"
#include "pool.h"
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
#define UNET                                                                                                                                  \
    "(serial " CONV " (relu) (fan_out 2) (parallel (identity) (serial (conv 8 (2 2) (2 2) SAME W=1.5 b=0.1) (relu) " CONV                     \
    " (relu) (conv_transpose 8 (2 2) (2 2) SAME W=1.5 b=0.1) (relu))) (fan_in_concat -1) " CONV " (relu) (conv 8 (1 1) (1 1) SAME W=1.0))"
#define ATTENTION "(attention 4 8 8 2 W_key=0.9 W_query=0.7 W_out=0.8 W_value=1.2 b=0.5)"

static const net_row nets[] = {
    { "one image", FC, 1, 0, 0, { 7 }, 1, 1, NT_FULL },
    { "31 images", FC, 1, 0, 0, { 7 }, 31, 33, NT_FULL },
    { "33 images", FC, 1, 0, 0, { 40 }, 33, 32, NT_FULL },
    { "70 images", FC, 1, 0, 0, { 3 }, 70, 45, NT_FULL },
    { "dropout", "(serial (dense 16 W=1.5 b=0.1) (relu) (dropout 0.8) (dense 16 W=1.2 b=0.1) (gelu) (dense 16))", 1, 0, 0, { 5 }, 35, 34, NT_FULL },
    { "branches", "(serial (fan_out 2) (parallel (serial (dense 16 W=1.5 b=0.1) (relu) (dense 8)) (serial (dense 8 W=0.9) (sin) (dense 8 b=0.3)))"
      " (fan_in_prod) (dense 16 W=1.1 b=0.1))", 1, 0, 0, { 5 }, 34, 3, NT_FULL },
    { "conv, flatten", "(serial " CONV " (relu) " CONV " (relu) (flatten) " HEAD ")", 3, 0, 0, { 5, 4, 2 }, 8, 5, NT_FULL },
    { "conv, many channels", "(serial " CONV " (relu) " CONV " (erf) (flatten) " HEAD ")", 3, 0, 0, { 4, 3, 20 }, 7, 5, NT_FULL },
    { "conv, average", "(serial " CONV " (relu) " CONV " (relu) (global_avg_pool) " HEAD ")", 3, 0, 0, { 5, 4, 2 }, 8, 5, NT_FULL },
    { "pools", "(serial " CONV " (relu) " CONV " (relu) (avg_pool (2 2) (2 2) VALID) " CONV " (relu) (avg_pool (2 2) (2 2) SAME) " CONV
      " (relu) (flatten) " HEAD ")", 3, 0, 0, { 8, 7, 2 }, 6, 3, NT_FULL },
    { "U-Net", UNET, 3, 0, 0, { 6, 4, 2 }, 6, 3, NT_FULL },
    { "U-Net, diagonal", UNET, 3, 0, 0, { 8, 6, 3 }, 6, 3, NT_DIAGONAL },
    { "circular", "(serial (conv 8 (4 3) (2 1) CIRCULAR W=1.4 b=0.1) (relu) (avg_pool (3 2) (1 2) CIRCULAR) (conv 8 (3 3) (1 1) CIRCULAR) (relu))",
      3, 0, 0, { 6, 5, 2 }, 6, 3, NT_FULL },
    { "circular, transposed, average", "(serial (conv 8 (3) (1) CIRCULAR W=1.4) (relu) (conv_transpose 8 (3) (2) CIRCULAR b=0.2) (relu)"
      " (global_avg_pool) (dense 8))", 2, 0, 0, { 7, 2 }, 7, 4, NT_FULL },
    { "circular in three axes, diagonal", "(serial (conv 8 (2 3 2) (1 1 2) CIRCULAR W=1.4) (relu) (conv_local 8 (2 2 2) (1 1 1) SAME))",
      4, 0, 0, { 3, 3, 4, 2 }, 6, 3, NT_DIAGONAL },
    { "residual", "(serial " CONV " (fan_out 2) (parallel (serial (relu) (conv 8 (3 3) (2 2) SAME W=1.1) (relu) " CONV
      ") (serial (relu) (conv 8 (1 1) (2 2) SAME))) (fan_in_sum) (layer_norm (1 -1)) (relu))", 3, 0, 0, { 5, 4, 2 }, 6, 3, NT_FULL },
    { "attention", "(serial (dense 16 W=1.1 b=0.2) " ATTENTION " (relu) (global_avg_pool) (dense 16))", 2, 0, 0, { 5, 3 }, 6, 4, NT_FULL },
    { "attention with positions", "(serial (conv 8 (3 3) (1 1) SAME W=1.2 b=0.1) (relu) (attention 4 8 8 2 scaling=sqrt mechanism=identity pos=concat"
      " n_pos=2 decay=exp alpha=0.5 val_pos=1) (relu) " CONV ")", 3, 0, 0, { 3, 2, 2 }, 6, 3, NT_FULL },
    { "graphs", "(serial (dense 16 W=1.3 b=0.1) (relu) (aggregate) (dense 16 W=1.1 b=0.1) (relu) (aggregate) (global_avg_pool) (dense 16))",
      2, 0, 1, { 5, 3 }, 6, 4, NT_FULL },
    { "sparse graphs", "(serial (dense 16 W=1.3 b=0.1) (relu) (aggregate implementation=sparse) (dense 16 W=1.1 b=0.1) (relu))",
      2, 0, 2, { 5, 3 }, 6, 4, NT_FULL },
    { "masks", "(serial (conv 8 (3) (1) SAME W=1.3 b=0.1) (relu) (conv 8 (3) (1) SAME W=1.1 b=0.1) (erf) (global_avg_pool) (dense 16))",
      2, 1, 0, { 6, 2 }, 7, 4, NT_FULL },
    { "masks, full", "(serial (conv 8 (2 3) (1 2) SAME W=1.3 b=0.1) (relu) (avg_pool (2 2) (1 1) SAME) (dense 16 W=1.1) (relu))",
      3, 1, 0, { 4, 3, 2 }, 6, 3, NT_FULL },
    { "masked attention", "(serial (dense 16 W=1.1 b=0.2) " ATTENTION " (relu) (flatten) (dense 16))", 2, 1, 0, { 5, 3 }, 6, 3, NT_FULL },
    { "index", "(serial " CONV " (relu) (index 1:6 0:3 ::-1 :) " CONV " (relu))", 3, 0, 0, { 4, 4, 2 }, 8, 7, NT_FULL },
    { "resized", "(serial " CONV " (relu) (image_resize (3 5)) " CONV " (relu) (global_sum_pool) (dense 16))", 3, 0, 0, { 4, 3, 2 }, 7, 3, NT_FULL },
};
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
    if (dtype == NT_F64) ((double *)data)[k] = v;
    else ((float *)data)[k] = (float)v;
}
static double value(const void *data, nt_dtype dtype, int64_t k) { return dtype == NT_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k]; }

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
            if (masked && k / channels == i % (each / channels)) v = -9;
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
} problem;

static nt_layer *net_of(gd_case *c, nt_tape *t, nt_dtype dtype, const char *text) {
    wide_nets w = { c, t, dtype };
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
    random_state = 7;
    for (int k = 0; k < 1 + two; k++) {
        p->x[k] = images(k ? r->n2 : r->n1, r->rank, r->size, dtype, r->masked);
        if (r->pattern) p->patterns[k] = pattern(r, k ? r->n2 : r->n1, dtype, 6);
    }
    nt_kernel_desc *d = &p->d;
    d->dtype = dtype, d->shape = nt_shape_make(r->rank, r->size), d->train = 1, d->spatial = r->spatial;
    d->masked = r->masked, d->mask = -9, d->pattern1 = p->patterns[0], d->pattern2 = p->patterns[1], d->edges = 6;
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

typedef struct result { char *nngp, *ntk; } result;
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
        if (memcmp(block + bytes_of(p, i * p->d.columns), whole + bytes_of(p, (p->d.row + i) * p->columns + p->d.column), bytes_of(p, p->d.columns))) return 0;
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
    uint8_t *count;           // of each number of the block that is asked for
    int64_t row, column, rows, columns, units, stop_at, wrong;
    int64_t pair[2], last[4]; // first pair of the block of pairs, and the offset before
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
    const nt_shape *s = &k->p->d.shape;
    int64_t positions = k->p->row->spatial == NT_FULL ? (int64_t)(sqrt((double)k->p->each) + 0.5) : k->p->each, n = 1, full[3] = { 1, 1, 1 };
    nt_kernel_info info;
    (void)s;
    if (++k->units == k->stop_at) return 1;
    if (k->stop_at && k->units > k->stop_at) k->wrong++;
    if (nt_kernel_plan(k->p->net, k->p->n1, k->p->n2, &k->p->d, &info) != NT_OK) k->wrong++; // planning from inside is allowed
    for (int a = 0; a < info.output.rank; a++) full[a] = info.output.size[a];
    k->wrong += u->offset.rank != info.output.rank || u->start.rank != info.output.rank || u->size.rank != info.output.rank || u->pairs > u->lanes;
    // in the order of blocks of pairs, then offsets
    int fresh = k->units == 1 || u->i[0] != k->pair[0] || u->j[0] != k->pair[1];
    if (fresh && k->units > 1) k->wrong += k->p->x[1] ? u->i[0] < k->pair[0] && u->j[0] <= k->pair[1] : 0;
    if (k->units == 1) k->last[3] = 0;
    k->pair[0] = u->i[0], k->pair[1] = u->j[0];
    for (int a = 0; a < u->size.rank; a++) n *= u->size.size[a];
    for (int64_t p = 0; p < n; p++) {
        int64_t at[3] = { 0, 0, 0 }, rest = p, one = 0, two = 0;
        for (int a = u->size.rank - 1; a >= 0; a--) at[a] = u->start.size[a] + rest % u->size.size[a], rest /= u->size.size[a];
        for (int a = 0; a < u->size.rank; a++) {
            int64_t q = at[a] + u->offset.size[a];
            if (at[a] < 0 || q < 0 || at[a] >= full[a] || q >= full[a]) { k->wrong++; return 0; }
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
                    int64_t one = (i * p->columns + j) * p->each + a * other + b, two = (j * p->columns + i) * p->each + (other > 1 ? b * other + a : a);
                    if (memcmp(k + (size_t)one * unit, k + (size_t)two * unit, unit)) return 0;
                }
    return 1;
}

static int blocks(problem *p, result whole, result part) {
    int64_t n = p->rows, m = p->columns;
    int64_t cut[8][4] = { { 0, 1, 0, m }, { 0, n, m - 1, 1 }, { n / 2, n - n / 2, 0, m }, { n - 1, 1, 0, 1 }, { 0, 1, m - 1, 1 },
                          { n / 3, (n + 1) / 2, m / 3, (m + 1) / 2 }, { n / 2, (n + 1) / 2, 0, (m + 1) / 2 }, { 0, (n + 1) / 2, m / 4, m - m / 4 } };
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
        if (!one || !two) tap_note("rows %d + %d, columns %d + %d: arrays %d, sink %d", (int)cut[k][0], (int)cut[k][1], (int)cut[k][2], (int)cut[k][3], one, two);
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
    if (compute(&p, whole) != NT_OK) { tap_ok(0, "%s: %s", r->name, nt_error(p.t)), problem_close(&p); return; }
    if (!two) good[0] = symmetric(&p, whole.nngp) && symmetric(&p, whole.ntk);
    good[1] = blocks(&p, whole, part);
    taker_begin(&s, &p, part);
    good[2] = compute(&p, none) == NT_OK && same(&p, part, whole), good[2] &= taker_end(&s, &p);
    for (int what = 1; what < 3; what++) { // one kernel alone
        result one = { what == NT_NNGP ? part.nngp : NULL, what == NT_NTK ? part.ntk : NULL };
        memset(part.nngp, 1, bytes_of(&p, p.rows * p.columns)), memset(part.ntk, 1, bytes_of(&p, p.rows * p.columns));
        p.d.what = what;
        good[3] &= compute(&p, one) == NT_OK;
        good[3] &= !memcmp(what == NT_NNGP ? part.nngp : part.ntk, what == NT_NNGP ? whole.nngp : whole.ntk, bytes_of(&p, p.rows * p.columns));
    }
    p.d.what = 0, good[3] &= budgets(&p, whole, part);
    for (int workers = 2; workers < 4; workers++) {
        crew c;
        nt_tape_desc desc;
        problem q;
        CLEAR(desc), crew_hire(&c, workers), desc.parallel = crew_parallel(&c);
        if (!problem_open(&q, r, dtype, two, &desc)) good[4] = 0;
        else {
            result other = result_new(&q);
            good[4] &= compute(&q, other) == NT_OK && same(&q, other, whole);
            taker_begin(&s, &q, other);
            good[4] &= compute(&q, none) == NT_OK && same(&q, other, whole), good[4] &= taker_end(&s, &q);
            if (workers == 3) good[4] &= blocks(&q, whole, other) && budgets(&q, whole, other);
            result_free(other), problem_close(&q);
        }
        crew_dismiss(&c);
    }
    tap_ok(good[0] && good[1] && good[2] && good[3] && good[4], "%s, %s, %s: symmetric %d, blocks %d, sink %d, one kernel and budgets %d, workers %d", r->name,
           nt_dtype_name(dtype), two ? "two arrays" : "one array", good[0], good[1], good[2], good[3], good[4]);
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
            } else missing = 1;
            for (int j = 0; j < 2; j++)
                if (have[j]) problem_close(&p[j]);
        }
    if (missing) tap_skip("this machine or build lacks an instruction set", "AVX2 and AVX-512: equal bits");
    else tap_ok(!wrong, "AVX2 and AVX-512: equal bits of %d kernels", checked);
}

int main(void) {
    for (int k = 0; k < NETS; k++)
        for (int v = 0; v < 4; v++) same_bits(&nets[k], v % 2 ? NT_F64 : NT_F32, v / 2);
    instruction_sets();
    pool_end();
    return tap_end();
}
