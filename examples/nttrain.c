// The implementation, compiled once for the examples that are linked with it. (xor.c and digits.c have it in their own file.)
#define NTTRAIN_IMPLEMENTATION
#include "../nttrain.h"
