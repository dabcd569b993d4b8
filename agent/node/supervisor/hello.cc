// SPDX-License-Identifier: Apache-2.0
#include "agent/node/supervisor/hello.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <utility>

#include "agent/node/facts/host_facts.h"
#include "agent/node/facts/program_facts.h"
#include "agent/node/supervisor/host_health.h"
#include "proto/os/descriptor.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

// Covers the time for which NFS clients cache a changing folder (acdirmin is 30 s, but reading the
// folder queries the server). A user who mistyped a name has to wait that long, too.
constexpr std::chrono::milliseconds kRetryTime{6'000};

// Returns false if no port could be reserved; `facts` then contains the reason.
bool keep_port(std::uint32_t low, std::uint32_t high, std::optional<ReservedPort>& port,
               HostFacts& facts) {
  if (port) return true;
  Result<ReservedPort> reserved = ReservedPort::reserve(low, high);
  if (!reserved.ok()) {
    facts.set_reserved_port_error(reserved.error().message);
    return false;
  }
  port.emplace(std::move(reserved).value());
  return true;
}

void add_ports(const Hello& hello, JobPorts& ports, HostFacts& facts) {
  if (!keep_port(hello.port_low(), hello.port_high(), ports.master, facts)) return;
  // A single requested port is the master's; the other ports may have any number.
  const bool is_single = hello.port_low() == hello.port_high();
  const std::uint32_t low = is_single ? 0 : hello.port_low();
  const std::uint32_t high = is_single ? 0 : hello.port_high();
  if (!keep_port(low, high, ports.coordinator, facts)) return;
  if (!keep_port(low, high, ports.store, facts)) return;
  facts.set_reserved_port(ports.master->port());
  facts.set_coordinator_port(ports.coordinator->port());
  facts.set_store_port(ports.store->port());
}

// More than any host has cores; each costs a descriptor.
constexpr std::size_t kMaxWorkerPorts = 2048;

void add_worker_ports(const Hello& hello, JobPorts& ports, HostFacts& facts) {
  const PortWish& wish = hello.worker_ports();
  const std::size_t own = std::max<std::size_t>({1, facts.cores(), facts.accelerators()});
  const std::size_t workers = wish.workers() > 0 ? wish.workers() : own;
  const std::size_t wanted =
      std::min<std::size_t>(kMaxWorkerPorts, workers * wish.each() + wish.more());
  const bool is_single = hello.port_low() == hello.port_high();
  while (ports.workers.size() < wanted) {
    std::optional<ReservedPort> port;
    if (!keep_port(is_single ? 0 : hello.port_low(), is_single ? 0 : hello.port_high(), port,
                   facts))
      break;
    ports.workers.push_back(std::move(*port));
  }
  for (const ReservedPort& port : ports.workers) facts.add_worker_ports(port.port());
}

}  // namespace

std::chrono::milliseconds retry_time(LinkPeer peer) {
  // A file that is missing on the launcher's own host was never saved.
  return peer == LinkPeer::kLauncher ? std::chrono::milliseconds(0) : kRetryTime;
}

Result<void> write_token_file(const std::string& path, const std::string& token) {
  const Descriptor fd(
      open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0400));
  if (!fd && errno == EEXIST) return {};
  if (!fd) return errno_error(Code::kUnavailable, "token file " + path, errno);
  if (write_all(fd.get(), token)) return {};
  const Error error = errno_error(Code::kResourceExhausted, "token file " + path, errno);
  unlink(path.c_str());
  return error;
}

HostFacts inspect_host(const Hello& hello, LinkPeer peer, const BlockingPool::Label& label) {
  HostFacts facts = collect_host_facts();
  // With a container the program is looked up there.
  if (!hello.has_container()) {
    const auto on_wait = [&label](const std::string& path) {
      label.set(path + " to appear on its network file system");
    };
    add_program_facts(hello, retry_time(peer), on_wait, facts);
  }
  if (hello.examine()) examine_host(hello, facts);
  return facts;
}

HelloOk begin_answer(const Hello& hello, const Containment& containment,
                     const JobDirectory& directory, JobPorts& ports) {
  HelloOk answer;
  HostFacts& facts = *answer.mutable_facts();
  if (hello.reserve_port()) add_ports(hello, ports, facts);
  facts.set_containment(containment.describe());
  facts.set_job_directory(directory.path);
  facts.set_working_directory(hello.working_directory());
  return answer;
}

void add_facts(const Hello& hello, HostFacts found, JobPorts& ports, HelloOk& answer) {
  HostFacts& facts = *answer.mutable_facts();
  facts.MergeFrom(found);
  if (hello.has_worker_ports()) add_worker_ports(hello, ports, facts);
}

}  // namespace ivy
