// Rewound tensors, programs and leaves in a debug build: their use is an error that says so, never a crash, since rewound memory is not used again.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#define NTTRAIN_DEBUG
#include "../nttrain.h"
#include "tap.h"

static void expect(nt_tape *t, int failed, const char *what) {
    tap_ok(failed && nt_error_status(t) == NT_ERROR_STATE && strstr(nt_error(t), "rewind"), "%s: %s", what, nt_error(t) ? nt_error(t) : "no error");
    nt_error_clear(t);
}

int main(void) {
    nt_tape *t = nt_tape_open(NULL);
    float numbers[4] = { 1, 2, 3, 4 }, out[4] = { 0 };
    nt_tensor *kept = nt_variable(t, NT_F32, NT_SHAPE(4), numbers), *before = nt_sin(kept);
    nt_program *program = nt_compile(before, NULL);
    nt_marker mark = nt_mark(t);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(4)), *y = nt_exp(kept);
    nt_program *newer = nt_compile(y, NULL);
    nt_write(x, numbers);
    nt_rewind(t, mark);
    expect(t, nt_neg(y) == NULL, "an operation on a rewound value");
    expect(t, nt_add(kept, y) == NULL, "and as a second operand");
    expect(t, nt_eval(y, out) != NT_OK, "nt_eval of one");
    expect(t, nt_compile(y, NULL) == NULL, "nt_compile of one");
    expect(t, nt_grad(nt_sum(y), kept) == NULL, "nt_grad of one");
    expect(t, nt_write(x, numbers) != NT_OK, "nt_write to a rewound input");
    expect(t, nt_run(newer) != NT_OK, "nt_run of a rewound program");
    tap_ok(nt_data(x) == NULL, "nt_data of a rewound input is NULL");
    tap_ok(nt_run(program) == NT_OK && nt_read(program, 0, out) == NT_OK && out[0] > 0.84f && out[0] < 0.85f, "an older program still runs");
    tap_ok(nt_eval(nt_neg(before), out) == NT_OK, "an older value still records");
    nt_forget_nodes(t);
    expect(t, nt_neg(before) == NULL, "a value after nt_forget_nodes");
    tap_ok(nt_eval(nt_neg(kept), out) == NT_OK && out[3] == -4, "a variable survives it");
    nt_tape_close(t);
    return tap_end();
}
