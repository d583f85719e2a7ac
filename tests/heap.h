// heap.h: an allocator that counts, checks what it is given back, and fails on demand; closed, every call is an error.
#ifndef HEAP_H
#define HEAP_H
#include "nttrain.h"
#include <stdlib.h>
#include <string.h>

typedef struct heap {
    long calls, fail_at, fail_from; // the call that fails, from 1; from which on all fail (0: none)
    long live, bytes, wrong;
    int closed; // a call while this is set counts in wrong
} heap;

static void *heap_allocate(void *user, size_t bytes, size_t alignment) {
    heap *h = (heap *)user;
    void *p = NULL;
    h->calls++;
    if (h->closed) h->wrong++;
    if (h->calls == h->fail_at || (h->fail_from && h->calls >= h->fail_from)) return NULL;
    if (posix_memalign(&p, alignment < sizeof(void *) ? sizeof(void *) : alignment, bytes)) return NULL;
    memset(p, 0xa5, bytes);
    h->live++, h->bytes += (long)bytes;
    return p;
}

static void heap_release(void *user, void *p, size_t bytes) {
    heap *h = (heap *)user;
    if (h->closed || !p) h->wrong++;
    h->live--, h->bytes -= (long)bytes;
    memset(p, 0xdd, bytes);
    free(p);
}

// A tape that takes its memory there; the counts are 0.
static nt_tape_desc heap_desc(heap *h) {
    nt_tape_desc d;
    memset(h, 0, sizeof *h), memset(&d, 0, sizeof d);
    d.allocator.user = h, d.allocator.allocate = heap_allocate, d.allocator.release = heap_release;
    return d;
}
#endif
