// Every layer's infinite-width rule against the layer's own finite network: the kernels of random networks of width 1,024
// (`build/test_finite_width all`; without it, some of them at width 128) have the mean that nt_kernel says, and not the one that it says of
// a network with a mistake in it. `build/test_finite_width all NAME`: the rows whose names begin so. Two images against themselves, or
// (APART) against three others, the first of which is a copy of one of the two.
#define _POSIX_C_SOURCE 200809L
#include "nttrain.h"
#include "pool.h"
#include "wide_nets.h"
#include <math.h>

#define CLEAR(d) memset(&(d), 0, sizeof(d))

// The mean over networks differs from the limit by chance, five standard errors of the mean at most, and by the width. The first layer
// makes its outputs Gaussian with a covariance that does not depend on the weights, so the mean over the units after one nonlinearity is
// right at any width, and so is what linear layers with weights of their own make of it. But the next nonlinearity takes a covariance that
// is random, q (1 + e) with E e^2 = (E f^4 / (E f^2)^2 - 1) / width, f the one before: 5 / width for relu and less for what is bounded. Of
// a function K of the covariance the mean moves by q^2 K'' E e^2 / 2: in units of K, with |q^2 K''| <= 2 K, by 5 / width for each
// nonlinearity but the first. `bent` counts them on the longest path: activations, norms, and attention twice, as its weights and their
// product with the values are products of random covariances. Units of an entry: the root of the product of its two outputs' variances.
#define BIAS 5.0
#define ERRORS 5.0

enum { QUICK = 1, TRAIN = 2, GRAPH = 4, EDGES = 8, MASKS = 16, ATTENTION = 32, APART = 64, HAND = 128 };
typedef struct row {
    const char *name, *net; // N: the width
    const char *mistake;    // "this>that" in the net: the kernel of that is told from the finite networks of this. NULL: nothing is hidden
    int rank;
    int64_t size[4];
    int flags, bent, networks;
} row;

#define ONE(f) "(serial (dense N W=1.5 b=0.3) " f ")"
#define C1 "(conv N (3) (1) SAME W=1.4 b=0.3) (relu) "
#define C2 "(conv N (2 2) (1 1) SAME W=1.4 b=0.3) (relu) "
#define D1 "(dense N W=1.4 b=0.3) (relu) "
#define ATTEND_SHOWN(keys) \
    "(serial (mask) (dense N b=0.4) (shown_attention N N N 1 W_key=1.5 W_query=1.2 W_value=0.9 W_out=1.1 " keys ") (mask))"
#define ATTEND(keys) "(serial (dense N b=0.4) (attention N N N 1 W_key=1.5 W_query=1.2 W_value=0.9 W_out=1.1 " keys "))"

// clang-format off
static const row rows[] = {
    // Activations
    { "relu", ONE("(relu)"), "relu>abs", 1, { 4 }, QUICK, 0, 500 },
    { "leaky relu", ONE("(leaky_relu 0.2)"), "0.2>0.3", 1, { 4 }, 0, 0, 500 },
    { "abrelu", ONE("(abrelu -0.3 0.7)"), "-0.3>0.3", 1, { 4 }, 0, 0, 500 },
    { "abs", ONE("(abs)"), "abs>identity", 1, { 4 }, 0, 0, 500 },
    { "sign", ONE("(sign)"), "sign>erf b=3", 1, { 4 }, QUICK, 0, 500 },
    { "erf", ONE("(erf a=1.3 b=0.8 c=0.4)"), "c=0.4>c=0.2", 1, { 4 }, 0, 0, 500 },
    { "sigmoid_like", ONE("(sigmoid_like)"), "sigmoid_like>erf a=0.5 b=0.45 c=0.5", 1, { 4 }, 0, 0, 500 },
    { "gelu", ONE("(gelu)"), "gelu>relu", 1, { 4 }, QUICK, 0, 500 },
    { "sin", ONE("(sin a=1.2 b=1.1 c=0.4)"), "c=0.4>c=0.3", 1, { 4 }, 0, 0, 500 },
    { "cos", ONE("(cos a=1.2 b=1.1 c=0.4)"), "cos>sin", 1, { 4 }, 0, 0, 500 },
    { "rbf", ONE("(rbf gamma=0.6)"), "0.6>0.7", 1, { 4 }, 0, 0, 500 },
    { "exp", ONE("(exp a=1.2 b=-0.4)"), "-0.4>-0.5", 1, { 4 }, 0, 0, 500 },
    { "gaussian", ONE("(gaussian a=1.3 b=-0.7)"), "-0.7>-0.9", 1, { 4 }, 0, 0, 500 },
    { "gaussian that grows", ONE("(gaussian a=1.3 b=0.05)"), "0.05>0.1", 1, { 4 }, 0, 0, 500 },
    { "gabor", ONE("(gabor)"), "gabor>sin", 1, { 4 }, 0, 0, 500 },
    { "relu6", "(serial (dense N W=4 b=1) (relu6))", "relu6>relu", 1, { 4 }, QUICK, 0, 500 },
    { "hard_tanh", ONE("(hard_tanh)"), "hard_tanh>piecewise_linear -1.1 1.1 0 1 0", 1, { 4 }, 0, 0, 500 },
    { "hard_sigmoid", "(serial (dense N W=4 b=1) (hard_sigmoid))", "hard_sigmoid>piecewise_linear zero=0.5 -3 3 0 0.19 0", 1, { 4 }, 0, 0, 500 },
    { "piecewise linear", ONE("(piecewise_linear zero=0.2 -2 -0.5 0.25 1.5 0.1 0.9 -0.3 0.7 1.3)"), "0.9>0.8", 1, { 4 }, 0, 0, 500 },
    { "monomial 0", ONE("(monomial 0)"), "monomial 0>identity", 1, { 4 }, 0, 0, 10 },
    { "monomial 1", ONE("(monomial 1)"), "1)>3)", 1, { 4 }, 0, 0, 500 },
    { "monomial 2", ONE("(monomial 2)"), "2)>3)", 1, { 4 }, 0, 0, 500 },
    { "monomial 3", ONE("(monomial 3)"), "3)>2)", 1, { 4 }, 0, 0, 500 },
    { "monomial 5", ONE("(monomial 5)"), "5)>4)", 1, { 4 }, 0, 0, 2000 },
    { "rectified monomial 0", ONE("(rectified_monomial 0)"), "0)>1)", 1, { 4 }, 0, 0, 500 },
    { "rectified monomial 1", ONE("(rectified_monomial 1)"), "1)>2)", 1, { 4 }, 0, 0, 500 },
    { "rectified monomial 2", ONE("(rectified_monomial 2)"), "2)>3)", 1, { 4 }, 0, 0, 500 },
    { "rectified monomial 3", ONE("(rectified_monomial 3)"), "3)>2)", 1, { 4 }, 0, 0, 500 },
    { "polynomial", ONE("(polynomial 0.2 1 -0.4 0.1)"), "-0.4>-0.3", 1, { 4 }, 0, 0, 500 },
    { "hermite 2", ONE("(layer_norm) (hermite 2)"), "hermite 2>hermite 3", 1, { 4 }, 0, 1, 500 },
    { "hermite 3", ONE("(layer_norm) (hermite 3)"), "hermite 3>hermite 1", 1, { 4 }, 0, 1, 500 },
    { "tanh", ONE("(elementwise_numerical tanh 1)"), "tanh>arctan", 1, { 4 }, QUICK, 0, 500 },
    { "sigmoid", ONE("(elementwise_numerical sigmoid 1)"), "sigmoid>tanh", 1, { 4 }, 0, 0, 500 },
    { "softplus", ONE("(elementwise_numerical softplus 1)"), "softplus>silu", 1, { 4 }, 0, 0, 500 },
    { "silu", ONE("(elementwise_numerical silu 1)"), "silu>gelu_tanh", 1, { 4 }, 0, 0, 500 },
    { "gelu_tanh", ONE("(elementwise_numerical gelu_tanh 1)"), "gelu_tanh>silu", 1, { 4 }, 0, 0, 500 },
    { "elu", ONE("(elementwise_numerical elu 1)"), "elu 1>elu 1 alpha=0.8", 1, { 4 }, 0, 0, 500 },
    { "elu of 0.5", ONE("(elementwise_numerical elu 1 alpha=0.5)"), "0.5>0.6", 1, { 4 }, 0, 0, 500 },
    { "selu", ONE("(elementwise_numerical selu 1)"), "selu>elu", 1, { 4 }, 0, 0, 500 },
    { "mish", ONE("(elementwise_numerical mish 1)"), "mish>softplus", 1, { 4 }, 0, 0, 500 },
    { "soft_sign", ONE("(elementwise_numerical softsign 1)"), "softsign>tanh", 1, { 4 }, 0, 0, 500 },
    { "log_sigmoid", ONE("(elementwise_numerical log_sigmoid 1)"), "log_sigmoid>silu", 1, { 4 }, 0, 0, 500 },
    { "atan", ONE("(elementwise_numerical arctan 1)"), "arctan>tanh", 1, { 4 }, 0, 0, 500 },
    { "a function of the host's", ONE("(bump)"), "bump>gabor", 1, { 4 }, 0, 0, 500 },
    // Dense layers and their numbers
    { "dense", "(serial (dense N W=1.5 b=0.3) (relu) (dense N W=1.2 b=0.2) (erf) (dense N W=1.1))", "W=1.2>W=1.4", 1, { 4 }, QUICK, 1, 60 },
    { "dense, standard", "(serial (dense N W=1.5 b=0.3 par=standard) (relu) (dense N W=1.2 b=0.2 par=standard))", "W=1.2>W=1.5", 1, { 4 }, QUICK, 0, 60 },
    { "dense, standard, s", "(serial (dense N W=1.5 b=0.3 par=standard s1=2) (relu) (dense N W=1.2 b=0.2 par=standard s0=2))", "s0=2>s0=1", 1, { 4 }, 0, 0, 30 },
    { "dense, a bias that begins at 0", "(serial (dense N W=1.5 b=0 par=standard) (relu))", "b=0>b=none", 1, { 4 }, 0, 0, 500 },
    { "dense, a bias of factor 0", "(serial (dense N W=1.5 b=0) (relu) (dense N W=1.2 b=0))", "b=0>b=0.5", 1, { 4 }, 0, 0, 30 },
    { "dense, flax's numbers", "(serial (dense N W=1.5 b=0.3) (relu) (flax N) (relu))", "flax N>dense N", 1, { 4 }, 0, 1, 30 },
    { "flatten first", "(serial (flatten) (dense N W=1.5 b=0.3) (relu))", "(relu)>(abs)", 3, { 2, 3, 2 }, 0, 0, 300 },
    { "repeated", "(serial (dense N W=1.5 b=0.3) (repeat 2 (serial (relu) (dense N W=1.2 b=0.2))))", "repeat 2>repeat 3", 1, { 4 }, 0, 1, 60 },
    // Convolutions
    { "conv SAME", "(serial " C1 "(conv N (3) (1) SAME W=1.2 b=0.1))", "SAME W=1.2>CIRCULAR W=1.2", 2, { 5, 2 }, QUICK, 0, 30 },
    { "conv VALID, stride", "(serial " C1 "(conv N (2) (2) VALID W=1.2 b=0.1) (flatten))", "(2) VALID>(1) VALID", 2, { 6, 2 }, 0, 0, 30 },
    { "conv SAME, stride", "(serial " C1 "(conv N (3) (2) SAME W=1.2 b=0.1))", "(2) SAME>(2) CIRCULAR", 2, { 6, 2 }, 0, 0, 30 },
    { "conv CIRCULAR, stride", "(serial " C1 "(conv N (3) (2) CIRCULAR W=1.2))", "CIRCULAR>SAME", 2, { 5, 2 }, QUICK, 0, 30 },
    { "conv, dilation", "(serial " C1 "(conv N (2) (1) SAME W=1.2 dilation=2))", "=2)>=1)", 2, { 5, 2 }, QUICK, 0, 30 },
    { "conv, padding by number", "(serial " C1 "(padded N (3) 2 2 0))", "2 2 0>2 1 1", 2, { 5, 2 }, 0, 0, 30 },
    { "conv CIRCULAR, centred", "(serial " C1 "(centred N (4) 2))", "(centred N (4) 2)>(padded N (4) 2 1 2)", 2, { 5, 2 }, 0, 0, 30 },
    { "conv of two axes", "(serial " C2 "(conv N (1 3) (2 1) SAME W=1.2 b=0.1))", "(1 3)>(3 1)", 3, { 3, 4, 2 }, 0, 0, 30 },
    { "conv of three axes", "(serial (conv N (2 2 2) (1 1 1) SAME W=1.4 b=0.3) (relu) (conv N (2 1 2) (1 1 1) CIRCULAR W=1.2 b=0.1))", "(2 1 2)>(2 2 1)", 4, { 2, 2, 3, 2 }, 0, 0, 12 },
    { "conv, standard", "(serial (conv N (3) (1) SAME W=1.4 b=0.3 par=standard) (relu) (conv N (2) (1) VALID W=1.2 b=0.1 par=standard))", "W=1.2>W=1.6", 2, { 4, 2 }, 0, 0, 30 },
    { "conv, standard, s", "(serial (conv N (3) (1) SAME W=1.4 par=standard s1=2) (relu) (conv N (2) (2) VALID W=1.2 par=standard s0=2))", "s0=2>s0=1", 2, { 4, 2 }, 0, 0, 12 },
    { "conv, flax's numbers", "(serial " C1 "(flax_conv N (2)) (relu))", "(flax_conv N (2))>(conv N (2) (1) SAME W=1.5)", 2, { 4, 2 }, 0, 1, 30 },
    { "conv_local", "(serial " C1 "(conv_local N (2) (1) VALID W=1.2 b=0.1))", "conv_local>conv", 2, { 4, 2 }, QUICK, 0, 12 },
    { "conv_local first", "(serial (conv_local N (2 2) (1 2) SAME W=1.4 b=0.3) (relu) (sum_pool (2 2) (1 1) SAME))", "conv_local>conv", 3, { 3, 4, 2 }, 0, 0, 200 },
    { "conv_local, standard", "(serial (conv_local N (2) (1) SAME W=1.4 b=0.3 par=standard) (relu) (global_avg_pool) (dense N))", "conv_local>conv", 2, { 5, 2 }, 0, 0, 40 },
    { "conv_transpose SAME", "(serial " C1 "(conv_transpose N (3) (2) SAME W=1.2 b=0.1))", "SAME W=1.2>CIRCULAR W=1.2", 2, { 3, 2 }, QUICK, 0, 30 },
    { "conv_transpose VALID", "(serial " C1 "(conv_transpose N (3) (2) VALID W=1.2 b=0.1))", "W=1.2>W=1.4", 2, { 3, 2 }, 0, 0, 30 },
    { "conv_transpose CIRCULAR", "(serial " C1 "(conv_transpose N (3) (2) CIRCULAR W=1.2))", "CIRCULAR>SAME", 2, { 3, 2 }, 0, 0, 30 },
    { "conv_transpose, padding by number", "(serial " C1 "(padded_transpose N (3) 2 2 1))", "2 2 1>2 1 2", 2, { 3, 2 }, 0, 0, 30 },
    { "conv_transpose, dilation", "(serial " C1 "(conv_transpose N (2) (2) SAME W=1.2 dilation=3))", "W=1.2>W=1.5", 2, { 3, 2 }, 0, 0, 30 },
    { "conv_transpose of two axes", "(serial (conv_transpose N (2 3) (2 1) SAME W=1.4 b=0.3) (relu) (dense N W=1.2))", "(2 3)>(2 2)", 3, { 2, 3, 2 }, 0, 0, 30 },
    { "conv_transpose, standard", "(serial " C1 "(conv_transpose N (2) (2) SAME W=1.2 b=0.1 par=standard))", "W=1.2>W=1.5", 2, { 3, 2 }, 0, 0, 30 },
    // Pools and what else has no weights
    { "avg_pool SAME", "(serial " C1 "(avg_pool (3) (2) SAME))", "(2) SAME>(2) SAME normalize_edges=1", 2, { 6, 2 }, QUICK, 0, 300 },
    { "avg_pool, normalized edges", "(serial " C1 "(avg_pool (3) (1) SAME normalize_edges=1))", "=1)>=0)", 2, { 5, 2 }, QUICK, 0, 300 },
    { "avg_pool VALID", "(serial " C1 "(avg_pool (3) (2) VALID))", "W=1.4>W=1.6", 2, { 7, 2 }, 0, 0, 300 },
    { "avg_pool CIRCULAR", "(serial " C1 "(avg_pool (3) (1) CIRCULAR))", "CIRCULAR>SAME", 2, { 5, 2 }, 0, 0, 300 },
    { "avg_pool of two axes", "(serial " C2 "(avg_pool (2 3) (1 2) SAME normalize_edges=1))", "=1)>=0)", 3, { 3, 4, 2 }, 0, 0, 200 },
    { "avg_pool of three axes", "(serial (conv N (2 2 2) (1 1 1) SAME W=1.4 b=0.3) (relu) (avg_pool (2 1 2) (1 1 1) SAME))", "(2 1 2)>(2 2 1)", 4, { 2, 2, 3, 2 }, 0, 0, 150 },
    { "sum_pool SAME", "(serial " C1 "(sum_pool (2) (2) SAME))", "sum_pool>avg_pool", 2, { 5, 2 }, 0, 0, 300 },
    { "sum_pool VALID", "(serial " C2 "(sum_pool (2 3) (1 1) VALID))", "sum_pool>avg_pool", 3, { 3, 4, 2 }, 0, 0, 200 },
    { "sum_pool CIRCULAR", "(serial " C1 "(sum_pool (3) (2) CIRCULAR))", "(2) CIRCULAR>(2) SAME", 2, { 5, 2 }, 0, 0, 300 },
    { "pooled before", "(serial (conv N (3) (1) SAME W=1.4 b=0.3) (avg_pool (2) (1) SAME) (relu))", "(avg_pool>(sum_pool", 2, { 5, 2 }, 0, 0, 300 },
    { "global_avg_pool", "(serial " C2 "(global_avg_pool))", "global_avg_pool>flatten", 3, { 3, 4, 2 }, QUICK, 0, 300 },
    { "global_sum_pool", "(serial " C2 "(global_sum_pool))", "global_sum_pool>global_avg_pool", 3, { 3, 4, 2 }, 0, 0, 300 },
    { "flatten", "(serial " C2 "(flatten))", "flatten>global_avg_pool", 3, { 3, 4, 2 }, QUICK, 0, 300 },
    { "upsample", "(serial " C1 "(upsample (2)))", "W=1.4>W=1.6", 2, { 3, 2 }, 0, 0, 300 },
    { "upsample of two axes", "(serial " C2 "(upsample (1 3)) (flatten) (dense N))", "flatten>global_avg_pool", 3, { 3, 2, 2 }, 0, 0, 8 },
    { "layer_norm", "(serial (dense N W=1.5 b=0.3) (layer_norm) (relu))", "(layer_norm)>(identity)", 1, { 4 }, QUICK, 1, 300 },
    { "layer_norm, eps", "(serial (dense N W=1.5 b=0.3) (layer_norm eps=0.5) (relu))", "0.5>0.3", 1, { 4 }, 0, 1, 300 },
    { "layer_norm of channels", "(serial (conv N (3) (1) SAME W=1.4 b=0.3) (layer_norm) (erf))", "(layer_norm)>(layer_norm (1 -1))", 2, { 5, 2 }, 0, 1, 300 },
    { "layer_norm of positions", "(serial (conv N (2 2) (1 1) SAME W=1.4 b=0.3) (layer_norm (1 -1)) (relu))", "(1 -1)>(2 -1)", 3, { 3, 4, 2 }, 0, 1, 200 },
    { "dropout", "(serial (dense N W=1.5 b=0.3) (relu) (dropout 0.6) (dense N W=1.2) (relu))", "0.6>0.8", 1, { 4 }, TRAIN | QUICK, 1, 60 },
    { "dropout of positions", "(serial " C1 "(dropout 0.6))", "0.6>0.7", 2, { 4, 2 }, TRAIN, 0, 200 },
    { "dropout, averaged", "(serial " C1 "(dropout 0.6) (global_avg_pool) (dense N))", "0.6>0.3", 2, { 4, 2 }, TRAIN, 0, 40 },
    { "dropout, evaluated", "(serial (dense N W=1.5 b=0.3) (relu) (dropout 0.6))", "relu>abs", 1, { 4 }, 0, 0, 300 },
    { "identity", "(serial (dense N W=1.5 b=0.3) (identity) (relu) (identity))", "(relu)>(identity)", 1, { 4 }, 0, 0, 300 },
    { "tokens", "(serial " C1 "(tokens) (dense N W=1.2))", "W=1.2>W=1.5", 2, { 3, 2 }, 0, 0, 60 },
    // Branches
    { "fan_in_sum", "(serial (fan_out 2) (parallel (serial (dense N b=0.3) (relu) (dense N W=1.3)) (dense N b=0.4)) (fan_in_sum) (relu))", "W=1.3>W=1.6", 1, { 4 }, QUICK, 1, 40 },
    { "fan_in_sum, residual", "(serial (conv N (2) (1) SAME W=1.3) (fan_out 2) (parallel (identity) (serial (relu) (conv N (2) (1) SAME))) (fan_in_sum))", "(identity)>(conv N (1) (1) SAME)", 2, { 4, 2 }, 0, 0, 30 },
    { "residual", "(serial (dense N W=1.3 b=0.3) (residual (serial (relu) (dense N W=1.4 b=0.2))) (relu))", "W=1.4>W=1.8", 1, { 4 }, 0, 1, 40 },
    { "fan_in_prod", "(serial (fan_out 2) (parallel (serial (dense N b=0.3) (relu)) (dense N b=0.4)) (fan_in_prod))", "(fan_in_prod)>(fan_in_sum)", 1, { 4 }, QUICK, 0, 500 },
    { "fan_in_prod of three", "(serial (fan_out 3) (parallel (conv N (2) (1) SAME b=0.3) (serial (dense N b=0.4) (erf)) (serial (dense N W=1.3 b=0.2) (relu))) (fan_in_prod))", "W=1.3>W=1.5", 2, { 3, 2 }, 0, 0, 500 },
    { "fan_in_concat", "(serial (fan_out 2) (parallel (serial (dense N b=0.3) (relu)) (dense 256 W=1.5)) (fan_in_concat -1))", "256>512", 1, { 4 }, QUICK, 0, 300 },
    { "fan_in_concat of positions", "(serial (fan_out 2) (parallel (conv N (2) (1) SAME W=1.3) (dense N b=0.4)) (fan_in_concat 1) (relu))", "W=1.3>W=1.6", 2, { 3, 2 }, 0, 0, 300 },
    // Linear maps
    { "image_resize, larger", "(serial " C1 "(image_resize (7)))", "(image_resize (7))>(image_resize (7) method=nearest)", 2, { 4, 2 }, QUICK, 0, 300 },
    { "image_resize, smaller", "(serial " C1 "(image_resize (3)))", "(3)))>(3) antialias=0))", 2, { 7, 2 }, 0, 0, 300 },
    { "image_resize, not smoothed", "(serial " C1 "(image_resize (3) antialias=0))", "=0))>=1))", 2, { 7, 2 }, 0, 0, 300 },
    { "image_resize, nearest", "(serial " C1 "(image_resize (6) method=nearest))", "nearest>linear", 2, { 4, 2 }, 0, 0, 300 },
    { "image_resize of two axes", "(serial " C2 "(image_resize (5 2)))", "W=1.4>W=1.6", 3, { 3, 4, 2 }, 0, 0, 200 },
    { "dot_general, a number", "(serial " C1 "(dot_general 1.3) (dense N))", "1.3>1.6", 2, { 3, 2 }, 0, 0, 60 },
    { "dot_general, a matrix", "(serial " C2 "(mix 2 3 4))", "(mix 2 3 4)>(index : : 0:3 :)", 3, { 2, 4, 2 }, QUICK, 0, 300 },
    { "index", "(serial " C1 "(index : 1:5:2 :))", "1:5:2>0:4:2", 2, { 6, 2 }, QUICK, 0, 300 },
    { "index of two axes", "(serial " C2 "(index : 1 ::-1 :))", "::-1>:", 3, { 3, 4, 2 }, 0, 0, 200 },
    { "index, a range of rows, one of columns", "(serial " C2 "(index : 1:3 :2 :))", "1:3 :2>1:3 2:", 3, { 3, 4, 2 }, 0, 0, 100 },
    { "index, steps of both axes", "(serial " C2 "(index : ::2 1::2 :) (conv N (2 1) (1 1) SAME W=1.2))", "1::2>::2", 3, { 3, 4, 2 }, 0, 0, 10 },
    { "index, backwards with a step", "(serial " C2 "(index : ::-2 3:0:-1 :))", "3:0:-1>1:4", 3, { 3, 4, 2 }, 0, 0, 100 },
    { "index, counted from the end", "(serial " C2 "(index : -2: -3:-1 :))", "-3:-1>-2:", 3, { 3, 4, 2 }, QUICK, 0, 100 },
    { "index, a row", "(serial " C2 "(index : -1 : :) (conv N (3) (1) SAME W=1.2 b=0.1))", "-1 :>-2 :", 3, { 3, 4, 2 }, 0, 0, 10 },
    { "index, a column", "(serial " C2 "(index : : 1 :))", "1 :)>2 :)", 3, { 3, 4, 2 }, 0, 0, 100 },
    { "index, a pixel", "(serial " C2 "(index : 2 -1 :) (dense N))", "-1>-2", 3, { 3, 4, 2 }, 0, 0, 20 },
    { "index of three axes", "(serial (conv N (2 2 2) (1 1 1) SAME W=1.4 b=0.3) (relu) (index : 1 : ::-2 :))", "1 :>0 :", 4, { 2, 2, 3, 2 }, 0, 0, 150 },
    { "index of images", "(serial " C2 "(index ::-1 1: :3 :))", "(index ::-1>(index :", 3, { 3, 4, 2 }, HAND, 0, 100 },
    { "index of pixels, before", "(serial (index : :2 1: :) (conv N (2 2) (1 1) SAME W=1.4 b=0.3) (relu))", ":2 1:>1: 1:", 3, { 3, 4, 2 }, 0, 0, 100 },
    { "aggregate", "(serial (dense N W=1.4 b=0.3) (relu) (aggregate) (dense N b=0.2))", "(aggregate) >", 2, { 4, 2 }, GRAPH | QUICK, 0, 40 },
    { "aggregate, two axes", "(serial " C2 "(aggregate))", "(aggregate)>(identity)", 3, { 2, 3, 2 }, GRAPH, 0, 200 },
    { "aggregate, sparse", "(serial (dense N W=1.4 b=0.3) (relu) (aggregate implementation=sparse) (dense N b=0.2) (relu))", "(aggregate implementation=sparse)>(identity)", 2, { 4, 2 }, EDGES, 1, 40 },
    // Masks
    { "masks", "(serial (mask) (conv N (3) (1) SAME W=1.4 b=0.3) (mask) (relu) (conv N (3) (1) SAME W=1.2 b=0.2) (mask))", "SAME W=1.2>CIRCULAR W=1.2", 2, { 5, 2 }, MASKS | QUICK, 0, 40 },
    { "masks, pooled", "(serial (mask) (conv N (3) (1) SAME W=1.4 b=0.3) (mask) (erf c=0.4) (mask) (avg_pool (3) (1) SAME) (mask) (shown_mean))", "avg_pool (3)>avg_pool (2)", 2, { 5, 2 }, MASKS, 0, 300 },
    { "masks, attention", "(serial (mask) (dense N b=0.4) (mask) (attention N N N 1 W_key=1.5 b=0.3 mechanism=relu) (mask))", "W_key=1.5>W_key=2.5", 2, { 4, 2 }, MASKS | ATTENTION, 2, 20 },
    { "masks, attention, softmax", ATTEND_SHOWN("b=0.3"), NULL, 2, { 4, 2 }, MASKS | ATTENTION, 2, 20 },
    { "masks, attention, identity", ATTEND_SHOWN("mechanism=identity"), NULL, 2, { 4, 2 }, MASKS | ATTENTION, 2, 20 },
    { "masks, attention, abs", ATTEND_SHOWN("mechanism=abs b=0.3"), NULL, 2, { 4, 2 }, MASKS | ATTENTION, 2, 20 },
    { "masks, attention, positions", ATTEND_SHOWN("pos=sum W_pos=1.1 val_pos=0"), "val_pos=0>val_pos=1", 2, { 4, 2 }, MASKS | ATTENTION | QUICK, 2, 20 },
    { "masks, attention, positions of values", ATTEND_SHOWN("mechanism=identity pos=sum W_pos=1.1 val_pos=1"), NULL, 2, { 4, 2 }, MASKS | ATTENTION, 2, 20 },
    // Attention
    { "attention, softmax", ATTEND("b=0.3"), "b=0.3>b=0.3 mechanism=relu", 2, { 4, 2 }, ATTENTION | QUICK, 2, 20 },
    { "attention, identity", ATTEND("mechanism=identity"), "identity>softmax", 2, { 4, 2 }, ATTENTION, 2, 20 },
    { "attention, abs", ATTEND("mechanism=abs b=0.3"), "abs>relu", 2, { 4, 2 }, ATTENTION, 2, 20 },
    { "attention, relu", ATTEND("mechanism=relu b=0.3"), "relu>abs", 2, { 4, 2 }, ATTENTION, 2, 20 },
    { "attention of two axes", ATTEND("pos=sum decay=exp alpha=0.7 p=1"), "alpha=0.7>alpha=0.2", 3, { 2, 2, 2 }, ATTENTION, 2, 20 },
    { "attention, sqrt", "(serial (dense N b=0.4) (attention N 4 4 256 W_key=1.2 W_query=1.1 scaling=sqrt mechanism=identity b=0.3))", "W_key=1.2>W_key=1.6", 2, { 3, 2 }, ATTENTION, 2, 30 },
    { "attention, sqrt, positions", "(serial (dense N b=0.4) (attention N 4 4 256 W_key=1.2 scaling=sqrt mechanism=identity pos=sum decay=exp alpha=0.5 W_pos=0.9))", "W_pos=0.9>W_pos=1.4", 2, { 3, 2 }, ATTENTION, 2, 30 },
    { "attention, sqrt, positions of values", "(serial (dense N b=0.4) (attention N 4 4 256 W_key=1.2 scaling=sqrt mechanism=identity pos=concat n_pos=N decay=inv val_pos=1))", "val_pos=1>val_pos=0", 2, { 3, 2 }, ATTENTION, 2, 30 },
    { "attention, positions summed", ATTEND("pos=sum b=0.3 W_pos=1.3"), "W_pos=1.3>W_pos=0.8", 2, { 4, 2 }, ATTENTION, 2, 20 },
    { "attention, positions beside", ATTEND("pos=concat n_pos=N decay=exp alpha=0.5"), "alpha=0.5>alpha=2.5", 2, { 4, 2 }, ATTENTION, 2, 20 },
    { "attention, positions of values", ATTEND("pos=sum decay=inv alpha=0.7 val_pos=1"), "val_pos=1>val_pos=0", 2, { 4, 2 }, ATTENTION, 2, 20 },
    // Together
    { "dense, five kinds", "(serial (dense N W=0.8 b=0.1) (sin) (dense N b=0.1) (exp a=0.8 b=0.4) (dense N W=0.9) (polynomial 0.2 1 -0.4) (dense N))", "-0.4>-0.8", 1, { 4 }, 0, 2, 60 },
    { "convolutions, flatten", "(serial (conv N (3) (1) SAME W=1.3 b=0.1) (relu) (conv N (2) (2) VALID W=1.1) (relu) (flatten) (dense N))", "W=1.1>W=1.4", 2, { 5, 2 }, 0, 1, 20 },
    { "circular, pools", "(serial (conv N (3) (1) CIRCULAR W=1.3 b=0.1) (relu) (avg_pool (2) (2) SAME) (conv N (3) (1) SAME) (abs) (global_avg_pool) (dense N))", "CIRCULAR>SAME", 2, { 6, 2 }, 0, 1, 20 },
    { "transposed, skips", "(serial (conv N (3) (1) SAME W=1.3 b=0.1) (relu) (fan_out 2) (parallel (identity) (serial (conv N (2) (2) SAME) (relu)"
      " (conv_transpose N (2) (2) SAME b=0.1) (relu))) (fan_in_concat -1) (conv N (3) (1) SAME) (relu) (global_avg_pool) (dense N))", "W=1.3>W=1.6", 2, { 4, 2 }, 0, 3, 12 },
    { "local, residual, resized", "(serial (conv_local N (3) (1) SAME W=1.3) (fan_out 2) (parallel (identity) (serial (relu) (conv N (3) (1) SAME))) (fan_in_sum)"
      " (relu) (image_resize (7)) (dense N) (relu) (global_avg_pool) (dense N))", "W=1.3>W=1.7", 2, { 4, 2 }, 0, 2, 20 },
    { "relu6, hard sigmoid, pools", "(serial (conv N (3) (1) SAME W=4 b=1) (relu6) (avg_pool (2) (1) SAME) (conv N (2) (1) SAME W=1.4) (hard_sigmoid) (global_avg_pool) (dense N))", "hard_sigmoid>relu6", 2, { 5, 2 }, 0, 2, 20 },
    { "index, sign, sum", "(serial (dense N W=1.3 b=0.1) (relu) (index : 1:4 :) (dense N) (sign) (global_sum_pool) (dense N))", "1:4>0:3", 2, { 5, 2 }, 0, 1, 20 },
    // Two images against three others
    { "x1, x2: dense", "(serial (dense N W=1.5 b=0.3) (relu) (dense N W=1.2 b=0.2) (erf) (dense N W=1.1))", "W=1.2>W=1.4", 1, { 4 }, APART | QUICK, 1, 30 },
    { "x1, x2: dense, standard", "(serial (dense N W=1.5 b=0.3 par=standard) (gelu) (dense N W=1.2 b=0.2 par=standard))", "W=1.2>W=1.5", 1, { 4 }, APART, 0, 20 },
    { "x1, x2: odd and even", ONE("(sin a=1.2 b=1.1 c=0.4)"), "c=0.4>c=0.3", 1, { 4 }, APART, 0, 500 },
    { "x1, x2: numerical", ONE("(elementwise_numerical softplus 1)"), "softplus>silu", 1, { 4 }, APART, 0, 500 },
    { "x1, x2: conv", "(serial " C2 "(conv N (1 3) (2 1) SAME W=1.2 b=0.1))", "(1 3)>(3 1)", 3, { 2, 3, 2 }, APART | QUICK, 0, 20 },
    { "x1, x2: conv, flattened", "(serial " C1 "(conv N (2) (2) VALID W=1.2 b=0.1) (relu) (flatten) (dense N))", "(2) VALID>(1) VALID", 2, { 6, 2 }, APART, 1, 10 },
    { "x1, x2: conv, averaged", "(serial " C2 "(global_avg_pool) (dense N W=1.2))", "global_avg_pool>flatten", 3, { 3, 4, 2 }, APART, 0, 20 },
    { "x1, x2: conv_local", "(serial (conv_local N (2 2) (1 2) SAME W=1.4 b=0.3) (relu) (sum_pool (2 2) (1 1) SAME))", "conv_local>conv", 3, { 3, 4, 2 }, APART, 0, 150 },
    { "x1, x2: conv_transpose, skip", "(serial (conv N (3) (1) SAME W=1.3 b=0.1) (relu) (fan_out 2) (parallel (identity) (serial (conv N (2) (2) SAME) (relu)"
      " (conv_transpose N (2) (2) SAME b=0.1) (relu))) (fan_in_concat -1))", "W=1.3>W=1.6", 2, { 4, 2 }, APART, 2, 10 },
    { "x1, x2: pools", "(serial " C1 "(avg_pool (3) (1) SAME normalize_edges=1))", "=1)>=0)", 2, { 5, 2 }, APART, 0, 200 },
    { "x1, x2: layer_norm", "(serial (dense N W=1.5 b=0.3) (layer_norm) (relu))", "(layer_norm)>(identity)", 1, { 4 }, APART | QUICK, 1, 200 },
    { "x1, x2: layer_norm of positions", "(serial (conv N (3) (1) SAME W=1.4 b=0.3) (layer_norm (1 -1)) (erf))", "(layer_norm (1 -1))>(layer_norm)", 2, { 5, 2 }, APART, 1, 200 },
    { "x1, x2: dropout", "(serial (dense N W=1.5 b=0.3) (relu) (dropout 0.6) (dense N W=1.2) (relu))", "W=1.2>W=1.5", 1, { 4 }, TRAIN | APART, 1, 30 },
    { "x1, x2: fan_in_sum", "(serial (fan_out 2) (parallel (serial (dense N b=0.3) (relu) (dense N W=1.3)) (dense N b=0.4)) (fan_in_sum) (relu))", "W=1.3>W=1.6", 1, { 4 }, APART, 1, 20 },
    { "x1, x2: fan_in_prod", "(serial (fan_out 2) (parallel (serial (dense N b=0.3) (relu)) (dense N b=0.4)) (fan_in_prod))", "(fan_in_prod)>(fan_in_sum)", 1, { 4 }, APART, 0, 300 },
    { "x1, x2: image_resize, index", "(serial " C2 "(image_resize (5 2)) (index : 1:4:2 :: :))", "1:4:2>2:4", 3, { 3, 4, 2 }, APART, 0, 100 },
    { "x1, x2: a matrix", "(serial " C2 "(mix 2 3 4))", "(mix 2 3 4)>(index : : 0:3 :)", 3, { 2, 4, 2 }, APART, 0, 150 },
    { "x1, x2: aggregate", "(serial (dense N W=1.4 b=0.3) (relu) (aggregate) (dense N b=0.2))", "(aggregate) >", 2, { 4, 2 }, GRAPH | APART, 0, 20 },
    { "x1, x2: aggregate, sparse", "(serial (dense N W=1.4 b=0.3) (relu) (aggregate implementation=sparse) (dense N b=0.2) (relu))", "(aggregate implementation=sparse)>(identity)", 2, { 4, 2 }, EDGES | APART, 1, 20 },
    { "x1, x2: masks", "(serial (mask) (conv N (3) (1) SAME W=1.4 b=0.3) (mask) (relu) (conv N (3) (1) SAME W=1.2 b=0.2) (mask))", NULL, 2, { 4, 2 }, MASKS | APART | QUICK, 0, 20 },
    { "x1, x2: masks, pooled", "(serial (mask) (conv N (3) (1) SAME W=1.4 b=0.3) (mask) (erf c=0.4) (mask) (avg_pool (3) (1) SAME) (mask) (shown_mean))", "avg_pool (3)>avg_pool (2)", 2, { 5, 2 }, MASKS | APART, 0, 200 },
    { "x1, x2: masks, attention", ATTEND_SHOWN("b=0.3"), NULL, 2, { 4, 2 }, MASKS | ATTENTION | APART, 2, 12 },
    { "x1, x2: attention", ATTEND("b=0.3"), "b=0.3>b=0.3 mechanism=relu", 2, { 4, 2 }, ATTENTION | APART | QUICK, 2, 12 },
    { "x1, x2: attention, sqrt, positions", "(serial (dense N b=0.4) (attention N 4 4 256 W_key=1.2 scaling=sqrt mechanism=identity pos=sum decay=exp alpha=0.5 W_pos=0.9))", "W_pos=0.9>W_pos=1.4", 2, { 3, 2 }, APART, 2, 12 },
};
// clang-format on
enum { ROWS = sizeof rows / sizeof rows[0], LONGEST = 1024 };

static uint64_t random_state;
static double uniform(void) { // in (-1, 1); a multiple of 2^-20, so that it is the same in f32
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (double)((int64_t)(random_state >> 43) - 1048576 + 1) / 1048576.0;
}

// ---------------------------------------------------------------------------------------------------------------------
// Two images, with what belongs to them
// ---------------------------------------------------------------------------------------------------------------------
enum { ROWS_OF = 2, OTHERS = 3, MOST = ROWS_OF + OTHERS, EDGE_COUNT = 7, HIDDEN = -9 };
typedef struct images {
    const row *r;
    int finite;     // words mean layers of a finite network
    int64_t n1, n2; // images on each side; n2 0: against themselves
    int64_t n;      // in all
    int64_t places; // positions of an image
    float x[LONGEST], mask[LONGEST];
    double matrix[LONGEST];
    float graph[LONGEST];
    int32_t edges[MOST * EDGE_COUNT * 2];
} images;

static int64_t image_size(const images *m) { return m->places * m->r->size[m->r->rank - 1]; }

static const float *others_of(const images *m, const float *x) { return m->n2 ? x + m->n1 * image_size(m) : NULL; }

// The first of the others is the second image again, with all that belongs to it.
static void images_copy(images *m) {
    int64_t of = image_size(m), square = m->places * m->places, edges = EDGE_COUNT * 2;
    memcpy(m->x + 2 * of, m->x + of, (size_t)of * sizeof(float));
    memcpy(m->mask + 2 * m->places, m->mask + m->places, (size_t)m->places * sizeof(float));
    memcpy(m->graph + 2 * square, m->graph + square, (size_t)square * sizeof(float));
    memcpy(m->edges + 2 * edges, m->edges + edges, (size_t)edges * sizeof(int32_t));
}

static void images_make(images *m, const row *r) {
    CLEAR(*m), m->r = r, m->places = 1, random_state = 17;
    for (int k = 0; k < r->rank - 1; k++) m->places *= r->size[k];
    m->n1 = ROWS_OF, m->n2 = r->flags & APART ? OTHERS : 0, m->n = m->n1 + m->n2;
    int64_t channels = r->size[r->rank - 1], all = m->n * m->places;
    for (int64_t k = 0; k < all * channels; k++) m->x[k] = (float)uniform() * (k < m->n1 * image_size(m) ? 1 : 1.375f); // another variance
    for (int64_t k = 0; k < all; k++)
        m->mask[k] = !(r->flags & MASKS) || k % m->places != (1 + 2 * (k / m->places)) % m->places; // another for each image
    for (int64_t k = 0; k < all * m->places; k++) m->graph[k] = (float)uniform();
    for (int k = 0; k < LONGEST; k++) m->matrix[k] = uniform();
    for (int k = 0; k < MOST * EDGE_COUNT * 2; k++) m->edges[k] = (int32_t)((uniform() + 1) / 2 * (double)m->places);
    m->edges[0] = -1; // no edge
    if (m->n2) images_copy(m);
    for (int64_t k = 0; k < all * channels; k++)
        if (m->mask[k / channels] == 0) m->x[k] = HIDDEN;
}

// A mistake about images: the others one place on.
static void images_turn(images *m) {
    int64_t of = image_size(m), last = m->n1 + m->n2 - 1;
    float first[LONGEST];
    memcpy(first, m->x + m->n1 * of, (size_t)of * sizeof *first);
    memmove(m->x + m->n1 * of, m->x + (m->n1 + 1) * of, (size_t)((m->n2 - 1) * of) * sizeof *first);
    memcpy(m->x + last * of, first, (size_t)of * sizeof *first);
}

static const float *images_shown(const images *m, float *to) { // zeros where they are hidden
    int64_t channels = m->r->size[m->r->rank - 1];
    for (int64_t k = 0; k < m->n * image_size(m); k++) to[k] = m->mask[k / channels] == 0 ? 0 : m->x[k];
    return to;
}

static nt_tensor *with_mask(const images *m, nt_tensor *x) {
    nt_shape s = nt_shape_of(x);
    s.size[s.rank - 1] = 1;
    return nt_mul(x, nt_constant(x->tape, NT_F32, s, m->mask));
}
static nt_tensor *mask_of(void *user, nt_tensor *x) { return with_mask((const images *)user, x); }
static nt_tensor *shown_mean_of(void *user, nt_tensor *x) { // over the positions that are shown
    const images *m = (const images *)user;
    nt_shape s = nt_shape_of(x);
    nt_axes axes = { 1, { 1 } };
    float count[MOST] = { 0, 0, 0, 0, 0 };
    for (int64_t k = 0; k < m->n * m->places; k++) count[k / m->places] += m->mask[k];
    s.rank = 2, s.size[1] = 1;
    return nt_div(nt_sum_axes(with_mask(m, x), axes, 0), nt_constant(x->tape, NT_F32, s, count));
}

// Attention under a mask, in layers of its own: (positions, keys and values side by side) to what the values are mixed to. Hidden keys have
// no weight. One head, whose queries are its keys.
typedef struct shown_attention { const images *m; nt_attention_mechanism mechanism; } shown_attention;
static nt_tensor *attend_shown(void *user, nt_tensor *x) {
    const shown_attention *a = (const shown_attention *)user;
    int64_t each[3] = { a->m->n, 1, a->m->places }, width = x->shape[2] / 2;
    nt_tensor *shown = nt_constant(x->tape, NT_F32, nt_shape_make(3, each), a->m->mask);
    nt_tensor *key = nt_slice_axis(x, 2, 0, width), *value = nt_slice_axis(x, 2, width, 2 * width);
    nt_tensor *weights = nt_scale(nt_matmul(key, nt_swap_axes(key, 1, 2)), 1 / (double)width);
    if (a->mechanism == NT_ATTEND_SOFTMAX)
        weights = nt_softmax(nt_add(weights, nt_scale(nt_add_scalar(shown, -1), 1e20)), NT_LAST);
    else if (a->mechanism == NT_ATTEND_ABS)
        weights = nt_mul(nt_abs(weights), shown);
    else
        weights = nt_mul(a->mechanism == NT_ATTEND_RELU ? nt_relu(weights) : weights, shown);
    return nt_matmul(weights, value);
}

static nt_tensor *one_hot_places(void *user, nt_tensor *x) {
    const images *m = (const images *)user;
    nt_tensor *places = nt_iota(x->tape, NT_I32, nt_shape_make(2, x->shape), 1);
    return nt_one_hot(places, m->places, NT_F32);
}

static nt_layer *dense_of(wide_nets *w, int features, double W, nt_bias bias, double b) {
    nt_dense_desc d;
    CLEAR(d), d.dtype = w->dtype, d.parameterization = NT_PARAM_NTK, d.W_std = W, d.bias = bias, d.b_std = b;
    return nt_dense_layer(w->t, features, &d);
}

static nt_layer *with_places(wide_nets *w, const gd_node *n, images *m) { // x + a normal number of each position and channel
    nt_function hot = { one_hot_places, m };
    double std = wide_std(w, n, "W_pos", 1) * sqrt((double)m->places);
    nt_layer *places = NT_SERIAL(w->t, nt_function_layer(w->t, hot), dense_of(w, wide_int(w, n, 0), std, NT_BIAS_OFF, 0));
    return nt_sum_layer(w->t, NT_LAYERS(nt_identity_layer(w->t), places));
}

static nt_layer *shown_attention_layer(wide_nets *w, const gd_node *n, images *m) {
    static const char *const mechanisms[] = { "softmax", "identity", "abs", "relu" };
    shown_attention *a = (shown_attention *)gd_alloc(w->c, sizeof *a);
    nt_function attend = { attend_shown, a };
    int width = wide_int(w, n, 1), positions = gd_text(n, "pos") != NULL, of_values = positions && wide_key(w, n, "val_pos", 0) != 0;
    a->m = m, a->mechanism = (nt_attention_mechanism)wide_word(w, n, "mechanism", mechanisms, 4);
    nt_layer *key = dense_of(w, width, sqrt(wide_key(w, n, "W_key", 1) * wide_key(w, n, "W_query", 1)), NT_BIAS_OFF, 0);
    nt_layer *value = dense_of(w, width, wide_key(w, n, "W_value", 1), NT_BIAS_OFF, 0);
    nt_layer *out = dense_of(w, wide_int(w, n, 0), wide_key(w, n, "W_out", 1), wide_bias(n), wide_std(w, n, "b", 0));
    if (positions && !of_values) key = NT_SERIAL(w->t, with_places(w, n, m), key);
    nt_layer *both = nt_concat_layer(w->t, NT_LAST, NT_LAYERS(key, value)), *mixed = nt_function_layer(w->t, attend);
    return of_values ? NT_SERIAL(w->t, with_places(w, n, m), both, mixed, out) : NT_SERIAL(w->t, both, mixed, out);
}

static nt_tensor *bump_recorded(void *user, nt_tensor *x) { return (void)user, nt_div(x, nt_add_scalar(nt_square(x), 1)); }
static double bump(void *user, double x) { return (void)user, x / (1 + x * x); }

// (padded N window stride low high), (centred N window stride): paddings that only these descriptors have.
static nt_layer *padded_conv(wide_nets *w, const gd_node *n) {
    nt_conv_layer_desc d;
    CLEAR(d), d.dtype = w->dtype, d.parameterization = NT_PARAM_NTK, d.W_std = wide_std(w, n, "W", 1), d.bias = NT_BIAS_OFF;
    d.conv.padding = gd_is(n, "centred") ? NT_CIRCULAR : NT_EXPLICIT, d.conv.stride[0] = wide_int(w, n, 2);
    for (int k = 0; k < 2 && n->arg_count > 3; k++) d.conv.pad[0][k] = wide_int(w, n, 3 + k);
    nt_shape window = gd_to_shape(w->c, wide_ints(w, n, 1));
    if (gd_is(n, "padded_transpose")) return nt_conv_transpose_layer(w->t, wide_int(w, n, 0), window, &d);
    return nt_conv_layer(w->t, wide_int(w, n, 0), window, &d);
}

static nt_layer *own_word(wide_nets *w, const gd_node *n, void *user) {
    images *m = (images *)user;
    nt_function mask = { mask_of, m }, mean = { shown_mean_of, m };
    nt_elementwise_desc f = { bump_recorded, bump, NULL };
    if (gd_is(n, "flax")) return nt_dense_layer(w->t, wide_int(w, n, 0), NULL);
    if (gd_is(n, "flax_conv")) return nt_conv_layer(w->t, wide_int(w, n, 0), gd_to_shape(w->c, wide_ints(w, n, 1)), NULL);
    if (gd_is(n, "padded") || gd_is(n, "padded_transpose") || gd_is(n, "centred")) return padded_conv(w, n);
    if (gd_is(n, "tokens")) return nt_tokens_layer(w->t);
    if (gd_is(n, "upsample")) return nt_upsample_layer(w->t, gd_to_shape(w->c, wide_ints(w, n, 0)));
    if (gd_is(n, "residual")) return nt_residual_layer(w->t, wide_net(w, n->args[0]));
    if (gd_is(n, "mix")) return nt_linear_map_layer(w->t, wide_int(w, n, 0), wide_int(w, n, 1), wide_int(w, n, 2), m->matrix);
    if (gd_is(n, "mask")) return m->finite ? nt_function_layer(w->t, mask) : nt_identity_layer(w->t);
    if (gd_is(n, "shown_mean")) return m->finite ? nt_function_layer(w->t, mean) : nt_global_avg_pool_layer(w->t);
    if (gd_is(n, "shown_attention")) return m->finite ? shown_attention_layer(w, n, m) : wide_attention(w, n);
    return gd_is(n, "bump") ? nt_elementwise_layer(w->t, &f) : NULL;
}

// ---------------------------------------------------------------------------------------------------------------------
// Nets
// ---------------------------------------------------------------------------------------------------------------------
// The net with its width, and with the mistake ("this>that", at its first place) if there is one; 0: there is no such place.
static int net_text(char *out, size_t size, const char *net, int width, const char *mistake) {
    char text[1024];
    size_t at = 0, length = mistake ? strcspn(mistake, ">") : 0;
    const char *place = net;
    while (*place && mistake && strncmp(place, mistake, length) != 0) place++;
    if (!*place) return 0;
    snprintf(text, sizeof text, "%.*s%s%s", (int)(place - net), net, mistake ? mistake + length + 1 : "", place + length);
    for (const char *s = text; *s && at + 12 < size; s++)
        if (*s == 'N' && (s[-1] == ' ' || s[-1] == '='))
            at += (size_t)snprintf(out + at, size - at, "%d", width);
        else
            out[at++] = *s;
    out[at] = 0;
    return 1;
}

typedef struct problem {
    const row *r;
    images m;
    gd_case c;
    nt_tape *t;
    nt_layer *net;
    char text[1024];
} problem;

static int problem_open(problem *p, const row *r, int width, const char *mistake, int finite) {
    CLEAR(p->c), p->r = r, p->t = nt_tape_open(NULL), images_make(&p->m, r), p->m.finite = finite;
    wide_nets w = { &p->c, p->t, NT_F32, own_word, &p->m };
    int found = net_text(p->text, sizeof p->text, r->net, width, mistake);
    gd_node *spec = gd_parse(&p->c, p->text);
    p->net = spec && found ? wide_net(&w, spec) : NULL;
    if (!found)
        tap_note("%s: no place for the mistake %s", r->name, mistake);
    else if (!p->net)
        tap_note("%s: %s", p->text, nt_error(p->t) ? nt_error(p->t) : p->c.error);
    return p->net != NULL;
}
static void problem_close(problem *p) { nt_tape_close(p->t), gd_free_all(&p->c); }

typedef struct kernels { // (rows, columns, positions, positions)
    nt_shape output;
    int64_t rows, columns, positions, all;
    double *value[2], *error[2]; // error: standard, of means
    double *size[2];             // root of the variance of each image and position
    int ok, apart;
} kernels;

static void kernels_room(kernels *k, const images *m, nt_shape output) {
    k->output = output, k->positions = 1, k->rows = m->n1, k->columns = m->n2 ? m->n2 : m->n1, k->apart = m->n2 > 0;
    for (int a = 0; a < output.rank; a++) k->positions *= output.size[a];
    k->all = k->rows * k->columns * k->positions * k->positions;
    for (int w = 0; w < 2; w++) {
        k->value[w] = (double *)pool_new((size_t)k->all, sizeof(double)), k->error[w] = (double *)pool_new((size_t)k->all, sizeof(double));
        k->size[w] = (double *)pool_new((size_t)(m->n * k->positions), sizeof(double));
    }
}

static void kernels_free(kernels *k) {
    for (int w = 0; w < 2 && k->value[0]; w++) pool_free(k->value[w]), pool_free(k->error[w]), pool_free(k->size[w]);
}

// The roots of what each of all images is with itself at each position.
static int variances(const problem *p, nt_kernel_desc d, kernels *k) {
    int64_t n = p->m.n, count = n * n * k->positions;
    float *nngp = (float *)pool_new((size_t)count, sizeof *nngp), *ntk = (float *)pool_new((size_t)count, sizeof *ntk);
    d.nngp = nngp, d.ntk = ntk, d.spatial = NT_DIAGONAL;
    int ok = nt_kernel(p->net, p->m.x, n, NULL, 0, &d) == NT_OK;
    for (int64_t i = 0; i < n; i++)
        for (int64_t q = 0; q < k->positions; q++) {
            int64_t at = (i * n + i) * k->positions + q;
            k->size[0][i * k->positions + q] = sqrt((double)nngp[at]), k->size[1][i * k->positions + q] = sqrt((double)ntk[at]);
        }
    pool_free(nngp), pool_free(ntk);
    return ok;
}

static int limits(const problem *p, nt_kernel_desc d, kernels *k) {
    const images *m = &p->m;
    float *nngp = (float *)pool_new((size_t)k->all, sizeof *nngp), *ntk = (float *)pool_new((size_t)k->all, sizeof *ntk);
    d.nngp = nngp, d.ntk = ntk;
    if (m->n2 && d.pattern1 && p->r->flags & GRAPH) d.pattern2 = m->graph + m->n1 * m->places * m->places;
    if (m->n2 && d.pattern1 && p->r->flags & EDGES) d.pattern2 = m->edges + m->n1 * EDGE_COUNT * 2;
    int ok = nt_kernel(p->net, m->x, m->n1, others_of(m, m->x), m->n2, &d) == NT_OK;
    for (int64_t j = 0; j < k->all; j++) k->value[0][j] = (double)nngp[j], k->value[1][j] = (double)ntk[j];
    pool_free(nngp), pool_free(ntk);
    return ok;
}

// Of a kernel that knew nothing of the mask: 0 where one of two positions is hidden, so that only the others are compared.
static void hide(const images *m, kernels *k) {
    for (int64_t j = 0, n = k->positions; j < k->all; j++) {
        int64_t one = j / (n * n) / k->columns * n + j / n % n, two = ((m->n2 ? m->n1 : 0) + j / (n * n) % k->columns) * n + j % n;
        if (m->mask[one] == 0 || m->mask[two] == 0) k->value[0][j] = k->value[1][j] = 0;
    }
}

enum { RIGHT, MISTAKEN, TURNED };
static kernels infinite(const row *r, int width, int how) {
    static problem p;
    kernels k;
    nt_kernel_desc d;
    nt_kernel_info info;
    int bare = how == MISTAKEN && !r->mistake;
    CLEAR(k), CLEAR(d), CLEAR(info);
    k.ok = problem_open(&p, r, width, how == MISTAKEN ? r->mistake : NULL, 0);
    if (how == TURNED) images_turn(&p.m);
    if (bare) images_shown(&p.m, p.m.x);
    d.dtype = NT_F32, d.shape = nt_shape_make(r->rank, r->size), d.train = (r->flags & TRAIN) != 0;
    d.masked = (r->flags & MASKS) != 0 && !bare, d.mask = HIDDEN, d.edges = r->flags & EDGES ? EDGE_COUNT : 0;
    d.pattern1 = r->flags & GRAPH ? (const void *)p.m.graph : r->flags & EDGES ? (const void *)p.m.edges : NULL;
    if (!strstr(p.text, "aggregate")) d.pattern1 = NULL; // that was the mistake
    k.ok = k.ok && nt_kernel_plan(p.net, p.m.n1, p.m.n2, &d, &info) == NT_OK;
    if (k.ok) kernels_room(&k, &p.m, info.output), k.ok = limits(&p, d, &k) && variances(&p, d, &k);
    if (k.ok && bare) hide(&p.m, &k);
    if (!k.ok && nt_error(p.t)) tap_note("%s: %s", p.text, nt_error(p.t));
    problem_close(&p);
    return k;
}

// One network with masks in it: all images at once, against themselves. The NTK by one random direction.
static int one_network(problem *p, nt_tensor *x, nt_key_value key, const float *out[2]) {
    nt_empirical_desc d;
    nt_params params = nt_parameters(p->net), v;
    nt_tensor *items[16], *kernel[2];
    CLEAR(d), d.trace.count = 1, d.trace.axis[0] = NT_LAST;
    nt_tensor *f = nt_apply(p->net, x, NULL);
    if (!f || params.count > 16) return 0;
    for (int k = 0; k < params.count; k++)
        items[k] = nt_normal(nt_key_tensor(p->t, nt_key_fold_in(key, 2 + (uint32_t)k)), NT_F32, nt_shape_of(params.items[k]));
    v.count = params.count, v.items = items;
    nt_params outputs = { 1, &f }, y = nt_jvp(outputs, params, v), both = { 2, kernel };
    if (!y.count) return 0;
    kernel[0] = nt_empirical_nngp(f, NULL, &d), kernel[1] = nt_empirical_nngp(y.items[0], NULL, &d);
    nt_program *program = nt_compile_many(p->t, both, NULL);
    if (!program || nt_run(program) != NT_OK) return 0;
    for (int w = 0; w < 2; w++) out[w] = (const float *)nt_output(program, w);
    return 1;
}

static int by_hand(problem *p, nt_tensor *x, nt_key_value key, int networks, kernels *k) {
    int ok = 1;
    int64_t pairs = k->positions * k->positions, second = p->m.n2 ? p->m.n1 : 0;
    for (int n = 0; n < networks && ok; n++) {
        const float *out[2];
        nt_marker mark = nt_mark(p->t);
        nt_key_value own = nt_key_fold_in(key, (uint32_t)n);
        ok = nt_init(p->net, own, x) == NT_OK && one_network(p, x, nt_key_fold_in(own, 12345), out);
        for (int64_t j = 0; j < 2 * k->all && ok; j++) {
            int64_t w = j / k->all, at = j % k->all, one = at / pairs / k->columns, two = second + at / pairs % k->columns;
            double *mean = &k->value[w][at], more = (double)out[w][(one * p->m.n + two) * pairs + at % pairs] - *mean;
            *mean += more / (n + 1), k->error[w][at] += more * more * n / (n + 1);
        }
        if (ok) nt_rewind(p->t, mark);
    }
    return ok;
}

// Makes the parameters; 1 if the finite network has the output's positions.
static int same_output(problem *p, nt_tensor *x, const nt_shape *output) {
    nt_tensor *y = NULL;
    if (nt_init(p->net, nt_key(0), x) == NT_OK) y = p->r->flags & (GRAPH | EDGES) ? x : nt_apply(p->net, x, NULL); // graphs: positions stay
    int same = y && y->rank == output->rank + 2;
    for (int k = 0; k < output->rank && same; k++) same = y->shape[k + 1] == output->size[k];
    if (y && !same) tap_note("%s: the finite network's output has another shape", p->text);
    return same;
}

static kernels finite(const row *r, int width, int networks, nt_shape output) {
    static problem p;
    static float x[LONGEST];
    kernels k;
    nt_monte_carlo_desc d;
    int64_t count = 0, size[5] = { 0, 0, 0, 0, 0 };
    CLEAR(k), CLEAR(d), k.ok = problem_open(&p, r, width, NULL, 1), images_shown(&p.m, x), kernels_room(&k, &p.m, output);
    for (int a = 0; a < r->rank; a++) size[a + 1] = r->size[a];
    size[0] = p.m.n;
    d.dtype = NT_F32, d.shape = nt_shape_make(r->rank, r->size), d.tangents = 2, d.count = &count;
    d.nngp = k.value[0], d.ntk = k.value[1], d.nngp_squares = k.error[0], d.ntk_squares = k.error[1];
    d.train = (r->flags & TRAIN) != 0, d.edges = r->flags & EDGES ? EDGE_COUNT : 0;
    if (r->flags & GRAPH) d.pattern1 = p.m.graph, d.pattern2 = p.m.n2 ? p.m.graph + p.m.n1 * p.m.places * p.m.places : NULL;
    if (r->flags & EDGES) d.pattern1 = p.m.edges, d.pattern2 = p.m.n2 ? p.m.edges + p.m.n1 * EDGE_COUNT * 2 : NULL;
    nt_tensor *all = nt_constant(p.t, NT_F32, nt_shape_make(r->rank + 1, size), x);
    k.ok = k.ok && same_output(&p, all, &output);
    if (k.ok && r->flags & (MASKS | HAND))
        k.ok = by_hand(&p, all, nt_key(3), networks, &k);
    else if (k.ok)
        k.ok = nt_kernel_monte_carlo(p.net, nt_key(3), networks, x, p.m.n1, others_of(&p.m, x), p.m.n2, &d) == NT_OK;
    for (int w = 0; w < 2; w++) nt_standard_errors(k.error[w], networks, k.all, k.error[w]);
    if (!k.ok && nt_error(p.t)) tap_note("%s: %s", p.text, nt_error(p.t));
    problem_close(&p);
    return k;
}

// ---------------------------------------------------------------------------------------------------------------------
// One against the other
// ---------------------------------------------------------------------------------------------------------------------
// Where positions p and q of a pair of images are in the kernel of a finite network: each axis of p is beside that of q.
static int64_t beside(const nt_shape *output, int64_t p, int64_t q) {
    int64_t at = 0, step = 1;
    for (int a = output->rank - 1; a >= 0; a--) {
        int64_t n = output->size[a];
        at += (q % n + p % n * n) * step, step *= n * n, p /= n, q /= n;
    }
    return at;
}

typedef struct gap {            // in units of the entries' size
    double ratio;               // of what is allowed: 1 at most
    double far, error, allowed; // the largest distance, five errors, all that is allowed
} gap;
static gap gap_of(const kernels *mean, const kernels *limit, int which, double bias) {
    gap g = { 0, 0, 0, 0 };
    const double *k = limit->value[which];
    int64_t n = limit->positions, pairs = n * n, columns = limit->columns, second = limit->apart ? limit->rows : 0;
    for (int64_t i = 0; i < limit->rows; i++)
        for (int64_t j = 0; j < columns; j++)
            for (int64_t p = 0; p < n; p++)
                for (int64_t q = 0; q < n; q++) {
                    int64_t from = (i * columns + j) * pairs + beside(&limit->output, p, q), at = (i * columns + j) * pairs + p * n + q;
                    double size = limit->size[which][i * n + p] * limit->size[which][(second + j) * n + q];
                    double error = ERRORS * mean->error[which][from], allowed = error + bias * size;
                    double far = fabs(mean->value[which][from] - k[at]);
                    if (far != 0 && !(far <= g.ratio * allowed)) g.ratio = far / allowed;
                    if (size > 0)
                        g.far = fmax(g.far, far / size), g.error = fmax(g.error, error / size), g.allowed = fmax(g.allowed, allowed / size);
                }
    return g;
}

static double worst;

static void told_apart(const row *r, int width, const kernels *mean, double bias, int how) {
    kernels wrong = infinite(r, width, how);
    double ratio = 0;
    if (wrong.ok && wrong.all == mean->all) ratio = fmax(gap_of(mean, &wrong, 0, bias).ratio, gap_of(mean, &wrong, 1, bias).ratio);
    const char *what = how == TURNED ? "the others one place on" : r->mistake ? r->mistake : "nothing is hidden";
    tap_ok(ratio > 1, "%s with a mistake, %s: %.2f of what is allowed", r->name, what, ratio);
    kernels_free(&wrong);
}

// The second image against its copy among the others is as against itself. In f32 the NTK of equal images loses some 1e-4 for each
// activation where variances and covariance were rounded each on its own way, as after attention and graphs; elsewhere nothing.
static void copy_is_same(const row *r, const kernels *limit) {
    int64_t n = limit->positions;
    double far = 0;
    for (int64_t p = 0; p < 2 * n; p++) {
        double own = limit->size[p / n][n + p % n] * limit->size[p / n][n + p % n];
        if (own > 0) far = fmax(far, fabs(limit->value[p / n][limit->columns * n * n + p % n * (n + 1)] / own - 1));
    }
    tap_ok(far <= 2e-4 * (r->bent + 1), "%s: a copy is the image, to %.1e", r->name, far);
}

// What random scores of attention add to the mean goes down as 1 / width: from one width to the other as it should, or to five errors.
static void shrinks(const row *r, int width, const gap *wide) {
    int narrow = 16;
    kernels limit = infinite(r, narrow, RIGHT), mean;
    CLEAR(mean);
    if (limit.ok) mean = finite(r, narrow, r->networks * 40, limit.output);
    int ok = limit.ok && mean.ok;
    for (int w = 0; w < 2 && ok; w++) {
        gap g = gap_of(&mean, &limit, w, 0);
        double most = 2 * (g.far + g.error) * narrow / width + wide[w].error;
        tap_ok(wide[w].far <= most, "%s, %s: %.4f from the limit at width %d (5 errors: %.4f), %.4f at width %d (at most %.4f)", r->name,
               w ? "NTK" : "NNGP", g.far, narrow, g.error, wide[w].far, width, most);
    }
    if (!ok) tap_ok(0, "%s at width %d", r->name, narrow);
    kernels_free(&limit), kernels_free(&mean);
}

static void walk(const row *r, int width, int networks) {
    double bias = BIAS * r->bent / width;
    kernels limit = infinite(r, width, RIGHT), mean;
    gap g[2] = { { 0, 0, 0, 0 }, { 0, 0, 0, 0 } };
    CLEAR(mean);
    if (limit.ok) mean = finite(r, width, networks, limit.output);
    int ok = limit.ok && mean.ok;
    for (int w = 0; w < 2 && ok; w++) g[w] = gap_of(&mean, &limit, w, bias), worst = fmax(worst, g[w].ratio);
    tap_ok(ok && g[0].ratio <= 1 && g[1].ratio <= 1,
           "%s of width %d: NNGP %.2f, NTK %.2f of what %d networks allow (5 errors: %.3f, %.3f; width: %.3f)", r->name, width, g[0].ratio,
           g[1].ratio, networks, g[0].error, g[1].error, bias);
    if (ok) told_apart(r, width, &mean, bias, MISTAKEN);
    if (ok && r->flags & APART) told_apart(r, width, &mean, bias, TURNED);
    if (ok && r->flags & APART && !(r->flags & TRAIN)) copy_is_same(r, &limit);
    if (ok && r->flags & ATTENTION && width > 128) shrinks(r, width, g);
    kernels_free(&limit), kernels_free(&mean);
}

int main(int argc, char **argv) {
    int all = argc > 1 && strcmp(argv[1], "all") == 0;
    for (int k = 0; k < ROWS; k++) {
        if (argc > 2 && strncmp(rows[k].name, argv[2], strlen(argv[2])) != 0) continue;
        if (all)
            walk(&rows[k], 1024, rows[k].networks);
        else if (rows[k].flags & QUICK)
            walk(&rows[k], 128, rows[k].networks * 2);
    }
    tap_note("the worst ratio: %.2f", worst);
    pool_end();
    return tap_end();
}
