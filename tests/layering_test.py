"""Keeps the layers: reads the #include lines of all sources, and fails on one that goes up, sideways, or to a library
that is confined elsewhere.

    layering_test.py [ROOT]      check the sources below ROOT (this project)
    layering_test.py --self-test show that planted violations are found
"""

import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

# Who may include whom, beside their own folder.
ALLOWED = {
    "sharding": set(),
    "tensor": {"sharding"},
    "rpc": {"tensor", "sharding"},
    "server": {"rpc", "tensor", "sharding"},
    "worker": {"rpc", "tensor", "sharding"},
    "client": {"rpc", "tensor", "sharding"},
    "tests": {"client", "server", "worker", "rpc", "tensor", "sharding", "bench"},
    "bench": {"client", "server", "worker", "rpc", "tensor", "sharding", "tests"},
}

# Inside worker/: the kernels know tensors alone, the collectives take the addition as a function.
ALLOWED_BELOW_WORKER = {
    "worker/kernel": {"worker/kernel", "tensor", "sharding"},
    "worker/collective": {"worker/collective", "tensor", "sharding"},
}

# Libraries that only some files may include: (what it is, pattern of the include, patterns of the files).
ABOVE = ["tests/*", "bench/*"]
CONFINED = [
    ("SQLite", r"sqlite3", ["server/store/sqlite_database.cc", "server/store/sqlite_failpoints.cc"]),
    ("the etcd API", r"etcd/", ["server/etcd_store.cc"]),
    ("yaml-cpp", r"yaml-cpp/", ["rpc/config.cc"]),
    ("oneDNN", r"(oneapi/)?dnnl|oneapi/", ["worker/kernel/*.cc"]),
    ("hwloc", r"hwloc", ["worker/kernel/host_share.cc"]),
    ("CLI11", r"CLI/", ["client/cli/*"]),
    ("certificates and TLS of OpenSSL", r"openssl/(pem|ssl|x509)", ["rpc/tls/certificate.cc", "rpc/tls/tls_session.cc"]),
    ("libcrypto", r"openssl/", ["sharding/digest.cc", "rpc/*", "server/*", "worker/*", "client/*"]),
    ("RE2", r"re2/", ["sharding/*"]),
    ("gRPC", r"grpc(pp)?/|.*\.grpc\.pb\.h", ["rpc/*", "server/*", "worker/*", "client/*"]),
    ("protobuf", r"google/protobuf/|.*\.pb\.h", ["rpc/*", "server/*", "worker/*", "client/*"]),
    ("prometheus-cpp", r"prometheus/", ["rpc/*", "server/*", "worker/*"]),
    ("spdlog", r"spdlog/", ["rpc/*"]),
    ("JSON", r"nlohmann/", ["tensor/*", "rpc/*", "server/*", "worker/*", "client/*"]),
]

# The files that may name generated messages: codecs, which turn them into values and back; rinds, which serve and make
# calls; what decides on the bytes of messages; and the exceptions, which work on messages themselves.
MESSAGE_HOMES = [
    "rpc/*_codec.*", "server/*_codec.*", "rpc/tree_decoder.*", "client/tree_encoder.*", "client/remote/wire_enums.h",
    "server/catalogue_record.*", "rpc/codec/status.cc", "rpc/stream/frame.cc", "rpc/stream/tile_piece.cc", "rpc/transfer_token.cc",
    "server/*_service.*", "server/*_streams.*", "server/*_calls.*", "server/resolve_answers.*", "rpc/server_lifecycle.cc",
    "server/coordinator_server.cc", "client/*_client.*", "client/coordinator_connection.*", "client/remote/health.cc",
    "worker/*_service.*", "worker/*_link.*", "worker/*_server.*",
    # Exceptions: kept as messages, since that is how they are stored, sent on or answered again.
    "server/stored_tree.*", "server/state/definitions.cc", "server/membership_pages.*", "server/step_memory.*",
    "worker/membership_book.*",
]

# Headers that name no generated message.
FREE_OF_MESSAGES = ["sharding/*.h", "tensor/*.h", "worker/kernel/*.h", "worker/collective/*.h", "server/store/store.h"]

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = (".h", ".cc")
GENERATED = re.compile(r"\.pb\.h$")


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def violations_of(path, text):
    """The rules that one file breaks, in words. `path` is relative to the project."""
    layer = path.split("/")[0]
    folder = next((f for f in ALLOWED_BELOW_WORKER if path.startswith(f + "/")), None)
    if not re.match(r"//\s*\S", text):
        yield "the first line is not a comment that says what lives here"
    for include in INCLUDE.findall(text):
        target = include.split("/")[0]
        if GENERATED.search(include):
            if matches(path, FREE_OF_MESSAGES) or folder or not matches(path, MESSAGE_HOMES + ABOVE):
                yield f"includes {include}, but generated messages stop at codecs and rinds (MESSAGE_HOMES)"
        elif target in ALLOWED:
            if folder:
                reached = next((f for f in ALLOWED_BELOW_WORKER if include.startswith(f + "/")), target)
                if reached not in ALLOWED_BELOW_WORKER[folder]:
                    yield f"includes {include}, but {folder}/ may include only " + ", ".join(
                        sorted(ALLOWED_BELOW_WORKER[folder]))
            elif target != layer and target not in ALLOWED[layer]:
                yield f"includes {include}, but {layer}/ may include only " + (
                    ", ".join(sorted(ALLOWED[layer])) or "itself")
        for library, pattern, homes in CONFINED:
            if re.match(pattern, include) and not matches(path, homes + ABOVE):
                yield f"includes {include}, but {library} is confined to " + ", ".join(homes)


def tracked_sources(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", *(f"{layer}/" for layer in ALLOWED)],
                            check=True, capture_output=True, text=True).stdout
    return [path for path in listed.split("\0") if path.endswith(SOURCES) and (root / path).exists()]


def check(root):
    """Returns the number of broken rules below `root`, each printed as file: rule."""
    sources = tracked_sources(root)
    found = 0
    for path in sources:
        for violation in violations_of(path, (root / path).read_text(encoding="utf-8")):
            print(f"{path}: {violation}")
            found += 1
    print(f"{len(sources)} files, {found} broken rules")
    return found


# Each breaks one rule, but for the last ones, which break none.
PLANTED = [
    ("sharding/up.h", '// Up.\n#include "tensor/dtype.h"\n', 1),
    ("server/sideways.cc", '// Sideways.\n#include "worker/store/shard_store.h"\n', 1),
    ("client/sideways.cc", '// Sideways.\n#include "server/store/store.h"\n', 1),
    ("worker/kernel/up.cc", '// Up.\n#include "worker/store/shard_store.h"\n', 1),
    ("worker/collective/network.cc", '// Network.\n#include "rpc/stream/frame.h"\n', 1),
    ("server/store/store.h", '// Message.\n#include "shardmesh/v1/mesh.pb.h"\n', 1),
    ("server/steps/planner.cc", '// Message.\n#include "shardmesh/v1/mesh.pb.h"\n', 1),
    ("server/state/arrays.cc", "// SQL.\n#include <sqlite3.h>\n", 1),
    ("worker/step/step_executor.cc", "// oneDNN.\n#include <oneapi/dnnl/dnnl.hpp>\n", 1),
    ("tensor/silent.cc", '#include "sharding/mesh.h"\n', 1),
    ("rpc/call.cc", "// TLS.\n#include <openssl/ssl.h>\n", 1),
    ("worker/service/tile_service.cc", '// Right.\n#include "shardmesh/v1/tile_service.grpc.pb.h"\n', 0),
    ("server/store/sqlite_database.cc", '// Right.\n#include <sqlite3.h>\n#include "process/clock.h"\n', 0),
    ("tests/unit/right_test.cc", '// Right.\n#include "worker/store/shard_store.h"\n#include "server/store/store.h"\n', 0),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        subprocess.run(["git", "init", "--quiet", root], check=True)
        for path, text, _ in PLANTED:
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text, encoding="utf-8")
        subprocess.run(["git", "-C", root, "add", "."], check=True)
        assert sorted(tracked_sources(root)) == sorted(path for path, _, _ in PLANTED)
        assert check(root) == sum(expected for _, _, expected in PLANTED)
    for path, text, expected in PLANTED:
        found = list(violations_of(path, text))
        assert len(found) == expected, (path, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        here = pathlib.Path(__file__).resolve().parent.parent
        sys.exit(1 if check(pathlib.Path(sys.argv[1]) if sys.argv[1:] else here) else 0)
