"""Keeps the layers: reads the #include lines of all sources, and fails on one that goes up, sideways, or to a library
that is confined elsewhere. Bounds the sizes of folders and services, and keeps the names of headers apart.

    layering_test.py [ROOT]      check the sources below ROOT (this project)
    layering_test.py --self-test show that planted violations are found
"""

import collections
import fnmatch
import pathlib
import re
import subprocess
import sys
import tempfile

# Each folder's row: the folders that it may include beside itself. `A/*` stands for A and all below it.
STATUS = {"status"}
BASE = {"status", "process"}
ALGEBRA = BASE | {"sharding", "sharding/*"}
VALUES = ALGEBRA | {"tensor", "program", "program/fuse", "program/graph"}
ALLOWED = {
    "status": set(),
    "process": {"status"},
    "process/folders": {"status", "process"},
    "process/roots": {"status", "process"},
    "process/sealed": {"status", "process"},
    "sharding": {"status"},
    "sharding/pattern": {"status", "sharding"},
    "sharding/rules": {"status", "sharding", "sharding/pattern"},
    "sharding/layout": {"status", "sharding"},
    "sharding/reshard": {"status", "sharding"},
    "tensor": {"status", "process", "process/folders", "process/sealed", "sharding"},
    "tensor/checkpoint": {"status", "process", "process/folders", "sharding", "sharding/pattern", "tensor"},
    # One library in two folders: passes over plans, which plans are made and checked with.
    "program": {"status", "sharding", "sharding/layout", "sharding/reshard", "tensor", "program/fuse"},
    "program/fuse": {"status", "sharding", "tensor", "program"},
    "program/graph": {"status", "sharding", "sharding/layout", "tensor", "program"},
    "rpc/codec": VALUES,
    "rpc/tls": BASE,
    "rpc/metrics": BASE | {"rpc/tls"},
    "rpc/stream": BASE | {"sharding", "tensor", "rpc/codec"},
    "rpc": VALUES | {"rpc/*", "tensor/checkpoint"},
    "server/store": {"status", "process"},
    "server/state": VALUES | {"rpc", "rpc/codec", "server/store"},
    "server/resolve": VALUES | {"rpc", "rpc/*", "server/state"},
    "server/steps": VALUES | {"rpc", "rpc/codec", "rpc/metrics", "server/state", "server/store", "server/resolve"},
    "server/content": VALUES | {"server/state", "server/steps"},
    "server/diagnosis": VALUES | {"server/state", "server/steps"},
    "server/repair": VALUES | {"rpc", "rpc/codec", "server/state", "server/steps"},
    "server/reshard": VALUES | {"rpc", "rpc/codec", "server/state", "server/resolve", "server/steps"},
    "server/attach": VALUES | {"rpc", "rpc/codec", "rpc/metrics", "rpc/stream", "server/content", "server/diagnosis", "server/state", "server/steps"},
    "server/save": VALUES | {"rpc", "rpc/codec", "server/store", "server/state", "server/steps", "server/attach"},
    "server/quarantine": VALUES | {"rpc", "rpc/*", "server/state", "server/steps", "server/attach"},
    "server/codec": VALUES | {"rpc", "rpc/*", "server/diagnosis", "server/state", "server/steps", "server/reshard", "server/attach", "server/resolve",
                              "server/save"},
    "server/calls": VALUES | {"rpc", "rpc/codec", "server/diagnosis", "server/state", "server/steps", "server/resolve", "server/attach", "server/codec"},
    "server/watch": BASE | {"rpc", "rpc/codec", "rpc/stream", "server/state", "server/resolve", "server/steps", "server/codec", "server/calls"},
    "server/service": VALUES | {"rpc", "rpc/*", "server/content", "server/diagnosis", "server/store", "server/state", "server/steps", "server/reshard", "server/resolve",
                                 "server/attach", "server/quarantine", "server/save", "server/codec", "server/calls", "server/watch"},
    "server": VALUES | {"rpc", "rpc/*", "server/*"},
    "worker/kernel": {"status", "process", "tensor"},
    "worker/tensor_op": {"status", "sharding", "tensor", "program", "worker/kernel"},
    "worker/collective": {"status", "process", "sharding", "sharding/reshard", "tensor", "program"},
    "worker/store": {"status", "process", "sharding", "tensor"},
    "worker/save": BASE | {"process/folders", "process/roots", "sharding", "tensor", "rpc/codec", "worker/store"},
    "worker/shm": {"status", "process", "process/sealed", "tensor", "worker/collective"},
    "worker/exchange": VALUES | {"rpc", "rpc/*", "worker/collective", "worker/shm"},
    "worker/step": VALUES | {"rpc/codec", "worker/collective", "worker/exchange", "worker/kernel", "worker/store", "worker/tensor_op"},
    "worker/service": VALUES | {"process/sealed", "rpc", "rpc/*", "worker/exchange", "worker/save", "worker/store", "worker/step"},
    "worker/fill": VALUES | {"process/roots", "tensor/checkpoint", "rpc", "rpc/*", "worker/store", "worker/service"},
    "worker": VALUES | {"process/roots", "rpc", "rpc/*", "worker/*"},
    "client/types": VALUES,
    "client/remote": VALUES | {"process/sealed", "rpc", "rpc/*", "client/types"},
    "client": VALUES | {"rpc", "rpc/*", "tensor/checkpoint", "client/types", "client/remote"},
    # Answers questions in the process of the caller, by the services of the coordinator.
    "client/local": {"status", "server", "client", "client/types", "client/remote"},
    # Transformers: their weights, graphs, and the loops that run them.
    "client/models": VALUES | {"tensor/checkpoint", "client", "client/types"},
    # Looks into steps that have run: timelines, and checks of results.
    "client/inspect": VALUES | {"client", "client/types"},
    "client/cli/local": BASE | {"sharding", "rpc/tls", "client"},
    "client/cli": VALUES | {"tensor/checkpoint", "rpc", "rpc/codec", "rpc/tls", "client", "client/types", "client/local",
                                     "client/cli/local"},
    "client/cli/inputs": VALUES | {"tensor/checkpoint", "rpc", "client", "client/models", "client/types", "client/cli"},
    "client/cli/report": VALUES | {"client", "client/types", "client/cli"},
    "client/cli/commands": VALUES | {"client/cli/inputs", "client/cli/report", "tensor/checkpoint", "rpc", "rpc/codec", "client", "client/inspect", "client/models", "client/types", "client/remote", "client/cli",
                                     "client/cli/local"},
    "tests": {"*"},
    "bench": {"*"},
}

TOPS = {row.split("/")[0] for row in ALLOWED} - {"tests", "bench"}

# A folder holds at most so many files.
MOST_FILES = 40
# A gRPC service only exposes what other files do: its source has at most so many lines.
MOST_SERVICE_LINES = 250

# Libraries that only some files may include: (what it is, pattern of the include, patterns of the files).
ABOVE = ["tests/*", "bench/*"]
# rpc, the services, the links, and what makes calls.
GRPC_HOMES = [
    "rpc/*", "server/service/*", "server/watch/*", "server/coordinator_server.*", "server/question_server.*",
    "worker/service/*_service.*", "worker/service/*_tiles.*", "worker/service/attach_stream.*",
    "worker/service/coordinator_link.cc", "worker/worker_server.*", "worker/exchange/*", "worker/fill/peer_reader.cc", "client/remote/*",
    # Streams of questions, and answers kept as slices that gRPC sends without a copy.
    "server/resolve/*_streams.*", "server/resolve/tree_reactor.*", "server/resolve/answer_cache.*",
]
CONFINED = [
    ("SQLite", r"sqlite3", ["server/store/sqlite_database.cc", "server/store/sqlite_failpoints.cc"]),
    ("the etcd API", r"etcd/", ["server/store/etcd_store.cc"]),
    ("yaml-cpp", r"yaml-cpp/", ["rpc/config.cc", "client/cli/context_file.cc", "client/cli/output_form.cc"]),
    ("oneDNN", r"(oneapi/)?dnnl|oneapi/", ["worker/kernel/matmul.cc", "worker/kernel/dnnl_matmul.*"]),
    ("Highway", r"hwy/", ["tensor/float_convert.cc", "worker/kernel/*_loops.cc", "worker/tensor_op/*_loops.cc"]),
    ("hwloc", r"hwloc", ["worker/kernel/host_share.cc"]),
    ("CLI11", r"CLI/", ["client/cli/*", "rpc/flags.cc"]),
    ("certificates and TLS of OpenSSL", r"openssl/(pem|ssl|x509)", ["rpc/tls/certificate.cc", "rpc/tls/tls_session.cc"]),
    ("libcrypto", r"openssl/", ["sharding/digest.cc", "process/random_bytes.cc", "rpc/*", "client/*"]),
    ("RE2", r"re2/", ["sharding/*", "status/python_repr.cc"]),
    ("gRPC", r"grpc(pp)?/|.*\.grpc\.pb\.h", GRPC_HOMES),
    ("protobuf", r"google/protobuf/|.*\.pb\.h", ["rpc/*", "server/*", "worker/*", "client/*"]),
    ("prometheus-cpp", r"prometheus/", ["rpc/metrics/*", "server/coordinator_metrics.*", "worker/worker_metrics.*"]),
    ("spdlog", r"spdlog/", ["process/log.cc"]),
    ("JSON", r"nlohmann/", ["process/json_error.*", "tensor/*", "rpc/*", "server/*", "worker/*", "client/*"]),
]

# The files that may name generated messages: codecs, which turn them into values and back; rinds, which serve and make
# calls; what decides on the bytes of messages; and the exceptions, which work on messages themselves.
MESSAGE_HOMES = [
    "rpc/codec/*_codec.*", "server/*_codec.*", "rpc/codec/tree_decoder.*", "client/remote/tree_encoder.*",
    "client/remote/wire_enums.h", "server/state/array_record.*", "rpc/codec/status.cc", "rpc/stream/frame.cc",
    "rpc/stream/tile_piece.cc", "rpc/stream/tile_receiver.cc", "rpc/transfer_token.cc", "worker/fill/peer_reader.cc", "server/service/*", "server/watch/*", "server/calls/*", "server/quarantine/*", "server/*_streams.*",
    "server/resolve/resolve_answers.*", "rpc/server_lifecycle.cc", "rpc/reflection_service.cc", "server/coordinator_server.cc",
    "client/remote/*_client.*", "client/remote/*_calls.*", "client/remote/*_call_stream.*", "client/remote/*_codec.*", "client/remote/coordinator_connection.*", "client/remote/health.cc",
    "worker/*_service.*", "worker/service/*_tiles.*", "worker/service/attach_*.*", "worker/*_link.*",
    "worker/*_server.*",
    # Exceptions: kept as messages, since that is how they are stored, sent on or answered again.
    "server/state/stored_tree.*", "server/state/definitions.cc", "server/state/step_memory.*",
    "worker/service/membership_book.*", "server/attach/membership_pages.*", "server/attach/quarantine_orders.*",
    "server/attach/worker_session.*", "server/attach/save_access.*", "server/save/save_run.*",
    "worker/save/save_orders.*",
]

# Headers that name no generated message.
FREE_OF_MESSAGES = ["status/*.h", "process/*.h", "sharding/*.h", "tensor/*.h", "program/*.h", "worker/kernel/*.h",
                    "worker/collective/*.h", "server/store/*.h"]

# Files that name nothing of the namespace rpc, in comments neither: the folders below it, and the headers of the client
# that are installed, which users write against. One of these gives users their names for what is rpc's.
FREE_OF_RPC = ["status/*", "process/*", "sharding/*", "tensor/*", "program/*", "client/*.h"]
FREE_OF_RPC_BUT = ["client/credentials.h", "client/client_core.h", "client/cli/*", "client/local/*", "client/remote/*"]
# `rpc::Caller`, `shardmesh::rpc::Caller` and `namespace shardmesh::rpc {`; not google::rpc or grpc.
RPC_NAME = re.compile(r"(?<!\w)(?<!google::)rpc::|\bnamespace\s+[\w:]*(?<!\w)rpc\b")

# No two headers have one stem: a search for `mesh.h` finds Mesh and nothing else. These may share the stem of another
# header, each for its reason.
SHARED_STEMS = {
    # Gives users their names for what rpc/tls/credentials.h holds: one concept, one word.
    "client/credentials.h",
}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)
SOURCES = (".h", ".cc")
GENERATED = re.compile(r"\.pb\.h$")


def matches(path, patterns):
    return any(fnmatch.fnmatch(path, pattern) for pattern in patterns)


def folder_of(path):
    """The folder of a source, by the row that it has: all of tests/ and bench/ have one."""
    top = path.split("/")[0]
    return top if top in ("tests", "bench") else str(pathlib.PurePosixPath(path).parent)


def may_include(folder, target):
    """Whether files of `folder` may include those of `target`."""
    return target == folder or target in ALLOWED[folder] or any(
        row == "*" or row.endswith("/*") and (target + "/").startswith(row[:-1]) for row in ALLOWED[folder])


def violations_of(path, text):
    """The rules that one file breaks, in words. `path` is relative to the project."""
    folder = folder_of(path)
    if folder not in ALLOWED:
        yield f"lies in {folder}/, which has no row in ALLOWED"
        return
    if not re.match(r"//\s*\S", text):
        yield "the first line is not a comment that says what lives here"
    for include in INCLUDE.findall(text):
        target = folder_of(include)
        if GENERATED.search(include):
            if matches(path, FREE_OF_MESSAGES) or not matches(path, MESSAGE_HOMES + ABOVE):
                yield f"includes {include}, but generated messages stop at codecs and rinds (MESSAGE_HOMES)"
        elif target in ALLOWED and not may_include(folder, target):
            yield f"includes {include}, but {folder}/ may include only " + (
                ", ".join(sorted(ALLOWED[folder])) or "itself")
        elif folder == "client" and path.endswith(".h") and target.startswith("rpc") and not matches(path, FREE_OF_RPC_BUT):
            yield f"includes {include}, but users write against this header and know nothing of rpc"
        for library, pattern, homes in CONFINED:
            if re.match(pattern, include) and not matches(path, homes + ABOVE):
                yield f"includes {include}, but {library} is confined to " + ", ".join(homes)
    yield from names_of_rpc(path, text)


def names_of_rpc(path, text):
    """The first line of a file of FREE_OF_RPC that names the namespace rpc, in words."""
    if matches(path, FREE_OF_RPC) and not matches(path, FREE_OF_RPC_BUT):
        for number, line in enumerate(text.splitlines(), 1):
            if RPC_NAME.search(line):
                yield f"line {number} names the namespace rpc, which " + (
                    "users do not know" if path.startswith("client/") else "lies above it")
                return


def crowded_folders(root):
    """The folders of more than MOST_FILES files, in words."""
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", *(f"{top}/" for top in sorted(TOPS))],
                            check=True, capture_output=True, text=True).stdout
    count = collections.Counter(str(pathlib.PurePosixPath(path).parent) for path in listed.split("\0")
                                if path and (root / path).exists())
    for folder, files in sorted(count.items()):
        if files > MOST_FILES:
            yield f"{folder}/ has {files} files, more than {MOST_FILES}: cut it by subject"


def long_services(root):
    """The sources of services of more than MOST_SERVICE_LINES lines, in words."""
    for path in tracked_sources(root):
        if path.endswith("_service.cc") and not path.startswith(("tests/", "bench/")):
            lines = len((root / path).read_text(encoding="utf-8").splitlines())
            if lines > MOST_SERVICE_LINES:
                yield f"{path} has {lines} lines, more than {MOST_SERVICE_LINES}: what it does belongs below it"


def shared_stems(root):
    """The headers of one stem in several folders, but for SHARED_STEMS, in words."""
    homes = collections.defaultdict(list)
    for path in tracked_sources(root):
        if path.endswith(".h") and path not in SHARED_STEMS:
            homes[pathlib.PurePosixPath(path).stem].append(path)
    for _, paths in sorted(homes.items()):
        if len(paths) > 1:
            yield f"{' and '.join(paths)} have one stem: rename the less prominent one after what it holds"


def folders_missing_in_image(root):
    """The folders of TOPS that .dockerignore keeps from the image's build, in words."""
    ignore = root / ".dockerignore"
    kept = ignore.read_text(encoding="utf-8").splitlines() if ignore.exists() else []
    for top in sorted(TOPS):
        if (root / top).is_dir() and f"!{top}" not in kept:
            yield f"{top}/ is not in .dockerignore, so the image cannot be built: add !{top}"


def tracked_sources(root):
    listed = subprocess.run(["git", "-C", root, "ls-files", "-z", *(f"{top}/" for top in sorted(TOPS | {"tests", "bench"}))],
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
    for violation in (*crowded_folders(root), *long_services(root), *shared_stems(root),
                      *folders_missing_in_image(root)):
        print(violation)
        found += 1
    print(f"{len(sources)} files, {found} broken rules")
    return found


# Each breaks one rule, but for the last ones, which break none.
PLANTED = [
    ("sharding/up.h", '// Up.\n#include "tensor/dtype.h"\n', 1),
    ("sharding/reshard/sideways.h", '// Sideways.\n#include "sharding/rules/rule_set.h"\n', 1),
    ("process/up.cc", '// Up.\n#include "sharding/mesh.h"\n', 1),
    ("server/sideways.cc", '// Sideways.\n#include "worker/store/shard_store.h"\n', 1),
    ("client/sideways.cc", '// Sideways.\n#include "server/store/store.h"\n', 1),
    ("server/store/up.cc", '// Up.\n#include "server/state/session.h"\n', 1),
    ("server/state/up.cc", '// Up.\n#include "server/service/array_service.h"\n', 1),
    ("worker/kernel/up.cc", '// Up.\n#include "worker/store/shard_store.h"\n', 1),
    ("worker/kernel/rules.cc", '// Rules.\n#include "sharding/rules/rule_set.h"\n', 1),
    ("worker/collective/network.cc", '// Network.\n#include "rpc/stream/frame.h"\n', 1),
    ("server/store/store.h", '// Message.\n#include "shardmesh/v1/mesh.pb.h"\n', 1),
    ("server/steps/planner.cc", '// Message.\n#include "shardmesh/v1/mesh.pb.h"\n', 1),
    ("server/steps/call.cc", "// gRPC.\n#include <grpcpp/grpcpp.h>\n", 1),
    ("server/state/array_registry.cc", "// SQL.\n#include <sqlite3.h>\n", 1),
    ("worker/service/attach_reports.cc", "// gRPC.\n#include <grpcpp/grpcpp.h>\n", 1),
    ("worker/step/step_executor.cc", "// oneDNN.\n#include <oneapi/dnnl/dnnl.hpp>\n", 1),
    ("tensor/silent.cc", '#include "sharding/mesh.h"\n', 1),
    ("rpc/call.cc", "// TLS.\n#include <openssl/ssl.h>\n", 1),
    ("process/inside.h", "// Inside.\nnamespace shardmesh::rpc {\n}\n", 1),
    ("process/name.cc", "// Name.\nauto end = rpc::SteadyDeadline::After(time);\n", 1),
    ("process/nested.h", "// Nested.\nnamespace rpc {\n}\n", 1),
    ("client/public.h", "// Public.\n// See rpc::ConnectOptions.\n", 1),
    ("client/types/public_type.h", "// Public.\nstd::vector<shardmesh::rpc::FlightRecord> records;\n", 1),
    ("client/transport.h", '// Public.\n#include "rpc/call.h"\n', 1),
    ("client/types/transport_type.h", '// Public.\n#include "rpc/codec/spec_codec.h"\n', 1),
    ("rpc/odd/file.cc", "// A folder without a row.\n", 1),
    *((f"tensor/many/file_{i}.txt", "", 0) for i in range(MOST_FILES + 1)),
    ("server/service/long_service.cc", "// Long.\n" * (MOST_SERVICE_LINES + 1), 0),
    ("sharding/twin.h", "// One.\n", 0),
    ("worker/step/twin.h", "// The other.\n", 0),
    ("worker/step/twin.cc", "// A source beside its header.\n", 0),
    ("rpc/tls/credentials.h", "// Right: client/credentials.h may share its stem.\n", 0),
    ("client/credentials.h", '// Right.\n#include "rpc/tls/credentials.h"\nusing Credentials = rpc::Credentials;\n', 0),
    ("client/remote/right.h", '// Right.\n#include "rpc/call.h"\nconst rpc::Caller* caller;\n', 0),
    ("client/right.cc", "// Right.\nrpc::Encode(mesh, to);\n", 0),
    ("status/right.cc", "// Right: google::rpc::Status and grpc::Status are others.\n", 0),
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
        # All but one.
        (root / ".dockerignore").write_text("".join(f"!{top}\n" for top in TOPS - {"tensor"}), encoding="utf-8")
        subprocess.run(["git", "-C", root, "add", "."], check=True)
        assert sorted(tracked_sources(root)) == sorted(path for path, _, _ in PLANTED if path.endswith(SOURCES))
        # One more each: the folder of too many files, the long service, the stem of two headers, the folder that the
        # image lacks.
        assert check(root) == sum(expected for _, _, expected in PLANTED) + 4
        assert [line.split(" have ")[0] for line in shared_stems(root)] == ["sharding/twin.h and worker/step/twin.h"]
    for path, text, expected in PLANTED:
        if not path.endswith(SOURCES):
            continue
        found = list(violations_of(path, text))
        assert len(found) == expected, (path, found)


if __name__ == "__main__":
    if sys.argv[1:] == ["--self-test"]:
        self_test()
    else:
        here = pathlib.Path(__file__).resolve().parent.parent
        sys.exit(1 if check(pathlib.Path(sys.argv[1]) if sys.argv[1:] else here) else 0)
