// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/own_interfaces.h"

#include "proto/os/interfaces.h"

namespace ivy {

Result<std::vector<std::string>> addresses_of_interface(const std::string& interface) {
  std::vector<std::string> v4;
  std::vector<std::string> v6;
  std::string known;
  for (const InterfaceAddress& own : interface_addresses()) {
    known += (known.empty() ? "" : ", ") + own.interface + " " + own.address;
    const bool is_wanted = interface.empty() ? !own.loopback : interface == own.interface;
    const bool is_v6 = own.address.find(':') != std::string::npos;
    if (is_wanted) (is_v6 ? v6 : v4).push_back(own.address);
  }
  v4.insert(v4.end(), v6.begin(), v6.end());
  if (v4.empty() && !interface.empty())
    return Error{Code::kNotFound, "--iface: no usable address on interface " + interface + " here",
                 "this machine has: " + known};
  return v4;
}

}  // namespace ivy
