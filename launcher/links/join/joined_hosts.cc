// SPDX-License-Identifier: Apache-2.0
#include "launcher/links/join/joined_hosts.h"

#include <boost/asio/post.hpp>

namespace ivy {

void JoinedHosts::wait_for(const OpenRequest& request, const std::string& host,
                           StepClient& client) {
  hosts_.add(request.host, host, client);
  client.host_progress({"waiting for its ivy-node", "the output of its own ivyrun may say more"});
  boost::asio::post(loop_, [weak = weak_from_this(), number = request.host, host] {
    const auto self = weak.lock();
    if (!self) return;
    if (self->closed_.contains(host) || self->silent_.contains(host)) self->mark_closed(host);
    self->hosts_.serve(number);
  });
}

void JoinedHosts::mark_closed(const std::string& host) {
  closed_.insert(host);
  StepHost* const known = hosts_.find(host);
  if (known == nullptr) return;
  hosts_.lose(*known, LinkDown{LinkFailure::kNoSuchJob, "its ivyrun closed the connection",
                               "the output of " + host + " may say why"});
}

void JoinedHosts::mark_silent(const std::string& host) {
  silent_.insert(host);
  const StepHost* const known = hosts_.find(host);
  if (known != nullptr && known->waiting != nullptr) mark_closed(host);
}

}  // namespace ivy
