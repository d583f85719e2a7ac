// pool.h: arrays that live until they are freed or the program ends, so that a leak checker sees the library's leaks only.
#ifndef POOL_H
#define POOL_H
#include <stdlib.h>

typedef struct pool_block { struct pool_block *next; void *data; } pool_block;
static pool_block *pool_blocks;

static void *pool_new(size_t count, size_t size) { // zeros
    pool_block *b = (pool_block *)malloc(sizeof *b);
    if (!b || !(b->data = calloc(count, size))) abort();
    b->next = pool_blocks, pool_blocks = b;
    return b->data;
}

static void pool_free(void *data) { // of the pool or of malloc
    for (pool_block **at = &pool_blocks; *at; at = &(*at)->next)
        if ((*at)->data == data) {
            pool_block *b = *at;
            *at = b->next;
            free(b);
            break;
        }
    free(data);
}

static void pool_end(void) {
    while (pool_blocks) pool_free(pool_blocks->data);
}
#endif
