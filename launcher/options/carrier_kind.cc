#include "launcher/options/carrier_kind.h"

#include <algorithm>
#include <iterator>

namespace ivy {
namespace {

// In the order of the enumeration.
constexpr std::string_view kNames[] = {
    "local", "ssh", "OpenSSH client", "agent", "agent (kept connection)", "srun"};

}  // namespace

std::string carrier_name(Carrier carrier) {
  return std::string(kNames[static_cast<std::size_t>(carrier)]);
}

Carrier carrier_named(std::string_view name) {
  const auto found = std::find(std::begin(kNames), std::end(kNames), name);
  if (found == std::end(kNames)) return Carrier::kSsh;
  return static_cast<Carrier>(found - std::begin(kNames));
}

}  // namespace ivy
