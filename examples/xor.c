// XOR: a first lesson. A network with eight hidden units learns the exclusive or of two bits.
//
//     cc -O2 examples/xor.c -lm -o xor && ./xor
//
// Four steps, the same in every program that uses nttrain.h: record, transform, compile, run. The transform (the gradient)
// hides in nt_compile_step here; digits.c, next door, is the same lesson with a real job and without a heap.
#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
#define NTTRAIN_IMPLEMENTATION
#endif
#include "../nttrain.h"
#include <string.h>

typedef struct xor_result {
    float answer[4], loss;
    nt_report_info plan;
    nt_memory_use memory;
    char error[640]; // why it failed
} xor_result;

static nt_status xor_learn(nt_tape *t, int steps, xor_result *r) {
    // All four questions are one batch: four rows of two bits. The answers are four rows of one.
    static const float question[4][2] = { { 0, 0 }, { 0, 1 }, { 1, 0 }, { 1, 1 } }, answer[4] = { 0, 1, 1, 0 };
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(4, 2), question);
    nt_tensor *wanted = nt_constant(t, NT_F32, NT_SHAPE(4, 1), answer);

    // Record. Nothing is computed: y stands for what the network will say. The key decides the first weights, and every bit
    // of the result with them. Nothing is checked here either: a call that fails gives NULL, and a call given NULL gives NULL.
    nt_layer *net = NT_SERIAL(t, nt_dense_layer(t, 8, NULL), nt_tanh_layer(t), nt_dense_layer(t, 1, NULL));
    nt_init(net, nt_key(1), x);
    nt_tensor *y = nt_sigmoid(nt_apply(net, x, NULL));
    nt_tensor *loss = nt_mean(nt_square(nt_sub(y, wanted)));

    // Compile. One program learns: it computes the loss, the derivative of the loss with respect to every weight, and moves
    // the weights a little (Adam). The other only answers. Each is planned to the byte, and `error` says what would not fit.
    nt_program *step = nt_compile_step(loss, nt_adam(t, &(nt_adam_desc){ .learning_rate = 0.05 }), NULL);
    nt_program *ask = nt_compile(y, &(nt_compile_desc){ .share_scratch = step });
    if (!step || !ask) return nt_error_status(t);

    // Run. From here on no memory is allocated.
    for (int i = 0; i < steps; i++) {
        nt_status status = nt_run(step);
        if (status != NT_OK) return status;
    }
    r->loss = (float)nt_window_loss(step);
    r->plan = nt_report(step);
    nt_status status = nt_run(ask);
    return status == NT_OK ? nt_read(ask, 0, r->answer) : status;
}

// desc says where the memory comes from. 0: learned; the answers are in r->answer.
static int xor_main(const nt_tape_desc *desc, int steps, xor_result *r) {
    memset(r, 0, sizeof *r);
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? xor_learn(t, steps, r) : NT_ERROR_MEMORY;
    if (status != NT_OK) snprintf(r->error, sizeof r->error, "%s: %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "?");
    if (t) r->memory = nt_memory(t);
    nt_tape_close(t);
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN
int main(void) {
    xor_result r;
    int failed = xor_main(NULL, 300, &r); // NULL: memory from malloc, all defaults
    if (failed) {
        printf("%s\n", r.error);
        return 1;
    }
    for (int i = 0; i < 4; i++) printf("%d xor %d = %.3f\n", i / 2, i % 2, (double)r.answer[i]);
    printf("loss %.2g; the plan: %zu bytes of scratch (lower bound %zu), %zu in all\n", (double)r.loss, r.plan.peak, r.plan.lower_bound, r.memory.total);
    return 0;
}
#endif
