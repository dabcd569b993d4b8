// SPDX-License-Identifier: Apache-2.0
// Checks whether this host reaches an address, and by which interface. An answer, accepted or
// refused, proves that it is reachable: a firewall is silent.
// Thread: the loop's.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>

#include "proto/wire/job.pb.h"

namespace ivy {

// `checked` is called once, from the loop, at the latest after the request's timeout (5 s when it
// names none, at most 60 s).
void check_address(boost::asio::io_context& loop, const CheckAddress& request,
                   std::function<void(const AddressChecked&)> checked);

}  // namespace ivy
