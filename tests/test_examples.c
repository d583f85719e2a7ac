// The examples under every kind of shortage: each allocation failing in turn, every array size, every alignment, and an
// allocator that fails from the moment at which everything is compiled.
#include "../nttrain.h"
#include "tap.h"
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#define NT_EXAMPLE_NO_MAIN
#include "../examples/digits.c"
#include "../examples/kernel_digits.c"
#include "../examples/lazy_training.c"
#include "../examples/linearize.c"
#include "../examples/monte_carlo.c"
#include "../examples/unet_kernel.c"
#include "../examples/xor.c"

enum { ARRAY = 1 << 20, GUARD = 1024 };

// What the tests want to know of a run, the same for both examples.
typedef struct outcome {
    int failed;
    uint64_t bits; // of everything that was learned
    size_t peak, lower_bound;
    nt_memory_use memory;
    char error[640];
} outcome;

typedef struct example {
    const char *name;
    void (*run)(const nt_tape_desc *desc, int steps, outcome *o);
    int steps;        // a short run; of kernels, how many images
    size_t size_step; // between array sizes
} example;

static digits_data images;

static uint64_t hash_of(const void *data, size_t size) {
    const unsigned char *bytes = (const unsigned char *)data;
    uint64_t hash = 14695981039346656037u;
    for (size_t i = 0; i < size; i++) hash = (hash ^ bytes[i]) * 1099511628211u;
    return hash;
}

static void run_xor(const nt_tape_desc *desc, int steps, outcome *o) {
    xor_result r;
    memset(o, 0, sizeof *o);
    o->failed = xor_main(desc, steps, &r);
    o->bits = hash_of(r.answer, sizeof r.answer);
    o->peak = r.plan.peak;
    o->lower_bound = r.plan.lower_bound;
    o->memory = r.memory;
    memcpy(o->error, r.error, sizeof o->error);
}

static void run_digits(const nt_tape_desc *desc, int steps, outcome *o) {
    digits_options options = { &images, 1, steps > 0, steps, 48, NULL, 0, NULL };
    digits_result r;
    memset(o, 0, sizeof *o);
    o->failed = digits_train(desc, &options, &r);
    o->bits = r.checksum ^ hash_of(&r.accuracy, sizeof r.accuracy);
    o->peak = r.plan.peak;
    o->lower_bound = r.plan.lower_bound;
    o->memory = r.memory;
    memcpy(o->error, r.error, sizeof o->error);
}

static const char *photographs;

static void run_monte_carlo(const nt_tape_desc *desc, int steps, outcome *o) {
    static mc_result r;
    mc_options options = { photographs, 2, steps, 2 };
    memset(o, 0, sizeof *o);
    o->failed = mc_main(desc, &options, &r);
    o->bits = hash_of(r.gradient, sizeof r.gradient) ^ hash_of(&r.loss, sizeof r.loss);
    memcpy(o->error, r.error, sizeof o->error);
}

static void run_linearize(const nt_tape_desc *desc, int steps, outcome *o) {
    static lin_result r;
    lin_options options = { photographs, 12, 1, 3, 1, steps, 0, NULL };
    memset(o, 0, sizeof *o);
    o->failed = lin_main(desc, &options, &r);
    o->bits = hash_of(&r.loss, sizeof r.loss);
    memcpy(o->error, r.error, sizeof o->error);
}

static void run_kernel_digits(const nt_tape_desc *desc, int train, outcome *o) {
    kd_result r;
    kd_options options = { &images, KD_POOL, train, 3, NULL };
    memset(o, 0, sizeof *o);
    o->failed = kd_main(desc, &options, &r);
    o->bits = hash_of(&r.checksum, sizeof r.checksum);
    memcpy(o->error, r.error, sizeof o->error);
}

static void run_lazy(const nt_tape_desc *desc, int steps, outcome *o) {
    static lazy_result r;
    lazy_options options = { 8, 1, { steps, 2 * steps, 3 * steps } };
    memset(o, 0, sizeof *o);
    o->failed = lazy_main(desc, &options, &r);
    o->bits = hash_of(r.net, sizeof r.net) ^ hash_of(r.linear, sizeof r.linear) ^ hash_of(r.mean, sizeof r.mean);
    memcpy(o->error, r.error, sizeof o->error);
}

static unet_result unet_results[2];

static void run_unet(const nt_tape_desc *desc, int photographs_taken, outcome *o) {
    unet_options options = { photographs, photographs_taken, 8, 0, NULL };
    memset(o, 0, sizeof *o);
    o->failed = unet_main(desc, &options, &unet_results[0]);
    o->bits = hash_of(unet_results[0].pair, sizeof unet_results[0].pair) ^ hash_of(unet_results[0].ntk_at, sizeof unet_results[0].ntk_at);
    memcpy(o->error, unet_results[0].error, sizeof o->error);
}

static unsigned char array[GUARD + 64 + 64 + ARRAY + GUARD];

// An array at the given distance from a multiple of 64, full of rubbish, with a guard on both sides.
static unsigned char *fresh_array(size_t size, size_t misalignment) {
    unsigned char *start = array + GUARD + (64 - (uintptr_t)(array + GUARD) % 64) % 64 + misalignment;
    memset(start - GUARD, 0xA5, size + 2 * GUARD);
    return start;
}

static int guards_hold(const unsigned char *start, size_t size) {
    for (size_t i = 0; i < GUARD; i++) {
        if (start[size + i] != 0xA5 || *(start - GUARD + i) != 0xA5) return 0;
    }
    return 1;
}

static int run_in_array(const example *e, size_t size, size_t misalignment, outcome *o) {
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = fresh_array(size, misalignment);
    desc.memory_size = size;
    e->run(&desc, e->steps, o);
    int held = guards_hold((const unsigned char *)desc.memory, size);
    if (!held) tap_note("%s wrote outside of an array of %zu bytes", e->name, size);
    return held;
}

// An allocator that counts, checks and fails on command.
typedef struct failing {
    long calls, fail_from, fail_until; // calls with these numbers give NULL
    size_t live;
    int wrong;                         // a release of other bytes than were asked for
} failing;

typedef struct block { void *raw; size_t bytes; } block; // right before what the caller gets

static void *failing_allocate(void *user, size_t bytes, size_t alignment) {
    failing *f = (failing *)user;
    long call = f->calls++;
    if (call >= f->fail_from && call < f->fail_until) return NULL;
    if (alignment == 0 || (alignment & (alignment - 1)) != 0) f->wrong = 1;
    if (alignment < sizeof(block)) alignment = sizeof(block);
    unsigned char *raw = (unsigned char *)malloc(bytes + 2 * alignment);
    if (!raw) return NULL;
    unsigned char *given = raw + alignment + (alignment - (uintptr_t)raw % alignment) % alignment;
    block header = { raw, bytes };
    memcpy(given - sizeof header, &header, sizeof header);
    memset(given, 0xA5, bytes); // nothing may rely on zeros
    f->live += bytes;
    return given;
}

static void failing_release(void *user, void *pointer, size_t bytes) {
    failing *f = (failing *)user;
    block header;
    if (!pointer) return;
    memcpy(&header, (unsigned char *)pointer - sizeof header, sizeof header);
    if (header.bytes != bytes) f->wrong = 1;
    f->live -= header.bytes;
    free(header.raw);
}

static void run_failing(const example *e, failing *f, int steps, outcome *o) {
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.allocator.user = f;
    desc.allocator.allocate = failing_allocate;
    desc.allocator.release = failing_release;
    e->run(&desc, steps, o);
}

// Decimal, with or without a comma at every thousand.
static int names_number(const char *text, size_t number) {
    char plain[32], grouped[48];
    int n = snprintf(plain, sizeof plain, "%zu", number), to = 0;
    for (int i = 0; i < n; i++) {
        if (i && (n - i) % 3 == 0) grouped[to++] = ',';
        grouped[to++] = plain[i];
    }
    grouped[to] = 0;
    return strstr(text, plain) != NULL || strstr(text, grouped) != NULL;
}

// An end that is clean: the right bits, or an error with a reason.
static int ended_well(const outcome *o, uint64_t bits) {
    return o->failed ? o->error[0] != 0 : o->bits == bits;
}

static void check_allocations(const example *e, uint64_t bits) {
    failing none = { 0, LONG_MAX, LONG_MAX, 0, 0 };
    outcome o;
    run_failing(e, &none, e->steps, &o);
    tap_ok(!o.failed && o.bits == bits && none.live == 0 && !none.wrong, "%s: the same bits with an allocator, which gets everything back", e->name);
    for (int for_ever = 0; for_ever <= 1; for_ever++) {
        long failures = 0, calls = none.calls;
        int good = 1;
        for (long n = 0; n < calls && good; n++) {
            failing f = { 0, n, for_ever ? LONG_MAX : n + 1, 0, 0 };
            run_failing(e, &f, e->steps, &o);
            good = ended_well(&o, bits) && f.live == 0 && !f.wrong;
            failures += o.failed;
            if (!good) tap_note("allocation %ld: failed %d, live %zu, wrong %d: %s", n, o.failed, f.live, f.wrong, o.error);
        }
        tap_ok(good && failures > 0, "%s: each allocation fails %s (%ld of %ld stop it)", e->name, for_ever ? "for ever" : "once", failures, calls);
    }
}

static void check_running_allocates_nothing(const example *e) {
    failing compiled = { 0, LONG_MAX, LONG_MAX, 0, 0 }, f = { 0, 0, LONG_MAX, 0, 0 };
    outcome o, later;
    run_failing(e, &compiled, 0, &o);
    f.fail_from = compiled.calls;
    run_failing(e, &f, 20, &later);
    tap_ok(!o.failed && !later.failed && f.calls == compiled.calls, "%s: runs work with an allocator that fails after compiling", e->name);
    if (later.failed) tap_note("%s", later.error);
}

static void check_sizes(const example *e, const outcome *ample) {
    const size_t least = ample->memory.total_least, total = ample->memory.total;
    outcome o;
    int good = 1;
    long sizes = 0;
    for (size_t size = nt_tape_size_min(); size < least && good; size += e->size_step, sizes++) {
        // where a program recomputes because the array is small, it may leave enough for the next one
        good = run_in_array(e, size, 0, &o) && (o.failed ? o.error[0] != 0 : o.bits == ample->bits);
        if (!good) tap_note("%zu bytes: failed %d: %s", size, o.failed, o.error);
    }
    tap_ok(good && sizes > 0, "%s: %ld array sizes below %zu bytes give an error, or the same bits by recomputation", e->name, sizes, least);
    good = 1;
    for (size_t size = least; size < total && good; size += e->size_step) {
        good = run_in_array(e, size, 0, &o) && !o.failed && o.bits == ample->bits;
        if (!good) tap_note("%zu bytes: failed %d: %s", size, o.failed, o.error);
    }
    tap_ok(good, "%s: array sizes between the least and the full plan give the same bits", e->name);
    good = run_in_array(e, total, 0, &o) && !o.failed && o.bits == ample->bits && o.memory.total == total && o.peak == ample->peak;
    tap_ok(good, "%s: an array of total (%zu bytes) gives the same plans", e->name, total);
    if (o.failed) tap_note("%s", o.error);
    good = run_in_array(e, total - 1, 0, &o) && (o.failed || o.peak < ample->peak || o.memory.scratch < ample->memory.scratch);
    tap_ok(good, "%s: one byte less never does", e->name);
    tap_ok(run_in_array(e, least, 0, &o) && !o.failed && o.bits == ample->bits, "%s: an array of total_least (%zu bytes) works", e->name, least);
    if (o.failed) tap_note("%s", o.error);
    tap_ok(o.memory.total_least == least, "%s: and says the same total_least", e->name);
    tap_ok(run_in_array(e, least - 1, 0, &o) && o.failed && names_number(o.error, least), "%s: one byte less fails and names %zu", e->name, least);
    if (!o.failed || !names_number(o.error, least)) tap_note("failed %d: %s", o.failed, o.error);
    good = 1;
    for (size_t size = 0; size < nt_tape_size_min() && good; size++) good = run_in_array(e, size, 0, &o) && o.failed && o.error[0];
    tap_ok(good, "%s: no tape opens below nt_tape_size_min (%zu bytes)", e->name, nt_tape_size_min());
}

static void check_alignments(const example *e, const outcome *ample) {
    int good = 1;
    outcome o;
    for (size_t k = 0; k < 64 && good; k++) {
        good = run_in_array(e, ample->memory.total_least, k, &o) && !o.failed && o.bits == ample->bits;
        if (!good) tap_note("at alignment %zu: failed %d: %s", k, o.failed, o.error);
    }
    tap_ok(good, "%s: total_least holds at all 64 alignments of the array", e->name);
    good = 1;
    for (size_t k = 0; k < 64 && good; k++) {
        good = run_in_array(e, ample->memory.total_least - 1, k, &o) && o.failed && names_number(o.error, ample->memory.total_least);
        if (!good) tap_note("at alignment %zu: failed %d: %s", k, o.failed, o.error);
    }
    tap_ok(good, "%s: one byte less fails at all 64 alignments", e->name);
}

static void check_example(const example *e) {
    outcome ample, again, heap;
    int held = run_in_array(e, ARRAY, 0, &ample);
    tap_ok(held && !ample.failed, "%s: runs in an array of 1 MiB", e->name);
    if (ample.failed) {
        tap_note("%s", ample.error);
        return;
    }
    tap_ok(ample.memory.total <= ARRAY && ample.memory.total_least <= ample.memory.total, "%s: total_least %zu <= total %zu <= 1 MiB", e->name,
           ample.memory.total_least, ample.memory.total);
    tap_ok((double)ample.peak <= 1.02 * (double)ample.lower_bound, "%s: peak %zu is within 1.02 of the lower bound %zu", e->name, ample.peak,
           ample.lower_bound);
    run_in_array(e, ARRAY, 1, &again);
    tap_ok(!again.failed && again.bits == ample.bits, "%s: the same bits twice", e->name);
    e->run(NULL, e->steps, &heap);
    tap_ok(!heap.failed && heap.bits == ample.bits, "%s: the same bits with malloc", e->name);
    if (heap.failed) tap_note("%s", heap.error);
    check_allocations(e, ample.bits);
    check_running_allocates_nothing(e);
    check_sizes(e, &ample);
    check_alignments(e, &ample);
}

static void check_xor_learns(void) {
    xor_result r;
    int failed = xor_main(NULL, 300, &r), right = 1;
    for (int i = 0; i < 4; i++) right = right && (r.answer[i] > 0.5f) == (i == 1 || i == 2) && (r.answer[i] > 0.9f || r.answer[i] < 0.1f);
    tap_ok(!failed && right, "xor: learned (%.3f %.3f %.3f %.3f)", (double)r.answer[0], (double)r.answer[1], (double)r.answer[2], (double)r.answer[3]);
    if (failed) tap_note("%s", r.error);
}

// A few epochs; the README's accuracies are those of EPOCHS.
static void check_digits_learn(void) {
    const digits_options options = { &images, 1, 4, BATCHES, TEST, NULL, 0, NULL };
    nt_tape_desc desc;
    digits_result r;
    memset(&desc, 0, sizeof desc);
    desc.memory = fresh_array(ARRAY, 0);
    desc.memory_size = ARRAY;
    int failed = digits_train(&desc, &options, &r);
    tap_ok(!failed && r.accuracy >= 0.9, "digits: test accuracy %.4f after four epochs", r.accuracy);
    if (failed) tap_note("%s", r.error);
}

// One and many samples take the same bytes, chunks give the same gradients to rounding, and it learns.
static void check_monte_carlo(void) {
    static mc_result r[3];
    mc_options options[3] = { { photographs, 1, 0, 1 }, { photographs, 6, 8, 1 }, { photographs, 6, 0, 4 } };
    double largest = 0, difference = 0;
    int failed = 0;
    for (int k = 0; k < 3; k++) failed |= mc_main(NULL, &options[k], &r[k]);
    for (int k = 0; k < r[1].gradients; k++) {
        largest = fmax(largest, fabs((double)r[1].gradient[k]));
        difference = fmax(difference, fabs((double)r[1].gradient[k] - (double)r[2].gradient[k]));
    }
    tap_ok(!failed && r[0].scratch == r[1].scratch, "monte_carlo: %zu bytes for 1 sample and for 6", r[1].scratch);
    tap_ok(!failed && difference <= 1e-5 * largest, "monte_carlo: gradients of chunks of 1 and of 4 differ by %.1e", difference / largest);
    tap_ok(!failed && r[1].loss < r[1].first_loss, "monte_carlo: loss %g to %g", r[1].first_loss, r[1].loss);
}

// The linearized step takes hardly more scratch than the plain one; a smaller budget changes no bit.
static void check_linearize(void) {
    lin_result r[3];
    lin_options o = { photographs, 48, 4, 3, 0, 2, 0, NULL };
    int failed = lin_main(NULL, &o, &r[0]);
    o.linearized = 1, failed |= lin_main(NULL, &o, &r[1]);
    o.budget = r[1].plan.peak / 2, failed |= lin_main(NULL, &o, &r[2]);
    tap_ok(!failed && (double)r[1].plan.peak <= 1.1 * (double)r[0].plan.peak, "linearize: %zu bytes of scratch against %zu of the plain step", r[1].plan.peak, r[0].plan.peak);
    tap_ok(!failed && r[2].plan.peak <= o.budget && r[2].loss == r[1].loss, "linearize: the same loss in half of it (%zu)", r[2].plan.peak);
}

// neural-tangents in float64 gives 0.9639 (NNGP) and 0.9667 (NTK) for this network on all digits; a digit is 0.0028. Threads change nothing.
static void check_kernel_digits(void) {
    const kd_options whole = { &images, KD_DENSE, TRAIN, TEST, NULL }, part = { &images, KD_POOL, 40, 30, NULL };
    nt_tape_desc threads;
    kd_result r, one, two;
    int failed = kd_main(NULL, &whole, &r);
    tap_ok(!failed && fabs(r.nngp_accuracy - 0.9639) < 0.003 && fabs(r.ntk_accuracy - 0.9667) < 0.003,
           "kernel_digits: dense, NNGP %.4f, NTK %.4f", r.nngp_accuracy, r.ntk_accuracy);
    if (failed) tap_note("%s", r.error);
    memset(&threads, 0, sizeof threads);
    threads.parallel = threads_all();
    failed = kd_main(NULL, &part, &one) | kd_main(&threads, &part, &two);
    tap_ok(!failed && one.checksum == two.checksum, "kernel_digits: global pooling, the same answers from threads");
    tap_ok(!failed && one.nngp_accuracy >= 0.6 && one.ntk_accuracy >= 0.6, "kernel_digits: 40 images teach %.2f (NNGP), %.2f (NTK)",
           one.nngp_accuracy, one.ntk_accuracy);
}

// A wider network is closer to its linearization, and that to the closed form; without training all three say the same.
static void check_lazy(void) {
    static lazy_result narrow, wide, start;
    lazy_options o = { 16, 0, { 0, 16, 256 } };
    int failed = lazy_main(NULL, &o, &narrow);
    o.width = 256, failed |= lazy_main(NULL, &o, &wide);
    o.steps[1] = o.steps[2] = 0, failed |= lazy_main(NULL, &o, &start);
    double net[2] = { lazy_distance(narrow.net[2], narrow.linear[2]), lazy_distance(wide.net[2], wide.linear[2]) };
    double closed[2] = { lazy_distance(narrow.linear[2], narrow.closed[2]), lazy_distance(wide.linear[2], wide.closed[2]) };
    tap_ok(!failed && net[1] < 0.5 * net[0] && closed[1] < 0.5 * closed[0],
           "lazy_training: to the linearization %.3f, %.3f; on to the closed form %.3f, %.3f", net[0], net[1], closed[0], closed[1]);
    tap_ok(!failed && lazy_distance(start.net[0], start.closed[0]) < 1e-6 && lazy_distance(start.net[2], start.linear[2]) < 1e-6 &&
               lazy_distance(wide.net[0], start.net[0]) == 0 && lazy_distance(wide.net[0], wide.net[2]) > 0.1,
           "lazy_training: before training all three agree");
}

// Every number comes by once, the budget changes no bit, and means of the whole arrays, in f64, are what the sink has added up in f32.
static void check_unet(void) {
    static unet_result *r = unet_results;
    static double x[2 * 64], ntk[2 * 2 * 64 * 64];
    unet_options o = { photographs, 2, 8, 0, NULL };
    int failed = unet_main(NULL, &o, &r[0]);
    o.budget = UNET_BUDGET, failed |= unet_main(NULL, &o, &r[1]);
    tap_ok(!failed && r[0].numbers == 3 * 64 * 64 && memcmp(r[0].pair, r[1].pair, sizeof r[0].pair) == 0,
           "unet_kernel: %g numbers, the same with a budget", r[0].numbers);
    if (failed) tap_note("%s %s", r[0].error, r[1].error);
    nt_tape *t = nt_tape_open(NULL);
    nt_kernel_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.dtype = NT_F64, desc.shape = NT_SHAPE(8, 8, 1), desc.what = NT_NTK, desc.ntk = ntk;
    for (int i = 0; i < 2 * 64; i++) x[i] = (double)r[0].photo[i];
    failed |= nt_kernel(unet(t, 2), x, 2, x, 2, &desc) != NT_OK; // all pairs, none mirrored
    double worst = 0, least = INFINITY;
    for (int n = 0; n < 4; n++) {
        double sum = 0;
        for (int k = 0; k < 64 * 64; k++) sum += ntk[n * 64 * 64 + k] / (64 * 64);
        worst = fmax(worst, fabs(sum - r[0].pair[n / 2][n % 2].ntk)), least = fmin(least, fabs(sum));
        for (int p = 0; p < 64; p++) worst = fmax(worst, fabs(ntk[n * 64 * 64 + p * 65] - (double)r[0].ntk_at[n / 2][n % 2][p]));
    }
    tap_ok(!failed && worst < 1e-5 * least, "unet_kernel: the whole arrays in f64 have these means and this diagonal (%.1e of %.1e)", worst,
           least);
    nt_tape_close(t);
    o.shrink = 1, o.budget = 4096;
    tap_ok(unet_main(NULL, &o, &r[1]) && strstr(r[1].error, "would do"), "unet_kernel: %s", r[1].error);
}

// The files are read with each allocation failing, too.
static void check_loading(const char *folder) {
    static digits_data copy;
    char error[640];
    long calls = 0, n = 0;
    int good = 1, failed = 1;
    for (; n <= calls && good; n++) {
        failing f = { 0, n ? n - 1 : LONG_MAX, n ? n : LONG_MAX, 0, 0 }; // the first time only counts
        nt_tape_desc desc;
        memset(&desc, 0, sizeof desc);
        desc.allocator.user = &f;
        desc.allocator.allocate = failing_allocate;
        desc.allocator.release = failing_release;
        failed = digits_load(&desc, folder, &copy, error, sizeof error);
        good = f.live == 0 && !f.wrong && (failed ? error[0] != 0 : memcmp(&copy, &images, sizeof copy) == 0);
        if (n == 0) good = good && !failed, calls = f.calls;
        if (!good) tap_note("allocation %ld: failed %d, live %zu, wrong %d: %s", n, failed, f.live, f.wrong, error);
    }
    tap_ok(good, "digits: each allocation of loading fails (%ld)", calls);
    failed = digits_load(NULL, "no such folder/", &copy, error, sizeof error);
    tap_ok(failed && strstr(error, "no such folder") != NULL, "digits: a missing file is named: %s", error);
}

int main(int argc, char **argv) {
    static const example examples[] = { { "xor", run_xor, 3, 8 }, { "digits", run_digits, 2, 4093 } };
    static const example large[] = { { "monte_carlo", run_monte_carlo, 1, 0 },
                                     { "linearize", run_linearize, 1, 0 },
                                     { "kernel_digits", run_kernel_digits, 5, 0 },
                                     { "lazy_training", run_lazy, 1, 0 },
                                     { "unet_kernel", run_unet, 2, 0 } };
    const char *folders[] = { argc > 1 ? argv[1] : "", "../examples/data/", "examples/data/", "../../examples/data/" };
    char error[640];
    const char *folder = NULL;
    for (int i = 0; i < 4 && !folder; i++) {
        if (digits_load(NULL, folders[i], &images, error, sizeof error) == 0) folder = folders[i];
    }
    if (!tap_ok(folder != NULL, "digits: the images are found")) {
        tap_note("%s", error);
        return tap_end();
    }
    check_xor_learns();
    check_digits_learn();
    check_loading(folder);
    for (int i = 0; i < 2; i++) check_example(&examples[i]);
    photographs = folder;
    check_monte_carlo();
    check_linearize();
    check_kernel_digits();
    check_lazy();
    check_unet();
    for (size_t i = 0; i < sizeof large / sizeof large[0]; i++) {
        outcome ample;
        large[i].run(NULL, large[i].steps, &ample);
        check_allocations(&large[i], ample.bits);
    }
    return tap_end();
}
