#!/bin/sh
# bench.sh: figures, not pass or fail. Kernels of infinite width here and, where Python can install it, by neural_tangents in the same run,
# two threads each, of the same images: seconds per entry of the whole matrix of images against themselves (of which each pair is computed
# once here), and how far the numbers of both are from each other. Quiet machines only. Not 0 only if numbers differ by more than float32
# explains.
cd "$(dirname "$0")" || exit 1
BUILD=${BUILD:-build}
"$BUILD/bench_kernels" 2 | tee "$BUILD/bench.txt"
venv=$BUILD/peers
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import neural_tangents' > /dev/null 2>&1; then
    python3 -m venv "$venv" > /dev/null 2>&1 &&
        "$venv/bin/pip" -q install 'numpy<2' 'scipy<1.13' jax==0.4.24 jaxlib==0.4.24 neural_tangents==0.6.5 > /dev/null 2>&1
fi
if ! "$venv/bin/python" -c 'import neural_tangents' > /dev/null 2>&1; then
    echo "skipped: neural_tangents could not be installed"
    exit 0
fi
differ=''
numbers=$BUILD/bench.npy
for c in 'cntk21_gap 2' 'cntk21_flat 8' 'myrtle 2' 'unet64 2' 'fc5 1000'; do
    name=${c% *}
    ms=$(awk -v name="$name" '$1 == name && $2 == "best" { for (k = 3; k < NF; k++) if ($(k + 1) == "ms" && $(k + 2) == "an") print $k }' "$BUILD/bench.txt")
    # shellcheck disable=SC2086
    "$BUILD/bench_kernels" 2 $c "$numbers" && "$venv/bin/python" peers/nt_kernels.py $c "$numbers" "$ms" 2> "$BUILD/bench.err"
    status=$?
    rm -f "$numbers"
    [ $status = 0 ] && continue
    [ $status = 3 ] && differ="$differ $name" && continue
    echo "$c: failed, see $BUILD/bench.err"
done
[ -z "$differ" ] && exit 0
echo "!!! numbers differ:$differ"
exit 1
