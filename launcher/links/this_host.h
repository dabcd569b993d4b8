// SPDX-License-Identifier: Apache-2.0
// Decides whether a host that the user has written is this machine. Asks the system for this
// machine's names and addresses, and a name server only about a name that differs from this
// machine's in its domain. Thread: any; may take as long as that lookup.
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

// True for 127.x, ::1, "localhost", and addresses of this machine's interfaces. A scope ("%eth0")
// is ignored.
bool is_own_address(const std::string& numeric);

// True for this machine's host name, short or long; for a name that /etc/hosts gives to it; and, if
// only the domain differs from its own name, for a name that a name server resolves to it.
bool is_own_name(const std::string& name);

// Returns the name of this process's account; empty: it has none. Looked up once, because the
// account may be in LDAP.
const std::string& own_account();

// True for a simulated host, and for a host given as localhost, 127.x, ::1 or this machine's name,
// or whose name resolves to one of its addresses, unless another user or a port is specified.
bool is_this_host(const Host& host);

}  // namespace ivy
