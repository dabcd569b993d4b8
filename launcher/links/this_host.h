// SPDX-License-Identifier: Apache-2.0
// Decides whether a host that the user has named is this machine. Reads this machine's names and
// addresses from the system, and resolves a name only if it differs from this machine's only in its
// domain. Thread: any; a first call may take as long as a name server. Answers about names are kept
// until the process exits, so later calls are fast and do not notice changes.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "launcher/options/hosts.h"

namespace ivy {

// Returns the names, in lower case, that a hosts file gives to addresses for which is_own() returns
// true. Calls is_own() once for each address. Pure.
std::set<std::string> own_names(std::string_view hosts_file,
                                const std::function<bool(const std::string&)>& is_own);

// True for 127.x, ::1, and addresses of this machine's interfaces. A scope ("%eth0") is ignored.
bool is_own_address(const std::string& numeric);

// True for "localhost", for this machine's host name, for a name that /etc/hosts gives to it, and,
// if only the domain differs from its host name, for a name that resolves to it.
bool is_own_name(const std::string& name);

// Returns the name of this process's account; empty: it has none. Looked up once, because the
// account may be in LDAP.
const std::string& own_account();

// True for a simulated host (--fake-hosts), which is a part of this machine. True also for a host
// whose name satisfies is_own_address() or is_own_name(), unless another user or a port is
// specified.
bool is_this_host(const Host& host);

}  // namespace ivy
