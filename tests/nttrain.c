// The implementation, compiled once for all test programs that use the public header alone.
#define NTTRAIN_IMPLEMENTATION
#include "nttrain.h"
