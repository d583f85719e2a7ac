// Linearization: a vision transformer on photographs, trained as it is and in its linearization, within budgets.
//
//     make -C examples && examples/build/linearize          the table, and pictures of the plans
//     examples/build/linearize 100                          with 100 training steps a row instead of 20
//
// The task: 32x32 pieces of ten photographs; which photograph is it from? The linearized network is f(w0) + J(w0) (w - w0): linear in
// the weights, so its training is a convex problem, and what the derivative needs are the residuals at w0 only. It costs about
// 1.7 times the arithmetic and hardly more scratch than ordinary training; w0 is one more copy of the weights, frozen, which the host
// may keep wherever it likes (a file, flash). With a smaller budget the compiler drops values and computes them again: the bits stay.
#include "../nttrain.h"
#include "folder.h"
#include "photos.h"
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LIN_SIDE = PHOTO_SIDE, LIN_CROP = 32, LIN_BATCH = 8 };

typedef struct lin_options {
    const char *folder;   // of photos64.npy, with its slash
    int dim, depth, heads, linearized, steps;
    size_t budget;        // of scratch; 0: no limit
    const char *picture;  // the plan as SVG; NULL: none
} lin_options;

typedef struct lin_result {
    nt_report_info plan;
    size_t frozen, least;   // bytes of w0; the least budget that the planner reaches
    double milliseconds, first_loss, loss; // of the fastest step; means over the first and the last five steps
    int drawn;              // the picture was written
    char error[640];
} lin_result;

static photos lin_photo;

// The batch of a step: pieces at places that the key decides, -1 to 1, and the numbers of their photographs.
static nt_status lin_batch(nt_tensor *x, nt_tensor *y, uint32_t step) {
    static float pixel[LIN_BATCH][LIN_CROP][LIN_CROP][3];
    int32_t label[LIN_BATCH];
    for (int b = 0; b < LIN_BATCH; b++) {
        nt_key_value key = nt_key_fold_in(nt_key_fold_in(nt_key(5), step), (uint32_t)b), other = nt_key_fold_in(key, 1);
        int top = (int)(key.word[0] % (LIN_SIDE - LIN_CROP + 1)), left = (int)(key.word[1] % (LIN_SIDE - LIN_CROP + 1));
        label[b] = (int32_t)(other.word[0] % PHOTOS);
        for (int i = 0; i < LIN_CROP * LIN_CROP * 3; i++)
            (&pixel[b][0][0][0])[i] = (float)lin_photo[label[b]][top + i / (LIN_CROP * 3)][left + i / 3 % LIN_CROP][i % 3] / 127.5f - 1;
    }
    nt_status status = nt_write(x, pixel);
    return status == NT_OK ? nt_write(y, label) : status;
}

static int lin_picture(const nt_program *step, const char *name) { // 1: written
    FILE *file = name ? fopen(name, "wb") : NULL;
    if (!file) return 0;
    nt_report_svg_print(step, file);
    return fclose(file) == 0;
}

static nt_status lin_train(nt_tape *t, const lin_options *o, lin_result *r) {
    nt_status status = photos_load(t, o->folder, lin_photo);
    if (status != NT_OK) return status;
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(LIN_BATCH, LIN_CROP, LIN_CROP, 3)), *y = nt_input(t, NT_I32, NT_SHAPE(LIN_BATCH));
    nt_vit_desc vit = { .patch = 4, .dim = o->dim, .depth = o->depth, .heads = o->heads, .outputs = PHOTOS };
    vit.head_init.kind = NT_LECUN_NORMAL; // with flax's zero head the linearization at the start is a linear model of one layer
    nt_layer *net = nt_vit_layer(t, &vit);
    nt_init(net, nt_key(1), x);
    nt_tensor *logits = nt_apply(net, x, NULL);
    if (o->linearized) {
        nt_params now = nt_parameters(net), start = nt_freeze(t, now, NULL);
        for (int k = 0; k < start.count; k++) r->frozen += nt_bytes(start.items[k]);
        logits = nt_linearize(logits, now, start);
    }
    nt_tensor *loss = nt_mean(nt_cross_entropy(logits, y));
    nt_compile_desc desc = { .budget = o->budget };
    nt_optimizer *sgd = nt_sgd(t, &(nt_sgd_desc){ .learning_rate = 0.01, .momentum = 0.9 });
    nt_budget_point point[64];
    int points = o->budget ? 0 : nt_budget_curve_step(loss, sgd, &desc, point, 64);
    if (points > 0) r->least = point[points - 1].bytes;
    nt_program *step = nt_compile_step(loss, sgd, &desc);
    if (!step) return nt_error_status(t);
    r->plan = nt_report(step);
    r->drawn = lin_picture(step, o->picture);
    nt_forget_nodes(t);
    for (int k = 0; k < o->steps && status == NT_OK; k++) {
        status = lin_batch(x, y, (uint32_t)k);
        double before = 1e3 * (double)clock() / CLOCKS_PER_SEC;
        if (status == NT_OK) status = nt_run(step);
        double took = 1e3 * (double)clock() / CLOCKS_PER_SEC - before;
        if (!k || took < r->milliseconds) r->milliseconds = took;
        if (k < 5) r->first_loss += nt_window_loss(step) / (o->steps < 5 ? o->steps : 5);
        if (k >= o->steps - 5) r->loss += nt_window_loss(step) / (o->steps < 5 ? o->steps : 5);
    }
    return status;
}

static int lin_main(const nt_tape_desc *desc, const lin_options *o, lin_result *r) { // 0: trained
    memset(r, 0, sizeof *r);
    nt_tape *t = nt_tape_open(desc);
    nt_status status = t ? lin_train(t, o, r) : NT_ERROR_MEMORY;
    r->plan.values = NULL, r->plan.value_count = 0; // they lie in the tape
    if (status != NT_OK) snprintf(r->error, sizeof r->error, "%s: %s", nt_status_name(status), nt_error(t) ? nt_error(t) : "?");
    nt_tape_close(t);
    return status != NT_OK;
}

#ifndef NT_EXAMPLE_NO_MAIN // the tests include this file
static void lin_row(const char *what, const lin_options *o, const lin_result *r) {
    if (r->error[0]) { printf("  %-11s budget %9zu   %s\n", what, o->budget, r->error); return; }
    printf("  %-11s%10zu%10zu%9.1f %%%11.2f%11.1f%9.3f%8.3f\n", what, o->budget, r->plan.peak, 100 * r->plan.recomputed_flops / r->plan.flops,
           r->plan.time_ratio, r->milliseconds, r->first_loss, r->loss);
}

int main(int argc, char **argv) {
    static lin_result r;
    const int steps = argc > 1 ? atoi(argv[1]) : 20;
    const char *names[2] = { "plain", "linearized" };
    char folder[640], picture[640], name[64];
    folder_of(argv[0], "../data/", folder, sizeof folder);
    puts("A vision transformer (dim 96, depth 6, patch 4) on 32x32 photographs, batch 8, SGD with momentum:\n\n"
         "                 budget   scratch  computed   estimated    fastest    loss of 5 steps:\n"
         "                  bytes     bytes     again   slow-down   step, ms    first    last");
    for (int linearized = 0; linearized < 2; linearized++) {
        lin_options o = { folder, 96, 6, 3, linearized, steps, 0, picture };
        snprintf(name, sizeof name, "%s_100.svg", names[linearized]);
        folder_of(argv[0], name, picture, sizeof picture);
        if (lin_main(NULL, &o, &r)) { puts(r.error); return 1; }
        lin_row(names[linearized], &o, &r);
        size_t all = r.plan.peak, least = r.least;
        for (int share = 70; share > 0; share -= 20) {
            o.budget = all / 100 * (size_t)share;
            snprintf(name, sizeof name, o.budget < least ? "%s_least.svg" : "%s_%d.svg", names[linearized], share);
            folder_of(argv[0], name, picture, sizeof picture);
            if (o.budget < least) o.budget = least; // the planner reaches no less
            lin_main(NULL, &o, &r);
            lin_row(names[linearized], &o, &r);
            if (o.budget == least) break;
        }
        if (linearized) printf("\nThe frozen weights are %zu bytes more, or none where the host keeps them; %s\n", r.frozen,
                               r.drawn ? "the plans are drawn beside this program, plain_100.svg and so on." : "the plans could not be drawn beside this program.");
    }
    return 0;
}
#endif
