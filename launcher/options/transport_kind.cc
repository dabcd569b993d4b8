// SPDX-License-Identifier: Apache-2.0
#include "launcher/options/transport_kind.h"

#include <algorithm>
#include <iterator>

#include "proto/contract/limits.h"

namespace ivy {
namespace {

struct TransportRow {
  std::string_view name;
  std::chrono::milliseconds attended_lease = kLeaseAttended;
  std::chrono::milliseconds unattended_lease = kLeaseUnattended;
};

// In the order of the enumeration. A transport may have leases of its own.
constexpr TransportRow kRows[] = {{"local"}, {"ssh"},  {"OpenSSH client"},
                                  {"agent"}, {"srun"}, {"own ivyrun"}};

const TransportRow& row_of(Transport transport) {
  return kRows[static_cast<std::size_t>(transport)];
}

}  // namespace

std::string transport_name(Transport transport) { return std::string(row_of(transport).name); }

std::chrono::milliseconds usual_lease(Transport transport, bool is_attended) {
  const TransportRow& row = row_of(transport);
  return is_attended ? row.attended_lease : row.unattended_lease;
}

Transport transport_named(std::string_view name) {
  const auto found = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const TransportRow& row) { return row.name == name; });
  if (found == std::end(kRows)) return Transport::kSsh;
  return static_cast<Transport>(found - std::begin(kRows));
}

}  // namespace ivy
