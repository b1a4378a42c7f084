#!/usr/bin/env bash
# Builds the peer of K5: llama.cpp, whose source the Python package llama-cpp-python carries, and the program that runs it.
# Downloads 77 MB, compiles for about half an hour on two cores, and works below build/llama alone.
#
# usage: bench/peers/build_llama_cpp.sh [JOBS]
set -euo pipefail

package='llama-cpp-python==0.3.36'
jobs=${1:-$(nproc)}
root=$(cd "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/../.." && pwd)
folder=$root/build/llama
mkdir -p "$folder"
cd "$folder"

if [[ ! -d source ]]; then
  [[ -x $root/build/peers/bin/pip ]] || python3 -m venv "$root/build/peers"
  compgen -G 'llama_cpp_python-*.tar.gz' >/dev/null ||
    "$root/build/peers/bin/pip" download -q --no-deps --no-binary llama-cpp-python "$package"
  rm -rf unpacked && mkdir unpacked
  tar -xzf llama_cpp_python-*.tar.gz -C unpacked
  mv unpacked/*/vendor/llama.cpp source
  rm -rf unpacked
fi

cmake -S source -B built -G Ninja -D CMAKE_BUILD_TYPE=Release -D BUILD_SHARED_LIBS=OFF -D GGML_RPC=ON -D GGML_RPC_RDMA=OFF -D GGML_NATIVE=ON \
  -D LLAMA_BUILD_COMMON=OFF -D LLAMA_BUILD_TESTS=OFF -D LLAMA_BUILD_EXAMPLES=OFF -D LLAMA_BUILD_SERVER=OFF \
  -D LLAMA_BUILD_APP=OFF -D LLAMA_BUILD_TOOLS=OFF >configure.log
ninja -C built -j "$jobs" llama ggml ggml-rpc
compile=(g++ -std=c++17 -O2 -fopenmp -I source/include -I source/ggml/include)
mapfile -t archives < <(find built -name 'libllama.a' -o -name 'libggml*.a')
# The archives need one another.
link=('-Wl,--start-group' "${archives[@]}" '-Wl,--end-group' -lpthread -ldl)
"${compile[@]}" "$root/bench/peers/llama_cpp_peer.cc" "${link[@]}" -o llama_cpp_peer
"${compile[@]}" source/tools/rpc/rpc-server.cpp "${link[@]}" -o rpc-server
echo "built $folder/llama_cpp_peer and $folder/rpc-server"
