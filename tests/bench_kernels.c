// bench_kernels [THREADS [CASE]]: seconds for each pair of images and each entry of the whole matrix, and bytes, of the kernels that
// peers/nt_kernels.py computes with neural_tangents; NNGP and NTK together, images against themselves. For figures, not for pass or fail.
// bench_kernels THREADS CASE IMAGES FILE: the numbers instead, (f32, f64; NNGP, NTK; images, images; pixels, pixels), as .npy. Of an output
// with positions every STEP-th pixel.
#include "nttrain.h"
#include "crew.h"
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static nt_conv_layer_desc window(int stride, double W, double b) { // b below 0: no bias
    nt_conv_layer_desc d;
    memset(&d, 0, sizeof d);
    d.parameterization = NT_PARAM_NTK, d.W_std = W, d.conv.padding = NT_SAME;
    d.conv.stride[0] = d.conv.stride[1] = stride;
    d.bias = b < 0 ? NT_BIAS_OFF : NT_BIAS_ON, d.b_std = b < 0 ? 0 : b;
    return d;
}

static nt_layer *dense(nt_tape *t, double W, double b) {
    nt_dense_desc d;
    memset(&d, 0, sizeof d);
    d.parameterization = NT_PARAM_NTK, d.W_std = W, d.b_std = b;
    return nt_dense_layer(t, 1, &d);
}

static nt_layer *conv_relu(nt_tape *t, int size, int stride, double W, double b) {
    nt_conv_layer_desc d = window(stride, W, b);
    return NT_SERIAL(t, nt_conv_layer(t, 1, NT_WINDOW(size, size), &d), nt_relu_layer(t));
}

static nt_layer *cnn(nt_tape *t, nt_layer *readout) { // 20 convolutions
    nt_layer *l[22];
    for (int k = 0; k < 20; k++) l[k] = conv_relu(t, 3, 1, sqrt(2), 0.1);
    l[20] = readout, l[21] = dense(t, 1, 0);
    return nt_serial_layer(t, 22, l);
}

static nt_layer *cnn_pooled(nt_tape *t) { return cnn(t, nt_global_avg_pool_layer(t)); }
static nt_layer *cnn_flat(nt_tape *t) { return cnn(t, nt_flatten_layer(t)); }

static nt_layer *unet_level(nt_tape *t, nt_layer *inside) {
    nt_conv_layer_desc up = window(2, 1.5, 0.1);
    nt_layer *lower = NT_SERIAL(t, conv_relu(t, 2, 2, 1.5, 0.1), inside, nt_conv_transpose_layer(t, 1, NT_WINDOW(2, 2), &up), nt_relu_layer(t));
    return NT_SERIAL(t, conv_relu(t, 3, 1, 1.5, 0.1), nt_concat_layer(t, NT_LAST, NT_LAYERS(nt_identity_layer(t), lower)), conv_relu(t, 3, 1, 1.5, 0.1));
}

static nt_layer *unet(nt_tape *t) {
    nt_conv_layer_desc last = window(1, 1, 0);
    nt_layer *net = conv_relu(t, 3, 1, 1.5, 0.1);
    for (int k = 0; k < 2; k++) net = unet_level(t, net);
    return NT_SERIAL(t, net, nt_conv_layer(t, 1, NT_WINDOW(1, 1), &last));
}

static nt_layer *myrtle(nt_tape *t) {
    nt_layer *l[11];
    int n = 0;
    for (int k = 0; k < 4; k++) {
        l[n++] = conv_relu(t, 3, 1, sqrt(2), -1);
        if (k) l[n++] = nt_avg_pool_layer(t, NT_WINDOW(2, 2));
    }
    for (int k = 0; k < 2; k++) l[n++] = nt_avg_pool_layer(t, NT_WINDOW(2, 2));
    l[n++] = nt_flatten_layer(t), l[n++] = dense(t, sqrt(2), 0);
    return nt_serial_layer(t, n, l);
}

static nt_layer *connected(nt_tape *t) {
    nt_layer *l[11];
    for (int k = 0; k < 11; k++) l[k] = k % 2 ? nt_relu_layer(t) : dense(t, 1.5, 0.05);
    return nt_serial_layer(t, 11, l);
}

static int reduce(void *user, const nt_kernel_unit *u) { // full outputs go by
    *(double *)user += ((const float *)u->nngp)[0] + ((const float *)u->ntk)[0];
    return 0;
}

// Image by image, row-major: both programs have the same.
static double image_number(int64_t k) { // in [-0.4375, 0.5625), with 24 bits, so that it is exact in f32
    uint32_t h = (uint32_t)k * 2654435761u;
    h ^= h >> 16, h *= 73244475u, h ^= h >> 16;
    return (double)(h >> 8) / 16777216 - 0.4375;
}

typedef struct bench { const char *name; nt_layer *(*net)(nt_tape *t); int rank; int64_t size[3]; int64_t images; int streamed; } bench;
static const bench benches[] = {
    { "cntk21_gap", cnn_pooled, 3, { 32, 32, 3 }, 8, 0 }, { "cntk21_flat", cnn_flat, 3, { 32, 32, 3 }, 20, 0 }, { "myrtle", myrtle, 3, { 32, 32, 3 }, 8, 0 },
    { "unet64", unet, 3, { 64, 64, 1 }, 5, 1 },           { "fc5", connected, 1, { 784, 0, 0 }, 1000, 0 },
};

static void run(const bench *b, int threads, nt_isa isa, const char *name) {
    nt_tape_desc td;
    nt_kernel_desc d;
    crew c;
    double sum = 0, best = 1e9;
    memset(&td, 0, sizeof td), memset(&d, 0, sizeof d);
    crew_hire(&c, threads);
    td.isa = isa;
    if (threads > 1) td.parallel = crew_parallel(&c);
    nt_tape *t = nt_tape_open(&td);
    if (!t) return; // the machine lacks the instruction set
    d.shape = nt_shape_make(b->rank, b->size);
    int64_t elements = 1, n = b->images, pairs = n * (n + 1) / 2;
    for (int k = 0; k < b->rank; k++) elements *= b->size[k];
    float *x = (float *)malloc(sizeof *x * (size_t)(elements * n)), *nngp = (float *)malloc(sizeof *x * (size_t)(n * n)), *ntk = (float *)malloc(sizeof *x * (size_t)(n * n));
    for (int64_t k = 0; x && k < elements * n; k++) x[k] = (float)image_number(k);
    if (b->streamed) d.sink.take = reduce, d.sink.user = &sum;
    else d.nngp = nngp, d.ntk = ntk;
    nt_layer *net = b->net(t);
    nt_kernel_info info;
    nt_kernel_plan(net, n, 0, &d, &info);
    nt_status status = NT_OK;
    double began = now();
    for (int r = 0; status == NT_OK && (r < 2 || now() - began < 0.3); r++) {
        double start = now();
        status = nt_kernel(net, x, n, NULL, 0, &d);
        if (now() - start < best) best = now() - start;
    }
    if (status != NT_OK) printf("%s: %s\n", b->name, nt_error(t));
    else
        printf("%-12s %-8s %d threads, %lld images: %.3f s, %.3g ms a pair, %.3g ms an entry, %.2f MB (a worker: %.2f)\n", b->name, name,
               threads, (long long)n, best, best * 1e3 / (double)pairs, best * 1e3 / (double)(n * n), (double)info.bytes / 1e6,
               (double)info.worker_bytes / 1e6);
    fflush(stdout);
    free(x), free(nngp), free(ntk);
    nt_tape_close(t);
}

enum { STEP = 37 };
typedef struct numbers { nt_dtype dtype; int64_t images, pixels; double *kernel[2]; } numbers; // (images, images, pixels, pixels)

static double number_of(nt_dtype dtype, const void *data, int64_t k) {
    return dtype == NT_F64 ? ((const double *)data)[k] : (double)((const float *)data)[k];
}

// The index among those that are kept, or -1.
static int64_t kept(const nt_kernel_unit *u, const int64_t *sizes, int64_t p, int second) {
    int64_t at[2], width = u->size.size[1];
    for (int k = 0; k < 2; k++) at[k] = u->start.size[k] + (k ? p % width : p / width) + (second ? u->offset.size[k] : 0);
    int64_t pixel = at[0] * sizes[1] + at[1];
    return pixel % STEP ? -1 : pixel / STEP;
}

typedef struct keeper { numbers *n; const int64_t *sizes; } keeper;
static int keep(void *user, const nt_kernel_unit *u) {
    const keeper *c = (const keeper *)user;
    int64_t m = c->n->pixels, n = c->n->images;
    for (int64_t p = 0; p < u->size.size[0] * u->size.size[1]; p++) {
        int64_t one = kept(u, c->sizes, p, 0), two = kept(u, c->sizes, p, 1);
        for (int64_t k = 0; one >= 0 && two >= 0 && k < u->pairs; k++)
            for (int w = 0; w < 2; w++) {
                double v = number_of(c->n->dtype, w ? u->ntk : u->nngp, p * u->lanes + k);
                c->n->kernel[w][((u->i[k] * n + u->j[k]) * m + one) * m + two] = v;
                c->n->kernel[w][((u->j[k] * n + u->i[k]) * m + two) * m + one] = v;
            }
    }
    return 0;
}

static int compute(const bench *b, int threads, numbers *n) {
    nt_tape_desc td;
    nt_kernel_desc d;
    crew c;
    keeper k = { n, b->size };
    int64_t elements = n->images, size = n->dtype == NT_F64 ? 8 : 4, entries = n->images * n->images;
    memset(&td, 0, sizeof td), memset(&d, 0, sizeof d), crew_hire(&c, threads);
    if (threads > 1) td.parallel = crew_parallel(&c);
    for (int a = 0; a < b->rank; a++) elements *= b->size[a];
    char *x = (char *)malloc((size_t)(elements * size)), *out = (char *)malloc((size_t)(2 * entries * size));
    for (int64_t e = 0; e < elements; e++)
        if (size == 8) ((double *)x)[e] = image_number(e);
        else ((float *)x)[e] = (float)image_number(e);
    nt_tape *t = nt_tape_open(&td);
    d.shape = nt_shape_make(b->rank, b->size), d.dtype = n->dtype;
    if (b->streamed) d.sink.take = keep, d.sink.user = &k;
    else d.nngp = out, d.ntk = out + entries * size;
    nt_status status = nt_kernel(b->net(t), x, n->images, NULL, 0, &d);
    if (status != NT_OK) fprintf(stderr, "%s: %s\n", b->name, nt_error(t));
    for (int64_t e = 0; !b->streamed && e < 2 * entries; e++) n->kernel[e / entries][e % entries] = number_of(n->dtype, out, e);
    free(x), free(out), nt_tape_close(t);
    return status == NT_OK;
}

static int write_numbers(const bench *b, int threads, int64_t images, const char *path) {
    int64_t pixels = b->streamed ? (b->size[0] * b->size[1] + STEP - 1) / STEP : 1, one = images * images * pixels * pixels;
    double *all = (double *)calloc((size_t)(4 * one), sizeof *all);
    int ok = all != NULL;
    for (int f64 = 0; f64 < 2 && ok; f64++) {
        numbers n = { f64 ? NT_F64 : NT_F32, images, pixels, { all + 2 * f64 * one, all + (2 * f64 + 1) * one } };
        ok = compute(b, threads, &n);
    }
    nt_tape *t = nt_tape_open(NULL);
    int64_t size[6] = { 2, 2, images, images, pixels, pixels };
    ok = ok && nt_npy_write(t, nt_io_open(t, path, "wb"), NT_F64, nt_shape_make(6, size), all) == NT_OK;
    nt_tape_close(t), free(all);
    return ok;
}

int main(int argc, char **argv) {
    int threads = argc > 1 ? atoi(argv[1]) : 2;
    for (size_t k = 0; k < sizeof benches / sizeof benches[0]; k++) {
        if (argc > 2 && strcmp(argv[2], benches[k].name) != 0) continue;
        if (argc > 4) return !write_numbers(&benches[k], threads, atoi(argv[3]), argv[4]);
        run(&benches[k], threads, NT_ISA_AUTO, "best");
        run(&benches[k], threads, NT_ISA_AVX2, "AVX2");
        run(&benches[k], threads, NT_ISA_BASELINE, "portable");
    }
    return 0;
}
