// Operations on arrays that are compositions, or whose values have corners: each against loops written here, or numbers worked out by
// hand. Rows of the table are walked by test_ops, values of JAX by golden_ops; here stand all axes, signs, sizes and orders.
#include "nttrain.h"
#include "pool.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

static nt_tape *t;

// ---------------------------------------------------------------------------------------------------------------------
// Arrays of f64 with a shape
// ---------------------------------------------------------------------------------------------------------------------
typedef struct array { nt_shape shape; int64_t n; double *v; } array;

static array array_new(nt_shape shape) {
    array a = { shape, 1, NULL };
    for (int k = 0; k < shape.rank; k++) a.n *= shape.size[k];
    a.v = (double *)pool_new((size_t)a.n + 1, sizeof(double));
    return a;
}

static uint64_t state = 1;
static uint32_t dice(void) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33);
}

static array random_array(nt_shape shape) { // sixteenths: sums and products of few are exact
    array a = array_new(shape);
    for (int64_t k = 0; k < a.n; k++) a.v[k] = (double)(dice() % 129) / 16 - 4;
    return a;
}

static nt_tensor *tensor(array a) { return nt_constant(t, NT_F64, a.shape, a.v); }
static nt_tensor *numbers(int64_t n, const double *v) { return nt_constant(t, NT_F64, NT_SHAPE(n), v); }
static nt_tensor *integers(int64_t n, const int32_t *v) { return nt_constant(t, NT_I32, NT_SHAPE(n), v); }
static nt_tensor *integer(int32_t v) { return nt_constant(t, NT_I32, NT_SCALAR, &v); }

// The value of x as f64; empty after an error.
static array value(nt_tensor *x) {
    array a = array_new(nt_shape_of(x));
    if (!x || nt_eval(nt_cast(x, NT_F64), a.v) != NT_OK) {
        tap_note("%s", nt_error(t) ? nt_error(t) : "NULL without a message");
        a.n = -1;
    }
    return a;
}

static int same_number(double a, double b, double tolerance) { return a == b || (a != a && b != b) || fabs(a - b) <= tolerance; }

static int equal(nt_tensor *x, array want, double tolerance, const char *format, ...) {
    char name[256];
    va_list args;
    array got = value(x);
    int64_t bad = got.n == want.n && got.shape.rank == want.shape.rank ? -1 : 0;
    va_start(args, format);
    vsnprintf(name, sizeof name, format, args);
    va_end(args);
    for (int k = 0; bad < 0 && k < want.shape.rank; k++)
        if (got.shape.size[k] != want.shape.size[k]) bad = 0;
    if (bad == 0) tap_note("%s: another shape", name);
    for (int64_t k = 0; bad < 0 && k < want.n; k++)
        if (!same_number(got.v[k], want.v[k], tolerance)) {
            bad = k;
            tap_note("%s: element %lld is %.17g, not %.17g", name, (long long)k, got.v[k], want.v[k]);
        }
    pool_free(got.v);
    nt_error_clear(t);
    return bad < 0;
}

static void expect(nt_tensor *x, int64_t n, const double *v, const char *name) {
    array want = { NT_SHAPE(n), n, (double *)(uintptr_t)v };
    tap_ok(equal(x, want, 1e-14, "%s", name), "%s", name);
}

// The indices of flat element `flat`, and back.
static void unravel(nt_shape shape, int64_t flat, int64_t *at) {
    for (int k = shape.rank - 1; k >= 0; k--) at[k] = flat % shape.size[k], flat /= shape.size[k];
}

static int64_t ravel(nt_shape shape, const int64_t *at) {
    int64_t flat = 0;
    for (int k = 0; k < shape.rank; k++) flat = flat * shape.size[k] + at[k];
    return flat;
}

static void refused(nt_tensor *x, nt_status status, const char *text) {
    const char *message = nt_error(t);
    tap_ok(!x && message && strstr(message, text) && nt_error_status(t) == status, "%s", message ? message : text);
    nt_error_clear(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// einsum
// ---------------------------------------------------------------------------------------------------------------------
// Sum over all values of all letters of the product: sizes by letter, an axis of size 1 stands for any.
static array einsum_by_loops(const char *const *labels, const char *result, const array *x, int count) {
    int64_t size[128], at[128], total = 1, index[NT_MAX_RANK];
    char letters[128] = "";
    int n = 0;
    nt_shape shape = { (int)strlen(result), { 0 } };
    for (int k = 0; k < 128; k++) size[k] = 1;
    for (int k = 0; k < count; k++)
        for (int a = 0; labels[k][a]; a++) {
            int c = labels[k][a];
            if (x[k].shape.size[a] != 1) size[c] = x[k].shape.size[a];
            if (!strchr(letters, c)) letters[n++] = (char)c;
        }
    for (int k = 0; k < n; k++) total *= size[(int)letters[k]];
    for (int k = 0; k < shape.rank; k++) shape.size[k] = size[(int)result[k]];
    array y = array_new(shape);
    for (int64_t flat = 0; flat < total; flat++) {
        int64_t rest = flat;
        double product = 1;
        for (int k = 0; k < n; k++) at[(int)letters[k]] = rest % size[(int)letters[k]], rest /= size[(int)letters[k]];
        for (int k = 0; k < count; k++) {
            for (int a = 0; labels[k][a]; a++) index[a] = x[k].shape.size[a] == 1 ? 0 : at[(int)labels[k][a]];
            product *= x[k].v[ravel(x[k].shape, index)];
        }
        for (int a = 0; a < shape.rank; a++) index[a] = at[(int)result[a]];
        y.v[ravel(shape, index)] += product;
    }
    return y;
}

// `written` is what nt_einsum is given, labels and result what it means; sizes by letter, '!' behind a label: size 1 there.
static void check_einsum(const char *written, int count, const char *const *labels, const char *result, const int64_t *sizes) {
    nt_tensor *items[6];
    array x[6];
    nt_params operands = { count, items };
    const char *plain[6];
    char text[6][16];
    for (int k = 0; k < count; k++) {
        nt_shape shape = { 0, { 0 } };
        int n = 0;
        for (const char *c = labels[k]; *c; c++)
            if (*c == '!') shape.size[shape.rank - 1] = 1;
            else shape.size[shape.rank++] = sizes[*c % 26], text[k][n++] = *c;
        text[k][n] = 0, plain[k] = text[k];
        x[k] = random_array(shape), items[k] = tensor(x[k]);
    }
    array want = einsum_by_loops(plain, result, x, count);
    tap_ok(equal(nt_einsum(written, operands), want, 1e-9, "%s", written), "einsum %s", written);
    for (int k = 0; k < count; k++) pool_free(x[k].v);
    pool_free(want.v);
}

#define WORDS(...) (const char *const[]){ __VA_ARGS__ }
static void test_einsum(void) {
    int64_t s[26], zero[26];
    for (int k = 0; k < 26; k++) s[k] = 2 + k % 3, zero[k] = k % 3;
    check_einsum("ij,jk->ik", 2, WORDS("ij", "jk"), "ik", s);
    check_einsum("ij,jk", 2, WORDS("ij", "jk"), "ik", s);
    check_einsum("ij , kj -> ki", 2, WORDS("ij", "kj"), "ki", s);
    check_einsum("ij,ij->", 2, WORDS("ij", "ij"), "", s);
    check_einsum("ij,ij", 2, WORDS("ij", "ij"), "", s);
    check_einsum("i,j->ji", 2, WORDS("i", "j"), "ji", s);
    check_einsum("ij,ij->ij", 2, WORDS("ij", "ij"), "ij", s);
    check_einsum("bij,bjk->bik", 2, WORDS("bij", "bjk"), "bik", s);
    check_einsum("bthd,bshd->bhts", 2, WORDS("bthd", "bshd"), "bhts", s);
    check_einsum("ijk->kij", 1, WORDS("ijk"), "kij", s);
    check_einsum("ijk->j", 1, WORDS("ijk"), "j", s);
    check_einsum("ba", 1, WORDS("ba"), "ab", s);
    check_einsum("ii->i", 1, WORDS("ii"), "i", s);
    check_einsum("ii", 1, WORDS("ii"), "", s);
    check_einsum("iiji->ij", 1, WORDS("iiji"), "ij", s);
    check_einsum("iijj->ji", 1, WORDS("iijj"), "ji", s);
    check_einsum("ii,i->i", 2, WORDS("ii", "i"), "i", s);
    check_einsum("iji,jk->k", 2, WORDS("iji", "jk"), "k", s);
    check_einsum("ijk,l->il", 2, WORDS("ijk", "l"), "il", s);
    check_einsum(",ij->ij", 2, WORDS("", "ij"), "ij", s);
    check_einsum(",->", 2, WORDS("", ""), "", s);
    check_einsum("->", 1, WORDS(""), "", s);
    check_einsum("bi,ijk,bj->bk", 3, WORDS("bi", "ijk", "bj"), "bk", s);
    check_einsum("ab,bc,cd,de->ea", 4, WORDS("ab", "bc", "cd", "de"), "ea", s);
    check_einsum("a,a,a->a", 3, WORDS("a", "a", "a"), "a", s);
    check_einsum("a,a,a->", 3, WORDS("a", "a", "a"), "", s);
    check_einsum("ab,cb,cd,ad->", 4, WORDS("ab", "cb", "cd", "ad"), "", s);
    check_einsum("aB,Bc->ac", 2, WORDS("aB", "Bc"), "ac", s);
    check_einsum("aB,aC", 2, WORDS("aB", "aC"), "BC", s);
    check_einsum("ab,cb,cd->dab", 3, WORDS("ab", "cb", "cd"), "dab", s);
    check_einsum("ij,jk->ik", 2, WORDS("ij!", "jk"), "ik", s);
    check_einsum("ij,jk->jik", 2, WORDS("ij!", "jk"), "jik", s);
    check_einsum("ij,ij->ij", 2, WORDS("i!j", "ij!"), "ij", s);
    check_einsum("ij,jk,ik->ijk", 3, WORDS("i!j", "jk!", "ik"), "ijk", s);
    check_einsum("...ij,...jk->...ik", 2, WORDS("xyij", "xyjk"), "xyik", s);
    check_einsum("...ij,jk->...ik", 2, WORDS("xyij", "jk"), "xyik", s);
    check_einsum("i...,...->...i", 2, WORDS("ixy", "y"), "xyi", s);
    check_einsum("...i,...i", 2, WORDS("xi", "yxi"), "yx", s);
    check_einsum("...,...", 2, WORDS("x!y", "xy!"), "xy", s);
    check_einsum("...ii->...i", 1, WORDS("xii"), "xi", s);
    check_einsum("ij,jk->ik", 2, WORDS("ij", "jk"), "ik", zero);
    check_einsum("abc,bcd->ad", 2, WORDS("abc", "bcd"), "ad", zero);
    check_einsum("abcdefgh->hgfedcba", 1, WORDS("abcdefgh"), "hgfedcba", s);
    check_einsum("abcd,efgh->abcdefgh", 2, WORDS("abcd", "efgh"), "abcdefgh", s);

    array two = random_array(NT_SHAPE(2, 3)), cube = random_array(NT_SHAPE(2, 2, 2, 2, 2));
    nt_tensor *x = tensor(two), *y = tensor(random_array(NT_SHAPE(4, 5))), *c = tensor(cube);
    static const struct { const char *equation; int operands; const char *message; } bad[] = {
        { "ij,jk->ik", 2, "label 'j', has 4 elements, not 3" },
        { "ij->ik", 1, "label 'k' of the result is in no operand" },
        { "ij->ii", 1, "label 'i' is twice in the result" },
        { "ii->i", 1, "label 'i', has 3 elements, not 2" },
        { "ijk->i", 1, "operand of rank 2" },
        { "i->i", 1, "operand of rank 2" },
        { "ij,jk->ik", 1, "the operands are 1" },
        { "ij->ij", 2, "the operands are 2" },
        { "i2->i", 1, "'2' is no label" },
        { "i.j", 1, "'.' is no label" },
        { "ij-ij", 1, "'-' is no label" },
        { "ij->ij,i", 1, "behind the result" },
        { "...j->j", 1, "lacks the" },
    };
    for (size_t k = 0; k < sizeof bad / sizeof bad[0]; k++) {
        nt_tensor *both[2] = { x, y };
        nt_params operands = { bad[k].operands, both };
        refused(nt_einsum(bad[k].equation, operands), NT_ERROR_SHAPE, bad[k].message);
    }
    refused(nt_einsum("abcde,fghij->abcdefghij", NT_LIST(c, c)), NT_ERROR_SHAPE, "more than 8 axes");
    refused(nt_einsum("abcde,fghij->", NT_LIST(c, nt_cast(c, NT_F32))), NT_ERROR_DTYPE, "two dtypes");
    refused(nt_einsum(NULL, NT_LIST(x)), NT_ERROR_ARGUMENT, "nt_einsum: there is no equation");
    nt_params none = NT_LIST(x), long_one = none;
    none.count = -1, long_one.count = 65536;
    tap_ok(!nt_einsum("ij", NT_LIST(NULL)) && !nt_einsum("ij", none) && !nt_error(t), "einsum passes NULL and empty lists on quietly");
    nt_tensor **many = (nt_tensor **)pool_new(65536, sizeof *many);
    for (int k = 0; k < 65536; k++) many[k] = x;
    long_one.items = many;
    refused(nt_einsum("ij", long_one), NT_ERROR_ARGUMENT, "nt_einsum: 65536 parts; at most 65535");
    refused(nt_stack(long_one, 0), NT_ERROR_ARGUMENT, "nt_stack: 65536 parts; at most 65535");
}

// ---------------------------------------------------------------------------------------------------------------------
// Scans
// ---------------------------------------------------------------------------------------------------------------------
static double scan_step(int kind, double y, double x) {
    return kind == 0 ? y + x : kind == 1 ? y * x : kind == 2 ? (y != y || y > x ? y : x) : fmax(y, x) + log1p(exp(-fabs(y - x)));
}

static void test_scans(void) {
    static nt_tensor *(*const scans[])(nt_tensor *, int, int) = { nt_cumsum, nt_cumprod, nt_cummax, nt_cumlogsumexp };
    static const char *const names[] = { "cumsum", "cumprod", "cummax", "cumlogsumexp" };
    nt_shape shapes[] = { NT_SHAPE(5), NT_SHAPE(3, 4), NT_SHAPE(2, 3, 4), NT_SHAPE(1, 70, 2), NT_SHAPE(3, 0, 2), NT_SHAPE(0), NT_SHAPE(130, 3), NT_SHAPE(2, 1, 131) };
    for (int kind = 0; kind < 4; kind++)
        for (int reverse = 0; reverse < 2; reverse++) {
            int ok = 1;
            for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
                for (int axis = 0; axis < shapes[k].rank; axis++) {
                    array x = random_array(shapes[k]), y = array_new(shapes[k]);
                    for (int64_t i = 0; i < x.n; i++) x.v[i] = kind == 1 ? 1 + x.v[i] / 64 : x.v[i];
                    for (int64_t i = 0; i < x.n; i++) {
                        int64_t flat = reverse ? x.n - 1 - i : i, at[NT_MAX_RANK];
                        unravel(x.shape, flat, at);
                        at[axis] += reverse ? 1 : -1;
                        int first = at[axis] < 0 || at[axis] >= x.shape.size[axis];
                        y.v[flat] = first ? x.v[flat] : scan_step(kind, y.v[ravel(x.shape, at)], x.v[flat]);
                    }
                    ok &= equal(scans[kind](tensor(x), k % 2 ? axis - x.shape.rank : axis, reverse), y, 1e-10, "%s", names[kind]);
                    pool_free(x.v), pool_free(y.v);
                }
            tap_ok(ok, "%s along every axis%s", names[kind], reverse ? ", from the end" : "");
        }
    double special[] = { 1, NAN, 3, -INFINITY }, maxima[] = { 1, NAN, NAN, NAN };
    expect(nt_cummax(numbers(4, special), 0, 0), 4, maxima, "cummax: NaN wins");
    double low[] = { -INFINITY, -INFINITY, 2, INFINITY }, sums[] = { -INFINITY, -INFINITY, 2, INFINITY };
    expect(nt_cumlogsumexp(numbers(4, low), 0, 0), 4, sums, "cumlogsumexp of infinities");
    double steep[] = { 1000, 1000, -1000 }, high[] = { 1000, 1000.6931471805599453, 1000.6931471805599453 };
    expect(nt_cumlogsumexp(numbers(3, steep), 0, 0), 3, high, "cumlogsumexp does not overflow");
    int32_t near[] = { INT32_MAX, 1, 2 };
    double wrapped[] = { INT32_MAX, INT32_MIN, INT32_MIN + 2.0 };
    expect(nt_cumsum(integers(3, near), 0, 0), 3, wrapped, "cumsum of i32 wraps");

    // a million tenths in f32: as exact as rounding the exact sums
    nt_tensor *tenth = nt_full(t, NT_F32, NT_SHAPE(1000000), 0.1), *sum = nt_cumsum(tenth, 0, 0);
    float *got = (float *)malloc(4000000);
    tap_ok(nt_eval(sum, got) == NT_OK && fabs((double)got[999999] - 1e6 * (double)0.1f) < 0.005, "f32 sums run in f64");
    pool_free(got);

    // y = cumprod(x), g = ones: dx_j = sum over i >= j of the product of the others, with zeros in it
    double with_zeros[] = { 2, 0, 3, 0, 5 }, slopes[5] = { 0 };
    for (int j = 0; j < 5; j++)
        for (int i = j; i < 5; i++) {
            double product = 1;
            for (int k = 0; k <= i; k++) product *= k == j ? 1 : with_zeros[k];
            slopes[j] += product;
        }
    nt_tensor *x = numbers(5, with_zeros);
    expect(nt_grad(nt_sum(nt_cumprod(x, 0, 0)), x), 5, slopes, "derivative of cumprod where elements are zero");
    double tied[] = { 1, 2, 2, 0 }, shares[] = { 1, 2, 1, 0 };
    x = numbers(4, tied);
    expect(nt_grad(nt_sum(nt_cummax(x, 0, 0)), x), 4, shares, "derivative of cummax: equal ones share");
    double a[] = { 0.5, 2, -1 }, b[] = { 3, 1, 4 }, forward[] = { 3, 7, -3 }, back[] = { 3 * 1 + 0.5 * -7, -7, 4 };
    expect(nt_linear_scan(numbers(3, a), numbers(3, b), 0, 0), 3, forward, "linear_scan");
    expect(nt_linear_scan(numbers(3, a), numbers(3, b), 0, 1), 3, (back[1] = 1 + 2 * 4, back[0] = 3 + 0.5 * back[1], back), "linear_scan from the end");

    refused(nt_cumsum(x, 1, 0), NT_ERROR_ARGUMENT, "nt_cumsum: axis 1 is out of range for rank 1");
    refused(nt_cumsum(nt_scalar(t, NT_F64, 1), 0, 0), NT_ERROR_ARGUMENT, "axis 0 is out of range for rank 0");
    refused(nt_cumlogsumexp(integers(3, near), 0, 0), NT_ERROR_DTYPE, "not defined for i32");
    refused(nt_linear_scan(x, numbers(3, a), 0, 0), NT_ERROR_SHAPE, "differ in shape");
    refused(nt_linear_scan(x, nt_cast(x, NT_F32), 0, 0), NT_ERROR_DTYPE, "two dtypes");
}

// ---------------------------------------------------------------------------------------------------------------------
// Sorts
// ---------------------------------------------------------------------------------------------------------------------
static void test_sorts(void) {
    nt_shape shapes[] = { NT_SHAPE(1), NT_SHAPE(9), NT_SHAPE(4, 17), NT_SHAPE(33, 5), NT_SHAPE(2, 40, 3), NT_SHAPE(0), NT_SHAPE(3, 0), NT_SHAPE(1000) };
    nt_dtype dtypes[] = { NT_F64, NT_F32, NT_I32, NT_U32 };
    for (int d = 0; d < 4; d++) {
        int ok = 1;
        for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
            for (int axis = 0; axis < shapes[k].rank; axis++) {
                array x = array_new(shapes[k]), y = array_new(shapes[k]), order = array_new(shapes[k]);
                for (int64_t i = 0; i < x.n; i++) x.v[i] = (double)(dice() % 23) - (d < 3 ? 11 : 0), x.v[i] *= d < 2 ? 0.25 : d == 2 ? 1e8 : 1e8;
                for (int64_t i = 0; i < x.n; i++) { // the place of element i: how many stand before it
                    int64_t at[NT_MAX_RANK], place = 0, own;
                    unravel(x.shape, i, at), own = at[axis];
                    for (int64_t j = 0; j < x.shape.size[axis]; j++) {
                        at[axis] = j;
                        double other = x.v[ravel(x.shape, at)];
                        place += other < x.v[i] || (other == x.v[i] && j < own);
                    }
                    at[axis] = place;
                    y.v[ravel(x.shape, at)] = x.v[i], order.v[ravel(x.shape, at)] = (double)own;
                }
                nt_tensor *in = nt_cast(tensor(x), dtypes[d]);
                ok &= equal(nt_sort(in, axis), y, 0, "sort") && equal(nt_argsort(in, axis - x.shape.rank), order, 0, "argsort");
                pool_free(x.v), pool_free(y.v), pool_free(order.v);
            }
        tap_ok(ok, "sort and argsort of %s along every axis, stable", nt_dtype_name(dtypes[d]));
    }
    double mixed[] = { NAN, 0.0, -0.0, INFINITY, -1, -0.0, -INFINITY, -NAN, 0.0 }, order[] = { 6, 4, 1, 2, 5, 8, 3, 0, 7 };
    double top[] = { 0, 7, 3, 1, 8, 2, 5, 4, 6 };
    for (int k = 0; k < 2; k++) {
        nt_tensor *x = nt_cast(numbers(9, mixed), k ? NT_F32 : NT_F64);
        expect(nt_argsort(x, 0), 9, order, k ? "f32: NaN is last, zeros are equal" : "f64: NaN is last, zeros are equal");
        expect(nt_top_k(x, 9).indices, 9, top, k ? "f32: top_k has NaN first, 0 above -0" : "f64: top_k has NaN first, 0 above -0");
    }
    double few[] = { 3, 1, 3, 2, 3 }, values[] = { 3, 3, 3 }, at[] = { 0, 2, 4 }, slope[] = { 2, 0, 5, 0, 0 }, weight[] = { 2, 5 };
    nt_tensor *x = numbers(5, few);
    expect(nt_top_k(x, 3).values, 3, values, "top_k: the largest first");
    expect(nt_top_k(x, 3).indices, 3, at, "top_k: equal ones by index");
    expect(nt_top_k(x, 0).values, 0, NULL, "top_k of none");
    expect(nt_grad(nt_sum(nt_mul(nt_top_k(x, 2).values, numbers(2, weight))), x), 5, slope, "derivative of top_k");
    uint8_t bits[] = { 1, 0, 1, 0 };
    double bools[] = { 1, 3, 0, 2 };
    expect(nt_argsort(nt_constant(t, NT_BOOL, NT_SHAPE(4), bits), 0), 4, bools, "argsort of bool");
    refused(nt_top_k(x, 6).values, NT_ERROR_SHAPE, "takes 0 to 5 of axis 0, not 6");
    refused(nt_top_k(x, -1).values, NT_ERROR_SHAPE, "takes 0 to 5 of axis 0, not -1");
    refused(nt_sort(x, 1), NT_ERROR_ARGUMENT, "nt_sort: axis 1 is out of range");
    refused(nt_argsort(nt_cast(x, NT_U8), 0), NT_ERROR_DTYPE, "storage dtype");
    refused(nt_top_k(nt_scalar(t, NT_F64, 1), 1).values, NT_ERROR_ARGUMENT, "out of range for rank 0");
}

// ---------------------------------------------------------------------------------------------------------------------
// Places
// ---------------------------------------------------------------------------------------------------------------------
static int64_t placed(int64_t start, int64_t size, int64_t piece) { // as the documentation says it
    if (start < 0) start += size;
    return start < 0 ? 0 : start > size - piece ? size - piece : start;
}

static void test_dynamic(void) {
    array x = random_array(NT_SHAPE(5, 6)), u = random_array(NT_SHAPE(2, 4));
    int ok = 1;
    for (int32_t i = -9; i < 9; i++)
        for (int32_t j = -9; j < 9; j++) {
            nt_tensor *starts[] = { integer(i), integer(j) };
            array piece = array_new(u.shape), put = array_new(x.shape);
            memcpy(put.v, x.v, 30 * sizeof(double));
            for (int64_t k = 0; k < 8; k++) {
                int64_t at = (placed(i, 5, 2) + k / 4) * 6 + placed(j, 6, 4) + k % 4;
                piece.v[k] = x.v[at], put.v[at] = u.v[k];
            }
            ok &= equal(nt_dynamic_slice(tensor(x), starts, u.shape), piece, 0, "dynamic_slice at %d, %d", i, j);
            ok &= equal(nt_dynamic_update_slice(tensor(x), tensor(u), starts), put, 0, "dynamic_update_slice at %d, %d", i, j);
            pool_free(piece.v), pool_free(put.v);
        }
    tap_ok(ok, "dynamic slices and updates, inside and beyond every end");
    nt_tensor *scalar = nt_scalar(t, NT_F64, 7), *seven = nt_dynamic_slice(scalar, NULL, NT_SCALAR);
    array want = array_new(NT_SCALAR);
    want.v[0] = 7;
    tap_ok(equal(seven, want, 0, "of a scalar"), "a dynamic slice of a scalar has no starts");

    // in place where the operand dies: the peak is one copy of x (64 KB) and the update
    nt_tensor *big = nt_input(t, NT_F32, NT_SHAPE(16384)), *small = nt_input(t, NT_F32, NT_SHAPE(4)), *start[] = { nt_input(t, NT_I32, NT_SCALAR) };
    nt_program *p = nt_compile(nt_dynamic_update_slice(nt_exp(big), small, start), NULL);
    tap_ok(p && nt_report(p).peak < 65536 + 1024, "an update goes in place: %zu bytes", p ? nt_report(p).peak : 0);

    nt_tensor *in = tensor(x), *bad[] = { integer(1), scalar }, *good[] = { integer(1), integer(2) }, *null[] = { integer(1), NULL };
    refused(nt_dynamic_slice(in, bad, NT_SHAPE(2, 2)), NT_ERROR_ARGUMENT, "start 1 is f64[], not an i32 scalar");
    refused(nt_dynamic_slice(in, good, NT_SHAPE(2, 7)), NT_ERROR_SHAPE, "a piece of shape [2,7] does not fit in");
    refused(nt_dynamic_slice(in, good, NT_SHAPE(2)), NT_ERROR_SHAPE, "another rank");
    refused(nt_dynamic_slice(in, good, NT_SHAPE(2, -1)), NT_ERROR_SHAPE, "does not fit in");
    refused(nt_dynamic_slice(in, NULL, NT_SHAPE(2, 2)), NT_ERROR_ARGUMENT, "not NULL");
    refused(nt_dynamic_update_slice(in, tensor(random_array(NT_SHAPE(6, 1))), good), NT_ERROR_SHAPE, "does not fit in");
    refused(nt_dynamic_update_slice(in, nt_cast(in, NT_F32), good), NT_ERROR_DTYPE, "the update is f32, not f64");
    tap_ok(!nt_dynamic_slice(in, null, NT_SHAPE(2, 2)) && !nt_error(t), "a NULL start is passed on quietly");
}

static void test_picks(void) {
    array x = random_array(NT_SHAPE(3, 4));
    int32_t at[] = { 0, 3, -1, 2, -4, 1, 1, 1, 0 };
    array y = array_new(NT_SHAPE(3, 3)), row = array_new(NT_SHAPE(3, 3));
    for (int k = 0; k < 9; k++) y.v[k] = x.v[k / 3 * 4 + (at[k] + 4) % 4], row.v[k] = x.v[k / 3 * 4 + (at[k % 3] + 4) % 4];
    tap_ok(equal(nt_take_along_axis(tensor(x), nt_constant(t, NT_I32, NT_SHAPE(3, 3), at), 1), y, 0, "take"), "take_along_axis, negative indices");
    tap_ok(equal(nt_take_along_axis(tensor(x), nt_constant(t, NT_I32, NT_SHAPE(1, 3), at), -1), row, 0, "take"), "take_along_axis: indices broadcast");
    nt_tensor *one = nt_slice_axis(tensor(x), 0, 1, 2);
    for (int k = 0; k < 9; k++) y.v[k] = x.v[4 + (at[k] + 4) % 4];
    tap_ok(equal(nt_take_along_axis(one, nt_constant(t, NT_I32, NT_SHAPE(3, 3), at), 1), y, 0, "take"), "take_along_axis: x broadcasts");
    at[4] = -5;
    double out[9];
    tap_ok(nt_eval(nt_take_along_axis(tensor(x), nt_constant(t, NT_I32, NT_SHAPE(3, 3), at), 1), out) == NT_ERROR_DATA && strstr(nt_error(t), "nt_take_along_axis"),
           "an index out of range stops the run: %s", nt_error(t));
    nt_error_clear(t);
    refused(nt_take_along_axis(tensor(x), integers(3, at), 1), NT_ERROR_SHAPE, "the indices have the shape of x");
    refused(nt_take_along_axis(tensor(x), tensor(x), 1), NT_ERROR_DTYPE, "indices are i32");
    refused(nt_take_along_axis(tensor(x), nt_constant(t, NT_I32, NT_SHAPE(2, 3), at), 1), NT_ERROR_SHAPE, "do not broadcast");
    refused(nt_take_along_axis(tensor(x), nt_constant(t, NT_I32, NT_SHAPE(3, 3), at), 2), NT_ERROR_ARGUMENT, "axis 2 is out of range");

    double rows[] = { 1, 2, 4, 8, 16 }, sums[] = { 8, 0, 5 }, slope[] = { 3, 0, 3, 1, 0 }, weight[] = { 1, 2, 3 };
    int32_t ids[] = { 2, -1, 2, 0, 3 };
    nt_tensor *r = numbers(5, rows), *segment = nt_segment_sum(r, integers(5, ids), 3);
    expect(segment, 3, sums, "segment_sum drops ids that are out of range");
    expect(nt_grad(nt_sum(nt_mul(segment, numbers(3, weight))), r), 5, slope, "its derivative");
    expect(nt_segment_sum(r, integers(5, ids), 0), 0, NULL, "segment_sum of no segments");
    refused(nt_segment_sum(r, integers(4, ids), 3), NT_ERROR_SHAPE, "updates are shaped");
    refused(nt_segment_sum(r, integers(5, ids), -1), NT_ERROR_ARGUMENT, "-1 segments");
    array hot = array_new(NT_SHAPE(5, 3));
    hot.v[2] = hot.v[8] = hot.v[9] = 1;
    tap_ok(equal(nt_one_hot(integers(5, ids), 3, NT_F32), hot, 0, "hot"), "one_hot, zeros where the index is out of range");
    tap_ok(equal(nt_one_hot(integers(5, ids), 3, NT_BOOL), hot, 0, "hot"), "one_hot in bool");
    refused(nt_one_hot(integers(5, ids), -3, NT_F32), NT_ERROR_SHAPE, "nt_one_hot");
    refused(nt_one_hot(r, 3, NT_F32), NT_ERROR_DTYPE, "indices are i32 or u32");
}

// ---------------------------------------------------------------------------------------------------------------------
// Layout
// ---------------------------------------------------------------------------------------------------------------------
// y(at) = x(source(at)) for every element of a result of this shape.
typedef void (*source_fn)(const array *x, int64_t *at, const int64_t *number);
static int moved(nt_tensor *y, const array *x, nt_shape shape, source_fn source, const int64_t *number, const char *name) {
    array want = array_new(shape);
    for (int64_t k = 0; k < want.n; k++) {
        int64_t at[NT_MAX_RANK];
        unravel(shape, k, at);
        source(x, at, number);
        want.v[k] = x->v[ravel(x->shape, at)];
    }
    int ok = equal(y, want, 0, "%s", name);
    pool_free(want.v);
    return ok;
}

static void flipped(const array *x, int64_t *at, const int64_t *number) {
    for (int k = 0; k < x->shape.rank; k++)
        if (number[k]) at[k] = x->shape.size[k] - 1 - at[k];
}
static void rolled(const array *x, int64_t *at, const int64_t *number) {
    for (int k = 0; k < x->shape.rank; k++) at[k] = (((at[k] - number[k]) % x->shape.size[k]) + x->shape.size[k]) % x->shape.size[k];
}
static void repeated(const array *x, int64_t *at, const int64_t *number) {
    for (int k = 0; k < x->shape.rank; k++) at[k] /= number[k];
}
static void tiled(const array *x, int64_t *at, const int64_t *number) { // number[0]: axes in front
    for (int k = 0; k < x->shape.rank; k++) at[k] = at[k + number[0]] % x->shape.size[k];
}

static void test_layout(void) {
    array x = random_array(NT_SHAPE(3, 4, 5)), deep = random_array(NT_SHAPE(2, 1, 2, 1, 2, 1, 2, 3));
    int ok = 1;
    for (int mask = 0; mask < 8; mask++) {
        int64_t which[] = { mask & 1, mask >> 1 & 1, mask >> 2 & 1 };
        nt_axes axes = { 0, { 0 } };
        for (int k = 0; k < 3; k++)
            if (which[k]) axes.axis[axes.count++] = k - (mask % 2) * 3;
        ok &= moved(nt_flip(tensor(x), axes), &x, x.shape, flipped, which, "flip");
        // through operations that read views: a product, a sum, another view
        nt_tensor *y = nt_flip(tensor(x), axes), *z = nt_flip(nt_reshape(y, NT_SHAPE(60)), NT_AXES(0));
        ok &= equal(nt_flip(nt_reshape(nt_flip(z, NT_AXES(0)), x.shape), axes), x, 0, "flip of flip");
    }
    tap_ok(ok, "flip of every choice of axes, and back");
    ok = 1;
    for (int64_t i = -7; i < 8; i++) {
        int64_t shift[] = { i, 0, 3 * i }, few[] = { 3 * i, i };
        ok &= moved(nt_roll(tensor(x), few, NT_AXES(-1, 0)), &x, x.shape, rolled, shift, "roll");
    }
    tap_ok(ok, "roll by every number, also more than once around");
    int64_t times[] = { 1, 3, 1 }, none[] = { 1, 1, 1, 1, 1, 1, 1, 2 };
    tap_ok(moved(nt_repeat(tensor(x), 3, 1), &x, NT_SHAPE(3, 12, 5), repeated, times, "repeat"), "repeat");
    tap_ok(moved(nt_repeat(tensor(deep), 2, -1), &deep, NT_SHAPE(2, 1, 2, 1, 2, 1, 2, 6), repeated, none, "repeat"), "repeat at rank 8");
    int64_t front[] = { 0 }, one[] = { 1 };
    tap_ok(moved(nt_tile(tensor(x), NT_SHAPE(2, 3)), &x, NT_SHAPE(3, 8, 15), tiled, front, "tile"), "tile of the last axes");
    tap_ok(moved(nt_tile(tensor(x), NT_SHAPE(2, 1, 2, 1)), &x, NT_SHAPE(2, 3, 8, 5), tiled, one, "tile"), "tile with an axis more");
    tap_ok(moved(nt_tile(tensor(x), NT_SHAPE(0, 1, 1)), &x, NT_SHAPE(0, 4, 5), tiled, front, "tile"), "tile no times");
    tap_ok(moved(nt_repeat(tensor(x), 0, 2), &x, NT_SHAPE(3, 4, 0), repeated, times, "repeat"), "repeat no times");
    refused(nt_flip(tensor(x), NT_AXES(0, 0)), NT_ERROR_ARGUMENT, "nt_flip: axis 0 is named twice");
    refused(nt_flip(tensor(x), NT_AXES(3)), NT_ERROR_ARGUMENT, "nt_flip: axis 3 is out of range");
    refused(nt_roll(tensor(x), NULL, NT_AXES(1)), NT_ERROR_ARGUMENT, "not NULL");
    refused(nt_repeat(tensor(x), -1, 0), NT_ERROR_SHAPE, "nt_repeat");
    refused(nt_repeat(tensor(x), INT64_MAX / 2, 0), NT_ERROR_SHAPE, "nt_repeat");
    nt_shape long_one = NT_SHAPE(1, 1, 1, 1, 1, 1, 1, 1);
    long_one.rank = 9;
    refused(nt_tile(tensor(x), long_one), NT_ERROR_SHAPE, "at most 8 axes");
}

static void test_matrices(void) {
    nt_shape shapes[] = { NT_SHAPE(3, 5), NT_SHAPE(5, 3), NT_SHAPE(2, 4, 4), NT_SHAPE(0, 3), NT_SHAPE(3, 0) };
    int bands = 1, diagonals = 1;
    for (size_t s = 0; s < sizeof shapes / sizeof shapes[0]; s++)
        for (int64_t k = -7; k < 8; k++) {
            array x = random_array(shapes[s]), low = array_new(x.shape), high = array_new(x.shape);
            int64_t rows = x.shape.size[x.shape.rank - 2], columns = x.shape.size[x.shape.rank - 1], count = 0;
            nt_shape shape = x.shape;
            shape.rank--;
            for (int64_t i = 0; i < rows; i++) count += i + k >= 0 && i + k < columns;
            shape.size[shape.rank - 1] = count;
            array line = array_new(shape);
            for (int64_t i = 0, n = 0; i < x.n; i++) {
                int64_t column = i % columns, row = i / columns % rows;
                low.v[i] = column - row <= k ? x.v[i] : 0, high.v[i] = column - row >= k ? x.v[i] : 0;
                if (column - row == k) line.v[n++] = x.v[i];
            }
            bands &= equal(nt_tril(tensor(x), k), low, 0, "tril") && equal(nt_triu(tensor(x), k), high, 0, "triu");
            if (k >= -rows && k <= columns) diagonals &= equal(nt_diag(tensor(x), k), line, 0, "diag");
            pool_free(x.v), pool_free(low.v), pool_free(high.v), pool_free(line.v);
        }
    tap_ok(bands, "tril and triu at every diagonal");
    tap_ok(diagonals, "diag at every diagonal");
    double m[] = { 1, 2, 3, 4, 5, 6 };
    array trace = array_new(NT_SCALAR);
    trace.v[0] = 6;
    tap_ok(equal(nt_trace(nt_constant(t, NT_F64, NT_SHAPE(2, 3), m)), trace, 0, "trace"), "trace");
    refused(nt_tril(numbers(6, m), 0), NT_ERROR_SHAPE, "nt_tril(f64[6]): takes matrices");
    refused(nt_diag(nt_constant(t, NT_F64, NT_SHAPE(2, 3), m), 4), NT_ERROR_ARGUMENT, "there is no diagonal 4");
    refused(nt_trace(numbers(6, m)), NT_ERROR_SHAPE, "takes matrices");
}

static void test_statistics(void) {
    double v[] = { 1, 2, 4, 7 }, var[] = { 5.25 }, sample[] = { 7 }, none[] = { NAN };
    nt_tensor *x = numbers(4, v);
    expect(nt_var_axes(x, NT_AXES(0), 0, 1), 1, var, "var");
    expect(nt_var_axes(x, NT_AXES(0), 1, 1), 1, sample, "var with ddof 1");
    expect(nt_var_axes(x, NT_AXES(0), 4, 1), 1, none, "var with ddof of all is NaN");
    var[0] = sqrt(5.25);
    expect(nt_std_axes(x, NT_AXES(-1), 0, 1), 1, var, "std");
    refused(nt_var_axes(nt_cast(x, NT_I32), NT_AXES(0), 0, 0), NT_ERROR_DTYPE, "mean of integers");
    refused(nt_std_axes(x, NT_AXES(2), 0, 0), NT_ERROR_ARGUMENT, "out of range");
    double target[] = { 1, 0, 1, 0.25 }, logit[] = { 800, 800, -800, 0 }, loss[] = { 0, 800, 800, 0.69314718055994530942 };
    expect(nt_sigmoid_cross_entropy(numbers(4, logit), numbers(4, target)), 4, loss, "sigmoid_cross_entropy, far from 0 as well");
    double there[] = { 0, 0, 1, 4 }, bent[] = { 0.5, 1.5 * 1.25, 1.5 * 2.25, 1.5 * 2.25 };
    expect(nt_huber(x, numbers(4, there), 1.5), 4, bent, "huber");
}

// ---------------------------------------------------------------------------------------------------------------------
// Images
// ---------------------------------------------------------------------------------------------------------------------
static void test_resize(void) {
    // worked out from the weights: triangles around (j + 1/2) n / m - 1/2, as wide as the step, normalised
    double line[] = { 1, 2, 3, 4 }, half[] = { 12 / 7.0, 23 / 7.0 }, pair[] = { 1, 2 }, twice[] = { 1, 1.25, 1.75, 2 }, whole[] = { 2.5 };
    double third[] = { 1, 1, 1, 2, 2, 2 }, least[] = { 2, 4 }, five[] = { 1, 2, 2, 3, 4 };
    expect(nt_resize(numbers(4, line), NT_SHAPE(2), NT_BILINEAR), 2, half, "bilinear to a half is smoothed");
    expect(nt_resize(numbers(2, pair), NT_SHAPE(4), NT_BILINEAR), 4, twice, "bilinear to the double");
    expect(nt_resize(numbers(4, line), NT_SHAPE(1), NT_BILINEAR), 1, whole, "bilinear to one");
    expect(nt_resize(numbers(2, pair), NT_SHAPE(6), NT_NEAREST), 6, third, "nearest to the triple");
    expect(nt_resize(numbers(4, line), NT_SHAPE(2), NT_NEAREST), 2, least, "nearest to a half");
    five[2] = 3, five[3] = 3;
    expect(nt_resize(numbers(4, line), NT_SHAPE(5), NT_NEAREST), 5, five, "nearest to five quarters");
    expect(nt_resize(numbers(4, line), NT_SHAPE(4), NT_BILINEAR), 4, line, "the same size is the same");
    expect(nt_resize(numbers(4, line), NT_SHAPE(0), NT_BILINEAR), 0, NULL, "to nothing");
    // axes are independent of each other: of u(i) v(j), the result is that of u times that of v; constants stay
    array u = random_array(NT_SHAPE(5, 1)), v = random_array(NT_SHAPE(1, 7));
    nt_tensor *both = nt_resize(nt_mul(tensor(u), tensor(v)), NT_SHAPE(8, 3), NT_BILINEAR);
    nt_tensor *apart = nt_mul(nt_resize(tensor(u), NT_SHAPE(8, 1), NT_BILINEAR), nt_resize(tensor(v), NT_SHAPE(1, 3), NT_BILINEAR));
    tap_ok(equal(both, value(apart), 1e-12, "product"), "bilinear in two axes is one after the other");
    static const nt_dtype halves[] = { NT_F16, NT_BF16 };
    for (int k = 0; k < 2; k++) { // all numbers below are exact in 16 bits
        nt_tensor *y = nt_resize(nt_cast(numbers(2, pair), halves[k]), NT_SHAPE(4), NT_BILINEAR);
        tap_ok(y && y->dtype == halves[k], "bilinear for 16 bits keeps the dtype");
        expect(nt_cast(y, NT_F64), 4, twice, "and its numbers");
    }
    array ones = array_new(NT_SHAPE(2, 5, 3, 2));
    for (int64_t k = 0; k < ones.n; k++) ones.v[k] = 1;
    tap_ok(equal(nt_resize(nt_full(t, NT_F64, NT_SHAPE(2, 9, 2, 2), 1), ones.shape, NT_BILINEAR), ones, 1e-14, "ones"), "constants stay");
    refused(nt_resize(numbers(4, line), NT_SHAPE(2, 2), NT_NEAREST), NT_ERROR_SHAPE, "to [2,2]");
    refused(nt_resize(nt_cast(numbers(4, line), NT_I32), NT_SHAPE(2), NT_BILINEAR), NT_ERROR_SHAPE, "bilinear for floating numbers");
    refused(nt_resize(numbers(0, line), NT_SHAPE(2), NT_NEAREST), NT_ERROR_SHAPE, "not empty");
    refused(nt_resize(numbers(4, line), NT_SHAPE(2), (nt_resize_method)7), NT_ERROR_SHAPE, "nearest, or bilinear");

    array x = random_array(NT_SHAPE(2, 3, 2, 4));
    int64_t times[] = { 1, 3, 3, 1 };
    tap_ok(moved(nt_upsample(tensor(x), 3), &x, NT_SHAPE(2, 9, 6, 4), repeated, times, "upsample"), "upsample");
    array flat = random_array(NT_SHAPE(2, 3, 2));
    tap_ok(moved(nt_upsample(tensor(flat), 3), &flat, NT_SHAPE(2, 9, 6), repeated, times, "upsample"), "upsample without channels");
    refused(nt_upsample(numbers(4, line), 2), NT_ERROR_SHAPE, "rank 3 or more");
    refused(nt_upsample(tensor(x), -2), NT_ERROR_SHAPE, "not negative");
}

// One spatial axis of size n: y[o] = sum over taps d and inputs i, where the padded, dilated image has i at o s + d D.
typedef struct axis_rule { int64_t n, taps, stride, dilation, lhs, before, out, period; } axis_rule; // period 0: zeros outside

static int64_t input_of(const axis_rule *a, int64_t o, int64_t d) { // -1: a zero
    int64_t p = o * a->stride + d * a->dilation - a->before;
    if (a->period) p = ((p % a->period) + a->period) % a->period;
    return p < 0 || p % a->lhs || p / a->lhs >= a->n ? -1 : p / a->lhs;
}

// x (N, H, W, C), w (h, w, C / groups, O)
static array conv_by_loops(const array *x, const array *w, const axis_rule *rule, int groups) {
    int64_t channels = w->shape.size[2], outputs = w->shape.size[3];
    array y = array_new(NT_SHAPE(x->shape.size[0], rule[0].out, rule[1].out, outputs));
    for (int64_t k = 0; k < y.n; k++) {
        int64_t at[NT_MAX_RANK];
        unravel(y.shape, k, at);
        for (int64_t d = 0; d < rule[0].taps * rule[1].taps; d++) {
            int64_t i = input_of(&rule[0], at[1], d / rule[1].taps), j = input_of(&rule[1], at[2], d % rule[1].taps);
            for (int64_t c = 0; c < channels && i >= 0 && j >= 0; c++) {
                int64_t from[] = { at[0], i, j, at[3] / (outputs / groups) * channels + c };
                y.v[k] += x->v[ravel(x->shape, from)] * w->v[(d * channels + c) * outputs + at[3]];
            }
        }
    }
    return y;
}

static nt_shape image(int64_t n, int64_t h, int64_t w, int64_t c) { return NT_SHAPE(n, h, w, c); }

static void test_convolutions(void) {
    int circular = 1, spread = 1, adjoint = 1;
    for (int64_t taps = 1; taps < 6; taps++)
        for (int64_t stride = 1; stride < 4; stride++)
            for (int64_t dilation = 1; dilation < 3; dilation++)
                for (int64_t n = 1; n < 6; n += 2) {
                    int64_t reach = (taps - 1) * dilation;
                    axis_rule rule[] = { { n, taps, stride, dilation, 1, reach / 2, (n - 1) / stride + 1, n }, { 4, 2, 1, 1, 1, 0, 4, 4 } };
                    array x = random_array(image(2, n, 4, 4)), w = random_array(image(taps, 2, 2, 6)), y = conv_by_loops(&x, &w, rule, 2);
                    nt_conv_desc d = { { (int)stride, 1 }, { (int)dilation, 1 }, 2, NT_CIRCULAR, { { 0 } }, { 0 } };
                    nt_tensor *a = tensor(x), *b = tensor(w), *out = nt_conv(a, b, &d), *g = tensor(random_array(y.shape));
                    circular &= equal(out, y, 1e-9, "circular, n %d, taps %d, stride %d, dilation %d", (int)n, (int)taps, (int)stride, (int)dilation);
                    // <g, conv(x, w)> = <transpose of g, x> = <transpose of g, w>
                    nt_tensor *in = nt_conv_transpose_input(g, b, x.shape, &d), *kernel = nt_conv_transpose_kernel(a, g, w.shape, &d);
                    array sum = value(nt_sum(nt_mul(out, g)));
                    adjoint &= equal(nt_sum(nt_mul(in, a)), sum, 1e-9, "for x") && equal(nt_sum(nt_mul(kernel, b)), sum, 1e-9, "for the kernel");
                    nt_conv_desc same = { { (int)stride, 1 }, { (int)dilation, 1 }, 2, NT_EXPLICIT, { { 2, 1 }, { -1, 1 } }, { 3, 2 } };
                    axis_rule far[] = { { n, taps, stride, dilation, 3, 2, 0, 0 }, { 4, 2, 1, 1, 2, -1, 6, 0 } };
                    int64_t space = (n - 1) * 3 + 1 + 3 - reach - 1;
                    far[0].out = space < 0 ? 0 : space / stride + 1;
                    array z = conv_by_loops(&x, &w, far, 2);
                    spread &= equal(nt_conv(a, b, &same), z, 1e-9, "lhs dilation, n %d, taps %d, stride %d, dilation %d", (int)n, (int)taps, (int)stride, (int)dilation);
                    pool_free(x.v), pool_free(w.v), pool_free(y.v), pool_free(z.v), pool_free(sum.v);
                    nt_forget_nodes(t);
                }
    tap_ok(circular, "circular convolutions of every window, stride and dilation, also further than around");
    tap_ok(adjoint, "their transposes are adjoint");
    tap_ok(spread, "dilated images with negative padding");
}

static void test_transposed(void) {
    static const nt_padding paddings[] = { NT_SAME, NT_VALID, NT_CIRCULAR };
    static const char *const names[] = { "SAME", "VALID", "CIRCULAR" };
    for (int p = 0; p < 3; p++) {
        int ok = 1;
        for (int64_t taps = 1; taps < 6; taps++)
            for (int64_t stride = 1; stride < 5; stride++)
                for (int64_t n = 1; n < 5; n++) {
                    int64_t over = taps > stride ? taps - stride : 0, all = taps + stride - 2 + over;
                    // VALID: all that x reaches
                    axis_rule rule[] = { { n, taps, 1, 1, stride, taps - 1, n * stride + over, 0 }, { 3, 1, 1, 1, 1, 0, 3, 0 } };
                    if (p == 0) rule[0].before = stride > taps - 1 ? taps - 1 : (taps + stride - 1) / 2, rule[0].out = n * stride;
                    array x = random_array(image(1, n, 3, 2)), w = random_array(image(taps, 1, 2, 3)), y = conv_by_loops(&x, &w, rule, 1);
                    if (p == 2) { // what lies beyond n stride is added at the other end, as centred as VALID's overhang
                        array folded = array_new(image(1, n * stride, 3, 3));
                        for (int64_t k = 0; k < y.n; k++) {
                            int64_t row = (k / 9 - over / 2 + taps * n * stride) % (n * stride);
                            folded.v[row * 9 + k % 9] += y.v[k];
                        }
                        pool_free(y.v), y = folded;
                    }
                    nt_conv_desc d = { { (int)stride, 1 }, { 0 }, 0, paddings[p], { { 0 } }, { 0 } };
                    ok &= all >= 0 && equal(nt_conv_transpose(tensor(x), tensor(w), &d), y, 1e-9, "n %d, taps %d, stride %d", (int)n, (int)taps, (int)stride);
                    pool_free(x.v), pool_free(w.v), pool_free(y.v);
                    nt_forget_nodes(t);
                }
        tap_ok(ok, "transposed convolutions of every window and stride, %s", names[p]);
    }
    // with the taps reversed, CIRCULAR is the adjoint of the circular convolution of an image of n times the stride
    array x = random_array(image(1, 3, 2, 2)), w = random_array(image(4, 3, 3, 2)), back = random_array(image(4, 3, 2, 3));
    nt_conv_desc d = { { 2, 3 }, { 0 }, 0, NT_CIRCULAR, { { 0 } }, { 0 } }, plain = d;
    for (int64_t k = 0; k < w.n; k++) back.v[(11 - k / 6) * 6 + k % 2 * 3 + k / 2 % 3] = w.v[k];
    plain.stride[0] = 2, plain.stride[1] = 3;
    nt_conv_desc wrap = plain;
    nt_tensor *up = nt_conv_transpose(tensor(x), tensor(back), &d), *adjoint = nt_conv_transpose_input(tensor(x), tensor(w), NT_SHAPE(1, 6, 6, 3), &wrap);
    array u = value(up), v = value(adjoint);
    int best = 0; // up to where the image begins: stride 2 and 3 place their centres differently
    for (int i = 0; i < 36 && !best; i++) {
        int same = 1;
        for (int64_t k = 0; k < 108; k++) {
            int64_t row = (k / 18 + i / 6) % 6, column = (k / 3 % 6 + i % 6) % 6;
            same &= same_number(u.v[k], v.v[row * 18 + column * 3 + k % 3], 1e-9);
        }
        best |= same;
    }
    tap_ok(best, "CIRCULAR is the adjoint of a circular convolution, shifted");

    nt_tensor *in = tensor(x), *kernel = tensor(w);
    d.lhs_dilation[0] = 2;
    refused(nt_conv_transpose(in, tensor(back), &d), NT_ERROR_ARGUMENT, "there is no .lhs_dilation");
    d.lhs_dilation[0] = 0, d.stride[0] = -1;
    refused(nt_conv_transpose(in, tensor(back), &d), NT_ERROR_ARGUMENT, "nt_conv_transpose: strides");
    refused(nt_conv_transpose(in, kernel, NULL), NT_ERROR_SHAPE, "x has 2 channels");
    refused(nt_conv_transpose(in, numbers(1, u.v), NULL), NT_ERROR_SHAPE, "of equal rank 3 to 5");
    plain.padding = (nt_padding)9;
    refused(nt_conv(in, tensor(back), &plain), NT_ERROR_ARGUMENT, "one of nt_padding");

    nt_layer *layer = nt_conv_transpose_layer(t, 5, NT_WINDOW(3, 3), &(nt_conv_layer_desc){ .conv = { .stride = { 2, 2 } }, .dtype = NT_F64 });
    nt_status status = nt_init(layer, nt_key(3), in);
    nt_params params = nt_parameters(layer);
    tap_ok(status == NT_OK && params.count == 2 && !strcmp(params.items[0]->name, "ConvTranspose_0/kernel") && !strcmp(params.items[1]->name, "ConvTranspose_0/bias"),
           "the layer has flax's names");
    nt_conv_desc two = { { 2, 2 }, { 0 }, 0, NT_SAME, { { 0 } }, { 0 } };
    array made = value(nt_add(nt_conv_transpose(in, params.items[0], &two), params.items[1]));
    tap_ok(equal(nt_apply(layer, in, NULL), made, 0, "layer") && made.shape.size[1] == 6 && made.shape.size[2] == 4, "and gives twice the size");
    refused((nt_tensor *)nt_conv_transpose_layer(t, 0, NT_WINDOW(3, 3), NULL), NT_ERROR_ARGUMENT, "nt_conv_transpose_layer: features must be 1 or more");
}

static void test_circular_pools(void) {
    int ok = 1;
    for (int64_t n = 1; n < 7; n++)
        for (int64_t window = 1; window < 6; window++)
            for (int64_t stride = 1; stride < 4; stride++) {
                int64_t out = (n + stride - 1) / stride, total = (out - 1) * stride + window - n, before = total > 0 ? total / 2 : 0;
                if (total < 0) out = (n - window) / stride + 1;
                array x = random_array(NT_SHAPE(2, n, 3)), sum = array_new(NT_SHAPE(2, out, 3)), mean = array_new(sum.shape), most = array_new(sum.shape);
                for (int64_t k = 0; k < sum.n; k++) {
                    most.v[k] = -INFINITY;
                    for (int64_t d = 0; d < window; d++) {
                        int64_t i = ((k / 3 % out * stride + d - before) % n + n) % n;
                        double v = x.v[(k / 3 / out * n + i) * 3 + k % 3];
                        sum.v[k] += v, most.v[k] = v > most.v[k] ? v : most.v[k];
                    }
                    mean.v[k] = sum.v[k] / (double)window;
                }
                nt_pool_desc d = { { (int)stride }, NT_CIRCULAR, { { 0 } }, n % 2 == 0 };
                nt_tensor *in = tensor(x);
                ok &= equal(nt_sum_pool(in, NT_WINDOW(window), &d), sum, 1e-12, "sum, n %d, window %d, stride %d", (int)n, (int)window, (int)stride);
                ok &= equal(nt_avg_pool(in, NT_WINDOW(window), &d), mean, 1e-12, "mean") && equal(nt_max_pool(in, NT_WINDOW(window), &d), most, 0, "max");
                pool_free(x.v), pool_free(sum.v), pool_free(mean.v), pool_free(most.v);
                nt_forget_nodes(t);
            }
    tap_ok(ok, "circular pooling: the image goes on around its ends");
}

// ---------------------------------------------------------------------------------------------------------------------
// Chance
// ---------------------------------------------------------------------------------------------------------------------
static void test_chance(void) {
    nt_tensor *key = nt_key_tensor(t, nt_key(5));
    array p = value(nt_sort(nt_permutation(key, 5000), 0)), some = value(nt_sort(nt_choice(key, 20, NT_SHAPE(4, 5), 0), -1));
    int all = 1, seen[20] = { 0 };
    for (int k = 0; k < 5000; k++) all &= p.v[k] == k;
    for (int k = 0; k < 20; k++) seen[(int)some.v[k]]++;
    for (int k = 0; k < 20; k++) all &= seen[k] == 1;
    tap_ok(all, "a permutation has every number once, and a choice of all of them without replacement");
    array x = random_array(NT_SHAPE(3, 40)), rows = value(nt_permutation_of(key, tensor(x), 1, 1));
    int apart = 1, differ = 0;
    for (int r = 0; r < 3; r++) {
        double before = 0, after = 0;
        for (int k = 0; k < 40; k++) before += x.v[r * 40 + k], after += rows.v[r * 40 + k];
        apart &= before == after;
    }
    array places = array_new(NT_SHAPE(2, 40));
    for (int k = 0; k < 80; k++) places.v[k] = k % 40;
    array order = value(nt_permutation_of(key, tensor(places), 1, 1)), together = value(nt_permutation_of(key, tensor(places), 1, 0));
    for (int k = 0; k < 40; k++) differ += order.v[k] != order.v[40 + k], apart &= together.v[k] == together.v[40 + k];
    tap_ok(apart && differ > 20, "lines are permuted by themselves, or alike");
    array logits = random_array(NT_SHAPE(3, 4));
    tap_ok(value(nt_categorical(key, tensor(logits), 0)).shape.size[0] == 4, "categorical along axis 0");
    double log_odds[] = { log(0.1), log(0.6), log(0.3), -INFINITY };
    array draws = value(nt_categorical_of_shape(key, numbers(4, log_odds), 0, NT_SHAPE(40000)));
    double count[4] = { 0 };
    for (int k = 0; k < 40000; k++) count[(int)draws.v[k]]++;
    // five standard deviations of a share of 40000 draws are less than 0.0125
    tap_ok(fabs(count[0] / 4e4 - 0.1) < 0.0125 && fabs(count[1] / 4e4 - 0.6) < 0.0125 && count[3] == 0, "categorical has the probabilities of softmax");
    refused(nt_choice(key, 3, NT_SHAPE(2, 2), 0), NT_ERROR_ARGUMENT, "4 numbers of 3 cannot be drawn without replacement");
    refused(nt_choice(key, 0, NT_SHAPE(2), 1), NT_ERROR_ARGUMENT, "2 numbers of 0");
    refused(nt_permutation(key, -1), NT_ERROR_SHAPE, "nt_permutation");
    refused(nt_permutation_of(key, tensor(x), 2, 0), NT_ERROR_ARGUMENT, "nt_permutation_of: axis 2");
    refused(nt_categorical_of_shape(key, tensor(logits), 0, NT_SHAPE(2, 3)), NT_ERROR_SHAPE, "does not end in that of the logits without axis 0");
    refused(nt_categorical(key, nt_scalar(t, NT_F64, 0), 0), NT_ERROR_ARGUMENT, "out of range for rank 0");
    refused(nt_categorical(key, nt_cast(tensor(x), NT_I32), 0), NT_ERROR_DTYPE, "i32");
}

// ---------------------------------------------------------------------------------------------------------------------
// Compositions: an error names the call that the host made, never one of its parts.
// ---------------------------------------------------------------------------------------------------------------------
static void test_names(void) {
    double ones[12];
    for (int k = 0; k < 12; k++) ones[k] = 1;
    nt_tensor *v = nt_constant(t, NT_F64, NT_SHAPE(3), ones), *m = nt_constant(t, NT_F64, NT_SHAPE(3, 4), ones), *i = nt_cast(v, NT_I32), *u = nt_cast(v, NT_U8),
              *image = nt_cast(nt_constant(t, NT_F64, NT_SHAPE(1, 2, 3, 2), ones), NT_I32), *key = nt_key_tensor(t, nt_key(1));
    refused(nt_top_k(v, 4).values, NT_ERROR_SHAPE, "nt_top_k(f64[3]): takes 0 to 3");
    refused(nt_sort(u, 0), NT_ERROR_DTYPE, "nt_sort(u8[3])");
    refused(nt_solve(m, v), NT_ERROR_SHAPE, "nt_solve(f64[3,4]): the matrix is not square");
    refused(nt_inv(m), NT_ERROR_SHAPE, "nt_inv(f64[3,4]): the matrix is not square");
    refused(nt_det(m), NT_ERROR_SHAPE, "nt_det(f64[3,4]): the matrix is not square");
    refused(nt_slogdet(m).log, NT_ERROR_SHAPE, "nt_slogdet(f64[3,4]): the matrix is not square");
    refused(nt_solve_spd(m, v), NT_ERROR_SHAPE, "nt_solve_spd(f64[3,4]): the matrix is not square");
    refused(nt_logdet_spd(m), NT_ERROR_SHAPE, "nt_logdet_spd(f64[3,4]): the matrix is not square");
    refused(nt_eigh(m).values, NT_ERROR_SHAPE, "nt_eigh(f64[3,4]): the matrix is not square");
    refused(nt_eigvalsh(m), NT_ERROR_SHAPE, "nt_eigvalsh(f64[3,4]): the matrix is not square");
    refused(nt_sym_sqrt(m), NT_ERROR_SHAPE, "nt_sym_sqrt(f64[3,4]): the matrix is not square");
    refused(nt_qr(v).q, NT_ERROR_SHAPE, "nt_qr(f64[3]): takes matrices");
    refused(nt_stack(NT_LIST(v, m), 0), NT_ERROR_SHAPE, "nt_stack(f64[1,3], f64[1,3,4])");
    refused(nt_slice_axis(v, 0, 2, 9), NT_ERROR_ARGUMENT, "nt_slice_axis(f64[3]): axis 0 takes");
    refused(nt_segment_sum(v, v, 3), NT_ERROR_DTYPE, "nt_segment_sum(");
    refused(nt_mean(i), NT_ERROR_DTYPE, "nt_mean(i32[3]): a mean of integers");
    refused(nt_mean_axes(v, NT_AXES(3), 0), NT_ERROR_ARGUMENT, "nt_mean_axes: axis 3");
    refused(nt_std_axes(i, NT_AXES(0), 0, 0), NT_ERROR_DTYPE, "nt_std_axes(i32[3])");
    refused(nt_norm_axes(i, NT_AXES(0), 0), NT_ERROR_DTYPE, "nt_norm_axes(i32[])");
    refused(nt_logsumexp_axes(v, NT_AXES(4), 0), NT_ERROR_ARGUMENT, "nt_logsumexp_axes: axis 4");
    refused(nt_sigmoid_cross_entropy(v, m), NT_ERROR_SHAPE, "nt_sigmoid_cross_entropy(");
    refused(nt_huber(v, m, 1), NT_ERROR_SHAPE, "nt_huber(f64[3], f64[3,4])");
    refused(nt_layer_norm(i, NULL, NULL, 1), NT_ERROR_DTYPE, "nt_layer_norm(i32[3])");
    refused(nt_batch_norm(image, NULL, NULL, 1), NT_ERROR_DTYPE, "nt_batch_norm(i32[1,2,3,2])");
    refused(nt_layer_norm_axes(m, v, NULL, NT_AXES(0), 1), NT_ERROR_SHAPE, "nt_layer_norm_axes(f64[3,4], f64[3])");
    refused(nt_conv_transpose(m, v, NULL), NT_ERROR_SHAPE, "nt_conv_transpose(f64[3,4], f64[3])");
    refused(nt_avg_pool(image, NT_WINDOW(2, 2), NULL), NT_ERROR_DTYPE, "nt_avg_pool(i32[1,2,3,2])");
    refused(nt_dense(m, m, NULL), NT_ERROR_SHAPE, "nt_dense(f64[3,4], f64[3,4])");
    refused(nt_einsum("i,i", NT_LIST(v, i)), NT_ERROR_DTYPE, "nt_einsum(");
    refused(nt_uniform(v, NT_F32, NT_SHAPE(2), 0, 1), NT_ERROR_ARGUMENT, "nt_uniform(f64[3]): a key is u32[2]");
    refused(nt_permutation(v, 3), NT_ERROR_ARGUMENT, "nt_permutation(f64[3]): a key is u32[2]");
    refused(nt_choice(v, 3, NT_SHAPE(2), 0), NT_ERROR_ARGUMENT, "nt_choice(f64[3]): a key is u32[2]");
    refused(nt_categorical(key, i, 0), NT_ERROR_DTYPE, "nt_categorical(i32[3])");
    refused(nt_neg(u), NT_ERROR_DTYPE, "nt_neg(u8[3])"); // after all those, a call is itself again

    static nt_tensor *(*const parts[])(nt_tensor *) = { nt_relu6, nt_hard_tanh, nt_hard_sigmoid, nt_hard_silu, nt_selu, nt_mish, nt_soft_sign };
    static const char *const names[] = { "nt_relu6(i32[3])", "nt_hard_tanh(i32[3])", "nt_hard_sigmoid(i32[3])", "nt_hard_silu(i32[3])", "nt_selu(i32[3])", "nt_mish(i32[3])", "nt_soft_sign(i32[3])" };
    for (int k = 0; k < 7; k++) refused(parts[k](i), NT_ERROR_DTYPE, names[k]);
    refused(nt_huber(i, i, 1), NT_ERROR_DTYPE, "nt_huber(i32[3]): not defined for i32");
}

int main(void) {
    static void (*const tests[])(void) = { test_einsum, test_scans, test_sorts, test_dynamic, test_picks, test_layout, test_matrices, test_statistics,
                                           test_resize, test_convolutions, test_transposed, test_circular_pools, test_chance, test_names };
    for (size_t k = 0; k < sizeof tests / sizeof tests[0]; k++) {
        t = nt_tape_open(NULL);
        tests[k]();
        nt_tape_close(t);
    }
    pool_end();
    return tap_end();
}
