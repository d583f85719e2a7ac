#!/bin/sh
# run_tap.sh PROGRAM...: runs test programs and reads their TAP, for machines that have no `prove`.
# A failed check, a missing plan, a plan that differs from what ran, and a bad exit status fail the program.
out=${TMPDIR:-/tmp}/run_tap.$$
trap 'rm -f "$out"' EXIT
passed=0 failed=0 todo=0 programs=0 bad=0
for program in "$@"; do
    programs=$((programs + 1)) ok=0 not=0 later=0 plan=none
    printf '%s .. ' "$program"
    "$program" > "$out" 2>&1
    status=$?
    while IFS= read -r line || [ -n "$line" ]; do
        case $line in
            "not ok "*"# TODO"*) later=$((later + 1)) ;;
            "not ok"*) not=$((not + 1)) ; [ $not -gt 1 ] || echo; echo "  $line" ;;
            "ok"*) ok=$((ok + 1)) ;;
            1..*) plan=${line#1..} ; plan=${plan%% *} ;;
            "# "*) [ $not -eq 0 ] || echo "  $line" ;;
        esac
    done < "$out"
    ran=$((ok + not + later))
    [ "$plan" = "$ran" ] || { not=$((not + 1)); echo "  $program: planned $plan, ran $ran (did it crash?)"; tail -n 5 "$out"; }
    [ $status -eq 0 ] || [ $not -gt 0 ] || { not=$((not + 1)); echo "  $program: exit status $status"; }
    if [ $not -eq 0 ]; then echo "ok ($ok passed, $later to do)"; else bad=$((bad + 1)); echo "  $program: FAILED"; fi
    passed=$((passed + ok)) failed=$((failed + not)) todo=$((todo + later))
done
echo "$programs programs, $bad of them failed; $todo checks to do in later steps"
echo "$passed passed, $failed failed"
[ $failed -eq 0 ]
