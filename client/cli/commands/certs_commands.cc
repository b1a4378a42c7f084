// Command certs: a test authority, and certificates for the processes of a cluster.
#include <iostream>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/cli/command_line.h"
#include "client/cli/commands/commands.h"
#include "client/cli/local/certificate_folder.h"
#include "client/cli/table.h"
#include "status/status_macros.h"
#include "status/str_cat.h"

namespace shardmesh::client {
namespace {

constexpr char kWorkerPrefix[] = "shardmesh-worker-";

struct CertsFlags {
  std::string folder;
  int64_t workers = 0;
  std::vector<std::string> worker_names;
  std::vector<std::string> hosts;
  int64_t days = 365;
};

absl::Status RunCerts(const Invocation& invocation, const CertsFlags& flags) {
  CertificateFolderOptions options;
  options.folder = flags.folder;
  options.workers = flags.worker_names;
  for (int64_t i = 0; i < flags.workers; ++i) {
    options.workers.push_back(StrCat(kWorkerPrefix, i));
  }
  options.hosts = flags.hosts;
  options.lifetime = absl::Hours(24 * flags.days);
  SHARDMESH_ASSIGN_OR_RETURN(const WrittenCertificates written, WriteCertificates(options));
  if (invocation.json) {
    Json certificates = Json::array();
    for (const WrittenCertificate& each : written.certificates) {
      certificates.push_back({{"path", each.path},
                              {"name", each.name.ToUri()},
                              {"valid_until", Timestamp(each.not_after)}});
    }
    invocation.Print({{"folder", flags.folder},
                      {"made_authority", written.made_authority},
                      {"certificates", std::move(certificates)}});
  } else {
    Table table({{"certificate"}, {"name"}, {"valid until"}});
    for (const WrittenCertificate& each : written.certificates) {
      table.AddRow({each.path, each.name.ToUri(), Timestamp(each.not_after)});
    }
    table.Print();
  }
  std::cerr << (written.made_authority ? "Made an authority in " : "Signed by the authority in ")
            << flags.folder << ". Anyone who reads " << flags.folder
            << "/authority/ca.key can act as any process of the cluster. Use this authority only "
               "for trials: give a production cluster certificates of an authority whose key is "
               "kept elsewhere\n";
  return absl::OkStatus();
}

}  // namespace

void AddCertsCommands(CommandLine* line) {
  auto flags = std::make_shared<CertsFlags>();
  CLI::App* const certs = line->AddCommand(
      "certs", "Make a test authority and certificates for mutual TLS, or renew them",
      [flags](const Invocation& i) { return RunCerts(i, *flags); });
  certs
      ->add_option("--dir", flags->folder,
                   "folder to write; an existing authority is kept, existing certificates are "
                   "renewed with new keys")
      ->required();
  CLI::Option* const workers = certs->add_option(
      "--workers", flags->workers,
      StrCat("number of workers to make certificates for, ", kWorkerPrefix, "0 and so on"));
  workers->check(CLI::Range(1, 1024));
  certs
      ->add_option("--worker", flags->worker_names, "a certificate for the worker of this identity")
      ->excludes(workers);
  certs->add_option("--host", flags->hosts,
                    "a further host name or address in the servers' certificates, for tools that "
                    "check host names; shardmesh itself checks identities");
  certs->add_option("--days", flags->days, "how long certificates are valid (default: 365)")
      ->check(CLI::Range(1, 3650));
}

}  // namespace shardmesh::client
