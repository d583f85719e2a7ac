// A progress display for the examples: a bar that redraws itself on a terminal, plain lines in a file or a pipe.
#ifndef EXAMPLES_PROGRESS_H
#define EXAMPLES_PROGRESS_H
#include <stdio.h>
#if defined(_WIN32)
#include <io.h>
#elif defined(__unix__) || defined(__APPLE__)
#include <unistd.h>
#endif

typedef struct progress {
    FILE *out;       // NULL: silent
    int on_terminal; // out is standard output and a person is looking at it
} progress;

static inline progress progress_begin(FILE *out) {
    progress p = { out, 0 };
#if defined(_WIN32)
    p.on_terminal = out == stdout && _isatty(1);
#elif defined(__unix__) || defined(__APPLE__)
    p.on_terminal = out == stdout && isatty(1);
#endif
    return p;
}

// For nt_progress_bar: the file where a person is looking at it, else NULL.
static inline FILE *progress_terminal(FILE *out) {
    return progress_begin(out).on_terminal ? out : NULL;
}

// On a terminal: overwrites the line with a bar and the text. Elsewhere nothing: plain output has only the milestones.
static inline void progress_bar(const progress *p, int done, int all, const char *text) {
    const int width = 30;
    if (!p->out || !p->on_terminal || all <= 0) return;
    int filled = (int)((long long)done * width / all);
    fputs("\r[", p->out);
    for (int i = 0; i < width; i++) fputc(i < filled ? '#' : '.', p->out);
    fprintf(p->out, "] %3d %%  %s\033[K", (int)(100LL * done / all), text);
    fflush(p->out);
}

// Elsewhere: a line of text. On a terminal nothing, since the bar says it already.
static inline void progress_milestone(const progress *p, const char *text) {
    if (!p->out || p->on_terminal) return;
    fprintf(p->out, "%s\n", text);
}

static inline void progress_end(const progress *p) {
    if (p->out && p->on_terminal) fputc('\n', p->out);
}
#endif
