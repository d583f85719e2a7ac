#!/bin/sh
# check_all.sh: everything. Installs what is missing where it can (Debian, as root), and says what it had to leave out.
cd "$(dirname "$0")" || exit 1
failed="" skipped=""

# A program's name and the package that brings it.
need() {
    command -v "$1" > /dev/null 2>&1 && return
    packages="$packages $2"
}
packages=""
need gcc gcc; need g++ g++; need clang clang; need prove perl; need valgrind valgrind
if [ -n "$packages" ] && command -v apt-get > /dev/null 2>&1 && [ "$(id -u)" = 0 ]; then
    (apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $packages) > /dev/null 2>&1 || echo "apt-get could not install$packages"
fi
have() { command -v "$1" > /dev/null 2>&1; }
skip() { skipped="$skipped
  $1"; }
step() { # name, command...
    name=$1; shift
    echo "== $name"
    start=$(date +%s)
    "$@" < /dev/null || failed="$failed
  $name"
    echo "== $name: $(($(date +%s) - start)) s"
}
run() { if have prove; then prove -j2 -e '' "$@"; else ./run_tap.sh "$@"; fi; }
all_compilers() { (MODE=all; export MODE; BUILD=build/all; export BUILD; CC=gcc; export CC; run ./test_build.sh); }

# Builds the programs with other flags into a folder of their own and runs those that are named (none: all). Those that compile
# the implementation for themselves do so with one instruction set: it takes minutes otherwise, and the others see them all.
with_flags() { # folder, flags, program...
    folder=build/$1 flags=$2; shift 2
    mkdir -p "$folder"
    programs=$(make -s --no-print-directory BUILD="$folder" CC=gcc CXX=g++ list)
    [ $# -eq 0 ] || programs=$(for p in "$@"; do echo "$folder/$p"; done)
    make -s --no-print-directory -j2 BUILD="$folder" CFLAGS="$flags" ALONE_CFLAGS="$flags -DNTTRAIN_ISA_BASELINE" CC=gcc CXX=g++ $programs > "$folder/log" 2>&1 || { tail -n 20 "$folder/log"; return 1; }
    run $programs
}

mkdir -p build
step "check" make --no-print-directory check
step "all compilers and standards" all_compilers
step "kernels against wide networks" build/test_finite_width all
every_instruction_set() { # program
    cc -std=c99 -D_POSIX_C_SOURCE=200809L -O1 -I.. -I../examples -DEVERY_INSTRUCTION_SET "$1.c" -o "build/$1_every" -lm -lpthread && run "build/$1_every"
}
step "operations on every instruction set" every_instruction_set test_ops
step "activations' rules on every instruction set" every_instruction_set test_duals
if have gcc; then
    ASAN_OPTIONS=detect_leaks=1:allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
    export ASAN_OPTIONS UBSAN_OPTIONS
    sanitize="-O1 -g -fsanitize=address,undefined -fno-sanitize-recover=all -fno-omit-frame-pointer"
    step "address and undefined sanitizers" with_flags asan "$sanitize"
    step "fuzz the file readers" build/asan/fuzz_files 200000
    step "fuzz the operations" build/asan/fuzz_shapes 30000
    threaded=$(grep -l 'pthread_create\|crew\.h' test_*.c 2> /dev/null | sed 's/\.c$//')
    ONLY_THREADS=1
    export ONLY_THREADS # test_kernels: the part with workers
    [ -z "$threaded" ] || step "thread sanitizer" with_flags tsan "-O1 -g -fsanitize=thread" $threaded
else
    skip "sanitizers and fuzzers: no gcc"
fi
if have valgrind; then step "valgrind" valgrind -q --error-exitcode=9 --leak-check=full build/test_newcomer
else skip "valgrind: not here, and it could not be installed"; fi

[ -z "$skipped" ] || echo "skipped:$skipped"
[ -z "$failed" ] || { echo "FAILED:$failed"; exit 1; }
echo "all passed"
