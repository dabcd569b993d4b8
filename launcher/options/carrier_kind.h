// The kind of connection that carries a host's bytes. Chosen once in links/; shown to users by its
// name. Pure; thread: any.
#pragma once

#include <algorithm>
#include <iterator>
#include <string>
#include <string_view>

namespace ivy {

enum class Carrier { kLocal, kSsh, kSshClient, kAgent, kKeptAgent, kSrun };

// In the order of the enumeration.
inline constexpr std::string_view kCarrierNames[] = {
    "local", "ssh", "OpenSSH client", "agent", "agent (kept connection)", "srun"};

inline std::string carrier_name(Carrier carrier) {
  return std::string(kCarrierNames[static_cast<std::size_t>(carrier)]);
}
// The carrier with this name; an unknown name, as another version may have written it, is kSsh.
inline Carrier carrier_named(std::string_view name) {
  const auto found = std::find(std::begin(kCarrierNames), std::end(kCarrierNames), name);
  if (found == std::end(kCarrierNames)) return Carrier::kSsh;
  return static_cast<Carrier>(found - std::begin(kCarrierNames));
}

}  // namespace ivy
