// Implements metrics with prometheus-cpp. Only this file and metrics_endpoint.cc include headers of
// prometheus-cpp.
#include "rpc/metrics/metrics.h"

#include <array>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "process/version.h"
#include "prometheus/collectable.h"
#include "prometheus/counter.h"
#include "prometheus/gauge.h"
#include "prometheus/histogram.h"
#include "prometheus/registry.h"
#include "prometheus/text_serializer.h"
#include "rpc/metrics/metrics_collector.h"
#include "rpc/metrics/process_metrics.h"

namespace shardmesh::rpc {

std::vector<prometheus::MetricFamily> Metrics::Collector::Collect() const {
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& function : on_scrape_) {
      function();
    }
  }
  return registry_.Collect();
}

void Metrics::Collector::OnScrape(std::function<void()> function) {
  absl::MutexLock lock(&mutex_);
  on_scrape_.push_back(std::move(function));
}

void Counter::Add(double amount) const { counter_->Increment(amount); }
void Counter::RaiseTo(double total) const {
  if (const double missing = total - counter_->Value(); missing > 0) {
    counter_->Increment(missing);
  }
}
double Counter::value() const { return counter_->Value(); }

void Gauge::Set(double value) const { gauge_->Set(value); }
void Gauge::Add(double amount) const { gauge_->Increment(amount); }
double Gauge::value() const { return gauge_->Value(); }

void Histogram::Observe(double value) const { histogram_->Observe(value); }

absl::Span<const double> LatencyBuckets() {
  static constexpr std::array kBuckets = {0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025,
                                          0.005,    0.01,    0.025,  0.05,    0.1,    0.25,  0.5,
                                          1.0,      2.5,     5.0,    10.0,    30.0,   100.0};
  return kBuckets;
}

Metrics::Metrics(const std::string& component) : collector_(std::make_shared<Collector>()) {
  AddGauge("shardmesh_build_info", "The build, as labels of a constant 1.",
           {{"version", std::string(BuildVersion())}, {"component", component}})
      .Set(1);
  AddProcessMetrics(this);
}

Metrics::~Metrics() = default;

shardmesh::rpc::Counter Metrics::AddCounter(const std::string& name, const std::string& help,
                                            const MetricLabels& labels) {
  return shardmesh::rpc::Counter(&prometheus::BuildCounter()
                                      .Name(name)
                                      .Help(help)
                                      .Register(collector_->registry())
                                      .Add(labels));
}

shardmesh::rpc::Gauge Metrics::AddGauge(const std::string& name, const std::string& help,
                                        const MetricLabels& labels) {
  return shardmesh::rpc::Gauge(
      &prometheus::BuildGauge().Name(name).Help(help).Register(collector_->registry()).Add(labels));
}

shardmesh::rpc::Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                                const MetricLabels& labels,
                                                absl::Span<const double> buckets) {
  return shardmesh::rpc::Histogram(
      &prometheus::BuildHistogram()
           .Name(name)
           .Help(help)
           .Register(collector_->registry())
           .Add(labels, prometheus::Histogram::BucketBoundaries(buckets.begin(), buckets.end())));
}

void Metrics::OnScrape(std::function<void()> function) {
  collector_->OnScrape(std::move(function));
}

std::string Metrics::Text() const {
  return prometheus::TextSerializer().Serialize(collector_->Collect());
}

}  // namespace shardmesh::rpc
