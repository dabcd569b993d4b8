// The name under which libpmix knows one generation of a job. Pure; thread: any.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ivy {

// The same on every host. Any user of a host can connect to libpmix's port on loopback and claim to
// be somebody else, but a peer that does not know the name is refused: a part of it follows from
// the `secret` that the hosts of the job share, from which nobody else can tell it.
std::string namespace_name(const std::string& job_id, std::uint32_t generation,
                           std::string_view secret);

}  // namespace ivy
