#!/bin/sh
# test_readme.sh: the program that the README prints, taken out of it, compiled and run; then in arrays that are too small. Prints TAP.
here=$(cd "$(dirname "$0")" && pwd)
work=${BUILD:-build}/readme
CC=${CC:-cc}
mkdir -p "$work" || exit 1
n=0 failed=0
check() { # status, name
    n=$((n + 1))
    if [ "$1" -eq 0 ]; then echo "ok $n - $2"; else failed=$((failed + 1)); echo "not ok $n - $2"; fi
}
sed -n '/^```c$/,/^```$/p' "$here/../README.md" | sed -n '2,/^```$/p' | sed '$d' > "$work/learn.c"
lines=$(grep -c . "$work/learn.c")
[ "$lines" -ge 20 ] && [ "$lines" -le 40 ]
check $? "about thirty lines ($lines)"
how="-std=c99 -Wall -Wextra -Werror -I$here/.. -DNTTRAIN_ISA_BASELINE -DNTTRAIN_NO_KERNELS -O0"
"$CC" $how "$work/learn.c" -o "$work/learn" -lm
check $? "it compiles"
"$work/learn" > "$work/out"
check $? "it runs"
grep -q '^1 xor 0 = \(0\.9\|1\.0\)' "$work/out" && grep -q '^1 xor 1 = 0\.0' "$work/out"
check $? "it has learned"
# The library once, the program without it for each size.
printf '#define NTTRAIN_IMPLEMENTATION\n#include "nttrain.h"\n' > "$work/library.c"
"$CC" $how -c "$work/library.c" -o "$work/library.o"
build() { sed "s/1 << 18/$1/; /NTTRAIN_IMPLEMENTATION/d" "$work/learn.c" > "$work/learn_$1.c" && "$CC" $how "$work/learn_$1.c" "$work/library.o" -o "$work/learn_$1" -lm; }
for size in 600 9000 30000; do
    build $size && ! "$work/learn_$size" > "$work/out" && grep -q 'bytes\|no tape' "$work/out" && ! grep -q xor "$work/out"
    check $? "in an array of $size bytes it says what is missing instead"
done
echo "1..$n"
[ "$failed" -eq 0 ]
