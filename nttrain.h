// nttrain.h: trains neural networks inside a memory budget that the host sets and the library proves before the first
// number is computed. One file, C99 and C++11.
//
// Do this in one C or C++ file, and include the header alone everywhere else:
//
//     #define NTTRAIN_IMPLEMENTATION
//     #include "nttrain.h"
//
// HOW IT WORKS
//
//     record     operations on nt_tensor append nodes to an nt_tape; nothing is computed
//     transform  nt_grad, nt_jvp, nt_linearize ... read nodes and append more nodes
//     compile    nt_compile: what is needed, in which order, at which address; the peak is an exact number of bytes
//     run        nt_run: executes the program any number of times and allocates nothing
//
//     nt_tape *t = nt_tape_open(NULL);                          // NULL: malloc, all defaults
//     float numbers[] = { 1, 2, 3 };
//     nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(3), numbers);
//     nt_tensor *y = nt_sum(nt_mul(nt_sin(x), x));
//     nt_print(y); nt_print(nt_grad(y, x));                     // evaluates, prints shape and values
//     nt_tape_close(t);
//
// WHAT IT DOES NOT DO
//
//     It has no globals, starts no threads, does no I/O unless a call asks for it, and never aborts, exits or prints.
//     One tape belongs to one thread at a time; two tapes in two threads never meet.
//
// ERRORS
//
//     Every operation takes NULL and returns NULL quietly, so a whole expression is checked once: nt_error(t) gives the
//     first error with the operation, the shapes and the bytes, or NULL. See "errors" below.
//
// CONTENTS (search for the marker; the implementation has the same order)
//
//     public      >>configuration  >>values  >>tape  >>errors  >>leaves  >>operations  >>random  >>transforms  >>programs
//                 >>layers  >>optimizers  >>files
//     private     >>formatting  >>arena  >>evaluator  >>tensors  >>recording  >>keys  >>random numbers
//                 what kernels are told: >>maps  >>products  >>row kernels  >>linear algebra  >>update kernels
//                 compiled for each instruction set: >>kernels  >>vector mathematics  >>random bits  >>product kernels
//                 >>convolution kernels  >>row kernels of a pass  >>updates  >>linear algebra kernels  >>passes
//                 >>integers  >>casts  >>random arrays  >>initializers
//                 operations, their plans and tiles: >>matmul  >>convolution  >>axes  >>reductions  >>row operations  >>attention  >>pooling rows
//                 >>moving rows  >>gather and scatter  >>scans and sorts  >>check of indices  >>factorisations  >>elementwise driver  >>evaluators
//                 >>rows  >>rules  >>samples  >>autodiff  >>transforms  >>compiler  >>planner  >>programs  >>running  >>reports
//                 >>layers  >>optimizers  >>files
//
// Licence: public domain or MIT-0, at your choice; see the end of the file.
// clang-format off: the public section is laid out by hand
#ifndef NTI_PASS
#ifndef NTTRAIN_H
#define NTTRAIN_H

// >>configuration
// ---------------------------------------------------------------------------------------------------------------------
// Define these before the include where the implementation is compiled. None of them changes a public struct.
//
//     NT_API                   linkage of public functions (default: extern; NTTRAIN_STATIC makes them static, for a file that has
//                              the implementation as well)
//     NT_ASSERT(condition)     checks of the library's own invariants; never of your input (default: none)
//     NTTRAIN_NO_STDIO         no <stdio.h>: nt_print, nt_report_print and files by path go; nt_io hooks stay
//     NTTRAIN_NO_MALLOC        no <stdlib.h>: a tape needs memory or an allocator
//     NTTRAIN_NO_FILES         without the file section
//     NTTRAIN_DEBUG            rewound memory is not used again, and the use of a rewound tensor is an error
//     NTTRAIN_ISA_BASELINE     only the instruction set that the compiler was told to use (smaller)
//     NTTRAIN_ISA_PORTABLE     plain C without vectors
//     NTTRAIN_FILE             how this file includes itself, where it has another name (default: "nttrain.h")
// ---------------------------------------------------------------------------------------------------------------------
#include <stddef.h>
#include <stdint.h>
#if !defined(NTTRAIN_NO_STDIO)
#include <stdio.h>
#endif

#define NT_VERSION_MAJOR 0
#define NT_VERSION_MINOR 1
#define NT_VERSION_PATCH 0
#define NT_VERSION (NT_VERSION_MAJOR * 10000 + NT_VERSION_MINOR * 100 + NT_VERSION_PATCH)

#ifndef NT_API
#ifdef NTTRAIN_STATIC
#define NT_API static
#else
#define NT_API extern
#endif
#endif

#ifdef __cplusplus
extern "C" {
#endif

// The version of the implementation that was linked: compare with NT_VERSION to find a stale object file.
NT_API int nt_version(void);
// How the implementation was compiled, as one line of text: version, compiler, instruction sets, what was configured out.
NT_API const char *nt_config_string(void);

// >>values
// ---------------------------------------------------------------------------------------------------------------------
// Types. Values are logically row-major and immutable. Images are NHWC, convolution kernels HWIO. There is no implicit
// promotion: two dtypes in one operation are an error that names both. Binary operations broadcast as NumPy does.
// ---------------------------------------------------------------------------------------------------------------------
typedef enum nt_dtype {
    NT_F32, NT_F64, NT_I32, NT_U32, NT_BOOL,      // to compute with (bool: one byte, 0 or 1)
    NT_F16, NT_BF16,                              // storage (arithmetic on them is refused for now: cast)
    NT_I8, NT_U8, NT_I16, NT_U16, NT_I64, NT_U64, // storage: inputs, files, random bits
    NT_DTYPE_COUNT
} nt_dtype;

// The bytes of one element (0 for a number that is no dtype), and the name ("f32").
NT_API size_t nt_dtype_size(nt_dtype dtype);
NT_API const char *nt_dtype_name(nt_dtype dtype);

#define NT_MAX_RANK 8
typedef struct nt_shape { int rank; int64_t size[NT_MAX_RANK]; } nt_shape;
typedef struct nt_axes { int count; int axis[NT_MAX_RANK]; } nt_axes; // negative axes count from the end, as in NumPy

#define NT_LAST (-1) // the last axis
// Exactly zero in a descriptor's field where a zero field means the default (b1, b2, eps).
#define NT_ZERO (-1.0e-300)

// NT_SHAPE(32, 8, 8, 1), NT_SCALAR (rank 0), NT_WINDOW(3, 3), NT_AXES(0, 2); nt_shape_make for sizes that are not
// literals in C++ (where a braced list does not narrow).
#define NTI_COUNT_(_1, _2, _3, _4, _5, _6, _7, _8, _9, _10, _11, _12, _13, _14, _15, _16, _17, _18, _19, _20, _21, _22, _23, _24, _25, _26, _27, _28, \
                   _29, _30, _31, _32, N, ...) N
#define NTI_COUNT(...) NTI_COUNT_(__VA_ARGS__, 32, 31, 30, 29, 28, 27, 26, 25, 24, 23, 22, 21, 20, 19, 18, 17, 16, 15, 14, 13, 12, 11, 10, 9, 8, 7, 6, 5, \
                                  4, 3, 2, 1, 0)
#ifdef __cplusplus
#define NT_SHAPE(...) (nt_shape{ NTI_COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define NT_AXES(...) (nt_axes{ NTI_COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define NT_SCALAR (nt_shape{ 0, { 0 } })
#else
#define NT_SHAPE(...) ((nt_shape){ NTI_COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define NT_AXES(...) ((nt_axes){ NTI_COUNT(__VA_ARGS__), { __VA_ARGS__ } })
#define NT_SCALAR ((nt_shape){ 0, { 0 } })
#endif
#define NT_WINDOW(...) NT_SHAPE(__VA_ARGS__)
NT_API nt_shape nt_shape_make(int rank, const int64_t *sizes);

typedef struct nt_tape nt_tape;
typedef struct nt_program nt_program;
typedef struct nt_layer nt_layer;
typedef struct nt_optimizer nt_optimizer;
struct nti_node;

// A value on a tape. The fields may be read, never written. Inputs and variables live until the tape is closed or rewound
// past them; every other tensor until nt_forget_nodes or a rewind.
typedef struct nt_tensor {
    nt_tape *tape;
    const char *name;     // NULL: none. Parameters are named as flax names them: "Conv_0/kernel"
    const int64_t *shape; // rank sizes
    int rank;
    nt_dtype dtype;
} nt_tensor;

NT_API nt_shape nt_shape_of(const nt_tensor *x); // rank 0 for NULL
NT_API int64_t nt_size(const nt_tensor *x);      // number of elements; 0 for NULL
NT_API size_t nt_bytes(const nt_tensor *x);      // nt_size times the dtype's size
NT_API nt_tensor *nt_name(nt_tensor *x, const char *name); // names a value in errors and reports (the text is copied); returns x

// A counted list of tensors. The array belongs to the caller, or to the tape where a call returns one.
typedef struct nt_params { int count; nt_tensor **items; } nt_params;
// NT_LIST(a, b, c): a list that lives as long as the enclosing expression (C++) or block (C).
#ifdef __cplusplus
} // extern "C"
template <class T, size_t N> struct nti_items { T items[N]; };
extern "C" {
#define NT_LIST(...) (nt_params{ NTI_COUNT(__VA_ARGS__), nti_items<nt_tensor *, NTI_COUNT(__VA_ARGS__)>{ { __VA_ARGS__ } }.items })
#else
#define NT_LIST(...) ((nt_params){ NTI_COUNT(__VA_ARGS__), (nt_tensor *[]){ __VA_ARGS__ } })
#endif

// >>tape
// ---------------------------------------------------------------------------------------------------------------------
// The tape owns everything. Its memory is an array of yours, an allocator of yours, or malloc. It grows from two ends:
// recorded nodes and the compiler's temporaries at one, inputs, variables, layers, optimizers, programs and their
// scratch at the other. Every allocation may fail; then the call fails cleanly and what existed before stays usable.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nt_allocator {
    void *user;
    void *(*allocate)(void *user, size_t bytes, size_t alignment); // alignment is a power of two; NULL: no memory
    void (*release)(void *user, void *pointer, size_t bytes);      // bytes as they were asked for
} nt_allocator;

// The host's threads. for_each calls fn(arg, index, worker) exactly once for each index in [0, n), on any thread, with
// 0 <= worker < max_workers and no two calls at once with the same worker, and returns when all are done. Results have
// the same bits for any number of workers; scratch per worker is part of the plan.
typedef struct nt_parallel {
    void *user;
    int max_workers; // 0: no threads
    void (*for_each)(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg);
} nt_parallel;

typedef enum nt_isa {   // instruction set of the kernels; AVX2 and AVX512 give equal bits, BASELINE others (no fused multiply-add)
    NT_ISA_AUTO, NT_ISA_BASELINE, NT_ISA_AVX2, NT_ISA_AVX512
} nt_isa;

typedef struct nt_tape_desc {
    void *memory;           // an array of any alignment that outlives the tape; NULL: use the allocator
    size_t memory_size;     // its bytes
    nt_allocator allocator; // used when memory is NULL; functions NULL: malloc and free
    nt_parallel parallel;
    nt_isa isa;             // an instruction set that the machine lacks is an error of nt_tape_open
} nt_tape_desc;

// The least memory_size that a tape can be opened in (nothing can be recorded in it yet).
NT_API size_t nt_tape_size_min(void);
// NULL if the memory is too small, the allocator refused or is half an allocator, max_workers is negative or has no for_each,
// or the machine lacks the instruction set. desc NULL: malloc, no threads.
NT_API nt_tape *nt_tape_open(const nt_tape_desc *desc);
// Releases everything: all tensors, layers, optimizers, programs. NULL is allowed.
NT_API void nt_tape_close(nt_tape *t);

// nt_mark and nt_rewind: everything newer than the mark, at both ends, is gone. An older layer that was initialised after
// the mark is uninitialised again; an older optimizer loses its newer state.
typedef struct nt_marker { size_t low; uint64_t serial; } nt_marker;
NT_API nt_marker nt_mark(nt_tape *t);
NT_API void nt_rewind(nt_tape *t, nt_marker mark);
// Drops the recording. Inputs, variables, layers, optimizers and programs stay; every other nt_tensor* is dead.
NT_API void nt_forget_nodes(nt_tape *t);

typedef struct nt_memory_use { // bytes, by purpose
    size_t nodes, temporaries;                                // now, at the low end
    size_t inputs, variables, programs, scratch, objects;     // now, at the high end (objects: layers, optimizers, names)
    size_t total;                                             // the array that this tape needed so far, base alignment included
    size_t total_least;                                       // the same with the smallest plan of each program that the planner reaches
} nt_memory_use;
NT_API nt_memory_use nt_memory(const nt_tape *t);

// >>errors
// ---------------------------------------------------------------------------------------------------------------------
// Recording errors are sticky: the first wins, and every later operation returns NULL until nt_error_clear or a rewind.
// Errors of compiling, running and files do not poison the tape: the call can be corrected and tried again.
// ---------------------------------------------------------------------------------------------------------------------
typedef enum nt_status {
    NT_OK = 0,
    NT_DONE = 0,
    NT_AGAIN,            // nt_run_for: the time is up and there is more to do
    NT_BUSY,             // a run is in the middle of this program, of one that shares its scratch, or of one that uses this value
    NT_CANCELLED,        // .cancel asked before anything was assigned: nothing was changed
    NT_NONFINITE,        // a training step met a NaN or an infinity and changed nothing
    NT_ERROR_ARGUMENT,   // a NULL, a bad axis, a tensor of another tape
    NT_ERROR_SHAPE,
    NT_ERROR_DTYPE,
    NT_ERROR_MEMORY,     // the tape's memory is used up: the message names the bytes that would do
    NT_ERROR_BUDGET,     // the plan does not fit the budget: the message names the least that would do
    NT_ERROR_DATA,       // an index or a label out of range: nothing was assigned
    NT_ERROR_FILE,
    NT_ERROR_STATE,      // run before write, use after rewind
    NT_ERROR_DERIVATIVE  // the operation has no derivative
} nt_status;

// The sticky recording error, else the message of the first failed compile, run or file call since nt_error_clear, else
// NULL. The text, at most NT_MESSAGE_SIZE - 1 characters, lives until nt_error_clear. For a NULL tape it says why there may be none.
#define NT_MESSAGE_SIZE 512
NT_API const char *nt_error(const nt_tape *t);
NT_API nt_status nt_error_status(const nt_tape *t);
NT_API void nt_error_clear(nt_tape *t);
NT_API const char *nt_status_name(nt_status status);

// >>leaves
// ---------------------------------------------------------------------------------------------------------------------
// Where values come from. Inputs and variables have storage at the tape's high end and survive nt_forget_nodes.
// ---------------------------------------------------------------------------------------------------------------------
// An input changes between runs: by nt_write (copied into storage reserved by the first nt_write or the first compile that
// reads it) or nt_bind (read in place, no storage). Any dtype; storage dtypes must be cast before arithmetic.
NT_API nt_tensor *nt_input(nt_tape *t, nt_dtype dtype, nt_shape shape);
// A variable keeps its value between runs and changes only by nt_write, nt_assign and optimizers. data NULL: zeros.
NT_API nt_tensor *nt_variable(nt_tape *t, nt_dtype dtype, nt_shape shape, const void *data);
// A constant; data (nt_size elements, row-major) are copied. One value: nt_full; nt_scalar is nt_full of rank 0.
NT_API nt_tensor *nt_constant(nt_tape *t, nt_dtype dtype, nt_shape shape, const void *data);
NT_API nt_tensor *nt_full(nt_tape *t, nt_dtype dtype, nt_shape shape, double value);
NT_API nt_tensor *nt_scalar(nt_tape *t, nt_dtype dtype, double value);
NT_API nt_tensor *nt_full_like(nt_tensor *x, double value); // dtype and shape of x
NT_API nt_tensor *nt_iota(nt_tape *t, nt_dtype dtype, nt_shape shape, int axis); // 0, 1, 2 ... along the axis

// Copies nt_bytes(x) bytes of row-major data into an input or a variable. NT_BUSY, as nt_bind, while a program that uses it is in the
// middle of a run.
NT_API nt_status nt_write(nt_tensor *x, const void *data);
// The input is read at this address from now on; it must stay valid while programs run. NULL: back to own storage.
NT_API nt_status nt_bind(nt_tensor *input, const void *data);
// The storage of a variable or an input (the bound address where there is one); NULL for anything else, before storage exists, and from
// the first assignment of a sliced run on until its end (NT_BUSY) where that run assigns the variable.
NT_API void *nt_data(const nt_tensor *x);
// Read-only variables with the present values of params (pointers NULL), or with the host's arrays read in place, which must
// stay unchanged. Frozen values are never trained or assigned. The list lives as long as the tape.
NT_API nt_params nt_freeze(nt_tape *t, nt_params params, const void *const *pointers);

// >>operations
// ---------------------------------------------------------------------------------------------------------------------
// Every operation returns a new value, or NULL if an argument is NULL or an error was recorded.
// ---------------------------------------------------------------------------------------------------------------------
// Elementwise, one argument, f32 and f64 (neg, abs, sign, square, relu, scale, add_scalar and clamp also i32 and u32). The result
// has the argument's shape and dtype.
NT_API nt_tensor *nt_neg(nt_tensor *x);
NT_API nt_tensor *nt_abs(nt_tensor *x);        // derivative +1 at 0, as JAX's
NT_API nt_tensor *nt_sign(nt_tensor *x);       // NaN stays NaN
NT_API nt_tensor *nt_square(nt_tensor *x);
NT_API nt_tensor *nt_reciprocal(nt_tensor *x);
NT_API nt_tensor *nt_sqrt(nt_tensor *x);
NT_API nt_tensor *nt_rsqrt(nt_tensor *x);      // 1 / sqrt(x)
NT_API nt_tensor *nt_cbrt(nt_tensor *x);
NT_API nt_tensor *nt_exp(nt_tensor *x);
NT_API nt_tensor *nt_exp2(nt_tensor *x);
NT_API nt_tensor *nt_expm1(nt_tensor *x);
NT_API nt_tensor *nt_log(nt_tensor *x);
NT_API nt_tensor *nt_log2(nt_tensor *x);
NT_API nt_tensor *nt_log1p(nt_tensor *x);
NT_API nt_tensor *nt_sin(nt_tensor *x);
NT_API nt_tensor *nt_cos(nt_tensor *x);
NT_API nt_tensor *nt_tan(nt_tensor *x);
NT_API nt_tensor *nt_asin(nt_tensor *x);
NT_API nt_tensor *nt_acos(nt_tensor *x);
NT_API nt_tensor *nt_atan(nt_tensor *x);
NT_API nt_tensor *nt_sinh(nt_tensor *x);
NT_API nt_tensor *nt_cosh(nt_tensor *x);
NT_API nt_tensor *nt_tanh(nt_tensor *x);
NT_API nt_tensor *nt_asinh(nt_tensor *x);
NT_API nt_tensor *nt_acosh(nt_tensor *x);
NT_API nt_tensor *nt_atanh(nt_tensor *x);
NT_API nt_tensor *nt_erf(nt_tensor *x);
NT_API nt_tensor *nt_erfc(nt_tensor *x);
NT_API nt_tensor *nt_erf_inv(nt_tensor *x);
NT_API nt_tensor *nt_lgamma(nt_tensor *x);     // log |gamma(x)|
NT_API nt_tensor *nt_digamma(nt_tensor *x);
NT_API nt_tensor *nt_polygamma(nt_tensor *x, int order); // the order-th derivative of digamma, order >= 0
NT_API nt_tensor *nt_sigmoid(nt_tensor *x);
NT_API nt_tensor *nt_log_sigmoid(nt_tensor *x);
NT_API nt_tensor *nt_softplus(nt_tensor *x);   // log(1 + exp(x))
NT_API nt_tensor *nt_relu(nt_tensor *x);       // derivative 0 at 0
NT_API nt_tensor *nt_relu6(nt_tensor *x);
NT_API nt_tensor *nt_leaky_relu(nt_tensor *x, double slope);
NT_API nt_tensor *nt_elu(nt_tensor *x, double alpha);
NT_API nt_tensor *nt_selu(nt_tensor *x);
NT_API nt_tensor *nt_gelu(nt_tensor *x);       // x Phi(x), exact
NT_API nt_tensor *nt_gelu_tanh(nt_tensor *x);  // its approximation by tanh (flax's default)
NT_API nt_tensor *nt_silu(nt_tensor *x);       // x sigmoid(x)
NT_API nt_tensor *nt_mish(nt_tensor *x);       // x tanh(softplus(x))
NT_API nt_tensor *nt_soft_sign(nt_tensor *x);  // x / (1 + |x|)
NT_API nt_tensor *nt_hard_tanh(nt_tensor *x);
NT_API nt_tensor *nt_hard_sigmoid(nt_tensor *x); // relu6(x + 3) / 6
NT_API nt_tensor *nt_hard_silu(nt_tensor *x);
NT_API nt_tensor *nt_floor(nt_tensor *x);
NT_API nt_tensor *nt_ceil(nt_tensor *x);
NT_API nt_tensor *nt_trunc(nt_tensor *x);
NT_API nt_tensor *nt_round(nt_tensor *x);      // half to even
NT_API nt_tensor *nt_scale(nt_tensor *x, double factor);
NT_API nt_tensor *nt_add_scalar(nt_tensor *x, double number);
NT_API nt_tensor *nt_pow_scalar(nt_tensor *x, double exponent);
NT_API nt_tensor *nt_clamp(nt_tensor *x, double low, double high); // derivative 1/2 at the ends, as those of maximum and minimum
NT_API nt_tensor *nt_is_finite(nt_tensor *x);  // bool
NT_API nt_tensor *nt_is_nan(nt_tensor *x);     // bool
NT_API nt_tensor *nt_stop_gradient(nt_tensor *x); // x with derivative zero
NT_API nt_tensor *nt_cast(nt_tensor *x, nt_dtype dtype); // any to any. Float to integer: towards zero, saturating, NaN to 0; integers wrap; to bool: != 0

// Elementwise, two arguments of one dtype, broadcast against each other: f32 and f64, and i32 and u32 for add, sub, mul, div,
// maximum, minimum, rem, mod and the comparisons (which also take bool for equal and not_equal by nt_logical_xor).
NT_API nt_tensor *nt_add(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_sub(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_mul(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_div(nt_tensor *x, nt_tensor *y);     // integers: towards zero, x / 0 is 0
NT_API nt_tensor *nt_pow(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_maximum(nt_tensor *x, nt_tensor *y); // NaN wins; equal arguments share the derivative
NT_API nt_tensor *nt_minimum(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_atan2(nt_tensor *y, nt_tensor *x);
NT_API nt_tensor *nt_hypot(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_logaddexp(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_copysign(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_rem(nt_tensor *x, nt_tensor *y);     // the sign of x, as C's fmod
NT_API nt_tensor *nt_mod(nt_tensor *x, nt_tensor *y);     // the sign of y, as Python's %
NT_API nt_tensor *nt_equal(nt_tensor *x, nt_tensor *y);   // comparisons give bool
NT_API nt_tensor *nt_not_equal(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_less(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_less_equal(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_greater(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_greater_equal(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_logical_not(nt_tensor *x);           // bool only
NT_API nt_tensor *nt_logical_and(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_logical_or(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_logical_xor(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_select(nt_tensor *condition, nt_tensor *x, nt_tensor *y); // bool, broadcast: condition ? x : y

// Matrix products, of f32, f64, i32 or u32. matmul: (..., m, k) by (..., k, n) gives (..., m, n); leading axes broadcast; rank 1 as NumPy's matmul.
NT_API nt_tensor *nt_matmul(nt_tensor *x, nt_tensor *y);
NT_API nt_tensor *nt_dense(nt_tensor *x, nt_tensor *weight, nt_tensor *bias); // x w + b; bias NULL: none

// Linear algebra, f32 and f64, of the last two axes; leading axes are a batch. What cannot be factored gives NaN (or infinities and
// NaN, for a singular matrix), as JAX's; matrices that are to be symmetric count as (x + x^T)/2, so derivatives are symmetric too.
NT_API nt_tensor *nt_cholesky(nt_tensor *x);              // lower L with x = L L^T; NaN in the whole triangle if x is not positive definite
typedef struct nt_triangular_desc { int right, upper, transpose, unit; } nt_triangular_desc;
// a x = b, b (..., n, m) or (n); leading axes broadcast. Only one triangle of a is read: the lower one, or .upper, with ones on its
// diagonal (.unit), as a or as its transpose (.transpose). .right: x a = b, b (..., m, n) or (n).
NT_API nt_tensor *nt_triangular_solve(nt_tensor *a, nt_tensor *b, const nt_triangular_desc *desc);
NT_API nt_tensor *nt_solve(nt_tensor *a, nt_tensor *b);   // a x = b by LU, b (..., n, m) or (n); leading axes broadcast
NT_API nt_tensor *nt_inv(nt_tensor *a);
NT_API nt_tensor *nt_det(nt_tensor *a);                   // (...); its derivative needs an inverse, so that of a singular a is not finite
typedef struct nt_sign_log { nt_tensor *sign, *log; } nt_sign_log;
NT_API nt_sign_log nt_slogdet(nt_tensor *a);              // det = sign exp(log); 0 and -infinity for a singular a
NT_API nt_tensor *nt_solve_spd(nt_tensor *a, nt_tensor *b); // nt_solve for a symmetric positive definite a, by Cholesky
NT_API nt_tensor *nt_logdet_spd(nt_tensor *a);            // log det of one
typedef struct nt_eigen { nt_tensor *values, *vectors; } nt_eigen;
// Of a symmetric matrix: values (..., n) in ascending order, vectors (..., n, n) in columns, the largest element of each (the first
// of equal ones) positive. The derivative of vectors divides by differences of eigenvalues: it is not finite where two are equal.
NT_API nt_eigen nt_eigh(nt_tensor *x);
NT_API nt_tensor *nt_eigvalsh(nt_tensor *x);              // values alone, at a fraction of the cost
NT_API nt_tensor *nt_sym_sqrt(nt_tensor *x);              // the symmetric s with s s = x; NaN if an eigenvalue is negative (by more than rounding)
typedef struct nt_qr_factors { nt_tensor *q, *r; } nt_qr_factors;
NT_API nt_qr_factors nt_qr(nt_tensor *x);                 // x (..., m, n) = q r: q (..., m, k) orthonormal, r (..., k, n) upper, k = min(m, n)

typedef enum nt_padding {
    NT_PADDING_DEFAULT, // SAME for convolution, VALID for pooling
    NT_SAME,            // output ceil(n / stride); the odd element goes at the end
    NT_VALID,
    NT_EXPLICIT         // .pad[axis][0] before and .pad[axis][1] after; may be negative in convolutions
} nt_padding;

// Zero fields: stride (convolution 1, pooling the window), dilation 1, groups 1. Entries are one for each spatial axis.
typedef struct nt_conv_desc {
    int stride[3], dilation[3];
    int groups;              // output channel o sees input channels of group o / (outputs / groups)
    nt_padding padding;
    int pad[3][2];
} nt_conv_desc;
// x (N, H, W, C), kernel (h, w, C / groups, O): (N, H', W', O). Cross-correlation: the kernel is not flipped.
NT_API nt_tensor *nt_conv(nt_tensor *x, nt_tensor *kernel, const nt_conv_desc *desc);
// Its transposes: with respect to x (shape: that of x) and to the kernel (shape: that of the kernel); g is shaped like the output.
NT_API nt_tensor *nt_conv_transpose_input(nt_tensor *g, nt_tensor *kernel, nt_shape shape, const nt_conv_desc *desc);
NT_API nt_tensor *nt_conv_transpose_kernel(nt_tensor *x, nt_tensor *g, nt_shape shape, const nt_conv_desc *desc);

typedef struct nt_pool_desc {
    int stride[3];           // 0: the window
    nt_padding padding;
    int pad[3][2];
    int exclude_pad;         // average over the elements inside the image only
} nt_pool_desc;
// x (N, spatial axes, C), window NT_WINDOW(2, 2). Max pads with -infinity; the first of equal elements gets the derivative.
NT_API nt_tensor *nt_max_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc);
NT_API nt_tensor *nt_avg_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc);
NT_API nt_tensor *nt_sum_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc);

// Reductions: over all axes, or over the given ones (keep: reduced axes stay with size 1). f32 and f64; sum, prod, max, min,
// argmax and argmin also i32 and u32 (sums wrap); any and all take bool. Empty: 0, 1, -inf, +inf, false, true.
NT_API nt_tensor *nt_sum(nt_tensor *x);
NT_API nt_tensor *nt_mean(nt_tensor *x);
NT_API nt_tensor *nt_sum_axes(nt_tensor *x, nt_axes axes, int keep);
NT_API nt_tensor *nt_mean_axes(nt_tensor *x, nt_axes axes, int keep);
NT_API nt_tensor *nt_prod_axes(nt_tensor *x, nt_axes axes, int keep);
NT_API nt_tensor *nt_max_axes(nt_tensor *x, nt_axes axes, int keep); // equal maxima share the derivative equally
NT_API nt_tensor *nt_min_axes(nt_tensor *x, nt_axes axes, int keep);
NT_API nt_tensor *nt_logsumexp_axes(nt_tensor *x, nt_axes axes, int keep);
NT_API nt_tensor *nt_norm_axes(nt_tensor *x, nt_axes axes, int keep); // square root of the sum of squares
NT_API nt_tensor *nt_any_axes(nt_tensor *x, nt_axes axes, int keep); // bool
NT_API nt_tensor *nt_all_axes(nt_tensor *x, nt_axes axes, int keep); // bool
NT_API nt_tensor *nt_argmax(nt_tensor *x, int axis); // i32; the first of equal ones; NaN counts as the extreme
NT_API nt_tensor *nt_argmin(nt_tensor *x, int axis);

// Shape. Reshape takes one size of -1; broadcast goes to a shape that NumPy would broadcast x to.
NT_API nt_tensor *nt_reshape(nt_tensor *x, nt_shape shape);
NT_API nt_tensor *nt_transpose(nt_tensor *x, nt_axes order); // output axis k is input axis order[k]
NT_API nt_tensor *nt_swap_axes(nt_tensor *x, int a, int b);
NT_API nt_tensor *nt_broadcast(nt_tensor *x, nt_shape shape);
NT_API nt_tensor *nt_expand_dims(nt_tensor *x, int axis);
NT_API nt_tensor *nt_squeeze(nt_tensor *x, int axis);
NT_API nt_tensor *nt_flatten(nt_tensor *x, int axis);        // axes from axis on become one
// Elements start, start + step ... below limit along each axis (rank entries each; step NULL: 1).
NT_API nt_tensor *nt_slice(nt_tensor *x, const int64_t *start, const int64_t *limit, const int64_t *step);
NT_API nt_tensor *nt_slice_axis(nt_tensor *x, int axis, int64_t start, int64_t limit);
// before and after (may be negative) and interior (>= 0, between elements; NULL: none), rank entries each, filled with value.
NT_API nt_tensor *nt_pad(nt_tensor *x, const int64_t *before, const int64_t *after, const int64_t *interior, double value);
NT_API nt_tensor *nt_concat(nt_params parts, int axis);
NT_API nt_tensor *nt_stack(nt_params parts, int axis);
// Element i of each axis in `axes` becomes element n - 1 - i: a view. Rolled: element i moves to i + shift[k], around the end.
NT_API nt_tensor *nt_flip(nt_tensor *x, nt_axes axes);
NT_API nt_tensor *nt_roll(nt_tensor *x, const int64_t *shift, nt_axes axes); // one shift for each of axes
NT_API nt_tensor *nt_repeat(nt_tensor *x, int64_t n, int axis);              // each element n times
NT_API nt_tensor *nt_tile(nt_tensor *x, nt_shape times);                     // the whole, along the last axes, as NumPy's tile
// Matrices (the last two axes): zero above (tril) or below (triu) diagonal k, counted to the right; diagonal k (..., n); the sum of diagonal 0.
NT_API nt_tensor *nt_tril(nt_tensor *x, int64_t k);
NT_API nt_tensor *nt_triu(nt_tensor *x, int64_t k);
NT_API nt_tensor *nt_diag(nt_tensor *x, int64_t k);
NT_API nt_tensor *nt_trace(nt_tensor *x);
// x at indices (i32, any shape) along the axis; an index out of range is an error of the run, or is moved into range (clip).
NT_API nt_tensor *nt_gather(nt_tensor *x, nt_tensor *indices, int axis);
NT_API nt_tensor *nt_gather_clip(nt_tensor *x, nt_tensor *indices, int axis);
// x with updates added at the indices; updates are shaped like x with the axis replaced by the axes of the indices. Equal indices add up.
NT_API nt_tensor *nt_scatter_add(nt_tensor *x, nt_tensor *indices, nt_tensor *updates, int axis);
// The element of each line of x (along the axis) that the index says: indices (i32) of x's rank, the other axes broadcast; negative ones
// count from the end, as NumPy's take_along_axis; one out of range is an error of the run.
NT_API nt_tensor *nt_take_along_axis(nt_tensor *x, nt_tensor *indices, int axis);
// Row j is the sum of the rows of x (along axis 0) whose id (i32, one for each) is j, of n; other ids count nowhere.
NT_API nt_tensor *nt_segment_sum(nt_tensor *x, nt_tensor *ids, int64_t n);
NT_API nt_tensor *nt_one_hot(nt_tensor *indices, int64_t n, nt_dtype dtype); // (..., n); all zero where the index (i32 or u32) is out of range
// The piece of this size at `starts`, one i32 scalar for each axis; and x with an update put there. A negative start counts from the
// end, then starts are moved into range so that the piece fits.
NT_API nt_tensor *nt_dynamic_slice(nt_tensor *x, nt_tensor *const *starts, nt_shape size);
NT_API nt_tensor *nt_dynamic_update_slice(nt_tensor *x, nt_tensor *update, nt_tensor *const *starts);

// Along one axis: sums, products, maxima (NaN wins; equal ones share the derivative) and logarithms of sums of exponentials of the
// elements up to each, or from each on (reverse); and y[t] = a[t] y[t-1] + b[t] from y[-1] = 0. f32, f64; sum, product, maximum also
// i32, u32. f32 is summed in f64.
NT_API nt_tensor *nt_cumsum(nt_tensor *x, int axis, int reverse);
NT_API nt_tensor *nt_cumprod(nt_tensor *x, int axis, int reverse);
NT_API nt_tensor *nt_cummax(nt_tensor *x, int axis, int reverse);
NT_API nt_tensor *nt_cumlogsumexp(nt_tensor *x, int axis, int reverse);
NT_API nt_tensor *nt_linear_scan(nt_tensor *a, nt_tensor *b, int axis, int reverse);
// Ascending and stable, f32, f64, i32, u32, bool; argsort gives positions (i32). As jax.lax.sort: NaN comes last, -0 equals 0.
NT_API nt_tensor *nt_sort(nt_tensor *x, int axis);
NT_API nt_tensor *nt_argsort(nt_tensor *x, int axis);
// The k largest of the last axis, largest first, equal ones by index. As jax.lax.top_k: NaN comes first, -0 lies below 0.
typedef struct nt_top { nt_tensor *values, *indices; } nt_top;
NT_API nt_top nt_top_k(nt_tensor *x, int64_t k);

// Fused, numerically safe.
NT_API nt_tensor *nt_softmax(nt_tensor *x, int axis);
NT_API nt_tensor *nt_log_softmax(nt_tensor *x, int axis);
typedef struct nt_cross_entropy_desc {
    double smoothing;   // target (1 - s) onehot + s / classes
    int has_ignored;    // examples with the label .ignored give 0
    int32_t ignored;
} nt_cross_entropy_desc;
// logits (..., classes), labels i32 (...): one loss for each example, shape (...). A label out of range is an error of the run.
NT_API nt_tensor *nt_cross_entropy(nt_tensor *logits, nt_tensor *labels);
NT_API nt_tensor *nt_cross_entropy_with(nt_tensor *logits, nt_tensor *labels, const nt_cross_entropy_desc *desc);
// (x - mean) / sqrt(var + eps) scale + bias over the last axis, biased variance; scale and bias (n) may be NULL.
NT_API nt_tensor *nt_layer_norm(nt_tensor *x, nt_tensor *scale, nt_tensor *bias, double eps);

typedef struct nt_attention_desc {
    double scale;       // on the scores; 0: 1 / sqrt(d)
    int causal;         // query i sees the keys 0 .. i only
} nt_attention_desc;
// softmax(scale q k^T) v for each example and head; the scores are never stored, neither here nor in any derivative's first transpose.
// q (batch, time, heads, d), k (batch, keys, heads, d), v (batch, keys, heads, dv): (batch, time, heads, dv). They are read through their
// strides: slices of one projection cost no copies. mask NULL, or of any dtype, not zero = seen, broadcast to (batch, heads, time, keys).
// A query that sees no key gives NaN, as the softmax of nothing but -infinity does. desc NULL: the defaults.
NT_API nt_tensor *nt_attention(nt_tensor *q, nt_tensor *k, nt_tensor *v, nt_tensor *mask, const nt_attention_desc *desc);

// In programs that list it (nt_compile_desc.assigns), the variable gets the value; all reads in a run see the value at its
// start. Same dtype and shape. Returns a value that stands for the assignment.
NT_API nt_tensor *nt_assign(nt_tensor *variable, nt_tensor *value);

// >>random
// ---------------------------------------------------------------------------------------------------------------------
// Random numbers are pure functions of a key and an index, bit for bit JAX's (threefry 2x32, partitionable). Keys are small
// values on the host, u32[2] tensors on the tape.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nt_key_value { uint32_t word[2]; } nt_key_value; // the high word first, as JAX prints keys
// {high word, low word}: JAX with its 32-bit integers reduces a seed to 32 bits first, so pass a seed below 2^32 for its keys.
NT_API nt_key_value nt_key(uint64_t seed);
NT_API nt_key_value nt_key_fold_in(nt_key_value key, uint32_t number);
NT_API nt_key_value nt_key_split(nt_key_value key, int64_t count, int64_t index); // element index of jax.random.split(key, count)
// What flax derives for the count-th request (from 1) of the module at path "Block_0/Dense_1".
NT_API nt_key_value nt_key_flax(nt_key_value key, const char *path, uint32_t count);

NT_API nt_tensor *nt_key_tensor(nt_tape *t, nt_key_value key);
NT_API nt_tensor *nt_fold_in(nt_tensor *key, nt_tensor *number);  // number: i32 or u32 scalar
NT_API nt_tensor *nt_split(nt_tensor *key, nt_shape shape);       // u32, shape + (2,)
NT_API nt_tensor *nt_random_bits(nt_tensor *key, nt_dtype dtype, nt_shape shape); // u8, u16, u32 or u64
NT_API nt_tensor *nt_uniform(nt_tensor *key, nt_dtype dtype, nt_shape shape, double low, double high); // [low, high), f32 or f64
NT_API nt_tensor *nt_normal(nt_tensor *key, nt_dtype dtype, nt_shape shape);
NT_API nt_tensor *nt_truncated_normal(nt_tensor *key, nt_dtype dtype, nt_shape shape, double low, double high);
NT_API nt_tensor *nt_bernoulli(nt_tensor *key, double p, nt_shape shape); // bool
NT_API nt_tensor *nt_rademacher(nt_tensor *key, nt_shape shape);          // i32, -1 or 1
NT_API nt_tensor *nt_exponential(nt_tensor *key, nt_dtype dtype, nt_shape shape); // f32 or f64, as the following
NT_API nt_tensor *nt_gumbel(nt_tensor *key, nt_dtype dtype, nt_shape shape);
NT_API nt_tensor *nt_laplace(nt_tensor *key, nt_dtype dtype, nt_shape shape);
NT_API nt_tensor *nt_logistic(nt_tensor *key, nt_dtype dtype, nt_shape shape);
NT_API nt_tensor *nt_cauchy(nt_tensor *key, nt_dtype dtype, nt_shape shape);
NT_API nt_tensor *nt_randint(nt_tensor *key, nt_dtype dtype, nt_shape shape, int64_t low, int64_t high); // integers in [low, high); low where there are none
// Zero with probability rate, else x / (1 - rate); the mask has size 1 along the axes in `shared`.
NT_API nt_tensor *nt_dropout(nt_tensor *x, nt_tensor *key, double rate, nt_axes shared);

typedef enum nt_initializer { // flax's names; _NORMAL is the truncated normal there
    NT_INIT_DEFAULT, NT_LECUN_NORMAL, NT_LECUN_UNIFORM, NT_HE_NORMAL, NT_HE_UNIFORM, NT_GLOROT_NORMAL, NT_GLOROT_UNIFORM,
    NT_INIT_ZEROS, NT_INIT_ONES, NT_INIT_NORMAL, NT_INIT_UNIFORM, NT_INIT_TRUNCATED_NORMAL, NT_VARIANCE_SCALING,
    NT_ORTHOGONAL                     // orthonormal rows or columns of the matrix (all but the last axis, last axis)
} nt_initializer;
typedef enum nt_fan { NT_FAN_IN, NT_FAN_OUT, NT_FAN_AVG, NT_FAN_GEO_AVG } nt_fan;
typedef enum nt_distribution { NT_DIST_TRUNCATED_NORMAL, NT_DIST_NORMAL, NT_DIST_UNIFORM } nt_distribution;
typedef struct nt_init_desc {
    nt_initializer kind;
    double scale;                     // VARIANCE_SCALING, ORTHOGONAL: 0 means 1. NORMAL, TRUNCATED_NORMAL: stddev, UNIFORM: the upper end; 0 means 0.01
    nt_fan mode;                      // VARIANCE_SCALING
    nt_distribution distribution;     // VARIANCE_SCALING
    nt_axes in_axes, out_axes, batch_axes; // VARIANCE_SCALING and the named ones; counts 0: in -2, out -1, no batch
    double low, high;                 // TRUNCATED_NORMAL: cut in units of stddev; both 0: -2 and 2
} nt_init_desc;
// Fills data (f32 or f64, row-major) as jax.nn.initializers does. The fan of a shape of rank below 2 is an error.
NT_API nt_status nt_initialize(nt_key_value key, const nt_init_desc *desc, nt_dtype dtype, nt_shape shape, void *data);

// >>transforms
// ---------------------------------------------------------------------------------------------------------------------
// Derivatives of recorded values, as new recorded values: they compose to any order. A zero derivative is a constant zero
// of the right shape (never recorded inside). An operation without a derivative, or a derivative with respect to an
// integer, is an error that names it.
// ---------------------------------------------------------------------------------------------------------------------
// dy/dx for a scalar y: shape of x.
NT_API nt_tensor *nt_grad(nt_tensor *y, nt_tensor *x);
NT_API nt_params nt_grads(nt_tensor *y, nt_params params); // count 0 on an error; the list lives with the nodes
// Sum over outputs of <cotangent, output>, differentiated with respect to each input. A NULL cotangent is zero. Inputs are
// independent of each other, as they are for nt_jvp: where one is computed from another, nothing flows through it.
NT_API nt_params nt_vjp(nt_params outputs, nt_params cotangents, nt_params inputs);
// The derivative of each output along the tangents of the inputs. A NULL tangent is zero.
NT_API nt_params nt_jvp(nt_params outputs, nt_params inputs, nt_params tangents);
// The Hessian of the scalar y times the tangents (NULL: zero), one product for each of params: forward over reverse.
NT_API nt_params nt_hvp(nt_tensor *y, nt_params params, nt_params tangents);

// The outputs with to[k] (same dtype and shape) in the place of from[k]: what depends on one of them is recorded again, the rest
// is shared, and the outputs themselves stay as they are. Where from[k] is computed from another one, it is to[k] all the same.
NT_API nt_params nt_substitute_many(nt_params outputs, nt_params from, nt_params to); // count 0 on an error
NT_API nt_tensor *nt_substitute(nt_tensor *y, nt_params from, nt_params to);
// f(params0) + J(params0) (params - params0) for a value y = f(params), f32 or f64; y itself is untouched. params0 are frozen
// variables (nt_freeze) or any values of the same dtypes and shapes. The result is linear in params: its gradient keeps what the
// derivative at params0 needs and nothing of the tangents. Outputs and calls with the same params0 share f(params0).
NT_API nt_tensor *nt_linearize(nt_tensor *y, nt_params params, nt_params params0);
NT_API nt_params nt_linearize_many(nt_params outputs, nt_params params, nt_params params0); // count 0 on an error
// The Taylor polynomial of that degree around params0, at params: 0 gives f(params0), 1 is nt_linearize. What it takes grows as the
// square or the cube of the degree, as the operations are. Where y has a kink it is the polynomial of the piece that params0 lie in.
NT_API nt_tensor *nt_taylor(nt_tensor *y, nt_params params, nt_params params0, int degree);
NT_API nt_params nt_taylor_many(nt_params outputs, nt_params params, nt_params params0, int degree); // count 0 on an error

// Loops. A body is recorded once, between nt_map_begin and nt_map_end, and run `count` times, one chunk after the other: memory does
// not depend on the count. What depends on the index is the body's; what does not is computed once, before the loop. Results of
// sum, mean and stack are outside of it. Derivatives of a loop are loops; gradients of what the body reads from outside (weights,
// encoder outputs) are summed as it goes, and where a cotangent is known beforehand (sums, means) the forward and the backward pass are
// one loop. Maps nest. Errors: a value of the body used outside or together with an unfinished result of the same map, an nt_assign
// in a body, maps that are not nested.
//
//     nt_map *m = nt_map_begin(t, 16, NULL);
//     nt_tensor *noise = nt_normal(nt_fold_in(key, nt_map_index(m)), NT_F32, nt_shape_of(mu));
//     nt_tensor *mean = nt_map_mean(m, decode(nt_add(mu, nt_mul(sigma, noise))));
//     nt_map_end(m);
typedef struct nt_map nt_map; // lives with the recorded nodes
typedef struct nt_map_desc {
    int64_t chunk; // iterations computed together, as by nt_vmap over the index; 0: 1; cut to count. Speed for memory: results agree to rounding
} nt_map_desc;
NT_API nt_map *nt_map_begin(nt_tape *t, int64_t count, const nt_map_desc *desc); // count >= 1, at most 2^31 - 1; up to 8 deep
NT_API nt_tensor *nt_map_index(nt_map *m);               // i32 scalar: 0 .. count - 1
NT_API nt_tensor *nt_map_slice(nt_map *m, nt_tensor *x); // x (count, ...): the part of this iteration
NT_API nt_tensor *nt_map_sum(nt_map *m, nt_tensor *y);   // shape of y; f32, f64, i32, u32
NT_API nt_tensor *nt_map_mean(nt_map *m, nt_tensor *y);  // f32 and f64
NT_API nt_tensor *nt_map_stack(nt_map *m, nt_tensor *y); // (count, shape of y), any dtype
NT_API void nt_map_end(nt_map *m);

// >>programs
// ---------------------------------------------------------------------------------------------------------------------
// Compiling finds what the outputs need, an order with a low peak, and an address for everything. The result owns (or
// shares) its scratch and never points into recorded nodes.
// ---------------------------------------------------------------------------------------------------------------------
// Asked now and then during a run, on the thread that runs: not 0 means that the run should stop. What another thread has set for it to
// look at must be shared as the host's language wants it (an atomic, a lock): the library itself shares nothing.
typedef struct nt_cancel { int (*asked)(void *user); void *user; } nt_cancel;

typedef struct nt_compile_desc {
    size_t budget;             // scratch bytes of this program; 0: what the tape has left
    nt_program *share_scratch; // use this program's scratch: outputs are valid until either runs again. NULL, also from a compile that failed: own scratch
    size_t scratch_min;        // reserve at least this much, so that larger programs can share it
    nt_params assigns;         // nt_compile and nt_compile_many: assignments (nt_assign) that a run performs
    nt_cancel cancel;          // obeyed between tiles before the first assignment of a run, which then returns NT_CANCELLED; NULL: never
    // nt_compile_step only:
    nt_params params;          // what is trained; count 0: the trainable variables that the loss reaches
    nt_tensor *weight;         // the micro-batch's weight, not negative, a scalar of the loss's dtype; NULL: 1
} nt_compile_desc;

NT_API nt_program *nt_compile(nt_tensor *y, const nt_compile_desc *desc);
NT_API nt_program *nt_compile_many(nt_tape *t, nt_params outputs, const nt_compile_desc *desc);
// Runs to the end; goes on with a run that nt_run_for began. NT_OK, NT_ERROR_STATE (an input without data), NT_ERROR_DATA (an index out
// of range), NT_NONFINITE (training), NT_CANCELLED: with these nothing was assigned. NT_BUSY: see nt_run_for.
NT_API nt_status nt_run(nt_program *program);

// A clock of the host: seconds from any beginning, which never go back.
typedef struct nt_clock { double (*seconds)(void *user); void *user; } nt_clock;
// A slice of a run: NT_DONE when the run has finished, NT_AGAIN when the time is up and there is more, else as nt_run. Stops between
// tiles, small pieces of an operation, at the first look at the clock after `seconds`; runs one tile at least (one for each worker), and
// no more if seconds <= 0. The bits are those of one run in one go. Outputs, events, counters and updated variables are there with
// NT_DONE only. In between these are NT_BUSY: runs of programs that share the scratch, assign what this run uses, or read what it has
// begun to assign; nt_read of this program; nt_write and nt_bind of what it uses; nt_flush and nt_discard; and calls on this program
// from its own hooks. A rewind past the program ends its run.
NT_API nt_status nt_run_for(nt_program *program, double seconds, nt_clock clock);
// Output i: its number of bytes, its address in scratch (row-major, valid until the scratch is used again), a copy.
NT_API size_t nt_output_bytes(const nt_program *program, int i);
NT_API const void *nt_output(const nt_program *program, int i);
NT_API nt_status nt_read(const nt_program *program, int i, void *buffer);

// Compiles, runs and copies one value (nt_bytes(x)); the memory is given back.
NT_API nt_status nt_eval(nt_tensor *x, void *buffer);
#if !defined(NTTRAIN_NO_STDIO)
NT_API void nt_print(nt_tensor *x);                        // to stdout: name, dtype, shape, values
NT_API void nt_report_print(const nt_program *program, FILE *file);
#endif

typedef struct nt_report_value { // a value alive at the peak
    const char *operation, *name; // name NULL: none
    nt_dtype dtype;
    nt_shape shape;
    size_t bytes;
    int born, last_use;           // instruction numbers
    const char *last_user;        // the operation that still needs it ("output" for outputs)
} nt_report_value;
typedef struct nt_report_info {
    size_t peak;                  // scratch bytes, exact
    size_t lower_bound;           // largest sum of aligned bytes alive at once in this order
    size_t persistent;            // inputs, variables and constants that the program reads or writes
    size_t program;               // the program itself
    size_t total, total_least;    // the array that this and all earlier calls need (equal while a program has one plan)
    double flops;
    int instructions, peak_instruction;
    int value_count;              // values alive at the peak, largest first
    const nt_report_value *values;
    size_t gradient;              // of that: bytes of gradient accumulators
    int unreached_count;          // parameters named in .params that the loss does not reach
    nt_tensor *const *unreached;
} nt_report_info;
NT_API nt_report_info nt_report(const nt_program *program);
// The report as text into buffer (always terminated when size > 0); returns the length that it wants, as snprintf.
NT_API size_t nt_report_text(const nt_program *program, char *buffer, size_t size);

// >>layers
// ---------------------------------------------------------------------------------------------------------------------
// A layer knows how to make its parameters (named as flax names them) and how to record itself. Descriptors: NULL means
// all defaults, which are flax's.
// ---------------------------------------------------------------------------------------------------------------------
typedef enum nt_bias { NT_BIAS_ON, NT_BIAS_OFF } nt_bias;
typedef struct nt_dense_desc { nt_bias bias; nt_init_desc kernel_init, bias_init; nt_dtype dtype; } nt_dense_desc; // lecun normal, zeros, f32
typedef struct nt_conv_layer_desc { nt_conv_desc conv; nt_bias bias; nt_init_desc kernel_init, bias_init; nt_dtype dtype; } nt_conv_layer_desc;
typedef struct nt_layer_norm_desc { double eps; int no_scale, no_bias; nt_dtype dtype; } nt_layer_norm_desc; // eps 0: 1e-6
typedef struct nt_attention_layer_desc { // lecun normal, zeros, f32
    int features;          // of q, k and v for all heads together; 0: as wide as the input
    int out_features;      // 0: as wide as the input
    int causal;
    nt_bias bias;
    nt_init_desc kernel_init, bias_init;
    nt_dtype dtype;
} nt_attention_layer_desc;
typedef struct nt_encoder_desc { int dim, heads, mlp, causal; double dropout; nt_dtype dtype; } nt_encoder_desc; // mlp 0: 4 dim
typedef struct nt_vit_desc {
    int patch, dim, depth, heads, mlp; // 0: 16, 192, 12, 3, 4 dim
    int outputs;                       // 1 or more
    int mean_pool;                     // 0: a class token in front, read at the end; else the mean over tokens
    double dropout;
    nt_init_desc head_init;            // default: zeros, as in the paper's code: until the head has moved, no other gradient is anything but 0
    nt_dtype dtype;
} nt_vit_desc;
typedef struct nt_embed_desc { nt_init_desc embedding_init; nt_dtype dtype; } nt_embed_desc; // variance scaling 1, fan in, normal

NT_API nt_layer *nt_dense_layer(nt_tape *t, int features, const nt_dense_desc *desc);
NT_API nt_layer *nt_conv_layer(nt_tape *t, int features, nt_shape window, const nt_conv_layer_desc *desc);
NT_API nt_layer *nt_max_pool_layer(nt_tape *t, nt_shape window);
NT_API nt_layer *nt_avg_pool_layer(nt_tape *t, nt_shape window);
NT_API nt_layer *nt_max_pool_layer_with(nt_tape *t, nt_shape window, const nt_pool_desc *desc);
NT_API nt_layer *nt_avg_pool_layer_with(nt_tape *t, nt_shape window, const nt_pool_desc *desc);
NT_API nt_layer *nt_upsample_layer(nt_tape *t, nt_shape factor); // NT_WINDOW(2, 2): each pixel four times
NT_API nt_layer *nt_global_avg_pool_layer(nt_tape *t);      // (N, spatial axes, C) to (N, C)
NT_API nt_layer *nt_relu_layer(nt_tape *t);
NT_API nt_layer *nt_tanh_layer(nt_tape *t);
NT_API nt_layer *nt_sigmoid_layer(nt_tape *t);
NT_API nt_layer *nt_softplus_layer(nt_tape *t);
NT_API nt_layer *nt_silu_layer(nt_tape *t);
NT_API nt_layer *nt_gelu_layer(nt_tape *t);                 // exact
NT_API nt_layer *nt_gelu_tanh_layer(nt_tape *t);
NT_API nt_layer *nt_elu_layer(nt_tape *t, double alpha);
NT_API nt_layer *nt_leaky_relu_layer(nt_tape *t, double slope);
NT_API nt_layer *nt_activation_layer(nt_tape *t, nt_tensor *(*function)(nt_tensor *x)); // nt_activation_layer(t, nt_mish): any function of one value
typedef struct nt_function { nt_tensor *(*function)(void *user, nt_tensor *x); void *user; } nt_function;
NT_API nt_layer *nt_function_layer(nt_tape *t, nt_function f); // whatever your function records of x; it is called by nt_init and nt_apply
NT_API nt_layer *nt_identity_layer(nt_tape *t);
NT_API nt_layer *nt_flatten_layer(nt_tape *t);              // all axes but the first
NT_API nt_layer *nt_layer_norm_layer(nt_tape *t, const nt_layer_norm_desc *desc);
NT_API nt_layer *nt_dropout_layer(nt_tape *t, double rate); // only with .train
// Attention of x (batch, time, dim) to itself, flax's MultiHeadDotProductAttention: query, key, value (dim, heads, dim / heads), out.
NT_API nt_layer *nt_attention_layer(nt_tape *t, int heads, const nt_attention_layer_desc *desc);
NT_API nt_layer *nt_tokens_layer(nt_tape *t);               // (N, spatial axes, C) to (N, tokens, C)
NT_API nt_layer *nt_token_layer(nt_tape *t, int64_t index); // (N, tokens, C) to (N, C): one token; negative: from the end
NT_API nt_layer *nt_class_token_layer(nt_tape *t, nt_dtype dtype); // a trained token "cls" (1, 1, C), zeros at first, in front of the others
NT_API nt_layer *nt_position_layer(nt_tape *t, nt_dtype dtype);    // adds "pos_embedding" (1, tokens, C), normal(0.02) at first
// x + attention(norm(x)), then x + mlp(norm(x)), in flax's vision transformer: LayerNorm_0, MultiHeadDotProductAttention_1, LayerNorm_2, MlpBlock_3.
NT_API nt_layer *nt_encoder_layer(nt_tape *t, const nt_encoder_desc *desc);
// The vision transformer, images (N, H, W, C) to (N, outputs), its parameters under the names of google-research/vision_transformer.
NT_API nt_layer *nt_vit_layer(nt_tape *t, const nt_vit_desc *desc);
// Tokens i32 (...) to their rows of a table, (..., features).
NT_API nt_layer *nt_embed_layer(nt_tape *t, int64_t count, int features, const nt_embed_desc *desc);

// Lists of layers are counted; a NULL in them is an error that says which. NT_SERIAL(t, a, b, c): one after the other. The others
// give each layer the same input and put the results together: nt_sum_layer(t, NT_LAYERS(a, b)) is a(x) + b(x).
NT_API nt_layer *nt_serial_layer(nt_tape *t, int count, nt_layer *const *layers);
NT_API nt_layer *nt_sum_layer(nt_tape *t, int count, nt_layer *const *layers);
NT_API nt_layer *nt_product_layer(nt_tape *t, int count, nt_layer *const *layers);          // elementwise
NT_API nt_layer *nt_concat_layer(nt_tape *t, int axis, int count, nt_layer *const *layers); // NT_LAST: channels
NT_API nt_layer *nt_residual_layer(nt_tape *t, nt_layer *inner); // x + inner(x)
#ifdef __cplusplus
#define NT_LAYERS(...) NTI_COUNT(__VA_ARGS__), nti_items<nt_layer *, NTI_COUNT(__VA_ARGS__)>{ { __VA_ARGS__ } }.items
#else
#define NT_LAYERS(...) NTI_COUNT(__VA_ARGS__), (nt_layer *[]){ __VA_ARGS__ }
#endif
#define NT_SERIAL(t, ...) nt_serial_layer((t), NT_LAYERS(__VA_ARGS__))
// The layer under a name of its own in place of flax's "Dense_0": parameters are "head/kernel". A composite becomes a scope: of
// nt_layer_named(NT_SERIAL(...), "Block_0") they are "Block_0/Dense_0/kernel". Names stand before nt_init; NULL for a NULL layer.
NT_API nt_layer *nt_layer_named(nt_layer *layer, const char *name);

// Makes and fills the parameters for inputs shaped like x. Again: fills the same parameters anew.
NT_API nt_status nt_init(nt_layer *net, nt_key_value key, nt_tensor *x);
typedef struct nt_apply_desc {
    int train;            // dropout is on
    nt_key_value key;     // in nt_compile_step every micro-batch gets its own: fold_in(fold_in(key, update), micro-batch)
    nt_params params;     // these instead of the layer's own (same order and shapes as nt_parameters); count 0: its own
} nt_apply_desc;
// Records the network. desc NULL: evaluation.
NT_API nt_tensor *nt_apply(nt_layer *net, nt_tensor *x, const nt_apply_desc *desc);
NT_API nt_params nt_parameters(const nt_layer *net); // in the order of the layers; lives with the layer

// >>optimizers
// ---------------------------------------------------------------------------------------------------------------------
// An optimizer is a description; its state is made when a step is compiled. Formulas as optax's (bias correction from 1).
// ---------------------------------------------------------------------------------------------------------------------
typedef enum nt_decay_mask { NT_DECAY_ALL, NT_DECAY_KERNELS, NT_DECAY_NOT_BIAS, NT_DECAY_MATRICES } nt_decay_mask; // names ending in "kernel"; not in "bias"; rank >= 2
typedef struct nt_sgd_desc { double learning_rate, momentum; int nesterov; } nt_sgd_desc;
typedef struct nt_adam_desc { double learning_rate, b1, b2, eps, eps_root; int nesterov; } nt_adam_desc; // b1 .9, b2 .999, eps 1e-8
typedef struct nt_adamw_desc { double learning_rate, b1, b2, eps, eps_root, weight_decay; nt_decay_mask mask; int nesterov; } nt_adamw_desc;
NT_API nt_optimizer *nt_sgd(nt_tape *t, const nt_sgd_desc *desc);     // p -= rate m, m = g + momentum m; NULL: rate 0.01
NT_API nt_optimizer *nt_adam(nt_tape *t, const nt_adam_desc *desc);   // NULL: rate 0.001
NT_API nt_optimizer *nt_adamw(nt_tape *t, const nt_adamw_desc *desc); // NULL: rate 0.001, decay 1e-4

// Accumulates k micro-batches, then updates with the sum of weight times gradient over the sum of weights: one gradient
// buffer in all. A micro-batch whose loss is not finite is skipped before it touches the buffer; a window whose gradient is not finite is discarded.
NT_API nt_optimizer *nt_multi_steps(nt_optimizer *inner, int k);
typedef enum nt_skip { NT_SKIP_LOSS, NT_SKIP_NOT_FINITE, NT_SKIP_LARGE } nt_skip; // NOT_FINITE, LARGE look at each micro-batch's gradient (costs one copy)
typedef struct nt_multi_steps_desc {
    int k;
    int optax_exact;      // MultiSteps' unweighted running mean (costs one gradient copy)
    int sum;              // do not divide by the weights
    nt_skip skip;
    double max_squared_norm; // NT_SKIP_LARGE: skipped unless the squared global norm is below
} nt_multi_steps_desc;
NT_API nt_optimizer *nt_multi_steps_with(nt_optimizer *inner, const nt_multi_steps_desc *desc);

// A training step: gradients of the loss (a scalar: the mean over the micro-batch), accumulation, update. Output 0 is the loss;
// with nt_multi_steps output 1 is the weight, which counts for nothing without it. One optimizer serves one list of parameters.
NT_API nt_program *nt_compile_step(nt_tensor *loss, nt_optimizer *optimizer, const nt_compile_desc *desc);
// An update with gradients that the host gives (inputs or any values of the parameters' shapes).
NT_API nt_program *nt_compile_update(nt_optimizer *optimizer, nt_params params, nt_params gradients, const nt_compile_desc *desc);

typedef enum nt_event_kind { NT_ACCUMULATED, NT_UPDATED, NT_SKIPPED } nt_event_kind;
NT_API nt_event_kind nt_event(const nt_program *step);      // what the last run did; NT_ACCUMULATED before the first
NT_API nt_status nt_flush(nt_program *step);                // updates with what the window holds; nothing if it holds nothing
NT_API nt_status nt_discard(nt_program *step);              // empties the window
NT_API int64_t nt_update_step(const nt_program *step);      // updates so far
NT_API int64_t nt_micro_step(const nt_program *step);       // micro-batches in the window, skipped ones included
NT_API int64_t nt_skipped(const nt_program *step);          // micro-batches and windows skipped so far
NT_API double nt_window_loss(const nt_program *step);       // weighted mean loss of the last complete window (or of the present one)
NT_API double nt_learning_rate(const nt_program *step);
NT_API nt_status nt_set_learning_rate(nt_program *step, double rate); // from the next run on
#ifndef NTTRAIN_NO_FILES
// >>files
// ---------------------------------------------------------------------------------------------------------------------
// Arrays in files: safetensors (parameters, training state), .npy (one array) and .npz (a zip of .npy, stored or
// deflated). Files are treated as hostile: whatever the bytes are, a call gives the arrays or NULL (a status other than
// NT_OK) and a message in nt_error(t). The tape lends its memory and takes the messages; nothing is recorded on it.
//
//     nt_file *file = nt_file_open(t, "model.safetensors");
//     const nt_file_entry *entry = nt_file_find(file, "Conv_0/kernel");
//     if (nt_file_read(file, entry, kernel, NT_F32) != NT_OK) { puts(nt_error(t)); }
//     nt_file_close(file);
//     nt_npy_write(t, nt_io_open(t, "loss.npy", "wb"), NT_F64, NT_SHAPE(1000), loss);
//
// Every call takes NULL for a file or an entry (what a failed open or find gave) and passes it on as an error or NULL,
// so one check at the end does. A file is used by one thread at a time, the one that uses its tape. Its memory lies at the
// tape's top end and returns when it is closed and what was made after it is gone; nt_rewind to a mark ends the memory of
// files opened after the mark, so close them before.
// ---------------------------------------------------------------------------------------------------------------------

// Where bytes come from or go to. A host's own (an archive of a game, flash, a socket) fills what it needs; the functions
// return 1 for success and 0 for failure, and never see a range outside of `size`.
typedef struct nt_io {
    int (*read)(void *user, uint64_t offset, void *out, size_t bytes);   // all `bytes` from `offset`, or failure; NULL: cannot be read
    int (*write)(void *user, const void *data, size_t bytes);            // appends; NULL: cannot be written
    int (*close)(void *user);                                            // may be NULL; 0 if what was written is not safe
    void *user;
    uint64_t size;             // for reading: how many bytes there are
    const char *name;          // for messages; may be NULL; must live as long as the call that takes the nt_io
} nt_io;

// The call that is given an nt_io (nt_file_open_io and the writers) closes it in the end, also if it fails.
NT_API nt_io nt_io_memory(const void *data, size_t bytes);               // reads an array in place; it must outlive the file

// A fixed array to write to: bytes are appended at data + bytes, and a write that passes `capacity` fails. With data NULL
// nothing is stored and every write succeeds: `bytes` then says how large an array would do.
typedef struct nt_buffer { void *data; size_t capacity, bytes; } nt_buffer;
NT_API nt_io nt_io_buffer(nt_buffer *buffer);

#ifndef NTTRAIN_NO_STDIO
// A file of the C library; mode "rb" or "wb", which empties the file at once. On failure the message is in nt_error(t) and the call that
// is given the result fails. A write that fails leaves a part of the file: to replace a file safely, write beside it and rename.
NT_API nt_io nt_io_open(nt_tape *t, const char *path, const char *mode);
#endif

// An array in a file. `dtype` is NT_DTYPE_COUNT if this library cannot read it (text, complex, 8-bit floats, ...): it is listed, reading
// it fails. Members of an .npz that are no .npy are listed as u8. .npz names come without ".npy"; the one array of an .npy is named "".
typedef struct nt_file_entry {
    const char *name;          // UTF-8
    nt_dtype dtype;
    nt_shape shape;            // row-major, whatever the order in the file
    uint64_t bytes;            // elements times the size of dtype; 0 if it cannot be read
} nt_file_entry;
typedef struct nt_file nt_file;

// Opens by content, not by the name's ending, and checks everything but the data: header, names, shapes, offsets. NULL on failure
// (NT_ERROR_FILE, NT_ERROR_MEMORY). Takes 3 KB of the tape's memory, 150 bytes and the name for each array, and 37 KB more while it opens
// or reads deflated ones.
NT_API nt_file *nt_file_open_io(nt_tape *t, nt_io io);
#ifndef NTTRAIN_NO_STDIO
NT_API nt_file *nt_file_open(nt_tape *t, const char *path);
#endif
NT_API void nt_file_close(nt_file *file);                                // NULL is allowed

NT_API int nt_file_count(const nt_file *file);                           // 0 for NULL
NT_API const nt_file_entry *nt_file_entry_at(const nt_file *file, int i);        // in the file's order; NULL outside; lives until the close
NT_API const nt_file_entry *nt_file_find(const nt_file *file, const char *name);  // NULL, without a message, if there is none

// Reads a whole array, row-major and in the host's byte order, converted to `as`: `buffer` holds as many elements of `as` as the shape
// says. Data of a zip are checked against its CRC. NT_ERROR_ARGUMENT, NT_ERROR_DTYPE, NT_ERROR_FILE, NT_ERROR_MEMORY (deflated data need
// some); then the buffer holds anything, and the file stays open.
NT_API nt_status nt_file_read(nt_file *file, const nt_file_entry *entry, void *buffer, nt_dtype as);
// The elements first .. first + count - 1 of the flattened array, for a data set larger than the memory. Quick unless deflated (what
// comes before is inflated too); an error for arrays in Fortran order. The CRC is checked only if the whole array goes through.
NT_API nt_status nt_file_read_range(nt_file *file, const nt_file_entry *entry, int64_t first, int64_t count, void *buffer, nt_dtype as);
// Where the array lies, for nt_bind and nt_freeze, if the file was opened with nt_io_memory and the bytes there are as the host wants
// them (not deflated, its byte order, row-major, aligned for dtype); else NULL, without a message: read it then. Bools are not checked
// to be 0 or 1.
NT_API const void *nt_file_in_place(const nt_file *file, const nt_file_entry *entry);

// An array to write.
typedef struct nt_file_data { const char *name; nt_dtype dtype; nt_shape shape; const void *data; } nt_file_data;

// Writers: everything is checked before the first byte goes out (names: UTF-8, no two alike; shapes; dtypes), and the same arrays always
// give the same bytes. NT_ERROR_ARGUMENT, NT_ERROR_SHAPE, NT_ERROR_DTYPE (.npy has no bf16), NT_ERROR_FILE, NT_ERROR_MEMORY.
// safetensors: arrays of larger elements first, data from a multiple of 64 on, so a file that lies aligned in memory can be used in place.
NT_API nt_status nt_safetensors_write(nt_tape *t, nt_io io, int count, const nt_file_data *entries);
NT_API nt_status nt_npy_write(nt_tape *t, nt_io io, nt_dtype dtype, nt_shape shape, const void *data);
NT_API nt_status nt_npz_write(nt_tape *t, nt_io io, int count, const nt_file_data *entries);         // stored, not deflated

// Parameters by their names. nt_file_load fills variables (of nt_parameters, say) from the arrays of the same names and shapes,
// converted to their dtypes; all are compared before the first is changed, more arrays in the file do not matter. The savers write
// them as nt_npz_write and nt_safetensors_write do: nt_npz_save(t, nt_io_open(t, "net.npz", "wb"), nt_parameters(net)).
NT_API nt_status nt_file_load(nt_file *file, nt_params params);
NT_API nt_status nt_npz_save(nt_tape *t, nt_io io, nt_params params);
NT_API nt_status nt_safetensors_save(nt_tape *t, nt_io io, nt_params params);
#endif // NTTRAIN_NO_FILES
#ifdef __cplusplus
} // extern "C"
#endif
#endif // NTTRAIN_H
// clang-format on

// The implementation is compiled once, however often this file is included behind NTTRAIN_IMPLEMENTATION.
#if defined(NTTRAIN_IMPLEMENTATION) && !defined(NTI_IMPLEMENTED)
#define NTI_IMPLEMENT
#if defined(__FAST_MATH__)
#error "nttrain.h promises the same bits on every run: compile it without -ffast-math"
#endif
#ifndef NT_ASSERT
#define NT_ASSERT(condition) ((void)0)
#endif
#ifndef NTTRAIN_FILE
#define NTTRAIN_FILE "nttrain.h"
#endif
#if !defined(NTTRAIN_NO_MALLOC)
#include <stdlib.h>
#endif
#include <limits.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>
#endif // NTTRAIN_IMPLEMENTATION
#endif // !NTI_PASS
#if defined(NTI_IMPLEMENT) && !defined(NTI_PASS)
// >>formatting
// ---------------------------------------------------------------------------------------------------------------------
// Text without <stdio.h>: messages, reports and numbers. Relies on nothing.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nti_text {
    char *data;
    size_t size, length; // length may pass size: the text is cut, the count goes on
    size_t skip;         // leave out so many characters first
} nti_text;

static void nti_put(nti_text *o, char c) {
    if (o->skip) { o->skip--; return; }
    if (o->length + 1 < o->size) o->data[o->length] = c, o->data[o->length + 1] = 0;
    o->length++;
}

static void nti_put_string(nti_text *o, const char *s) {
    while (*s) nti_put(o, *s++);
}

static void nti_put_unsigned(nti_text *o, uint64_t x, int separators) {
    char digits[32];
    int n = 0;
    do digits[n++] = (char)('0' + (int)(x % 10)), x /= 10;
    while (x);
    while (n--) {
        nti_put(o, digits[n]);
        if (separators && n && n % 3 == 0) nti_put(o, ',');
    }
}

static void nti_put_integer(nti_text *o, int64_t x) {
    if (x < 0) nti_put(o, '-');
    nti_put_unsigned(o, x < 0 ? (uint64_t)0 - (uint64_t)x : (uint64_t)x, 0);
}

// x with `digits` significant digits, as %g writes it.
static void nti_put_number(nti_text *o, double x, int digits) {
    if (x != x) { nti_put_string(o, "nan"); return; }
    if (x < 0 || (x == 0 && 1 / x < 0)) nti_put(o, '-'), x = -x;
    if (x > 1.7976931348623157e308) { nti_put_string(o, "inf"); return; }
    if (x == 0) { nti_put(o, '0'); return; }
    int exponent = 0;
    double scaled = x;
    while (scaled >= 1e16) scaled /= 1e16, exponent += 16;
    while (scaled >= 10) scaled /= 10, exponent++;
    while (scaled < 1e-15) scaled *= 1e16, exponent -= 16;
    while (scaled < 1) scaled *= 10, exponent--;
    double unit = 1;
    for (int k = 1; k < digits; k++) unit *= 10;
    uint64_t mantissa = (uint64_t)(scaled * unit + 0.5);
    if (mantissa >= (uint64_t)(unit * 10)) mantissa /= 10, exponent++;
    char text[24];
    for (int k = digits - 1; k >= 0; k--) text[k] = (char)('0' + (int)(mantissa % 10)), mantissa /= 10;
    int last = digits;
    while (last > 1 && text[last - 1] == '0') last--;
    int fixed = exponent >= -5 && exponent < digits;
    if (fixed && exponent < 0) {
        nti_put_string(o, "0.");
        for (int k = -1; k > exponent; k--) nti_put(o, '0');
    }
    for (int k = 0; k < last || (fixed && k <= exponent); k++) {
        if (k && (fixed ? k == exponent + 1 : k == 1)) nti_put(o, '.');
        nti_put(o, k < last ? text[k] : '0');
    }
    if (!fixed) nti_put(o, 'e'), nti_put_integer(o, exponent);
}

static void nti_put_shape(nti_text *o, nt_dtype dtype, int rank, const int64_t *shape) {
    nti_put_string(o, nt_dtype_name(dtype));
    nti_put(o, '[');
    for (int k = 0; k < rank; k++) {
        if (k) nti_put(o, ',');
        nti_put_integer(o, shape[k]);
    }
    nti_put(o, ']');
}

static void nti_put_tensor(nti_text *o, const nt_tensor *x) {
    if (!x) { nti_put_string(o, "NULL"); return; }
    if (x->name) nti_put_string(o, x->name), nti_put(o, ' ');
    nti_put_shape(o, x->dtype, x->rank, x->shape);
}

// %s %c %d %lld %g %% as printf; %zu bytes with thousands separators; %v a tensor; %S a const nt_shape *.
static void nti_vformat(nti_text *o, const char *f, va_list args) {
    for (; *f; f++) {
        if (*f != '%') { nti_put(o, *f); continue; }
        f++;
        if (*f == 's') nti_put_string(o, va_arg(args, const char *));
        else if (*f == 'c') nti_put(o, (char)va_arg(args, int));
        else if (*f == 'd') nti_put_integer(o, va_arg(args, int));
        else if (*f == 'l') nti_put_integer(o, va_arg(args, long long)), f += 2;
        else if (*f == 'z') nti_put_unsigned(o, va_arg(args, size_t), 1), f++;
        else if (*f == 'g') nti_put_number(o, va_arg(args, double), 6);
        else if (*f == 'v') nti_put_tensor(o, va_arg(args, const nt_tensor *));
        else if (*f == 'S') {
            const nt_shape *shape = va_arg(args, const nt_shape *);
            nti_put(o, '[');
            for (int k = 0; k < shape->rank && k < NT_MAX_RANK; k++) {
                if (k) nti_put(o, ',');
                nti_put_integer(o, shape->size[k]);
            }
            nti_put(o, ']');
        } else nti_put(o, *f);
    }
}

static void nti_format(nti_text *o, const char *f, ...) {
    va_list args;
    va_start(args, f);
    nti_vformat(o, f, args);
    va_end(args);
}

// >>arena
// ---------------------------------------------------------------------------------------------------------------------
// The tape's memory: two ends, each a stack. Positions are logical byte counts, the same whether the memory is one array
// or blocks from an allocator, so that the bytes reported with malloc are the bytes of the array that would do. In an array
// the low end grows up and the high end down until they meet; with an allocator each end is a chain of blocks.
// ---------------------------------------------------------------------------------------------------------------------
#define NTI_ALIGN ((size_t)64)      // of variables, scratch and everything in it: a cache line, the widest vector
#define NTI_BASE_SLACK (NTI_ALIGN - 1) // charged for the array's own alignment at every address, so that totals hold anywhere
#ifndef NTI_BLOCK_LOW // what is asked of an allocator at least; tests make them small
#define NTI_BLOCK_LOW ((size_t)65536)
#define NTI_BLOCK_HIGH ((size_t)16384)
#endif

static size_t nti_round_up(size_t x, size_t multiple) { return (x + multiple - 1) / multiple * multiple; }

typedef struct nti_block { // lies at the start of its own memory
    struct nti_block *previous;
    size_t bytes;          // as allocated
    size_t start;          // logical position of its first byte, a multiple of NTI_ALIGN
    size_t begin;          // logical position at which it became the end's current block
    size_t capacity;       // bytes behind data
    char *data;            // aligned
} nti_block;

typedef struct nti_end { size_t used; nti_block *block; } nti_end;

typedef enum nti_purpose { NTI_FOR_INPUT, NTI_FOR_VARIABLE, NTI_FOR_PROGRAM, NTI_FOR_SCRATCH, NTI_FOR_OBJECT, NTI_PURPOSES } nti_purpose;
typedef enum nti_kind { NTI_PLAIN, NTI_LEAF, NTI_LAYER, NTI_OPTIMIZER, NTI_PROGRAM, NTI_SCRATCH, NTI_RELEASED } nti_kind;

// In front of everything at the high end, so that a rewind finds what survives and a report knows what the bytes are for.
typedef struct nti_object {
    struct nti_object *previous;
    uint64_t serial;
    size_t bytes; // what the end grew by, padding included
    uint8_t purpose, kind;
} nti_object;

struct nti_isa;
struct nt_tape {
    nt_tape_desc desc;
    const struct nti_isa *isa;
    char *base;                  // an array's first aligned byte; NULL: blocks
    size_t capacity;             // an array's usable bytes
    nti_end low, high;
    size_t peak;                 // high-water mark of low + high
    size_t wanted;               // low + high as the last allocation that failed would have made them
    nti_object *objects;         // newest first
    uint64_t serial;             // of nodes and objects
    struct nti_node *first, *last; // recorded nodes
    nt_program *runs;            // programs that are in the middle of a run
    size_t temporary;            // bytes of the low end that are the compiler's
    uint32_t epoch;              // of marks in nodes
    int sticky;                  // a recording error stands
    struct nt_map *open;         // the innermost map whose body is being recorded
    nt_status status, latest;    // of the message; of the newest error, reported or not
    char message[NT_MESSAGE_SIZE];
};

static void nti_report_error(nt_tape *t, nt_status status, const char *format, va_list args) {
    nti_text o = { t->message, sizeof t->message, 0, 0 };
    t->status = status;
    nti_vformat(&o, format, args);
}

// A compile, run or file error: the first since nt_error_clear is kept, nothing is poisoned.
static nt_status nti_fail(nt_tape *t, nt_status status, const char *format, ...) {
    va_list args;
    t->latest = status;
    if (t->status != NT_OK) return status;
    va_start(args, format);
    nti_report_error(t, status, format, args);
    va_end(args);
    return status;
}

// A recording error: sticky, and it wins over the message of a compile, run or file error.
static void nti_sticky(nt_tape *t, nt_status status, const char *format, ...) {
    va_list args;
    t->latest = status;
    if (t->sticky) return;
    va_start(args, format);
    nti_report_error(t, status, format, args);
    va_end(args);
    t->sticky = 1;
}

static size_t nti_total(size_t used) { return NTI_BASE_SLACK + nti_round_up(used, NTI_ALIGN); }

static void *nti_system_allocate(nt_tape_desc *d, size_t bytes) {
    if (d->allocator.allocate) return d->allocator.allocate(d->allocator.user, bytes, NTI_ALIGN);
#if defined(NTTRAIN_NO_MALLOC)
    return NULL;
#else
    return malloc(bytes);
#endif
}

static void nti_system_release(nt_tape_desc *d, void *p, size_t bytes) {
    if (d->allocator.release) d->allocator.release(d->allocator.user, p, bytes);
#if !defined(NTTRAIN_NO_MALLOC)
    else if (!d->allocator.allocate) free(p);
#endif
    (void)bytes;
}

static nti_block *nti_block_new(nt_tape_desc *d, size_t begin, size_t need, size_t least) {
    size_t start = begin / NTI_ALIGN * NTI_ALIGN, head = sizeof(nti_block) + 2 * NTI_ALIGN;
    size_t capacity = nti_round_up(begin - start + need, NTI_ALIGN);
    if (capacity < need || capacity > SIZE_MAX / 2) return NULL;
    if (capacity < least) capacity = least;
    nti_block *b = (nti_block *)nti_system_allocate(d, capacity + head);
    if (!b) return NULL;
    b->bytes = capacity + head, b->start = start, b->begin = begin, b->capacity = capacity, b->previous = NULL;
    b->data = (char *)b + nti_round_up((size_t)(uintptr_t)((char *)b + sizeof(nti_block)), NTI_ALIGN) - (size_t)(uintptr_t)b;
    return b;
}

// The position after an allocation of `bytes`. The low end places upwards (start aligned), the high end downwards (end aligned).
static int nti_end_after(const nti_end *e, size_t bytes, size_t align, int high, size_t *after) {
    if (bytes > SIZE_MAX / 4 || e->used > SIZE_MAX / 4) return 0;
    *after = high ? nti_round_up(e->used + bytes, align) : nti_round_up(e->used, align) + bytes;
    return 1;
}

static void *nti_end_allocate(nt_tape *t, int high, size_t bytes, size_t align) {
    nti_end *e = high ? &t->high : &t->low;
    size_t after, other = high ? t->low.used : t->high.used;
    if (!nti_end_after(e, bytes, align, high, &after)) { t->wanted = SIZE_MAX / 4; return NULL; }
    if (t->base) {
        if (after > t->capacity || t->capacity - after < other) { t->wanted = after + other; return NULL; }
    } else if (!e->block || after - e->block->start > e->block->capacity) {
        nti_block *b = nti_block_new(&t->desc, e->used, after - e->used, high ? NTI_BLOCK_HIGH : NTI_BLOCK_LOW);
        if (!b) { t->wanted = after + other; return NULL; }
        b->previous = e->block, e->block = b;
    }
    e->used = after;
    if (t->low.used + t->high.used > t->peak) t->peak = t->low.used + t->high.used;
    if (t->base) return high ? t->base + (t->capacity - after) : t->base + (after - bytes);
    nti_block *b = e->block;
    return high ? b->data + (b->capacity - (after - b->start)) : b->data + (after - bytes - b->start);
}

static void nti_end_rewind(nt_tape *t, nti_end *e, size_t used) {
    while (e->block && e->block->begin >= used && e->block->previous) {
        nti_block *b = e->block;
        e->block = b->previous;
        nti_system_release(&t->desc, b, b->bytes);
    }
    e->used = used;
}

// The array that this and all earlier calls would have needed, after an allocation that failed.
static size_t nti_needed(const nt_tape *t) { return nti_total(t->wanted > t->peak ? t->wanted : t->peak); }

static const char nti_array_full[] = "%s: the tape needs at least %zu bytes in all, its array has %zu";
static const char nti_refused[] = "%s: the allocator refused; the tape needs at least %zu bytes in all";

static nt_status nti_out_of_memory(nt_tape *t, const char *what) {
    return nti_fail(t, NT_ERROR_MEMORY, t->base ? nti_array_full : nti_refused, what, nti_needed(t), t->desc.memory_size);
}

// The same for a call that records: sticky.
static void nti_no_room(nt_tape *t, const char *what) {
    nti_sticky(t, NT_ERROR_MEMORY, t->base ? nti_array_full : nti_refused, what, nti_needed(t), t->desc.memory_size);
}

// Nodes and lists, at the low end.
static void *nti_low(nt_tape *t, size_t bytes) { return nti_end_allocate(t, 0, bytes, 16); }

// Temporaries of the compiler, at the low end: freed by nti_low_reset with the position that nti_low_position gave.
static void *nti_temporary(nt_tape *t, size_t count, size_t size) {
    if (size && count > SIZE_MAX / 8 / size) { t->wanted = SIZE_MAX / 4; return NULL; }
    return nti_end_allocate(t, 0, count * size + (count == 0), 16);
}

// An object at the high end, zeroed unless it is scratch, with its header in front.
static void *nti_high(nt_tape *t, nti_kind kind, nti_purpose purpose, size_t bytes) {
    size_t head = nti_round_up(sizeof(nti_object), NTI_ALIGN), before = t->high.used;
    size_t align = kind == NTI_SCRATCH || purpose == NTI_FOR_INPUT || purpose == NTI_FOR_VARIABLE || kind == NTI_PROGRAM ? NTI_ALIGN : 16;
    if (align == 16) head = nti_round_up(sizeof(nti_object), 16);
    if (bytes > SIZE_MAX / 4) return NULL;
    char *p = (char *)nti_end_allocate(t, 1, head + bytes, align);
    if (!p) return NULL;
    nti_object *o = (nti_object *)(void *)(p + head - nti_round_up(sizeof(nti_object), 16));
    o->previous = t->objects, o->serial = ++t->serial, o->bytes = t->high.used - before;
    o->purpose = (uint8_t)purpose, o->kind = (uint8_t)kind;
    t->objects = o;
    if (kind != NTI_SCRATCH) memset(p + head, 0, bytes);
    return p + head;
}

// What the high end will be after an aligned object of this many bytes: the arithmetic of nti_high.
static size_t nti_high_after(size_t used, size_t bytes) {
    return nti_round_up(used + nti_round_up(sizeof(nti_object), NTI_ALIGN) + bytes, NTI_ALIGN);
}

static nti_object *nti_object_of(const void *p) {
    return (nti_object *)(void *)((char *)(uintptr_t)p - nti_round_up(sizeof(nti_object), 16));
}
static void *nti_object_body(nti_object *o) { return (char *)o + nti_round_up(sizeof(nti_object), 16); }

#if !defined(NTTRAIN_NO_FILES)
// Gives back an object that nothing refers to any more; its bytes return when everything newer has gone too.
static void nti_high_release(nt_tape *t, void *p) {
    nti_object_of(p)->kind = NTI_RELEASED;
    while (t->objects && t->objects->kind == NTI_RELEASED) {
        size_t bytes = t->objects->bytes;
        t->objects = t->objects->previous; // before the rewind: it may free the block that the object lies in
        nti_end_rewind(t, &t->high, t->high.used - bytes);
    }
}

static void *nti_file_alloc(nt_tape *t, size_t bytes) { return nti_high(t, NTI_PLAIN, NTI_FOR_OBJECT, bytes); }
static void nti_file_free(nt_tape *t, void *p, size_t bytes) { (void)bytes, nti_high_release(t, p); }
#endif

NT_API size_t nt_tape_size_min(void) { return nti_total(nti_round_up(sizeof(nt_tape), NTI_ALIGN)); }
// >>evaluator
// The evaluator's interface: what a row of the operation table is given to plan and to compute one instruction.
#include <string.h>
#include <math.h>
#include <limits.h>

typedef struct nti_view {     // a strided operand; strides count elements, 0 repeats
    void *data;
    const int64_t *shape, *stride;
    uint8_t dtype, rank;
} nti_view;

#define NTI_MAX_PHASES 4
typedef struct nti_plan {     // an instruction runs phase after phase; the tiles of one phase run in any order, on any worker
    int phases;
    int rounds;               // all phases are gone through so many times (0: once); eval is given round * phases + phase
    int64_t tiles[NTI_MAX_PHASES];
    size_t shared;            // bytes of scratch that live from the first phase to the last
    size_t worker;            // bytes of scratch for each worker
} nti_plan;

struct nti_isa;
typedef struct nti_call {     // one instruction, bound to memory
    const struct nti_isa *isa;
    nti_view out;
    nti_view *in;
    int inputs;
    const int64_t *i;         // integer attributes of the operation
    const double *d;          // floating attributes
    nti_plan plan;            // as row->plan made it
    void *shared;             // 64-byte aligned
    nt_program *program;
    int op;                   // row of the operation
} nti_call;
// Every row has: static void nti_plan_X(const nti_call *c, nti_plan *p): reads shapes, strides, dtypes and attributes only (c->in[k].data is NULL then)
//                static void nti_eval_X(const nti_call *c, int phase, int64_t tile, void *worker): worker is this worker's scratch, 64-byte aligned
typedef void (*nti_plan_fn)(const nti_call *c, nti_plan *p);
typedef void (*nti_eval_fn)(const nti_call *c, int phase, int64_t tile, void *worker);

static int nti_plan_steps(const nti_plan *p) { return p->phases * (p->rounds > 1 ? p->rounds : 1); } // phases of all rounds

static int64_t nti_view_size(const nti_view *v) { int64_t n = 1; for (int k = 0; k < v->rank; k++) n *= v->shape[k]; return n; }
// >>tensors
// ---------------------------------------------------------------------------------------------------------------------
// Nodes, dtypes, shapes, leaves and their storage; opening, marking, rewinding and closing a tape.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nti_dtype_row { const char *name; uint8_t size, floating, compute; } nti_dtype_row;
static const nti_dtype_row nti_dtypes[NT_DTYPE_COUNT] = {
    { "f32", 4, 1, 1 }, { "f64", 8, 1, 1 },  { "i32", 4, 0, 1 }, { "u32", 4, 0, 1 }, { "bool", 1, 0, 1 },
    { "f16", 2, 1, 0 }, { "bf16", 2, 1, 0 }, { "i8", 1, 0, 0 },  { "u8", 1, 0, 0 },  { "i16", 2, 0, 0 },
    { "u16", 2, 0, 0 }, { "i64", 8, 0, 0 },  { "u64", 8, 0, 0 },
};

NT_API size_t nt_dtype_size(nt_dtype dtype) { return (unsigned)dtype < NT_DTYPE_COUNT ? nti_dtypes[dtype].size : 0; }
NT_API const char *nt_dtype_name(nt_dtype dtype) { return (unsigned)dtype < NT_DTYPE_COUNT ? nti_dtypes[dtype].name : "no dtype"; }
static int nti_is_float(nt_dtype dtype) { return dtype == NT_F32 || dtype == NT_F64; }

// A recorded value. Leaves (inputs, variables) lie at the high end and carry storage; all others at the low end, in a chain.
typedef struct nti_node {
    nt_tensor pub;
    struct nti_node **in;
    const int64_t *i;             // attributes of the operation
    const double *d;
    struct nti_node *previous, *next;
    struct nti_node *adjoint;     // autodiff: cotangent or tangent of this node (valid where `mark` is the current epoch)
    uint64_t serial;
    uint32_t mark, reach;         // epochs: needed by the outputs; depends on the inputs
    struct nt_map *loop;          // the innermost map whose index it depends on: it belongs to the body of that map
    struct nt_map *after;         // an open map of whose results it depends on
    uint32_t held;                // epoch: a result that could be computed, but waits for others
    struct nti_node *pending;     // autodiff: a cotangent from inside of `pending_loop`, not summed over its iterations yet
    struct nt_map *pending_loop;
    int32_t index;                // compiler: position in the graph
    uint16_t op, inputs, ni, nd;
    uint8_t frozen, dead, wanted; // wanted: an input of the derivative that is being recorded
    // leaves
    uint8_t written;              // an input has been given data
    void *storage;                // own storage
    const void *bound;            // the host's array, read in place
    uint64_t storage_serial;      // of the object that holds the storage: a rewind may end it
    uint64_t name_serial;         // when it was named: a rewind may end the name before the value
} nti_node;

// A loop. Its nodes are those that depend on its index, whenever they were recorded.
#define NTI_MAX_LOOPS 8 // deep
struct nt_map {
    nt_tape *tape;
    nt_map *parent;   // the map in whose body it was begun, or NULL
    nt_tensor *index;
    uint64_t serial;
    int64_t count, chunk;
    int depth, open;
};

// 1 if a value that belongs to `loop` depends on the index of m, too: m is it, or around it.
static int nti_loop_within(const nt_map *loop, const nt_map *m) {
    while (loop && loop != m) loop = loop->parent;
    return loop == m;
}

static nti_node *nti_n(const nt_tensor *x) { return (nti_node *)(uintptr_t)x; }

static int64_t nti_count(int rank, const int64_t *shape) {
    int64_t n = 1;
    for (int k = 0; k < rank; k++) n *= shape[k];
    return n;
}

NT_API nt_shape nt_shape_make(int rank, const int64_t *sizes) {
    nt_shape s;
    memset(&s, 0, sizeof s);
    s.rank = sizes || rank <= 0 ? rank : -1; // no sizes: a shape that every call refuses
    for (int k = 0; k < s.rank && k < NT_MAX_RANK; k++) s.size[k] = sizes[k];
    return s;
}

NT_API nt_shape nt_shape_of(const nt_tensor *x) { return x ? nt_shape_make(x->rank, x->shape) : nt_shape_make(0, NULL); }
NT_API int64_t nt_size(const nt_tensor *x) { return x ? nti_count(x->rank, x->shape) : 0; }
NT_API size_t nt_bytes(const nt_tensor *x) { return (size_t)nt_size(x) * (x ? nt_dtype_size(x->dtype) : 0); }

// 1 if the shape is one: rank 0 to 8, no negative size, a number of bytes that fits comfortably.
static int nti_shape_valid(const nt_shape *s, nt_dtype dtype) {
    if (s->rank < 0 || s->rank > NT_MAX_RANK || (unsigned)dtype >= NT_DTYPE_COUNT) return 0;
    int64_t limit = (int64_t)((SIZE_MAX / 16 < (uint64_t)INT64_MAX / 16 ? SIZE_MAX / 16 : (size_t)(INT64_MAX / 16)) / nt_dtype_size(dtype)),
            n = 1;
    for (int k = 0; k < s->rank; k++) {
        if (s->size[k] < 0) return 0;
        if (s->size[k] > 0 && n > limit / s->size[k]) return 0; // zero sizes do not excuse huge ones: strides are products too
        if (s->size[k] > 0) n *= s->size[k];
    }
    return 1;
}

static int nti_same_shape(const nt_tensor *x, const nt_tensor *y) {
    if (x->rank != y->rank) return 0;
    for (int k = 0; k < x->rank; k++)
        if (x->shape[k] != y->shape[k]) return 0;
    return 1;
}

// 1 if recording may go on with this tensor.
static int nti_alive(const nt_tensor *x) {
    if (!x || x->tape->sticky) return 0;
    if (!nti_n(x)->dead) return 1;
    nti_sticky(x->tape, NT_ERROR_STATE, "use after rewind: %v was recorded after the mark, or before nt_forget_nodes; record it again", x);
    return 0;
}

static const struct nti_isa *nti_isa_choose(nt_isa isa); // NULL: the machine lacks it

NT_API nt_tape *nt_tape_open(const nt_tape_desc *desc) {
    nt_tape t;
    memset(&t, 0, sizeof t);
    if (desc) t.desc = *desc;
    nt_tape_desc *d = &t.desc;
    if (!d->memory && (!d->allocator.allocate) != (!d->allocator.release)) return NULL;
    if (d->parallel.max_workers < 0 || d->parallel.max_workers > 65536 || (d->parallel.max_workers > 0 && !d->parallel.for_each))
        return NULL;
    t.isa = nti_isa_choose(d->isa);
    if (!t.isa) return NULL;
    if (d->memory) {
        if (d->memory_size < nt_tape_size_min()) return NULL;
        t.base = (char *)d->memory + (NTI_ALIGN - (size_t)((uintptr_t)d->memory % NTI_ALIGN)) % NTI_ALIGN;
        t.capacity = (d->memory_size - NTI_BASE_SLACK) / NTI_ALIGN * NTI_ALIGN;
    }
    nt_tape *p = (nt_tape *)nti_end_allocate(&t, 0, nti_round_up(sizeof t, NTI_ALIGN), NTI_ALIGN);
    if (!p) return NULL;
    *p = t;
    return p;
}

NT_API void nt_tape_close(nt_tape *t) {
    if (!t) return;
    nt_tape_desc d = t->desc;
    nti_block *ends[2];
    ends[0] = t->high.block, ends[1] = t->low.block; // the tape itself lies in the first low block, which goes last
    for (int k = 0; k < 2; k++)
        for (nti_block *b = ends[k]; b;) {
            nti_block *previous = b->previous;
            nti_system_release(&d, b, b->bytes);
            b = previous;
        }
}

NT_API nt_marker nt_mark(nt_tape *t) {
    nt_marker m = { 0, 0 };
    if (t) m.low = t->low.used, m.serial = ++t->serial;
    return m;
}

// Nodes newer than `serial` leave the chain. In debug builds they stay readable, marked dead.
static void nti_drop_nodes(nt_tape *t, uint64_t serial) {
    while (t->open && t->open->serial > serial) t->open = t->open->parent;
    while (t->last && t->last->serial > serial) t->last->dead = 1, t->last = t->last->previous;
    if (t->last) t->last->next = NULL;
    else t->first = NULL;
}

static void nti_low_rewind(nt_tape *t, size_t used) {
#if defined(NTTRAIN_DEBUG)
    (void)t, (void)used; // rewound addresses are not used again
#else
    nti_end_rewind(t, &t->low, used);
#endif
}

static void nti_object_rewound(nti_object *o, uint64_t serial); // what survives forgets what does not
static void nti_object_dead(nti_object *o);                       // what does not is marked, for debug builds

// Objects newer than `serial` go; what survives forgets what does not. The bytes return where `reuse` says so.
static void nti_high_rewind(nt_tape *t, uint64_t serial, int reuse) {
    size_t used = t->high.used;
    for (; t->objects && t->objects->serial > serial; t->objects = t->objects->previous)
        used -= t->objects->bytes, nti_object_dead(t->objects);
    for (nti_object *o = t->objects; o; o = o->previous) nti_object_rewound(o, serial);
    if (reuse) nti_end_rewind(t, &t->high, used);
}

static void nti_forget_name(nti_node *n, uint64_t serial) {
    if (n->name_serial > serial) n->pub.name = NULL, n->name_serial = 0;
}

NT_API void nt_rewind(nt_tape *t, nt_marker mark) {
    if (!t || mark.serial > t->serial || mark.low < nti_round_up(sizeof(nt_tape), NTI_ALIGN)) return; // no mark of this tape
    nti_drop_nodes(t, mark.serial);
    for (nti_node *n = t->last; n; n = n->previous) nti_forget_name(n, mark.serial);
    if (mark.low < t->low.used) nti_low_rewind(t, mark.low); // nt_forget_nodes may have gone further back
#if defined(NTTRAIN_DEBUG)
    nti_high_rewind(t, mark.serial, 0);
#else
    nti_high_rewind(t, mark.serial, 1);
#endif
    nt_error_clear(t);
}

NT_API void nt_forget_nodes(nt_tape *t) {
    if (!t) return;
    nti_drop_nodes(t, 0);
    nti_low_rewind(t, nti_round_up(sizeof(nt_tape), NTI_ALIGN));
}

NT_API nt_memory_use nt_memory(const nt_tape *t) {
    nt_memory_use m;
    memset(&m, 0, sizeof m);
    if (!t) return m;
    size_t *purpose[NTI_PURPOSES];
    purpose[NTI_FOR_INPUT] = &m.inputs, purpose[NTI_FOR_VARIABLE] = &m.variables, purpose[NTI_FOR_PROGRAM] = &m.programs;
    purpose[NTI_FOR_SCRATCH] = &m.scratch, purpose[NTI_FOR_OBJECT] = &m.objects;
    for (const nti_object *o = t->objects; o; o = o->previous) *purpose[o->purpose] += o->bytes;
    m.nodes = t->low.used - t->temporary, m.temporaries = t->temporary;
    m.total = m.total_least = nti_total(t->peak);
    return m;
}

NT_API const char *nt_error(const nt_tape *t) {
    if (!t)
        return "there is no tape: nt_tape_open gave NULL because the memory is below nt_tape_size_min() bytes, the allocator refused, half "
               "an allocator or workers without for_each were given, or the machine lacks the instruction set";
    return t->status == NT_OK ? NULL : t->message;
}

NT_API nt_status nt_error_status(const nt_tape *t) { return t ? t->status : NT_ERROR_MEMORY; }

NT_API void nt_error_clear(nt_tape *t) {
    if (t) t->status = NT_OK, t->sticky = 0, t->message[0] = 0;
}

NT_API const char *nt_status_name(nt_status status) {
    static const char *const names[] = { "ok",    "again",  "busy",   "cancelled", "not finite", "argument", "shape",
                                         "dtype", "memory", "budget", "data",      "file",       "state",    "derivative" };
    return (unsigned)status < sizeof names / sizeof names[0] ? names[status] : "unknown";
}

// >>recording
// ---------------------------------------------------------------------------------------------------------------------
// How operations append nodes: the row of an operation, and the one function that every operation goes through.
// ---------------------------------------------------------------------------------------------------------------------
enum { // flags of a row
    NTI_LEAF_ROW = 1,     // has storage or data of its own
    NTI_VIEW = 2,         // output may be the input seen through other strides
    NTI_STRIDED = 4,      // reads operands through any strides; the others get row-major copies
    NTI_IN_PLACE = 8,     // output may take the place of an operand of the same bytes and layout
    NTI_IN_PLACE_FIRST = 16, // of operand 0 only
    NTI_JOINT = 32,       // linear in the operands of `linear` taken together; without it, in each of them alone
    NTI_NO_GRADIENT = 64, // piecewise constant: its derivative is zero
    NTI_CHECKS = 128,     // may stop the run; done before the first assignment
    NTI_EFFECT = 256,     // changes variables
    NTI_ACCUMULATES = 512, // can add into its output: attribute 0 set to 1 by the compiler
    NTI_INTEGER = 1024,   // takes integers too
    NTI_BOOLEAN = 2048,   // takes bool
    NTI_CHEAP = 4096,     // no arithmetic worth counting
    NTI_ALONE = 8192,     // equal ones are not one value
    NTI_LEAVES = 16384    // a result of the map whose index is operand 1: outside of its body
};

typedef struct nti_row {
    const char *name;
    int inputs;           // -1: any number
    uint32_t flags;
    uint32_t linear;      // bit k: linear in operand k
    int map;              // elementwise rows: the map function; else -1
    double low, high;     // tests: range of sample operands
    int (*infer)(nti_node *n, nt_shape *shape, nt_dtype *dtype);       // 0 after recording an error
    int (*view)(const nti_node *n, const int64_t *in, int64_t *out,
                int64_t *offset); // strides of the result in its operand; 0: must be copied
    nti_plan_fn plan;
    nti_eval_fn eval;
    double (*cost)(const nti_node *n);                                 // flops; NULL: one an element
    nt_tensor *(*partial)(nt_tensor *y, nt_tensor **x, int k);         // elementwise: dy/dx_k; NULL result: zero
    nt_tensor *(*jvp)(nt_tensor *y, nt_tensor **x, nt_tensor **t);     // t[k] NULL: zero; NULL result: zero
    nt_tensor *(*vjp)(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k);
    nt_tensor *(*vmap)(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size); // x[k] has a batch axis of this size in front
                                                                        // where batched[k] (one at least does); so has the result
    nt_tensor *(*decompose)(nt_tensor *y, nt_tensor **x);              // the same value out of simpler operations
    nt_tensor *(*sample)(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed); // tests: the operation on random operands
} nti_row;

static const nti_row *nti_row_of(int op);

// "nt_conv(f32[1,8,8,3], kernel f32[3,3,4,16])"
static void nti_put_call(nti_text *o, const char *name, nti_node *const *in, int inputs) {
    nti_put_string(o, name);
    nti_put(o, '(');
    for (int k = 0; k < inputs; k++) {
        if (k) nti_put_string(o, ", ");
        if (k == 4 && inputs > 6) { nti_format(o, "... %d operands", inputs); break; }
        nti_put_tensor(o, in[k] ? &in[k]->pub : NULL);
    }
    nti_put(o, ')');
}

// A recording error of node n: the operation with its operands, then what is wrong.
static int nti_wrong(nti_node *n, nt_status status, const char *format, ...) {
    nt_tape *t = n->pub.tape;
    if (t->sticky) return 0;
    va_list args;
    nti_text o = { t->message, sizeof t->message, 0, 0 };
    nti_put_call(&o, nti_row_of(n->op)->name, n->in, n->inputs);
    nti_put_string(&o, ": ");
    va_start(args, format);
    nti_vformat(&o, format, args);
    va_end(args);
    t->status = status, t->sticky = 1;
    return 0;
}

static void nti_chain(nt_tape *t, nti_node *n) {
    n->previous = t->last, n->next = NULL;
    if (t->last) t->last->next = n;
    else t->first = n;
    t->last = n;
}

// The loop that a node on these operands belongs to: the innermost of theirs. 0 after an error.
static int nti_loop_join(nti_node *n) {
    if (nti_row_of(n->op)->flags & NTI_LEAVES) { n->loop = n->in[1]->loop->parent; return 1; }
    for (int k = 0; k < n->inputs; k++) {
        nt_map *loop = n->in[k]->loop;
        if (nti_loop_within(loop, n->loop)) n->loop = loop;
        else if (!nti_loop_within(n->loop, loop))
            return nti_wrong(n, NT_ERROR_STATE, "operand %d belongs to the body of another map; maps are nested where one begins in the "
                             "body of the other, else reduce one with nt_map_sum, nt_map_mean or nt_map_stack first", k);
    }
    for (int k = 0; k < n->inputs; k++) {
        nt_map *after = n->in[k]->after;
        if (!after || !after->open) continue;
        if (n->loop && nti_loop_within(n->loop, after))
            return nti_wrong(n, NT_ERROR_STATE, "operand %d needs the result of a map that has not ended, in the body of the same map; "
                             "end it and use the result in another map", k);
        n->after = after;
    }
    if (n->loop && (nti_row_of(n->op)->flags & NTI_EFFECT))
        return nti_wrong(n, NT_ERROR_STATE, "an assignment in the body of a map; assign a result of it");
    return 1;
}

static nt_tensor *nti_record_memory(nt_tape *t, int op) {
    nti_no_room(t, nti_row_of(op)->name);
    return NULL;
}

// Appends one node. Operands are checked (NULL, other tape, dead), the row infers dtype and shape. Attributes are copied.
static nt_tensor *nti_record(nt_tape *t, int op, nt_tensor *const *in, int inputs, const int64_t *i, int ni, const double *d, int nd) {
    for (int k = 0; k < inputs; k++)
        if (!in[k]) return NULL;
    if (!t || t->sticky) return NULL;
    for (int k = 0; k < inputs; k++)
        if (!nti_alive(in[k])) return NULL;
    nti_node head;
    memset(&head, 0, sizeof head);
    head.pub.tape = t, head.op = (uint16_t)op, head.inputs = (uint16_t)inputs, head.i = i, head.d = d, head.ni = (uint16_t)ni,
    head.nd = (uint16_t)nd;
    head.in = (nti_node **)(uintptr_t)in;
    for (int k = 0; k < inputs; k++)
        if (in[k]->tape != t) {
            nti_wrong(&head, NT_ERROR_ARGUMENT,
                      "operand %d belongs to another tape; values never cross tapes, copy them with nt_read and nt_write", k);
            return NULL;
        }
    nt_shape shape;
    nt_dtype dtype = NT_F32;
    memset(&shape, 0, sizeof shape);
    if (!nti_row_of(op)->infer(&head, &shape, &dtype) || !nti_loop_join(&head)) return NULL;
    if (!nti_shape_valid(&shape, dtype)) {
        nti_wrong(&head, NT_ERROR_SHAPE, "the result %s%S has too many elements or axes", nt_dtype_name(dtype), &shape);
        return NULL;
    }
    size_t at_in = nti_round_up(sizeof head, 16), at_i = at_in + nti_round_up((size_t)inputs * sizeof *head.in, 8);
    size_t at_d = at_i + (size_t)ni * sizeof *i, at_shape = at_d + (size_t)nd * sizeof *d,
           bytes = at_shape + (size_t)shape.rank * sizeof(int64_t);
    char *p = (char *)nti_low(t, bytes);
    if (!p) return nti_record_memory(t, op);
    nti_node *n = (nti_node *)(void *)p;
    if (inputs) memcpy(p + at_in, in, (size_t)inputs * sizeof *in);
    if (ni) memcpy(p + at_i, i, (size_t)ni * sizeof *i);
    if (nd) memcpy(p + at_d, d, (size_t)nd * sizeof *d);
    if (shape.rank) memcpy(p + at_shape, shape.size, (size_t)shape.rank * sizeof(int64_t));
    head.in = (nti_node **)(void *)(p + at_in), head.i = (const int64_t *)(void *)(p + at_i), head.d = (const double *)(void *)(p + at_d);
    head.pub.shape = (const int64_t *)(void *)(p + at_shape), head.pub.rank = shape.rank, head.pub.dtype = dtype;
    head.serial = ++t->serial;
    *n = head;
    nti_chain(t, n);
    return &n->pub;
}

#define NTI_FEW 8 // operands of any row that is not a list

static nt_params nti_list(nt_tensor **items, int count) {
    nt_params p;
    p.count = count, p.items = items;
    return p;
}

static nt_tensor *nti_record1(int op, nt_tensor *x) { return x ? nti_record(x->tape, op, &x, 1, NULL, 0, NULL, 0) : NULL; }

static nt_tensor *nti_record2(int op, nt_tensor *x, nt_tensor *y) {
    nt_tensor *in[2];
    in[0] = x, in[1] = y;
    return x && y ? nti_record(x->tape, op, in, 2, NULL, 0, NULL, 0) : NULL;
}
// >>keys
// Keys of random numbers and their derivation: Threefry-2x32 as in JAX (the "partitionable" layout, its default since 0.5).

static uint32_t nti_rotate(uint32_t x, int by) { return (x << by) | (x >> (32 - by)); }

// Threefry-2x32 with 20 rounds; the pass has the same on vectors.
static nt_key_value nti_threefry(nt_key_value key, uint32_t x0, uint32_t x1) {
    static const uint8_t turns[8] = { 13, 15, 26, 6, 17, 29, 16, 24 };
    const uint32_t schedule[3] = { key.word[0], key.word[1], key.word[0] ^ key.word[1] ^ 0x1BD11BDAu };
    x0 += schedule[0];
    x1 += schedule[1];
    for (uint32_t group = 0; group < 5; group++) {
        for (uint32_t k = 0; k < 4; k++) {
            x0 += x1;
            x1 = nti_rotate(x1, turns[(group * 4 + k) & 7]) ^ x0;
        }
        x0 += schedule[(group + 1) % 3];
        x1 += schedule[(group + 2) % 3] + group + 1;
    }
    nt_key_value out;
    out.word[0] = x0;
    out.word[1] = x1;
    return out;
}

NT_API nt_key_value nt_key(uint64_t seed) {
    nt_key_value key;
    key.word[0] = (uint32_t)(seed >> 32);
    key.word[1] = (uint32_t)seed;
    return key;
}
NT_API nt_key_value nt_key_fold_in(nt_key_value key, uint32_t data) { return nti_threefry(key, 0, data); }
NT_API nt_key_value nt_key_split(nt_key_value key, int64_t n, int64_t i) {
    (void)n;
    return nti_threefry(key, (uint32_t)((uint64_t)i >> 32), (uint32_t)i);
}

typedef struct nti_sha1 {
    uint32_t h[5];
    uint64_t bytes;
    unsigned char block[64];
} nti_sha1;

static void nti_sha1_block(nti_sha1 *s) {
    uint32_t w[16], a = s->h[0], b = s->h[1], c = s->h[2], d = s->h[3], e = s->h[4];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 | (uint32_t)s->block[4 * i + 2] << 8 |
               s->block[4 * i + 3];
    for (int i = 0; i < 80; i++) {
        uint32_t f, k;
        if (i >= 16)
            w[i & 15] = nti_rotate(w[(i + 13) & 15] ^ w[(i + 8) & 15] ^ w[(i + 2) & 15] ^ w[i & 15], 1);
        if (i < 20) {
            f = (b & c) | (~b & d);
            k = 0x5A827999u;
        } else if (i < 40 || i >= 60) {
            f = b ^ c ^ d;
            k = i < 40 ? 0x6ED9EBA1u : 0xCA62C1D6u;
        } else {
            f = (b & c) | (b & d) | (c & d);
            k = 0x8F1BBCDCu;
        }
        uint32_t t = nti_rotate(a, 5) + f + e + k + w[i & 15];
        e = d;
        d = c;
        c = nti_rotate(b, 30);
        b = a;
        a = t;
    }
    s->h[0] += a;
    s->h[1] += b;
    s->h[2] += c;
    s->h[3] += d;
    s->h[4] += e;
}
static void nti_sha1_put(nti_sha1 *s, unsigned char byte) {
    s->block[s->bytes++ & 63] = byte;
    if (!(s->bytes & 63))
        nti_sha1_block(s);
}
static void nti_sha1_begin(nti_sha1 *s) {
    static const uint32_t start[5] = { 0x67452301u, 0xEFCDAB89u, 0x98BADCFEu, 0x10325476u, 0xC3D2E1F0u };
    memcpy(s->h, start, sizeof start);
    s->bytes = 0;
}
static void nti_sha1_end(nti_sha1 *s) {
    uint64_t bits = s->bytes * 8;
    nti_sha1_put(s, 0x80);
    while ((s->bytes & 63) != 56)
        nti_sha1_put(s, 0);
    for (int k = 56; k >= 0; k -= 8)
        nti_sha1_put(s, (unsigned char)(bits >> k));
}

// The first word of the SHA-1 of the names, without separator, and the count in as few bytes as hold it.
static uint32_t nti_flax_number(const char *path, size_t length, uint32_t count) {
    nti_sha1 s;
    nti_sha1_begin(&s);
    for (size_t k = 0; k < length; k++)
        if (path[k] != '/')
            nti_sha1_put(&s, (unsigned char)path[k]);
    for (int k = 24; k >= 0; k -= 8)
        if (count >> k)
            nti_sha1_put(&s, (unsigned char)(count >> k));
    nti_sha1_end(&s);
    return s.h[0];
}
NT_API nt_key_value nt_key_flax(nt_key_value key, const char *path, uint32_t count) {
    return nt_key_fold_in(key, nti_flax_number(path, path ? strlen(path) : 0, count));
}

// >>random numbers
// What a pass gives: the hash of a run of indices, and numbers made of random bits.
typedef struct nti_random_table {
    // words of indices first .. first + n - 1: high and low, or with high NULL their xor, which is JAX's 32 random bits;
    // the f32 pass only
    void (*hash)(nt_key_value key, uint64_t first, size_t n, uint32_t *high, uint32_t *low);
    // in place: random bits (u32 or u64) to uniform floats of the same size in [lo, hi)
    void (*uniform)(void *bits, size_t n, double lo, double hi);
} nti_random_table;
// Before the first pass (ordinary implementation code): inlining, instruction sets, contraction.
#if defined(__GNUC__) || defined(__clang__)
#define NTI_INLINE inline __attribute__((always_inline, unused))
#else
#define NTI_INLINE inline
#endif
// Vector bytes and fused multiply-add of the baseline pass; NTTRAIN_ISA_PORTABLE makes it plain scalar C.
#if (defined(__GNUC__) || defined(__clang__)) && !defined(NTTRAIN_ISA_PORTABLE) && !defined(__cplusplus_cli)
#if defined(__aarch64__)
#include <arm_neon.h>
#define NTI_BASE_NEON 1
#define NTI_BASE_BYTES 16
#elif defined(__SSE2__) || defined(__wasm_simd128__)
#define NTI_BASE_NEON 0
#define NTI_BASE_BYTES 16
#else
#define NTI_BASE_NEON 0
#define NTI_BASE_BYTES 0
#endif
#else
#define NTI_BASE_NEON 0
#define NTI_BASE_BYTES 0
#endif
// AVX2 and AVX-512 passes are compiled with target pragmas and chosen at run time.
#if defined(__x86_64__) && NTI_BASE_BYTES && !defined(NTTRAIN_ISA_BASELINE)
#include <immintrin.h>
#define NTI_DISPATCH 1
#else
#define NTI_DISPATCH 0
#endif
// >>maps
// Elementwise maps: one function type for all of them, one list of their names, one table of functions for each dtype. The
// arrays are contiguous; out may be identical to any input of the same element size. The floating ones are in the pass
// (vector mathematics), the integer ones under "integers"; an empty entry means that the dtype has no such map.
#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#endif

// keeps the frames of functions with a buffer apart
#if defined(__GNUC__) || defined(__clang__)
#define NTI_NOINLINE __attribute__((noinline))
#else
#define NTI_NOINLINE
#endif

typedef void (*nti_map_fn)(void *out, const void *const *in, size_t n, const double *attr);

enum { NTI_TO_SAME, NTI_TO_BOOL };   // dtype of a map's result

// clang-format off
// X(NAME, name, inputs, result). Attributes stand behind the name.
#define NTI_FLOAT_MAPS(X) \
    X(COPY, copy, 1, SAME) X(NEG, neg, 1, SAME) X(ABS, abs, 1, SAME) X(SIGN, sign, 1, SAME) X(EXP, exp, 1, SAME) \
    X(EXP2, exp2, 1, SAME) X(EXPM1, expm1, 1, SAME) X(LOG, log, 1, SAME) X(LOG2, log2, 1, SAME) X(LOG1P, log1p, 1, SAME) \
    X(SQRT, sqrt, 1, SAME) X(RSQRT, rsqrt, 1, SAME) X(CBRT, cbrt, 1, SAME) X(SIN, sin, 1, SAME) X(COS, cos, 1, SAME) \
    X(TAN, tan, 1, SAME) X(ASIN, asin, 1, SAME) X(ACOS, acos, 1, SAME) X(ATAN, atan, 1, SAME) X(SINH, sinh, 1, SAME) \
    X(COSH, cosh, 1, SAME) X(TANH, tanh, 1, SAME) X(ASINH, asinh, 1, SAME) X(ACOSH, acosh, 1, SAME) X(ATANH, atanh, 1, SAME) \
    X(ERF, erf, 1, SAME) X(ERFC, erfc, 1, SAME) X(ERF_INV, erf_inv, 1, SAME) X(LGAMMA, lgamma, 1, SAME) \
    X(POLYGAMMA, polygamma /* order */, 1, SAME) X(SIGMOID, sigmoid, 1, SAME) X(LOG_SIGMOID, log_sigmoid, 1, SAME) \
    X(SOFTPLUS, softplus, 1, SAME) X(RELU, relu, 1, SAME) X(SILU, silu, 1, SAME) X(GELU, gelu, 1, SAME) \
    X(GELU_TANH, gelu_tanh, 1, SAME) X(SILU_GRAD, silu_grad, 1, SAME) X(GELU_GRAD, gelu_grad, 1, SAME) \
    X(GELU_TANH_GRAD, gelu_tanh_grad, 1, SAME) X(SQUARE, square, 1, SAME) X(RECIPROCAL, reciprocal, 1, SAME) \
    X(FLOOR, floor, 1, SAME) X(CEIL, ceil, 1, SAME) X(TRUNC, trunc, 1, SAME) X(ROUND, round, 1, SAME) \
    X(LEAKY_RELU, leaky_relu /* slope */, 1, SAME) X(ELU, elu /* alpha */, 1, SAME) \
    X(ADD_SCALAR, add_scalar /* addend */, 1, SAME) X(SCALE, scale /* factor */, 1, SAME) \
    X(POW_SCALAR, pow_scalar /* exponent */, 1, SAME) X(CLAMP, clamp /* lo, hi */, 1, SAME) X(IS_FINITE, is_finite, 1, BOOL) \
    X(IS_NAN, is_nan, 1, BOOL) X(ADD, add, 2, SAME) X(SUB, sub, 2, SAME) X(MUL, mul, 2, SAME) X(DIV, div, 2, SAME) \
    X(POW, pow, 2, SAME) X(MAX, max, 2, SAME) X(MIN, min, 2, SAME) X(ATAN2, atan2, 2, SAME) X(HYPOT, hypot, 2, SAME) \
    X(LOGADDEXP, logaddexp, 2, SAME) X(COPYSIGN, copysign, 2, SAME) X(REM, rem, 2, SAME) X(MOD, mod, 2, SAME) \
    X(RELU_GRAD, relu_grad, 2, SAME) X(EQ, eq, 2, BOOL) X(NE, ne, 2, BOOL) X(LT, lt, 2, BOOL) X(LE, le, 2, BOOL) \
    X(GT, gt, 2, BOOL) X(GE, ge, 2, BOOL) X(SELECT, select /* bool, x, y */, 3, SAME)
// Maps of integers and booleans only; logical ones take and give bool, the others i32 and u32.
#define NTI_INTEGER_MAPS(X) \
    X(LOGICAL_NOT, logical_not, 1, BOOL) X(LOGICAL_AND, logical_and, 2, BOOL) X(LOGICAL_OR, logical_or, 2, BOOL) \
    X(LOGICAL_XOR, logical_xor, 2, BOOL)
// clang-format on
#define NTI_MAPS(X) NTI_FLOAT_MAPS(X) NTI_INTEGER_MAPS(X)

#define NTI_MAP_ENUM(NAME, name, inputs, result) NTI_MAP_##NAME,
typedef enum nti_map { NTI_MAPS(NTI_MAP_ENUM) NTI_MAP_COUNT } nti_map;
#undef NTI_MAP_ENUM

typedef struct nti_math_table { nti_map_fn map[NTI_MAP_COUNT]; } nti_math_table;

typedef struct nti_map_info { uint8_t inputs, result; } nti_map_info;
#define NTI_MAP_INFO(NAME, name, inputs, result) { inputs, NTI_TO_##result },
static const nti_map_info nti_map_infos[NTI_MAP_COUNT] = { NTI_MAPS(NTI_MAP_INFO) };
#undef NTI_MAP_INFO

// 2/pi in words of 32 bits, enough for the largest double
static const uint32_t nti_two_over_pi[] = {
    0xa2f9836eu, 0x4e441529u, 0xfc2757d1u, 0xf534ddc0u, 0xdb629599u, 0x3c439041u, 0xfe5163abu, 0xdebbc561u, 0xb7246e3au, 0x424dd2e0u,
    0x06492eeau, 0x09d1921cu, 0xfe1deb1cu, 0xb129a73eu, 0xe88235f5u, 0x2ebb4484u, 0xe99c7026u, 0xb45f7e41u, 0x3991d639u, 0x835339f4u,
    0x9c845f8bu, 0xbdf9283bu, 0x1ff897ffu, 0xde05980fu, 0xef2f118bu, 0x5a0a6d1fu, 0x6d367ecfu, 0x27cb09b7u, 0x4f463f66u, 0x9e5fea2du,
    0x7527bac7u, 0xebe5f17bu, 0x3d0739f7u, 0x8a5292eau, 0x6bfb5fb1u, 0x1f8d5d08u, 0x56033046u, 0xfc7b6babu, 0xf0cfbc20u, 0x9af4361du
};

// 32 bits of the big number `word` (least first) from bit `at` on
static uint32_t nti_bits_at(const uint32_t *word, int at) {
    int w = at / 32, b = at % 32;
    uint64_t two = word[w] | ((uint64_t)word[w + 1] << 32);
    return (uint32_t)(two >> b);
}

// Payne and Hanek: x - quadrant pi/2, in [-pi/4, pi/4], for finite |x| >= 1. x is m 2^e; words of 2/pi whose product with m is a
// multiple of 4 are left out, and the next 7 give the fraction with bits to spare for the closest approach to a multiple of pi/2.
static double nti_reduce_huge(double x, int *quadrant) {
    uint64_t bits;
    memcpy(&bits, &x, sizeof bits);
    int e = (int)((bits >> 52) & 0x7ff) - 1075;
    uint64_t m = (bits & 0xfffffffffffffu) | 0x10000000000000u;
    int first = e > 2 ? (e - 2) / 32 : 0, point = 32 * 7 - (e - 32 * first);
    uint32_t product[11] = { 0 };
    for (int half = 0; half < 2; half++) {
        uint64_t carry = 0, part = half ? m >> 32 : m & 0xffffffffu;
        for (int j = 0; j < 7; j++) {
            carry += part * nti_two_over_pi[first + 6 - j] + product[j + half];
            product[j + half] = (uint32_t)carry;
            carry >>= 32;
        }
        product[7 + half] = (uint32_t)carry;
    }
    int q = (int)(nti_bits_at(product, point) & 3);
    int up = (int)(nti_bits_at(product, point - 32) >> 31);
    double r = 0;
    for (int k = 4; k >= 1; k--) {
        uint32_t f = nti_bits_at(product, point - 32 * k);
        r = (r + (double)(up ? ~f : f)) * (1.0 / 4294967296.0);
    }
    r *= up ? -1.57079632679489661923 : 1.57079632679489661923;
    q += up;
    *quadrant = bits >> 63 ? -q & 3 : q & 3;
    return bits >> 63 ? -r : r;
}
// >>products
// Matrix products and convolutions, the part that is compiled once: what a kernel pass is told and the tables it fills.
// One register-blocked micro kernel serves both. It multiplies a few rows of A, read through two strides, by a panel of
// B that is one or two vectors wide, along a list of runs of k; a matrix product has one run, a convolution one for each
// tap. Every element of C is one accumulator that goes from the first k to the last, fused where the class has fused
// multiply-add, and slabs of k go on from the stored accumulator, so neither the tiles nor the vector width show in the
// bits. With `accumulate` the whole product is added to C by one addition, as an unfused sum would do.

#define NTI_PANEL_BYTES 128        // no pass has panels of B wider than this, so scratch is sized by it on every machine
#define NTI_FILTER_PACKS(columns, size) ((columns) * (int64_t)(size) >= 1024)   // rows so far apart that a panel is better copied
#define NTI_TILE_FLOPS 8388608.0   // what a tile aims at: 40 to 80 us of one core

#if defined(__GNUC__) || defined(__clang__)
#define NTI_PREFETCH(p) __builtin_prefetch(p)
#else
#define NTI_PREFETCH(p) ((void)(p))
#endif

typedef struct nti_run { int64_t a, b, n; } nti_run;   // n steps of k that start at A + a and B + b

enum { NTI_PANEL_STORE, NTI_PANEL_CONTINUE, NTI_PANEL_ADD };   // C = sum; C is the start of the sum; C += sum
typedef struct nti_panel {          // one call of a micro kernel; strides count elements, the columns of B and C are contiguous
    const nti_run *run;
    int64_t runs;
    const void *a, *b;
    void *c;
    int64_t rsa, csa, rsb, rsc;     // rs: from row to row, cs: from column to column
    int mode;
} nti_panel;

typedef struct nti_gemm {           // C (m, n) = or += A (m, k) B (k, n) by one worker
    int64_t m, n, k, rsa, csa, rsb, csb, rsc, csc;
    const void *a, *b;
    void *c;
    int accumulate, pack_a, pack_b;
    int whole;                      // every panel is full on every machine
    int64_t slab;                   // most steps of k between a load and a store of the accumulators
} nti_gemm;

typedef struct nti_gemm_room { int64_t block, panel, sums; } nti_gemm_room;   // elements of scratch: of A, of B, of C

static inline int64_t nti_multiple(int64_t n, int64_t step) { return (n + step - 1) / step * step; }
static inline int64_t nti_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t nti_max(int64_t a, int64_t b) { return a > b ? a : b; }

// Where share `index` of `total` things begins; the first shares are the larger ones.
static inline int64_t nti_share(int64_t total, int64_t shares, int64_t index) {
    return total / shares * index + nti_min(index, total % shares);
}

static inline void nti_gemm_swap(int64_t *a, int64_t *b) { int64_t x = *a; *a = *b; *b = x; }

static inline int64_t nti_gemm_slabs(const nti_gemm *g) { return g->k > g->slab ? (g->k + g->slab - 1) / g->slab : 1; }

// Lines of a packed block are whole cache lines, an odd number of them, so that they spread over the sets of a cache.
static inline int64_t nti_gemm_pitch(int64_t length) { return nti_multiple(length, 16) | 16; }

// Where C cannot hold the sums between slabs (it is added to, or it is not contiguous) scratch does.
static inline int nti_gemm_keeps_sums(const nti_gemm *g) { return nti_gemm_slabs(g) > 1 && (g->accumulate || g->csc != 1); }

static nti_gemm_room nti_gemm_scratch(const nti_gemm *g, size_t size) {
    int64_t width = (int64_t)(NTI_PANEL_BYTES / size), k = nti_min(g->k, g->slab);
    int by_column = g->rsa == 1 && g->csa != 1;
    nti_gemm_room r = { 0, 0, 0 };
    if (g->pack_a) r.block = by_column ? k * nti_gemm_pitch(g->m) : g->m * nti_gemm_pitch(k);
    if (g->pack_b || !g->whole || g->csb != 1) r.panel = k * width;
    if (nti_gemm_keeps_sums(g)) r.sums = g->m * nti_multiple(g->n, width);
    else if (!g->whole || g->csc != 1) r.sums = g->m * width;
    return r;
}

// A convolution and its transpose with respect to the image are one correlation. Along an axis, output o and tap t meet at
// position o * stride - pad + t * dilation of an image whose elements lie `lhs` apart; positions between them are zeros that
// are never touched: outputs are taken in `phases` interleaved grids, each of which meets every tap_step-th tap only and
// walks over the image in steps of `step`.
typedef struct nti_conv_axis {
    int64_t out, in, taps, stride, dilation, lhs, pad;
    int64_t phases, step, tap_step, tap_move;   // tap_move: elements of the image between two taps of a phase
    int64_t blocks;                             // pieces of the output along this axis
} nti_conv_axis;

typedef struct nti_conv {
    nti_conv_axis axis[3];                      // missing axes come first, with size 1
    int64_t batch, groups, channels, columns;   // channels that are summed over and columns that are computed, for each group
    int64_t wt, wk, wn, wg;                     // strides of the kernel: from tap to tap, along channels, columns, groups
    int64_t in_pitch, out_pitch, in_image, out_image;   // from pixel to pixel, from image to image
    int flip, accumulate;                       // flip: taps are counted from the other end
    int depthwise;                              // one channel a group: groups are columns, and nothing is summed but taps
    int across;                                 // few columns: vectors go along a row of pixels instead
    int64_t images, image_blocks, tile_columns, column_blocks;
    int64_t runs, slab, panel, sums;            // scratch: runs, and elements
    const void *x, *w;
    void *out;
} nti_conv;

typedef struct nti_conv_part {                  // the outputs of one phase and one block along an axis
    int64_t first, count, move, base, taps, tap, extent;   // output first + j * move; tap `tap` + u * tap_step meets input base + ...
} nti_conv_part;

static int64_t nti_gcd(int64_t a, int64_t b) {
    while (b) { int64_t r = a % b; a = b; b = r; }
    return a;
}

static nti_conv_part nti_conv_part_of(const nti_conv_axis *a, int64_t phase, int64_t block) {
    nti_conv_part p;
    int64_t total = a->out > phase ? (a->out - phase + a->phases - 1) / a->phases : 0;
    int64_t begin = nti_share(total, a->blocks, block), end = nti_share(total, a->blocks, block + 1);
    int64_t at = phase * a->stride - a->pad;
    p.tap = 0;
    while (p.tap < a->tap_step && (at + p.tap * a->dilation) % a->lhs != 0) p.tap++;
    p.taps = p.tap < a->tap_step && p.tap < a->taps ? (a->taps - p.tap + a->tap_step - 1) / a->tap_step : 0;
    p.first = phase + begin * a->phases;
    p.count = end - begin;
    p.move = a->phases;
    p.base = (at + p.tap * a->dilation) / a->lhs + begin * a->step;
    p.extent = p.count > 0 && p.taps > 0 ? (p.count - 1) * a->step + (p.taps - 1) * a->tap_move + 1 : 0;
    return p;
}

typedef struct nti_conv_tile {
    nti_conv_part part[3];
    int64_t group, column, columns, image, images;
    int inside;                                 // the image can be read in place, from `inside_offset` on
    int64_t inside_offset;
    int64_t pitch[3];                           // from pixel to pixel along each axis, in the image or in its copy
} nti_conv_tile;

// One phase of a tile; 0 if it is empty.
static int nti_conv_tile_of(const nti_conv *v, int64_t tile, int64_t phase, nti_conv_tile *t) {
    int64_t one, line;
    t->inside = 1;
    t->inside_offset = 0;
    for (int k = 2; k >= 0; k--) {
        const nti_conv_axis *a = &v->axis[k];
        nti_conv_part *p = &t->part[k];
        *p = nti_conv_part_of(a, phase % a->phases, tile % a->blocks);
        if (p->count == 0) return 0;
        t->inside = t->inside && p->base >= 0 && p->base + p->extent <= a->in;
        phase /= a->phases;
        tile /= a->blocks;
    }
    t->column = tile % v->column_blocks * v->tile_columns;
    t->columns = nti_min(v->tile_columns, v->columns - t->column);
    tile /= v->column_blocks;
    t->image = tile % v->image_blocks * v->images;
    t->images = nti_min(v->images, v->batch - t->image);
    t->group = tile / v->image_blocks;
    one = t->inside ? v->in_pitch : v->channels;
    line = one * (t->inside ? v->axis[2].in : t->part[2].extent);
    t->pitch[0] = line * (t->inside ? v->axis[1].in : t->part[1].extent);
    t->pitch[1] = line;
    t->pitch[2] = one;
    for (int k = 0; k < 3 && t->inside; k++) t->inside_offset += t->part[k].base * t->pitch[k];
    return 1;
}

// The pixel of the output at which row (i, j) of a part begins
static int64_t nti_conv_output(const nti_conv *v, const nti_conv_part *p, int64_t i, int64_t j) {
    return ((p[0].first + i * p[0].move) * v->axis[1].out + p[1].first + j * p[1].move) * v->axis[2].out + p[2].first;
}

// Scratch begins with the runs; then come the slab of the image, the packed panel and the sums.
static inline void *nti_conv_after_runs(const nti_conv *v, void *scratch) {
    return (char *)scratch + nti_multiple(v->runs * (int64_t)sizeof(nti_run), 64);
}

// The taps of a phase as runs of k: run.a is the distance in the image, run.b in the kernel.
static int64_t nti_conv_taps(const nti_conv *v, const nti_conv_part *p, const int64_t *pitch, nti_run *run) {
    const nti_conv_axis *a = v->axis;
    int64_t taps = p[0].taps * p[1].taps * p[2].taps;
    for (int64_t i = 0; i < taps; i++) {
        int64_t u[3] = { i / p[2].taps / p[1].taps, i / p[2].taps % p[1].taps, i % p[2].taps }, tap = 0;
        run[i].a = 0;
        for (int k = 0; k < 3; k++) {
            int64_t t = p[k].tap + u[k] * a[k].tap_step;
            tap = tap * a[k].taps + (v->flip ? a[k].taps - 1 - t : t);
            run[i].a += u[k] * a[k].tap_move * pitch[k];
        }
        run[i].b = tap * v->wt;
        run[i].n = v->channels;
    }
    return taps;
}

// Runs that follow each other in both operands become one.
static int64_t nti_conv_join_runs(nti_run *run, int64_t runs, int64_t rsb) {
    int64_t kept = 0;
    for (int64_t i = 1; i < runs; i++) {
        nti_run *last = run + kept;
        if (last->a + last->n == run[i].a && last->b + last->n * rsb == run[i].b) last->n += run[i].n;
        else run[++kept] = run[i];
    }
    return runs > 0 ? kept + 1 : 0;
}

// The rows of taps that a depthwise output at input position (y, z, .) meets inside the image, each with `taps` taps from `first` on.
static int64_t nti_conv_depthwise_runs(const nti_conv *v, const nti_conv_part *p, int64_t y, int64_t z, int64_t first, int64_t taps,
                                       nti_run *run) {
    const nti_conv_axis *a = v->axis;
    int64_t runs = 0;
    for (int64_t i = 0; taps > 0 && i < p[0].taps * p[1].taps; i++) {
        int64_t u0 = i / p[1].taps, u1 = i % p[1].taps, iy = y + u0 * a[0].tap_move, iz = z + u1 * a[1].tap_move;
        if (iy < 0 || iy >= a[0].in || iz < 0 || iz >= a[1].in) continue;
        int64_t t0 = p[0].tap + u0 * a[0].tap_step, t1 = p[1].tap + u1 * a[1].tap_step, t2 = p[2].tap + first * a[2].tap_step;
        int64_t tap = (t0 * a[1].taps + t1) * a[2].taps + t2, all = a[0].taps * a[1].taps * a[2].taps;
        run[runs].a = ((iy * a[1].in + iz) * a[2].in + first * a[2].tap_move) * v->in_pitch;
        run[runs].b = (v->flip ? all - 1 - tap : tap) * v->wt;
        run[runs].n = taps;
        runs++;
    }
    return runs;
}

// The input index that output o and tap t meet, or -1
static int64_t nti_conv_meet(const nti_conv_axis *a, int64_t o, int64_t t) {
    int64_t at = o * a->stride - a->pad + t * a->dilation;
    return at >= 0 && at % a->lhs == 0 && at / a->lhs < a->in ? at / a->lhs : -1;
}

// The gradient of the kernel: for each tap the product of image pixels (transposed) and gradient pixels, summed over all
// output pixels in row-major order. Taps along the last axis that lie side by side are rows of one product (`merged`).
// A unit is a row of output pixels or a segment of a long one; a slab of units has partial sums of its own, added in order.
typedef struct nti_filter {
    nti_conv v;                                 // v.w is the gradient of the output
    int merged, copy;                           // copy: rows of the image go through scratch, with their borders
    int64_t rows, tap_groups, tile_taps, tap_blocks;
    int64_t segments, units, slabs, chunk;      // chunk: units between a load and a store of the accumulators
    int64_t pitch;                              // of partial sums
    size_t partials;                            // elements of partial sums in shared scratch
    int64_t sum_blocks;
} nti_filter;

// The first output pixel of a unit
static int64_t nti_filter_pixel(const nti_filter *f, int64_t unit) {
    int64_t out = f->v.axis[2].out;
    return unit / f->segments * out + out * (unit % f->segments) / f->segments;
}

typedef struct nti_filter_tile {
    int64_t slab, group, tap, tap_end, column, columns;
    int64_t first, end, chunk, chunk_end;       // units
    int64_t pixel;                              // the first pixel of the chunk
} nti_filter_tile;

static nti_filter_tile nti_filter_tile_of(const nti_filter *f, int64_t tile) {
    const nti_conv *v = &f->v;
    nti_filter_tile t;
    memset(&t, 0, sizeof t);
    t.column = tile % v->column_blocks * v->tile_columns;
    t.columns = nti_min(v->tile_columns, v->columns - t.column);
    tile /= v->column_blocks;
    t.tap = tile % f->tap_blocks * f->tile_taps;
    t.tap_end = nti_min(t.tap + f->tile_taps, f->tap_groups);
    tile /= f->tap_blocks;
    t.group = tile % v->groups;
    t.slab = tile / v->groups;
    t.first = t.chunk = nti_share(f->units, f->slabs, t.slab);
    t.end = nti_share(f->units, f->slabs, t.slab + 1);
    return t;
}

// Where tap t meets a row of the image from outputs [begin, end) of a row: the number of outputs, *at the first of them.
static int64_t nti_filter_run(const nti_conv_axis *a, int64_t t, int64_t begin, int64_t end, int64_t *at) {
    int64_t r = 0;
    while (r < a->phases && ((begin + r) * a->stride - a->pad + t * a->dilation) % a->lhs != 0) r++;
    if (r == a->phases) return 0;
    *at = begin + r;
    int64_t index = (*at * a->stride - a->pad + t * a->dilation) / a->lhs, skip = index < 0 ? (-index + a->step - 1) / a->step : 0;
    *at += skip * a->phases;
    index += skip * a->step;
    if (*at >= end || index >= a->in) return 0;
    return nti_min((end - *at + a->phases - 1) / a->phases, (a->in - index + a->step - 1) / a->step);
}

typedef struct nti_gemm_table {     // one for each pass and dtype
    void (*product)(const nti_gemm *g, void *scratch);
    void (*conv)(const nti_conv *v, int64_t tile, void *scratch);
    void (*filter)(const nti_filter *v, int64_t tile, void *shared, void *scratch);
    void (*filter_sum)(const nti_filter *v, int64_t tile, const void *shared);
} nti_gemm_table;

// The rows of a micro kernel: X(row, pointer, rows behind the pointer) for each, P(pointer, its row) where a pointer starts.
#define NTI_ROWS_1(X, P) P(0, 0) X(0, 0, 0)
#define NTI_ROWS_2(X, P) NTI_ROWS_1(X, P) X(1, 0, 1)
#define NTI_ROWS_3(X, P) NTI_ROWS_2(X, P) X(2, 0, 2)
#define NTI_ROWS_4(X, P) NTI_ROWS_3(X, P) P(1, 3) X(3, 1, 0)
#define NTI_ROWS_5(X, P) NTI_ROWS_4(X, P) X(4, 1, 1)
#define NTI_ROWS_6(X, P) NTI_ROWS_5(X, P) X(5, 1, 2)
#define NTI_ROWS_7(X, P) NTI_ROWS_6(X, P) P(2, 6) X(6, 2, 0)
#define NTI_ROWS_8(X, P) NTI_ROWS_7(X, P) X(7, 2, 1)
#define NTI_ROWS_9(X, P) NTI_ROWS_8(X, P) X(8, 2, 2)
#define NTI_ROWS_10(X, P) NTI_ROWS_9(X, P) P(3, 9) X(9, 3, 0)
#define NTI_ROWS_11(X, P) NTI_ROWS_10(X, P) X(10, 3, 1)
#define NTI_ROWS_12(X, P) NTI_ROWS_11(X, P) X(11, 3, 2)
#define NTI_ROWS_13(X, P) NTI_ROWS_12(X, P) P(4, 12) X(12, 4, 0)
#define NTI_ROWS_14(X, P) NTI_ROWS_13(X, P) X(13, 4, 1)
// >>row kernels
// What the kernels of reductions, softmax, cross entropy, layer norm and pooling are told, and the table of them that every
// kernel pass fills. Their drivers (files of rows below the kernels) cut operands into pieces that are contiguous along
// the last axis; strides count elements. NTI_ROWS_TABLE(c, dtype) finds the table of a call.
//
// Order of sums, fixed by the shape alone. Neighbouring axes that are both reduced or both kept count as one, axes of size 1
// as none; then n is the size of the last reduced axis and m the product of what is kept behind it.
//   m < 32: pieces of max(1, 512 / m) 16 reduced elements; an element goes to lane index mod 16 of its piece, the lanes are
//           added as a tree (l and l + 8, then 4, 2, 1).
//   else:   pieces of 256 elements, added one after another.
// The sums of pieces are added in order, through the outer reduced axes in row-major order: 64 pieces at a time, these sums one
// after another; very long sums first inside chunks of a fixed number of pieces, then chunk after chunk.

enum { NTI_SUM, NTI_PROD, NTI_MAX, NTI_MIN, NTI_ANY, NTI_ALL, NTI_ARGMAX, NTI_ARGMIN };

#define NTI_NARROW_COLUMNS 32                  // columns from which rows are added one after another
#define NTI_PIECE_ROWS 256
#define NTI_PIECE_GROUP 64             // pieces that are summed before their sum goes to the total
#define NTI_SUM_WIDTH 16               // lanes of a sum, as in the passes
#define NTI_BLOCK_ELEMENTS 8192        // elements that strided operands are gathered into at a time
#define NTI_TILE_ELEMENTS 65536        // elements that a tile of memory-bound work aims at

typedef struct nti_reduce_kernels {
    // out[i] of the n elements at x + i step, in lanes
    void (*runs)(void *out, const void *x, int64_t count, int64_t step, int64_t n);
    void (*lanes)(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, void *work);    // rows in lanes; work: 16 m elements
    // out (nothing if fresh), then row after row
    void (*rows)(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, int fresh);
} nti_reduce_kernels;

typedef struct nti_labels {            // rows of cross entropy
    const int32_t *label;
    int64_t rows, n;
    double smoothing;
    int64_t ignored;
    int has_ignored;
} nti_labels;

typedef struct nti_window {            // `count` windows of one row of the output, each with the same taps
    const int64_t *tap;                // offsets from the window's origin, in row-major order
    int64_t taps, count, m;            // m: channels
    int64_t step, out_step;            // from window to window, in what is pooled and in the result
} nti_window;

typedef struct nti_hidden {            // scores that do not count, in columns that stand for `n` queries from `first` on
    const uint8_t *mask;               // NULL: none; a zero hides
    int64_t query_step, key_step;      // in the mask
    int64_t first, n, keys, pitch;
    int causal;
} nti_hidden;

typedef struct nti_rows_table {
    nti_reduce_kernels reduce[4];      // NTI_SUM to NTI_MIN
    // first index of *value; a NaN finds a NaN
    int64_t (*find)(const void *x, int64_t n, const void *value);
    void (*arg_rows)(void *best, void *index, const void *x, int64_t first, int64_t rows, int64_t stride, int64_t m, int least);
    void (*softmax)(void *out, const void *x, int64_t rows, int64_t n);
    void (*log_softmax)(void *out, const void *x, int64_t rows, int64_t n);
    void (*softmax_grad)(void *out, const void *y, const void *g, int64_t rows, int64_t n);
    void (*log_softmax_grad)(void *out, const void *y, const void *g, int64_t rows, int64_t n);
    void (*cross_entropy)(void *out, const void *x, const nti_labels *l);
    void (*cross_entropy_grad)(void *out, const void *x, const void *g, const nti_labels *l);
    void (*cross_entropy_jvp)(void *out, const void *x, const void *t, const nti_labels *l);
    void (*norm_stats)(void *out, const void *x, int64_t rows, int64_t n, double eps);
    void (*norm_apply)(void *out, const void *x, const void *stats, const void *scale, const void *bias, int64_t rows, int64_t n);
    void (*norm_grad)(void *out, const void *x, const void *stats, const void *g, int64_t rows, int64_t n);
    void (*pool[2])(void *out, const void *x, const nti_window *w);                                  // max, sum
    // adds g to out at the first maximal tap
    void (*max_pool_grad)(void *out, const void *x, const void *g, const nti_window *w);
    void (*max_pool_jvp)(void *out, const void *x, const void *t, const nti_window *w);
    // attention's scores: a row for each key, a column for each query, `pitch` from row to row
    void (*hide)(void *x, const nti_hidden *h, double value);
    void (*column_softmax)(void *x, int64_t keys, int64_t n, int64_t pitch, double scale);                 // of scale x
    void (*column_softmax_grad)(void *t, const void *y, int64_t keys, int64_t n, int64_t pitch, double scale); // scale y (t - sum y t)
} nti_rows_table;
// >>linear algebra
// What the kernels of factorisations are told. They work on one matrix of any strides, in blocks of NTI_BLOCK rows, with most
// of the arithmetic in products. Blocks are fixed by the size, so neither tiles nor workers show in the bits.
#define NTI_BLOCK 64                   // rows of a block of Cholesky, LU and triangular solves
#define NTI_REFLECTORS 32              // Householder reflectors that are applied together
#define NTI_CHUNK 256                  // rows of a tile of Cholesky; columns of a tile of solves
#define NTI_SWEEPS 64                  // sweeps of QL whose rotations are applied together

typedef struct nti_matrix { void *p; int64_t rs, cs; } nti_matrix;   // strides count elements

typedef struct nti_factor {            // one factorisation
    nti_matrix x, out;                 // out: rows of n elements
    int64_t n;
} nti_factor;

typedef struct nti_solve {             // op(a) x = b in place on x (n, m)
    nti_matrix a, x;
    int64_t n, m;
    int lower, unit;                   // of a as it is seen through its strides
} nti_solve;

typedef struct nti_linear_table {      // one for each pass and dtype; `room` has the elements that nti_*_room say
    void (*cholesky)(const nti_factor *f, int64_t block, int64_t chunk, void *room); // chunk -1: the diagonal block
    void (*lu)(const nti_factor *f, int64_t block, int64_t chunk, void *room);       // chunk -1: the panel
    void (*solve)(const nti_solve *s, void *room);
    void (*lu_solve)(nti_matrix lu, nti_matrix x, int64_t n, int64_t m, int transpose, void *room);
    void (*determinant)(nti_matrix lu, int64_t n, double *sign, void *diagonal);     // signs of the pivots; their magnitudes
    void (*eigh)(nti_matrix x, int64_t n, void *values, void *vectors, void *room);  // vectors NULL: not computed
    void (*qr)(nti_matrix x, int64_t m, int64_t n, void *q, void *r, void *room);
    void (*orthonormalize)(void *data, int64_t vectors, int64_t length, int by_rows);  // rows or columns of a contiguous matrix
    void (*spectral)(const void *e, const void *c, int64_t n, void *out, void *room); // c NULL: the square root
} nti_linear_table;

static void nti_gemm_arrange(nti_gemm *g, size_t size);

// Elements of scratch for any product of at most this size.
static int64_t nti_multiply_room(int64_t m, int64_t n, int64_t k, size_t size) {
    int64_t width = NTI_PANEL_BYTES / (int64_t)size, longer = nti_max(m, n), deep = nti_min(k, 512);
    int64_t block = nti_max(deep * nti_gemm_pitch(longer), longer * nti_gemm_pitch(deep));
    int64_t sums = k > 256 ? nti_multiple(m, width) * nti_multiple(n, width) : nti_multiple(longer, width) * width;
    return block + deep * width + sums;
}

static int64_t nti_pad_columns(int64_t m) { return nti_multiple(m, 32); } // whole panels in every pass

static int64_t nti_cholesky_room(int64_t n, size_t size) {
    int64_t chunk = nti_min(NTI_CHUNK, nti_multiple(n, NTI_BLOCK));
    return NTI_BLOCK * NTI_BLOCK + 2 * NTI_BLOCK * chunk + nti_multiply_room(NTI_BLOCK, chunk, nti_max(0, n - NTI_BLOCK), size);
}
static int64_t nti_solve_room(int64_t n, int64_t m, size_t size) {
    return NTI_BLOCK * NTI_BLOCK + 2 * NTI_BLOCK * nti_pad_columns(m) + nti_multiply_room(NTI_BLOCK, m, nti_max(0, n - NTI_BLOCK), size);
}
static int64_t nti_lu_room(int64_t n, size_t size) {
    return 3 * NTI_BLOCK * NTI_BLOCK + nti_multiply_room(nti_max(0, n - NTI_BLOCK), NTI_BLOCK, NTI_BLOCK, size);
}
// Applying NTI_REFLECTORS reflectors of length m to n rows.
static int64_t nti_reflect_room(int64_t m, size_t size) {
    int64_t w = NTI_REFLECTORS;
    return 2 * w * w + 2 * NTI_CHUNK * w + nti_max(nti_multiply_room(NTI_CHUNK, w, m, size), nti_multiply_room(NTI_CHUNK, m, w, size));
}
static int64_t nti_eigh_room(int64_t n, int vectors, size_t size) {
    int64_t w = NTI_REFLECTORS, tridiagonal = 4 * w * n + nti_multiply_room(NTI_BLOCK, n, 2 * w, size);
    int64_t rotations = 2 * NTI_SWEEPS * n + 2 * NTI_SWEEPS;
    return n * n * (1 + (vectors != 0)) + 5 * n + nti_max(tridiagonal, nti_max(nti_reflect_room(n, size), rotations));
}
static int64_t nti_qr_room(int64_t m, int64_t n, size_t size) { return 2 * m * n + 3 * n + nti_reflect_room(m, size); }
static int64_t nti_spectral_room(int64_t n, size_t size) { return 2 * n * n + n + nti_multiply_room(n, n, n, size); }
// >>update kernels
// What the optimizer's kernels are told: hyper-parameters and the factors of this very update, prepared once in double.
enum { NTI_UPDATE_SGD, NTI_UPDATE_ADAM };
typedef struct nti_update {
    int kind, momentum, nesterov;
    double rate, scale;                    // learning rate; factor on the gradient (1 over the sum of weights)
    double decay;                          // added to the direction: decay times the parameter
    double mu;                             // sgd
    double b1, b2, eps, eps_root;          // adam
    double m_now, m_next, g_now, v_now;    // bias corrections: 1/(1-b1^t), b1/(1-b1^(t+1)), (1-b1)/(1-b1^t), 1/(1-b2^t)
} nti_update;

typedef struct nti_update_table {
    void (*update)(const nti_update *u, void *p, const void *g, void *m, void *v, size_t n);
} nti_update_table;
#endif // NTI_IMPLEMENT && !NTI_PASS
#ifdef NTI_PASS
// >>kernels
// ---------------------------------------------------------------------------------------------------------------------
// CPU kernels. Everything from here to the end of the kernel sections is compiled several times: the header includes
// itself with NTI_PASS defined, once for each instruction set (NTI_ISA) and floating type (NTI_F64). Names made by
// NTI_K(name) get the suffix of the pass, such as nti_exp_f32_avx2. Per-element arithmetic and the order of every sum
// are the same in all passes of one class (with or without fused multiply-add): vectors only change how many elements
// go together, and sums always run in NTI_SUM_LANES lanes.
// ---------------------------------------------------------------------------------------------------------------------

#define NTI_CAT_(a, b) a##b
#define NTI_CAT(a, b) NTI_CAT_(a, b)

// NTI_ISA: 0 baseline (SSE2, NEON, wasm or plain C), 2 AVX2 + FMA, 3 AVX-512.
#if NTI_ISA == 3
#define NTI_ISA_SUFFIX _avx512
#define NTI_BYTES 64
#elif NTI_ISA == 2
#define NTI_ISA_SUFFIX _avx2
#define NTI_BYTES 32
#else
#define NTI_ISA_SUFFIX _base
#define NTI_BYTES NTI_BASE_BYTES
#endif

#if NTI_F64
#define NTI_T double
#define NTI_I int64_t
#define NTI_U uint64_t
#define NTI_K(name) NTI_CAT(NTI_CAT(name, _f64), NTI_ISA_SUFFIX)
#else
#define NTI_T float
#define NTI_I int32_t
#define NTI_U uint32_t
#define NTI_K(name) NTI_CAT(NTI_CAT(name, _f32), NTI_ISA_SUFFIX)
#endif

// Vocabulary: NTI_V a vector of NTI_W elements of NTI_T, NTI_VI the same of integers of that width (also the result of
// a comparison: all ones or zero in each lane). With NTI_BYTES 0 a "vector" is one scalar and the same source is plain C.
#define NTI_V NTI_K(nti_v)
#define NTI_VI NTI_K(nti_vi)
#define NTI_VU NTI_K(nti_vu)
#if NTI_BYTES > 0
#define NTI_W ((int)(NTI_BYTES / sizeof(NTI_T)))
typedef NTI_T NTI_V __attribute__((vector_size(NTI_BYTES)));
typedef NTI_I NTI_VI __attribute__((vector_size(NTI_BYTES)));
typedef NTI_U NTI_VU __attribute__((vector_size(NTI_BYTES)));
#else
#define NTI_W 1
typedef NTI_T NTI_V;
typedef NTI_I NTI_VI;
typedef NTI_U NTI_VU;
#endif

static NTI_INLINE NTI_V NTI_K(nti_load)(const NTI_T *p) { NTI_V v; memcpy(&v, p, sizeof v); return v; }
static NTI_INLINE void NTI_K(nti_store)(NTI_T *p, NTI_V v) { memcpy(p, &v, sizeof v); }
static NTI_INLINE NTI_VI NTI_K(nti_as_int)(NTI_V v) { NTI_VI i; memcpy(&i, &v, sizeof i); return i; }
static NTI_INLINE NTI_V NTI_K(nti_as_float)(NTI_VI v) { NTI_V f; memcpy(&f, &v, sizeof f); return f; }
#if NTI_BYTES > 0
static NTI_INLINE NTI_V NTI_K(nti_splat)(NTI_T x) { NTI_V v = { 0 }; return x - v; }
static NTI_INLINE NTI_VI NTI_K(nti_splat_int)(NTI_I x) { NTI_VI v = { 0 }; return v + x; }
#define NTI_LT(a, b) ((NTI_VI)((a) < (b)))
#define NTI_LE(a, b) ((NTI_VI)((a) <= (b)))
#define NTI_EQ(a, b) ((NTI_VI)((a) == (b)))
#else
static NTI_INLINE NTI_V NTI_K(nti_splat)(NTI_T x) { return x; }
static NTI_INLINE NTI_VI NTI_K(nti_splat_int)(NTI_I x) { return x; }
#define NTI_LT(a, b) ((NTI_I)-((a) < (b)))
#define NTI_LE(a, b) ((NTI_I)-((a) <= (b)))
#define NTI_EQ(a, b) ((NTI_I)-((a) == (b)))
#endif
#define NTI_LOAD NTI_K(nti_load)
#define NTI_STORE NTI_K(nti_store)
#define NTI_SPLAT(x) NTI_K(nti_splat)((NTI_T)(x))
#define NTI_SPLATI(x) NTI_K(nti_splat_int)((NTI_I)(x))
#define NTI_INT NTI_K(nti_as_int)
#define NTI_FLOAT NTI_K(nti_as_float)
// lane by lane: mask ? a : b
static NTI_INLINE NTI_V NTI_K(nti_choose)(NTI_VI mask, NTI_V a, NTI_V b) { return NTI_FLOAT((mask & NTI_INT(a)) | (~mask & NTI_INT(b))); }
#define NTI_CHOOSE NTI_K(nti_choose)

// a b + c: fused in the passes of the class with fused multiply-add, rounded twice in the others; never left to the compiler.
#if NTI_ISA == 3 && NTI_F64
#define NTI_FMA(a, b, c) ((NTI_V)_mm512_fmadd_pd((__m512d)(a), (__m512d)(b), (__m512d)(c)))
#elif NTI_ISA == 3
#define NTI_FMA(a, b, c) ((NTI_V)_mm512_fmadd_ps((__m512)(a), (__m512)(b), (__m512)(c)))
#elif NTI_ISA == 2 && NTI_F64
#define NTI_FMA(a, b, c) ((NTI_V)_mm256_fmadd_pd((__m256d)(a), (__m256d)(b), (__m256d)(c)))
#elif NTI_ISA == 2
#define NTI_FMA(a, b, c) ((NTI_V)_mm256_fmadd_ps((__m256)(a), (__m256)(b), (__m256)(c)))
#elif NTI_BASE_NEON && NTI_F64
#define NTI_FMA(a, b, c) ((NTI_V)vfmaq_f64((float64x2_t)(c), (float64x2_t)(a), (float64x2_t)(b)))
#elif NTI_BASE_NEON
#define NTI_FMA(a, b, c) ((NTI_V)vfmaq_f32((float32x4_t)(c), (float32x4_t)(a), (float32x4_t)(b)))
#else
#define NTI_FMA(a, b, c) ((a) * (b) + (c))
#endif
// the same for one element, equal to a lane of NTI_FMA
static NTI_INLINE NTI_T NTI_K(nti_fma1)(NTI_T a, NTI_T b, NTI_T c) {
#if NTI_ISA >= 2 || NTI_BASE_NEON
#if NTI_F64
    return __builtin_fma(a, b, c);
#else
    return __builtin_fmaf(a, b, c);
#endif
#else
    return a * b + c;
#endif
}
#define NTI_FMA1 NTI_K(nti_fma1)

// Sums run in this many lanes whatever the vector width: lane l takes the elements l, l + 16, l + 32 ...; the lanes are
// then added as a tree: l and l + 8, then 4, 2, 1.
#define NTI_SUM_LANES 16
#endif // NTI_PASS
#ifdef NTI_PASS
// >>vector mathematics
// The elementary functions on vectors, ours so that their bits are the same on every machine of a class, and the
// floating maps made of them. One source for float and double: only polynomials and limits differ. Errors are a few ulp;
// NaN, infinities and signed zeros as IEEE.

#define NTI_C(x) ((NTI_T)(x))
#define NTI_IMAX ((NTI_I)(~(NTI_U)0 >> 1))
#define NTI_INF NTI_C(INFINITY)
#define NTI_NAN NTI_C(NAN)
#if NTI_F64
#define NTI_PICK(f64, f32) NTI_C(f64)
#define NTI_PICKU(f64, f32) ((NTI_U)(f64))
#define NTI_MANTISSA 52
#else
#define NTI_PICK(f64, f32) NTI_C(f32)
#define NTI_PICKU(f64, f32) ((NTI_U)(f32))
#define NTI_MANTISSA 23
#endif
#define NTI_MAGIC NTI_PICK(6755399441055744.0, 12582912.0)   // 1.5 2^mantissa: adding it rounds to an integer, which stands in the low bits
#define NTI_LN2_HI NTI_PICK(6.93147180369123816490e-01, 0.693359375)
#define NTI_LN2_LO NTI_PICK(1.90821492927058770002e-10, -2.12194440054690583e-4)
#define NTI_PI_2 NTI_PICK(1.57079632679489661923, 1.57079637050628662109)
#define NTI_PI_2_LO NTI_PICK(6.12323399573676603587e-17, -4.37113900018624283e-8)

// Minimax polynomials, lowest power first.
#if NTI_F64
static const double NTI_K(nti_exp_poly)[] = {   // (exp(r) - 1 - r) / r^2
    0.5000000000000014, 0.16666666666666702, 0.041666666666503115, 0.0083333333333056245, 0.0013888888950539329, 0.00019841269920804269,
    2.4801486036360345e-5, 2.7557213196203932e-6, 2.7632752393049018e-7, 2.5118864534690369e-8 };
static const double NTI_K(nti_log_poly)[] = {   // (log((1 + s) / (1 - s)) / s - 2) / s^2 in s^2
    0.66666666666667352, 0.39999999999408703, 0.28571428743905228, 0.22222198398272908, 0.181835743818772,
    0.1531376968414558, 0.14798984136277204 };
static const double NTI_K(nti_sin_poly)[] = {   // (sin(r) / r - 1) / r^2 in r^2
    -0.16666666666666632, 0.0083333333333223388, -0.00019841269829741087, 2.7557313666537023e-6, -2.5050753824270751e-8,
    1.5896530482142205e-10 };
static const double NTI_K(nti_cos_poly)[] = {   // (cos(r) - 1 + r^2 / 2) / r^4 in r^2
    0.041666666666666599, -0.0013888888888873996, 2.4801587289396986e-5, -2.755731432632473e-7, 2.0875719569075988e-9,
    -1.1359448108139578e-11 };
static const double NTI_K(nti_atan_poly)[] = {   // (atan(t) / t - 1) / t^2 in t^2
    -0.33333333333333198, 0.1999999999995378, -0.14285714280216233, 0.11111110784446198, -0.090908977858368765, 0.076920607055183288,
    -0.066631094713755529, 0.058479273556976392, -0.05039468995932334, 0.038068540780154929, -0.017911348532956033 };
static const double NTI_K(nti_asin_poly)[] = {   // (asin(t) / t - 1) / t^2 in t^2
    0.16666666666666763, 0.074999999999700976, 0.044642857175286792, 0.030381942675250812, 0.022372215906560075, 0.017351595491070192,
    0.013981018611533631, 0.0113972926723636, 0.010789322019597563, 0.0036721860169186655, 0.021790635437296991, -0.021116690054265087,
    0.032702136015259637 };
static const double NTI_K(nti_erf_poly)[] = {   // erf(x) / x - 1 in x^2
    0.1283791670955126, -0.37612638903183475, 0.11283791670925479, -0.026866170632925498, 0.0052239773735698766, -0.00085482977969031368,
    0.00012053336999544561, -1.4845891283057165e-5, 1.4726244430391079e-6 };
static const double NTI_K(nti_erfcx_poly)[] = {   // exp(x^2) erfc(x) (1 + 2 x) in (x - 4) / (x + 4)
    1.2329951186255525, -0.13962111684056318, 0.015379652102606686, 0.06809705425476357, -0.10103906603558767, 0.093732834996213707,
    -0.066330365827728681, 0.037167515565656179, -0.016197733884307465, 0.0050319697874748911, -0.00075777442408520851,
    -0.00019925601518000975, 0.00015062629600786825, -2.4400271254677643e-5, -1.1233978391323788e-5, 5.709088248955614e-6,
    3.1324598469194049e-7, -8.2009657027869144e-7, 5.5743030421283034e-8, 1.0160512622226629e-7, -8.2552608722371628e-9,
    -8.4660944292179494e-9 };
static const double NTI_K(nti_lgamma_poly)[] = {   // lgamma(2 + t) / t
    0.42278433509846714, 0.32246703342411325, -0.067352301053195609, 0.020580808427777216, -0.0073855510289380351, 0.0028905103312114891,
    -0.0011927539009187283, 0.00050966951095516755, -0.00022315497871247295, 9.945773298176881e-5, -4.4923716906182901e-5,
    2.0505141268050859e-5, -9.456338886925901e-6, 4.3866407566655331e-6, -1.9741867103286292e-6, 9.1562666830308003e-7,
    -5.8125175067370553e-7, 2.8290669701786327e-7 };
static const double NTI_K(nti_stirling_poly)[] = {   // x (lgamma(x) - (x - 1/2) log(x) + x - log(2 pi) / 2) in 1 / x^2
    0.083333333333333297, -0.0027777777776100004, 0.00079365066686241452, -0.00059520293687739975, 0.00083730837761945999,
    -0.0016532372492024914 };
static const double NTI_K(nti_erf_inv_tail)[] = {   // inverse erf in sqrt(-log(1 - x^2)) - 4, to 5e-7: a start for one step of Halley's
    3.8397847346850001, 1.0094883172043505, 0.0012424893925295429, -0.00083567472099315225, 0.00030924709631519743, -9.9223901837379265e-5,
    1.7511759609803954e-5, -1.9705507294460972e-7 };
#else
static const float NTI_K(nti_exp_poly)[] = { 0.50000001f, 0.166665129f, 0.0416661893f, 0.00836959694f, 0.00139516198f };
static const float NTI_K(nti_log_poly)[] = { 0.666666656f, 0.400003374f, 0.285371583f, 0.235852059f };
static const float NTI_K(nti_sin_poly)[] = { -0.166666549f, 0.00833217338f, -0.000195166255f };
static const float NTI_K(nti_cos_poly)[] = { 0.0416666467f, -0.00138873607f, 2.44376447e-5f };
static const float NTI_K(nti_atan_poly)[] = { -0.333333155f, 0.199984881f, -0.142438059f, 0.105955754f, -0.0608214372f };
static const float NTI_K(nti_asin_poly)[] = { 0.16666754f, 0.0749523751f, 0.0454777881f, 0.0241434131f, 0.0422269555f };
static const float NTI_K(nti_erf_poly)[] = { 0.12837917f, -0.376126093f, 0.112828369f, -0.0267580729f, 0.0047197381f };
static const float NTI_K(nti_erfcx_poly)[] = {   // in (x - 2) / (x + 2)
    1.27697839f, -0.0927639841f, -0.166031461f, 0.164055411f, -0.0542037648f, -0.00806004719f, 0.00862937794f, 0.00131281341f,
    -0.00122694701f, -0.000398577191f };
static const float NTI_K(nti_lgamma_poly)[] = { 0.422784343f, 0.322467005f, -0.0673532729f, 0.0205820292f, -0.00736634503f, 0.00287563774f,
    -0.00131276745f, 0.000577637174f };
static const float NTI_K(nti_stirling_poly)[] = { 0.0833333095f, -0.0027655192f };
static const float NTI_K(nti_erf_inv_tail)[] = {   // inverse erf(x) / x in sqrt(-log(1 - x^2)) - 3 (Giles, as in XLA)
    2.83297682f, 1.00167406f, 0.00943887047f, -0.0076224613f, 0.00573950773f, -0.00367342844f, 0.00134934322f, 0.000100950558f,
    -0.000200214257f };
#endif
static const NTI_T NTI_K(nti_erf_inv_poly)[] = {   // inverse erf(x) / x in -log(1 - x^2) - 2.5 (Giles, as in XLA)
    NTI_C(1.50140941), NTI_C(0.246640727), NTI_C(-0.00417768164), NTI_C(-0.00125372503), NTI_C(0.00021858087), NTI_C(-4.39150654e-06),
    NTI_C(-3.5233877e-06), NTI_C(3.43273939e-07), NTI_C(2.81022636e-08) };

// Even and odd powers apart, so that two chains of multiplications run at a time.
static NTI_INLINE NTI_V NTI_K(nti_poly)(NTI_V x, const NTI_T *c, int n) {
    NTI_V x2 = x * x, a = NTI_SPLAT(c[n - 1]), b = NTI_SPLAT(c[n - 2]);
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC unroll 16
#endif
    for (int k = n - 3; k >= 1; k -= 2) {
        a = NTI_FMA(a, x2, NTI_SPLAT(c[k]));
        b = NTI_FMA(b, x2, NTI_SPLAT(c[k - 1]));
    }
    if (n & 1) {
        a = NTI_FMA(a, x2, NTI_SPLAT(c[0]));
        return NTI_FMA(b, x, a);
    }
    return NTI_FMA(a, x, b);
}
#define NTI_POLY(x, name) NTI_K(nti_poly)(x, NTI_K(name), (int)(sizeof NTI_K(name) / sizeof(NTI_T)))

static NTI_INLINE NTI_V NTI_K(nti_abs)(NTI_V x) { return NTI_FLOAT(NTI_INT(x) & NTI_IMAX); }
static NTI_INLINE NTI_V NTI_K(nti_copysign)(NTI_V x, NTI_V s) { return NTI_FLOAT((NTI_INT(x) & NTI_IMAX) | (NTI_INT(s) & ~NTI_IMAX)); }
// NaN stays NaN in these three, whichever argument it is in x
static NTI_INLINE NTI_V NTI_K(nti_least)(NTI_V x, NTI_V hi) { return NTI_CHOOSE(NTI_LT(hi, x), hi, x); }
static NTI_INLINE NTI_V NTI_K(nti_most)(NTI_V x, NTI_V lo) { return NTI_CHOOSE(NTI_LT(x, lo), lo, x); }
static NTI_INLINE NTI_V NTI_K(nti_clamp)(NTI_V x, NTI_V lo, NTI_V hi) { return NTI_K(nti_least)(NTI_K(nti_most)(x, lo), hi); }
#define NTI_ABS NTI_K(nti_abs)
#define NTI_COPYSIGN NTI_K(nti_copysign)

// nearest integer, halves to even, of |x| < 2^(mantissa - 1)
static NTI_INLINE NTI_V NTI_K(nti_near)(NTI_V x) { return (x + NTI_MAGIC) - NTI_MAGIC; }
// the same of any x; the sign of zero stays
static NTI_INLINE NTI_V NTI_K(nti_round)(NTI_V x) {
    const NTI_T big = NTI_PICK(4503599627370496.0, 8388608.0);
    NTI_V a = NTI_ABS(x);
    return NTI_CHOOSE(NTI_LT(a, NTI_SPLAT(big)), NTI_COPYSIGN((a + big) - big, x), x);
}
static NTI_INLINE NTI_V NTI_K(nti_floor)(NTI_V x) {
    NTI_V r = NTI_K(nti_round)(x);
    return NTI_COPYSIGN(NTI_CHOOSE(NTI_LT(x, r), r - NTI_C(1), r), x);
}
static NTI_INLINE NTI_V NTI_K(nti_trunc)(NTI_V x) { return NTI_COPYSIGN(NTI_K(nti_floor)(NTI_ABS(x)), x); }

static NTI_INLINE NTI_V NTI_K(nti_sqrt)(NTI_V x) {
#if NTI_ISA == 3 && NTI_F64
    return (NTI_V)_mm512_maskz_sqrt_pd((__mmask8)-1, (__m512d)x);
#elif NTI_ISA == 3
    return (NTI_V)_mm512_maskz_sqrt_ps((__mmask16)-1, (__m512)x);
#elif NTI_ISA == 2 && NTI_F64
    return (NTI_V)_mm256_sqrt_pd((__m256d)x);
#elif NTI_ISA == 2
    return (NTI_V)_mm256_sqrt_ps((__m256)x);
#elif NTI_BYTES && defined(__SSE2__) && NTI_F64
    return (NTI_V)_mm_sqrt_pd((__m128d)x);
#elif NTI_BYTES && defined(__SSE2__)
    return (NTI_V)_mm_sqrt_ps((__m128)x);
#elif NTI_BASE_NEON && NTI_F64
    return (NTI_V)vsqrtq_f64((float64x2_t)x);
#elif NTI_BASE_NEON
    return (NTI_V)vsqrtq_f32((float32x4_t)x);
#elif NTI_BYTES && defined(__wasm_simd128__) && NTI_F64
    return (NTI_V)wasm_f64x2_sqrt((v128_t)x);
#elif NTI_BYTES && defined(__wasm_simd128__)
    return (NTI_V)wasm_f32x4_sqrt((v128_t)x);
#elif NTI_F64
    return sqrt(x);
#else
    return sqrtf(x);
#endif
}
#define NTI_SQRT NTI_K(nti_sqrt)

// a b - p exactly, where p is a b rounded
static NTI_INLINE NTI_V NTI_K(nti_product_error)(NTI_V a, NTI_V b, NTI_V p) {
#if NTI_ISA >= 2 || NTI_BASE_NEON
    return NTI_FMA(a, b, -p);
#else
    const NTI_T split = NTI_PICK(134217729.0, 4097.0);
    NTI_V ta = a * split, tb = b * split;
    NTI_V ah = ta - (ta - a), bh = tb - (tb - b), al = a - ah, bl = b - bh;
    return ((ah * bh - p) + ah * bl + al * bh) + al * bl;
#endif
}
// (a + b) - s exactly, where s is a + b rounded
static NTI_INLINE NTI_V NTI_K(nti_sum_error)(NTI_V a, NTI_V b, NTI_V s) {
    NTI_V t = s - a;
    return (a - (s - t)) + (b - t);
}

// 2^k for whole k from 1 - bias to bias
static NTI_INLINE NTI_V NTI_K(nti_pow2)(NTI_V k) {
    return NTI_FLOAT((NTI_VI)((NTI_VU)NTI_INT(k + (NTI_MAGIC + NTI_PICK(1023, 127))) << NTI_MANTISSA));
}
// exp(x + lo) = 2^k (1 + q): gives q; lo is small beside x
static NTI_INLINE NTI_V NTI_K(nti_exp_parts)(NTI_V x, NTI_V lo, NTI_V *k) {
    NTI_V n = NTI_K(nti_near)(x * NTI_C(1.44269504088896340736));
    NTI_V r = NTI_FMA(n, NTI_SPLAT(-NTI_LN2_LO), NTI_FMA(n, NTI_SPLAT(-NTI_LN2_HI), x)) + lo;
    *k = n;
    return NTI_FMA(r * r, NTI_POLY(r, nti_exp_poly), r);
}
// In two factors, so that the range ends gradually on both sides.
static NTI_INLINE NTI_V NTI_K(nti_exp_scale)(NTI_V q, NTI_V k) {
    NTI_V half = NTI_K(nti_near)(k * NTI_C(0.5));
    NTI_V s = NTI_K(nti_pow2)(half);
    return NTI_FMA(q, s, s) * NTI_K(nti_pow2)(k - half);
}
static NTI_INLINE NTI_V NTI_K(nti_exp_pair)(NTI_V x, NTI_V lo) {
    NTI_V k, q = NTI_K(nti_exp_parts)(NTI_K(nti_clamp)(x, NTI_SPLAT(NTI_PICK(-746, -104.5)), NTI_SPLAT(NTI_PICK(710, 89))), lo, &k);
    return NTI_K(nti_exp_scale)(q, k);
}
static NTI_INLINE NTI_V NTI_K(nti_exp)(NTI_V x) { return NTI_K(nti_exp_pair)(x, NTI_SPLAT(0)); }
#define NTI_EXP NTI_K(nti_exp)

static NTI_INLINE NTI_V NTI_K(nti_exp2)(NTI_V x) {
    NTI_V c = NTI_K(nti_clamp)(x, NTI_SPLAT(NTI_PICK(-1080, -152)), NTI_SPLAT(NTI_PICK(1025, 129)));
    NTI_V k = NTI_K(nti_near)(c), r = (c - k) * NTI_C(0.69314718055994530942);
    return NTI_K(nti_exp_scale)(NTI_FMA(r * r, NTI_POLY(r, nti_exp_poly), r), k);
}
// (exp(x) - 1) / 2: half, because sinh and cosh go on where exp has ended
static NTI_INLINE NTI_V NTI_K(nti_expm1_half)(NTI_V x) {
    NTI_V c = NTI_K(nti_clamp)(x, NTI_SPLAT(NTI_PICK(-40, -20)), NTI_SPLAT(NTI_PICK(710.6, 89.6)));
    NTI_V k, q = NTI_K(nti_exp_parts)(c, NTI_SPLAT(0), &k);
    NTI_V s = NTI_K(nti_pow2)(k - NTI_C(2));
    return NTI_FMA(s, q, s - NTI_C(0.25)) * NTI_C(2);
}
static NTI_INLINE NTI_V NTI_K(nti_expm1)(NTI_V x) {
    return NTI_CHOOSE(NTI_EQ(x, NTI_SPLAT(0)), x, NTI_K(nti_expm1_half)(x) * NTI_C(2));
}

// x = 2^k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for finite x > 0: gives f
static NTI_INLINE NTI_V NTI_K(nti_log_parts)(NTI_V x, NTI_V *k) {
    const NTI_U half = NTI_PICKU(0x3fe6a09e667f3bcdu, 0x3f3504f3u), one = NTI_PICKU(0x3ff0000000000000u, 0x3f800000u);
    const NTI_T lift = NTI_PICK(18014398509481984.0, 33554432.0);   // subnormal numbers go up by 2^54 or 2^25
    NTI_VI low = NTI_LT(x, NTI_SPLAT(NTI_PICK(2.2250738585072014e-308, 1.17549435e-38)));
    x = NTI_CHOOSE(low, x * lift, x);
    NTI_VU u = (NTI_VU)NTI_INT(x) + (NTI_U)(one - half);
    NTI_V e = NTI_FLOAT((NTI_VI)((u >> NTI_MANTISSA) | NTI_PICKU(0x4330000000000000u, 0x4b000000u)));
    *k = (e - NTI_PICK(4503599627370496.0 + 1023, 8388608.0 + 127)) - NTI_FLOAT(low & NTI_INT(NTI_SPLAT(NTI_PICK(54, 25))));
    return NTI_FLOAT((NTI_VI)((u & (((NTI_U)1 << NTI_MANTISSA) - 1)) + half)) - NTI_C(1);
}
// log(1 + f) + c for small c
static NTI_INLINE NTI_V NTI_K(nti_log_mantissa)(NTI_V f, NTI_V c) {
    NTI_V s = f / (f + NTI_C(2)), z = s * s, h = f * f * NTI_C(0.5);
    NTI_V r = NTI_FMA(z, NTI_POLY(z, nti_log_poly), h);
    return f - (h - NTI_FMA(s, r, c));
}
// what all logarithms have in common: r for finite x > 0, else the value at the ends or NaN
static NTI_INLINE NTI_V NTI_K(nti_log_ends)(NTI_V x, NTI_V r) {
    NTI_V zero = NTI_SPLAT(0);
    r = NTI_CHOOSE(NTI_LT(x, NTI_SPLAT(NTI_INF)), r, x);
    return NTI_CHOOSE(NTI_LE(x, zero), NTI_CHOOSE(NTI_EQ(x, zero), NTI_SPLAT(-NTI_INF), NTI_SPLAT(NTI_NAN)), r);
}
// log(x) + c
static NTI_INLINE NTI_V NTI_K(nti_log_plus)(NTI_V x, NTI_V c) {
    NTI_V k, f = NTI_K(nti_log_parts)(x, &k);
    NTI_V r = NTI_K(nti_log_mantissa)(f, NTI_FMA(k, NTI_SPLAT(NTI_LN2_LO), c));
    return NTI_K(nti_log_ends)(x, NTI_FMA(k, NTI_SPLAT(NTI_LN2_HI), r));
}
static NTI_INLINE NTI_V NTI_K(nti_log)(NTI_V x) { return NTI_K(nti_log_plus)(x, NTI_SPLAT(0)); }
#define NTI_LOG NTI_K(nti_log)
static NTI_INLINE NTI_V NTI_K(nti_log2)(NTI_V x) {
    NTI_V k, f = NTI_K(nti_log_parts)(x, &k);
    return NTI_K(nti_log_ends)(x, NTI_FMA(NTI_K(nti_log_mantissa)(f, NTI_SPLAT(0)), NTI_SPLAT(1.44269504088896340736), k));
}
static NTI_INLINE NTI_V NTI_K(nti_log1p)(NTI_V x) {
    NTI_V u = x + NTI_C(1);
    NTI_V r = NTI_K(nti_log_plus)(u, (x - (u - NTI_C(1))) / u);   // the last: what the sum u lost
    return NTI_CHOOSE(NTI_EQ(x, NTI_SPLAT(0)), x, r);
}

// log(a) as hi + lo, some 7 bits more than one number holds, for pow
static NTI_INLINE NTI_V NTI_K(nti_log_pair)(NTI_V a, NTI_V *lo) {
    NTI_V k, f = NTI_K(nti_log_parts)(a, &k);
    NTI_V d = f + NTI_C(2), dl = f - (d - NTI_C(2)), s = f / d, p = s * d;
    NTI_V sl = (((f - p) - NTI_K(nti_product_error)(s, d, p)) - s * dl) / d;
    NTI_V z = s * s, tail = s * (z * NTI_POLY(z, nti_log_poly)) + sl * NTI_C(2) + k * NTI_LN2_LO;
    NTI_V kh = k * NTI_LN2_HI, s2 = s * NTI_C(2), hi = kh + s2;
    tail = tail + NTI_K(nti_sum_error)(kh, s2, hi);
    NTI_V sum = hi + tail;
    *lo = tail - (sum - hi);
    return sum;
}
static NTI_V NTI_K(nti_pow)(NTI_V x, NTI_V y) {
    const NTI_V zero = NTI_SPLAT(0), one = NTI_SPLAT(1), inf = NTI_SPLAT(NTI_INF);
    NTI_V a = NTI_ABS(x), lo, hi = NTI_K(nti_log_pair)(a, &lo);
    hi = NTI_CHOOSE(NTI_EQ(a, zero), NTI_SPLAT(-NTI_INF), NTI_CHOOSE(NTI_LT(a, inf), hi, a));
    NTI_V p = y * hi, e = NTI_K(nti_product_error)(y, hi, p) + y * lo;
    NTI_V r = NTI_K(nti_exp_pair)(p, NTI_CHOOSE(NTI_LT(NTI_ABS(p), NTI_SPLAT(1000)) & NTI_LT(NTI_ABS(y), NTI_SPLAT(1e30)), e, zero));
    NTI_V half = y * NTI_C(0.5);
    NTI_VI whole = NTI_EQ(NTI_K(nti_round)(y), y), odd = whole & ~NTI_EQ(NTI_K(nti_round)(half), half);
    r = NTI_FLOAT(NTI_INT(r) ^ (NTI_INT(x) & odd & ~NTI_IMAX));
    r = NTI_CHOOSE(NTI_LT(x, zero) & ~whole & NTI_LT(a, inf), y + NTI_SPLAT(NTI_NAN), r);
    NTI_VI is_one = NTI_EQ(x, one) | NTI_EQ(y, zero) | (NTI_EQ(a, one) & NTI_EQ(NTI_ABS(y), inf));
    return NTI_CHOOSE(is_one, one, r);
}
// whole exponents by squaring, as JAX does
static NTI_INLINE NTI_V NTI_K(nti_int_pow)(NTI_V x, int p) {
    NTI_V r = NTI_SPLAT(1);
    for (int n = p < 0 ? -p : p; n; n >>= 1, x = x * x)
        if (n & 1)
            r = r * x;
    return p < 0 ? NTI_C(1) / r : r;
}

static NTI_INLINE int NTI_K(nti_any)(NTI_VI mask) {
#if NTI_BYTES
    uint64_t word[NTI_BYTES / 8], any = 0;
    memcpy(word, &mask, sizeof mask);
    for (int k = 0; k < NTI_BYTES / 8; k++)
        any |= word[k];
    return any != 0;
#else
    return mask != 0;
#endif
}
// arguments beyond the range of the fast reduction (or not finite), one by one
static void NTI_K(nti_reduce_far)(NTI_V x, NTI_VI far, NTI_V *r, NTI_V *lo, NTI_VI *quadrant) {
    NTI_T arg[NTI_W], high[NTI_W], low[NTI_W];
    NTI_I turn[NTI_W], mask[NTI_W];
    memcpy(arg, &x, sizeof x);
    memcpy(mask, &far, sizeof x);
    memcpy(high, r, sizeof x);
    memcpy(low, lo, sizeof x);
    memcpy(turn, quadrant, sizeof x);
    for (int k = 0; k < NTI_W; k++) {
        int q = 0;
        if (!mask[k])
            continue;
        double exact = arg[k] - arg[k] == 0 ? nti_reduce_huge((double)arg[k], &q) : (double)NAN;
        high[k] = (NTI_T)exact;
        low[k] = (NTI_T)(exact - (double)high[k]);
        turn[k] = q;
    }
    memcpy(r, high, sizeof x);
    memcpy(lo, low, sizeof x);
    memcpy(quadrant, turn, sizeof x);
}
// Cody and Waite with exact products: x = q pi/2 + r + lo. Lanes beyond the range go one by one.
static NTI_V NTI_K(nti_reduce)(NTI_V x, NTI_V *lo, NTI_VI *quadrant) {
    const NTI_T p1 = NTI_PI_2, p2 = NTI_PICK(6.1232339957367660e-17, -4.3711388286737929e-8);
    const NTI_T p3 = NTI_PICK(-1.4973849048591698e-33, -1.7151245100058819e-15);
    NTI_V biased = x * NTI_C(0.63661977236758134308) + NTI_MAGIC, n = biased - NTI_MAGIC;
    NTI_V h1 = n * p1, h2 = n * p2, t = x - h1;
    NTI_V e1 = NTI_K(nti_product_error)(n, NTI_SPLAT(p1), h1), e2 = NTI_K(nti_product_error)(n, NTI_SPLAT(p2), h2);
    NTI_V u = t - e1, v = u - h2;
    NTI_V rest = (NTI_K(nti_sum_error)(t, -e1, u) + NTI_K(nti_sum_error)(u, -h2, v)) - (e2 + n * p3);
    NTI_V r = v + rest;
    *lo = rest - (r - v);
    *quadrant = NTI_INT(biased);
    NTI_VI far = ~NTI_LE(NTI_ABS(x), NTI_SPLAT(NTI_PICK(1e9, 1e5)));
    if (NTI_K(nti_any)(far))
        NTI_K(nti_reduce_far)(x, far, &r, lo, quadrant);
    return r;
}
static NTI_INLINE NTI_V NTI_K(nti_sin_small)(NTI_V r, NTI_V lo) {
    NTI_V z = r * r;
    return r + NTI_FMA(r * z, NTI_POLY(z, nti_sin_poly), lo - lo * (z * NTI_C(0.5)));
}
static NTI_INLINE NTI_V NTI_K(nti_cos_small)(NTI_V r, NTI_V lo) {
    NTI_V z = r * r, h = z * NTI_C(0.5), w = NTI_C(1) - h;
    return w + (((NTI_C(1) - w) - h) + NTI_FMA(z * z, NTI_POLY(z, nti_cos_poly), -(r * lo)));
}
// sin(x + turns pi/2)
static NTI_V NTI_K(nti_sin_turned)(NTI_V x, int turns) {
    NTI_V lo, r;
    NTI_VI q;
    r = NTI_K(nti_reduce)(x, &lo, &q);
    q = q + (NTI_I)turns;
    NTI_V v = NTI_CHOOSE(NTI_EQ(q & 1, NTI_SPLATI(0)), NTI_K(nti_sin_small)(r, lo), NTI_K(nti_cos_small)(r, lo));
    return NTI_FLOAT(NTI_INT(v) ^ (NTI_VI)((NTI_VU)(q & 2) << (8 * sizeof(NTI_T) - 2)));
}
static NTI_V NTI_K(nti_sin)(NTI_V x) { return NTI_CHOOSE(NTI_EQ(x, NTI_SPLAT(0)), x, NTI_K(nti_sin_turned)(x, 0)); }
static NTI_V NTI_K(nti_cos)(NTI_V x) { return NTI_K(nti_sin_turned)(x, 1); }
static NTI_V NTI_K(nti_tan)(NTI_V x) {
    NTI_V lo, r;
    NTI_VI q;
    r = NTI_K(nti_reduce)(x, &lo, &q);
    NTI_V s = NTI_K(nti_sin_small)(r, lo), c = NTI_K(nti_cos_small)(r, lo);
    NTI_VI even = NTI_EQ(q & 1, NTI_SPLATI(0));
    return NTI_CHOOSE(NTI_EQ(x, NTI_SPLAT(0)), x, NTI_CHOOSE(even, s, -c) / NTI_CHOOSE(even, c, s));
}

// the angle of (d, n) in the first quadrant, n, d >= 0
static NTI_INLINE NTI_V NTI_K(nti_angle)(NTI_V n, NTI_V d) {
    NTI_VI steep = NTI_LT(d * NTI_C(2.41421356237309504880), n), middle = ~steep & NTI_LT(d * NTI_C(0.41421356237309504880), n);
    NTI_V top = NTI_CHOOSE(steep, -d, NTI_CHOOSE(middle, n - d, n)), bottom = NTI_CHOOSE(steep, n, NTI_CHOOSE(middle, n + d, d));
    NTI_V t = top / bottom, z = t * t;
    NTI_V turn = NTI_CHOOSE(steep, NTI_SPLAT(1), NTI_CHOOSE(middle, NTI_SPLAT(0.5), NTI_SPLAT(0)));
    NTI_V r = NTI_FMA(t * z, NTI_POLY(z, nti_atan_poly), turn * NTI_PI_2_LO) + t;
    return turn * NTI_PI_2 + r;
}
static NTI_V NTI_K(nti_atan)(NTI_V x) { return NTI_COPYSIGN(NTI_K(nti_angle)(NTI_ABS(x), NTI_SPLAT(1)), x); }
static NTI_V NTI_K(nti_atan2)(NTI_V y, NTI_V x) {
    NTI_V n = NTI_ABS(y), d = NTI_ABS(x), one = NTI_SPLAT(1), inf = NTI_SPLAT(NTI_INF);
    NTI_VI corner = (NTI_EQ(n, inf) & NTI_EQ(d, inf)), origin = NTI_EQ(n, NTI_SPLAT(0)) & NTI_EQ(d, NTI_SPLAT(0));
    n = NTI_CHOOSE(corner, one, n);
    d = NTI_CHOOSE(corner | origin, one, d);
    NTI_VI huge = NTI_LT(NTI_SPLAT(NTI_PICK(1e300, 1e36)), NTI_K(nti_most)(n, d));
    NTI_V less = NTI_CHOOSE(huge, NTI_SPLAT(0.125), one);   // so that the sum n + d stays finite
    NTI_V a = NTI_K(nti_angle)(n * less, d * less);
    NTI_VI left = NTI_LT(NTI_COPYSIGN(one, x), NTI_SPLAT(0));
    a = NTI_CHOOSE(left, NTI_C(2) * NTI_PI_2 - (a - NTI_C(2) * NTI_PI_2_LO), a);
    return NTI_COPYSIGN(a, y);
}
// asin(a) for a <= 1/2, else asin(sqrt((1 - a) / 2)); *big tells which
static NTI_INLINE NTI_V NTI_K(nti_asin_part)(NTI_V a, NTI_VI *big) {
    *big = NTI_LT(NTI_SPLAT(0.5), a);
    NTI_V z = NTI_CHOOSE(*big, (NTI_C(1) - a) * NTI_C(0.5), a * a);
    NTI_V s = NTI_CHOOSE(*big, NTI_SQRT(z), a);
    return NTI_FMA(s * z, NTI_POLY(z, nti_asin_poly), s);
}
static NTI_V NTI_K(nti_asin)(NTI_V x) {
    NTI_VI big;
    NTI_V p = NTI_K(nti_asin_part)(NTI_ABS(x), &big);
    return NTI_COPYSIGN(NTI_CHOOSE(big, NTI_PI_2 - (p * NTI_C(2) - NTI_PI_2_LO), p), x);
}
static NTI_V NTI_K(nti_acos)(NTI_V x) {
    NTI_VI big;
    NTI_V p = NTI_K(nti_asin_part)(NTI_ABS(x), &big), two = p * NTI_C(2);
    NTI_V far = NTI_CHOOSE(NTI_LT(x, NTI_SPLAT(0)), NTI_C(2) * NTI_PI_2 - (two - NTI_C(2) * NTI_PI_2_LO), two);
    return NTI_CHOOSE(big, far, NTI_PI_2 - (NTI_COPYSIGN(p, x) - NTI_PI_2_LO));
}

static NTI_INLINE NTI_V NTI_K(nti_tanh)(NTI_V x) {
    NTI_V e = NTI_K(nti_expm1_half)(NTI_K(nti_least)(NTI_ABS(x), NTI_SPLAT(NTI_PICK(20, 10))) * NTI_C(2));
    return NTI_COPYSIGN(e / (e + NTI_C(1)), x);
}
static NTI_V NTI_K(nti_sinh)(NTI_V x) {
    NTI_V e = NTI_K(nti_expm1_half)(NTI_ABS(x));
    NTI_V c = NTI_K(nti_least)(e, NTI_SPLAT(1e30));
    return NTI_COPYSIGN(e + c / (c * NTI_C(2) + NTI_C(1)), x);
}
static NTI_V NTI_K(nti_cosh)(NTI_V x) {
    NTI_V t = NTI_K(nti_expm1_half)(NTI_ABS(x)) + NTI_C(0.5);
    return t + NTI_C(0.25) / t;
}
// log(1 + u), or log(2 a) where a is so large that squares would overflow
static NTI_V NTI_K(nti_log_of_two)(NTI_VI big, NTI_V a, NTI_V u) {
    return NTI_K(nti_log1p)(NTI_CHOOSE(big, a, u)) + NTI_CHOOSE(big, NTI_SPLAT(0.69314718055994530942), NTI_SPLAT(0));
}
static NTI_V NTI_K(nti_asinh)(NTI_V x) {
    NTI_V a = NTI_ABS(x), a2 = a * a;
    NTI_VI big = NTI_LT(NTI_SPLAT(NTI_PICK(1e18, 1e9)), a);
    return NTI_COPYSIGN(NTI_K(nti_log_of_two)(big, a, a + a2 / (NTI_C(1) + NTI_SQRT(NTI_C(1) + a2))), x);
}
static NTI_V NTI_K(nti_acosh)(NTI_V x) {
    NTI_V t = x - NTI_C(1);
    NTI_V r = NTI_K(nti_log_of_two)(NTI_LT(NTI_SPLAT(NTI_PICK(1e18, 1e9)), x), x, t + NTI_SQRT(t * (t + NTI_C(2))));
    return NTI_CHOOSE(NTI_LT(t, NTI_SPLAT(0)), NTI_SPLAT(NTI_NAN), r);
}
static NTI_V NTI_K(nti_atanh)(NTI_V x) {
    NTI_V a = NTI_ABS(x);
    return NTI_COPYSIGN(NTI_K(nti_log1p)(NTI_C(2) * a / (NTI_C(1) - a)) * NTI_C(0.5), x);
}
static NTI_V NTI_K(nti_cbrt)(NTI_V x) {
    NTI_V a = NTI_ABS(x), y = NTI_EXP(NTI_LOG(a) * NTI_C(0.33333333333333333333));
    y = y - (y - a / (y * y)) * NTI_C(0.33333333333333333333);   // Newton: the logarithm loses digits when its value is large
    return NTI_CHOOSE(NTI_LT(NTI_SPLAT(0), a) & NTI_LT(a, NTI_SPLAT(NTI_INF)), NTI_COPYSIGN(y, x), x);
}

// erf and the normal distribution: exp(-x^2) with x^2 to twice the precision, and exp(x^2) erfc(x) as a polynomial.
static NTI_INLINE NTI_V NTI_K(nti_gauss)(NTI_V a, NTI_T factor) {   // exp(-factor a^2), factor 1 or 1/2, a >= 0
    a = NTI_K(nti_least)(a, NTI_SPLAT(NTI_PICK(40, 15)));
    NTI_V h = a * a, l = NTI_K(nti_product_error)(a, a, h);
    return NTI_K(nti_exp_pair)(h * -factor, l * -factor);
}
static NTI_INLINE NTI_V NTI_K(nti_erfcx)(NTI_V a) {
    const NTI_T middle = NTI_PICK(4, 2);
    a = NTI_K(nti_least)(a, NTI_SPLAT(NTI_PICK(28, 10.3)));
    NTI_V q = (a - middle) / (a + middle);
    return NTI_POLY(q, nti_erfcx_poly) / NTI_FMA(a, NTI_SPLAT(2), NTI_SPLAT(1));
}
static NTI_INLINE NTI_V NTI_K(nti_erf_small)(NTI_V x) { return NTI_FMA(x, NTI_POLY(x * x, nti_erf_poly), x); }
static NTI_INLINE NTI_V NTI_K(nti_erf)(NTI_V x) {
    NTI_V a = NTI_ABS(x), far = NTI_C(1) - NTI_K(nti_erfcx)(a) * NTI_K(nti_gauss)(a, 1);
    return NTI_CHOOSE(NTI_LT(a, NTI_SPLAT(0.5)), NTI_K(nti_erf_small)(x), NTI_COPYSIGN(far, x));
}
static NTI_V NTI_K(nti_erfc)(NTI_V x) {
    NTI_V a = NTI_ABS(x), far = NTI_K(nti_erfcx)(a) * NTI_K(nti_gauss)(a, 1);
    far = NTI_CHOOSE(NTI_LT(x, NTI_SPLAT(0)), NTI_C(2) - far, far);
    return NTI_CHOOSE(NTI_LT(a, NTI_SPLAT(0.5)), NTI_C(1) - NTI_K(nti_erf_small)(x), far);
}
// the distribution function of the unit normal, and exp(-x^2/2) beside it
static NTI_INLINE NTI_V NTI_K(nti_normal_cdf)(NTI_V x, NTI_V *gauss) {
    NTI_V a = NTI_ABS(x);
    *gauss = NTI_K(nti_gauss)(a, NTI_C(0.5));
    NTI_V tail = NTI_K(nti_erfcx)(a * NTI_C(0.70710678118654752440)) * *gauss * NTI_C(0.5);
    return NTI_CHOOSE(NTI_LT(x, NTI_SPLAT(0)), tail, NTI_C(1) - tail);
}
#if NTI_F64
// Start by polynomial, then one step of Halley's method on what is small: erf(y) - a or (1 - a) - erfc(y). 1 - a comes from the rounded
// a^2, as JAX has it: exact would be as easy, but then normals in the tails would differ from JAX's by up to 1e-9.
static NTI_V NTI_K(nti_erf_inv)(NTI_V x) {
    NTI_V a = NTI_ABS(x), one = NTI_SPLAT(1), d = one - a * a, c = d / (one + a), w = -NTI_LOG(d);
    NTI_V y = NTI_CHOOSE(NTI_LT(w, NTI_SPLAT(5)), a * NTI_POLY(w - 2.5, nti_erf_inv_poly), NTI_POLY(NTI_SQRT(w) - 4.0, nti_erf_inv_tail));
    NTI_V g = NTI_K(nti_gauss)(y, 1);
    NTI_V near = (NTI_K(nti_erf_small)(y) - a) / g, far = c / g - NTI_K(nti_erfcx)(y);
    NTI_V step = NTI_CHOOSE(NTI_LT(y, NTI_SPLAT(0.5)), near, far) * 0.88622692545275801365;
    y = y - step / NTI_FMA(y, step, one);
    return NTI_COPYSIGN(NTI_CHOOSE(NTI_EQ(a, one), NTI_SPLAT(NTI_INF), y), x);
}
#else
// As XLA does it, so that normals are JAX's to a few ulp.
static NTI_V NTI_K(nti_erf_inv)(NTI_V x) {
    NTI_V w = -NTI_K(nti_log1p)(-(x * x));
    NTI_V p = NTI_CHOOSE(NTI_LT(w, NTI_SPLAT(5)), NTI_POLY(w - 2.5f, nti_erf_inv_poly), NTI_POLY(NTI_SQRT(w) - 3.0f, nti_erf_inv_tail));
    return NTI_CHOOSE(NTI_EQ(NTI_ABS(x), NTI_SPLAT(1)), NTI_COPYSIGN(NTI_SPLAT(NTI_INF), x), p * x);
}
#endif

// sigmoid(x) and 1 - sigmoid(x), both without cancellation
static NTI_INLINE NTI_V NTI_K(nti_sigmoid_both)(NTI_V x, NTI_V *other) {
    NTI_V one = NTI_SPLAT(1), z = NTI_EXP(-NTI_ABS(x)), r = one / (one + z);
    NTI_VI below = NTI_LT(x, NTI_SPLAT(0));
    *other = NTI_CHOOSE(below, one, z) * r;
    return NTI_CHOOSE(below, z, one) * r;
}
static NTI_INLINE NTI_V NTI_K(nti_sigmoid)(NTI_V x) {
    NTI_V one = NTI_SPLAT(1), z = NTI_EXP(-NTI_ABS(x));
    return NTI_CHOOSE(NTI_LT(x, NTI_SPLAT(0)), z, one) / (one + z);
}
static NTI_V NTI_K(nti_softplus)(NTI_V x) {
    return NTI_K(nti_most)(x, NTI_SPLAT(0)) + NTI_K(nti_log1p)(NTI_EXP(-NTI_ABS(x)));
}
static NTI_INLINE NTI_V NTI_K(nti_gelu)(NTI_V x) {
    NTI_V g;
    return x * NTI_K(nti_normal_cdf)(x, &g);
}
static NTI_INLINE NTI_V NTI_K(nti_gelu_grad)(NTI_V x) {
    NTI_V g, p = NTI_K(nti_normal_cdf)(x, &g);
    return p + NTI_K(nti_clamp)(x, NTI_SPLAT(-100), NTI_SPLAT(100)) * g * NTI_C(0.39894228040143267794);
}
// the argument of the sigmoid that (1 + tanh) / 2 is
static NTI_INLINE NTI_V NTI_K(nti_gelu_argument)(NTI_V x) {
    NTI_V c = x * NTI_C(1.59576912160573071176);
    return NTI_FMA(c * NTI_C(0.044715), x * x, c);
}
static NTI_INLINE NTI_V NTI_K(nti_gelu_tanh_grad)(NTI_V x) {
    NTI_V b, s = NTI_K(nti_sigmoid_both)(NTI_K(nti_gelu_argument)(x), &b), c = NTI_K(nti_clamp)(x, NTI_SPLAT(-100), NTI_SPLAT(100));
    NTI_V slope = NTI_FMA(c * c, NTI_SPLAT(1.59576912160573071176 * 3 * 0.044715), NTI_SPLAT(1.59576912160573071176));
    return NTI_FMA(c * s * b, slope, s);
}
static NTI_INLINE NTI_V NTI_K(nti_silu_grad)(NTI_V x) {
    NTI_V b, s = NTI_K(nti_sigmoid_both)(x, &b);
    return NTI_FMA(NTI_K(nti_clamp)(x, NTI_SPLAT(-1000), NTI_SPLAT(1000)) * s, b, s);
}

static NTI_V NTI_K(nti_hypot)(NTI_V x, NTI_V y) {
    NTI_V a = NTI_ABS(x), b = NTI_ABS(y), zero = NTI_SPLAT(0), inf = NTI_SPLAT(NTI_INF);
    NTI_VI swap = NTI_LT(a, b);
    NTI_V big = NTI_CHOOSE(swap, b, a), r = NTI_CHOOSE(swap, a, b) / big;
    r = NTI_CHOOSE(NTI_EQ(a, zero) & NTI_EQ(b, zero), zero, big * NTI_SQRT(NTI_FMA(r, r, NTI_SPLAT(1))));
    return NTI_CHOOSE(NTI_EQ(a, inf) | NTI_EQ(b, inf), inf, r);
}
static NTI_V NTI_K(nti_logaddexp)(NTI_V x, NTI_V y) {
    NTI_V big = NTI_CHOOSE(NTI_LT(y, x) | ~NTI_EQ(x, x), x, y), d = NTI_CHOOSE(NTI_EQ(x, y), NTI_SPLAT(0), -NTI_ABS(x - y));
    return big + NTI_K(nti_log1p)(NTI_EXP(d));
}

// Gamma for x > 0: below 8 shifted into [3/2, 5/2], where lgamma(2 + t) = t P(t); above by Stirling's series.
static NTI_V NTI_K(nti_lgamma_positive)(NTI_V x) {
    const NTI_V one = NTI_SPLAT(1);
    NTI_VI tiny = NTI_LT(x, NTI_SPLAT(0.5)), low = NTI_LT(x, NTI_SPLAT(1.5)), large = NTI_LE(NTI_SPLAT(8), x);
    NTI_V product = NTI_CHOOSE(tiny, x * (x + one), NTI_CHOOSE(low, x, one));
    NTI_V t = NTI_CHOOSE(tiny, x, NTI_CHOOSE(low, x - one, x - NTI_C(2)));   // exact near 1 and 2
    for (int k = 0; k < 6; k++) {
        NTI_VI down = NTI_LT(NTI_SPLAT(0.5), t) & ~large;
        product = NTI_CHOOSE(down, product * (t + one), product);
        t = NTI_CHOOSE(down, t - one, t);
    }
    NTI_V log = NTI_LOG(NTI_CHOOSE(large, x, product)), inverse = one / x;
    NTI_V near = NTI_FMA(t, NTI_POLY(t, nti_lgamma_poly), NTI_CHOOSE(low, -log, log));
    NTI_V series = NTI_FMA(inverse, NTI_POLY(inverse * inverse, nti_stirling_poly), NTI_SPLAT(0.91893853320467274178 - 0.5));
    return NTI_CHOOSE(large, NTI_FMA(x - NTI_C(0.5), log - one, series), near);
}
// sin(pi x)
static NTI_V NTI_K(nti_sin_pi)(NTI_V x) { return NTI_K(nti_sin)((x - NTI_K(nti_round)(x)) * NTI_C(3.14159265358979323846)); }
static NTI_V NTI_K(nti_lgamma)(NTI_V x) {
    NTI_V zero = NTI_SPLAT(0), inf = NTI_SPLAT(NTI_INF);
    NTI_VI left = NTI_LE(x, zero);
    NTI_V g = NTI_K(nti_lgamma_positive)(NTI_CHOOSE(left, NTI_C(1) - x, x));
    if (!NTI_K(nti_any)(left))
        return g;
    NTI_V mirror = (NTI_C(1.14472988584940017414) - NTI_LOG(NTI_ABS(NTI_K(nti_sin_pi)(x)))) - g;
    mirror = NTI_CHOOSE(NTI_EQ(NTI_K(nti_round)(x), x), inf, mirror);   // the poles, and whatever is too large to have a fraction
    return NTI_CHOOSE(left, mirror, g);
}

// The n-th derivative of cot at an angle of cotangent c, as a polynomial in c: P' times -(1 + c^2), n times.
static NTI_V NTI_K(nti_cot_derivative)(NTI_V c, int n) {
    double p[40] = { 0, 1 };
    for (int k = 0; k < n; k++) {
        double last = 0, at = 0;   // coefficients of P' and two before
        for (int j = 0; j <= k + 2; j++) {
            double next = j < k + 2 ? (j + 1) * p[j + 1] : 0;
            p[j] = -(next + last);
            last = at;
            at = next;
        }
    }
    NTI_V r = NTI_SPLAT(p[n + 1]);
    for (int j = n; j >= 0; j--)
        r = NTI_FMA(r, c, NTI_SPLAT(p[j]));
    return r;
}
// (-1)^(n+1) psi_n(x) / n! for x > 0: shifted upwards, then the asymptotic series.
static NTI_V NTI_K(nti_polygamma_positive)(NTI_V x, int n) {
    static const double bernoulli[] = { // B_2k / (2k)!
                                        0.083333333333333333,   -0.0013888888888888889,  3.3068783068783069e-5,  -8.2671957671957672e-7,
                                        2.0876756987368099e-8,  -5.2841901386874932e-10, 1.3382536530684679e-11, -3.3896802963225829e-13,
                                        8.5860620562778446e-15, -2.1748686985580619e-16, 5.5090028283602295e-18
    };
    const NTI_V enough = NTI_SPLAT(NTI_PICK(10, 5) + (NTI_T)n);
    NTI_V sum = NTI_SPLAT(0);
    for (NTI_VI low = NTI_LT(x, enough); NTI_K(nti_any)(low); low = NTI_LT(x, enough)) {
        sum = sum + NTI_CHOOSE(low, NTI_K(nti_int_pow)(x, -(n + 1)), NTI_SPLAT(0));
        x = NTI_CHOOSE(low, x + NTI_C(1), x);
    }
    NTI_V inverse = NTI_C(1) / x, square = inverse * inverse, power = square;
    NTI_V series = NTI_FMA(inverse, NTI_SPLAT(0.5), n ? NTI_SPLAT(1.0 / n) : -NTI_LOG(x));
    double rising = n + 1;   // (n + 1) (n + 2) ... (n + 2k - 1)
    for (int k = 1; k <= 11; k++) {
        series = NTI_FMA(power, NTI_SPLAT(bernoulli[k - 1] * rising), series);
        power = power * square;
        rising *= (double)(n + 2 * k) * (n + 2 * k + 1);
    }
    return NTI_FMA(NTI_K(nti_int_pow)(inverse, n), series, sum);
}
static NTI_V NTI_K(nti_polygamma)(NTI_V x, int n) {
    NTI_VI left = NTI_LE(x, NTI_SPLAT(0));
    double factor = n & 1 ? 1 : -1, power = 3.14159265358979323846;
    for (int k = 1; k <= n; k++) {
        factor *= k;
        power *= 3.14159265358979323846;
    }
    NTI_V g = NTI_K(nti_polygamma_positive)(NTI_CHOOSE(left, NTI_C(1) - x, x), n) * (NTI_T)factor;
    if (!NTI_K(nti_any)(left))
        return g;
    NTI_V whole = NTI_K(nti_round)(x), r = x - whole, a = NTI_ABS(r);
    NTI_VI far = NTI_LT(NTI_SPLAT(0.25), a);   // the cotangent is then a tangent, with its zero where it should be
    NTI_V t = NTI_K(nti_tan)(NTI_CHOOSE(far, NTI_C(0.5) - a, a) * NTI_C(3.14159265358979323846));
    NTI_V cot = NTI_COPYSIGN(NTI_CHOOSE(far, t, NTI_C(1) / t), r);
    NTI_V mirror = (n & 1 ? -g : g) - NTI_K(nti_cot_derivative)(cot, n) * (NTI_T)power;
    mirror = NTI_CHOOSE(NTI_EQ(whole, x), n & 1 ? NTI_SPLAT(NTI_INF) : NTI_SPLAT(NTI_NAN), mirror);
    return NTI_CHOOSE(left, mirror, g);
}

// ---- the maps -------------------------------------------------------------------------------------------------------
// A vector at a time; the tail goes through the same code on a padded vector, so that an element's bits depend on nothing but its inputs.
static NTI_INLINE NTI_V NTI_K(nti_load_some)(const NTI_T *p, size_t left) {
    if (left >= (size_t)NTI_W)
        return NTI_LOAD(p);
    NTI_T t[NTI_W] = { 0 };
    memcpy(t, p, left * sizeof *p);
    return NTI_LOAD(t);
}
static NTI_INLINE void NTI_K(nti_store_some)(NTI_T *p, NTI_V v, size_t left) {
    if (left >= (size_t)NTI_W)
        NTI_STORE(p, v);
    else
        memcpy(p, &v, left * sizeof *p);
}
#if NTI_BYTES
typedef int8_t NTI_K(nti_vb) __attribute__((vector_size(NTI_BYTES / sizeof(NTI_T))));
#define NTI_VB NTI_K(nti_vb)
#define NTI_WIDEN(b) __builtin_convertvector(b, NTI_VI)
#define NTI_NARROW(m) __builtin_convertvector(m, NTI_VB)
#else
typedef int8_t NTI_K(nti_vb);
#define NTI_VB NTI_K(nti_vb)
#define NTI_WIDEN(b) ((NTI_VI)(b))
#define NTI_NARROW(m) ((NTI_VB)(m))
#endif
static NTI_INLINE NTI_VI NTI_K(nti_load_bool)(const uint8_t *p, size_t left) {
    NTI_VB b;
    if (left >= (size_t)NTI_W) {
        memcpy(&b, p, sizeof b);
    } else {
        memset(&b, 0, sizeof b);
        memcpy(&b, p, left);
    }
    return ~NTI_EQ(NTI_WIDEN(b), NTI_SPLATI(0));
}
static NTI_INLINE void NTI_K(nti_store_bool)(uint8_t *p, NTI_VI mask, size_t left) {
    NTI_VB b = NTI_NARROW(mask & 1);
    if (left >= (size_t)NTI_W)
        memcpy(p, &b, sizeof b);
    else
        memcpy(p, &b, left);
}
#define NTI_LOAD_SOME NTI_K(nti_load_some)
#define NTI_STORE_SOME NTI_K(nti_store_some)
#define NTI_BEGIN_MAP(name, type) \
    static void NTI_K(nti_map_##name)(void *out, const void *const *in, size_t n, const double *attr) { \
        type *to = (type *)out; \
        (void)attr;
#define NTI_EACH for (size_t i = 0; i < n; i += (size_t)NTI_W)
#define NTI_INPUT(k) NTI_LOAD_SOME((const NTI_T *)in[k] + i, n - i)
// y = f(x); f(x, a, b) with attributes; f(x, y); a truth of (x, y)
#define NTI_MAP1(name, value) NTI_BEGIN_MAP(name, NTI_T) NTI_EACH { const NTI_V x = NTI_INPUT(0); NTI_STORE_SOME(to + i, value, n - i); } }
#define NTI_MAP1_ATTR(name, value) NTI_BEGIN_MAP(name, NTI_T) const NTI_V a = NTI_SPLAT(attr[0]); \
    NTI_EACH { const NTI_V x = NTI_INPUT(0); NTI_STORE_SOME(to + i, value, n - i); } }
#define NTI_MAP2(name, value) NTI_BEGIN_MAP(name, NTI_T) \
    NTI_EACH { const NTI_V x = NTI_INPUT(0), y = NTI_INPUT(1); NTI_STORE_SOME(to + i, value, n - i); } }
#define NTI_TEST1(name, truth) NTI_BEGIN_MAP(name, uint8_t) \
    NTI_EACH { const NTI_V x = NTI_INPUT(0); NTI_K(nti_store_bool)(to + i, truth, n - i); } }
#define NTI_TEST2(name, truth) NTI_BEGIN_MAP(name, uint8_t) \
    NTI_EACH { const NTI_V x = NTI_INPUT(0), y = NTI_INPUT(1); NTI_K(nti_store_bool)(to + i, truth, n - i); } }
#define NTI_ZERO NTI_SPLAT(0)

NTI_BEGIN_MAP(copy, void) memmove(to, in[0], n * sizeof(NTI_T)); }
NTI_MAP1(neg, NTI_FLOAT(NTI_INT(x) ^ ~NTI_IMAX))
NTI_MAP1(abs, NTI_ABS(x))
NTI_MAP1(sign, NTI_CHOOSE(NTI_LT(NTI_ZERO, NTI_ABS(x)), NTI_COPYSIGN(NTI_SPLAT(1), x), x))
NTI_MAP1(exp, NTI_EXP(x))
NTI_MAP1(exp2, NTI_K(nti_exp2)(x))
NTI_MAP1(expm1, NTI_K(nti_expm1)(x))
NTI_MAP1(log, NTI_LOG(x))
NTI_MAP1(log2, NTI_K(nti_log2)(x))
NTI_MAP1(log1p, NTI_K(nti_log1p)(x))
NTI_MAP1(sqrt, NTI_SQRT(x))
NTI_MAP1(rsqrt, NTI_C(1) / NTI_SQRT(x))
NTI_MAP1(cbrt, NTI_K(nti_cbrt)(x))
NTI_MAP1(sin, NTI_K(nti_sin)(x))
NTI_MAP1(cos, NTI_K(nti_cos)(x))
NTI_MAP1(tan, NTI_K(nti_tan)(x))
NTI_MAP1(asin, NTI_K(nti_asin)(x))
NTI_MAP1(acos, NTI_K(nti_acos)(x))
NTI_MAP1(atan, NTI_K(nti_atan)(x))
NTI_MAP1(sinh, NTI_K(nti_sinh)(x))
NTI_MAP1(cosh, NTI_K(nti_cosh)(x))
NTI_MAP1(tanh, NTI_K(nti_tanh)(x))
NTI_MAP1(asinh, NTI_K(nti_asinh)(x))
NTI_MAP1(acosh, NTI_K(nti_acosh)(x))
NTI_MAP1(atanh, NTI_K(nti_atanh)(x))
NTI_MAP1(erf, NTI_K(nti_erf)(x))
NTI_MAP1(erfc, NTI_K(nti_erfc)(x))
NTI_MAP1(erf_inv, NTI_K(nti_erf_inv)(x))
NTI_MAP1(lgamma, NTI_K(nti_lgamma)(x))
NTI_MAP1(polygamma, NTI_K(nti_polygamma)(x, attr[0] >= 1 ? attr[0] < 30 ? (int)attr[0] : 30 : 0))
NTI_MAP1(sigmoid, NTI_K(nti_sigmoid)(x))
NTI_MAP1(softplus, NTI_K(nti_softplus)(x))
NTI_MAP1(log_sigmoid, -NTI_K(nti_softplus)(-x))
NTI_MAP1(relu, NTI_CHOOSE(NTI_LE(x, NTI_ZERO), NTI_ZERO, x))
NTI_MAP1(silu, x * NTI_K(nti_sigmoid)(x))
NTI_MAP1(gelu, NTI_K(nti_gelu)(x))
NTI_MAP1(gelu_tanh, x * NTI_K(nti_sigmoid)(NTI_K(nti_gelu_argument)(x)))
NTI_MAP1(silu_grad, NTI_K(nti_silu_grad)(x))
NTI_MAP1(gelu_grad, NTI_K(nti_gelu_grad)(x))
NTI_MAP1(gelu_tanh_grad, NTI_K(nti_gelu_tanh_grad)(x))
NTI_MAP1(square, x * x)
NTI_MAP1(reciprocal, NTI_C(1) / x)
NTI_MAP1(floor, NTI_K(nti_floor)(x))
NTI_MAP1(ceil, -NTI_K(nti_floor)(-x))
NTI_MAP1(trunc, NTI_K(nti_trunc)(x))
NTI_MAP1(round, NTI_K(nti_round)(x))
NTI_MAP1_ATTR(leaky_relu, NTI_CHOOSE(NTI_LT(x, NTI_ZERO), a * x, x))
NTI_MAP1_ATTR(elu, NTI_CHOOSE(NTI_LT(NTI_ZERO, x), x, a * NTI_K(nti_expm1)(x)))
NTI_MAP1_ATTR(add_scalar, x + a)
NTI_MAP1_ATTR(scale, x * a)
NTI_MAP1_ATTR(clamp, NTI_K(nti_clamp)(x, a, NTI_SPLAT(attr[1])))
NTI_BEGIN_MAP(pow_scalar, NTI_T)
    const NTI_V y = NTI_SPLAT(attr[0]);
    const int whole = attr[0] >= -32 && attr[0] <= 32 && attr[0] == (int)attr[0];
    NTI_EACH {
        const NTI_V x = NTI_INPUT(0);
        NTI_STORE_SOME(to + i, whole ? NTI_K(nti_int_pow)(x, (int)attr[0]) : NTI_K(nti_pow)(x, y), n - i);
    }
}
NTI_TEST1(is_finite, NTI_LT(NTI_ABS(x), NTI_SPLAT(NTI_INF)))
NTI_TEST1(is_nan, ~NTI_EQ(x, x))
NTI_MAP2(add, x + y)
NTI_MAP2(sub, x - y)
NTI_MAP2(mul, x * y)
NTI_MAP2(div, x / y)
NTI_MAP2(pow, NTI_K(nti_pow)(x, y))
NTI_MAP2(max, NTI_CHOOSE(NTI_LT(y, x) | ~NTI_EQ(x, x), x, y))
NTI_MAP2(min, NTI_CHOOSE(NTI_LT(x, y) | ~NTI_EQ(x, x), x, y))
NTI_MAP2(atan2, NTI_K(nti_atan2)(x, y))
NTI_MAP2(hypot, NTI_K(nti_hypot)(x, y))
NTI_MAP2(logaddexp, NTI_K(nti_logaddexp)(x, y))
NTI_MAP2(copysign, NTI_COPYSIGN(x, y))
NTI_MAP2(relu_grad, NTI_CHOOSE(NTI_LT(NTI_ZERO, x), y, NTI_ZERO))
NTI_TEST2(eq, NTI_EQ(x, y))
NTI_TEST2(ne, ~NTI_EQ(x, y))
NTI_TEST2(lt, NTI_LT(x, y))
NTI_TEST2(le, NTI_LE(x, y))
NTI_TEST2(gt, NTI_LT(y, x))
NTI_TEST2(ge, NTI_LE(y, x))
// fmod is exact, so the host's has the same bits everywhere
static NTI_INLINE NTI_T NTI_K(nti_fmod)(NTI_T x, NTI_T y) {
#if NTI_F64
    return fmod(x, y);
#else
    return fmodf(x, y);
#endif
}
NTI_BEGIN_MAP(rem, NTI_T)
    const NTI_T *x = (const NTI_T *)in[0], *y = (const NTI_T *)in[1];
    for (size_t i = 0; i < n; i++)
        to[i] = NTI_K(nti_fmod)(x[i], y[i]);
}
NTI_BEGIN_MAP(mod, NTI_T)
    const NTI_T *x = (const NTI_T *)in[0], *y = (const NTI_T *)in[1];
    for (size_t i = 0; i < n; i++) {
        NTI_T r = NTI_K(nti_fmod)(x[i], y[i]);
        to[i] = r != 0 && (r < 0) != (y[i] < 0) ? r + y[i] : r;
    }
}
NTI_BEGIN_MAP(select, NTI_T)
    NTI_EACH NTI_STORE_SOME(to + i, NTI_CHOOSE(NTI_K(nti_load_bool)((const uint8_t *)in[0] + i, n - i), NTI_INPUT(1), NTI_INPUT(2)), n - i);
}

#define NTI_MAP_ROW(NAME, name, inputs, result) NTI_K(nti_map_##name),
static const nti_math_table NTI_K(nti_math) = { { NTI_FLOAT_MAPS(NTI_MAP_ROW) } };
#undef NTI_MAP_ROW
#undef NTI_BEGIN_MAP
#undef NTI_EACH
#undef NTI_INPUT
#undef NTI_MAP1
#undef NTI_MAP1_ATTR
#undef NTI_MAP2
#undef NTI_TEST1
#undef NTI_TEST2
#undef NTI_ZERO
#undef NTI_VB
#undef NTI_WIDEN
#undef NTI_NARROW
#undef NTI_LOAD_SOME
#undef NTI_STORE_SOME
#undef NTI_POLY
#undef NTI_PICKU
#undef NTI_MANTISSA
#undef NTI_MAGIC
#undef NTI_LN2_HI
#undef NTI_LN2_LO
#undef NTI_PI_2
#undef NTI_PI_2_LO
#undef NTI_NAN
#undef NTI_INF
#undef NTI_IMAX
#undef NTI_PICK
#undef NTI_C
#undef NTI_ABS
#undef NTI_COPYSIGN
#undef NTI_SQRT
#undef NTI_EXP
#undef NTI_LOG
#endif // NTI_PASS
#ifdef NTI_PASS
// >>random bits
// Threefry on vectors of indices, and uniform numbers from bits.
#if !NTI_F64
// Several vectors in step, because each alone is one long chain of dependent instructions.
#define NTI_HASH_VECTORS 4
#if defined(__GNUC__) && !defined(__clang__)
#define NTI_EACH_VECTOR _Pragma("GCC unroll 4") for (int u = 0; u < NTI_HASH_VECTORS; u++)
#else
#define NTI_EACH_VECTOR for (int u = 0; u < NTI_HASH_VECTORS; u++)
#endif
static NTI_INLINE void NTI_K(nti_threefry_round)(NTI_VU *x0, NTI_VU *x1, int by) {
    NTI_EACH_VECTOR {
        x0[u] = x0[u] + x1[u];
        x1[u] = ((x1[u] << by) | (x1[u] >> (32 - by))) ^ x0[u];
    }
}
// four rounds, and what is added after them
static NTI_INLINE void NTI_K(nti_threefry_group)(NTI_VU *x0, NTI_VU *x1, int odd, uint32_t add0, uint32_t add1) {
    NTI_K(nti_threefry_round)(x0, x1, odd ? 17 : 13);
    NTI_K(nti_threefry_round)(x0, x1, odd ? 29 : 15);
    NTI_K(nti_threefry_round)(x0, x1, odd ? 16 : 26);
    NTI_K(nti_threefry_round)(x0, x1, odd ? 24 : 6);
    NTI_EACH_VECTOR {
        x0[u] = x0[u] + add0;
        x1[u] = x1[u] + add1;
    }
}
// the hash of a block of NTI_HASH_VECTORS vectors of indices
static NTI_INLINE void NTI_K(nti_hash_block)(nt_key_value key, uint64_t first, NTI_VU lane, NTI_VU *x0, NTI_VU *x1) {
    const uint32_t k0 = key.word[0], k1 = key.word[1], k2 = k0 ^ k1 ^ 0x1BD11BDAu;
    NTI_EACH_VECTOR {
        const uint64_t index = first + (uint64_t)(u * NTI_W);
        x1[u] = lane + (uint32_t)index;
        x0[u] = (lane ^ lane) + ((uint32_t)(index >> 32) + k0) - (NTI_VU)NTI_LT(x1[u], lane);   // carries into the high word
        x1[u] = x1[u] + k1;
    }
    NTI_K(nti_threefry_group)(x0, x1, 0, k1, k2 + 1);
    NTI_K(nti_threefry_group)(x0, x1, 1, k2, k0 + 2);
    NTI_K(nti_threefry_group)(x0, x1, 0, k0, k1 + 3);
    NTI_K(nti_threefry_group)(x0, x1, 1, k1, k2 + 4);
    NTI_K(nti_threefry_group)(x0, x1, 0, k2, k0 + 5);
}
static void NTI_K(nti_hash)(nt_key_value key, uint64_t first, size_t n, uint32_t *high, uint32_t *low) {
    const size_t block = (size_t)(NTI_HASH_VECTORS * NTI_W);
    uint32_t lanes[NTI_W];
    NTI_VU lane, x0[NTI_HASH_VECTORS], x1[NTI_HASH_VECTORS];
    for (uint32_t k = 0; k < (uint32_t)NTI_W; k++)
        lanes[k] = k;
    memcpy(&lane, lanes, sizeof lane);
    for (size_t i = 0; i < n; i += block) {
        NTI_K(nti_hash_block)(key, first + i, lane, x0, x1);
        if (!high)
            NTI_EACH_VECTOR x1[u] = x1[u] ^ x0[u];
        if (n - i >= block) {
            memcpy(low + i, x1, sizeof x1);
            if (high)
                memcpy(high + i, x0, sizeof x0);
        } else {
            memcpy(low + i, x1, (n - i) * sizeof *low);
            if (high)
                memcpy(high + i, x0, (n - i) * sizeof *high);
        }
    }
}
#undef NTI_EACH_VECTOR
#undef NTI_HASH_VECTORS
#endif

static void NTI_K(nti_uniform)(void *bits, size_t n, double lo, double hi) {
    const NTI_V low = NTI_SPLAT(lo), span = NTI_SPLAT((NTI_T)hi - (NTI_T)lo);
    NTI_T *to = (NTI_T *)bits;
    for (size_t i = 0; i < n; i += (size_t)NTI_W) {
        NTI_VU b = (NTI_VU)NTI_INT(NTI_K(nti_load_some)(to + i, n - i));
#if NTI_F64
        b = (b >> 12) | 0x3ff0000000000000u;
#else
        b = (b >> 9) | 0x3f800000u;
#endif
        // rounded once with or without FMA: near zero a second rounding would be many ulp
        NTI_V f = NTI_FLOAT((NTI_VI)b) - (NTI_T)1, p = f * span, v = p + low;
        v = v + (NTI_K(nti_sum_error)(p, low, v) + NTI_K(nti_product_error)(f, span, p));
        NTI_K(nti_store_some)(to + i, NTI_K(nti_most)(v, low), n - i);
    }
}

static const nti_random_table NTI_K(nti_random) = {
#if NTI_F64
    NULL,
#else
    NTI_K(nti_hash),
#endif
    NTI_K(nti_uniform)
};
#endif // NTI_PASS
#ifdef NTI_PASS
// >>product kernels
// The micro kernels, the packing of operands that cannot be read in place, and the product of one tile.

// The micro kernel is a macro over its rows because the accumulators must be named variables: compilers do not keep an
// array of vectors in registers at -O2.
#define NTI_ROW_NONE(...)
#if NTI_BYTES > 0
static NTI_INLINE NTI_V NTI_K(nti_spread)(NTI_T x) { NTI_V zero = { 0 }; return x - zero; }   // x + 0 would cost an addition (and -0)
#else
static NTI_INLINE NTI_V NTI_K(nti_spread)(NTI_T x) { return x; }
#endif
#define NTI_ROW_ZERO_1(i, p, q) NTI_V c##i##_0 = NTI_SPLAT(0);
#define NTI_ROW_ZERO_2(i, p, q) NTI_ROW_ZERO_1(i, p, q) NTI_V c##i##_1 = NTI_SPLAT(0);
#define NTI_ROW_LOAD_1(i, p, q) c##i##_0 = NTI_LOAD(c + i * rsc);
#define NTI_ROW_LOAD_2(i, p, q) NTI_ROW_LOAD_1(i, p, q) c##i##_1 = NTI_LOAD(c + i * rsc + NTI_W);
#define NTI_ROW_ADD_1(i, p, q) c##i##_0 = NTI_LOAD(c + i * rsc) + c##i##_0;
#define NTI_ROW_ADD_2(i, p, q) NTI_ROW_ADD_1(i, p, q) c##i##_1 = NTI_LOAD(c + i * rsc + NTI_W) + c##i##_1;
#define NTI_ROW_STORE_1(i, p, q) NTI_STORE(c + i * rsc, c##i##_0);
#define NTI_ROW_STORE_2(i, p, q) NTI_ROW_STORE_1(i, p, q) NTI_STORE(c + i * rsc + NTI_W, c##i##_1);
#define NTI_ROW_STEP_1(i, p, q) x = NTI_K(nti_spread)(a##p[q * rsa]); c##i##_0 = NTI_FMA(x, b0, c##i##_0);
#define NTI_ROW_STEP_2(i, p, q) NTI_ROW_STEP_1(i, p, q) c##i##_1 = NTI_FMA(x, b1, c##i##_1);
#define NTI_ROW_BEGIN(p, row) const NTI_T *a##p = a + row * rsa;
#define NTI_ROW_NEXT(p, row) a##p += csa;
#define NTI_PANEL_B_1 NTI_V b0 = NTI_LOAD(b), x;
#define NTI_PANEL_B_2 NTI_PANEL_B_1 NTI_V b1 = NTI_LOAD(b + NTI_W);

#define NTI_PANEL_KERNEL(R, V)                                                                            \
    static void NTI_K(nti_panel_##R##x##V)(const nti_panel *g) {                                          \
        NTI_T *c = (NTI_T *)g->c;                                                                         \
        const int64_t rsa = g->rsa, csa = g->csa, rsb = g->rsb, rsc = g->rsc;                             \
        const nti_run *run = g->run, *end = run + g->runs;                                                \
        NTI_ROWS_##R(NTI_ROW_ZERO_##V, NTI_ROW_NONE)                                                      \
        if (g->mode == NTI_PANEL_CONTINUE) { NTI_ROWS_##R(NTI_ROW_LOAD_##V, NTI_ROW_NONE) }               \
        for (; run < end; run++) {                                                                        \
            const NTI_T *a = (const NTI_T *)g->a + run->a, *b = (const NTI_T *)g->b + run->b;             \
            NTI_ROWS_##R(NTI_ROW_NONE, NTI_ROW_BEGIN)                                                     \
            for (int64_t k = run->n; k > 0; k--) {                                                        \
                NTI_PANEL_B_##V                                                                           \
                NTI_ROWS_##R(NTI_ROW_STEP_##V, NTI_ROW_NONE)                                              \
                NTI_ROWS_##R(NTI_ROW_NONE, NTI_ROW_NEXT)                                                  \
                b += rsb;                                                                                 \
            }                                                                                             \
        }                                                                                                 \
        if (g->mode == NTI_PANEL_ADD) { NTI_ROWS_##R(NTI_ROW_ADD_##V, NTI_ROW_NONE) }                     \
        NTI_ROWS_##R(NTI_ROW_STORE_##V, NTI_ROW_NONE)                                                     \
    }
#define NTI_PANEL_KERNELS(R) NTI_PANEL_KERNEL(R, 1) NTI_PANEL_KERNEL(R, 2)
#define NTI_PANEL_NAMES(R) { NTI_K(nti_panel_##R##x1), NTI_K(nti_panel_##R##x2) }

NTI_PANEL_KERNELS(1)
NTI_PANEL_KERNELS(2)
NTI_PANEL_KERNELS(3)
NTI_PANEL_KERNELS(4)
NTI_PANEL_KERNELS(5)
NTI_PANEL_KERNELS(6)
#undef NTI_PANEL_ROWS
#if NTI_ISA == 3
NTI_PANEL_KERNELS(7)
NTI_PANEL_KERNELS(8)
NTI_PANEL_KERNELS(9)
NTI_PANEL_KERNELS(10)
NTI_PANEL_KERNELS(11)
NTI_PANEL_KERNELS(12)
NTI_PANEL_KERNELS(13)
NTI_PANEL_KERNELS(14)
#define NTI_PANEL_ROWS 14
#else
#define NTI_PANEL_ROWS 6
#endif
static void (*const NTI_K(nti_panel_kernel)[NTI_PANEL_ROWS][2])(const nti_panel *g) = {
    NTI_PANEL_NAMES(1), NTI_PANEL_NAMES(2), NTI_PANEL_NAMES(3), NTI_PANEL_NAMES(4), NTI_PANEL_NAMES(5), NTI_PANEL_NAMES(6),
#if NTI_ISA == 3
    NTI_PANEL_NAMES(7), NTI_PANEL_NAMES(8), NTI_PANEL_NAMES(9), NTI_PANEL_NAMES(10), NTI_PANEL_NAMES(11), NTI_PANEL_NAMES(12),
    NTI_PANEL_NAMES(13), NTI_PANEL_NAMES(14)
#endif
};

// Lane by lane instead of row by column: c[j] is the sum of a[j] b[j] over the runs.
#define NTI_LANES_1(X) X(0)
#define NTI_LANES_4(X) X(0) X(1) X(2) X(3)
#define NTI_LANE_ZERO(v) NTI_V s##v = NTI_SPLAT(0);
#define NTI_LANE_LOAD(v) s##v = NTI_LOAD(c + v * NTI_W);
#define NTI_LANE_STEP(v) s##v = NTI_FMA(NTI_LOAD(a + v * NTI_W), NTI_LOAD(b + v * NTI_W), s##v);
#define NTI_LANE_ADD(v) s##v = NTI_LOAD(c + v * NTI_W) + s##v;
#define NTI_LANE_STORE(v) NTI_STORE(to + v * NTI_W, s##v);
#define NTI_LANES_KERNEL(V)                                                                                \
    static void NTI_K(nti_depth_lanes_##V)(const nti_panel *g, int64_t at, NTI_T *to) {                          \
        const NTI_T *c = (const NTI_T *)g->c + at;                                                         \
        NTI_LANES_##V(NTI_LANE_ZERO)                                                                       \
        if (g->mode == NTI_PANEL_CONTINUE) { NTI_LANES_##V(NTI_LANE_LOAD) }                                \
        for (const nti_run *run = g->run; run < g->run + g->runs; run++) {                                 \
            const NTI_T *a = (const NTI_T *)g->a + run->a + at, *b = (const NTI_T *)g->b + run->b + at;    \
            for (int64_t k = run->n; k > 0; k--) {                                                         \
                NTI_LANES_##V(NTI_LANE_STEP)                                                               \
                a += g->csa;                                                                               \
                b += g->rsb;                                                                               \
            }                                                                                              \
        }                                                                                                  \
        if (g->mode == NTI_PANEL_ADD) { NTI_LANES_##V(NTI_LANE_ADD) }                                      \
        NTI_LANES_##V(NTI_LANE_STORE)                                                                      \
    }
NTI_LANES_KERNEL(1)
NTI_LANES_KERNEL(4)

static void NTI_K(nti_depth_lanes_scalar)(const nti_panel *g, int64_t n) {
    NTI_T *c = (NTI_T *)g->c;
    for (int64_t j = 0; j < n; j++) {
        NTI_T sum = g->mode == NTI_PANEL_CONTINUE ? c[j] : 0;
        for (const nti_run *run = g->run; run < g->run + g->runs; run++) {
            const NTI_T *a = (const NTI_T *)g->a + run->a + j, *b = (const NTI_T *)g->b + run->b + j;
            for (int64_t k = 0; k < run->n; k++) sum = NTI_FMA1(a[k * g->csa], b[k * g->rsb], sum);
        }
        c[j] = g->mode == NTI_PANEL_ADD ? c[j] + sum : sum;
    }
}

static void NTI_K(nti_depth_lanes)(const nti_panel *g, int64_t n) {
    NTI_T *c = (NTI_T *)g->c, last[NTI_W];
    int64_t j = 0, rest = n % NTI_W;
    if (n < NTI_W) {
        NTI_K(nti_depth_lanes_scalar)(g, n);
        return;
    }
    if (rest) NTI_K(nti_depth_lanes_1)(g, n - NTI_W, last);   // overlaps its neighbour, so it reads C first and is stored last
    for (; j + 4 * NTI_W <= n; j += 4 * NTI_W) NTI_K(nti_depth_lanes_4)(g, j, c + j);
    for (; j + NTI_W <= n; j += NTI_W) NTI_K(nti_depth_lanes_1)(g, j, c + j);
    if (rest) memcpy(c + n - rest, last + NTI_W - rest, (size_t)rest * sizeof(NTI_T));
}

// m rows of C by a panel of `vectors` vectors, in groups of nearly equal height: a small last group would starve the multipliers.
static void NTI_K(nti_panel_rows)(nti_panel *g, int64_t m, int vectors) {
    const NTI_T *a = (const NTI_T *)g->a;
    NTI_T *c = (NTI_T *)g->c;
    int64_t groups = (m + NTI_PANEL_ROWS - 1) / NTI_PANEL_ROWS;
    for (int64_t k = 0, i = 0; k < groups; k++) {
        int64_t rows = (m - i + groups - k - 1) / (groups - k);
        g->a = a + i * g->rsa;
        g->c = c + i * g->rsc;
        NTI_K(nti_panel_kernel)[rows - 1][vectors - 1](g);
        i += rows;
    }
    g->a = a;
    g->c = c;
}

// n < 2 * NTI_PANEL_BYTES / sizeof(NTI_T) contiguous elements; the few fixed sizes become plain vector moves
static NTI_INLINE void NTI_K(nti_copy_few)(NTI_T *to, const NTI_T *from, int64_t n) {
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) memcpy(to + i, from + i, 16 * sizeof(NTI_T));
    if (n & 8) { memcpy(to + i, from + i, 8 * sizeof(NTI_T)); i += 8; }
    if (n & 4) { memcpy(to + i, from + i, 4 * sizeof(NTI_T)); i += 4; }
    if (n & 2) { memcpy(to + i, from + i, 2 * sizeof(NTI_T)); i += 2; }
    if (n & 1) to[i] = from[i];
}

// to[k * width + j] = from[k + j * stride] for NTI_BLOCK_K times NTI_BLOCK_J elements: rows are read in 16 bytes, and those
// of a second half lie beside the first where vectors are wider, so that all shuffles stay within 16 bytes.
#undef NTI_BLOCK_BYTES
#if NTI_BYTES >= 32
#define NTI_BLOCK_BYTES 32
#else
#define NTI_BLOCK_BYTES 16
#endif
#define NTI_BLOCK_K ((int)(16 / sizeof(NTI_T)))
#define NTI_BLOCK_J ((int)(NTI_BLOCK_BYTES / sizeof(NTI_T)))
#if NTI_BYTES > 0
typedef NTI_T NTI_K(nti_half) __attribute__((vector_size(16)));
typedef NTI_T NTI_K(nti_block) __attribute__((vector_size(NTI_BLOCK_BYTES)));
typedef NTI_I NTI_K(nti_block_mask) __attribute__((vector_size(NTI_BLOCK_BYTES)));
#if defined(__clang__) || __GNUC__ >= 12
#define NTI_SHUFFLE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define NTI_SHUFFLE(a, b, ...) __builtin_shuffle(a, b, __extension__ (NTI_K(nti_block_mask)){ __VA_ARGS__ })
#endif
#undef NTI_LOW
#undef NTI_HIGH
#undef NTI_LOW_PAIRS
#undef NTI_HIGH_PAIRS
#if NTI_F64 && NTI_BYTES >= 32
#define NTI_LOW(a, b) NTI_SHUFFLE(a, b, 0, 4, 2, 6)
#define NTI_HIGH(a, b) NTI_SHUFFLE(a, b, 1, 5, 3, 7)
#elif NTI_F64
#define NTI_LOW(a, b) NTI_SHUFFLE(a, b, 0, 2)
#define NTI_HIGH(a, b) NTI_SHUFFLE(a, b, 1, 3)
#elif NTI_BYTES >= 32
#define NTI_LOW(a, b) NTI_SHUFFLE(a, b, 0, 8, 1, 9, 4, 12, 5, 13)
#define NTI_HIGH(a, b) NTI_SHUFFLE(a, b, 2, 10, 3, 11, 6, 14, 7, 15)
#define NTI_LOW_PAIRS(a, b) NTI_SHUFFLE(a, b, 0, 1, 8, 9, 4, 5, 12, 13)
#define NTI_HIGH_PAIRS(a, b) NTI_SHUFFLE(a, b, 2, 3, 10, 11, 6, 7, 14, 15)
#else
#define NTI_LOW(a, b) NTI_SHUFFLE(a, b, 0, 4, 1, 5)
#define NTI_HIGH(a, b) NTI_SHUFFLE(a, b, 2, 6, 3, 7)
#define NTI_LOW_PAIRS(a, b) NTI_SHUFFLE(a, b, 0, 1, 4, 5)
#define NTI_HIGH_PAIRS(a, b) NTI_SHUFFLE(a, b, 2, 3, 6, 7)
#endif
static NTI_INLINE NTI_K(nti_block) NTI_K(nti_block_load)(const NTI_T *p, int64_t second) {
#if NTI_BYTES >= 32 && NTI_F64
    return (NTI_K(nti_block))_mm256_insertf128_pd(_mm256_castpd128_pd256(_mm_loadu_pd(p)), _mm_loadu_pd(p + second), 1);
#elif NTI_BYTES >= 32
    return (NTI_K(nti_block))_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(p)), _mm_loadu_ps(p + second), 1);
#else
    NTI_K(nti_block) v;
    (void)second;
    memcpy(&v, p, sizeof v);
    return v;
#endif
}
static NTI_INLINE void NTI_K(nti_block_store)(NTI_T *p, NTI_K(nti_block) v) { memcpy(p, &v, sizeof v); }
static NTI_INLINE void NTI_K(nti_transpose_block)(NTI_T *to, int64_t width, const NTI_T *from, int64_t stride) {
    int64_t half = NTI_BLOCK_K * stride;
    NTI_K(nti_block) r0 = NTI_K(nti_block_load)(from, half), r1 = NTI_K(nti_block_load)(from + stride, half);
#if NTI_F64
    NTI_K(nti_block_store)(to, NTI_LOW(r0, r1));
    NTI_K(nti_block_store)(to + width, NTI_HIGH(r0, r1));
#else
    NTI_K(nti_block) r2 = NTI_K(nti_block_load)(from + 2 * stride, half), r3 = NTI_K(nti_block_load)(from + 3 * stride, half);
    NTI_K(nti_block) t0 = NTI_LOW(r0, r1), t1 = NTI_HIGH(r0, r1), t2 = NTI_LOW(r2, r3), t3 = NTI_HIGH(r2, r3);
    NTI_K(nti_block_store)(to, NTI_LOW_PAIRS(t0, t2));
    NTI_K(nti_block_store)(to + width, NTI_HIGH_PAIRS(t0, t2));
    NTI_K(nti_block_store)(to + 2 * width, NTI_LOW_PAIRS(t1, t3));
    NTI_K(nti_block_store)(to + 3 * width, NTI_HIGH_PAIRS(t1, t3));
#endif
}
#else
static NTI_INLINE void NTI_K(nti_transpose_block)(NTI_T *to, int64_t width, const NTI_T *from, int64_t stride) {
    for (int k = 0; k < NTI_BLOCK_K; k++) {
        for (int j = 0; j < NTI_BLOCK_J; j++) to[k * width + j] = from[k + j * stride];
    }
}
#endif

// to[i * width + j] = from[i * rs + j * cs]
static void NTI_K(nti_pack)(NTI_T *to, int64_t width, const NTI_T *from, int64_t k, int64_t n, int64_t rs, int64_t cs) {
    if (cs == 1) {
        for (int64_t i = 0; i < k; i++) {
            for (int64_t j = 0; j < n; j += 64 / (int64_t)sizeof(NTI_T)) NTI_PREFETCH(from + (i + 12) * rs + j);
            NTI_K(nti_copy_few)(to + i * width, from + i * rs, n);
        }
        return;
    }
    int64_t k4 = rs == 1 ? k / NTI_BLOCK_K * NTI_BLOCK_K : 0, n4 = n / NTI_BLOCK_J * NTI_BLOCK_J;
    for (int64_t first = 0; first < k4; first += 64) {   // what is read and written of a part stays in the first-level cache
        for (int64_t j = 0; j < n4; j += NTI_BLOCK_J) {
            for (int64_t i = first; i < nti_min(first + 64, k4); i += NTI_BLOCK_K) {
                NTI_K(nti_transpose_block)(to + i * width + j, width, from + i + j * cs, cs);
            }
        }
    }
    for (int64_t j = 0; j < n; j++) {
        for (int64_t i = j < n4 ? k4 : 0; i < k; i++) to[i * width + j] = from[i * rs + j * cs];
    }
}

// A panel of B, k rows of `width` elements of which the first n exist; the others are zero.
static void NTI_K(nti_pack_panel)(NTI_T *to, int64_t width, const NTI_T *from, int64_t k, int64_t n, int64_t rs, int64_t cs) {
    if (n < width) memset(to, 0, (size_t)(k * width) * sizeof(NTI_T));
    NTI_K(nti_pack)(to, width, from, k, n, rs, cs);
}

// A block of A in scratch, its contiguous direction kept; *rs and *cs become the strides in scratch.
static void NTI_K(nti_pack_block)(NTI_T *to, const NTI_T *from, int64_t m, int64_t k, int64_t *rs, int64_t *cs) {
    int by_column = *rs == 1 && *cs != 1;
    int64_t lines = by_column ? k : m, length = by_column ? m : k, step = by_column ? *cs : *rs, within = by_column ? *rs : *cs;
    int64_t pitch = nti_gemm_pitch(length);
    for (int64_t i = 0; i < lines; i++) {
        if (within == 1) memcpy(to + i * pitch, from + i * step, (size_t)length * sizeof(NTI_T));
        else for (int64_t j = 0; j < length; j++) to[i * pitch + j] = from[i * step + j * within];
    }
    *rs = by_column ? 1 : pitch;
    *cs = by_column ? pitch : 1;
}

// C (m, n) = or += the packed sums t, whose rows are `width` apart
static void NTI_K(nti_unpack)(NTI_T *c, int64_t rs, int64_t cs, int accumulate, const NTI_T *t, int64_t width, int64_t m, int64_t n) {
    int64_t blocks = rs == 1 && cs != 1 && !accumulate ? m / NTI_BLOCK_J * NTI_BLOCK_J : 0, n4 = n / NTI_BLOCK_K * NTI_BLOCK_K;
    for (int64_t i = 0; i < blocks; i += NTI_BLOCK_J) {
        for (int64_t j = 0; j < n4; j += NTI_BLOCK_K) NTI_K(nti_transpose_block)(c + i + j * cs, cs, t + i * width + j, width);
    }
    for (int64_t i = 0; i < m; i++, c += rs, t += width) {
        if (accumulate) for (int64_t j = 0; j < n; j++) c[j * cs] += t[j];
        else if (cs == 1) NTI_K(nti_copy_few)(c, t, n);
        else for (int64_t j = i < blocks ? n4 : 0; j < n; j++) c[j * cs] = t[j];
    }
}

// One panel of columns for one slab of k: where B and C cannot be used in place they go through scratch.
static void NTI_K(nti_product_panel)(const nti_gemm *g, nti_panel *p, int64_t column, int64_t first, int64_t k, NTI_T *packed,
                                     NTI_T *sums) {
    int64_t n = g->n - column < 2 * NTI_W ? g->n - column : 2 * NTI_W;
    int vectors = n > NTI_W ? 2 : 1;
    int64_t width = vectors * NTI_W;
    p->b = (const NTI_T *)g->b + first * g->rsb + column * g->csb;
    p->rsb = g->rsb;
    if (g->csb != 1 || g->pack_b || n < width) {
        NTI_K(nti_pack_panel)(packed, width, (const NTI_T *)p->b, k, n, g->rsb, g->csb);
        p->b = packed;
        p->rsb = width;
    }
    int direct = g->csc == 1 && n == width && !(g->accumulate && k < g->k);
    if (!direct && k < g->k && nti_gemm_keeps_sums(g)) sums += g->m * column;
    p->c = direct ? (NTI_T *)g->c + column : sums;
    p->rsc = direct ? g->rsc : width;
    p->mode = first > 0 ? NTI_PANEL_CONTINUE : direct && g->accumulate ? NTI_PANEL_ADD : NTI_PANEL_STORE;
    NTI_K(nti_panel_rows)(p, g->m, vectors);
    if (direct || first + k < g->k) return;
    NTI_K(nti_unpack)((NTI_T *)g->c + column * g->csc, g->rsc, g->csc, g->accumulate, sums, width, g->m, n);
}

static void NTI_K(nti_product)(const nti_gemm *g, void *scratch) {
    nti_gemm_room room = nti_gemm_scratch(g, sizeof(NTI_T));
    NTI_T *block = (NTI_T *)scratch, *packed = block + room.block, *sums = packed + room.panel;
    int64_t slabs = nti_gemm_slabs(g);
    for (int64_t s = 0, first = 0; s < slabs; s++) {
        int64_t k = (g->k - first + slabs - s - 1) / (slabs - s);
        nti_run run = { 0, 0, k };
        nti_panel p = { &run, 1, (const NTI_T *)g->a + first * g->csa, NULL, NULL, g->rsa, g->csa, 0, 0, 0 };
        if (g->pack_a) {
            NTI_K(nti_pack_block)(block, (const NTI_T *)p.a, g->m, k, &p.rsa, &p.csa);
            p.a = block;
        }
        for (int64_t j = 0; j < g->n; j += 2 * NTI_W) NTI_K(nti_product_panel)(g, &p, j, first, k, packed, sums);
        first += k;
    }
}
#endif // NTI_PASS
#ifdef NTI_PASS
// >>convolution kernels
// Convolutions as products that are never laid out: for one row of outputs the micro kernel walks over the taps, and the
// rows of A are pixels of the image at a constant distance. Only where taps leave the image is the part that a tile needs
// copied into scratch with a border of zeros.

// pixels first .. first + count of a row of the image; those outside are zeros
static void NTI_K(nti_conv_copy_row)(const nti_conv *v, NTI_T *to, const NTI_T *row, int64_t first, int64_t count) {
    int64_t size = v->axis[2].in, channels = v->channels, pitch = v->in_pitch;
    int64_t begin = nti_min(nti_max(0, -first), count), end = nti_max(begin, nti_min(count, size - first));
    size_t one = (size_t)channels * sizeof(NTI_T);
    if (!one || !count) return;
    memset(to, 0, (size_t)begin * one);
    if (channels == pitch && end > begin) memcpy(to + begin * channels, row + (first + begin) * pitch, (size_t)(end - begin) * one);
    else for (int64_t i = begin; i < end; i++) memcpy(to + i * channels, row + (first + i) * pitch, one);
    memset(to + end * channels, 0, (size_t)(count - end) * one);
}

// The part of one image that a tile needs, with zeros around it.
static void NTI_K(nti_conv_copy)(const nti_conv *v, const nti_conv_tile *t, const NTI_T *image, NTI_T *to) {
    const nti_conv_axis *a = v->axis;
    const nti_conv_part *p = t->part;
    int64_t row = p[2].extent * v->channels;
    for (int64_t i = 0; i < p[0].extent * p[1].extent; i++, to += row) {
        int64_t y = p[0].base + i / p[1].extent, z = p[1].base + i % p[1].extent;
        if (y < 0 || y >= a[0].in || z < 0 || z >= a[1].in) memset(to, 0, (size_t)row * sizeof(NTI_T));
        else NTI_K(nti_conv_copy_row)(v, to, image + (y * a[1].in + z) * a[2].in * v->in_pitch, p[2].base, p[2].extent);
    }
}

// Each row of outputs of one image for a panel of n columns; `sums` is NULL where the panel is computed in place.
static void NTI_K(nti_conv_image)(const nti_conv *v, const nti_conv_tile *t, nti_panel *g, int64_t n, const NTI_T *a, NTI_T *out,
                                  NTI_T *sums) {
    const nti_conv_part *p = t->part;
    int64_t width = n > NTI_W ? 2 * NTI_W : NTI_W;
    for (int64_t row = 0; row < p[0].count * p[1].count; row++) {
        int64_t i = row / p[1].count, j = row % p[1].count;
        NTI_T *c = out + nti_conv_output(v, p, i, j) * v->out_pitch;
        g->a = a + i * v->axis[0].step * t->pitch[0] + j * v->axis[1].step * t->pitch[1];
        g->c = sums ? sums : c;
        NTI_K(nti_panel_rows)(g, p[2].count, n > NTI_W ? 2 : 1);
        if (sums) NTI_K(nti_unpack)(c, p[2].move * v->out_pitch, 1, v->accumulate, sums, width, p[2].count, n);
    }
}

// One panel of columns of a tile
static void NTI_K(nti_conv_columns)(const nti_conv *v, const nti_conv_tile *t, int64_t column, int64_t n, void *scratch) {
    nti_run *run = (nti_run *)scratch;
    NTI_T *slab = (NTI_T *)nti_conv_after_runs(v, scratch), *packed = slab + v->slab, *sums = packed + v->panel;
    const NTI_T *w = (const NTI_T *)v->w + t->group * v->wg + column * v->wn;
    int64_t width = n > NTI_W ? 2 * NTI_W : NTI_W, runs = nti_conv_taps(v, t->part, t->pitch, run);
    int pack = v->wn != 1 || n < width;
    nti_panel g;
    for (int64_t i = 0; pack && i < runs; i++) {
        NTI_K(nti_pack_panel)(packed + i * v->channels * width, width, w + run[i].b, v->channels, n, v->wk, v->wn);
        run[i].b = i * v->channels * width;
    }
    if (n == width) sums = NULL;
    memset(&g, 0, sizeof g);
    g.run = run;
    g.runs = nti_conv_join_runs(run, runs, pack ? width : v->wk);
    g.b = pack ? packed : w;
    g.rsa = v->axis[2].step * t->pitch[2];
    g.csa = 1;
    g.rsb = pack ? width : v->wk;
    g.rsc = sums ? width : t->part[2].move * v->out_pitch;
    g.mode = v->accumulate && !sums ? NTI_PANEL_ADD : NTI_PANEL_STORE;
    for (int64_t i = t->image; i < t->image + t->images; i++) {
        const NTI_T *from = (const NTI_T *)v->x + i * v->in_image + t->group * v->channels;
        if (!t->inside) NTI_K(nti_conv_copy)(v, t, from, slab);
        NTI_T *out = (NTI_T *)v->out + i * v->out_image + t->group * v->columns + column;
        NTI_K(nti_conv_image)(v, t, &g, n, t->inside ? from + t->inside_offset : slab, out, sums);
    }
}

// Few columns: one output channel is one row of the product and the vectors go along a row of pixels, which needs the image
// with its channels apart.
static void NTI_K(nti_conv_copy_apart)(const nti_conv *v, const nti_conv_tile *t, const NTI_T *image, int64_t plane, NTI_T *to) {
    const nti_conv_axis *a = v->axis;
    const nti_conv_part *p = t->part;
    int64_t skip = nti_min(nti_max(0, -p[2].base), p[2].extent), end = nti_max(skip, nti_min(p[2].extent, a[2].in - p[2].base));
    memset(to, 0, (size_t)(plane * v->channels) * sizeof(NTI_T));
    for (int64_t i = 0; i < p[0].extent * p[1].extent; i++) {
        int64_t y = p[0].base + i / p[1].extent, z = p[1].base + i % p[1].extent;
        if (y < 0 || y >= a[0].in || z < 0 || z >= a[1].in) continue;
        const NTI_T *from = image + ((y * a[1].in + z) * a[2].in + p[2].base + skip) * v->in_pitch;
        NTI_K(nti_pack)(to + i * p[2].extent + skip, plane, from, v->channels, end - skip, 1, v->in_pitch);
    }
}

static void NTI_K(nti_conv_across)(const nti_conv *v, const nti_conv_tile *t, void *scratch) {
    const nti_conv_part *p = t->part;
    nti_run *run = (nti_run *)scratch;
    NTI_T *slab = (NTI_T *)nti_conv_after_runs(v, scratch), *sums = slab + v->slab;
    int64_t line = p[2].extent, pitch[3] = { p[1].extent * line, line, 1 }, plane = nti_gemm_pitch(p[0].extent * pitch[0]);
    int64_t runs = nti_conv_taps(v, p, pitch, run), pixels = p[0].count * p[1].count * p[2].count, step = p[2].move * v->out_pitch;
    nti_panel g = { run, runs, (const NTI_T *)v->w + t->group * v->wg, NULL, sums, v->wn, v->wk, plane, 0, NTI_PANEL_STORE };
    for (int64_t i = 0; i < runs; i++) nti_gemm_swap(&run[i].a, &run[i].b);
    for (int64_t image = t->image; pixels > 0 && image < t->image + t->images; image++) {
        NTI_T *out = (NTI_T *)v->out + image * v->out_image + t->group * v->columns;
        NTI_K(nti_conv_copy_apart)(v, t, (const NTI_T *)v->x + image * v->in_image + t->group * v->channels, plane, slab);
        for (int64_t i = 0; i < p[0].count * p[1].count; i++) {
            int64_t y = i / p[1].count, z = i % p[1].count;
            NTI_T *c = out + nti_conv_output(v, p, y, z) * v->out_pitch;
            for (int64_t j = 0; j < p[2].count; j += 2 * NTI_W) {
                int64_t n = nti_min(p[2].count - j, 2 * NTI_W);
                g.b = slab + y * v->axis[0].step * pitch[0] + z * v->axis[1].step * line + j;
                g.rsc = n > NTI_W ? 2 * NTI_W : NTI_W;
                NTI_K(nti_panel_rows)(&g, v->columns, n > NTI_W ? 2 : 1);
                NTI_K(nti_unpack)(c + j * step, 1, step, v->accumulate, sums, g.rsc, v->columns, n);
            }
        }
    }
}

// Depthwise: channels are lanes. Taps that leave the image are left out, so the list of runs is made anew near borders.
static void NTI_K(nti_conv_depthwise)(const nti_conv *v, const nti_conv_tile *t, void *scratch) {
    const nti_conv_axis *a = v->axis;
    const nti_conv_part *p = t->part;
    nti_run *run = (nti_run *)scratch;
    int64_t move = a[2].tap_move, wt = v->flip ? -v->wt : v->wt;
    int mode = v->accumulate ? NTI_PANEL_ADD : NTI_PANEL_STORE;
    nti_panel g = { run, 0, NULL, (const NTI_T *)v->w + t->column, NULL, 0, move * v->in_pitch, a[2].tap_step * wt, 0, mode };
    for (int64_t row = 0; row < t->images * p[0].count * p[1].count; row++) {
        int64_t image = t->image + row / p[1].count / p[0].count, y = row / p[1].count % p[0].count, z = row % p[1].count;
        int64_t was_first = -1, was_end = -1;
        const NTI_T *x = (const NTI_T *)v->x + image * v->in_image + t->column;
        NTI_T *c = (NTI_T *)v->out + image * v->out_image + nti_conv_output(v, p, y, z) * v->out_pitch + t->column;
        for (int64_t j = 0; j < p[2].count; j++, c += p[2].move * v->out_pitch) {
            int64_t at = p[2].base + j * a[2].step, first = at < 0 ? (-at + move - 1) / move : 0;
            int64_t end = at < a[2].in ? nti_min(p[2].taps, (a[2].in - at + move - 1) / move) : 0;
            if (first >= end) first = end = 0;
            if (first != was_first || end != was_end) {
                g.runs = nti_conv_depthwise_runs(v, p, p[0].base + y * a[0].step, p[1].base + z * a[1].step, first, end - first, run);
            }
            was_first = first;
            was_end = end;
            g.a = x + at * v->in_pitch;
            g.c = c;
            NTI_K(nti_depth_lanes)(&g, t->columns);
        }
    }
}

static void NTI_K(nti_conv)(const nti_conv *v, int64_t tile, void *scratch) {
    nti_conv_tile t;
    int64_t phases = v->axis[0].phases * v->axis[1].phases * v->axis[2].phases;
    for (int64_t phase = 0; phase < phases; phase++) {
        if (!nti_conv_tile_of(v, tile, phase, &t)) continue;
        if (v->depthwise) NTI_K(nti_conv_depthwise)(v, &t, scratch);
        else if (v->across) NTI_K(nti_conv_across)(v, &t, scratch);
        else for (int64_t j = 0; j < t.columns; j += 2 * NTI_W) {
            NTI_K(nti_conv_columns)(v, &t, t.column + j, nti_min(t.columns - j, 2 * NTI_W), scratch);
        }
    }
}

// Lists the runs of a chunk for a tap group, pixels of the gradient `rsb` apart; copies the rows of the image if they need a border.
static int64_t NTI_K(nti_filter_runs)(const nti_filter *f, const nti_filter_tile *t, int64_t tap, int64_t rsb, nti_run *run, NTI_T *slab) {
    const nti_conv *v = &f->v;
    const nti_conv_axis *a = v->axis;
    int64_t t2 = f->merged ? 0 : tap % a[2].taps, t01 = f->merged ? tap : tap / a[2].taps, runs = 0, used = 0;
    for (int64_t u = t->chunk; u < t->chunk_end; u++) {
        int64_t row = u / f->segments, begin = nti_filter_pixel(f, u) - row * a[2].out, end = nti_filter_pixel(f, u + 1) - row * a[2].out;
        int64_t y = nti_conv_meet(&a[0], row / a[1].out % a[0].out, t01 / a[1].taps);
        int64_t z = nti_conv_meet(&a[1], row % a[1].out, t01 % a[1].taps);
        if (y < 0 || z < 0) continue;
        int64_t line = ((row / a[1].out / a[0].out * a[0].in + y) * a[1].in + z) * a[2].in * v->in_pitch, at = begin;
        if (f->copy) {
            int64_t extent = (end - begin - 1) * a[2].stride + a[2].taps;
            const NTI_T *from = (const NTI_T *)v->x + t->group * v->channels + line;
            NTI_K(nti_conv_copy_row)(v, slab + used, from, begin * a[2].stride - a[2].pad, extent);
            run[runs].a = used;
            run[runs].n = end - begin;
            used += extent * v->channels;
        } else {
            run[runs].n = nti_filter_run(&a[2], t2, begin, end, &at);
            if (run[runs].n == 0) continue;
            run[runs].a = line + (at * a[2].stride - a[2].pad + t2 * a[2].dilation) / a[2].lhs * v->in_pitch;
        }
        run[runs++].b = (row * a[2].out + at - t->pixel) * rsb;
    }
    return runs;
}

// One panel of columns for one chunk, all taps of the tile; the sums start at `sums`.
static void NTI_K(nti_filter_panel)(const nti_filter *f, const nti_filter_tile *t, int64_t column, int64_t n, NTI_T *sums, int64_t pitch,
                                    void *scratch) {
    const nti_conv *v = &f->v;
    const nti_conv_axis *a = &v->axis[2];
    NTI_T *slab = (NTI_T *)nti_conv_after_runs(v, scratch), *packed = slab + v->slab;
    nti_run *run = (nti_run *)scratch;
    int64_t width = n > NTI_W ? 2 * NTI_W : NTI_W, pixels = nti_filter_pixel(f, t->chunk_end) - t->pixel, rsb = v->out_pitch;
    const NTI_T *g = (const NTI_T *)v->w + t->pixel * rsb + t->group * v->columns + column;
    if (!v->depthwise && (n < width || NTI_FILTER_PACKS(rsb, sizeof(NTI_T)))) {
        NTI_K(nti_pack_panel)(packed, width, g, pixels, n, rsb, 1);
        g = packed;
        rsb = width;
    }
    const NTI_T *x = f->copy ? slab : (const NTI_T *)v->x + (v->depthwise ? column : t->group * v->channels);
    int mode = t->chunk > t->first ? NTI_PANEL_CONTINUE : NTI_PANEL_STORE;
    nti_panel p = { run, 0, x, g, NULL, 1, a->step * (f->copy ? v->channels : v->in_pitch), a->phases * rsb, pitch, mode };
    for (int64_t tap = t->tap; tap < t->tap_end; tap++) {
        p.runs = NTI_K(nti_filter_runs)(f, t, tap, rsb, run, slab);
        p.c = sums + (tap - t->tap) * f->rows * pitch;
        if (v->depthwise) NTI_K(nti_depth_lanes)(&p, n);
        else NTI_K(nti_panel_rows)(&p, f->rows, n > NTI_W ? 2 : 1);
    }
}

static void NTI_K(nti_filter)(const nti_filter *f, int64_t tile, void *shared, void *scratch) {
    const nti_conv *v = &f->v;
    nti_filter_tile t = nti_filter_tile_of(f, tile);
    int64_t pitch = v->out_pitch, wide = v->depthwise ? t.columns : 2 * NTI_W;
    NTI_T *out = (NTI_T *)v->out + t.tap * f->rows * pitch + t.group * v->columns + t.column, *sums = out;
    if (f->slabs > 1) {
        pitch = f->pitch;
        sums = (NTI_T *)shared + ((t.slab * v->groups + t.group) * f->tap_groups + t.tap) * f->rows * pitch + t.column;
    } else if (v->sums) {
        pitch = f->pitch;
        sums = (NTI_T *)nti_conv_after_runs(v, scratch) + v->slab + v->panel;
    }
    do {                                       // once even for no pixels: their sum is zero
        t.chunk_end = nti_min(t.chunk + f->chunk, t.end);
        t.pixel = nti_filter_pixel(f, t.chunk);
        for (int64_t j = 0; j < t.columns; j += wide) {
            NTI_K(nti_filter_panel)(f, &t, t.column + j, nti_min(t.columns - j, wide), sums + j, pitch, scratch);
        }
        t.chunk = t.chunk_end;
    } while (t.chunk < t.end);
    if (sums == out || f->slabs > 1) return;
    NTI_K(nti_unpack)(out, v->out_pitch, 1, v->accumulate, sums, pitch, (t.tap_end - t.tap) * f->rows, t.columns);
}

// Adds the partial sums of the slabs, in order; rows of partial sums are padded, so whole vectors can be read.
static void NTI_K(nti_filter_sum)(const nti_filter *f, int64_t tile, const void *shared) {
    const nti_conv *v = &f->v;
    int64_t one = f->tap_groups * f->rows, rows = v->groups * one, end = nti_share(rows, f->sum_blocks, tile + 1);
    for (int64_t r = nti_share(rows, f->sum_blocks, tile); r < end; r++) {
        const NTI_T *s = (const NTI_T *)shared + r * f->pitch;
        NTI_T *out = (NTI_T *)v->out + r % one * v->out_pitch + r / one * v->columns, last[NTI_W];
        for (int64_t j = 0; j < v->columns; j += NTI_W) {
            NTI_V sum = NTI_LOAD(s + j);
            for (int64_t k = 1; k < f->slabs; k++) sum += NTI_LOAD(s + k * rows * f->pitch + j);
            NTI_STORE(last, sum);
            NTI_K(nti_unpack)(out + j, 0, 1, v->accumulate, last, NTI_W, 1, nti_min(v->columns - j, NTI_W));
        }
    }
}

static const nti_gemm_table NTI_K(nti_gemm) = { NTI_K(nti_product), NTI_K(nti_conv), NTI_K(nti_filter), NTI_K(nti_filter_sum) };
#endif // NTI_PASS
#ifdef NTI_PASS
// >>row kernels of a pass
// Reductions, softmax, cross entropy, layer norm and pooling on contiguous rows: one nti_rows_table for each pass. Sums
// along a row go through nti_lanes, 16 elements at a time whatever the width of a vector; the end of a row is filled up
// with the neutral element. Relies on the vector mathematics of the pass.

#define NTI_LV (NTI_SUM_LANES / NTI_W)       // vectors of the lanes
#define NTI_EACH(l) for (int l = 0; l < NTI_LV; l++)
typedef struct NTI_K(nti_lanes) { NTI_V v[NTI_LV]; } NTI_K(nti_lanes);
#define NTI_LANES NTI_K(nti_lanes)
#define NTI_LANES_SPLAT NTI_K(nti_lanes_splat)

static NTI_INLINE NTI_LANES NTI_K(nti_lanes_splat)(NTI_T x) {
    NTI_LANES a;
    NTI_EACH(l) a.v[l] = NTI_SPLAT(x);
    return a;
}
// The first n (less than 16) elements of the lanes, `fill` in the others. AVX has masks for it.
#if NTI_ISA == 3 && NTI_F64
#define NTI_MASK(l) ((__mmask8)(((1u << n) - 1) >> (8 * (l))))
#define NTI_MASK_LOAD(l, p, fill) ((NTI_V)_mm512_mask_loadu_pd((__m512d)(fill), NTI_MASK(l), p))
#define NTI_MASK_STORE(l, p, v) _mm512_mask_storeu_pd(p, NTI_MASK(l), (__m512d)(v))
#elif NTI_ISA == 3
#define NTI_MASK(l) ((__mmask16)((1u << n) - 1))
#define NTI_MASK_LOAD(l, p, fill) ((NTI_V)_mm512_mask_loadu_ps((__m512)(fill), NTI_MASK(l), p))
#define NTI_MASK_STORE(l, p, v) _mm512_mask_storeu_ps(p, NTI_MASK(l), (__m512)(v))
#elif NTI_ISA == 2 && NTI_F64
#define NTI_MASK(l) _mm256_cmpgt_epi64(_mm256_set1_epi64x(n - 4 * (l)), _mm256_setr_epi64x(0, 1, 2, 3))
#define NTI_MASK_LOAD(l, p, fill) NTI_CHOOSE((NTI_VI)NTI_MASK(l), (NTI_V)_mm256_maskload_pd(p, NTI_MASK(l)), fill)
#define NTI_MASK_STORE(l, p, v) _mm256_maskstore_pd(p, NTI_MASK(l), (__m256d)(v))
#elif NTI_ISA == 2
#define NTI_MASK(l) _mm256_cmpgt_epi32(_mm256_set1_epi32((int)n - 8 * (l)), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7))
#define NTI_MASK_LOAD(l, p, fill) NTI_CHOOSE((NTI_VI)NTI_MASK(l), (NTI_V)_mm256_maskload_ps(p, NTI_MASK(l)), fill)
#define NTI_MASK_STORE(l, p, v) _mm256_maskstore_ps(p, NTI_MASK(l), (__m256)(v))
#endif
#ifdef NTI_MASK
static NTI_INLINE NTI_LANES NTI_K(nti_end_load)(const NTI_T *x, int64_t n, NTI_T fill) {
    NTI_LANES a = NTI_LANES_SPLAT(fill);
    NTI_EACH(l) a.v[l] = NTI_MASK_LOAD(l, x + l * NTI_W, a.v[l]);
    return a;
}
static NTI_INLINE void NTI_K(nti_end_store)(NTI_T *x, int64_t n, NTI_LANES a) {
    NTI_EACH(l) NTI_MASK_STORE(l, x + l * NTI_W, a.v[l]);
}
#else
static NTI_INLINE NTI_LANES NTI_K(nti_end_load)(const NTI_T *x, int64_t n, NTI_T fill) {
    NTI_LANES a;
    NTI_T end[NTI_SUM_LANES];
    for (int64_t l = 0; l < NTI_SUM_LANES; l++) end[l] = l < n ? x[l] : fill;
    NTI_EACH(l) a.v[l] = NTI_LOAD(end + l * NTI_W);
    return a;
}
static NTI_INLINE void NTI_K(nti_end_store)(NTI_T *x, int64_t n, NTI_LANES a) {
    NTI_T end[NTI_SUM_LANES];
    NTI_EACH(l) NTI_STORE(end + l * NTI_W, a.v[l]);
    for (int64_t l = 0; l < n; l++) x[l] = end[l];
}
#endif
// elements k to k + 15 of a row of n, `fill` behind its end
static NTI_INLINE NTI_LANES NTI_K(nti_lanes_at)(const NTI_T *x, int64_t k, int64_t n, NTI_T fill) {
    NTI_LANES a;
    if (k + NTI_SUM_LANES > n) return NTI_K(nti_end_load)(x + k, n - k, fill);
    NTI_EACH(l) a.v[l] = NTI_LOAD(x + k + l * NTI_W);
    return a;
}
static NTI_INLINE void NTI_K(nti_lanes_put)(NTI_T *x, int64_t k, int64_t n, NTI_LANES a) {
    if (k + NTI_SUM_LANES > n) {
        NTI_K(nti_end_store)(x + k, n - k, a);
        return;
    }
    NTI_EACH(l) NTI_STORE(x + k + l * NTI_W, a.v[l]);
}
static NTI_INLINE NTI_T NTI_K(nti_first)(NTI_V v) {
    NTI_T t[NTI_W];
    NTI_STORE(t, v);
    return t[0];
}
#define NTI_LANES_AT NTI_K(nti_lanes_at)
#define NTI_LANES_PUT NTI_K(nti_lanes_put)

// One step of a reduction, for vectors and for elements; kind is always a constant. A NaN wins over any number.
static NTI_INLINE NTI_V NTI_K(nti_join)(int kind, NTI_V a, NTI_V x) {
    if (kind == NTI_SUM) return a + x;
    if (kind == NTI_PROD) return a * x;
    NTI_VI better = kind == NTI_MAX ? NTI_LT(a, x) : NTI_LT(x, a);
    return NTI_CHOOSE(better | ~NTI_EQ(x, x), x, a);
}
static NTI_INLINE NTI_T NTI_K(nti_join1)(int kind, NTI_T a, NTI_T x) {
    if (kind == NTI_SUM) return a + x;
    if (kind == NTI_PROD) return a * x;
    int better = kind == NTI_MAX ? a < x : x < a;
    return better || !(x == x) ? x : a;
}
static NTI_INLINE NTI_T NTI_K(nti_neutral)(int kind) {
    if (kind == NTI_SUM) return 0;
    if (kind == NTI_PROD) return 1;
    return kind == NTI_MAX ? -(NTI_T)INFINITY : (NTI_T)INFINITY;
}
#define NTI_JOIN NTI_K(nti_join)

static NTI_INLINE NTI_T NTI_K(nti_tree)(int kind, NTI_LANES a) {
    NTI_T t[NTI_SUM_LANES];
    NTI_EACH(l) NTI_STORE(t + l * NTI_W, a.v[l]);
    for (int half = NTI_SUM_LANES / 2; half; half /= 2)
        for (int l = 0; l < half; l++) t[l] = NTI_K(nti_join1)(kind, t[l], t[l + half]);
    return t[0];
}
static NTI_INLINE NTI_T NTI_K(nti_run)(int kind, const NTI_T *x, int64_t n) {
    NTI_T neutral = NTI_K(nti_neutral)(kind);
    NTI_LANES a = NTI_LANES_SPLAT(neutral);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES e = NTI_LANES_AT(x, k, n, neutral);
        NTI_EACH(l) a.v[l] = NTI_JOIN(kind, a.v[l], e.v[l]);
    }
    return NTI_K(nti_tree)(kind, a);
}
// The same for NTI_W runs of at most 16 elements at once: a vector for each lane, the tree without the lanes that are empty.
static NTI_INLINE void NTI_K(nti_short_runs)(int kind, NTI_T *out, const NTI_T *x, int64_t step, int n) {
    NTI_T t[NTI_SUM_LANES * NTI_W];
    NTI_V neutral = NTI_SPLAT(NTI_K(nti_neutral)(kind));
    for (int i = 0; i < NTI_W; i++)
        for (int l = 0; l < n; l++) t[l * NTI_W + i] = x[i * step + l];
    for (int half = NTI_SUM_LANES / 2; half; half /= 2) {
        for (int l = 0; l < half && l + half < n; l++) {
            NTI_T *at = t + l * NTI_W;
            NTI_STORE(at, NTI_JOIN(kind, NTI_LOAD(at), NTI_LOAD(at + half * NTI_W)));
        }
    }
    NTI_STORE(out, NTI_JOIN(kind, neutral, NTI_LOAD(t)));
}
static NTI_INLINE void NTI_K(nti_runs)(int kind, NTI_T *out, const NTI_T *x, int64_t count, int64_t step, int64_t n) {
    int64_t i = 0;
    if (n > 0 && n <= NTI_SUM_LANES)
        for (; i + NTI_W <= count; i += NTI_W) NTI_K(nti_short_runs)(kind, out + i, x + i * step, step, (int)n);
    for (; i < count; i++) out[i] = NTI_K(nti_run)(kind, x + i * step, n);
}

// out (or nothing) and `rows` rows: a constant, so that the sum of a column stays in a register.
static NTI_INLINE NTI_V NTI_K(nti_column)(int kind, const NTI_T *out, const NTI_T *x, int rows, int64_t stride, int fresh) {
    NTI_V a = fresh ? NTI_SPLAT(NTI_K(nti_neutral)(kind)) : NTI_LOAD(out);
    for (int r = 0; r < rows; r++) a = NTI_JOIN(kind, a, NTI_LOAD(x + r * stride));
    return a;
}
// The last vector overlaps the one before: it is computed first, from what is in out now, and stored last.
static NTI_INLINE void NTI_K(nti_few_rows)(int kind, NTI_T *out, const NTI_T *x, int rows, int64_t stride, int64_t m, int fresh) {
    int64_t k = 0, last = m - NTI_W;
    if (last >= 0) {
        NTI_V end = NTI_K(nti_column)(kind, out + last, x + last, rows, stride, fresh);
        for (; k < last; k += NTI_W) NTI_STORE(out + k, NTI_K(nti_column)(kind, out + k, x + k, rows, stride, fresh));
        NTI_STORE(out + last, end);
        return;
    }
    for (; k < m; k++) {
        NTI_T a = fresh ? NTI_K(nti_neutral)(kind) : out[k];
        for (int r = 0; r < rows; r++) a = NTI_K(nti_join1)(kind, a, x[k + r * stride]);
        out[k] = a;
    }
}
static NTI_INLINE void NTI_K(nti_rows)(int kind, NTI_T *out, const NTI_T *x, int64_t rows, int64_t stride, int64_t m, int fresh) {
    if (rows == 0 && fresh) NTI_K(nti_few_rows)(kind, out, out, 0, 0, m, 1);
    for (; rows >= 8; rows -= 8, x += 8 * stride, fresh = 0) NTI_K(nti_few_rows)(kind, out, x, 8, stride, m, fresh);
    for (; rows >= 2; rows -= 2, x += 2 * stride, fresh = 0) NTI_K(nti_few_rows)(kind, out, x, 2, stride, m, fresh);
    if (rows == 1) NTI_K(nti_few_rows)(kind, out, x, 1, stride, m, fresh);
}

#define NTI_REDUCE_KERNELS(name, kind) \
    static void NTI_K(nti_runs_##name)(void *out, const void *x, int64_t count, int64_t step, int64_t n) { \
        NTI_K(nti_runs)(kind, (NTI_T *)out, (const NTI_T *)x, count, step, n); \
    } \
    static void NTI_K(nti_rows_##name)(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, int fresh) { \
        NTI_K(nti_rows)(kind, (NTI_T *)out, (const NTI_T *)x, rows, stride, m, fresh); \
    } \
    static void NTI_K(nti_lanes_##name)(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, void *work) { \
        int64_t wide = NTI_SUM_LANES * m, full = rows / NTI_SUM_LANES, rest = rows % NTI_SUM_LANES; \
        NTI_T *w = (NTI_T *)work; \
        const NTI_T *p = (const NTI_T *)x; \
        if (stride == m) { \
            NTI_K(nti_rows_##name)(w, p, full, wide, wide, 1); \
            NTI_K(nti_rows_##name)(w, p + full * wide, 1, 0, rest * m, 0); \
        } else { \
            for (int64_t l = 0; l < NTI_SUM_LANES; l++) \
                NTI_K(nti_rows_##name)(w + l * m, p + l * stride, full + (l < rest), NTI_SUM_LANES * stride, m, 1); \
        } \
        for (int half = NTI_SUM_LANES / 2; half; half /= 2) NTI_K(nti_rows_##name)(w, w + half * m, 1, 0, half * m, 0); \
        memcpy(out, w, (size_t)m * sizeof(NTI_T)); \
    }
NTI_REDUCE_KERNELS(sum, NTI_SUM)
NTI_REDUCE_KERNELS(prod, NTI_PROD)
NTI_REDUCE_KERNELS(max, NTI_MAX)
NTI_REDUCE_KERNELS(min, NTI_MIN)

static int64_t NTI_K(nti_find)(const void *data, int64_t n, const void *value) {
    const NTI_T *x = (const NTI_T *)data, v = *(const NTI_T *)value;
    int64_t k = 0;
    if (v == v) while (k < n && !(x[k] == v)) k++;
    else while (k < n && x[k] == x[k]) k++;
    return k;
}
// A few rows, the first of them number `first`: best holds the extreme of each column so far and index its row.
static NTI_INLINE void NTI_K(nti_arg_few)(NTI_T *best, NTI_I *index, const NTI_T *x, int64_t first, int rows, int64_t stride, int64_t m,
    int least) {
    int64_t k = 0;
    for (; k + NTI_W <= m; k += NTI_W) {
        NTI_V a = NTI_LOAD(best + k);
        NTI_VI i;
        memcpy(&i, index + k, sizeof i);
        for (int r = 0; r < rows; r++) {
            NTI_V e = NTI_LOAD(x + r * stride + k);
            NTI_VI better = (least ? NTI_LT(e, a) : NTI_LT(a, e)) | (~NTI_EQ(e, e) & NTI_EQ(a, a));
            i = (better & NTI_SPLATI(first + r)) | (~better & i);
            a = NTI_CHOOSE(better, e, a);
        }
        memcpy(index + k, &i, sizeof i);
        NTI_STORE(best + k, a);
    }
    for (; k < m; k++) {
        for (int r = 0; r < rows; r++) {
            NTI_T a = best[k], e = x[r * stride + k];
            if ((least ? e < a : a < e) || (!(e == e) && a == a)) best[k] = e, index[k] = (NTI_I)(first + r);
        }
    }
}
static void NTI_K(nti_arg_rows)(void *best, void *index, const void *x, int64_t first, int64_t rows, int64_t stride, int64_t m, int least) {
    const NTI_T *p = (const NTI_T *)x;
    if (first == 0 && rows > 0) {
        memcpy(best, p, (size_t)m * sizeof(NTI_T));
        memset(index, 0, (size_t)m * sizeof(NTI_I));
    }
    for (int64_t r = 0; r < rows; r += 8)
        NTI_K(nti_arg_few)((NTI_T *)best, (NTI_I *)index, p + r * stride, first + r, rows - r < 8 ? (int)(rows - r) : 8, stride, m, least);
}

// exp(x - max) of a row: its sum; stored in out unless that is NULL.
static NTI_INLINE NTI_T NTI_K(nti_exp_row)(NTI_T *out, const NTI_T *x, int64_t n, NTI_T max) {
    NTI_LANES s = NTI_LANES_SPLAT(0);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES e = NTI_LANES_AT(x, k, n, -(NTI_T)INFINITY);
        NTI_EACH(l) e.v[l] = NTI_K(nti_exp)(e.v[l] - max);
        NTI_EACH(l) s.v[l] = s.v[l] + e.v[l];
        if (out) NTI_LANES_PUT(out, k, n, e);
    }
    return NTI_K(nti_tree)(NTI_SUM, s);
}
static NTI_T NTI_K(nti_row_max)(const NTI_T *x, int64_t n) { return NTI_K(nti_run)(NTI_MAX, x, n); }
static NTI_T NTI_K(nti_row_exp)(NTI_T *out, const NTI_T *x, int64_t n, NTI_T max) { return NTI_K(nti_exp_row)(out, x, n, max); }
static NTI_T NTI_K(nti_row_exp_sum)(const NTI_T *x, int64_t n, NTI_T max) { return NTI_K(nti_exp_row)(NULL, x, n, max); }
static NTI_T NTI_K(nti_log1)(NTI_T x) { return NTI_K(nti_first)(NTI_K(nti_log)(NTI_SPLAT(x))); }

static void NTI_K(nti_softmax)(void *out, const void *x, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n;
        NTI_T *o = (NTI_T *)out + r * n, sum = NTI_K(nti_row_exp)(o, p, n, NTI_K(nti_row_max)(p, n));
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(o, k, n, 0);
            NTI_EACH(l) e.v[l] = e.v[l] / sum;
            NTI_LANES_PUT(o, k, n, e);
        }
    }
}
static void NTI_K(nti_log_softmax)(void *out, const void *x, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n;
        NTI_T *o = (NTI_T *)out + r * n, max = NTI_K(nti_row_max)(p, n), log = NTI_K(nti_log1)(NTI_K(nti_row_exp_sum)(p, n, max));
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, 0);
            NTI_EACH(l) e.v[l] = (e.v[l] - max) - log;
            NTI_LANES_PUT(o, k, n, e);
        }
    }
}
static NTI_T NTI_K(nti_row_sum)(const NTI_T *x, int64_t n) { return NTI_K(nti_run)(NTI_SUM, x, n); }
static NTI_T NTI_K(nti_row_dot)(const NTI_T *x, const NTI_T *y, int64_t n) {
    NTI_LANES s = NTI_LANES_SPLAT(0);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES a = NTI_LANES_AT(x, k, n, 0), b = NTI_LANES_AT(y, k, n, 0);
        NTI_EACH(l) s.v[l] = NTI_FMA(a.v[l], b.v[l], s.v[l]);
    }
    return NTI_K(nti_tree)(NTI_SUM, s);
}
static void NTI_K(nti_softmax_grad)(void *out, const void *y, const void *g, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *py = (const NTI_T *)y + r * n, *pg = (const NTI_T *)g + r * n;
        NTI_T *o = (NTI_T *)out + r * n, dot = NTI_K(nti_row_dot)(py, pg, n);
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES a = NTI_LANES_AT(py, k, n, 0), b = NTI_LANES_AT(pg, k, n, 0);
            NTI_EACH(l) a.v[l] = a.v[l] * (b.v[l] - dot);
            NTI_LANES_PUT(o, k, n, a);
        }
    }
}
static void NTI_K(nti_log_softmax_grad)(void *out, const void *y, const void *g, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *py = (const NTI_T *)y + r * n, *pg = (const NTI_T *)g + r * n;
        NTI_T *o = (NTI_T *)out + r * n, sum = NTI_K(nti_row_sum)(pg, n);
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES a = NTI_LANES_AT(py, k, n, 0), b = NTI_LANES_AT(pg, k, n, 0);
            NTI_EACH(l) a.v[l] = NTI_FMA(NTI_K(nti_exp)(a.v[l]), NTI_SPLAT(-sum), b.v[l]);
            NTI_LANES_PUT(o, k, n, a);
        }
    }
}

// The label of a row, or -1 where the row does not count.
static NTI_INLINE int64_t NTI_K(nti_label)(const nti_labels *l, int64_t row) {
    int64_t label = l->label[row];
    if (l->has_ignored && label == l->ignored) return -1;
    return label >= 0 && label < l->n ? label : -1;
}
// With target (1 - s) onehot + s / n and z = x - max: log(sum exp z) - (1 - s) z[label] - s mean(z).
static void NTI_K(nti_cross_entropy)(void *out, const void *x, const nti_labels *l) {
    int64_t n = l->n;
    NTI_T s = (NTI_T)l->smoothing, *o = (NTI_T *)out;
    for (int64_t r = 0; r < l->rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n;
        int64_t label = NTI_K(nti_label)(l, r);
        o[r] = 0;
        if (label < 0) continue;
        NTI_T max = NTI_K(nti_row_max)(p, n), log = NTI_K(nti_log1)(NTI_K(nti_row_exp_sum)(p, n, max));
        o[r] = log - (p[label] - max);
        if (s == 0) continue;
        NTI_LANES z = NTI_LANES_SPLAT(0);
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, max);
            NTI_EACH(v) z.v[v] = z.v[v] + (e.v[v] - max);
        }
        o[r] = (log - (1 - s) * (p[label] - max)) - s / (NTI_T)n * NTI_K(nti_tree)(NTI_SUM, z);
    }
}
static void NTI_K(nti_cross_entropy_grad)(void *out, const void *x, const void *g, const nti_labels *l) {
    int64_t n = l->n;
    NTI_T s = (NTI_T)l->smoothing, even = s / (NTI_T)n;
    for (int64_t r = 0; r < l->rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n, scale = ((const NTI_T *)g)[r];
        NTI_T *o = (NTI_T *)out + r * n;
        int64_t label = NTI_K(nti_label)(l, r);
        if (label < 0) {
            memset(o, 0, (size_t)n * sizeof(NTI_T));
            continue;
        }
        NTI_T sum = NTI_K(nti_row_exp)(o, p, n, NTI_K(nti_row_max)(p, n)), at = o[label] / sum;
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(o, k, n, 0);
            NTI_EACH(v) e.v[v] = (e.v[v] / sum - even) * scale;
            NTI_LANES_PUT(o, k, n, e);
        }
        o[label] = ((at - (1 - s)) - even) * scale;
    }
}
static NTI_T NTI_K(nti_exp_dot)(const NTI_T *x, const NTI_T *t, int64_t n, NTI_T max, NTI_T *sum) {
    NTI_LANES s = NTI_LANES_SPLAT(0), d = s;
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES e = NTI_LANES_AT(x, k, n, -(NTI_T)INFINITY), b = NTI_LANES_AT(t, k, n, 0);
        NTI_EACH(l) e.v[l] = NTI_K(nti_exp)(e.v[l] - max);
        NTI_EACH(l) s.v[l] = s.v[l] + e.v[l];
        NTI_EACH(l) d.v[l] = NTI_FMA(e.v[l], b.v[l], d.v[l]);
    }
    *sum = NTI_K(nti_tree)(NTI_SUM, s);
    return NTI_K(nti_tree)(NTI_SUM, d);
}
static void NTI_K(nti_cross_entropy_jvp)(void *out, const void *x, const void *t, const nti_labels *l) {
    int64_t n = l->n;
    NTI_T s = (NTI_T)l->smoothing, *o = (NTI_T *)out;
    for (int64_t r = 0; r < l->rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n, *pt = (const NTI_T *)t + r * n;
        int64_t label = NTI_K(nti_label)(l, r);
        o[r] = 0;
        if (label < 0) continue;
        NTI_T sum, dot = NTI_K(nti_exp_dot)(p, pt, n, NTI_K(nti_row_max)(p, n), &sum);
        o[r] = dot / sum - (1 - s) * pt[label];
        if (s != 0) o[r] = o[r] - s / (NTI_T)n * NTI_K(nti_row_sum)(pt, n);
    }
}

static void NTI_K(nti_norm_stats)(void *out, const void *x, int64_t rows, int64_t n, double eps) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n;
        NTI_T *o = (NTI_T *)out + 2 * r, mean = NTI_K(nti_row_sum)(p, n) / (NTI_T)n;
        NTI_LANES s = NTI_LANES_SPLAT(0);
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, mean);
            NTI_EACH(l) e.v[l] = e.v[l] - mean;
            NTI_EACH(l) s.v[l] = NTI_FMA(e.v[l], e.v[l], s.v[l]);
        }
        o[0] = mean;
        o[1] = 1 / NTI_K(nti_first)(NTI_K(nti_sqrt)(NTI_SPLAT(NTI_K(nti_tree)(NTI_SUM, s) / (NTI_T)n + (NTI_T)eps)));
    }
}
static void NTI_K(nti_norm_apply)(void *out, const void *x, const void *stats, const void *scale, const void *bias, int64_t rows,
    int64_t n) {
    const NTI_T *a = (const NTI_T *)scale, *b = (const NTI_T *)bias;
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n, *s = (const NTI_T *)stats + 2 * r, mean = s[0], factor = s[1];
        NTI_T *o = (NTI_T *)out + r * n;
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, 0);
            NTI_EACH(l) e.v[l] = (e.v[l] - mean) * factor;
            if (a) {
                NTI_LANES u = NTI_LANES_AT(a, k, n, 0), v = NTI_LANES_AT(b, k, n, 0);
                NTI_EACH(l) e.v[l] = NTI_FMA(e.v[l], u.v[l], v.v[l]);
            }
            NTI_LANES_PUT(o, k, n, e);
        }
    }
}
static void NTI_K(nti_norm_grad)(void *out, const void *x, const void *stats, const void *g, int64_t rows, int64_t n) {
    for (int64_t r = 0; r < rows; r++) {
        const NTI_T *p = (const NTI_T *)x + r * n, *pg = (const NTI_T *)g + r * n, *s = (const NTI_T *)stats + 2 * r;
        NTI_T *o = (NTI_T *)out + r * n, mean = s[0], factor = s[1];
        NTI_LANES d = NTI_LANES_SPLAT(0);
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, mean), b = NTI_LANES_AT(pg, k, n, 0);
            NTI_EACH(l) d.v[l] = NTI_FMA((e.v[l] - mean) * factor, b.v[l], d.v[l]);
        }
        NTI_T along = NTI_K(nti_tree)(NTI_SUM, d) / (NTI_T)n, level = NTI_K(nti_row_sum)(pg, n) / (NTI_T)n;
        for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
            NTI_LANES e = NTI_LANES_AT(p, k, n, 0), b = NTI_LANES_AT(pg, k, n, 0);
            NTI_EACH(l) e.v[l] = NTI_FMA((e.v[l] - mean) * factor, NTI_SPLAT(-along), b.v[l] - level) * factor;
            NTI_LANES_PUT(o, k, n, e);
        }
    }
}

static NTI_INLINE void NTI_K(nti_pool)(int kind, NTI_T *out, const NTI_T *x, const nti_window *w) {
    for (int64_t i = 0; i < w->count; i++, x += w->step, out += w->out_step) {
        int64_t k = 0;
        for (; k + NTI_W <= w->m; k += NTI_W) {
            NTI_V a = NTI_SPLAT(NTI_K(nti_neutral)(kind));
            for (int64_t t = 0; t < w->taps; t++) a = NTI_JOIN(kind, a, NTI_LOAD(x + w->tap[t] + k));
            NTI_STORE(out + k, a);
        }
        for (; k < w->m; k++) {
            NTI_T a = NTI_K(nti_neutral)(kind);
            for (int64_t t = 0; t < w->taps; t++) a = NTI_K(nti_join1)(kind, a, x[w->tap[t] + k]);
            out[k] = a;
        }
    }
}
static void NTI_K(nti_pool_max)(void *out, const void *x, const nti_window *w) {
    NTI_K(nti_pool)(NTI_MAX, (NTI_T *)out, (const NTI_T *)x, w);
}
static void NTI_K(nti_pool_sum)(void *out, const void *x, const nti_window *w) {
    NTI_K(nti_pool)(NTI_SUM, (NTI_T *)out, (const NTI_T *)x, w);
}

// The first maximal tap of each channel of a window (a NaN is maximal), as an index into w->tap.
static NTI_INLINE NTI_VI NTI_K(nti_best_tap)(const NTI_T *x, const nti_window *w) {
    NTI_V best = NTI_LOAD(x + w->tap[0]);
    NTI_VI at = NTI_SPLATI(0);
    for (int64_t t = 1; t < w->taps; t++) {
        NTI_V e = NTI_LOAD(x + w->tap[t]);
        NTI_VI better = NTI_LT(best, e) | (~NTI_EQ(e, e) & NTI_EQ(best, best));
        best = NTI_CHOOSE(better, e, best);
        at = (better & NTI_SPLATI(t)) | (~better & at);
    }
    return at;
}
static NTI_INLINE int64_t NTI_K(nti_best_tap1)(const NTI_T *x, const nti_window *w) {
    NTI_T best = x[w->tap[0]];
    int64_t at = 0;
    for (int64_t t = 1; t < w->taps; t++) {
        NTI_T e = x[w->tap[t]];
        if (best < e || (!(e == e) && best == best)) best = e, at = t;
    }
    return at;
}
static void NTI_K(nti_max_pool_grad)(void *out, const void *x, const void *g, const nti_window *w) {
    if (!w->taps) return;
    for (int64_t i = 0; i < w->count; i++) {
        const NTI_T *p = (const NTI_T *)x + i * w->step, *pg = (const NTI_T *)g + i * w->out_step;
        NTI_T *o = (NTI_T *)out + i * w->step;
        int64_t k = 0;
        for (; k + NTI_W <= w->m; k += NTI_W) {
            NTI_VI at = NTI_K(nti_best_tap)(p + k, w);
            NTI_V e = NTI_LOAD(pg + k), zero = NTI_SPLAT(0);
            for (int64_t t = 0; t < w->taps; t++) {
                NTI_T *to = o + w->tap[t] + k;
                NTI_STORE(to, NTI_LOAD(to) + NTI_CHOOSE(NTI_EQ(at, NTI_SPLATI(t)), e, zero));
            }
        }
        for (; k < w->m; k++) o[w->tap[NTI_K(nti_best_tap1)(p + k, w)] + k] += pg[k];
    }
}
static void NTI_K(nti_max_pool_jvp)(void *out, const void *x, const void *t, const nti_window *w) {
    for (int64_t i = 0; i < w->count; i++) {
        const NTI_T *p = (const NTI_T *)x + i * w->step, *pt = (const NTI_T *)t + i * w->step;
        NTI_T *o = (NTI_T *)out + i * w->out_step;
        int64_t k = 0;
        if (!w->taps) memset(o, 0, (size_t)w->m * sizeof(NTI_T));
        for (; w->taps && k + NTI_W <= w->m; k += NTI_W) {
            NTI_VI at = NTI_K(nti_best_tap)(p + k, w);
            NTI_V a = NTI_SPLAT(0);
            for (int64_t j = 0; j < w->taps; j++) a = NTI_CHOOSE(NTI_EQ(at, NTI_SPLATI(j)), NTI_LOAD(pt + w->tap[j] + k), a);
            NTI_STORE(o + k, a);
        }
        for (; w->taps && k < w->m; k++) o[k] = pt[w->tap[NTI_K(nti_best_tap1)(p + k, w)] + k];
    }
}

// Columns in the lanes, so nothing is added across them; a sum over keys goes in four chains, which are added at the end.
static void NTI_K(nti_hide)(void *x, const nti_hidden *h, double value) {
    NTI_T hidden = (NTI_T)value;
    for (int64_t k = 0; k < h->keys; k++) {
        NTI_T *row = (NTI_T *)x + k * h->pitch;
        const uint8_t *m = h->mask ? h->mask + k * h->key_step : NULL;
        int64_t seen_from = h->causal ? nti_max(0, nti_min(k - h->first, h->n)) : 0;
        if (m && h->query_step == 0 && !*m) seen_from = h->n;
        for (int64_t j = 0; j < seen_from; j++) row[j] = hidden;
        for (int64_t j = seen_from; m && h->query_step && j < h->n; j++)
            if (!m[j * h->query_step]) row[j] = hidden;
    }
}
static NTI_INLINE NTI_LANES NTI_K(nti_lanes_most)(NTI_LANES a, NTI_LANES x) {
    NTI_EACH(l) a.v[l] = NTI_CHOOSE(NTI_LT(a.v[l], x.v[l]), x.v[l], a.v[l]);
    return a;
}
// One step of a chain: the maximum; the exponential of what is left behind the maximum, and its sum; the sum of products.
#define NTI_CHAIN_MOST(i) { \
        NTI_LANES e = NTI_LANES_AT(p + (k + i) * pitch, 0, left, 0); \
        NTI_EACH(l) top##i.v[l] = NTI_CHOOSE(NTI_LT(top##i.v[l], e.v[l] * factor), e.v[l] * factor, top##i.v[l]); \
    }
#define NTI_CHAIN_EXP(i) { \
        NTI_LANES e = NTI_LANES_AT(p + (k + i) * pitch, 0, left, 0); \
        NTI_EACH(l) e.v[l] = NTI_K(nti_exp)(e.v[l] * factor - top0.v[l]), sum##i.v[l] = sum##i.v[l] + e.v[l]; \
        NTI_LANES_PUT(p + (k + i) * pitch, 0, left, e); \
    }
#define NTI_CHAIN_DOT(i) { \
        NTI_LANES a = NTI_LANES_AT(py + (k + i) * pitch, 0, left, 0), b = NTI_LANES_AT(p + (k + i) * pitch, 0, left, 0); \
        NTI_EACH(l) sum##i.v[l] = NTI_FMA(a.v[l], b.v[l], sum##i.v[l]); \
    }
#define NTI_CHAINS(step) \
    for (k = 0; k + 4 <= keys; k += 4) { step(0) step(1) step(2) step(3) } \
    for (; k < keys; k++) { step(0) }
static void NTI_K(nti_column_softmax)(void *x, int64_t keys, int64_t n, int64_t pitch, double scale) {
    NTI_T factor = (NTI_T)scale;
    for (int64_t c = 0, k; c < n; c += NTI_SUM_LANES) {
        NTI_T *p = (NTI_T *)x + c;
        int64_t left = n - c;
        NTI_LANES top0 = NTI_LANES_SPLAT(-(NTI_T)INFINITY), top1 = top0, top2 = top0, top3 = top0;
        NTI_LANES sum0 = NTI_LANES_SPLAT(0), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        NTI_CHAINS(NTI_CHAIN_MOST)
        top0 = NTI_K(nti_lanes_most)(NTI_K(nti_lanes_most)(top0, top2), NTI_K(nti_lanes_most)(top1, top3));
        NTI_CHAINS(NTI_CHAIN_EXP)
        NTI_EACH(l) sum0.v[l] = (NTI_T)1 / ((sum0.v[l] + sum2.v[l]) + (sum1.v[l] + sum3.v[l]));
        for (k = 0; k < keys; k++) {
            NTI_LANES e = NTI_LANES_AT(p + k * pitch, 0, left, 0);
            NTI_EACH(l) e.v[l] = e.v[l] * sum0.v[l];
            NTI_LANES_PUT(p + k * pitch, 0, left, e);
        }
    }
}
static void NTI_K(nti_column_softmax_grad)(void *t, const void *y, int64_t keys, int64_t n, int64_t pitch, double scale) {
    NTI_T factor = (NTI_T)scale;
    for (int64_t c = 0, k; c < n; c += NTI_SUM_LANES) {
        NTI_T *p = (NTI_T *)t + c;
        const NTI_T *py = (const NTI_T *)y + c;
        int64_t left = n - c;
        NTI_LANES sum0 = NTI_LANES_SPLAT(0), sum1 = sum0, sum2 = sum0, sum3 = sum0;
        NTI_CHAINS(NTI_CHAIN_DOT)
        NTI_EACH(l) sum0.v[l] = (sum0.v[l] + sum2.v[l]) + (sum1.v[l] + sum3.v[l]);
        for (k = 0; k < keys; k++) {
            NTI_LANES a = NTI_LANES_AT(py + k * pitch, 0, left, 0), b = NTI_LANES_AT(p + k * pitch, 0, left, 0);
            NTI_EACH(l) b.v[l] = a.v[l] * factor * (b.v[l] - sum0.v[l]);
            NTI_LANES_PUT(p + k * pitch, 0, left, b);
        }
    }
}
#undef NTI_CHAIN_MOST
#undef NTI_CHAIN_EXP
#undef NTI_CHAIN_DOT
#undef NTI_CHAINS

#define NTI_REDUCE_ROW(name) { NTI_K(nti_runs_##name), NTI_K(nti_lanes_##name), NTI_K(nti_rows_##name) }
static const nti_rows_table NTI_K(nti_rows_table) = {
    { NTI_REDUCE_ROW(sum), NTI_REDUCE_ROW(prod), NTI_REDUCE_ROW(max), NTI_REDUCE_ROW(min) },
    NTI_K(nti_find), NTI_K(nti_arg_rows), NTI_K(nti_softmax), NTI_K(nti_log_softmax), NTI_K(nti_softmax_grad), NTI_K(nti_log_softmax_grad),
    NTI_K(nti_cross_entropy), NTI_K(nti_cross_entropy_grad), NTI_K(nti_cross_entropy_jvp), NTI_K(nti_norm_stats), NTI_K(nti_norm_apply),
    NTI_K(nti_norm_grad), { NTI_K(nti_pool_max), NTI_K(nti_pool_sum) }, NTI_K(nti_max_pool_grad), NTI_K(nti_max_pool_jvp),
    NTI_K(nti_hide), NTI_K(nti_column_softmax), NTI_K(nti_column_softmax_grad)
};
#undef NTI_JOIN
#undef NTI_MASK
#undef NTI_MASK_LOAD
#undef NTI_MASK_STORE
#undef NTI_REDUCE_KERNELS
#undef NTI_REDUCE_ROW
#endif // NTI_PASS
#ifdef NTI_PASS
// >>updates
// One parameter array is updated in one read and one write of everything it needs.
static NTI_INLINE NTI_V NTI_K(nti_sgd_direction)(const nti_update *u, NTI_V g, NTI_T *m) {
    if (!u->momentum) return g;
    NTI_V now = NTI_FMA(NTI_SPLAT(u->mu), NTI_LOAD(m), g);
    NTI_STORE(m, now);
    return u->nesterov ? NTI_FMA(NTI_SPLAT(u->mu), now, g) : now;
}

static NTI_INLINE NTI_V NTI_K(nti_adam_direction)(const nti_update *u, NTI_V g, NTI_T *m, NTI_T *v) {
    NTI_V m1 = NTI_FMA(NTI_SPLAT(1 - u->b1), g, NTI_SPLAT(u->b1) * NTI_LOAD(m));
    NTI_V v1 = NTI_FMA(NTI_SPLAT(1 - u->b2), g * g, NTI_SPLAT(u->b2) * NTI_LOAD(v));
    NTI_STORE(m, m1);
    NTI_STORE(v, v1);
    NTI_V top = u->nesterov ? NTI_FMA(NTI_SPLAT(u->m_next), m1, NTI_SPLAT(u->g_now) * g) : NTI_SPLAT(u->m_now) * m1;
    return top / (NTI_K(nti_sqrt)(NTI_FMA(NTI_SPLAT(u->v_now), v1, NTI_SPLAT(u->eps_root))) + NTI_SPLAT(u->eps));
}

static NTI_INLINE void NTI_K(nti_update_vector)(const nti_update *u, NTI_T *p, const NTI_T *g, NTI_T *m, NTI_T *v) {
    NTI_V x = NTI_LOAD(p), gradient = NTI_LOAD(g) * NTI_SPLAT(u->scale);
    NTI_V d = u->kind == NTI_UPDATE_SGD ? NTI_K(nti_sgd_direction)(u, gradient, m) : NTI_K(nti_adam_direction)(u, gradient, m, v);
    if (u->decay != 0) d = NTI_FMA(NTI_SPLAT(u->decay), x, d);
    NTI_STORE(p, NTI_FMA(NTI_SPLAT(-u->rate), d, x));
}

static void NTI_K(nti_update_array)(const nti_update *u, void *p, const void *g, void *m, void *v, size_t n) {
    NTI_T *x = (NTI_T *)p, *mm = (NTI_T *)m, *vv = (NTI_T *)v;
    const NTI_T *gg = (const NTI_T *)g;
    size_t i = 0, w = (size_t)NTI_W;
    for (; i + w <= n; i += w) NTI_K(nti_update_vector)(u, x + i, gg + i, mm ? mm + i : NULL, vv ? vv + i : NULL);
    if (i == n) return;
    NTI_T tail[4][NTI_W]; // the rest goes through a full vector, so that an element's result never depends on its place
    size_t rest = (n - i) * sizeof(NTI_T);
    memset(tail, 0, sizeof tail);
    memcpy(tail[0], x + i, rest);
    memcpy(tail[1], gg + i, rest);
    if (mm) memcpy(tail[2], mm + i, rest);
    if (vv) memcpy(tail[3], vv + i, rest);
    NTI_K(nti_update_vector)(u, tail[0], tail[1], tail[2], tail[3]);
    memcpy(x + i, tail[0], rest);
    if (mm) memcpy(mm + i, tail[2], rest);
    if (vv) memcpy(vv + i, tail[3], rest);
}

static const nti_update_table NTI_K(nti_update_table) = { NTI_K(nti_update_array) };
#endif // NTI_PASS
#ifdef NTI_PASS
// >>linear algebra kernels
// Factorisations and solves: blocks of rows by products, what is left inside a block in registers and the first-level cache.
#define NTI_AT(m, i, j) ((NTI_T *)(m).p + (i) * (m).rs + (j) * (m).cs)

static NTI_INLINE nti_matrix NTI_K(nti_mat)(const NTI_T *p, int64_t rs, int64_t cs) {
    nti_matrix m;
    m.p = (void *)(uintptr_t)p, m.rs = rs, m.cs = cs;
    return m;
}
#define NTI_MATRIX NTI_K(nti_mat)
static NTI_INLINE nti_matrix NTI_K(nti_part)(nti_matrix m, int64_t i, int64_t j) { return NTI_MATRIX(NTI_AT(m, i, j), m.rs, m.cs); }
static NTI_INLINE nti_matrix NTI_K(nti_turn)(nti_matrix m) { return NTI_MATRIX((const NTI_T *)m.p, m.cs, m.rs); }
static NTI_INLINE NTI_T NTI_K(nti_root)(NTI_T x) { return (NTI_T)sqrt((double)x); }
static NTI_INLINE NTI_T NTI_K(nti_size_of)(NTI_T x) { return x < 0 ? -x : x; }
#define NTI_ABS1 NTI_K(nti_size_of)
#define NTI_NOT_A_NUMBER ((NTI_T)NAN)

// c (m, n) = or += a (m, k) b (k, n)
static void NTI_K(nti_multiply)(nti_matrix c, nti_matrix a, nti_matrix b, int64_t m, int64_t n, int64_t k, int add, NTI_T *room) {
    nti_gemm g;
    if (m <= 0 || n <= 0) return;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.accumulate = add;
    g.a = a.p, g.rsa = a.rs, g.csa = a.cs, g.b = b.p, g.rsb = b.rs, g.csb = b.cs, g.c = c.p, g.rsc = c.rs, g.csc = c.cs;
    nti_gemm_arrange(&g, sizeof(NTI_T));
    NTI_K(nti_product)(&g, room);
}

// The sum of x y, in lanes.
static NTI_T NTI_K(nti_dot)(const NTI_T *x, const NTI_T *y, int64_t n) {
    NTI_LANES s = NTI_LANES_SPLAT(0);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES a = NTI_LANES_AT(x, k, n, 0), b = NTI_LANES_AT(y, k, n, 0);
        NTI_EACH(l) s.v[l] = NTI_FMA(a.v[l], b.v[l], s.v[l]);
    }
    return NTI_K(nti_tree)(NTI_SUM, s);
}

static void NTI_K(nti_add_scaled)(NTI_T *y, NTI_T factor, const NTI_T *x, int64_t n) { // y += factor x
    NTI_V f = NTI_SPLAT(factor);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES a = NTI_LANES_AT(x, k, n, 0), b = NTI_LANES_AT(y, k, n, 0);
        NTI_EACH(l) b.v[l] = NTI_FMA(f, a.v[l], b.v[l]);
        NTI_LANES_PUT(y, k, n, b);
    }
}

// y += factor a, and the sum of a x: one row of a symmetric matrix, of which only one triangle is read, times a vector.
static NTI_T NTI_K(nti_dot_add)(const NTI_T *a, const NTI_T *x, NTI_T *y, NTI_T factor, int64_t n) {
    NTI_LANES s = NTI_LANES_SPLAT(0);
    NTI_V f = NTI_SPLAT(factor);
    for (int64_t k = 0; k < n; k += NTI_SUM_LANES) {
        NTI_LANES p = NTI_LANES_AT(a, k, n, 0), q = NTI_LANES_AT(x, k, n, 0), r = NTI_LANES_AT(y, k, n, 0);
        NTI_EACH(l) s.v[l] = NTI_FMA(p.v[l], q.v[l], s.v[l]), r.v[l] = NTI_FMA(f, p.v[l], r.v[l]);
        NTI_LANES_PUT(y, k, n, r);
    }
    return NTI_K(nti_tree)(NTI_SUM, s);
}

// x = a x + b y over whole lanes
static void NTI_K(nti_blend)(NTI_T *x, NTI_T a, NTI_T b, const NTI_T *y, int64_t n) {
    NTI_V p = NTI_SPLAT(a), q = NTI_SPLAT(b);
    for (int64_t k = 0; k < n; k += NTI_W) NTI_STORE(x + k, p * NTI_LOAD(x + k) + q * NTI_LOAD(y + k));
}

// Forward substitution on 64 rows at most: four rows by two vectors in registers. d is lower, its elements beside the diagonal
// negated; rows are filled up to a multiple of four with those of the identity.
#define NTI_STRIP_4(X) X(0) X(1) X(2) X(3)
#define NTI_STRIP_LOAD(i) const NTI_T *r##i = d + (j + i) * NTI_BLOCK; NTI_V a##i = NTI_LOAD(q + (j + i) * pitch), b##i = NTI_LOAD(q + (j + i) * pitch + NTI_W);
#define NTI_STRIP_STEP(i) x = NTI_K(nti_spread)(r##i[k]); a##i = NTI_FMA(x, u, a##i); b##i = NTI_FMA(x, v, b##i);
#define NTI_STRIP_MINUS(i, k) x = NTI_K(nti_spread)(r##i[j + k]); a##i = NTI_FMA(x, a##k, a##i); b##i = NTI_FMA(x, b##k, b##i);
#define NTI_STRIP_PUT(i) \
    if (!unit) x = NTI_K(nti_spread)(r##i[j + i]), a##i = a##i / x, b##i = b##i / x; \
    NTI_STORE(q + (j + i) * pitch, a##i), NTI_STORE(q + (j + i) * pitch + NTI_W, b##i);
static void NTI_K(nti_solve_strip)(const NTI_T *d, NTI_T *p, int64_t pitch, int64_t rows, int unit) {
    for (int64_t c = 0; c < pitch; c += 2 * NTI_W) {
        NTI_T *q = p + c;
        for (int64_t j = 0; j < rows; j += 4) {
            NTI_V x, u, v;
            NTI_STRIP_4(NTI_STRIP_LOAD)
            for (int64_t k = 0; k < j; k++) {
                u = NTI_LOAD(q + k * pitch), v = NTI_LOAD(q + k * pitch + NTI_W);
                NTI_STRIP_4(NTI_STRIP_STEP)
            }
            NTI_STRIP_PUT(0)
            NTI_STRIP_MINUS(1, 0) NTI_STRIP_PUT(1)
            NTI_STRIP_MINUS(2, 0) NTI_STRIP_MINUS(2, 1) NTI_STRIP_PUT(2)
            NTI_STRIP_MINUS(3, 0) NTI_STRIP_MINUS(3, 1) NTI_STRIP_MINUS(3, 2) NTI_STRIP_PUT(3)
        }
    }
}

// The diagonal block of a triangular matrix as nti_solve_strip wants it; an upper one from its end.
static void NTI_K(nti_pack_triangle)(NTI_T *d, nti_matrix a, int64_t rows, int lower) {
    if (!lower) a = NTI_MATRIX(NTI_AT(a, rows - 1, rows - 1), -a.rs, -a.cs);
    for (int64_t i = 0; i < nti_multiple(rows, 4); i++) {
        for (int64_t j = 0; j < i; j++) d[i * NTI_BLOCK + j] = i < rows ? -*NTI_AT(a, i, j) : 0;
        d[i * NTI_BLOCK + i] = i < rows ? *NTI_AT(a, i, i) : 1;
    }
}

static void NTI_K(nti_linear_solve)(const nti_solve *s, void *room) {
    int64_t pitch = nti_pad_columns(s->m), blocks = (s->n + NTI_BLOCK - 1) / NTI_BLOCK;
    NTI_T *d = (NTI_T *)room, *strip = d + NTI_BLOCK * NTI_BLOCK, *sum = strip + NTI_BLOCK * pitch, *rest = sum + NTI_BLOCK * pitch;
    for (int64_t k = 0; k < blocks; k++) {
        int64_t at = (s->lower ? k : blocks - 1 - k) * NTI_BLOCK, rows = nti_min(NTI_BLOCK, s->n - at);
        int64_t from = s->lower ? 0 : at + rows, done = s->lower ? at : s->n - at - rows;
        nti_matrix x = NTI_K(nti_part)(s->x, at, 0), a = NTI_K(nti_part)(s->a, at, at);
        NTI_T *first = s->lower ? strip : strip + (rows - 1) * pitch, *sums = s->lower ? sum : sum + (rows - 1) * pitch;
        int64_t step = s->lower ? pitch : -pitch;
        memset(strip, 0, (size_t)(NTI_BLOCK * pitch) * sizeof(NTI_T));
        NTI_K(nti_pack)(first, step, (const NTI_T *)x.p, rows, s->m, x.rs, x.cs);
        if (done) {
            if (s->m < pitch) memset(sum, 0, (size_t)(rows * pitch) * sizeof(NTI_T));
            NTI_K(nti_multiply)(NTI_MATRIX(sums, step, 1), NTI_K(nti_part)(s->a, at, from), NTI_K(nti_part)(s->x, from, 0), rows, s->m, done, 0, rest);
            NTI_K(nti_blend)(strip, 1, -1, sum, rows * pitch);
        }
        NTI_K(nti_pack_triangle)(d, a, rows, s->lower);
        NTI_K(nti_solve_strip)(d, strip, pitch, rows, s->unit);
        NTI_K(nti_unpack)((NTI_T *)x.p, x.rs, x.cs, 0, first, step, rows, s->m);
    }
}

// Cholesky, block column after block column. strip (64, rows) = (x + x^T)/2 at these columns and rows, less the product of what
// is factored; sum has the room of strip.
static void NTI_K(nti_cholesky_strip)(const nti_factor *f, int64_t column, int64_t columns, int64_t row, int64_t rows, NTI_T *strip, NTI_T *sum,
                                      int64_t pitch, NTI_T *rest) {
    nti_matrix x = NTI_K(nti_part)(f->x, column, row), y = NTI_K(nti_part)(f->x, row, column);
    memset(strip, 0, (size_t)(NTI_BLOCK * pitch) * sizeof(NTI_T)), memset(sum, 0, (size_t)(NTI_BLOCK * pitch) * sizeof(NTI_T));
    NTI_K(nti_pack)(strip, pitch, (const NTI_T *)x.p, columns, rows, x.rs, x.cs);
    NTI_K(nti_pack)(sum, pitch, (const NTI_T *)y.p, columns, rows, y.cs, y.rs);
    NTI_K(nti_blend)(strip, (NTI_T)0.5, (NTI_T)0.5, sum, columns * pitch);
    if (!column) return;
    NTI_K(nti_multiply)(NTI_MATRIX(sum, pitch, 1), NTI_K(nti_part)(f->out, column, 0), NTI_K(nti_turn)(NTI_K(nti_part)(f->out, row, 0)), columns, rows,
                        column, 0, rest);
    NTI_K(nti_blend)(strip, 1, -1, sum, columns * pitch);
}

// A symmetric block (its upper triangle) becomes the transpose of its factor; a pivot that is not positive makes NaN.
static void NTI_K(nti_cholesky_block)(NTI_T *u, int64_t rows) {
    for (int64_t k = 0; k < rows; k++) {
        NTI_T *row = u + k * NTI_BLOCK, pivot = row[k], root = pivot > 0 ? NTI_K(nti_root)(pivot) : NTI_NOT_A_NUMBER;
        row[k] = root;
        for (int64_t j = k + 1; j < rows; j++) row[j] = row[j] / root;
        for (int64_t i = k + 1; i < rows; i++) {
            int64_t from = i / NTI_SUM_LANES * NTI_SUM_LANES; // whole lanes: what is left of the diagonal does not matter
            NTI_K(nti_add_scaled)(u + i * NTI_BLOCK + from, -row[i], row + from, NTI_BLOCK - from);
        }
    }
}

static void NTI_K(nti_cholesky)(const nti_factor *f, int64_t block, int64_t chunk, void *room) {
    int64_t n = f->n, column = block * NTI_BLOCK, columns = nti_min(NTI_BLOCK, n - column), ld = f->out.rs;
    int64_t pitch = nti_min(NTI_CHUNK, nti_multiple(n, NTI_BLOCK));
    NTI_T *d = (NTI_T *)room, *strip = d + NTI_BLOCK * NTI_BLOCK, *sum = strip + NTI_BLOCK * pitch, *rest = sum + NTI_BLOCK * pitch;
    NTI_T *out = (NTI_T *)f->out.p;
    if (column >= n) { // at the end: one pivot that failed, and the whole factor is NaN
        if (chunk < 0 && n > 0 && !(out[(n - 1) * ld + n - 1] > 0))
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j <= i; j++) out[i * ld + j] = NTI_NOT_A_NUMBER;
        return;
    }
    if (chunk < 0) {
        NTI_K(nti_cholesky_strip)(f, column, columns, column, columns, strip, sum, NTI_BLOCK, rest);
        NTI_K(nti_cholesky_block)(strip, columns);
        for (int64_t i = 0; i < columns; i++)
            for (int64_t j = 0; j < columns; j++) *NTI_AT(f->out, column + i, column + j) = j <= i ? strip[j * NTI_BLOCK + i] : 0;
        return;
    }
    int64_t row = column + columns + chunk * NTI_CHUNK, rows = nti_min(NTI_CHUNK, n - row);
    if (rows <= 0) return;
    NTI_K(nti_cholesky_strip)(f, column, columns, row, rows, strip, sum, pitch, rest);
    NTI_K(nti_pack_triangle)(d, NTI_K(nti_part)(f->out, column, column), columns, 1);
    NTI_K(nti_solve_strip)(d, strip, pitch, columns, 0);
    NTI_K(nti_unpack)(NTI_AT(f->out, row, column), 1, ld, 0, strip, pitch, columns, rows);
    for (int64_t i = 0; i < columns; i++) memset(NTI_AT(f->out, column + i, row), 0, (size_t)rows * sizeof(NTI_T));
}

// LU with the largest pivot of each column: rows 0 to n - 1 of out are L (its ones left out) and U, row n says for each row with
// which one it was exchanged. A column without a pivot is left as it is.
static void NTI_K(nti_swap_rows)(NTI_T *a, NTI_T *b, int64_t n) {
    for (int64_t k = 0; k < n; k++) {
        NTI_T x = a[k];
        a[k] = b[k], b[k] = x;
    }
}

static void NTI_K(nti_copy_columns)(const nti_factor *f, int64_t column, int64_t columns) {
    for (int64_t i = 0; i < f->n; i++)
        for (int64_t j = column; j < column + columns; j++) *NTI_AT(f->out, i, j) = *NTI_AT(f->x, i, j);
}

static void NTI_K(nti_lu_panel)(const nti_factor *f, int64_t column, int64_t columns) {
    int64_t n = f->n, end = column + columns;
    for (int64_t k = column; k < end; k++) {
        int64_t best = k;
        for (int64_t i = k + 1; i < n; i++)
            if (NTI_ABS1(*NTI_AT(f->out, i, k)) > NTI_ABS1(*NTI_AT(f->out, best, k))) best = i;
        *NTI_AT(f->out, n, k) = (NTI_T)best;
        if (best != k) NTI_K(nti_swap_rows)(NTI_AT(f->out, k, column), NTI_AT(f->out, best, column), columns);
        const NTI_T *row = NTI_AT(f->out, k, k);
        for (int64_t i = k + 1; i < n && row[0] != 0; i++) {
            NTI_T *to = NTI_AT(f->out, i, k);
            to[0] = to[0] / row[0];
            NTI_K(nti_add_scaled)(to + 1, -to[0], row + 1, end - k - 1);
        }
    }
}

static void NTI_K(nti_lu)(const nti_factor *f, int64_t block, int64_t chunk, void *room) {
    int64_t n = f->n, column = block * NTI_BLOCK, columns = nti_min(NTI_BLOCK, n - column), end = column + columns;
    if (chunk < 0) {
        if (!block) NTI_K(nti_copy_columns)(f, 0, columns);
        NTI_K(nti_lu_panel)(f, column, columns);
        return;
    }
    if (chunk == block) return;
    int64_t at = chunk * NTI_BLOCK, wide = nti_min(NTI_BLOCK, n - at);
    if (!block) NTI_K(nti_copy_columns)(f, at, wide);
    for (int64_t k = column; k < end; k++) {
        int64_t other = (int64_t)*NTI_AT(f->out, n, k);
        if (other != k) NTI_K(nti_swap_rows)(NTI_AT(f->out, k, at), NTI_AT(f->out, other, at), wide);
    }
    if (chunk < block) return;
    NTI_T *d = (NTI_T *)room, *strip = d + NTI_BLOCK * NTI_BLOCK, *rest = strip + 2 * NTI_BLOCK * NTI_BLOCK;
    memset(strip, 0, NTI_BLOCK * NTI_BLOCK * sizeof(NTI_T));
    NTI_K(nti_pack)(strip, NTI_BLOCK, NTI_AT(f->out, column, at), columns, wide, f->out.rs, 1);
    NTI_K(nti_pack_triangle)(d, NTI_K(nti_part)(f->out, column, column), columns, 1);
    NTI_K(nti_solve_strip)(d, strip, NTI_BLOCK, columns, 1);
    NTI_K(nti_unpack)(NTI_AT(f->out, column, at), f->out.rs, 1, 0, strip, NTI_BLOCK, columns, wide);
    for (int64_t k = 0; k < columns * NTI_BLOCK; k++) strip[k] = -strip[k];
    NTI_K(nti_multiply)(NTI_K(nti_part)(f->out, end, at), NTI_K(nti_part)(f->out, end, column), NTI_MATRIX(strip, NTI_BLOCK, 1), n - end, wide, columns, 1, rest);
}

// a x = b or a^T x = b in place on x (n, m)
static void NTI_K(nti_lu_solve)(nti_matrix lu, nti_matrix x, int64_t n, int64_t m, int transpose, void *room) {
    nti_solve s;
    s.a = transpose ? NTI_K(nti_turn)(lu) : lu, s.x = x, s.n = n, s.m = m;
    for (int pass = 0; pass < 3; pass++) {
        int swaps = pass == (transpose ? 2 : 0), first = pass == (transpose ? 0 : 1);
        for (int64_t k = 0; swaps && k < n; k++) {
            int64_t at = transpose ? n - 1 - k : k, other = (int64_t)*NTI_AT(lu, n, at);
            if (other != at)
                for (int64_t j = 0; j < m; j++) {
                    NTI_T t = *NTI_AT(x, at, j);
                    *NTI_AT(x, at, j) = *NTI_AT(x, other, j), *NTI_AT(x, other, j) = t;
                }
        }
        if (swaps) continue;
        s.lower = first, s.unit = first != transpose;
        NTI_K(nti_linear_solve)(&s, room);
    }
}

static void NTI_K(nti_determinant)(nti_matrix lu, int64_t n, double *sign, void *diagonal) {
    NTI_T *d = (NTI_T *)diagonal;
    *sign = 1;
    for (int64_t k = 0; k < n; k++) {
        NTI_T x = *NTI_AT(lu, k, k);
        d[k] = NTI_ABS1(x);
        if ((x < 0) != ((int64_t)*NTI_AT(lu, n, k) != k)) *sign = -*sign;
        if (!(x < 0 || x > 0)) *sign *= (double)x;
    }
}

// A power of two that brings numbers up to `top` to about 1; 0 if top is not finite.
static NTI_T NTI_K(nti_unit_scale)(NTI_T top) {
    if (!(top - top == 0)) return 0;
    NTI_T scale = 1;
    const NTI_T many = (NTI_T)1048576, limit = (NTI_T)(sizeof(NTI_T) == 8 ? 1e290 : 1e30);
    if (top == 0) return 1;
    while (top * scale < 1 / many && scale < limit) scale *= many;
    while (top * scale > many) scale /= many;
    return scale;
}

// The reflector I - tau v v^T, v[0] = 1, that takes x to (beta, 0, ..., 0); v takes the place of x. A tail below `tiny` counts as zero.
static NTI_T NTI_K(nti_reflector)(NTI_T *x, int64_t n, NTI_T *tau) {
    const NTI_T tiny = (NTI_T)(sizeof(NTI_T) == 8 ? 1e-250 : 1e-30);
    NTI_T tail = NTI_K(nti_dot)(x + 1, x + 1, n - 1), first = x[0], beta = first;
    x[0] = 1, *tau = 0;
    if (!(tail > tiny)) {
        memset(x + 1, 0, (size_t)(n - 1) * sizeof(NTI_T));
        return beta;
    }
    beta = NTI_K(nti_root)(NTI_FMA1(first, first, tail));
    if (first > 0) beta = -beta;
    *tau = (beta - first) / beta;
    NTI_T factor = 1 / (first - beta);
    for (int64_t k = 1; k < n; k++) x[k] *= factor;
    return beta;
}

// y (rows, m) times I - V T V^T: `count` reflectors, the rows of v (each m long, zeros before its 1), the first one first
// (forward) or the last.
static void NTI_K(nti_reflect)(nti_matrix y, int64_t rows, int64_t m, nti_matrix v, const NTI_T *tau, int64_t count, int forward, NTI_T *room) {
    const int64_t w = NTI_REFLECTORS;
    NTI_T *t = room, *gram = t + w * w, *c = gram + w * w, *b = c + NTI_CHUNK * w, *rest = b + NTI_CHUNK * w;
    memset(t, 0, (size_t)(w * w) * sizeof(NTI_T));
    NTI_K(nti_multiply)(NTI_MATRIX(gram, w, 1), v, NTI_K(nti_turn)(v), count, count, m, 0, rest);
    for (int64_t j = 0; j < count; j++) { // -T, upper
        for (int64_t i = 0; i < j; i++) {
            NTI_T sum = 0;
            for (int64_t k = i; k < j; k++) sum = NTI_FMA1(t[i * w + k], gram[k * w + j], sum);
            t[i * w + j] = -tau[j] * sum;
        }
        t[j * w + j] = -tau[j];
    }
    for (int64_t at = 0; at < rows; at += NTI_CHUNK) {
        int64_t some = nti_min(NTI_CHUNK, rows - at);
        nti_matrix part = NTI_K(nti_part)(y, at, 0), minus = NTI_MATRIX(t, w, 1);
        NTI_K(nti_multiply)(NTI_MATRIX(c, w, 1), part, NTI_K(nti_turn)(v), some, count, m, 0, rest);
        NTI_K(nti_multiply)(NTI_MATRIX(b, w, 1), NTI_MATRIX(c, w, 1), forward ? minus : NTI_K(nti_turn)(minus), some, count, count, 0, rest);
        NTI_K(nti_multiply)(part, NTI_MATRIX(b, w, 1), v, some, m, count, 1, rest);
    }
}

// The identity times all reflectors from the last to the first: rows of y (n, m) are the columns of Q. Reflector k starts at
// column k + shift of row k of v.
static void NTI_K(nti_form_q)(NTI_T *y, int64_t n, int64_t m, const NTI_T *v, int64_t reflectors, int64_t shift, const NTI_T *tau, NTI_T *room) {
    memset(y, 0, (size_t)(n * m) * sizeof(NTI_T));
    for (int64_t k = 0; k < n; k++) y[k * m + k] = 1;
    for (int64_t end = reflectors, at; end > 0; end = at) {
        at = (end - 1) / NTI_REFLECTORS * NTI_REFLECTORS;
        int64_t first = at + shift;
        NTI_K(nti_reflect)(NTI_MATRIX(y + first * m + first, m, 1), n - first, m - first, NTI_MATRIX(v + at * m + first, m, 1), tau + at, end - at, 0, room);
    }
}

// Tridiagonalisation of the upper triangle of a (n, n): d and e; reflectors stay in the rows of a. pairs: 2 x 2 x 32 rows.
static void NTI_K(nti_tridiagonal)(NTI_T *a, int64_t n, NTI_T *d, NTI_T *e, NTI_T *tau, NTI_T *pairs, NTI_T *rest) {
    const int64_t most = NTI_REFLECTORS;
    NTI_T *v = pairs, *w = v + most * n, *minus = w + most * n; // V, W behind each other; -W, -V
    for (int64_t at = 0, count; at < n - 1; at += count) {
        count = nti_min(most, n - 1 - at);
        memset(v, 0, (size_t)(2 * most * n) * sizeof(NTI_T));
        for (int64_t j = 0; j < count; j++) {
            int64_t i = at + j, m = n - i - 1;
            NTI_T *row = a + i * n, *x = row + i + 1, *y = w + j * n + i + 1;
            for (int64_t q = 0; q < j; q++) {
                NTI_K(nti_add_scaled)(row + i, -w[q * n + i], v + q * n + i, n - i);
                NTI_K(nti_add_scaled)(row + i, -v[q * n + i], w + q * n + i, n - i);
            }
            d[i] = row[i];
            memset(row, 0, (size_t)(i + 1) * sizeof(NTI_T));
            e[i] = NTI_K(nti_reflector)(x, m, &tau[i]);
            memcpy(v + j * n + i + 1, x, (size_t)m * sizeof(NTI_T));
            for (int64_t r = 0; r < m; r++) { // y = A x, by the upper triangle
                const NTI_T *line = a + (i + 1 + r) * n + i + 1 + r;
                y[r] = NTI_FMA1(line[0], x[r], y[r]);
                NTI_T sum = NTI_K(nti_dot_add)(line + 1, x + r + 1, y + r + 1, x[r], m - r - 1);
                y[r] += sum;
            }
            for (int64_t q = 0; q < j; q++) {
                NTI_T *vq = v + q * n + i + 1, *wq = w + q * n + i + 1, s = NTI_K(nti_dot)(wq, x, m), u = NTI_K(nti_dot)(vq, x, m);
                NTI_K(nti_add_scaled)(y, -s, vq, m);
                NTI_K(nti_add_scaled)(y, -u, wq, m);
            }
            for (int64_t r = 0; r < m; r++) y[r] *= tau[i];
            NTI_K(nti_add_scaled)(y, (NTI_T)-0.5 * tau[i] * NTI_K(nti_dot)(x, y, m), x, m);
        }
        for (int64_t k = 0; k < most * n; k++) minus[k] = -w[k], minus[most * n + k] = -v[k];
        for (int64_t r = at + count; r < n; r += NTI_BLOCK) // A -= V W^T + W V^T
            NTI_K(nti_multiply)(NTI_MATRIX(a + r * n + r, n, 1), NTI_MATRIX(v + r, 1, n), NTI_MATRIX(minus + r, n, 1), nti_min(NTI_BLOCK, n - r), n - r, 2 * most,
                                1, rest);
    }
    if (n) d[n - 1] = a[n * n - 1];
}

// Rotations of neighbouring rows of y (n, n), sweep after sweep, on 16 columns at a time. A sweep goes from row `last` up to `first`.
static void NTI_K(nti_rotate)(NTI_T *y, int64_t n, const int32_t *range, int sweeps, const NTI_T *rotation) {
    for (int64_t column = 0; column < n; column += NTI_SUM_LANES)
        for (int k = 0; k < sweeps; k++) {
            const NTI_T *cs = rotation + 2 * k * n;
            int64_t first = range[2 * k], last = range[2 * k + 1];
            NTI_LANES high = NTI_LANES_AT(y + last * n, column, n, 0);
            for (int64_t i = last - 1; i >= first; i--) {
                NTI_LANES low = NTI_LANES_AT(y + i * n, column, n, 0), turned;
                NTI_V c = NTI_K(nti_spread)(cs[2 * i]), s = NTI_K(nti_spread)(cs[2 * i + 1]);
                NTI_EACH(l) turned.v[l] = NTI_FMA(s, low.v[l], c * high.v[l]);
                NTI_EACH(l) high.v[l] = NTI_FMA(c, low.v[l], -(s * high.v[l]));
                NTI_LANES_PUT(y + (i + 1) * n, column, n, turned);
            }
            NTI_LANES_PUT(y + first * n, column, n, high);
        }
}

static NTI_T NTI_K(nti_length)(NTI_T a, NTI_T b) { // of (a, b), safe for small ones
    a = NTI_ABS1(a), b = NTI_ABS1(b);
    NTI_T top = a > b ? a : b, ratio = a > b ? b / a : a / b;
    return top == 0 ? 0 : top * NTI_K(nti_root)(NTI_FMA1(ratio, ratio, 1));
}

// One sweep of implicit QL on rows first to last; the rotations go to cs. Returns the row up to which it came.
static int64_t NTI_K(nti_sweep)(NTI_T *d, NTI_T *e, int64_t first, int64_t last, NTI_T *cs) {
    NTI_T g = (d[first + 1] - d[first]) / (2 * e[first]), r = NTI_K(nti_length)(g, 1), s = 1, c = 1, p = 0;
    g = d[last] - d[first] + e[first] / (g + (g < 0 ? -r : r));
    for (int64_t i = last - 1; i >= first; i--) {
        NTI_T f = s * e[i], b = c * e[i];
        e[i + 1] = r = NTI_K(nti_length)(f, g);
        if (r == 0) {
            d[i + 1] -= p, e[last] = 0;
            return i + 1;
        }
        s = f / r, c = g / r;
        g = d[i + 1] - p, r = (d[i] - g) * s + 2 * c * b, p = s * r;
        d[i + 1] = g + p, g = c * r - b;
        cs[2 * i] = c, cs[2 * i + 1] = s;
    }
    d[first] -= p, e[first] = g, e[last] = 0;
    return first;
}

// The eigenvalues of a tridiagonal matrix into d; its rotations are applied to the rows of y (NULL: none). 0: no convergence.
static int NTI_K(nti_ql)(NTI_T *d, NTI_T *e, int64_t n, NTI_T *y, NTI_T *rotation) {
    const NTI_T eps = (NTI_T)(sizeof(NTI_T) == 8 ? 1.1102230246251565e-16 : 5.9604645e-8);
    int32_t *range = (int32_t *)(void *)(rotation + 2 * NTI_SWEEPS * n);
    int64_t first = 0, last;
    int sweeps = 0, tries = 0;
    if (n) e[n - 1] = 0;
    while (first < n) {
        for (last = first; last < n - 1; last++)
            if (NTI_ABS1(e[last]) <= eps * (NTI_ABS1(d[last]) + NTI_ABS1(d[last + 1]))) break;
        if (last == first) { first++, tries = 0; continue; }
        if (tries++ == 60) return 0;
        int64_t to = NTI_K(nti_sweep)(d, e, first, last, rotation + 2 * sweeps * n);
        if (!y || to == last) continue;
        range[2 * sweeps] = (int32_t)to, range[2 * sweeps + 1] = (int32_t)last;
        if (++sweeps == NTI_SWEEPS) NTI_K(nti_rotate)(y, n, range, sweeps, rotation), sweeps = 0;
    }
    if (sweeps) NTI_K(nti_rotate)(y, n, range, sweeps, rotation);
    for (int64_t k = 0; k < n; k++)
        if (!(d[k] - d[k] == 0)) return 0;
    return 1;
}

// Eigenvalues in ascending order; column k of vectors (n, n) belongs to value k, its largest element (the first of equal ones) is positive.
static void NTI_K(nti_eigh_sorted)(NTI_T *d, const NTI_T *y, int64_t n, NTI_T scale, NTI_T *values, NTI_T *vectors) {
    for (int64_t k = 0; k < n; k++) {
        int64_t best = -1;
        for (int64_t i = 0; i < n; i++)
            if (d[i] == d[i] && (best < 0 || d[i] < d[best])) best = i;
        values[k] = d[best] / scale, d[best] = NTI_NOT_A_NUMBER; // taken
        if (!vectors) continue;
        const NTI_T *row = y + best * n;
        NTI_T top = 0;
        for (int64_t i = 0; i < n; i++)
            if (NTI_ABS1(row[i]) > NTI_ABS1(top)) top = row[i];
        for (int64_t i = 0; i < n; i++) vectors[i * n + k] = top < 0 ? -row[i] : row[i];
    }
}

static void NTI_K(nti_fill)(NTI_T *x, NTI_T value, int64_t n) {
    for (int64_t k = 0; k < n; k++) x[k] = value;
}

static void NTI_K(nti_eigh)(nti_matrix x, int64_t n, void *values, void *vectors, void *room) {
    NTI_T *a = (NTI_T *)room, *y = vectors ? a + n * n : NULL, *d = a + n * n * (vectors ? 2 : 1), *e = d + n, *tau = e + n, *rest = tau + n, top = 0;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < n; j++) {
            NTI_T z = (NTI_T)0.5 * *NTI_AT(x, i, j) + (NTI_T)0.5 * *NTI_AT(x, j, i), size = NTI_ABS1(z);
            a[i * n + j] = z;
            if (size > top || size != size) top = top != top ? top : size;
        }
    NTI_T scale = NTI_K(nti_unit_scale)(top);
    for (int64_t k = 0; k < n * n; k++) a[k] *= scale;
    int ok = scale != 0;
    if (ok) {
        NTI_K(nti_tridiagonal)(a, n, d, e, tau, rest, rest + 4 * NTI_REFLECTORS * n);
        if (y) NTI_K(nti_form_q)(y, n, n, a, n - 1, 1, tau, rest);
        ok = NTI_K(nti_ql)(d, e, n, y, rest);
    }
    if (ok) NTI_K(nti_eigh_sorted)(d, y, n, scale, (NTI_T *)values, (NTI_T *)vectors);
    else {
        NTI_K(nti_fill)((NTI_T *)values, NTI_NOT_A_NUMBER, n);
        if (vectors) NTI_K(nti_fill)((NTI_T *)vectors, NTI_NOT_A_NUMBER, n * n);
    }
}

// x (m, n), m >= n, into q (m, n) and r (n, n). Columns are brought to the same size by powers of two.
static void NTI_K(nti_qr)(nti_matrix x, int64_t m, int64_t n, void *q, void *r, void *room) {
    NTI_T *a = (NTI_T *)room, *y = a + m * n, *tau = y + m * n, *scale = tau + n, *rest = scale + n, *out = (NTI_T *)q, *upper = (NTI_T *)r;
    int ok = 1;
    NTI_K(nti_fill)(upper, 0, n * n);
    for (int64_t j = 0; j < n; j++) {
        NTI_T top = 0, *row = a + j * m;
        for (int64_t i = 0; i < m; i++) {
            NTI_T size = NTI_ABS1(row[i] = *NTI_AT(x, i, j));
            if (size > top || size != size) top = top != top ? top : size;
        }
        scale[j] = NTI_K(nti_unit_scale)(top);
        if (scale[j] == 0) ok = 0;
        for (int64_t i = 0; i < m; i++) row[i] *= scale[j];
    }
    for (int64_t at = 0, count; ok && at < n; at += count) {
        count = nti_min(NTI_REFLECTORS, n - at);
        for (int64_t i = at; i < at + count; i++) {
            NTI_T *row = a + i * m;
            for (int64_t k = at; k < i; k++)
                NTI_K(nti_add_scaled)(row + k, -tau[k] * NTI_K(nti_dot)(a + k * m + k, row + k, m - k), a + k * m + k, m - k);
            for (int64_t k = 0; k < i; k++) upper[k * n + i] = row[k] / scale[i];
            memset(row, 0, (size_t)i * sizeof(NTI_T));
            upper[i * n + i] = NTI_K(nti_reflector)(row + i, m - i, &tau[i]) / scale[i];
        }
        NTI_K(nti_reflect)(NTI_MATRIX(a + (at + count) * m + at, m, 1), n - at - count, m - at, NTI_MATRIX(a + at * m + at, m, 1), tau + at, count, 1, rest);
    }
    if (ok) NTI_K(nti_form_q)(y, n, m, a, n, 0, tau, rest);
    else NTI_K(nti_fill)(upper, NTI_NOT_A_NUMBER, n * n), NTI_K(nti_fill)(y, NTI_NOT_A_NUMBER, m * n);
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) out[i * n + j] = y[j * m + i];
}

// Gram and Schmidt, twice: what the first pass leaves of the others is gone after the second.
static void NTI_K(nti_orthonormalize)(void *data, int64_t vectors, int64_t length, int by_rows) {
    NTI_T *a = (NTI_T *)data, along[NTI_BLOCK];
    const int64_t step = by_rows ? length : 1, within = by_rows ? 1 : vectors;
    for (int64_t k = 0; k < 2 * vectors; k++) {
        int64_t own = k % vectors;
        NTI_T *v = a + own * step, squares = 0;
        for (int64_t i = 0; i < length; i++) squares = NTI_FMA1(v[i * within], v[i * within], squares);
        NTI_T norm = NTI_K(nti_root)(squares);
        for (int64_t i = 0; i < length; i++) v[i * within] /= norm;
        for (int64_t j = own + 1; j < vectors; j += by_rows ? 1 : NTI_BLOCK) {
            NTI_T *other = a + j * step;
            int64_t some = nti_min(NTI_BLOCK, vectors - j);
            if (by_rows) {
                NTI_K(nti_add_scaled)(other, -NTI_K(nti_dot)(v, other, length), v, length);
                continue;
            }
            memset(along, 0, sizeof along);
            for (int64_t i = 0; i < length; i++) NTI_K(nti_add_scaled)(along, v[i * within], other + i * within, some);
            for (int64_t i = 0; i < length; i++) NTI_K(nti_add_scaled)(other + i * within, -v[i * within], along, some);
        }
    }
}

// With e = eigenvalues and eigenvectors of a (n + 1, n) and s their square roots: V s V^T; or z such that S z + z S = c, for S that root.
// Eigenvalues that are negative by rounding count as zero.
static void NTI_K(nti_spectral)(const void *e, const void *c, int64_t n, void *out, void *room) {
    const NTI_T *w = (const NTI_T *)e, eps = (NTI_T)(sizeof(NTI_T) == 8 ? 2.220446049250313e-16 : 1.1920929e-7);
    NTI_T *s = (NTI_T *)room, *p = s + n, *t = p + n * n, *rest = t + n * n, least = n ? -eps * (NTI_T)n * w[n - 1] : 0;
    nti_matrix v = NTI_MATRIX(w + n, n, 1), vt = NTI_K(nti_turn)(v), pm = NTI_MATRIX(p, n, 1), tm = NTI_MATRIX(t, n, 1), om = NTI_MATRIX((NTI_T *)out, n, 1);
    for (int64_t k = 0; k < n; k++) s[k] = NTI_K(nti_root)(w[k] < 0 && w[k] >= least ? 0 : w[k]);
    if (c) {
        NTI_K(nti_multiply)(pm, vt, NTI_MATRIX((const NTI_T *)c, n, 1), n, n, n, 0, rest);
        NTI_K(nti_multiply)(tm, pm, v, n, n, n, 0, rest);
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) t[i * n + j] /= s[i] + s[j];
        NTI_K(nti_multiply)(pm, v, tm, n, n, n, 0, rest);
    } else
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < n; j++) p[i * n + j] = w[n + i * n + j] * s[j];
    NTI_K(nti_multiply)(om, pm, vt, n, n, n, 0, rest);
}

static const nti_linear_table NTI_K(nti_linear_table) = { NTI_K(nti_cholesky), NTI_K(nti_lu), NTI_K(nti_linear_solve), NTI_K(nti_lu_solve),
                                                          NTI_K(nti_determinant), NTI_K(nti_eigh), NTI_K(nti_qr), NTI_K(nti_orthonormalize),
                                                          NTI_K(nti_spectral) };
#endif // NTI_PASS
#ifdef NTI_PASS
// The end of a pass: what the pass base defined goes, so that the next pass can start.
#undef NTI_LV
#undef NTI_EACH
#undef NTI_LANES
#undef NTI_LANES_SPLAT
#undef NTI_LANES_AT
#undef NTI_LANES_PUT
#undef NTI_ISA_SUFFIX
#undef NTI_BYTES
#undef NTI_T
#undef NTI_I
#undef NTI_U
#undef NTI_K
#undef NTI_V
#undef NTI_VI
#undef NTI_VU
#undef NTI_W
#undef NTI_LT
#undef NTI_LE
#undef NTI_EQ
#undef NTI_LOAD
#undef NTI_STORE
#undef NTI_SPLAT
#undef NTI_SPLATI
#undef NTI_INT
#undef NTI_FLOAT
#undef NTI_CHOOSE
#undef NTI_FMA
#undef NTI_FMA1
#undef NTI_SUM_LANES
#undef NTI_CAT
#undef NTI_CAT_
#undef NTI_ISA
#undef NTI_F64
#endif // NTI_PASS
#if defined(NTI_IMPLEMENT) && !defined(NTI_PASS)
// >>passes
// ---------------------------------------------------------------------------------------------------------------------
// The kernel passes: this file includes itself once for each instruction set and floating type. Compilers may not fuse
// multiplications and additions by themselves in them, since that would differ from pass to pass.
// ---------------------------------------------------------------------------------------------------------------------
#if defined(__clang__)
#pragma clang fp contract(off)
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpsabi"
#elif defined(__GNUC__)
#pragma GCC push_options
#pragma GCC optimize("fp-contract=off")
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpsabi" // wide vectors never cross a call: everything that takes one is inlined
#endif
#define NTI_PASS
#define NTI_ISA 0
#define NTI_F64 0
#include NTTRAIN_FILE
#define NTI_ISA 0
#define NTI_F64 1
#include NTTRAIN_FILE
#if NTI_DISPATCH
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
#define NTI_ISA 2
#define NTI_F64 0
#include NTTRAIN_FILE
#define NTI_ISA 2
#define NTI_F64 1
#include NTTRAIN_FILE
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,avx2,fma")
#endif
#define NTI_ISA 3
#define NTI_F64 0
#include NTTRAIN_FILE
#define NTI_ISA 3
#define NTI_F64 1
#include NTTRAIN_FILE
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif
#endif
#undef NTI_PASS
#if defined(__clang__)
#pragma clang diagnostic pop
#elif defined(__GNUC__)
#pragma GCC diagnostic pop
#pragma GCC pop_options
#endif

// Every kernel table of one instruction set, [0] for f32 and [1] for f64.
struct nti_isa {
    const char *name;
    const nti_math_table *math[2];
    const nti_random_table *random[2];
    const nti_gemm_table *gemm[2];
    const nti_rows_table *rows[2];
    const nti_update_table *update[2];
    const nti_linear_table *linear[2];
};
#define NTI_ISA_ROW(suffix)                                                                                                        \
    { #suffix, { &nti_math_f32_##suffix, &nti_math_f64_##suffix }, { &nti_random_f32_##suffix, &nti_random_f64_##suffix },          \
      { &nti_gemm_f32_##suffix, &nti_gemm_f64_##suffix }, { &nti_rows_table_f32_##suffix, &nti_rows_table_f64_##suffix },           \
      { &nti_update_table_f32_##suffix, &nti_update_table_f64_##suffix },                                                          \
      { &nti_linear_table_f32_##suffix, &nti_linear_table_f64_##suffix } }
static const struct nti_isa nti_isas[] = {
    NTI_ISA_ROW(base),
#if NTI_DISPATCH
    NTI_ISA_ROW(avx2), NTI_ISA_ROW(avx512),
#endif
};
#define NTI_GEMM_TABLE(c, dtype) ((c)->isa->gemm[(dtype) == NT_F64])
#define NTI_ROWS_TABLE(c, dtype) ((c)->isa->rows[(dtype) == NT_F64])

static const struct nti_isa *nti_isa_choose(nt_isa isa) {
#if NTI_DISPATCH
    __builtin_cpu_init();
    int avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    int avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512bw");
    if (isa == NT_ISA_AUTO) return &nti_isas[avx512 ? 2 : avx2 ? 1 : 0];
    if (isa == NT_ISA_AVX512) return avx512 ? &nti_isas[2] : NULL;
    if (isa == NT_ISA_AVX2) return avx2 ? &nti_isas[1] : NULL;
#endif
    return isa == NT_ISA_AUTO || isa == NT_ISA_BASELINE ? &nti_isas[0] : NULL;
}
// >>integers
// The maps of i32, u32 and bool, and conversion between all dtypes. Integer arithmetic wraps and never traps: it is done
// on unsigned words, division by zero gives 0. Maps that are the same for both signs share their function.
#define NTI_MAP_BEGIN(name, from, to) \
    static void nti_map_##name(void *out, const void *const *in, size_t n, const double *attr) { \
        const from *px = (const from *)in[0]; \
        to *po = (to *)out; \
        (void)attr;
#define NTI_INT_MAP1(name, from, to, value) \
    NTI_MAP_BEGIN(name, from, to) for (size_t i = 0; i < n; i++) { const from x = px[i]; po[i] = (to)(value); } }
#define NTI_INT_MAP1_ATTR(name, from, to, value) \
    NTI_MAP_BEGIN(name, from, to) const from a = (from)nti_saturate(attr[0], INT64_MIN, INT64_MAX); \
        for (size_t i = 0; i < n; i++) { const from x = px[i]; po[i] = (to)(value); } }
#define NTI_INT_MAP2(name, from, to, value) \
    NTI_MAP_BEGIN(name, from, to) const from *py = (const from *)in[1]; \
        for (size_t i = 0; i < n; i++) { const from x = px[i], y = py[i]; po[i] = (to)(value); } }
#define NTI_INT_SELECT(name, type) \
    NTI_MAP_BEGIN(name, uint8_t, type) const type *x = (const type *)in[1], *y = (const type *)in[2]; \
        for (size_t i = 0; i < n; i++) po[i] = px[i] ? x[i] : y[i]; }
#define NTI_INT_COPY(name, type) NTI_MAP_BEGIN(name, type, type) memmove(po, px, n * sizeof(type)); }
// what depends on the sign, or on the size of the element
#define NTI_INT_COMPARISONS(s, type) \
    NTI_INT_MAP2(max_##s, type, type, x > y ? x : y) NTI_INT_MAP2(min_##s, type, type, x < y ? x : y) \
    NTI_INT_MAP2(eq_##s, type, uint8_t, x == y) NTI_INT_MAP2(ne_##s, type, uint8_t, x != y) \
    NTI_INT_MAP2(lt_##s, type, uint8_t, x < y) NTI_INT_MAP2(le_##s, type, uint8_t, x <= y) \
    NTI_INT_MAP2(gt_##s, type, uint8_t, x > y) NTI_INT_MAP2(ge_##s, type, uint8_t, x >= y)

// a double as an integer: towards zero, saturated, NaN as 0
static int64_t nti_saturate(double x, int64_t lo, int64_t hi) {
    if (x != x)
        return 0;
    return x <= (double)lo ? lo : x >= (double)hi ? hi : (int64_t)x;
}
static int32_t nti_i32_div(int32_t x, int32_t y) {
    if (y == 0)
        return 0;
    return y == -1 ? (int32_t)(0u - (uint32_t)x) : x / y;
}
static int32_t nti_i32_rem(int32_t x, int32_t y) { return y == 0 || y == -1 ? 0 : x % y; }
static int32_t nti_i32_mod(int32_t x, int32_t y) {
    int32_t r = nti_i32_rem(x, y);
    return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}
static int64_t nti_int_clamp(int64_t x, const double *attr, int64_t least, int64_t most) {
    int64_t lo = nti_saturate(attr[0], least, most), hi = nti_saturate(attr[1], least, most);
    return x > hi ? hi : x < lo ? lo : x;
}

NTI_INT_COPY(copy_word, uint32_t)
NTI_INT_COPY(copy_bool, uint8_t)
NTI_INT_SELECT(select_word, uint32_t)
NTI_INT_SELECT(select_bool, uint8_t)
NTI_INT_MAP1(neg_word, uint32_t, uint32_t, 0u - x)
NTI_INT_MAP1(square_word, uint32_t, uint32_t, x * x)
NTI_INT_MAP1_ATTR(add_scalar_word, uint32_t, uint32_t, x + a)
NTI_INT_MAP1_ATTR(scale_word, uint32_t, uint32_t, x * a)
NTI_INT_MAP2(add_word, uint32_t, uint32_t, x + y)
NTI_INT_MAP2(sub_word, uint32_t, uint32_t, x - y)
NTI_INT_MAP2(mul_word, uint32_t, uint32_t, x * y)
NTI_INT_MAP1(abs_i32, int32_t, int32_t, x < 0 ? 0u - (uint32_t)x : (uint32_t)x)
NTI_INT_MAP1(sign_i32, int32_t, int32_t, (x > 0) - (x < 0))
NTI_INT_MAP1(sign_u32, uint32_t, uint32_t, x > 0)
NTI_INT_MAP1(relu_i32, int32_t, int32_t, x > 0 ? x : 0)
NTI_INT_MAP1(clamp_i32, int32_t, int32_t, nti_int_clamp(x, attr, INT32_MIN, INT32_MAX))
NTI_INT_MAP1(clamp_u32, uint32_t, uint32_t, nti_int_clamp(x, attr, 0, UINT32_MAX))
NTI_INT_MAP2(div_i32, int32_t, int32_t, nti_i32_div(x, y))
NTI_INT_MAP2(rem_i32, int32_t, int32_t, nti_i32_rem(x, y))
NTI_INT_MAP2(mod_i32, int32_t, int32_t, nti_i32_mod(x, y))
NTI_INT_MAP2(div_u32, uint32_t, uint32_t, y ? x / y : 0)
NTI_INT_MAP2(rem_u32, uint32_t, uint32_t, y ? x % y : 0)
NTI_INT_COMPARISONS(i32, int32_t)
NTI_INT_COMPARISONS(u32, uint32_t)
NTI_INT_COMPARISONS(bool, uint8_t)
NTI_INT_MAP1(logical_not_bool, uint8_t, uint8_t, !x)

typedef struct nti_int_map { nti_map map; nti_map_fn i32, u32, boolean; } nti_int_map;
static const nti_int_map nti_int_maps[] = {
    { NTI_MAP_COPY, nti_map_copy_word, nti_map_copy_word, nti_map_copy_bool },
    { NTI_MAP_SELECT, nti_map_select_word, nti_map_select_word, nti_map_select_bool },
    { NTI_MAP_NEG, nti_map_neg_word, nti_map_neg_word, NULL },
    { NTI_MAP_ABS, nti_map_abs_i32, nti_map_copy_word, NULL },
    { NTI_MAP_SIGN, nti_map_sign_i32, nti_map_sign_u32, NULL },
    { NTI_MAP_SQUARE, nti_map_square_word, nti_map_square_word, NULL },
    { NTI_MAP_RELU, nti_map_relu_i32, nti_map_copy_word, NULL },
    { NTI_MAP_CLAMP, nti_map_clamp_i32, nti_map_clamp_u32, NULL },
    { NTI_MAP_ADD_SCALAR, nti_map_add_scalar_word, nti_map_add_scalar_word, NULL },
    { NTI_MAP_SCALE, nti_map_scale_word, nti_map_scale_word, NULL },
    { NTI_MAP_ADD, nti_map_add_word, nti_map_add_word, NULL },
    { NTI_MAP_SUB, nti_map_sub_word, nti_map_sub_word, NULL },
    { NTI_MAP_MUL, nti_map_mul_word, nti_map_mul_word, NULL },
    { NTI_MAP_DIV, nti_map_div_i32, nti_map_div_u32, NULL },
    { NTI_MAP_REM, nti_map_rem_i32, nti_map_rem_u32, NULL },
    { NTI_MAP_MOD, nti_map_mod_i32, nti_map_rem_u32, NULL },
    { NTI_MAP_MAX, nti_map_max_i32, nti_map_max_u32, nti_map_max_bool },
    { NTI_MAP_MIN, nti_map_min_i32, nti_map_min_u32, nti_map_min_bool },
    { NTI_MAP_EQ, nti_map_eq_i32, nti_map_eq_u32, nti_map_eq_bool },
    { NTI_MAP_NE, nti_map_ne_i32, nti_map_ne_u32, nti_map_ne_bool },
    { NTI_MAP_LT, nti_map_lt_i32, nti_map_lt_u32, nti_map_lt_bool },
    { NTI_MAP_LE, nti_map_le_i32, nti_map_le_u32, nti_map_le_bool },
    { NTI_MAP_GT, nti_map_gt_i32, nti_map_gt_u32, nti_map_gt_bool },
    { NTI_MAP_GE, nti_map_ge_i32, nti_map_ge_u32, nti_map_ge_bool },
    { NTI_MAP_LOGICAL_NOT, NULL, NULL, nti_map_logical_not_bool },
    { NTI_MAP_LOGICAL_AND, NULL, NULL, nti_map_min_bool },
    { NTI_MAP_LOGICAL_OR, NULL, NULL, nti_map_max_bool },
    { NTI_MAP_LOGICAL_XOR, NULL, NULL, nti_map_ne_bool },
};

// the map for i32, u32 or bool, NULL where there is none
static nti_map_fn nti_integer_map(nt_dtype dtype, nti_map map) {
    for (size_t k = 0; k < sizeof nti_int_maps / sizeof *nti_int_maps; k++)
        if (nti_int_maps[k].map == map)
            return dtype == NT_I32 ? nti_int_maps[k].i32 : dtype == NT_U32 ? nti_int_maps[k].u32 :
                   dtype == NT_BOOL ? nti_int_maps[k].boolean : NULL;
    return NULL;
}
#undef NTI_MAP_BEGIN
#undef NTI_INT_MAP1
#undef NTI_INT_MAP1_ATTR
#undef NTI_INT_MAP2
#undef NTI_INT_SELECT
#undef NTI_INT_COPY
#undef NTI_INT_COMPARISONS

// >>casts
// Between any two dtypes by way of the widest number of the source's kind (double, i64 or u64), with short cuts for the
// frequent ones. A float becomes an integer towards zero, saturated, NaN as 0; an integer becomes a narrower one modulo
// its size; whatever is not zero becomes true; floats round to nearest even.
static float nti_half_to_float(uint16_t h) {
    uint32_t sign = (uint32_t)(h >> 15) << 31, rest = h & 0x7fffu, bits;
    float f = (float)rest * 5.9604644775390625e-08f;   // right where it is subnormal
    memcpy(&bits, &f, sizeof bits);
    if (rest >= 0x400)
        bits = (rest << 13) + (rest >= 0x7c00 ? 0x70000000u : 0x38000000u);
    bits |= sign;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint16_t nti_float_to_half(float f) {
    uint32_t bits, a;
    memcpy(&bits, &f, sizeof bits);
    uint32_t sign = bits >> 16 & 0x8000u;
    a = bits & 0x7fffffffu;
    if (a > 0x7f800000u)
        return (uint16_t)(sign | 0x7e00u);
    if (a >= 0x477ff000u)
        return (uint16_t)(sign | 0x7c00u);
    if (a < 0x38800000u) {   // adding 1/2 puts the last bit of a subnormal half at the last bit of the sum
        memcpy(&f, &a, sizeof f);
        f += 0.5f;
        memcpy(&a, &f, sizeof a);
        return (uint16_t)(sign | (a - 0x3f000000u));
    }
    return (uint16_t)(sign | ((a - 0x38000000u + 0xfffu + (a >> 13 & 1)) >> 13));
}
static float nti_bfloat_to_float(uint16_t h) {
    uint32_t bits = (uint32_t)h << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint16_t nti_float_to_bfloat(float f) {
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    if ((bits & 0x7fffffffu) > 0x7f800000u)
        return (uint16_t)(bits >> 16 | 0x40u);
    return (uint16_t)((bits + 0x7fffu + (bits >> 16 & 1)) >> 16);
}
// double to float so that rounding once more to 16 bits is as rounding once: what is not exact gets an odd last bit
static float nti_round_to_odd(double d) {
    float f = (float)d;
    uint32_t bits;
    if ((double)f == d || d != d)
        return f;
    memcpy(&bits, &f, sizeof bits);
    if (fabs((double)f) > fabs(d))
        bits--;
    bits |= 1;
    memcpy(&f, &bits, sizeof f);
    return f;
}
static uint64_t nti_saturate_u64(double x) { return !(x > 0) ? 0 : x >= 18446744073709551616.0 ? UINT64_MAX : (uint64_t)x; }

typedef union nti_wide { double f; int64_t s; uint64_t u; } nti_wide;
#define NTI_CAST_EACH(From, To, value) \
    for (size_t k = 0; k < n; k++) { \
        From x; \
        memcpy(&x, src + k * sizeof x, sizeof x); \
        const To y = (To)(value); \
        memcpy(dst + k * sizeof y, &y, sizeof y); \
    } \
    break;
#define NTI_WIDEN(From, field, type, value) \
    for (size_t k = 0; k < n; k++) { \
        From x; \
        memcpy(&x, src + k * sizeof x, sizeof x); \
        w[k].field = (type)(value); \
    } \
    break;
static void nti_widen(nti_wide *w, nt_dtype from, const unsigned char *src, size_t n) {
    switch (from) {
    case NT_F32: NTI_WIDEN(float, f, double, x)
    case NT_F64: NTI_WIDEN(double, f, double, x)
    case NT_F16: NTI_WIDEN(uint16_t, f, double, nti_half_to_float(x))
    case NT_BF16: NTI_WIDEN(uint16_t, f, double, nti_bfloat_to_float(x))
    case NT_I8: NTI_WIDEN(int8_t, s, int64_t, x)
    case NT_I16: NTI_WIDEN(int16_t, s, int64_t, x)
    case NT_I32: NTI_WIDEN(int32_t, s, int64_t, x)
    case NT_I64: NTI_WIDEN(int64_t, s, int64_t, x)
    case NT_BOOL: NTI_WIDEN(uint8_t, s, int64_t, x != 0)
    case NT_U8: NTI_WIDEN(uint8_t, s, int64_t, x)
    case NT_U16: NTI_WIDEN(uint16_t, s, int64_t, x)
    case NT_U32: NTI_WIDEN(uint32_t, s, int64_t, x)
    case NT_U64: NTI_WIDEN(uint64_t, u, uint64_t, x)
    case NT_DTYPE_COUNT: break;
    }
}
#define NTI_NARROW(To, value) \
    for (size_t k = 0; k < n; k++) { \
        const To y = (To)(value); \
        memcpy(dst + k * sizeof y, &y, sizeof y); \
    } \
    break;
#define NTI_NARROW_TO_FLOAT(field) \
    case NT_F32: NTI_NARROW(float, w[k].field) \
    case NT_F64: NTI_NARROW(double, w[k].field) \
    case NT_F16: NTI_NARROW(uint16_t, nti_float_to_half(nti_round_to_odd((double)w[k].field))) \
    case NT_BF16: NTI_NARROW(uint16_t, nti_float_to_bfloat(nti_round_to_odd((double)w[k].field)))
static void nti_narrow_float(nt_dtype to, unsigned char *dst, const nti_wide *w, size_t n) {
    switch (to) {
    NTI_NARROW_TO_FLOAT(f)
    case NT_I8: NTI_NARROW(int8_t, nti_saturate(w[k].f, INT8_MIN, INT8_MAX))
    case NT_I16: NTI_NARROW(int16_t, nti_saturate(w[k].f, INT16_MIN, INT16_MAX))
    case NT_I32: NTI_NARROW(int32_t, nti_saturate(w[k].f, INT32_MIN, INT32_MAX))
    case NT_I64: NTI_NARROW(int64_t, nti_saturate(w[k].f, INT64_MIN, INT64_MAX))
    case NT_BOOL: NTI_NARROW(uint8_t, w[k].f != 0)
    case NT_U8: NTI_NARROW(uint8_t, nti_saturate(w[k].f, 0, UINT8_MAX))
    case NT_U16: NTI_NARROW(uint16_t, nti_saturate(w[k].f, 0, UINT16_MAX))
    case NT_U32: NTI_NARROW(uint32_t, nti_saturate(w[k].f, 0, UINT32_MAX))
    case NT_U64: NTI_NARROW(uint64_t, nti_saturate_u64(w[k].f))
    case NT_DTYPE_COUNT: break;
    }
}
static void nti_narrow_signed(nt_dtype to, unsigned char *dst, const nti_wide *w, size_t n) {
    switch (to) {
    NTI_NARROW_TO_FLOAT(s)
    case NT_BOOL: NTI_NARROW(uint8_t, w[k].s != 0)
    case NT_I8: case NT_U8: NTI_NARROW(uint8_t, w[k].s)
    case NT_I16: case NT_U16: NTI_NARROW(uint16_t, w[k].s)
    case NT_I32: case NT_U32: NTI_NARROW(uint32_t, w[k].s)
    case NT_I64: case NT_U64: NTI_NARROW(uint64_t, w[k].s)
    case NT_DTYPE_COUNT: break;
    }
}
static void nti_narrow_u64(nt_dtype to, unsigned char *dst, const nti_wide *w, size_t n) {
    switch (to) {
    NTI_NARROW_TO_FLOAT(u)
    default: nti_narrow_signed(to, dst, w, n);   // integers keep their low bits, whatever the sign
    }
}

#define NTI_PAIR(to, from) ((int)(to) * (int)NT_DTYPE_COUNT + (int)(from))
// the frequent pairs; 0: not one of them
static int nti_cast_short(nt_dtype to, unsigned char *dst, nt_dtype from, const unsigned char *src, size_t n) {
    switch (NTI_PAIR(to, from)) {
    case NTI_PAIR(NT_F64, NT_F32): NTI_CAST_EACH(float, double, x)
    case NTI_PAIR(NT_F32, NT_F64): NTI_CAST_EACH(double, float, x)
    case NTI_PAIR(NT_F32, NT_U8): NTI_CAST_EACH(uint8_t, float, x)
    case NTI_PAIR(NT_F32, NT_BOOL): NTI_CAST_EACH(uint8_t, float, x != 0)
    case NTI_PAIR(NT_F32, NT_I32): NTI_CAST_EACH(int32_t, float, x)
    case NTI_PAIR(NT_I32, NT_F32): NTI_CAST_EACH(float, int32_t, nti_saturate((double)x, INT32_MIN, INT32_MAX))
    case NTI_PAIR(NT_F32, NT_F16): NTI_CAST_EACH(uint16_t, float, nti_half_to_float(x))
    case NTI_PAIR(NT_F16, NT_F32): NTI_CAST_EACH(float, uint16_t, nti_float_to_half(x))
    case NTI_PAIR(NT_F32, NT_BF16): NTI_CAST_EACH(uint16_t, float, nti_bfloat_to_float(x))
    case NTI_PAIR(NT_BF16, NT_F32): NTI_CAST_EACH(float, uint16_t, nti_float_to_bfloat(x))
    default: return 0;
    }
    return 1;
}
#undef NTI_PAIR
#undef NTI_CAST_EACH
#undef NTI_WIDEN
#undef NTI_NARROW
#undef NTI_NARROW_TO_FLOAT

// out and in contiguous, apart unless the dtypes are equal
static NTI_NOINLINE void nti_cast(nt_dtype to, void *out, nt_dtype from, const void *in, size_t n) {
    enum { CHUNK = 128 };
    unsigned char *dst = (unsigned char *)out;
    const unsigned char *src = (const unsigned char *)in;
    nti_wide wide[CHUNK];
    if (to == from) {
        memmove(out, in, n * nt_dtype_size(to));
        return;
    }
    if (nti_cast_short(to, dst, from, src, n))
        return;
    for (size_t i = 0; i < n; i += CHUNK) {
        size_t m = n - i < CHUNK ? n - i : (size_t)CHUNK;
        nti_widen(wide, from, src + i * nt_dtype_size(from), m);
        if (from == NT_U64)
            nti_narrow_u64(to, dst + i * nt_dtype_size(to), wide, m);
        else if (from == NT_F32 || from == NT_F64 || from == NT_F16 || from == NT_BF16)
            nti_narrow_float(to, dst + i * nt_dtype_size(to), wide, m);
        else
            nti_narrow_signed(to, dst + i * nt_dtype_size(to), wide, m);
    }
}
// >>random arrays
// Random numbers as pure functions of (key, index): any range of elements of an array of any size can be made by itself,
// in any order, by any worker. Bits, integers and uniform numbers in the default range are JAX's exactly; the others are
// JAX's to a few ulp, made by the same steps with our maps.
typedef struct nti_random_isa {   // what the passes of the chosen instruction set give, [0] for f32, [1] for f64
    const nti_math_table *math[2];
    const nti_random_table *random[2];
} nti_random_isa;

typedef enum nti_random_kind {
    NTI_RANDOM_BITS,               // u8, u16, u32, u64
    NTI_RANDOM_UNIFORM,            // [lo, hi)
    NTI_RANDOM_NORMAL,
    NTI_RANDOM_TRUNCATED_NORMAL,   // between lo and hi
    NTI_RANDOM_BERNOULLI,          // lo: the probability; any dtype, normally bool
    NTI_RANDOM_RADEMACHER,         // -1 or 1
    NTI_RANDOM_RANDINT,            // int_lo included, int_hi not
    NTI_RANDOM_EXPONENTIAL, NTI_RANDOM_GUMBEL, NTI_RANDOM_LAPLACE, NTI_RANDOM_LOGISTIC, NTI_RANDOM_CAUCHY
} nti_random_kind;

typedef struct nti_random {
    nti_random_kind kind;
    nt_dtype dtype;
    nt_key_value key;
    double lo, hi;
    int64_t int_lo, int_hi;
} nti_random;

enum { NTI_RANDOM_CHUNK = 128 };
// a run of numbers on their way: floats as double or float (f16 and bf16 as floats that are rounded after every step, as
// JAX computes with them)
typedef struct nti_random_run {
    const nti_random_isa *isa;
    nt_dtype dtype;
    size_t n;
    union {
        double f64[NTI_RANDOM_CHUNK];
        float f32[NTI_RANDOM_CHUNK];
        uint64_t u64[NTI_RANDOM_CHUNK];
        uint32_t u32[NTI_RANDOM_CHUNK];
        int32_t i32[NTI_RANDOM_CHUNK];
    } data;
} nti_random_run;

static void nti_random_round(nti_random_run *run) {
    uint16_t small[NTI_RANDOM_CHUNK];
    if (run->dtype != NT_F16 && run->dtype != NT_BF16)
        return;
    nti_cast(run->dtype, small, NT_F32, &run->data, run->n);
    nti_cast(NT_F32, &run->data, run->dtype, small, run->n);
}
static double nti_rounded(nt_dtype dtype, double x) {
    unsigned char small[8];
    nti_cast(dtype, small, NT_F64, &x, 1);
    nti_cast(NT_F64, &x, dtype, small, 1);
    return x;
}
// the run through a map, with another run as the second argument or attributes rounded to the dtype
static void nti_random_map2(nti_random_run *run, nti_map map, const nti_random_run *other, double a, double b) {
    const void *in[2];
    double attr[2];
    in[0] = &run->data;
    in[1] = other ? (const void *)&other->data : NULL;
    attr[0] = nti_rounded(run->dtype, a);
    attr[1] = nti_rounded(run->dtype, b);
    run->isa->math[run->dtype == NT_F64]->map[map](&run->data, in, run->n, attr);
    nti_random_round(run);
}
static void nti_random_map(nti_random_run *run, nti_map map, double a) { nti_random_map2(run, map, NULL, a, 0); }

// 32 or 64 random bits for each index, as 64
static NTI_NOINLINE void nti_random_words(const nti_random_isa *isa, nt_key_value key, int width, int64_t first, size_t n, uint64_t *out) {
    uint32_t high[NTI_RANDOM_CHUNK], low[NTI_RANDOM_CHUNK];
    isa->random[0]->hash(key, (uint64_t)first, n, width == 64 ? high : NULL, low);
    for (size_t k = 0; k < n; k++)
        out[k] = width == 64 ? (uint64_t)high[k] << 32 | low[k] : low[k];
}

// the run uniform in [lo, hi)
static void nti_random_uniform(nti_random_run *run, nt_key_value key, int64_t first, double lo, double hi) {
    const nti_random_isa *isa = run->isa;
    const int brain = run->dtype == NT_BF16;
    if (run->dtype == NT_F64) {
        nti_random_words(isa, key, 64, first, run->n, run->data.u64);
        isa->random[1]->uniform(run->data.u64, run->n, lo, hi);
        return;
    }
    isa->random[0]->hash(key, (uint64_t)first, run->n, NULL, run->data.u32);
    if (run->dtype == NT_F32) {
        isa->random[0]->uniform(run->data.u32, run->n, lo, hi);
        return;
    }
    for (size_t k = 0; k < run->n; k++) {   // 10 bits of a 16-bit draw, or 7 of an 8-bit one
        const uint32_t bits = run->data.u32[k];
        run->data.f32[k] = brain ? (float)(bits >> 1 & 127) * 0.0078125f : (float)(bits >> 6 & 1023) * 0.0009765625f;
    }
    nti_random_map(run, NTI_MAP_SCALE, nti_rounded(run->dtype, hi) - nti_rounded(run->dtype, lo));
    nti_random_map(run, NTI_MAP_ADD_SCALAR, lo);
    nti_random_map2(run, NTI_MAP_CLAMP, NULL, lo, HUGE_VAL);
}

// limits of the floating dtypes: half the distance from 1 to the next number, and the least normal number
static double nti_half_epsilon(nt_dtype dtype) {
    return dtype == NT_F64 ? 1.1102230246251565e-16 : dtype == NT_F32 ? 5.9604644775390625e-08 :
           dtype == NT_F16 ? 0.00048828125 : 0.00390625;
}
static double nti_least_normal(nt_dtype dtype) {
    return dtype == NT_F64 ? 2.2250738585072014e-308 : dtype == NT_F16 ? 6.103515625e-05 : 1.1754943508222875e-38;
}
static double nti_next_after(nt_dtype dtype, double x, double to) {
    return dtype == NT_F64 ? nextafter(x, to) : (double)nextafterf((float)x, (float)to);
}

static NTI_NOINLINE void nti_random_truncated(nti_random_run *run, const nti_random *r, int64_t first) {
    const double root = nti_rounded(r->dtype, 1.41421356237309504880);
    double end[2];
    nti_random_run ends;
    ends.isa = run->isa;
    ends.dtype = run->dtype;
    ends.n = 2;
    const nt_dtype compute = r->dtype == NT_F64 ? NT_F64 : NT_F32;
    end[0] = nti_rounded(r->dtype, nti_rounded(r->dtype, r->lo) / root);
    end[1] = nti_rounded(r->dtype, nti_rounded(r->dtype, r->hi) / root);
    nti_cast(compute, &ends.data, NT_F64, end, 2);
    nti_random_map(&ends, NTI_MAP_ERF, 0);
    nti_cast(NT_F64, end, compute, &ends.data, 2);
    nti_random_uniform(run, r->key, first, end[0], end[1]);
    nti_random_map(run, NTI_MAP_ERF_INV, 0);
    nti_random_map(run, NTI_MAP_SCALE, root);
    nti_random_map2(run, NTI_MAP_CLAMP, NULL, nti_next_after(r->dtype, r->lo, HUGE_VAL), nti_next_after(r->dtype, r->hi, -HUGE_VAL));
}
static NTI_NOINLINE void nti_random_laplace(nti_random_run *run, const nti_random *r, int64_t first) {
    nti_random_uniform(run, r->key, first, -1 + nti_half_epsilon(r->dtype), 1);
    const nti_random_run sign = *run;
    nti_random_map(run, NTI_MAP_ABS, 0);
    nti_random_map(run, NTI_MAP_NEG, 0);
    nti_random_map(run, NTI_MAP_LOG1P, 0);
    nti_random_map2(run, NTI_MAP_COPYSIGN, &sign, 0, 0);
    nti_random_map(run, NTI_MAP_NEG, 0);
}
static NTI_NOINLINE void nti_random_logistic(nti_random_run *run, const nti_random *r, int64_t first) {
    nti_random_uniform(run, r->key, first, nti_least_normal(r->dtype), 1);
    nti_random_run rest = *run;
    nti_random_map(&rest, NTI_MAP_NEG, 0);
    nti_random_map(&rest, NTI_MAP_LOG1P, 0);
    nti_random_map(run, NTI_MAP_LOG, 0);
    nti_random_map2(run, NTI_MAP_SUB, &rest, 0, 0);
}
static void nti_random_float(nti_random_run *run, const nti_random *r, int64_t first) {
    const double eps = nti_half_epsilon(r->dtype);
    switch (r->kind) {
    case NTI_RANDOM_UNIFORM:
        nti_random_uniform(run, r->key, first, r->lo, r->hi);
        break;
    case NTI_RANDOM_NORMAL:
        nti_random_uniform(run, r->key, first, -1 + eps, 1);
        nti_random_map(run, NTI_MAP_ERF_INV, 0);
        nti_random_map(run, NTI_MAP_SCALE, 1.41421356237309504880);
        break;
    case NTI_RANDOM_TRUNCATED_NORMAL:
        nti_random_truncated(run, r, first);
        break;
    case NTI_RANDOM_EXPONENTIAL:
        nti_random_uniform(run, r->key, first, 0, 1);
        nti_random_map(run, NTI_MAP_NEG, 0);
        nti_random_map(run, NTI_MAP_LOG1P, 0);
        nti_random_map(run, NTI_MAP_NEG, 0);
        break;
    case NTI_RANDOM_GUMBEL:
        nti_random_uniform(run, r->key, first, nti_least_normal(r->dtype), 1);
        for (int k = 0; k < 2; k++) {
            nti_random_map(run, NTI_MAP_LOG, 0);
            nti_random_map(run, NTI_MAP_NEG, 0);
        }
        break;
    case NTI_RANDOM_LAPLACE:
        nti_random_laplace(run, r, first);
        break;
    case NTI_RANDOM_LOGISTIC:
        nti_random_logistic(run, r, first);
        break;
    case NTI_RANDOM_CAUCHY:
        nti_random_uniform(run, r->key, first, 2 * eps, 1);
        nti_random_map(run, NTI_MAP_ADD_SCALAR, -0.5);
        nti_random_map(run, NTI_MAP_SCALE, 3.14159265358979323846);
        nti_random_map(run, NTI_MAP_TAN, 0);
        break;
    default:
        break;
    }
}

// JAX's randint: two draws, from the two halves of the key, make a number of twice the bits, which is reduced modulo the span
// in arithmetic of the dtype's width, at least 32 bits. A span of 0 stands for all numbers of the dtype.
static NTI_NOINLINE void nti_random_integers(nti_random_run *run, const nti_random *r, int64_t first, void *out) {
    const int bits = 8 * (int)nt_dtype_size(r->dtype), width = bits < 32 ? 32 : bits;
    const int is_signed = r->dtype == NT_I8 || r->dtype == NT_I16 || r->dtype == NT_I32 || r->dtype == NT_I64;
    const uint64_t mask = UINT64_MAX >> (64 - width);
    const int64_t most = bits == 64 ? INT64_MAX : (int64_t)(UINT64_MAX >> (64 - bits + is_signed)), least = is_signed ? -most - 1 : 0;
    const int64_t lo = r->int_lo < least ? least : r->int_lo > most ? most : r->int_lo;
    const int64_t hi = r->int_hi < least ? least : r->int_hi > most ? most : r->int_hi;
    const uint64_t span = hi > lo ? ((uint64_t)hi - (uint64_t)lo + (r->int_hi > most)) & mask : 1;
    uint64_t factor = (uint64_t)1 << (width / 2), lower[NTI_RANDOM_CHUNK], *upper = run->data.u64;
#define NTI_MODULO(x) (span ? (x) % span : (x))
    factor = NTI_MODULO(factor);
    factor = NTI_MODULO(factor * factor & mask);
    nti_random_words(run->isa, nt_key_split(r->key, 2, 0), width, first, run->n, upper);
    nti_random_words(run->isa, nt_key_split(r->key, 2, 1), width, first, run->n, lower);
    for (size_t k = 0; k < run->n; k++) {
        const uint64_t offset = (NTI_MODULO(upper[k]) * factor + NTI_MODULO(lower[k])) & mask;
        upper[k] = (uint64_t)lo + NTI_MODULO(offset);
    }
#undef NTI_MODULO
    nti_cast(r->dtype, out, NT_U64, upper, run->n);
}
// A float32 uniform number is a multiple of 2^-23, so that it is below p tells an integer comparison.
static void nti_random_booleans(nti_random_run *run, const nti_random *r, int64_t first, void *out) {
    const double p = r->kind == NTI_RANDOM_RADEMACHER ? 0.5 : (double)(float)r->lo;
    const uint32_t limit = p > 0 ? p < 1 ? (uint32_t)ceil(p * 8388608) : 8388608 : 0;
    uint8_t *to = (uint8_t *)out;
    run->isa->random[0]->hash(r->key, (uint64_t)first, run->n, NULL, run->data.u32);
    if (r->dtype == NT_BOOL) {
        for (size_t k = 0; k < run->n; k++)
            to[k] = run->data.u32[k] >> 9 < limit;
        return;
    }
    const int32_t otherwise = r->kind == NTI_RANDOM_RADEMACHER ? -1 : 0;
    for (size_t k = 0; k < run->n; k++)
        run->data.i32[k] = run->data.u32[k] >> 9 < limit ? 1 : otherwise;
    nti_cast(r->dtype, out, NT_I32, run->data.i32, run->n);
}
// the low bits of the hash
static void nti_random_bits(nti_random_run *run, const nti_random *r, int64_t first, void *out) {
    if (r->dtype == NT_U64 || r->dtype == NT_I64) {
        nti_random_words(run->isa, r->key, 64, first, run->n, run->data.u64);
        nti_cast(r->dtype, out, NT_U64, run->data.u64, run->n);
    } else {
        run->isa->random[0]->hash(r->key, (uint64_t)first, run->n, NULL, run->data.u32);
        nti_cast(r->dtype, out, NT_U32, run->data.u32, run->n);
    }
}

// elements first .. first + n - 1 of the array that r describes
static void nti_random_fill(const nti_random_isa *isa, const nti_random *r, int64_t first, int64_t n, void *out) {
    const size_t size = nt_dtype_size(r->dtype);
    unsigned char *to = (unsigned char *)out;
    nti_random_run run;
    run.isa = isa;
    for (int64_t i = 0; i < n; i += NTI_RANDOM_CHUNK, to += NTI_RANDOM_CHUNK * size) {
        run.dtype = r->dtype;
        run.n = n - i < NTI_RANDOM_CHUNK ? (size_t)(n - i) : (size_t)NTI_RANDOM_CHUNK;
        if (r->kind == NTI_RANDOM_BITS) {
            nti_random_bits(&run, r, first + i, to);
        } else if (r->kind == NTI_RANDOM_RANDINT) {
            nti_random_integers(&run, r, first + i, to);
        } else if (r->kind == NTI_RANDOM_BERNOULLI || r->kind == NTI_RANDOM_RADEMACHER) {
            nti_random_booleans(&run, r, first + i, to);
        } else {
            nti_random_float(&run, r, first + i);
            nti_cast(r->dtype, to, r->dtype == NT_F64 ? NT_F64 : NT_F32, &run.data, run.n);
        }
    }
}

// >>initializers
// Flax's initializers, element by element functions of (key, index) like the random arrays.
typedef enum nti_init_kind {
    NTI_INIT_ZEROS, NTI_INIT_ONES,
    NTI_INIT_NORMAL, NTI_INIT_UNIFORM,                       // scale: the standard deviation; [0, scale)
    NTI_INIT_TRUNCATED_NORMAL,                               // between lo and hi, times scale
    NTI_INIT_VARIANCE_SCALING,
    NTI_INIT_ORTHOGONAL                                      // times scale
} nti_init_kind;

typedef struct nti_init {
    nti_init_kind kind;
    double scale, lo, hi;
    nt_fan mode;                                            // the rest: variance scaling
    nti_random_kind distribution;                            // TRUNCATED_NORMAL, NORMAL or UNIFORM
    uint32_t in_axes, out_axes, batch_axes;                  // bit k: axis k. The usual: in 1 << (rank - 2), out 1 << (rank - 1), batch 0
} nti_init;

static void nti_move(size_t size, int64_t rows, int64_t n, char *to, int64_t rows_to, int64_t step_to, const char *from,
    int64_t rows_from, int64_t step_from);
static double nti_axes_product(const nt_shape *shape, uint32_t axes) {
    double p = 1;
    for (int k = 0; k < shape->rank; k++)
        if (axes >> k & 1)
            p *= (double)shape->size[k];
    return p;
}
// scale / fan, the variance of a weight
static double nti_fan_variance(const nti_init *d, const nt_shape *shape) {
    const double in = nti_axes_product(shape, d->in_axes), out = nti_axes_product(shape, d->out_axes);
    const double field = nti_axes_product(shape, 0xffffffffu) / in / out / nti_axes_product(shape, d->batch_axes);
    const double fan_in = in * field, fan_out = out * field;
    switch (d->mode) {
    case NT_FAN_IN: return d->scale / fan_in;
    case NT_FAN_OUT: return d->scale / fan_out;
    case NT_FAN_AVG: return d->scale / ((fan_in + fan_out) / 2);
    default: return d->scale / sqrt(fan_in * fan_out);
    }
}
static void nti_random_scale(const nti_random_isa *isa, nt_dtype dtype, void *data, int64_t n, double factor) {
    nti_random_run run;
    const size_t size = nt_dtype_size(dtype);
    unsigned char *p = (unsigned char *)data;
    run.isa = isa;
    run.dtype = dtype;
    const nt_dtype compute = dtype == NT_F64 ? NT_F64 : NT_F32;
    for (int64_t i = 0; i < n; i += NTI_RANDOM_CHUNK, p += NTI_RANDOM_CHUNK * size) {
        run.n = n - i < NTI_RANDOM_CHUNK ? (size_t)(n - i) : (size_t)NTI_RANDOM_CHUNK;
        nti_cast(compute, &run.data, dtype, p, run.n);
        nti_random_map(&run, NTI_MAP_SCALE, factor);
        nti_cast(dtype, p, compute, &run.data, run.n);
    }
}
static void nti_init_constant(nt_dtype dtype, void *out, int64_t n, double value) {
    const size_t size = nt_dtype_size(dtype);
    unsigned char one[8], *to = (unsigned char *)out;
    nti_cast(dtype, one, NT_F64, &value, 1);
    for (int64_t i = 0; i < n; i++, to += size)
        memcpy(to, one, size);
}
// The orthogonal factor of a normal matrix (longer side, shorter side), the triangle's diagonal being positive; transposed where the
// last axis is the longer one, so that it has orthonormal rows then and orthonormal columns else.
static void nti_init_orthogonal(const nti_random_isa *isa, const nti_init *d, nt_key_value key, const nt_shape *shape, nt_dtype dtype, void *out) {
    int64_t last = shape->size[shape->rank - 1], others = 1, size = (int64_t)nt_dtype_size(dtype);
    for (int k = 0; k < shape->rank - 1; k++) others *= shape->size[k];
    int64_t longer = nti_max(last, others), shorter = nti_min(last, others);
    int by_rows = last > others;
    nti_random r;
    memset(&r, 0, sizeof r);
    r.kind = NTI_RANDOM_NORMAL, r.dtype = dtype, r.key = key, r.hi = 1;
    if (!by_rows) nti_random_fill(isa, &r, 0, last * others, out);
    for (int64_t at = 0; by_rows && at < longer * shorter;) { // rows of the drawn matrix are columns here
        double piece[32];
        int64_t row = at / shorter, column = at % shorter, some = nti_min(32, shorter - column);
        nti_random_fill(isa, &r, at, some, piece);
        nti_move((size_t)size, 1, some, (char *)out + (column * longer + row) * size, 0, longer, (const char *)piece, 0, 1);
        at += some;
    }
    nti_isas[0].linear[dtype == NT_F64]->orthonormalize(out, shorter, longer, by_rows);
    nti_random_scale(isa, dtype, out, last * others, d->scale);
}
// Elements first .. first + n - 1 of a parameter of this shape and dtype (a floating one).
static void nti_initialize(const nti_random_isa *isa, const nti_init *d, nt_key_value key, const nt_shape *shape, nt_dtype dtype,
                           int64_t first, int64_t n, void *out) {
    nti_random r;
    double factor = d->scale;
    if (d->kind == NTI_INIT_ORTHOGONAL) {
        nti_init_orthogonal(isa, d, key, shape, dtype, out);
        return;
    }
    if (d->kind == NTI_INIT_ZEROS || d->kind == NTI_INIT_ONES) {
        nti_init_constant(dtype, out, n, d->kind == NTI_INIT_ONES);
        return;
    }
    r.kind = d->kind == NTI_INIT_NORMAL ? NTI_RANDOM_NORMAL :
             d->kind == NTI_INIT_UNIFORM ? NTI_RANDOM_UNIFORM : NTI_RANDOM_TRUNCATED_NORMAL;
    r.dtype = dtype;
    r.key = key;
    r.lo = d->kind == NTI_INIT_TRUNCATED_NORMAL ? d->lo : 0;
    r.hi = d->kind == NTI_INIT_TRUNCATED_NORMAL ? d->hi : 1;
    r.int_lo = r.int_hi = 0;
    if (d->kind == NTI_INIT_VARIANCE_SCALING) {
        const int truncated = d->distribution == NTI_RANDOM_TRUNCATED_NORMAL, uniform = d->distribution == NTI_RANDOM_UNIFORM;
        const double variance = nti_rounded(dtype, nti_fan_variance(d, shape));
        r.kind = d->distribution;
        r.lo = truncated ? -2 : -1;
        r.hi = truncated ? 2 : 1;
        factor = nti_rounded(dtype, sqrt(uniform ? nti_rounded(dtype, 3 * variance) : variance));
        if (truncated)
            factor /= nti_rounded(dtype, 0.87962566103423978);   // the standard deviation of a unit normal cut at 2
    }
    nti_random_fill(isa, &r, first, n, out);
    nti_random_scale(isa, dtype, out, n, factor);
}
// >>matmul
// The matmul row of the evaluator: how a product is cut into tiles, and the loops over the leading axes.
//   in[0] A (..., m, k), in[1] B (..., k, n), out C (..., m, n), any strides; i[0]: add to C instead of storing.

typedef struct nti_matmul_cut {    // a tile is `group` whole products, or one of rows x columns pieces of one product
    nti_gemm g;                    // a whole product, without its data
    int64_t whole_m, whole_n, products, group, tile_m, tile_n, rows, columns;
    int leading;                   // axes before the last two that are looped over
    int transposed;                // C^T = B^T A^T is computed
} nti_matmul_cut;

static int64_t nti_view_stride(const nti_view *v, int from_last) { return v->stride[v->rank - from_last]; }

// Leading axes along which B repeats and the rows of A and C go on evenly are more rows.
static void nti_matmul_join_rows(const nti_call *c, nti_matmul_cut *t) {
    const nti_view *a = &c->in[0], *b = &c->in[1];
    for (; t->leading > 0; t->leading--) {
        int axis = t->leading - 1;
        int64_t sa = a->stride[axis], sc = c->out.stride[axis];
        if (c->out.shape[axis] == 1) continue;
        if (b->stride[axis] != 0) return;
        if (t->g.m == 1) { t->g.rsa = sa; t->g.rsc = sc; }
        else if (sa != t->g.m * t->g.rsa || sc != t->g.m * t->g.rsc) return;
        t->g.m *= c->out.shape[axis];
    }
}

// C^T = B^T A^T: the sums are the same, and the contiguous direction of C becomes its rows.
static void nti_gemm_transpose(nti_gemm *g) {
    nti_gemm_swap(&g->m, &g->n);
    nti_gemm_swap(&g->rsc, &g->csc);
    nti_gemm_swap(&g->rsa, &g->csb);
    nti_gemm_swap(&g->csa, &g->rsb);
}

// What C = A B costs as it stands, in cycles of 16 multiply-adds: whole vectors, packing B, storing C past a stride.
static double nti_gemm_orientation_cost(const nti_gemm *g, int64_t lanes) {
    double m = (double)g->m, n = (double)g->n, k = (double)g->k, cost = m * k * (double)nti_multiple(g->n, lanes) / (double)lanes;
    if (g->m == 1) cost *= 2;
    if (g->csb != 1) cost += k * (n * 0.4 + (g->n % (2 * lanes) ? 6 : 0));
    else cost += (double)(g->n % (2 * lanes) ? 14 : 0) * k;
    return cost + (g->csc == 1 ? 0 : m * n * 2.5);
}

static int nti_matmul_transposed(const nti_gemm *g, int64_t lanes) {
    nti_gemm t = *g;
    nti_gemm_transpose(&t);
    return nti_gemm_orientation_cost(&t, lanes) < nti_gemm_orientation_cost(g, lanes);
}

// A stride at which the rows of one micro tile fall into few sets of the first-level cache.
static int nti_gemm_bad_stride(int64_t stride, size_t size) { return stride * (int64_t)size % 2048 == 0 && stride != 0; }

// Operands that do not stay in a second-level cache
static int nti_gemm_is_large(const nti_gemm *g, size_t size) { return nti_max(g->m, g->n) * g->k * (int64_t)size > 3145728; }

static void nti_gemm_packing(nti_gemm *g, size_t size) {
    g->slab = nti_gemm_is_large(g, size) ? 512 : 256;
    g->whole = g->n % (int64_t)(NTI_PANEL_BYTES / size) == 0;
    int64_t bytes_a = g->csa * (int64_t)size, bytes_b = g->rsb * (int64_t)size;
    if (g->csa == 1) g->pack_a = nti_gemm_bad_stride(g->rsa, size) && g->n > 16;
    else g->pack_a = g->csa != 0 && g->n >= 64 && (g->rsa != 1 || bytes_a > 1024);
    g->pack_b = g->m >= 64 && g->k * bytes_b > 2097152;
}

// A product of one worker as it runs best.
static void nti_gemm_arrange(nti_gemm *g, size_t size) {
    if (nti_matmul_transposed(g, NTI_PANEL_BYTES / 2 / (int64_t)size)) {
        const void *a = g->a;
        g->a = g->b, g->b = a;
        nti_gemm_transpose(g);
    }
    nti_gemm_packing(g, size);
}

// Arithmetic, and what moving the operands costs in the same unit: products with a vector are bound by that.
static double nti_gemm_cost(double m, double n, double k) { return 2 * m * n * k + 16 * (m * n + m * k + n * k); }

// Pieces of a large product: halves of the longer side, while they are large enough to repay reading their operands: from the
// second-level cache, or from behind it.
static void nti_matmul_pieces(nti_matmul_cut *t, size_t size) {
    const nti_gemm *g = &t->g;
    int64_t unit = (int64_t)(NTI_PANEL_BYTES / size), least = nti_gemm_is_large(g, size) ? 256 : 128;
    t->tile_m = g->m;
    t->tile_n = g->n;
    while (nti_gemm_cost((double)t->tile_m, (double)t->tile_n, (double)g->k) > NTI_TILE_FLOPS) {
        if (t->tile_n > least && (t->tile_n >= t->tile_m || t->tile_m <= least)) t->tile_n = nti_multiple((t->tile_n + 1) / 2, unit);
        else if (t->tile_m > least) t->tile_m = nti_multiple((t->tile_m + 1) / 2, 4);
        else break;
    }
    t->rows = t->tile_m > 0 ? (g->m + t->tile_m - 1) / t->tile_m : 0;
    t->columns = t->tile_n > 0 ? (g->n + t->tile_n - 1) / t->tile_n : 0;
}

static size_t nti_gemm_element(const nti_call *c) { return c->out.dtype == NT_F64 ? sizeof(double) : sizeof(float); }

static nti_matmul_cut nti_matmul_shape(const nti_call *c) {
    const nti_view *a = &c->in[0], *b = &c->in[1], *o = &c->out;
    nti_matmul_cut t;
    memset(&t, 0, sizeof t);
    t.leading = o->rank - 2;
    t.g.m = o->shape[o->rank - 2];
    t.g.n = o->shape[o->rank - 1];
    t.g.k = a->shape[a->rank - 1];
    t.g.rsa = nti_view_stride(a, 2); t.g.csa = nti_view_stride(a, 1);
    t.g.rsb = nti_view_stride(b, 2); t.g.csb = nti_view_stride(b, 1);
    t.g.rsc = nti_view_stride(o, 2); t.g.csc = nti_view_stride(o, 1);
    t.g.accumulate = c->i[0] != 0;
    return t;
}

static nti_matmul_cut nti_matmul_plan_cut(const nti_call *c) {
    nti_matmul_cut t = nti_matmul_shape(c);
    size_t size = nti_gemm_element(c);
    nti_matmul_join_rows(c, &t);
    t.transposed = nti_matmul_transposed(&t.g, NTI_PANEL_BYTES / 2 / (int64_t)size);
    if (t.transposed) nti_gemm_transpose(&t.g);
    t.whole_m = t.g.m;
    t.whole_n = t.g.n;
    t.products = 1;
    for (int k = 0; k < t.leading; k++) t.products *= c->out.shape[k];
    nti_matmul_pieces(&t, size);
    t.group = 1;
    if (t.rows * t.columns == 1) t.group = (int64_t)(NTI_TILE_FLOPS / nti_gemm_cost((double)t.g.m, (double)t.g.n, (double)t.g.k));
    t.group = nti_max(1, nti_min(t.products, t.group));
    nti_gemm_packing(&t.g, size);
    t.g.m = t.tile_m;
    t.g.n = t.tile_n;
    return t;
}

static void nti_plan_matmul(const nti_call *c, nti_plan *p) {
    nti_matmul_cut t = nti_matmul_plan_cut(c);
    nti_gemm_room r = nti_gemm_scratch(&t.g, nti_gemm_element(c));
    p->phases = 1;
    p->tiles[0] = (t.products + t.group - 1) / t.group * t.rows * t.columns;
    p->shared = 0;
    p->worker = 0;
    if (c->out.dtype == NT_F32 || c->out.dtype == NT_F64) p->worker = (size_t)(r.block + r.panel + r.sums) * nti_gemm_element(c);
}

// i32 and u32 (the same bits): plain loops
static void nti_product_integer(const nti_gemm *g) {
    for (int64_t i = 0; i < g->m; i++) {
        for (int64_t j = 0; j < g->n; j++) {
            const uint32_t *a = (const uint32_t *)g->a + i * g->rsa, *b = (const uint32_t *)g->b + j * g->csb;
            uint32_t *c = (uint32_t *)g->c + i * g->rsc + j * g->csc, sum = g->accumulate ? *c : 0;
            for (int64_t k = 0; k < g->k; k++) sum += a[k * g->csa] * b[k * g->rsb];
            *c = sum;
        }
    }
}

// What lies at the start of product `index` of an operand.
static char *nti_matmul_at(const nti_call *c, const nti_view *v, int leading, int64_t index, int64_t element) {
    for (int k = leading - 1; k >= 0; k--) {
        element += index % c->out.shape[k] * v->stride[k];
        index /= c->out.shape[k];
    }
    return (char *)v->data + element * (v->dtype == NT_F64 ? 8 : 4);
}

static void nti_eval_matmul(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_matmul_cut t = nti_matmul_plan_cut(c);
    nti_gemm g = t.g;
    int64_t pieces = t.rows * t.columns, row = tile % pieces / t.columns * t.tile_m, column = tile % t.columns * t.tile_n;
    int64_t first = tile / pieces * t.group, end = nti_min(first + t.group, t.products);
    const nti_view *a = &c->in[t.transposed], *b = &c->in[!t.transposed];
    (void)phase;
    g.m = nti_min(t.tile_m, t.whole_m - row);
    g.n = nti_min(t.tile_n, t.whole_n - column);
    for (int64_t k = first; k < end; k++) {
        g.a = nti_matmul_at(c, a, t.leading, k, row * g.rsa);
        g.b = nti_matmul_at(c, b, t.leading, k, column * g.csb);
        g.c = nti_matmul_at(c, &c->out, t.leading, k, row * g.rsc + column * g.csc);
        if (c->out.dtype == NT_F32 || c->out.dtype == NT_F64) NTI_GEMM_TABLE(c, c->out.dtype)->product(&g, worker);
        else nti_product_integer(&g);
    }
}
// >>convolution
// The convolution rows of the evaluator: nti_*_conv, and its transposes with respect to the image (nti_*_conv_input) and
// to the kernel (nti_*_conv_filter). Integer attributes: accumulate, spatial rank d, groups, then for each spatial axis
// stride, dilation of the kernel, dilation of the image, pad low, pad high. All operands are contiguous.

static void nti_conv_axis_finish(nti_conv_axis *a) {
    a->phases = a->lhs / nti_gcd(a->stride, a->lhs);
    a->step = a->stride / nti_gcd(a->stride, a->lhs);
    a->tap_step = a->lhs / nti_gcd(a->dilation, a->lhs);
    a->tap_move = a->dilation / nti_gcd(a->dilation, a->lhs);
    a->blocks = 1;
}

static void nti_conv_axis_none(nti_conv_axis *a) {
    memset(a, 0, sizeof *a);
    a->out = a->in = a->taps = a->stride = a->dilation = a->lhs = 1;
}

static int nti_conv_axis_is_plain(const nti_conv_axis *a) {
    return a->taps == 1 && a->stride == 1 && a->lhs == 1 && a->pad == 0 && a->in == a->out;
}

// Long rows of pixels suit the kernels: a last axis of size 1 changes places with another, and where no axis has neighbours
// to sum over (1x1 convolutions) all pixels of the batch are one row.
static void nti_conv_lengthen_rows(nti_conv *v) {
    nti_conv_axis *a = v->axis;
    for (int k = 0; k < 2 && nti_conv_axis_is_plain(&a[2]) && a[2].out == 1; k++) {
        a[2] = a[1];
        a[1] = a[0];
        nti_conv_axis_none(&a[0]);
    }
    if (!nti_conv_axis_is_plain(&a[0]) || !nti_conv_axis_is_plain(&a[1]) || !nti_conv_axis_is_plain(&a[2])) return;
    a[2].in = a[2].out = v->batch * a[0].out * a[1].out * a[2].out;
    nti_conv_axis_none(&a[0]);
    nti_conv_axis_none(&a[1]);
    v->batch = 1;
}

// The forward geometry; w has the kernel's shape, x and y the shapes of image and output.
static nti_conv nti_conv_shape(const nti_call *c, const nti_view *x, const nti_view *w, const nti_view *y) {
    nti_conv v;
    int d = (int)c->i[1];
    memset(&v, 0, sizeof v);
    for (int k = 0; k < 3; k++) {
        nti_conv_axis *a = &v.axis[k];
        int from = k - (3 - d);
        nti_conv_axis_none(a);
        if (from >= 0) {
            const int64_t *i = c->i + 3 + 5 * from;
            a->in = x->shape[1 + from];
            a->taps = w->shape[from];
            a->out = y->shape[1 + from];
            a->stride = i[0];
            a->dilation = i[1];
            a->lhs = i[2];
            a->pad = i[3];
        }
    }
    v.batch = x->shape[0];
    nti_conv_lengthen_rows(&v);
    for (int k = 0; k < 3; k++) nti_conv_axis_finish(&v.axis[k]);
    v.groups = c->i[2];
    v.channels = w->shape[d];
    v.columns = y->shape[1 + d] / v.groups;
    v.in_pitch = v.groups * v.channels;
    v.out_pitch = v.groups * v.columns;
    v.in_image = v.axis[0].in * v.axis[1].in * v.axis[2].in * v.in_pitch;
    v.out_image = v.axis[0].out * v.axis[1].out * v.axis[2].out * v.out_pitch;
    v.accumulate = c->i[0] != 0;
    v.wt = v.channels * v.groups * v.columns;
    v.wk = v.groups * v.columns;
    v.wn = 1;
    v.wg = v.columns;
    v.depthwise = v.groups > 1 && v.channels == 1 && v.columns == 1;
    if (v.depthwise) {
        v.columns = v.groups;
        v.groups = 1;
    }
    v.x = x->data;
    v.w = w->data;
    v.out = y->data;
    return v;
}

// The transpose with respect to the image: the same with image and output, stride and image dilation exchanged, taps from the other end.
static nti_conv nti_conv_transposed(nti_conv v) {
    for (int k = 0; k < 3; k++) {
        nti_conv_axis *a = &v.axis[k];
        a->pad = (a->taps - 1) * a->dilation - a->pad;
        nti_gemm_swap(&a->in, &a->out);
        nti_gemm_swap(&a->stride, &a->lhs);
        nti_conv_axis_finish(a);
    }
    const void *x = v.x;
    v.x = v.out;
    v.out = (void *)(uintptr_t)x;
    if (!v.depthwise) nti_gemm_swap(&v.channels, &v.columns);
    nti_gemm_swap(&v.in_pitch, &v.out_pitch);
    nti_gemm_swap(&v.in_image, &v.out_image);
    nti_gemm_swap(&v.wk, &v.wn);
    v.flip = 1;
    return v;
}

static double nti_min_double(double a, double b) { return a < b ? a : b; }
static double nti_max_double(double a, double b) { return a > b ? a : b; }

static double nti_conv_pixels(const nti_conv *v) { return (double)v->axis[0].out * (double)v->axis[1].out * (double)v->axis[2].out; }

// Arithmetic for one image and group; each output meets one in `lhs` taps.
static double nti_conv_work(const nti_conv *v) {
    double taps = 1;
    for (int k = 0; k < 3; k++) taps *= (double)((v->axis[k].taps + v->axis[k].tap_step - 1) / v->axis[k].tap_step);
    return nti_conv_pixels(v) * (double)v->columns * (2 * taps * (double)v->channels + 16);
}

// Tiles: a block of one image, or several small images; all columns unless that leaves too few tiles.
static void nti_conv_cut(nti_conv *v, int64_t unit) {
    double work = nti_conv_work(v), target = NTI_TILE_FLOPS, pixels = nti_conv_pixels(v);
    if (v->wn != 1 && pixels > 0) target = nti_max_double(target, 128 * work / pixels);   // to repay the transposing of the kernel
    for (int k = 0; k < 3; k++) {
        nti_conv_axis *a = &v->axis[k];
        int64_t count = (a->out + a->phases - 1) / a->phases, least = k == 0 ? 1 : k == 1 ? 2 : 32;   // outputs of a block
        int only = k < 2 || v->axis[0].out * v->axis[1].out == 1;
        a->blocks = only ? (int64_t)nti_min_double(work / target, (double)(count / least)) : 1;
        if (k == 2) a->blocks = nti_max(a->blocks, (count + 255) / 256);
        a->blocks = nti_max(1, nti_min(a->blocks, count));
        work /= (double)a->blocks;
    }
    int64_t blocks = v->axis[0].blocks * v->axis[1].blocks * v->axis[2].blocks, tiles;
    v->images = blocks > 1 || work <= 0 ? 1 : nti_max(1, nti_min(v->batch, (int64_t)(target / work)));
    v->image_blocks = (v->batch + v->images - 1) / v->images;
    v->tile_columns = v->columns;
    work *= (double)v->images;
    for (tiles = blocks * v->image_blocks; v->tile_columns > unit && work > target && tiles < 16; tiles *= 2, work /= 2) {
        v->tile_columns = nti_multiple((v->tile_columns + 1) / 2, unit);
    }
    v->column_blocks = v->tile_columns > 0 ? (v->columns + v->tile_columns - 1) / v->tile_columns : 0;
}

// Scratch: the bound over all phases and blocks, for the narrowest and the widest vectors.
static void nti_conv_scratch(nti_conv *v, int64_t unit) {
    int64_t extent[3] = { 0, 0, 0 }, taps = 1, inside = 1, row = 0;
    for (int k = 0; k < 3; k++) {
        nti_conv_axis *a = &v->axis[k];
        int64_t most = 0;
        for (int64_t phase = 0; phase < a->phases; phase++) {
            nti_conv_part whole = nti_conv_part_of(a, phase, 0);   // the first block is the largest
            extent[k] = nti_max(extent[k], whole.extent);
            most = nti_max(most, whole.taps);
            if (k == 2) row = nti_max(row, whole.count);
            int64_t blocks = a->blocks;
            a->blocks = 1;
            whole = nti_conv_part_of(a, phase, 0);
            a->blocks = blocks;
            inside = inside && whole.base >= 0 && whole.base + whole.extent <= a->in;
        }
        taps *= most;
    }
    int whole = v->wn == 1 && v->columns % unit == 0;
    v->runs = taps;
    if (v->depthwise) return;
    if (v->across) {
        v->slab = nti_gemm_pitch(extent[0] * extent[1] * extent[2]) * v->channels + unit;
        v->sums = v->columns * unit;
        return;
    }
    v->slab = inside ? 0 : nti_multiple(extent[0] * extent[1] * extent[2] * v->channels, 16);
    v->panel = whole ? 0 : taps * v->channels * unit;
    v->sums = v->columns % unit == 0 ? 0 : row * unit;
}

static size_t nti_conv_bytes(const nti_conv *v, size_t size) {
    return (size_t)nti_multiple(v->runs * (int64_t)sizeof(nti_run), 64) + (size_t)(v->slab + v->panel + v->sums) * size;
}

static void nti_conv_prepare(nti_conv *v, size_t size) {
    int64_t unit = (int64_t)(NTI_PANEL_BYTES / size);
    v->across = !v->depthwise && v->columns <= 4 && v->axis[2].step == 1 && v->axis[2].out >= 8 * v->axis[2].phases;
    nti_conv_cut(v, unit);
    nti_conv_scratch(v, unit);
}

static nti_conv nti_conv_forward(const nti_call *c) {
    nti_conv v = nti_conv_shape(c, &c->in[0], &c->in[1], &c->out);
    nti_conv_prepare(&v, nti_gemm_element(c));
    return v;
}

static nti_conv nti_conv_backward(const nti_call *c) {
    nti_conv v = nti_conv_transposed(nti_conv_shape(c, &c->out, &c->in[1], &c->in[0]));
    nti_conv_prepare(&v, nti_gemm_element(c));
    return v;
}

static void nti_conv_plan(const nti_call *c, const nti_conv *v, nti_plan *p) {
    p->phases = 1;
    p->tiles[0] = v->groups * v->image_blocks * v->column_blocks * v->axis[0].blocks * v->axis[1].blocks * v->axis[2].blocks;
    if (nti_conv_pixels(v) <= 0) p->tiles[0] = 0;
    p->shared = 0;
    p->worker = nti_conv_bytes(v, nti_gemm_element(c));
}

static void nti_plan_conv(const nti_call *c, nti_plan *p) {
    nti_conv v = nti_conv_forward(c);
    nti_conv_plan(c, &v, p);
}

static void nti_eval_conv(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_conv v = nti_conv_forward(c);
    (void)phase;
    NTI_GEMM_TABLE(c, c->out.dtype)->conv(&v, tile, worker);
}

static void nti_plan_conv_input(const nti_call *c, nti_plan *p) {
    nti_conv v = nti_conv_backward(c);
    nti_conv_plan(c, &v, p);
}

static void nti_eval_conv_input(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_conv v = nti_conv_backward(c);
    (void)phase;
    NTI_GEMM_TABLE(c, c->out.dtype)->conv(&v, tile, worker);
}

static int64_t nti_divide_up(double a, double b) { return a > b ? (int64_t)(a / b) + 1 : 1; }

// Tiles of the kernel's gradient: columns and taps first, which cost nothing, then slabs of pixels, whose partial sums
// may take a sixteenth of the operands.
static void nti_filter_cut(nti_filter *f, size_t size) {
    nti_conv *v = &f->v;
    int64_t unit = (int64_t)(NTI_PANEL_BYTES / size), out = v->axis[2].out;
    double pixels = (double)v->batch * nti_conv_pixels(v), taps = (double)f->tap_groups * (double)f->rows;
    double work = pixels * (2 * taps * (double)v->columns + 16 * (double)(v->columns + v->channels));
    double operands = pixels * (double)v->out_pitch + (double)v->batch * (double)v->in_image;
    int64_t most = nti_divide_up(work, NTI_TILE_FLOPS);
    f->tap_blocks = nti_max(1, nti_min(most, f->tap_groups));
    f->tile_taps = nti_max(1, (f->tap_groups + f->tap_blocks - 1) / f->tap_blocks);
    f->tap_blocks = (f->tap_groups + f->tile_taps - 1) / f->tile_taps;
    most = most / nti_max(1, f->tap_blocks);
    v->tile_columns = v->columns;
    if (most > 1 && v->columns > 2 * unit) v->tile_columns = 2 * unit;
    v->column_blocks = v->tile_columns > 0 ? (v->columns + v->tile_columns - 1) / v->tile_columns : 0;
    most = most / nti_max(1, v->column_blocks);
    f->pitch = nti_multiple(v->columns, unit);
    double one = taps * (double)v->groups * (double)f->pitch, room = operands / 16 > 16384 ? operands / 16 : 16384;
    f->segments = nti_max(1, (out + 511) / 512);
    f->units = out > 0 ? v->batch * v->axis[0].out * v->axis[1].out * f->segments : 0;
    f->slabs = one > 0 ? nti_max(1, nti_min(nti_min(most, f->units), (int64_t)(room / one))) : 1;
    f->partials = f->slabs > 1 ? (size_t)f->slabs * (size_t)one : 0;
    f->chunk = nti_max(1, 256 * f->segments / nti_max(1, out));
}

static nti_filter nti_filter_prepare(const nti_call *c) {
    nti_filter f;
    size_t size = nti_gemm_element(c);
    int64_t unit = (int64_t)(NTI_PANEL_BYTES / size);
    memset(&f, 0, sizeof f);
    f.v = nti_conv_shape(c, &c->in[0], &c->out, &c->in[1]);
    f.v.w = c->in[1].data;
    f.v.out = c->out.data;
    const nti_conv_axis *a = f.v.axis;
    f.merged = !f.v.depthwise && a[2].lhs == 1 && (a[2].dilation == 1 || a[2].taps == 1);
    int leaves = a[2].pad > 0 || (a[2].out - 1) * a[2].stride - a[2].pad + a[2].taps > a[2].in;
    f.copy = f.merged && (leaves || (f.v.groups > 1 && a[2].taps > 1));
    f.rows = f.v.channels * (f.merged ? a[2].taps : 1);
    f.tap_groups = a[0].taps * a[1].taps * (f.merged ? 1 : a[2].taps);
    nti_filter_cut(&f, size);
    int64_t length = nti_max(1, (a[2].out + f.segments - 1) / f.segments);
    f.v.runs = f.chunk;
    f.v.slab = f.copy ? nti_multiple(f.chunk * ((length - 1) * a[2].stride + a[2].taps) * f.v.channels, 16) : 0;
    f.v.panel = !f.v.depthwise && (f.v.columns % unit || NTI_FILTER_PACKS(f.v.out_pitch, size)) ? f.chunk * length * unit : 0;
    int direct = !f.v.accumulate && (f.v.depthwise || f.v.columns % unit == 0);
    if (f.slabs == 1) f.pitch = nti_multiple(f.v.tile_columns, unit);
    f.v.sums = f.slabs == 1 && !direct ? f.tile_taps * f.rows * f.pitch : 0;
    f.sum_blocks = nti_max(1, nti_min(f.v.groups * f.tap_groups * f.rows, (int64_t)(f.partials / 65536)));
    return f;
}

static void nti_plan_conv_filter(const nti_call *c, nti_plan *p) {
    nti_filter f = nti_filter_prepare(c);
    p->phases = f.slabs > 1 ? 2 : 1;
    p->tiles[0] = f.slabs * f.v.groups * f.tap_blocks * f.v.column_blocks;
    if (f.rows == 0) p->tiles[0] = 0;
    p->tiles[1] = f.sum_blocks;
    p->shared = f.partials * nti_gemm_element(c);
    p->worker = nti_conv_bytes(&f.v, nti_gemm_element(c));
}

static void nti_eval_conv_filter(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_filter f = nti_filter_prepare(c);
    if (phase == 0) NTI_GEMM_TABLE(c, c->out.dtype)->filter(&f, tile, c->shared, worker);
    else NTI_GEMM_TABLE(c, c->out.dtype)->filter_sum(&f, tile, c->shared);
}
// >>axes
// Strided operands as lists of axes. nti_axes maps a flat row-major index over some axes to an offset; since it is only
// that map, axes that follow each other in memory count as one and axes of size 1 as none.

typedef struct nti_axes {
    int count;
    int64_t total;                                       // elements; 1 without axes
    int64_t size[NT_MAX_RANK], stride[NT_MAX_RANK];
} nti_axes;

static void nti_axes_start(nti_axes *a) { a->count = 0, a->total = 1; }

static void nti_axes_push(nti_axes *a, int64_t size, int64_t stride) {
    a->total *= size;
    if (size == 1) return;
    int last = a->count - 1;
    if (last >= 0 && a->stride[last] == stride * size) {
        a->size[last] *= size;
        a->stride[last] = stride;
        return;
    }
    a->size[a->count] = size;
    a->stride[a->count++] = stride;
}

static void nti_axes_of(nti_axes *a, const nti_view *v) {
    nti_axes_start(a);
    for (int k = 0; k < v->rank; k++) nti_axes_push(a, v->shape[k], v->stride[k]);
}

static int64_t nti_axes_offset(const nti_axes *a, int64_t flat) {
    int64_t offset = 0;
    if (a->count == 1) return flat * a->stride[0];
    for (int k = a->count - 1; k >= 0 && flat; k--) {
        offset += flat % a->size[k] * a->stride[k];
        flat /= a->size[k];
    }
    return offset;
}

static int64_t nti_axes_step(const nti_axes *a) { return a->count ? a->stride[a->count - 1] : 0; }     // of the last axis
static int nti_axes_contiguous(const nti_axes *a) { return a->count == 0 || (a->count == 1 && a->stride[0] == 1); }

// rows x n elements of `size` bytes
#define NTI_MOVE(T) \
    for (int64_t r = 0; r < rows; r++, to += rows_to * (int64_t)sizeof(T), from += rows_from * (int64_t)sizeof(T)) { \
        const char *p = from; \
        char *o = to; \
        for (int64_t k = 0; k < n; k++, o += step_to * (int64_t)sizeof(T), p += step_from * (int64_t)sizeof(T)) memcpy(o, p, sizeof(T)); \
    }
static void nti_move_block(size_t size, int64_t rows, int64_t n, char *to, int64_t rows_to, int64_t step_to, const char *from,
    int64_t rows_from, int64_t step_from) {
    if (size == 8) { NTI_MOVE(uint64_t) }
    else if (size == 4) { NTI_MOVE(uint32_t) }
    else if (size == 2) { NTI_MOVE(uint16_t) }
    else { NTI_MOVE(uint8_t) }
}
#undef NTI_MOVE

// n copies of one element: what is there is doubled.
static void nti_repeat(size_t size, int64_t n, char *to, const char *from) {
    size_t have = size, all = (size_t)n * size;
    memcpy(to, from, size);
    while (have < all) {
        size_t some = have < all - have ? have : all - have;
        memcpy(to + have, to, some);
        have += some;
    }
}

// The same for any strides and sizes: rows that are contiguous on both sides by memcpy, transposes in blocks, whose lines stay
// in the first-level cache whatever the strides are.
#define NTI_MOVE_SIDE 16
static void nti_move(size_t size, int64_t rows, int64_t n, char *to, int64_t rows_to, int64_t step_to, const char *from,
    int64_t rows_from, int64_t step_from) {
    int64_t bytes = (int64_t)size, side = step_from != 1 && step_from != 0 && rows > 1 ? NTI_MOVE_SIDE : INT64_MAX;
    if (step_to == 1 && step_from == 1 && n * bytes >= 16) {
        for (int64_t r = 0; r < rows; r++) memcpy(to + r * rows_to * bytes, from + r * rows_from * bytes, (size_t)(n * bytes));
        return;
    }
    if (step_to == 1 && step_from == 0 && n * bytes >= 64) {
        for (int64_t r = 0; r < rows; r++) nti_repeat(size, n, to + r * rows_to * bytes, from + r * rows_from * bytes);
        return;
    }
    for (int64_t k = 0, some; k < n; k += some) {
        some = nti_min(side, n - k);
        for (int64_t r = 0, few; r < rows; r += few) {
            few = nti_min(side, rows - r);
            nti_move_block(size, few, some, to + (r * rows_to + k * step_to) * bytes, rows_to, step_to,
                from + (r * rows_from + k * step_from) * bytes, rows_from, step_from);
        }
    }
}

// Elements first to first + n - 1 (flat indices) of a strided operand, one after another.
static void nti_axes_read(const nti_axes *a, const void *data, size_t size, int64_t first, int64_t n, void *out) {
    int last = a->count - 1;
    int64_t length = last >= 0 ? a->size[last] : 1, at = first % length;
    for (char *o = (char *)out; n > 0; at = 0) {
        int64_t run = nti_min(n, length - at);
        const char *p = (const char *)data + nti_axes_offset(a, first) * (int64_t)size;
        nti_move(size, 1, run, o, 0, 1, p, 0, nti_axes_step(a));
        o += (size_t)run * size;
        first += run;
        n -= run;
    }
}

static int64_t nti_tile_count(int64_t n, int64_t step) { return (n + step - 1) / step; }

static void nti_plan_tiles(nti_plan *p, int64_t tiles) {
    memset(p, 0, sizeof *p);
    p->phases = 1;
    p->tiles[0] = tiles;
}

// >>reductions
// The reduce row. A reduction is an alternation of kept and reduced axes; the last reduced group (rows) and what is kept
// behind it (columns) are what the kernels work on, the groups before are looped over. The order of sums is explained
// at the kernels' declaration: it depends on the shape only, so operands whose strides do not suit the kernels are
// gathered into blocks first and give the same bits.
//   in[0] any strides; i[0] kind, i[1] mask of reduced axes, i[2] accumulate (sums)

#define NTI_REDUCE_INTEGERS(name, T, neutral, join) \
    static void nti_rows_##name(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, int fresh) { \
        T *o = (T *)out; \
        const T *p = (const T *)x; \
        for (int64_t k = 0; k < m && fresh; k++) o[k] = neutral; \
        for (int64_t r = 0; r < rows; r++, p += stride) \
            for (int64_t k = 0; k < m; k++) { T a = o[k], b = p[k]; o[k] = (T)(join); } \
    } \
    static void nti_runs_##name(void *out, const void *x, int64_t count, int64_t step, int64_t n) { \
        for (int64_t i = 0; i < count; i++) { \
            const T *p = (const T *)x + i * step; \
            T a = neutral; \
            for (int64_t k = 0; k < n; k++) { T b = p[k]; a = (T)(join); } \
            ((T *)out)[i] = a; \
        } \
    } \
    static void nti_lanes_##name(void *out, const void *x, int64_t rows, int64_t stride, int64_t m, void *work) { \
        (void)work; \
        nti_rows_##name(out, x, rows, stride, m, 1); \
    }
NTI_REDUCE_INTEGERS(sum_u32, uint32_t, 0, a + b)                  // i32 too: wrapping
NTI_REDUCE_INTEGERS(prod_u32, uint32_t, 1, a * b)
NTI_REDUCE_INTEGERS(max_i32, int32_t, INT32_MIN, a < b ? b : a)
NTI_REDUCE_INTEGERS(min_i32, int32_t, INT32_MAX, b < a ? b : a)
NTI_REDUCE_INTEGERS(max_u32, uint32_t, 0, a < b ? b : a)
NTI_REDUCE_INTEGERS(min_u32, uint32_t, UINT32_MAX, b < a ? b : a)
NTI_REDUCE_INTEGERS(any, uint8_t, 0, (a | b) != 0)
NTI_REDUCE_INTEGERS(all, uint8_t, 1, a && b)
#undef NTI_REDUCE_INTEGERS

#define NTI_INTEGER_KERNELS(name) { nti_runs_##name, nti_lanes_##name, nti_rows_##name }
static const nti_reduce_kernels nti_reduce_i32[4] = {
    NTI_INTEGER_KERNELS(sum_u32), NTI_INTEGER_KERNELS(prod_u32), NTI_INTEGER_KERNELS(max_i32), NTI_INTEGER_KERNELS(min_i32) };
static const nti_reduce_kernels nti_reduce_u32[4] = {
    NTI_INTEGER_KERNELS(sum_u32), NTI_INTEGER_KERNELS(prod_u32), NTI_INTEGER_KERNELS(max_u32), NTI_INTEGER_KERNELS(min_u32) };
static const nti_reduce_kernels nti_reduce_bool[2] = { NTI_INTEGER_KERNELS(any), NTI_INTEGER_KERNELS(all) };
#undef NTI_INTEGER_KERNELS

static const nti_reduce_kernels *nti_reduce_find(const nti_call *c, int kind, int dtype) {
    if (dtype == NT_BOOL) return &nti_reduce_bool[kind == NTI_ALL];
    if (dtype == NT_I32) return &nti_reduce_i32[kind];
    if (dtype == NT_U32) return &nti_reduce_u32[kind];
    return &NTI_ROWS_TABLE(c, dtype)->reduce[kind];
}

#define NTI_UNIT_COLUMNS 1024           // most columns of a unit
#define NTI_TURNED_COLUMNS 64           // the same where kept axes in front are the columns
typedef struct nti_nest {
    nti_axes kept, outer, rows, columns;            // kept and reduced axes in front; rows, columns
    size_t size;                                    // of an element
    int lanes;                                      // rows go in lanes
    int direct;                                     // the kernels read the operand as it lies
    int64_t stride;                                 // then: from row to row
    int64_t piece, pieces;                          // rows of a piece, pieces of the rows
    int64_t width, widths;                          // columns of a unit, units of a row of columns
    int64_t chunk, chunks;                          // pieces (through the outer axes too) summed by one tile
    int64_t group, groups;                          // units of a tile
} nti_nest;

// Axes from the last to the first: columns while kept, rows while reduced, then what is left.
static void nti_nest_axes(nti_nest *t, const nti_view *x, int64_t mask) {
    int columns = x->rank;
    while (columns > 0 && (!(mask >> (columns - 1) & 1) || x->shape[columns - 1] == 1)) columns--;
    int rows = columns;
    while (rows > 0 && ((mask >> (rows - 1) & 1) || x->shape[rows - 1] == 1)) rows--;
    nti_axes_start(&t->kept);
    nti_axes_start(&t->outer);
    nti_axes_start(&t->rows);
    nti_axes_start(&t->columns);
    for (int k = 0; k < x->rank; k++) {
        nti_axes *front = mask >> k & 1 ? &t->outer : &t->kept;
        nti_axes_push(k >= columns ? &t->columns : k >= rows ? &t->rows : front, x->shape[k], x->stride[k]);
    }
}

// What decides the order of sums: the shape, never the strides.
static void nti_nest_order(nti_nest *t) {
    int64_t m = t->columns.total, n = t->rows.total, width = nti_max(1, nti_min(m, NTI_UNIT_COLUMNS));
    t->lanes = m < NTI_NARROW_COLUMNS;
    t->piece = t->lanes ? NTI_SUM_WIDTH * nti_max(1, 512 / nti_max(m, 1)) : NTI_PIECE_ROWS;
    t->pieces = nti_tile_count(n, t->piece);
    int64_t units = t->kept.total * nti_tile_count(m, width), work = t->outer.total * n * width, all = t->outer.total * t->pieces;
    t->chunk = nti_max(all, 1);
    if (units < 16 && work > 2 * NTI_TILE_ELEMENTS) t->chunk = nti_max(1, NTI_TILE_ELEMENTS / (nti_min(t->piece, n) * width));
    t->chunks = nti_max(1, nti_tile_count(all, t->chunk));
}

// Sums along strided runs whose neighbours are contiguous (those of a transposed matrix): the neighbours become the columns.
static int nti_nest_turn(nti_nest *t) {
    int last = t->kept.count - 1;
    if (t->columns.total != 1 || last < 0 || t->kept.stride[last] != 1 || t->rows.count != 1 || t->rows.stride[0] == 1) return 0;
    nti_axes_push(&t->columns, t->kept.size[last], 1);
    t->kept.total = 1;
    t->kept.count = last;
    for (int k = 0; k < last; k++) t->kept.total *= t->kept.size[k];
    return 1;
}

static void nti_nest_make(nti_nest *t, const nti_view *x, int64_t mask) {
    nti_nest_axes(t, x, mask);
    nti_nest_order(t);
    t->size = nt_dtype_size((nt_dtype)x->dtype);
    int turned = nti_nest_turn(t);
    int64_t m = t->columns.total;
    t->stride = t->rows.count ? t->rows.stride[0] : m;
    t->direct = t->rows.count <= 1 && nti_axes_contiguous(&t->columns) && (m > 1 || t->stride == 1 || t->rows.count == 0);
    t->width = turned ? nti_min(m, NTI_TURNED_COLUMNS) : t->direct || t->lanes ? nti_min(m, NTI_UNIT_COLUMNS) : nti_min(m, 128);
    t->widths = m > 0 ? nti_tile_count(m, t->width) : 0;
    int64_t units = t->kept.total * t->widths, work = t->outer.total * t->rows.total * t->width;
    t->group = t->chunks > 1 ? 1 : nti_max(1, NTI_TILE_ELEMENTS / nti_max(1, work));
    t->groups = nti_tile_count(units, t->group);
}

static int64_t nti_nest_outputs(const nti_nest *t) { return t->kept.total * t->columns.total; }

#define NTI_COMBINE 4096               // outputs of a tile that adds up chunks

// One piece and the outer axis give runs at even distances: a group of pieces is one call.
static int nti_nest_batched(const nti_nest *t) {
    return t->lanes && t->direct && t->columns.total == 1 && t->pieces == 1 && t->outer.count == 1;
}

static int nti_nest_short(const nti_nest *t) {        // every output is one run of the operand
    return t->lanes && t->direct && t->columns.total == 1 && t->kept.count <= 1 && t->outer.total == 1 && t->pieces == 1;
}

// Worker scratch in elements: sums of a group and of a piece, the result if it is added to out, all of `width`; the lanes; the block.
typedef struct nti_nest_room { int64_t sum, lanes, block; } nti_nest_room;

static nti_nest_room nti_nest_scratch(const nti_nest *t) {
    nti_nest_room r;
    int64_t rows = t->lanes ? t->piece : nti_max(1, NTI_BLOCK_ELEMENTS / nti_max(1, t->width));
    r.sum = t->width;
    r.lanes = nti_nest_batched(t) ? NTI_PIECE_GROUP : t->lanes && t->columns.total > 1 ? NTI_SUM_WIDTH * t->width : 0;
    r.block = t->direct ? 0 : nti_min(rows, nti_min(t->piece, t->rows.total)) * t->width;
    return r;
}

static void nti_plan_sums(const nti_call *c, nti_plan *p) {
    nti_nest t;
    nti_nest_make(&t, &c->in[0], c->i[1]);
    int64_t outputs = nti_nest_outputs(&t);
    nti_nest_room r = nti_nest_scratch(&t);
    nti_plan_tiles(p, outputs ? t.groups * t.chunks : 0);
    if (outputs == 0) return;
    if (!nti_nest_short(&t) || c->i[2]) p->worker = (size_t)(3 * r.sum + r.lanes + r.block) * t.size;
    if (t.chunks == 1) return;
    p->phases = 2;
    p->tiles[1] = nti_tile_count(outputs, NTI_COMBINE);
    p->shared = (size_t)(t.chunks * outputs) * t.size;
}

// One piece of a unit: rows `row` to `end` of its columns; `from` is row 0, column 0.
typedef struct nti_piece { const char *from; int64_t row, end, column, width; } nti_piece;

// The first `rows` rows of a piece: as they lie, or gathered into the block without gaps; stride from row to row.
static const char *nti_piece_read(const nti_nest *t, const nti_piece *p, int64_t rows, char *block, int64_t *stride) {
    int64_t bytes = (int64_t)t->size;
    const nti_axes *r = &t->rows, *c = &t->columns;
    *stride = t->direct ? t->stride : p->width;
    if (t->direct) return p->from + (p->row * t->stride + p->column) * bytes;
    if (r->count <= 1 && c->count <= 1) {
        const char *from = p->from + (p->row * nti_axes_step(r) + p->column * nti_axes_step(c)) * bytes;
        if (p->width == 1) nti_move(t->size, 1, rows, block, 0, 1, from, 0, nti_axes_step(r));
        else nti_move(t->size, rows, p->width, block, p->width, 1, from, nti_axes_step(r), nti_axes_step(c));
    } else if (p->width == 1 && c->total == 1) {
        nti_axes_read(r, p->from, t->size, p->row, rows, block);
    } else {
        for (int64_t k = 0; k < rows; k++)
            nti_axes_read(c, p->from + nti_axes_offset(r, p->row + k) * bytes, t->size, p->column, p->width, block + k * p->width * bytes);
    }
    return block;
}
// Rows that are read at a time.
static int64_t nti_piece_step(const nti_nest *t, const nti_piece *p) {
    return t->direct ? p->end - p->row : nti_min(p->end - p->row, nti_max(1, NTI_BLOCK_ELEMENTS / p->width));
}

static void nti_reduce_piece(const nti_nest *t, const nti_reduce_kernels *k, nti_piece p, char *out, char *work, char *block) {
    int64_t stride, rows;
    for (int fresh = 1; p.row < p.end; p.row += rows, fresh = 0) {
        rows = nti_piece_step(t, &p);
        const char *x = nti_piece_read(t, &p, rows, block, &stride);
        if (!t->lanes) k->rows(out, x, rows, stride, p.width, fresh);
        else if (p.width == 1 && t->columns.total == 1) k->runs(out, x, 1, 0, rows);
        else k->lanes(out, x, rows, stride, p.width, work);
    }
}

static void nti_nest_piece(const nti_call *c, const nti_nest *t, int64_t unit, int64_t outer, nti_piece *p) {
    int64_t offset = nti_axes_offset(&t->kept, unit / t->widths) + nti_axes_offset(&t->outer, outer);
    p->from = (const char *)c->in[0].data + offset * (int64_t)t->size;
    p->column = unit % t->widths * t->width;
    p->width = nti_min(t->width, t->columns.total - p->column);
}

// Pieces first to end of a unit, into out in their order.
static void nti_reduce_group(const nti_call *c, const nti_nest *t, const nti_reduce_kernels *k, int64_t unit, int64_t first, int64_t end,
    char *out, char *worker) {
    nti_nest_room room = nti_nest_scratch(t);
    char *sum = worker + (size_t)room.sum * t->size, *work = worker + (size_t)(3 * room.sum) * t->size,
        *block = work + (size_t)room.lanes * t->size;
    nti_piece p;
    nti_nest_piece(c, t, unit, first / t->pieces, &p);
    if (nti_nest_batched(t)) {
        k->runs(work, p.from, end - first, t->outer.stride[0], t->rows.total);
        k->rows(out, work, end - first, 1, 1, 1);
        return;
    }
    for (int64_t j = first; j < end; j++) {
        nti_nest_piece(c, t, unit, j / t->pieces, &p);
        p.row = j % t->pieces * t->piece;
        p.end = nti_min(p.row + t->piece, t->rows.total);
        nti_reduce_piece(t, k, p, j == first ? out : sum, work, block);
        if (j > first) k->rows(out, sum, 1, 0, p.width, 0);
    }
}
// The same in groups of NTI_PIECE_GROUP pieces.
static void nti_reduce_unit(const nti_call *c, const nti_nest *t, const nti_reduce_kernels *k, int64_t unit, int64_t first, int64_t end,
    char *out, char *worker) {
    int64_t width = nti_min(t->width, t->columns.total - unit % t->widths * t->width);
    if (first >= end) k->rows(out, NULL, 0, 0, width, 1);
    for (int64_t j = first; j < end; j += NTI_PIECE_GROUP) {
        nti_reduce_group(c, t, k, unit, j, nti_min(end, j + NTI_PIECE_GROUP), j == first ? out : worker, worker);
        if (j > first) k->rows(out, worker, 1, 0, width, 0);
    }
}

// The sums of the chunks, in their order; the total stands in the first chunk's place before it goes out.
static void nti_reduce_combine(const nti_call *c, const nti_nest *t, const nti_reduce_kernels *k, int64_t tile) {
    int64_t outputs = nti_nest_outputs(t), at = tile * NTI_COMBINE, m = nti_min(NTI_COMBINE, outputs - at), bytes = (int64_t)t->size;
    char *total = (char *)c->shared + at * bytes, *out = (char *)c->out.data + at * bytes;
    k->rows(total, total + outputs * bytes, t->chunks - 1, outputs, m, 0);
    k->rows(out, total, 1, 0, m, !c->i[2]);
}

static void nti_eval_sums(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_nest t;
    nti_nest_make(&t, &c->in[0], c->i[1]);
    const nti_reduce_kernels *k = nti_reduce_find(c, (int)c->i[0], c->in[0].dtype);
    if (phase == 1) { nti_reduce_combine(c, &t, k, tile); return; }
    int64_t group = tile % t.groups, chunk = tile / t.groups, bytes = (int64_t)t.size, all = t.outer.total * t.pieces;
    int64_t first = group * t.group, end = nti_min(first + t.group, t.kept.total * t.widths);
    int64_t piece = chunk * t.chunk, last = nti_min(piece + t.chunk, all);
    char *w = (char *)worker, *result = w + 2 * t.width * bytes,
        *base = t.chunks > 1 ? (char *)c->shared + chunk * nti_nest_outputs(&t) * bytes : (char *)c->out.data;
    int add = c->i[2] && t.chunks == 1;
    if (nti_nest_short(&t) && !add) {
        int64_t step = nti_axes_step(&t.kept);
        k->runs(base + first * bytes, (const char *)c->in[0].data + first * step * bytes, end - first, step, t.rows.total);
        return;
    }
    for (int64_t u = first; u < end; u++) {
        int64_t column = u % t.widths * t.width, m = nti_min(t.width, t.columns.total - column);
        char *out = base + (u / t.widths * t.columns.total + column) * bytes;
        nti_reduce_unit(c, &t, k, u, piece, last, add ? result : out, w);
        if (add) k->rows(out, result, 1, 0, m, 0);
    }
}

// Positions of extremes: the same units, all rows of a unit by one tile. Integers are compared as f64, which holds them.
// Worker scratch: extremes, positions, the block, and the block of integers before they are converted.
#define NTI_ARG_COLUMNS 256
static void nti_arg_nest(const nti_call *c, nti_nest *t) {
    nti_nest_make(t, &c->in[0], c->i[1]);
    if (!nti_is_float((nt_dtype)c->in[0].dtype)) t->direct = 0;
    t->lanes = 0;
    t->piece = t->rows.total;
    t->width = nti_min(t->width, NTI_ARG_COLUMNS);
    t->widths = t->width > 0 ? nti_tile_count(t->columns.total, t->width) : 0;
    t->group = nti_max(1, NTI_TILE_ELEMENTS / nti_max(1, t->rows.total * t->width));
    t->groups = nti_tile_count(t->kept.total * t->widths, t->group);
}

static void nti_plan_arg(const nti_call *c, nti_plan *p) {
    nti_nest t;
    nti_arg_nest(c, &t);
    nti_plan_tiles(p, t.groups);
    nti_nest_room r = nti_nest_scratch(&t);
    int blocks = nti_is_float((nt_dtype)c->in[0].dtype) ? 1 : 2;
    p->worker = (size_t)(2 * r.sum + blocks * r.block) * sizeof(double);
}

static const void *nti_arg_read(const nti_call *c, const nti_nest *t, const nti_piece *p, int64_t rows, double *block, int64_t *stride) {
    if (nti_is_float((nt_dtype)c->in[0].dtype)) return nti_piece_read(t, p, rows, (char *)block, stride);
    const char *raw = nti_piece_read(t, p, rows, (char *)(block + nti_nest_scratch(t).block), stride);
    for (int64_t k = 0; k < rows * p->width; k++) {
        uint32_t x;
        memcpy(&x, raw + 4 * k, 4);
        block[k] = c->in[0].dtype == NT_I32 ? (double)(int32_t)x : (double)x;
    }
    return block;
}

static double nti_number_at(const void *x, int is_f64) { return is_f64 ? *(const double *)x : (double)*(const float *)x; }

// One column: the extreme of a block by the reduction, then where it first is.
static void nti_arg_run(const nti_rows_table *k, const void *x, const nti_piece *p, int64_t rows, int is_f64, int least, double *best,
    int64_t *index) {
    double value = 0;
    k->reduce[least ? NTI_MIN : NTI_MAX].runs(&value, x, 1, 0, rows);
    double v = nti_number_at(&value, is_f64);
    int better = least ? v < *best : v > *best;
    if (p->row > 0 && !better && !(v != v && *best == *best)) return;
    *best = v;
    *index = p->row + k->find(x, rows, &value);
}

static void nti_arg_unit(const nti_call *c, const nti_nest *t, int64_t unit, double *worker, int32_t *out) {
    int is_f64 = c->in[0].dtype != NT_F32, least = c->i[0] == NTI_ARGMIN;
    const nti_rows_table *k = NTI_ROWS_TABLE(c, is_f64 ? NT_F64 : NT_F32);
    double *index = worker + t->width, *block = index + t->width, best = 0;
    int64_t rows, stride, position = 0;
    nti_piece p;
    nti_nest_piece(c, t, unit, 0, &p);
    p.end = t->rows.total;
    for (p.row = 0; p.row < p.end; p.row += rows) {
        rows = nti_piece_step(t, &p);
        const void *x = nti_arg_read(c, t, &p, rows, block, &stride);
        if (t->columns.total == 1) nti_arg_run(k, x, &p, rows, is_f64, least, &best, &position);
        else k->arg_rows(worker, index, x, p.row, rows, stride, p.width, least);
    }
    for (int64_t j = 0; j < p.width; j++) {
        if (t->columns.total > 1 && is_f64) position = ((const int64_t *)(const void *)index)[j];
        else if (t->columns.total > 1) position = ((const int32_t *)(const void *)index)[j];
        out[j] = (int32_t)position;
    }
}

static void nti_eval_arg(const nti_call *c, int64_t tile, void *worker) {
    nti_nest t;
    nti_arg_nest(c, &t);
    int64_t end = nti_min((tile + 1) * t.group, t.kept.total * t.widths);
    for (int64_t u = tile * t.group; u < end; u++) {
        int64_t at = u / t.widths * t.columns.total + u % t.widths * t.width;
        nti_arg_unit(c, &t, u, (double *)worker, (int32_t *)c->out.data + at);
    }
}

static void nti_plan_reduce(const nti_call *c, nti_plan *p) {
    if (c->i[0] >= NTI_ARGMAX) nti_plan_arg(c, p);
    else nti_plan_sums(c, p);
}

static void nti_eval_reduce(const nti_call *c, int phase, int64_t tile, void *worker) {
    if (c->i[0] >= NTI_ARGMAX) nti_eval_arg(c, tile, worker);
    else nti_eval_sums(c, phase, tile, worker);
}

// >>row operations
// Softmax, cross entropy and layer norm over the last axis of contiguous operands: the kernels take rows, a tile is a few of
// them.
typedef struct nti_row_range { int64_t n, first, rows; } nti_row_range;      // rows first to first + rows - 1 of n elements

static int64_t nti_row_length(const nti_view *x) { return x->rank ? x->shape[x->rank - 1] : 1; }

static int64_t nti_row_count(const nti_view *x) {
    int64_t rows = 1;
    for (int k = 0; k + 1 < x->rank; k++) rows *= x->shape[k];
    return rows;
}

static int64_t nti_row_step(const nti_view *x) { return nti_max(1, NTI_TILE_ELEMENTS / 2 / nti_max(1, nti_row_length(x))); }

// The rows of in[0] decide; every operation of this section has this plan.
static void nti_plan_softmax(const nti_call *c, nti_plan *p) {
    nti_plan_tiles(p, nti_tile_count(nti_row_count(&c->in[0]), nti_row_step(&c->in[0])));
}

static nti_row_range nti_tile_rows(const nti_call *c, int64_t tile) {
    nti_row_range r;
    int64_t step = nti_row_step(&c->in[0]);
    r.n = nti_row_length(&c->in[0]);
    r.first = tile * step;
    r.rows = nti_min(step, nti_row_count(&c->in[0]) - r.first);
    return r;
}

static char *nti_row_at(const nti_view *v, int64_t element) {
    return (char *)v->data + element * (int64_t)nt_dtype_size((nt_dtype)v->dtype);
}

static nti_labels nti_tile_labels(const nti_call *c, const nti_row_range *r) {
    nti_labels l;
    l.label = (const int32_t *)c->in[1].data + r->first;
    l.rows = r->rows;
    l.n = r->n;
    l.smoothing = c->d[0];
    l.ignored = c->i[0];
    l.has_ignored = c->i[1] != 0;
    return l;
}

// Operands: NTI_WHOLE in[k] has a row for each row, NTI_EACH_ROW one element, NTI_PAIR two.
#define NTI_WHOLE(v) nti_row_at(&(v), r.first * r.n)
#define NTI_EACH_ROW(v) nti_row_at(&(v), r.first)
#define NTI_PAIR(v) nti_row_at(&(v), 2 * r.first)
#define NTI_ROW_OPERATION(name, call) \
    static void nti_eval_##name(const nti_call *c, int phase, int64_t tile, void *worker) { \
        const nti_rows_table *k = NTI_ROWS_TABLE(c, c->in[0].dtype); \
        nti_row_range r = nti_tile_rows(c, tile); \
        (void)phase; \
        (void)worker; \
        call; \
    }
#define NTI_LABEL_OPERATION(name, call) NTI_ROW_OPERATION(name, nti_labels l = nti_tile_labels(c, &r); call)

NTI_ROW_OPERATION(softmax, (c->i[0] ? k->log_softmax : k->softmax)(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), r.rows, r.n))
NTI_ROW_OPERATION(softmax_grad, k->softmax_grad(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), NTI_WHOLE(c->in[1]), r.rows, r.n))
NTI_ROW_OPERATION(log_softmax_grad, k->log_softmax_grad(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), NTI_WHOLE(c->in[1]), r.rows, r.n))
NTI_LABEL_OPERATION(cross_entropy, k->cross_entropy(NTI_EACH_ROW(c->out), NTI_WHOLE(c->in[0]), &l))
NTI_LABEL_OPERATION(cross_entropy_grad, k->cross_entropy_grad(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), NTI_EACH_ROW(c->in[2]), &l))
NTI_LABEL_OPERATION(cross_entropy_jvp, k->cross_entropy_jvp(NTI_EACH_ROW(c->out), NTI_WHOLE(c->in[0]), NTI_WHOLE(c->in[2]), &l))
NTI_ROW_OPERATION(norm_stats, k->norm_stats(NTI_PAIR(c->out), NTI_WHOLE(c->in[0]), r.rows, r.n, c->d[0]))
NTI_ROW_OPERATION(norm_apply, k->norm_apply(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), NTI_PAIR(c->in[1]), c->i[0] ? c->in[2].data : NULL,
                                            c->i[0] ? c->in[3].data : NULL, r.rows, r.n))
NTI_ROW_OPERATION(norm_grad, k->norm_grad(NTI_WHOLE(c->out), NTI_WHOLE(c->in[0]), NTI_PAIR(c->in[1]), NTI_WHOLE(c->in[2]), r.rows, r.n))
#undef NTI_WHOLE
#undef NTI_EACH_ROW
#undef NTI_PAIR
#undef NTI_ROW_OPERATION
#undef NTI_LABEL_OPERATION
#define nti_plan_softmax_grad nti_plan_softmax
#define nti_plan_log_softmax_grad nti_plan_softmax
#define nti_plan_cross_entropy nti_plan_softmax
#define nti_plan_cross_entropy_grad nti_plan_softmax
#define nti_plan_cross_entropy_jvp nti_plan_softmax
#define nti_plan_norm_stats nti_plan_softmax
#define nti_plan_norm_apply nti_plan_softmax
#define nti_plan_norm_grad nti_plan_softmax
// >>attention
// A block of queries of one example and head at a time: its scores against all keys lie transposed in worker scratch (a row for each
// key), softmax runs down the columns, and every product is the micro kernel's. Nothing is kept for the derivatives but the operands:
// scores cost two products to make again, and a whole block of them needs no log-sum-exp.
//   in: q, k, v, then the cotangent (GRAD) or the tangents that there are (JVP), then the mask; any strides
//   i[0] kind, i[1] causal, i[2] masked, i[3] bit j: the tangent of operand j is there; d[0] scale
//   out: (batch, time, heads, dv); of GRAD flat: the cotangents of q, k and v one after another
enum { NTI_ATTEND, NTI_ATTEND_GRAD, NTI_ATTEND_JVP };
enum { NTI_HEAD_Q, NTI_HEAD_K, NTI_HEAD_V, NTI_HEAD_G, NTI_HEAD_TQ = NTI_HEAD_G, NTI_HEAD_TK, NTI_HEAD_TV, NTI_HEAD_SLOTS };
#define NTI_ATTENTION_BLOCK_BYTES 262144   // of a block of scores
#define NTI_ATTENTION_UNITS 16             // heads from which on the cotangents of one head's keys are summed by one tile

typedef struct nti_attention {
    const nti_view *x[NTI_HEAD_SLOTS], *mask;   // NULL: not there
    int64_t heads, units, queries, keys, d, dv; // units: heads of all examples
    int64_t block, blocks, most, pitch;         // queries of a block, blocks of a head, queries of the last block if that is larger; columns
    int64_t chunks, group;                      // tiles of a head, or heads of a tile
    int64_t scores, derived, at[NTI_HEAD_SLOTS], room; // worker scratch, in elements: blocks of scores, copies of operands, the products'
    int64_t worker;
    size_t size;
    double scale;
    int causal, grad, jvp;
} nti_attention;

static int64_t nti_head_width(const nti_view *x) { return x->shape[3]; }

// Rows of an operand are read as they lie if they are contiguous and do not crowd into few sets of the cache.
static int nti_head_copied(const nti_view *x, size_t size) {
    return (x->stride[3] != 1 && x->shape[3] != 1) || nti_gemm_bad_stride(x->stride[1], size);
}

static nti_gemm nti_attention_gemm(int64_t m, int64_t n, int64_t k, int accumulate) {
    nti_gemm g;
    memset(&g, 0, sizeof g);
    g.m = m, g.n = n, g.k = k, g.accumulate = accumulate, g.slab = 256, g.csa = g.csb = g.csc = 1;
    return g;
}

static int64_t nti_attention_room(int64_t m, int64_t n, int64_t k, int accumulate, size_t size) {
    nti_gemm g = nti_attention_gemm(m, n, k, accumulate);
    nti_gemm_room r = nti_gemm_scratch(&g, size);
    return r.block + r.panel + r.sums;
}

static void nti_attention_operands(const nti_call *c, nti_attention *a) {
    int at = 3;
    memset(a, 0, sizeof *a);
    a->grad = c->i[0] == NTI_ATTEND_GRAD, a->jvp = c->i[0] == NTI_ATTEND_JVP, a->causal = c->i[1] != 0;
    for (int k = 0; k < 3; k++) a->x[k] = &c->in[k];
    if (a->grad) a->x[NTI_HEAD_G] = &c->in[at++];
    for (int k = 0; a->jvp && k < 3; k++)
        if (c->i[3] >> k & 1) a->x[NTI_HEAD_TQ + k] = &c->in[at++];
    if (c->i[2]) a->mask = &c->in[at];
    const nti_view *q = &c->in[0], *v = &c->in[2];
    a->heads = q->shape[2], a->units = q->shape[0] * q->shape[2], a->queries = q->shape[1], a->keys = v->shape[1];
    a->d = q->shape[3], a->dv = v->shape[3], a->size = q->dtype == NT_F64 ? sizeof(double) : sizeof(float);
    a->scale = q->dtype == NT_F64 ? c->d[0] : (double)(float)c->d[0];
}

// How the work is cut: by the shapes alone.
static void nti_attention_cut(nti_attention *a) {
    int64_t unit = (int64_t)(NTI_PANEL_BYTES / a->size), row = nti_max(1, a->keys) * (int64_t)a->size;
    a->block = row * 2 * unit > NTI_ATTENTION_BLOCK_BYTES ? unit : 2 * unit;
    a->blocks = nti_max(1, (a->queries + a->block / 2 - 1) / a->block); // a short rest goes with the last block
    a->most = nti_max(nti_min(a->block, a->queries), a->queries - (a->blocks - 1) * a->block);
    a->pitch = nti_multiple(nti_max(1, a->most), NTI_SUM_WIDTH);
    double work = 2.0 * (double)a->queries * (double)a->keys * (double)(a->d + a->dv) * (a->grad || a->jvp ? 2.5 : 1);
    double pieces = work / (4 * NTI_TILE_FLOPS);
    a->chunks = pieces < 1 ? 1 : pieces < (double)a->blocks ? (int64_t)pieces : a->blocks;
    if (a->grad) a->chunks = nti_min(a->chunks, nti_tile_count(NTI_ATTENTION_UNITS, nti_max(1, a->units)));
    a->group = work < 1 ? 1 : work > NTI_TILE_FLOPS ? 1 : (int64_t)(NTI_TILE_FLOPS / work);
}

static void nti_attention_scratch(nti_attention *a) {
    size_t size = a->size;
    int64_t block = a->keys * a->pitch, room = nti_attention_room(a->keys, a->most, nti_max(a->d, a->dv), a->jvp, size);
    room = nti_max(room, nti_attention_room(a->most, a->dv, a->keys, a->jvp, size));
    if (a->grad) room = nti_max(room, nti_attention_room(a->most, a->d, a->keys, 0, size));
    if (a->grad) room = nti_max(room, nti_attention_room(a->keys, nti_max(a->d, a->dv), a->most, 1, size));
    a->scores = 0;
    a->derived = nti_multiple(block, 16);
    int64_t at = a->grad || a->jvp ? 2 * a->derived : a->derived;
    for (int k = 0; k < NTI_HEAD_SLOTS; k++) {
        a->at[k] = at;
        if (!a->x[k] || !nti_head_copied(a->x[k], size)) continue;
        int queries = k == NTI_HEAD_Q || k == NTI_HEAD_TQ; // and the cotangent
        at += nti_multiple((queries ? a->most : a->keys) * nti_gemm_pitch(nti_head_width(a->x[k])), 16);
    }
    a->room = at;
    a->worker = at + room;
}

static nti_attention nti_attention_make(const nti_call *c) {
    nti_attention a;
    nti_attention_operands(c, &a);
    nti_attention_cut(&a);
    nti_attention_scratch(&a);
    return a;
}

// Partial cotangents of k and v behind the first chunk: `chunks - 1` for each unit.
static int64_t nti_attention_partial(const nti_attention *a) { return a->keys * (a->d + a->dv); }

static void nti_plan_attention(const nti_call *c, nti_plan *p) {
    nti_attention a = nti_attention_make(c);
    nti_plan_tiles(p, nti_view_size(&c->out) ? nti_tile_count(a.units, a.group) * a.chunks : 0);
    p->worker = (size_t)a.worker * a.size;
    if (!a.grad || a.chunks == 1 || !p->tiles[0]) return;
    p->phases = 2;
    p->tiles[1] = a.units;
    p->shared = (size_t)(a.units * (a.chunks - 1) * nti_attention_partial(&a)) * a.size;
}

// Rows of one head of an operand, the last axis contiguous: as they lie or copied; *step from row to row.
static const void *nti_head_rows(const nti_attention *a, int slot, int64_t unit, int64_t first, int64_t n, char *worker, int64_t *step) {
    const nti_view *x = a->x[slot];
    int64_t offset = unit / a->heads * x->stride[0] + unit % a->heads * x->stride[2] + first * x->stride[1], width = nti_head_width(x);
    const char *from = (const char *)x->data + offset * (int64_t)a->size;
    *step = x->stride[1];
    if (!nti_head_copied(x, a->size)) return from;
    char *to = worker + a->at[slot] * (int64_t)a->size;
    *step = nti_gemm_pitch(width);
    nti_move(a->size, n, width, to, *step, 1, from, x->stride[1], x->stride[3]);
    return to;
}

typedef struct nti_heads {          // what a tile works on: one unit, one block of its queries
    const nti_call *call;
    const nti_attention *a;
    char *worker;
    int64_t unit, first, n, keys;   // keys: that any query of the block sees
    const void *row[NTI_HEAD_SLOTS];
    int64_t step[NTI_HEAD_SLOTS];
} nti_heads;

static void nti_heads_product(const nti_heads *h, nti_gemm *g) {
    NTI_GEMM_TABLE(h->call, h->call->in[0].dtype)->product(g, h->worker + h->a->room * (int64_t)h->a->size);
}

static void nti_heads_load(nti_heads *h, int slot, int64_t first, int64_t n) {
    if (h->a->x[slot]) h->row[slot] = nti_head_rows(h->a, slot, h->unit, first, n, h->worker, &h->step[slot]);
}

static char *nti_heads_scores(const nti_heads *h, int derived) {
    return h->worker + (derived ? h->a->derived : h->a->scores) * (int64_t)h->a->size;
}

// scores (keys, queries) = or += rows of `key` times rows of `query`, transposed
static void nti_heads_score(const nti_heads *h, int key, int query, int derived, int accumulate, int64_t width) {
    nti_gemm g = nti_attention_gemm(h->keys, h->n, width, accumulate);
    g.a = h->row[key], g.rsa = h->step[key];
    g.b = h->row[query], g.rsb = 1, g.csb = h->step[query];
    g.c = nti_heads_scores(h, derived), g.rsc = h->a->pitch;
    nti_heads_product(h, &g);
}

// out (queries, width) = or += scores, transposed, times rows of `key`
static void nti_heads_mix(const nti_heads *h, int derived, int key, char *out, int accumulate) {
    nti_gemm g = nti_attention_gemm(h->n, nti_head_width(h->a->x[key]), h->keys, accumulate);
    g.a = nti_heads_scores(h, derived), g.rsa = 1, g.csa = h->a->pitch;
    g.b = h->row[key], g.rsb = h->step[key];
    g.c = out, g.rsc = h->a->heads * g.n;
    nti_heads_product(h, &g);
}

// out (keys, width) += scores times rows of `query`
static void nti_heads_collect(const nti_heads *h, int derived, int query, char *out, int64_t step) {
    nti_gemm g = nti_attention_gemm(h->keys, nti_head_width(h->a->x[query]), h->n, 1);
    g.a = nti_heads_scores(h, derived), g.rsa = h->a->pitch;
    g.b = h->row[query], g.rsb = h->step[query];
    g.c = out, g.rsc = step;
    nti_heads_product(h, &g);
}

// The softmax of the block. A scale of zero makes all scores equal, hidden ones aside.
static void nti_heads_softmax(const nti_heads *h) {
    const nti_attention *a = h->a;
    const nti_rows_table *k = NTI_ROWS_TABLE(h->call, h->call->in[0].dtype);
    double scale = a->scale == 0 ? 1 : a->scale;
    nti_hidden hidden = { NULL, 0, 0, h->first, h->n, h->keys, a->pitch, a->causal };
    nti_heads_score(h, NTI_HEAD_K, NTI_HEAD_Q, 0, 0, a->scale == 0 ? 0 : a->d);
    if (a->mask) {
        const int64_t *s = a->mask->stride;
        hidden.mask = (const uint8_t *)a->mask->data + h->unit / a->heads * s[0] + h->unit % a->heads * s[1] + h->first * s[2];
        hidden.query_step = s[2], hidden.key_step = s[3];
    }
    if (a->mask || a->causal) k->hide(nti_heads_scores(h, 0), &hidden, scale < 0 ? HUGE_VAL : -HUGE_VAL);
    k->column_softmax(nti_heads_scores(h, 0), h->keys, h->n, a->pitch, scale);
}

// The derivative of the softmax in place of the derived scores: both directions are this one, it is symmetric.
static void nti_heads_softmax_grad(const nti_heads *h) {
    const nti_rows_table *k = NTI_ROWS_TABLE(h->call, h->call->in[0].dtype);
    k->column_softmax_grad(nti_heads_scores(h, 1), nti_heads_scores(h, 0), h->keys, h->n, h->a->pitch, h->a->scale);
}

// Row `row` of this unit in something shaped (batch, rows, heads, width) from element `start` on
static char *nti_heads_out(const nti_heads *h, int64_t start, int64_t rows, int64_t row, int64_t width) {
    int64_t heads = h->a->heads, at = ((h->unit / heads * rows + row) * heads + h->unit % heads) * width;
    return (char *)h->call->out.data + (start + at) * (int64_t)h->a->size;
}

static void nti_heads_forward(const nti_heads *h) {
    nti_heads_mix(h, 0, NTI_HEAD_V, nti_heads_out(h, 0, h->a->queries, h->first, h->a->dv), 0);
}

static void nti_heads_jvp(const nti_heads *h) {
    const nti_attention *a = h->a;
    char *out = nti_heads_out(h, 0, a->queries, h->first, a->dv);
    int scores = a->x[NTI_HEAD_TQ] || a->x[NTI_HEAD_TK];
    if (a->x[NTI_HEAD_TQ]) nti_heads_score(h, NTI_HEAD_K, NTI_HEAD_TQ, 1, 0, a->d);
    if (a->x[NTI_HEAD_TK]) nti_heads_score(h, NTI_HEAD_TK, NTI_HEAD_Q, 1, a->x[NTI_HEAD_TQ] != NULL, a->d);
    if (scores) nti_heads_softmax_grad(h), nti_heads_mix(h, 1, NTI_HEAD_V, out, 0);
    if (a->x[NTI_HEAD_TV]) nti_heads_mix(h, 0, NTI_HEAD_TV, out, scores);
}

static void nti_heads_grad(const nti_heads *h, char *dk, char *dv, int64_t dk_step, int64_t dv_step) {
    const nti_attention *a = h->a;
    nti_heads_score(h, NTI_HEAD_V, NTI_HEAD_G, 1, 0, a->dv);
    nti_heads_collect(h, 0, NTI_HEAD_G, dv, dv_step);
    nti_heads_softmax_grad(h);
    nti_heads_collect(h, 1, NTI_HEAD_Q, dk, dk_step);
    nti_heads_mix(h, 1, NTI_HEAD_K, nti_heads_out(h, 0, a->queries, h->first, a->d), 0);
}

static void nti_heads_clear(const nti_attention *a, char *out, int64_t step, int64_t width) {
    for (int64_t k = 0; k < a->keys; k++) memset(out + k * step * (int64_t)a->size, 0, (size_t)width * a->size);
}

// The blocks of one chunk of a unit.
static void nti_heads_chunk(nti_heads *h, int64_t chunk) {
    const nti_attention *a = h->a;
    int64_t keys = nti_view_size(a->x[NTI_HEAD_Q]), values = keys + nti_view_size(a->x[NTI_HEAD_K]);
    int64_t dk_step = a->heads * a->d, dv_step = a->heads * a->dv;
    char *dk = NULL, *dv = NULL;
    if (a->grad && chunk == 0) {
        dk = nti_heads_out(h, keys, a->keys, 0, a->d), dv = nti_heads_out(h, values, a->keys, 0, a->dv);
    } else if (a->grad) {
        dk = (char *)h->call->shared + (h->unit * (a->chunks - 1) + chunk - 1) * nti_attention_partial(a) * (int64_t)a->size;
        dv = dk + a->keys * a->d * (int64_t)a->size, dk_step = a->d, dv_step = a->dv;
    }
    if (a->grad) nti_heads_clear(a, dk, dk_step, a->d), nti_heads_clear(a, dv, dv_step, a->dv);
    int64_t begin = nti_share(a->blocks, a->chunks, chunk), end = nti_share(a->blocks, a->chunks, chunk + 1);
    int64_t last = end == a->blocks ? a->queries : end * a->block, seen = a->causal ? nti_min(a->keys, last) : a->keys;
    for (int slot = 0; slot < NTI_HEAD_SLOTS; slot++)
        if (slot != NTI_HEAD_Q && slot != NTI_HEAD_TQ) nti_heads_load(h, slot, 0, seen);
    for (int64_t b = begin; b < end; b++) {
        h->first = b * a->block, h->n = b + 1 == a->blocks ? a->queries - h->first : a->block;
        h->keys = a->causal ? nti_min(a->keys, h->first + h->n) : a->keys;
        nti_heads_load(h, NTI_HEAD_Q, h->first, h->n);
        nti_heads_load(h, NTI_HEAD_TQ, h->first, h->n);
        nti_heads_softmax(h);
        if (a->grad) nti_heads_grad(h, dk, dv, dk_step, dv_step);
        else if (a->jvp) nti_heads_jvp(h);
        else nti_heads_forward(h);
    }
}

// The partial cotangents of k and v of a unit, in the order of the chunks.
static void nti_heads_combine(const nti_heads *h) {
    const nti_attention *a = h->a;
    const nti_reduce_kernels *sum = &NTI_ROWS_TABLE(h->call, h->call->in[0].dtype)->reduce[NTI_SUM];
    int64_t start = nti_view_size(&h->call->in[0]), bytes = (int64_t)a->size;
    for (int which = 0; which < 2; which++) {
        int64_t width = which ? a->dv : a->d;
        const char *part = (const char *)h->call->shared + h->unit * (a->chunks - 1) * nti_attention_partial(a) * bytes;
        if (which) part += a->keys * a->d * bytes, start += nti_view_size(&h->call->in[1]);
        for (int64_t k = 0; k < a->keys; k++)
            sum->rows(nti_heads_out(h, start, a->keys, k, width), part + k * width * bytes, a->chunks - 1, nti_attention_partial(a), width, 0);
    }
}

static void nti_eval_attention(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_attention a = nti_attention_make(c);
    nti_heads h;
    memset(&h, 0, sizeof h);
    h.call = c, h.a = &a, h.worker = (char *)worker;
    if (phase == 1) {
        h.unit = tile;
        nti_heads_combine(&h);
        return;
    }
    int64_t first = tile / a.chunks * a.group, end = nti_min(first + a.group, a.units);
    for (h.unit = first; h.unit < end; h.unit++) nti_heads_chunk(&h, tile % a.chunks);
}
// >>pooling rows
// Max and sum pooling over 1 to 3 spatial axes of contiguous (N, spatial, C) and their derivatives. The kernels take a list
// of taps (offsets of the elements of a window) and a number of windows that share it; along the last spatial axis all
// windows inside the border do. Fewer axes than three are filled up in front with axes of size 1.
//   i[0] 0 max 1 sum, i[1] spatial axes, then for each window, stride, dilation, padding before, after

typedef struct nti_pool_axis { int64_t size, out, window, stride, dilation, before; } nti_pool_axis;
typedef struct nti_pooling {
    nti_pool_axis axis[3];
    int64_t images, channels;
} nti_pooling;

static nti_pooling nti_pooling_of(const int64_t *i, const nti_view *x, const nti_view *pooled) {
    nti_pooling p;
    int d = (int)i[1];
    for (int k = 0; k < 3; k++) {
        nti_pool_axis a = { 1, 1, 1, 1, 1, 0 };
        int from = k - (3 - d);
        if (from >= 0) {
            const int64_t *f = i + 2 + 5 * from;
            a.size = x->shape[1 + from];
            a.out = pooled->shape[1 + from];
            a.window = f[0];
            a.stride = f[1];
            a.dilation = f[2];
            a.before = f[3];
        }
        p.axis[k] = a;
    }
    p.images = x->shape[0];
    p.channels = x->shape[d + 1];
    return p;
}

static int64_t nti_floor_div(int64_t a, int64_t b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }
static int64_t nti_ceil_div(int64_t a, int64_t b) { return -nti_floor_div(-a, b); }

typedef struct nti_range { int64_t first, end; } nti_range;

// Taps of window `at` that lie inside.
static nti_range nti_pool_taps(const nti_pool_axis *a, int64_t at) {
    nti_range r;
    int64_t origin = at * a->stride - a->before;
    r.first = nti_max(0, nti_ceil_div(-origin, a->dilation));
    r.end = nti_min(a->window, nti_floor_div(a->size - 1 - origin, a->dilation) + 1);
    if (r.end < r.first) r.end = r.first;
    return r;
}
// Windows all of whose taps lie inside.
static nti_range nti_pool_inside(const nti_pool_axis *a) {
    nti_range r;
    int64_t extent = (a->window - 1) * a->dilation;
    r.first = nti_min(a->out, nti_max(0, nti_ceil_div(a->before, a->stride)));
    r.end = nti_min(a->out, nti_floor_div(a->size - 1 - extent + a->before, a->stride) + 1);
    if (r.end < r.first) r.end = r.first;
    return r;
}
static int64_t nti_pool_tap_room(const nti_pooling *p) {     // taps of a window, at most
    int64_t n = 1;
    for (int k = 0; k < 3; k++) n *= nti_max(1, nti_min(p->axis[k].window, p->axis[k].size));
    return n;
}

// A visit to the windows of a row of the output: the kernel and what it reads and writes, from the channel block on.
enum { NTI_VISIT_POOL, NTI_VISIT_GRAD, NTI_VISIT_JVP };
typedef struct nti_pool_visit {
    const nti_pooling *p;
    const nti_rows_table *k;
    const char *x, *side;             // side: the cotangent (like the output) or the tangent (like x)
    char *out;
    int64_t *tap;
    size_t size;
    int what, kind;
    int64_t channel, channels;        // the block
} nti_pool_visit;

// Windows first to end - 1 of output row (image, at[0], at[1]); they share the taps of the first.
static void nti_pool_windows(const nti_pool_visit *v, int64_t image, const int64_t *at, int64_t first, int64_t end) {
    const nti_pool_axis *a = v->p->axis;
    nti_range r0 = nti_pool_taps(&a[0], at[0]), r1 = nti_pool_taps(&a[1], at[1]), r2 = nti_pool_taps(&a[2], first);
    int64_t row = a[2].size, c = v->p->channels, n = 0;
    int64_t y0 = at[0] * a[0].stride - a[0].before, y1 = at[1] * a[1].stride - a[1].before, y2 = first * a[2].stride - a[2].before;
    if (end <= first) return;
    for (int64_t i = r0.first; i < r0.end; i++)
        for (int64_t j = r1.first; j < r1.end; j++)
            for (int64_t k = r2.first; k < r2.end; k++)
                v->tap[n++] = (((y0 + i * a[0].dilation) * a[1].size + y1 + j * a[1].dilation) * row + y2 + k * a[2].dilation) * c;
    nti_window w;
    w.tap = v->tap;
    w.taps = n;
    w.count = end - first;
    w.m = v->channels;
    w.step = a[2].stride * c;
    w.out_step = c;
    int64_t in = image * a[0].size * a[1].size * row * c + v->channel;
    int64_t out = (((image * a[0].out + at[0]) * a[1].out + at[1]) * a[2].out + first) * c + v->channel;
    const char *x = v->x + in * (int64_t)v->size;
    if (v->what == NTI_VISIT_POOL) v->k->pool[v->kind](v->out + out * (int64_t)v->size, x, &w);
    else if (v->what == NTI_VISIT_GRAD) v->k->max_pool_grad(v->out + in * (int64_t)v->size, x, v->side + out * (int64_t)v->size, &w);
    else v->k->max_pool_jvp(v->out + out * (int64_t)v->size, x, v->side + in * (int64_t)v->size, &w);
}

static void nti_pool_row(const nti_pool_visit *v, int64_t image, const int64_t *at) {
    nti_range inside = nti_pool_inside(&v->p->axis[2]);
    for (int64_t k = 0; k < inside.first; k++) nti_pool_windows(v, image, at, k, k + 1);
    nti_pool_windows(v, image, at, inside.first, inside.end);
    for (int64_t k = inside.end; k < v->p->axis[2].out; k++) nti_pool_windows(v, image, at, k, k + 1);
}

static nti_pool_visit nti_pool_visit_of(const nti_call *c, const nti_pooling *p, int what, void *worker) {
    nti_pool_visit v;
    v.p = p;
    v.k = NTI_ROWS_TABLE(c, c->in[0].dtype);
    v.x = (const char *)c->in[0].data;
    v.side = what == NTI_VISIT_POOL ? NULL : (const char *)c->in[1].data;
    v.out = (char *)c->out.data;
    v.tap = (int64_t *)worker;
    v.size = nt_dtype_size((nt_dtype)c->in[0].dtype);
    v.what = what;
    v.kind = what == NTI_VISIT_POOL && c->i[0] ? 1 : 0;
    v.channel = 0;
    v.channels = p->channels;
    return v;
}

// Forward and jvp: tiles of output rows.
static int64_t nti_pool_rows(const nti_pooling *p) { return p->images * p->axis[0].out * p->axis[1].out; }
static int64_t nti_pool_rows_step(const nti_pooling *p) {
    return nti_max(1, NTI_TILE_ELEMENTS / 2 / nti_max(1, p->axis[2].out * p->channels * nti_pool_tap_room(p)));
}
static void nti_plan_pool(const nti_call *c, nti_plan *plan) {
    nti_pooling p = nti_pooling_of(c->i, &c->in[0], &c->out);
    nti_plan_tiles(plan, nti_view_size(&c->out) ? nti_tile_count(nti_pool_rows(&p), nti_pool_rows_step(&p)) : 0);
    plan->worker = (size_t)nti_pool_tap_room(&p) * sizeof(int64_t);
}
static void nti_pool_forward(const nti_call *c, int what, int64_t tile, void *worker) {
    nti_pooling p = nti_pooling_of(c->i, &c->in[0], &c->out);
    nti_pool_visit v = nti_pool_visit_of(c, &p, what, worker);
    int64_t step = nti_pool_rows_step(&p), end = nti_min((tile + 1) * step, nti_pool_rows(&p));
    for (int64_t r = tile * step; r < end; r++) {
        int64_t at[2];
        at[1] = r % p.axis[1].out;
        at[0] = r / p.axis[1].out % p.axis[0].out;
        nti_pool_row(&v, r / (p.axis[1].out * p.axis[0].out), at);
    }
}
static void nti_eval_pool(const nti_call *c, int phase, int64_t tile, void *worker) {
    (void)phase;
    nti_pool_forward(c, NTI_VISIT_POOL, tile, worker);
}
#define nti_plan_max_pool_jvp nti_plan_pool
static void nti_eval_max_pool_jvp(const nti_call *c, int phase, int64_t tile, void *worker) {
    (void)phase;
    nti_pool_forward(c, NTI_VISIT_JVP, tile, worker);
}

// Max pooling's gradient: a tile owns a slab of an image and a block of its channels, and goes through the windows in order. Slabs
// are those of single windows along the first axis that is longer than 1, where windows do not overlap there; else the whole image.
#define NTI_POOL_CHANNELS 64
typedef struct nti_pool_cut { int axis; int64_t slabs, blocks, group; } nti_pool_cut;

static nti_pool_cut nti_pool_cut_of(const nti_pooling *p) {
    nti_pool_cut t = { 0, 1, 1, 1 };
    while (t.axis < 2 && p->axis[t.axis].out == 1 && p->axis[t.axis].size == 1) t.axis++;
    const nti_pool_axis *a = &p->axis[t.axis];
    if ((a->window - 1) * a->dilation < a->stride && t.axis < 2) t.slabs = nti_max(1, a->out);
    else t.blocks = nti_max(1, nti_tile_count(p->channels, NTI_POOL_CHANNELS));
    int64_t image = p->axis[0].size * p->axis[1].size * p->axis[2].size * p->channels;
    t.group = nti_max(1, NTI_TILE_ELEMENTS / 2 / nti_max(1, image / (t.slabs * t.blocks)));
    return t;
}

static void nti_plan_max_pool_grad(const nti_call *c, nti_plan *plan) {
    nti_pooling p = nti_pooling_of(c->i, &c->out, &c->in[1]);
    nti_pool_cut t = nti_pool_cut_of(&p);
    nti_plan_tiles(plan, nti_view_size(&c->out) ? nti_tile_count(p.images * t.slabs * t.blocks, t.group) : 0);
    plan->worker = (size_t)nti_pool_tap_room(&p) * sizeof(int64_t);
}

// Positions of x that belong to slab s of the cut axis: from the start of its window to the next one's.
static nti_range nti_pool_slab(const nti_pool_axis *a, int64_t s, int64_t slabs) {
    nti_range r;
    r.first = s == 0 ? 0 : nti_min(a->size, nti_max(0, s * a->stride - a->before));
    r.end = s + 1 == slabs ? a->size : nti_min(a->size, nti_max(0, (s + 1) * a->stride - a->before));
    return r;
}

static void nti_pool_zero(const nti_pool_visit *v, const nti_pool_cut *t, int64_t image, int64_t slab) {
    const nti_pool_axis *a = v->p->axis;
    nti_range r = nti_pool_slab(&a[t->axis], slab, t->slabs);
    int64_t behind = 1, c = v->p->channels, whole = a[0].size * a[1].size * a[2].size;
    for (int k = t->axis + 1; k < 3; k++) behind *= a[k].size;
    char *out = v->out + ((image * whole + r.first * behind) * c + v->channel) * (int64_t)v->size;
    int64_t rows = (r.end - r.first) * behind;
    if (v->channels == c) { memset(out, 0, (size_t)(rows * c) * v->size); return; }
    for (int64_t k = 0; k < rows; k++) memset(out + k * c * (int64_t)v->size, 0, (size_t)v->channels * v->size);
}

static void nti_eval_max_pool_grad(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_pooling p = nti_pooling_of(c->i, &c->out, &c->in[1]);
    nti_pool_cut t = nti_pool_cut_of(&p);
    nti_pool_visit v = nti_pool_visit_of(c, &p, NTI_VISIT_GRAD, worker);
    int64_t end = nti_min((tile + 1) * t.group, p.images * t.slabs * t.blocks);
    (void)phase;
    for (int64_t u = tile * t.group; u < end; u++) {
        int64_t slab = u / t.blocks % t.slabs, image = u / (t.blocks * t.slabs), at[2];
        nti_range r0 = { 0, p.axis[0].out }, r1 = { 0, p.axis[1].out };
        nti_range *cut = t.axis == 0 ? &r0 : &r1;
        if (t.slabs > 1) cut->first = slab, cut->end = slab + 1;
        if (t.blocks > 1) v.channel = u % t.blocks * NTI_POOL_CHANNELS, v.channels = nti_min(NTI_POOL_CHANNELS, p.channels - v.channel);
        nti_pool_zero(&v, &t, image, slab);
        for (at[0] = r0.first; at[0] < r0.end; at[0]++)
            for (at[1] = r1.first; at[1] < r1.end; at[1]++) nti_pool_row(&v, image, at);
    }
}

// Sum pooling's gradient: an element of x gathers from the windows over it, in row-major order; they are the taps of a sum pool of g.
static int64_t nti_pool_places_step(const nti_pooling *p) { return nti_max(1, NTI_TILE_ELEMENTS / 2 / nti_max(1, p->channels)); }

static void nti_plan_sum_pool_grad(const nti_call *c, nti_plan *plan) {
    nti_pooling p = nti_pooling_of(c->i, &c->out, &c->in[0]);
    int64_t room = 1, places = p.images;
    for (int k = 0; k < 3; k++) {
        room *= nti_max(1, nti_min(p.axis[k].window, p.axis[k].out));
        places *= p.axis[k].size;
    }
    nti_plan_tiles(plan, p.channels ? nti_tile_count(places, nti_pool_places_step(&p)) : 0);
    plan->worker = (size_t)room * sizeof(int64_t);
}

// Windows that may lie over position y of an axis (dilation may leave it out).
static nti_range nti_pool_over(const nti_pool_axis *a, int64_t y) {
    nti_range r;
    r.first = nti_max(0, nti_ceil_div(y + a->before - (a->window - 1) * a->dilation, a->stride));
    r.end = nti_min(a->out, nti_floor_div(y + a->before, a->stride) + 1);
    return r;
}
static int nti_pool_covers(const nti_pool_axis *a, int64_t window, int64_t y) {
    return (y + a->before - window * a->stride) % a->dilation == 0;
}

static int64_t nti_pool_windows_over(const nti_pooling *p, const int64_t *y, int64_t *tap) {
    const nti_pool_axis *a = p->axis;
    nti_range r0 = nti_pool_over(&a[0], y[0]), r1 = nti_pool_over(&a[1], y[1]), r2 = nti_pool_over(&a[2], y[2]);
    int64_t n = 0;
    for (int64_t i = r0.first; i < r0.end; i++)
        for (int64_t j = r1.first; j < r1.end; j++)
            for (int64_t k = r2.first; k < r2.end; k++)
                if (nti_pool_covers(&a[0], i, y[0]) && nti_pool_covers(&a[1], j, y[1]) && nti_pool_covers(&a[2], k, y[2]))
                    tap[n++] = ((i * a[1].out + j) * a[2].out + k) * p->channels;
    return n;
}

static void nti_eval_sum_pool_grad(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_pooling p = nti_pooling_of(c->i, &c->out, &c->in[0]);
    const nti_rows_table *t = NTI_ROWS_TABLE(c, c->out.dtype);
    int64_t step = nti_pool_places_step(&p), places = p.axis[0].size * p.axis[1].size * p.axis[2].size,
        size = (int64_t)nt_dtype_size((nt_dtype)c->out.dtype);
    int64_t end = nti_min((tile + 1) * step, p.images * places), pooled = p.axis[0].out * p.axis[1].out * p.axis[2].out;
    nti_window w;
    (void)phase;
    w.tap = (int64_t *)worker;
    w.count = 1;
    w.m = p.channels;
    w.step = w.out_step = 0;
    for (int64_t at = tile * step; at < end; at++) {
        int64_t y[3];
        y[2] = at % p.axis[2].size;
        y[1] = at / p.axis[2].size % p.axis[1].size;
        y[0] = at / (p.axis[2].size * p.axis[1].size) % p.axis[0].size;
        w.taps = nti_pool_windows_over(&p, y, (int64_t *)worker);
        const char *g = (const char *)c->in[0].data + at / places * pooled * p.channels * size;
        t->pool[1]((char *)c->out.data + at * p.channels * size, g, &w);
    }
}
// >>moving rows
// Rows that move elements without arithmetic, or hardly any: copy, pad, concat, gather and scatter, iota, the check
// of indices, and the driver of elementwise maps. Every dtype: elements are bytes here. Relies on nti_axes.

// A strided copy: axes that are adjacent on both sides count as one; the last two (rows, columns) are moved in blocks.
typedef struct nti_copy {
    int count;
    int64_t size[NT_MAX_RANK], to[NT_MAX_RANK], from[NT_MAX_RANK];
    int row, column;                   // axes of a block, -1 for none; column: contiguous in the result, row: in the operand if possible
    int64_t row_step, column_step;     // of a unit
    int64_t row_units, column_units, units, group;
} nti_copy;

static void nti_copy_push(nti_copy *t, int64_t size, int64_t to, int64_t from) {
    int last = t->count - 1;
    if (size == 1) return;
    if (last >= 0 && t->to[last] == to * size && t->from[last] == from * size) {
        t->size[last] *= size;
        t->to[last] = to;
        t->from[last] = from;
        return;
    }
    t->size[t->count] = size;
    t->to[t->count] = to;
    t->from[t->count++] = from;
}

static int64_t nti_magnitude(int64_t x) { return x < 0 ? -x : x; }

#define NTI_COPY_TILE 32768

static void nti_copy_make(nti_copy *t, const nti_view *out, const int64_t *to, const nti_view *in) {
    t->count = 0;
    for (int k = 0; k < out->rank; k++) nti_copy_push(t, in->shape[k], to[k], in->stride[k]);
    t->column = t->count - 1;
    t->row = t->count - 2;
    for (int k = t->row; k >= 0 && t->from[t->column] != 1; k--)
        if (t->from[k] && nti_magnitude(t->from[k]) < nti_magnitude(t->from[t->row])) t->row = k;
    int64_t columns = t->column >= 0 ? t->size[t->column] : 1, rows = t->row >= 0 ? t->size[t->row] : 1, all = 1;
    int transposed = t->row >= 0 && t->from[t->column] != 1;
    for (int k = 0; k < t->count; k++) all *= t->size[k];
    t->column_step = transposed ? 1024 : NTI_COPY_TILE;
    t->row_step = transposed ? 2 * NTI_MOVE_SIDE : nti_max(1, NTI_COPY_TILE / nti_max(1, columns));
    t->column_units = nti_tile_count(columns, t->column_step);
    t->row_units = nti_tile_count(rows, t->row_step);
    t->units = all ? all / (rows * columns) * t->row_units * t->column_units : 0;
    t->group = nti_max(1, NTI_COPY_TILE / nti_max(1, nti_min(rows, t->row_step) * nti_min(columns, t->column_step)));
}

static int64_t nti_copy_tiles(const nti_copy *t) { return nti_tile_count(t->units, t->group); }

static void nti_copy_unit(const nti_copy *t, size_t size, int64_t unit, char *to, const char *from) {
    int64_t column = unit % t->column_units * t->column_step, row = unit / t->column_units % t->row_units * t->row_step;
    int64_t flat = unit / (t->column_units * t->row_units), rows = 1, columns = 1, out = 0, in = 0;
    if (t->column >= 0) {
        columns = nti_min(t->column_step, t->size[t->column] - column);
        out += column * t->to[t->column];
        in += column * t->from[t->column];
    }
    if (t->row >= 0) {
        rows = nti_min(t->row_step, t->size[t->row] - row);
        out += row * t->to[t->row];
        in += row * t->from[t->row];
    }
    for (int k = t->count - 1; k >= 0; k--) {
        if (k == t->row || k == t->column) continue;
        out += flat % t->size[k] * t->to[k];
        in += flat % t->size[k] * t->from[k];
        flat /= t->size[k];
    }
    int r = t->row, k = t->column;
    nti_move(size, rows, columns, to + out * (int64_t)size, r >= 0 ? t->to[r] : 0, k >= 0 ? t->to[k] : 0, from + in * (int64_t)size,
        r >= 0 ? t->from[r] : 0, k >= 0 ? t->from[k] : 0);
}

static void nti_copy_tile(const nti_copy *t, size_t size, int64_t tile, void *to, const void *from) {
    int64_t end = nti_min((tile + 1) * t->group, t->units);
    for (int64_t u = tile * t->group; u < end; u++) nti_copy_unit(t, size, u, (char *)to, (const char *)from);
}

static size_t nti_out_size(const nti_call *c) { return nt_dtype_size((nt_dtype)c->out.dtype); }

// copy: in[0] to out, any strides
static void nti_plan_copy(const nti_call *c, nti_plan *p) {
    nti_copy t;
    nti_copy_make(&t, &c->out, c->out.stride, &c->in[0]);
    nti_plan_tiles(p, nti_copy_tiles(&t));
}
static void nti_eval_copy(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_copy t;
    (void)phase;
    (void)worker;
    nti_copy_make(&t, &c->out, c->out.stride, &c->in[0]);
    nti_copy_tile(&t, nti_out_size(c), tile, c->out.data, c->in[0].data);
}

// concat: i[0] axis; any number of operands of any strides, each copied to its place
static void nti_plan_concat(const nti_call *c, nti_plan *p) {
    nti_copy t;
    int64_t tiles = 0;
    for (int k = 0; k < c->inputs; k++) {
        nti_copy_make(&t, &c->out, c->out.stride, &c->in[k]);
        tiles += nti_copy_tiles(&t);
    }
    nti_plan_tiles(p, tiles);
}
static void nti_eval_concat(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_copy t;
    int64_t place = 0, axis = c->i[0];
    (void)phase;
    (void)worker;
    for (int k = 0; k < c->inputs; k++) {
        nti_copy_make(&t, &c->out, c->out.stride, &c->in[k]);
        if (tile < nti_copy_tiles(&t)) {
            nti_copy_tile(&t, nti_out_size(c), tile, (char *)c->out.data + place * c->out.stride[axis] * (int64_t)nti_out_size(c),
                c->in[k].data);
            return;
        }
        tile -= nti_copy_tiles(&t);
        place += c->in[k].shape[axis];
    }
}

// A number in the bytes of a dtype. Storage dtypes have no arithmetic: the integers take it cut, f16 and bf16 only zero.
static void nti_number_bytes(nt_dtype dtype, double value, void *bytes) {
    memset(bytes, 0, 8);
    nti_cast(dtype, bytes, NT_F64, &value, 1);
}

// iota: out contiguous, i[0] axis; f32 f64 i32 u32
static void nti_plan_iota(const nti_call *c, nti_plan *p) { nti_plan_tiles(p, nti_tile_count(nti_view_size(&c->out), NTI_TILE_ELEMENTS)); }

static void nti_eval_iota(const nti_call *c, int phase, int64_t tile, void *worker) {
    size_t size = nti_out_size(c);
    int64_t first = tile * NTI_TILE_ELEMENTS, end = nti_min(first + NTI_TILE_ELEMENTS, nti_view_size(&c->out)), inner = 1,
        length = c->out.shape[c->i[0]];
    (void)phase;
    (void)worker;
    for (int k = (int)c->i[0] + 1; k < c->out.rank; k++) inner *= c->out.shape[k];
    for (int64_t at = first, run; at < end; at += run) {
        char value[8];
        run = nti_min(end - at, inner - at % inner);
        nti_number_bytes((nt_dtype)c->out.dtype, (double)(at / inner % length), value);
        nti_move(size, 1, run, (char *)c->out.data + at * (int64_t)size, 0, 1, value, 0, 0);
    }
}

// pad: in[0] any strides, out contiguous; for each axis i[3k] before, after, between; d[0]. Tiles are rows of out.
static int64_t nti_pad_step(const nti_call *c) { return nti_max(1, NTI_COPY_TILE / nti_max(1, nti_row_length(&c->out))); }
static void nti_plan_pad(const nti_call *c, nti_plan *p) {
    nti_plan_tiles(p, nti_view_size(&c->out) ? nti_tile_count(nti_row_count(&c->out), nti_pad_step(c)) : 0);
}

// Where in the operand a row of out comes from, along all axes but the last; 0 if it is padding.
static int nti_pad_source(const nti_call *c, int64_t row, int64_t *offset) {
    const nti_view *x = &c->in[0];
    *offset = 0;
    for (int k = x->rank - 2; k >= 0; k--) {
        int64_t step = c->i[3 * k + 2] + 1, at = row % c->out.shape[k] - c->i[3 * k];
        row /= c->out.shape[k];
        if (at < 0 || at % step || at / step >= x->shape[k]) return 0;
        *offset += at / step * x->stride[k];
    }
    return 1;
}

static void nti_pad_row(const nti_call *c, int64_t row, const char *value) {
    const nti_view *x = &c->in[0];
    size_t size = nti_out_size(c);
    int last = x->rank - 1, inside;
    int64_t n = nti_row_length(&c->out), bytes = (int64_t)size, offset;
    char *out = (char *)c->out.data + row * n * bytes;
    int64_t length = last >= 0 ? x->shape[last] : 1, stride = last >= 0 ? x->stride[last] : 0;
    int64_t before = last >= 0 ? c->i[3 * last] : 0, step = last >= 0 ? c->i[3 * last + 2] + 1 : 1;
    int64_t first = nti_max(0, nti_ceil_div(-before, step)), end = nti_min(length, nti_floor_div(n - 1 - before, step) + 1);
    inside = nti_pad_source(c, row, &offset);
    if (!inside || end - first < n) nti_move(size, 1, n, out, 0, 1, value, 0, 0);
    if (inside && end > first)
        nti_move(size, 1, end - first, out + (before + first * step) * bytes, 0, step,
            (const char *)x->data + (offset + first * stride) * bytes, 0, stride);
}

static void nti_eval_pad(const nti_call *c, int phase, int64_t tile, void *worker) {
    char value[8];
    int64_t step = nti_pad_step(c), end = nti_min((tile + 1) * step, nti_row_count(&c->out));
    (void)phase;
    (void)worker;
    nti_number_bytes((nt_dtype)c->out.dtype, c->d[0], value);
    for (int64_t r = tile * step; r < end; r++) nti_pad_row(c, r, value);
}

// >>gather and scatter
// Contiguous operands (outer, axis, inner): i[0] axis, in[1] indices, i[1] of gather: clip. An index out of range that is not
// clipped gives zeros, or adds nothing: that data are right is checked by an instruction of its own.
typedef struct nti_picks { int64_t outer, length, inner, count; } nti_picks;

static nti_picks nti_picks_of(const nti_call *c) {
    const nti_view *x = &c->in[0];
    nti_picks p = { 1, 1, 1, 1 };
    int axis = (int)c->i[0];
    for (int k = 0; k < x->rank; k++) {
        if (k < axis) p.outer *= x->shape[k];
        else if (k == axis) p.length = x->shape[k];
        else p.inner *= x->shape[k];
    }
    p.count = nti_view_size(&c->in[1]);
    return p;
}

static int64_t nti_gather_step(const nti_picks *p) { return nti_max(1, NTI_COPY_TILE / nti_max(1, p->inner)); }
static void nti_plan_gather(const nti_call *c, nti_plan *plan) {
    nti_picks p = nti_picks_of(c);
    nti_plan_tiles(plan, p.inner ? nti_tile_count(p.outer * p.count, nti_gather_step(&p)) : 0);
}

static void nti_eval_gather(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_picks p = nti_picks_of(c);
    const int32_t *index = (const int32_t *)c->in[1].data;
    size_t size = nti_out_size(c), row = (size_t)p.inner * size;
    int64_t step = nti_gather_step(&p), end = nti_min((tile + 1) * step, p.outer * p.count);
    (void)phase;
    (void)worker;
    for (int64_t r = tile * step; r < end; r++) {
        int64_t from = index[r % p.count];
        char *out = (char *)c->out.data + (size_t)r * row;
        if (c->i[1]) from = nti_max(0, nti_min(from, p.length - 1));
        if (from < 0 || from >= p.length) memset(out, 0, row);
        else nti_move(size, 1, p.inner, out, 0, 1, (const char *)c->in[0].data + (size_t)(r / p.count * p.length + from) * row, 0, 1);
    }
}

// scatter_add: phase 0 copies the base (nothing where it lies in place already), phase 1 adds; a tile owns a block of the inner
// elements and takes the updates in the order of the indices.
typedef struct nti_scatter_cut { int64_t width, blocks, units, group; } nti_scatter_cut;

static nti_scatter_cut nti_scatter_cut_of(const nti_picks *p) {
    nti_scatter_cut t;
    t.width = p->inner < 128 ? nti_max(1, p->inner) : 64;
    t.blocks = nti_tile_count(p->inner, t.width);
    t.units = p->outer * t.blocks;
    t.group = nti_max(1, NTI_COPY_TILE / 2 / nti_max(1, p->count * t.width));
    return t;
}

static void nti_plan_scatter_add(const nti_call *c, nti_plan *plan) {
    nti_picks p = nti_picks_of(c);
    nti_scatter_cut t = nti_scatter_cut_of(&p);
    nti_plan_tiles(plan, nti_tile_count(nti_view_size(&c->out), NTI_TILE_ELEMENTS));
    plan->phases = 2;
    plan->tiles[1] = nti_tile_count(t.units, t.group);
}

static void nti_scatter_unit(const nti_call *c, const nti_picks *p, const nti_scatter_cut *t, int64_t unit) {
    const nti_reduce_kernels *k = nti_reduce_find(c, NTI_SUM, c->out.dtype);
    const int32_t *index = (const int32_t *)c->in[1].data;
    int64_t column = unit % t->blocks * t->width, outer = unit / t->blocks, width = nti_min(t->width, p->inner - column),
        size = (int64_t)nti_out_size(c);
    char *out = (char *)c->out.data + (outer * p->length * p->inner + column) * size;
    const char *update = (const char *)c->in[2].data + (outer * p->count * p->inner + column) * size;
    for (int64_t j = 0; j < p->count; j++)
        if (index[j] >= 0 && index[j] < p->length) k->rows(out + index[j] * p->inner * size, update + j * p->inner * size, 1, 0, width, 0);
}

static void nti_scatter_base(const nti_call *c, int64_t tile) {
    int64_t first = tile * NTI_TILE_ELEMENTS, size = (int64_t)nti_out_size(c);
    if (c->out.data == c->in[0].data) return;
    size_t bytes = (size_t)(nti_min(NTI_TILE_ELEMENTS, nti_view_size(&c->out) - first) * size);
    memcpy((char *)c->out.data + first * size, (const char *)c->in[0].data + first * size, bytes);
}

static void nti_eval_scatter_add(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_picks p = nti_picks_of(c);
    nti_scatter_cut t = nti_scatter_cut_of(&p);
    int64_t end = nti_min((tile + 1) * t.group, t.units);
    (void)worker;
    if (phase == 0) nti_scatter_base(c, tile);
    else for (int64_t u = tile * t.group; u < end; u++) nti_scatter_unit(c, &p, &t, u);
}

// take_along: in[1] and out (outer, count, inner) pick from in[0] (outer, axis, inner), each index for its own line. scatter_along adds
// in[2] at the same places: phase 0 copies the base as scatter_add does, then a tile owns some of the outer index.
#define NTI_SCATTER_ALONG(name, T) \
    static void nti_scatter_along_##name(void *out, const int32_t *index, const void *update, int64_t length, int64_t count, int64_t inner) { \
        T *o = (T *)out; \
        const T *u = (const T *)update; \
        for (int64_t j = 0; j < count; j++, index += inner, u += inner) \
            for (int64_t k = 0; k < inner; k++) \
                if (index[k] >= 0 && index[k] < length) o[index[k] * inner + k] += u[k]; \
    }
NTI_SCATTER_ALONG(f32, float)
NTI_SCATTER_ALONG(f64, double)
NTI_SCATTER_ALONG(u32, uint32_t) // i32 too: wrapping
#undef NTI_SCATTER_ALONG

static nti_picks nti_along_of(const nti_call *c) { // count: of one line
    nti_picks p = nti_picks_of(c);
    p.count = c->in[1].shape[c->i[0]];
    return p;
}

static int64_t nti_along_step(const nti_picks *p) { return nti_max(1, NTI_COPY_TILE / 4 / nti_max(1, p->inner * p->count)); }
static void nti_plan_take_along(const nti_call *c, nti_plan *plan) {
    nti_plan_tiles(plan, nti_tile_count(nti_view_size(&c->out), NTI_COPY_TILE / 4));
}

static void nti_eval_take_along(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_picks p = nti_along_of(c);
    const int32_t *index = (const int32_t *)c->in[1].data;
    size_t size = nti_out_size(c);
    int64_t line = p.count * p.inner, at = tile * (NTI_COPY_TILE / 4), end = nti_min(at + NTI_COPY_TILE / 4, nti_view_size(&c->out));
    (void)phase;
    (void)worker;
    for (int64_t stop; at < end;) { // line after line
        const char *from = (const char *)c->in[0].data + (size_t)(at / line * p.length * p.inner) * size;
        int64_t column = at % p.inner;
        for (stop = nti_min(end, (at / line + 1) * line); at < stop; at++, column = column + 1 < p.inner ? column + 1 : 0) {
            char *out = (char *)c->out.data + (size_t)at * size;
            if (index[at] < 0 || index[at] >= p.length) memset(out, 0, size);
            else nti_move_block(size, 1, 1, out, 0, 0, from + (size_t)(index[at] * p.inner + column) * size, 0, 0);
        }
    }
}

static void nti_plan_scatter_along(const nti_call *c, nti_plan *plan) {
    nti_picks p = nti_along_of(c);
    nti_plan_tiles(plan, nti_tile_count(nti_view_size(&c->out), NTI_TILE_ELEMENTS));
    plan->phases = 2;
    plan->tiles[1] = p.inner > 0 && p.count > 0 ? nti_tile_count(p.outer, nti_along_step(&p)) : 0;
}

static void nti_eval_scatter_along(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_picks p = nti_along_of(c);
    int64_t step = nti_along_step(&p), end = nti_min((tile + 1) * step, p.outer), line = p.count * p.inner, size = (int64_t)nti_out_size(c);
    (void)worker;
    if (phase == 0) { nti_scatter_base(c, tile); return; }
    for (int64_t k = tile * step; k < end; k++) {
        char *out = (char *)c->out.data + k * p.length * p.inner * size;
        const int32_t *index = (const int32_t *)c->in[1].data + k * line;
        const char *update = (const char *)c->in[2].data + k * line * size;
        if (c->out.dtype == NT_F32) nti_scatter_along_f32(out, index, update, p.length, p.count, p.inner);
        else if (c->out.dtype == NT_F64) nti_scatter_along_f64(out, index, update, p.length, p.count, p.inner);
        else nti_scatter_along_u32(out, index, update, p.length, p.count, p.inner);
    }
}

// Pieces at places that are data. i[0]: leading axes that count the places; the last operand holds a start for each of the other
// axes, moved into range so that the piece fits. dynamic_slice: a piece of in[0]; dynamic_update: in[0] with in[1] put there.
static int64_t nti_piece_places(const nti_call *c) {
    int64_t n = 1;
    for (int k = 0; k < c->i[0]; k++) n *= c->out.shape[k];
    return n;
}

// The view behind the leading axes, at the data of a place.
static nti_view nti_place_view(const nti_view *v, int lead, int64_t place) {
    nti_view w = *v;
    int64_t offset = 0;
    for (int k = lead - 1; k >= 0 && place; k--) {
        offset += place % v->shape[k] * v->stride[k];
        place /= v->shape[k];
    }
    w.shape += lead;
    w.stride += lead;
    w.rank = (uint8_t)(v->rank - lead);
    if (w.data) w.data = (char *)v->data + offset * (int64_t)nt_dtype_size((nt_dtype)v->dtype);
    return w;
}

// Moves the data of `whole` to where a piece of these sizes starts, as the operand `starts` says.
static void nti_place_start(const nti_call *c, nti_view *whole, const int64_t *sizes, int64_t place) {
    nti_view at = nti_place_view(&c->in[c->inputs - 1], (int)c->i[0], place);
    int64_t offset = 0;
    for (int k = 0; k < whole->rank; k++) {
        int64_t start = ((const int32_t *)at.data)[k * at.stride[0]];
        if (start < 0) start += whole->shape[k];
        offset += nti_max(0, nti_min(start, whole->shape[k] - sizes[k])) * whole->stride[k];
    }
    whole->data = (char *)whole->data + offset * (int64_t)nt_dtype_size((nt_dtype)whole->dtype);
    whole->shape = sizes;
}

static void nti_plan_dynamic_slice(const nti_call *c, nti_plan *p) {
    int lead = (int)c->i[0];
    nti_copy t;
    nti_view out = nti_place_view(&c->out, lead, 0), x = nti_place_view(&c->in[0], lead, 0);
    x.shape = out.shape;
    nti_copy_make(&t, &out, out.stride, &x);
    nti_plan_tiles(p, nti_copy_tiles(&t) * nti_piece_places(c));
}

static void nti_eval_dynamic_slice(const nti_call *c, int phase, int64_t tile, void *worker) {
    int lead = (int)c->i[0];
    int64_t places = nti_piece_places(c);
    nti_copy t;
    nti_view out = nti_place_view(&c->out, lead, tile % places), x = nti_place_view(&c->in[0], lead, tile % places);
    (void)phase;
    (void)worker;
    nti_place_start(c, &x, out.shape, tile % places);
    nti_copy_make(&t, &out, out.stride, &x);
    nti_copy_tile(&t, nti_out_size(c), tile / places, out.data, x.data);
}

static void nti_plan_dynamic_update(const nti_call *c, nti_plan *p) {
    int lead = (int)c->i[0];
    nti_copy t;
    nti_view out = nti_place_view(&c->out, lead, 0), u = nti_place_view(&c->in[1], lead, 0);
    nti_plan_tiles(p, nti_tile_count(nti_view_size(&c->out), NTI_TILE_ELEMENTS));
    nti_copy_make(&t, &out, out.stride, &u);
    p->phases = 2;
    p->tiles[1] = nti_copy_tiles(&t) * nti_piece_places(c);
}

static void nti_eval_dynamic_update(const nti_call *c, int phase, int64_t tile, void *worker) {
    int lead = (int)c->i[0];
    int64_t places = nti_piece_places(c);
    nti_copy t;
    (void)worker;
    if (phase == 0) { nti_scatter_base(c, tile); return; }
    nti_view out = nti_place_view(&c->out, lead, tile % places), u = nti_place_view(&c->in[1], lead, tile % places);
    nti_place_start(c, &out, u.shape, tile % places);
    nti_copy_make(&t, &out, out.stride, &u);
    nti_copy_tile(&t, nti_out_size(c), tile / places, out.data, u.data);
}

// >>scans and sorts
// Along one axis (i[0]) of contiguous operands (outer, axis, inner), one line after the other or some of them side by side: running
// sums, products, maxima and log-sums, y[t] = a[t] y[t-1] + b[t], and the order of the elements. Floating sums run in f64, so the
// order of lines and lanes does not matter. i[1] of scans: from the end.
#define NTI_SCAN_LANES 64
#define NTI_LINE_TILE 8192
typedef struct nti_lines { int64_t outer, length, inner, width, blocks, units, group; } nti_lines; // a unit: `width` lines side by side

static nti_lines nti_lines_of(const nti_view *x, int axis, int64_t most) {
    nti_lines t = { 1, x->shape[axis], 1, 0, 0, 0, 0 };
    for (int k = 0; k < axis; k++) t.outer *= x->shape[k];
    for (int k = axis + 1; k < x->rank; k++) t.inner *= x->shape[k];
    t.width = nti_max(1, nti_min(t.inner, most));
    t.blocks = nti_tile_count(t.inner, t.width);
    t.units = t.length ? t.outer * t.blocks : 0;
    t.group = nti_max(1, NTI_LINE_TILE / nti_max(1, t.length * t.width));
    return t;
}

// The first element of a unit, and how many lines it has.
static int64_t nti_line_start(const nti_lines *t, int64_t unit, int64_t *width) {
    int64_t column = unit % t->blocks * t->width;
    *width = nti_min(t->width, t->inner - column);
    return unit / t->blocks * t->length * t->inner + column;
}

#define NTI_SCAN(name, T, A, join) \
    static void nti_scan_##name(void *out, const void *x, int64_t n, int64_t step, int64_t width) { \
        A sum[NTI_SCAN_LANES] = { 0 }; \
        T *o = (T *)out; \
        const T *p = (const T *)x; \
        for (int64_t t = 0; t < n; t++, p += step, o += step) \
            for (int64_t k = 0; k < width; k++) { A a = sum[k], b = p[k]; sum[k] = t ? (A)(join) : b; o[k] = (T)sum[k]; } \
    }
NTI_SCAN(sum_f32, float, double, a + b)
NTI_SCAN(sum_f64, double, double, a + b)
NTI_SCAN(sum_u32, uint32_t, uint32_t, a + b) // i32 too: wrapping
NTI_SCAN(prod_f32, float, double, a * b)
NTI_SCAN(prod_f64, double, double, a * b)
NTI_SCAN(prod_u32, uint32_t, uint32_t, a * b)
NTI_SCAN(max_f32, float, float, a >= b || a != a ? a : b) // NaN wins
NTI_SCAN(max_f64, double, double, a >= b || a != a ? a : b)
NTI_SCAN(max_i32, int32_t, int32_t, a < b ? b : a)
NTI_SCAN(max_u32, uint32_t, uint32_t, a < b ? b : a)
#undef NTI_SCAN

typedef void (*nti_scan_fn)(void *out, const void *x, int64_t n, int64_t step, int64_t width);
static nti_scan_fn nti_scan_of(const nti_call *c) {
    static const nti_scan_fn table[3][4] = { { nti_scan_sum_f32, nti_scan_sum_f64, nti_scan_sum_u32, nti_scan_sum_u32 },
                                             { nti_scan_prod_f32, nti_scan_prod_f64, nti_scan_prod_u32, nti_scan_prod_u32 },
                                             { nti_scan_max_f32, nti_scan_max_f64, nti_scan_max_i32, nti_scan_max_u32 } };
    return table[c->i[2]][c->out.dtype];
}

static void nti_plan_scan(const nti_call *c, nti_plan *p) {
    nti_lines t = nti_lines_of(&c->out, (int)c->i[0], NTI_SCAN_LANES);
    nti_plan_tiles(p, nti_tile_count(t.units, t.group));
}

static void nti_eval_scan(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_lines t = nti_lines_of(&c->out, (int)c->i[0], NTI_SCAN_LANES);
    nti_scan_fn scan = nti_scan_of(c);
    int64_t size = (int64_t)nti_out_size(c), end = nti_min((tile + 1) * t.group, t.units), width;
    (void)phase;
    (void)worker;
    for (int64_t u = tile * t.group; u < end; u++) {
        int64_t at = nti_line_start(&t, u, &width), step = c->i[1] ? -t.inner : t.inner;
        if (c->i[1]) at += (t.length - 1) * t.inner;
        scan((char *)c->out.data + at * size, (const char *)c->in[0].data + at * size, t.length, step, width);
    }
}

// Scans whose step needs the f64 maps: lines that are no neighbours (inner 1) go side by side, too. Scratch: the running values, the
// elements of both operands, and one element's row as it lies.
static nti_lines nti_wide_lines(const nti_call *c) {
    nti_lines t = nti_lines_of(&c->out, (int)c->i[0], NTI_SCAN_LANES);
    if (t.inner > 1) return t;
    t.width = NTI_SCAN_LANES;
    t.blocks = 1;
    t.units = t.length ? nti_tile_count(t.outer, t.width) : 0;
    t.group = nti_max(1, NTI_LINE_TILE / nti_max(1, t.length * t.width));
    return t;
}

static void nti_plan_wide_scan(const nti_call *c, nti_plan *p) {
    nti_lines t = nti_wide_lines(c);
    nti_plan_tiles(p, nti_tile_count(t.units, t.group));
    p->worker = 4 * NTI_SCAN_LANES * sizeof(double);
}

// y[t] of all lanes from y[t - 1] and the elements: logaddexp(y, x), or a y + b.
static void nti_wide_step(const nti_call *c, double *y, double *x, double *b, int64_t width, int first) {
    const nti_map_fn *map = c->isa->math[1]->map;
    const void *in[2];
    in[0] = y, in[1] = x;
    if (c->inputs == 1) {
        if (first) memcpy(y, x, (size_t)width * sizeof *y);
        else map[NTI_MAP_LOGADDEXP](y, in, (size_t)width, NULL);
        return;
    }
    if (first) { memcpy(y, b, (size_t)width * sizeof *y); return; }
    map[NTI_MAP_MUL](y, in, (size_t)width, NULL);
    in[1] = b;
    map[NTI_MAP_ADD](y, in, (size_t)width, NULL);
}

static void nti_wide_unit(const nti_call *c, const nti_lines *t, int64_t unit, double *y) {
    double *element[2], *row = y + 3 * NTI_SCAN_LANES;
    int64_t size = (int64_t)nti_out_size(c), alone = t->inner == 1, width = 0, apart = alone ? t->length : 1;
    int64_t at = alone ? unit * t->width * t->length : nti_line_start(t, unit, &width);
    if (alone) width = nti_min(t->width, t->outer - unit * t->width);
    element[0] = y + NTI_SCAN_LANES, element[1] = y + 2 * NTI_SCAN_LANES;
    for (int64_t j = 0; j < t->length; j++) {
        int64_t place = (at + (c->i[1] ? t->length - 1 - j : j) * t->inner) * size;
        for (int k = 0; k < c->inputs; k++) {
            nti_move(nti_out_size(c), 1, width, (char *)row, 0, 1, (const char *)c->in[k].data + place, 0, apart);
            nti_cast(NT_F64, element[k], (nt_dtype)c->out.dtype, row, (size_t)width);
        }
        nti_wide_step(c, y, element[0], element[1], width, j == 0);
        nti_cast((nt_dtype)c->out.dtype, row, NT_F64, y, (size_t)width);
        nti_move(nti_out_size(c), 1, width, (char *)c->out.data + place, 0, apart, (const char *)row, 0, 1);
    }
}

static void nti_eval_wide_scan(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_lines t = nti_wide_lines(c);
    int64_t end = nti_min((tile + 1) * t.group, t.units);
    (void)phase;
    for (int64_t u = tile * t.group; u < end; u++) nti_wide_unit(c, &t, u, (double *)worker);
}

// argsort: keys of 64 bits whose order is that of the elements, then a stable merge sort of the positions. i[1]: from the largest, i[2]:
// how many are kept. As jax.lax.sort, zeros of both signs are equal and NaN comes last; from the largest, as jax.lax.top_k, -0 lies
// below 0 and NaN comes first.
static uint64_t nti_sort_key(nt_dtype dtype, const char *x, int64_t k, int descending) {
    uint64_t key = 0, sign = (uint64_t)1 << 31;
    if (dtype == NT_F64) {
        double v = ((const double *)(const void *)x)[k];
        sign <<= 32;
        if (v != v) return descending ? 0 : UINT64_MAX;
        if (v == 0 && !descending) v = 0; // +0
        memcpy(&key, &v, sizeof v);
        key = key & sign ? ~key : key | sign;
        return descending ? ~key : key;
    }
    uint32_t bits = 0;
    if (dtype == NT_BOOL) bits = ((const uint8_t *)x)[k];
    else memcpy(&bits, x + 4 * k, sizeof bits);
    if (dtype == NT_F32) {
        float v;
        memcpy(&v, &bits, sizeof v);
        if (v != v) return descending ? 0 : UINT64_MAX;
        bits = v == 0 && !descending ? (uint32_t)sign : bits & sign ? ~bits : bits | (uint32_t)sign;
    } else if (dtype == NT_I32) bits ^= (uint32_t)sign;
    return descending ? UINT32_MAX - bits : bits;
}

#define NTI_SORT_RUN 8
// The positions 0 .. n - 1 in the order of their keys, equal ones in theirs; in a or in b.
static const int32_t *nti_merge_sort(const uint64_t *key, int32_t *a, int32_t *b, int64_t n) {
    for (int64_t i = 0; i < n; i++) { // runs, by insertion
        int64_t j = i;
        for (; j % NTI_SORT_RUN && key[a[j - 1]] > key[i]; j--) a[j] = a[j - 1];
        a[j] = (int32_t)i;
    }
    for (int64_t run = NTI_SORT_RUN; run < n; run *= 2) {
        for (int64_t first = 0; first < n; first += 2 * run) {
            int64_t middle = nti_min(first + run, n), end = nti_min(first + 2 * run, n), p = first, q = middle;
            for (int64_t k = first; k < end; k++) b[k] = q >= end || (p < middle && key[a[p]] <= key[a[q]]) ? a[p++] : a[q++];
        }
        int32_t *other = a;
        a = b, b = other;
    }
    return a;
}

static void nti_plan_argsort(const nti_call *c, nti_plan *p) {
    nti_lines t = nti_lines_of(&c->in[0], (int)c->i[0], 1);
    nti_plan_tiles(p, c->i[2] ? nti_tile_count(t.units, t.group) : 0);
    p->worker = (size_t)t.length * (sizeof(uint64_t) + 2 * sizeof(int32_t));
}

static void nti_eval_argsort(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_lines t = nti_lines_of(&c->in[0], (int)c->i[0], 1);
    nt_dtype dtype = (nt_dtype)c->in[0].dtype;
    int64_t end = nti_min((tile + 1) * t.group, t.units), width, n = t.length;
    uint64_t *key = (uint64_t *)worker;
    int32_t *a = (int32_t *)(void *)(key + n);
    (void)phase;
    for (int64_t u = tile * t.group; u < end; u++) {
        const char *x = (const char *)c->in[0].data + nti_line_start(&t, u, &width) * (int64_t)nt_dtype_size(dtype);
        for (int64_t k = 0; k < n; k++) key[k] = nti_sort_key(dtype, x, k * t.inner, (int)c->i[1]);
        const int32_t *order = nti_merge_sort(key, a, a + n, n);
        int32_t *out = (int32_t *)c->out.data + u / t.inner * c->i[2] * t.inner + u % t.inner;
        for (int64_t k = 0; k < c->i[2]; k++) out[k * t.inner] = order[k];
    }
}

// >>check of indices
// i[0] limit, i[1] ignored value, i[2] has one; out is in[0]. Single tile, so that the first bad index is the one reported.
static void nti_data_error(const nti_call *c, int64_t flat_index, double value);

static void nti_plan_check_index(const nti_call *c, nti_plan *p) { nti_plan_tiles(p, nti_view_size(&c->in[0]) ? 1 : 0); }

static void nti_eval_check_index(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_axes a;
    int32_t piece[128];
    int64_t limit = c->i[0];
    (void)phase;
    (void)tile;
    (void)worker;
    nti_axes_of(&a, &c->in[0]);
    for (int64_t first = 0; first < a.total; first += 128) {
        int64_t n = nti_min(128, a.total - first);
        nti_axes_read(&a, c->in[0].data, sizeof piece[0], first, n, piece);
        for (int64_t k = 0; k < n; k++) {
            int64_t v = piece[k];
            if ((v >= 0 && v < limit) || (c->i[2] && v == c->i[1])) continue;
            nti_data_error(c, first + k, (double)v);
            return;
        }
    }
}

// >>factorisations
// Cholesky, LU, triangular solves, eigenvalues and QR of the last two axes of operands of any strides: phases and tiles, and the
// same for arrays of the host (nti_factor_*), which run in one go.
static nti_matrix nti_turned(nti_matrix m) {
    nti_gemm_swap(&m.rs, &m.cs);
    return m;
}

static nti_matrix nti_matrix_part(nti_matrix m, nt_dtype dtype, int64_t i, int64_t j) {
    m.p = (char *)m.p + (i * m.rs + j * m.cs) * (int64_t)nt_dtype_size(dtype);
    return m;
}

static int64_t nti_rows_of(const nti_view *v) { return v->shape[v->rank - 2]; }
static int64_t nti_columns_of(const nti_view *v) { return v->shape[v->rank - 1]; }

static int64_t nti_lead_count(int rank, const int64_t *shape) {
    int64_t n = 1;
    for (int k = 0; k < rank; k++) n *= shape[k];
    return n;
}

static int64_t nti_matrices_of(const nti_view *v) { return nti_lead_count(v->rank - 2, v->shape); }

static nti_matrix nti_matrix_of(const nti_view *v, int64_t index) {
    nti_matrix m;
    int64_t at = 0;
    for (int k = v->rank - 3; k >= 0; k--) at += index % v->shape[k] * v->stride[k], index /= v->shape[k];
    m.p = v->data ? (char *)v->data + at * (int64_t)nt_dtype_size((nt_dtype)v->dtype) : NULL;
    m.rs = v->stride[v->rank - 2], m.cs = v->stride[v->rank - 1];
    return m;
}

#define NTI_LINEAR_TABLE(c, dtype) ((c)->isa->linear[(dtype) == NT_F64])
static const nti_linear_table *nti_linear_of(const nti_call *c) { return NTI_LINEAR_TABLE(c, c->out.dtype); }
static int64_t nti_blocks(int64_t n) { return nti_tile_count(n, NTI_BLOCK); }
static int64_t nti_chunks(int64_t n) { return nti_tile_count(n, NTI_CHUNK); }

static void nti_plan_linear(const nti_call *c, nti_plan *p, int64_t tiles, int64_t room) { // one phase
    nti_plan_tiles(p, tiles);
    p->worker = (size_t)room * nt_dtype_size((nt_dtype)c->out.dtype);
}

// A round for each block column: its diagonal block, then the rows below; a last round for factors that failed.
static void nti_plan_cholesky(const nti_call *c, nti_plan *p) {
    int64_t n = nti_rows_of(&c->out), count = nti_matrices_of(&c->out);
    nti_plan_linear(c, p, count, nti_cholesky_room(n, nti_out_size(c)));
    p->phases = 2, p->rounds = (int)nti_blocks(n) + 1, p->tiles[1] = n > NTI_BLOCK ? count * nti_chunks(n - NTI_BLOCK) : 0;
}

static nti_factor nti_factor_of(const nti_call *c, int64_t index) {
    nti_factor f;
    f.x = nti_matrix_of(&c->in[0], index), f.out = nti_matrix_of(&c->out, index), f.n = nti_columns_of(&c->out);
    return f;
}

static void nti_eval_cholesky(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t chunks = nti_chunks(nti_rows_of(&c->out) - NTI_BLOCK), below = phase % 2;
    nti_factor f = nti_factor_of(c, below ? tile / chunks : tile);
    nti_linear_of(c)->cholesky(&f, phase / 2, below ? tile % chunks : -1, worker);
}

// i[0] a stands on the right, i[1] is upper, [2] is transposed, [3] has ones on its diagonal. Tiles are columns of x (rows, if a is on the right).
static int64_t nti_solve_columns(const nti_call *c) { return c->i[0] ? nti_rows_of(&c->out) : nti_columns_of(&c->out); }

static void nti_plan_triangular_solve(const nti_call *c, nti_plan *p) {
    int64_t m = nti_solve_columns(c);
    nti_plan_linear(c, p, nti_matrices_of(&c->out) * nti_chunks(m), nti_solve_room(nti_rows_of(&c->in[0]), nti_min(m, NTI_CHUNK), nti_out_size(c)));
}

static void nti_eval_triangular_solve(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t m = nti_solve_columns(c), chunks = nti_chunks(m), index = tile / chunks, at = tile % chunks * NTI_CHUNK;
    nt_dtype dtype = (nt_dtype)c->out.dtype;
    nti_matrix b = nti_matrix_of(&c->in[1], index);
    nti_solve s;
    (void)phase;
    s.a = nti_matrix_of(&c->in[0], index), s.x = nti_matrix_of(&c->out, index), s.n = nti_rows_of(&c->in[0]), s.m = nti_min(NTI_CHUNK, m - at);
    if (c->i[0]) b = nti_turned(b), s.x = nti_turned(s.x); // x a = b is a^T x^T = b^T
    if (c->i[0] != c->i[2]) s.a = nti_turned(s.a);
    s.lower = (c->i[1] != 0) == (c->i[0] != c->i[2]), s.unit = c->i[3] != 0;
    s.x = nti_matrix_part(s.x, dtype, 0, at), b = nti_matrix_part(b, dtype, 0, at);
    nti_move(nt_dtype_size(dtype), s.n, s.m, (char *)s.x.p, s.x.rs, s.x.cs, (const char *)b.p, b.rs, b.cs);
    nti_linear_of(c)->solve(&s, worker);
}

// A round for each block column: its panel, then the other blocks of columns.
static void nti_plan_lu(const nti_call *c, nti_plan *p) {
    int64_t n = nti_columns_of(&c->out), count = nti_matrices_of(&c->out);
    nti_plan_linear(c, p, count, nti_lu_room(n, nti_out_size(c)));
    p->phases = 2, p->rounds = (int)nti_blocks(n), p->tiles[1] = n > NTI_BLOCK ? count * nti_blocks(n) : 0;
}

static void nti_eval_lu(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t blocks = nti_blocks(nti_columns_of(&c->out)), others = phase % 2;
    nti_factor f = nti_factor_of(c, others ? tile / blocks : tile);
    nti_linear_of(c)->lu(&f, phase / 2, others ? tile % blocks : -1, worker);
}

// Operands a (for its derivative only), its factors, b; i[0] transposed.
static void nti_plan_lu_solve(const nti_call *c, nti_plan *p) {
    int64_t m = nti_columns_of(&c->out);
    nti_plan_linear(c, p, nti_matrices_of(&c->out) * nti_chunks(m), nti_solve_room(nti_rows_of(&c->out), nti_min(m, NTI_CHUNK), nti_out_size(c)));
}

static void nti_eval_lu_solve(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_rows_of(&c->out), m = nti_columns_of(&c->out), chunks = nti_chunks(m), at = tile % chunks * NTI_CHUNK, some = nti_min(NTI_CHUNK, m - at);
    nt_dtype dtype = (nt_dtype)c->out.dtype;
    nti_matrix x = nti_matrix_part(nti_matrix_of(&c->out, tile / chunks), dtype, 0, at);
    nti_matrix b = nti_matrix_part(nti_matrix_of(&c->in[2], tile / chunks), dtype, 0, at);
    (void)phase;
    nti_move(nt_dtype_size(dtype), n, some, (char *)x.p, x.rs, x.cs, (const char *)b.p, b.rs, b.cs);
    nti_linear_of(c)->lu_solve(nti_matrix_of(&c->in[1], tile / chunks), x, n, some, c->i[0] != 0, worker);
}

// Operands a (for its derivative only) and its factors; i[0]: the determinant, its sign, the logarithm of its magnitude.
enum { NTI_DET, NTI_DET_SIGN, NTI_DET_LOG };

static void nti_plan_determinant(const nti_call *c, nti_plan *p) { nti_plan_linear(c, p, nti_view_size(&c->out), nti_columns_of(&c->in[1]) + 1); }

static void nti_eval_determinant(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_columns_of(&c->in[1]), size = (int64_t)nti_out_size(c);
    const void *in = worker;
    double sign;
    char *to = (char *)c->out.data + tile * size;
    (void)phase;
    nti_linear_of(c)->determinant(nti_matrix_of(&c->in[1], tile), n, &sign, worker);
    if (c->i[0] == NTI_DET_LOG) c->isa->math[c->out.dtype == NT_F64]->map[NTI_MAP_LOG](worker, &in, (size_t)n, NULL);
    double log = 0, product = sign;
    if (c->out.dtype == NT_F64)
        for (int64_t k = 0; k < n; k++) product *= ((double *)worker)[k], log += ((double *)worker)[k];
    else
        for (int64_t k = 0; k < n; k++) product *= (double)((float *)worker)[k], log += (double)((float *)worker)[k];
    nti_number_bytes((nt_dtype)c->out.dtype, c->i[0] == NTI_DET ? product : c->i[0] == NTI_DET_SIGN ? sign : log, worker);
    memcpy(to, worker, (size_t)size);
}

// i[0]: with eigenvectors, in the rows behind the values
static void nti_plan_eigh(const nti_call *c, nti_plan *p) {
    nti_plan_linear(c, p, nti_matrices_of(&c->in[0]), nti_eigh_room(nti_rows_of(&c->in[0]), c->i[0] != 0, nti_out_size(c)));
}

static void nti_eval_eigh(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_rows_of(&c->in[0]), size = (int64_t)nti_out_size(c);
    char *out = (char *)c->out.data + tile * n * (c->i[0] ? n + 1 : 1) * size;
    (void)phase;
    nti_linear_of(c)->eigh(nti_matrix_of(&c->in[0], tile), n, out, c->i[0] ? out + n * size : NULL, worker);
}

static void nti_plan_qr(const nti_call *c, nti_plan *p) {
    nti_plan_linear(c, p, nti_matrices_of(&c->in[0]), nti_qr_room(nti_rows_of(&c->in[0]), nti_columns_of(&c->in[0]), nti_out_size(c)));
}

static void nti_eval_qr(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t m = nti_rows_of(&c->in[0]), n = nti_columns_of(&c->in[0]), size = (int64_t)nti_out_size(c);
    char *out = (char *)c->out.data + tile * (m + n) * n * size;
    (void)phase;
    nti_linear_of(c)->qr(nti_matrix_of(&c->in[0], tile), m, n, out, out + m * n * size, worker);
}

// Operands x (for its derivative only), its eigenvalues and vectors, and for the Lyapunov equation its right side; contiguous.
static void nti_plan_spectral(const nti_call *c, nti_plan *p) {
    nti_plan_linear(c, p, nti_matrices_of(&c->out), nti_spectral_room(nti_rows_of(&c->out), nti_out_size(c)));
}

static void nti_eval_spectral(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_rows_of(&c->out), size = (int64_t)nti_out_size(c), at = tile * n * n * size;
    (void)phase;
    nti_linear_of(c)->spectral((const char *)c->in[1].data + tile * n * (n + 1) * size, c->inputs > 2 ? (const char *)c->in[2].data + at : NULL, n,
                               (char *)c->out.data + at, worker);
}

// >>elementwise driver
// A map is called on ranges of flat indices of a contiguous result. Operands (of the result's shape; strides of 0 repeat) that
// are contiguous there are passed as they lie, one that is contiguous along long rows too, row by row; all
// others are gathered into pieces of NTI_MAP_PIECE elements in the worker's scratch. A piece of an operand that repeats with
// a period that divides the piece is gathered once a tile.
static nti_map_fn nti_map_of(const nti_call *c);

#define NTI_MAP_INPUTS 8
#define NTI_MAP_PIECE 512
#define NTI_MAP_TILE 16384
enum { NTI_MAP_FLAT, NTI_MAP_ROWS, NTI_MAP_GATHER };

typedef struct nti_map_operand {
    nti_axes axes;
    const char *data;
    char *buffer;
    size_t size;
    int64_t period;                    // elements after which it repeats; its size if it does not
    int how, ready;
} nti_map_operand;

static void nti_map_operand_make(nti_map_operand *o, const nti_view *v) {
    nti_axes *a = &o->axes;
    nti_axes_of(a, v);
    o->size = nt_dtype_size((nt_dtype)v->dtype);
    o->data = (const char *)v->data;
    o->ready = 0;
    o->period = a->count && a->stride[0] == 0 ? a->total / nti_max(1, a->size[0]) : a->total;
    o->how = NTI_MAP_GATHER;
    if (nti_axes_contiguous(a)) o->how = NTI_MAP_FLAT;
    else if (nti_axes_step(a) == 1 && a->size[a->count - 1] >= NTI_MAP_PIECE / 2) o->how = NTI_MAP_ROWS;
}

static void nti_plan_map(const nti_call *c, nti_plan *p) {
    nti_map_operand o;
    nti_plan_tiles(p, nti_tile_count(nti_view_size(&c->out), NTI_MAP_TILE));
    for (int k = 0; k < c->inputs; k++) {
        nti_map_operand_make(&o, &c->in[k]);
        if (o.how == NTI_MAP_GATHER) p->worker += NTI_MAP_PIECE * o.size;
    }
}

// Length of pieces: a multiple of the periods, if those of all gathered operands agree.
static int64_t nti_map_piece(nti_map_operand *o, int inputs) {
    int64_t piece = INT64_MAX, period = 1;
    int rows = 0;
    for (int k = 0; k < inputs; k++) {
        if (o[k].how == NTI_MAP_ROWS) rows = 1;
        if (o[k].how != NTI_MAP_GATHER) continue;
        piece = NTI_MAP_PIECE;
        if (o[k].period <= NTI_MAP_PIECE) period = nti_max(period, o[k].period);
    }
    if (piece == NTI_MAP_PIECE && !rows) piece = NTI_MAP_PIECE / period * period;
    for (int k = 0; k < inputs; k++)
        if (rows ? o[k].period != 1 : o[k].period > NTI_MAP_PIECE || piece % nti_max(1, o[k].period)) o[k].period = 0;
    return piece;
}

static int64_t nti_map_length(const nti_map_operand *o, int inputs, int64_t at, int64_t n) {
    for (int k = 0; k < inputs; k++) {
        if (o[k].how != NTI_MAP_ROWS) continue;
        int64_t row = o[k].axes.size[o[k].axes.count - 1];
        n = nti_min(n, row - at % row);
    }
    return n;
}

static const void *nti_map_at(nti_map_operand *o, int64_t at, int64_t n) {
    if (o->how != NTI_MAP_GATHER) return o->data + nti_axes_offset(&o->axes, at) * (int64_t)o->size;
    if (!o->ready) nti_axes_read(&o->axes, o->data, o->size, at, o->period == 1 ? NTI_MAP_PIECE : n, o->buffer);
    o->ready = o->period != 0;
    return o->buffer;
}

static void nti_eval_map(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_map_operand o[NTI_MAP_INPUTS];
    const void *in[NTI_MAP_INPUTS];
    nti_map_fn map = nti_map_of(c);
    char *buffer = (char *)worker;
    size_t size = nti_out_size(c);
    (void)phase;
    for (int k = 0; k < c->inputs; k++) {
        nti_map_operand_make(&o[k], &c->in[k]);
        o[k].buffer = buffer;
        if (o[k].how == NTI_MAP_GATHER) buffer += NTI_MAP_PIECE * o[k].size;
    }
    int64_t piece = nti_map_piece(o, c->inputs), end = nti_min((tile + 1) * NTI_MAP_TILE, nti_view_size(&c->out));
    for (int64_t at = tile * NTI_MAP_TILE, n; at < end; at += n) {
        n = nti_map_length(o, c->inputs, at, nti_min(piece, end - at));
        for (int k = 0; k < c->inputs; k++) in[k] = nti_map_at(&o[k], at, n);
        map((char *)c->out.data + (size_t)at * size, in, (size_t)n, c->d);
    }
}
// >>evaluators
// ---------------------------------------------------------------------------------------------------------------------
// Evaluators that need a table of the operation (maps), the program (checks, keys) or nothing but a cast.
// ---------------------------------------------------------------------------------------------------------------------
#define NTI_CAST_TILE 16384
static void nti_plan_cast(const nti_call *c, nti_plan *p) {
    p->phases = 1, p->tiles[0] = (nti_view_size(&c->out) + NTI_CAST_TILE - 1) / NTI_CAST_TILE, p->shared = p->worker = 0;
}

static void nti_eval_cast(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_view_size(&c->out), first = tile * NTI_CAST_TILE, count = n - first < NTI_CAST_TILE ? n - first : NTI_CAST_TILE;
    (void)phase, (void)worker;
    nti_cast((nt_dtype)c->out.dtype, (char *)c->out.data + (size_t)first * nt_dtype_size((nt_dtype)c->out.dtype), (nt_dtype)c->in[0].dtype,
             (const char *)c->in[0].data + (size_t)first * nt_dtype_size((nt_dtype)c->in[0].dtype), (size_t)count);
}

// A loss or a gradient that must be finite, and below the limit d[0] where that is finite: attribute-free otherwise.
static void nti_plan_check_finite(const nti_call *c, nti_plan *p) {
    (void)c;
    p->phases = 1, p->tiles[0] = 1, p->shared = p->worker = 0;
}

static void nti_eval_check_finite(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n = nti_view_size(&c->in[0]);
    double limit = c->d[0];
    (void)phase, (void)tile, (void)worker;
    if (c->in[0].dtype == NT_F64) {
        const double *x = (const double *)c->in[0].data;
        for (int64_t k = 0; k < n; k++)
            if (!(x[k] - x[k] == 0 && x[k] < limit)) { nti_data_error(c, k, x[k]); return; }
    } else {
        const float *x = (const float *)c->in[0].data;
        for (int64_t k = 0; k < n; k++)
            if (!(x[k] - x[k] == 0 && (double)x[k] < limit)) { nti_data_error(c, k, (double)x[k]); return; }
    }
}

// What the rows of training read: made when a step is compiled, its numbers set before each run.
enum { NTI_COUNT_UPDATES, NTI_COUNT_MICRO, NTI_COUNT_ACCEPTED, NTI_COUNT_SKIPPED, NTI_COUNTERS }; // i64, the window's in the middle
enum { NTI_RATE, NTI_WEIGHT_SUM, NTI_LOSS_SUM, NTI_WINDOW_LOSS, NTI_NUMBERS };                    // f64
typedef struct nti_step {
    nt_optimizer *optimizer;
    nt_program *update;      // the second half of an accumulating step: checks and updates
    int64_t *counter;
    double *number;
    nti_update now;          // hyper-parameters of the update that runs next
    nt_event_kind event;
    int has_loss;
    int updating;            // the run has come to the update
    double weight, loss;     // of the micro-batch whose run is not counted yet
} nti_step;
static const nti_step *nti_step_of(const nt_program *p);

static void nti_eval_key(const nti_call *c, int phase, int64_t tile, void *worker) {
    const nti_step *step = nti_step_of(c->program);
    nt_key_value key;
    (void)phase, (void)tile, (void)worker;
    key.word[0] = (uint32_t)c->i[0], key.word[1] = (uint32_t)c->i[1];
    if (c->i[2] && step)
        key = nt_key_fold_in(nt_key_fold_in(key, (uint32_t)step->counter[NTI_COUNT_UPDATES]), (uint32_t)step->counter[NTI_COUNT_MICRO]);
    memcpy(c->out.data, key.word, sizeof key.word);
}

// The value goes into the variable: a copy between views.
static void nti_assign_views(const nti_call *c, nti_call *copy) {
    *copy = *c;
    copy->in = c->in + 1, copy->inputs = 1;
}

static void nti_plan_assign(const nti_call *c, nti_plan *p) {
    nti_call copy;
    nti_assign_views(c, &copy);
    nti_plan_copy(&copy, p);
}

static void nti_eval_assign(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_call copy;
    nti_assign_views(c, &copy);
    nti_eval_copy(&copy, phase, tile, worker);
}

// Flat arrays in tiles: operands of accumulations and updates are row-major.
#define NTI_FLAT_TILE 16384
static void nti_plan_flat(const nti_call *c, nti_plan *p) {
    p->phases = 1, p->tiles[0] = (nti_view_size(&c->out) + NTI_FLAT_TILE - 1) / NTI_FLAT_TILE, p->shared = p->worker = 0;
}

static size_t nti_flat_range(const nti_call *c, int64_t tile, size_t *first) {
    int64_t n = nti_view_size(&c->out), at = tile * NTI_FLAT_TILE;
    *first = (size_t)at;
    return (size_t)(n - at < NTI_FLAT_TILE ? n - at : NTI_FLAT_TILE);
}

static void *nti_flat_at(const nti_view *v, size_t first) { return (char *)v->data + first * nt_dtype_size((nt_dtype)v->dtype); }

// accumulator += gradient, or with attribute 1 the running mean a += (g - a) / (n + 1) of optax.
static void nti_plan_accumulate(const nti_call *c, nti_plan *p) { nti_plan_flat(c, p); }

static void nti_eval_accumulate(const nti_call *c, int phase, int64_t tile, void *worker) {
    size_t first, n = nti_flat_range(c, tile, &first);
    const nti_math_table *math = c->isa->math[c->out.dtype == NT_F64];
    const void *in[2];
    void *a = nti_flat_at(&c->out, first), *g = nti_flat_at(&c->in[1], first);
    (void)phase, (void)worker;
    in[0] = a, in[1] = g;
    if (!c->i[0]) { math->map[NTI_MAP_ADD](a, in, n, NULL); return; }
    double share = (double)(nti_step_of(c->program)->counter[NTI_COUNT_ACCEPTED] + 1);
    if (c->out.dtype == NT_F64) {
        double *x = (double *)a;
        const double *y = (const double *)g;
        for (size_t k = 0; k < n; k++) x[k] += (y[k] - x[k]) / share;
    } else {
        float *x = (float *)a;
        const float *y = (const float *)g;
        for (size_t k = 0; k < n; k++) x[k] += (y[k] - x[k]) / (float)share;
    }
}

// UPDATE: operands parameter, gradient, moments; attribute [0] the moments there are (bit 0 m, bit 1 v), [1] 1 if decayed.
static void nti_plan_update(const nti_call *c, nti_plan *p) { nti_plan_flat(c, p); }

static void nti_eval_update(const nti_call *c, int phase, int64_t tile, void *worker) {
    size_t first, n = nti_flat_range(c, tile, &first);
    nti_update u = nti_step_of(c->program)->now;
    int next = 2;
    (void)phase, (void)worker;
    if (!c->i[1]) u.decay = 0;
    void *m = c->i[0] & 1 ? nti_flat_at(&c->in[next++], first) : NULL, *v = c->i[0] & 2 ? nti_flat_at(&c->in[next], first) : NULL;
    c->isa->update[c->out.dtype == NT_F64]->update(&u, nti_flat_at(&c->out, first), nti_flat_at(&c->in[1], first), m, v, n);
}
// Loops: the index of this iteration, the part of an operand that it selects, and results, which are filled iteration after iteration.
static int64_t nti_loop_at(const nt_program *p, int64_t depth);

static void nti_eval_map_index(const nti_call *c, int phase, int64_t tile, void *worker) { // attributes: serial, count, depth
    (void)phase, (void)tile, (void)worker;
    *(int32_t *)c->out.data = (int32_t)nti_loop_at(c->program, c->i[2]);
}

// The element of `whole` at the iteration's index, as a view.
static nti_view nti_view_part(const nti_view *whole, const nti_view *index) {
    nti_view part = *whole;
    part.rank--, part.shape++, part.stride++;
    if (part.data)
        part.data = (char *)whole->data + *(const int32_t *)index->data * whole->stride[0] * (int64_t)nt_dtype_size((nt_dtype)whole->dtype);
    return part;
}

static void nti_plan_map_slice(const nti_call *c, nti_plan *p) {
    nti_call copy = *c;
    nti_view part = nti_view_part(&c->in[0], &c->in[1]);
    copy.in = &part, copy.inputs = 1;
    nti_plan_copy(&copy, p);
}

static void nti_eval_map_slice(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_call copy = *c;
    nti_view part = nti_view_part(&c->in[0], &c->in[1]);
    copy.in = &part, copy.inputs = 1;
    nti_eval_copy(&copy, phase, tile, worker);
}

static void nti_plan_map_start(const nti_call *c, nti_plan *p) { nti_plan_flat(c, p); }

static void nti_eval_map_start(const nti_call *c, int phase, int64_t tile, void *worker) {
    size_t first, n = nti_flat_range(c, tile, &first);
    (void)phase, (void)worker;
    memset(nti_flat_at(&c->out, first), 0, n * nt_dtype_size((nt_dtype)c->out.dtype));
}

static void nti_eval_map_add(const nti_call *c, int phase, int64_t tile, void *worker) { // in[0] is the result itself
    size_t first, n = nti_flat_range(c, tile, &first);
    const void *in[2];
    nt_dtype dtype = (nt_dtype)c->out.dtype;
    (void)phase, (void)worker;
    in[0] = nti_flat_at(&c->out, first), in[1] = nti_flat_at(&c->in[1], first);
    nti_map_fn add = nti_is_float(dtype) ? c->isa->math[dtype == NT_F64]->map[NTI_MAP_ADD] : nti_integer_map(dtype, NTI_MAP_ADD);
    add(nti_flat_at(&c->out, first), in, n, NULL);
}

static void nti_map_write_views(const nti_call *c, nti_call *copy) { // operands: the result, the value, the index
    *copy = *c;
    copy->out = nti_view_part(&c->out, &c->in[2]), copy->in = c->in + 1, copy->inputs = 1;
}

static void nti_plan_map_write(const nti_call *c, nti_plan *p) {
    nti_call copy;
    nti_map_write_views(c, &copy);
    nti_plan_copy(&copy, p);
}

static void nti_eval_map_write(const nti_call *c, int phase, int64_t tile, void *worker) {
    nti_call copy;
    nti_map_write_views(c, &copy);
    nti_eval_copy(&copy, phase, tile, worker);
}
// >>rows
// ---------------------------------------------------------------------------------------------------------------------
// The operations. One row each in NTI_ROWS; the functions that a row names stand below it, in the order of the rows:
// infer (dtype and shape), derivative rules written in public operations, decompositions. Kernels stand in the kernel
// sections above. Columns: identifier, public name, operands, flags, linear operands, map, sample range, infer, view, plan,
// eval, cost, partial, jvp, vjp, vmap, decompose, sample (only with NTTRAIN_TESTS).
// ---------------------------------------------------------------------------------------------------------------------
// clang-format off
#define NTI_F (NTI_STRIDED | NTI_IN_PLACE)
#define NTI_FI (NTI_F | NTI_INTEGER)
#define NTI_CONSTANT_MAP (NTI_F | NTI_NO_GRADIENT)
#define NTI_MAP_ROW(X, ID, name, inputs, flags, linear, map, low, high, infer, partial, jvp, vjp, decompose) \
    X(ID, name, inputs, flags, linear, NTI_MAP_##map, low, high, infer, NULL, nti_plan_map, nti_eval_map, NULL, partial, jvp, vjp, nti_vmap_map, decompose, nti_sample_map)
#define NTI_U(X, ID, name, flags, map, low, high) \
    NTI_MAP_ROW(X, ID, "nt_" #name, 1, flags, 0, map, low, high, nti_infer_map, nti_d_##name, nti_jvp_partial, nti_vjp_partial, NULL)
#define NTI_STEP_MAP(X, ID, name, flags, map) /* piecewise constant: no derivative is recorded */ \
    NTI_MAP_ROW(X, ID, "nt_" #name, 1, (flags) | NTI_NO_GRADIENT, 0, map, -2, 2, nti_infer_map, NULL, NULL, NULL, NULL)
#define NTI_B(X, ID, name, flags, map, low, high) \
    NTI_MAP_ROW(X, ID, "nt_" #name, 2, flags, 0, map, low, high, nti_infer_map, nti_d_##name, nti_jvp_partial, nti_vjp_partial, NULL)
#define NTI_COMPARE(X, ID, name, map) NTI_MAP_ROW(X, ID, "nt_" #name, 2, NTI_STRIDED | NTI_INTEGER | NTI_NO_GRADIENT, 0, map, -2, 2, nti_infer_compare, NULL, NULL, NULL, NULL)
#define NTI_LOGICAL(X, ID, name, inputs, map) NTI_MAP_ROW(X, ID, "nt_" #name, inputs, NTI_CONSTANT_MAP, 0, map, 0, 1, nti_infer_logical, NULL, NULL, NULL, NULL)
#define NTI_REDUCE(X, ID, name, flags, linear, jvp, vjp, decompose) \
    X(ID, name, 1, NTI_STRIDED | (flags), linear, -1, -2, 2, nti_infer_reduce, NULL, nti_plan_reduce, nti_eval_reduce, nti_cost_reduce, NULL, jvp, vjp, NULL, decompose, nti_sample_reduce)
#define NTI_SEE(X, ID, name, flags, view, infer, jvp, vjp, vmap, sample) /* a view; copied where strides cannot say it */ \
    X(ID, name, 1, NTI_VIEW | NTI_STRIDED | NTI_INTEGER | NTI_CHEAP | (flags), 1, -1, -2, 2, infer, view, nti_plan_copy, nti_eval_copy, NULL, NULL, jvp, vjp, vmap, NULL, sample)
#define NTI_CUMULATE(X, ID, name, flags, linear, plan, eval, jvp, vjp) \
    X(ID, name, 1, NTI_IN_PLACE | (flags), linear, -1, -2, 2, nti_infer_scan, NULL, plan, eval, NULL, NULL, jvp, vjp, nti_vmap_axis, NULL, nti_sample_scan)

#define NTI_MATRIX_ROW(X, ID, name, inputs, flags, linear, infer, kernel, cost, jvp, vjp) \
    X(ID, name, inputs, flags, linear, -1, -2, 2, infer, NULL, nti_plan_##kernel, nti_eval_##kernel, cost, NULL, jvp, vjp, nti_vmap_map, NULL, nti_sample_linear)
#define NTI_PART_ROW(X, ID, name, infer, view, jvp, vjp) /* of a factorisation that stands for all of it in derivatives */ \
    X(ID, name, 2, NTI_VIEW | NTI_STRIDED | NTI_CHEAP, 0, -1, -2, 2, infer, view, nti_plan_copy, nti_eval_copy, NULL, NULL, jvp, vjp, nti_vmap_map, NULL, nti_sample_linear)
#define NTI_LINEAR_ROWS(X) \
    NTI_MATRIX_ROW(X, CHOLESKY, "nt_cholesky", 1, NTI_STRIDED, 0, nti_infer_square, cholesky, nti_cost_cholesky, nti_jvp_cholesky, nti_vjp_cholesky) \
    NTI_MATRIX_ROW(X, TRIANGULAR_SOLVE, "nt_triangular_solve", 2, NTI_STRIDED, 2, nti_infer_triangular_solve, triangular_solve, nti_cost_solve, \
                   nti_jvp_triangular_solve, nti_vjp_triangular_solve) \
    NTI_MATRIX_ROW(X, LU, "nt_solve factors", 1, NTI_STRIDED | NTI_NO_GRADIENT, 0, nti_infer_lu, lu, nti_cost_lu, NULL, NULL) \
    NTI_MATRIX_ROW(X, LU_SOLVE, "nt_solve", 3, NTI_STRIDED, 4, nti_infer_lu_solve, lu_solve, nti_cost_solve, nti_jvp_lu_solve, nti_vjp_lu_solve) \
    NTI_MATRIX_ROW(X, DETERMINANT, "nt_det", 2, NTI_STRIDED, 0, nti_infer_determinant, determinant, NULL, nti_jvp_determinant, nti_vjp_determinant) \
    NTI_MATRIX_ROW(X, EIGH, "nt_eigh factors", 1, NTI_STRIDED | NTI_NO_GRADIENT, 0, nti_infer_eigh, eigh, nti_cost_eigh, NULL, NULL) \
    NTI_PART_ROW(X, EIGENVALUES, "nt_eigvalsh", nti_infer_eigenvalues, nti_view_eigenvalues, nti_jvp_eigenvalues, nti_vjp_eigenvalues) \
    NTI_PART_ROW(X, EIGENVECTORS, "nt_eigh", nti_infer_eigenvectors, nti_view_eigenvectors, nti_jvp_eigenvectors, nti_vjp_eigenvectors) \
    NTI_MATRIX_ROW(X, SYM_SQRT, "nt_sym_sqrt", 2, 0, 0, nti_infer_spectral, spectral, nti_cost_spectral, nti_jvp_sym_sqrt, nti_vjp_sym_sqrt) \
    NTI_MATRIX_ROW(X, LYAPUNOV, "nt_sym_sqrt derivative", 3, 0, 4, nti_infer_spectral, spectral, nti_cost_spectral, nti_jvp_lyapunov, nti_vjp_lyapunov) \
    NTI_MATRIX_ROW(X, QR, "nt_qr factors", 1, NTI_STRIDED | NTI_NO_GRADIENT, 0, nti_infer_qr, qr, nti_cost_qr, NULL, NULL) \
    NTI_PART_ROW(X, QR_Q, "nt_qr", nti_infer_qr_q, nti_view_qr_q, nti_jvp_qr_q, nti_vjp_qr_q) \
    NTI_PART_ROW(X, QR_R, "nt_qr triangle", nti_infer_qr_r, nti_view_qr_r, nti_jvp_qr_r, nti_vjp_qr_r)

#define NTI_ROWS(X) \
    X(INPUT, "nt_input", 0, NTI_LEAF_ROW, 0, -1, 0, 0, nti_infer_leaf, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_leaf) \
    X(VARIABLE, "nt_variable", 0, NTI_LEAF_ROW, 0, -1, 0, 0, nti_infer_leaf, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_leaf) \
    X(CONSTANT, "nt_constant", 0, NTI_LEAF_ROW, 0, -1, 0, 0, nti_infer_generator, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_leaf) \
    X(FULL, "nt_full", 0, NTI_LEAF_ROW, 0, -1, 0, 0, nti_infer_generator, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_leaf) \
    X(IOTA, "nt_iota", 0, NTI_CHEAP, 0, -1, 0, 0, nti_infer_generator, NULL, nti_plan_iota, nti_eval_iota, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_leaf) \
    NTI_MAP_ROW(X, NEG, "nt_neg", 1, NTI_FI, 1, NEG, -2, 2, nti_infer_map, NULL, nti_jvp_linear, nti_vjp_neg, NULL) \
    NTI_U(X, ABS, abs, NTI_FI, ABS, -2, 2) \
    NTI_STEP_MAP(X, SIGN, sign, NTI_FI, SIGN) \
    NTI_U(X, SQUARE, square, NTI_FI, SQUARE, -2, 2) \
    NTI_U(X, RECIPROCAL, reciprocal, NTI_F, RECIPROCAL, 0.3, 3) \
    NTI_U(X, SQRT, sqrt, NTI_F, SQRT, 0.3, 3) \
    NTI_U(X, RSQRT, rsqrt, NTI_F, RSQRT, 0.3, 3) \
    NTI_U(X, CBRT, cbrt, NTI_F, CBRT, 0.3, 3) \
    NTI_U(X, EXP, exp, NTI_F, EXP, -2, 2) \
    NTI_U(X, EXP2, exp2, NTI_F, EXP2, -2, 2) \
    NTI_U(X, EXPM1, expm1, NTI_F, EXPM1, -2, 2) \
    NTI_U(X, LOG, log, NTI_F, LOG, 0.3, 3) \
    NTI_U(X, LOG2, log2, NTI_F, LOG2, 0.3, 3) \
    NTI_U(X, LOG1P, log1p, NTI_F, LOG1P, -0.6, 3) \
    NTI_U(X, SIN, sin, NTI_F, SIN, -3, 3) \
    NTI_U(X, COS, cos, NTI_F, COS, -3, 3) \
    NTI_U(X, TAN, tan, NTI_F, TAN, -1.2, 1.2) \
    NTI_U(X, ASIN, asin, NTI_F, ASIN, -0.8, 0.8) \
    NTI_U(X, ACOS, acos, NTI_F, ACOS, -0.8, 0.8) \
    NTI_U(X, ATAN, atan, NTI_F, ATAN, -2, 2) \
    NTI_U(X, SINH, sinh, NTI_F, SINH, -2, 2) \
    NTI_U(X, COSH, cosh, NTI_F, COSH, -2, 2) \
    NTI_U(X, TANH, tanh, NTI_F, TANH, -2, 2) \
    NTI_U(X, ASINH, asinh, NTI_F, ASINH, -2, 2) \
    NTI_U(X, ACOSH, acosh, NTI_F, ACOSH, 1.2, 3) \
    NTI_U(X, ATANH, atanh, NTI_F, ATANH, -0.8, 0.8) \
    NTI_U(X, ERF, erf, NTI_F, ERF, -2, 2) \
    NTI_U(X, ERFC, erfc, NTI_F, ERFC, -2, 2) \
    NTI_U(X, ERF_INV, erf_inv, NTI_F, ERF_INV, -0.8, 0.8) \
    NTI_U(X, LGAMMA, lgamma, NTI_F, LGAMMA, 0.5, 4) \
    NTI_U(X, POLYGAMMA, polygamma, NTI_F, POLYGAMMA, 0.7, 4) \
    NTI_U(X, SIGMOID, sigmoid, NTI_F, SIGMOID, -2, 2) \
    NTI_U(X, LOG_SIGMOID, log_sigmoid, NTI_F, LOG_SIGMOID, -2, 2) \
    NTI_U(X, SOFTPLUS, softplus, NTI_F, SOFTPLUS, -2, 2) \
    NTI_MAP_ROW(X, RELU, "nt_relu", 1, NTI_FI, 0, RELU, -2, 2, nti_infer_map, NULL, nti_jvp_relu, nti_vjp_relu, NULL) \
    NTI_MAP_ROW(X, RELU_GRAD, "nt_relu derivative", 2, NTI_F, 2, RELU_GRAD, -2, 2, nti_infer_map, NULL, nti_jvp_linear, nti_vjp_relu_grad, NULL) \
    NTI_U(X, LEAKY_RELU, leaky_relu, NTI_F, LEAKY_RELU, -2, 2) \
    NTI_U(X, ELU, elu, NTI_F, ELU, -2, 2) \
    NTI_U(X, GELU, gelu, NTI_F, GELU, -2, 2) \
    NTI_U(X, GELU_GRAD, gelu_grad, NTI_F, GELU_GRAD, -2, 2) \
    NTI_U(X, GELU_TANH, gelu_tanh, NTI_F, GELU_TANH, -2, 2) \
    NTI_U(X, GELU_TANH_GRAD, gelu_tanh_grad, NTI_F, GELU_TANH_GRAD, -2, 2) \
    NTI_U(X, SILU, silu, NTI_F, SILU, -2, 2) \
    NTI_U(X, SILU_GRAD, silu_grad, NTI_F, SILU_GRAD, -2, 2) \
    NTI_STEP_MAP(X, FLOOR, floor, NTI_F, FLOOR) \
    NTI_STEP_MAP(X, CEIL, ceil, NTI_F, CEIL) \
    NTI_STEP_MAP(X, TRUNC, trunc, NTI_F, TRUNC) \
    NTI_STEP_MAP(X, ROUND, round, NTI_F, ROUND) \
    NTI_MAP_ROW(X, SCALE, "nt_scale", 1, NTI_FI, 1, SCALE, -2, 2, nti_infer_map, NULL, nti_jvp_linear, nti_vjp_scale, NULL) \
    NTI_MAP_ROW(X, ADD_SCALAR, "nt_add_scalar", 1, NTI_FI, 0, ADD_SCALAR, -2, 2, nti_infer_map, NULL, nti_jvp_same, nti_vjp_same, NULL) \
    NTI_U(X, POW_SCALAR, pow_scalar, NTI_F, POW_SCALAR, 0.3, 3) \
    NTI_U(X, CLAMP, clamp, NTI_FI, CLAMP, -2, 2) \
    NTI_MAP_ROW(X, IS_FINITE, "nt_is_finite", 1, NTI_STRIDED | NTI_NO_GRADIENT, 0, IS_FINITE, -2, 2, nti_infer_compare, NULL, NULL, NULL, NULL) \
    NTI_MAP_ROW(X, IS_NAN, "nt_is_nan", 1, NTI_STRIDED | NTI_NO_GRADIENT, 0, IS_NAN, -2, 2, nti_infer_compare, NULL, NULL, NULL, NULL) \
    X(CAST, "nt_cast", 1, NTI_INTEGER, 1, -1, -2, 2, nti_infer_cast, NULL, nti_plan_cast, nti_eval_cast, NULL, NULL, nti_jvp_cast, nti_vjp_cast, NULL, NULL, nti_sample_cast) \
    NTI_MAP_ROW(X, ADD, "nt_add", 2, NTI_FI | NTI_JOINT, 3, ADD, -2, 2, nti_infer_map, NULL, nti_jvp_add, nti_vjp_same, NULL) \
    NTI_MAP_ROW(X, SUB, "nt_sub", 2, NTI_FI | NTI_JOINT, 3, SUB, -2, 2, nti_infer_map, NULL, nti_jvp_sub, nti_vjp_sub, NULL) \
    NTI_MAP_ROW(X, MUL, "nt_mul", 2, NTI_FI, 3, MUL, -2, 2, nti_infer_map, NULL, nti_jvp_linear, nti_vjp_mul, NULL) \
    NTI_B(X, DIV, div, NTI_FI, DIV, 0.3, 3) \
    NTI_B(X, POW, pow, NTI_F, POW, 0.3, 3) \
    NTI_B(X, MAXIMUM, maximum, NTI_FI, MAX, -2, 2) \
    NTI_B(X, MINIMUM, minimum, NTI_FI, MIN, -2, 2) \
    NTI_B(X, ATAN2, atan2, NTI_F, ATAN2, 0.3, 3) \
    NTI_B(X, HYPOT, hypot, NTI_F, HYPOT, 0.3, 3) \
    NTI_B(X, LOGADDEXP, logaddexp, NTI_F, LOGADDEXP, -2, 2) \
    NTI_B(X, COPYSIGN, copysign, NTI_F, COPYSIGN, 0.3, 3) \
    NTI_B(X, REM, rem, NTI_FI, REM, 0.3, 3) \
    NTI_B(X, MOD, mod, NTI_FI, MOD, 0.3, 3) \
    NTI_COMPARE(X, EQUAL, equal, EQ) \
    NTI_COMPARE(X, NOT_EQUAL, not_equal, NE) \
    NTI_COMPARE(X, LESS, less, LT) \
    NTI_COMPARE(X, LESS_EQUAL, less_equal, LE) \
    NTI_COMPARE(X, GREATER, greater, GT) \
    NTI_COMPARE(X, GREATER_EQUAL, greater_equal, GE) \
    NTI_LOGICAL(X, LOGICAL_NOT, logical_not, 1, LOGICAL_NOT) \
    NTI_LOGICAL(X, LOGICAL_AND, logical_and, 2, LOGICAL_AND) \
    NTI_LOGICAL(X, LOGICAL_OR, logical_or, 2, LOGICAL_OR) \
    NTI_LOGICAL(X, LOGICAL_XOR, logical_xor, 2, LOGICAL_XOR) \
    NTI_MAP_ROW(X, SELECT, "nt_select", 3, NTI_FI | NTI_JOINT, 6, SELECT, -2, 2, nti_infer_select, NULL, nti_jvp_select, nti_vjp_select, NULL) \
    X(MATMUL, "nt_matmul", 2, NTI_STRIDED | NTI_ACCUMULATES | NTI_INTEGER, 3, -1, -2, 2, nti_infer_matmul, NULL, nti_plan_matmul, nti_eval_matmul, \
      nti_cost_matmul, NULL, nti_jvp_linear, nti_vjp_matmul, NULL, NULL, nti_sample_matmul) \
    X(CONV, "nt_conv", 2, 0, 3, -1, -2, 2, nti_infer_conv, NULL, nti_plan_conv, nti_eval_conv, nti_cost_conv, NULL, nti_jvp_linear, nti_vjp_conv, NULL, NULL, nti_sample_conv) \
    X(CONV_INPUT, "nt_conv_transpose_input", 2, 0, 3, -1, -2, 2, nti_infer_conv_input, NULL, nti_plan_conv_input, nti_eval_conv_input, nti_cost_conv, \
      NULL, nti_jvp_linear, nti_vjp_conv_input, NULL, NULL, nti_sample_conv) \
    X(CONV_FILTER, "nt_conv_transpose_kernel", 2, NTI_ACCUMULATES, 3, -1, -2, 2, nti_infer_conv_filter, NULL, nti_plan_conv_filter, \
      nti_eval_conv_filter, nti_cost_conv, NULL, nti_jvp_linear, nti_vjp_conv_filter, NULL, NULL, nti_sample_conv) \
    X(MAX_POOL, "nt_max_pool", 1, 0, 0, -1, -2, 2, nti_infer_pool, NULL, nti_plan_pool, nti_eval_pool, nti_cost_pool, NULL, nti_jvp_max_pool, \
      nti_vjp_max_pool, NULL, NULL, nti_sample_pool) \
    X(MAX_POOL_GRAD, "nt_max_pool derivative", 2, 0, 2, -1, -2, 2, nti_infer_pool_grad, NULL, nti_plan_max_pool_grad, nti_eval_max_pool_grad, \
      nti_cost_pool, NULL, nti_jvp_linear, nti_vjp_max_pool_grad, NULL, NULL, nti_sample_pool) \
    X(MAX_POOL_JVP, "nt_max_pool derivative", 2, 0, 2, -1, -2, 2, nti_infer_pool_jvp, NULL, nti_plan_max_pool_jvp, nti_eval_max_pool_jvp, nti_cost_pool, \
      NULL, nti_jvp_linear, nti_vjp_max_pool_jvp, NULL, NULL, nti_sample_pool) \
    X(SUM_POOL, "nt_sum_pool", 1, 0, 1, -1, -2, 2, nti_infer_pool, NULL, nti_plan_pool, nti_eval_pool, nti_cost_pool, NULL, nti_jvp_linear, \
      nti_vjp_sum_pool, NULL, NULL, nti_sample_pool) \
    X(SUM_POOL_GRAD, "nt_sum_pool derivative", 1, 0, 1, -1, -2, 2, nti_infer_pool_grad, NULL, nti_plan_sum_pool_grad, nti_eval_sum_pool_grad, \
      nti_cost_pool, NULL, nti_jvp_linear, nti_vjp_sum_pool_grad, NULL, NULL, nti_sample_pool) \
    NTI_REDUCE(X, SUM, "nt_sum", NTI_ACCUMULATES | NTI_INTEGER, 1, nti_jvp_linear, nti_vjp_sum, NULL) \
    NTI_REDUCE(X, PROD, "nt_prod", NTI_INTEGER, 0, NULL, NULL, nti_decompose_prod) \
    NTI_REDUCE(X, MAX, "nt_max", NTI_INTEGER, 0, nti_jvp_extreme, nti_vjp_extreme, NULL) \
    NTI_REDUCE(X, MIN, "nt_min", NTI_INTEGER, 0, nti_jvp_extreme, nti_vjp_extreme, NULL) \
    NTI_REDUCE(X, ANY, "nt_any", NTI_BOOLEAN | NTI_NO_GRADIENT, 0, NULL, NULL, NULL) \
    NTI_REDUCE(X, ALL, "nt_all", NTI_BOOLEAN | NTI_NO_GRADIENT, 0, NULL, NULL, NULL) \
    NTI_REDUCE(X, ARGMAX, "nt_argmax", NTI_INTEGER | NTI_NO_GRADIENT, 0, NULL, NULL, NULL) \
    NTI_REDUCE(X, ARGMIN, "nt_argmin", NTI_INTEGER | NTI_NO_GRADIENT, 0, NULL, NULL, NULL) \
    NTI_SEE(X, RESHAPE, "nt_reshape", 0, nti_view_reshape, nti_infer_reshape, nti_jvp_linear, nti_vjp_reshape, NULL, nti_sample_reshape) \
    NTI_SEE(X, TRANSPOSE, "nt_transpose", 0, nti_view_transpose, nti_infer_transpose, nti_jvp_linear, nti_vjp_transpose, NULL, nti_sample_transpose) \
    NTI_SEE(X, BROADCAST, "nt_broadcast", 0, nti_view_broadcast, nti_infer_broadcast, nti_jvp_linear, nti_vjp_broadcast, NULL, nti_sample_broadcast) \
    NTI_SEE(X, SLICE, "nt_slice", 0, nti_view_slice, nti_infer_slice, nti_jvp_linear, nti_vjp_slice, NULL, nti_sample_slice) \
    NTI_SEE(X, FLIP, "nt_flip", 0, nti_view_flip, nti_infer_flip, nti_jvp_linear, nti_vjp_flip, nti_vmap_flip, nti_sample_flip) \
    NTI_SEE(X, STOP_GRADIENT, "nt_stop_gradient", NTI_NO_GRADIENT, nti_view_same, nti_infer_same, NULL, NULL, NULL, nti_sample_view) \
    X(CHECK_INDEX, "nt_check_index", 1, NTI_VIEW | NTI_STRIDED | NTI_CHECKS | NTI_INTEGER | NTI_NO_GRADIENT | NTI_CHEAP, 0, -1, 0, 0, nti_infer_check, \
      nti_view_same, nti_plan_check_index, nti_eval_check_index, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_check_index) \
    X(CHECK_FINITE, "loss", 1, NTI_VIEW | NTI_CHECKS | NTI_NO_GRADIENT | NTI_CHEAP, 0, -1, 0, 0, nti_infer_check, nti_view_same, \
      nti_plan_check_finite, nti_eval_check_finite, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_view) \
    X(PAD, "nt_pad", 1, NTI_STRIDED | NTI_INTEGER | NTI_CHEAP, 1, -1, -2, 2, nti_infer_pad, NULL, nti_plan_pad, nti_eval_pad, NULL, NULL, nti_jvp_pad, \
      nti_vjp_pad, NULL, NULL, nti_sample_pad) \
    X(CONCAT, "nt_concat", -1, NTI_STRIDED | NTI_INTEGER | NTI_JOINT | NTI_CHEAP, 0xffffffffu, -1, -2, 2, nti_infer_concat, NULL, nti_plan_concat, \
      nti_eval_concat, NULL, NULL, nti_jvp_joint, nti_vjp_concat, NULL, NULL, nti_sample_concat) \
    X(GATHER, "nt_gather", 2, NTI_CHEAP, 1, -1, -2, 2, nti_infer_gather, NULL, nti_plan_gather, nti_eval_gather, NULL, NULL, nti_jvp_linear, \
      nti_vjp_gather, NULL, NULL, nti_sample_gather) \
    X(SCATTER_ADD, "nt_scatter_add", 3, NTI_JOINT | NTI_IN_PLACE_FIRST, 5, -1, -2, 2, nti_infer_scatter_add, NULL, nti_plan_scatter_add, \
      nti_eval_scatter_add, NULL, NULL, nti_jvp_joint, nti_vjp_scatter_add, NULL, NULL, nti_sample_gather) \
    X(TAKE_ALONG, "nt_take_along_axis", 2, NTI_INTEGER | NTI_CHEAP, 1, -1, -2, 2, nti_infer_take_along, NULL, nti_plan_take_along, nti_eval_take_along, \
      NULL, NULL, nti_jvp_linear, nti_vjp_take_along, nti_vmap_axis, NULL, nti_sample_along) \
    X(SCATTER_ALONG, "nt_take_along_axis derivative", 3, NTI_JOINT | NTI_IN_PLACE_FIRST | NTI_INTEGER, 5, -1, -2, 2, nti_infer_scatter_along, NULL, \
      nti_plan_scatter_along, nti_eval_scatter_along, NULL, NULL, nti_jvp_joint, nti_vjp_scatter_along, nti_vmap_axis, NULL, nti_sample_along) \
    X(DYNAMIC_SLICE, "nt_dynamic_slice", 2, NTI_STRIDED | NTI_INTEGER | NTI_CHEAP, 1, -1, -2, 2, nti_infer_dynamic_slice, NULL, \
      nti_plan_dynamic_slice, nti_eval_dynamic_slice, NULL, NULL, nti_jvp_linear, nti_vjp_dynamic_slice, nti_vmap_dynamic, NULL, nti_sample_dynamic) \
    X(DYNAMIC_UPDATE, "nt_dynamic_update_slice", 3, NTI_JOINT | NTI_IN_PLACE_FIRST | NTI_INTEGER | NTI_CHEAP, 3, -1, -2, 2, nti_infer_dynamic_update, \
      NULL, nti_plan_dynamic_update, nti_eval_dynamic_update, NULL, NULL, nti_jvp_joint, nti_vjp_dynamic_update, nti_vmap_dynamic, NULL, nti_sample_dynamic) \
    NTI_CUMULATE(X, CUMSUM, "nt_cumsum", NTI_INTEGER, 1, nti_plan_scan, nti_eval_scan, nti_jvp_linear, nti_vjp_cumsum) \
    NTI_CUMULATE(X, CUMPROD, "nt_cumprod", NTI_INTEGER, 0, nti_plan_scan, nti_eval_scan, nti_jvp_scan, nti_vjp_scan) \
    NTI_CUMULATE(X, CUMMAX, "nt_cummax", NTI_INTEGER, 0, nti_plan_scan, nti_eval_scan, nti_jvp_scan, nti_vjp_scan) \
    NTI_CUMULATE(X, CUMLOGSUMEXP, "nt_cumlogsumexp", 0, 0, nti_plan_wide_scan, nti_eval_wide_scan, nti_jvp_scan, nti_vjp_scan) \
    X(LINEAR_SCAN, "nt_linear_scan", 2, NTI_IN_PLACE, 2, -1, -1.2, 1.2, nti_infer_scan, NULL, nti_plan_wide_scan, nti_eval_wide_scan, NULL, NULL, \
      nti_jvp_linear_scan, nti_vjp_linear_scan, nti_vmap_axis, NULL, nti_sample_scan) \
    X(ARGSORT, "nt_argsort", 1, NTI_INTEGER | NTI_BOOLEAN | NTI_NO_GRADIENT, 0, -1, -2, 2, nti_infer_argsort, NULL, nti_plan_argsort, nti_eval_argsort, \
      nti_cost_argsort, NULL, NULL, NULL, nti_vmap_axis, NULL, nti_sample_argsort) \
    X(SOFTMAX, "nt_softmax", 1, NTI_IN_PLACE, 0, -1, -2, 2, nti_infer_softmax, NULL, nti_plan_softmax, nti_eval_softmax, nti_cost_exp, NULL, \
      nti_jvp_softmax, nti_vjp_softmax, NULL, nti_decompose_softmax, nti_sample_softmax) \
    X(SOFTMAX_GRAD, "nt_softmax derivative", 2, 0, 2, -1, -2, 2, nti_infer_softmax, NULL, nti_plan_softmax_grad, nti_eval_softmax_grad, nti_cost_exp, \
      NULL, nti_jvp_partly, nti_vjp_softmax_grad, NULL, nti_decompose_softmax_grad, nti_sample_softmax) \
    X(LOG_SOFTMAX, "nt_log_softmax", 1, NTI_IN_PLACE, 0, -1, -2, 2, nti_infer_softmax, NULL, nti_plan_softmax, nti_eval_softmax, nti_cost_exp, NULL, \
      nti_jvp_log_softmax, nti_vjp_log_softmax, NULL, nti_decompose_log_softmax, nti_sample_softmax) \
    X(LOG_SOFTMAX_GRAD, "nt_log_softmax derivative", 2, 0, 2, -1, -2, 2, nti_infer_softmax, NULL, nti_plan_log_softmax_grad, \
      nti_eval_log_softmax_grad, nti_cost_exp, NULL, nti_jvp_partly, nti_vjp_log_softmax_grad, NULL, nti_decompose_log_softmax_grad, nti_sample_softmax) \
    X(CROSS_ENTROPY, "nt_cross_entropy", 2, 0, 0, -1, -2, 2, nti_infer_cross_entropy, NULL, nti_plan_cross_entropy, nti_eval_cross_entropy, \
      nti_cost_exp, NULL, nti_jvp_cross_entropy, nti_vjp_cross_entropy, NULL, nti_decompose_cross_entropy, nti_sample_cross_entropy) \
    X(CROSS_ENTROPY_GRAD, "nt_cross_entropy derivative", 3, 0, 4, -1, -2, 2, nti_infer_cross_entropy, NULL, nti_plan_cross_entropy_grad, \
      nti_eval_cross_entropy_grad, nti_cost_exp, NULL, nti_jvp_partly, nti_vjp_cross_entropy_grad, NULL, nti_decompose_cross_entropy_grad, nti_sample_cross_entropy) \
    X(CROSS_ENTROPY_JVP, "nt_cross_entropy derivative", 3, 0, 4, -1, -2, 2, nti_infer_cross_entropy, NULL, nti_plan_cross_entropy_jvp, \
      nti_eval_cross_entropy_jvp, nti_cost_exp, NULL, nti_jvp_partly, nti_vjp_cross_entropy_jvp, NULL, nti_decompose_cross_entropy_jvp, nti_sample_cross_entropy) \
    X(NORM_STATS, "nt_layer_norm statistics", 1, NTI_NO_GRADIENT, 0, -1, -2, 2, nti_infer_norm_stats, NULL, nti_plan_norm_stats, nti_eval_norm_stats, \
      NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_norm) \
    X(NORM, "nt_layer_norm", 2, 0, 0, -1, -2, 2, nti_infer_norm, NULL, nti_plan_norm_apply, nti_eval_norm_apply, NULL, NULL, nti_jvp_norm, \
      nti_vjp_norm, NULL, nti_decompose_norm, nti_sample_norm) \
    X(NORM_GRAD, "nt_layer_norm derivative", 3, 0, 4, -1, -2, 2, nti_infer_norm, NULL, nti_plan_norm_grad, nti_eval_norm_grad, NULL, NULL, nti_jvp_partly, \
      nti_vjp_norm_grad, NULL, nti_decompose_norm_grad, nti_sample_norm) \
    X(ATTENTION, "nt_attention", -1, NTI_STRIDED, 0, -1, -2, 2, nti_infer_attention, NULL, nti_plan_attention, nti_eval_attention, nti_cost_attention, \
      NULL, nti_jvp_attention, nti_vjp_attention, nti_vmap_attention, nti_decompose_attention, nti_sample_attention) \
    X(ATTENTION_GRAD, "nt_attention derivative", -1, NTI_STRIDED, 8, -1, -2, 2, nti_infer_attention_grad, NULL, nti_plan_attention, nti_eval_attention, \
      nti_cost_attention, NULL, nti_jvp_partly, nti_vjp_attention_grad, nti_vmap_attention, nti_decompose_attention_grad, nti_sample_attention) \
    X(ATTENTION_JVP, "nt_attention derivative", -1, NTI_STRIDED, 0x38, -1, -2, 2, nti_infer_attention, NULL, nti_plan_attention, nti_eval_attention, \
      nti_cost_attention, NULL, nti_jvp_attention_jvp, nti_vjp_attention_jvp, nti_vmap_attention, nti_decompose_attention_jvp, nti_sample_attention) \
    NTI_LINEAR_ROWS(X) \
    X(KEY, "nt_key_tensor", 0, NTI_CHEAP, 0, -1, 0, 0, nti_infer_key, NULL, nti_plan_single, nti_eval_key, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_key) \
    X(FOLD_IN, "nt_fold_in", 2, NTI_NO_GRADIENT | NTI_CHEAP, 0, -1, 0, 0, nti_infer_fold_in, NULL, nti_plan_single, nti_eval_fold_in, NULL, NULL, NULL, \
      NULL, NULL, NULL, nti_sample_key) \
    X(SPLIT, "nt_split", 1, NTI_NO_GRADIENT, 0, -1, 0, 0, nti_infer_random, NULL, nti_plan_random, nti_eval_split, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_key) \
    X(RANDOM, "nt_random", 1, NTI_NO_GRADIENT, 0, -1, 0, 0, nti_infer_random, NULL, nti_plan_random, nti_eval_random, nti_cost_random, NULL, NULL, NULL, NULL, \
      NULL, nti_sample_random) \
    X(MAP_INDEX, "nt_map_index", 0, NTI_CHEAP, 0, -1, 0, 0, nti_infer_map_index, NULL, nti_plan_single, nti_eval_map_index, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(MAP_SLICE, "nt_map_slice", 2, NTI_STRIDED | NTI_CHEAP, 1, -1, -2, 2, nti_infer_map_slice, NULL, nti_plan_map_slice, nti_eval_map_slice, NULL, NULL, \
      nti_jvp_linear, nti_vjp_map_slice, nti_vmap_map_slice, NULL, nti_sample_none) \
    X(MAP_SUM, "nt_map_sum", 2, NTI_LEAVES | NTI_VIEW | NTI_STRIDED | NTI_INTEGER, 1, -1, -2, 2, nti_infer_map_sum, nti_view_same, NULL, NULL, NULL, NULL, nti_jvp_map_result, nti_vjp_map_sum, \
      nti_vmap_map_sum, NULL, nti_sample_loop) \
    X(MAP_STACK, "nt_map_stack", 2, NTI_LEAVES | NTI_VIEW | NTI_STRIDED | NTI_CHEAP, 1, -1, -2, 2, nti_infer_map_stack, nti_view_same, NULL, NULL, NULL, NULL, nti_jvp_map_result, \
      nti_vjp_map_stack, nti_vmap_map_stack, NULL, nti_sample_loop) \
    X(MAP_OUTER, "value outside of the map", 0, NTI_LEAF_ROW | NTI_ALONE, 0, -1, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(MAP_START, "nt_map result", 0, NTI_ALONE | NTI_CHEAP, 0, -1, 0, 0, NULL, NULL, nti_plan_map_start, nti_eval_map_start, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(MAP_LOOP, "nt_map body", -1, NTI_ALONE | NTI_STRIDED, 0, -1, 0, 0, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(MAP_ADD, "nt_map_sum", 2, NTI_EFFECT, 0, -1, 0, 0, NULL, NULL, nti_plan_flat, nti_eval_map_add, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(MAP_WRITE, "nt_map_stack", 3, NTI_EFFECT | NTI_STRIDED | NTI_CHEAP, 0, -1, 0, 0, NULL, NULL, nti_plan_map_write, nti_eval_map_write, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_none) \
    X(ASSIGN, "nt_assign", 2, NTI_EFFECT | NTI_STRIDED | NTI_INTEGER | NTI_BOOLEAN | NTI_NO_GRADIENT | NTI_CHEAP, 0, -1, 0, 0, nti_infer_assign, NULL, \
      nti_plan_assign, nti_eval_assign, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_effect) \
    X(ACCUMULATE, "accumulate", 2, NTI_EFFECT | NTI_NO_GRADIENT, 0, -1, 0, 0, nti_infer_assign, NULL, nti_plan_accumulate, \
      nti_eval_accumulate, NULL, NULL, NULL, NULL, NULL, NULL, nti_sample_effect) \
    X(UPDATE, "update", -1, NTI_EFFECT | NTI_NO_GRADIENT, 0, -1, 0, 0, nti_infer_assign, NULL, nti_plan_update, nti_eval_update, nti_cost_update, NULL, \
      NULL, NULL, NULL, NULL, nti_sample_effect)

// clang-format on
#define NTI_ROW_ENUM(ID, ...) NTI_OP_##ID,
enum { NTI_ROWS(NTI_ROW_ENUM) NTI_OP_COUNT };
NT_API nt_tensor *nt_name(nt_tensor *x, const char *name) {
    if (!nti_alive(x) || !name) return x;
    size_t n = strlen(name) + 1;
    int high = nti_n(x)->op <= NTI_OP_VARIABLE; // a name lives as long as its value
    char *copy = (char *)(high ? nti_high(x->tape, NTI_PLAIN, NTI_FOR_OBJECT, n) : nti_low(x->tape, n));
    if (!copy) {
        nti_no_room(x->tape, "nt_name");
        return NULL;
    }
    memcpy(copy, name, n);
    x->name = copy, nti_n(x)->name_serial = ++x->tape->serial;
    return x;
}

// Leaves and generators --------------------------------------------------------------------------------------------

static int nti_infer_leaf(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    (void)n, (void)shape, (void)dtype; // made by nti_leaf
    return 1;
}

// Attributes of every generator: [0] for the operation, [1] dtype, then the sizes.
static int nti_infer_generator(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_make(n->ni - 2, n->i + 2);
    *dtype = (nt_dtype)n->i[1];
    return 1;
}

static int nti_shape_argument(nt_tape *t, const char *name, nt_dtype dtype, const nt_shape *shape) {
    if (!t || t->sticky) return 0;
    if ((unsigned)dtype >= NT_DTYPE_COUNT) nti_sticky(t, NT_ERROR_DTYPE, "%s: %d is no dtype", name, (int)dtype);
    else if (!nti_shape_valid(shape, dtype))
        nti_sticky(t, NT_ERROR_SHAPE, "%s: %s%S is not a shape: rank 0 to 8, no negative size, a size in bytes that can be addressed", name,
                   nt_dtype_name(dtype), shape);
    else return 1;
    return 0;
}

static nt_tensor *nti_leaf(nt_tape *t, int op, const char *name, nt_dtype dtype, nt_shape shape, size_t storage) {
    if (!nti_shape_argument(t, name, dtype, &shape)) return NULL;
    size_t head = nti_round_up(sizeof(nti_node), 8), bytes = head + (size_t)shape.rank * sizeof(int64_t);
    nti_node *n = (nti_node *)nti_high(t, NTI_LEAF, NTI_FOR_OBJECT, bytes);
    if (n && storage) {
        n->storage = nti_high(t, NTI_PLAIN, op == NTI_OP_INPUT ? NTI_FOR_INPUT : NTI_FOR_VARIABLE, storage);
        if (n->storage) n->storage_serial = t->serial;
    }
    if (!n || (storage && !n->storage)) {
        if (!n && storage) t->wanted = t->low.used + nti_high_after(t->wanted - t->low.used, storage); // name what both take
        nti_no_room(t, name);
        return NULL;
    }
    int64_t *sizes = (int64_t *)(void *)((char *)n + head);
    for (int k = 0; k < shape.rank; k++) sizes[k] = shape.size[k];
    n->pub.tape = t, n->pub.shape = sizes, n->pub.rank = shape.rank, n->pub.dtype = dtype;
    n->op = (uint16_t)op, n->serial = nti_object_of(n)->serial;
    return &n->pub;
}

NT_API nt_tensor *nt_input(nt_tape *t, nt_dtype dtype, nt_shape shape) { return nti_leaf(t, NTI_OP_INPUT, "nt_input", dtype, shape, 0); }

NT_API nt_tensor *nt_variable(nt_tape *t, nt_dtype dtype, nt_shape shape, const void *data) {
    if (!nti_shape_argument(t, "nt_variable", dtype, &shape)) return NULL;
    size_t bytes = (size_t)nti_count(shape.rank, shape.size) * nt_dtype_size(dtype);
    nt_tensor *x = nti_leaf(t, NTI_OP_VARIABLE, "nt_variable", dtype, shape, bytes ? bytes : 1);
    if (x && data && bytes) memcpy(nti_n(x)->storage, data, bytes);
    return x;
}

static nt_tensor *nti_generate(nt_tape *t, int op, const char *name, nt_dtype dtype, const nt_shape *shape, int64_t first, const double *d,
                               int nd) {
    int64_t i[2 + NT_MAX_RANK];
    if (!nti_shape_argument(t, name, dtype, shape)) return NULL;
    i[0] = first, i[1] = dtype;
    for (int k = 0; k < shape->rank; k++) i[2 + k] = shape->size[k];
    return nti_record(t, op, NULL, 0, i, 2 + shape->rank, d, nd);
}

NT_API nt_tensor *nt_constant(nt_tape *t, nt_dtype dtype, nt_shape shape, const void *data) {
    if (!nti_shape_argument(t, "nt_constant", dtype, &shape)) return NULL;
    size_t bytes = (size_t)nti_count(shape.rank, shape.size) * nt_dtype_size(dtype);
    if (bytes && !data) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "nt_constant %s%S: data is NULL; zeros are nt_full(t, dtype, shape, 0)", nt_dtype_name(dtype),
                   &shape);
        return NULL;
    }
    void *copy = nti_low(t, bytes ? bytes : 1);
    if (!copy) return nti_record_memory(t, NTI_OP_CONSTANT);
    if (bytes) memcpy(copy, data, bytes);
    nt_tensor *x = nti_generate(t, NTI_OP_CONSTANT, "nt_constant", dtype, &shape, 0, NULL, 0);
    if (x) nti_n(x)->storage = copy;
    return x;
}

NT_API nt_tensor *nt_full(nt_tape *t, nt_dtype dtype, nt_shape shape, double value) {
    return nti_generate(t, NTI_OP_FULL, "nt_full", dtype, &shape, 0, &value, 1);
}
NT_API nt_tensor *nt_scalar(nt_tape *t, nt_dtype dtype, double value) { return nt_full(t, dtype, nt_shape_make(0, NULL), value); }
NT_API nt_tensor *nt_full_like(nt_tensor *x, double value) {
    return nti_alive(x) ? nt_full(x->tape, x->dtype, nt_shape_of(x), value) : NULL;
}

static int nti_axis_of(nt_tape *t, const char *name, int rank, int axis) { // -1 after recording an error
    int k = axis < 0 ? axis + rank : axis;
    if (k >= 0 && k < rank) return k;
    nti_sticky(t, NT_ERROR_ARGUMENT, "%s: axis %d is out of range for rank %d", name, axis, rank);
    return -1;
}

NT_API nt_tensor *nt_iota(nt_tape *t, nt_dtype dtype, nt_shape shape, int axis) {
    if (!nti_shape_argument(t, "nt_iota", dtype, &shape)) return NULL;
    if (!nti_dtypes[dtype].compute || dtype == NT_BOOL) {
        nti_sticky(t, NT_ERROR_DTYPE, "nt_iota: %s cannot count; use f32, f64, i32 or u32", nt_dtype_name(dtype));
        return NULL;
    }
    int k = nti_axis_of(t, "nt_iota", shape.rank, axis);
    return k < 0 ? NULL : nti_generate(t, NTI_OP_IOTA, "nt_iota", dtype, &shape, k, NULL, 0);
}

// Elementwise -------------------------------------------------------------------------------------------------------

static int nti_dtype_allowed(nti_node *n, nt_dtype dtype) {
    uint32_t flags = nti_row_of(n->op)->flags;
    if (nti_is_float(dtype) || ((flags & NTI_INTEGER) && (dtype == NT_I32 || dtype == NT_U32))) return 1;
    if (dtype == NT_BOOL && (flags & (NTI_BOOLEAN | NTI_VIEW)) ) return 1;
    if (!nti_dtypes[dtype].compute) return nti_wrong(n, NT_ERROR_DTYPE, "%s is a storage dtype; nt_cast it first", nt_dtype_name(dtype));
    return nti_wrong(n, NT_ERROR_DTYPE, "not defined for %s; nt_cast it to f32 or f64", nt_dtype_name(dtype));
}

static int nti_one_dtype(nti_node *n, int first) {
    for (int k = first + 1; k < n->inputs; k++)
        if (n->in[k]->pub.dtype != n->in[first]->pub.dtype)
            return nti_wrong(n, NT_ERROR_DTYPE, "operands of two dtypes, %s and %s; there is no implicit promotion, nt_cast one of them",
                             nt_dtype_name(n->in[first]->pub.dtype), nt_dtype_name(n->in[k]->pub.dtype));
    return 1;
}

static int nti_one_shape(nti_node *n, int first) {
    for (int k = first + 1; k < n->inputs; k++)
        if (!nti_same_shape(&n->in[k]->pub, &n->in[first]->pub))
            return nti_wrong(n, NT_ERROR_SHAPE, "operands %d and %d differ in shape", first, k);
    return 1;
}

static int nti_infer_same(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    return 1;
}

static int nti_infer_map(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    return nti_infer_same(n, shape, dtype) && nti_dtype_allowed(n, *dtype) && nti_one_dtype(n, 0) && nti_one_shape(n, 0);
}

static int nti_infer_compare(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_map(n, shape, dtype)) return 0;
    *dtype = NT_BOOL;
    return 1;
}

static int nti_infer_logical(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    nti_infer_same(n, shape, dtype);
    for (int k = 0; k < n->inputs; k++)
        if (n->in[k]->pub.dtype != NT_BOOL) return nti_wrong(n, NT_ERROR_DTYPE, "takes bool; comparisons give bool");
    return nti_one_shape(n, 0);
}

static int nti_infer_select(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (n->in[0]->pub.dtype != NT_BOOL)
        return nti_wrong(n, NT_ERROR_DTYPE, "the condition is %s, not bool; comparisons give bool", nt_dtype_name(n->in[0]->pub.dtype));
    *shape = nt_shape_of(&n->in[1]->pub), *dtype = n->in[1]->pub.dtype;
    return nti_one_dtype(n, 1) && nti_dtype_allowed(n, *dtype) && nti_one_shape(n, 0);
}

static int nti_infer_cast(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = (nt_dtype)n->i[0];
    return (unsigned)n->i[0] < NT_DTYPE_COUNT || nti_wrong(n, NT_ERROR_DTYPE, "%d is no dtype", (int)n->i[0]);
}

static nt_tensor *nti_record_numbers(int op, nt_tensor *x, const double *d, int nd) {
    return x ? nti_record(x->tape, op, &x, 1, NULL, 0, d, nd) : NULL;
}

// A recording error of a call that has no node yet.
static nt_tensor *nti_wrong_call(nt_tape *t, int op, nt_tensor *const *in, int inputs, nt_status status, const char *format,
                                 const nt_shape *a, int b) {
    nti_node head;
    memset(&head, 0, sizeof head);
    head.pub.tape = t, head.op = (uint16_t)op, head.inputs = (uint16_t)inputs, head.in = (nti_node **)(uintptr_t)in;
    nti_wrong(&head, status, format, a, b);
    return NULL;
}

// The shape that all operands broadcast to, as NumPy's; 0 if there is none.
static int nti_broadcast_shape(nt_tensor *const *in, int inputs, nt_shape *out) {
    memset(out, 0, sizeof *out);
    for (int k = 0; k < inputs; k++)
        if (in[k]->rank > out->rank) out->rank = in[k]->rank;
    for (int a = 0; a < out->rank; a++) {
        out->size[a] = 1;
        for (int k = 0; k < inputs; k++) {
            int own = a - (out->rank - in[k]->rank);
            int64_t size = own < 0 ? 1 : in[k]->shape[own];
            if (size == 1 || size == out->size[a]) continue;
            if (out->size[a] != 1) return 0;
            out->size[a] = size;
        }
    }
    return 1;
}

// Elementwise with broadcasting: operands of smaller shapes become views first, so that rows and rules see equal shapes.
static nt_tensor *nti_elementwise(int op, nt_tensor *const *operands, int inputs) {
    nt_tensor *in[3];
    nt_shape shape;
    for (int k = 0; k < inputs; k++)
        if (!operands[k]) return NULL;
    for (int k = 0; k < inputs; k++)
        if (!nti_alive(operands[k])) return NULL;
    nt_tape *t = operands[0]->tape;
    if (!nti_broadcast_shape(operands, inputs, &shape))
        return nti_wrong_call(t, op, operands, inputs, NT_ERROR_SHAPE,
                              "the shapes do not broadcast: sizes of an axis, counted from the last, must be equal or 1", NULL, 0);
    for (int k = 0; k < inputs; k++) {
        if (operands[k]->tape != t) return nti_record(t, op, operands, inputs, NULL, 0, NULL, 0); // names the other tape
        in[k] = nt_broadcast(operands[k], shape);
    }
    return nti_record(t, op, in, inputs, NULL, 0, NULL, 0);
}

static nt_tensor *nti_binary(int op, nt_tensor *x, nt_tensor *y) {
    nt_tensor *in[2];
    in[0] = x, in[1] = y;
    return nti_elementwise(op, in, 2);
}

#define NTI_UNARY_API(ID, name) \
    NT_API nt_tensor *nt_##name(nt_tensor *x) { return nti_record1(NTI_OP_##ID, x); }
#define NTI_BINARY_API(ID, name) \
    NT_API nt_tensor *nt_##name(nt_tensor *x, nt_tensor *y) { return nti_binary(NTI_OP_##ID, x, y); }
// clang-format off
NTI_UNARY_API(NEG, neg) NTI_UNARY_API(ABS, abs) NTI_UNARY_API(SIGN, sign) NTI_UNARY_API(SQUARE, square) NTI_UNARY_API(RECIPROCAL, reciprocal)
NTI_UNARY_API(SQRT, sqrt) NTI_UNARY_API(RSQRT, rsqrt) NTI_UNARY_API(CBRT, cbrt) NTI_UNARY_API(EXP, exp) NTI_UNARY_API(EXP2, exp2)
NTI_UNARY_API(EXPM1, expm1) NTI_UNARY_API(LOG, log) NTI_UNARY_API(LOG2, log2) NTI_UNARY_API(LOG1P, log1p) NTI_UNARY_API(SIN, sin)
NTI_UNARY_API(COS, cos) NTI_UNARY_API(TAN, tan) NTI_UNARY_API(ASIN, asin) NTI_UNARY_API(ACOS, acos) NTI_UNARY_API(ATAN, atan)
NTI_UNARY_API(SINH, sinh) NTI_UNARY_API(COSH, cosh) NTI_UNARY_API(TANH, tanh) NTI_UNARY_API(ASINH, asinh) NTI_UNARY_API(ACOSH, acosh)
NTI_UNARY_API(ATANH, atanh) NTI_UNARY_API(ERF, erf) NTI_UNARY_API(ERFC, erfc) NTI_UNARY_API(ERF_INV, erf_inv) NTI_UNARY_API(LGAMMA, lgamma)
NTI_UNARY_API(SIGMOID, sigmoid) NTI_UNARY_API(LOG_SIGMOID, log_sigmoid) NTI_UNARY_API(SOFTPLUS, softplus) NTI_UNARY_API(RELU, relu)
NTI_UNARY_API(GELU, gelu) NTI_UNARY_API(GELU_TANH, gelu_tanh) NTI_UNARY_API(SILU, silu) NTI_UNARY_API(FLOOR, floor) NTI_UNARY_API(CEIL, ceil)
NTI_UNARY_API(TRUNC, trunc) NTI_UNARY_API(ROUND, round) NTI_UNARY_API(IS_FINITE, is_finite) NTI_UNARY_API(IS_NAN, is_nan)
NTI_UNARY_API(LOGICAL_NOT, logical_not) NTI_UNARY_API(STOP_GRADIENT, stop_gradient)
NTI_BINARY_API(ADD, add) NTI_BINARY_API(SUB, sub) NTI_BINARY_API(MUL, mul) NTI_BINARY_API(DIV, div) NTI_BINARY_API(POW, pow)
NTI_BINARY_API(MAXIMUM, maximum) NTI_BINARY_API(MINIMUM, minimum) NTI_BINARY_API(ATAN2, atan2) NTI_BINARY_API(HYPOT, hypot)
NTI_BINARY_API(LOGADDEXP, logaddexp) NTI_BINARY_API(COPYSIGN, copysign) NTI_BINARY_API(REM, rem) NTI_BINARY_API(MOD, mod)
NTI_BINARY_API(EQUAL, equal) NTI_BINARY_API(NOT_EQUAL, not_equal) NTI_BINARY_API(LESS, less) NTI_BINARY_API(LESS_EQUAL, less_equal)
NTI_BINARY_API(GREATER, greater) NTI_BINARY_API(GREATER_EQUAL, greater_equal) NTI_BINARY_API(LOGICAL_AND, logical_and)
NTI_BINARY_API(LOGICAL_OR, logical_or) NTI_BINARY_API(LOGICAL_XOR, logical_xor)
// clang-format on

NT_API nt_tensor *nt_scale(nt_tensor *x, double factor) { return nti_record_numbers(NTI_OP_SCALE, x, &factor, 1); }
NT_API nt_tensor *nt_add_scalar(nt_tensor *x, double number) { return nti_record_numbers(NTI_OP_ADD_SCALAR, x, &number, 1); }
NT_API nt_tensor *nt_pow_scalar(nt_tensor *x, double exponent) { return nti_record_numbers(NTI_OP_POW_SCALAR, x, &exponent, 1); }
NT_API nt_tensor *nt_leaky_relu(nt_tensor *x, double slope) { return nti_record_numbers(NTI_OP_LEAKY_RELU, x, &slope, 1); }
NT_API nt_tensor *nt_elu(nt_tensor *x, double alpha) { return nti_record_numbers(NTI_OP_ELU, x, &alpha, 1); }
NT_API nt_tensor *nt_digamma(nt_tensor *x) { return nt_polygamma(x, 0); }

NT_API nt_tensor *nt_polygamma(nt_tensor *x, int order) {
    double d = order;
    if (!nti_alive(x)) return NULL;
    if (order >= 0 && order <= 64) return nti_record_numbers(NTI_OP_POLYGAMMA, x, &d, 1);
    nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_polygamma: the order is %d, not between 0 and 64", order);
    return NULL;
}

NT_API nt_tensor *nt_clamp(nt_tensor *x, double low, double high) {
    double d[2];
    d[0] = low, d[1] = high;
    return nti_record_numbers(NTI_OP_CLAMP, x, d, 2);
}

// Compositions.
NT_API nt_tensor *nt_relu6(nt_tensor *x) { return nt_clamp(x, 0, 6); }
NT_API nt_tensor *nt_hard_tanh(nt_tensor *x) { // derivative 1 at the ends, as JAX's
    nt_tensor *one = nti_alive(x) ? nt_full_like(x, 1) : NULL, *least = nt_neg(one);
    return nt_select(nt_greater(x, one), one, nt_select(nt_less(x, least), least, x));
}
NT_API nt_tensor *nt_hard_sigmoid(nt_tensor *x) { return nt_scale(nt_relu6(nt_add_scalar(x, 3)), 1.0 / 6); }
NT_API nt_tensor *nt_hard_silu(nt_tensor *x) { return nt_mul(x, nt_hard_sigmoid(x)); }
NT_API nt_tensor *nt_selu(nt_tensor *x) {
    return nt_scale(nt_elu(x, 1.6732632423543772848170429916717), 1.0507009873554804934193349852946);
}
NT_API nt_tensor *nt_mish(nt_tensor *x) { return nt_mul(x, nt_tanh(nt_softplus(x))); }
NT_API nt_tensor *nt_soft_sign(nt_tensor *x) { return nt_div(x, nt_add_scalar(nt_abs(x), 1)); }

NT_API nt_tensor *nt_cast(nt_tensor *x, nt_dtype dtype) {
    int64_t i = dtype;
    if (!nti_alive(x) || x->dtype == dtype) return nti_alive(x) ? x : NULL;
    return nti_record(x->tape, NTI_OP_CAST, &x, 1, &i, 1, NULL, 0);
}

NT_API nt_tensor *nt_select(nt_tensor *condition, nt_tensor *x, nt_tensor *y) {
    nt_tensor *in[3];
    in[0] = condition, in[1] = x, in[2] = y;
    return nti_elementwise(NTI_OP_SELECT, in, 3);
}

// Matrix products -----------------------------------------------------------------------------------------------------

static int nti_infer_matmul(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *y = &n->in[1]->pub;
    *dtype = x->dtype, *shape = nt_shape_of(x);
    if (!nti_one_dtype(n, 0) || !nti_dtype_allowed(n, *dtype)) return 0;
    if (x->rank < 2 || y->rank != x->rank || x->shape[x->rank - 1] != y->shape[y->rank - 2])
        return nti_wrong(n, NT_ERROR_SHAPE, "the inner sizes differ: (m, k) takes (k, n)");
    for (int k = 0; k < x->rank - 2; k++)
        if (x->shape[k] != y->shape[k]) return nti_wrong(n, NT_ERROR_SHAPE, "the leading axes do not broadcast");
    shape->size[x->rank - 1] = y->shape[y->rank - 1];
    return 1;
}

static nt_tensor *nti_record_matmul(nt_tensor *x, nt_tensor *y) { // attribute: accumulate
    nt_tensor *in[2];
    int64_t accumulate = 0;
    in[0] = x, in[1] = y;
    return x && y ? nti_record(x->tape, NTI_OP_MATMUL, in, 2, &accumulate, 1, NULL, 0) : NULL;
}

NT_API nt_tensor *nt_matmul(nt_tensor *x, nt_tensor *y) {
    nt_tensor *in[2];
    nt_shape batch[2], lead;
    in[0] = x, in[1] = y;
    if (!x || !y || !nti_alive(x) || !nti_alive(y)) return NULL;
    if (!x->rank || !y->rank || x->shape[x->rank - 1] != y->shape[y->rank > 1 ? y->rank - 2 : 0])
        return nti_wrong_call(x->tape, NTI_OP_MATMUL, in, 2, NT_ERROR_SHAPE, "the inner sizes differ: (m, k) takes (k, n)", NULL, 0);
    if (x->tape != y->tape) return nti_record_matmul(x, y);
    if (y->rank == 2 && x->rank > 2) { // one product of all rows: a broadcast weight would make its gradient a batch of gradients
        nt_shape flat = nt_shape_make(2, y->shape), wide = nt_shape_of(x);
        flat.size[0] = -1, flat.size[1] = x->shape[x->rank - 1], wide.size[wide.rank - 1] = y->shape[1];
        if (!flat.size[1]) flat.size[0] = nti_count(x->rank - 1, x->shape);
        return nt_reshape(nti_record_matmul(nt_reshape(x, flat), y), wide);
    }
    int row = x->rank == 1, column = y->rank == 1;
    if (row) x = nt_expand_dims(x, 0);
    if (column) y = nt_expand_dims(y, 1);
    if (!x || !y) return NULL;
    // leading axes broadcast; the last two of each operand stay
    nt_tensor *lead_of[2];
    batch[0] = nt_shape_of(x), batch[1] = nt_shape_of(y);
    memset(&lead, 0, sizeof lead);
    int rank = x->rank > y->rank ? x->rank : y->rank;
    lead.rank = rank;
    for (int a = 0; a < rank - 2; a++) {
        int p = a - (rank - x->rank), q = a - (rank - y->rank);
        int64_t u = p < 0 ? 1 : x->shape[p], v = q < 0 ? 1 : y->shape[q];
        if (u != v && u != 1 && v != 1)
            return nti_wrong_call(x->tape, NTI_OP_MATMUL, in, 2, NT_ERROR_SHAPE, "the leading axes do not broadcast", NULL, 0);
        lead.size[a] = u == 1 ? v : u;
    }
    for (int k = 0; k < 2; k++) {
        lead.size[rank - 2] = batch[k].size[batch[k].rank - 2], lead.size[rank - 1] = batch[k].size[batch[k].rank - 1];
        lead_of[k] = nt_broadcast(k ? y : x, lead);
    }
    nt_tensor *z = nti_record_matmul(lead_of[0], lead_of[1]);
    if (row && z) z = nt_squeeze(z, z->rank - 2);
    if (column && z) z = nt_squeeze(z, z->rank - 1);
    return z;
}

// A vector for the last axis of y, such as a bias; 0 after an error.
static int nti_fits_last_axis(const char *name, const char *what, const nt_tensor *y, const nt_tensor *v) {
    if (!v || !y || !nti_alive(v) || v->tape != y->tape) return v != NULL; // the operation that follows says the rest
    if (v->dtype == y->dtype &&
        (v->rank == 0 || (y->rank && (v->shape[v->rank - 1] == y->shape[y->rank - 1] || v->shape[v->rank - 1] == 1))))
        return 1;
    nti_sticky(y->tape, v->dtype == y->dtype ? NT_ERROR_SHAPE : NT_ERROR_DTYPE, "%s: the %s %v does not fit the last axis of %v", name,
               what, v, y);
    return 0;
}

NT_API nt_tensor *nt_dense(nt_tensor *x, nt_tensor *weight, nt_tensor *bias) {
    nt_tensor *y = nt_matmul(x, weight);
    if (!bias) return y;
    return y && nti_fits_last_axis("nt_dense", "bias", y, bias) ? nt_add(y, bias) : NULL;
}

static double nti_cost_matmul(const nti_node *n) {
    const nt_tensor *x = &n->in[0]->pub;
    return 2.0 * (double)nt_size(&n->pub) * (double)(x->rank ? x->shape[x->rank - 1] : 1);
}

// Convolutions ----------------------------------------------------------------------------------------------------------
// Attributes: [0] accumulate, [1] spatial axes d, [2] groups, then for each axis stride, dilation, lhs dilation, before,
// after; the two transposes have the d + 2 sizes of their result behind that.

#define NTI_CONV_HEAD 3
#define NTI_CONV_AXIS 5
#define NTI_CONV_MAX (NTI_CONV_HEAD + 3 * NTI_CONV_AXIS + NT_MAX_RANK)

static int64_t nti_window_size(int64_t n, int64_t window, int64_t stride, int64_t dilation, int64_t lhs, int64_t low,
                               int64_t high) { // windows that fit
    int64_t space = (n > 0 ? (n - 1) * lhs + 1 : 0) + low + high, reach = (window - 1) * dilation + 1;
    return window < 1 || space < reach ? 0 : (space - reach) / stride + 1;
}

static void nti_same_padding(int64_t n, int64_t window, int64_t stride, int64_t dilation, int64_t *low, int64_t *high) {
    int64_t out = (n + stride - 1) / stride, total = (out - 1) * stride + (window - 1) * dilation + 1 - n;
    if (total < 0 || n == 0) total = 0;
    *low = total / 2, *high = total - total / 2;
}

// The attributes of a convolution of x by a kernel of these spatial sizes; 0 after recording an error.
static int nti_conv_attributes(nt_tape *t, const char *name, int d, const int64_t *x, const int64_t *window, const nt_conv_desc *desc,
                               int64_t *i) {
    nt_conv_desc c;
    memset(&c, 0, sizeof c);
    if (desc) c = *desc;
    i[0] = 0, i[1] = d, i[2] = c.groups ? c.groups : 1;
    int bad = c.groups < 0 || (unsigned)c.padding > NT_EXPLICIT;
    for (int k = 0; k < d; k++) bad |= window[k] > INT_MAX || x[k] > INT64_MAX / 8; // their products with dilations stay numbers
    for (int k = 0; k < d; k++) {
        int64_t *a = i + NTI_CONV_HEAD + k * NTI_CONV_AXIS;
        a[0] = c.stride[k] ? c.stride[k] : 1, a[1] = c.dilation[k] ? c.dilation[k] : 1, a[2] = 1, a[3] = a[4] = 0;
        bad |= a[0] < 0 || a[1] < 0;
        if (bad) break;
        if (c.padding == NT_EXPLICIT) a[3] = c.pad[k][0], a[4] = c.pad[k][1];
        else if (c.padding != NT_VALID) nti_same_padding(x[k], window[k], a[0], a[1], &a[3], &a[4]);
        if (window[k] == 1) a[1] = 1; // a dilation that nobody sees, a stride behind the only window: kernels loop over both
        int64_t spare = x[k] + a[3] + a[4] - (window[k] - 1) * a[1];
        if (a[0] >= spare) a[0] = spare > 1 ? spare : 1;
    }
    if (bad) nti_sticky(t, NT_ERROR_ARGUMENT, "%s: strides, dilations and groups are positive, padding is one of nt_padding", name);
    return !bad;
}

static int nti_infer_conv(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *w = &n->in[1]->pub;
    int d = (int)n->i[1];
    *dtype = x->dtype, *shape = nt_shape_of(x);
    if (!nti_one_dtype(n, 0) || !nti_dtype_allowed(n, *dtype)) return 0;
    if (x->rank != d + 2 || w->rank != d + 2)
        return nti_wrong(n, NT_ERROR_SHAPE, "takes x (N, spatial axes, C) and a kernel (spatial axes, C / groups, O) of equal rank 3 to 5");
    if (x->shape[d + 1] != w->shape[d] * n->i[2])
        return nti_wrong(n, NT_ERROR_SHAPE, "x has %lld channels, the kernel takes %lld times %lld groups", (long long)x->shape[d + 1],
                         (long long)w->shape[d], (long long)n->i[2]);
    if (w->shape[d + 1] % n->i[2])
        return nti_wrong(n, NT_ERROR_SHAPE, "%lld output channels do not divide into %lld groups", (long long)w->shape[d + 1],
                         (long long)n->i[2]);
    for (int k = 0; k < d; k++) {
        const int64_t *a = n->i + NTI_CONV_HEAD + k * NTI_CONV_AXIS;
        shape->size[1 + k] = nti_window_size(x->shape[1 + k], w->shape[k], a[0], a[1], a[2], a[3], a[4]);
    }
    shape->size[d + 1] = w->shape[d + 1];
    return 1;
}

// The sizes behind the attributes must give back the shape of g under a forward convolution.
static int nti_infer_conv_back(nti_node *n, nt_shape *shape, nt_dtype *dtype, int filter) {
    const nt_tensor *g = &n->in[filter ? 1 : 0]->pub, *other = &n->in[filter ? 0 : 1]->pub;
    int d = (int)n->i[1];
    *dtype = g->dtype;
    if (!nti_one_dtype(n, 0) || !nti_dtype_allowed(n, *dtype)) return 0;
    *shape = nt_shape_make(d + 2, n->i + NTI_CONV_HEAD + d * NTI_CONV_AXIS);
    int bad = g->rank != d + 2 || other->rank != d + 2;
    const int64_t *x = filter ? other->shape : shape->size, *w = filter ? shape->size : other->shape;
    if (!bad) bad = x[0] != g->shape[0] || w[d + 1] != g->shape[d + 1] || x[d + 1] != w[d] * n->i[2] || w[d + 1] % n->i[2];
    for (int k = 0; k < d && !bad; k++) {
        const int64_t *a = n->i + NTI_CONV_HEAD + k * NTI_CONV_AXIS;
        bad = g->shape[1 + k] != nti_window_size(x[1 + k], w[k], a[0], a[1], a[2], a[3], a[4]);
    }
    return !bad || nti_wrong(n, NT_ERROR_SHAPE, "a convolution that gives this shape of g has no result of shape %S", shape);
}

static int nti_infer_conv_input(nti_node *n, nt_shape *shape, nt_dtype *dtype) { return nti_infer_conv_back(n, shape, dtype, 0); }
static int nti_infer_conv_filter(nti_node *n, nt_shape *shape, nt_dtype *dtype) { return nti_infer_conv_back(n, shape, dtype, 1); }

static double nti_cost_conv(const nti_node *n) { // outputs times taps times input channels of a group
    int d = (int)n->i[1];
    const int64_t *w = n->op == NTI_OP_CONV_FILTER ? n->pub.shape : n->in[1]->pub.shape;
    const nt_tensor *y = n->op == NTI_OP_CONV ? &n->pub : n->op == NTI_OP_CONV_INPUT ? &n->in[0]->pub : &n->in[1]->pub;
    double taps = 2;
    for (int k = 0; k <= d; k++) taps *= (double)w[k];
    return taps * (double)nt_size(y);
}

static nt_tensor *nti_conv_rank(nt_tensor *x, nt_tensor *w, int op) { // NULL after an error: rank of both 3 to 5
    nt_tensor *in[2];
    in[0] = x, in[1] = w;
    if (!x || !w || !nti_alive(x) || !nti_alive(w)) return NULL;
    if (x->rank >= 3 && x->rank <= 5 && w->rank == x->rank) return x;
    return nti_wrong_call(x->tape, op, in, 2, NT_ERROR_SHAPE,
                          "takes x (N, spatial axes, C) and a kernel (spatial axes, C / groups, O) of equal rank 3 to 5", NULL, 0);
}

NT_API nt_tensor *nt_conv(nt_tensor *x, nt_tensor *kernel, const nt_conv_desc *desc) {
    int64_t i[NTI_CONV_MAX];
    nt_tensor *in[2];
    if (!nti_conv_rank(x, kernel, NTI_OP_CONV)) return NULL;
    int d = x->rank - 2;
    in[0] = x, in[1] = kernel;
    if (!nti_conv_attributes(x->tape, "nt_conv", d, x->shape + 1, kernel->shape, desc, i)) return NULL;
    return nti_record(x->tape, NTI_OP_CONV, in, 2, i, NTI_CONV_HEAD + d * NTI_CONV_AXIS, NULL, 0);
}

static nt_tensor *nti_record_conv_back(int op, nt_tensor *x, nt_tensor *y, const int64_t *attributes, const int64_t *shape) {
    int64_t i[NTI_CONV_MAX];
    nt_tensor *in[2];
    if (!x || !y) return NULL;
    int d = (int)attributes[1], head = NTI_CONV_HEAD + d * NTI_CONV_AXIS;
    in[0] = x, in[1] = y;
    for (int k = 0; k < head; k++) i[k] = attributes[k];
    for (int k = 0; k < d + 2; k++) i[head + k] = shape[k];
    i[0] = 0;
    return nti_record(x->tape, op, in, 2, i, head + d + 2, NULL, 0);
}

static nt_tensor *nti_conv_back(int op, const char *name, nt_tensor *a, nt_tensor *b, nt_shape shape, const nt_conv_desc *desc) {
    int64_t i[NTI_CONV_MAX];
    if (!nti_conv_rank(a, b, op) || !nti_shape_argument(a->tape, name, NT_F64, &shape)) return NULL;
    if (shape.rank != a->rank) {
        nti_sticky(a->tape, NT_ERROR_SHAPE, "%s: the shape asked for, %S, has another rank than the operands", name, &shape);
        return NULL;
    }
    int filter = op == NTI_OP_CONV_FILTER;
    if (!nti_conv_attributes(a->tape, name, a->rank - 2, filter ? a->shape + 1 : shape.size + 1, filter ? shape.size : b->shape, desc, i))
        return NULL;
    return nti_record_conv_back(op, a, b, i, shape.size);
}

NT_API nt_tensor *nt_conv_transpose_input(nt_tensor *g, nt_tensor *kernel, nt_shape shape, const nt_conv_desc *desc) {
    return nti_conv_back(NTI_OP_CONV_INPUT, "nt_conv_transpose_input", g, kernel, shape, desc);
}

NT_API nt_tensor *nt_conv_transpose_kernel(nt_tensor *x, nt_tensor *g, nt_shape shape, const nt_conv_desc *desc) {
    return nti_conv_back(NTI_OP_CONV_FILTER, "nt_conv_transpose_kernel", x, g, shape, desc);
}

// Pooling -----------------------------------------------------------------------------------------------------------------
// Attributes: [0] 0 max, 1 sum, [1] spatial axes d, then for each axis window, stride, dilation, before, after; gradients
// have the d + 2 sizes of x behind that.

#define NTI_POOL_HEAD 2
#define NTI_POOL_MAX (NTI_POOL_HEAD + 3 * NTI_CONV_AXIS + NT_MAX_RANK)

static void nti_pooled_shape(const int64_t *i, const int64_t *x, nt_shape *shape) {
    int d = (int)i[1];
    *shape = nt_shape_make(d + 2, x);
    for (int k = 0; k < d; k++) {
        const int64_t *a = i + NTI_POOL_HEAD + k * NTI_CONV_AXIS;
        shape->size[1 + k] = nti_window_size(x[1 + k], a[0], a[1], a[2], 1, a[3], a[4]);
    }
}

static int nti_infer_pool(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    *dtype = x->dtype;
    if (!nti_dtype_allowed(n, *dtype)) return 0;
    if (x->rank != (int)n->i[1] + 2) return nti_wrong(n, NT_ERROR_SHAPE, "takes (N, spatial axes, C) with a window of as many axes");
    nti_pooled_shape(n->i, x->shape, shape);
    return 1;
}

static int nti_infer_pool_grad(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *g = &n->in[n->inputs - 1]->pub;
    nt_shape pooled;
    int d = (int)n->i[1];
    *dtype = g->dtype, *shape = nt_shape_make(d + 2, n->i + NTI_POOL_HEAD + d * NTI_CONV_AXIS);
    nti_pooled_shape(n->i, shape->size, &pooled);
    if (!nti_one_dtype(n, 0) || !nti_dtype_allowed(n, *dtype)) return 0;
    const nt_tensor *x = n->inputs == 2 ? &n->in[0]->pub : NULL; // where the maxima are
    int same = g->rank == d + 2 && (!x || x->rank == d + 2);
    for (int k = 0; k < d + 2 && same; k++) same = pooled.size[k] == g->shape[k] && (!x || x->shape[k] == shape->size[k]);
    return same || nti_wrong(n, NT_ERROR_SHAPE, "the pooled shape is %S, that of the operand %S", &pooled, shape);
}

static int nti_infer_pool_jvp(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    return nti_one_dtype(n, 0) && nti_one_shape(n, 0) && nti_infer_pool(n, shape, dtype);
}
static double nti_cost_pool(const nti_node *n) {
    double taps = 1;
    for (int k = 0; k < (int)n->i[1]; k++) taps *= (double)n->i[NTI_POOL_HEAD + k * NTI_CONV_AXIS];
    return taps * (double)nt_size(&n->pub);
}

static nt_tensor *nti_pool(int op, nt_tensor *x, nt_shape window, const nt_pool_desc *desc) {
    int64_t i[NTI_POOL_MAX];
    nt_pool_desc c;
    memset(&c, 0, sizeof c);
    if (desc) c = *desc;
    if (!nti_alive(x)) return NULL;
    int d = x->rank - 2, bad = d < 1 || d > 3 || window.rank != d || (unsigned)c.padding > NT_EXPLICIT;
    i[0] = op == NTI_OP_MAX_POOL ? 0 : 1, i[1] = d;
    for (int k = 0; k < d && !bad; k++) {
        int64_t *a = i + NTI_POOL_HEAD + k * NTI_CONV_AXIS;
        a[0] = window.size[k], a[1] = c.stride[k] ? c.stride[k] : window.size[k], a[2] = 1, a[3] = a[4] = 0;
        bad = a[0] < 1 || a[0] > INT_MAX || a[1] < 1 || (c.padding == NT_EXPLICIT && (c.pad[k][0] < 0 || c.pad[k][1] < 0));
        if (c.padding == NT_EXPLICIT) a[3] = c.pad[k][0], a[4] = c.pad[k][1];
        else if (!bad && c.padding == NT_SAME) nti_same_padding(x->shape[1 + k], a[0], a[1], 1, &a[3], &a[4]);
    }
    if (bad)
        return nti_wrong_call(x->tape, op, &x, 1, NT_ERROR_SHAPE,
                              "takes (N, spatial axes, C) and a window %S of as many positive sizes; padding is not negative", &window, 0);
    return nti_record(x->tape, op, &x, 1, i, NTI_POOL_HEAD + d * NTI_CONV_AXIS, NULL, 0);
}

static nt_tensor *nti_record_pool_grad(int op, nt_tensor *x, nt_tensor *g, const int64_t *attributes, const int64_t *shape) {
    int64_t i[NTI_POOL_MAX];
    nt_tensor *in[2];
    if (!g) return NULL;
    int d = (int)attributes[1], head = NTI_POOL_HEAD + d * NTI_CONV_AXIS;
    for (int k = 0; k < head; k++) i[k] = attributes[k];
    for (int k = 0; k < d + 2; k++) i[head + k] = shape[k];
    in[0] = x ? x : g, in[1] = g;
    return nti_record(g->tape, op, in, x ? 2 : 1, i, op == NTI_OP_MAX_POOL_JVP ? head : head + d + 2, NULL, 0);
}

NT_API nt_tensor *nt_max_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc) {
    return nti_pool(NTI_OP_MAX_POOL, x, window, desc);
}
NT_API nt_tensor *nt_sum_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc) {
    return nti_pool(NTI_OP_SUM_POOL, x, window, desc);
}

NT_API nt_tensor *nt_avg_pool(nt_tensor *x, nt_shape window, const nt_pool_desc *desc) {
    nt_tensor *sum = nt_sum_pool(x, window, desc);
    double area = 1;
    if (!sum) return NULL;
    if (desc && desc->exclude_pad) { // the number of real elements of each window is a sum pool of ones
        nt_shape shape = nt_shape_of(x);
        shape.size[0] = shape.size[shape.rank - 1] = 1;
        return nt_div(sum, nt_sum_pool(nt_full(x->tape, x->dtype, shape, 1), window, desc));
    }
    for (int k = 0; k < window.rank; k++) area *= (double)window.size[k];
    return nt_scale(sum, 1 / area);
}

// Reductions ----------------------------------------------------------------------------------------------------------------
// Attributes: [0] kind, [1] mask of reduced axes, [2] accumulate.

static int nti_infer_reduce(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    *dtype = x->dtype;
    memset(shape, 0, sizeof *shape);
    int boolean = n->op == NTI_OP_ANY || n->op == NTI_OP_ALL;
    if (boolean && *dtype != NT_BOOL) return nti_wrong(n, NT_ERROR_DTYPE, "takes bool; comparisons give bool");
    if (!boolean && !nti_dtype_allowed(n, *dtype)) return 0;
    for (int k = 0; k < x->rank; k++)
        if (!(n->i[1] >> k & 1)) shape->size[shape->rank++] = x->shape[k];
        else if (!x->shape[k] && (n->op == NTI_OP_ARGMAX || n->op == NTI_OP_ARGMIN))
            return nti_wrong(n, NT_ERROR_SHAPE, "axis %d is empty: there is no position to give", k);
    if (n->op == NTI_OP_ARGMAX || n->op == NTI_OP_ARGMIN) *dtype = NT_I32;
    return 1;
}

static double nti_cost_reduce(const nti_node *n) { return (double)nt_size(&n->in[0]->pub); }

// The mask of axes; -1 after recording an error.
static int64_t nti_axes_mask(nt_tape *t, const char *name, int rank, const nt_axes *axes) {
    int64_t mask = 0;
    if (axes->count < 0 || axes->count > NT_MAX_RANK) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: %d axes", name, axes->count); return -1; }
    for (int k = 0; k < axes->count; k++) {
        int axis = nti_axis_of(t, name, rank, axes->axis[k]);
        if (axis < 0) return -1;
        if (mask >> axis & 1) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: axis %d is named twice", name, axes->axis[k]); return -1; }
        mask |= (int64_t)1 << axis;
    }
    return mask;
}

static nt_axes nti_all_axes(const nt_tensor *x) {
    nt_axes a;
    memset(&a, 0, sizeof a);
    if (x) a.count = x->rank;
    for (int k = 0; k < a.count; k++) a.axis[k] = k;
    return a;
}

static nt_tensor *nti_record_reduce(int op, nt_tensor *x, int64_t mask) {
    int64_t i[3];
    static const uint8_t kind[] = { NTI_SUM, NTI_PROD, NTI_MAX, NTI_MIN, NTI_ANY, NTI_ALL, NTI_ARGMAX, NTI_ARGMIN };
    i[0] = kind[op - NTI_OP_SUM], i[1] = mask, i[2] = 0;
    return x ? nti_record(x->tape, op, &x, 1, i, 3, NULL, 0) : NULL;
}

// x with size-1 axes put back where `mask` took axes away.
static nt_tensor *nti_restore_axes(nt_tensor *y, const nt_tensor *x, int64_t mask) {
    nt_shape shape = nt_shape_of(x);
    for (int k = 0; k < shape.rank; k++)
        if (mask >> k & 1) shape.size[k] = 1;
    return nt_reshape(y, shape);
}

static nt_tensor *nti_reduce(int op, nt_tensor *x, nt_axes axes, int keep) {
    if (!nti_alive(x)) return NULL;
    int64_t mask = nti_axes_mask(x->tape, nti_row_of(op)->name, x->rank, &axes);
    nt_tensor *y = mask < 0 ? NULL : nti_record_reduce(op, x, mask);
    return keep ? nti_restore_axes(y, x, mask) : y;
}

static double nti_axes_count(const nt_tensor *x, const nt_axes *axes) {
    double n = 1;
    for (int k = 0; k < axes->count; k++) n *= (double)x->shape[axes->axis[k] < 0 ? axes->axis[k] + x->rank : axes->axis[k]];
    return n;
}

NT_API nt_tensor *nt_sum_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_SUM, x, axes, keep); }
NT_API nt_tensor *nt_prod_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_PROD, x, axes, keep); }
NT_API nt_tensor *nt_max_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_MAX, x, axes, keep); }
NT_API nt_tensor *nt_min_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_MIN, x, axes, keep); }
NT_API nt_tensor *nt_any_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_ANY, x, axes, keep); }
NT_API nt_tensor *nt_all_axes(nt_tensor *x, nt_axes axes, int keep) { return nti_reduce(NTI_OP_ALL, x, axes, keep); }
NT_API nt_tensor *nt_sum(nt_tensor *x) { return nt_sum_axes(x, nti_all_axes(x), 0); }
NT_API nt_tensor *nt_mean(nt_tensor *x) { return nt_mean_axes(x, nti_all_axes(x), 0); }

NT_API nt_tensor *nt_mean_axes(nt_tensor *x, nt_axes axes, int keep) {
    nt_tensor *sum = nt_sum_axes(x, axes, keep);
    if (!sum) return NULL;
    if (!nti_is_float(x->dtype))
        return nti_wrong_call(x->tape, NTI_OP_SUM, &x, 1, NT_ERROR_DTYPE, "a mean of integers; nt_cast to f32 or f64 first", NULL, 0);
    return nt_scale(sum, 1 / nti_axes_count(x, &axes)); // nothing at all: 0 times infinity, NaN
}

static nt_tensor *nti_arg(int op, nt_tensor *x, int axis) {
    if (!nti_alive(x)) return NULL;
    int k = nti_axis_of(x->tape, nti_row_of(op)->name, x->rank, axis);
    return k < 0 ? NULL : nti_record_reduce(op, x, (int64_t)1 << k);
}

NT_API nt_tensor *nt_argmax(nt_tensor *x, int axis) { return nti_arg(NTI_OP_ARGMAX, x, axis); }
NT_API nt_tensor *nt_argmin(nt_tensor *x, int axis) { return nti_arg(NTI_OP_ARGMIN, x, axis); }

// The maximum is subtracted for safety and its derivative drops out; an infinite one is replaced by 0 so that -inf stays -inf.
NT_API nt_tensor *nt_logsumexp_axes(nt_tensor *x, nt_axes axes, int keep) {
    nt_tensor *m = nt_stop_gradient(nt_max_axes(x, axes, 1));
    m = nt_select(nt_is_finite(m), m, nt_full_like(m, 0));
    nt_tensor *y = nt_add(nt_log(nt_sum_axes(nt_exp(nt_sub(x, m)), axes, 1)), m);
    if (!y || keep) return y;
    nt_tensor *shape = nt_sum_axes(x, axes, 0); // for its shape only: dead code
    return shape ? nt_reshape(y, nt_shape_of(shape)) : NULL;
}

NT_API nt_tensor *nt_norm_axes(nt_tensor *x, nt_axes axes, int keep) { return nt_sqrt(nt_sum_axes(nt_square(x), axes, keep)); }

// Views -----------------------------------------------------------------------------------------------------------------------
// view(n, in strides, out strides, offset): 1 if the result is the operand through these strides.

static void nti_row_major(int rank, const int64_t *shape, int64_t *stride) {
    int64_t s = 1;
    for (int k = rank - 1; k >= 0; k--) stride[k] = s, s *= shape[k];
}

// 1 if these strides visit the elements in row-major order without gaps (axes of size 1 do not matter).
static int nti_is_row_major(int rank, const int64_t *shape, const int64_t *stride) {
    int64_t s = 1;
    if (nti_count(rank, shape) <= 1) return 1;
    for (int k = rank - 1; k >= 0; k--) {
        if (shape[k] != 1 && stride[k] != s) return 0;
        s *= shape[k];
    }
    return 1;
}

static int nti_view_same(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    *offset = 0;
    for (int k = 0; k < n->pub.rank; k++) out[k] = in[k];
    return 1;
}

static int nti_infer_reshape(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_make(n->ni, n->i), *dtype = n->in[0]->pub.dtype;
    if (nti_shape_valid(shape, *dtype) && nti_count(shape->rank, shape->size) == nt_size(&n->in[0]->pub)) return 1;
    return nti_wrong(n, NT_ERROR_SHAPE, "%lld elements do not fill the shape %S", (long long)nt_size(&n->in[0]->pub), shape);
}

// Groups of old axes against groups of new axes with equal products: each group must be mergeable in the old strides.
static int nti_view_reshape(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    const nt_tensor *x = &n->in[0]->pub, *y = &n->pub;
    int64_t shape[NT_MAX_RANK], stride[NT_MAX_RANK];
    int rank = 0, a = 0, b = 0;
    *offset = 0;
    for (int k = 0; k < y->rank; k++) out[k] = 0;
    if (nt_size(y) == 0) return 1;
    for (int k = 0; k < x->rank; k++)
        if (x->shape[k] != 1) shape[rank] = x->shape[k], stride[rank++] = in[k];
    while (a < rank) {
        int first = a;
        int64_t p = shape[a++], q = 1;
        int from = b;
        while (b < y->rank && q < p) q *= y->shape[b++];
        while (q != p) {
            if (p < q) {
                if (stride[a - 1] != stride[a] * shape[a]) return 0;
                p *= shape[a++];
            } else q *= y->shape[b++];
        }
        for (int k = first; k + 1 < a; k++)
            if (stride[k] != stride[k + 1] * shape[k + 1]) return 0;
        int64_t s = stride[a - 1];
        for (int k = b - 1; k >= from; k--) out[k] = s, s *= y->shape[k];
    }
    return 1;
}

NT_API nt_tensor *nt_reshape(nt_tensor *x, nt_shape shape) {
    if (!nti_alive(x)) return NULL;
    int open = -1, many = 0;
    int64_t n = 1, size = nt_size(x);
    if (shape.rank < 0 || shape.rank > NT_MAX_RANK) {
        nti_sticky(x->tape, NT_ERROR_SHAPE, "nt_reshape(%v): the rank is %d, not between 0 and 8", x, shape.rank);
        return NULL;
    }
    for (int k = 0; k < shape.rank; k++)
        if (shape.size[k] == -1) open = k, many++;
        else if (shape.size[k] < 0)
            return nti_wrong_call(x->tape, NTI_OP_RESHAPE, &x, 1, NT_ERROR_SHAPE, "the shape %S has negative sizes", &shape, 0);
        else if (shape.size[k] > 0 && n > INT64_MAX / shape.size[k]) n = 0;
        else n *= shape.size[k];
    if (many == 1 && n > 0 && size % n == 0) shape.size[open] = size / n;
    return nti_record(x->tape, NTI_OP_RESHAPE, &x, 1, shape.size, shape.rank, NULL, 0);
}

static int nti_infer_transpose(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    int64_t seen = 0;
    *shape = nt_shape_of(x), *dtype = x->dtype;
    for (int k = 0; k < n->ni; k++) {
        if (n->i[k] < 0 || n->i[k] >= x->rank || (seen >> n->i[k] & 1))
            return nti_wrong(n, NT_ERROR_ARGUMENT, "the order is not a permutation of the axes");
        seen |= (int64_t)1 << n->i[k], shape->size[k] = x->shape[n->i[k]];
    }
    return n->ni == x->rank || nti_wrong(n, NT_ERROR_ARGUMENT, "the order names %d axes", (int)n->ni);
}

static int nti_view_transpose(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    *offset = 0;
    for (int k = 0; k < n->ni; k++) out[k] = in[n->i[k]];
    return 1;
}

NT_API nt_tensor *nt_transpose(nt_tensor *x, nt_axes order) {
    int64_t i[NT_MAX_RANK];
    if (!nti_alive(x)) return NULL;
    int count = order.count < 0 || order.count > NT_MAX_RANK ? 0 : order.count;
    for (int k = 0; k < count; k++) i[k] = order.axis[k] < 0 ? order.axis[k] + x->rank : order.axis[k];
    return nti_record(x->tape, NTI_OP_TRANSPOSE, &x, 1, i, count, NULL, 0);
}

NT_API nt_tensor *nt_swap_axes(nt_tensor *x, int a, int b) {
    if (!nti_alive(x)) return NULL;
    nt_axes order = nti_all_axes(x);
    int p = nti_axis_of(x->tape, "nt_swap_axes", x->rank, a), q = p < 0 ? -1 : nti_axis_of(x->tape, "nt_swap_axes", x->rank, b);
    if (q < 0) return NULL;
    order.axis[p] = q, order.axis[q] = p;
    return nt_transpose(x, order);
}

static int nti_infer_broadcast(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    *shape = nt_shape_make(n->ni, n->i), *dtype = x->dtype;
    int fits = x->rank <= shape->rank;
    for (int k = 0; k < x->rank && fits; k++) fits = x->shape[k] == 1 || x->shape[k] == shape->size[shape->rank - x->rank + k];
    return fits || nti_wrong(n, NT_ERROR_SHAPE, "does not broadcast to %S", shape);
}

static int nti_view_broadcast(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    const nt_tensor *x = &n->in[0]->pub;
    int lead = n->pub.rank - x->rank;
    *offset = 0;
    for (int k = 0; k < n->pub.rank; k++) out[k] = k < lead || x->shape[k - lead] != n->pub.shape[k] ? 0 : in[k - lead];
    return 1;
}

NT_API nt_tensor *nt_broadcast(nt_tensor *x, nt_shape shape) {
    if (!nti_alive(x) || !nti_shape_argument(x->tape, "nt_broadcast", x->dtype, &shape)) return NULL;
    int same = x->rank == shape.rank;
    for (int k = 0; k < shape.rank && same; k++) same = x->shape[k] == shape.size[k];
    return same ? x : nti_record(x->tape, NTI_OP_BROADCAST, &x, 1, shape.size, shape.rank, NULL, 0);
}

NT_API nt_tensor *nt_expand_dims(nt_tensor *x, int axis) {
    nt_shape shape;
    if (!nti_alive(x)) return NULL;
    memset(&shape, 0, sizeof shape);
    int k = nti_axis_of(x->tape, "nt_expand_dims", x->rank + 1, axis);
    if (k < 0) return NULL;
    if (x->rank == NT_MAX_RANK) { nti_sticky(x->tape, NT_ERROR_SHAPE, "nt_expand_dims(%v): the rank is 8 already", x); return NULL; }
    shape.rank = x->rank + 1;
    for (int a = 0; a < shape.rank; a++) shape.size[a] = a == k ? 1 : x->shape[a < k ? a : a - 1];
    return nt_reshape(x, shape);
}

NT_API nt_tensor *nt_squeeze(nt_tensor *x, int axis) {
    if (!nti_alive(x)) return NULL;
    nt_shape shape = nt_shape_of(x);
    int k = nti_axis_of(x->tape, "nt_squeeze", x->rank, axis);
    if (k < 0) return NULL;
    if (x->shape[k] != 1) {
        nti_sticky(x->tape, NT_ERROR_SHAPE, "nt_squeeze(%v): axis %d has size %lld, not 1", x, axis, (long long)x->shape[k]);
        return NULL;
    }
    shape.rank--;
    for (int a = k; a < shape.rank; a++) shape.size[a] = shape.size[a + 1];
    return nt_reshape(x, shape);
}

NT_API nt_tensor *nt_flatten(nt_tensor *x, int axis) {
    if (!nti_alive(x)) return NULL;
    nt_shape shape = nt_shape_of(x);
    int k = nti_axis_of(x->tape, "nt_flatten", x->rank, axis);
    if (k < 0) return NULL;
    shape.size[k] = nti_count(x->rank - k, x->shape + k), shape.rank = k + 1;
    return nt_reshape(x, shape);
}

// Attributes of a slice: rank starts, rank steps, rank sizes.
static int nti_infer_slice(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    int r = x->rank;
    *shape = nt_shape_make(r, n->i + 2 * r), *dtype = x->dtype;
    for (int k = 0; k < r; k++) {
        int64_t start = n->i[k], step = n->i[r + k], size = shape->size[k];
        if (step < 1 || start < 0 || start > x->shape[k] || size < 0 || (size && (size - 1) > (x->shape[k] - 1 - start) / step))
            return nti_wrong(n, NT_ERROR_SHAPE, "axis %d from %lld, %lld elements by steps of %lld, does not lie in %lld elements", k,
                             (long long)start, (long long)size, (long long)step, (long long)x->shape[k]);
    }
    return 1;
}

static int nti_view_slice(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    int r = n->pub.rank;
    *offset = 0;
    if (nt_size(&n->pub))
        for (int k = 0; k < r; k++) *offset += n->i[k] * in[k];
    for (int k = 0; k < r; k++) out[k] = in[k] * n->i[r + k];
    return 1;
}

static nt_tensor *nti_record_slice(nt_tensor *x, const int64_t *start, const int64_t *step, const int64_t *size) {
    int64_t i[3 * NT_MAX_RANK];
    if (!x) return NULL;
    for (int k = 0; k < x->rank; k++) i[k] = start[k], i[x->rank + k] = step ? step[k] : 1, i[2 * x->rank + k] = size[k];
    return nti_record(x->tape, NTI_OP_SLICE, &x, 1, i, 3 * x->rank, NULL, 0);
}

NT_API nt_tensor *nt_slice(nt_tensor *x, const int64_t *start, const int64_t *limit, const int64_t *step) {
    int64_t size[NT_MAX_RANK], stride[NT_MAX_RANK];
    if (!nti_alive(x)) return NULL;
    if (x->rank && (!start || !limit))
        return nti_wrong_call(x->tape, NTI_OP_SLICE, &x, 1, NT_ERROR_ARGUMENT, "start and limit have one number for each axis, not NULL",
                              NULL, 0);
    for (int k = 0; k < x->rank; k++) {
        int64_t s = step ? step[k] : 1;
        if (s < 1 || start[k] < 0 || limit[k] < start[k] || limit[k] > x->shape[k]) {
            nti_sticky(x->tape, NT_ERROR_ARGUMENT,
                       "nt_slice(%v): axis %d takes 0 <= start <= limit <= %lld and a step of 1 or more, not %lld, %lld, %lld", x, k,
                       (long long)x->shape[k], (long long)start[k], (long long)limit[k], (long long)s);
            return NULL;
        }
        size[k] = limit[k] > start[k] ? (limit[k] - start[k] - 1) / s + 1 : 0;
        stride[k] = size[k] > 1 ? s : 1;
    }
    return nti_record_slice(x, start, stride, size);
}

NT_API nt_tensor *nt_slice_axis(nt_tensor *x, int axis, int64_t start, int64_t limit) {
    int64_t from[NT_MAX_RANK], to[NT_MAX_RANK];
    if (!nti_alive(x)) return NULL;
    int a = nti_axis_of(x->tape, "nt_slice_axis", x->rank, axis);
    if (a < 0) return NULL;
    for (int k = 0; k < x->rank; k++) from[k] = k == a ? start : 0, to[k] = k == a ? limit : x->shape[k];
    return nt_slice(x, from, to, NULL);
}

// Pad: attributes before, after, interior of each axis in turn.
static int nti_infer_pad(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    *shape = nt_shape_of(x), *dtype = x->dtype;
    for (int k = 0; k < x->rank; k++) {
        int64_t low = n->i[3 * k], high = n->i[3 * k + 1], inside = n->i[3 * k + 2], limit = INT64_MAX / 4;
        if (inside < 0 || low < -limit || low > limit || high < -limit || high > limit || inside > limit / (x->shape[k] ? x->shape[k] : 1))
            return nti_wrong(n, NT_ERROR_ARGUMENT, "axis %d: interior padding is not negative, and sizes must stay addressable", k);
        shape->size[k] = low + high + (x->shape[k] ? x->shape[k] + (x->shape[k] - 1) * inside : 0);
        if (shape->size[k] < 0) return nti_wrong(n, NT_ERROR_SHAPE, "axis %d: negative padding takes away more than there is", k);
    }
    return 1;
}

NT_API nt_tensor *nt_pad(nt_tensor *x, const int64_t *before, const int64_t *after, const int64_t *interior, double value) {
    int64_t i[3 * NT_MAX_RANK];
    if (!nti_alive(x)) return NULL;
    if (x->rank && (!before || !after))
        return nti_wrong_call(x->tape, NTI_OP_PAD, &x, 1, NT_ERROR_ARGUMENT, "before and after have one number for each axis, not NULL",
                              NULL, 0);
    for (int k = 0; k < x->rank; k++) i[3 * k] = before[k], i[3 * k + 1] = after[k], i[3 * k + 2] = interior ? interior[k] : 0;
    return nti_record(x->tape, NTI_OP_PAD, &x, 1, i, 3 * x->rank, &value, 1);
}

// Flip: attribute 0 is the mask of reversed axes; a view whose strides are negative there.
static int nti_infer_flip(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    int rank = n->in[0]->pub.rank;
    return (n->i[0] >> rank == 0 || nti_wrong(n, NT_ERROR_ARGUMENT, "reverses an axis that rank %d does not have", rank)) &&
           nti_infer_same(n, shape, dtype);
}

static int nti_view_flip(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    *offset = 0;
    for (int k = 0; k < n->pub.rank; k++) {
        int reversed = (int)(n->i[0] >> k & 1);
        if (reversed && nt_size(&n->pub)) *offset += (n->pub.shape[k] - 1) * in[k];
        out[k] = reversed ? -in[k] : in[k];
    }
    return 1;
}

NT_API nt_tensor *nt_flip(nt_tensor *x, nt_axes axes) {
    if (!nti_alive(x)) return NULL;
    int64_t mask = nti_axes_mask(x->tape, "nt_flip", x->rank, &axes);
    return mask < 0 ? NULL : nti_record(x->tape, NTI_OP_FLIP, &x, 1, &mask, 1, NULL, 0);
}

// x with one axis seen as (before, axis, behind): rank 3, or 4 with an axis of 1 at `extra`.
static nt_tensor *nti_around_axis(nt_tensor *x, int axis, int extra) {
    nt_shape shape;
    memset(&shape, 0, sizeof shape);
    shape.size[shape.rank++] = nti_count(axis, x->shape);
    if (extra == 1) shape.size[shape.rank++] = 1;
    shape.size[shape.rank++] = x->shape[axis];
    if (extra == 2) shape.size[shape.rank++] = 1;
    shape.size[shape.rank++] = nti_count(x->rank - axis - 1, x->shape + axis + 1);
    return nt_reshape(x, shape);
}

// An axis n times: the whole of it (whole) or each element.
static nt_tensor *nti_times(nt_tensor *x, const char *name, int axis, int64_t n, int whole) {
    if (!nti_alive(x)) return NULL;
    int a = nti_axis_of(x->tape, name, x->rank, axis);
    if (a < 0) return NULL;
    nt_shape shape = nt_shape_of(x), wide;
    if (n >= 0 && (!n || shape.size[a] <= INT64_MAX / n)) shape.size[a] *= n;
    else shape.size[a] = -1;
    if (!nti_shape_argument(x->tape, name, x->dtype, &shape)) return NULL;
    nt_tensor *y = nti_around_axis(x, a, whole ? 1 : 2);
    if (!y) return NULL;
    wide = nt_shape_of(y), wide.size[whole ? 1 : 2] = n;
    return nt_reshape(nt_broadcast(y, wide), shape);
}

NT_API nt_tensor *nt_repeat(nt_tensor *x, int64_t n, int axis) { return nti_times(x, "nt_repeat", axis, n, 0); }

NT_API nt_tensor *nt_tile(nt_tensor *x, nt_shape times) {
    if (!nti_alive(x)) return NULL;
    if (times.rank < 0 || times.rank > NT_MAX_RANK) {
        nti_sticky(x->tape, NT_ERROR_SHAPE, "nt_tile(%v): %d repetitions; there are at most 8 axes", x, times.rank);
        return NULL;
    }
    while (x && x->rank < times.rank) x = nt_expand_dims(x, 0);
    for (int k = 0; x && k < times.rank; k++)
        if (times.size[k] != 1) x = nti_times(x, "nt_tile", x->rank - times.rank + k, times.size[k], 1);
    return x;
}

// `count` elements of an axis from `start` (any integer) on, as if it repeated without end.
static nt_tensor *nti_wrap(nt_tensor *x, int axis, int64_t start, int64_t count) {
    if (!x) return NULL;
    int64_t n = x->shape[axis];
    if (!n || !count || (start % n == 0 && count == n)) return n ? nt_slice_axis(x, axis, 0, count) : x;
    start = (start % n + n) % n;
    if (start + count <= n) return nt_slice_axis(x, axis, start, start + count);
    nt_tensor *part[3];
    int64_t whole = (start + count - n) / n, rest = (start + count) % n;
    int parts = 0;
    if (start) part[parts++] = nt_slice_axis(x, axis, start, n);
    else whole++;
    if (whole) part[parts++] = whole > 1 ? nti_times(x, "nt_tile", axis, whole, 1) : x;
    if (rest) part[parts++] = nt_slice_axis(x, axis, 0, rest);
    nt_params all;
    all.count = parts, all.items = part;
    return parts == 1 ? part[0] : nt_concat(all, axis);
}

NT_API nt_tensor *nt_roll(nt_tensor *x, const int64_t *shift, nt_axes axes) {
    if (!nti_alive(x)) return NULL;
    if (nti_axes_mask(x->tape, "nt_roll", x->rank, &axes) < 0) return NULL;
    if (axes.count && !shift) {
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_roll(%v): shift has one number for each axis, not NULL", x);
        return NULL;
    }
    for (int k = 0; x && k < axes.count; k++) {
        int axis = axes.axis[k] < 0 ? axes.axis[k] + x->rank : axes.axis[k];
        int64_t n = x->shape[axis];
        if (n) x = nti_wrap(x, axis, n - shift[k] % n, n);
    }
    return x;
}

// Matrices: the last two axes.
static int nti_takes_matrix(const char *name, nt_tensor *x) { // 0 after an error
    if (!nti_alive(x)) return 0;
    if (x->rank >= 2) return 1;
    nti_sticky(x->tape, NT_ERROR_SHAPE, "%s(%v): takes matrices, rank 2 or more", name, x);
    return 0;
}

// x where column - row compares with k as wanted, else zero.
static nt_tensor *nti_band(const char *name, nt_tensor *x, int64_t k, int upper) {
    nt_shape column, row;
    if (!nti_takes_matrix(name, x)) return NULL;
    k = nti_max(-x->shape[x->rank - 2] - 1, nti_min(k, x->shape[x->rank - 1] + 1));
    column = nt_shape_make(1, x->shape + x->rank - 1), row = nt_shape_make(2, x->shape + x->rank - 2), row.size[1] = 1;
    nt_tensor *limit = nt_add_scalar(nt_iota(x->tape, NT_I32, row, 0), (double)k), *at = nt_iota(x->tape, NT_I32, column, 0);
    return nt_select(upper ? nt_greater_equal(at, limit) : nt_less_equal(at, limit), x, nt_full_like(x, 0));
}
NT_API nt_tensor *nt_tril(nt_tensor *x, int64_t k) { return nti_band("nt_tril", x, k, 0); }
NT_API nt_tensor *nt_triu(nt_tensor *x, int64_t k) { return nti_band("nt_triu", x, k, 1); }

NT_API nt_tensor *nt_diag(nt_tensor *x, int64_t k) { // every (columns + 1)-th element of a matrix as it lies
    int64_t start[NT_MAX_RANK] = { 0 }, limit[NT_MAX_RANK], step[NT_MAX_RANK];
    if (!nti_takes_matrix("nt_diag", x)) return NULL;
    int last = x->rank - 2;
    int64_t rows = x->shape[last], columns = x->shape[last + 1], n = k < 0 ? nti_min(rows + k, columns) : nti_min(rows, columns - k);
    nt_tensor *flat = nt_flatten(x, last);
    if (k < -rows || k > columns || !flat) {
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_diag(%v): there is no diagonal %lld", x, (long long)k);
        return NULL;
    }
    for (int a = 0; a < last; a++) limit[a] = x->shape[a], step[a] = 1;
    start[last] = n ? (k < 0 ? -k * columns : k) : 0, step[last] = columns + 1;
    limit[last] = n ? start[last] + (n - 1) * (columns + 1) + 1 : 0;
    return nt_slice(flat, start, limit, step);
}

NT_API nt_tensor *nt_trace(nt_tensor *x) {
    nt_axes last;
    memset(&last, 0, sizeof last);
    last.count = 1, last.axis[0] = NT_LAST;
    return nti_takes_matrix("nt_trace", x) ? nt_sum_axes(nt_diag(x, 0), last, 0) : NULL;
}

static int nti_infer_concat(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    int axis = (int)n->i[0];
    if (!nti_one_dtype(n, 0)) return 0;
    for (int k = 1; k < n->inputs; k++) {
        const nt_tensor *x = &n->in[k]->pub;
        int same = x->rank == shape->rank;
        for (int a = 0; a < x->rank && same; a++) same = a == axis || x->shape[a] == shape->size[a];
        if (!same) return nti_wrong(n, NT_ERROR_SHAPE, "part %d differs in another axis than %d", k, axis);
        shape->size[axis] += x->shape[axis];
    }
    return 1;
}

// NULL quietly for a NULL part, and for an empty list, which has no tape to complain to
static int nti_parts(nt_params parts) {
    if (parts.count < 1 || !parts.items) return 0;
    if (parts.count > 65535 && nti_alive(parts.items[0]))
        nti_sticky(parts.items[0]->tape, NT_ERROR_ARGUMENT, "nt_concat: %d parts; at most 65535 go at once", parts.count);
    for (int k = 0; k < parts.count; k++)
        if (!parts.items[k]) return 0;
    return nti_alive(parts.items[0]);
}

NT_API nt_tensor *nt_concat(nt_params parts, int axis) {
    if (!nti_parts(parts)) return NULL;
    int64_t a = nti_axis_of(parts.items[0]->tape, "nt_concat", parts.items[0]->rank, axis);
    return a < 0 ? NULL : nti_record(parts.items[0]->tape, NTI_OP_CONCAT, parts.items, parts.count, &a, 1, NULL, 0);
}

NT_API nt_tensor *nt_stack(nt_params parts, int axis) {
    if (!nti_parts(parts)) return NULL;
    nt_tape *t = parts.items[0]->tape;
    nt_params wide;
    wide.count = parts.count, wide.items = (nt_tensor **)nti_low(t, (size_t)parts.count * sizeof(nt_tensor *));
    if (!wide.items) return nti_record_memory(t, NTI_OP_CONCAT);
    int last = parts.items[0]->rank;
    for (int k = 0; k < parts.count; k++) wide.items[k] = nt_expand_dims(parts.items[k], axis < 0 ? axis + last + 1 : axis);
    return nt_concat(wide, axis < 0 ? axis + last + 1 : axis);
}

// Gather: attributes axis, clip. The index operand went through nti_check_index unless it clips.
static int nti_infer_gather(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *i = &n->in[1]->pub;
    int axis = (int)n->i[0];
    *dtype = x->dtype;
    if (i->dtype != NT_I32) return nti_wrong(n, NT_ERROR_DTYPE, "indices are i32, not %s", nt_dtype_name(i->dtype));
    if (x->rank - 1 + i->rank > NT_MAX_RANK) return nti_wrong(n, NT_ERROR_SHAPE, "the result would have more than 8 axes");
    memset(shape, 0, sizeof *shape);
    for (int k = 0; k < axis; k++) shape->size[shape->rank++] = x->shape[k];
    for (int k = 0; k < i->rank; k++) shape->size[shape->rank++] = i->shape[k];
    for (int k = axis + 1; k < x->rank; k++) shape->size[shape->rank++] = x->shape[k];
    if (n->i[1] && !x->shape[axis] && nti_shape_valid(shape, *dtype) && nti_count(shape->rank, shape->size))
        return nti_wrong(n, NT_ERROR_SHAPE, "axis %d is empty: there is nothing to take", axis);
    return 1;
}

static int nti_infer_check(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    int fits = nti_infer_same(n, shape, dtype) && (n->op == NTI_OP_CHECK_INDEX ? *dtype == NT_I32 : nti_is_float(*dtype));
    return fits ||
           nti_wrong(n, NT_ERROR_DTYPE, "checks %s, not %s", n->op == NTI_OP_CHECK_INDEX ? "i32" : "f32 and f64", nt_dtype_name(*dtype));
}

// indices, verified at run time: 0 <= index < limit, or the ignored value. The run stops before the first assignment.
static nt_tensor *nti_check_index(int op, nt_tensor *indices, int64_t limit, int has_ignored, int64_t ignored) {
    int64_t i[4];
    i[0] = limit, i[1] = ignored, i[2] = has_ignored, i[3] = op; // the operation is for the message
    return indices ? nti_record(indices->tape, NTI_OP_CHECK_INDEX, &indices, 1, i, 4, NULL, 0) : NULL;
}

static nt_tensor *nti_record_gather(nt_tensor *x, nt_tensor *indices, int axis, int clip) {
    nt_tensor *in[2];
    int64_t i[2];
    if (!x || !indices || !nti_alive(x) || !nti_alive(indices)) return NULL;
    i[0] = nti_axis_of(x->tape, "nt_gather", x->rank, axis), i[1] = clip;
    in[0] = x, in[1] = indices;
    if (i[0] < 0) return NULL;
    if (!clip && indices->dtype == NT_I32) in[1] = nti_check_index(NTI_OP_GATHER, indices, x->shape[i[0]], 0, 0);
    return nti_record(x->tape, NTI_OP_GATHER, in, 2, i, 2, NULL, 0);
}

NT_API nt_tensor *nt_gather(nt_tensor *x, nt_tensor *indices, int axis) { return nti_record_gather(x, indices, axis, 0); }
NT_API nt_tensor *nt_gather_clip(nt_tensor *x, nt_tensor *indices, int axis) { return nti_record_gather(x, indices, axis, 1); }

static int nti_infer_scatter_add(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *i = &n->in[1]->pub, *u = &n->in[2]->pub;
    int axis = (int)n->i[0];
    *shape = nt_shape_of(x), *dtype = x->dtype;
    if (i->dtype != NT_I32) return nti_wrong(n, NT_ERROR_DTYPE, "indices are i32, not %s", nt_dtype_name(i->dtype));
    if (u->dtype != *dtype) return nti_wrong(n, NT_ERROR_DTYPE, "updates are %s, not %s", nt_dtype_name(u->dtype), nt_dtype_name(*dtype));
    if (!nti_dtype_allowed(n, *dtype)) return 0;
    int same = u->rank == x->rank - 1 + i->rank;
    for (int k = 0; k < u->rank && same; k++)
        same = u->shape[k] == (k < axis ? x->shape[k] : k < axis + i->rank ? i->shape[k - axis] : x->shape[k - i->rank + 1]);
    return same || nti_wrong(n, NT_ERROR_SHAPE, "updates are shaped like x with axis %d replaced by the axes of the indices", axis);
}

static nt_tensor *nti_record_scatter_add(nt_tensor *x, nt_tensor *indices, nt_tensor *updates, int64_t axis) {
    nt_tensor *in[3];
    in[0] = x, in[1] = indices, in[2] = updates;
    return x ? nti_record(x->tape, NTI_OP_SCATTER_ADD, in, 3, &axis, 1, NULL, 0) : NULL;
}

NT_API nt_tensor *nt_scatter_add(nt_tensor *x, nt_tensor *indices, nt_tensor *updates, int axis) {
    if (!x || !indices || !updates || !nti_alive(x) || !nti_alive(indices)) return NULL;
    int a = nti_axis_of(x->tape, "nt_scatter_add", x->rank, axis);
    if (a < 0) return NULL;
    return nti_record_scatter_add(x, indices->dtype == NT_I32 ? nti_check_index(NTI_OP_SCATTER_ADD, indices, x->shape[a], 0, 0) : indices,
                                  updates, a);
}

NT_API nt_tensor *nt_segment_sum(nt_tensor *x, nt_tensor *ids, int64_t n) { // the row itself drops ids that are out of range
    if (!nti_alive(x) || !ids) return NULL;
    if (!x->rank || n < 0) {
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_segment_sum(%v): takes rank 1 or more, and %lld segments", x, (long long)n);
        return NULL;
    }
    nt_shape shape = nt_shape_of(x);
    shape.size[0] = n;
    return nti_record_scatter_add(nt_full(x->tape, x->dtype, shape, 0), ids, x, 0);
}

NT_API nt_tensor *nt_one_hot(nt_tensor *indices, int64_t n, nt_dtype dtype) {
    if (!nti_alive(indices)) return NULL;
    nt_shape shape = nt_shape_make(1, &n);
    if (!nti_shape_argument(indices->tape, "nt_one_hot", dtype, &shape)) return NULL;
    return nt_cast(nt_equal(nt_expand_dims(indices, NT_LAST), nt_iota(indices->tape, indices->dtype, shape, 0)), dtype);
}

// Along an axis: x at indices of the same rank, each for its own line. Attribute 0: the axis.
static int nti_along_shapes(nti_node *n, int axis) { // operands 0 and 1 agree in all axes but this one
    const nt_tensor *x = &n->in[0]->pub, *i = &n->in[1]->pub;
    if (i->dtype != NT_I32) return nti_wrong(n, NT_ERROR_DTYPE, "indices are i32, not %s", nt_dtype_name(i->dtype));
    int same = x->rank == i->rank && axis < x->rank;
    for (int k = 0; k < x->rank && same; k++) same = k == axis || x->shape[k] == i->shape[k];
    return same || nti_wrong(n, NT_ERROR_SHAPE, "the indices have the shape of x but for axis %d", axis);
}

static int nti_infer_take_along(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[1]->pub), *dtype = n->in[0]->pub.dtype;
    return nti_along_shapes(n, (int)n->i[0]);
}

static int nti_infer_scatter_along(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *u = &n->in[2]->pub;
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    if (u->dtype != *dtype) return nti_wrong(n, NT_ERROR_DTYPE, "updates are %s, not %s", nt_dtype_name(u->dtype), nt_dtype_name(*dtype));
    if (!nti_dtype_allowed(n, *dtype) || !nti_along_shapes(n, (int)n->i[0])) return 0;
    return nti_same_shape(u, &n->in[1]->pub) || nti_wrong(n, NT_ERROR_SHAPE, "updates are shaped like the indices");
}

static nt_tensor *nti_record_along(nt_tensor *x, nt_tensor *indices, nt_tensor *updates, int64_t axis) { // updates NULL: take
    nt_tensor *in[3];
    in[0] = x, in[1] = indices, in[2] = updates;
    return x ? nti_record(x->tape, updates ? NTI_OP_SCATTER_ALONG : NTI_OP_TAKE_ALONG, in, updates ? 3 : 2, &axis, 1, NULL, 0) : NULL;
}

NT_API nt_tensor *nt_take_along_axis(nt_tensor *x, nt_tensor *indices, int axis) {
    nt_tensor *in[2];
    nt_shape lines, like;
    if (!x || !indices || !nti_alive(x) || !nti_alive(indices)) return NULL;
    in[0] = x, in[1] = indices;
    int a = nti_axis_of(x->tape, "nt_take_along_axis", x->rank, axis);
    if (a < 0) return NULL;
    if (indices->rank != x->rank || indices->dtype != NT_I32 || indices->tape != x->tape) return nti_record_along(x, indices, NULL, a);
    lines = nt_shape_of(x), like = nt_shape_of(indices);
    for (int k = 0; k < x->rank; k++) { // the other axes broadcast
        if (k == a) continue;
        if (lines.size[k] != like.size[k] && lines.size[k] != 1 && like.size[k] != 1)
            return nti_wrong_call(x->tape, NTI_OP_TAKE_ALONG, in, 2, NT_ERROR_SHAPE,
                                  "the axes other than the one that is picked from do not broadcast", NULL, 0);
        lines.size[k] = like.size[k] = lines.size[k] == 1 ? like.size[k] : lines.size[k];
    }
    nt_tensor *at = nt_select(nt_less(indices, nt_full_like(indices, 0)), nt_add_scalar(indices, (double)x->shape[a]), indices);
    at = nti_check_index(NTI_OP_TAKE_ALONG, at, x->shape[a], 0, 0);
    return at ? nti_record_along(nt_broadcast(x, lines), nt_broadcast(at, like), NULL, a) : NULL;
}

// Dynamic slices. Attributes: the number of leading axes that count places (vmap makes them), then the sizes of the piece. Starts are
// i32 (places..., an axis for the others).
static int nti_dynamic_starts(nti_node *n, const nt_tensor *x, int lead) {
    const nt_tensor *s = &n->in[n->inputs - 1]->pub;
    int same = s->dtype == NT_I32 && x->rank >= lead && s->rank == lead + 1 && s->shape[lead] == x->rank - lead;
    for (int k = 0; k < lead && same; k++) same = s->shape[k] == x->shape[k];
    return same || nti_wrong(n, s->dtype == NT_I32 ? NT_ERROR_SHAPE : NT_ERROR_DTYPE, "starts are one i32 number for each axis");
}

static int nti_dynamic_fits(nti_node *n, const nt_tensor *x, const nt_shape *piece, int lead) {
    int fits = piece->rank == x->rank;
    for (int k = 0; k < x->rank && fits; k++)
        fits = k < lead ? piece->size[k] == x->shape[k] : piece->size[k] >= 0 && piece->size[k] <= x->shape[k];
    return fits || nti_wrong(n, NT_ERROR_SHAPE, "a piece of shape %S does not fit in", piece);
}

static int nti_infer_dynamic_slice(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    int lead = (int)n->i[0];
    *dtype = x->dtype;
    if (!nti_dynamic_starts(n, x, lead)) return 0;
    *shape = nt_shape_make(lead, x->shape);
    for (int k = 1; k < n->ni; k++) shape->size[shape->rank++] = n->i[k];
    return nti_dynamic_fits(n, x, shape, lead);
}

static int nti_infer_dynamic_update(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *u = &n->in[1]->pub;
    nt_shape piece = nt_shape_of(u);
    *shape = nt_shape_of(x), *dtype = x->dtype;
    if (u->dtype != *dtype) return nti_wrong(n, NT_ERROR_DTYPE, "the update is %s, not %s", nt_dtype_name(u->dtype), nt_dtype_name(*dtype));
    return nti_dynamic_starts(n, x, (int)n->i[0]) && nti_dynamic_fits(n, x, &piece, (int)n->i[0]);
}

// i32 scalars as one i32 tensor; NULL quietly for a NULL among them.
static nt_tensor *nti_stack_starts(nt_tensor *x, const char *name, nt_tensor *const *starts) {
    int64_t none = 0;
    if (!x->rank) return nt_full(x->tape, NT_I32, nt_shape_make(1, &none), 0);
    if (!starts) { nti_sticky(x->tape, NT_ERROR_ARGUMENT, "%s(%v): starts has one scalar for each axis, not NULL", name, x); return NULL; }
    for (int k = 0; k < x->rank; k++) {
        if (!starts[k] || !nti_alive(starts[k])) return NULL;
        if (starts[k]->dtype == NT_I32 && !starts[k]->rank) continue;
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "%s(%v): start %d is %v, not an i32 scalar", name, x, k, starts[k]);
        return NULL;
    }
    nt_params all;
    all.count = x->rank, all.items = (nt_tensor **)(uintptr_t)starts;
    return nt_stack(all, 0);
}

static nt_tensor *nti_record_dynamic_slice(nt_tensor *x, nt_tensor *starts, int lead, const int64_t *size) { // sizes of all axes
    nt_tensor *in[2];
    int64_t i[1 + NT_MAX_RANK];
    in[0] = x, in[1] = starts, i[0] = lead;
    for (int k = lead; x && k < x->rank; k++) i[1 + k - lead] = size[k];
    return x ? nti_record(x->tape, NTI_OP_DYNAMIC_SLICE, in, 2, i, 1 + x->rank - lead, NULL, 0) : NULL;
}

static nt_tensor *nti_record_dynamic_update(nt_tensor *x, nt_tensor *u, nt_tensor *starts, int64_t lead) {
    nt_tensor *in[3];
    in[0] = x, in[1] = u, in[2] = starts;
    return x ? nti_record(x->tape, NTI_OP_DYNAMIC_UPDATE, in, 3, &lead, 1, NULL, 0) : NULL;
}

NT_API nt_tensor *nt_dynamic_slice(nt_tensor *x, nt_tensor *const *starts, nt_shape size) {
    if (!nti_alive(x)) return NULL;
    if (size.rank != x->rank) {
        nti_sticky(x->tape, NT_ERROR_SHAPE, "nt_dynamic_slice(%v): the size %S has another rank", x, &size);
        return NULL;
    }
    return nti_record_dynamic_slice(x, nti_stack_starts(x, "nt_dynamic_slice", starts), 0, size.size);
}

NT_API nt_tensor *nt_dynamic_update_slice(nt_tensor *x, nt_tensor *update, nt_tensor *const *starts) {
    if (!nti_alive(x) || !update) return NULL;
    return nti_record_dynamic_update(x, update, nti_stack_starts(x, "nt_dynamic_update_slice", starts), 0);
}

// Scans: attributes axis, from the end, kind of the kernel (linear scans and log-sums have one of their own).
static int nti_infer_scan(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (n->in[0]->pub.rank <= n->i[0]) return nti_wrong(n, NT_ERROR_SHAPE, "there is no axis %lld", (long long)n->i[0]);
    return nti_infer_map(n, shape, dtype);
}

static nt_tensor *nti_scan(int op, nt_tensor *x, nt_tensor *y, int axis, int reverse) {
    nt_tensor *in[2];
    int64_t i[3];
    if (!nti_alive(x)) return NULL;
    in[0] = x, in[1] = y, i[0] = nti_axis_of(x->tape, nti_row_of(op)->name, x->rank, axis), i[1] = reverse != 0;
    i[2] = op <= NTI_OP_CUMMAX ? op - NTI_OP_CUMSUM : 0;
    return i[0] < 0 ? NULL : nti_record(x->tape, op, in, nti_row_of(op)->inputs, i, 3, NULL, 0);
}

NT_API nt_tensor *nt_cumsum(nt_tensor *x, int axis, int reverse) { return nti_scan(NTI_OP_CUMSUM, x, NULL, axis, reverse); }
NT_API nt_tensor *nt_cumprod(nt_tensor *x, int axis, int reverse) { return nti_scan(NTI_OP_CUMPROD, x, NULL, axis, reverse); }
NT_API nt_tensor *nt_cummax(nt_tensor *x, int axis, int reverse) { return nti_scan(NTI_OP_CUMMAX, x, NULL, axis, reverse); }
NT_API nt_tensor *nt_cumlogsumexp(nt_tensor *x, int axis, int reverse) { return nti_scan(NTI_OP_CUMLOGSUMEXP, x, NULL, axis, reverse); }
NT_API nt_tensor *nt_linear_scan(nt_tensor *a, nt_tensor *b, int axis, int reverse) {
    return a && b ? nti_scan(NTI_OP_LINEAR_SCAN, a, b, axis, reverse) : NULL;
}

// The order along an axis. Attributes: axis, from the largest, how many are kept.
static int nti_infer_argsort(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    int axis = (int)n->i[0];
    if (!nti_dtype_allowed(n, x->dtype)) return 0;
    if (axis >= x->rank) return nti_wrong(n, NT_ERROR_SHAPE, "there is no axis %d", axis);
    if (n->i[2] < 0 || n->i[2] > x->shape[axis] || x->shape[axis] > INT32_MAX)
        return nti_wrong(n, NT_ERROR_SHAPE, "takes 0 to %lld of axis %d, not %lld", (long long)nti_min(x->shape[axis], INT32_MAX), axis,
                         (long long)n->i[2]);
    *shape = nt_shape_of(x), *dtype = NT_I32, shape->size[axis] = n->i[2];
    return 1;
}

static double nti_cost_argsort(const nti_node *n) {
    const nt_tensor *x = &n->in[0]->pub;
    double rounds = 1;
    for (int64_t k = x->shape[n->i[0]]; k > 1; k /= 2) rounds++;
    return 8 * rounds * (double)nt_size(x);
}

static nt_tensor *nti_argsort(nt_tensor *x, const char *name, int axis, int descending, int64_t count) { // count -1: all
    int64_t i[3];
    if (!nti_alive(x)) return NULL;
    i[0] = nti_axis_of(x->tape, name, x->rank, axis), i[1] = descending;
    if (i[0] < 0) return NULL;
    i[2] = count < 0 && !descending ? x->shape[i[0]] : count;
    return nti_record(x->tape, NTI_OP_ARGSORT, &x, 1, i, 3, NULL, 0);
}

NT_API nt_tensor *nt_argsort(nt_tensor *x, int axis) { return nti_argsort(x, "nt_argsort", axis, 0, -1); }

NT_API nt_tensor *nt_sort(nt_tensor *x, int axis) {
    nt_tensor *order = nti_argsort(x, "nt_sort", axis, 0, -1);
    return order ? nti_record_along(x, order, NULL, axis < 0 ? axis + x->rank : axis) : NULL;
}

NT_API nt_top nt_top_k(nt_tensor *x, int64_t k) {
    nt_top top;
    top.indices = nti_argsort(x, "nt_top_k", NT_LAST, 1, k);
    top.values = top.indices ? nti_record_along(x, top.indices, NULL, x->rank - 1) : NULL;
    return top;
}

// Fused -------------------------------------------------------------------------------------------------------------------

static double nti_cost_update(const nti_node *n) { return 4.0 * (double)n->inputs * (double)nt_size(&n->pub); }
static double nti_cost_exp(const nti_node *n) { return 8.0 * (double)nt_size(&n->in[0]->pub); }

static int nti_infer_like_first(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    return nti_dtype_allowed(n, *dtype);
}

static int nti_infer_softmax(nti_node *n, nt_shape *shape, nt_dtype *dtype) { // and its derivative
    if (!n->in[0]->pub.rank) return nti_wrong(n, NT_ERROR_SHAPE, "a scalar has no axis");
    return nti_infer_like_first(n, shape, dtype) && nti_one_dtype(n, 0) && nti_one_shape(n, 0);
}

// Rows work on the last axis; another one is swapped there and back.
static nt_tensor *nti_on_last_axis(int op, nt_tensor *x, int axis, int64_t kind) {
    if (!nti_alive(x)) return NULL;
    int k = x->rank ? nti_axis_of(x->tape, nti_row_of(op)->name, x->rank, axis) : 0, last = x->rank - 1;
    if (k < 0) return NULL;
    if (!x->rank || k == last) return nti_record(x->tape, op, &x, 1, &kind, 1, NULL, 0);
    nt_tensor *y = nt_swap_axes(x, k, last);
    return y ? nt_swap_axes(nti_record(x->tape, op, &y, 1, &kind, 1, NULL, 0), k, last) : NULL;
}

NT_API nt_tensor *nt_softmax(nt_tensor *x, int axis) { return nti_on_last_axis(NTI_OP_SOFTMAX, x, axis, 0); }
NT_API nt_tensor *nt_log_softmax(nt_tensor *x, int axis) { return nti_on_last_axis(NTI_OP_LOG_SOFTMAX, x, axis, 1); }

// Cross-entropy: attributes ignored, has ignored; number smoothing. CROSS_ENTROPY and its jvp give one number for each example.
static int nti_infer_cross_entropy(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub, *y = &n->in[1]->pub;
    *shape = nt_shape_of(x), *dtype = x->dtype;
    if (!nti_dtype_allowed(n, *dtype)) return 0;
    if (y->dtype != NT_I32) return nti_wrong(n, NT_ERROR_DTYPE, "labels are i32, not %s", nt_dtype_name(y->dtype));
    int same = x->rank == y->rank + 1;
    for (int k = 0; k < y->rank && same; k++) same = x->shape[k] == y->shape[k];
    if (!same) return nti_wrong(n, NT_ERROR_SHAPE, "takes logits (..., classes) and labels (...)");
    const nt_tensor *third = n->inputs > 2 ? &n->in[2]->pub : NULL; // a tangent of the logits, or a cotangent of the losses
    if (third && (third->dtype != x->dtype || !nti_same_shape(third, n->op == NTI_OP_CROSS_ENTROPY_GRAD ? y : x)))
        return nti_wrong(n, NT_ERROR_SHAPE, "its derivative takes another operand 2");
    if (n->op != NTI_OP_CROSS_ENTROPY_GRAD) shape->rank--;
    return 1;
}

static nt_tensor *nti_record_cross_entropy(int op, nt_tensor *logits, nt_tensor *labels, nt_tensor *third, const int64_t *i,
                                           const double *d) {
    nt_tensor *in[3];
    in[0] = logits, in[1] = labels, in[2] = third;
    return logits ? nti_record(logits->tape, op, in, op == NTI_OP_CROSS_ENTROPY ? 2 : 3, i, 2, d, 1) : NULL;
}

NT_API nt_tensor *nt_cross_entropy_with(nt_tensor *logits, nt_tensor *labels, const nt_cross_entropy_desc *desc) {
    nt_cross_entropy_desc c;
    int64_t i[2];
    memset(&c, 0, sizeof c);
    if (desc) c = *desc;
    if (!logits || !labels || !nti_alive(logits) || !nti_alive(labels)) return NULL;
    if (!(c.smoothing >= 0 && c.smoothing <= 1)) {
        nti_sticky(logits->tape, NT_ERROR_ARGUMENT, "nt_cross_entropy: the smoothing is %g, not between 0 and 1", c.smoothing);
        return NULL;
    }
    i[0] = c.ignored, i[1] = c.has_ignored != 0;
    if (labels->dtype == NT_I32 && logits->rank)
        labels = nti_check_index(NTI_OP_CROSS_ENTROPY, labels, logits->shape[logits->rank - 1], c.has_ignored != 0, c.ignored);
    return nti_record_cross_entropy(NTI_OP_CROSS_ENTROPY, logits, labels, NULL, i, &c.smoothing);
}

NT_API nt_tensor *nt_cross_entropy(nt_tensor *logits, nt_tensor *labels) { return nt_cross_entropy_with(logits, labels, NULL); }

// Layer norm: statistics (..., 2), the mean and 1 / sqrt(var + eps), are all that the derivative needs beside x.
static int nti_infer_norm_stats(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!n->in[0]->pub.rank) return nti_wrong(n, NT_ERROR_SHAPE, "a scalar has no axis to normalise over");
    if (!nti_infer_like_first(n, shape, dtype)) return 0;
    shape->size[shape->rank - 1] = 2;
    return 1;
}

static int nti_infer_norm(nti_node *n, nt_shape *shape, nt_dtype *dtype) { // x, statistics of x, for the derivative one more like x
    nt_shape stats;
    nt_dtype same;
    if (!nti_infer_norm_stats(n, &stats, &same) || !nti_infer_like_first(n, shape, dtype) || !nti_one_dtype(n, 0)) return 0;
    const nt_tensor *given = &n->in[1]->pub;
    int fits = given->rank == stats.rank && (n->inputs < 3 || nti_same_shape(&n->in[2]->pub, &n->in[0]->pub));
    for (int k = 0; k < stats.rank && fits; k++) fits = given->shape[k] == stats.size[k];
    return fits || nti_wrong(n, NT_ERROR_SHAPE, "the statistics or the cotangent do not belong to the operand");
}

static nt_tensor *nti_record_norm(int op, nt_tensor *x, nt_tensor *stats, nt_tensor *g, double eps) {
    nt_tensor *in[3];
    int64_t affine = 0;
    in[0] = x, in[1] = stats, in[2] = g;
    return x && stats ? nti_record(x->tape, op, in, op == NTI_OP_NORM ? 2 : 3, &affine, 1, &eps, 1) : NULL;
}

NT_API nt_tensor *nt_layer_norm(nt_tensor *x, nt_tensor *scale, nt_tensor *bias, double eps) {
    if (!nti_alive(x)) return NULL;
    nt_tensor *y = nti_record_norm(NTI_OP_NORM, x, nti_record_numbers(NTI_OP_NORM_STATS, x, &eps, 1), NULL, eps);
    if ((scale && !nti_fits_last_axis("nt_layer_norm", "scale", x, scale)) ||
        (bias && !nti_fits_last_axis("nt_layer_norm", "bias", x, bias)))
        return NULL;
    if (scale) y = nt_mul(y, scale);
    return bias ? nt_add(y, bias) : y;
}

// Attention: attributes kind, causal, masked, bits of the tangents; number scale. Operands q, k, v, then a cotangent or tangents, the mask.

// The operands before the mask, in their order; 0 after recording an error.
static int nti_attention_shapes(nti_node *n) {
    const nt_tensor *q = &n->in[0]->pub, *k = &n->in[1]->pub, *v = &n->in[2]->pub;
    int floats = n->inputs - (n->i[2] != 0);
    if (!nti_dtype_allowed(n, q->dtype)) return 0;
    for (int j = 1; j < floats; j++)
        if (n->in[j]->pub.dtype != q->dtype)
            return nti_wrong(n, NT_ERROR_DTYPE, "operands of two dtypes, %s and %s; there is no implicit promotion, nt_cast one of them",
                             nt_dtype_name(q->dtype), nt_dtype_name(n->in[j]->pub.dtype));
    if (q->rank != 4 || k->rank != 4 || v->rank != 4 || q->shape[3] != k->shape[3] || k->shape[1] != v->shape[1] ||
        q->shape[0] != k->shape[0] || q->shape[0] != v->shape[0] || q->shape[2] != k->shape[2] || q->shape[2] != v->shape[2])
        return nti_wrong(n, NT_ERROR_SHAPE, "takes q (batch, time, heads, d), k (batch, keys, heads, d) and v (batch, keys, heads, dv)");
    if (floats == n->inputs) return 1;
    const nt_tensor *mask = &n->in[floats]->pub;
    if (mask->dtype != NT_BOOL) return nti_wrong(n, NT_ERROR_DTYPE, "the mask is %s, not bool", nt_dtype_name(mask->dtype));
    return (mask->rank == 4 && mask->shape[0] == q->shape[0] && mask->shape[1] == q->shape[2] && mask->shape[2] == q->shape[1] &&
            mask->shape[3] == k->shape[1]) ||
           nti_wrong(n, NT_ERROR_SHAPE, "the mask is not (batch, heads, time, keys)");
}

static int nti_infer_attention(nti_node *n, nt_shape *shape, nt_dtype *dtype) { // and its derivative along tangents
    if (!nti_attention_shapes(n)) return 0;
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    shape->size[3] = n->in[2]->pub.shape[3];
    for (int k = 0, at = 3; k < 3; k++)
        if ((n->i[3] >> k & 1) && !nti_same_shape(&n->in[k]->pub, &n->in[at++]->pub))
            return nti_wrong(n, NT_ERROR_SHAPE, "operand %d is not shaped like operand %d", at - 1, k);
    return 1;
}

static int nti_infer_attention_grad(nti_node *n, nt_shape *shape, nt_dtype *dtype) { // the cotangents of q, k and v in a row
    if (!nti_attention_shapes(n)) return 0;
    const nt_tensor *q = &n->in[0]->pub, *v = &n->in[2]->pub, *g = &n->in[3]->pub;
    int fits = g->rank == 4 && g->shape[3] == v->shape[3];
    for (int k = 0; k < 3 && fits; k++) fits = g->shape[k] == q->shape[k];
    if (!fits) return nti_wrong(n, NT_ERROR_SHAPE, "the cotangent is not (batch, time, heads, dv)");
    *dtype = q->dtype, shape->rank = 1, shape->size[0] = 0;
    for (int k = 0; k < 3; k++) shape->size[0] += nt_size(&n->in[k]->pub);
    return 1;
}

static double nti_cost_attention(const nti_node *n) {
    const nt_tensor *q = &n->in[0]->pub, *v = &n->in[2]->pub;
    double scores = (double)nt_size(v) * (double)q->shape[1], d = (double)q->shape[3], dv = (double)v->shape[3];
    if (dv > 0) scores /= dv;
    if (n->i[0] == NTI_ATTEND_GRAD) return scores * (6 * d + 4 * dv + 16);
    double keys = n->i[0] == NTI_ATTEND_JVP ? (double)(1 + (n->i[3] & 1) + (n->i[3] >> 1 & 1)) : 1;
    double values = n->i[0] == NTI_ATTEND_JVP ? (double)((n->i[3] & 3) != 0) + (double)(n->i[3] >> 2 & 1) : 1;
    return scores * (2 * d * keys + 2 * dv * values + 12);
}

// x: q, k, v, then three that may be NULL: tangents, or a cotangent in the first place. The attributes are those of `like`.
static nt_tensor *nti_record_attention(int op, int kind, nt_tensor *const *x, nt_tensor *mask, int causal, double scale) {
    nt_tensor *in[NTI_FEW];
    int64_t i[4];
    int count = 0;
    i[0] = kind, i[1] = causal, i[2] = mask != NULL, i[3] = 0;
    for (int k = 0; k < 6; k++) {
        if (k >= 3 && !x[k]) continue;
        in[count++] = x[k];
        if (kind == NTI_ATTEND_JVP && k >= 3) i[3] |= (int64_t)1 << (k - 3);
    }
    if (mask) in[count++] = mask;
    return in[0] ? nti_record(in[0]->tape, op, in, count, i, 4, &scale, 1) : NULL;
}

NT_API nt_tensor *nt_attention(nt_tensor *q, nt_tensor *k, nt_tensor *v, nt_tensor *mask, const nt_attention_desc *desc) {
    nt_tensor *x[6] = { q, k, v, NULL, NULL, NULL };
    double scale = desc ? desc->scale : 0;
    if (!q || !k || !v || !nti_alive(q) || !nti_alive(k) || !nti_alive(v) || (mask && !nti_alive(mask))) return NULL;
    if (scale == 0) scale = q->rank == 4 && q->shape[3] ? 1 / sqrt((double)q->shape[3]) : 1;
    if (mask && q->rank == 4 && k->rank == 4 && mask->tape == q->tape) {
        nt_shape full = nt_shape_of(q);
        full.size[1] = q->shape[2], full.size[2] = q->shape[1], full.size[3] = k->shape[1];
        int fits = mask->rank <= 4;
        for (int a = 0; a < mask->rank && fits; a++) fits = mask->shape[a] == 1 || mask->shape[a] == full.size[4 - mask->rank + a];
        if (!fits)
            return nti_wrong_call(q->tape, NTI_OP_ATTENTION, x, 3, NT_ERROR_SHAPE,
                                  "the mask does not broadcast to (batch, heads, time, keys), here %S", &full, 0);
        mask = nt_broadcast(nt_cast(mask, NT_BOOL), full);
        if (!mask) return NULL;
    }
    return nti_record_attention(NTI_OP_ATTENTION, NTI_ATTEND, x, mask, desc && desc->causal, scale == NT_ZERO ? 0 : scale);
}

// Assignment --------------------------------------------------------------------------------------------------------------

static int nti_infer_assign(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nti_node *v = n->in[0];
    *shape = nt_shape_of(&v->pub), *dtype = v->pub.dtype;
    if (v->op != NTI_OP_VARIABLE)
        return nti_wrong(n, NT_ERROR_ARGUMENT, "only a variable (nt_variable, a layer's parameter) can be assigned");
    if (v->frozen) return nti_wrong(n, NT_ERROR_ARGUMENT, "the variable is frozen");
    for (int k = 1; k < n->inputs; k++) {
        if (n->in[k]->pub.dtype != *dtype)
            return nti_wrong(n, NT_ERROR_DTYPE, "the value is %s, the variable %s; nt_cast it", nt_dtype_name(n->in[k]->pub.dtype),
                             nt_dtype_name(*dtype));
        if (!nti_same_shape(&n->in[k]->pub, &v->pub)) return nti_wrong(n, NT_ERROR_SHAPE, "value and variable differ in shape");
    }
    return 1;
}

NT_API nt_tensor *nt_assign(nt_tensor *variable, nt_tensor *value) { return nti_record2(NTI_OP_ASSIGN, variable, value); }
// Linear algebra ----------------------------------------------------------------------------------------------------------
// The last two axes are matrices. A factorisation with two results is one row without a derivative; its results are rows of their
// own, views of it that stand for functions of the matrix (operand 1 of views, 0 of the others).

static int nti_is_matrix(nti_node *n, int k, int square) {
    const nt_tensor *x = &n->in[k]->pub;
    if (!nti_one_dtype(n, 0) || !nti_dtype_allowed(n, x->dtype)) return 0;
    if (!nti_is_float(x->dtype)) return nti_wrong(n, NT_ERROR_DTYPE, "defined for f32 and f64; nt_cast it");
    if (x->rank < 2) return nti_wrong(n, NT_ERROR_SHAPE, "takes matrices (..., n, n): rank 2 at least");
    if (square && x->shape[x->rank - 1] != x->shape[x->rank - 2]) return nti_wrong(n, NT_ERROR_SHAPE, "the matrix is not square");
    if (nti_max(x->shape[x->rank - 1], x->shape[x->rank - 2]) >= 1 << 24)
        return nti_wrong(n, NT_ERROR_SHAPE, "a matrix has at most 16,777,215 rows and columns");
    return 1;
}

static int nti_same_lead(nti_node *n, int a, int b, int axes) { // equal but for the last `axes` of the first
    const nt_tensor *x = &n->in[a]->pub, *y = &n->in[b]->pub;
    for (int k = 0; k < x->rank - axes; k++)
        if (k >= y->rank || x->shape[k] != y->shape[k]) return nti_wrong(n, NT_ERROR_SHAPE, "the leading axes differ");
    return 1;
}

static int nti_infer_square(nti_node *n, nt_shape *shape, nt_dtype *dtype) { return nti_infer_same(n, shape, dtype) && nti_is_matrix(n, 0, 1); }

static int nti_infer_triangular_solve(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *a = &n->in[0]->pub, *b = &n->in[1]->pub;
    *shape = nt_shape_of(b), *dtype = a->dtype;
    if (!nti_is_matrix(n, 0, 1) || !nti_is_matrix(n, 1, 0)) return 0;
    if (a->rank != b->rank || b->shape[b->rank - (n->i[0] ? 1 : 2)] != a->shape[a->rank - 1])
        return nti_wrong(n, NT_ERROR_SHAPE, n->i[0] ? "x a = b takes a (n, n) and b (m, n)" : "a x = b takes a (n, n) and b (n, m)");
    return nti_same_lead(n, 0, 1, 2);
}

static int nti_infer_lu(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_square(n, shape, dtype)) return 0;
    shape->size[shape->rank - 2]++;
    return 1;
}

// Operand k holds the factors of a square matrix x: (..., n + 1, n).
static int nti_fits_factors(nti_node *n, int k, const nt_tensor *x) {
    const nt_tensor *f = &n->in[k]->pub;
    int fits = f->rank == x->rank && f->shape[f->rank - 2] == x->shape[x->rank - 2] + 1 && f->shape[f->rank - 1] == x->shape[x->rank - 1];
    for (int a = 0; fits && a < x->rank - 2; a++) fits = f->shape[a] == x->shape[a];
    return fits || nti_wrong(n, NT_ERROR_SHAPE, "the factors are not those of the matrix");
}

static int nti_infer_lu_solve(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *a = &n->in[0]->pub, *b = &n->in[2]->pub;
    *shape = nt_shape_of(b), *dtype = a->dtype;
    if (!nti_is_matrix(n, 0, 1) || !nti_is_matrix(n, 2, 0) || !nti_fits_factors(n, 1, a)) return 0;
    if (a->rank != b->rank || b->shape[b->rank - 2] != a->shape[a->rank - 1]) return nti_wrong(n, NT_ERROR_SHAPE, "a x = b takes a (n, n) and b (n, m)");
    return nti_same_lead(n, 0, 2, 2);
}

static int nti_infer_determinant(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_square(n, shape, dtype) || !nti_fits_factors(n, 1, &n->in[0]->pub)) return 0;
    shape->rank -= 2;
    return 1;
}

static int nti_infer_eigh(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_square(n, shape, dtype)) return 0;
    if (n->i[0]) shape->size[shape->rank - 2]++;
    else shape->rank--;
    return 1;
}

static int nti_infer_spectral(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_square(n, shape, dtype) || !nti_fits_factors(n, 1, &n->in[0]->pub)) return 0;
    return n->inputs < 3 || nti_same_shape(&n->in[0]->pub, &n->in[2]->pub) || nti_wrong(n, NT_ERROR_SHAPE, "operands 0 and 2 differ in shape");
}

// Views of factors: `first` rows are skipped and `rows` shown; 0: the first row, without its axis.
static int nti_view_rows(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset, int64_t first, int vector) {
    int r = n->pub.rank, from = n->in[0]->pub.rank;
    *offset = nt_size(&n->pub) && from > 1 ? first * in[from - 2] : 0;
    for (int k = 0; k < r; k++) out[k] = in[k];
    if (vector && r) out[r - 1] = in[from - 1];
    return 1;
}

static int nti_infer_eigenvalues(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *e = &n->in[0]->pub, *x = &n->in[1]->pub;
    *shape = nt_shape_of(x), *dtype = x->dtype, shape->rank--;
    if (!nti_is_matrix(n, 1, 1)) return 0;
    if (e->rank == x->rank) return nti_fits_factors(n, 0, x);
    int fits = e->rank == shape->rank;
    for (int k = 0; fits && k < e->rank; k++) fits = e->shape[k] == x->shape[k];
    return fits || nti_wrong(n, NT_ERROR_SHAPE, "the factors are not those of the matrix");
}
static int nti_view_eigenvalues(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) { return nti_view_rows(n, in, out, offset, 0, 1); }

static int nti_infer_eigenvectors(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[1]->pub), *dtype = n->in[1]->pub.dtype;
    return nti_is_matrix(n, 1, 1) && nti_fits_factors(n, 0, &n->in[1]->pub);
}
static int nti_view_eigenvectors(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) { return nti_view_rows(n, in, out, offset, 1, 0); }

static int nti_infer_qr(nti_node *n, nt_shape *shape, nt_dtype *dtype) { // q (m, n) over r (n, n)
    const nt_tensor *x = &n->in[0]->pub;
    if (!nti_infer_same(n, shape, dtype) || !nti_is_matrix(n, 0, 0)) return 0;
    if (x->shape[x->rank - 2] < x->shape[x->rank - 1]) return nti_wrong(n, NT_ERROR_SHAPE, "the matrix has fewer rows than columns");
    shape->size[shape->rank - 2] += shape->size[shape->rank - 1];
    return 1;
}

static int nti_infer_qr_q(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *f = &n->in[0]->pub, *x = &n->in[1]->pub;
    *shape = nt_shape_of(x), *dtype = x->dtype;
    if (!nti_is_matrix(n, 1, 0)) return 0;
    int64_t m = x->shape[x->rank - 2], columns = x->shape[x->rank - 1];
    if (f->rank != x->rank || f->shape[f->rank - 1] != columns || f->shape[f->rank - 2] != m + columns || m < columns)
        return nti_wrong(n, NT_ERROR_SHAPE, "the factors are not those of the matrix");
    return nti_same_lead(n, 1, 0, 2);
}
static int nti_view_qr_q(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) { return nti_view_rows(n, in, out, offset, 0, 0); }

static int nti_infer_qr_r(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    if (!nti_infer_qr_q(n, shape, dtype)) return 0;
    shape->size[shape->rank - 2] = shape->size[shape->rank - 1];
    return 1;
}
static int nti_view_qr_r(const nti_node *n, const int64_t *in, int64_t *out, int64_t *offset) {
    const nt_tensor *x = &n->in[1]->pub;
    return nti_view_rows(n, in, out, offset, x->shape[x->rank - 2], 0);
}

// flops
static double nti_cost_cube(const nti_node *n, double factor) {
    const nt_tensor *x = &n->in[0]->pub;
    return factor * (double)nt_size(x) * (double)x->shape[x->rank - 1];
}
static double nti_cost_cholesky(const nti_node *n) { return nti_cost_cube(n, 1.0 / 3); }
static double nti_cost_lu(const nti_node *n) { return nti_cost_cube(n, 2.0 / 3); }
static double nti_cost_eigh(const nti_node *n) { return nti_cost_cube(n, n->i[0] ? 9 : 4.0 / 3); }
static double nti_cost_spectral(const nti_node *n) { return nti_cost_cube(n, n->inputs > 2 ? 8 : 2); }
static double nti_cost_qr(const nti_node *n) { return nti_cost_cube(n, 4); }
static double nti_cost_solve(const nti_node *n) {
    const nt_tensor *a = &n->in[0]->pub;
    return (n->inputs > 2 ? 2.0 : 1.0) * (double)nt_size(&n->pub) * (double)a->shape[a->rank - 1];
}

static nt_axes nti_last_axis(void) {
    nt_axes a;
    memset(&a, 0, sizeof a);
    a.count = 1, a.axis[0] = NT_LAST;
    return a;
}

static nt_tensor *nti_record_ints(int op, nt_tensor *x, nt_tensor *y, nt_tensor *z, const int64_t *i, int ni) { // z NULL: two operands, y NULL: one
    nt_tensor *in[3];
    in[0] = x, in[1] = y, in[2] = z;
    return x ? nti_record(x->tape, op, in, z ? 3 : y ? 2 : 1, i, ni, NULL, 0) : NULL;
}

static nt_tensor *nti_swap_last(nt_tensor *x) { return nt_swap_axes(x, -1, -2); }
static nt_tensor *nti_symmetric(nt_tensor *x) { return nt_scale(nt_add(x, nti_swap_last(x)), 0.5); }

// The triangle below the diagonal, and the diagonal times a number; zeros elsewhere.
static nt_tensor *nti_triangle(nt_tensor *x, int upper, double diagonal) {
    if (!nti_alive(x)) return NULL;
    nt_shape s = nt_shape_of(x);
    int64_t down[2], across[2];
    down[0] = s.size[s.rank - 2], down[1] = 1, across[0] = 1, across[1] = s.size[s.rank - 1];
    nt_tensor *row = nt_iota(x->tape, NT_I32, nt_shape_make(2, down), 0), *column = nt_iota(x->tape, NT_I32, nt_shape_make(2, across), 1);
    nt_tensor *zero = nt_scalar(x->tape, x->dtype, 0), *inside = upper ? nt_less(row, column) : nt_greater(row, column);
    if (diagonal == 0) return nt_select(inside, x, zero);
    if (diagonal == 1) return nt_select(upper ? nt_less_equal(row, column) : nt_greater_equal(row, column), x, zero);
    return nt_select(inside, x, nt_select(nt_equal(row, column), nt_scale(x, diagonal), zero));
}

static nt_tensor *nti_identity_like(nt_tensor *x) { // of the size of the last axis, broadcast
    if (!nti_alive(x)) return NULL;
    nt_shape s = nt_shape_of(x);
    s.size[s.rank - 2] = s.size[s.rank - 1];
    nt_tensor *one = nt_full(x->tape, x->dtype, s, 1);
    return nti_triangle(nti_triangle(one, 0, 1), 1, 1);
}

static nt_tensor *nti_diagonal(nt_tensor *x) { // of square matrices: every (n + 1)-th element
    if (!nti_alive(x)) return NULL;
    nt_shape s = nt_shape_of(x);
    int64_t n = s.size[s.rank - 1], start[NT_MAX_RANK] = { 0 }, step[NT_MAX_RANK];
    for (int k = 0; k < NT_MAX_RANK; k++) step[k] = 1;
    s.size[--s.rank - 1] = n * n;
    nt_tensor *flat = nt_reshape(x, s);
    step[s.rank - 1] = n + 1;
    if (!flat || !n) return flat;
    return nt_slice(flat, start, s.size, step);
}

NT_API nt_tensor *nt_cholesky(nt_tensor *x) { return nti_record1(NTI_OP_CHOLESKY, x); }

// Leading axes of a (..., n, n) and b broadcast; a vector b is a matrix of one column (row). The result by `solve`.
typedef nt_tensor *(*nti_solver)(nt_tensor *a, nt_tensor *b, const int64_t *i);

static nt_tensor *nti_solve_broadcast(int op, nt_tensor *a, nt_tensor *b, const int64_t *i, int right, nti_solver solve) {
    nt_tensor *in[2], *leads[2], lead[2];
    nt_shape all, own[2];
    in[0] = a, in[1] = b;
    if (!a || !b || !nti_alive(a) || !nti_alive(b)) return NULL;
    if (a->tape != b->tape || a->rank < 2 || !b->rank || a->dtype != b->dtype || !nti_is_float(a->dtype))
        return nti_wrong_call(a->tape, op, in, 2, a->tape != b->tape ? NT_ERROR_ARGUMENT : a->rank < 2 || !b->rank ? NT_ERROR_SHAPE : NT_ERROR_DTYPE,
                              "takes matrices (..., n, n) and b of rank 1 at least, of one tape, both f32 or both f64", NULL, 0);
    int vector = b->rank == 1;
    if (vector) b = nt_expand_dims(b, right ? 0 : 1);
    if (!b) return NULL;
    own[0] = nt_shape_of(a), own[1] = nt_shape_of(b), in[1] = b;
    memset(lead, 0, sizeof lead);
    for (int k = 0; k < 2; k++) lead[k].rank = own[k].rank - 2, lead[k].shape = own[k].size, leads[k] = &lead[k];
    if (!nti_broadcast_shape(leads, 2, &all)) return nti_wrong_call(a->tape, op, in, 2, NT_ERROR_SHAPE, "the leading axes do not broadcast", NULL, 0);
    all.rank += 2;
    for (int k = 0; k < 2; k++) {
        all.size[all.rank - 2] = own[k].size[own[k].rank - 2], all.size[all.rank - 1] = own[k].size[own[k].rank - 1];
        in[k] = nt_broadcast(in[k], all);
    }
    nt_tensor *x = solve(in[0], in[1], i);
    return x && vector ? nt_squeeze(x, right ? x->rank - 2 : x->rank - 1) : x;
}

static nt_tensor *nti_record_triangular(nt_tensor *a, nt_tensor *b, const int64_t *i) {
    return b ? nti_record_ints(NTI_OP_TRIANGULAR_SOLVE, a, b, NULL, i, 4) : NULL;
}

static nt_tensor *nti_triangular(nt_tensor *a, nt_tensor *b, int right, int upper, int transpose, int unit) {
    int64_t i[4];
    i[0] = right, i[1] = upper, i[2] = transpose, i[3] = unit;
    return nti_record_triangular(a, b, i);
}

NT_API nt_tensor *nt_triangular_solve(nt_tensor *a, nt_tensor *b, const nt_triangular_desc *desc) {
    int64_t i[4] = { 0, 0, 0, 0 };
    if (desc) i[0] = desc->right != 0, i[1] = desc->upper != 0, i[2] = desc->transpose != 0, i[3] = desc->unit != 0;
    return nti_solve_broadcast(NTI_OP_TRIANGULAR_SOLVE, a, b, i, i[0] != 0, nti_record_triangular);
}

// The factors are those of a before it was broadcast.
static nt_tensor *nti_record_lu_solve(nt_tensor *a, nt_tensor *lu, nt_tensor *b, int64_t transpose) {
    return lu && b ? nti_record_ints(NTI_OP_LU_SOLVE, a, lu, b, &transpose, 1) : NULL;
}

static nt_tensor *nti_solve_factored(nt_tensor *a, nt_tensor *b, const int64_t *i) {
    nt_tensor *own = a;
    (void)i;
    if (!a || !b) return NULL;
    while (nti_n(own)->op == NTI_OP_BROADCAST) own = &nti_n(own)->in[0]->pub; // factored once for the whole batch
    nt_shape wide = nt_shape_of(a);
    nt_tensor *lu = nti_record1(NTI_OP_LU, own);
    wide.size[wide.rank - 2]++;
    return nti_record_lu_solve(a, nt_broadcast(lu, wide), b, 0);
}

NT_API nt_tensor *nt_solve(nt_tensor *a, nt_tensor *b) { return nti_solve_broadcast(NTI_OP_LU_SOLVE, a, b, NULL, 0, nti_solve_factored); }

NT_API nt_tensor *nt_inv(nt_tensor *a) {
    nt_tensor *lu = nti_record1(NTI_OP_LU, a);
    return lu ? nti_record_lu_solve(a, lu, nti_identity_like(a), 0) : NULL;
}

static nt_tensor *nti_determinant(nt_tensor *a, nt_tensor *lu, int64_t what) { return lu ? nti_record_ints(NTI_OP_DETERMINANT, a, lu, NULL, &what, 1) : NULL; }

NT_API nt_tensor *nt_det(nt_tensor *a) { return nti_determinant(a, nti_record1(NTI_OP_LU, a), NTI_DET); }

NT_API nt_sign_log nt_slogdet(nt_tensor *a) {
    nt_tensor *lu = nti_record1(NTI_OP_LU, a);
    nt_sign_log r;
    r.sign = nti_determinant(a, lu, NTI_DET_SIGN), r.log = nti_determinant(a, lu, NTI_DET_LOG);
    return r;
}

static nt_tensor *nti_solve_cholesky(nt_tensor *l, nt_tensor *b, const int64_t *i) {
    (void)i;
    return nti_triangular(l, nti_triangular(l, b, 0, 0, 0, 0), 0, 0, 1, 0);
}

NT_API nt_tensor *nt_solve_spd(nt_tensor *a, nt_tensor *b) {
    return nti_solve_broadcast(NTI_OP_TRIANGULAR_SOLVE, nt_cholesky(a), b, NULL, 0, nti_solve_cholesky);
}

NT_API nt_tensor *nt_logdet_spd(nt_tensor *a) {
    nt_tensor *d = nti_diagonal(nt_cholesky(a));
    return d ? nt_scale(nt_sum_axes(nt_log(d), nti_last_axis(), 0), 2) : NULL;
}

static nt_tensor *nti_record_eigh(nt_tensor *x, int64_t vectors) { return nti_record_ints(NTI_OP_EIGH, x, NULL, NULL, &vectors, 1); }

NT_API nt_eigen nt_eigh(nt_tensor *x) {
    nt_tensor *e = nti_record_eigh(x, 1);
    nt_eigen r;
    r.values = nti_record2(NTI_OP_EIGENVALUES, e, x), r.vectors = nti_record2(NTI_OP_EIGENVECTORS, e, x);
    return r;
}
NT_API nt_tensor *nt_eigvalsh(nt_tensor *x) { return nti_record2(NTI_OP_EIGENVALUES, nti_record_eigh(x, 0), x); }
NT_API nt_tensor *nt_sym_sqrt(nt_tensor *x) { return nti_record2(NTI_OP_SYM_SQRT, x, nti_record_eigh(x, 1)); }

// A wide matrix is factored by its first columns; r continues with q^T times the others.
NT_API nt_qr_factors nt_qr(nt_tensor *x) {
    nt_qr_factors f = { NULL, NULL };
    if (!nti_alive(x)) return f;
    int64_t m = x->rank > 1 ? x->shape[x->rank - 2] : 0, n = x->rank > 1 ? x->shape[x->rank - 1] : 0;
    nt_tensor *own = n > m ? nt_slice_axis(x, NT_LAST, 0, m) : x, *qr = nti_record1(NTI_OP_QR, own), *parts[2];
    f.q = nti_record2(NTI_OP_QR_Q, qr, own), f.r = nti_record2(NTI_OP_QR_R, qr, own);
    if (n <= m) return f;
    parts[0] = f.r, parts[1] = nt_matmul(nti_swap_last(f.q), nt_slice_axis(x, NT_LAST, m, n));
    f.r = nt_concat(nti_list(parts, 2), NT_LAST);
    return f;
}

// Random numbers on the tape --------------------------------------------------------------------------------------------
// KEY: attributes high word, low word, per step. RANDOM: a generator whose attribute [0] is the kind.

static int nti_infer_key(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    (void)n;
    shape->rank = 1, shape->size[0] = 2, *dtype = NT_U32;
    return 1;
}

static int nti_key_operand(nti_node *n) {
    const nt_tensor *key = &n->in[0]->pub;
    if (key->dtype == NT_U32 && key->rank == 1 && key->shape[0] == 2) return 1;
    return nti_wrong(n, NT_ERROR_ARGUMENT, "a key is u32[2]; nt_key_tensor puts one on the tape");
}

static int nti_infer_fold_in(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *number = &n->in[1]->pub;
    if (!nti_key_operand(n)) return 0;
    if ((number->dtype != NT_I32 && number->dtype != NT_U32) || nt_size(number) != 1)
        return nti_wrong(n, NT_ERROR_ARGUMENT, "the number is an i32 or u32 scalar");
    return nti_infer_key(n, shape, dtype);
}

static int nti_infer_random(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    return nti_key_operand(n) && nti_infer_generator(n, shape, dtype);
}
static double nti_cost_random(const nti_node *n) { return 60.0 * (double)nt_size(&n->pub); }

static void nti_plan_single(const nti_call *c, nti_plan *p) {
    (void)c;
    p->phases = 1, p->tiles[0] = 1, p->shared = p->worker = 0;
}

static nt_key_value nti_key_data(const nti_view *v) {
    nt_key_value key;
    memcpy(&key, v->data, sizeof key.word[0]);
    memcpy(&key.word[1], (const uint32_t *)v->data + (v->rank ? v->stride[0] : 0), sizeof key.word[1]);
    return key;
}

static void nti_eval_fold_in(const nti_call *c, int phase, int64_t tile, void *worker) {
    uint32_t number;
    (void)phase, (void)tile, (void)worker;
    memcpy(&number, c->in[1].data, sizeof number);
    nt_key_value key = nt_key_fold_in(nti_key_data(&c->in[0]), number);
    memcpy(c->out.data, key.word, sizeof key.word);
}

#define NTI_RANDOM_TILE 4096 // elements of a tile, a multiple of every vector

static void nti_plan_random(const nti_call *c, nti_plan *p) {
    int64_t n = nti_view_size(&c->out);
    nti_plan_single(c, p);
    p->tiles[0] = (n + NTI_RANDOM_TILE - 1) / NTI_RANDOM_TILE;
}

static int64_t nti_random_range(const nti_call *c, int64_t tile, int64_t *count) { // the first element of a tile
    int64_t n = nti_view_size(&c->out), first = tile * NTI_RANDOM_TILE;
    *count = n - first < NTI_RANDOM_TILE ? n - first : NTI_RANDOM_TILE;
    return first;
}

static void nti_eval_split(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n, first = nti_random_range(c, tile, &n);
    (void)phase, (void)worker;
    for (int64_t k = first; k < first + n; k++) { // element k is half of key k / 2
        nt_key_value key = nt_key_split(nti_key_data(&c->in[0]), 0, (uint32_t)(k / 2));
        memcpy((uint32_t *)c->out.data + k, &key.word[k % 2], sizeof key.word[0]);
    }
}

// The numbers are low and high; those of randint, which may need all 64 bits, in two halves each.
static void nti_random_describe(const nti_call *c, nti_random *r) {
    memset(r, 0, sizeof *r);
    r->kind = (nti_random_kind)c->i[0], r->dtype = (nt_dtype)c->out.dtype, r->key = nti_key_data(&c->in[0]);
    r->lo = c->d[0], r->hi = c->d[1];
    if (r->kind != NTI_RANDOM_RANDINT) return;
    r->int_lo = (int64_t)c->d[0] * 4294967296 + (int64_t)c->d[1], r->int_hi = (int64_t)c->d[2] * 4294967296 + (int64_t)c->d[3];
}

static void nti_eval_random(const nti_call *c, int phase, int64_t tile, void *worker) {
    int64_t n, first = nti_random_range(c, tile, &n);
    nti_random_isa isa;
    nti_random r;
    (void)phase, (void)worker;
    for (int k = 0; k < 2; k++) isa.math[k] = c->isa->math[k], isa.random[k] = c->isa->random[k];
    nti_random_describe(c, &r);
    nti_random_fill(&isa, &r, first, n, (char *)c->out.data + (size_t)first * nt_dtype_size(r.dtype));
}

static nt_tensor *nti_record_random(nt_tensor *key, const char *name, int kind, nt_dtype dtype, const nt_shape *shape, const double *d,
                                    int nd, int wanted) {
    int64_t i[2 + NT_MAX_RANK];
    if (!nti_alive(key) || !nti_shape_argument(key->tape, name, dtype, shape)) return NULL;
    if (!(wanted >> dtype & 1)) {
        nti_sticky(key->tape, NT_ERROR_DTYPE, "%s: no %s", name, nt_dtype_name(dtype));
        return NULL;
    }
    i[0] = kind, i[1] = dtype;
    for (int k = 0; k < shape->rank; k++) i[2 + k] = shape->size[k];
    return nti_record(key->tape, kind < 0 ? NTI_OP_SPLIT : NTI_OP_RANDOM, &key, 1, i, 2 + shape->rank, d, nd);
}

NT_API nt_tensor *nt_key_tensor(nt_tape *t, nt_key_value key) {
    int64_t i[3];
    i[0] = key.word[0], i[1] = key.word[1], i[2] = 0;
    return t ? nti_record(t, NTI_OP_KEY, NULL, 0, i, 3, NULL, 0) : NULL;
}

NT_API nt_tensor *nt_fold_in(nt_tensor *key, nt_tensor *number) { return nti_record2(NTI_OP_FOLD_IN, key, number); }

NT_API nt_tensor *nt_split(nt_tensor *key, nt_shape shape) {
    if (!nti_alive(key)) return NULL;
    if (shape.rank < 0 || shape.rank >= NT_MAX_RANK) {
        nti_sticky(key->tape, NT_ERROR_SHAPE, "nt_split: the rank is %d, not between 0 and 7", shape.rank);
        return NULL;
    }
    shape.size[shape.rank++] = 2;
    return nti_record_random(key, "nt_split", -1, NT_U32, &shape, NULL, 0, ~0);
}

#define NTI_FLOATS (1 << NT_F32 | 1 << NT_F64)
#define NTI_UNSIGNED (1 << NT_U8 | 1 << NT_U16 | 1 << NT_U32 | 1 << NT_U64)
#define NTI_SIGNED (1 << NT_I8 | 1 << NT_I16 | 1 << NT_I32 | 1 << NT_I64)
static nt_tensor *nti_random_between(nt_tensor *key, const char *name, int kind, nt_dtype dtype, const nt_shape *shape, double low,
                                     double high, int wanted) {
    double d[2];
    d[0] = low, d[1] = high;
    return nti_record_random(key, name, kind, dtype, shape, d, 2, wanted);
}

NT_API nt_tensor *nt_random_bits(nt_tensor *key, nt_dtype dtype, nt_shape shape) {
    return nti_random_between(key, "nt_random_bits", NTI_RANDOM_BITS, dtype, &shape, 0, 0, NTI_UNSIGNED);
}
NT_API nt_tensor *nt_uniform(nt_tensor *key, nt_dtype dtype, nt_shape shape, double low, double high) {
    return nti_random_between(key, "nt_uniform", NTI_RANDOM_UNIFORM, dtype, &shape, low, high, NTI_FLOATS);
}
NT_API nt_tensor *nt_normal(nt_tensor *key, nt_dtype dtype, nt_shape shape) {
    return nti_random_between(key, "nt_normal", NTI_RANDOM_NORMAL, dtype, &shape, 0, 1, NTI_FLOATS);
}
NT_API nt_tensor *nt_truncated_normal(nt_tensor *key, nt_dtype dtype, nt_shape shape, double low, double high) {
    return nti_random_between(key, "nt_truncated_normal", NTI_RANDOM_TRUNCATED_NORMAL, dtype, &shape, low, high, NTI_FLOATS);
}
NT_API nt_tensor *nt_bernoulli(nt_tensor *key, double p, nt_shape shape) {
    return nti_random_between(key, "nt_bernoulli", NTI_RANDOM_BERNOULLI, NT_BOOL, &shape, p, 0, 1 << NT_BOOL);
}

NT_API nt_tensor *nt_randint(nt_tensor *key, nt_dtype dtype, nt_shape shape, int64_t low, int64_t high) {
    double d[4];
    d[1] = (double)(low & 0xffffffff), d[0] = (double)((low - (low & 0xffffffff)) / 4294967296);
    d[3] = (double)(high & 0xffffffff), d[2] = (double)((high - (high & 0xffffffff)) / 4294967296);
    return nti_record_random(key, "nt_randint", NTI_RANDOM_RANDINT, dtype, &shape, d, 4, NTI_SIGNED | NTI_UNSIGNED);
}

NT_API nt_tensor *nt_rademacher(nt_tensor *key, nt_shape shape) {
    return nti_random_between(key, "nt_rademacher", NTI_RANDOM_RADEMACHER, NT_I32, &shape, 0, 0, 1 << NT_I32);
}

#define NTI_STANDARD(ID, name) \
    NT_API nt_tensor *nt_##name(nt_tensor *key, nt_dtype dtype, nt_shape shape) { \
        return nti_random_between(key, "nt_" #name, NTI_RANDOM_##ID, dtype, &shape, 0, 1, NTI_FLOATS); \
    }
NTI_STANDARD(EXPONENTIAL, exponential)
NTI_STANDARD(GUMBEL, gumbel)
NTI_STANDARD(LAPLACE, laplace)
NTI_STANDARD(LOGISTIC, logistic)
NTI_STANDARD(CAUCHY, cauchy)

NT_API nt_tensor *nt_dropout(nt_tensor *x, nt_tensor *key, double rate, nt_axes shared) {
    if (!x || !key || !nti_alive(x) || !nti_alive(key)) return NULL;
    if (!nti_is_float(x->dtype)) { nti_sticky(x->tape, NT_ERROR_DTYPE, "nt_dropout(%v): takes f32 or f64", x); return NULL; }
    if (!(rate >= 0 && rate <= 1)) {
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_dropout: the rate is %g, not between 0 and 1", rate);
        return NULL;
    }
    int64_t mask = nti_axes_mask(x->tape, "nt_dropout", x->rank, &shared);
    nt_shape shape = nt_shape_of(x);
    if (mask < 0) return NULL;
    if (rate == 0) return x;
    for (int k = 0; k < shape.rank; k++)
        if (mask >> k & 1) shape.size[k] = 1;
    nt_tensor *keep = nt_bernoulli(key, 1 - rate, shape), *zero = nt_full_like(x, 0);
    return rate == 1 ? zero : nt_select(keep, nt_scale(x, 1 / (1 - rate)), zero);
}

NT_API nt_status nt_initialize(nt_key_value key, const nt_init_desc *desc, nt_dtype dtype, nt_shape shape, void *data) {
    static const struct { uint8_t kind, mode, distribution; double scale;
    } named[] = {
        { 0, 0, 0, 0 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_IN, NTI_RANDOM_TRUNCATED_NORMAL, 1 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_IN, NTI_RANDOM_UNIFORM, 1 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_IN, NTI_RANDOM_TRUNCATED_NORMAL, 2 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_IN, NTI_RANDOM_UNIFORM, 2 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_AVG, NTI_RANDOM_TRUNCATED_NORMAL, 1 },
        { NTI_INIT_VARIANCE_SCALING, NT_FAN_AVG, NTI_RANDOM_UNIFORM, 1 },
        { NTI_INIT_ZEROS, 0, 0, 0 },
        { NTI_INIT_ONES, 0, 0, 1 },
        { NTI_INIT_NORMAL, 0, 0, 0.01 },
        { NTI_INIT_UNIFORM, 0, 0, 0.01 },
        { NTI_INIT_TRUNCATED_NORMAL, 0, 0, 0.01 },
        { NTI_INIT_VARIANCE_SCALING, 0, 0, 1 },
        { NTI_INIT_ORTHOGONAL, 0, 0, 1 },
    };
    nt_init_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (d.kind == NT_INIT_DEFAULT) d.kind = NT_LECUN_NORMAL;
    if (!nti_is_float(dtype)) return NT_ERROR_DTYPE;
    if ((unsigned)d.kind > NT_ORTHOGONAL || !nti_shape_valid(&shape, dtype)) return NT_ERROR_ARGUMENT;
    int64_t n = nti_count(shape.rank, shape.size);
    if (n && !data) return NT_ERROR_ARGUMENT;
    nti_init r;
    memset(&r, 0, sizeof r);
    r.kind = (nti_init_kind)named[d.kind].kind, r.mode = (nt_fan)named[d.kind].mode,
    r.distribution = (nti_random_kind)named[d.kind].distribution;
    int own = d.kind == NT_VARIANCE_SCALING || r.kind != NTI_INIT_VARIANCE_SCALING; // .scale is the caller's but for the named scalings
    r.scale = own && d.scale != 0 ? d.scale == NT_ZERO ? 0 : d.scale : named[d.kind].scale;
    r.lo = d.low, r.hi = d.high;
    if (d.low == 0 && d.high == 0) r.lo = -2, r.hi = 2;
    if (d.kind == NT_VARIANCE_SCALING) {
        static const uint8_t distribution[] = { NTI_RANDOM_TRUNCATED_NORMAL, NTI_RANDOM_NORMAL, NTI_RANDOM_UNIFORM };
        if ((unsigned)d.mode > NT_FAN_GEO_AVG || (unsigned)d.distribution > NT_DIST_UNIFORM) return NT_ERROR_ARGUMENT;
        r.mode = d.mode, r.distribution = (nti_random_kind)distribution[d.distribution];
    }
    if (r.kind == NTI_INIT_VARIANCE_SCALING) {
        const nt_axes *lists[3];
        uint32_t *masks[3];
        lists[0] = &d.in_axes, lists[1] = &d.out_axes, lists[2] = &d.batch_axes;
        masks[0] = &r.in_axes, masks[1] = &r.out_axes, masks[2] = &r.batch_axes;
        if (shape.rank < 2 && !(d.in_axes.count && d.out_axes.count)) return NT_ERROR_SHAPE;
        for (int k = 0; k < 3; k++) {
            if (lists[k]->count < 0 || lists[k]->count > NT_MAX_RANK) return NT_ERROR_ARGUMENT;
            for (int a = 0; a < lists[k]->count; a++) {
                int axis = lists[k]->axis[a] < 0 ? lists[k]->axis[a] + shape.rank : lists[k]->axis[a];
                if (axis < 0 || axis >= shape.rank) return NT_ERROR_ARGUMENT;
                *masks[k] |= (uint32_t)1 << axis;
            }
            if (!lists[k]->count && k < 2) *masks[k] = (uint32_t)1 << (shape.rank - 2 + k);
        }
    }
    if (r.kind == NTI_INIT_ORTHOGONAL && shape.rank < 2) return NT_ERROR_SHAPE;
    // the kernels of the baseline, whatever the tape runs on: initial parameters are then the same on every machine
    nti_random_isa isa;
    for (int k = 0; k < 2; k++) isa.math[k] = nti_isas[0].math[k], isa.random[k] = nti_isas[0].random[k];
    nti_initialize(&isa, &r, key, &shape, dtype, 0, n, data);
    return NT_OK;
}
// Loops -----------------------------------------------------------------------------------------------------------------

static int nti_infer_map_index(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    (void)n, (void)shape;
    *dtype = NT_I32;
    return 1;
}

static int nti_infer_map_slice(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *x = &n->in[0]->pub;
    long long count = (long long)n->in[1]->i[1];
    if (!x->rank || x->shape[0] != count) return nti_wrong(n, NT_ERROR_SHAPE, "the first axis is not %lld, the count of the map", count);
    *shape = nt_shape_make(x->rank - 1, x->shape + 1), *dtype = x->dtype;
    return 1;
}

// The operand of a result belongs to the body itself: not to that of a map inside of it.
static int nti_infer_map_sum(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    *shape = nt_shape_of(&n->in[0]->pub), *dtype = n->in[0]->pub.dtype;
    if (n->in[0]->loop != n->in[1]->loop) return nti_wrong(n, NT_ERROR_STATE, "the value belongs to the body of a map inside of this one");
    return *dtype != NT_BOOL ? nti_dtype_allowed(n, *dtype) : nti_wrong(n, NT_ERROR_DTYPE, "not defined for bool; nt_cast it");
}

static int nti_infer_map_stack(nti_node *n, nt_shape *shape, nt_dtype *dtype) {
    const nt_tensor *y = &n->in[0]->pub;
    *dtype = y->dtype, shape->rank = y->rank + 1, shape->size[0] = n->in[1]->i[1];
    if (n->in[0]->loop != n->in[1]->loop) return nti_wrong(n, NT_ERROR_STATE, "the value belongs to the body of a map inside of this one");
    for (int k = 0; k < y->rank && k + 1 < NT_MAX_RANK; k++) shape->size[k + 1] = y->shape[k];
    return 1;
}

// The index of a map that has just begun.
static nt_tensor *nti_map_index(nt_map *m) {
    int64_t i[3];
    i[0] = (int64_t)m->serial, i[1] = m->count, i[2] = m->depth;
    nt_tensor *x = nti_record(m->tape, NTI_OP_MAP_INDEX, NULL, 0, i, 3, NULL, 0);
    if (x) nti_n(x)->loop = m;
    return x;
}

NT_API nt_map *nt_map_begin(nt_tape *t, int64_t count, const nt_map_desc *desc) {
    if (!t || t->sticky) return NULL;
    int depth = t->open ? t->open->depth + 1 : 0;
    int64_t chunk = desc && desc->chunk ? desc->chunk : 1;
    if (count < 1 || count > INT32_MAX || chunk < 1) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "nt_map_begin: the count is %lld and the chunk %lld; both are at least 1, the count below 2^31",
                   (long long)count, (long long)chunk);
        return NULL;
    }
    if (depth >= NTI_MAX_LOOPS) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "nt_map_begin: maps nest at most %d deep", NTI_MAX_LOOPS);
        return NULL;
    }
    nt_map *m = (nt_map *)nti_low(t, sizeof *m);
    if (!m) { nti_no_room(t, "nt_map_begin"); return NULL; }
    memset(m, 0, sizeof *m);
    m->tape = t, m->count = count, m->chunk = chunk < count ? chunk : count, m->depth = depth, m->parent = t->open, m->open = 1;
    m->serial = ++t->serial, m->index = nti_map_index(m);
    if (!m->index) return NULL;
    t->open = m;
    return m;
}

NT_API void nt_map_end(nt_map *m) {
    if (!m || m->tape->sticky || !m->open) return;
    if (m->tape->open != m) {
        nti_sticky(m->tape, NT_ERROR_STATE, "nt_map_end: a map that was begun in this one has not ended");
        return;
    }
    m->open = 0, m->tape->open = m->parent;
}

NT_API nt_tensor *nt_map_index(nt_map *m) { return m ? m->index : NULL; }

NT_API nt_tensor *nt_map_slice(nt_map *m, nt_tensor *x) {
    if (!m || !nti_alive(x)) return NULL;
    if (!nti_loop_within(nti_n(x)->loop, m)) return nti_record2(NTI_OP_MAP_SLICE, x, m->index);
    if (!x->rank || x->shape[0] != m->count) return nti_record2(NTI_OP_MAP_SLICE, x, m->index); // the error is worded there
    return nt_gather(x, m->index, 0); // x changes with the index itself
}

// A result of m: the row's `after` stands while the map is open.
static nt_tensor *nti_map_result(int op, nt_map *m, nt_tensor *y) {
    nt_tensor *r = nti_record2(op, y, m->index);
    if (r && m->open) nti_n(r)->after = m;
    return r;
}

NT_API nt_tensor *nt_map_sum(nt_map *m, nt_tensor *y) {
    if (!m || !nti_alive(y)) return NULL;
    if (!nti_loop_within(nti_n(y)->loop, m)) return nt_scale(y, (double)m->count); // the same in every iteration
    return nti_map_result(NTI_OP_MAP_SUM, m, y);
}

NT_API nt_tensor *nt_map_mean(nt_map *m, nt_tensor *y) {
    if (!m || !nti_alive(y)) return NULL;
    if (!nti_is_float(y->dtype)) {
        nti_sticky(m->tape, NT_ERROR_DTYPE, "nt_map_mean: %v; a mean is defined for f32 and f64", y);
        return NULL;
    }
    return nti_loop_within(nti_n(y)->loop, m) ? nt_scale(nt_map_sum(m, y), 1.0 / (double)m->count) : y;
}

NT_API nt_tensor *nt_map_stack(nt_map *m, nt_tensor *y) {
    if (!m || !nti_alive(y)) return NULL;
    if (nti_loop_within(nti_n(y)->loop, m)) return nti_map_result(NTI_OP_MAP_STACK, m, y);
    nt_shape shape = nt_shape_of(y);
    for (int a = shape.rank++; a > 0; a--)
        if (a < NT_MAX_RANK) shape.size[a] = shape.size[a - 1];
    shape.size[0] = m->count;
    return nt_broadcast(y, shape);
}
// >>rules
// ---------------------------------------------------------------------------------------------------------------------
// Derivatives, written in public operations, so that they can be differentiated again. A NULL tangent is zero; a NULL
// result is zero (or a recorded error). y is the recorded result, x its operands.
// ---------------------------------------------------------------------------------------------------------------------

static int nti_no_derivative(nti_node *n) {
    nti_wrong(n, NT_ERROR_DERIVATIVE, "this operation has no derivative; nt_stop_gradient makes it a constant");
    return 0;
}

// Generic rules ------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sum_of(nt_tensor *x, nt_tensor *y) { return !x ? y : !y ? x : nt_add(x, y); }

static nt_tensor *nti_again(nt_tensor *y, nt_tensor *const *in) { // the same operation on other operands
    const nti_node *n = nti_n(y);
    return nti_record(y->tape, n->op, in, n->inputs, n->i, n->ni, n->d, n->nd);
}

// Linear in each marked operand: the sum of the operation with each operand replaced by its tangent.
static nt_tensor *nti_jvp_linear(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const nti_node *n = nti_n(y);
    nt_tensor *in[NTI_FEW], *sum = NULL;
    for (int k = 0; k < n->inputs; k++) {
        if (!t[k] || !(nti_row_of(n->op)->linear >> k & 1)) continue;
        for (int j = 0; j < n->inputs; j++) in[j] = j == k ? t[k] : x[j];
        sum = nti_sum_of(sum, nti_again(y, in));
    }
    return sum;
}

// Linear in the marked operands taken together: the operation on all tangents. n operands, so the list lies on the tape.
static nt_tensor *nti_jvp_joint(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const nti_node *n = nti_n(y);
    nt_tensor **in = (nt_tensor **)nti_low(y->tape, n->inputs * sizeof *in);
    if (!in) return nti_record_memory(y->tape, n->op);
    for (int k = 0; k < n->inputs; k++) {
        int linear = n->inputs > 31 || (nti_row_of(n->op)->linear >> k & 1);
        in[k] = !linear ? x[k] : t[k] ? t[k] : nt_full_like(x[k], 0);
    }
    return nti_again(y, in);
}

static nt_tensor *nti_jvp_partial(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const nti_node *n = nti_n(y);
    nt_tensor *sum = NULL;
    for (int k = 0; k < n->inputs; k++)
        if (t[k]) {
            nt_tensor *p = nti_row_of(n->op)->partial(y, x, k);
            if (p) sum = nti_sum_of(sum, nt_mul(t[k], p));
        }
    return sum;
}

static nt_tensor *nti_vjp_partial(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    nt_tensor *p = nti_row_of(nti_n(y)->op)->partial(y, x, k);
    return p ? nt_mul(g, p) : NULL;
}

// Operands without the batch axis repeat along it.
static nt_tensor *nti_spread_batch(nt_tensor *x, int batched, int64_t size) {
    if (batched || !x) return x;
    nt_shape wide = nt_shape_of(x);
    for (int a = wide.rank++; a > 0; a--) wide.size[a] = wide.size[a - 1];
    wide.size[0] = size;
    return wide.rank > NT_MAX_RANK ? nt_reshape(x, wide) : nt_broadcast(x, wide); // too many axes: reshape says so
}

static nt_tensor *nti_vmap_map(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    nt_tensor *in[3];
    for (int k = 0; k < nti_n(y)->inputs; k++) in[k] = nti_spread_batch(x[k], batched[k], size);
    return nti_again(y, in);
}

// What a decomposition gives, for rules that know a part of the derivative by themselves (in >>autodiff).
static nt_tensor *nti_jvp_through(nt_tensor *y, nt_tensor **x, nt_tensor **t);
static nt_tensor *nti_vjp_through(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k);

// Linear in the marked operands; the others go through the decomposition.
static nt_tensor *nti_jvp_partly(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    nt_tensor *rest[NTI_FEW];
    int any = 0;
    for (int k = 0; k < nti_n(y)->inputs; k++) {
        rest[k] = nti_row_of(nti_n(y)->op)->linear >> k & 1 ? NULL : t[k];
        any |= rest[k] != NULL;
    }
    return nti_sum_of(nti_jvp_linear(y, x, t), any ? nti_jvp_through(y, x, rest) : NULL);
}

static nt_tensor *nti_jvp_same(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)y, (void)x; return t[0]; }
static nt_tensor *nti_vjp_same(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { (void)y, (void)x, (void)k; return g; }

// Elementwise -------------------------------------------------------------------------------------------------------------

#define NTI_PARTIAL(name) static nt_tensor *nti_d_##name(nt_tensor *y, nt_tensor **x, int k)
#define NTI_IGNORE (void)y, (void)x, (void)k
static nt_tensor *nti_one_minus(nt_tensor *x) { return nt_add_scalar(nt_neg(x), 1); }
static nt_tensor *nti_where(nt_tensor *condition, double yes, double no, nt_tensor *like) {
    return nt_select(condition, nt_full_like(like, yes), nt_full_like(like, no));
}
static nt_tensor *nti_zero_like(nt_tensor *x) { return nt_full_like(x, 0); }

static nt_tensor *nti_vjp_neg(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nt_neg(g); }
static nt_tensor *nti_vjp_scale(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nt_scale(g, nti_n(y)->d[0]); }
NTI_PARTIAL(abs) { NTI_IGNORE; return nti_where(nt_greater_equal(x[0], nti_zero_like(x[0])), 1, -1, x[0]); }
NTI_PARTIAL(square) { NTI_IGNORE; return nt_scale(x[0], 2); }
NTI_PARTIAL(reciprocal) { NTI_IGNORE; return nt_neg(nt_square(y)); }
NTI_PARTIAL(sqrt) { NTI_IGNORE; return nt_scale(nt_reciprocal(y), 0.5); }
NTI_PARTIAL(rsqrt) { NTI_IGNORE; return nt_scale(nt_mul(y, nt_square(y)), -0.5); } // of y alone, whose derivatives are polynomials in y
NTI_PARTIAL(cbrt) { NTI_IGNORE; return nt_scale(nt_pow_scalar(y, -2), 1.0 / 3); }
NTI_PARTIAL(exp) { NTI_IGNORE; return y; }
NTI_PARTIAL(exp2) { NTI_IGNORE; return nt_scale(y, 0.69314718055994530942); }
NTI_PARTIAL(expm1) { NTI_IGNORE; return nt_add_scalar(y, 1); }
NTI_PARTIAL(log) { NTI_IGNORE; return nt_reciprocal(x[0]); }
NTI_PARTIAL(log2) { NTI_IGNORE; return nt_reciprocal(nt_scale(x[0], 0.69314718055994530942)); }
NTI_PARTIAL(log1p) { NTI_IGNORE; return nt_reciprocal(nt_add_scalar(x[0], 1)); }
NTI_PARTIAL(sin) { NTI_IGNORE; return nt_cos(x[0]); }
NTI_PARTIAL(cos) { NTI_IGNORE; return nt_neg(nt_sin(x[0])); }
NTI_PARTIAL(tan) { NTI_IGNORE; return nt_add_scalar(nt_square(y), 1); }
NTI_PARTIAL(asin) { NTI_IGNORE; return nt_rsqrt(nti_one_minus(nt_square(x[0]))); }
NTI_PARTIAL(acos) { NTI_IGNORE; return nt_neg(nt_rsqrt(nti_one_minus(nt_square(x[0])))); }
NTI_PARTIAL(atan) { NTI_IGNORE; return nt_reciprocal(nt_add_scalar(nt_square(x[0]), 1)); }
NTI_PARTIAL(sinh) { NTI_IGNORE; return nt_cosh(x[0]); }
NTI_PARTIAL(cosh) { NTI_IGNORE; return nt_sinh(x[0]); }
NTI_PARTIAL(tanh) { NTI_IGNORE; return nti_one_minus(nt_square(y)); }
NTI_PARTIAL(asinh) { NTI_IGNORE; return nt_rsqrt(nt_add_scalar(nt_square(x[0]), 1)); }
NTI_PARTIAL(acosh) { NTI_IGNORE; return nt_rsqrt(nt_mul(nt_add_scalar(x[0], -1), nt_add_scalar(x[0], 1))); }
NTI_PARTIAL(atanh) { NTI_IGNORE; return nt_reciprocal(nt_mul(nti_one_minus(x[0]), nt_add_scalar(x[0], 1))); }
NTI_PARTIAL(erf) { NTI_IGNORE; return nt_scale(nt_exp(nt_neg(nt_square(x[0]))), 1.1283791670955125739); }
NTI_PARTIAL(erfc) { NTI_IGNORE; return nt_scale(nt_exp(nt_neg(nt_square(x[0]))), -1.1283791670955125739); }
NTI_PARTIAL(erf_inv) { NTI_IGNORE; return nt_scale(nt_exp(nt_square(y)), 0.88622692545275801365); }
NTI_PARTIAL(lgamma) { NTI_IGNORE; return nt_digamma(x[0]); }
NTI_PARTIAL(polygamma) { NTI_IGNORE; return nt_polygamma(x[0], (int)nti_n(y)->d[0] + 1); }
NTI_PARTIAL(sigmoid) { NTI_IGNORE; return nt_mul(y, nti_one_minus(y)); }
NTI_PARTIAL(log_sigmoid) { NTI_IGNORE; return nt_sigmoid(nt_neg(x[0])); }
NTI_PARTIAL(softplus) { NTI_IGNORE; return nt_sigmoid(x[0]); }
NTI_PARTIAL(leaky_relu) { NTI_IGNORE; return nti_where(nt_greater_equal(x[0], nti_zero_like(x[0])), 1, nti_n(y)->d[0], x[0]); }
NTI_PARTIAL(elu) {
    NTI_IGNORE;
    return nt_select(nt_greater(x[0], nti_zero_like(x[0])), nt_full_like(x[0], 1), nt_add_scalar(y, nti_n(y)->d[0]));
}
NTI_PARTIAL(gelu) { NTI_IGNORE; return nti_record1(NTI_OP_GELU_GRAD, x[0]); }
NTI_PARTIAL(gelu_tanh) { NTI_IGNORE; return nti_record1(NTI_OP_GELU_TANH_GRAD, x[0]); }
NTI_PARTIAL(silu) { NTI_IGNORE; return nti_record1(NTI_OP_SILU_GRAD, x[0]); }

NTI_PARTIAL(gelu_grad) { // phi(x) (2 - x^2)
    NTI_IGNORE;
    nt_tensor *square = nt_square(x[0]);
    return nt_mul(nt_scale(nt_exp(nt_scale(square, -0.5)), 0.39894228040143267794), nt_add_scalar(nt_neg(square), 2));
}

NTI_PARTIAL(gelu_tanh_grad) { // with u = c (x + a x^3) and w = 1 - tanh(u)^2: w (u' + x u'' / 2 - x u'^2 tanh(u))
    NTI_IGNORE;
    const double c = 0.79788456080286535588, a = 0.044715;
    nt_tensor *square = nt_square(x[0]), *u1 = nt_scale(nt_add_scalar(nt_scale(square, 3 * a), 1), c);
    nt_tensor *h = nt_tanh(nt_scale(nt_mul(x[0], nt_add_scalar(nt_scale(square, a), 1)), c)), *w = nti_one_minus(nt_square(h));
    nt_tensor *curve = nt_sub(nt_scale(square, 3 * a * c), nt_mul(nt_mul(x[0], nt_square(u1)), h));
    return nt_mul(w, nt_add(u1, curve));
}

NTI_PARTIAL(silu_grad) { // s (1 - s) (2 + x (1 - 2 s))
    NTI_IGNORE;
    nt_tensor *s = nt_sigmoid(x[0]);
    return nt_mul(nt_mul(s, nti_one_minus(s)), nt_add_scalar(nt_mul(x[0], nti_one_minus(nt_scale(s, 2))), 2));
}

NTI_PARTIAL(pow_scalar) {
    NTI_IGNORE;
    double p = nti_n(y)->d[0];
    return p == 0 ? NULL : nt_scale(nt_pow_scalar(x[0], p - 1), p);
}

NTI_PARTIAL(clamp) {
    NTI_IGNORE;
    const double *d = nti_n(y)->d;
    nt_tensor *low = nt_full_like(y, d[0]), *high = nt_full_like(y, d[1]); // shared at the ends, as by maximum and minimum
    nt_tensor *end = nti_where(nt_logical_or(nt_equal(x[0], low), nt_equal(x[0], high)), 0.5, 0, y);
    return nt_select(nt_logical_and(nt_greater(x[0], low), nt_less(x[0], high)), nt_full_like(y, 1), end);
}

static nt_tensor *nti_relu_mask(nt_tensor *y, nt_tensor *g) { return nti_record2(NTI_OP_RELU_GRAD, y, g); } // needs the output only
static nt_tensor *nti_jvp_relu(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)x; return nti_relu_mask(y, t[0]); }
static nt_tensor *nti_vjp_relu(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nti_relu_mask(y, g); }
static nt_tensor *nti_vjp_relu_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return k ? nti_relu_mask(x[0], g) : NULL;
}

static nt_tensor *nti_jvp_cast(nt_tensor *y, nt_tensor **x, nt_tensor **t) { // to a number of another kind: piecewise constant
    (void)x;
    if (nti_is_float(y->dtype)) return nt_cast(t[0], y->dtype);
    if (nti_dtypes[y->dtype].floating) nti_no_derivative(nti_n(y)); // a storage dtype: there is no tangent of it to compute with
    return NULL;
}
static nt_tensor *nti_vjp_cast(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nt_cast(g, x[0]->dtype); }

static nt_tensor *nti_jvp_add(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)y, (void)x; return nti_sum_of(t[0], t[1]); }
static nt_tensor *nti_jvp_sub(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    (void)y, (void)x;
    return !t[1] ? t[0] : t[0] ? nt_sub(t[0], t[1]) : nt_neg(t[1]);
}
static nt_tensor *nti_vjp_sub(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return k ? nt_neg(g) : g; }
static nt_tensor *nti_vjp_mul(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nt_mul(g, x[1 - k]); }
NTI_PARTIAL(div) { // products of y and 1 / x[1], and so are all further derivatives
    NTI_IGNORE;
    nt_tensor *r = nt_reciprocal(x[1]);
    return k ? nt_neg(nt_mul(y, r)) : r;
}

NTI_PARTIAL(pow) { // at y = 0 the first partial is 0 for every x; at x = 0 the logarithm is taken as that of 1, as JAX does
    NTI_IGNORE;
    if (k) return nt_mul(nt_log(nt_select(nt_equal(x[0], nti_zero_like(y)), nt_full_like(y, 1), x[0])), y);
    return nt_mul(x[1], nt_pow(x[0], nt_select(nt_equal(x[1], nti_zero_like(y)), nt_full_like(y, 1), nt_add_scalar(x[1], -1))));
}

static nt_tensor *nti_extreme_share(nt_tensor *winner, nt_tensor *a, nt_tensor *b) {
    return nt_select(winner, nt_full_like(a, 1), nti_where(nt_equal(a, b), 0.5, 0, a));
}
NTI_PARTIAL(maximum) { NTI_IGNORE; return nti_extreme_share(nt_greater(x[k], x[1 - k]), x[0], x[1]); }
NTI_PARTIAL(minimum) { NTI_IGNORE; return nti_extreme_share(nt_less(x[k], x[1 - k]), x[0], x[1]); }

NTI_PARTIAL(atan2) {
    NTI_IGNORE;
    nt_tensor *r = nt_add(nt_square(x[0]), nt_square(x[1]));
    return k ? nt_neg(nt_div(x[0], r)) : nt_div(x[1], r);
}

NTI_PARTIAL(hypot) { NTI_IGNORE; return nt_div(x[k], y); }
NTI_PARTIAL(logaddexp) { NTI_IGNORE; return nt_sigmoid(nt_sub(x[k], x[1 - k])); }
NTI_PARTIAL(copysign) {
    NTI_IGNORE;
    return k ? NULL : nt_mul(nt_copysign(nt_full_like(y, 1), x[0]), nt_copysign(nt_full_like(y, 1), x[1]));
}
NTI_PARTIAL(rem) { NTI_IGNORE; return k ? nt_neg(nt_trunc(nt_div(x[0], x[1]))) : nt_full_like(y, 1); }
NTI_PARTIAL(mod) { NTI_IGNORE; return k ? nt_neg(nt_floor(nt_div(x[0], x[1]))) : nt_full_like(y, 1); }

static nt_tensor *nti_jvp_select(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    return nt_select(x[0], t[1] ? t[1] : nti_zero_like(y), t[2] ? t[2] : nti_zero_like(y));
}

static nt_tensor *nti_vjp_select(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k == 0 ? NULL : k == 1 ? nt_select(x[0], g, nti_zero_like(y)) : nt_select(x[0], nti_zero_like(y), g);
}

// Products ------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_vjp_matmul(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // dX = G Y^T, dY = X^T G
    (void)y;
    nt_tensor *other = nt_swap_axes(x[1 - k], -1, -2);
    return k ? nti_record_matmul(other, g) : nti_record_matmul(g, other);
}

static nt_tensor *nti_record_conv(nt_tensor *x, nt_tensor *w, const int64_t *i) {
    nt_tensor *in[2];
    in[0] = x, in[1] = w;
    return x && w ? nti_record(x->tape, NTI_OP_CONV, in, 2, i, NTI_CONV_HEAD + (int)i[1] * NTI_CONV_AXIS, NULL, 0) : NULL;
}

// The three convolutions are the three transposes of one trilinear form of x, w and g: each derivative is another of them.
static nt_tensor *nti_vjp_conv(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    return k ? nti_record_conv_back(NTI_OP_CONV_FILTER, x[0], g, i, x[1]->shape)
             : nti_record_conv_back(NTI_OP_CONV_INPUT, g, x[1], i, x[0]->shape);
}

static nt_tensor *nti_vjp_conv_input(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    return k ? nti_record_conv_back(NTI_OP_CONV_FILTER, g, x[0], i, x[1]->shape) : nti_record_conv(g, x[1], i);
}

static nt_tensor *nti_vjp_conv_filter(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    return k ? nti_record_conv(x[0], g, i) : nti_record_conv_back(NTI_OP_CONV_INPUT, x[1], g, i, x[0]->shape);
}

// Pooling: the maximum's position is found again from x by each of its two derivatives, which are each other's transpose.
static nt_tensor *nti_jvp_max_pool(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    return nti_record_pool_grad(NTI_OP_MAX_POOL_JVP, x[0], t[0], nti_n(y)->i, x[0]->shape);
}
static nt_tensor *nti_vjp_max_pool(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nti_record_pool_grad(NTI_OP_MAX_POOL_GRAD, x[0], g, nti_n(y)->i, x[0]->shape);
}
static nt_tensor *nti_vjp_max_pool_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? nti_record_pool_grad(NTI_OP_MAX_POOL_JVP, x[0], g, nti_n(y)->i, x[0]->shape) : NULL;
}
static nt_tensor *nti_vjp_max_pool_jvp(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? nti_record_pool_grad(NTI_OP_MAX_POOL_GRAD, x[0], g, nti_n(y)->i, x[0]->shape) : NULL;
}
static nt_tensor *nti_vjp_sum_pool(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nti_record_pool_grad(NTI_OP_SUM_POOL_GRAD, NULL, g, nti_n(y)->i, x[0]->shape);
}

static nt_tensor *nti_vjp_sum_pool_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    const int64_t *i = nti_n(y)->i;
    return nti_record(y->tape, NTI_OP_SUM_POOL, &g, 1, i, NTI_POOL_HEAD + (int)i[1] * NTI_CONV_AXIS, NULL, 0);
}

// Reductions ------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_spread(nt_tensor *y, nt_tensor *like, int64_t mask) { // a reduced value back to the shape of its operand
    nt_tensor *kept = nti_restore_axes(y, like, mask);
    return kept ? nt_broadcast(kept, nt_shape_of(like)) : NULL;
}

static nt_tensor *nti_vjp_sum(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nti_spread(g, x[0], nti_n(y)->i[1]); }

// Equal maxima share: mask / count.
static nt_tensor *nti_extreme_mask(nt_tensor *y, nt_tensor *x, int64_t mask) {
    nt_tensor *hit = nti_where(nt_equal(x, nti_spread(y, x, mask)), 1, 0, x);
    return nt_div(hit, nti_spread(nti_record_reduce(NTI_OP_SUM, hit, mask), x, mask));
}

static nt_tensor *nti_jvp_extreme(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    int64_t mask = nti_n(y)->i[1];
    return nti_record_reduce(NTI_OP_SUM, nt_mul(t[0], nti_extreme_mask(y, x[0], mask)), mask);
}

static nt_tensor *nti_vjp_extreme(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    int64_t mask = nti_n(y)->i[1];
    return nt_mul(nti_spread(g, x[0], mask), nti_extreme_mask(y, x[0], mask));
}

// A product as a tree of multiplications, so that zeros keep right derivatives.
static nt_tensor *nti_decompose_prod(nt_tensor *y, nt_tensor **x) {
    int64_t mask = nti_n(y)->i[1], n = 1;
    nt_axes order = nti_all_axes(x[0]);
    nt_shape shape;
    int count = 0;
    memset(&shape, 0, sizeof shape);
    for (int k = 0; k < x[0]->rank; k++)
        if (!(mask >> k & 1)) order.axis[count++] = k, shape.size[shape.rank++] = x[0]->shape[k];
    for (int k = 0; k < x[0]->rank; k++)
        if (mask >> k & 1) order.axis[count++] = k, n *= x[0]->shape[k];
    if (!n) return nt_full_like(y, 1);
    if (shape.rank == NT_MAX_RANK) return x[0];
    shape.size[shape.rank++] = n;
    nt_tensor *p = nt_reshape(nt_transpose(x[0], order), shape);
    while (p && n > 1) { // the odd element goes on by itself
        int64_t half = n / 2;
        nt_tensor *q = nt_mul(nt_slice_axis(p, NT_LAST, 0, half), nt_slice_axis(p, NT_LAST, half, 2 * half));
        nt_tensor *pair[2];
        nt_params parts;
        pair[0] = q, pair[1] = n % 2 ? nt_slice_axis(p, NT_LAST, n - 1, n) : NULL;
        parts.count = 2, parts.items = pair;
        p = n % 2 ? nt_concat(parts, NT_LAST) : q;
        n = half + n % 2;
    }
    return p ? nt_reshape(p, nt_shape_of(y)) : NULL;
}

// Views ---------------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_vjp_reshape(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return nt_reshape(g, nt_shape_of(x[0])); }

static nt_tensor *nti_vjp_transpose(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    nt_axes inverse = nti_all_axes(y);
    for (int a = 0; a < y->rank; a++) inverse.axis[nti_n(y)->i[a]] = a;
    return nt_transpose(g, inverse);
}

static nt_tensor *nti_vjp_broadcast(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    int64_t mask = 0;
    int lead = y->rank - x[0]->rank;
    for (int a = 0; a < y->rank; a++)
        if (a < lead || x[0]->shape[a - lead] != y->shape[a]) mask |= (int64_t)1 << a;
    return nt_reshape(nti_record_reduce(NTI_OP_SUM, g, mask), nt_shape_of(x[0]));
}

static nt_tensor *nti_vjp_slice(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // zeros where the slice did not look
    NTI_IGNORE;
    int64_t before[NT_MAX_RANK], after[NT_MAX_RANK], inside[NT_MAX_RANK];
    const int64_t *i = nti_n(y)->i;
    int r = y->rank;
    for (int a = 0; a < r; a++) {
        int64_t reach = y->shape[a] ? (y->shape[a] - 1) * i[r + a] + 1 : 0;
        inside[a] = i[r + a] - 1, before[a] = i[a], after[a] = x[0]->shape[a] - i[a] - reach;
    }
    return nt_pad(g, before, after, inside, 0);
}

static nt_tensor *nti_jvp_pad(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    double zero = 0;
    (void)x;
    return nti_record(y->tape, NTI_OP_PAD, t, 1, nti_n(y)->i, nti_n(y)->ni, &zero, 1);
}

static nt_tensor *nti_vjp_pad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // undo the ends, then take every (interior + 1)-th
    NTI_IGNORE;
    int64_t before[NT_MAX_RANK], after[NT_MAX_RANK], start[NT_MAX_RANK], step[NT_MAX_RANK];
    const int64_t *i = nti_n(y)->i;
    for (int a = 0; a < y->rank; a++) before[a] = -i[3 * a], after[a] = -i[3 * a + 1], start[a] = 0, step[a] = i[3 * a + 2] + 1;
    return nti_record_slice(nt_pad(g, before, after, NULL, 0), start, step, x[0]->shape);
}

static nt_tensor *nti_vjp_concat(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    int axis = (int)nti_n(y)->i[0];
    int64_t from = 0;
    for (int j = 0; j < k; j++) from += x[j]->shape[axis];
    return nt_slice_axis(g, axis, from, from + x[k]->shape[axis]);
}

// An index that gather clips is clipped for its transpose as well.
static nt_tensor *nti_clipped(nt_tensor *index, int clip, int64_t size) { return clip ? nt_clamp(index, 0, (double)(size - 1)) : index; }

static nt_tensor *nti_vjp_gather(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    if (k) return NULL;
    return nti_record_scatter_add(nti_zero_like(x[0]), nti_clipped(x[1], (int)i[1], x[0]->shape[i[0]]), g, i[0]);
}

static nt_tensor *nti_vjp_scatter_add(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    int64_t i[2];
    nt_tensor *in[2];
    if (k < 2) return k ? NULL : g;
    i[0] = nti_n(y)->i[0], i[1] = 0, in[0] = g, in[1] = x[1];
    return nti_record(y->tape, NTI_OP_GATHER, in, 2, i, 2, NULL, 0);
}

static nt_tensor *nti_vjp_flip(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    nt_tensor *in[1];
    in[0] = g;
    return nti_again(y, in);
}

static nt_tensor *nti_vmap_flip(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    int64_t mask = nti_n(y)->i[0] << 1;
    (void)batched, (void)size;
    return nti_record(y->tape, NTI_OP_FLIP, x, 1, &mask, 1, NULL, 0);
}

// The rows whose first attribute is the one axis that they work along: any other axis may stand in front.
static nt_tensor *nti_vmap_axis(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    const nti_node *n = nti_n(y);
    nt_tensor *in[NTI_FEW];
    int64_t i[3];
    for (int k = 0; k < n->ni; k++) i[k] = n->i[k] + (k == 0);
    for (int k = 0; k < n->inputs; k++) in[k] = nti_spread_batch(x[k], batched[k], size);
    return nti_record(y->tape, n->op, in, n->inputs, i, n->ni, NULL, 0);
}

static nt_tensor *nti_vjp_take_along(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? NULL : nti_record_along(nti_zero_like(x[0]), x[1], g, nti_n(y)->i[0]);
}

static nt_tensor *nti_vjp_scatter_along(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k == 0 ? g : k == 1 ? NULL : nti_record_along(g, x[1], NULL, nti_n(y)->i[0]);
}

static nt_tensor *nti_vjp_dynamic_slice(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? NULL : nti_record_dynamic_update(nti_zero_like(x[0]), g, x[1], nti_n(y)->i[0]);
}

static nt_tensor *nti_vjp_dynamic_update(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    int64_t lead = nti_n(y)->i[0];
    if (k == 0) return nti_record_dynamic_update(g, nti_zero_like(x[1]), x[2], lead);
    return k == 1 ? nti_record_dynamic_slice(g, x[2], (int)lead, x[1]->shape) : NULL;
}

// The batch counts places if the starts differ from place to place; else it is an axis more whose start is 0.
static nt_tensor *nti_vmap_dynamic(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    const nti_node *n = nti_n(y);
    nt_tensor *in[3];
    int last = n->inputs - 1, lead = (int)n->i[0], own = lead == 0 && !batched[last];
    int64_t i[2 + NT_MAX_RANK], one = 1;
    for (int k = 0; k < n->inputs; k++) in[k] = nti_spread_batch(x[k], batched[k] || (own && k == last), size);
    if (own) {
        nt_tensor *part[2];
        nt_params starts;
        part[0] = nt_full(y->tape, NT_I32, nt_shape_make(1, &one), 0), part[1] = in[last];
        starts.count = 2, starts.items = part, in[last] = nt_concat(starts, 0);
    }
    i[0] = own ? 0 : lead + 1, i[1] = size;
    for (int k = 1; k < n->ni; k++) i[k + own] = n->i[k];
    return nti_record(y->tape, n->op, in, n->inputs, i, n->ni + (n->op == NTI_OP_DYNAMIC_SLICE && own), NULL, 0);
}

// Scans: with y[t] = a[t] y[t-1] + e[t] x[t] to first order, tangents and cotangents are linear scans, and those are closed under
// both: the tangent of one is another, the cotangent one from the other end.
static nt_tensor *nti_shifted(nt_tensor *x, int axis, int later, double fill) { // element t is x[t-1] (later) or x[t+1]
    int64_t before[NT_MAX_RANK] = { 0 }, after[NT_MAX_RANK] = { 0 };
    before[axis] = later ? 1 : -1, after[axis] = -before[axis];
    return nt_pad(x, before, after, NULL, fill);
}

static nt_tensor *nti_vjp_cumsum(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nt_cumsum(g, (int)nti_n(y)->i[0], !nti_n(y)->i[1]);
}

static nt_tensor *nti_jvp_linear_scan(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const int64_t *i = nti_n(y)->i;
    nt_tensor *inner = t[0] ? nt_mul(t[0], nti_shifted(y, (int)i[0], !i[1], 0)) : NULL;
    return nt_linear_scan(x[0], nti_sum_of(inner, t[1]), (int)i[0], (int)i[1]);
}

static nt_tensor *nti_scan_back(nt_tensor *a, nt_tensor *g, const int64_t *i) { // r[t] = g[t] + a[t+1] r[t+1]
    return nt_linear_scan(nti_shifted(a, (int)i[0], i[1] != 0, 0), g, (int)i[0], !i[1]);
}

static nt_tensor *nti_vjp_linear_scan(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    nt_tensor *r = nti_scan_back(x[0], g, i);
    return k ? r : nt_mul(r, nti_shifted(y, (int)i[0], !i[1], 0));
}

// a and e of a scan of x that gave y. Equal maxima share, as those of nt_maximum; the first element has no other to share with.
static void nti_scan_weights(nt_tensor *y, nt_tensor *x, nt_tensor **a, nt_tensor **e) {
    const nti_node *n = nti_n(y);
    int axis = (int)n->i[0];
    nt_shape line;
    nt_tensor *was = nti_shifted(y, axis, !n->i[1], n->op == NTI_OP_CUMPROD ? 1 : -HUGE_VAL);
    *a = x, *e = was;
    if (n->op == NTI_OP_CUMPROD) return;
    memset(&line, 0, sizeof line);
    line.rank = x->rank - axis, line.size[0] = x->shape[axis];
    for (int k = 1; k < line.rank; k++) line.size[k] = 1;
    nt_tensor *at = nt_iota(y->tape, NT_I32, line, 0), *first = at ? nt_equal(at, nt_full_like(at, n->i[1] ? (double)(line.size[0] - 1) : 0)) : NULL;
    if (n->op == NTI_OP_CUMMAX) *a = nti_extreme_share(nt_greater(was, x), was, x), *e = nti_extreme_share(nt_greater(x, was), x, was);
    else *a = nt_sigmoid(nt_sub(was, x)), *e = nt_sigmoid(nt_sub(x, was));
    *e = nt_select(first, nt_full_like(x, 1), *e);
}

static nt_tensor *nti_jvp_scan(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    nt_tensor *a, *e;
    nti_scan_weights(y, x[0], &a, &e);
    return nt_linear_scan(a, nt_mul(e, t[0]), (int)nti_n(y)->i[0], (int)nti_n(y)->i[1]);
}

static nt_tensor *nti_vjp_scan(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    nt_tensor *a, *e;
    (void)k;
    nti_scan_weights(y, x[0], &a, &e);
    return nt_mul(e, nti_scan_back(a, g, nti_n(y)->i));
}

// Fused -------------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sum_last(nt_tensor *x) { return nt_sum_axes(x, nti_last_axis(), 1); }
static nt_tensor *nti_mean_last(nt_tensor *x) { return nt_mean_axes(x, nti_last_axis(), 1); }

// The Jacobian of softmax is symmetric: one kernel is jvp and vjp.
static nt_tensor *nti_jvp_softmax(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)x; return nti_record2(NTI_OP_SOFTMAX_GRAD, y, t[0]); }
static nt_tensor *nti_vjp_softmax(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nti_record2(NTI_OP_SOFTMAX_GRAD, y, g);
}
static nt_tensor *nti_vjp_softmax_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? nti_record2(NTI_OP_SOFTMAX_GRAD, x[0], g) : nti_vjp_through(y, x, g, k);
}

static nt_tensor *nti_vjp_log_softmax(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nti_record2(NTI_OP_LOG_SOFTMAX_GRAD, y, g);
}

static nt_tensor *nti_log_softmax_along(nt_tensor *y, nt_tensor *t) { return nt_sub(t, nti_sum_last(nt_mul(nt_exp(y), t))); }
static nt_tensor *nti_jvp_log_softmax(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)x; return nti_log_softmax_along(y, t[0]); }
static nt_tensor *nti_vjp_log_softmax_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? nti_log_softmax_along(x[0], g) : nti_vjp_through(y, x, g, k);
}

static nt_tensor *nti_decompose_log_softmax(nt_tensor *y, nt_tensor **x) {
    (void)y;
    nt_tensor *m = nt_stop_gradient(nt_max_axes(x[0], nti_last_axis(), 1)), *shifted = nt_sub(x[0], m);
    return nt_sub(shifted, nt_log(nti_sum_last(nt_exp(shifted))));
}

static nt_tensor *nti_decompose_softmax(nt_tensor *y, nt_tensor **x) {
    (void)y;
    nt_tensor *m = nt_stop_gradient(nt_max_axes(x[0], nti_last_axis(), 1)), *e = nt_exp(nt_sub(x[0], m));
    return nt_div(e, nti_sum_last(e));
}

static nt_tensor *nti_decompose_softmax_grad(nt_tensor *y, nt_tensor **x) {
    (void)y;
    return nt_mul(x[0], nt_sub(x[1], nti_sum_last(nt_mul(x[0], x[1]))));
}

static nt_tensor *nti_decompose_log_softmax_grad(nt_tensor *y, nt_tensor **x) {
    (void)y;
    return nt_sub(x[1], nt_mul(nt_exp(x[0]), nti_sum_last(x[1])));
}

// The smoothed target (1 - s) onehot + s / classes, and 1 where an example is not ignored, both as numbers.
static nt_tensor *nti_target(nt_tensor *y, nt_tensor *logits, nt_tensor *labels, nt_tensor **used) {
    const nti_node *n = nti_n(y);
    int64_t classes = logits->shape[logits->rank - 1];
    nt_tensor *wide = nt_expand_dims(labels, NT_LAST);
    nt_tensor *hit = nt_equal(nt_iota(y->tape, NT_I32, nt_shape_make(1, &classes), 0), wide);
    nt_tensor *ignored = nt_full(y->tape, NT_I32, nt_shape_of(labels), n->i[1] ? (double)n->i[0] : -1);
    nt_tensor *one = nt_full(y->tape, logits->dtype, nt_shape_of(labels), 1);
    *used = nt_select(nt_equal(labels, ignored), nt_scale(one, 0), one);
    if (!hit) return NULL;
    nt_tensor *like = nt_full_like(logits, 1);
    return nt_add_scalar(nt_select(hit, nt_scale(like, 1 - n->d[0]), nt_scale(like, 0)), n->d[0] / (double)(classes ? classes : 1));
}

static nt_tensor *nti_decompose_cross_entropy(nt_tensor *y, nt_tensor **x) {
    nt_tensor *used, *target = nti_target(y, x[0], x[1], &used);
    return nt_neg(nt_mul(used, nt_sum_axes(nt_mul(target, nt_log_softmax(x[0], NT_LAST)), nti_last_axis(), 0)));
}

static nt_tensor *nti_decompose_cross_entropy_grad(nt_tensor *y, nt_tensor **x) {
    nt_tensor *used, *target = nti_target(y, x[0], x[1], &used);
    return nt_mul(nt_expand_dims(nt_mul(x[2], used), NT_LAST), nt_sub(nt_softmax(x[0], NT_LAST), target));
}

static nt_tensor *nti_decompose_cross_entropy_jvp(nt_tensor *y, nt_tensor **x) {
    nt_tensor *used, *target = nti_target(y, x[0], x[1], &used);
    return nt_mul(used, nt_sum_axes(nt_mul(nt_sub(nt_softmax(x[0], NT_LAST), target), x[2]), nti_last_axis(), 0));
}

static nt_tensor *nti_jvp_cross_entropy(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    return t[0] ? nti_record_cross_entropy(NTI_OP_CROSS_ENTROPY_JVP, x[0], x[1], t[0], nti_n(y)->i, nti_n(y)->d) : NULL;
}

static nt_tensor *nti_vjp_cross_entropy(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? NULL : nti_record_cross_entropy(NTI_OP_CROSS_ENTROPY_GRAD, x[0], x[1], g, nti_n(y)->i, nti_n(y)->d);
}

// The two derivatives are each other's transpose in the last operand.
static nt_tensor *nti_vjp_cross_entropy_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (k < 2) return k ? NULL : nti_vjp_through(y, x, g, k);
    return nti_record_cross_entropy(NTI_OP_CROSS_ENTROPY_JVP, x[0], x[1], g, nti_n(y)->i, nti_n(y)->d);
}

static nt_tensor *nti_vjp_cross_entropy_jvp(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (k < 2) return k ? NULL : nti_vjp_through(y, x, g, k);
    return nti_record_cross_entropy(NTI_OP_CROSS_ENTROPY_GRAD, x[0], x[1], g, nti_n(y)->i, nti_n(y)->d);
}

// NORM(x, stats) stands for the normalised x as a function of x alone: its rules give the whole derivative and none for the
// statistics. Its Jacobian is symmetric.
static nt_tensor *nti_jvp_norm(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    return t[0] ? nti_record_norm(NTI_OP_NORM_GRAD, x[0], x[1], t[0], nti_n(y)->d[0]) : NULL;
}
static nt_tensor *nti_vjp_norm(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? NULL : nti_record_norm(NTI_OP_NORM_GRAD, x[0], x[1], g, nti_n(y)->d[0]);
}

static nt_tensor *nti_vjp_norm_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (k < 2) return k ? NULL : nti_vjp_through(y, x, g, k);
    return nti_record_norm(NTI_OP_NORM_GRAD, x[0], x[1], g, nti_n(y)->d[0]);
}

static nt_tensor *nti_decompose_norm(nt_tensor *y, nt_tensor **x) {
    nt_tensor *centred = nt_sub(x[0], nti_mean_last(x[0]));
    return nt_mul(centred, nt_rsqrt(nt_add_scalar(nti_mean_last(nt_square(centred)), nti_n(y)->d[0])));
}

static nt_tensor *nti_decompose_norm_grad(nt_tensor *y, nt_tensor **x) { // of x and the cotangent; the statistics are computed again
    nt_tensor *centred = nt_sub(x[0], nti_mean_last(x[0])), *r = nt_rsqrt(nt_add_scalar(nti_mean_last(nt_square(centred)), nti_n(y)->d[0]));
    nt_tensor *h = nt_mul(centred, r), *g = nt_sub(x[2], nti_mean_last(x[2]));
    return nt_mul(r, nt_sub(g, nt_mul(h, nti_mean_last(nt_mul(x[2], h)))));
}

// Attention. Its derivatives are linear in the tangents or in the cotangent, and each other's transpose in them.
static nt_tensor *nti_attention_mask(const nti_node *n, nt_tensor **x) { return n->i[2] ? x[n->inputs - 1] : NULL; }

// The derivative along tq, tk, tv (NULL: zero); or, with g, the cotangents of q, k and v in a row.
static nt_tensor *nti_attention_along(nt_tensor *y, nt_tensor **x, nt_tensor *tq, nt_tensor *tk, nt_tensor *tv) {
    nt_tensor *in[6] = { x[0], x[1], x[2], tq, tk, tv };
    const nti_node *n = nti_n(y);
    if (!tq && !tk && !tv) return NULL;
    return nti_record_attention(NTI_OP_ATTENTION_JVP, NTI_ATTEND_JVP, in, nti_attention_mask(n, x), (int)n->i[1], n->d[0]);
}

static nt_tensor *nti_attention_back(nt_tensor *y, nt_tensor **x, nt_tensor *g) {
    nt_tensor *in[6] = { x[0], x[1], x[2], g, NULL, NULL };
    const nti_node *n = nti_n(y);
    return nti_record_attention(NTI_OP_ATTENTION_GRAD, NTI_ATTEND_GRAD, in, nti_attention_mask(n, x), (int)n->i[1], n->d[0]);
}

// The part of the cotangents in a row that belongs to operand k: a view.
static nt_tensor *nti_attention_part(nt_tensor *row, nt_tensor **x, int k) {
    int64_t from = 0;
    for (int j = 0; j < k; j++) from += nt_size(x[j]);
    nt_tensor *part = row ? nt_slice_axis(row, 0, from, from + nt_size(x[k])) : NULL;
    return part ? nt_reshape(part, nt_shape_of(x[k])) : NULL;
}

static nt_tensor *nti_jvp_attention(nt_tensor *y, nt_tensor **x, nt_tensor **t) { return nti_attention_along(y, x, t[0], t[1], t[2]); }
static nt_tensor *nti_vjp_attention(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k < 3 ? nti_attention_part(nti_attention_back(y, x, g), x, k) : NULL;
}

static nt_tensor *nti_vjp_attention_grad(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (k != 3) return k < 3 ? nti_vjp_through(y, x, g, k) : NULL;
    return nti_attention_along(y, x, nti_attention_part(g, x, 0), nti_attention_part(g, x, 1), nti_attention_part(g, x, 2));
}

// Which of q, k and v operand k of the derivative along tangents is a tangent of.
static int nti_attention_primal(const nti_node *n, int k) {
    for (int j = 0, at = 3; j < 3; j++)
        if ((n->i[3] >> j & 1) && at++ == k) return j;
    return -1;
}

static nt_tensor *nti_vjp_attention_jvp(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    int of = nti_attention_primal(nti_n(y), k);
    if (of >= 0) return nti_attention_part(nti_attention_back(y, x, g), x, of);
    return k < 3 ? nti_vjp_through(y, x, g, k) : NULL;
}

static nt_tensor *nti_jvp_attention_jvp(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const nti_node *n = nti_n(y);
    nt_tensor *rest[NTI_FEW], *along[3] = { NULL, NULL, NULL };
    for (int k = 0; k < n->inputs; k++) {
        int of = nti_attention_primal(n, k);
        rest[k] = k < 3 ? t[k] : NULL;
        if (of >= 0) along[of] = t[k];
    }
    nt_tensor *linear = nti_attention_along(y, x, along[0], along[1], along[2]);
    return nti_sum_of(linear, rest[0] || rest[1] || rest[2] ? nti_jvp_through(y, x, rest) : NULL);
}

// The batch goes into the examples.
static nt_tensor *nti_vmap_attention(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    const nti_node *n = nti_n(y);
    nt_tensor *in[NTI_FEW];
    for (int k = 0; k < n->inputs; k++) {
        nt_tensor *wide = nti_spread_batch(x[k], batched[k], size);
        if (!wide) return NULL;
        nt_shape shape = nt_shape_of(wide);
        shape.size[0] = size * shape.size[1];
        for (int a = 1; a + 1 < shape.rank; a++) shape.size[a] = shape.size[a + 1];
        shape.rank--, in[k] = nt_reshape(wide, shape);
    }
    nt_tensor *z = nti_again(y, in);
    if (!z) return NULL;
    nt_shape out = nt_shape_of(y);
    for (int a = out.rank++; a > 0; a--) out.size[a] = out.size[a - 1];
    out.size[0] = size;
    if (n->op != NTI_OP_ATTENTION_GRAD) return nt_reshape(z, out);
    nt_tensor *part[3];
    for (int k = 0; k < 3; k++) {
        nt_shape row = nt_shape_make(2, out.size);
        row.size[1] = size ? nt_size(in[k]) / size : nt_size(x[k]);
        nt_tensor *p = nti_attention_part(z, in, k);
        part[k] = p ? nt_reshape(p, row) : NULL;
    }
    return nt_concat(nti_list(part, 3), 1);
}

static nt_tensor *nti_heads_first(nt_tensor *x) { // (batch, heads, time, d), and back
    nt_axes order;
    order.count = 4, order.axis[0] = 0, order.axis[1] = 2, order.axis[2] = 1, order.axis[3] = 3;
    return nt_transpose(x, order);
}

static nt_tensor *nti_heads_times(nt_tensor *x, nt_tensor *y, int transposed) { // x y^T, or x y
    return nt_matmul(x, transposed ? nt_swap_axes(y, -2, -1) : y);
}

// softmax(scale q k^T) of operands with heads first
static nt_tensor *nti_attention_weights(nt_tensor *y, nt_tensor **x, nt_tensor *q, nt_tensor *k) {
    const nti_node *n = nti_n(y);
    nt_tensor *s = nt_scale(nti_heads_times(q, k, 1), n->d[0]), *mask = nti_attention_mask(n, x);
    if (!s) return NULL;
    nt_tensor *never = nt_full_like(s, -HUGE_VAL);
    nt_shape square = nt_shape_make(2, s->shape + 2);
    if (n->i[1]) s = nt_select(nt_less_equal(nt_iota(y->tape, NT_I32, square, 1), nt_iota(y->tape, NT_I32, square, 0)), s, never);
    return nt_softmax(mask ? nt_select(mask, s, never) : s, NT_LAST);
}

static nt_tensor *nti_decompose_attention(nt_tensor *y, nt_tensor **x) {
    nt_tensor *p = nti_attention_weights(y, x, nti_heads_first(x[0]), nti_heads_first(x[1]));
    return nti_heads_first(nti_heads_times(p, nti_heads_first(x[2]), 0));
}

// The derivative of softmax: p (t - sum of p t).
static nt_tensor *nti_attention_slope(nt_tensor *p, nt_tensor *t) { return nt_mul(p, nt_sub(t, nti_sum_last(nt_mul(p, t)))); }

static nt_tensor *nti_decompose_attention_jvp(nt_tensor *y, nt_tensor **x) {
    const nti_node *n = nti_n(y);
    nt_tensor *at[3], *t[3] = { NULL, NULL, NULL }, *s = NULL;
    for (int k = 0; k < 3; k++) at[k] = nti_heads_first(x[k]);
    for (int k = 3; k < n->inputs; k++)
        if (nti_attention_primal(n, k) >= 0) t[nti_attention_primal(n, k)] = nti_heads_first(x[k]);
    nt_tensor *p = nti_attention_weights(y, x, at[0], at[1]);
    if (t[0]) s = nti_heads_times(t[0], at[1], 1);
    if (t[1]) s = nti_sum_of(s, nti_heads_times(at[0], t[1], 1));
    nt_tensor *out = s ? nti_heads_times(nti_attention_slope(p, nt_scale(s, n->d[0])), at[2], 0) : NULL;
    return nti_heads_first(t[2] ? nti_sum_of(out, nti_heads_times(p, t[2], 0)) : out);
}

static nt_tensor *nti_flat_heads(nt_tensor *x) { return x ? nt_flatten(nti_heads_first(x), 0) : NULL; }

static nt_tensor *nti_decompose_attention_grad(nt_tensor *y, nt_tensor **x) {
    nt_tensor *q = nti_heads_first(x[0]), *k = nti_heads_first(x[1]), *v = nti_heads_first(x[2]), *g = nti_heads_first(x[3]);
    nt_tensor *p = nti_attention_weights(y, x, q, k), *part[3];
    nt_tensor *s = nt_scale(nti_attention_slope(p, nti_heads_times(g, v, 1)), nti_n(y)->d[0]);
    part[0] = nti_flat_heads(nti_heads_times(s, k, 0));
    part[1] = nti_flat_heads(nti_heads_times(nt_swap_axes(s, -2, -1), q, 0));
    part[2] = nti_flat_heads(nti_heads_times(nt_swap_axes(p, -2, -1), g, 0));
    return nt_concat(nti_list(part, 3), 0);
}

// Loops ------------------------------------------------------------------------------------------------------------------
// The second operand of slice, sum and stack is the index of their map. A sum's derivative is a sum, and its cotangent is the
// same in every iteration; stack and slice are each other's transpose.

static nt_tensor *nti_jvp_map_result(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    nt_map *m = nti_n(x[1])->loop;
    return nti_n(y)->op == NTI_OP_MAP_SUM ? nt_map_sum(m, t[0]) : nt_map_stack(m, t[0]);
}

static nt_tensor *nti_vjp_map_sum(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { NTI_IGNORE; return g; }
static nt_tensor *nti_vjp_map_stack(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nt_map_slice(nti_n(x[1])->loop, g);
}
static nt_tensor *nti_vjp_map_slice(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    NTI_IGNORE;
    return nt_map_stack(nti_n(x[1])->loop, g);
}

static nt_tensor *nti_vmap_map_sum(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    (void)y, (void)batched, (void)size;
    return nt_map_sum(nti_n(x[1])->loop, x[0]);
}
static nt_tensor *nti_vmap_map_stack(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    (void)y, (void)batched, (void)size;
    return nt_swap_axes(nt_map_stack(nti_n(x[1])->loop, x[0]), 0, 1);
}
static nt_tensor *nti_vmap_map_slice(nt_tensor *y, nt_tensor **x, const uint8_t *batched, int64_t size) {
    (void)y, (void)batched, (void)size;
    return nt_map_slice(nti_n(x[1])->loop, nt_swap_axes(x[0], 0, 1));
}
// Linear algebra ------------------------------------------------------------------------------------------------------------------
// P below is the tangent (or what it is paired with) in the coordinates of the factors.

static nt_tensor *nti_half_lower(nt_tensor *x) { return nti_triangle(x, 0, 0.5); }

// dL = L half_lower(L^-1 dX L^-T)
static nt_tensor *nti_jvp_cholesky(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    (void)x;
    nt_tensor *p = nti_triangular(y, nti_triangular(y, nti_symmetric(t[0]), 0, 0, 0, 0), 1, 0, 1, 0);
    return nti_record_matmul(y, nti_half_lower(p));
}
static nt_tensor *nti_vjp_cholesky(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // L^-T half_lower(L^T G) L^-1, symmetrised
    NTI_IGNORE;
    nt_tensor *p = nti_half_lower(nti_record_matmul(nti_swap_last(y), g));
    return nti_symmetric(nti_triangular(y, nti_triangular(y, p, 0, 0, 1, 0), 1, 0, 0, 0));
}

// The solution with another right side; with a transposed.
static nt_tensor *nti_triangular_again(nt_tensor *y, nt_tensor *a, nt_tensor *b, int transpose) {
    const int64_t *i = nti_n(y)->i;
    return nti_triangular(a, b, (int)i[0], (int)i[1], (int)i[2] ^ transpose, (int)i[3]);
}
static nt_tensor *nti_read_triangle(nt_tensor *y, nt_tensor *a) { return nti_triangle(a, (int)nti_n(y)->i[1], nti_n(y)->i[3] ? 0 : 1); }

static nt_tensor *nti_jvp_triangular_solve(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    const int64_t *i = nti_n(y)->i;
    nt_tensor *da = t[0] ? nti_read_triangle(y, t[0]) : NULL, *b = t[1];
    if (da && i[2]) da = nti_swap_last(da);
    if (da) {
        nt_tensor *moved = i[0] ? nti_record_matmul(y, da) : nti_record_matmul(da, y);
        b = b ? nt_sub(b, moved) : nt_neg(moved);
    }
    return nti_triangular_again(y, x[0], b, 0);
}
static nt_tensor *nti_vjp_triangular_solve(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    const int64_t *i = nti_n(y)->i;
    nt_tensor *b = nti_triangular_again(y, x[0], g, 1), *yt = nti_swap_last(y), *bt = nti_swap_last(b);
    if (k) return b;
    nt_tensor *p = i[0] ? (i[2] ? nti_record_matmul(bt, y) : nti_record_matmul(yt, b)) : (i[2] ? nti_record_matmul(y, bt) : nti_record_matmul(b, yt));
    return nt_neg(nti_read_triangle(y, p));
}

// LU_SOLVE(a, factors, b) and DETERMINANT(a, factors) are functions of a: the factors have no derivative.
static nt_tensor *nti_jvp_lu_solve(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    int64_t transpose = nti_n(y)->i[0];
    nt_tensor *b = t[2];
    if (t[0]) {
        nt_tensor *moved = nti_record_matmul(transpose ? nti_swap_last(t[0]) : t[0], y);
        b = b ? nt_sub(b, moved) : nt_neg(moved);
    }
    return b ? nti_record_lu_solve(x[0], x[1], b, transpose) : NULL;
}
static nt_tensor *nti_vjp_lu_solve(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    int64_t transpose = nti_n(y)->i[0];
    nt_tensor *b = k == 1 ? NULL : nti_record_lu_solve(x[0], x[1], g, !transpose);
    if (k) return b;
    return nt_neg(transpose ? nti_record_matmul(y, nti_swap_last(b)) : nti_record_matmul(b, nti_swap_last(y)));
}

static nt_axes nti_last_two(void) {
    nt_axes a = nti_last_axis();
    a.count = 2, a.axis[1] = -2;
    return a;
}

static nt_tensor *nti_determinant_gradient(nt_tensor *y, nt_tensor **x, nt_tensor *g) { // shaped like a
    nt_tensor *inverse = nti_record_lu_solve(x[0], x[1], nti_identity_like(x[0]), 1);
    if (nti_n(y)->i[0] == NTI_DET) g = g ? nt_mul(g, y) : y;
    return g ? nt_mul(nt_expand_dims(nt_expand_dims(g, -1), -1), inverse) : inverse;
}
static nt_tensor *nti_jvp_determinant(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    if (!t[0] || nti_n(y)->i[0] == NTI_DET_SIGN) return NULL;
    return nt_sum_axes(nt_mul(nti_determinant_gradient(y, x, NULL), t[0]), nti_last_two(), 0);
}
static nt_tensor *nti_vjp_determinant(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k || nti_n(y)->i[0] == NTI_DET_SIGN ? NULL : nti_determinant_gradient(y, x, g);
}

// Eigenvalues and eigenvectors of x[1]; x[0] are the factors (or values alone).
static nt_tensor *nti_eigen_factors(nt_tensor **x) { return x[0]->rank == x[1]->rank ? x[0] : nti_record_eigh(x[1], 1); }
static nt_tensor *nti_conjugate(nt_tensor *v, nt_tensor *p, int back) { // V^T P V, or V P V^T
    nt_tensor *vt = nti_swap_last(v);
    return back ? nti_record_matmul(nti_record_matmul(v, p), vt) : nti_record_matmul(nti_record_matmul(vt, p), v);
}
static nt_tensor *nti_jvp_eigenvalues(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    (void)y;
    nt_tensor *v = t[1] ? nti_record2(NTI_OP_EIGENVECTORS, nti_eigen_factors(x), x[1]) : NULL;
    return v ? nti_diagonal(nti_conjugate(v, nti_symmetric(t[1]), 0)) : NULL;
}
static nt_tensor *nti_vjp_eigenvalues(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // V diag(g) V^T
    (void)y;
    nt_tensor *v = k ? nti_record2(NTI_OP_EIGENVECTORS, nti_eigen_factors(x), x[1]) : NULL;
    return v ? nti_record_matmul(nt_mul(v, nt_expand_dims(g, -2)), nti_swap_last(v)) : NULL;
}

// 1 / (w_j - w_i) beside the diagonal
static nt_tensor *nti_eigen_gaps(nt_tensor **x) {
    nt_tensor *w = nti_record2(NTI_OP_EIGENVALUES, x[0], x[1]), *eye = nti_identity_like(x[1]);
    nt_tensor *gap = nt_add(nt_sub(nt_expand_dims(w, -2), nt_expand_dims(w, -1)), eye);
    return nt_sub(nt_reciprocal(gap), eye);
}
static nt_tensor *nti_jvp_eigenvectors(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    return t[1] ? nti_record_matmul(y, nt_mul(nti_eigen_gaps(x), nti_conjugate(y, nti_symmetric(t[1]), 0))) : NULL;
}
static nt_tensor *nti_vjp_eigenvectors(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    return k ? nti_symmetric(nti_conjugate(y, nt_mul(nti_eigen_gaps(x), nti_record_matmul(nti_swap_last(y), g)), 1)) : NULL;
}

// The root S of x: S dS + dS S = dX, so no division by differences of eigenvalues. LYAPUNOV(x, factors, c) solves S z + z S = c.
static nt_tensor *nti_lyapunov(nt_tensor **x, nt_tensor *c) { return c ? nti_record_ints(NTI_OP_LYAPUNOV, x[0], x[1], c, NULL, 0) : NULL; }
static nt_tensor *nti_jvp_sym_sqrt(nt_tensor *y, nt_tensor **x, nt_tensor **t) { (void)y; return t[0] ? nti_lyapunov(x, nti_symmetric(t[0])) : NULL; }
static nt_tensor *nti_vjp_sym_sqrt(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { (void)y; return k ? NULL : nti_symmetric(nti_lyapunov(x, g)); }

static nt_tensor *nti_jvp_lyapunov(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    nt_tensor *c = t[2];
    if (t[0]) {
        nt_tensor *ds = nti_lyapunov(x, nti_symmetric(t[0])), *moved = nt_add(nti_record_matmul(ds, y), nti_record_matmul(y, ds));
        c = c ? nt_sub(c, moved) : nt_neg(moved);
    }
    return nti_lyapunov(x, c);
}
static nt_tensor *nti_vjp_lyapunov(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    nt_tensor *u = k == 1 ? NULL : nti_lyapunov(x, g), *yt = nti_swap_last(y);
    if (k) return u;
    return nt_neg(nti_symmetric(nti_lyapunov(x, nt_add(nti_record_matmul(u, yt), nti_record_matmul(yt, u)))));
}

// With B = Q^T dX R^-1 and W = skew(B) = lower(B) - lower(B)^T: dQ = dX R^-1 - Q (B - W), dR = (B - W) R.
static nt_tensor *nti_qr_part(int op, nt_tensor **x) { return nti_record2(op, x[0], x[1]); }
static nt_tensor *nti_skew(nt_tensor *b) {
    nt_tensor *l = nti_triangle(b, 0, 0);
    return nt_sub(l, nti_swap_last(l));
}
static nt_tensor *nti_over_r(nt_tensor *r, nt_tensor *x, int transpose) { return nti_triangular(r, x, 1, 1, transpose, 0); }
static nt_tensor *nti_jvp_qr_q(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    if (!t[1]) return NULL;
    nt_tensor *p = nti_over_r(nti_qr_part(NTI_OP_QR_R, x), t[1], 0), *b = nti_record_matmul(nti_swap_last(y), p);
    return nt_sub(p, nti_record_matmul(y, nt_sub(b, nti_skew(b))));
}
static nt_tensor *nti_jvp_qr_r(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    if (!t[1]) return NULL;
    nt_tensor *b = nti_record_matmul(nti_swap_last(nti_qr_part(NTI_OP_QR_Q, x)), nti_over_r(y, t[1], 0));
    return nti_record_matmul(nt_sub(b, nti_skew(b)), y);
}
// skew is the transpose of M -> lower(M - M^T).
static nt_tensor *nti_skew_transposed(nt_tensor *m) { return nti_triangle(nt_sub(m, nti_swap_last(m)), 0, 0); }
static nt_tensor *nti_vjp_qr_q(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (!k) return NULL;
    nt_tensor *m = nti_record_matmul(nti_swap_last(y), g), *p = nt_sub(g, nti_record_matmul(y, nt_sub(m, nti_skew_transposed(m))));
    return nti_over_r(nti_qr_part(NTI_OP_QR_R, x), p, 1);
}
static nt_tensor *nti_vjp_qr_r(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) {
    if (!k) return NULL;
    nt_tensor *m = nti_record_matmul(g, nti_swap_last(y)), *p = nti_record_matmul(nti_qr_part(NTI_OP_QR_Q, x), nt_sub(m, nti_skew_transposed(m)));
    return nti_over_r(y, p, 1);
}

// >>samples
// ---------------------------------------------------------------------------------------------------------------------
// Only with NTTRAIN_TESTS: valid random operands for every row, which the walk of the table in the tests asks for.
// row->sample(t, op, dtype, variant, seed) records the operation on new leaves and returns it; NULL: no such variant.
// Variants count from 0, from NTI_SAMPLE_TIES (equal and special values, where derivatives are one-sided) and from
// NTI_SAMPLE_LARGE (several tiles). A seed gives the same numbers in every dtype that can hold them: they have few bits, lie
// off the multiples of 1 / 1024, where kinks are, and differ within an operand and between operands.
// ---------------------------------------------------------------------------------------------------------------------
#if defined(NTTRAIN_TESTS)
enum { NTI_SAMPLE_TIES = 100, NTI_SAMPLE_LARGE = 200 };

// How an operand lies in memory: by itself; its axes in reversed order; every second element; a part of each row; repeated; from the end.
enum { NTI_LOOK, NTI_LOOK_SWAPPED, NTI_LOOK_STEPPED, NTI_LOOK_CUT, NTI_LOOK_SPREAD, NTI_LOOK_FLIPPED };

typedef struct nti_sampler {
    nt_tape *t;
    const nti_row *row;
    int op, variant, operand;
    nt_dtype dtype;
    uint64_t state;
} nti_sampler;

static nti_sampler nti_sampler_make(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s;
    s.t = t, s.row = nti_row_of(op), s.op = op, s.variant = variant, s.operand = 0, s.dtype = dtype;
    s.state = seed * (uint64_t)0x9e3779b97f4a7c15u + (uint64_t)op * 1000003u + (uint64_t)variant;
    return s;
}

static uint32_t nti_dice(nti_sampler *s) {
    uint64_t z = s->state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (uint32_t)(z >> 32);
}

// Number k of n that share the range equally.
static double nti_sample_number(nti_sampler *s, nt_dtype dtype, double low, double high, int64_t k, int64_t n) {
    double x = low + (high - low) * ((double)k + nti_dice(s) * (0.5 / 4294967296.0)) / (double)n;
    if (dtype == NT_BOOL) return nti_dice(s) & 1;
    if (!nti_dtypes[dtype].floating) { // tripled, so that quotients and remainders are of interest; as a magnitude where there is no sign
        x = floor(3 * x) * (low > 0 && nti_dice(s) & 1 ? -1 : 1);
        return x < 0 && (dtype == NT_U8 || dtype == NT_U16 || dtype == NT_U32 || dtype == NT_U64) ? -x : x;
    }
    if (s->row->map == NTI_MAP_IS_FINITE || s->row->map == NTI_MAP_IS_NAN)
        return k % 5 == 1 ? -HUGE_VAL : k % 5 == 2 ? (double)NAN : k % 5 == 3 ? HUGE_VAL : x;
    if (s->variant < NTI_SAMPLE_TIES || s->variant >= NTI_SAMPLE_LARGE) return floor(x * 1024) / 1024 + (2 + 3 * s->operand) / 16384.0;
    x = floor(2 * x) / 2; // halves, among them zero and one
    return x < low ? x + 0.5 : x;
}

static void nti_sample_fill(nti_sampler *s, nt_tensor *x, double low, double high) {
    int64_t n = nt_size(x);
    size_t size = nt_dtype_size(x->dtype);
    char *data = (char *)nti_n(x)->storage, swap[8];
    int large = s->variant >= NTI_SAMPLE_LARGE; // the numbers of these need not differ
    double some[64];
    for (int64_t k = 0; k < n; k += 64) {
        int64_t count = nti_min(64, n - k);
        for (int64_t j = 0; j < count; j++)
            some[j] = nti_sample_number(s, x->dtype, low, high, large ? (int64_t)(nti_dice(s) % (uint64_t)n) : k + j, n);
        nti_cast(x->dtype, data + (size_t)k * size, NT_F64, some, (size_t)count);
    }
    for (int64_t k = n - 1; k > 0 && !large; k--) {
        char *a = data + (size_t)k * size, *b = data + (size_t)(nti_dice(s) % (uint64_t)(k + 1)) * size;
        memcpy(swap, a, size), memmove(a, b, size), memcpy(b, swap, size);
    }
    s->operand = (s->operand + 1) % 4;
}

static nt_tensor *nti_sample_variable(nti_sampler *s, nt_dtype dtype, const nt_shape *shape, double low, double high) {
    nt_tensor *x = nt_variable(s->t, dtype, *shape, NULL);
    if (x) nti_sample_fill(s, x, low, high);
    return x;
}

// An operand of this shape, through this look at a variable.
static nt_tensor *nti_sample_between(nti_sampler *s, nt_dtype dtype, const nt_shape *shape, int look, double low, double high) {
    int64_t start[NT_MAX_RANK], limit[NT_MAX_RANK], step[NT_MAX_RANK];
    nt_axes order;
    nt_shape own = *shape;
    int r = shape->rank;
    memset(&order, 0, sizeof order);
    if (!r || look == NTI_LOOK) return nti_sample_variable(s, dtype, shape, low, high);
    order.count = r;
    for (int k = 0; k < r; k++) {
        int last = k == r - 1;
        order.axis[k] = r - 1 - k, start[k] = 0, step[k] = 1;
        if (look == NTI_LOOK_SWAPPED) own.size[k] = shape->size[r - 1 - k];
        else if (look == NTI_LOOK_STEPPED && k >= r - 2) own.size[k] = 2 * own.size[k] + 1, start[k] = 1, step[k] = 2;
        else if (look == NTI_LOOK_CUT && last) own.size[k] += 3, start[k] = 2;
        else if (look == NTI_LOOK_SPREAD && (last || k == 0)) own.size[k] = 1;
        limit[k] = look == NTI_LOOK_STEPPED && step[k] == 2 ? own.size[k] : start[k] + shape->size[k];
    }
    nt_tensor *x = nti_sample_variable(s, dtype, &own, low, high);
    if (look == NTI_LOOK_SWAPPED) return nt_transpose(x, order);
    if (look == NTI_LOOK_FLIPPED) order.count = (r + 1) / 2;
    if (look == NTI_LOOK_FLIPPED) return nt_flip(x, order); // the last half of the axes
    if (look == NTI_LOOK_SPREAD) return nti_record(s->t, NTI_OP_BROADCAST, &x, 1, shape->size, r, NULL, 0);
    return nt_slice(x, start, limit, step);
}

static nt_tensor *nti_sample_operand(nti_sampler *s, const nt_shape *shape, int look) {
    return nti_sample_between(s, s->dtype, shape, look, s->row->low, s->row->high);
}

// Indices 0 to limit - 1, drawn with repetition; with `wild` some lie outside, or are the number `wild`.
static nt_tensor *nti_sample_indices(nti_sampler *s, const nt_shape *shape, int64_t limit, int wild) {
    nt_tensor *x = nt_variable(s->t, NT_I32, *shape, NULL);
    int32_t *data = x ? (int32_t *)nti_n(x)->storage : NULL;
    for (int64_t k = 0; k < nt_size(x); k++) data[k] = (int32_t)(nti_dice(s) % (uint64_t)nti_max(1, limit));
    for (int64_t k = 1; wild && k < nt_size(x); k += 3) data[k] = wild;
    return x;
}

static int nti_sample_takes(const nti_sampler *s) {
    if (s->row->infer == nti_infer_logical) return s->dtype == NT_BOOL;
    if (nti_is_float(s->dtype)) return 1;
    return s->dtype == NT_BOOL ? (s->row->flags & NTI_BOOLEAN) != 0
                               : (s->row->flags & NTI_INTEGER) && (s->dtype == NT_I32 || s->dtype == NT_U32);
}

// Entry `variant` of a table with ties and large ones behind `regular` and `ties` entries; -1: none.
static int nti_sample_entry(int variant, int regular, int ties, int large) {
    if (variant >= NTI_SAMPLE_LARGE) return variant - NTI_SAMPLE_LARGE < large ? regular + ties + variant - NTI_SAMPLE_LARGE : -1;
    if (variant >= NTI_SAMPLE_TIES) return variant - NTI_SAMPLE_TIES < ties ? regular + variant - NTI_SAMPLE_TIES : -1;
    return variant < regular ? variant : -1;
}

// Shapes for rows that take any ----------------------------------------------------------------------------------------------

typedef struct nti_sample_case { int64_t rank, size[5]; uint8_t look[3]; } nti_sample_case;
static const nti_sample_case nti_sample_cases[] = {
    { 1, { 7 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 0, { 0 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 2, { 3, 5 }, { NTI_LOOK_SWAPPED, NTI_LOOK, NTI_LOOK_SPREAD } },
    { 3, { 2, 3, 4 }, { NTI_LOOK_STEPPED, NTI_LOOK_SWAPPED, NTI_LOOK } },
    { 2, { 1, 6 }, { NTI_LOOK, NTI_LOOK_SPREAD, NTI_LOOK_CUT } },
    { 3, { 4, 0, 3 }, { NTI_LOOK_SWAPPED, NTI_LOOK, NTI_LOOK_STEPPED } },
    { 4, { 2, 1, 3, 2 }, { NTI_LOOK_CUT, NTI_LOOK_FLIPPED, NTI_LOOK_SWAPPED } },
    { 5, { 2, 3, 1, 2, 3 }, { NTI_LOOK_SWAPPED, NTI_LOOK_SPREAD, NTI_LOOK_STEPPED } },
    { 1, { 133 }, { NTI_LOOK_STEPPED, NTI_LOOK, NTI_LOOK_SPREAD } },
    { 2, { 0, 3 }, { NTI_LOOK_CUT, NTI_LOOK_SPREAD, NTI_LOOK } },
    { 3, { 2, 1, 3 }, { NTI_LOOK_FLIPPED, NTI_LOOK_FLIPPED, NTI_LOOK_CUT } },
    { 2, { 5, 9 }, { NTI_LOOK_FLIPPED, NTI_LOOK_SWAPPED, NTI_LOOK } },
    { 1, { 40 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 3, { 3, 61, 203 }, { NTI_LOOK_SWAPPED, NTI_LOOK, NTI_LOOK_CUT } },
    { 1, { 70001 }, { NTI_LOOK_FLIPPED, NTI_LOOK_STEPPED, NTI_LOOK_SPREAD } },
};
static int nti_sample_case_of(int variant) { return nti_sample_entry(variant, 11, 2, 2); }
static nt_shape nti_sample_shape(int entry) { return nt_shape_make((int)nti_sample_cases[entry].rank, nti_sample_cases[entry].size); }

// The same for rows over the last axis.
static const nti_sample_case nti_sample_rows[] = {
    { 1, { 7 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 2, { 3, 5 }, { NTI_LOOK_SWAPPED, NTI_LOOK, NTI_LOOK_SPREAD } },
    { 3, { 2, 3, 4 }, { NTI_LOOK_STEPPED, NTI_LOOK_SWAPPED, NTI_LOOK } },
    { 2, { 4, 2 }, { NTI_LOOK_CUT, NTI_LOOK, NTI_LOOK } },
    { 2, { 0, 5 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 4, { 2, 1, 3, 19 }, { NTI_LOOK, NTI_LOOK_STEPPED, NTI_LOOK } },
    { 5, { 1, 2, 1, 2, 3 }, { NTI_LOOK_SWAPPED, NTI_LOOK_SWAPPED, NTI_LOOK_SWAPPED } },
    { 2, { 3, 67 }, { NTI_LOOK, NTI_LOOK_CUT, NTI_LOOK } },
    { 2, { 3, 1 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 2, { 6, 7 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 2, { 1200, 77 }, { NTI_LOOK, NTI_LOOK, NTI_LOOK } },
    { 2, { 11, 9003 }, { NTI_LOOK_CUT, NTI_LOOK, NTI_LOOK } },
};
static int nti_sample_row_of(int variant) { return nti_sample_entry(variant, 9, 1, 2); }

// Leaves and generators --------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_none(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) { // no value outside of a map
    (void)t, (void)op, (void)dtype, (void)variant, (void)seed;
    return NULL;
}

// A map over the rows of one operand, whose body has an operand from outside.
static nt_tensor *nti_sample_loop(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int64_t size[3];
    if (variant > 2 || !nti_is_float(dtype)) return NULL;
    size[0] = 3, size[1] = variant == 2 ? 0 : 2, size[2] = 4;
    nt_shape whole = nt_shape_make(3, size), part = nt_shape_make(1, size + 2);
    nt_tensor *x = nti_sample_between(&s, dtype, &whole, NTI_LOOK, -2, 2), *w = nti_sample_between(&s, dtype, &part, NTI_LOOK, -2, 2);
    nt_map *m = nt_map_begin(t, 3, NULL);
    nt_tensor *y = nt_mul(nt_map_slice(m, x), w);
    if (variant) y = nt_mul(y, nt_cast(nt_map_index(m), dtype));
    nt_tensor *result = op == NTI_OP_MAP_SUM ? nt_map_sum(m, y) : nt_map_stack(m, y);
    nt_map_end(m);
    return result;
}

static nt_tensor *nti_sample_leaf(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    if (entry < 0 || (op == NTI_OP_IOTA && (!nti_dtypes[dtype].compute || dtype == NT_BOOL))) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    if (op == NTI_OP_FULL) return nt_full(t, dtype, shape, nti_sample_number(&s, dtype, -2, 2, 0, 1));
    if (op == NTI_OP_IOTA)
        return shape.rank ? nt_iota(t, dtype, shape, variant % shape.rank)
                          : nt_iota(t, dtype, nt_shape_make(1, nti_sample_cases[0].size), 0);
    nt_tensor *x = nti_sample_variable(&s, dtype, &shape, -2, 2), *y = op == NTI_OP_INPUT ? nt_input(t, dtype, shape) : x;
    if (op == NTI_OP_CONSTANT) y = nt_constant(t, dtype, shape, nt_data(x));
    if (op == NTI_OP_INPUT) nt_write(y, nt_data(x));
    return y;
}

// Elementwise ----------------------------------------------------------------------------------------------------------------

static int nti_sample_attributes(const nti_sampler *s, double *d) { // returns their number
    static const double powers[] = { 2.5, -1, 2, 0.5, 3, 0, 1, -1.5 };
    int floating = nti_is_float(s->dtype);
    switch (s->op) {
    case NTI_OP_SCALE: d[0] = floating ? -0.7 : 3; return 1;
    case NTI_OP_ADD_SCALAR: d[0] = floating ? 0.3 : -2; return 1;
    case NTI_OP_POW_SCALAR: d[0] = powers[s->variant % 8]; return 1;
    case NTI_OP_LEAKY_RELU: d[0] = 0.1; return 1;
    case NTI_OP_ELU: d[0] = 1.3; return 1;
    case NTI_OP_POLYGAMMA: d[0] = s->variant % 4; return 1;
    case NTI_OP_CLAMP: d[0] = floating ? -0.5 : -3, d[1] = floating ? 1 : 4; return 2;
    default: return 0;
    }
}

static nt_tensor *nti_sample_map(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    nt_tensor *in[3];
    double d[2];
    int entry = nti_sample_case_of(variant), nd = nti_sample_attributes(&s, d);
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    for (int k = 0; k < s.row->inputs; k++) {
        int condition = op == NTI_OP_SELECT && !k;
        in[k] = nti_sample_between(&s, condition ? NT_BOOL : dtype, &shape, nti_sample_cases[entry].look[k], s.row->low, s.row->high);
    }
    return nti_record(t, op, in, s.row->inputs, NULL, 0, d, nd);
}

// To every dtype in turn.
static nt_tensor *nti_sample_cast(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, NT_DTYPE_COUNT, NT_DTYPE_COUNT, 2);
    int64_t target = entry % NT_DTYPE_COUNT;
    if (entry < 0) return NULL;
    nt_shape shape = nti_sample_shape(variant >= NTI_SAMPLE_LARGE ? 14 : variant >= NTI_SAMPLE_TIES ? 12 : variant % 11);
    nt_tensor *x = nti_sample_operand(&s, &shape, variant % 5);
    return nti_record(t, op, &x, 1, &target, 1, NULL, 0);
}

// Products -------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_matmul(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t lead, batch[3], m, k, n; uint8_t look[2]; } table[] = {
        { 0, { 0 }, 3, 4, 5, { NTI_LOOK, NTI_LOOK } },
        { 0, { 0 }, 5, 3, 2, { NTI_LOOK_SWAPPED, NTI_LOOK } },
        { 0, { 0 }, 2, 7, 9, { NTI_LOOK, NTI_LOOK_SWAPPED } },
        { 0, { 0 }, 4, 4, 4, { NTI_LOOK_STEPPED, NTI_LOOK_CUT } },
        { 1, { 2 }, 5, 6, 3, { NTI_LOOK_FLIPPED, NTI_LOOK_FLIPPED } },
        { 1, { 3 }, 1, 5, 1, { NTI_LOOK, NTI_LOOK_SPREAD } },
        { 1, { 2 }, 3, 2, 6, { NTI_LOOK_SPREAD, NTI_LOOK_SWAPPED } },
        { 3, { 2, 1, 3 }, 2, 3, 2, { NTI_LOOK_SWAPPED, NTI_LOOK_STEPPED } },
        { 0, { 0 }, 3, 0, 2, { NTI_LOOK, NTI_LOOK } },
        { 1, { 2 }, 0, 3, 4, { NTI_LOOK, NTI_LOOK } },
        { 1, { 0 }, 2, 3, 4, { NTI_LOOK, NTI_LOOK_CUT } },
        { 0, { 0 }, 1, 1, 17, { NTI_LOOK, NTI_LOOK } },
        { 0, { 0 }, 19, 33, 21, { NTI_LOOK_CUT, NTI_LOOK_STEPPED } },
        { 0, { 0 }, 150, 301, 170, { NTI_LOOK, NTI_LOOK_SWAPPED } },
        { 2, { 3, 7 }, 40, 50, 60, { NTI_LOOK_SWAPPED, NTI_LOOK_CUT } },
        { 0, { 0 }, 700, 64, 10, { NTI_LOOK_SWAPPED, NTI_LOOK } },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    nt_tensor *in[2];
    int64_t accumulate = 0;
    int entry = nti_sample_entry(variant, 13, 0, 3);
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape x = nt_shape_make((int)table[entry].lead, table[entry].batch), y = x;
    x.size[x.rank++] = table[entry].m, x.size[x.rank++] = table[entry].k;
    y.size[y.rank++] = table[entry].k, y.size[y.rank++] = table[entry].n;
    in[0] = nti_sample_operand(&s, &x, table[entry].look[0]), in[1] = nti_sample_operand(&s, &y, table[entry].look[1]);
    return nti_record(t, op, in, 2, &accumulate, 1, NULL, 0);
}

// Linear algebra -------------------------------------------------------------------------------------------------------------

// Well conditioned: a multiple of the identity and random numbers; of different multiples, so that eigenvalues are apart.
static nt_tensor *nti_sample_well(nti_sampler *s, const nt_shape *shape, int look) {
    nt_tensor *x = nti_sample_between(s, s->dtype, shape, look, -0.4, 0.4);
    int64_t n = shape->size[shape->rank - 1], m = shape->size[shape->rank - 2], down[2], across[2];
    if (!x) return NULL;
    down[0] = m, down[1] = 1, across[0] = 1, across[1] = n;
    nt_tensor *row = nt_iota(s->t, NT_I32, nt_shape_make(2, down), 0), *column = nt_iota(s->t, NT_I32, nt_shape_make(2, across), 1);
    nt_tensor *steps = nt_add_scalar(nt_cast(row, s->dtype), n < 70 ? 2 : 0.1 * (double)n);
    return nt_add(x, nt_select(nt_equal(row, column), steps, nt_scalar(s->t, s->dtype, 0)));
}

static nt_tensor *nti_sample_linear(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t lead, batch[2], n, m; uint8_t look[2]; } table[] = {
        { 0, { 0 }, 4, 3, { NTI_LOOK, NTI_LOOK } },
        { 1, { 2 }, 3, 2, { NTI_LOOK_SWAPPED, NTI_LOOK } },
        { 0, { 0 }, 1, 1, { NTI_LOOK, NTI_LOOK } },
        { 0, { 0 }, 5, 1, { NTI_LOOK_STEPPED, NTI_LOOK_SWAPPED } },
        { 0, { 0 }, 0, 2, { NTI_LOOK, NTI_LOOK } },
        { 2, { 2, 2 }, 2, 4, { NTI_LOOK_CUT, NTI_LOOK_STEPPED } },
        { 1, { 0 }, 3, 2, { NTI_LOOK, NTI_LOOK } },
        { 0, { 0 }, 6, 5, { NTI_LOOK, NTI_LOOK_SWAPPED } },
        { 1, { 3 }, 1, 2, { NTI_LOOK_SPREAD, NTI_LOOK } },
        { 0, { 0 }, 3, 7, { NTI_LOOK, NTI_LOOK } },
        { 0, { 0 }, 150, 270, { NTI_LOOK, NTI_LOOK } },
        { 1, { 3 }, 70, 5, { NTI_LOOK, NTI_LOOK } },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 10, 0, 2);
    int64_t kind, i[4] = { 0, 0, 0, 0 };
    if (entry < 0 || !nti_is_float(dtype)) return NULL;
    nt_shape a = nt_shape_make((int)table[entry].lead, table[entry].batch), b = a;
    int64_t n = table[entry].n, m = table[entry].m;
    if (op == NTI_OP_EIGENVECTORS && variant >= NTI_SAMPLE_LARGE) n = 12; // rounding counts by the norm over the gap
    int right = op == NTI_OP_TRIANGULAR_SOLVE && (entry & 1), tall = op == NTI_OP_QR || op == NTI_OP_QR_Q || op == NTI_OP_QR_R;
    a.size[a.rank++] = tall ? n + m : n, a.size[a.rank++] = n, b.size[b.rank++] = right ? m : n, b.size[b.rank++] = op == NTI_OP_LYAPUNOV ? n : right ? n : m;
    kind = entry % 3;
    i[0] = right, i[1] = entry >> 1 & 1, i[2] = entry >> 2 & 1, i[3] = entry % 3 == 1;
    nt_tensor *x = nti_sample_well(&s, &a, table[entry].look[0]), *y = op == NTI_OP_TRIANGULAR_SOLVE || op == NTI_OP_LU_SOLVE || op == NTI_OP_LYAPUNOV ? nti_sample_operand(&s, &b, table[entry].look[1]) : NULL;
    switch (op) {
    case NTI_OP_TRIANGULAR_SOLVE: return nti_record_triangular(x, y, i);
    case NTI_OP_LU_SOLVE: return nti_record_lu_solve(x, nti_record1(NTI_OP_LU, x), y, i[1]);
    case NTI_OP_DETERMINANT: return nti_determinant(x, nti_record1(NTI_OP_LU, x), kind);
    case NTI_OP_EIGH: return nti_record_eigh(x, entry & 1);
    case NTI_OP_EIGENVALUES: return nti_record2(op, nti_record_eigh(x, entry & 1), x);
    case NTI_OP_EIGENVECTORS: return nti_record2(op, nti_record_eigh(x, 1), x);
    case NTI_OP_SYM_SQRT: return nti_record2(op, x, nti_record_eigh(x, 1));
    case NTI_OP_LYAPUNOV: return nti_record_ints(op, x, nti_record_eigh(x, 1), y, NULL, 0);
    case NTI_OP_QR_Q: case NTI_OP_QR_R: return nti_record2(op, nti_record1(NTI_OP_QR, x), x);
    default: return nti_record1(op, x);
    }
}

// Each entry: images, channels, outputs, spatial axes with size and window of each, then what nt_conv is told.
static nt_tensor *nti_sample_conv(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t n, c, o, d, size[3], window[3]; uint8_t look[2]; nt_conv_desc desc; } table[] = {
        { 2, 3, 4, 2, { 5, 6 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_PADDING_DEFAULT, { { 0 } } } },
        { 1, 2, 3, 2, { 7, 5 }, { 3, 2 }, { NTI_LOOK_SWAPPED, NTI_LOOK_SWAPPED }, { { 2, 1 }, { 1, 2 }, 0, NT_VALID, { { 0 } } } },
        { 2, 4, 6, 2, { 4, 4 }, { 2, 3 }, { NTI_LOOK_CUT, NTI_LOOK_STEPPED }, { { 1, 2 }, { 0 }, 2, NT_SAME, { { 0 } } } },
        { 1, 3, 3, 2, { 6, 5 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 2, 1 }, 3, NT_EXPLICIT, { { 2, 1 }, { 0, 3 } } } },
        { 2, 1, 2, 2, { 6, 7 }, { 2, 2 }, { NTI_LOOK_SPREAD, NTI_LOOK }, { { 3, 2 }, { 0 }, 0, NT_EXPLICIT, { { -1, 1 }, { 2, -2 } } } },
        { 3, 2, 5, 1, { 9 }, { 4 }, { NTI_LOOK_STEPPED, NTI_LOOK }, { { 2 }, { 2 }, 0, NT_SAME, { { 0 } } } },
        { 1, 2, 2, 3, { 3, 4, 3 }, { 2, 1, 3 }, { NTI_LOOK, NTI_LOOK_SWAPPED }, { { 1, 2, 1 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 0, 2, 3, 2, { 4, 4 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 2, 2, 3, 2, { 2, 3 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_VALID, { { 0 } } } },
        { 2, 5, 7, 2, { 3, 3 }, { 1, 1 }, { NTI_LOOK_SWAPPED, NTI_LOOK }, { { 2, 2 }, { 0 }, 0, NT_VALID, { { 0 } } } },
        { 1, 1, 1, 1, { 1 }, { 1 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 1, 17, 19, 2, { 5, 5 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 1, 0, 3, 2, { 3, 3 }, { 2, 2 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 7, 16, 24, 2, { 19, 23 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, { 0 }, 0, NT_SAME, { { 0 } } } },
        { 3, 12, 20, 2, { 40, 31 }, { 5, 3 }, { NTI_LOOK, NTI_LOOK }, { { 2, 1 }, { 1, 2 }, 2, NT_SAME, { { 0 } } } },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 13, 0, 2);
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    int d = (int)table[entry].d, groups = table[entry].desc.groups ? table[entry].desc.groups : 1;
    nt_shape x = nt_shape_make(1, &table[entry].n), w = nt_shape_make(0, NULL);
    for (int k = 0; k < d; k++) x.size[x.rank++] = table[entry].size[k], w.size[w.rank++] = table[entry].window[k];
    x.size[x.rank++] = table[entry].c, w.size[w.rank++] = table[entry].c / groups, w.size[w.rank++] = table[entry].o;
    nt_tensor *probe = nt_conv(nt_full(t, dtype, x, 0), nt_full(t, dtype, w, 0), &table[entry].desc); // for its attributes and shape
    if (!probe) return NULL;
    nt_shape y = nt_shape_of(probe);
    nt_tensor *a = nti_sample_operand(&s, op == NTI_OP_CONV_INPUT ? &y : &x, table[entry].look[0]);
    nt_tensor *b = nti_sample_operand(&s, op == NTI_OP_CONV_FILTER ? &y : &w, table[entry].look[1]);
    if (op == NTI_OP_CONV) return nti_record_conv(a, b, nti_n(probe)->i);
    return nti_record_conv_back(op, a, b, nti_n(probe)->i, op == NTI_OP_CONV_INPUT ? x.size : w.size);
}

static nt_tensor *nti_sample_pool(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t n, c, d, size[3], window[3]; uint8_t look[2]; nt_pool_desc desc;
    } table[] = {
        { 2, 3, 2, { 4, 6 }, { 2, 2 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, NT_PADDING_DEFAULT, { { 0 } }, 0 } },
        { 1, 2, 2, { 5, 7 }, { 3, 2 }, { NTI_LOOK_SWAPPED, NTI_LOOK_SWAPPED }, { { 2, 1 }, NT_SAME, { { 0 } }, 0 } },
        { 2, 1, 2, { 5, 5 }, { 2, 3 }, { NTI_LOOK_STEPPED, NTI_LOOK }, { { 1, 2 }, NT_EXPLICIT, { { 1, 0 }, { 1, 2 } }, 0 } },
        { 3, 4, 1, { 9 }, { 3 }, { NTI_LOOK_CUT, NTI_LOOK_STEPPED }, { { 1 }, NT_VALID, { { 0 } }, 0 } },
        { 1, 2, 3, { 4, 3, 4 }, { 2, 2, 3 }, { NTI_LOOK, NTI_LOOK_SWAPPED }, { { 1, 1, 2 }, NT_SAME, { { 0 } }, 0 } },
        { 0, 2, 2, { 4, 4 }, { 2, 2 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, NT_VALID, { { 0 } }, 0 } },
        { 2, 3, 2, { 2, 4 }, { 3, 2 }, { NTI_LOOK, NTI_LOOK }, { { 0 }, NT_VALID, { { 0 } }, 0 } },
        { 2, 19, 2, { 3, 3 }, { 1, 3 }, { NTI_LOOK, NTI_LOOK }, { { 2, 1 }, NT_SAME, { { 0 } }, 0 } },
        { 2, 3, 2, { 6, 6 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 1, 1 }, NT_SAME, { { 0 } }, 0 } },
        { 1,
          2,
          2,
          { 4, 4 },
          { 2, 2 },
          { NTI_LOOK, NTI_LOOK },
          { { 1, 1 }, NT_EXPLICIT, { { 2, 3 }, { 2, 2 } }, 0 } }, // windows of padding only
        { 5, 33, 2, { 40, 37 }, { 3, 3 }, { NTI_LOOK, NTI_LOOK }, { { 2, 2 }, NT_SAME, { { 0 } }, 0 } },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 8, 2, 1), of_sum = op == NTI_OP_SUM_POOL || op == NTI_OP_SUM_POOL_GRAD;
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape x = nt_shape_make(1, &table[entry].n), window = nt_shape_make((int)table[entry].d, table[entry].window);
    for (int k = 0; k < window.rank; k++) x.size[x.rank++] = table[entry].size[k];
    x.size[x.rank++] = table[entry].c;
    nt_tensor *probe = nti_pool(of_sum ? NTI_OP_SUM_POOL : NTI_OP_MAX_POOL, nt_full(t, dtype, x, 0), window, &table[entry].desc);
    if (!probe) return NULL;
    nt_shape y = nt_shape_of(probe);
    const nti_node *n = nti_n(probe);
    nt_tensor *a = op == NTI_OP_SUM_POOL_GRAD ? NULL : nti_sample_operand(&s, &x, table[entry].look[0]), *g = NULL;
    if (op == NTI_OP_MAX_POOL || op == NTI_OP_SUM_POOL) return nti_record(t, op, &a, 1, n->i, n->ni, NULL, 0);
    g = nti_sample_operand(&s, op == NTI_OP_MAX_POOL_JVP ? &x : &y, table[entry].look[1]);
    return nti_record_pool_grad(op, a, g, n->i, x.size);
}

// Reductions -----------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_reduce(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], mask; uint8_t look; } table[] = {
        { 1, { 7 }, 1, NTI_LOOK },
        { 2, { 3, 5 }, 1, NTI_LOOK_SWAPPED },
        { 2, { 5, 3 }, 2, NTI_LOOK_CUT },
        { 3, { 2, 3, 4 }, 5, NTI_LOOK_FLIPPED },
        { 3, { 3, 4, 2 }, 2, NTI_LOOK_STEPPED },
        { 3, { 3, 2, 4 }, 7, NTI_LOOK_SWAPPED },
        { 0, { 0 }, 0, NTI_LOOK },
        { 2, { 3, 4 }, 0, NTI_LOOK_STEPPED },
        { 3, { 2, 0, 3 }, 2, NTI_LOOK },
        { 3, { 2, 0, 3 }, 1, NTI_LOOK },
        { 5, { 2, 1, 3, 2, 3 }, 22, NTI_LOOK_SWAPPED },
        { 2, { 3, 1 }, 2, NTI_LOOK },
        { 2, { 3, 131 }, 2, NTI_LOOK_SPREAD },
        { 2, { 131, 3 }, 1, NTI_LOOK },
        { 2, { 7, 9 }, 2, NTI_LOOK_FLIPPED },
        { 2, { 9, 7 }, 1, NTI_LOOK_FLIPPED },
        { 2, { 6, 11 }, 2, NTI_LOOK },
        { 2, { 6, 11 }, 1, NTI_LOOK_SWAPPED },
        { 1, { 1000 }, 1, NTI_LOOK_STEPPED },
        { 3, { 17, 57, 61 }, 4, NTI_LOOK },
        { 3, { 17, 57, 61 }, 3, NTI_LOOK },
        { 3, { 40, 57, 61 }, 5, NTI_LOOK_SWAPPED },
        { 1, { 100003 }, 1, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 16, 3, 4), boolean = op == NTI_OP_ANY || op == NTI_OP_ALL,
        arg = op == NTI_OP_ARGMAX || op == NTI_OP_ARGMIN;
    if (entry < 0 || (boolean ? dtype != NT_BOOL : !nti_sample_takes(&s))) return NULL;
    nt_shape shape = nt_shape_make((int)table[entry].rank, table[entry].size);
    int64_t mask = table[entry].mask;
    if (arg) { // one axis that is not empty
        if (!shape.rank) shape.size[shape.rank++] = 3;
        mask = mask ? mask & -mask : 1;
        for (int k = 0; k < shape.rank; k++)
            if ((mask >> k & 1) && !shape.size[k]) shape.size[k] = 2;
    }
    return nti_record_reduce(op, nti_sample_operand(&s, &shape, table[entry].look), mask);
}

// Views and moves --------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_view(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) { // one operand, shape and dtype kept
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    double limit = HUGE_VAL;
    if (entry < 0 || (op == NTI_OP_CHECK_FINITE && !nti_is_float(dtype))) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_cases[entry].look[0]);
    return op == NTI_OP_CHECK_FINITE ? nti_record_numbers(op, x, &limit, 1) : nti_record1(op, x);
}

static nt_tensor *nti_sample_check_index(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    if (entry < 0 || dtype != NT_I32) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    if (variant % 2) return nti_check_index(op, nti_sample_indices(&s, &shape, 6, -7), 6, 1, -7);
    return nti_check_index(op, nti_sample_between(&s, NT_I32, &shape, nti_sample_cases[entry].look[0], 0, 2), 6, 0, 0);
}

static nt_tensor *nti_sample_reshape(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], to, shape[5]; uint8_t look; } table[] = {
        { 1, { 12 }, 2, { 3, 4 }, NTI_LOOK },
        { 2, { 3, 4 }, 1, { 12 }, NTI_LOOK_SWAPPED },
        { 2, { 4, 6 }, 3, { 2, 2, 6 }, NTI_LOOK_STEPPED },
        { 3, { 2, 3, 4 }, 2, { 6, 4 }, NTI_LOOK_SWAPPED },
        { 3, { 2, 3, 4 }, 3, { 4, 3, 2 }, NTI_LOOK_CUT },
        { 0, { 0 }, 2, { 1, 1 }, NTI_LOOK },
        { 2, { 1, 1 }, 0, { 0 }, NTI_LOOK_STEPPED },
        { 3, { 2, 0, 3 }, 2, { 0, 5 }, NTI_LOOK },
        { 5, { 2, 1, 3, 1, 2 }, 4, { 1, 6, 1, 2 }, NTI_LOOK_SWAPPED },
        { 2, { 4, 6 }, 2, { 8, 3 }, NTI_LOOK_SPREAD },
        { 2, { 4, 6 }, 3, { 2, 2, 6 }, NTI_LOOK_FLIPPED },
        { 2, { 4, 6 }, 1, { 24 }, NTI_LOOK_FLIPPED },
        { 3, { 31, 40, 53 }, 2, { 53, 1240 }, NTI_LOOK_SWAPPED },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 12, 0, 1);
    if (entry < 0) return NULL;
    nt_shape from = nt_shape_make((int)table[entry].rank, table[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &from, table[entry].look);
    return nti_record(t, op, &x, 1, table[entry].shape, (int)table[entry].to, NULL, 0);
}

static nt_tensor *nti_sample_transpose(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], order[5]; uint8_t look; } table[] = {
        { 2, { 3, 4 }, { 1, 0 }, NTI_LOOK },
        { 2, { 3, 4 }, { 0, 1 }, NTI_LOOK_STEPPED },
        { 3, { 2, 3, 4 }, { 2, 0, 1 }, NTI_LOOK_SWAPPED },
        { 3, { 2, 0, 4 }, { 1, 2, 0 }, NTI_LOOK },
        { 0, { 0 }, { 0 }, NTI_LOOK },
        { 5, { 2, 3, 1, 2, 2 }, { 4, 2, 0, 3, 1 }, NTI_LOOK_CUT },
        { 1, { 5 }, { 0 }, NTI_LOOK_SPREAD },
        { 3, { 40, 31, 53 }, { 2, 1, 0 }, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 7, 0, 1);
    if (entry < 0) return NULL;
    nt_shape shape = nt_shape_make((int)table[entry].rank, table[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &shape, table[entry].look);
    return nti_record(t, op, &x, 1, table[entry].order, shape.rank, NULL, 0);
}

static nt_tensor *nti_sample_broadcast(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], to, shape[5]; uint8_t look; } table[] = {
        { 1, { 4 }, 2, { 3, 4 }, NTI_LOOK },
        { 2, { 3, 1 }, 2, { 3, 5 }, NTI_LOOK_SWAPPED },
        { 0, { 0 }, 3, { 2, 1, 3 }, NTI_LOOK },
        { 3, { 1, 3, 1 }, 5, { 2, 2, 4, 3, 2 }, NTI_LOOK_STEPPED },
        { 2, { 1, 3 }, 2, { 0, 3 }, NTI_LOOK },
        { 1, { 1 }, 1, { 1 }, NTI_LOOK },
        { 2, { 3, 4 }, 3, { 0, 3, 4 }, NTI_LOOK_CUT },
        { 2, { 1, 301 }, 3, { 3, 67, 301 }, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 7, 0, 1);
    if (entry < 0) return NULL;
    nt_shape from = nt_shape_make((int)table[entry].rank, table[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &from, table[entry].look);
    return nti_record(t, op, &x, 1, table[entry].shape, (int)table[entry].to, NULL, 0);
}

static nt_tensor *nti_sample_slice(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], start[5], step[5], count[5]; uint8_t look; } table[] = {
        { 1, { 9 }, { 2 }, { 1 }, { 5 }, NTI_LOOK },
        { 2, { 5, 7 }, { 1, 0 }, { 2, 3 }, { 2, 3 }, NTI_LOOK_SWAPPED },
        { 2, { 5, 7 }, { 5, 2 }, { 1, 1 }, { 0, 3 }, NTI_LOOK },
        { 3, { 3, 4, 5 }, { 0, 3, 1 }, { 1, 2, 2 }, { 3, 1, 2 }, NTI_LOOK_STEPPED },
        { 0, { 0 }, { 0 }, { 0 }, { 0 }, NTI_LOOK },
        { 5, { 2, 3, 2, 1, 4 }, { 1, 0, 0, 0, 1 }, { 1, 2, 1, 1, 1 }, { 1, 2, 2, 1, 3 }, NTI_LOOK_CUT },
        { 2, { 0, 3 }, { 0, 1 }, { 1, 1 }, { 0, 2 }, NTI_LOOK },
        { 2, { 4, 6 }, { 1, 1 }, { 1, 2 }, { 2, 2 }, NTI_LOOK_SPREAD },
        { 2, { 4, 6 }, { 1, 0 }, { 1, 2 }, { 2, 3 }, NTI_LOOK_FLIPPED },
        { 2, { 401, 301 }, { 1, 0 }, { 2, 1 }, { 200, 300 }, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 9, 0, 1);
    if (entry < 0) return NULL;
    nt_shape shape = nt_shape_make((int)table[entry].rank, table[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &shape, table[entry].look);
    return nti_record_slice(x, table[entry].start, table[entry].step, table[entry].count);
}

static nt_tensor *nti_sample_pad(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], before[5], after[5], inside[5]; uint8_t look; } table[] = {
        { 1, { 4 }, { 2 }, { 1 }, { 0 }, NTI_LOOK },
        { 2, { 3, 4 }, { 1, 0 }, { 0, 2 }, { 2, 1 }, NTI_LOOK_SWAPPED },
        { 2, { 5, 4 }, { -1, 2 }, { 2, -3 }, { 0, 0 }, NTI_LOOK_STEPPED },
        { 3, { 2, 3, 2 }, { 0, -1, 1 }, { 0, -1, -2 }, { 1, 2, 3 }, NTI_LOOK },
        { 0, { 0 }, { 0 }, { 0 }, { 0 }, NTI_LOOK },
        { 2, { 0, 3 }, { 2, 1 }, { 1, 0 }, { 3, 0 }, NTI_LOOK },
        { 2, { 3, 4 }, { -3, 0 }, { 0, 0 }, { 0, 0 }, NTI_LOOK_CUT },
        { 5, { 1, 2, 1, 2, 2 }, { 1, 0, 0, 1, 0 }, { 0, 1, 0, 0, 1 }, { 2, 1, 0, 0, 1 }, NTI_LOOK_SWAPPED },
        { 2, { 4, 3 }, { 0, 1 }, { 0, 0 }, { 0, 1 }, NTI_LOOK_FLIPPED },
        { 2, { 150, 201 }, { 3, 5 }, { 2, 7 }, { 1, 0 }, NTI_LOOK_SWAPPED },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 9, 0, 1);
    if (entry < 0) return NULL;
    nt_shape shape = nt_shape_make((int)table[entry].rank, table[entry].size);
    return nt_pad(nti_sample_operand(&s, &shape, table[entry].look), table[entry].before, table[entry].after, table[entry].inside,
                  dtype == NT_F16 || dtype == NT_BF16 ? 0 : 3);
}

// Parts of the sizes 2, 3, 2, 3 ... (or none) along the axis.
static nt_tensor *nti_sample_concat(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t parts, rank, size[5], axis; uint8_t look[2]; } table[] = {
        { 2, 1, { 2 }, 0, { NTI_LOOK, NTI_LOOK } },
        { 3, 2, { 2, 3 }, 1, { NTI_LOOK_SWAPPED, NTI_LOOK } },
        { 1, 2, { 2, 3 }, 0, { NTI_LOOK, NTI_LOOK } },
        { 5, 3, { 2, 2, 2 }, 1, { NTI_LOOK_STEPPED, NTI_LOOK_CUT } },
        { 34, 2, { 2, 2 }, 0, { NTI_LOOK, NTI_LOOK_SWAPPED } },
        { 3, 2, { 0, 2 }, 1, { NTI_LOOK, NTI_LOOK } },
        { 3, 2, { 3, 0 }, 1, { NTI_LOOK, NTI_LOOK } },
        { 2, 5, { 2, 1, 2, 1, 3 }, 2, { NTI_LOOK_SPREAD, NTI_LOOK_SWAPPED } },
        { 7, 2, { 90, 91 }, 0, { NTI_LOOK_SWAPPED, NTI_LOOK } },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    nt_tensor *in[34];
    int entry = nti_sample_entry(variant, 8, 0, 1);
    if (entry < 0) return NULL;
    int64_t axis = table[entry].axis;
    for (int k = 0; k < table[entry].parts; k++) {
        nt_shape shape = nt_shape_make((int)table[entry].rank, table[entry].size);
        shape.size[axis] += k % 2;
        in[k] = nti_sample_operand(&s, &shape, table[entry].look[k % 2]);
    }
    return nti_record(t, op, in, (int)table[entry].parts, &axis, 1, NULL, 0);
}

static nt_tensor *nti_sample_gather(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], axis, indices, shape[2], clip; uint8_t look; } table[] = {
        { 1, { 6 }, 0, 1, { 4 }, 0, NTI_LOOK },
        { 2, { 5, 3 }, 0, 2, { 2, 3 }, 1, NTI_LOOK_SWAPPED },
        { 3, { 2, 4, 3 }, 1, 1, { 7 }, 0, NTI_LOOK_STEPPED },
        { 2, { 3, 5 }, 1, 0, { 0 }, 0, NTI_LOOK },
        { 2, { 3, 5 }, 1, 1, { 0 }, 0, NTI_LOOK },
        { 3, { 0, 4, 2 }, 1, 1, { 3 }, 1, NTI_LOOK },
        { 4, { 2, 1, 3, 2 }, 2, 2, { 2, 2 }, 0, NTI_LOOK_CUT },
        { 2, { 0, 3 }, 0, 1, { 0 }, 0, NTI_LOOK },
        { 2, { 1, 3 }, 0, 1, { 5 }, 1, NTI_LOOK },
        { 2, { 50, 301 }, 0, 1, { 333 }, 0, NTI_LOOK },
        { 2, { 300, 77 }, 1, 1, { 400 }, 1, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 9, 0, 2), scatter = op == NTI_OP_SCATTER_ADD;
    if (entry < 0 || (scatter && !nti_sample_takes(&s))) return NULL;
    nt_shape x = nt_shape_make((int)table[entry].rank, table[entry].size),
             at = nt_shape_make((int)table[entry].indices, table[entry].shape), y = x;
    int axis = (int)table[entry].axis, clip = (int)table[entry].clip && !scatter;
    nt_tensor *a = nti_sample_operand(&s, &x, table[entry].look), *i = nti_sample_indices(&s, &at, x.size[axis], clip ? -9 : 0);
    if (!scatter) return nti_record_gather(a, i, axis, clip);
    y.rank = 0;
    for (int k = 0; k < axis; k++) y.size[y.rank++] = x.size[k];
    for (int k = 0; k < at.rank; k++) y.size[y.rank++] = at.size[k];
    for (int k = axis + 1; k < x.rank; k++) y.size[y.rank++] = x.size[k];
    return nt_scatter_add(a, i, nti_sample_operand(&s, &y, table[entry].look), axis);
}

static nt_tensor *nti_sample_flip(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const uint8_t masks[] = { 1, 0, 3, 5, 2, 7, 8, 31, 1, 3, 0, 1, 1, 6, 1 };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    int64_t mask = entry < 0 ? 0 : masks[entry];
    if (entry < 0) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_cases[entry].look[0]);
    return nti_record(t, op, &x, 1, &mask, 1, NULL, 0);
}

// x, the axis and the size of the indices along it.
static nt_tensor *nti_sample_along(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], axis, count; uint8_t look; } table[] = {
        { 1, { 6 }, 0, 4, NTI_LOOK },
        { 2, { 5, 3 }, 0, 7, NTI_LOOK_SWAPPED },
        { 3, { 2, 4, 3 }, 1, 4, NTI_LOOK_STEPPED },
        { 2, { 3, 5 }, 1, 2, NTI_LOOK_CUT },
        { 2, { 3, 5 }, 1, 0, NTI_LOOK },
        { 3, { 0, 4, 2 }, 1, 3, NTI_LOOK },
        { 4, { 2, 1, 3, 2 }, 2, 5, NTI_LOOK_SPREAD },
        { 2, { 0, 3 }, 0, 0, NTI_LOOK },
        { 2, { 40, 301 }, 0, 333, NTI_LOOK },
        { 2, { 300, 77 }, 1, 400, NTI_LOOK },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 8, 0, 2), scatter = op == NTI_OP_SCATTER_ALONG;
    if (entry < 0 || (scatter && !nti_sample_takes(&s))) return NULL;
    nt_shape x = nt_shape_make((int)table[entry].rank, table[entry].size), at = x;
    int64_t axis = table[entry].axis;
    at.size[axis] = table[entry].count;
    nt_tensor *a = nti_sample_operand(&s, &x, table[entry].look), *i = nti_sample_indices(&s, &at, x.size[axis], 0);
    return nti_record_along(a, i, scatter ? nti_sample_operand(&s, &at, table[entry].look) : NULL, axis);
}

// x, the leading axes that count places, the piece; starts reach beyond both ends.
static nt_tensor *nti_sample_dynamic(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t rank, size[5], lead, piece[5]; uint8_t look; } table[] = {
        { 1, { 9 }, 0, { 5 }, NTI_LOOK },
        { 2, { 5, 7 }, 0, { 2, 7 }, NTI_LOOK_SWAPPED },
        { 3, { 3, 4, 5 }, 1, { 3, 2, 3 }, NTI_LOOK_STEPPED },
        { 3, { 2, 3, 6 }, 2, { 2, 3, 1 }, NTI_LOOK_CUT },
        { 0, { 0 }, 0, { 0 }, NTI_LOOK },
        { 2, { 4, 6 }, 0, { 0, 6 }, NTI_LOOK_SPREAD },
        { 3, { 0, 4, 3 }, 1, { 0, 2, 3 }, NTI_LOOK },
        { 5, { 2, 3, 2, 1, 4 }, 0, { 1, 2, 2, 1, 3 }, NTI_LOOK_SWAPPED },
        { 3, { 17, 80, 61 }, 1, { 17, 60, 59 }, NTI_LOOK },
        { 2, { 401, 301 }, 0, { 300, 300 }, NTI_LOOK_SWAPPED },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 8, 0, 2), lead = entry < 0 ? 0 : (int)table[entry].lead;
    if (entry < 0) return NULL;
    nt_shape x = nt_shape_make((int)table[entry].rank, table[entry].size), piece = nt_shape_make(x.rank, table[entry].piece), at = x;
    at.rank = lead + 1, at.size[lead] = x.rank - lead;
    nt_tensor *a = nti_sample_operand(&s, &x, table[entry].look), *i = nti_sample_indices(&s, &at, 9, -2);
    if (op == NTI_OP_DYNAMIC_SLICE) return nti_record_dynamic_slice(a, i, lead, piece.size);
    return nti_record_dynamic_update(a, nti_sample_operand(&s, &piece, table[entry].look), i, lead);
}

static nt_tensor *nti_sample_scan(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    if (!shape.rank) shape.size[shape.rank++] = 4;
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_cases[entry].look[0]), *b = NULL;
    if (op == NTI_OP_LINEAR_SCAN) b = nti_sample_operand(&s, &shape, nti_sample_cases[entry].look[1]);
    return nti_scan(op, x, b, (variant + (int)seed) % shape.rank, variant / 2 % 2);
}

static nt_tensor *nti_sample_argsort(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int64_t i[3];
    int entry = nti_sample_case_of(variant);
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    if (!shape.rank) shape.size[shape.rank++] = 4;
    i[0] = variant % shape.rank, i[1] = variant / 2 % 2, i[2] = i[1] ? (shape.size[i[0]] + 1) / 2 : shape.size[i[0]];
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_cases[entry].look[0]);
    return nti_record(t, op, &x, 1, i, 3, NULL, 0);
}

// Fused ----------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_softmax(nt_tape *t, int op, nt_dtype dtype, int variant,
                                     uint32_t seed) { // and its derivatives: y and a cotangent
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_row_of(variant);
    int64_t kind = op == NTI_OP_LOG_SOFTMAX;
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape shape = nt_shape_make((int)nti_sample_rows[entry].rank, nti_sample_rows[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_rows[entry].look[0]);
    if (s.row->inputs == 1) return nti_record(t, op, &x, 1, &kind, 1, NULL, 0);
    return nti_record2(op, x, nti_sample_operand(&s, &shape, nti_sample_rows[entry].look[1]));
}

static nt_tensor *nti_sample_cross_entropy(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_row_of(variant), ignored = variant % 3 == 1;
    int64_t i[2];
    double smoothing = variant % 2 ? 0.2 : 0;
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape x = nt_shape_make((int)nti_sample_rows[entry].rank, nti_sample_rows[entry].size), y = x;
    y.rank--;
    i[0] = -7, i[1] = ignored;
    nt_tensor *logits = nti_sample_operand(&s, &x, nti_sample_rows[entry].look[0]), *third = NULL;
    nt_tensor *labels = nti_check_index(op, nti_sample_indices(&s, &y, x.size[y.rank], ignored ? -7 : 0), x.size[y.rank], ignored, -7);
    if (op == NTI_OP_CROSS_ENTROPY_GRAD) third = nti_sample_operand(&s, &y, NTI_LOOK);
    if (op == NTI_OP_CROSS_ENTROPY_JVP) third = nti_sample_operand(&s, &x, nti_sample_rows[entry].look[1]);
    return nti_record_cross_entropy(op, logits, labels, third, i, &smoothing);
}

static nt_tensor *nti_sample_norm(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_row_of(variant);
    double eps = 0.1;
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_shape shape = nt_shape_make((int)nti_sample_rows[entry].rank, nti_sample_rows[entry].size);
    nt_tensor *x = nti_sample_operand(&s, &shape, nti_sample_rows[entry].look[0]),
              *stats = nti_record_numbers(NTI_OP_NORM_STATS, x, &eps, 1);
    if (op == NTI_OP_NORM_STATS) return stats;
    return nti_record_norm(op, x, stats, op == NTI_OP_NORM ? NULL : nti_sample_operand(&s, &shape, nti_sample_rows[entry].look[1]), eps);
}

// Each entry: examples, queries, keys, heads, d, dv; how q, k, v and the cotangent or tangents lie (9: parts of one projection); the mask:
// 1 whole, 2 of keys only, 3 through other strides. Every query sees the first key.
enum { NTI_LOOK_PACKED = 9 };
static nt_tensor *nti_sample_head(nti_sampler *s, const nt_shape *shape, int look, nt_tensor **packed, int part) {
    nt_shape all = *shape;
    if (look != NTI_LOOK_PACKED) return nti_sample_operand(s, shape, look);
    int64_t width = shape->size[2] * shape->size[3];
    all.rank = 3, all.size[2] = 3 * width;
    if (!*packed) *packed = nti_sample_operand(s, &all, NTI_LOOK);
    return nt_reshape(nt_slice_axis(*packed, 2, part * width, (part + 1) * width), *shape);
}

static nt_tensor *nti_sample_attention(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    static const struct { int64_t b, t, s, h, d, dv; uint8_t look[3], causal, mask; double scale; } table[] = {
        { 2, 3, 4, 2, 3, 5, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 0, 0.6 },
        { 1, 5, 5, 2, 4, 4, { NTI_LOOK_PACKED, NTI_LOOK_PACKED, NTI_LOOK_PACKED }, 1, 0, 0.5 },
        { 2, 4, 3, 1, 2, 3, { NTI_LOOK_SWAPPED, NTI_LOOK_STEPPED, NTI_LOOK_CUT }, 0, 1, 0.7 },
        { 2, 3, 5, 2, 1, 1, { NTI_LOOK_SPREAD, NTI_LOOK_CUT, NTI_LOOK_SWAPPED }, 1, 2, -0.8 },
        { 1, 2, 2, 3, 2, 2, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 3, 0 },
        { 2, 0, 3, 2, 2, 3, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 1, 0.5 },
        { 2, 3, 0, 2, 2, 3, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 0, 0.5 },
        { 0, 3, 2, 2, 2, 3, { NTI_LOOK, NTI_LOOK_SWAPPED, NTI_LOOK }, 1, 0, 0.5 },
        { 1, 2, 3, 2, 0, 2, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 0, 0.5 },
        { 1, 2, 3, 2, 2, 0, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 0, 0, 0.5 },
        { 1, 19, 23, 1, 17, 33, { NTI_LOOK, NTI_LOOK_CUT, NTI_LOOK }, 0, 1, 0.3 },
        { 2, 230, 230, 3, 33, 20, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 1, 2, 0.1 },
        { 1, 520, 400, 2, 40, 70, { NTI_LOOK_CUT, NTI_LOOK, NTI_LOOK_STEPPED }, 0, 1, 0.1 },
        { 1, 130, 600, 1, 512, 32, { NTI_LOOK, NTI_LOOK, NTI_LOOK }, 1, 0, 0.05 },
        { 3, 65, 65, 7, 64, 64, { NTI_LOOK, NTI_LOOK_CUT, NTI_LOOK }, 0, 0, 0.125 },
    };
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_entry(variant, 11, 0, 4), kind = op == NTI_OP_ATTENTION ? NTI_ATTEND : op == NTI_OP_ATTENTION_GRAD ? NTI_ATTEND_GRAD : NTI_ATTEND_JVP;
    if (entry < 0 || !nti_sample_takes(&s)) return NULL;
    nt_tensor *x[6] = { NULL, NULL, NULL, NULL, NULL, NULL }, *mask = NULL, *packed = NULL, *packed_too = NULL;
    nt_shape q = nt_shape_make(4, &table[entry].b), k, v, out, seen = nt_shape_make(4, &table[entry].b);
    q.size[1] = table[entry].t, q.size[2] = table[entry].h, q.size[3] = table[entry].d;
    k = v = out = q, k.size[1] = v.size[1] = table[entry].s, v.size[3] = out.size[3] = table[entry].dv;
    const nt_shape *shapes[3] = { &q, &k, &v };
    int tangents = variant % 4 == 3 ? 5 : variant % 4 == 2 ? 2 : 7;
    for (int j = 0; j < 3; j++) x[j] = nti_sample_head(&s, shapes[j], table[entry].look[j], &packed, j);
    if (kind == NTI_ATTEND_GRAD) x[3] = nti_sample_operand(&s, &out, table[entry].look[1] == NTI_LOOK_PACKED ? NTI_LOOK_SPREAD : table[entry].look[1]);
    for (int j = 0; kind == NTI_ATTEND_JVP && j < 3; j++)
        if (tangents >> j & 1) x[3 + j] = nti_sample_head(&s, shapes[j], table[entry].look[j], &packed_too, j);
    seen.size[1] = q.size[2], seen.size[2] = q.size[1], seen.size[3] = k.size[1];
    if (table[entry].mask == 2) seen.size[1] = seen.size[2] = 1;
    if (table[entry].mask == 3) seen.size[2] = k.size[1], seen.size[3] = q.size[1];
    if (table[entry].mask) {
        mask = nti_sample_variable(&s, NT_BOOL, &seen, 0, 1);
        int64_t n = nt_size(mask), keys = k.size[1], queries = table[entry].mask == 2 ? 1 : q.size[1];
        for (int64_t j = 0; mask && keys && j < n; j++)
            if (table[entry].mask == 3 ? j / queries % keys == 0 : j % keys == 0) ((uint8_t *)nti_n(mask)->storage)[j] = 1;
        if (table[entry].mask == 3) mask = nt_swap_axes(mask, 2, 3);
        seen.size[1] = q.size[2], seen.size[2] = q.size[1], seen.size[3] = k.size[1];
        mask = nt_broadcast(mask, seen);
    }
    return nti_record_attention(op, kind, x, mask, table[entry].causal, table[entry].scale);
}

// Random numbers ---------------------------------------------------------------------------------------------------------------

static nt_shape nti_sample_pair(void) {
    int64_t two = 2;
    return nt_shape_make(1, &two);
}

static nt_tensor *nti_sample_key(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    nt_shape pair = nti_sample_pair(), shape = nti_sample_shape((int)nti_max(0, nti_sample_case_of(variant)));
    int64_t i[3];
    i[0] = nti_dice(&s), i[1] = nti_dice(&s), i[2] = variant;
    if (dtype != NT_U32 || nti_sample_case_of(variant) < 0) return NULL;
    if (op == NTI_OP_KEY) return variant < 2 ? nti_record(t, op, NULL, 0, i, 3, NULL, 0) : NULL;
    if (op == NTI_OP_SPLIT) return nt_split(nti_sample_between(&s, NT_U32, &pair, variant % 5, 0, 1e6), shape);
    if (variant >= 5) return NULL;
    nt_tensor *key = nti_sample_between(&s, NT_U32, &pair, variant, 0, 1e6);
    pair.rank = 0;
    return nt_fold_in(key, nti_sample_between(&s, variant % 2 ? NT_I32 : NT_U32, &pair, NTI_LOOK, -1000, 1e6));
}

static nt_tensor *nti_sample_random(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    int entry = nti_sample_case_of(variant);
    if (entry < 0 || dtype == NT_F16 || dtype == NT_BF16) return NULL;
    nt_shape shape = nti_sample_shape(entry), pair = nti_sample_pair();
    nt_tensor *key = nti_sample_between(&s, NT_U32, &pair, variant % 5, 0, 1e6);
    if (dtype == NT_BOOL) return nt_bernoulli(key, 0.3, shape);
    if (!nti_is_float(dtype))
        return variant % 2 && (NTI_UNSIGNED >> dtype & 1) ? nt_random_bits(key, dtype, shape) : nt_randint(key, dtype, shape, 3, 100);
    if (variant % 3 == 0) return nt_uniform(key, dtype, shape, -1, 3);
    return variant % 3 == 1 ? nt_normal(key, dtype, shape) : nt_truncated_normal(key, dtype, shape, -1.5, 2);
}

// Effects ----------------------------------------------------------------------------------------------------------------------

static nt_tensor *nti_sample_effect(nt_tape *t, int op, nt_dtype dtype, int variant, uint32_t seed) {
    nti_sampler s = nti_sampler_make(t, op, dtype, variant, seed);
    static const int64_t moments[] = { 0, 1, 3 };
    nt_tensor *in[4];
    int64_t i[2];
    int entry = nti_sample_case_of(variant), n = 2;
    if (entry < 0 || (op != NTI_OP_ASSIGN && !nti_is_float(dtype))) return NULL;
    nt_shape shape = nti_sample_shape(entry);
    in[0] = nti_sample_between(&s, dtype, &shape, NTI_LOOK, -2, 2),
    in[1] = nti_sample_between(&s, dtype, &shape, nti_sample_cases[entry].look[0], -2, 2);
    if (op == NTI_OP_ASSIGN) return nti_record2(op, in[0], in[1]);
    i[0] = variant % 2, i[1] = variant % 2;
    if (op == NTI_OP_ACCUMULATE) return nti_record(t, op, in, 2, i, 1, NULL, 0);
    i[0] = moments[variant % 3];
    if (i[0] & 1) in[n++] = nti_sample_between(&s, dtype, &shape, NTI_LOOK, -1, 1);
    if (i[0] & 2) in[n++] = nti_sample_between(&s, dtype, &shape, NTI_LOOK, 0.1, 1);
    return nti_record(t, op, in, n, i, 2, NULL, 0);
}
#endif
// The table.
#if defined(NTTRAIN_TESTS)
#define NTI_SAMPLE(sample) sample
#else
#define NTI_SAMPLE(sample) NULL
#endif
#define NTI_ROW(ID, name, inputs, flags, linear, map, low, high, infer, view, plan, eval, cost, partial, jvp, vjp, vmap, decompose, sample) \
    { name, inputs, (uint32_t)(flags), linear, map, low, high, infer, view, plan, eval, cost, partial, jvp,                                \
      vjp,  vmap,   decompose,         NTI_SAMPLE(sample) },
static const nti_row nti_rows[NTI_OP_COUNT] = { NTI_ROWS(NTI_ROW) };
static const nti_row *nti_row_of(int op) { return &nti_rows[op]; }

// The map of an elementwise instruction, for the dtype of its operands.
static nti_map_fn nti_map_of(const nti_call *c) {
    int map = nti_rows[c->op].map;
    nt_dtype dtype = (nt_dtype)c->in[c->inputs - 1].dtype;
    if (nti_is_float(dtype)) return c->isa->math[dtype == NT_F64]->map[map];
    return nti_integer_map(dtype, (nti_map)map);
}
// >>autodiff
// ---------------------------------------------------------------------------------------------------------------------
// vjp and jvp over the recorded chain, without recursion: one walk to find what the outputs need, one to find what depends
// on the inputs, one that applies the rules. Marks and adjoints lie in the nodes; a rule that lacks its own derivative is
// differentiated through its decomposition on stand-ins for the operands, all of them newer than the walk that asked.
// ---------------------------------------------------------------------------------------------------------------------

static int nti_list_valid(nt_params list) { return list.count > 0 && list.items && list.items[0]; }

// The operands of n as tensors: in `few` where they fit, else on the tape.
static nt_tensor **nti_operands(const nti_node *n, nt_tensor **few) {
    nt_tensor **x = n->inputs <= NTI_FEW ? few : (nt_tensor **)nti_low(n->pub.tape, n->inputs * sizeof *x);
    if (!x) { nti_record_memory(n->pub.tape, n->op); return NULL; }
    for (int k = 0; k < n->inputs; k++) x[k] = &n->in[k]->pub;
    return x;
}

typedef struct nti_walk { // the part of the chain between the oldest input and the newest output
    uint32_t epoch;
    uint64_t lower;
    nti_node *from, *to;  // oldest and newest node of the chain in it
} nti_walk;

// Marks everything that the outputs need and that is not older than every input.
static nti_walk nti_walk_mark(nt_tape *t, const nt_params *outputs, const nt_params *inputs) {
    nti_walk w;
    w.epoch = ++t->epoch, w.lower = UINT64_MAX, w.from = NULL, w.to = t->last;
    for (int k = 0; k < inputs->count; k++)
        if (nti_n(inputs->items[k])->serial < w.lower) w.lower = nti_n(inputs->items[k])->serial;
    for (int k = 0; k < outputs->count; k++) {
        nti_node *n = nti_n(outputs->items[k]);
        n->mark = w.epoch, n->adjoint = n->pending = NULL;
    }
    for (nti_node *n = w.to; n && n->serial >= w.lower; n = n->previous) {
        w.from = n;
        if (n->mark != w.epoch) continue;
        for (int k = 0; k < n->inputs; k++)
            if (n->in[k]->serial >= w.lower && n->in[k]->mark != w.epoch)
                n->in[k]->mark = w.epoch, n->in[k]->adjoint = n->in[k]->pending = NULL;
    }
    return w;
}

static nti_node *nti_walk_end(const nti_walk *w) { return w->to ? w->to->next : NULL; }

// Operands of a decomposition: aliases, so that a value used twice is differentiated in each place by itself.
static nt_tensor *nti_stand_in(nt_tensor *x) {
    return nti_is_float(x->dtype) ? nti_record(x->tape, NTI_OP_RESHAPE, &x, 1, x->shape, x->rank, NULL, 0) : x;
}

static void nti_vjp_walk(nt_tape *t, nt_params outputs, nt_params cotangents, nt_params inputs, nt_tensor **result);
static void nti_jvp_walk(nt_tape *t, nt_params outputs, nt_params inputs, nt_params tangents, nt_tensor **result);

// The cotangents of n's operands that depend on the inputs, from its decomposition. Zero stays NULL.
static void nti_vjp_decomposed(nti_node *n, uint32_t epoch, nt_tensor **x, nt_tensor **c) {
    nt_tensor *in[NTI_FEW], *wanted[NTI_FEW], *got[NTI_FEW], *y, *g = &n->adjoint->pub;
    int at[NTI_FEW], count = 0;
    for (int k = 0; k < n->inputs; k++) {
        in[k] = nti_stand_in(x[k]);
        if (n->in[k]->reach == epoch && nti_is_float(x[k]->dtype)) at[count] = k, wanted[count++] = in[k];
    }
    y = n->pub.tape->sticky ? NULL : nti_row_of(n->op)->decompose(&n->pub, in);
    if (!y || !count) return;
    nti_vjp_walk(n->pub.tape, nti_list(&y, 1), nti_list(&g, 1), nti_list(wanted, count), got);
    for (int k = 0; k < count; k++) c[at[k]] = got[k];
}

static nt_tensor *nti_vjp_through(nt_tensor *y, nt_tensor **x, nt_tensor *g, int k) { // of one operand
    nt_tensor *in[NTI_FEW], *z, *result = NULL;
    for (int j = 0; j < nti_n(y)->inputs; j++) in[j] = nti_stand_in(x[j]);
    z = y->tape->sticky ? NULL : nti_row_of(nti_n(y)->op)->decompose(y, in);
    if (z) nti_vjp_walk(y->tape, nti_list(&z, 1), nti_list(&g, 1), nti_list(&in[k], 1), &result);
    return result;
}

// Sums what has arrived from inside of a loop over its iterations.
static void nti_flush_adjoint(nti_node *n) {
    nt_tensor *g = n->pending ? &n->pending->pub : NULL;
    for (nt_map *m = n->pending_loop; g && m != n->loop; m = m->parent) g = nt_map_sum(m, g);
    n->pending = NULL, n->pending_loop = NULL;
    if (g) n->adjoint = nti_n(nti_sum_of(n->adjoint ? &n->adjoint->pub : NULL, g));
}

// A part of n's cotangent, from every iteration of `loop`. Parts from one loop are added inside of it: one sum leaves it.
static void nti_add_adjoint(nti_node *n, nt_tensor *g, nt_map *loop) {
    if (n->pending && n->pending_loop != loop && loop != n->loop) nti_flush_adjoint(n);
    nti_node **sum = loop == n->loop ? &n->adjoint : &n->pending;
    *sum = nti_n(nti_sum_of(*sum ? &(*sum)->pub : NULL, g));
    if (sum == &n->pending) n->pending_loop = loop;
}

// The loop that runs the rule's result: n's own; a slice's is the stack of its parts, outside of the map; a result's is inside.
static nt_map *nti_adjoint_loop(const nti_node *n) {
    if (n->op == NTI_OP_MAP_SLICE) return n->in[1]->loop->parent;
    return nti_row_of(n->op)->flags & NTI_LEAVES ? n->in[1]->loop : n->loop;
}

static int nti_vjp_node(nti_node *n, uint32_t epoch) { // 0 after an error
    const nti_row *row = nti_row_of(n->op);
    nt_tensor *few[NTI_FEW], *c[NTI_FEW], **x = nti_operands(n, few);
    memset(c, 0, sizeof c);
    if (!x) return 0;
    if (!row->vjp && row->decompose) nti_vjp_decomposed(n, epoch, x, c);
    else if (!row->vjp) return nti_no_derivative(n);
    for (int k = 0; k < n->inputs; k++) {
        nti_node *in = n->in[k];
        if (in->reach != epoch) continue;
        if (!nti_is_float(in->pub.dtype)) return nti_no_derivative(in); // a storage dtype: no cotangent of it to compute with
        nt_tensor *g = row->vjp ? row->vjp(&n->pub, x, &n->adjoint->pub, k) : c[k];
        if (g) nti_add_adjoint(in, g, nti_adjoint_loop(n));
    }
    return !n->pub.tape->sticky;
}

// What has arrived at a view of something smaller goes on to it inside of the loop: a bias is summed, not its broadcast.
static void nti_vjp_view_inside(nti_node *n) {
    const nti_row *row = nti_row_of(n->op);
    nt_tensor *x = n->inputs == 1 ? &n->in[0]->pub : NULL;
    if (!n->pending || !x || !(row->flags & NTI_VIEW) || !row->vjp || nt_size(x) > nt_size(&n->pub) || !nti_is_float(x->dtype)) return;
    nt_tensor *g = row->vjp(&n->pub, &x, &n->pending->pub, 0);
    nt_map *loop = n->pending_loop;
    n->pending = NULL;
    if (g) nti_add_adjoint(n->in[0], g, loop);
}

static void nti_vjp_walk(nt_tape *t, nt_params outputs, nt_params cotangents, nt_params inputs, nt_tensor **result) {
    nti_walk w = nti_walk_mark(t, &outputs, &inputs);
    nti_node *end = nti_walk_end(&w);
    for (int k = 0; k < inputs.count; k++) nti_n(inputs.items[k])->reach = w.epoch, nti_n(inputs.items[k])->wanted = 1;
    for (nti_node *n = w.from; n && n != end; n = n->next) {
        if (n->mark != w.epoch || n->reach == w.epoch || (nti_row_of(n->op)->flags & NTI_NO_GRADIENT) || !nti_dtypes[n->pub.dtype].floating)
            continue;
        for (int k = 0; k < n->inputs; k++)
            if (n->in[k]->reach == w.epoch) n->reach = w.epoch;
    }
    for (int k = 0; k < outputs.count; k++) {
        nti_node *n = nti_n(outputs.items[k]);
        if (cotangents.items[k]) n->adjoint = nti_n(nti_sum_of(n->adjoint ? &n->adjoint->pub : NULL, cotangents.items[k]));
    }
    for (nti_node *n = w.to; n && n->serial >= w.lower && !t->sticky; n = n->previous) {
        if (n->mark != w.epoch || n->reach != w.epoch || !n->inputs || n->wanted || (nti_row_of(n->op)->flags & NTI_NO_GRADIENT)) continue;
        nti_vjp_view_inside(n);
        nti_flush_adjoint(n);
        if (n->adjoint && !nti_vjp_node(n, w.epoch)) break;
    }
    for (int k = 0; k < inputs.count; k++) {
        nti_node *n = nti_n(inputs.items[k]);
        if (n->mark == w.epoch) nti_flush_adjoint(n);
        n->wanted = 0, result[k] = n->mark == w.epoch && n->adjoint ? &n->adjoint->pub : NULL;
    }
}

static nt_tensor *nti_jvp_through(nt_tensor *y, nt_tensor **x, nt_tensor **t) {
    nt_tensor *in[NTI_FEW], *at[NTI_FEW], *along[NTI_FEW], *z, *result = NULL;
    int count = 0;
    for (int k = 0; k < nti_n(y)->inputs; k++) {
        in[k] = nti_stand_in(x[k]);
        if (t[k]) at[count] = in[k], along[count++] = t[k];
    }
    z = y->tape->sticky ? NULL : nti_row_of(nti_n(y)->op)->decompose(y, in);
    if (z) nti_jvp_walk(y->tape, nti_list(&z, 1), nti_list(at, count), nti_list(along, count), &result);
    return result;
}

static nt_tensor *nti_jvp_node(nti_node *n, nt_tensor **x, nt_tensor **tangent) {
    const nti_row *row = nti_row_of(n->op);
    if (row->jvp) return row->jvp(&n->pub, x, tangent);
    if (row->decompose) return nti_jvp_through(&n->pub, x, tangent);
    nti_no_derivative(n);
    return NULL;
}

static void nti_jvp_walk(nt_tape *t, nt_params outputs, nt_params inputs, nt_params tangents, nt_tensor **result) {
    nti_walk w = nti_walk_mark(t, &outputs, &inputs);
    nti_node *end = nti_walk_end(&w);
    for (int k = 0; k < inputs.count; k++) {
        nti_node *n = nti_n(inputs.items[k]);
        if (!tangents.items[k]) continue;
        n->adjoint =
            nti_n(nti_sum_of(n->reach == w.epoch && n->adjoint ? &n->adjoint->pub : NULL, tangents.items[k])); // named twice: both count
        n->reach = w.epoch;
    }
    for (nti_node *n = w.from; n && n != end && !t->sticky; n = n->next) {
        if (n->mark != w.epoch || n->reach == w.epoch || (nti_row_of(n->op)->flags & NTI_NO_GRADIENT)) continue;
        int any = 0;
        for (int k = 0; k < n->inputs; k++) any |= n->in[k]->reach == w.epoch;
        if (!any) continue;
        nt_tensor *few[NTI_FEW], *along[NTI_FEW], **x = nti_operands(n, few),
                                                  **d = x && n->inputs > NTI_FEW ? nti_operands(n, along) : along;
        if (!x || !d) break;
        for (int k = 0; k < n->inputs; k++) d[k] = n->in[k]->reach == w.epoch && nti_is_float(x[k]->dtype) ? &n->in[k]->adjoint->pub : NULL;
        nt_tensor *y = nti_jvp_node(n, x, d);
        if (y) n->adjoint = nti_n(y), n->reach = w.epoch;
    }
    for (int k = 0; k < outputs.count; k++) {
        nti_node *n = nti_n(outputs.items[k]);
        result[k] = n->reach == w.epoch && n->adjoint ? &n->adjoint->pub : NULL;
    }
}

// Checks of the public calls: lists without holes, of one tape, floating; `like` gives the shapes of tangents (which may be NULL).
static int nti_derivative_list(nt_tape *t, const char *name, const char *what, nt_params list) {
    for (int k = 0; k < list.count; k++) {
        nt_tensor *x = list.items ? list.items[k] : NULL;
        if (!x) return 0;
        if (!nti_alive(x)) return 0;
        if (x->tape != t) nti_sticky(t, NT_ERROR_ARGUMENT, "%s: %s %d, %v, belongs to another tape", name, what, k, x);
        else if (!nti_is_float(x->dtype))
            nti_sticky(t, NT_ERROR_DTYPE,
                       "%s: %s %d is %v; derivatives are defined for f32 and f64 only, nt_cast what should be differentiated", name, what,
                       k, x);
        else continue;
        return 0;
    }
    return 1;
}

static int nti_along_list(nt_tape *t, const char *name, const char *what, nt_params list, nt_params like) {
    if (list.count != like.count) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "%s: %d %s for %d values", name, list.count, what, like.count);
        return 0;
    }
    for (int k = 0; k < list.count; k++) {
        nt_tensor *x = list.items[k];
        if (!x) continue;
        if (!nti_alive(x)) return 0;
        if (x->tape == t && x->dtype == like.items[k]->dtype && nti_same_shape(x, like.items[k])) continue;
        nti_sticky(t, NT_ERROR_SHAPE, "%s: %s %d is %v, but its value is %v (same tape, dtype and shape)", name, what, k, x, like.items[k]);
        return 0;
    }
    return 1;
}

static nt_params nti_result_list(nt_tape *t, const char *name, int count) {
    nt_params p = nti_list((nt_tensor **)nti_low(t, (size_t)count * sizeof(nt_tensor *)), count);
    if (p.items) return p;
    nti_no_room(t, name);
    return nti_list(NULL, 0);
}

static nt_params nti_finish_list(nt_tape *t, nt_params p, nt_params like) { // zeros where nothing arrived
    for (int k = 0; k < p.count && !t->sticky; k++)
        if (!p.items[k]) p.items[k] = nt_full_like(like.items[k], 0);
    return t->sticky ? nti_list(NULL, 0) : p;
}

NT_API nt_params nt_vjp(nt_params outputs, nt_params cotangents, nt_params inputs) {
    nt_params none = nti_list(NULL, 0);
    if (!nti_list_valid(outputs) || !nti_list_valid(inputs) || (outputs.count && !cotangents.items)) return none;
    nt_tape *t = outputs.items[0]->tape;
    if (!nti_derivative_list(t, "nt_vjp", "output", outputs) || !nti_derivative_list(t, "nt_vjp", "input", inputs)) return none;
    if (!nti_along_list(t, "nt_vjp", "cotangent", cotangents, outputs)) return none;
    nt_params p = nti_result_list(t, "nt_vjp", inputs.count);
    if (p.count) nti_vjp_walk(t, outputs, cotangents, inputs, p.items);
    return nti_finish_list(t, p, inputs);
}

NT_API nt_params nt_jvp(nt_params outputs, nt_params inputs, nt_params tangents) {
    nt_params none = nti_list(NULL, 0);
    if (!nti_list_valid(outputs) || !nti_list_valid(inputs) || !tangents.items) return none;
    nt_tape *t = outputs.items[0]->tape;
    if (!nti_derivative_list(t, "nt_jvp", "output", outputs) || !nti_derivative_list(t, "nt_jvp", "input", inputs)) return none;
    if (!nti_along_list(t, "nt_jvp", "tangent", tangents, inputs)) return none;
    nt_params p = nti_result_list(t, "nt_jvp", outputs.count);
    if (p.count) nti_jvp_walk(t, outputs, inputs, tangents, p.items);
    return nti_finish_list(t, p, outputs);
}

NT_API nt_params nt_grads(nt_tensor *y, nt_params params) {
    nt_params none = nti_list(NULL, 0);
    if (!nti_alive(y) || !nti_list_valid(params)) return none;
    if (!nti_is_float(y->dtype)) nti_sticky(y->tape, NT_ERROR_DTYPE, "nt_grad of %v: derivatives are defined for f32 and f64 only", y);
    else if (nt_size(y) != 1)
        nti_sticky(y->tape, NT_ERROR_SHAPE,
                   "nt_grad of %v: a gradient is that of one number; take nt_mean or nt_sum first, or nt_vjp with a cotangent", y);
    if (y->tape->sticky) return none;
    nt_tensor *one = nt_full_like(y, 1);
    return one ? nt_vjp(nti_list(&y, 1), nti_list(&one, 1), params) : none;
}

NT_API nt_tensor *nt_grad(nt_tensor *y, nt_tensor *x) {
    if (!x || !y) return NULL;
    nt_params g = nt_grads(y, nti_list(&x, 1));
    return g.count ? g.items[0] : NULL;
}
// >>transforms
// ---------------------------------------------------------------------------------------------------------------------
// Transforms that record values again: substitution and what is made of it. One walk over the recorded chain, as those of
// >>autodiff; the replacement of a node is its adjoint there.
// ---------------------------------------------------------------------------------------------------------------------

// Records n again on the operands x, which replace its own.
static nt_tensor *nti_replay_node(nti_node *n, nt_tensor **x) {
    nt_tensor *y = nti_again(&n->pub, x);
    if (y && !y->name) y->name = n->pub.name, nti_n(y)->name_serial = n->name_serial; // older than y: a rewind ends y first
    return y;
}

// The outputs with to[k] for from[k], in `result`; 0 after an error. What does not depend on `from` is shared.
static int nti_replay(nt_tape *t, nt_params outputs, nt_params from, nt_params to, nt_tensor **result) {
    nti_walk w = nti_walk_mark(t, &outputs, &from);
    for (int k = 0; k < from.count; k++) nti_n(from.items[k])->reach = w.epoch, nti_n(from.items[k])->adjoint = nti_n(to.items[k]);
    for (nti_node *n = w.from; n && !t->sticky; n = n == w.to ? NULL : n->next) {
        if (n->mark != w.epoch || n->reach == w.epoch) continue;
        int any = 0;
        for (int k = 0; k < n->inputs; k++) any |= n->in[k]->reach == w.epoch;
        if (!any) continue;
        nt_tensor *few[NTI_FEW], **x = nti_operands(n, few);
        for (int k = 0; x && k < n->inputs; k++)
            if (n->in[k]->reach == w.epoch) x[k] = &n->in[k]->adjoint->pub;
        nt_tensor *y = x ? nti_replay_node(n, x) : NULL;
        if (!y) return 0;
        n->adjoint = nti_n(y), n->reach = w.epoch;
    }
    for (int k = 0; k < outputs.count; k++) {
        nti_node *n = nti_n(outputs.items[k]);
        result[k] = n->reach == w.epoch ? &n->adjoint->pub : &n->pub;
    }
    return !t->sticky;
}

// A list without holes, of one tape.
static int nti_value_list(nt_tape *t, const char *name, const char *what, nt_params list) {
    for (int k = 0; k < list.count; k++) {
        nt_tensor *x = list.items ? list.items[k] : NULL;
        if (!x || !nti_alive(x)) return 0;
        if (x->tape == t) continue;
        nti_sticky(t, NT_ERROR_ARGUMENT, "%s: %s %d, %v, belongs to another tape", name, what, k, x);
        return 0;
    }
    return 1;
}

// `what` has a value for each of `like`, none of them NULL, and no value of `like` is named twice: it could be replaced by one only.
static int nti_replacement_list(nt_tape *t, const char *name, const char *what, nt_params list, nt_params like) {
    if (list.count != like.count) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "%s: %d %s for %d values", name, list.count, what, like.count);
        return 0;
    }
    if (!nti_value_list(t, name, "value", like) || !nti_value_list(t, name, what, list)) return 0;
    uint32_t epoch = ++t->epoch;
    for (int k = 0; k < like.count; k++) {
        nti_node *n = nti_n(like.items[k]);
        if (n->reach == epoch) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: value %d, %v, is named twice", name, k, like.items[k]); return 0; }
        n->reach = epoch;
    }
    return 1;
}

NT_API nt_params nt_substitute_many(nt_params outputs, nt_params from, nt_params to) {
    nt_params none = nti_list(NULL, 0);
    if (!nti_list_valid(outputs) || !nti_list_valid(from) || !to.items) return none;
    nt_tape *t = outputs.items[0]->tape;
    if (!nti_value_list(t, "nt_substitute", "output", outputs) || !nti_replacement_list(t, "nt_substitute", "replacement", to, from) ||
        !nti_along_list(t, "nt_substitute", "replacement", to, from))
        return none;
    nt_params p = nti_result_list(t, "nt_substitute", outputs.count);
    return p.count && nti_replay(t, outputs, from, to, p.items) ? p : none;
}

NT_API nt_tensor *nt_substitute(nt_tensor *y, nt_params from, nt_params to) {
    nt_params p = nt_substitute_many(nti_list(&y, 1), from, to);
    return p.count ? p.items[0] : NULL;
}

// Aliases of params0 and the tangents along them, where the two lists differ. Aliases, because the outputs may depend on params0
// in places of their own, which stay as they are.
static int nti_linearize_lists(nt_params params, nt_params params0, nt_params *from, nt_params *at, nt_params *along) {
    int n = 0;
    for (int k = 0; k < params.count; k++) {
        if (params.items[k] == params0.items[k]) continue;
        from->items[n] = params.items[k], at->items[n] = nti_stand_in(params0.items[k]);
        along->items[n] = nt_sub(params.items[k], at->items[n]);
        if (!along->items[n++]) return 0;
    }
    from->count = at->count = along->count = n;
    return 1;
}

// What nt_linearize and nt_taylor begin with.
typedef struct nti_expansion {
    nt_params from, at, along; // parameters, their aliases at params0, the differences
    nt_params value, result;   // f(params0) on the aliases; room for the results
} nti_expansion;

static int nti_expand(const char *name, nti_expansion *e, nt_params outputs, nt_params params, nt_params params0) {
    if (!nti_list_valid(outputs) || !nti_list_valid(params) || !params0.items) return 0;
    nt_tape *t = outputs.items[0]->tape;
    if (!nti_derivative_list(t, name, "output", outputs) || !nti_derivative_list(t, name, "parameter", params) ||
        !nti_replacement_list(t, name, "value of params0", params0, params) ||
        !nti_along_list(t, name, "value of params0", params0, params))
        return 0;
    e->from = nti_result_list(t, name, params.count), e->at = nti_result_list(t, name, params.count);
    e->along = nti_result_list(t, name, params.count), e->value = nti_result_list(t, name, outputs.count);
    e->result = nti_result_list(t, name, outputs.count);
    if (t->sticky || !nti_linearize_lists(params, params0, &e->from, &e->at, &e->along)) return 0;
    for (int k = 0; k < outputs.count; k++) e->result.items[k] = NULL;
    return nti_replay(t, outputs, e->from, e->at, e->value.items);
}

NT_API nt_params nt_linearize_many(nt_params outputs, nt_params params, nt_params params0) {
    nti_expansion e;
    if (!nti_expand("nt_linearize", &e, outputs, params, params0)) return nti_list(NULL, 0);
    nt_tape *t = outputs.items[0]->tape;
    if (e.from.count) nti_jvp_walk(t, e.value, e.at, e.along, e.result.items);
    for (int k = 0; k < outputs.count && !t->sticky; k++) e.result.items[k] = nti_sum_of(e.value.items[k], e.result.items[k]);
    return t->sticky ? nti_list(NULL, 0) : e.result;
}

NT_API nt_tensor *nt_linearize(nt_tensor *y, nt_params params, nt_params params0) {
    nt_params p = nt_linearize_many(nti_list(&y, 1), params, params0);
    return p.count ? p.items[0] : NULL;
}

NT_API nt_params nt_hvp(nt_tensor *y, nt_params params, nt_params tangents) { return nt_jvp(nt_grads(y, params), params, tangents); }

// Taylor series -----------------------------------------------------------------------------------------------------------
//
// A jet is the coefficients of a value along params0 + s (params - params0). Coefficient k of a linear row is the row on the
// coefficients k of its operands; of a product it is the sum over the orders that add up to k. Any other row is expanded once,
// when order 1 is asked of it: its jvp on stand-ins for the derivatives of its operands is a value y'(s), whose coefficient
// k - 1 is k times the one wanted. The values of such an expansion have jets as well, one order shorter, so that expansions
// end. They are put into the list before the row: in sweep k a value of depth m gets its order k - m, and finds what it needs.

enum { NTI_JET_GIVEN, NTI_JET_LINEAR, NTI_JET_DERIVED, NTI_JET_DECOMPOSED };

typedef struct nti_jet {
    nti_node *node; // the value at params0: coefficient 0
    struct nti_jet *next;
    struct nti_jet *root;  // of a row that was expanded: the value that its coefficients come from; NULL: zero
    struct nti_jet *base;  // a stand-in: for the derivative of this one,
    int times;             // that many times
    struct nti_jet *slope; // the stand-in for its own derivative
    int kind, depth, expanded;
    nt_tensor *c[1]; // coefficients; NULL: zero
} nti_jet;

typedef struct nti_series {
    nt_tape *t;
    uint32_t epoch; // of nodes that have a jet: in `reach`, the jet is in the place of the adjoint
    int degree;
} nti_series;

static nti_jet *nti_jet_of(const nti_series *s, const nti_node *n) { return n->reach == s->epoch ? (nti_jet *)(void *)n->adjoint : NULL; }

static nti_jet *nti_jet_new(const nti_series *s, nti_node *n, int kind, int depth) {
    nti_jet *j = (nti_jet *)nti_low(s->t, sizeof *j + (size_t)s->degree * sizeof(nt_tensor *));
    if (!j) {
        nti_no_room(s->t, "nt_taylor");
        return NULL;
    }
    memset(j, 0, sizeof *j + (size_t)s->degree * sizeof(nt_tensor *));
    j->node = n, j->kind = kind, j->depth = depth, j->c[0] = &n->pub;
    n->reach = s->epoch, n->adjoint = (nti_node *)(void *)j;
    return j;
}

static nt_tensor *nti_coefficient(nti_jet *j, int order) {
    if (!j) return NULL;
    if (!j->base || j->c[order] || !j->base->c[order + j->times]) return j->c[order];
    double factor = 1;
    for (int k = 1; k <= j->times; k++) factor *= order + k;
    return j->c[order] = nt_scale(j->base->c[order + j->times], factor);
}

// The jet of the derivative of x: the expansion of x, or a stand-in.
static nti_jet *nti_jet_slope(const nti_series *s, nti_jet *x) {
    if (x->slope) return x->slope;
    if (x->kind == NTI_JET_DERIVED && x->root) return x->slope = x->root;
    nt_tensor *first = nti_coefficient(x, 1), *node = nti_stand_in(first ? first : nt_full_like(&x->node->pub, 0));
    nti_jet *j = node ? nti_jet_new(s, nti_n(node), NTI_JET_GIVEN, x->depth + 1) : NULL;
    if (!j) return NULL;
    j->base = x->base ? x->base : x, j->times = x->times + 1;
    return x->slope = j;
}

static int nti_is_marked(const nti_node *n, int k) { return n->inputs > 31 || (nti_row_of(n->op)->linear >> k & 1); }

// Gives n a jet if it depends on the parameters; 0 after an error.
static int nti_jet_add(const nti_series *s, nti_node *n, int depth, nti_jet ***link) {
    const nti_row *row = nti_row_of(n->op);
    int any = 0, linear = row->jvp == nti_jvp_linear || row->jvp == nti_jvp_same, marked = 1;
    if ((row->flags & NTI_NO_GRADIENT) || !nti_dtypes[n->pub.dtype].floating) return 1;
    for (int k = 0; k < n->inputs; k++) {
        if (!nti_jet_of(s, n->in[k])) continue;
        any = 1, marked = marked && nti_is_marked(n, k);
    }
    if (!any) return 1;
    if (!row->jvp && !row->decompose) return nti_no_derivative(n);
    int decomposed = row->decompose && (!row->jvp || row->jvp == nti_jvp_partly), known = linear || (marked && row->jvp);
    nti_jet *j = nti_jet_new(s, n, known ? NTI_JET_LINEAR : decomposed ? NTI_JET_DECOMPOSED : NTI_JET_DERIVED, depth);
    if (!j) return 0;
    j->next = **link, **link = j, *link = &j->next;
    return 1;
}

// Jets of what was recorded behind `last` and is needed by nodes marked with the epoch, before *link.
static int nti_jets_add(const nti_series *s, nti_node *last, int depth, nti_jet **link) {
    for (nti_node *n = s->t->last; n != last; n = n->previous)
        for (int k = 0; n->mark == s->epoch && k < n->inputs; k++) n->in[k]->mark = s->epoch;
    for (nti_node *n = last ? last->next : s->t->first; n; n = n->next)
        if (n->mark == s->epoch && !nti_jet_of(s, n) && !nti_jet_add(s, n, depth, &link)) return 0;
    return 1;
}

// Records what the coefficients of j come from, before it in the list.
static int nti_jet_expand(const nti_series *s, nti_jet *j, nti_jet **link) {
    nti_node *n = j->node, *last = s->t->last;
    const nti_row *row = nti_row_of(n->op);
    nt_tensor *few[NTI_FEW], *along[NTI_FEW], **x = nti_operands(n, few), **t = x && n->inputs > NTI_FEW ? nti_operands(n, along) : along;
    j->expanded = 1;
    for (int k = 0; x && t && k < n->inputs; k++) {
        nti_jet *in = nti_jet_of(s, n->in[k]), *slope = in && j->kind == NTI_JET_DERIVED ? nti_jet_slope(s, in) : NULL;
        t[k] = slope ? &slope->node->pub : NULL;
    }
    if (s->t->sticky) return 0;
    nt_tensor *root = j->kind == NTI_JET_DERIVED ? row->jvp(&n->pub, x, t) : row->decompose(&n->pub, x);
    if (!root) return !s->t->sticky;
    nti_n(root)->mark = s->epoch;
    if (!nti_jets_add(s, last, j->depth + (j->kind == NTI_JET_DERIVED), link)) return 0;
    j->root = nti_jet_of(s, nti_n(root));
    return 1;
}

// Coefficient `order` of a row that is linear in its marked operands: in all together, or in each alone (a product).
static nt_tensor *nti_jet_linear(const nti_series *s, nti_jet *j, int order) {
    nti_node *n = j->node;
    const nti_row *row = nti_row_of(n->op);
    nt_tensor *few[NTI_FEW], *along[NTI_FEW], **x = nti_operands(n, few), **t = x && n->inputs > NTI_FEW ? nti_operands(n, along) : along;
    int at[NTI_FEW], o[NTI_FEW], count = 0, any = 0;
    if (!x || !t) return NULL;
    for (int k = 0; k < n->inputs; k++) {
        nti_jet *in = nti_jet_of(s, n->in[k]);
        t[k] = nti_coefficient(in, order), any |= t[k] != NULL;
        if (in && count < NTI_FEW && nti_is_marked(n, k)) at[count++] = k;
    }
    if ((row->flags & NTI_JOINT) || count < 2) return any ? row->jvp(&n->pub, x, t) : NULL;
    nt_tensor *sum = NULL;
    memset(o, 0, sizeof o);
    for (int rest = order;;) { // all orders with the sum `order`; the last operand has the rest
        int zero = 0;
        for (int k = 0; k < n->inputs; k++) t[k] = NULL;
        for (int k = 0; k < count; k++) {
            nt_tensor *c = nti_coefficient(nti_jet_of(s, n->in[at[k]]), k < count - 1 ? o[k] : rest);
            if (k < count - 1)
                x[at[k]] = c;
            else
                t[at[k]] = c;
            zero |= !c;
        }
        if (!zero) sum = nti_sum_of(sum, row->jvp(&n->pub, x, t));
        int k = 0;
        for (; k < count - 1; rest += o[k], o[k++] = 0)
            if (rest > 0) {
                o[k]++, rest--;
                break;
            }
        if (k == count - 1) break;
    }
    return sum;
}

static nt_tensor *nti_jet_next(const nti_series *s, nti_jet *j, int order) {
    if (j->kind == NTI_JET_LINEAR) return nti_jet_linear(s, j, order);
    if (!j->root) return NULL;
    if (j->kind == NTI_JET_DECOMPOSED) return nti_coefficient(j->root, order);
    nt_tensor *c = nti_coefficient(j->root, order - 1);
    return order == 1 || !c ? c : nt_scale(c, 1.0 / order);
}

NT_API nt_params nt_taylor_many(nt_params outputs, nt_params params, nt_params params0, int degree) {
    nti_expansion e;
    nti_jet *list = NULL;
    nt_params none = nti_list(NULL, 0);
    if (!nti_list_valid(outputs)) return none;
    nt_tape *t = outputs.items[0]->tape;
    nti_node *last = t->last;
    if (degree < 0) nti_sticky(t, NT_ERROR_ARGUMENT, "nt_taylor: the degree is %d, it must be 0 or more", degree);
    if (t->sticky || !nti_expand("nt_taylor", &e, outputs, params, params0)) return none;
    if (!degree || !e.from.count) return e.value;
    nti_series s;
    s.t = t, s.epoch = ++t->epoch, s.degree = degree;
    for (int k = 0; k < e.at.count; k++) {
        nti_jet *j = nti_jet_new(&s, nti_n(e.at.items[k]), NTI_JET_GIVEN, 0);
        if (!j) return none;
        j->c[1] = e.along.items[k];
    }
    for (int k = 0; k < outputs.count; k++) nti_n(e.value.items[k])->mark = s.epoch;
    if (!nti_jets_add(&s, last, 0, &list)) return none;
    for (int sweep = 1; sweep <= degree; sweep++)
        for (nti_jet **link = &list; *link && !t->sticky;) {
            nti_jet *j = *link;
            int order = sweep - j->depth;
            if (order > 0 && j->kind >= NTI_JET_DERIVED && !j->expanded) { // then what was put before it comes first
                nti_jet_expand(&s, j, link);
                continue;
            }
            if (order > 0) j->c[order] = nti_jet_next(&s, j, order);
            link = &j->next;
        }
    for (int k = 0; k < outputs.count && !t->sticky; k++) {
        nti_jet *j = nti_jet_of(&s, nti_n(e.value.items[k]));
        for (int i = 0; i <= degree; i++) e.result.items[k] = nti_sum_of(e.result.items[k], j ? j->c[i] : i ? NULL : e.value.items[k]);
    }
    return t->sticky ? none : e.result;
}

NT_API nt_tensor *nt_taylor(nt_tensor *y, nt_params params, nt_params params0, int degree) {
    nt_params p = nt_taylor_many(nti_list(&y, 1), params, params0, degree);
    return p.count ? p.items[0] : NULL;
}
// >>compiler
// ---------------------------------------------------------------------------------------------------------------------
// From recorded nodes to a graph of values with views, operands and effects, in passes that each do one thing: collect,
// merge equal values, fold accumulation, see views and insert copies, link instructions. The graph lies in temporaries and
// is the last that points into nodes. Order, buffers and offsets are in the planner.
// ---------------------------------------------------------------------------------------------------------------------
enum { NTI_IN_SCRATCH, NTI_IN_LEAF, NTI_IN_CONSTANT, NTI_IN_OUTER }; // OUTER: of the graph around a loop's

typedef struct nti_value {
    const nti_node *node;    // operation and attributes; a copy has the node that it copies
    const int64_t *shape;
    int64_t *stride;         // in the buffer of root, counted in elements
    int64_t offset;
    int32_t root;            // the value in whose buffer this one lies: itself unless a view
    int32_t first;           // operands are operand[first .. first + inputs)
    int32_t copy;            // row-major copy of this view, or -1
    int32_t producer;        // the value whose instruction makes this one available; -1: there from the start
    int32_t uses, inputs;
    int32_t outer;           // of a value from outside of a body: which operand of its loop
    uint16_t op;
    uint8_t rank, dtype, place; // place of root
    uint8_t instruction;     // 1: there is work to do
    uint8_t output, accumulate, made_copy;
    uint8_t written;         // a leaf that an effect of this program assigns
    uint8_t checks;          // may stop the run
    nti_plan plan;
} nti_value;

struct nti_loop;

typedef struct nti_graph {
    nt_tape *tape;
    nti_value *value;
    int32_t *operand;
    int32_t count, capacity, operands, operand_capacity;
    int32_t *target;         // outputs, then effects
    int32_t outputs, targets;
    // instructions and what must come before each: edges pre[pre_start[k] .. pre_start[k + 1])
    int32_t *work, works;    // value of instruction k; -1: the barrier between checks and effects
    int32_t *slot;           // instruction of a value, or -1
    int32_t *pre, *pre_start;
    int full;                // a temporary found no room
    // what stands between recorded nodes and values
    const nt_map *level;     // the map whose body this is, or NULL
    struct nti_loop *self;   // of a body: the loop that runs it, a value of the graph `around`
    const struct nti_graph *around;
    struct nti_loop *loops;  // loops in this graph, first to last
    nti_node **external;     // values from outside: leaves, and of a body all that it reads from around it
    struct nti_item *item;   // nodes and loops in an order in which operands come first
    int32_t externals, items;
} nti_graph;

// Temporaries. After a failure all others fail, too: the message names what the first would have needed.
static void *nti_graph_room(nti_graph *g, size_t count, size_t size) {
    void *p = g->full ? NULL : nti_temporary(g->tape, count, size);
    g->full = !p;
    return p;
}

// Several arrays at once: *to of each, `count` elements of `size` bytes. One request, so that a message names what a pass takes.
typedef struct nti_want { void *to; size_t count, size; } nti_want;

static int nti_graph_rooms(nti_graph *g, const nti_want *want, int n) {
    size_t bytes = 0;
    for (int k = 0; k < n; k++) bytes += nti_round_up(want[k].count * want[k].size, 16);
    char *p = (char *)nti_graph_room(g, bytes, 1);
    for (int k = 0; p && k < n; k++) {
        memcpy(want[k].to, &p, sizeof p);
        p += nti_round_up(want[k].count * want[k].size, 16);
    }
    return p != NULL;
}

// Pass 1: everything that the targets need, values from outside first, in recording order. Where loops are, what needs their results
// comes behind them: results of one map that can be computed at the same time share a loop, the others wait for the next one,
// which computes the body again.
static int nti_inside(const nti_node *n, const nt_map *level) { return n->op > NTI_OP_VARIABLE && nti_loop_within(n->loop, level); }
static int nti_is_result(const nti_node *n, const nt_map *level) {
    return (nti_row_of(n->op)->flags & NTI_LEAVES) && n->loop == level;
}

typedef struct nti_marked { size_t nodes, operands, externals, results, checks; } nti_marked;

static void nti_mark_one(nti_node *n, uint32_t epoch, const nt_map *level, nti_marked *m) {
    if (n->mark == epoch) return;
    n->mark = epoch, m->externals += !nti_inside(n, level);
}

// Marks what the targets need inside of this level, and what that reads from outside.
static nti_marked nti_mark_needed(nt_tape *t, uint32_t epoch, const nt_map *level) {
    nti_marked m = { 0, 0, 0, 0, 0 };
    for (nti_node *n = t->last; n; n = n->previous) {
        if (n->mark != epoch || !nti_inside(n, level)) continue;
        m.nodes++, m.operands += n->inputs, m.results += (size_t)nti_is_result(n, level);
        m.checks += (nti_row_of(n->op)->flags & NTI_CHECKS) != 0;
        for (int k = 0; k < n->inputs; k++) nti_mark_one(n->in[k], epoch, level, &m);
    }
    return m;
}

// Lists the marked values from outside: those named as targets, then the others as they are met. They are not marked any more then.
static void nti_list_external(nti_node *n, uint32_t epoch, const nt_map *level, nti_node **list, int32_t *count) {
    if (n->mark != epoch || nti_inside(n, level)) return;
    n->mark = epoch - 1, list[(*count)++] = n;
}

static int32_t nti_list_externals(nt_tape *t, uint32_t epoch, const nt_map *level, nti_node **list, int32_t count) {
    for (nti_node *n = t->first; n; n = n->next)
        for (int k = 0; n->mark == epoch && nti_inside(n, level) && k < n->inputs; k++)
            nti_list_external(n->in[k], epoch, level, list, &count);
    return count;
}

// One pass over a map, as an instruction of the graph around it: its operands are what the body reads from outside, then the results.
typedef struct nti_loop {
    struct nti_loop *next;
    const nt_map *map;
    nti_node **result, **external;
    int32_t results, externals, value;
    int checks;
    nti_graph body;
    struct nti_schedule *schedule;
} nti_loop;

typedef struct nti_item { nti_node *node; nti_loop *loop; } nti_item;

static uint32_t nti_new_epoch(nt_tape *t) { return t->epoch += 2, t->epoch - 1; } // epoch - 1 is never anybody else's: see nti_list_external

// The results of a map that can be computed now, as one loop.
static nti_loop *nti_loop_new(nti_graph *g, const nt_map *map, uint32_t needed, uint32_t ready) {
    nt_tape *t = g->tape;
    nti_loop *loop = (nti_loop *)nti_graph_room(g, 1, sizeof *loop);
    int32_t results = 0;
    if (!loop) return NULL;
    memset(loop, 0, sizeof *loop);
    loop->map = map;
    for (nti_node *n = t->first; n; n = n->next) results += n->mark == needed && n->held == ready && n->in[1]->loop == map;
    loop->result = (nti_node **)nti_graph_room(g, (size_t)results, sizeof *loop->result);
    if (!loop->result) return NULL;
    for (nti_node *n = t->first; n; n = n->next)
        if (n->mark == needed && n->held == ready && n->in[1]->loop == map)
            n->held = 0, n->reach = ready, loop->result[loop->results++] = n;
    return loop;
}

// What the body of a loop reads from outside; the marks of the graph around it are over.
static int nti_loop_externals(nti_graph *g, nti_loop *loop) {
    nt_tape *t = g->tape;
    uint32_t epoch = nti_new_epoch(t);
    nti_marked m = { 0, 0, 0, 0, 0 };
    for (int32_t k = 0; k < loop->results; k++) nti_mark_one(loop->result[k]->in[0], epoch, loop->map, &m);
    m = nti_mark_needed(t, epoch, loop->map);
    loop->checks = m.checks != 0;
    loop->external = (nti_node **)nti_graph_room(g, m.externals, sizeof *loop->external);
    if (!loop->external) return 0;
    loop->externals = nti_list_externals(t, epoch, loop->map, loop->external, 0);
    return 1;
}

// Goes over the marked nodes again and again: those whose operands are there become items; results wait until nothing else moves.
static int nti_order_items(nti_graph *g, uint32_t needed) {
    nt_tape *t = g->tape;
    uint32_t ready = nti_new_epoch(t);
    for (;;) {
        const nti_node *first = NULL;
        for (nti_node *n = t->first; n; n = n->next) {
            if (n->mark != needed || n->reach == ready || n->held == ready || !nti_inside(n, g->level)) continue;
            int there = 1;
            for (int k = 0; k < n->inputs; k++) there &= !nti_inside(n->in[k], g->level) || n->in[k]->reach == ready;
            if (!there) continue;
            if (nti_is_result(n, g->level)) { n->held = ready; continue; }
            n->reach = ready;
            if (n->loop == g->level) g->item[g->items].loop = NULL, g->item[g->items++].node = n;
        }
        for (nti_node *n = t->first; n && !first; n = n->next)
            if (n->mark == needed && n->held == ready) first = n;
        if (!first) return 1;
        nti_loop *loop = nti_loop_new(g, first->in[1]->loop, needed, ready), **end = &g->loops;
        if (!loop) return 0;
        while (*end) end = &(*end)->next;
        *end = loop;
        g->item[g->items].node = NULL, g->item[g->items++].loop = loop;
    }
}

// The targets of a program, or the results of the loop whose body the graph is, as nodes.
static nti_node *nti_graph_target(const nti_graph *g, const nt_params *outputs, const nt_params *effects, int32_t k) {
    if (g->self) return g->self->result[k]->in[0];
    return nti_n(k < outputs->count ? outputs->items[k] : effects->items[k - outputs->count]);
}

static int nti_pass_collect(nti_graph *g, const nt_params *outputs, const nt_params *effects) {
    nt_tape *t = g->tape;
    uint32_t epoch = nti_new_epoch(t);
    nti_marked named = { 0, 0, 0, 0, 0 };
    g->outputs = g->self ? 0 : outputs->count, g->targets = g->self ? g->self->results : outputs->count + effects->count;
    for (int32_t k = 0; k < g->targets; k++) nti_mark_one(nti_graph_target(g, outputs, effects, k), epoch, g->level, &named);
    if (g->self) nti_mark_one(nti_n(g->level->index), epoch, g->level, &named); // a stack is written at it
    nti_marked m = nti_mark_needed(t, epoch, g->level);
    m.externals += named.externals;
    size_t most = m.nodes + m.results;
    const nti_want want[] = { { &g->external, m.externals, sizeof *g->external }, { &g->item, most, sizeof *g->item } };
    if (most > INT32_MAX / 8 || m.operands > INT32_MAX / 8 || !nti_graph_rooms(g, want, 2)) return 0;
    if (!g->self)
        for (int32_t k = 0; k < g->targets; k++)
            nti_list_external(nti_graph_target(g, outputs, effects, k), epoch, g->level, g->external, &g->externals);
    if (g->self) { // as the loop lists them: external k is operand k of the loop
        memcpy(g->external, g->self->external, (size_t)g->self->externals * sizeof *g->external), g->externals = g->self->externals;
    } else g->externals = nti_list_externals(t, epoch, g->level, g->external, g->externals);
    if (!m.results) {
        for (nti_node *n = t->first; n; n = n->next)
            if (n->mark == epoch && n->loop == g->level) g->item[g->items].loop = NULL, g->item[g->items++].node = n;
    } else if (!nti_order_items(g, epoch)) return 0;
    size_t count = (size_t)g->externals, operands = 0;
    for (int32_t k = 0; k < g->items; k++) {
        if (g->item[k].node) count++, operands += g->item[k].node->inputs;
        else if (!nti_loop_externals(g, g->item[k].loop)) return 0;
        else
            count += 1 + 2 * (size_t)g->item[k].loop->results,
                operands += (size_t)(g->item[k].loop->externals + 3 * g->item[k].loop->results);
    }
    if (g->self) count += (size_t)g->targets * 2, operands += (size_t)g->targets * 3;
    // room for a copy of each value that is an operand or an output, and for the operands of accumulations once more
    size_t copies = operands + (size_t)g->outputs, capacity = count + (copies < count ? copies : count);
    if (capacity > INT32_MAX / 4) return 0;
    g->capacity = (int32_t)capacity, g->operand_capacity = (int32_t)(3 * operands + (size_t)g->targets);
    const nti_want room[] = { { &g->value, capacity, sizeof *g->value },
                              { &g->operand, (size_t)g->operand_capacity, sizeof *g->operand },
                              { &g->target, (size_t)g->targets, sizeof *g->target } };
    return nti_graph_rooms(g, room, 3);
}

static int32_t nti_graph_add(nti_graph *g, const nti_node *n) {
    nti_value *v = &g->value[g->count];
    memset(v, 0, sizeof *v);
    v->node = n, v->shape = n->pub.shape, v->rank = (uint8_t)n->pub.rank, v->dtype = (uint8_t)n->pub.dtype, v->op = n->op;
    v->root = g->count, v->copy = v->producer = -1, v->first = g->operands, v->inputs = n->inputs;
    v->checks = (nti_row_of(n->op)->flags & NTI_CHECKS) != 0;
    return g->count++;
}

static void nti_graph_add_operand(nti_graph *g, int32_t i) { g->operand[g->operands++] = i; }

// The results as they start, the loop, the results as they are: views of the former that the loop makes available.
static void nti_graph_add_loop(nti_graph *g, nti_loop *loop) {
    int32_t start = g->count;
    for (int32_t k = 0; k < loop->results; k++) {
        nti_value *v = &g->value[nti_graph_add(g, loop->result[k])];
        v->op = NTI_OP_MAP_START, v->inputs = 0;
    }
    loop->value = nti_graph_add(g, loop->result[0]);
    nti_value *v = &g->value[loop->value];
    v->op = NTI_OP_MAP_LOOP, v->rank = 0, v->dtype = NT_BOOL, v->inputs = loop->externals + loop->results;
    v->checks = (uint8_t)loop->checks;
    for (int32_t k = 0; k < loop->externals; k++) nti_graph_add_operand(g, loop->external[k]->index);
    for (int32_t k = 0; k < loop->results; k++) nti_graph_add_operand(g, start + k);
    for (int32_t k = 0; k < loop->results; k++) {
        loop->result[k]->index = nti_graph_add(g, loop->result[k]);
        nti_graph_add_operand(g, start + k), nti_graph_add_operand(g, loop->value);
    }
}

// In a body: the writes into the results, which lie outside.
static void nti_graph_add_writes(nti_graph *g) {
    const nti_loop *loop = g->self;
    for (int32_t k = 0; k < loop->results; k++) {
        int sum = loop->result[k]->op == NTI_OP_MAP_SUM;
        int32_t to = nti_graph_add(g, loop->result[k]);
        g->value[to].op = NTI_OP_MAP_OUTER, g->value[to].inputs = 0, g->value[to].outer = loop->externals + k;
        g->target[k] = nti_graph_add(g, loop->result[k]);
        g->value[g->target[k]].op = sum ? NTI_OP_MAP_ADD : NTI_OP_MAP_WRITE, g->value[g->target[k]].inputs = sum ? 2 : 3;
        nti_graph_add_operand(g, to), nti_graph_add_operand(g, loop->result[k]->in[0]->index);
        if (!sum) nti_graph_add_operand(g, nti_n(loop->map->index)->index);
    }
}

static void nti_pass_fill(nti_graph *g, const nt_params *outputs, const nt_params *effects) {
    for (int32_t k = 0; k < g->externals; k++) {
        g->external[k]->index = nti_graph_add(g, g->external[k]);
        if (g->self) g->value[k].op = NTI_OP_MAP_OUTER, g->value[k].inputs = 0, g->value[k].checks = 0, g->value[k].outer = k;
    }
    for (int32_t k = 0; k < g->items; k++) {
        nti_node *n = g->item[k].node;
        if (!n) { nti_graph_add_loop(g, g->item[k].loop); continue; }
        n->index = nti_graph_add(g, n);
        for (int j = 0; j < n->inputs; j++) nti_graph_add_operand(g, n->in[j]->index);
    }
    if (g->self) nti_graph_add_writes(g);
    for (int32_t k = 0; !g->self && k < g->targets; k++) g->target[k] = nti_graph_target(g, outputs, effects, k)->index;
}

// Pass 2: equal operations on equal operands are one value.
static uint64_t nti_mix(uint64_t h, uint64_t x) {
    h = (h ^ x) * 0xff51afd7ed558ccdu;
    return h ^ h >> 32; // high bits come down: the table takes the low ones
}

static uint64_t nti_value_hash(const nti_graph *g, const nti_value *v) {
    const nti_node *n = v->node;
    uint64_t h = nti_mix(v->op, v->dtype), bits;
    for (int k = 0; k < n->ni; k++) h = nti_mix(h, (uint64_t)n->i[k]);
    for (int k = 0; k < n->nd; k++) memcpy(&bits, &n->d[k], sizeof bits), h = nti_mix(h, bits);
    for (int k = 0; k < v->rank; k++) h = nti_mix(h, (uint64_t)v->shape[k]);
    for (int k = 0; k < v->inputs; k++) h = nti_mix(h, (uint64_t)g->operand[v->first + k]);
    size_t words = v->op == NTI_OP_CONSTANT ? nt_bytes(&n->pub) / sizeof bits : 0;
    for (size_t k = 0; k < words && k < 8; k++)
        memcpy(&bits, (const char *)n->storage + k * sizeof bits, sizeof bits), h = nti_mix(h, bits);
    return h;
}

static int nti_value_equal(const nti_graph *g, const nti_value *a, const nti_value *b) {
    const nti_node *p = a->node, *q = b->node;
    if (a->op != b->op || a->dtype != b->dtype || a->rank != b->rank || a->inputs != b->inputs || p->ni != q->ni || p->nd != q->nd)
        return 0;
    if (p->ni && memcmp(p->i, q->i, p->ni * sizeof *p->i)) return 0;
    if (p->nd && memcmp(p->d, q->d, p->nd * sizeof *p->d)) return 0;
    if (a->rank && memcmp(a->shape, b->shape, a->rank * sizeof *a->shape)) return 0;
    if (a->op == NTI_OP_CONSTANT && p->storage != q->storage && memcmp(p->storage, q->storage, nt_bytes(&p->pub))) return 0;
    return !a->inputs || !memcmp(g->operand + a->first, g->operand + b->first, a->inputs * sizeof *g->operand);
}

// An assignment as an operand or an output stands for the value that is assigned.
static int32_t nti_same_value(const nti_graph *g, const int32_t *same, int32_t i) {
    return same[g->value[i].op == NTI_OP_ASSIGN ? g->operand[g->value[i].first + 1] : i];
}

static int nti_pass_merge(nti_graph *g) {
    size_t size = 16;
    while (size < 2 * (size_t)g->count) size *= 2;
    int32_t *table, *same;
    const nti_want want[] = { { &table, size, sizeof *table }, { &same, (size_t)g->count, sizeof *same } };
    if (!nti_graph_rooms(g, want, 2)) return 0;
    memset(table, 0xff, size * sizeof *table);
    for (int32_t i = 0; i < g->count; i++) {
        nti_value *v = &g->value[i];
        same[i] = i;
        for (int k = 0; k < v->inputs; k++) g->operand[v->first + k] = nti_same_value(g, same, g->operand[v->first + k]);
        if (v->op <= NTI_OP_VARIABLE || (nti_row_of(v->op)->flags & (NTI_EFFECT | NTI_ALONE))) continue;
        size_t at = (size_t)nti_value_hash(g, v) & (size - 1);
        while (table[at] >= 0 && !nti_value_equal(g, &g->value[table[at]], v)) at = (at + 1) & (size - 1);
        if (table[at] < 0) table[at] = i;
        else same[i] = table[at];
    }
    for (int k = 0; k < g->outputs; k++) g->target[k] = nti_same_value(g, same, g->target[k]);
    for (int k = 0; k < g->targets; k++) g->value[g->target[k]].uses++;
    for (int32_t i = g->count - 1; i >= 0; i--) // users stand behind their operands; what is not used any more uses nothing
        for (int k = 0; g->value[i].uses && k < g->value[i].inputs; k++) g->value[g->operand[g->value[i].first + k]].uses++;
    return 1;
}

// Pass 3: a gradient that is only accumulated is computed into its accumulator.
static void nti_pass_accumulate(nti_graph *g) {
    for (int k = g->outputs; k < g->targets; k++) {
        nti_value *v = &g->value[g->target[k]];
        if (v->op != NTI_OP_MAP_ADD && (v->op != NTI_OP_ACCUMULATE || v->node->i[0])) continue;
        int32_t at = g->operand[v->first + 1];
        nti_value *p = &g->value[at];
        while (p->op == NTI_OP_RESHAPE && p->uses == 1) p = &g->value[g->operand[p->first]];
        if (p->uses != 1 || !(nti_row_of(p->op)->flags & NTI_ACCUMULATES)) continue;
        int32_t target = g->operand[v->first], count = p->inputs;
        if (g->operands + count + 1 > g->operand_capacity) continue;
        for (nti_value *w = &g->value[at]; w != p; w = &g->value[g->operand[w->first]]) w->uses = 0;
        p->uses = 0;
        int32_t first = g->operands;
        for (int j = 0; j < count; j++) g->operand[g->operands++] = g->operand[p->first + j];
        g->operand[g->operands++] = target; // behind the operands proper: the variable that is written
        v->node = p->node, v->op = p->op, v->shape = p->shape, v->rank = p->rank;
        v->first = first, v->inputs = count, v->accumulate = 1;
    }
}

// Which operands an effect writes.
static int nti_effect_writes(const nti_value *v, int k) {
    if (v->accumulate) return k == v->inputs;
    if (!(nti_row_of(v->op)->flags & NTI_EFFECT)) return 0;
    return k == 0 || (v->op == NTI_OP_UPDATE && k > 1);
}

static int nti_is_effect(const nti_value *v) { return v->accumulate || (nti_row_of(v->op)->flags & NTI_EFFECT); }

static int64_t *nti_graph_strides(nti_graph *g, nti_value *v) {
    v->stride = (int64_t *)nti_graph_room(g, v->rank ? v->rank : 1, sizeof(int64_t));
    if (v->stride) nti_row_major(v->rank, v->shape, v->stride);
    return v->stride;
}

static int nti_value_row_major(const nti_value *v) { return nti_is_row_major(v->rank, v->shape, v->stride); }

// A row-major copy of view i; -1: no memory.
static int32_t nti_graph_copy(nti_graph *g, int32_t i) {
    if (g->value[i].copy >= 0) return g->value[i].copy;
    if (g->count == g->capacity || g->operands == g->operand_capacity) return -1;
    int32_t c = g->count++;
    nti_value *v = &g->value[c];
    *v = g->value[i];
    v->root = v->producer = c, v->offset = 0, v->first = g->operands, v->inputs = 1, v->op = NTI_OP_RESHAPE, v->copy = -1;
    v->place = NTI_IN_SCRATCH, v->instruction = v->made_copy = 1, v->output = 0, v->accumulate = 0, v->uses = 1, v->checks = 0;
    g->operand[g->operands++] = i;
    if (!nti_graph_strides(g, v)) return -1;
    g->value[i].copy = c;
    return c;
}

// What a value from outside of a body is in the graph around.
static const nti_value *nti_around(const nti_graph *g, const nti_value *v) {
    return &g->around->value[g->around->operand[g->around->value[g->self->value].first + v->outer]];
}

// Pass 4: where each value lies: a leaf, a buffer of its own, or a view; copies where an operation cannot read a view.
static int nti_pass_view(nti_graph *g, int32_t i) {
    nti_value *v = &g->value[i];
    const nti_row *row = nti_row_of(v->op);
    if (!nti_graph_strides(g, v)) return 0;
    if (row->flags & NTI_LEAF_ROW) {
        v->place = v->op <= NTI_OP_VARIABLE ? NTI_IN_LEAF : v->op == NTI_OP_MAP_OUTER ? NTI_IN_OUTER : NTI_IN_CONSTANT;
        if (v->place == NTI_IN_OUTER) memcpy(v->stride, nti_around(g, v)->stride, v->rank * sizeof *v->stride);
        if (v->op == NTI_OP_FULL) memset(v->stride, 0, v->rank * sizeof *v->stride);
        return 1;
    }
    if (row->flags & NTI_VIEW) {
        const nti_value *x = &g->value[g->operand[v->first]];
        int64_t offset;
        if (!row->view(v->node, x->stride, v->stride, &offset)) { // a reshape that strides cannot say: of a row-major copy
            int32_t c = nti_graph_copy(g, g->operand[v->first]);
            if (c < 0) return 0;
            g->operand[v->first] = c, x = &g->value[c];
            row->view(v->node, x->stride, v->stride, &offset);
        }
        v->root = x->root, v->offset = x->offset + offset, v->place = x->place, v->producer = x->producer;
        if (row->flags & NTI_CHECKS) v->instruction = 1, v->producer = i;
        if (row->flags & NTI_LEAVES) v->producer = g->operand[v->first + 1]; // the loop
        return 1;
    }
    v->instruction = 1, v->producer = i;
    if (nti_is_effect(v)) {
        nti_value *target = &g->value[g->operand[v->first + (v->accumulate ? v->inputs : 0)]];
        v->root = target->root, v->place = target->place;
    }
    return 1;
}

static int nti_pass_operands(nti_graph *g, int32_t i) { // copies for operands that must be row-major
    const nti_row *row = nti_row_of(g->value[i].op);
    for (int k = 0; k < g->value[i].inputs; k++) {
        int32_t *at = &g->operand[g->value[i].first + k];
        const nti_value *x = &g->value[*at];
        // an effect must not read a variable that another effect may already have written
        int hazard = nti_is_effect(&g->value[i]) && x->place == NTI_IN_LEAF && g->value[x->root].written;
        if (nti_effect_writes(&g->value[i], k) || (!hazard && ((row->flags & NTI_STRIDED) || nti_value_row_major(x)))) continue;
        int32_t c = nti_graph_copy(g, *at);
        if (c < 0) return 0;
        *at = c;
    }
    return 1;
}

static int nti_pass_views(nti_graph *g) {
    int32_t count = g->count; // copies come behind
    for (int32_t i = 0; i < count; i++)
        for (int k = 0; g->value[i].uses && k < g->value[i].inputs + g->value[i].accumulate; k++)
            if (nti_effect_writes(&g->value[i], k)) g->value[g->operand[g->value[i].first + k]].written = 1;
    for (int32_t i = 0; i < count; i++)
        if ((g->value[i].uses || nti_row_of(g->value[i].op)->flags & NTI_LEAF_ROW) && !nti_pass_view(g, i)) return 0;
    for (int32_t i = 0; i < count; i++)
        if (g->value[i].instruction && !nti_pass_operands(g, i)) return 0;
    for (int k = 0; k < g->outputs; k++)
        if (g->value[g->target[k]].root == g->target[k]) g->value[g->target[k]].output = 1;
    for (int k = 0; k < g->outputs; k++) {
        const nti_value *v = &g->value[g->target[k]], *root = &g->value[v->root];
        // a small part of a large value is copied, so that the rest need not stay
        int part = !root->output && 2 * nti_count(v->rank, v->shape) <= nti_count(root->rank, root->shape);
        if (v->place != NTI_IN_SCRATCH || !nti_value_row_major(v) || part) {
            int32_t c = nti_graph_copy(g, g->target[k]);
            if (c < 0) return 0;
            g->target[k] = c;
        }
        g->value[g->target[k]].output = 1;
        g->value[g->value[g->target[k]].root].output = 1;
    }
    return 1;
}

// Pass 5: instructions and their order constraints: operands first, readers of a variable before its writer, checks before effects.
static void nti_edge(int32_t *count, int32_t *pre, const int32_t *start, int32_t from, int32_t to) {
    if (from < 0 || from == to) return;
    if (pre) pre[start[to] + count[to]] = from;
    count[to]++;
}

static void nti_edges(nti_graph *g, const int32_t *writer, int32_t barrier, int32_t *count, int32_t *pre) {
    for (int32_t k = 0; k < g->works; k++) {
        if (g->work[k] < 0) continue;
        const nti_value *v = &g->value[g->work[k]];
        for (int j = 0; j < v->inputs; j++) {
            const nti_value *x = &g->value[g->operand[v->first + j]];
            if (x->producer >= 0) nti_edge(count, pre, g->pre_start, g->slot[x->producer], k);
            if (x->place == NTI_IN_LEAF && writer[x->root] >= 0 && !nti_effect_writes(v, j))
                nti_edge(count, pre, g->pre_start, k, writer[x->root]);
        }
        if (barrier < 0) continue;
        if (v->checks) nti_edge(count, pre, g->pre_start, k, barrier);
        if (nti_is_effect(v)) nti_edge(count, pre, g->pre_start, barrier, k);
    }
}

static int nti_pass_link(nti_graph *g) {
    int32_t checks = 0, effects = 0, barrier = -1;
    int32_t *writer, *count;
    size_t n = (size_t)g->count + 1;
    const nti_want want[] = { { &g->slot, n, sizeof *g->slot },
                              { &g->work, n, sizeof *g->work },
                              { &g->pre_start, n + 1, sizeof *g->pre_start },
                              { &writer, n, sizeof *writer },
                              { &count, n, sizeof *count } };
    if (!nti_graph_rooms(g, want, 5)) return 0;
    for (int32_t i = 0; i < g->count; i++) {
        const nti_value *v = &g->value[i];
        g->slot[i] = writer[i] = -1;
        if (!v->instruction) continue;
        checks += v->checks, effects += nti_is_effect(v);
        g->slot[i] = g->works, g->work[g->works++] = i;
    }
    if (checks && effects && !g->self) barrier = g->works, g->work[g->works++] = -1;
    for (int32_t k = 0; k < g->works; k++) {
        if (g->work[k] < 0) continue;
        const nti_value *v = &g->value[g->work[k]];
        for (int j = 0; j < v->inputs + v->accumulate; j++)
            if (nti_effect_writes(v, j)) writer[g->value[g->operand[v->first + j]].root] = k;
    }
    memset(count, 0, (size_t)g->works * sizeof *count);
    nti_edges(g, writer, barrier, count, NULL);
    g->pre_start[0] = 0;
    for (int32_t k = 0; k < g->works; k++) g->pre_start[k + 1] = g->pre_start[k] + count[k], count[k] = 0;
    g->pre = (int32_t *)nti_graph_room(g, (size_t)g->pre_start[g->works], sizeof *g->pre);
    if (!g->pre) return 0;
    nti_edges(g, writer, barrier, count, g->pre);
    return 1;
}

// The plan of an instruction needs its operands as views without data.
static void nti_call_of(const nti_graph *g, const nti_value *v, nti_call *c, nti_view *in) {
    memset(c, 0, sizeof *c);
    c->isa = g->tape->isa, c->op = v->op, c->in = in, c->inputs = v->inputs, c->i = v->node->i, c->d = v->node->d;
    c->out.data = NULL, c->out.shape = v->shape, c->out.stride = v->stride, c->out.dtype = v->dtype, c->out.rank = v->rank;
    for (int k = 0; k < v->inputs; k++) {
        const nti_value *x = &g->value[g->operand[v->first + k]];
        in[k].data = NULL, in[k].shape = x->shape, in[k].stride = x->stride, in[k].dtype = x->dtype, in[k].rank = x->rank;
    }
}

static int nti_accumulate_attribute(int op) { return op == NTI_OP_SUM ? 2 : 0; }

static int nti_plan_body(nti_graph *g, int32_t i); // in the planner

static int nti_pass_plans(nti_graph *g) { // phases, tiles and scratch of every instruction
    for (int32_t k = 0; k < g->works; k++) {
        if (g->work[k] < 0) continue;
        nti_value *v = &g->value[g->work[k]];
        if (v->op == NTI_OP_MAP_LOOP) {
            if (!nti_plan_body(g, g->work[k])) return 0;
            continue;
        }
        nti_call c;
        nti_view few[NTI_FEW], *in = v->inputs <= NTI_FEW ? few : (nti_view *)nti_graph_room(g, v->inputs, sizeof *in);
        if (!in) return 0;
        nti_call_of(g, v, &c, in);
        int64_t attribute[NTI_CONV_MAX];
        if (v->accumulate) {
            memcpy(attribute, c.i, v->node->ni * sizeof *attribute);
            attribute[nti_accumulate_attribute(v->op)] = 1, c.i = attribute;
        }
        if (v->made_copy) nti_plan_copy(&c, &v->plan);
        else nti_row_of(v->op)->plan(&c, &v->plan);
    }
    return 1;
}
// >>planner
// ---------------------------------------------------------------------------------------------------------------------
// Order, buffers, offsets. An order is judged by the largest sum of bytes alive at once; offsets then reach that bound or
// come within two per cent of it. Everything here sees instructions and buffers only.
// ---------------------------------------------------------------------------------------------------------------------
#define NTI_BEAM 64               // states kept by the search for an order, at most
#define NTI_BEAM_WORK 150000.0    // candidates and comparisons of one search
#define NTI_BEAM_ROOM ((size_t)1 << 16) // instructions times states
#define NTI_BEAM_FREE ((size_t)8192)
#define NTI_RULES 12
#define NTI_RULE_WORK 4.0e7       // buffers squared times rules that place them
#define NTI_PLACE_WORK 2000000.0  // buffers squared times attempts of the search for offsets

typedef struct nti_buffer { size_t bytes, offset; int32_t birth, death; } nti_buffer; // alive in [birth, death], instruction positions

typedef struct nti_schedule {
    int32_t *order;               // instruction at each position
    int32_t *position;            // of each instruction
    int32_t *number;              // of the program's instruction at each position, filled when it is written
    nti_buffer *buffer;
    int32_t buffers;
    int32_t *buffer_of;           // of each value with a buffer of its own, else -1
    int32_t *scratch_of;          // of each instruction: its scratch, or -1
    int32_t *holder;              // the value in each buffer at the peak, or -1
    size_t bound, peak;
    int32_t peak_position, barrier; // positions; of the barrier: where there is one
} nti_schedule;

static size_t nti_value_bytes(const nti_value *v) { return (size_t)nti_count(v->rank, v->shape) * nt_dtype_size((nt_dtype)v->dtype); }
static int nti_owns_buffer(const nti_value *v) {
    return v->instruction && v->place == NTI_IN_SCRATCH && !nti_is_effect(v) && v->op != NTI_OP_MAP_LOOP &&
           !((nti_row_of(v->op)->flags & NTI_CHECKS) && !v->made_copy);
}

static size_t nti_scratch_bytes(const nti_graph *g, const nti_value *v) {
    int workers = g->tape->desc.parallel.max_workers > 1 ? g->tape->desc.parallel.max_workers : 1;
    return nti_round_up(v->plan.shared, NTI_ALIGN) + (size_t)workers * nti_round_up(v->plan.worker, NTI_ALIGN);
}

// Order ------------------------------------------------------------------------------------------------------------------

typedef struct nti_order_room { // what every search needs; lists of instruction k are list[start[k] .. start[k + 1])
    const nti_graph *g;
    int32_t *use, *use_start;       // readers of the buffer of instruction k (through any view), each once
    int32_t *source, *source_start; // instructions whose buffers instruction k reads, each once
    int32_t *next, *next_start;     // instructions that wait for k, once for each edge
    uint8_t *in_place;              // beside source: k may write into this one's place, once it dies
    size_t *bytes;                  // of the buffer of instruction k
    uint8_t *pinned;                // alive to the end
    size_t *transient;              // scratch while it runs
    size_t least;                   // no order needs less
    double work;                    // what the searches may still spend
} nti_order_room;

// The instruction whose buffer operand j of v lies in; -1: not scratch.
static int32_t nti_source(const nti_graph *g, const nti_value *v, int j) {
    const nti_value *x = &g->value[g->operand[v->first + j]];
    return x->place == NTI_IN_SCRATCH ? g->slot[x->root] : -1;
}

// 1 if instruction v may write into operand j's place, once that operand dies.
static int nti_in_place_operand(const nti_graph *g, const nti_value *v, int j) {
    uint32_t flags = nti_row_of(v->op)->flags;
    const nti_value *x = &g->value[g->operand[v->first + j]];
    if (v->made_copy || nti_is_effect(v) || !(flags & (NTI_IN_PLACE | NTI_IN_PLACE_FIRST)) || ((flags & NTI_IN_PLACE_FIRST) && j)) return 0;
    if (x->place != NTI_IN_SCRATCH || nti_value_bytes(x) != nti_value_bytes(v) ||
        nt_dtype_size((nt_dtype)x->dtype) != nt_dtype_size((nt_dtype)v->dtype))
        return 0;
    if (x->offset || !nti_value_row_major(x) || nti_value_bytes(&g->value[x->root]) != nti_value_bytes(v)) return 0;
    for (int k = 0; k < v->inputs; k++) { // the same buffer through another view would be overwritten while it is read
        const nti_value *y = &g->value[g->operand[v->first + k]];
        if (k != j && y->place == NTI_IN_SCRATCH && y->root == x->root &&
            ((flags & NTI_IN_PLACE_FIRST) || y->offset || !nti_value_row_major(y) || nti_value_bytes(y) != nti_value_bytes(v)))
            return 0;
    }
    return 1;
}

// The distinct sources of every instruction; `seen` holds the last reader of each source.
static void nti_order_sources(nti_order_room *r, int32_t *seen) {
    const nti_graph *g = r->g;
    int32_t count = 0;
    for (int32_t k = 0; k < g->works; k++) seen[k] = -1;
    for (int32_t k = 0; k < g->works; k++) {
        const nti_value *v = g->work[k] < 0 ? NULL : &g->value[g->work[k]];
        r->source_start[k] = count;
        for (int j = 0; v && j < v->inputs; j++) {
            int32_t s = nti_source(g, v, j);
            if (s < 0 || seen[s] == k) continue;
            seen[s] = k, r->in_place[count] = (uint8_t)nti_in_place_operand(g, v, j), r->source[count++] = s;
        }
    }
    r->source_start[g->works] = count;
}

// The lists turned round: who has k in its list.
static void nti_order_turn(int32_t n, const int32_t *from_start, const int32_t *from, int32_t *to_start, int32_t *to) {
    memset(to_start, 0, ((size_t)n + 1) * sizeof *to_start);
    for (int32_t e = 0; e < from_start[n]; e++) to_start[from[e] + 1]++;
    for (int32_t k = 0; k < n; k++) to_start[k + 1] += to_start[k];
    for (int32_t k = n - 1; k >= 0; k--) // filled from behind: the end of each list walks down to its start
        for (int32_t e = from_start[k]; e < from_start[k + 1]; e++) to[--to_start[from[e] + 1]] = k;
    for (int32_t k = 0; k < n; k++) to_start[k] = to_start[k + 1];
    to_start[n] = from_start[n];
}

static int nti_order_prepare(nti_graph *g, nti_order_room *r) {
    size_t n = (size_t)g->works;
    r->g = g, r->least = 0;
    size_t operands = (size_t)g->operands;
    int32_t *start, *seen;
    const nti_want want[] = { { &start, 3 * (n + 1), sizeof *start }, { &seen, n, sizeof *seen }, { &r->bytes, n, sizeof *r->bytes },
                              { &r->transient, n, sizeof *r->transient }, { &r->pinned, n, 1 }, { &r->in_place, operands, 1 },
                              { &r->use, operands, sizeof *r->use }, { &r->source, operands, sizeof *r->source },
                              { &r->next, (size_t)g->pre_start[n], sizeof *r->next } };
    if (!nti_graph_rooms(g, want, 9)) return 0;
    r->use_start = start, r->source_start = start + n + 1, r->next_start = start + 2 * (n + 1);
    nti_order_sources(r, seen);
    nti_order_turn(g->works, r->source_start, r->source, r->use_start, r->use);
    nti_order_turn(g->works, g->pre_start, g->pre, r->next_start, r->next);
    for (int32_t k = 0; k < g->works; k++) {
        const nti_value *v = g->work[k] < 0 ? NULL : &g->value[g->work[k]];
        r->bytes[k] = v && nti_owns_buffer(v) ? nti_round_up(nti_value_bytes(v), NTI_ALIGN) : 0;
        r->transient[k] = v ? nti_scratch_bytes(g, v) : 0;
        r->pinned[k] = v && v->output;
    }
    for (int32_t k = 0; k < g->works; k++) { // what an instruction reads and writes is alive while it runs
        size_t here = r->transient[k], own = r->bytes[k];
        for (int32_t e = r->source_start[k]; e < r->source_start[k + 1]; e++)
            here += r->bytes[r->source[e]], own = r->in_place[e] ? 0 : own;
        r->least = here + own > r->least ? here + own : r->least;
    }
    return 1;
}

typedef struct nti_cost { size_t freed, grown; } nti_cost;

#define NTI_DONE(set, k) ((set)[(k) >> 6] >> ((k) & 63) & 1)
#define NTI_SET(set, k) ((set)[(k) >> 6] |= (uint64_t)1 << ((k) & 63))

// What running instruction k after the set `done` frees, and what it adds beyond what it takes over in place.
static nti_cost nti_step_cost(const nti_order_room *r, const uint64_t *done, int32_t k) {
    nti_cost c = { 0, r->bytes[k] };
    for (int32_t e = r->source_start[k]; e < r->source_start[k + 1]; e++) {
        int32_t s = r->source[e], u = r->use_start[s + 1], first = r->use_start[s];
        if (r->pinned[s]) continue;
        while (u > first && (r->use[u - 1] == k || NTI_DONE(done, r->use[u - 1]))) u--; // from behind: late readers are seldom done
        if (u > first) continue;
        if (r->in_place[e] && c.grown) c.grown = 0;
        else c.freed += r->bytes[s];
    }
    if (r->use_start[k] == r->use_start[k + 1] && !r->pinned[k]) c.freed += r->bytes[k]; // nobody reads it
    return c;
}

static int nti_ready(const nti_graph *g, const uint64_t *done, int32_t k) {
    for (int32_t p = g->pre_start[k]; p < g->pre_start[k + 1]; p++)
        if (!NTI_DONE(done, g->pre[p])) return 0;
    return 1;
}

// The bound of a complete order.
static size_t nti_order_peak(const nti_order_room *r, const int32_t *order, uint64_t *done) {
    size_t live = 0, peak = 0;
    memset(done, 0, ((size_t)r->g->works + 63) / 64 * sizeof *done);
    for (int32_t p = 0; p < r->g->works; p++) {
        int32_t k = order[p];
        nti_cost c = nti_step_cost(r, done, k);
        if (live + c.grown + r->transient[k] > peak) peak = live + c.grown + r->transient[k];
        live = live + c.grown - c.freed;
        NTI_SET(done, k);
    }
    return peak;
}

// A binary heap of instructions, the smallest key on top.
static void nti_heap_push(int32_t *heap, int32_t *count, const int64_t *key, int32_t k) {
    int32_t at = (*count)++;
    for (; at > 0 && key[heap[(at - 1) / 2]] > key[k]; at = (at - 1) / 2) heap[at] = heap[(at - 1) / 2];
    heap[at] = k;
}

static int32_t nti_heap_pop(int32_t *heap, int32_t *count, const int64_t *key) {
    int32_t top = heap[0], last = heap[--*count], at = 0;
    for (int32_t child = 1; child < *count; at = child, child = 2 * at + 1) {
        if (child + 1 < *count && key[heap[child + 1]] < key[heap[child]]) child++;
        if (key[heap[child]] >= key[last]) break;
        heap[at] = heap[child];
    }
    heap[at] = last;
    return top;
}

// The order of the keys, as far as operands allow; effects as soon as they can: what they free is not needed any more.
static int nti_order_by_key(nti_graph *g, const nti_order_room *r, const int64_t *key, int32_t *order) {
    int32_t count = 0, waiting = 0;
    int32_t *heap, *wait;
    const nti_want want[] = { { &heap, (size_t)g->works, sizeof *heap }, { &wait, (size_t)g->works, sizeof *wait } };
    if (!nti_graph_rooms(g, want, 2)) return 0;
    for (int32_t k = 0; k < g->works; k++) {
        wait[k] = g->pre_start[k + 1] - g->pre_start[k];
        if (!wait[k]) nti_heap_push(heap, &waiting, key, k);
    }
    while (waiting) {
        int32_t k = order[count++] = nti_heap_pop(heap, &waiting, key);
        for (int32_t e = r->next_start[k]; e < r->next_start[k + 1]; e++)
            if (!--wait[r->next[e]]) nti_heap_push(heap, &waiting, key, r->next[e]);
    }
    NT_ASSERT(count == g->works);
    return 1;
}

// Keys of the recording order; a copy comes right before its first reader.
static void nti_order_recorded(const nti_order_room *r, int64_t *key) {
    const nti_graph *g = r->g;
    for (int32_t k = 0; k < g->works; k++) key[k] = 2 * (int64_t)(g->work[k] < 0 ? g->count : g->work[k]) + 1;
    for (int32_t k = 0; k < g->works; k++)
        if (g->work[k] >= 0 && g->value[g->work[k]].made_copy)
            for (int32_t e = r->next_start[k]; e < r->next_start[k + 1]; e++)
                if (key[r->next[e]] - 1 < key[k]) key[k] = key[r->next[e]] - 1;
    for (int32_t k = 0; k < g->works; k++)
        if (g->work[k] < 0 || nti_is_effect(&g->value[g->work[k]])) key[k] = 0;
}

// Keys of the order in which the targets, one after the other, ask for what they need: depth first, the last operand to be
// made first. Generators and side branches come as late as they can.
static int nti_order_asked(nti_graph *g, const nti_order_room *r, int64_t *key) {
    int32_t *stack, *at, time = 0;
    const nti_want want[] = { { &stack, (size_t)g->works, sizeof *stack }, { &at, (size_t)g->works, sizeof *at } };
    if (!nti_graph_rooms(g, want, 2)) return 0;
    for (int32_t k = 0; k < g->works; k++) at[k] = -1;
    for (int32_t root = 0; root < g->works; root++) {
        int32_t depth = 0;
        if (r->next_start[root] == r->next_start[root + 1]) stack[depth++] = root, at[root] = g->pre_start[root];
        while (depth) {
            int32_t k = stack[depth - 1];
            if (at[k] == g->pre_start[k + 1]) { key[k] = time++, depth--; continue; }
            int32_t p = g->pre[at[k]++];
            if (at[p] < 0) stack[depth++] = p, at[p] = g->pre_start[p];
        }
    }
    return 1;
}

// Beam search: states are sets of finished instructions; of equal sets the lower peak stays, of all the best few.
typedef struct nti_state { size_t live, peak; uint64_t hash; int32_t parent, choice; } nti_state;
typedef struct nti_beam {
    nti_order_room *r;
    int width, count, found;
    size_t words, limit;       // what a state must stay below
    nti_state *now, *next;
    uint64_t *sets, *next_sets; // of each state: what is done, then what is ready
    nti_state *trial;          // the choices of one state
    int32_t *history;          // of each state of each step: choice times NTI_BEAM plus parent
} nti_beam;

static int nti_state_better(const nti_state *a, const nti_state *b) { return a->peak != b->peak ? a->peak < b->peak : a->live < b->live; }

// Puts a candidate into the list of the best few, which stays sorted; equal sets are one state.
static void nti_beam_offer(nti_beam *a, const nti_state *s) {
    nti_state *list = a->next;
    int at = a->found;
    if (s->peak >= a->limit || (at == a->width && !nti_state_better(s, &list[at - 1]))) return;
    for (int k = 0; k < a->found && at == a->found; k++)
        if (list[k].hash == s->hash) at = k;
    a->r->work -= 0.25 * a->found;
    if (at < a->found && !nti_state_better(s, &list[at])) return;
    if (at == a->found && at == a->width) at--;
    else if (at == a->found) a->found++;
    for (; at > 0 && nti_state_better(s, &list[at - 1]); at--) list[at] = list[at - 1];
    list[at] = *s;
}

static int nti_lowest_bit(uint64_t x) {
    int n = 0;
    for (int half = 32; half; half /= 2)
        if (!(x & (((uint64_t)1 << half) - 1))) x >>= half, n += half;
    return n;
}

// All ways on from state b. One that raises nothing is as good as any: what it frees is free for whatever comes next.
static void nti_beam_expand(nti_beam *a, int b) {
    const nti_state *now = &a->now[b];
    const uint64_t *done = a->sets + (size_t)b * 2 * a->words, *ready = done + a->words;
    int trials = 0;
    for (size_t w = 0; w < a->words; w++)
        for (uint64_t bits = ready[w]; bits; bits &= bits - 1) {
            int32_t k = (int32_t)w * 64 + nti_lowest_bit(bits);
            nti_cost c = nti_step_cost(a->r, done, k);
            size_t high = now->live + c.grown + a->r->transient[k];
            nti_state *s = &a->trial[trials++];
            s->peak = high > now->peak ? high : now->peak, s->live = now->live + c.grown - c.freed, s->parent = b, s->choice = k;
            s->hash = now->hash ^ nti_mix(0x51ed270b35ae0d1du, (uint64_t)k);
            a->r->work -= 2 + 2 * (a->r->source_start[k + 1] - a->r->source_start[k]);
            if (s->peak > now->peak || c.grown > c.freed) continue;
            nti_beam_offer(a, s);
            return;
        }
    a->r->work -= (double)a->words;
    for (int k = 0; k < trials; k++) nti_beam_offer(a, &a->trial[k]);
}

// The chosen states get their sets.
static void nti_beam_enter(nti_beam *a, int32_t step) {
    const nti_order_room *r = a->r;
    for (int b = 0; b < a->found; b++) {
        const nti_state *s = &a->next[b];
        uint64_t *done = a->next_sets + (size_t)b * 2 * a->words, *ready = done + a->words;
        int32_t k = s->choice;
        memcpy(done, a->sets + (size_t)s->parent * 2 * a->words, 2 * a->words * sizeof *done);
        NTI_SET(done, k);
        ready[k >> 6] &= ~((uint64_t)1 << (k & 63));
        for (int32_t e = r->next_start[k]; e < r->next_start[k + 1]; e++)
            if (nti_ready(r->g, done, r->next[e])) NTI_SET(ready, r->next[e]);
        a->history[(size_t)step * (size_t)a->width + (size_t)b] = k * NTI_BEAM + s->parent;
    }
    nti_state *swap = a->now;
    uint64_t *sets = a->sets;
    a->now = a->next, a->next = swap, a->sets = a->next_sets, a->next_sets = sets, a->count = a->found;
}

// 1 and an order whose bound is below `limit`; 0 if this width finds none or the work is spent; -1: no memory.
static int nti_order_beam(nti_graph *g, nti_order_room *r, int width, size_t limit, int32_t *order) {
    nti_beam a;
    size_t words = ((size_t)g->works + 63) / 64, w = (size_t)width;
    memset(&a, 0, sizeof a);
    a.r = r, a.width = width, a.limit = limit, a.words = words, a.count = 1;
    const nti_want want[] = { { &a.history, (size_t)g->works * w, sizeof *a.history }, { &a.now, 2 * w + (size_t)g->works, sizeof *a.now },
                              { &a.sets, 4 * w * words, sizeof *a.sets } };
    if (!nti_graph_rooms(g, want, 3)) return -1;
    a.next = a.now + w, a.trial = a.next + w, a.next_sets = a.sets + 2 * w * words;
    memset(a.now, 0, sizeof *a.now), memset(a.sets, 0, 2 * words * sizeof *a.sets);
    for (int32_t k = 0; k < g->works; k++)
        if (g->pre_start[k] == g->pre_start[k + 1]) NTI_SET(a.sets + words, k);
    for (int32_t step = 0; step < g->works; step++) {
        a.found = 0;
        for (int b = 0; b < a.count; b++) nti_beam_expand(&a, b);
        if (!a.found || r->work < 0) return 0;
        nti_beam_enter(&a, step);
    }
    int32_t b = 0;
    for (int32_t step = g->works - 1; step >= 0; step--) {
        int32_t h = a.history[(size_t)step * w + (size_t)b];
        order[step] = h / NTI_BEAM, b = h % NTI_BEAM;
    }
    return 1;
}

// What a search of this width takes: no more than the scratch that it could save at best is spent on it, and a little.
static int nti_beam_affordable(const nti_order_room *r, int width, size_t best) {
    size_t n = (size_t)r->g->works, w = (size_t)width, words = (n + 63) / 64;
    return n * w <= NTI_BEAM_ROOM &&
           n * w * sizeof(int32_t) + (2 * w + n) * sizeof(nti_state) + 4 * w * words * sizeof(uint64_t) <= best + NTI_BEAM_FREE;
}

// The best of recording order, the order in which targets ask, and searches of growing width while the work lasts.
static int nti_order_search(nti_graph *g, nti_order_room *r, int32_t *order, int32_t *other) {
    size_t n = (size_t)g->works, best;
    uint64_t *done;
    int64_t *key;
    const nti_want want[] = { { &done, (n + 63) / 64, sizeof *done }, { &key, n, sizeof *key } };
    if (!nti_graph_rooms(g, want, 2)) return 0;
    nti_order_recorded(r, key);
    if (!nti_order_by_key(g, r, key, order)) return 0;
    best = nti_order_peak(r, order, done);
    if (best <= r->least) return 1;
    if (!nti_order_asked(g, r, key) || !nti_order_by_key(g, r, key, other)) return 0;
    size_t asked = nti_order_peak(r, other, done);
    if (asked < best) best = asked, memcpy(order, other, n * sizeof *order);
    size_t low = g->tape->low.used;
    for (int width = 1; width <= NTI_BEAM && best > r->least && nti_beam_affordable(r, width, best); width *= 8) {
        r->work = NTI_BEAM_WORK;
        int found = nti_order_beam(g, r, width, best, other);
        nti_end_rewind(g->tape, &g->tape->low, low);
        if (found < 0) return 0;
        if (found) best = nti_order_peak(r, other, done), memcpy(order, other, n * sizeof *order);
    }
    return 1;
}

static int nti_pass_order(nti_graph *g, nti_schedule *s) {
    nti_order_room r;
    size_t n = (size_t)g->works;
    const nti_want want[] = { { &s->order, n, sizeof *s->order }, { &s->position, n, sizeof *s->position },
                              { &s->number, n + 1, sizeof *s->number } };
    if (!nti_graph_rooms(g, want, 3)) return 0;
    memset(s->number, 0, (n + 1) * sizeof *s->number);
    size_t low = g->tape->low.used;
    int32_t *other = (int32_t *)nti_graph_room(g, n, sizeof *other);
    if (!other || !nti_order_prepare(g, &r) || !nti_order_search(g, &r, s->order, other)) return 0;
    nti_end_rewind(g->tape, &g->tape->low, low);
    s->barrier = g->works;
    for (int32_t p = 0; p < g->works; p++) {
        s->position[s->order[p]] = p;
        if (g->work[s->order[p]] < 0) s->barrier = p;
    }
    return 1;
}

// Buffers: who lies where in time; an operation in place takes its dying operand's buffer ------------------------------------

static int nti_pass_buffers(nti_graph *g, nti_schedule *s) {
    int32_t *last;
    size_t works = (size_t)g->works, count = (size_t)g->count;
    const nti_want want[] = { { &s->buffer, 2 * works, sizeof *s->buffer }, { &s->buffer_of, count, sizeof *s->buffer_of },
                              { &s->scratch_of, works, sizeof *s->scratch_of }, { &last, count, sizeof *last } };
    if (!nti_graph_rooms(g, want, 4)) return 0;
    s->buffers = 0;
    for (int32_t i = 0; i < g->count; i++) s->buffer_of[i] = last[i] = -1;
    for (int32_t p = 0; p < g->works; p++) {
        int32_t i = g->work[s->order[p]];
        if (i < 0) continue;
        const nti_value *v = &g->value[i];
        if (last[i] < p) last[i] = p;
        for (int j = 0; j < v->inputs; j++) last[g->value[g->operand[v->first + j]].root] = p;
    }
    for (int32_t i = 0; i < g->count; i++)
        if (g->value[i].output) last[g->value[i].root] = g->works;
    for (int32_t p = 0; p < g->works; p++) {
        int32_t i = g->work[s->order[p]];
        s->scratch_of[s->order[p]] = -1;
        if (i < 0) continue;
        const nti_value *v = &g->value[i];
        size_t scratch = nti_scratch_bytes(g, v);
        if (scratch) {
            nti_buffer b = { scratch, 0, p, p };
            s->scratch_of[s->order[p]] = s->buffers, s->buffer[s->buffers++] = b;
        }
        if (!nti_owns_buffer(v)) continue;
        for (int j = 0; j < v->inputs && s->buffer_of[i] < 0; j++) {
            int32_t root = g->value[g->operand[v->first + j]].root;
            if (nti_in_place_operand(g, v, j) && last[root] == p && s->buffer_of[root] >= 0 && s->buffer[s->buffer_of[root]].death == p)
                s->buffer_of[i] = s->buffer_of[root];
        }
        if (s->buffer_of[i] < 0) {
            nti_buffer b = { nti_round_up(nti_value_bytes(v), NTI_ALIGN), 0, p, p };
            s->buffer_of[i] = s->buffers, s->buffer[s->buffers++] = b;
        }
        s->buffer[s->buffer_of[i]].death = last[i];
    }
    return 1;
}

// Offsets -------------------------------------------------------------------------------------------------------------------

// Of the values that share a buffer in place, the one that lies in it at the peak.
static int nti_pass_holders(nti_graph *g, nti_schedule *s) {
    s->holder = (int32_t *)nti_graph_room(g, (size_t)s->buffers + 1, sizeof *s->holder);
    if (!s->holder) return 0;
    for (int32_t b = 0; b < s->buffers; b++) s->holder[b] = -1;
    for (int32_t p = 0; p <= s->peak_position && p < g->works; p++)
        if (g->work[s->order[p]] >= 0 && s->buffer_of[g->work[s->order[p]]] >= 0)
            s->holder[s->buffer_of[g->work[s->order[p]]]] = g->work[s->order[p]];
    return 1;
}

// The largest sum of bytes alive at one position, and that position: sums of births and deaths.
static int nti_pass_bound(nti_graph *g, nti_schedule *s) {
    size_t *born = (size_t *)nti_graph_room(g, 2 * ((size_t)g->works + 2), sizeof *born), *dead = born ? born + g->works + 2 : NULL,
           live = 0;
    if (!born) return 0;
    memset(born, 0, 2 * ((size_t)g->works + 2) * sizeof *born);
    for (int32_t b = 0; b < s->buffers; b++)
        born[s->buffer[b].birth] += s->buffer[b].bytes, dead[s->buffer[b].death + 1] += s->buffer[b].bytes;
    s->bound = 0, s->peak_position = 0;
    for (int32_t p = 0; p <= g->works; p++) {
        live = live + born[p] - dead[p];
        if (live > s->bound) s->bound = live, s->peak_position = p;
    }
    return 1;
}

typedef struct nti_placing {
    nti_buffer *buffer;
    int32_t count, peak_position;
    int32_t *order;   // in which buffers are placed
    int32_t *placed;  // by rising offset
    size_t *offset;
    int best_gap;     // the tightest gap instead of the lowest
} nti_placing;

// Places all buffers in the given order, each into a gap between those it meets in time; gives up beyond `limit`.
static size_t nti_place(nti_placing *a, size_t limit) {
    size_t top = 0;
    for (int32_t k = 0; k < a->count; k++) {
        int32_t b = a->order[k];
        const nti_buffer *x = &a->buffer[b];
        size_t end = 0, at = 0, tight = SIZE_MAX;
        int found = 0;
        for (int32_t j = 0; j < k && !(found && !a->best_gap); j++) {
            const nti_buffer *y = &a->buffer[a->placed[j]];
            if (y->death < x->birth || x->death < y->birth || !y->bytes) continue;
            size_t low = a->offset[a->placed[j]];
            if (low >= end && low - end >= x->bytes && low - end < tight) at = end, tight = low - end, found = 1;
            if (low + y->bytes > end) end = low + y->bytes;
        }
        if (!found) at = end;
        a->offset[b] = at;
        if (at + x->bytes > top) top = at + x->bytes;
        if (top > limit) return top;
        int32_t j = k;
        for (; j > 0 && a->offset[a->placed[j - 1]] > at; j--) a->placed[j] = a->placed[j - 1];
        a->placed[j] = b;
    }
    return top;
}

static double nti_place_key(const nti_placing *a, const nti_buffer *b, int rule) {
    double bytes = (double)b->bytes, time = (double)(b->death - b->birth + 1);
    switch (rule) {
    case 0: return bytes * 1e6 + time;
    case 1: return bytes * time;
    case 2: return time * 1e3 + bytes * 1e-6;
    case 3: return -(double)b->birth;
    case 4: return (double)b->death;
    default:
        return b->birth <= a->peak_position && b->death >= a->peak_position ? 1e18 + time : bytes; // what makes the bound lies without gaps
    }
}

static void nti_place_sort(nti_placing *a, int rule) { // a shell sort: stable enough, since ties go by number
    for (int32_t k = 0; k < a->count; k++) a->order[k] = k;
    for (int32_t gap = a->count / 2; gap > 0; gap /= 2)
        for (int32_t k = gap; k < a->count; k++) {
            int32_t b = a->order[k], j = k;
            double key = nti_place_key(a, &a->buffer[b], rule);
            for (; j >= gap; j -= gap) {
                double other = nti_place_key(a, &a->buffer[a->order[j - gap]], rule);
                if (other > key || (other == key && a->order[j - gap] < b)) break;
                a->order[j] = a->order[j - gap];
            }
            a->order[j] = b;
        }
}

static uint32_t nti_next_random(uint32_t *state) { return *state = *state * 1664525u + 1013904223u, *state >> 8; }

// Moves a buffer that touches the top to an earlier place in the order, sometimes swaps two more, keeps what is not worse.
static size_t nti_place_search(nti_placing *a, size_t top, size_t bound, int32_t *trial, size_t *best_offset) {
    uint32_t random = 12345;
    int attempts = (int)(NTI_PLACE_WORK / ((double)a->count * (double)a->count + 1));
    int32_t *order = a->order;
    for (int t = 0; t < (top > bound + bound / 50 ? 4 : 1) * attempts && top > bound;
         t++) { // harder while it is more than two per cent away
        int32_t high = 0;
        memcpy(trial, order, (size_t)a->count * sizeof *trial);
        for (int32_t k = 0; k < a->count; k++)
            if (best_offset[order[k]] + a->buffer[order[k]].bytes == top) high = k;
        int32_t to = high ? (int32_t)(nti_next_random(&random) % (uint32_t)high) : 0, b = trial[high];
        memmove(trial + to + 1, trial + to, (size_t)(high - to) * sizeof *trial);
        trial[to] = b;
        for (uint32_t swaps = nti_next_random(&random) % 3; swaps; swaps--) {
            uint32_t p = nti_next_random(&random) % (uint32_t)a->count, q = nti_next_random(&random) % (uint32_t)a->count;
            int32_t x = trial[p];
            trial[p] = trial[q], trial[q] = x;
        }
        a->order = trial;
        size_t reached = nti_place(a, top);
        a->order = order;
        if (reached > top) continue;
        top = reached;
        memcpy(order, trial, (size_t)a->count * sizeof *trial);
        memcpy(best_offset, a->offset, (size_t)a->count * sizeof *best_offset);
    }
    return top;
}

// Places the buffers as time goes by, each into the tightest gap of that moment. What has died stays in the line until half of
// it is dead; its end is cut. Buffers are numbered by birth; `next` chains those that die together.
static size_t nti_place_in_time(nti_placing *a, int32_t positions, int32_t *dying, int32_t *next, uint8_t *alive) {
    int32_t line = 0, dead = 0, b = 0;
    size_t top = 0, live = 0;
    memset(dying, 0xff, (size_t)positions * sizeof *dying);
    for (int32_t k = 0; k < a->count; k++)
        alive[k] = a->buffer[k].bytes != 0, next[k] = dying[a->buffer[k].death], dying[a->buffer[k].death] = k;
    for (int32_t p = 0; p < positions; p++) {
        for (; b < a->count && a->buffer[b].birth == p; b++) {
            size_t bytes = a->buffer[b].bytes, end = 0, at = 0, tight = SIZE_MAX;
            int32_t before = -1;
            while (line && !alive[a->placed[line - 1]]) line--, dead--;
            size_t last = line ? a->offset[a->placed[line - 1]] + a->buffer[a->placed[line - 1]].bytes : 0;
            for (int32_t j = 0; j < line && last - live >= bytes && tight > bytes; j++) {
                int32_t y = a->placed[j];
                if (!alive[y]) continue;
                if (a->offset[y] - end >= bytes && a->offset[y] - end < tight) at = end, tight = a->offset[y] - end, before = j;
                end = a->offset[y] + a->buffer[y].bytes;
            }
            a->offset[b] = before < 0 ? last : at;
            if (!bytes) continue;
            if (before < 0) before = line;
            memmove(a->placed + before + 1, a->placed + before, (size_t)(line - before) * sizeof *a->placed);
            a->placed[before] = b, line++, live += bytes;
            if (a->offset[b] + bytes > top) top = a->offset[b] + bytes;
        }
        for (int32_t k = dying[p]; k >= 0; k = next[k])
            if (alive[k]) alive[k] = 0, dead++, live -= a->buffer[k].bytes;
        if (2 * dead <= line) continue;
        int32_t kept = 0;
        for (int32_t j = 0; j < line; j++)
            if (alive[a->placed[j]]) a->placed[kept++] = a->placed[j];
        line = kept, dead = 0;
    }
    return top;
}

static int nti_pass_offsets(nti_graph *g, nti_schedule *s) {
    size_t n = s->buffers ? (size_t)s->buffers : 1, *best;
    int32_t *trial, *best_order, *dying;
    uint8_t *alive;
    nti_placing a;
    a.buffer = s->buffer, a.count = s->buffers;
    const nti_want want[] = { { &best, n, sizeof *best },
                              { &a.offset, n, sizeof *a.offset },
                              { &a.order, n, sizeof *a.order },
                              { &a.placed, n, sizeof *a.placed },
                              { &trial, n, sizeof *trial },
                              { &best_order, n, sizeof *best_order },
                              { &dying, (size_t)g->works + 1, sizeof *dying },
                              { &alive, n, 1 } };
    if (!nti_graph_rooms(g, want, 8) || !nti_pass_bound(g, s)) return 0;
    a.peak_position = s->peak_position;
    size_t top = nti_place_in_time(&a, g->works + 1, dying, trial, alive);
    memcpy(best, a.offset, (size_t)a.count * sizeof *best);
    for (int32_t k = 0; k < a.count; k++) best_order[k] = k;
    double rules = NTI_RULE_WORK / ((double)n * (double)n + 1);
    for (int rule = 0; rule < NTI_RULES && rule < rules && top > s->bound; rule++) {
        a.best_gap = rule % 2;
        nti_place_sort(&a, rule / 2);
        size_t reached = nti_place(&a, top - 1);
        if (reached >= top) continue;
        top = reached;
        memcpy(best, a.offset, (size_t)a.count * sizeof *best), memcpy(best_order, a.order, (size_t)a.count * sizeof *best_order);
    }
    memcpy(a.order, best_order, (size_t)a.count * sizeof *best_order);
    a.best_gap = 0;
    if (top > s->bound && a.count > 1) top = nti_place_search(&a, top, s->bound, trial, best);
    for (int32_t b = 0; b < s->buffers; b++) s->buffer[b].offset = best[b];
    s->peak = s->buffers ? top : 0;
    return nti_pass_holders(g, s);
}

// All passes over a graph. 0: no memory for temporaries.
static int nti_plan_graph(nti_graph *g, nti_schedule *s, const nt_params *outputs, const nt_params *effects) {
    if (!nti_pass_collect(g, outputs, effects)) return 0;
    nti_pass_fill(g, outputs, effects);
    if (!nti_pass_merge(g)) return 0;
    nti_pass_accumulate(g);
    return nti_pass_views(g) && nti_pass_link(g) && nti_pass_plans(g) && nti_pass_order(g, s) && nti_pass_buffers(g, s) && nti_pass_offsets(g, s);
}

static nti_loop *nti_loop_of(const nti_graph *g, int32_t i) {
    nti_loop *loop = g->loops;
    while (loop->value != i) loop = loop->next;
    return loop;
}

// The body of a loop is a graph of its own, planned by itself: its peak is the loop's scratch. As deep as maps nest.
static int nti_plan_body(nti_graph *g, int32_t i) {
    nti_loop *loop = nti_loop_of(g, i);
    nti_graph *body = &loop->body;
    body->tape = g->tape, body->level = loop->map, body->self = loop, body->around = g;
    loop->schedule = (nti_schedule *)nti_graph_room(g, 1, sizeof *loop->schedule);
    if (!loop->schedule) return 0;
    memset(loop->schedule, 0, sizeof *loop->schedule);
    if (!nti_plan_graph(body, loop->schedule, NULL, NULL)) { g->full = 1; return 0; }
    memset(&g->value[i].plan, 0, sizeof g->value[i].plan);
    g->value[i].plan.shared = loop->schedule->peak;
    return 1;
}
// >>programs
// ---------------------------------------------------------------------------------------------------------------------
// Instructions: the plan written down in one object at the high end that never points into nodes. Where a value lies is a
// reference, resolved to an address when a run starts, since inputs can be bound anew.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nti_ref { // an operand's memory: bytes from the scratch, a leaf's data or the program's constants
    size_t offset;
    nti_node *leaf;
    uint8_t place;
} nti_ref;

typedef struct nti_instruction { // with count > 0: the start of a loop that ends before instruction `end`
    nti_call call;
    nti_eval_fn eval;
    nti_ref out, *in;
    size_t shared, workers; // offsets in scratch
    const char *name;       // of the operation; of an index or loss that is checked
    double flops;
    int64_t count;
    int32_t end;
    uint16_t op;
    uint8_t effect;
} nti_instruction;

typedef struct nti_output { nti_ref ref; size_t bytes; nt_dtype dtype; nt_shape shape; const char *name; } nti_output;



typedef struct nti_cursor { // where a run stands: the next tile of a phase of an instruction
    int32_t instruction, phase;
    int64_t tile;
    int32_t loops, start[NTI_MAX_LOOPS]; // the loops that it is in, and where their bodies start
    int64_t turn[NTI_MAX_LOOPS];         // their iterations
} nti_cursor;

struct nt_program {
    nt_tape *tape;
    nti_instruction *instruction;
    nti_output *output;
    nti_node **leaf;        // every leaf that it reads or writes; the ones that it writes come first
    char *constant;
    char *scratch;
    nt_program *owner;      // of the scratch; itself, or another program
    const nt_program *last; // owner: who ran in the scratch last
    uint64_t serial, scratch_serial;
    int32_t instructions, outputs, leaves, written;
    size_t scratch_bytes;
    nti_cursor at;
    nt_program *next_run;   // of those that are in the middle of a run
    nt_cancel cancel;
    nt_report_info report;
    nti_step *step;         // training: counters and the optimizer's state
    uint8_t ran, dead;
    uint8_t begun, inside;  // in the middle of a run; a call that runs it has not returned
    uint8_t assigned;       // this run has begun to assign
    // a data check that failed in this run
    const nti_call *failed;
    int64_t failed_at;
    double failed_value;
};

#define NTI_CARVE_ALIGN ((size_t)8) // of doubles and 64-bit integers, on 32-bit machines too
typedef struct nti_carve { char *base; size_t used; } nti_carve; // measures with base NULL, then hands out

static void *nti_carve_take(nti_carve *c, size_t bytes, size_t align) {
    c->used = nti_round_up(c->used, align);
    void *p = c->base ? c->base + c->used : NULL;
    c->used += bytes;
    return p;
}

static const char *nti_carve_string(nti_carve *c, const char *s) {
    if (!s) return NULL;
    size_t n = strlen(s) + 1;
    char *p = (char *)nti_carve_take(c, n, 1);
    if (p) memcpy(p, s, n);
    return p;
}

typedef struct nti_site { // a planned graph and where its scratch begins
    const nti_graph *g;
    const nti_schedule *s;
    const size_t *constant_at;  // of the whole program
    const struct nti_site *around;
    size_t base;
} nti_site;

static nti_ref nti_ref_of(const nti_site *a, int32_t i) {
    size_t offset = 0;
    const nti_value *v = &a->g->value[i];
    for (; v->place == NTI_IN_OUTER; a = a->around) {
        offset += (size_t)v->offset * nt_dtype_size((nt_dtype)v->dtype);
        v = nti_around(a->g, &a->g->value[v->root]);
    }
    nti_ref r = { 0, NULL, v->place };
    r.offset = offset + (size_t)v->offset * nt_dtype_size((nt_dtype)v->dtype);
    if (v->place == NTI_IN_LEAF) r.leaf = (nti_node *)(uintptr_t)a->g->value[v->root].node;
    else if (v->place == NTI_IN_CONSTANT) r.offset += a->constant_at[v->root];
    else r.offset += a->base + a->s->buffer[a->s->buffer_of[v->root]].offset;
    return r;
}

static void nti_emit_view(nti_carve *c, nti_view *view, const nti_value *v) {
    size_t n = (size_t)v->rank * sizeof(int64_t);
    int64_t *p = (int64_t *)nti_carve_take(c, 2 * n, NTI_CARVE_ALIGN);
    if (!p) return;
    if (n) memcpy(p, v->shape, n), memcpy(p + v->rank, v->stride, n);
    view->data = NULL, view->shape = p, view->stride = p + v->rank, view->dtype = v->dtype, view->rank = v->rank;
}

static size_t nti_scratch_at(const nti_schedule *s, int32_t work) {
    return s->scratch_of[work] < 0 ? 0 : s->buffer[s->scratch_of[work]].offset;
}

static void nti_emit_instruction(nti_carve *c, const nti_site *a, nt_program *p, nti_instruction *to, int32_t work) {
    const nti_graph *g = a->g;
    const nti_value *v = &g->value[g->work[work]];
    const nti_node *n = v->node;
    const nti_row *row = nti_row_of(v->op);
    int ni = v->made_copy ? 0 : n->ni, nd = v->made_copy ? 0 : n->nd;
    nti_view *in = (nti_view *)nti_carve_take(c, (size_t)v->inputs * sizeof *in, NTI_CARVE_ALIGN), none;
    nti_ref *refs = (nti_ref *)nti_carve_take(c, (size_t)v->inputs * sizeof *refs, NTI_CARVE_ALIGN);
    int64_t *ai = (int64_t *)nti_carve_take(c, (size_t)ni * sizeof *ai, NTI_CARVE_ALIGN);
    double *ad = (double *)nti_carve_take(c, (size_t)nd * sizeof *ad, NTI_CARVE_ALIGN);
    nti_view *out = to ? &to->call.out : &none;
    nti_emit_view(c, out, v);
    for (int k = 0; k < v->inputs; k++) nti_emit_view(c, in ? &in[k] : &none, &g->value[g->operand[v->first + k]]);
    const char *name = (row->flags & NTI_CHECKS) && !v->made_copy ? nti_carve_string(c, n->in[0]->pub.name) : NULL;
    if (!to) return;
    if (ni) memcpy(ai, n->i, (size_t)ni * sizeof *ai);
    if (nd) memcpy(ad, n->d, (size_t)nd * sizeof *ad);
    if (v->accumulate) ai[nti_accumulate_attribute(v->op)] = 1;
    to->call.isa = g->tape->isa, to->call.op = v->op, to->call.in = in, to->call.inputs = v->inputs, to->call.i = ai, to->call.d = ad,
    to->call.plan = v->plan, to->call.program = p;
    to->eval = v->made_copy ? nti_eval_copy : row->eval;
    to->name = row->flags & NTI_CHECKS ? name : row->name, to->op = v->op, to->effect = (uint8_t)(nti_is_effect(v) && v->place == NTI_IN_LEAF), to->in = refs;
    to->flops = v->made_copy || (row->flags & NTI_CHEAP) ? 0 : row->cost ? row->cost(n) : (double)nti_count(v->rank, v->shape);
    for (int k = 0; k < v->inputs; k++) refs[k] = nti_ref_of(a, g->operand[v->first + k]);
    to->out = nti_ref_of(a, g->work[work]);
    to->shared = a->base + nti_scratch_at(a->s, work);
    to->workers = to->shared + nti_round_up(v->plan.shared, NTI_ALIGN);
}

// The instructions of a graph, those of a loop behind its start. Counts them, or writes them from list[at] on. As deep as maps nest.
static int32_t nti_emit_graph(nti_carve *c, const nti_site *a, nt_program *p, nti_instruction *list, int32_t at, double *flops) {
    for (int32_t k = 0; k < a->g->works; k++) {
        int32_t work = a->s->order[k], i = a->g->work[work];
        a->s->number[k] = at; // the barrier has the number of what follows
        if (i < 0) continue;
        if (a->g->value[i].op != NTI_OP_MAP_LOOP) {
            nti_emit_instruction(c, a, p, list ? &list[at] : NULL, work);
            if (list) *flops += list[at].flops;
            at++;
            continue;
        }
        const nti_loop *loop = nti_loop_of(a->g, i);
        nti_site inside = { &loop->body, loop->schedule, a->constant_at, a, a->base + nti_scratch_at(a->s, work) };
        nti_instruction *start = list ? &list[at] : NULL;
        double once = 0;
        at = nti_emit_graph(c, &inside, p, list, at + 1, &once);
        *flops += once * (double)loop->map->count;
        if (!start) continue;
        start->name = nti_row_of(NTI_OP_MAP_LOOP)->name, start->op = NTI_OP_MAP_LOOP;
        start->count = loop->map->count, start->end = at;
    }
    a->s->number[a->g->works] = at;
    return at;
}

static int nti_at_peak(const nti_graph *g, const nti_schedule *s,
                       int32_t i) { // value i holds its buffer at the peak: made last of those that share it
    if (s->buffer_of[i] < 0) return 0;
    const nti_buffer *b = &s->buffer[s->buffer_of[i]];
    int32_t made = s->position[g->slot[i]];
    return b->bytes && made <= s->peak_position && b->death >= s->peak_position && s->holder[s->buffer_of[i]] == i;
}

static void nti_sort_values(nt_report_value *list, int count) { // largest first, else as they are born: a shell sort
    for (int gap = count / 2; gap > 0; gap /= 2)
        for (int k = gap; k < count; k++) {
            nt_report_value x = list[k];
            int at = k;
            for (; at >= gap && (list[at - gap].bytes < x.bytes || (list[at - gap].bytes == x.bytes && list[at - gap].born > x.born));
                 at -= gap)
                list[at] = list[at - gap];
            list[at] = x;
        }
}

// The values alive at the peak, largest first, with names that outlive the nodes.
static void nti_emit_report(nti_carve *c, const nti_graph *g, const nti_schedule *s, nt_report_info *r) {
    int count = 0;
    nt_report_value *list = NULL;
    for (int32_t i = 0; i < g->count; i++) count += nti_at_peak(g, s, i);
    list = (nt_report_value *)nti_carve_take(c, (size_t)count * sizeof *list, NTI_CARVE_ALIGN);
    int n = 0;
    for (int32_t i = 0; i < g->count; i++) {
        if (!nti_at_peak(g, s, i)) continue;
        const nti_buffer *b = &s->buffer[s->buffer_of[i]];
        const nti_value *v = &g->value[i];
        const char *name = nti_carve_string(c, v->node->pub.name);
        if (!list) continue;
        nt_report_value *e = &list[n++];
        e->operation = v->made_copy ? "copy" : nti_row_of(v->op)->name, e->name = name, e->dtype = (nt_dtype)v->dtype,
        e->shape = nt_shape_make(v->rank, v->shape);
        e->bytes = b->bytes, e->born = s->number[s->position[g->slot[i]]], e->last_use = s->number[b->death],
        e->last_user = "output";
        if (b->death < g->works && g->work[s->order[b->death]] >= 0)
            e->last_user = nti_row_of(g->value[g->work[s->order[b->death]]].op)->name;
    }
    nti_sort_values(list, n);
    r->value_count = n, r->values = list;
}

static size_t nti_constant_bytes(const nti_value *v) {
    return v->op == NTI_OP_FULL ? nt_dtype_size((nt_dtype)v->dtype) : nti_value_bytes(v);
}

static void nti_emit_constant(char *to, const nti_value *v) {
    const nti_node *n = v->node;
    if (v->op == NTI_OP_FULL) nti_cast((nt_dtype)v->dtype, to, NT_F64, n->d, 1);
    else if (nti_value_bytes(v)) memcpy(to, n->storage, nti_value_bytes(v));
}

// Writes the program, or measures it when c->base is NULL; the two cannot drift apart.
static nt_program *nti_emit(nti_carve *c, const nti_graph *g, const nti_schedule *s, size_t *constant_at) {
    int32_t leaves = 0;
    size_t constants = 0, persistent = 0;
    nti_carve none = { NULL, 0 };
    const nti_site site = { g, s, constant_at, NULL, 0 };
    double flops = 0;
    for (int32_t i = 0; i < g->count; i++) {
        const nti_value *v = &g->value[i];
        if (v->uses && v->place == NTI_IN_LEAF && v->op <= NTI_OP_VARIABLE) leaves++, persistent += nti_value_bytes(v);
        if (!v->uses || v->root != i || v->place != NTI_IN_CONSTANT) continue;
        constant_at[i] = constants, constants += nti_round_up(nti_constant_bytes(v), NTI_ALIGN);
    }
    int32_t works = nti_emit_graph(&none, &site, NULL, NULL, 0, &flops);
    nt_program *p = (nt_program *)nti_carve_take(c, sizeof *p, NTI_ALIGN);
    char *constant = (char *)nti_carve_take(c, constants, NTI_ALIGN);
    nti_instruction *list = (nti_instruction *)nti_carve_take(c, (size_t)works * sizeof *list, NTI_CARVE_ALIGN);
    nti_output *output = (nti_output *)nti_carve_take(c, (size_t)g->outputs * sizeof *output, NTI_CARVE_ALIGN);
    nti_node **leaf = (nti_node **)nti_carve_take(c, (size_t)leaves * sizeof *leaf, NTI_CARVE_ALIGN);
    nt_report_info report;
    memset(&report, 0, sizeof report);
    nti_emit_report(c, g, s, &report);
    nti_emit_graph(c, &site, p, list, 0, &report.flops);
    report.peak_instruction = s->number[s->peak_position];
    for (int k = 0; k < g->outputs; k++) {
        const nti_value *v = &g->value[g->target[k]];
        const char *name = nti_carve_string(c, v->node->pub.name);
        if (!output) continue;
        output[k].ref = nti_ref_of(&site, g->target[k]), output[k].bytes = nti_value_bytes(v),
        output[k].dtype = (nt_dtype)v->dtype;
        output[k].shape = nt_shape_make(v->rank, v->shape), output[k].name = name;
    }
    if (!c->base) return NULL;
    leaves = 0;
    for (int written = 1; written >= 0; written--) {
        for (int32_t i = 0; i < g->count; i++) {
            const nti_value *v = &g->value[i];
            if (v->uses && v->place == NTI_IN_LEAF && v->op <= NTI_OP_VARIABLE && v->written == written)
                leaf[leaves++] = (nti_node *)(uintptr_t)v->node;
        }
        if (written) p->written = leaves;
    }
    for (int32_t i = 0; i < g->count; i++) {
        const nti_value *v = &g->value[i];
        if (v->uses && v->root == i && v->place == NTI_IN_CONSTANT) nti_emit_constant(constant + constant_at[i], v);
    }
    p->tape = g->tape, p->instruction = list, p->output = output, p->leaf = leaf, p->constant = constant;
    p->instructions = works, p->outputs = g->outputs, p->leaves = leaves;
    report.peak = s->peak, report.lower_bound = s->bound, report.persistent = persistent + constants, report.program = c->used,
    report.instructions = works;
    p->report = report;
    return p;
}

// Compiling ---------------------------------------------------------------------------------------------------------------

typedef struct nti_compile_job {
    const char *name;        // of the public call, for messages
    nt_params outputs, effects;
    const nt_compile_desc *desc;
} nti_compile_job;

static int nti_needs_storage(const nti_node *n) { return n->op == NTI_OP_INPUT && !n->storage && !n->bound && nt_bytes(&n->pub); }

static void nti_put_peak(nti_text *o, const nt_report_info *r) {
    nti_put_string(o, "; at the peak:");
    for (int k = 0; k < r->value_count && k < 4; k++) {
        const nt_report_value *v = &r->values[k];
        nti_format(o, "%s %s ", k ? "," : "", v->name ? v->name : v->operation);
        nti_put_shape(o, v->dtype, v->shape.rank, v->shape.size);
        nti_format(o, " %zu", v->bytes);
    }
    if (r->value_count > 4) nti_format(o, " and %d more", r->value_count - 4);
}

static nt_program *nti_compile_refused(nt_tape *t, nt_status status, const nti_compile_job *job, const char *what, size_t need, size_t have,
                                       const nt_report_info *r) {
    t->latest = status;
    if (t->status != NT_OK) return NULL;
    nti_text o = { t->message, sizeof t->message, 0, 0 };
    t->status = status;
    nti_format(&o, "%s: needs %zu bytes %s", job->name, need, what);
    if (have) nti_format(&o, ", has %zu", have);
    if (r) nti_put_peak(&o, r);
    return NULL;
}

// Input storage, the program and its scratch, at the high end; all or nothing but for the storage of inputs.
static nt_program *nti_compile_place(nti_graph *g, nti_schedule *s, const nti_compile_job *job, size_t *constant_at, size_t low_before) {
    nt_tape *t = g->tape;
    const nt_compile_desc *d = job->desc;
    nti_carve measure = { NULL, 0 };
    nti_emit(&measure, g, s, constant_at);
    nt_program *owner = d->share_scratch ? d->share_scratch->owner : NULL;
    size_t least = d->scratch_min < SIZE_MAX / 4 ? nti_round_up(d->scratch_min, NTI_ALIGN) : SIZE_MAX / 4,
           scratch = least > s->peak ? least : s->peak;
    size_t high = nti_high_after(t->high.used, measure.used), with_program = high;
    for (int32_t i = 0; i < g->count; i++)
        if (g->value[i].uses && g->value[i].place == NTI_IN_LEAF && nti_needs_storage(g->value[i].node))
            high = nti_high_after(high, nt_bytes(&g->value[i].node->pub));
    if (!owner) high = nti_high_after(high, scratch ? scratch : 1);
    size_t need = t->peak;
    if (t->low.used + with_program > need) need = t->low.used + with_program;
    if (low_before + high > need) need = low_before + high;
    uint64_t serial = t->serial;
    char *memory = (char *)nti_high(t, NTI_PROGRAM, NTI_FOR_PROGRAM, measure.used);
    nt_program *p = NULL;
    if (memory) {
        nti_carve write = { memory, 0 };
        p = nti_emit(&write, g, s, constant_at);
        p->serial = nti_object_of(memory)->serial;
    }
    nt_report_info report;
    memset(&report, 0, sizeof report);
    if (p) report = p->report;
    t->temporary = 0;
    nti_end_rewind(t, &t->low, low_before); // the temporaries make room for the scratch
    int ok = p != NULL;
    for (int32_t k = 0; ok && k < p->leaves; k++) {
        nti_node *n = p->leaf[k];
        if (!nti_needs_storage(n)) continue;
        n->storage = nti_high(t, NTI_PLAIN, NTI_FOR_INPUT, nt_bytes(&n->pub));
        n->storage_serial = t->serial, ok = n->storage != NULL;
    }
    if (ok && !owner) {
        p->scratch = (char *)nti_high(t, NTI_SCRATCH, NTI_FOR_SCRATCH, scratch ? scratch : 1);
        p->scratch_serial = t->serial, p->scratch_bytes = scratch, ok = p->scratch != NULL;
    }
    if (ok) {
        p->owner = owner ? owner : p;
        if (owner) p->scratch_bytes = owner->scratch_bytes, p->scratch_serial = owner->scratch_serial;
        p->report.total = p->report.total_least = nti_total(t->peak);
        p->cancel = d->cancel;
        return p;
    }
    nti_compile_refused(t, NT_ERROR_MEMORY, job, "of tape in all", nti_total(need), t->base ? t->desc.memory_size : 0, p ? &report : NULL);
    nti_high_rewind(t, serial, 1);
    return NULL;
}

static int nti_compile_passes(nti_graph *g, nti_schedule *s, const nti_compile_job *job) {
    return nti_plan_graph(g, s, &job->outputs, &job->effects);
}

static nt_program *nti_compile(nt_tape *t, const nti_compile_job *job) {
    nti_graph g;
    nti_schedule s;
    memset(&g, 0, sizeof g), memset(&s, 0, sizeof s);
    g.tape = t;
    size_t low_before = t->low.used;
    const nt_compile_desc *d = job->desc;
    nt_program *p = NULL;
    int ok = nti_compile_passes(&g, &s, job);
    size_t *constant_at = ok ? (size_t *)nti_graph_room(&g, (size_t)g.count, sizeof *constant_at) : NULL;
    t->temporary = t->low.used - low_before;
    if (!constant_at) nti_out_of_memory(t, job->name);
    else if (d->budget && s.peak > d->budget) {
        nti_carve c = { NULL, 0 }, measure = { NULL, 0 };
        nt_report_info r;
        memset(&r, 0, sizeof r);
        nti_emit_report(&measure, &g, &s, &r);
        c.base = (char *)nti_graph_room(&g, measure.used + 1, 1);
        if (c.base) nti_emit_report(&c, &g, &s, &r); // names and values for the message only
        nti_compile_refused(t, NT_ERROR_BUDGET, job, "of scratch, the least that this plan takes", s.peak, d->budget, &r);
    } else if (d->share_scratch && s.peak > d->share_scratch->owner->scratch_bytes) {
        nti_compile_refused(
            t, NT_ERROR_BUDGET, job,
            "of scratch, more than the program has whose scratch it shares (compile the larger first, or give that one .scratch_min)",
            s.peak, d->share_scratch->owner->scratch_bytes, NULL);
    } else p = nti_compile_place(&g, &s, job, constant_at, low_before);
    t->temporary = 0;
    nti_end_rewind(t, &t->low, low_before);
    return p;
}

// The checks that all compiling calls share; 0 after an error or with a NULL.
static int nti_compile_valid(nt_tape *t, const char *name, nt_params list, const char *what) {
    for (int k = 0; k < list.count; k++) {
        nt_tensor *x = list.items ? list.items[k] : NULL;
        if (!x || t->sticky) return 0;
        if (x->tape != t) nti_fail(t, NT_ERROR_ARGUMENT, "%s: %s %d, %v, belongs to another tape", name, what, k, x);
        else if (nti_n(x)->dead)
            nti_fail(t, NT_ERROR_STATE, "%s: use after rewind: %s %d, %v, was recorded after the mark, or before nt_forget_nodes", name,
                     what, k, x);
        else if (nti_n(x)->loop)
            nti_fail(t, NT_ERROR_STATE, "%s: %s %d, %v, belongs to the body of a map; nt_map_sum, nt_map_mean and nt_map_stack bring it out",
                     name, what, k, x);
        else continue;
        return 0;
    }
    return 1;
}

static int nti_assigns_valid(nt_tape *t, const char *name, nt_params assigns) {
    if (!nti_compile_valid(t, name, assigns, "assignment")) return 0;
    uint32_t epoch = ++t->epoch;
    for (int k = 0; k < assigns.count; k++) {
        const nti_node *n = nti_n(assigns.items[k]);
        if (!(nti_row_of(n->op)->flags & NTI_EFFECT)) {
            nti_fail(t, NT_ERROR_ARGUMENT, "%s: assigns[%d], %v, is not what nt_assign returned", name, k, assigns.items[k]);
            return 0;
        }
        if (n->in[0]->mark == epoch) {
            nti_fail(t, NT_ERROR_ARGUMENT, "%s: two assignments of one variable, %v", name, &n->in[0]->pub);
            return 0;
        }
        n->in[0]->mark = epoch;
    }
    return 1;
}

static int nti_share_valid(nt_tape *t, const char *name, const nt_compile_desc *d) {
    if (!d->share_scratch) return 1;
    if (d->share_scratch->tape == t && !d->share_scratch->dead) return 1;
    nti_fail(t, NT_ERROR_ARGUMENT, "%s: .share_scratch is a program of another tape, or was rewound", name);
    return 0;
}

NT_API nt_program *nt_compile_many(nt_tape *t, nt_params outputs, const nt_compile_desc *desc) {
    nt_compile_desc none;
    nti_compile_job job;
    memset(&none, 0, sizeof none);
    if (!t || t->sticky || outputs.count < 0) return NULL;
    job.name = "nt_compile", job.desc = desc ? desc : &none, job.outputs = outputs, job.effects = job.desc->assigns;
    if (!nti_compile_valid(t, job.name, outputs, "output") || !nti_assigns_valid(t, job.name, job.effects) ||
        !nti_share_valid(t, job.name, job.desc))
        return NULL;
    return nti_compile(t, &job);
}

NT_API nt_program *nt_compile(nt_tensor *y, const nt_compile_desc *desc) {
    return y ? nt_compile_many(y->tape, nti_list(&y, 1), desc) : NULL;
}

// >>running
// ---------------------------------------------------------------------------------------------------------------------
// Runs resolve references, then go through the instructions phase by phase, tile by tile. Nothing is allocated.
// ---------------------------------------------------------------------------------------------------------------------
static void *nti_resolve(const nt_program *p, const nti_ref *r) {
    const char *base = r->place == NTI_IN_SCRATCH    ? p->owner->scratch
                       : r->place == NTI_IN_CONSTANT ? p->constant
                       : r->leaf->bound              ? (const char *)r->leaf->bound
                                                     : (const char *)r->leaf->storage;
    return (void *)(uintptr_t)(base ? base + r->offset : NULL);
}

// Programs in the middle of a run ----------------------------------------------------------------------------------------

static nt_program *nti_update_of(const nt_program *p); // training: the program of the update, which runs as a part of p; else NULL

enum { NTI_FREE, NTI_USED, NTI_ASSIGNED, NTI_ASSIGNING }; // how a run uses a leaf; the last: it has begun to assign

static int nti_leaf_use(const nt_program *run, const nti_node *leaf) {
    int use = NTI_FREE;
    for (const nt_program *q = run; q; q = q == run ? nti_update_of(run) : NULL)
        for (int32_t k = 0; k < q->leaves && use < NTI_ASSIGNED; k++)
            if (q->leaf[k] == leaf) use = k >= q->written ? NTI_USED : run->assigned ? NTI_ASSIGNING : NTI_ASSIGNED;
    return use;
}

// NT_BUSY where a run is in the middle that uses this leaf in this or a stronger way.
static nt_status nti_leaf_free(const nt_tensor *x, const char *name, int use) {
    for (const nt_program *run = x->tape->runs; run; run = run->next_run)
        if (nti_leaf_use(run, nti_n(x)) >= use)
            return nti_fail(x->tape, NT_BUSY, "%s: a program that %s %v is in the middle of a run; finish that first", name,
                            use == NTI_USED ? "uses" : "assigns", x);
    return NT_OK;
}

// What p may not meet: another's assignments where it reads, any use by another where it assigns.
static nt_status nti_run_meets(const nt_program *p, const nt_program *run, const char *name) {
    if (run->owner == p->owner)
        return nti_fail(p->tape, NT_BUSY, "%s: a program that shares the scratch is in the middle of a run; finish that first", name);
    for (const nt_program *q = p; q; q = q == p ? nti_update_of(p) : NULL)
        for (int32_t k = 0; k < q->leaves; k++)
            if (nti_leaf_use(run, q->leaf[k]) >= (k < q->written ? NTI_USED : NTI_ASSIGNING))
                return nti_fail(p->tape, NT_BUSY, "%s: another program that %s %v is in the middle of a run; finish that first", name,
                                k < q->written ? "uses" : "assigns", &q->leaf[k]->pub);
    return NT_OK;
}

static nt_status nti_run_free(const nt_program *p, const char *name) {
    if (p->inside) return nti_fail(p->tape, NT_BUSY, "%s: called by a hook of this program's own run", name);
    for (const nt_program *run = p->tape->runs; run; run = run->next_run) {
        nt_status status = run == p ? NT_OK : nti_run_meets(p, run, name);
        if (status != NT_OK) return status;
    }
    return NT_OK;
}

// The host's call of `name` changes what the runs of this program use: not in the middle of one.
static nt_status nti_run_not_begun(const nt_program *p, const char *name) {
    return p->begun ? nti_fail(p->tape, NT_BUSY, "%s: the program is in the middle of a run; finish that first", name) : NT_OK;
}

static void nti_run_begin(nt_program *p) {
    if (p->begun) return;
    p->begun = 1, p->assigned = 0, p->next_run = p->tape->runs, p->tape->runs = p;
}

static void nti_run_end(nt_program *p) {
    nt_program **at = &p->tape->runs;
    while (*at && *at != p) at = &(*at)->next_run;
    if (*at) *at = p->next_run;
    p->begun = 0, p->next_run = NULL;
}

// Instructions --------------------------------------------------------------------------------------------------------------

typedef struct nti_slice { // how far a call goes
    nt_program *run;       // what the host runs: an update is a part of its step's run
    nt_clock clock;        // .seconds NULL: none
    double until;          // of the clock; while it has not been read, the seconds of the slice
    int looks, once;       // between groups of tiles something may end the slice; the first group does
} nti_slice;

typedef struct nti_tiles { const nti_instruction *instruction; int phase; int64_t first; char *scratch; } nti_tiles;

static void nti_run_tile(void *arg, int64_t index, int worker) {
    const nti_tiles *a = (const nti_tiles *)arg;
    const nti_call *c = &a->instruction->call;
    a->instruction->eval(c, a->phase, a->first + index,
                         a->scratch + a->instruction->workers + (size_t)worker * nti_round_up(c->plan.worker, NTI_ALIGN));
}

static int64_t nti_plan_count(const nti_plan *p, int phase) { return p->phases ? p->tiles[phase % p->phases] : 0; }

static int64_t nti_loop_at(const nt_program *p, int64_t depth) { return p->at.turn[depth]; }

static void nti_loop_begin(nt_program *p) {
    nti_cursor *at = &p->at;
    at->turn[at->loops] = 0, at->start[at->loops++] = ++at->instruction;
}

// The next instruction: behind the last of a body, its first, until all iterations are done.
static void nti_next_instruction(nt_program *p) {
    nti_cursor *at = &p->at;
    at->phase = 0, at->tile = 0, at->instruction++;
    while (at->loops) {
        const nti_instruction *loop = &p->instruction[at->start[at->loops - 1] - 1];
        if (loop->end != at->instruction) return;
        if (++at->turn[at->loops - 1] < loop->count) { at->instruction = at->start[at->loops - 1]; return; }
        at->loops--;
    }
}

// The cursor behind `count` tiles: the next tile, phase or instruction.
static void nti_advance(nt_program *p, int64_t count) {
    nti_cursor *at = &p->at;
    const nti_plan *plan = &p->instruction[at->instruction].call.plan;
    at->tile += count;
    if (at->tile < nti_plan_count(plan, at->phase)) return;
    at->tile = 0;
    if (++at->phase >= nti_plan_steps(plan)) nti_next_instruction(p);
}

// Operands get their addresses when an instruction begins; 0 if there is nothing to compute.
static int nti_instruction_begin(nt_program *p, nti_instruction *n) {
    nti_call *c = &n->call;
    c->out.data = nti_resolve(p, &n->out);
    for (int k = 0; k < c->inputs; k++) c->in[k].data = nti_resolve(p, &n->in[k]);
    c->shared = p->owner->scratch + n->shared;
    return nti_view_size(&c->out) != 0;
}

// The tiles of a phase from the cursor on: all, or as many as there are workers.
static int64_t nti_run_group(nt_program *p, const nti_instruction *n, int few) {
    const nt_parallel *parallel = &p->tape->desc.parallel;
    nti_tiles tiles = { n, p->at.phase, p->at.tile, p->owner->scratch };
    int64_t count = nti_plan_count(&n->call.plan, tiles.phase) - tiles.first,
            most = parallel->max_workers > 1 ? parallel->max_workers : 1;
    if (few && count > most) count = most;
    if (count > 1 && parallel->max_workers > 1) parallel->for_each(parallel->user, count, nti_run_tile, &tiles);
    else
        for (int64_t k = 0; k < count; k++) nti_run_tile(&tiles, k, 0);
    return count;
}

static nt_status nti_data_failed(nt_program *p) {
    const nti_call *c = p->failed;
    const nti_instruction *n = NULL;
    for (int32_t k = 0; k < p->instructions; k++)
        if (&p->instruction[k].call == c) n = &p->instruction[k];
    if (n && n->op == NTI_OP_CHECK_FINITE) return NT_NONFINITE;
    const char *name = n && n->name ? n->name : NULL;
    return nti_fail(
        p->tape, NT_ERROR_DATA, "nt_run: %s: %s element %lld is %lld, outside 0 to %lld; nothing was assigned. Correct the data%s",
        nti_row_of((int)c->i[3])->name,
        name                              ? name
        : c->i[3] == NTI_OP_CROSS_ENTROPY ? "label"
                                          : "index",
        (long long)p->failed_at, (long long)p->failed_value, (long long)(c->i[0] - 1), c->i[2] ? " (one value is ignored by design)" : "");
}

static void nti_data_error(const nti_call *c, int64_t at, double value) {
    if (c->program->failed) return;
    c->program->failed = c, c->program->failed_at = at, c->program->failed_value = value;
}

static nt_status nti_run_ready(nt_program *p) {
    nt_tape *t = p->tape;
    if (p->dead || p->owner->dead)
        return nti_fail(t, NT_ERROR_STATE,
                        "nt_run: use after rewind: the program, or the one whose scratch it shares, is gone; compile it again");
    for (int32_t k = 0; k < p->leaves; k++) {
        const nti_node *n = p->leaf[k];
        if (n->op != NTI_OP_INPUT || n->bound || n->written || !nt_bytes(&n->pub)) continue;
        return nti_fail(t, NT_ERROR_STATE, "nt_run: the input %v has no data yet; nt_write or nt_bind it first", &n->pub);
    }
    return NT_OK;
}

static int nti_cancelled(const nt_program *run) { return run->cancel.asked && !run->assigned && run->cancel.asked(run->cancel.user); }
static int nti_time_is_up(const nti_slice *s) { return s->once || (s->clock.seconds && !(s->clock.seconds(s->clock.user) < s->until)); }

static void nti_run_rewind(nt_program *p) { // to the first tile
    p->at.instruction = p->at.phase = p->at.loops = 0, p->at.tile = 0;
    p->failed = NULL, p->ran = 0, p->owner->last = p;
}

// From the cursor to the end or as far as the slice goes; NT_OK at the end.
static nt_status nti_run_on(nt_program *p, const nti_slice *s) {
    while (p->at.instruction < p->instructions) {
        nti_instruction *n = &p->instruction[p->at.instruction];
        if (s->looks && nti_cancelled(s->run)) return NT_CANCELLED;
        if (n->count) { nti_loop_begin(p); continue; }
        if (!p->at.phase && !p->at.tile && !nti_instruction_begin(p, n)) { nti_next_instruction(p); continue; }
        if (n->effect) s->run->assigned = 1;
        nti_advance(p, nti_run_group(p, n, s->looks));
        if (p->failed) return nti_data_failed(p);
        if (s->looks && p->at.instruction < p->instructions && nti_time_is_up(s)) return NT_AGAIN;
    }
    p->ran = 1;
    return NT_OK;
}

static nt_status nti_step_run(nt_program *p, const nti_slice *s); // training: see the optimizers

static nt_status nti_run_part(nt_program *p, const nti_slice *s) {
    if (!p->begun) nti_run_rewind(p);
    nti_run_begin(p);
    return nti_run_on(p, s);
}

// A run or a slice of one, of a program that may run.
static nt_status nti_run_slice(nt_program *p, nti_slice *s, const char *name) {
    nt_status status = nti_run_free(p, name);
    if (status == NT_OK && (status = nti_run_ready(p)) != NT_OK) nti_run_end(p);
    if (status != NT_OK) return status;
    s->run = p, s->looks = s->once || s->clock.seconds || p->cancel.asked;
    p->inside = 1;
    if (s->clock.seconds) s->until += s->clock.seconds(s->clock.user);
    status = p->step ? nti_step_run(p, s) : nti_run_part(p, s);
    p->inside = 0;
    if (status != NT_AGAIN) nti_run_end(p);
    return status;
}

NT_API nt_status nt_run(nt_program *program) {
    nti_slice whole;
    memset(&whole, 0, sizeof whole);
    return program ? nti_run_slice(program, &whole, "nt_run") : NT_ERROR_ARGUMENT;
}

NT_API nt_status nt_run_for(nt_program *program, double seconds, nt_clock clock) {
    nti_slice s;
    memset(&s, 0, sizeof s);
    if (!program) return NT_ERROR_ARGUMENT;
    s.once = !(seconds > 0);
    if (s.once) return nti_run_slice(program, &s, "nt_run_for");
    if (!clock.seconds)
        return nti_fail(program->tape, NT_ERROR_ARGUMENT, "nt_run_for: %g seconds without a clock; nt_run runs to the end", seconds);
    s.clock = clock, s.until = seconds;
    return nti_run_slice(program, &s, "nt_run_for");
}

NT_API size_t nt_output_bytes(const nt_program *p, int i) { return p && i >= 0 && i < p->outputs ? p->output[i].bytes : 0; }

static nt_status nti_output_valid(const nt_program *p, const char *name, int i) {
    if (!p) return NT_ERROR_ARGUMENT;
    if (p->dead || p->owner->dead)
        return nti_fail(p->tape, NT_ERROR_STATE,
                        "%s: use after rewind: the program, or the one whose scratch it shares, is gone; compile it again", name);
    if (i < 0 || i >= p->outputs)
        return nti_fail(p->tape, NT_ERROR_ARGUMENT, "%s: output %d of a program that has %d", name, i, p->outputs);
    if (p->begun) return nti_run_not_begun(p, name);
    if (!p->ran) return nti_fail(p->tape, NT_ERROR_STATE, "%s: the program has not run yet, or its last run failed", name);
    if (p->owner->last != p && p->output[i].bytes)
        return nti_fail(p->tape, NT_ERROR_STATE, "%s: a program that shares the scratch has run since; run this one again first", name);
    return NT_OK;
}

NT_API const void *nt_output(const nt_program *p, int i) {
    return nti_output_valid(p, "nt_output", i) == NT_OK ? nti_resolve(p, &p->output[i].ref) : NULL;
}

NT_API nt_status nt_read(const nt_program *p, int i, void *buffer) {
    nt_status status = nti_output_valid(p, "nt_read", i);
    if (status != NT_OK) return status;
    if (!buffer) return nti_fail(p->tape, NT_ERROR_ARGUMENT, "nt_read: the buffer is NULL");
    if (p->output[i].bytes) memcpy(buffer, nti_resolve(p, &p->output[i].ref), p->output[i].bytes);
    return NT_OK;
}

// Leaves' data.
NT_API nt_status nt_write(nt_tensor *x, const void *data) {
    if (!x) return NT_ERROR_ARGUMENT;
    nti_node *n = nti_n(x);
    if (n->dead) return nti_fail(x->tape, NT_ERROR_STATE, "nt_write: use after rewind: %v is gone", x);
    if (n->op > NTI_OP_VARIABLE)
        return nti_fail(x->tape, NT_ERROR_ARGUMENT, "nt_write: %v is computed; only inputs and variables are written", x);
    if (n->frozen) return nti_fail(x->tape, NT_ERROR_ARGUMENT, "nt_write: %v is frozen", x);
    size_t bytes = nt_bytes(x);
    nt_status status = nti_leaf_free(x, "nt_write", NTI_USED);
    if (status != NT_OK) return status;
    if (bytes && !data) return nti_fail(x->tape, NT_ERROR_ARGUMENT, "nt_write: %v takes %zu bytes, data is NULL", x, bytes);
    if (nti_needs_storage(n) || (n->bound && !n->storage && bytes)) {
        n->storage = nti_high(x->tape, NTI_PLAIN, NTI_FOR_INPUT, bytes);
        if (!n->storage) return nti_out_of_memory(x->tape, "nt_write");
        n->storage_serial = x->tape->serial;
    }
    n->bound = NULL, n->written = 1;
    if (bytes) memcpy(n->storage, data, bytes);
    return NT_OK;
}

NT_API nt_status nt_bind(nt_tensor *input, const void *data) {
    if (!input) return NT_ERROR_ARGUMENT;
    nti_node *n = nti_n(input);
    if (n->dead || n->op != NTI_OP_INPUT)
        return nti_fail(input->tape, NT_ERROR_ARGUMENT, "nt_bind: %v is not an input of this tape any more", input);
    if ((uintptr_t)data % nt_dtype_size(input->dtype))
        return nti_fail(input->tape, NT_ERROR_ARGUMENT, "nt_bind: the address is not aligned for %s", nt_dtype_name(input->dtype));
    nt_status status = nti_leaf_free(input, "nt_bind", NTI_USED);
    if (status != NT_OK) return status;
    n->bound = data;
    if (!data && !n->storage) n->written = 0;
    return NT_OK;
}

static void *nti_data(const nt_tensor *x) { return nti_n(x)->bound ? (void *)(uintptr_t)nti_n(x)->bound : nti_n(x)->storage; }

NT_API void *nt_data(const nt_tensor *x) {
    if (!x || nti_n(x)->dead || nti_n(x)->op > NTI_OP_VARIABLE) return NULL;
    return nti_leaf_free(x, "nt_data", NTI_ASSIGNING) == NT_OK ? nti_data(x) : NULL;
}

static nt_tensor *nti_freeze_one(nt_tensor *x, int in_place, const void *at) {
    if (!at && nt_bytes(x)) { nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_freeze: %v has no data", x); return NULL; }
    if ((uintptr_t)at % nt_dtype_size(x->dtype)) {
        nti_sticky(x->tape, NT_ERROR_ARGUMENT, "nt_freeze: the array for %v is not aligned", x);
        return NULL;
    }
    nt_tensor *y = in_place ? nti_leaf(x->tape, NTI_OP_VARIABLE, "nt_freeze", x->dtype, nt_shape_of(x), 0)
                            : nt_variable(x->tape, x->dtype, nt_shape_of(x), at);
    if (!y) return NULL;
    if (in_place) nti_n(y)->bound = at;
    nti_n(y)->frozen = 1;
    return x->name ? nt_name(y, x->name) : y;
}

NT_API nt_params nt_freeze(nt_tape *t, nt_params params, const void *const *pointers) {
    nt_params none = nti_list(NULL, 0), p = none;
    uint64_t serial = t ? t->serial : 0;
    if (!t || t->sticky || !nti_compile_valid(t, "nt_freeze", params, "parameter") || params.count < 1) return none;
    p.items = (nt_tensor **)nti_high(t, NTI_PLAIN, NTI_FOR_OBJECT, (size_t)params.count * sizeof *p.items), p.count = params.count;
    if (!p.items) { nti_no_room(t, "nt_freeze"); return none; }
    for (int k = 0; k < params.count && !t->sticky; k++)
        p.items[k] = nti_freeze_one(params.items[k], pointers != NULL, pointers ? pointers[k] : nt_data(params.items[k]));
    if (!t->sticky) return p;
    nti_high_rewind(t, serial, 1);
    return none;
}

// What survives a rewind forgets what does not.
static void nti_layer_rewound(void *layer, uint64_t serial);
static void nti_optimizer_rewound(void *optimizer, uint64_t serial);

static void nti_program_dead(nt_program *p) { nti_run_end(p), p->dead = 1; }

static void nti_object_dead(nti_object *o) {
    if (o->kind == NTI_LEAF) ((nti_node *)nti_object_body(o))->dead = 1;
    if (o->kind == NTI_PROGRAM) nti_program_dead((nt_program *)nti_object_body(o));
}

static void nti_object_rewound(nti_object *o, uint64_t serial) {
    if (o->kind == NTI_LAYER) nti_layer_rewound(nti_object_body(o), serial);
    if (o->kind == NTI_OPTIMIZER) nti_optimizer_rewound(nti_object_body(o), serial);
    if (o->kind != NTI_LEAF) return;
    nti_node *n = (nti_node *)nti_object_body(o);
    nti_forget_name(n, serial);
    if (n->storage_serial > serial) n->storage = NULL, n->storage_serial = 0, n->written = 0;
}

NT_API nt_status nt_eval(nt_tensor *x, void *buffer) {
    if (!x) return NT_ERROR_ARGUMENT;
    nt_tape *t = x->tape;
    uint64_t serial = t->serial;
    t->latest = t->sticky ? t->status : NT_ERROR_STATE;
    nt_program *p = nt_compile(x, NULL);
    nt_status status = p ? nt_run(p) : t->latest;
    if (status == NT_OK) status = nt_read(p, 0, buffer);
    nti_high_rewind(t, serial, 1);
    return status;
}
// >>reports
// ---------------------------------------------------------------------------------------------------------------------
// What a program costs, as a struct and as text; values as text; how the implementation was compiled.
// ---------------------------------------------------------------------------------------------------------------------
NT_API nt_report_info nt_report(const nt_program *program) {
    nt_report_info none;
    memset(&none, 0, sizeof none);
    return program ? program->report : none;
}

static void nti_put_report(nti_text *o, const nt_report_info *r) {
    nti_format(o, "scratch     %zu bytes (lower bound %zu)\n", r->peak, r->lower_bound);
    nti_format(o, "persistent  %zu bytes of inputs, variables and constants\n", r->persistent);
    if (r->gradient) nti_format(o, "            %zu of them accumulate gradients\n", r->gradient);
    nti_format(o, "program     %zu bytes, %d instructions, %g flops a run\n", r->program, r->instructions, r->flops);
    nti_format(o, "array       %zu bytes hold this and all earlier calls\n", r->total_least);
    for (int k = 0; k < r->unreached_count; k++) nti_format(o, "unreached   %v has a zero gradient\n", r->unreached[k]);
    nti_format(o, "at the peak (instruction %d):\n", r->peak_instruction);
    for (int k = 0; k < r->value_count; k++) {
        const nt_report_value *v = &r->values[k];
        nti_format(o, "  %zu  %s ", v->bytes, v->operation);
        nti_put_shape(o, v->dtype, v->shape.rank, v->shape.size);
        if (v->name) nti_format(o, " %s", v->name);
        nti_format(o, ", made at %d, needed by %s at %d\n", v->born, v->last_user, v->last_use);
    }
}

NT_API size_t nt_report_text(const nt_program *program, char *buffer, size_t size) {
    nti_text o = { buffer, buffer ? size : 0, 0, 0 };
    if (o.size) buffer[0] = 0;
    if (program) nti_put_report(&o, &program->report);
    return o.length;
}

NT_API int nt_version(void) { return NT_VERSION; }

#define NTI_STRING_(x) #x
#define NTI_STRING(x) NTI_STRING_(x)
#if defined(__clang__)
#define NTI_COMPILER "clang " NTI_STRING(__clang_major__)
#elif defined(__GNUC__)
#define NTI_COMPILER "gcc " NTI_STRING(__GNUC__)
#else
#define NTI_COMPILER "C compiler"
#endif

NT_API const char *nt_config_string(void) {
    return "nttrain " NTI_STRING(NT_VERSION_MAJOR) "." NTI_STRING(NT_VERSION_MINOR) "." NTI_STRING(NT_VERSION_PATCH) ", " NTI_COMPILER
#if defined(__cplusplus)
           ", C++"
#else
           ", C"
#endif
#if NTI_DISPATCH
           ", baseline avx2 avx512"
#elif NTI_BASE_BYTES
           ", baseline"
#else
           ", portable"
#endif
#if defined(NTTRAIN_NO_STDIO)
           ", no stdio"
#endif
#if defined(NTTRAIN_NO_MALLOC)
           ", no malloc"
#endif
#if defined(NTTRAIN_NO_FILES)
           ", no files"
#endif
#if defined(NTTRAIN_DEBUG)
           ", debug"
#endif
        ;
}

#if !defined(NTTRAIN_NO_STDIO)
NT_API void nt_report_print(const nt_program *program, FILE *file) {
    char text[1024]; // a line at a time would need the report's parts: print by windows of the whole text instead
    if (!program || !file) return;
    size_t length = nt_report_text(program, NULL, 0);
    for (size_t at = 0; at < length; at += sizeof text - 1) {
        nti_text o = { text, sizeof text, 0, 0 };
        o.skip = at;
        nti_put_report(&o, &program->report);
        fputs(text, file);
    }
}

// The values of row-major data, in nested brackets; long axes show their ends.
static void nti_print_values(const nt_tensor *x, const char *data) {
    int64_t n = nt_size(x), rank = x->rank;
    for (int64_t k = 0; k < n; k++) {
        int open = 0, close = 0, outer = 0;
        int64_t block = 1, skip = 0;
        for (int a = (int)rank - 1; a >= 0; a--) {
            int64_t at = k / block % x->shape[a];
            if (x->shape[a] > 8 && at == 3 && k % block == 0)
                skip = block * (x->shape[a] - 6), outer = a + 1 < (int)rank; // 0 1 2 ... and the last three
            block *= x->shape[a];
            open += k % block == 0, close += (k + 1) % block == 0;
        }
        if (skip) {
            fputs(outer ? "...\n" : "... ", stdout);
            k += skip - 1;
            continue;
        }
        for (int a = 0; a < open; a++) fputc('[', stdout);
        double value;
        char text[40];
        nti_text o = { text, sizeof text, 0, 0 };
        nti_cast(NT_F64, &value, x->dtype, data + (size_t)k * nt_dtype_size(x->dtype), 1);
        nti_put_number(&o, value, nti_is_float(x->dtype) ? 6 : 15);
        fputs(text, stdout);
        for (int a = 0; a < close; a++) fputc(']', stdout);
        if (k + 1 < n) fputs(close ? "\n" : " ", stdout);
    }
}

NT_API void nt_print(nt_tensor *x) {
    if (!x) { fputs("NULL\n", stdout); return; }
    nt_tape *t = x->tape;
    char head[160];
    nti_text o = { head, sizeof head, 0, 0 };
    nti_put_tensor(&o, x);
    uint64_t serial = t->serial;
    char *data = (char *)nti_high(t, NTI_PLAIN, NTI_FOR_OBJECT, nt_bytes(x) + 1);
    nt_status status = data ? nt_eval(x, data) : nti_out_of_memory(t, "nt_print");
    fputs(head, stdout);
    fputs(" ", stdout);
    if (status == NT_OK) nti_print_values(x, data);
    else fputs(nt_error(t) ? nt_error(t) : nt_status_name(status), stdout);
    fputs("\n", stdout);
    nti_high_rewind(t, serial, 1);
}
#endif
// >>layers
// ---------------------------------------------------------------------------------------------------------------------
// A layer is an object at the high end. A composite is flattened when it is made: a list of steps, leaves and markers, so
// that initialising and applying are loops and not recursion. Branches lie one after the other between markers: FORK keeps
// the input, NEXT puts a result aside and goes back to it, JOIN puts the results together; ENTER and LEAVE are a scope of
// names. The same list will carry the infinite-width rules.
// ---------------------------------------------------------------------------------------------------------------------
#define NTI_LAYER_PARAMS 12
#define NTI_STEPS_MAX 1000000 // a layer that holds itself twice, again and again, ends here and not in the machine's memory

typedef struct nti_application { // what a leaf is given when it records itself
    int train;
    nt_tensor *key;              // NULL: none
    const char *path;
} nti_application;

typedef struct nti_layer_row {
    const char *name;            // flax's, numbered within its scope: Dense_0
    const char *param[NTI_LAYER_PARAMS]; // may be paths, "query/kernel"; NULL from the first that is not there
    int (*shapes)(const nt_layer *l, const nt_tensor *x, nt_shape *shape); // parameters for inputs like x; 0 after an error. NULL: none
    nt_tensor *(*apply)(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a);
} nti_layer_row;

struct nt_layer {
    nt_tape *tape;
    const nti_layer_row *row;    // NULL: a composite
    const char *label;           // numbered within its scope: row->name, or what it calls itself
    const char *name;            // nt_layer_named; NULL: by number
    int slots;                   // parameters of its row
    nt_tensor **param;
    nt_init_desc *init;
    uint8_t *use;                // which parameters there are
    uint64_t initialised;        // serial of its newest parameter; 0: not yet
    uint64_t touched;            // serial of the oldest thing that nt_init made for it: a rewind behind it ends all of them
    nt_dtype dtype;
    int features;
    int64_t count;               // rows of a table
    double number;               // rate, eps, slope
    nt_tensor *(*unary)(nt_tensor *x);
    nt_function hook;
    nt_shape window;
    nt_conv_desc conv;
    nt_pool_desc pool;
    int join, axis;              // how branches come together
    int causal;
    // the list of steps: a leaf has one, itself
    nt_layer **step;
    const char **path;           // of each step, made by nt_init
    nt_tensor **list;            // parameters in order, made by nt_init
    int *at;                     // where each step's parameters begin in it
    int steps, depth, params;    // depth: values that branches put aside at once
    int scoped;                  // the first and the last step are a scope around all others
    uint32_t epoch;              // nt_init: seen in this walk over the steps, at first as step `first`
    int first;
};

enum {
    NTI_ENTER,
    NTI_LEAVE,
    NTI_FORK,
    NTI_NEXT,
    NTI_JOIN,
    NTI_DENSE,
    NTI_CONV,
    NTI_MAX_POOL,
    NTI_AVG_POOL,
    NTI_GLOBAL_AVG_POOL,
    NTI_UPSAMPLE,
    NTI_ACTIVATION,
    NTI_ELU,
    NTI_LEAKY_RELU,
    NTI_FUNCTION,
    NTI_IDENTITY,
    NTI_FLATTEN,
    NTI_LAYER_NORM,
    NTI_DROPOUT,
    NTI_EMBED,
    NTI_ATTENTION,
    NTI_TOKENS,
    NTI_TOKEN,
    NTI_CLASS_TOKEN,
    NTI_POSITION,
    NTI_LAYER_KINDS
};
enum { NTI_JOIN_SUM, NTI_JOIN_PRODUCT, NTI_JOIN_CONCAT };

// Leaves ------------------------------------------------------------------------------------------------------------------

static int nti_dense_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    if (x->rank < 1) { nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_dense_layer: the input %v has no axis", x); return 0; }
    shape[0].rank = 2, shape[0].size[0] = x->shape[x->rank - 1], shape[0].size[1] = l->features;
    shape[1].rank = 1, shape[1].size[0] = l->features;
    return 1;
}

static nt_tensor *nti_dense_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)a;
    return nt_dense(x, p[0], l->use[1] ? p[1] : NULL);
}

static int nti_conv_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    int d = l->window.rank, groups = l->conv.groups > 0 ? l->conv.groups : 1;
    if (x->rank != d + 2) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_conv_layer with a window %S takes (N, spatial axes, C) of rank %d, not %v", &l->window,
                   d + 2, x);
        return 0;
    }
    if (x->shape[d + 1] % groups) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_conv_layer: %lld channels of %v do not divide into %d groups", (long long)x->shape[d + 1],
                   x, groups);
        return 0;
    }
    shape[0] = l->window;
    shape[0].size[d] = x->shape[d + 1] / groups, shape[0].size[d + 1] = l->features, shape[0].rank = d + 2;
    shape[1].rank = 1, shape[1].size[0] = l->features;
    return 1;
}

static nt_tensor *nti_conv_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)a;
    nt_tensor *y = nt_conv(x, p[0], &l->conv);
    return l->use[1] ? nt_add(y, p[1]) : y;
}

static nt_tensor *nti_max_pool_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return nt_max_pool(x, l->window, &l->pool);
}
static nt_tensor *nti_avg_pool_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return nt_avg_pool(x, l->window, &l->pool);
}
static nt_tensor *nti_global_avg_pool_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    nt_axes axes;
    (void)p, (void)a;
    memset(&axes, 0, sizeof axes);
    if (x->rank < 2) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_global_avg_pool_layer takes (N, spatial axes, C), not %v", x);
        return NULL;
    }
    for (int k = 1; k < x->rank - 1; k++) axes.axis[axes.count++] = k;
    return nt_mean_axes(x, axes, 0);
}

static nt_tensor *nti_upsample_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    int d = l->window.rank;
    (void)p, (void)a;
    if (x->rank != d + 2) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_upsample_layer by %S takes (N, spatial axes, C) of rank %d, not %v", &l->window, d + 2, x);
        return NULL;
    }
    nt_shape split = nt_shape_of(x), wide = split, shape = split; // (N, H, 1, W, 1, C), repeated along the axes of size 1
    split.rank = wide.rank = 2 * d + 2;
    for (int k = 0; k < d; k++) {
        split.size[1 + 2 * k] = wide.size[1 + 2 * k] = x->shape[1 + k];
        split.size[2 + 2 * k] = 1, wide.size[2 + 2 * k] = l->window.size[k];
        shape.size[1 + k] = x->shape[1 + k] * l->window.size[k];
    }
    split.size[2 * d + 1] = wide.size[2 * d + 1] = x->shape[d + 1];
    return nt_reshape(nt_broadcast(nt_reshape(x, split), wide), shape);
}

static nt_tensor *nti_activation_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return l->unary(x);
}
static nt_tensor *nti_elu_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return nt_elu(x, l->number);
}
static nt_tensor *nti_leaky_relu_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return nt_leaky_relu(x, l->number);
}
static nt_tensor *nti_function_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    return l->hook.function(l->hook.user, x);
}
static nt_tensor *nti_identity_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)l, (void)p, (void)a;
    return x;
}
static nt_tensor *nti_flatten_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)l, (void)p, (void)a;
    return nt_flatten(x, 1);
}

static int nti_layer_norm_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    if (x->rank < 1) { nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_layer_norm_layer: the input %v has no axis", x); return 0; }
    shape[0].rank = 1, shape[0].size[0] = x->shape[x->rank - 1];
    shape[1] = shape[0];
    return 1;
}

static nt_tensor *nti_layer_norm_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)a;
    return nt_layer_norm(x, l->use[0] ? p[0] : NULL, l->use[1] ? p[1] : NULL, l->number);
}

static nt_tensor *nti_dropout_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    nt_axes none;
    (void)p;
    memset(&none, 0, sizeof none);
    if (!a->train || l->number == 0) return x;
    nt_tensor *number = nt_scalar(l->tape, NT_U32, (double)nti_flax_number(a->path, strlen(a->path), 1));
    return nt_dropout(x, nt_fold_in(a->key, number), l->number, none);
}

static int nti_embed_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    (void)x;
    shape[0].rank = 2, shape[0].size[0] = l->count, shape[0].size[1] = l->features;
    return 1;
}

static nt_tensor *nti_embed_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)l, (void)a;
    return nt_gather(p[0], x, 0);
}

static int nti_is_sequence(const nt_layer *l, const char *name, const nt_tensor *x) { // 0 after an error
    if (x->rank == 3) return 1;
    nti_sticky(l->tape, NT_ERROR_SHAPE, "%s takes (batch, time, features), not %v", name, x);
    return 0;
}

// Parameters: kernel and bias of query, key and value, then of out.
static int nti_attention_layer_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    if (!nti_is_sequence(l, "nt_attention_layer", x)) return 0;
    int64_t dim = x->shape[2], heads = l->count, features = l->features ? l->features : dim;
    if (features % heads) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_attention_layer: %lld features do not divide into %lld heads", (long long)features,
                   (long long)heads);
        return 0;
    }
    for (int k = 0; k < 3; k++) {
        nt_shape *kernel = &shape[2 * k], *bias = &shape[2 * k + 1];
        kernel->rank = 3, kernel->size[0] = dim, kernel->size[1] = heads, kernel->size[2] = features / heads;
        bias->rank = 2, bias->size[0] = heads, bias->size[1] = features / heads;
    }
    shape[6].rank = 3, shape[6].size[0] = heads, shape[6].size[1] = features / heads;
    shape[6].size[2] = shape[7].size[0] = l->axis ? l->axis : dim, shape[7].rank = 1;
    return 1;
}

// x times a kernel whose axes from `split` on are those of the result, all others summed over.
static nt_tensor *nti_dense_general(nt_tensor *x, nt_tensor *kernel, nt_tensor *bias, int split) {
    nt_shape flat = nt_shape_make(2, kernel->shape);
    flat.size[0] = nti_count(split, kernel->shape), flat.size[1] = nti_count(kernel->rank - split, kernel->shape + split);
    nt_tensor *b = bias ? nt_reshape(bias, nt_shape_make(1, flat.size + 1)) : NULL;
    return bias && !b ? NULL : nt_dense(x, nt_reshape(kernel, flat), b);
}

static nt_tensor *nti_attention_layer_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    nt_attention_desc d;
    nt_tensor *head[3];
    (void)a;
    if (!nti_is_sequence(l, "nt_attention_layer", x)) return NULL;
    memset(&d, 0, sizeof d);
    d.causal = l->causal;
    nt_shape split = nt_shape_of(x);
    split.rank = 4, split.size[2] = p[0]->shape[1], split.size[3] = p[0]->shape[2];
    for (int k = 0; k < 3; k++) {
        head[k] = nti_dense_general(x, p[2 * k], l->use[1] ? p[2 * k + 1] : NULL, 1);
        head[k] = head[k] ? nt_reshape(head[k], split) : NULL;
    }
    nt_tensor *y = nt_attention(head[0], head[1], head[2], NULL, &d);
    return y ? nti_dense_general(nt_flatten(y, 2), p[6], l->use[1] ? p[7] : NULL, 2) : NULL;
}

static nt_tensor *nti_tokens_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    if (x->rank < 3) {
        nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_tokens_layer takes (N, spatial axes, C), not %v", x);
        return NULL;
    }
    nt_shape flat = nt_shape_make(3, x->shape);
    flat.size[1] = nti_count(x->rank - 2, x->shape + 1), flat.size[2] = x->shape[x->rank - 1];
    return nt_reshape(x, flat);
}

static nt_tensor *nti_token_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)p, (void)a;
    int64_t at = l->count < 0 && x->rank > 1 ? l->count + x->shape[1] : l->count;
    if (!nti_is_sequence(l, "nt_token_layer", x)) return NULL;
    if (at < 0 || at >= x->shape[1]) {
        nti_sticky(l->tape, NT_ERROR_ARGUMENT, "nt_token_layer: there is no token %lld in %v", (long long)l->count, x);
        return NULL;
    }
    nt_tensor *y = nt_slice_axis(x, 1, at, at + 1);
    return y ? nt_squeeze(y, 1) : NULL;
}

static int nti_class_token_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    if (!nti_is_sequence(l, "nt_class_token_layer", x)) return 0;
    shape[0].rank = 3, shape[0].size[0] = shape[0].size[1] = 1, shape[0].size[2] = x->shape[2];
    return 1;
}

static nt_tensor *nti_class_token_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    nt_tensor *part[2];
    (void)a;
    if (!nti_is_sequence(l, "nt_class_token_layer", x)) return NULL;
    nt_shape each = nt_shape_of(p[0]);
    each.size[0] = x->shape[0];
    part[0] = nt_broadcast(p[0], each), part[1] = x;
    return nt_concat(nti_list(part, 2), 1);
}

static int nti_position_shapes(const nt_layer *l, const nt_tensor *x, nt_shape *shape) {
    if (!nti_is_sequence(l, "nt_position_layer", x)) return 0;
    shape[0] = nt_shape_of(x), shape[0].size[0] = 1;
    return 1;
}

static nt_tensor *nti_position_apply(const nt_layer *l, nt_tensor *x, nt_tensor *const *p, const nti_application *a) {
    (void)l, (void)a;
    return nt_add(x, p[0]);
}

#define NTI_NO_PARAMS { NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
#define NTI_PARAMS2(a, b) { a, b, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL }
static const nti_layer_row nti_layer_rows[NTI_LAYER_KINDS] = {
    { "", NTI_NO_PARAMS, NULL, NULL },
    { "", NTI_NO_PARAMS, NULL, NULL },
    { "", NTI_NO_PARAMS, NULL, NULL },
    { "", NTI_NO_PARAMS, NULL, NULL },
    { "", NTI_NO_PARAMS, NULL, NULL },
    { "Dense", NTI_PARAMS2("kernel", "bias"), nti_dense_shapes, nti_dense_apply },
    { "Conv", NTI_PARAMS2("kernel", "bias"), nti_conv_shapes, nti_conv_apply },
    { "MaxPool", NTI_NO_PARAMS, NULL, nti_max_pool_apply },
    { "AvgPool", NTI_NO_PARAMS, NULL, nti_avg_pool_apply },
    { "GlobalAvgPool", NTI_NO_PARAMS, NULL, nti_global_avg_pool_apply },
    { "Upsample", NTI_NO_PARAMS, NULL, nti_upsample_apply },
    { "Activation", NTI_NO_PARAMS, NULL, nti_activation_apply },
    { "Elu", NTI_NO_PARAMS, NULL, nti_elu_apply },
    { "LeakyRelu", NTI_NO_PARAMS, NULL, nti_leaky_relu_apply },
    { "Function", NTI_NO_PARAMS, NULL, nti_function_apply },
    { "Identity", NTI_NO_PARAMS, NULL, nti_identity_apply },
    { "Flatten", NTI_NO_PARAMS, NULL, nti_flatten_apply },
    { "LayerNorm", NTI_PARAMS2("scale", "bias"), nti_layer_norm_shapes, nti_layer_norm_apply },
    { "Dropout", NTI_NO_PARAMS, NULL, nti_dropout_apply },
    { "Embed", NTI_PARAMS2("embedding", NULL), nti_embed_shapes, nti_embed_apply },
    { "MultiHeadDotProductAttention",
      { "query/kernel", "query/bias", "key/kernel", "key/bias", "value/kernel", "value/bias", "out/kernel", "out/bias", NULL, NULL, NULL, NULL },
      nti_attention_layer_shapes, nti_attention_layer_apply },
    { "Tokens", NTI_NO_PARAMS, NULL, nti_tokens_apply },
    { "Token", NTI_NO_PARAMS, NULL, nti_token_apply },
    { "ClassToken", NTI_PARAMS2("", NULL), nti_class_token_shapes, nti_class_token_apply },
    { "AddPositionEmbs", NTI_PARAMS2("pos_embedding", NULL), nti_position_shapes, nti_position_apply },
};

// Making ------------------------------------------------------------------------------------------------------------------

// A layer with room for its steps and, a leaf, for its parameters; kind -1: a composite.
static nt_layer *nti_layer_new(nt_tape *t, const char *name, int kind, int steps) {
    if (!t || t->sticky) return NULL;
    if (steps > NTI_STEPS_MAX) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "%s: more than %d layers in one", name, NTI_STEPS_MAX);
        return NULL;
    }
    int slots = 0;
    while (kind >= 0 && slots < NTI_LAYER_PARAMS && nti_layer_rows[kind].param[slots]) slots++;
    size_t at_init = nti_round_up(sizeof(nt_layer), 16), at_param = at_init + (size_t)slots * sizeof(nt_init_desc);
    size_t at_step = at_param + (size_t)slots * sizeof(void *), at_int = at_step + (size_t)steps * 2 * sizeof(void *);
    size_t at_use = at_int + (size_t)steps * sizeof(int);
    char *p = (char *)nti_high(t, NTI_LAYER, NTI_FOR_OBJECT, at_use + (size_t)slots);
    if (!p) {
        nti_no_room(t, name);
        return NULL;
    }
    nt_layer *l = (nt_layer *)(void *)p;
    l->tape = t, l->row = kind < 0 ? NULL : &nti_layer_rows[kind], l->steps = steps, l->slots = slots;
    l->label = l->row ? l->row->name : "";
    l->init = (nt_init_desc *)(void *)(p + at_init), l->param = (nt_tensor **)(void *)(p + at_param), l->use = (uint8_t *)(p + at_use);
    l->step = (nt_layer **)(void *)(p + at_step), l->path = (const char **)(void *)(l->step + steps), l->at = (int *)(void *)(p + at_int);
    if (kind >= 0) l->step[0] = l;
    return l;
}

static nt_layer *nti_leaf_layer(nt_tape *t, const char *name, int kind) { return nti_layer_new(t, name, kind, 1); }

static nt_layer *nti_layer_wrong(nt_tape *t, const char *message) {
    nti_sticky(t, NT_ERROR_ARGUMENT, "%s", message);
    return NULL;
}

static nt_init_desc nti_init_default(nt_init_desc d, nt_initializer kind) {
    if (d.kind == NT_INIT_DEFAULT) d.kind = kind;
    return d;
}

NT_API nt_layer *nt_dense_layer(nt_tape *t, int features, const nt_dense_desc *desc) {
    nt_dense_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (t && features < 1) return nti_layer_wrong(t, "nt_dense_layer: features must be 1 or more");
    if (t && !nti_is_float(d.dtype)) return nti_layer_wrong(t, "nt_dense_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, "nt_dense_layer", NTI_DENSE);
    if (!l) return NULL;
    l->features = features, l->dtype = d.dtype, l->use[0] = 1, l->use[1] = d.bias == NT_BIAS_ON;
    l->init[0] = nti_init_default(d.kernel_init, NT_LECUN_NORMAL), l->init[1] = nti_init_default(d.bias_init, NT_INIT_ZEROS);
    return l;
}

NT_API nt_layer *nt_conv_layer(nt_tape *t, int features, nt_shape window, const nt_conv_layer_desc *desc) {
    nt_conv_layer_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (t && (features < 1 || window.rank < 1 || window.rank > 3))
        return nti_layer_wrong(t, "nt_conv_layer: features must be 1 or more, the window has 1 to 3 axes: NT_WINDOW(3, 3)");
    for (int k = 0; t && k < window.rank; k++)
        if (window.size[k] < 1) return nti_layer_wrong(t, "nt_conv_layer: window sizes must be 1 or more");
    if (t && !nti_is_float(d.dtype)) return nti_layer_wrong(t, "nt_conv_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, "nt_conv_layer", NTI_CONV);
    if (!l) return NULL;
    l->features = features, l->window = window, l->conv = d.conv, l->dtype = d.dtype, l->use[0] = 1, l->use[1] = d.bias == NT_BIAS_ON;
    l->init[0] = nti_init_default(d.kernel_init, NT_LECUN_NORMAL), l->init[1] = nti_init_default(d.bias_init, NT_INIT_ZEROS);
    return l;
}

static nt_layer *nti_pool_layer(nt_tape *t, const char *name, int kind, nt_shape window, const nt_pool_desc *desc) {
    nt_layer *l = nti_leaf_layer(t, name, kind);
    if (!l) return NULL;
    l->window = window;
    if (desc) l->pool = *desc;
    return l;
}

NT_API nt_layer *nt_max_pool_layer(nt_tape *t, nt_shape window) {
    return nti_pool_layer(t, "nt_max_pool_layer", NTI_MAX_POOL, window, NULL);
}
NT_API nt_layer *nt_avg_pool_layer(nt_tape *t, nt_shape window) {
    return nti_pool_layer(t, "nt_avg_pool_layer", NTI_AVG_POOL, window, NULL);
}
NT_API nt_layer *nt_max_pool_layer_with(nt_tape *t, nt_shape window, const nt_pool_desc *desc) {
    return nti_pool_layer(t, "nt_max_pool_layer", NTI_MAX_POOL, window, desc);
}
NT_API nt_layer *nt_avg_pool_layer_with(nt_tape *t, nt_shape window, const nt_pool_desc *desc) {
    return nti_pool_layer(t, "nt_avg_pool_layer", NTI_AVG_POOL, window, desc);
}
NT_API nt_layer *nt_global_avg_pool_layer(nt_tape *t) { return nti_leaf_layer(t, "nt_global_avg_pool_layer", NTI_GLOBAL_AVG_POOL); }

NT_API nt_layer *nt_upsample_layer(nt_tape *t, nt_shape factor) {
    int wrong = factor.rank < 1 || factor.rank > 3;
    for (int k = 0; k < factor.rank && !wrong; k++) wrong = factor.size[k] < 1;
    if (t && wrong) return nti_layer_wrong(t, "nt_upsample_layer: a factor of 1 or more for each of 1 to 3 axes: NT_WINDOW(2, 2)");
    return nti_pool_layer(t, "nt_upsample_layer", NTI_UPSAMPLE, factor, NULL);
}

// Activations by the function that records them; those that are known here have a name in reports.
typedef struct nti_activation { nt_tensor *(*function)(nt_tensor *x); const char *name; } nti_activation;
static const nti_activation nti_activations[] = {
    { nt_relu, "Relu" },          { nt_tanh, "Tanh" },          { nt_sigmoid, "Sigmoid" },    { nt_softplus, "Softplus" },
    { nt_silu, "Silu" },          { nt_gelu, "Gelu" },          { nt_gelu_tanh, "GeluTanh" }, { nt_selu, "Selu" },
    { nt_relu6, "Relu6" },        { nt_mish, "Mish" },          { nt_soft_sign, "SoftSign" }, { nt_hard_tanh, "HardTanh" },
    { nt_hard_sigmoid, "HardSigmoid" }, { nt_hard_silu, "HardSilu" }, { nt_log_sigmoid, "LogSigmoid" }, { nt_erf, "Erf" },
    { nt_sin, "Sin" },            { nt_cos, "Cos" },            { nt_exp, "Exp" },            { nt_abs, "Abs" },
};

NT_API nt_layer *nt_activation_layer(nt_tape *t, nt_tensor *(*function)(nt_tensor *x)) {
    if (t && !function) return nti_layer_wrong(t, "nt_activation_layer: no function");
    nt_layer *l = nti_leaf_layer(t, "nt_activation_layer", NTI_ACTIVATION);
    if (!l) return NULL;
    l->unary = function;
    for (size_t k = 0; k < sizeof nti_activations / sizeof nti_activations[0]; k++)
        if (nti_activations[k].function == function) l->label = nti_activations[k].name;
    return l;
}

NT_API nt_layer *nt_relu_layer(nt_tape *t) { return nt_activation_layer(t, nt_relu); }
NT_API nt_layer *nt_tanh_layer(nt_tape *t) { return nt_activation_layer(t, nt_tanh); }
NT_API nt_layer *nt_sigmoid_layer(nt_tape *t) { return nt_activation_layer(t, nt_sigmoid); }
NT_API nt_layer *nt_softplus_layer(nt_tape *t) { return nt_activation_layer(t, nt_softplus); }
NT_API nt_layer *nt_silu_layer(nt_tape *t) { return nt_activation_layer(t, nt_silu); }
NT_API nt_layer *nt_gelu_layer(nt_tape *t) { return nt_activation_layer(t, nt_gelu); }
NT_API nt_layer *nt_gelu_tanh_layer(nt_tape *t) { return nt_activation_layer(t, nt_gelu_tanh); }

NT_API nt_layer *nt_elu_layer(nt_tape *t, double alpha) {
    nt_layer *l = nti_leaf_layer(t, "nt_elu_layer", NTI_ELU);
    if (l) l->number = alpha;
    return l;
}

NT_API nt_layer *nt_leaky_relu_layer(nt_tape *t, double slope) {
    nt_layer *l = nti_leaf_layer(t, "nt_leaky_relu_layer", NTI_LEAKY_RELU);
    if (l) l->number = slope;
    return l;
}

NT_API nt_layer *nt_function_layer(nt_tape *t, nt_function f) {
    if (t && !f.function) return nti_layer_wrong(t, "nt_function_layer: no function");
    nt_layer *l = nti_leaf_layer(t, "nt_function_layer", NTI_FUNCTION);
    if (l) l->hook = f;
    return l;
}

NT_API nt_layer *nt_identity_layer(nt_tape *t) { return nti_leaf_layer(t, "nt_identity_layer", NTI_IDENTITY); }

NT_API nt_layer *nt_embed_layer(nt_tape *t, int64_t count, int features, const nt_embed_desc *desc) {
    nt_embed_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (t && (count < 1 || features < 1)) return nti_layer_wrong(t, "nt_embed_layer: count and features must be 1 or more");
    if (t && !nti_is_float(d.dtype)) return nti_layer_wrong(t, "nt_embed_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, "nt_embed_layer", NTI_EMBED);
    if (!l) return NULL;
    l->count = count, l->features = features, l->dtype = d.dtype, l->use[0] = 1, l->init[0] = d.embedding_init;
    if (d.embedding_init.kind != NT_INIT_DEFAULT) return l;
    l->init[0].kind = NT_VARIANCE_SCALING, l->init[0].mode = NT_FAN_IN, l->init[0].distribution = NT_DIST_NORMAL;
    l->init[0].in_axes.count = l->init[0].out_axes.count = 1, l->init[0].in_axes.axis[0] = 1; // flax: out_axis 0
    return l;
}

NT_API nt_layer *nt_flatten_layer(nt_tape *t) { return nti_leaf_layer(t, "nt_flatten_layer", NTI_FLATTEN); }

NT_API nt_layer *nt_layer_norm_layer(nt_tape *t, const nt_layer_norm_desc *desc) {
    nt_layer_norm_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (t && !nti_is_float(d.dtype)) return nti_layer_wrong(t, "nt_layer_norm_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, "nt_layer_norm_layer", NTI_LAYER_NORM);
    if (!l) return NULL;
    l->number = d.eps == 0 ? 1e-6 : d.eps == NT_ZERO ? 0 : d.eps, l->dtype = d.dtype, l->use[0] = !d.no_scale, l->use[1] = !d.no_bias;
    l->init[0].kind = NT_INIT_ONES, l->init[1].kind = NT_INIT_ZEROS;
    return l;
}

NT_API nt_layer *nt_dropout_layer(nt_tape *t, double rate) {
    if (t && !(rate >= 0 && rate <= 1)) return nti_layer_wrong(t, "nt_dropout_layer: the rate is a probability, between 0 and 1");
    nt_layer *l = nti_leaf_layer(t, "nt_dropout_layer", NTI_DROPOUT);
    if (l) l->number = rate;
    return l;
}

static void nti_init_axes(nt_init_desc *d, int in, int out, int split) { // a kernel of `in + out` axes, unless the caller said which
    if (d->in_axes.count || d->out_axes.count) return;
    d->in_axes.count = in, d->out_axes.count = out;
    for (int k = 0; k < in; k++) d->in_axes.axis[k] = k;
    for (int k = 0; k < out; k++) d->out_axes.axis[k] = split + k;
}

NT_API nt_layer *nt_attention_layer(nt_tape *t, int heads, const nt_attention_layer_desc *desc) {
    nt_attention_layer_desc d;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    if (t && (heads < 1 || d.features < 0 || d.out_features < 0)) return nti_layer_wrong(t, "nt_attention_layer: heads must be 1 or more, features not negative");
    if (t && !nti_is_float(d.dtype)) return nti_layer_wrong(t, "nt_attention_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, "nt_attention_layer", NTI_ATTENTION);
    if (!l) return NULL;
    l->count = heads, l->features = d.features, l->axis = d.out_features, l->causal = d.causal, l->dtype = d.dtype;
    for (int k = 0; k < 4; k++) {
        l->use[2 * k] = 1, l->use[2 * k + 1] = d.bias == NT_BIAS_ON;
        l->init[2 * k] = nti_init_default(d.kernel_init, NT_LECUN_NORMAL), l->init[2 * k + 1] = nti_init_default(d.bias_init, NT_INIT_ZEROS);
        if (k < 3) nti_init_axes(&l->init[2 * k], 1, 2, 1);
        else nti_init_axes(&l->init[2 * k], 2, 1, 2);
    }
    return l;
}

NT_API nt_layer *nt_tokens_layer(nt_tape *t) { return nti_leaf_layer(t, "nt_tokens_layer", NTI_TOKENS); }

NT_API nt_layer *nt_token_layer(nt_tape *t, int64_t index) {
    nt_layer *l = nti_leaf_layer(t, "nt_token_layer", NTI_TOKEN);
    if (l) l->count = index;
    return l;
}

static nt_layer *nti_token_parameter(nt_tape *t, const char *name, int kind, nt_dtype dtype, nt_initializer init, double scale) {
    if (t && !nti_is_float(dtype)) return nti_layer_wrong(t, "nt_class_token_layer, nt_position_layer: parameters are f32 or f64");
    nt_layer *l = nti_leaf_layer(t, name, kind);
    if (l) l->dtype = dtype, l->use[0] = 1, l->init[0].kind = init, l->init[0].scale = scale;
    return l;
}

NT_API nt_layer *nt_position_layer(nt_tape *t, nt_dtype dtype) {
    return nti_token_parameter(t, "nt_position_layer", NTI_POSITION, dtype, NT_INIT_NORMAL, 0.02);
}

// Checks a list of layers and counts their steps; -1 after an error.
static int nti_layer_list(nt_tape *t, const char *name, int count, nt_layer *const *layers) {
    int steps = 0;
    if (!t || t->sticky) return -1;
    if (count < 0 || (count && !layers)) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: no layers", name); return -1; }
    for (int k = 0; k < count; k++) {
        if (!layers[k]) {
            nti_sticky(t, NT_ERROR_ARGUMENT, "%s: layer %d of %d is NULL; lists are counted, leave it out or use another layer there", name, k,
                       count);
            return -1;
        }
        if (layers[k]->tape != t) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: layer %d belongs to another tape", name, k); return -1; }
        steps += layers[k]->steps <= NTI_STEPS_MAX - steps ? layers[k]->steps : NTI_STEPS_MAX + 1 - steps;
    }
    return steps;
}

static int nti_put_steps(nt_layer *l, int at, const nt_layer *inner) { // appends; returns the place behind
    for (int j = 0; j < inner->steps; j++) l->step[at++] = inner->step[j];
    return at;
}

NT_API nt_layer *nt_serial_layer(nt_tape *t, int count, nt_layer *const *layers) {
    int steps = nti_layer_list(t, "nt_serial_layer", count, layers);
    nt_layer *l = steps < 0 ? NULL : nti_layer_new(t, "nt_serial_layer", -1, steps);
    if (!l) return NULL;
    for (int k = 0, at = 0; k < count; k++) {
        if (layers[k]->depth > l->depth) l->depth = layers[k]->depth;
        at = nti_put_steps(l, at, layers[k]);
    }
    return l;
}

// FORK, first branch, NEXT, second branch, ... JOIN
static nt_layer *nti_branches(nt_tape *t, const char *name, int join, int axis, int count, nt_layer *const *layers) {
    int steps = nti_layer_list(t, name, count, layers);
    if (steps < 0) return NULL;
    if (!count) { nti_sticky(t, NT_ERROR_ARGUMENT, "%s: no layers", name); return NULL; }
    nt_layer *fork = nti_leaf_layer(t, name, NTI_FORK), *next = nti_leaf_layer(t, name, NTI_NEXT), *end = nti_leaf_layer(t, name, NTI_JOIN);
    nt_layer *l = fork && next && end ? nti_layer_new(t, name, -1, steps + count + 1) : NULL;
    if (!l) return NULL;
    end->join = join, end->axis = axis, end->count = count;
    int at = 0;
    for (int k = 0; k < count; k++) {
        if (layers[k]->depth > l->depth) l->depth = layers[k]->depth;
        l->step[at++] = k ? next : fork;
        at = nti_put_steps(l, at, layers[k]);
    }
    l->step[at] = end, l->depth += count;
    return l;
}

NT_API nt_layer *nt_sum_layer(nt_tape *t, int count, nt_layer *const *layers) {
    return nti_branches(t, "nt_sum_layer", NTI_JOIN_SUM, 0, count, layers);
}
NT_API nt_layer *nt_product_layer(nt_tape *t, int count, nt_layer *const *layers) {
    return nti_branches(t, "nt_product_layer", NTI_JOIN_PRODUCT, 0, count, layers);
}
NT_API nt_layer *nt_concat_layer(nt_tape *t, int axis, int count, nt_layer *const *layers) {
    return nti_branches(t, "nt_concat_layer", NTI_JOIN_CONCAT, axis, count, layers);
}

// A scope of names around a layer: numbered by its label, or named.
static nt_layer *nti_scope_layer(nt_layer *inner, const char *name, const char *label) {
    nt_tape *t = inner->tape;
    nt_layer *enter = nti_leaf_layer(t, name, NTI_ENTER), *leave = nti_leaf_layer(t, name, NTI_LEAVE);
    nt_layer *l = enter && leave ? nti_layer_new(t, name, -1, inner->steps + 2) : NULL;
    if (!l) return NULL;
    enter->label = label, l->depth = inner->depth, l->scoped = 1;
    l->step[0] = enter, l->step[nti_put_steps(l, 1, inner)] = leave;
    return l;
}

NT_API nt_layer *nt_residual_layer(nt_tape *t, nt_layer *inner) {
    if (!t || t->sticky) return NULL;
    if (!inner || inner->tape != t) return nti_layer_wrong(t, "nt_residual_layer: the inner layer is NULL or belongs to another tape");
    nt_layer *branch[2];
    branch[0] = nt_serial_layer(t, 0, NULL), branch[1] = inner;
    nt_layer *sum = branch[0] ? nti_branches(t, "nt_residual_layer", NTI_JOIN_SUM, 0, 2, branch) : NULL;
    return sum ? nti_scope_layer(sum, "nt_residual_layer", "Residual") : NULL;
}

NT_API nt_layer *nt_layer_named(nt_layer *l, const char *name) {
    static const char call[] = "nt_layer_named";
    if (!l || l->tape->sticky) return NULL;
    nt_tape *t = l->tape;
    size_t n = name ? strlen(name) : 0;
    if (!n || name[0] == '/' || name[n - 1] == '/') {
        return nti_layer_wrong(t, "nt_layer_named: a name has one character at least, and '/' only inside");
    }
    if (l->row && l->initialised) return nti_layer_wrong(t, "nt_layer_named: its parameters have names already; name a layer before nt_init");
    char *copy = (char *)nti_high(t, NTI_PLAIN, NTI_FOR_OBJECT, n + 1);
    if (!copy) { nti_no_room(t, call); return NULL; }
    memcpy(copy, name, n + 1);
    if (!l->row && !l->scoped) l = nti_scope_layer(l, call, "");
    if (l) l->step[0]->name = copy;
    return l;
}

NT_API nt_layer *nt_class_token_layer(nt_tape *t, nt_dtype dtype) {
    return nt_layer_named(nti_token_parameter(t, "nt_class_token_layer", NTI_CLASS_TOKEN, dtype, NT_INIT_ZEROS, 0), "cls");
}

// The vision transformer -----------------------------------------------------------------------------------------------------

static nt_layer *nti_skip_layer(nt_tape *t, nt_layer *a, nt_layer *b, nt_layer *c) { // x + c(b(a(x))) without a scope; c may be missing
    nt_layer *list[3], *branch[2];
    list[0] = a, list[1] = b, list[2] = c;
    branch[0] = nt_serial_layer(t, 0, NULL), branch[1] = nt_serial_layer(t, c ? 3 : 2, list);
    return branch[0] && branch[1] ? nti_branches(t, "nt_encoder_layer", NTI_JOIN_SUM, 0, 2, branch) : NULL;
}

static nt_layer *nti_mlp_block(nt_tape *t, int hidden, int dim, double dropout, nt_dtype dtype) {
    nt_layer *list[5];
    nt_dense_desc d;
    int count = 0;
    memset(&d, 0, sizeof d);
    d.kernel_init.kind = NT_GLOROT_UNIFORM, d.bias_init.kind = NT_INIT_NORMAL, d.bias_init.scale = 1e-6, d.dtype = dtype;
    list[count++] = nt_dense_layer(t, hidden, &d), list[count++] = nt_gelu_tanh_layer(t);
    if (dropout != 0) list[count++] = nt_dropout_layer(t, dropout);
    list[count++] = nt_dense_layer(t, dim, &d);
    if (dropout != 0) list[count++] = nt_dropout_layer(t, dropout);
    return nt_layer_named(nt_serial_layer(t, count, list), "MlpBlock_3");
}

NT_API nt_layer *nt_encoder_layer(nt_tape *t, const nt_encoder_desc *desc) {
    nt_encoder_desc d;
    nt_attention_layer_desc attention;
    nt_layer_norm_desc norm;
    nt_layer *list[2];
    memset(&d, 0, sizeof d), memset(&attention, 0, sizeof attention), memset(&norm, 0, sizeof norm);
    if (desc) d = *desc;
    if (!t || t->sticky) return NULL;
    if (d.dim < 1 || d.heads < 1 || d.mlp < 0 || d.dim % d.heads)
        return nti_layer_wrong(t, "nt_encoder_layer: .dim and .heads are 1 or more, and .dim divides into .heads");
    attention.kernel_init.kind = NT_GLOROT_UNIFORM, attention.causal = d.causal, attention.dtype = norm.dtype = d.dtype;
    nt_layer *drop = d.dropout != 0 ? nt_dropout_layer(t, d.dropout) : NULL;
    list[0] = nti_skip_layer(t, nt_layer_named(nt_layer_norm_layer(t, &norm), "LayerNorm_0"),
                             nt_layer_named(nt_attention_layer(t, d.heads, &attention), "MultiHeadDotProductAttention_1"), drop);
    list[1] = nti_skip_layer(t, nt_layer_named(nt_layer_norm_layer(t, &norm), "LayerNorm_2"),
                             nti_mlp_block(t, d.mlp ? d.mlp : 4 * d.dim, d.dim, d.dropout, d.dtype), NULL);
    return t->sticky ? NULL : nt_serial_layer(t, 2, list);
}

// All between the tokens and the head: position embedding, blocks, the last norm.
static nt_layer *nti_vit_transformer(nt_tape *t, const nt_vit_desc *d) {
    nt_encoder_desc e;
    nt_layer_norm_desc norm;
    memset(&e, 0, sizeof e), memset(&norm, 0, sizeof norm);
    e.dim = d->dim, e.heads = d->heads, e.mlp = d->mlp, e.dropout = d->dropout, e.dtype = norm.dtype = d->dtype;
    size_t low = t->low.used;
    nt_layer **list = (nt_layer **)nti_low(t, (size_t)(d->depth + 3) * sizeof *list);
    int count = 0;
    if (!list) { nti_no_room(t, "nt_vit_layer"); return NULL; }
    list[count++] = nt_layer_named(nt_position_layer(t, d->dtype), "posembed_input");
    if (d->dropout != 0) list[count++] = nt_dropout_layer(t, d->dropout);
    for (int k = 0; k < d->depth && !t->sticky; k++) {
        char name[32];
        nti_text o = { name, sizeof name, 0, 0 };
        nti_format(&o, "encoderblock_%d", k);
        list[count++] = nt_layer_named(nt_encoder_layer(t, &e), name);
    }
    list[count++] = nt_layer_named(nt_layer_norm_layer(t, &norm), "encoder_norm");
    nt_layer *l = t->sticky ? NULL : nt_layer_named(nt_serial_layer(t, count, list), "Transformer");
    nti_low_rewind(t, low);
    return l;
}

NT_API nt_layer *nt_vit_layer(nt_tape *t, const nt_vit_desc *desc) {
    nt_vit_desc d;
    nt_conv_layer_desc patches;
    nt_dense_desc head;
    nt_layer *list[6];
    int count = 0;
    memset(&d, 0, sizeof d), memset(&patches, 0, sizeof patches), memset(&head, 0, sizeof head);
    if (desc) d = *desc;
    if (!t || t->sticky) return NULL;
    d.patch = d.patch ? d.patch : 16, d.dim = d.dim ? d.dim : 192, d.depth = d.depth ? d.depth : 12, d.heads = d.heads ? d.heads : 3;
    d.mlp = d.mlp ? d.mlp : 4 * d.dim;
    if (d.patch < 1 || d.dim < 1 || d.depth < 1 || d.mlp < 1 || d.outputs < 1 || d.heads < 1 || d.dim % d.heads)
        return nti_layer_wrong(t, "nt_vit_layer: .outputs and the other sizes are 1 or more, and .dim divides into .heads");
    int64_t side[2];
    side[0] = side[1] = d.patch;
    patches.conv.stride[0] = patches.conv.stride[1] = d.patch, patches.conv.padding = NT_VALID, patches.dtype = head.dtype = d.dtype;
    head.kernel_init = nti_init_default(d.head_init, NT_INIT_ZEROS);
    list[count++] = nt_layer_named(nt_conv_layer(t, d.dim, nt_shape_make(2, side), &patches), "embedding");
    list[count++] = nt_tokens_layer(t);
    if (!d.mean_pool) list[count++] = nt_class_token_layer(t, d.dtype);
    list[count++] = nti_vit_transformer(t, &d);
    list[count++] = d.mean_pool ? nt_global_avg_pool_layer(t) : nt_token_layer(t, 0);
    list[count++] = nt_layer_named(nt_dense_layer(t, d.outputs, &head), "head");
    return t->sticky ? NULL : nt_serial_layer(t, count, list);
}

// Initialising and applying --------------------------------------------------------------------------------------------------

static int nti_is_layer(const nt_layer *l, int kind) { return l->row == &nti_layer_rows[kind]; }

// "outer/Dense_1", or "outer/name".
static const char *nti_make_path(nt_tape *t, const char *outer, const nt_layer *l, int number) {
    char text[64];
    nti_text o = { text, sizeof text, 0, 0 };
    if (!l->name) nti_format(&o, "%s_%d", l->label, number);
    const char *last = l->name ? l->name : text;
    size_t n = strlen(outer), m = strlen(last);
    char *path = (char *)nti_high(t, NTI_PLAIN, NTI_FOR_OBJECT, n + m + 2);
    if (!path) return NULL;
    memcpy(path, outer, n);
    if (n) path[n++] = '/';
    memcpy(path + n, last, m + 1);
    return path;
}

// How many other layers in the scope, which step `scope` opened, come before step k under its label.
static int nti_layer_number(const nt_layer *net, int scope, int k) {
    int number = 0, open = 0;
    const nt_layer *l = net->step[k];
    for (int j = scope + 1; j < k; j++) {
        const nt_layer *s = net->step[j];
        if (!open && !s->name && s->label == l->label && s->first == j) number++;
        open += nti_is_layer(s, NTI_ENTER) - nti_is_layer(s, NTI_LEAVE);
    }
    return number;
}

static int nti_name_is_free(const nt_layer *net, int k) { // 0 after an error
    for (int j = 0; j < k; j++) {
        const nt_layer *s = net->step[j];
        if ((!s->name && !net->step[k]->name) || !net->path[j] || s == net->step[k] || strcmp(net->path[j], net->path[k]) != 0) continue;
        nti_sticky(net->tape, NT_ERROR_ARGUMENT, "nt_init: two layers have the name %s", net->path[k]);
        return 0;
    }
    return 1;
}

// The paths of all steps; a layer used again keeps its first one. 0 after an error.
static int nti_make_paths(nt_layer *net) {
    nt_tape *t = net->tape;
    size_t low = t->low.used;
    uint32_t epoch = ++t->epoch;
    int level = 0, *scope = (int *)nti_low(t, (size_t)(net->steps + 1) * sizeof *scope); // the steps that opened the scopes
    if (!scope) { nti_no_room(t, "nt_init"); return 0; }
    scope[0] = -1;
    for (int k = 0; k < net->steps; k++) {
        nt_layer *l = net->step[k];
        if (l->epoch != epoch) l->epoch = epoch, l->first = k;
        if (nti_is_layer(l, NTI_LEAVE)) level--;
        if (!net->path[k] && l->first != k) net->path[k] = net->path[l->first];
        if (!net->path[k] && (l->name || l->label[0])) {
            const char *outer = scope[level] < 0 ? "" : net->path[scope[level]];
            net->path[k] = nti_make_path(t, outer, l, l->name ? 0 : nti_layer_number(net, scope[level], k));
            if (!net->path[k]) { nti_no_room(t, "nt_init"); return 0; }
            if (!nti_name_is_free(net, k)) return 0;
        }
        if (nti_is_layer(l, NTI_ENTER)) scope[++level] = k;
    }
    nti_low_rewind(t, low);
    return 1;
}

static nt_tensor *nti_make_param(nt_layer *l, int j, const nt_shape *shape, const char *path) {
    nt_tensor *p = nt_variable(l->tape, l->dtype, *shape, NULL);
    const char *name = l->row->param[j];
    size_t n = strlen(path), m = strlen(name);
    char *text = p ? (char *)nti_high(l->tape, NTI_PLAIN, NTI_FOR_OBJECT, n + m + 2) : NULL;
    if (!text) return NULL;
    memcpy(text, path, n + 1);
    if (m) text[n] = '/', memcpy(text + n + 1, name, m + 1); // an empty name: the layer's own
    p->name = text;
    return p;
}

static size_t nti_module_length(const char *name) { // of "Block_0/Dense_1/kernel" that of "Block_0/Dense_1"
    size_t n = strlen(name);
    while (n && name[n - 1] != '/') n--;
    return n ? n - 1 : 0;
}

// Parameters of one leaf for inputs like x: made at first, filled always.
static int nti_init_leaf(nt_layer *l, nt_key_value key, const nt_tensor *x, const char *path) {
    nt_shape shape[NTI_LAYER_PARAMS];
    memset(shape, 0, sizeof shape);
    if (!l->row->shapes) return 1;
    if (!l->row->shapes(l, x, shape)) return 0;
    const char *before = NULL;
    for (int j = 0, count = 0; j < l->slots; j++) {
        if (!l->use[j]) continue;
        if (!l->param[j]) {
            if (!nti_shape_argument(l->tape, path, l->dtype, &shape[j])) return 0;
            l->param[j] = nti_make_param(l, j, &shape[j], path);
            if (!l->param[j]) return 0;
            l->initialised = l->tape->serial;
        }
        nt_tensor *p = l->param[j];
        int same = p->rank == shape[j].rank;
        for (int a = 0; a < p->rank && same; a++) same = p->shape[a] == shape[j].size[a];
        if (!same) {
            nti_sticky(l->tape, NT_ERROR_SHAPE, "nt_init: %v was made for another input; it cannot become %S", p, &shape[j]);
            return 0;
        }
        size_t module = nti_module_length(p->name); // flax counts what each module asks for
        count = before && module == nti_module_length(before) && !memcmp(before, p->name, module) ? count + 1 : 1, before = p->name;
        nt_key_value own = nt_key_fold_in(key, nti_flax_number(p->name, module, (uint32_t)count));
        if (nt_initialize(own, &l->init[j], l->dtype, shape[j], nti_data(p)) != NT_OK) {
            nti_sticky(l->tape, NT_ERROR_ARGUMENT, "nt_init: the initializer of %v does not fit its shape (fans need two axes)", p);
            return 0;
        }
    }
    return 1;
}

// A marker's effect. The results of the branches that are done lie in `kept` below the input of the next one.
static nt_tensor *nti_apply_marker(const nt_layer *l, nt_tensor *x, nt_tensor **kept, int *level) {
    if (nti_is_layer(l, NTI_FORK)) kept[(*level)++] = x;
    if (nti_is_layer(l, NTI_NEXT)) {
        nt_tensor *input = kept[*level - 1];
        kept[*level - 1] = x, kept[(*level)++] = input;
        return input;
    }
    if (!nti_is_layer(l, NTI_JOIN)) return x;
    nt_tensor **part = kept + *level - l->count, *y = part[0];
    kept[*level - 1] = x, *level -= (int)l->count;
    if (l->count == 1) return x;
    if (l->join == NTI_JOIN_CONCAT) return nt_concat(nti_list(part, (int)l->count), l->axis);
    for (int k = 1; k < l->count; k++) y = l->join == NTI_JOIN_SUM ? nt_add(y, part[k]) : nt_mul(y, part[k]);
    return y;
}

static nt_tensor *nti_apply_leaf(nt_layer *l, nt_tensor *x, const nt_apply_desc *d, int at, const nti_application *a) {
    nt_tensor *p[NTI_LAYER_PARAMS];
    for (int j = 0; j < l->slots; j++) p[j] = !l->use[j] ? NULL : d->params.count ? d->params.items[at++] : l->param[j];
    nt_tensor *y = l->row->apply(l, x, p, a);
    if (y && y != x && !y->name) y->name = a->path; // for messages and reports
    return y;
}

static nt_tensor *nti_apply_steps(const nt_layer *net, nt_tensor *x, const nt_apply_desc *d, nt_key_value key, int init) {
    nt_tape *t = net->tape;
    nti_application a = { d->train, NULL, NULL };
    int level = 0;
    nt_tensor **kept = (nt_tensor **)nti_low(t, (size_t)(net->depth + 1) * sizeof *kept);
    if (!kept) return nti_record_memory(t, NTI_OP_ADD);
    for (int k = 0; k < net->steps && x; k++) {
        nt_layer *l = net->step[k];
        if (!l->row->apply) { x = nti_apply_marker(l, x, kept, &level); continue; }
        if (init && !nti_init_leaf(l, key, x, net->path[k])) return NULL;
        a.path = net->path[k];
        if (d->train && !a.key && nti_is_layer(l, NTI_DROPOUT)) {
            int64_t i[3];
            i[0] = d->key.word[0], i[1] = d->key.word[1], i[2] = 1;
            a.key = nti_record(t, NTI_OP_KEY, NULL, 0, i, 3, NULL, 0);
        }
        x = nti_apply_leaf(l, x, d, init ? 0 : net->at[k], &a);
    }
    return x;
}

static nt_status nti_init_memory(nt_layer *net) {
    nti_no_room(net->tape, "nt_init");
    return net->tape->status;
}

static nt_status nti_init_list(nt_layer *net) { // the flat list of parameters, each once
    int count = 0;
    for (int k = 0; k < net->steps; k++)
        for (int j = 0; j < net->step[k]->slots; j++) count += net->step[k]->use[j];
    net->list = (nt_tensor **)nti_high(net->tape, NTI_PLAIN, NTI_FOR_OBJECT, (size_t)count * sizeof *net->list);
    if (!net->list) return nti_init_memory(net);
    uint32_t epoch = ++net->tape->epoch;
    net->params = 0;
    for (int k = 0; k < net->steps; k++) {
        nt_layer *l = net->step[k];
        net->at[k] = l->epoch == epoch ? net->at[l->first] : net->params;
        if (l->epoch == epoch) continue;
        l->epoch = epoch, l->first = k;
        for (int j = 0; j < l->slots; j++)
            if (l->use[j]) net->list[net->params++] = l->param[j];
    }
    net->initialised = net->tape->serial;
    return NT_OK;
}

NT_API nt_status nt_init(nt_layer *net, nt_key_value key, nt_tensor *x) {
    nt_apply_desc d;
    if (!net || !x || !nti_alive(x)) return net && net->tape->status != NT_OK ? net->tape->status : NT_ERROR_ARGUMENT;
    nt_tape *t = net->tape;
    if (x->tape != t) { nti_sticky(t, NT_ERROR_ARGUMENT, "nt_init: the input %v belongs to another tape", x); return t->status; }
    memset(&d, 0, sizeof d);
    for (int k = 0; k < net->steps; k++)
        for (int j = 0; j < net->step[k]->slots; j++)
            if (net->step[k]->param[j] && nti_leaf_free(net->step[k]->param[j], "nt_init", NTI_USED) != NT_OK) return NT_BUSY;
    if (!net->touched) net->touched = ++t->serial;
    if (!nti_make_paths(net)) return t->status;
    nt_marker mark = nt_mark(t);
    nt_tensor *y = nti_apply_steps(net, x, &d, key, 1);
    nti_drop_nodes(t, mark.serial); // recorded for their shapes only
    nti_low_rewind(t, mark.low);
    if (!y) return t->status == NT_OK ? nti_init_memory(net) : t->status;
    return net->list && net->initialised ? NT_OK : nti_init_list(net);
}

NT_API nt_tensor *nt_apply(nt_layer *net, nt_tensor *x, const nt_apply_desc *desc) {
    nt_apply_desc d;
    if (!net || !x || !nti_alive(x)) return NULL;
    memset(&d, 0, sizeof d);
    if (desc) d = *desc;
    nt_tape *t = net->tape;
    if (x->tape != t) { nti_sticky(t, NT_ERROR_ARGUMENT, "nt_apply: the input %v belongs to another tape", x); return NULL; }
    if (!net->initialised) {
        nti_sticky(t, NT_ERROR_STATE, "nt_apply: the layer has no parameters yet; nt_init(net, key, x) makes them");
        return NULL;
    }
    if (d.params.count && d.params.count != net->params) {
        nti_sticky(t, NT_ERROR_ARGUMENT, "nt_apply: .params has %d tensors, the network %d", d.params.count, net->params);
        return NULL;
    }
    for (int k = 0; k < d.params.count; k++) {
        nt_tensor *p = d.params.items ? d.params.items[k] : NULL;
        if (!p || !nti_alive(p)) return NULL;
        if (p->dtype == net->list[k]->dtype && nti_same_shape(p, net->list[k])) continue;
        nti_sticky(t, NT_ERROR_SHAPE, "nt_apply: .params[%d] is %v where the network has %v", k, p, net->list[k]);
        return NULL;
    }
    return nti_apply_steps(net, x, &d, d.key, 0);
}

NT_API nt_params nt_parameters(const nt_layer *net) {
    if (!net || net->tape->sticky) return nti_list(NULL, 0);
    if (!net->initialised) nti_sticky(net->tape, NT_ERROR_STATE, "nt_parameters: the layer has none yet; nt_init(net, key, x) makes them");
    return net->initialised ? nti_list(net->list, net->params) : nti_list(NULL, 0);
}

static void nti_layer_rewound(void *layer, uint64_t serial) { // parameters newer than the mark are gone
    nt_layer *l = (nt_layer *)layer;
    if (l->initialised <= serial && l->touched <= serial) return;
    l->initialised = l->touched = 0, l->list = NULL, l->params = 0;
    for (int j = 0; j < l->slots; j++) l->param[j] = NULL;
    for (int k = 0; k < l->steps; k++) l->path[k] = NULL;
}
// >>optimizers
// ---------------------------------------------------------------------------------------------------------------------
// An optimizer describes; its state (moments, accumulators, counters) is made by the first step that needs it and shared
// by all its steps. A step is one program where updates are applied at once, and two where gradients accumulate: the
// micro-batch, and the update that the host's loop never sees.
// ---------------------------------------------------------------------------------------------------------------------
typedef struct nti_slot { // the state of one parameter
    struct nti_slot *next;
    uint64_t serial;
    nt_tensor *param, *m, *v, *accumulator;
} nti_slot;

struct nt_optimizer {
    nt_tape *tape;
    int kind, nesterov;
    double rate, momentum, b1, b2, eps, eps_root, decay;
    nt_decay_mask mask;
    nt_multi_steps_desc multi;   // k 0: updates are applied as soon as a gradient is whole
    nti_slot *slots;             // newest first
    nt_tensor *counters, *numbers;
};

static double nti_default(double x, double otherwise) { return x == 0 ? otherwise : x == NT_ZERO ? 0 : x; }

static nt_optimizer *nti_optimizer_new(nt_tape *t, const char *name, int kind) {
    if (!t || t->sticky) return NULL;
    nt_optimizer *o = (nt_optimizer *)nti_high(t, NTI_OPTIMIZER, NTI_FOR_OBJECT, sizeof *o);
    if (!o) nti_no_room(t, name);
    else o->tape = t, o->kind = kind;
    return o;
}

// A hyper-parameter in [low, high); 0 after an error. Zero and NT_ZERO have been replaced.
static int nti_hyper(nt_tape *t, const char *name, const char *field, double x, double low, double high) {
    if (x >= low && x < high) return 1;
    nti_sticky(t, NT_ERROR_ARGUMENT, "%s: .%s is %g, outside %g to %g", name, field, x, low, high);
    return 0;
}

static nt_optimizer *nti_optimizer_valid(nt_optimizer *o, const char *name) {
    nt_tape *t = o->tape;
    double big = 1.7976931348623157e308;
    int ok = nti_hyper(t, name, "learning_rate", o->rate, -big, big) && nti_hyper(t, name, "momentum", o->momentum, 0, big) &&
             nti_hyper(t, name, "b1", o->b1, 0, 1) && nti_hyper(t, name, "b2", o->b2, 0, 1) && nti_hyper(t, name, "eps", o->eps, 0, big) &&
             nti_hyper(t, name, "eps_root", o->eps_root, 0, big) && nti_hyper(t, name, "weight_decay", o->decay, 0, big) &&
             nti_hyper(t, name, "mask", (double)o->mask, 0, NT_DECAY_MATRICES + 1);
    return ok ? o : NULL;
}

NT_API nt_optimizer *nt_sgd(nt_tape *t, const nt_sgd_desc *desc) {
    nt_optimizer *o = nti_optimizer_new(t, "nt_sgd", NTI_UPDATE_SGD);
    if (!o) return NULL;
    o->rate = desc ? desc->learning_rate : 0.01, o->momentum = desc ? desc->momentum : 0, o->nesterov = desc ? desc->nesterov : 0;
    return nti_optimizer_valid(o, "nt_sgd");
}

static nt_optimizer *nti_adam(nt_tape *t, const char *name, const nt_adamw_desc *desc) {
    nt_adamw_desc d;
    nt_optimizer *o = nti_optimizer_new(t, name, NTI_UPDATE_ADAM);
    if (!o) return NULL;
    memset(&d, 0, sizeof d);
    d.learning_rate = 0.001, d.weight_decay = 1e-4;
    if (desc) d = *desc;
    o->rate = d.learning_rate, o->b1 = nti_default(d.b1, 0.9), o->b2 = nti_default(d.b2, 0.999), o->eps = nti_default(d.eps, 1e-8);
    o->eps_root = d.eps_root, o->decay = d.weight_decay, o->mask = d.mask, o->nesterov = d.nesterov;
    return nti_optimizer_valid(o, name);
}

NT_API nt_optimizer *nt_adamw(nt_tape *t, const nt_adamw_desc *desc) { return nti_adam(t, "nt_adamw", desc); }

NT_API nt_optimizer *nt_adam(nt_tape *t, const nt_adam_desc *desc) {
    nt_adamw_desc d;
    memset(&d, 0, sizeof d);
    d.learning_rate = 0.001;
    if (desc)
        d.learning_rate = desc->learning_rate, d.b1 = desc->b1, d.b2 = desc->b2, d.eps = desc->eps, d.eps_root = desc->eps_root,
        d.nesterov = desc->nesterov;
    return nti_adam(t, "nt_adam", &d);
}

NT_API nt_optimizer *nt_multi_steps_with(nt_optimizer *inner, const nt_multi_steps_desc *desc) {
    if (!inner || !desc || inner->tape->sticky) return NULL;
    if (desc->k < 1) {
        nti_sticky(inner->tape, NT_ERROR_ARGUMENT, "nt_multi_steps: k is %d; a window has 1 or more micro-batches", desc->k);
        return NULL;
    }
    if (inner->multi.k) {
        nti_sticky(inner->tape, NT_ERROR_ARGUMENT, "nt_multi_steps of nt_multi_steps: one window is enough; its k is the product");
        return NULL;
    }
    if ((unsigned)desc->skip > NT_SKIP_LARGE) {
        nti_sticky(inner->tape, NT_ERROR_ARGUMENT, "nt_multi_steps: .skip is %d, not one of nt_skip", (int)desc->skip);
        return NULL;
    }
    nt_optimizer *o = nti_optimizer_new(inner->tape, "nt_multi_steps", inner->kind);
    if (!o) return NULL;
    *o = *inner;
    o->multi = *desc, o->slots = NULL, o->counters = o->numbers = NULL;
    return o;
}

NT_API nt_optimizer *nt_multi_steps(nt_optimizer *inner, int k) {
    nt_multi_steps_desc d;
    memset(&d, 0, sizeof d);
    d.k = k;
    return nt_multi_steps_with(inner, &d);
}

static void nti_optimizer_rewound(void *optimizer, uint64_t serial) { // newer state is lost
    nt_optimizer *o = (nt_optimizer *)optimizer;
    while (o->slots && o->slots->serial > serial) o->slots = o->slots->next;
    if (o->counters && nti_n(o->counters)->serial > serial) o->counters = o->numbers = NULL;
}

static int nti_ends_with(const char *s, const char *end) {
    size_t n = s ? strlen(s) : 0, m = strlen(end);
    return n >= m && !memcmp(s + n - m, end, m);
}

static int nti_decayed(const nt_optimizer *o, const nt_tensor *p) {
    if (o->decay == 0) return 0;
    if (o->mask == NT_DECAY_KERNELS) return nti_ends_with(p->name, "kernel");
    if (o->mask == NT_DECAY_NOT_BIAS) return !nti_ends_with(p->name, "bias");
    return o->mask == NT_DECAY_ALL || p->rank >= 2;
}

static nt_tensor *nti_moment(const nt_tensor *p) { return nt_variable(p->tape, p->dtype, nt_shape_of(p), NULL); }

// The slot of p with everything that this optimizer needs; NULL: no memory.
static nti_slot *nti_slot_of(nt_optimizer *o, nt_tensor *p) {
    for (nti_slot *s = o->slots; s; s = s->next)
        if (s->param == p) return s;
    nti_slot *s = (nti_slot *)nti_high(o->tape, NTI_PLAIN, NTI_FOR_OBJECT, sizeof *s);
    if (!s) return NULL;
    int adam = o->kind == NTI_UPDATE_ADAM, ok = 1;
    s->param = p, s->serial = o->tape->serial;
    if (adam || o->momentum != 0) ok = (s->m = nti_moment(p)) != NULL;
    if (ok && adam) ok = (s->v = nti_moment(p)) != NULL;
    if (ok && o->multi.k) ok = (s->accumulator = nti_moment(p)) != NULL;
    if (!ok) return NULL;
    s->next = o->slots, o->slots = s;
    return s;
}

static int nti_counters_of(nt_optimizer *o) {
    static const int64_t counters = NTI_COUNTERS, numbers = NTI_NUMBERS;
    if (o->counters && o->numbers) return 1;
    o->counters = nt_variable(o->tape, NT_I64, nt_shape_make(1, &counters), NULL);
    o->numbers = nt_variable(o->tape, NT_F64, nt_shape_make(1, &numbers), NULL);
    if (!o->counters || !o->numbers) { o->counters = o->numbers = NULL; return 0; }
    ((double *)nti_data(o->numbers))[NTI_RATE] = o->rate;
    return 1;
}

// Variables that are trained: those given, or all that the loss reaches, in the order in which they were made.
static int nti_trainable(const nti_node *n, uint32_t epoch) {
    return n->mark == epoch && n->op == NTI_OP_VARIABLE && !n->frozen && nti_is_float(n->pub.dtype);
}

static nt_params nti_trained(nt_tensor *loss, nt_params given) {
    nt_tape *t = loss->tape;
    if (given.count) return given;
    uint32_t epoch = ++t->epoch;
    int count = 0;
    nti_n(loss)->mark = epoch;
    for (nti_node *n = t->last; n; n = n->previous)
        for (int k = 0; n->mark == epoch && k < n->inputs; k++) n->in[k]->mark = epoch;
    for (nti_object *o = t->objects; o; o = o->previous)
        count += o->kind == NTI_LEAF && nti_trainable((nti_node *)nti_object_body(o), epoch);
    nt_params p = nti_list((nt_tensor **)nti_low(t, (size_t)(count + 1) * sizeof(nt_tensor *)), 0);
    if (!p.items) return p;
    for (nti_object *o = t->objects; o; o = o->previous) {
        nti_node *n = o->kind == NTI_LEAF ? (nti_node *)nti_object_body(o) : NULL;
        if (n && nti_trainable(n, epoch)) p.items[count - ++p.count] = &n->pub;
    }
    return p;
}

// Recording one step -----------------------------------------------------------------------------------------------------

typedef struct nti_recipe { // what a step is made of, while it is compiled
    const char *name;
    nt_optimizer *optimizer;
    nt_tensor *loss, *weight;
    nt_params params, gradients;
    nt_params effects;           // of the micro-batch
    nt_params updates;           // of the update, where it is a program of its own
} nti_recipe;

static nt_tensor *nti_check_finite(nt_tensor *x, double limit) { return nti_record_numbers(NTI_OP_CHECK_FINITE, x, &limit, 1); }

static nt_tensor *nti_record_update(nt_optimizer *o, const nti_slot *s, nt_tensor *gradient) {
    nt_tensor *in[4];
    int64_t i[2];
    int n = 2;
    in[0] = s->param, in[1] = gradient;
    if (s->m) in[n++] = s->m;
    if (s->v) in[n++] = s->v;
    i[0] = (s->m ? 1 : 0) | (s->v ? 2 : 0), i[1] = nti_decayed(o, s->param);
    return nti_record(o->tape, NTI_OP_UPDATE, in, n, i, 2, NULL, 0);
}

// The micro-batch's gradients must pass before any is added: each finite, or all together below the limit.
static int nti_record_skips(nti_recipe *r) {
    const nt_multi_steps_desc *m = &r->optimizer->multi;
    nt_tensor *sum = NULL;
    if (m->skip == NT_SKIP_LOSS) return 1;
    for (int k = 0; k < r->gradients.count; k++) {
        if (m->skip == NT_SKIP_LARGE) sum = nti_sum_of(sum, nt_sum(nt_cast(nt_square(r->gradients.items[k]), NT_F64)));
        else r->gradients.items[k] = nti_check_finite(r->gradients.items[k], HUGE_VAL);
        if (!r->gradients.items[k]) return 0;
    }
    if (!sum) return m->skip != NT_SKIP_LARGE;
    if (r->loss && !m->optax_exact)
        sum = nt_div(sum, nt_square(nt_cast(nt_reshape(r->weight, nt_shape_of(sum)), NT_F64))); // they carry the weight
    sum = nti_check_finite(sum, m->max_squared_norm);
    // the check has no reader: it becomes an output of the micro-batch, through the weight
    r->weight = sum ? nt_add(r->weight, nt_cast(nt_scale(sum, 0), r->weight->dtype)) : NULL;
    return r->weight != NULL;
}

static int nti_record_effects(nti_recipe *r) { // 0 after an error
    nt_optimizer *o = r->optimizer;
    int n = r->params.count;
    r->effects = nti_result_list(o->tape, r->name, n), r->updates = nti_result_list(o->tape, r->name, n);
    if (!r->effects.items || !r->updates.items || !nti_record_skips(r)) return 0;
    for (int k = 0; k < n; k++) {
        nti_slot *s = nti_slot_of(o, r->params.items[k]);
        if (!s) { nti_no_room(o->tape, r->name); return 0; }
        if (!o->multi.k) r->effects.items[k] = nti_record_update(o, s, r->gradients.items[k]);
        else {
            nt_tensor *in[2];
            int64_t mode = o->multi.optax_exact && !o->multi.sum;
            in[0] = s->accumulator, in[1] = r->gradients.items[k];
            r->effects.items[k] = nti_record(o->tape, NTI_OP_ACCUMULATE, in, 2, &mode, 1, NULL, 0);
            r->updates.items[k] = nti_record_update(o, s, nti_check_finite(s->accumulator, HUGE_VAL));
        }
        if (!r->effects.items[k]) return 0;
    }
    return 1;
}

static nti_step *nti_step_new(nti_recipe *r) {
    nti_step *s = (nti_step *)nti_high(r->optimizer->tape, NTI_PLAIN, NTI_FOR_OBJECT, sizeof *s);
    if (!s) return NULL;
    s->optimizer = r->optimizer, s->has_loss = r->loss != NULL;
    s->counter = (int64_t *)nti_data(r->optimizer->counters), s->number = (double *)nti_data(r->optimizer->numbers);
    return s;
}

// Compiles what was recorded; the nodes that were recorded for it are dropped whatever happens.
static nt_program *nti_compile_recipe(nti_recipe *r, const nt_compile_desc *desc) {
    nt_tape *t = r->optimizer->tape;
    nt_tensor *outputs[2];
    nti_compile_job job;
    nt_compile_desc shared;
    int n = 0;
    if (r->loss) outputs[n++] = r->loss;
    if (r->weight) outputs[n++] = r->weight;
    if (!nti_record_effects(r)) return NULL;
    job.name = r->name, job.desc = desc, job.outputs = nti_list(outputs, n), job.effects = r->effects;
    if (r->weight && !(outputs[n - 1] = nti_check_finite(r->weight, HUGE_VAL))) return NULL; // a skip condition may ride on it
    nti_step *s = nti_step_new(r);
    if (!s) { nti_out_of_memory(t, r->name); return NULL; }
    nt_program *p = nti_compile(t, &job);
    if (!p) return NULL;
    p->step = s;
    if (!r->optimizer->multi.k) return p;
    memset(&shared, 0, sizeof shared);
    shared.share_scratch = p;
    job.desc = &shared, job.outputs = nti_list(NULL, 0), job.effects = r->updates;
    s->update = nti_compile(t, &job);
    if (!s->update) return NULL;
    s->update->step = s;
    for (int k = 0; k < r->params.count; k++) p->report.gradient += nt_bytes(r->params.items[k]);
    p->report.total = p->report.total_least = nti_total(t->peak);
    return p;
}

static int nti_weight_valid(const nti_recipe *r, const nt_tensor *weight, nt_dtype dtype) {
    if (!weight || (weight->tape == r->optimizer->tape && weight->dtype == dtype && nt_size(weight) == 1)) return 1;
    nti_fail(r->optimizer->tape, NT_ERROR_SHAPE, "%s: the weight %v is not one %s number of this tape", r->name, weight,
             nt_dtype_name(dtype));
    return 0;
}

// Counters and windows are the optimizer's: all its steps train the same parameters.
static int nti_same_params(const nti_recipe *r) {
    int slots = 0, known = 0;
    for (const nti_slot *s = r->optimizer->slots; s; s = s->next) {
        slots++;
        for (int k = 0; k < r->params.count; k++) known += s->param == r->params.items[k];
    }
    if (!slots || (slots == known && known == r->params.count)) return 1;
    nti_fail(r->optimizer->tape, NT_ERROR_ARGUMENT,
             "%s: this optimizer already trains another list of %d parameters; make one for each list", r->name, slots);
    return 0;
}

static int nti_step_valid(const nti_recipe *r) {
    nt_tape *t = r->optimizer->tape;
    if (!nti_same_params(r)) return 0;
    for (int k = 0; k < r->params.count; k++) {
        nt_tensor *p = r->params.items ? r->params.items[k] : NULL;
        if (!p || !nti_alive(p)) return 0;
        if (p->tape != t || nti_n(p)->op != NTI_OP_VARIABLE)
            nti_fail(t, NT_ERROR_ARGUMENT, "%s: params[%d], %v, is not a variable of this tape", r->name, k, p);
        else if (nti_n(p)->frozen) nti_fail(t, NT_ERROR_ARGUMENT, "%s: params[%d], %v, is frozen", r->name, k, p);
        else if (!nti_is_float(p->dtype)) nti_fail(t, NT_ERROR_DTYPE, "%s: params[%d], %v, is not f32 or f64", r->name, k, p);
        else {
            int twice = 0;
            for (int j = 0; j < k; j++) twice |= r->params.items[j] == p;
            if (!twice) continue;
            nti_fail(t, NT_ERROR_ARGUMENT, "%s: %v is named twice", r->name, p);
        }
        return 0;
    }
    return 1;
}

static int nti_no_assigns(const nti_recipe *r, const nt_compile_desc *desc) {
    if (!desc->assigns.count) return 1;
    nti_fail(r->optimizer->tape, NT_ERROR_ARGUMENT,
             "%s: .assigns belongs to nt_compile; a training step assigns what its optimizer updates", r->name);
    return 0;
}

// Undoes a failed step: objects newer than it go, recorded nodes always.
static nt_program *nti_step_finish(nt_tape *t, nt_program *p, nt_marker mark) {
    nti_drop_nodes(t, mark.serial);
    nti_low_rewind(t, mark.low);
    if (p) return p;
    nti_high_rewind(t, mark.serial, 1);
    t->sticky = 0; // compiling does not poison the tape, whatever it recorded on the way
    return NULL;
}

static void nti_report_unreached(nt_program *p, const nti_recipe *r, const uint8_t *reached) {
    int count = 0;
    for (int k = 0; k < r->params.count; k++) count += !reached[k];
    if (!count) return;
    nt_tensor **list = (nt_tensor **)nti_high(p->tape, NTI_PLAIN, NTI_FOR_OBJECT, (size_t)count * sizeof *list);
    if (!list) return; // the report alone is poorer
    for (int k = 0, n = 0; k < r->params.count; k++)
        if (!reached[k]) list[n++] = r->params.items[k];
    p->report.unreached = list, p->report.unreached_count = count;
}

static int nti_record_gradients(nti_recipe *r) { // with the weight as the loss's cotangent; zeros for what is not reached
    nt_tensor *cotangent = r->optimizer->multi.k && !r->optimizer->multi.optax_exact ? r->weight : nt_full_like(r->loss, 1);
    if (!cotangent) return 0;
    cotangent = nt_reshape(cotangent, nt_shape_of(r->loss));
    r->gradients = nti_result_list(r->loss->tape, r->name, r->params.count);
    if (!r->gradients.items || !cotangent) return 0;
    nti_vjp_walk(r->loss->tape, nti_list(&r->loss, 1), nti_list(&cotangent, 1), r->params, r->gradients.items);
    return !r->loss->tape->sticky;
}

NT_API nt_program *nt_compile_step(nt_tensor *loss, nt_optimizer *optimizer, const nt_compile_desc *desc) {
    nt_compile_desc none;
    nti_recipe r;
    memset(&r, 0, sizeof r), memset(&none, 0, sizeof none);
    if (!loss || !optimizer || !nti_alive(loss)) return NULL;
    if (!desc) desc = &none;
    nt_tape *t = loss->tape;
    r.name = "nt_compile_step", r.optimizer = optimizer, r.loss = loss;
    if (optimizer->tape != t) { nti_fail(t, NT_ERROR_ARGUMENT, "nt_compile_step: loss and optimizer belong to two tapes"); return NULL; }
    if (!nti_is_float(loss->dtype) || nt_size(loss) != 1) {
        nti_fail(t, NT_ERROR_SHAPE, "nt_compile_step: the loss %v is not one f32 or f64 number; take nt_mean of it", loss);
        return NULL;
    }
    if (!nti_weight_valid(&r, desc->weight, loss->dtype) || !nti_no_assigns(&r, desc) || !nti_share_valid(t, r.name, desc)) return NULL;
    nt_marker mark = nt_mark(t);
    r.params = nti_trained(loss, desc->params);
    nt_program *p = NULL;
    uint8_t *reached = NULL;
    if (!r.params.items) nti_out_of_memory(t, r.name);
    else if (!r.params.count)
        nti_fail(
            t, NT_ERROR_ARGUMENT,
            "nt_compile_step: the loss reaches no variable that could be trained; apply a layer that nt_init has filled, or name .params");
    else if (nti_step_valid(&r) && nti_counters_of(optimizer)) {
        r.weight = desc->weight ? desc->weight : optimizer->multi.k ? nt_full_like(loss, 1) : NULL;
        if (nti_record_gradients(&r)) {
            reached = (uint8_t *)nti_low(t, (size_t)r.params.count);
            for (int k = 0; reached && k < r.params.count; k++) reached[k] = r.gradients.items[k] != NULL;
            r.loss = nti_check_finite(loss, HUGE_VAL);
            r.gradients = nti_finish_list(t, r.gradients, r.params);
            if (reached && r.loss && r.gradients.count) p = nti_compile_recipe(&r, desc);
            else if (!t->sticky) nti_out_of_memory(t, r.name);
        }
        if (p) nti_report_unreached(p, &r, reached);
    }
    return nti_step_finish(t, p, mark);
}

NT_API nt_program *nt_compile_update(nt_optimizer *optimizer, nt_params params, nt_params gradients, const nt_compile_desc *desc) {
    nt_compile_desc none;
    nti_recipe r;
    memset(&r, 0, sizeof r), memset(&none, 0, sizeof none);
    if (!optimizer || optimizer->tape->sticky) return NULL;
    if (!desc) desc = &none;
    nt_tape *t = optimizer->tape;
    r.name = "nt_compile_update", r.optimizer = optimizer, r.params = params;
    if (params.count < 1 || params.count != gradients.count) {
        nti_fail(t, NT_ERROR_ARGUMENT, "nt_compile_update: %d parameters and %d gradients", params.count, gradients.count);
        return NULL;
    }
    if (!nti_step_valid(&r) || !nti_compile_valid(t, r.name, gradients, "gradient") ||
        !nti_weight_valid(&r, desc->weight, params.items[0]->dtype) || !nti_no_assigns(&r, desc) || !nti_share_valid(t, r.name, desc))
        return NULL;
    nt_marker mark = nt_mark(t);
    nt_program *p = NULL;
    r.gradients = nti_result_list(t, r.name, params.count);
    for (int k = 0; k < r.gradients.count; k++) r.gradients.items[k] = gradients.items[k];
    if (desc->weight && r.gradients.items && optimizer->multi.k && !optimizer->multi.optax_exact)
        for (int k = 0; k < r.gradients.count; k++) r.gradients.items[k] = nt_mul(gradients.items[k], desc->weight);
    r.weight = !optimizer->multi.k ? NULL : desc->weight ? desc->weight : nt_scalar(t, params.items[0]->dtype, 1);
    if (r.gradients.items && nti_counters_of(optimizer)) p = nti_compile_recipe(&r, desc);
    return nti_step_finish(t, p, mark);
}

// Running a step -----------------------------------------------------------------------------------------------------------

static const nti_step *nti_step_of(const nt_program *p) { return p ? p->step : NULL; }

static double nti_power(double x, int64_t n) { // by squaring: the same on every machine
    double r = 1;
    for (; n > 0; n >>= 1, x *= x)
        if (n & 1) r *= x;
    return r;
}

static void nti_step_prepare(nti_step *s, double scale) { // the factors of the update that comes next
    const nt_optimizer *o = s->optimizer;
    nti_update *u = &s->now;
    int64_t t = s->counter[NTI_COUNT_UPDATES] + 1;
    u->kind = o->kind, u->momentum = o->momentum != 0, u->nesterov = o->nesterov, u->rate = s->number[NTI_RATE], u->scale = scale,
    u->decay = o->decay;
    u->mu = o->momentum, u->b1 = o->b1, u->b2 = o->b2, u->eps = o->eps, u->eps_root = o->eps_root;
    double p1 = nti_power(o->b1, t), p2 = nti_power(o->b2, t);
    u->m_now = 1 / (1 - p1), u->m_next = o->b1 / (1 - p1 * o->b1), u->g_now = (1 - o->b1) / (1 - p1), u->v_now = 1 / (1 - p2);
}

static double nti_output_number(const nt_program *p, int i) {
    double x = 1;
    if (i < p->outputs) nti_cast(NT_F64, &x, p->output[i].dtype, nti_resolve(p, &p->output[i].ref), 1);
    return x;
}

static void nti_window_empty(nti_step *s) {
    for (nti_slot *slot = s->optimizer->slots; slot; slot = slot->next)
        if (slot->accumulator && nt_bytes(slot->accumulator)) memset(nti_data(slot->accumulator), 0, nt_bytes(slot->accumulator));
    s->counter[NTI_COUNT_MICRO] = s->counter[NTI_COUNT_ACCEPTED] = 0;
    s->number[NTI_WEIGHT_SUM] = s->number[NTI_LOSS_SUM] = 0;
}

static nt_status nti_step_skip(nt_program *p, const char *what) {
    nti_step *s = p->step;
    s->event = NT_SKIPPED, s->counter[NTI_COUNT_SKIPPED]++;
    return nti_fail(p->tape, NT_NONFINITE,
                    "nt_run: %s after %lld updates; nothing was changed. Lower the learning rate, look at the data, or nt_eval the values "
                    "before the loss",
                    what, (long long)s->counter[NTI_COUNT_UPDATES]);
}

// The end of a window, whose last micro-batch has not been counted: the update has run.
static nt_status nti_step_updated(nt_program *p, nt_status status) {
    nti_step *s = p->step;
    if (status == NT_OK) {
        s->counter[NTI_COUNT_UPDATES]++, s->event = NT_UPDATED;
        s->number[NTI_WINDOW_LOSS] = (s->number[NTI_LOSS_SUM] + s->weight * s->loss) / (s->number[NTI_WEIGHT_SUM] + s->weight);
    } else if (status == NT_NONFINITE) status = nti_step_skip(p, "the window's gradient is not finite and was discarded");
    nti_window_empty(s);
    return status;
}

static nt_status nti_step_update(nt_program *p, const nti_slice *slice) {
    nti_step *s = p->step;
    const nt_multi_steps_desc *m = &s->optimizer->multi;
    double sum = s->number[NTI_WEIGHT_SUM] + s->weight;
    int goes_on = s->updating;
    if (!goes_on && !(sum > 0 && sum - sum == 0) && !m->sum && !m->optax_exact) { // nothing to divide by: every micro-batch was empty
        nti_window_empty(s);
        return nti_step_skip(p, "the weights of the window sum to nothing that could be divided by");
    }
    if (!goes_on) s->now.scale = m->sum || m->optax_exact ? 1 : 1 / sum, s->updating = 1, nti_run_rewind(s->update);
    if (!goes_on && slice->looks && nti_time_is_up(slice)) return NT_AGAIN; // the micro-batch ended with the slice
    nt_status status = nti_run_on(s->update, slice);
    return status == NT_AGAIN || status == NT_CANCELLED ? status : nti_step_updated(p, status);
}

// The micro-batch has run: it is counted at once, or with the update that it leads to.
static nt_status nti_step_ran(nt_program *p, const nti_slice *slice) {
    nti_step *s = p->step;
    if (!s->optimizer->multi.k) {
        s->counter[NTI_COUNT_UPDATES]++, s->event = NT_UPDATED;
        if (s->has_loss) s->number[NTI_WINDOW_LOSS] = nti_output_number(p, 0);
        s->counter[NTI_COUNT_MICRO] = 0;
        return NT_OK;
    }
    s->weight = nti_output_number(p, s->has_loss); // finite: it was checked before anything was accumulated
    s->loss = s->has_loss ? nti_output_number(p, 0) : 0;
    if (s->counter[NTI_COUNT_ACCEPTED] + 1 >= s->optimizer->multi.k) return nti_step_update(p, slice);
    s->number[NTI_WEIGHT_SUM] += s->weight, s->number[NTI_LOSS_SUM] += s->weight * s->loss;
    s->counter[NTI_COUNT_MICRO]++, s->counter[NTI_COUNT_ACCEPTED]++, s->event = NT_ACCUMULATED;
    return NT_OK;
}

static nt_status nti_step_run(nt_program *p, const nti_slice *slice) {
    nti_step *s = p->step;
    if (!p->begun) nti_step_prepare(s, 1), s->updating = 0;
    if (s->updating) return nti_step_update(p, slice);
    nt_status status = nti_run_part(p, slice);
    if (status == NT_OK) return nti_step_ran(p, slice);
    if (status != NT_NONFINITE) return status;
    const nt_multi_steps_desc *m = &s->optimizer->multi;
    s->counter[NTI_COUNT_MICRO]++;
    return nti_step_skip(p, m->k && m->skip != NT_SKIP_LOSS ? "a gradient is not finite or too large"
                                                            : "the loss or its weight is not finite (NaN or infinite)");
}

static nt_status nti_is_step(const nt_program *p, const char *name) {
    if (!p) return NT_ERROR_ARGUMENT;
    return p->step ? NT_OK : nti_fail(p->tape, NT_ERROR_ARGUMENT, "%s: the program is not a training step", name);
}

// An update at the host's word: a run of the step that has its micro-batch behind it.
NT_API nt_status nt_flush(nt_program *step) {
    nt_status status = nti_is_step(step, "nt_flush");
    if (status == NT_OK) status = nti_run_not_begun(step, "nt_flush");
    if (status != NT_OK || !step->step->update || !step->step->counter[NTI_COUNT_ACCEPTED]) return status;
    if ((status = nti_run_free(step, "nt_flush")) != NT_OK || (status = nti_run_ready(step)) != NT_OK) return status;
    nti_slice whole;
    memset(&whole, 0, sizeof whole);
    whole.run = step;
    nti_step_prepare(step->step, 1);
    step->step->updating = 0, step->step->weight = step->step->loss = 0;
    nti_run_begin(step);
    status = nti_step_update(step, &whole);
    nti_run_end(step);
    return status;
}

NT_API nt_status nt_discard(nt_program *step) {
    nt_status status = nti_is_step(step, "nt_discard");
    if (status == NT_OK) status = nti_run_not_begun(step, "nt_discard");
    if (status == NT_OK) status = nti_run_free(step, "nt_discard");
    if (status == NT_OK && step->step->update) nti_window_empty(step->step);
    return status;
}

static nt_program *nti_update_of(const nt_program *p) { return p->step && p->step->update != p ? p->step->update : NULL; }

NT_API nt_event_kind nt_event(const nt_program *step) { return step && step->step ? step->step->event : NT_ACCUMULATED; }
NT_API int64_t nt_update_step(const nt_program *step) { return step && step->step ? step->step->counter[NTI_COUNT_UPDATES] : 0; }
NT_API int64_t nt_micro_step(const nt_program *step) { return step && step->step ? step->step->counter[NTI_COUNT_MICRO] : 0; }
NT_API int64_t nt_skipped(const nt_program *step) { return step && step->step ? step->step->counter[NTI_COUNT_SKIPPED] : 0; }
NT_API double nt_learning_rate(const nt_program *step) { return step && step->step ? step->step->number[NTI_RATE] : 0; }

NT_API double nt_window_loss(const nt_program *step) {
    if (!step || !step->step) return 0;
    const nti_step *s = step->step;
    return s->number[NTI_WEIGHT_SUM] > 0 ? s->number[NTI_LOSS_SUM] / s->number[NTI_WEIGHT_SUM] : s->number[NTI_WINDOW_LOSS];
}

NT_API nt_status nt_set_learning_rate(nt_program *step, double rate) {
    nt_status status = nti_is_step(step, "nt_set_learning_rate");
    if (status != NT_OK) return status;
    if (!(rate - rate == 0)) return nti_fail(step->tape, NT_ERROR_ARGUMENT, "nt_set_learning_rate: %g", rate);
    step->step->number[NTI_RATE] = rate;
    return NT_OK;
}
#ifndef NTTRAIN_NO_FILES
// >>files
// ---------------------------------------------------------------------------------------------------------------------
// Reading and writing safetensors, .npy and .npz. A file is read through one small buffer: bytes of a range (raw), through
// inflate where deflated (source), through a scanner for the two header languages (scan). Every format fills the same table
// of items, which is checked once for overlaps and equal names. Headers are read twice: to count, then to fill a table of just
// that size; since the file may change in between, the second pass trusts no count of the first. Relies on the tape for memory and
// messages and on nti_cast; nothing here allocates or recurses, and all that comes from a file is checked before it is used.
// ---------------------------------------------------------------------------------------------------------------------
#ifndef NTTRAIN_NO_STDIO
#include <stdio.h>
#endif

// From the tape, for which the section uses nothing but nti_file_alloc and nti_file_free, in stack order within a file.
static void *nti_file_memory(nt_tape *t, const char *name, size_t bytes) {
    void *p = nti_file_alloc(t, bytes);
    if (!p) nti_out_of_memory(t, name);
    return p;
}

#define NTI_HEADER_MAX 100000000       // bytes of a header, as in the reference implementation of safetensors

// Their names in safetensors and in .npy, which knows no bf16.
static const char nti_file_dtypes[NT_DTYPE_COUNT][2][5] = {
    { "F32", "f4" }, { "F64", "f8" }, { "I32", "i4" }, { "U32", "u4" }, { "BOOL", "b1" }, { "F16", "f2" }, { "BF16", "" },
    { "I8", "i1" }, { "U8", "u1" }, { "I16", "i2" }, { "U16", "u2" }, { "I64", "i8" }, { "U64", "u8" }
};

static int nti_big_endian(void) {
    const uint16_t one = 1;
    unsigned char low;
    memcpy(&low, &one, 1);
    return low == 0;
}

static void nti_swap_bytes(void *data, size_t n, size_t size) {
    unsigned char *p = (unsigned char *)data;
    for (; n > 0; n--, p += size) {
        for (size_t i = 0; i < size / 2; i++) {
            unsigned char byte = p[i];
            p[i] = p[size - 1 - i];
            p[size - 1 - i] = byte;
        }
    }
}

static uint64_t nti_get_le(const unsigned char *p, int bytes) {
    uint64_t v = 0;
    while (bytes-- > 0) v = v << 8 | p[bytes];
    return v;
}

// By half bytes, so that the table is short; for longer data by words of eight of them, whose steps do not wait for each other.
static uint32_t nti_crc32(uint32_t crc, const void *data, size_t n) {
    static const uint32_t table[16] = { 0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4, 0x4db26158, 0x5005713c,
                                        0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c, 0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c };
    const unsigned char *p = (const unsigned char *)data;
    crc = ~crc;
    if (n >= 512) {
        uint32_t after[8][16];                                       // the effect of a half byte that k others follow
        for (int i = 0; i < 16; i++) after[0][i] = table[i];
        for (int k = 1; k < 8; k++) {
            for (int i = 0; i < 16; i++) after[k][i] = after[k - 1][i] >> 4 ^ table[after[k - 1][i] & 15];
        }
        for (; n >= 4; n -= 4, p += 4) {
            uint32_t x = crc ^ (uint32_t)nti_get_le(p, 4);
            crc = after[7][x & 15] ^ after[6][x >> 4 & 15] ^ after[5][x >> 8 & 15] ^ after[4][x >> 12 & 15] ^
                  after[3][x >> 16 & 15] ^ after[2][x >> 20 & 15] ^ after[1][x >> 24 & 15] ^ after[0][x >> 28];
        }
    }
    for (; n > 0; n--) {
        crc ^= *p++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

// Text from a file or for one: valid UTF-8 without zero bytes. `out` may be NULL (to count); length may pass size, then the text is cut.
typedef struct nti_utf8 { char *out; size_t size, length; unsigned char left, low, high; } nti_utf8;

static int nti_utf8_put(nti_utf8 *s, int c) {
    if (s->left > 0) {
        if (c < s->low || c > s->high) return 0;
        s->left--;
        s->low = 0x80;
        s->high = 0xbf;
    } else if (c >= 0x80) {
        if (c < 0xc2 || c > 0xf4) return 0;
        s->left = (unsigned char)(1 + (c >= 0xe0) + (c >= 0xf0));
        s->low = c == 0xe0 ? 0xa0 : c == 0xf0 ? 0x90 : 0x80;         // no overlong forms,
        s->high = c == 0xed ? 0x9f : c == 0xf4 ? 0x8f : 0xbf;        // no surrogates, nothing past U+10FFFF
    } else if (c <= 0) {
        return 0;
    }
    if (s->out && s->length < s->size) s->out[s->length] = (char)c;
    s->length++;
    return 1;
}

static int nti_utf8_is(const nti_utf8 *s, const char *word) {
    return s->length == strlen(word) && s->length <= s->size && memcmp(s->out, word, s->length) == 0;
}

// ---- nt_io ------------------------------------------------------------------------------------------------------------

static int nti_memory_read(void *user, uint64_t offset, void *out, size_t bytes) {
    memcpy(out, (const unsigned char *)user + (size_t)offset, bytes);
    return 1;
}

static int nti_buffer_write(void *user, const void *data, size_t bytes) {
    nt_buffer *b = (nt_buffer *)user;
    if (bytes > SIZE_MAX - b->bytes) return 0;
    if (b->data) {
        if (b->bytes > b->capacity || bytes > b->capacity - b->bytes) return 0;
        memcpy((unsigned char *)b->data + b->bytes, data, bytes);
    }
    b->bytes += bytes;
    return 1;
}

NT_API nt_io nt_io_memory(const void *data, size_t bytes) {
    nt_io io;
    memset(&io, 0, sizeof io);
    io.read = nti_memory_read;
    io.user = (void *)(uintptr_t)data;                               // never written: there is no write function
    io.size = data ? bytes : 0;
    io.name = "memory";
    return io;
}

NT_API nt_io nt_io_buffer(nt_buffer *buffer) {
    nt_io io;
    memset(&io, 0, sizeof io);
    io.write = buffer ? nti_buffer_write : NULL;
    io.user = buffer;
    io.name = "buffer";
    return io;
}

static int nti_io_close(nt_io *io) { return !io->close || io->close(io->user); }

#ifndef NTTRAIN_NO_STDIO
#ifdef _WIN32                                                        // long has 32 bits there
#define NTI_FSEEK(f, offset, whence) _fseeki64(f, (long long)(offset), whence)
#define NTI_FTELL(f) _ftelli64(f)
#define NTI_FSEEK_MAX INT64_MAX
#else
#define NTI_FSEEK(f, offset, whence) fseek(f, (long)(offset), whence)
#define NTI_FTELL(f) ftell(f)
#define NTI_FSEEK_MAX LONG_MAX
#endif

static int nti_stdio_read(void *user, uint64_t offset, void *out, size_t bytes) {
    FILE *f = (FILE *)user;
    return NTI_FSEEK(f, offset, SEEK_SET) == 0 && fread(out, 1, bytes, f) == bytes;
}

static int nti_stdio_write(void *user, const void *data, size_t bytes) { return fwrite(data, 1, bytes, (FILE *)user) == bytes; }
static int nti_stdio_close(void *user) { return fclose((FILE *)user) == 0; }

NT_API nt_io nt_io_open(nt_tape *t, const char *path, const char *mode) {
    nt_io io;
    memset(&io, 0, sizeof io);
    io.name = path;
    if (!t || !path || !mode || (mode[0] != 'r' && mode[0] != 'w')) {
        if (t) nti_fail(t, NT_ERROR_ARGUMENT, "nt_io_open: a path and mode \"rb\" or \"wb\" are needed");
        return io;
    }
    FILE *f = fopen(path, mode[0] == 'r' ? "rb" : "wb");
    if (!f) {
        nti_fail(t, NT_ERROR_FILE, "%s: cannot be opened", path);
        return io;
    }
    io.user = f;
    io.close = nti_stdio_close;
    if (mode[0] == 'w') {
        io.write = nti_stdio_write;
        return io;
    }
    int64_t size = NTI_FSEEK(f, 0, SEEK_END) == 0 ? (int64_t)NTI_FTELL(f) : -1;
    if (size < 0) nti_fail(t, NT_ERROR_FILE, "%s: is not a file that can be searched", path);
    else io.read = nti_stdio_read;
    io.size = size < 0 ? 0 : (uint64_t)size;
    return io;
}
#endif

// ---- the reader: raw bytes --------------------------------------------------------------------------------------------

typedef struct nti_file_item {
    nt_file_entry entry;                 // first, so that the public pointer leads back here
    uint64_t offset, length;             // where it lies in the file; of a zip's member: as stored there
    uint64_t size;                       // bytes when inflated, .npy header included
    uint32_t crc, header;                // header: bytes of .npy header before the data
    unsigned char checked, deflated, swapped, fortran, npy;   // checked: has a CRC; npy: begins with an .npy header
} nti_file_item;

struct nti_inflate;
struct nt_file {
    nt_tape *tape;
    nt_io io;
    nti_file_item *items;                // NULL while counting; after it in the same block: order, names
    uint32_t *order;                     // indices of items, sorted by name
    char *names;
    int count, capacity;
    size_t name_bytes, name_capacity, table_bytes;

    uint64_t at, end;                    // raw: what of the range is not in the buffer yet
    size_t next, filled;                 // raw: what of the buffer is not used yet
    struct nti_inflate *inflate;         // source: not NULL if deflated
    int checked;                         // source: count the CRC
    uint32_t crc;                        // source: of all bytes that went through
    int look;                            // scan: the next byte, -1 at the end of the header
    uint64_t left, scanned;              // scan: bytes of the header after `look`, bytes taken so far
    unsigned char raw[512];
    uint64_t chunk[128], cast[128];      // elements on their way
};

static int nti_file_bad(nt_file *f, const char *what) {
    nti_fail(f->tape, NT_ERROR_FILE, "%s: %s", f->io.name, what);
    return 0;
}

static void nti_raw_begin(nt_file *f, uint64_t from, uint64_t to) {
    f->at = from;
    f->end = to;
    f->next = f->filled = 0;
}

static int nti_raw_fetch(nt_file *f, void *out, size_t bytes) {
    if (bytes > f->end - f->at) return nti_file_bad(f, "ends too early");
    if (!f->io.read(f->io.user, f->at, out, bytes)) return nti_file_bad(f, "cannot be read");
    f->at += bytes;
    return 1;
}

static int nti_raw_fill(nt_file *f) {
    uint64_t n = f->end - f->at;
    f->next = f->filled = 0;
    if (n > sizeof f->raw) n = sizeof f->raw;
    if (!nti_raw_fetch(f, f->raw, (size_t)n)) return 0;
    f->filled = (size_t)n;
    return 1;
}

static int nti_raw_read(nt_file *f, void *out, size_t bytes) {
    unsigned char *p = (unsigned char *)out;
    size_t ready = f->filled - f->next;
    if (ready > bytes) ready = bytes;
    if (ready > 0) memcpy(p, f->raw + f->next, ready);
    f->next += ready;
    bytes -= ready;
    if (bytes == 0) return 1;
    if (bytes >= sizeof f->raw) return nti_raw_fetch(f, p + ready, bytes);
    if (!nti_raw_fill(f)) return 0;
    if (f->filled < bytes) return nti_file_bad(f, "ends too early");
    memcpy(p + ready, f->raw, bytes);
    f->next = bytes;
    return 1;
}

// ---- the reader: inflate ----------------------------------------------------------------------------------------------

#define NTI_FAST_BITS 9
typedef struct nti_huffman {
    uint16_t fast[1 << NTI_FAST_BITS];   // by the next bits: length << 9 | symbol, 0 for longer codes
    uint16_t count[16], symbol[288];     // codes of each length; their symbols in order of code
} nti_huffman;

typedef struct nti_inflate {
    nti_huffman literals, distances;
    uint32_t bits;                       // bits read ahead, the next one lowest
    int have;                            // how many
    int last, coded;                     // this is the last block; inside a block of codes
    uint32_t run, distance;              // bytes still to come of a match, or (distance 0) of a stored block
    uint64_t at;                         // bytes made so far
    unsigned char window[32768];
} nti_inflate;

static int nti_huffman_build(nti_huffman *h, const uint8_t *lengths, int n) {
    uint16_t place[17];
    int room = 1, longest = 0, code = 0;
    memset(h, 0, sizeof *h);
    for (int i = 0; i < n; i++) h->count[lengths[i]]++;
    h->count[0] = 0;
    place[1] = 0;
    for (int length = 1; length <= 15; length++) {
        room = 2 * room - h->count[length];
        if (room < 0) return 0;                                      // more codes than there are
        if (h->count[length]) longest = length;
        place[length + 1] = (uint16_t)(place[length] + h->count[length]);
    }
    if (room > 0 && longest > 1) return 0;                           // only a single code may leave some unused
    for (int i = 0; i < n; i++) {
        if (lengths[i]) h->symbol[place[lengths[i]]++] = (uint16_t)i;
    }
    for (int length = 1, k = 0; length <= NTI_FAST_BITS; length++, code <<= 1) {
        for (int i = 0; i < h->count[length]; i++, code++, k++) {
            int reversed = 0;
            for (int b = 0; b < length; b++) reversed |= (code >> b & 1) << (length - 1 - b);
            for (; reversed < 1 << NTI_FAST_BITS; reversed += 1 << length) h->fast[reversed] = (uint16_t)(length << 9 | h->symbol[k]);
        }
    }
    return 1;
}

// Reads ahead up to n bits (at most 16); at the end of the data there may be fewer.
static void nti_inflate_need(nt_file *f, nti_inflate *z, int n) {
    while (z->have < n) {
        if (f->next == f->filled && (f->at == f->end || !nti_raw_fill(f))) return;
        z->bits |= (uint32_t)f->raw[f->next++] << z->have;
        z->have += 8;
    }
}

static int nti_inflate_bits(nt_file *f, nti_inflate *z, int n) {     // -1: there are no more
    nti_inflate_need(f, z, n);
    if (z->have < n) return -1;
    int v = (int)(z->bits & ((1u << n) - 1u));
    z->bits >>= n;
    z->have -= n;
    return v;
}

static int nti_inflate_symbol(nt_file *f, nti_inflate *z, const nti_huffman *h) {   // -1: no such code
    nti_inflate_need(f, z, 15);
    int entry = h->fast[z->bits & ((1u << NTI_FAST_BITS) - 1u)], length = entry >> 9, symbol = entry & 511;
    if (length == 0) {
        int code = 0, first = 0, index = 0;
        for (length = 1; length <= 15; length++) {
            code |= (int)(z->bits >> (length - 1) & 1u);
            if (code - first < h->count[length]) break;
            index += h->count[length];
            first = (first + h->count[length]) << 1;
            code <<= 1;
        }
        if (length > 15) return -1;
        symbol = h->symbol[index + code - first];
    }
    if (length > z->have) return -1;
    z->bits >>= length;
    z->have -= length;
    return symbol;
}

// The two code tables of a block, from its header.
static int nti_inflate_dynamic(nt_file *f, nti_inflate *z) {
    static const uint8_t order[19] = { 16, 17, 18, 0, 8, 7, 9, 6, 10, 5, 11, 4, 12, 3, 13, 2, 14, 1, 15 };
    uint8_t lengths[320];
    int n = nti_inflate_bits(f, z, 5), d = nti_inflate_bits(f, z, 5), c = nti_inflate_bits(f, z, 4);
    if (n < 0 || d < 0 || c < 0 || n > 29 || d > 29) return 0;
    n += 257;
    d += 1;
    memset(lengths, 0, sizeof lengths);
    for (int i = 0; i < c + 4; i++) {
        int length = nti_inflate_bits(f, z, 3);
        if (length < 0) return 0;
        lengths[order[i]] = (uint8_t)length;
    }
    if (!nti_huffman_build(&z->literals, lengths, 19)) return 0;
    for (int i = 0; i < n + d;) {
        int s = nti_inflate_symbol(f, z, &z->literals), repeat = 1;
        uint8_t value = (uint8_t)s;
        if (s < 0 || (s == 16 && i == 0)) return 0;
        if (s >= 16) {
            int more = nti_inflate_bits(f, z, s == 16 ? 2 : s == 17 ? 3 : 7);
            if (more < 0) return 0;
            repeat = more + (s == 18 ? 11 : 3);
            value = s == 16 ? lengths[i - 1] : 0;
        }
        if (repeat > n + d - i) return 0;
        while (repeat-- > 0) lengths[i++] = value;
    }
    return lengths[256] > 0 && nti_huffman_build(&z->literals, lengths, n) && nti_huffman_build(&z->distances, lengths + n, d);
}

static int nti_inflate_fixed(nti_inflate *z) {
    uint8_t lengths[288];
    memset(lengths, 8, 144);
    memset(lengths + 144, 9, 112);
    memset(lengths + 256, 7, 24);
    memset(lengths + 280, 8, 8);
    int ok = nti_huffman_build(&z->literals, lengths, 288);
    memset(lengths, 5, 32);                                          // 30 and 31 complete the code and are refused where they are used
    return ok && nti_huffman_build(&z->distances, lengths, 32);
}

static int nti_inflate_block(nt_file *f, nti_inflate *z) {
    if (z->last) return 0;
    int last = nti_inflate_bits(f, z, 1), type = nti_inflate_bits(f, z, 2);
    if (type < 0) return 0;
    z->last = last;
    z->coded = type > 0;
    if (type == 1) return nti_inflate_fixed(z);
    if (type == 2) return nti_inflate_dynamic(f, z);
    if (type == 3) return 0;
    z->bits >>= z->have & 7;
    z->have -= z->have & 7;
    int n = nti_inflate_bits(f, z, 16), check = nti_inflate_bits(f, z, 16);
    if (check < 0 || n != (check ^ 0xffff)) return 0;
    z->run = (uint32_t)n;
    z->distance = 0;
    return 1;
}

// A literal byte; 256 after the start of a match or the end of the block; -1: damaged.
static int nti_inflate_code(nt_file *f, nti_inflate *z) {
    int s = nti_inflate_symbol(f, z, &z->literals), extra = 0, more;
    if (s < 256) return s;
    if (s == 256) z->coded = 0;
    if (s == 256 || s > 285) return s == 256 ? 256 : -1;
    s -= 257;
    int length = s < 8 ? s : s == 28 ? 255 : (4 + (s & 3)) << (extra = (s >> 2) - 1);
    if ((more = nti_inflate_bits(f, z, extra)) < 0) return -1;
    z->run = (uint32_t)(3 + length + more);
    s = nti_inflate_symbol(f, z, &z->distances);
    if (s < 0 || s > 29) return -1;
    extra = s < 4 ? 0 : (s >> 1) - 1;
    int distance = s < 4 ? s : (2 + (s & 1)) << extra;
    if ((more = nti_inflate_bits(f, z, extra)) < 0) return -1;
    z->distance = (uint32_t)(1 + distance + more);
    return z->distance > z->at ? -1 : 256;
}

static int nti_inflate_read(nt_file *f, void *out, size_t bytes) {
    nti_inflate *z = f->inflate;
    unsigned char *p = (unsigned char *)out;
    while (bytes > 0) {
        int c = 256;                                                 // a byte, 256: none yet, -1: damaged
        if (z->run > 0 && z->distance > 0) {
            for (; z->run > 0 && bytes > 0; z->run--, bytes--, z->at++) {
                *p++ = z->window[z->at & 32767] = z->window[(z->at - z->distance) & 32767];
            }
        } else if (z->run > 0) {
            z->run--;
            c = nti_inflate_bits(f, z, 8);
        } else if (z->coded) {
            c = nti_inflate_code(f, z);
        } else if (!nti_inflate_block(f, z)) {
            c = -1;
        }
        if (c < 0) return nti_file_bad(f, "has damaged deflated data");
        if (c > 255) continue;
        z->window[z->at++ & 32767] = *p++ = (unsigned char)c;
        bytes--;
    }
    return 1;
}

// ---- the reader: the bytes of an item, and scanning headers -----------------------------------------------------------

static int nti_source_begin(nt_file *f, const nti_file_item *item, uint64_t skip) {
    nti_raw_begin(f, item->offset + skip, item->offset + item->length);
    f->crc = 0;
    f->checked = item->checked;
    if (!item->deflated) return 1;
    f->inflate = (nti_inflate *)nti_file_memory(f->tape, f->io.name, sizeof(nti_inflate));
    if (f->inflate) memset(f->inflate, 0, sizeof(nti_inflate));
    return f->inflate != NULL;
}

static void nti_source_end(nt_file *f) {
    if (f->inflate) nti_file_free(f->tape, f->inflate, sizeof(nti_inflate));
    f->inflate = NULL;
    f->checked = 0;
}

static int nti_source_read(nt_file *f, void *out, size_t bytes) {
    if (!(f->inflate ? nti_inflate_read(f, out, bytes) : nti_raw_read(f, out, bytes))) return 0;
    if (f->checked) f->crc = nti_crc32(f->crc, out, bytes);
    return 1;
}

static int nti_source_skip(nt_file *f, uint64_t bytes) {
    while (bytes > 0) {
        size_t n = bytes < sizeof f->chunk ? (size_t)bytes : sizeof f->chunk;
        if (!nti_source_read(f, f->chunk, n)) return 0;
        bytes -= n;
    }
    return 1;
}

static int nti_scan_bad(nt_file *f, const char *what) {
    nti_fail(f->tape, NT_ERROR_FILE, "%s: %s at byte %lld of the header", f->io.name, what, (long long)f->scanned);
    f->left = 0;
    f->look = -1;
    return 0;
}

static void nti_scan_next(nt_file *f) {
    unsigned char c;
    f->look = -1;
    if (f->left == 0) return;
    f->left--;
    f->scanned++;
    if (nti_source_read(f, &c, 1)) f->look = c;
    else f->left = 0;
}

static void nti_scan_begin(nt_file *f, uint64_t length) {
    f->left = length;
    f->scanned = 0;
    nti_scan_next(f);
}

static void nti_scan_space(nt_file *f) {
    while (f->look == ' ' || f->look == '\n' || f->look == '\t' || f->look == '\r') nti_scan_next(f);
}

static int nti_scan_is(nt_file *f, int c) {                          // takes c if it comes next
    nti_scan_space(f);
    if (f->look != c) return 0;
    nti_scan_next(f);
    return 1;
}

static int nti_scan_expect(nt_file *f, int c) {
    char what[] = "expected ' '";
    if (nti_scan_is(f, c)) return 1;
    what[10] = (char)c;
    return nti_scan_bad(f, what);
}

static int nti_scan_end(nt_file *f) {
    nti_scan_space(f);
    return (f->look < 0 && f->left == 0) || nti_scan_bad(f, "unexpected text");
}

static int nti_scan_integer(nt_file *f, int64_t *out) {
    int64_t v = 0;
    nti_scan_space(f);
    if (f->look < '0' || f->look > '9') return nti_scan_bad(f, "expected a whole number");
    int zero = f->look == '0';
    do {
        int digit = f->look - '0';
        if (v > (INT64_MAX - digit) / 10) return nti_scan_bad(f, "too large a number");
        v = v * 10 + digit;
        nti_scan_next(f);
    } while (!zero && f->look >= '0' && f->look <= '9');
    *out = v;
    return 1;
}

static int nti_scan_hex4(nt_file *f) {
    int v = 0;
    for (int i = 0; i < 4; i++, nti_scan_next(f)) {
        int c = f->look, letter = c | 32;
        if (c >= '0' && c <= '9') v = v << 4 | (c - '0');
        else if (letter >= 'a' && letter <= 'f') v = v << 4 | (letter - 'a' + 10);
        else return -1;
    }
    return v;
}

static int nti_scan_unicode(nt_file *f, nti_utf8 *s) {               // after \u
    int c = nti_scan_hex4(f);
    if (c >= 0xd800 && c < 0xdc00) {
        if (f->look != '\\') return 0;
        nti_scan_next(f);
        if (f->look != 'u') return 0;
        nti_scan_next(f);
        int low = nti_scan_hex4(f);
        if (low < 0xdc00 || low > 0xdfff) return 0;
        c = 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00);
    }
    if (c < 0x80) return nti_utf8_put(s, c);
    int bytes = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
    int ok = nti_utf8_put(s, (0xf00 >> bytes & 0xff) | c >> (6 * (bytes - 1)));    // a lone low surrogate is refused there
    for (int i = bytes - 2; i >= 0; i--) ok = ok && nti_utf8_put(s, 0x80 | (c >> (6 * i) & 0x3f));
    return ok;
}

static int nti_scan_escape(nt_file *f, nti_utf8 *s) {                // after the backslash
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    int c = f->look;
    nti_scan_next(f);
    if (c == 'u') return nti_scan_unicode(f, s);
    for (int i = 0; from[i]; i++) {
        if (c == from[i]) return nti_utf8_put(s, to[i]);
    }
    return 0;
}

// A JSON string, or with quote ' one of Python (whose escapes are not needed and refused).
static int nti_scan_string(nt_file *f, int quote, nti_utf8 *s) {
    if (!nti_scan_expect(f, quote)) return 0;
    while (f->look != quote) {
        int c = f->look, ok;
        if (c >= 0) nti_scan_next(f);
        if (c == '\\' && quote == '"') ok = nti_scan_escape(f, s);
        else ok = c >= 0x20 && c != '\\' && nti_utf8_put(s, c);
        if (!ok) return nti_scan_bad(f, "bad character in a string");
    }
    if (s->left > 0) return nti_scan_bad(f, "bad character in a string");
    nti_scan_next(f);
    return 1;
}

static void nti_utf8_over(nti_utf8 *s, char *out, size_t size) {
    memset(s, 0, sizeof *s);
    s->out = out;
    s->size = size;
}

// [1, 2] of JSON, or with close ) a tuple of Python, where a comma may come last.
static int nti_scan_sizes(nt_file *f, int close, nt_shape *shape) {
    shape->rank = 0;
    if (nti_scan_is(f, close)) return 1;
    for (;;) {
        if (shape->rank == NT_MAX_RANK) return nti_scan_bad(f, "more than 8 axes");
        if (!nti_scan_integer(f, &shape->size[shape->rank])) return 0;
        shape->rank++;
        if (nti_scan_is(f, close)) return 1;
        if (!nti_scan_expect(f, ',')) return 0;
        if (close == ')' && nti_scan_is(f, close)) return 1;
    }
}

// ---- the reader: the table of items -----------------------------------------------------------------------------------

static void nti_name_begin(nt_file *f, nti_utf8 *s) {
    nti_utf8_over(s, f->items ? f->names + f->name_bytes : NULL, f->items ? f->name_capacity - f->name_bytes : 0);
}

// Adds an item with the name in s; while counting it is `none` that gets filled and forgotten.
static nti_file_item *nti_file_add(nt_file *f, nti_utf8 *s, nti_file_item *none) {
    nti_file_item *item = none;
    if (f->count == INT_MAX / 4 || s->length > SIZE_MAX / 4 - f->name_bytes) {
        nti_file_bad(f, "has too many arrays");
        return NULL;
    }
    if (f->items) {
        if (f->count >= f->capacity || s->length >= s->size) {
            nti_file_bad(f, "changed while it was read");
            return NULL;
        }
        item = &f->items[f->count];
        s->out[s->length] = 0;
    }
    memset(item, 0, sizeof *item);
    item->entry.name = s->out;
    item->entry.dtype = NT_DTYPE_COUNT;
    f->count++;
    f->name_bytes += s->length + 1;
    return item;
}

// Ends the counting pass: a table for just what was counted.
static int nti_file_table(nt_file *f) {
    size_t each = sizeof(nti_file_item) + sizeof(uint32_t), n = (size_t)f->count;
    if (n > (SIZE_MAX / 2 - f->name_bytes - 16) / each) return nti_file_bad(f, "has too many arrays");
    f->capacity = f->count;
    f->name_capacity = f->name_bytes + 16;                           // room for __metadata__, read where a name would go
    f->table_bytes = n * each + f->name_capacity;
    f->items = (nti_file_item *)nti_file_memory(f->tape, f->io.name, f->table_bytes);
    if (!f->items) return 0;
    f->order = (uint32_t *)(void *)(f->items + n);
    f->names = (char *)(f->order + n);
    f->count = 0;
    f->name_bytes = 0;
    return 1;
}

static int nti_by_place(const nti_file_item *a, const nti_file_item *b) {
    uint64_t x = a->offset != b->offset ? a->offset : a->length, y = a->offset != b->offset ? b->offset : b->length;
    return x < y ? -1 : x > y;
}

static int nti_by_name(const nti_file_item *a, const nti_file_item *b) { return strcmp(a->entry.name, b->entry.name); }

static void nti_sift(nt_file *f, int i, int n, int (*compare)(const nti_file_item *, const nti_file_item *)) {
    uint32_t moved = f->order[i];
    for (int child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && compare(&f->items[f->order[child]], &f->items[f->order[child + 1]]) < 0) child++;
        if (compare(&f->items[moved], &f->items[f->order[child]]) >= 0) break;
        f->order[i] = f->order[child];
    }
    f->order[i] = moved;
}

// A heap sort: no order of hostile names makes it slow.
static void nti_file_sort(nt_file *f, int (*compare)(const nti_file_item *, const nti_file_item *)) {
    for (int i = f->count / 2 - 1; i >= 0; i--) nti_sift(f, i, f->count, compare);
    for (int n = f->count - 1; n > 0; n--) {
        uint32_t largest = f->order[0];
        f->order[0] = f->order[n];
        f->order[n] = largest;
        nti_sift(f, 0, n, compare);
    }
}

// No two items share bytes or a name. With `whole` they also leave no byte unused from `start` to the end of the file.
static int nti_file_check(nt_file *f, uint64_t start, int whole) {
    if (f->count != f->capacity) return nti_file_bad(f, "changed while it was read");
    for (int i = 0; i < f->count; i++) f->order[i] = (uint32_t)i;
    nti_file_sort(f, nti_by_place);
    for (int i = 0; i < f->count; i++) {
        const nti_file_item *item = &f->items[f->order[i]];
        if (item->offset < start || (whole && item->offset > start)) return nti_file_bad(f, "its arrays overlap or leave gaps");
        start = item->offset + item->length;
    }
    if (whole && start != f->io.size) return nti_file_bad(f, "its arrays do not fill it");
    nti_file_sort(f, nti_by_name);
    for (int i = 1; i < f->count; i++) {
        const nti_file_item *item = &f->items[f->order[i]];
        if (nti_by_name(item, &f->items[f->order[i - 1]]) != 0) continue;
        nti_fail(f->tape, NT_ERROR_FILE, "%s: two arrays are named '%s'", f->io.name, item->entry.name);
        return 0;
    }
    return 1;
}

static uint64_t nti_shape_bytes(const nt_shape *shape, nt_dtype dtype) {
    return (uint64_t)nti_count(shape->rank, shape->size) * nt_dtype_size(dtype);
}

static int nti_file_fits(nti_file_item *item, uint64_t bytes) {      // 1 if these are the bytes of an array of the item's shape and dtype
    nt_file_entry *entry = &item->entry;
    entry->bytes = bytes;
    return nti_shape_valid(&entry->shape, entry->dtype) && nti_shape_bytes(&entry->shape, entry->dtype) == bytes;
}

// ---- the reader: safetensors ------------------------------------------------------------------------------------------

static int nti_safetensors_metadata(nt_file *f) {                    // strings to strings, checked and passed over
    nti_utf8 s;
    if (!nti_scan_expect(f, '{')) return 0;
    if (nti_scan_is(f, '}')) return 1;
    do {
        nti_utf8_over(&s, NULL, 0);
        if (!nti_scan_string(f, '"', &s) || !nti_scan_expect(f, ':')) return 0;
        nti_utf8_over(&s, NULL, 0);
        if (!nti_scan_string(f, '"', &s)) return 0;
    } while (nti_scan_is(f, ','));
    return nti_scan_expect(f, '}');
}

static int nti_safetensors_dtype(nt_file *f, nt_dtype *dtype) {
    char word[16];
    nti_utf8 s;
    nti_utf8_over(&s, word, sizeof word);
    if (!nti_scan_string(f, '"', &s)) return 0;
    for (int i = 0; i < (int)NT_DTYPE_COUNT; i++) {
        if (nti_utf8_is(&s, nti_file_dtypes[i][0])) *dtype = (nt_dtype)i;
    }
    return 1;                                                        // another one stays NT_DTYPE_COUNT
}

static int nti_safetensors_fields(nt_file *f, nti_file_item *item, nt_shape *offsets) {
    int seen = 0;
    if (!nti_scan_expect(f, '{')) return 0;
    do {
        char word[16];
        nti_utf8 s;
        nti_utf8_over(&s, word, sizeof word);
        if (!nti_scan_string(f, '"', &s) || !nti_scan_expect(f, ':')) return 0;
        int field = nti_utf8_is(&s, "dtype") ? 1 : nti_utf8_is(&s, "shape") ? 2 : nti_utf8_is(&s, "data_offsets") ? 4 : 0;
        if (field == 0 || (seen & field)) return nti_scan_bad(f, "expected dtype, shape and data_offsets");
        seen |= field;
        int ok = field == 1 ? nti_safetensors_dtype(f, &item->entry.dtype)
                            : nti_scan_expect(f, '[') && nti_scan_sizes(f, ']', field == 2 ? &item->entry.shape : offsets);
        if (!ok) return 0;
    } while (nti_scan_is(f, ','));
    if (seen != 7 || offsets->rank != 2) return nti_scan_bad(f, "expected dtype, shape and data_offsets");
    return nti_scan_expect(f, '}');
}

static int nti_safetensors_item(nt_file *f, nti_file_item *item, uint64_t start) {
    nt_shape offsets = { 0, { 0 } };
    if (!nti_safetensors_fields(f, item, &offsets)) return 0;
    uint64_t from = (uint64_t)offsets.size[0], to = (uint64_t)offsets.size[1];
    if (from > to || to > f->io.size - start) return nti_scan_bad(f, "data_offsets outside of the file");
    item->offset = start + from;
    item->length = to - from;
    if (item->entry.dtype == NT_DTYPE_COUNT) return 1;
    item->swapped = nt_dtype_size(item->entry.dtype) > 1 && nti_big_endian();
    if (!nti_file_fits(item, item->length)) return nti_scan_bad(f, "data_offsets that do not fit the shape");
    return 1;
}

static int nti_safetensors_pass(nt_file *f, uint64_t start) {
    int metadata = 0;
    nti_raw_begin(f, 8, start);
    nti_scan_begin(f, start - 8);
    if (!nti_scan_expect(f, '{')) return 0;
    if (nti_scan_is(f, '}')) return nti_scan_end(f);
    do {
        char head[13];
        nti_utf8 s;
        nti_file_item none;
        nti_scan_space(f);
        nti_name_begin(f, &s);
        if (!f->items) nti_utf8_over(&s, head, sizeof head);
        if (!nti_scan_string(f, '"', &s) || !nti_scan_expect(f, ':')) return 0;
        if (nti_utf8_is(&s, "__metadata__")) {
            if (metadata++) return nti_scan_bad(f, "a second __metadata__");
            if (!nti_safetensors_metadata(f)) return 0;
            continue;
        }
        nti_file_item *item = nti_file_add(f, &s, &none);
        if (!item || !nti_safetensors_item(f, item, start)) return 0;
    } while (nti_scan_is(f, ','));
    return nti_scan_expect(f, '}') && nti_scan_end(f);
}

static int nti_safetensors_open(nt_file *f, uint64_t length) {
    if (f->io.size < 8 || length < 2 || length > NTI_HEADER_MAX || length > f->io.size - 8) {
        return nti_file_bad(f, "is no safetensors, .npy or .npz file");
    }
    uint64_t start = 8 + length;
    return nti_safetensors_pass(f, start) && nti_file_table(f) && nti_safetensors_pass(f, start) && nti_file_check(f, start, 1);
}

// ---- the reader: .npy -------------------------------------------------------------------------------------------------

static void nti_npy_descr(nti_file_item *item, const char *descr) {  // such as <f4; another one leaves the item unreadable
    int order = descr[0];
    for (int i = 0; i < (int)NT_DTYPE_COUNT; i++) {
        const char *code = nti_file_dtypes[i][1];
        if (memcmp(descr + 1, code, 2) != 0) continue;
        if (order != '<' && order != '>' && (order != '|' || code[1] != '1')) return;
        item->entry.dtype = (nt_dtype)i;
        item->swapped = code[1] != '1' && (order == '>') != nti_big_endian();
    }
}

static int nti_npy_field(nt_file *f, nti_file_item *item, int field) {
    char word[8];
    nti_utf8 s;
    nti_utf8_over(&s, word, sizeof word);
    if (field == 4) return nti_scan_expect(f, '(') && nti_scan_sizes(f, ')', &item->entry.shape);
    if (field == 1) {
        if (!nti_scan_string(f, '\'', &s)) return 0;
        if (s.length == 3) nti_npy_descr(item, word);
        return 1;
    }
    for (nti_scan_space(f); (f->look | 32) >= 'a' && (f->look | 32) <= 'z'; nti_scan_next(f)) nti_utf8_put(&s, f->look);
    if (!nti_utf8_is(&s, "True") && !nti_utf8_is(&s, "False")) return nti_scan_bad(f, "expected True or False");
    item->fortran = s.length == 4;
    return 1;
}

// The dictionary {'descr': '<f4', 'fortran_order': False, 'shape': (3, 4), }. 2: a dtype made of fields, the rest is passed over.
static int nti_npy_dictionary(nt_file *f, nti_file_item *item) {
    int seen = 0;
    if (!nti_scan_expect(f, '{')) return 0;
    while (!nti_scan_is(f, '}')) {
        char word[16];
        nti_utf8 s;
        nti_utf8_over(&s, word, sizeof word);
        if (seen && !nti_scan_expect(f, ',')) return 0;
        if (seen && nti_scan_is(f, '}')) break;
        if (!nti_scan_string(f, '\'', &s) || !nti_scan_expect(f, ':')) return 0;
        int field = nti_utf8_is(&s, "descr") ? 1 : nti_utf8_is(&s, "fortran_order") ? 2 : nti_utf8_is(&s, "shape") ? 4 : 0;
        if (field == 0 || (seen & field)) return nti_scan_bad(f, "expected descr, fortran_order and shape");
        seen |= field;
        nti_scan_space(f);
        if (field == 1 && f->look == '[') return 2;
        if (!nti_npy_field(f, item, field)) return 0;
    }
    if (seen != 7) return nti_scan_bad(f, "expected descr, fortran_order and shape");
    return nti_scan_end(f);
}

static int nti_npy_header(nt_file *f, nti_file_item *item) {
    unsigned char h[12];
    if (item->size < 12) return nti_file_bad(f, "ends too early");
    if (!nti_source_read(f, h, 10)) return 0;
    if (memcmp(h, "\x93NUMPY", 6) != 0 || h[6] < 1 || h[6] > 3) return nti_file_bad(f, "has no .npy header of version 1, 2 or 3");
    uint32_t start = h[6] == 1 ? 10 : 12;
    if (start == 12 && !nti_source_read(f, h + 10, 2)) return 0;
    uint64_t length = nti_get_le(h + 8, (int)start - 8);
    if (length > NTI_HEADER_MAX || length > item->size - start) return nti_file_bad(f, "has an .npy header longer than the file");
    item->header = start + (uint32_t)length;
    nti_scan_begin(f, length);
    int ok = nti_npy_dictionary(f, item);
    if (ok != 1 || item->entry.dtype == NT_DTYPE_COUNT) return ok;
    if (!nti_file_fits(item, item->size - item->header)) return nti_file_bad(f, "has a shape that does not fit its data");
    if (item->entry.shape.rank < 2) item->fortran = 0;
    return 1;
}

static int nti_npy_open(nt_file *f) {
    nti_file_item none, *item = &none;
    for (int pass = 0; pass < 2; pass++) {
        nti_utf8 s;
        if (pass == 1 && !nti_file_table(f)) return 0;
        nti_name_begin(f, &s);
        item = nti_file_add(f, &s, &none);
        if (!item) return 0;
    }
    item->length = item->size = f->io.size;
    return nti_source_begin(f, item, 0) && nti_npy_header(f, item) && nti_file_check(f, 0, 1);
}

// ---- the reader: zip --------------------------------------------------------------------------------------------------

static int nti_raw_at(nt_file *f, uint64_t offset, void *out, size_t bytes) {       // anywhere in the file
    if (offset > f->io.size || bytes > f->io.size - offset) return nti_file_bad(f, "ends too early");
    nti_raw_begin(f, offset, offset + bytes);
    return nti_raw_read(f, out, bytes);
}

typedef struct nti_zip { uint64_t from, to, count; } nti_zip;        // the central directory: where, and how many members

// The record at the end of the file (a comment may follow it), or its 64-bit form before it.
static int nti_zip_end(nt_file *f, nti_zip *zip) {
    unsigned char h[56];
    uint64_t size = f->io.size, at = size - 22, least = size > 65557 ? size - 65557 : 0;
    if (size < 22) return nti_file_bad(f, "ends too early");
    for (;; at--) {
        if (!nti_raw_at(f, at, h, 22)) return 0;
        if (nti_get_le(h, 4) == 0x06054b50 && nti_get_le(h + 20, 2) == size - 22 - at) break;
        if (at == least) return nti_file_bad(f, "has no zip directory; it is damaged or not whole");
    }
    if (nti_get_le(h + 4, 4) != 0) return nti_file_bad(f, "is a zip in several parts");
    zip->count = nti_get_le(h + 10, 2);
    zip->to = nti_get_le(h + 12, 4);
    zip->from = nti_get_le(h + 16, 4);
    if (zip->count == 0xffff || zip->to == 0xffffffff || zip->from == 0xffffffff) {
        if (at < 20 || !nti_raw_at(f, at - 20, h, 20)) return nti_file_bad(f, "has no zip64 directory");
        uint64_t end = nti_get_le(h + 8, 8);
        if (nti_get_le(h, 4) != 0x07064b50 || end > at || !nti_raw_at(f, end, h, 56) || nti_get_le(h, 4) != 0x06064b50) {
            return nti_file_bad(f, "has no zip64 directory");
        }
        zip->count = nti_get_le(h + 32, 8);
        zip->to = nti_get_le(h + 40, 8);
        zip->from = nti_get_le(h + 48, 8);
    }
    if (zip->from > at || zip->to > at - zip->from) return nti_file_bad(f, "has a zip directory outside of the file");
    zip->to += zip->from;
    return 1;
}

// Sizes and offset of a member that do not fit 32 bits stand in the extra field 1, in this order.
static int nti_zip_extra(nt_file *f, uint64_t extra, uint64_t *const *values) {
    unsigned char h[8];
    while (extra >= 4) {
        if (!nti_raw_read(f, h, 4)) return 0;
        uint64_t id = nti_get_le(h, 2), size = nti_get_le(h + 2, 2);
        extra -= 4;
        if (size > extra) return nti_file_bad(f, "has a damaged zip directory");
        extra -= size;
        for (int i = 0; i < 3 && id == 1; i++) {
            if (*values[i] != 0xffffffff || size < 8) continue;
            if (!nti_raw_read(f, h, 8)) return 0;
            *values[i] = nti_get_le(h, 8);
            size -= 8;
        }
        if (!nti_source_skip(f, size)) return 0;
    }
    return nti_source_skip(f, extra);
}

static int nti_zip_name(nt_file *f, nti_utf8 *s, uint64_t length, int *npy) {
    uint32_t tail = 0;
    nti_name_begin(f, s);
    for (uint64_t i = 0; i < length; i++) {
        unsigned char c;
        if (!nti_raw_read(f, &c, 1)) return 0;
        if (!nti_utf8_put(s, c)) return nti_file_bad(f, "has a name that is not UTF-8");
        tail = tail << 8 | c;
    }
    if (s->left > 0) return nti_file_bad(f, "has a name that is not UTF-8");
    *npy = length >= 4 && tail == 0x2e6e7079;                        // ".npy"
    if (*npy) s->length -= 4;
    return 1;
}

static int nti_zip_member(nt_file *f) {
    unsigned char h[46];
    nti_utf8 s;
    nti_file_item none;
    int npy = 0;
    if (!nti_raw_read(f, h, 46)) return 0;
    if (nti_get_le(h, 4) != 0x02014b50) return nti_file_bad(f, "has a damaged zip directory");
    if (!nti_zip_name(f, &s, nti_get_le(h + 28, 2), &npy)) return 0;
    nti_file_item *item = nti_file_add(f, &s, &none);
    if (!item) return 0;
    item->length = nti_get_le(h + 20, 4);
    item->size = nti_get_le(h + 24, 4);
    item->offset = nti_get_le(h + 42, 4);
    uint64_t *const values[3] = { &item->size, &item->length, &item->offset };
    if (!nti_zip_extra(f, nti_get_le(h + 30, 2), values) || !nti_source_skip(f, nti_get_le(h + 32, 2))) return 0;
    uint64_t encrypted = nti_get_le(h + 8, 2) & 1, method = nti_get_le(h + 10, 2);
    item->crc = (uint32_t)nti_get_le(h + 16, 4);
    item->checked = 1;
    if (encrypted || (method != 0 && method != 8)) return 1;         // listed, not readable
    item->deflated = method == 8;
    if (item->deflated ? item->size / 1032 > item->length : item->size != item->length) return nti_file_bad(f, "has a size that cannot be");
    item->npy = (unsigned char)npy;
    if (npy) return 1;
    item->entry.dtype = NT_U8;
    item->entry.bytes = item->size;
    item->entry.shape.rank = 1;
    item->entry.shape.size[0] = (int64_t)item->size;
    return 1;
}

static int nti_zip_pass(nt_file *f, const nti_zip *zip) {
    nti_raw_begin(f, zip->from, zip->to);
    for (uint64_t i = 0; i < zip->count; i++) {
        if (!nti_zip_member(f)) return 0;
    }
    return (f->at == f->end && f->next == f->filled) || nti_file_bad(f, "has a damaged zip directory");
}

// From the directory's entry to the data: past the local header, and what the .npy header says.
static int nti_zip_locate(nt_file *f, nti_file_item *item, const nti_zip *zip) {
    unsigned char h[30];
    if (item->offset > zip->from || !nti_raw_at(f, item->offset, h, 30)) return nti_file_bad(f, "has an array outside of the file");
    if (nti_get_le(h, 4) != 0x04034b50) return nti_file_bad(f, "has a damaged zip directory");
    item->offset += 30 + nti_get_le(h + 26, 2) + nti_get_le(h + 28, 2);
    if (item->offset > zip->from || item->length > zip->from - item->offset) return nti_file_bad(f, "has an array outside of the file");
    if (!item->npy) return 1;
    int ok = nti_source_begin(f, item, 0) && nti_npy_header(f, item);
    nti_source_end(f);
    return ok;
}

static int nti_zip_open(nt_file *f) {
    nti_zip zip = { 0, 0, 0 };
    if (!nti_zip_end(f, &zip) || !nti_zip_pass(f, &zip) || !nti_file_table(f) || !nti_zip_pass(f, &zip)) return 0;
    for (int i = 0; i < f->count; i++) {
        if (!nti_zip_locate(f, &f->items[i], &zip)) return 0;
    }
    return nti_file_check(f, 0, 0);
}

// ---- the reader: public calls -----------------------------------------------------------------------------------------

static int nti_file_open_any(nt_file *f) {
    unsigned char h[8];
    if (f->io.size < 8) return nti_file_bad(f, "is no safetensors, .npy or .npz file");
    if (!nti_raw_at(f, 0, h, 8)) return 0;
    if (memcmp(h, "\x93NUMPY", 6) == 0) return nti_npy_open(f);
    if (memcmp(h, "PK\3\4", 4) == 0 || memcmp(h, "PK\5\6", 4) == 0) return nti_zip_open(f);
    return nti_safetensors_open(f, nti_get_le(h, 8));
}

NT_API nt_file *nt_file_open_io(nt_tape *t, nt_io io) {
    if (!io.name) io.name = "the file";
    nt_file *f = t && io.read ? (nt_file *)nti_file_memory(t, io.name, sizeof(nt_file)) : NULL;
    if (!f) {
        if (t && !io.read) nti_fail(t, NT_ERROR_ARGUMENT, "%s: cannot be read", io.name);
        nti_io_close(&io);
        return NULL;
    }
    memset(f, 0, sizeof *f);
    f->tape = t;
    f->io = io;
    if (!nti_file_open_any(f)) {
        nt_file_close(f);
        return NULL;
    }
    f->io.name = "the file";                                         // the caller's name may go away now
    return f;
}

#ifndef NTTRAIN_NO_STDIO
NT_API nt_file *nt_file_open(nt_tape *t, const char *path) { return nt_file_open_io(t, nt_io_open(t, path, "rb")); }
#endif

NT_API void nt_file_close(nt_file *file) {
    if (!file) return;
    nti_source_end(file);
    nti_io_close(&file->io);
    if (file->items) nti_file_free(file->tape, file->items, file->table_bytes);
    nti_file_free(file->tape, file, sizeof(nt_file));
}

NT_API int nt_file_count(const nt_file *file) { return file ? file->count : 0; }

NT_API const nt_file_entry *nt_file_entry_at(const nt_file *file, int i) {
    return file && i >= 0 && i < file->count ? &file->items[i].entry : NULL;
}

NT_API const nt_file_entry *nt_file_find(const nt_file *file, const char *name) {
    int low = 0, high = nt_file_count(file);
    while (name && low < high) {
        int middle = low + (high - low) / 2;
        const nt_file_entry *entry = &file->items[file->order[middle]].entry;
        int order = strcmp(name, entry->name);
        if (order == 0) return entry;
        if (order < 0) high = middle;
        else low = middle + 1;
    }
    return NULL;
}

// Bytes from the file become values: the host's byte order, bools 0 or 1.
static void nti_elements_settle(const nti_file_item *item, void *data, size_t n) {
    unsigned char *p = (unsigned char *)data;
    if (item->swapped) nti_swap_bytes(data, n, nt_dtype_size(item->entry.dtype));
    for (size_t i = 0; i < n && item->entry.dtype == NT_BOOL; i++) p[i] = p[i] != 0;
}

// Row-major elements that need a conversion, chunk by chunk; or Fortran order, where each goes to its place in `out`.
static int nti_elements_convert(nt_file *f, const nti_file_item *item, unsigned char *out, size_t count, nt_dtype as) {
    const nt_shape *shape = &item->entry.shape;
    size_t size = nt_dtype_size(item->entry.dtype), to = nt_dtype_size(as), place = 0;
    size_t index[NT_MAX_RANK] = { 0 }, stride[NT_MAX_RANK] = { 0 };
    for (int i = shape->rank - 1; i >= 0; i--) stride[i] = i == shape->rank - 1 ? to : stride[i + 1] * (size_t)shape->size[i + 1];
    while (count > 0) {
        size_t n = count < 128 ? count : 128;
        const unsigned char *from = (const unsigned char *)f->cast;
        if (!nti_source_read(f, f->chunk, n * size)) return 0;
        nti_elements_settle(item, f->chunk, n);
        nti_cast(as, item->fortran ? (void *)f->cast : (void *)out, item->entry.dtype, f->chunk, n);
        count -= n;
        if (!item->fortran) out += n * to;
        for (; item->fortran && n > 0; n--, from += to) {
            memcpy(out + place, from, to);
            for (int i = 0; i < shape->rank; i++) {
                place += stride[i];
                if (++index[i] < (size_t)shape->size[i]) break;
                place -= stride[i] * index[i];
                index[i] = 0;
            }
        }
    }
    return 1;
}

static int nti_elements_read(nt_file *f, const nti_file_item *item, int64_t first, int64_t count, void *out, nt_dtype as) {
    size_t size = nt_dtype_size(item->entry.dtype), n = (size_t)count;
    uint64_t skip = item->header + (uint64_t)first * size;
    int jump = !item->deflated && ((uint64_t)count * size != item->entry.bytes || !item->checked);   // a CRC needs all bytes
    if (!nti_source_begin(f, item, jump ? skip : 0)) return 0;
    if (!jump && !nti_source_skip(f, skip)) return 0;
    if (item->fortran || as != item->entry.dtype) {
        if (!nti_elements_convert(f, item, (unsigned char *)out, n, as)) return 0;
    } else {
        if (!nti_source_read(f, out, n * size)) return 0;
        nti_elements_settle(item, out, n);
    }
    if (jump || !item->checked || (uint64_t)(first + count) * size != item->entry.bytes || f->crc == item->crc) return 1;
    return nti_file_bad(f, "has data that do not match their CRC");
}

static nt_status nti_file_refuse(nt_file *f, nt_status status, const nt_file_entry *entry, const char *why) {
    return nti_fail(f->tape, status, "nt_file_read: '%s' %s", entry->name, why);
}

NT_API nt_status nt_file_read_range(nt_file *file, const nt_file_entry *entry, int64_t first, int64_t count, void *buffer, nt_dtype as) {
    if (!file) return NT_ERROR_ARGUMENT;
    if (!entry) return nti_fail(file->tape, NT_ERROR_ARGUMENT, "nt_file_read: the entry is NULL; nt_file_find gives that for a name that %s does not have", file->io.name);
    if (nt_dtype_size(entry->dtype) == 0) return nti_file_refuse(file, NT_ERROR_DTYPE, entry, "has a dtype that cannot be read");
    if (nt_dtype_size(as) == 0) return nti_file_refuse(file, NT_ERROR_DTYPE, entry, "cannot be read as this dtype");
    const nti_file_item *item = (const nti_file_item *)(const void *)entry;
    size_t size = nt_dtype_size(entry->dtype), to = nt_dtype_size(as);
    int64_t n = (int64_t)(entry->bytes / size);
    if (first < 0 || count < 0 || count > n || first > n - count || (!buffer && count > 0)) {
        return nti_file_refuse(file, NT_ERROR_ARGUMENT, entry, "has no such range, or there is no buffer for it");
    }
    if (item->fortran && count != n) return nti_file_refuse(file, NT_ERROR_ARGUMENT, entry, "is in Fortran order: read it whole");
    if ((uint64_t)count > SIZE_MAX / (to > size ? to : size)) return nti_file_refuse(file, NT_ERROR_MEMORY, entry, "is larger than memory");
    file->io.name = entry->name;
    int ok = nti_elements_read(file, item, first, count, buffer, as);
    file->io.name = "the file";
    int no_memory = item->deflated && !file->inflate;
    nti_source_end(file);
    return ok ? NT_OK : no_memory ? NT_ERROR_MEMORY : NT_ERROR_FILE;
}

NT_API nt_status nt_file_read(nt_file *file, const nt_file_entry *entry, void *buffer, nt_dtype as) {
    int64_t n = entry && nt_dtype_size(entry->dtype) > 0 ? (int64_t)(entry->bytes / nt_dtype_size(entry->dtype)) : 0;
    return nt_file_read_range(file, entry, 0, n, buffer, as);
}

NT_API const void *nt_file_in_place(const nt_file *file, const nt_file_entry *entry) {
    const nti_file_item *item = (const nti_file_item *)(const void *)entry;
    if (!file || !entry || file->io.read != nti_memory_read || nt_dtype_size(entry->dtype) == 0) return NULL;
    if (item->deflated || item->swapped || item->fortran) return NULL;
    const unsigned char *p = (const unsigned char *)file->io.user + (size_t)(item->offset + item->header);
    return (uintptr_t)p % nt_dtype_size(entry->dtype) == 0 ? p : NULL;
}

// ---- writers ----------------------------------------------------------------------------------------------------------

typedef struct nti_writer {
    nt_io io;
    uint64_t at;                         // bytes so far
    uint32_t crc;                        // of them, if measuring
    int measure, failed;                 // measure: nothing is written
} nti_writer;

static void nti_out(nti_writer *w, const void *data, size_t bytes) {
    if (bytes == 0 || w->failed) return;
    if (w->measure) w->crc = nti_crc32(w->crc, data, bytes);
    else w->failed = !w->io.write(w->io.user, data, bytes);
    w->at += bytes;
}

static void nti_out_text(nti_writer *w, const char *text) { nti_out(w, text, strlen(text)); }

static void nti_out_le(nti_writer *w, uint64_t v, int bytes) {
    unsigned char h[8];
    for (int i = 0; i < bytes; i++) h[i] = (unsigned char)(v >> (8 * i) & 0xff);
    nti_out(w, h, (size_t)bytes);
}

static void nti_out_number(nti_writer *w, uint64_t v) {
    char digits[20];
    size_t i = sizeof digits;
    do digits[--i] = (char)('0' + v % 10);
    while ((v /= 10) > 0);
    nti_out(w, digits + i, sizeof digits - i);
}

static void nti_out_pad(nti_writer *w, size_t n) {
    while (n-- > 0) nti_out(w, " ", 1);
}

static void nti_out_elements(nti_writer *w, const nt_file_data *a) {
    size_t size = nt_dtype_size(a->dtype), n = (size_t)nti_count(a->shape.rank, a->shape.size);
    const unsigned char *p = (const unsigned char *)a->data;
    unsigned char swapped[512];
    if (!nti_big_endian()) {
        nti_out(w, p, n * size);
        return;
    }
    for (size_t part; n > 0; n -= part, p += part * size) {
        part = n < sizeof swapped / size ? n : sizeof swapped / size;
        memcpy(swapped, p, part * size);
        nti_swap_bytes(swapped, part, size);
        nti_out(w, swapped, part * size);
    }
}

static const char *nti_name_fault(const nt_file_data *entries, int i) {
    const char *name = entries[i].name;
    nti_utf8 s;
    nti_utf8_over(&s, NULL, 0);
    if (!name) return "has no name";
    for (const char *c = name; *c; c++) {
        if (!nti_utf8_put(&s, (unsigned char)*c)) return "has a name that is not UTF-8";
    }
    if (s.left > 0) return "has a name that is not UTF-8";
    if (s.length > 65000 || strcmp(name, "__metadata__") == 0) return "has a name that is too long or reserved";
    for (int k = 0; k < i; k++) {
        if (strcmp(entries[k].name, name) == 0) return "has the name of an earlier one";
    }
    return NULL;
}

// The first fault of what shall be written, and who made it; everything is checked before the first byte goes out.
static nt_status nti_writer_check(nt_tape *t, const nt_io *io, int count, const nt_file_data *entries, int npy) {
    if (!io->write) return nti_fail(t, NT_ERROR_ARGUMENT, "%s: cannot be written", io->name);
    if (count < 0 || (count > 0 && !entries)) return nti_fail(t, NT_ERROR_ARGUMENT, "%s: no arrays to write", io->name);
    for (int i = 0; i < count; i++) {
        const nt_file_data *a = &entries[i];
        const char *fault = nti_name_fault(entries, i);
        nt_status status = NT_ERROR_ARGUMENT;
        if (!fault && (nt_dtype_size(a->dtype) == 0 || nti_file_dtypes[a->dtype][npy][0] == 0)) {
            status = NT_ERROR_DTYPE;
            fault = npy ? "has a dtype that .npy does not know (write bf16 as f32)" : "has no dtype";
        } else if (!fault && !nti_shape_valid(&a->shape, a->dtype)) {
            status = NT_ERROR_SHAPE;
            fault = "has a shape that cannot be";
        } else if (!fault && !a->data && nti_shape_bytes(&a->shape, a->dtype) > 0) {
            fault = "has no data";
        }
        if (fault) return nti_fail(t, status, "%s: array %d, '%s', %s", io->name, i, a->name ? a->name : "", fault);
    }
    return NT_OK;
}

static nt_status nti_writer_begin(nti_writer *w, nt_tape *t, nt_io io, int count, const nt_file_data *entries, int npy) {
    memset(w, 0, sizeof *w);
    w->io = io;
    if (!w->io.name) w->io.name = "the file";
    nt_status status = t ? nti_writer_check(t, &w->io, count, entries, npy) : NT_ERROR_ARGUMENT;
    if (status != NT_OK) nti_io_close(&w->io);
    return status;
}

static nt_status nti_writer_end(nti_writer *w, nt_tape *t, nt_status status) {
    int closed = nti_io_close(&w->io);
    if (status != NT_OK || (!w->failed && closed)) return status;
    return nti_fail(t, NT_ERROR_FILE, "%s: could not be written whole, after %lld bytes", w->io.name, (long long)w->at);
}

static void nti_out_json(nti_writer *w, const char *text) {
    static const char hex[] = "0123456789abcdef";
    nti_out(w, "\"", 1);
    for (; *text; text++) {
        unsigned char c = (unsigned char)*text;
        if (c < 0x20) {
            nti_out(w, "\\u00", 4);
            nti_out(w, &hex[c >> 4], 1);
            nti_out(w, &hex[c & 15], 1);
        } else {
            if (c == '"' || c == '\\') nti_out(w, "\\", 1);
            nti_out(w, text, 1);
        }
    }
    nti_out(w, "\"", 1);
}

static void nti_out_sizes(nti_writer *w, const nt_shape *shape) {
    for (int i = 0; i < shape->rank; i++) {
        if (i > 0) nti_out_text(w, ", ");
        nti_out_number(w, (uint64_t)shape->size[i]);
    }
}

// Larger elements first, so that each array is aligned for its own.
static void nti_out_safetensors_header(nti_writer *w, int count, const nt_file_data *entries) {
    uint64_t offset = 0;
    const char *before = "{";
    for (unsigned size = 8; size > 0; size >>= 1) {
        for (int i = 0; i < count; i++) {
            const nt_file_data *a = &entries[i];
            if (nt_dtype_size(a->dtype) != size) continue;
            nti_out_text(w, before);
            before = ",";
            nti_out_json(w, a->name);
            nti_out_text(w, ":{\"dtype\":\"");
            nti_out_text(w, nti_file_dtypes[a->dtype][0]);
            nti_out_text(w, "\",\"shape\":[");
            nti_out_sizes(w, &a->shape);
            nti_out_text(w, "],\"data_offsets\":[");
            nti_out_number(w, offset);
            offset += nti_shape_bytes(&a->shape, a->dtype);
            nti_out_text(w, ",");
            nti_out_number(w, offset);
            nti_out_text(w, "]}");
        }
    }
    nti_out_text(w, before[0] == '{' ? "{}" : "}");
}

NT_API nt_status nt_safetensors_write(nt_tape *t, nt_io io, int count, const nt_file_data *entries) {
    nti_writer w, measure;
    nt_status status = nti_writer_begin(&w, t, io, count, entries, 0);
    if (status != NT_OK) return status;
    memset(&measure, 0, sizeof measure);
    measure.measure = 1;
    nti_out_safetensors_header(&measure, count, entries);
    size_t pad = (size_t)((0 - measure.at - 8) & 63);
    if (measure.at + pad > NTI_HEADER_MAX) {
        return nti_writer_end(&w, t, nti_fail(t, NT_ERROR_FILE, "%s: the header would pass 100 MB", w.io.name));
    }
    nti_out_le(&w, measure.at + pad, 8);
    nti_out_safetensors_header(&w, count, entries);
    nti_out_pad(&w, pad);
    for (unsigned size = 8; size > 0; size >>= 1) {
        for (int i = 0; i < count; i++) {
            if (nt_dtype_size(entries[i].dtype) == size) nti_out_elements(&w, &entries[i]);
        }
    }
    return nti_writer_end(&w, t, NT_OK);
}

static void nti_out_npy_dictionary(nti_writer *w, const nt_file_data *a) {
    nti_out_text(w, nt_dtype_size(a->dtype) == 1 ? "{'descr': '|" : "{'descr': '<");
    nti_out_text(w, nti_file_dtypes[a->dtype][1]);
    nti_out_text(w, "', 'fortran_order': False, 'shape': (");
    nti_out_sizes(w, &a->shape);
    nti_out_text(w, a->shape.rank == 1 ? ",), }" : "), }");
}

static void nti_out_npy(nti_writer *w, const nt_file_data *a) {
    nti_writer measure;
    memset(&measure, 0, sizeof measure);
    measure.measure = 1;
    nti_out_npy_dictionary(&measure, a);
    size_t pad = (size_t)((0 - measure.at - 11) & 63);               // data at a multiple of 64, as numpy does
    nti_out(w, "\x93NUMPY\1\0", 8);
    nti_out_le(w, measure.at + pad + 1, 2);
    nti_out_npy_dictionary(w, a);
    nti_out_pad(w, pad);
    nti_out(w, "\n", 1);
    nti_out_elements(w, a);
}

NT_API nt_status nt_npy_write(nt_tape *t, nt_io io, nt_dtype dtype, nt_shape shape, const void *data) {
    nti_writer w;
    nt_file_data a;
    a.name = "";
    a.dtype = dtype;
    a.shape = shape;
    a.data = data;
    nt_status status = nti_writer_begin(&w, t, io, 1, &a, 1);
    if (status != NT_OK) return status;
    nti_out_npy(&w, &a);
    return nti_writer_end(&w, t, NT_OK);
}

#ifndef NTI_ZIP64_FROM
#define NTI_ZIP64_FROM 0xffffffffu       // sizes and offsets from here on take zip64 fields; tests lower it
#endif

typedef struct nti_zip_part { uint64_t size, offset; uint32_t crc; } nti_zip_part;

// A record of a zip: values and how many bytes each takes.
static void nti_out_record(nti_writer *w, const char *sizes, const uint64_t *values) {
    for (int i = 0; sizes[i]; i++) nti_out_le(w, values[i], sizes[i] - '0');
}

// The header of a member, before its data or (central) in the directory, which adds a few fields.
static void nti_out_zip_header(nti_writer *w, const nti_zip_part *part, const char *name, int central) {
    int big = part->size >= NTI_ZIP64_FROM || (central && part->offset >= NTI_ZIP64_FROM);
    uint64_t size = big ? 0xffffffff : part->size, offset = big ? 0xffffffff : part->offset, extra = big ? (central ? 24 : 16) : 0;
    uint64_t signature = central ? 0x02014b50 : 0x04034b50, version = big ? 45 : 20;
    const uint64_t start[2] = { signature, 45 };                                        // made by version 4.5, in the directory only
    const uint64_t fields[9] = { version, 0x0800, 0,                                    // version needed, names are UTF-8, stored
                                 0x00210000,                                            // 1980-01-01: the same arrays give the same bytes
                                 part->crc, size, size, strlen(name) + 4, big ? extra + 4 : 0 };
    const uint64_t more[3] = { 0, 0, offset };                                          // no comment, first disk, no attributes
    const uint64_t wide[5] = { 1, extra, part->size, part->size, part->offset };
    nti_out_record(w, central ? "42" : "4", start);
    nti_out_record(w, "222444422", fields);
    if (central) nti_out_record(w, "824", more);
    nti_out_text(w, name);
    nti_out_text(w, ".npy");
    if (big) nti_out_record(w, central ? "22888" : "2288", wide);
}

static void nti_out_zip_end(nti_writer *w, uint64_t from, uint64_t count) {
    uint64_t to = w->at, bytes = to - from;
    int big = count >= 0xffff || to >= NTI_ZIP64_FROM;
    uint64_t shown = big ? 0xffff : count;
    const uint64_t wide[9] = { 0x06064b50, 44, 45 | 45 << 16, 0, count, count, bytes, from, 0x07064b50 };
    const uint64_t locator[3] = { 0, to, 1 };
    const uint64_t end[7] = { 0x06054b50, 0, shown, shown, big ? 0xffffffff : bytes, big ? 0xffffffff : from, 0 };
    if (big) nti_out_record(w, "484888884", wide);
    if (big) nti_out_record(w, "484", locator);
    nti_out_record(w, "4422442", end);
}

NT_API nt_status nt_npz_write(nt_tape *t, nt_io io, int count, const nt_file_data *entries) {
    nti_writer w;
    nt_status status = nti_writer_begin(&w, t, io, count, entries, 1);
    if (status != NT_OK) return status;
    size_t bytes = ((size_t)count + 1) * sizeof(nti_zip_part);
    nti_zip_part *parts = (nti_zip_part *)nti_file_memory(t, w.io.name, bytes);
    if (!parts) return nti_writer_end(&w, t, NT_ERROR_MEMORY);
    for (int i = 0; i < count; i++) {
        nti_writer measure;
        memset(&measure, 0, sizeof measure);
        measure.measure = 1;
        nti_out_npy(&measure, &entries[i]);
        parts[i].size = measure.at;
        parts[i].crc = measure.crc;
        parts[i].offset = w.at;
        nti_out_zip_header(&w, &parts[i], entries[i].name, 0);
        nti_out_npy(&w, &entries[i]);
    }
    uint64_t from = w.at;
    for (int i = 0; i < count; i++) nti_out_zip_header(&w, &parts[i], entries[i].name, 1);
    nti_out_zip_end(&w, from, (uint64_t)count);
    nti_file_free(t, parts, bytes);
    return nti_writer_end(&w, t, NT_OK);
}

// ---- parameters by name ---------------------------------------------------------------------------------------------

static nt_status nti_load_matches(nt_file *file, const nt_tensor *x) {
    const nt_file_entry *e = x && x->name ? nt_file_find(file, x->name) : NULL;
    nt_shape shape = nt_shape_of(x);
    if (!x) return NT_ERROR_ARGUMENT;
    if (nti_leaf_free(x, "nt_file_load", NTI_USED) != NT_OK) return NT_BUSY;
    if (!x->name || !nt_data(x) || nti_n(x)->frozen)
        return nti_fail(file->tape, NT_ERROR_ARGUMENT, "nt_file_load: %v is not a variable with a name that can be written", x);
    if (!e) return nti_fail(file->tape, NT_ERROR_FILE, "nt_file_load: the file has no array '%s'", x->name);
    if (memcmp(&e->shape, &shape, sizeof shape))
        return nti_fail(file->tape, NT_ERROR_SHAPE, "nt_file_load: '%s' is %s%S in the file, but %v is to be filled", x->name,
                        nt_dtype_name(e->dtype), &e->shape, x);
    return NT_OK;
}

NT_API nt_status nt_file_load(nt_file *file, nt_params params) {
    nt_status status = file && (!params.count || params.items) ? NT_OK : NT_ERROR_ARGUMENT;
    for (int k = 0; k < params.count && status == NT_OK; k++) status = nti_load_matches(file, params.items[k]);
    for (int k = 0; k < params.count && status == NT_OK; k++)
        status = nt_file_read(file, nt_file_find(file, params.items[k]->name), nt_data(params.items[k]), params.items[k]->dtype);
    return status;
}

typedef nt_status (*nti_writer_fn)(nt_tape *t, nt_io io, int count, const nt_file_data *entries);

static nt_status nti_save(nt_tape *t, nt_io io, nt_params params, nti_writer_fn write) {
    size_t bytes = params.count > 0 && params.items ? (size_t)params.count * sizeof(nt_file_data) : 0;
    nt_status status = NT_OK;
    nt_file_data *list = t ? (nt_file_data *)nti_file_memory(t, "saving parameters", bytes + 1) : NULL;
    if (!list) { // the writer closes the io, whatever it is given
        write(t, io, -1, NULL);
        return t ? NT_ERROR_MEMORY : NT_ERROR_ARGUMENT;
    }
    for (int k = 0; k < params.count && bytes; k++) {
        const nt_tensor *x = params.items[k];
        list[k].name = x ? x->name : NULL, list[k].dtype = x ? x->dtype : NT_F32, list[k].shape = nt_shape_of(x), list[k].data = nt_data(x);
        if (x && status == NT_OK) status = nti_leaf_free(x, "saving parameters", NTI_ASSIGNING);
    }
    nt_status written = write(t, io, bytes && status == NT_OK ? params.count : -1, list);
    nti_file_free(t, list, bytes + 1);
    return status == NT_OK ? written : status;
}

NT_API nt_status nt_npz_save(nt_tape *t, nt_io io, nt_params params) { return nti_save(t, io, params, nt_npz_write); }
NT_API nt_status nt_safetensors_save(nt_tape *t, nt_io io, nt_params params) { return nti_save(t, io, params, nt_safetensors_write); }
#endif // NTTRAIN_NO_FILES
#define NTI_IMPLEMENTED
#undef NTI_IMPLEMENT
#endif // NTI_IMPLEMENT && !NTI_PASS

// ---------------------------------------------------------------------------------------------------------------------
// Licence. This file is in the public domain; where that is not possible, it is licensed under MIT-0, at your choice.
//
// MIT No Attribution: permission is hereby granted, free of charge, to any person obtaining a copy of this software and
// associated documentation files (the "Software"), to deal in the Software without restriction, including without
// limitation the rights to use, copy, modify, merge, publish, distribute, sublicense, and/or sell copies of the Software,
// and to permit persons to whom the Software is furnished to do so.
//
// The software is provided "as is", without warranty of any kind, express or implied, including but not limited to the
// warranties of merchantability, fitness for a particular purpose and noninfringement. In no event shall the authors or
// copyright holders be liable for any claim, damages or other liability, whether in an action of contract, tort or
// otherwise, arising from, out of or in connection with the software or the use or other dealings in the software.
// ---------------------------------------------------------------------------------------------------------------------
