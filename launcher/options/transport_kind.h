// SPDX-License-Identifier: Apache-2.0
// --transport, and the kind of connection that carries a host's bytes: chosen once in links/, shown
// to users by its name. Pure; thread: any.
#pragma once

#include <chrono>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace ivy {

// The values of --transport.
enum class TransportChoice { kAuto, kLocal, kAgent, kSsh, kSlurm };

// {"auto", kAuto}, {"local", kLocal}, ...
std::vector<std::pair<std::string, TransportChoice>> transport_choices();
std::string transport_word(TransportChoice choice);
// True if it reaches other hosts than those of the allocation that ivyrun was started in.
bool passes_allocation_over(TransportChoice choice);

enum class Transport { kLocal, kSsh, kSshClient, kAgent, kSrun, kJoined };

// "local", "ssh", "OpenSSH client", "agent", "srun", "own ivyrun".
std::string transport_name(Transport transport);
// How long the workers of a host live without hearing from their launcher, unless --lease says it.
// is_attended: a user at a terminal sees the job.
std::chrono::milliseconds usual_lease(Transport transport, bool is_attended);
// The transport with this name; an unknown name, as another version may have written it, is kSsh.
Transport transport_named(std::string_view name);

}  // namespace ivy
