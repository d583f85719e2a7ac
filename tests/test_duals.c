// Rules of activations in infinitely wide networks (>>duals): every kind in f64 and f32 on every instruction set against quadrature in two
// dimensions of the finite function and its derivative, its own differences, its ends (no variance, correlation 1, huge and tiny numbers).
#define _POSIX_C_SOURCE 200809L
#define NTTRAIN_IMPLEMENTATION
#ifndef EVERY_INSTRUCTION_SET // check_all.sh: compiling them all takes a minute
#define NTTRAIN_ISA_BASELINE
#endif
#include "nttrain.h"
#include "tap.h"
#include <math.h>

#define PI 3.14159265358979323846
#define LANES NTI_DUAL_LANES
#define SIDES_MAX 72

// ---------------------------------------------------------------------------------------------------------------------
// The functions, written here once more
// ---------------------------------------------------------------------------------------------------------------------
typedef struct number {
    double a, b, c;
    int n;
    const double *list;
} number;
typedef double (*function)(const number *p, double x);

static double step(double x) { return x > 0; }
static double abrelu(const number *p, double x) { return x < 0 ? p->a * x : p->b * x; }
static double abrelu_d(const number *p, double x) { return x < 0 ? p->a : p->b; }
static double erf_(const number *p, double x) { return p->a * erf(p->b * x) + p->c; }
static double erf_d(const number *p, double x) { return p->a * p->b * 2 / sqrt(PI) * exp(-p->b * p->b * x * x); }
static double gelu(const number *p, double x) { return (void)p, x * erfc(-x / sqrt(2)) / 2; }
static double gelu_d(const number *p, double x) { return (void)p, erfc(-x / sqrt(2)) / 2 + x * exp(-x * x / 2) / sqrt(2 * PI); }
static double sin_(const number *p, double x) { return p->a * sin(p->b * x + p->c); }
static double sin_d(const number *p, double x) { return p->a * p->b * cos(p->b * x + p->c); }
static double exp_(const number *p, double x) { return p->a * exp(p->b * x); }
static double exp_d(const number *p, double x) { return p->b * exp_(p, x); }
static double gaussian(const number *p, double x) { return p->a * exp(p->b * x * x); }
static double gaussian_d(const number *p, double x) { return 2 * p->b * x * gaussian(p, x); }
static double gabor(const number *p, double x) { return (void)p, exp(-x * x) * sin(x); }
static double gabor_d(const number *p, double x) { return (void)p, exp(-x * x) * (cos(x) - 2 * x * sin(x)); }
static double sign(const number *p, double x) { return (void)p, x > 0 ? 1 : x < 0 ? -1 : 0; }
static double none(const number *p, double x) { return (void)p, (void)x, 0; }
static double power(double x, int n) {
    double r = 1;
    for (int k = 0; k < n; k++) r *= x;
    return r;
}
static double monomial(const number *p, double x) { return power(x, p->n); }
static double monomial_d(const number *p, double x) { return p->n ? p->n * power(x, p->n - 1) : 0; }
static double rectified(const number *p, double x) { return step(x) * monomial(p, x); }
static double rectified_d(const number *p, double x) { return step(x) * monomial_d(p, x); }
static double polynomial(const number *p, double x) {
    double sum = 0;
    for (int k = p->n - 1; k >= 0; k--) sum = sum * x + p->list[k];
    return sum;
}
static double polynomial_d(const number *p, double x) {
    double sum = 0;
    for (int k = p->n - 1; k > 0; k--) sum = sum * x + k * p->list[k];
    return sum;
}
static double hermite_of(int n, double x) {
    double before = 0, h = 1;
    for (int k = 0; k < n; k++) {
        double next = (x * h - sqrt(k) * before) / sqrt(k + 1);
        before = h, h = next;
    }
    return h;
}
static double hermite(const number *p, double x) { return hermite_of(p->n, x); }
static double hermite_d(const number *p, double x) { return p->n ? sqrt(p->n) * hermite_of(p->n - 1, x) : 0; }
static double tanh_(const number *p, double x) { return (void)p, tanh(x); }
static double tanh_d(const number *p, double x) { return (void)p, 1 / (cosh(x) * cosh(x)); }
static double logistic(double x) { return 1 / (1 + exp(-x)); }
static double sigmoid(const number *p, double x) { return (void)p, logistic(x); }
static double sigmoid_d(const number *p, double x) { return (void)p, logistic(x) * logistic(-x); }
static double softplus(const number *p, double x) { return (void)p, x > 0 ? x + log1p(exp(-x)) : log1p(exp(x)); }
static double silu(const number *p, double x) { return (void)p, x * logistic(x); }
static double silu_d(const number *p, double x) { return (void)p, logistic(x) * (1 + x * logistic(-x)); }
static double elu(const number *p, double x) { return x > 0 ? p->b * x : p->a * expm1(x); }
static double elu_d(const number *p, double x) { return x > 0 ? p->b : p->a * exp(x); }
static double mish(const number *p, double x) { return x * tanh(softplus(p, x)); }
static double mish_d(const number *p, double x) {
    double t = tanh(softplus(p, x));
    return t + x * (1 - t * t) * logistic(x);
}
static double gelu_tanh(const number *p, double x) { return (void)p, x / 2 * (1 + tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x))); }
static double gelu_tanh_d(const number *p, double x) {
    double t = tanh(sqrt(2 / PI) * (x + 0.044715 * x * x * x));
    return (void)p, (1 + t) / 2 + x / 2 * (1 - t * t) * sqrt(2 / PI) * (1 + 3 * 0.044715 * x * x);
}
static double soft_sign(const number *p, double x) { return (void)p, x / (1 + fabs(x)); }
static double soft_sign_d(const number *p, double x) { return (void)p, 1 / ((1 + fabs(x)) * (1 + fabs(x))); }
static double arctan(const number *p, double x) { return (void)p, atan(x); }
static double arctan_d(const number *p, double x) { return (void)p, 1 / (1 + x * x); }
static double pieces(const number *p, double x) { // list: value at 0, points, slopes; from 0 to x, an interval at a time
    double y = p->list[0];
    for (int k = 0; k <= p->n; k++) {
        double low = k ? p->list[k] : -HUGE_VAL, high = k < p->n ? p->list[1 + k] : HUGE_VAL;
        y += p->list[1 + p->n + k] * (fmax(low, fmin(high, x)) - fmax(low, fmin(high, 0)));
    }
    return y;
}
static double pieces_d(const number *p, double x) {
    int k = 0;
    while (k < p->n && x > p->list[1 + k]) k++;
    return p->list[1 + p->n + k];
}
static double cube_of(void *user, double x) { return *(double *)user * x * x * x; }
static double cube(const number *p, double x) { return p->a * x * x * x; }
static double cube_d(const number *p, double x) { return 3 * p->a * x * x; }

static const double odd_list[] = { 1.3, 0, -1.2, -0.5 }, long_list[] = { 0.1, -0.2, 0.3, 0.05, -0.02, 0.01, 0.003, -0.001, 2e-4 };
static const double relu6[] = { 0, 0, 6, 0, 1, 0 }, hard_tanh[] = { 0, -1, 1, 0, 1, 0 }, hard_sigmoid[] = { 0.5, -3, 3, 0, 1.0 / 6, 0 },
                    bent[] = { 0.2, -2, -0.5, 0.25, 1.5, 0.1, 0.9, -0.3, 0.7, 1.3 }, shrunk[] = { 0, -0.5, 0.5, 1, 0, 1 },
                    straight[] = { -0.3, 0.7 };
static double user_factor = 0.5;

static nt_layer *by_function(nt_tape *t, const number *p, nt_tensor *(*f)(nt_tensor *)) { return (void)p, nt_activation_layer(t, f); }

typedef struct row {
    const char *name;
    function f, df;
    number p;
    double near, far, wide; // the error of an expansion, relative to sqrt(k11 k22), for variances up to 1, 10, 100; 0: a closed form
    double most;            // largest variance that means something
} row;
static const row rows[] = {
    { "relu", abrelu, abrelu_d, { 0, 1, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "leaky_relu 0.1", abrelu, abrelu_d, { 0.1, 1, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "abs", abrelu, abrelu_d, { -1, 1, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "abrelu -0.5 1.25", abrelu, abrelu_d, { -0.5, 1.25, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "erf", erf_, erf_d, { 1, 1, 0, 0, NULL }, 0, 0, 0, 100 },
    { "erf 2 0.3 0.5", erf_, erf_d, { 2, 0.3, 0.5, 0, NULL }, 0, 0, 0, 100 },
    { "gelu", gelu, gelu_d, { 0, 0, 0, 0, NULL }, 0, 0, 0, 100 },
    { "sin", sin_, sin_d, { 1, 1, 0, 0, NULL }, 0, 0, 0, 20 },
    { "sin 0.3 1.5 -0.7", sin_, sin_d, { 0.3, 1.5, -0.7, 0, NULL }, 0, 0, 0, 20 },
    { "sin 1 1 1.2", sin_, sin_d, { 1, 1, 1.2, 0, NULL }, 0, 0, 0, 20 },
    { "cos", sin_, sin_d, { 1, 1, PI / 2, 0, NULL }, 0, 0, 0, 20 },
    { "rbf 0.5", sin_, sin_d, { 1.41421356237309504880, 1, PI / 4, 0, NULL }, 0, 0, 0, 20 },
    { "exp 0.5 -0.3", exp_, exp_d, { 0.5, -0.3, 0, 0, NULL }, 0, 0, 0, 20 },
    { "gaussian 1 -1", gaussian, gaussian_d, { 1, -1, 0, 0, NULL }, 0, 0, 0, 100 },
    { "gaussian 2 -0.2", gaussian, gaussian_d, { 2, -0.2, 0, 0, NULL }, 0, 0, 0, 100 },
    { "gaussian 1 0.02", gaussian, gaussian_d, { 1, 0.02, 0, 0, NULL }, 0, 0, 0, 5 },
    { "gabor", gabor, gabor_d, { 0, 0, 0, 0, NULL }, 0, 0, 0, 100 },
    { "sign", sign, none, { 0, 0, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "monomial 0", monomial, monomial_d, { 0, 0, 0, 0, NULL }, 0, 0, 0, 100 },
    { "monomial 1", monomial, monomial_d, { 0, 0, 0, 1, NULL }, 0, 0, 0, 100 },
    { "monomial 2", monomial, monomial_d, { 0, 0, 0, 2, NULL }, 0, 0, 0, 100 },
    { "monomial 5", monomial, monomial_d, { 0, 0, 0, 5, NULL }, 0, 0, 0, 100 },
    { "monomial 12", monomial, monomial_d, { 0, 0, 0, 12, NULL }, 0, 0, 0, 10 },
    { "rectified_monomial 0", rectified, none, { 0, 0, 0, 0, NULL }, 0, 0, 0, 1e4 },
    { "rectified_monomial 1", rectified, rectified_d, { 0, 0, 0, 1, NULL }, 0, 0, 0, 1e4 },
    { "rectified_monomial 2", rectified, rectified_d, { 0, 0, 0, 2, NULL }, 0, 0, 0, 100 },
    { "rectified_monomial 3", rectified, rectified_d, { 0, 0, 0, 3, NULL }, 0, 0, 0, 100 },
    { "rectified_monomial 9", rectified, rectified_d, { 0, 0, 0, 9, NULL }, 0, 0, 0, 10 },
    { "polynomial", polynomial, polynomial_d, { 0, 0, 0, 4, odd_list }, 0, 0, 0, 100 },
    { "polynomial of 9", polynomial, polynomial_d, { 0, 0, 0, 9, long_list }, 0, 0, 0, 20 },
    { "polynomial of none", polynomial, polynomial_d, { 0, 0, 0, 0, NULL }, 0, 0, 0, 100 },
    { "hermite 0", hermite, hermite_d, { 0, 0, 0, 0, NULL }, 0, 0, 0, -1 },
    { "hermite 1", hermite, hermite_d, { 0, 0, 0, 1, NULL }, 0, 0, 0, -1 },
    { "hermite 4", hermite, hermite_d, { 0, 0, 0, 4, NULL }, 0, 0, 0, -1 },
    { "relu6", pieces, pieces_d, { 0, 0, 0, 2, relu6 }, 0, 0, 0, 100 },
    { "hard_tanh", pieces, pieces_d, { 0, 0, 0, 2, hard_tanh }, 0, 0, 0, 100 },
    { "hard_sigmoid", pieces, pieces_d, { 0, 0, 0, 2, hard_sigmoid }, 0, 0, 0, 100 },
    { "bent at four points", pieces, pieces_d, { 0, 0, 0, 4, bent }, 0, 0, 0, 100 },
    { "shrunk", pieces, pieces_d, { 1, 0, 0, 2, shrunk }, 0, 0, 0, 100 },
    { "straight", pieces, pieces_d, { 0, 0, 0, 0, straight }, 0, 0, 0, 100 },
    { "tanh", tanh_, tanh_d, { 0, 0, 0, 0, NULL }, 1e-8, 6e-5, 4e-3, 100 },
    { "sigmoid", sigmoid, sigmoid_d, { 0, 0, 0, 0, NULL }, 1e-10, 2e-7, 5e-4, 100 },
    { "softplus", softplus, sigmoid, { 0, 0, 0, 0, NULL }, 1e-10, 3e-9, 2e-5, 100 },
    { "silu", silu, silu_d, { 0, 0, 0, 0, NULL }, 1e-10, 6e-8, 1e-4, 100 },
    { "elu", elu, elu_d, { 1, 1, 0, 0, NULL }, 1e-5, 1e-4, 4e-4, 100 },
    { "elu 0.5", elu, elu_d, { 0.5, 1, 0, 0, NULL }, 2e-3, 2e-3, 5e-3, 100 },
    { "selu", elu, elu_d, { 1.0507009873554804934 * 1.6732632423543772848, 1.0507009873554804934, 0, 0, NULL }, 2e-3, 3e-3, 1e-2, 100 },
    { "mish", mish, mish_d, { 0, 0, 0, 0, NULL }, 1e-9, 1e-6, 2e-4, 100 },
    { "gelu_tanh", gelu_tanh, gelu_tanh_d, { 0, 0, 0, 0, NULL }, 1e-10, 3e-7, 2e-4, 100 },
    { "soft_sign", soft_sign, soft_sign_d, { 0, 0, 0, 0, NULL }, 4e-4, 5e-3, 3e-2, 100 },
    { "atan", arctan, arctan_d, { 0, 0, 0, 0, NULL }, 1e-8, 1e-4, 6e-3, 100 },
    { "elementwise", cube, cube_d, { 0.5, 0, 0, 0, NULL }, 1e-10, 1e-10, 1e-10, 100 },
};
#define ROWS ((int)(sizeof rows / sizeof rows[0]))

static nt_layer *layer_of(nt_tape *t, const row *r) {
    const number *p = &r->p;
    if (r->f == abrelu) {
        if (strcmp(r->name, "relu") == 0) return nt_relu_layer(t);
        if (strcmp(r->name, "abs") == 0) return by_function(t, p, nt_abs);
        return strncmp(r->name, "leaky", 5) == 0 ? nt_leaky_relu_layer(t, p->a) : nt_abrelu_layer(t, p->a, p->b);
    }
    if (r->f == erf_) return strcmp(r->name, "erf") == 0 ? by_function(t, p, nt_erf) : nt_erf_layer(t, p->a, p->b, p->c);
    if (r->f == gelu) return nt_gelu_layer(t);
    if (r->f == sin_) {
        if (strcmp(r->name, "sin") == 0) return by_function(t, p, nt_sin);
        if (strcmp(r->name, "cos") == 0) return by_function(t, p, nt_cos);
        return strncmp(r->name, "rbf", 3) == 0 ? nt_rbf_layer(t, 0.5) : nt_sin_layer(t, p->a, p->b, p->c);
    }
    if (r->f == exp_) return nt_exp_layer(t, p->a, p->b);
    if (r->f == gaussian) return nt_gaussian_layer(t, p->a, p->b);
    if (r->f == gabor) return nt_gabor_layer(t);
    if (r->f == sign) return by_function(t, p, nt_sign);
    if (r->f == monomial) return nt_monomial_layer(t, p->n);
    if (r->f == rectified) return nt_rectified_monomial_layer(t, p->n);
    if (r->f == polynomial) return nt_polynomial_layer(t, p->n, p->list);
    if (r->f == pieces) {
        if (p->list == relu6) return by_function(t, p, nt_relu6);
        if (p->list == hard_tanh) return by_function(t, p, nt_hard_tanh);
        if (p->list == hard_sigmoid) return by_function(t, p, nt_hard_sigmoid);
        return nt_piecewise_linear_layer(t, p->n, p->list + 1, p->list + 1 + p->n, p->list[0]);
    }
    if (r->f == hermite) return nt_hermite_layer(t, p->n);
    if (r->f == tanh_) return nt_tanh_layer(t);
    if (r->f == sigmoid) return nt_sigmoid_layer(t);
    if (r->f == softplus) return nt_softplus_layer(t);
    if (r->f == silu) return nt_silu_layer(t);
    if (r->f == elu) return strncmp(r->name, "elu", 3) == 0 ? nt_elu_layer(t, p->a) : by_function(t, p, nt_selu);
    if (r->f == mish) return by_function(t, p, nt_mish);
    if (r->f == gelu_tanh) return nt_gelu_tanh_layer(t);
    if (r->f == soft_sign) return by_function(t, p, nt_soft_sign);
    if (r->f == arctan) return by_function(t, p, nt_atan);
    nt_elementwise_desc d;
    memset(&d, 0, sizeof d);
    d.f = cube_of, d.user = &user_factor;
    return nt_elementwise_layer(t, &d);
}

// ---------------------------------------------------------------------------------------------------------------------
// Quadrature: u = s1 z, v given z; Gauss-Legendre on panels that end at the kinks u = 0 and v = 0 and are finer there
// ---------------------------------------------------------------------------------------------------------------------
#define NODES 12
static double node[NODES], weight[NODES];

static void make_nodes(void) { // by Newton's method on Legendre's polynomial
    for (int k = 0; k < NODES; k++) {
        double x = cos(PI * (k + 0.75) / (NODES + 0.5)), slope = 1;
        for (int i = 0; i < 50; i++) {
            double p = 1, before = 0;
            for (int n = 0; n < NODES; n++) {
                double next = ((2 * n + 1) * x * p - n * before) / (n + 1);
                before = p, p = next;
            }
            slope = NODES * (x * p - before) / (x * x - 1);
            x -= p / slope;
        }
        node[k] = x, weight[k] = 2 / ((1 - x * x) * slope * slope);
    }
}

// Distances from the kink. Of v given z the function bends over 1/s2; what is left of u bends over sqrt(1 - c^2).
static const double inner_panels[] = { 0, 0.1, 0.3, 0.7, 1.4, 2.4, 3.4, 4.6, 6, 8, 10, 13, 16, 19, 22 };
static const double outer_panels[] = { 0, 1e-4, 5e-4, 2e-3, 1e-2, 0.05, 0.15, 0.4, 1, 2, 3, 4, 5.5, 7, 9, 11, 13 };

typedef double (*inner_function)(const void *user, double z);
// The integral of g over a normal variable from -reach to reach, in panels around `middle`.
static double integral(inner_function g, const void *user, double middle, const double *panels, int count, double reach) {
    double sum = 0;
    for (int side = -1; side <= 1; side += 2)
        for (int k = 0; k + 1 < count; k++) {
            double half = (panels[k + 1] - panels[k]) / 2;
            for (int i = 0; i < NODES; i++) {
                double z = middle + side * (panels[k] + half * (1 + node[i]));
                if (fabs(z) < reach) sum += half * weight[i] * exp(-z * z / 2) / sqrt(2 * PI) * g(user, z);
            }
        }
    return sum;
}
#define COUNT(list) ((int)(sizeof(list) / sizeof(list)[0]))
typedef struct expectation {
    function f;
    const number *p;
    double s1, s2, c, s, z1;
} expectation;
static double inner(const void *user, double z) {
    const expectation *e = (const expectation *)user;
    return e->f(e->p, e->s2 * (e->c * e->z1 + e->s * z));
}
static double outer(const void *user, double z) {
    expectation e = *(const expectation *)user;
    double u = e.f(e.p, e.s1 * z), middle;
    if (u == 0) return 0;
    e.z1 = z;
    if (e.s < 1e-9) return u * e.f(e.p, e.s2 * e.c * z);
    middle = -e.c * z / e.s;
    return u * integral(inner, &e, fabs(middle) < 9 ? middle : 0, inner_panels, COUNT(inner_panels), e.p->n > 5 ? 13 : 9);
}

// Of functions with kinks elsewhere: panels that end at given points, and are at most 1.5 long.
enum { POINTS = 160 };
typedef struct points { double at[POINTS]; int count; } points;
static void add_point(points *p, double z) {
    int k = p->count;
    if (!(fabs(z) < 9)) return;
    for (p->count++; k > 0 && p->at[k - 1] > z; k--) p->at[k] = p->at[k - 1];
    p->at[k] = z;
}
static double integral_between(inner_function g, const void *user, const points *p) {
    double sum = 0;
    for (int k = 0; k <= p->count; k++) {
        double low = k ? p->at[k - 1] : -9, high = k < p->count ? p->at[k] : 9;
        int parts = 1 + (int)((high - low) / 1.5);
        for (int i = 0; i < parts * NODES; i++) {
            double half = (high - low) / parts / 2, z = low + half * (2 * (i / NODES) + 1 + node[i % NODES]);
            sum += half * weight[i % NODES] * exp(-z * z / 2) / sqrt(2 * PI) * g(user, z);
        }
    }
    return sum;
}
static double pieces_outer(const void *user, double z) {
    expectation e = *(const expectation *)user;
    points p;
    p.count = 0, e.z1 = z;
    if (e.s == 0) return e.f(e.p, e.s1 * z) * e.f(e.p, e.s2 * e.c * z);
    for (int k = 0; k < e.p->n; k++) add_point(&p, (e.p->list[1 + k] / e.s2 - e.c * z) / e.s);
    return e.f(e.p, e.s1 * z) * integral_between(inner, &e, &p);
}
static double pieces_expected(const expectation *e) {
    static const double steps[] = { 0, 0.6, 1.3, 2, 3, 4.2, 5.7, 7.5, 9 };
    points p;
    p.count = 0;
    for (int k = 0; k < e->p->n; k++) {
        double t = e->p->list[1 + k];
        add_point(&p, t / e->s1);
        for (int i = 0; e->c != 0 && i < 2 * COUNT(steps); i++) add_point(&p, (t / e->s2 + (i % 2 ? -1 : 1) * steps[i / 2] * e->s) / e->c);
    }
    return integral_between(pieces_outer, e, &p);
}
static double expected(function f, const number *p, double q11, double q22, double q12) {
    expectation e;
    memset(&e, 0, sizeof e);
    double r = sqrt(q11) * sqrt(q22), near = r > 0 ? (r - fabs(q12)) / r : 1;
    if (near < 0) near = 0;
    e.f = f, e.p = p, e.s1 = sqrt(q11), e.s2 = sqrt(q22);
    e.c = r > 0 ? (q12 < 0 ? -1 : 1) * (1 - near) : 0, e.s = sqrt(near * (2 - near));
    if (f == pieces || f == pieces_d) return pieces_expected(&e);
    return integral(outer, &e, 0, outer_panels, COUNT(outer_panels), p->n > 5 ? 13 : 9);
}

// ---------------------------------------------------------------------------------------------------------------------
// The kernels
// ---------------------------------------------------------------------------------------------------------------------
static const struct nti_isa *isa_at(int k) { // NULL: not on this machine
    static const nt_isa isas[] = { NT_ISA_BASELINE, NT_ISA_AVX2, NT_ISA_AVX512 };
    return nti_isa_choose(isas[k]);
}

// Some lanes in f64 (wide) or f32: k from q12, t times E f' f'. Lanes that are left take the first one's numbers.
typedef struct lanes { double q1[LANES], q2[LANES], k[LANES], t[LANES]; } lanes;
static void copy_lanes(void *to, const double *from, int wide) {
    for (int j = 0; j < LANES; j++) {
        if (wide) ((double *)to)[j] = from[j];
        else ((float *)to)[j] = (float)from[j];
    }
}
static void copy_back(double *to, const void *from, int wide) {
    for (int j = 0; j < LANES; j++) to[j] = wide ? ((const double *)from)[j] : (double)((const float *)from)[j];
}
static void run_pair(const struct nti_isa *isa, const nti_dual *d, int wide, lanes *x, int count) {
    static double s1[SIDES_MAX * LANES], s2[SIDES_MAX * LANES];
    double q[LANES], k[LANES], t[LANES];
    const nti_dual_table *table = isa->dual[wide];
    for (int j = count; j < LANES; j++) x->q1[j] = x->q1[0], x->q2[j] = x->q2[0], x->k[j] = x->k[0], x->t[j] = x->t[0];
    copy_lanes(q, x->q1, wide), table->prepare(d, q, s1, LANES);
    copy_lanes(q, x->q2, wide), table->prepare(d, q, s2, LANES);
    copy_lanes(k, x->k, wide), copy_lanes(t, x->t, wide);
    table->pair(d, k, t, s1, s2, LANES, LANES);
    copy_back(x->k, k, wide), copy_back(x->t, t, wide);
}
static void run_self(const struct nti_isa *isa, const nti_dual *d, int wide, lanes *x) { // of q1, into k
    double q[LANES], t[LANES];
    copy_lanes(q, x->q1, wide), copy_lanes(t, x->t, wide);
    isa->dual[wide]->self(d, q, t, LANES);
    copy_back(x->k, q, wide), copy_back(x->t, t, wide);
}

static const double correlations[] = { -1, -0.99987793, -0.8, -0.05, 0, 0.4, 0.9, 0.9990234375, 0.99999976, 1 };
#define CORRELATIONS ((int)(sizeof correlations / sizeof correlations[0]))

// Variances that all functions can take, as floats.
static const double variances[][2] = { { 1, 1 }, { 1.2999999523162842, 0.69999998807907104 }, { 0.0099999997764825821, 7 }, { 64, 20 } };
static double float_of(double x) { return (double)(float)x; }
static double covariance(double q1, double q2, double c) { // a float, not above the bound
    float x = (float)(c * sqrt(q1) * sqrt(q2));
    return fabs((double)x) > sqrt(q1) * sqrt(q2) ? (double)nextafterf(x, 0) : (double)x;
}

static double tolerance(const row *r, double q) {
    if (r->f == pieces) return 1e-12;
    return r->near == 0 ? 1e-10 : q <= 1.3 ? r->near : q <= 10 ? r->far : r->wide;
}

static void test_values(nt_tape *t, const row *r) {
    nt_layer *l = layer_of(t, r);
    double worst[2] = { 0, 0 };
    int bad = 0, normal = r->most < 0;
    if (!tap_ok(l != NULL, "%s: a layer", r->name)) return;
    for (int v = 0; v < COUNT(variances); v++) {
        double q1 = variances[v][0], q2 = variances[v][1], most = fmax(q1, q2), k[CORRELATIONS], dot[CORRELATIONS];
        if (normal ? v > 0 : most > r->most) continue;
        double scale = sqrt(expected(r->f, &r->p, q1, q1, q1) * expected(r->f, &r->p, q2, q2, q2));
        double slope = sqrt(expected(r->df, &r->p, q1, q1, q1) * expected(r->df, &r->p, q2, q2, q2));
        if (r->f == pieces) { // flat around 0: errors are those of a straight line
            scale = fmax(scale, r->p.a * r->p.a * sqrt(q1 * q2)), slope = fmax(slope, r->p.a * r->p.a);
        }
        for (int c = 0; c < CORRELATIONS; c++) {
            double q12 = covariance(q1, q2, correlations[c]);
            k[c] = expected(r->f, &r->p, q1, q2, q12), dot[c] = expected(r->df, &r->p, q1, q2, q12);
        }
        for (int i = 0; i < 6; i++) {
            const struct nti_isa *isa = isa_at(i / 2);
            int wide = i % 2;
            lanes x;
            if (!isa) continue;
            for (int c = 0; c < CORRELATIONS; c++)
                x.q1[c] = q1, x.q2[c] = q2, x.k[c] = covariance(q1, q2, correlations[c]), x.t[c] = 1;
            run_pair(isa, &l->dual, wide, &x, CORRELATIONS);
            for (int c = 0; c < CORRELATIONS; c++) {
                double ek = fabs(x.k[c] - k[c]) / (scale > 0 ? scale : 1), ed = fabs(x.t[c] - dot[c]) / (slope > 0 ? slope : 1);
                double tol = tolerance(r, most);
                if (!(ek <= fmax(tol, wide ? 0 : 2e-6) && ed <= fmax(tol, wide ? 0 : 2e-6)) && bad++ < 4)
                    tap_note("%s %s %s q %.9g %.9g, correlation %.9g: %.12g %.12g, expected %.12g %.12g", r->name, isa->name, wide ? "f64" : "f32", q1, q2,
                             correlations[c], x.k[c], x.t[c], k[c], dot[c]);
                worst[wide] = fmax(worst[wide], fmax(ek, ed));
            }
        }
    }
    tap_ok(!bad, "%s: values, errors up to %.1e in f64 and %.1e in f32", r->name, worst[1], worst[0]);
}

// kdot is the derivative of k by q12: central differences of fourth order.
static void test_differences(nt_tape *t, const row *r) {
    nt_layer *l = layer_of(t, r);
    int bad = 0;
    if (r->f == sign || (r->f == rectified && r->p.n == 0)) return; // theirs counts as 0
    for (int v = 1; v < 3; v++) {
        nt_dual one = nt_layer_dual(l, variances[v][0], variances[v][0], variances[v][0]);
        nt_dual two = nt_layer_dual(l, variances[v][1], variances[v][1], variances[v][1]);
        double size = sqrt(one.kdot * two.kdot), noise = sqrt(one.k * two.k);
        for (int c = 1; c < CORRELATIONS - 1; c++) {
            double q1 = variances[v][0], q2 = variances[v][1], root = sqrt(q1 * q2), q12 = correlations[c] * root, k[4];
            double h = 1e-3 * (root - fabs(q12));
            if (h < 1e-5 * root) h = 0.1 * (root - fabs(q12));
            if (r->most >= 0 && fmax(q1, q2) > r->most) continue;
            for (int i = 0; i < 4; i++) k[i] = nt_layer_dual(l, q1, q2, q12 + h * (i < 2 ? i - 2 : i - 1)).k;
            double dot = nt_layer_dual(l, q1, q2, q12).kdot, want = (8 * (k[2] - k[1]) - (k[3] - k[0])) / (12 * h);
            if (!(fabs(dot - want) <= 1e-5 * size + 1e-15 * noise / h) && bad++ < 4)
                tap_note("%s q %g %g %g: kdot %.12g, differences %.12g", r->name, q1, q2, q12, dot, want);
        }
    }
    tap_ok(!bad, "%s: kdot is the derivative of k", r->name);
}

// The rule of one variance is that of a pair at u = v; at equal inputs nothing is lost to cancellation, in f32 either.
static void test_self(nt_tape *t, const row *r) {
    static const double q[LANES] = { 0, 1e-30, 1e-12, 1e-3, 0.1, 0.3, 0.7, 1, 1.1, 3, 7, 30, 99, 1e3, 1e6, 1e30 };
    nt_layer *l = layer_of(t, r);
    int bad = 0, any_size = r->f == abrelu || r->f == sign || (r->f == rectified && r->p.n < 2);
    for (int i = 0; i < 6; i++) {
        const struct nti_isa *isa = isa_at(i / 2);
        int wide = i % 2;
        lanes x, y;
        if (!isa) continue;
        for (int v = 0; v < LANES; v++) x.q1[v] = x.q2[v] = x.k[v] = y.q1[v] = wide ? q[v] : float_of(q[v]), x.t[v] = y.t[v] = 1;
        run_pair(isa, &l->dual, wide, &x, LANES), run_self(isa, &l->dual, wide, &y);
        for (int v = 0; v < LANES; v++) {
            if (q[v] > 100 && !any_size) continue; // functions end somewhere, and so does what is known of the correlation
            double unit = wide ? 1e-12 : 3e-6, tol = r->near > 0 ? fmax(unit, wide ? 2e-5 : 3e-4) : unit;
            int same = (x.k[v] == y.k[v] || fabs(x.k[v] - y.k[v]) <= tol * fabs(y.k[v])) && (x.t[v] == y.t[v] || fabs(x.t[v] - y.t[v]) <= tol * fabs(y.t[v]));
            if (!same && bad++ < 4)
                tap_note("%s %s %s q %g: self %.9g %.9g, pair %.9g %.9g", r->name, isa->name, wide ? "f64" : "f32", q[v], y.k[v], y.t[v], x.k[v], x.t[v]);
        }
    }
    tap_ok(!bad, "%s: a variance is a pair of equals", r->name);
}

// Never NaN: variances of all sizes, covariances that rounding put above the bound. Derivatives stay finite: tangent kernels may be 0.
static void test_ends(nt_tape *t, const row *r) {
    static const double q[] = { 0, 1e-45, 1e-38, 1e-30, 1e-10, 1, 7, 1e10, 1e30 };
    static const double c[] = { -1.0000002, -1, -0.9999999, -0.5, 0, 1e-8, 0.5, 0.9999999, 1, 1.0000002 };
    nt_layer *l = layer_of(t, r);
    int bad = 0;
    for (int i = 0; i < 6 * COUNT(q) * COUNT(c); i++) {
        const struct nti_isa *isa = isa_at(i % 6 / 2);
        int wide = i % 2, e = i / 6 % COUNT(c), shift = i / 6 / COUNT(c);
        lanes x;
        if (!isa || (nti_dual_expanded(&l->dual) && e % 4 != 0)) continue;
        for (int j = 0; j < COUNT(q); j++) {
            x.q1[j] = q[j], x.q2[j] = q[(j + shift) % COUNT(q)], x.t[j] = 1;
            x.k[j] = c[e] * sqrt(x.q1[j]) * sqrt(x.q2[j]);
        }
        run_pair(isa, &l->dual, wide, &x, COUNT(q));
        for (int j = 0; j < COUNT(q); j++)
            if (!(x.k[j] == x.k[j] && x.t[j] - x.t[j] == 0) && bad++ < 4)
                tap_note("%s %s %s q %g %g, correlation %g: %g %g", r->name, isa->name, wide ? "f64" : "f32", x.q1[j], x.q2[j], c[e], x.k[j], x.t[j]);
    }
    tap_ok(!bad, "%s: no NaN, derivatives finite", r->name);
}

// The same bits by AVX2 and by AVX-512, and of an element wherever it stands.
static void test_bits(nt_tape *t, const row *r) {
    enum { N = 5 * LANES };
    static double side[2][2][SIDES_MAX * N];
    const struct nti_isa *isa[2];
    isa[0] = isa_at(1), isa[1] = isa_at(2);
    nt_layer *l = layer_of(t, r);
    int bad = 0;
    if (!isa[0] || !isa[1]) {
        tap_skip("not both AVX2 and AVX-512 here", "%s: equal bits", r->name);
        return;
    }
    for (int wide = 0; wide < 2; wide++) {
        size_t unit = wide ? sizeof(double) : sizeof(float);
        double x[2][4][N], q[2][N];
        float y[2][4][N];
        memset(x, 0, sizeof x), memset(y, 0, sizeof y); // padding compares
        for (int i = 0; i < 2; i++) {
            const nti_dual_table *table = isa[i]->dual[wide];
            void *in[4];
            for (int j = 0; j < N; j++) {
                q[0][j] = 0.01 + fmod(j * 0.37, 3), q[1][j] = j % 7 ? fmod(j * 0.61, 2) : q[0][j];
                double root = sqrt(q[0][j]) * sqrt(q[1][j]), value[4];
                value[0] = q[0][j], value[1] = q[1][j], value[2] = root * correlations[j % CORRELATIONS], value[3] = 0.5 + j;
                for (int k = 0; k < 4; k++) x[i][k][j] = value[k], y[i][k][j] = (float)value[k];
            }
            for (int k = 0; k < 4; k++) in[k] = wide ? (void *)x[i][k] : (void *)y[i][k];
            memset(side[i], 0, sizeof side[i]);
            table->prepare(&l->dual, in[0], side[i][0], N), table->prepare(&l->dual, in[1], side[i][1], N);
            table->pair(&l->dual, in[2], in[3], side[i][0], side[i][1], N, N);
            table->self(&l->dual, in[0], in[1], N);
        }
        bad += memcmp(side[0], side[1], sizeof side[0]) != 0;
        bad += memcmp(wide ? (void *)x[0] : (void *)y[0], wide ? (void *)x[1] : (void *)y[1], 4 * N * unit) != 0;
        const nti_dual_table *table = isa[0]->dual[wide]; // the last lanes alone, and without t
        double again[LANES];
        for (int j = 0; j < LANES; j++) {
            double value = sqrt(q[0][N - LANES + j]) * sqrt(q[1][N - LANES + j]) * correlations[(N - LANES + j) % CORRELATIONS];
            if (wide) again[j] = value;
            else ((float *)again)[j] = (float)value;
        }
        const char *s1 = (const char *)side[0][0] + (N - LANES) * unit, *s2 = (const char *)side[0][1] + (N - LANES) * unit;
        table->pair(&l->dual, again, NULL, s1, s2, N, LANES);
        bad += memcmp(again, (wide ? (char *)x[0][2] : (char *)y[0][2]) + (N - LANES) * unit, LANES * unit) != 0;
    }
    tap_ok(!bad, "%s: equal bits", r->name);
}

// Functions of degree 1 do not know the size of their inputs: powers of two come out as they went in, from 1e-30 to 1e30.
static void test_scales(nt_tape *t) {
    nt_layer *layers[3];
    layers[0] = nt_relu_layer(t), layers[1] = nt_leaky_relu_layer(t, 0.2), layers[2] = nt_rectified_monomial_layer(t, 1);
    int bad = 0;
    for (int i = 0; i < 9; i++) {
        const struct nti_isa *isa = isa_at(i % 3);
        if (!isa) continue;
        for (int c = 0; c < CORRELATIONS; c++) {
            lanes x, y;
            for (int j = 0; j < LANES; j++) {
                double s1 = ldexp(1, 14 * (j - 7)), s2 = j % 3 ? s1 : 1; // variances from 2^-98, 3e-30, to 2^112
                x.q1[j] = float_of(1.7), x.q2[j] = float_of(0.6), x.k[j] = float_of(correlations[c] * sqrt(1.7) * sqrt(0.6)), x.t[j] = y.t[j] = 1;
                y.q1[j] = x.q1[j] * s1, y.q2[j] = x.q2[j] * s2, y.k[j] = x.k[j] * sqrt(s1) * sqrt(s2);
            }
            run_pair(isa, &layers[i / 3]->dual, 0, &x, LANES), run_pair(isa, &layers[i / 3]->dual, 0, &y, LANES);
            for (int j = 0; j < LANES; j++) {
                double s1 = ldexp(1, 14 * (j - 7)), s2 = j % 3 ? s1 : 1;
                if (!(y.k[j] == x.k[j] * sqrt(s1) * sqrt(s2) && x.t[j] == y.t[j]) && bad++ < 4)
                    tap_note("scales %g %g: %.9g %.9g, expected %.9g %.9g", s1, s2, y.k[j] / sqrt(s1) / sqrt(s2), y.t[j], x.k[j], x.t[j]);
            }
        }
    }
    tap_ok(!bad, "relu and its like: the same at every scale");
}

// sqrt(q11 q22) exp(gamma (c + shift)), of no function: by itself. He_n of other variances: q12^n, as if they were 1.
static void test_named(nt_tape *t) {
    nt_layer *l = nt_exp_normalized_layer(t, 0.8, -0.5, 1), *h = nt_hermite_layer(t, 3);
    double worst = 0;
    for (int c = 0; c < CORRELATIONS; c++) {
        nt_dual d = nt_layer_dual(l, 2, 0.5, correlations[c]), e = nt_layer_dual(h, 2, 0.5, correlations[c]);
        double want = exp(0.8 * (correlations[c] - 0.5)), x = correlations[c];
        worst = fmax(worst, fmax(fabs(d.k - want), fabs(d.kdot - 0.8 * want)));
        worst = fmax(worst, fmax(fabs(e.k - x * x * x), fabs(e.kdot - 3 * x * x)));
    }
    tap_ok(worst < 1e-14, "exp_normalized and hermite as they are defined, to %.1e", worst);
    nt_dual zero = nt_layer_dual(l, 0, 2, 0);
    tap_ok(zero.k == 0 && fabs(zero.kdot - 0.8 * exp(-0.4)) < 1e-15, "exp_normalized without variance: correlation 0");
    nt_dual relu = nt_layer_dual(nt_abrelu_layer(t, 0.5, 2), 0, 3, 0), bell = nt_layer_dual(nt_gaussian_layer(t, 1, 1), 1, 1, 0.5);
    tap_ok(relu.k == 0 && fabs(relu.kdot - 2.5 * 2.5 / 4) < 1e-15, "relu without variance: the angle is a right one");
    tap_ok(isinf(bell.k) && bell.kdot > 1e300, "an expectation that does not exist is infinite");
}

// Hinges seen from very near and from very far, correlations very close to 1. Values by mpmath with 30 digits: the integral over u of
// f(u) E f(v | u) and f'(u) E f'(v | u), split at all points where either bends; then the roots of the two values at u = u and v = v, to 3.
static void test_far_hinges(nt_tape *t) {
    static const struct { const double *list; int n; double q1, q2, q12, k, kdot, scale, slope; } cases[] = {
        { relu6, 2, 1e-12, 1e-12, 3e-13, 2.413721419177438e-13, 0.29849334201033914, 5.0e-13, 0.5 },
        { relu6, 2, 1000000000000.0, 1000000000000.0, 700000000000.0, 13.442657314319101, 8.0230138950132545e-12, 18.0, 2.39e-6 },
        { relu6, 2, 1000000000000.0, 1000000000000.0, 1000000000000.0, 17.999942552311622, 2.3936536823942341e-6, 18.0, 2.39e-6 },
        { relu6, 2, 1e-08, 100000000.0, -0.7, 3.5884351577392966e-5, 0.00011965459639417291, 0.0003, 0.0109 },
        { relu6, 2, 100000000.0, 100000000.0, 99999999.99, 17.994252867724774, 0.00023486377149583955, 18.0, 0.000239 },
        { relu6, 2, 1.0, 1.0, 0.999999999999, 0.49999999807477049, 0.49999977393681947, 0.5, 0.5 },
        { relu6, 2, 4.0, 4.001, -4.0004998887439065, 1.6978649192969765e-12, 3.1830988658657476e-5, 1.99, 0.499 },
        { relu6, 2, 9.0, 0.0001, 0.029699999999999997, 0.014178824917136391, 0.45472316122961461, 0.0144, 0.488 },
        { hard_tanh, 2, 1e-12, 1e-12, 3e-13, 2.9999999999999998e-13, 1.0, 1.0e-12, 1.0 },
        { hard_tanh, 2, 1000000000000.0, 1000000000000.0, 700000000000.0, 0.49363337778652204, 8.9144598834418663e-13, 1.0, 7.98e-7 },
        { hard_tanh, 2, 1000000000000.0, 1000000000000.0, 1000000000000.0, 0.99999946807695946, 7.9788456080273238e-7, 1.0, 7.98e-7 },
        { hard_tanh, 2, 1e-08, 100000000.0, -0.7, -5.5851919163114039e-5, 7.9788455947305776e-5, 0.0001, 0.00893 },
        { hard_tanh, 2, 100000000.0, 100000000.0, 99999999.99, 0.99994603982158005, 7.5286873181572538e-5, 1.0, 7.98e-5 },
        { hard_tanh, 2, 1.0, 1.0, 0.999999999999, 0.51605855096103063, 0.68268921910538132, 0.516, 0.683 },
        { hard_tanh, 2, 4.0, 4.001, -4.0004998887439065, -0.74052885603811307, 0.38284401971154167, 0.741, 0.383 },
        { hard_tanh, 2, 9.0, 0.0001, 0.029699999999999997, 0.0077551843932032392, 0.26111731963647272, 0.00908, 0.511 },
        { bent, 4, 1e-12, 1e-12, 3e-13, 0.040000000000027004, 0.089999999999999993, 0.04, 0.09 },
        { bent, 4, 1000000000000.0, 1000000000000.0, 700000000000.0, 631064198240.40818, 0.66770793222454168, 8.5e+11, 0.85 },
        { bent, 4, 1000000000000.0, 1000000000000.0, 1000000000000.0, 849999078444.10358, 0.84999973669809499, 8.5e+11, 0.85 },
        { bent, 4, 1e-08, 100000000.0, -0.7, 957.43348891115606, -0.20999820475965423, 1.84e+3, 0.277 },
        { bent, 4, 100000000.0, 100000000.0, 99999999.99, 84990785.196025332, 0.84996592708712695, 8.5e+7, 0.85 },
        { bent, 4, 1.0, 1.0, 0.999999999999, 0.36264479316749977, 0.53463248359487481, 0.363, 0.535 },
        { bent, 4, 4.0, 4.001, -4.0004998887439065, -1.256312447948549, 0.40876300366990816, 2.11, 0.704 },
        { bent, 4, 9.0, 0.0001, 0.029699999999999997, 0.16174738796400302, -0.20115034266370413, 0.469, 0.261 },
    };
    double worst[2] = { 0, 0 };
    for (int i = 0; i < COUNT(cases); i++) {
        const double *list = cases[i].list;
        nt_layer *l = nt_piecewise_linear_layer(t, cases[i].n, list + 1, list + 1 + cases[i].n, list[0]);
        double q1 = cases[i].q1, q2 = cases[i].q2;
        nt_dual got = nt_layer_dual(l, q1, q2, cases[i].q12), other = nt_layer_dual(l, q2, q1, cases[i].q12);
        double ek = fabs(got.k - cases[i].k) / cases[i].scale, ed = fabs(got.kdot - cases[i].kdot) / cases[i].slope;
        double apart = fmax(fabs(other.k - got.k) / cases[i].scale, fabs(other.kdot - got.kdot) / cases[i].slope);
        double e = fmax(apart, fmax(ek, ed));
        int huge = fmin(q1, q2) > 1e7;
        worst[huge] = fmax(worst[huge], e);
        if (!(e <= (huge ? 1e-9 : 1e-12)))
            tap_note("hinges %d, q %g %g %.12g: %.15g %.15g, errors %.1e %.1e, exchanged %.1e", cases[i].n, q1, q2, cases[i].q12, got.k,
                     got.kdot, ek, ed, apart);
    }
    tap_ok(worst[0] <= 1e-12 && worst[1] <= 1e-9, "hinges very near and very far: to %.1e, %.1e where both variances are huge", worst[0],
           worst[1]);
}

static void test_few_and_many_hinges(nt_tape *t) {
    static const double at = 0.7, slopes[] = { 0, 1 };
    nt_layer *l = nt_piecewise_linear_layer(t, 2, hard_tanh + 1, hard_tanh + 3, 0);
    nt_layer *one = nt_piecewise_linear_layer(t, 1, &at, slopes, 0.5);
    nt_dual none = nt_layer_dual(l, 0, 0, 0), half = nt_layer_dual(one, 0, 4, 0), both = nt_layer_dual(one, 4, 4, 0);
    double many[16 + 17], apart = 0; // points at which nothing changes, and the same function
    for (int k = 0; k < 16; k++) many[k] = k < 15 ? -3 + 0.25 * k : 1.5;
    for (int k = 0; k < 17; k++) many[16 + k] = bent[5 + (k > 4) + (k > 10) + (k > 13) + (k > 15)];
    nt_layer *full = nt_piecewise_linear_layer(t, 16, many, many + 16, 0.2), *few = nt_piecewise_linear_layer(t, 4, bent + 1, bent + 5, 0.2);
    for (int c = 0; c < CORRELATIONS; c++) {
        double q12 = correlations[c] * sqrt(1.3 * 0.7);
        nt_dual a = nt_layer_dual(full, 1.3, 0.7, q12), b = nt_layer_dual(few, 1.3, 0.7, q12);
        apart = fmax(apart, fmax(fabs(a.k - b.k), fabs(a.kdot - b.kdot)));
    }
    tap_ok(apart < 1e-14, "16 points, 12 of which are none: to %.1e", apart);
    tap_ok(none.k == 0 && none.kdot == 1, "without variance: f(0) and f'(0)");
    tap_ok(half.kdot == 0 && fabs(half.k - 0.5 * sqrt(both.k)) < 1e-15, "of one: f(0) E f(v)"); // both.k: (E f(v))^2
}

static int says(nt_tape *t, const char *text) {
    int found = nt_error(t) && strstr(nt_error(t), text);
    if (!found) tap_note("%s", nt_error(t) ? nt_error(t) : "no error");
    nt_error_clear(t);
    return found;
}
static int nothing(nt_dual d) { return isnan(d.k) && isnan(d.kdot); }
static void test_errors(nt_tape *t) {
    nt_layer *relu = nt_relu_layer(t), *dense = nt_dense_layer(t, 3, NULL);
    TAP_CHECK(nothing(nt_layer_dual(NULL, 1, 1, 0)) && !nt_error(t));
    TAP_CHECK(nothing(nt_layer_dual(dense, 1, 1, 0)) && says(t, "Dense"));
    TAP_CHECK(nothing(nt_layer_dual(NT_SERIAL(t, dense, relu), 1, 1, 0)) && says(t, "no activation"));
    TAP_CHECK(nothing(nt_layer_dual(relu, -1, 1, 0)) && says(t, "-1"));
    TAP_CHECK(nothing(nt_layer_dual(relu, 1, 1, 1.1)) && says(t, "1.1"));
    TAP_CHECK(nothing(nt_layer_dual(relu, 1, NAN, 0)) && says(t, "nan"));
    TAP_CHECK(nothing(nt_layer_dual(relu, 1, INFINITY, 0)) && says(t, "inf"));
    static double memory[4096 / 8 * 8];
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = memory, desc.memory_size = sizeof memory;
    for (size_t bytes = 2048; bytes < sizeof memory; bytes += 256) { // from too small for a tape to enough for all
        desc.memory_size = bytes;
        nt_tape *small = nt_tape_open(&desc);
        nt_layer *l = small ? nt_tanh_layer(small) : NULL;
        if (l) {
            nt_dual d = nt_layer_dual(l, 1, 1, 0.5), e = nt_layer_dual(l, 1, 1, 0.5);
            if (nothing(d) != (nt_error(small) != NULL) || nothing(d) != nothing(e) || (!nothing(d) && d.k != e.k)) tap_ok(0, "in %d bytes", (int)bytes);
        }
        if (small) nt_tape_close(small);
    }
    tap_ok(1, "arrays of every size: a value or an error");
}

int main(void) {
    nt_tape *t = nt_tape_open(NULL);
    make_nodes();
    for (int k = 0; k < ROWS; k++) {
        test_values(t, &rows[k]);
        test_differences(t, &rows[k]);
        test_self(t, &rows[k]);
        test_ends(t, &rows[k]);
        test_bits(t, &rows[k]);
    }
    test_scales(t);
    test_named(t);
    test_far_hinges(t);
    test_few_and_many_hinges(t);
    test_errors(t);
    tap_ok(!nt_error(t), "no error is left: %s", nt_error(t) ? nt_error(t) : "none");
    nt_tape_close(t);
    return tap_end();
}
