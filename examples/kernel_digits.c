// Kernels of infinitely wide networks on handwritten digits: Gaussian-process regression with no weights and no training loop.
//
//     make -C examples && examples/build/kernel_digits       dense and conv + Flatten on all digits, + global pooling on 200 and 100
//     examples/build/kernel_digits all                       all three on all digits
//
// A network whose layers are infinitely wide is a kernel: NNGP says how outputs vary together over random weights, NTK how training
// one image moves the output of another. Both come from the layers themselves (nt_kernel takes the nt_layer that nt_init and nt_apply
// take), and with them "train for ever, then ask" is one linear solve.
//
// How to read the table: `kernels` are the seconds for two matrices of both kinds (train x train, test x train), `scratch` what nt_kernel
// works in, all threads together, known beforehand; `matrices` are the results, the host's; `solve` the seconds of both regressions. The
// accuracies are those of the 360 digits that other people wrote. neural-tangents gives the same (dense: NNGP 0.9639, NTK 0.9667; conv:
// 0.9667, 0.9639), for conv + Flatten in 20 s. With global average pooling every pixel of one image meets every pixel of the other, 64 x 64
// covariances a pair in each layer, which makes it too dear elsewhere; here they go through the net one offset at a time and are forgotten.
#include "../nttrain.h"
#include "digits_data.h"
#include "folder.h"
#include "progress.h"
#include "threads.h"
#include <math.h>
#include <string.h>

enum { KD_CLASSES = 10 };
typedef enum kd_kind { KD_DENSE, KD_CONV, KD_POOL, KD_KINDS } kd_kind;

typedef struct kd_options {
    const digits_data *data;
    kd_kind kind;
    int train, test; // images: the first ones of each part
    FILE *out;       // where progress goes; NULL: silent
} kd_options;

typedef struct kd_result {
    double kernel_seconds, solve_seconds;
    double nngp_accuracy, ntk_accuracy;
    double checksum;     // a sum of all answers
    nt_kernel_info plan; // of train x train: what it takes, known beforehand
    size_t matrices;     // bytes of the results
    char error[640];
} kd_result;

typedef struct kd_matrices { // the host's; d: train, t: test
    double train[TRAIN * PIXELS], test[TEST * PIXELS], y[TRAIN * KD_CLASSES], answer[TEST * KD_CLASSES];
    double nngp_dd[TRAIN * TRAIN], nngp_td[TEST * TRAIN], ntk_dd[TRAIN * TRAIN], ntk_td[TEST * TRAIN];
} kd_matrices;

enum { KD_WIDTH = 512 }; // of the finite network, if it were initialised; a kernel does not ask

static nt_layer *kd_dense(nt_tape *t) {
    const nt_dense_desc desc = { .parameterization = NT_PARAM_NTK, .W_std = sqrt(2), .b_std = 0.1 };
    return NT_SERIAL(t, nt_dense_layer(t, KD_WIDTH, &desc), nt_relu_layer(t));
}

static nt_layer *kd_conv(nt_tape *t) {
    const nt_conv_layer_desc desc = { .parameterization = NT_PARAM_NTK, .W_std = sqrt(2), .b_std = 0.1 };
    return NT_SERIAL(t, nt_conv_layer(t, KD_WIDTH, NT_WINDOW(3, 3), &desc), nt_relu_layer(t));
}

static nt_layer *kd_net(nt_tape *t, kd_kind kind) {
    const nt_dense_desc desc = { .parameterization = NT_PARAM_NTK, .W_std = 1, .bias = NT_BIAS_OFF };
    nt_layer *readout = nt_dense_layer(t, KD_CLASSES, &desc);
    if (kind == KD_DENSE) return NT_SERIAL(t, kd_dense(t), kd_dense(t), kd_dense(t), readout);
    nt_layer *head = kind == KD_CONV ? nt_flatten_layer(t) : nt_global_avg_pool_layer(t);
    return NT_SERIAL(t, kd_conv(t), kd_conv(t), kd_conv(t), kd_conv(t), head, readout);
}

// Pixels from 0 to 1 without their mean over the training images; targets 0.9 for the right digit and -0.1 for the others.
static void kd_fill(const kd_options *o, kd_matrices *m) {
    double mean = 0;
    for (int i = 0; i < o->train * PIXELS; i++) mean += o->data->pixel[i] / 16.0 / (o->train * PIXELS);
    for (int i = 0; i < o->train * PIXELS; i++) m->train[i] = o->data->pixel[i] / 16.0 - mean;
    for (int i = 0; i < o->test * PIXELS; i++) m->test[i] = o->data->pixel[TRAIN * PIXELS + i] / 16.0 - mean;
    for (int i = 0; i < o->train * KD_CLASSES; i++) m->y[i] = (o->data->label[i / KD_CLASSES] == i % KD_CLASSES) - 0.1;
}

// Both kernels in one call: the NTK needs the NNGP on its way.
static nt_status kd_kernels(nt_tape *t, const kd_options *o, kd_matrices *m, kd_result *r) {
    nt_layer *net = kd_net(t, o->kind);
    nt_kernel_desc desc = { .dtype = NT_F64, .shape = o->kind == KD_DENSE ? NT_SHAPE(PIXELS) : NT_SHAPE(SIDE, SIDE, 1) };
    desc.nngp = m->nngp_dd, desc.ntk = m->ntk_dd, desc.progress = nt_progress_bar(progress_terminal(o->out));
    const double start = threads_seconds();
    nt_status status = nt_kernel_plan(net, o->train, 0, &desc, &r->plan);
    if (status == NT_OK) status = nt_kernel(net, m->train, o->train, NULL, 0, &desc); // NULL: against itself
    desc.nngp = m->nngp_td, desc.ntk = m->ntk_td;
    if (status == NT_OK) status = nt_kernel(net, m->test, o->test, m->train, o->train, &desc);
    r->kernel_seconds = threads_seconds() - start;
    return status;
}

// What the networks say of the test images after training for ever: kernel_td (kernel_dd + ridge)^-1 y. The digit is the largest of ten.
static nt_status kd_answer(nt_tape *t, const kd_options *o, const double *dd, const double *td, kd_matrices *m, double *accuracy,
                           kd_result *r) {
    const nt_factor_desc kernel = { .dtype = NT_F64, .n = o->train, .kernel = dd, .ridge = 1e-6 }; // times trace / n
    const nt_predict_mse_desc predict = { .outputs = KD_CLASSES, .y = m->y, .test = o->test, .kernel_td = td, .f_test = m->answer };
    nt_factor *factor = nt_factor_make(t, &kernel);
    if (!factor) return nt_error_status(t);
    nt_status status = nt_predict_mse(factor, &predict);
    nt_factor_free(factor);
    int right = 0;
    for (int n = 0; n < o->test && status == NT_OK; n++) {
        const double *f = m->answer + n * KD_CLASSES;
        int best = 0;
        for (int k = 0; k < KD_CLASSES; k++) best = f[k] > f[best] ? k : best, r->checksum += f[k] * (k + 1);
        right += best == o->data->label[TRAIN + n];
    }
    *accuracy = (double)right / o->test;
    return status;
}

static nt_status kd_run(nt_tape *t, const kd_options *o, kd_result *r) {
    static kd_matrices m;
    kd_fill(o, &m);
    nt_status status = kd_kernels(t, o, &m, r);
    const double start = threads_seconds();
    if (status == NT_OK) status = kd_answer(t, o, m.nngp_dd, m.nngp_td, &m, &r->nngp_accuracy, r);
    if (status == NT_OK) status = kd_answer(t, o, m.ntk_dd, m.ntk_td, &m, &r->ntk_accuracy, r);
    r->solve_seconds = threads_seconds() - start;
    r->matrices = 2 * sizeof(double) * (size_t)o->train * (size_t)(o->train + o->test);
    return status;
}

static int kd_main(const nt_tape_desc *desc, const kd_options *o, kd_result *r) { // 0: answered; otherwise r->error says what went wrong
    memset(r, 0, sizeof *r);
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? kd_run(t, o, r) : NT_ERROR_MEMORY;
    explain(t, status, r->error, sizeof r->error);
    nt_tape_close(t);
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
static digits_data data;

int main(int argc, char **argv) {
    static const char *name[KD_KINDS] = { "dense 3", "conv 4 + Flatten", "conv 4 + global pooling" };
    static const double known[2][2] = { { 0.9639, 0.9667 }, { 0.9667, 0.9639 } }; // NNGP and NTK, as neural-tangents has them
    const int all = argc > 1 && strcmp(argv[1], "all") == 0;
    const nt_tape_desc desc = { .parallel = threads_all() };
    int wrong = 0;
    char folder[640];
    kd_result r;
    folder_of(argv[0], "../data/", folder, sizeof folder);
    if (digits_load(&desc, folder, &data, r.error, sizeof r.error)) {
        fprintf(stderr, "%s\n", r.error);
        return 1;
    }
    puts("Infinitely wide networks on handwritten digits, float64; ridge 1e-6 of the mean of the diagonal:\n\n"
         "                          train  test   kernels, s   scratch, bytes   matrices, bytes   solve, s   NNGP     NTK");
    for (kd_kind kind = KD_DENSE; kind < KD_KINDS; kind++) {
        const int part = kind == KD_POOL && !all;
        const kd_options o = { &data, kind, part ? 200 : TRAIN, part ? 100 : TEST, stdout };
        if (kd_main(&desc, &o, &r)) {
            fprintf(stderr, "%s\n", r.error);
            return 1;
        }
        printf("%-24s %6d %5d %12.2f %16zu %17zu %10.2f   %.4f   %.4f\n", name[kind], o.train, o.test, r.kernel_seconds, r.plan.bytes,
               r.matrices, r.solve_seconds, r.nngp_accuracy, r.ntk_accuracy);
        if (kind != KD_POOL) wrong += fabs(r.nngp_accuracy - known[kind][0]) > 0.003 || fabs(r.ntk_accuracy - known[kind][1]) > 0.003;
    }
    if (wrong) puts("These are not the accuracies that neural-tangents gives.");
    return wrong != 0;
}
#endif
