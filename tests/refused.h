// refused.h: an error that must come, and what its message must say.
#ifndef REFUSED_H
#define REFUSED_H
#include "nttrain.h"
#include "tap.h"

// Nothing was recorded or made, the status is this one, the message has all of the words, which stand between bars: "nt_matmul|f32[3,4]".
static void refused(nt_tape *t, const void *made, nt_status status, const char *words, const char *what) {
    const char *message = nt_error(t) ? nt_error(t) : "";
    char list[256], *word;
    int all = 1;
    snprintf(list, sizeof list, "%s", words);
    for (word = strtok(list, "|"); word; word = strtok(NULL, "|")) all &= strstr(message, word) != NULL;
    tap_ok(!made && nt_error_status(t) == status && all, "%s: %s", what, message);
    nt_error_clear(t);
}
#endif
