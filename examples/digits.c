// Handwritten digits, learned inside one static array: no heap, no other memory than what is written down here.
//
//     make -C examples && examples/build/digits          one seed: the plan, the progress, the accuracy
//     examples/build/digits 1..5                          five seeds and their median
//
// The tape, its nodes, the programs, the parameters, the optimizer's state and the scratch live in `arena`. The heap is
// configured out of the library (NTTRAIN_NO_MALLOC), so there is nothing else that they could live in.
#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
#define NTTRAIN_NO_MALLOC
#define NTTRAIN_IMPLEMENTATION
#endif
#include "../nttrain.h"
#include "digits_data.h"
#include "folder.h"
#include "picture.h"
#include "progress.h"
#include <string.h>
#include <time.h>

enum { BATCH = 32, BATCHES = TRAIN / BATCH, EPOCHS = 30 };

typedef struct digits_options {
    const digits_data *data;
    uint64_t seed;
    int epochs, batches, test_images; // EPOCHS, BATCHES and TEST; the tests ask for less
    FILE *out;                        // where progress goes; NULL: silent
    int print_plan;
    const char *picture;              // the loss curve as an SVG file; NULL: none
} digits_options;

typedef struct digits_result {
    double accuracy, loss, first_step, seconds;
    uint64_t checksum; // of the parameters
    nt_report_info plan;
    nt_memory_use memory;
    char error[640];
} digits_result;

typedef struct digits_net { // what outlives the recording
    nt_tensor *pixels, *digit;
    nt_layer *layers;
    nt_program *step, *answer;
} digits_net;

// A stream of random numbers for shuffling, the same on every machine.
typedef struct digits_random { nt_key_value key; uint32_t drawn; } digits_random;

static int below(digits_random *r, int n) {
    return (int)(nt_key_fold_in(r->key, r->drawn++).word[0] % (uint32_t)n);
}

static double seconds_used(void) {
    return (double)clock() / CLOCKS_PER_SEC;
}

// Record and compile. Afterwards the memory is laid out, and nothing is allocated any more.
static nt_status build(nt_tape *t, uint64_t seed, digits_net *net) {
    // The inputs are the bytes of the file; the division by 16 is part of the program.
    net->pixels = nt_name(nt_input(t, NT_U8, NT_SHAPE(BATCH, SIDE, SIDE, 1)), "pixels");
    net->digit = nt_name(nt_input(t, NT_U8, NT_SHAPE(BATCH)), "digit");
    nt_tensor *image = nt_scale(nt_cast(net->pixels, NT_F32), 1.0 / 16), *label = nt_cast(net->digit, NT_I32);

    net->layers = NT_SERIAL(t, nt_conv_layer(t, 16, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_conv_layer(t, 32, NT_WINDOW(3, 3), NULL), nt_relu_layer(t),
                            nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_dropout_layer(t, 0.5), nt_flatten_layer(t), nt_dense_layer(t, 10, NULL));
    nt_init(net->layers, nt_key(seed), image);

    // The target gives 0.9 to the right digit and shares the rest among all: nobody is too sure. So the loss stays above 0.5.
    nt_cross_entropy_desc smooth = { .smoothing = 0.1 };
    nt_apply_desc training = { .train = 1, .key = nt_key_fold_in(nt_key(seed), 1) };
    nt_tensor *loss = nt_mean(nt_cross_entropy_with(nt_apply(net->layers, image, &training), label, &smooth));
    nt_adamw_desc adamw = { .learning_rate = 4e-3, .weight_decay = 1e-2 };
    net->step = nt_compile_step(loss, nt_adamw(t, &adamw), NULL);

    // Answering needs less than learning, and never happens at the same time: both use the same scratch.
    nt_tensor *answer = nt_argmax(nt_apply(net->layers, image, NULL), NT_LAST);
    net->answer = nt_compile(answer, &(nt_compile_desc){ .share_scratch = net->step });
    if (!net->step || !net->answer) return nt_error_status(t);
    nt_forget_nodes(t); // the recording is not needed any more; inputs, parameters and programs stay
    return NT_OK;
}

// Copies a picture, moved by up to one pixel: the writers of the test images did not all write in the middle.
static void copy_moved(uint8_t *to, const uint8_t *from, int down, int right) {
    for (int y = 0; y < SIDE; y++) {
        for (int x = 0; x < SIDE; x++) {
            int v = y - down, u = x - right;
            to[y * SIDE + x] = (uint8_t)(v >= 0 && v < SIDE && u >= 0 && u < SIDE ? from[v * SIDE + u] : 0);
        }
    }
}

static nt_status write_batch(const digits_net *net, const digits_data *data, const int *order, digits_random *random) {
    uint8_t pixels[BATCH * PIXELS], digit[BATCH];
    for (int n = 0; n < BATCH; n++) {
        int down = below(random, 3) - 1, right = below(random, 3) - 1;
        copy_moved(pixels + n * PIXELS, data->pixel + order[n] * PIXELS, down, right);
        digit[n] = data->label[order[n]];
    }
    nt_status status = nt_write(net->pixels, pixels);
    return status == NT_OK ? nt_write(net->digit, digit) : status;
}

static void shuffle(int *order, int count, digits_random *random) {
    for (int i = count - 1; i > 0; i--) {
        int k = below(random, i + 1), other = order[k];
        order[k] = order[i];
        order[i] = other;
    }
}

static nt_status learn(const digits_net *net, const digits_options *o, float *losses, float *means, digits_result *r) {
    digits_random random = { nt_key_fold_in(nt_key(o->seed), 2), 0 };
    progress bar = progress_begin(o->out);
    const double rate = nt_learning_rate(net->step);
    const int steps = o->epochs * o->batches;
    char text[96];
    int order[TRAIN];
    for (int i = 0; i < TRAIN; i++) order[i] = i;
    for (int i = 0; i < steps; i++) {
        const int batch = i % o->batches, epoch = i / o->batches;
        if (batch == 0) shuffle(order, TRAIN, &random); // the last 29 of this order sit the epoch out
        nt_set_learning_rate(net->step, rate * (steps - i) / steps);
        nt_status status = write_batch(net, o->data, order + batch * BATCH, &random);
        if (status == NT_OK) status = nt_run(net->step);
        if (status != NT_OK) return status;
        if (i == 0) r->first_step = seconds_used();
        r->loss = nt_window_loss(net->step);
        losses[i] = (float)r->loss;
        means[epoch] += (float)r->loss / (float)o->batches;
        snprintf(text, sizeof text, "epoch %2d of %d  loss %.4f", epoch + 1, o->epochs, (double)(epoch ? means[epoch - 1] : losses[i]));
        progress_bar(&bar, i + 1, steps, text);
        if (batch + 1 < o->batches || (epoch > 0 && (epoch + 1) % 5 != 0)) continue;
        snprintf(text, sizeof text, "epoch %2d of %d  loss %.4f  rate %.5f", epoch + 1, o->epochs, (double)means[epoch], nt_learning_rate(net->step));
        progress_milestone(&bar, text);
    }
    progress_end(&bar);
    return NT_OK;
}

// The share of the test images that are read correctly. The last batch is filled up with images that do not count.
static nt_status test(const digits_net *net, const digits_options *o, double *accuracy) {
    int32_t answer[BATCH];
    int right = 0;
    for (int first = 0; first < o->test_images; first += BATCH) {
        int start = TRAIN + (first + BATCH <= TEST ? first : TEST - BATCH); // no batch reaches past the end
        nt_status status = nt_write(net->pixels, o->data->pixel + start * PIXELS);
        if (status == NT_OK) status = nt_run(net->answer);
        if (status == NT_OK) status = nt_read(net->answer, 0, answer);
        if (status != NT_OK) return status;
        for (int i = TRAIN + first; i < start + BATCH && i < TRAIN + o->test_images; i++) right += answer[i - start] == o->data->label[i];
    }
    *accuracy = o->test_images ? (double)right / o->test_images : 0;
    return NT_OK;
}

// FNV-1a over the parameters' bytes: two runs that print the same number have learned the same bits.
static uint64_t checksum(nt_params params) {
    uint64_t hash = 14695981039346656037u;
    for (int i = 0; i < params.count; i++) {
        const unsigned char *bytes = (const unsigned char *)nt_data(params.items[i]);
        for (size_t k = 0; k < nt_bytes(params.items[i]); k++) hash = (hash ^ bytes[k]) * 1099511628211u;
    }
    return hash;
}

static int draw_losses(const digits_options *o, const float *losses, const float *means) {
    const int steps = o->epochs * o->batches;
    const picture p = { .title = "Learning 1,437 handwritten digits",
                        .x_title = "epoch",
                        .y_title = "loss (smoothed cross-entropy)",
                        .x_end = o->epochs,
                        .y_end = 2.5 };
    const picture_curve curves[] = {
        { .name = "each batch of 32",
          .colour = "#a8c4e0",
          .width = 0.8,
          .y = losses,
          .count = steps,
          .first_x = 1.0 / o->batches,
          .last_x = o->epochs },
        { .name = "mean of each epoch",
          .colour = "#1f4e8c",
          .width = 2,
          .y = means,
          .count = o->epochs,
          .first_x = 0.5,
          .last_x = o->epochs - 0.5 },
    };
    return picture_write(o->picture, &p, curves, 2);
}

static nt_status digits_on_tape(nt_tape *t, const digits_options *o, digits_result *r) {
    float losses[EPOCHS * BATCHES], means[EPOCHS] = { 0 };
    digits_net net;
    nt_status status = build(t, o->seed, &net);
    if (status != NT_OK) return status;
    r->plan = nt_report(net.step);
    if (o->out && o->print_plan) nt_report_print(net.step, o->out);
    status = learn(&net, o, losses, means, r);
    if (status == NT_OK) status = test(&net, o, &r->accuracy);
    if (status != NT_OK) return status;
    r->checksum = checksum(nt_parameters(net.layers));
    if (o->picture && draw_losses(o, losses, means)) return NT_ERROR_FILE;
    return NT_OK;
}

// desc says where the memory comes from. 0: learned and tested; otherwise r->error says what went wrong.
static int digits_train(const nt_tape_desc *desc, const digits_options *o, digits_result *r) {
    memset(r, 0, sizeof *r);
    const double start = seconds_used();
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? digits_on_tape(t, o, r) : NT_ERROR_MEMORY;
    explain(t, status, r->error, sizeof r->error);
    if (t) r->memory = nt_memory(t);
    nt_tape_close(t);
    r->seconds = seconds_used() - start;
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN
static unsigned char arena[1 << 20];
static digits_data data;

static double median(double *x, int n) {
    for (int i = 1; i < n; i++) {
        for (int k = i; k > 0 && x[k] < x[k - 1]; k--) {
            double other = x[k];
            x[k] = x[k - 1];
            x[k - 1] = other;
        }
    }
    return (x[(n - 1) / 2] + x[n / 2]) / 2;
}

int main(int argc, char **argv) {
    char path[640];
    unsigned first = 1, last = 1;
    double accuracy[64];
    digits_result r;
    if (argc > 1) {
        int read = sscanf(argv[1], "%u..%u", &first, &last);
        if (read == 1) last = first;
        if (read < 1 || argc > 2 || last < first || last - first >= 64) {
            fprintf(stderr, "usage: digits [seed | first..last], at most 64 seeds\n");
            return 2;
        }
    }
    const nt_tape_desc desc = { .memory = arena, .memory_size = sizeof arena };
    folder_of(argv[0], "../data/", path, sizeof path);
    if (digits_load(&desc, path, &data, r.error, sizeof r.error)) {
        fprintf(stderr, "%s\n", r.error);
        return 1;
    }
    folder_of(argv[0], "digits_loss.svg", path, sizeof path);
    for (unsigned seed = first; seed <= last; seed++) {
        digits_options o = { &data, seed, EPOCHS, BATCHES, TEST, stdout, seed == first, seed == first ? path : NULL };
        if (digits_train(&desc, &o, &r)) {
            fprintf(stderr, "%s\n", r.error);
            return 1;
        }
        accuracy[seed - first] = r.accuracy;
        if (seed == first) printf("first step finished %.1f ms after the start; loss curve: %s\n", 1e3 * r.first_step, path);
        printf("seed %u: test accuracy %.4f  %.2f s  peak %zu bytes (lower bound %zu)  array %zu of %zu bytes (least %zu)  checksum %016llx\n", seed,
               r.accuracy, r.seconds, r.plan.peak, r.plan.lower_bound, r.memory.total, sizeof arena, r.memory.total_least, (unsigned long long)r.checksum);
    }
    if (last > first) printf("median test accuracy of %u seeds: %.4f\n", last - first + 1, median(accuracy, (int)(last - first + 1)));
    return 0;
}
#endif
