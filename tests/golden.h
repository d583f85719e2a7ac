// golden.h: reads directories of golden cases and compares. C99, for the golden_* programs.
//
// A case is a line `NAME | SPEC | ATTRIBUTES | note` of DIR/cases.txt. SPEC is one S-expression: (word arg... key=value...), an
// argument is a word, a number or a nested list. The tensors of a case lie in DIR/NAME.safetensors, or with the attribute
// file=F in DIR/F.safetensors under names that begin with NAME/. Nothing here has a fixed size that a longer case could
// exceed: what does not fit (rank, nesting) is an error of the case. One mistake in a case fails that case and no other.
//
//     gd_run      walks a directory and prints one line of TAP for each case
//     gd_node     a parsed list: its word, its arguments, its keys; asking for a key marks it as understood
//     gd_case     the case being run: attributes, tensors, the first error; its memory goes when the case is done
//     gd_compare  by the case's tolerance
#ifndef GOLDEN_H
#define GOLDEN_H
#include "tap.h"
#include <errno.h>
#include <float.h>
#include <math.h>
#include <stdlib.h>

typedef struct gd_node {
    const char *word;             // of an atom: its text
    int is_list;
    struct gd_node **args;        // atoms and lists in order, without the keys
    int arg_count;
    const char **keys, **values;
    char *asked;                  // for each key: somebody wanted to know
    int key_count;
} gd_node;

typedef struct gd_tensor {
    nt_dtype dtype;
    nt_shape shape;
    int64_t size;
    void *data;
} gd_tensor;

typedef struct gd_case {
    const char *directory;
    const char *name;
    gd_node *spec;
    gd_node *attributes;          // a list without a word
    struct gd_files *files;
    struct gd_block *blocks;
    char error[1024];             // empty: none
    char later[64];               // the word that belongs to a later step; empty: none
} gd_case;

typedef struct gd_ints { int count; int64_t *at; } gd_ints;      // count -1: the key is not there
typedef struct gd_groups { int count, width; double *at; } gd_groups; // a:b,c:d is two groups of width 2

// ---------------------------------------------------------------------------------------------------------------------
// Memory and errors
// ---------------------------------------------------------------------------------------------------------------------
typedef struct gd_block { struct gd_block *next; double data[1]; } gd_block;

static inline void *gd_alloc(gd_case *c, size_t bytes) {
    gd_block *b = (gd_block *)malloc(sizeof(gd_block) + bytes);
    if (!b) {
        printf("Bail out! no memory\n");
        exit(2);
    }
    b->next = c->blocks;
    c->blocks = b;
    memset(b->data, 0, bytes);
    return b->data;
}

static inline void gd_free_all(gd_case *c) {
    while (c->blocks) {
        gd_block *next = c->blocks->next;
        free(c->blocks);
        c->blocks = next;
    }
}

static inline char *gd_copy(gd_case *c, const char *text, size_t length) {
    char *s = (char *)gd_alloc(c, length + 1);
    memcpy(s, text, length);
    return s;
}

static inline char *gd_join(gd_case *c, const char *a, const char *b, const char *d) {
    size_t n = strlen(a) + strlen(b) + strlen(d) + 1;
    char *s = (char *)gd_alloc(c, n);
    snprintf(s, n, "%s%s%s", a, b, d);
    return s;
}

// Notes the first error of the case; returns NULL for the caller to pass on.
static void *gd_fail(gd_case *c, const char *format, ...) TAP_PRINTF(2, 3);
static void *gd_fail(gd_case *c, const char *format, ...) {
    va_list list;
    if (c->error[0]) return NULL;
    va_start(list, format);
    vsnprintf(c->error, sizeof c->error, format, list);
    va_end(list);
    return NULL;
}

static inline void *gd_later(gd_case *c, const char *what) {
    if (!c->later[0]) snprintf(c->later, sizeof c->later, "%s", what);
    return NULL;
}

static inline int gd_stopped(const gd_case *c) { return c->error[0] || c->later[0]; }

// ---------------------------------------------------------------------------------------------------------------------
// The language
// ---------------------------------------------------------------------------------------------------------------------
#define GD_DEPTH 256

static inline void gd_push(gd_case *c, void ***items, int *count, void *item) {
    if ((*count & (*count - 1)) == 0) { // a power of two: full
        void **more = (void **)gd_alloc(c, sizeof(void *) * (*count ? (size_t)*count * 2 : 1));
        if (*count) memcpy(more, *items, sizeof(void *) * (size_t)*count);
        *items = more;
    }
    (*items)[(*count)++] = item;
}

static inline void gd_add_atom(gd_case *c, gd_node *list, const char *text, size_t length) {
    const char *equals = (const char *)memchr(text, '=', length);
    if (equals) {
        int keys = list->key_count;
        size_t at = (size_t)(equals - text);
        gd_push(c, (void ***)(void *)&list->keys, &keys, gd_copy(c, text, at));
        gd_push(c, (void ***)(void *)&list->values, &list->key_count, gd_copy(c, equals + 1, length - at - 1));
        return;
    }
    if (!list->word && list->arg_count == 0) {
        list->word = gd_copy(c, text, length);
        return;
    }
    gd_node *atom = (gd_node *)gd_alloc(c, sizeof(gd_node));
    atom->word = gd_copy(c, text, length);
    gd_push(c, (void ***)(void *)&list->args, &list->arg_count, atom);
}

// (op WORD ...) is the list of the word WORD.
static inline void gd_close_list(gd_case *c, gd_node *list) {
    list->asked = (char *)gd_alloc(c, (size_t)list->key_count + 1);
    if (!list->word || strcmp(list->word, "op") != 0) return;
    if (list->arg_count == 0 || list->args[0]->is_list) {
        gd_fail(c, "(op ...) without a word");
        return;
    }
    list->word = list->args[0]->word;
    list->args++;
    list->arg_count--;
}

// One list from *text on, which points after its parenthesis; moves *text behind the list.
static inline gd_node *gd_parse_list(gd_case *c, const char **text, int depth) {
    static const char space[] = " \t\r\n";
    gd_node *list = (gd_node *)gd_alloc(c, sizeof(gd_node));
    list->is_list = 1;
    if (depth > GD_DEPTH) return (gd_node *)gd_fail(c, "lists are nested more than %d deep", GD_DEPTH);
    for (;;) {
        *text += strspn(*text, space);
        if (**text == 0) return (gd_node *)gd_fail(c, "a parenthesis is not closed");
        if (**text == ')') break;
        if (**text == '(') {
            ++*text;
            gd_node *inner = gd_parse_list(c, text, depth + 1);
            if (!inner) return NULL;
            gd_push(c, (void ***)(void *)&list->args, &list->arg_count, inner);
            continue;
        }
        size_t length = strcspn(*text, " \t\r\n()");
        gd_add_atom(c, list, *text, length);
        *text += length;
    }
    ++*text;
    gd_close_list(c, list);
    return list;
}

static inline gd_node *gd_parse(gd_case *c, const char *text) {
    text += strspn(text, " \t");
    if (*text != '(') return (gd_node *)gd_fail(c, "not a list: %s", text);
    text++;
    gd_node *list = gd_parse_list(c, &text, 0);
    if (list && text[strspn(text, " \t\r\n")]) return (gd_node *)gd_fail(c, "more after the list: %s", text);
    if (list && !list->word) return (gd_node *)gd_fail(c, "a list without a word");
    return list;
}

static inline int gd_is(const gd_node *n, const char *word) { return n && n->word && strcmp(n->word, word) == 0; }

// The value of a key, or NULL.
static inline const char *gd_text(const gd_node *n, const char *key) {
    for (int k = 0; n && k < n->key_count; k++) {
        if (strcmp(n->keys[k], key) == 0) {
            n->asked[k] = 1;
            return n->values[k];
        }
    }
    return NULL;
}

static inline double gd_to_number(gd_case *c, const char *text) {
    char *end = NULL;
    double v = strtod(text, &end);
    if (end == text || *end) gd_fail(c, "not a number: %s", text);
    return v;
}

static inline int64_t gd_to_int(gd_case *c, const char *text) {
    char *end = NULL;
    errno = 0;
    long long v = strtoll(text, &end, 10);
    if (end == text || *end || errno) gd_fail(c, "not a 64-bit integer: %s", text);
    return v;
}

static inline double gd_number(gd_case *c, const gd_node *n, const char *key, double missing) {
    const char *text = gd_text(n, key);
    return text ? gd_to_number(c, text) : missing;
}

static inline int64_t gd_int(gd_case *c, const gd_node *n, const char *key, int64_t missing) {
    const char *text = gd_text(n, key);
    return text ? gd_to_int(c, text) : missing;
}

static inline double gd_need_number(gd_case *c, const gd_node *n, const char *key) {
    if (!gd_text(n, key)) gd_fail(c, "(%s ...) needs %s=", n->word, key);
    return gd_number(c, n, key, 0);
}

static inline int64_t gd_need_int(gd_case *c, const gd_node *n, const char *key) {
    if (!gd_text(n, key)) gd_fail(c, "(%s ...) needs %s=", n->word, key);
    return gd_int(c, n, key, 0);
}

// a:b:c,d:e:f as groups; groups of fewer than `width` numbers are filled up with zeros, of more are an error.
static inline gd_groups gd_to_groups(gd_case *c, const char *text, int width) {
    gd_groups g = { 0, width, NULL };
    int most = 1;
    for (const char *s = text; *s; s++) most += *s == ',';
    g.at = (double *)gd_alloc(c, sizeof(double) * (size_t)(most * width));
    if (!*text) return g;
    for (;;) {
        for (int k = 0;; k++) {
            size_t length = strcspn(text, ":,");
            if (k == width) {
                gd_fail(c, "a group of more than %d numbers", width);
                return g;
            }
            g.at[g.count * width + k] = gd_to_number(c, gd_copy(c, text, length));
            text += length;
            if (*text != ':') break;
            text++;
        }
        g.count++;
        if (!*text) return g;
        text++;
    }
}

static inline gd_ints gd_to_ints(gd_case *c, const char *text) {
    gd_ints list = { 0, NULL };
    int most = 1;
    for (const char *s = text; *s; s++) most += *s == ',';
    list.at = (int64_t *)gd_alloc(c, sizeof(int64_t) * (size_t)most);
    if (!*text || strcmp(text, "scalar") == 0 || strcmp(text, "none") == 0) return list;
    for (;;) {
        size_t length = strcspn(text, ",");
        list.at[list.count++] = gd_to_int(c, gd_copy(c, text, length));
        text += length;
        if (!*text) return list;
        text++;
    }
}

static inline gd_ints gd_get_ints(gd_case *c, const gd_node *n, const char *key) {
    const char *text = gd_text(n, key);
    gd_ints none = { -1, NULL };
    return text ? gd_to_ints(c, text) : none;
}

static inline gd_ints gd_need_ints(gd_case *c, const gd_node *n, const char *key) {
    gd_ints list = gd_get_ints(c, n, key);
    if (list.count < 0) gd_fail(c, "(%s ...) needs %s=", n->word, key);
    return list;
}

static inline nt_shape gd_to_shape(gd_case *c, gd_ints list) {
    if (list.count > NT_MAX_RANK) gd_fail(c, "a shape of rank %d (at most %d)", list.count, NT_MAX_RANK);
    int rank = list.count < 0 || list.count > NT_MAX_RANK ? 0 : list.count;
    return nt_shape_make(rank, list.at);
}

static inline nt_shape gd_need_shape(gd_case *c, const gd_node *n, const char *key) { return gd_to_shape(c, gd_need_ints(c, n, key)); }

static inline nt_axes gd_to_axes(gd_case *c, gd_ints list) {
    nt_axes axes;
    memset(&axes, 0, sizeof axes);
    if (list.count > NT_MAX_RANK) gd_fail(c, "%d axes (at most %d)", list.count, NT_MAX_RANK);
    for (int k = 0; k < list.count && k < NT_MAX_RANK; k++) axes.axis[axes.count++] = (int)list.at[k];
    return axes;
}

// A key that nobody asked for is a part of the computation that was passed over: an error.
static inline void gd_check_keys(gd_case *c, const gd_node *n) {
    for (int k = 0; n && n->is_list && k < n->key_count; k++) {
        if (!n->asked[k]) gd_fail(c, "(%s ...): the key %s= is not known", n->word ? n->word : "", n->keys[k]);
    }
    for (int k = 0; n && k < n->arg_count; k++) gd_check_keys(c, n->args[k]);
}

// ---------------------------------------------------------------------------------------------------------------------
// Tensors
// ---------------------------------------------------------------------------------------------------------------------
#define GD_OPEN_FILES 4
// The files that the last cases used. A tape each, so that closing one gives back all that its file needed.
typedef struct gd_files {
    struct { char *path; nt_tape *tape; nt_file *file; } open[GD_OPEN_FILES];
    int next;
} gd_files;

static inline void gd_close_file(gd_files *files, int k) {
    free(files->open[k].path);
    nt_file_close(files->open[k].file);
    nt_tape_close(files->open[k].tape);
    memset(&files->open[k], 0, sizeof files->open[k]);
}

static inline void gd_close_files(gd_files *files) {
    for (int k = 0; k < GD_OPEN_FILES; k++) gd_close_file(files, k);
}

static inline nt_file *gd_open_file(gd_case *c) {
    gd_files *files = c->files;
    const char *stem = gd_text(c->attributes, "file");
    char *path = gd_join(c, gd_join(c, c->directory, "/", stem ? stem : c->name), ".safetensors", "");
    for (int k = 0; k < GD_OPEN_FILES; k++) {
        if (files->open[k].path && strcmp(files->open[k].path, path) == 0) return files->open[k].file;
    }
    int k = files->next;
    files->next = (k + 1) % GD_OPEN_FILES;
    gd_close_file(files, k);
    files->open[k].tape = nt_tape_open(NULL);
    files->open[k].file = nt_file_open(files->open[k].tape, path);
    if (!files->open[k].file) {
        const char *why = nt_error(files->open[k].tape);
        gd_fail(c, "%s: %s", path, why ? why : "cannot be read");
        gd_close_file(files, k);
        return NULL;
    }
    files->open[k].path = (char *)malloc(strlen(path) + 1);
    if (files->open[k].path) memcpy(files->open[k].path, path, strlen(path) + 1);
    return files->open[k].file;
}

static inline int64_t gd_size_of(nt_shape shape) {
    int64_t n = 1;
    for (int k = 0; k < shape.rank; k++) n *= shape.size[k];
    return n;
}

static inline int gd_same_shape(nt_shape a, nt_shape b) {
    int same = a.rank == b.rank;
    for (int k = 0; same && k < a.rank; k++) same = a.size[k] == b.size[k];
    return same;
}

static inline gd_tensor gd_new(gd_case *c, nt_dtype dtype, nt_shape shape) {
    gd_tensor t = { dtype, shape, gd_size_of(shape), NULL };
    t.data = gd_alloc(c, (size_t)t.size * nt_dtype_size(dtype));
    return t;
}

// The tensor of the case with this name; 0 if there is none.
static inline int gd_find(gd_case *c, const char *name, gd_tensor *out) {
    nt_file *file = gd_open_file(c);
    if (!file) return 0;
    if (gd_text(c->attributes, "file")) name = gd_join(c, c->name, "/", name);
    const nt_file_entry *entry = nt_file_find(file, name);
    if (!entry) return 0;
    if (entry->dtype == NT_DTYPE_COUNT) return gd_fail(c, "%s has a dtype that this library cannot read", name) != NULL;
    *out = gd_new(c, entry->dtype, entry->shape);
    nt_status status = nt_file_read(file, entry, out->data, entry->dtype);
    if (status != NT_OK) gd_fail(c, "%s cannot be read: %s", name, nt_status_name(status));
    return status == NT_OK;
}

static inline gd_tensor gd_need(gd_case *c, const char *name) {
    gd_tensor t = { NT_F64, { 0, { 0 } }, 0, NULL };
    if (!gd_find(c, name, &t)) gd_fail(c, "there is no tensor %s", name);
    return t;
}

// The tensors of the case whose names begin with `prefix`, as names without it; *count of them, in the file's order.
static inline const char **gd_list(gd_case *c, const char *prefix, int *count) {
    nt_file *file = gd_open_file(c);
    const char *whole = gd_text(c->attributes, "file") ? gd_join(c, c->name, "/", prefix) : prefix;
    const char **names = (const char **)gd_alloc(c, sizeof(char *) * (size_t)(nt_file_count(file) + 1));
    *count = 0;
    for (int k = 0; k < nt_file_count(file); k++) {
        const char *name = nt_file_entry_at(file, k)->name;
        if (strncmp(name, whole, strlen(whole)) != 0) continue;
        names[(*count)++] = gd_copy(c, name + strlen(whole), strlen(name) - strlen(whole));
    }
    return names;
}

// f16 (5 bits of exponent) and bf16 (8) as double.
static inline double gd_small_float(unsigned bits, int exponent_bits) {
    int mantissa_bits = 15 - exponent_bits, bias = (1 << (exponent_bits - 1)) - 1;
    int exponent = (int)(bits >> mantissa_bits) & ((1 << exponent_bits) - 1);
    double mantissa = (double)(bits & ((1u << mantissa_bits) - 1));
    double v;
    if (exponent == (1 << exponent_bits) - 1) v = mantissa != 0 ? NAN : INFINITY;
    else if (exponent == 0) v = ldexp(mantissa, 1 - bias - mantissa_bits);
    else v = ldexp(mantissa + (double)(1u << mantissa_bits), exponent - bias - mantissa_bits);
    return bits >> 15 ? -v : v;
}

static inline double gd_value(const gd_tensor *t, int64_t i) {
    switch (t->dtype) {
    case NT_F32: return (double)((const float *)t->data)[i];
    case NT_F64: return ((const double *)t->data)[i];
    case NT_F16: return gd_small_float(((const uint16_t *)t->data)[i], 5);
    case NT_BF16: return gd_small_float(((const uint16_t *)t->data)[i], 8);
    case NT_I32: return (double)((const int32_t *)t->data)[i];
    case NT_U32: return (double)((const uint32_t *)t->data)[i];
    case NT_I8: return (double)((const int8_t *)t->data)[i];
    case NT_BOOL:
    case NT_U8: return (double)((const uint8_t *)t->data)[i];
    case NT_I16: return (double)((const int16_t *)t->data)[i];
    case NT_U16: return (double)((const uint16_t *)t->data)[i];
    case NT_I64: return (double)((const int64_t *)t->data)[i];
    case NT_U64: return (double)((const uint64_t *)t->data)[i];
    default: return NAN;
    }
}

static inline int gd_is_float(nt_dtype dtype) { return dtype == NT_F32 || dtype == NT_F64 || dtype == NT_F16 || dtype == NT_BF16; }

// Floating values as f32 or f64; other tensors as they are.
static inline gd_tensor gd_as(gd_case *c, gd_tensor t, nt_dtype dtype) {
    if (!gd_is_float(t.dtype) || t.dtype == dtype) return t;
    gd_tensor r = gd_new(c, dtype, t.shape);
    for (int64_t i = 0; i < t.size; i++) {
        double v = gd_value(&t, i);
        if (dtype == NT_F32) ((float *)r.data)[i] = (float)v;
        else ((double *)r.data)[i] = v;
    }
    return r;
}

// Row `index` of the first axis.
static inline gd_tensor gd_row(const gd_tensor *t, int64_t index) {
    gd_tensor r = *t;
    r.shape.rank--;
    for (int k = 0; k < r.shape.rank; k++) r.shape.size[k] = t->shape.size[k + 1];
    r.size = gd_size_of(r.shape);
    r.data = (char *)t->data + (size_t)(index * r.size) * nt_dtype_size(t->dtype);
    return r;
}

// ---------------------------------------------------------------------------------------------------------------------
// Comparing
// ---------------------------------------------------------------------------------------------------------------------
typedef struct gd_rule {
    int exact;              // every bit (of floats of another dtype than expected: every value)
    double tolerance;       // largest |a - b| over largest finite |b|; |a| where all b are zero
    double ulp, tail_ulp;   // > 0: in units of the spacing at max(|b|, floor); tail: for |b| > 3
    double floor;
} gd_rule;

static inline void gd_mismatch(gd_case *c, const char *what, const gd_tensor *got, const gd_tensor *want, int64_t i, double error, const char *unit) {
    gd_fail(c, "%s (%s): element %lld is %.17g, expected %.17g, error %.3g %s", what, nt_dtype_name(got->dtype), (long long)i, gd_value(got, i),
            gd_value(want, i), error, unit);
}

// A value beyond the range of the dtype that computed it is expected to be an infinity there.
static inline double gd_expected(const gd_tensor *got, const gd_tensor *want, int64_t i) {
    double b = gd_value(want, i);
    return got->dtype == NT_F32 && fabs(b) > (double)FLT_MAX && !isnan(b) ? copysign(INFINITY, b) : b;
}

static inline double gd_spacing(nt_dtype dtype, double at) {
    int digits = dtype == NT_F64 ? 53 : dtype == NT_F16 ? 11 : dtype == NT_BF16 ? 8 : 24;
    int least = dtype == NT_F64 ? -1074 : dtype == NT_F16 ? -24 : dtype == NT_BF16 ? -133 : -149;
    int exponent = 0;
    if (at == 0) return ldexp(1, least);
    frexp(at, &exponent);
    return ldexp(1, exponent - digits > least ? exponent - digits : least);
}

static inline int gd_compare_exact(gd_case *c, const char *what, const gd_tensor *got, const gd_tensor *want) {
    size_t bytes = nt_dtype_size(got->dtype);
    for (int64_t i = 0; i < got->size; i++) {
        double a = gd_value(got, i), b = gd_expected(got, want, i);
        int same = got->dtype == want->dtype ? memcmp((char *)got->data + (size_t)i * bytes, (char *)want->data + (size_t)i * bytes, bytes) == 0 : a == b;
        if (same || (isnan(a) && isnan(b))) continue;
        gd_mismatch(c, what, got, want, i, fabs(a - b), "(exact)");
        return 0;
    }
    return 1;
}

static inline int gd_compare(gd_case *c, const char *what, const gd_tensor *got, const gd_tensor *want, const gd_rule *rule) {
    if (!gd_same_shape(got->shape, want->shape)) return gd_fail(c, "%s has another shape than expected (rank %d and %d)", what, got->shape.rank, want->shape.rank) != NULL;
    if (got->dtype != want->dtype && !(gd_is_float(got->dtype) && gd_is_float(want->dtype)))
        return gd_fail(c, "%s is %s, expected %s", what, nt_dtype_name(got->dtype), nt_dtype_name(want->dtype)) != NULL;
    if (rule->exact || !gd_is_float(want->dtype)) return gd_compare_exact(c, what, got, want);
    double largest = 0;
    for (int64_t i = 0; i < want->size; i++) {
        double b = fabs(gd_expected(got, want, i));
        if (isfinite(b) && b > largest) largest = b;
    }
    for (int64_t i = 0; i < want->size; i++) {
        double a = gd_value(got, i), b = gd_expected(got, want, i), error;
        if (isnan(a) && isnan(b)) continue;
        if (!isfinite(a) || !isfinite(b)) {
            if (a == b) continue;
            gd_mismatch(c, what, got, want, i, INFINITY, "");
            return 0;
        }
        if (rule->ulp > 0) {
            double limit = rule->tail_ulp > 0 && fabs(b) > 3 ? rule->tail_ulp : rule->ulp;
            error = fabs(a - b) / gd_spacing(want->dtype, fmax(fabs(b), rule->floor));
            if (error <= limit) continue;
            gd_mismatch(c, what, got, want, i, error, "ulp");
            return 0;
        }
        error = largest > 0 ? fabs(a - b) / largest : fabs(a);
        if (error <= rule->tolerance) continue;
        gd_mismatch(c, what, got, want, i, error, "of the largest");
        return 0;
    }
    return 1;
}

// ---------------------------------------------------------------------------------------------------------------------
// Directories
// ---------------------------------------------------------------------------------------------------------------------
static inline char *gd_read_text(const char *path) {
    FILE *f = fopen(path, "rb");
    size_t size = 0, room = 4096;
    char *text = (char *)malloc(room);
    while (f && text) {
        size += fread(text + size, 1, room - size - 1, f);
        if (size < room - 1) break;
        text = (char *)realloc(text, room *= 2);
    }
    if (f && text && !ferror(f)) text[size] = 0;
    else {
        free(text);
        text = NULL;
    }
    if (f) fclose(f);
    return text;
}

static inline char *gd_trim(char *s) {
    s += strspn(s, " \t\r");
    for (size_t n = strlen(s); n > 0 && strchr(" \t\r", s[n - 1]); n--) s[n - 1] = 0;
    return s;
}

// NAME | SPEC | ATTRIBUTES | note
static inline void gd_parse_line(gd_case *c, char *line) {
    char *part[4] = { line, NULL, NULL, NULL };
    for (int k = 1; k < 4; k++) {
        char *bar = part[k - 1] ? strchr(part[k - 1], '|') : NULL;
        if (!bar) break;
        *bar = 0;
        part[k] = bar + 1;
    }
    c->name = gd_trim(part[0]);
    if (!part[2]) {
        gd_fail(c, "not NAME | SPEC | ATTRIBUTES | note");
        return;
    }
    c->spec = gd_parse(c, gd_trim(part[1]));
    c->attributes = gd_parse(c, gd_join(c, "(attributes ", part[2], ")"));
}

typedef void (*gd_run_fn)(gd_case *c);

static inline void gd_run_line(gd_case *c, char *line, gd_run_fn run) {
    gd_parse_line(c, line);
    if (!c->error[0]) run(c);
    if (!gd_stopped(c)) gd_check_keys(c, c->spec);
    if (c->error[0]) {
        tap_ok(0, "%s", c->name);
        tap_note("%s", c->error);
    } else if (c->later[0]) {
        tap_todo(c->later, "%s", c->name);
    } else {
        tap_ok(1, "%s", c->name);
    }
}

// Runs every case of a directory; returns the exit status of the program.
static inline int gd_run(const char *directory, gd_run_fn run) {
    char path[4096];
    gd_files files;
    memset(&files, 0, sizeof files);
    snprintf(path, sizeof path, "%s/cases.txt", directory);
    char *text = gd_read_text(path);
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        char *trimmed = gd_trim(line);
        if (*trimmed && *trimmed != '#') {
            gd_case c;
            memset(&c, 0, sizeof c);
            c.directory = directory;
            c.files = &files;
            gd_run_line(&c, trimmed, run);
            gd_free_all(&c);
        }
        line = end ? end + 1 : NULL;
    }
    if (tap_checks == 0) tap_ok(0, "%s holds no case", path);
    gd_close_files(&files);
    free(text);
    return tap_end();
}
#endif
