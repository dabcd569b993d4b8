// SPDX-License-Identifier: Apache-2.0
// The kind of connection that carries a host's bytes. Chosen once in links/; shown to users by its
// name. Pure; thread: any.
#pragma once

#include <chrono>
#include <string>
#include <string_view>

namespace ivy {

enum class Transport { kLocal, kSsh, kSshClient, kAgent, kSrun, kJoined };

// "local", "ssh", "OpenSSH client", "agent", "srun", "own ivyrun".
std::string transport_name(Transport transport);
// How long the workers of a host live without hearing from their launcher, unless --lease says it.
// is_attended: a user at a terminal sees the job.
std::chrono::milliseconds usual_lease(Transport transport, bool is_attended);
// The transport with this name; an unknown name, as another version may have written it, is kSsh.
Transport transport_named(std::string_view name);

}  // namespace ivy
