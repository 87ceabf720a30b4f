#!/usr/bin/env bash
# Make .venv: `setup.sh cpu` or `setup.sh cuda`. `make setup` calls it when the stack, the lock or pyproject.toml changed.
set -euo pipefail
cd "$(dirname "$0")/.."
stack=$1

if [ ! -e ".venv/.installed-$stack" ]; then # nothing yet, half an installation, or the other stack
    "${PYTHON:-python3}" -m venv --clear .venv
fi
python=.venv/bin/python
install() { "$python" -m pip --disable-pip-version-check -qq install "$@"; }

case $stack in
cpu)
    echo "installing $(grep -c == requirements/cpu.lock) distributions of the CPU stack, about 1 GB (two minutes on two cores)"
    # The lock is complete, so no resolving. Bytecode comes with the first import of what is really imported.
    install --no-deps --no-compile -r requirements/cpu.lock
    cp scripts/site/torchvision_without_ops.* "$("$python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')"
    install --no-deps --no-build-isolation -e .
    ;;
cuda)
    echo "installing the CUDA stack, several GB"
    install -c requirements/cuda.txt -e '.[all,dev]'
    ;;
*)
    echo "setup.sh: unknown stack '$stack'; known: cpu, cuda" >&2
    exit 2
    ;;
esac

if ! "$python" -c 'import torch, torchvision'; then
    echo "setup.sh: torch and torchvision do not import; see \"Which torch\" in docs/install.md" >&2
    exit 1
fi
touch ".venv/.installed-$stack"
