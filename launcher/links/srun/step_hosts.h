// SPDX-License-Identifier: Apache-2.0
// The hosts of a srun step and the links that wait for them: hands each host's connection to its
// link, keeps one that comes while no link waits, and remembers which hosts are lost. Thread: the
// loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/srun/dial_back_stream.h"

namespace ivy {

// One link that waits for its host's connection, or has it. None is called after remove().
struct StepClient {
  std::function<void(std::shared_ptr<DialBackStream>)> came;
  std::function<void(const LinkDown&)> failed;
  std::function<void(const RemoteText&)> progress;
  // It has a connection, and its host has made another one: the first is not heard any more.
  std::function<void()> came_again;
};

struct StepHost {
  std::string name;
  StepClient* waiting = nullptr;
  StepClient* served = nullptr;
  std::shared_ptr<DialBackStream> parked;  // Came while no link waited for it.
  bool has_come = false;
  std::string words;             // Its output before it connected.
  std::optional<LinkDown> lost;  // Why it takes part no more.
  std::map<std::string, int> bundles_asked;
};

class StepHosts {
 public:
  // The client outlives its stay.
  void add(std::uint32_t number, const std::string& name, StepClient& client);
  void remove(std::uint32_t number, const StepClient& client);
  // Gives a waiting client the known state of its host.
  void serve(std::uint32_t number);
  void deliver(std::uint32_t number, std::shared_ptr<DialBackStream> stream);
  void lose(StepHost& host, const LinkDown& down);
  void lose_all(const LinkDown& down);
  // For hosts that have not connected yet.
  void progress(const RemoteText& text);
  // By Slurm's name for it; null: the step has no such host.
  StepHost* find(const std::string& name);
  std::vector<StepHost*> missing();
  // Ordered by number; numbers start at 0 and have no gaps.
  std::vector<std::string> names() const;

 private:
  std::map<std::uint32_t, StepHost> hosts_;
};

}  // namespace ivy
