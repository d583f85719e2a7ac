// Monte-Carlo: gradients through many samples in the memory of one.
//
//     make -C examples && examples/build/monte_carlo
//
// An encoder says of every pixel of a photograph a mean and a standard deviation; a decoder gets a sample of that and says again a
// mean and a standard deviation. The loss is how unlikely the photograph is, averaged over many samples (no prior, so no variational
// autoencoder; a density, so it may become negative). Elsewhere the backward pass
// wants every sample's intermediate values at once. Here nt_map records one sample, and the compiler runs forward and backward
// of one sample after the other: gradients reach decoder and encoder, and the bytes do not depend on the number of samples.
#include "../nttrain.h"
#include "folder.h"
#include "photos.h"
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MC_BATCH = 4, MC_SIDE = PHOTO_SIDE, MC_CHANNELS = 16, MC_PARAMS = 12 };

typedef struct mc_options {
    const char *folder;       // of photos64.npy, with its slash
    int samples, steps;       // samples of one estimate; training steps
    int64_t chunk;            // samples computed together
} mc_options;

typedef struct mc_result {
    double loss, first_loss, milliseconds; // the loss after and before training; processor time of one gradient
    size_t scratch;
    int gradients;                         // numbers in gradient
    float gradient[8192];                  // of the first step
    char error[640];
} mc_result;

typedef struct mc_gaussian { nt_tensor *mean, *deviation; } mc_gaussian; // one of each for every pixel

static nt_layer *convolutions(nt_tape *t) {
    return NT_SERIAL(t, nt_conv_layer(t, MC_CHANNELS, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_conv_layer(t, MC_CHANNELS, NT_WINDOW(3, 3), NULL),
                     nt_relu_layer(t), nt_conv_layer(t, 2, NT_WINDOW(3, 3), NULL));
}

static mc_gaussian gaussian_of(nt_layer *net, nt_tensor *x) {
    nt_tensor *y = nt_apply(net, x, NULL);
    mc_gaussian g = { nt_slice_axis(y, NT_LAST, 0, 1), nt_add_scalar(nt_softplus(nt_slice_axis(y, NT_LAST, 1, 2)), 1e-3) };
    return g;
}

// log N(x; mean, deviation^2) without its constant, summed over the pixels, averaged over the photographs
static nt_tensor *log_likelihood(nt_tensor *x, mc_gaussian g) {
    nt_tensor *z = nt_div(nt_sub(x, g.mean), g.deviation);
    return nt_scale(nt_sum(nt_sub(nt_scale(nt_square(z), -0.5), nt_log(g.deviation))), 1.0 / MC_BATCH);
}

static nt_tensor *mc_loss(nt_tape *t, nt_layer *encoder, nt_layer *decoder, nt_tensor *x, const mc_options *o) {
    nt_map_desc desc = { .chunk = o->chunk };
    nt_tensor *key = nt_step_key(t, nt_key(7)); // new noise in every step
    mc_gaussian latent = gaussian_of(encoder, x);
    nt_map *m = nt_map_begin(t, o->samples, &desc);
    nt_tensor *noise = nt_normal(nt_fold_in(key, nt_map_index(m)), NT_F32, nt_shape_of(x));
    nt_tensor *sample = nt_add(latent.mean, nt_mul(latent.deviation, noise));
    nt_tensor *mean = nt_map_mean(m, log_likelihood(x, gaussian_of(decoder, sample)));
    nt_map_end(m);
    return nt_neg(mean);
}

// Four of the ten photographs, grey, with mean 0 and deviation 1.
static nt_status mc_photos(nt_tape *t, const char *folder, nt_tensor *x) {
    static photos rgb;
    static float grey[MC_BATCH * MC_SIDE * MC_SIDE];
    nt_status status = photos_load(t, folder, rgb);
    if (status != NT_OK) return status;
    double sum = 0, squares = 0;
    for (int k = 0; k < MC_BATCH * MC_SIDE * MC_SIDE; k++) {
        const uint8_t *p = rgb[k / (MC_SIDE * MC_SIDE)][k / MC_SIDE % MC_SIDE][k % MC_SIDE];
        grey[k] = 0.299f * (float)p[0] + 0.587f * (float)p[1] + 0.114f * (float)p[2];
        sum += (double)grey[k], squares += (double)grey[k] * (double)grey[k];
    }
    double n = MC_BATCH * MC_SIDE * MC_SIDE, mean = sum / n, deviation = sqrt(squares / n - mean * mean);
    for (int k = 0; k < MC_BATCH * MC_SIDE * MC_SIDE; k++) grey[k] = (float)(((double)grey[k] - mean) / deviation);
    return nt_write(x, grey);
}

static double mc_milliseconds(void) { return 1e3 * (double)clock() / CLOCKS_PER_SEC; }

// The gradients of the first step, as one list of numbers.
static nt_status mc_gradient(nt_tape *t, nt_tensor *loss, nt_params params, mc_result *r) {
    nt_program *p = nt_compile_many(t, nt_grads(loss, params), NULL);
    if (!p) return nt_error_status(t);
    r->scratch = nt_report(p).peak;
    nt_status status = nt_run(p); // once to warm up
    double before = mc_milliseconds();
    if (status == NT_OK) status = nt_run(p);
    r->milliseconds = mc_milliseconds() - before;
    for (int k = 0; k < params.count && status == NT_OK; k++) {
        status = nt_read(p, k, r->gradient + r->gradients);
        r->gradients += (int)(nt_output_bytes(p, k) / sizeof(float));
    }
    return status;
}

static nt_status mc_learn(nt_tape *t, const mc_options *o, mc_result *r) {
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(MC_BATCH, MC_SIDE, MC_SIDE, 1)), *list[MC_PARAMS];
    nt_status status = mc_photos(t, o->folder, x);
    if (status != NT_OK) return status;
    nt_layer *encoder = convolutions(t), *decoder = convolutions(t);
    nt_init(encoder, nt_key(1), x), nt_init(decoder, nt_key(2), x);
    nt_tensor *loss = mc_loss(t, encoder, decoder, x, o);
    nt_params params = { 0, list }, part[2] = { nt_parameters(encoder), nt_parameters(decoder) };
    for (int j = 0; j < 2; j++)
        for (int k = 0; k < part[j].count; k++) list[params.count++] = part[j].items[k];
    status = mc_gradient(t, loss, params, r);
    if (status != NT_OK || !o->steps) return status;
    nt_program *step = nt_compile_step(loss, nt_adam(t, &(nt_adam_desc){ .learning_rate = 2e-3 }), NULL);
    if (!step) return nt_error_status(t);
    for (int k = 0; k < o->steps && status == NT_OK; k++) {
        status = nt_run(step);
        r->loss = nt_window_loss(step);
        if (!k) r->first_loss = r->loss;
    }
    return status;
}

static int mc_main(const nt_tape_desc *desc, const mc_options *o, mc_result *r) { // 0: learned
    memset(r, 0, sizeof *r);
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? mc_learn(t, o, r) : NT_ERROR_MEMORY;
    if (status != NT_OK) snprintf(r->error, sizeof r->error, "%s: %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "?");
    nt_tape_close(t);
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
int main(int argc, char **argv) {
    static mc_result r, all;
    char folder[640];
    static const int table[][2] = { { 1, 1 }, { 4, 1 }, { 16, 1 }, { 64, 1 }, { 16, 4 }, { 16, 16 } };
    (void)argc;
    folder_of(argv[0], "../data/", folder, sizeof folder);
    puts("Gradients of an encoder and a decoder through S samples, C of them computed together:\n\n       S   C    scratch bytes   ms a gradient");
    for (size_t k = 0; k < sizeof table / sizeof table[0]; k++) {
        mc_options o = { folder, table[k][0], 0, table[k][1] };
        if (mc_main(NULL, &o, &r)) { puts(r.error); return 1; }
        printf("%8d%4d%17zu%12.1f\n", table[k][0], table[k][1], r.scratch, r.milliseconds);
    }
    mc_options together = { folder, 16, 0, 16 }, training = { folder, 16, 40, 1 };
    double largest = 0, difference = 0;
    if (mc_main(NULL, &together, &all) || mc_main(NULL, &training, &r)) { puts(all.error[0] ? all.error : r.error); return 1; }
    for (int k = 0; k < r.gradients; k++) {
        if (fabs((double)all.gradient[k]) > largest) largest = fabs((double)all.gradient[k]);
        if (fabs((double)all.gradient[k] - (double)r.gradient[k]) > difference) difference = fabs((double)all.gradient[k] - (double)r.gradient[k]);
    }
    printf("\nThe %d gradients for C = 1 and C = 16 differ by %.1e of the largest.\n", r.gradients, difference / largest);
    printf("%d training steps with 16 samples: loss %.1f to %.1f.\n", training.steps, r.first_loss, r.loss);
    return 0;
}
#endif
