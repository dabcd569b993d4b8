// SPDX-License-Identifier: Apache-2.0
// Chooses the transport that reaches each host.
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

// True if its supervisor is started by a srun step and dials back: --transport slurm, or `auto` on
// the hosts of an allocation.
bool uses_srun(const Options& options, const Host& host);

// If the host's policy forbids ssh, `auto` becomes agents; PermissionDenied names a host that no
// transport could reach then. The hosts must be known.
Result<void> keep_to_policy(Options& options);

// True if its supervisor is a child of ours, over a socket pair: that transport cannot be lost.
bool uses_local_transport(const Options& options, const Host& host);

// The handler is called when Slurm has signalled its step on some host. whole_tree: every process
// of the step has the signal already. Several hosts report the same signal.
void set_scheduler_signal_handler(const std::shared_ptr<TransportContext>& context,
                                  std::function<void(int signal, bool whole_tree)> handler);

// Call after the job: stops processes that were started for its transports, within a few seconds.
// Calls back once, immediately if there are none. The context may be null.
void finish_transports(const std::shared_ptr<TransportContext>& context,
                       std::function<void()> done);

// True if make_link() may try its agent: call TransportContext::prepare_agents() first.
bool may_have_agent(const Options& options, const Host& host);

// A closed link for this host. `attempt` counts redials (0 first).
std::unique_ptr<HostLink> make_link(const std::shared_ptr<TransportContext>& context,
                                    const Host& host, HostLinkEvents& owner, int attempt);

}  // namespace ivy
