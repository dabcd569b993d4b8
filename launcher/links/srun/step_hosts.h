// SPDX-License-Identifier: Apache-2.0
// The hosts of a group that dials back, and the links that wait for them: hands each host's
// connection to its link, keeps ("parks") a connection for which no link waits yet, and remembers
// which hosts are lost. Thread: the loop's.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "launcher/links/host_link.h"
#include "launcher/links/srun/dial_back_stream.h"

namespace ivy {

// A link that waits for its host's connection, or has it. Nothing is called after remove().
class StepClient {
 public:
  virtual void host_connected(std::shared_ptr<DialBackStream> stream) = 0;
  // The host has made another connection after the one that this link has: it does not hear from
  // the launcher over that one any longer.
  virtual void host_reconnected() = 0;
  // The host will not connect.
  virtual void host_failed(const LinkDown& down) = 0;
  virtual void host_progress(const LinkStep& step) = 0;

 protected:
  ~StepClient() = default;
};

// A host of the group, with its link and its connection.
struct StepHost {
  std::string name;
  StepClient* waiting = nullptr;           // The link that waits for the host.
  StepClient* served = nullptr;            // The link that has the host's connection.
  std::shared_ptr<DialBackStream> parked;  // A connection for which no link waits.
  bool has_connected = false;              // It has connected at least once.
  std::string words;                       // Its last output; empty once it has connected.
  std::optional<LinkDown> lost;            // Why it will not connect again.
  // How often it has asked for each architecture's bundle.
  std::map<std::string, int> bundle_requests;
};

class StepHosts {
 public:
  // Registers a link that waits for the host. The client must live until remove().
  void add(std::uint32_t number, const std::string& name, StepClient& client);
  void remove(std::uint32_t number, const StepClient& client);
  // Gives a waiting link the parked connection, or the loss of its host.
  void serve(std::uint32_t number);
  // Hands a new connection of a host to the link that waits for it, or parks it.
  void deliver(std::uint32_t number, std::shared_ptr<DialBackStream> stream);
  // Marks a host as lost: it will not connect again.
  void lose(StepHost& host, const LinkDown& down);
  void lose_all(const LinkDown& down);
  // Reports a step to the links of hosts that have not connected yet.
  void progress(const LinkStep& step);
  // name: Slurm's name for the host. Null: the step does not have it.
  StepHost* find(const std::string& name);
  // Returns the hosts that have not connected yet.
  std::vector<StepHost*> missing();
  // Returns the hosts' names by number. Numbers start at 0 and have no gaps.
  std::vector<std::string> names() const;

 private:
  std::map<std::uint32_t, StepHost> hosts_;
};

}  // namespace ivy
