#!/bin/sh
# test_build.sh: the header as a file that is compiled. Prints TAP.
# What $CC can do in a minute; with MODE=all every compiler and standard that is here.
here=$(cd "$(dirname "$0")" && pwd)
header=$here/../nttrain.h
work=${BUILD:-build}/header
CC=${CC:-cc}
mode=${MODE:-quick}
mkdir -p "$work" || exit 1
n=0 failed=0

result() { # status, name; the log is shown on failure
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then echo "ok $n - $2"; return; fi
    failed=$((failed + 1))
    echo "not ok $n - $2"
    head -n 12 "$work/log" | sed 's/^/# /'
}
skip() { n=$((n + 1)); echo "ok $n - $1 # SKIP $2"; }
try() { # name, command...
    name=$1; shift
    "$@" > "$work/log" 2>&1
    result $? "$name"
}
have() { command -v "$1" > /dev/null 2>&1; }

strict="-Wall -Wextra -Wpedantic -Wconversion -Wsign-conversion -Wshadow -Wundef -Wdouble-promotion -Wcast-align -Werror -I$here/.."
printf '#define NTTRAIN_IMPLEMENTATION\n#include "nttrain.h"\n' > "$work/whole.c"
cp "$work/whole.c" "$work/whole.cpp"

# 1. standards and compilers, silent under strict warnings
matrix() { # compiler, suffix, standards...
    compiler=$1 suffix=$2; shift 2
    how="-O1 -c -o $work/whole.o" # the oldest as it is used, the others as they are read: a minute each
    for std in "$@"; do
        if have "$compiler"; then try "$compiler -std=$std" "$compiler" -std="$std" $strict $how "$work/whole.$suffix"
        else skip "$compiler -std=$std" "no $compiler here"; fi
        how=-fsyntax-only
    done
}
if [ "$mode" = all ]; then
    for compiler in gcc clang; do matrix $compiler c c99 c11 c17; done
    for compiler in g++ clang++; do matrix $compiler cpp c++11 c++17 c++20; done
else
    try "$CC -std=c99, strict" "$CC" -std=c99 $strict -fsyntax-only "$work/whole.c"
    if have "${CXX:-c++}"; then try "${CXX:-c++} -std=c++11, strict" "${CXX:-c++}" -std=c++11 $strict -fsyntax-only "$work/whole.cpp"
    else skip "c++ -std=c++11" "no C++ compiler here"; fi
fi

# 2. configurations
for define in NTTRAIN_ISA_BASELINE NTTRAIN_ISA_PORTABLE NTTRAIN_NO_STDIO NTTRAIN_NO_MALLOC NTTRAIN_NO_FILES NTTRAIN_NO_KERNELS \
    'NTTRAIN_NO_KERNELS -DNTTRAIN_NO_FILES -DNTTRAIN_NO_STDIO -DNTTRAIN_NO_MALLOC' NTTRAIN_DEBUG; do
    [ "$mode" = all ] && how="-O1 -c -o $work/configured.o" || how=-fsyntax-only
    try "-D$define" "$CC" -std=c99 $strict -D$define $how "$work/whole.c"
done
try "-DNTTRAIN_STATIC" "$CC" -std=c99 $strict -Wno-unused-function -DNTTRAIN_STATIC -fsyntax-only "$work/whole.c"
try "nothing but declarations without NTTRAIN_IMPLEMENTATION" sh -c "printf '#include \"nttrain.h\"\n#include \"nttrain.h\"\n' > $work/bare.c &&
    $CC -std=c99 $strict -O1 -c $work/bare.c -o $work/bare.o && ! nm $work/bare.o | grep ."
sed 's/"nttrain.h"/"vendored_name.h"/' "$work/whole.c" > "$work/vendored.c"
cp "$header" "$work/vendored_name.h"
try "under another name with NTTRAIN_FILE" "$CC" -std=c99 -I"$work" -DNTTRAIN_ISA_BASELINE '-DNTTRAIN_FILE="vendored_name.h"' -fsyntax-only "$work/vendored.c"

# 3. the object file: no mutable statics, nothing exported but nt_*, frames of at most 2 KB (constant tables are read-only without -fpie)
[ "$mode" = all ] && sets= || sets=-DNTTRAIN_ISA_BASELINE # of instructions: a minute for all
try "-O2 -fno-pie, frames of at most 2048 bytes" "$CC" -std=c99 -O2 -fno-pie $sets -Wstack-usage=2048 -Werror -I"$here/.." -c "$work/whole.c" -o "$work/object.o"
[ "$mode" = all ] && try "-Os, frames of at most 2048 bytes" "$CC" -std=c99 -Os -fno-pie -Wstack-usage=2048 -Werror -I"$here/.." -c "$work/whole.c" -o "$work/small.o"
none_of() { # name, pattern of nm's lines, pattern of what is allowed
    nm "$work/object.o" | grep -E "$2" | grep -vE "$3" > "$work/log"
    [ ! -s "$work/log" ]
    result $? "$1"
}
none_of "no mutable statics" ' [bBdDC] ' ' \.'
none_of "no exports but nt_*" ' [TVWRG] ' ' nt_'
none_of "no calls that end the program or print" ' U (abort|exit|_exit|__assert_fail|assert|puts|perror)$' '^$'
if try "without malloc" "$CC" -std=c99 -O0 -fno-pie -DNTTRAIN_NO_MALLOC -DNTTRAIN_NO_STDIO -DNTTRAIN_ISA_BASELINE -I"$here/.." -c "$work/whole.c" -o "$work/object.o"; then
    none_of "NTTRAIN_NO_MALLOC calls no allocation" ' U (malloc|calloc|realloc|free|aligned_alloc|posix_memalign)$' '^$'
    none_of "NTTRAIN_NO_STDIO calls no stdio" ' U .*(printf|fopen|fread|fwrite|fputs|putchar|std(in|out|err)).*$' '^$'
fi

# 4. two translation units, C and C++, in one program
cat > "$work/use.cpp" <<'END'
#include "nttrain.h"
int sum_in_cpp(void);
extern "C" int sum_in_c(void);
int main() {
    nt_tape *t = nt_tape_open(NULL);
    float numbers[] = { 1, 2, 3 }, total = 0;
    nt_tensor *x = nt_constant(t, NT_F32, NT_SHAPE(3), numbers);
    nt_status status = nt_eval(nt_sum(x), &total);
    nt_params both = nt_grads(nt_sum(nt_mul(x, x)), NT_LIST(x));
    int ok = status == NT_OK && total > 5.5f && total < 6.5f && both.count == 1 && nt_version() == NT_VERSION && sum_in_c() == 6;
    nt_tape_close(t);
    return ok ? 0 : 1;
}
END
cat > "$work/use.c" <<'END'
#include "nttrain.h"
int sum_in_c(void);
int sum_in_c(void) {
    float numbers[] = { 1, 2, 3 }, total = 0;
    nt_tape *t = nt_tape_open(NULL);
    nt_status status = nt_eval(nt_sum(nt_constant(t, NT_F32, NT_SHAPE(3), numbers)), &total);
    nt_tape_close(t);
    return status == NT_OK ? (int)(total + 0.5f) : -1;
}
END
two_units() { # compiler of the implementation, its source
    $1 $strict -DNTTRAIN_ISA_BASELINE -DNTTRAIN_NO_KERNELS -O1 -c "$work/$2" -o "$work/whole.o" && "$CC" -std=c99 $strict -c "$work/use.c" -o "$work/use_c.o" &&
        "$cxx" -std=c++11 $strict -c "$work/use.cpp" -o "$work/use_cpp.o" && "$cxx" "$work/whole.o" "$work/use_c.o" "$work/use_cpp.o" -o "$work/use" -lm && "$work/use"
}
cxx=${CXX:-c++}
if have "$cxx"; then
    try "implementation in C, used from C and C++" two_units "$CC -std=c99" whole.c
    [ "$mode" = all ] && try "implementation in C++, used from C and C++" two_units "$cxx -std=c++11" whole.cpp
else
    skip "used from C and C++" "no C++ compiler here"
fi

echo "1..$n"
[ $failed -eq 0 ]
