// Threads: two tapes in two threads never meet, and a program that runs on the host's threads gives the same bits for any number
// of them. Run under the thread sanitizer by check_all.sh.
#include "crew.h"
#include "nttrain.h"
#include "tap.h"
#include <stdlib.h>

enum { BATCH = 32, CLASSES = 10, STEPS = 6, MOST_WORKERS = 4 };

// ---------------------------------------------------------------------------------------------------------------------
// A small convolutional network, trained for a few steps on made-up images
// ---------------------------------------------------------------------------------------------------------------------
static uint64_t mix(uint64_t hash, const void *data, size_t bytes) {
    const unsigned char *b = (const unsigned char *)data;
    for (size_t i = 0; i < bytes; i++) hash = (hash ^ b[i]) * 1099511628211u;
    return hash;
}

// The bits of all parameters after training; 0 if anything failed.
static uint64_t train(const nt_tape_desc *desc, uint64_t seed) {
    nt_tape *t = nt_tape_open(desc);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(BATCH, 12, 12, 3)), *y = nt_input(t, NT_I32, NT_SHAPE(BATCH));
    nt_layer *net = NT_SERIAL(t, nt_conv_layer(t, 16, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_dropout_layer(t, 0.25),
                              nt_flatten_layer(t), nt_dense_layer(t, 64, NULL), nt_layer_norm_layer(t, NULL), nt_gelu_layer(t), nt_dense_layer(t, CLASSES, NULL));
    nt_apply_desc training;
    memset(&training, 0, sizeof training);
    training.train = 1;
    training.key = nt_key(seed + 1);
    uint64_t hash = 14695981039346656037u;
    if (nt_init(net, nt_key(seed), x) != NT_OK) hash = 0;
    nt_program *step = nt_compile_step(nt_mean(nt_cross_entropy(nt_apply(net, x, &training), y)), nt_adam(t, NULL), NULL);
    float *pixels = (float *)malloc(sizeof(float) * (size_t)nt_size(x));
    int32_t labels[BATCH];
    for (int k = 0; k < STEPS && step && pixels; k++) {
        for (int64_t i = 0; i < nt_size(x); i++) pixels[i] = (float)((i * 37 + k * 11 + (int64_t)seed) % 101) / 101.0f;
        for (int i = 0; i < BATCH; i++) labels[i] = (i * 7 + k) % CLASSES;
        if (nt_write(x, pixels) != NT_OK || nt_write(y, labels) != NT_OK || nt_run(step) != NT_OK) hash = 0;
    }
    nt_params p = nt_parameters(net);
    for (int k = 0; k < p.count && hash; k++) hash = mix(hash, nt_data(p.items[k]), nt_bytes(p.items[k]));
    if (nt_error(t)) tap_note("%s", nt_error(t));
    if (!step || nt_error(t)) hash = 0;
    free(pixels);
    nt_tape_close(t);
    return hash;
}

typedef struct job { uint64_t seed, hash; } job;
static void *train_alone(void *user) {
    job *j = (job *)user;
    j->hash = train(NULL, j->seed);
    return NULL;
}

static void test_two_tapes(void) {
    pthread_t threads[2];
    job jobs[2] = { { 1, 0 }, { 2, 0 } };
    for (int k = 0; k < 2; k++) pthread_create(&threads[k], NULL, train_alone, &jobs[k]);
    for (int k = 0; k < 2; k++) pthread_join(threads[k], NULL);
    tap_ok(jobs[0].hash && jobs[0].hash == train(NULL, 1), "a tape in one of two threads gives the bits that it gives alone");
    tap_ok(jobs[1].hash && jobs[1].hash == train(NULL, 2), "and so does the other");
    tap_ok(jobs[0].hash != jobs[1].hash, "they trained different networks");
}

static void test_workers(void) {
    uint64_t alone = train(NULL, 3);
    tap_ok(alone != 0, "training without threads");
    for (int workers = 1; workers <= MOST_WORKERS; workers++) {
        crew c;
        nt_tape_desc desc;
        crew_hire(&c, workers);
        memset(&desc, 0, sizeof desc);
        desc.parallel = crew_parallel(&c);
        uint64_t hash = train(&desc, 3);
        tap_ok(hash == alone, "the same bits with %d workers", workers);
        tap_ok(workers == 1 || c.groups > 0, "which were used (%lld times)", (long long)c.groups);
    }
}

int main(void) {
    test_two_tapes();
    test_workers();
    return tap_end();
}
