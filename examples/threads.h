// Threads for nt_tape_desc.parallel, and a clock. The library starts no threads of its own: it calls this hook, and results have the
// same bits for any number of them. An engine gives its job system here; this is the least that works.
#ifndef EXAMPLES_THREADS_H
#define EXAMPLES_THREADS_H
#include "../nttrain.h"
#include <string.h>
#include <time.h>

#if defined(__unix__) || defined(__APPLE__)
#include <pthread.h>
#include <sys/time.h>
#include <unistd.h>

enum { THREADS_MOST = 64 };

typedef struct threads_job { // one call of for_each
    pthread_mutex_t lock;
    int64_t next, n;
    void (*fn)(void *arg, int64_t index, int worker);
    void *arg;
} threads_job;

typedef struct threads_hand {
    threads_job *job;
    int worker;
    pthread_t thread;
} threads_hand;

static void *threads_work(void *user) { // takes the next index until there is none
    threads_hand *hand = (threads_hand *)user;
    for (;;) {
        pthread_mutex_lock(&hand->job->lock);
        int64_t i = hand->job->next++;
        pthread_mutex_unlock(&hand->job->lock);
        if (i >= hand->job->n) return NULL;
        hand->job->fn(hand->job->arg, i, hand->worker);
    }
}

static void threads_for_each(void *user, int64_t n, void (*fn)(void *arg, int64_t index, int worker), void *arg) {
    const int workers = *(const int *)user;
    threads_job job = { .n = n, .fn = fn, .arg = arg };
    threads_hand hand[THREADS_MOST];
    int started = 1; // worker 0 is the calling thread
    pthread_mutex_init(&job.lock, NULL);
    for (; started < workers && started < n; started++) {
        hand[started].job = &job, hand[started].worker = started;
        if (pthread_create(&hand[started].thread, NULL, threads_work, &hand[started])) break; // those that there are do it all
    }
    hand[0].job = &job, hand[0].worker = 0;
    threads_work(&hand[0]);
    for (int k = 1; k < started; k++) pthread_join(hand[k].thread, NULL);
    pthread_mutex_destroy(&job.lock);
}

// As many threads as there are processors, this one among them.
static inline nt_parallel threads_all(void) {
    static int workers;
    long processors = sysconf(_SC_NPROCESSORS_ONLN);
    workers = processors < 1 ? 1 : processors > THREADS_MOST ? THREADS_MOST : (int)processors;
    nt_parallel parallel = { .user = &workers, .max_workers = workers, .for_each = threads_for_each };
    return parallel;
}

static inline double threads_seconds(void) { // of a clock on the wall
    struct timeval now;
    gettimeofday(&now, NULL);
    return (double)now.tv_sec + 1e-6 * (double)now.tv_usec;
}
#else
static inline nt_parallel threads_all(void) { // none: everything happens on the calling thread
    nt_parallel parallel = { NULL, 0, NULL };
    return parallel;
}

static inline double threads_seconds(void) { return (double)clock() / CLOCKS_PER_SEC; }
#endif
#endif
