// The kernel of an infinitely wide UNet on photographs: every pixel of one against every pixel of the other, in megabytes.
//
//     make -C examples && examples/build/unet_kernel         ten photographs at 32x32: seconds
//     examples/build/unet_kernel all                         at 64x64: 13.4 GB of numbers pass by
//
// A network that answers for every pixel has a kernel with two pixels in it: (10, 10, 64, 64, 64, 64) for ten photographs, twice, NNGP
// and NTK. Nobody wants to keep that, so nt_kernel hands it over in units, a few pairs of photographs at one offset between pixels at a
// time, to a sink, which keeps what it needs. Here that is the mean over all pairs of pixels, (10, 10), and the covariance of each pixel
// with the one at the same place, (10, 10, 64, 64), which is the offset 0.
//
// How to read the output: of the numbers half pass by, since (j, i) is (i, j) turned over; `worked in` is what nt_kernel_plan
// says beforehand, under a budget of 16 MB. neural-tangents holds a covariance of all pixels for each layer: for ten photographs at 64x64
// it asks for 45.6 GB and fails, and one pair takes it 10 to 12 s on two cores of the same machine. The picture: the NTK's means as
// cosines; the brighter, the more training one photograph moves what the network says of the other.
#include "../nttrain.h"
#include "folder.h"
#include "heatmap.h"
#include "photos.h"
#include "progress.h"
#include "threads.h"
#include <math.h>
#include <string.h>

enum { UNET_BUDGET = 16 << 20, UNET_MOST = PHOTO_SIDE * PHOTO_SIDE };

typedef struct unet_options {
    const char *folder; // of photos64.npy, with its slash
    int photos, shrink; // how many; 1: 64x64, 2: 32x32, 4: 16x16 ...
    size_t budget;
    FILE *out; // where progress goes; NULL: silent
} unet_options;

typedef struct unet_means {
    double nngp, ntk;
} unet_means;
typedef struct unet_result {
    int photos, side;
    nt_kernel_info plan;                     // what it takes, known beforehand
    double seconds, numbers;                 // numbers of one kernel that the sink has seen
    unet_means pair[PHOTOS][PHOTOS];         // over all pairs of pixels
    float ntk_at[PHOTOS][PHOTOS][UNET_MOST]; // each pixel with itself
    float photo[PHOTOS * UNET_MOST];         // (photos, side, side), gray, what the network sees
    char error[640];
} unet_result;

// Convolution and ReLU on a grid, on to one of half the size, or back to one of twice the size.
typedef enum unet_move { UNET_STAY, UNET_DOWN, UNET_UP } unet_move;
static nt_layer *unet_block(nt_tape *t, unet_move move) {
    const int channels = 64; // of the finite network; a kernel asks only that both sides of a skip connection have equally many
    nt_conv_layer_desc desc = { .parameterization = NT_PARAM_NTK, .W_std = 1.5, .b_std = 0.1 };
    if (move != UNET_STAY) desc.conv.stride[0] = desc.conv.stride[1] = 2;
    nt_layer *conv = move == UNET_STAY   ? nt_conv_layer(t, channels, NT_WINDOW(3, 3), &desc)
                     : move == UNET_DOWN ? nt_conv_layer(t, channels, NT_WINDOW(2, 2), &desc)
                                         : nt_conv_transpose_layer(t, channels, NT_WINDOW(2, 2), &desc);
    return NT_SERIAL(t, conv, nt_relu_layer(t));
}

// The coarsest grid in the middle; around it, one after the other, the way down, the way up, and a skip connection beside them.
static nt_layer *unet(nt_tape *t, int depth) {
    const nt_conv_layer_desc readout = { .parameterization = NT_PARAM_NTK, .W_std = 1, .bias = NT_BIAS_OFF };
    nt_layer *net = unet_block(t, UNET_STAY);
    for (int d = 0; d < depth; d++) {
        nt_layer *coarser = NT_SERIAL(t, unet_block(t, UNET_DOWN), net, unet_block(t, UNET_UP));
        nt_layer *both = nt_concat_layer(t, NT_LAST, NT_LAYERS(nt_identity_layer(t), coarser));
        net = NT_SERIAL(t, unet_block(t, UNET_STAY), both, unet_block(t, UNET_STAY));
    }
    return NT_SERIAL(t, net, nt_conv_layer(t, 1, NT_WINDOW(1, 1), &readout));
}

// Gray, smaller by averaging, each with mean 0 and deviation 1.
static nt_status unet_photos(nt_tape *t, const unet_options *o, unet_result *r) {
    static photos photo;
    const int pixels = r->side * r->side;
    nt_status status = photos_load(t, o->folder, photo);
    for (int n = 0; n < r->photos && status == NT_OK; n++) {
        float *gray = r->photo + n * pixels;
        double sum = 0, squares = 0;
        for (int i = 0; i < PHOTO_SIDE * PHOTO_SIDE; i++) {
            const uint8_t *colour = photo[n][i / PHOTO_SIDE][i % PHOTO_SIDE];
            gray[i / PHOTO_SIDE / o->shrink * r->side + i % PHOTO_SIDE / o->shrink] += (float)(colour[0] + colour[1] + colour[2]);
        }
        for (int p = 0; p < pixels; p++) sum += (double)gray[p];
        for (int p = 0; p < pixels; p++) squares += pow((double)gray[p] - sum / pixels, 2);
        for (int p = 0; p < pixels; p++) gray[p] = (float)(((double)gray[p] - sum / pixels) / sqrt(squares / pixels));
    }
    return status;
}

// The sink. A unit has the kernels of some pairs of photographs at one offset between two pixels: of pair k at place p they lie at
// [p * lanes + k]. All of it is added up; the offset 0 is kept.
static int unet_take(void *user, const nt_kernel_unit *u) {
    unet_result *r = (unet_result *)user;
    const float *nngp = (const float *)u->nngp, *ntk = (const float *)u->ntk;
    const int64_t places = u->size.size[0] * u->size.size[1];
    const double all = pow(r->side, 4); // pairs of pixels
    double nngp_sum[PHOTOS * PHOTOS] = { 0 }, ntk_sum[PHOTOS * PHOTOS] = { 0 };
    for (int64_t p = 0; p < places; p++)
        for (int64_t k = 0; k < u->pairs; k++) nngp_sum[k] += (double)nngp[p * u->lanes + k], ntk_sum[k] += (double)ntk[p * u->lanes + k];
    for (int64_t k = 0; k < u->pairs; k++) {
        unet_means *mean = &r->pair[u->i[k]][u->j[k]];
        mean->nngp += nngp_sum[k] / all, mean->ntk += ntk_sum[k] / all;
        if (u->offset.size[0] || u->offset.size[1]) continue;
        for (int64_t p = 0; p < places; p++) r->ntk_at[u->i[k]][u->j[k]][p] = ntk[p * u->lanes + k];
    }
    r->numbers += (double)(u->pairs * places);
    return 0;
}

static nt_status unet_run(nt_tape *t, const unet_options *o, unet_result *r) {
    nt_status status = unet_photos(t, o, r);
    nt_layer *net = unet(t, 2);
    nt_kernel_desc desc = {
        .what = NT_NNGP | NT_NTK, .spatial = NT_FULL, .dtype = NT_F32, .shape = NT_SHAPE(r->side, r->side, 1), .budget = o->budget
    };
    desc.sink.take = unet_take, desc.sink.user = r, desc.progress = nt_progress_bar(progress_terminal(o->out));
    const double start = threads_seconds();
    if (status == NT_OK) status = nt_kernel_plan(net, r->photos, 0, &desc, &r->plan); // 0: against itself, as NULL below
    if (status == NT_OK) status = nt_kernel(net, r->photo, r->photos, NULL, 0, &desc);
    r->seconds = threads_seconds() - start;
    for (int i = 0; i < r->photos; i++) // of (i, j) and (j, i) one was computed, i <= j
        for (int j = 0; j < i; j++) r->pair[i][j] = r->pair[j][i], memcpy(r->ntk_at[i][j], r->ntk_at[j][i], sizeof r->ntk_at[i][j]);
    return status;
}

static int unet_main(const nt_tape_desc *desc, const unet_options *o, unet_result *r) { // 0: computed
    memset(r, 0, sizeof *r);
    r->photos = o->photos, r->side = PHOTO_SIDE / o->shrink;
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? unet_run(t, o, r) : NT_ERROR_MEMORY;
    if (status != NT_OK) snprintf(r->error, sizeof r->error, "%s: %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "?");
    nt_tape_close(t);
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
int main(int argc, char **argv) {
    static unet_result r;
    const int all = argc > 1 && strcmp(argv[1], "all") == 0;
    const nt_tape_desc desc = { .parallel = threads_all() };
    char folder[640], path[640];
    double cosine[PHOTOS * PHOTOS];
    folder_of(argv[0], "../data/", folder, sizeof folder);
    folder_of(argv[0], "unet_kernel.svg", path, sizeof path);
    const unet_options o = { folder, PHOTOS, all ? 1 : 2, UNET_BUDGET, stdout };
    if (unet_main(&desc, &o, &r)) {
        puts(r.error);
        return 1;
    }
    const double whole = pow(r.photos, 2) * pow(r.side, 4) * 2 * sizeof(float), pairs = r.photos * (r.photos + 1) / 2;
    printf("%d photographs at %dx%d: NNGP and NTK of all pairs of pixels are %.2f GB of numbers, %.2f passed by\n", r.photos, r.side,
           r.side, 1e-9 * whole, 1e-9 * r.numbers * 2 * sizeof(float));
    printf("worked in %zu bytes (budget %d, %d threads), kept %zu; %.2f s, %.1f ms for each of %.0f pairs\n\n", r.plan.bytes, UNET_BUDGET,
           r.plan.workers, sizeof r.pair + sizeof r.ntk_at, r.seconds, 1e3 * r.seconds / pairs, pairs);
    puts("NTK, means over all pairs of pixels, as cosines:");
    for (int i = 0; i < PHOTOS * PHOTOS; i++) {
        const int row = i / PHOTOS, column = i % PHOTOS;
        cosine[i] = r.pair[row][column].ntk / sqrt(r.pair[row][row].ntk * r.pair[column][column].ntk);
        printf("%7.3f%s", cosine[i], column + 1 < PHOTOS ? "" : "\n");
    }
    const heatmap h = { "The NTK of an infinitely wide UNet: means over all pairs of pixels, as cosines", PHOTOS, cosine, r.photo, r.side };
    if (heatmap_write(path, &h)) {
        puts("the picture could not be written");
        return 1;
    }
    if (r.numbers != pairs * pow(r.side, 4)) {
        puts("not every number has passed by once");
        return 1;
    }
    printf("drawn in %s\n", path);
    return 0;
}
#endif
