// tap.h: a test program prints one line for each check, as TAP (the Test Anything Protocol) wants it.
// C99 and C++11, header only. A program ends with `return tap_end();`, which prints the plan.
//
//     tap_ok(a == b, "sum of %d numbers", n);   // "ok 1 - sum of 3 numbers" or "not ok 1 - ..."
//     tap_is_int(got, want, "rank of x");       // as tap_ok, and says both numbers when they differ
//     tap_is_text(got, want, "its name");
//     TAP_CHECK(a == b);                        // the expression is the name
//     tap_todo("sort", "argsort of ties");      // "not ok 4 - argsort of ties # TODO sort": known, not yet there, no failure
//     tap_skip("no AVX2 here", "equal bits");   // "ok 5 - equal bits # SKIP no AVX2 here"
//     tap_note("worst error %g", e);            // "# worst error 1e-9"
#ifndef TAP_H
#define TAP_H
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#if defined(__GNUC__)
#define TAP_PRINTF(text, rest) __attribute__((format(printf, text, rest), unused))
#define TAP_UNUSED __attribute__((unused))
#else
#define TAP_PRINTF(text, rest)
#define TAP_UNUSED
#endif

static int tap_checks, tap_failures, tap_todos, tap_skips;

// One description without line ends and without '#', which begins a directive.
static void tap_print_name(const char *format, va_list list) {
    char text[1024];
    vsnprintf(text, sizeof text, format, list);
    for (char *c = text; *c; c++) {
        if (*c == '\n' || *c == '\r' || *c == '#') *c = ' ';
    }
    printf(" - %s", text);
}

static int tap_ok(int ok, const char *format, ...) TAP_PRINTF(2, 3);
static int tap_ok(int ok, const char *format, ...) {
    va_list list;
    tap_checks++;
    if (!ok) tap_failures++;
    printf("%s %d", ok ? "ok" : "not ok", tap_checks);
    va_start(list, format);
    tap_print_name(format, list);
    va_end(list);
    printf("\n");
    fflush(stdout);
    return ok;
}

static void tap_todo(const char *reason, const char *format, ...) TAP_PRINTF(2, 3);
static void tap_todo(const char *reason, const char *format, ...) {
    va_list list;
    tap_checks++;
    tap_todos++;
    printf("not ok %d", tap_checks);
    va_start(list, format);
    tap_print_name(format, list);
    va_end(list);
    printf(" # TODO %s\n", reason);
}

static void tap_skip(const char *reason, const char *format, ...) TAP_PRINTF(2, 3);
static void tap_skip(const char *reason, const char *format, ...) {
    va_list list;
    tap_checks++;
    tap_skips++;
    printf("ok %d", tap_checks);
    va_start(list, format);
    tap_print_name(format, list);
    va_end(list);
    printf(" # SKIP %s\n", reason);
}

// Every line of the text gets its '#', so that nothing in it is taken for a result.
static void tap_note(const char *format, ...) TAP_PRINTF(1, 2);
static void tap_note(const char *format, ...) {
    char text[4096];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    for (char *line = text; line;) {
        char *end = strchr(line, '\n');
        if (end) *end = 0;
        printf("# %s\n", line);
        line = end && end[1] ? end + 1 : NULL;
    }
    fflush(stdout);
}

TAP_UNUSED static int tap_is_int(long long got, long long want, const char *name) {
    int ok = tap_ok(got == want, "%s", name);
    if (!ok) tap_note("got %lld, expected %lld", got, want);
    return ok;
}

TAP_UNUSED static int tap_is_text(const char *got, const char *want, const char *name) {
    int ok = tap_ok(got && want ? strcmp(got, want) == 0 : got == want, "%s", name);
    if (!ok) tap_note("got \"%s\", expected \"%s\"", got ? got : "(NULL)", want ? want : "(NULL)");
    return ok;
}

TAP_UNUSED static int tap_check_at(int ok, const char *expression, const char *file, int line) {
    tap_ok(ok, "%s", expression);
    if (!ok) tap_note("%s:%d", file, line);
    return ok;
}
#define TAP_CHECK(condition) tap_check_at((condition) != 0, #condition, __FILE__, __LINE__)

// Prints the plan (its absence shows that a program died early) and gives the exit status.
TAP_UNUSED static int tap_end(void) {
    printf("1..%d\n", tap_checks);
    if (tap_failures || tap_todos || tap_skips) tap_note("%d failed, %d to do, %d skipped of %d", tap_failures, tap_todos, tap_skips, tap_checks);
    return tap_failures ? 1 : 0;
}
#endif
