#!/bin/sh
# check.sh PROGRAM...: runs test programs with `prove` where there is Perl, with run_tap.sh elsewhere. Says what was left out.
if command -v prove > /dev/null 2>&1; then
    prove -j2 -e '' "$@"
else
    echo "skipped: prove (there is no Perl); run_tap.sh reads the results"
    ./run_tap.sh "$@"
fi
status=$?
echo "skipped: sanitizers, thread sanitizer, fuzzers, valgrind, all compilers and standards (make -C tests check-all runs them)"
exit $status
