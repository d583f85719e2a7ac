// Every wrong thing that a newcomer does gets a message that says what is wrong and what to do. The messages are printed, so
// that they can be read: make -C tests run T=test_newcomer
#define NTTRAIN_DEBUG // the use of a rewound tensor is an error only here
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "nttrain.h"
#include "tap.h"
#include <ctype.h>
#include <math.h>
#include <stdlib.h>

static char lower(char c) { return (char)tolower((unsigned char)c); }

static int contains(const char *text, const char *word, size_t length) {
    for (; *text; text++) {
        size_t n = 0;
        while (n < length && text[n] && lower(text[n]) == lower(word[n])) n++;
        if (n == length) return 1;
    }
    return length == 0;
}

// `words`: what the message must hold, with bars between; alternatives have a ~ between.
static int says(const char *message, const char *words) {
    while (*words) {
        size_t all = strcspn(words, "|"), at = 0;
        int found = 0;
        while (at < all) {
            size_t n = strcspn(words + at, "~|");
            if (at + n > all) n = all - at;
            found |= contains(message, words + at, n);
            at += n + 1;
        }
        if (!found) {
            tap_note("the message lacks: %.*s", (int)all, words);
            return 0;
        }
        words += all + (words[all] == '|');
    }
    return 1;
}

static void expect(nt_tape *t, const char *name, nt_status status, const char *words) {
    const char *message = nt_error(t);
    int ok = message && nt_error_status(t) == status && says(message, words);
    tap_ok(ok, "%s", name);
    if (!ok && message) tap_note("status %s, expected %s", nt_status_name(nt_error_status(t)), nt_status_name(status));
    tap_note("  %s", message ? message : "(no message)");
}

static nt_tensor *floats(nt_tape *t, nt_shape shape) { return nt_full(t, NT_F32, shape, 1); }

// ---------------------------------------------------------------------------------------------------------------------
// Recording
// ---------------------------------------------------------------------------------------------------------------------
static void wrong_shape(nt_tape *t) { nt_add(floats(t, NT_SHAPE(2, 3)), floats(t, NT_SHAPE(4))); }
static void wrong_shape_matmul(nt_tape *t) { nt_matmul(nt_name(floats(t, NT_SHAPE(2, 3)), "weights"), floats(t, NT_SHAPE(4, 5))); }
static void wrong_shape_dense(nt_tape *t) { nt_dense(floats(t, NT_SHAPE(2, 3)), floats(t, NT_SHAPE(3, 4)), floats(t, NT_SHAPE(5))); }
static void wrong_channels(nt_tape *t) { nt_conv(floats(t, NT_SHAPE(1, 8, 8, 3)), floats(t, NT_SHAPE(3, 3, 4, 16)), NULL); }
static void wrong_rank_conv(nt_tape *t) { nt_conv(floats(t, NT_SHAPE(8, 8)), floats(t, NT_SHAPE(3, 3, 1, 16)), NULL); }
static void wrong_window(nt_tape *t) { nt_max_pool(floats(t, NT_SHAPE(1, 8, 8, 3)), NT_WINDOW(2), NULL); }
static void wrong_reshape(nt_tape *t) { nt_reshape(floats(t, NT_SHAPE(2, 3)), NT_SHAPE(4, 2)); }
static void wrong_broadcast(nt_tape *t) { nt_broadcast(floats(t, NT_SHAPE(2, 3)), NT_SHAPE(2, 4)); }
static void wrong_axis(nt_tape *t) { nt_sum_axes(floats(t, NT_SHAPE(2, 3)), NT_AXES(5), 0); }
static void negative_size(nt_tape *t) { nt_input(t, NT_F32, NT_SHAPE(2, -3)); }
static void wrong_concat(nt_tape *t) { nt_concat(NT_LIST(floats(t, NT_SHAPE(2, 3)), floats(t, NT_SHAPE(2, 4))), 0); }
static void wrong_layer_norm(nt_tape *t) { nt_layer_norm(floats(t, NT_SHAPE(2, 3)), floats(t, NT_SHAPE(4)), NULL, 1e-6); }
static void two_dtypes(nt_tape *t) { nt_add(floats(t, NT_SHAPE(3)), nt_full(t, NT_F64, NT_SHAPE(3), 1)); }
static void integer_and_float(nt_tape *t) { nt_mul(floats(t, NT_SHAPE(3)), nt_full(t, NT_I32, NT_SHAPE(3), 1)); }
static void sine_of_integer(nt_tape *t) { nt_sin(nt_full(t, NT_I32, NT_SHAPE(3), 1)); }
static void storage_dtype(nt_tape *t) { nt_square(nt_input(t, NT_U8, NT_SHAPE(3))); }
static void no_dtype(nt_tape *t) { nt_input(t, (nt_dtype)77, NT_SHAPE(3)); }
static void float_labels(nt_tape *t) { nt_cross_entropy(floats(t, NT_SHAPE(4, 10)), floats(t, NT_SHAPE(4))); }
static void label_shape(nt_tape *t) { nt_cross_entropy(floats(t, NT_SHAPE(4, 10)), nt_full(t, NT_I32, NT_SHAPE(5), 0)); }
static void float_condition(nt_tape *t) { nt_select(floats(t, NT_SHAPE(3)), floats(t, NT_SHAPE(3)), floats(t, NT_SHAPE(3))); }
static void no_data(nt_tape *t) { nt_constant(t, NT_F32, NT_SHAPE(3), NULL); }
static void dropout_rate(nt_tape *t) { nt_dropout(floats(t, NT_SHAPE(3)), nt_key_tensor(t, nt_key(0)), 1.5, NT_AXES(0)); }

static void gradient_of_vector(nt_tape *t) {
    nt_tensor *x = floats(t, NT_SHAPE(3));
    nt_grad(nt_square(x), x);
}

static void gradient_of_integer(nt_tape *t) {
    nt_tensor *x = nt_full(t, NT_I32, NT_SCALAR, 1);
    nt_grad(x, x);
}

static void gradient_for_integer(nt_tape *t) {
    nt_tensor *labels = nt_full(t, NT_I32, NT_SHAPE(4), 0);
    nt_grad(nt_mean(nt_cross_entropy(floats(t, NT_SHAPE(4, 10)), labels)), labels);
}

static void wrong_cotangent(nt_tape *t) {
    nt_tensor *x = floats(t, NT_SHAPE(3)), *y = nt_square(x), *c = floats(t, NT_SHAPE(2));
    nt_vjp(NT_LIST(y), NT_LIST(c), NT_LIST(x));
}

static void assign_to_input(nt_tape *t) {
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(3));
    nt_assign(x, nt_square(x));
}

static void assign_other_shape(nt_tape *t) { nt_assign(nt_variable(t, NT_F32, NT_SHAPE(3), NULL), floats(t, NT_SHAPE(4))); }
static void random_without_key(nt_tape *t) { nt_normal(floats(t, NT_SHAPE(2)), NT_F32, NT_SHAPE(3)); }

typedef struct mistake { const char *name; void (*make)(nt_tape *t); nt_status status; const char *words; } mistake;
static const mistake recording[] = {
    { "adding shapes that do not broadcast", wrong_shape, NT_ERROR_SHAPE, "nt_add|[2,3]|[4]" },
    { "matmul of sizes that do not meet, with the name of a value", wrong_shape_matmul, NT_ERROR_SHAPE, "nt_matmul|[2,3]|[4,5]|weights" },
    { "a bias of another size", wrong_shape_dense, NT_ERROR_SHAPE, "nt_dense|[5]" },
    { "a convolution with wrong channels", wrong_channels, NT_ERROR_SHAPE, "nt_conv|[1,8,8,3]|[3,3,4,16]|channel" },
    { "a convolution of a matrix", wrong_rank_conv, NT_ERROR_SHAPE, "nt_conv|[8,8]" },
    { "a pooling window of another rank", wrong_window, NT_ERROR_SHAPE, "pool|[1,8,8,3]" },
    { "a reshape to another size", wrong_reshape, NT_ERROR_SHAPE, "nt_reshape|[2,3]|[4,2]" },
    { "a broadcast that NumPy refuses", wrong_broadcast, NT_ERROR_SHAPE, "nt_broadcast|[2,3]|[2,4]" },
    { "an axis out of range", wrong_axis, NT_ERROR_ARGUMENT, "nt_sum|axis 5|rank 2" },
    { "a negative size", negative_size, NT_ERROR_SHAPE, "nt_input|-3" },
    { "concatenating shapes that differ elsewhere", wrong_concat, NT_ERROR_SHAPE, "nt_concat|[2,3]|[2,4]" },
    { "a scale of another size", wrong_layer_norm, NT_ERROR_SHAPE, "nt_layer_norm|[2,3]|[4]" },
    { "two dtypes in one operation", two_dtypes, NT_ERROR_DTYPE, "nt_add|f32|f64|nt_cast" },
    { "an integer times a float", integer_and_float, NT_ERROR_DTYPE, "nt_mul|f32|i32|nt_cast" },
    { "the sine of an integer", sine_of_integer, NT_ERROR_DTYPE, "nt_sin|i32|nt_cast~f32" },
    { "arithmetic on a storage dtype", storage_dtype, NT_ERROR_DTYPE, "nt_square|u8|nt_cast" },
    { "a number that is no dtype", no_dtype, NT_ERROR_DTYPE, "nt_input|77" },
    { "labels that are floats", float_labels, NT_ERROR_DTYPE, "nt_cross_entropy|i32|label" },
    { "another number of labels", label_shape, NT_ERROR_SHAPE, "nt_cross_entropy|[4,10]|[5]" },
    { "a condition that is no bool", float_condition, NT_ERROR_DTYPE, "nt_select|bool" },
    { "a constant without data", no_data, NT_ERROR_ARGUMENT, "nt_constant|NULL|nt_full" },
    { "a dropout rate above one", dropout_rate, NT_ERROR_ARGUMENT, "nt_dropout|1.5" },
    { "the gradient of a vector", gradient_of_vector, NT_ERROR_SHAPE, "nt_grad|[3]|nt_mean~nt_sum" },
    { "the gradient of an integer", gradient_of_integer, NT_ERROR_DTYPE, "nt_grad|i32|f32" },
    { "a gradient with respect to integers", gradient_for_integer, NT_ERROR_DTYPE, "nt_grad~nt_vjp|i32|f32" },
    { "a cotangent of another shape", wrong_cotangent, NT_ERROR_SHAPE, "nt_vjp|[3]|[2]" },
    { "assigning to an input", assign_to_input, NT_ERROR_ARGUMENT, "nt_assign|variable" },
    { "assigning another shape", assign_other_shape, NT_ERROR_SHAPE, "nt_assign|[3]|[4]" },
    { "a random number without a key", random_without_key, NT_ERROR_ARGUMENT, "key|u32" },
};

static void test_recording(void) {
    for (size_t k = 0; k < sizeof recording / sizeof recording[0]; k++) {
        nt_tape *t = nt_tape_open(NULL);
        recording[k].make(t);
        expect(t, recording[k].name, recording[k].status, recording[k].words);
        nt_tape_close(t);
    }
}

static void test_sticky(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = floats(t, NT_SHAPE(3));
    char first[512] = "";
    float value = 0;
    nt_add(x, floats(t, NT_SHAPE(4)));
    if (nt_error(t)) snprintf(first, sizeof first, "%s", nt_error(t));
    tap_ok(nt_sin(x) == NULL, "after an error every operation gives NULL");
    nt_reshape(x, NT_SHAPE(7));
    tap_is_text(nt_error(t), first, "the first error stands");
    nt_error_clear(t);
    tap_ok(nt_error(t) == NULL && nt_error_status(t) == NT_OK, "nt_error_clear ends it");
    tap_ok(nt_eval(nt_sum(x), &value) == NT_OK && value > 2.5f && value < 3.5f, "and the tape goes on");
    nt_tape_close(t);
}

static void test_other_tape(void) {
    nt_tape *t = nt_tape_open(NULL), *other = nt_tape_open(NULL);
    nt_add(floats(t, NT_SHAPE(3)), floats(other, NT_SHAPE(3)));
    expect(t, "a tensor of another tape", NT_ERROR_ARGUMENT, "nt_add|tape");
    nt_tape_close(other);
    nt_tape_close(t);
}

static void test_rewound(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = floats(t, NT_SHAPE(3));
    nt_marker mark = nt_mark(t);
    nt_tensor *y = nt_square(x);
    nt_rewind(t, mark);
    nt_sin(y);
    expect(t, "use after nt_rewind", NT_ERROR_STATE, "rewind|again");
    nt_error_clear(t);
    nt_tensor *input = nt_input(t, NT_F32, NT_SHAPE(3));
    nt_tensor *z = nt_square(input);
    nt_forget_nodes(t);
    nt_sin(z);
    expect(t, "use after nt_forget_nodes", NT_ERROR_STATE, "nt_forget_nodes|again");
    nt_error_clear(t);
    tap_ok(nt_sin(input) != NULL, "an input lives on after nt_forget_nodes");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// NULL everywhere
// ---------------------------------------------------------------------------------------------------------------------
static void test_null_operations(nt_tape *t) {
    nt_tensor *x = floats(t, NT_SHAPE(2, 2));
    TAP_CHECK(nt_add(NULL, x) == NULL);
    TAP_CHECK(nt_add(x, NULL) == NULL);
    TAP_CHECK(nt_sin(NULL) == NULL);
    TAP_CHECK(nt_matmul(NULL, NULL) == NULL);
    TAP_CHECK(nt_conv(NULL, x, NULL) == NULL);
    TAP_CHECK(nt_mean(nt_cross_entropy(NULL, NULL)) == NULL);
    TAP_CHECK(nt_reshape(NULL, NT_SHAPE(3)) == NULL);
    TAP_CHECK(nt_concat(NT_LIST(x, NULL), 0) == NULL);
    TAP_CHECK(nt_grad(NULL, x) == NULL);
    TAP_CHECK(nt_grad(nt_sum(x), NULL) == NULL);
    TAP_CHECK(nt_normal(NULL, NT_F32, NT_SHAPE(3)) == NULL);
    TAP_CHECK(nt_assign(NULL, x) == NULL);
    TAP_CHECK(nt_name(NULL, "x") == NULL);
    TAP_CHECK(nt_size(NULL) == 0 && nt_bytes(NULL) == 0 && nt_shape_of(NULL).rank == 0 && nt_data(NULL) == NULL);
    tap_ok(nt_error(t) == NULL, "and all of it quietly");
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_error_clear(t);
}

static void test_null_calls(nt_tape *t) {
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(3));
    float out[3];
    TAP_CHECK(nt_compile(NULL, NULL) == NULL);
    TAP_CHECK(nt_run(NULL) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_eval(NULL, out) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_read(NULL, 0, out) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_output(NULL, 0) == NULL && nt_output_bytes(NULL, 0) == 0);
    TAP_CHECK(nt_write(NULL, out) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_write(x, NULL) == NT_ERROR_ARGUMENT);
    expect(t, "nt_write without data", NT_ERROR_ARGUMENT, "nt_write|NULL");
    nt_error_clear(t);
    TAP_CHECK(nt_init(NULL, nt_key(0), x) == NT_ERROR_ARGUMENT);
    TAP_CHECK(nt_apply(NULL, x, NULL) == NULL);
    TAP_CHECK(nt_parameters(NULL).count == 0);
    TAP_CHECK(nt_multi_steps(NULL, 4) == NULL);
    TAP_CHECK(nt_compile_step(NULL, NULL, NULL) == NULL);
    TAP_CHECK(nt_residual_layer(t, NULL) == NULL);
    nt_error_clear(t);
    nt_tape_close(NULL);
    nt_error_clear(NULL);
    tap_ok(nt_error(NULL) != NULL, "nt_error(NULL) says why there may be no tape: %s", nt_error(NULL) ? nt_error(NULL) : "");
    TAP_CHECK(nt_input(NULL, NT_F32, NT_SHAPE(3)) == NULL);
    TAP_CHECK(nt_dense_layer(NULL, 3, NULL) == NULL);
    TAP_CHECK(nt_sgd(NULL, NULL) == NULL);
    TAP_CHECK(nt_key_tensor(NULL, nt_key(0)) == NULL);
}

// ---------------------------------------------------------------------------------------------------------------------
// Memory and budgets: the number in the message is one that works
// ---------------------------------------------------------------------------------------------------------------------
// The next number of a text from *s on, with its thousands separated or not; 0 at its end.
static size_t next_number(const char **s) {
    size_t number = 0;
    while (**s && !isdigit((unsigned char)**s)) ++*s;
    for (; **s; ++*s) {
        const char *c = *s;
        if (*c == ',' && isdigit((unsigned char)c[1]) && isdigit((unsigned char)c[2]) && isdigit((unsigned char)c[3]) && !isdigit((unsigned char)c[4])) continue;
        if (!isdigit((unsigned char)*c)) break;
        number = number * 10 + (size_t)(*c - '0');
    }
    return number;
}

static nt_tensor *small_net(nt_tape *t) {
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(16, 32));
    for (int k = 0; k < 3; k++) x = nt_tanh(nt_matmul(x, nt_variable(t, NT_F32, NT_SHAPE(32, 32), NULL)));
    return nt_mean(nt_square(x));
}

// Opens an array of this size and compiles the small net in it; the message, where something does not fit.
static int net_fits(size_t bytes, char *message, size_t size) {
    void *memory = malloc(bytes);
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = memory;
    desc.memory_size = bytes;
    nt_tape *t = nt_tape_open(&desc);
    int ok = nt_compile(small_net(t), NULL) != NULL;
    snprintf(message, size, "%s", t && nt_error(t) ? nt_error(t) : "");
    nt_tape_close(t);
    free(memory);
    return ok;
}

static void test_small_array(void) {
    static unsigned char memory[1 << 16];
    nt_tape_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.memory = memory;
    desc.memory_size = 10;
    tap_ok(nt_tape_open(&desc) == NULL, "no tape in ten bytes");
    desc.memory_size = nt_tape_size_min() - 1;
    tap_ok(nt_tape_open(&desc) == NULL, "nor in nt_tape_size_min() - 1");
    desc.memory_size = nt_tape_size_min();
    nt_tape *t = nt_tape_open(&desc);
    tap_ok(t != NULL, "one in nt_tape_size_min() (%lld)", (long long)nt_tape_size_min());
    nt_variable(t, NT_F32, NT_SHAPE(1000), NULL);
    expect(t, "a variable that does not fit the array", NT_ERROR_MEMORY, "bytes");
    const char *text = nt_error(t) ? nt_error(t) : "";
    for (size_t n; (n = next_number(&text)) != 0;) {
        if (n > desc.memory_size) desc.memory_size = n;
    }
    nt_tape_close(t);
    t = desc.memory_size <= sizeof memory ? nt_tape_open(&desc) : NULL;
    tap_ok(nt_variable(t, NT_F32, NT_SHAPE(1000), NULL) != NULL, "in an array of the bytes that the message names it fits");
    nt_tape_close(t);

    size_t bytes = nt_tape_size_min(), number;
    char message[512] = "";
    int tries = 0;
    while (!net_fits(bytes, message, sizeof message) && tries < 40) { // each message names a number that gets further
        size_t most = bytes;
        for (const char *s = message; (number = next_number(&s)) != 0;) {
            if (number > most && number < (1u << 24)) most = number;
        }
        if (most == bytes) break;
        bytes = most;
        tries++;
    }
    tap_ok(net_fits(bytes, message, sizeof message), "following the messages ends at an array that works");
    tap_note("  %d messages, %lld bytes %s", tries, (long long)bytes, message);
}

// Whether one of the numbers of the message is a budget that works.
static int named_budget_works(nt_tensor *y, const char *message) {
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    while ((desc.budget = next_number(&message)) != 0) {
        if (nt_compile(y, &desc)) return 1;
    }
    return 0;
}

static void test_budget(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_compile_desc desc;
    char message[1024] = "";
    memset(&desc, 0, sizeof desc);
    desc.budget = 128;
    nt_tensor *y = small_net(t);
    tap_ok(nt_compile(y, &desc) == NULL, "a budget that is too small gives no program");
    expect(t, "a budget that is too small", NT_ERROR_BUDGET, "128|bytes~budget");
    if (nt_error(t)) snprintf(message, sizeof message, "%s", nt_error(t));
    tap_ok(named_budget_works(y, message), "a budget that the message names works, without nt_error_clear");
    tap_ok(nt_error(t) && strcmp(nt_error(t), message) == 0, "a success does not erase the message");
    tap_ok(nt_sin(y) != NULL, "and the tape is not poisoned");
    nt_tape_close(t);
}

static void test_shared_scratch(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.share_scratch = nt_compile(nt_neg(floats(t, NT_SHAPE(8))), NULL);
    tap_ok(nt_compile(small_net(t), &desc) == NULL, "a program that is larger than the scratch that it shares");
    expect(t, "its message", NT_ERROR_BUDGET, "scratch_min~first");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Running
// ---------------------------------------------------------------------------------------------------------------------
typedef struct regression { nt_tensor *x, *labels, *weight, *loss; } regression;

static regression classifier(nt_tape *t) {
    regression r;
    r.x = nt_name(nt_input(t, NT_F32, NT_SHAPE(4, 3)), "image");
    r.labels = nt_name(nt_input(t, NT_I32, NT_SHAPE(4)), "label");
    r.weight = nt_name(nt_variable(t, NT_F32, NT_SHAPE(3, 10), NULL), "weight");
    r.loss = nt_mean(nt_cross_entropy(nt_matmul(r.x, r.weight), r.labels));
    return r;
}

static int all_zero(const nt_tensor *x) {
    const float *v = (const float *)nt_data(x);
    for (int64_t i = 0; i < nt_size(x); i++) {
        if (v[i] < 0 || v[i] > 0 || isnan(v[i])) return 0;
    }
    return v != NULL;
}

static void test_run_before_write(void) {
    nt_tape *t = nt_tape_open(NULL);
    regression r = classifier(t);
    nt_program *p = nt_compile(r.loss, NULL);
    float out = 0;
    tap_ok(nt_run(p) == NT_ERROR_STATE, "run before write");
    expect(t, "its message", NT_ERROR_STATE, "image~label|nt_write|nt_bind");
    nt_error_clear(t);
    tap_ok(nt_read(p, 0, &out) == NT_ERROR_STATE, "read before run");
    expect(t, "its message", NT_ERROR_STATE, "run");
    nt_error_clear(t);
    tap_ok(nt_eval(r.loss, &out) == NT_ERROR_STATE, "nt_eval of a value of unwritten inputs");
    nt_tape_close(t);
}

static void test_bad_data(void) {
    nt_tape *t = nt_tape_open(NULL);
    regression r = classifier(t);
    nt_program *step = nt_compile_step(r.loss, nt_sgd(t, NULL), NULL), *twin = nt_compile(r.loss, NULL);
    float pixels[12] = { 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 2, 3 };
    int32_t labels[4] = { 0, 9, 10, 3 };
    nt_write(r.x, pixels);
    nt_write(r.labels, labels);
    tap_ok(nt_run(step) == NT_ERROR_DATA, "a label out of range");
    expect(t, "its message", NT_ERROR_DATA, "label|10|2");
    tap_ok(all_zero(r.weight) && nt_update_step(step) == 0, "nothing was assigned");
    nt_error_clear(t);
    tap_ok(nt_run(twin) == NT_ERROR_DATA, "the same in a program without assignments");
    labels[2] = -1;
    nt_write(r.labels, labels);
    tap_ok(nt_run(step) == NT_ERROR_DATA && all_zero(r.weight), "a negative label");
    labels[2] = 1;
    nt_write(r.labels, labels);
    tap_ok(nt_run(step) == NT_OK && !all_zero(r.weight) && nt_update_step(step) == 1, "with the label corrected the same program runs");
    nt_tape_close(t);
}

static void test_bad_index(void) {
    nt_tape *t = nt_tape_open(NULL);
    int32_t places[3] = { 0, 4, 1 };
    float out[6];
    nt_tensor *x = floats(t, NT_SHAPE(4, 2)), *i = nt_constant(t, NT_I32, NT_SHAPE(3), places);
    tap_ok(nt_eval(nt_gather(x, i, 0), out) == NT_ERROR_DATA, "a gather index out of range");
    expect(t, "its message", NT_ERROR_DATA, "nt_gather|4|nt_gather_clip~range~outside");
    tap_ok(nt_eval(nt_gather_clip(x, i, 0), out) == NT_OK, "nt_gather_clip takes it");
    nt_tape_close(t);
}

static void test_nan_loss(void) {
    nt_tape *t = nt_tape_open(NULL);
    regression r = classifier(t);
    nt_program *step = nt_compile_step(r.loss, nt_adamw(t, NULL), NULL);
    float pixels[12] = { 1, 2, NAN, 4, 5, 6, 7, 8, 9, 1, 2, 3 };
    int32_t labels[4] = { 0, 9, 1, 3 };
    nt_write(r.x, pixels);
    nt_write(r.labels, labels);
    tap_ok(nt_run(step) == NT_NONFINITE, "a NaN loss");
    expect(t, "its message", NT_NONFINITE, "loss|finite~NaN");
    tap_ok(nt_event(step) == NT_SKIPPED && nt_skipped(step) == 1 && all_zero(r.weight) && nt_update_step(step) == 0, "the step was skipped and counted");
    pixels[2] = 3;
    nt_write(r.x, pixels);
    tap_ok(nt_run(step) == NT_OK && nt_event(step) == NT_UPDATED && !all_zero(r.weight), "the next step runs");
    nt_tape_close(t);
}

static void test_outputs(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_program *p = nt_compile(nt_sum(floats(t, NT_SHAPE(3))), NULL);
    float out = 0;
    tap_ok(nt_run(p) == NT_OK && nt_read(p, 0, &out) == NT_OK && out > 2.5f && out < 3.5f, "output 0");
    tap_ok(nt_read(p, 5, &out) == NT_ERROR_ARGUMENT, "an output that there is not");
    expect(t, "its message", NT_ERROR_ARGUMENT, "output|5|1");
    tap_ok(nt_output(p, 5) == NULL && nt_output(p, -1) == NULL && nt_output_bytes(p, 5) == 0, "and NULL and 0 bytes");
    nt_tape_close(t);
}

static void test_wrong_writes(void) {
    nt_tape *t = nt_tape_open(NULL);
    float value = 1;
    nt_tensor *constant = nt_scalar(t, NT_F32, 1), *variable = nt_variable(t, NT_F32, NT_SCALAR, NULL);
    tap_ok(nt_write(constant, &value) == NT_ERROR_ARGUMENT, "writing to a constant");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_write|nt_input~input|variable");
    nt_error_clear(t);
    tap_ok(nt_bind(variable, &value) == NT_ERROR_ARGUMENT, "binding a variable");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_bind|input");
    nt_error_clear(t);
    nt_compile_desc desc;
    memset(&desc, 0, sizeof desc);
    nt_tensor *first = nt_assign(variable, nt_square(variable)), *second = nt_assign(variable, nt_neg(variable));
    desc.assigns = NT_LIST(first, second);
    tap_ok(nt_compile(nt_sum(variable), &desc) == NULL, "two assignments of one variable");
    expect(t, "its message", NT_ERROR_ARGUMENT, "assign|two~twice");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Layers and training
// ---------------------------------------------------------------------------------------------------------------------
static void test_layers(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_layer *lost = NULL;
    tap_ok(NT_SERIAL(t, nt_dense_layer(t, 4, NULL), lost, nt_relu_layer(t)) == NULL, "a NULL layer in NT_SERIAL");
    expect(t, "its message says which", NT_ERROR_ARGUMENT, "serial|NULL|1~2");
    nt_error_clear(t);
    nt_layer *net = NT_SERIAL(t, nt_flatten_layer(t), nt_dense_layer(t, 4, NULL));
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(2, 3, 3));
    tap_ok(nt_apply(net, x, NULL) == NULL, "nt_apply before nt_init");
    expect(t, "its message", NT_ERROR_STATE, "nt_apply|nt_init");
    nt_error_clear(t);
    tap_ok(nt_init(net, nt_key(0), x) == NT_OK && nt_apply(net, x, NULL) != NULL, "after nt_init it records");
    tap_ok(nt_apply(net, nt_input(t, NT_F32, NT_SHAPE(2, 5)), NULL) == NULL, "an input of another shape than nt_init saw");
    expect(t, "its message", NT_ERROR_SHAPE, "[2,5]");
    nt_error_clear(t);
    nt_tape *other = nt_tape_open(NULL);
    tap_ok(nt_apply(net, nt_input(other, NT_F32, NT_SHAPE(2, 3, 3)), NULL) == NULL && (nt_error(t) || nt_error(other)), "a layer and an input of two tapes");
    nt_tape_close(other);
    nt_error_clear(t);
    tap_ok(nt_dense_layer(t, 0, NULL) == NULL, "a dense layer without features");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_dense_layer|features");
    nt_tape_close(t);
}

static void test_initializers(void) {
    float out[4];
    nt_init_desc desc;
    memset(&desc, 0, sizeof desc);
    desc.kind = NT_LECUN_NORMAL;
    tap_ok(nt_initialize(nt_key(0), &desc, NT_F32, NT_SHAPE(4), out) == NT_ERROR_SHAPE, "the fan of a vector");
    tap_ok(nt_initialize(nt_key(0), &desc, NT_I32, NT_SHAPE(2, 2), out) == NT_ERROR_DTYPE, "initial values of integers");
    tap_ok(nt_initialize(nt_key(0), &desc, NT_F32, NT_SHAPE(2, 2), NULL) == NT_ERROR_ARGUMENT, "nowhere to put them");
}

static void test_optimizers(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(4));
    tap_ok(nt_compile_step(nt_mean(x), nt_sgd(t, NULL), NULL) == NULL, "a loss that reaches no variable");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_compile_step|variable");
    nt_error_clear(t);
    tap_ok(nt_multi_steps(nt_sgd(t, NULL), 0) == NULL, "accumulating 0 micro-batches");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_multi_steps|k|0");
    nt_error_clear(t);
    tap_ok(nt_multi_steps(nt_multi_steps(nt_sgd(t, NULL), 2), 2) == NULL, "accumulating twice");
    nt_error_clear(t);
    nt_adam_desc adam;
    memset(&adam, 0, sizeof adam);
    adam.learning_rate = 0.1;
    adam.b1 = 1.5;
    tap_ok(nt_adam(t, &adam) == NULL, "b1 above one");
    expect(t, "its message", NT_ERROR_ARGUMENT, "nt_adam|b1|1.5");
    nt_error_clear(t);
    nt_tensor *w = nt_name(nt_variable(t, NT_F32, NT_SHAPE(4), NULL), "w"), *v = nt_variable(t, NT_F32, NT_SHAPE(4), NULL);
    tap_ok(nt_compile_step(nt_mul(x, w), nt_sgd(t, NULL), NULL) == NULL, "a loss that is no scalar");
    expect(t, "its message", NT_ERROR_SHAPE, "nt_compile_step|[4]|nt_mean");
    nt_error_clear(t);
    tap_ok(nt_compile_step(nt_mean(nt_mul(x, w)), NULL, NULL) == NULL, "no optimizer");
    nt_error_clear(t);
    nt_optimizer *o = nt_adam(t, NULL);
    tap_ok(nt_compile_step(nt_mean(nt_mul(x, w)), o, NULL) != NULL, "an optimizer for w");
    tap_ok(nt_compile_step(nt_mean(nt_mul(x, v)), o, NULL) == NULL, "the same optimizer for other parameters");
    expect(t, "its message", NT_ERROR_ARGUMENT, "optimizer|param");
    nt_error_clear(t);
    nt_tensor *g = nt_input(t, NT_F32, NT_SHAPE(5));
    tap_ok(nt_compile_update(nt_sgd(t, NULL), NT_LIST(w), NT_LIST(g), NULL) == NULL, "gradients of another shape than the parameters");
    expect(t, "its message", NT_ERROR_SHAPE, "[4]|[5]");
    nt_error_clear(t);
    tap_ok(nt_compile_update(nt_sgd(t, NULL), NT_LIST(x), NT_LIST(x), NULL) == NULL, "training an input");
    expect(t, "its message", NT_ERROR_ARGUMENT, "variable");
    nt_tape_close(t);
}

static void test_files(void) {
    nt_tape *t = nt_tape_open(NULL);
    tap_ok(nt_file_open(t, "no/such/file.safetensors") == NULL, "a file that is not there");
    expect(t, "its message", NT_ERROR_FILE, "no/such/file.safetensors|open");
    nt_error_clear(t);
    tap_ok(nt_file_open(t, "test_newcomer.c") == NULL || nt_error(t) == NULL, "a file of another kind");
    expect(t, "its message", NT_ERROR_FILE, "test_newcomer.c");
    nt_tape_close(t);
}

int main(void) {
    nt_tape *t = nt_tape_open(NULL);
    test_recording();
    test_sticky();
    test_other_tape();
    test_rewound();
    test_null_operations(t);
    test_null_calls(t);
    nt_tape_close(t);
    test_small_array();
    test_budget();
    test_shared_scratch();
    test_run_before_write();
    test_bad_data();
    test_bad_index();
    test_nan_loss();
    test_outputs();
    test_wrong_writes();
    test_layers();
    test_initializers();
    test_optimizers();
    test_files();
    return tap_end();
}
