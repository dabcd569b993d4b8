// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/srun/step_hosts.h"

#include <utility>

namespace ivy {

void StepHosts::add(std::uint32_t number, const std::string& name, StepClient& client) {
  StepHost& host = hosts_[number];
  host.name = name;
  host.waiting = &client;
}

void StepHosts::remove(std::uint32_t number, const StepClient& client) {
  const auto known = hosts_.find(number);
  if (known == hosts_.end()) return;
  if (known->second.waiting == &client) known->second.waiting = nullptr;
  if (known->second.served == &client) known->second.served = nullptr;
}

void StepHosts::serve(std::uint32_t number) {
  StepHost& host = hosts_[number];
  if (host.waiting == nullptr) return;
  if (host.parked) return deliver(number, std::exchange(host.parked, nullptr));
  if (host.lost) std::exchange(host.waiting, nullptr)->host_failed(*host.lost);
}

void StepHosts::deliver(std::uint32_t number, std::shared_ptr<DialBackStream> stream) {
  const auto known = hosts_.find(number);
  if (known == hosts_.end()) return stream->stop();
  StepHost& host = known->second;
  host.has_connected = true;
  host.words.clear();
  if (host.waiting != nullptr) {
    host.served = std::exchange(host.waiting, nullptr);
    return host.served->host_connected(std::move(stream));
  }
  if (host.parked) host.parked->stop();
  host.parked = std::move(stream);
  if (host.served != nullptr) std::exchange(host.served, nullptr)->host_reconnected();
}

// Only a waiting link is told: a connection that the host still has ends by itself.
void StepHosts::lose(StepHost& host, const LinkDown& down) {
  if (host.lost) return;
  host.lost = down;
  if (host.waiting != nullptr) std::exchange(host.waiting, nullptr)->host_failed(down);
}

void StepHosts::lose_all(const LinkDown& down) {
  for (auto& [number, host] : hosts_) lose(host, down);
}

void StepHosts::progress(const LinkStep& step) {
  for (StepHost* const host : missing())
    if (host->waiting != nullptr) host->waiting->host_progress(step);
}

StepHost* StepHosts::find(const std::string& name) {
  for (auto& [number, host] : hosts_)
    if (host.name == name) return &host;
  return nullptr;
}

std::vector<StepHost*> StepHosts::missing() {
  std::vector<StepHost*> missing;
  for (auto& [number, host] : hosts_)
    if (!host.has_connected) missing.push_back(&host);
  return missing;
}

std::vector<std::string> StepHosts::names() const {
  std::vector<std::string> names;
  for (const auto& [number, host] : hosts_) names.push_back(host.name);
  return names;
}

}  // namespace ivy
