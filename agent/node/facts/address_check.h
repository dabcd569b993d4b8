// SPDX-License-Identifier: Apache-2.0
// Checks whether this host reaches an address, and through which interface. Any answer, even a
// refused connection, proves that the address is reachable; a firewall drops packets silently.
// Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>

#include "proto/wire/job.pb.h"

namespace ivy {

// Calls `checked` once, from the loop, within the request's timeout (5 s by default, at most 60 s).
void check_address(boost::asio::io_context& loop, const CheckAddress& request,
                   std::function<void(const AddressChecked&)> checked);

}  // namespace ivy
