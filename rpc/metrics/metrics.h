// Counters, gauges and histograms of a process, with Prometheus' semantics.
#ifndef SHARDMESH_RPC_METRICS_METRICS_H_
#define SHARDMESH_RPC_METRICS_METRICS_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "absl/types/span.h"

namespace prometheus {
class Counter;
class Gauge;
class Histogram;
class Registry;
}  // namespace prometheus

namespace shardmesh::rpc {

// Label names and values. Use few values for each name, and never one for each tensor or request.
using MetricLabels = std::map<std::string, std::string>;

// Counter, Gauge and Histogram are handles, each of one time series. They are cheap to copy,
// thread-safe, and valid as long as their Metrics.
class Counter {
 public:
  // Adds `amount`, which must be at least 0.
  void Add(double amount = 1) const;
  // Raises the counter to `total`, for a value that is counted elsewhere and only rises. For one
  // thread at a time, such as the thread of OnScrape.
  void RaiseTo(double total) const;
  double value() const;

 private:
  friend class Metrics;
  explicit Counter(prometheus::Counter* counter) : counter_(counter) {}
  prometheus::Counter* counter_;
};

class Gauge {
 public:
  void Set(double value) const;
  void Add(double amount) const;
  double value() const;

 private:
  friend class Metrics;
  explicit Gauge(prometheus::Gauge* gauge) : gauge_(gauge) {}
  prometheus::Gauge* gauge_;
};

class Histogram {
 public:
  void Observe(double value) const;

 private:
  friend class Metrics;
  explicit Histogram(prometheus::Histogram* histogram) : histogram_(histogram) {}
  prometheus::Histogram* histogram_;
};

// Returns bucket bounds for latencies, in seconds, from 25 us to 100 s.
absl::Span<const double> LatencyBuckets();

// All metrics of a process. Names follow Prometheus' conventions: prefix `shardmesh_`, base units
// (`_seconds`, `_bytes`), suffix `_total` for counters. The same name and labels always give the
// same series. One name has one help text and one kind. Thread-safe.
class Metrics {
 public:
  // Adds shardmesh_build_info{version, component} and the metrics of the process
  // (rpc/metrics/process_metrics.h). `component`: `coordinator` or `worker`.
  explicit Metrics(const std::string& component);
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  shardmesh::rpc::Counter AddCounter(const std::string& name, const std::string& help,
                                     const MetricLabels& labels = {});
  shardmesh::rpc::Gauge AddGauge(const std::string& name, const std::string& help,
                                 const MetricLabels& labels = {});
  // `buckets`: upper bounds, in rising order.
  shardmesh::rpc::Histogram AddHistogram(const std::string& name, const std::string& help,
                                         const MetricLabels& labels = {},
                                         absl::Span<const double> buckets = LatencyBuckets());

  // Calls `function` before each scrape, on the scraping thread, one call at a time. The function
  // sets gauges from other objects, which must outlive the endpoints of the metrics.
  void OnScrape(std::function<void()> function);

  // Returns all metrics in Prometheus' text format.
  std::string Text() const;

 private:
  friend class MetricsEndpoint;
  class Collector;

  const std::shared_ptr<Collector> collector_;
};

}  // namespace shardmesh::rpc

#endif  // SHARDMESH_RPC_METRICS_METRICS_H_
