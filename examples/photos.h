// The ten photographs of examples/data.
#ifndef EXAMPLES_PHOTOS_H
#define EXAMPLES_PHOTOS_H
#include "../nttrain.h"
#include <stdio.h>

enum { PHOTOS = 10, PHOTO_SIDE = 64 };
typedef uint8_t photos[PHOTOS][PHOTO_SIDE][PHOTO_SIDE][3]; // red, green, blue

// Reads them from a folder whose name ends in a slash. The file may be anything, so its size is compared before its data are read.
static inline nt_status photos_load(nt_tape *t, const char *folder, photos to) {
    char path[768];
    snprintf(path, sizeof path, "%sphotos64.npy", folder);
    nt_file *file = nt_file_open(t, path);
    const nt_file_entry *entry = nt_file_entry_at(file, 0);
    nt_status status = !file ? NT_ERROR_FILE : entry && entry->bytes == sizeof(photos) ? nt_file_read(file, entry, to, NT_U8) : NT_ERROR_SHAPE;
    nt_file_close(file);
    return status;
}
#endif
