// crew.h: the host's threads for nt_parallel, as many as a test asks for; they are those of the examples.
#ifndef CREW_H
#define CREW_H
#include "../examples/threads.h"

typedef struct crew {
    int workers;
    int64_t groups; // calls of for_each
} crew;

static void crew_for_each(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    crew *c = (crew *)user;
    c->groups++;
    threads_for_each(&c->workers, n, fn, arg);
}

static void crew_hire(crew *c, int workers) { c->workers = workers, c->groups = 0; } // at most THREADS_MOST

static nt_parallel crew_parallel(crew *c) { // for nt_tape_desc
    nt_parallel p;
    p.user = c, p.max_workers = c->workers, p.for_each = crew_for_each;
    return p;
}
#endif
