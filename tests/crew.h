// crew.h: the host's threads, nt_parallel by as many as there are workers, each taking the next index; the calling thread works, too.
#ifndef CREW_H
#define CREW_H
#include "nttrain.h"
#include <pthread.h>
#include <string.h>

enum { MOST_HANDS = 8 };

typedef struct crew {
    int workers;
    pthread_mutex_t lock;
    int64_t next, n;
    void (*fn)(void *arg, int64_t index, int worker);
    void *arg;
    int64_t groups; // calls of for_each
} crew;

typedef struct crew_hand { crew *c; int index; pthread_t thread; } crew_hand;

static void *crew_work(void *user) {
    crew_hand *h = (crew_hand *)user;
    for (;;) {
        pthread_mutex_lock(&h->c->lock);
        int64_t i = h->c->next++;
        pthread_mutex_unlock(&h->c->lock);
        if (i >= h->c->n) return NULL;
        h->c->fn(h->c->arg, i, h->index);
    }
}

static void crew_for_each(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    crew *c = (crew *)user;
    crew_hand hands[MOST_HANDS];
    c->next = 0, c->n = n, c->fn = fn, c->arg = arg, c->groups++;
    for (int k = 0; k < c->workers; k++) {
        hands[k].c = c, hands[k].index = k;
        if (k + 1 == c->workers) crew_work(&hands[k]);
        else pthread_create(&hands[k].thread, NULL, crew_work, &hands[k]);
    }
    for (int k = 0; k + 1 < c->workers; k++) pthread_join(hands[k].thread, NULL);
}

static void crew_hire(crew *c, int workers) { // at most MOST_HANDS
    memset(c, 0, sizeof *c);
    c->workers = workers;
    pthread_mutex_init(&c->lock, NULL);
}

static void crew_dismiss(crew *c) { pthread_mutex_destroy(&c->lock); }

static nt_parallel crew_parallel(crew *c) { // for nt_tape_desc
    nt_parallel p;
    p.user = c, p.max_workers = c->workers, p.for_each = crew_for_each;
    return p;
}
#endif
