// nt_taylor: against series that are known in closed form, polynomials (which it must give back), the same function written in other
// operations, nested nt_jvp on random graphs, and counts of nodes that show that the cost is a power of the degree.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "graphs.h"

enum { DEGREE = 8, POINTS = 5 };

// Relative to the largest element, or to 1.
static double difference(nt_tensor *a, nt_tensor *b) {
    double worst = HUGE_VAL;
    if (!a || !b || !nti_same_shape(a, b) || a->dtype != b->dtype) return HUGE_VAL;
    void *p = malloc(nt_bytes(a) + 8), *q = malloc(nt_bytes(b) + 8);
    if (nt_eval(a, p) == NT_OK && nt_eval(b, q) == NT_OK) worst = naive_difference(a->dtype, p, q, nt_size(a));
    free(p), free(q);
    return worst;
}

static nt_tensor *values(nt_tape *t, nt_shape shape, uint64_t seed, double scale) {
    double data[4096];
    dice d = { seed };
    for (int64_t k = 0; k < nti_count(shape.rank, shape.size); k++) data[k] = scale * real(&d);
    return nt_variable(t, NT_F64, shape, data);
}

static int nodes(const nt_tape *t) {
    int n = 0;
    for (const nti_node *at = t->first; at; at = at->next) n++;
    return n;
}

// ---------------------------------------------------------------------------------------------------------------------
// Functions of one number whose coefficients at a are known
// ---------------------------------------------------------------------------------------------------------------------
static double factorial(int k) { return k < 2 ? 1 : k * factorial(k - 1); }
static double binomial(double p, int k) { return k ? binomial(p, k - 1) * (p - k + 1) / k : 1; }
static double c_exp(double a, int k) { return exp(a) / factorial(k); }
static double c_exp2(double a, int k) { return exp2(a) * pow(log(2), k) / factorial(k); }
static double c_sin(double a, int k) { return sin(a + k * acos(0)) / factorial(k); }
static double c_cos(double a, int k) { return cos(a + k * acos(0)) / factorial(k); }
static double c_sinh(double a, int k) { return (k % 2 ? cosh(a) : sinh(a)) / factorial(k); }
static double c_cosh(double a, int k) { return (k % 2 ? sinh(a) : cosh(a)) / factorial(k); }
static double c_log(double a, int k) { return k ? (k % 2 ? 1 : -1) / (k * pow(a, k)) : log(a); }
static double c_log1p(double a, int k) { return c_log(1 + a, k); }
static double c_power(double p, double a, int k) { return binomial(p, k) * pow(a, p - k); }
static double c_reciprocal(double a, int k) { return c_power(-1, a, k); }
static double c_hyperbola(double a, int k) { return c_power(-1, 1 + a, k); } // 1 / (1 + x)
static double c_square(double a, int k) { return c_power(2, a, k); }
static double c_sqrt(double a, int k) { return c_power(0.5, a, k); }
static double c_rsqrt(double a, int k) { return c_power(-0.5, a, k); }
static double c_cbrt(double a, int k) { return c_power(1.0 / 3, a, k); }
static double c_pow(double a, int k) { return c_power(2.5, a, k); }
static double c_tanh(double a, int k) { // at 0 only, as the following
    static const double c[] = { 0, 1, 0, -1.0 / 3, 0, 2.0 / 15, 0, -17.0 / 315, 0 };
    return (void)a, c[k];
}
static double c_tan(double a, int k) { return k % 2 ? fabs(c_tanh(a, k)) : 0; }
static double c_sigmoid(double a, int k) { return k ? c_tanh(a, k) / 2 / pow(2, k) : 0.5; }
static double c_atan(double a, int k) { return (void)a, k % 2 ? (k % 4 == 1 ? 1.0 : -1.0) / k : 0; }
static double c_atanh(double a, int k) { return (void)a, k % 2 ? 1.0 / k : 0; }
static double c_asin(double a, int k) {
    int n = k / 2;
    return (void)a, k % 2 ? factorial(2 * n) / (pow(4, n) * factorial(n) * factorial(n) * k) : 0;
}
static double c_asinh(double a, int k) { return (k % 4 == 3 ? -1 : 1) * c_asin(a, k); }
static double c_acos(double a, int k) { return k ? -c_asin(a, k) : acos(0); }
static double c_erf(double a, int k) {
    int n = k / 2;
    return (void)a, k % 2 ? 1.1283791670955125739 * (n % 2 ? -1 : 1) / (factorial(n) * k) : 0;
}
static double c_erfc(double a, int k) { return (k == 0) - c_erf(a, k); }
static double c_lgamma(double a, int k) { // at 1: minus Euler's constant, then zeta(k) (-1)^k / k
    static const double zeta[] = { 0, -0.57721566490153286061, 1.64493406684822643647, 1.20205690315959428540, 1.08232323371113819152, 1.03692775514336992633,
                                   1.01734306198444913971, 1.00834927738192282684, 1.00407735619794433938 };
    return (void)a, k < 2 ? zeta[k] : zeta[k] * (k % 2 ? -1 : 1) / k;
}
static nt_tensor *hyperbola(nt_tensor *x) { return nt_reciprocal(nt_add_scalar(x, 1)); }
static nt_tensor *sine_over_cosine(nt_tensor *x) { return nt_div(nt_sin(x), nt_cos(x)); }
static nt_tensor *power(nt_tensor *x) { return nt_pow_scalar(x, 2.5); }
static nt_tensor *one_over(nt_tensor *x) { return nt_div(nt_full_like(x, 1), x); }

typedef struct known { const char *name; nt_tensor *(*function)(nt_tensor *x); double (*coefficient)(double a, int k); double at; } known;
static const known table[] = {
    { "exp", nt_exp, c_exp, 0.3 }, { "exp2", nt_exp2, c_exp2, -0.4 }, { "sin", nt_sin, c_sin, 1.1 }, { "cos", nt_cos, c_cos, -2 }, { "sinh", nt_sinh, c_sinh, 0.7 },
    { "cosh", nt_cosh, c_cosh, 0.7 }, { "log", nt_log, c_log, 1.5 }, { "log1p", nt_log1p, c_log1p, 0.25 }, { "reciprocal", nt_reciprocal, c_reciprocal, 1.5 },
    { "1 / (1 + x)", hyperbola, c_hyperbola, 0.5 }, { "1 / x", one_over, c_reciprocal, -1.5 }, { "square", nt_square, c_square, -1.5 }, { "sqrt", nt_sqrt, c_sqrt, 2 },
    { "rsqrt", nt_rsqrt, c_rsqrt, 1.25 }, { "cbrt", nt_cbrt, c_cbrt, 1.5 }, { "x^2.5", power, c_pow, 1.5 }, { "tanh", nt_tanh, c_tanh, 0 }, { "tan", nt_tan, c_tan, 0 },
    { "sin / cos", sine_over_cosine, c_tan, 0 }, { "sigmoid", nt_sigmoid, c_sigmoid, 0 }, { "atan", nt_atan, c_atan, 0 }, { "atanh", nt_atanh, c_atanh, 0 },
    { "asin", nt_asin, c_asin, 0 }, { "asinh", nt_asinh, c_asinh, 0 }, { "acos", nt_acos, c_acos, 0 }, { "erf", nt_erf, c_erf, 0 }, { "erfc", nt_erfc, c_erfc, 0 },
    { "lgamma", nt_lgamma, c_lgamma, 1 },
};

static void closed_forms(void) {
    static const double step[POINTS] = { 0, 0.5, -0.25, 0.75, -0.5 };
    for (size_t row = 0; row < sizeof table / sizeof table[0]; row++) {
        const known *f = &table[row];
        nt_tape *t = nt_tape_open(NULL);
        double at[POINTS], from[POINTS], got[POINTS], worst = 0;
        for (int i = 0; i < POINTS; i++) from[i] = f->at, at[i] = f->at + step[i];
        nt_tensor *x = nt_variable(t, NT_F64, NT_SHAPE(POINTS), at), *x0 = nt_constant(t, NT_F64, NT_SHAPE(POINTS), from), *y = f->function(x);
        for (int degree = 0; degree <= DEGREE; degree++) {
            if (nt_eval(nt_taylor(y, NT_LIST(x), NT_LIST(x0), degree), got) != NT_OK) worst = HUGE_VAL;
            for (int i = 0; i < POINTS; i++) {
                double want = 0;
                for (int k = degree; k >= 0; k--) want = want * (at[i] - from[i]) + f->coefficient(f->at, k);
                if (!(fabs(got[i] - want) <= worst)) worst = fabs(got[i] - want);
            }
        }
        tap_ok(worst < 2e-14, "%s, degrees 0 to %d: %.1e", f->name, DEGREE, worst); // sums of up to 9 numbers of size 1
        nt_tape_close(t);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The same function in other operations
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *along_last(nt_tensor *x) { return nt_sum_axes(x, NT_AXES(NT_LAST), 1); }
static nt_tensor *softmax(nt_tensor *x) { return nt_softmax(x, NT_LAST); }
static nt_tensor *softmax_by_hand(nt_tensor *x) { return nt_div(nt_exp(x), along_last(nt_exp(x))); }
static nt_tensor *log_softmax(nt_tensor *x) { return nt_log_softmax(x, NT_LAST); }
static nt_tensor *log_softmax_by_hand(nt_tensor *x) { return nt_sub(x, nt_log(along_last(nt_exp(x)))); }
static nt_tensor *layer_norm(nt_tensor *x) { return nt_layer_norm(x, NULL, NULL, 1e-2); }
static nt_tensor *layer_norm_by_hand(nt_tensor *x) {
    nt_tensor *d = nt_sub(x, nt_scale(along_last(x), 1.0 / 4));
    return nt_div(d, nt_sqrt(nt_add_scalar(nt_scale(along_last(nt_mul(d, d)), 1.0 / 4), 1e-2)));
}
static nt_tensor *gelu_by_hand(nt_tensor *x) { return nt_scale(nt_mul(x, nt_add_scalar(nt_erf(nt_scale(x, 0.70710678118654752440)), 1)), 0.5); }
static nt_tensor *gelu_tanh_by_hand(nt_tensor *x) {
    nt_tensor *u = nt_scale(nt_add(x, nt_scale(nt_mul(x, nt_mul(x, x)), 0.044715)), 0.79788456080286535588);
    return nt_scale(nt_mul(x, nt_add_scalar(nt_tanh(u), 1)), 0.5);
}
static nt_tensor *silu_by_hand(nt_tensor *x) { return nt_div(x, nt_add_scalar(nt_exp(nt_neg(x)), 1)); }
static nt_tensor *softplus_by_hand(nt_tensor *x) { return nt_log(nt_add_scalar(nt_exp(x), 1)); }
static nt_tensor *log_sigmoid_by_hand(nt_tensor *x) { return nt_neg(softplus_by_hand(nt_neg(x))); }
static nt_tensor *tanh_by_hand(nt_tensor *x) { return nt_add_scalar(nt_div(nt_full_like(x, -2), nt_add_scalar(nt_exp(nt_scale(x, 2)), 1)), 1); }
static nt_tensor *positive(nt_tensor *x) { return nt_add_scalar(x, 2.5); }
static nt_tensor *x_to_the_x(nt_tensor *x) { return nt_pow(positive(x), positive(x)); }
static nt_tensor *x_to_the_x_by_hand(nt_tensor *x) { return nt_exp(nt_mul(positive(x), nt_log(positive(x)))); }
static nt_tensor *angle(nt_tensor *x) { return nt_atan2(x, positive(nt_sin(x))); }
static nt_tensor *angle_by_hand(nt_tensor *x) { return nt_atan(nt_div(x, positive(nt_sin(x)))); }
static nt_tensor *hypot_(nt_tensor *x) { return nt_hypot(positive(x), nt_cos(x)); }
static nt_tensor *hypot_by_hand(nt_tensor *x) { return nt_sqrt(nt_add(nt_square(positive(x)), nt_square(nt_cos(x)))); }
static nt_tensor *logaddexp(nt_tensor *x) { return nt_logaddexp(x, nt_sin(x)); }
static nt_tensor *logaddexp_by_hand(nt_tensor *x) { return nt_log(nt_add(nt_exp(x), nt_exp(nt_sin(x)))); }
static nt_tensor *acosh_(nt_tensor *x) { return nt_acosh(positive(x)); }
static nt_tensor *acosh_by_hand(nt_tensor *x) { return nt_log(nt_add(positive(x), nt_sqrt(nt_add_scalar(nt_square(positive(x)), -1)))); }
static nt_tensor *product(nt_tensor *x) { return nt_prod_axes(x, NT_AXES(NT_LAST), 0); }
static nt_tensor *product_by_hand(nt_tensor *x) {
    nt_tensor *p = nt_slice_axis(x, 1, 0, 1);
    for (int k = 1; k < 4; k++) p = nt_mul(p, nt_slice_axis(x, 1, k, k + 1));
    return nt_squeeze(p, 1);
}
static nt_tensor *labels_of(nt_tensor *x) {
    static const int32_t label[] = { 2, 0, 3 };
    return nt_constant(x->tape, NT_I32, NT_SHAPE(3), label);
}
static nt_tensor *cross_entropy(nt_tensor *x) { return nt_cross_entropy(x, labels_of(x)); }
static nt_tensor *cross_entropy_by_hand(nt_tensor *x) {
    static const double hit[] = { 0, 0, 1, 0, 1, 0, 0, 0, 0, 0, 0, 1 };
    return nt_neg(nt_sum_axes(nt_mul(log_softmax_by_hand(x), nt_constant(x->tape, NT_F64, NT_SHAPE(3, 4), hit)), NT_AXES(1), 0));
}
static nt_tensor *steep(nt_tensor *x) { return nt_relu(nt_sub(nt_exp(x), nt_full_like(x, 1))); } // a kink at 0
static nt_tensor *steep_by_hand(nt_tensor *x) { return nt_select(nt_greater(x, nt_full_like(x, 0)), nt_add_scalar(nt_exp(x), -1), nt_full_like(x, 0)); }
static nt_tensor *elu(nt_tensor *x) { return nt_elu(x, 0.7); }
static nt_tensor *elu_by_hand(nt_tensor *x) { return nt_select(nt_greater(x, nt_full_like(x, 0)), x, nt_scale(nt_add_scalar(nt_exp(x), -1), 0.7)); }
static nt_tensor *gradient(nt_tensor *x) { return nt_grad(nt_sum(nt_mul(nt_square(x), nt_tanh(x))), x); }
static nt_tensor *gradient_by_hand(nt_tensor *x) {
    nt_tensor *h = nt_tanh(x);
    return nt_add(nt_scale(nt_mul(x, h), 2), nt_mul(nt_square(x), nt_add_scalar(nt_neg(nt_square(h)), 1)));
}

static nt_tensor *heads(nt_tensor *x) { return nt_reshape(x, NT_SHAPE(1, 3, 2, 2)); } // 3 times, 2 heads of 2
static nt_tensor *attend(nt_tensor *x, int causal) {
    nt_attention_desc d;
    memset(&d, 0, sizeof d);
    d.causal = causal;
    return nt_reshape(nt_attention(heads(x), heads(nt_sin(x)), heads(nt_square(x)), NULL, &d), NT_SHAPE(3, 4));
}
static nt_tensor *attend_by_hand(nt_tensor *x, int causal) {
    static const double never[] = { 0, -1e4, -1e4, 0, 0, -1e4, 0, 0, 0 }; // exp(-1e4) is 0
    nt_tensor *q = nt_swap_axes(heads(x), 1, 2), *k = nt_swap_axes(heads(nt_sin(x)), 1, 2), *v = nt_swap_axes(heads(nt_square(x)), 1, 2);
    nt_tensor *s = nt_scale(nt_matmul(q, nt_swap_axes(k, 2, 3)), 0.70710678118654752440);
    if (causal) s = nt_add(s, nt_constant(x->tape, NT_F64, NT_SHAPE(3, 3), never));
    return nt_reshape(nt_swap_axes(nt_matmul(nt_softmax(s, NT_LAST), v), 1, 2), NT_SHAPE(3, 4));
}
static nt_tensor *attention(nt_tensor *x) { return attend(x, 0); }
static nt_tensor *attention_by_hand(nt_tensor *x) { return attend_by_hand(x, 0); }
static nt_tensor *causal(nt_tensor *x) { return attend(x, 1); }
static nt_tensor *causal_by_hand(nt_tensor *x) { return attend_by_hand(x, 1); }
static nt_tensor *attention_slope(nt_tensor *x) { return nt_grad(nt_sum(nt_mul(attention(x), nt_cos(x))), x); }
static nt_tensor *attention_slope_by_hand(nt_tensor *x) { return nt_grad(nt_sum(nt_mul(attention_by_hand(x), nt_cos(x))), x); }
static nt_tensor *linear_attention(nt_tensor *x) { // the derivative along tangents that depend on x, at values that do not
    nt_tensor *z = values(x->tape, NT_SHAPE(3, 4), 7, 1), *d = nt_sin(x);
    return nt_jvp(NT_LIST(attention(z)), NT_LIST(z), NT_LIST(d)).items[0];
}
static nt_tensor *linear_attention_by_hand(nt_tensor *x) {
    nt_tensor *z = values(x->tape, NT_SHAPE(3, 4), 7, 1), *d = nt_sin(x);
    return nt_jvp(NT_LIST(attention_by_hand(z)), NT_LIST(z), NT_LIST(d)).items[0];
}
static nt_tensor *looped(nt_tensor *x) { // a loop over rows: sums of a nonlinear function, then one of the sum
    nt_map *m = nt_map_begin(x->tape, 3, NULL);
    nt_tensor *sum = nt_map_sum(m, nt_tanh(nt_mul(nt_map_slice(m, nt_sin(x)), nt_sum_axes(x, NT_AXES(0), 0))));
    nt_tensor *stack = nt_map_stack(m, nt_square(nt_map_slice(m, x)));
    nt_map_end(m);
    return nt_mul(nt_exp(sum), stack);
}
static nt_tensor *looped_by_hand(nt_tensor *x) {
    return nt_mul(nt_exp(nt_sum_axes(nt_tanh(nt_mul(nt_sin(x), nt_sum_axes(x, NT_AXES(0), 0))), NT_AXES(0), 0)), nt_square(x));
}

typedef struct twin { const char *name; nt_tensor *(*one)(nt_tensor *x), *(*other)(nt_tensor *x); } twin;
static const twin twins[] = {
    { "softmax", softmax, softmax_by_hand }, { "log softmax", log_softmax, log_softmax_by_hand }, { "layer norm", layer_norm, layer_norm_by_hand },
    { "gelu", nt_gelu, gelu_by_hand }, { "gelu_tanh", nt_gelu_tanh, gelu_tanh_by_hand }, { "silu", nt_silu, silu_by_hand }, { "softplus", nt_softplus, softplus_by_hand },
    { "log sigmoid", nt_log_sigmoid, log_sigmoid_by_hand }, { "tanh", nt_tanh, tanh_by_hand }, { "x^x", x_to_the_x, x_to_the_x_by_hand }, { "atan2", angle, angle_by_hand },
    { "hypot", hypot_, hypot_by_hand }, { "logaddexp", logaddexp, logaddexp_by_hand }, { "acosh", acosh_, acosh_by_hand }, { "product", product, product_by_hand },
    { "cross-entropy", cross_entropy, cross_entropy_by_hand }, { "relu", steep, steep_by_hand }, { "elu", elu, elu_by_hand }, { "a gradient", gradient, gradient_by_hand },
    { "attention", attention, attention_by_hand }, { "causal attention", causal, causal_by_hand }, { "a gradient of attention", attention_slope, attention_slope_by_hand },
    { "attention along tangents", linear_attention, linear_attention_by_hand }, { "a loop", looped, looped_by_hand },
};

static void other_operations(void) {
    for (size_t row = 0; row < sizeof twins / sizeof twins[0]; row++) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *x = values(t, NT_SHAPE(3, 4), 1, 0.8), *x0 = values(t, NT_SHAPE(3, 4), 2, 0.8);
        nt_tensor *one = twins[row].one(x), *other = twins[row].other(x);
        double worst = 0;
        for (int degree = 0; degree <= 6; degree++) {
            double e = difference(nt_taylor(one, NT_LIST(x), NT_LIST(x0), degree), nt_taylor(other, NT_LIST(x), NT_LIST(x0), degree));
            worst = e > worst ? e : worst;
        }
        tap_ok(worst < 1e-12, "%s in two ways, degrees 0 to 6: %.1e", twins[row].name, worst); // coefficients reach 1e2 and cancel
        if (worst == HUGE_VAL) tap_note("%s", nt_error(t) ? nt_error(t) : "?");
        nt_tape_close(t);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Factors of matrices: their product is the matrix again, which is linear in itself
// ---------------------------------------------------------------------------------------------------------------------
static void matrices(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *r = values(t, NT_SHAPE(2, 3, 3), 1, 0.5), *r0 = values(t, NT_SHAPE(2, 3, 3), 2, 0.5), *b = values(t, NT_SHAPE(2, 3, 2), 3, 1);
    static const double diagonal[] = { 3, 0, 0, 0, 5, 0, 0, 0, 8 };
    nt_tensor *a = nt_add(r, nt_constant(t, NT_F64, NT_SHAPE(3, 3), diagonal)), *s = nt_add(a, nt_swap_axes(a, 1, 2)); // one symmetric and positive definite
    nt_tensor *l = nt_cholesky(s), *root = nt_sym_sqrt(s);
    nt_eigen e = nt_eigh(s);
    nt_qr_factors f = nt_qr(a);
    struct { const char *name; nt_tensor *value, *want; } row[] = {
        { "L L^T", nt_matmul(l, nt_swap_axes(l, 1, 2)), s }, { "a inv(a)", nt_matmul(a, nt_inv(a)), nt_matmul(a, nt_inv(a)) }, { "a solve(a, b)", nt_matmul(a, nt_solve(a, b)), b },
        { "s solve_spd(s, b)", nt_matmul(s, nt_solve_spd(s, b)), b }, { "V diag(v) V^T", nt_matmul(nt_mul(e.vectors, nt_expand_dims(e.values, 1)), nt_swap_axes(e.vectors, 1, 2)), s },
        { "the square of the root", nt_matmul(root, root), s }, { "q r", nt_matmul(f.q, f.r), a }, { "det(a) det(inv(a))", nt_mul(nt_det(a), nt_det(nt_inv(a))), NULL },
        { "exp(logdet) - det", nt_sub(nt_scale(nt_exp(nt_logdet_spd(s)), 1e-3), nt_scale(nt_det(s), 1e-3)), NULL },
    };
    for (int k = 0; k < 9; k++) {
        nt_tensor *y = nt_taylor(row[k].value, NT_LIST(r), NT_LIST(r0), 5), *want = row[k].want ? row[k].want : nt_full_like(row[k].value, k == 7);
        double error = difference(y, want);
        tap_ok(error < 1e-12, "%s, degree 5: %.1e", row[k].name, error);
        if (error == HUGE_VAL) tap_note("%s", nt_error(t) ? nt_error(t) : "?");
        nt_error_clear(t);
    }
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Polynomials in the parameters
// ---------------------------------------------------------------------------------------------------------------------
static void polynomials(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = values(t, NT_SHAPE(2, 6, 6, 2), 1, 1), *p[4], *q[4];
    nt_shape shape[] = { NT_SHAPE(3, 3, 2, 3), NT_SHAPE(27, 4), NT_SHAPE(4), NT_SHAPE(4, 4) };
    for (int k = 0; k < 4; k++) p[k] = values(t, shape[k], 10 + (uint64_t)k, 0.4), q[k] = values(t, shape[k], 20 + (uint64_t)k, 0.4);
    nt_params now = nti_list(p, 4), before = nti_list(q, 4);
    nt_tensor *h = nt_avg_pool(nt_square(nt_conv(x, p[0], NULL)), NT_WINDOW(2, 2), NULL);  // degree 2
    h = nt_add(nt_matmul(nt_flatten(h, 1), p[1]), p[2]);                                  // 3
    nt_tensor *y = nt_mul(nt_matmul(h, p[3]), nt_concat(NT_LIST(nt_slice_axis(h, 1, 2, 4), nt_scale(nt_slice_axis(h, 1, 0, 2), 0.5)), 1)); // 7
    tap_ok(difference(nt_taylor(y, now, before, 7), y) < 1e-13, "a polynomial of degree 7 is its Taylor polynomial of degree 7");
    tap_ok(difference(nt_taylor(y, now, before, 9), y) < 1e-13, "and of degree 9");
    tap_ok(difference(nt_taylor(y, now, before, 6), y) > 1e-6, "but not of degree 6");
    // Kinks: pieces of polynomials, between parameters so near that none is crossed.
    for (int k = 0; k < 4; k++) q[k] = nt_scale(p[k], 1 + 1e-7);
    h = nt_max_pool(nt_relu(nt_conv(x, p[0], NULL)), NT_WINDOW(2, 2), NULL);
    h = nt_leaky_relu(nt_add(nt_matmul(nt_flatten(h, 1), p[1]), p[2]), 0.1);
    y = nt_maximum(nt_matmul(h, p[3]), nt_max_axes(h, NT_AXES(1), 1));
    tap_ok(difference(nt_taylor(y, now, before, 3), y) < 1e-14, "pieces of polynomials");
    double error = difference(nt_taylor(y, now, before, 1), y);
    tap_ok(error > 1e-15 && error < 1e-12, "whose square the linearization lacks: %.1e", error);
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Nested derivatives
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *along(nt_tensor *y, nt_params at, nt_params d) {
    nt_params p = nt_jvp(nti_list(&y, 1), at, d);
    return p.count ? p.items[0] : NULL;
}

// f(q), J d, d'' / 2, d''' / 6 added up to the degree.
static nt_tensor *nested(nt_tensor *y, nt_params now, nt_params before, int degree) {
    nt_tensor *at[GRAPH_VARIABLES], *d[GRAPH_VARIABLES], *sum;
    for (int k = 0; k < now.count; k++) at[k] = nt_scale(before.items[k], 1), d[k] = nt_sub(now.items[k], before.items[k]);
    nt_params here = nti_list(at, now.count), step = nti_list(d, now.count);
    sum = y = nt_substitute(y, now, here);
    for (int k = 1, size = 1; k <= degree; k++) {
        y = along(y, here, step), size *= k;
        sum = nt_add(sum, nt_scale(y, 1.0 / size));
    }
    return sum;
}

static int large(const void *data, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (!(fabs(((const double *)data)[k]) < 1e5)) return 1;
    return 0;
}

static int casts(const nt_tape *t) { // the rounding to f32 in between is not the same in both
    for (const nti_node *n = t->first; n; n = n->next)
        if (n->op == NTI_OP_CAST) return 1;
    return 0;
}

// Every value of the graph, each in a sum of its own.
static nt_tensor *everything(graph *g) {
    nt_tensor *part[GRAPH_POOL];
    int n = 0;
    for (int k = 0; k < g->count; k++)
        if (nt_size(g->pool[k])) part[n++] = nt_mean(g->pool[k]);
    return nt_stack(nti_list(part, n), 0);
}

// 1 right, 0 wrong, -1 left out.
static int one_graph(nt_tape *t, graph *g, uint64_t seed, int degree, double *worst) {
    nt_tensor *before[GRAPH_VARIABLES];
    graph_make(g, t, seed, 3 + (int)(seed % 25), 4, 100, seed % 2 == 0);
    nt_tensor *y = everything(g);
    for (int k = 0; k < g->variables; k++) before[k] = nt_add(g->variable[k], nt_scale(nt_cos(g->variable[k]), 0.5));
    if (!g->variables || casts(t)) return -1;
    nt_params now = nti_list(g->variable, g->variables), then = nti_list(before, g->variables);
    nt_tensor *a = nt_taylor(y, now, then, degree), *b = nested(y, now, then, degree);
    double data[GRAPH_POOL];
    if (!b || nt_eval(b, data) != NT_OK) return tap_note("%s", nt_error(t) ? nt_error(t) : "?"), 0;
    double e = difference(a, b);
    if (large(data, nt_size(y)) || difference(b, nested(y, now, then, degree - 1)) < 1e-6) return -1; // nothing of this degree in it
    if (!(e <= *worst)) *worst = e;
    return e < 1e-12; // relative to the largest; coefficients cancel
}

static void random_graphs(void) {
    int failures = 0, compared[4] = { 0, 0, 0, 0 };
    double worst = 0;
    for (uint64_t seed = 1; seed <= 1000; seed++) {
        nt_tape *t = nt_tape_open(NULL);
        graph *g = (graph *)malloc(sizeof *g);
        int degree = 1 + (int)(seed % 3), right = one_graph(t, g, seed, degree, &worst);
        if (!right) failures++, tap_note("seed %d, degree %d: %s", (int)seed, degree, nt_error(t) ? nt_error(t) : "");
        compared[degree] += right >= 0;
        free(g);
        nt_tape_close(t);
    }
    tap_ok(!failures && compared[1] > 100 && compared[2] > 100 && compared[3] > 100, "%d, %d, %d random graphs of degrees 1, 2, 3 against nested nt_jvp: %.1e", compared[1],
           compared[2], compared[3], worst);
}

// ---------------------------------------------------------------------------------------------------------------------
// Cost
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *network(nt_tape *t, nt_tensor **p, int kind) {
    nt_tensor *x = values(t, NT_SHAPE(5, 4), 3, 1), *h = nt_matmul(x, p[0]);
    if (kind == 0) return nt_matmul(nt_tanh(h), p[1]);
    if (kind == 1) return nt_matmul(nt_gelu_tanh(nt_layer_norm(h, NULL, NULL, 1e-3)), p[1]);
    if (kind == 2) return nt_cross_entropy(nt_matmul(nt_softmax(h, NT_LAST), p[1]), nt_constant(t, NT_I32, NT_SHAPE(5), (const int32_t[]){ 0, 1, 2, 0, 3 }));
    if (kind == 5) {
        nt_tensor *q = nt_reshape(h, NT_SHAPE(1, 5, 2, 2));
        return nt_attention(q, nt_sin(q), nt_reshape(nt_matmul(h, p[1]), NT_SHAPE(1, 5, 2, 2)), NULL, NULL);
    }
    if (kind == 3) return nt_div(nt_sin(h), nt_add_scalar(nt_exp(nt_matmul(h, p[1])), 1));
    return nt_pow(nt_add_scalar(nt_square(h), 1), nt_atan2(nt_matmul(h, p[1]), nt_add_scalar(nt_cos(h), 2)));
}

static void cost(void) {
    static const char *const name[] = { "tanh", "layer norm and gelu", "softmax and cross-entropy", "sin / (exp + 1)", "pow and atan2", "attention" };
    for (int kind = 0; kind < 6; kind++) {
        int count[17];
        for (int degree = 4; degree <= 16; degree *= 2) {
            nt_tape *t = nt_tape_open(NULL);
            nt_tensor *p[2], *q[2];
            for (int k = 0; k < 2; k++) p[k] = values(t, NT_SHAPE(4, 4), 5 + (uint64_t)k, 1), q[k] = values(t, NT_SHAPE(4, 4), 8 + (uint64_t)k, 1);
            nt_tensor *y = network(t, p, kind);
            count[degree] = nodes(t);
            if (!nt_taylor(y, nti_list(p, 2), nti_list(q, 2), degree)) tap_note("%s", nt_error(t));
            count[degree] = nodes(t) - count[degree];
            nt_tape_close(t);
        }
        // A power of the degree: twice the degree gives at most 2^3 times the nodes, with what is constant below.
        tap_ok(count[8] <= 9 * count[4] && count[16] <= 9 * count[8], "%s: nodes for degrees 4, 8, 16: %d, %d, %d", name[kind], count[4], count[8], count[16]);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// What surrounds it
// ---------------------------------------------------------------------------------------------------------------------
static void refused(nt_tape *t, const nt_tensor *y, const char *text) {
    const char *message = nt_error(t);
    tap_ok(!y && message && strstr(message, text), "refused: %s", message ? message : "(no message)");
    nt_error_clear(t);
}

static void surroundings(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = values(t, NT_SHAPE(5, 4), 1, 1), *w = values(t, NT_SHAPE(4, 3), 2, 1), *w0 = values(t, NT_SHAPE(4, 3), 3, 1), *v = values(t, NT_SHAPE(4, 3), 4, 1);
    nt_tensor *y = nt_softmax(nt_tanh(nt_matmul(x, w)), 1), *other = nt_sin(v);
    tap_ok(difference(nt_taylor(y, NT_LIST(w), NT_LIST(w0), 0), nt_substitute(y, NT_LIST(w), NT_LIST(w0))) == 0, "degree 0 is the value at params0");
    tap_ok(difference(nt_taylor(y, NT_LIST(w), NT_LIST(w0), 1), nt_linearize(y, NT_LIST(w), NT_LIST(w0))) == 0, "degree 1 is nt_linearize, to the bit");
    tap_ok(difference(nt_grad(nt_sum(nt_square(nt_taylor(y, NT_LIST(w), NT_LIST(w0), 0))), w), nt_full_like(w, 0)) == 0, "degree 0 does not depend on params");
    tap_ok(difference(nt_taylor(other, NT_LIST(w), NT_LIST(w0), 3), other) == 0, "a value without params in it is itself");
    tap_ok(difference(nt_taylor(w, NT_LIST(w), NT_LIST(w0), 2), w) < 1e-15, "a parameter is itself");
    tap_ok(nt_taylor(y, NT_LIST(w), NT_LIST(w), 4) == y, "params around themselves: the value");
    nt_tensor *both = nt_mul(nt_square(w), nt_sin(w0)); // params0 stand in it as well and stay where they are
    tap_ok(difference(nt_taylor(both, NT_LIST(w), NT_LIST(w0), 2), both) < 1e-14, "params0 in places of their own");
    nt_params many = nt_taylor_many(NT_LIST(y, other, y, nt_sum(y)), NT_LIST(w, v), NT_LIST(w0, v), 3);
    tap_ok(many.count == 4 && difference(many.items[0], nt_taylor(y, NT_LIST(w), NT_LIST(w0), 3)) == 0 && many.items[1] == other && difference(many.items[2], many.items[0]) == 0 &&
               difference(many.items[3], nt_sum(many.items[0])) < 1e-14, "several outputs; a parameter that stays where it is");
    // The polynomial can be differentiated: against differences of it.
    nt_tensor *loss = nt_sum(nt_mul(nt_taylor(y, NT_LIST(w), NT_LIST(w0), 3), nt_cos(x) ? nt_slice_axis(nt_cos(x), 1, 0, 3) : NULL));
    double g[12], *data = (double *)nt_data(w), worst = 0, up, down;
    tap_ok(nt_eval(nt_grad(loss, w), g) == NT_OK, "its gradient");
    for (int k = 0; k < 12; k++) {
        double kept = data[k], h = 1e-5;
        data[k] = kept + h, nt_eval(loss, &up), data[k] = kept - h, nt_eval(loss, &down), data[k] = kept;
        worst = fmax(worst, fabs(g[k] - (up - down) / (2 * h)));
    }
    tap_ok(worst < 1e-8, "against differences: %.1e", worst);
    nt_tensor *f32 = nt_tanh(nt_cast(w, NT_F32));
    tap_ok(difference(nt_taylor(f32, NT_LIST(w), NT_LIST(w0), 3), nt_cast(nt_taylor(nt_tanh(w), NT_LIST(w), NT_LIST(w0), 3), NT_F32)) < 1e-13, "through a cast (1e-5 of f32)");
    refused(t, nt_taylor(y, NT_LIST(w), NT_LIST(w0), -1), "nt_taylor: the degree is -1");
    refused(t, nt_taylor(y, NT_LIST(w), NT_LIST(w0), INT32_MAX), "nt_taylor: the degree is 2147483647");
    refused(t, nt_taylor(y, NT_LIST(w), NT_LIST(x), 2), "nt_taylor: value of params0 0");
    refused(t, nt_taylor(y, NT_LIST(w, v), NT_LIST(w0), 2), "nt_taylor: 1 value");
    refused(t, nt_taylor(nt_argmax(w, 0), NT_LIST(w), NT_LIST(w0), 2), "nt_taylor: output 0");
    tap_ok(!nt_taylor(NULL, NT_LIST(w), NT_LIST(x), 2) && !nt_error(t), "NULL passes quietly");
    nt_tape_close(t);
}

// Every size of the host's array, from too small to enough: an error that names the bytes, or the value.
static void shortage(void) {
    int wrong = 0, enough = 0, failed = 0;
    for (size_t size = 20000; size < 400000 && enough < 3; size += 997) {
        nt_tape_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.memory = malloc(size), desc.memory_size = size;
        nt_tape *t = nt_tape_open(&desc);
        nt_tensor *p[2] = { NULL, NULL }, *q[2] = { NULL, NULL };
        for (int k = 0; k < 2 && t; k++) p[k] = values(t, NT_SHAPE(4, 4), 5 + (uint64_t)k, 1), q[k] = values(t, NT_SHAPE(4, 4), 8 + (uint64_t)k, 1);
        nt_tensor *y = t && q[1] ? network(t, p, 1) : NULL, *z = y ? nt_taylor(y, nti_list(p, 2), nti_list(q, 2), 4) : NULL;
        if (z) enough++;
        else failed++, wrong += t && nt_error_status(t) != NT_ERROR_MEMORY;
        nt_tape_close(t);
        free(desc.memory);
    }
    tap_ok(!wrong && enough == 3 && failed > 10, "%d arrays that are too small, each an error of memory", failed);
}

int main(void) {
    closed_forms();
    other_operations();
    matrices();
    polynomials();
    random_graphs();
    cost();
    surroundings();
    shortage();
    return tap_end();
}
