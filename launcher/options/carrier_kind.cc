#include "launcher/options/carrier_kind.h"

#include <algorithm>
#include <iterator>

#include "proto/contract/limits.h"

namespace ivy {
namespace {

struct CarrierRow {
  std::string_view name;
  std::chrono::milliseconds attended_lease = kLeaseAttended;
  std::chrono::milliseconds unattended_lease = kLeaseUnattended;
};

// In the order of the enumeration. A carrier may have leases of its own.
constexpr CarrierRow kRows[] = {{"local"}, {"ssh"},  {"OpenSSH client"},
                                {"agent"}, {"srun"}, {"own ivyrun"}};

const CarrierRow& row_of(Carrier carrier) { return kRows[static_cast<std::size_t>(carrier)]; }

}  // namespace

std::string carrier_name(Carrier carrier) { return std::string(row_of(carrier).name); }

std::chrono::milliseconds usual_lease(Carrier carrier, bool is_attended) {
  const CarrierRow& row = row_of(carrier);
  return is_attended ? row.attended_lease : row.unattended_lease;
}

Carrier carrier_named(std::string_view name) {
  const auto found = std::find_if(std::begin(kRows), std::end(kRows),
                                  [&](const CarrierRow& row) { return row.name == name; });
  if (found == std::end(kRows)) return Carrier::kSsh;
  return static_cast<Carrier>(found - std::begin(kRows));
}

}  // namespace ivy
