// Reports: the picture of a plan is XML, the numbers are JSON, and both tell the plan: no two values that live at the same time overlap,
// all lie inside the peak, the sum of what lives reaches the lower bound and never passes it. The first operation that makes a NaN.
#include "heap.h"
#include "nttrain.h"
#include "tap.h"
#include <math.h>
#include <stdlib.h>

// ---------------------------------------------------------------------------------------------------------------------
// A checker of XML, as much as pictures use: elements, attributes, text with the five entities, no scripts
// ---------------------------------------------------------------------------------------------------------------------
static int utf8_follows(const unsigned char *s) { // bytes of one character, 0 if it is none
    if (s[0] < 0x80) return 1;
    int n = s[0] >= 0xc2 && s[0] < 0xe0 ? 2 : s[0] >= 0xe0 && s[0] < 0xf0 ? 3 : s[0] >= 0xf0 && s[0] < 0xf5 ? 4 : 0;
    for (int k = 1; k < n; k++)
        if (s[k] < 0x80 || s[k] > 0xbf) return 0;
    if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) || (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f)) return 0;
    return n;
}

static int xml_text(const char **at, const char *end) { // up to one of the characters of `end`
    const char *s = *at;
    while (*s && !strchr(end, *s)) {
        if (*s == '<') return 0;
        if (*s == '&') {
            static const char *const names[] = { "&lt;", "&gt;", "&amp;", "&quot;", "&apos;" };
            int known = 0;
            for (int k = 0; k < 5; k++) known |= !strncmp(s, names[k], strlen(names[k]));
            if (!known) return 0;
        }
        if ((unsigned char)*s < 0x20 && *s != '\n' && *s != '\t') return 0;
        int n = utf8_follows((const unsigned char *)s);
        if (!n) return 0;
        s += n;
    }
    *at = s;
    return *s != 0;
}

static int xml_name(const char **at, char *name) {
    int n = 0;
    while ((**at >= 'a' && **at <= 'z') || (**at >= 'A' && **at <= 'Z') || **at == '-' || **at == ':' || (n && **at >= '0' && **at <= '9')) {
        if (n == 31) return 0;
        name[n++] = *(*at)++;
    }
    name[n] = 0;
    return n;
}

static int xml_well_formed(const char *s, int *titles) {
    char stack[16][32], name[32], attribute[32];
    int depth = 0, roots = 0;
    *titles = 0;
    for (;;) {
        while (depth == 0 && (*s == '\n' || *s == ' ')) s++;
        if (depth == 0 && !*s) return roots == 1;
        if (depth > 0 && !xml_text(&s, "<")) return 0;
        if (*s++ != '<') return 0;
        if (*s == '/') {
            s++;
            if (!xml_name(&s, name) || *s++ != '>' || !depth || strcmp(stack[--depth], name)) return 0;
            continue;
        }
        if (!xml_name(&s, name) || !strcmp(name, "script")) return 0;
        roots += depth == 0, *titles += !strcmp(name, "title");
        while (*s == ' ') {
            s++;
            if (!xml_name(&s, attribute) || !strncmp(attribute, "on", 2) || *s++ != '=' || *s++ != '"' || !xml_text(&s, "\"") || *s++ != '"') return 0;
        }
        if (*s == '/' && s[1] == '>') { s += 2; continue; }
        if (*s++ != '>' || depth == 16) return 0;
        strcpy(stack[depth++], name);
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// A reader of JSON that walks a document and hands every number and string to a function, with its keys
// ---------------------------------------------------------------------------------------------------------------------
typedef struct buffer { double bytes, offset, born, dies; int again; char kind[24], operation[64], name[64], dtype[16]; int rank; double shape[8]; } buffer;
typedef struct loop { double start, end, count; } loop;
typedef struct plan { loop loop[8]; int loops; double peak, lower_bound, instructions, peak_instruction, program, total, flops; int count, unreached; buffer *buffer; } plan;

static int json_string(const char **at, char *out, size_t size) {
    const char *s = *at;
    size_t n = 0;
    if (*s++ != '"') return 0;
    while (*s != '"') {
        if ((unsigned char)*s < 0x20) return 0;
        if (*s == '\\') {
            s++;
            if (!*s || !strchr("\"\\/bfnrt", *s)) return 0;
        }
        int length = utf8_follows((const unsigned char *)s);
        if (!length) return 0;
        for (int k = 0; k < length; k++, s++)
            if (n + 1 < size) out[n++] = *s;
    }
    out[n] = 0;
    *at = s + 1;
    return 1;
}

static int json_number(const char **at, double *x) {
    char *end;
    if (**at != '-' && !(**at >= '0' && **at <= '9')) return 0;
    *x = strtod(*at, &end); // takes all that JSON does
    *at = end;
    return isfinite(*x);
}

static void json_space(const char **at) { while (**at == ' ' || **at == '\n') (*at)++; }

static int json_buffer(const char **at, buffer *b) { // an object of "buffers"
    char key[32];
    double x = 0;
    memset(b, 0, sizeof *b);
    if (*(*at)++ != '{') return 0;
    for (;;) {
        if (!json_string(at, key, sizeof key) || *(*at)++ != ':') return 0;
        if (!strcmp(key, "operation")) { if (!json_string(at, b->operation, sizeof b->operation)) return 0; }
        else if (!strcmp(key, "kind")) { if (!json_string(at, b->kind, sizeof b->kind)) return 0; }
        else if (!strcmp(key, "dtype")) { if (!json_string(at, b->dtype, sizeof b->dtype)) return 0; }
        else if (!strcmp(key, "name") && !strncmp(*at, "null", 4)) *at += 4;
        else if (!strcmp(key, "recomputed") && !strncmp(*at, "true", 4)) *at += 4, b->again = 1;
        else if (!strcmp(key, "name")) { if (!json_string(at, b->name, sizeof b->name)) return 0; }
        else if (!strcmp(key, "shape")) {
            if (*(*at)++ != '[') return 0;
            while (**at != ']') {
                if (b->rank && *(*at)++ != ',') return 0;
                if (b->rank == 8 || !json_number(at, &b->shape[b->rank++])) return 0;
            }
            (*at)++;
        } else {
            if (!json_number(at, &x)) return 0;
            if (!strcmp(key, "bytes")) b->bytes = x;
            else if (!strcmp(key, "offset")) b->offset = x;
            else if (!strcmp(key, "born")) b->born = x;
            else if (!strcmp(key, "dies")) b->dies = x;
            else return 0;
        }
        if (**at == ',') { (*at)++; continue; }
        return *(*at)++ == '}';
    }
}

static int json_loop(const char **at, loop *l) {
    char key[32];
    memset(l, 0, sizeof *l);
    for (char open = '{';; open = ',') {
        double x = 0;
        if (*(*at)++ != open || !json_string(at, key, sizeof key) || *(*at)++ != ':' || !json_number(at, &x)) return 0;
        if (!strcmp(key, "start")) l->start = x;
        else if (!strcmp(key, "end")) l->end = x;
        else if (!strcmp(key, "count")) l->count = x;
        else return 0;
        if (**at == '}') { (*at)++; return 1; }
    }
}

static int json_list(const char **at, plan *p, char what) {
    char text[128];
    if (*(*at)++ != '[') return 0;
    for (;;) {
        json_space(at);
        if (**at == ']') { (*at)++; return 1; }
        if (what == 'l') {
            if (p->loops == 8 || !json_loop(at, &p->loop[p->loops++])) return 0;
        } else if (what == 'b') {
            p->buffer = (buffer *)realloc(p->buffer, sizeof *p->buffer * (size_t)(p->count + 1));
            if (!p->buffer || !json_buffer(at, &p->buffer[p->count++])) return 0;
        } else if (!json_string(at, text, sizeof text)) return 0;
        else p->unreached++;
        json_space(at);
        if (**at == ',') (*at)++, json_space(at);
        else if (**at != ']') return 0;
    }
}

static int json_plan(const char *s, plan *p) {
    char key[32];
    memset(p, 0, sizeof *p);
    if (*s++ != '{') return 0;
    for (;;) {
        double x = 0;
        if (!json_string(&s, key, sizeof key) || *s++ != ':') return 0;
        if (!strcmp(key, "buffers") || !strcmp(key, "unreached") || !strcmp(key, "loops")) {
            if (!json_list(&s, p, key[0])) return 0;
        } else if (!json_number(&s, &x)) return 0;
        else if (!strcmp(key, "peak")) p->peak = x;
        else if (!strcmp(key, "lower_bound")) p->lower_bound = x;
        else if (!strcmp(key, "instructions")) p->instructions = x;
        else if (!strcmp(key, "peak_instruction")) p->peak_instruction = x;
        else if (!strcmp(key, "program")) p->program = x;
        else if (!strcmp(key, "total")) p->total = x;
        else if (!strcmp(key, "flops")) p->flops = x;
        if (*s == ',') { s++; continue; }
        return *s == '}' && s[1] == '\n' && !s[2];
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// The plan that a program tells
// ---------------------------------------------------------------------------------------------------------------------
static char *text_of(const nt_program *p, size_t (*report)(const nt_program *, char *, size_t)) {
    size_t n = report(p, NULL, 0);
    char *s = (char *)malloc(n + 2);
    s[n + 1] = 77;
    if (report(p, s, n + 1) != n || strlen(s) != n || s[n + 1] != 77) s[0] = 0;
    return s;
}

static double up(double bytes) { return ceil(bytes / 64) * 64; } // what a value takes

static const char *plan_wrong(const nt_program *program, plan *p) { // NULL: all is well
    char *json = text_of(program, nt_report_json), *svg = text_of(program, nt_report_svg);
    nt_report_info r = nt_report(program);
    int titles = 0, ok = json_plan(json, p), drawn = xml_well_formed(svg, &titles);
    free(json), free(svg);
    if (!ok) return "no JSON";
    if (!drawn) return "no XML";
    if (titles != p->count) return "not a box for each buffer";
    if (p->peak != (double)r.peak || p->lower_bound != (double)r.lower_bound || p->instructions != r.instructions || p->peak_instruction != r.peak_instruction ||
        p->program != (double)r.program || p->total != (double)r.total || fabs(p->flops - r.flops) > 1e-12 * r.flops || p->unreached != r.unreached_count)
        return "other numbers than nt_report's";
    double most = 0, at_peak = 0;
    for (int k = 0; k <= r.instructions; k++) {
        double sum = 0;
        for (int i = 0; i < p->count; i++) sum += p->buffer[i].born <= k && k < p->buffer[i].dies ? up(p->buffer[i].bytes) : 0;
        if (sum > most) most = sum;
        if (k == r.peak_instruction) at_peak = sum;
    }
    // the memory of a loop is that of its body, which need not lie at its own lower bound
    if (p->loops ? most > p->lower_bound : most != p->lower_bound || at_peak != most) return "what lives at once is not the lower bound";
    for (int i = 0; i < p->count; i++) {
        const buffer *a = &p->buffer[i];
        if (a->offset + up(a->bytes) > p->peak || fmod(a->offset, 64) != 0 || a->bytes <= 0) return "a buffer outside the scratch";
        if (a->born < 0 || a->dies <= a->born || a->dies > r.instructions + 1) return "a life outside the program";
        if (strcmp(a->kind, "work")) {
            double n = !strcmp(a->dtype, "f64") || !strcmp(a->dtype, "i64") ? 8 : !strcmp(a->dtype, "bool") ? 1 : 4;
            for (int k = 0; k < a->rank; k++) n *= a->shape[k];
            if (n != a->bytes) return "bytes that are not the shape's";
        }
        if (!strcmp(a->kind, "output") && a->dies != r.instructions + 1) return "an output that does not live to the end";
        for (int j = 0; j < i; j++) {
            const buffer *b = &p->buffer[j];
            if (a->born < b->dies && b->born < a->dies && a->offset < b->offset + up(b->bytes) && b->offset < a->offset + up(a->bytes)) return "two values in one place";
        }
    }
    for (int k = 0; k < r.value_count; k++) { // the values at the peak are among them
        int found = 0;
        for (int i = 0; i < p->count; i++)
            found |= p->buffer[i].born == r.values[k].born && up(p->buffer[i].bytes) == (double)r.values[k].bytes && !strcmp(p->buffer[i].operation, r.values[k].operation);
        if (!found) return "a value at the peak that is no buffer";
    }
    return NULL;
}

static int kinds(const plan *p, const char *kind) {
    int n = 0;
    for (int k = 0; k < p->count; k++) n += !strcmp(p->buffer[k].kind, kind);
    return n;
}

static int plan_ok(const nt_program *program, plan *p, const char *name) {
    const char *wrong = program ? plan_wrong(program, p) : "no program";
    if (wrong) tap_note("%s: %s", name, wrong);
    return tap_ok(!wrong, "%s: %d buffers tell the plan", name, program ? p->count : 0);
}

static void serial_for_each(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    (void)user;
    for (int64_t k = 0; k < n; k++) fn(arg, k, (int)(k % 3));
}

static void test_steps(int workers) {
    nt_tape_desc d;
    plan p;
    memset(&d, 0, sizeof d), memset(&p, 0, sizeof p);
    if (workers) d.parallel.max_workers = workers, d.parallel.for_each = serial_for_each;
    nt_tape *t = nt_tape_open(&d);
    nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(8, 12, 12, 2)), *y = nt_input(t, NT_I32, NT_SHAPE(8));
    nt_layer *net = NT_SERIAL(t, nt_conv_layer(t, 8, NT_WINDOW(3, 3), NULL), nt_relu_layer(t), nt_max_pool_layer(t, NT_WINDOW(2, 2)), nt_flatten_layer(t), nt_dense_layer(t, 40, NULL),
                              nt_layer_norm_layer(t, NULL), nt_gelu_layer(t), nt_dense_layer(t, 5, NULL));
    nt_init(net, nt_key(1), x);
    nt_tensor *logits = nt_name(nt_apply(net, x, NULL), "a<b>&\"c\"\\ \xff\x01 caf\xc3\xa9 \xed\xa0\x80");
    nt_tensor *loss = nt_mean(nt_cross_entropy(logits, y)), *none = nt_name(nt_variable(t, NT_F32, NT_SHAPE(7), NULL), "un\"reached");
    nt_program *step = nt_compile_step(loss, nt_adam(t, NULL), NULL);
    plan_ok(step, &p, workers ? "a training step with three workers" : "a training step");
    tap_ok(kinds(&p, "parameter gradient") > 0 && kinds(&p, "gradient") > 0 && kinds(&p, "value") > 0 && kinds(&p, "output") == 1 && kinds(&p, "work") > 0,
           "%d values, %d gradients, %d of parameters, one loss, %d times work", kinds(&p, "value"), kinds(&p, "gradient"), kinds(&p, "parameter gradient"), kinds(&p, "work"));
    int named = 0, conv = 0;
    for (int k = 0; k < p.count; k++) {
        named |= !strcmp(p.buffer[k].name, "a<b>&\"c\"\\ ?? caf\xc3\xa9 ???");
        conv |= !strcmp(p.buffer[k].name, "Conv_0");
    }
    tap_ok(named && conv, "values have their names, whatever is in them");
    free(p.buffer);
    nt_program *window = nt_compile_step(loss, nt_multi_steps(nt_adam(t, NULL), 3), NULL);
    plan_ok(window, &p, "an accumulating step");
    free(p.buffer);
    nt_params params = nt_parameters(net);
    nt_tensor *all[16];
    for (int k = 0; k < params.count; k++) all[k] = params.items[k];
    all[params.count] = none;
    nt_compile_desc named_params;
    memset(&named_params, 0, sizeof named_params);
    named_params.params.count = params.count + 1, named_params.params.items = all;
    nt_program *unreached = nt_compile_step(loss, nt_sgd(t, NULL), &named_params);
    plan_ok(unreached, &p, "with a parameter that is not reached");
    tap_ok(p.unreached == 1, "which is listed");
    free(p.buffer);
    nt_params along = nt_jvp(NT_LIST(logits), NT_LIST(params.items[0]), NT_LIST(nt_full_like(params.items[0], 1)));
    nt_program *tangent = nt_compile(nt_sum(along.items[0]), NULL);
    plan_ok(tangent, &p, "a derivative forwards");
    tap_ok(kinds(&p, "tangent") > 0 && kinds(&p, "gradient") == 0, "with %d tangents", kinds(&p, "tangent"));
    free(p.buffer);
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_tape_close(t);
}

static void test_shapes_of_text(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(100), NULL);
    nt_program *p = nt_compile(nt_sum(nt_exp(x)), NULL), *still = nt_compile(x, NULL), *empty = nt_compile(nt_exp(nt_variable(t, NT_F32, NT_SHAPE(0, 3), NULL)), NULL);
    plan q;
    plan_ok(still, &q, "a program that copies a variable"), free(q.buffer);
    plan_ok(empty, &q, "an output without elements"), free(q.buffer);
    plan_ok(nt_compile_many(t, NT_LIST(x), NULL), &q, "again"), free(q.buffer);
    size_t n = nt_report_svg(p, NULL, 0), cut = 0;
    char *whole = text_of(p, nt_report_svg), *part = (char *)malloc(n + 2);
    for (size_t size = 1; size <= n + 1; size += 7) {
        memset(part, 77, n + 2);
        cut += nt_report_svg(p, part, size) != n || strlen(part) != (size <= n ? size - 1 : n) || strncmp(part, whole, size - 1) || part[size] != 77;
    }
    tap_ok(n > 0 && cut == 0, "a short buffer cuts the text and ends it");
    FILE *file = tmpfile();
    if (file) {
        nt_report_svg_print(p, file);
        size_t length = (size_t)ftell(file);
        rewind(file);
        size_t got = fread(part, 1, n + 1, file);
        tap_ok(length == n && got == n && !memcmp(part, whole, n), "a file gets the same");
        fclose(file);
        char *json = text_of(p, nt_report_json), *text = text_of(p, nt_report_text);
        size_t m = strlen(json), l = strlen(text);
        char *both = (char *)malloc(m + l + 1);
        file = tmpfile();
        nt_report_json_print(p, file), nt_report_print(p, file);
        rewind(file);
        got = fread(both, 1, m + l + 1, file);
        tap_ok(got == m + l && !memcmp(both, json, m) && !memcmp(both + m, text, l), "and of the other reports, one behind the other");
        fclose(file), free(json), free(text), free(both);
    } else tap_skip("no temporary file", "a file gets the same");
    tap_ok(nt_report_svg(NULL, part, 10) == 0 && !part[0] && nt_report_json(NULL, NULL, 0) == 0, "no program, no text");
    free(whole), free(part);
    nt_tape_close(t);
}

static void test_loops(void) {
    nt_tape *t = nt_tape_open(NULL);
    nt_tensor *x = nt_variable(t, NT_F32, NT_SHAPE(8, 20), NULL), *w = nt_variable(t, NT_F32, NT_SHAPE(20, 30), NULL), *key = nt_key_tensor(t, nt_key(3));
    nt_map *m = nt_map_begin(t, 16, NULL), *inner;
    nt_tensor *noise = nt_normal(nt_fold_in(key, nt_map_index(m)), NT_F32, NT_SHAPE(8, 20)), *y = nt_tanh(nt_matmul(nt_add(nt_sin(x), noise), w));
    inner = nt_map_begin(t, 3, NULL);
    nt_tensor *z = nt_map_sum(inner, nt_exp(nt_mul(y, nt_cast(nt_map_index(inner), NT_F32))));
    nt_map_end(inner);
    nt_tensor *loss = nt_map_mean(m, nt_mean(nt_square(nt_sub(z, y))));
    nt_map_end(m);
    plan p;
    nt_program *q = nt_compile_many(t, NT_LIST(nt_add_scalar(loss, 1), nt_grad(loss, w), nt_grad(loss, x)), NULL);
    plan_ok(q, &p, "maps in maps and their gradients");
    int inside = 1, counted = 1;
    for (int k = 0; k < p.loops; k++) inside &= p.loop[k].start < p.loop[k].end && p.loop[k].end <= p.instructions, counted &= p.loop[k].count == 16 || p.loop[k].count == 3;
    tap_ok(p.loops >= 2 && inside && counted, "with %d loops", p.loops);
    free(p.buffer);
    nt_tape_close(t);
}

// What is computed again has been computed before: an equal buffer that was born earlier. -1 if not; else how many there are.
static int computed_again(const plan *p) {
    int n = 0;
    for (int k = 0; k < p->count; k++) {
        const buffer *a = &p->buffer[k];
        int before = 0;
        if (!a->again || !strcmp(a->kind, "work")) continue;
        for (int j = 0; j < p->count; j++) {
            const buffer *b = &p->buffer[j];
            before |= !b->again && b->dies <= a->born && b->bytes == a->bytes && !strcmp(b->operation, a->operation) && !strcmp(b->dtype, a->dtype);
        }
        if (!before) return -1;
        n++;
    }
    return n;
}

static int occurrences(const char *text, const char *part) {
    int n = 0;
    for (const char *s = text; (s = strstr(s, part)) != NULL; s++) n++;
    return n;
}

// A plan that computes values again: its picture tells it as well, and slices give the bits of the plan that keeps them.
static void test_recomputed(void) {
    plan p;
    float data[64 * 32], loss[2][4];
    size_t peak = 0;
    for (int k = 0; k < 64 * 32; k++) data[k] = (float)((k * 37) % 64) / 32 - 1;
    for (int tight = 0; tight < 2; tight++) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *x = nt_input(t, NT_F32, NT_SHAPE(64, 32)), *y = x;
        nt_compile_desc d;
        memset(&d, 0, sizeof d);
        for (int k = 0; k < 8; k++) {
            static float numbers[32 * 32];
            for (int j = 0; j < 32 * 32; j++) numbers[j] = (float)((j * 11 + k) % 19 - 9) / 40;
            y = nt_tanh(nt_matmul(nt_gelu(y), nt_variable(t, NT_F32, NT_SHAPE(32, 32), numbers)));
        }
        d.budget = tight ? peak * 7 / 10 : 0;
        nt_program *step = nt_compile_step(nt_mean(nt_square(y)), nt_sgd(t, NULL), &d);
        nt_write(x, data);
        nt_clock none = { NULL, NULL };
        for (int k = 0; k < 4 && step; k++) {
            nt_status status = tight ? NT_AGAIN : nt_run(step);
            while (status == NT_AGAIN) status = nt_run_for(step, 0, none);
            loss[tight][k] = (float)nt_window_loss(step);
        }
        plan_ok(step, &p, tight ? "a plan within 70 per cent of the bytes" : "a plan that keeps everything");
        char *svg = text_of(step, nt_report_svg);
        int again = computed_again(&p), light = occurrences(svg, " again\" x="), legend = occurrences(svg, ">computed again<");
        free(svg);
        if (!tight) tap_ok(!again && !light && !legend, "in which nothing is marked as computed again");
        else tap_ok(again > 0 && again <= nt_report(step).recomputed && light > again && legend == 1, "%d values are marked as computed again, and were made before", again);
        if (!tight) peak = nt_report(step).peak;
        else tap_ok(step && nt_report(step).peak <= d.budget && !memcmp(loss[0], loss[1], sizeof loss[0]), "recomputed and in slices: the same losses");
        if (nt_error(t)) tap_note("%s", nt_error(t));
        free(step ? p.buffer : NULL);
        nt_tape_close(t);
    }
}

static uint32_t random_state;
static int random_below(int n) { return random_state = random_state * 1664525u + 1013904223u, (int)((random_state >> 10) % (unsigned)n); }

static nt_tensor *random_value(nt_tensor **v, int count) {
    nt_tensor *a = v[random_below(count)], *b = v[random_below(count)];
    int64_t start[2] = { 0, 1 }, limit[2] = { 6, 5 }, zero[2] = { 0, 0 }, after[2] = { 0, 2 };
    switch (random_below(9)) {
    case 0: return nt_add(a, b);
    case 1: return nt_mul(a, nt_sin(b));
    case 2: return nt_swap_axes(a, 0, 1);
    case 3: return nt_matmul(a, b);
    case 4: return nt_softmax(a, random_below(2));
    case 5: return nt_pad(nt_slice(a, start, limit, NULL), zero, after, NULL, 0);
    case 6: return nt_broadcast(nt_sum_axes(a, NT_AXES(1), 1), NT_SHAPE(6, 6));
    case 7: return nt_reshape(nt_tanh(nt_reshape(nt_swap_axes(a, 0, 1), NT_SHAPE(36))), NT_SHAPE(6, 6));
    default: return nt_maximum(a, b);
    }
}

static void test_random_plans(void) {
    int wrong = 0;
    for (int seed = 0; seed < 300; seed++) {
        nt_tape *t = nt_tape_open(NULL);
        nt_tensor *v[40], *out[4];
        plan p;
        int count = 3, outputs = 1 + seed % 3;
        random_state = (uint32_t)seed;
        for (int k = 0; k < 3; k++) v[k] = nt_variable(t, NT_F32, NT_SHAPE(6, 6), NULL);
        for (; count < 40; count++) v[count] = random_value(v, count);
        for (int k = 0; k < outputs; k++) out[k] = v[20 + random_below(20)];
        nt_params list;
        list.count = outputs, list.items = out;
        if (seed % 4 == 0) out[outputs - 1] = nt_grad(nt_sum(out[0]), v[0]);
        nt_program *q = nt_compile_many(t, list, NULL);
        const char *what = q ? plan_wrong(q, &p) : "no program";
        if (what) wrong++, tap_note("seed %d: %s %s", seed, what, nt_error(t) ? nt_error(t) : "");
        if (q) free(p.buffer);
        nt_tape_close(t);
    }
    tap_ok(wrong == 0, "300 random programs tell their plans");
}

// ---------------------------------------------------------------------------------------------------------------------
// The first operation that makes a NaN
// ---------------------------------------------------------------------------------------------------------------------
static int found(nt_tape *t, nt_program *p, const char *operation, const char *name, int64_t index, int nan) {
    nt_nonfinite f;
    nt_status status = nt_trace_nonfinite(p, &f);
    int ok = status == NT_NONFINITE && f.operation && !strcmp(f.operation, operation) && (name ? f.name && !strcmp(f.name, name) : !f.name) && f.index == index &&
             (nan ? f.value != f.value : f.value - f.value != 0 && f.value == f.value) && nt_error(t) && strstr(nt_error(t), operation);
    if (!ok) tap_note("%s: %s %s, element %lld, %g", nt_status_name(status), f.operation ? f.operation : "none", f.name ? f.name : "", (long long)f.index, f.value);
    if (nt_error(t)) tap_note("%s", nt_error(t));
    nt_error_clear(t);
    return ok;
}

static void test_nonfinite(void) {
    nt_tape *t = nt_tape_open(NULL);
    float numbers[6] = { 1, 2, 3, 4, 5, 6 }, mask[6] = { 0, 0, -INFINITY, 0, -INFINITY, 0 };
    nt_tensor *x = nt_name(nt_input(t, NT_F32, NT_SHAPE(2, 3)), "x"), *w = nt_name(nt_variable(t, NT_F32, NT_SHAPE(2, 3), numbers), "w");
    nt_tensor *far = nt_exp(nt_exp(x)), *log = nt_name(nt_log(nt_sub(x, w)), "distance");
    nt_program *p = nt_compile(nt_sum(nt_mul(far, w)), NULL), *q = nt_compile(nt_sum(nt_sqrt(nt_scale(log, 2))), NULL);
    nt_program *masked = nt_compile(nt_sum(nt_softmax(nt_add(x, nt_constant(t, NT_F32, NT_SHAPE(2, 3), mask)), 1)), NULL);
    nt_program *difference = nt_compile(nt_sub(nt_add(x, nt_constant(t, NT_F32, NT_SHAPE(2, 3), mask)), nt_constant(t, NT_F32, NT_SHAPE(2, 3), mask)), NULL);
    tap_ok(nt_trace_nonfinite(p, NULL) == NT_ERROR_STATE, "an input without data");
    nt_error_clear(t);
    nt_write(x, numbers);
    nt_nonfinite f;
    tap_ok(nt_trace_nonfinite(masked, &f) == NT_OK && !f.operation && !nt_error(t), "infinities that are meant are passed over");
    tap_ok(found(t, difference, "nt_sub", NULL, 2, 1), "not the NaN that comes of them");
    tap_ok(found(t, p, "nt_exp", NULL, 4, 0), "an overflow: exp(exp(5))");
    tap_ok(found(t, q, "nt_log", "distance", 0, 0), "log(0) by its name");
    numbers[3] = 0; // x - w = -4
    nt_write(x, numbers);
    tap_ok(found(t, q, "nt_log", "distance", 3, 1), "a NaN before the infinity");
    numbers[1] = NAN;
    nt_write(x, numbers);
    tap_ok(found(t, q, "nt_input", "x", 1, 1), "an input that holds a NaN");
    numbers[1] = 1;
    nt_write(x, numbers);
    tap_ok(nt_trace_nonfinite(nt_compile(nt_cast(nt_add(x, w), NT_I32), NULL), &f) == NT_OK, "integers have none");
    ((float *)nt_data(w))[5] = NAN;
    tap_ok(found(t, p, "nt_variable", "w", 5, 1), "a variable that holds one");
    tap_ok(nt_trace_nonfinite(NULL, &f) == NT_ERROR_ARGUMENT, "no program");
    // the last axis of the operand is not the last of the result; a NaN in the third iteration
    float zero[4] = { 1, 1, 0, 1 };
    nt_tensor *z = nt_variable(t, NT_F32, NT_SHAPE(4), zero);
    nt_map *m = nt_map_begin(t, 4, NULL);
    nt_tensor *s = nt_map_sum(m, nt_div(nt_sub(nt_map_slice(m, z), nt_full_like(nt_map_slice(m, z), 0)), nt_map_slice(m, z)));
    nt_map_end(m);
    nt_program *loop = nt_compile(s, NULL);
    nt_status status = nt_trace_nonfinite(loop, &f);
    tap_ok(status == NT_NONFINITE && !strcmp(f.operation, "nt_div") && f.iteration == 2 && f.operands == 2, "in an iteration of a loop: %s, %lld", f.operation ? f.operation : "none", (long long)f.iteration);
    nt_error_clear(t);
    nt_tape_close(t);
}

static void test_nonfinite_steps(int window) { // nothing is changed by looking
    heap h;
    nt_tape_desc d = heap_desc(&h);
    nt_tape *t[2];
    nt_program *step[2];
    nt_tensor *x[2];
    nt_layer *net[2];
    float data[4 * 6], out;
    for (int k = 0; k < 2; k++) {
        t[k] = nt_tape_open(&d);
        x[k] = nt_input(t[k], NT_F32, NT_SHAPE(4, 6));
        net[k] = NT_SERIAL(t[k], nt_dense_layer(t[k], 5, NULL), nt_dropout_layer(t[k], 0.5), nt_dense_layer(t[k], 3, NULL));
        nt_init(net[k], nt_key(3), x[k]);
        nt_apply_desc train;
        memset(&train, 0, sizeof train);
        train.train = 1, train.key = nt_key(8);
        nt_optimizer *o = nt_adam(t[k], NULL);
        step[k] = nt_compile_step(nt_mean(nt_square(nt_log(nt_square(nt_apply(net[k], x[k], &train))))), window ? nt_multi_steps(o, window) : o, NULL);
    }
    int same = 1, looked = 0;
    for (int run = 0; run < 6; run++) {
        for (int k = 0; k < 24; k++) data[k] = (float)((k * 7 + run * 5) % 11) - 5.25f;
        for (int k = 0; run == 4 && k < 24; k++) data[k] *= 1e30f; // its square overflows
        for (int k = 0; k < 2; k++) nt_write(x[k], data);
        h.closed = 1;
        nt_memory_use before = nt_memory(t[0]), after;
        nt_status status = nt_trace_nonfinite(step[0], NULL);
        after = nt_memory(t[0]);
        h.closed = 0;
        looked += status == (run == 4 ? NT_NONFINITE : NT_OK) && !memcmp(&before, &after, sizeof before) && nt_read(step[0], 0, &out) == NT_ERROR_STATE;
        nt_error_clear(t[0]);
        same &= nt_run(step[0]) == nt_run(step[1]);
        nt_params a = nt_parameters(net[0]), b = nt_parameters(net[1]);
        for (int k = 0; k < a.count; k++) same &= !memcmp(nt_data(a.items[k]), nt_data(b.items[k]), nt_bytes(a.items[k]));
        same &= nt_event(step[0]) == nt_event(step[1]) && nt_micro_step(step[0]) == nt_micro_step(step[1]) && nt_skipped(step[0]) == nt_skipped(step[1]);
    }
    tap_ok(looked == 6 && !h.wrong, "%s: looking before each run finds the one that has no finite loss, and allocates nothing (%d of 6)", window ? "windows" : "an update a run", looked);
    tap_ok(same, "training goes on as if nobody had looked");
    nt_clock none = { NULL, NULL };
    nt_run_for(step[0], 0, none);
    tap_ok(nt_trace_nonfinite(step[0], NULL) == NT_BUSY, "in the middle of a run it is busy");
    for (int k = 0; k < 2; k++) nt_tape_close(t[k]);
}

int main(void) {
    test_steps(0);
    test_steps(3);
    test_shapes_of_text();
    test_loops();
    test_recomputed();
    test_random_plans();
    test_nonfinite();
    test_nonfinite_steps(0);
    test_nonfinite_steps(2);
    return tap_end();
}
