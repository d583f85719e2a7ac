// Transforms that record again: substitution, linearization. Values against loops, finite differences and formulas written
// down by hand; compiled programs are counted to see what is shared and what is kept.
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
#include "tap.h"

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
    refused(t, !nt_substitute(z, NT_LIST(x), NT_LIST(nt_cast(v, NT_F32))), NT_ERROR_SHAPE, "replacement 0 is f32[3,4]");
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

int main(void) {
    substitution();
    linearization();
    linearize_shares();
    hessians();
    return tap_end();
}
