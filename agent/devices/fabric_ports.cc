// SPDX-License-Identifier: Apache-2.0
#include "agent/devices/fabric_ports.h"

#include <unistd.h>

#include <array>

#include "agent/devices/small_files.h"
#include "proto/contract/text.h"
#include "proto/os/files.h"

namespace ivy {
namespace {

constexpr std::size_t kMaxPorts = 64;

struct PortCounter {
  const char* file;
  const char* one;
  const char* many;
};

// Counters that do not change on a healthy link. Congestion counters and the like are left out.
constexpr std::array kPortCounters{
    PortCounter{"link_downed", "link failure", "link failures"},
    PortCounter{"link_error_recovery", "link recovery", "link recoveries"},
    PortCounter{"local_link_integrity_errors", "link integrity error", "link integrity errors"},
    PortCounter{"port_rcv_errors", "packet received with an error", "packets received with errors"},
    PortCounter{"symbol_error", "symbol error", "symbol errors"},
};

// Returns the text after the number in "4: ACTIVE".
std::string state_of(const std::string& line) {
  const std::size_t colon = line.find(": ");
  return colon == std::string::npos ? line : line.substr(colon + 2);
}

PortHealth read_port(const std::string& directory, const std::string& name) {
  PortHealth port;
  port.name = name;
  port.state = state_of(first_line(directory + "/state"));
  for (const PortCounter& counter : kPortCounters) {
    const std::string line = first_line(directory + "/counters/" + counter.file);
    if (const std::optional<std::uint64_t> value = to_number<std::uint64_t>(line))
      port.counters.push_back({counter.one, counter.many, *value});
  }
  return port;
}

}  // namespace

bool has_ports(const std::string& root) {
  return access((root + "/sys/class/infiniband").c_str(), F_OK) == 0;
}

std::vector<PortHealth> read_ports(const std::string& root) {
  std::vector<PortHealth> ports;
  const std::string adapters = root + "/sys/class/infiniband";
  for (const std::string& adapter : names_in(adapters)) {
    const std::string ports_directory = adapters + "/" + adapter + "/ports";
    for (const std::string& number : names_in(ports_directory)) {
      if (ports.size() >= kMaxPorts) return ports;
      std::string name = adapter;
      name += " port " + number;
      ports.push_back(read_port(ports_directory + "/" + number, name));
    }
  }
  return ports;
}

}  // namespace ivy
