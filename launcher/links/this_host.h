// SPDX-License-Identifier: Apache-2.0
// Tells whether a host that the user wrote is this very machine. Asks the system for our names and
// addresses, and no name server for anything but our own name. Thread: any; may take as long as
// that one question.
#pragma once

#include <functional>
#include <set>
#include <string>
#include <string_view>

#include "launcher/options/hosts.h"

namespace ivy {

// Names, in lower case, that a hosts file gives to the addresses for which is_own() returns true.
// Asks once for each address. Pure.
std::set<std::string> own_names(std::string_view hosts_file,
                                const std::function<bool(const std::string&)>& is_own);

// 127.x, ::1, "localhost", or an address of one of our interfaces. A scope ("%eth0") is ignored.
bool is_own_address(const std::string& numeric);

// True if the name is ours by spelling (our host name, short or long), by /etc/hosts, or, when only
// the domain differs from ours, by what a name server says about it.
bool is_own_name(const std::string& name);

// The name of the account that we run as; empty: it has none. Asked once: it may be in LDAP.
const std::string& own_account();

// True for a simulated host, and for a host given as localhost, 127.x, ::1 or this machine's name,
// or whose name resolves to one of its addresses, unless another user or a port is specified.
bool is_this_host(const Host& host);

}  // namespace ivy
