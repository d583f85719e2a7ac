// Transforms that record again: substitution, linearization, batches, Jacobians. Values against loops, finite differences and
// formulas written down by hand; compiled programs are counted to see what is shared and what is kept. At the end thousands of
// random chains of transforms; one that fails prints its seed, and build/test_transforms SEED runs that one.
#ifndef NTTRAIN_ISA_BASELINE
#define NTTRAIN_ISA_BASELINE // compiles in a third of the time; test_ops sees the other instruction sets
#define NTTRAIN_NO_KERNELS
#endif
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "tap.h"
#include <stdlib.h>

static int near(double a, double b, double tolerance) { return fabs(a - b) <= tolerance * (1 + fabs(b)); }

static nt_tensor *variable(nt_tape *t, nt_shape shape, double from, double speed) {
    double data[4096];
    int64_t n = nti_count(shape.rank, shape.size);
    for (int64_t k = 0; k < n; k++) data[k] = from + sin(speed * (double)(k + 1));
    return nt_variable(t, NT_F64, shape, data);
}

// The largest difference of the elements, relative to 1 + their size; a large number if the shapes differ.
static double difference(nt_tensor *a, nt_tensor *b) {
    double p[4096], q[4096], most = 0;
    if (!a || !b || !nti_same_shape(a, b) || nt_size(a) > 4096 || nt_eval(a, p) != NT_OK || nt_eval(b, q) != NT_OK) return HUGE_VAL;
    for (int64_t k = 0; k < nt_size(a); k++)
        if (!(fabs(p[k] - q[k]) / (1 + fabs(q[k])) <= most)) most = fabs(p[k] - q[k]) / (1 + fabs(q[k]));
    return most;
}

static int refused(nt_tape *t, int failed, nt_status status, const char *text) {
    const char *message = nt_error(t);
    int ok = failed && message && nt_error_status(t) == status && strstr(message, text);
    tap_ok(ok, "refused: %s", message ? message : "(no message)");
    nt_error_clear(t);
    return ok;
}

static int nodes(const nt_tape *t) {
    int n = 0;
    for (const nti_node *at = t->first; at; at = at->next) n++;
    return n;
}

// Instructions of a program that are this operation; -1: all.
static int count(const nt_program *p, int op) {
    int n = 0;
    for (int k = 0; p && k < p->instructions; k++) n += op < 0 || p->instruction[k].op == op;
    return p ? n : -1;
}

// ---------------------------------------------------------------------------------------------------------------------
// Substitution
// ---------------------------------------------------------------------------------------------------------------------
static void substitution(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = variable(t, NT_SHAPE(3, 4), 0, 1), *w = variable(t, NT_SHAPE(4, 2), 0, 2), *v = variable(t, NT_SHAPE(3, 4), 1, 3);
    nt_tensor *side = nt_exp(w), *h = nt_name(nt_sin(x), "hidden"), *y = nt_matmul(h, side), *z = nt_mul(y, nt_softmax(y, 1));
    int before = nodes(t);
    nt_tensor *again = nt_substitute(z, NT_LIST(x), NT_LIST(v));
    tap_is_int(nodes(t) - before, 4, "nodes recorded again: those between x and z");
    tap_ok(difference(again, nt_mul(nt_matmul(nt_sin(v), side), nt_softmax(nt_matmul(nt_sin(v), side), 1))) == 0, "the value on the replacement");
    const nti_node *inner = nti_n(again)->in[0];
    tap_ok(inner->in[1] == nti_n(side), "what does not depend on x is shared");
    tap_is_text(inner->in[0]->pub.name, "hidden", "a name goes along");
    tap_ok(nt_substitute(z, NT_LIST(v), NT_LIST(x)) == z, "without x in it: the same node");
    tap_ok(nt_substitute(x, NT_LIST(x), NT_LIST(v)) == v, "of x itself");
    // a value inside: what hangs on it, and nothing that comes by another way
    nt_tensor *both = nt_add(nt_square(h), nt_cos(x)), *swapped = nt_substitute(both, NT_LIST(h), NT_LIST(v));
    tap_ok(difference(swapped, nt_add(nt_square(v), nt_cos(x))) == 0, "of a value inside");
    // one replaced value computed from another
    nt_tensor *two = nt_substitute(both, NT_LIST(x, h), NT_LIST(h, x));
    tap_ok(difference(two, nt_add(nt_square(x), nt_cos(h))) == 0, "of two that depend on each other: both at once");
    nt_params many = nt_substitute_many(NT_LIST(z, side, x, y), NT_LIST(x), NT_LIST(v));
    tap_ok(many.count == 4 && many.items[1] == side && many.items[2] == v && nti_n(many.items[0])->in[0] == nti_n(many.items[3]), "of several outputs at once");
    nt_tensor *key = nt_key_tensor(t, nt_key(3)), *drop = nt_dropout(x, key, 0.5, (nt_axes){ 0, { 0 } });
    tap_ok(difference(nt_substitute(drop, NT_LIST(x), NT_LIST(v)), nt_dropout(v, key, 0.5, (nt_axes){ 0, { 0 } })) == 0, "dropout keeps its key");
    nt_tape *other = nt_tape_open(NULL);
    nt_tensor *foreign = variable(other, NT_SHAPE(3, 4), 0, 1);
    refused(t, !nt_substitute(z, NT_LIST(x), NT_LIST(w)), NT_ERROR_SHAPE, "nt_substitute");
    refused(t, !nt_substitute(z, NT_LIST(x), NT_LIST(nt_cast(v, NT_F32))), NT_ERROR_SHAPE, "replacement 0, f32[3,4], does not fit f64[3,4]");
    refused(t, !nt_substitute(z, NT_LIST(x, w), NT_LIST(v)), NT_ERROR_ARGUMENT, "1 replacement for 2 values");
    refused(t, !nt_substitute(z, NT_LIST(x, x), NT_LIST(v, v)), NT_ERROR_ARGUMENT, "named twice");
    refused(t, !nt_substitute(z, NT_LIST(x), NT_LIST(foreign)), NT_ERROR_ARGUMENT, "another tape");
    refused(t, !nt_substitute(z, NT_LIST(foreign), NT_LIST(v)), NT_ERROR_ARGUMENT, "another tape");
    tap_ok(!nt_substitute(NULL, NT_LIST(x), NT_LIST(v)) && !nt_substitute(z, NT_LIST(x), NT_LIST(NULL)) && !nt_error(t), "NULL gives NULL quietly");
    nt_tensor *assigned = nt_assign(x, v);
    nt_params frozen = nt_freeze(t, NT_LIST(x), NULL);
    refused(t, !nt_substitute(assigned, NT_LIST(x), frozen), NT_ERROR_ARGUMENT, "frozen");
    nt_tape_close(other), nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Linearization
// ---------------------------------------------------------------------------------------------------------------------
typedef struct net { nt_tape *t; nt_tensor *x, *w1, *b1, *w2, *hidden, *y; nt_params now, before; } net;

static nt_tensor *net_of(net *n, nt_tensor *w1, nt_tensor *b1, nt_tensor *w2) {
    n->hidden = nt_tanh(nt_layer_norm(nt_dense(n->x, w1, b1), NULL, NULL, 1e-3));
    return nt_softmax(nt_dense(n->hidden, w2, NULL), NT_LAST);
}

static nt_tensor *items[6];
static net net_make(void) {
    net n;
    n.t = nt_tape_open(NULL);
    n.x = variable(n.t, NT_SHAPE(5, 3), 0, 1.7), n.w1 = variable(n.t, NT_SHAPE(3, 8), 0, 1.1), n.b1 = variable(n.t, NT_SHAPE(8), 0, 0.3),
    n.w2 = variable(n.t, NT_SHAPE(8, 4), 0, 2.3), n.y = net_of(&n, n.w1, n.b1, n.w2);
    items[0] = n.w1, items[1] = n.b1, items[2] = n.w2, n.now = nti_list(items, 3);
    n.before = nt_freeze(n.t, n.now, NULL);
    for (int k = 0; k < 3; k++) { // the present values move away from those before
        double *data = (double *)nt_data(n.now.items[k]);
        for (int64_t i = 0; i < nt_size(n.now.items[k]); i++) data[i] += 0.1 * cos((double)(i + k));
    }
    return n;
}

static void linearization(void) {
    net n = net_make();
    double *was = (double *)malloc(nt_bytes(n.y)), *is = (double *)malloc(nt_bytes(n.y));
    nt_eval(n.y, was);
    nt_tensor *line = nt_linearize(n.y, n.now, n.before);
    tap_ok(n.y == net_of(&n, n.w1, n.b1, n.w2) || line != n.y, "the linearized value is another node");
    tap_ok(nt_eval(n.y, is) == NT_OK && memcmp(was, is, nt_bytes(n.y)) == 0, "y itself has the bits that it had");
    nt_tensor *f0 = net_of(&n, n.before.items[0], n.before.items[1], n.before.items[2]), *step[3];
    for (int k = 0; k < 3; k++) step[k] = nt_sub(n.now.items[k], n.before.items[k]);
    nt_tensor *tangent = nt_jvp(NT_LIST(f0), n.before, nti_list(step, 3)).items[0], *hand = nt_add(f0, tangent);
    tap_ok(difference(line, hand) == 0, "f(params0) + J(params0) (params - params0)");
    tap_ok(difference(line, n.y) > 1e-4, "it is not y");
    // along the line from params0 to params, the difference to y is of second order
    double error[2];
    for (int half = 0; half < 2; half++) {
        for (int k = 0; half && k < 3; k++) {
            double *now = (double *)nt_data(n.now.items[k]), *before = (double *)nt_data(n.before.items[k]);
            for (int64_t i = 0; i < nt_size(n.now.items[k]); i++) now[i] = before[i] + (now[i] - before[i]) / 16;
        }
        error[half] = difference(line, n.y);
    }
    tap_ok(error[1] < error[0] / 100, "second order: 16 times nearer, the difference falls from %g to %g", error[0], error[1]);

    // the gradient with respect to params is that of f at params0, whatever params are
    nt_tensor *c = variable(n.t, NT_SHAPE(5, 4), 0, 0.9);
    nt_params g = nt_vjp(NT_LIST(line), NT_LIST(c), n.now), g0 = nt_vjp(NT_LIST(f0), NT_LIST(c), n.before);
    for (int k = 0; k < 3; k++) tap_ok(difference(g.items[k], g0.items[k]) < 1e-14, "gradient %d is J(params0)' times the cotangent", k);
    nt_program *p = nt_compile_many(n.t, g, NULL), *p0 = nt_compile_many(n.t, g0, NULL);
    tap_is_int(count(p, NTI_OP_TANH), 1, "the gradient holds one tanh: the residual");
    tap_ok(nt_report(p).flops <= nt_report(p0).flops, "and costs no more than that of f: %g flops, %g", nt_report(p).flops, nt_report(p0).flops);
    tap_ok(nt_report(p).peak <= nt_report(p0).peak, "nor needs more memory: %zu bytes, %zu", nt_report(p).peak, nt_report(p0).peak);
    free(was), free(is);
    nt_tape_close(n.t);
}

static double flops(nt_tape *t, nt_params outputs) {
    nt_program *p = nt_compile_many(t, outputs, NULL);
    return p ? nt_report(p).flops : -1;
}

static void linearize_shares(void) {
    net n = net_make();
    nt_tensor *a = nt_linearize(n.y, n.now, n.before), *b = nt_linearize(n.y, n.now, n.before), *h = n.hidden;
    tap_ok(a != b && flops(n.t, NT_LIST(a)) == flops(n.t, NT_LIST(a, b)), "two calls: everything is computed once");
    nt_params two = nt_linearize_many(NT_LIST(n.y, h), n.now, n.before);
    double both = flops(n.t, two), one = flops(n.t, NT_LIST(two.items[0]));
    tap_ok(both - one == (double)nt_size(h), "a second output of one network costs its sum: %g flops beside %g", both - one, one);
    tap_ok(difference(two.items[0], a) == 0 && difference(two.items[1], nt_linearize(h, n.now, n.before)) == 0, "several outputs at once: the same values");
    // other directions at the same point share f(params0) and its residuals
    nt_tensor *moved[3];
    for (int k = 0; k < 3; k++) moved[k] = nt_scale(n.now.items[k], 1.5);
    nt_tensor *other = nt_substitute(a, n.now, nti_list(moved, 3));
    nt_program *p = nt_compile_many(n.t, NT_LIST(a, other), NULL);
    tap_ok(count(p, NTI_OP_TANH) == 1 && count(p, NTI_OP_NORM_STATS) == 1, "two directions at one point: one f(params0)");
    // a part of the parameters; params0 that y knows already; params0 that are values
    nt_tensor *part = nt_linearize(n.y, NT_LIST(n.w1), NT_LIST(n.before.items[0]));
    nt_tensor *f = net_of(&n, n.before.items[0], n.b1, n.w2);
    nt_tensor *hand = nt_add(f, nt_jvp(NT_LIST(f), NT_LIST(n.before.items[0]), NT_LIST(nt_sub(n.w1, n.before.items[0]))).items[0]);
    tap_ok(difference(part, hand) == 0, "a part of the parameters");
    nt_tensor *w = n.w1, *v = n.before.items[0], *mixed = nt_mul(nt_sin(w), nt_cos(v)), *line = nt_linearize(mixed, NT_LIST(w), NT_LIST(v));
    tap_ok(difference(line, nt_mul(nt_cos(v), nt_add(nt_sin(v), nt_mul(nt_cos(v), nt_sub(w, v))))) < 1e-15, "a value that depends on params0 already keeps it there");
    nt_tensor *at = nt_scale(w, 0.5);
    line = nt_linearize(nt_sin(w), NT_LIST(w), NT_LIST(at));
    tap_ok(difference(line, nt_add(nt_sin(at), nt_mul(nt_cos(at), nt_sub(w, at)))) < 1e-15, "params0 computed from params");
    tap_ok(nt_linearize(n.y, n.now, n.now) == n.y, "at params themselves: y");
    tap_ok(nt_linearize(n.x, n.now, n.before) == n.x, "of a value without parameters: the value");
    refused(n.t, !nt_linearize(n.y, n.now, NT_LIST(v)), NT_ERROR_ARGUMENT, "nt_linearize: 1 value");
    refused(n.t, !nt_linearize(n.y, NT_LIST(n.w1), NT_LIST(n.w2)), NT_ERROR_SHAPE, "nt_linearize");
    refused(n.t, !nt_linearize(nt_cast(n.y, NT_I32), n.now, n.before), NT_ERROR_DTYPE, "nt_linearize: output 0");
    refused(n.t, !nt_linearize(n.y, NT_LIST(w, w), NT_LIST(v, v)), NT_ERROR_ARGUMENT, "named twice");
    tap_ok(!nt_linearize(NULL, n.now, n.before) && !nt_linearize(n.y, NT_LIST(w), NT_LIST(NULL)) && !nt_error(n.t), "NULL gives NULL quietly");
    nt_tape_close(n.t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Hessian-vector products
// ---------------------------------------------------------------------------------------------------------------------
static void hessians(void) { // of x' A x x' x / 2 + <sin x, u>, with numbers
    enum { N = 4 };
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = variable(t, NT_SHAPE(N), 0, 1), *u = variable(t, NT_SHAPE(N), 0, 2), *v = variable(t, NT_SHAPE(N), 0, 3), *r = variable(t, NT_SHAPE(N), 0, 5);
    nt_tensor *y = nt_add(nt_sum(nt_mul(nt_sin(x), u)), nt_scale(nt_square(nt_sum(nt_square(x))), 0.5));
    double *px = (double *)nt_data(x), *pu = (double *)nt_data(u), *pv = (double *)nt_data(v), *pr = (double *)nt_data(r), hx[N], hu[N], xx = 0, xv = 0;
    for (int k = 0; k < N; k++) xx += px[k] * px[k], xv += px[k] * pv[k];
    nt_params h = nt_hvp(y, NT_LIST(x, u), NT_LIST(v, r)), zero = nt_hvp(y, NT_LIST(x, u), NT_LIST(NULL, r));
    if (!tap_ok(h.count == 2 && zero.count == 2, "one product for each parameter")) return;
    nt_eval(h.items[0], hx), nt_eval(h.items[1], hu);
    for (int k = 0; k < N; k++) {
        double along_x = -sin(px[k]) * pu[k] * pv[k] + 2 * xx * pv[k] + 4 * px[k] * xv, along_u = cos(px[k]) * pr[k];
        tap_ok(near(hx[k], along_x + along_u, 1e-14) && near(hu[k], cos(px[k]) * pv[k], 1e-14), "element %d of the product", k);
    }
    nt_eval(zero.items[0], hx), nt_eval(zero.items[1], hu);
    tap_ok(near(hx[1], cos(px[1]) * pr[1], 1e-14) && hu[1] == 0, "a NULL tangent is zero");
    refused(t, !nt_hvp(nt_sin(x), NT_LIST(x), NT_LIST(v)).count, NT_ERROR_SHAPE, "one number");
    refused(t, !nt_hvp(y, NT_LIST(x), NT_LIST(y)).count, NT_ERROR_SHAPE, "tangent 0");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Batches
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *part(nt_tensor *y, int64_t at) { return nt_squeeze(nt_slice_axis(y, 0, at, at + 1), 0); }
static nt_tensor *vmap(nt_tensor *y, nt_params inputs, nt_params batched) {
    nt_params p = nt_vmap(NT_LIST(y), inputs, batched);
    return p.count ? p.items[0] : NULL;
}

static void batches(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = variable(t, NT_SHAPE(3, 4), 0, 1), *w = variable(t, NT_SHAPE(4, 2), 0, 2), *xs = variable(t, NT_SHAPE(5, 3, 4), 0, 3), *ws = variable(t, NT_SHAPE(5, 4, 2), 0, 7);
    nt_tensor *side = nt_exp(w), *y = nt_softmax(nt_matmul(nt_sin(x), side), 0), *z = vmap(y, NT_LIST(x), NT_LIST(xs));
    int right = z && z->rank == 3 && z->shape[0] == 5;
    for (int b = 0; right && b < 5; b++) right = difference(part(z, b), nt_substitute(y, NT_LIST(x), NT_LIST(part(xs, b)))) < 1e-15;
    tap_ok(right, "each element is the value for its input");
    nt_params many = nt_vmap(NT_LIST(y, side, x), NT_LIST(x), NT_LIST(xs));
    tap_ok(many.count == 3 && difference(many.items[0], z) == 0 && many.items[2] == xs, "of several outputs; an input is its batch");
    tap_ok(many.count == 3 && many.items[1]->shape[0] == 5 && difference(part(many.items[1], 3), side) == 0, "an output that does not depend on the input repeats");
    nt_tensor *both = vmap(y, NT_LIST(x, w), NT_LIST(xs, ws)), *shared = nt_vmap(NT_LIST(y), NT_LIST(w), NT_LIST(ws)).items[0];
    right = both && shared;
    for (int b = 0; right && b < 5; b++)
        right = difference(part(both, b), nt_substitute(y, NT_LIST(x, w), NT_LIST(part(xs, b), part(ws, b)))) < 1e-15 && difference(part(shared, b), nt_substitute(y, NT_LIST(w), NT_LIST(part(ws, b)))) < 1e-15;
    tap_ok(right, "over both operands of a product, and over the weights alone");

    // all pairs by two of them, one in the other
    nt_tensor *u = variable(t, NT_SHAPE(4), 0, 1), *v = variable(t, NT_SHAPE(4), 0, 2), *us = variable(t, NT_SHAPE(3, 4), 0, 3), *vs = variable(t, NT_SHAPE(5, 4), 0, 5);
    nt_tensor *dot = nt_sum(nt_mul(u, v)), *pairs = vmap(vmap(dot, NT_LIST(v), NT_LIST(vs)), NT_LIST(u), NT_LIST(us));
    tap_ok(difference(pairs, nt_matmul(us, nt_swap_axes(vs, 0, 1))) < 1e-15, "a batch of batches: all pairs are a product of matrices");
    nt_tensor *gram = vmap(vmap(nt_exp(dot), NT_LIST(v), NT_LIST(vs)), NT_LIST(u), NT_LIST(vs));
    tap_ok(difference(gram, nt_exp(nt_matmul(vs, nt_swap_axes(vs, 0, 1)))) < 1e-15, "one batch in two places");

    // weights that the batch shares are one product, forward and backward, and never repeated
    nt_tensor *dense = nt_tanh(nt_matmul(x, w)), *many_rows = vmap(dense, NT_LIST(x), NT_LIST(xs)), *by_hand = nt_tanh(nt_matmul(xs, w));
    nt_program *p = nt_compile(many_rows, NULL), *q = nt_compile(by_hand, NULL);
    tap_ok(count(p, NTI_OP_MATMUL) == 1 && nt_report(p).peak == nt_report(q).peak && count(p, -1) == count(q, -1), "a dense layer over a batch is one product, without a copy");
    nt_tensor *g = nt_grad(nt_sum(many_rows), w);
    p = nt_compile(g, NULL), q = nt_compile(nt_grad(nt_sum(by_hand), w), NULL);
    tap_ok(nt_report(p).peak <= nt_report(q).peak && nt_report(p).flops <= nt_report(q).flops, "its gradient is one product: %zu bytes, %zu", nt_report(p).peak, nt_report(q).peak);
    nt_tensor *image = variable(t, NT_SHAPE(1, 5, 5, 2), 0, 1), *images = variable(t, NT_SHAPE(6, 1, 5, 5, 2), 0, 1), *kernel = variable(t, NT_SHAPE(3, 3, 2, 4), 0, 2), *kernels = variable(t, NT_SHAPE(6, 3, 3, 2, 4), 0, 2);
    nt_tensor *conv = nt_conv(image, kernel, NULL);
    p = nt_compile(vmap(conv, NT_LIST(image), NT_LIST(images)), NULL);
    tap_ok(count(p, NTI_OP_CONV) == 1 && count(p, -1) == 1, "images fold into one convolution");
    p = nt_compile(vmap(conv, NT_LIST(kernel), NT_LIST(kernels)), NULL);
    tap_is_int(count(p, NTI_OP_CONV), 1, "kernels fold into one convolution");
    p = nt_compile(vmap(conv, NT_LIST(image, kernel), NT_LIST(images, kernels)), NULL);
    tap_is_int(count(p, NTI_OP_CONV), 1, "both are the groups of one convolution");

    // gradients of each example, and the gradient of a batch
    nt_tensor *loss = nt_sum(nt_square(nt_tanh(nt_matmul(x, w)))), *each = vmap(nt_grad(loss, w), NT_LIST(x), NT_LIST(xs)), *all = nt_grad(nt_sum(vmap(loss, NT_LIST(x), NT_LIST(xs))), w);
    right = each && each->rank == 3;
    for (int b = 0; right && b < 5; b++) right = difference(part(each, b), nt_grad(nt_substitute(loss, NT_LIST(x), NT_LIST(part(xs, b))), w)) < 1e-14;
    tap_ok(right, "a batch of gradients is one for each example");
    tap_ok(difference(all, nt_sum_axes(each, NT_AXES(0), 0)) < 1e-14, "the gradient of a batch is their sum");

    nt_tape *other = nt_tape_open(NULL);
    nt_tensor *foreign = variable(other, NT_SHAPE(5, 3, 4), 0, 1);
    refused(t, !vmap(y, NT_LIST(x), NT_LIST(x)), NT_ERROR_SHAPE, "nt_vmap: batch 0");
    refused(t, !vmap(y, NT_LIST(x), NT_LIST(ws)), NT_ERROR_SHAPE, "nt_vmap: batch 0 is f64[5,4,2], but input 0 is f64[3,4]");
    refused(t, !vmap(y, NT_LIST(x, w), NT_LIST(xs, nt_slice_axis(ws, 0, 0, 4))), NT_ERROR_SHAPE, "nt_vmap: batch 1");
    refused(t, !vmap(y, NT_LIST(x), NT_LIST(nt_cast(xs, NT_F32))), NT_ERROR_DTYPE, "nt_vmap: batch 0 is f32");
    refused(t, !vmap(y, NT_LIST(x, w), NT_LIST(xs)), NT_ERROR_ARGUMENT, "1 batch for 2 values");
    refused(t, !vmap(y, NT_LIST(x, x), NT_LIST(xs, xs)), NT_ERROR_ARGUMENT, "named twice");
    refused(t, !vmap(y, NT_LIST(x), NT_LIST(foreign)), NT_ERROR_ARGUMENT, "another tape");
    refused(t, !vmap(nt_assign(w, nt_scale(w, 2)), NT_LIST(w), NT_LIST(ws)), NT_ERROR_ARGUMENT, "nt_assign");
    nt_tensor *flat = nt_reshape(x, NT_SHAPE(1, 1, 1, 1, 1, 1, 3, 4));
    refused(t, !vmap(flat, NT_LIST(x), NT_LIST(xs)), NT_ERROR_SHAPE, "more than 8 axes");
    tap_ok(!vmap(NULL, NT_LIST(x), NT_LIST(xs)) && !vmap(y, NT_LIST(x), NT_LIST(NULL)) && !vmap(y, NT_LIST(NULL), NT_LIST(xs)) && !nt_error(t), "NULL gives NULL quietly");
    nt_tape_close(other), nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Random numbers in a batch: the bits of each key alone
// ---------------------------------------------------------------------------------------------------------------------
static int same_bits(nt_tensor *a, nt_tensor *b) {
    char p[65536], q[65536];
    return a && b && nti_same_shape(a, b) && a->dtype == b->dtype && nt_bytes(a) <= sizeof p && nt_eval(a, p) == NT_OK && nt_eval(b, q) == NT_OK && !memcmp(p, q, nt_bytes(a));
}

static nt_tensor *draw(nt_tensor *key, int kind) {
    const nt_shape s = NT_SHAPE(3, 7), large = NT_SHAPE(1500);
    nt_axes none = { 0, { 0 } };
    switch (kind) {
    case 0: return nt_random_bits(key, NT_U8, s);
    case 1: return nt_random_bits(key, NT_U64, s);
    case 2: return nt_uniform(key, NT_F32, large, -1, 2);
    case 3: return nt_normal(key, NT_F64, s);
    case 4: return nt_truncated_normal(key, NT_F32, s, -1, 1);
    case 5: return nt_bernoulli(key, 0.4, s);
    case 6: return nt_randint(key, NT_I64, s, -5, 1000000);
    case 7: return nt_gumbel(key, NT_F32, s);
    case 8: return nt_split(key, NT_SHAPE(2, 2));
    case 9: return nt_rademacher(nt_fold_in(key, nt_scalar(key->tape, NT_I32, 9)), s);
    case 10: return nt_dropout(nt_full(key->tape, NT_F32, s, 1), key, 0.3, none);
    default: return nt_normal(part(nt_split(key, NT_SHAPE(3)), 1), NT_F32, NT_SCALAR);
    }
}

static void random_batches(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *key = nt_key_tensor(t, nt_key(5)), *keys = nt_split(nt_key_tensor(t, nt_key(6)), NT_SHAPE(4)), *square = nt_split(nt_key_tensor(t, nt_key(7)), NT_SHAPE(3, 4));
    for (int kind = 0; kind < 12; kind++) {
        nt_tensor *y = draw(key, kind), *z = vmap(y, NT_LIST(key), NT_LIST(keys)), *given = kind < 8 ? draw(keys, kind) : z;
        nt_tensor *nested = vmap(z, NT_LIST(keys), NT_LIST(square));
        int right = z && nested && same_bits(given, z);
        for (int b = 0; right && b < 4; b++) right = same_bits(part(z, b), draw(part(keys, b), kind)) && same_bits(part(part(nested, 2), b), draw(part(part(square, 2), b), kind));
        tap_ok(right, "kind %d: every key of a batch, and of a batch of batches, gives its own bits", kind);
    }
    nt_tensor *number = nt_scalar(t, NT_I32, 0), *numbers = nt_iota(t, NT_I32, NT_SHAPE(4), 0), *folded = nt_fold_in(key, number), *noise = nt_normal(folded, NT_F32, NT_SHAPE(6));
    nt_tensor *by_number = vmap(noise, NT_LIST(number), NT_LIST(numbers)), *by_both = vmap(noise, NT_LIST(key, number), NT_LIST(keys, numbers)), *table = vmap(by_number, NT_LIST(key), NT_LIST(keys));
    int right = by_number && by_both && table;
    for (int b = 0; right && b < 4; b++) {
        nt_tensor *n = nt_scalar(t, NT_I32, b), *own = part(keys, b);
        right = same_bits(part(by_number, b), nt_normal(nt_fold_in(key, n), NT_F32, NT_SHAPE(6))) && same_bits(part(by_both, b), nt_normal(nt_fold_in(own, n), NT_F32, NT_SHAPE(6)));
        for (int c = 0; right && c < 4; c++) right = same_bits(part(part(table, b), c), nt_normal(nt_fold_in(own, nt_scalar(t, NT_I32, c)), NT_F32, NT_SHAPE(6)));
    }
    tap_ok(right, "keys folded with a batch of numbers, in pairs, and every key with every number");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Jacobians
// ---------------------------------------------------------------------------------------------------------------------
static nt_tensor *jacobian(nt_tensor *y, nt_tensor *x, nt_jacobian_by by, int64_t chunk) {
    nt_jacobian_desc d = { by, chunk };
    return nt_jacobian(y, x, &d);
}

// Central differences of order eight.
static const double stencil[4] = { 4.0 / 5, -1.0 / 5, 4.0 / 105, -1.0 / 280 };

static void check_jacobian(nt_tape *t, nt_tensor *y, nt_tensor *x, const char *name) {
    static double got[4096], want[4096], at[256];
    static const nt_jacobian_by modes[] = { NT_BY_AUTO, NT_BY_ROWS, NT_BY_COLUMNS };
    int64_t n = nt_size(y), m = nt_size(x);
    double *data = (double *)nt_data(x), worst = 0;
    memset(want, 0, sizeof want);
    for (int64_t k = 0; k < m; k++)
        for (int s = -4; s <= 4; s++) {
            double was = data[k];
            if (!s) continue;
            data[k] += 0.02 * s;
            nt_eval(y, at);
            for (int64_t i = 0; i < n; i++) want[i * m + k] += (s < 0 ? -1 : 1) * stencil[abs(s) - 1] * at[i] / 0.02;
            data[k] = was;
        }
    int right = 1;
    for (int mode = 0; mode < 3; mode++)
        for (int64_t chunk = 0; chunk <= (n > m ? n : m) + 1; chunk += 1 + chunk / 2) {
            nt_tensor *j = jacobian(y, x, modes[mode], chunk);
            right &= j && j->rank == y->rank + x->rank && nt_eval(j, got) == NT_OK;
            for (int k = 0; right && k < j->rank; k++) right = j->shape[k] == (k < y->rank ? y->shape[k] : x->shape[k - y->rank]);
            for (int64_t k = 0; right && k < n * m; k++)
                if (!(fabs(got[k] - want[k]) <= worst)) worst = fabs(got[k] - want[k]);
        }
    tap_ok(right && worst < 1e-9, "the Jacobian of %s, by rows and columns, in chunks of any size: within %g of differences", name, worst);
    if (!right && nt_error(t)) tap_note("%s", nt_error(t));
}

static void jacobians(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = variable(t, NT_SHAPE(2, 3), 0, 1), *w = variable(t, NT_SHAPE(3, 4), 0, 2), *u = variable(t, NT_SCALAR, 0, 1), *image = variable(t, NT_SHAPE(1, 4, 3, 1), 0, 1), *kernel = variable(t, NT_SHAPE(2, 2, 1, 2), 0, 3);
    nt_tensor *y = nt_tanh(nt_matmul(x, w));
    check_jacobian(t, y, x, "a dense layer by its input");
    check_jacobian(t, y, w, "a dense layer by its weights");
    check_jacobian(t, nt_sum(y), w, "a number");
    check_jacobian(t, nt_mul(nt_sin(u), x), u, "a matrix by a number");
    check_jacobian(t, nt_exp(u), u, "a number by a number");
    check_jacobian(t, x, x, "a value by itself");
    check_jacobian(t, nt_softmax(nt_layer_norm(x, NULL, NULL, 0.1), 1), x, "a softmax of a layer norm");
    check_jacobian(t, nt_avg_pool(nt_conv(image, kernel, NULL), NT_WINDOW(2, 2), NULL), kernel, "a convolution by its kernel");
    check_jacobian(t, nt_sin(nt_conv(image, kernel, NULL)), image, "a convolution by its image");
    check_jacobian(t, nt_cos(w), x, "what does not depend on it");
    nt_tensor *empty = nt_slice_axis(x, 0, 1, 1), *none = nt_jacobian(empty, x, NULL), *of_none = nt_jacobian(nt_sin(x), nt_variable(t, NT_F64, NT_SHAPE(0), NULL), NULL);
    tap_ok(none && none->shape[0] == 0 && none->rank == 4 && of_none && of_none->rank == 3 && of_none->shape[2] == 0, "of an empty value, and by one");
    nt_tensor *h = nt_jacobian(nt_grad(nt_sum(nt_square(y)), x), x, NULL), *column = variable(t, NT_SHAPE(2, 3), 0, 4);
    nt_tensor *product = nt_reshape(nt_matmul(nt_reshape(h, NT_SHAPE(6, 6)), nt_reshape(column, NT_SHAPE(6, 1))), NT_SHAPE(2, 3));
    tap_ok(difference(product, nt_hvp(nt_sum(nt_square(y)), NT_LIST(x), NT_LIST(column)).items[0]) < 1e-14, "the Jacobian of a gradient is the Hessian");
    nt_tensor *in = variable(t, NT_SHAPE(8, 1), 0, 1), *deep = nt_sum_axes(nt_sin(nt_mul(in, variable(t, NT_SHAPE(8, 512), 0, 2))), NT_AXES(1), 0);
    size_t all = nt_report(nt_compile(jacobian(deep, in, NT_BY_ROWS, 0), NULL)).peak, two = nt_report(nt_compile(jacobian(deep, in, NT_BY_ROWS, 2), NULL)).peak;
    tap_ok(two < all / 2, "in chunks it takes less memory: %zu bytes by twos, %zu all at once", two, all);
    nt_tensor *wide = nt_reshape(x, NT_SHAPE(1, 1, 1, 1, 2, 3));
    refused(t, !nt_jacobian(nt_cast(x, NT_I32), x, NULL), NT_ERROR_DTYPE, "nt_jacobian: output 0");
    refused(t, !nt_jacobian(y, nt_cast(x, NT_I32), NULL), NT_ERROR_DTYPE, "nt_jacobian: input 0");
    refused(t, !jacobian(y, x, NT_BY_ROWS, -1), NT_ERROR_ARGUMENT, "nt_jacobian");
    refused(t, !jacobian(y, x, (nt_jacobian_by)7, 0), NT_ERROR_ARGUMENT, "nt_jacobian");
    refused(t, !nt_jacobian(nt_jacobian(wide, x, NULL), x, NULL), NT_ERROR_SHAPE, "nt_jacobian");
    tap_ok(!nt_jacobian(NULL, x, NULL) && !nt_jacobian(y, NULL, NULL) && !nt_error(t), "NULL gives NULL quietly");
    nt_tape_close(t);
}

// ---------------------------------------------------------------------------------------------------------------------
// Chains of transforms of random functions
//
// A function takes x and w, N numbers each, to N numbers: a short random program, recorded and also computed by plain loops. Each
// transform makes another such function of it: by the library in what is recorded, by differences and loops in what is computed.
// ---------------------------------------------------------------------------------------------------------------------
enum { N = 3, STEPS = 6, DEPTH = 4, BATCHES = 2 };
#define STEP_KINDS(X) \
    X(SIN) X(TANH) X(EXP) X(SOFTPLUS) X(GELU) X(ADD) X(MUL) X(DIV) X(MATVEC) X(OUTER) X(SOFTMAX) X(LOG_SOFTMAX) X(NORM) X(GATHER) X(SCATTER) X(ROTATE) \
    X(CONV) X(POOL) X(MEAN) X(LOGSUMEXP) X(SELECT) X(ENTROPY) X(NOISE) X(PROD)
#define STEP_ENUM(name) STEP_##name,
enum { STEP_KINDS(STEP_ENUM) STEP_COUNT };
#define TRANSFORMS(X) X(VJP) X(GRAD_W) X(JVP) X(JACOBIAN) X(VMAP) X(LINEARIZE) X(SUBSTITUTE)
#define TRANSFORM_ENUM(name) TO_##name,
#define TRANSFORM_NAME(name) #name,
enum { TRANSFORMS(TRANSFORM_ENUM) TO_COUNT };
static const char *const transform_name[] = { TRANSFORMS(TRANSFORM_NAME) };

typedef struct transform { int kind, choice; double c[N], d[N], a[BATCHES][N], s[BATCHES][N], q[BATCHES]; } transform;
typedef struct function {
    int steps, depth;
    struct { int kind, a, b; } step[STEPS];
    double matrix[N][N], noise[N];
    nt_key_value key;
    transform to[DEPTH];
    uint64_t state;
    double h; // of differences
} function;

static double dice(function *f) { // in [-1, 1)
    f->state = f->state * 6364136223846793005u + 1442695040888963407u;
    return (double)(f->state >> 33) / 1073741824.0 - 1;
}
static int choose(function *f, int n) { return (int)((dice(f) + 1) / 2 * n); }

static void function_make(function *f, uint64_t seed) {
    memset(f, 0, sizeof *f);
    f->state = seed * 0x9e3779b97f4a7c15u + 1, f->h = 0.02;
    for (int k = 0; k < 4; k++) dice(f);
    f->steps = 2 + choose(f, STEPS - 1), f->depth = 1 + choose(f, DEPTH), f->key = nt_key(seed);
    for (int k = 0; k < f->steps; k++) // of the newest value mostly, so that it is a chain with branches
        f->step[k].kind = choose(f, STEP_COUNT), f->step[k].a = choose(f, 2) ? k + 1 : choose(f, k + 2), f->step[k].b = choose(f, k + 2);
    for (int k = 0; k < N * N; k++) f->matrix[k / N][k % N] = 0.7 * dice(f);
    for (int k = 0; k < f->depth; k++) {
        transform *to = &f->to[k];
        to->kind = choose(f, TO_COUNT), to->choice = choose(f, 6);
        for (int i = 0; i < N; i++) to->c[i] = dice(f), to->d[i] = dice(f);
        for (int b = 0; b < BATCHES; b++) {
            for (int i = 0; i < N; i++) to->a[b][i] = 0.8 * dice(f), to->s[b][i] = 0.5 * dice(f);
            to->q[b] = dice(f);
        }
    }
}

// By loops ---------------------------------------------------------------------------------------------------------------

static double total(const double *a) { return a[0] + a[1] + a[2]; }
static double log_sum(const double *a) { return log(exp(a[0]) + exp(a[1]) + exp(a[2])); }

static double element(const function *f, int kind, const double *a, const double *b, int i) {
    double sum = 0, var = 0, mean = total(a) / N;
    switch (kind) {
    case STEP_SIN: return sin(a[i]);
    case STEP_TANH: return tanh(a[i]);
    case STEP_EXP: return exp(0.5 * sin(a[i]));
    case STEP_SOFTPLUS: return log1p(exp(a[i]));
    case STEP_GELU: return a[i] * 0.5 * erfc(-a[i] * 0.70710678118654752440);
    case STEP_ADD: return 0.5 * (a[i] + b[i]);
    case STEP_MUL: return a[i] * b[i];
    case STEP_DIV: return a[i] / (1 + b[i] * b[i]);
    case STEP_MATVEC:
        for (int j = 0; j < N; j++) sum += f->matrix[i][j] * a[j];
        return sum;
    case STEP_OUTER: // (a b') matrix, its column sums
        for (int j = 0; j < N; j++) sum += b[j] * f->matrix[j][i];
        return total(a) * sum;
    case STEP_SOFTMAX: return exp(a[i] - log_sum(a));
    case STEP_LOG_SOFTMAX: return 0.3 * (a[i] - log_sum(a));
    case STEP_NORM:
        for (int j = 0; j < N; j++) var += (a[j] - mean) * (a[j] - mean) / N;
        return (a[i] - mean) / sqrt(var + 0.5);
    case STEP_GATHER: return a[(i + 2) % N] * (i == 1 ? 1 : 0.5);
    case STEP_SCATTER: return b[i] + (i == 0 ? a[0] + a[2] : i == 2 ? a[1] : 0);
    case STEP_ROTATE: return a[(i + 1) % N];
    case STEP_CONV:
        for (int j = 0; j < N; j++)
            if (i + j - 1 >= 0 && i + j - 1 < N) sum += a[i + j - 1] * b[j];
        return sum;
    case STEP_POOL:
        for (int j = i - 1; j <= i + 1; j++) sum += j >= 0 && j < N ? a[j] : 0;
        return sum / 3;
    case STEP_MEAN: return mean * b[i];
    case STEP_LOGSUMEXP: return log_sum(a) * b[i];
    case STEP_SELECT: return i == 1 ? a[i] : b[i];
    case STEP_ENTROPY: return (log_sum(a) - a[1]) * 0.5 + b[i];
    case STEP_NOISE: return a[i] * f->noise[i];
    default: return a[0] * a[1] * a[2] + b[i];
    }
}

static void base(const function *f, const double *x, const double *w, double *y) {
    double v[STEPS + 2][N];
    memcpy(v[0], w, sizeof v[0]), memcpy(v[1], x, sizeof v[1]);
    for (int k = 0; k < f->steps; k++)
        for (int i = 0; i < N; i++) v[k + 2][i] = element(f, f->step[k].kind, v[f->step[k].a], v[f->step[k].b], i);
    for (int i = 0; i < N; i++) y[i] = v[f->steps + 1][i] + 0.5 * sin(x[i] + w[i]);
}

static void value(const function *f, int depth, const double *x, const double *w, double *y);

// The derivative at (x, w) along (v, u).
static void along(const function *f, int depth, const double *x, const double *w, const double *v, const double *u, double *y) {
    double p[N], q[N], z[N];
    for (int i = 0; i < N; i++) y[i] = 0;
    for (int s = -4; s <= 4; s++) {
        if (!s) continue;
        for (int i = 0; i < N; i++) p[i] = x[i] + f->h * s * v[i], q[i] = w[i] + f->h * s * u[i];
        value(f, depth, p, q, z);
        for (int i = 0; i < N; i++) y[i] += (s < 0 ? -1 : 1) * stencil[abs(s) - 1] * z[i] / f->h;
    }
}

static const double zero[N];

// What level `depth` makes of level depth - 1; what the library is asked for stands in record_transform.
static void value(const function *f, int depth, const double *x, const double *w, double *y) {
    if (!depth) { base(f, x, w, y); return; }
    const transform *to = &f->to[depth - 1];
    double p[N], z[N];
    const double *c = to->choice & 1 ? w : to->c, *point = to->choice & 2 ? to->d : w;
    depth--;
    for (int i = 0; i < N; i++) y[i] = 0;
    switch (to->kind) {
    case TO_VJP:
    case TO_GRAD_W:
        for (int i = 0; i < N; i++) {
            double unit[N] = { 0, 0, 0 };
            unit[i] = 1;
            along(f, depth, x, w, to->kind == TO_VJP ? unit : zero, to->kind == TO_VJP ? zero : unit, z);
            if (to->kind == TO_GRAD_W) c = to->c;
            y[i] = c[0] * z[0] + c[1] * z[1] + c[2] * z[2];
        }
        break;
    case TO_JVP: along(f, depth, x, w, c, to->choice & 2 ? to->d : zero, y); break;
    case TO_JACOBIAN: along(f, depth, x, w, to->c, zero, y); break;
    case TO_VMAP:
        for (int b = 0; b < BATCHES; b++) {
            double px[N], pw[N];
            for (int i = 0; i < N; i++) px[i] = to->choice % 3 == 1 ? x[i] : x[i] * to->a[b][i] + to->s[b][i], pw[i] = to->choice % 3 == 0 ? w[i] : w[i] * to->s[b][i] + to->a[b][i];
            value(f, depth, px, pw, z);
            for (int i = 0; i < N; i++) y[i] += to->q[b] * z[i];
        }
        break;
    case TO_LINEARIZE:
        for (int i = 0; i < N; i++) p[i] = x[i] - point[i];
        along(f, depth, point, w, p, zero, y);
        value(f, depth, point, w, z);
        for (int i = 0; i < N; i++) y[i] += z[i];
        break;
    default:
        if (to->choice & 1) value(f, depth, w, x, y); // in each other's place
        else {
            for (int i = 0; i < N; i++) p[i] = to->c[i] * sin(x[i]) + w[i] * 0.5;
            value(f, depth, p, w, y);
        }
    }
}

// By the library ---------------------------------------------------------------------------------------------------------

static nt_tensor *vector_of(nt_tape *t, const double *v) { return nt_constant(t, NT_F64, NT_SHAPE(N), v); }
static nt_tensor *spread(nt_tensor *x) { return nt_broadcast(x, NT_SHAPE(N)); }

static nt_tensor *record_step(const function *f, nt_tape *t, int kind, nt_tensor *a, nt_tensor *b) {
    static const int32_t from[N] = { 2, 0, 1 }, to[N] = { 0, 2, 0 }, label = 1;
    static const double half[N] = { 0.5, 1, 0.5 };
    static const unsigned char middle[N] = { 0, 1, 0 };
    nt_tensor *matrix = nt_constant(t, NT_F64, NT_SHAPE(N, N), f->matrix);
    nt_pool_desc window = { .stride = { 1 }, .padding = NT_SAME };
    switch (kind) {
    case STEP_SIN: return nt_sin(a);
    case STEP_TANH: return nt_tanh(a);
    case STEP_EXP: return nt_exp(nt_scale(nt_sin(a), 0.5));
    case STEP_SOFTPLUS: return nt_softplus(a);
    case STEP_GELU: return nt_gelu(a);
    case STEP_ADD: return nt_scale(nt_add(a, b), 0.5);
    case STEP_MUL: return nt_mul(a, b);
    case STEP_DIV: return nt_div(a, nt_add_scalar(nt_square(b), 1));
    case STEP_MATVEC: return nt_matmul(matrix, a);
    case STEP_OUTER: return nt_sum_axes(nt_matmul(nt_matmul(nt_reshape(a, NT_SHAPE(N, 1)), nt_reshape(b, NT_SHAPE(1, N))), matrix), NT_AXES(0), 0);
    case STEP_SOFTMAX: return nt_softmax(a, 0);
    case STEP_LOG_SOFTMAX: return nt_scale(nt_log_softmax(a, 0), 0.3);
    case STEP_NORM: return nt_layer_norm(a, NULL, NULL, 0.5);
    case STEP_GATHER: return nt_mul(nt_gather(a, nt_constant(t, NT_I32, NT_SHAPE(N), from), 0), vector_of(t, half));
    case STEP_SCATTER: return nt_scatter_add(b, nt_constant(t, NT_I32, NT_SHAPE(N), to), a, 0);
    case STEP_ROTATE: return nt_concat(NT_LIST(nt_slice_axis(a, 0, 1, N), nt_slice_axis(a, 0, 0, 1)), 0);
    case STEP_CONV: return nt_reshape(nt_conv(nt_reshape(a, NT_SHAPE(1, N, 1)), nt_reshape(b, NT_SHAPE(N, 1, 1)), NULL), NT_SHAPE(N));
    case STEP_POOL: return nt_reshape(nt_avg_pool(nt_reshape(a, NT_SHAPE(1, N, 1)), NT_WINDOW(3), &window), NT_SHAPE(N));
    case STEP_MEAN: return nt_mul(spread(nt_mean(a)), b);
    case STEP_LOGSUMEXP: return nt_mul(nt_logsumexp_axes(a, NT_AXES(0), 1), b);
    case STEP_SELECT: return nt_select(nt_constant(t, NT_BOOL, NT_SHAPE(N), middle), a, b);
    case STEP_ENTROPY: return nt_add(nt_scale(nt_cross_entropy(a, nt_constant(t, NT_I32, NT_SCALAR, &label)), 0.5), b);
    case STEP_NOISE: return nt_mul(a, nt_normal(nt_key_tensor(t, f->key), NT_F64, NT_SHAPE(N)));
    default: return nt_add(nt_prod_axes(a, NT_AXES(0), 0), b);
    }
}

static nt_tensor *record_transform(const transform *to, nt_tape *t, nt_tensor *y, nt_tensor *x, nt_tensor *w) {
    nt_tensor *c = to->choice & 1 ? w : vector_of(t, to->c), *point = to->choice & 2 ? vector_of(t, to->d) : w;
    nt_tensor *a = nt_constant(t, NT_F64, NT_SHAPE(BATCHES, N), to->a), *s = nt_constant(t, NT_F64, NT_SHAPE(BATCHES, N), to->s);
    nt_params p;
    switch (to->kind) {
    case TO_VJP: p = nt_vjp(NT_LIST(y), NT_LIST(c), NT_LIST(x)); break;
    case TO_GRAD_W: return nt_grad(nt_sum(nt_mul(y, vector_of(t, to->c))), w);
    case TO_JVP: p = nt_jvp(NT_LIST(y), NT_LIST(x, w), NT_LIST(c, to->choice & 2 ? vector_of(t, to->d) : NULL)); break;
    case TO_JACOBIAN: return nt_matmul(jacobian(y, x, (nt_jacobian_by)(to->choice % 3), to->choice / 3 ? 2 : 0), vector_of(t, to->c));
    case TO_VMAP: {
        nt_tensor *xs = nt_add(nt_mul(x, a), s), *ws = nt_add(nt_mul(w, s), a);
        p = to->choice % 3 == 0 ? nt_vmap(NT_LIST(y), NT_LIST(x), NT_LIST(xs)) : to->choice % 3 == 1 ? nt_vmap(NT_LIST(y), NT_LIST(w), NT_LIST(ws)) : nt_vmap(NT_LIST(y), NT_LIST(x, w), NT_LIST(xs, ws));
        return p.count ? nt_sum_axes(nt_mul(p.items[0], nt_constant(t, NT_F64, NT_SHAPE(BATCHES, 1), to->q)), NT_AXES(0), 0) : NULL;
    }
    case TO_LINEARIZE: return nt_linearize(y, NT_LIST(x), NT_LIST(point));
    default:
        if (to->choice & 1) return nt_substitute(y, NT_LIST(x, w), NT_LIST(w, x));
        return nt_substitute(y, NT_LIST(x), NT_LIST(nt_add(nt_mul(vector_of(t, to->c), nt_sin(x)), nt_scale(w, 0.5))));
    }
    return p.count ? p.items[0] : NULL;
}

typedef struct tally { int wrong, unclear, alive, transforms[TO_COUNT], steps[STEP_COUNT]; double worst; } tally;

static double distance(const double *a, const double *b) { // relative to 1 + the size
    double most = 0, size = 1;
    for (int i = 0; i < N; i++) {
        if (!(fabs(a[i] - b[i]) <= most)) most = fabs(a[i] - b[i]);
        if (fabs(b[i]) > size) size = fabs(b[i]);
    }
    return most / size;
}

static void chain_name(const function *f, char *name) {
    *name = 0;
    for (int k = 0; k < f->depth; k++) strcat(strcat(name, k ? " of " : ""), transform_name[f->to[f->depth - 1 - k].kind]);
}

static void check_chain(uint64_t seed, tally *s, int loud) {
    function f;
    double x[N], w[N], got[N], want[N], finer[N];
    char name[128];
    function_make(&f, seed);
    for (int i = 0; i < N; i++) x[i] = dice(&f), w[i] = dice(&f);
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *tx = nt_variable(t, NT_F64, NT_SHAPE(N), x), *tw = nt_variable(t, NT_F64, NT_SHAPE(N), w), *v[STEPS + 2] = { tw, tx };
    nt_eval(nt_normal(nt_key_tensor(t, f.key), NT_F64, NT_SHAPE(N)), f.noise);
    for (int k = 0; k < f.steps; k++) v[k + 2] = record_step(&f, t, f.step[k].kind, v[f.step[k].a], v[f.step[k].b]), s->steps[f.step[k].kind]++;
    nt_tensor *y = nt_add(v[f.steps + 1], nt_scale(nt_sin(nt_add(tx, tw)), 0.5)); // never constant
    for (int k = 0; k < f.depth; k++) y = record_transform(&f.to[k], t, y, tx, tw), s->transforms[f.to[k].kind]++;
    int ran = y && nt_eval(y, got) == NT_OK;
    double error = HUGE_VAL, doubt = 0;
    if (ran) {
        value(&f, f.depth, x, w, want);
        error = distance(got, want), s->alive += fabs(want[0]) + fabs(want[1]) + fabs(want[2]) > 1e-4;
        if (!(error < 1e-6)) { // differences that have not converged say nothing
            f.h = 0.007, value(&f, f.depth, x, w, finer);
            doubt = distance(finer, want), error = fmin(error, distance(got, finer));
        }
    }
    int wrong = !ran || (!(error < 1e-6) && !(error < 10 * doubt));
    s->wrong += wrong, s->unclear += !wrong && !(error < 1e-6);
    if (!wrong && error < 1e-6 && error > s->worst) s->worst = error;
    if (wrong || loud) {
        chain_name(&f, name);
        tap_note("seed %llu: %s, %d steps: error %g, differences among themselves %g%s%s", (unsigned long long)seed, name, f.steps, error, doubt, nt_error(t) ? ": " : "", nt_error(t) ? nt_error(t) : "");
    }
    nt_tape_close(t);
}

// Recording in arrays that are too small, each a little larger than the one before, until there is room.
static void shortage(void) {
    enum { MOST = 1 << 18 };
    char *memory = (char *)malloc(MOST);
    int sizes = 0, clean = 1, enough = 0;
    for (uint64_t seed = 1; seed <= 40; seed++) {
        function f;
        nt_tensor *y = NULL;
        function_make(&f, seed);
        for (size_t size = nt_tape_size_min(); !y && size <= MOST; size += 997, sizes++) {
            nt_tape_desc desc;
            memset(&desc, 0, sizeof desc), desc.memory = memory, desc.memory_size = size;
            nt_tape *t = nt_tape_open(&desc);
            nt_tensor *tx = nt_variable(t, NT_F64, NT_SHAPE(N), NULL), *tw = nt_variable(t, NT_F64, NT_SHAPE(N), NULL), *v[STEPS + 2] = { tw, tx };
            for (int k = 0; k < f.steps; k++) v[k + 2] = record_step(&f, t, f.step[k].kind, v[f.step[k].a], v[f.step[k].b]);
            y = v[f.steps + 1];
            for (int k = 0; k < f.depth; k++) y = record_transform(&f.to[k], t, y, tx, tw);
            clean &= y ? !nt_error(t) : nt_error_status(t) == NT_ERROR_MEMORY;
            nt_tape_close(t);
        }
        enough += y != NULL;
    }
    tap_ok(clean && enough == 40, "chains recorded in %d arrays: in those that are too small, an error of memory", sizes);
    free(memory);
}

static void chains(int count) {
    tally s;
    int least = count;
    memset(&s, 0, sizeof s);
    for (int k = 1; k <= count; k++) check_chain((uint64_t)k, &s, 0);
    tap_ok(!s.wrong, "%d chains of up to %d transforms of random functions, seeds 1 to %d, within %g of differences and loops", count, DEPTH, count, s.worst);
    tap_ok(s.unclear < count / 50, "differences decide all but %d of them", s.unclear);
    tap_ok(s.alive > count * 9 / 10, "%d of them are not zero", s.alive);
    for (int k = 0; k < TO_COUNT; k++) least = s.transforms[k] < least ? s.transforms[k] : least;
    for (int k = 0; k < STEP_COUNT; k++) least = s.steps[k] < least ? s.steps[k] : least;
    tap_ok(least > count / 20, "every transform and every operation was there, %d times at least", least);
}

int main(int argc, char **argv) {
    if (argc > 1) { // one chain
        tally s;
        memset(&s, 0, sizeof s);
        check_chain(strtoull(argv[1], NULL, 10), &s, 1);
        return s.wrong;
    }
    substitution();
    linearization();
    linearize_shares();
    hessians();
    batches();
    random_batches();
    jacobians();
    shortage();
    chains(5000);
    return tap_end();
}
