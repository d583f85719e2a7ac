// Predictions from kernel matrices: reference values of neural networks' ensembles, matrix exponentials by their series, gradient descent step by
// step, identities, solvers against each other, bad kernels and what is said of them, threads, every allocation failing.
#include "nttrain.h"
#include "heap.h"
#include "pool.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define CLEAR(d) memset(&(d), 0, sizeof(d))
#define MAX_N 400
static nt_tape *t;
static const double FOREVER = INFINITY;

// ---------------------------------------------------------------------------------------------------------------------
// Arrays
// ---------------------------------------------------------------------------------------------------------------------
static double *numbers(int64_t n) { return (double *)pool_new((size_t)n, sizeof(double)); }

static double *copy_of(const double *x, int64_t n) {
    double *y = numbers(n);
    memcpy(y, x, (size_t)n * sizeof *y);
    return y;
}

static uint64_t seed = 1;
static double chance(void) { // -1 to 1
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (double)(seed >> 11) / 4503599627370496.0 - 1;
}

static double *random_numbers(int64_t n) {
    double *x = numbers(n);
    for (int64_t k = 0; k < n; k++) x[k] = chance();
    return x;
}

static double off(const double *got, const double *want, int64_t n) { // relative to the largest number
    double worst = 0, top = 0;
    for (int64_t k = 0; k < n; k++) {
        double e = fabs(got[k] - want[k]);
        if (!(e <= worst)) worst = e;
        top = fmax(top, fabs(want[k]));
    }
    return top > 0 ? worst / top : worst;
}

static int close_to(const double *got, const double *want, int64_t n, double tolerance, const char *name) {
    double e = off(got, want, n);
    return tap_ok(e <= tolerance, "%s (%.2g of %.2g)", name, e, tolerance);
}

static void product(double *c, const double *a, const double *b, int64_t m, int64_t k, int64_t n) { // c (m, n) = a b
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            double sum = 0;
            for (int64_t q = 0; q < k; q++) sum += a[i * k + q] * b[q * n + j];
            c[i * n + j] = sum;
        }
}

static double *gram(const double *x, int64_t n, int64_t m, const double *z, int64_t k) { // (k, n): z x^T of rows of m
    double *g = numbers(k * n);
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++)
            for (int64_t q = 0; q < m; q++) g[i * n + j] += z[i * m + q] * x[j * m + q];
    return g;
}

static nt_factor *factor(const double *kernel, int64_t n, nt_solver solver, double ridge) {
    nt_factor_desc d;
    CLEAR(d);
    d.dtype = NT_F64, d.n = n, d.kernel = kernel, d.solver = solver, d.ridge = ridge;
    return nt_factor_make(t, &d);
}

// The error of the last call says all of these words; it is cleared.
static void says(nt_status got, nt_status want, const char *words, const char *name) {
    const char *message = nt_error(t) ? nt_error(t) : "";
    int ok = got == want;
    char text[256];
    snprintf(text, sizeof text, "%s", words);
    for (char *word = strtok(text, "|"); word; word = strtok(NULL, "|")) ok = ok && strstr(message, word);
    tap_ok(ok, "%s: %s: %s", name, nt_status_name(got), message);
    nt_error_clear(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Values of the reference: Dense(W 1.5, b 0.1), Erf, Dense(W 1.2, b 0.2) on cosines; three training examples, two test examples
// ---------------------------------------------------------------------------------------------------------------------
static void erf_network(const double *x, int64_t n, int64_t m, const double *z, int64_t k, const double w[2], const double b[2], double *nngp, double *ntk) {
    const double pi = 3.14159265358979323846;
    for (int64_t i = 0; i < k; i++)
        for (int64_t j = 0; j < n; j++) {
            double q[3] = { 0, 0, 0 };
            for (int64_t c = 0; c < m; c++)
                q[0] += z[i * m + c] * z[i * m + c], q[1] += x[j * m + c] * x[j * m + c], q[2] += z[i * m + c] * x[j * m + c];
            for (int c = 0; c < 3; c++) q[c] = w[0] * w[0] * q[c] / (double)m + b[0] * b[0];
            double root = sqrt((1 + 2 * q[0]) * (1 + 2 * q[1])), dual = 2 / pi * asin(2 * q[2] / root), slope = 4 / pi / sqrt(root * root - 4 * q[2] * q[2]);
            nngp[i * n + j] = w[1] * w[1] * dual + b[1] * b[1];
            ntk[i * n + j] = nngp[i * n + j] + w[1] * w[1] * slope * q[2];
        }
}

static double xd[15], xt[10], K[9], T[9], Ktd[6], Ttd[6], Ktt[4], Ttt[4];
static const double Y[6] = { 1, -1, .5, 0, -1, 2 }, F0[6] = { .1, -.2, .3, 0, 0, .4 }, G0[4] = { .05, .1, -.2, .3 };

static void cosines(void) {
    static const double w[2] = { 1.5, 1.2 }, b[2] = { 0.1, 0.2 };
    for (int k = 0; k < 15; k++) xd[k] = cos(0.5 + 0.3 * k);
    for (int k = 0; k < 10; k++) xt[k] = cos(0.5 + 0.3 * (k + 100));
    erf_network(xd, 3, 5, xd, 3, w, b, K, T), erf_network(xd, 3, 5, xt, 2, w, b, Ktd, Ttd), erf_network(xt, 2, 5, xt, 2, w, b, Ktt, Ttt);
}

static nt_predict_gp_desc gp_of(nt_gp gp) {
    nt_predict_gp_desc d;
    CLEAR(d);
    d.gp = gp, d.outputs = 2, d.y = Y, d.test = 2, d.nngp_dd = K, d.nngp_td = Ktd, d.nngp_tt = Ktt, d.ntk_td = Ttd, d.ntk_tt = Ttt;
    return d;
}

static void reference_gp(nt_gp gp, const double *kernel, double ridge, int times, const double *time, double rate, const double *mean, const double *cov, const char *name) {
    static const nt_solver solvers[] = { NT_CHOLESKY, NT_EIGEN, NT_CONJUGATE_GRADIENTS };
    for (int s = 0; s < 3; s++) {
        double m[4], c[4], v[2], diagonal[2];
        if (times && solvers[s] != NT_EIGEN) continue;
        nt_factor *f = factor(kernel, 3, solvers[s], ridge);
        nt_predict_gp_desc d = gp_of(gp);
        d.times = times, d.time = time, d.learning_rate = rate, d.mean = m, d.covariance = c, d.variance = v;
        tap_ok(nt_predict_gp(f, &d) == NT_OK, "%s by solver %d", name, (int)solvers[s]);
        // twelve decimals are given; conjugate gradients promise 1e-8
        if (mean) close_to(m, mean, 4, solvers[s] == NT_CONJUGATE_GRADIENTS ? 1e-7 : 2e-12, "its mean");
        if (cov) close_to(c, cov, 4, solvers[s] == NT_CONJUGATE_GRADIENTS ? 1e-6 : 5e-12, "its covariance");
        diagonal[0] = c[0], diagonal[1] = c[3];
        close_to(v, diagonal, 2, 1e-15, "its variance is the diagonal");
        const double *tt = (const double *)(gp == NT_GP_NTKGP ? d.ntk_tt : d.nngp_tt);
        double prior[2] = { tt[0], tt[3] }, alone[2];
        d.prior_variance = prior, d.nngp_tt = d.ntk_tt = NULL, d.mean = d.covariance = NULL, d.variance = alone;
        tap_ok(nt_predict_gp(f, &d) == NT_OK, "variances alone, from the diagonal of the prior");
        close_to(alone, diagonal, 2, 1e-11, "are the same");
        nt_factor_free(f);
    }
}

static void reference(void) {
    static const double k_dd[9] = { 0.6062461103090222, -0.29815796302380915, -0.532463522228141, -0.29815796302380915, 0.8158499952488537, 0.49213819245965806, -0.532463522228141,
                                    0.49213819245965806, 0.6731001458284956 },
                        t_dd[9] = { 1.2575023849968623, -0.6525367750563039, -1.1931204680304592, -0.6525367750563039, 1.8516859799241279, 0.9848944227392085, -1.1931204680304592,
                                    0.9848944227392085, 1.430645637768818 };
    static const double nngp_mean[4] = { -0.4018247420994683, 0.7431434381239086, 1.0609176052029898, -1.0456833596270139 },
                        nngp_cov[4] = { 0.024955834230148688, -0.004233484958586109, -0.004233484958586109, 0.002362074005207271 },
                        ntk_mean[4] = { -0.34960251840168666, 0.5092892461132417, 1.0210446309988177, -0.9562274953292613 },
                        ntk_cov[4] = { 0.03077168900409122, -0.00571073281216905, -0.00571073281216905, 0.002912626998395229 },
                        ridge_mean[4] = { -0.34660519205514473, 0.496595045451504, 1.0210177226521722, -0.9617980002376294 },
                        ntkgp_cov[4] = { 0.12415045504099975, -0.015442992207290507, -0.015442992207290507, 0.009701878787915952 };
    static const double e_mean[4] = { 0.11539905252955082, -0.3572775459178766, 0.2787916540220997, -0.44745189032079 },
                        e_cov[4] = { 0.4126385862278362, 0.11360644362828554, 0.11360644362828554, 0.2803201096523166 },
                        e_nngp[4] = { 0.6027743286764731, 0.21786213647093075, 0.21786213647093075, 0.3963172958329766 },
                        l_mean[4] = { 0.07773068742767142, -0.5730930138027819, 0.7703826990806604, -1.103613082224781 },
                        l_cov[4] = { 0.17185887645839948, 0.035024176628524195, 0.035024176628524195, 0.07158427220989427 },
                        l_nngp[4] = { 0.25678025678676564, 0.024721595163689436, 0.024721595163689436, 0.1413150455102512 };
    static const double train[12] = { 0.3919483071159555, -0.5818573144738977, 0.16723749315717162, 0.24671336736437854, -0.30177749875395365, 0.822073734145458,
                                      0.8469600681606996, -1.1236682989834943, 0.18723160056093885, 0.3598654790982243, -0.7311013547119225, 1.4080018488021357 },
                        test[8] = { 0.2255698298190273, -0.18582203673430128, 0.07822348967630793, -0.05796151225663204, 0.29528641105777176, -0.35847441104222555,
                                    0.528999323200416, -0.5828904657798248 };
    static const double one = 1, ten = 10;
    cosines();
    close_to(K, k_dd, 9, 1e-14, "the test's own NNGP kernel is the reference's"), close_to(T, t_dd, 9, 1e-14, "and so is its NTK");
    reference_gp(NT_GP_NNGP, K, 0, 0, NULL, 0, nngp_mean, nngp_cov, "GP inference with the NNGP");
    reference_gp(NT_GP_NTK, T, 0, 0, NULL, 0, ntk_mean, ntk_cov, "an ensemble trained for ever");
    reference_gp(NT_GP_NTK, T, 1e-3, 0, NULL, 0, ridge_mean, NULL, "the same with a ridge");
    reference_gp(NT_GP_NTKGP, T, 0, 0, NULL, 0, ntk_mean, ntkgp_cov, "GP inference with the NTK");
    reference_gp(NT_GP_NTK, T, 0, 1, &one, 1, e_mean, e_cov, "an ensemble at time 1");
    reference_gp(NT_GP_NNGP, K, 0, 1, &one, 1, NULL, e_nngp, "last layers at time 1");
    reference_gp(NT_GP_NTK, T, 0, 1, &ten, .5, l_mean, l_cov, "an ensemble at time 10, half the rate");
    reference_gp(NT_GP_NNGP, K, 0, 1, &ten, .5, NULL, l_nngp, "last layers at time 10, half the rate");
    for (int k = 0; k < 2; k++) {
        double f[6], g[4];
        nt_factor *ntk = factor(T, 3, NT_EIGEN, 0);
        nt_predict_mse_desc d;
        CLEAR(d);
        d.outputs = 2, d.y = Y, d.f0_train = F0, d.test = 2, d.f0_test = G0, d.kernel_td = Ttd, d.times = 1, d.time = k ? &ten : &one;
        d.learning_rate = k ? .5 : 0, d.f_train = f, d.f_test = g;
        tap_ok(nt_predict_mse(ntk, &d) == NT_OK, "gradient descent to time %g (rate 0 is 1)", *d.time);
        close_to(f, train + 6 * k, 6, 2e-13, "training examples"), close_to(g, test + 4 * k, 4, 2e-13, "test examples");
        nt_factor_free(ntk);
    }
    double rate = nt_max_learning_rate(t, NT_F64, 3, T, 6, 0), fast = nt_max_learning_rate(t, NT_F64, 3, T, 6, .9);
    tap_ok(fabs(rate / 3.5134094203011736 - 1) < 1e-12 && fabs(fast / 6.675477898572229 - 1) < 1e-12, "largest learning rates, plain and with momentum");
}

// ens_nngp of the golden values: an ensemble at five times.
static void golden_ensemble(void) {
    static const char *const names[] = { "x_train", "x_test", "y", "t", "mean", "cov", "mean_train", "cov_train" };
    static const double w[2] = { 1.5, 1.2 }, b[2] = { 0.1, 0.2 };
    double *v[8], m[30], c[45], md[50], cd[125], kd[25], td[25], ktd[15], ttd[15], ktt[9], ttt[9];
    nt_file *file = nt_file_open(t, "data/kernels/kernels.safetensors");
    for (int k = 0; k < 8; k++) {
        char name[64];
        snprintf(name, sizeof name, "ens_nngp/%s", names[k]);
        const nt_file_entry *e = nt_file_find(file, name);
        int64_t n = 1;
        for (int j = 0; e && j < e->shape.rank; j++) n *= e->shape.size[j];
        v[k] = numbers(n);
        if (!e || nt_file_read(file, e, v[k], NT_F64) != NT_OK) { tap_ok(0, "%s is in the golden values", name); return; }
    }
    nt_file_close(file);
    erf_network(v[0], 5, 5, v[0], 5, w, b, kd, td), erf_network(v[0], 5, 5, v[1], 3, w, b, ktd, ttd), erf_network(v[1], 3, 5, v[1], 3, w, b, ktt, ttt);
    nt_factor *f = factor(kd, 5, NT_EIGEN, 0);
    nt_predict_gp_desc d;
    CLEAR(d);
    d.outputs = 2, d.y = v[2], d.test = 3, d.nngp_td = ktd, d.nngp_tt = ktt, d.times = 5, d.time = v[3], d.mean = m, d.covariance = c;
    d.mean_train = md, d.covariance_train = cd, d.learning_rate = 1;
    tap_ok(nt_predict_gp(f, &d) == NT_OK, "golden ensemble of last layers");
    close_to(m, v[4], 30, 1e-8, "means of test examples"), close_to(c, v[5], 45, 1e-8, "covariances");
    close_to(md, v[6], 40, 1e-8, "means of training examples before the end"), close_to(cd, v[7], 100, 1e-8, "covariances");
    close_to(md + 40, v[2], 10, 0, "at the end the training examples are the labels");
    double zero[25] = { 0 };
    close_to(cd + 100, zero, 25, 0, "for certain");
    nt_factor_free(f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Exponentials by their series
// ---------------------------------------------------------------------------------------------------------------------
static double *exponential(const double *a, int64_t n, double factor) { // of factor a, by squaring a series of small ones
    double *e = numbers(n * n), *term = numbers(n * n), *next = numbers(n * n), norm = 0;
    int squarings = 0;
    for (int64_t k = 0; k < n * n; k++) norm += fabs(factor * a[k]);
    while (norm > 0.1) norm /= 2, factor /= 2, squarings++;
    for (int64_t i = 0; i < n; i++) e[i * n + i] = term[i * n + i] = 1;
    for (int k = 1; k < 20; k++) {
        product(next, term, a, n, n, n);
        for (int64_t j = 0; j < n * n; j++) term[j] = next[j] * factor / k, e[j] += term[j];
    }
    while (squarings--) product(next, e, e, n, n, n), memcpy(e, next, (size_t)(n * n) * sizeof *e);
    return e;
}

// The equation of training in all examples at once as one matrix: f - y of the training examples, (with momentum its velocity), f of the test
// examples and its velocity. Nothing is divided by an eigenvalue here.
static void training_by_series(const double *ntk, const double *td, int64_t n, int64_t k, const double *start, double *end, double time, double rate, double momentum, int second,
                               double entries) {
    int64_t half = n + k, all = second ? 2 * half : half;
    double *a = numbers(all * all), tau = second ? sqrt(rate) * time : rate * time;
    for (int64_t i = 0; i < half; i++)
        for (int64_t j = 0; j < n; j++) a[(second ? half + i : i) * all + j] = -(i < n ? ntk[i * n + j] : td[(i - n) * n + j]) / entries;
    for (int64_t i = 0; i < half && second; i++) a[i * all + half + i] = 1, a[(half + i) * all + half + i] = (momentum - 1) / sqrt(rate);
    double *e = exponential(a, all, tau);
    for (int64_t i = 0; i < half; i++) {
        end[i] = 0;
        for (int64_t j = 0; j < half; j++) end[i] += e[i * all + j] * start[j];
    }
}

static void series(void) {
    static const double times[] = { 0, 1e-6, 0.3, 2, 11, 40 }, momenta[] = { 0, NT_ZERO, 0.5, 0.9, 0.99, 1 };
    const int64_t n = 5, k = 3, rank = 3;
    for (int singular = 0; singular < 2; singular++) {
        int64_t m = singular ? rank : n;
        double *x = random_numbers(n * m), *z = random_numbers(k * m), *ntk = gram(x, n, m, x, n), *td = gram(x, n, m, z, k), worst = 0;
        double *y = random_numbers(n), *f0 = random_numbers(n), *g0 = random_numbers(k);
        nt_factor *f = factor(ntk, n, NT_EIGEN, 0);
        for (int a = 0; a < 6; a++)
            for (int b = 0; b < 4; b++) {
                double rate = b == 0 ? 0.01 : b == 1 ? 0.37 : b == 2 ? 1 : 20, train[30], test[18], start[8], end[8];
                nt_predict_mse_desc d;
                CLEAR(d);
                d.outputs = 1, d.y = y, d.f0_train = f0, d.test = k, d.f0_test = g0, d.kernel_td = td, d.learning_rate = rate, d.momentum = momenta[a], d.times = 6;
                d.time = times, d.f_train = train, d.f_test = test;
                if (nt_predict_mse(f, &d) != NT_OK) worst = INFINITY;
                for (int64_t i = 0; i < n; i++) start[i] = f0[i] - y[i];
                for (int64_t i = 0; i < k; i++) start[n + i] = g0[i];
                for (int s = 0; s < 6; s++) {
                    training_by_series(ntk, td, n, k, start, end, times[s], rate, momenta[a] == NT_ZERO ? 0 : momenta[a], momenta[a] != 0, (double)n);
                    for (int64_t i = 0; i < n; i++) end[i] += y[i];
                    worst = fmax(worst, fmax(off(train + s * n, end, n), off(test + s * k, end + n, k)));
                }
            }
        // repeated squaring of the series loses 2^20 roundings at the longest times
        tap_ok(worst < 1e-9, "%s kernel: %d times, rates, momenta against the exponential of the whole equation (%.2g)", singular ? "singular" : "regular", 6 * 6 * 4, worst);
        nt_factor_free(f);
    }
}

// One eigenvalue, in the three ways that a pendulum can move, and where one goes over into the other: against the series in double-double-like
// small steps of the exact two-by-two matrix.
static void pendulums(void) {
    double worst = 0;
    for (int k = -40; k <= 40; k++) { // eigenvalues around that of critical damping, 0.25 / rate (1 - m)^2
        double rate = 0.5, m = 0.4, damping = (1 - m) / sqrt(rate), l = damping * damping / 4 * (1 + (k == 0 ? 0 : (k > 0 ? 1 : -1) * pow(10, -abs(k) / 4.0)));
        double td = 1, y = 1, f0 = 0, g0 = 0, time[4] = { 0.5, 4, 9, 30 }, train[4], test[4], start[2] = { -1, 0 }, end[2];
        nt_factor *f = factor(&l, 1, NT_EIGEN, 0);
        nt_predict_mse_desc d;
        CLEAR(d);
        d.outputs = 1, d.y = &y, d.f0_train = &f0, d.test = 1, d.f0_test = &g0, d.kernel_td = &td, d.learning_rate = rate, d.momentum = m, d.times = 4, d.time = time;
        d.f_train = train, d.f_test = test;
        if (nt_predict_mse(f, &d) != NT_OK) worst = INFINITY;
        for (int s = 0; s < 4; s++) {
            training_by_series(&l, &td, 1, 1, start, end, time[s], rate, m, 1, 1);
            worst = fmax(worst, fmax(fabs(train[s] - 1 - end[0]), fabs(test[s] - end[1])));
        }
        nt_factor_free(f);
    }
    tap_ok(worst < 1e-11, "81 eigenvalues around critical damping (%.2g)", worst);
}

// ---------------------------------------------------------------------------------------------------------------------
// Gradient descent, step by step, of a linear model y = x w from w = 0
// ---------------------------------------------------------------------------------------------------------------------
static double descend(const double *x, const double *z, const double *y, int64_t n, int64_t k, int64_t m, int64_t steps, double rate, double momentum, const double *want) {
    double *w = numbers(m), *v = numbers(m), *r = numbers(n), *g = numbers(k);
    for (int64_t s = 0; s < steps; s++) {
        for (int64_t i = 0; i < n; i++) {
            r[i] = -y[i];
            for (int64_t j = 0; j < m; j++) r[i] += x[i * m + j] * w[j];
        }
        for (int64_t j = 0; j < m; j++) {
            double slope = 0;
            for (int64_t i = 0; i < n; i++) slope += x[i * m + j] * r[i] / (double)n;
            v[j] = momentum * v[j] - slope, w[j] += rate * v[j];
        }
    }
    product(g, z, w, k, m, 1);
    return off(g, want, k);
}

static void steps(void) {
    const int64_t n = 6, k = 4, m = 4;
    double *x = random_numbers(n * m), *z = random_numbers(k * m), *y = random_numbers(n), *ntk = gram(x, n, m, x, n), *td = gram(x, n, m, z, k), g[4];
    nt_factor *f = factor(ntk, n, NT_EIGEN, 0); // of rank 4
    for (int heavy = 0; heavy < 2; heavy++) {
        double e[3];
        for (int s = 0; s < 3; s++) { // the same time in smaller and smaller steps
            double h = 0.02 / (1 << s), rate = heavy ? h * h : h, momentum = heavy ? 1 - 0.8 * h : 0, time = 6 / h;
            nt_predict_mse_desc d;
            CLEAR(d);
            d.outputs = 1, d.y = y, d.test = k, d.kernel_td = td, d.learning_rate = rate, d.momentum = momentum, d.times = 1, d.time = &time, d.f_test = g;
            e[s] = nt_predict_mse(f, &d) == NT_OK ? descend(x, z, y, n, k, m, (int64_t)(time + 0.5), rate, momentum, g) : INFINITY;
        }
        tap_ok(e[0] < 0.05 && e[1] < 0.6 * e[0] && e[2] < 0.6 * e[1] && e[2] > 0.2 * e[1], "gradient descent%s goes to the closed form with its step: off by %.2g, %.2g, %.2g",
               heavy ? " with momentum" : "", e[0], e[1], e[2]);
    }
    nt_factor_free(f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Identities
// ---------------------------------------------------------------------------------------------------------------------
static double *points_kernel(int64_t n, int64_t k, double wide, double **td) { // Gaussian, of random points in three dimensions
    double *x = random_numbers(3 * (n + k)), *all = numbers(n * n), *other = numbers(n * k);
    for (int64_t i = 0; i < n + k; i++)
        for (int64_t j = 0; j < n; j++) {
            double d = 0;
            for (int c = 0; c < 3; c++) d += (x[3 * i + c] - x[3 * j + c]) * (x[3 * i + c] - x[3 * j + c]);
            (i < n ? all : other - n * n)[i * n + j] = exp(-d / wide);
        }
    if (td) *td = other;
    return all;
}

static void identities(void) {
    const int64_t n = 40, k = 7, o = 3;
    static const double times[] = { 0, 3, 1000, INFINITY };
    double *td, *ntk = points_kernel(n, k, 0.05, &td), *ones = numbers(k), *y = random_numbers(n * o), *f0 = random_numbers(n * o), *g0 = random_numbers(k * o);
    double *train = numbers(4 * n * o), *test = numbers(4 * k * o), *mean[2], *var[2], *cov[2];
    for (int64_t i = 0; i < k; i++) ones[i] = 1;
    nt_factor *f = factor(ntk, n, NT_EIGEN, 1e-3);
    nt_predict_mse_desc d;
    CLEAR(d);
    d.outputs = o, d.y = y, d.f0_train = f0, d.test = k, d.f0_test = g0, d.kernel_td = td, d.times = 4, d.time = times, d.f_train = train, d.f_test = test;
    tap_ok(nt_predict_mse(f, &d) == NT_OK, "%d examples, %d outputs", (int)n, (int)o);
    close_to(train, f0, n * o, 1e-13, "time 0: what the network said"), close_to(test, g0, k * o, 1e-13, "also of the test examples");
    close_to(train + 3 * n * o, y, n * o, 0, "INFINITY: the labels, to the bit");
    double *late = numbers(k * o), *last = copy_of(test + 3 * k * o, k * o);
    double much = 1e12;
    d.times = 1, d.time = &much, d.f_test = late, d.f_train = NULL;
    tap_ok(nt_predict_mse(f, &d) == NT_OK, "a very late time");
    close_to(late, last, k * o, 1e-12, "is INFINITY");
    d.times = 0, d.time = NULL;
    tap_ok(nt_predict_mse(f, &d) == NT_OK && off(late, last, k * o) == 0, "no times are INFINITY");
    nt_factor *c = factor(ntk, n, NT_CHOLESKY, 1e-3);
    tap_ok(nt_predict_mse(c, &d) == NT_OK, "by Cholesky");
    close_to(late, last, k * o, 1e-10, "the same");
    tap_ok(fabs(nt_factor_info_of(c).log_det - nt_factor_info_of(f).log_det) < 1e-10 * fabs(nt_factor_info_of(f).log_det), "both have the same determinant");

    // each test example alone, and with the labels shifted: means are linear in the labels
    d.f0_train = d.f0_test = NULL;
    double *none = numbers(k * o), *twice = copy_of(y, n * o);
    nt_predict_mse(f, &d), memcpy(none, late, (size_t)(k * o) * sizeof *none);
    for (int64_t i = 0; i < n * o; i++) twice[i] *= -3;
    d.y = twice;
    nt_predict_mse(f, &d);
    for (int64_t i = 0; i < k * o; i++) late[i] /= -3;
    close_to(late, none, k * o, 1e-13, "f0 is 0 where it is not given, and the mean is linear in the labels");

    // with one kernel for both, training all layers and the last one are the same
    nt_factor *plain = factor(ntk, n, NT_EIGEN, 0);
    for (int g = 0; g < 2; g++) {
        nt_predict_gp_desc e;
        CLEAR(e);
        mean[g] = numbers(3 * k * o), var[g] = numbers(3 * k), cov[g] = numbers(3 * n * n);
        e.gp = g ? NT_GP_NTK : NT_GP_NNGP, e.outputs = o, e.y = y, e.test = k, e.nngp_dd = ntk, e.nngp_td = e.ntk_td = td, e.prior_variance = ones, e.times = 3, e.time = times;
        e.mean = mean[g], e.variance = var[g], e.covariance_train = cov[g];
        tap_ok(nt_predict_gp(plain, &e) == NT_OK, "ensemble with one kernel for both, %s", g ? "all layers" : "the last layer");
    }
    close_to(mean[0], mean[1], 3 * k * o, 1e-13, "means are equal"), close_to(var[0], var[1], 3 * k, 1e-12, "variances are equal");
    close_to(cov[0], cov[1], 3 * n * n, 1e-12, "covariances of training examples are equal");
    close_to(cov[1], ntk, n * n, 1e-12, "at time 0 they are the kernel"), close_to(var[1], ones, k, 1e-13, "and the prior variances");
    nt_predict_gp_desc e; // rate and momentum mean the same here as for the mean squared error
    CLEAR(e);
    d.f0_train = d.f0_test = NULL, d.y = e.y = y, d.times = e.times = 3, d.time = e.time = times, d.momentum = e.momentum = 0.7, d.learning_rate = e.learning_rate = 0.3;
    e.outputs = o, e.test = k, e.nngp_td = td, e.mean = mean[0], e.mean_train = train, d.f_test = test, d.f_train = NULL;
    tap_ok(nt_predict_gp(plain, &e) == NT_OK && nt_predict_mse(plain, &d) == NT_OK && off(mean[0], test, 3 * k * o) == 0, "means of an ensemble that is trained with momentum");
    d.f_test = NULL, d.f_train = test = numbers(3 * n * o);
    tap_ok(nt_predict_mse(plain, &d) == NT_OK && off(train, test, 3 * n * o) == 0, "of training examples too");
    nt_factor_free(plain), nt_factor_free(c), nt_factor_free(f);
}

static void many_times(void) { // more columns than go through the kernel together
    const int64_t n = 12, k = 300;
    const int count = 700;
    double *td, *ntk = points_kernel(n, k, 0.3, &td), *y = random_numbers(2 * n), *time = numbers(count), *f = numbers(count * 2 * n), *g = numbers(count * 2 * k), *one = numbers(2 * k);
    int same = 1;
    for (int s = 0; s < count; s++) time[s] = s % 7 == 3 ? FOREVER : fabs(chance()) * 100;
    nt_factor *e = factor(ntk, n, NT_EIGEN, 1e-2);
    nt_predict_mse_desc d;
    CLEAR(d);
    d.outputs = 2, d.y = y, d.test = k, d.kernel_td = td, d.times = count, d.time = time, d.f_train = f, d.f_test = g;
    tap_ok(nt_predict_mse(e, &d) == NT_OK, "%d times of %d outputs in no order", count, 2);
    d.times = 1;
    for (int s = 0; s < count; s++) {
        d.time = time + s, d.f_test = one, d.f_train = one;
        d.f_train = NULL;
        same = same && nt_predict_mse(e, &d) == NT_OK && !memcmp(one, g + s * 2 * k, sizeof(double) * 2 * (size_t)k);
        d.f_train = one, d.f_test = NULL;
        same = same && nt_predict_mse(e, &d) == NT_OK && !memcmp(one, f + s * 2 * n, sizeof(double) * 2 * (size_t)n);
    }
    tap_ok(same, "are, to the bit, each time alone");
    nt_factor_free(e);
}

// ---------------------------------------------------------------------------------------------------------------------
// Factors
// ---------------------------------------------------------------------------------------------------------------------
typedef struct host { const double *kernel; int64_t n, calls, rows; int stop_at, record; nt_dtype dtype; } host;

static int host_rows(void *user, int64_t first, int64_t count, void *out) {
    host *h = (host *)user;
    h->calls++, h->rows += count;
    if (h->record) nt_add(nt_full(t, NT_F32, NT_SHAPE(100), 1), nt_full(t, NT_F32, NT_SHAPE(100), 2));
    for (int64_t k = 0; k < count * h->n; k++) {
        if (h->dtype == NT_F64) ((double *)out)[k] = h->kernel[first * h->n + k];
        else ((float *)out)[k] = (float)h->kernel[first * h->n + k];
    }
    return !(h->stop_at && h->calls >= h->stop_at);
}

static void sizes(void) {
    static const int64_t n[] = { 1, 2, 63, 64, 65, 130, 257, 400 };
    static const nt_solver solvers[] = { NT_CHOLESKY, NT_EIGEN, NT_CONJUGATE_GRADIENTS, NT_CONJUGATE_GRADIENTS };
    for (int k = 0; k < 8; k++)
        for (int s = 0; s < 4; s++) {
            int64_t size = n[k], m = 5;
            double *kernel = points_kernel(size, 0, 0.3, NULL), *b = random_numbers(size * m), *x = copy_of(b, size * m), *back = numbers(size * m);
            nt_factor_desc d;
            CLEAR(d);
            d.dtype = NT_F64, d.n = size, d.kernel = kernel, d.solver = solvers[s], d.ridge = 1e-3, d.ridge_absolute = 1e-3;
            if (s == 3) d.rank = size < 50 ? (int)size : 50;
            nt_factor *f = nt_factor_make(t, &d);
            nt_status status = f ? nt_factor_solve(f, x, m, x) : NT_ERROR_STATE;
            nt_factor_info info = nt_factor_info_of(f);
            for (int64_t i = 0; i < size; i++) kernel[i * size + i] += 2e-3; // the diagonal is 1
            product(back, kernel, x, size, size, m);
            // backward stable: the residual is a few n eps |K| |x|, |x| up to 1/ridge; conjugate gradients promise 1e-8
            double e = off(back, b, size * m);
            tap_ok(status == NT_OK && e < (s < 2 ? 1e-9 : 1e-7) && fabs(info.ridge - 2e-3) < 1e-15 && info.solver == solvers[s],
                   "%d rows by solver %d%s: in place, residual %.2g, %d iterations", (int)size, (int)solvers[s], d.rank ? " preconditioned" : "", e, (int)info.iterations);
            nt_factor_free(f);
        }
}

static void iterations(void) {
    const int64_t n = 300;
    double *kernel = points_kernel(n, 0, 1, NULL), *b = random_numbers(2 * n), *x = numbers(2 * n), *y = numbers(2 * n);
    host h = { kernel, n, 0, 0, 0, 1, NT_F64 };
    int64_t count[2];
    nt_factor_desc d;
    CLEAR(d);
    d.dtype = NT_F64, d.n = n, d.rows.rows = host_rows, d.rows.user = &h, d.ridge = 1e-4, d.budget = 300000, d.tolerance = 1e-9;
    nt_factor *exact = factor(kernel, n, NT_CHOLESKY, 1e-4);
    nt_factor_solve(exact, b, 2, y);
    for (int k = 0; k < 2; k++) {
        size_t before = nt_memory(t).objects;
        d.rank = k ? 60 : 0;
        nt_factor *f = nt_factor_make(t, &d);
        tap_ok(nt_factor_solve(f, b, 2, x) == NT_OK, "rows that are computed, rank %d", d.rank);
        nt_factor_info info = nt_factor_info_of(f);
        count[k] = info.iterations;
        tap_ok(info.solver == NT_CONJUGATE_GRADIENTS && info.bytes < 300000 && nt_memory(t).objects - before < 300000, "beyond the budget it is conjugate gradients, %d bytes", (int)info.bytes);
        tap_ok(info.residual <= 1e-9 && info.iterations > 0 && h.rows >= info.iterations * n, "residual %.2g after %d iterations", info.residual, (int)info.iterations);
        close_to(x, y, 2 * n, 1e-4, "the solution is Cholesky's"); // condition 1e6 times 1e-9
        nt_factor_free(f);
        tap_ok(nt_memory(t).objects == before, "the memory is back");
    }
    tap_ok(count[1] * 3 < count[0], "the preconditioner saves iterations: %d, not %d", (int)count[1], (int)count[0]);
    d.budget = 1000000, d.rank = 0;
    nt_factor *f = nt_factor_make(t, &d);
    tap_ok(nt_factor_info_of(f).solver == NT_CHOLESKY && nt_factor_solve(f, b, 2, x) == NT_OK && off(x, y, 2 * n) == 0, "rows within the budget are factored: Cholesky's bits");
    nt_factor_free(f);
    tap_ok(!nt_error(t), "what the rows' function recorded is gone");
    d.solver = NT_EIGEN, d.budget = 1000;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_BUDGET, "bytes|1,000|conjugate gradients", "eigenvalues beyond the budget");
    d.solver = NT_SOLVER_AUTO, d.budget = 300000, d.max_iterations = 3;
    f = nt_factor_make(t, &d);
    says(nt_factor_solve(f, b, 2, x), NT_ERROR_DATA, "residual|3 iterations|ridge", "too few iterations");
    nt_factor_free(f);
    h.kernel = numbers(n * n), h.calls = 0, h.stop_at = (300 + 63) / 64 + 3, d.solver = NT_CHOLESKY, d.budget = 0, d.max_iterations = 0;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_CANCELLED, "rows", "the host stops while a ridge is tried");
    h.kernel = kernel, d.solver = NT_SOLVER_AUTO, d.budget = 300000, h.stop_at = (int)h.calls + 4;
    f = nt_factor_make(t, &d);
    says(f ? nt_factor_solve(f, b, 2, x) : NT_OK, NT_CANCELLED, "nt_factor_solve|rows", "the host stops");
    nt_factor_free(f), nt_factor_free(exact);

    // test rows that are computed, f32
    float *y32 = (float *)pool_new((size_t)n, sizeof(float)), g32[2][40];
    double *td, *small = points_kernel(40, 40, 1, &td);
    float *small32 = (float *)pool_new(1600, sizeof(float)), *td32 = (float *)pool_new(1600, sizeof(float));
    for (int k = 0; k < 1600; k++) small32[k] = (float)small[k], td32[k] = (float)td[k];
    for (int k = 0; k < 40; k++) y32[k] = (float)b[k];
    host test = { td, 40, 0, 0, 0, 0, NT_F32 };
    nt_predict_mse_desc p;
    CLEAR(d), CLEAR(p);
    d.dtype = NT_F32, d.n = 40, d.kernel = small32, d.ridge = 1e-2;
    f = nt_factor_make(t, &d);
    p.outputs = 1, p.y = y32, p.test = 40, p.f_test = g32[0], p.kernel_td = td32;
    nt_status one = nt_predict_mse(f, &p);
    p.kernel_td = NULL, p.rows_td.rows = host_rows, p.rows_td.user = &test, p.f_test = g32[1];
    tap_ok(one == NT_OK && nt_predict_mse(f, &p) == NT_OK && !memcmp(g32[0], g32[1], sizeof g32[0]), "f32 rows of test examples, given or computed: the same bits");
    nt_factor_free(f);
}

static void likelihood(void) { // against Gaussian elimination
    const int64_t n = 30;
    double *kernel = points_kernel(n, 0, 0.3, NULL), *y = random_numbers(2 * n), *a = copy_of(kernel, n * n), *x = copy_of(y, 2 * n), want = 0, got[2] = { 0, 0 };
    for (int64_t i = 0; i < n; i++) a[i * n + i] += 0.1;
    for (int64_t p = 0; p < n; p++) {
        want += 2 * log(a[p * n + p]); // twice: two columns
        for (int64_t i = p + 1; i < n; i++) {
            double r = a[i * n + p] / a[p * n + p];
            for (int64_t j = p; j < n; j++) a[i * n + j] -= r * a[p * n + j];
            for (int j = 0; j < 2; j++) x[2 * i + j] -= r * x[2 * p + j];
        }
        for (int j = 0; j < 2; j++) want += x[2 * p + j] * x[2 * p + j] / a[p * n + p];
    }
    want = -0.5 * (want + 2 * (double)n * log(2 * 3.14159265358979323846));
    for (int k = 0; k < 2; k++) {
        nt_factor *f = factor(kernel, n, k ? NT_EIGEN : NT_CHOLESKY, 0.1);
        tap_ok(nt_log_marginal_likelihood(f, y, 2, &got[k]) == NT_OK && fabs(got[k] - want) < 1e-10 * fabs(want), "log marginal likelihood %.10g is elimination's %.10g", got[k], want);
        nt_factor_free(f);
    }
}

static void largest(void) { // eigenvalues that are known: 1 + (n - 1) r and 1 - r; and a random kernel's against all eigenvalues
    const int64_t n = 200;
    double *a = numbers(n * n), *k = points_kernel(n, 0, 0.5, NULL);
    for (int64_t i = 0; i < n * n; i++) a[i] = i % (n + 1) ? 0.01 : 1;
    double rate = nt_max_learning_rate(t, NT_F64, n, a, 0, 0), want = 2.0 * 200 / (1 + 199 * 0.01);
    tap_ok(fabs(rate / want - 1) < 1e-12, "one eigenvalue above 199 equal ones");
    nt_factor *f = factor(k, n, NT_EIGEN, 0);
    rate = nt_max_learning_rate(t, NT_F64, n, k, 1000, 0.5);
    tap_ok(fabs(rate * nt_factor_info_of(f).largest / 3000 - 1) < 1e-11, "the largest of all eigenvalues of a kernel");
    for (int64_t i = 0; i < n * n; i++) a[i] = i % (n + 1) ? 0 : (i == 77 * (n + 1) ? 2 : 1 + 1e-3 * (double)(i / n) / (double)n);
    rate = nt_max_learning_rate(t, NT_F64, n, a, 0, 0);
    tap_ok(fabs(rate / 200 - 1) < 1e-11, "a diagonal matrix");
    double zero = 0;
    tap_ok(nt_max_learning_rate(t, NT_F64, 1, &zero, 0, 0) == INFINITY, "a kernel of zeros has no limit");
    double small = 1e-13, below = -1;
    tap_ok(fabs(nt_max_learning_rate(t, NT_F64, 1, &small, 0, 0) - 2e13) < 1, "a small kernel has a large one");
    tap_ok(isnan(nt_max_learning_rate(t, NT_F64, 1, &below, 0, 0)), "no kernel, no rate"), says(NT_ERROR_DATA, NT_ERROR_DATA, "eigenvalue", "it says so");
    nt_factor_free(f);
}

// ---------------------------------------------------------------------------------------------------------------------
// Bad kernels
// ---------------------------------------------------------------------------------------------------------------------
// A host whose rows, loss and question whether to go on record on the tape and forget what it has.
typedef struct forgetful { const double *kernel; int64_t n; } forgetful;
static void record_and_forget(void) {
    nt_tensor *x = nt_full(t, NT_F64, NT_SHAPE(5000), 1);
    for (int k = 0; k < 40; k++) x = nt_sin(x);
    nt_forget_nodes(t), nt_compile(nt_cos(nt_full(t, NT_F64, NT_SHAPE(10), 1)), NULL);
}
static int forgetful_rows(void *user, int64_t first, int64_t count, void *out) {
    const forgetful *f = (const forgetful *)user;
    record_and_forget(), memcpy(out, f->kernel + first * f->n, (size_t)(count * f->n) * sizeof(double));
    return 1;
}
static void forgetful_loss(void *user, const double *f, const double *y, int64_t n, int64_t outputs, double *g) {
    (void)user, record_and_forget();
    for (int64_t k = 0; k < n * outputs; k++) g[k] = f[k] - y[k];
}

static void forgetting(void) {
    enum { N = 20 };
    nt_tape *outer = t;
    double k[N * N], b[N], x[3][N];
    forgetful host = { k, N };
    for (int i = 0; i < N * N; i++) k[i] = exp(-0.1 * (i / N - i % N) * (i / N - i % N)) + (i / N == i % N);
    for (int i = 0; i < N; i++) b[i] = chance();
    t = nt_tape_open(NULL);
    for (int way = 0; way < 3; way++) {
        nt_factor_desc d;
        CLEAR(d), d.dtype = NT_F64, d.n = N, d.solver = way == 2 ? NT_CONJUGATE_GRADIENTS : NT_CHOLESKY, d.tolerance = 1e-12;
        if (way) d.rows.rows = forgetful_rows, d.rows.user = &host;
        else d.kernel = k;
        nt_factor *f = nt_factor_make(t, &d);
        nt_factor_solve(f, b, 1, x[way]);
    }
    tap_ok(!nt_error(t) && off(x[1], x[0], N) == 0 && off(x[2], x[0], N) < 1e-9, "rows that record and forget: %.1e", off(x[2], x[0], N));
    nt_predict_flow_desc d;
    double time = 1, f[2][N];
    CLEAR(d), d.dtype = NT_F64, d.n = N, d.outputs = 1, d.ntk_dd = k, d.y = b, d.times = 1, d.time = &time, d.learning_rate = N;
    d.f_train = f[0], nt_predict_flow(t, &d);
    d.learning_rate = 1, d.custom.gradient = forgetful_loss, d.f_train = f[1];
    tap_ok(nt_predict_flow(t, &d) == NT_OK && off(f[1], f[0], N) < 1e-6, "a loss that records and forgets: %.1e", off(f[1], f[0], N));
    tap_ok(nt_sum(nt_full(t, NT_F64, NT_SHAPE(9), 1)) && !nt_error(t), "and the tape goes on");
    nt_tape_close(t), t = outer;
}

static void endless_times(void) { // products of rates and times that leave the range of double
    double k[4] = { 1, 1, 1, 1 }, y[2] = { 3, 1 }, time[2] = { 1e300, 1.7e308 }, f[3][4];
    nt_factor_desc d;
    CLEAR(d), d.dtype = NT_F64, d.n = 2, d.kernel = k, d.solver = NT_EIGEN;
    nt_factor *eigen = nt_factor_make(t, &d);
    nt_predict_mse_desc p;
    CLEAR(p), p.outputs = 1, p.y = y, p.times = 2, p.time = time, p.learning_rate = 1e300;
    int good = 1;
    for (int way = 0; way < 3; way++) {
        p.momentum = way == 1 ? 0.9 : way == 2 ? NT_ZERO : 0, p.f_train = f[way];
        good &= nt_predict_mse(eigen, &p) == NT_OK;
        for (int j = 0; j < 4; j++) good &= isfinite(f[way][j]) != 0;
    }
    tap_ok(good, "times beyond numbers: %g %g, %g %g, %g %g", f[0][0], f[0][3], f[1][0], f[1][3], f[2][0], f[2][3]);
    nt_factor_free(eigen);
}

// Rows of `k`, (2, 2), that are NaN from call number `nan_from` on.
typedef struct failing_rows { const double *k; int calls, nan_from; } failing_rows;
static int failing(void *user, int64_t first, int64_t count, void *out) {
    failing_rows *h = (failing_rows *)user;
    for (int64_t j = 0; j < 2 * count; j++) ((double *)out)[j] = h->k[2 * first + j];
    if (++h->calls >= h->nan_from) ((double *)out)[1] = NAN;
    return 1;
}

// skew (2, 2), whose elements (0, 1) and (1, 0) are 0.5 and -0.5: every call that reads such a kernel of training examples names them.
static void not_symmetric(const double *skew, const double *b) {
    static const char *const solvers[] = { "", "Cholesky", "eigenvectors", "conjugate gradients" };
    double identity[4] = { 1, 0, 0, 1 }, nearly[4] = { 1, 0.5, 0.491, 1 }, large[4] = { 1, 1e200, 1e200, 1 }, g[4], one = 1;
    float skew32[4] = { 1, 0.5f, -0.5f, 1 }, nan32[4] = { 1, 0.5f, NAN, 1 };
    nt_factor_desc d;
    CLEAR(d), d.dtype = NT_F64, d.n = 2, d.kernel = skew;
    for (int s = 1; s < 4; s++) {
        d.solver = (nt_solver)s;
        says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_DATA, "not symmetric|(1, 0)|-0.5|0.5", solvers[s]);
    }
    tap_ok(isnan(nt_max_learning_rate(t, NT_F64, 2, skew, 0, 0)), "no rate of it");
    says(nt_error_status(t), NT_ERROR_DATA, "nt_max_learning_rate|ntk_dd is not symmetric|(1, 0) is -0.5|(0, 1) is 0.5", "a rate");
    tap_ok(isnan(nt_max_learning_rate(t, NT_F32, 2, skew32, 0, 0)), "nor in f32");
    says(nt_error_status(t), NT_ERROR_DATA, "not symmetric|(1, 0) is -0.5", "a rate, f32");
    tap_ok(isnan(nt_max_learning_rate(t, NT_F32, 2, nan32, 0, 0)), "nor with a NaN");
    says(nt_error_status(t), NT_ERROR_DATA, "(1, 0) of ntk_dd is nan", "a rate, NaN");
    tap_ok(fabs(nt_max_learning_rate(t, NT_F64, 2, nearly, 0, 0) - 4 / (1 + sqrt(0.5 * 0.491))) < 0.01, "what is nearly symmetric has one");
    nt_predict_flow_desc w;
    CLEAR(w), w.dtype = NT_F64, w.n = 2, w.outputs = 1, w.ntk_dd = skew, w.y = b, w.f_train = g, w.times = 1, w.time = &one;
    says(nt_predict_flow(t, &w), NT_ERROR_DATA, "nt_predict_flow|ntk_dd is not symmetric|(1, 0) is -0.5", "a flow");
    d.solver = NT_EIGEN, d.kernel = identity;
    nt_factor *f = nt_factor_make(t, &d);
    nt_predict_gp_desc q;
    CLEAR(q), q.gp = NT_GP_NTK, q.outputs = 1, q.y = b, q.test = 1, q.nngp_dd = skew, q.nngp_td = q.ntk_td = b, q.nngp_tt = &one, q.variance = g;
    says(nt_predict_gp(f, &q), NT_ERROR_DATA, "nt_predict_gp|nngp_dd is not symmetric", "an ensemble");
    q.nngp_dd = identity;
    says(nt_predict_gp(f, &q), NT_OK, "", "and with a kernel");
    nt_factor_free(f);

    failing_rows h = { identity, 0, 3 };
    d.solver = NT_CONJUGATE_GRADIENTS, d.kernel = NULL, d.rows.rows = failing, d.rows.user = &h;
    f = nt_factor_make(t, &d);
    tap_ok(f != NULL, "rows that are good at first");
    h.nan_from = h.calls + 2; // the first product is good
    says(nt_factor_solve(f, b, 1, g), NT_ERROR_DATA, "nt_factor_solve|(0, 1)|nan", "and NaN in a later iteration");
    h.nan_from = INT32_MAX, h.k = skew;
    nt_status s = nt_factor_solve(f, b, 1, g);
    tap_ok(s == NT_OK ? fabs(g[0] + 0.5 * g[1] - b[0]) + fabs(-0.5 * g[0] + g[1] - b[1]) < 1e-7 : nt_error(t) && strstr(nt_error(t), "symmetric"),
           "computed rows that are not symmetric: solved, or the message says it: %s", s == NT_OK ? "solved" : nt_error(t));
    nt_error_clear(t), nt_factor_free(f);
    d.kernel = large, CLEAR(d.rows);
    f = nt_factor_make(t, &d);
    double big[2] = { 1e150, 1e150 }, bigger[2] = { 1e200, 0 };
    says(nt_factor_solve(f, big, 1, g), NT_ERROR_DATA, "range of double|p^T K p is inf in iteration 1", "products that leave the range of double");
    says(nt_factor_solve(f, bigger, 1, g), NT_ERROR_DATA, "range of double|residual is nan", "right-hand sides whose square does");
    nt_factor_free(f);
}

static void bad_kernels(void) {
    double x[18], *a = gram(memcpy(x, random_numbers(18), sizeof x), 6, 3, x, 6), g[6]; // rank 3
    nt_factor_desc d;
    CLEAR(d);
    d.dtype = NT_F64, d.n = 6, d.kernel = a;
    nt_factor *f = nt_factor_make(t, &d);
    const char *at = nt_error(t) ? strstr(nt_error(t), ".ridge = ") : NULL;
    double ridge = at ? strtod(at + 9, NULL) : 0;
    tap_ok(!f && strstr(nt_error(t), "pivot 3 of 6") && ridge > 0 && ridge < 1e-10, "a singular kernel: %s", nt_error(t));
    nt_error_clear(t);
    d.ridge = ridge;
    f = nt_factor_make(t, &d);
    tap_ok(f && !nt_error(t), "with that ridge it can be factored");
    nt_factor_free(f);
    a[7 * 2] = -2;
    d.ridge = 0.5;
    f = nt_factor_make(t, &d);
    at = nt_error(t) ? strstr(nt_error(t), ".ridge = ") : NULL;
    ridge = at ? strtod(at + 9, NULL) : 0;
    tap_ok(!f && strstr(nt_error(t), "pivot 2 of 6") && ridge > 0.5, "a negative diagonal element: %s", nt_error(t));
    nt_error_clear(t);
    d.ridge = ridge;
    f = nt_factor_make(t, &d);
    tap_ok(f != NULL, "with that ridge it can be factored");
    nt_factor_free(f);
    d.ridge = 0, d.solver = NT_EIGEN;
    f = nt_factor_make(t, &d);
    nt_factor_info info = nt_factor_info_of(f);
    tap_ok(f && info.clamped >= 1 && info.most_negative < -2 + 1e-9 && info.smallest == info.most_negative, "its eigenvalues: %d are clamped, the most negative is %g", (int)info.clamped,
           info.most_negative);
    double y[6] = { 1, 2, 3, 4, 5, 6 }, td[6] = { 1, 0, 0, 0, 0, 0 };
    nt_predict_mse_desc p;
    CLEAR(p);
    p.outputs = 1, p.y = y, p.test = 1, p.kernel_td = td, p.f_test = g;
    says(nt_predict_mse(f, &p), NT_ERROR_DATA, "nt_predict_mse|eigenvalues|.ridge = ", "for ever with a kernel that is not positive");
    p.f_test = NULL, p.f_train = g;
    tap_ok(nt_predict_mse(f, &p) == NT_OK && !memcmp(g, y, sizeof g), "but training examples become their labels");
    nt_factor_free(f);

    double none[4] = { 0, 0, 0, 0 }, skew[4] = { 1, 0.5, -0.5, 1 }, b[2] = { 1, 1 };
    d.solver = NT_CHOLESKY, d.n = 2, d.kernel = none;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_DATA, "pivot 0|.ridge_absolute = ", "a kernel of zeros");
    d.kernel = skew;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_DATA, "not symmetric|(1, 0)|-0.5|0.5", "a skew kernel");
    not_symmetric(skew, b);
    skew[1] = NAN;
    for (int s = 1; s < 4; s++) {
        d.solver = (nt_solver)s;
        says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_DATA, "(0, 1)|kernel|nan", "NaN");
    }
    skew[1] = skew[2] = 3;
    d.solver = NT_CONJUGATE_GRADIENTS;
    f = nt_factor_make(t, &d);
    says(nt_factor_solve(f, b, 1, g), NT_OK, "", "conjugate gradients along a good eigenvector of an indefinite kernel");
    says(nt_factor_solve(f, y, 1, g), NT_ERROR_DATA, "not positive definite", "along both");
    y[1] = INFINITY;
    says(nt_factor_solve(f, y, 1, g), NT_ERROR_DATA, "(1, 0) of b is inf", "an infinite right-hand side");
    nt_factor_free(f);
}

static void bad_calls(void) {
    double k[4] = { 2, 1, 1, 2 }, y[2] = { 1, 2 }, g[4], nan = NAN, time[2] = { 1, -1 };
    nt_factor_desc d;
    nt_predict_mse_desc p;
    nt_predict_gp_desc q;
    nt_predict_flow_desc w;
    CLEAR(d);
    says(nt_factor_make(t, NULL) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, "nt_factor_make", "no descriptor");
    d.dtype = NT_I32, d.n = 2, d.kernel = k;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_DTYPE, "i32", "integers");
    d.dtype = NT_F64, d.n = 0;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_SHAPE, ".n is 0", "no rows");
    d.n = INT64_MAX / 2;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_SHAPE, ".n is", "too many rows");
    d.n = INT32_MAX;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_MEMORY, "bytes", "more rows than there is memory");
    d.n = 2, d.kernel = NULL;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, ".kernel or .rows", "no kernel");
    d.kernel = k, d.ridge = -1;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, ".ridge -1", "a negative ridge");
    d.ridge = 0, d.ridge_absolute = NAN;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, "ridge_absolute nan", "a ridge of NaN");
    d.ridge_absolute = 0, d.solver = (nt_solver)7;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, ".solver is 7", "no such solver");
    d.solver = NT_CONJUGATE_GRADIENTS, d.rank = 3;
    says(nt_factor_make(t, &d) ? NT_OK : nt_error_status(t), NT_ERROR_ARGUMENT, ".rank 3", "more columns than there are");
    d.solver = NT_CHOLESKY, d.rank = 0;
    nt_factor *f = nt_factor_make(t, &d), *e = factor(k, 2, NT_EIGEN, 0);
    says(nt_factor_solve(f, NULL, 1, g), NT_ERROR_ARGUMENT, "NULL", "nothing to solve");
    says(nt_factor_solve(f, y, -1, g), NT_ERROR_SHAPE, "-1", "minus one column");
    tap_ok(nt_factor_solve(NULL, y, 1, g) == NT_ERROR_ARGUMENT && nt_factor_info_of(NULL).bytes == 0, "no factor");
    nt_factor_free(NULL);
    CLEAR(p);
    says(nt_predict_mse(f, NULL), NT_ERROR_ARGUMENT, "nt_predict_mse", "no descriptor");
    p.outputs = 1, p.test = 1, p.kernel_td = k, p.f_test = g;
    says(nt_predict_mse(f, &p), NT_ERROR_ARGUMENT, ".y is NULL", "no labels");
    p.y = y, p.outputs = 0;
    says(nt_predict_mse(f, &p), NT_ERROR_SHAPE, ".outputs is 0", "no outputs");
    p.outputs = INT64_MAX / 4;
    says(nt_predict_mse(f, &p), NT_ERROR_SHAPE, "numbers", "too many outputs");
    p.outputs = 1, p.times = 1, p.time = time;
    says(nt_predict_mse(f, &p), NT_ERROR_STATE, "time 1|NT_EIGEN", "a time that Cholesky cannot do");
    p.times = 2;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, "time 1 is -1", "a time before the beginning");
    p.time = NULL;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, ".times is 2|NULL", "times without times");
    p.times = 0, p.learning_rate = -1;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, ".learning_rate is -1", "a negative rate");
    p.learning_rate = 0, p.momentum = 1.5;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, ".momentum is 1.5", "too much momentum");
    p.momentum = 1;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, "never ends", "for ever with momentum 1");
    p.momentum = 0, p.kernel_td = NULL;
    says(nt_predict_mse(e, &p), NT_ERROR_ARGUMENT, "kernel_td", "no kernel of the test examples");
    p.kernel_td = &nan, p.test = 1;
    double row[2] = { 1, NAN };
    p.kernel_td = row;
    says(nt_predict_mse(e, &p), NT_ERROR_DATA, "(0, 1) of kernel_td is nan", "NaN in it");
    p.kernel_td = k, p.y = row;
    says(nt_predict_mse(e, &p), NT_ERROR_DATA, "(1, 0) of y is nan", "NaN in the labels");
    CLEAR(q);
    q.outputs = 1, q.y = y, q.test = 1, q.mean = g;
    says(nt_predict_gp(e, &q), NT_ERROR_ARGUMENT, "nngp_td", "no NNGP kernel");
    q.gp = NT_GP_NTK;
    says(nt_predict_gp(e, &q), NT_ERROR_ARGUMENT, "ntk_td", "no NTK");
    q.ntk_td = k, q.variance = g, q.nngp_tt = k;
    says(nt_predict_gp(e, &q), NT_ERROR_ARGUMENT, "both kernels", "one kernel of two");
    q.gp = NT_GP_NTKGP, q.ntk_tt = k, q.times = 1, q.time = time;
    says(nt_predict_gp(e, &q), NT_ERROR_ARGUMENT, "NTKGP|INFINITY", "the NTK as a covariance before the end");
    q.gp = NT_GP_NNGP, q.nngp_td = k, q.nngp_tt = NULL, q.times = 0;
    says(nt_predict_gp(e, &q), NT_ERROR_ARGUMENT, "nngp_tt|prior_variance", "no prior covariance");
    CLEAR(w);
    w.dtype = NT_F64, w.n = 2, w.outputs = 1, w.ntk_dd = k, w.y = y, w.f_train = g;
    says(nt_predict_flow(t, &w), NT_ERROR_ARGUMENT, ".times is 0", "no times");
    w.times = 1, w.time = &FOREVER;
    says(nt_predict_flow(t, &w), NT_ERROR_ARGUMENT, "finite", "integrating for ever");
    w.times = 2, w.time = time;
    says(nt_predict_flow(t, &w), NT_ERROR_ARGUMENT, "time 1 is -1|ascend", "back in time");
    tap_ok(isnan(nt_max_learning_rate(t, NT_F64, 2, NULL, 0, 0)), "the largest rate of nothing is NaN");
    nt_error_clear(t);
    nt_factor_free(e), nt_factor_free(f);
    tap_ok(nt_memory(t).objects == 0, "nothing is left of the failures");
}

// ---------------------------------------------------------------------------------------------------------------------
// Any loss
// ---------------------------------------------------------------------------------------------------------------------
typedef struct flow { int64_t n, k, o; double *dd, *td, *y, *f0, *g0, *f, *g; } flow;

static flow flow_new(int64_t n, int64_t k, int64_t o) {
    flow l;
    l.n = n, l.k = k, l.o = o, l.dd = points_kernel(n, k, 0.3, &l.td), l.y = random_numbers(n * o), l.f0 = random_numbers(n * o), l.g0 = random_numbers(k * o);
    l.f = numbers(8 * n * o), l.g = numbers(8 * k * o);
    return l;
}

static nt_predict_flow_desc flow_desc(const flow *l, int times, const double *time) {
    nt_predict_flow_desc d;
    CLEAR(d);
    d.dtype = NT_F64, d.n = l->n, d.outputs = l->o, d.ntk_dd = l->dd, d.y = l->y, d.f0_train = l->f0, d.test = l->k, d.ntk_td = l->td, d.f0_test = l->g0;
    d.times = times, d.time = time, d.f_train = l->f, d.f_test = l->g;
    return d;
}

static void cubed(void *user, const double *f, const double *y, int64_t n, int64_t outputs, double *g) { // of sum (f - y)^4 / 4
    ++*(int *)user;
    for (int64_t k = 0; k < n * outputs; k++) g[k] = (f[k] - y[k]) * (f[k] - y[k]) * (f[k] - y[k]);
}

static void squared(void *user, const double *f, const double *y, int64_t n, int64_t outputs, double *g) {
    (void)user;
    for (int64_t k = 0; k < n * outputs; k++) g[k] = (f[k] - y[k]) / (double)(n * outputs);
}

// The classical method of order 4 in small steps, of f alone; the gradient in its plainest form.
static void slope_of(const flow *l, int loss, const double *f, double *out) {
    double *g = numbers(l->n * l->o);
    for (int64_t i = 0; i < l->n; i++) {
        double sum = 0, labels = 0;
        for (int64_t j = 0; j < l->o; j++) sum += exp(f[i * l->o + j]), labels += l->y[i * l->o + j];
        for (int64_t j = 0; j < l->o; j++) {
            double x = f[i * l->o + j], y = l->y[i * l->o + j];
            g[i * l->o + j] = loss == NT_FLOW_CROSS_ENTROPY ? (labels * exp(x) / sum - y) / (double)l->n
                              : loss == NT_FLOW_LOGISTIC    ? -y / (1 + exp(y * x)) / (double)(l->n * l->o)
                                                            : (x - y) * (x - y) * (x - y);
        }
    }
    product(out, l->dd, g, l->n, l->n, l->o);
    for (int64_t k = 0; k < l->n * l->o; k++) out[k] = -out[k];
    pool_free(g);
}

static void classical(const flow *l, int loss, double time, int count, double *f) {
    int64_t size = l->n * l->o;
    double *s = numbers(5 * size), h = time / count;
    memcpy(f, l->f0, (size_t)size * sizeof *f);
    for (int c = 0; c < count; c++) {
        for (int q = 0; q < 4; q++) {
            for (int64_t k = 0; k < size; k++) s[4 * size + k] = f[k] + (q ? s[(q - 1) * size + k] * (q == 3 ? h : h / 2) : 0);
            slope_of(l, loss, s + 4 * size, s + q * size);
        }
        for (int64_t k = 0; k < size; k++) f[k] += h / 6 * (s[k] + 2 * s[size + k] + 2 * s[2 * size + k] + s[3 * size + k]);
    }
    pool_free(s);
}

static int asked_after(void *user) { return --*(int *)user < 0; }

static void flows(void) {
    static const double times[] = { 0, 1, 1, 20 };
    flow l = flow_new(20, 5, 3);
    double *want = numbers(l.n * l.o), *f = numbers(8 * l.n * l.o), *g = numbers(8 * l.k * l.o);
    int calls = 0;
    for (int heavy = 0; heavy < 3; heavy++) { // the mean squared error has a closed form
        nt_predict_flow_desc d = flow_desc(&l, 4, times);
        nt_predict_mse_desc p;
        nt_factor *e = factor(l.dd, l.n, NT_EIGEN, 0);
        CLEAR(p);
        p.outputs = l.o, p.y = l.y, p.f0_train = l.f0, p.test = l.k, p.f0_test = l.g0, p.kernel_td = l.td, p.times = 4, p.time = times, p.f_train = f, p.f_test = g;
        p.learning_rate = d.learning_rate = 3, p.momentum = d.momentum = heavy == 2 ? 0.9 : heavy ? NT_ZERO : 0;
        tap_ok(nt_predict_flow(t, &d) == NT_OK && nt_predict_mse(e, &p) == NT_OK, "mean squared error, integrated, momentum %g", d.momentum);
        // errors of single steps, 1e-9, add up over at most a hundred steps
        close_to(l.f, f, 4 * l.n * l.o, 1e-7, "training examples as in closed form"), close_to(l.g, g, 4 * l.k * l.o, 1e-7, "test examples too");
        memcpy(f, l.f, sizeof(double) * (size_t)(4 * l.n * l.o));
        d.custom.gradient = squared;
        tap_ok(nt_predict_flow(t, &d) == NT_OK && off(l.f, f, 4 * l.n * l.o) == 0, "the host's gradient of the same: the same bits");
        nt_factor_free(e);
    }
    for (int loss = 1; loss < 4; loss++) {
        if (loss == NT_FLOW_CROSS_ENTROPY)
            for (int64_t k = 0; k < l.n * l.o; k++) l.y[k] = k % l.o == k / l.o % l.o;
        if (loss == NT_FLOW_LOGISTIC)
            for (int64_t k = 0; k < l.n * l.o; k++) l.y[k] = l.y[k] > 0.5 ? 1 : -1;
        nt_predict_flow_desc d = flow_desc(&l, 4, times);
        double *sum = numbers(l.n * l.o);
        nt_flow_state state;
        CLEAR(state);
        state.sum = sum;
        if (loss < 3) d.loss = (nt_flow_loss)loss;
        else d.custom.gradient = cubed, d.custom.user = &calls;
        tap_ok(nt_predict_flow(t, &d) == NT_OK, "loss %d", loss);
        classical(&l, loss, 20, 4000, want);
        close_to(l.f + 3 * l.n * l.o, want, l.n * l.o, 1e-7, "is as by four thousand classical steps");
        close_to(l.f, l.f0, l.n * l.o, 0, "and begins where it began"), close_to(l.f + l.n * l.o, l.f + 2 * l.n * l.o, l.n * l.o, 0, "equal times give equal bits");
        memcpy(f, l.f, sizeof(double) * (size_t)(4 * l.n * l.o)), memcpy(g, l.g, sizeof(double) * (size_t)(4 * l.k * l.o));
        d.state = &state, d.times = 2; // and in two calls
        nt_status first = nt_predict_flow(t, &d);
        d.time = times + 2, d.f_train = l.f + 2 * l.n * l.o, d.f_test = l.g + 2 * l.k * l.o;
        tap_ok(first == NT_OK && state.time == 1 && nt_predict_flow(t, &d) == NT_OK && state.time == 20, "interrupted at time 1 and resumed");
        close_to(l.f, f, 4 * l.n * l.o, 1e-7, "training examples as in one go"), close_to(l.g, g, 4 * l.k * l.o, 1e-7, "test examples too");
        says(nt_predict_flow(t, &d), NT_ERROR_ARGUMENT, "ascend from where training has come to", "not back in time");
    }
    tap_ok(calls > 0, "the host's gradient was called %d times", calls);
    nt_predict_flow_desc d = flow_desc(&l, 1, times + 3);
    double *sum = numbers(l.n * l.o), *velocity = numbers(l.n * l.o);
    nt_flow_state state;
    CLEAR(state);
    state.sum = sum, state.velocity = velocity, d.state = &state, d.max_steps = 5, d.momentum = 0.9;
    int slices = 1;
    nt_status status = nt_predict_flow(t, &d);
    while (status == NT_AGAIN && slices < 1000) status = nt_predict_flow(t, &d), slices++;
    memcpy(f, l.f, sizeof(double) * (size_t)(l.n * l.o));
    d.state = NULL, d.max_steps = 0;
    tap_ok(status == NT_OK && slices > 2 && state.time == 20 && nt_predict_flow(t, &d) == NT_OK, "five steps at a time: %d calls, %d gradients", slices, (int)state.evaluations);
    close_to(l.f, f, l.n * l.o, 1e-7, "are as one call");
    int left = 3;
    d.cancel.asked = asked_after, d.cancel.user = &left;
    tap_ok(nt_predict_flow(t, &d) == NT_CANCELLED, "cancelled");
    nt_error_clear(t);
    l.f0[3] = 1e200, d.custom.gradient = cubed, d.custom.user = &calls, CLEAR(d.cancel), d.momentum = 0;
    says(nt_predict_flow(t, &d), NT_NONFINITE, "finite", "a gradient that overflows");
}

// ---------------------------------------------------------------------------------------------------------------------
// Everything at once: for threads, memory and f32
// ---------------------------------------------------------------------------------------------------------------------
#define ALL_N 150
#define ALL_K 70
static double all_dd[2][ALL_N * ALL_N], all_td[2][ALL_N * ALL_K], all_tt[ALL_K * ALL_K], all_y[3 * ALL_N];
typedef struct everything { double mean[3 * ALL_K * 3], cov[3 * ALL_K * ALL_K], train[2 * ALL_N * ALL_N], solved[4 * 3 * ALL_N], flow[3 * ALL_K], rate, likelihood; } everything;
static float narrow[ALL_N * ALL_N * 4 + ALL_K * ALL_N * 2 + ALL_K * ALL_K + 3 * ALL_N], narrow_out[sizeof(everything) / sizeof(double)];

static void all_kernels(void) {
    double *td, *x = points_kernel(ALL_N + ALL_K, 0, 0.3, &td);
    for (int64_t i = 0; i < ALL_N + ALL_K; i++)
        for (int64_t j = 0; j < ALL_N + ALL_K; j++) {
            double v = x[i * (ALL_N + ALL_K) + j] + (i == j ? 0.1 : 0);
            if (i < ALL_N && j < ALL_N) all_dd[0][i * ALL_N + j] = v, all_dd[1][i * ALL_N + j] = v + v * v;
            else if (j < ALL_N) all_td[0][(i - ALL_N) * ALL_N + j] = v, all_td[1][(i - ALL_N) * ALL_N + j] = v + v * v;
            else if (i >= ALL_N) all_tt[(i - ALL_N) * ALL_K + j - ALL_N] = v;
        }
    for (int k = 0; k < 3 * ALL_N; k++) all_y[k] = chance();
}

static const void *as(nt_dtype dtype, const double *x, int64_t n, float **room) {
    float *out = *room;
    if (dtype == NT_F64) return x;
    for (int64_t k = 0; k < n; k++) out[k] = (float)x[k];
    *room += n;
    return out;
}

// Returns the first failure. The results of f32 lie one behind the other in narrow_out, in the order of the structure.
static nt_status do_everything(nt_tape *tape, nt_dtype dtype, everything *r) {
    static const double times[] = { 2, 300, INFINITY };
    float *room = narrow;
    const void *dd[2], *td[2], *tt = as(dtype, all_tt, ALL_K * ALL_K, &room), *y = as(dtype, all_y, 3 * ALL_N, &room);
    size_t size = nt_dtype_size(dtype);
    nt_factor *f[4] = { NULL, NULL, NULL, NULL };
    nt_factor_desc d;
    nt_predict_gp_desc p;
    nt_predict_flow_desc w;
    nt_status status = NT_OK;
    for (int k = 0; k < 2; k++) dd[k] = as(dtype, all_dd[k], ALL_N * ALL_N, &room), td[k] = as(dtype, all_td[k], ALL_N * ALL_K, &room);
    CLEAR(d), CLEAR(p), CLEAR(w);
#define AT(field) (dtype == NT_F64 ? (char *)(void *)r->field : (char *)narrow_out + offsetof(everything, field) / 2)
    d.dtype = dtype, d.n = ALL_N, d.kernel = dd[1];
    for (int k = 0; k < 4; k++) {
        d.solver = k < 3 ? (nt_solver)(k + 1) : NT_CONJUGATE_GRADIENTS, d.rank = k == 3 ? 30 : 0;
        f[k] = nt_factor_make(tape, &d);
        if (status == NT_OK) status = f[k] ? nt_factor_solve(f[k], y, 3, AT(solved) + (size_t)k * 3 * ALL_N * size) : nt_error_status(tape);
    }
    p.gp = NT_GP_NTK, p.outputs = 3, p.y = y, p.test = ALL_K, p.nngp_dd = dd[0], p.nngp_td = td[0], p.nngp_tt = tt, p.ntk_td = td[1], p.times = 3, p.time = times;
    p.mean = AT(mean), p.covariance = AT(cov);
    if (status == NT_OK) status = nt_predict_gp(f[1], &p);
    p.mean = p.covariance = NULL, p.covariance_train = AT(train), p.times = 2;
    if (status == NT_OK) status = nt_predict_gp(f[1], &p);
    if (status == NT_OK) status = nt_log_marginal_likelihood(f[0], y, 3, &r->likelihood);
    w.dtype = dtype, w.n = ALL_N, w.outputs = 3, w.ntk_dd = dd[1], w.y = y, w.test = ALL_K, w.ntk_td = td[1], w.times = 1, w.time = times, w.f_test = AT(flow);
    w.loss = NT_FLOW_LOGISTIC;
    if (status == NT_OK) status = nt_predict_flow(tape, &w);
    if (status == NT_OK) {
        r->rate = nt_max_learning_rate(tape, dtype, ALL_N, dd[1], 3 * ALL_N, 0.5);
        if (isnan(r->rate)) status = nt_error_status(tape);
    }
    for (int k = 3; k >= 0; k--) nt_factor_free(f[k]);
    if (dtype == NT_F32)
        for (size_t k = 0; k < offsetof(everything, rate) / sizeof(double); k++) ((double *)(void *)r)[k] = (double)narrow_out[k];
    return status;
}

typedef struct order { int workers, turn; } order;
static void mixed_up(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) { // every third, from the end
    order *o = (order *)user;
    for (int part = 0; part < 3; part++)
        for (int64_t k = n - 1; k >= 0; k--)
            if (k % 3 == part) fn(arg, k, o->turn++ % o->workers);
}

static void threads(everything *want) {
    static everything got;
    for (int k = 1; k <= 4; k++) {
        order o = { k, 0 };
        nt_tape_desc d;
        CLEAR(d), memset(&got, 0, sizeof got);
        d.parallel.user = &o, d.parallel.max_workers = k, d.parallel.for_each = mixed_up;
        nt_tape *tape = nt_tape_open(&d);
        int same = do_everything(tape, NT_F64, &got) == NT_OK && !memcmp(&got, want, sizeof got);
        tap_ok(same && (k == 1 || o.turn > 100), "%d workers in another order: the same bits (%d tiles)", k, o.turn);
        nt_tape_close(tape);
    }
}

static void memory(everything *want) {
    static everything got;
    long count = 0, wrong = 0, failed = 0;
    size_t total = 0;
    for (long k = 0;; k++) {
        heap h;
        nt_tape_desc d = heap_desc(&h);
        memset(&got, 0, sizeof got);
        h.fail_at = k;
        nt_tape *tape = nt_tape_open(&d);
        if (!tape) continue;
        nt_memory_use before = nt_memory(tape);
        nt_status status = do_everything(tape, NT_F64, &got);
        nt_memory_use use = nt_memory(tape);
        if (use.objects || use.nodes != before.nodes || use.temporaries) wrong++; // all given back, after a failure too
        if (k == 0) count = h.calls, total = use.total;
        if (k == 0 || k > count) wrong += status != NT_OK || memcmp(&got, want, sizeof got) != 0;
        else if (status == NT_ERROR_MEMORY && nt_error(tape) && strstr(nt_error(tape), "bytes")) failed++;
        else wrong += status != NT_OK; // a failed search for a ridge would be no failure
        nt_tape_close(tape);
        if (h.live || h.wrong) wrong++;
        if (k > count) break;
        if (k > 60 && k + 60 < count) k += count / 60; // not all of the many products in the middle
    }
    tap_ok(!wrong && failed > 60, "an allocator that refuses, each of %ld requests or one in a while: %ld clean failures, %ld wrong", count, failed, wrong);
    for (int k = 0; k < 2; k++) {
        nt_tape_desc d;
        CLEAR(d);
        d.memory_size = total - (size_t)k, d.memory = pool_new(d.memory_size, 1);
        nt_tape *tape = nt_tape_open(&d);
        nt_status status = do_everything(tape, NT_F64, &got);
        tap_ok(k ? status == NT_ERROR_MEMORY : status == NT_OK && !memcmp(&got, want, sizeof got), "an array of %zu bytes: %s", d.memory_size, nt_status_name(status));
        nt_tape_close(tape);
    }
}

static void floats(const everything *want) {
    static everything got;
    tap_ok(do_everything(t, NT_F32, &got) == NT_OK, "everything in f32");
    // inputs and outputs rounded to 6e-8, times the condition of the kernels, 1e3 at most here, in what is solved
    close_to(got.mean, want->mean, 9 * ALL_K, 2e-5, "means"), close_to(got.cov, want->cov, 3 * ALL_K * ALL_K, 2e-5, "covariances");
    close_to(got.train, want->train, 2 * ALL_N * ALL_N, 2e-5, "covariances of training examples"), close_to(got.flow, want->flow, 3 * ALL_K, 2e-6, "another loss");
    close_to(got.solved, want->solved, 12 * ALL_N, 2e-5, "solutions"), close_to(&got.rate, &want->rate, 1, 1e-6, "learning rate");
    close_to(&got.likelihood, &want->likelihood, 1, 1e-5, "likelihood");
    for (int k = 1; k < 4; k++) close_to(want->solved + k * 3 * ALL_N, want->solved, 3 * ALL_N, 1e-6, "all solvers agree");
}

int main(void) {
    static everything want;
    t = nt_tape_open(NULL);
    reference(), golden_ensemble(), series(), pendulums(), steps(), identities(), many_times();
    sizes(), iterations(), likelihood(), largest(), forgetting(), endless_times(), bad_kernels(), bad_calls(), flows();
    all_kernels();
    tap_ok(do_everything(t, NT_F64, &want) == NT_OK, "everything at once");
    floats(&want), threads(&want), memory(&want);
    tap_ok(!nt_error(t), "no error is left over: %s", nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
    pool_end();
    return tap_end();
}
