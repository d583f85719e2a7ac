// The finite networks of the layers that infinitely wide networks have: each against loops written here from its definition, the numbers
// that it begins with, and what is said about wrong arguments. (Their kernels: golden_kernels and the tests of nt_kernel.)
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

#define CLEAR(d) memset(&(d), 0, sizeof(d))
static nt_tape *t;

static double *room(int64_t n) {
    double *p = (double *)calloc((size_t)n + 1, sizeof *p);
    if (!p) {
        printf("Bail out! no memory\n");
        exit(2);
    }
    return p;
}

static nt_tensor *noise(uint64_t seed, nt_shape shape) { return nt_normal(nt_key_tensor(t, nt_key(seed)), NT_F64, shape); }

static double *numbers(nt_tensor *x) { // NULL after an error
    double *p = x ? room(nt_size(x)) : NULL;
    if (!p || nt_eval(x, p) == NT_OK) return p;
    free(p);
    return NULL;
}

// The largest difference; infinite if there is nothing to compare.
static double difference(nt_tensor *x, const double *want, int64_t n) {
    double *p = numbers(x), worst = p && nt_size(x) == n ? 0 : INFINITY;
    for (int64_t i = 0; worst < INFINITY && i < n; i++) worst = fabs(p[i] - want[i]) <= worst ? worst : fabs(p[i] - want[i]);
    free(p);
    return worst;
}

static const double *param(nt_layer *net, const char *name) {
    nt_params p = nt_parameters(net);
    for (int k = 0; k < p.count; k++)
        if (strcmp(p.items[k]->name, name) == 0) return (const double *)nt_data(p.items[k]);
    tap_note("there is no %s", name);
    return NULL;
}

static int says(const char *part) { // the sticky error, which it clears
    int right = nt_error(t) && strstr(nt_error(t), part) != NULL;
    if (!right) tap_note("\"%s\" is not in \"%s\"", part, nt_error(t) ? nt_error(t) : "");
    nt_error_clear(t);
    return right;
}

// ---------------------------------------------------------------------------------------------------------------------
// Windows: for every output the element of the input that each tap sees, by the definitions of jax and neural_tangents
// ---------------------------------------------------------------------------------------------------------------------
enum { CONV, TRANSPOSE, LOCAL, AVG, SUM };
static const char *const kind_names[] = { "conv", "conv_transpose", "conv_local", "avg_pool", "sum_pool" };
enum { SAME, VALID, CIRCULAR };

typedef struct axis { int n, window, stride, out; } axis;

static int at_least_0(int v) { return v > 0 ? v : 0; }
static int half_up(int v) { return (v + 1) / 2; }

static void axis_out(axis *a, int kind, int padding) {
    if (kind == TRANSPOSE) a->out = a->n * a->stride + (padding == VALID ? at_least_0(a->window - a->stride) : 0);
    else a->out = padding == VALID ? (a->n - a->window >= 0 ? (a->n - a->window) / a->stride + 1 : 0) : (a->n + a->stride - 1) / a->stride;
}

static int axis_source(const axis *a, int kind, int padding, int o, int d) { // -1: none
    int F = a->window, s = a->stride, low, i;
    if (kind != TRANSPOSE) {
        low = padding == VALID ? 0 : at_least_0((a->out - 1) * s + F - a->n) / 2;
        i = s * o + d - low;
        return padding == CIRCULAR ? ((i % a->n) + a->n) % a->n : i >= 0 && i < a->n ? i : -1;
    }
    if (padding == CIRCULAR) { // VALID, folded around n s from max(F - s, 0) / 2 on
        low = at_least_0(F - s) / 2;
        for (i = 0; i < a->n; i++) {
            int to = (s * i + F - 1 - d - low) % a->out;
            if ((to + a->out) % a->out == o) return i;
        }
        return -1;
    }
    low = padding == VALID || s > F - 1 ? F - 1 : half_up(F + s - 2);
    i = o + d - low;
    return i >= 0 && i % s == 0 && i / s < a->n ? i / s : -1;
}

typedef struct window_case { int kind, padding, d, batch, in, out, edges; axis a[3]; } window_case;

static int64_t product(const window_case *c, int what) { // 0 inputs, 1 taps, 2 outputs
    int64_t n = 1;
    for (int k = 0; k < c->d; k++) n *= what == 0 ? c->a[k].n : what == 1 ? c->a[k].window : c->a[k].out;
    return n;
}

static int64_t source(const window_case *c, int64_t o, int64_t tap) {
    int64_t at = 0, scale = 1;
    for (int k = c->d - 1; k >= 0; k--) {
        int i = axis_source(&c->a[k], c->kind, c->padding, (int)(o % c->a[k].out), (int)(tap % c->a[k].window));
        if (i < 0) return -1;
        at += i * scale, scale *= c->a[k].n, o /= c->a[k].out, tap /= c->a[k].window;
    }
    return at;
}

static double *naive(const window_case *c, const double *x, const double *w, const double *b, double factor, double b_factor) {
    int64_t P = product(c, 0), F = product(c, 1), O = product(c, 2);
    double *y = room(c->batch * O * c->out);
    for (int64_t n = 0; n < c->batch; n++)
        for (int64_t o = 0; o < O; o++)
            for (int j = 0; j < c->out; j++) {
                double sum = 0, seen = 0;
                for (int64_t f = 0; f < F; f++) {
                    int64_t i = source(c, o, f);
                    if (i < 0) continue;
                    seen++;
                    if (c->kind >= AVG) sum += x[(n * P + i) * c->in + j];
                    for (int q = 0; q < c->in && c->kind < AVG; q++) {
                        int64_t at = c->kind == LOCAL ? (o * c->in * F + q * F + f) * c->out + j : (f * c->in + q) * c->out + j;
                        sum += x[(n * P + i) * c->in + q] * w[at];
                    }
                }
                if (c->kind == AVG) sum /= c->edges ? seen : (double)F;
                if (c->kind < AVG) sum = factor * sum + (b ? b_factor * b[c->kind == LOCAL ? o * c->out + j : j] : 0);
                y[(n * O + o) * c->out + j] = sum;
            }
    return y;
}

static nt_layer *window_layer(const window_case *c, const nt_conv_layer_desc *numbers_of) {
    static const nt_padding paddings[] = { NT_SAME, NT_VALID, NT_CIRCULAR_SAME };
    nt_conv_layer_desc d = *numbers_of;
    nt_pool_desc p;
    nt_shape window;
    CLEAR(p), CLEAR(window);
    window.rank = c->d;
    for (int k = 0; k < c->d; k++) window.size[k] = c->a[k].window, d.conv.stride[k] = p.stride[k] = c->a[k].stride;
    d.conv.padding = p.padding = paddings[c->padding], p.exclude_pad = c->edges;
    if (c->kind == AVG) return nt_avg_pool_layer_with(t, window, &p);
    if (c->kind == SUM) return nt_sum_pool_layer_with(t, window, &p);
    if (c->kind == LOCAL) return nt_conv_local_layer(t, c->out, window, &d);
    return c->kind == CONV ? nt_conv_layer(t, c->out, window, &d) : nt_conv_transpose_layer(t, c->out, window, &d);
}

// The difference from the loops above; NTK numbers.
static double window_error(window_case *c) {
    static const char *const names[] = { "Conv_0", "ConvTranspose_0", "ConvLocal_0" };
    nt_conv_layer_desc d;
    nt_marker mark = nt_mark(t);
    char kernel[40] = "", bias[40] = "";
    int64_t size[5] = { 0, 0, 0, 0, 0 };
    if (c->kind >= AVG) c->out = c->in;
    for (int k = 0; k < c->d; k++) axis_out(&c->a[k], c->kind, c->padding), size[1 + k] = c->a[k].n;
    size[0] = c->batch, size[1 + c->d] = c->in;
    CLEAR(d);
    d.dtype = NT_F64, d.parameterization = NT_PARAM_NTK, d.W_std = 1.5, d.b_std = 0.25;
    nt_tensor *x = noise(3, nt_shape_make(c->d + 2, size));
    nt_layer *l = window_layer(c, &d);
    double error = INFINITY, *in = numbers(x);
    if (c->kind < AVG) snprintf(kernel, sizeof kernel, "%s/kernel", names[c->kind]), snprintf(bias, sizeof bias, "%s/bias", names[c->kind]);
    if (in && nt_init(l, nt_key(4), x) == NT_OK) {
        double fan = (double)(product(c, 1) * c->in);
        double *want = naive(c, in, kernel[0] ? param(l, kernel) : NULL, bias[0] ? param(l, bias) : NULL, 1.5 / sqrt(fan), 0.25);
        nt_tensor *y = nt_apply(l, x, NULL);
        error = difference(y, want, c->batch * product(c, 2) * c->out);
        for (int k = 0; k < c->d && y; k++)
            if (y->shape[1 + k] != c->a[k].out) error = INFINITY;
        free(want);
    }
    free(in);
    if (!(error < 1e-13)) tap_note("%s, padding %d, %d of %d by %d (and others): %g %s", kind_names[c->kind], c->padding, c->a[0].n, c->a[0].window, c->a[0].stride, error, nt_error(t) ? nt_error(t) : "");
    nt_rewind(t, mark);
    return error;
}

static void windows(void) {
    for (int kind = CONV; kind <= SUM; kind++) {
        double worst = 0;
        int count = 0;
        for (int padding = SAME; padding <= CIRCULAR; padding++)
            for (int n = 1; n <= 6; n++)
                for (int F = 1; F <= 5; F++)
                    for (int s = 1; s <= 3; s++) {
                        window_case c = { kind, padding, 1, 2, 2, 3, 0, { { n, F, s, 0 }, { 0, 0, 0, 0 }, { 0, 0, 0, 0 } } };
                        axis a = { n, F, s, 0 };
                        axis_out(&a, kind, padding);
                        if (a.out < 1) continue;
                        if (padding == SAME && kind == AVG) c.edges = (n + F + s) % 2;
                        double e = window_error(&c);
                        worst = e <= worst ? worst : e, count++;
                    }
        tap_ok(worst < 1e-13, "%s of one axis: %d sizes, windows, strides and paddings against loops (%.1g)", kind_names[kind], count, worst);
        window_case two = { kind, SAME, 2, 2, 3, 2, 1, { { 5, 2, 3, 0 }, { 4, 3, 1, 0 }, { 0, 0, 0, 0 } } };
        window_case three = { kind, CIRCULAR, 3, 1, 2, 2, 0, { { 3, 2, 1, 0 }, { 4, 3, 2, 0 }, { 2, 1, 1, 0 } } };
        tap_ok(window_error(&two) < 1e-13, "%s of two axes", kind_names[kind]);
        tap_ok(window_error(&three) < 1e-13, "%s of three axes, around the ends", kind_names[kind]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Numbers that layers begin with
// ---------------------------------------------------------------------------------------------------------------------
// The variance of n numbers of mean 0 lies within 5 standard errors, 5 sqrt(2 / n) of it, and their mean within 5 / sqrt(n).
static int is_normal(const double *x, int64_t n, double std, const char *what) {
    double mean = 0, square = 0, most = 0;
    for (int64_t i = 0; i < n; i++) mean += x[i], square += x[i] * x[i], most = fmax(most, fabs(x[i]));
    mean /= (double)n, square /= (double)n;
    double off = fabs(square / (std * std) - 1), shift = fabs(mean) / std;
    int right = off < 5 * sqrt(2.0 / (double)n) && shift < 5 / sqrt((double)n) && (n < 10000 || most > 3 * std); // not cut at 2
    if (!right) tap_note("%s: variance off by %g, mean by %g, largest %g of %g", what, off, shift, most, std);
    return right;
}

static void beginnings(void) {
    nt_dense_desc d;
    nt_conv_layer_desc c;
    nt_tensor *x = noise(1, NT_SHAPE(2, 50)), *image = noise(2, NT_SHAPE(1, 5, 6, 8));
    CLEAR(d), CLEAR(c);
    d.dtype = c.dtype = NT_F64;
    d.parameterization = NT_PARAM_NTK, d.W_std = 1.3, d.b_std = 0.2;
    nt_layer *l = nt_dense_layer(t, 2000, &d);
    TAP_CHECK(nt_init(l, nt_key(5), x) == NT_OK);
    TAP_CHECK(is_normal(param(l, "Dense_0/kernel"), 100000, 1, "ntk kernel") && is_normal(param(l, "Dense_0/bias"), 2000, 1, "ntk bias"));
    double *in = numbers(x), want[2] = { 0, 0 }, *got;
    const double *w = param(l, "Dense_0/kernel"), *b = param(l, "Dense_0/bias");
    for (int k = 0; k < 50; k++) want[0] += in[k] * w[2000 * k + 7], want[1] += in[50 + k] * w[2000 * k + 1999];
    got = numbers(nt_apply(l, x, NULL));
    TAP_CHECK(fabs(got[7] - (1.3 / sqrt(50.0) * want[0] + 0.2 * b[7])) < 1e-13 && fabs(got[3999] - (1.3 / sqrt(50.0) * want[1] + 0.2 * b[1999])) < 1e-13);
    free(got);
    CLEAR(d);
    d.dtype = NT_F64, d.W_std = 1.3, d.b_std = 0.2, d.s[0] = 5, d.s[1] = 4; // 50 inputs are 5 times 10
    l = nt_dense_layer(t, 500, &d);
    TAP_CHECK(nt_init(l, nt_key(6), x) == NT_OK && nt_parameters(l).items[0]->shape[1] == 2000);
    TAP_CHECK(is_normal(param(l, "Dense_0/kernel"), 100000, 1.3 / sqrt(50.0 / 5), "standard kernel") && is_normal(param(l, "Dense_0/bias"), 2000, 0.2, "standard bias"));
    w = param(l, "Dense_0/kernel"), b = param(l, "Dense_0/bias"), want[0] = 0;
    for (int k = 0; k < 50; k++) want[0] += in[k] * w[2000 * k + 7];
    got = numbers(nt_apply(l, x, NULL));
    TAP_CHECK(fabs(got[7] - (want[0] / sqrt(5.0) + b[7])) < 1e-13);
    free(got);
    free(in);
    CLEAR(d), CLEAR(c);
    d.dtype = c.dtype = NT_F64, d.b_std = NT_ZERO, d.W_std = NT_ZERO;
    l = nt_dense_layer(t, 3, &d);
    TAP_CHECK(nt_init(l, nt_key(6), x) == NT_OK && param(l, "Dense_0/kernel")[11] == 0 && param(l, "Dense_0/bias")[2] == 0 && nt_parameters(l).count == 2);
    c.W_std = 0.7;
    l = nt_conv_layer(t, 700, NT_WINDOW(3, 3), &c);
    TAP_CHECK(nt_init(l, nt_key(6), image) == NT_OK && is_normal(param(l, "Conv_0/kernel"), 50400, 0.7 / sqrt(72.0), "standard convolution"));
    TAP_CHECK(param(l, "Conv_0/bias")[3] == 0);
    l = nt_conv_local_layer(t, 20, NT_WINDOW(3, 3), &c); // as many kernels as places: the fan is that of one
    TAP_CHECK(nt_init(l, nt_key(6), image) == NT_OK && is_normal(param(l, "ConvLocal_0/kernel"), 43200, 0.7 / sqrt(72.0), "standard local convolution"));
    TAP_CHECK(nt_parameters(l).items[0]->shape[0] == 5 && nt_parameters(l).items[0]->shape[1] == 6 && nt_parameters(l).items[0]->shape[2] == 72);
    TAP_CHECK(nt_parameters(l).items[1]->rank == 3 && nt_parameters(l).items[1]->shape[1] == 6);
    CLEAR(c), c.dtype = NT_F64;
    l = nt_conv_local_layer(t, 20, NT_WINDOW(3, 3), &c);
    const double *lecun = nt_init(l, nt_key(6), image) == NT_OK ? param(l, "ConvLocal_0/kernel") : NULL;
    double square = 0, most = 0;
    for (int64_t i = 0; lecun && i < 43200; i++) square += lecun[i] * lecun[i], most = fmax(most, fabs(lecun[i]));
    TAP_CHECK(fabs(square / 43200 * 72 - 1) < 5 * sqrt(2.0 / 43200) && most < 2.3 / sqrt(72.0)); // lecun normal: cut at 2 of 0.88 standard deviations
}

// ---------------------------------------------------------------------------------------------------------------------
// Activations
// ---------------------------------------------------------------------------------------------------------------------
static double hermite(int n, double x) { // He_n / sqrt(n!), from their coefficients
    static const double he[6][6] = { { 1 }, { 0, 1 }, { -1, 0, 1 }, { 0, -3, 0, 1 }, { 3, 0, -6, 0, 1 }, { 0, 15, 0, -10, 0, 1 } };
    double sum = 0, factorial = 1;
    for (int k = n; k >= 0; k--) sum = sum * x + he[n][k];
    for (int k = 2; k <= n; k++) factorial *= k;
    return sum / sqrt(factorial);
}

static const double sample[12] = { -2.5, -1.25, -0.75, -0.3, -1e-3, 0, 1e-3, 0.2, 0.6, 1.1, 1.9, 3.5 };

static void activation(nt_layer *l, const char *name, double (*f)(double x)) {
    nt_tensor *x = nt_constant(t, NT_F64, NT_SHAPE(12), sample);
    double want[12], largest = 0;
    for (int k = 0; k < 12; k++) want[k] = f(sample[k]), largest = fmax(largest, fabs(want[k]));
    double error = nt_init(l, nt_key(1), x) == NT_OK ? difference(nt_apply(l, x, NULL), want, 12) : INFINITY;
    tap_ok(error <= 1e-14 * (1 + largest), "%s: %g", name, error);
    nt_error_clear(t);
}

static double f_abrelu(double x) { return -0.5 * fmin(x, 0) + 1.25 * fmax(x, 0); }
static double f_leaky(double x) { return x < 0 ? 0.3 * x : x; }
static double f_abs(double x) { return fabs(x); }
static double f_sign(double x) { return (x > 0) - (x < 0); }
static double f_erf(double x) { return 1.4 * erf(0.6 * x) + 0.3; }
static double f_sigmoid_like(double x) { return 0.5 * erf(x / 2.4020563531719796) + 0.5; }
static double f_sin(double x) { return 1.2 * sin(0.9 * x + 0.4); }
static double f_cos(double x) { return 1.2 * cos(0.9 * x + 0.4); }
static double f_rbf(double x) { return sqrt(2.0) * sin(sqrt(2 * 0.7) * x + atan(1.0)); }
static double f_exp(double x) { return 0.8 * exp(0.4 * x); }
static double f_gaussian(double x) { return 1.1 * exp(-0.6 * x * x); }
static double f_gabor(double x) { return exp(-x * x) * sin(x); }
static double f_one(double x) { return x == x; }
static double f_fifth(double x) { return x * x * x * x * x; }
static double f_step(double x) { return x >= 0; }
static double f_half_cube(double x) { return x >= 0 ? x * x * x : 0; }
static double f_polynomial(double x) { return 0.2 + x * (1 + x * (-0.4 + x * 0.1)); }
static double f_zero(double x) { return 0 * x; }
static double f_hermite0(double x) { return hermite(0, x); }
static double f_hermite3(double x) { return hermite(3, x); }
static double f_hermite5(double x) { return hermite(5, x); }
static double f_squash(double x) { return x / (1 + fabs(x)); }

static double f_relu6(double x) { return fmin(fmax(x, 0), 6); }
static double f_bent(double x) { return -0.2 + (x < -1 ? 0.5 * (-1 - x) : x < 0.5 ? 2 * (x + 1) : 3 - 0.25 * (x - 0.5)) - 1; }
static double f_line(double x) { return 0.7 - 2 * x; }

static nt_tensor *record_squash(void *user, nt_tensor *x) { return (void)user, nt_soft_sign(x); }
static double compute_squash(void *user, double x) { return (void)user, f_squash(x); }

static void activations(void) {
    const double c[] = { 0.2, 1, -0.4, 0.1 };
    nt_elementwise_desc e = { record_squash, compute_squash, NULL };
    activation(nt_abrelu_layer(t, -0.5, 1.25), "abrelu", f_abrelu);
    activation(nt_leaky_relu_layer(t, 0.3), "leaky_relu", f_leaky);
    activation(nt_abs_layer(t), "abs", f_abs);
    activation(nt_sign_layer(t), "sign", f_sign);
    activation(nt_erf_layer(t, 1.4, 0.6, 0.3), "erf", f_erf);
    activation(nt_sigmoid_like_layer(t), "sigmoid_like", f_sigmoid_like);
    activation(nt_sin_layer(t, 1.2, 0.9, 0.4), "sin", f_sin);
    activation(nt_cos_layer(t, 1.2, 0.9, 0.4), "cos", f_cos);
    activation(nt_rbf_layer(t, 0.7), "rbf", f_rbf);
    activation(nt_exp_layer(t, 0.8, 0.4), "exp", f_exp);
    activation(nt_gaussian_layer(t, 1.1, -0.6), "gaussian", f_gaussian);
    activation(nt_gabor_layer(t), "gabor", f_gabor);
    activation(nt_monomial_layer(t, 0), "monomial 0", f_one);
    activation(nt_monomial_layer(t, 5), "monomial 5", f_fifth);
    activation(nt_rectified_monomial_layer(t, 0), "rectified monomial 0", f_step);
    activation(nt_rectified_monomial_layer(t, 3), "rectified monomial 3", f_half_cube);
    activation(nt_polynomial_layer(t, 4, c), "polynomial", f_polynomial);
    activation(nt_polynomial_layer(t, 0, NULL), "polynomial without coefficients", f_zero);
    const double at[] = { -1, 0.5, 0.5 }, slopes[] = { -0.5, 2, -0.25, 1 }, six[] = { 0, 6, 0, 1, 0 }, many[40] = { 0 };
    activation(nt_piecewise_linear_layer(t, 2, six, six + 2, 0), "piecewise linear, relu6", f_relu6);
    activation(nt_piecewise_linear_layer(t, 2, at, slopes, 0.8), "piecewise linear", f_bent);
    activation(nt_piecewise_linear_layer(t, 0, NULL, (const double[]){ -2 }, 0.7), "piecewise linear without points", f_line);
    TAP_CHECK(nt_piecewise_linear_layer(t, 3, at, slopes, 0) == NULL && says("points rise"));
    TAP_CHECK(nt_piecewise_linear_layer(t, 2, at, NULL, 0) == NULL && says("nt_piecewise_linear_layer"));
    TAP_CHECK(nt_piecewise_linear_layer(t, 1, NULL, slopes, 0) == NULL && says("nt_piecewise_linear_layer"));
    TAP_CHECK(nt_piecewise_linear_layer(t, 17, many, many, 0) == NULL && says("0 to 16"));
    TAP_CHECK(nt_piecewise_linear_layer(t, -1, at, slopes, 0) == NULL && says("0 to 16"));
    TAP_CHECK(nt_piecewise_linear_layer(t, 2, at, slopes, NAN) == NULL && says("finite"));
    activation(nt_hermite_layer(t, 0), "hermite 0", f_hermite0);
    activation(nt_hermite_layer(t, 3), "hermite 3", f_hermite3);
    activation(nt_hermite_layer(t, 5), "hermite 5", f_hermite5);
    activation(nt_elementwise_layer(t, &e), "elementwise", f_squash);
    nt_tensor *x = noise(1, NT_SHAPE(3, 4));
    nt_layer *kernel_only = NT_SERIAL(t, nt_dense_layer(t, 4, NULL), nt_exp_normalized_layer(t, 1, -1, 0));
    nt_tensor *single = nt_cast(x, NT_F32);
    TAP_CHECK(nt_init(kernel_only, nt_key(1), single) == NT_OK && nt_apply(kernel_only, single, NULL) == NULL && says("no finite network"));
    e.function = NULL;
    kernel_only = nt_elementwise_layer(t, &e);
    TAP_CHECK(nt_init(kernel_only, nt_key(1), x) == NT_OK && nt_apply(kernel_only, x, NULL) == NULL && says("without .function"));
    e.f = NULL;
    TAP_CHECK(nt_elementwise_layer(t, &e) == NULL && says("neither .function nor .f"));
    TAP_CHECK(nt_elementwise_layer(t, NULL) == NULL && says("nt_elementwise_layer"));
    TAP_CHECK(nt_monomial_layer(t, -1) == NULL && says("nt_monomial_layer"));
    TAP_CHECK(nt_rbf_layer(t, -1) == NULL && says("nt_rbf_layer"));
    TAP_CHECK(nt_erf_layer(t, 1, NAN, 0) == NULL && says("nt_erf_layer"));
    TAP_CHECK(nt_polynomial_layer(t, 2, NULL) == NULL && says("nt_polynomial_layer"));
}

// ---------------------------------------------------------------------------------------------------------------------
// Linear maps
// ---------------------------------------------------------------------------------------------------------------------
static void maps(void) {
    const double m[] = { 1, 2, 3, -1, 0.5, 0, 4, 0, -2, 0.25, 1, 1 }; // (4, 3)
    nt_tensor *x = noise(1, NT_SHAPE(2, 3, 5, 2));
    double *in = numbers(x), want[2 * 4 * 5 * 2], scaled[60];
    for (int n = 0; n < 2; n++)
        for (int k = 0; k < 4; k++)
            for (int j = 0; j < 10; j++) {
                want[(n * 4 + k) * 10 + j] = 0;
                for (int h = 0; h < 3; h++) want[(n * 4 + k) * 10 + j] += m[3 * k + h] * in[(n * 3 + h) * 10 + j];
            }
    for (int k = 0; k < 60; k++) scaled[k] = 0.7 * in[k];
    nt_layer *map = nt_linear_map_layer(t, 1, 4, 3, m), *same = nt_linear_map_layer(t, -3, 4, 3, m), *scale = nt_scale_layer(t, 0.7);
    TAP_CHECK(nt_init(map, nt_key(1), x) == NT_OK && difference(nt_apply(map, x, NULL), want, 80) < 1e-14);
    TAP_CHECK(nt_init(same, nt_key(1), x) == NT_OK && difference(nt_apply(same, x, NULL), want, 80) < 1e-14);
    TAP_CHECK(nt_init(scale, nt_key(1), x) == NT_OK && difference(nt_apply(scale, x, NULL), scaled, 60) < 1e-15);
    TAP_CHECK(nt_init(nt_linear_map_layer(t, 2, 4, 3, m), nt_key(1), x) != NT_OK && says("nt_linear_map_layer"));
    TAP_CHECK(nt_init(nt_linear_map_layer(t, 3, 1, 2, m), nt_key(1), x) != NT_OK && says("nt_linear_map_layer")); // channels
    TAP_CHECK(nt_linear_map_layer(t, 1, 0, 3, m) == NULL && says("nt_linear_map_layer"));
    TAP_CHECK(nt_linear_map_layer(t, 1, 4, 3, NULL) == NULL && says("nt_linear_map_layer"));
    free(in);
}

static double tent(double at, double width) { return fmax(0, 1 - fabs(at) / width); }

// Linear interpolation between centres of pixels, from a sum of tents around each input.
static void resizing(void) {
    double worst = 0;
    for (int n = 1; n <= 7; n++)
        for (int m = 1; m <= 7; m++)
            for (int smooth = 0; smooth < 2; smooth++) {
                nt_resize_desc d = { NT_BILINEAR, !smooth };
                nt_tensor *x = noise(1, NT_SHAPE(1, n, 1));
                nt_layer *l = nt_image_resize_layer(t, NT_SHAPE(m), &d);
                double *in = numbers(x), want[7], width = smooth && n > m ? (double)n / m : 1;
                for (int o = 0; o < m; o++) {
                    double sum = 0, weights = 0, centre = (o + 0.5) * n / m - 0.5;
                    for (int i = 0; i < n; i++) sum += tent(centre - i, width) * in[i], weights += tent(centre - i, width);
                    want[o] = sum / weights;
                }
                double e = nt_init(l, nt_key(1), x) == NT_OK ? difference(nt_apply(l, x, NULL), n == m ? in : want, m) : INFINITY;
                worst = e <= worst ? worst : e;
                free(in);
            }
    tap_ok(worst < 1e-14, "resizing with and without smoothing: %g", worst);
    nt_tensor *x = noise(1, NT_SHAPE(2, 4, 6, 3));
    nt_resize_desc d = { NT_NEAREST, 0 };
    double *in = numbers(x), want[2 * 6 * 3 * 3];
    for (int n = 0; n < 2; n++)
        for (int i = 0; i < 6; i++)
            for (int j = 0; j < 3; j++)
                for (int c = 0; c < 3; c++) want[((n * 6 + i) * 3 + j) * 3 + c] = in[((n * 4 + (2 * i + 1) * 4 / 12) * 6 + 2 * j + 1) * 3 + c];
    nt_layer *near = nt_image_resize_layer(t, NT_SHAPE(6, 3), &d), *plain = nt_image_resize_layer(t, NT_SHAPE(6, 3), NULL);
    TAP_CHECK(nt_init(near, nt_key(1), x) == NT_OK && difference(nt_apply(near, x, NULL), want, 108) == 0);
    TAP_CHECK(nt_init(plain, nt_key(1), x) == NT_OK && difference(nt_apply(plain, x, NULL), want, 108) == 0);
    TAP_CHECK(nt_init(nt_image_resize_layer(t, NT_SHAPE(6), &d), nt_key(1), x) != NT_OK && says("nt_image_resize_layer"));
    TAP_CHECK(nt_image_resize_layer(t, NT_SHAPE(6, 0), &d) == NULL && says("nt_image_resize_layer"));
    TAP_CHECK(nt_resize_with(NULL, NT_SHAPE(6), &d) == NULL && !nt_error(t));
    free(in);
}

// Which elements a slice takes, by what Python's manual says: a start or stop beyond the ends is moved to them, a missing one is an end that
// depends on the step's sign.
static int slice_of(const nt_range *r, int n, int *taken) {
    int64_t step = r->step ? r->step : 1, ends[2] = { r->start, r->stop }, low = step < 0 ? -1 : 0, high = step < 0 ? n - 1 : n;
    int count = 0;
    for (int k = 0; k < 2; k++) {
        if (ends[k] == NT_OPEN) {
            ends[k] = (k == 0) == (step > 0) ? low : high;
            continue;
        }
        if (ends[k] < 0) ends[k] += n;
        ends[k] = ends[k] < low ? low : ends[k] > high ? high : ends[k];
    }
    for (int64_t i = ends[0]; step > 0 ? i < ends[1] : i > ends[1]; i += step) taken[count++] = (int)i;
    return count;
}

static void indexing(void) {
    nt_tensor *x = noise(1, NT_SHAPE(2, 5, 2));
    double *in = numbers(x);
    int wrong = 0, count = 0;
    for (int64_t step = -3; step <= 3; step++)
        for (int64_t from = -8; from <= 7; from++)
            for (int64_t to = -8; to <= 7; to++) {
                nt_range r[2] = { { NT_RANGE_ALL, 0, 0, 0 }, { NT_RANGE_SLICE, from == -8 ? NT_OPEN : from, to == -8 ? NT_OPEN : to, step } };
                int taken[8], m = slice_of(&r[1], 5, taken);
                double want[20];
                nt_marker mark = nt_mark(t);
                nt_layer *l = nt_index_layer(t, 2, r);
                for (int n = 0; n < 2; n++)
                    for (int k = 0; k < m; k++)
                        for (int c = 0; c < 2; c++) want[(n * m + k) * 2 + c] = in[(n * 5 + taken[k]) * 2 + c];
                nt_tensor *y = nt_init(l, nt_key(1), x) == NT_OK ? nt_apply(l, x, NULL) : NULL;
                if (!y || y->shape[1] != m || (m && difference(y, want, 4 * m) != 0)) {
                    if (!wrong++) tap_note("%lld:%lld:%lld %s", (long long)r[1].start, (long long)r[1].stop, (long long)step, nt_error(t) ? nt_error(t) : "");
                }
                count++;
                nt_rewind(t, mark);
            }
    tap_ok(!wrong, "%d slices as Python's", count);
    nt_range far = { NT_RANGE_SLICE, INT64_MIN + 1, INT64_MAX, INT64_MAX }, drop[3] = { { NT_RANGE_SLICE, 1, NT_OPEN, 0 }, { NT_RANGE_AT, -2, 0, 0 }, { NT_RANGE_ALL, 0, 0, 0 } };
    nt_layer *l = nt_index_layer(t, 1, &far);
    TAP_CHECK(nt_init(l, nt_key(1), x) == NT_OK && difference(nt_apply(l, x, NULL), in, 10) == 0);
    l = nt_index_layer(t, 2, drop);
    nt_tensor *y = nt_init(l, nt_key(1), x) == NT_OK ? nt_apply(l, x, NULL) : NULL;
    TAP_CHECK(y && y->rank == 2 && difference(y, in + 16, 2) == 0);
    TAP_CHECK(nt_init(nt_index_layer(t, 3, drop), nt_key(1), x) != NT_OK && says("nt_index_layer"));
    drop[1].start = 5;
    TAP_CHECK(nt_init(nt_index_layer(t, 2, drop), nt_key(1), x) != NT_OK && says("no element 5"));
    drop[0].kind = NT_RANGE_AT;
    TAP_CHECK(nt_init(nt_index_layer(t, 1, drop), nt_key(1), x) != NT_OK && says("nt_index_layer")); // the batch
    TAP_CHECK(nt_index_layer(t, 2, NULL) == NULL && says("nt_index_layer"));
    free(in);
}

// ---------------------------------------------------------------------------------------------------------------------
// Graphs
// ---------------------------------------------------------------------------------------------------------------------
static void graphs(void) {
    enum { N = 2, V = 6, E = 9, C = 3 };
    int32_t edges[N][E][2] = { { { 0, 1 }, { 1, 0 }, { 0, 1 }, { -1, 3 }, { 3, -7 }, { 5, 5 }, { 2, 4 }, { 4, 2 }, { -1, -1 } },
                               { { 5, 0 }, { 5, 1 }, { 5, 2 }, { 5, 3 }, { 5, 4 }, { 5, 5 }, { 0, 5 }, { -1, -1 }, { -1, -1 } } };
    double a[N][V][V] = { { { 0 } } }, weighted[N * V * V], want[N * V * C], other[N * V * C];
    nt_tensor *x = noise(1, NT_SHAPE(N, 2, 3, C)), *w = noise(2, NT_SHAPE(N, V, V));
    double *in = numbers(x), *ws = numbers(w);
    nt_aggregate_desc sparse = { 1 };
    nt_apply_desc d;
    for (int n = 0; n < N; n++)
        for (int e = 0; e < E; e++)
            if (edges[n][e][0] >= 0 && edges[n][e][1] >= 0) a[n][edges[n][e][0]][edges[n][e][1]] += 1;
    memcpy(weighted, ws, sizeof weighted);
    for (int k = 0; k < N * V * C; k++) {
        int n = k / (V * C), j = k / C % V, c = k % C;
        want[k] = other[k] = 0;
        for (int i = 0; i < V; i++) want[k] += a[n][i][j] * in[(n * V + i) * C + c], other[k] += weighted[(n * V + i) * V + j] * in[(n * V + i) * C + c];
    }
    nt_layer *dense = nt_aggregate_layer(t, NULL), *of_edges = nt_aggregate_layer(t, &sparse);
    TAP_CHECK(nt_init(dense, nt_key(1), x) == NT_OK && nt_init(of_edges, nt_key(1), x) == NT_OK);
    CLEAR(d);
    d.pattern = nt_constant(t, NT_F64, NT_SHAPE(N, V, V), a);
    TAP_CHECK(difference(nt_apply(dense, x, &d), want, N * V * C) < 1e-14);
    d.pattern = nt_constant(t, NT_I32, NT_SHAPE(N, E, 2), edges);
    nt_tensor *y = nt_apply(of_edges, x, &d);
    TAP_CHECK(difference(y, want, N * V * C) < 1e-14 && y->rank == 4 && y->shape[2] == 3);
    double *g = numbers(nt_grad(nt_sum(nt_mul(y, x)), x)), *h; // the derivative of x^T A^T x is (A + A^T) x
    d.pattern = nt_constant(t, NT_F64, NT_SHAPE(N, 2, 3, 2, 3), a);
    h = numbers(nt_grad(nt_sum(nt_mul(nt_apply(dense, x, &d), x)), x));
    double worst = 0;
    for (int k = 0; k < N * V * C; k++) worst = fmax(worst, fabs(g[k] - h[k]));
    tap_ok(worst < 1e-13, "sparse and dense graphs have the same derivative");
    d.pattern = w;
    TAP_CHECK(difference(nt_apply(dense, x, &d), other, N * V * C) < 1e-13);
    TAP_CHECK(nt_apply(of_edges, x, &d) == NULL && says("of edges, i32 (N, E, 2)"));
    d.pattern = nt_constant(t, NT_I32, NT_SHAPE(N, E, 2), edges);
    TAP_CHECK(nt_apply(dense, x, &d) == NULL && says("(N, V, V)"));
    TAP_CHECK(nt_apply(dense, x, NULL) == NULL && says(".pattern"));
    edges[0][3][0] = V; // would be the first node of the next graph
    edges[0][3][1] = 0;
    d.pattern = nt_constant(t, NT_I32, NT_SHAPE(N, E, 2), edges);
    TAP_CHECK(nt_eval(nt_apply(of_edges, x, &d), want) == NT_ERROR_DATA);
    nt_error_clear(t);
    edges[0][3][0] = 0, edges[0][3][1] = V;
    d.pattern = nt_constant(t, NT_I32, NT_SHAPE(N, E, 2), edges);
    TAP_CHECK(nt_eval(nt_apply(of_edges, x, &d), want) == NT_ERROR_DATA);
    nt_error_clear(t);
    free(in), free(ws), free(g), free(h);
}

// ---------------------------------------------------------------------------------------------------------------------
// Attention
// ---------------------------------------------------------------------------------------------------------------------
static void inverse_of(int n, const double *x, double *y) { // elimination with pivots
    double *m = room(2 * n * n);
    for (int k = 0; k < 2 * n * n; k++) m[k] = k % (2 * n) < n ? x[k / (2 * n) * n + k % (2 * n)] : k % (2 * n) - n == k / (2 * n);
    for (int k = 0; k < n; k++) {
        int best = k;
        for (int i = k; i < n; i++) best = fabs(m[i * 2 * n + k]) > fabs(m[best * 2 * n + k]) ? i : best;
        for (int j = 0; j < 2 * n; j++) {
            double swap = m[k * 2 * n + j];
            m[k * 2 * n + j] = m[best * 2 * n + j], m[best * 2 * n + j] = swap;
        }
        for (int i = 0; i < n; i++) {
            double f = i == k ? 0 : m[i * 2 * n + k] / m[k * 2 * n + k];
            for (int j = k; j < 2 * n && f != 0; j++) m[i * 2 * n + j] -= f * m[k * 2 * n + j];
        }
    }
    for (int k = 0; k < n * n; k++) y[k] = m[k / n * 2 * n + n + k % n] / m[k / n * 2 * n + k / n];
    free(m);
}

// The symmetric root of a positive definite matrix by Denman and Beavers' iteration: x to the root, z to its inverse.
static void root_of(int n, const double *a, double *x) {
    double *z = room(n * n), *of_x = room(n * n), *of_z = room(n * n);
    for (int k = 0; k < n * n; k++) x[k] = a[k], z[k] = k % (n + 1) == 0;
    for (int pass = 0; pass < 30; pass++) {
        inverse_of(n, x, of_x), inverse_of(n, z, of_z);
        for (int k = 0; k < n * n; k++) x[k] = (x[k] + of_z[k]) / 2, z[k] = (z[k] + of_x[k]) / 2;
    }
    free(z), free(of_x), free(of_z);
}

enum { AN = 2, AH = 2, AW = 3, AV = AH * AW, AC = 3 };

static double covariance(const nt_global_attention_desc *d, int i, int j) {
    double p = d->p == 0 ? 2 : d->p, alpha = d->alpha == 0 ? 1 : d->alpha;
    double far = (i / AW == j / AW ? 0 : pow(abs(i / AW - j / AW), p)) + (i % AW == j % AW ? 0 : pow(abs(i % AW - j % AW), p));
    return d->decay == NT_POSITION_ONE_HOT ? i == j : d->decay == NT_POSITION_EXP ? exp(-alpha * far) : 1 / (1 + alpha * far);
}

static void mechanism_of(nt_attention_mechanism m, double *row) {
    double most = row[0], sum = 0;
    for (int k = 0; k < AV; k++) most = fmax(most, row[k]);
    for (int k = 0; k < AV; k++) sum += exp(row[k] - most);
    for (int k = 0; k < AV; k++) {
        if (m == NT_ATTEND_SOFTMAX) row[k] = exp(row[k] - most) / sum;
        if (m == NT_ATTEND_ABS) row[k] = fabs(row[k]);
        if (m == NT_ATTEND_RELU) row[k] = fmax(row[k], 0);
    }
}

static double std_or_1(double std) { return std == 0 ? 1 : std; }

// What image n becomes, from the layer's parameters; `seen` holds wide numbers for each position, `values` inner ones.
static void attend(const nt_global_attention_desc *d, nt_layer *l, const double *seen, int wide, const double *values, int inner, double *y) {
    const double *wk = param(l, "GlobalSelfAttention_0/key/kernel"), *wq = d->sqrt_scaling ? param(l, "GlobalSelfAttention_0/query/kernel") : wk;
    const double *wv = param(l, "GlobalSelfAttention_0/value/kernel"), *wo = param(l, "GlobalSelfAttention_0/out/kernel");
    const double *b = d->bias == NT_BIAS_ON ? param(l, "GlobalSelfAttention_0/out/bias") : NULL;
    double scale = std_or_1(d->key_std) * std_or_1(d->query_std) / (wide * (d->sqrt_scaling ? sqrt(d->key) : d->key));
    double out = std_or_1(d->value_std) * std_or_1(d->out_std) / sqrt((double)d->value * d->heads * inner);
    for (int i = 0; i < AV; i++) {
        for (int o = 0; o < d->features; o++) y[i * d->features + o] = b ? d->b_std * b[o] : 0;
        for (int h = 0; h < d->heads; h++) {
            double row[AV];
            for (int j = 0; j < AV; j++) {
                row[j] = 0;
                for (int k = 0; k < d->key; k++) {
                    double q = 0, key = 0;
                    for (int c = 0; c < wide; c++) q += seen[i * wide + c] * wq[(c * d->heads + h) * d->key + k], key += seen[j * wide + c] * wk[(c * d->heads + h) * d->key + k];
                    row[j] += scale * q * key;
                }
            }
            mechanism_of(d->mechanism, row);
            for (int v = 0; v < d->value; v++) {
                double sum = 0;
                for (int j = 0; j < AV; j++)
                    for (int c = 0; c < inner; c++) sum += row[j] * values[j * inner + c] * wv[(c * d->heads + h) * d->value + v];
                for (int o = 0; o < d->features; o++) y[i * d->features + o] += out * sum * wo[(h * d->value + v) * d->features + o];
            }
        }
    }
}

static double attention_error(const nt_global_attention_desc *d) {
    nt_marker mark = nt_mark(t);
    nt_tensor *x = noise(1, NT_SHAPE(AN, AH, AW, AC));
    nt_layer *l = nt_global_self_attention_layer(t, d);
    double *in = numbers(x), r[AV * AV], root[AV * AV], *want = room(AN * AV * d->features), error = INFINITY;
    int extra = d->position == NT_POSITION_CONCAT && d->position_channels ? d->position_channels : AC, wide = d->position == NT_POSITION_CONCAT ? AC + extra : AC;
    double *seen = room(AV * wide), *e = room(AV * extra);
    for (int k = 0; k < AV * AV; k++) r[k] = covariance(d, k / AV, k % AV);
    root_of(AV, r, root);
    if (in && nt_init(l, nt_key(9), x) == NT_OK) {
        const double *p = d->position ? param(l, "GlobalSelfAttention_0/pos_embedding") : NULL;
        for (int k = 0; p && k < AV * extra; k++)
            for (int j = 0; j < AV; j++) e[k] += std_or_1(d->position_std) * root[k / extra * AV + j] * p[j * extra + k % extra];
        for (int n = 0; n < AN; n++) {
            for (int k = 0; k < AV * wide; k++) {
                int i = k / wide, c = k % wide;
                seen[k] = c < AC ? in[(n * AV + i) * AC + c] : e[i * extra + c - AC];
                if (d->position == NT_POSITION_SUM) seen[k] += e[i * extra + c];
            }
            attend(d, l, seen, wide, d->position_values ? seen : in + n * AV * AC, d->position_values ? wide : AC, want + n * AV * d->features);
        }
        error = difference(nt_apply(l, x, NULL), want, AN * AV * d->features);
    }
    if (!(error < 1e-12)) tap_note("%g %s", error, nt_error(t) ? nt_error(t) : "");
    free(in), free(want), free(seen), free(e);
    nt_rewind(t, mark);
    return error;
}

static void attention(void) {
    nt_global_attention_desc d;
    CLEAR(d);
    d.features = 4, d.key = 5, d.value = 3, d.heads = 2, d.key_std = 0.9, d.value_std = 1.2, d.query_std = 0.7, d.out_std = 0.8, d.b_std = 0.5, d.dtype = NT_F64;
    for (int m = NT_ATTEND_SOFTMAX; m <= NT_ATTEND_RELU; m++) {
        d.mechanism = (nt_attention_mechanism)m, d.sqrt_scaling = 0;
        tap_ok(attention_error(&d) < 1e-12, "attention, mechanism %d, keys as queries", m);
        d.sqrt_scaling = 1;
        tap_ok(attention_error(&d) < 1e-12, "attention, mechanism %d, queries of their own", m);
    }
    d.mechanism = NT_ATTEND_SOFTMAX, d.position_std = 0.6, d.bias = NT_BIAS_OFF, d.b_std = 0;
    for (int p = NT_POSITION_SUM; p <= NT_POSITION_CONCAT; p++)
        for (int decay = NT_POSITION_ONE_HOT; decay <= NT_POSITION_INV; decay++)
            for (int v = 0; v < 2; v++) {
                d.position = (nt_position)p, d.decay = (nt_position_decay)decay, d.position_values = v, d.sqrt_scaling = v;
                d.position_channels = v ? 5 : 0, d.alpha = v ? 0.3 : 0, d.p = v ? 1 : 0;
                tap_ok(attention_error(&d) < 1e-12, "attention with positions: %d, decay %d, in values %d", p, decay, v);
            }
    CLEAR(d);
    TAP_CHECK(nt_global_self_attention_layer(t, &d) == NULL && says(".features, .key, .value and .heads"));
    TAP_CHECK(nt_global_self_attention_layer(t, NULL) == NULL && says("nt_global_self_attention_layer"));
    d.features = d.key = d.value = d.heads = 2;
    nt_layer *l = nt_global_self_attention_layer(t, &d);
    nt_tensor *x = nt_full(t, NT_F32, NT_SHAPE(2, 5, 2), 1), *y;
    TAP_CHECK(nt_init(l, nt_key(1), x) == NT_OK && nt_parameters(l).count == 4);
    nt_params p = nt_parameters(l);
    double wrong = 0;
    for (int k = 0; k < p.count; k++) wrong += strstr(p.items[k]->name, "GlobalSelfAttention_0/") != p.items[k]->name;
    TAP_CHECK(wrong == 0 && (y = nt_apply(l, x, NULL)) != NULL && y->shape[1] == 5 && y->shape[2] == 2);
    d.key_std = -1;
    TAP_CHECK(nt_global_self_attention_layer(t, &d) == NULL && says("standard deviations"));
}

// ---------------------------------------------------------------------------------------------------------------------
// The rest
// ---------------------------------------------------------------------------------------------------------------------
static void norms(void) { // over the axes that the descriptor names
    nt_layer_norm_desc d;
    nt_tensor *x = noise(1, NT_SHAPE(2, 3, 4, 5));
    double *in = numbers(x), want[120];
    CLEAR(d);
    d.dtype = NT_F64, d.no_scale = d.no_bias = 1, d.eps = 0.1, d.axes = NT_AXES(2, -1);
    for (int k = 0; k < 6; k++) {
        double mean = 0, var = 0;
        for (int j = 0; j < 20; j++) mean += in[20 * k + j] / 20;
        for (int j = 0; j < 20; j++) var += (in[20 * k + j] - mean) * (in[20 * k + j] - mean) / 20;
        for (int j = 0; j < 20; j++) want[20 * k + j] = (in[20 * k + j] - mean) / sqrt(var + 0.1);
    }
    nt_layer *l = nt_layer_norm_layer(t, &d);
    TAP_CHECK(nt_init(l, nt_key(1), x) == NT_OK && difference(nt_apply(l, x, NULL), want, 120) < 1e-14);
    d.no_scale = d.no_bias = 0; // one number for each channel
    l = nt_layer_norm_layer(t, &d);
    TAP_CHECK(nt_init(l, nt_key(1), x) == NT_OK && difference(nt_apply(l, x, NULL), want, 120) < 1e-14 && nt_size(nt_parameters(l).items[0]) == 5);
    TAP_CHECK(nt_rms_norm_layer(t, &d) == NULL && says(".axes"));
    free(in);
}

static void pools(void) {
    nt_tensor *x = noise(1, NT_SHAPE(2, 3, 2, 2));
    double *in = numbers(x), want[4] = { 0, 0, 0, 0 };
    for (int k = 0; k < 24; k++) want[k / 12 * 2 + k % 2] += in[k];
    nt_layer *l = nt_global_sum_pool_layer(t), *windows_of = nt_sum_pool_layer(t, NT_WINDOW(3, 2));
    TAP_CHECK(nt_init(l, nt_key(1), x) == NT_OK && difference(nt_apply(l, x, NULL), want, 4) < 1e-14);
    TAP_CHECK(nt_init(windows_of, nt_key(1), x) == NT_OK && difference(nt_apply(windows_of, x, NULL), want, 4) < 1e-14);
    TAP_CHECK(nt_init(nt_global_sum_pool_layer(t), nt_key(1), nt_sum(x)) != NT_OK && says("nt_global_sum_pool_layer"));
    free(in);
}

static void mistakes(void) {
    nt_dense_desc d;
    nt_conv_layer_desc c;
    CLEAR(d), CLEAR(c);
    d.W_std = -1;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says("nt_dense_layer: .W_std"));
    CLEAR(d), d.b_std = NAN;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says(".b_std"));
    CLEAR(d), d.s[1] = -2;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says(".s are"));
    CLEAR(d), d.W_std = 1, d.kernel_init.kind = NT_HE_NORMAL;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says("not both"));
    CLEAR(d), d.s[0] = 2, d.kernel_init.kind = NT_HE_NORMAL;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says("not both"));
    CLEAR(d), d.parameterization = (nt_parameterization)7;
    TAP_CHECK(nt_dense_layer(t, 3, &d) == NULL && says(".parameterization"));
    c.conv.groups = 2;
    TAP_CHECK(nt_conv_local_layer(t, 4, NT_WINDOW(3), &c) == NULL && says("no groups"));
    CLEAR(c), c.parameterization = NT_PARAM_NTK, c.bias_init.kind = NT_INIT_ONES;
    TAP_CHECK(nt_conv_layer(t, 4, NT_WINDOW(3), &c) == NULL && says("nt_conv_layer: initializers"));
    nt_layer *local = nt_conv_local_layer(t, 4, NT_WINDOW(3, 3), NULL);
    nt_tensor *x = nt_full(t, NT_F32, NT_SHAPE(1, 5, 5, 2), 1), *other = nt_full(t, NT_F32, NT_SHAPE(1, 6, 5, 2), 1);
    TAP_CHECK(nt_init(local, nt_key(1), nt_flatten(x, 1)) != NT_OK && says("ConvLocal"));
    TAP_CHECK(nt_init(local, nt_key(1), x) == NT_OK && nt_apply(local, x, NULL) != NULL && !nt_error(t));
    TAP_CHECK(nt_apply(local, other, NULL) == NULL && nt_error(t)); // other places than it has kernels for
    nt_error_clear(t);
}

// Arrays of every size: an error of memory, or all of it.
static nt_tensor *in_memory(void) {
    const double m[] = { 1, 2, 3, 4, 5, 6 }, c[] = { 1, 2 };
    nt_global_attention_desc d;
    nt_range r[2] = { { NT_RANGE_ALL, 0, 0, 0 }, { NT_RANGE_SLICE, NT_OPEN, NT_OPEN, -1 } };
    CLEAR(d);
    d.features = d.key = d.value = d.heads = 2, d.position = NT_POSITION_SUM, d.decay = NT_POSITION_EXP;
    nt_layer *net = NT_SERIAL(t, nt_conv_local_layer(t, 2, NT_WINDOW(3), NULL), nt_polynomial_layer(t, 2, c), nt_linear_map_layer(t, 1, 2, 3, m), nt_index_layer(t, 2, r),
                              nt_image_resize_layer(t, NT_SHAPE(4), NULL), nt_global_self_attention_layer(t, &d), nt_hermite_layer(t, 3), nt_aggregate_layer(t, NULL));
    nt_tensor *x = nt_full(t, NT_F32, NT_SHAPE(1, 3, 2), 1);
    nt_apply_desc a;
    CLEAR(a), a.pattern = nt_full(t, NT_F32, NT_SHAPE(1, 4, 4), 1);
    return nt_init(net, nt_key(1), x) == NT_OK ? nt_apply(net, x, &a) : NULL;
}

static void shortage(void) {
    int wrong = 0, enough = 0, failed = 0;
    for (size_t size = nt_tape_size_min(); size < 1000000 && enough < 3; size += 331) {
        nt_tape_desc desc;
        CLEAR(desc);
        desc.memory = malloc(size), desc.memory_size = size, t = nt_tape_open(&desc);
        if (t && in_memory()) enough++;
        else failed++, wrong += t && nt_error_status(t) != NT_ERROR_MEMORY;
        nt_tape_close(t);
        free(desc.memory);
    }
    tap_ok(!wrong && enough == 3 && failed > 50, "%d arrays that are too small, each an error of memory", failed);
}

int main(void) {
    void (*const parts[])(void) = { windows, beginnings, activations, maps, resizing, indexing, graphs, attention, norms, pools, mistakes };
    for (size_t k = 0; k < sizeof parts / sizeof parts[0]; k++) {
        t = nt_tape_open(NULL);
        parts[k]();
        if (nt_error(t)) tap_ok(0, "part %d ends with %s", (int)k, nt_error(t));
        nt_tape_close(t);
    }
    shortage();
    return tap_end();
}
