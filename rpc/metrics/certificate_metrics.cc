// Sets gauges from the certificate watch at each scrape.
#include "rpc/metrics/certificate_metrics.h"

#include "absl/time/time.h"
#include "rpc/tls/certificate_watch.h"

namespace shardmesh::rpc {

void ExportValidity(const Credentials& credentials, Metrics& metrics) {
  if (!credentials.is_secure()) {
    return;
  }
  const Gauge expiry = metrics.AddGauge("shardmesh_certificate_expiry_timestamp_seconds",
                                        "When the certificate in use expires, as Unix time.");
  const Gauge not_before =
      metrics.AddGauge("shardmesh_certificate_not_before_timestamp_seconds",
                       "When the certificate in use becomes valid, as Unix time.");
  metrics.OnScrape([expiry, not_before, watch = credentials.watch()] {
    const CertificateFacts facts = watch->state()->facts;
    expiry.Set(static_cast<double>(absl::ToUnixSeconds(facts.not_after)));
    not_before.Set(static_cast<double>(absl::ToUnixSeconds(facts.not_before)));
  });
}

}  // namespace shardmesh::rpc
