// The kind of connection that carries a host's bytes. Chosen once in links/; shown to users by its
// name. Pure; thread: any.
#pragma once

#include <string>
#include <string_view>

namespace ivy {

enum class Carrier { kLocal, kSsh, kSshClient, kAgent, kKeptAgent, kSrun };

// "local", "ssh", "OpenSSH client", "agent", "agent (kept connection)", "srun".
std::string carrier_name(Carrier carrier);
// The carrier with this name; an unknown name, as another version may have written it, is kSsh.
Carrier carrier_named(std::string_view name);

}  // namespace ivy
