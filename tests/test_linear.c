// Linear algebra on random matrices of many sizes: factors multiplied again give the matrix, solutions the right side. What is
// called a residual is computed here in long double, and bounded by a few n eps of the norms that the theory has: backward errors of
// Householder's and Cholesky's factors, and of solutions by them, do not know the condition of the matrix.
#include "nttrain.h"
#include "pool.h"
#include "refused.h"
#include "tap.h"
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct matrix { int64_t m, n; double *at; } matrix;

static uint64_t state = 1;
static double dice(void) { // in (-1, 1)
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (double)(state >> 11) / 4503599627370496.0 - 1;
}

static matrix fresh(int64_t m, int64_t n) {
    matrix a = { m, n, (double *)pool_new((size_t)(m * n) + 1, sizeof(double)) };
    return a;
}

static double *at(matrix a, int64_t i, int64_t j) { return &a.at[i * a.n + j]; }

static matrix noise(int64_t m, int64_t n, nt_dtype dtype) { // numbers that the dtype holds
    matrix a = fresh(m, n);
    for (int64_t k = 0; k < m * n; k++) a.at[k] = dtype == NT_F32 ? (double)(float)dice() : dice();
    return a;
}

static matrix product(matrix a, int ta, matrix b, int tb) {
    int64_t m = ta ? a.n : a.m, n = tb ? b.m : b.n, depth = ta ? a.m : a.n;
    matrix c = fresh(m, n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            long double sum = 0;
            for (int64_t k = 0; k < depth; k++) sum += (long double)*(ta ? at(a, k, i) : at(a, i, k)) * *(tb ? at(b, j, k) : at(b, k, j));
            *at(c, i, j) = (double)sum;
        }
    return c;
}

static double norm(matrix a) { // Frobenius
    double sum = 0;
    for (int64_t k = 0; k < a.m * a.n; k++) sum += a.at[k] * a.at[k];
    return sqrt(sum);
}

static double distance(matrix a, matrix b) {
    double sum = 0;
    if (a.m != b.m || a.n != b.n) return HUGE_VAL;
    for (int64_t k = 0; k < a.m * a.n; k++) sum += (a.at[k] - b.at[k]) * (a.at[k] - b.at[k]);
    return sqrt(sum);
}

static matrix identity(int64_t n) {
    matrix a = fresh(n, n);
    for (int64_t k = 0; k < n; k++) *at(a, k, k) = 1;
    return a;
}

static double eps(nt_dtype dtype) { return dtype == NT_F64 ? DBL_EPSILON : (double)FLT_EPSILON; }
static double bound(nt_dtype dtype, int64_t n) { return 8 * eps(dtype) * (double)(n > 4 ? n : 4); }

// ---------------------------------------------------------------------------------------------------------------------
// Into and out of the library
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *record(nt_tape *t, nt_dtype dtype, matrix a) {
    nt_tensor *x = nt_variable(t, dtype, NT_SHAPE(a.m, a.n), NULL);
    for (int64_t k = 0; x && k < a.m * a.n; k++) {
        if (dtype == NT_F64) ((double *)nt_data(x))[k] = a.at[k];
        else ((float *)nt_data(x))[k] = (float)a.at[k];
    }
    return x;
}

static matrix value(nt_tensor *x) { // of any rank: the last axis are the columns
    int64_t n = x && x->rank ? x->shape[x->rank - 1] : 1, size = nt_size(x);
    matrix a = fresh(x && x->rank == 2 ? x->shape[0] : n ? size / n : 0, n);
    double *raw = (double *)calloc((size_t)size + 1, sizeof(double));
    if (!x || nt_eval(x, raw) != NT_OK) tap_note("%s", x ? nt_error(x->tape) : "not recorded");
    for (int64_t k = 0; k < size; k++) a.at[k] = x->dtype == NT_F64 ? raw[k] : (double)((float *)(void *)raw)[k];
    pool_free(raw);
    return a;
}

static int bad; // of the present sizes
static void expect(double got, double most, const char *what, nt_dtype dtype, int64_t m, int64_t n) {
    if (got <= most) return;
    if (bad++ < 5) tap_note("%s, %s, %lld x %lld: %g, not below %g", what, nt_dtype_name(dtype), (long long)m, (long long)n, got, most);
}

static void expect_orthonormal(matrix q, nt_dtype dtype, const char *what) { // columns
    matrix gram = product(q, 1, q, 0), one = identity(q.n);
    expect(distance(gram, one), bound(dtype, q.m) * sqrt((double)q.n + 1), what, dtype, q.m, q.n);
    pool_free(gram.at), pool_free(one.at);
}

// ---------------------------------------------------------------------------------------------------------------------
// Random matrices
// ---------------------------------------------------------------------------------------------------------------------
static matrix positive(int64_t n, nt_dtype dtype) { // G G^T + n / 10, rounded to the dtype; not quite symmetric: it counts as its half
    matrix g = noise(n, n, dtype), a = product(g, 0, g, 1);
    for (int64_t k = 0; k < n; k++) *at(a, k, k) += 0.1 * (double)n + 0.1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < i; j++) *at(a, i, j) += 0.125 * (double)(i - j), *at(a, j, i) -= 0.125 * (double)(i - j);
    for (int64_t k = 0; dtype == NT_F32 && k < n * n; k++) a.at[k] = (double)(float)a.at[k];
    pool_free(g.at);
    return a;
}

static matrix symmetric_part(matrix a) {
    matrix s = fresh(a.n, a.n);
    for (int64_t i = 0; i < a.n; i++)
        for (int64_t j = 0; j < a.n; j++) *at(s, i, j) = 0.5 * *at(a, i, j) + 0.5 * *at(a, j, i);
    return s;
}

static void check_positive(int64_t n, nt_dtype dtype) {
    nt_tape *t = nt_tape_open(NULL);
    matrix a = positive(n, dtype), s = symmetric_part(a), b = noise(n, 3, dtype);
    nt_tensor *x = record(t, dtype, a), *y = record(t, dtype, b);
    matrix l = value(nt_cholesky(x)), back = product(l, 0, l, 1), z = value(nt_solve_spd(x, y)), logdet = value(nt_logdet_spd(x));
    double sum = 0, size = 1;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) expect(j > i ? fabs(*at(l, i, j)) : j == i ? -*at(l, i, j) : 0, 0, "nt_cholesky: not a lower triangle", dtype, n, n);
    expect(distance(back, s), bound(dtype, n) * norm(s), "nt_cholesky: L L^T", dtype, n, n);
    for (int64_t k = 0; k < n; k++) sum += 2 * log(*at(l, k, k)), size += 2 * fabs(log(*at(l, k, k)));
    expect(fabs(logdet.at[0] - sum), bound(dtype, n) * size, "nt_logdet_spd", dtype, n, n);
    matrix residual = product(s, 0, z, 0);
    expect(distance(residual, b), bound(dtype, n) * norm(s) * norm(z), "nt_solve_spd", dtype, n, n);
    pool_free(a.at), pool_free(s.at), pool_free(b.at), pool_free(l.at), pool_free(back.at), pool_free(z.at), pool_free(logdet.at), pool_free(residual.at);
    nt_tape_close(t);
}

static long double naive_log_det(matrix a, int *sign) { // Gauss in long double
    int64_t n = a.n;
    long double *w = (long double *)calloc((size_t)(n * n) + 1, sizeof *w), sum = 0;
    for (int64_t k = 0; k < n * n; k++) w[k] = a.at[k];
    *sign = 1;
    for (int64_t k = 0; k < n; k++) {
        int64_t p = k;
        for (int64_t i = k; i < n; i++)
            if (fabsl(w[i * n + k]) > fabsl(w[p * n + k])) p = i;
        for (int64_t j = 0; j < n && p != k; j++) {
            long double x = w[k * n + j];
            w[k * n + j] = w[p * n + j], w[p * n + j] = x;
        }
        if (p != k) *sign = -*sign;
        if (w[k * n + k] < 0) *sign = -*sign;
        sum += logl(fabsl(w[k * n + k]));
        for (int64_t i = k + 1; i < n; i++)
            for (int64_t j = n - 1; j >= k; j--) w[i * n + j] -= w[i * n + k] / w[k * n + k] * w[k * n + j];
    }
    pool_free(w);
    return sum;
}

static void check_general(int64_t n, nt_dtype dtype) { // pivots grow little on random matrices: 4 is kept for it
    nt_tape *t = nt_tape_open(NULL);
    matrix a = noise(n, n, dtype), b = noise(n, 4, dtype), one = identity(n);
    nt_tensor *x = record(t, dtype, a), *y = record(t, dtype, b);
    nt_sign_log d = nt_slogdet(x);
    matrix z = value(nt_solve(x, y)), residual = product(a, 0, z, 0), inverse = value(nt_inv(x)), unit = product(a, 0, inverse, 0);
    matrix sign = value(d.sign), log = value(d.log), det = value(nt_det(x));
    int wanted;
    double exact = (double)naive_log_det(a, &wanted);
    expect(distance(residual, b), 4 * bound(dtype, n) * norm(a) * norm(z), "nt_solve", dtype, n, n);
    expect(distance(unit, one), 4 * bound(dtype, n) * norm(a) * norm(inverse), "nt_inv", dtype, n, n);
    double loose = 4 * bound(dtype, n) * norm(a) * norm(inverse); // log det moves by the trace of A^-1 dA
    expect(fabs(log.at[0] - exact), loose + bound(dtype, n) * fabs(exact), "nt_slogdet: log", dtype, n, n);
    if (loose < 0.5) expect(fabs(sign.at[0] - wanted), 0, "nt_slogdet: sign", dtype, n, n);
    if (fabs(exact) < 60 && loose < 0.5) expect(fabs(det.at[0] * wanted * exp(-exact) - 1), 2 * loose + bound(dtype, n) * (1 + fabs(exact)), "nt_det", dtype, n, n);
    pool_free(a.at), pool_free(b.at), pool_free(one.at), pool_free(z.at), pool_free(residual.at), pool_free(inverse.at), pool_free(unit.at), pool_free(sign.at), pool_free(log.at), pool_free(det.at);
    nt_tape_close(t);
}

// All sixteen kinds; what is not to be read is NaN.
static void check_triangular(int64_t n, int64_t m, nt_dtype dtype) {
    nt_tape *t = nt_tape_open(NULL);
    for (int kind = 0; kind < 16; kind++) {
        nt_triangular_desc d = { kind & 1, kind >> 1 & 1, kind >> 2 & 1, kind >> 3 & 1 };
        matrix a = noise(n, n, dtype), clean = fresh(n, n), b = d.right ? noise(m, n, dtype) : noise(n, m, dtype);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) {
                int read = d.upper ? j > i : j < i;
                *at(a, i, j) *= read ? 2.0 / (double)n : 1; // so that solutions stay small
                if (i == j) *at(a, i, j) = 1.5;
                if (dtype == NT_F32) *at(a, i, j) = (double)(float)*at(a, i, j);
                *at(clean, i, j) = read ? *at(a, i, j) : i != j ? 0 : d.unit ? 1 : *at(a, i, j);
                if (!read && (i != j || d.unit)) *at(a, i, j) = (double)NAN;
            }
        matrix x = value(nt_triangular_solve(record(t, dtype, a), record(t, dtype, b), &d));
        matrix residual = d.right ? product(x, 0, clean, d.transpose) : product(clean, d.transpose, x, 0);
        expect(distance(residual, b), bound(dtype, n) * norm(clean) * norm(x), "nt_triangular_solve", dtype, n, m);
        pool_free(a.at), pool_free(clean.at), pool_free(b.at), pool_free(x.at), pool_free(residual.at);
    }
    nt_tape_close(t);
}

static void check_eigen_of(matrix a, nt_dtype dtype, const char *what) {
    nt_tape *t = nt_tape_open(NULL);
    int64_t n = a.n;
    matrix s = symmetric_part(a);
    nt_tensor *x = record(t, dtype, a);
    nt_eigen e = nt_eigh(x);
    matrix w = value(e.values), v = value(e.vectors), alone = value(nt_eigvalsh(x)), scaled = fresh(n, n);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) *at(scaled, i, j) = *at(v, i, j) * w.at[j];
    matrix back = product(scaled, 0, v, 1);
    expect(distance(back, s), bound(dtype, n) * norm(s), what, dtype, n, n);
    expect(distance(alone, w), bound(dtype, n) * norm(s), "nt_eigvalsh against nt_eigh", dtype, n, n);
    expect_orthonormal(v, dtype, "nt_eigh: V^T V");
    for (int64_t k = 1; k < n; k++) expect(w.at[k - 1], w.at[k], "nt_eigh: not ascending", dtype, n, n);
    for (int64_t j = 0; j < n; j++) {
        double top = 0;
        for (int64_t i = 0; i < n; i++)
            if (fabs(*at(v, i, j)) > fabs(top)) top = *at(v, i, j);
        expect(-top, 0, "nt_eigh: the largest element of a vector is negative", dtype, n, n);
    }
    pool_free(s.at), pool_free(w.at), pool_free(v.at), pool_free(alone.at), pool_free(scaled.at), pool_free(back.at);
    nt_tape_close(t);
}

static void check_eigen(int64_t n, nt_dtype dtype) {
    matrix a = noise(n, n, dtype), p = positive(n, dtype), s = symmetric_part(p);
    check_eigen_of(a, dtype, "nt_eigh: V w V^T");
    nt_tape *t = nt_tape_open(NULL);
    matrix root = value(nt_sym_sqrt(record(t, dtype, p))), square = product(root, 0, root, 0);
    expect(distance(square, s), bound(dtype, n) * norm(s), "nt_sym_sqrt: S S", dtype, n, n);
    pool_free(a.at), pool_free(p.at), pool_free(s.at), pool_free(root.at), pool_free(square.at);
    nt_tape_close(t);
}

static void check_qr_of(matrix a, nt_dtype dtype) {
    nt_tape *t = nt_tape_open(NULL);
    int64_t k = a.m < a.n ? a.m : a.n;
    nt_qr_factors f = nt_qr(record(t, dtype, a));
    matrix q = value(f.q), r = value(f.r), back = product(q, 0, r, 0);
    expect(q.m != a.m || q.n != k || r.n != a.n || (a.n && r.m != k), 0, "nt_qr: shapes", dtype, a.m, a.n);
    for (int64_t i = 0; i < r.m; i++)
        for (int64_t j = 0; j < i; j++) expect(fabs(*at(r, i, j)), 0, "nt_qr: R is not upper", dtype, a.m, a.n);
    for (int64_t j = 0; j < a.n; j++) { // column by column: each of its own size
        double off = 0, size = 0;
        for (int64_t i = 0; i < a.m; i++) off += pow(*at(back, i, j) - *at(a, i, j), 2), size += pow(*at(a, i, j), 2);
        expect(sqrt(off), bound(dtype, a.m) * sqrt(size), "nt_qr: Q R", dtype, a.m, a.n);
    }
    expect_orthonormal(q, dtype, "nt_qr: Q^T Q");
    pool_free(q.at), pool_free(r.at), pool_free(back.at);
    nt_tape_close(t);
}

static void check_qr(int64_t m, int64_t n, nt_dtype dtype) {
    matrix a = noise(m, n, dtype);
    check_qr_of(a, dtype);
    pool_free(a.at);
}

static void check_sizes(void (*check)(int64_t n, nt_dtype dtype), const char *what) {
    static const int64_t some[] = { 0, 1, 2, 3, 4, 5, 7, 16, 31, 32, 33, 63, 64, 65, 70, 129, 300 };
    for (int d = 0; d < 2; d++) {
        nt_dtype dtype = d ? NT_F64 : NT_F32;
        bad = 0;
        for (size_t k = 0; k < sizeof some / sizeof some[0]; k++) check(some[k], dtype);
        for (int k = 0; k < 12; k++) check((int64_t)(fabs(dice()) * 71), dtype);
        tap_ok(!bad, "%s: random matrices, %s", what, nt_dtype_name(dtype));
    }
}

static void check_qr_any(int64_t n, nt_dtype dtype) {
    check_qr(n, n, dtype);
    check_qr(n + (int64_t)(fabs(dice()) * 40), n, dtype);
    check_qr(n, n + (int64_t)(fabs(dice()) * 40), dtype);
}

static void check_triangular_any(int64_t n, nt_dtype dtype) { check_triangular(n, n % 3 ? 1 + n % 7 : 260 - (n > 100) * 250, dtype); }

// ---------------------------------------------------------------------------------------------------------------------
// Special matrices
// ---------------------------------------------------------------------------------------------------------------------
static matrix scaled(matrix a, double by) {
    for (int64_t k = 0; k < a.m * a.n; k++) a.at[k] *= by;
    return a;
}

static matrix duplicates(int64_t n, nt_dtype dtype) { // I + a projector of rank one: n - 1 equal eigenvalues
    matrix v = noise(n, 1, dtype), a = product(v, 0, v, 1);
    double squares = norm(v) * norm(v);
    for (int64_t k = 0; k < n * n; k++) a.at[k] /= squares;
    for (int64_t k = 0; k < n; k++) *at(a, k, k) += 1;
    for (int64_t k = 0; dtype == NT_F32 && k < n * n; k++) a.at[k] = (double)(float)a.at[k];
    pool_free(v.at);
    return a;
}

static void test_special(nt_dtype dtype) {
    static const int64_t sizes[] = { 1, 2, 5, 40, 70 };
    double huge = 1e30, tiny = 1e-30;
    bad = 0;
    for (size_t k = 0; k < sizeof sizes / sizeof sizes[0]; k++) {
        int64_t n = sizes[k];
        matrix list[6] = { identity(n), fresh(n, n), duplicates(n, dtype), scaled(noise(n, n, dtype), huge), scaled(noise(n, n, dtype), tiny), fresh(n, n) };
        for (int64_t i = 0; i < n; i++) *at(list[5], i, i) = i % 2 ? huge : tiny; // both in one
        for (int j = 0; j < 6; j++) {
            for (int64_t i = 0; dtype == NT_F32 && i < n * n; i++) list[j].at[i] = (double)(float)list[j].at[i];
            check_eigen_of(list[j], dtype, "nt_eigh: V w V^T of a special matrix");
            check_qr_of(list[j], dtype);
            pool_free(list[j].at);
        }
        matrix graded = noise(n, n, dtype); // columns of all sizes: Q R is right in each
        for (int64_t i = 0; i < n; i++)
            for (int64_t c = 0; c < n; c++) *at(graded, i, c) = ldexp(*at(graded, i, c), (int)(c * 7 % 41) - 20);
        check_qr_of(graded, dtype);
        pool_free(graded.at);
        for (int j = 0; j < 2; j++) { // Cholesky and solves at both scales
            double by = j ? huge : tiny;
            nt_tape *t = nt_tape_open(NULL);
            matrix a = scaled(positive(n, dtype), by), b = noise(n, 2, dtype), s;
            for (int64_t i = 0; dtype == NT_F32 && i < n * n; i++) a.at[i] = (double)(float)a.at[i];
            s = symmetric_part(a);
            matrix l = value(nt_cholesky(record(t, dtype, a))), back = product(l, 0, l, 1);
            matrix x = value(nt_solve(record(t, dtype, a), record(t, dtype, b))), residual = product(a, 0, x, 0);
            expect(distance(back, s), bound(dtype, n) * norm(s), "nt_cholesky at 1e+-30", dtype, n, n);
            expect(distance(residual, b), 4 * bound(dtype, n) * norm(a) * norm(x), "nt_solve at 1e+-30", dtype, n, n);
            pool_free(a.at), pool_free(b.at), pool_free(s.at), pool_free(l.at), pool_free(back.at), pool_free(x.at), pool_free(residual.at);
            nt_tape_close(t);
        }
    }
    tap_ok(!bad, "identity, zeros, equal eigenvalues, 1e-30 and 1e30: %s", nt_dtype_name(dtype));
}

static int count_nan(matrix a) {
    int n = 0;
    for (int64_t k = 0; k < a.m * a.n; k++) n += a.at[k] != a.at[k];
    pool_free(a.at);
    return n;
}

static int finite(matrix a) {
    int all = 1;
    for (int64_t k = 0; k < a.m * a.n; k++) all &= a.at[k] - a.at[k] == 0;
    pool_free(a.at);
    return all;
}

static double first(nt_tensor *x) {
    matrix a = value(x);
    double number = a.at[0];
    pool_free(a.at);
    return number;
}

static void test_failures(nt_dtype dtype, int64_t n) {
    nt_tape *t = nt_tape_open(NULL);
    int64_t lower = n * (n + 1) / 2;
    for (int64_t place = 0; place < n; place += n > 3 ? n / 3 : 1) { // the pivot that fails
        matrix a = positive(n, dtype);
        *at(a, place, place) = -1;
        tap_ok(count_nan(value(nt_cholesky(record(t, dtype, a)))) == lower, "a matrix of %lld rows that is not positive definite: NaN in the triangle (%lld)", (long long)n, (long long)place);
        pool_free(a.at);
    }
    matrix zero = fresh(n, n), singular = noise(n, n, dtype), b = noise(n, 2, dtype);
    for (int64_t k = 0; k < n; k++) *at(singular, k, n - 1) = 0;
    tap_ok(count_nan(value(nt_cholesky(record(t, dtype, zero)))) == lower, "a zero matrix is not positive definite");
    tap_ok(!finite(value(nt_solve(record(t, dtype, singular), record(t, dtype, b)))), "a singular system has no finite solution");
    nt_sign_log d = nt_slogdet(record(t, dtype, singular));
    tap_ok(first(nt_det(record(t, dtype, singular))) == 0 && first(d.sign) == 0 && first(d.log) == -HUGE_VAL, "a singular matrix has determinant 0");
    for (int kind = 0; kind < 3; kind++)
        for (int where = 0; where < 2; where++) {
            matrix a = positive(n, dtype);
            *at(a, where ? n - 1 : 0, n / 2) = kind == 2 ? -HUGE_VAL : kind ? HUGE_VAL : (double)NAN;
            nt_tensor *x = record(t, dtype, a), *y = record(t, dtype, b);
            nt_eigen e = nt_eigh(x);
            int eigen = count_nan(value(e.values)) == n && count_nan(value(e.vectors)) == n * n && count_nan(value(nt_eigvalsh(x))) == n;
            int others = !finite(value(nt_cholesky(x))) && !finite(value(nt_qr(x).q)) && !finite(value(nt_sym_sqrt(x))) && (kind || !finite(value(nt_inv(x)))); // a pivot of inf makes zeros
            value(nt_solve(x, y)), value(nt_solve_spd(x, y)), value(nt_det(x)), value(nt_slogdet(x).log), value(nt_logdet_spd(x)), value(nt_triangular_solve(x, y, NULL));
            tap_ok(eigen && others, "%s in a matrix of %lld rows gives NaN, and an end", kind == 2 ? "-inf" : kind ? "inf" : "NaN", (long long)n);
            pool_free(a.at);
        }
    matrix minus = scaled(identity(n), -1);
    tap_ok(count_nan(value(nt_sym_sqrt(record(t, dtype, minus)))) == n * n, "the root of a negative matrix is NaN");
    pool_free(zero.at), pool_free(singular.at), pool_free(b.at), pool_free(minus.at);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Derivatives where formulas with gaps would fail; batches; errors
// ---------------------------------------------------------------------------------------------------------------------
static void test_derivatives(void) {
    nt_tape *t = nt_tape_open(NULL);
    matrix one = identity(3), m = noise(3, 3, NT_F64), s = symmetric_part(m);
    nt_tensor *x = record(t, NT_F64, one), *g = record(t, NT_F64, m);
    nt_tensor *y = nt_sum(nt_mul(nt_sym_sqrt(x), g));
    matrix d = value(nt_grad(y, x)); // sqrt(I + h) = I + h / 2 - h h / 8
    tap_ok(distance(d, scaled(symmetric_part(m), 0.5)) < 1e-14, "the root of the identity has the derivative 1/2, symmetrised");
    nt_tensor *h = nt_jvp(NT_LIST(nt_grad(y, x)), NT_LIST(x), NT_LIST(g)).items[0];
    matrix second = value(h), square = scaled(product(s, 0, s, 0), -0.25 * 1.0);
    // <g, -h h / 8> twice differentiated along h and g: -(s h + h s) / 8 paired, symmetric: -s s / 4 at h = g
    tap_ok(distance(second, square) < 1e-13, "and a second derivative");
    nt_tensor *w = nt_eigvalsh(x);
    d = value(nt_grad(nt_sum(w), x));
    tap_ok(distance(d, one) < 1e-14, "equal eigenvalues: their sum is the trace");
    d = value(nt_grad(nt_sum(nt_square(nt_eigh(x).values)), x));
    tap_ok(distance(d, scaled(identity(3), 2)) < 1e-14, "equal eigenvalues: nt_eigh's have a derivative as well");
    tap_ok(!finite(value(nt_grad(nt_sum(nt_mul(nt_eigh(x).vectors, g)), x))), "equal eigenvalues: vectors have none that is finite");
    matrix p = positive(4, NT_F64);
    nt_tensor *a = record(t, NT_F64, p);
    matrix inverse = value(nt_inv(nt_swap_axes(a, 0, 1)));
    d = value(nt_grad(nt_slogdet(a).log, a));
    tap_ok(distance(d, inverse) < 1e-13 * norm(inverse), "log |det|: the gradient is the transposed inverse");
    d = value(nt_grad(nt_slogdet(a).sign, a));
    tap_ok(norm(d) == 0, "the sign has the derivative zero");
    tap_ok(!nt_error(t), "no error: %s", nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
}

// A batch gives the bits of its members; leading axes broadcast, vectors are columns.
static void test_batches(void) {
    nt_tape *t = nt_tape_open(NULL);
    enum { B = 3, N = 5 };
    double data[B * N * N], one[N * N], out[B * N * N];
    int same = 1;
    for (int k = 0; k < B; k++) {
        matrix p = positive(N, NT_F64);
        memcpy(data + k * N * N, p.at, sizeof one);
        pool_free(p.at);
    }
    nt_tensor *x = nt_constant(t, NT_F64, NT_SHAPE(B, N, N), data), *b = nt_constant(t, NT_F64, NT_SHAPE(N, 2), data);
    for (int op = 0; op < 8; op++) {
        nt_tensor *all = NULL;
        for (int k = -1; k < B; k++) {
            nt_tensor *z = k < 0 ? x : nt_reshape(nt_slice_axis(x, 0, k, k + 1), NT_SHAPE(N, N));
            nt_tensor *y = op == 0   ? nt_cholesky(z)
                           : op == 1 ? nt_solve(z, b)
                           : op == 2 ? nt_inv(z)
                           : op == 3 ? nt_det(z)
                           : op == 4 ? nt_eigh(z).vectors
                           : op == 5 ? nt_qr(z).r
                           : op == 6 ? nt_sym_sqrt(z)
                                     : nt_solve_spd(z, b);
            size_t bytes = nt_bytes(y);
            if (k < 0) all = y, nt_eval(all, out);
            else same &= nt_eval(y, one) == NT_OK && !memcmp(one, (char *)out + (size_t)k * bytes, bytes);
        }
    }
    tap_ok(same, "a batch gives the bits of its members");
    nt_tensor *v = nt_constant(t, NT_F64, NT_SHAPE(N), data), *column = nt_reshape(v, NT_SHAPE(N, 1));
    nt_tensor *pairs[3][2] = { { nt_solve(x, v), nt_solve(x, column) },
                               { nt_triangular_solve(x, v, NULL), nt_triangular_solve(x, column, NULL) },
                               { nt_solve_spd(x, v), nt_solve_spd(x, column) } };
    for (int k = 0; k < 3; k++) {
        tap_ok(pairs[k][0] && pairs[k][0]->rank == 2 && pairs[k][1]->rank == 3 && nt_eval(pairs[k][0], one) == NT_OK && nt_eval(pairs[k][1], out) == NT_OK &&
                   !memcmp(one, out, B * N * sizeof(double)), "a vector is a column");
    }
    nt_tape_close(t);
}

static void test_errors(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *wide = nt_full(t, NT_F32, NT_SHAPE(2, 3), 1), *vector = nt_full(t, NT_F32, NT_SHAPE(3), 1), *whole = nt_full(t, NT_I32, NT_SHAPE(3, 3), 1);
    nt_tensor *square = nt_full(t, NT_F32, NT_SHAPE(3, 3), 1), *other = nt_full(t, NT_F64, NT_SHAPE(3, 1), 1), *batch = nt_full(t, NT_F32, NT_SHAPE(2, 3, 3), 1);
    nt_triangular_desc right = { 1, 0, 0, 0 };
    refused(t, nt_cholesky(wide), NT_ERROR_SHAPE, "nt_cholesky|not square", "is an error");
    refused(t, nt_cholesky(vector), NT_ERROR_SHAPE, "nt_cholesky|rank 2", "is an error");
    refused(t, nt_cholesky(whole), NT_ERROR_DTYPE, "nt_cholesky|i32", "is an error");
    refused(t, nt_inv(wide), NT_ERROR_SHAPE, "nt_inv(|not square", "is an error");
    refused(t, nt_det(wide), NT_ERROR_SHAPE, "nt_det(|not square", "is an error");
    refused(t, nt_slogdet(whole).log, NT_ERROR_DTYPE, "nt_slogdet(|i32", "is an error");
    refused(t, nt_eigh(wide).values, NT_ERROR_SHAPE, "nt_eigh|not square", "is an error");
    refused(t, nt_eigvalsh(vector), NT_ERROR_SHAPE, "nt_eigvalsh(|rank 2", "is an error");
    refused(t, nt_sym_sqrt(wide), NT_ERROR_SHAPE, "nt_sym_sqrt(|not square", "is an error");
    refused(t, nt_qr(vector).q, NT_ERROR_SHAPE, "nt_qr|rank 2", "is an error");
    refused(t, nt_qr(whole).r, NT_ERROR_DTYPE, "nt_qr|i32", "is an error");
    refused(t, nt_solve(square, other), NT_ERROR_DTYPE, "nt_solve|f64", "is an error");
    refused(t, nt_solve(square, nt_full(t, NT_F32, NT_SHAPE(4, 1), 1)), NT_ERROR_SHAPE, "nt_solve|(n, m)", "is an error");
    refused(t, nt_solve(batch, nt_full(t, NT_F32, NT_SHAPE(5, 3, 1), 1)), NT_ERROR_SHAPE, "nt_solve|broadcast", "is an error");
    refused(t, nt_solve(vector, vector), NT_ERROR_SHAPE, "nt_solve|matri", "is an error");
    refused(t, nt_triangular_solve(square, wide, NULL), NT_ERROR_SHAPE, "nt_triangular_solve|(n, m)", "is an error");
    refused(t, nt_triangular_solve(square, nt_full(t, NT_F32, NT_SHAPE(3, 2), 1), &right), NT_ERROR_SHAPE, "nt_triangular_solve|(m, n)", "is an error");
    refused(t, nt_triangular_solve(whole, whole, NULL), NT_ERROR_DTYPE, "nt_triangular_solve|f32", "is an error");
    tap_ok(!nt_cholesky(NULL) && !nt_solve(NULL, square) && !nt_solve(square, NULL) && !nt_eigh(NULL).values && !nt_qr(NULL).q && !nt_inv(NULL) && !nt_error(t), "NULL is NULL");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// The orthogonal initializer
// ---------------------------------------------------------------------------------------------------------------------
static void test_orthogonal(void) {
    static const int64_t shapes[][5] = { { 2, 7, 7 }, { 2, 40, 90 }, { 2, 90, 40 }, { 4, 3, 3, 5, 16 }, { 3, 2, 3, 70 }, { 2, 1, 9 }, { 2, 0, 3 } };
    bad = 0;
    for (size_t k = 0; k < sizeof shapes / sizeof shapes[0]; k++)
        for (int d = 0; d < 2; d++) {
            nt_dtype dtype = d ? NT_F64 : NT_F32;
            nt_shape shape = nt_shape_make((int)shapes[k][0], shapes[k] + 1);
            int64_t last = shape.size[shape.rank - 1], rows = 1;
            for (int a = 0; a < shape.rank - 1; a++) rows *= shape.size[a];
            nt_init_desc desc;
            memset(&desc, 0, sizeof desc);
            desc.kind = NT_ORTHOGONAL, desc.scale = k == 1 ? 2 : 0;
            double *data = (double *)calloc((size_t)(rows * last) + 1, sizeof(double));
            if (nt_initialize(nt_key(3), &desc, dtype, shape, data) != NT_OK) bad++;
            matrix q = last > rows ? fresh(last, rows) : fresh(rows, last); // orthonormal columns
            for (int64_t i = 0; i < rows; i++)
                for (int64_t j = 0; j < last; j++) *(last > rows ? at(q, j, i) : at(q, i, j)) = (d ? data[i * last + j] : (double)((float *)(void *)data)[i * last + j]) / (k == 1 ? 2 : 1);
            expect_orthonormal(q, dtype, "NT_ORTHOGONAL");
            pool_free(q.at), pool_free(data);
        }
    tap_ok(!bad, "orthogonal weights are orthonormal along the shorter side");
    float number;
    nt_init_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kind = NT_ORTHOGONAL;
    tap_ok(nt_initialize(nt_key(1), &desc, NT_F32, NT_SHAPE(1), &number) == NT_ERROR_SHAPE, "a vector cannot be orthogonal");
}

int main(void) {
    check_sizes(check_positive, "Cholesky, positive definite systems");
    check_sizes(check_general, "LU, inverses, determinants");
    check_sizes(check_triangular_any, "triangular systems of all kinds");
    check_sizes(check_eigen, "eigenvalues, eigenvectors, square roots");
    check_sizes(check_qr_any, "QR, tall, square and wide");
    test_special(NT_F64);
    test_special(NT_F32);
    test_failures(NT_F64, 5);
    test_failures(NT_F32, 70);
    test_derivatives();
    test_batches();
    test_errors();
    test_orthogonal();
    pool_end();
    return tap_end();
}
