// Where an example lies, so that it runs from anywhere.
#ifndef EXAMPLES_FOLDER_H
#define EXAMPLES_FOLDER_H
#include <stdio.h>
#include <string.h>

// The folder of this program, with a slash, and a name in it.
static inline void folder_of(const char *program, const char *name, char *path, size_t size) {
    size_t length = strlen(program);
    while (length && program[length - 1] != '/' && program[length - 1] != '\\') length--;
    snprintf(path, size, "%.*s%s", (int)length, program, name);
}
#endif
