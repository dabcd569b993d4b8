// SPDX-License-Identifier: Apache-2.0
// Chooses the transport of each host, and makes its links.
#pragma once

#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "launcher/links/agent_transport.h"
#include "launcher/links/host_link.h"
#include "launcher/links/node_program.h"
#include "launcher/options/hosts.h"
#include "launcher/options/options.h"

namespace ivy {

// True if a srun step starts the host's supervisor, which then dials back: with --transport slurm,
// and with `auto` on the hosts of an allocation.
bool uses_srun(const Options& options, const Host& host);

// Applies this host's policy: if it forbids ssh, `auto` uses only agents. PermissionDenied names a
// host that no transport could then reach. Call when the hosts are known.
Result<void> keep_to_policy(Options& options);

// True if the supervisor is reached through a socket pair to a child of this process. Such a link
// breaks only if the process at its other end exits.
bool uses_local_transport(const Options& options, const Host& host);

// Call after the job: stops the processes that were started for its transports, within a few
// seconds. Calls `done` once, immediately if there are none. The context may be null.
void finish_transports(const std::shared_ptr<TransportContext>& context,
                       std::function<void()> done);

// True if make_link() may use the host's agent. Then call TransportContext::prepare_agents() first.
bool may_have_agent(const Options& options, const Host& host);

// Makes a link to this host, which is not open yet. attempt: 0 for the first link, then the number
// of the redial.
std::unique_ptr<HostLink> make_link(const std::shared_ptr<TransportContext>& context,
                                    const Host& host, HostLinkEvents& owner, int attempt);

}  // namespace ivy
