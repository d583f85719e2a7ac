#!/bin/sh
# bench.sh: figures, not pass or fail. Kernels of infinite width here and, where Python can install it, by neural_tangents in the same run,
# two threads each; divide seconds per entry by each other. Quiet machines only.
cd "$(dirname "$0")" || exit 1
BUILD=${BUILD:-build}
"$BUILD/bench_kernels" 2
venv=$BUILD/peers
if [ ! -x "$venv/bin/python" ] || ! "$venv/bin/python" -c 'import neural_tangents' > /dev/null 2>&1; then
    python3 -m venv "$venv" > /dev/null 2>&1 &&
        "$venv/bin/pip" -q install 'numpy<2' 'scipy<1.13' jax==0.4.24 jaxlib==0.4.24 neural_tangents==0.6.5 > /dev/null 2>&1
fi
if ! "$venv/bin/python" -c 'import neural_tangents' > /dev/null 2>&1; then
    echo "skipped: neural_tangents could not be installed"
    exit 0
fi
for c in 'cntk21_gap 2' 'cntk21_flat 8' 'myrtle 2' 'unet64 2' 'fc5 1000'; do
    # shellcheck disable=SC2086
    "$venv/bin/python" peers/nt_kernels.py $c 2> /dev/null || echo "$c: failed"
done
