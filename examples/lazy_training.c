// Lazy training: a wide network trained by gradient descent, its linearization trained by the same steps, and the closed form that
// the infinitely wide network follows, side by side.
//
//     make -C examples && examples/build/lazy_training       widths 32, 128 and 512, and a picture of the widest
//     examples/build/lazy_training 2048                      on to that width: minutes
//
// Six points, one input, two hidden layers. Around its first weights w0 the network is f(w0) + J(w0) (w - w0) (nt_linearize), and the
// wider it is, the less the weights have to move, so the longer that holds. At infinite width J J^T is the same for all networks, the
// NTK (nt_kernel), and what a network says after so many steps is a formula (nt_predict_mse) of what it said at first; over all first
// weights it is a Gaussian process with a mean and a band (nt_predict_gp).
//
// How to read it: distances are roots of mean squares over the line of x, averaged over the networks of a width; they fall about as
// 1 / sqrt(width). `in the band` is the share of what the networks say after the last step that lies within two standard deviations of
// the mean: 0.95 for many infinitely wide networks; six are few, so it scatters (a hundred of width 128 have 0.96). neural-tangents has
// the same parts, linearize, kernel_fn, predict.gradient_descent_mse and gradient_descent_mse_ensemble, on JAX.
#include "../nttrain.h"
#include "folder.h"
#include "picture.h"
#include "threads.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { LAZY_TRAIN = 6, LAZY_TEST = 121, LAZY_TIMES = 3 };

typedef struct lazy_options {
    int width;
    uint64_t seed;
    int steps[LAZY_TIMES]; // gradient steps after which everything is asked, ascending
} lazy_options;

typedef float lazy_line[LAZY_TEST]; // what somebody says along the line of x
typedef struct lazy_result {
    double learning_rate;
    lazy_line net[LAZY_TIMES], linear[LAZY_TIMES], closed[LAZY_TIMES]; // this network
    lazy_line mean[LAZY_TIMES], variance[LAZY_TIMES];                  // all networks
    char error[640];
} lazy_result;

static const float lazy_x[LAZY_TRAIN] = { -2.6f, -1.6f, -0.4f, 0.3f, 1.3f, 2.6f },
                   lazy_y[LAZY_TRAIN] = { -0.2f, -1.1f, -0.3f, 0.5f, 1.0f, 0.2f };
static const double lazy_end = 3.5; // the line goes from -3.5 to 3.5

static void lazy_fill_line(float *x) {
    for (int i = 0; i < LAZY_TEST; i++) x[i] = (float)(lazy_end * (2.0 * i / (LAZY_TEST - 1) - 1));
}

static nt_layer *lazy_net(nt_tape *t, int width) {
    const nt_dense_desc dense = { .parameterization = NT_PARAM_NTK, .W_std = 2, .b_std = 1 };
    return NT_SERIAL(t, nt_dense_layer(t, width, &dense), nt_erf_layer(t, 1, 1, 0), nt_dense_layer(t, width, &dense),
                     nt_erf_layer(t, 1, 1, 0), nt_dense_layer(t, 1, &dense));
}

// The closed form. The kernels do not depend on the width; f0 is what this network says before training.
static nt_status lazy_predict(nt_tape *t, nt_layer *net, const lazy_options *o, const float *x, const float *f0_train, const float *f0_test,
                              lazy_result *r) {
    static float nngp_dd[LAZY_TRAIN * LAZY_TRAIN], ntk_dd[LAZY_TRAIN * LAZY_TRAIN], nngp_td[LAZY_TEST * LAZY_TRAIN],
        ntk_td[LAZY_TEST * LAZY_TRAIN], nngp_tt[LAZY_TEST * LAZY_TEST];
    nt_kernel_desc between = { .dtype = NT_F32, .shape = NT_SHAPE(1), .nngp = nngp_dd, .ntk = ntk_dd };
    nt_status status = nt_kernel(net, lazy_x, LAZY_TRAIN, NULL, 0, &between);
    between.nngp = nngp_td, between.ntk = ntk_td;
    if (status == NT_OK) status = nt_kernel(net, x, LAZY_TEST, lazy_x, LAZY_TRAIN, &between);
    between.nngp = nngp_tt, between.ntk = NULL, between.what = NT_NNGP;
    if (status == NT_OK) status = nt_kernel(net, x, LAZY_TEST, NULL, 0, &between);
    if (status != NT_OK) return status;

    r->learning_rate = 0.1 * nt_max_learning_rate(t, NT_F32, LAZY_TRAIN, ntk_dd, 0, 0); // small steps: the closed form is their limit
    nt_factor *factor = nt_factor_make(t, &(nt_factor_desc){ .dtype = NT_F32, .n = LAZY_TRAIN, .kernel = ntk_dd, .solver = NT_EIGEN });
    if (!factor) return nt_error_status(t);
    double time[LAZY_TIMES]; // in steps
    for (int k = 0; k < LAZY_TIMES; k++) time[k] = o->steps[k];
    status = nt_predict_mse(factor, &(nt_predict_mse_desc){ .outputs = 1,
                                                            .y = lazy_y,
                                                            .f0_train = f0_train,
                                                            .test = LAZY_TEST,
                                                            .f0_test = f0_test,
                                                            .kernel_td = ntk_td,
                                                            .learning_rate = r->learning_rate,
                                                            .times = LAZY_TIMES,
                                                            .time = time,
                                                            .f_test = r->closed });
    if (status == NT_OK)
        status = nt_predict_gp(factor, &(nt_predict_gp_desc){ .gp = NT_GP_NTK,
                                                              .outputs = 1,
                                                              .y = lazy_y,
                                                              .test = LAZY_TEST,
                                                              .nngp_dd = nngp_dd,
                                                              .nngp_td = nngp_td,
                                                              .nngp_tt = nngp_tt,
                                                              .ntk_td = ntk_td,
                                                              .learning_rate = r->learning_rate,
                                                              .times = LAZY_TIMES,
                                                              .time = time,
                                                              .mean = r->mean,
                                                              .variance = r->variance });
    nt_factor_free(factor);
    return status;
}

// Trains `net` on what it says of the six points, and asks what it says along the line at each time.
static nt_status lazy_descend(nt_tape *t, nt_tensor *train, nt_tensor *test, const lazy_options *o, double learning_rate, lazy_line *said) {
    nt_tensor *y = nt_constant(t, NT_F32, NT_SHAPE(LAZY_TRAIN, 1), lazy_y);
    nt_tensor *loss = nt_scale(nt_mean(nt_square(nt_sub(train, y))), 0.5);
    nt_program *step = nt_compile_step(loss, nt_sgd(t, &(nt_sgd_desc){ .learning_rate = learning_rate }), NULL);
    nt_program *ask = nt_compile(test, NULL);
    if (!step || !ask) return nt_error_status(t);
    nt_status status = NT_OK;
    for (int k = 0, done = 0; k < LAZY_TIMES && status == NT_OK; k++) {
        for (; done < o->steps[k] && status == NT_OK; done++) status = nt_run(step);
        if (status == NT_OK) status = nt_run(ask);
        if (status == NT_OK) status = nt_read(ask, 0, said[k]);
    }
    return status;
}

static nt_status lazy_run(nt_tape *t, const lazy_options *o, lazy_result *r) {
    lazy_line line, f0_test;
    float f0_train[LAZY_TRAIN];
    lazy_fill_line(line);
    nt_layer *net = lazy_net(t, o->width);
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(LAZY_TRAIN, 1), lazy_x), *all_x = nt_constant(t, NT_F32, NT_SHAPE(LAZY_TEST, 1), line);
    nt_init(net, nt_key(o->seed), x);
    nt_tensor *train = nt_apply(net, x, NULL), *test = nt_apply(net, all_x, NULL);
    nt_status status = nt_eval(train, f0_train);
    if (status == NT_OK) status = nt_eval(test, f0_test);
    if (status == NT_OK) status = lazy_predict(t, net, o, line, f0_train, f0_test, r);
    if (status != NT_OK) return status;

    // The linearization has the network's own weights; afterwards nt_init puts the first ones back for the network itself.
    nt_params now = nt_parameters(net), start = nt_freeze(t, now, NULL);
    status = lazy_descend(t, nt_linearize(train, now, start), nt_linearize(test, now, start), o, r->learning_rate, r->linear);
    if (status == NT_OK) status = nt_init(net, nt_key(o->seed), x);
    return status == NT_OK ? lazy_descend(t, train, test, o, r->learning_rate, r->net) : status;
}

static int lazy_main(const nt_tape_desc *desc, const lazy_options *o, lazy_result *r) { // 0: trained
    memset(r, 0, sizeof *r);
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? lazy_run(t, o, r) : NT_ERROR_MEMORY;
    if (status != NT_OK) snprintf(r->error, sizeof r->error, "%s: %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "?");
    nt_tape_close(t);
    return status != NT_OK;
}

static double lazy_distance(const float *a, const float *b) { // the root of the mean square
    double sum = 0;
    for (int i = 0; i < LAZY_TEST; i++) sum += ((double)a[i] - (double)b[i]) * ((double)a[i] - (double)b[i]);
    return sqrt(sum / LAZY_TEST);
}

#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
static int lazy_draw(const char *path, const lazy_options *o, const lazy_result *r) {
    const int last = LAZY_TIMES - 1;
    lazy_line low, high;
    char title[96];
    snprintf(title, sizeof title, "Width %d after %d steps of gradient descent", o->width, o->steps[last]);
    for (int i = 0; i < LAZY_TEST; i++) {
        float band = 2 * sqrtf(r->variance[last][i]);
        low[i] = r->mean[last][i] - band, high[i] = r->mean[last][i] + band;
    }
    const picture p = {
        .title = title, .x_title = "x", .y_title = "f(x)", .x_begin = -lazy_end, .x_end = lazy_end, .y_begin = -2, .y_end = 3
    };
    const picture_curve line = { .count = LAZY_TEST, .first_x = -lazy_end, .last_x = lazy_end, .width = 2 };
    picture_curve c[6] = { line, line, line, line, line, line };
    c[0].name = "and two deviations", c[0].colour = "#dfe8f2", c[0].y = low, c[0].to = high;
    c[1].name = "all networks: mean", c[1].colour = "#9db6d0", c[1].y = r->mean[last];
    c[2].name = "this one, closed form", c[2].colour = "#202020", c[2].y = r->closed[last], c[2].width = 3;
    c[3].name = "its linearization", c[3].colour = "#f0a030", c[3].y = r->linear[last];
    c[4].name = "the network", c[4].colour = "#c02040", c[4].y = r->net[last], c[4].dashes = "6 4";
    c[5].name = "six points", c[5].colour = "#202020", c[5].y = lazy_y, c[5].x = lazy_x, c[5].count = LAZY_TRAIN, c[5].width = 5;
    return picture_write(path, &p, c, 6);
}

enum { LAZY_NETWORKS = 6, LAZY_NARROWEST = 32 };

typedef struct lazy_row {
    double linear[LAZY_TIMES], closed[LAZY_TIMES]; // distances, network to linearization, linearization to closed form
    double inside;                                 // the share in the band
} lazy_row;

static int lazy_width(int width, lazy_row *row, const char *drawing) { // 0: done
    static lazy_result r;
    const int last = LAZY_TIMES - 1;
    memset(row, 0, sizeof *row);
    for (int seed = 0; seed < LAZY_NETWORKS; seed++) {
        const lazy_options o = { width, (uint64_t)seed, { 16, 128, 1024 } };
        if (lazy_main(NULL, &o, &r)) {
            puts(r.error);
            return 1;
        }
        for (int k = 0; k < LAZY_TIMES; k++) {
            row->linear[k] += lazy_distance(r.net[k], r.linear[k]) / LAZY_NETWORKS;
            row->closed[k] += lazy_distance(r.linear[k], r.closed[k]) / LAZY_NETWORKS;
        }
        for (int i = 0; i < LAZY_TEST; i++) {
            const double off = fabs((double)r.net[last][i] - (double)r.mean[last][i]);
            if (off <= 2 * sqrt((double)r.variance[last][i])) row->inside += 1.0 / (LAZY_NETWORKS * LAZY_TEST);
        }
        if (drawing && seed == 0 && lazy_draw(drawing, &o, &r)) puts("the picture could not be written");
    }
    return 0;
}

int main(int argc, char **argv) {
    const int widest = argc > 1 && atoi(argv[1]) > LAZY_NARROWEST ? atoi(argv[1]) : 512;
    lazy_row row, before;
    int wrong = 0;
    char path[640];
    folder_of(argv[0], "lazy_training.svg", path, sizeof path);
    printf("Six points, two hidden layers, %d networks of each width; distances after so many steps:\n\n"
           "          network to linearization    linearization to closed form     in the\n"
           "  width     16      128     1024          16      128     1024          band   seconds\n",
           LAZY_NETWORKS);
    for (int width = LAZY_NARROWEST; width <= widest; width *= 4, before = row) {
        const double start = threads_seconds();
        if (lazy_width(width, &row, width * 4 > widest ? path : NULL)) return 1;
        printf("%7d   %.4f   %.4f   %.4f      %.4f   %.4f   %.4f %13.2f %9.2f\n", width, row.linear[0], row.linear[1], row.linear[2],
               row.closed[0], row.closed[1], row.closed[2], row.inside, threads_seconds() - start);
        for (int k = 0; k < LAZY_TIMES && width > LAZY_NARROWEST; k++)
            wrong += row.linear[k] >= before.linear[k] || row.closed[k] >= before.closed[k];
    }
    printf("\nThe first network of the widest is drawn in %s\n", path);
    if (wrong) puts("The distances do not fall with the width.");
    return wrong != 0;
}
#endif
